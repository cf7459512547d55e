/* Communicators of some of the ranks: they meet by collectives of the one of all. Its peers are reached as
 * open_comms says. */
#include "comms.h"

#include "base/bits.h"

#include <stdbool.h>
#include <stdlib.h>

enum { RANKS = 5 };

typedef struct test_case {
    comms c;
    epw_mask masks[RANKS];         /* that each rank passes */
    const epw_comm_config *config; /* of the last rank's subset; NULL: as the others' */
    bool as_parent; /* with its configuration, even where each subset needs a fabric of its own */
    epw_status expected[RANKS];
    const char *words[RANKS]; /* of the error */
} test_case;

static epw_mask mask_of(uint64_t bits) {
    epw_mask mask = {{bits}};
    return mask;
}

/* The sum of the numbers of the mask's ranks, by the subset. */
static void use(epw_comm *subset, uint32_t rank, uint64_t mask) {
    uint32_t own = rank, sum = 0, wanted = 0;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    for (uint32_t r = 0; r < RANKS; r++) wanted += mask >> r & 1 ? r : 0;
    CHECK_OK(epw_all_reduce(subset, &own, &sum, 1, EPW_TYPE_U32, EPW_SUM, NULL, &outcome));
    CHECK(!outcome.degraded && sum == wanted);
}

static void split(uint32_t rank, void *context) {
    const test_case *t = context;
    const epw_mask *mask = &t->masks[rank];
    epw_comm *all = t->c.of[rank], *subset = all;
    bool within = epw_mask_has(mask, rank);
    epw_fabric *fabric = NULL;
    epw_config path = EPW_CONFIG_INIT;
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    for (uint32_t r = 0; r < rank; r++) path.rank += epw_mask_has(mask, r);
    take_path(&path, &fabric);
    if (rank == RANKS - 1 && t->config != NULL) config = *t->config;
    config.paths = path.paths;
    config.fabric = path.fabric;
    bool as_parent = t->as_parent || (fabric == NULL && config.slots == 0);
    epw_status status = epw_comm_subset(all, mask, as_parent ? NULL : &config, &subset);
    CHECK_MSG(status == t->expected[rank], "rank %u: status %d: %s", rank, status, epw_last_error());
    CHECK((subset != NULL) == (status == EPW_OK && within));
    if (status != EPW_OK)
        CHECK_MSG(strstr(epw_last_error(), t->words[rank]) != NULL, "%s lacks %s", epw_last_error(),
                  t->words[rank]);
    if (subset != NULL) {
        epw_membership m = EPW_MEMBERSHIP_INIT;
        CHECK_OK(epw_comm_membership(subset, &m));
        CHECK(m.epoch == 1 && m.step == 0);
        use(subset, rank, mask->bits[0]);
    }
    use(all, rank, (1u << RANKS) - 1); /* which goes on as before; and all are done with the subset */
    epw_comm_destroy(subset);
    epw_fabric_destroy(fabric);
}

static test_case opened(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.deadline_ns = 10000 * MS;
    test_case t = {.c = open_comms(RANKS, config)};
    activate_comms(&t.c, 1);
    return t;
}

static void ranks_divide(void) {
    test_case t = opened();
    static const uint64_t even = 0x15, odd = 0xa;
    for (uint32_t r = 0; r < RANKS; r++) t.masks[r] = mask_of(r % 2 == 0 ? even : odd);
    on_all(RANKS, split, &t);
    /* One rank alone, two together, the others in none; the last says so with an empty mask. */
    for (uint32_t r = 0; r < RANKS; r++) t.masks[r] = mask_of(r == 0 ? 1 : r < 3 ? 6 : r == 3 ? 1 : 0);
    on_all(RANKS, split, &t);
    close_comms(&t.c);
}

static void masks_that_overlap_are_refused(void) {
    test_case t = opened();
    static const uint64_t masks[RANKS] = {0x3, 0x6, 0x6, 0x18, 0x18};
    for (uint32_t r = 0; r < RANKS; r++) {
        t.masks[r] = mask_of(masks[r]);
        t.expected[r] = r < 3 ? EPW_ERR_MISMATCH : EPW_OK;
        t.words[r] = r == 0 ? "its mask begins with 6, this rank's with 3"
                            : "its mask begins with 3, this rank's with 6";
    }
    on_all(RANKS, split, &t);
    close_comms(&t.c);
}

static void a_rank_that_cannot_make_its_part_is_named(void) {
    test_case t = opened();
    epw_comm_config wrong = EPW_COMM_CONFIG_INIT;
    wrong.slots = 3;
    t.config = &wrong;
    for (uint32_t r = 0; r < RANKS; r++) {
        t.masks[r] = mask_of(r < 2 ? 3 : 0x1c);
        t.expected[r] = r < 2 ? EPW_OK : r < RANKS - 1 ? EPW_ERR_PEER : EPW_ERR_LIMIT;
        t.words[r] = r < RANKS - 1 ? "peer 4: it could not make" : "config.slots is 3";
    }
    on_all(RANKS, split, &t);
    close_comms(&t.c);
}

/* Ranks 1 and 2 have other numbers in the subset, and name the fabric of the whole. */
static void a_fabric_of_another_rank_is_refused(void) {
    if (path_of_test() != EPW_PATH_QUEUE) return;
    test_case t = opened();
    t.as_parent = true;
    for (uint32_t r = 0; r < RANKS; r++) {
        t.masks[r] = mask_of(6);
        t.expected[r] = r == 1 || r == 2 ? EPW_ERR_INVALID : EPW_OK;
        t.words[r] = r == 1 ? "fabric is that of rank 1, must be that of 0" : "of rank 2, must be that of 1";
    }
    on_all(RANKS, split, &t);
    close_comms(&t.c);
}

/* Host memory of each pair of ranks, from one byte to the most. */
static void exchange(uint32_t rank, void *context) {
    static const uint64_t sizes[] = {1, 1031, EPW_EXCHANGE_MAX, 2};
    const test_case *t = context;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t bytes = sizes[s];
        unsigned char *memory = malloc(RANKS * bytes);
        epw_outcome outcome = EPW_OUTCOME_INIT;
        for (uint64_t i = 0; i < RANKS * bytes; i++)
            memory[i] = (unsigned char)(50 * rank + 9 * (i / bytes) + i % bytes);
        CHECK_OK(epw_comm_exchange(t->c.of[rank], memory, bytes, 0, s == 0 ? NULL : &outcome));
        CHECK(!outcome.degraded);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < RANKS * bytes; i++)
            wrong += memory[i] != (unsigned char)(50 * (i / bytes) + 9 * rank + i % bytes);
        CHECK_MSG(wrong == 0, "rank %u: %llu of %llu bytes", rank, (unsigned long long)wrong,
                  (unsigned long long)bytes);
        free(memory);
    }
}

static void ranks_exchange_host_memory(void) {
    test_case t = opened();
    on_all(RANKS, exchange, &t);
    close_comms(&t.c);
}

static void wrong_calls_are_refused(void) {
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    comms c = open_comms(2, config);
    epw_mask both = all_of(2), more = all_of(3);
    epw_comm *out = NULL;
    REFUSED(epw_comm_subset(NULL, &both, NULL, &out), EPW_ERR_INVALID, "subset", -1, -1, "comm is NULL");
    REFUSED(epw_comm_subset(c.of[0], NULL, NULL, &out), EPW_ERR_INVALID, "subset", -1, -1, "mask is NULL");
    REFUSED(epw_comm_subset(c.of[0], &both, NULL, NULL), EPW_ERR_INVALID, "subset", -1, -1, "out is NULL");
    REFUSED(epw_comm_subset(c.of[0], &more, NULL, &out), EPW_ERR_INVALID, "subset", 0, -1,
            "mask contains rank 2, must be below 2");
    REFUSED(epw_comm_subset(c.of[0], &both, NULL, &out), EPW_ERR_STATE, "subset", 0, -1, "no membership yet");
    config.size = 8;
    REFUSED(epw_comm_subset(c.of[0], &both, &config, &out), EPW_ERR_INVALID, "subset", 0, -1,
            "config.size is 8");
    unsigned char bytes[2] = {0};
    epw_outcome outcome = {.size = 3};
    REFUSED(epw_comm_exchange(NULL, bytes, 1, 0, NULL), EPW_ERR_INVALID, "exchange", -1, -1, "comm is NULL");
    REFUSED(epw_comm_exchange(c.of[0], NULL, 1, 0, NULL), EPW_ERR_INVALID, "exchange", 0, -1,
            "memory is NULL");
    REFUSED(epw_comm_exchange(c.of[0], bytes, 0, 0, NULL), EPW_ERR_LIMIT, "exchange", 0, -1, "bytes is 0");
    REFUSED(epw_comm_exchange(c.of[0], bytes, EPW_EXCHANGE_MAX + 1, 0, NULL), EPW_ERR_LIMIT, "exchange", 0,
            -1, "bytes is 65537, must be in [1, 65536]");
    REFUSED(epw_comm_exchange(c.of[0], bytes, 1, 0, &outcome), EPW_ERR_INVALID, "exchange", 0, -1,
            "outcome.size is 3");
    REFUSED(epw_comm_exchange(c.of[0], bytes, 1, 1, NULL), EPW_ERR_LIMIT, "group", 0, -1,
            "deadline is 1 ns, a call may only lengthen");
    close_comms(&c);
}

int main(void) {
    ranks_divide();
    masks_that_overlap_are_refused();
    a_rank_that_cannot_make_its_part_is_named();
    a_fabric_of_another_rank_is_refused();
    ranks_exchange_host_memory();
    wrong_calls_are_refused();
    return check_result("comm_subset");
}
