/* Sends and receives against a plain model: seeded messages between all pairs, with a few tags, of sizes from
 * 0 to more than what is sent eagerly, received in another order of tags, by works and by groups, with
 * collectives between them. Each message arrives once, in the order of its pair and tag. Also errors: too
 * little room, no partner, too many unreceived messages.
 *
 * See seeds_of_test() for the variables that choose others. */
#include "comms.h"

#include "base/clock.h"

#include "coll/point.h"

#include <inttypes.h>
#include <stdbool.h>

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
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        activate_comms(&t.c, epoch);
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
            REFUSED(status, EPW_ERR_LIMIT, "wait", 1, -1, "recv has room for 8");
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
    }
    free(bytes);
}

static void a_long_read_is_done_in_pieces(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    activate_comms(&c, 1);
    on_all(2, send_much, &c);
    close_comms(&c);
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

int main(void) {
    seeds s = seeds_of_test(CASES);
    for (uint64_t seed = s.first; seed < s.end; seed += s.step) one_case(seed);
    crossing_sends_of_groups_meet();
    senders_wait_where_too_much_is_unreceived();
    a_message_without_room_is_consumed();
    a_send_to_itself_that_meets_none_ends();
    what_waits_for_this_rank_itself_ends_in_its_own_time();
    a_dropped_send_to_itself_is_missing();
    a_send_that_is_dropped_before_it_is_written_is_missing();
    a_dropped_send_waits_for_no_receive();
    KEEP_TIME(a_long_read_is_done_in_pieces());
    return check_result("points");
}
