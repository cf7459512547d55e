/* Opening and choosing an adapter, and its commands: the right one of several, commands that firmware
 * refuses, events, and words between two adapters. */
#include "mlx5_rank.h"

#include "nic/queue.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

/* ---- of several ---- */

static epw_bus_place at(const char *path) {
    epw_bus_place place = {.node = -1};
    snprintf(place.path, sizeof place.path, "%s", path);
    return place;
}

static void expect(epw_mlx5 *adapter, const char *begins) {
    char text[EPW_MLX5_TEXT];
    epw_mlx5_describe(adapter, text);
    CHECK_MSG(strncmp(text, begins, strlen(begins)) == 0, "%s\nand not\n%s", text, begins);
}

/* An adapter that the rank has already is not chosen again. */
static void the_nearest_of_several_adapters_is_chosen(void) {
    epw_bus_place gpu = at("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0");
    epw_fake_options options = {
        .rank = RANK,
        .devices = 3,
        .places = {at("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"),
                   at("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:04:00.0"),
                   at("/sys/devices/pci0000:00/0000:00:02.0/0000:05:00.0")}};
    bench *b = new_bench();
    epw_mlx5 *second = NULL, *none = NULL;
    CHECK_OK(epw_fake_open(&options, where, &b->fake));
    const epw_mlx5_calls *calls = epw_fake_calls(b->fake);
    epw_mlx5_options how = {.gpu = &gpu};
    CHECK_OK(epw_mlx5_open(calls, &how, where, &b->adapter));
    expect(b->adapter, "fake_1 port 1, RoCEv2, GID 3 ending in 10.78.0.3, MTU 4096, behind the same switch");
    how.beside = b->adapter;
    CHECK_OK(epw_mlx5_open(calls, &how, where, &second));
    expect(second, "fake_2 port 1, RoCEv2, GID 3 ending in 10.79.0.3, MTU 4096, across the root complex");
    how.filter = "=fake_1";
    CHECK(epw_mlx5_open(calls, &how, where, &none) == EPW_ERR_NO_PATH);
    CHECK_MSG(strcmp(epw_last_error(),
                     "test: rank 3: there is no second mlx5 adapter beside fake_1: set options.adapter_count "
                     "(EPWIRE_ADAPTERS) to 1, or let options.adapters match another one") == 0,
              "%s", epw_last_error());
    epw_mlx5_close(second);
    how = (epw_mlx5_options){.filter = "=fake_0", .gpu = &gpu};
    CHECK_OK(epw_mlx5_open(calls, &how, where, &second));
    expect(second, "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096, on another socket");
    epw_mlx5_close(second);
    for (uint32_t turn = 0; turn < 6; turn++) {
        char begins[8];
        snprintf(begins, sizeof begins, "fake_%u", turn % 3);
        CHECK_OK(epw_mlx5_open(calls, &(epw_mlx5_options){.turn = turn}, where, &second));
        expect(second, begins);
        epw_mlx5_close(second);
    }
    take_down(b);
    free(b);
}

/* The fields of INIT2RTR that come from the options. */
typedef struct sent {
    unsigned char dscp, hop_limit, priority;
} sent;

static void look_at_path(void *context, unsigned char *in, size_t bytes) {
    enum { PATH = 0x18 + 0x18 };
    sent *s = context;
    if (bytes != EPW_MLX5_IN_BYTES || in[0] != EPW_MLX5_INIT2RTR >> 8 || in[1] != (EPW_MLX5_INIT2RTR & 0xff))
        return;
    *s = (sent){
        .dscp = in[PATH + 0x21] & 0x3f, .hop_limit = in[PATH + 0x0b], .priority = in[PATH + 0x24] >> 4};
}

static void options_reach_the_command(void) {
    static const struct {
        epw_mlx5_options how;
        sent sent;
    } ways[] = {{{.traffic_class = 106, .service_level = 3, .hop_limit = 9}, {26, 9, 3}}, {{0}, {0, 255, 0}}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        bench *b = new_bench();
        sent found = {0};
        epw_fake_options options = {.rank = RANK};
        CHECK_OK(epw_fake_open(&options, where, &b->fake));
        epw_fake_set_tap(b->fake, &(epw_fake_tap){.command = look_at_path, .context = &found});
        CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &ways[i].how, where, &b->adapter));
        CHECK_OK(make_pair(b));
        CHECK_MSG(memcmp(&found, &ways[i].sent, sizeof found) == 0, "DSCP %u, hops %u, priority %u",
                  found.dscp, found.hop_limit, found.priority);
        take_down(b);
        free(b);
    }
}

/* Regions and objects of one device cannot be used with another. */
static void a_device_has_no_part_in_another_ones_objects(void) {
    bench *b = new_bench();
    epw_fake_options options = {.rank = RANK, .devices = 2};
    epw_mlx5 *second = NULL;
    CHECK_OK(epw_fake_open(&options, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(
        epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){.beside = b->adapter}, where, &second));
    uint32_t own = b->adapter->pd_number;
    b->adapter->pd_number = second->pd_number;
    CHECK(make_pair(b) == EPW_ERR_SYSTEM && strstr(epw_last_error(), "CREATE_QP: BAD_RESOURCE") != NULL);
    b->adapter->pd_number = own;
    CHECK_OK(make_pair(b));
    epw_mlx5_close(second);
    take_down(b);
    free(b);
}

/* ---- the firmware ---- */

/* The answer to a command: its status and syndrome. */
typedef struct answer {
    int err;
    uint32_t status, syndrome;
} answer;

static answer ask(bench *b, void *object, const void *in, size_t bytes) {
    unsigned char out[EPW_MLX5_OUT_BYTES] = {0};
    int err = epw_fake_calls(b->fake)->modify(object, in, bytes, out, sizeof out);
    return (answer){err, epw_mlx5_status(out), epw_mlx5_syndrome(out)};
}

static answer ask_short(bench *b, void *object, uint32_t opcode) {
    unsigned char in[EPW_MLX5_SHORT_BYTES];
    epw_mlx5_build_short(in, opcode, b->pair->number);
    return ask(b, object, in, sizeof in);
}

static const epw_mlx5_path path = {.ethernet = true,
                                   .port = 1,
                                   .remote = 0x54321,
                                   .mtu = 5,
                                   .gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 77, [15] = RANK},
                                   .mac = {2, 0, 10, 77, 0, RANK},
                                   .gid_index = 3,
                                   .udp_port = 0xc000,
                                   .hop_limit = 255,
                                   .in_order = true,
                                   .timeout = 14,
                                   .retries = 7};

static uint32_t state_of(bench *b) {
    unsigned char in[EPW_MLX5_SHORT_BYTES], out[EPW_MLX5_QUERY_QP_BYTES];
    epw_mlx5_build_short(in, EPW_MLX5_QUERY_QP, b->pair->number);
    CHECK(epw_fake_calls(b->fake)->query(b->pair->qp, in, sizeof in, out, sizeof out) == 0);
    return epw_mlx5_state(out);
}

/* In each state exactly those commands are accepted that may follow. */
static void a_queue_pair_goes_up_step_by_step(void) {
    enum { WRONG_STATE = 0x10, STEPS = 4 };
    bench *b = new_bench();
    epw_fake_options options = {.rank =
                                    RANK}; /* without a soft NIC, which would notice that there is no link */
    CHECK_OK(epw_fake_open(&options, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(make_pair(b));
    static epw_mlx5_in steps[STEPS];
    uint32_t number = b->pair->number;
    epw_mlx5_build_rst2init(steps[0], number, &path);
    epw_mlx5_build_init2rtr(steps[1], number, &path);
    epw_mlx5_build_rtr2rts(steps[2], number, &path);
    epw_mlx5_build_refuse(steps[3], number);
    CHECK(ask_short(b, b->pair->qp, EPW_MLX5_2RST).status == 0);
    for (int at = 0; at < STEPS; at++) {
        for (int step = 0; step < STEPS; step++) {
            if (step == at) continue;
            answer a = ask(b, b->pair->qp, steps[step], sizeof steps[step]);
            CHECK_MSG(a.status == WRONG_STATE, "step %d in state %d: %x, %x", step, at, a.status, a.syndrome);
        }
        answer a = ask(b, b->pair->qp, steps[at], sizeof steps[at]);
        CHECK_MSG(a.status == 0, "step %d: %x, %x", at, a.status, a.syndrome);
        CHECK(state_of(b) == (at < 3 ? (uint32_t)at + 1 : EPW_MLX5_STATE_RTS));
    }
    CHECK(ask_short(b, b->pair->qp, EPW_MLX5_2ERR).status == 0 && state_of(b) == EPW_MLX5_STATE_ERR);
    /* A command for another pair, and one that is too short. */
    CHECK(ask(b, b->pair->cq, steps[3], sizeof steps[3]).err == EINVAL);
    epw_mlx5_build_refuse(steps[0], number + 1);
    CHECK(ask(b, b->pair->qp, steps[0], sizeof steps[0]).err == EINVAL);
    CHECK(ask(b, b->pair->qp, steps[3], sizeof steps[3] - 8).status == 0x50);
    take_down(b);
    free(b);
}

static void bring_to(bench *b, uint32_t state) {
    static epw_mlx5_in steps[3];
    uint32_t number = b->pair->number;
    epw_mlx5_build_rst2init(steps[0], number, &path);
    epw_mlx5_build_init2rtr(steps[1], number, &path);
    epw_mlx5_build_rtr2rts(steps[2], number, &path);
    CHECK(ask_short(b, b->pair->qp, EPW_MLX5_2RST).status == 0);
    for (uint32_t at = 0; at < state && at < EPW_MLX5_STATE_RTS; at++)
        CHECK(ask(b, b->pair->qp, steps[at], sizeof steps[at]).status == 0);
    if (state == EPW_MLX5_STATE_ERR) CHECK(ask_short(b, b->pair->qp, EPW_MLX5_2ERR).status == 0);
    CHECK(state_of(b) == state);
}

/* 2RST is accepted in every state, 2ERR in every other one than RST; in ERR nothing else is. */
static void a_queue_pair_is_stopped_from_every_state(void) {
    static const uint32_t states[] = {EPW_MLX5_STATE_RST, EPW_MLX5_STATE_INIT, EPW_MLX5_STATE_RTR,
                                      EPW_MLX5_STATE_RTS, EPW_MLX5_STATE_ERR};
    bench *b = new_bench();
    epw_mlx5_in up;
    CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK}, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(make_pair(b));
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        const bool reset = states[i] == EPW_MLX5_STATE_RST;
        bring_to(b, states[i]);
        answer a = ask_short(b, b->pair->qp, EPW_MLX5_2ERR);
        CHECK_MSG(a.status == (reset ? 0x10 : 0), "2ERR in state %u: %x, %x", states[i], a.status,
                  a.syndrome);
        CHECK(state_of(b) == (reset ? EPW_MLX5_STATE_RST : EPW_MLX5_STATE_ERR));
        bring_to(b, states[i]);
        a = ask_short(b, b->pair->qp, EPW_MLX5_2RST);
        CHECK_MSG(a.status == 0, "2RST in state %u: %x, %x", states[i], a.status, a.syndrome);
        CHECK(state_of(b) == EPW_MLX5_STATE_RST);
    }
    bring_to(b, EPW_MLX5_STATE_ERR);
    epw_mlx5_build_rst2init(up, b->pair->number, &path);
    CHECK(ask(b, b->pair->qp, up, sizeof up).status == 0x10);
    epw_mlx5_build_refuse(up, b->pair->number);
    CHECK(ask(b, b->pair->qp, up, sizeof up).status == 0x10);
    take_down(b);
    free(b);
}

static void count_commands(void *context, unsigned char *in, size_t bytes) {
    (void)in, (void)bytes;
    ++*(uint32_t *)context;
}

/* It has nothing to stop, so the adapter is not asked, which might refuse; afterwards it can be connected. */
static void a_queue_pair_that_was_never_connected_closes(void) {
    bench *b = new_bench();
    uint32_t commands = 0;
    CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK}, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    epw_mlx5_pair_options options = {.depth = DEPTH, .broken = broken, .context = b};
    CHECK_OK(epw_mlx5_pair_create(b->adapter, &options, where, &b->pair));
    epw_fake_set_tap(b->fake, &(epw_fake_tap){.command = count_commands, .context = &commands});
    CHECK(epw_mlx5_pair_close(b->pair) && epw_mlx5_pair_is_closed(b->pair) && commands == 0);
    epw_mlx5_address self = epw_mlx5_address_of(b->adapter);
    CHECK_OK(epw_mlx5_pair_connect(b->pair, 0x54321, &self, UINT64_C(10000000000), where));
    CHECK(state_of(b) == EPW_MLX5_STATE_RTS && commands == 4); /* the last one has asked for the state */
    epw_mlx5_pair_break(b->pair);
    CHECK(state_of(b) == EPW_MLX5_STATE_ERR && atomic_load(&b->broken));
    take_down(b);
    b = memset(b, 0, sizeof *b);
    CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK}, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(epw_mlx5_pair_create(b->adapter, &options, where, &b->pair));
    epw_mlx5_pair_break(b->pair);
    CHECK(epw_mlx5_pair_broken(b->pair) && atomic_load(&b->broken) && state_of(b) == EPW_MLX5_STATE_RST);
    take_down(b);
    free(b);
}

/* As the kernel accepts them: by another call the result is EINVAL, without an answer of the firmware or an
 * object. */
static void each_command_comes_by_its_own_call_alone(void) {
    enum { CREATE, MODIFY, QUERY, GENERAL, CALLS };
    static const struct {
        uint32_t opcode;
        size_t bytes;
        int call;
    } commands[] = {{EPW_MLX5_QUERY_HCA_CAP, EPW_MLX5_SHORT_BYTES, GENERAL},
                    {EPW_MLX5_CREATE_CQ, EPW_MLX5_IN_BYTES, CREATE},
                    {EPW_MLX5_CREATE_QP, EPW_MLX5_IN_BYTES, CREATE},
                    {EPW_MLX5_RST2INIT, EPW_MLX5_IN_BYTES, MODIFY},
                    {EPW_MLX5_INIT2RTR, EPW_MLX5_IN_BYTES, MODIFY},
                    {EPW_MLX5_RTR2RTS, EPW_MLX5_IN_BYTES, MODIFY},
                    {EPW_MLX5_RTS2RTS, EPW_MLX5_IN_BYTES, MODIFY},
                    {EPW_MLX5_2ERR, EPW_MLX5_SHORT_BYTES, MODIFY},
                    {EPW_MLX5_2RST, EPW_MLX5_SHORT_BYTES, MODIFY},
                    {EPW_MLX5_QUERY_QP, EPW_MLX5_SHORT_BYTES, QUERY},
                    {0x7ff, EPW_MLX5_SHORT_BYTES, CALLS}};
    bench *b = new_bench();
    CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK}, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(make_pair(b));
    const epw_mlx5_calls *calls = epw_fake_calls(b->fake);
    void *device = b->adapter->device, *qp = b->pair->qp;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        for (int call = 0; call < CALLS; call++) {
            static const unsigned char untouched = 0x77;
            unsigned char in[EPW_MLX5_IN_BYTES] = {0}, out[EPW_MLX5_QUERY_CAP_BYTES] = {untouched};
            size_t bytes = commands[i].bytes;
            void *object = NULL;
            uint32_t before = epw_fake_count(b->fake).objects;
            epw_mlx5_build_short(in, commands[i].opcode, b->pair->number);
            int err = call == CREATE   ? calls->create(device, in, bytes, out, sizeof out, &object)
                      : call == MODIFY ? calls->modify(qp, in, bytes, out, sizeof out)
                      : call == QUERY  ? calls->query(qp, in, bytes, out, sizeof out)
                                       : calls->general(device, in, bytes, out, sizeof out);
            /* By its own call, firmware answers, if only that such a command is not complete. */
            bool refused = err == EINVAL && out[0] == untouched;
            CHECK_MSG(refused == (call != commands[i].call), "%s by call %d: errno %d, status %x",
                      epw_mlx5_command_name(commands[i].opcode), call, err, out[0]);
            CHECK(object == NULL && epw_fake_count(b->fake).objects == before);
        }
    }
    take_down(b);
    free(b);
}

/* A command with one bit inverted. */
typedef struct turned {
    uint32_t opcode, bit;
} turned;

static void turn(void *context, unsigned char *in, size_t bytes) {
    const turned *t = context;
    if ((uint32_t)in[0] << 8 == (t->opcode & 0xff00) && in[1] == (t->opcode & 0xff) && t->bit / 8 < bytes)
        in[t->bit / 8] ^= (unsigned char)(0x80u >> t->bit % 8);
}

/* Some bits turn a command into another valid one: another size that fits, another umem of this pair, another
 * place for a record, another peer, packet number, priority or time. Exactly those may be accepted; all
 * others are refused. */
static void a_bit_that_is_wrong_is_refused(void) {
    static const struct {
        uint32_t opcode, as_good;
    } commands[] = {{EPW_MLX5_CREATE_CQ, 12},
                    {EPW_MLX5_CREATE_QP, 2},
                    {EPW_MLX5_RST2INIT, 0},
                    {EPW_MLX5_INIT2RTR, 195},
                    {EPW_MLX5_RTR2RTS, 38}};
    for (size_t c = 0; c < sizeof commands / sizeof commands[0]; c++) {
        uint32_t as_good = 0;
        for (uint32_t bit = 0; bit < EPW_MLX5_IN_BYTES * 8; bit++) {
            turned t = {commands[c].opcode, bit};
            bench *b = new_bench();
            epw_fake_options options = {.rank = RANK};
            CHECK_OK(epw_fake_open(&options, where, &b->fake));
            CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
            epw_fake_set_tap(b->fake, &(epw_fake_tap){.command = turn, .context = &t});
            bool took = make_pair(b) == EPW_OK;
            as_good += took;
            take_down(b);
            free(b);
        }
        CHECK_MSG(as_good == commands[c].as_good, "%s: %u bits", epw_mlx5_command_name(commands[c].opcode),
                  as_good);
    }
}

/* The kernel keeps what is in use, so an object that is returned in the wrong order is noticed. */
static void what_is_in_use_is_not_given_back(void) {
    bench *b = new_bench();
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    const epw_mlx5_calls *calls = epw_fake_calls(b->fake);
    CHECK(calls->free_umem(b->pair->ring.handle) == EBUSY &&
          calls->free_umem(b->pair->record.handle) == EBUSY);
    CHECK(calls->destroy(b->pair->cq) == EBUSY && calls->free_domain(b->adapter->pd) == EBUSY);
    CHECK(calls->close(b->adapter->device) == EBUSY);
    take_down(b);
    free(b);
}

/* ---- what happens by itself ---- */

static void events_of_the_device_end_its_queue_pairs(void) {
    static const struct {
        epw_mlx5_event event;
        bool moved, infiniband;
        const char *said; /* NULL: no queue pair is affected */
    } cases[] = {
        {{EPW_MLX5_EVENT_PORT_DOWN, 1},
         false,
         false,
         "port 1 of fake_0 is down: see its cable and switch, and ip link; connect again when it is up"},
        {{EPW_MLX5_EVENT_GIDS, 1},
         true,
         false,
         "port 1 of fake_0 has lost the address that its queue pairs use: "
         "destroy this rank's fabric and all that uses it, and create new ones"},
        {{EPW_MLX5_EVENT_GIDS, 1},
         true,
         true,
         "port 1 of fake_0 has lost the address that its queue pairs use: "
         "destroy this rank's fabric and all that uses it, and create new ones"},
        {{EPW_MLX5_EVENT_FATAL, 0},
         false,
         false,
         "fake_0 has failed: see dmesg; once it is back, destroy this rank's fabric and all that uses it, "
         "and create new ones"},
        {{EPW_MLX5_EVENT_GIDS, 1}, false, false, NULL}, /* another address of the port has changed */
        {{EPW_MLX5_EVENT_GIDS, 1}, false, true, NULL},
        {{EPW_MLX5_EVENT_GIDS, 2}, true, false, NULL},
        {{EPW_MLX5_EVENT_PORT_DOWN, 2}, false, false, NULL},
        {{EPW_MLX5_EVENT_PAIR, 1}, false, false, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench *b = new_bench();
        epw_fake_options options = {.rank = RANK, .infiniband = cases[i].infiniband};
        char said[EPW_MLX5_TEXT];
        CHECK_OK(epw_fake_open(&options, where, &b->fake));
        CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
        CHECK_OK(make_pair(b));
        CHECK(!epw_mlx5_pair_broken(b->pair) && *epw_mlx5_pair_trouble(b->pair, said) == '\0');
        if (cases[i].moved) epw_fake_move(b->fake);
        epw_fake_raise(b->fake, 0, &cases[i].event);
        bool concerned = cases[i].said != NULL;
        CHECK(epw_mlx5_pair_broken(b->pair) == concerned && atomic_load(&b->broken) == concerned);
        CHECK_MSG(strcmp(epw_mlx5_pair_trouble(b->pair, said), concerned ? cases[i].said : "") == 0, "%s",
                  said);
        take_down(b);
        free(b);
    }
}

/* Commands that have been answered. */
typedef struct answered {
    uint32_t last; /* its opcode */
    atomic_uint errors;
} answered;

static void see_command(void *context, unsigned char *in, size_t bytes) {
    answered *a = context;
    (void)bytes;
    a->last = (uint32_t)in[0] << 8 | in[1];
}

static void see_answer(void *context, const unsigned char *out, size_t bytes) {
    answered *a = context;
    (void)bytes;
    if (a->last == EPW_MLX5_2ERR && out[0] == 0) atomic_fetch_add(&a->errors, 1);
}

/* The adapter would go on once its port is up again, and would place what the peer still sends. */
static void what_breaks_a_queue_pair_stops_it(void) {
    enum { EVENT, ENDED, REPLACED, WAYS };
    static const epw_mlx5_poster posters[] = {EPW_MLX5_HOST, EPW_MLX5_KERNELS, EPW_MLX5_KERNELS_UNHEARD};
    for (int i = 0; i < WAYS * 3; i++) {
        bench *b = new_bench();
        answered seen = {0};
        CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK}, where, &b->fake));
        CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
        epw_mlx5_pair_options options = {
            .peer = 1, .depth = DEPTH, .poster = posters[i % 3], .broken = broken, .context = b};
        epw_mlx5_address self = epw_mlx5_address_of(b->adapter);
        CHECK_OK(epw_mlx5_pair_create(b->adapter, &options, where, &b->pair));
        CHECK_OK(epw_mlx5_pair_connect(b->pair, 0x54321, &self, UINT64_C(10000000000), where));
        epw_fake_set_tap(b->fake,
                         &(epw_fake_tap){.command = see_command, .answer = see_answer, .context = &seen});
        uint32_t number = epw_mlx5_pair_number(b->pair);
        if (i / 3 == EVENT) epw_fake_raise(b->fake, 0, &(epw_mlx5_event){EPW_MLX5_EVENT_PORT_DOWN, 1});
        if (i / 3 == ENDED) epw_mlx5_peer_ended(b->adapter, 1, number, 0x54321);
        if (i / 3 == REPLACED) CHECK(!epw_mlx5_peer_connected(b->adapter, 1, number, 0x54322));
        CHECK(epw_mlx5_pair_broken(b->pair) && atomic_load(&b->broken));
        for (int ms = 0; ms < 10000 && atomic_load(&seen.errors) == 0; ms++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        CHECK_MSG(atomic_load(&seen.errors) == 1 && state_of(b) == EPW_MLX5_STATE_ERR, "way %d: state %u", i,
                  state_of(b));
        take_down(b);
        free(b);
    }
}

/* An adapter wakes nobody, so a thread polls. */
static void words_are_seen_by_who_looks(void) {
    bench *b = new_bench();
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    for (uint32_t i = 1; i <= 20; i++) {
        atomic_store((_Atomic uint64_t *)(void *)(b->memory + 64 + 8 * (i % 8)), i);
        for (int ms = 0; ms < 10000 && atomic_load(&b->arrived) < i; ms++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        CHECK(atomic_load(&b->arrived) == i);
    }
    take_down(b);
    free(b);
}

/* ---- what is refused ---- */

static void is_refused(epw_status status, epw_status expected, const char *text) {
    CHECK_MSG(status == expected, "%s instead of %s", epw_status_name(status), epw_status_name(expected));
    CHECK_MSG(strcmp(epw_last_error(), text) == 0, "%s\nand not\n%s", epw_last_error(), text);
}

static void an_address_that_is_none_is_refused(void) {
    static const struct {
        unsigned char link, mtu;
        const char *text;
    } cases[] = {
        {7, 9, "test: rank 3: the peer gave no valid address of its adapter: 7, MTU 9"},
        {2, 5, "test: rank 3: the peer gave no valid address of its adapter: 2, MTU 5"},
        {1, 0, "test: rank 3: the peer gave no valid address of its adapter: 1, MTU 0"},
        {0, 6, "test: rank 3: the peer gave no valid address of its adapter: 0, MTU 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char bytes[EPW_MLX5_ADDRESS_BYTES] = {cases[i].link, cases[i].mtu};
        epw_mlx5_address read;
        is_refused(epw_mlx5_address_read(bytes, where, &read), EPW_ERR_INVALID, cases[i].text);
    }
}

static void a_peer_on_the_other_kind_of_link_is_refused(void) {
    static const char *const texts[] = {
        "test: rank 3: the peer's adapter is on InfiniBand, this rank's, fake_0, on Ethernet",
        "test: rank 3: the peer's adapter is on Ethernet, this rank's, fake_0, on InfiniBand"};
    for (int infiniband = 0; infiniband < 2; infiniband++) {
        bench *b = new_bench();
        CHECK_OK(set_up(b, &(epw_fake_options){.infiniband = infiniband == 1}, &(epw_mlx5_options){0}));
        epw_mlx5_address address = epw_mlx5_address_of(b->adapter);
        address.ethernet = infiniband == 1;
        is_refused(epw_mlx5_pair_connect(b->pair, 0x54321, &address, UINT64_C(10000000000), where),
                   EPW_ERR_NO_PATH, texts[infiniband]);
        take_down(b);
        free(b);
    }
}

/* As the kernel refuses them: a region without bytes, and one whose offsets are not those of its pages. */
static void a_region_that_the_kernel_does_not_take_is_refused(void) {
    bench *b = new_bench();
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    epw_keys keys = {0};
    epw_region region = {
        .base = b->memory + 64, .rights = EPW_REGION_WRITE, .count = 1, .stretches = {{0, 4096}}};
    is_refused(epw_mlx5_register(b->adapter, &region, where, &keys), EPW_ERR_SYSTEM,
               "test: rank 3: fake_0 does not register 4096 bytes: Invalid argument (errno 22)");
    region.base = b->memory;
    region.stretches[0].bytes = 0;
    is_refused(epw_mlx5_register(b->adapter, &region, where, &keys), EPW_ERR_SYSTEM,
               "test: rank 3: fake_0 does not register 0 bytes: Invalid argument (errno 22)");
    take_down(b);
    free(b);
}

/* ---- two of them ---- */

/* Writes a word by an entry in the ring that the commands have named, and waits until it is done or has
 * failed. */
static bool send_word(bench *from, const bench *to, uint64_t index, uint64_t value) {
    const epw_pair_memory *memory = epw_mlx5_pair_memory(from->pair);
    static uint64_t marks[DEPTH];
    memset(marks, 0, sizeof marks);
    epw_queue queue = {
        .entries = (epw_entry_block *)memory->entries,
        .marks = marks,
        .record = memory->record,
        .doorbell = memory->doorbell,
        .completions = {.entry = (const uint32_t *)(const void *)memory->completion, .done = index},
        .depth = DEPTH,
        .pair = epw_mlx5_pair_number(from->pair),
        .batch = 1,
        .reserved = index,
        .bell = index << EPW_BELL_COUNT_SHIFT};
    epw_queue_fault fault;
    uint64_t at = index;
    CHECK(epw_queue_try_reserve(&queue, 1, &at) && at == index);
    epw_entry_write_word(epw_queue_slot(&queue, at), queue.pair, at,
                         (epw_place_of){64, epw_key_of(to->window.its)}, value, EPW_SIGNAL_ALWAYS);
    epw_queue_publish(&queue, at, 1);
    CHECK(epw_queue_ring(&queue, true));
    epw_mlx5_pair_ring(from->pair);
    for (int ms = 0; ms < 10000 && !epw_queue_is_done(&queue, index + 1); ms++) {
        if (epw_queue_failed(&queue, &fault)) return false;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return epw_queue_is_done(&queue, index + 1);
}

static void open_side(bench *b, uint32_t rank, const epw_fake_options *asked, int fd, uint64_t *link) {
    epw_mlx5_pair_options options = {.depth = DEPTH, .broken = broken, .context = b};
    CHECK_OK(epw_nic_open(where, &b->nic));
    CHECK_OK(epw_nic_add_link(b->nic, fd, 1 - rank, where, link));
    epw_fake_options fake = *asked;
    fake.rank = rank;
    fake.nic = b->nic;
    CHECK_OK(epw_fake_open(&fake, where, &b->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
    CHECK_OK(make_memory(b));
    CHECK_OK(epw_mlx5_pair_create(b->adapter, &options, where, &b->pair));
}

/* `misled`: the link leads to another address than the one to which the pair is connected. */
static void join(bench *from, const bench *to, uint64_t link, bool misled) {
    epw_mlx5_address address = epw_mlx5_address_of(to->adapter);
    epw_fake_route route = {
        .lid = address.lid + misled, .remote = epw_mlx5_pair_number(to->pair), .link = link};
    memcpy(route.gid, address.gid, sizeof route.gid);
    route.gid[15] ^= misled;
    epw_fake_add_route(from->fake, epw_mlx5_pair_number(from->pair), &route);
    CHECK_OK(epw_mlx5_pair_connect(from->pair, route.remote, &address, UINT64_C(10000000000), where));
}

static uint64_t word_of(const bench *b) {
    uint64_t word;
    memcpy(&word, b->memory + 64, sizeof word);
    return word;
}

/* `silent`: nothing but the completion of an entry reports that a queue pair has ended. */
static void words_travel_between_two(bool infiniband, bool misled, bool silent) {
    const epw_fake_options options = {.infiniband = infiniband,
                                      .lacks = silent ? UINT64_C(1) << EPW_FAKE_NO_PAIR_EVENTS : 0};
    bench *a = new_bench(), *b = new_bench();
    int fds[2];
    uint64_t links[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    open_side(a, 0, &options, fds[0], &links[0]);
    open_side(b, 1, &options, fds[1], &links[1]);
    join(a, b, links[0], misled);
    join(b, a, links[1], false);
    CHECK(send_word(a, b, 0, 4711) == !misled);
    CHECK(epw_mlx5_pair_broken(a->pair) == misled);
    for (int ms = 0; ms < 10000 && misled && !silent && !atomic_load(&a->broken); ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    /* Of a silent end the thread that watches the adapter may or may not have learnt by now. */
    if (!misled || !silent) CHECK(atomic_load(&a->broken) == misled);
    CHECK(word_of(b) == (misled ? 0 : 4711));
    /* After b has closed its pair, a's pair breaks, and nothing is placed. */
    epw_mlx5_pair_close(b->pair);
    CHECK(epw_mlx5_pair_is_closed(b->pair) && !epw_mlx5_pair_broken(b->pair));
    if (!misled) CHECK(!send_word(a, b, 1, 4712) && epw_mlx5_pair_broken(a->pair));
    CHECK(word_of(b) == (misled ? 0 : 4711));
    take_down(a);
    take_down(b);
    free(a);
    free(b);
}

/* A queue pair that the adapter does not destroy still writes what arrives. Once its region is deregistered,
 * it does not, so whoever is let into that place is alone there. */
static void a_queue_pair_that_stays_writes_to_no_region_that_is_gone(void) {
    bench *a = new_bench(), *b = new_bench();
    int fds[2];
    uint64_t links[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    open_side(a, 0, &(epw_fake_options){0}, fds[0], &links[0]);
    open_side(b, 1, &(epw_fake_options){0}, fds[1], &links[1]);
    join(a, b, links[0], false);
    join(b, a, links[1], false);
    unsigned char *pages = epw_mlx5_pair_memory(b->pair)->completion;
    epw_fake_fail(b->fake, EPW_FAKE_CALL_DESTROY, 0, EIO, true);
    CHECK(!epw_mlx5_pair_destroy(b->pair));
    b->pair = NULL;
    CHECK(send_word(a, b, 0, 4711) && word_of(b) == 4711);
    epw_mlx5_deregister(b->adapter, b->window.own);
    b->window.own = 0;
    CHECK(!send_word(a, b, 1, 4712) && epw_mlx5_pair_broken(a->pair) && word_of(b) == 4711);
    take_down(a);
    epw_mlx5_deregister(b->adapter, b->image.own);
    epw_mlx5_close(b->adapter);
    epw_fake_left left = epw_fake_count(b->fake);
    CHECK(left.objects == 2 && left.regions == 0);
    epw_fake_close(b->fake);
    epw_nic_close(b->nic);
    munmap(pages, epw_mlx5_pair_memory_bytes(DEPTH));
    free(a);
    free(b);
}

int main(void) {
    for (int i = 0; i < 8; i++) words_travel_between_two(i % 2 == 1, i / 2 % 2 == 1, i / 4 == 1);
    a_queue_pair_that_stays_writes_to_no_region_that_is_gone();
    a_queue_pair_goes_up_step_by_step();
    a_queue_pair_is_stopped_from_every_state();
    a_queue_pair_that_was_never_connected_closes();
    each_command_comes_by_its_own_call_alone();
    a_bit_that_is_wrong_is_refused();
    what_is_in_use_is_not_given_back();
    events_of_the_device_end_its_queue_pairs();
    what_breaks_a_queue_pair_stops_it();
    words_are_seen_by_who_looks();
    the_nearest_of_several_adapters_is_chosen();
    options_reach_the_command();
    a_device_has_no_part_in_another_ones_objects();
    an_address_that_is_none_is_refused();
    a_peer_on_the_other_kind_of_link_is_refused();
    a_region_that_the_kernel_does_not_take_is_refused();
    return check_result("mlx5_adapter");
}
