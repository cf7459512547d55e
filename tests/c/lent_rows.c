/* Rows that queues send directly from the caller's memory: when the call returns the caller may write it
 * again, whatever the peers do. */
#include "check.h"
#include "base/clock.h"
#include "epwire.h"
#include "nic/fabric.h"
#include "nic/soft/strict.h"
#include "peer/remote.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, TOKENS = 300, HIDDEN = 8192, ROUNDS = 4, ROW_BYTES = 2 * HIDDEN };

#define MS UINT64_C(1000000)

static unsigned char blobs[RANKS][RANKS][EPW_BLOB_MAX];
static size_t lengths[RANKS][RANKS];
static pthread_barrier_t barrier;
static uint64_t deadline_ns;
static bool freezes; /* freezes rank 0's connection before all its rows are sent */

/* The value of a byte of each row. */
static unsigned char value(uint32_t round, uint32_t rank, uint32_t token) {
    return (unsigned char)(round * 101 + rank * 53 + token + 1);
}

static bool is_filled(const unsigned char *row, unsigned char with) {
    for (uint32_t i = 0; i < ROW_BYTES; i++)
        if (row[i] != with) return false;
    return true;
}

/* Each token goes to both ranks. After the call the lent memory is overwritten at once, and unmapped. */
static void dispatch(epw_buffer *buffer, uint32_t rank, uint32_t round, unsigned char *rows) {
    unsigned char *x = malloc((size_t)TOKENS * ROW_BYTES);
    int32_t ids[TOKENS][2];
    for (uint32_t t = 0; t < TOKENS; t++) {
        memset(x + (size_t)t * ROW_BYTES, value(round, rank, t), ROW_BYTES);
        ids[t][0] = 0;
        ids[t][1] = 1;
    }
    uint32_t sources[RANKS];
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = TOKENS;
    in.x = x;
    in.topk_idx = ids;
    in.topk = 2;
    in.layout = EPW_RANK_MAJOR;
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.rows = rows;
    out.source_counts = sources;
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_dispatch(buffer, &in, &out, &handle, &outcome));
    memset(x, 0, (size_t)TOKENS * ROW_BYTES);
    free(x);
    for (uint32_t s = 0; s < RANKS; s++) {
        CHECK_MSG(sources[s] == TOKENS || (freezes && s != rank), "round %u: %u rows of rank %u", round,
                  sources[s], s);
        for (uint32_t t = 0; t < sources[s]; t++)
            CHECK_MSG(is_filled(rows + ((size_t)s * TOKENS + t) * ROW_BYTES, value(round, s, t)),
                      "round %u: row %u of rank %u is another", round, t, s);
    }
    CHECK_OK(epw_release(buffer, handle));
}

static void *rank_main(void *argument) {
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    epw_fabric *fabric = NULL;
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.rank = rank;
    CHECK_OK(epw_fabric_create(&options, &fabric));
    epw_where where = {"lent", (int)rank, -1};
    CHECK_OK(epw_nic_be_strict(epw_fabric_nic(fabric), rank, 200, where));
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = RANKS;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.experts = RANKS;
    config.topk = 2;
    config.threads = 1;
    config.lanes = 1;
    config.fabric = fabric;
    config.paths = EPW_PATH_QUEUE;
    config.deadline_ns = deadline_ns;
    epw_buffer *buffer = NULL;
    CHECK_OK(epw_buffer_create(&config, &buffer));
    CHECK_OK(epw_buffer_export(buffer, 1 - rank, blobs[rank][1 - rank], &lengths[rank][1 - rank]));
    pthread_barrier_wait(&barrier);
    CHECK_OK(epw_buffer_connect(buffer, 1 - rank, blobs[1 - rank][rank], lengths[1 - rank][rank]));
    pthread_barrier_wait(&barrier);
    epw_mask all = {{3}};
    CHECK_OK(epw_buffer_set_active(buffer, &all, 1, 0));
    pthread_barrier_wait(&barrier);
    /* The NIC's first queue pair is that of the lane to the other rank. */
    epw_fault fault = {.kind = EPW_FAULT_FREEZE, .pair = 1 << 16, .index = 100};
    unsigned char *rows = malloc((size_t)RANKS * TOKENS * ROW_BYTES);
    if (freezes && rank == 0) epw_nic_plan_fault(epw_fabric_nic(fabric), &fault);
    uint64_t began = epw_now_ns(), took;
    for (uint32_t round = 0; round < (freezes ? 1 : ROUNDS); round++) dispatch(buffer, rank, round, rows);
    took = epw_now_ns() - began;
    if (freezes)
        CHECK_MSG(took > deadline_ns / 2 && took < 4 * deadline_ns, "rank %u: %.1f ms", rank,
                  (double)took / MS);
    pthread_barrier_wait(&barrier);
    free(rows);
    epw_buffer_destroy(buffer);
    pthread_barrier_wait(&barrier);
    epw_fabric_destroy(fabric);
    return NULL;
}

/* An adapter registers memory from the beginning of a page on, but rows begin anywhere. */
static void rows_are_lent_wherever_they_lie(void) {
    static const uint32_t nics[] = {EPW_NIC_SOFT, EPW_NIC_FAKE};
    unsigned char *memory = aligned_alloc(1 << 16, 1 << 17);
    memset(memory, 0, 1 << 17);
    for (uint32_t i = 0; i < 2; i++) {
        epw_peers peers = {.rank = 0};
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.nic = nics[i];
        CHECK_OK(epw_fabric_create(&options, &peers.fabric));
        uint64_t first = 9;
        uint32_t key = epw_remotes_lend(&peers, 0, memory + 16, 1 << 16, &first);
        CHECK_MSG(key != 0 && first == 16, "NIC %u: key %u, first %llu: %s", nics[i], key,
                  (unsigned long long)first, epw_last_error());
        epw_remotes_take_back(&peers, 0, key);
        epw_fabric_destroy(peers.fabric);
    }
    free(memory);
}

static void run(uint64_t deadline, bool frozen) {
    pthread_t threads[RANKS];
    deadline_ns = deadline;
    freezes = frozen;
    for (uintptr_t r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, rank_main, (void *)r);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
}

int main(void) {
    rows_are_lent_wherever_they_lie();
    pthread_barrier_init(&barrier, NULL, RANKS);
    run(20000 * MS, false);
    KEEP_TIME(run(longer * 1000 * MS, true));
    return check_result("lent_rows");
}
