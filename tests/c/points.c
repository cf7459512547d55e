/* Sends and receives against a plain model: seeded messages between all pairs, with a few tags, of sizes from
 * 0 to more than what is sent eagerly, received in another order of tags, by works and by groups, with
 * collectives between them. Each message arrives once, in the order of its pair and tag. Also errors: too
 * little room, another type, no partner, too many unreceived messages.
 *
 * See seeds_of_test() for the variables that choose others. */
#include "comms.h"

#include "base/clock.h"

#include "coll/point.h"

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

enum { CASES = 60, MESSAGES = 24, TAGS = 3, ROUNDS = 3, LONG = 300 << 10 };

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t *state, uint64_t bound) {
    return next(state) % bound;
}

static unsigned char byte_of(uint64_t seed, uint32_t message, uint64_t i) {
    return (unsigned char)(seed * 31 + message * 7 + i * 13 + (i >> 8));
}

/* ---- many at random ---- */

typedef struct message {
    uint32_t from, to, tag;
    uint64_t bytes;
} message;

typedef struct test_case {
    uint64_t seed;
    comms c;
    uint32_t count;
    message of[MESSAGES];
    uint32_t collectives;
} test_case;

static unsigned char *take(epw_comm *comm, uint64_t bytes, bool *heap) {
    void *memory = NULL;
    *heap = epw_comm_alloc(comm, bytes, &memory) == EPW_OK;
    if (!*heap) memory = malloc(bytes + 1);
    if (memory == NULL) abort();
    return memory;
}

/* Each rank calls its own sends and receives: those of a pair and tag in order, otherwise in an order that
 * its seed chooses. */
static void exchange(uint32_t rank, void *context) {
    const test_case *t = context;
    epw_comm *comm = t->c.of[rank];
    uint64_t state = t->seed ^ (rank + 1) * 7919;
    epw_coll calls[2 * MESSAGES];
    uint32_t numbers[2 * MESSAGES], order[2 * MESSAGES], count = 0;
    bool heap[2 * MESSAGES];
    for (uint32_t m = 0; m < t->count; m++) {
        for (int receives = 0; receives < 2; receives++) {
            if ((receives ? t->of[m].to : t->of[m].from) != rank) continue;
            epw_coll c = EPW_COLL_INIT;
            c.kind = receives ? EPW_RECV : EPW_SEND;
            c.type = EPW_TYPE_U8;
            c.peer = receives ? t->of[m].from : t->of[m].to;
            c.tag = t->of[m].tag;
            c.count = t->of[m].bytes;
            unsigned char *memory = take(comm, c.count, &heap[count]);
            for (uint64_t i = 0; i < c.count; i++) memory[i] = receives ? 0xa5 : byte_of(t->seed, m, i);
            c.send = c.recv = memory;
            numbers[count] = m;
            calls[count++] = c;
        }
    }
    /* Swaps neighbours that differ in peer, tag or kind. */
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (uint32_t swaps = 0; count > 1 && swaps < 8 * count; swaps++) {
        uint32_t at = (uint32_t)below(&state, count - 1);
        const epw_coll *a = &calls[order[at]], *b = &calls[order[at + 1]];
        if (a->kind == b->kind && a->peer == b->peer && a->tag == b->tag) continue;
        uint32_t swapped = order[at];
        order[at] = order[at + 1];
        order[at + 1] = swapped;
    }
    epw_work works[2 * MESSAGES + ROUNDS];
    uint32_t begun = 0;
    int32_t one[ROUNDS], sums[ROUNDS];
    for (uint32_t i = 0, reduced = 0; i < count || reduced < t->collectives;) {
        epw_call call = EPW_CALL_INIT;
        call.work = &works[begun++];
        if (i == count || (reduced < t->collectives && below(&state, 4) == 0)) {
            one[reduced] = (int32_t)(rank + reduced);
            CHECK_OK(
                epw_all_reduce(comm, &one[reduced], &sums[reduced], 1, EPW_TYPE_I32, EPW_SUM, &call, NULL));
            reduced++;
            continue;
        }
        epw_coll group[2 * MESSAGES];
        uint32_t together = 1 + (uint32_t)below(&state, 3);
        if (together > count - i) together = count - i;
        for (uint32_t g = 0; g < together; g++) group[g] = calls[order[i + g]];
        CHECK_OK(epw_group(comm, group, together, &call, NULL));
        i += together;
    }
    for (uint32_t w = 0; w < begun; w++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        CHECK_OK(epw_work_wait(comm, works[w], UINT64_MAX, &outcome));
        CHECK_MSG(!outcome.degraded, "seed %" PRIu64 ", rank %u: cause %u", t->seed, rank,
                  outcome.record.cause);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bad = 0;
        for (uint64_t b = 0; b < calls[i].count; b++)
            bad += ((const unsigned char *)calls[i].send)[b] != byte_of(t->seed, numbers[i], b);
        CHECK_MSG(bad == 0, "seed %" PRIu64 ", rank %u: %" PRIu64 " bytes of message %u", t->seed, rank, bad,
                  numbers[i]);
        if (heap[i]) {
            epw_comm_free(comm, calls[i].recv);
        } else {
            free(calls[i].recv);
        }
    }
    int32_t want = (int32_t)(t->c.ranks * (t->c.ranks - 1) / 2);
    for (uint32_t i = 0; i < t->collectives; i++)
        CHECK_MSG(sums[i] == want + (int32_t)(i * t->c.ranks), "seed %" PRIu64, t->seed);
}

static void one_case(uint64_t seed) {
    static const uint64_t most[] = {1, 40, 3000, 40000, LONG};
    uint64_t state = seed;
    test_case t = {.seed = seed};
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.slots = 2u << below(&state, 3);
    config.slot_bytes = 64u << below(&state, 8);
    config.heap_bytes = below(&state, 2) == 0 ? 0 : 2 << 20;
    t.c = open_comms(1 + (uint32_t)below(&state, 4), config);
    if (seed % 2 == 0) pull_from(&t.c, UINT64_MAX);
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        activate_comms(&t.c, epoch);
        if (seed % 3 == 0) pass_messages(&t.c, EPW_STEP_MAX - seed % 20); /* words wrap around */
        t.count = 1 + (uint32_t)below(&state, MESSAGES);
        t.collectives = (uint32_t)below(&state, ROUNDS + 1);
        for (uint32_t m = 0; m < t.count; m++)
            t.of[m] = (message){.from = (uint32_t)below(&state, t.c.ranks),
                                .to = (uint32_t)below(&state, t.c.ranks),
                                .tag = (uint32_t)below(&state, TAGS),
                                .bytes = below(&state, most[below(&state, 5)])};
        on_all(t.c.ranks, exchange, &t);
    }
    close_comms(&t.c);
}

/* ---- crossing messages, read from the sender's memory ---- */

static void cross(uint32_t rank, void *context) {
    const comms *c = context;
    unsigned char *mine = malloc(LONG), *its = malloc(LONG);
    if (mine == NULL || its == NULL) abort();
    for (int round = 0; round < 4;
         round++) { /* from the second round on peers may read the sender's memory */
        memset(mine, (int)(rank + 1 + (uint32_t)round * 2), LONG);
        epw_coll ops[2] = {EPW_COLL_INIT, EPW_COLL_INIT};
        for (int i = 0; i < 2; i++) {
            ops[i].kind = i == 0 ? EPW_SEND : EPW_RECV;
            ops[i].type = EPW_TYPE_U8;
            ops[i].peer = 1 - rank;
            ops[i].count = LONG;
            ops[i].send = mine;
            ops[i].recv = its;
        }
        epw_outcome outcome = EPW_OUTCOME_INIT;
        CHECK_OK(epw_group(c->of[rank], ops, 2, NULL, &outcome));
        CHECK(!outcome.degraded && its[0] == 2 - rank + (uint32_t)round * 2 && its[LONG - 1] == its[0]);
    }
    free(mine);
    free(its);
}

static void crossing_sends_of_groups_meet(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, cross, &c);
    close_comms(&c);
}

/* ---- more than may lie unreceived ---- */

static void flood(uint32_t rank, void *context) {
    const comms *c = context;
    enum { MANY = EPW_UNRECEIVED_MAX + 300 };
    uint32_t last = 0, value = 0;
    if (rank == 0) {
        epw_work *works = malloc(MANY * sizeof *works);
        uint32_t *values = malloc(MANY * sizeof *values);
        if (works == NULL || values == NULL) abort();
        for (uint32_t i = 0; i < MANY; i++) {
            epw_call call = EPW_CALL_INIT;
            call.work = &works[i];
            values[i] = i;
            CHECK_OK(epw_send(c->of[0], &values[i], 1, EPW_TYPE_U32, 1, 5, &call, NULL));
        }
        CHECK_OK(epw_send(c->of[0], &last, 1, EPW_TYPE_U32, 1, 6,
                          &(epw_call){.size = sizeof(epw_call), .work = &works[0]}, NULL));
        for (uint32_t i = 1; i < MANY; i++) CHECK_OK(epw_work_wait(c->of[0], works[i], UINT64_MAX, NULL));
        CHECK_OK(epw_work_wait(c->of[0], works[0], UINT64_MAX, NULL));
        free(works);
        free(values);
        return;
    }
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_OK(epw_recv(c->of[1], &value, 1, EPW_TYPE_U32, 0, 5, NULL, NULL));
        CHECK_MSG(value == i, "%u of %u", value, i);
    }
    CHECK_OK(epw_recv(c->of[1], &value, 1, EPW_TYPE_U32, 0, 6, NULL, NULL));
}

static void senders_wait_where_too_much_is_unreceived(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, flood, &c);
    close_comms(&c);
}

/* ---- ends ---- */

static void too_long(uint32_t rank, void *context) {
    const comms *c = context;
    static unsigned char from[LONG];
    unsigned char to[8] = {0};
    const uint64_t bytes[] = {9, LONG};
    for (uint32_t i = 0; i < 2; i++) {
        if (rank == 0) {
            CHECK_OK(epw_send(c->of[0], from, bytes[i], EPW_TYPE_U8, 1, 0, NULL, NULL));
        } else {
            epw_status status = epw_recv(c->of[1], to, 8, EPW_TYPE_U8, 0, 0, NULL, NULL);
            REFUSED(status, EPW_ERR_LIMIT, "wait", 1, 0,
                    i == 0 ? "send of 9 u8 with tag 0, recv has room for 8"
                           : "send of 307200 u8 with tag 0, recv has room for 8");
            CHECK(to[0] == 0);
        }
        /* The message is consumed: the next one matches the next receive. */
        unsigned char next_one = 7;
        if (rank == 0) {
            CHECK_OK(epw_send(c->of[0], &next_one, 1, EPW_TYPE_U8, 1, 0, NULL, NULL));
        } else {
            CHECK_OK(epw_recv(c->of[1], &next_one, 1, EPW_TYPE_U8, 0, 0, NULL, NULL));
            CHECK(next_one == 7);
        }
    }
}

static void a_message_without_room_is_consumed(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, too_long, &c);
    close_comms(&c);
}

/* Messages of another type than their receives. Rank 2 waits for both others in a barrier. */
typedef struct other_type {
    comms c;
    uint64_t floats; /* of the message */
    bool late;       /* the receive is called when the message has arrived */
    pthread_barrier_t turn;
} other_type;

static void told_of_types(epw_status status, const char *what, uint64_t floats) {
    char message[48];
    snprintf(message, sizeof message, "rank 0 is a send of %" PRIu64 " f32 with tag 3", floats);
    CHECK_MSG(status == EPW_ERR_MISMATCH && strstr(epw_last_error(), message) != NULL &&
                  strstr(epw_last_error(), "rank 1 has called recv of 12 u8 with tag 3") != NULL,
              "%s: %s, %s", what, epw_status_name(status), epw_last_error());
}

static void confuse_types(uint32_t rank, void *context) {
    other_type *o = context;
    epw_comm *comm = o->c.of[rank];
    static const float from[LONG / 4];
    static const unsigned char bytes[12];
    unsigned char to[12];
    memset(to, 0x5a, sizeof to);
    epw_call call = EPW_CALL_INIT;
    epw_work works[2];
    call.work = &works[0];
    if (rank == 0) {
        if (!o->late) pthread_barrier_wait(&o->turn);
        CHECK_OK(epw_send(comm, from, o->floats, EPW_TYPE_F32, 1, 3, &call, NULL));
        /* This one would fit, but is not the first of its tag. */
        call.work = &works[1];
        epw_status second = epw_send(comm, bytes, 12, EPW_TYPE_U8, 1, 3, &call, NULL);
        if (o->late) pthread_barrier_wait(&o->turn);
        if (second == EPW_OK) second = epw_work_wait(comm, works[1], UINT64_MAX, NULL);
        if (second != EPW_OK) told_of_types(second, "the second send", o->floats);
        /* A small one is complete before it is received. */
        epw_status first = epw_work_wait(comm, works[0], UINT64_MAX, NULL);
        if (o->floats == LONG / 4 || first != EPW_OK) told_of_types(first, "the send", o->floats);
    } else if (rank == 1) {
        if (o->late) pthread_barrier_wait(&o->turn);
        epw_status status = epw_recv(comm, to, 12, EPW_TYPE_U8, 0, 3, &call, NULL);
        if (!o->late) pthread_barrier_wait(&o->turn);
        if (status == EPW_OK) status = epw_work_wait(comm, works[0], UINT64_MAX, NULL);
        told_of_types(status, "the receive", o->floats);
        for (uint32_t i = 0; i < 12; i++) CHECK_MSG(to[i] == 0x5a, "byte %u was written", i);
    }
    told_of_types(epw_barrier(comm, NULL, NULL), "a barrier", o->floats);
}

static void a_message_of_another_type_is_named_on_every_rank(void) {
    static const uint64_t floats[] = {3, 0, LONG / 4};
    for (uint32_t i = 0; i < 6; i++) {
        epw_comm_config config = EPW_COMM_CONFIG_INIT;
        other_type o = {.c = open_comms(3, config), .floats = floats[i / 2], .late = i % 2 == 1};
        pthread_barrier_init(&o.turn, NULL, 2);
        activate_comms(&o.c, 1);
        on_all(3, confuse_types, &o);
        pthread_barrier_destroy(&o.turn);
        activate_comms(&o.c, 2);
        o.c.ranks = 2;
        on_all(2, too_long, &o.c); /* the next epoch has none of these messages */
        o.c.ranks = 3;
        close_comms(&o.c);
    }
}

static void a_send_to_itself_of_another_type_is_named(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(1, config);
    activate_comms(&c, 1);
    uint32_t words[2] = {1, 2}, got = 77;
    epw_coll ops[3] = {EPW_COLL_INIT, EPW_COLL_INIT, EPW_COLL_INIT};
    for (uint32_t i = 0; i < 3; i++) {
        ops[i].kind = i < 2 ? EPW_SEND : EPW_RECV;
        ops[i].type = i == 0 ? EPW_TYPE_F32 : EPW_TYPE_U32;
        ops[i].count = 1;
        ops[i].send = &words[i % 2];
        ops[i].recv = &got;
    }
    REFUSED(epw_group(c.of[0], ops, 3, NULL, NULL), EPW_ERR_MISMATCH, "wait", 0, 0,
            "has called recv of 1 u32 with tag 0, and the message of rank 0 is a send of 1 f32");
    CHECK(got == 77);
    close_comms(&c);
}

static void a_send_to_itself_that_meets_none_ends(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = 20 * MS;
    comms c = open_comms(1, config);
    activate_comms(&c, 1);
    unsigned char byte = 1;
    epw_status status = epw_send(c.of[0], &byte, 1, EPW_TYPE_U8, 0, 0, NULL, NULL);
    REFUSED(status, EPW_ERR_TIMEOUT, "wait", 0, -1, "to itself");
    close_comms(&c);
}

/* ---- sends that are dropped ---- */

/* A receive that matches a send that was dropped finds the sender missing, and what follows is in order. */
static void receive_without(epw_comm *comm, uint32_t from, uint32_t want) {
    uint32_t value = 77;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_recv(comm, &value, 1, EPW_TYPE_U32, from, 0, NULL, &outcome));
    CHECK_MSG(outcome.degraded && outcome.missing.bits[0] == UINT64_C(1) << from &&
                  outcome.record.cause == EPW_CAUSE_PARTIAL && value == 77,
              "missing %" PRIx64 ", cause %u, value %u", outcome.missing.bits[0], outcome.record.cause,
              value);
    CHECK_OK(epw_recv(comm, &value, 1, EPW_TYPE_U32, from, 0, NULL, &outcome));
    CHECK_MSG(!outcome.degraded && value == want, "%u, not %u", value, want);
}

static epw_work begin_send(epw_comm *comm, const uint32_t *value, uint32_t to) {
    epw_work work = 0;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    CHECK_OK(epw_send(comm, value, 1, EPW_TYPE_U32, to, 0, &call, NULL));
    return work;
}

static void a_dropped_send_to_itself_is_missing(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(1, config);
    activate_comms(&c, 1);
    const uint32_t values[] = {1, 2};
    epw_work dropped = begin_send(c.of[0], &values[0], 0), kept = begin_send(c.of[0], &values[1], 0);
    CHECK_OK(epw_work_drop(c.of[0], dropped));
    receive_without(c.of[0], 0, 2);
    CHECK_OK(epw_work_wait(c.of[0], kept, UINT64_MAX, NULL));
    close_comms(&c);
}

enum { RING = 2 };

/* Rank 0 drops a send for which the ring has had no room yet. */
typedef struct full {
    comms c;
    pthread_barrier_t filled;
} full;

static void fill_and_drop(uint32_t rank, void *context) {
    full *f = context;
    if (rank == 1) {
        pthread_barrier_wait(&f->filled);
        for (uint32_t i = 0; i < RING; i++) {
            uint32_t value = 0;
            CHECK_OK(epw_recv(f->c.of[1], &value, 1, EPW_TYPE_U32, 0, 0, NULL, NULL));
            CHECK_MSG(value == i, "%u, not %u", value, i);
        }
        receive_without(f->c.of[1], 0, RING + 1);
        CHECK_OK(epw_barrier(f->c.of[1], NULL, NULL));
        return;
    }
    uint32_t values[RING + 2];
    epw_work works[RING + 2];
    for (uint32_t i = 0; i < RING + 2; i++) {
        values[i] = i;
        works[i] = begin_send(f->c.of[0], &values[i], 1);
    }
    CHECK_OK(epw_work_drop(f->c.of[0], works[RING]));
    pthread_barrier_wait(&f->filled);
    for (uint32_t i = 0; i < RING + 2; i++)
        if (i != RING) CHECK_OK(epw_work_wait(f->c.of[0], works[i], UINT64_MAX, NULL));
    CHECK_OK(epw_barrier(f->c.of[0], NULL, NULL));
}

static void a_send_that_is_dropped_before_it_is_written_is_missing(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.slots = RING;
    full f = {.c = open_comms(2, config)};
    pthread_barrier_init(&f.filled, NULL, 2);
    activate_comms(&f.c, 1);
    on_all(2, fill_and_drop, &f);
    pthread_barrier_destroy(&f.filled);
    close_comms(&f.c);
}

/* A dropped send of any length that is never received does not make the receiver suspect. */
static void skip_and_wait(uint32_t rank, void *context) {
    const comms *c = context;
    static unsigned char much[LONG];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (rank == 0) {
        epw_work work = 0;
        epw_call call = EPW_CALL_INIT;
        call.work = &work;
        CHECK_OK(epw_send(c->of[0], much, LONG, EPW_TYPE_U8, 1, 4, &call, NULL));
        CHECK_OK(epw_work_drop(c->of[0], work));
        call = (epw_call)EPW_CALL_INIT;
        call.deadline_ns = 4000 * MS;
        CHECK_OK(epw_recv(c->of[0], much, 1, EPW_TYPE_U8, 1, 5, &call, &outcome));
    } else {
        nanosleep(&(struct timespec){0, 600000000}, NULL);
        CHECK_OK(epw_send(c->of[1], much, 1, EPW_TYPE_U8, 0, 5, NULL, &outcome));
    }
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
    CHECK_OK(epw_barrier(c->of[rank], NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
}

static void a_dropped_send_waits_for_no_receive(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = 2000 * MS;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, skip_and_wait, &c);
    close_comms(&c);
}

/* A collective that is dropped takes back what it has lent, and not what later sends lend. */
typedef struct dropping {
    comms c;
    pthread_barrier_t dropped;
    bool heap;
} dropping;

static void send_after_a_drop(uint32_t rank, void *context) {
    dropping *d = context;
    epw_comm *comm = d->c.of[rank];
    void *shared = malloc(LONG), *memory = malloc(LONG); /* a peer may still be reading what is taken back */
    if (d->heap) {
        free(shared);
        free(memory);
        CHECK_OK(epw_comm_alloc(comm, LONG, &shared));
        CHECK_OK(epw_comm_alloc(comm, LONG, &memory));
    }
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t i = 0; i < 2; i++) /* from the second one on peers may read the sender's memory */
        CHECK_OK(epw_broadcast(comm, shared, shared, LONG, EPW_TYPE_U8, 0, NULL, &outcome));
    epw_call call = EPW_CALL_INIT;
    epw_work work;
    call.work = &work;
    if (rank == 0) {
        CHECK_OK(epw_broadcast(comm, shared, shared, LONG, EPW_TYPE_U8, 0, &call, NULL));
        CHECK_OK(epw_work_drop(comm, work));
    }
    pthread_barrier_wait(&d->dropped);
    if (rank == 1) CHECK_OK(epw_broadcast(comm, shared, shared, LONG, EPW_TYPE_U8, 0, NULL, &outcome));
    for (uint32_t i = 0; i < 3; i++) {
        memset(memory, rank == 0 ? 0x70 + (int)i : 0, LONG);
        if (rank == 0) CHECK_OK(epw_send(comm, memory, LONG, EPW_TYPE_U8, 1, i, NULL, &outcome));
        if (rank == 1) CHECK_OK(epw_recv(comm, memory, LONG, EPW_TYPE_U8, 0, i, NULL, &outcome));
        CHECK_MSG(!outcome.degraded, "message %u: rank %u: cause %u", i, rank, outcome.record.cause);
        uint64_t wrong = 0;
        for (uint64_t at = 0; at < LONG; at++) wrong += ((unsigned char *)memory)[at] != 0x70 + i;
        CHECK_MSG(wrong == 0, "message %u: rank %u: %" PRIu64 " bytes are wrong", i, rank, wrong);
    }
    if (!d->heap) {
        free(shared);
        free(memory);
    }
}

static void a_send_after_a_dropped_collective_is_lent(void) {
    for (int heap = 0; heap < 2; heap++) {
        epw_comm_config config = EPW_COMM_CONFIG_INIT;
        config.heap_bytes = heap ? 1 << 20 : 0;
        config.deadline_ns = 20000 * MS;
        dropping d = {.c = open_comms(2, config), .heap = heap != 0};
        pthread_barrier_init(&d.dropped, NULL, 2);
        activate_comms(&d.c, 1);
        on_all(2, send_after_a_drop, &d);
        pthread_barrier_destroy(&d.dropped);
        close_comms(&d.c);
    }
}

/* Small messages, more than a ring has room for, to a rank that waits for something else: it takes them in
 * all the same. */
typedef enum busy_with { A_BARRIER, A_BARRIER_BY_A_WORK, ANOTHER_MESSAGE, BUSY_WITH } busy_with;
typedef struct busy {
    comms c;
    busy_with with;
} busy;

enum { SMALL_SENDS = 40 };

static void wait_by_polls(epw_comm *comm, epw_outcome *outcome) {
    epw_work work;
    epw_call call = EPW_CALL_INIT;
    call.work = &work;
    CHECK_OK(epw_barrier(comm, &call, NULL));
    while (epw_work_poll(comm, work, outcome) == EPW_PENDING)
        CHECK_OK(epw_work_await(comm, work, UINT64_MAX));
}

static void send_to_the_busy(uint32_t rank, void *context) {
    const busy *b = context;
    epw_comm *comm = b->c.of[rank];
    unsigned char value = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (unsigned char i = 0; rank == 1 && i < SMALL_SENDS; i++) {
        CHECK_OK(epw_send(comm, &i, 1, EPW_TYPE_U8, 0, 0, NULL, &outcome));
        CHECK_MSG(!outcome.degraded, "send %u: cause %u", i, outcome.record.cause);
    }
    if (b->with == ANOTHER_MESSAGE) { /* from rank 1 to 2, and then to 0 */
        if (rank != 1) CHECK_OK(epw_recv(comm, &value, 1, EPW_TYPE_U8, rank == 0 ? 2 : 1, 1, NULL, &outcome));
        if (rank != 0) CHECK_OK(epw_send(comm, &value, 1, EPW_TYPE_U8, rank == 1 ? 2 : 0, 1, NULL, &outcome));
    } else if (b->with == A_BARRIER_BY_A_WORK) {
        wait_by_polls(comm, &outcome);
    } else {
        CHECK_OK(epw_barrier(comm, NULL, &outcome));
    }
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
    for (uint32_t i = 0; rank == 0 && i < SMALL_SENDS; i++) {
        CHECK_OK(epw_recv(comm, &value, 1, EPW_TYPE_U8, 1, 0, NULL, &outcome));
        CHECK_MSG(!outcome.degraded && value == i, "message %u is %u", i, value);
    }
    CHECK_OK(epw_barrier(comm, NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "rank %u, cause %u", rank, outcome.record.cause);
}

static void messages_to_a_rank_that_waits_are_taken_in(void) {
    for (busy_with with = A_BARRIER; with < BUSY_WITH; with++) {
        epw_comm_config config = EPW_COMM_CONFIG_INIT;
        config.deadline_ns = longer * 500 * MS;
        config.slots = 4;
        busy b = {.c = open_comms(3, config), .with = with};
        activate_comms(&b.c, 1);
        on_all(3, send_to_the_busy, &b);
        close_comms(&b.c);
    }
}

/* As many as a group may have. */
enum { GROUP = 65536 };

static void send_a_group(uint32_t rank, void *context) {
    const comms *c = context;
    uint32_t *values = malloc(GROUP * sizeof *values);
    epw_coll *ops = malloc(GROUP * sizeof *ops);
    if (values == NULL || ops == NULL) abort();
    for (uint32_t i = 0; i < GROUP; i++) {
        values[i] = rank == 0 ? i : 0;
        ops[i] = (epw_coll)EPW_COLL_INIT;
        ops[i].kind = rank == 0 ? EPW_SEND : EPW_RECV;
        ops[i].type = EPW_TYPE_U32;
        ops[i].peer = 1 - rank;
        ops[i].count = 1;
        ops[i].send = ops[i].recv = &values[i];
    }
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_group(c->of[rank], ops, GROUP, NULL, &outcome));
    uint32_t bad = 0;
    for (uint32_t i = 0; i < GROUP; i++) bad += values[i] != i;
    CHECK_MSG(!outcome.degraded && bad == 0, "%u of %u messages are wrong", bad, GROUP);
    free(ops);
    free(values);
}

static void a_group_of_many_messages_is_exchanged(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, send_a_group, &c);
    close_comms(&c);
}

/* Lent memory is read a piece at a time: other calls do not wait for the whole message. */
enum { MUCH = 96 << 20 };

static void send_much(uint32_t rank, void *context) {
    const comms *c = context;
    unsigned char *bytes = malloc(MUCH);
    if (bytes == NULL) abort();
    epw_outcome outcome = EPW_OUTCOME_INIT;
    memset(bytes, rank == 0 ? 7 : 0, MUCH);
    CHECK_OK(
        epw_barrier(c->of[rank], NULL, &outcome)); /* after it, each rank knows whose memory it can read */
    if (rank == 0) {
        CHECK_OK(epw_send(c->of[0], bytes, MUCH, EPW_TYPE_U8, 1, 0, NULL, &outcome));
    } else {
        epw_work work;
        epw_call call = EPW_CALL_INIT;
        call.work = &work;
        nanosleep(&(struct timespec){0, 20000000}, NULL); /* the message has probably arrived */
        CHECK_OK(epw_recv(c->of[1], bytes, MUCH, EPW_TYPE_U8, 0, 0, &call, NULL));
        CHECK(epw_work_poll(c->of[1], work, NULL) == EPW_PENDING);
        CHECK_OK(epw_work_wait(c->of[1], work, UINT64_MAX, &outcome));
        CHECK(!outcome.degraded && bytes[0] == 7 && memcmp(bytes, bytes + 1, MUCH - 1) == 0);
        /* Rank 0 was told twice that the read goes on, then that it has ended, and that it was matched. */
        const epw_coll_peer *from = &c->of[1]->of[0];
        if (from->readable) CHECK_MSG(from->rings[EPW_CHANNEL_POINT].posted >= 4, "it was not told");
    }
    free(bytes);
}

static void a_long_read_is_done_in_pieces(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.slots = 2;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, send_much, &c);
    close_comms(&c);
}

/* A rank whose thread is stopped for a while in its call: it lends a message, and its ring has room for two
 * of the other rank's. */
typedef struct paused {
    comms c;
    pthread_t thread;
    unsigned char *lent;
    epw_outcome outcome;
} paused;

enum { PAUSED_BYTES = 100 << 10, SMALL_ONES = 2 };

static void pause_here(int number) {
    (void)number;
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
}

static epw_coll of_bytes(uint32_t kind, uint32_t peer, void *memory, uint64_t bytes, uint32_t tag) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = EPW_TYPE_U8;
    c.count = bytes;
    c.peer = peer;
    c.tag = tag;
    if (kind == EPW_SEND) {
        c.send = memory;
    } else {
        c.recv = memory;
    }
    return c;
}

static void *lend_and_pause(void *context) {
    paused *t = context;
    unsigned char small[SMALL_ONES];
    epw_coll ops[1 + SMALL_ONES];
    ops[0] = of_bytes(EPW_SEND, 0, t->lent, PAUSED_BYTES, 0);
    for (uint32_t i = 0; i < SMALL_ONES; i++) ops[1 + i] = of_bytes(EPW_RECV, 0, &small[i], 1, i);
    CHECK_OK(epw_group(t->c.of[1], ops, 1 + SMALL_ONES, NULL, &t->outcome));
    CHECK_MSG(small[0] == 1 && small[1] == 2, "%u and %u", small[0], small[1]);
    return NULL;
}

/* The answer to a lent message finds the ring full. The call that owes it does not end before it is written:
 * the peer waits for it, and nobody may step this rank again. */
static void a_receive_ends_when_its_answer_is_written(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.slots = SMALL_ONES;
    config.deadline_ns = UINT64_C(2000000000) * times_slower();
    config.heap_bytes = 1 << 20;
    paused t = {.c = open_comms(2, config), .outcome = EPW_OUTCOME_INIT};
    activate_comms(&t.c, 1);
    void *heap = NULL;
    CHECK_OK(epw_comm_alloc(t.c.of[1], PAUSED_BYTES, &heap));
    t.lent = heap;
    memset(t.lent, 7, PAUSED_BYTES);
    struct sigaction action = {.sa_handler = pause_here};
    sigaction(SIGUSR1, &action, NULL);
    if (pthread_create(&t.thread, NULL, lend_and_pause, &t) != 0) abort();
    bool offered = false;
    for (uint64_t began = epw_now_ns(); !offered && epw_now_ns() - began < 10000 * MS;) {
        const epw_comm *own = t.c.of[0];
        uint64_t posted = epw_word_from(&own->peers, EPW_CHANNEL_POINT, 1, EPW_WORD_POSTED);
        offered = epw_word_epoch(posted) == epw_word_epoch(own->own_word) && epw_word_step(posted) == 1;
        if (!offered) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    CHECK_MSG(offered, "rank 1 has not written its offer");
    pthread_kill(t.thread, SIGUSR1);
    unsigned char small[SMALL_ONES] = {1, 2}, *got = malloc(PAUSED_BYTES);
    if (got == NULL) abort();
    epw_coll ops[1 + SMALL_ONES];
    for (uint32_t i = 0; i < SMALL_ONES; i++) ops[i] = of_bytes(EPW_SEND, 1, &small[i], 1, i);
    ops[SMALL_ONES] = of_bytes(EPW_RECV, 1, got, PAUSED_BYTES, 0);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_group(t.c.of[0], ops, SMALL_ONES, NULL, &outcome)); /* fill the ring */
    CHECK_OK(epw_group(t.c.of[0], &ops[SMALL_ONES], 1, NULL, &outcome));
    CHECK(outcome.degraded == 0 && got[0] == 7 && got[PAUSED_BYTES - 1] == 7);
    pthread_join(t.thread, NULL); /* with nobody to step rank 0 */
    CHECK_MSG(t.outcome.degraded == 0, "cause %u", t.outcome.record.cause);
    free(got);
    epw_comm_free(t.c.of[1], heap);
    close_comms(&t.c);
}

/* Each ends by its own deadline, in whatever order they were called, and a thread that awaits one is
 * woken. */
static void what_waits_for_this_rank_itself_ends_in_its_own_time(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = 20 * MS;
    comms c = open_comms(1, config);
    activate_comms(&c, 1);
    unsigned char never[2];
    epw_work works[2];
    for (uint32_t i = 0; i < 2; i++) {
        epw_call call = EPW_CALL_INIT;
        call.work = &works[i];
        call.deadline_ns = i == 0 ? 60000 * MS : 0;
        CHECK_OK(epw_recv(c.of[0], &never[i], 1, EPW_TYPE_U8, 0, i, &call, NULL));
    }
    uint64_t began = epw_now_ns();
    CHECK_OK(epw_work_await(c.of[0], works[1], 30000 * MS));
    epw_status status = epw_work_poll(c.of[0], works[1], NULL);
    REFUSED(status, EPW_ERR_TIMEOUT, "wait", 0, -1, "to itself");
    CHECK_MSG(epw_now_ns() - began < 10000 * MS, "%llu ms",
              (unsigned long long)((epw_now_ns() - began) / MS));
    CHECK(epw_work_poll(c.of[0], works[0], NULL) == EPW_PENDING);
    CHECK_OK(epw_work_drop(c.of[0], works[0]));
    close_comms(&c);
}

/* There was no memory for all of them. */
static void some_points_are_freed_too(void) {
    epw_coll_peer peers[3] = {0};
    epw_comm comm = {.of = peers, .layout = {.ranks = 3}};
    CHECK(epw_points_make(&comm));
    free(peers[1].point);
    peers[1].point = NULL;
    epw_points_free(&comm);
    CHECK(peers[0].point == NULL && peers[2].point == NULL);
}

int main(void) {
    some_points_are_freed_too();
    seeds s = seeds_of_test(CASES);
    for (uint64_t seed = s.first; seed < s.end; seed += s.step) one_case(seed);
    crossing_sends_of_groups_meet();
    senders_wait_where_too_much_is_unreceived();
    a_message_without_room_is_consumed();
    a_message_of_another_type_is_named_on_every_rank();
    a_send_to_itself_of_another_type_is_named();
    a_send_to_itself_that_meets_none_ends();
    what_waits_for_this_rank_itself_ends_in_its_own_time();
    a_dropped_send_to_itself_is_missing();
    a_send_that_is_dropped_before_it_is_written_is_missing();
    a_dropped_send_waits_for_no_receive();
    a_send_after_a_dropped_collective_is_lent();
    KEEP_TIME(messages_to_a_rank_that_waits_are_taken_in());
    a_group_of_many_messages_is_exchanged();
    KEEP_TIME(a_long_read_is_done_in_pieces());
    a_receive_ends_when_its_answer_is_written();
    return check_result("points");
}
