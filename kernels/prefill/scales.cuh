// Scales of received rows, where they lie and how they come there.
//
// By row a row's scales lie one behind the other. By column the first scales of a list's rows do, then the second ones: stored
// row by row, each would be a memory transaction of its own. Where many rows come, the rows of a list are grouped, a *group*
// being 32 that follow each other. Until all are there, the scales of a group lie row by row in the memory of the group itself,
// which is as large; then groups are turned in place, each by a warp. Memory of rows of which none comes keeps its size but not
// its contents.
#pragma once

#include "kernels/prefill/tile.cuh"

namespace epw {

// Scales of a row, in any memory: of scale i byte b lies at `at + i * stride + b`.
struct ScalesAt {
    const unsigned char *at;
    uint64_t stride;
};

constexpr uint32_t kGroup = 32;          // rows
constexpr uint32_t kGroupedScales = 115; // the most words of scales of a row that is grouped
constexpr uint32_t kGroupedRows = 32;    // rows for each block of an operation whose rows are grouped, at least
// Memory in which a group is turned: a word more for each row than it has, so that a column's words lie in different banks.
constexpr uint32_t kGroupBytes = kGroup * kGroupedScales * 4;
static_assert(kGroupedScales % 2 == 1, "scales take an odd number of words of a bank each");

// Where a row's words are among those of the rows that they are stored with: of a group; alone, by column; alone, by row. Word n
// of such rows, counted row by row, is that of row n - e * rows() of column e, where e = n / rows(), or 0 by row.
struct InGroup {
    uint32_t bits;

    __device__ __forceinline__ uint32_t rows() const { return bits & 0x3f; }
    __device__ __forceinline__ uint32_t row() const { return bits >> 6 & 0x1f; }
    __device__ __forceinline__ uint32_t column_of(uint32_t n) const { return rows() == 1 ? n : n * (bits >> 11) >> 20; }

    static __device__ __forceinline__ InGroup by_row() { return {0}; }
    static __device__ __forceinline__ InGroup alone() { return of(0, 1); }
    // Row `row` of a list of which so many are grouped.
    static __device__ __forceinline__ InGroup of(uint32_t row, uint32_t grouped) {
        if (row >= grouped) return alone();
        const uint32_t rows = min(kGroup, grouped - (row & ~(kGroup - 1)));
        static_assert(kGroup == 32 && uint64_t(kGroup) * kGroupedScales * kGroup < 1 << 20, "the quotient is exact, and fits");
        return {rows | row % kGroup << 6 | ((1 << 20) + rows - 1) / rows << 11};
    }
};

// What is the same for the scales of all rows. In shared memory, where movers look it up.
struct ScaleShape {
    unsigned char *lists;
    uint64_t column, whole; // bytes of a column, and of a row by row
    uint32_t own, each;     // bytes of a scale as it travels, and of the element there that has it, or four of a byte
    uint32_t elements;      // of a row
    uint32_t capacity;
    uint32_t given, received; // bytes that pass through the tile behind a row, of the caller's own and of a row in a slot; or 0
    bool by_row, by_list;     // the order of scales; a list has its own columns
    bool by_words, may_group; // scales are put by words; and may be grouped
    bool given_by_words;      // those of the caller's own rows are
    bool row_units;           // a row's scales are whole units, whatever its place

    static __device__ __forceinline__ ScaleShape of(const epw_prefill_dispatch_args &a) {
        const bool packed = a.in.payload == EPW_PAYLOAD_FP8_UE8M0;
        ScaleShape s;
        s.lists = static_cast<unsigned char *>(a.out.scales);
        s.own = a.format.scale_bytes;
        s.each = packed ? 4 : s.own;
        s.elements = packed ? (a.format.scale_count + 3) / 4 : a.format.scale_count;
        s.capacity = uint32_t(a.out.capacity);
        s.column = (a.out.capacity * s.each + 15) & ~uint64_t(15);
        s.whole = uint64_t(s.elements) * s.each;
        s.by_row = a.out.scale_order == 1;
        s.by_list = a.out.layout == EPW_EXPERT_MAJOR;
        s.by_words = s.each == 4 || (s.by_row && s.each % 4 == 0);
        s.row_units = s.by_row && (reinterpret_cast<uintptr_t>(s.lists) | s.whole) % 16 == 0;
        s.given_by_words = s.by_words && a.in.scale_col_stride == s.own;
        const uint32_t bytes = a.format.scale_count * a.format.scale_bytes, units = whole_units(bytes);
        s.received = a.format.payload_bytes <= kPiece && a.format.payload_bytes + units <= kHalf ? units : 0;
        const bool aligned = (reinterpret_cast<uintptr_t>(a.in.scales) | a.in.scale_row_stride | bytes) % 16 == 0;
        s.given = aligned && a.in.scale_col_stride == s.own ? s.received : 0;
        s.may_group = s.lists != nullptr && !s.by_row && s.each == 4 && s.elements > 0 && s.elements < kGroupedScales;
        return s;
    }

    // The first column of the list of a place, from that place on.
    __device__ __forceinline__ unsigned char *first_column(uint32_t place) const {
        const uint32_t list = by_list ? place / capacity : 0;
        return lists + uint64_t(list) * elements * column + uint64_t(place - list * capacity) * each;
    }
    // Word i of the scales of the row at a place is put at put_at(base(place, in), in, i).
    __device__ __forceinline__ unsigned char *base(uint32_t place, InGroup in) const {
        return by_row ? lists + place * whole : first_column(place - in.row());
    }
    __device__ __forceinline__ unsigned char *put_at(unsigned char *base, InGroup in, uint32_t i) const {
        const uint32_t n = in.row() * elements + i, of_column = in.column_of(n);
        return base + of_column * column + (n - of_column * in.rows()) * 4;
    }
};

// Puts `bytes` of a row's scales, the first of which is byte `begin` of them, to the places of lanes that are in `goes`, byte by
// byte, with zeros behind them up to a whole element. Called by the whole warp.
__device__ __noinline__ inline void put_bytes(const ScaleShape &s, uint32_t goes, uint32_t place, InGroup in, ScalesAt from,
                                              uint32_t begin, uint32_t bytes) {
    const uint32_t laneid = threadIdx.x % 32, own = s.own, each = s.each, end = (bytes + each - 1) / each * each;
    for (uint32_t n = laneid; n - laneid < end; n += 32) {
        const unsigned char value = n < bytes ? from.at[n / own * from.stride + n % own] : 0;
        for (uint32_t left = goes; left != 0; left &= left - 1) {
            const uint32_t at = __shfl_sync(0xffffffffu, place, __ffs(left) - 1), i = begin + n;
            const InGroup group = {__shfl_sync(0xffffffffu, in.bits, __ffs(left) - 1)};
            if (n >= end) continue;
            unsigned char *base = s.base(at, group);
            if (s.by_row) {
                base[i] = value;
            } else if (each == 4) {
                s.put_at(base, group, i / 4)[i % 4] = value;
            } else {
                base[i / each * s.column + i % each] = value;
            }
        }
    }
}

// The same of scales that lie one behind the other, and are put by words.
__device__ __forceinline__ void put_words(const ScaleShape &s, uint32_t goes, uint32_t place, InGroup in,
                                          const unsigned char *from, uint32_t begin, uint32_t bytes) {
    constexpr uint32_t all = 0xffffffffu;
    const uint32_t laneid = threadIdx.x % 32;
    const unsigned long long base = goes >> laneid & 1 ? reinterpret_cast<unsigned long long>(s.base(place, in)) : 0;
    const uint32_t first = begin / 4;
    const auto put_at = [&](uint32_t lane, uint32_t i) {
        auto *of_lane = reinterpret_cast<unsigned char *>(__shfl_sync(all, base, lane));
        return s.put_at(of_lane, {__shfl_sync(all, in.bits, lane)}, first + i);
    };
    // Units that do not part, half a warp for a place.
    const bool whole = (reinterpret_cast<uintptr_t>(from) | begin | bytes | s.elements * 4 | in.rows() * 4 | base) % 16 == 0;
    const uint32_t units = goes & __ballot_sync(all, whole);
#pragma unroll 1
    for (uint32_t n = laneid % 16 * 16; units != 0 && n - laneid % 16 * 16 < bytes; n += 256) {
        const uint4 value = n < bytes ? *reinterpret_cast<const uint4 *>(from + n) : uint4{};
#pragma unroll 1
        for (uint32_t left = units; left != 0;) {
            const uint32_t others = left & (left - 1), one = __ffs(left) - 1;
            const bool has = n < bytes && (laneid < 16 || others != 0);
            unsigned char *to = put_at(laneid < 16 || others == 0 ? one : __ffs(others) - 1, n / 4);
            if (has) *reinterpret_cast<uint4 *>(to) = value;
            left = others & (others - 1);
        }
    }
    goes &= ~units;
#pragma unroll 1
    for (uint32_t n = laneid * 4; goes != 0 && n - laneid * 4 < bytes; n += 128) {
        uint32_t value = n < bytes ? *reinterpret_cast<const uint32_t *>(from + n) : 0;
        if (bytes - n < 4) value &= (1u << 8 * (bytes - n)) - 1;
#pragma unroll 1
        for (uint32_t left = goes; left != 0; left &= left - 1) {
            unsigned char *to = put_at(__ffs(left) - 1, n / 4);
            if (n < bytes) *reinterpret_cast<uint32_t *>(to) = value;
        }
    }
}

// Turns the group of so many rows whose first place it is. `memory`: kGroupBytes of the warp's.
__device__ __forceinline__ void turn_group(const ScaleShape &s, uint32_t place, uint32_t rows, uint32_t *memory) {
    constexpr uint32_t kAtOnce = 8; // loads in flight
    const uint32_t laneid = threadIdx.x % 32, elements = s.elements, stride = elements | 1;
    const uint64_t column = s.column;
    unsigned char *const first_column = s.first_column(place) + laneid * 4;
    if (laneid < rows) {
        // The lane's word of a column is word `of_row` of a row, and lies at `to`; that of the next one, rows words further on.
        const uint32_t further = rows / elements * stride + rows % elements, of_next = rows % elements;
        uint32_t of_row = laneid % elements;
        uint32_t *to = memory + laneid / elements * stride + of_row;
        const auto keep = [&](uint32_t word) {
            *to = word;
            of_row += of_next;
            to += further;
            if (of_row >= elements) {
                of_row -= elements;
                to += stride - elements;
            }
        };
        const unsigned char *from = first_column;
        uint32_t i = 0;
#pragma unroll 1
        for (; i + kAtOnce <= elements; i += kAtOnce) {
            uint32_t words[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++, from += column) words[k] = *reinterpret_cast<const uint32_t *>(from);
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) keep(words[k]);
        }
#pragma unroll 1
        for (; i < elements; i++, from += column) keep(*reinterpret_cast<const uint32_t *>(from));
    }
    __syncwarp();
    if (laneid < rows) {
        const uint32_t *from = memory + laneid * stride;
        unsigned char *to = first_column;
#pragma unroll 4
        for (uint32_t i = 0; i < elements; i++, to += column) *reinterpret_cast<uint32_t *>(to) = from[i];
    }
    __syncwarp();
}

} // namespace epw
