// The receiving half of combine: waits for every peer's answers and sums them, token by token.
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/shape.cuh"
#include "kernels/ep/sum.cuh"

namespace epw {

// What this rank expects of the answers, known before they come.
struct Expected {
    uint32_t rows[EPW_GPU_MAX_RANKS]; // rows that were sent to each peer
    uint32_t marked;                  // combine words carry the mode
    epw_rank_set settled;             // peers whose answers have arrived, or never will
};

// Checks that the answer is complete, and of the mode that this rank expects. Same as the host device's answer_cause.
__device__ __forceinline__ uint32_t answer_cause(const Combine &a, const Expected &expected, uint32_t peer, uint32_t value) {
    uint32_t rows = expected.marked ? value & ~EPW_ANSWER_ORDERED : value, sent = expected.rows[peer];
    if (rows != sent) return rows < sent ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
    bool ordered = expected.marked && (value & EPW_ANSWER_ORDERED);
    return rows == 0 || ordered == (a.in.mode == EPW_COMBINE_ORDERED) ? EPW_CAUSE_NONE : EPW_CAUSE_FORMAT;
}

// A thread's entry of a token, loaded but not yet examined.
struct TokenEntry {
    int32_t expert = -1;
    uint32_t row = 0; // its number among those sent to the expert's rank
    float weight = 1.0f;

    TokenEntry() = default;
    __device__ __forceinline__ TokenEntry(const Combine &a, uint32_t t) {
        const epw_layout &l = a.lane.layout;
        const uint32_t laneid = threadIdx.x % 32;
        if (laneid >= l.topk) return;
        size_t entry = size_t(t) * l.topk + laneid;
        expert = a.lane.arrays.ids[entry];
        row = a.lane.arrays.sent_row[entry];
        if (a.in.mode == EPW_COMBINE_ORDERED) {
            bool given = a.in.topk_weights && laneid < a.topk;
            weight = given ? a.in.topk_weights[size_t(t) * a.topk + laneid] : a.lane.arrays.weights[entry];
        }
    }
};

// Where the answers to a token lie, in the order in which they are summed.
struct TokenAnswers {
    const unsigned char *from; // of the thread's part
    uint32_t count;            // of all parts
    bool has;                  // this thread has a part
    uint32_t place, rank;      // in the order; that it comes from

    // Of the ranks in `answered`. Called by a whole warp.
    __device__ __forceinline__ TokenAnswers(const Combine &a, const Operation &o, const epw_rank_set &answered, uint32_t t,
                                            const TokenEntry &entry) {
        const epw_layout &l = a.lane.layout;
        const uint32_t laneid = threadIdx.x % 32, before = (1u << laneid) - 1;
        rank = entry.expert >= 0 ? a.per_rank.divide(uint32_t(entry.expert)) : EPW_GPU_MAX_RANKS;
        const bool here = entry.expert >= 0 && epw::has(answered, rank);
        uint32_t entries = __ballot_sync(0xffffffffu, here), expected = __popc(__ballot_sync(0xffffffffu, entry.expert >= 0));
        const uint32_t answer = __popc(__match_any_sync(0xffffffffu, rank) & before); // earlier entries of the same rank
        has = here;
        if (a.in.mode == EPW_COMBINE_ORDERED) {
            // In the order of the entries; the answers of one rank lie in that order too.
            count = __popc(entries);
            place = __popc(entries & before);
        } else {
            // One answer of each rank, in ascending order of ranks.
            has = here && answer == 0;
            const uint32_t firsts = __ballot_sync(0xffffffffu, has);
            count = __popc(firsts);
            place = 0;
#pragma unroll 1
            for (uint32_t rest = firsts; rest != 0; rest &= rest - 1) {
                if (__shfl_sync(0xffffffffu, rank, __ffs(rest) - 1) < rank) place++;
            }
        }
        // A thread without a part computes an address that is never read.
        const uint32_t slot = rank * l.max_tokens + entry.row;
        from = written_by(o, has ? rank : o.rank) + a.answers.offset(slot * l.answers + answer);
        if (a.own_stays && rank == o.rank) from = a.given_row(slot);
        if (laneid == 0 && a.out.contributions) {
            reinterpret_cast<ushort2 *>(a.out.contributions)[t] = {uint16_t(__popc(entries)), uint16_t(expected)};
        }
    }
};

__device__ __forceinline__ unsigned char *sum_of(const Combine &a, uint32_t t) {
    return static_cast<unsigned char *>(a.out.out) + uint64_t(t) * a.lane.layout.row_bytes;
}

// Finds where the answers to token t lie and puts them as row `at` of the batch. Called by one warp.
template <typename Batch>
__device__ inline void find_answers(const Combine &a, const Operation &o, const epw_rank_set &answered, uint32_t t, Batch &batch,
                                    uint32_t at) {
    const TokenEntry entry(a, t);
    const TokenAnswers answers(a, o, answered, t, entry);
    put_row(batch, at, sum_of(a, t), answers.count, answers.has, answers.place, answers.from, entry.weight, answers.rank,
            a.lane.window);
}

// Fills the batch with every stride-th token from `first` on; returns their number. Ends with a barrier.
template <typename Batch>
__device__ inline uint32_t find_tokens(const Combine &a, const Operation &o, const epw_rank_set &answered, Batch &batch,
                                       uint32_t first, uint32_t stride) {
    const uint32_t laneid = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (uint32_t i = warp; warp < kWarps && i < Batch::kRows && first + i * stride < a.tokens; i += kWarps)
        find_answers(a, o, answered, first + i * stride, batch, i);
    __syncthreads();
    uint32_t rows = 0;
#pragma unroll
    for (uint32_t i = 0; i < Batch::kRows; i += 32)
        rows += __popc(__ballot_sync(0xffffffffu, i + laneid < Batch::kRows && first + (i + laneid) * stride < a.tokens));
    return rows;
}

// The same for further batches, or to sum again. Also begins with a barrier: all threads have read the previous batch.
template <typename Batch>
__device__ __noinline__ uint32_t find_more_tokens(const Combine &a, const Operation &o, const epw_rank_set &answered,
                                                  Batch &batch, uint32_t first, uint32_t stride) {
    __syncthreads();
    return find_tokens(a, o, answered, batch, first, stride);
}

// The value that a complete answer's word carries, in the mode that this rank expects. See answer_cause.
__device__ __forceinline__ uint32_t whole_answer(const Combine &a, const Expected &expected, uint32_t peer) {
    const bool ordered = expected.marked && a.in.mode == EPW_COMBINE_ORDERED;
    return expected.rows[peer] | (ordered ? EPW_ANSWER_ORDERED : 0);
}

// Writer: this thread, which has acquired the peer's word. Reader: the block's other warps, which then read the peer's answers.
__device__ __forceinline__ void tell_settled(Expected &expected, uint32_t peer) { insert_release_block(expected.settled, peer); }

// Handles the outcome of waiting for a peer's answers.
__device__ __noinline__ inline void settle(const Combine &a, Operation &o, Expected &expected, uint32_t peer, Arrival got) {
    if (!got.arrived) {
        leave_out(o, peer);
    } else if (answer_cause(a, expected, peer, got.value) != EPW_CAUSE_NONE) {
        refuse_peer(o, peer);
    }
    tell_settled(expected, peer);
}

// Handles a word that the waiting warp has found.
__device__ __forceinline__ void take_answer(const Combine &a, Operation &o, Expected &expected, uint32_t peer, uint32_t value,
                                            uint32_t whole) {
    if (value == whole) {
        tell_settled(expected, peer);
    } else {
        settle(a, o, expected, peer, {true, value});
    }
}

// Waits long for the peers that are late for a thread of the waiting warp: first + 32 * i for each bit i of `late`.
__device__ __noinline__ inline void await_late_answers(const Combine &a, Operation &o, Expected &expected, uint32_t first,
                                                       uint32_t late) {
    LongWait w;
    w.what = awaited_answer(o);
    w.phase = EPW_PHASE_COMBINE_RECEIVE;
    w.first = first;
    w.late = late;
    w.measured = a.out.wait_ns != nullptr;
    begin_long_wait(o, w);
    while (w.late != 0) {
        const Arrival how = await_next(o, w);
        settle(a, o, expected, w.peer(), how);
    }
}

// The first looks if there are more peers than threads in the warp: each thread has every 32nd peer, and looks at them in turn.
// Returns the peers that are late.
__device__ __noinline__ inline uint32_t look_in_turns(const Combine &a, Operation &o, Expected &expected, uint32_t first) {
    uint32_t late = 0;
#pragma unroll 1
    for (uint32_t i = 0; first + 32 * i < o.ranks; i++) {
        if (has(o.present, first + 32 * i)) late |= 1u << i;
    }
#pragma unroll 1
    for (uint32_t turn = 0; turn < looks_before_long(a.out.wait_ns != nullptr) && late != 0; turn++) {
#pragma unroll 1
        for (uint32_t rest = late; rest != 0; rest &= rest - 1) {
            const uint32_t i = __ffs(rest) - 1, peer = first + 32 * i;
            const WordOf word(o, awaited_answer(o), peer);
            const uint64_t seen = word.look();
            if (!word.is_expected(seen)) {
                word.bring(o, awaited_answer(o), peer);
                continue;
            }
            take_answer(a, o, expected, peer, epw_word_value(seen), whole_answer(a, expected, peer));
            late &= ~(1u << i);
        }
    }
    return late;
}

// Waits for every peer's answers. Called by one warp.
__device__ __forceinline__ void await_answers(const Combine &a, Operation &o, Expected &expected) {
    const uint32_t peer = threadIdx.x % 32;
    uint32_t late = 0; // bit i: peer + 32 * i
    if (o.ranks > 32) {
        late = look_in_turns(a, o, expected, peer);
    } else {
        bool waits = has(o.present, peer);
        const uint32_t some = waits ? peer : o.rank;
        const WordOf word(o, awaited_answer(o), some);
        const uint32_t whole = whole_answer(a, expected, some);
        // All threads look in lockstep, so that none is held up by another thread's peer.
        for (uint32_t i = 0; i < looks_before_long(a.out.wait_ns != nullptr) && __any_sync(0xffffffffu, waits); i++) {
            if (!waits) continue;
            const uint64_t seen = word.look();
            if (!word.is_expected(seen)) {
                word.bring(o, awaited_answer(o), peer);
                continue;
            }
            take_answer(a, o, expected, peer, epw_word_value(seen), whole);
            waits = false;
        }
        late = waits;
    }
    if (late) await_late_answers(a, o, expected, peer, late);
    __syncwarp();
    ptx::let_next_begin();
}

__device__ __noinline__ inline void keep_who_answered(const Combine &a, Operation &o, const Expected &expected) {
    keep_arrived(o, awaited_answer(o), [&](uint32_t peer, uint32_t value) {
        if (answer_cause(a, expected, peer, value) != EPW_CAUSE_NONE) refuse_peer(o, peer);
    });
}

// Counts the answers of peer `peer` and every `stride`-th after it, as far as they are in `answered`.
__device__ __noinline__ inline void count_collected(const Combine &a, const Operation &o, const Expected &expected,
                                                    const epw_rank_set &answered, uint32_t peer, uint32_t stride, bool again) {
    epw_gpu_traffic &traffic = o.state->traffic;
    if (peer == 0) add_once(o, traffic.combines, 1, 1, again);
#pragma unroll 1
    for (; peer < o.ranks; peer += stride) {
        const uint32_t answers = a.counts_answers() ? o.state->due[peer] : expected.rows[peer];
        add_once(o, traffic.answers_received[peer], has(answered, peer), answers, again);
    }
}

// Decides whose answers count, and sums again, alone, if some do not or if blocks are absent. Called by the closing block.
template <typename T, bool Weighted, typename Batch>
__device__ __forceinline__ void close_collecting(const Combine &a, Operation &o, const Expected &expected, Batch &batch) {
    if (o.again && o.unordered) keep_who_answered(a, o, expected);
    if (threadIdx.x == 0) {
        o.kept = o.present - (o.lost | o.refused);
        o.absent = o.active - o.kept;
    }
    __syncthreads();
    for (uint32_t t = 0; o.again && t < a.tokens; t += Batch::kRows) {
        uint32_t rows = find_more_tokens(a, o, o.kept, batch, t, 1);
        accumulate<T, Weighted>(batch, rows, a.row_size, &expected.settled);
    }
    if (a.lane.counts) count_collected(a, o, expected, o.kept, threadIdx.x, blockDim.x, true);
    add_waits(o, a.out.wait_ns);
    if (threadIdx.x == 0 && any(o.refused)) {
        uint32_t peer = first_of(o.refused);
        const uint64_t seen = WordOf(o, awaited_answer(o), peer).look();
        uint32_t cause = answer_cause(a, expected, peer, epw_word_value(seen));
        record_loss(o, EPW_PHASE_COMBINE_RECEIVE, cause, peer, expected_word(o, awaited_answer(o)), seen, 0, 0);
    }
    close(o, EPW_PHASE_COMBINE_SEND, EPW_GPU_FREE);
}

// Peers that do not take part count as settled. Seen by the block after its next barrier.
__device__ __forceinline__ void settle_absent(const Operation &o, Expected &expected) {
    const uint32_t word = threadIdx.x - kThreads;
    if (word < EPW_RANK_WORDS) expected.settled.words[word] = ~o.present.words[word];
}

// Waits for the answers and sums them. The answers to a token are added as they arrive, but in their fixed order; their addresses
// are looked up before, as if every peer answered.
template <typename T, bool Weighted, typename Batch>
__device__ __forceinline__ void collect(const Combine &a, Operation &o, Expected &expected, Batch &batch) {
    settle_absent(o, expected);
    uint32_t rows = find_tokens(a, o, o.present, batch, blockIdx.x, gridDim.x);
    if (threadIdx.x >= kThreads) {
        await_answers(a, o, expected);
        if (a.lane.counts && blockIdx.x == 0)
            count_collected(a, o, expected, o.present, threadIdx.x - kThreads, 32, false); // others sum meanwhile
    }
    for (uint32_t t = blockIdx.x; t < a.tokens;) {
        accumulate<T, Weighted>(batch, rows, a.row_size, &expected.settled);
        t += Batch::kRows * gridDim.x;
        if (t < a.tokens) rows = find_more_tokens(a, o, o.present, batch, t, gridDim.x);
    }
    if (must_close(o, EPW_GPU_FREE, a.halves & EPW_GPU_SEND)) close_collecting<T, Weighted>(a, o, expected, batch);
}

} // namespace epw
