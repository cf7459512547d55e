// Who sends what to whom: each token's row at every rank that owns one of its experts is numbered, in the order of tokens.
//
// A warp of each block takes a stretch of tokens. It counts them; all blocks meet; then the numbers at which each stretch begins
// are known, and the warps go over their tokens again, of which they have noted in shared memory what they found out. 32 entries
// are handled at a time, those of whole tokens. Then the first block also knows what its openings say, and writes them at once,
// where the peer has a slot for them; else attendants do later, who also open the lines to those peers.
#pragma once

#include "kernels/prefill/ids.cuh"

namespace epw {

constexpr uint32_t kCountingBlocks = 32; // at most: each has to add up what all have counted

// The counters of all rows: entries of each expert, rows to each rank, entries of each rank.
struct Tally {
    uint32_t experts, ranks;

    __device__ __forceinline__ uint32_t size() const { return experts + 2 * ranks; }
    __device__ __forceinline__ uint32_t rows_of(uint32_t rank) const { return experts + rank; }
    __device__ __forceinline__ uint32_t entries_of(uint32_t rank) const { return experts + ranks + rank; }
};

// Shared memory of the numbering: tallies of some warps, the first row to each rank, and notes of entries.
__host__ __device__ __forceinline__ uint32_t counters_in(uint32_t bytes, uint32_t experts, uint32_t ranks, uint32_t most) {
    const uint32_t tallies = (bytes / 4 - (ranks + 1)) / (experts + 2 * ranks);
    return tallies < most ? tallies : most;
}

// What is known of an entry before rows are numbered, in one word.
struct Noted {
    static constexpr uint32_t kRank = 14, kBefore = 22, kGoes = 27, kNoExpert = (1u << kRank) - 1;
    static_assert(EPW_GPU_MAX_EXPERTS <= kNoExpert && EPW_GPU_MAX_RANKS <= 1u << (kBefore - kRank));
    static_assert(EPW_MAX_TOPK <= 1u << (kGoes - kBefore));
    uint32_t word;

    // `goes`: the expert's rank takes part.
    static __device__ __forceinline__ Noted of(const NamedExpert &e, bool goes) {
        return {min(e.id, kNoExpert) | (goes ? 1u << kGoes | e.before << kBefore | e.rank << kRank : 0)};
    }
    __device__ __forceinline__ uint32_t id() const { return word & kNoExpert; }
    __device__ __forceinline__ bool has_expert() const { return id() != kNoExpert; }
    __device__ __forceinline__ uint32_t rank() const { return word >> kRank & ((1u << (kBefore - kRank)) - 1); }
    __device__ __forceinline__ uint32_t before() const { return word >> kBefore & ((1u << (kGoes - kBefore)) - 1); }
    __device__ __forceinline__ bool goes() const { return word >> kGoes & 1; }
    __device__ __forceinline__ bool leads() const { return goes() && before() == 0; } // the token's first for that rank
};

// Records a bad id of the token, and keeps the first one for the operation's outcome.
__device__ __noinline__ inline void note_bad_id(const Prefill &o, uint32_t t, uint32_t column, int64_t id) {
    const uint64_t at = uint64_t(t) << 32 | column;
    const uint32_t before = atomicAdd(&o.state->bad_ids, 1u);
    if (before == 0) {
        o.state->bad_at = at;
        o.state->bad_id = uint64_t(id);
    }
    if (before < EPW_GPU_NOTES) put_note(o, EPW_PHASE_DISPATCH_SEND, EPW_CAUSE_ROUTING, at, uint64_t(id));
}

// Entries of tokens up to `to`, each token in 2^shift lanes. All functions are called by a whole warp, for the tokens from `at`
// on.
struct Entries {
    const epw_prefill_dispatch_args &a;
    const Prefill &o;
    uint32_t to, shift;

    __device__ __forceinline__ uint64_t id(uint32_t at) const {
        const uint32_t t = at + (threadIdx.x % 32 >> shift), j = threadIdx.x % 32 & ((1u << shift) - 1);
        return t < to && j < a.in.topk ? load_id(a.in, t, j) : kNoId;
    }
    // What id(at) has returned says. `records`: bad ids are recorded.
    __device__ __forceinline__ Noted examine(uint32_t at, uint64_t loaded, bool records) const {
        const int64_t raw = raw_id(a.in, loaded);
        const NamedExpert named(raw, a.call.lane.experts, o.layout().local_experts, shift);
        if (records && named.bad) note_bad_id(o, at + (threadIdx.x % 32 >> shift), threadIdx.x & ((1u << shift) - 1), raw);
        return Noted::of(named, named.rank != kNone && has(o.present, named.rank));
    }
};
// Of entries that have no notes.
__device__ __noinline__ inline Noted examine_again(const Entries entries, uint32_t at) {
    return entries.examine(at, entries.id(at), false);
}

struct Numbering {
    const epw_prefill_dispatch_args &a;
    Prefill &o;
    const Tally tally;
    const uint32_t counters; // warps of a block that count
    const uint32_t blocks;   // that count
    const uint32_t peer;     // whose opening this thread writes, a mapped one; kNone: none
    uint32_t *tallies, *first;
    const uint32_t shift;      // a token has 2^shift lanes
    Noted *notes;              // the lane's, of the warp's first steps
    uint32_t steps;            // that have notes
    uint32_t from, to;         // the warp's tokens
    uint32_t rows_to_peer = 0; // what its opening says

    __device__ __forceinline__ Numbering(const epw_prefill_dispatch_args &a, Prefill &o, unsigned char *memory, uint32_t bytes,
                                         uint32_t warps, uint32_t peer)
        : a(a), o(o), tally{a.call.lane.experts, o.ranks}, counters(counters_in(bytes, a.call.lane.experts, o.ranks, warps)),
          blocks(min(o.blocks, kCountingBlocks)),
          peer(blockIdx.x == 0 && is_prefill_peer(o, peer) && !has(o.queued, peer) ? peer : kNone),
          tallies(reinterpret_cast<uint32_t *>(memory)), first(tallies + counters * tally.size()),
          shift(shift_of(o.layout().topk)) {
        const uint64_t stretch = uint64_t(o.block) * counters + threadIdx.x / 32, stretches = uint64_t(blocks) * counters;
        from = uint32_t(min(stretch, stretches) * a.in.tokens / stretches);
        to = uint32_t(min(stretch + 1, stretches) * a.in.tokens / stretches);
        const uint32_t used = counters * tally.size() + o.ranks + 1;
        steps = (bytes / 4 - used) / (counters * 32);
        notes = reinterpret_cast<Noted *>(tallies + used + threadIdx.x / 32 * steps * 32 + threadIdx.x % 32);
    }

    __device__ __forceinline__ uint32_t step() const { return tokens_at_once(shift); }

    __device__ __forceinline__ float weight(uint32_t at) const {
        const uint32_t t = at + (threadIdx.x % 32 >> shift), j = threadIdx.x % 32 & ((1u << shift) - 1);
        return a.in.topk_weights && t < to && j < a.in.topk ? a.in.topk_weights[size_t(t) * a.in.topk + j] : 0.0f;
    }
    // Calls handle(at, what load(at) returned) for all steps; what they need is loaded for several of them at the same time.
    template <typename Load, typename Handle>
    __device__ __forceinline__ void each_step(const Load &load, const Handle &handle) const {
#pragma unroll 1
        for (uint32_t at = from; at < to;) {
            const auto first = load(at), second = load(at + step()), third = load(at + 2 * step()), last = load(at + 3 * step());
#pragma unroll 1
            for (uint32_t k = 0; k < 4 && at < to; k++, at += step()) {
                handle(at, k < 2 ? (k == 0 ? first : second) : k == 2 ? third : last);
            }
        }
    }

    __device__ __forceinline__ void count() {
        uint32_t *own = tallies + threadIdx.x / 32 * tally.size(), n = 0;
        const Entries entries = {a, o, to, shift};
        each_step([&](uint32_t at) { return entries.id(at); },
                  [&](uint32_t at, uint64_t loaded) {
                      const Noted e = entries.examine(at, loaded, true);
                      if (n < steps) notes[n * 32] = e;
                      n++;
                      if (!e.goes()) return;
                      atomicAdd(&own[e.id()], 1u);
                      if (e.leads()) atomicAdd(&own[tally.rows_of(e.rank())], 1u);
                      atomicAdd(&own[tally.entries_of(e.rank())], 1u);
                  });
    }

    // The warps' tallies become the numbers at which their stretches begin. The first block notes the totals.
    __device__ __forceinline__ void add_up() {
        const epw_prefill_gpu_routing &r = a.call.routing;
        const uint32_t size = tally.size();
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) {
            uint32_t before = 0, all = 0;
            uint32_t of_blocks[kCountingBlocks]; // all loads are in flight together
#pragma unroll
            for (uint32_t block = 0; block < kCountingBlocks; block++) {
                of_blocks[block] = 0;
                if (block < blocks) of_blocks[block] = ptx::load_relaxed_gpu(&a.call.lane.tallies[size_t(block) * size + i]);
            }
#pragma unroll
            for (uint32_t block = 0; block < kCountingBlocks; block++) {
                all += of_blocks[block];
                if (block < o.block) before += of_blocks[block];
            }
            constexpr uint32_t kAtOnce = 8;
#pragma unroll 1
            for (uint32_t at = 0; at < counters; at += kAtOnce) {
                uint32_t n[kAtOnce];
#pragma unroll
                for (uint32_t c = 0; c < kAtOnce; c++) n[c] = at + c < counters ? tallies[(at + c) * size + i] : 0;
#pragma unroll
                for (uint32_t c = 0; c < kAtOnce; c++) {
                    if (at + c < counters) tallies[(at + c) * size + i] = before;
                    before += n[c];
                }
            }
            if (i >= tally.experts && i < tally.experts + o.ranks) first[i - tally.experts + 1] = all;
            if (blockIdx.x != 0) continue;
            if (i < tally.experts) {
                const uint32_t local = o.layout().local_experts, owner = i / local;
                r.sent_counts[i] = all;
                if (has(o.opened, owner)) counts_there(o, owner)[i % local] = all;
            }
            if (i >= tally.experts + o.ranks) r.sent_entries[i - tally.experts - o.ranks] = all;
        }
        if (threadIdx.x == 0) first[0] = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t rank = 0; rank < o.ranks; rank++) first[rank + 1] += first[rank];
        }
        __syncthreads();
        if (blockIdx.x != 0) return;
        if (peer != kNone) rows_to_peer = first[peer + 1] - first[peer];
        for (uint32_t i = threadIdx.x; i <= o.ranks; i += blockDim.x) {
            r.sent_first[i] = first[i];
            if (i < o.ranks) r.announced[i] = r.received[i] = r.complete[i] = 0;
        }
        __syncthreads();
    }

    __device__ __forceinline__ void number() {
        const epw_prefill_gpu_routing &r = a.call.routing;
        const uint32_t width = o.layout().topk, of = threadIdx.x % 32 >> shift, j = threadIdx.x % 32 & ((1u << shift) - 1);
        uint32_t *own = tallies + threadIdx.x / 32 * tally.size(), n = 0;
        each_step([&](uint32_t at) { return weight(at); },
                  [&](uint32_t at, float weight) {
                      const Noted e = n < steps ? notes[n * 32] : examine_again({a, o, to, shift}, at);
                      n++;
                      const bool goes = e.goes();
                      uint32_t *expert = &own[e.id()], *entries = &own[tally.entries_of(e.rank())];
                      uint32_t *rows = &own[tally.rows_of(e.rank())], index = 0, number = 0, row = kNone;
            // One token after the other, of which each expert has one entry at most.
#pragma unroll 1
                      for (uint32_t k = 0; k < step(); k++) {
                          const bool now = goes && of == k;
                          if (now) {
                              index = *expert;
                              number = *entries + e.before();
                              row = *rows;
                          }
                          __syncwarp(); // the counters have been read
                          if (now) *expert = index + 1;
                          if (now) atomicAdd(entries, 1u);
                          if (now && e.before() == 0) *rows = row + 1;
                          __syncwarp();
                      }
                      const uint32_t t = at + of;
                      if (t >= to || j >= width) return;
                      const size_t entry = size_t(t) * width + j;
                      r.ids[entry] = e.has_expert() ? int32_t(e.id()) : -1;
                      r.weights[entry] = weight;
                      r.sent_row[entry] = row;
                      r.sent_entry[entry] = number;
                      r.sent_index[entry] = index;
                      if (e.leads()) r.sent_tokens[first[e.rank()] + row] = t;
                  });
    }

    // Called by the thread of the peer, when its block has written what the opening says. Movers are numbering meanwhile.
    __device__ __forceinline__ void open_peer() const {
        if (peer == kNone || !has(o.opened, peer)) return;
        if (rows_to_peer > 0 && o.does(EPW_PREFILL_SENDS)) open_line(o.state->peers[peer].send, rows_to_peer);
        tell_opening<false>(o, peer, rows_to_peer, true);
    }

    // Called by the whole block. All that is counted is known afterwards; to the first `threads` threads of each block, whole
    // warps, also numbered, and the memory is theirs, for bulk copies too. The others have no part in that.
    __device__ __forceinline__ void run(uint32_t threads) {
        const uint32_t size = tally.size();
        for (uint32_t i = threadIdx.x; i < counters * size; i += blockDim.x) tallies[i] = 0;
        __syncthreads();
        if (threadIdx.x / 32 < counters) {
            count();
        } else if (peer != kNone && may_open(o, peer)) {
            insert(o.opened, peer);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < size && o.block < blocks; i += blockDim.x) {
            uint32_t all = 0;
            for (uint32_t c = 0; c < counters; c++) all += tallies[c * size + i];
            a.call.lane.tallies[size_t(o.block) * size + i] = all;
        }
        meet(o);
        if (o.block < blocks) add_up();
        if (threadIdx.x >= threads) {
            open_peer();
            return;
        }
        if (o.block < blocks && threadIdx.x / 32 < counters) number();
        ptx::fence_shared_before_bulk();
        meet(o, threads);
    }
};

// Of a routing that is used again: weights may be others.
__device__ __forceinline__ void renew_weights(const epw_prefill_dispatch_args &a, Prefill &o) {
    const uint32_t width = o.layout().topk;
    const uint64_t all = uint64_t(a.in.tokens) * a.in.topk;
    if (a.in.topk_weights == nullptr) return;
    for (uint64_t i = uint64_t(o.block) * blockDim.x + threadIdx.x; i < all; i += uint64_t(o.blocks) * blockDim.x) {
        a.call.routing.weights[i / a.in.topk * width + i % a.in.topk] = a.in.topk_weights[i];
    }
    meet(o);
}

} // namespace epw
