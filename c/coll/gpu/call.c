/* Operations on a GPU: checks each, chooses how its bytes move, and enqueues a kernel on the caller's stream.
 * Nothing here waits for the GPU. The choice depends only on what is equal on all ranks; the kernel reads
 * which ranks take part.
 *
 * Eager calls run one after the other, see device/stream_order.h. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "base/clock.h"
#include "coll/heap.h"
#include "device/cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 512,                /* per block, as in kernels/coll/operation.cuh, */
    SMALL_THREADS = THREADS - 32, /* and those that move words in packets */
    PIECE_LEAST = 4096,           /* smaller pieces cost more waiting than copying */
    QUEUE_PIECE_LEAST = 16384,    /* the same by queues, where each piece is two entries or three */
    QUEUE_SHARED_LEAST = 1 << 15, /* bytes from which on two steps are faster than one by queues */
    SHARED_LEAST = 1 << 19, /* bytes that sharing out an all-reduce by packets must save, or it is slower */
    LINES_LEAST = 1 << 18,  /* bytes to all peers above which lines are faster than packets */
    LINES_SHARED_LEAST = 1 << 20 /* bytes to all peers from which on sharing out is faster by lines */
};

/* ---- what kernels have found ---- */

epw_status epw_coll_gpu_check_calls(epw_comm *comm, epw_where where) {
    const epw_coll_differing *d = &comm->gpu->pinned->differing;
    if (__atomic_load_n(&d->found, __ATOMIC_ACQUIRE) == 0) return EPW_OK;
    uint64_t ranks = d->notice[EPW_COLL_NOTICE_RANKS];
    uint32_t op = (uint32_t)epw_word_step(d->notice[EPW_COLL_NOTICE_TAG]);
    epw_mismatch m = {.rank = {(uint32_t)ranks, (uint32_t)(ranks >> 32)}, .number = {op, op}};
    memcpy(&m.call[0], &d->notice[EPW_COLL_NOTICE_FIRST], sizeof m.call[0]);
    memcpy(&m.call[1], &d->notice[EPW_COLL_NOTICE_SECOND], sizeof m.call[1]);
    if (m.call[0].kind == EPW_SEND && m.call[1].kind == EPW_SEND) {
        /* A message, and what its receiver asks for, which has found that they differ. */
        m = (epw_mismatch){
            .rank = {m.rank[1], m.rank[0]}, .number = {op, op}, .call = {m.call[1], m.call[0]}};
        m.call[0].kind = EPW_RECV;
    }
    comm->mismatch = m;
    return epw_comm_fail_mismatch(comm, where);
}

/* Writer of 1: a kernel. Writer of 0: this function. */
bool epw_coll_gpu_take_fault(epw_comm *comm) {
    return __atomic_exchange_n(&comm->gpu->pinned->faulted, 0, __ATOMIC_ACQ_REL) != 0;
}

/* ---- checks ---- */

static bool is_uneven(const epw_coll *c) {
    return c->send_counts != NULL || c->recv_counts != NULL;
}

static bool has_blocks(const epw_coll *c) {
    if (c->kind == EPW_BARRIER) return false;
    return is_uneven(c) || c->send_offsets != NULL || c->recv_offsets != NULL || c->rows > 1;
}

static epw_status check_op(const epw_comm *comm, const epw_coll *c) {
    if (!has_blocks(c) || comm->layout.ranks <= EPW_COLL_BLOCK_RANKS) return EPW_OK;
    return epw_fail(EPW_ERR_LIMIT, epw_comm_where(comm, epw_kind_name(c->kind)),
                    "blocks are uneven or have gaps: config.ranks is %u, must be at most %d on a GPU",
                    comm->layout.ranks, EPW_COLL_BLOCK_RANKS);
}

/* ---- enqueuing ---- */

static_assert(sizeof(epw_coll_queue_blocks_args) <= 4096, "what CUDA 12.0 takes as parameters of a kernel");

typedef struct enqueuing {
    epw_comm *comm;
    epw_stream_call on;
    epw_where where;
} enqueuing;

/* Makes the stream of an eager call wait for the previous call's kernels. */
static epw_status check_stream(enqueuing *e, const epw_call *call) {
    epw_status status = epw_stream_find_capture(&e->on, e->where);
    if (status != EPW_OK) return status;
    if (!e->on.captured)
        return epw_stream_follow(&e->on, epw_lane_order(&e->comm->peers, 0), EPW_UNMARKED_FOLLOWED("the"),
                                 e->where);
    if (call == NULL) return EPW_OK;
    status = epw_stream_check_deadline(&e->on, call->deadline_ns, "communicator's", e->where);
    if (status != EPW_OK || call->work == NULL) return status;
    return epw_fail(EPW_ERR_INVALID, e->where, "work must be NULL under capture: a replay has none");
}

static uint64_t parts(uint64_t whole, uint64_t part) {
    return (whole + part - 1) / part;
}

/* Whether all stretches of bytes begin at multiples of 16. Each rank may decide differently. Never for an
 * in-place all-to-all, where a piece must wait until this rank has sent what lies in its place. */
static bool goes_by_bulk(const epw_coll_window *w, const epw_coll_args *args) {
    uint64_t ends = (uint64_t)(uintptr_t)args->send | (uint64_t)(uintptr_t)args->recv;
    if (args->kind != EPW_ALL_REDUCE && args->kind != EPW_REDUCE && args->kind != EPW_BROADCAST)
        ends |= args->bytes;
    bool exchanges = args->kind == EPW_ALL_TO_ALL && args->send == args->recv;
    return ends % 16 == 0 && !exchanges && w->ranks <= EPW_COLL_BULK_RANKS;
}

/* How the bytes of a dense message, or of blocks of one size, move. */
typedef enum way { BY_PACKETS, BY_LINES, BY_PIECES } way;

/* What the root of a broadcast sends to each of many ranks by packets would take longer than by rings. */
static bool fits_packets(const epw_coll_window *w, uint32_t kind, uint64_t bytes) {
    uint64_t most = w->packet_bytes;
    if (kind == EPW_BROADCAST && w->ranks > 2) most = most * 2 / w->ranks;
    return bytes <= most;
}

/* Whether an operation of this kind can be shared out, see kernels/coll/flows.cuh; and, if it is, among how
 * many. */
static bool can_share(uint32_t kind, uint32_t ranks) {
    return kind == EPW_ALL_REDUCE || (kind == EPW_BROADCAST && ranks > 2);
}
static uint32_t sharers_of(uint32_t kind, uint32_t ranks) {
    return kind == EPW_BROADCAST ? ranks - 1 : ranks;
}

static bool shares_by_lines(const epw_coll_window *w, uint32_t kind, uint64_t bytes) {
    return can_share(kind, w->ranks) && bytes * (w->ranks - 1) >= LINES_SHARED_LEAST;
}

/* With all ranks as members; with fewer the kernel decides, because parts are larger then. What is shared out
 * takes the lines of a peer twice; the rest takes no more than half of them, because more bytes are faster by
 * pieces. Two lines are for rounding. */
static bool fits_lines(const epw_coll_window *w, uint32_t kind, uint64_t bytes) {
    uint64_t flow = shares_by_lines(w, kind, bytes) ? parts(bytes, sharers_of(kind, w->ranks)) : bytes;
    return 2 * (parts(flow, EPW_COLL_LINE_DATA) + 2) <= w->lines;
}

static way way_of(const struct epw_coll_gpu *g, uint32_t kind, uint64_t bytes) {
    const epw_coll_window *w = &g->window;
    if (g->queues || epw_coll_gpu_wants_copies(g, kind, bytes)) return BY_PIECES;
    if (g->lines && bytes * (w->ranks - 1) > LINES_LEAST && fits_lines(w, kind, bytes)) return BY_LINES;
    return fits_packets(w, kind, bytes) ? BY_PACKETS : BY_PIECES;
}

static bool shares_out(const struct epw_coll_gpu *g, uint32_t kind, uint64_t bytes) {
    const epw_coll_window *w = &g->window;
    uint64_t ranks = w->ranks;
    if (!can_share(kind, w->ranks)) return false;
    if (g->queues) return bytes >= QUEUE_SHARED_LEAST;
    way way = way_of(g, kind, bytes);
    if (way == BY_LINES) return shares_by_lines(w, kind, bytes);
    if (way == BY_PIECES) return true;
    return kind == EPW_ALL_REDUCE && bytes * (ranks - 1) * (ranks - 2) / ranks > SHARED_LEAST;
}

/* ---- what peers may read ---- */

/* Whether peers can find the buffer: where it lies in the heap, or in memory that is registered and, for a
 * call that is not captured, lent now. What a replay may lend, its kernel finds out. */
static bool can_be_lent(const epw_comm *comm, const epw_coll_args *args, const unsigned char *buffer,
                        uint64_t bytes, uint64_t *at) {
    uint64_t offset = 0;
    bool captured = args->ticket == 0;
    if (!epw_heap_holds(comm, buffer, bytes, &offset))
        return epw_coll_gpu_find_registered(comm, buffer, bytes, captured, at);
    *at = offset - comm->layout.heap_offset;
    return *at + bytes <= EPW_COLL_LENT_MOST;
}

/* 0 if peers cannot find a buffer that they would read, or if the operation cannot be done so. A broadcast is
 * faster by rings. */
static uint64_t lent_of(const epw_comm *comm, const epw_coll_args *args) {
    uint64_t send = 0, recv = 0, bytes = args->bytes;
    uint64_t sent = epw_coll_send_bytes(args->kind, args->ranks, bytes);
    uint32_t reader = args->rank == args->root ? args->rank + 1 : args->root;
    bool is_read = epw_coll_reads(args->kind, args->root, reader, args->rank);
    if (!args->bulk || args->ranks == 1 || args->kind == EPW_BROADCAST) return 0;
    if (is_read && !can_be_lent(comm, args, args->send, sent, &send)) return 0;
    if (args->kind == EPW_ALL_REDUCE && !can_be_lent(comm, args, args->recv, bytes, &recv)) return 0;
    return epw_coll_lent(send, recv);
}

static uint32_t blocks_for(const epw_coll_window *w, uint64_t blocks) {
    return blocks < 1 ? 1 : blocks < w->blocks ? (uint32_t)blocks : w->blocks;
}

/* Chooses the way, and pieces so large that each block has some. Returns the number of blocks. */
static uint32_t choose(const struct epw_coll_gpu *g, epw_coll_args *args, way *way) {
    const epw_coll_window *w = &g->window;
    args->shared_out = shares_out(g, args->kind, args->bytes);
    uint64_t sharers = args->shared_out ? sharers_of(args->kind, w->ranks) : 1;
    uint64_t flow = parts(args->bytes, sharers), least = g->queues ? QUEUE_PIECE_LEAST : PIECE_LEAST;
    *way = way_of(g, args->kind, args->bytes);
    if (*way == BY_PACKETS) return blocks_for(w, parts(flow, 8 * SMALL_THREADS));
    uint64_t piece = epw_align(parts(flow, w->blocks), 16);
    if (piece < least) piece = least;
    if (piece > w->slot_bytes) piece = w->slot_bytes;
    args->pieces = (uint32_t)piece;
    if (*way == BY_LINES) return blocks_for(w, parts(flow, EPW_COLL_LINE_DATA * THREADS / 8));
    args->bulk = !g->queues && goes_by_bulk(w, args);
    return blocks_for(w, parts(flow, piece));
}

/* The arguments that every kernel has. */
static epw_coll_args common_args(const enqueuing *e, const epw_call *call) {
    const epw_comm *comm = e->comm;
    struct epw_coll_gpu *g = comm->gpu;
    return (epw_coll_args){.peers = g->peers,
                           .shared = g->shared,
                           .state = g->state,
                           .progress = g->progress,
                           .differing = g->differing,
                           .faulted = g->faulted,
                           .reports = g->reports,
                           .window = epw_peers_own(&comm->peers),
                           .at = g->window,
                           .rank = comm->config.rank,
                           .ranks = comm->layout.ranks,
                           .ticket = e->on.captured ? 0 : ++g->tickets,
                           .deadline_ns = call != NULL ? call->deadline_ns : 0};
}

/* For kernels that reach peers by queues. */
static epw_coll_reach reach_of(const enqueuing *e) {
    const struct epw_coll_gpu *g = e->comm->gpu;
    return (epw_coll_reach){.areas = g->areas, .inbox = epw_peers_inbox(&e->comm->peers), .sent = g->sent};
}

static void tell_call(uint64_t call[2], const epw_coll *c) {
    epw_descriptor what = epw_descriptor_of(c, 0);
    static_assert(sizeof what == 2 * sizeof call[0], "a call is told in two words");
    memcpy(call, &what, sizeof what);
}

static uint64_t message_bytes(const epw_coll *c) {
    uint64_t rows = c->rows > 0 ? c->rows : 1;
    return c->kind == EPW_BARRIER ? 0 : rows * c->count * epw_type_bytes(c->type);
}

static epw_coll_args coll_args(const enqueuing *e, const epw_coll *c, const epw_call *call) {
    epw_coll_args args = common_args(e, call);
    args.kind = c->kind;
    args.type = c->type;
    args.op = c->op;
    args.root = c->peer;
    args.send = c->send;
    args.recv = c->recv;
    args.bytes = message_bytes(c);
    tell_call(args.call, c);
    return args;
}

/* Dense even blocks are sent as dense memory is, since another rank may have that. Uneven blocks use full
 * slots, since not all ranks know how long the longest block is. */
static int launch_blocks(const enqueuing *e, const epw_coll *c, const epw_call *call) {
    epw_coll_blocks_args args = {.common = coll_args(e, c, call), .uneven = is_uneven(c)};
    const struct epw_coll_gpu *g = e->comm->gpu;
    epw_coll_gpu_lay_out(e->comm, c, &args);
    /* An empty send at recv's address exchanges nothing: no round of it would ever have been sent. */
    if (args.give_bytes == 0) args.common.send = NULL;
    uint32_t blocks = g->window.blocks;
    way way = BY_PIECES;
    if (args.uneven) {
        args.common.pieces = g->window.slot_bytes;
    } else {
        blocks = choose(g, &args.common, &way);
        /* Nothing is lent, and ranks with dense blocks wait to be told. */
        args.common.tells_lent = !g->queues && way == BY_PIECES;
    }
    if (way == BY_LINES) return epw_coll_gpu_run_lines_of_blocks(&args, blocks, e->on.stream);
    if (!g->queues) return epw_coll_gpu_run_blocks(&args, blocks, e->on.stream);
    epw_coll_queue_blocks_args by_queues = {reach_of(e), args};
    return epw_coll_gpu_run_queue_blocks(&by_queues, blocks, e->on.stream);
}

static int launch_dense(const enqueuing *e, epw_coll_args *args) {
    const struct epw_coll_gpu *g = e->comm->gpu;
    way way;
    uint32_t blocks = choose(g, args, &way);
    if (way == BY_LINES) return epw_coll_gpu_run_lines(args, blocks, e->on.stream);
    if (!g->queues) {
        args->tells_lent = args->pieces > 0;
        args->lent = lent_of(e->comm, args);
        epw_coll_copies_args copies;
        if (epw_coll_gpu_find_copies(e->comm, args, &copies))
            return epw_coll_gpu_run_copies(e->comm, &copies, blocks, &e->on);
        return epw_coll_gpu_run(args, blocks, e->on.stream);
    }
    epw_coll_queue_args by_queues = {reach_of(e), *args};
    return epw_coll_gpu_run_queue(&by_queues, blocks, e->on.stream);
}

/* The blocks of a kernel that has a warp for each piece of 128 elements. */
static uint64_t norm_blocks(const epw_norm *n) {
    return parts(n->rows * parts(n->hidden, EPW_FP8_BLOCK), SMALL_THREADS / 32);
}

/* Whether one kernel sums, by packets in one step, and normalises. */
static bool takes_one_kernel(const struct epw_coll_gpu *g, const epw_norm *n) {
    const epw_coll_window *w = &g->window;
    return !g->queues && fits_packets(w, EPW_ALL_REDUCE, 2 * n->rows * n->hidden) &&
           norm_blocks(n) <= w->blocks;
}

/* If one kernel is too few, a second one follows that of the sum, and its blocks take whole rows. */
static int launch_norm(const enqueuing *e, const epw_coll *c, const epw_call *call) {
    const epw_norm *n = c->norm;
    epw_coll_norm_args args = {.common = coll_args(e, c, call),
                               .rows = n->rows,
                               .hidden = n->hidden,
                               .payload = n->payload,
                               .epsilon = n->epsilon,
                               .weight = n->weight,
                               .residual = n->residual,
                               .out = n->out,
                               .scales = n->scales};
    const struct epw_coll_gpu *g = e->comm->gpu;
    if (takes_one_kernel(g, n))
        return epw_coll_gpu_run_norm(&args, blocks_for(&g->window, norm_blocks(n)), e->on.stream);
    int error = launch_dense(e, &args.common);
    if (error != cudaSuccess || n->rows == 0) return error;
    return epw_coll_gpu_run_norm_alone(&args, blocks_for(&g->window, n->rows), e->on.stream);
}

static int launch(const enqueuing *e, const epw_coll *c, const epw_call *call) {
    if (has_blocks(c)) return launch_blocks(e, c, call);
    if (c->norm != NULL) return launch_norm(e, c, call);
    epw_coll_args args = coll_args(e, c, call);
    return launch_dense(e, &args);
}

/* ---- sends and receives ---- */

static bool is_point(const epw_coll *c) {
    return c->kind == EPW_SEND || c->kind == EPW_RECV;
}

/* Adds a lane: the sends to a peer, or the receives from it, in order. */
static void add_lane(epw_coll_point_args *args, const epw_coll *ops, size_t count, uint32_t kind,
                     uint32_t peer) {
    uint32_t at = args->first[args->lanes];
    for (size_t i = 0; i < count; i++) {
        const epw_coll *c = &ops[i];
        if (c->kind != kind || c->peer != peer) continue;
        const void *memory = kind == EPW_SEND ? c->send : c->recv;
        epw_coll_point *point = &args->points[at++];
        *point = (epw_coll_point){.at = (unsigned char *)(uintptr_t)memory,
                                  .bytes = message_bytes(c),
                                  .peer = peer,
                                  .sends = kind == EPW_SEND};
        tell_call(point->call, c);
    }
    if (at > args->first[args->lanes]) args->first[++args->lanes] = at;
}

static epw_status check_points(const epw_comm *comm, const epw_coll *ops, size_t count) {
    size_t points = 0;
    for (size_t i = 0; i < count; i++) points += is_point(&ops[i]);
    if (points <= EPW_COLL_POINTS) return EPW_OK;
    return epw_fail(EPW_ERR_LIMIT, epw_comm_where(comm, "group"),
                    "a group has %zu sends and receives, at most %d on a GPU", points, EPW_COLL_POINTS);
}

/* Launches all sends and receives of a group, before its collectives, by one kernel. */
static epw_status launch_points(const enqueuing *e, const epw_coll *ops, size_t count, const epw_call *call) {
    epw_coll_point_args args = {.lanes = 0};
    for (uint32_t peer = 0; peer < e->comm->layout.ranks; peer++) {
        add_lane(&args, ops, count, EPW_SEND, peer);
        add_lane(&args, ops, count, EPW_RECV, peer);
    }
    if (args.lanes == 0) return EPW_OK;
    const epw_coll_window *w = &e->comm->gpu->window;
    uint64_t blocks = parts((uint64_t)args.lanes * w->channels, EPW_COLL_TEAMS);
    if (blocks > w->blocks)
        return epw_fail(
            EPW_ERR_LIMIT, e->where,
            "a group sends to and receives from %u peers: config.sms is %u, must be at least %llu",
            args.lanes, w->blocks, (unsigned long long)blocks);
    args.common = common_args(e, call);
    epw_coll_queue_point_args by_queues = {reach_of(e), args};
    int error = e->comm->gpu->queues
                    ? epw_coll_gpu_run_queue_points(&by_queues, (uint32_t)blocks, e->on.stream)
                    : epw_coll_gpu_run_points(&args, (uint32_t)blocks, e->on.stream);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, e->where, "launch of the kernel of sends");
}

/* ---- work ---- */

static epw_status make_work(enqueuing *e, epw_coll_work **out) {
    struct epw_coll_gpu *g = e->comm->gpu;
    epw_coll_work *work = g->spare;
    if (work != NULL) {
        g->spare = work->next;
    } else {
        work = calloc(1, sizeof *work);
        if (work == NULL) return epw_fail(EPW_ERR_NO_MEMORY, e->where, "no memory for a work");
        epw_cuda_scope scope;
        epw_status status = epw_cuda_enter_relaxed(e->comm->config.device, e->where, &scope);
        if (status == EPW_OK) {
            cudaError_t error = cudaEventCreateWithFlags(&work->event, cudaEventDisableTiming);
            if (error != cudaSuccess) status = epw_fail_cuda(error, e->where, "cudaEventCreateWithFlags");
            epw_cuda_leave_relaxed(&scope);
        }
        if (status != EPW_OK) {
            free(work);
            return status;
        }
    }
    *out = work;
    return EPW_OK;
}

static void spare(struct epw_coll_gpu *g, epw_coll_work *work) {
    if (work == NULL) return;
    work->next = g->spare;
    g->spare = work;
}

static epw_coll_work **find(struct epw_coll_gpu *g, epw_work id) {
    epw_coll_work **at = &g->works;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    return at;
}

static epw_status not_there(const epw_comm *comm, const char *op) {
    return epw_fail(EPW_ERR_STATE, epw_comm_where(comm, op),
                    "the work has been consumed or dropped, or is not one of this communicator");
}

/* ---- the call ---- */

/* Of replays the host sees nothing. */
static void count_all(const enqueuing *e, const epw_coll *ops, size_t count) {
    for (size_t i = 0; i < count && !e->on.captured; i++) {
        const struct epw_coll_gpu *g = e->comm->gpu;
        bool one_step = ops[i].norm != NULL && takes_one_kernel(g, ops[i].norm);
        bool shared = !one_step && shares_out(g, ops[i].kind, message_bytes(&ops[i]));
        epw_coll_gpu_count(e->comm, &ops[i], shared);
    }
}

/* With the lock held. */
static epw_status enqueue(enqueuing *e, const epw_coll *ops, size_t count, const epw_call *call) {
    struct epw_coll_gpu *g = e->comm->gpu;
    epw_coll_work *work = NULL;
    epw_status status = epw_coll_gpu_check_calls(e->comm, e->where);
    if (status == EPW_OK && call != NULL && call->work != NULL) status = make_work(e, &work);
    if (status == EPW_OK) status = epw_cuda_enter(e->comm->config.device, e->where);
    if (status != EPW_OK) {
        spare(g, work);
        return status;
    }
    status = check_stream(e, call);
    uint64_t before = g->tickets;
    if (status == EPW_OK) status = launch_points(e, ops, count, call);
    for (size_t i = 0; status == EPW_OK && i < count; i++) {
        if (is_point(&ops[i])) continue;
        int error = launch(e, &ops[i], call);
        if (error != cudaSuccess)
            status = epw_fail_cuda(error, e->where, "launch of the kernel of a collective");
    }
    if (g->tickets != before)
        epw_stream_mark(&e->on, epw_lane_order(&e->comm->peers, 0)); /* even if a later launch failed */
    if (status == EPW_OK) count_all(e, ops, count);
    if (status == EPW_OK && work != NULL) {
        cudaError_t error = cudaEventRecord(work->event, e->on.stream);
        if (error != cudaSuccess) status = epw_fail_cuda(error, e->where, "cudaEventRecord");
    }
    epw_cuda_leave();
    if (status != EPW_OK || work == NULL) {
        spare(g, work);
        return status;
    }
    work->id = ++e->comm->next_work;
    work->first = before + 1;
    work->last = g->tickets;
    work->next = g->works;
    g->works = work;
    *call->work = work->id;
    return EPW_OK;
}

epw_status epw_coll_gpu_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                              epw_outcome *outcome) {
    enqueuing e = {.comm = comm,
                   .on = {.stream = call != NULL ? call->stream : NULL},
                   .where = epw_comm_where(comm, count == 1 ? epw_kind_name(ops->kind) : "group")};
    if (outcome != NULL)
        return epw_fail(EPW_ERR_INVALID, e.where,
                        "outcome must be NULL on a GPU: it is not known yet; see epw_work_wait");
    epw_status status = EPW_OK;
    for (size_t i = 0; status == EPW_OK && i < count; i++) status = check_op(comm, &ops[i]);
    if (status == EPW_OK) status = check_points(comm, ops, count);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&comm->lock);
    if (comm->own_word == 0) {
        status = epw_fail(EPW_ERR_STATE, e.where, "no membership yet: call set_active first");
    } else {
        status = enqueue(&e, ops, count, call);
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

/* ---- what has become of it ---- */

/* Of a work whose kernels have ended. With the lock held. */
static epw_status outcome_of(epw_comm *comm, const epw_coll_work *work, epw_outcome *outcome,
                             epw_where where) {
    epw_outcome all = EPW_OUTCOME_INIT;
    for (uint64_t ticket = work->first; ticket <= work->last; ticket++) {
        const epw_coll_report *at = &comm->gpu->pinned->reports[ticket % EPW_COLL_REPORTS];
        uint64_t seen = __atomic_load_n(&at->ticket, __ATOMIC_ACQUIRE);
        bool of_later = seen > ticket && seen <= work->last; /* of this work: it is read at its own ticket */
        if (seen < ticket || of_later) continue;
        epw_coll_report report = *at;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&at->ticket, __ATOMIC_RELAXED) != ticket)
            return epw_fail(EPW_ERR_LIMIT, where,
                            "the outcome is not known any more: it was overwritten %d operations later by "
                            "one that a rank was missing from",
                            EPW_COLL_REPORTS);
        if (report.differs)
            return epw_fail(EPW_ERR_MISMATCH, where,
                            "ranks had called different operations in the membership of this one, which has "
                            "no result");
        epw_ranks_join(&all.missing, &report.missing);
        if (all.record.cause == EPW_CAUSE_NONE) all.record = report.record;
    }
    all.degraded = !epw_mask_empty(&all.missing);
    *outcome = all;
    return EPW_OK;
}

epw_status epw_coll_gpu_work_wait(epw_comm *comm, epw_work id, uint64_t timeout_ns, epw_outcome *outcome) {
    epw_where where = epw_comm_where(comm, "work_wait");
    epw_status status = epw_coll_gpu_work_await(comm, id, timeout_ns);
    if (status != EPW_OK) return status;
    pthread_mutex_lock(&comm->lock);
    epw_coll_work **at = find(comm->gpu, id), *work = *at;
    status = work != NULL ? EPW_OK : not_there(comm, "work_wait");
    if (status == EPW_OK) status = epw_peers_await_event(&comm->peers, work->event, 0, where);
    if (status == EPW_OK) {
        epw_outcome all;
        status = outcome_of(comm, work, &all, where);
        if (status == EPW_ERR_MISMATCH || status == EPW_ERR_LIMIT) {
            epw_status which = epw_coll_gpu_check_calls(comm, where); /* in this membership it is known */
            if (which != EPW_OK) status = which;
        }
        if (status == EPW_ERR_LIMIT && outcome == NULL) status = EPW_OK; /* nobody asks for it */
        if (status == EPW_OK && outcome != NULL) *outcome = all;
        *at = work->next;
        spare(comm->gpu, work);
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

/* Gives the lock back, and waits without it: the events of works exist as long as the communicator. */
static epw_status await_work(epw_comm *locked, epw_work id, uint64_t timeout_ns) {
    const epw_coll_work *work = *find(locked->gpu, id);
    cudaEvent_t event = work != NULL ? work->event : NULL;
    pthread_mutex_unlock(&locked->lock);
    if (work == NULL) return not_there(locked, "work_await");
    return epw_peers_await_event(&locked->peers, event, timeout_ns, epw_comm_where(locked, "work_await"));
}

epw_status epw_coll_gpu_work_await(epw_comm *comm, epw_work id, uint64_t timeout_ns) {
    pthread_mutex_lock(&comm->lock);
    return await_work(comm, id, timeout_ns);
}

void epw_coll_gpu_look(epw_awaited *self, uint64_t now) {
    epw_comm *comm = self->owner;
    if (pthread_mutex_trylock(&comm->lock) != 0) {
        epw_awaited_busy(self);
        return;
    }
    epw_awaited_by_time(self, await_work(comm, self->of, 0) != EPW_PENDING, now);
}

/* The kernel runs all the same: the caller may use the buffers again once the stream has passed it. */
epw_status epw_coll_gpu_work_drop(epw_comm *comm, epw_work id) {
    pthread_mutex_lock(&comm->lock);
    epw_coll_work **at = find(comm->gpu, id), *work = *at;
    if (work != NULL) {
        *at = work->next;
        spare(comm->gpu, work);
    }
    pthread_mutex_unlock(&comm->lock);
    return work != NULL ? EPW_OK : not_there(comm, "work_drop");
}
#else
static epw_status none(const char *op) {
    return epw_fail(EPW_ERR_STATE, (epw_where){op, -1, -1}, "there is no communicator on a GPU");
}

epw_status epw_coll_gpu_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                              epw_outcome *outcome) {
    (void)comm, (void)ops, (void)count, (void)call, (void)outcome;
    return none("group");
}
epw_status epw_coll_gpu_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome) {
    (void)comm, (void)work, (void)timeout_ns, (void)outcome;
    return none("work_wait");
}
void epw_coll_gpu_look(epw_awaited *self, uint64_t now) {
    epw_awaited_by_time(self, true, now);
}
epw_status epw_coll_gpu_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns) {
    (void)comm, (void)work, (void)timeout_ns;
    return none("work_await");
}
epw_status epw_coll_gpu_work_drop(epw_comm *comm, epw_work work) {
    (void)comm, (void)work;
    return none("work_drop");
}
#endif
