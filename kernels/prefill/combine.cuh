// Movers of a combine: answers to the peers' rows, and the sums of the answers to this rank's own. Answers come in the order in
// which rows were sent, so movers take up tokens in order: the oldest of those whose sums are not made has its answers at the
// front of the rings.
#pragma once

#include "kernels/numerics/add.cuh"
#include "kernels/prefill/place.cuh"
#include "kernels/prefill/tell.cuh"
#include "kernels/prefill/tile.cuh"

namespace epw {

// A row of a sum.
struct Addend {
    const unsigned char *row;
    float weight;
};

// The rows of a sum, in the tile's head: first the *inner* ones, which are summed with their weights and rounded; that sum stands
// before outer row number `inner_at`.
struct Addends {
    Addend *rows;
    uint32_t inner, outer, inner_at;
    bool weighted; // the outer ones have weights too
};
constexpr uint32_t kMostAddends = 2 * EPW_MAX_TOPK + 2, kAddendBytes = kMostAddends * sizeof(Addend);

// A warp sums so many bytes of a row at a time, some chunks of 16 bytes in each lane.
constexpr uint32_t kUnitChunks = 4, kUnit = kUnitChunks * 32 * 16, kAhead = 6;
using Chunks = uint4[kUnitChunks];
using Totals = float[kUnitChunks][8];
static_assert((kAhead + 1) * kUnit <= 2 * kHalf, "one more unit is that of the inner sum");

// The lane's chunks of the totals, rounded. The totals are zero afterwards.
template <typename T> __device__ __forceinline__ void round_off(Totals &totals, Chunks &chunks) {
#pragma unroll
    for (uint32_t n = 0; n < kUnitChunks; n++) {
        chunks[n] = pack_eight<T>(totals[n]);
#pragma unroll
        for (float &total : totals[n]) total = 0.0f;
    }
}

// Adds what round_off() has left in shared memory.
template <typename T> __device__ __forceinline__ void add_inner(Totals &totals, const unsigned char *inner) {
    Chunks chunks;
#pragma unroll
    for (uint32_t n = 0; n < kUnitChunks; n++) chunks[n] = *reinterpret_cast<const uint4 *>(inner + n * 512);
    add_part<T, false>(totals, chunks, 1.0f);
}

// The rows of a sum on their way to this warp: a unit of each row, then the next one of each. kAhead of them are under way at the
// same time, each lane's chunks by themselves. Whole: the rows are whole units.
template <bool Whole> struct Feed {
    const Addend *const rows;
    const uint32_t count, bytes;  // of a row
    unsigned char *const units;   // the lane's first chunk of the first unit; of the others each is 32 chunks further on
    uint32_t row = 0, column = 0; // of the next unit to be loaded: its first byte
    uint32_t at = 0;              // where the next one lies that is to be read

    __device__ __forceinline__ Feed(const Addend *rows, uint32_t count, uint32_t bytes, unsigned char *units)
        : rows(rows), count(count), bytes(count > 0 ? bytes : 0), units(units + threadIdx.x % 32 * 16) {
#pragma unroll 1
        for (uint32_t i = 0; i < kAhead; i++) load(i * kUnit);
    }
    __device__ __forceinline__ void load(uint32_t to) {
        if (column < bytes) {
            const uint32_t first = column + threadIdx.x % 32 * 16; // the lane's first byte
            const unsigned char *from = rows[row].row + first;
#pragma unroll
            for (uint32_t n = 0; n < kUnitChunks; n++) {
                ptx::copy_16(units + to + n * 512, from + n * 512, Whole || first + n * 512 < bytes);
            }
            if (++row == count) {
                row = 0;
                column += kUnit;
            }
        }
        ptx::copies_commit();
    }
    // The lane's chunks of the next unit.
    __device__ __forceinline__ void take(Chunks &chunks) {
        ptx::copies_wait<kAhead - 1>();
#pragma unroll
        for (uint32_t n = 0; n < kUnitChunks; n++) chunks[n] = *reinterpret_cast<const uint4 *>(units + at + n * 512);
        load(at);
        at = at + kUnit < kAhead * kUnit ? at + kUnit : 0;
    }
    // Adds the next unit.
    template <typename T, bool Weighted> __device__ __forceinline__ void add(Totals &totals, float weight) {
        Chunks chunks;
        take(chunks);
        add_part<T, Weighted>(totals, chunks, weight);
    }
};

template <typename T, bool Weighted, bool Whole>
__device__ __forceinline__ void add_outer(Feed<Whole> &feed, const Addends &sum, Totals &totals, const unsigned char *inner) {
#pragma unroll 1
    for (uint32_t i = 0; i < sum.outer; i++) {
        if (i == sum.inner_at) add_inner<T>(totals, inner);
        feed.template add<T, Weighted>(totals, Weighted ? sum.rows[sum.inner + i].weight : 1.0f);
    }
}

// Sums rows of `bytes` in order, from +0, through the halves of a tile. Never fused. Called by the whole warp, which sees the
// addends.
template <typename T, bool Whole>
__device__ __noinline__ void add_rows(unsigned char *to, const Addends sum, uint32_t bytes, unsigned char *halves) {
    ptx::assume_shared(sum.rows);
    ptx::assume_shared(halves);
    Feed<Whole> feed(sum.rows, sum.inner + sum.outer, bytes, halves);
    unsigned char *inner = halves + kAhead * kUnit + threadIdx.x % 32 * 16; // the lane's first chunk of the inner sum
    Totals totals = {};
    Chunks chunks;
#pragma unroll 1
    for (uint32_t column = threadIdx.x % 32 * 16; column - threadIdx.x % 32 * 16 < bytes; column += kUnit) {
#pragma unroll 1
        for (uint32_t i = 0; i < sum.inner; i++) feed.template add<T, true>(totals, sum.rows[i].weight);
        if (sum.inner > 0) {
            round_off<T>(totals, chunks);
#pragma unroll
            for (uint32_t n = 0; n < kUnitChunks; n++) *reinterpret_cast<uint4 *>(inner + n * 512) = chunks[n];
        }
        if (sum.weighted) {
            add_outer<T, true, Whole>(feed, sum, totals, inner);
        } else {
            add_outer<T, false, Whole>(feed, sum, totals, inner);
        }
        if (sum.inner > 0 && sum.outer == sum.inner_at) add_inner<T>(totals, inner);
        round_off<T>(totals, chunks);
#pragma unroll
        for (uint32_t n = 0; n < kUnitChunks; n++) {
            if (Whole || column + n * 512 < bytes) ptx::store(to + column + n * 512, chunks[n]);
        }
    }
}

// The same for two rows without weights.
template <typename T, bool Whole>
__device__ __noinline__ void add_two_rows(unsigned char *to, const Addend *rows, uint32_t bytes, unsigned char *halves) {
    ptx::assume_shared(rows);
    ptx::assume_shared(halves);
    Feed<Whole> feed(rows, 2, bytes, halves);
#pragma unroll 1
    for (uint32_t column = threadIdx.x % 32 * 16; column - threadIdx.x % 32 * 16 < bytes; column += kUnit) {
        Chunks first, second;
        feed.take(first);
        feed.take(second);
#pragma unroll
        for (uint32_t n = 0; n < kUnitChunks; n++) {
            if (Whole || column + n * 512 < bytes) ptx::store(to + column + n * 512, add_two<T>(first[n], second[n]));
        }
    }
}

template <typename T, bool Queues> struct AnswerMover {
    const epw_prefill_combine_args &a;
    Prefill &o;
    const epw_prefill_gpu_routing &r;
    const epw_prefill_layout &l;
    Tile &tile;
    Post &posts;
    const uint32_t laneid = threadIdx.x % 32;
    const uint32_t shift;     // a token has 2^shift lanes, at least one for each entry
    const uint32_t of, j;     // the lane's token in a handful, and its entry of that token
    const uint32_t row_bytes; // of an answer
    const bool ordered, experts;

    __device__ __forceinline__ AnswerMover(const epw_prefill_combine_args &a, Prefill &o, Tile &tile, Post &posts)
        : a(a), o(o), r(a.call.routing), l(a.call.lane.layout), tile(tile), posts(posts), shift(shift_of(l.topk)),
          of(laneid >> shift), j(laneid & ((1u << shift) - 1)), row_bytes(a.width * 2), ordered(a.in.mode == EPW_COMBINE_ORDERED),
          experts(by_expert(a.layout)) {}

    // ---- what the experts have made of a received row ----

    // An entry of the row.
    struct Made {
        uint32_t place; // of the entry, or of the whole row; goes(): there is one
        bool ours;      // its expert is this rank's
        float weight, value;

        __device__ __forceinline__ bool goes() const { return place < EPW_PREFILL_NO_PLACE; }
    };

    __device__ __forceinline__ Made made(uint32_t source, uint32_t row, uint32_t entry) const {
        const size_t at = (size_t(source) * a.call.lane.max_tokens + row) * l.topk + entry;
        Made m = {EPW_PREFILL_ELSEWHERE, false, 1.0f, 0.0f};
        if (entry >= l.topk) return m;
        m.place = r.places[at];
        m.ours = m.place != EPW_PREFILL_ELSEWHERE;
        if (!m.goes()) return m;
        if (experts) m.weight = a.in.row_weights ? a.in.row_weights[m.place] : r.row_weights[at];
        if (a.in.row_values) m.value = a.in.row_values[experts ? m.place : size_t(m.place) * l.topk + entry];
        return m;
    }
    __device__ __forceinline__ const unsigned char *made_at(uint32_t place) const {
        return static_cast<const unsigned char *>(a.in.expert_out) + uint64_t(place) * row_bytes;
    }
    // Writes the rows of the entries of lanes with `put` as addends to be summed with their weights. Returns how many. Called by
    // the whole warp.
    __device__ __forceinline__ uint32_t put_made(bool put, const Made &m, Addend *to) const {
        put = put && m.goes();
        const uint32_t some = __ballot_sync(0xffffffffu, put);
        if (put) to[__popc(some & lanes_below())] = {made_at(m.place), m.weight};
        return __popc(some);
    }
    static __device__ __forceinline__ uint32_t lanes_below() { return (1u << threadIdx.x % 32) - 1; }

    // ---- answers ----

    // Copies each lane's row, if it has one, to the lane's `to`, all of them in one stream of pieces. Called by the whole warp.
    __device__ __forceinline__ void copy(unsigned char *to, const unsigned char *from) {
        const uint32_t rows = __ballot_sync(0xffffffffu, from != nullptr), pieces = (row_bytes + kPiece - 1) / kPiece;
        Piece loads = {rows, 0}, stores = {rows, 0};
        const auto of_lane = []<typename Byte>(Byte *row, const Piece &p) {
            return reinterpret_cast<Byte *>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(row), p.lane())) + p.at;
        };
        tile.stream(
            __popc(rows) * pieces,
            [&](uint32_t, uint32_t half) {
                tile.load(half, of_lane(from, loads), min(kPiece, row_bytes - loads.at));
                loads.advance(kPiece, row_bytes);
            },
            [&](uint32_t, unsigned char *half) {
                unsigned char *slot = of_lane(to, stores);
                if (laneid == 0) ptx::bulk_store(slot, half, min(kPiece, row_bytes - stores.at));
                if (laneid == 0) ptx::bulk_commit();
                stores.advance(kPiece, row_bytes);
            });
    }
    __device__ __forceinline__ void sum_up(unsigned char *to, const Addends &sum) {
        if (sum.inner == 0 && sum.outer == 2 && !sum.weighted) {
            if (row_bytes % kUnit == 0) {
                add_two_rows<T, true>(to, sum.rows, row_bytes, tile.halves);
            } else {
                add_two_rows<T, false>(to, sum.rows, row_bytes, tile.halves);
            }
        } else if (row_bytes % kUnit == 0) {
            add_rows<T, true>(to, sum, row_bytes, tile.halves);
        } else {
            add_rows<T, false>(to, sum, row_bytes, tile.halves);
        }
    }
    __device__ __forceinline__ Addend *addends() const { return reinterpret_cast<Addend *>(tile.head); }

    __device__ __forceinline__ void answer(uint32_t peer, uint32_t number, uint32_t answers) {
        const uint64_t message = o.out_first[peer] + 1 + number;
        ptx::fence_global_before_bulk();    // the slots were granted to this warp by generic loads
        const unsigned char *row = nullptr; // to be copied to the slot of the lane's message, if there is one
        Given next = given(peer, number);
#pragma unroll 1
        for (uint32_t k = 0; k < answers; k++) {
            const Given now = next;
            if (k + 1 < answers) next = given(peer, number + k + 1); // is loaded meanwhile
            const unsigned char *copied = write_answer(now, slot_there(o, peer, message + k));
            if (laneid == k) row = copied;
        }
        if (ordered || !experts) copy(slot_there(o, peer, message + laneid) + l.answer_head, row);
        ptx::bulk_wait_all();
        __syncwarp();
        post_written<Queues>(o, posts, laneid < answers, peer, message + laneid);
        if (laneid == 0) count_moved(o.state->peers[peer].send, answers);
    }

    // What answer number `number` to the peer is made of. Ordered: one entry of a row, in `column`; else a whole row.
    struct Given {
        Made made;
        uint32_t column;
    };
    __device__ __forceinline__ Given given(uint32_t peer, uint32_t number) const {
        uint32_t row = number, column = 0;
        if (ordered) {
            const uint32_t entry = r.entries[size_t(peer) * a.call.lane.max_tokens * l.topk + number];
            if (entry == kNone) return {made(peer, 0, kNone), 0};
            row = entry / l.topk;
            column = entry % l.topk;
        }
        return {made(peer, row, laneid), column};
    }
    // Writes an answer. If its payload is a row as it is, leaves that to the caller and returns the row, else nullptr.
    __device__ __forceinline__ const unsigned char *write_answer(const Given &given, unsigned char *slot) {
        const Made &m = given.made;
        uint32_t mask = __ballot_sync(0xffffffffu, m.goes());
        const uint32_t place = __shfl_sync(0xffffffffu, m.place, ordered ? given.column : mask ? __ffs(mask) - 1 : 0);
        if (ordered) mask &= 1u << given.column;
        if (laneid == 0) ptx::store(slot, {mask, a.call.hash, EPW_MESSAGE_ROW, o.op});
        if (laneid < l.topk) reinterpret_cast<float *>(slot + sizeof(epw_row_head))[laneid] = m.value;
        if (mask != 0 && experts && !ordered) {
            tile.reuse();
            const uint32_t count = put_made(true, m, addends());
            __syncwarp();
            sum_up(slot + l.answer_head, {addends(), 0, count, ~0u, true});
            return nullptr;
        }
        return mask != 0 ? made_at(place) : nullptr;
    }

    // ---- sums ----

    // Tokens are taken up a *handful* at a time: at most as many as the warp has lanes for, one for each entry. This is what a
    // lane knows of its entry.
    struct Asked {
        uint32_t rank;   // of its expert
        uint32_t number; // of the answer, or of the row for this rank's own
        bool routed, sent;
        bool leads; // the first that awaits this answer
    };

    // `has`: the lane has a token.
    __device__ __forceinline__ Asked asked(uint32_t t, bool has) const {
        const size_t at = size_t(t) * l.topk + j;
        has = has && j < l.topk;
        const int32_t id = has ? r.ids[at] : -1;
        const uint32_t row = has ? r.sent_row[at] : kNone;
        Asked e = {0, row, id >= 0, id >= 0 && row != kNone, false};
        if (e.routed) e.rank = uint32_t(id) / l.local_experts;
        if (e.sent && ordered && e.rank != o.rank) e.number = r.sent_entry[at];
        static_assert(EPW_GPU_MAX_RANKS <= 1u << 16);
        const uint32_t same = __match_any_sync(0xffffffffu, e.sent ? of << 16 | e.rank : 0x80000000u | laneid);
        e.leads = e.sent && (ordered || (same & lanes_below()) == 0);
        return e;
    }
    __device__ __forceinline__ uint32_t token_lanes() const { return lanes_of_token(shift); }

    // Whether the answer to the entry is here; `awaited`: or may yet come.
    __device__ __forceinline__ bool has_answer(const Asked &e, bool &awaited) const {
        awaited = false;
        if (!e.sent) return false;
        if (e.rank == o.rank) return r.received[o.rank] > 0;
        const epw_prefill_gpu_peer &p = o.state->peers[e.rank];
        const Flag arrival = arrival_of(o, e.rank, o.in_first[e.rank] + 1 + e.number);
        const uint32_t opened = ptx::load_relaxed_gpu(&p.take.opened);
        const bool seems = arrival.seems_set(o);                               // is loaded meanwhile
        const bool here = e.number + 1 < opened && seems && arrival.is_set(o); // the latter acquires
        awaited = !here && (opened == 0 || e.number + 1 < opened);
        return here;
    }

    // Of the handful's tokens whose first lanes are given, those whose sums can be made: all their answers are here, or will not
    // come. `here`: receives whether the lane's is.
    __device__ __forceinline__ uint32_t find_complete(const Asked &e, uint32_t tokens, bool &here) const {
        bool awaited = false;
        here = (tokens & token_lanes()) != 0 && has_answer(e, awaited);
        const bool waits = (__ballot_sync(0xffffffffu, awaited) & token_lanes()) != 0;
        return tokens & __ballot_sync(0xffffffffu, !waits);
    }

    __device__ __forceinline__ float home_weight(uint32_t t) const {
        if (a.in.topk_weights) return j < a.topk ? a.in.topk_weights[size_t(t) * a.topk + j] : 0.0f;
        return j < l.topk ? r.weights[size_t(t) * l.topk + j] : 0.0f;
    }

    // Makes the sums of the handful's tokens whose first lanes are given; all that is known of them is looked up at once.
    __device__ __forceinline__ void make_sums(uint32_t tokens, uint32_t t, const Asked &e, bool here) {
        const uint32_t all = 0xffffffffu, lanes = token_lanes(), first_lane = of << shift;
        here = here && (tokens & lanes) != 0;
        const bool own = e.sent && e.rank == o.rank;
        const uint64_t message = o.in_first[e.rank] + 1 + e.number;
        const uint32_t first_own = __ballot_sync(all, here && own) & lanes;
        const uint32_t own_row = __shfl_sync(all, e.number, first_own ? __ffs(first_own) - 1 : 0);
        const bool reads = here && !own;
        const unsigned char *slot = slot_here<Queues>(o, e.rank, message), *row = nullptr;
        epw_row_head head = {};
        float value = 0.0f;
        if (reads) { // what lies in a slot is read once
            head = read_head(slot);
            value = __uint_as_float(read_once(slot + sizeof head + j * 4));
        }
        Made m = {EPW_PREFILL_ELSEWHERE, false, 1.0f, 0.0f};
        if (first_own != 0) m = made(o.rank, own_row, j); // is loaded meanwhile
        uint32_t mask = 0;
        if (reads) {
            const bool good = head.kind == EPW_MESSAGE_ROW && head.op == o.op && head.format == a.call.hash;
            here = good;
            if (good) {
                mask = head.token;
                row = slot + l.answer_head;
            } else if (head.kind == EPW_MESSAGE_VOID && head.op == o.op) {
                end_rows(o, EPW_PHASE_COMBINE_RECEIVE, e.rank, e.number);
            } else {
                refuse_row(o, EPW_PHASE_COMBINE_RECEIVE, e.rank);
            }
        }
        const uint32_t own_lanes = __ballot_sync(all, m.goes()) & lanes;
        // The first entry of this rank's own may have no place, while others have one and the same row.
        const uint32_t own_place = __shfl_sync(all, m.place, own_lanes ? __ffs(own_lanes) - 1 : 0);
        if (here && own) {
            mask = own_lanes >> first_lane;
            value = m.value;
            row = ordered || experts ? m.goes() ? made_at(m.place) : nullptr : made_at(own_place);
        }
        const bool arrived = here && (mask >> j & 1);

        // The addends, in their order.
        const bool adds = e.leads && here && (ordered ? arrived : mask != 0), nested = own && experts && !ordered;
        const uint32_t adders = __ballot_sync(all, adds) & lanes, inner_lane = __ballot_sync(all, adds && nested) & lanes;
        uint32_t at = __popc(adders & lanes_below());
        if (!ordered) { // by ascending rank
            at = 0;
            for (uint32_t some = adders; __any_sync(all, some != 0); some &= some - 1) {
                const uint32_t other = __shfl_sync(all, e.rank, some ? __ffs(some) - 1 : 0);
                at += some != 0 && other < e.rank;
            }
        }
        const float weight = ordered && here ? home_weight(t) : 1.0f;
#pragma unroll 1
        for (uint32_t rest = tokens; rest != 0; rest &= rest - 1) {
            const uint32_t first = __ffs(rest) - 1, inner = __shfl_sync(all, inner_lane, first);
            const bool ours = first == first_lane;
            const size_t token = __shfl_sync(all, t, first);
            tile.reuse();
            Addends sum = {addends(), 0, uint32_t(__popc(__shfl_sync(all, adders & ~inner_lane, first))), ~0u, ordered};
            uint32_t outer_at = at;
            if (inner != 0) {
                sum.inner = put_made(ours, m, sum.rows);
                sum.inner_at = __shfl_sync(all, at, __ffs(inner) - 1);
                if (at > sum.inner_at) outer_at--;
            }
            Addend *outer = sum.rows + sum.inner;
            if (ours && adds && !nested) outer[outer_at] = {row, weight};
            for (uint32_t i = 0; i < 2; i++) {
                if (a.in.bias[i] == nullptr) continue;
                const auto *bias = static_cast<const unsigned char *>(a.in.bias[i]) + token * row_bytes;
                if (laneid == 0) outer[sum.outer] = {bias, 1.0f};
                sum.outer++;
            }
            __syncwarp();
            sum_up(static_cast<unsigned char *>(a.out.out) + token * row_bytes, sum);
            __syncwarp();
        }
        const bool gives = e.leads && reads; // a slot back
        post_read<Queues>(o, posts, gives, e.rank, message);
        if (gives) count_moved(o.state->peers[e.rank].take, 1);
        tell_sums(tokens, t, e, here, arrived, value);
    }

    // What is said of sums beside them.
    __device__ __forceinline__ void tell_sums(uint32_t tokens, uint32_t t, const Asked &e, bool here, bool arrived,
                                              float value) const {
        const uint32_t all = 0xffffffffu, words = (o.ranks + 31) / 32, lanes = token_lanes();
        const uint32_t come = __popc(__ballot_sync(all, arrived) & lanes);
        const uint32_t expected = __popc(__ballot_sync(all, e.routed) & lanes);
        const uint32_t lacking = __ballot_sync(all, e.routed && !here) & lanes;
        const bool told = (tokens & lanes) != 0;
        if (a.out.values && told && j < a.topk) a.out.values[size_t(t) * a.topk + j] = arrived ? value : 0.0f;
        if (a.out.contributions && told && j == 0) {
            a.out.contributions[2 * size_t(t)] = uint16_t(come);
            a.out.contributions[2 * size_t(t) + 1] = uint16_t(expected);
        }
        if (a.out.lacks == nullptr) return;
#pragma unroll 1
        for (uint32_t rest = tokens; rest != 0; rest &= rest - 1) {
            const uint32_t first = __ffs(rest) - 1;
            const size_t token = __shfl_sync(all, t, first);
            uint32_t bits = 0;
            for (uint32_t some = __shfl_sync(all, lacking, first); some != 0; some &= some - 1) {
                const uint32_t rank = __shfl_sync(all, e.rank, __ffs(some) - 1);
                if (rank / 32 == laneid) bits |= bit_of(rank);
            }
            if (laneid < words) a.out.lacks[token * words + laneid] = bits;
        }
    }

    // ---- all of it ----

    // A mover that sends takes up tokens only when it can send nothing, and makes the sum of each as soon as its answers are
    // here, before it sends more: they occupy their slots until they are summed.
    __device__ __forceinline__ void run(uint32_t *kept, const Sending &sending) {
        epw_prefill_gpu_peer *peers = o.state->peers;
        Lines lines = {o, kept, o.ranks};
        lines.begin(o.rank + 1 + mover(o), [&](uint32_t line) { return sending.sends && line != o.rank; });
        const auto find = [&](uint32_t line) -> epw_prefill_line & { return peers[line].send; };
        const auto wait = [&](uint32_t line, uint32_t row) { return room_for(o, line, o.out_first[line] + 1 + row); };
        bool sends = sending.sends, sums = o.does(EPW_PREFILL_RECEIVES);
        uint32_t first = 0, held = 0; // the first token of the handful; first lanes of those whose sums are not made
        Asked e = {};
#pragma unroll 1
        while (sends || sums) { // ends when no line has any more rows, and all tokens are taken up: attendants' waits are bounded
            bool here = false;
            const uint32_t complete = held != 0 ? find_complete(e, held, here) : 0;
            __syncwarp(); // what one lane has acquired, all may read
            if (complete != 0) {
                make_sums(complete, first + of, e, here);
                held &= ~complete;
                continue;
            }
            const Ticket ticket = sends ? lines.pick(find, wait, [](uint32_t) { return true; }) : Ticket{0, 0, 0};
            if (ticket.rows > 0) {
                answer(ticket.line, ticket.row, ticket.rows);
                continue;
            }
            sends = sends && !lines.have_ended();
            if (sums && held == 0) {
                // When few are left, each mover takes fewer, so that all end at the same time.
                const uint32_t some = min(max((a.tokens - first) / (2 * o.movers), 1u), tokens_at_once(shift));
                first = __shfl_sync(0xffffffffu, laneid == 0 ? atomicAdd(&o.state->sums, some) : 0, 0);
                const bool has = of < some && first + of < a.tokens;
                held = __ballot_sync(0xffffffffu, has && j == 0);
                sums = held != 0;
                if (sums) e = asked(first + of, has);
            } else {
                pause();
            }
        }
        ptx::bulk_wait_all();
        __syncwarp();
        if (laneid == 0) ptx::add_release_block(&o.ended, 1);
    }
};

// Ordered: numbers the entries of each source's rows for this rank, by which they are answered. A source may have announced more
// entries than its rows have: the others are nobody's. Called by the whole grid; a source is a block's.
__device__ __noinline__ inline void number_entries(const epw_prefill_combine_args &a, Prefill &o) {
    __shared__ uint32_t of_warps[most_threads(1) / 32 + 1], announced;
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t topk = o.layout().topk, warp = threadIdx.x / 32, laneid = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t source = o.block; source < o.ranks; source += o.blocks) {
        const size_t first = size_t(source) * a.call.lane.max_tokens;
        uint32_t before = 0; // entries of the rows so far
        if (threadIdx.x == 0) announced = 0;
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < o.layout().local_experts; e += blockDim.x) {
            atomicAdd(&announced, r.counts[size_t(source) * o.layout().local_experts + e]);
        }
#pragma unroll 1
        for (uint32_t at = 0; at < r.received[source]; at += blockDim.x) {
            const uint32_t row = at + threadIdx.x;
            uint32_t own = 0;
            for (uint32_t j = 0; j < topk && row < r.received[source]; j++) {
                own += r.places[(first + row) * topk + j] != EPW_PREFILL_ELSEWHERE;
            }
            uint32_t behind = own;
#pragma unroll
            for (uint32_t step = 1; step < 32; step *= 2) {
                const uint32_t other = __shfl_up_sync(0xffffffffu, behind, step);
                if (laneid >= step) behind += other;
            }
            if (laneid == 31) of_warps[warp] = behind;
            __syncthreads();
            uint32_t number = before + behind - own;
            for (uint32_t w = 0; w < warps; w++) {
                if (w < warp) number += of_warps[w];
                before += of_warps[w];
            }
            __syncthreads();
            for (uint32_t j = 0; j < topk && own > 0; j++) {
                if (r.places[(first + row) * topk + j] != EPW_PREFILL_ELSEWHERE)
                    r.entries[first * topk + number++] = row * topk + j;
            }
        }
        __syncthreads();
        for (uint32_t n = before + threadIdx.x; n < announced; n += blockDim.x) r.entries[first * topk + n] = kNone;
        __syncthreads();
    }
    meet(o);
}

} // namespace epw
