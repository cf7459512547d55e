/* A rank that disconnects a peer behind queues, or ends, and connects again at once. The peer makes a new
 * offer, even if its NIC has not noticed yet that the former connection is gone. If the end of that
 * connection has not even arrived, the offer may be of queues that are in use; but then connecting again is
 * enough. */
#include "late_ends.h"

#include "base/clock.h"
#include "ep/buffer.h"
#include "peer/remote.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15 };

/* Keeps a NIC's thread, and all others, from running for a while. */
typedef struct keeper {
    epw_nic *nic;
    atomic_int has, may_let_go;
} keeper;

static void *keep(void *argument) {
    keeper *k = argument;
    epw_nic_lock(k->nic);
    atomic_store(&k->has, 1);
    while (!atomic_load(&k->may_let_go)) nanosleep(&(struct timespec){0, MS}, NULL);
    nanosleep(&(struct timespec){0, 20 * MS}, NULL); /* meanwhile the offer is being requested */
    epw_nic_unlock(k->nic);
    return NULL;
}

static void an_offer_is_of_who_is_connected_now(void) {
    group g = make_group(2, 60000 * MS);
    for (int round = 0; round < ROUNDS; round++) {
        keeper k = {.nic = epw_fabric_nic(g.fabrics[1])};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, keep, &k) == 0);
        while (!atomic_load(&k.has)) nanosleep(&(struct timespec){0, MS}, NULL);
        atomic_store(&k.may_let_go, 1);
        CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
        CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
        CHECK_OK(epw_buffer_probe(g.of[0], 1, 5000 * MS));
        CHECK_OK(epw_buffer_probe(g.of[1], 0, 5000 * MS));
    }
    destroy(&g);
}

/* ---- the end of a connection that has not arrived ---- */

/* Whoever has disconnected its only peer drives no connections any more, also if queues were kept meanwhile.
 */
static void part(const group *g) {
    for (uint32_t r = 0; r < 2; r++) {
        CHECK_OK(epw_buffer_disconnect(g->of[r], 1 - r));
        CHECK(!epw_remotes_any(&g->of[r]->peers));
    }
    destroy(g);
}

static void connect_both(const group *g) {
    CHECK_OK(connect_to(g->of[0], 0, g->of[1], 1));
    CHECK_OK(connect_to(g->of[1], 1, g->of[0], 0));
}

static void probe_both(const group *g) {
    CHECK_OK(epw_buffer_probe(g->of[0], 1, 5000 * MS));
    CHECK_OK(epw_buffer_probe(g->of[1], 0, 5000 * MS));
}

/* Rank 1 offers queues that it has used with rank 0's former connection, whose end arrives after that. They
 * are refused at once, and connecting again is enough. */
static void an_offer_of_used_queues_is_refused(bool arrives) {
    group g = make_group(2, 60000 * MS);
    probe_both(&g);
    hold_ends(g.fabrics[1]);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(0, g.of[1], blob);
    if (arrives) let_ends_arrive(g.fabrics[1]);
    REFUSED(epw_buffer_connect(g.of[0], 1, blob, length), EPW_ERR_PEER, "connect", 0, 1, "export again");
    connect_both(&g);
    probe_both(&g);
    if (!arrives) let_ends_arrive(g.fabrics[1]);
    epw_nic_look(epw_fabric_nic(g.fabrics[1])); /* an end that is noticed late concerns nobody */
    probe_both(&g);
    part(&g);
}

/* Queues by which nothing has come may be offered again, whenever the end of the former connection arrives.
 * An adapter does not tell whether something has come: there they are refused, as used ones are. */
static void unused_queues_are_offered_again(bool arrives, bool by_adapter) {
    group g = make_group(2, 60000 * MS);
    hold_ends(g.fabrics[1]);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(0, g.of[1], blob);
    if (arrives) {
        let_ends_arrive(g.fabrics[1]);
        epw_nic_look(epw_fabric_nic(g.fabrics[1]));
    }
    if (by_adapter) {
        REFUSED(epw_buffer_connect(g.of[0], 1, blob, length), EPW_ERR_PEER, "connect", 0, 1, "export again");
        connect_both(&g);
    } else {
        CHECK_OK(epw_buffer_connect(g.of[0], 1, blob, length));
        CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    }
    probe_both(&g);
    if (!arrives) let_ends_arrive(g.fabrics[1]);
    epw_nic_look(epw_fabric_nic(g.fabrics[1]));
    probe_both(&g);
    part(&g);
}

/* Rank 1's offer is used up before rank 1 itself connects. */
static void what_is_connected_is_not_used_up(void) {
    group g = {.ranks = 2};
    for (uint32_t r = 0; r < 2; r++) g.of[r] = make_rank(r, 2, 60000 * MS, &g.fabrics[r]);
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    CHECK(epw_buffer_probe(g.of[0], 1, 50 * MS) == EPW_ERR_TIMEOUT); /* rank 1 has no way back yet */
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    epw_nic_look(epw_fabric_nic(g.fabrics[1]));
    CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    probe_both(&g);
    part(&g);
}

/* ---- the end of a peer that is probed ---- */

/* Ends rank 1 as the end of its process does: no connection remains. */
static void end_rank_1(group *g) {
    epw_buffer_destroy(g->of[1]);
    epw_fabric_destroy(g->fabrics[1]);
    g->of[1] = NULL;
    g->fabrics[1] = NULL;
}

enum { PROBE_MS = 10000 };

/* It need not take the time that the probe is given. */
static void is_told_that_rank_1_has_ended(epw_buffer *buffer) {
    uint64_t began = epw_now_ns();
    REFUSED(epw_buffer_probe(buffer, 1, PROBE_MS * MS), EPW_ERR_PEER, "probe", 0, 1, "its process has ended");
    CHECK_MSG(epw_now_ns() - began < PROBE_MS / 2 * MS, "it took the timeout");
}

static void *probe_rank_1(void *buffer) {
    is_told_that_rank_1_has_ended(buffer);
    return NULL;
}

static void a_probe_of_a_peer_that_has_ended_fails_at_once(void) {
    group g = make_group(2, 60000 * MS);
    probe_both(&g);
    end_rank_1(&g);
    is_told_that_rank_1_has_ended(g.of[0]);
    destroy(&g);
}

/* Rank 1 answers no probes, and ends while it is being probed. */
static void a_probe_of_a_peer_that_ends_fails_at_once(void) {
    group g = make_group(2, 60000 * MS);
    epw_peers_close_probe(&g.of[1]->peers);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, probe_rank_1, g.of[0]) == 0);
    nanosleep(&(struct timespec){0, 50 * MS}, NULL);
    end_rank_1(&g);
    CHECK(pthread_join(thread, NULL) == 0);
    destroy(&g);
}

/* ---- a question that arrives while another one is answered ---- */

/* From now on the rank's NIC reads from none of its connections that it does not find to have ended. */
static void watch_no_links(epw_fabric *fabric) {
    epw_nic *nic = epw_fabric_nic(fabric);
    AWAIT(freeze_links(nic, false) == 2);
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count; i++)
        if (nic->links[i] != NULL) epw_nic_freeze(nic->links[i]);
    epw_nic_unlock(nic);
}

/* Rank 1 asks and then ends, which rank 0 notices when it answers, as it does if its fd server is rung: it
 * takes in what rank 1 has sent, the question too. */
static void answers_may_bring_questions(void) {
    group g = make_group(2, 60000 * MS);
    probe_both(&g);
    watch_no_links(g.fabrics[0]);
    epw_peers *peers = &g.of[0]->peers;
    uint64_t asked = epw_word_from(peers, 0, 1, EPW_WORD_PROBE);
    CHECK(epw_buffer_probe(g.of[1], 0, 50 * MS) == EPW_ERR_TIMEOUT);
    CHECK(epw_word_from(peers, 0, 1, EPW_WORD_PROBE) == asked);
    end_rank_1(&g);
    alarm(30); /* a thread that waits for itself waits for ever */
    for (int i = 0; i < 1000 && epw_word_from(peers, 0, 1, EPW_WORD_PROBE) == asked; i++) {
        epw_peers_probe_asked(peers, 1);
        nanosleep(&(struct timespec){0, MS}, NULL);
    }
    alarm(0);
    CHECK(epw_word_from(peers, 0, 1, EPW_WORD_PROBE) == asked + 1 && !peers->answerer.answering);
    destroy(&g);
}

/* There was no memory for all tables of the peers. */
static void peers_without_offers_are_closed(void) {
    epw_peers peers = {.ranks = 2};
    peers.remotes = calloc(2, sizeof peers.remotes[0]);
    epw_remotes_close(&peers);
    CHECK(peers.remotes == NULL);
}

int main(void) {
    peers_without_offers_are_closed();
    setenv("EPW_TEST_PATH", "queue", 1);
    static const struct {
        const char *nic, *wire;
    } cases[] = {{"soft", "local"}, {"soft", "tcp"}, {"fakes", "local"}, {"fakes", "tcp"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("EPW_TEST_NIC", cases[i].nic, 1);
        setenv("EPW_TEST_WIRE", cases[i].wire, 1);
        bool by_adapter = i >= 2;
        an_offer_is_of_who_is_connected_now();
        an_offer_of_used_queues_is_refused(false);
        an_offer_of_used_queues_is_refused(true);
        unused_queues_are_offered_again(false, by_adapter);
        unused_queues_are_offered_again(true, by_adapter);
        what_is_connected_is_not_used_up();
        a_probe_of_a_peer_that_has_ended_fails_at_once();
        a_probe_of_a_peer_that_ends_fails_at_once();
        if (i == 1) answers_may_bring_questions();
    }
    return check_result("reconnect");
}
