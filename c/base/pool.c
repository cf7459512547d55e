/* See pool.h. */
#include "base/pool.h"

#include "base/barrier.h"
#include "base/status.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct epw_pool {
    uint32_t threads;
    pthread_mutex_t turn; /* held by the caller whose job runs */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work, done;
    uint64_t job; /* counts jobs */
    uint32_t busy;
    bool ending;
    epw_pool_fn fn;
    void *context;
    uint32_t items;
    _Atomic uint32_t next; /* first item nobody has taken */
    struct worker {
        epw_pool *pool;
        uint32_t index;
        pthread_t thread;
    } workers[];
};

static void take_items(epw_pool *pool, uint32_t thread) {
    uint32_t item;
    while ((item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->items) {
        pool->fn(pool->context, item, thread);
    }
    epw_stream_fence();
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    epw_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    while (!pool->ending) {
        if (pool->job == seen) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        seen = pool->job;
        pthread_mutex_unlock(&pool->lock);
        take_items(pool, self->index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

epw_status epw_pool_create(uint32_t rank, uint32_t threads, epw_pool **out) {
    epw_where where = {"create", (int)rank, -1};
    epw_pool *pool = calloc(1, sizeof *pool + (threads - 1) * sizeof pool->workers[0]);
    if (pool == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for %u threads", threads);
    pool->threads = 1;
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (uint32_t i = 0; i + 1 < threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i + 1;
        int err = epw_thread_start(worker_main, &pool->workers[i], &pool->workers[i].thread);
        if (err != 0) {
            epw_pool_destroy(pool);
            return epw_fail_errno(err, where, "can not start thread %u of %u: lower config.threads", i + 1,
                                  threads);
        }
        pool->threads++;
    }
    *out = pool;
    return EPW_OK;
}

void epw_pool_destroy(epw_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i + 1 < pool->threads; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

void epw_pool_abandon(epw_pool *pool) {
    free(pool);
}

void epw_pool_run(epw_pool *pool, epw_pool_fn fn, void *context, uint32_t items) {
    if (items == 0) return;
    pthread_mutex_lock(&pool->turn);
    pool->fn = fn;
    pool->context = context;
    pool->items = items;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    bool shared = pool->threads > 1 && items > 1;
    if (shared) {
        pthread_mutex_lock(&pool->lock);
        pool->job++;
        pool->busy = pool->threads - 1;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    take_items(pool, 0);
    if (shared) {
        pthread_mutex_lock(&pool->lock);
        while (pool->busy > 0) pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->turn);
}
