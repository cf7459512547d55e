/* Send queues under each schedule of a few posters and a NIC that has no more than so many preemptions: the
 * code of nic/queue.h itself, with atomic operations that may hand the turn to another thread. Each takes
 * effect at once, so this shows nothing of what weak memory adds.
 *
 *     test_queue_schedules [PREEMPTIONS]     in every scenario; 2 take a minute or two, 3 hours */
#include "check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <ucontext.h>

/* ---- the operations, in place of nic/order.h ---- */

#define EPW_NIC_ORDER_H
#include "base/inline.h"

/* Before each operation another thread may run. */
static void turn(void);

EPW_INLINE uint64_t epw_load_relaxed_64(const uint64_t *at) {
    turn();
    return *at;
}
EPW_INLINE uint64_t epw_load_acquire_64(const uint64_t *at) {
    return epw_load_relaxed_64(at);
}
EPW_INLINE uint64_t epw_load_fenced_later_64(const uint64_t *at) {
    return epw_load_relaxed_64(at);
}
EPW_INLINE uint32_t epw_load_acquire_32(const uint32_t *at) {
    turn();
    return *at;
}
EPW_INLINE void epw_store_release_32(uint32_t *at, uint32_t value) {
    turn();
    *at = value;
}
EPW_INLINE void epw_before_marks(void) {}
EPW_INLINE void epw_mark(uint64_t *at, uint64_t value) {
    turn();
    *at = value;
}
/* The NIC is told of each entry once, and of later ones later. */
static void check_record(uint32_t from, uint32_t to);

EPW_INLINE void epw_store_record(uint32_t *at, uint32_t value) {
    turn();
    check_record(*at, value);
    *at = value;
}
EPW_INLINE void epw_store_doorbell(uint64_t *at, uint64_t value) {
    epw_mark(at, value);
}
EPW_INLINE bool epw_compare_swap_64(uint64_t *at, uint64_t from, uint64_t to) {
    turn();
    if (*at != from) return false;
    *at = to;
    return true;
}
EPW_INLINE bool epw_compare_swap_relaxed_64(uint64_t *at, uint64_t from, uint64_t to) {
    return epw_compare_swap_64(at, from, to);
}
EPW_INLINE uint64_t epw_max_64(uint64_t *at, uint64_t value) {
    turn();
    uint64_t was = *at;
    if (was < value) *at = value;
    return was;
}

#include "nic/queue.h"

/* ---- schedules ---- */

enum { THREADS_MAX = 4, STACK_BYTES = 64 * 1024, CHOICES_MAX = 4096, OPERATIONS_MAX = 20000 };

typedef struct thread {
    ucontext_t context;
    bool is_over;
    const uint64_t *awaits; /* it runs again once this is no longer `seen` */
    uint64_t seen;
} thread;

static char stacks[THREADS_MAX][STACK_BYTES] __attribute__((aligned(64)));

/* A schedule is the list of its choices. The search goes on with the last one that has something left. */
static struct {
    thread threads[THREADS_MAX + 1]; /* behind the last, that of main, which is over until the run is */
    uint32_t count, running, preemptions, most_preemptions;
    uint8_t chosen[CHOICES_MAX], options[CHOICES_MAX], led_to[CHOICES_MAX];
    uint32_t next, length, operations;
    bool failed;
} schedule;

static void fail(const char *what) {
    if (schedule.failed) return;
    schedule.failed = true;
    CHECK_MSG(false, "%s", what);
}

static bool can_run(const thread *t) {
    return !t->is_over && (t->awaits == NULL || *t->awaits != t->seen);
}

static void run(uint32_t t) {
    thread *from = &schedule.threads[schedule.running], *to = &schedule.threads[t];
    if (from == to) return;
    schedule.running = t;
    swapcontext(&from->context, &to->context);
}

static void leave(void) {
    swapcontext(&schedule.threads[schedule.running].context, &schedule.threads[schedule.count].context);
}

/* Lets one of the threads run, the present one at first if `may_stay`. If none can, the run is over. */
static void choose(bool may_stay) {
    uint32_t able[THREADS_MAX], count = 0, present = schedule.running;
    if (may_stay) able[count++] = present;
    for (uint32_t t = 0; t < schedule.count; t++)
        if (can_run(&schedule.threads[t]) && !(may_stay && t == present)) able[count++] = t;
    if (count == 0 || schedule.failed) {
        leave();
    } else if (count == 1) {
        run(able[0]);
    } else if (schedule.next == CHOICES_MAX) {
        fail("a run has too many choices");
        leave();
    } else {
        uint32_t i = schedule.next++;
        if (i == schedule.length) {
            schedule.chosen[i] = 0;
            schedule.options[i] = (uint8_t)count;
            schedule.length++;
        }
        uint32_t to = able[schedule.chosen[i]];
        schedule.led_to[i] = (uint8_t)to;
        schedule.preemptions += may_stay && to != present;
        run(to);
    }
}

static void turn(void) {
    if (++schedule.operations > OPERATIONS_MAX) {
        fail("a loop does not end");
        leave();
    }
    if (schedule.preemptions < schedule.most_preemptions) choose(true);
}

/* Until *word is no longer `seen`. */
static void await_change(const uint64_t *word, uint64_t seen) {
    thread *t = &schedule.threads[schedule.running];
    if (*word != seen) return;
    t->awaits = word;
    t->seen = seen;
    choose(false);
    t->awaits = NULL;
}

static void begin_thread(int t, void (*body)(uint32_t)) {
    body((uint32_t)t);
    schedule.threads[t].is_over = true;
    choose(false);
}

/* Runs the threads 0 to count - 1 until none can go on. */
static void run_all(uint32_t count, void (*body)(uint32_t)) {
    schedule.count = count;
    schedule.next = schedule.preemptions = schedule.operations = 0;
    for (uint32_t t = 0; t < count; t++) {
        thread *one = &schedule.threads[t];
        *one = (thread){.is_over = false};
        getcontext(&one->context);
        one->context.uc_stack.ss_sp = stacks[t];
        one->context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&one->context, (void (*)(void))begin_thread, 2, (int)t, body);
    }
    schedule.running = count;
    schedule.threads[count].is_over = true;
    choose(false);
}

/* Whether there is another schedule. */
static bool has_next(void) {
    while (schedule.length > 0) {
        uint32_t last = schedule.length - 1;
        if (++schedule.chosen[last] < schedule.options[last]) return true;
        schedule.length--;
    }
    return false;
}

/* ---- a queue, its posters and its NIC ---- */

enum { PAIR = 7, DEPTH_MAX = 4, POSTS_MAX = 3, POSTERS_MAX = THREADS_MAX - 1, NOTHING = 0xff };

typedef enum kind {
    NONE,
    AT_ONCE,   /* begin, finish */
    IN_PARTS,  /* begin, a part for each entry but the last, finish */
    LONG_WAY,  /* reserve, publish, ring with flush */
    UNFLUSHED, /* reserve, publish, ring */
    GIVES_UP   /* the queue: no post that begins later may be fetched */
} kind;

typedef struct scenario {
    const char *name;
    uint32_t depth, batch, posters;
    struct {
        kind kind;
        uint32_t count;
    } posts[POSTERS_MAX][POSTS_MAX];
} scenario;

static struct {
    const scenario *is;
    epw_queue q;
    epw_entry_block entries[DEPTH_MAX];
    uint64_t marks[DEPTH_MAX];
    uint32_t record[2];
    uint64_t doorbell;
    uint32_t completion[16] __attribute__((aligned(64)));
    uint64_t executed;
    bool given_up;
} rig;

static uint32_t told(uint32_t record) {
    return __builtin_bswap32(record) & 0xffff;
}

static void check_record(uint32_t from, uint32_t to) {
    if (told(to) <= told(from)) fail("the NIC is told of entries again");
}

/* An entry holds its index, or that it was posted in vain. */
static void build(uint64_t index, bool in_vain) {
    epw_entry_block *at = &rig.entries[index & (rig.q.depth - 1)];
    if (at->words[0] != NOTHING) fail("a slot is taken before its entry is done");
    at->words[0] = in_vain ? UINT32_C(1) << 31 : (uint32_t)index + 1000;
}

static void nic(void) {
    uint64_t doorbell = 0;
    for (;;) {
        await_change(&rig.doorbell, doorbell);
        doorbell = epw_load_acquire_64(&rig.doorbell);
        uint64_t target = told(epw_load_acquire_32(&rig.record[1]));
        if (target > rig.executed + rig.q.depth) fail("more is told than the queue holds");
        while (rig.executed < target) {
            turn();
            uint32_t *word = &rig.entries[rig.executed & (rig.q.depth - 1)].words[0];
            if (*word != rig.executed + 1000)
                fail("an entry is fetched that was not built, or not for this index");
            *word = NOTHING;
            turn();
            rig.completion[15] = __builtin_bswap32((uint32_t)rig.executed << 16);
            rig.executed++;
        }
    }
}

static void await_done(uint64_t index) {
    for (;;) {
        uint64_t seen = rig.executed;
        if (epw_queue_is_done(&rig.q, index)) return;
        await_change(&rig.executed, seen);
    }
}

static uint64_t post(kind kind, uint32_t count) {
    bool in_vain = rig.given_up, at_once = kind == AT_ONCE || kind == IN_PARTS;
    epw_queue_post post = epw_queue_post_to(&rig.q);
    uint64_t index = 0;
    for (;;) {
        uint64_t seen = rig.executed;
        if (at_once ? epw_queue_try_begin(&rig.q, count, rig.q.depth, &post)
                    : epw_queue_try_reserve(&rig.q, count, &index))
            break;
        epw_queue_ring(&rig.q, true);
        await_change(&rig.executed, seen);
    }
    uint64_t end = (at_once ? post.index : index) + count;
    for (uint64_t i = end - count; i < end; i++) {
        build(i, in_vain);
        if (kind == IN_PARTS && i + 1 < end) epw_queue_finish_part(&rig.q, &post, i + 1);
    }
    if (at_once) {
        epw_queue_finish(&rig.q, &post);
    } else {
        epw_queue_publish(&rig.q, index, count);
        epw_queue_ring(&rig.q, kind == LONG_WAY);
    }
    return end;
}

/* Posts its list, and awaits the last of it. Where a batch has more than one entry, who has not flushed rings
 * once more. */
static void poster(uint32_t t) {
    uint64_t end = 0;
    bool flushed = true;
    for (uint32_t i = 0; i < POSTS_MAX && rig.is->posts[t][i].kind != NONE; i++) {
        kind kind = rig.is->posts[t][i].kind;
        if (kind == GIVES_UP) {
            epw_queue_give_up(&rig.q);
            rig.given_up = true;
        } else {
            end = post(kind, rig.is->posts[t][i].count);
            flushed = kind != UNFLUSHED || rig.q.batch == 1;
        }
    }
    if (!flushed) epw_queue_ring(&rig.q, true);
    await_done(end);
}

static void body(uint32_t t) {
    if (t < rig.is->posters) {
        poster(t);
    } else {
        nic();
    }
}

static void set_up(const scenario *s) {
    memset(&rig, 0, sizeof rig);
    rig.is = s;
    rig.q = (epw_queue){.entries = rig.entries,
                        .marks = rig.marks,
                        .record = rig.record,
                        .doorbell = &rig.doorbell,
                        .completions.entry = rig.completion,
                        .depth = s->depth,
                        .pair = PAIR,
                        .batch = s->batch};
    for (uint32_t i = 0; i < DEPTH_MAX; i++) rig.entries[i].words[0] = NOTHING;
    memset(rig.completion, 0xff, sizeof rig.completion);
}

static void explore(const scenario *s) {
    uint64_t runs = 0;
    schedule.length = 0;
    do {
        set_up(s);
        run_all(s->posters + 1, body);
        runs++;
        for (uint32_t t = 0; t < s->posters && !rig.given_up; t++)
            if (!schedule.threads[t].is_over) fail("nobody rings for what was posted");
        CHECK_MSG(!schedule.failed, "%s", s->name);
    } while (!schedule.failed && has_next());
    printf("%s: %" PRIu64 " schedules\n", s->name, runs);
    if (!schedule.failed) return;
    fprintf(stderr, "%s: schedule", s->name);
    for (uint32_t i = 0; i < schedule.next; i++) fprintf(stderr, " %d", schedule.led_to[i]);
    fprintf(stderr, "\n");
    schedule.failed = false;
}

static const scenario scenarios[] = {
    {"at once", 2, 1, 3, {{{AT_ONCE, 1}, {AT_ONCE, 1}}, {{AT_ONCE, 1}}, {{AT_ONCE, 1}}}},
    {"at once, around the ring",
     2,
     1,
     2,
     {{{AT_ONCE, 1}, {AT_ONCE, 1}, {AT_ONCE, 1}}, {{AT_ONCE, 1}, {AT_ONCE, 1}}}},
    {"in parts", 2, 1, 2, {{{IN_PARTS, 2}, {AT_ONCE, 1}}, {{AT_ONCE, 1}, {IN_PARTS, 2}}}},
    {"both ways", 2, 1, 3, {{{AT_ONCE, 1}, {LONG_WAY, 1}}, {{LONG_WAY, 1}}, {{IN_PARTS, 2}}}},
    {"both ways, unflushed",
     4,
     1,
     2,
     {{{AT_ONCE, 1}, {UNFLUSHED, 1}, {AT_ONCE, 2}}, {{UNFLUSHED, 2}, {IN_PARTS, 2}}}},
    {"batches", 4, 2, 3, {{{UNFLUSHED, 1}, {UNFLUSHED, 1}}, {{AT_ONCE, 2}}, {{UNFLUSHED, 1}}}},
    {"batches and flushes", 4, 4, 2, {{{UNFLUSHED, 1}, {AT_ONCE, 2}}, {{LONG_WAY, 1}, {UNFLUSHED, 2}}}},
    {"given up", 4, 1, 3, {{{AT_ONCE, 1}, {AT_ONCE, 1}}, {{GIVES_UP, 0}, {AT_ONCE, 1}}, {{LONG_WAY, 1}}}},
    {"given up, in parts", 4, 2, 2, {{{IN_PARTS, 2}, {UNFLUSHED, 1}}, {{GIVES_UP, 0}, {IN_PARTS, 2}}}},
    {"small batches in parts", 2, 2, 2, {{{IN_PARTS, 2}}, {{LONG_WAY, 1}, {IN_PARTS, 2}}}},
    {"given up, both ways",
     4,
     1,
     2,
     {{{AT_ONCE, 1}, {UNFLUSHED, 1}}, {{AT_ONCE, 1}, {GIVES_UP, 0}, {LONG_WAY, 1}}}},
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        uint32_t in_time = scenarios[i].posters == 2 ? 2 : 1;
        schedule.most_preemptions = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : in_time;
        explore(&scenarios[i]);
    }
    return check_result("queue_schedules");
}
