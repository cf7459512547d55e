/* Regions of an adapter, and the thread that polls the signal words in them: an adapter does not wake anybody
 * when it writes a word. */
#include "nic/mlx5/parts.h"

#include "base/clock.h"
#include "base/readable.h"
#include "base/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* After a change it polls again soon, for a while, then less often. */
#define BUSY_NS UINT64_C(10000000)
#define SOON_NS 50000
#define LATE_NS 500000

enum { PAGE = 4096 };

struct epw_mlx5_memory {
    epw_mlx5_memory *next;
    epw_region region;
    epw_mlx5_region keys;
    uint32_t words;
    uint64_t seen[]; /* [words] */
};

static _Atomic uint64_t *word_of(const epw_mlx5_memory *m, uint32_t number) {
    return (_Atomic uint64_t *)(void *)(m->region.base + m->region.stretches[0].offset) + number;
}

/* Reading a word whose memory has failed would end the process, even if it does not use its buffers and only
 * asks for their health (epw_buffer_probe). So the kernel is asked first to read each page. */
static bool is_there(const epw_mlx5_memory *m, uint32_t number) {
    const _Atomic uint64_t *word = word_of(m, number);
    if (number > 0 && (uintptr_t)word % PAGE != 0) return true;
    return epw_word_readable(word, ~(uint32_t)m->seen[number]);
}

/* Polls the words with the lock held. Writer of a word: the adapter, after all that was posted before the
 * word. Reader: this thread. */
static bool look(epw_mlx5_memory *m) {
    bool came = false;
    for (uint32_t i = 0; i < m->words && is_there(m, i); i++) {
        uint64_t value = atomic_load_explicit(word_of(m, i), memory_order_acquire);
        if (value == m->seen[i]) continue;
        m->seen[i] = value;
        came = true;
        m->region.arrived(m->region.context, m->region.stretches[0].offset + i * sizeof value, value);
    }
    return came;
}

static void *watch_main(void *argument) {
    epw_thread_name("epw-watch");
    epw_mlx5_watch *w = argument;
    uint64_t busy_ns = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        bool any = false;
        for (epw_mlx5_memory *m = w->regions; m != NULL; m = m->next) {
            any |= m->words > 0;
            if (look(m)) busy_ns = epw_now_ns();
        }
        if (!any) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        long pause = epw_now_ns() - busy_ns < BUSY_NS ? SOON_NS : LATE_NS;
        pthread_mutex_unlock(&w->lock);
        nanosleep(&(struct timespec){0, pause}, NULL);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

epw_status epw_mlx5_start_watch(epw_mlx5 *adapter, epw_where where) {
    epw_mlx5_watch *w = &adapter->watch;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    int err = epw_thread_start(watch_main, w, &w->thread);
    w->started = err == 0;
    if (w->started) return EPW_OK;
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    return epw_fail_errno(err, where, "cannot start the thread that looks at words");
}

void epw_mlx5_end_watch(epw_mlx5 *adapter) {
    epw_mlx5_watch *w = &adapter->watch;
    if (!w->started) return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    w->started = false;
}

/* ---- regions ---- */

/* The smallest stretch that contains all of the region's. */
static epw_stretch span_of(const epw_region *region) {
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < region->count; i++) {
        const epw_stretch *s = &region->stretches[i];
        if (s->bytes == 0) continue;
        if (s->offset < first) first = s->offset;
        if (s->offset + s->bytes > end) end = s->offset + s->bytes;
    }
    return (epw_stretch){end > 0 ? first : 0, end > 0 ? end - first : 0};
}

static bool is_plain(const epw_mlx5 *adapter) {
    return adapter->calls->general == NULL;
}

/* Writes into a region with signal words stay in order; a region that is only read may be read in any order.
 * Not every vendor's adapter knows that. */
static uint32_t rights_of(const epw_mlx5 *adapter, const epw_region *region) {
    uint32_t rights = 0;
    if (region->rights & EPW_REGION_WRITE) rights |= EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE;
    if (region->rights & EPW_REGION_ATOMIC) rights |= EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_ATOMIC;
    return rights == 0 && !is_plain(adapter) ? EPW_MLX5_RELAXED_ORDERING : rights;
}

static void enter(epw_mlx5_watch *w, epw_mlx5_memory *m) {
    for (uint32_t i = 0; i < m->words; i++)
        m->seen[i] = atomic_load_explicit(word_of(m, i), memory_order_acquire);
    pthread_mutex_lock(&w->lock);
    m->next = w->regions;
    w->regions = m;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

epw_status epw_mlx5_register(epw_mlx5 *adapter, const epw_region *region, epw_where where, epw_keys *out) {
    uint32_t words = region->arrived != NULL ? (uint32_t)(region->stretches[0].bytes / sizeof(uint64_t)) : 0;
    epw_stretch span = span_of(region);
    epw_mlx5_memory *m = calloc(1, sizeof *m + words * sizeof m->seen[0]);
    if (m == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory to register memory");
    bool plain = is_plain(adapter);
    uint32_t rights = rights_of(adapter, region);
    if (plain && EPW_MLX5_SKEW(region->base) != 0 && (rights & EPW_MLX5_REMOTE_WRITE)) {
        free(m);
        return epw_fail(EPW_ERR_INVALID, where, "memory that peers write to does not begin on a page");
    }
    int err = adapter->calls->register_memory(adapter->pd, region->base + span.offset, span.bytes,
                                              span.offset + (plain ? EPW_MLX5_SKEW(region->base) : 0), rights,
                                              &m->keys);
    if (err != 0) {
        free(m);
        return epw_fail_errno(err, where, "%s does not register %llu bytes%s", adapter->name.text,
                              (unsigned long long)span.bytes,
                              err == ENOMEM ? ": raise the limit of locked memory (ulimit -l)" : "");
    }
    m->region = *region;
    m->words = words;
    enter(&adapter->watch, m);
    *out = (epw_keys){.own = m->keys.lkey, .its = m->keys.rkey};
    return EPW_OK;
}

/* By whichever way works. Returns 0, or the errnos of both. */
static epw_mlx5_reach reach_far(const epw_mlx5 *adapter, const epw_mlx5_far *far, epw_stretch span,
                                uint32_t rights, epw_mlx5_region *out, int *by_descriptor, int *by_address) {
    const epw_mlx5_calls *calls = adapter->calls;
    *by_descriptor = EOPNOTSUPP;
    if (far->dmabuf >= 0 && calls->register_descriptor != NULL)
        *by_descriptor = calls->register_descriptor(adapter->pd, far->dmabuf, span.offset, span.bytes,
                                                    span.offset, rights, out);
    if (*by_descriptor == 0) return EPW_MLX5_REACH_DMABUF;
    *by_address =
        calls->register_memory(adapter->pd, far->address + span.offset, span.bytes, span.offset, rights, out);
    return *by_address == 0 ? EPW_MLX5_REACH_PEERMEM : EPW_MLX5_REACH_NONE;
}

epw_status epw_mlx5_register_far(epw_mlx5 *adapter, const epw_mlx5_far *far, const epw_region *region,
                                 epw_where where, epw_keys *out) {
    static const char *const uses[] = {"send rows from", "let peers write to"};
    bool peers_write = region->rights & EPW_REGION_WRITE;
    epw_mlx5_reach reach = EPW_MLX5_REACH_UNORDERED;
    int by_descriptor = 0, by_address = 0;
    epw_mlx5_memory *m = calloc(1, sizeof *m);
    if (m == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory to register memory");
    if (!peers_write || !far->unordered)
        reach = reach_far(adapter, far, span_of(region), rights_of(adapter, region), &m->keys, &by_descriptor,
                          &by_address);
    if (reach == EPW_MLX5_REACH_PEERMEM) epw_mlx5_tell_by_address(adapter, by_descriptor, where);
    if (peers_write) atomic_store_explicit(&adapter->peer_reach, reach, memory_order_relaxed);
    if (reach == EPW_MLX5_REACH_DMABUF || reach == EPW_MLX5_REACH_PEERMEM) {
        enter(&adapter->watch, m);
        *out = (epw_keys){.own = m->keys.lkey, .its = m->keys.rkey};
        return EPW_OK;
    }
    free(m);
    if (reach == EPW_MLX5_REACH_UNORDERED)
        return epw_fail(
            EPW_ERR_NO_PATH, where,
            "peers cannot write to GPU memory by %s, because the GPU does not keep the order of an "
            "adapter's writes (GPU_DIRECT_RDMA_WRITES_ORDERING); EPWIRE_RINGS=host does without",
            adapter->name.text);
    if (!peers_write) atomic_store_explicit(&adapter->no_far_rows, true, memory_order_relaxed);
    return epw_fail(
        EPW_ERR_NO_PATH, where,
        "%s cannot %s GPU memory, neither by dma-buf (errno %d), which needs Linux 5.12 "
        "and the open GPU kernel modules, nor by nvidia_peermem (errno %d), which modprobe loads; "
        "EPWIRE_RINGS=host does without",
        adapter->name.text, uses[peers_write], by_descriptor, by_address);
}

void epw_mlx5_deregister(epw_mlx5 *adapter, uint32_t own) {
    epw_mlx5_watch *w = &adapter->watch;
    pthread_mutex_lock(&w->lock);
    epw_mlx5_memory **at = &w->regions;
    while (*at != NULL && (*at)->keys.lkey != own) at = &(*at)->next;
    epw_mlx5_memory *m = *at;
    if (m != NULL) *at = m->next;
    pthread_mutex_unlock(&w->lock);
    if (m == NULL) return;
    int err = adapter->calls->deregister(m->keys.handle);
    if (err != 0) epw_mlx5_tell_kept(adapter, -1, err, "the region of key 0x%x", own);
    free(m);
}
