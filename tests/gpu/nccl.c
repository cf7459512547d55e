#include "nccl.h"

#include "require.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The part of its interface that is used, with its published names and values. */
typedef struct unique_id {
    char bytes[128];
} unique_id;
enum { BF16 = 9, SUM = 0 };

struct nccl {
    void *library, *comm;
    uint32_t ranks;
    int (*get_id)(unique_id *);
    int (*init)(void **, int, unique_id, int);
    int (*destroy)(void *);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, cudaStream_t);
    int (*all_gather)(const void *, void *, size_t, int, void *, cudaStream_t);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, cudaStream_t);
    int (*broadcast)(const void *, void *, size_t, int, int, void *, cudaStream_t);
    int (*send)(const void *, size_t, int, int, void *, cudaStream_t);
    int (*recv)(void *, size_t, int, int, void *, cudaStream_t);
};

static void must(int error, const char *what) {
    REQUIRE(error == 0, "%s: NCCL's error %d", what, error);
}

static void find(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    REQUIRE(*(void **)function != NULL, "NCCL's library has no %s", name);
}

nccl *nccl_open(const char *library, const rank_links *links) {
    nccl *n = calloc(1, sizeof *n);
    REQUIRE(n != NULL, "no memory");
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(n->library != NULL, "%s", dlerror());
    n->ranks = links->ranks;
    find(n->library, "ncclGetUniqueId", &n->get_id);
    find(n->library, "ncclCommInitRank", &n->init);
    find(n->library, "ncclCommDestroy", &n->destroy);
    find(n->library, "ncclGroupStart", &n->group_start);
    find(n->library, "ncclGroupEnd", &n->group_end);
    find(n->library, "ncclAllReduce", &n->all_reduce);
    find(n->library, "ncclAllGather", &n->all_gather);
    find(n->library, "ncclReduceScatter", &n->reduce_scatter);
    find(n->library, "ncclBroadcast", &n->broadcast);
    find(n->library, "ncclSend", &n->send);
    find(n->library, "ncclRecv", &n->recv);
    unique_id id;
    if (links->rank == 0) {
        must(n->get_id(&id), "ncclGetUniqueId");
        for (uint32_t p = 1; p < links->ranks; p++) ranks_say(links->to[p], &id, sizeof id);
    } else {
        size_t length = ranks_hear(links->to[0], &id, sizeof id);
        REQUIRE(length == sizeof id, "an identifier of %zu bytes", length);
    }
    must(n->init(&n->comm, (int)links->ranks, id, (int)links->rank), "ncclCommInitRank");
    return n;
}

void nccl_close(nccl *n) {
    if (n == NULL) return;
    must(n->destroy(n->comm), "ncclCommDestroy");
    free(n); /* the library stays loaded: it has threads */
}

static void all_to_all(const nccl *n, const epw_coll *c, cudaStream_t stream) {
    must(n->group_start(), "ncclGroupStart");
    for (uint32_t p = 0; p < n->ranks; p++) {
        size_t offset = p * (size_t)c->count * 2;
        must(n->send((const char *)c->send + offset, c->count, BF16, (int)p, n->comm, stream), "ncclSend");
        must(n->recv((char *)c->recv + offset, c->count, BF16, (int)p, n->comm, stream), "ncclRecv");
    }
    must(n->group_end(), "ncclGroupEnd");
}

void nccl_enqueue(const nccl *n, const epw_coll *c, cudaStream_t stream) {
    switch (c->kind) {
    case EPW_ALL_REDUCE:
        must(n->all_reduce(c->send, c->recv, c->count, BF16, SUM, n->comm, stream), "ncclAllReduce");
        break;
    case EPW_ALL_GATHER:
        must(n->all_gather(c->send, c->recv, c->count, BF16, n->comm, stream), "ncclAllGather");
        break;
    case EPW_ALL_TO_ALL:
        all_to_all(n, c, stream);
        break;
    case EPW_REDUCE_SCATTER:
        must(n->reduce_scatter(c->send, c->recv, c->count, BF16, SUM, n->comm, stream), "ncclReduceScatter");
        break;
    case EPW_BROADCAST:
        must(n->broadcast(c->send, c->recv, c->count, BF16, 0, n->comm, stream), "ncclBroadcast");
        break;
    default:
        REQUIRE(0, "NCCL has no operation %u", c->kind);
    }
}
