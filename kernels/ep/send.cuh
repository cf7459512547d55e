// The sending half of dispatch where blocks have one token each, or more than their tiles have room for (see send_few.cuh) while
// there are many blocks (see send_many.cuh for few). A block handles one token at a time: its row passes through shared memory,
// is quantised on the way, and is stored in bulk to each rank that owns one of its experts; the row's header is stored beside it.
// The next row, or piece of a row, is loaded meanwhile.
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/route.cuh"
#include "kernels/ep/shape.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

struct SendShared {
    uint32_t ranks[EPW_GPU_MAX_RANKS];  // tokens counted so far that have an expert of the rank
    uint32_t awaits;                    // some peer's permission was missing at the first look
    unsigned char *slots[EPW_MAX_TOPK]; // for each entry of the token: the slot to which unstaged scales go
    uint64_t loaded[2];                 // barriers: a tile's row is loaded
    uint64_t teams_loaded[kMaxTiles];   // the same in send_many.cuh
    uint32_t next[kWarps];              // there, the token that each team takes up

    __device__ __forceinline__ void init_teams() {
        if (threadIdx.x < kMaxTiles) ptx::barrier_init(&teams_loaded[threadIdx.x], 1);
        if (threadIdx.x < 32) ptx::fence_barrier_init();
    }
};

// Records in the lane where the token went, for combine: the thread's entry in row `row` of those sent to its rank. Called by a
// warp.
__device__ __forceinline__ void remember(const Dispatch &a, const Token &token, uint32_t row, uint32_t t) {
    uint32_t laneid = threadIdx.x % 32;
    if (laneid >= a.lane.layout.topk) return;
    size_t at = size_t(t) * a.lane.layout.topk + laneid;
    a.lane.arrays.ids[at] = int32_t(token.expert);
    a.lane.arrays.weights[at] = token.kept_weight();
    a.lane.arrays.sent_row[at] = row;
}

// Copies the caller's scales of an opaque row in the layout in which they travel. Called by `threads` threads.
__device__ inline void copy_scales(const Dispatch &a, uint32_t t, unsigned char *to, uint32_t thread = threadIdx.x,
                                   uint32_t threads = kThreads) {
    const unsigned char *from = static_cast<const unsigned char *>(a.in.scales) + t * a.in.scale_row_stride;
#pragma unroll 1
    for (uint32_t i = thread; i < a.scales_size; i += threads) {
        to[i] = from[i / a.format.scale_bytes * a.in.scale_col_stride + i % a.format.scale_bytes];
    }
}

// A first look at permission to write to the peers' windows, by one warp with one thread per peer. To wait for no other warp, it
// loads what it needs of the operation itself, all at once.
struct Permission {
    epw_sight seen = {};
    uint32_t active, excluded, suspects, queued; // the first word of each set: the ranks that have a thread
    uint32_t epoch, before;                      // the op before this one
    uint32_t wrapped;

    __device__ __forceinline__ void look(const Dispatch &a) {
        before = a.lane.state->turns[blockIdx.x].op;
        wrapped = a.lane.state->turns[blockIdx.x].wrapped;
        epoch = epw_word_epoch(a.lane.peers->epoch_word);
        active = a.lane.peers->active.words[0];
        excluded = a.lane.state->excluded.words[0];
        queued = a.lane.peers->queued.words[0];
        suspects = ptx::load_relaxed_gpu(&a.lane.shared->suspects.words[0]);
        if (threadIdx.x % 32 < a.lane.layout.ranks)
            seen = first_look(a.lane.window, threadIdx.x % 32, a.lane.index, EPW_WORD_COMBINE);
    }
    // Whether all peers' permissions are there. If not, or if there are more ranks than threads, await_permission() does the full
    // check. It does so too for peers behind queues, whose DROPPED words may not have been copied to the window yet. Called by
    // the whole warp.
    __device__ __forceinline__ bool is_there(const Dispatch &a) {
        const uint32_t peers = active & ~excluded;
        const epw_verdict verdict = epw_rule_may_send(seen, epw_epoch_word(epoch, 0), before + 1, false);
        const bool there = (before | wrapped) != 0 && verdict == EPW_ARRIVED; // the first operation of an epoch awaits the epoch
                                                                              // word instead
        uint32_t late = __ballot_sync(0xffffffffu, !there) & peers;
        ptx::fence_global_before_bulk(); // permission was acquired by generic loads; the bulk copy engine will write
        return late == 0 && a.lane.layout.ranks <= 32 && (peers & (suspects | queued)) == 0;
    }
};

// A piece of a token's row; piece number n passes through tile n % 2.
struct Job {
    uint32_t t, piece, n;
};

// A block's pass over its tokens.
template <typename T, uint32_t Payload> struct Sender {
    static constexpr bool kQuantise = quantises(Payload);
    static constexpr uint32_t kPerScale = EPW_FP8_BLOCK / scale_bytes(Payload); // payload bytes for each byte of scales
    static constexpr uint32_t kPermits = 3; // the warp that looks at permission, since it has little else to do

    const Dispatch &a;
    SendShared &s;
    unsigned char *memory;
    Census census;
    Job job = {blockIdx.x, 0, 0};
    uint4 held[kQuantised]; // chunks of a piece that is to be quantised
    Token token;
    Ids ids;
    Permission permission;

    // Runs before earlier kernels have ended, so it reads nothing that they write. `counts`: a counter for each expert, in shared
    // memory. The caller synchronises the block next.
    __device__ __forceinline__ Sender(const Dispatch &a, SendShared &s, unsigned char *memory, uint32_t *counts)
        : a(a), s(s), memory(memory), census{counts, s.ranks} {
        census.clear(a);
        if (a.halves & EPW_GPU_SEND) clear_rest();
    }

    // Issues the first loads from memory.
    __device__ __forceinline__ void begin() {
        fetch_ids(0, job.t);
        fetch(job);
    }
    // Looks at permission while the operation is being loaded.
    __device__ __forceinline__ void look() {
        if (threadIdx.x / 32 == kPermits) permission.look(a);
    }
    // Sends the tokens. The operation is visible after the next barrier.
    __device__ __forceinline__ void run(Operation &o);

  private:
    // Clears the padding that travels after a header, and after a row that is sent in one store, because the engine moves whole
    // units: zeros are sent, never stale shared memory. Nothing else is written there.
    __device__ __forceinline__ void clear_rest() {
        static_assert(EPW_MAX_SIDEBAND + 128 <= kThreads);
        const uint32_t header = uint32_t(epw_sideband_offset(&a.lane.layout)) + a.in.sideband_bytes + threadIdx.x;
        const uint32_t row = a.format.payload_bytes + a.scales_size + threadIdx.x;
#pragma unroll
        for (uint32_t tile = 0; tile < 2; tile++) {
            unsigned char *to = memory + tile * a.tiles.bytes;
            if (header < a.tiles.header) to[header] = 0;
            if (row < a.whole) to[a.tiles.header + row] = 0;
        }
        ptx::fence_shared_before_bulk();
    }

    __device__ __forceinline__ uint32_t bytes_of(const Job &j) const {
        return min(a.pieces.bytes, a.format.payload_bytes - j.piece * a.pieces.bytes);
    }
    __device__ __forceinline__ unsigned char *tile_of(const Job &j) const { return memory + (j.n & 1) * a.tiles.bytes; }

    __device__ __forceinline__ void fetch(const Job &j) {
        if (j.t >= a.in.tokens) return;
        uint32_t bytes = bytes_of(j);
        const unsigned char *from = static_cast<const unsigned char *>(a.in.x) + j.t * a.in.x_stride;
        from += uint64_t(j.piece) * a.pieces.bytes * (kQuantise ? 2 : 1);
        if constexpr (kQuantise) {
#pragma unroll
            for (uint32_t k = 0; k < kQuantised; k++) {
                uint32_t chunk = quantised_chunk(threadIdx.x, k);
                held[k] = chunk * 8 < bytes ? ptx::load_relaxed_gpu_once(from + chunk * 16) : uint4{};
            }
        } else if (threadIdx.x == 0) {
            ptx::barrier_expect(&s.loaded[j.n & 1], bytes);
            ptx::bulk_load(tile_of(j) + a.tiles.header, from, bytes, &s.loaded[j.n & 1]);
        }
    }
    __device__ __forceinline__ void await_loaded(const Job &j) const {
        if constexpr (!kQuantise) {
            while (!ptx::barrier_try_wait(&s.loaded[j.n & 1], j.n / 2 & 1)) {
            }
        }
    }

    // Writes what the block itself puts into the tile: a quantised piece, or the scales of a row that the engine loads.
    __device__ __forceinline__ void put_piece(const Job &j) {
        uint32_t bytes = bytes_of(j);
        unsigned char *payload = tile_of(j) + a.tiles.header;
        if constexpr (kQuantise) {
            constexpr uint32_t kEach = kQuantised * 8; // bytes that each thread contributes to the piece
            if ((threadIdx.x & ~31u) * kEach < bytes) {
                quantise_chunks<T, Payload>(held, threadIdx.x, threadIdx.x * kEach < bytes, payload, payload + bytes);
            }
            const uint32_t rest = bytes / kPerScale + threadIdx.x; // padding after a row's last piece: see clear_rest()
            if (!a.whole && rest < align_16(bytes / kPerScale)) payload[bytes + rest] = 0;
        } else if (a.whole && a.scales_size > 0) {
            copy_scales(a, j.t, payload + bytes);
        }
        ptx::fence_shared_before_bulk();
    }

    // Loads the ids of token `to`, and those of the tokens from `from` up to it, which are to be counted.
    __device__ __forceinline__ void fetch_ids(uint32_t from, uint32_t to) {
        if (threadIdx.x < 64) token.load(a, to);
        ids.load(a, from, min(to, a.in.tokens));
    }
    __device__ __forceinline__ void name_and_count(uint32_t from, uint32_t to) {
        if (threadIdx.x < 64) token.look(a);
        count_tokens(a, census, ids, from, min(to, a.in.tokens));
    }

    // The slot to which this thread's entry sends the row; nullptr if it sends none, or an earlier entry sends it there. Called
    // by the first two warps, after all warps have counted.
    __device__ __forceinline__ unsigned char *slot(const Operation &o) const {
        if (!token.leads || !has(o.reachable, token.rank)) return nullptr;
        return at(o, token.rank, epw_slot_offset(&a.lane.layout, a.lane.index, a.lane.rank, census.ranks[token.rank]));
    }

    __device__ __forceinline__ void send_piece(const Operation &o, const Job &j) const;
    __device__ __forceinline__ void send_header(const Operation &o, const Job &j) const;
    __device__ __forceinline__ void send_scales(const Operation &o, const Job &j);
};

// Records a bad id of the token.
__device__ __noinline__ inline void note_bad_id(Operation &o, uint32_t t, uint32_t column, int64_t id) {
    atomicOr(&o.troubled, 1u); // the closing block must clear the count of notes
    if (atomicAdd(&o.state->noted, 1u) >= EPW_GPU_NOTES) return;
    put_note(o, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, uint64_t(t) << 32 | column, id);
}

// Waits for all peers' permission if it was not there, one thread per peer, and leaves out suspects.
__device__ __forceinline__ void await_permission(Operation &o) {
    static_assert(EPW_GPU_MAX_RANKS <= kThreads);
    const uint32_t peer = threadIdx.x;
    if (peer >= o.ranks || !has(o.present, peer)) return;
    const bool suspected = has(o.suspects, peer);
    if (suspected || !await(o, awaited_permission(o), EPW_PHASE_DISPATCH_SEND, peer, false).arrived) leave_out(o, peer);
    ptx::fence_global_before_bulk(); // for the same reason as in Permission::is_there()
}

// Sends the piece, without the row's header. Called by warp 0; the first entry for each rank sends.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void Sender<T, Payload>::send_piece(const Operation &o, const Job &j) const {
    const epw_layout &l = a.lane.layout;
    if (unsigned char *to = slot(o)) {
        await_loaded(j);
        const uint32_t bytes = bytes_of(j), at = j.piece * a.pieces.bytes;
        const unsigned char *payload = tile_of(j) + a.tiles.header;
        unsigned char *row = to + l.header_bytes;
        ptx::bulk_store(row + at, payload, a.whole ? a.whole : bytes);
        if (kQuantise && !a.whole) {
            ptx::bulk_store(row + a.format.payload_bytes + at / kPerScale, payload + bytes, align_16(bytes / kPerScale));
        }
    }
}

// Sends the row's header, concurrently. Called by warp 1.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void Sender<T, Payload>::send_header(const Operation &o, const Job &j) const {
    const epw_layout &l = a.lane.layout;
    const uint32_t laneid = threadIdx.x % 32;
    unsigned char *tile = tile_of(j);
    if (laneid == 0) *reinterpret_cast<uint4 *>(tile) = {j.t, a.format.hash, 0, 0};
    if (laneid < l.topk) {
        uint32_t index = token.expert == kNobody ? 0 : census.experts[token.expert];
        reinterpret_cast<epw_entry *>(tile + sizeof(epw_slot_header))[laneid] = {int32_t(token.expert), token.kept_weight()};
        reinterpret_cast<uint32_t *>(tile + epw_indices_offset(&l))[laneid] = index;
    }
    const unsigned char *sideband = static_cast<const unsigned char *>(a.in.sideband) + size_t(j.t) * a.in.sideband_bytes;
#pragma unroll 1
    for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) tile[epw_sideband_offset(&l) + i] = sideband[i];
    ptx::fence_shared_before_bulk();
    __syncwarp();
    if (unsigned char *to = slot(o)) ptx::bulk_store(to, tile, a.tiles.header);
}

// Writes scales that are not staged directly to the slots.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void Sender<T, Payload>::send_scales(const Operation &o, const Job &j) {
    if (threadIdx.x < a.in.topk) s.slots[threadIdx.x] = slot(o);
    __syncthreads();
#pragma unroll 1
    for (uint32_t entry = 0; entry < a.in.topk; entry++) {
        unsigned char *to = s.slots[entry];
        if (to) copy_scales(a, j.t, to + a.lane.layout.header_bytes + a.format.payload_bytes);
    }
}

// Tells the peers the counts by which they place the rows, and computes the words that will say how many rows there are. Called
// by the last block, which has the fewest tokens, once it has counted all of them.
__device__ __forceinline__ void tell_counts(const Dispatch &a, const Operation &o, Census census) {
    const epw_layout &l = a.lane.layout;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < a.experts; e += kThreads) {
        uint32_t rank = a.per_rank.divide(e);
        const bool reachable = has(o.reachable, rank);
        uint32_t *counts = reinterpret_cast<uint32_t *>(control_at(o, rank, epw_expert_counts_offset(&l, o.lane, o.rank)));
        if (reachable) counts[e - rank * l.local_experts] = census.experts[e];
    }
    if (threadIdx.x < EPW_GPU_PARTS) o.state->sent_parts[threadIdx.x] = 0;
    if (threadIdx.x == 0) o.state->answers_taken = o.state->sums_taken = 0;
    if (threadIdx.x < l.ranks) {
        uint64_t word = epw_word(o.epoch, o.op, census.ranks[threadIdx.x]);
        ptx::store_relaxed_gpu(&o.state->sent[threadIdx.x], word);
        // Reader: this rank's next combine. Ordered before what the peer writes there by the word that permits it to answer.
        *reinterpret_cast<uint64_t *>(a.lane.window + epw_progress_offset(&l, o.lane, threadIdx.x)) = 0;
        if (l.answers > 1) {
            uint32_t due = 0;
#pragma unroll 1
            for (uint32_t e = 0; e < l.local_experts; e++) due += census.experts[threadIdx.x * l.local_experts + e];
            o.state->due[threadIdx.x] = due;
        }
    }
}

// Counts what the thread's peer has been sent, after it was told `word`. Called by the last block to send.
__device__ __noinline__ inline void count_sent(const Dispatch &a, const Operation &o, uint64_t word) {
    const uint32_t peer = threadIdx.x, rows = epw_word_value(word);
    if (peer >= o.ranks || !has(o.present, peer) || has(o.lost, peer)) return;
    ptx::reduce_relaxed_gpu(&o.state->traffic.rows_sent[peer], rows);
    ptx::reduce_relaxed_gpu(&o.state->traffic.bytes_sent[peer], rows * epw_format_bytes(&a.format));
}

// Posts rows and words to peers behind queues, one warp per peer at a time. Called by the whole block.
__device__ __noinline__ inline void post_rows(const Dispatch &a, const Operation &o) {
    const epw_layout &l = a.lane.layout;
    const uint64_t counts = epw_expert_counts_offset(&l, o.lane, o.rank), rows = epw_slot_offset(&l, o.lane, o.rank, 0);
    const uint32_t row = uint32_t(l.header_bytes) + align_16(a.format.payload_bytes + a.scales_size);
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t peer = 0; peer < o.ranks; peer++) {
        if (!has(o.queued, peer) || !has(o.present, peer) || has(o.lost, peer)) continue;
        if (turn++ % kWarps != threadIdx.x / 32) continue;
        const uint64_t word = ptx::load_relaxed_gpu(&o.state->sent[peer]);
        const Range ranges[] = {
            {counts, control_at(o, peer, counts), uint32_t(l.local_experts * sizeof(uint32_t)), 0, 1},
            {rows, at(o, peer, rows), row, uint32_t(l.slot_bytes), epw_word_value(word)},
        };
        signal_behind(o, peer, ranges, 2, EPW_WORD_DISPATCH, word);
    }
}

// Ends the half, when all rows of the block are on their way.
__device__ __forceinline__ void tell_rows(const Dispatch &a, Operation &o) {
    // Writer of the words: the last block, here. It has acquired what every block has released, rows and counts included; its
    // release at system scope passes that on to the peer, whose acquire of the word sees all of it. The values of the words are
    // mostly known while the rows are still in flight.
    uint64_t word = threadIdx.x < o.ranks ? ptx::load_relaxed_gpu(&o.state->sent[threadIdx.x]) : 0;
    ptx::bulk_wait_all();
    if (!last_to_send(o)) return;
    const bool tells = threadIdx.x < EPW_GPU_MAX_RANKS && (has(o.mapped, threadIdx.x) & !has(o.lost, threadIdx.x));
    if (threadIdx.x < o.ranks && !epw_word_matches(word, o.epoch, o.op)) {
        word = ptx::load_relaxed_gpu(&o.state->sent[threadIdx.x]);
    }
    if (tells) signal_mapped(o, threadIdx.x, EPW_WORD_DISPATCH, word);
    if (o.posts) post_rows(a, o); // may wait for room in a queue
    if (a.lane.counts) count_sent(a, o, word);
}

template <typename T, uint32_t Payload> __device__ __forceinline__ void Sender<T, Payload>::run(Operation &o) {
    const uint32_t warp = threadIdx.x / 32;
    // The first iteration runs even if the block has no token, since it counts the tokens that other blocks send.
    for (uint32_t counted = 0; true;) {
        const bool first = job.n == 0, begins = job.piece == 0;
        if (first && warp == kPermits) {
            bool there = permission.is_there(a);
            if (threadIdx.x % 32 == 0) s.awaits = !there;
        }
        if (begins) name_and_count(counted, job.t);
        if (job.t < a.in.tokens) put_piece(job);
        __syncthreads(); // the piece is staged and all warps have counted; the first time, the operation is visible too
        if (o.stage != EPW_GPU_FREE) {
            if (job.t < a.in.tokens && threadIdx.x == 0) await_loaded(job);
            return;
        }
        if (first && s.awaits) {
            await_permission(o);
            __syncthreads(); // the set of reachable peers is known
        }
        if (job.t >= a.in.tokens) break;

        if (warp == 0) send_piece(o, job);
        if (warp == 1 && begins) send_header(o, job);
        if (warp < 2) ptx::bulk_commit();
        if (!kQuantise && begins && !a.whole && a.scales_size > 0) send_scales(o, job);
        Job next = {job.t, job.piece + 1, job.n + 1};
        if (next.piece == a.pieces.count) next = {job.t + gridDim.x, 0, job.n + 1};
        const bool more = next.t < a.in.tokens;
        if (kQuantise && more) fetch(next);
        if (warp == 0 && begins) {
            remember(a, token, token.rank == kNobody ? 0 : census.ranks[token.rank], job.t);
            if (token.bad) note_bad_id(o, job.t, threadIdx.x, raw_value(a, token.raw));
        }
        if (more && next.piece == 0) fetch_ids(job.t, next.t);
        // Even a row that goes nowhere must have arrived before its tile and barrier are reused or the block ends.
        if (threadIdx.x == 0) await_loaded(job);
        if (!more) break;
        if (warp < 2) ptx::bulk_wait_read<1>(); // the stores have finished reading the other tile
        __syncthreads();                        // for both warps' stores; and all threads have read the token and its numbers
        if (!kQuantise) fetch(next);
        counted = job.t;
        job = next;
    }
    if (blockIdx.x == gridDim.x - 1) {
        if (blockIdx.x < a.in.tokens) { // else it has counted them while it waited
            __syncthreads();            // the last token's numbers have been read
            if (warp == 0) count_token(census, token);
            count_at_leisure(a, census, job.t + 1, a.in.tokens);
            __syncthreads();
        }
        tell_counts(a, o, census);
    }
    tell_rows(a, o);
}

} // namespace epw
