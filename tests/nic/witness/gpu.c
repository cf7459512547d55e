/* Device code as a witness, see gpunetio.cu and ibgda.cu: kernels of others post to a ring that our software
 * NIC drains, and poll the completions. Exit code 77, with the reason, if there is no GPU.
 *
 * Compared is what they define. They leave some bytes as they are in a register that an adapter does not look
 * at: of the control segment signature, stream and immediate, of an addition the operand of a comparison. Nor
 * do they choose where record and doorbell are: that is told them here. */
#include "gpu.h"

#include "entries.h"

#include "nic/queue.h"
#include "nic/soft.h"
#include "nic/soft/strict.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <sys/socket.h>

enum { DEPTH = 128, BYTES = 4096, ROUNDS = 1000, EXIT_SKIPPED = 77 };

static const epw_where where = {"witness", 0, 1};

#define SET                                                                                                  \
    {"ctrl", "opmod", 0, 1}, {"ctrl", "wqe_index", 1, 2}, {"ctrl", "opcode", 3, 1}, {"ctrl", "qpn", 4, 3},   \
        {"ctrl", "ds", 7, 1}, {                                                                              \
        "ctrl", "fm_ce_se", 11, 1                                                                            \
    }
#define TO                                                                                                   \
    {"raddr", "address", 16, 8}, {                                                                           \
        "raddr", "rkey", 24, 4                                                                               \
    }

static const part nop_set[] = {SET, {0}};
static const part transfer_set[] = {SET, TO, DATA("data", 32), {0}};
static const part both_set[] = {SET, TO, DATA("data", 32), DATA("second", 48), {0}};
static const part inline_set[] = {SET, TO, {"inline", "byte_count", 32, 4}, {"inline", "bytes", 36, 8}, {0}};
static const part add_set[] = {SET, TO, {"atomic", "add", 32, 8}, DATA("data", 48), {0}};

static void check(int error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString((cudaError_t)error));
    exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? EXIT_SKIPPED : 1);
}

/* Zeroed memory at the same address for the host and the GPU. */
static void *pinned(size_t bytes) {
    void *at = NULL;
    check(cudaHostAlloc(&at, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(at, 0, bytes);
    return at;
}

/* A queue pair that is connected to itself: their end of its ring and its completions, with our NIC in
 * between. */
typedef struct rig {
    const gpu_peer *peer;
    epw_nic *nic;
    epw_pair *pair;
    const epw_pair_memory *memory;
    unsigned char *ring, *window;
    uint32_t key;
    uint64_t posted;
    void *qp;
} rig;

static void open_rig(rig *r, const gpu_peer *peer, bool strict) {
    int fds[2];
    uint64_t links[2];
    *r = (rig){.peer = peer, .ring = pinned(epw_pair_memory_bytes(DEPTH)), .window = pinned(BYTES)};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) abort();
    if (epw_nic_open(where, &r->nic) != EPW_OK) abort();
    if (strict && epw_nic_be_strict(r->nic, 1, 0, where) != EPW_OK) abort();
    epw_region window = {.base = r->window,
                         .rights = EPW_REGION_READ | EPW_REGION_WRITE | EPW_REGION_ATOMIC,
                         .count = 1,
                         .stretches = {{0, BYTES}}};
    r->key = epw_nic_register(r->nic, &window);
    epw_pair_options options = {.peer = EPW_PAIR_ANY_PEER,
                                .key = EPW_PAIR_ANY_KEY,
                                .depth = DEPTH,
                                .memory = r->ring,
                                .polled = true};
    if (epw_pair_create(r->nic, &options, where, &r->pair) != EPW_OK) abort();
    for (int i = 0; i < 2; i++)
        if (epw_nic_add_link(r->nic, fds[i], 1, where, &links[i]) != EPW_OK) abort();
    epw_pair_connect(r->pair, links[0], epw_pair_number(r->pair));
    r->memory = epw_pair_memory_of(r->pair);
    gpu_ring ring = {.entries = r->memory->entries,
                     .record = r->memory->record,
                     .doorbell = r->memory->doorbell,
                     .completion = r->memory->completion,
                     .depth = DEPTH,
                     .pair = epw_pair_number(r->pair)};
    check(peer->open(&ring, &r->qp));
}

static void close_rig(rig *r) {
    cudaFree(r->qp);
    epw_pair_destroy(r->pair);
    epw_nic_close(r->nic);
    cudaFreeHost(r->ring);
    cudaFreeHost(r->window);
}

static void tell(const rig *r, const char *what, const char *field, bool same) {
    printf("%s %s %s %s\n", r->peer->who, what, field, same ? "agrees" : "differs");
}

/* They post the operation, and its parts are compared with those of our entry; the NIC carries out theirs,
 * and they poll. False: they have no such operation. */
static bool post(rig *r, const char *what, gpu_operation operation, const part *parts,
                 const epw_entry_block *ours, gpu_completion expected) {
    const char *who = r->peer->who;
    if (!(r->peer->kinds & 1u << operation.kind)) return false;
    uint64_t index = r->posted++;
    gpu_completion said = {0};
    check(r->peer->post(r->qp, operation));
    compare_entry(who, what, parts, r->memory->entries + (index & (DEPTH - 1)) * 64, ours);
    if (index == 1)
        compare_ring(who, r->memory->record, r->memory->doorbell, epw_pair_number(r->pair), index + 1);
    check(r->peer->poll(r->qp, r->posted, &said));
    bool failed = expected.status != 0;
    bool same = (said.status < 0) == failed && (failed || said.status == 0);
    tell(r, what, failed ? "completion.error" : "completion.success", same);
    if (failed && said.syndrome != 0)
        tell(r, what, "completion.syndrome", said.syndrome == expected.syndrome);
    if (!same) printf("%s %s status %d, syndrome %x\n", who, what, said.status, said.syndrome);
    return true;
}

static uint64_t word_at(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void entries(rig *r) {
    const uint32_t pair = epw_pair_number(r->pair);
    const uint64_t to = 1024, from = 512, more = 768, value = UINT64_C(0x0706050403020100);
    const epw_key key = epw_key_of(r->key);
    const epw_place_of remote = {to, key}, local = {from, key}, second = {more, key};
    const gpu_completion done = {0, 0};
    gpu_operation o = {.remote_key = r->key,
                       .local_key = r->key,
                       .remote = to,
                       .local = from,
                       .second = more,
                       .value = value};
    epw_entry_block ours;
    for (int i = 0; i < 256 + 100; i++) r->window[from + (uint64_t)i] = (unsigned char)(0x51 + 3 * i);

    o.kind = GPU_NOP;
    epw_entry_nop(&ours, pair, r->posted, EPW_SIGNAL_ALWAYS);
    post(r, "NOP", o, nop_set, &ours, done);

    o.kind = GPU_WRITE, o.bytes = 100;
    epw_entry_write(&ours, pair, r->posted, remote, local, 100, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE", o, transfer_set, &ours, done);
    tell(r, "WRITE", "effect.bytes", memcmp(r->window + to, r->window + from, 100) == 0);

    o.kind = GPU_WRITE_TWO, o.bytes = 150, o.second_bytes = 50;
    epw_entry_write_both(&ours, pair, r->posted, remote, local, 100, second, 50, EPW_SIGNAL_ALWAYS);
    memset(r->window + to, 0, 150);
    if (post(r, "WRITE_TWO", o, both_set, &ours, done))
        tell(r, "WRITE_TWO", "effect.bytes",
             memcmp(r->window + to, r->window + from, 100) == 0 &&
                 memcmp(r->window + to + 100, r->window + more, 50) == 0);

    o.kind = GPU_WRITE_WORD;
    epw_entry_write_word(&ours, pair, r->posted, remote, value, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE_INLINE", o, inline_set, &ours, done);
    tell(r, "WRITE_INLINE", "effect.bytes", word_at(r->window + to) == value);

    o.kind = GPU_READ, o.bytes = 8;
    epw_entry_read(&ours, pair, r->posted, remote, local, 8, EPW_SIGNAL_ALWAYS);
    post(r, "READ", o, transfer_set, &ours, done);
    tell(r, "READ", "effect.bytes", word_at(r->window + from) == value);

    o.kind = GPU_FETCH_ADD, o.value = 5;
    epw_entry_fetch_add(&ours, pair, r->posted, remote, 5, local, EPW_SIGNAL_ALWAYS);
    memset(r->window + from, 0, 8);
    post(r, "FETCH_ADD", o, add_set, &ours, done);
    tell(r, "FETCH_ADD", "effect.sum",
         word_at(r->window + to) == value + 5 && word_at(r->window + from) == value);
}

/* Rows and counters, many laps of the ring: nobody but their kernel and our NIC takes part, which is strict:
 * it fetches only what the doorbell has announced, and refuses an entry that changes after that. */
static void rounds(rig *r) {
    const uint64_t counter = 2048, old = 2056;
    for (int i = 0; i < 300; i++) r->window[512 + i] = (unsigned char)(0x51 + 3 * i);
    gpu_operation o = {.kind = GPU_WRITE,
                       .remote_key = r->key,
                       .local_key = r->key,
                       .remote = 1024,
                       .local = 512,
                       .bytes = 300};
    uint32_t done = 0;
    check(r->peer->rounds(r->qp, o, counter, old, ROUNDS, &done));
    r->posted += 2 * (uint64_t)done;
    tell(r, "ROUNDS", "effect.done", done == ROUNDS);
    tell(r, "ROUNDS", "effect.sum",
         word_at(r->window + counter) == ROUNDS && word_at(r->window + old) == ROUNDS - 1);
    tell(r, "ROUNDS", "effect.bytes", memcmp(r->window + 1024, r->window + 512, 300) == 0);
}

/* A key that the peer does not have. */
static void refused(rig *r) {
    gpu_operation o = {.kind = GPU_WRITE,
                       .remote_key = r->key ^ 0x55,
                       .local_key = r->key,
                       .remote = 1024,
                       .local = 512,
                       .bytes = 8};
    epw_entry_block none = {0};
    post(r, "WRITE_REFUSED", o, NULL, &none, (gpu_completion){-1, EPW_SYNDROME_REMOTE_ACCESS});
}

int main(void) {
    const gpu_peer *peers[] = {&gpunetio_peer, &ibgda_peer};
    int count = 0;
    check(cudaGetDeviceCount(&count));
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++) {
        rig r;
        open_rig(&r, peers[i], false);
        entries(&r);
        refused(&r);
        close_rig(&r);
        open_rig(&r, peers[i], true);
        rounds(&r);
        close_rig(&r);
    }
    return 0;
}
