/* Operations whose bytes copy engines move: see kernels/coll/copies.cuh. Here are the copies, and which
 * operations have them.
 *
 * The host does not know where a peer's send lies. It assumes the offset that this rank's own has, in the
 * heap or in what is registered, or, if an all-gather is in place, that the peer's is; the kernel before the
 * copies compares. Several copies run at a time, on
 * streams of the communicator's own between two events of the caller's stream. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "device/cuda.h"

/* ---- life ---- */

int epw_coll_gpu_open_copies(epw_coll_copying *c) {
    int error = epw_coll_gpu_prepare_copies();
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&c->begun, cudaEventDisableTiming);
    for (uint32_t i = 0; error == cudaSuccess && i < EPW_COLL_COPY_STREAMS; i++) {
        error = cudaStreamCreateWithFlags(&c->streams[i], cudaStreamNonBlocking);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&c->ended[i], cudaEventDisableTiming);
    }
    return error;
}

void epw_coll_gpu_close_copies(epw_coll_copying *c) {
    for (uint32_t i = 0; i < EPW_COLL_COPY_STREAMS; i++) {
        if (c->ended[i] != NULL) cudaEventDestroy(c->ended[i]);
        if (c->streams[i] != NULL) cudaStreamDestroy(c->streams[i]);
    }
    if (c->begun != NULL) cudaEventDestroy(c->begun);
}

/* ---- which operations ---- */

bool epw_coll_gpu_wants_copies(const struct epw_coll_gpu *g, uint32_t kind, uint64_t bytes) {
    return (kind == EPW_ALL_GATHER || kind == EPW_ALL_TO_ALL) && g->copies_from > 0 &&
           g->window.ranks * bytes >= g->copies_from;
}

/* The copies of an operation wait on their stream for all peers. */
static bool may_copy_from(const epw_comm *comm, const epw_import *import) {
    return !epw_import_orders_copies(import, comm->config.device);
}

/* Where this rank can copy what the peer has at this offset; NULL: nowhere. Mapped as long as the peer is a
 * member, and members change when nothing is enqueued. With the lock held. */
static const unsigned char *reach(const epw_comm *comm, uint32_t peer, uint64_t offset, uint64_t bytes) {
    const struct epw_coll_gpu *g = comm->gpu;
    const unsigned char *window = epw_peers_mapped(&comm->peers, peer);
    if (window == NULL) return NULL;
    if (!epw_coll_is_registered(&g->window, offset)) {
        bool fits = bytes <= g->window.heap_bytes - offset && may_copy_from(comm, comm->peers.imports[peer]);
        return fits ? window + g->window.heap_offset + offset : NULL;
    }
    for (uint32_t i = 0; i < EPW_COLL_REGISTRATIONS; i++) {
        const epw_coll_registered *at = &g->pinned->registered[peer][i];
        uint64_t within = offset - at->first;
        if (within < at->bytes && bytes <= at->bytes - within)
            return may_copy_from(comm, g->imported[peer][i].import) ? at->base + within : NULL;
    }
    return NULL;
}

/* A graph may be replayed after registered memory was unmapped. A window that its copies read stays mapped,
 * see epw_peers_keep_mapped. */
static bool may_read(const epw_coll_args *args, const epw_coll_window *w) {
    return args->ticket != 0 || !epw_coll_is_registered(w, epw_coll_lent_send(args->lent));
}

bool epw_coll_gpu_find_copies(const epw_comm *comm, const epw_coll_args *args, epw_coll_copies_args *out) {
    uint64_t offset = epw_coll_lent_send(args->lent);
    uint64_t sent = epw_coll_send_bytes(args->kind, args->ranks, args->bytes);
    bool exchanges = args->kind == EPW_ALL_TO_ALL;
    bool in_place = !exchanges && args->send == args->recv + args->rank * args->bytes;
    if (!args->lent || !epw_coll_gpu_wants_copies(comm->gpu, args->kind, args->bytes) ||
        !may_read(args, &comm->gpu->window))
        return false;
    *out = (epw_coll_copies_args){.common = *args, .copied = comm->gpu->copied};
    EPW_MASK_FOR(peer, &comm->peers.active, args->ranks) {
        uint64_t at = in_place ? offset + (peer - (uint64_t)args->rank) * args->bytes : offset;
        const unsigned char *from = peer == args->rank ? args->send : reach(comm, peer, at, sent);
        if (from == NULL) return false;
        out->from[peer] = from + (exchanges ? args->rank * args->bytes : 0);
    }
    return true;
}

/* ---- the copies ---- */

/* Whether the communicator's own streams can be used by a call on this stream: none of them belongs to a
 * capture that is not this stream's. Until a capture ends, so do the streams that it has come to. */
static bool are_free(const epw_coll_copying *c, const epw_stream_call *on) {
    for (uint32_t i = 0; i < EPW_COLL_COPY_STREAMS; i++) {
        unsigned long long its = 0, own = 0;
        if (epw_stream_capture_id(c->streams[i], &its) != cudaSuccess) return false;
        if (its == 0) continue;
        if (!on->captured || epw_stream_capture_id(on->stream, &own) != cudaSuccess || own != its)
            return false;
    }
    return true;
}

/* The streams that copy: the caller's, and `others` of the communicator's. */
typedef struct copying {
    const epw_coll_copying *c;
    cudaStream_t stream;
    uint32_t others;
} copying;

static int fork_streams(const copying *y) {
    int error = y->others > 0 ? cudaEventRecord(y->c->begun, y->stream) : cudaSuccess;
    for (uint32_t i = 0; error == cudaSuccess && i < y->others; i++)
        error = cudaStreamWaitEvent(y->c->streams[i], y->c->begun, 0);
    return error;
}

/* Even after an error: the caller's stream must not pass copies that run. */
static int join_streams(const copying *y) {
    int error = cudaSuccess;
    for (uint32_t i = 0; i < y->others; i++) {
        int ended = cudaEventRecord(y->c->ended[i], y->c->streams[i]);
        if (ended == cudaSuccess) ended = cudaStreamWaitEvent(y->stream, y->c->ended[i], 0);
        if (error == cudaSuccess) error = ended;
    }
    return error;
}

/* Each rank begins with a different peer, so that not all read from the same one, and ends with itself. */
static int copy_all(const copying *y, const epw_coll_copies_args *a) {
    const epw_coll_args *args = &a->common;
    uint32_t turn = 0;
    int error = cudaSuccess;
    for (uint32_t d = 1; error == cudaSuccess && d <= args->ranks; d++) {
        uint32_t peer = (args->rank + d) % args->ranks, lane = turn % (y->others + 1);
        unsigned char *to = args->recv + peer * args->bytes;
        if (a->from[peer] == NULL || a->from[peer] == to) continue;
        error = cudaMemcpyAsync(to, a->from[peer], args->bytes, cudaMemcpyDeviceToDevice,
                                lane > 0 ? y->c->streams[lane - 1] : y->stream);
        turn++;
    }
    return error;
}

int epw_coll_gpu_run_copies(epw_comm *comm, epw_coll_copies_args *a, uint32_t blocks,
                            const epw_stream_call *on) {
    const epw_coll_copying *c = &comm->gpu->copying;
    uint32_t most = a->common.ranks - 1;
    if (most > EPW_COLL_COPY_STREAMS) most = EPW_COLL_COPY_STREAMS;
    copying y = {.c = c, .stream = on->stream, .others = are_free(c, on) ? most : 0};
    if (on->captured) epw_peers_keep_mapped(&comm->peers, &comm->peers.active);
    int error = epw_coll_gpu_begin_copies(a, on->stream);
    if (error != cudaSuccess) return error;
    error = fork_streams(&y);
    int copied = error == cudaSuccess ? copy_all(&y, a) : error;
    error = join_streams(&y);
    if (error != cudaSuccess) return error;
    a->failed = copied != cudaSuccess; /* peers have been told of the operation, so its kernel does it */
    if (a->failed) cudaGetLastError();
    return epw_coll_gpu_end_copies(a, blocks, on->stream);
}
#else
typedef int epw_no_gpu_copies; /* ISO C requires a declaration in every file */
#endif
