/* The verbs wire over an RDMA adapter within this process (verbs/adapter.h), for machines without such
 * hardware: steps of a layer, entries and calls that fail, events of the adapter, and adapters that place
 * writes in any order. */
#include "check.h"
#include "held.h"
#include "late_ends.h"
#include "no_threads.h"
#include "whole_step.h"

#include "base/clock.h"
#include "nic/end.h"
#include "nic/mlx5/library.h"
#include "nic/verbs/calls.h"
#include "verbs/library.h"

/* The adapter counts contexts from the last one. */
enum { RANK_1, RANK_0 };

/* Kinds of calls that are made to fail. */
enum { MOST = 7 };

/* A transport, by the library's number. */
enum { IWARP = 1 };

static const epw_where where = {"test", 0, -1};
static uint64_t deadline_ns = 10000 * MS;

/* ---- ranks ---- */

/* Two connected ranks without a membership. */
static bool meet_two(group *g) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    const char *nic = getenv("EPW_TEST_NIC");
    options.wires = EPW_WIRE_VERBS;
    if (nic != NULL && strcmp(nic, "strict") == 0) options.nic = EPW_NIC_STRICT;
    if (getenv("EPW_TEST_ORDER") != NULL) options.order = EPW_ORDER_NONE;
    return meet_two_by(&options, deadline_ns, g);
}

/* The same in epoch 1. */
static bool two_ranks(group *g) {
    return meet_two(g) && begin_two(g);
}

static void nothing_is_left(const char *of, uint32_t which) {
    CHECK_MSG(lan_left() == 0, "%s %u: %u things of the adapter", of, which, lan_left());
    nothing_more_is_held(of, which);
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
        "a software NIC, verbs by lan_0 port 1, RoCEv2, GID 2 ending in 10.79.0.1, MTU 1024";
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

/* On a queue pair that is connected to itself. Entries are described as they are fetched: the addend is in
 * the entry, and the former value comes to a piece. */
static void an_addition_gives_the_former_value(void) {
    static _Alignas(4096) uint64_t page[512];
    const epw_verbs_calls *verbs = epw_verbs_calls_of_library();
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    epw_mlx5_region region;
    void *channel, *queue;
    uint32_t number, posted, done_count = 0;
    int fd;
    CHECK_OK(epw_verbs_library(where, &calls));
    CHECK_OK(epw_mlx5_open(calls, &(epw_mlx5_options){0}, where, &adapter));
    epw_adapter_device device = epw_mlx5_device(adapter);
    epw_mlx5_address self = epw_mlx5_address_of(adapter);
    CHECK(calls->register_memory(device.pd, page, sizeof page, 0,
                                 EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE | EPW_MLX5_REMOTE_ATOMIC,
                                 &region) == 0);
    CHECK(verbs->open_channel(device.device, &channel, &fd) == 0);
    CHECK(verbs->open_queue(device.device, device.pd, channel, 16, 0, &queue, &number) == 0);
    epw_mlx5_path path = device.path;
    path.remote = number;
    memcpy(path.gid, self.gid, sizeof path.gid);
    epw_mlx5_choose_retries(deadline_ns, &path);
    CHECK(verbs->connect(queue, &path) == 0);
    const uint64_t addend = 5;
    epw_verbs_work work = {.opcode = EPW_OPCODE_FETCH_ADD,
                           .signalled = true,
                           .is_inline = true,
                           .key = region.rkey,
                           .remote = 8,
                           .count = 1,
                           .local = {{.offset = 64, .bytes = 8, .key = region.lkey}},
                           .inlined = (const unsigned char *)&addend,
                           .inlined_bytes = sizeof addend,
                           .addend = addend};
    page[1] = 37;
    epw_verbs_done done = {0};
    CHECK(verbs->post(queue, &work, 1, &posted) == 0 && posted == 1);
    for (int ms = 0; ms < 10000 && done_count == 0; ms++) {
        CHECK(verbs->poll(queue, &done, 1, &done_count) == 0);
        nanosleep(&(struct timespec){0, MS}, NULL);
    }
    CHECK(done_count == 1 && done.syndrome == EPW_SYNDROME_NONE);
    CHECK_MSG(page[1] == 42 && page[8] == 37, "%d, formerly %d", (int)page[1], (int)page[8]);
    CHECK(verbs->close_queue(queue) == 0 && verbs->close_channel(channel) == 0);
    CHECK(calls->deregister(region.handle) == 0);
    epw_mlx5_close(adapter);
    nothing_is_left("addition", 0);
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

/* Until the rank knows why its queues to the other one are lost, or for 10 s: then `text` is "". */
static void wait_for_trouble(const group *g, uint32_t rank, char text[EPW_TROUBLE_TEXT]) {
    *text = '\0';
    for (int ms = 0; ms < 10000 && *epw_buffer_trouble(g->of[rank], 1 - rank, text) == '\0'; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* The adapter tells the other end of a queue pair nothing; the connection beside it does. */
static void is_told_by_its_peer(const group *g, uint32_t rank, const char *of) {
    char said[EPW_TROUBLE_TEXT];
    wait_for_trouble(g, rank, said);
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
    epw_outcome outcome = dispatch_alone(g, rank);
    CHECK_MSG(outcome.degraded && outcome.record.cause == EPW_CAUSE_LINK, "%s: cause %u", of,
              outcome.record.cause);
    CHECK_MSG(epw_now_ns() - began < deadline_ns / 2, "%s: it took a deadline", of);
    epw_buffer_trouble(g->of[rank], 1 - rank, said);
    CHECK_MSG(strcmp(said, text) == 0, "%s:\n%s\nand not\n%s", of, said, text);
    is_told_by_its_peer(g, 1 - rank, of);
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
    the_peers_of_an_adapter_are_given_up(
        EPW_ABI_GID_CHANGE, LAN_PORT_NUMBER, true,
        "port 1 of lan_0 has lost the address that its queue pairs use: "
        "destroy this rank's fabric and all that uses it, and create new ones");
    the_peers_of_an_adapter_are_given_up(EPW_ABI_DEVICE_FATAL, 0, false,
                                         "lan_0 has failed: see dmesg; once it is back, destroy this rank's "
                                         "fabric and all that uses it, and create new ones");
}

static void a_removed_adapter_loses_its_peers_and_says_why(void) {
    group g;
    CHECK(two_ranks(&g) && step(&g));
    lan_remove(RANK_0);
    is_lost(&g, 0,
            "lan_0 has failed: see dmesg; once it is back, destroy this rank's fabric and all that uses it, "
            "and create new ones",
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
        wait_for_trouble(&g, 0, text);
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
    char text[EPW_TROUBLE_TEXT];
    size_t length;
    CHECK(two_ranks(&g) && step(&g));
    pthread_mutex_lock(&lan.lock);
    lan.holds_pairs = true;
    pthread_mutex_unlock(&lan.lock);
    lan_raise(RANK_0, EPW_ABI_QP_FATAL, 0);
    wait_for_trouble(&g, 0, text);
    CHECK_MSG(*text != '\0', "nobody has said that the queue pair is broken");
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

static void hear(void *context, const epw_log_record *record) {
    char *line = context;
    CHECK(*line == '\0' && record->level == EPW_LOG_WARN && record->rank == 0 && record->peer == 5);
    snprintf(line, 200, "%s", record->text);
}

/* What has been held ends, as when a process does. */
static void let_go(void) {
    lan.holds_pairs = false;
    while (lan.pairs != NULL) {
        lan_cq *cq = lan.pairs->cq;
        lan_destroy_qp(&lan.pairs->abi);
        lan_destroy_cq(&cq->abi);
    }
}

static void a_queue_pair_that_the_adapter_keeps_is_told(void) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    epw_fabric *fabric = NULL;
    epw_end end;
    char said[200] = "", line[200];
    options.wires = EPW_WIRE_VERBS;
    CHECK_OK(epw_fabric_create(&options, &fabric));
    CHECK_OK(epw_end_create(fabric, &(epw_end_options){.peer = 5, .depth = 64}, where, &end));
    snprintf(line, sizeof line,
             "lan_0 does not give back queue pair %u: Device or resource busy (errno 16): see dmesg; the end "
             "of this process frees it",
             epw_end_carried_number(&end));
    pthread_mutex_lock(&lan.lock);
    lan.holds_pairs = true;
    pthread_mutex_unlock(&lan.lock);
    CHECK_OK(epw_log_set("nic=warn", hear, said));
    epw_end_destroy(&end);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
    CHECK_MSG(strcmp(said, line) == 0, "%s\nand not\n%s", said, line);
    let_go();
    epw_fabric_destroy(fabric);
    nothing_is_left("kept", 0);
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

static void fail_next(lan_call call, uint32_t after, int err) {
    pthread_mutex_lock(&lan.lock);
    lan.failing = call;
    lan.failing_after = after;
    lan.failing_errno = err;
    lan.calls = 0;
    pthread_mutex_unlock(&lan.lock);
}

/* Calls that fail while ranks are created and connected. */
static void a_call_that_fails_is_said(void) {
    static const struct {
        lan_call call;
        uint32_t after;
        int err;
        const char *text;
    } cases[] = {
        {LAN_CHANNEL, 0, EMFILE,
         "fabric: rank 0: lan_0 does not report completions: Too many open files (errno 24); raise "
         "ulimit -n"},
        {LAN_QP, 0, ENOMEM,
         "export: rank 1: peer 0: lan_0 makes no queue pair of 512 entries, with 28 bytes inline: lower "
         "max_tokens, or raise the limit of locked memory (ulimit -l): Cannot allocate memory (errno 12)"},
        {LAN_MODIFY, 2, ETIMEDOUT,
         "connect: rank 0: peer 1: lan_0 has no route to queue pair 17 of the peer, whose address ends in "
         "10.79.0.1: see that ping reaches it by this adapter's interface: Connection timed out (errno 110)"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group g;
        lan.number = 16; /* no queue pair is left */
        fail_next(cases[i].call, cases[i].after, cases[i].err);
        CHECK(!meet_two(&g));
        CHECK_MSG(strcmp(epw_last_error(), cases[i].text) == 0, "%s\nand not\n%s", epw_last_error(),
                  cases[i].text);
        fail_next(LAN_NONE, 0, 0);
        destroy(&g);
        nothing_is_left("call", i);
    }
}

/* A peer whose adapter is on another kind of link, or that says nothing of it that can be understood. */
static void a_peer_that_is_not_reached_is_refused(void) {
    static const struct {
        unsigned char link, mtu;
        epw_status status;
        const char *text;
    } cases[] = {
        {0, 3, EPW_ERR_NO_PATH, "test: rank 0: the peer's adapter is on InfiniBand, this rank's on Ethernet"},
        {7, 3, EPW_ERR_INVALID, "test: rank 0: the peer gave no valid address of its adapter: 7, MTU 3"}};
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.wires = EPW_WIRE_VERBS;
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_fabric *fabric = NULL;
        epw_end end;
        unsigned char nic[EPW_FABRIC_NIC_BYTES];
        CHECK_OK(epw_fabric_create(&options, &fabric));
        epw_fabric_nic_write(fabric, nic);
        nic[1] = cases[i].link;
        nic[2] = cases[i].mtu;
        epw_end_peer peer = {.wire = EPW_WIRE_VERBS, .nic = nic, .deadline_ns = deadline_ns};
        CHECK_OK(epw_end_create(fabric, &(epw_end_options){.peer = 1, .depth = 64}, where, &end));
        CHECK(epw_end_connect(fabric, &end, &peer, where) == cases[i].status);
        CHECK_MSG(strcmp(epw_last_error(), cases[i].text) == 0, "%s\nand not\n%s", epw_last_error(),
                  cases[i].text);
        epw_end_destroy(&end);
        epw_fabric_destroy(fabric);
        nothing_is_left("peer", i);
    }
}

static void a_peer_without_the_verbs_wire_is_refused(void) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    epw_fabric *fabric = NULL;
    uint64_t link;
    options.wires = EPW_WIRE_VERBS;
    CHECK_OK(epw_fabric_create(&options, &fabric));
    epw_fabric_address address = epw_fabric_address_of(fabric);
    address.wires = EPW_WIRE_LOCAL;
    CHECK(epw_fabric_link(fabric, 1, &address, MS, where, &link) == EPW_ERR_NO_PATH);
    CHECK_MSG(strcmp(epw_last_error(),
                     "test: rank 0: no queue leads to the peer: its fabric has no verbs wire: "
                     "give all ranks the same wires") == 0,
              "%s", epw_last_error());
    epw_fabric_destroy(fabric);
    nothing_is_left("wires", 0);
}

/* An adapter without commands names bytes of a peer by their addresses, page by page. */
static void a_window_that_does_not_begin_on_a_page_is_refused(void) {
    static _Alignas(4096) unsigned char memory[2 * 4096];
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    epw_keys keys;
    epw_region window = {
        .base = memory + 64, .rights = EPW_REGION_WRITE, .count = 1, .stretches = {{0, 4096}}};
    CHECK_OK(epw_verbs_library(where, &calls));
    CHECK_OK(epw_mlx5_open(calls, &(epw_mlx5_options){0}, where, &adapter));
    CHECK(epw_mlx5_register(adapter, &window, where, &keys) == EPW_ERR_INVALID);
    CHECK_MSG(strcmp(epw_last_error(), "test: rank 0: memory that peers write to does not begin on a page") ==
                  0,
              "%s", epw_last_error());
    window.rights = EPW_REGION_READ;
    CHECK_OK(epw_mlx5_register(adapter, &window, where, &keys));
    epw_mlx5_deregister(adapter, keys.own);
    epw_mlx5_close(adapter);
    nothing_is_left("window", 0);
}

static void an_adapter_whose_events_nobody_can_hear_is_not_used(void) {
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    CHECK_OK(epw_verbs_library(where, &calls));
    start_no_threads(true);
    CHECK(epw_mlx5_open(calls, &(epw_mlx5_options){0}, where, &adapter) == EPW_ERR_NO_PATH);
    start_no_threads(false);
    CHECK_MSG(strcmp(epw_last_error(), "test: rank 0: no RDMA adapter can be used: lan_0: Resource "
                                       "temporarily unavailable") == 0,
              "%s", epw_last_error());
    nothing_is_left("events", 0);
}

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
                fail_next(call, after, errors[e]);
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
    look_at_first();
}

int main(void) {
    begin();
    steps_go_by_the_adapter();
    queue_pairs_are_warm_before_the_first_operation();
    a_fabric_names_its_adapter();
    for (because why = 0; why < BECAUSES; why++) words_are_behind_rows_where_writes_pass_each_other(why);
    an_addition_gives_the_former_value();
    queue_pairs_of_a_former_connection_are_refused(false);
    queue_pairs_of_a_former_connection_are_refused(true);
    whoever_connects_last_is_taken();
    a_completion_in_error_loses_the_peer_and_says_why();
    what_befalls_an_adapter_loses_its_peers_and_says_why();
    a_queue_pair_that_the_adapter_has_broken_loses_its_peer();
    nobody_is_let_in_while_the_adapter_holds_a_queue_pair();
    a_queue_pair_that_the_adapter_keeps_is_told();
    a_removed_adapter_loses_its_peers_and_says_why();
    other_events_change_nothing();
    a_call_that_fails_is_said();
    a_peer_that_is_not_reached_is_refused();
    a_peer_without_the_verbs_wire_is_refused();
    a_window_that_does_not_begin_on_a_page_is_refused();
    an_adapter_whose_events_nobody_can_hear_is_not_used();
    whatever_fails_nothing_is_left();
    lan_end();
    CHECK_MSG(lan.broken_rules == 0, "%u rules of the adapter were broken", lan.broken_rules);
    return check_result("verbs_wire");
}
