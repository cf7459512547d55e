// The sending half of dispatch where blocks are few and have many tokens each. These are numbered first, see runs.cuh. Then each
// team of warps takes a token at a time and sends its row, so that many rows are on their way at once, and no warp waits for
// those that send other rows. A block that has sent its tokens goes on with those of others: SMs that share a way to memory or to
// the wire with several busy ones take up to twice as long for a row. The fewer tokens a block has, the larger the teams. With
// many blocks the wire is full in any case, and send.cuh begins sooner.
#pragma once

#include "kernels/ep/runs.cuh"
#include "kernels/ep/send.cuh"

namespace epw {

// The teams of a block: of equal size, each with a tile.
struct Teams {
    uint32_t size, count, team, member; // warps of a team; teams; this warp's team and its number in it

    __device__ __forceinline__ Teams(const Dispatch &a, uint32_t tokens) {
        static_assert(kWarps == 14);
        size = a.few ? 1 : tokens <= 2 ? 7 : tokens <= 7 ? 2 : 1;
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

// Returns a block that has tokens left, looking at the next one first, or kNobody. Blocks that have not numbered theirs will send
// them. Called by a whole warp.
__device__ __noinline__ inline uint32_t block_with_tokens(const Dispatch &a, const Operation &o) {
#pragma unroll 1
    for (uint32_t first = 1; first < gridDim.x; first += 32) {
        const uint32_t after = first + threadIdx.x % 32;
        const uint32_t block = blockIdx.x + after < gridDim.x ? blockIdx.x + after : blockIdx.x + after - gridDim.x;
        const bool has = after < gridDim.x && ptx::load_acquire_gpu(&o.state->numbered[block]) == mark_of(o) &&
                         ptx::load_relaxed_gpu(&o.state->taken[block]) < tokens_of_block(a, block).count();
        const uint32_t some = __ballot_sync(0xffffffffu, has);
        if (some != 0) return __shfl_sync(0xffffffffu, block, __ffs(some) - 1);
    }
    return kNobody;
}

// Takes tokens to be sent, one at a time, each of which is numbered. Used by the leader of a team.
struct Taker {
    uint32_t whose = blockIdx.x; // the block whose tokens are taken
    uint32_t ticket;             // of thread 0: number of the token that was asked for; may be on its way

    __device__ __forceinline__ void ask(const Operation &o) {
        if (threadIdx.x % 32 == 0) ticket = atomicAdd(&o.state->taken[whose], 1u);
    }
    // The token that was asked for, or one of another block; kNobody if there is none left.
    __device__ __forceinline__ uint32_t take(const Dispatch &a, const Operation &o) {
        while (true) {
            const Stretch tokens = tokens_of_block(a, whose);
            const uint32_t n = __shfl_sync(0xffffffffu, ticket, 0);
            if (n < tokens.count()) return tokens.begin + n;
            whose = block_with_tokens(a, o);
            if (whose == kNobody) return kNobody;
            ask(o);
        }
    }
};

// A team at work.
template <typename T, uint32_t Payload> struct TeamSender {
    static constexpr bool kQuantise = quantises(Payload);
    static constexpr uint32_t kPerScale = EPW_FP8_BLOCK / scale_bytes(Payload); // payload bytes for each byte of scales
    static constexpr uint32_t kShares = 6;            // of a piece that is to be quantised, on their way to a thread's registers
    static constexpr uint32_t kEach = kQuantised * 8; // bytes of a share when it is quantised

    const Dispatch &a;
    SendShared &s;
    const Teams teams;
    unsigned char *const memory;
    uint32_t loads = 0; // into the tile
    uint4 held[kShares][kQuantised];
    const unsigned char *from = nullptr; // the next share to be loaded
    Taker taker;                         // of the leader, as the following; each team of the block has a first token of its own
    Routed token, following;             // the next one is being loaded

    __device__ __forceinline__ TeamSender(const Dispatch &a, SendShared &s, unsigned char *memory, Stretch own)
        : a(a), s(s), teams(a, own.count()), memory(memory), taker{blockIdx.x, teams.team} {}

    // Loads the first row, of token t, into the L2 cache. Called before numbers are known, and before registers are free for the
    // row.
    __device__ __forceinline__ void prefetch(uint32_t t) const {
        if (!teams.works() || t >= a.in.tokens) return;
        const unsigned char *row = row_of(t, 0);
        const uint32_t bytes = bytes_of(0) * (kQuantise ? 2 : 1);
#pragma unroll 1
        for (uint32_t i = teams.thread() * 128; i < bytes; i += teams.threads() * 128) ptx::prefetch_l2(row + i);
    }

    // Sends tokens until there are none left. Called by all warps.
    __device__ __forceinline__ void run(const Operation &o) {
        if (!teams.works()) return;
        clear_rest();
        uint32_t next = take(o);
#pragma unroll 1
        while (next != kNobody) {
            const uint32_t t = next;
            token = following;
            send(o, t, [&] { next = take(o); });
        }
    }
    // Sends token t, whose row is in the tile or on its way to it. `entry`: this thread's entry. The team is one warp.
    __device__ __forceinline__ void send_staged(const Operation &o, uint32_t t, const Routed &entry) {
        token = entry;
        put_header(t);
        if (!kQuantise && a.scales_size > 0) copy_scales(a, t, payload() + a.format.payload_bytes, threadIdx.x % 32, 32);
        clear_rest(); // ends with a fence
        __syncwarp();
        send_piece(o, 0);
    }

    // Waits until the piece that is being loaded is in the tile.
    __device__ __forceinline__ void await_loaded() const {
        if constexpr (!kQuantise) {
            while (!ptx::barrier_try_wait(loaded(), loads & 1)) {
            }
        }
    }

  private:
    // Sends token t, whose first piece is being loaded. `then`: takes up the next one.
    template <typename Then> __device__ __forceinline__ void send(const Operation &o, uint32_t t, const Then &then) {
        const bool leads = teams.leads();
#pragma unroll 1
        for (uint32_t piece = 0; piece < a.pieces.count; piece++) {
            if (loads > 0 && (piece > 0 || kQuantise)) reuse_tile();
            if (piece > 0) fetch(t, piece);
            if (piece == 0 && leads) put_header(t);
            put_piece(t, piece);
            if (leads) send_piece(o, piece);
            loads++;
        }
        then();
        if (leads && !kQuantise && !a.whole && a.scales_size > 0) send_scales(o, t);
    }
    __device__ __forceinline__ unsigned char *tile() const { return memory + teams.team * a.tiles.bytes; }
    // Clears the padding behind the header and the row, because the engine moves whole units: zeros are sent, never stale shared
    // memory. Nothing else is written there.
    __device__ __forceinline__ void clear_rest() const {
        const uint32_t header = uint32_t(epw_sideband_offset(&a.lane.layout)) + a.in.sideband_bytes;
        const uint32_t row = a.format.payload_bytes + a.scales_size + teams.thread();
#pragma unroll 1
        for (uint32_t i = header + teams.thread(); i < a.tiles.header; i += teams.threads()) tile()[i] = 0;
        if (row < a.whole) payload()[row] = 0;
        ptx::fence_shared_before_bulk();
    }

    __device__ __forceinline__ uint32_t bytes_of(uint32_t piece) const {
        return min(a.pieces.bytes, a.format.payload_bytes - piece * a.pieces.bytes);
    }
    __device__ __forceinline__ unsigned char *payload() const { return tile() + a.tiles.header; }
    __device__ __forceinline__ uint64_t *loaded() const { return &s.teams_loaded[teams.team]; }
    __device__ __forceinline__ const unsigned char *row_of(uint32_t t, uint32_t piece) const {
        return static_cast<const unsigned char *>(a.in.x) + t * a.in.x_stride +
               uint64_t(piece) * a.pieces.bytes * (kQuantise ? 2 : 1);
    }

    // Begins to load a piece: into registers, as much of it as there is room for, or into the tile.
    __device__ __forceinline__ void fetch(uint32_t t, uint32_t piece) {
        if constexpr (kQuantise) {
            from = row_of(t, piece) + quantised_chunk(teams.thread(), 0) * 16;
            int32_t left = bytes_from_first_share(piece);
#pragma unroll
            for (uint32_t k = 0; k < kShares; k++, left -= between()) fetch_share(left > 0, held[k]);
        } else if (teams.thread() == 0) {
            ptx::barrier_expect(loaded(), bytes_of(piece));
            ptx::bulk_load(payload(), row_of(t, piece), bytes_of(piece), loaded());
        }
    }
    // Payload bytes of a piece from the thread's first share on: not positive if it has none. Its other shares follow at this
    // distance.
    __device__ __forceinline__ int32_t bytes_from_first_share(uint32_t piece) const {
        return int32_t(bytes_of(piece)) - int32_t(teams.thread() * kEach);
    }
    __device__ __forceinline__ int32_t between() const { return int32_t(teams.threads() * kEach); }
    // Begins to load the thread's next share. What a thread outside of the piece holds is never used.
    __device__ __forceinline__ void fetch_share(bool inside, uint4 (&to)[kQuantised]) {
        if (inside) {
#pragma unroll
            for (uint32_t k = 0; k < kQuantised; k++) {
                const int32_t chunks = int32_t(quantised_chunk(teams.thread(), k)) - int32_t(quantised_chunk(teams.thread(), 0));
                to[k] = ptx::load_relaxed_gpu_once(from + chunks * 16);
            }
        }
        from += between() * 2;
    }

    // Writes what the team itself puts into the tile beside the header: a quantised piece, or the scales of a row that the engine
    // loads. Behind this the leader may send all of it.
    __device__ __forceinline__ void put_piece(uint32_t t, uint32_t piece) {
        const uint32_t bytes = bytes_of(piece);
        if constexpr (kQuantise) {
            ShareAt to(payload(), payload() + bytes, teams.thread(), scale_bytes(Payload));
            int32_t left = bytes_from_first_share(piece);
            const int32_t of_warp = int32_t(threadIdx.x % 32 * kEach); // from the warp's first thread on there is so much more
            while (left + of_warp > 0) {
#pragma unroll
                for (uint32_t k = 0; k < kShares; k += 2) {
                    ShareAt next = to;
                    next.advance(between(), between() / kPerScale);
                    const uint4(&two)[2][kQuantised] = reinterpret_cast<const uint4(&)[2][kQuantised]>(held[k]);
                    quantise_shares<T, 2>(Payload, two, teams.thread() % kBlockThreads == 0, {left > 0, left > between()},
                                          {to, next});
                    fetch_share(left > int32_t(kShares) * between(), held[k]);
                    fetch_share(left > int32_t(kShares + 1) * between(), held[k + 1]);
                    to.advance(2 * between(), 2 * between() / kPerScale);
                    left -= 2 * between();
                    if (left + of_warp <= 0) break;
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
        if (laneid == 0) *reinterpret_cast<uint4 *>(tile()) = {t, a.format.hash, 0, 0};
        if (laneid < l.topk) {
            reinterpret_cast<epw_entry *>(tile() + sizeof(epw_slot_header))[laneid] = {int32_t(token.expert), token.weight};
            reinterpret_cast<uint32_t *>(tile() + epw_indices_offset(&l))[laneid] = token.index & ~EPW_GPU_LEADS;
        }
        const unsigned char *sideband = static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes;
#pragma unroll 1
        for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) tile()[epw_sideband_offset(&l) + i] = sideband[i];
    }
    // Waits until what the tile holds has been read.
    __device__ __forceinline__ void reuse_tile() const {
        if (teams.leads()) ptx::bulk_wait_read<0>();
        teams.meet();
    }

    // The slot to which this thread's entry sends the row; nullptr if it sends none, or an earlier entry sends it there.
    __device__ __forceinline__ unsigned char *slot(const Operation &o) const {
        if (!(token.index & EPW_GPU_LEADS)) return nullptr;
        const uint32_t rank = a.per_rank.divide(token.expert);
        if (!has(o.reachable, rank)) return nullptr;
        return at(o, rank, epw_slot_offset(&a.lane.layout, a.lane.index, a.lane.rank, token.row));
    }
    // Sends the piece, and with the first one the header. Called by the leader; the first entry for each rank sends.
    __device__ __forceinline__ void send_piece(const Operation &o, uint32_t piece) const {
        await_loaded(); // even a row that goes nowhere, before its tile is reused or the block ends
        if (unsigned char *to = slot(o)) {
            const uint32_t bytes = bytes_of(piece), at = piece * a.pieces.bytes;
            unsigned char *row = to + a.lane.layout.header_bytes;
            if (piece == 0) {
                ptx::bulk_store(to, tile(), a.tiles.header + (a.whole ? a.whole : bytes));
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
    // Takes the next token and begins to load it, and asks for the one after it. Returns it, or kNobody.
    __device__ __forceinline__ uint32_t take(const Operation &o) {
        uint32_t t = 0;
        if (teams.leads()) {
            t = taker.take(a, o);
            if (t != kNobody) {
                taker.ask(o);
                following.load(a, t);
            }
            if (teams.size > 1 && threadIdx.x % 32 == 0) s.next[teams.team] = t;
        }
        if (teams.size > 1) {
            teams.meet();
            t = s.next[teams.team];
        }
        if (t == kNobody) return t;
        if (!kQuantise && loads > 0) reuse_tile();
        fetch(t, 0);
        return t;
    }
};

// A block's pass over its tokens, as Sender in send.cuh.
template <typename T, uint32_t Payload> struct ManySender {
    static constexpr uint32_t kPermits = kWarps - 1; // the warp that looks at permission

    const Dispatch &a;
    SendShared &s;
    unsigned char *const runs; // counters of the runs, where the tiles are later
    const Census census;
    const Stretch own; // the block's tokens
    TeamSender<T, Payload> sender;
    Numbering numbering;
    Permission permission;

    __device__ __forceinline__ ManySender(const Dispatch &a, SendShared &s, unsigned char *memory, uint32_t *counts)
        : a(a), s(s), runs(memory), census{counts, s.ranks}, own(tokens_of_block(a, blockIdx.x)), sender(a, s, memory, own),
          numbering(a, own) {
        census.clear(a);
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < a.runs * a.run_size / 4; i += kThreads) reinterpret_cast<uint32_t *>(runs)[i] = 0;
        s.init_teams();
    }

    __device__ __forceinline__ void begin() {
        numbering.load(a);
        sender.prefetch(own.begin + sender.teams.team);
    }
    __device__ __forceinline__ void look() {
        if (threadIdx.x / 32 == kPermits) permission.look(a);
    }
    __device__ __forceinline__ void run(Operation &o) {
        numbering.count(a, census, runs);
        if (threadIdx.x / 32 == kPermits) {
            const bool there = permission.is_there(a);
            if (threadIdx.x % 32 == 0) s.awaits = !there;
        }
        __syncthreads(); // all warps have counted, and the operation is visible
        if (o.stage != EPW_GPU_FREE) return;
        numbering.number(a, o, census, runs, min(sender.teams.count, own.count()));
        if (s.awaits) {
            await_permission(o);
            __syncthreads(); // the set of reachable peers is known
        }
        if (blockIdx.x == gridDim.x - 1) {
            count_runs(a, census, runs);
            __syncthreads();
            tell_counts(a, o, census);
        }
        sender.run(o);
        tell_rows(a, o);
    }
};

} // namespace epw
