/* See probe.h. */
#include "nic/mlx5/probe.h"

#include "base/clock.h"
#include "device/cuda.h"
#include "device/cuda_rdma.h"
#include "device/cuda_registers.h"
#include "nic/mlx5/library.h"
#include "nic/mlx5/parts.h"
#include "nic/queue.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, DEPTH = 64 };

static const epw_where where = {"doctor", -1, -1};

typedef struct probe {
    const epw_mlx5_calls *calls;
    epw_fake *fake; /* NULL: a real adapter */
    uint64_t cable; /* the fake's link to itself, in its soft NIC */
    int32_t gpu;
    epw_mlx5 *adapter;
    epw_probe_list found;
} probe;

/* ---- DevX, port, capabilities ---- */

static bool open_adapter(probe *p, const char *name) {
    void *device;
    char exactly[EPW_MLX5_NAME_BYTES + 1], text[EPW_MLX5_TEXT];
    int err = p->calls->open(p->calls->library, name, &device);
    if (err != 0) {
        epw_probe_find(&p->found, EPW_PROBE_MISSING, "DevX", "", "%s", epw_mlx5_why_closed(p->calls, err));
        return false;
    }
    p->calls->close(device);
    epw_probe_find(&p->found, EPW_PROBE_OK, "DevX", "", "opens");
    snprintf(exactly, sizeof exactly, "=%s", name);
    if (epw_mlx5_open(p->calls, &(epw_mlx5_options){.filter = exactly}, where, &p->adapter) != EPW_OK) {
        epw_probe_find_error(&p->found, EPW_PROBE_MISSING, "capabilities");
        return false;
    }
    const epw_mlx5_caps *caps = &p->adapter->caps;
    epw_probe_find(&p->found, caps->atomic ? EPW_PROBE_OK : EPW_PROBE_WARNING, "capabilities",
                   caps->atomic ? "" : "see PCI_ATOMIC_MODE with mlxconfig",
                   "%s; rings of %u entries at most%s", epw_mlx5_describe(p->adapter, text),
                   1u << caps->log_qp_entries, caps->atomic ? ", atomics" : "");
    return true;
}

/* ---- a GPU ---- */

#ifdef EPW_CUDA

static int try_umem(const probe *p, void *address, int dmabuf) {
    epw_mlx5_umem umem;
    int err = p->calls->umem(p->adapter->device, address, PAGE, dmabuf, &umem);
    if (err == 0) p->calls->free_umem(umem.handle);
    return err;
}

static void look_at_rings(probe *p) {
    epw_rdma_memory memory;
    if (epw_cuda_open(p->gpu, where) != EPW_OK ||
        epw_cuda_rdma_alloc(p->gpu, PAGE, where, &memory) != EPW_OK) {
        epw_probe_find_error(&p->found, EPW_PROBE_UNKNOWN, "GPU rings");
        return;
    }
    int by_descriptor = memory.dmabuf >= 0 ? try_umem(p, NULL, memory.dmabuf) : EOPNOTSUPP;
    int by_address = try_umem(p, memory.address, -1);
    epw_probe_ways(&p->found, "GPU rings", "Linux 6.0", by_descriptor, by_address);
    epw_cuda_rdma_free(p->gpu, &memory);
}

static void look_at_mapping(probe *p, uint64_t *reg) {
    static const char name[] = "doorbells by kernels";
    uint64_t *mapped;
    epw_status status = epw_cuda_map_register(p->gpu, reg, p->calls->registers_in_memory, where, &mapped);
    if (status != EPW_OK) {
        epw_probe_find_error(&p->found, EPW_PROBE_WARNING, name);
        return;
    }
    epw_cuda_unmap_register(p->gpu, reg);
    epw_probe_find(&p->found, EPW_PROBE_OK, name, "", "the GPU maps the register");
}

#else

static void look_at_rings(probe *p) {
    epw_probe_find(&p->found, EPW_PROBE_UNKNOWN, "GPU rings", "", "%s", EPW_NO_CUDA);
}

static void look_at_mapping(probe *p, uint64_t *reg) {
    (void)reg;
    epw_probe_find(&p->found, EPW_PROBE_UNKNOWN, "doorbells by kernels", "", "%s", EPW_NO_CUDA);
}

#endif

static void look_at_gpu(probe *p) {
    epw_mlx5_spare *spare = NULL;
    if (p->gpu >= 0) look_at_rings(p);
    epw_probe_windows(&p->found, p->calls, p->adapter->pd, p->gpu);
    if (p->gpu < 0) {
        epw_probe_find(&p->found, EPW_PROBE_UNKNOWN, "doorbells by kernels", "", EPW_PROBE_NO_GPU);
        return;
    }
    if (epw_mlx5_take_register(p->adapter, where, &spare) != EPW_OK) return; /* the queue pair reports why */
    look_at_mapping(p, spare->uar.reg);
    epw_mlx5_give_register(p->adapter, spare);
}

/* ---- a queue pair that is connected to itself ---- */

static bool await_word(const uint64_t *word, uint64_t value) {
    for (int ms = 0; ms < EPW_PROBE_WAIT_MS && epw_load_acquire_64(word) != value; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return epw_load_acquire_64(word) == value;
}

/* Posts as any poster does: the adapter reads the entry and the doorbell record after the doorbell was
 * rung. */
static void post_word(epw_mlx5_pair *pair, const epw_keys *keys, uint64_t value) {
    const epw_pair_memory *memory = epw_mlx5_pair_memory(pair);
    uint64_t marks[DEPTH] = {0};
    uint64_t index = 0;
    epw_queue queue = {.entries = (epw_entry_block *)memory->entries,
                       .marks = marks,
                       .record = memory->record,
                       .doorbell = memory->doorbell,
                       .completions.entry = (const uint32_t *)(const void *)memory->completion,
                       .depth = DEPTH,
                       .pair = epw_mlx5_pair_number(pair),
                       .batch = 1};
    if (!epw_queue_try_reserve(&queue, 1, &index)) return; /* never full: the queue is empty */
    epw_entry_write_word(epw_queue_slot(&queue, index), queue.pair, index,
                         (epw_place_of){0, epw_key_of(keys->its)}, value, EPW_SIGNAL_ALWAYS);
    epw_queue_publish(&queue, index, 1);
    if (epw_queue_ring(&queue, true)) epw_mlx5_pair_ring(pair);
}

static void tell_unheard(probe *p, const epw_mlx5_pair *pair, const char *name) {
    const uint32_t *completion = (const uint32_t *)(const void *)epw_mlx5_pair_memory(pair)->completion;
    epw_completions completions = {.entry = completion};
    epw_queue_fault fault;
    if (epw_completions_failed(&completions, &fault)) {
        epw_probe_find_failed(&p->found, name, fault.syndrome, fault.vendor);
    } else {
        epw_probe_find_unheard(&p->found, name);
    }
}

static void send_to_itself(probe *p, epw_mlx5_pair *pair, uint64_t *word, const epw_keys *keys,
                           const char *name) {
    epw_mlx5_address self = epw_mlx5_address_of(p->adapter);
    uint32_t number = epw_mlx5_pair_number(pair);
    if (p->fake != NULL) {
        epw_fake_route route = {.lid = self.lid, .remote = number, .link = p->cable};
        memcpy(route.gid, self.gid, sizeof route.gid);
        epw_fake_add_route(p->fake, number, &route);
    }
    if (epw_mlx5_pair_connect(pair, number, &self, EPW_PROBE_RETRIES_NS, where) != EPW_OK) {
        epw_probe_find_error(&p->found, EPW_PROBE_MISSING, name);
        return;
    }
    post_word(pair, keys, 1);
    if (!await_word(word, 1)) {
        tell_unheard(p, pair, name);
        return;
    }
    if (p->adapter->worst_uar == EPW_MLX5_UAR_OWN) {
        epw_probe_find(&p->found, EPW_PROBE_OK, name, "", "a word sent to itself arrived");
    } else {
        epw_probe_find(&p->found, EPW_PROBE_WARNING, name, "rdma-core 45 or newer, and a newer kernel",
                       "a word sent to itself arrived; doorbells share a register or a page");
    }
}

static void look_at_queue_pair(probe *p) {
    static const char name[] = "queue pair";
    uint64_t *page = epw_probe_page();
    if (page == NULL) {
        epw_probe_find(&p->found, EPW_PROBE_UNKNOWN, name, "", "there is no memory to try it with");
        return;
    }
    epw_region region = {.base = (unsigned char *)page,
                         .rights = EPW_REGION_WRITE,
                         .count = 1,
                         .stretches = {{0, sizeof *page}}};
    epw_keys keys = {0};
    epw_mlx5_pair *pair = NULL;
    epw_status status = epw_mlx5_register(p->adapter, &region, where, &keys);
    if (status == EPW_OK)
        status = epw_mlx5_pair_create(p->adapter, &(epw_mlx5_pair_options){.depth = DEPTH}, where, &pair);
    if (status == EPW_OK) {
        send_to_itself(p, pair, page, &keys, name);
    } else {
        epw_probe_find_error(&p->found, EPW_PROBE_MISSING, name);
    }
    bool gone = epw_mlx5_pair_destroy(pair);
    if (keys.own != 0) epw_mlx5_deregister(p->adapter, keys.own);
    if (gone) epw_probe_free_page(page); /* otherwise the adapter may still write there */
}

/* ---- all of it ---- */

static uint32_t look(probe *p, const char *name) {
    if (!open_adapter(p, name)) return p->found.count;
    epw_probe_host_memory(&p->found, p->calls, p->adapter->device, p->adapter->pd);
    look_at_gpu(p);
    look_at_queue_pair(p);
    epw_mlx5_close(p->adapter);
    return p->found.count;
}

uint32_t epw_mlx5_probe(const char *name, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]) {
    probe p = {.gpu = gpu, .found = {.out = out}};
    if (epw_mlx5_library(where, &p.calls) == EPW_OK) return look(&p, name);
    epw_probe_find_error(&p.found, EPW_PROBE_MISSING, "libmlx5");
    return p.found.count;
}

/* Adds a link from the fake's soft NIC to itself. */
static epw_status lay_cable(epw_nic *nic, uint64_t *out) {
    int fds[2];
    uint64_t other;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        return epw_fail_errno(errno, where, "socketpair");
    epw_status status = epw_nic_add_link(nic, fds[0], 0, where, out);
    if (status != EPW_OK) {
        close(fds[1]);
        return status;
    }
    return epw_nic_add_link(nic, fds[1], 0, where, &other);
}

uint32_t epw_mlx5_probe_fake(uint64_t lacks, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]) {
    probe p = {.gpu = gpu, .found = {.out = out}};
    epw_nic *nic = NULL;
    epw_status status = epw_nic_open(where, &nic);
    if (status == EPW_OK) status = lay_cable(nic, &p.cable);
    if (status == EPW_OK)
        status = epw_fake_open(&(epw_fake_options){.nic = nic, .lacks = lacks}, where, &p.fake);
    if (status == EPW_OK) {
        p.calls = epw_fake_calls(p.fake);
        look(&p, "fake_0");
    } else {
        epw_probe_find_error(&p.found, EPW_PROBE_UNKNOWN, "fake");
    }
    epw_fake_close(p.fake);
    epw_nic_close(nic);
    return p.found.count;
}
