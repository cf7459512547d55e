// The sending half of combine: every row that came is answered, with the weighted sum of its experts' outputs (rank-reduced),
// with each of them (ordered), or with the row that the caller has reduced (rank-major).
#pragma once

#include "../comm/lane.cuh"
#include "../ptx/bulk.cuh"
#include "number.cuh"
#include "stage.cuh"

namespace epw {

constexpr uint32_t kTeams = 2; // of threads, each at a row of its own
constexpr uint32_t kTeamThreads = kThreads / kTeams;
constexpr uint32_t kNoExpert = 0xffffffffu;
constexpr uint32_t kBatch = kThreads / 32; // rows looked up at a time

// A row to be answered: where its parts lie and what they weigh.
struct Parts {
    uint32_t count;
    const unsigned char *part[EPW_MAX_TOPK];
    float weight[EPW_MAX_TOPK];
};

struct AnswerShared {
    uint32_t rows[EPW_GPU_MAX_RANKS];
    Parts parts[kBatch];
    uint64_t loaded[kStages];
};

// Sums 8 values of `n` rows in order, from +0, never fused; rounds.
template <typename T, bool Weighted>
__device__ __forceinline__ uint4 sum_chunk(const Parts &parts, uint32_t offset) {
    constexpr uint32_t kAhead = 4;
    float sum[8] = {};
    uint32_t n = parts.count;
    for (uint32_t base = 0; base < n; base += kAhead) {
        uint4 raw[kAhead];
#pragma unroll
        for (uint32_t i = 0; i < kAhead; i++) {
            if (base + i < n) raw[i] = ptx::load_relaxed_gpu(reinterpret_cast<const uint4 *>(parts.part[base + i] + offset));
        }
#pragma unroll
        for (uint32_t i = 0; i < kAhead; i++) {
            if (base + i >= n) break;
            float w = Weighted ? parts.weight[base + i] : 1.0f;
            const uint32_t *pairs = &raw[i].x;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float low = T::low(pairs[k]), high = T::high(pairs[k]);
                if (Weighted) {
                    low = __fmul_rn(w, low);
                    high = __fmul_rn(w, high);
                }
                sum[2 * k] = __fadd_rn(sum[2 * k], low);
                sum[2 * k + 1] = __fadd_rn(sum[2 * k + 1], high);
            }
        }
    }
    return {T::pack(sum[0], sum[1]), T::pack(sum[2], sum[3]), T::pack(sum[4], sum[5]), T::pack(sum[6], sum[7])};
}

// Row n of those that came. Sources take turns, beginning after this rank, so that all links are busy at a time; false: source
// and row are beyond what came.
__device__ __forceinline__ bool row_of(const AnswerShared &s, const Operation &o, uint32_t n, uint32_t *source, uint32_t *row) {
    *source = (o.rank + 1 + n % o.ranks) % o.ranks;
    *row = n / o.ranks;
    return *row < s.rows[*source];
}

// How many values of n there are for row_of.
__device__ __forceinline__ uint32_t row_numbers(const AnswerShared &s, const Operation &o) {
    uint32_t most = 0;
    for (uint32_t r = 0; r < o.ranks; r++) most = max(most, s.rows[r]);
    return most * o.ranks;
}

// By one warp: finds the outputs of this rank's experts for a row.
__device__ inline void find_parts(const epw_combine_args &a, const Operation &o, uint32_t source, uint32_t row, Parts &parts) {
    const epw_layout &l = a.layout;
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *slot = a.window + epw_slot_offset(&l, o.lane, source, row);
    uint32_t local = kNoExpert, weight = 0, index = 0;
    if (lane < l.topk) {
        const uint32_t *entry = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_slot_header) + lane * sizeof(epw_entry));
        local = ptx::load_relaxed_gpu(entry) - o.rank * l.local_experts;
        weight = ptx::load_relaxed_gpu(entry + 1);
        index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&l)) + lane);
    }
    bool ours = local < l.local_experts;
    uint64_t place = ours ? uint64_t(o.context->first_row[source * l.local_experts + local]) + index : 0;
    ours = ours && place < l.rows;
    uint32_t mask = __ballot_sync(0xffffffffu, ours);
    if (ours) {
        uint32_t at = __popc(mask & ((1u << lane) - 1));
        parts.part[at] = static_cast<const unsigned char *>(a.expert_out) + (local * l.rows + place) * l.row_bytes;
        parts.weight[at] = __uint_as_float(weight);
    }
    if (lane == 0) parts.count = __popc(mask);
}

__device__ __forceinline__ void team_barrier(uint32_t team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(kTeamThreads) : "memory");
}

// Rank-reduced, expert-major. The block looks up a batch of rows, a warp to a row; then each team sums one row after the other
// into a stage of its own and sends it while it sums the next.
template <typename T>
__device__ void answer_sums(const epw_combine_args &a, const Operation &o, AnswerShared &s, unsigned char *memory) {
    const epw_layout &l = a.layout;
    uint32_t warp = threadIdx.x / 32, team = threadIdx.x / kTeamThreads, member = threadIdx.x % kTeamThreads;
    uint32_t numbers = row_numbers(s, o), pieces = uint32_t((l.row_bytes + kPieceBytes - 1) / kPieceBytes), turn = 0;
    for (uint32_t first = blockIdx.x; first < numbers; first += kBatch * gridDim.x) {
        uint32_t source, row, mine = first + warp * gridDim.x;
        if (mine < numbers && row_of(s, o, mine, &source, &row)) {
            find_parts(a, o, source, row, s.parts[warp]);
        } else if (threadIdx.x % 32 == 0) {
            s.parts[warp].count = 0;
        }
        __syncthreads();
        for (uint32_t i = team; i < kBatch && first + i * gridDim.x < numbers; i += kTeams) {
            if (!row_of(s, o, first + i * gridDim.x, &source, &row)) continue;
            unsigned char *answer = o.window[source] + epw_answer_offset(&l, o.lane, o.rank, row, 0);
            for (uint32_t piece = 0; piece < pieces; piece++) {
                uint32_t begin = piece * kPieceBytes, bytes = uint32_t(min(uint64_t(kPieceBytes), l.row_bytes - begin));
                unsigned char *stage = memory + (turn++ % (kStages / kTeams) * kTeams + team) * kPieceBytes;
                if (member == 0) ptx::bulk_wait_read<kStages / kTeams - 1>(); // what this stage held has been read out
                team_barrier(team);
                for (uint32_t at = member * 16; at < bytes; at += kTeamThreads * 16) {
                    *reinterpret_cast<uint4 *>(stage + at) = sum_chunk<T, true>(s.parts[i], begin + at);
                }
                ptx::fence_shared_before_bulk();
                team_barrier(team);
                if (member == 0) {
                    ptx::bulk_store(answer + begin, stage, bytes);
                    ptx::bulk_commit();
                }
            }
        }
        __syncthreads(); // the batch has been read
    }
    if (member == 0) ptx::bulk_wait_all();
}

// Rows that are answered as they are, whole or one for each expert, pass through shared memory, all stages at work. By warp 0
// alone: lane 0 copies, the others help to look up.
__device__ inline void answer_copies(const epw_combine_args &a, const Operation &o, AnswerShared &s, unsigned char *memory) {
    const epw_layout &l = a.layout;
    if (threadIdx.x >= 32) return;
    bool parts = a.output_layout == EPW_EXPERT_MAJOR;
    uint32_t lane = threadIdx.x, numbers = row_numbers(s, o);
    uint32_t pieces = uint32_t((l.row_bytes + kPieceBytes - 1) / kPieceBytes);
    constexpr uint32_t kLag = kStages / 2; // copies whose loads are under way before the first is stored
    uint32_t loads = 0, stores = 0;
    unsigned char *to[kStages];
    uint32_t size[kStages];
    if (lane == 0) ptx::fence_global_before_bulk(); // what earlier kernels wrote with ordinary stores, the engine reads now
    auto store = [&]() {
        uint32_t at = stores % kStages;
        while (!ptx::barrier_try_wait(&s.loaded[at], stores / kStages & 1)) {}
#pragma unroll
        for (uint32_t i = 0; i < kStages; i++) {
            if (i == at) ptx::bulk_store(to[i], memory + at * kPieceBytes, size[i]);
        }
        ptx::bulk_commit();
        stores++;
    };
    auto copy = [&](unsigned char *target, const unsigned char *from, uint32_t bytes) { // by lane 0
        uint32_t at = loads % kStages;
        ptx::bulk_wait_read<kStages - kLag - 1>(); // this stage's last store has read it
        ptx::barrier_expect(&s.loaded[at], bytes);
        ptx::bulk_load(memory + at * kPieceBytes, from, bytes, &s.loaded[at]);
#pragma unroll
        for (uint32_t i = 0; i < kStages; i++) {
            if (i == at) {
                to[i] = target;
                size[i] = bytes;
            }
        }
        loads++;
        if (loads - stores > kLag) store();
    };
    for (uint32_t n = blockIdx.x; n < numbers; n += gridDim.x) {
        uint32_t source, row;
        if (!row_of(s, o, n, &source, &row)) continue;
        uint32_t count = 1;
        if (parts) {
            __syncwarp();
            find_parts(a, o, source, row, s.parts[0]);
            __syncwarp();
            count = s.parts[0].count;
        }
        for (uint32_t i = 0; i < count && lane == 0; i++) {
            const unsigned char *from = a.window + epw_slot_offset(&l, o.lane, source, row) + l.header_bytes;
            if (parts) from = s.parts[0].part[i];
            else if (a.expert_out) {
                from = static_cast<const unsigned char *>(a.expert_out) + (uint64_t(source) * l.max_tokens + row) * l.row_bytes;
            }
            unsigned char *answer = o.window[source] + epw_answer_offset(&l, o.lane, o.rank, row, i);
            for (uint32_t piece = 0; piece < pieces; piece++) {
                uint64_t begin = uint64_t(piece) * kPieceBytes;
                copy(answer + begin, from + begin, uint32_t(min(uint64_t(kPieceBytes), l.row_bytes - begin)));
            }
        }
    }
    if (lane == 0) {
        while (stores < loads) store();
        ptx::bulk_wait_all();
    }
}

// Answers every row, then posts the words from the kernel's last block.
template <typename T>
__device__ void answer_rows(const epw_combine_args &a, Operation &o, AnswerShared &s, uint64_t peers,
                            unsigned char *memory) {
    epw_gpu_context *c = o.context;
    if (threadIdx.x < o.ranks) {
        bool here = peers >> threadIdx.x & 1;
        // Given up by the other lane, meanwhile: not answered.
        if (here && (ptx::load_relaxed_gpu(&c->shared->suspects) >> threadIdx.x & 1)) {
            leave_out(o, threadIdx.x);
            here = false;
        }
        s.rows[threadIdx.x] = here ? c->received[threadIdx.x] : 0;
    }
    __syncthreads();
    if (a.output_layout == EPW_EXPERT_MAJOR && a.mode == EPW_COMBINE_RANK_REDUCED) {
        answer_sums<T>(a, o, s, memory);
    } else {
        answer_copies(a, o, s, memory);
    }
    // Writer of the words: the last block here; see send_tokens. They say that the answers are there and the slots read.
    if (!last_block(o, &c->blocks_sent)) return;
    uint64_t reachable = peers & ~ptx::load_relaxed_gpu(&c->gone);
    if (threadIdx.x < o.ranks && (reachable >> threadIdx.x & 1)) {
        uint32_t value = s.rows[threadIdx.x] | (a.mode == EPW_COMBINE_ORDERED && c->ordered ? EPW_ANSWER_ORDERED : 0);
        ptx::store_release_sys(&line_at(o, threadIdx.x)->combine[o.lane], epw_word(o.epoch, o.op, value));
    }
}

} // namespace epw
