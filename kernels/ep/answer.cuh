// The sending half of combine: every received row is answered, with the weighted sum of its experts' outputs (rank-reduced), with
// each of these outputs (ordered), or with the row that the caller has reduced (rank-major).
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/pass.cuh"
#include "kernels/ep/shape.cuh"
#include "kernels/ep/sum.cuh"

namespace epw {

// A copy of whole 16-byte units.
struct Copy {
    const unsigned char *from;
    unsigned char *to;
    uint32_t bytes; // 0: none
    uint32_t row;   // in the sequence of answers
};

struct __align__(16) AnswerShared {
    union {
        Batch batch;
        Copy copies[64]; // of a warp that sends: see combine_many.cuh
    };
    uint64_t loaded[kMaxTiles];           // barriers: a tile is loaded
    uint32_t received[EPW_GPU_MAX_RANKS]; // rows received from each source: all of them are answered, or none
};

constexpr uint32_t kKnownPlaces = 64;

// How many sources in places from kKnownPlaces on end before row n, and in `begin` the end of the last of them. Called by a whole
// warp.
static __device__ __noinline__ uint32_t find_beyond(const uint32_t *ends, uint32_t ranks, uint32_t n, uint32_t &begin) {
    uint32_t more = 0, passed = 32;
#pragma unroll 1
    for (uint32_t first = kKnownPlaces; passed == 32 && first < ranks; first += 32) {
        const uint32_t i = first + threadIdx.x % 32, end = i < ranks ? ends[i] : 0xffffffffu;
        passed = __popc(__ballot_sync(0xffffffffu, end <= n));
        const uint32_t last = __shfl_sync(0xffffffffu, end, passed - 1);
        if (passed > 0) begin = last;
        more += passed;
    }
    return more;
}

// The order of sources (see source_at), which each warp holds in registers: thread i has places i and i + 32. Further places are
// looked up in memory.
struct SourceOrder {
    uint32_t end[2]; // rows of the sources up to and including the place
    uint32_t total, remote;

    // `ends`: the lane's. There are no rows if the kernel does not send. Called by the whole warp.
    __device__ __forceinline__ SourceOrder(const Combine &a, const uint32_t *ends, bool sends) {
        uint32_t laneid = threadIdx.x % 32, ranks = a.lane.layout.ranks;
        end[0] = laneid < ranks ? ends[laneid] : 0xffffffffu;
        end[1] = laneid + 32 < ranks ? ends[laneid + 32] : 0xffffffffu;
        total = sends ? at(ends, ranks - 1) : 0;
        remote = sends && ranks > 1 ? at(ends, ranks - 2) : 0;
    }

    // Returns the place of the source of row n; n becomes the row's number within that source. Called by the whole warp.
    __device__ __forceinline__ uint32_t find(const Combine &a, uint32_t &n) const {
        uint32_t place = __popc(__ballot_sync(0xffffffffu, end[0] <= n)), more = 0;
        uint32_t begin = __shfl_sync(0xffffffffu, end[0], place - 1);
        if (place == 32) more = __popc(__ballot_sync(0xffffffffu, end[1] <= n));
        if (more > 0) begin = __shfl_sync(0xffffffffu, end[1], more - 1);
        if (more == 32) {
            uint32_t end = begin; // kept in memory only for this call
            more += find_beyond(a.lane.state->ends, a.lane.layout.ranks, n, end);
            begin = end;
        }
        if (place > 0) n -= begin;
        return place + more;
    }

  private:
    __device__ __forceinline__ uint32_t at(const uint32_t *ends, uint32_t place) const {
        if (place >= kKnownPlaces) return ends[place];
        return __shfl_sync(0xffffffffu, place < 32 ? end[0] : end[1], place % 32);
    }
};

// The rows that a block answers: every gridDim.x-th of those that are answered.
struct OwnRows {
    uint32_t count, remote, shift; // the block's rows; those of them from other ranks, which come first; the row at which the
                                   // block starts

    __device__ __forceinline__ OwnRows(const Combine &a, const SourceOrder &order) {
        remote = up_to(a, order.remote);
        count = a.own_stays ? remote : up_to(a, order.total);
        shift = __umulhi(blockIdx.x * 0x9e3779b9u, remote); // less than `remote`, and evenly spread over the blocks
    }
    // The block's row number i. The rows span several sources, with this rank's own last, and blocks start at different rows of
    // the others: at any time some block is sending to each peer.
    __device__ __forceinline__ uint32_t number(uint32_t i) const {
        if (i < remote) i = i + shift < remote ? i + shift : i + shift - remote;
        return blockIdx.x + i * gridDim.x;
    }

  private:
    static __device__ __forceinline__ uint32_t up_to(const Combine &a, uint32_t rows) {
        return rows > blockIdx.x ? a.blocks.divide(rows - 1 - blockIdx.x) + 1 : 0;
    }
};

// A received row: where it came from, and where its answers go.
struct Row {
    uint32_t source, number; // source rank; number of its slot within the source's slots

    Row() = default;
    // Row n of all received rows. Called by the whole warp.
    __device__ __forceinline__ Row(const Combine &a, const SourceOrder &order, uint32_t n) {
        source = source_at(a.lane.rank, a.lane.layout.ranks, order.find(a, n));
        number = n;
    }
    __device__ __forceinline__ uint32_t place(const Combine &a) const { return source * a.lane.layout.max_tokens + number; }
    __device__ __forceinline__ const unsigned char *slot(const Combine &a) const {
        return a.lane.window + a.slots.offset(place(a));
    }
    __device__ __forceinline__ unsigned char *to(const Combine &a, const Operation &o) const {
        return at(o, source, a.answers.offset((a.lane.rank * a.lane.layout.max_tokens + number) * a.lane.layout.answers));
    }
};

// A thread's entry of a row, loaded but not yet examined.
struct Entry {
    uint64_t pair = ~0ull; // expert id and weight
    uint32_t index = 0;

    Entry() = default;
    __device__ __forceinline__ Entry(const Combine &a, const Row &row) {
        const unsigned char *slot = row.slot(a);
        const uint32_t laneid = threadIdx.x % 32;
        if (laneid >= a.lane.layout.topk) return;
        pair = ptx::load_relaxed_gpu(reinterpret_cast<const uint64_t *>(slot + sizeof(epw_slot_header)) + laneid);
        index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&a.lane.layout)) + laneid);
    }
};

// The outputs of the experts to which a row went: a thread that `has` one holds its address.
struct Parts {
    const unsigned char *from;
    float weight;
    bool has;
    uint32_t holders; // mask of the threads that have one

    // Called by one warp. `first_row`: [ranks][local_experts], where each source's rows begin in the experts' lists.
    __device__ __forceinline__ Parts(const Combine &a, const Row &row, const Entry &entry, const uint32_t *first_row) {
        const epw_layout &l = a.lane.layout;
        const uint32_t local = uint32_t(entry.pair) - a.lane.rank * l.local_experts;
        weight = __uint_as_float(uint32_t(entry.pair >> 32));
        bool ours = local < l.local_experts;
        uint64_t place = ours ? uint64_t(first_row[row.source * l.local_experts + local]) + entry.index : 0;
        has = ours && place < l.rows;
        from = static_cast<const unsigned char *>(a.in.expert_out) + (local * l.rows + place) * l.row_bytes;
        holders = __ballot_sync(0xffffffffu, has);
    }
};

// A block's pass over its rows: which rows they are, and the first loads. The constructor issues these before the operation is
// known, which is safe: they read only this rank's memory, and within bounds, whatever stage the lane is in (by the API all of
// the caller's rows exist).
template <Answers With, bool Many = false> struct Answerer {
    OwnRows rows;
    uint32_t warps, number; // warps, or teams of warps, that take rows one by one; this one's number
    uint32_t half;          // 1: teams of two warps
    Row row;                // the row at which this warp is, if it has one
    Entry entry;            // the row's entry, if experts' outputs answer it
    Passage passage;        // otherwise: the first piece of the warp's first row is being loaded

    __device__ __forceinline__ Answerer(const Combine &a, AnswerShared &s, const SourceOrder &order, unsigned char *tiles)
        : rows(a, order), warps(kWarps), number(threadIdx.x / 32), half(0), passage{} {
        if constexpr (With != Answers::sums) {
            warps = min(a.tiles.count, kWarps);
            if (number < warps) passage = {tiles + number * a.tiles.bytes, &s.loaded[number]};
        }
        if constexpr (With == Answers::parts) { // two warps share a row if there are enough warps
            half = rows.count * 2 <= warps;
            warps >>= half;
            number >>= half;
        }
        if (!has(0)) return;
        row = Row(a, order, rows.number(number));
        if constexpr (With == Answers::rows) {
            if (!Many && threadIdx.x % 32 == 0) passage.load(a.given_row(row.place(a)), min(kPieceBytes, a.row_size));
        } else {
            entry = Entry(a, row);
        }
    }
    // Whether this warp has a row in the batch that starts at the block's row `first`.
    __device__ __forceinline__ bool has(uint32_t first) const { return number < warps && first + number < rows.count; }
    __device__ __forceinline__ void find(const Combine &a, const SourceOrder &order, uint32_t first) {
        row = Row(a, order, rows.number(first + number));
        if constexpr (With != Answers::rows) entry = Entry(a, row);
    }
    // The lane is in another stage, so the operation is refused: a load in flight must complete before the block ends.
    __device__ __forceinline__ void abandon() {
        if (With == Answers::rows && !Many && has(0) && threadIdx.x % 32 == 0) passage.await_loaded();
    }
};

// Computes weighted sums, one batch of rows at a time.
template <typename T, bool Many, typename Batch>
__device__ __forceinline__ void answer_rows(const Combine &a, const Operation &o, Batch &batch, const SourceOrder &order,
                                            Answerer<Answers::sums, Many> &w, const uint32_t *first_row) {
    for (uint32_t first = 0; first < w.rows.count; first += Batch::kRows) {
#pragma unroll 1
        for (uint32_t at = 0; at < Batch::kRows && w.has(first + at); at += w.warps) {
            const Row row = w.row;
            const Parts parts(a, row, w.entry, first_row);
            if (w.has(first + at + w.warps)) w.find(a, order, first + at + w.warps);
            uint32_t place = __popc(parts.holders & ((1u << threadIdx.x % 32) - 1));
            put_row(batch, at + w.number, row.to(a, o), __popc(parts.holders), parts.has, place, parts.from, parts.weight, 0,
                    a.lane.window);
        }
        __syncthreads();
        accumulate<T, true>(batch, min(w.rows.count - first, Batch::kRows), a.row_size, nullptr);
        __syncthreads(); // all threads have read the batch
    }
}

// Copies parts unchanged: the parts of a row by one warp, or by a team.
template <typename T, bool Many, typename Batch>
__device__ __forceinline__ void answer_rows(const Combine &a, const Operation &o, Batch &, const SourceOrder &order,
                                            Answerer<Answers::parts, Many> &w, const uint32_t *first_row) {
    const uint32_t laneid = threadIdx.x % 32, member = threadIdx.x / 32 & w.half;
    for (uint32_t first = 0; w.has(first); first += w.warps) {
        if (first > 0) w.find(a, order, first);
        const Parts parts(a, w.row, w.entry, first_row);
        unsigned char *row = w.row.to(a, o);
        uint32_t pieces = 0, count = min(__popc(parts.holders), a.lane.layout.answers); // bounded by the room for answers,
                                                                                        // however often a row names an expert
        for (uint32_t part = 0, left = parts.holders; part < count; part++, left &= left - 1) {
            uint64_t from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(parts.from), __ffs(left) - 1);
            unsigned char *to = row + uint64_t(part) * a.row_size;
            for (uint32_t at = 0; at < a.row_size; at += kPieceBytes) {
                if (laneid != 0 || (pieces++ & w.half) != member) continue;
                const uint32_t bytes = min(kPieceBytes, a.row_size - at);
                w.passage.load(reinterpret_cast<const unsigned char *>(from) + at, bytes);
                w.passage.store(to + at, bytes);
            }
        }
    }
    if (laneid == 0) ptx::bulk_wait_all();
}

// Copies rows unchanged, each row by one warp.
template <typename T, bool Many, typename Batch>
__device__ __forceinline__ void answer_rows(const Combine &a, const Operation &o, Batch &, const SourceOrder &order,
                                            Answerer<Answers::rows, Many> &w, const uint32_t *) {
    const uint32_t laneid = threadIdx.x % 32;
    for (uint32_t first = 0; w.has(first); first += w.warps) {
        if (first > 0) w.find(a, order, first);
        if (laneid != 0) continue;
        const unsigned char *from = a.given_row(w.row.place(a));
        unsigned char *to = w.row.to(a, o);
        for (uint32_t at = 0; at < a.row_size; at += kPieceBytes) {
            const uint32_t bytes = min(kPieceBytes, a.row_size - at);
            if (first > 0 || at > 0 || Many) w.passage.load(from + at, bytes);
            w.passage.store(to + at, bytes);
        }
    }
    if (laneid == 0) ptx::bulk_wait_all();
}

// Posts answers and words to peers behind queues, one warp per peer at a time. Called by the whole block.
__device__ __noinline__ inline void post_answers(const Combine &a, const Operation &o, const AnswerShared &s, bool ordered,
                                                 bool marked) {
    const epw_layout &l = a.lane.layout;
    const uint64_t answers = epw_answer_offset(&l, o.lane, o.rank, 0, 0);
    const uint32_t stride = a.row_size * l.answers;
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t peer = 0; peer < o.ranks; peer++) {
        if (!has(o.queued, peer) || !has(o.present, peer) || has(o.suspects, peer)) continue;
        if (turn++ % kWarps != threadIdx.x / 32) continue;
        const uint32_t rows = has(o.missing, peer) ? 0 : s.received[peer];
        const Range range = {answers, at(o, peer, answers), ordered ? stride : a.row_size, stride, rows};
        const uint64_t word = epw_word(o.epoch, o.op, rows | (ordered && marked ? EPW_ANSWER_ORDERED : 0));
        signal_behind(o, peer, &range, 1, EPW_WORD_COMBINE, word);
    }
}

// Counts the answers to a peer, which is told first if it is mapped, and next if it is behind a queue. Called by the last block
// to send.
__device__ __noinline__ inline void count_answers(const Combine &a, const Operation &o, const AnswerShared &s, uint32_t peer) {
    if (peer >= o.ranks || !has(o.present, peer) || has(o.suspects, peer) || has(o.missing, peer)) return;
    const uint32_t answers = a.counts_answers() ? o.state->owed[peer] : s.received[peer];
    ptx::reduce_relaxed_gpu(&o.state->traffic.answers_sent[peer], answers);
}

// Posts the word to a peer that is not behind a queue, once all rows are answered: writer and reader as in answer_all().
__device__ __forceinline__ void tell_answers(const Combine &a, const Operation &o, const AnswerShared &s, uint32_t peer,
                                             bool marked) {
    // This half gives up no peers besides suspects; the receiving half does.
    const bool tells = has(o.mapped, peer) & !has(o.suspects, peer), missing = has(o.missing, peer);
    const uint32_t received = s.received[peer];
    if (tells) {
        uint32_t rows = missing ? 0 : received; // no rows for a peer that has sent what it must not
        uint32_t value = rows | (a.in.mode == EPW_COMBINE_ORDERED && marked ? EPW_ANSWER_ORDERED : 0);
        signal_mapped(o, peer, EPW_WORD_COMBINE, epw_word(o.epoch, o.op, value));
    }
    if (a.lane.counts) count_answers(a, o, s, peer);
}

// Answers every row; the kernel's last block then posts the words. `first_row`: the table of first rows.
template <typename T, Answers With, bool Many, typename Batch>
__device__ __forceinline__ void answer_all(const Combine &a, Operation &o, AnswerShared &s, const SourceOrder &order,
                                           Answerer<With, Many> &w, Batch &batch, bool marked, const uint32_t *first_row) {
    answer_rows<T, Many>(a, o, batch, order, w, first_row);
    // Writer of the words: the last block, here. It has acquired what every block has released: the sums, which all threads of a
    // block stored before its barrier, or the rows that one thread of each warp has seen complete. Its release at system scope
    // passes that on to the peer, whose acquire of the word sees all of it. The words also say that this rank has read the peer's
    // slots.
    if (!last_to_send(o)) return;
    if (threadIdx.x < EPW_GPU_MAX_RANKS) tell_answers(a, o, s, threadIdx.x, marked);
    if (o.posts) post_answers(a, o, s, a.in.mode == EPW_COMBINE_ORDERED, marked); // may wait for room in a queue
}

} // namespace epw
