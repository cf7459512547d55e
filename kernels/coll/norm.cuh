// An all-reduce by packets and, in the same kernel, what follows it: the residual is added, and each row is normalised and
// optionally quantised, by the rules of c/numerics/norm.h. A row is cut into pieces of 32 words, and each piece has a warp of its
// own, so that a few rows keep as many SMs busy as the sum alone does. The warps of a row tell each other the sums of their
// squares by packets, in this rank's own window. Of more rows the sum is an operation like others, and each row has a block of a
// kernel that follows it.
#pragma once

#include "kernels/coll/small.cuh"
#include "kernels/numerics/number.cuh"

namespace epw {

constexpr uint32_t kNormWarps = kSmallThreads / 32;
constexpr uint32_t kNormPieces = EPW_NORM_HIDDEN_MAX / 4 / 32; // at most, of a row
static_assert(EPW_FP8_BLOCK == 4 * 32, "a scale is a warp's");

// The sum over the lanes of a warp, in the order of the rules, for all of them.
__device__ __forceinline__ float sum_of_lanes(float part) {
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, step));
    return part;
}

template <typename T> __device__ __forceinline__ uint64_t pack_word(const float (&x)[4]) {
    return uint64_t(narrow_pair<T>(x[2], x[3])) << 32 | narrow_pair<T>(x[0], x[1]);
}
template <typename Pair> __device__ __forceinline__ void widen_word(uint64_t word, float (&x)[4]) {
    const uint32_t low = uint32_t(word), high = uint32_t(word >> 32);
    x[0] = Pair::low(low);
    x[1] = Pair::high(low);
    x[2] = Pair::low(high);
    x[3] = Pair::high(high);
}

template <typename Pair> __device__ __forceinline__ Scale scale_of(const epw_coll_norm_args &a, uint32_t largest) {
    const float amax = fmaxf(fmaxf(fabsf(Pair::low(largest)), fabsf(Pair::high(largest))), 1e-4f); // fmaxf drops a NaN
    return a.payload == EPW_PAYLOAD_FP8_F32 ? scale_f32(amax) : scale_power_of_two(amax);
}
// That of the word's piece.
__device__ __forceinline__ void write_scale(const epw_coll_norm_args &a, uint64_t row, uint32_t word, const Scale &s) {
    const uint64_t scale = row * (a.hidden / EPW_FP8_BLOCK) + word / 32;
    if (a.payload == EPW_PAYLOAD_FP8_UE8M0) {
        a.scales[scale] = static_cast<unsigned char>(__float_as_uint(s.scale) >> 23);
    } else {
        reinterpret_cast<float *>(a.scales)[scale] = s.scale;
    }
}

// Quantises a word to four bytes; the 128 channels of a warp share a scale. Called by whole warps.
template <typename Pair>
__device__ __forceinline__ void write_quantised(const epw_coll_norm_args &a, uint64_t row, uint32_t word, uint64_t y) {
    const uint32_t low = uint32_t(y), high = uint32_t(y >> 32);
    uint32_t largest = Pair::larger(low, high);
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
        largest = Pair::larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const Scale s = scale_of<Pair>(a, largest);
    reinterpret_cast<uint32_t *>(a.out + row * a.hidden)[word] = quantise_four<Pair>(low, high, s.inverse);
    if (threadIdx.x % 32 == 0) write_scale(a, row, word, s);
}

// The word of a row that a lane has, if it has one.
struct NormWord {
    uint64_t row;
    uint32_t word;
    bool inside;

    __device__ __forceinline__ NormWord(const epw_coll_norm_args &a, uint64_t row, uint32_t piece)
        : row(row), word(piece * 32 + threadIdx.x % 32), inside(word < a.hidden / 4) {}
    __device__ __forceinline__ uint64_t at(const epw_coll_norm_args &a) const { return row * (a.hidden / 4) + word; }
    __device__ __forceinline__ uint64_t load(const unsigned char *from, uint64_t i) const {
        return inside && from != nullptr ? reinterpret_cast<const uint64_t *>(from)[i] : 0;
    }
};

// The word that is normalised: the sum and the residual, which becomes it.
template <typename T, typename Pair>
__device__ __forceinline__ uint64_t add_residual(const epw_coll_norm_args &a, uint64_t sum, uint64_t residual) {
    if (a.residual == nullptr) return sum;
    float x[4], y[4];
    widen_word<Pair>(sum, x);
    widen_word<Pair>(residual, y);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) x[i] = __fadd_rn(x[i], y[i]);
    return pack_word<T>(x);
}

// The sum of a word's squares; of all words of the warp. Words beyond the row are zero and change nothing.
template <typename Pair> __device__ __forceinline__ float squares_of_word(uint64_t word) {
    float x[4], part = 0;
    widen_word<Pair>(word, x);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) part = __fadd_rn(part, __fmul_rn(x[i], x[i]));
    return part;
}
template <typename Pair> __device__ __forceinline__ float squares_of(uint64_t word) {
    return sum_of_lanes(squares_of_word<Pair>(word));
}

__device__ __forceinline__ float root_of(const epw_coll_norm_args &a, float squares) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, float(a.hidden)), a.epsilon)));
}

template <typename T, typename Pair> __device__ __forceinline__ uint64_t normalised(uint64_t x, uint64_t weights, float root) {
    float y[4], weight[4];
    widen_word<Pair>(x, y);
    widen_word<Pair>(weights, weight);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) y[i] = __fmul_rn(__fmul_rn(y[i], root), weight[i]);
    return pack_word<T>(y);
}

// Writes the lane's word of the residual and of the result. Called by whole warps.
template <typename T, typename Pair>
__device__ __forceinline__ void write_normalised(const epw_coll_norm_args &a, const NormWord &w, uint64_t x, uint64_t weights,
                                                 float root) {
    const uint64_t packed = normalised<T, Pair>(x, weights, root);
    if (w.inside && a.residual != nullptr) reinterpret_cast<uint64_t *>(a.residual)[w.at(a)] = x;
    if (a.payload != EPW_PAYLOAD_SAME) {
        write_quantised<Pair>(a, w.row, w.word, packed); // rows of whole pieces
    } else if (w.inside) {
        reinterpret_cast<uint64_t *>(a.out)[w.at(a)] = packed;
    }
}

__device__ __forceinline__ uint32_t pieces_of(const epw_coll_norm_args &a) { return (a.hidden / 4 + 31) / 32; } // of a row

// ---- pieces of rows ----

// Where the warps of a row find the squares of its pieces: each in place of the piece's first packet from this rank, which nobody
// sends.
__device__ __forceinline__ unsigned char *squares_at(const Collective &c, const epw_coll_norm_args &a, uint64_t row) {
    return c.args.window + packet_of(c, c.rank, row * (a.hidden / 4));
}
constexpr uint32_t kSquaresStride = 32 * EPW_COLL_PACKET;

// Waits until other warps of this rank have told the squares of this lane's pieces, and adds them to `part`. Returns false if
// there are none: the sum of a piece lacks a rank, or calls differ. Bounded: warps tell their squares once they have their words
// or have given their peers up. Those that take longer than two waits, because they have not begun or lose several peers one
// after the other, are not waited for; then this rank is left out too.
__device__ __noinline__ inline bool await_squares(Collective &c, const unsigned char *from, uint32_t pieces, float &part) {
    const uint64_t began = ptx::global_timer_ns(), most = 2 * EPW_WAIT_DEADLINES_MAX * c.deadline;
    part = 0;
#pragma unroll 1
    for (uint32_t piece = threadIdx.x % 32; piece < pieces;) {
        const Packet packet = packet_at(from);
        if (packet.tag == c.tag) {
            part = __fadd_rn(part, __uint_as_float(uint32_t(packet.data)));
            from += 32 * kSquaresStride;
            piece += 32;
            continue;
        }
        if (packet.tag == lacking_tag(c) || *static_cast<volatile uint32_t *>(&c.stopped)) return false;
        if (ptx::load_relaxed_gpu(&c.args.state->halted)) return false;
        if (ptx::global_timer_ns() - began < most) continue;
        insert(c.lacking, c.rank);
        atomicOr(&c.troubled, 1u);
        return false;
    }
    return true;
}

// The sum of the squares of a whole row. Returns false if there is none. Called by whole warps.
__device__ __forceinline__ bool add_squares(Collective &c, const epw_coll_norm_args &a, uint64_t row, uint32_t pieces,
                                            float &squares) {
    constexpr uint32_t kEach = kNormPieces / 32, kLooks = 64; // pieces of a lane
    const uint32_t laneid = threadIdx.x % 32;
    const unsigned char *from = squares_at(c, a, row) + laneid * kSquaresStride;
    const uint64_t tag = c.tag;
    Packet packets[kEach];
    bool whole = false;
#pragma unroll 1
    for (uint32_t i = 0; i < kLooks && !whole; i++) {
        whole = true;
#pragma unroll
        for (uint32_t k = 0; k < kEach; k++) {
            packets[k] = {0, tag};
            if (laneid + k * 32 < pieces) packets[k] = packet_at(from + k * 32 * kSquaresStride);
            whole = whole && packets[k].tag == tag;
        }
    }
    float part = 0;
#pragma unroll
    for (uint32_t k = 0; k < kEach; k++) part = __fadd_rn(part, __uint_as_float(uint32_t(packets[k].data)));
    if (!whole) whole = await_squares(c, from, pieces, part);
    squares = sum_of_lanes(part);
    return __all_sync(kWholeWarp, whole);
}

// A warp has one piece at most. It tells its squares before it awaits those of others.
template <typename T, typename Pair> __device__ __forceinline__ void run_norm(Collective &c, const epw_coll_norm_args &a) {
    tell_calls_aside(c);
    await_calls_aside(c);
    if (exchanges_calls()) return;
    const uint32_t pieces = pieces_of(a), n = blockIdx.x * kNormWarps + threadIdx.x / 32;
    if (n >= uint32_t(a.rows) * pieces) return;
    const Folding f = folded_here(c);
    const NormWord w(a, n / pieces, n % pieces);
    const WordsAt words = {w.at(a), 1, w.inside ? w.at(a) + 1 : 0};
    const uint64_t residual = w.load(a.residual, w.at(a)), weight = w.load(a.weight, w.word);
    send_words<1>(c, words);
    uint64_t sum[1] = {w.load(f.own, w.at(a))};
    bool whole = fold_words<T, 1, true>(c, words, sum);
    const uint64_t x = w.inside ? add_residual<T, Pair>(a, sum[0], residual) : 0;
    float squares = squares_of<Pair>(x);
    __syncwarp(); // what any lane has given up is seen by all
    whole = __all_sync(kWholeWarp, whole && !any(c.active - c.reachable));
    if (threadIdx.x % 32 == 0) {
        put_packet(squares_at(c, a, w.row) + w.word / 32 * kSquaresStride, __float_as_uint(squares),
                   whole ? c.tag : lacking_tag(c));
    }
    if (w.inside) reinterpret_cast<uint64_t *>(f.out)[w.at(a)] = sum[0];
    if (add_squares(c, a, w.row, pieces, squares)) write_normalised<T, Pair>(a, w, x, weight, root_of(a, squares));
}

// ---- whole rows ----

// Two adjacent words. The rules add the sums of their squares first, so a warp has two pieces, one in each half of its lanes.
struct NormPair {
    uint64_t words[2];
};

// A block's threads form teams, each of which normalises rows of its own. Of a row, warp w of a team has pairs of pieces w, w +
// kWarps and so on, kNormPairs at most. A thread loads its pairs of the next row before it normalises those of this one.
constexpr uint32_t kNormThreads = 1024, kNormPairs = 2;
static_assert(8 * kNormPairs * kNormThreads >= EPW_NORM_HIDDEN_MAX, "a team of all threads has the longest row");

template <uint32_t kTeams> struct NormRows {
    static constexpr uint32_t kWarps = kNormThreads / 32 / kTeams; // of a team
    const epw_coll_norm_args &a;
    const uint32_t words;                                               // of a row
    NormPair weight[kNormPairs], sum[kNormPairs], residual[kNormPairs]; // the latter two: of the next row
    NormPair x[kNormPairs];                                             // what is normalised

    __device__ __forceinline__ explicit NormRows(const epw_coll_norm_args &a) : a(a), words(a.hidden / 4) {
#pragma unroll
        for (uint32_t k = 0; k < kNormPairs; k++) weight[k] = load(a.weight, word(k), k);
    }
    __device__ __forceinline__ void load(uint64_t row) {
#pragma unroll
        for (uint32_t k = 0; k < kNormPairs; k++) {
            sum[k] = load(a.common.recv, at(row, k), k);
            residual[k] = load(a.residual, at(row, k), k);
        }
    }
    // Of the warp, and of the lane.
    static __device__ __forceinline__ uint32_t first(uint32_t k) { return 64 * (threadIdx.x / 32 % kWarps + k * kWarps); }
    static __device__ __forceinline__ uint32_t word(uint32_t k) { return first(k) + 2 * (threadIdx.x % 32); }
    __device__ __forceinline__ uint64_t at(uint64_t row, uint32_t k) const { return row * words + word(k); }
    __device__ __forceinline__ bool has(uint32_t k) const { return first(k) < words; }   // the same for the whole warp
    __device__ __forceinline__ bool inside(uint32_t k) const { return word(k) < words; } // both are, or none
    // Rows are aligned to 16 bytes.
    __device__ __forceinline__ NormPair load(const unsigned char *from, uint64_t i, uint32_t k) const {
        if (!inside(k) || from == nullptr) return {};
        const uint4 v = *reinterpret_cast<const uint4 *>(from + 8 * i);
        return {{uint64_t(v.y) << 32 | v.x, uint64_t(v.w) << 32 | v.z}};
    }
    static __device__ __forceinline__ uint4 cells(const NormPair &p) {
        return {uint32_t(p.words[0]), uint32_t(p.words[0] >> 32), uint32_t(p.words[1]), uint32_t(p.words[1] >> 32)};
    }
    static __device__ __forceinline__ void store(unsigned char *to, uint64_t i, const NormPair &pair) {
        *reinterpret_cast<uint4 *>(to + 8 * i) = cells(pair);
    }
    // Turns to the row that has been loaded.
    template <typename T, typename Pair> __device__ __forceinline__ void turn() {
#pragma unroll
        for (uint32_t k = 0; k < kNormPairs; k++) {
#pragma unroll
            for (uint32_t w = 0; w < 2; w++) x[k].words[w] = add_residual<T, Pair>(a, sum[k].words[w], residual[k].words[w]);
        }
    }
    template <typename Pair> __device__ __forceinline__ void tell_squares(float (&of_pieces)[kNormPieces]) const {
        const uint32_t laneid = threadIdx.x % 32;
#pragma unroll
        for (uint32_t k = 0; k < kNormPairs; k++) {
            if (!has(k)) continue;
            float part = __fadd_rn(squares_of_word<Pair>(x[k].words[0]), squares_of_word<Pair>(x[k].words[1]));
#pragma unroll
            for (uint32_t step = 1; step < 16; step *= 2) part = __fadd_rn(part, __shfl_xor_sync(kWholeWarp, part, step));
            if (laneid % 16 == 0 && inside(k)) of_pieces[word(k) / 32] = part;
        }
    }
    // Behind a barrier after that.
    template <typename T, typename Pair>
    __device__ __forceinline__ void normalise(uint64_t row, const float (&of_pieces)[kNormPieces]) const {
        const uint32_t pieces = pieces_of(a);
        float part = 0;
#pragma unroll
        for (uint32_t k = 0; k < kNormPieces / 32; k++) {
            const uint32_t piece = threadIdx.x % 32 + k * 32;
            if (piece < pieces) part = __fadd_rn(part, of_pieces[piece]);
        }
        const float root = root_of(a, sum_of_lanes(part));
#pragma unroll
        for (uint32_t k = 0; k < kNormPairs; k++) {
            if (has(k)) write<T, Pair>(row, k, root);
        }
    }
    // Called by whole warps.
    template <typename T, typename Pair> __device__ __forceinline__ void write(uint64_t row, uint32_t k, float root) const {
        NormPair y;
#pragma unroll
        for (uint32_t w = 0; w < 2; w++) y.words[w] = normalised<T, Pair>(x[k].words[w], weight[k].words[w], root);
        if (inside(k) && a.residual != nullptr) store(a.residual, at(row, k), x[k]);
        if (a.payload == EPW_PAYLOAD_SAME) {
            if (inside(k)) store(a.out, at(row, k), y);
            return;
        }
        const uint4 values = cells(y);
        uint32_t largest = Pair::larger(Pair::larger(values.x, values.y), Pair::larger(values.z, values.w));
#pragma unroll
        for (uint32_t step = 8; step > 0; step /= 2) {
            largest = Pair::larger(largest, __shfl_xor_sync(kWholeWarp, largest, step));
        }
        const Scale s = scale_of<Pair>(a, largest);
        if (!inside(k)) return;
        reinterpret_cast<uint2 *>(a.out + row * a.hidden)[word(k) / 2] = quantise_eight<Pair>(values, s.inverse);
        if (threadIdx.x % 16 == 0) write_scale(a, row, word(k), s);
    }
};
// The sums of the squares of a row's pieces, of one row and the next in turn.
using NormSquares = float[2][kNormPieces];

// Normalises after a sum.
template <typename T, typename Pair, uint32_t kTeams>
__device__ __forceinline__ void run_norm_alone(const epw_coll_norm_args &a, NormSquares (&squares)[kTeams]) {
    const epw_coll_args &common = a.common;
    if (ptx::load_relaxed_gpu(&common.state->halted) || any(load_now(common.shared->suspects) & common.peers->active)) return;
    constexpr uint32_t kThreads = kNormThreads / kTeams;
    const uint32_t team = threadIdx.x / kThreads;
    const uint64_t first = blockIdx.x + team * gridDim.x, step = blockDim.x / kThreads * gridDim.x;
    NormRows<kTeams> r(a);
    uint32_t turn = 0;
    if (first < a.rows) r.load(first);
#pragma unroll 1
    for (uint64_t row = first; row < a.rows; row += step, turn ^= 1) {
        r.template turn<T, Pair>();
        if (row + step < a.rows) r.load(row + step);
        r.template tell_squares<Pair>(squares[team][turn]);
        ptx::team_barrier(1 + team, kThreads);
        r.template normalise<T, Pair>(row, squares[team][turn]);
    }
}

} // namespace epw
