/* One thread waits for many things: it returns for the first of them that is ready, for the interrupt and
 * after the shortest limit, and nothing that happens to one of them delays the others. */
#include "comms.h"

#include "base/clock.h"
#include "coll/parts.h"
#include "ep/buffer.h"
#include "peer/await.h"
#include "peer/remote_part.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LONG_MS = 20000 };
#define LONG_NS (LONG_MS * MS)

/* A thing whose word says whether it is ready. */
typedef struct thing {
    _Atomic uint32_t word, sleepers;
    uint64_t ns;
    bool young;
} thing;

static void look_at_thing(epw_awaited *self, bool sleeps, uint64_t now) {
    thing *t = self->owner;
    (void)now;
    if (sleeps) {
        atomic_fetch_add(&t->sleepers, 1);
        self->word = &t->word;
        self->sleepers = &t->sleepers;
    }
    self->seen = atomic_load(&t->word);
    self->ready = self->seen != 0;
    self->young = t->young;
    self->ns = t->ns;
}

static void wake(_Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

enum { MANY = 300 };

typedef struct poster {
    thing *to;
    epw_interrupt *interrupt;
    uint64_t after_ns;
    uint64_t posted;
    bool quietly; /* wakes nobody */
} poster;

static void *post_later(void *argument) {
    poster *p = argument;
    nanosleep(&(struct timespec){(time_t)(p->after_ns / (1000 * MS)), (long)(p->after_ns % (1000 * MS))},
              NULL);
    p->posted = epw_now_ns();
    if (p->to != NULL && p->quietly) atomic_store(&p->to->word, 1);
    if (p->to != NULL && !p->quietly) wake(&p->to->word);
    if (p->interrupt != NULL) epw_interrupt_raise(p->interrupt);
    return NULL;
}

static epw_awaited awaited_of(thing *t) {
    return (epw_awaited){.look = look_at_thing, .owner = t, .limit_ns = LONG_NS};
}

/* Waits for an array of them, at most `ns`: one more thing is ready after that time. */
static void await_all(epw_awaited *array, uint32_t n, epw_interrupt *interrupt, uint64_t ns) {
    static epw_awaited *all[MANY + 1];
    thing timer = {.ns = LONG_NS};
    epw_awaited time = awaited_of(&timer);
    time.limit_ns = ns;
    for (uint32_t i = 0; i < n; i++) {
        all[i] = &array[i];
        array[i].since = 0;
        array[i].limit_ns = LONG_NS;
    }
    all[n] = &time;
    epw_await_any(all, n + 1, interrupt, 0);
}

/* Awaits `count` things while this is posted. Returns how long after that it noticed. */
static uint64_t notices(thing *things, uint32_t count, epw_interrupt *interrupt, poster *p) {
    static epw_awaited all[MANY];
    for (uint32_t i = 0; i < count; i++) all[i] = awaited_of(&things[i]);
    pthread_t thread;
    pthread_create(&thread, NULL, post_later, p);
    await_all(all, count, interrupt, LONG_NS);
    uint64_t now = epw_now_ns();
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(all[i].ready == (p->to == &things[i]));
        CHECK(atomic_load(&things[i].sleepers) == 0);
    }
    CHECK_MSG(now >= p->posted, "it did not wait");
    return now - p->posted;
}

static void sleep_for_a_word(uint32_t count, uint32_t which, uint64_t bound_ns) {
    static thing things[MANY];
    for (uint32_t i = 0; i < count; i++) things[i] = (thing){.ns = LONG_NS};
    epw_interrupt interrupt = {0};
    poster p = {.to = &things[which], .after_ns = 30 * MS};
    uint64_t took = notices(things, count, &interrupt, &p);
    CHECK_MSG(took < bound_ns, "%llu us", (unsigned long long)(took / 1000));
    CHECK(atomic_load(&interrupt.sleepers) == 0);
}

static void the_first_word_that_changes_ends_the_sleep(void) {
    sleep_for_a_word(1, 0, LONG_NS / 4);
    sleep_for_a_word(5, 0, LONG_NS / 4);
    sleep_for_a_word(5, 4, LONG_NS / 4);
    /* More than the kernel takes at a time. */
    sleep_for_a_word(MANY, MANY - 1, LONG_NS / 4);
}

static void the_interrupt_ends_it_and_is_not_missed(void) {
    thing things[3] = {{.ns = LONG_NS}, {.ns = LONG_NS, .young = true}, {.ns = LONG_NS}};
    epw_interrupt interrupt = {0};
    poster p = {.interrupt = &interrupt, .after_ns = 30 * MS};
    CHECK(notices(things, 3, &interrupt, &p) < LONG_NS / 4);
    things[1].young = false;
    atomic_store(&interrupt.count, 0);
    CHECK(notices(things, 3, &interrupt, &p) < LONG_NS / 4);
    atomic_store(&interrupt.count, 0);
    CHECK(notices(things, 0, &interrupt, &p) < LONG_NS / 4); /* nothing else is awaited */
    epw_await_any(NULL, 0, &interrupt, 0);
    /* It was raised before. */
    epw_awaited all[1] = {awaited_of(&things[0])};
    uint64_t began = epw_now_ns();
    await_all(all, 1, &interrupt, LONG_NS);
    CHECK(epw_now_ns() - began < LONG_NS / 4 && !all[0].ready);
}

static void it_returns_at_a_limit_and_looks_again_after_the_time_of_a_look(void) {
    enum { SHORT_MS = 50 };
    thing things[2] = {{.ns = LONG_NS}, {.ns = LONG_NS}};
    epw_awaited all[2] = {awaited_of(&things[0]), awaited_of(&things[1])};
    epw_interrupt interrupt = {0};
    uint64_t began = epw_now_ns();
    await_all(all, 2, &interrupt, SHORT_MS * MS);
    CHECK(!all[0].ready && !all[1].ready);
    uint64_t took = epw_now_ns() - began;
    CHECK_MSG(took >= SHORT_MS * MS && took < LONG_NS / 4, "%llu us", (unsigned long long)(took / 1000));
    await_all(all, 2, &interrupt, 0); /* one look */
    atomic_store(&things[1].word, 1);
    await_all(all, 2, &interrupt, 0);
    CHECK(!all[0].ready && all[1].ready);
    atomic_store(&things[1].word, 0);

    /* A word that wakes nobody, like those of what another thread has locked. */
    things[1].ns = MS;
    poster p = {.to = &things[1], .after_ns = 20 * MS, .quietly = true};
    pthread_t thread;
    pthread_create(&thread, NULL, post_later, &p);
    began = epw_now_ns();
    await_all(all, 2, &interrupt, LONG_NS);
    CHECK(all[1].ready && epw_now_ns() - began < LONG_NS / 4);
    pthread_join(thread, NULL);
}

/* ---- of communicators and buffers ---- */

static void *barrier(void *comm) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(comm, NULL, &outcome));
    return NULL;
}

/* Takes in what the peer has sent before it calls anything: that it has begun the epoch, which behind a queue
 * may take a while to arrive. */
static void settle(epw_comm *comm, epw_work work, epw_awaited *awaited) {
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < LONG_NS / 4;) {
        await_all(awaited, 1, NULL, 20 * MS);
        if (!awaited->ready && comm->of[1].begun) return;
        CHECK(epw_work_poll(comm, work, NULL) == EPW_PENDING);
    }
    CHECK_MSG(false, awaited->ready ? "it stays ready" : "the peer has not begun the epoch");
}

/* Rank 0 of two communicators waits; the first is locked, as by a poll that moves megabytes. */
static void what_is_locked_delays_nothing_else(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = LONG_NS;
    comms locked = open_comms(2, config), live = open_comms(2, config);
    activate_comms(&locked, 1);
    activate_comms(&live, 1);
    epw_work works[2];
    const comms *both[2] = {&locked, &live};
    epw_awaited all[2];
    for (int i = 0; i < 2; i++) {
        epw_call call = EPW_CALL_INIT;
        call.work = &works[i];
        CHECK_OK(epw_barrier(both[i]->of[0], &call, NULL));
        all[i] = (epw_awaited){.look = epw_comm_look, .owner = both[i]->of[0], .of = works[i]};
        settle(both[i]->of[0], works[i], &all[i]);
    }
    pthread_mutex_lock(&locked.of[0]->lock);
    uint64_t began = epw_now_ns();
    await_all(all, 2, NULL, 20 * MS);
    CHECK(!all[0].ready && !all[1].ready && epw_now_ns() - began < LONG_NS / 4);
    pthread_t thread;
    pthread_create(&thread, NULL, barrier, live.of[1]);
    began = epw_now_ns();
    await_all(all, 2, NULL, LONG_NS);
    CHECK(!all[0].ready && all[1].ready && epw_now_ns() - began < LONG_NS / 4);
    CHECK_OK(epw_work_wait(live.of[0], works[1], UINT64_MAX, NULL));
    pthread_join(thread, NULL);
    pthread_mutex_unlock(&locked.of[0]->lock);

    /* A work that does not exist is ready, so that whoever awaits it looks. */
    await_all(&all[1], 1, NULL, LONG_NS);
    CHECK(all[1].ready);
    pthread_create(&thread, NULL, barrier, locked.of[1]);
    await_all(all, 1, NULL, LONG_NS);
    CHECK(all[0].ready);
    CHECK_OK(epw_work_wait(locked.of[0], works[0], UINT64_MAX, NULL));
    pthread_join(thread, NULL);
    close_comms(&live);
    close_comms(&locked);
}

static comms make_pair(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = LONG_NS;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    return c;
}

static void begin_barrier(epw_comm *comm, epw_work *work) {
    epw_call call = EPW_CALL_INIT;
    call.work = work;
    CHECK_OK(epw_barrier(comm, &call, NULL));
}

/* Over queues, the words of two channels may come at different times. */
static void a_peer_that_has_begun_on_one_channel_is_no_news(void) {
    comms c = make_pair();
    epw_work works[2];
    for (uint32_t r = 0; r < 2; r++) {
        begin_barrier(c.of[r], &works[r]);
        if (r > 0) continue;
        epw_awaited a = {.look = epw_comm_look, .owner = c.of[0], .of = works[0]};
        settle(c.of[0], works[0], &a);
        c.of[0]->of[1].begun = false;
        _Atomic uint64_t *word =
            (void *)(epw_peers_own(&c.of[0]->peers) + epw_word_offset(1, EPW_CHANNEL_POINT, EPW_WORD_EPOCH));
        uint64_t epoch = atomic_exchange(word, 0);
        await_all(&a, 1, NULL, 20 * MS);
        CHECK(!a.ready && !c.of[0]->of[1].begun);
        atomic_store(word, epoch);
        await_all(&a, 1, NULL, LONG_NS / 4);
        CHECK(a.ready);
    }
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_work_wait(c.of[r], works[r], UINT64_MAX, NULL));
    close_comms(&c);
}

/* The NIC tells when a queue carries nothing any more, and nobody rings. */
static void a_queue_that_breaks_is_noticed(void) {
    comms c = make_pair();
    epw_work work;
    begin_barrier(c.of[0], &work);
    epw_awaited a = {.look = epw_comm_look, .owner = c.of[0], .of = work};
    settle(c.of[0], work, &a);
    epw_end_break(&epw_way_to(&c.of[0]->peers, EPW_CHANNEL_COLLECTIVE, 1)->end);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_status status = EPW_PENDING;
    for (uint64_t began = epw_now_ns(); status == EPW_PENDING && epw_now_ns() - began < LONG_NS / 4;) {
        await_all(&a, 1, NULL, LONG_NS / 4);
        CHECK_MSG(a.ready, "nothing wakes it");
        status = epw_work_poll(c.of[0], work, &outcome);
    }
    CHECK_MSG(status == EPW_OK && outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_LINK,
              "%s, cause %u", epw_status_name(status), outcome.record.cause);
    close_comms(&c);
}

/* Of the other channel nothing is awaited: that its queue breaks does not keep whoever awaits awake. Where
 * both queues break at the same time, as those of an adapter may, the barrier ends instead. */
static void a_queue_that_nobody_awaits_may_break(void) {
    comms c = make_pair();
    epw_work works[2];
    begin_barrier(c.of[0], &works[0]);
    epw_awaited a = {.look = epw_comm_look, .owner = c.of[0], .of = works[0]};
    settle(c.of[0], works[0], &a);
    epw_end_break(&epw_way_to(&c.of[0]->peers, EPW_CHANNEL_POINT, 1)->end);
    epw_status status = EPW_PENDING;
    a.ready = true;
    for (uint64_t began = epw_now_ns();
         a.ready && status == EPW_PENDING && epw_now_ns() - began < LONG_NS / 4;) {
        await_all(&a, 1, NULL, 20 * MS);
        if (a.ready) status = epw_work_poll(c.of[0], works[0], NULL);
    }
    CHECK_MSG(!a.ready || status == EPW_OK, "it stays ready");
    if (!a.ready) {
        begin_barrier(c.of[1], &works[1]);
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_work_wait(c.of[r], works[r], UINT64_MAX, NULL));
    }
    close_comms(&c);
}

typedef struct revoking {
    epw_buffer *buffer;
    uint64_t revoked;
} revoking;

static void *revoke_later(void *argument) {
    revoking *r = argument;
    nanosleep(&(struct timespec){0, 300000000}, NULL); /* by then the other thread sleeps */
    epw_mask gone = {{2}};
    r->revoked = epw_now_ns();
    CHECK_OK(epw_buffer_revoke(r->buffer, &gone));
    return NULL;
}

/* A lane that another thread has locked is left to that thread. */
static void lanes_of_a_buffer(void) {
    group g = make_group(2, LONG_NS);
    activate(&g, 1);
    epw_handle handle = send_batch(g.of[0], 0, 1, 0);
    CHECK(epw_buffer_tend(g.of[0], handle) == EPW_PENDING);
    pthread_mutex_lock(&g.of[0]->lanes[handle & 1].lock);
    CHECK(epw_buffer_tend(g.of[0], handle) == EPW_PENDING);
    epw_awaited a = {.look = epw_buffer_look, .owner = g.of[0], .of = handle};
    uint64_t began = epw_now_ns();
    await_all(&a, 1, NULL, 10 * MS);
    CHECK(!a.ready && epw_now_ns() - began < LONG_NS / 4);
    pthread_mutex_unlock(&g.of[0]->lanes[handle & 1].lock);

    revoking r = {.buffer = g.of[0]};
    pthread_t thread;
    pthread_create(&thread, NULL, revoke_later, &r);
    epw_status status = EPW_PENDING;
    while (status == EPW_PENDING && epw_now_ns() - began < LONG_NS / 2) {
        await_all(&a, 1, NULL, LONG_NS);
        CHECK(a.ready);
        status = epw_buffer_tend(g.of[0], handle);
    }
    uint64_t now = epw_now_ns();
    pthread_join(thread, NULL);
    CHECK_MSG(status == EPW_OK && now >= r.revoked && now - r.revoked < LONG_NS / 4, "%d", status);
    CHECK_OK(epw_release(g.of[0], handle));
    CHECK(epw_buffer_tend(g.of[0], handle) == EPW_ERR_STATE);
    a.ready = false;
    await_all(&a, 1, NULL, LONG_NS);
    CHECK(a.ready);
    destroy(&g);
}

/* ---- kernels before 5.16, and sandboxes ---- */

/* From now on this thread has no futex_waitv. Where a process cannot install a filter, as under an emulator,
 * the kernel may have none anyway. */
static void forbid_sleeping_on_several(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 449, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        printf("NOT CHECKED: a kernel without futex_waitv, because this process cannot install a filter\n");
}

int main(void) {
    the_first_word_that_changes_ends_the_sleep();
    the_interrupt_ends_it_and_is_not_missed();
    it_returns_at_a_limit_and_looks_again_after_the_time_of_a_look();
    what_is_locked_delays_nothing_else();
    lanes_of_a_buffer();

    forbid_sleeping_on_several();
    the_first_word_that_changes_ends_the_sleep();
    the_interrupt_ends_it_and_is_not_missed();
    it_returns_at_a_limit_and_looks_again_after_the_time_of_a_look();
    what_is_locked_delays_nothing_else();
    lanes_of_a_buffer();
    a_peer_that_has_begun_on_one_channel_is_no_news();
    setenv("EPW_TEST_PATH", "queue", 1);
    a_queue_that_breaks_is_noticed();
    a_queue_that_nobody_awaits_may_break();
    return check_result("await_any");
}
