/* Queues to which kernels post and which software NICs drain, by themselves: how many entries per second, and
 * how long a word takes from a kernel to a kernel that waits for it, beside the floors of this machine: a
 * word from a kernel to the host and back, and the copy of a word into a GPU's memory. Two NICs of one
 * process, joined by the local wire; each end has its own GPU, or both share one. Exit code 77, with the
 * reason, if there is no GPU. */
#include "poster.h"
#include "require.h"

#include "nic/fabric.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 8, DEPTH = 1024, BATCH = 32, WINDOW_BYTES = 4096, ROUNDS = 2000, TRIES = 3 };

#define LIMIT_NS (UINT64_C(20000) * MS)

static const epw_where here = {"test", 0, -1};

/* ---- memory ---- */

/* Zeroed memory at the same address for the host and all GPUs. */
static void *pinned(size_t bytes) {
    void *at = NULL;
    REQUIRE_CUDA(cudaHostAlloc(&at, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(at, 0, bytes);
    return at;
}

/* Zeroed memory on the current GPU. */
static void *on_gpu(size_t bytes) {
    void *at = NULL;
    REQUIRE_CUDA(cudaMalloc(&at, bytes));
    REQUIRE_CUDA(cudaMemset(at, 0, bytes));
    return at;
}

static poster_result *result(void) {
    return on_gpu(sizeof(poster_result));
}

static double seconds(const poster_result *of, const char *what) {
    poster_result said;
    REQUIRE_CUDA(cudaMemcpy(&said, of, sizeof said, cudaMemcpyDeviceToHost));
    REQUIRE(said.late == 0, "%s: %u kernels or blocks gave up", what, said.late);
    return (double)(said.ended_ns - said.began_ns) * 1e-9;
}

/* ---- ends ---- */

typedef struct end {
    int gpu;
    cudaStream_t stream;
    epw_fabric *fabric;
    uint64_t *window;
    uint32_t key;
    epw_pair *pairs[PAIRS];
    epw_queue *queues; /* [PAIRS], on the GPU */
} end;

static epw_pair *open_pair(const end *e, uint32_t peer, epw_queue *queue) {
    unsigned char *ring = pinned(epw_pair_memory_bytes(DEPTH));
    epw_pair_options options = {.peer = peer, .key = e->key, .depth = DEPTH, .memory = ring, .polled = true};
    epw_pair *pair = NULL;
    REQUIRE_OK(epw_pair_create(epw_fabric_nic(e->fabric), &options, here, &pair));
    const epw_pair_memory *memory = epw_pair_memory_of(pair);
    *queue = (epw_queue){.entries = (epw_entry_block *)memory->entries,
                         .marks = on_gpu(DEPTH * sizeof(uint64_t)),
                         .record = memory->record,
                         .doorbell = memory->doorbell,
                         .completions.entry = (const uint32_t *)memory->completion,
                         .depth = DEPTH,
                         .pair = epw_pair_number(pair),
                         .batch = 1};
    return pair;
}

static void open_end(end *e, uint32_t rank, int gpu) {
    *e = (end){.gpu = gpu};
    REQUIRE_CUDA(cudaSetDevice(gpu));
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking));
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.rank = rank;
    REQUIRE_OK(epw_fabric_create(&options, &e->fabric));
    e->window = pinned(WINDOW_BYTES);
    epw_region region = {.base = (unsigned char *)e->window,
                         .rights = EPW_REGION_WRITE,
                         .count = 1,
                         .stretches = {{0, WINDOW_BYTES}}};
    e->key = epw_nic_register(epw_fabric_nic(e->fabric), &region);
    REQUIRE(e->key != 0, "no memory");
    epw_queue queues[PAIRS];
    for (int i = 0; i < PAIRS; i++) e->pairs[i] = open_pair(e, 1 - rank, &queues[i]);
    e->queues = on_gpu(sizeof queues);
    REQUIRE_CUDA(cudaMemcpy(e->queues, queues, sizeof queues, cudaMemcpyHostToDevice));
}

static void connect_to(const end *e, uint32_t peer, const end *other) {
    uint64_t link = 0;
    epw_fabric_address address = epw_fabric_address_of(other->fabric);
    REQUIRE_OK(epw_fabric_link(e->fabric, peer, &address, 5000 * MS, here, &link));
    for (int i = 0; i < PAIRS; i++) epw_pair_connect(e->pairs[i], link, epw_pair_number(other->pairs[i]));
}

/* Pinned and GPU memory is freed when the process ends. */
static void close_end(end *e) {
    for (int i = 0; i < PAIRS; i++) epw_pair_destroy(e->pairs[i]);
    epw_fabric_destroy(e->fabric);
}

/* ---- figures ---- */

static double nops_per_second(const end *e, uint32_t batches) {
    REQUIRE_CUDA(cudaSetDevice(e->gpu));
    poster_result *said = result();
    REQUIRE_CUDA(poster_nops(e->queues, PAIRS, batches, BATCH, LIMIT_NS, said, e->stream));
    await_stream(e->stream, 2 * LIMIT_NS, "NOPs");
    return (double)batches * BATCH * PAIRS / seconds(said, "NOPs");
}

/* Bounces words between the ends; returns the seconds one way. */
static double put_and_signal(end ends[2]) {
    poster_result *said[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_CUDA(cudaSetDevice(ends[i].gpu));
        memset(ends[i].window, 0, WINDOW_BYTES);
        said[i] = result();
    }
    for (int i = 1; i >= 0; i--) {
        poster_end end = {&ends[i].queues[0], epw_key_of(ends[1 - i].key), ends[i].window};
        REQUIRE_CUDA(cudaSetDevice(ends[i].gpu));
        REQUIRE_CUDA(poster_ping_pong(end, i == 0, ROUNDS, LIMIT_NS, said[i], ends[i].stream));
    }
    for (int i = 0; i < 2; i++) await_stream(ends[i].stream, 2 * LIMIT_NS, "words");
    (void)seconds(said[1], "words");
    return seconds(said[0], "words") / (2 * ROUNDS);
}

typedef struct bounce {
    uint64_t *from, *to;
} bounce;

static void *answer(void *argument) {
    const bounce *b = argument;
    uint64_t until = now_ns() + LIMIT_NS;
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        while (__atomic_load_n(b->from, __ATOMIC_ACQUIRE) < n)
            REQUIRE(now_ns() < until, "a kernel does not answer");
        __atomic_store_n(b->to, n, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Seconds of a round trip from a kernel to the host. */
static double there_and_back(const end *e) {
    pthread_t thread;
    REQUIRE_CUDA(cudaSetDevice(e->gpu));
    poster_result *said = result();
    bounce b = {pinned(64), pinned(64)};
    REQUIRE(pthread_create(&thread, NULL, answer, &b) == 0, "no thread");
    REQUIRE_CUDA(poster_bounce(b.from, b.to, ROUNDS, LIMIT_NS, said, e->stream));
    await_stream(e->stream, 2 * LIMIT_NS, "the host's answers");
    REQUIRE(pthread_join(thread, NULL) == 0, "no thread");
    return seconds(said, "the host's answers") / ROUNDS;
}

/* The same with the answer copied into the GPU's memory, in stream order. */
static double there_and_copied_back(const end *e) {
    REQUIRE_CUDA(cudaSetDevice(e->gpu));
    poster_result *said = result();
    uint64_t *from = pinned(64), *word = pinned(ROUNDS * sizeof *word), *to = on_gpu(64);
    cudaStream_t copies;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    for (uint64_t n = 0; n < ROUNDS; n++) word[n] = n + 1;
    REQUIRE_CUDA(
        cudaMemcpyAsync(to, from, sizeof *to, cudaMemcpyHostToDevice, copies)); /* the first is slow */
    REQUIRE_CUDA(cudaStreamSynchronize(copies));
    REQUIRE_CUDA(poster_bounce(from, to, ROUNDS, LIMIT_NS, said, e->stream));
    uint64_t until = now_ns() + LIMIT_NS;
    for (uint64_t n = 1; n <= ROUNDS; n++) {
        while (__atomic_load_n(from, __ATOMIC_ACQUIRE) < n)
            REQUIRE(now_ns() < until, "a kernel does not answer");
        REQUIRE_CUDA(cudaMemcpyAsync(to, &word[n - 1], sizeof *to, cudaMemcpyHostToDevice, copies));
    }
    await_stream(e->stream, 2 * LIMIT_NS, "copies");
    return seconds(said, "copies") / ROUNDS;
}

static double best_of(double a, double b) {
    return a < b ? a : b;
}

int main(void) {
    int gpus = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* lazy loading could wait for kernels that wait for a peer */
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("ignored: no GPU\n");
        return EXIT_SKIPPED;
    }
    alarm(300);
    end ends[2];
    for (int i = 0; i < 2; i++) open_end(&ends[i], (uint32_t)i, i % gpus);
    connect_to(&ends[0], 1, &ends[1]);
    connect_to(&ends[1], 0, &ends[0]);
    (void)nops_per_second(&ends[0], 100);
    double nops = 0, word = 1, host = 1, copied = 1;
    for (int i = 0; i < TRIES; i++) {
        double rate = nops_per_second(&ends[0], 20000);
        nops = rate > nops ? rate : nops;
        word = best_of(word, put_and_signal(ends));
        host = best_of(host, there_and_back(&ends[0]));
        copied = best_of(copied, there_and_copied_back(&ends[0]));
    }
    for (int i = 0; i < PAIRS; i++)
        REQUIRE(!epw_pair_broken(ends[0].pairs[i]) && !epw_pair_broken(ends[1].pairs[i]), "a queue broke");
    printf("wire: OK gpus=%d pairs=%d batch=%d nops_per_s=%.1fM word_us=%.2f host_and_back_us=%.2f "
           "ratio=%.2f copied_back_us=%.2f ratio=%.2f\n",
           gpus > 1 ? 2 : 1, PAIRS, BATCH, nops * 1e-6, word * 1e6, host * 1e6, word / host, copied * 1e6,
           word / copied);
    for (int i = 0; i < 2; i++) close_end(&ends[i]);
    return 0;
}
