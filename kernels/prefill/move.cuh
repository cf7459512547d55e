// Movers of a dispatch: rows of this rank's tokens to the peers' rings, and rows from rings, and of this rank itself, to their
// places.
#pragma once

#include "kernels/prefill/place.cuh"
#include "kernels/prefill/tile.cuh"

namespace epw {

// Scales of a row, in any memory: of scale i byte b lies at `at + i * stride + b`.
struct ScalesAt {
    const unsigned char *at;
    uint64_t stride;
};

// Where a row goes: by expert, a place in each lane, for the entry of that number; by source, one place in the first lane.
struct Places {
    uint32_t place; // EPW_PREFILL_ELSEWHERE or EPW_PREFILL_NO_PLACE: none
    int32_t expert; // local; -1: the entry is not of this rank
    float weight;

    __device__ __forceinline__ bool goes() const { return place < EPW_PREFILL_NO_PLACE; }
};

template <typename T> struct RowMover {
    const epw_prefill_dispatch_args &a;
    Prefill &o;
    const epw_prefill_gpu_routing &r;
    const epw_prefill_layout &l;
    Tile &tile;
    const uint32_t laneid = threadIdx.x % 32;

    __device__ __forceinline__ RowMover(const epw_prefill_dispatch_args &a, Prefill &o, Tile &tile)
        : a(a), o(o), r(a.call.routing), l(a.call.lane.layout), tile(tile) {}

    // ---- pieces ----

    __device__ __forceinline__ uint32_t piece_at(uint32_t at) const { return min(kRowPiece, a.format.payload_bytes - at); }
    __device__ __forceinline__ uint32_t scales_in(uint32_t bytes) const {
        return quantises(a.in.payload) ? bytes / EPW_FP8_BLOCK : 0;
    }

    // Fills the tile with a piece of a token as it travels.
    __device__ __forceinline__ void fill(uint32_t t, uint32_t at) {
        const uint32_t bytes = piece_at(at);
        const unsigned char *x = static_cast<const unsigned char *>(a.in.x) + t * a.in.x_stride;
        tile.reuse();
        if (!quantises(a.in.payload)) {
            tile.load(x + at, bytes);
            return;
        }
        tile.template quantise<T>(x + uint64_t(at) * 2, bytes, a.in.payload);
        // So that a peer does not see what was there before.
        const uint32_t made = scales_in(bytes) * a.format.scale_bytes;
        if (made + laneid < whole_units(made)) tile.scales[made + laneid] = 0;
        tile.wrote();
    }

    // ---- to peers ----

    __device__ __forceinline__ void put_header(uint32_t t) {
        const size_t first = size_t(t) * l.topk;
        const uint32_t indices = sizeof(epw_row_head) + l.topk * sizeof(epw_entry), band = indices + l.topk * 4;
        if (laneid == 0) *reinterpret_cast<uint4 *>(tile.head) = {t, a.format.hash, EPW_MESSAGE_ROW, o.op};
        if (laneid < l.topk) {
            reinterpret_cast<epw_entry *>(tile.head + sizeof(epw_row_head))[laneid] = {r.ids[first + laneid],
                                                                                       r.weights[first + laneid]};
            reinterpret_cast<uint32_t *>(tile.head + indices)[laneid] = r.sent_index[first + laneid];
        }
        const unsigned char *from = static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes;
        for (uint32_t i = band + laneid; i < l.header_bytes; i += 32) {
            tile.head[i] = i - band < a.in.sideband_bytes ? from[i - band] : 0;
        }
    }

    // The caller's scales of an opaque token.
    __device__ __forceinline__ ScalesAt given_scales(uint32_t t) const {
        return {static_cast<const unsigned char *>(a.in.scales) + t * a.in.scale_row_stride, a.in.scale_col_stride};
    }

    __device__ __forceinline__ void send_given_scales(uint32_t t, unsigned char *to) {
        const ScalesAt from = given_scales(t);
        const uint32_t bytes = a.format.scale_count * a.format.scale_bytes, each = a.format.scale_bytes;
        for (uint32_t i = laneid; i < whole_units(bytes); i += 32)
            to[i] = i < bytes ? from.at[i / each * from.stride + i % each] : 0;
    }

    __device__ __forceinline__ void send(uint32_t peer, uint32_t row) {
        const uint32_t t = r.sent_tokens[r.sent_first[peer] + row];
        const uint64_t number = o.state->peers[peer].out_first + 1 + row;
        unsigned char *slot = slot_there(o, peer, number), *payload = slot + l.header_bytes;
        ptx::fence_global_before_bulk(); // the slot was granted to this warp by generic loads
#pragma unroll 1
        for (uint32_t at = 0; at < a.format.payload_bytes; at += kRowPiece) {
            const uint32_t bytes = piece_at(at), scales = scales_in(bytes) * a.format.scale_bytes;
            fill(t, at);
            if (at == 0) {
                put_header(t);
                tile.wrote();
            }
            if (laneid != 0) continue;
            if (at == 0) ptx::bulk_store(slot, tile.head, uint32_t(l.header_bytes));
            ptx::bulk_store(payload + at, tile.piece, bytes);
            if (scales > 0) {
                const uint32_t before = at / EPW_FP8_BLOCK * a.format.scale_bytes;
                ptx::bulk_store(payload + a.format.payload_bytes + before, tile.scales, whole_units(scales));
            }
            ptx::bulk_commit();
        }
        if (!quantises(a.in.payload) && a.format.scale_count > 0) send_given_scales(t, payload + a.format.payload_bytes);
        ptx::bulk_wait_all();
        __syncwarp();
        if (laneid == 0) mark(o, a.call.lane.done, peer, number);
    }

    // ---- to their places ----

    // Scales [first, first + count) of a row to a place.
    __device__ __forceinline__ void put_scales(uint32_t place, ScalesAt from, uint32_t first, uint32_t count) {
        const bool packed = a.in.payload == EPW_PAYLOAD_FP8_UE8M0, by_row = a.out.scale_order == 1;
        const uint32_t own = a.format.scale_bytes, each = packed ? 4 : own;
        const uint32_t elements = packed ? (a.format.scale_count + 3) / 4 : a.format.scale_count;
        const uint64_t list = a.out.layout == EPW_EXPERT_MAJOR ? place / a.out.capacity : 0, row = place - list * a.out.capacity;
        const uint64_t column = (a.out.capacity * each + 15) / 16 * 16, whole = uint64_t(elements) * each;
        auto *to = static_cast<unsigned char *>(a.out.scales) + list * (by_row ? a.out.capacity * whole : elements * column);
        const uint32_t bytes = count * own, padded = (bytes + each - 1) / each * each;
#pragma unroll 1
        for (uint32_t n = laneid; n < padded; n += 32) {
            const uint32_t i = first * own + n;
            const unsigned char value = n < bytes ? from.at[n / own * from.stride + n % own] : 0;
            to[by_row ? row * whole + i : i / each * column + row * each + i % each] = value;
        }
    }
    __device__ __forceinline__ void put_scales(const Places &places, ScalesAt from, uint32_t first, uint32_t count) {
        if (a.out.scales == nullptr || count == 0) return;
        for (uint32_t some = __ballot_sync(0xffffffffu, places.goes()); some != 0; some &= some - 1) {
            put_scales(__shfl_sync(0xffffffffu, places.place, __ffs(some) - 1), from, first, count);
        }
    }

    // What is said of the row beside its payload.
    __device__ __forceinline__ void put_indices(const Places &places, uint32_t source, uint32_t t, const unsigned char *band) {
        const epw_prefill_output &out = a.out;
        const bool experts = by_expert(out.layout);
        if (places.goes()) {
            if (out.row_source) out.row_source[places.place] = int32_t(source);
            if (out.row_token) out.row_token[places.place] = int32_t(t);
            if (out.row_expert) out.row_expert[places.place] = places.expert;
            if (out.row_position) out.row_position[places.place] = int32_t(laneid);
            if (out.row_weight) out.row_weight[places.place] = places.weight;
        }
        const uint32_t whole = __shfl_sync(0xffffffffu, places.place, 0);
        if (!experts && whole < EPW_PREFILL_NO_PLACE && laneid < l.topk) {
            const size_t at = size_t(whole) * l.topk + laneid;
            if (out.row_experts) out.row_experts[at] = places.expert;
            if (out.row_weights) out.row_weights[at] = places.expert >= 0 ? places.weight : 0.0f;
        }
        if (out.sideband == nullptr || a.in.sideband_bytes == 0) return;
        for (uint32_t some = __ballot_sync(0xffffffffu, places.goes()); some != 0; some &= some - 1) {
            const uint32_t place = __shfl_sync(0xffffffffu, places.place, __ffs(some) - 1);
            auto *to = static_cast<unsigned char *>(out.sideband) + size_t(place) * a.in.sideband_bytes;
            for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) to[i] = band[i];
        }
    }

    // Stores the piece in the tile to all places.
    __device__ __forceinline__ void spread(const Places &places, uint32_t at) {
        if (!places.goes() || a.out.rows == nullptr) return;
        auto *to = static_cast<unsigned char *>(a.out.rows) + uint64_t(places.place) * a.format.payload_bytes + at;
        ptx::bulk_store(to, tile.piece, piece_at(at));
        ptx::bulk_commit();
    }

    // Notes where the row is, for combine, and returns where it goes: each lane's entry is number `index` of its source for local
    // expert `expert`.
    __device__ __forceinline__ Places place(uint32_t source, uint32_t row, uint32_t t, int32_t expert, uint32_t index,
                                            float weight) {
        const uint32_t number = source * a.call.lane.max_tokens + row;
        const size_t at = size_t(number) * l.topk + laneid;
        Places places = {EPW_PREFILL_ELSEWHERE, expert, weight};
        if (laneid < l.topk && a.again) {
            places.place = r.places[at];
            if (a.in.topk_weights == nullptr) places.weight = r.row_weights[at];
        } else if (expert >= 0) {
            const size_t of_source = size_t(source) * l.local_experts + uint32_t(expert);
            places.place = by_expert(a.out.layout) ? expert_place(a.out, r, uint32_t(expert), r.base[of_source] + index)
                                                   : source_place(source, row);
        }
        if (laneid < l.topk) {
            r.places[at] = places.place;
            r.row_weights[at] = places.weight;
        }
        if (laneid == 0) r.row_token[number] = t;
        if (!by_expert(a.out.layout)) places.place = laneid == 0 ? source_place(source, row) : EPW_PREFILL_ELSEWHERE;
        return places;
    }
    __device__ __forceinline__ uint32_t source_place(uint32_t source, uint32_t row) const {
        const uint64_t at = first_of_source(a.out.layout, r, a.call.lane.max_tokens, source) + row;
        return at < a.out.capacity ? uint32_t(at) : EPW_PREFILL_NO_PLACE;
    }

    // ---- from rings ----

    // Reads the row's header once. Returns whether it is a row of this operation, whose entries for this rank are among those
    // that its source has announced: then its places are its source's, whatever else is wrong with it.
    __device__ __forceinline__ bool admit(uint32_t source, uint32_t row, const unsigned char *slot, uint32_t &t, int32_t &expert,
                                          uint32_t &index, float &weight) {
        const epw_row_head head = read_head(slot);
        const uint32_t local = l.local_experts, number = source * a.call.lane.max_tokens + row;
        bool good = head.kind == EPW_MESSAGE_ROW && head.op == o.op && head.format == a.format.hash;
        good = good && head.token < a.call.lane.max_tokens;
        t = head.token;
        expert = -1;
        index = 0;
        weight = 0.0f;
        bool fits = true;
        if (laneid < l.topk) {
            const unsigned char *entry = slot + sizeof(epw_row_head) + laneid * sizeof(epw_entry);
            const int64_t e = int64_t(int32_t(read_once(entry))) - int64_t(o.rank) * local;
            weight = __uint_as_float(read_once(entry + 4));
            index = read_once(slot + sizeof(epw_row_head) + l.topk * sizeof(epw_entry) + laneid * 4);
            if (e >= 0 && e < local) expert = int32_t(e);
            if (expert >= 0) fits = index < r.counts[size_t(source) * local + uint32_t(expert)];
        }
        const uint32_t same = __match_any_sync(0xffffffffu, expert >= 0 ? uint32_t(expert) : 0x80000000u | laneid);
        fits = fits && __popc(same) == 1;
        if (a.again && good) good = t == r.row_token[number];
        return good && __all_sync(0xffffffffu, fits) && __any_sync(0xffffffffu, expert >= 0);
    }

    __device__ __forceinline__ void take(uint32_t source, uint32_t row) {
        const uint64_t number = o.state->peers[source].in_first + 1 + row;
        const unsigned char *slot = slot_here(o, source, number), *payload = slot + l.header_bytes;
        uint32_t t, index;
        int32_t expert;
        float weight;
        if (admit(source, row, slot, t, expert, index, weight)) {
            const Places places = place(source, row, t, expert, index, weight);
            ptx::fence_global_before_bulk(); // the row was acquired by generic loads
#pragma unroll 1
            for (uint32_t at = 0; a.out.rows != nullptr && at < a.format.payload_bytes; at += kRowPiece) {
                tile.reuse();
                tile.load(payload + at, piece_at(at));
                spread(places, at);
            }
            put_scales(places, {payload + a.format.payload_bytes, a.format.scale_bytes}, 0, a.format.scale_count);
            put_indices(places, source, t, slot + sizeof(epw_row_head) + l.topk * (sizeof(epw_entry) + 4));
        } else if (laneid == 0) {
            const epw_row_head head = read_head(slot);
            if (head.kind == EPW_MESSAGE_VOID && head.op == o.op) {
                end_rows(o, source, row);
            } else {
                refuse_row(o, EPW_PHASE_DISPATCH_RECEIVE, source);
            }
        }
        __syncwarp(); // all lanes have read the slot
        if (laneid == 0) mark(o, a.call.lane.taken, source, number);
    }

    // ---- of this rank itself: neither checks nor slots ----

    __device__ __forceinline__ void take_own(uint32_t row) {
        const uint32_t t = r.sent_tokens[r.sent_first[o.rank] + row], local = l.local_experts;
        const size_t entry = size_t(t) * l.topk + laneid;
        int32_t expert = -1;
        uint32_t index = 0;
        float weight = 0.0f;
        if (laneid < l.topk) {
            const int32_t id = r.ids[entry];
            if (id >= 0 && uint32_t(id) / local == o.rank) expert = id - int32_t(o.rank * local);
            index = r.sent_index[entry];
            weight = r.weights[entry];
        }
        const Places places = place(o.rank, row, t, expert, index, weight);
#pragma unroll 1
        for (uint32_t at = 0; at < a.format.payload_bytes; at += kRowPiece) {
            const uint32_t scales = scales_in(piece_at(at));
            fill(t, at);
            spread(places, at);
            put_scales(places, {tile.scales, a.format.scale_bytes}, at / EPW_FP8_BLOCK, scales);
        }
        if (!quantises(a.in.payload)) put_scales(places, given_scales(t), 0, a.format.scale_count);
        put_indices(places, o.rank, t, static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes);
    }

    // ---- all of it ----

    // Lines: those to each peer, then those from each.
    __device__ __forceinline__ void run(uint32_t *kept, uint32_t of_block) {
        const uint32_t number = blockIdx.x * of_block + threadIdx.x / 32, movers = gridDim.x * of_block;
        epw_prefill_gpu_peer *peers = o.state->peers;
        Lines lines = {kept, 2 * o.ranks, 0};
        bool cleared = !o.does(EPW_PREFILL_RECEIVES);
        lines.begin(o.rank + 1 + number * (o.ranks + 1)); // half of the movers begin with those from peers
#pragma unroll 1
        for (;;) { // ends when all attendants have, and nothing is left
            const bool finished = has_finished(o);
            if (!cleared && ptx::load_acquire_gpu(&o.state->placed)) {
                clear_rest(a, o, number * 32 + laneid, movers * 32);
                cleared = true;
            }
            __syncwarp();
            const Ticket ticket =
                lines.pick([&](uint32_t line) { return line < o.ranks ? &peers[line].send : &peers[line - o.ranks].take; });
            if (ticket.line == kNoTicket) {
                if (finished && __all_sync(0xffffffffu, cleared)) break;
                pause();
            } else if (ticket.line < o.ranks) {
                send(ticket.line, ticket.row);
            } else if (ticket.line == o.ranks + o.rank) {
                take_own(ticket.row);
            } else {
                take(ticket.line - o.ranks, ticket.row);
            }
        }
        ptx::bulk_wait_all();
        __syncwarp();
    }
};

} // namespace epw
