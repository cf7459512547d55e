/* The doctor's findings about an adapter that lacks something. */
#include "check.h"
#include "nic/mlx5/probe.h"

#include <string.h>

typedef struct expected {
    uint64_t lacks;
    uint32_t verdict;
    const char *name, *text, *remedy;
} expected;

#define LACK(what) UINT64_C(1) << EPW_FAKE_##what

static const epw_probe_finding *named(const epw_probe_finding *all, uint32_t count, const char *name) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
}

static void each_lack_has_its_finding(void) {
    static const expected cases[] = {
        {0, EPW_PROBE_OK, "DevX", "opens", ""},
        {0, EPW_PROBE_OK, "capabilities",
         "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096; rings of 32768 entries at most, "
         "atomics",
         ""},
        {0, EPW_PROBE_OK, "host memory", "registered for queues and for windows", ""},
        {0, EPW_PROBE_UNKNOWN, "GPU windows", "no GPU of this process to try it with", ""},
        {0, EPW_PROBE_UNKNOWN, "doorbells by kernels", "no GPU of this process to try it with", ""},
        {0, EPW_PROBE_OK, "queue pair", "a word sent to itself arrived", ""},
        {LACK(NO_DEVX), EPW_PROBE_MISSING, "DevX",
         "it has no DevX, which needs its firmware's user contexts (log_max_uctx)", ""},
        {LACK(NO_PORT), EPW_PROBE_MISSING, "capabilities",
         "no mlx5 adapter can be used: fake_0: no port is active: see ibv_devinfo, and the cable or the "
         "interface",
         ""},
        {LACK(NO_CQE_VERSION), EPW_PROBE_MISSING, "capabilities",
         "fake_0 writes completions of version 0, this library reads version 1: update its firmware", ""},
        {LACK(NO_ATOMICS), EPW_PROBE_WARNING, "capabilities",
         "fake_0 port 1, RoCEv2, GID 3 ending in 10.77.0.0, MTU 4096, no atomics; rings of 32768 entries at "
         "most",
         "see PCI_ATOMIC_MODE with mlxconfig"},
        {LACK(BF_UAR_ALONE), EPW_PROBE_WARNING, "queue pair",
         "a word sent to itself arrived; doorbells share a register or a page",
         "rdma-core 45 or newer, and a newer kernel"},
        {LACK(NO_UAR), EPW_PROBE_MISSING, "queue pair",
         "fake_0 gives no doorbell register of any kind (the first kind: errno 95): use fewer buffers or "
         "peers, or "
         "a newer kernel: Operation not supported (errno 95)",
         ""},
        {LACK(NO_NEIGHBOUR), EPW_PROBE_MISSING, "queue pair",
         "fake_0 finds no way to the peer's address, which ends in 10.77.0.0: see that ping reaches it by "
         "this "
         "adapter's interface: Connection timed out (errno 110)",
         ""},
        {LACK(NO_DOORBELLS), EPW_PROBE_MISSING, "queue pair",
         "a word sent to itself has neither arrived within 1000 ms nor failed",
         "some switches send nothing back to its sender: try two hosts; else see dmesg"},
        {LACK(NO_LOOPBACK), EPW_PROBE_MISSING, "queue pair",
         "a word sent to itself failed: the peer is not reached any more (syndrome 0x15, vendor 0x81)",
         "see that it lives, that ping reaches it between the addresses of the adapters, that both have one "
         "MTU, and that the traffic class is one that the switches do not drop"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
        uint32_t count = epw_mlx5_probe_fake(cases[i].lacks, -1, all);
        const epw_probe_finding *found = named(all, count, cases[i].name);
        CHECK_MSG(found != NULL, "case %zu: no %s", i, cases[i].name);
        if (found == NULL) continue;
        CHECK_MSG(found->verdict == cases[i].verdict && strcmp(found->text, cases[i].text) == 0 &&
                      strcmp(found->remedy, cases[i].remedy) == 0,
                  "case %zu: %u\n%s -> %s\nand not\n%s -> %s", i, found->verdict, found->text, found->remedy,
                  cases[i].text, cases[i].remedy);
    }
}

/* This machine has no adapter of that name, or not even the library: a finding says so. */
static void an_adapter_that_is_not_there_is_a_finding(void) {
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t count = epw_mlx5_probe("no_such_adapter", -1, all);
    CHECK(count == 1 && all[0].verdict == EPW_PROBE_MISSING && all[0].text[0] != '\0');
}

int main(void) {
    each_lack_has_its_finding();
    an_adapter_that_is_not_there_is_a_finding();
    return check_result("adapter_probe");
}
