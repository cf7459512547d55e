/* See inbox.h. */
#include "peer/inbox.h"

#include "device/cuda.h"

#ifdef EPW_CUDA
#include "device/memory_limit.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHUNK_BYTES EPW_INBOX_CHUNK_BYTES

/* Of a chunk. */
enum { FREE, PINNED, FIRST_PINNED /* of the chunks that were pinned by one call */ };

struct epw_inbox {
    int32_t device;
    uint64_t bytes;
    unsigned char chunks[]; /* what became of each */
};

/* Not shared with other processes, nor with a forked child, which could write there in its parent's place;
 * and after a fork the parent must still have the pages that the GPU uses. */
epw_status epw_inbox_open(epw_peers *peers, int32_t device, epw_where where) {
    epw_remote_shape shape = epw_peers_shape(peers);
    uint64_t bytes = epw_inbox_bytes(&shape);
    struct epw_inbox *memory = calloc(1, sizeof *memory + bytes / CHUNK_BYTES);
    if (memory == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for an inbox's description");
    *memory = (struct epw_inbox){.device = device, .bytes = bytes};
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED && !madvise(at, bytes, MADV_DONTFORK) &&
        !mprotect(at, bytes, PROT_READ | PROT_WRITE)) {
        peers->inbox = peers->lines = at;
        peers->inbox_memory = memory;
        return EPW_OK;
    }
    epw_status status =
        epw_fail_errno(errno, where, "reserving addresses for what peers behind queues write");
    if (at != MAP_FAILED) munmap(at, bytes);
    free(memory);
    return status;
}

void epw_inbox_close(epw_peers *peers) {
    struct epw_inbox *memory = peers->inbox_memory;
    epw_cuda_scope scope;
    if (memory == NULL) return;
    if (epw_cuda_enter_relaxed(memory->device, (epw_where){"destroy", (int)peers->rank, -1}, &scope) ==
        EPW_OK) {
        for (uint64_t i = 0; i < memory->bytes / CHUNK_BYTES; i++) {
            if (memory->chunks[i] == FIRST_PINNED) (void)cudaHostUnregister(peers->inbox + i * CHUNK_BYTES);
        }
        epw_cuda_leave_relaxed(&scope);
    }
    munmap(peers->inbox, memory->bytes);
    free(memory);
    peers->inbox = peers->lines = NULL;
    peers->inbox_memory = NULL;
}

/* ---- pinning ---- */

/* Called in a scope of the GPU. At the same address for the GPU, as kernels require. */
static epw_status pin(epw_peers *peers, uint64_t first, uint64_t count, epw_where where) {
    unsigned char *at = peers->inbox + first * CHUNK_BYTES;
    void *seen = NULL;
    cudaError_t error =
        cudaHostRegister(at, count * CHUNK_BYTES, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error != cudaSuccess)
        return epw_fail_cuda(error, where, "cudaHostRegister of what a peer behind a queue writes");
    peers->inbox_memory->chunks[first] = FIRST_PINNED;
    for (uint64_t i = 1; i < count; i++) peers->inbox_memory->chunks[first + i] = PINNED;
    error = cudaHostGetDevicePointer(&seen, at, 0);
    if (error != cudaSuccess) return epw_fail_cuda(error, where, "cudaHostGetDevicePointer");
    return epw_cuda_check_address(peers->inbox_memory->device, at, seen, where);
}

/* Goes through the free chunks of a stretch: adds their size to `bytes`, or pins them if that is NULL. */
static epw_status visit(epw_peers *peers, epw_stretch stretch, uint64_t *bytes, epw_where where) {
    const unsigned char *chunks = peers->inbox_memory->chunks;
    uint64_t at = stretch.offset / CHUNK_BYTES, end = (stretch.offset + stretch.bytes - 1) / CHUNK_BYTES + 1;
    epw_status status = EPW_OK;
    while (status == EPW_OK && at < end) {
        uint64_t count = 0;
        while (at + count < end && chunks[at + count] == FREE) count++;
        if (count == 0) {
            at++;
            continue;
        }
        if (bytes != NULL) *bytes += count * CHUNK_BYTES;
        if (bytes == NULL) status = pin(peers, at, count, where);
        at += count;
    }
    return status;
}

static epw_status visit_all(epw_peers *peers, uint32_t peer, uint64_t *bytes, epw_where where) {
    epw_stretch line = {epw_line_offset(peer), sizeof(epw_line)};
    epw_status status = visit(peers, line, bytes, where);
    for (uint32_t lane = 0; lane < peers->lanes; lane++) {
        for (uint32_t area = 0; status == EPW_OK && area < EPW_AREAS; area++) {
            epw_stretch stretch = peers->user->footprint(peers->user_context, peer, lane, area);
            status = visit(peers, stretch, bytes, where);
        }
    }
    return status;
}

epw_status epw_inbox_pin(epw_peers *peers, uint32_t peer, epw_where where) {
    uint64_t bytes = 0; /* an upper bound: a chunk that stretches share is counted for each of them */
    epw_cuda_scope scope;
    (void)visit_all(peers, peer, &bytes, where);
    if (bytes == 0) return EPW_OK;
    epw_status status = epw_memory_limit_check("", "pinned memory for a peer behind a queue,", bytes, where);
    if (status == EPW_OK) status = epw_cuda_enter_relaxed(peers->inbox_memory->device, where, &scope);
    if (status != EPW_OK) return status;
    status = visit_all(peers, peer, NULL, where);
    epw_cuda_leave_relaxed(&scope);
    return status;
}

#else

epw_status epw_inbox_pin(epw_peers *peers, uint32_t peer, epw_where where) {
    (void)peers, (void)peer;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

#endif
