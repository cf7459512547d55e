/* Peers behind an adapter that write to a window on a GPU, without an inbox (c/peer/direct.h). The adapters
 * are in software, fakes or with EPW_TEST_WIRE=verbs those of Soft-RoCE, and reach only memory that the host
 * can access: so an emulated GPU's, while a real GPU shows what the library does if none is reached. Also
 * what it does if kernels cannot write an adapter's registers. Each case is a process of its own; its ranks
 * are buffers of one thread. `--case NAME` runs one. Exit code 77, with the reason, if there is no such GPU.
 */
#include "cases.h"
#include "echo.h"
#include "ep/buffer.h"
#include "nic/mlx5/probe.h"
#include "ranks.h"

#include <string.h>

static epw_config config_of(void) {
    epw_config config = EPW_CONFIG_INIT;
    config.ranks = 2;
    config.max_tokens = 128;
    config.hidden = 512;
    config.experts = 32;
    config.topk = 4;
    config.lanes = 1;
    config.deadline_ns = 10000 * MS;
    return config;
}

static void ask_for(const char *rings) {
    const char *wire = getenv("EPW_TEST_WIRE");
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", wire != NULL && strcmp(wire, "verbs") == 0 ? "soft" : "fakes", 1);
    setenv("EPW_TEST_RINGS", rings, 1);
}

static void require_said(const echo_rank *r, const char *words) {
    char text[EPW_FABRIC_TEXT];
    REQUIRE(strstr(epw_fabric_describe(r->config.fabric, text), words) != NULL, "%s, not %s", text, words);
}

/* Creates a buffer with EPW_RINGS_GPU; false: the adapter does not reach this GPU. */
static int can_be_reached(const char *otherwise) {
    epw_config config = config_of();
    epw_buffer *buffer = NULL;
    ask_for("gpu");
    ranks_path(&config);
    config.device = 0;
    epw_status status = epw_buffer_create(&config, &buffer);
    REQUIRE(status == EPW_OK || (status == EPW_ERR_NO_PATH && strstr(epw_last_error(), otherwise) != NULL),
            "%s", epw_last_error());
    epw_buffer_destroy(buffer);
    epw_fabric_destroy(config.fabric);
    return status == EPW_OK;
}

static void skip_unless_reached(void) {
    if (can_be_reached(" cannot let peers write to GPU memory, neither by dma-buf ")) return;
    printf("ignored: %s\n", epw_last_error());
    exit(EXIT_SKIPPED);
}

static void whole_step(echo *e, uint64_t seed, const char *what) {
    echo_fill(e, seed);
    echo_step(e);
    for (uint32_t i = 0; i < 2; i++) {
        echo_missing(&e->rank[i], 0, what);
        REQUIRE(echo_wrong(e, &e->rank[i], 3) == 0 && echo_miscounted(e, &e->rank[i], 3) == 0,
                "%s: %u tokens of rank %u are wrong, %u counts", what, echo_wrong(e, &e->rank[i], 3), i,
                echo_miscounted(e, &e->rank[i], 3));
    }
}

/* ---- where it arrives ---- */

/* A word of rank 1 in rank 0's window, and in its lines for the host. */
static uint64_t in_window(const echo *e, uint32_t lane, uint32_t word) {
    uint64_t value = 0;
    const unsigned char *own = epw_peers_own(&e->rank[0].buffer->peers);
    REQUIRE_CUDA(cudaMemcpy(&value, own + epw_word_offset(1, lane, word), sizeof value, cudaMemcpyDefault));
    return value;
}
static uint64_t in_lines(const echo *e, uint32_t lane, uint32_t word) {
    uint64_t value = 0;
    memcpy(&value, e->rank[0].buffer->peers.lines + epw_word_offset(1, lane, word), sizeof value);
    return value;
}

static void require_direct(const echo *e) {
    for (uint32_t i = 0; i < 2; i++) {
        const epw_peers *peers = &e->rank[i].buffer->peers;
        REQUIRE(peers->direct != NULL && peers->inbox == NULL && peers->inbox_memory == NULL,
                "rank %u has an inbox", i);
        epw_plan plan = EPW_PLAN_INIT;
        REQUIRE_OK(epw_plan_make(&e->rank[i].config, &plan));
        REQUIRE(plan.image_bytes > 0 && plan.inbox_bytes == 0, "an inbox of %llu bytes is planned",
                (unsigned long long)plan.inbox_bytes);
    }
}

/* The rows that rank 1 has sent lie in rank 0's window before any kernel of rank 0 has looked at them. */
static void require_rows_in_window(echo *e) {
    const epw_buffer *b = e->rank[0].buffer;
    const echo_rank *from = &e->rank[1];
    const size_t row_bytes = (size_t)b->config.hidden * 2;
    const epw_layout *l = &b->layout;
    uint64_t before = in_window(e, 0, EPW_WORD_DISPATCH), began = now_ns();
    unsigned char *slot = malloc(l->slot_bytes);
    REQUIRE(slot != NULL, "no memory");
    echo_fill(e, 2);
    echo_dispatch(&e->rank[1], ECHO_SEND);
    echo_settle(e, "sending");
    while (in_window(e, 0, EPW_WORD_DISPATCH) == before)
        REQUIRE(now_ns() - began < 2000 * MS, "the word of rank 1 does not arrive in the window");
    uint32_t rows = epw_word_value(in_window(e, 0, EPW_WORD_DISPATCH)), token;
    REQUIRE(rows > 0, "rank 1 sends no rows");
    for (uint32_t row = 0; row < rows; row++) {
        REQUIRE_CUDA(cudaMemcpy(slot, epw_peers_own(&b->peers) + epw_slot_offset(l, 0, 1, row), l->slot_bytes,
                                cudaMemcpyDefault));
        memcpy(&token, slot, sizeof token);
        REQUIRE(token < b->config.max_tokens &&
                    memcmp(slot + l->header_bytes, from->tokens + (size_t)token * b->config.hidden,
                           row_bytes) == 0,
                "row %u of %u is not in the window", row, rows);
    }
    free(slot);
    echo_dispatch(&e->rank[0], ECHO_BOTH);
    echo_dispatch(&e->rank[1], ECHO_RECEIVE);
    for (uint32_t i = 0; i < 2; i++) echo_combine(&e->rank[i], ECHO_BOTH);
    echo_settle(e, "the rest of the step");
    REQUIRE(echo_wrong(e, &e->rank[0], 3) == 0, "%u tokens are wrong", echo_wrong(e, &e->rank[0], 3));
}

/* Only words for the host go to the lines, and no others. */
static void require_words_apart(const echo *e) {
    for (uint32_t i = 0; i < 3; i++) {
        REQUIRE_OK(epw_buffer_probe(e->rank[0].buffer, 1, 2000 * MS));
        REQUIRE_OK(epw_buffer_probe(e->rank[1].buffer, 0, 2000 * MS));
    }
    for (uint32_t lane = 0; lane < 2; lane++)
        REQUIRE(in_lines(e, lane, EPW_WORD_PROBE) != 0 && in_window(e, lane, EPW_WORD_PROBE) == 0,
                "a word of the probe is in the window");
    REQUIRE(in_lines(e, 0, EPW_WORD_DISPATCH) == 0 && in_lines(e, 0, EPW_WORD_EPOCH) == 0 &&
                in_window(e, 0, EPW_WORD_EPOCH) != 0,
            "a word for kernels is in the lines");
}

/* A kernel that waits for a rank hears that it leaves; then another takes its place. */
static void leave_and_replace(echo *e) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    echo_fill(e, 3);
    uint64_t began = now_ns();
    echo_dispatch(&e->rank[0], ECHO_BOTH);
    epw_buffer_destroy(e->rank[1].buffer);
    e->rank[1].buffer = NULL;
    echo_settle(e, "a dispatch whose peer leaves");
    REQUIRE_OK(epw_outcome_read(e->rank[0].buffer, e->rank[0].handle, &outcome));
    REQUIRE(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_DROPPED,
            "missing %llx, cause %u", (unsigned long long)outcome.missing.bits[0], outcome.record.cause);
    REQUIRE(now_ns() - began < e->rank[0].config.deadline_ns / 2, "the farewell took %llu ms",
            (unsigned long long)((now_ns() - began) / MS));
    REQUIRE(in_window(e, 0, EPW_WORD_DROPPED) != 0 && in_lines(e, 0, EPW_WORD_DROPPED) == 0,
            "the farewell is not in the window");
    echo_combine(&e->rank[0], ECHO_BOTH);
    echo_settle(e, "its combine");
    echo_replace(e, 1, EPW_PATH_SELF | EPW_PATH_QUEUE, 3);
    require_direct(e);
}

static void arrives_as(const char *way) {
    static echo e;
    epw_config config = config_of();
    skip_unless_reached();
    echo_open(&e, &config, 1);
    require_direct(&e);
    require_said(&e.rank[0], way);
    whole_step(&e, 1, "a step");
    require_rows_in_window(&e);
    require_words_apart(&e);
    leave_and_replace(&e);
    whole_step(&e, 4, "with another rank 1");
    REQUIRE_OK(epw_buffer_probe(e.rank[0].buffer, 1, 2000 * MS));
    REQUIRE_OK(epw_buffer_probe(e.rank[1].buffer, 0, 2000 * MS));
    echo_close(&e);
}

static void by_descriptor(uint32_t gpus) {
    (void)gpus;
    arrives_as(", peers write to GPU memory by dma-buf");
}

static void by_address(uint32_t gpus) {
    (void)gpus;
    setenv("EMULATED_GPU_NO_DMABUF", "1", 1);
    arrives_as(", peers write to GPU memory by nvidia_peermem");
}

/* ---- where it cannot ---- */

static void falls_back(const char *error, const char *said) {
    static echo e;
    epw_config config = config_of();
    REQUIRE(!can_be_reached(error), "a GPU that must not be written is");
    ask_for("auto");
    echo_open(&e, &config, 1);
    for (uint32_t i = 0; i < 2; i++) {
        REQUIRE(e.rank[i].buffer->peers.inbox != NULL && e.rank[i].buffer->peers.direct == NULL,
                "rank %u has no inbox", i);
        require_said(&e.rank[i], said);
    }
    whole_step(&e, 1, "by an inbox");
    REQUIRE_OK(epw_buffer_probe(e.rank[0].buffer, 1, 2000 * MS));
    echo_close(&e);
}

/* On an emulated GPU; a real one, whose memory no adapter in software reaches, is unreached. */
static void unordered(uint32_t gpus) {
    (void)gpus;
    skip_unless_reached();
    setenv("EMULATED_GPU_UNORDERED", "1", 1);
    falls_back("peers cannot write to GPU memory by ",
               ", peers write to host memory because the GPU's keeps no order");
}

static void unreached(uint32_t gpus) {
    (void)gpus;
    if (can_be_reached(" cannot let peers write to GPU memory, neither by dma-buf ")) {
        printf("ignored: an adapter in software reaches this GPU\n");
        exit(EXIT_SKIPPED);
    }
    falls_back(" cannot let peers write to GPU memory, neither by dma-buf ",
               ", peers write to host memory because it does not reach the GPU's");
}

/* ---- registers that kernels cannot write ---- */

/* The ranks' fabrics are described alike. */
static void rings_by(const char *doorbells, int by_host) {
    static const char said[] = ", a thread of the host rings for kernels";
    static echo e;
    char text[EPW_FABRIC_TEXT];
    epw_config config = config_of();
    setenv("EPW_TEST_DOORBELLS", doorbells, 1);
    echo_open(&e, &config, 1);
    for (uint32_t i = 0; i < 2; i++) {
        int says = strstr(epw_fabric_describe(e.rank[i].config.fabric, text), said) != NULL;
        REQUIRE(says == by_host, "doorbells by %s: %s", doorbells, text);
    }
    for (uint64_t i = 0; i < 3; i++) whole_step(&e, 1 + i, doorbells);
    echo_close(&e);
}

/* Without EPW_DOORBELLS_GPU a thread of the host rings, and the description says so; with it the peer is not
 * connected. Only on an emulated GPU: a real one maps memory, which registers of adapters in software are. */
static void registers(uint32_t gpus) {
    (void)gpus;
    epw_config config = config_of();
    epw_buffer *buffer = NULL;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length = 0;
    skip_unless_reached();
    ask_for("host");
    rings_by("gpu", 0);
    rings_by("auto", 0);
    rings_by("host", 1);
    setenv("EMULATED_GPU_NO_REGISTERS", "1", 1);
    setenv("EPW_TEST_DOORBELLS", "gpu", 1);
    config.device = 0;
    ranks_path(&config);
    REQUIRE_OK(epw_buffer_create(&config, &buffer));
    epw_status status = epw_buffer_export(buffer, 1, blob, &length);
    REQUIRE(
        status == EPW_ERR_NO_PATH &&
            strcmp(epw_last_error(),
                   "export: rank 0: peer 1: the GPU's driver does not map the adapter's doorbell registers "
                   "for kernels (cudaErrorNotPermitted): load it with PeerMappingOverride=1, or let a thread "
                   "of the host ring (EPWIRE_DOORBELLS=host)") == 0,
        "%s: %s", epw_status_name(status), epw_last_error());
    epw_buffer_destroy(buffer);
    epw_fabric_destroy(config.fabric);
    rings_by("auto", 1);
    rings_by("host", 1);
}

/* ---- what the doctor finds ---- */

static void require_found(const char *name, uint32_t verdict, const char *text) {
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t count = epw_mlx5_probe_fake(0, 0, all), i = 0;
    while (i < count && strcmp(all[i].name, name) != 0) i++;
    REQUIRE(i < count, "no finding of %s", name);
    REQUIRE(all[i].verdict == verdict && strcmp(all[i].text, text) == 0, "%s: %u\n%s\nand not\n%s", name,
            all[i].verdict, all[i].text, text);
}

/* Memory that an emulated GPU has allocated has no descriptor. */
static void doctor(uint32_t gpus) {
    (void)gpus;
    ask_for("gpu");
    skip_unless_reached();
    require_found(
        "GPU memory by dma-buf", EPW_PROBE_WARNING,
        "the adapter cannot register GPU memory this way (errno 95): it needs Linux 6.0 and the open "
        "GPU kernel modules");
    require_found("GPU memory by nvidia_peermem", EPW_PROBE_OK,
                  "the adapter can register GPU memory this way");
    require_found("doorbells by kernels", EPW_PROBE_OK, "the GPU maps the register");
    setenv("EMULATED_GPU_NO_REGISTERS", "1", 1);
    require_found(
        "doorbells by kernels", EPW_PROBE_WARNING,
        "the GPU's driver does not map the adapter's doorbell registers for kernels "
        "(cudaErrorNotPermitted): load it with PeerMappingOverride=1, or let a thread of the host ring "
        "(EPWIRE_DOORBELLS=host)");
    require_found("queue pair", EPW_PROBE_OK, "a word sent to itself arrived");
}

static const gpu_case cases[] = {
    {"by_descriptor", by_descriptor, 1, 60}, {"by_address", by_address, 1, 60},
    {"unordered", unordered, 1, 60},         {"unreached", unreached, 1, 60},
    {"registers", registers, 1, 60},         {"doctor", doctor, 1, 60},
};

int main(int argc, char **argv) {
    return cases_main("direct", cases, sizeof cases / sizeof cases[0], argc, argv);
}
