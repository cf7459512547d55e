/* A rank that disconnects a peer behind queues and connects again at once. The peer makes a new offer, even
 * if its NIC has not noticed yet that the former connection is gone. */
#include "group.h"

#include "nic/fabric.h"
#include "nic/soft/parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

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

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "soft", 1); /* whose lock is held */
    static const char *const wires[] = {"local", "tcp"};
    for (int i = 0; i < 2; i++) {
        setenv("EPW_TEST_WIRE", wires[i], 1);
        an_offer_is_of_who_is_connected_now();
    }
    return check_result("reconnect");
}
