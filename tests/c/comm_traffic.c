/* What a communicator counts: the bytes between each pair of ranks of every kind of call, and waits. Its
 * peers are reached as open_comms says. */
#include "comms.h"

#include <unistd.h>

enum { RANKS = 3, LARGE = 12001, ROOT = 1 }; /* elements of 4 bytes: more than everyone folds */

typedef struct test_case {
    comms c;
    epw_coll call;
    uint64_t count;
} test_case;

/* Uneven blocks: rank r has r + 1 times `count` elements. */
static uint64_t block(const test_case *t, uint32_t r) {
    return t->count * (r + 1);
}

static void call(uint32_t rank, void *context) {
    const test_case *t = context;
    static _Alignas(64) _Thread_local float send[LARGE * 6], recv[LARGE * 6];
    uint64_t counts[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) counts[r] = block(t, r);
    epw_coll c = t->call;
    c.send = send;
    c.recv = recv;
    c.count = t->count;
    c.type = EPW_TYPE_F32;
    if (c.kind == EPW_ALL_GATHER || c.kind == EPW_GATHER) c.recv_counts = counts;
    if (c.kind == EPW_REDUCE_SCATTER || c.kind == EPW_SCATTER) c.send_counts = counts;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_group(t->c.of[rank], &c, 1, NULL, &outcome));
    CHECK(!outcome.degraded);
}

/* The piece of an all-reduce that a rank owns: a third, in lines of 64 bytes. */
static uint64_t piece(uint64_t bytes, uint32_t r) {
    uint64_t each = ((bytes + RANKS - 1) / RANKS + 63) / 64 * 64, from = each * r;
    return bytes - from < each ? bytes - from : each;
}

/* The bytes that go from `s` to another rank, and those that `s` copies for itself. */
static uint64_t expected(const test_case *t, uint32_t s, uint32_t d) {
    uint64_t bytes = t->count * 4;
    switch (t->call.kind) {
    case EPW_BROADCAST:
        return s == ROOT ? bytes : 0;
    case EPW_ALL_REDUCE:
        return s == d ? 0 : bytes <= 8192 ? bytes : piece(bytes, s) + piece(bytes, d);
    case EPW_REDUCE:
        return d == ROOT && s != d ? bytes : 0;
    case EPW_REDUCE_SCATTER:
        return s == d ? 0 : block(t, d) * 4;
    case EPW_ALL_GATHER:
        return block(t, s) * 4;
    case EPW_ALL_TO_ALL:
        return bytes;
    case EPW_GATHER:
        return d == ROOT ? block(t, s) * 4 : 0;
    case EPW_SCATTER:
        return s == ROOT ? block(t, d) * 4 : 0;
    default:
        return 0;
    }
}

static void check(const test_case *t, uint32_t rank, const epw_peer_traffic *before, uint64_t operations) {
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic peers[RANKS];
    uint64_t sent = 0, received = 0;
    CHECK_OK(epw_comm_traffic(t->c.of[rank], &traffic, peers));
    for (uint32_t p = 0; p < RANKS; p++) {
        uint64_t out = peers[p].bytes_sent - before[p].bytes_sent;
        uint64_t in = peers[p].bytes_received - before[p].bytes_received;
        CHECK_MSG(out == expected(t, rank, p) && in == expected(t, p, rank),
                  "kind %u of %llu: rank %u: %llu bytes of %llu to %u, %llu of %llu from it", t->call.kind,
                  (unsigned long long)t->count, rank, (unsigned long long)out,
                  (unsigned long long)expected(t, rank, p), p, (unsigned long long)in,
                  (unsigned long long)expected(t, p, rank));
        sent += peers[p].bytes_sent, received += peers[p].bytes_received;
    }
    CHECK(traffic.bytes_sent == sent && traffic.bytes_received == received);
    CHECK(traffic.operations == operations);
    CHECK(traffic.rows_sent == 0 && traffic.rows_received == 0 && traffic.rows_answered == 0);
}

static epw_comm_config config_of_comm(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = 10000 * MS;
    return config;
}

static void bytes_of_collectives_are_counted(void) {
    static const uint32_t kinds[] = {EPW_BARRIER,    EPW_BROADCAST,      EPW_ALL_REDUCE,
                                     EPW_REDUCE,     EPW_REDUCE_SCATTER, EPW_ALL_GATHER,
                                     EPW_ALL_TO_ALL, EPW_GATHER,         EPW_SCATTER};
    static const uint64_t counts[] = {48, LARGE};
    test_case t = {.c = open_comms(RANKS, config_of_comm()), .call = EPW_COLL_INIT};
    activate_comms(&t.c, 1);
    t.call.peer = ROOT;
    uint64_t operations = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t i = 0; i < 2; i++) {
            epw_peer_traffic before[RANKS][RANKS];
            epw_traffic traffic = EPW_TRAFFIC_INIT;
            for (uint32_t r = 0; r < RANKS; r++) CHECK_OK(epw_comm_traffic(t.c.of[r], &traffic, before[r]));
            t.call.kind = kinds[k];
            t.count = counts[i];
            on_all(RANKS, call, &t);
            operations++;
            for (uint32_t r = 0; r < RANKS; r++) check(&t, r, before[r], operations);
        }
    }
    close_comms(&t.c);
}

/* Each rank sends to every rank, itself too: eagerly, or, of a size that is not, as the peer can take it. */
enum { EAGER = 100, OFFERED = 300 << 10 };

static uint64_t bytes_between(uint32_t s, uint32_t d, uint64_t size) {
    return size + s * 8 + d;
}

typedef struct sends {
    comms c;
    uint64_t size;
} sends;

static void send_to_all(uint32_t rank, void *context) {
    const sends *t = context;
    epw_coll calls[2 * RANKS];
    unsigned char *memory[2 * RANKS];
    for (uint32_t p = 0; p < RANKS; p++) {
        for (uint32_t i = 0; i < 2; i++) {
            epw_coll *c = &calls[2 * p + i];
            *c = (epw_coll)EPW_COLL_INIT;
            memory[2 * p + i] = calloc(1, t->size + 64);
            c->kind = i == 0 ? EPW_SEND : EPW_RECV;
            c->type = EPW_TYPE_U8;
            c->peer = p;
            c->send = i == 0 ? memory[2 * p] : NULL;
            c->recv = i == 1 ? memory[2 * p + 1] : NULL;
            c->count = i == 0 ? bytes_between(rank, p, t->size) : t->size + 64; /* has more room */
        }
    }
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_group(t->c.of[rank], calls, 2 * RANKS, NULL, &outcome));
    CHECK(!outcome.degraded);
    for (uint32_t i = 0; i < 2 * RANKS; i++) free(memory[i]);
}

static void bytes_of_sends_are_counted(uint64_t size) {
    sends t = {.c = open_comms(RANKS, config_of_comm()), .size = size};
    activate_comms(&t.c, 1);
    on_all(RANKS, send_to_all, &t);
    for (uint32_t r = 0; r < RANKS; r++) {
        epw_traffic traffic = EPW_TRAFFIC_INIT;
        epw_peer_traffic peers[RANKS];
        CHECK_OK(epw_comm_traffic(t.c.of[r], &traffic, peers));
        CHECK(traffic.operations == 2 * RANKS);
        for (uint32_t p = 0; p < RANKS; p++)
            CHECK_MSG(peers[p].bytes_sent == bytes_between(r, p, size) &&
                          peers[p].bytes_received == bytes_between(p, r, size),
                      "rank %u: %llu bytes to %u, %llu from it", r, (unsigned long long)peers[p].bytes_sent,
                      p, (unsigned long long)peers[p].bytes_received);
    }
    close_comms(&t.c);
}

/* Rank 1 comes late, after all have met. Rank 2 waits for it alone, and so does rank 0. */
enum { LATE_MS = 30 };

typedef struct lateness {
    comms c;
    epw_peer_traffic met[RANKS][RANKS]; /* what each rank had counted then */
} lateness;

static void meet_late(uint32_t rank, void *context) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    lateness *t = context;
    CHECK_OK(epw_barrier(t->c.of[rank], NULL, &outcome));
    CHECK_OK(epw_comm_traffic(t->c.of[rank], &traffic, t->met[rank]));
    if (rank == 1) usleep((useconds_t)(longer * LATE_MS * 1000));
    CHECK_OK(epw_barrier(t->c.of[rank], NULL, &outcome));
}

static void the_wait_for_a_peer_is_counted(void) {
    lateness t = {.c = open_comms(RANKS, config_of_comm())};
    const comms c = t.c;
    activate_comms(&c, 1);
    on_all(RANKS, meet_late, &t);
    for (uint32_t r = 0; r < RANKS; r += 2) {
        epw_traffic traffic = EPW_TRAFFIC_INIT;
        epw_peer_traffic peers[RANKS];
        CHECK_OK(epw_comm_traffic(c.of[r], &traffic, peers));
        uint64_t for_late = peers[1].wait_ns - t.met[r][1].wait_ns;
        uint64_t for_other = peers[2 - r].wait_ns - t.met[r][2 - r].wait_ns;
        CHECK_MSG(for_late >= longer * LATE_MS / 2 * MS && for_late > for_other,
                  "rank %u waited %llu ns, and %llu ns for the other one", r, (unsigned long long)for_late,
                  (unsigned long long)for_other);
        CHECK(peers[r].wait_ns == 0);
    }
    /* The time between two operations is nobody's. */
    usleep((useconds_t)(longer * LATE_MS * 1000));
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    epw_peer_traffic before[RANKS], after[RANKS];
    CHECK_OK(epw_comm_traffic(c.of[0], &traffic, before));
    uint16_t byte = 0;
    epw_work work;
    epw_call begun = EPW_CALL_INIT;
    begun.work = &work;
    CHECK_OK(epw_recv(c.of[0], &byte, 1, EPW_TYPE_U8, 2, 0, &begun, NULL));
    CHECK_OK(epw_comm_traffic(c.of[0], &traffic, after));
    CHECK(after[2].wait_ns - before[2].wait_ns < longer * LATE_MS / 2 * MS);
    CHECK_OK(epw_work_drop(c.of[0], work));
    close_comms(&c);
}

static void wrong_calls_are_refused(void) {
    comms c = open_comms(1, config_of_comm());
    epw_traffic traffic = EPW_TRAFFIC_INIT;
    CHECK_OK(epw_comm_traffic(c.of[0], &traffic, NULL));
    CHECK(traffic.operations == 0 && traffic.bytes_sent == 0);
    REFUSED(epw_comm_traffic(NULL, &traffic, NULL), EPW_ERR_INVALID, "traffic", -1, -1, "comm is NULL");
    REFUSED(epw_comm_traffic(c.of[0], NULL, NULL), EPW_ERR_INVALID, "traffic", 0, -1, "traffic is NULL");
    close_comms(&c);
}

int main(void) {
    bytes_of_collectives_are_counted();
    bytes_of_sends_are_counted(EAGER);
    bytes_of_sends_are_counted(OFFERED);
    KEEP_TIME(the_wait_for_a_peer_is_counted());
    wrong_calls_are_refused();
    return check_result("comm_traffic");
}
