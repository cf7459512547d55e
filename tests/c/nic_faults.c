/* Software NICs in strict mode, with faults: three of them, connected by socket pairs, and plans of faults
 * from seeds. The result of each entry is computed in advance from the plan alone. */
#include "check.h"

#include "base/clock.h"
#include "nic/queue.h"
#include "nic/soft.h"
#include "nic/soft/frame.h"
#include "nic/soft/strict.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MS UINT64_C(1000000)

#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN true
#else
#define HAS_TSAN false
#endif

static const epw_where here = {"test", 0, -1};

/* Each NIC has a queue to each other one, and a second queue to the next one, so two queues share a
 * connection. */
enum { NICS = 3, QUEUES = 9, DEPTH = 32, ROUNDS = 6, EACH = 12, ROW = 3000, PLANS = 60, MEMORY = 1 << 16 };

/* ---- plans, and the results that follow from them ---- */

typedef struct plan {
    uint64_t seed;
    epw_fault_kind kind;
    uint32_t queue, round, at; /* the faulty entry: number `at` of that round */
    uint8_t syndrome;
    uint32_t bytes;
} plan;

/* The final result of a queue's entries. */
typedef struct outcome {
    uint32_t placed;  /* number of entries that were placed, from the first on */
    bool pending;     /* its connection is frozen */
    uint8_t syndrome; /* 0: all were completed */
    uint32_t index;   /* of the first that failed */
} outcome;

static uint32_t nic_of(uint32_t queue) {
    return queue % NICS;
}
static uint32_t peer_of(uint32_t queue) {
    return (queue + (queue / NICS == 1 ? 2 : 1)) % NICS;
}
/* Connections are between 0 and 1, 1 and 2, 2 and 0, and serve both directions. */
static uint32_t connection_of(uint32_t queue) {
    return queue / NICS == 1 ? (queue + 2) % NICS : queue % NICS;
}

static plan make_plan(uint32_t number) {
    static const uint8_t syndromes[] = {0x02, 0x04, 0x12, 0x13, 0x14, 0x22};
    uint64_t x = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 31;
    return (plan){.seed = x,
                  .kind = (epw_fault_kind)(number % EPW_FAULT_KINDS),
                  .queue = (uint32_t)(x >> 3) % QUEUES,
                  .round = (uint32_t)(x >> 11) % ROUNDS,
                  .at = (uint32_t)(x >> 19) % EACH,
                  .syndrome = syndromes[(x >> 27) % sizeof syndromes],
                  .bytes = (uint32_t)(x >> 33) % EPW_FRAME_BYTES};
}

/* In the fault's round no other queue posts to its connection, so these entries are at the end of a round. */
static bool is_still(const plan *p, uint32_t queue, uint32_t round) {
    return round == p->round && queue != p->queue && connection_of(queue) == connection_of(p->queue);
}

/* Pure function. Every entry is signalled, and a queue that has failed gets only one more entry. */
static outcome outcome_of(const plan *p, uint32_t queue) {
    uint32_t before = 0, all = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t posts = is_still(p, queue, round) ? 0 : EACH;
        if (round < p->round) before += posts;
        all += posts;
    }
    bool shares = connection_of(queue) == connection_of(p->queue), mine = queue == p->queue;
    uint32_t entry = before + p->at;
    switch (p->kind) {
    case EPW_FAULT_DROP:
    case EPW_FAULT_TEAR:
        if (mine) return (outcome){entry, false, 0x15, entry};
        return shares && before < all ? (outcome){before, false, 0x15, before} : (outcome){.placed = all};
    case EPW_FAULT_FREEZE:
        if (mine) return (outcome){entry, true, 0, entry};
        return shares ? (outcome){before, before < all, 0, before} : (outcome){.placed = all};
    case EPW_FAULT_ERROR:
        return mine ? (outcome){entry, false, p->syndrome, entry} : (outcome){.placed = all};
    case EPW_FAULT_DUPLICATE:
        return mine ? (outcome){entry + 1, false, 0x12, entry} : (outcome){.placed = all};
    default:
        return (outcome){.placed = all}; /* late, or in another order between queues */
    }
}

/* ---- what they are tried on ---- */

typedef struct way {
    epw_pair *pair; /* this end */
    epw_pair *far;  /* the peer's pair, which receives */
    epw_nic *nic, *far_nic;
    epw_queue q;
    uint64_t marks[DEPTH];
    uint32_t source_key, window_key, far_key;
    unsigned char *source, *window;
    uint64_t posted;
    _Atomic uint64_t last; /* the last word that arrived; the words are 1, 2, 3... */
    atomic_uint disorder;  /* words that are not the next one, or whose row has not arrived */
} way;

static void arrived(void *context, uint64_t offset, uint64_t value) {
    way *w = context;
    if (offset != 0) return;
    uint64_t was = atomic_exchange(&w->last, value);
    const unsigned char *row = w->window + 64 + ((value - 1) % DEPTH) / 2 * ROW;
    bool there = row[0] == (unsigned char)value && row[ROW - 1] == (unsigned char)value;
    if (value != was + 2 || !there) atomic_fetch_add(&w->disorder, 1);
}

typedef struct world {
    epw_nic *nics[NICS];
    uint64_t links[NICS][2]; /* of connection c: at NIC c, at the next one */
    way *ways[QUEUES];
} world;

static void open_way(world *o, uint32_t queue) {
    way *w = aligned_alloc(64, sizeof *w);
    memset(w, 0, sizeof *w);
    o->ways[queue] = w;
    w->nic = o->nics[nic_of(queue)], w->far_nic = o->nics[peer_of(queue)];
    w->source = calloc(1, MEMORY), w->window = calloc(1, MEMORY);
    epw_region source = {
        .base = w->source, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, MEMORY}}};
    epw_region window = {.base = w->window,
                         .rights = EPW_REGION_WRITE,
                         .count = 1,
                         .stretches = {{0, MEMORY}},
                         .arrived = arrived,
                         .context = w};
    w->source_key = epw_nic_register(w->nic, &source);
    w->far_key = epw_nic_register(w->far_nic, &window);
    epw_pair_options options = {.peer = peer_of(queue), .key = 0, .depth = DEPTH};
    CHECK_OK(epw_pair_create(w->nic, &options, here, &w->pair));
    options = (epw_pair_options){.peer = nic_of(queue), .key = w->far_key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(w->far_nic, &options, here, &w->far));
    const epw_pair_memory *memory = epw_pair_memory_of(w->pair);
    w->q = (epw_queue){.entries = (epw_entry_block *)memory->entries,
                       .marks = w->marks,
                       .record = memory->record,
                       .doorbell = memory->doorbell,
                       .completions.entry = (const uint32_t *)memory->completion,
                       .depth = DEPTH,
                       .pair = epw_pair_number(w->pair),
                       .batch = 1};
    uint32_t connection = connection_of(queue);
    epw_pair_connect(w->pair, o->links[connection][nic_of(queue) != connection], epw_pair_number(w->far));
}

static void open_world(world *o, uint64_t seed) {
    *o = (world){0};
    for (uint32_t i = 0; i < NICS; i++) {
        CHECK_OK(epw_nic_open(here, &o->nics[i]));
        CHECK_OK(epw_nic_be_strict(o->nics[i], seed + i, 300, here));
    }
    for (uint32_t i = 0; i < NICS; i++) {
        int fds[2];
        uint32_t next = (i + 1) % NICS;
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
        CHECK_OK(epw_nic_add_link(o->nics[i], fds[0], next, here, &o->links[i][0]));
        CHECK_OK(epw_nic_add_link(o->nics[next], fds[1], i, here, &o->links[i][1]));
    }
    for (uint32_t queue = 0; queue < QUEUES; queue++) open_way(o, queue);
}

static void close_world(world *o) {
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        epw_pair_destroy(o->ways[queue]->pair);
        epw_pair_destroy(o->ways[queue]->far);
    }
    for (uint32_t i = 0; i < NICS; i++) epw_nic_close(o->nics[i]);
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        free(o->ways[queue]->source);
        free(o->ways[queue]->window);
        free(o->ways[queue]);
    }
}

/* ---- posting ---- */

static epw_place_of there(const way *w, uint64_t offset) {
    return (epw_place_of){offset, epw_key_of(w->far_key)};
}

/* Posts the next entry, and rings for it: rows and words in turn, a word after its row. */
static void post(way *w) {
    uint64_t index = 0, value = w->posted + 2 - w->posted % 2; /* of the word, whose index is odd */
    if (!epw_queue_try_reserve(&w->q, 1, &index)) return;
    CHECK(index == w->posted++);
    uint64_t row = 64 + ((value - 1) % DEPTH) / 2 * ROW;
    epw_entry_block *entry = epw_queue_slot(&w->q, index);
    if (index % 2 == 0) {
        memset(w->source + row, (int)value, ROW);
        epw_entry_write(entry, w->q.pair, index, there(w, row),
                        (epw_place_of){row, epw_key_of(w->source_key)}, ROW, EPW_SIGNAL_ALWAYS);
    } else {
        epw_entry_write_word(entry, w->q.pair, index, there(w, 0), value, EPW_SIGNAL_ALWAYS);
    }
    epw_queue_publish(&w->q, index, 1);
    if (epw_queue_ring(&w->q, true)) epw_pair_ring(w->pair);
}

static uint64_t idle(void *context, bool rang) {
    const way *w = context;
    if (rang) epw_pair_ring(w->pair);
    nanosleep(&(struct timespec){0, 50000}, NULL);
    return epw_now_ns();
}

static epw_queue_end finish(way *w, uint64_t limit_ns, epw_queue_fault *fault) {
    epw_queue_wait wait = {idle, w, epw_now_ns() + limit_ns};
    return epw_queue_quiet(&w->q, &wait, fault);
}

static void await_failure(way *w) {
    epw_queue_fault fault;
    for (uint64_t began = epw_now_ns(); !epw_queue_failed(&w->q, &fault) && epw_now_ns() - began < 5000 * MS;)
        nanosleep(&(struct timespec){0, 50000}, NULL);
}

static void check_outcome(const plan *p, uint32_t number, uint32_t queue, way *w) {
    outcome wanted = outcome_of(p, queue);
    epw_queue_fault fault = {0};
    uint64_t limit = wanted.pending ? 30 * MS : 5000 * MS;
    /* The next doorbell makes up for a lost one: here that of a row, without a word. */
    if (p->kind == EPW_FAULT_LOSE_DOORBELL) post(w);
    epw_queue_end end = finish(w, limit, &fault), right = EPW_QUEUE_DONE;
    if (wanted.syndrome != 0) right = EPW_QUEUE_FAILED;
    if (wanted.pending) right = EPW_QUEUE_LATE;
    CHECK_MSG(end == right, "plan %u, kind %d, queue %u: end %d", number, p->kind, queue, end);
    epw_pair_cause cause = epw_pair_cause_of(w->pair);
    if (end == EPW_QUEUE_FAILED) {
        CHECK_MSG(cause.syndrome == wanted.syndrome && cause.index == wanted.index,
                  "plan %u, kind %d, queue %u: %02x at %u, wanted %02x at %u", number, p->kind, queue,
                  cause.syndrome, cause.index, wanted.syndrome, wanted.index);
        /* Entries that were posted later hide the failure from a reader that looks late. */
        bool hidden = fault.syndrome == 0x05 && fault.index > wanted.index;
        bool told = fault.syndrome == wanted.syndrome && fault.index == wanted.index;
        CHECK((told || hidden) && fault.pair == w->q.pair);
    }
    uint64_t words = wanted.placed - wanted.placed % 2;
    /* Where something stays pending, what was placed before it may still be on its way. */
    for (uint64_t began = epw_now_ns();
         wanted.pending && atomic_load(&w->last) != words && epw_now_ns() - began < 5000 * MS;)
        nanosleep(&(struct timespec){0, 50000}, NULL);
    CHECK_MSG(atomic_load(&w->last) == words, "plan %u, kind %d, queue %u: word %llu, wanted %llu", number,
              p->kind, queue, (unsigned long long)atomic_load(&w->last), (unsigned long long)words);
    CHECK(atomic_load(&w->disorder) == 0);
    /* Entries after a failure are flushed, and place nothing. */
    if (end != EPW_QUEUE_FAILED) return;
    post(w);
    nanosleep(&(struct timespec){0, (long)MS}, NULL);
    CHECK(epw_queue_failed(&w->q, &fault) && epw_pair_cause_of(w->pair).syndrome == wanted.syndrome);
    CHECK(atomic_load(&w->last) == words);
}

static void each_plan_has_the_outcome_that_follows_from_it(void) {
    for (uint32_t number = 0; number < PLANS; number++) {
        plan p = make_plan(number);
        world o;
        open_world(&o, p.seed);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            way *of = o.ways[p.queue];
            if (round == p.round) {
                epw_fault fault = {.kind = p.kind,
                                   .pair = of->q.pair,
                                   .index = (uint32_t)of->posted + p.at,
                                   .syndrome = p.syndrome,
                                   .bytes = p.bytes};
                epw_nic_plan_fault(of->nic, &fault);
            }
            for (uint32_t i = 0; i < EACH; i++)
                for (uint32_t queue = 0; queue < QUEUES; queue++)
                    if (!is_still(&p, queue, round)) post(o.ways[queue]);
            for (uint32_t queue = 0; queue < QUEUES; queue++) {
                epw_queue_fault fault;
                outcome wanted = outcome_of(&p, queue);
                bool stuck = round >= p.round && wanted.pending;
                bool lost = queue == p.queue && p.kind == EPW_FAULT_LOSE_DOORBELL;
                finish(o.ways[queue], stuck ? 5 * MS : lost ? 20 * MS : 5000 * MS, &fault);
                /* Later entries would hide the cause from a reader that has not looked yet. */
                if (round >= p.round && wanted.syndrome != 0) await_failure(o.ways[queue]);
            }
        }
        for (uint32_t queue = 0; queue < QUEUES; queue++) check_outcome(&p, number, queue, o.ways[queue]);
        close_world(&o);
    }
}

/* ---- faults that cause no failure ---- */

static void a_lost_doorbell_is_made_good_by_the_next(void) {
    world o;
    open_world(&o, 1);
    way *w = o.ways[0];
    epw_queue_fault fault;
    epw_fault lost = {.kind = EPW_FAULT_LOSE_DOORBELL, .pair = w->q.pair, .index = 0};
    epw_nic_plan_fault(w->nic, &lost);
    post(w);
    CHECK(finish(w, 20 * MS, &fault) == EPW_QUEUE_LATE && w->window[64] == 0);
    post(w);
    CHECK(finish(w, 5000 * MS, &fault) == EPW_QUEUE_DONE && w->last == 2 && w->disorder == 0);
    close_world(&o);
}

static void a_delayed_entry_is_late(void) {
    world o;
    open_world(&o, 1);
    way *w = o.ways[0];
    epw_queue_fault fault;
    epw_fault late = {.kind = EPW_FAULT_DELAY, .pair = w->q.pair, .index = 0};
    epw_nic_plan_fault(w->nic, &late);
    uint64_t began = epw_now_ns();
    post(w);
    CHECK(finish(w, 5000 * MS, &fault) == EPW_QUEUE_DONE && epw_now_ns() - began >= 5 * MS);
    close_world(&o);
}

/* ---- mistakes of posters ---- */

typedef enum mistake { NO_MISTAKE, ENTRY_LATER, ENTRY_CHANGED, BYTES_REWRITTEN, OVERRUN } mistake;

/* Bytes 0x20 to 0x33: the user's index, and an adapter's counts and clocks. */
#define AS_FILLED                                                                                            \
    0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff

/* Checks a completion from byte 0x20 on, except for the queue pair's number, at 0x39. */
static void completion_is(const way *w, const unsigned char expected[32], int of) {
    unsigned char got[32];
    memcpy(got, epw_pair_memory_of(w->pair)->completion + 0x20, sizeof got);
    CHECK_MSG((uint32_t)(got[0x19] << 16 | got[0x1a] << 8 | got[0x1b]) == epw_pair_number(w->pair),
              "mistake %d", of);
    memset(got + 0x19, 0, 3);
    for (uint32_t i = 0; i < sizeof got; i++)
        CHECK_MSG(got[i] == expected[i], "mistake %d: byte 0x%02x is 0x%02x, not 0x%02x", of, 0x20 + i,
                  got[i], expected[i]);
}

/* Each mistake is found, and reported by its own code. Fetches are delayed, so that there is time to make the
 * mistake. Where the entry has yet to be written, the strict NIC's own pattern, 0xa5, stands in place of the
 * entry's opcode; an entry that is a lap behind is not examined. */
static void mistakes_of_posters_are_told_apart(void) {
    static const struct {
        mistake mistake;
        uint8_t syndrome, vendor;
        unsigned char completion[32];
    } cases[] = {
        {NO_MISTAKE, 0, 0, {AS_FILLED, 0xff, 0xff, 0xff, 0xff, 0x08, 0, 0, 0, 0x00, 0x20, 0x00, 0x00}},
        {ENTRY_LATER, 0x02, 0, {AS_FILLED, 0x00, 0x00, 0x00, 0x02, 0xa5, 0, 0, 0, 0x00, 0x20, 0x00, 0xd0}},
        {ENTRY_CHANGED,
         0x02,
         0xe1,
         {AS_FILLED, 0x00, 0x00, 0xe1, 0x02, 0x08, 0, 0, 0, 0x00, 0x20, 0x00, 0xd0}},
        {BYTES_REWRITTEN,
         0x04,
         0xe3,
         {AS_FILLED, 0x00, 0x00, 0xe3, 0x04, 0x08, 0, 0, 0, 0x00, 0x20, 0x00, 0xd0}},
        {OVERRUN, 0x02, 0xe2, {AS_FILLED, 0x00, 0x00, 0xe2, 0x02, 0x00, 0, 0, 0, 0x00, 0x20, 0x00, 0xd0}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        /* These are races, which ThreadSanitizer reports by itself. */
        if (HAS_TSAN && (cases[i].mistake == ENTRY_CHANGED || cases[i].mistake == BYTES_REWRITTEN)) continue;
        world o;
        open_world(&o, i);
        way *w = o.ways[0];
        epw_queue_fault fault;
        /* Past the first lap, so that each slot has held an entry. */
        for (uint32_t n = 0; n < DEPTH; n++) post(w);
        CHECK(finish(w, 5000 * MS, &fault) == EPW_QUEUE_DONE);
        epw_fault late = {.kind = EPW_FAULT_DELAY, .pair = w->q.pair, .index = DEPTH};
        epw_nic_plan_fault(w->nic, &late);
        uint64_t first = w->posted;
        switch (cases[i].mistake) {
        case ENTRY_LATER:
            epw_queue_tell(&w->q, first + 1);
            epw_pair_ring(w->pair);
            break;
        case OVERRUN:
            epw_queue_tell(&w->q, first + DEPTH + 1);
            epw_pair_ring(w->pair);
            break;
        default:
            post(w);
        }
        if (cases[i].mistake == ENTRY_CHANGED) epw_queue_slot(&w->q, first)->words[5] ^= epw_swap_32(4);
        if (cases[i].mistake == BYTES_REWRITTEN) w->source[64]++;
        epw_queue_wait wait = {idle, w, epw_now_ns() + 5000 * MS};
        epw_queue_end end = epw_queue_await(&w->q, first + 1, &wait, &fault);
        CHECK(end == (cases[i].syndrome != 0 ? EPW_QUEUE_FAILED : EPW_QUEUE_DONE));
        epw_pair_cause cause = epw_pair_cause_of(w->pair);
        CHECK_MSG(cause.syndrome == cases[i].syndrome && cause.vendor == cases[i].vendor,
                  "mistake %d: syndrome %02x, vendor %02x", cases[i].mistake, cause.syndrome, cause.vendor);
        completion_is(w, cases[i].completion, cases[i].mistake);
        close_world(&o);
    }
}

int main(void) {
    a_lost_doorbell_is_made_good_by_the_next();
    a_delayed_entry_is_late();
    KEEP_TIME(mistakes_of_posters_are_told_apart()); /* each is made within the delay of a few milliseconds */
    each_plan_has_the_outcome_that_follows_from_it();
    return check_result("nic_faults");
}
