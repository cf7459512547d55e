/* See pool.h. No thread ever waits for a lock that a worker holds, because a worker may lose its core at any
 * point: jobs are handed out and counted by atomics, and futexes serve only for sleeping. */
#include "base/pool.h"

#include "base/barrier.h"
#include "base/float_state.h"
#include "base/status.h"
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bit of `unfinished`: the caller sleeps until the other bits are zero. */
#define CALLER_SLEEPS UINT32_C(0x80000000)

struct epw_pool {
    uint32_t threads;
    pthread_mutex_t turn; /* held by the caller whose job is running */
    /* The job. Written by the caller while there is no item to take; a thread reads it between taking an item
     * and counting it as finished. */
    epw_pool_fn fn;
    void *context;
    uint32_t items;
    _Atomic int64_t left;        /* items that nobody has taken yet; negative after threads have found none
                                  * left */
    _Atomic uint32_t unfinished; /* items that have not ended, and CALLER_SLEEPS */
    _Atomic uint32_t jobs;       /* number of jobs so far; idle workers sleep on it */
    atomic_bool ending;
    struct worker {
        epw_pool *pool;
        uint32_t index;
        pthread_t thread;
    } workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t threads) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

/* Takes items until there are none, then counts those it took as finished.
 *
 * `left`: writer, the caller in epw_pool_run, which has written the job before; reader, the thread that takes
 * an item here; release to acquire. The item belongs to the job of that moment, however long ago the thread
 * was woken, and that job cannot end without it. A thread that comes when nothing is left only makes `left`
 * more negative, and the next job overwrites it.
 *
 * `unfinished`: writer, this thread, after its items' stores and the fence for streaming ones; reader, the
 * caller in await_items; release to acquire. After that this thread does not touch the job. */
static void take_items(epw_pool *pool, uint32_t thread) {
    uint32_t finished = 0;
    int64_t left;
    epw_float_state before = epw_float_enter();
    while ((left = atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acquire)) > 0) {
        pool->fn(pool->context, pool->items - (uint32_t)left, thread);
        finished++;
    }
    epw_float_leave(before);
    if (finished == 0) return;
    epw_stream_fence();
    uint32_t rest = atomic_fetch_sub_explicit(&pool->unfinished, finished, memory_order_release) - finished;
    if (rest == CALLER_SLEEPS) futex_wake(&pool->unfinished, 1);
}

/* Waits until the items that workers took have ended. */
static void await_items(epw_pool *pool) {
    if (atomic_load_explicit(&pool->unfinished, memory_order_acquire) == 0) return;
    uint32_t seen = atomic_fetch_or_explicit(&pool->unfinished, CALLER_SLEEPS, memory_order_acquire);
    seen |= CALLER_SLEEPS;
    while (seen != CALLER_SLEEPS) {
        futex_wait(&pool->unfinished, seen);
        seen = atomic_load_explicit(&pool->unfinished, memory_order_acquire);
    }
}

static void *worker_main(void *argument) {
    epw_thread_name("epw-pool");
    struct worker *self = argument;
    epw_pool *pool = self->pool;
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->jobs, memory_order_acquire);
        if (atomic_load_explicit(&pool->ending, memory_order_relaxed)) return NULL;
        take_items(pool, self->index);
        futex_wait(&pool->jobs, seen); /* returns at once if a job has arrived since */
    }
}

/* Writer: the thread that has just written a job, or the order to end. Reader: worker_main, before it checks
 * for either; a worker that loaded the count before this does not go to sleep. */
static void wake_workers(epw_pool *pool, uint32_t threads) {
    atomic_fetch_add_explicit(&pool->jobs, 1, memory_order_release);
    futex_wake(&pool->jobs, threads);
}

epw_status epw_pool_create(uint32_t rank, uint32_t threads, epw_pool **out) {
    epw_where where = {"create", (int)rank, -1};
    epw_pool *pool = calloc(1, sizeof *pool + (threads - 1) * sizeof pool->workers[0]);
    if (pool == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for %u threads", threads);
    pool->threads = 1;
    pthread_mutex_init(&pool->turn, NULL);
    for (uint32_t i = 0; i + 1 < threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i + 1;
        int err = epw_thread_start(worker_main, &pool->workers[i], &pool->workers[i].thread);
        if (err != 0) {
            epw_pool_destroy(pool);
            return epw_fail_errno(err, where, "cannot start thread %u of %u: lower config.threads", i + 1,
                                  threads);
        }
        pool->threads++;
    }
    *out = pool;
    return EPW_OK;
}

void epw_pool_destroy(epw_pool *pool) {
    if (pool == NULL) return;
    atomic_store_explicit(&pool->ending, true, memory_order_relaxed);
    wake_workers(pool, INT_MAX);
    for (uint32_t i = 0; i + 1 < pool->threads; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

void epw_pool_abandon(epw_pool *pool) {
    free(pool);
}

void epw_pool_run(epw_pool *pool, epw_pool_fn fn, void *context, uint32_t items) {
    if (items == 0) return;
    pthread_mutex_lock(&pool->turn);
    if (pool->threads == 1 || items == 1) {
        epw_float_state before = epw_float_enter();
        for (uint32_t item = 0; item < items; item++) fn(context, item, 0);
        epw_float_leave(before);
        epw_stream_fence();
        pthread_mutex_unlock(&pool->turn);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->items = items;
    atomic_store_explicit(&pool->unfinished, items, memory_order_relaxed);
    atomic_store_explicit(&pool->left, items, memory_order_release);
    wake_workers(pool, items - 1);
    take_items(pool, 0);
    await_items(pool);
    pthread_mutex_unlock(&pool->turn);
}
