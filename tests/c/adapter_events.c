/* Events of an adapter, as users see them: both ends give up the peer at once, and a text says why. */
#include "check.h"
#include "group.h"

#include "base/clock.h"
#include "nic/fabric.h"
#include "nic/mlx5/parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { RANKS_HERE = 2, DEADLINE_S = 20 };

#define ENDED_BY_PEER "the peer has ended its queue pair: see there why; connect it again"

/* What a queue pair that has stopped is sent: an adapter is silent then, the one in software refuses it,
 * which may be heard before the peer's report. */
#define REFUSED_BY_PEER "an entry for it failed: its remote key does not open its bytes"

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

typedef struct pair_of_ranks {
    epw_fabric *fabrics[RANKS_HERE];
    epw_buffer *buffers[RANKS_HERE];
} pair_of_ranks;

static pair_of_ranks open_two(void) {
    pair_of_ranks p;
    for (uint32_t r = 0; r < RANKS_HERE; r++) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.rank = r;
        options.nic = EPW_NIC_FAKE;
        options.adapter_count =
            2; /* lanes alternate between them; an event of either one breaks the connection */
        CHECK_OK(epw_fabric_create(&options, &p.fabrics[r]));
        epw_config config = config_of(r, RANKS_HERE);
        config.deadline_ns = UINT64_C(1000000000) * DEADLINE_S;
        config.fabric = p.fabrics[r];
        config.paths = EPW_PATH_QUEUE;
        CHECK_OK(epw_buffer_create(&config, &p.buffers[r]));
    }
    return p;
}

/* Connects two ranks without a membership, so nothing has been posted. */
static pair_of_ranks meet_two(void) {
    pair_of_ranks p = open_two();
    CHECK_OK(connect_to(p.buffers[0], 0, p.buffers[1], 1));
    CHECK_OK(connect_to(p.buffers[1], 1, p.buffers[0], 0));
    return p;
}

static pair_of_ranks connect_two(void) {
    pair_of_ranks p = meet_two();
    const epw_mask both = {{3}};
    for (uint32_t r = 0; r < RANKS_HERE; r++) CHECK_OK(epw_buffer_set_active(p.buffers[r], &both, 1, 0));
    return p;
}

static void end_two(pair_of_ranks p) {
    for (uint32_t r = 0; r < RANKS_HERE; r++) epw_buffer_destroy(p.buffers[r]);
    for (uint32_t r = 0; r < RANKS_HERE; r++) epw_fabric_destroy(p.fabrics[r]);
}

/* An operation without tokens still waits for the other rank. */
static epw_outcome dispatch_nothing(epw_buffer *buffer) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_handle handle;
    uint16_t x[8] = {0};
    int32_t ids[1] = {-1};
    in.topk = 1;
    in.x = x;
    in.topk_idx = ids;
    in.layout = EPW_RANK_MAJOR;
    uint32_t sources[RANKS_HERE];
    out.source_counts = sources;
    CHECK_OK(epw_dispatch(buffer, &in, &out, &handle, &outcome));
    return outcome;
}

static void the_peers_of_an_adapter_are_given_up(const epw_mlx5_event *event, bool moved, const char *said) {
    pair_of_ranks p = connect_two();
    char text[EPW_TROUBLE_TEXT];
    CHECK(*epw_buffer_trouble(p.buffers[0], 1, text) == '\0' &&
          *epw_buffer_trouble(p.buffers[0], 0, text) == '\0');
    if (moved) epw_fake_move(epw_fabric_fake(p.fabrics[0]));
    epw_fake_raise(epw_fabric_fake(p.fabrics[0]), 0, event);
    for (uint32_t r = 0; r < RANKS_HERE; r++) {
        uint64_t began = epw_now_ns();
        epw_outcome outcome = dispatch_nothing(p.buffers[r]);
        CHECK_MSG(epw_now_ns() - began < UINT64_C(500000000) * DEADLINE_S, "rank %u waited for its deadline",
                  r);
        CHECK(outcome.degraded && outcome.missing.bits[0] == 1u << (1 - r));
        CHECK_MSG(outcome.record.cause == EPW_CAUSE_LINK, "rank %u: cause %u", r, outcome.record.cause);
        epw_buffer_trouble(p.buffers[r], 1 - r, text);
        CHECK_MSG(r == 0 ? begins(text, said) : begins(text, ENDED_BY_PEER) || begins(text, REFUSED_BY_PEER),
                  "%s", text);
    }
    end_two(p);
}

/* The adapter of the peer reports nothing, and nothing that the peer has sent has failed. The connection
 * beside the queue pairs tells the peer, and each end keeps its own reason. */
static void a_peer_that_has_sent_nothing_hears_of_it(void) {
    pair_of_ranks p = meet_two();
    char texts[RANKS_HERE][EPW_TROUBLE_TEXT] = {"", ""};
    epw_fake_raise(epw_fabric_fake(p.fabrics[0]), 0, &(epw_mlx5_event){EPW_MLX5_EVENT_PORT_DOWN, 1});
    for (int ms = 0; ms < 10000 && !(*texts[0] != '\0' && *texts[1] != '\0'); ms++) {
        for (uint32_t r = 0; r < RANKS_HERE; r++) epw_buffer_trouble(p.buffers[r], 1 - r, texts[r]);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* time for any report that the peer sends back */
    epw_buffer_trouble(p.buffers[0], 1, texts[0]);
    CHECK_MSG(strncmp(texts[0], "port 1 of fake_0 is down", 24) == 0, "%s", texts[0]);
    CHECK_MSG(strcmp(texts[1], ENDED_BY_PEER) == 0, "%s", texts[1]);
    end_two(p);
}

/* The text of a communicator, and of a prefill buffer: `trouble` is theirs. */
static void await_text(const void *object, const char *(*trouble)(const void *, char *), const char *said) {
    char text[EPW_TROUBLE_TEXT] = "";
    for (int ms = 0; ms < 10000 && *trouble(object, text) == '\0'; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK_MSG(strncmp(text, said, strlen(said)) == 0, "%s", text);
}
static const char *trouble_of_comm(const void *comm, char *text) {
    return epw_comm_trouble(comm, 1, text);
}
static const char *trouble_of_prefill(const void *prefill, char *text) {
    return epw_prefill_trouble(prefill, 1, text);
}

static void others_hear_of_it_too(void) {
    epw_fabric *fabrics[RANKS_HERE];
    epw_comm *comms[RANKS_HERE];
    epw_prefill *prefills[RANKS_HERE];
    unsigned char blobs[2][RANKS_HERE][EPW_BLOB_MAX];
    size_t lengths[2][RANKS_HERE];
    for (uint32_t r = 0; r < RANKS_HERE; r++) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.rank = r;
        options.nic = EPW_NIC_FAKE;
        CHECK_OK(epw_fabric_create(&options, &fabrics[r]));
        epw_comm_config comm = EPW_COMM_CONFIG_INIT;
        comm.rank = r;
        comm.ranks = RANKS_HERE;
        comm.fabric = fabrics[r];
        comm.paths = EPW_PATH_QUEUE;
        CHECK_OK(epw_comm_create(&comm, &comms[r]));
        epw_prefill_config prefill = EPW_PREFILL_CONFIG_INIT;
        prefill.ep = config_of(r, RANKS_HERE);
        prefill.ep.ordered = prefill.ep.zero_copy = 0;
        prefill.ep.fabric = fabrics[r];
        prefill.ep.paths = EPW_PATH_QUEUE;
        CHECK_OK(epw_prefill_create(&prefill, &prefills[r]));
        for (int i = 0; i < 2; i++) lengths[i][r] = EPW_BLOB_MAX;
        CHECK_OK(epw_comm_export(comms[r], 1 - r, blobs[0][r], &lengths[0][r]));
        CHECK_OK(epw_prefill_export(prefills[r], 1 - r, blobs[1][r], &lengths[1][r]));
    }
    for (uint32_t r = 0; r < RANKS_HERE; r++) {
        CHECK_OK(epw_comm_connect(comms[r], 1 - r, blobs[0][1 - r], lengths[0][1 - r]));
        CHECK_OK(epw_prefill_connect(prefills[r], 1 - r, blobs[1][1 - r], lengths[1][1 - r]));
    }
    char text[EPW_TROUBLE_TEXT];
    CHECK(*epw_comm_trouble(comms[0], 1, text) == '\0' && *epw_prefill_trouble(prefills[0], 1, text) == '\0');
    epw_fake_raise(epw_fabric_fake(fabrics[0]), 0, &(epw_mlx5_event){EPW_MLX5_EVENT_PORT_DOWN, 1});
    await_text(comms[0], trouble_of_comm, "port 1 of fake_0 is down");
    await_text(prefills[0], trouble_of_prefill, "port 1 of fake_0 is down");
    for (uint32_t r = 0; r < RANKS_HERE; r++) {
        epw_comm_destroy(comms[r]);
        epw_prefill_destroy(prefills[r]);
    }
    for (uint32_t r = 0; r < RANKS_HERE; r++) epw_fabric_destroy(fabrics[r]);
}

/* Whether a queue pair of this rank has heard that its peer's has ended: the first to end closes the
 * connection for all. */
static bool has_heard_of_an_end(const epw_fabric *fabric) {
    bool heard = false;
    for (uint32_t i = 0; i < 2; i++) {
        epw_mlx5 *adapter = epw_fabric_adapter(fabric, i);
        pthread_mutex_lock(&adapter->pairs_lock);
        for (const epw_mlx5_pair *pair = adapter->pairs; pair != NULL; pair = pair->next)
            heard |= pair->other.ended != 0;
        pthread_mutex_unlock(&adapter->pairs_lock);
    }
    return heard;
}

/* Rank 0 connects its end and ends it, before rank 1 connects: it is refused at once. */
static void an_end_before_the_connection_is_not_forgotten(void) {
    pair_of_ranks p = open_two();
    unsigned char blobs[RANKS_HERE][EPW_BLOB_MAX];
    size_t lengths[RANKS_HERE] = {sizeof blobs[0], sizeof blobs[1]};
    for (uint32_t r = 0; r < RANKS_HERE; r++)
        CHECK_OK(epw_buffer_export(p.buffers[r], 1 - r, blobs[r], &lengths[r]));
    CHECK_OK(epw_buffer_connect(p.buffers[0], 1, blobs[1], lengths[1]));
    CHECK_OK(epw_buffer_disconnect(p.buffers[0], 1));
    for (int ms = 0; ms < 10000 && !has_heard_of_an_end(p.fabrics[1]); ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(has_heard_of_an_end(p.fabrics[1]));
    REFUSED(epw_buffer_connect(p.buffers[1], 0, blobs[0], lengths[0]), EPW_ERR_PEER, "connect", 1, 0,
            "export again");
    end_two(p);
}

typedef struct asker {
    pair_of_ranks *of;
    atomic_bool may_end;
} asker;

static void *ask_for_trouble(void *argument) {
    asker *a = argument;
    char text[EPW_TROUBLE_TEXT];
    while (!atomic_load(&a->may_end)) {
        for (uint32_t r = 0; r < RANKS_HERE; r++) {
            epw_buffer_trouble(a->of->buffers[r], 1 - r, text);
            CHECK_MSG(*text == '\0', "%s", text);
        }
    }
    return NULL;
}

/* A queue pair whose connection is just being noted is not taken for one whose connection is gone. The moment
 * is short, so this finds a wrong order only by chance; with plain fields ThreadSanitizer found the race each
 * time. */
static void who_asks_while_they_connect_breaks_nothing(void) {
    for (int round = 0; round < 20; round++) {
        pair_of_ranks p = open_two();
        asker a = {.of = &p};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ask_for_trouble, &a) == 0);
        CHECK_OK(connect_to(p.buffers[0], 0, p.buffers[1], 1));
        CHECK_OK(connect_to(p.buffers[1], 1, p.buffers[0], 0));
        atomic_store(&a.may_end, true);
        CHECK(pthread_join(thread, NULL) == 0);
        for (uint32_t r = 0; r < RANKS_HERE; r++)
            CHECK_OK(epw_buffer_probe(p.buffers[r], 1 - r, UINT64_C(10000000000)));
        end_two(p);
    }
}

/* For example, another interface gets a new address. */
static void what_does_not_concern_it_changes_nothing(void) {
    pair_of_ranks p = connect_two();
    char text[EPW_TROUBLE_TEXT];
    epw_fake_raise(epw_fabric_fake(p.fabrics[0]), 0, &(epw_mlx5_event){EPW_MLX5_EVENT_GIDS, 1});
    epw_fake_raise(epw_fabric_fake(p.fabrics[0]), 0, &(epw_mlx5_event){EPW_MLX5_EVENT_PORT_DOWN, 2});
    CHECK_OK(epw_buffer_probe(p.buffers[0], 1, UINT64_C(10000000000)));
    CHECK_OK(epw_buffer_probe(p.buffers[1], 0, UINT64_C(10000000000)));
    CHECK(*epw_buffer_trouble(p.buffers[0], 1, text) == '\0');
    end_two(p);
}

/* Each rank sends a row on each lane: keys and staging memory must be those of the lane's adapter. */
static void rows_travel_by_both_adapters(void) {
    pair_of_ranks p = connect_two();
    static const uint16_t x[HIDDEN] = {[0] = 0x3f80, [HIDDEN - 1] = 0x4000};
    epw_handle handles[2][RANKS_HERE];
    for (int lane = 0; lane < 2; lane++) {
        for (uint32_t r = 0; r < RANKS_HERE; r++) {
            epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
            const int32_t expert[1] = {r == 0 ? EXPERTS - 1 : 0};
            in.tokens = in.topk = 1;
            in.x = x;
            in.topk_idx = expert;
            in.layout = EPW_RANK_MAJOR;
            CHECK_OK(epw_dispatch(p.buffers[r], &in, NULL, &handles[lane][r], NULL));
        }
    }
    for (int lane = 0; lane < 2; lane++) {
        for (uint32_t r = 0; r < RANKS_HERE; r++) {
            static uint16_t rows[RANKS_HERE * TOKENS * HIDDEN];
            uint32_t sources[RANKS_HERE] = {0};
            epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
            epw_outcome outcome = EPW_OUTCOME_INIT;
            memset(rows, 0, sizeof rows);
            out.rows = rows;
            out.source_counts = sources;
            CHECK_OK(epw_dispatch_receive(p.buffers[r], handles[lane][r], &out, &outcome));
            CHECK_MSG(!outcome.degraded && sources[1 - r] == 1 && sources[r] == 0, "lane %d: %u, %u", lane,
                      sources[0], sources[1]);
            CHECK(memcmp(rows + (size_t)(1 - r) * TOKENS * HIDDEN, x, sizeof x) == 0);
        }
    }
    for (int lane = 0; lane < 2; lane++)
        for (uint32_t r = 0; r < RANKS_HERE; r++) CHECK_OK(epw_release(p.buffers[r], handles[lane][r]));
    end_two(p);
}

int main(void) {
    rows_travel_by_both_adapters();
    the_peers_of_an_adapter_are_given_up(&(epw_mlx5_event){EPW_MLX5_EVENT_PORT_DOWN, 1}, false,
                                         "port 1 of fake_0 is down");
    the_peers_of_an_adapter_are_given_up(&(epw_mlx5_event){EPW_MLX5_EVENT_FATAL, 0}, false,
                                         "fake_0 has failed");
    the_peers_of_an_adapter_are_given_up(&(epw_mlx5_event){EPW_MLX5_EVENT_GIDS, 1}, true,
                                         "port 1 of fake_0 has lost the address");
    a_peer_that_has_sent_nothing_hears_of_it();
    others_hear_of_it_too();
    an_end_before_the_connection_is_not_forgotten();
    what_does_not_concern_it_changes_nothing();
    who_asks_while_they_connect_breaks_nothing();
    return check_result("adapter_events");
}
