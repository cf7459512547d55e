/* The thread that stops queue pairs which an event or the peer has broken: whoever reports that may hold
 * locks that are needed for a command. And it does on the host what the kernels that post to queues cannot do
 * themselves:
 *
 *   - It rings for queues whose registers no GPU can write: their doorbell is a word in memory, which it
 *     copies to the register.
 *   - It breaks queues that were given up (epw_queue_give_up), and those with a failed entry, so that
 *     kernels that wait for the peer are told.
 *
 * While there are queues to ring for, it polls without a pause until nothing was rung for 2 ms; then it looks
 * about every 50 us. Without such queues it looks every 500 us, and sleeps if kernels post to none. */
#include "nic/mlx5/parts.h"

#include "base/clock.h"
#include "base/thread.h"
#include "nic/queue.h"

#include <sched.h>
#include <time.h>

#define BUSY_NS UINT64_C(2000000)
#define SOON_NS 20000
#define LATE_NS 500000

/* Writer of the doorbell word: a thread of a kernel, after the entries and the doorbell record. Reader: this
 * thread, which acquires the word and then writes the register; only after that does the adapter read the
 * record and the entries. */
static bool ring_for(epw_mlx5_pair *pair) {
    uint64_t doorbell = epw_load_acquire_64(pair->memory.doorbell);
    if (doorbell == pair->rung_for) return false;
    pair->rung_for = doorbell;
    epw_store_doorbell(pair->spare->uar.reg, doorbell);
    epw_mlx5_pair_ring(pair);
    return true;
}

/* Looks at every queue once, with the lock held. Returns whether it has rung for one. */
static bool look(epw_mlx5_attendant *t) {
    bool rang = false;
    for (epw_mlx5_pair *pair = t->pairs; pair != NULL; pair = pair->next_attended) {
        if (pair->options.poster == EPW_MLX5_KERNELS_UNHEARD) rang |= ring_for(pair);
        bool told = atomic_load_explicit(&pair->broken, memory_order_relaxed);
        bool stops = atomic_exchange_explicit(&pair->stops, false, memory_order_acquire);
        if (stops || (!told && (epw_record_is_given_up(pair->memory.record) || epw_mlx5_pair_broken(pair))))
            epw_mlx5_pair_break(pair);
    }
    return rang;
}

/* A mutex tends to go to a thread that is awake, as this one always is: it lets waiting threads go first. */
static void lock_last(epw_mlx5_attendant *t) {
    while (atomic_load_explicit(&t->waiting, memory_order_relaxed) > 0) sched_yield();
    pthread_mutex_lock(&t->lock);
}

static void *attend_main(void *argument) {
    epw_thread_name("epw-attend");
    epw_mlx5_attendant *t = argument;
    uint64_t busy_ns = 0;
    lock_last(t);
    while (!t->ending) {
        if (look(t)) busy_ns = epw_now_ns();
        bool rings = t->unheard > 0, polls = t->polled > 0;
        pthread_mutex_unlock(&t->lock);
        if (!polls) {
            sem_wait(&t->bell); /* it has been rung for whatever came after that look */
        } else if (rings && epw_now_ns() - busy_ns < BUSY_NS) {
            sched_yield();
        } else {
            nanosleep(&(struct timespec){0, rings ? SOON_NS : LATE_NS}, NULL);
        }
        lock_last(t);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void lock(epw_mlx5_attendant *t) {
    atomic_fetch_add_explicit(&t->waiting, 1, memory_order_relaxed);
    pthread_mutex_lock(&t->lock);
    atomic_fetch_sub_explicit(&t->waiting, 1, memory_order_relaxed);
}

void epw_mlx5_attendant_init(epw_mlx5_attendant *t) {
    pthread_mutex_init(&t->lock, NULL);
    sem_init(&t->bell, 0, 0);
}

void epw_mlx5_attendant_end(epw_mlx5_attendant *t) {
    if (t->started) {
        lock(t);
        t->ending = true;
        pthread_mutex_unlock(&t->lock);
        sem_post(&t->bell);
        pthread_join(t->thread, NULL);
    }
    sem_destroy(&t->bell);
    pthread_mutex_destroy(&t->lock);
}

epw_status epw_mlx5_attend(epw_mlx5_pair *pair, epw_where where) {
    epw_mlx5_attendant *t = &pair->adapter->attendant;
    lock(t);
    int err = t->started ? 0 : epw_thread_start(attend_main, t, &t->thread);
    t->started = err == 0;
    if (err == 0) {
        pair->attended = true;
        pair->next_attended = t->pairs;
        t->pairs = pair;
        t->polled += pair->options.poster != EPW_MLX5_HOST;
        t->unheard += pair->options.poster == EPW_MLX5_KERNELS_UNHEARD;
    }
    pthread_mutex_unlock(&t->lock);
    sem_post(&t->bell);
    return err == 0 ? EPW_OK : epw_fail_errno(err, where, "cannot start the thread that attends queues");
}

void epw_mlx5_leave_alone(epw_mlx5_pair *pair) {
    epw_mlx5_attendant *t = &pair->adapter->attendant;
    if (!pair->attended) return;
    lock(t);
    epw_mlx5_pair **at = &t->pairs;
    while (*at != pair) at = &(*at)->next_attended;
    *at = pair->next_attended;
    t->polled -= pair->options.poster != EPW_MLX5_HOST;
    t->unheard -= pair->options.poster == EPW_MLX5_KERNELS_UNHEARD;
    pthread_mutex_unlock(&t->lock);
    pair->attended = false;
}

void epw_mlx5_call_attendant(epw_mlx5 *adapter) {
    sem_post(&adapter->attendant.bell);
}
