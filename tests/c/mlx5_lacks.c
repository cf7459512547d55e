/* An adapter that lacks something, or fails half-way: if the library does without it, it says so; otherwise
 * an error names a remedy. Nothing is left behind: no descriptor, no thread, and no object of the device. */
#include "held.h"
#include "mlx5_rank.h"

#include "nic/fabric.h"
#include "nic/mlx5/parts.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

/* A deficient device, and the expected result. */
typedef struct adverse {
    epw_fake_options fake;
    epw_mlx5_options how;
    epw_status status;
    const char *text; /* of the error, or the description of what was opened */
} adverse;

#define LACK(what) .fake.lacks = UINT64_C(1) << EPW_FAKE_##what
#define FAIL(call, after, err)                                                                               \
    .fake.failing = EPW_FAKE_CALL_##call, .fake.failing_after = after, .fake.failing_errno = err
#define FIRMWARE 0

static const adverse cases[] = {
    {.status = EPW_OK, .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {.fake.infiniband = true, .status = EPW_OK, .text = "fake_0 port 1, InfiniBand, LID 4, MTU 4096"},
    {.fake.mtu = 3, .status = EPW_OK, .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 1024"},
    {.how.filter = "=fake_0",
     .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {.how.filter = "mlx5_0",
     .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: options.adapters (EPWIRE_HCA), \"mlx5_0\", matches none of 1 mlx5 adapters; the "
             "first is fake_0"},
    {.how.filter = "^fake",
     .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: options.adapters (EPWIRE_HCA), \"^fake\", matches none of 1 mlx5 adapters; the "
             "first is fake_0"},
    {.how.filter = "fake_0:2",
     .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: none of its ports can be queried"},
    {.how.service_level = 8,
     .status = EPW_ERR_INVALID,
     .text = "test: rank 3: options.service_level (EPWIRE_SL) is 8, but the port of fake_0 is Ethernet, "
             "whose priorities "
             "are below 8"},
    {.how.traffic_class = 106,
     .fake.infiniband = true,
     .status = EPW_ERR_INVALID,
     .text = "test: rank 3: options.traffic_class (EPWIRE_TC) is 106, but the port of fake_0 is InfiniBand, "
             "which has none "
             "within a subnet: use options.service_level"},
    {LACK(NO_DEVICE), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: there is no mlx5 adapter: see /sys/class/infiniband; without one choose another "
             "NIC or "
             "wire"},
    {LACK(NO_DEVX), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: it has no DevX, which needs its firmware's "
             "user contexts (log_max_uctx)"},
    {LACK(NO_PORT), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: no port is active: see ibv_devinfo, and the "
             "cable or the interface"},
    {LACK(NO_ROCE_V2), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: its port has no RoCEv2 GID that others can "
             "reach: give its network interface an IPv4 address, or an IPv6 one that is routed"},
    {LACK(NO_ROUTED_GID), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: its port has no RoCEv2 GID that others can "
             "reach: give its network interface an IPv4 address, or an IPv6 one that is routed"},
    {.fake.infiniband = true,
     LACK(NO_LID),
     .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: its port has no LID: no subnet manager has "
             "given it one"},
    {LACK(GIDS_REVERSED), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 4 ending in 10.77.0.3, MTU 4096"},
    {LACK(NO_OWN_UAR), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096, doorbells in one register"},
    {LACK(BF_UAR_ALONE), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096, doorbells that gather writes"},
    {LACK(NO_OWN_PAGE), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {LACK(NO_PAIR_EVENTS), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {LACK(NO_TIME_FORMAT), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {LACK(NO_ORDER_FORCED), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {LACK(NO_REORDERING), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096"},
    {.fake.infiniband = true,
     LACK(NO_TIME_FORMAT),
     .status = EPW_OK,
     .text = "fake_0 port 1, InfiniBand, LID 4, MTU 4096"},
    {LACK(NO_UAR), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 gives no doorbell register of any kind (the first kind: errno 95): use "
             "fewer buffers or peers, or a newer kernel: Operation not supported (errno 95)"},
    {LACK(NO_CQE_VERSION), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: fake_0 writes completions of version 0, this library reads version 1: update its "
             "firmware"},
    {LACK(NO_ATOMICS), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096, no atomics"},
    {LACK(NO_OVERRUN), .status = EPW_ERR_NO_PATH,
     .text =
         "test: rank 3: fake_0 has no completion queues that ignore an overrun (cq_oi): update its firmware"},
    {LACK(NO_OVERRUN), .fake.devices = 2, .status = EPW_ERR_NO_PATH,
     .text =
         "test: rank 3: no mlx5 adapter can be used: fake_0: has no completion queues that ignore an overrun "
         "(cq_oi): update its firmware; fake_1: has no completion queues that ignore an overrun (cq_oi): "
         "update its firmware"},
    {LACK(SHORT_ENTRIES), .status = EPW_ERR_NO_PATH,
     .text =
         "test: rank 3: fake_0 sends 2^20 bytes at a time at most (log_max_msg), queue pairs are made for "
         "2^30: update its firmware"},
    {LACK(SHORT_RINGS), .status = EPW_ERR_LIMIT,
     .text = "test: rank 3: fake_0 has rings of 64 entries at most, 256 are needed: lower max_tokens"},
    {LACK(NO_NEIGHBOUR), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 finds no way to the peer's address, which ends in 10.77.0.3: see that "
             "ping reaches it by this adapter's interface: Connection timed out (errno 110)"},
    {.fake.infiniband = true,
     LACK(NO_PORT),
     .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: no port is active: see ibv_devinfo, and the "
             "cable or the interface"},
    {.fake.infiniband = true,
     LACK(NO_ROCE_V2),
     .status = EPW_OK,
     .text = "fake_0 port 1, InfiniBand, LID 4, MTU 4096"},
    {.fake.infiniband = true,
     LACK(NO_NEIGHBOUR),
     .status = EPW_OK,
     .text = "fake_0 port 1, InfiniBand, LID 4, MTU 4096"},
    {.fake.infiniband = true,
     LACK(NO_ATOMICS),
     .status = EPW_OK,
     .text = "fake_0 port 1, InfiniBand, LID 4, MTU 4096, no atomics"},
    {FAIL(DEVICES, 0, ENOSYS), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: cannot list adapters: Function not implemented (errno 38)"},
    {FAIL(OPEN, 0, EPERM), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: this process may not open it: see "
             "/dev/infiniband, and in a container --device"},
    {FAIL(OPEN, 0, EINVAL), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: it has no DevX, which needs its firmware's "
             "user contexts (log_max_uctx)"},
    {FAIL(PORT, 0, EIO), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: none of its ports can be queried"},
    {FAIL(GID, 3, EIO), .status = EPW_ERR_NO_PATH,
     .text = "test: rank 3: no mlx5 adapter can be used: fake_0: its port has no RoCEv2 GID that others can "
             "reach: give its network interface an IPv4 address, or an IPv6 one that is routed"},
    {FAIL(GENERAL, 0, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses QUERY_HCA_CAP: BAD_PARAM, syndrome 0x100001: its firmware may be "
             "too old for that; see its version with ibv_devinfo"},
    {FAIL(GENERAL, 0, EPERM), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken QUERY_HCA_CAP: this process may not use it; see "
             "/dev/infiniband, and in a container --device: Operation not permitted (errno 1)"},
    {FAIL(DOMAIN, 0, ENOMEM), .status = EPW_ERR_SYSTEM,
     .text =
         "test: rank 3: fake_0 gives no protection domain or event queue: Cannot allocate memory (errno 12)"},
    {FAIL(EQ, 0, EIO), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 gives no protection domain or event queue: Input/output error (errno 5)"},
    {FAIL(REGISTER, 0, ENOMEM), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 does not register 1960 bytes: raise the limit of locked memory (ulimit "
             "-l): Cannot allocate memory (errno 12)"},
    {FAIL(REGISTER, 1, EFAULT), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 does not register 8192 bytes: Bad address (errno 14)"},
    {FAIL(UMEM, 0, ENOMEM), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 does not take 4096 bytes of this process for a queue: raise the limit of "
             "locked memory (ulimit -l): Cannot allocate memory (errno 12)"},
    {FAIL(UMEM, 1, EFAULT), .status = EPW_ERR_SYSTEM,
     .text =
         "test: rank 3: fake_0 does not take 4096 bytes of this process for a queue: Bad address (errno 14)"},
    {FAIL(UMEM, 2, EFAULT), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 does not take 16384 bytes of this process for a queue: Bad address (errno "
             "14)"},
    {FAIL(UAR, 0, EIO), .status = EPW_OK,
     .text = "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096, doorbells in one register"},
    {FAIL(CREATE, 0, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses CREATE_CQ: BAD_PARAM, syndrome 0x100001: its firmware may be too "
             "old for that; see its version with ibv_devinfo"},
    {FAIL(CREATE, 0, FIRMWARE), .fake.failing_status = 0x08, .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses CREATE_CQ: EXCEED_LIM, syndrome 0x100001: it has no more of them; "
             "use fewer buffers or peers"},
    {FAIL(CREATE, 1, FIRMWARE), .fake.failing_status = 0x0f, .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses CREATE_QP: NO_RESOURCES, syndrome 0x100001: it has no more of "
             "them; use fewer buffers or peers"},
    {FAIL(CREATE, 1, FIRMWARE), .fake.failing_status = 0x77, .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses CREATE_QP: a status that is not known here, syndrome 0x100001: "
             "its firmware may be too old for that; see its version with ibv_devinfo"},
    {FAIL(CREATE, 0, ENOMEM), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken CREATE_CQ: raise the limit of locked memory (ulimit -l): "
             "Cannot allocate memory (errno 12)"},
    {FAIL(CREATE, 1, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses CREATE_QP: BAD_PARAM, syndrome 0x100001: its firmware may be too "
             "old for that; see its version with ibv_devinfo"},
    {FAIL(CREATE, 1, EPERM), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken CREATE_QP: this process may not use it; see "
             "/dev/infiniband, and in a container --device: Operation not permitted (errno 1)"},
    {FAIL(RESOLVE, 0, ETIMEDOUT), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 finds no way to the peer's address, which ends in 10.77.0.3: see that "
             "ping reaches it by this adapter's interface: Connection timed out (errno 110)"},
    {FAIL(RESOLVE, 0, EINVAL), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 finds no way to the peer's address, which ends in 10.77.0.3: see that "
             "ping reaches it by this adapter's interface: Invalid argument (errno 22)"},
    {FAIL(MODIFY, 0, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses RST2INIT_QP: BAD_PARAM, syndrome 0x100001: its firmware may be "
             "too old for that; see its version with ibv_devinfo"},
    {FAIL(MODIFY, 0, EIO), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken RST2INIT_QP: Input/output error (errno 5)"},
    {FAIL(MODIFY, 1, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses INIT2RTR_QP: BAD_PARAM, syndrome 0x100001: the port's MTU, GID or "
             "LID does not suit; see its state with ibv_devinfo -v"},
    {FAIL(MODIFY, 1, EIO), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken INIT2RTR_QP: Input/output error (errno 5)"},
    {FAIL(MODIFY, 2, FIRMWARE), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 refuses RTR2RTS_QP: BAD_PARAM, syndrome 0x100001: its firmware may be too "
             "old for that; see its version with ibv_devinfo"},
    {FAIL(MODIFY, 2, EIO), .status = EPW_ERR_SYSTEM,
     .text = "test: rank 3: fake_0 has not taken RTR2RTS_QP: Input/output error (errno 5)"},
};

static void what_an_adapter_lacks_is_done_without_or_said(void) {
    enum { CASES = sizeof cases / sizeof cases[0] };
    CHECK(CASES >= 40);
    for (uint32_t i = 0; i < CASES; i++) {
        bench *b = new_bench();
        epw_status status = set_up(b, &cases[i].fake, &cases[i].how);
        CHECK_MSG(status == cases[i].status, "case %u: %d", i, (int)status);
        char said[EPW_MLX5_TEXT];
        const char *text = status == EPW_OK ? epw_mlx5_describe(b->adapter, said) : epw_last_error();
        CHECK_MSG(strcmp(text, cases[i].text) == 0, "case %u:\n%s\nand not\n%s", i, text, cases[i].text);
        take_down(b);
        nothing_more_is_held("case", i);
        free(b);
    }
}

/* Every call that makes something, from the first to the last of its kind, fails in turn, as the kernel and
 * as the firmware refuses it, until no call of the kind is left to fail. */
static void whatever_fails_nothing_is_left(void) {
    static const int errors[] = {FIRMWARE, EIO, ENOMEM};
    uint32_t failed = 0;
    for (epw_fake_call call = EPW_FAKE_CALL_NONE + 1; call < EPW_FAKE_CALL_DESTROY; call++) {
        for (uint32_t error = 0; error < sizeof errors / sizeof errors[0]; error++) {
            uint32_t well = 0;
            for (uint32_t after = 0; well < 3; after++) {
                bench *b = new_bench();
                epw_fake_options options = {
                    .failing = call, .failing_after = after, .failing_errno = errors[error]};
                epw_status status = set_up(b, &options, &(epw_mlx5_options){0});
                CHECK_MSG(status == EPW_OK || *epw_last_error() != '\0', "call %d, %u", (int)call, after);
                take_down(b); /* which counts what is left of the device */
                char of[32];
                snprintf(of, sizeof of, "call %d, after", (int)call);
                nothing_more_is_held(of, after);
                free(b);
                well = status == EPW_OK ? well + 1 : 0;
                failed += status != EPW_OK;
            }
        }
    }
    CHECK_MSG(failed >= 50, "%u", failed);
}

/* ---- calls that give back ---- */

static void left_is(const bench *b, const epw_fake_left *expected, const char *after, uint32_t which) {
    epw_fake_left left = epw_fake_count(b->fake);
    CHECK_MSG(memcmp(&left, expected, sizeof left) == 0,
              "%u, %s: %u devices, %u domains, %u registers, %u umems, %u objects, %u regions", which, after,
              left.devices, left.domains, left.uars, left.umems, left.objects, left.regions);
}

static bool is_mapped(const void *page) {
    unsigned char in_memory;
    return mincore((void *)(uintptr_t)page, 1, &in_memory) == 0;
}

typedef struct heard {
    uint32_t count;
    char lines[8][200];
    int32_t peers[8];
} heard;

static void hear(void *context, const epw_log_record *record) {
    heard *h = context;
    CHECK(record->level == EPW_LOG_WARN && record->rank == (int32_t)RANK &&
          strcmp(record->subsystem, "nic") == 0);
    if (h->count < 8) snprintf(h->lines[h->count], sizeof h->lines[0], "%s", record->text);
    if (h->count < 8) h->peers[h->count] = record->peer;
    h->count++;
}

/* Things that an adapter may keep, in the order in which they end. */
typedef enum thing { NONE, QP, CQ, RING, RECORD, COMPLETION, WINDOW, IMAGE, PD, DEVICE, THINGS } thing;

typedef struct names {
    char of[THINGS][64];
} names;

static names name_all(const bench *b) {
    names n = {.of = {[DEVICE] = "its device"}};
    const uint32_t number = epw_mlx5_pair_number(b->pair);
    const epw_mlx5_umem *umems[] = {&b->pair->ring, &b->pair->record, &b->pair->completion};
    snprintf(n.of[QP], sizeof n.of[0], "queue pair %u", number);
    snprintf(n.of[CQ], sizeof n.of[0], "the completion queue of queue pair %u", number);
    for (int i = 0; i < 3; i++)
        snprintf(n.of[RING + i], sizeof n.of[0], "memory %u of queue pair %u", umems[i]->id, number);
    snprintf(n.of[WINDOW], sizeof n.of[0], "the region of key 0x%x", b->window.own);
    snprintf(n.of[IMAGE], sizeof n.of[0], "the region of key 0x%x", b->image.own);
    snprintf(n.of[PD], sizeof n.of[0], "protection domain %u", b->adapter->pd_number);
    return n;
}

/* There are lines about these things, and no others. `err`: the errno of the first; the others are in use. */
static void lines_are(const heard *h, const thing kept[3], int err, const names *n, uint32_t which) {
    uint32_t count = 0;
    for (; count < 3 && kept[count] != NONE; count++) {
        char line[200];
        int why = count == 0 ? err : EBUSY;
        snprintf(line, sizeof line,
                 "fake_0 does not give back %s: %s (errno %d): see dmesg; the end of this process frees it",
                 n->of[kept[count]], strerror(why), why);
        CHECK_MSG(strcmp(h->lines[count], line) == 0, "%u:\n%s\nand not\n%s", which, h->lines[count], line);
        CHECK_MSG(h->peers[count] == (kept[count] <= COMPLETION ? 0 : -1), "%u: %d", which, h->peers[count]);
    }
    CHECK_MSG(h->count == count, "%u: %u lines, the first is %s", which, h->count, h->lines[0]);
}

/* What has not been given back, and all that it needs, stays, the memory of the queue pair among it, and the
 * log says so. The rest is given back. Another queue pair of the adapter is not affected. */
static void a_teardown_that_stops_keeps_what_the_adapter_may_use(void) {
    static const int errors[] = {EREMOTEIO, EBUSY};
    static const struct {
        epw_fake_call call;
        uint32_t after;
        bool gone;
        epw_fake_left of_pair, of_all; /* the adapter is open, or closed */
        thing said[3];
    } stops[] = {
        {EPW_FAKE_CALL_DESTROY, 0, false, {1, 1, 1, 3, 2, 2}, {1, 1, 1, 3, 2, 0}, {QP, PD, DEVICE}},
        {EPW_FAKE_CALL_DESTROY, 1, false, {1, 1, 1, 2, 1, 2}, {1, 0, 1, 2, 1, 0}, {CQ, DEVICE}},
        {EPW_FAKE_CALL_FREE_UMEM, 0, false, {1, 1, 1, 1, 0, 2}, {1, 0, 0, 1, 0, 0}, {RING, DEVICE}},
        {EPW_FAKE_CALL_FREE_UMEM, 1, false, {1, 1, 1, 1, 0, 2}, {1, 0, 0, 1, 0, 0}, {RECORD, DEVICE}},
        {EPW_FAKE_CALL_FREE_UMEM, 2, false, {1, 1, 1, 1, 0, 2}, {1, 0, 0, 1, 0, 0}, {COMPLETION, DEVICE}},
        {EPW_FAKE_CALL_DEREGISTER, 0, true, {1, 1, 1, 0, 0, 2}, {1, 1, 0, 0, 0, 1}, {WINDOW, PD, DEVICE}},
        {EPW_FAKE_CALL_DEREGISTER, 1, true, {1, 1, 1, 0, 0, 2}, {1, 1, 0, 0, 0, 1}, {IMAGE, PD, DEVICE}},
        {EPW_FAKE_CALL_FREE_UAR, 0, true, {1, 1, 1, 0, 0, 2}, {1, 0, 1, 0, 0, 0}, {DEVICE}},
        {EPW_FAKE_CALL_FREE_DOMAIN, 0, true, {1, 1, 1, 0, 0, 2}, {1, 1, 0, 0, 0, 0}, {PD, DEVICE}},
        {EPW_FAKE_CALL_CLOSE, 0, true, {1, 1, 1, 0, 0, 2}, {1, 0, 0, 0, 0, 0}, {DEVICE}}};
    for (uint32_t i = 0; i < 2 * sizeof stops / sizeof stops[0]; i++) {
        const uint32_t s = i / 2;
        heard h = {0};
        bench *b = new_bench();
        CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
        CHECK_OK(epw_log_set("nic=warn", hear, &h));
        unsigned char *pages = epw_mlx5_pair_memory(b->pair)->completion;
        names n = name_all(b);
        epw_fake_fail(b->fake, stops[s].call, stops[s].after, errors[i % 2], false);
        CHECK_MSG(epw_mlx5_pair_destroy(b->pair) == stops[s].gone, "%u", s);
        CHECK_MSG(is_mapped(pages) == !stops[s].gone, "%u", s);
        left_is(b, &stops[s].of_pair, "after its queue pair", s);
        if (!stops[s].gone) {
            CHECK_OK(make_pair(b));
            CHECK(epw_mlx5_pair_destroy(b->pair));
            epw_fake_left left = stops[s].of_pair;
            left.uars = 1 + (left.objects > 0); /* one that is in use, and the adapter's spare one */
            left_is(b, &left, "after another one", s);
        }
        epw_mlx5_deregister(b->adapter, b->window.own);
        epw_mlx5_deregister(b->adapter, b->image.own);
        epw_mlx5_close(b->adapter);
        left_is(b, &stops[s].of_all, "after all", s);
        CHECK_MSG(epw_fake_failed(b->fake) == 1, "%u: %u calls have failed", s, epw_fake_failed(b->fake));
        CHECK_OK(epw_log_set(NULL, NULL, NULL));
        /* libmlx5 does not say that a register was not given back. */
        int first = stops[s].call == EPW_FAKE_CALL_FREE_UAR ? EBUSY : errors[i % 2];
        lines_are(&h, stops[s].said, first, &n, s);
        epw_fake_close(b->fake);
        epw_nic_close(b->nic);
        if (!stops[s].gone) munmap(pages, epw_mlx5_pair_memory_bytes(DEPTH));
        nothing_more_is_held("stop", s);
        free(b);
    }
}

/* While a queue pair is neither deprived of its rights nor stopped, it is not closed, and closing it is tried
 * again. */
static void a_queue_pair_is_closed_once_the_adapter_takes_a_command(void) {
    heard h = {0};
    bench *b = new_bench();
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    CHECK_OK(epw_log_set("nic=warn", hear, &h));
    epw_fake_fail(b->fake, EPW_FAKE_CALL_MODIFY, 0, EIO, true);
    for (int i = 0; i < 3; i++) CHECK(!epw_mlx5_pair_close(b->pair));
    CHECK_MSG(strcmp(epw_last_error(), "close: fake_0 has not taken 2ERR_QP: Input/output error (errno 5)") ==
                  0,
              "%s", epw_last_error());
    CHECK_MSG(epw_fake_failed(b->fake) == 4, "%u", epw_fake_failed(b->fake)); /* 2ERR thrice, RTS2RTS once */
    char line[200];
    snprintf(line, sizeof line,
             "queue pair %u has not stopped: fake_0 has not taken 2ERR_QP: Input/output error (errno 5)",
             epw_mlx5_pair_number(b->pair));
    CHECK_MSG(h.count == 1 && strcmp(h.lines[0], line) == 0, "%u lines, the first %s", h.count, h.lines[0]);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
    epw_fake_fail(b->fake, EPW_FAKE_CALL_NONE, 0, 0, false);
    CHECK(epw_mlx5_pair_close(b->pair) && epw_mlx5_pair_close(b->pair));
    take_down(b);
    free(b);
}

/* ---- as options of a fabric ---- */

static epw_fabric_options asked(void) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    options.rank = RANK;
    options.nic = EPW_NIC_FAKE;
    return options;
}

static void a_fabric_is_refused(const epw_fabric_options *options, epw_status expected, const char *words) {
    epw_fabric *fabric = NULL;
    epw_status status = epw_fabric_create(options, &fabric);
    CHECK_MSG(status == expected && fabric == NULL, "%s: %s", epw_status_name(status), words);
    CHECK_MSG(strstr(epw_last_error(), words) != NULL, "%s\nand not\n%s", epw_last_error(), words);
    nothing_more_is_held(words, 0);
}

static void options_of_a_fabric_have_limits(void) {
    epw_fabric_options o = asked();
    o.adapter_count = 3;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.adapter_count is 3, must be at most 2");
    o = asked(), o.service_level = 16;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.service_level is 16, must be at most 15");
    o = asked(), o.traffic_class = 256;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.traffic_class is 256, must be at most 255");
    o = asked(), o.hop_limit = 256;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.hop_limit is 256, must be at most 255");
    o = asked(), o.rings = 3;
    a_fabric_is_refused(&o, EPW_ERR_INVALID,
                        "options.rings is 3, must be EPW_RINGS_HOST, EPW_RINGS_GPU or EPW_RINGS_AUTO");
    o = asked(), o.rings = EPW_RINGS_GPU, o.nic = EPW_NIC_SOFT;
    a_fabric_is_refused(&o, EPW_ERR_INVALID,
                        "options.rings is EPW_RINGS_GPU, but a software NIC reads and writes no GPU "
                        "memory: use an adapter, or no other wire than EPW_WIRE_VERBS");
    o = asked(), o.order = 2;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.order is 2, must be EPW_ORDER_AUTO or EPW_ORDER_NONE");
    o = asked(), o.order = EPW_ORDER_NONE;
    a_fabric_is_refused(
        &o, EPW_ERR_INVALID,
        "options.order is EPW_ORDER_NONE (EPWIRE_ORDER=none), but nobody holds back what is posted "
        "to the queues of an mlx5 adapter");
    o = asked(), o.device = -2;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "options.device is -2, must be EPW_DEVICE_HOST or an ordinal");
    o = asked(), o.adapters = "=fake_0,";
    a_fabric_is_refused(
        &o, EPW_ERR_INVALID,
        "options.adapters (EPWIRE_HCA) is \"=fake_0,\", not a filter of adapters: give names such as mlx5_0 "
        "or mlx5_0:1, with commas between them, and ^, = or ^= in front of them all");
    o = asked(), o.adapters = "mlx5";
    a_fabric_is_refused(&o, EPW_ERR_NO_PATH, "matches none of 2 mlx5 adapters");
    o = asked(), o.adapters = "=fake_1", o.adapter_count = 2; /* the first adapter is already open */
    a_fabric_is_refused(&o, EPW_ERR_NO_PATH, "there is no second mlx5 adapter beside fake_1");
    o = asked(), o.service_level = 9;
    a_fabric_is_refused(&o, EPW_ERR_INVALID, "whose priorities are below 8");
}

static void text_is(const char *text) {
    CHECK_MSG(strcmp(epw_last_error(), text) == 0, "%s\nand not\n%s", epw_last_error(), text);
}

static void a_peer_with_another_kind_of_nic_is_refused(void) {
    static const char *const texts[] = {
        "test: rank 3: the peer has a NIC of a kind that is not known here, this rank a fake mlx5 adapter: "
        "give "
        "all ranks the same options.nic",
        "test: rank 3: the peer has a software NIC, this rank a fake mlx5 adapter: give all ranks the same "
        "options.nic",
        "test: rank 3: the peer has an mlx5 adapter, this rank a fake mlx5 adapter: give all ranks the same "
        "options.nic",
        NULL,
        "test: rank 3: the peer has a NIC of a kind that is not known here, this rank a fake mlx5 adapter: "
        "give "
        "all ranks the same options.nic"};
    epw_fabric *fabric = NULL;
    epw_fabric_options o = asked();
    CHECK_OK(epw_fabric_create(&o, &fabric));
    for (unsigned char kind = 0; kind < 5; kind++) {
        unsigned char bytes[EPW_FABRIC_NIC_BYTES] = {kind};
        epw_status status = epw_fabric_nic_check(fabric, bytes, where);
        CHECK(status == (texts[kind] == NULL ? EPW_OK : EPW_ERR_NO_PATH));
        if (texts[kind] != NULL) text_is(texts[kind]);
    }
    epw_fabric_destroy(fabric);
}

/* By which wire a peer could be reached is known from its address. */
static void a_peer_that_no_wire_leads_to_is_refused(void) {
    static const unsigned char key[32] = "of these two";
    static const struct {
        uint32_t own, its;
        bool elsewhere;
        const char *text;
    } cases[] = {
        {EPW_WIRE_LOCAL, EPW_WIRE_LOCAL, true,
         "test: rank 3: no queue leads to the peer: it is on another host, or in another network namespace, "
         "and "
         "this rank's fabric has no TCP: give its options a key and EPW_WIRE_TCP"},
        {EPW_WIRE_LOCAL, EPW_WIRE_TCP, false,
         "test: rank 3: no queue leads to the peer: the two fabrics have no wire in common"},
        {EPW_WIRE_TCP, EPW_WIRE_LOCAL, false,
         "test: rank 3: no queue leads to the peer: its fabric has no TCP: give its options a key and "
         "EPW_WIRE_TCP"},
        {EPW_WIRE_LOCAL, EPW_WIRE_VERBS, false,
         "test: rank 3: no queue leads to the peer: its fabric has the verbs wire, this rank's has not: give "
         "all "
         "ranks the same wires"}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_fabric *fabric = NULL;
        uint64_t link;
        epw_fabric_options o = asked();
        o.wires = cases[i].own;
        o.interfaces = "lo";
        o.key = cases[i].own == EPW_WIRE_TCP ? key : NULL;
        CHECK_OK(epw_fabric_create(&o, &fabric));
        epw_fabric_address address = epw_fabric_address_of(fabric);
        address.wires = (uint8_t)cases[i].its;
        address.tcp_length = 0;
        address.boot_id.bytes[0] ^= cases[i].elsewhere;
        CHECK(epw_fabric_link(fabric, 1, &address, 1000000, where, &link) == EPW_ERR_NO_PATH);
        text_is(cases[i].text);
        epw_fabric_destroy(fabric);
    }
}

static void a_fabric_says_what_its_adapters_are(void) {
    epw_fabric *fabric = NULL;
    char text[EPW_FABRIC_TEXT];
    epw_fabric_options o = asked();
    o.adapter_count = 2;
    CHECK_OK(epw_fabric_create(&o, &fabric));
    const char *expected =
        "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.3, MTU 4096; "
        "fake_1 port 1, RoCEv2, GID 3 ending in 10.78.0.3, MTU 4096"; /* whatever its turn */
    CHECK_MSG(strcmp(epw_fabric_describe(fabric, text), expected) == 0, "%s", text);
    epw_fabric_destroy(fabric);
}

static void begin(void) {
    bench *b = new_bench();
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    take_down(b);
    free(b);
    look_at_first();
}

int main(void) {
    begin();
    whatever_fails_nothing_is_left();
    a_teardown_that_stops_keeps_what_the_adapter_may_use();
    a_queue_pair_is_closed_once_the_adapter_takes_a_command();
    options_of_a_fabric_have_limits();
    a_fabric_says_what_its_adapters_are();
    a_peer_with_another_kind_of_nic_is_refused();
    a_peer_that_no_wire_leads_to_is_refused();
    what_an_adapter_lacks_is_done_without_or_said();
    return check_result("mlx5_lacks");
}
