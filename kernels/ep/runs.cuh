// Numbering of rows where a block has many tokens: these follow each other, and are divided into runs, one for each warp. Each
// warp counts the tokens of its run, the blocks tell each other what they have counted, and then every warp numbers its tokens
// and notes in the lane where their rows go: any block may send them. See route.cuh for the other way.
#pragma once

#include "kernels/ep/route.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

// Tokens that follow each other: a block's, or a run.
struct Stretch {
    uint32_t begin, end;

    // Number i of those into which the tokens from `from` on are divided: each has `each` tokens, and the first `more` one more.
    __device__ __forceinline__ Stretch(uint32_t from, uint32_t i, uint32_t each, uint32_t more)
        : begin(from + i * each + min(i, more)), end(begin + each + (i < more)) {}
    __device__ __forceinline__ uint32_t count() const { return end - begin; }
};
__device__ __forceinline__ Stretch tokens_of_block(const Dispatch &a, uint32_t block) { return {0, block, a.each, a.more}; }

// Some entries of a token: it is counted by 2^a.count_shift neighbouring threads.
struct Counted {
    static constexpr uint32_t kEach = 8;
    RawId raw[kEach];
    uint32_t number; // of the thread among those of its token

    Counted() = default;
    // Of token t.
    __device__ __forceinline__ Counted(const Dispatch &a, uint32_t t, bool inside)
        : number(threadIdx.x & ((1u << a.count_shift) - 1)) {
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            raw[k] = load_id(a, t, number * kEach + k, inside && number * kEach + k < a.in.topk);
        }
    }
    // Called by the whole warp.
    template <typename Counters> __device__ __forceinline__ void add_to(const Dispatch &a, const Counters &counters) const {
        uint32_t ids[kEach], owners[kEach], ranks = 0; // of the first 32
        bool repeated[kEach], follows[kEach];          // an earlier entry of the token has the same id, or owner
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            ids[k] = valid_id(a, raw[k]);
            owners[k] = ids[k] == kNobody ? kNobody : a.per_rank.divide(ids[k]);
            repeated[k] = follows[k] = ids[k] == kNobody;
#pragma unroll
            for (uint32_t before = 0; before < k; before++) {
                repeated[k] = repeated[k] || ids[before] == ids[k];
                follows[k] = follows[k] || owners[before] == owners[k];
            }
        }
#pragma unroll 1
        for (uint32_t d = 1; d < 1u << a.count_shift; d++) { // the entries of the token's threads before this one
#pragma unroll
            for (uint32_t before = 0; before < kEach; before++) {
                const uint32_t id = __shfl_up_sync(0xffffffffu, ids[before], d);
                const uint32_t owner = __shfl_up_sync(0xffffffffu, owners[before], d);
#pragma unroll
                for (uint32_t k = 0; k < kEach; k++) {
                    repeated[k] = repeated[k] || (number >= d && id == ids[k]);
                    follows[k] = follows[k] || (number >= d && owner == owners[k]);
                }
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            if (!repeated[k]) counters.add_expert(ids[k]);
            if (follows[k]) continue;
            if (owners[k] < 32) {
                ranks |= 1u << owners[k];
            } else {
                counters.add_rank(owners[k], 1);
            }
        }
        // All tokens of the warp at once: where there are few ranks, most tokens have each.
        uint32_t tokens = 0;
#pragma unroll 1
        for (uint32_t rank = 0; rank < min(a.lane.layout.ranks, 32u); rank++) {
            const uint32_t with = __popc(__ballot_sync(0xffffffffu, ranks >> rank & 1));
            if (threadIdx.x % 32 == rank) tokens = with;
        }
        if (tokens > 0) counters.add_rank(threadIdx.x % 32, tokens);
    }
};

// Counts the tokens in [from, to). Called by `threads` threads, whole warps, of which this is number `thread`.
// `now`: what the thread counts first.
template <typename Counters>
__device__ __forceinline__ void count_many(const Dispatch &a, const Counters &counters, uint32_t from, uint32_t to,
                                           uint32_t thread, uint32_t threads, Counted now) {
    const uint32_t each = threads >> a.count_shift, first = from + (thread >> a.count_shift);
    const uint32_t of_warp = from + ((thread & ~31u) >> a.count_shift); // its first one
#pragma unroll 1
    for (uint32_t begin = 0; of_warp + begin < to; begin += each) {
        const uint32_t t = first + begin + each;
        const Counted next(a, t, t < to); // on their way while these are counted
        now.add_to(a, counters);
        now = next;
    }
}

// What thread number `thread` of those that count the tokens in [from, to) counts first.
__device__ __forceinline__ Counted first_counted(const Dispatch &a, uint32_t from, uint32_t to, uint32_t thread) {
    const uint32_t t = from + (thread >> a.count_shift);
    return {a, t, t < to};
}

// How many tokens of a block have each expert and each rank, of those before a place in a run: 16 bits each, in shared memory.
struct RunCensus {
    uint16_t *counters; // of the experts, then of the ranks
    uint32_t experts;

    __device__ __forceinline__ void add_expert(uint32_t expert) const { add(expert, 1); }
    __device__ __forceinline__ void add_rank(uint32_t rank, uint32_t n) const { add(experts + rank, n); }
    __device__ __forceinline__ uint16_t &of_expert(uint32_t expert) const { return counters[expert]; }
    __device__ __forceinline__ uint16_t &of_rank(uint32_t rank) const { return counters[experts + rank]; }

  private:
    __device__ __forceinline__ void add(uint32_t at, uint32_t n) const {
        atomicAdd(&reinterpret_cast<uint32_t *>(counters)[at / 2], n << at % 2 * 16);
    }
};

// Makes of each run's own counts those of all runs before it, and writes the counts of all runs to `all`, unless it is nullptr.
// Called by the whole block.
__device__ __forceinline__ void add_up_runs(uint32_t *runs, uint32_t count, uint32_t words, uint32_t *all) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < words; i += kThreads) { // two counters at a time
        uint32_t before = 0;
#pragma unroll 1
        for (uint32_t run = 0; run < count; run++) {
            const uint32_t own = runs[run * words + i];
            runs[run * words + i] = before;
            before += own;
        }
        if (all) all[i] = before;
    }
}

// Adds `n` to a counter of the census, by its place in a RunCensus.
__device__ __forceinline__ void add_counted(const Dispatch &a, Census census, uint32_t place, uint32_t n) {
    if (place < a.experts) {
        atomicAdd(&census.experts[place], n);
    } else if (place - a.experts < a.lane.layout.ranks) {
        census.add_rank(place - a.experts, n);
    }
}

// Waits for a while for what the blocks before this one have counted. Returns whether all of that is there. Called by the whole
// block.
__device__ __forceinline__ bool await_counts(const Operation &o) {
    constexpr uint64_t kPatience = 20'000; // ns: blocks of a kernel begin at once, as a rule
    uint32_t there = 1;
    if (threadIdx.x < blockIdx.x) {
        const uint64_t *counted = &o.state->counted[threadIdx.x], began = ptx::global_timer_ns();
        do {
            there = ptx::load_acquire_gpu(counted) == mark_of(o);
        } while (!there && ptx::global_timer_ns() - began < kPatience);
    }
    return __syncthreads_or(!there) == 0;
}

// Adds up what the blocks before this one have counted, `words` words each. Called by the whole block.
__device__ __forceinline__ void add_up_blocks(const Dispatch &a, Census census, const uint32_t *counted, uint32_t words) {
    const uint32_t groups = words < kThreads ? kThreads / words : 1, group = threadIdx.x / words; // of threads, among the blocks
#pragma unroll 1
    for (uint32_t i = threadIdx.x - group * words; group < groups && i < words; i += kThreads) {
        uint32_t low = 0, high = 0;
#pragma unroll 4
        for (uint32_t block = group; block < blockIdx.x; block += groups) {
            const uint32_t two = ptx::load_relaxed_gpu(&counted[block * words + i]);
            low += two & 0xffff;
            high += two >> 16;
        }
        add_counted(a, census, 2 * i, low);
        add_counted(a, census, 2 * i + 1, high);
    }
}

// Makes the census one of all tokens up to the block's last: in the last block, of all. Called by the whole block.
__device__ __forceinline__ void count_runs(const Dispatch &a, Census census, unsigned char *runs) {
    const RunCensus last = {reinterpret_cast<uint16_t *>(runs + (a.runs - 1) * a.run_size), a.experts};
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < a.experts; e += kThreads) census.experts[e] += last.of_expert(e);
    if (threadIdx.x < a.lane.layout.ranks) census.ranks[threadIdx.x] += last.of_rank(threadIdx.x);
}

// What the lane keeps of a token, of which this thread has an entry: for whoever sends it, and for combine.
struct Routed {
    static_assert(kNobody == uint32_t(-1));
    uint32_t expert = kNobody, index = 0, row = 0; // `index` with EPW_GPU_LEADS
    float weight = 0.0f;

    __device__ __forceinline__ void store(const Dispatch &a, uint32_t t, uint32_t j) const {
        const size_t at = size_t(t) * a.lane.layout.topk + j;
        a.lane.arrays.ids[at] = int32_t(expert);
        a.lane.arrays.weights[at] = weight;
        a.lane.arrays.sent_row[at] = row;
        a.lane.arrays.index[at] = index;
    }
    __device__ __forceinline__ void load(const Dispatch &a, uint32_t t) {
        if (threadIdx.x % 32 >= a.lane.layout.topk) return;
        const size_t at = size_t(t) * a.lane.layout.topk + threadIdx.x % 32;
        expert = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(a.lane.arrays.ids) + at);
        index = ptx::load_relaxed_gpu(a.lane.arrays.index + at);
        row = ptx::load_relaxed_gpu(a.lane.arrays.sent_row + at);
        weight = __uint_as_float(ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(a.lane.arrays.weights) + at));
    }
};

// An id and a weight, as loaded: neighbouring threads have the entries of a token, and a warp as many tokens as fit.
struct RawEntry {
    uint32_t t, j;
    RawId id;
    float weight = 0.0f;

    RawEntry() = default;
    __device__ __forceinline__ RawEntry(const Dispatch &a, uint32_t first, uint32_t end)
        : t(first + (threadIdx.x % 32 >> a.entry_shift)), j(threadIdx.x & ((1u << a.entry_shift) - 1)) {
        const bool inside = t < end && j < a.in.topk;
        id = load_id(a, t, j, inside);
        if (a.in.topk_weights && inside) weight = a.in.topk_weights[size_t(t) * a.in.topk + j];
    }
};

// Numbers a run, and notes where its rows go. `census`: of the tokens before the block's; `counted`: of the block's before the
// run. Called by a whole warp.
__device__ __forceinline__ void number_run(const Dispatch &a, Operation &o, Census census, RunCensus counted, Stretch run,
                                           RawEntry entry) {
    const uint32_t laneid = threadIdx.x % 32, first = laneid - entry.j, all = 0xffffffffu;
    const uint32_t before = (1u << laneid) - 1, earlier = (1u << first) - 1; // threads; those of earlier tokens
#pragma unroll 1
    for (uint32_t t = run.begin; t < run.end; t += 32 >> a.entry_shift) {
        const RawEntry next(a, t + (32 >> a.entry_shift), run.end); // on its way
        const uint32_t id = valid_id(a, entry.id), rank = id == kNobody ? kNobody : a.per_rank.divide(id);
        const uint32_t same = __match_any_sync(all, id) & before, fellows = __match_any_sync(all, rank) & before;
        const bool valid = id != kNobody && (same & ~earlier) == 0, leads = valid && (fellows & ~earlier) == 0;
        const uint32_t named = __ballot_sync(all, valid), leaders = __ballot_sync(all, leads);
        uint32_t index = 0, row = 0;
        if (valid) {
            index = census.experts[id] + counted.of_expert(id) + __popc(same & named);
            row = census.ranks[rank] + counted.of_rank(rank) + __popc(fellows & leaders & earlier);
        }
        __syncwarp(); // all have read
        if (valid) counted.add_expert(id);
        if (leads) counted.add_rank(rank, 1);
        __syncwarp();
        const Routed here = {valid ? id : kNobody, index | (leads ? EPW_GPU_LEADS : 0), row, valid ? entry.weight : 0.0f};
        if (entry.t < run.end && entry.j < a.lane.layout.topk) {
            here.store(a, entry.t, entry.j);
            const int64_t raw = raw_value(a, entry.id);
            if (!valid && raw != kNone) note_bad_id(o, entry.t, entry.j, raw);
        }
        entry = next;
    }
}

// A block's tokens while they are numbered: each warp has a run of them, which may be empty.
struct Numbering {
    Stretch own, run;       // the block's tokens; the warp's run
    bool works;             // the warp has a run
    bool alone;             // the block counts the tokens before its own by itself; otherwise other blocks tell it
    RawEntry first;         // the run's first entries
    Counted of_run, before; // what this thread counts first: of the run, and of the tokens before the block's

    __device__ __forceinline__ Numbering(const Dispatch &a, Stretch own)
        : own(own), run(own.begin, threadIdx.x / 32, own.count() / a.runs, own.count() % a.runs),
          works(threadIdx.x / 32 < a.runs), alone(own.begin <= kCounted) {}

    // Issues the first loads.
    __device__ __forceinline__ void load(const Dispatch &a) {
        first = RawEntry(a, run.begin, works ? run.end : run.begin);
        of_run = first_counted(a, run.begin, works ? run.end : run.begin, threadIdx.x % 32);
        before = first_counted(a, 0, alone ? own.begin : 0, threadIdx.x);
    }
    // Counts what the block can count by itself. `census`: nothing is counted in it; `runs`: counters of the runs, zeroed. Called
    // by the whole block, as the following; its next barrier comes first.
    __device__ __forceinline__ void count(const Dispatch &a, Census census, unsigned char *runs) const {
        if (works) count_many(a, counters(a, runs), run.begin, run.end, threadIdx.x % 32, 32, of_run);
        if (alone) count_many(a, census, 0, own.begin, threadIdx.x, kThreads, before);
    }
    // Numbers the tokens. Afterwards `census` has the tokens of earlier blocks, and `runs` those of each run and the ones before
    // it. Ends with a barrier. `taken`: how many tokens have been taken to be sent.
    __device__ __forceinline__ void number(const Dispatch &a, Operation &o, Census census, unsigned char *runs, uint32_t taken) {
        const uint32_t words = a.run_size / 4;
        const bool tells = a.in.tokens > kCounted; // else every block counts by itself, in less time
        uint32_t *all = a.lane.arrays.counted;
        add_up_runs(reinterpret_cast<uint32_t *>(runs), a.runs, words, tells ? all + blockIdx.x * words : nullptr);
        __syncthreads();
        // Writer: this thread, for its block. Reader: thread blockIdx.x of the blocks after it, for theirs.
        if (tells && threadIdx.x == 0) ptx::store_release_gpu(&o.state->counted[blockIdx.x], mark_of(o));
        if (!alone) {
            if (await_counts(o)) {
                add_up_blocks(a, census, all, words);
            } else {
                count_many(a, census, 0, own.begin, threadIdx.x, kThreads, first_counted(a, 0, own.begin, threadIdx.x));
            }
            __syncthreads();
        }
        if (works) number_run(a, o, census, counters(a, runs), run, first);
        if (threadIdx.x == 0) o.state->taken[blockIdx.x] = taken;
        ptx::fence_shared_before_bulk(); // rows lie in the runs' memory next
        __syncthreads();
        // Writer: this thread, for its block. Reader: whoever takes tokens of this block.
        if (threadIdx.x == 0) ptx::store_release_gpu(&o.state->numbered[blockIdx.x], mark_of(o));
    }

  private:
    __device__ __forceinline__ RunCensus counters(const Dispatch &a, unsigned char *runs) const {
        return {reinterpret_cast<uint16_t *>(runs + threadIdx.x / 32 * a.run_size), a.experts};
    }
};

} // namespace epw
