/* What a call on a GPU moves, computed when it is enqueued: kernels count nothing. The bytes are those of
 * kernels/coll/flows.cuh, if every member takes part. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "coll/blocks.h"

/* A call, and what the loop over its peers needs of it. */
typedef struct counted {
    const epw_coll *call;
    uint32_t me;
    blocks from, to;
    uint64_t whole; /* bytes of a message that is one block */
    bool shares;    /* shared out: each member makes a part of the result, and passes it on to the others */
    uint64_t part;  /* if so: of every member but the last ones */
    uint64_t own_part;
} counted;

typedef struct given {
    uint64_t out, in; /* to a peer, and from it; of the rank itself both are what it copies */
} given;

/* As in kernels/coll/flows.cuh. */
static uint64_t part_of(const counted *c, uint32_t number) {
    uint64_t from = number * c->part;
    return from >= c->whole ? 0 : c->whole - from < c->part ? c->whole - from : c->part;
}

static given own_copy(const counted *c) {
    const epw_coll *call = c->call;
    bool root = call->peer == c->me;
    epw_run out, in;
    uint64_t bytes;
    switch (call->kind) {
    case EPW_BROADCAST:
        bytes = root && call->recv != NULL && call->recv != call->send ? c->whole : 0;
        return (given){bytes, bytes};
    case EPW_ALL_GATHER:
    case EPW_GATHER:
        out = single(call, false, &c->to, c->me), in = run_of(&c->to, c->me);
        bytes = root || call->kind == EPW_ALL_GATHER ? bytes_of(&c->to, c->me) : 0;
        break;
    case EPW_SCATTER:
        out = run_of(&c->from, c->me), in = single(call, true, &c->from, c->me);
        bytes = root ? bytes_of(&c->from, c->me) : 0;
        break;
    case EPW_ALL_TO_ALL:
        out = run_of(&c->from, c->me), in = run_of(&c->to, c->me);
        bytes = bytes_of(&c->from, c->me);
        break;
    default:
        return (given){0, 0};
    }
    if (out.base == in.base) bytes = 0;
    return (given){bytes, bytes};
}

/* In a broadcast that is shared out, the root gives parts, and all others pass theirs on. */
static given broadcast_parts(const counted *c, bool root, bool named, uint32_t number) {
    if (root) return (given){part_of(c, number), 0};
    return named ? (given){0, c->own_part} : (given){c->own_part, part_of(c, number)};
}

/* With the peer that makes part `number`, if the call is shared out. */
static given exchanged(const counted *c, uint32_t peer, uint32_t number) {
    bool root = c->call->peer == c->me, named = c->call->peer == peer;
    switch (c->call->kind) {
    case EPW_BROADCAST:
        if (c->shares) return broadcast_parts(c, root, named, number);
        return (given){root ? c->whole : 0, named ? c->whole : 0};
    case EPW_ALL_REDUCE: {
        uint64_t bytes = c->shares ? part_of(c, number) + c->own_part : c->whole;
        return (given){bytes, bytes};
    }
    case EPW_REDUCE:
        return (given){named ? c->whole : 0, root ? c->whole : 0};
    case EPW_REDUCE_SCATTER:
        return (given){bytes_of(&c->from, peer), bytes_of(&c->from, c->me)};
    case EPW_ALL_GATHER:
        return (given){bytes_of(&c->to, c->me), bytes_of(&c->to, peer)};
    case EPW_ALL_TO_ALL:
        return (given){bytes_of(&c->from, peer), bytes_of(&c->to, peer)};
    case EPW_GATHER:
        return (given){named ? bytes_of(&c->to, c->me) : 0, root ? bytes_of(&c->to, peer) : 0};
    case EPW_SCATTER:
        return (given){root ? bytes_of(&c->from, peer) : 0, named ? bytes_of(&c->from, c->me) : 0};
    case EPW_SEND:
        return (given){named ? c->whole : 0, 0};
    case EPW_RECV:
        return (given){0, named ? c->whole : 0};
    default:
        return (given){0, 0};
    }
}

void epw_coll_gpu_count(epw_comm *comm, const epw_coll *call, bool shares) {
    epw_lane_traffic *traffic = comm->peers.traffic;
    const epw_mask *active = &comm->peers.active;
    uint32_t ranks = comm->layout.ranks, sharers = 0, own_number = 0, number = 0;
    counted c = {.call = call,
                 .me = comm->config.rank,
                 .from = blocks_in(comm, call, false),
                 .to = blocks_in(comm, call, true),
                 .whole = call->count * epw_type_bytes(call->type),
                 .shares = shares};
    bool broadcast = call->kind == EPW_BROADCAST;
    EPW_MASK_FOR(r, active, ranks) {
        if (broadcast && r == call->peer) continue; /* the root has no part */
        own_number += r < c.me;
        sharers++;
    }
    if (shares && sharers > 0) {
        c.part = epw_align((c.whole + sharers - 1) / sharers, 16);
        c.own_part = part_of(&c, own_number);
    }
    bool point = call->kind == EPW_SEND || call->kind == EPW_RECV;
    EPW_MASK_FOR(peer, active, ranks) {
        given g = peer == c.me && !point ? own_copy(&c) : exchanged(&c, peer, number);
        epw_count(&traffic->with[peer].bytes_sent, g.out);
        epw_count(&traffic->with[peer].bytes_received, g.in);
        number += !(broadcast && peer == call->peer);
    }
    epw_count(&traffic->operations, 1);
}
#else
typedef int epw_no_gpu_traffic; /* ISO C requires a declaration in every file */
#endif
