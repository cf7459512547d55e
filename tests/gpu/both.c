#include "both.h"

#include <stdlib.h>
#include <string.h>

both_options both;

void activate(rank_state *r, uint64_t members) {
    epw_mask mask = {{members}};
    r->epoch++;
    REQUIRE_OK(epw_comm_set_active(r->gpu.comm, &mask, r->epoch, 0));
    REQUIRE_OK(epw_comm_set_active(r->host.comm, &mask, r->epoch, 0));
}

uint64_t all_of(const rank_links *links) {
    return (UINT64_C(1) << links->ranks) - 1;
}

/* Processes that share a GPU take turns on it. */
uint64_t deadline(void) {
    return (both.deadline_ms > 0 ? both.deadline_ms : both.processes ? 10000 : 2000) * MS;
}

static void take_pool(const rank_state *r, unsigned char **pool, uint64_t bytes) {
    if (both.heap) {
        REQUIRE_OK(epw_comm_alloc(r->gpu.comm, bytes, (void **)pool));
    } else {
        REQUIRE_CUDA(cudaMalloc((void **)pool, bytes));
    }
}

static void return_pool(const rank_state *r, unsigned char *pool) {
    if (both.heap) {
        epw_comm_free(r->gpu.comm, pool);
    } else {
        REQUIRE_CUDA(cudaFree(pool));
    }
}

/* Registers a pool, and maps those of the peers. */
static registered register_pool(const rank_state *r, unsigned char *pool, uint64_t bytes) {
    const rank_links *links = r->links;
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX];
    epw_mask all = {{all_of(links)}};
    registered made = {0};
    REQUIRE_OK(epw_comm_register(r->gpu.comm, pool, bytes, &made.own));
    for (uint32_t p = 0; p < links->ranks; p++) {
        size_t length = 0;
        if (p == links->rank) continue;
        REQUIRE_OK(epw_comm_export_registration(r->gpu.comm, made.own, p, blob, &length));
        ranks_say(links->to[p], blob, length);
    }
    for (uint32_t p = 0; p < links->ranks; p++) {
        if (p == links->rank) continue;
        size_t length = ranks_hear(links->to[p], blob, sizeof blob);
        REQUIRE_OK(epw_comm_import_registration(r->gpu.comm, p, blob, length, &made.theirs[p]));
    }
    ranks_meet(links);
    REQUIRE_OK(epw_comm_lend(r->gpu.comm, made.own, &all));
    return made;
}

/* Nobody uses the pools any more. */
static void deregister_pools(const rank_state *r) {
    for (uint32_t p = 0; p < r->links->ranks; p++) {
        if (p == r->links->rank) continue;
        for (uint32_t i = 0; i < 2; i++) REQUIRE_OK(epw_comm_unmap(r->gpu.comm, p, r->pools[i].theirs[p]));
    }
    ranks_meet(r->links);
    for (uint32_t i = 0; i < 2; i++) REQUIRE_OK(epw_comm_deregister(r->gpu.comm, r->pools[i].own));
}

void open_rank(rank_state *r, const rank_links *links) {
    *r = (rank_state){.links = links};
    REQUIRE_CUDA(cudaSetDevice(ranks_gpu(links)));
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.rank = links->rank;
    config.ranks = links->ranks;
    config.deadline_ns = deadline();
    REQUIRE_OK(epw_comm_create(&config, &r->host.comm));
    config.device = ranks_gpu(links);
    config.sms = ranks_sms(links, 1, 32);
    uint64_t bytes = both.gpu_pool_bytes;
    if (both.heap) config.heap_bytes = 2 * bytes;
    config.copy_engines_from = both.copy_engines;
    if (both.rings) config.slots = 8; /* what it is anyway, but then there are no lines */
    epw_config path = EPW_CONFIG_INIT;
    path.rank = links->rank;
    path.ranks = links->ranks;
    path.device = config.device;
    ranks_path(&path);
    config.fabric = r->fabric = path.fabric;
    config.paths = path.paths;
    REQUIRE_OK(epw_comm_create(&config, &r->gpu.comm));
    ranks_connect_comm(links, r->host.comm);
    ranks_connect_comm(links, r->gpu.comm);
    for (uint32_t p = 0; p < links->ranks; p++) ranks_require_path(links, p, epw_comm_path(r->gpu.comm, p));
    r->host.send = malloc(both.pool_bytes);
    r->host.recv = malloc(both.pool_bytes);
    r->copy = malloc(both.pool_bytes);
    REQUIRE(r->host.send != NULL && r->host.recv != NULL && r->copy != NULL, "no memory");
    take_pool(r, &r->gpu.send, bytes);
    take_pool(r, &r->gpu.recv, bytes);
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    activate(r, all_of(links));
    ranks_meet(links);
    if (!both.registers) return;
    r->pools[0] = register_pool(r, r->gpu.send, bytes);
    r->pools[1] = register_pool(r, r->gpu.recv, bytes);
    ranks_meet(links);
}

void close_rank(rank_state *r) {
    ranks_meet(r->links);
    REQUIRE_CUDA(cudaStreamSynchronize(r->stream));
    if (both.registers) deregister_pools(r);
    return_pool(r, r->gpu.send);
    return_pool(r, r->gpu.recv);
    epw_comm_destroy(r->gpu.comm);
    epw_comm_destroy(r->host.comm);
    epw_fabric_destroy(r->fabric);
    REQUIRE_CUDA(cudaStreamDestroy(r->stream));
    free(r->host.send);
    free(r->host.recv);
    free(r->copy);
}

void await_all(const rank_state *r, const char *what) {
    await_stream(r->stream, 60 * 1000 * MS, what);
}

epw_call on_stream(const rank_state *r) {
    epw_call call = EPW_CALL_INIT;
    call.stream = r->stream;
    return call;
}

epw_status call_and_wait(const rank_state *r, const epw_coll *c, epw_outcome *outcome) {
    epw_work work = 0;
    epw_call call = on_stream(r);
    call.work = &work;
    epw_status status = epw_group(r->gpu.comm, c, 1, &call, NULL);
    return status == EPW_OK ? epw_work_wait(r->gpu.comm, work, 60000 * MS, outcome) : status;
}

cudaGraphExec_t capture(const rank_state *r, const epw_coll *ops, size_t count) {
    epw_call call = on_stream(r);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    REQUIRE_CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    REQUIRE_OK(epw_group(r->gpu.comm, ops, count, &call, NULL));
    REQUIRE_CUDA(cudaStreamEndCapture(r->stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
    return exec;
}

void fill(unsigned char *to, uint64_t bytes, uint32_t type, int any, uint64_t state) {
    uint64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t v = next(&state);
        if (!any && type == EPW_TYPE_F16) v = (v & 0x8fff8fff8fff8fffu) | 0x3000300030003000u;
        if (!any && type == EPW_TYPE_BF16) v = (v & 0x807f807f807f807fu) | 0x3f803f003f803f00u;
        if (!any && type == EPW_TYPE_F32) v = (v & 0x807fffff807fffffu) | 0x3f8000003f000000u;
        if (!any && type == EPW_TYPE_F64) v = (v & 0x800fffffffffffffu) | 0x3fe0000000000000u;
        memcpy(to + i, &v, 8);
    }
    for (; i < bytes; i++) to[i] = (unsigned char)(i % 2 ? 0x3c : next(&state));
}

void copy_to_gpu(const rank_state *r, unsigned char *gpu, const unsigned char *host, uint64_t bytes) {
    REQUIRE_CUDA(cudaMemcpyAsync(gpu, host, bytes, cudaMemcpyHostToDevice, r->stream));
}

void require_same(const rank_state *r, const unsigned char *host, const unsigned char *gpu, uint64_t bytes,
                  const char *buffer, const char *words) {
    REQUIRE_CUDA(cudaMemcpyAsync(r->copy, gpu - GUARD, bytes + 2 * GUARD, cudaMemcpyDeviceToHost, r->stream));
    await_all(r, "copy");
    if (memcmp(r->copy, host - GUARD, bytes + 2 * GUARD) == 0) return;
    uint64_t at = 0, wrong = 0, first = 0;
    for (; at < bytes + 2 * GUARD; at++) {
        if (r->copy[at] == host[(int64_t)at - GUARD]) continue;
        if (wrong++ == 0) first = at;
    }
    uint64_t found = 0, wanted = 0;
    memcpy(&found, r->copy + first / 8 * 8, 8);
    memcpy(&wanted, host - GUARD + first / 8 * 8, 8);
    REQUIRE(0,
            "rank %u of %u: %llu bytes of %s are wrong, the first at %lld of %llu (%016llx for %016llx): %s",
            r->links->rank, r->links->ranks, (unsigned long long)wrong, buffer, (long long)first - GUARD,
            (unsigned long long)bytes, (unsigned long long)found, (unsigned long long)wanted, words);
}
