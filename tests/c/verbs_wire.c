/* The verbs wire over an RDMA adapter within this process (verbs/adapter.h), for machines without such
 * hardware: steps of a layer, entries and calls that fail, events of the adapter, and adapters that place
 * writes in any order. */
#include "check.h"
#include "group.h"
#include "held.h"
#include "late_ends.h"

#include "base/clock.h"
#include "nic/verbs/calls.h"
#include "verbs/library.h"

enum { LISTS = EXPERTS / 2, ROWS = 2 * TOKENS };

/* The adapter counts contexts from the last one. */
enum { RANK_1, RANK_0 };

/* Kinds of calls that are made to fail. */
enum { MOST = 7 };

/* A transport, by the library's number. */
enum { IWARP = 1 };

static uint64_t deadline_ns = 10000 * MS;

/* ---- ranks ---- */

/* Two connected ranks without a membership; those that are not made are NULL if a call has failed. */
static bool meet_two(group *g) {
    *g = (group){.ranks = 2};
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    bool well = true;
    for (uint32_t r = 0; r < 2 && well; r++) {
        epw_config config = config_of(r, 2);
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        const char *nic = getenv("EPW_TEST_NIC");
        options.rank = r;
        options.wires = EPW_WIRE_VERBS;
        if (nic != NULL && strcmp(nic, "strict") == 0) options.nic = EPW_NIC_STRICT;
        if (getenv("EPW_TEST_ORDER") != NULL) options.order = EPW_ORDER_NONE;
        well = epw_fabric_create(&options, &g->fabrics[r]) == EPW_OK;
        config.fabric = g->fabrics[r];
        config.paths = EPW_PATH_QUEUE;
        config.deadline_ns = deadline_ns;
        well = well && epw_buffer_create(&config, &g->of[r]) == EPW_OK;
    }
    for (uint32_t r = 0; r < 2 && well; r++)
        well = epw_buffer_export(g->of[1 - r], r, blob, &length) == EPW_OK &&
               epw_buffer_connect(g->of[r], 1 - r, blob, length) == EPW_OK;
    return well;
}

/* The same in epoch 1. */
static bool two_ranks(group *g) {
    epw_mask both = first_ranks(2);
    bool well = meet_two(g);
    for (uint32_t r = 0; r < 2 && well; r++) well = epw_buffer_set_active(g->of[r], &both, 1, 0) == EPW_OK;
    return well;
}

/* Checks the result of each token: a quarter of its value for each expert that it has. */
static bool is_combined(const batch *made, const uint16_t *result) {
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
        uint32_t experts = 0, t = i / HIDDEN;
        for (uint32_t j = 0; j < TOPK; j++) experts += made->ids[t * TOPK + j] >= 0;
        if (from_bf16(result[i]) != from_bf16(made->x[i]) * 0.25f * (float)experts) return false;
    }
    return true;
}

/* Both ranks' halves of one step, in this thread, since sending waits for nobody. Whether it was complete and
 * right. */
static bool step(const group *g) {
    static batch made[2];
    static _Alignas(64) uint16_t rows[2][LISTS * ROWS * HIDDEN], result[2][TOKENS * HIDDEN];
    epw_handle handles[2];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    bool whole = true;
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_input in = make_batch(&made[r], r);
        in.layout = EPW_EXPERT_MAJOR;
        CHECK_OK(epw_dispatch(g->of[r], &in, NULL, &handles[r], &outcome));
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
        uint32_t counts[LISTS];
        out.rows = rows[r];
        out.counts = counts;
        CHECK_OK(epw_dispatch_receive(g->of[r], handles[r], &out, &outcome));
        whole &= !outcome.degraded;
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.expert_out = rows[r];
        CHECK_OK(epw_combine(g->of[r], handles[r], &answer, NULL, &outcome));
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
        combined.out = result[r];
        CHECK_OK(epw_combine_receive(g->of[r], handles[r], &combined, &outcome));
        whole &= !outcome.degraded && is_combined(&made[r], result[r]);
    }
    return whole;
}

static void nothing_is_left(const char *of, uint32_t which) {
    held after = look(at_first.threads);
    CHECK_MSG(lan_left() == 0, "%s %u: %u things of the adapter", of, which, lan_left());
    CHECK_MSG(at_first.descriptors == after.descriptors && at_first.threads == after.threads,
              "%s %u: %u descriptors were %u, %u threads %u", of, which, after.descriptors,
              at_first.descriptors, after.threads, at_first.threads);
}

static uint32_t forwarded(void) {
    pthread_mutex_lock(&lan.lock);
    uint32_t count = lan.forwarded;
    pthread_mutex_unlock(&lan.lock);
    return count;
}

/* What makes a fabric hold words back. */
typedef enum because { TRANSPORT, ASKED, STRICT_NIC, BECAUSES } because;

/* The adapter places writes in any order, and this is how fabrics know. */
static void be_unordered(because why) {
    pthread_mutex_lock(&lan.lock);
    lan.unordered = true;
    lan.words = lan.words_early = 0;
    pthread_mutex_unlock(&lan.lock);
    if (why == TRANSPORT) lan_device.transport = IWARP;
    if (why == ASKED) setenv("EPW_TEST_ORDER", "none", 1);
    if (why == STRICT_NIC) setenv("EPW_TEST_NIC", "strict", 1);
}

static void be_ordered(void) {
    pthread_mutex_lock(&lan.lock);
    lan.unordered = false;
    pthread_mutex_unlock(&lan.lock);
    lan_device.transport = EPW_ABI_TRANSPORT_IB;
    unsetenv("EPW_TEST_ORDER");
    unsetenv("EPW_TEST_NIC");
}

/* ---- steps ---- */

static void steps_go_by_the_adapter(void) {
    group g;
    char text[EPW_TROUBLE_TEXT];
    uint32_t before = forwarded();
    CHECK_MSG(two_ranks(&g), "%s", epw_last_error());
    for (uint32_t r = 0; r < 2; r++) CHECK(epw_buffer_wire(g.of[r], 1 - r) == EPW_WIRE_VERBS);
    for (int i = 0; i < 300; i++) CHECK_MSG(step(&g), "step %d", i);
    for (uint32_t r = 0; r < 2; r++) CHECK(*epw_buffer_trouble(g.of[r], 1 - r, text) == '\0');
    CHECK(forwarded() - before > 300 * 2 * 2);
    destroy(&g);
    nothing_is_left("steps", 0);
}

/* Connecting posts nothing. The words that begin an epoch do, on each lane to each peer: they make the
 * adapter load its state of a queue pair, and resolve the path, before the first operation needs them. */
static void queue_pairs_are_warm_before_the_first_operation(void) {
    group g;
    uint32_t all, warm;
    CHECK(two_ranks(&g));
    lan_count_pairs(&all, &warm);
    for (int ms = 0; ms < 10000 && warm < all; ms++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        lan_count_pairs(&all, &warm);
    }
    CHECK_MSG(all == 2 * 2 && warm == all, "%u of %u queue pairs", warm, all);
    CHECK(step(&g));
    destroy(&g);
}

/* A fabric names the adapter that it uses. */
static void a_fabric_names_its_adapter(void) {
    group g;
    char text[EPW_FABRIC_TEXT];
    CHECK(two_ranks(&g));
    const char *expected =
        "a NIC in software, verbs by lan_0 port 1, RoCEv2, GID 2 ending in 10.79.0.1, MTU 1024";
    CHECK_MSG(strcmp(epw_fabric_describe(g.fabrics[0], text), expected) == 0, "%s", text);
    destroy(&g);
}

/* On this adapter entries of a queue pair may be executed in any order, so words wait until what was posted
 * before them is done. */
static void words_are_behind_rows_where_writes_pass_each_other(because why) {
    static const char held[] = ", words held back until rows are done";
    group g;
    char text[EPW_FABRIC_TEXT];
    be_unordered(why);
    CHECK_MSG(two_ranks(&g), "%s", epw_last_error());
    CHECK_MSG(strstr(epw_fabric_describe(g.fabrics[0], text), held) != NULL, "%u: %s", why, text);
    for (int i = 0; i < 100; i++) CHECK_MSG(step(&g), "step %d", i);
    destroy(&g);
    CHECK_MSG(lan.words >= 400 && lan.words_early == 0, "%u: %u words, %u before their rows", why, lan.words,
              lan.words_early);
    be_ordered();
    nothing_is_left("unordered", why);
}

/* ---- connecting again ---- */

/* Rank 1 offers queue pairs that serve rank 0's former connection, whose end arrives late. */
static void queue_pairs_of_a_former_connection_are_refused(bool used) {
    group g;
    unsigned char blob[EPW_BLOB_MAX];
    CHECK_MSG(meet_two(&g), "%s", epw_last_error());
    if (used) CHECK_OK(epw_buffer_probe(g.of[0], 1, 5000 * MS));
    hold_ends(g.fabrics[1]);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    size_t length = blob_for(0, g.of[1], blob);
    REFUSED(epw_buffer_connect(g.of[0], 1, blob, length), EPW_ERR_PEER, "connect", 0, 1, "export again");
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    let_ends_arrive(g.fabrics[1]);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_probe(g.of[r], 1 - r, 5000 * MS));
    destroy(&g);
    nothing_is_left("connecting again", used);
}

/* Rank 0 connects to queue pairs that are not connected, ends that, and is connected by others. */
static void whoever_connects_last_is_taken(void) {
    group g = {.ranks = 2};
    unsigned char blob[EPW_BLOB_MAX];
    for (uint32_t r = 0; r < 2; r++) g.of[r] = make_rank(r, 2, 10000 * MS, &g.fabrics[r]);
    size_t length = blob_for(0, g.of[1], blob);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(epw_buffer_connect(g.of[0], 1, blob, length));
        if (i < 2) CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    }
    CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_probe(g.of[r], 1 - r, 5000 * MS));
    destroy(&g);
}

/* ---- failures ---- */

/* The adapter tells the other end of a queue pair nothing; the connection beside it does. */
static void is_told_by_its_peer(const group *g, uint32_t rank, const char *of) {
    char said[EPW_TROUBLE_TEXT] = "";
    for (int ms = 0; ms < 10000 && *epw_buffer_trouble(g->of[rank], 1 - rank, said) == '\0'; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK_MSG(
        strcmp(said,
               "an entry for it failed: the peer has given up its queue pair (syndrome 0x22, vendor 0xe5): "
               "it has taken the place from this rank, or ended; connect it again") == 0,
        "%s: %s", of, said);
}

/* The adapter of this rank's peer has reported an error: the rank is told at once, with the reason, and so is
 * its peer. */
static void is_lost(const group *g, uint32_t rank, const char *text, const char *of) {
    char said[EPW_TROUBLE_TEXT];
    uint64_t began = epw_now_ns();
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    batch *made = malloc(sizeof *made);
    epw_dispatch_input in = make_batch(made, rank);
    in.layout = EPW_RANK_MAJOR;
    CHECK_OK(epw_dispatch(g->of[rank], &in, NULL, &handle, NULL));
    CHECK_OK(epw_dispatch_receive(g->of[rank], handle, &nothing, &outcome));
    CHECK_MSG(outcome.degraded && outcome.record.cause == EPW_CAUSE_LINK, "%s: cause %u", of,
              outcome.record.cause);
    CHECK_MSG(epw_now_ns() - began < deadline_ns / 2, "%s: it took a deadline", of);
    epw_buffer_trouble(g->of[rank], 1 - rank, said);
    CHECK_MSG(strcmp(said, text) == 0, "%s:\n%s\nand not\n%s", of, said, text);
    is_told_by_its_peer(g, 1 - rank, of);
    free(made);
}

/* Statuses of completions, by the library's numbers. */
static void a_completion_in_error_loses_the_peer_and_says_why(void) {
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {1, "an entry for it failed: its length is wrong (syndrome 0x01, vendor 0x07): this is an error of "
            "this library: report it"},
        {2, "an entry for it failed: it is no entry of this queue: malformed, or rung for before it was "
            "written (syndrome 0x02, vendor 0x07): this is an error of this library: report it"},
        {4, "an entry for it failed: its local key does not open its bytes (syndrome 0x04, vendor 0x07): "
            "this is an error of this library: report it"},
        {9,
         "an entry for it failed: the peer does not do what it asks for (syndrome 0x12, vendor 0x07): it has "
         "taken the place from this rank, or ended; connect it again"},
        {10, "an entry for it failed: its remote key does not open its bytes (syndrome 0x13, vendor 0x07): "
             "it has "
             "taken the place from this rank, or ended; connect it again"},
        {11, "an entry for it failed: the peer could not do what it asks for (syndrome 0x14, vendor 0x07)"},
        {12,
         "an entry for it failed: the peer is not reached any more (syndrome 0x15, vendor 0x07): see that it "
         "lives, that ping reaches it between the addresses of the adapters, that both have one MTU, and "
         "that "
         "the traffic class is one that the switches do not drop"},
        {13, "an entry for it failed: the peer has no receive posted (syndrome 0x16, vendor 0x07)"},
        {21,
         "an entry for it failed: the peer has given up its queue pair (syndrome 0x22, vendor 0x07): it has "
         "taken the place from this rank, or ended; connect it again"}, /* a status without a name in this
                                                                           library */
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group g;
        CHECK(two_ranks(&g) && step(&g));
        lan_fail_entry(RANK_0, cases[i].status);
        is_lost(&g, 0, cases[i].text, "a completion");
        destroy(&g);
        nothing_is_left("status", (uint32_t)cases[i].status);
    }
}

static void the_peers_of_an_adapter_are_given_up(int type, int port, bool moved, const char *text) {
    group g;
    CHECK(two_ranks(&g) && step(&g));
    pthread_mutex_lock(&lan.lock);
    lan.moved = moved;
    pthread_mutex_unlock(&lan.lock);
    lan_raise(RANK_0, type, port);
    is_lost(&g, 0, text, "an event");
    pthread_mutex_lock(&lan.lock);
    lan.moved = false;
    pthread_mutex_unlock(&lan.lock);
    destroy(&g);
    nothing_is_left("event", (uint32_t)type);
}

static void what_befalls_an_adapter_loses_its_peers_and_says_why(void) {
    the_peers_of_an_adapter_are_given_up(
        EPW_ABI_PORT_ERR, LAN_PORT_NUMBER, false,
        "port 1 of lan_0 is down: see its cable and switch, and ip link; connect "
        "again when it is up");
    the_peers_of_an_adapter_are_given_up(EPW_ABI_GID_CHANGE, LAN_PORT_NUMBER, true,
                                         "port 1 of lan_0 has lost the address that its queue pairs use: "
                                         "destroy the buffers and create new ones");
    the_peers_of_an_adapter_are_given_up(
        EPW_ABI_DEVICE_FATAL, 0, false,
        "lan_0 has failed: see dmesg; once it is back, destroy the buffers and create new ones");
}

static void a_removed_adapter_loses_its_peers_and_says_why(void) {
    group g;
    CHECK(two_ranks(&g) && step(&g));
    lan_remove(RANK_0);
    is_lost(&g, 0, "lan_0 has failed: see dmesg; once it is back, destroy the buffers and create new ones",
            "a removal");
    destroy(&g);
    nothing_is_left("removal", 0);
}

/* A queue pair that has nothing to send: no completion reports its end. */
static void a_queue_pair_that_the_adapter_has_broken_loses_its_peer(void) {
    static const int types[] = {EPW_ABI_QP_FATAL, EPW_ABI_QP_REQUEST_ERR, EPW_ABI_QP_ACCESS_ERR};
    for (int i = 0; i < 3; i++) {
        group g;
        char text[EPW_TROUBLE_TEXT];
        CHECK(two_ranks(&g) && step(&g));
        lan_raise(RANK_0, types[i], 0);
        for (int ms = 0; ms < 10000 && *epw_buffer_trouble(g.of[0], 1, text) == '\0'; ms++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        CHECK_MSG(strstr(text, "the peer has given up its queue pair (syndrome 0x22, vendor 0xe0)") != NULL,
                  "%s", text);
        is_told_by_its_peer(&g, 1, "queue pair");
        destroy(&g);
        nothing_is_left("queue pair", (uint32_t)types[i]);
    }
}

/* A lease is granted again only when nothing more is placed for its former holder: while the adapter does not
 * destroy a queue pair, nobody gets the lease. */
static void nobody_is_let_in_while_the_adapter_holds_a_queue_pair(void) {
    group g;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
    CHECK(two_ranks(&g) && step(&g));
    pthread_mutex_lock(&lan.lock);
    lan.holds_pairs = true;
    pthread_mutex_unlock(&lan.lock);
    lan_raise(RANK_0, EPW_ABI_QP_FATAL, 0);
    for (int ms = 0; ms < 10000 && !membership_of(g.of[0]).suspects.bits[0]; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (int i = 0; i < 2; i++)
        REFUSED(
            epw_buffer_export(g.of[0], 1, blob, &length), EPW_ERR_FENCED, "export", 0, 1,
            "the adapter does not end a queue pair by which the peer's former process may still write: see "
            "dmesg, and create the buffer again");
    pthread_mutex_lock(&lan.lock);
    lan.holds_pairs = false;
    pthread_mutex_unlock(&lan.lock);
    CHECK_OK(epw_buffer_export(g.of[0], 1, blob, &length));
    destroy(&g);
    nothing_is_left("held", 0);
}

/* A new address of another interface, another port, and an event that concerns nothing. */
static void other_events_change_nothing(void) {
    group g;
    char text[EPW_TROUBLE_TEXT];
    CHECK(two_ranks(&g));
    lan_raise(RANK_0, EPW_ABI_GID_CHANGE, LAN_PORT_NUMBER);
    lan_raise(RANK_0, EPW_ABI_PORT_ERR, LAN_PORT_NUMBER + 1);
    lan_raise(RANK_0, 9 /* port active */, LAN_PORT_NUMBER);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    CHECK(step(&g) && *epw_buffer_trouble(g.of[0], 1, text) == '\0');
    destroy(&g);
    nothing_is_left("other event", 0);
}

/* ---- calls ---- */

/* Every call, from the first to the last of its kind, fails in turn, until none is left to fail. Failures
 * while ranks are created are errors with a text; later failures separate the ranks. */
static void whatever_fails_nothing_is_left(void) {
    static const int errors[] = {EIO, ENOMEM};
    uint32_t refused = 0, lost = 0;
    deadline_ns = 100 * MS; /* for the ends that are not told */
    for (lan_call call = LAN_NONE + 1; call < LAN_CALLS; call++) {
        for (uint32_t e = 0; e < 2; e++) {
            for (uint32_t after = 0, well = 0; well < 2 && after < MOST; after++) {
                group g;
                pthread_mutex_lock(&lan.lock);
                lan.failing = call;
                lan.failing_after = after;
                lan.failing_errno = errors[e];
                lan.calls = 0;
                pthread_mutex_unlock(&lan.lock);
                bool made = two_ranks(&g);
                CHECK_MSG(made || *epw_last_error() != '\0', "call %d, %u", (int)call, after);
                bool whole = made && step(&g);
                destroy(&g);
                pthread_mutex_lock(&lan.lock);
                bool failed = lan.calls > after;
                lan.failing = LAN_NONE;
                pthread_mutex_unlock(&lan.lock);
                refused += !made;
                lost += made && !whole;
                well = failed ? 0 : well + 1;
                nothing_is_left("call", (uint32_t)call * 1000 + after);
            }
        }
    }
    CHECK_MSG(refused >= 40 && lost >= 4, "%u, %u", refused, lost);
}

static void begin(void) {
    group g;
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_WIRE", "verbs", 1);
    unsetenv("EPW_TEST_NIC");
    lan_begin();
    CHECK_MSG(two_ranks(&g), "%s", epw_last_error());
    destroy(&g);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    at_first = look(UINT32_MAX);
}

int main(void) {
    begin();
    steps_go_by_the_adapter();
    queue_pairs_are_warm_before_the_first_operation();
    a_fabric_names_its_adapter();
    for (because why = 0; why < BECAUSES; why++) words_are_behind_rows_where_writes_pass_each_other(why);
    queue_pairs_of_a_former_connection_are_refused(false);
    queue_pairs_of_a_former_connection_are_refused(true);
    whoever_connects_last_is_taken();
    a_completion_in_error_loses_the_peer_and_says_why();
    what_befalls_an_adapter_loses_its_peers_and_says_why();
    a_queue_pair_that_the_adapter_has_broken_loses_its_peer();
    nobody_is_let_in_while_the_adapter_holds_a_queue_pair();
    a_removed_adapter_loses_its_peers_and_says_why();
    other_events_change_nothing();
    whatever_fails_nothing_is_left();
    lan_end();
    CHECK_MSG(lan.broken_rules == 0, "%u rules of the adapter were broken", lan.broken_rules);
    return check_result("verbs_wire");
}
