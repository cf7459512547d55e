/* The doctor's findings about an adapter of any make, which is in software here (verbs/adapter.h): one that
 * is well, and what it says of each call that fails. */
#include "check.h"
#include "nic/mlx5/commands.h"
#include "nic/verbs/probe.h"
#include "verbs/library.h"

typedef struct expected {
    lan_call fails;
    uint32_t after;
    int err;
    uint32_t verdict;
    const char *name, *text, *remedy;
} expected;

static const char ulimit[] = "raise the limit of locked memory (ulimit -l)";

static const epw_probe_finding *named(const epw_probe_finding *all, uint32_t count, const char *name) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
}

static void require(const expected *e, size_t number) {
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t count = epw_verbs_probe("lan_0", -1, all);
    const epw_probe_finding *found = named(all, count, e->name);
    CHECK_MSG(found != NULL, "case %zu: no %s", number, e->name);
    CHECK_MSG(lan_left() == 0, "case %zu: %u things of the adapter are left", number, lan_left());
    if (found == NULL) return;
    CHECK_MSG(found->verdict == e->verdict && strcmp(found->text, e->text) == 0 &&
                  strcmp(found->remedy, e->remedy) == 0,
              "case %zu: %u\n%s -> %s\nand not\n%s -> %s", number, found->verdict, found->text, found->remedy,
              e->text, e->remedy);
}

static void each_call_that_fails_has_its_finding(void) {
    static const expected cases[] = {
        {LAN_NONE, 0, 0, EPW_PROBE_OK, "verbs", "lan_0 port 1, RoCEv2, GID 2 ending in 10.79.0.1, MTU 1024",
         ""},
        {LAN_NONE, 0, 0, EPW_PROBE_OK, "order", "its transport promises to place writes as they are posted",
         ""},
        {LAN_NONE, 0, 0, EPW_PROBE_OK, "host memory", "registered for queues and for windows", ""},
        {LAN_NONE, 0, 0, EPW_PROBE_UNKNOWN, "GPU windows", "no GPU of this process to try it with", ""},
        {LAN_NONE, 0, 0, EPW_PROBE_OK, "queue pair", "a word sent to itself arrived", ""},
        {LAN_OPEN, 0, EACCES, EPW_PROBE_MISSING, "verbs",
         "no RDMA adapter can be used: lan_0: this process may not open it: see /dev/infiniband, and in a "
         "container --device",
         ""},
        {LAN_GID, LAN_GID_INDEX, EIO, EPW_PROBE_MISSING, "verbs",
         "no RDMA adapter can be used: lan_0: its port has no RoCEv2 GID that others can reach: give its "
         "network "
         "interface an IPv4 address, or an IPv6 one that is routed",
         ""},
        {LAN_DOMAIN, 0, ENOMEM, EPW_PROBE_MISSING, "verbs",
         "lan_0 gives no protection domain or event queue: Cannot allocate memory (errno 12)", ""},
        {LAN_REGISTER, 0, ENOMEM, EPW_PROBE_MISSING, "host memory", "not registered (errno 12)", ulimit},
        {LAN_REGISTER, 0, EFAULT, EPW_PROBE_MISSING, "host memory", "not registered (errno 14)", "see dmesg"},
        {LAN_CHANNEL, 0, EMFILE, EPW_PROBE_MISSING, "queue pair",
         "completions are not reported: Too many open files (errno 24)",
         "see the limit of open files (ulimit -n)"},
        {LAN_CQ, 0, ENOMEM, EPW_PROBE_MISSING, "queue pair", "not made: Cannot allocate memory (errno 12)",
         ulimit},
        {LAN_QP, 0, EOPNOTSUPP, EPW_PROBE_MISSING, "queue pair",
         "not made: Operation not supported (errno 95)",
         "it needs an adapter with reliable connected queue pairs (RC)"},
        {LAN_MODIFY, 2, ETIMEDOUT, EPW_PROBE_MISSING, "queue pair",
         "not connected to itself: Connection timed out (errno 110)",
         "see the port's state with ibv_devinfo -v"},
        {LAN_POST, 0, EIO, EPW_PROBE_MISSING, "queue pair", "takes no entry: Input/output error (errno 5)",
         "see dmesg"},
        {LAN_POLL, 0, EIO, EPW_PROBE_MISSING, "queue pair",
         "tells no completions: Input/output error (errno 5)", "see dmesg"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pthread_mutex_lock(&lan.lock);
        lan.failing = cases[i].fails;
        lan.failing_after = cases[i].after;
        lan.failing_errno = cases[i].err;
        lan.calls = 0;
        pthread_mutex_unlock(&lan.lock);
        require(&cases[i], i);
    }
    pthread_mutex_lock(&lan.lock);
    lan.failing = LAN_NONE;
    pthread_mutex_unlock(&lan.lock);
}

static void a_transport_without_order_is_told(void) {
    static const expected e = {
        .verdict = EPW_PROBE_WARNING,
        .name = "order",
        .text = "its transport promises none: words are posted when what is before them is done",
        .remedy = ""};
    lan_device.transport = 1; /* iWARP */
    require(&e, 0);
    lan_device.transport = EPW_ABI_TRANSPORT_IB;
}

/* Otherwise nobody would ever see a word fail. */
static void an_adapter_gives_up_before_the_doctor_does(void) {
    epw_mlx5_path path = {0};
    epw_mlx5_choose_retries(EPW_PROBE_RETRIES_NS, &path);
    uint64_t all_ns = (UINT64_C(4096) << path.timeout) * (path.retries + 1);
    CHECK_MSG(all_ns < UINT64_C(1000000) * EPW_PROBE_WAIT_MS, "%llu ns", (unsigned long long)all_ns);
}

/* By the library's number for retries that have been exceeded. */
static void a_word_that_fails_says_why(void) {
    static const expected e = {
        .verdict = EPW_PROBE_MISSING,
        .name = "queue pair",
        .text = "a word sent to itself failed: the peer is not reached any more (syndrome 0x15, vendor 0x07)",
        .remedy =
            "see that it lives, that ping reaches it between the addresses of the adapters, that both have "
            "one MTU, and that the traffic class is one that the switches do not drop"};
    pthread_mutex_lock(&lan.lock);
    lan.fails_status = 12;
    pthread_mutex_unlock(&lan.lock);
    require(&e, 0);
}

static void an_adapter_that_is_not_there_is_a_finding(void) {
    epw_probe_finding all[EPW_PROBE_FINDINGS_MAX];
    uint32_t count = epw_verbs_probe("no_such_adapter", -1, all);
    CHECK_MSG(count == 1 && all[0].verdict == EPW_PROBE_MISSING &&
                  strcmp(all[0].text,
                         "options.adapters (EPWIRE_HCA), \"=no_such_adapter\", matches none of 1 "
                         "RDMA adapters; the first is lan_0") == 0,
              "%u: %s", count, all[0].text);
}

int main(void) {
    lan_begin();
    each_call_that_fails_has_its_finding();
    a_transport_without_order_is_told();
    an_adapter_gives_up_before_the_doctor_does();
    a_word_that_fails_says_why();
    an_adapter_that_is_not_there_is_a_finding();
    lan_end();
    CHECK_MSG(lan.broken_rules == 0, "%u rules of the adapter were broken", lan.broken_rules);
    return check_result("verbs_probe");
}
