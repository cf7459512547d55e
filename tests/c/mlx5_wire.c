/* Adapters as libibverbs and libmlx5 offer them (nic/mlx5/library.c), with both libraries replaced by
 * functions of this process (mlx5/library.h): which functions are needed, steps of a layer, events of the
 * adapter, and calls that fail. */
#include "check.h"
#include "held.h"
#include "whole_step.h"

#include "base/clock.h"
#include "ep/buffer.h"
#include "late_ends.h"
#include "mlx5/library.h"
#include "nic/end.h"
#include "nic/fabric.h"
#include "nic/mlx5.h"
#include "nic/mlx5/library.h"
#include "nic/mlx5/probe.h"
#include "peer/remote.h"

#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, DEPTH = 64 };

static const epw_where where = {"test", 0, -1};
static uint64_t deadline_ns = 10000 * MS;

/* The libraries are loaded once in a process, so each way to find them has a process of its own. */
static void in_a_child(void (*run)(const char *what, const char *text), const char *what, const char *text) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        run(what, text);
        _exit(atomic_load(&checks_made) == 0 || atomic_load(&checks_failed) > 0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %d", what, status);
}

/* ---- what is missing ---- */

static void both_ask(const char *what, const char *text) {
    const epw_mlx5_calls *calls = NULL;
    for (int i = 0; i < 2; i++) {
        CHECK(epw_mlx5_library(where, &calls) == EPW_ERR_NO_PATH && calls == NULL);
        CHECK_MSG(strcmp(epw_last_error(), text) == 0, "%s:\n%s\nand not\n%s", what, epw_last_error(), text);
    }
    /* The verbs wire needs only one of them. */
    bool verbs = strstr(text, "libibverbs.so.1") != NULL;
    CHECK_MSG((epw_verbs_library(where, &calls) == EPW_OK) != verbs, "%s", what);
}

static void without_library(const char *what, const char *text) {
    mlx.no_library = what;
    both_ask(what, text);
}

static void without_function(const char *what, const char *text) {
    mlx.no_function = what;
    both_ask(what, text);
}

/* Also a library that has the function in another version only: only the version with the right signature is
 * asked for. */
static void what_is_missing_is_named(void) {
    static const struct {
        const char *name, *text;
    } libraries[] = {{"libibverbs.so.1", "test: rank 0: there is no libibverbs.so.1: install rdma-core "
                                         "(libibverbs1, ibverbs-providers)"},
                     {"libmlx5.so.1", "test: rank 0: there is no libmlx5.so.1: install rdma-core "
                                      "(libibverbs1, ibverbs-providers)"}};
    for (int i = 0; i < 2; i++) in_a_child(without_library, libraries[i].name, libraries[i].text);
    for (size_t i = 0; i < MLX_FUNCTIONS; i++) {
        char text[256];
        const char *name = mlx_functions[i].name, *version = mlx_functions[i].version;
        bool of_verbs = strncmp(version, "IBVERBS", 7) == 0;
        bool old = mlx_functions[i].function == MLX_FUNCTION(mlx_old);
        if (old || strcmp(name, "mlx5dv_devx_umem_reg_ex") == 0 || strcmp(name, "ibv_reg_dmabuf_mr") == 0)
            continue;
        snprintf(text, sizeof text, "test: rank 0: %s has no %s of version %s: install rdma-core 44 or newer",
                 of_verbs ? "libibverbs.so.1" : "libmlx5.so.1", name, version);
        in_a_child(without_function, name, text);
    }
}

/* ---- memory of a descriptor ---- */

/* Registers a ring and a window in memory that has a descriptor, without this function of the libraries. */
static void reaches_as(const char *missing, const char *text) {
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    epw_mlx5_pair *pair = NULL;
    epw_keys keys = {0};
    char said[EPW_MLX5_TEXT];
    mlx.no_function = missing;
    int fd = memfd_create("far", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0);
    void *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    epw_mlx5_far far = {.address = memory, .dmabuf = fd};
    epw_region window = {.rights = EPW_REGION_WRITE, .count = 1, .stretches = {{0, PAGE}}};
    CHECK_OK(epw_mlx5_library(where, &calls));
    CHECK_OK(epw_mlx5_open(calls, &(epw_mlx5_options){0}, where, &adapter));
    CHECK_OK(
        epw_mlx5_pair_create(adapter, &(epw_mlx5_pair_options){.depth = DEPTH, .ring = &far}, where, &pair));
    CHECK_OK(epw_mlx5_register_far(adapter, &far, &window, where, &keys));
    epw_mlx5_describe(adapter, said);
    CHECK_MSG(strstr(said, text) != NULL, "without %s: %s", missing, said);
    CHECK(epw_mlx5_pair_destroy(pair));
    epw_mlx5_deregister(adapter, keys.own);
    epw_mlx5_close(adapter);
    munmap(memory, PAGE);
    close(fd);
    CHECK(mlx.broken_rules == 0 && mlx.left == 0);
}

static void functions_for_descriptors_are_done_without(void) {
    in_a_child(reaches_as, "nothing",
               ", rings in GPU memory by dma-buf, peers write to GPU memory by dma-buf");
    in_a_child(reaches_as, "mlx5dv_devx_umem_reg_ex",
               ", rings in GPU memory by nvidia_peermem, peers write to GPU memory by dma-buf");
    in_a_child(reaches_as, "ibv_reg_dmabuf_mr",
               ", rings in GPU memory by dma-buf, peers write to GPU memory by nvidia_peermem");
}

/* ---- steps ---- */

static bool two_ranks(group *g) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.nic = EPW_NIC_MLX5;
    return meet_two_by(&options, deadline_ns, g) && begin_two(g);
}

static void nothing_is_left(const char *of, uint32_t which) {
    CHECK_MSG(mlx.left == 0, "%s %u: %u objects of an adapter", of, which, mlx.left);
    nothing_more_is_held(of, which);
}

static void steps_go_by_the_adapter(bool infiniband, const char *said) {
    group g;
    char text[EPW_FABRIC_TEXT];
    mlx.options.infiniband = infiniband;
    CHECK_MSG(two_ranks(&g), "%s", epw_last_error());
    CHECK_MSG(strcmp(epw_fabric_describe(g.fabrics[1], text), said) == 0, "%s", text);
    for (int i = 0; i < 40; i++) CHECK_MSG(step(&g), "step %d", i);
    for (uint32_t r = 0; r < 2; r++) CHECK(*epw_buffer_trouble(g.of[r], 1 - r, text) == '\0');
    destroy(&g);
    mlx.options.infiniband = false;
    nothing_is_left("steps", infiniband);
}

static void count_pairs(const group *g, uint32_t *all, uint32_t *warm) {
    *all = *warm = 0;
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t its, its_warm;
        epw_fake *fake = epw_fabric_fake(g->fabrics[r]);
        epw_fake_count_pairs(fake != NULL ? fake : mlx.contexts[r]->fake, &its, &its_warm);
        *all += its;
        *warm += its_warm;
    }
}

/* As on the verbs wire: connecting posts nothing, the words that begin an epoch do, on each lane to each
 * peer, whichever adapter serves it. */
static void queue_pairs_are_warm_before_the_first_operation(uint32_t nic, uint32_t adapters) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    group g;
    uint32_t all, warm;
    options.nic = nic;
    options.adapter_count = adapters;
    CHECK_MSG(meet_two_by(&options, deadline_ns, &g), "%s", epw_last_error());
    count_pairs(&g, &all, &warm);
    CHECK_MSG(all == 2 * 2 && warm == 0, "NIC %u: %u of %u queue pairs", nic, warm, all);
    CHECK(begin_two(&g));
    for (int ms = 0; ms < 10000 && warm < all; ms++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        count_pairs(&g, &all, &warm);
    }
    CHECK_MSG(all == 2 * 2 && warm == all, "NIC %u: %u of %u queue pairs", nic, warm, all);
    CHECK(step(&g));
    destroy(&g);
    nothing_is_left("warm", nic);
}

/* What RTR2RTS says of retries. */
typedef struct tries {
    uint32_t seen, timeout, retries;
} tries;

static void look_at_retries(void *context, unsigned char *in, size_t bytes) {
    tries *t = context;
    if (bytes != EPW_MLX5_IN_BYTES || in[0] != EPW_MLX5_RTR2RTS >> 8 || in[1] != (EPW_MLX5_RTR2RTS & 0xff))
        return;
    *t = (tries){t->seen + 1, in[0x38] >> 3, in[0x89] & 7};
}

/* How long an adapter retries follows from the buffer's deadline, whatever limit a call to connect has. */
static void a_limit_for_connecting_does_not_shorten_retries(void) {
    group g;
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.nic = EPW_NIC_FAKE;
    CHECK(meet_two_by(&options, deadline_ns, &g));
    for (uint64_t limit_ns = deadline_ns / 2; limit_ns <= 8 * deadline_ns; limit_ns *= 16) {
        tries t = {0};
        epw_mlx5_path right;
        epw_mlx5_choose_retries(deadline_ns, &right);
        epw_fake_set_tap(epw_fabric_fake(g.fabrics[0]),
                         &(epw_fake_tap){.command = look_at_retries, .context = &t});
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_disconnect(g.of[r], 1 - r));
        for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_within(g.of[r], r, g.of[1 - r], 1 - r, limit_ns));
        CHECK_MSG(t.seen > 0 && t.timeout == right.timeout && t.retries == right.retries,
                  "%u commands, timeout %u, %u retries", t.seen, t.timeout, t.retries);
        epw_fake_set_tap(epw_fabric_fake(g.fabrics[0]), &(epw_fake_tap){0});
    }
    destroy(&g);
}

/* The adapter's registers, from the best kind to the worst. */
static void every_kind_of_register_rings(void) {
    static const struct {
        uint64_t lacks;
        const char *said;
    } kinds[] = {
        {UINT64_C(1) << EPW_FAKE_NO_OWN_UAR,
         "mlx5_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096, doorbells in one register"},
        {UINT64_C(1) << EPW_FAKE_BF_UAR_ALONE,
         "mlx5_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096, doorbells that gather writes"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        group g;
        char text[EPW_FABRIC_TEXT];
        mlx.options.lacks = kinds[i].lacks;
        CHECK(two_ranks(&g) && step(&g));
        CHECK_MSG(strcmp(epw_fabric_describe(g.fabrics[0], text), kinds[i].said) == 0, "%s", text);
        destroy(&g);
        mlx.options.lacks = 0;
        nothing_is_left("register", (uint32_t)i);
    }
}

/* The doctor examines the adapter by the same functions. */
static void the_doctor_sends_a_word_from_the_adapter_to_itself(void) {
    static const char *const texts[] = {"DevX: opens",
                                        ("capabilities: mlx5_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, "
                                         "MTU 4096; rings of 32768 entries at "
                                         "most, atomics"),
                                        "host memory: registered for queues and for windows",
                                        "GPU windows: no GPU of this process to try it with",
                                        "doorbells by kernels: no GPU of this process to try it with",
                                        "queue pair: a word sent to itself arrived"};
    epw_probe_finding found[EPW_PROBE_FINDINGS_MAX];
    uint32_t count = epw_mlx5_probe("mlx5_0", -1, found);
    CHECK_MSG(count == sizeof texts / sizeof texts[0], "%u findings", count);
    for (uint32_t i = 0; i < count; i++) {
        char text[EPW_PROBE_NAME + EPW_PROBE_TEXT + 2];
        snprintf(text, sizeof text, "%s: %s", found[i].name, found[i].text);
        CHECK_MSG(strcmp(text, texts[i]) == 0, "%s\nand not\n%s", text, texts[i]);
    }
    nothing_is_left("doctor", 0);
}

static void the_doctor_says_what_fails(void) {
    static const struct {
        epw_fake_call call;
        int err;
        const char *name, *text, *remedy;
    } cases[] = {{EPW_FAKE_CALL_OPEN, EPERM, "DevX",
                  "this process may not open it: see /dev/infiniband, and in a container --device", ""},
                 {EPW_FAKE_CALL_OPEN, EOPNOTSUPP, "DevX",
                  "it has no DevX, which needs its firmware's user contexts (log_max_uctx)", ""},
                 {EPW_FAKE_CALL_UMEM, ENOMEM, "host memory", "not registered (errno 12)",
                  "raise the limit of locked memory (ulimit -l)"},
                 {EPW_FAKE_CALL_REGISTER, EFAULT, "host memory", "not registered (errno 14)", "see dmesg"}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_probe_finding found[EPW_PROBE_FINDINGS_MAX];
        bool said = false;
        mlx.options.failing = cases[i].call;
        mlx.options.failing_after = 0;
        mlx.options.failing_errno = cases[i].err;
        uint32_t count = epw_mlx5_probe("mlx5_0", -1, found);
        mlx.options.failing = EPW_FAKE_CALL_NONE;
        for (uint32_t f = 0; f < count; f++)
            said |= strcmp(found[f].name, cases[i].name) == 0 && strcmp(found[f].text, cases[i].text) == 0 &&
                    strcmp(found[f].remedy, cases[i].remedy) == 0;
        CHECK_MSG(said, "case %u: not said: %s", i, cases[i].text);
        nothing_is_left("doctor", 1 + i);
    }
}

/* ---- failures ---- */

static void await_trouble(const group *g, uint32_t rank, const char *text, const char *otherwise,
                          const char *of) {
    char said[EPW_TROUBLE_TEXT] = "";
    for (int ms = 0; ms < 10000 && *epw_buffer_trouble(g->of[rank], 1 - rank, said) == '\0'; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK_MSG(strcmp(said, text) == 0 || strcmp(said, otherwise) == 0, "%s, rank %u:\n%s\nand not\n%s", of,
              rank, said, text);
}

/* Both ranks give each other up at once, with a reason. Rank 1 hears it from rank 0, if it does not find the
 * same reason before. */
static void is_lost(const group *g, const char *text, const char *of) {
    uint64_t began = epw_now_ns();
    epw_outcome outcome = dispatch_alone(g, 0);
    CHECK_MSG(outcome.degraded && outcome.record.cause == EPW_CAUSE_LINK, "%s: cause %u", of,
              outcome.record.cause);
    CHECK_MSG(epw_now_ns() - began < deadline_ns / 2, "%s: it took a deadline", of);
    await_trouble(g, 0, text, text, of);
    await_trouble(g, 1, "the peer has ended its queue pair: see there why; connect it again", text, of);
}

static void what_befalls_an_adapter_loses_its_peers_and_says_why(void) {
    static const struct {
        epw_mlx5_event event;
        bool moved, infiniband;
        const char *text;
    } cases[] = {
        {{EPW_MLX5_EVENT_PORT_DOWN, 1},
         false,
         false,
         "port 1 of mlx5_0 is down: see its cable and switch, and ip link; connect again when it is "
         "up"},
        {{EPW_MLX5_EVENT_GIDS, 1},
         true,
         false,
         "port 1 of mlx5_0 has lost the address that its queue pairs use: destroy this rank's fabric and "
         "all that uses it, and create new ones"},
        {{EPW_MLX5_EVENT_GIDS, 1},
         true,
         true,
         "port 1 of mlx5_0 has lost the address that its queue pairs use: destroy this rank's fabric and "
         "all that uses it, and create new ones"},
        {{EPW_MLX5_EVENT_FATAL, 0},
         false,
         false,
         "mlx5_0 has failed: see dmesg; once it is back, destroy this rank's fabric and all that "
         "uses it, and create new ones"}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group g;
        mlx.options.infiniband = cases[i].infiniband;
        CHECK(two_ranks(&g) && step(&g));
        if (cases[i].moved) epw_fake_move(mlx.contexts[0]->fake);
        epw_fake_raise(mlx.contexts[0]->fake, 0, &cases[i].event);
        is_lost(&g, cases[i].text, "an event");
        destroy(&g);
        mlx.options.infiniband = false;
        nothing_is_left("event", i);
    }
}

/* The device goes away: asking for its events fails. */
static void a_removed_adapter_loses_its_peers_and_says_why(void) {
    group g;
    CHECK(two_ranks(&g) && step(&g));
    mlx_context *context = mlx.contexts[0];
    close(context->events);
    context->events = -1;
    is_lost(&g,
            "mlx5_0 has failed: see dmesg; once it is back, destroy this rank's fabric and all that uses it, "
            "and create new ones",
            "a removal");
    destroy(&g);
    nothing_is_left("removal", 0);
}

/* No event reports it, only the completion of an entry. */
static void a_cable_that_is_cut_loses_the_peer(void) {
    group g;
    CHECK(two_ranks(&g) && step(&g));
    epw_nic_end_link(mlx.contexts[0]->nic, mlx.contexts[0]->links[1]);
    const char *text =
        "an entry for it failed: the peer is not reached any more (syndrome 0x15, vendor 0x81): see that it "
        "lives, that ping reaches it between the addresses of the adapters, that both have one MTU, and that "
        "the traffic class is one that the switches do not drop";
    is_lost(&g, text, "a cable");
    destroy(&g);
    nothing_is_left("cable", 0);
}

/* ---- calls ---- */

/* Every call that makes something, from the first to the last of its kind in an adapter, fails in turn, until
 * none is left to fail. What gives back cannot fail here without breaking a rule. Failures while ranks are
 * created are errors with a text. */
static void whatever_fails_nothing_is_left(void) {
    uint32_t refused = 0;
    deadline_ns = 100 * MS; /* for the ends that are not told */
    for (epw_fake_call call = EPW_FAKE_CALL_NONE + 1; call < EPW_FAKE_CALL_DESTROY; call++) {
        bool failed = true;
        for (uint32_t after = 0; failed; after++) {
            group g;
            mlx.failed = 0;
            mlx.options.failing = call;
            mlx.options.failing_after = after;
            mlx.options.failing_errno = ENOMEM;
            bool made = two_ranks(&g);
            CHECK_MSG(made || *epw_last_error() != '\0', "call %d, %u", (int)call, after);
            if (made) step(&g);
            destroy(&g);
            refused += !made;
            failed = mlx.failed > 0;
            mlx.options.failing = EPW_FAKE_CALL_NONE;
            nothing_is_left("call", (uint32_t)call * 1000 + after);
        }
    }
    deadline_ns = 10000 * MS;
    CHECK_MSG(refused >= 20, "%u", refused);
}

static bool two_ranks_on_fakes(group *g) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.nic = EPW_NIC_FAKE;
    return meet_two_by(&options, deadline_ns, g) && begin_two(g);
}

/* A lease is granted again only when nothing more is placed for its former holder. */
static void nobody_is_let_in_while_the_adapter_holds_a_queue_pair(void) {
    static const epw_mlx5_event down = {EPW_MLX5_EVENT_PORT_DOWN, 1};
    group g;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
    CHECK(two_ranks_on_fakes(&g) && step(&g));
    epw_fake *fake = epw_fabric_fake(g.fabrics[0]);
    epw_fake_fail(fake, EPW_FAKE_CALL_MODIFY, 0, EIO, true);
    epw_fake_raise(fake, 0, &down);
    for (int i = 0; i < 2; i++)
        REFUSED(epw_buffer_export(g.of[0], 1, blob, &length), EPW_ERR_FENCED, "export", 0, 1,
                "the adapter does not end a queue pair by which the peer's former process may still write: "
                "see dmesg, and create the buffer again");
    /* Now it ends them, but does not destroy them: they are let alone, and others serve the peer. */
    epw_fake_fail(fake, EPW_FAKE_CALL_DESTROY, 0, EIO, true);
    const epw_mask both = first_ranks(2), alone[] = {{{1}}, {{2}}};
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_set_active(g.of[r], &alone[r], 2, 0));
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_to(g.of[r], r, g.of[1 - r], 1 - r));
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_set_active(g.of[r], &both, 3, 0));
    CHECK(step(&g));
    epw_fake_fail(fake, EPW_FAKE_CALL_NONE, 0, 0, false);
    for (uint32_t r = 0; r < 2; r++) epw_buffer_destroy(g.of[r]);
    epw_fake_left left = epw_fake_count(fake);
    CHECK_MSG(left.objects == 2 * 2 && left.umems == 2 * 3 && left.regions == 0,
              "%u objects, %u umems, %u regions", left.objects, left.umems, left.regions);
    for (uint32_t r = 0; r < 2; r++) epw_fabric_destroy(g.fabrics[r]);
    nothing_is_left("held", 0);
}

/* Makes a CREATE_QP that firmware refuses. */
static void spoil(void *context, unsigned char *in, size_t bytes) {
    (void)context;
    if (bytes == EPW_MLX5_IN_BYTES && in[0] == EPW_MLX5_CREATE_QP >> 8 &&
        in[1] == (EPW_MLX5_CREATE_QP & 0xff))
        in[EPW_MLX5_IN_BYTES - 1] = 1;
}

/* Memory of a queue pair that the adapter has not given back is not used for another one, however often it is
 * asked for, and whether the queue pair was ever whole. */
static void memory_that_the_adapter_keeps_is_not_used_again(bool whole) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    epw_fabric *fabric = NULL;
    options.nic = EPW_NIC_FAKE;
    CHECK_OK(epw_fabric_create(&options, &fabric));
    epw_fake *fake = epw_fabric_fake(fabric);
    unsigned char *memory = aligned_alloc(PAGE, epw_end_memory_bytes(fabric, DEPTH));
    epw_end_options asked = {.peer = 1, .depth = DEPTH, .memory = memory};
    epw_end end;
    epw_fake_set_tap(fake, &(epw_fake_tap){.command = whole ? NULL : spoil});
    CHECK((epw_end_create(fabric, &asked, where, &end) == EPW_OK) == whole);
    CHECK(epw_end_destroy(&end) && epw_fake_count(fake).objects == 0);
    epw_fake_fail(fake, EPW_FAKE_CALL_DESTROY, 0, EIO, true);
    CHECK((epw_end_create(fabric, &asked, where, &end) == EPW_OK) == whole);
    CHECK(epw_fake_count(fake).objects == (whole ? 2 : 1));
    for (int i = 0; i < 2; i++) CHECK(!epw_end_destroy(&end));
    epw_fabric_destroy(fabric);
    free(memory);
    nothing_is_left("kept", whole);
}

/* Whether a queue pair was stopped, and how many regions there were then. */
typedef struct stopped {
    epw_fake *fake;
    uint32_t count, regions;
} stopped;

static void look_at_stops(void *context, unsigned char *in, size_t bytes) {
    stopped *s = context;
    if (bytes != EPW_MLX5_SHORT_BYTES || in[0] != EPW_MLX5_2ERR >> 8 || in[1] != (EPW_MLX5_2ERR & 0xff))
        return;
    s->count++;
    s->regions = epw_fake_count(s->fake).regions;
}

/* What has not been sent of lent memory is not looked for once that is gone: its queue pair has been stopped
 * by then. */
static void lent_memory_is_taken_from_queues_that_have_stopped(void) {
    group g;
    CHECK(two_ranks_on_fakes(&g) && step(&g));
    epw_fake *fake = epw_fabric_fake(g.fabrics[0]);
    epw_peers *peers = &g.of[0]->peers;
    stopped s = {.fake = fake};
    uint64_t first;
    unsigned char *rows = aligned_alloc(PAGE, PAGE);
    memset(rows, 0, PAGE);
    AWAIT(epw_remotes_behind(peers, 0, 0) == peers->ranks);
    uint32_t key = epw_remotes_lend(peers, 0, rows, PAGE, &first);
    uint32_t regions = epw_fake_count(fake).regions;
    epw_fake_set_tap(fake, &(epw_fake_tap){.command = look_at_stops, .context = &s});
    CHECK(freeze_links(epw_fabric_nic(g.fabrics[0]), true) > 0);
    send_batch(g.of[0], 0, 0, 0);
    CHECK(key != 0);
    CHECK(epw_remotes_behind(peers, 0, 0) == 1);
    epw_remotes_take_back(peers, 0, key);
    CHECK_MSG(s.count > 0 && s.regions == regions, "%u stopped, %u of %u regions", s.count, s.regions,
              regions);
    CHECK(epw_fake_count(fake).regions == regions - 1);
    epw_fake_set_tap(fake, &(epw_fake_tap){0});
    freeze_links(epw_fabric_nic(g.fabrics[0]), false);
    destroy(&g);
    free(rows);
    nothing_is_left("lent", 0);
}

/* The libraries do not set errno on all failures. */
static void a_failure_without_errno_is_said(void) {
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    CHECK_OK(epw_mlx5_library(where, &calls));
    mlx.options.failing = EPW_FAKE_CALL_DOMAIN;
    mlx.options.failing_errno = ENOMEM;
    mlx.silent = true;
    CHECK(epw_mlx5_open(calls, &(epw_mlx5_options){0}, where, &adapter) == EPW_ERR_SYSTEM);
    const char *text =
        "test: rank 0: mlx5_0 gives no protection domain or event queue: Input/output error (errno 5)";
    CHECK_MSG(strcmp(epw_last_error(), text) == 0, "%s", epw_last_error());
    mlx.options.failing = EPW_FAKE_CALL_NONE;
    mlx.silent = false;
}

static void begin(void) {
    group g;
    setenv("EPW_TEST_PATH", "queue", 1);
    CHECK_MSG(two_ranks(&g), "%s", epw_last_error());
    destroy(&g);
    look_at_first();
}

int main(void) {
    what_is_missing_is_named();
    functions_for_descriptors_are_done_without();
    begin();
    steps_go_by_the_adapter(false, "mlx5_0 port 1, RoCEv2, GID 3 ending in 10.77.0.1, MTU 4096");
    steps_go_by_the_adapter(true, "mlx5_0 port 1, InfiniBand, LID 2, MTU 4096");
    queue_pairs_are_warm_before_the_first_operation(EPW_NIC_MLX5, 1);
    queue_pairs_are_warm_before_the_first_operation(EPW_NIC_FAKE, 1);
    queue_pairs_are_warm_before_the_first_operation(EPW_NIC_FAKE, 2);
    a_limit_for_connecting_does_not_shorten_retries();
    every_kind_of_register_rings();
    the_doctor_sends_a_word_from_the_adapter_to_itself();
    the_doctor_says_what_fails();
    what_befalls_an_adapter_loses_its_peers_and_says_why();
    a_removed_adapter_loses_its_peers_and_says_why();
    a_cable_that_is_cut_loses_the_peer();
    a_failure_without_errno_is_said();
    whatever_fails_nothing_is_left();
    nobody_is_let_in_while_the_adapter_holds_a_queue_pair();
    memory_that_the_adapter_keeps_is_not_used_again(true);
    memory_that_the_adapter_keeps_is_not_used_again(false);
    lent_memory_is_taken_from_queues_that_have_stopped();
    CHECK_MSG(mlx.broken_rules == 0, "%u rules of the libraries were broken", mlx.broken_rules);
    return check_result("mlx5_wire");
}
