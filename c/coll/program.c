/* Makes the flows of an operation: which bytes of the caller's memory this rank gives to which peer, and
 * where it puts what it receives. The only place that chooses algorithms.
 *
 * All bytes go directly from the rank that has them to the rank that needs them. Reductions are by owners:
 * each element has an owner, or several that compute the same, to which all members give their values, and
 * which folds them in ascending order of ranks. In a small all-reduce every rank owns all elements; in a
 * large one, and in reduce_scatter, each rank owns its piece; in reduce, the root owns all. */
#include "coll/blocks.h"
#include "coll/parts.h"

#include <stdlib.h>

enum {
    LINE = 64,
    /* All-reduces up to this size are folded by every rank: one exchange in place of two. At most what a slot
     * holds. */
    EVERYONE_BYTES = 8192,
    /* Larger operations do not fit into the caches of a core, roughly. */
    STREAM_BYTES = 2 << 20,
    /* The bytes of all ranks that a fold takes at a time: about half of a core's cache. */
    SCRATCH_BYTES = 512 << 10,
    SCRATCH_LEAST = 4096,
    SCRATCH_MOST = 128 << 10
};

static epw_run shifted(epw_run run, uint64_t bytes) {
    run.base += bytes;
    return run;
}

/* ---- flows ---- */

static void add_leg(epw_flow *flow, epw_run at, uint64_t bytes, bool folded) {
    flow->nothing |= bytes == 0;
    if (bytes == 0) return;
    uint32_t leg = flow->open ? 1 : 0;
    flow->legs[leg] = (epw_leg){.bytes = bytes, .at = at, .folded = folded};
    flow->legs[1].bytes = leg == 1 ? bytes : 0;
    flow->open = true;
}

static void give_myself(epw_op *op, epw_run from, epw_run to, uint64_t bytes) {
    if (from.base == to.base) return;
    op->local_from = from;
    op->local_to = to;
    op->local_bytes = bytes;
}

static void begin_fold(epw_comm *comm, const epw_coll *c, uint64_t bytes, epw_run own, epw_run out) {
    comm->fold = (epw_fold){.on = true, .type = c->type, .op = c->op, .bytes = bytes, .own = own, .out = out};
    EPW_COMM_PEERS(p, comm) {
        if (!p->member || !p->suspected) continue;
        comm->fold.lacks = true;
        comm->fold.voids = epw_coll_rank(comm, p);
    }
}

/* ---- what moves ---- */

static void barrier(epw_comm *comm) {
    EPW_COMM_OTHERS(p, comm) p->out.open = p->in.open = true;
}

static void broadcast(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint64_t bytes = c->count * epw_type_bytes(c->type);
    epw_run from = {.base = (unsigned char *)(uintptr_t)c->send}, to = {.base = c->recv};
    bool root = c->peer == comm->config.rank;
    EPW_COMM_OTHERS(p, comm) {
        if (root) add_leg(&p->out, from, bytes, false);
        if (!root && epw_coll_rank(comm, p) == c->peer) add_leg(&p->in, to, bytes, false);
    }
    if (root && c->recv != NULL) give_myself(op, from, to, bytes);
}

static void all_gather(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint32_t me = comm->config.rank;
    blocks to = blocks_in(comm, c, true);
    epw_run own = single(c, false, &to, me);
    EPW_COMM_OTHERS(p, comm) {
        uint32_t r = epw_coll_rank(comm, p);
        add_leg(&p->out, own, bytes_of(&to, me), false);
        add_leg(&p->in, run_of(&to, r), bytes_of(&to, r), false);
    }
    give_myself(op, own, run_of(&to, me), bytes_of(&to, me));
}

static void all_to_all(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint32_t me = comm->config.rank;
    blocks from = blocks_in(comm, c, false), to = blocks_in(comm, c, true);
    EPW_COMM_OTHERS(p, comm) {
        uint32_t r = epw_coll_rank(comm, p);
        add_leg(&p->out, run_of(&from, r), bytes_of(&from, r), false);
        add_leg(&p->in, run_of(&to, r), bytes_of(&to, r), false);
    }
    comm->exchanges = c->send == c->recv;
    give_myself(op, run_of(&from, me), run_of(&to, me), bytes_of(&from, me));
}

static void gather(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint32_t me = comm->config.rank;
    blocks to = blocks_in(comm, c, true);
    epw_run own = single(c, false, &to, me);
    EPW_COMM_OTHERS(p, comm) {
        uint32_t r = epw_coll_rank(comm, p);
        if (c->peer == me) add_leg(&p->in, run_of(&to, r), bytes_of(&to, r), false);
        if (c->peer == r) add_leg(&p->out, own, bytes_of(&to, me), false);
    }
    if (c->peer == me) give_myself(op, own, run_of(&to, me), bytes_of(&to, me));
}

static void scatter(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint32_t me = comm->config.rank;
    blocks from = blocks_in(comm, c, false);
    epw_run own = single(c, true, &from, me);
    EPW_COMM_OTHERS(p, comm) {
        uint32_t r = epw_coll_rank(comm, p);
        if (c->peer == me) add_leg(&p->out, run_of(&from, r), bytes_of(&from, r), false);
        if (c->peer == r) add_leg(&p->in, own, bytes_of(&from, me), false);
    }
    if (c->peer == me) give_myself(op, run_of(&from, me), own, bytes_of(&from, me));
}

/* ---- what is folded ---- */

static void reduce_scatter(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint32_t me = comm->config.rank;
    blocks from = blocks_in(comm, c, false);
    epw_run out = single(c, true, &from, me);
    EPW_COMM_OTHERS(p, comm) {
        uint32_t r = epw_coll_rank(comm, p);
        add_leg(&p->out, run_of(&from, r), bytes_of(&from, r), false);
        add_leg(&p->in, out, bytes_of(&from, me), true);
    }
    begin_fold(comm, c, bytes_of(&from, me), run_of(&from, me), out);
}

static void reduce(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint64_t bytes = c->count * epw_type_bytes(c->type);
    epw_run from = {.base = (unsigned char *)(uintptr_t)c->send}, to = {.base = c->recv};
    bool root = c->peer == comm->config.rank;
    EPW_COMM_OTHERS(p, comm) {
        if (root) add_leg(&p->in, to, bytes, true);
        if (epw_coll_rank(comm, p) == c->peer) add_leg(&p->out, from, bytes, false);
    }
    if (root) begin_fold(comm, c, bytes, from, to);
}

/* The piece that the `number`-th member owns. */
static void piece_of(const epw_comm *comm, const epw_coll *c, uint32_t number, uint64_t *from,
                     uint64_t *bytes) {
    uint64_t all = c->count * epw_type_bytes(c->type);
    uint64_t piece = epw_align((all + comm->members - 1) / comm->members, LINE);
    *from = number * piece < all ? number * piece : all;
    *bytes = all - *from < piece ? all - *from : piece;
}

static void all_reduce_by_everyone(epw_comm *comm, const epw_coll *c, uint64_t bytes) {
    epw_run from = {.base = (unsigned char *)(uintptr_t)c->send}, to = {.base = c->recv};
    EPW_COMM_OTHERS(p, comm) {
        add_leg(&p->out, from, bytes, false);
        add_leg(&p->in, to, bytes, true);
    }
    begin_fold(comm, c, bytes, from, to);
    comm->fold.behind_out = true;
}

static void all_reduce(epw_comm *comm, epw_op *op) {
    const epw_coll *c = &op->call;
    uint64_t bytes = c->count * epw_type_bytes(c->type), own_at = 0, own_bytes = 0, at, piece;
    epw_run from = {.base = (unsigned char *)(uintptr_t)c->send}, to = {.base = c->recv};
    if (bytes <= EVERYONE_BYTES && bytes <= comm->layout.slot_bytes) {
        all_reduce_by_everyone(comm, c, bytes);
        return;
    }
    uint32_t number = 0;
    EPW_COMM_PEERS(p, comm) {
        if (!p->member) continue;
        if (epw_coll_is_me(comm, p)) piece_of(comm, c, number, &own_at, &own_bytes);
        number++;
    }
    number = 0;
    EPW_COMM_PEERS(p, comm) {
        if (!p->member) continue;
        piece_of(comm, c, number++, &at, &piece);
        if (epw_coll_is_me(comm, p) || p->suspected) continue;
        add_leg(&p->out, shifted(from, at), piece, false);
        add_leg(&p->out, shifted(to, own_at), own_bytes, true);
        add_leg(&p->in, shifted(to, own_at), own_bytes, true);
        add_leg(&p->in, shifted(to, at), piece, false);
        /* Ranks without a piece hear of the call from those that have one. */
        p->out.nothing = p->in.nothing = false;
    }
    if (own_bytes > 0) begin_fold(comm, c, own_bytes, shifted(from, own_at), shifted(to, own_at));
}

/* ---- beginning ---- */

static uint64_t bytes_in_all(const epw_comm *comm) {
    uint64_t bytes = comm->fold.bytes;
    for (uint32_t r = 0; r < comm->layout.ranks; r++)
        for (uint32_t l = 0; l < 2; l++)
            bytes += comm->of[r].out.legs[l].bytes + comm->of[r].in.legs[l].bytes;
    return bytes;
}

static bool make_scratch(epw_comm *comm) {
    if (comm->scratch != NULL) return true;
    uint64_t each = SCRATCH_BYTES / comm->layout.ranks / LINE * LINE;
    each = each < SCRATCH_LEAST ? SCRATCH_LEAST : each > SCRATCH_MOST ? SCRATCH_MOST : each;
    comm->scratch = aligned_alloc(LINE, each * comm->layout.ranks);
    comm->scratch_bytes = each;
    return comm->scratch != NULL;
}

bool epw_program_begin(epw_comm *comm, epw_op *op) {
    comm->fold = (epw_fold){0};
    comm->exchanges = false;
    EPW_COMM_PEERS(p, comm) {
        p->out = p->in = (epw_flow){0};
        p->tells = false;
        p->missing = p->member && p->suspected;
    }
    if (epw_comm_has_root(op->call.kind)) {
        epw_coll_peer *root = &comm->of[op->call.peer];
        root->missing |= !root->member;
    }
    switch (op->call.kind) {
    case EPW_BARRIER:
        barrier(comm);
        break;
    case EPW_BROADCAST:
        broadcast(comm, op);
        break;
    case EPW_ALL_REDUCE:
        all_reduce(comm, op);
        break;
    case EPW_REDUCE:
        reduce(comm, op);
        break;
    case EPW_REDUCE_SCATTER:
        reduce_scatter(comm, op);
        break;
    case EPW_ALL_GATHER:
        all_gather(comm, op);
        break;
    case EPW_ALL_TO_ALL:
        all_to_all(comm, op);
        break;
    case EPW_GATHER:
        gather(comm, op);
        break;
    default:
        scatter(comm, op);
    }
    EPW_COMM_OTHERS(p, comm) p->tells = !p->out.open && (p->out.nothing || p->in.nothing);
    comm->streams = bytes_in_all(comm) > STREAM_BYTES;
    return !comm->fold.on || make_scratch(comm);
}
