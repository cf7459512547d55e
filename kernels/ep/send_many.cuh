// The sending half of dispatch where blocks are few and have many tokens each: a team of warps handles a token at a time, so that
// many rows are on their way at once, and no warp waits for those that send other rows. The fewer tokens a block has, the larger
// the teams. With many blocks the wire is full in any case, and send.cuh begins sooner.
#pragma once

#include "kernels/ep/batch.cuh"
#include "kernels/ep/send.cuh"

namespace epw {

// The teams of a block: of equal size, each with a tile.
struct Teams {
    uint32_t size, count, team, member; // warps of a team; teams; this warp's team and its number in it

    __device__ __forceinline__ Teams(const Dispatch &a, uint32_t tokens) {
        static_assert(kWarps == 14);
        size = tokens <= 2 ? 7 : tokens <= 7 ? 2 : 1;
        count = min(kWarps / size, a.tiles.count);
        team = threadIdx.x / 32 / size;
        member = threadIdx.x / 32 - team * size;
    }
    __device__ __forceinline__ bool works() const { return team < count; }
    __device__ __forceinline__ bool leads() const { return member == 0; } // this warp, its team
    __device__ __forceinline__ uint32_t threads() const { return size * 32; }
    __device__ __forceinline__ uint32_t thread() const { return threadIdx.x - team * threads(); }
    __device__ __forceinline__ void meet() const {
        if (size == 1) {
            __syncwarp();
        } else {
            ptx::team_barrier(1 + team, threads());
        }
    }
};

// The tokens of this block: others follow.
struct OwnTokens {
    uint32_t begin, end;

    __device__ __forceinline__ explicit OwnTokens(const Dispatch &a)
        : begin(blockIdx.x * a.each + min(blockIdx.x, a.more)), end(begin + a.each + (blockIdx.x < a.more)) {}
};

// A block's pass over its tokens, a batch at a time: one for each team.
template <typename T, uint32_t Payload> struct TeamSender {
    static constexpr bool kQuantise = quantises(Payload);
    static constexpr uint32_t kPerScale = EPW_FP8_BLOCK / scale_bytes(Payload); // payload bytes for each byte of scales
    static constexpr uint32_t kShares = 4; // of a piece that is to be quantised, on their way to a thread's registers

    const Dispatch &a;
    BatchShared &batch;
    const Census census;
    const OwnTokens own;
    const Teams teams;
    unsigned char *const tile;
    uint32_t loads = 0;   // into the tile
    uint32_t batches = 0; // before this one
    uint4 held[kShares][kQuantised];
    Token token; // of the team's leader, in this batch
    Numbers numbers;
    Token following; // in the next one; being loaded

    __device__ __forceinline__ TeamSender(const Dispatch &a, BatchShared &batch, Census census, unsigned char *memory)
        : a(a), batch(batch), census(census), own(a), teams(a, own.end - own.begin), tile(memory + teams.team * a.tiles.bytes) {}

    // Issues the first loads from memory.
    __device__ __forceinline__ void begin() {
        if (teams.works()) clear_rest();
        const uint32_t t = own.begin + teams.team;
        if (!has_token(t)) return;
        if (teams.leads()) following.load(a, t);
        fetch(t, 0);
    }
    // Waits for those into the tile, when nothing is to be sent.
    __device__ __forceinline__ void abandon() const {
        if (has_token(own.begin + teams.team) && teams.thread() == 0) await_loaded();
    }
    // Sends the tokens. Called by the whole block, as all of these.
    __device__ __forceinline__ void run(Operation &o);

  private:
    // Clears the padding behind the header and the row, because the engine moves whole units: zeros are sent, never stale shared
    // memory. Nothing else is written there.
    __device__ __forceinline__ void clear_rest() const {
        const uint32_t header = uint32_t(epw_sideband_offset(&a.lane.layout)) + a.in.sideband_bytes;
        const uint32_t row = a.format.payload_bytes + a.scales_size + teams.thread();
#pragma unroll 1
        for (uint32_t i = header + teams.thread(); i < a.tiles.header; i += teams.threads()) tile[i] = 0;
        if (row < a.whole) payload()[row] = 0;
        ptx::fence_shared_before_bulk();
    }

    __device__ __forceinline__ bool has_token(uint32_t t) const { return teams.works() && t < own.end; }
    __device__ __forceinline__ uint32_t bytes_of(uint32_t piece) const {
        return min(a.pieces.bytes, a.format.payload_bytes - piece * a.pieces.bytes);
    }
    __device__ __forceinline__ unsigned char *payload() const { return tile + a.tiles.header; }
    __device__ __forceinline__ uint64_t *loaded() const { return &batch.loaded[teams.team]; }
    __device__ __forceinline__ const unsigned char *row_of(uint32_t t, uint32_t piece) const {
        return static_cast<const unsigned char *>(a.in.x) + t * a.in.x_stride +
               uint64_t(piece) * a.pieces.bytes * (kQuantise ? 2 : 1);
    }

    // Begins to load a piece: into registers, as much of it as there is room for, or into the tile.
    __device__ __forceinline__ void fetch(uint32_t t, uint32_t piece) {
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t k = 0; k < kShares; k++) fetch_share(t, piece, k, held[k]);
        } else if (teams.thread() == 0) {
            ptx::barrier_expect(loaded(), bytes_of(piece));
            ptx::bulk_load(payload(), row_of(t, piece), bytes_of(piece), loaded());
        }
    }
    // The thread's share number i of the piece.
    __device__ __forceinline__ uint32_t share(uint32_t i) const { return i * teams.threads() + teams.thread(); }
    __device__ __forceinline__ void fetch_share(uint32_t t, uint32_t piece, uint32_t i, uint4 (&to)[kQuantised]) const {
        const unsigned char *from = row_of(t, piece);
#pragma unroll
        for (uint32_t k = 0; k < kQuantised; k++) {
            const uint32_t chunk = quantised_chunk(share(i), k);
            to[k] = chunk * 8 < bytes_of(piece) ? ptx::load_relaxed_gpu_once(from + chunk * 16) : uint4{};
        }
    }
    __device__ __forceinline__ void await_loaded() const {
        if constexpr (!kQuantise) {
            while (!ptx::barrier_try_wait(loaded(), loads & 1)) {
            }
        }
    }

    // Writes what the team itself puts into the tile beside the header: a quantised piece, or the scales of a row that the engine
    // loads. Behind this the leader may send all of it.
    __device__ __forceinline__ void put_piece(uint32_t t, uint32_t piece) {
        const uint32_t bytes = bytes_of(piece);
        if constexpr (kQuantise) {
            constexpr uint32_t kEach = kQuantised * 8; // bytes of a share
#pragma unroll 1
            for (uint32_t first = 0; first * teams.threads() * kEach < bytes; first += kShares) {
#pragma unroll
                for (uint32_t k = 0; k < kShares; k++) {
                    const uint32_t n = share(first + k);
                    if ((n & ~31u) * kEach >= bytes) break;
                    quantise_chunks<T, Payload>(held[k], n, n * kEach < bytes, payload(), payload() + bytes);
                    fetch_share(t, piece, first + k + kShares, held[k]);
                }
            }
            const uint32_t rest = bytes / kPerScale + teams.thread(); // padding after a row's last piece: see clear_rest()
            if (!a.whole && rest < align_16(bytes / kPerScale)) payload()[bytes + rest] = 0;
        } else if (a.whole && a.scales_size > 0) {
            copy_scales(a, t, payload() + bytes, teams.thread(), teams.threads());
        }
        ptx::fence_shared_before_bulk();
        teams.meet();
    }
    // By the leader.
    __device__ __forceinline__ void put_header(uint32_t t) const {
        const epw_layout &l = a.lane.layout;
        const uint32_t laneid = threadIdx.x % 32;
        if (laneid == 0) *reinterpret_cast<uint4 *>(tile) = {t, a.format.hash, 0, 0};
        if (laneid < l.topk) {
            reinterpret_cast<epw_entry *>(tile + sizeof(epw_slot_header))[laneid] = {int32_t(token.expert), token.kept_weight()};
            reinterpret_cast<uint32_t *>(tile + epw_indices_offset(&l))[laneid] = numbers.index;
        }
        const unsigned char *sideband = static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes;
#pragma unroll 1
        for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) tile[epw_sideband_offset(&l) + i] = sideband[i];
    }
    // Waits until what the tile holds has been read.
    __device__ __forceinline__ void reuse_tile() const {
        if (teams.leads()) ptx::bulk_wait_read<0>();
        teams.meet();
    }

    // Takes up the batch whose first token is `first`. Numbers are known after the next barrier.
    __device__ __forceinline__ void begin_batch(uint32_t first) {
        if (first == own.begin) {
            count_many(a, census, own.begin);
        } else {
            while (!ptx::barrier_try_wait(&batch.numbered, batches & 1)) { // bounded: all warps come there
            }
            batches++;
            if (teams.leads()) add(token);
        }
        token = following;
        if (!teams.works() || !teams.leads()) return;
        if (first + teams.team < own.end) token.look(a);
        batch.put(token, teams.team);
    }
    __device__ __forceinline__ void number_batch(bool has) {
        if (teams.leads() && has) numbers = Numbers(a, census, batch, token, teams.team);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&batch.numbered);
    }
    __device__ __forceinline__ void add(const Token &token) const {
        if (token.expert != kNobody) atomicAdd(&census.experts[token.expert], 1u);
        if (token.leads) atomicAdd(&census.ranks[token.rank], 1u);
    }

    // The slot to which this thread's entry sends the row; nullptr if it sends none, or an earlier entry sends it there.
    __device__ __forceinline__ unsigned char *slot(const Operation &o) const {
        if (!token.leads || !has(o.reachable, token.rank)) return nullptr;
        return at(o, token.rank, epw_slot_offset(&a.lane.layout, a.lane.index, a.lane.rank, numbers.row));
    }
    // Sends the piece, and with the first one the header. Called by the leader; the first entry for each rank sends.
    __device__ __forceinline__ void send_piece(const Operation &o, uint32_t piece) const {
        await_loaded(); // even a row that goes nowhere, before its tile is reused or the block ends
        if (unsigned char *to = slot(o)) {
            const uint32_t bytes = bytes_of(piece), at = piece * a.pieces.bytes;
            unsigned char *row = to + a.lane.layout.header_bytes;
            if (piece == 0) {
                ptx::bulk_store(to, tile, a.tiles.header + (a.whole ? a.whole : bytes));
            } else {
                ptx::bulk_store(row + at, payload(), bytes);
            }
            if (kQuantise && !a.whole) {
                ptx::bulk_store(row + a.format.payload_bytes + at / kPerScale, payload() + bytes, align_16(bytes / kPerScale));
            }
        }
        ptx::bulk_commit();
    }
    // Writes scales that are not staged directly to the slots. Called by the leader.
    __device__ __forceinline__ void send_scales(const Operation &o, uint32_t t) const {
        const uint64_t slots = reinterpret_cast<uint64_t>(slot(o));
#pragma unroll 1
        for (uint32_t rest = __ballot_sync(0xffffffffu, slots != 0); rest != 0; rest &= rest - 1) {
            auto *to = reinterpret_cast<unsigned char *>(__shfl_sync(0xffffffffu, slots, __ffs(rest) - 1));
            copy_scales(a, t, to + a.lane.layout.header_bytes + a.format.payload_bytes, threadIdx.x % 32, 32);
        }
    }
    // Begins to load the token of the next batch.
    __device__ __forceinline__ void fetch_next(uint32_t t) {
        if (!has_token(t)) return;
        if (teams.leads()) following.load(a, t);
        if (!kQuantise) reuse_tile();
        fetch(t, 0);
    }
};

template <typename T, uint32_t Payload> __device__ __forceinline__ void TeamSender<T, Payload>::run(Operation &o) {
    const bool leads = teams.leads();
#pragma unroll 1
    for (uint32_t first = own.begin; first < own.end; first += teams.count) {
        const uint32_t t = first + teams.team;
        const bool has = has_token(t);
        begin_batch(first);
        __syncthreads(); // the entries of the batch are put, and the tokens before it are counted
        number_batch(has);
        for (uint32_t piece = 0; has && piece < a.pieces.count; piece++) {
            if (piece > 0 || (kQuantise && first > own.begin)) reuse_tile();
            if (piece > 0) fetch(t, piece);
            if (piece == 0 && leads) put_header(t);
            put_piece(t, piece);
            if (leads) send_piece(o, piece);
            loads++;
        }
        fetch_next(t + teams.count);
        if (!leads || !has) continue;
        remember(a, token, numbers.row, t);
        if (token.bad) note_bad_id(o, t, threadIdx.x % 32, raw_value(a, token.raw));
        if (!kQuantise && !a.whole && a.scales_size > 0) send_scales(o, t);
    }
    if (blockIdx.x < gridDim.x - 1) return;
    __syncthreads(); // all numbers have been read
    if (leads) add(token);
    __syncthreads();
    tell_counts(a, o, census);
}

// Called by the whole block, which sees the operation after its first barrier. `counts`: a counter for each expert.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void send_many(const Dispatch &a, Operation &o, SendShared &s, unsigned char *memory,
                                          uint32_t *counts) {
    BatchShared &batch = *reinterpret_cast<BatchShared *>(memory + a.batch_at);
    if (threadIdx.x < kMaxTiles) ptx::barrier_init(&batch.loaded[threadIdx.x], 1);
    if (threadIdx.x == kMaxTiles) ptx::barrier_init(&batch.numbered, kWarps);
    if (threadIdx.x < 32) ptx::fence_barrier_init();
    __syncthreads();
    TeamSender<T, Payload> sender(a, batch, {counts, s.ranks}, memory);
    sender.begin();
    if (o.stage != EPW_GPU_FREE) {
        sender.abandon();
        return;
    }
    await_permission(o);
    __syncthreads(); // the set of reachable peers is known
    sender.run(o);
    tell_rows(a, o);
}

} // namespace epw
