/* See remote_gpu.h. */
#include "peer/remote_gpu.h"

#include "device/cuda.h"
#include "device/cuda_rdma.h"
#include "device/cuda_registers.h"
#include "device/memory_limit.h"
#include "nic/fabric.h"
#include "peer/direct.h"
#include "peer/inbox.h"

#ifdef EPW_CUDA
#include <stdlib.h>

static epw_status pinned(const epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    void *host, *device;
    epw_status status = epw_memory_limit_check("", "pinned memory for peers behind queues,", bytes, where);
    if (status == EPW_OK) status = epw_cuda_host_alloc(peers->gpu->device, bytes, where, &host, &device);
    if (status != EPW_OK) return status;
    status = epw_cuda_check_address(peers->gpu->device, host, device, where);
    if (status != EPW_OK) {
        epw_cuda_host_free(peers->gpu->device, host);
        return status;
    }
    *out = host;
    return EPW_OK;
}

epw_status epw_remote_gpu_image(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    return pinned(peers, bytes, where, out);
}

/* Unused rings form a list: the first bytes of each hold the address of the next one. */
epw_status epw_remote_gpu_take_ring(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    pthread_mutex_lock(&peers->gpu->rings_lock);
    unsigned char *ring = peers->gpu->rings;
    if (ring != NULL) memcpy(&peers->gpu->rings, ring, sizeof ring);
    pthread_mutex_unlock(&peers->gpu->rings_lock);
    if (ring == NULL) return pinned(peers, bytes, where, out);
    *out = ring;
    return EPW_OK;
}

void epw_remote_gpu_give_ring(epw_peers *peers, unsigned char *ring) {
    pthread_mutex_lock(&peers->gpu->rings_lock);
    memcpy(ring, &peers->gpu->rings, sizeof ring);
    peers->gpu->rings = ring;
    pthread_mutex_unlock(&peers->gpu->rings_lock);
}

struct epw_gpu_entries {
    epw_gpu_entries *next; /* of those that nobody uses */
    epw_rdma_memory memory;
    epw_mlx5_far far;
};

static epw_status make(epw_peers *peers, uint64_t bytes, epw_where where, epw_gpu_entries **out) {
    epw_gpu_entries *made = calloc(1, sizeof *made);
    if (made == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a ring");
    epw_status status = epw_cuda_rdma_alloc(peers->gpu->device, bytes, where, &made->memory);
    if (status != EPW_OK) {
        free(made);
        return status;
    }
    made->far = (epw_mlx5_far){.address = made->memory.address, .dmabuf = made->memory.dmabuf};
    *out = made;
    return EPW_OK;
}

static void unmake(epw_peers *peers, epw_gpu_entries *made) {
    epw_cuda_rdma_free(peers->gpu->device, &made->memory);
    free(made);
}

epw_status epw_remote_gpu_far_image(epw_peers *peers, uint64_t bytes, epw_where where, epw_mlx5_far *far) {
    epw_status status = make(peers, bytes, where, &peers->gpu->image);
    if (status == EPW_OK) *far = peers->gpu->image->far;
    return status;
}

void epw_remote_gpu_free_image(epw_peers *peers, unsigned char *image) {
    if (peers->gpu->image != NULL) {
        unmake(peers, peers->gpu->image);
        peers->gpu->image = NULL;
    } else {
        epw_cuda_host_free(peers->gpu->device, image);
    }
}

epw_status epw_remote_gpu_take_entries(epw_peers *peers, uint64_t bytes, epw_where where,
                                       epw_gpu_entries **out) {
    pthread_mutex_lock(&peers->gpu->rings_lock);
    epw_gpu_entries *ring = peers->gpu->spare_entries;
    if (ring != NULL) peers->gpu->spare_entries = ring->next;
    pthread_mutex_unlock(&peers->gpu->rings_lock);
    *out = ring;
    return ring != NULL ? EPW_OK : make(peers, bytes, where, out);
}

void epw_remote_gpu_give_entries(epw_peers *peers, epw_gpu_entries *ring) {
    pthread_mutex_lock(&peers->gpu->rings_lock);
    ring->next = peers->gpu->spare_entries;
    peers->gpu->spare_entries = ring;
    pthread_mutex_unlock(&peers->gpu->rings_lock);
}

const epw_mlx5_far *epw_remote_gpu_entries(const epw_gpu_entries *ring) {
    return &ring->far;
}

static epw_gpu_register *mapped(const epw_peers_gpu *g, const uint64_t *reg) {
    for (uint32_t i = 0; i < g->register_count; i++)
        if (g->registers[i].host == reg) return &g->registers[i];
    return NULL;
}

epw_status epw_remote_gpu_map_register(epw_peers *peers, uint64_t *reg, bool in_memory, epw_where where,
                                       uint64_t **out) {
    epw_peers_gpu *g = peers->gpu;
    epw_gpu_register *known = mapped(g, reg);
    if (known == NULL) {
        epw_gpu_register *more = realloc(g->registers, (g->register_count + 1) * sizeof *more);
        if (more == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a doorbell register");
        g->registers = more;
        known = &more[g->register_count];
        known->host = reg;
        epw_status status = epw_cuda_map_register(g->device, reg, in_memory, where, &known->device);
        if (status != EPW_OK) return status;
        g->register_count++;
    }
    *out = known->device;
    return EPW_OK;
}

uint64_t epw_remote_gpu_ways_bytes(uint32_t lanes) {
    return (uint64_t)lanes * EPW_GPU_PEERS * sizeof(epw_gpu_way);
}

uint64_t epw_remote_gpu_marks_bytes(uint32_t lanes, uint32_t ranks, uint32_t depth) {
    return (uint64_t)lanes * ranks * depth * sizeof(uint64_t);
}

/* Where peers behind queues write: to the window if that is asked for, with EPW_RINGS_AUTO only if adapters
 * reach it; else to an inbox. */
static epw_status open_arrivals(epw_peers *peers, epw_where where) {
    int32_t device = peers->gpu->device;
    if (!epw_direct_is_wanted(peers)) return epw_inbox_open(peers, device, where);
    epw_status status = epw_direct_open(peers, device, where);
    if (status != EPW_ERR_NO_PATH || epw_fabric_rings(peers->fabric) == EPW_RINGS_GPU) return status;
    epw_fabric_fall_back(peers->fabric, EPW_FALLBACK_ARRIVALS);
    return epw_inbox_open(peers, device, where);
}

epw_status epw_remote_gpu_open(epw_peers *peers, epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    pthread_mutex_init(&g->rings_lock, NULL);
    if (!epw_peers_has_queues(peers)) return EPW_OK;
    void *at;
    epw_status status = epw_cuda_alloc(g->device, epw_remote_gpu_ways_bytes(peers->lanes), where, &at);
    if (status != EPW_OK) return status;
    g->ways = at;
    uint64_t marks = epw_remote_gpu_marks_bytes(peers->lanes, peers->ranks, peers->depth);
    status = epw_cuda_alloc(g->device, marks, where, &at);
    if (status == EPW_OK) g->marks = at;
    void *unused;
    if (status == EPW_OK)
        status = epw_cuda_host_alloc(g->device, peers->depth * sizeof g->marks[0], where, &at, &unused);
    if (status == EPW_OK) g->no_marks = at;
    return status == EPW_OK ? open_arrivals(peers, where) : status;
}

void epw_remote_gpu_close(epw_peers *peers) {
    epw_peers_gpu *g = peers->gpu;
    epw_remotes_close(peers);
    while (g->rings != NULL) {
        unsigned char *ring = g->rings;
        memcpy(&g->rings, ring, sizeof ring);
        epw_cuda_host_free(g->device, ring);
    }
    while (g->spare_entries != NULL) {
        epw_gpu_entries *ring = g->spare_entries;
        g->spare_entries = ring->next;
        unmake(peers, ring);
    }
    for (uint32_t i = 0; i < g->register_count; i++) epw_cuda_unmap_register(g->device, g->registers[i].host);
    free(g->registers);
    epw_inbox_close(peers);
    epw_direct_close(peers);
    epw_cuda_free(g->device, g->ways);
    epw_cuda_free(g->device, g->marks);
    epw_cuda_host_free(g->device, g->no_marks);
    pthread_mutex_destroy(&g->rings_lock);
}

epw_status epw_remote_gpu_enter(const epw_peers *peers, uint32_t peer, const epw_gpu_way *ways,
                                epw_where where) {
    epw_peers_gpu *g = peers->gpu;
    epw_rank_set *known = &g->pinned->queued;
    if (g->ways == NULL) return EPW_OK;
    cudaError_t error = cudaSuccess;
    uint32_t depth = peers->depth;
    for (uint32_t lane = 0; ways != NULL && error == cudaSuccess && lane < peers->lanes; lane++) {
        uint64_t *marks = g->marks + ((size_t)lane * peers->ranks + peer) * depth;
        epw_gpu_way *way = &g->pinned->ways[lane][peer];
        *way = ways[lane];
        way->queue.marks = marks;
        /* Not a memset, which may be a kernel, and have to wait for one that waits. */
        error = cudaMemcpyAsync(marks, g->no_marks, depth * sizeof *marks, cudaMemcpyDefault, g->stream);
        if (error == cudaSuccess)
            error = cudaMemcpyAsync(&g->ways[(size_t)lane * EPW_GPU_PEERS + peer], way, sizeof *way,
                                    cudaMemcpyDefault, g->stream);
    }
    if (ways != NULL) {
        epw_ranks_insert(known, peer);
    } else {
        epw_ranks_remove(known, peer);
    }
    for (uint32_t lane = 0; error == cudaSuccess && lane < peers->lanes; lane++)
        error = cudaMemcpyAsync(&g->lanes[lane]->queued, known, sizeof *known, cudaMemcpyDefault, g->stream);
    return error == cudaSuccess ? EPW_OK : epw_fail_cuda(error, where, "cudaMemcpyAsync of a peer's queues");
}

void epw_remote_gpu_broken(epw_peers *peers, uint32_t peer, bool broken) {
    if (broken) {
        epw_ranks_insert(&peers->gpu->pinned->broken, peer);
    } else {
        epw_ranks_remove(&peers->gpu->pinned->broken, peer);
    }
}

#else

epw_status epw_remote_gpu_image(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    (void)peers, (void)bytes, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

epw_status epw_remote_gpu_far_image(epw_peers *peers, uint64_t bytes, epw_where where, epw_mlx5_far *far) {
    (void)peers, (void)bytes, (void)far;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_remote_gpu_free_image(epw_peers *peers, unsigned char *image) {
    (void)peers, (void)image;
}

epw_status epw_remote_gpu_take_ring(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    (void)peers, (void)bytes, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_remote_gpu_give_ring(epw_peers *peers, unsigned char *ring) {
    (void)peers, (void)ring;
}

epw_status epw_remote_gpu_take_entries(epw_peers *peers, uint64_t bytes, epw_where where,
                                       epw_gpu_entries **out) {
    (void)peers, (void)bytes, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_remote_gpu_give_entries(epw_peers *peers, epw_gpu_entries *ring) {
    (void)peers, (void)ring;
}

const epw_mlx5_far *epw_remote_gpu_entries(const epw_gpu_entries *ring) {
    (void)ring;
    return NULL;
}

epw_status epw_remote_gpu_map_register(epw_peers *peers, uint64_t *reg, bool in_memory, epw_where where,
                                       uint64_t **out) {
    (void)peers, (void)reg, (void)in_memory, (void)out;
    return epw_fail(EPW_ERR_NO_PATH, where, EPW_NO_CUDA);
}

void epw_remote_gpu_broken(epw_peers *peers, uint32_t peer, bool broken) {
    (void)peers, (void)peer, (void)broken;
}

#endif
