/* A rank that disconnects a peer behind queues and connects again at once. The peer makes a new offer, even
 * if its NIC has not noticed yet that the former connection is gone. If the end of that connection has not
 * even arrived, the offer may be of queues that are in use; but then connecting again is enough. */
#include "group.h"

#include "nic/fabric.h"
#include "nic/soft/parts.h"

#include <fcntl.h>
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

enum { HELD_MAX = 8 };

/* Copies of the descriptors of all connections of a rank: none that it closes ends before they are closed. */
typedef struct held {
    int fds[HELD_MAX], count;
} held;

static uint32_t open_links(epw_nic *nic) {
    epw_nic_lock(nic);
    uint32_t count = nic->open_links;
    epw_nic_unlock(nic);
    return count;
}

static held hold_ends(epw_fabric *fabric) {
    held h = {.count = 0};
    epw_nic *nic = epw_fabric_nic(fabric);
    AWAIT(open_links(nic) == 2); /* each rank has dialed one */
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count && h.count < HELD_MAX; i++) {
        if (nic->links[i] == NULL) continue;
        h.fds[h.count] = fcntl(nic->links[i]->fd, F_DUPFD_CLOEXEC, 0);
        CHECK(h.fds[h.count++] >= 0);
    }
    epw_nic_unlock(nic);
    CHECK(h.count == 2);
    return h;
}

static void let_ends_arrive(const held *h) {
    for (int i = 0; i < h->count; i++) CHECK(close(h->fds[i]) == 0);
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
    held h = hold_ends(g.fabrics[0]);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(0, g.of[1], blob);
    if (arrives) let_ends_arrive(&h);
    REFUSED(epw_buffer_connect(g.of[0], 1, blob, length), EPW_ERR_PEER, "connect", 0, 1, "export again");
    connect_both(&g);
    probe_both(&g);
    if (!arrives) let_ends_arrive(&h);
    epw_nic_look(epw_fabric_nic(g.fabrics[1])); /* an end that is noticed late concerns nobody */
    probe_both(&g);
    destroy(&g);
}

/* Queues by which nothing has come may be offered again, whenever the end of the former connection arrives.
 */
static void unused_queues_are_offered_again(bool arrives) {
    group g = make_group(2, 60000 * MS);
    held h = hold_ends(g.fabrics[0]);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = blob_for(0, g.of[1], blob);
    if (arrives) {
        let_ends_arrive(&h);
        epw_nic_look(epw_fabric_nic(g.fabrics[1]));
    }
    CHECK_OK(epw_buffer_connect(g.of[0], 1, blob, length));
    CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    probe_both(&g);
    if (!arrives) let_ends_arrive(&h);
    epw_nic_look(epw_fabric_nic(g.fabrics[1]));
    probe_both(&g);
    destroy(&g);
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
    destroy(&g);
}

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "soft", 1); /* whose lock is held */
    static const char *const wires[] = {"local", "tcp"};
    for (int i = 0; i < 2; i++) {
        setenv("EPW_TEST_WIRE", wires[i], 1);
        an_offer_is_of_who_is_connected_now();
        an_offer_of_used_queues_is_refused(false);
        an_offer_of_used_queues_is_refused(true);
        unused_queues_are_offered_again(false);
        unused_queues_are_offered_again(true);
        what_is_connected_is_not_used_up();
    }
    return check_result("reconnect");
}
