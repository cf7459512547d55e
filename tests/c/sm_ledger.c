/* SMs that are promised to kernels that wait for peers: never more than a GPU has, whatever the number of
 * threads; and a request for too many is told who has them. */
#include "check.h"

#include "device/sm_ledger.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { SMS = 132, THREADS = 8, TURNS = 4000 };

static const epw_where where = {"create", 0, -1};

static epw_sm_request request_of(uint32_t rank, uint32_t least, uint32_t most) {
    return (epw_sm_request){.device = 0,
                            .sms = SMS,
                            .least = least,
                            .most = most,
                            .multiple = 1,
                            .holder = "buffer",
                            .rank = rank};
}

static epw_sm_share *take(epw_sm_request request) {
    epw_sm_share *share = NULL;
    CHECK_OK(epw_sm_ledger_take(&request, where, &share));
    return share;
}

static void what_is_free_is_given_and_no_more(void) {
    epw_sm_share *first = take(request_of(0, 2, 100)), *second = take(request_of(1, 2, 100)), *third = NULL;
    CHECK(epw_sm_share_of(first) == 100 && epw_sm_share_of(second) == 32);
    epw_sm_request more = request_of(2, 1, 1), elsewhere = more;
    CHECK(epw_sm_ledger_take(&more, where, &third) == EPW_ERR_LIMIT && third == NULL);
    elsewhere.device = 1;
    third = take(elsewhere); /* another GPU has SMs of its own */
    epw_sm_ledger_give(third);
    epw_sm_ledger_give(first);
    third = take(more);
    CHECK(epw_sm_share_of(third) == 1);
    epw_sm_ledger_give(third);
    epw_sm_ledger_give(second);
    epw_sm_ledger_give(NULL);
    third = take(request_of(0, SMS, SMS));
    epw_sm_ledger_give(third);
}

static void lanes_have_as_many_each(void) {
    epw_sm_share *large = take(request_of(0, 31, 31));
    epw_sm_request lanes = request_of(1, 2, SMS);
    lanes.multiple = 2;
    epw_sm_share *even = take(lanes);
    CHECK(epw_sm_share_of(even) == 100); /* of 101 */
    epw_sm_ledger_give(even);
    epw_sm_ledger_give(large);
}

static void the_error_names_who_holds_them(void) {
    epw_sm_request comm = request_of(3, 32, 32);
    comm.holder = "communicator";
    epw_sm_share *held[] = {take(request_of(3, 2, 90)), take(comm)}, *none = NULL;
    epw_sm_request more = request_of(4, 32, 32);
    CHECK(epw_sm_ledger_take(&more, where, &none) == EPW_ERR_LIMIT);
    static const char text[] =
        "config.sms: at least 32 SMs are needed, and 10 of GPU 0's 132 are free: the communicator of rank 3 "
        "has 32, the buffer of rank 3 has 90. Kernels that wait for peers must all fit at the same time: "
        "give each holder fewer with its config.sms";
    CHECK_MSG(strstr(epw_last_error(), text) != NULL, "%s", epw_last_error());
    for (int i = 0; i < 2; i++) epw_sm_ledger_give(held[i]);
}

/* Holders for which a text has no room are counted. */
static void many_holders_are_counted(void) {
    epw_sm_share *held[SMS], *none = NULL;
    for (uint32_t i = 0; i < SMS; i++) held[i] = take(request_of(i, 1, 1));
    epw_sm_request more = request_of(SMS, 1, 1);
    CHECK(epw_sm_ledger_take(&more, where, &none) == EPW_ERR_LIMIT);
    CHECK_MSG(strstr(epw_last_error(), ", and 126 more have some. Kernels") != NULL, "%s", epw_last_error());
    for (uint32_t i = 0; i < SMS; i++) epw_sm_ledger_give(held[i]);
}

static atomic_uint in_use, most_in_use;

static void *take_and_give(void *argument) {
    uint32_t rank = *(uint32_t *)argument;
    for (int i = 0; i < TURNS; i++) {
        epw_sm_request request = request_of(rank, 1, 40);
        epw_sm_share *share = NULL;
        epw_status status = epw_sm_ledger_take(&request, where, &share);
        CHECK(status == EPW_OK || status == EPW_ERR_LIMIT);
        if (status != EPW_OK) continue;
        uint32_t sms = epw_sm_share_of(share), now = atomic_fetch_add(&in_use, sms) + sms;
        uint32_t most = atomic_load(&most_in_use);
        while (now > most && !atomic_compare_exchange_weak(&most_in_use, &most, now)) {
        }
        sched_yield();
        atomic_fetch_sub(&in_use, sms);
        epw_sm_ledger_give(share);
    }
    return NULL;
}

static void threads_never_have_more_than_there_are(void) {
    pthread_t threads[THREADS];
    uint32_t ranks[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        ranks[i] = i;
        pthread_create(&threads[i], NULL, take_and_give, &ranks[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_MSG(atomic_load(&most_in_use) <= SMS, "%u", atomic_load(&most_in_use));
}

int main(void) {
    what_is_free_is_given_and_no_more();
    lanes_have_as_many_each();
    the_error_names_who_holds_them();
    many_holders_are_counted();
    threads_never_have_more_than_there_are();
    return check_result("sm_ledger");
}
