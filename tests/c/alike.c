/* What a buffer, a communicator and a prefill buffer have in common is tested on each of them: how a
 * connection is bounded, by what peers are reached, probes, and what memberships say of peers that have moved
 * on or begun at another step. */
#include "group.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LONG_MS = 20000 };

/* The functions of one of the three. */
typedef struct kind {
    const char *name;
    epw_status (*create)(uint32_t rank, uint64_t deadline_ns, epw_fabric **fabric, void **out);
    void (*destroy)(void *of);
    epw_status (*export)(void *of, uint32_t peer, void *blob, size_t *length);
    epw_status (*connect)(void *of, uint32_t peer, const void *blob, size_t length);
    epw_status (*connect_within)(void *of, uint32_t peer, const void *blob, size_t length, uint64_t ns);
    epw_status (*disconnect)(void *of, uint32_t peer);
    epw_status (*probe)(void *of, uint32_t peer, uint64_t timeout_ns);
    uint32_t (*path)(const void *of, uint32_t peer);
    uint32_t (*wire)(const void *of, uint32_t peer);
    epw_status (*set_active)(void *of, const epw_mask *active, uint32_t epoch, uint64_t step);
    epw_status (*revoke)(void *of, const epw_mask *peers);
    epw_status (*membership)(const void *of, epw_membership *membership);
    epw_status (*newest_epoch)(void *of, uint32_t *epoch);
    epw_status (*diverged)(void *of, uint32_t epoch, uint64_t step, epw_mask *ranks);
} kind;

#define KIND(name)                                                                                           \
    static void destroy_##name(void *of) {                                                                   \
        epw_##name##_destroy(of);                                                                            \
    }                                                                                                        \
    static epw_status export_##name(void *of, uint32_t peer, void *blob, size_t *length) {                   \
        return epw_##name##_export(of, peer, blob, length);                                                  \
    }                                                                                                        \
    static epw_status connect_##name(void *of, uint32_t peer, const void *blob, size_t length) {             \
        return epw_##name##_connect(of, peer, blob, length);                                                 \
    }                                                                                                        \
    static epw_status connect_within_##name(void *of, uint32_t peer, const void *blob, size_t length,        \
                                            uint64_t ns) {                                                   \
        return epw_##name##_connect_within(of, peer, blob, length, ns);                                      \
    }                                                                                                        \
    static epw_status disconnect_##name(void *of, uint32_t peer) {                                           \
        return epw_##name##_disconnect(of, peer);                                                            \
    }                                                                                                        \
    static epw_status probe_##name(void *of, uint32_t peer, uint64_t timeout_ns) {                           \
        return epw_##name##_probe(of, peer, timeout_ns);                                                     \
    }                                                                                                        \
    static uint32_t path_##name(const void *of, uint32_t peer) {                                             \
        return epw_##name##_path(of, peer);                                                                  \
    }                                                                                                        \
    static uint32_t wire_##name(const void *of, uint32_t peer) {                                             \
        return epw_##name##_wire(of, peer);                                                                  \
    }                                                                                                        \
    static epw_status set_active_##name(void *of, const epw_mask *active, uint32_t epoch, uint64_t step) {   \
        return epw_##name##_set_active(of, active, epoch, step);                                             \
    }                                                                                                        \
    static epw_status revoke_##name(void *of, const epw_mask *peers) {                                       \
        return epw_##name##_revoke(of, peers);                                                               \
    }                                                                                                        \
    static epw_status membership_##name(const void *of, epw_membership *membership) {                        \
        return epw_##name##_membership(of, membership);                                                      \
    }                                                                                                        \
    static epw_status newest_epoch_##name(void *of, uint32_t *epoch) {                                       \
        return epw_##name##_newest_epoch(of, epoch);                                                         \
    }                                                                                                        \
    static epw_status diverged_##name(void *of, uint32_t epoch, uint64_t step, epw_mask *ranks) {            \
        return epw_##name##_diverged(of, epoch, step, ranks);                                                \
    }                                                                                                        \
    static const kind name##_kind = {#name,                                                                  \
                                     create_##name,                                                          \
                                     destroy_##name,                                                         \
                                     export_##name,                                                          \
                                     connect_##name,                                                         \
                                     connect_within_##name,                                                  \
                                     disconnect_##name,                                                      \
                                     probe_##name,                                                           \
                                     path_##name,                                                            \
                                     wire_##name,                                                            \
                                     set_active_##name,                                                      \
                                     revoke_##name,                                                          \
                                     membership_##name,                                                      \
                                     newest_epoch_##name,                                                    \
                                     diverged_##name};

static epw_status create_buffer(uint32_t rank, uint64_t deadline_ns, epw_fabric **fabric, void **out) {
    epw_config config = config_of(rank, RANKS);
    config.deadline_ns = deadline_ns;
    take_path(&config, fabric);
    return epw_buffer_create(&config, (epw_buffer **)out);
}
static epw_status create_comm(uint32_t rank, uint64_t deadline_ns, epw_fabric **fabric, void **out) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    epw_config path = EPW_CONFIG_INIT;
    path.rank = config.rank = rank;
    take_path(&path, fabric);
    config.ranks = RANKS;
    config.deadline_ns = deadline_ns;
    config.paths = path.paths;
    config.fabric = path.fabric;
    return epw_comm_create(&config, (epw_comm **)out);
}
static epw_status create_prefill(uint32_t rank, uint64_t deadline_ns, epw_fabric **fabric, void **out) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ep = config_of(rank, RANKS);
    config.ep.ordered = config.ep.zero_copy = 0;
    config.ep.deadline_ns = deadline_ns;
    take_path(&config.ep, fabric);
    return epw_prefill_create(&config, (epw_prefill **)out);
}

KIND(buffer)
KIND(comm)
KIND(prefill)

/* ---- ranks ---- */

typedef struct ranks {
    const kind *k;
    void *of[RANKS];
    epw_fabric *fabrics[RANKS];
} ranks;

static void make(ranks *g, uint32_t rank) {
    CHECK_OK(g->k->create(rank, LONG_MS * MS, &g->fabrics[rank], &g->of[rank]));
}

/* Rank 0 connects with a deadline of its own, the others without. */
static ranks make_all(const kind *k) {
    ranks g = {.k = k};
    for (uint32_t r = 0; r < RANKS; r++) make(&g, r);
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t p = 0; p < RANKS; p++) {
            unsigned char blob[EPW_BLOB_MAX];
            size_t length = 0;
            if (p == r) continue;
            CHECK_OK(k->export(g.of[p], r, blob, &length));
            if (r == 0)
                CHECK_OK(k->connect_within(g.of[r], p, blob, length, SETUP_NS));
            else
                CHECK_OK(k->connect(g.of[r], p, blob, length));
        }
    }
    return g;
}

static void free_all(const ranks *g) {
    for (uint32_t r = 0; r < RANKS; r++) g->k->destroy(g->of[r]);
    for (uint32_t r = 0; r < RANKS; r++) epw_fabric_destroy(g->fabrics[r]);
}

static void begin(const ranks *g, uint32_t rank, uint32_t epoch, uint64_t step) {
    epw_mask all = first_ranks(RANKS);
    CHECK_OK(g->k->set_active(g->of[rank], &all, epoch, step));
}

static uint32_t newest(const ranks *g, uint32_t rank) {
    uint32_t epoch = UINT32_MAX;
    CHECK_OK(g->k->newest_epoch(g->of[rank], &epoch));
    return epoch;
}

static uint64_t diverged(const ranks *g, uint32_t rank, uint32_t epoch, uint64_t step) {
    epw_mask which = {{~UINT64_C(0)}};
    CHECK_OK(g->k->diverged(g->of[rank], epoch, step, &which));
    return which.bits[0];
}

/* ---- connections ---- */

static uint32_t wire_of_test(void) {
    const char *wire = getenv("EPW_TEST_WIRE"), *nic = getenv("EPW_TEST_NIC");
    if (path_of_test() != EPW_PATH_QUEUE || (nic != NULL && strncmp(nic, "fake", 4) == 0)) return 0;
    if (wire != NULL && strcmp(wire, "tcp") == 0) return EPW_WIRE_TCP;
    return wire != NULL && strcmp(wire, "verbs") == 0 ? EPW_WIRE_VERBS : EPW_WIRE_LOCAL;
}

static void a_peer_has_a_path_and_a_wire(const kind *k) {
    ranks g = make_all(k);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t p = 0; p < RANKS; p++) {
            CHECK(k->path(g.of[r], p) == (p == r ? EPW_PATH_SELF : path_of_test()));
            CHECK_MSG(k->wire(g.of[r], p) == (p == r ? 0 : wire_of_test()), "%s: wire %u", k->name,
                      k->wire(g.of[r], p));
        }
    CHECK(k->path(g.of[0], RANKS) == EPW_PATH_NONE && k->wire(g.of[0], RANKS) == 0);
    CHECK(k->path(NULL, 1) == EPW_PATH_NONE && k->wire(NULL, 1) == 0);
    CHECK_OK(k->disconnect(g.of[0], 1));
    CHECK(k->path(g.of[0], 1) == EPW_PATH_NONE && k->wire(g.of[0], 1) == 0);
    free_all(&g);
}

/* The process of rank 1, which exports and stops. */
static pid_t start_and_stop(const kind *k, unsigned char blob[EPW_BLOB_MAX], size_t *length) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        ranks g = {.k = k};
        make(&g, 1);
        CHECK_OK(k->export(g.of[1], 0, blob, length));
        CHECK(write(ends[1], blob, *length) == (ssize_t)*length);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    ssize_t got = read(ends[0], blob, EPW_BLOB_MAX);
    CHECK(got > 0);
    *length = got > 0 ? (size_t)got : 0;
    close(ends[0]);
    close(ends[1]);
    return child;
}

/* By the deadline of the call, not by that of what connects, which is much longer. */
static void a_connection_is_bounded(const kind *k) {
    unsigned char blob[EPW_BLOB_MAX] = {0};
    size_t length = 0;
    ranks g = {.k = k};
    pid_t peer = start_and_stop(k, blob, &length);
    make(&g, 0);
    REFUSED(k->connect_within(g.of[0], 1, blob, length, 0), EPW_ERR_INVALID, "connect", 0, 1,
            "deadline is 0 ns");
    double began = seconds_of(CLOCK_MONOTONIC);
    epw_status status = k->connect_within(g.of[0], 1, blob, length, 200 * MS);
    CHECK_MSG(status == EPW_ERR_TIMEOUT, "%s: %s", k->name, epw_last_error());
    CHECK_MSG(seconds_of(CLOCK_MONOTONIC) - began < (double)LONG_MS / 2e3, "%s: it took the other deadline",
              k->name);
    CHECK(k->path(g.of[0], 1) == EPW_PATH_NONE);
    kill(peer, SIGKILL);
    waitpid(peer, NULL, 0);
    status = k->connect_within(g.of[0], 1, blob, length, LONG_MS * MS);
    CHECK_MSG(status == EPW_ERR_PEER, "%s: %s: %s", k->name, epw_status_name(status), epw_last_error());
    k->destroy(g.of[0]);
    epw_fabric_destroy(g.fabrics[0]);
}

/* ---- probes ---- */

static void a_probe_finds_who_answers(const kind *k) {
    ranks g = make_all(k);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t p = 0; p < RANKS; p++) CHECK_OK(k->probe(g.of[r], p, LONG_MS * MS));
    REFUSED(k->probe(g.of[0], RANKS, MS), EPW_ERR_INVALID, "probe", 0, -1, "must be below 3");
    REFUSED(k->probe(NULL, 1, MS), EPW_ERR_INVALID, "probe", -1, -1, "is NULL");
    CHECK_OK(k->disconnect(g.of[0], 1));
    REFUSED(k->probe(g.of[0], 1, MS), EPW_ERR_STATE, "probe", 0, 1, "not connected");
    /* Rank 1 reaches rank 0, which cannot answer it. A queue serves both directions. */
    if (path_of_test() == EPW_PATH_QUEUE)
        REFUSED(k->probe(g.of[1], 0, LONG_MS * MS), EPW_ERR_PEER, "probe", 1, 0, "nothing reaches it");
    else
        REFUSED(k->probe(g.of[1], 0, 50 * MS), EPW_ERR_TIMEOUT, "probe", 1, 0, "within 50 ms");
    CHECK_OK(k->probe(g.of[1], 2, LONG_MS * MS));
    free_all(&g);
}

/* ---- memberships ---- */

static void the_newest_epoch_is_that_of_any_peer(const kind *k) {
    ranks g = make_all(k);
    CHECK(newest(&g, 0) == 0);
    for (uint32_t r = 0; r < RANKS; r++) begin(&g, r, 3, 0);
    for (uint32_t r = 0; r < RANKS; r++) CHECK(newest(&g, r) == 3);
    begin(&g, 2, 8, 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        AWAIT(newest(&g, r) == 8);
        CHECK_MSG(newest(&g, r) == 8, "%s: rank %u knows of epoch %u", k->name, r, newest(&g, r));
    }
    epw_membership now = EPW_MEMBERSHIP_INIT;
    CHECK_OK(k->membership(g.of[0], &now));
    CHECK_MSG(now.epoch == 3, "rank 0 has begun epoch %u", now.epoch);
    /* Rank 2 is no member any more. */
    epw_mask two = first_ranks(2);
    CHECK_OK(k->set_active(g.of[0], &two, 4, 0));
    CHECK(newest(&g, 0) == 4);
    REFUSED(k->newest_epoch(g.of[0], NULL), EPW_ERR_INVALID, "newest_epoch", 0, -1, "epoch is NULL");
    REFUSED(k->newest_epoch(NULL, &now.epoch), EPW_ERR_INVALID, "newest_epoch", -1, -1, "is NULL");
    free_all(&g);
}

static void who_began_at_another_step_has_diverged(const kind *k) {
    ranks g = make_all(k);
    CHECK(diverged(&g, 0, 0, 0) == 0);
    for (uint32_t r = 0; r < RANKS; r++) begin(&g, r, 2, r == 1 ? 70 : 50);
    for (uint32_t r = 0; r < RANKS; r++) {
        AWAIT(diverged(&g, r, 2, 50) == 2 && diverged(&g, r, 2, 70) == 5);
        CHECK_MSG(diverged(&g, r, 2, 50) == 2 && diverged(&g, r, 2, 70) == 5, "%s: rank %u: %llx and %llx",
                  k->name, r, (unsigned long long)diverged(&g, r, 2, 50),
                  (unsigned long long)diverged(&g, r, 2, 70));
        CHECK(diverged(&g, r, 2, EPW_STEP_MAX) == 7 && diverged(&g, r, 3, 50) == 0);
    }
    epw_mask which;
    REFUSED(k->diverged(g.of[0], 8388608, 0, &which), EPW_ERR_INVALID, "diverged", 0, -1,
            "epoch 8388608 and step 0 must be in [0, 8388607]");
    REFUSED(k->diverged(g.of[0], 1, EPW_STEP_MAX + 1, &which), EPW_ERR_INVALID, "diverged", 0, -1,
            "must be in");
    REFUSED(k->diverged(g.of[0], 1, 0, NULL), EPW_ERR_INVALID, "diverged", 0, -1, "ranks is NULL");
    REFUSED(k->diverged(NULL, 1, 0, &which), EPW_ERR_INVALID, "diverged", -1, -1, "is NULL");
    free_all(&g);
}

/* It is no evidence of a failure. */
static void who_is_revoked_is_a_suspect_but_not_silent(const kind *k) {
    ranks g = make_all(k);
    epw_membership now = EPW_MEMBERSHIP_INIT;
    epw_mask one = {{4}}, own = {{1}};
    for (uint32_t r = 0; r < RANKS; r++) begin(&g, r, 1, 9);
    CHECK_OK(k->revoke(g.of[0], &one));
    CHECK_OK(k->membership(g.of[0], &now));
    CHECK(now.epoch == 1 && now.step == 9 && now.active.bits[0] == 7);
    CHECK_MSG(now.suspects.bits[0] == 4 && now.silent.bits[0] == 0, "%s: suspects %llx, silent %llx", k->name,
              (unsigned long long)now.suspects.bits[0], (unsigned long long)now.silent.bits[0]);
    REFUSED(k->revoke(g.of[0], &own), EPW_ERR_INVALID, "revoke", 0, -1, "this rank");
    begin(&g, 0, 2, 10);
    CHECK_OK(k->membership(g.of[0], &now));
    CHECK(now.epoch == 2 && now.step == 10 && now.suspects.bits[0] == 0);
    free_all(&g);
}

int main(void) {
    static const kind *const kinds[] = {&buffer_kind, &comm_kind, &prefill_kind};
    const uint32_t count = sizeof kinds / sizeof kinds[0];
    for (uint32_t i = 0; i < count; i++) a_connection_is_bounded(kinds[i]); /* before there are threads */
    for (uint32_t i = 0; i < count; i++) {
        a_peer_has_a_path_and_a_wire(kinds[i]);
        a_probe_finds_who_answers(kinds[i]);
        the_newest_epoch_is_that_of_any_peer(kinds[i]);
        who_began_at_another_step_has_diverged(kinds[i]);
        who_is_revoked_is_a_suspect_but_not_silent(kinds[i]);
    }
    return check_result("alike");
}
