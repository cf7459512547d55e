// Movers of a combine: answers to the peers' rows, and the sums of the answers to this rank's own. Answers come in the order in
// which rows were sent, so movers take up tokens in order: the oldest of those whose sums are not made has its answers at the
// front of the rings.
#pragma once

#include "kernels/prefill/place.cuh"
#include "kernels/prefill/tile.cuh"

namespace epw {

// A row of a sum; or `count` rows behind it that are summed with their weights and rounded before.
struct Addend {
    const unsigned char *row;
    float weight;
    uint32_t count;
};
constexpr uint32_t kMostAddends = 2 * EPW_MAX_TOPK + 2;

template <typename T> __device__ __forceinline__ void add_cell(float (&total)[8], uint4 cell, float weight, bool weighted) {
    const uint32_t pairs[] = {cell.x, cell.y, cell.z, cell.w};
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
        float low = T::low(pairs[n]), high = T::high(pairs[n]);
        if (weighted) {
            low = __fmul_rn(weight, low);
            high = __fmul_rn(weight, high);
        }
        total[2 * n] = __fadd_rn(total[2 * n], low);
        total[2 * n + 1] = __fadd_rn(total[2 * n + 1], high);
    }
}

// Sums addends [first, first + count) in order, from +0, at one 16-byte cell. Never fused.
template <typename T, bool Nested>
__device__ __forceinline__ uint4 sum_cell(const Addend *addends, uint32_t count, uint32_t at, bool weighted) {
    constexpr uint32_t kAtOnce = 4; // loads in flight
    float total[8] = {};
#pragma unroll 1
    for (uint32_t i = 0; i < count; i += kAtOnce) {
        uint4 cells[kAtOnce];
#pragma unroll
        for (uint32_t k = 0; k < kAtOnce; k++) {
            if (i + k >= count) continue;
            const Addend &one = addends[i + k];
            if constexpr (Nested) {
                if (one.count > 0) {
                    cells[k] = sum_cell<T, false>(addends + EPW_MAX_TOPK + 2, one.count, at, true);
                    continue;
                }
            }
            cells[k] = ptx::load_relaxed_gpu_once(one.row + at);
        }
#pragma unroll
        for (uint32_t k = 0; k < kAtOnce; k++) {
            if (i + k < count) add_cell<T>(total, cells[k], addends[i + k].weight, weighted);
        }
    }
    return pack_eight<T>(total);
}

template <typename T> struct AnswerMover {
    const epw_prefill_combine_args &a;
    Prefill &o;
    const epw_prefill_gpu_routing &r;
    const epw_prefill_layout &l;
    Tile &tile;
    const uint32_t laneid = threadIdx.x % 32;
    const uint32_t row_bytes; // of an answer
    const bool ordered, experts;
    Addend *addends; // in the tile; behind EPW_MAX_TOPK + 2 of them those that are summed before

    __device__ __forceinline__ AnswerMover(const epw_prefill_combine_args &a, Prefill &o, Tile &tile)
        : a(a), o(o), r(a.call.routing), l(a.call.lane.layout), tile(tile), row_bytes(a.width * 2),
          ordered(a.in.mode == EPW_COMBINE_ORDERED), experts(by_expert(a.layout)),
          addends(reinterpret_cast<Addend *>(tile.piece)) {
        static_assert(kMostAddends * sizeof(Addend) <= kRowPiece);
    }

    // ---- what the experts have made of a received row ----

    // A lane's entry of the row.
    struct Made {
        uint32_t place; // of the entry, or of the whole row; goes(): there is one
        bool ours;      // its expert is this rank's
        float weight, value;

        __device__ __forceinline__ bool goes() const { return place < EPW_PREFILL_NO_PLACE; }
    };

    __device__ __forceinline__ Made made(uint32_t source, uint32_t row) const {
        const size_t at = (size_t(source) * a.call.lane.max_tokens + row) * l.topk + laneid;
        Made m = {EPW_PREFILL_ELSEWHERE, false, 1.0f, 0.0f};
        if (laneid >= l.topk) return m;
        m.place = r.places[at];
        m.ours = m.place != EPW_PREFILL_ELSEWHERE;
        if (!m.goes()) return m;
        if (experts) m.weight = a.in.row_weights ? a.in.row_weights[m.place] : r.row_weights[at];
        if (a.in.row_values) m.value = a.in.row_values[experts ? m.place : size_t(m.place) * l.topk + laneid];
        return m;
    }
    __device__ __forceinline__ const unsigned char *made_at(uint32_t place) const {
        return static_cast<const unsigned char *>(a.in.expert_out) + uint64_t(place) * row_bytes;
    }
    // Writes the entries' rows as addends to be summed with their weights. Returns how many. Called by the whole warp.
    __device__ __forceinline__ uint32_t put_made(const Made &m, Addend *to) const {
        const uint32_t some = __ballot_sync(0xffffffffu, m.goes());
        if (m.goes()) to[__popc(some & lanes_below())] = {made_at(m.place), m.weight, 0};
        return __popc(some);
    }
    static __device__ __forceinline__ uint32_t lanes_below() { return (1u << threadIdx.x % 32) - 1; }

    // ---- answers ----

    __device__ __forceinline__ void copy(unsigned char *to, const unsigned char *from) {
#pragma unroll 1
        for (uint32_t at = 0; at < row_bytes; at += kRowPiece) {
            const uint32_t bytes = min(kRowPiece, row_bytes - at);
            tile.reuse();
            tile.load(from + at, bytes);
            if (laneid != 0) continue;
            ptx::bulk_store(to + at, tile.piece, bytes);
            ptx::bulk_commit();
        }
        ptx::bulk_wait_all();
    }

    // Sums the addends. Called by the whole warp, which sees them.
    template <bool Nested> __device__ __forceinline__ void sum(unsigned char *to, uint32_t count, bool weighted) const {
        const Addend *from = Nested ? addends : addends + EPW_MAX_TOPK + 2;
#pragma unroll 1
        for (uint32_t at = laneid * 16; at < row_bytes; at += 512)
            ptx::store(to + at, sum_cell<T, Nested>(from, count, at, weighted));
    }

    // Answer number `number` to the peer. Ordered: to one entry of a row; else to a whole row.
    __device__ __forceinline__ void answer(uint32_t peer, uint32_t number) {
        const uint64_t message = o.state->peers[peer].out_first + 1 + number;
        unsigned char *slot = slot_there(o, peer, message), *to = slot + l.answer_head;
        uint32_t row = number, column = 0;
        if (ordered) {
            const uint32_t entry = r.entries[size_t(peer) * a.call.lane.max_tokens * l.topk + number];
            row = entry / l.topk;
            column = entry % l.topk;
        }
        const Made m = made(peer, row);
        uint32_t mask = __ballot_sync(0xffffffffu, m.goes());
        const uint32_t place = __shfl_sync(0xffffffffu, m.place, ordered ? column : mask ? __ffs(mask) - 1 : 0);
        if (ordered) mask &= 1u << column;
        if (laneid == 0) ptx::store(slot, {mask, a.call.hash, EPW_MESSAGE_ROW, o.op});
        if (laneid < l.topk) reinterpret_cast<float *>(slot + sizeof(epw_row_head))[laneid] = m.value;
        if (mask != 0 && experts && !ordered) {
            tile.reuse();
            const uint32_t count = put_made(m, addends + EPW_MAX_TOPK + 2);
            __syncwarp();
            sum<false>(to, count, true);
        } else if (mask != 0) {
            ptx::fence_global_before_bulk(); // the slot was granted to this warp by generic loads
            copy(to, made_at(place));
        }
        __syncwarp();
        if (laneid == 0) mark(o, a.call.lane.done, peer, message);
    }

    // ---- sums ----

    // A lane's entry of one of this rank's tokens.
    struct Asked {
        uint32_t rank;   // of its expert
        uint32_t number; // of the answer, or of the row for this rank's own
        bool routed, sent;
        bool leads; // the first that awaits this answer
    };

    __device__ __forceinline__ Asked asked(uint32_t t) const {
        const size_t at = size_t(t) * l.topk + laneid;
        Asked e = {0, 0, false, false, false};
        int32_t id = -1;
        uint32_t row = ~0u;
        if (laneid < l.topk) {
            id = r.ids[at];
            row = r.sent_row[at];
        }
        e.routed = id >= 0;
        e.sent = e.routed && row != ~0u;
        if (e.routed) e.rank = uint32_t(id) / l.local_experts;
        e.number = row;
        if (e.sent && ordered && e.rank != o.rank) e.number = r.sent_entry[at];
        const uint32_t same = __match_any_sync(0xffffffffu, e.sent ? e.rank : 0x80000000u | laneid);
        e.leads = e.sent && (ordered || (same & lanes_below()) == 0);
        return e;
    }

    // Whether the answer to the entry is here; `awaited`: or may yet come.
    __device__ __forceinline__ bool has_answer(const Asked &e, bool &awaited) const {
        awaited = false;
        if (!e.sent) return false;
        if (e.rank == o.rank) return r.received[o.rank] > 0;
        const epw_prefill_gpu_peer &p = o.state->peers[e.rank];
        const bool gone = !has(o.present, e.rank) || ptx::load_acquire_gpu(&p.gone); // then the limit is the last
        const bool here = e.number < ptx::load_acquire_gpu(&p.take.limit);
        awaited = !here && !gone;
        return here;
    }

    // Whether the token's sum can be made: all its answers are here, or will not come.
    __device__ __forceinline__ bool is_complete(uint32_t t) const {
        bool awaited;
        has_answer(asked(t), awaited);
        const bool complete = !__any_sync(0xffffffffu, awaited);
        __syncwarp();
        return complete;
    }

    __device__ __forceinline__ float home_weight(uint32_t t) const {
        if (a.in.topk_weights) return laneid < a.topk ? a.in.topk_weights[size_t(t) * a.topk + laneid] : 0.0f;
        return laneid < l.topk ? r.weights[size_t(t) * l.topk + laneid] : 0.0f;
    }

    __device__ __forceinline__ void make_sum(uint32_t t) {
        const uint32_t all = 0xffffffffu;
        const Asked e = asked(t);
        bool awaited;
        const bool here = has_answer(e, awaited), own = e.sent && e.rank == o.rank;
        const uint64_t message = o.state->peers[e.rank].in_first + 1 + e.number;
        const unsigned char *slot = nullptr, *row = nullptr;
        uint32_t mask = 0;
        float value = 0.0f;
        if (here && !own) { // what lies in a slot is read once
            slot = slot_here(o, e.rank, message);
            const epw_row_head head = read_head(slot);
            const bool good = head.kind == EPW_MESSAGE_ROW && head.op == o.op && head.format == a.call.hash;
            if (good) {
                mask = head.token;
                row = slot + l.answer_head;
                value = __uint_as_float(read_once(slot + sizeof head + laneid * 4));
            } else if (head.kind == EPW_MESSAGE_VOID && head.op == o.op) {
                end_rows(o, e.rank, e.number);
            } else {
                refuse_row(o, EPW_PHASE_COMBINE_RECEIVE, e.rank);
            }
        }
        const uint32_t first_own = __ballot_sync(all, here && own);
        Made m = {EPW_PREFILL_ELSEWHERE, false, 1.0f, 0.0f};
        if (first_own != 0) m = made(o.rank, __shfl_sync(all, e.number, __ffs(first_own) - 1));
        const uint32_t own_mask = __ballot_sync(all, m.goes());
        if (here && own) {
            mask = own_mask;
            value = m.value;
            row = m.goes() ? made_at(m.place) : nullptr;
        }
        const bool arrived = here && (mask >> laneid & 1);

        // The addends, in their order.
        tile.reuse();
        const bool nested = experts && !ordered;
        const bool adds = e.leads && here && (ordered ? arrived : mask != 0);
        const uint32_t adders = __ballot_sync(all, adds);
        uint32_t at = __popc(adders & lanes_below());
        if (!ordered) { // by ascending rank
            at = 0;
            for (uint32_t some = adders; some != 0; some &= some - 1) at += __shfl_sync(all, e.rank, __ffs(some) - 1) < e.rank;
        }
        uint32_t count = __popc(adders);
        const uint32_t within = put_made(m, addends + EPW_MAX_TOPK + 2);
        // The first entry of this rank's own may have no place, while others have one and the same row.
        const uint32_t own_place = __shfl_sync(all, m.place, own_mask ? __ffs(own_mask) - 1 : 0);
        if (adds && own && !ordered && !nested) row = made_at(own_place);
        if (adds) addends[at] = {row, ordered ? home_weight(t) : 1.0f, own && nested ? within : 0};
        if (laneid == 0) {
            for (uint32_t i = 0; i < 2; i++) {
                if (a.in.bias[i] == nullptr) continue;
                addends[count++] = {static_cast<const unsigned char *>(a.in.bias[i]) + size_t(t) * row_bytes, 1.0f, 0};
            }
        }
        count = __shfl_sync(all, count, 0);
        __syncwarp();
        sum<true>(static_cast<unsigned char *>(a.out.out) + size_t(t) * row_bytes, count, ordered);
        __syncwarp();
        if (e.leads && here && !own) mark(o, a.call.lane.taken, e.rank, message);
        tell_sum(t, e, here, arrived, value);
    }

    // What is said of the sum beside it.
    __device__ __forceinline__ void tell_sum(uint32_t t, const Asked &e, bool here, bool arrived, float value) const {
        const uint32_t all = 0xffffffffu, words = (o.ranks + 31) / 32;
        const uint32_t come = __popc(__ballot_sync(all, arrived)), expected = __popc(__ballot_sync(all, e.routed));
        const uint32_t lacking = __ballot_sync(all, e.routed && !here);
        if (a.out.values && laneid < a.topk) a.out.values[size_t(t) * a.topk + laneid] = arrived ? value : 0.0f;
        if (a.out.contributions && laneid < 2) a.out.contributions[2 * size_t(t) + laneid] = uint16_t(laneid ? expected : come);
        if (a.out.lacks == nullptr) return;
        uint32_t bits = 0;
        for (uint32_t some = lacking; some != 0; some &= some - 1) {
            const uint32_t rank = __shfl_sync(all, e.rank, __ffs(some) - 1);
            if (rank / 32 == laneid) bits |= bit_of(rank);
        }
        if (laneid < words) a.out.lacks[size_t(t) * words + laneid] = bits;
    }

    // ---- all of it ----

    __device__ __forceinline__ void run(uint32_t *kept, uint32_t of_block) {
        const uint32_t number = blockIdx.x * of_block + threadIdx.x / 32;
        epw_prefill_gpu_state *s = o.state;
        Lines lines = {kept, o.ranks, 0};
        uint32_t token = kNoTicket; // taken up, and not summed yet
        bool more = o.does(EPW_PREFILL_RECEIVES);
        lines.begin(o.rank + 1 + number);
#pragma unroll 1
        for (;;) { // ends when all attendants have, and nothing is left
            const bool finished = has_finished(o);
            if (more && token == kNoTicket) {
                if (laneid == 0) token = atomicAdd(&s->sums, 1u);
                token = __shfl_sync(0xffffffffu, token, 0);
                more = token < a.tokens;
                if (!more) token = kNoTicket;
            }
            bool moved = token != kNoTicket && is_complete(token);
            if (moved) {
                make_sum(token);
                token = kNoTicket;
            }
            const Ticket ticket = lines.pick([&](uint32_t line) { return &s->peers[line].send; });
            if (ticket.line != kNoTicket) {
                answer(ticket.line, ticket.row);
                moved = true;
            }
            if (moved) continue;
            if (finished && !more && token == kNoTicket) break;
            pause();
        }
        ptx::bulk_wait_all();
        __syncwarp();
    }
};

// Ordered: numbers the entries of each source's rows for this rank, by which they are answered. Called by the whole grid; a
// source is a block's.
__device__ __noinline__ inline void number_entries(const epw_prefill_combine_args &a, Prefill &o) {
    __shared__ uint32_t of_warps[kMostPrefillThreads / 32 + 1];
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t topk = o.layout().topk, warp = threadIdx.x / 32, laneid = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t source = blockIdx.x; source < o.ranks; source += gridDim.x) {
        const size_t first = size_t(source) * a.call.lane.max_tokens;
        uint32_t before = 0; // entries of the rows so far
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
    }
    meet(o);
}

} // namespace epw
