/* Calls that a communicator refuses: the text names the field and its limit, and a refused call has no
 * effect. And works: each is consumed once. */
#include "comms.h"

#include <stdbool.h>

static int32_t memory[64];

static epw_coll coll_of(uint32_t kind) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.type = EPW_TYPE_I32;
    c.count = 4;
    c.send = memory;
    c.recv = memory + 32;
    return c;
}

static void configurations_are_refused_by_field(void) {
    epw_comm *comm = NULL;
#define REFUSED_CONFIG(field, value, status, words)                                                          \
    do {                                                                                                     \
        epw_comm_config config = EPW_COMM_CONFIG_INIT;                                                       \
        config.ranks = 2;                                                                                    \
        config.field = (value);                                                                              \
        CHECK_MSG(epw_comm_create(&config, &comm) == (status), "%s", #field);                                \
        CHECK_MSG(strstr(epw_last_error(), words) != NULL, "%s", epw_last_error());                          \
        CHECK(comm == NULL);                                                                                 \
    } while (0)
    REFUSED_CONFIG(size, 8, EPW_ERR_INVALID, "config.size is 8");
    REFUSED_CONFIG(version, 9, EPW_ERR_INVALID, "config.version is 9");
    REFUSED_CONFIG(ranks, 0, EPW_ERR_LIMIT, "config.ranks is 0");
    REFUSED_CONFIG(ranks, EPW_MAX_RANKS + 1, EPW_ERR_LIMIT, "config.ranks is ");
    REFUSED_CONFIG(rank, 2, EPW_ERR_INVALID, "config.rank is 2, must be below 2");
    REFUSED_CONFIG(slots, 3, EPW_ERR_LIMIT, "config.slots is 3");
    REFUSED_CONFIG(slots, 512, EPW_ERR_LIMIT, "config.slots is 512");
    REFUSED_CONFIG(slot_bytes, 65, EPW_ERR_LIMIT, "config.slot_bytes is 65");
    REFUSED_CONFIG(heap_bytes, UINT64_MAX, EPW_ERR_LIMIT, "config.heap_bytes is ");
    REFUSED_CONFIG(deadline_ns, 1, EPW_ERR_LIMIT, "config.deadline is 1 ns");
#undef REFUSED_CONFIG
}

/* Only rank 0 makes the call, which is refused. If it had any effect, the barrier of all ranks would not be
 * complete. */
static void operations_are_refused_by_field(epw_comm *comm) {
    epw_coll c;
    static const uint64_t counts[2] = {1, 1}, others[2] = {1, 2}, huge[2] = {UINT64_MAX, 1};
    static const epw_norm norm = EPW_NORM_INIT;
#define REFUSED_COLL(name, status, words, ...)                                                               \
    do {                                                                                                     \
        c = coll_of(name);                                                                                   \
        __VA_ARGS__;                                                                                         \
        CHECK_MSG(epw_group(comm, &c, 1, NULL, NULL) == (status), "%s", epw_last_error());                   \
        CHECK_MSG(strstr(epw_last_error(), words) != NULL, "%s lacks %s", epw_last_error(), words);          \
    } while (0)
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "coll.size is 3", c.size = 3);
    REFUSED_COLL(11, EPW_ERR_INVALID, "kind is 11, must be at most 10", (void)c);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "type is 10", c.type = 10);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "op is 5", c.op = 5);
    REFUSED_COLL(EPW_BROADCAST, EPW_ERR_INVALID, "root is 2, must be below 2", c.peer = 2);
    REFUSED_COLL(EPW_SEND, EPW_ERR_INVALID, "peer is 2, must be below 2", c.peer = 2);
    REFUSED_COLL(EPW_SEND, EPW_ERR_LIMIT, "tag is 2147483648", c.tag = EPW_TAG_MAX + 1u);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "send is NULL", c.send = NULL);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "recv is NULL", c.recv = NULL);
    REFUSED_COLL(EPW_RECV, EPW_ERR_INVALID, "recv is NULL", c.recv = NULL);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_LIMIT, "count is ", c.count = UINT64_MAX);
    REFUSED_COLL(EPW_ALL_REDUCE, EPW_ERR_INVALID, "send_counts and send_offsets", c.send_counts = counts);
    REFUSED_COLL(EPW_SCATTER, EPW_ERR_INVALID, "recv_counts and recv_offsets", c.recv_counts = counts);
    REFUSED_COLL(EPW_ALL_TO_ALL, EPW_ERR_INVALID, "give both send_counts and recv_counts",
                 c.send_counts = counts);
    REFUSED_COLL(EPW_ALL_GATHER, EPW_ERR_LIMIT, "recv_counts", c.recv_counts = huge);
    REFUSED_COLL(EPW_ALL_TO_ALL, EPW_ERR_INVALID, "send_counts[1] is 1, recv_counts[1] 2: in place",
                 c.recv = memory;
                 c.send_counts = counts, c.recv_counts = others);
    REFUSED_COLL(EPW_ALL_TO_ALL, EPW_ERR_INVALID, "send_offsets[1] is 1, recv_offsets[1] 2: in place",
                 c.recv = memory;
                 c.send_offsets = counts, c.recv_offsets = others);
    REFUSED_COLL(EPW_ALL_TO_ALL, EPW_ERR_INVALID, "recv_offsets is NULL", c.recv = memory;
                 c.send_offsets = counts);
    REFUSED_COLL(EPW_BROADCAST, EPW_ERR_INVALID, "rows and pitches", c.rows = 2);
    REFUSED_COLL(EPW_ALL_GATHER, EPW_ERR_INVALID, "send_pitch 3", c.rows = 2; c.send_pitch = 3);
    REFUSED_COLL(EPW_ALL_GATHER, EPW_ERR_INVALID, "of the block, 8 of the matrix", c.rows = 2;
                 c.recv_pitch = 7);
    REFUSED_COLL(EPW_REDUCE_SCATTER, EPW_ERR_INVALID, "of the block, 8 of the matrix", c.rows = 2;
                 c.send_pitch = 7);
    REFUSED_COLL(EPW_ALL_GATHER, EPW_ERR_LIMIT, "rows is ", c.rows = UINT64_MAX);
    REFUSED_COLL(EPW_ALL_GATHER, EPW_ERR_LIMIT, "rows is 1073741824 and count 1048576: these are more than",
                 c.rows = 1 << 30;
                 c.count = 1 << 20, c.type = EPW_TYPE_U8);
    REFUSED_COLL(EPW_BARRIER, EPW_ERR_INVALID, "a barrier takes no counts", c.send_counts = counts);
    REFUSED_COLL(EPW_BARRIER, EPW_ERR_INVALID, "a barrier takes no norm", c.norm = &norm);
    REFUSED_COLL(EPW_BARRIER, EPW_ERR_INVALID, "a barrier takes no rows", c.rows = 2);
#undef REFUSED_COLL
    epw_call call = EPW_CALL_INIT;
    call.deadline_ns = 1;
    c = coll_of(EPW_BARRIER);
    REFUSED(epw_group(comm, &c, 1, &call, NULL), EPW_ERR_LIMIT, "group", 0, -1, "deadline is 1 ns");
    REFUSED(epw_group(comm, NULL, 1, NULL, NULL), EPW_ERR_INVALID, "group", 0, -1, "ops is NULL");
    REFUSED(epw_group(comm, &c, 65537, NULL, NULL), EPW_ERR_LIMIT, "group", 0, -1, "at most 65536");
    /* One wrong operation makes the whole group fail. */
    epw_coll pair[2] = {coll_of(EPW_BARRIER), coll_of(EPW_SEND)};
    pair[1].peer = 7;
    REFUSED(epw_group(comm, pair, 2, NULL, NULL), EPW_ERR_INVALID, "send", 0, -1, "peer is 7");
}

static void meet(uint32_t rank, void *context) {
    const comms *c = context;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(c->of[rank], NULL, &outcome));
    CHECK(!outcome.degraded);
}

static void works_are_consumed_once(const comms *c) {
    epw_work work[2], none;
    for (uint32_t r = 0; r < 2; r++) {
        epw_call call = EPW_CALL_INIT;
        call.work = &work[r];
        CHECK_OK(epw_barrier(c->of[r], &call, NULL));
    }
    epw_mask all = all_of(2);
    CHECK(epw_comm_set_active(c->of[0], &all, 2, 0) == EPW_ERR_STATE);
    CHECK(strstr(epw_last_error(), "under way") != NULL);
    for (int ms = 0; ms < 10000 && epw_work_wait(c->of[0], work[0], MS, NULL) == EPW_PENDING; ms++)
        (void)epw_work_poll(c->of[1], 0, NULL);
    CHECK_OK(epw_work_wait(c->of[1], work[1], UINT64_MAX, NULL));
    REFUSED(epw_work_wait(c->of[0], work[0], 0, NULL), EPW_ERR_STATE, "work_wait", 0, -1, "consumed");
    REFUSED(epw_work_drop(c->of[0], work[0]), EPW_ERR_STATE, "work_drop", 0, -1, "consumed");
    none = work[0] + 1000;
    REFUSED(epw_work_poll(c->of[0], none, NULL), EPW_ERR_STATE, "work_wait", 0, -1, "not one of this");
}

static void memory_of_the_heap_has_a_limit(epw_comm *comm) {
    void *pieces[3] = {NULL};
    REFUSED(epw_comm_alloc(comm, 8192, &pieces[0]), EPW_ERR_LIMIT, "alloc", 0, -1, "config.heap_bytes, 4096");
    REFUSED(epw_comm_alloc(comm, 1, NULL), EPW_ERR_INVALID, "alloc", 0, -1, "memory is NULL");
    static const uint64_t bytes[3] = {2047, 1921, 0};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_OK(epw_comm_alloc(comm, bytes[i], &pieces[i]));
        CHECK_MSG((uintptr_t)pieces[i] % 64 == 0, "piece %u is at %p", i, pieces[i]);
        const unsigned char *at = pieces[i];
        for (uint64_t b = 0; b < bytes[i]; b++)
            if (at[b] != 0) CHECK_MSG(false, "byte %d of piece %u is not 0", (int)b, i);
    }
    void *more = NULL;
    REFUSED(epw_comm_alloc(comm, 1, &more), EPW_ERR_LIMIT, "alloc", 0, -1, "no 64 bytes are free");
    epw_comm_free(comm, pieces[1]);
    epw_comm_free(comm, pieces[0]);
    epw_comm_free(comm, pieces[2]);
    CHECK_OK(epw_comm_alloc(comm, 4096, &more)); /* freed pieces are merged */
    epw_comm_free(comm, more);
}

/* On the host peers read any memory, and a program may register it all the same. */
static void registrations_on_the_host_are_only_numbered(const comms *c) {
    epw_comm *comm = c->of[0];
    epw_registration first = 0, second = 0, seen = 0;
    unsigned char blob[EPW_REGISTRATION_BLOB_MAX] = {0};
    size_t length = 0;
    const epw_mask both = {{3}}, strangers = {{5}};
    CHECK_OK(epw_comm_register(comm, memory, sizeof memory, &first));
    CHECK_OK(epw_comm_register(comm, memory + 1, 1, &second));
    CHECK_MSG(first == 1 && second == 2, "%llu and %llu", (unsigned long long)first,
              (unsigned long long)second);
    CHECK_OK(epw_comm_export_registration(comm, second, 1, blob, &length));
    CHECK(length > 0 && length <= sizeof blob);
    CHECK_OK(epw_comm_import_registration(c->of[1], 0, blob, length, &seen));
    CHECK(seen == second);
    CHECK_OK(epw_comm_lend(comm, second, &both));
    CHECK_OK(epw_comm_unmap(c->of[1], 0, seen));
    CHECK_OK(epw_comm_deregister(comm, second));

    const char *words = "which this communicator does not have";
    REFUSED(epw_comm_export_registration(comm, 3, 1, blob, &length), EPW_ERR_INVALID, "export", 0, 1, words);
    REFUSED(epw_comm_lend(comm, 0, &both), EPW_ERR_INVALID, "lend", 0, -1, words);
    REFUSED(epw_comm_deregister(comm, 3), EPW_ERR_INVALID, "deregister", 0, -1, words);
    REFUSED(epw_comm_register(comm, NULL, 64, &seen), EPW_ERR_INVALID, "register", 0, -1,
            "at least one byte");
    REFUSED(epw_comm_register(comm, memory, 0, &seen), EPW_ERR_INVALID, "register", 0, -1, "of 0 bytes");
    REFUSED(epw_comm_register(comm, memory, 64, NULL), EPW_ERR_INVALID, "register", 0, -1,
            "registration is NULL");
    REFUSED(epw_comm_register(NULL, memory, 64, &seen), EPW_ERR_INVALID, "register", -1, -1, "comm is NULL");
    REFUSED(epw_comm_lend(comm, first, &strangers), EPW_ERR_INVALID, "lend", 0, -1, "peer is 2");
    REFUSED(epw_comm_unmap(comm, 2, 1), EPW_ERR_INVALID, "unmap", 0, -1, "peer is 2");
    /* A blob is its owner's, and whole. */
    REFUSED(epw_comm_import_registration(comm, 1, blob, length, &seen), EPW_ERR_STATE, "import", 0, 1,
            "another incarnation");
    REFUSED(epw_comm_import_registration(c->of[1], 0, blob, length - 1, &seen), EPW_ERR_INVALID, "import", 1,
            0, "cut or damaged");
}

int main(void) {
    configurations_are_refused_by_field();
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.heap_bytes = 4096;
    comms c = open_comms(2, config);
    epw_coll barrier = coll_of(EPW_BARRIER);
    REFUSED(epw_group(c.of[0], &barrier, 1, NULL, NULL), EPW_ERR_STATE, "barrier", 0, -1,
            "no membership yet");
    activate_comms(&c, 1);
    operations_are_refused_by_field(c.of[0]);
    on_all(2, meet, &c);
    works_are_consumed_once(&c);
    memory_of_the_heap_has_a_limit(c.of[0]);
    registrations_on_the_host_are_only_numbered(&c);
    close_comms(&c);
    return check_result("comm_misuse");
}
