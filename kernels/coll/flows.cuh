// What each operation consists of: the bytes that this rank gives to each peer, where the bytes that it receives go, and what it
// folds. The same for packets and for rings.
#pragma once

#include "kernels/coll/operation.cuh"

namespace epw {

// A range of the caller's memory.
struct Stretch {
    unsigned char *at;
    uint64_t bytes;
};

// What this rank folds, or, in a broadcast, passes on; 0 bytes: nothing.
struct Folding {
    const unsigned char *own;
    unsigned char *out;
    uint64_t bytes;
};

// An operation that is shared out has two steps. The message is cut into parts, one for each member, or, in a broadcast, for each
// but the root. Members give every other member's part to that member, which makes a part of the result and passes it on to all
// who need it: in an all-reduce the sum, in a broadcast what the root gave. So no link carries the message more than about twice,
// or, in a broadcast, once.
__device__ __forceinline__ bool is_shared_out(const Collective &c) { return c.args.shared_out != 0; }

// Whether parts of the result are made from what this rank gives, and whether it needs copies of the parts that others make.
__device__ __forceinline__ bool contributes(const Collective &c, uint32_t rank) {
    return takes_part(c, rank) && (c.args.kind != EPW_BROADCAST || rank == c.args.root);
}
__device__ __forceinline__ bool needs_copies(const Collective &c, uint32_t rank) {
    return takes_part(c, rank) && is_shared_out(c) && (c.args.kind != EPW_BROADCAST || rank != c.args.root);
}

// Where a member's part begins, and its size, which is smaller for the last ones.
__device__ __forceinline__ Stretch part_of(const Collective &c, unsigned char *base, uint32_t member) {
    const uint64_t all = c.args.bytes, each = c.part;
    uint32_t place = c.place[member];
    if (c.args.kind == EPW_BROADCAST) {
        if (member == c.args.root) return {base, 0};
        if (place > c.place[c.args.root]) place--;
    }
    const uint64_t from = min(all, place * each);
    return {base + from, min(each, all - from)};
}

__device__ __forceinline__ unsigned char *sent(const Collective &c) { return const_cast<unsigned char *>(c.args.send); }

// What this rank gives the peer, not folded.
__device__ __forceinline__ Stretch given_to(const Collective &c, uint32_t peer) {
    const epw_coll_args &a = c.args;
    const bool root = a.root == c.rank, to_root = a.root == peer;
    switch (a.kind) {
    case EPW_BROADCAST:
        if (is_shared_out(c) && root) return part_of(c, sent(c), peer);
        return {sent(c), root ? a.bytes : 0};
    case EPW_ALL_REDUCE:
        return is_shared_out(c) ? part_of(c, sent(c), peer) : Stretch{sent(c), a.bytes};
    case EPW_REDUCE:
    case EPW_GATHER:
        return {sent(c), to_root ? a.bytes : 0};
    case EPW_ALL_GATHER:
        return {sent(c), a.bytes};
    case EPW_REDUCE_SCATTER:
    case EPW_ALL_TO_ALL:
        return {sent(c) + peer * a.bytes, a.bytes};
    case EPW_SCATTER:
        return {sent(c) + peer * a.bytes, root ? a.bytes : 0};
    default:
        return {nullptr, 0};
    }
}

// Where the peer's bytes go unchanged: not those that are folded here.
__device__ __forceinline__ Stretch taken_from(const Collective &c, uint32_t peer) {
    const epw_coll_args &a = c.args;
    const bool root = a.root == c.rank, from_root = a.root == peer;
    switch (a.kind) {
    case EPW_BROADCAST:
        if (is_shared_out(c)) return root ? Stretch{nullptr, 0} : part_of(c, a.recv, peer);
        return {a.recv, from_root ? a.bytes : 0};
    case EPW_SCATTER:
        return {a.recv, from_root ? a.bytes : 0};
    case EPW_ALL_REDUCE:
        return is_shared_out(c) ? part_of(c, a.recv, peer) : Stretch{nullptr, 0};
    case EPW_ALL_GATHER:
    case EPW_ALL_TO_ALL:
        return {a.recv + peer * a.bytes, a.bytes};
    case EPW_GATHER:
        return {a.recv + peer * a.bytes, root ? a.bytes : 0};
    default:
        return {nullptr, 0};
    }
}

__device__ __forceinline__ Folding folded_here(const Collective &c) {
    const epw_coll_args &a = c.args;
    switch (a.kind) {
    case EPW_ALL_REDUCE: {
        if (!is_shared_out(c)) return {a.send, a.recv, a.bytes};
        const Stretch own = part_of(c, sent(c), c.rank);
        return {own.at, part_of(c, a.recv, c.rank).at, own.bytes};
    }
    case EPW_BROADCAST: {
        if (!is_shared_out(c) || a.root == c.rank) return {nullptr, nullptr, 0};
        const Stretch own = part_of(c, a.recv, c.rank);
        return {nullptr, own.at, own.bytes};
    }
    case EPW_REDUCE:
        return {a.send, a.recv, a.root == c.rank ? a.bytes : 0};
    case EPW_REDUCE_SCATTER:
        return {a.send + c.rank * a.bytes, a.recv, a.bytes};
    default:
        return {nullptr, nullptr, 0};
    }
}

// What this rank gives itself, for operations that only move bytes: from `own` to `out`; 0 bytes if it is already in place.
__device__ __forceinline__ Folding given_to_itself(const Collective &c) {
    const epw_coll_args &a = c.args;
    const bool root = a.root == c.rank;
    Folding f = {a.send, a.recv, 0};
    switch (a.kind) {
    case EPW_BROADCAST:
        f.bytes = root && a.recv != nullptr ? a.bytes : 0;
        break;
    case EPW_ALL_TO_ALL:
        f = {a.send + c.rank * a.bytes, a.recv + c.rank * a.bytes, a.bytes};
        break;
    case EPW_ALL_GATHER:
        f = {a.send, a.recv + c.rank * a.bytes, a.bytes};
        break;
    case EPW_GATHER:
        f = {a.send, a.recv + c.rank * a.bytes, root ? a.bytes : 0};
        break;
    case EPW_SCATTER:
        f = {a.send + c.rank * a.bytes, a.recv, root ? a.bytes : 0};
        break;
    default:
        break;
    }
    if (f.own == f.out) f.bytes = 0;
    return f;
}

// Tables of kernels have one for each type that is reduced, by EPW_TYPE_*, and a last one for bytes that are only moved.
constexpr uint32_t kTypes = EPW_TYPE_F64 + 1;
inline uint32_t kernel_of(const epw_coll_args &a) {
    return a.kind == EPW_ALL_REDUCE || a.kind == EPW_REDUCE || a.kind == EPW_REDUCE_SCATTER ? a.type : kTypes;
}

} // namespace epw
