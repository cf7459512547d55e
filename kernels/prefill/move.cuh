// Movers of a dispatch: rows of this rank's tokens to the peers' rings, and rows from rings, and of this rank itself, to their
// places.
#pragma once

#include "kernels/prefill/place.cuh"
#include "kernels/prefill/tell.cuh"

namespace epw {

// What a lane knows of its entry of a row.
struct Entering {
    uint32_t token;
    int32_t expert; // local; -1: the entry is not of this rank
    uint32_t index; // number of the row among its source's for this expert
    float weight;
    bool good; // the row is one of this operation
};

// Where the lane's entry of a row goes: by expert, a place for each entry; by source, one place for the row, that of entry 0.
struct Places {
    uint32_t place; // EPW_PREFILL_ELSEWHERE or EPW_PREFILL_NO_PLACE: none
    int32_t expert;
    float weight;

    __device__ __forceinline__ bool goes() const { return place < EPW_PREFILL_NO_PLACE; }
};

// What came as the source's row `row` is none. Called by one lane.
__device__ __noinline__ inline void refuse(const Prefill &o, uint32_t source, uint32_t row, const unsigned char *slot) {
    const epw_row_head head = read_head(slot);
    if (head.kind == EPW_MESSAGE_VOID && head.op == o.op) {
        end_rows(o, EPW_PHASE_DISPATCH_RECEIVE, source, row);
    } else {
        refuse_row(o, EPW_PHASE_DISPATCH_RECEIVE, source);
    }
}

// Takes up rows of this rank itself, those of one word of claims that `rows` names. Returns those that nobody had taken up.
__device__ __forceinline__ uint32_t claim(const Prefill &o, uint32_t word, uint32_t rows) {
    return rows & ~atomicOr(&o.call.lane.claims[word], rows);
}
// Called by a block when nobody claims any longer.
__device__ __forceinline__ void clear_claims(const Prefill &o, uint32_t tokens) {
    for (uint32_t i = threadIdx.x; i < (tokens + 31) / 32; i += blockDim.x) o.call.lane.claims[i] = 0;
}

__device__ __forceinline__ uint32_t rotate_right(uint32_t bits, uint32_t by) {
    return bits >> by % 32 | bits << (32 - by % 32) % 32;
}

// Rows of this rank itself that nobody has taken up yet, as a mover looks for them: it begins anywhere, and goes round once.
struct OwnRows {
    uint32_t word, left, rows; // the next word of claims, and how many there are still; all rows
    uint32_t turn;             // differs from those of other movers, who look at the same words
    bool known;                // the number of rows is, and where they go

    // Takes up some rows of a word, `most` at most. Returns them; none: none are left. `of`: receives the word's number. Called
    // by the whole warp.
    __device__ __forceinline__ uint32_t take(const Prefill &o, uint32_t most, uint32_t &of) {
        const uint32_t all = 0xffffffffu, laneid = threadIdx.x % 32, words = (rows + 31) / 32;
#pragma unroll 1
        while (left > 0) { // ends: each turn leaves words behind, or rows to somebody
            const uint32_t at = word + laneid < words ? word + laneid : word + laneid - words;
            uint32_t open = 0;
            if (laneid < left) {
                open = ~ptx::load_relaxed_gpu(&o.call.lane.claims[at]);
                if (at == words - 1 && rows % 32 != 0) open &= (1u << rows % 32) - 1;
            }
            const uint32_t some = __ballot_sync(all, open != 0), passed = some ? __ffs(some) - 1 : min(left, 32u);
            left -= passed;
            word = word + passed < words ? word + passed : word + passed - words;
            if (some == 0) continue;
            turn += 11;
            const uint32_t chosen = (__ffs(rotate_right(some, turn)) - 1 + turn) % 32; // any of them
            uint32_t rest = rotate_right(open, turn), taken = 0;
            for (uint32_t n = 0; n < most && rest != 0; n++) {
                taken |= rest & -rest;
                rest &= rest - 1;
            }
            taken = rotate_right(taken, 32 - turn % 32);
            if (laneid == chosen) taken = claim(o, at, taken);
            taken = __shfl_sync(all, taken, chosen);
            of = __shfl_sync(all, at, chosen);
            if (taken != 0) return taken;
        }
        return 0;
    }
};

// Rows of a ticket are looked up a *handful* at a time: as many as have a lane for each entry of their tokens.
template <typename T, bool Queues> struct RowMover {
    const epw_prefill_dispatch_args &a;
    Prefill &o;
    const epw_prefill_gpu_routing &r;
    const epw_prefill_layout &l;
    Tile &tile;
    Post &posts;
    const ScaleShape &shape; // of scales
    InGroup *const groups;   // that of the lane's place, in shared memory: registers are scarce
    const uint32_t laneid = threadIdx.x % 32;
    const uint32_t shift; // a row has 2^shift lanes, at least one for each entry
    const uint32_t of, j; // the lane's row in a handful, and its entry of that row
    // Movers that send may also move rows to this rank's own places, see claim_own(). With many blocks rows of 8-bit values are
    // not to wait for anything before they are on the wire.
    __device__ __forceinline__ bool shares_own() const {
        return o.does(EPW_PREFILL_SENDS) && o.does(EPW_PREFILL_RECEIVES) &&
               (o.blocks < kManyBlocks || a.in.payload == EPW_PAYLOAD_SAME);
    }
    bool sends_own = false;     // this one does: places are known
    bool tile_streamed = false; // stores may be reading the second half of the tile

    __device__ __forceinline__ RowMover(const epw_prefill_dispatch_args &a, Prefill &o, Tile &tile, Post &posts,
                                        const ScaleShape &shape, InGroup *groups)
        : a(a), o(o), r(a.call.routing), l(a.call.lane.layout), tile(tile), posts(posts), shape(shape),
          groups(groups + threadIdx.x), shift(shift_of(l.topk)), of(laneid >> shift), j(laneid & ((1u << shift) - 1)) {}

    __device__ __forceinline__ uint32_t handful() const { return tokens_at_once(shift); }
    __device__ __forceinline__ uint32_t first_lane(uint32_t k) const { return k << shift; } // of row k
    __device__ __forceinline__ uint32_t row_lanes() const { return lanes_of_token(shift); } // of this lane's row

    // ---- pieces ----

    // Bytes of the payload, at most, and from byte `at` on.
    __device__ __forceinline__ uint32_t piece() const {
        return quantises(a.in.payload) && a.format.payload_bytes > kPiece ? kQuantisedPiece : kPiece;
    }
    __device__ __forceinline__ uint32_t piece_at(uint32_t at) const { return min(piece(), a.format.payload_bytes - at); }
    __device__ __forceinline__ const unsigned char *row_of(uint32_t t) const {
        return static_cast<const unsigned char *>(a.in.x) + t * a.in.x_stride;
    }

    // The number in the handful of the piece's row, for which its first lane stands.
    __device__ __forceinline__ uint32_t number_of(const Piece &p) const { return p.lane() >> shift; }
    // Passes rows that are not quantised through the tile, those whose first lanes are given. from(k): where row k of the handful
    // lies; `behind`: bytes that are loaded behind its last piece, which follow it in memory or, if Apart, lie at scales(k);
    // store(k, at, half): stores a piece that lies in a half.
    template <bool Apart, typename From, typename Scales, typename Store>
    __device__ __forceinline__ void stream(uint32_t rows, uint32_t behind, const From &from, const Scales &scales,
                                           const Store &store) {
        const uint32_t pieces = (a.format.payload_bytes + piece() - 1) / piece();
        Piece loads = {rows, 0}, stores = {rows, 0};
        tile.stream(
            __popc(rows) * pieces,
            [&](uint32_t, uint32_t half) {
                const uint32_t bytes = piece_at(loads.at);
                const uint32_t k = number_of(loads), also = loads.at + bytes == a.format.payload_bytes ? behind : 0;
                tile.load(half, from(k) + loads.at, Apart ? bytes : bytes + also, Apart ? also : 0);
                if (Apart && also != 0) tile.load_behind(half, bytes, scales(k), also);
                loads.advance(piece(), a.format.payload_bytes);
            },
            [&](uint32_t, const unsigned char *half) {
                store(number_of(stores), stores.at, half);
                stores.advance(piece(), a.format.payload_bytes);
            });
    }

    // ---- to peers ----

    // The lane's entry of its row's token, as it is sent.
    struct Leaving {
        epw_entry entry;
        uint32_t index, row; // at the rank of its expert; row UINT32_MAX: it is not sent
    };
    __device__ __forceinline__ Leaving leaving(uint32_t t, bool has) const {
        const size_t at = size_t(t) * l.topk + j;
        if (!has) return {{-1, 0.0f}, 0, kNone};
        return {{r.ids[at], r.weights[at]}, r.sent_index[at], r.sent_row[at]};
    }

    // Of tokens that have experts of this rank too: one of their movers to peers may also move their rows to their own places,
    // the one that sends to the peer of their first entry that goes to a peer. A token that is loaded, and quantised, once.
    // Returns those places, none for a row that another mover moves.
    __device__ __forceinline__ Places claim_own(uint32_t peer, uint32_t t, const Leaving &e) {
        const uint32_t all = 0xffffffffu, rank = e.row != kNone ? uint32_t(e.entry.expert) / l.local_experts : kNone;
        const uint32_t ours = __ballot_sync(all, rank == o.rank) & row_lanes();
        const uint32_t others = __ballot_sync(all, rank != kNone && rank != o.rank) & row_lanes();
        const uint32_t row = __shfl_sync(all, e.row, ours ? __ffs(ours) - 1 : 0);
        const uint32_t first = __shfl_sync(all, rank, others ? __ffs(others) - 1 : 0);
        const bool wants = ours != 0 && others != 0 && first == peer;
        const bool claims = wants && j == 0 && claim(o, row / 32, 1u << row % 32) != 0;
        return place_own(row, own_entry(t, e, __shfl_sync(all, claims, first_lane(of))));
    }
    // A row of this rank itself, neither checked nor in a slot.
    __device__ __forceinline__ Entering own_entry(uint32_t t, const Leaving &e, bool good) const {
        const uint32_t expert = uint32_t(e.entry.expert) - o.rank * l.local_experts;
        return {t, expert < l.local_experts ? int32_t(expert) : -1, e.index, e.entry.weight, good};
    }
    __device__ __forceinline__ Places place_own(uint32_t row, const Entering &e) {
        const Places places = place(o.rank, row, e);
        put_indices(places, o.rank, e, band_of(e.token));
        return places;
    }
    __device__ __forceinline__ const unsigned char *band_of(uint32_t t) const {
        return static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes;
    }

    // Of row k of the handful.
    __device__ __forceinline__ void put_header(uint32_t t, uint32_t k, const Leaving &e) {
        const uint32_t indices = sizeof(epw_row_head) + l.topk * sizeof(epw_entry), band = indices + l.topk * 4;
        if (laneid == 0) *reinterpret_cast<uint4 *>(tile.head) = {t, a.format.hash, EPW_MESSAGE_ROW, o.op};
        if (of == k && j < l.topk) {
            reinterpret_cast<epw_entry *>(tile.head + sizeof(epw_row_head))[j] = e.entry;
            reinterpret_cast<uint32_t *>(tile.head + indices)[j] = e.index;
        }
        const unsigned char *from = band_of(t);
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
        if (from.stride == each && each % 4 == 0) {
            for (uint32_t i = laneid * 4; i < whole_units(bytes); i += 128) {
                *reinterpret_cast<uint32_t *>(to + i) = i < bytes ? *reinterpret_cast<const uint32_t *>(from.at + i) : 0;
            }
            return;
        }
        for (uint32_t i = laneid; i < whole_units(bytes); i += 32)
            to[i] = i < bytes ? from.at[i / each * from.stride + i % each] : 0;
    }

    // Stores a piece, with the first one the header, to a slot.
    __device__ __forceinline__ void send_piece(unsigned char *slot, uint32_t at, const unsigned char *from) const {
        if (laneid != 0) return;
        if (at == 0) ptx::bulk_store(slot, tile.head, uint32_t(l.header_bytes));
        ptx::bulk_store(slot + l.header_bytes + at, from, piece_at(at));
        ptx::bulk_commit();
    }
    // Stores scales from number `first` on to a slot, with zeros that follow them up to a whole unit.
    __device__ __forceinline__ void send_scales(unsigned char *slot, const unsigned char *from, uint32_t first,
                                                uint32_t bytes) const {
        if (laneid != 0) return;
        unsigned char *to = slot + l.header_bytes + a.format.payload_bytes + first * a.format.scale_bytes;
        ptx::bulk_store(to, from, whole_units(bytes));
        ptx::bulk_commit();
    }
    // Quantises token t, row k of the handful, and stores it to its places here, if it has some, and to a slot, if there is one.
    __device__ __forceinline__ void quantise(uint32_t t, uint32_t k, const Leaving &e, const Places &own, unsigned char *slot) {
        if (tile_streamed) tile.reuse();
        tile_streamed = false; // from here on stores read the first half only
#pragma unroll 1
        for (uint32_t at = 0; at < a.format.payload_bytes; at += piece()) {
            const uint32_t bytes = piece_at(at), count = bytes / EPW_FP8_BLOCK, scales = count * a.format.scale_bytes;
            unsigned char *made = tile.half(0), *made_scales = made + kPiece;
            Quantiser<T> quantiser(row_of(t) + 2 * uint64_t(at), bytes, tile.half(1));
            tile.reuse();
            if (at == 0 && slot != nullptr) put_header(t, k, e);
            quantiser.run(made, made_scales, a.in.payload);
            // So that a peer does not see what was there before.
            if (scales + laneid < whole_units(scales)) made_scales[scales + laneid] = 0;
            tile.wrote();
            spread(own, k, at, made);
            spread_scales(own, k, true, made_scales, at / EPW_FP8_BLOCK, count);
            if (slot == nullptr) continue;
            send_piece(slot, at, made);
            send_scales(slot, made_scales, at / EPW_FP8_BLOCK, scales);
        }
    }
    // Passes the handful's rows on whose first lanes are given, of the lanes' tokens, to their places here and to slot(k).
    template <typename Slot>
    __device__ __forceinline__ void pass(uint32_t rows, uint32_t token, const Leaving &e, const Places &own, const Slot &slot) {
        const auto token_of = [&](uint32_t k) { return __shfl_sync(0xffffffffu, token, first_lane(k)); };
        if (quantises(a.in.payload)) {
            for (; rows != 0; rows &= rows - 1) {
                const uint32_t k = (__ffs(rows) - 1) >> shift;
                quantise(token_of(k), k, e, own, slot(k));
            }
            return;
        }
        tile_streamed = true;
        const uint32_t scales = shape.given;
        const bool by_words = shape.given_by_words;
        stream<true>(
            rows, scales, [&](uint32_t k) { return row_of(token_of(k)); },
            [&](uint32_t k) { return given_scales(token_of(k)).at; },
            [&](uint32_t k, uint32_t at, const unsigned char *half) {
                unsigned char *to = slot(k);
                if (to != nullptr && at == 0) {
                    put_header(token_of(k), k, e);
                    tile.wrote();
                }
                spread(own, k, at, half);
                if (to != nullptr) send_piece(to, at, half);
                if (a.format.scale_count == 0 || at + piece_at(at) != a.format.payload_bytes) return;
                const uint32_t t = token_of(k);
                if (to != nullptr && scales != 0) send_scales(to, half + a.format.payload_bytes, 0, scales);
                if (to != nullptr && scales == 0) send_given_scales(t, to + l.header_bytes + a.format.payload_bytes);
                const unsigned char *from = scales != 0 ? half + a.format.payload_bytes : given_scales(t).at;
                if (by_words) spread_scales(own, k, scales != 0, from, 0, a.format.scale_count);
            });
        if (!by_words) put_scales(rows, own, [&](uint32_t k) { return given_scales(token_of(k)); });
    }

    __device__ __forceinline__ void send(uint32_t peer, uint32_t row, uint32_t rows) {
        const uint64_t number = o.out_first[peer] + 1 + row;
        const uint32_t *tokens = r.sent_tokens + r.sent_first[peer] + row;
        ptx::fence_global_before_bulk(); // the slots were granted to this warp by generic loads
#pragma unroll 1
        for (uint32_t first = 0; first < rows; first += handful()) {
            const uint32_t some = min(handful(), rows - first);
            const uint32_t token = of < some ? tokens[first + of] : 0;
            const Leaving e = leaving(token, of < some && j < l.topk);
            Places own = {EPW_PREFILL_ELSEWHERE, -1, 0.0f};
            if (sends_own) own = claim_own(peer, token, e);
            const uint32_t all = __ballot_sync(0xffffffffu, of < some && j == 0);
            pass(all, token, e, own, [&](uint32_t k) { return slot_there(o, peer, number + first + k); });
        }
        ptx::bulk_wait_all();
        __syncwarp();
        post_written<Queues>(o, posts, laneid < rows, peer, number + laneid);
        if (laneid == 0) count_moved(o.state->peers[peer].send, rows);
    }

    // ---- to their places ----

    // Copies scales [first, first + count) of row k of the handful, which lie one behind the other, to its places: in bulk, if
    // they lie in the tile, and there by rows of whole units, or else by words.
    __device__ __forceinline__ void spread_scales(const Places &places, uint32_t k, bool in_tile, const unsigned char *from,
                                                  uint32_t first, uint32_t count) {
        const bool goes = places.goes() && of == k && shape.lists != nullptr;
        const uint32_t begin = first * shape.own, bytes = count * shape.own;
        if (in_tile && shape.row_units && (uint32_t(reinterpret_cast<uintptr_t>(from)) | begin | bytes) % 16 == 0) {
            if (!goes) return;
            ptx::bulk_store(shape.lists + places.place * shape.whole + begin, from, bytes);
            ptx::bulk_commit();
        } else {
            const uint32_t some = __ballot_sync(0xffffffffu, goes);
            if (some != 0 && bytes != 0) put_words(shape, some, places.place, *groups, from, begin, bytes);
        }
    }
    // The same of all scales of the rows whose first lanes are given, byte by byte. from(k): where those of row k lie.
    template <typename From> __device__ __forceinline__ void put_scales(uint32_t rows, const Places &places, const From &from) {
        if (shape.lists == nullptr || a.format.scale_count == 0) return;
#pragma unroll 1
        for (; rows != 0; rows &= rows - 1) {
            const uint32_t k = (__ffs(rows) - 1) >> shift, goes = __ballot_sync(0xffffffffu, places.goes() && of == k);
            if (goes != 0) put_bytes(shape, goes, places.place, *groups, from(k), 0, a.format.scale_count * a.format.scale_bytes);
        }
    }

    // What is said of the rows of a handful beside their payloads. `band`: of the lane's row.
    __device__ __forceinline__ void put_indices(const Places &places, uint32_t source, const Entering &e,
                                                const unsigned char *band) {
        const epw_prefill_output &out = a.out;
        const bool experts = by_expert(out.layout);
        if (places.goes()) {
            if (out.row_source) out.row_source[places.place] = int32_t(source);
            if (out.row_token) out.row_token[places.place] = int32_t(e.token);
            if (out.row_expert) out.row_expert[places.place] = places.expert;
            if (out.row_position) out.row_position[places.place] = int32_t(j);
            if (out.row_weight) out.row_weight[places.place] = places.weight;
        }
        const uint32_t whole = __shfl_sync(0xffffffffu, places.place, first_lane(of));
        if (!experts && whole < EPW_PREFILL_NO_PLACE && j < l.topk) {
            const size_t at = size_t(whole) * l.topk + j;
            if (out.row_experts) out.row_experts[at] = places.expert;
            if (out.row_weights) out.row_weights[at] = places.expert >= 0 ? places.weight : 0.0f;
        }
        if (out.sideband == nullptr || a.in.sideband_bytes == 0) return;
        for (uint32_t some = __ballot_sync(0xffffffffu, places.goes()); some != 0; some &= some - 1) {
            const uint32_t place = __shfl_sync(0xffffffffu, places.place, __ffs(some) - 1);
            const auto *from = reinterpret_cast<const unsigned char *>(
                __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(band), __ffs(some) - 1));
            auto *to = static_cast<unsigned char *>(out.sideband) + size_t(place) * a.in.sideband_bytes;
            for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) to[i] = from[i];
        }
    }

    // Stores a piece to all places of row k of the handful.
    __device__ __forceinline__ void spread(const Places &places, uint32_t k, uint32_t at, const unsigned char *from) {
        if (of != k || !places.goes() || a.out.rows == nullptr) return;
        auto *to = static_cast<unsigned char *>(a.out.rows) + uint64_t(places.place) * a.format.payload_bytes + at;
        ptx::bulk_store(to, from, piece_at(at));
        ptx::bulk_commit();
    }

    // Notes where the lane's row is, for combine, and returns where it goes.
    __device__ __forceinline__ Places place(uint32_t source, uint32_t row, const Entering &e) {
        const uint32_t number = source * a.call.lane.max_tokens + row;
        const size_t at = size_t(number) * l.topk + j;
        const bool has = e.good && j < l.topk;
        Places places = {EPW_PREFILL_ELSEWHERE, e.expert, e.weight};
        if (has && a.again) {
            places.place = r.places[at];
            if (a.in.topk_weights == nullptr) places.weight = r.row_weights[at];
        } else if (has && e.expert >= 0) {
            const size_t of_source = size_t(source) * l.local_experts + uint32_t(e.expert);
            places.place = by_expert(a.out.layout) ? expert_place(a.out, r, uint32_t(e.expert), r.base[of_source] + e.index)
                                                   : source_place(source, row);
        }
        if (has) {
            r.places[at] = places.place;
            r.row_weights[at] = places.weight;
            if (j == 0) r.row_token[number] = e.token;
        }
        if (!by_expert(a.out.layout)) places.place = has && j == 0 ? source_place(source, row) : EPW_PREFILL_ELSEWHERE;
        if (places.goes() && shape.may_group) {
            const uint32_t list = by_expert(a.out.layout) ? uint32_t(e.expert) : source;
            *groups = InGroup::of(places.place - uint32_t(first_of_list(a, list)), a.call.lane.grouped[list]);
        }
        return places;
    }
    __device__ __forceinline__ uint32_t source_place(uint32_t source, uint32_t row) const {
        const uint64_t at = first_of_source(a.out.layout, r, a.call.lane.max_tokens, source) + row;
        return at < a.out.capacity ? uint32_t(at) : EPW_PREFILL_NO_PLACE;
    }

    // ---- from rings ----

    // Reads the header of the lane's row once. It is good if it is a row of this operation, whose entries for this rank are among
    // those that its source has announced: then its places are its source's, whatever else is wrong with it.
    __device__ __forceinline__ Entering admit(uint32_t source, uint32_t row, const unsigned char *slot, bool inside) {
        const epw_row_head head = read_head(slot);
        const uint32_t local = l.local_experts, number = source * a.call.lane.max_tokens + row;
        Entering e = {head.token, -1, 0, 0.0f, false};
        bool good = inside && head.kind == EPW_MESSAGE_ROW && head.op == o.op && head.format == a.format.hash;
        good = good && head.token < a.call.lane.max_tokens;
        bool fits = true;
        if (j < l.topk) {
            const unsigned char *entry = slot + sizeof(epw_row_head) + j * sizeof(epw_entry);
            const int64_t id = int64_t(int32_t(read_once(entry))) - int64_t(o.rank) * local;
            e.weight = __uint_as_float(read_once(entry + 4));
            e.index = read_once(slot + sizeof(epw_row_head) + l.topk * sizeof(epw_entry) + j * 4);
            if (id >= 0 && id < local) e.expert = int32_t(id);
            if (e.expert >= 0) fits = e.index < r.counts[size_t(source) * local + uint32_t(e.expert)];
            // Of a routing that is used again: the entries that have places are the same.
            if (a.again && inside)
                fits = fits && (e.expert >= 0) == (r.places[size_t(number) * l.topk + j] != EPW_PREFILL_ELSEWHERE);
        }
        // No expert twice. Experts of different rows are told apart by lanes, of which no row has those of another.
        const uint32_t same = __match_any_sync(0xffffffffu, e.expert >= 0 ? uint32_t(e.expert) : 0x80000000u | laneid);
        fits = fits && __popc(same & row_lanes()) == 1;
        if (a.again && good) good = e.token == r.row_token[number];
        const uint32_t unfit = __ballot_sync(0xffffffffu, !fits), asked = __ballot_sync(0xffffffffu, e.expert >= 0);
        e.good = good && (unfit & row_lanes()) == 0 && (asked & row_lanes()) != 0;
        return e;
    }

    template <typename Payload>
    __device__ __forceinline__ void take_payloads(uint32_t rows, const Places &places, const Payload &payload) {
        const uint32_t scales = shape.received;
        tile_streamed = true;
        stream<false>(rows, scales, payload, payload, [&](uint32_t k, uint32_t at, const unsigned char *half) {
            spread(places, k, at, half);
            if (a.format.scale_count == 0 || at + piece_at(at) != a.format.payload_bytes) return;
            if (!shape.by_words) return;
            const unsigned char *in = scales != 0 ? half : payload(k);
            spread_scales(places, k, scales != 0, in + a.format.payload_bytes, 0, a.format.scale_count);
        });
        if (shape.by_words) return;
        put_scales(rows, places, [&](uint32_t k) { return ScalesAt{payload(k) + a.format.payload_bytes, shape.own}; });
    }

    __device__ __forceinline__ void take(uint32_t source, uint32_t row, uint32_t rows) {
        const uint64_t number = o.in_first[source] + 1 + row;
        ptx::fence_global_before_bulk(); // the rows were acquired by generic loads
#pragma unroll 1
        for (uint32_t first = 0; first < rows; first += handful()) {
            const uint32_t some = min(handful(), rows - first), own = min(of, some - 1), own_row = row + first + own;
            const unsigned char *slot = slot_here<Queues>(o, source, number + first + own);
            const Entering e = admit(source, own_row, slot, of < some);
            if (of < some && j == 0 && !e.good) refuse(o, source, own_row, slot);
            __syncwarp();
            const Places places = place(source, own_row, e);
            put_indices(places, source, e, slot + sizeof(epw_row_head) + l.topk * (sizeof(epw_entry) + 4));
            const uint32_t good = __ballot_sync(0xffffffffu, e.good && of < some && j == 0);
            const auto payload = [&](uint32_t k) { return slot_here<Queues>(o, source, number + first + k) + l.header_bytes; };
            take_payloads(good, places, payload);
        }
        __syncwarp(); // all lanes have read the slots
        post_read<Queues>(o, posts, laneid < rows, source, number + laneid);
        if (laneid == 0) count_moved(o.state->peers[source].take, rows);
    }

    // ---- of this rank itself ----

    // Those of a word of claims that `rows` names, which this mover has taken up.
    __device__ __forceinline__ void take_own(uint32_t word, uint32_t rows) {
        const uint32_t begin = r.sent_first[o.rank];
#pragma unroll 1
        for (; rows != 0; rows &= rows - 1) {
            uint32_t mine = rows; // without those of other lanes before
            for (uint32_t k = 0; k + 1 < handful(); k++) {
                if (k < of) mine &= mine - 1;
                rows &= rows - 1;
            }
            const bool has = mine != 0;
            const uint32_t number = word * 32 + (has ? __ffs(mine) - 1 : 0);
            const uint32_t token = has ? r.sent_tokens[begin + number] : 0;
            const Leaving e = leaving(token, has && j < l.topk);
            const Places places = place_own(number, own_entry(token, e, has));
            const uint32_t rows_here = __ballot_sync(0xffffffffu, has && j == 0);
            pass(rows_here, token, e, places, [](uint32_t) -> unsigned char * { return nullptr; });
        }
    }

    // ---- all of it ----

    // It is known where rows go: acquires that. The first time, nothing of this rank itself has been looked for.
    __device__ __forceinline__ bool sees_places(OwnRows &own, uint32_t placed) {
        if (own.known || !__shfl_sync(0xffffffffu, placed, 0)) return own.known;
        own.known = __all_sync(0xffffffffu, ptx::load_acquire_gpu(&o.state->placed) != 0);
        if (!own.known) return false;
        own.rows = r.sent_first[o.rank + 1] - r.sent_first[o.rank];
        own.left = (own.rows + 31) / 32;
        own.word = own.left > 0 ? mover(o) % own.left : 0;
        own.turn = mover(o) * 7;
        return true;
    }

    // Lines: those to each peer, then those from each. Rows of this rank itself come last.
    __device__ __forceinline__ void run(uint32_t *kept, const Sending &sending) {
        epw_prefill_gpu_peer *peers = o.state->peers;
        Lines lines = {o, kept, 2 * o.ranks};
        const bool receives = o.does(EPW_PREFILL_RECEIVES);
        lines.begin((sending.first ? 0 : o.ranks) + o.rank + 1 + mover(o), [&](uint32_t line) {
            return line != o.rank && line != o.ranks + o.rank && (line < o.ranks ? sending.sends : receives);
        });
        const auto find = [&](uint32_t line) -> epw_prefill_line & {
            return line < o.ranks ? peers[line].send : peers[line - o.ranks].take;
        };
        const auto wait = [&](uint32_t line, uint32_t row) -> Flag {
            if (line < o.ranks) return room_for(o, line, o.out_first[line] + 1 + row);
            return arrival_of(o, line - o.ranks, o.in_first[line - o.ranks] + 1 + row);
        };
        const auto prefers = [&](uint32_t line) { return (line < o.ranks) == sending.first; };
        OwnRows own = {};
        bool cleared = !receives;
#pragma unroll 1
        for (;;) { // ends when no line has any more rows: attendants' waits are bounded
            const bool asks = receives && !own.known;
            const uint32_t placed = asks ? ptx::load_relaxed_gpu(&o.state->placed) : 0; // comes while a row is looked for
            const Ticket ticket = lines.pick(find, wait, prefers);
            const bool known = receives && sees_places(own, placed);
            sends_own = known && sending.sends && shares_own();
            if (ticket.rows > 0) {
                if (ticket.line < o.ranks) {
                    send(ticket.line, ticket.row, ticket.rows);
                } else {
                    take(ticket.line - o.ranks, ticket.row, ticket.rows);
                }
                continue;
            }
            uint32_t word = 0;
            const uint32_t rows = known ? own.take(o, min(o.batch, 2u), word) : 0;
            if (rows != 0) {
                take_own(word, rows);
            } else if (known && !cleared) {
                __syncwarp();
                clear_rest(a, o, mover(o), o.movers);
                cleared = true;
            } else if (cleared && lines.have_ended()) {
                break;
            } else {
                pause();
            }
        }
        ptx::bulk_wait_all();
        __syncwarp();
        if (laneid == 0) ptx::add_release_block(&o.ended, 1);
    }
};

// Turns the groups of scales, see scales.cuh: a share of them, that of warp `warp` of `warps`. `memory`: of this warp. Their rows
// are there.
__device__ __noinline__ inline void turn_groups(const epw_prefill_dispatch_args &a, const Prefill &o, const ScaleShape &s,
                                                unsigned char *memory, uint32_t warp, uint32_t warps) {
    ptx::assume_shared(&s);
    static_assert(kGroupBytes <= 2 * kHalf, "a group is turned in a tile");
    const uint32_t lists = by_expert(a.out.layout) ? o.layout().local_experts : o.ranks, *grouped = a.call.lane.grouped;
    uint32_t most = 0; // rows of a list
    for (uint32_t list = threadIdx.x % 32; list < lists; list += 32) most = max(most, grouped[list]);
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
#pragma unroll 1
    for (uint32_t i = warp; i < lists * ((most + kGroup - 1) / kGroup); i += warps) {
        const uint32_t list = i % lists, first = i / lists * kGroup, rows = grouped[list];
        if (first >= rows) continue;
        turn_group(s, uint32_t(first_of_list(a, list)) + first, min(kGroup, rows - first), reinterpret_cast<uint32_t *>(memory));
    }
}

} // namespace epw
