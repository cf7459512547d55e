/* See await.h. Linux sleeps on several words from 5.16 on; before, or where a sandbox forbids it, on the news
 * alone and for a short time, after which all is looked at again. */
#include "peer/await.h"

#include "base/clock.h"
#include "peer/remote.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between two looks at what somebody has locked. */
#define BUSY_NS UINT64_C(200000)
/* And at words that are not slept on. */
#define UNHEARD_NS UINT64_C(500000)
/* And at what nothing wakes for: half of the time so far, within bounds; before that, yielding. */
#define TIMED_MIN_NS   UINT64_C(10000)
#define TIMED_MAX_NS   UINT64_C(500000)
#define TIMED_YOUNG_NS UINT64_C(20000)
/* For clocks: nobody sleeps longer. */
#define LONGEST_NS UINT64_C(1000000000)

/* Newer than some headers of C libraries: the number is that of all architectures. */
#define FUTEX_WAITV_NUMBER 449
#define FUTEX_OF_32_BITS   2u

typedef struct futex_of_many {
    uint64_t value, address;
    uint32_t flags, reserved;
} futex_of_many;

enum { WORDS_MAX = 128 }; /* the kernel's limit */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- news ---- */

/* Writer: any thread. Reader: the awaiter, which has counted itself as a sleeper and sleeps only while `told`
 * is what it was: either the kernel sees the new one there, or this sees the sleeper. */
void epw_news_tell(epw_news *news) {
    atomic_fetch_add_explicit(&news->told, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&news->sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, (uint32_t *)&news->told, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- looks ---- */

void epw_awaited_busy(epw_awaited *self) {
    self->ns = BUSY_NS;
}

void epw_awaited_by_time(epw_awaited *self, bool ready) {
    self->ready = ready;
    self->young = !ready && self->age_ns < TIMED_YOUNG_NS;
    self->ns = least(self->age_ns / 2, TIMED_MAX_NS);
    if (self->ns < TIMED_MIN_NS) self->ns = TIMED_MIN_NS;
}

/* True if one of them is ready. */
static bool look_at_all(epw_awaited *all, uint32_t count, bool sleeps, uint64_t began, uint64_t now) {
    bool ready = false;
    for (uint32_t i = 0; i < count; i++) {
        epw_awaited looked = {.look = all[i].look,
                              .owner = all[i].owner,
                              .of = all[i].of,
                              .age_ns = all[i].age_ns + (now - began)};
        looked.look(looked.owner, looked.of, sleeps, now, &looked);
        looked.age_ns = all[i].age_ns;
        all[i] = looked;
        ready |= looked.ready;
    }
    return ready;
}

static void leave_all(epw_awaited *all, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (all[i].sleepers != NULL) atomic_fetch_sub_explicit(all[i].sleepers, 1, memory_order_relaxed);
}

static bool is_any_young(const epw_awaited *all, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (all[i].young) return true;
    return false;
}

/* ---- sleeping ---- */

/* Not FUTEX_PRIVATE: words lie in memory that several processes map. */
static void sleep_on_one(const futex_of_many *word, uint64_t ns) {
    struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, (uint32_t *)(uintptr_t)word->address, FUTEX_WAIT, (uint32_t)word->value, &timeout,
            NULL, 0);
}

/* Until one of them is another than its value, at most `ns`. */
static void sleep_on(const futex_of_many *words, uint32_t count, uint64_t ns) {
    static atomic_bool lacking;
    if (count > 1 && !atomic_load_explicit(&lacking, memory_order_relaxed)) {
        uint64_t until = epw_now_ns() + ns; /* by this clock, which the kernel is told */
        struct timespec end = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        long woken = syscall(FUTEX_WAITV_NUMBER, words, count, 0, &end, CLOCK_MONOTONIC);
        if (woken >= 0 || (errno != ENOSYS && errno != EPERM)) return;
        atomic_store_explicit(&lacking, true, memory_order_relaxed);
    }
    if (count > 0) {
        sleep_on_one(words, count > 1 ? least(ns, UNHEARD_NS) : ns);
    } else {
        struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        nanosleep(&time, NULL);
    }
}

static void sleep_on_all(const epw_awaited *all, uint32_t count, epw_news *news, uint32_t told, uint64_t ns) {
    futex_of_many words[WORDS_MAX];
    uint32_t n = 0;
    if (news != NULL) {
        words[n++] = (futex_of_many){told, (uint64_t)(uintptr_t)&news->told, FUTEX_OF_32_BITS, 0};
        atomic_fetch_add_explicit(&news->sleepers, 1, memory_order_seq_cst);
    }
    ns = least(ns, LONGEST_NS);
    for (uint32_t i = 0; i < count; i++) {
        const epw_awaited *a = &all[i];
        ns = least(ns, a->ns);
        if (a->peers != NULL) epw_remotes_rest(a->peers);
        if (a->word == NULL) continue;
        if (n < WORDS_MAX) {
            words[n++] = (futex_of_many){a->seen, (uint64_t)(uintptr_t)a->word, FUTEX_OF_32_BITS, 0};
        } else {
            ns = least(ns, UNHEARD_NS);
        }
    }
    sleep_on(words, n, ns);
    if (news != NULL) atomic_fetch_sub_explicit(&news->sleepers, 1, memory_order_relaxed);
}

void epw_await_any(epw_awaited *all, uint32_t count, epw_news *news, uint32_t told, uint64_t timeout_ns) {
    uint64_t began = epw_now_ns(), now = began;
    bool young = count > 0; /* until they have been looked at */
    for (;;) {              /* ends: with the time */
        bool over = now - began >= timeout_ns ||
                    (news != NULL && atomic_load_explicit(&news->told, memory_order_seq_cst) != told);
        bool sleeps = !young && !over;
        bool ready = look_at_all(all, count, sleeps, began, now);
        if (sleeps && !ready) sleep_on_all(all, count, news, told, timeout_ns - (now - began));
        leave_all(all, count);
        if (ready || over) return;
        young = is_any_young(all, count);
        if (young) {
            for (uint32_t i = 0; i < count; i++)
                if (all[i].peers != NULL) epw_remotes_drive(all[i].peers, now);
            sched_yield();
        }
        now = epw_now_ns();
    }
}
