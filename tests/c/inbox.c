/* Which parts of an inbox become pinned memory, without a GPU: the source is compiled here with CUDA's calls
 * replaced by a list of what was registered. tests/gpu tests what kernels find there. */
#include "needs_cuda.h"

#ifdef EPW_CUDA

#include "check.h"
#include "device/cuda.h"
#include "peer/peers.h"

#include <cuda_runtime_api.h>
#include <string.h>

enum { RANKS = 4, LANES = 2, CHUNKS = 64, ROWS = 150000, ANSWERS = 70000, COUNTS = 64 };

static struct fake {
    unsigned char *base;
    int registered[CHUNKS]; /* 1: by a call of its own; 2: by one that began in an earlier chunk */
    int calls, fails_at;    /* fails_at: the number of the call that fails; 0: none */
    int depth;
} fake;

static cudaError_t fake_register(void *at, size_t bytes, unsigned flags) {
    size_t first = (size_t)((unsigned char *)at - fake.base) / EPW_INBOX_CHUNK_BYTES;
    CHECK(fake.depth == 1 && flags == (cudaHostRegisterPortable | cudaHostRegisterMapped));
    CHECK(bytes > 0 && bytes % EPW_INBOX_CHUNK_BYTES == 0 && first + bytes / EPW_INBOX_CHUNK_BYTES <= CHUNKS);
    if (++fake.calls == fake.fails_at) return cudaErrorMemoryAllocation;
    for (size_t i = first; i < first + bytes / EPW_INBOX_CHUNK_BYTES; i++) {
        CHECK_MSG(fake.registered[i] == 0, "chunk %zu is registered twice", i);
        fake.registered[i] = i == first ? 1 : 2;
    }
    return cudaSuccess;
}
static cudaError_t fake_unregister(void *at) {
    size_t i = (size_t)((unsigned char *)at - fake.base) / EPW_INBOX_CHUNK_BYTES;
    CHECK(i < CHUNKS && fake.registered[i] == 1);
    fake.registered[i] = 0;
    for (i++; i < CHUNKS && fake.registered[i] == 2; i++) fake.registered[i] = 0;
    return cudaSuccess;
}
static cudaError_t fake_pointer(void **device, void *host, unsigned flags) {
    *device = host;
    return flags == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
static epw_status fake_enter(int32_t ordinal, epw_where where, epw_cuda_scope *scope) {
    (void)where, (void)scope;
    CHECK(ordinal == 3);
    fake.depth++;
    return EPW_OK;
}
static void fake_leave(const epw_cuda_scope *scope) {
    (void)scope;
    fake.depth--;
}
static epw_status fake_fail(int error, epw_where where, const char *call) {
    (void)error;
    return epw_fail(EPW_ERR_NO_MEMORY, where, "%s", call);
}

#define cudaHostRegister         fake_register
#define cudaHostUnregister       fake_unregister
#define cudaHostGetDevicePointer fake_pointer
#define epw_cuda_enter_relaxed   fake_enter
#define epw_cuda_leave_relaxed   fake_leave
#define epw_fail_cuda            fake_fail
#define epw_inbox_open           tested_open /* the library has its own copy */
#define epw_inbox_close          tested_close
#define epw_inbox_pin            tested_pin
#include "../../c/peer/inbox.c"

/* ---- a floor ---- */

static const epw_where here = {"connect", 0, 1};

/* Counts, then rows, then answers, each for all lanes and sources. */
static epw_stretch footprint(void *user, uint32_t source, uint32_t lane, uint32_t area) {
    static const uint64_t bytes[EPW_AREAS] = {COUNTS, ROWS, ANSWERS};
    uint64_t at = epw_floor_bytes(RANKS);
    (void)user;
    for (uint32_t a = 0; a < area; a++) at += bytes[a] * LANES * RANKS;
    return (epw_stretch){at + (lane * RANKS + source) * bytes[area], bytes[area]};
}

static const epw_peers_user user = {.footprint = footprint};

static void open_inbox(epw_peers *peers) {
    memset(peers, 0, sizeof *peers);
    memset(&fake, 0, sizeof fake);
    peers->ranks = RANKS;
    peers->lanes = LANES;
    peers->user = &user;
    CHECK_OK(tested_open(peers, 3, here));
    fake.base = peers->inbox;
}

static int is_pinned(epw_stretch s) {
    for (uint64_t i = s.offset / CHUNK_BYTES; i <= (s.offset + s.bytes - 1) / CHUNK_BYTES; i++)
        if (fake.registered[i] == 0) return 0;
    return 1;
}

static int places_are_pinned(uint32_t peer) {
    int all = is_pinned((epw_stretch){epw_line_offset(peer), sizeof(epw_line)});
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t area = 0; area < EPW_AREAS; area++) all &= is_pinned(footprint(NULL, peer, lane, area));
    return all;
}

static int chunks(void) {
    int count = 0;
    for (int i = 0; i < CHUNKS; i++) count += fake.registered[i] != 0;
    return count;
}

/* ---- tests ---- */

static void a_peers_places_are_pinned_and_no_more(void) {
    epw_peers peers;
    open_inbox(&peers);
    uint64_t places = LANES * (ROWS + ANSWERS + COUNTS),
             last = footprint(NULL, 3, 1, EPW_AREA_ANSWERS).offset;
    peers.inbox[last] = 7; /* the NIC may write first */
    CHECK(chunks() == 0);
    CHECK_OK(tested_pin(&peers, 3, here));
    CHECK(places_are_pinned(3) && !places_are_pinned(1) && peers.inbox[last] == 7);
    CHECK((uint64_t)chunks() * CHUNK_BYTES < places + (2 + 2 * 2 * LANES) * CHUNK_BYTES);
    int calls = fake.calls;
    CHECK_OK(tested_pin(&peers, 3, here)); /* a rank that gets this place later */
    CHECK(fake.calls == calls);
    for (uint32_t peer = 0; peer < RANKS; peer++) CHECK_OK(tested_pin(&peers, peer, here));
    for (uint32_t peer = 0; peer < RANKS; peer++) CHECK(places_are_pinned(peer));
    tested_close(&peers);
    CHECK(chunks() == 0 && peers.inbox == NULL && fake.depth == 0);
}

/* What was pinned stays pinned, and the next call continues from there. */
static void memory_that_is_short_is_an_error(void) {
    epw_peers peers;
    open_inbox(&peers);
    fake.fails_at = 3;
    CHECK(tested_pin(&peers, 1, here) == EPW_ERR_NO_MEMORY && chunks() > 0 && !places_are_pinned(1));
    CHECK_OK(tested_pin(&peers, 1, here));
    CHECK(places_are_pinned(1));
    tested_close(&peers);
    CHECK(chunks() == 0 && fake.depth == 0);
}

int main(void) {
    a_peers_places_are_pinned_and_no_more();
    memory_that_is_short_is_an_error();
    return check_result("inbox");
}
#endif
