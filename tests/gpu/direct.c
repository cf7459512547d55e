/* Peers behind an adapter that write to a window on a GPU, without an inbox (c/peer/direct.h). The adapters
 * are in software, fakes or with EPW_TEST_WIRE=verbs those of Soft-RoCE, and reach only memory that the host
 * can access: so an emulated GPU's, while a real GPU shows what the library does if none is reached. Also
 * what it does if kernels cannot write an adapter's registers. Each case is a process of its own; its ranks
 * are buffers of one thread. `--case NAME` runs one. Exit code 77, with the reason, if there is no such GPU.
 */
#include "cases.h"
#include "echo.h"
#include "device/gpus.h"
#include "ep/buffer.h"
#include "nic/fabric.h"
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

/* ---- what the log says ---- */

/* Lines of the log about NICs. */
enum { LINES = 16 };
static struct {
    uint32_t count;
    uint32_t ranks[LINES], levels[LINES];
    char texts[LINES][512];
} logged;

static void hear(void *context, const epw_log_record *record) {
    (void)context;
    REQUIRE(logged.count < LINES, "more than %d lines: %s", LINES, record->text);
    if (strstr(record->text, "queues drained by ") != NULL) return;
    logged.ranks[logged.count] = (uint32_t)record->rank;
    logged.levels[logged.count] = record->level;
    snprintf(logged.texts[logged.count++], sizeof logged.texts[0], "%s", record->text);
}

static void log_from(const char *levels) {
    logged.count = 0;
    REQUIRE_OK(epw_log_set(levels, hear, NULL));
}

/* Each of the two ranks has logged a line that begins so and contains the reason, once, for its two lanes and
 * its buffer. */
static void require_logged(uint32_t level, const char *begins, const char *reason) {
    for (uint32_t rank = 0; rank < 2; rank++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < logged.count; i++)
            count += logged.ranks[i] == rank && logged.levels[i] == level &&
                     strncmp(logged.texts[i], begins, strlen(begins)) == 0 &&
                     strstr(logged.texts[i], reason) != NULL;
        for (uint32_t i = 0; i < logged.count && count != 1; i++)
            fprintf(stderr, "rank %u, level %u: %s\n", logged.ranks[i], logged.levels[i], logged.texts[i]);
        REQUIRE(count == 1, "rank %u has logged %u times: %s ... %s", rank, count, begins, reason);
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

/* `says`: what each rank says of it; NULL: not looked at. */
static void arrives_as(const char *way, const char *says) {
    static echo e;
    epw_config config = config_of();
    skip_unless_reached();
    log_from("nic=info");
    echo_open(&e, &config, 1);
    require_direct(&e);
    require_said(&e.rank[0], way);
    if (says != NULL)
        require_logged(EPW_LOG_INFO, strcmp(getenv("EPW_TEST_NIC"), "fakes") == 0 ? "fake_0" : "rxe", says);
    REQUIRE_OK(epw_log_set(NULL, NULL, NULL));
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
    arrives_as(", peers write to GPU memory by dma-buf", NULL);
}

static void by_address(uint32_t gpus) {
    (void)gpus;
    setenv("EMULATED_GPU_NO_DMABUF", "1", 1);
    arrives_as(", peers write to GPU memory by nvidia_peermem",
               " reaches the GPU's memory by its address (nvidia_peermem), not by dma-buf (errno 95)");
}

/* ---- where it cannot ---- */

static void falls_back(echo *e, const char *error, const char *said) {
    epw_config config = config_of();
    config.lanes = 2;
    REQUIRE(!can_be_reached(error), "a GPU that must not be written is");
    ask_for("auto");
    log_from("nic=warn");
    echo_open(e, &config, 1);
    for (uint32_t i = 0; i < 2; i++) {
        REQUIRE(e->rank[i].buffer->peers.inbox != NULL && e->rank[i].buffer->peers.direct == NULL,
                "rank %u has no inbox", i);
        require_said(&e->rank[i], said);
    }
    require_logged(EPW_LOG_WARN, "peers write to host memory, not to the GPU's: ", error);
    whole_step(e, 1, "by an inbox");
    REQUIRE_OK(epw_buffer_probe(e->rank[0].buffer, 1, 2000 * MS));
}

/* On an emulated GPU; a real one, whose memory no adapter in software reaches, is unreached. */
static void unordered(uint32_t gpus) {
    static echo e;
    (void)gpus;
    skip_unless_reached();
    setenv("EMULATED_GPU_UNORDERED", "1", 1);
    falls_back(&e, "peers cannot write to GPU memory by ",
               ", peers write to host memory because the GPU's keeps no order");
    REQUIRE(logged.count == 2, "%u lines: %s", logged.count, logged.texts[0]);
    echo_close(&e);
}

static bool is_emulated(void) {
    struct cudaDeviceProp properties;
    REQUIRE_CUDA(cudaGetDeviceProperties(&properties, 0));
    return strncmp(properties.name, "emulated ", strlen("emulated ")) == 0;
}

/* Nothing goes the best way: neither what peers send nor, with an adapter's own queues, entries, rows and
 * doorbells. */
static void unreached(uint32_t gpus) {
    static echo e;
    (void)gpus;
    setenv("EMULATED_GPU_UNREACHED", "1", 1);
    setenv("EMULATED_GPU_NO_REGISTERS", "1", 1);
    falls_back(&e, " cannot let peers write to GPU memory, neither by dma-buf ",
               ", peers write to host memory because it does not reach the GPU's");
    bool has_registers = epw_fabric_adapter(e.rank[0].config.fabric, 0) != NULL;
    if (has_registers) {
        require_logged(EPW_LOG_WARN, "kernels post to host memory, not to the GPU's: fake_",
                       " reaches no ring in GPU memory, neither by dma-buf (errno ");
        require_logged(EPW_LOG_WARN, "kernels send rows from host memory, not from the GPU's: fake_",
                       " cannot send rows from GPU memory, neither by dma-buf (errno ");
    }
    if (has_registers && is_emulated()) {
        require_logged(EPW_LOG_WARN, "a thread of the host rings for kernels: ",
                       "the GPU's driver does not map the adapter's doorbell registers for kernels (");
        REQUIRE(logged.count == 2 * 4, "%u lines", logged.count);
    }
    echo_close(&e);
}

/* ---- what the doctor says ---- */

typedef struct finding {
    uint32_t verdict;
    const char *name, *text, *remedy;
} finding;

static void require_found(const char *when, const finding *expected, size_t count) {
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t found = epw_mlx5_probe_fake(0, 0, all);
    for (size_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < found && strcmp(all[at].name, expected[i].name) != 0) at++;
        REQUIRE(at < found, "%s: nothing of %s", when, expected[i].name);
        REQUIRE(all[at].verdict == expected[i].verdict && strcmp(all[at].text, expected[i].text) == 0 &&
                    strcmp(all[at].remedy, expected[i].remedy) == 0,
                "%s: %s: %u, %s -> %s", when, all[at].name, all[at].verdict, all[at].text, all[at].remedy);
    }
}

/* The lines of tests/doctor/fake_gpu.txt, the doctor's report of this machine, are those findings. */
static void require_report(void) {
    static const char *const verdicts[] = {"ok", "unknown", "warning", "missing"};
    char path[512], line[1024], expected[1024], remedy[1024] = "";
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t found = epw_mlx5_probe_fake(0, 0, all), at = 0;
    epw_gpu_facts gpu;
    char facts[256];
    bool same_gpu = false;
    REQUIRE_OK(epw_gpu_look(0, 2, &gpu));
    REQUIRE(gpu.dma_buf && gpu.access == 2 && gpu.atomics == 2, "another GPU than in the report");
    snprintf(facts, sizeof facts, "%s, %llu GiB, compute capability %u.%u, at %s", gpu.name,
             (unsigned long long)(gpu.memory_bytes >> 30), gpu.major, gpu.minor, gpu.bus);
    const char *own = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../doctor/fake_gpu.txt", (int)(own - __FILE__), __FILE__);
    FILE *report = fopen(path, "r");
    REQUIRE(report != NULL, "no %s", path);
    while (fgets(line, sizeof line, report) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (*remedy != '\0') {
            const char *said = strstr(line, "-> ");
            REQUIRE(said != NULL && strcmp(said, remedy) == 0, "%s, not %s", line, remedy);
            *remedy = '\0';
        }
        same_gpu |= strstr(line, facts) != NULL;
        if (strstr(line, "  fake_0 ") == NULL) continue;
        const epw_probe_finding *f = &all[at++];
        REQUIRE(at <= found, "there is no finding for %s", line);
        snprintf(expected, sizeof expected, "  %-7s  fake_0 %.*s", verdicts[f->verdict], EPW_PROBE_NAME,
                 f->name);
        REQUIRE(strncmp(line, expected, strlen(expected)) == 0, "%s, not %s", line, expected);
        const char *text = line + strlen(expected) + strspn(line + strlen(expected), " ");
        REQUIRE(strcmp(text, f->text) == 0, "%s, not %s", line, f->text);
        if (*f->remedy != '\0') snprintf(remedy, sizeof remedy, "-> %.*s", EPW_PROBE_REMEDY, f->remedy);
    }
    fclose(report);
    REQUIRE(same_gpu, "nothing of %s", facts);
    REQUIRE(at == found, "%u lines, %u findings", at, found);
}

static void doctor(uint32_t gpus) {
    static const char auto_does[] = "EPWIRE_RINGS=host, or auto, which does so by itself";
    static const finding unmapped = {
        EPW_PROBE_WARNING, "doorbells by kernels",
        "the GPU's driver does not map the adapter's doorbell registers for kernels "
        "(cudaErrorNotPermitted): load it with PeerMappingOverride=1, or let a thread of the host ring "
        "(EPWIRE_DOORBELLS=host)",
        ""};
    static const finding without_order = {
        EPW_PROBE_WARNING, "GPU windows",
        "peers write to host memory: the GPU does not keep the order of an adapter's writes "
        "(GPU_DIRECT_RDMA_WRITES_ORDERING)",
        auto_does};
    static const finding unreached_ones[] = {
        {EPW_PROBE_WARNING, "GPU rings by dma-buf", "not registered (errno 95)",
         "Linux 6.0 or newer with the open GPU kernel modules"},
        {EPW_PROBE_WARNING, "GPU rings by nvidia_peermem", "not registered (errno 14)",
         "modprobe nvidia_peermem"},
        {EPW_PROBE_WARNING, "GPU windows by dma-buf", "not registered (errno 95)",
         "Linux 5.12 or newer with the open GPU kernel modules"},
        {EPW_PROBE_WARNING, "GPU windows by nvidia_peermem", "not registered (errno 14)",
         "modprobe nvidia_peermem"},
        {EPW_PROBE_WARNING, "GPU windows",
         "peers write to host memory: the adapter registers none of the GPU's", auto_does}};
    (void)gpus;
    if (!is_emulated()) {
        printf("ignored: an adapter in software does not reach this GPU\n");
        exit(EXIT_SKIPPED);
    }
    require_report();
    setenv("EMULATED_GPU_NO_REGISTERS", "1", 1);
    require_found("unmapped", &unmapped, 1);
    setenv("EMULATED_GPU_UNORDERED", "1", 1);
    require_found("without order", &without_order, 1);
    setenv("EMULATED_GPU_UNREACHED", "1", 1);
    require_found("unreached", unreached_ones, sizeof unreached_ones / sizeof unreached_ones[0]);
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

static const gpu_case cases[] = {
    {"by_descriptor", by_descriptor, 1, 60}, {"by_address", by_address, 1, 60},
    {"unordered", unordered, 1, 60},         {"unreached", unreached, 1, 60},
    {"registers", registers, 1, 60},         {"doctor", doctor, 1, 60},
};

int main(int argc, char **argv) {
    return cases_main("direct", cases, sizeof cases / sizeof cases[0], argc, argv);
}
