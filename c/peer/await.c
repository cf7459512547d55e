/* See await.h. Linux sleeps on several words from 5.16 on; on older kernels, or where a sandbox forbids it,
 * the thread sleeps on the interrupt alone and for a short time, after which it looks at all again. */
#include "peer/await.h"

#include "base/clock.h"
#include "peer/remote.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The time between two looks at what another thread has locked. */
#define BUSY_NS UINT64_C(200000)
/* The same for words that cannot be slept on. */
#define UNHEARD_NS UINT64_C(500000)
/* The same for what nobody wakes for: half of the time since the last poll, within these bounds. */
#define TIMED_MIN_NS UINT64_C(10000)
#define TIMED_MAX_NS UINT64_C(500000)
/* Before this age the thread yields instead. */
#define TIMED_YOUNG_NS UINT64_C(20000)
/* The longest sleep, when nothing is awaited: an hour, which no clock's arithmetic exceeds. */
#define LONGEST_NS UINT64_C(3600000000000)

/* Newer than the headers of some C libraries; the same number on all architectures. */
#define FUTEX_WAITV_NUMBER 449
#define FUTEX_OF_32_BITS   2u

/* struct futex_waitv */
typedef struct futex_of_many {
    uint64_t value, address;
    uint32_t flags, reserved;
} futex_of_many;

enum { WORDS_MAX = 128 }; /* the kernel's limit */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static struct timespec timespec_of(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* ---- the interrupt ---- */

/* Writer: any thread, after it has changed what is to be awaited. Reader: the waiting thread, which has
 * counted itself in `sleepers` before it sleeps while `count` is what it was: either the kernel sees the new
 * count there, or this function sees the sleeper. */
void epw_interrupt_raise(epw_interrupt *interrupt) {
    atomic_fetch_add_explicit(&interrupt->count, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&interrupt->sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, (uint32_t *)&interrupt->count, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- looks ---- */

void epw_awaited_busy(epw_awaited *self) {
    self->ns = BUSY_NS;
}

void epw_awaited_by_time(epw_awaited *self, bool ready, uint64_t now) {
    uint64_t age = now - self->since;
    self->ready = ready;
    self->young = !ready && age < TIMED_YOUNG_NS;
    self->ns = least(age / 2, TIMED_MAX_NS);
    if (self->ns < TIMED_MIN_NS) self->ns = TIMED_MIN_NS;
}

/* True if it is ready. */
static bool look_at(epw_awaited *a, bool sleeps, uint64_t now) {
    *a = (epw_awaited){.look = a->look,
                       .owner = a->owner,
                       .of = a->of,
                       .since = a->since != 0 ? a->since : now,
                       .limit_ns = a->limit_ns};
    a->look(a, sleeps, now);
    uint64_t age = now - a->since;
    if (age >= a->limit_ns) a->ready = true;
    a->ns = least(a->ns, a->limit_ns - least(age, a->limit_ns));
    return a->ready;
}

/* Returns when one of them differs from its value, at the latest after `ns`. Only the interrupt is private:
 * words lie in memory that several processes map. */
static void sleep_on(const futex_of_many *words, uint32_t n, uint64_t ns) {
    static atomic_bool lacking;
    if (n > 1 && !atomic_load_explicit(&lacking, memory_order_relaxed)) {
        struct timespec end = timespec_of(epw_now_ns() + ns); /* CLOCK_MONOTONIC, as epw_now_ns */
        long woken = syscall(FUTEX_WAITV_NUMBER, words, n, 0, &end, CLOCK_MONOTONIC);
        if (woken >= 0 || (errno != ENOSYS && errno != EPERM)) return;
        atomic_store_explicit(&lacking, true, memory_order_relaxed);
    }
    struct timespec time = timespec_of(n > 1 ? least(ns, UNHEARD_NS) : ns);
    if (n > 0) {
        int wait = FUTEX_WAIT | (int)(words->flags & FUTEX_PRIVATE_FLAG);
        syscall(SYS_futex, (uint32_t *)(uintptr_t)words->address, wait, (uint32_t)words->value, &time, NULL,
                0);
    } else {
        nanosleep(&time, NULL);
    }
}

static void sleep_on_all(epw_awaited *const *all, uint32_t n, epw_interrupt *interrupt, uint32_t count) {
    futex_of_many words[WORDS_MAX];
    uint32_t used = 0;
    uint64_t ns = LONGEST_NS;
    if (interrupt != NULL) {
        words[used++] = (futex_of_many){count, (uint64_t)(uintptr_t)&interrupt->count,
                                        FUTEX_OF_32_BITS | FUTEX_PRIVATE_FLAG, 0};
        atomic_fetch_add_explicit(&interrupt->sleepers, 1, memory_order_seq_cst);
    }
    for (uint32_t i = 0; i < n; i++) {
        const epw_awaited *a = all[i];
        ns = least(ns, a->ns);
        if (a->peers != NULL) epw_remotes_rest(a->peers);
        if (a->word == NULL) continue;
        if (used < WORDS_MAX) {
            words[used++] = (futex_of_many){a->seen, (uint64_t)(uintptr_t)a->word, FUTEX_OF_32_BITS, 0};
        } else {
            ns = least(ns, UNHEARD_NS);
        }
    }
    sleep_on(words, used, ns);
    if (interrupt != NULL) atomic_fetch_sub_explicit(&interrupt->sleepers, 1, memory_order_relaxed);
}

void epw_await_any(epw_awaited *const *all, uint32_t n, epw_interrupt *interrupt, uint32_t count) {
    bool young = n > 0; /* until the first look */
    if (n == 0 && interrupt == NULL) return;
    for (;;) { /* ends when the first of them is ready, which its limit bounds; without any, when interrupted
                */
        uint64_t now = epw_now_ns();
        bool over =
            interrupt != NULL && atomic_load_explicit(&interrupt->count, memory_order_seq_cst) != count;
        bool sleeps = !young && !over, ready = false;
        young = false;
        for (uint32_t i = 0; i < n; i++) {
            ready |= look_at(all[i], sleeps, now);
            young |= all[i]->young;
        }
        if (sleeps && !ready) sleep_on_all(all, n, interrupt, count);
        for (uint32_t i = 0; i < n; i++)
            if (all[i]->sleepers != NULL)
                atomic_fetch_sub_explicit(all[i]->sleepers, 1, memory_order_relaxed);
        if (ready || over) return;
        if (!young) continue;
        for (uint32_t i = 0; i < n; i++)
            if (all[i]->peers != NULL) epw_remotes_drive(all[i]->peers, now);
        sched_yield();
    }
}
