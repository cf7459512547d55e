// Messages in the caller's memory as rows with gaps between them, whatever their alignment; dense memory is one row. And what an
// operation on such messages consists of, for dense memory and for blocks.
#pragma once

#include "kernels/coll/bytes.cuh"
#include "kernels/coll/flows.cuh"

namespace epw {

__device__ __forceinline__ uint64_t block_bytes(const epw_coll_blocks_args &b, const epw_coll_block &block) {
    return b.rows * block.row_bytes;
}

// A message in the caller's memory: rows of row_bytes, `pitch` apart.
struct Rows {
    unsigned char *at;
    uint64_t row_bytes, pitch, bytes;
};

__device__ __forceinline__ Rows rows_to(const epw_coll_blocks_args &b, uint32_t peer) {
    return {b.give[peer].at, b.give[peer].row_bytes, b.give_pitch, block_bytes(b, b.give[peer])};
}
__device__ __forceinline__ Rows rows_from(const epw_coll_blocks_args &b, uint32_t peer) {
    return {b.take[peer].at, b.take[peer].row_bytes, b.take_pitch, block_bytes(b, b.take[peer])};
}

// The address of byte `offset` of the message, and how many bytes of its row follow.
__device__ __forceinline__ unsigned char *place_of(const Rows &r, uint64_t offset, uint64_t &left) {
    if (r.bytes == r.row_bytes) {
        left = r.bytes - offset;
        return r.at + offset;
    }
    const bool narrow = ((offset | r.row_bytes) >> 32) == 0;
    const uint64_t row = narrow ? uint32_t(offset) / uint32_t(r.row_bytes) : offset / r.row_bytes,
                   in = offset - row * r.row_bytes;
    left = r.row_bytes - in;
    return r.at + row * r.pitch + in;
}

// Reads sizeof(T) bytes from `offset` on, across row ends; bytes beyond the message are zero.
template <typename T> __device__ __noinline__ inline T read_across(const Rows &r, uint64_t offset) {
    T v = {};
    auto *to = reinterpret_cast<unsigned char *>(&v);
    uint64_t left;
#pragma unroll 1
    for (uint32_t i = 0; i < sizeof(T) && offset + i < r.bytes; i++) to[i] = *place_of(r, offset + i, left);
    return v;
}
template <typename T> __device__ __noinline__ inline void write_across(const Rows &r, uint64_t offset, T v) {
    const auto *from = reinterpret_cast<const unsigned char *>(&v);
    uint64_t left;
#pragma unroll 1
    for (uint32_t i = 0; i < sizeof(T) && offset + i < r.bytes; i++) *place_of(r, offset + i, left) = from[i];
}
template <typename T> __device__ __forceinline__ T read_rows(const Rows &r, uint64_t offset) {
    uint64_t left;
    const unsigned char *from = place_of(r, offset, left);
    if (left >= sizeof(T) || offset + left == r.bytes) return read<T>(from, left);
    return read_across<T>(r, offset);
}
template <typename T> __device__ __forceinline__ void write_rows(const Rows &r, uint64_t offset, T v) {
    uint64_t left;
    unsigned char *to = place_of(r, offset, left);
    if (left >= sizeof(T) || offset + left == r.bytes) {
        write<T>(to, v, left);
    } else {
        write_across<T>(r, offset, v);
    }
}

__device__ __forceinline__ Rows rows_of(const unsigned char *at, uint64_t bytes) {
    return {const_cast<unsigned char *>(at), bytes, bytes, bytes};
}

// ---- what an operation consists of ----

// On dense memory. T: the type that is reduced; void: bytes are only moved.
template <typename T> struct DenseFlows {
    static constexpr bool kReduces = !std::is_void_v<T>;

    __device__ __forceinline__ Rows to(const Collective &c, uint32_t peer) const {
        const Stretch s = given_to(c, peer);
        return rows_of(s.at, s.bytes);
    }
    __device__ __forceinline__ Rows from(const Collective &c, uint32_t source) const {
        const Stretch s = taken_from(c, source);
        return rows_of(s.at, s.bytes);
    }
    // The bytes of the longest flow to a peer, and of the longest that is taken, including what this rank gives itself.
    __device__ __forceinline__ uint64_t sent(const Collective &c) const { return is_shared_out(c) ? c.part : c.args.bytes; }
    __device__ __forceinline__ uint64_t taken(const Collective &c) const { return max(sent(c), given_to_itself(c).bytes); }
    // What this rank gives itself, for operations that only move bytes; 0 bytes if it is already in place.
    __device__ __forceinline__ void itself(const Collective &c, Rows &own, Rows &out) const {
        const Folding f = given_to_itself(c);
        own = rows_of(f.own, f.bytes);
        out = rows_of(f.out, f.bytes);
    }
    __device__ __forceinline__ void fold(const Collective &c, Rows &own, Rows &out) const {
        const Folding f = folded_here(c);
        own = rows_of(f.own, f.bytes);
        out = rows_of(f.out, f.bytes);
    }
};

// On blocks.
template <typename T> struct BlockFlows {
    static constexpr bool kReduces = !std::is_void_v<T>;
    const epw_coll_blocks_args &b;

    __device__ __forceinline__ Rows to(const Collective &, uint32_t peer) const { return rows_to(b, peer); }
    __device__ __forceinline__ Rows from(const Collective &, uint32_t source) const { return rows_from(b, source); }
    __device__ __forceinline__ uint64_t sent(const Collective &) const { return b.give_bytes; }
    __device__ __forceinline__ uint64_t taken(const Collective &) const { return b.take_bytes; }
    __device__ __forceinline__ void itself(const Collective &c, Rows &own, Rows &out) const {
        own = rows_to(b, c.rank);
        out = rows_from(b, c.rank);
        if (own.at == out.at) own.bytes = out.bytes = 0;
    }
    __device__ __forceinline__ void fold(const Collective &c, Rows &own, Rows &out) const {
        own = rows_to(b, c.rank);
        out = rows_from(b, c.rank);
    }
};

} // namespace epw
