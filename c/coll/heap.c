/* See heap.h. First fit; a freed piece is merged with free neighbours. */
#include "coll/heap.h"

#include <stdlib.h>

enum { LINE = 64 };

typedef struct epw_heap_piece {
    uint64_t offset, bytes;
    bool used;
    struct epw_heap_piece *next;
} piece;

bool epw_heap_make(epw_comm *comm) {
    if (comm->layout.heap_bytes == 0) return true;
    comm->heap = calloc(1, sizeof *comm->heap);
    if (comm->heap != NULL) *comm->heap = (piece){.bytes = comm->layout.heap_bytes};
    return comm->heap != NULL;
}

void epw_heap_free(epw_comm *comm) {
    while (comm->heap != NULL) {
        piece *next = comm->heap->next;
        free(comm->heap);
        comm->heap = next;
    }
}

static piece *find_free(piece *at, uint64_t bytes) {
    while (at != NULL && (at->used || at->bytes < bytes)) at = at->next;
    return at;
}

static epw_status take(epw_comm *comm, uint64_t bytes, epw_where where, piece **out) {
    piece *at = find_free(comm->heap, bytes);
    if (at == NULL)
        return epw_fail(EPW_ERR_LIMIT, where,
                        "no %llu bytes are free in one piece: config.heap_bytes is %llu",
                        (unsigned long long)bytes, (unsigned long long)comm->config.heap_bytes);
    if (at->bytes > bytes) {
        piece *rest = malloc(sizeof *rest);
        if (rest == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a piece of the heap");
        *rest = (piece){.offset = at->offset + bytes, .bytes = at->bytes - bytes, .next = at->next};
        at->bytes = bytes;
        at->next = rest;
    }
    at->used = true;
    *out = at;
    return EPW_OK;
}

epw_status epw_comm_alloc(epw_comm *comm, uint64_t bytes, void **memory) {
    if (comm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"alloc", -1, -1}, "comm is NULL");
    epw_where where = epw_comm_where(comm, "alloc");
    if (memory == NULL) return epw_fail(EPW_ERR_INVALID, where, "memory is NULL");
    if (bytes > comm->layout.heap_bytes)
        return epw_fail(EPW_ERR_LIMIT, where, "%llu bytes are more than config.heap_bytes, %llu",
                        (unsigned long long)bytes, (unsigned long long)comm->config.heap_bytes);
    piece *taken = NULL;
    pthread_mutex_lock(&comm->heap_lock);
    epw_status status = take(comm, epw_align(bytes > 0 ? bytes : 1, LINE), where, &taken);
    if (status == EPW_OK) *memory = epw_peers_own(&comm->peers) + comm->layout.heap_offset + taken->offset;
    pthread_mutex_unlock(&comm->heap_lock);
    return status;
}

static void join(piece *at) {
    piece *next = at->next;
    if (at->used || next == NULL || next->used) return;
    at->bytes += next->bytes;
    at->next = next->next;
    free(next);
}

void epw_comm_free(epw_comm *comm, void *memory) {
    if (comm == NULL || memory == NULL) return;
    uint64_t offset =
        (uint64_t)((unsigned char *)memory - epw_peers_own(&comm->peers)) - comm->layout.heap_offset;
    pthread_mutex_lock(&comm->heap_lock);
    piece *before = NULL, *at = comm->heap;
    while (at != NULL && at->offset != offset) before = at, at = at->next;
    if (at != NULL && at->used) {
        at->used = false;
        join(at);
        if (before != NULL) join(before);
    }
    pthread_mutex_unlock(&comm->heap_lock);
}
