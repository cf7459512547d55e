/* Ranks that may not read each other's memory by process_vm_readv: large pieces pass through the rings, with
 * the same results, and the log says so. */
#include "comms.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { RANKS = 2, COUNT = 1 << 18 };

/* For this thread and those that it starts. */
static bool forbid_reading(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* What ranks say of each other; written by the thread of `rank` alone. */
typedef struct heard {
    int of[RANKS][RANKS];
} heard;

static void hear(void *context, const epw_log_record *record) {
    heard *h = context;
    if (strstr(record->text, "process_vm_readv") == NULL) return;
    CHECK(record->level == EPW_LOG_INFO && strstr(record->text, "epw_comm_alloc") != NULL);
    h->of[record->rank][record->peer]++;
}

typedef struct sums {
    const comms *c;
    bool heap;
} sums;

static void sum(uint32_t rank, void *context) {
    const sums *s = context;
    epw_comm *comm = s->c->of[rank];
    void *memory = NULL;
    if (s->heap) {
        CHECK_OK(epw_comm_alloc(comm, COUNT * sizeof(float), &memory));
    } else {
        memory = malloc(COUNT * sizeof(float));
    }
    float *own = memory, *out = malloc(COUNT * sizeof(float));
    if (own == NULL || out == NULL) abort();
    for (uint32_t i = 0; i < COUNT; i++) own[i] = (float)(i + rank);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_all_reduce(comm, own, out, COUNT, EPW_TYPE_F32, EPW_SUM, NULL, &outcome));
    CHECK(!outcome.degraded);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < COUNT; i++) wrong += out[i] != (float)(2 * i + 1);
    CHECK_MSG(wrong == 0, "%u sums are wrong", wrong);
    free(out);
    if (s->heap) {
        epw_comm_free(comm, memory);
    } else {
        free(memory);
    }
}

int main(void) {
    if (path_of_test() == EPW_PATH_QUEUE) {
        printf("NOT CHECKED: unreadable, because ranks behind queues do not read each other's memory\n");
        return 77;
    }
    if (!forbid_reading()) {
        printf("NOT CHECKED: unreadable, because this process cannot install a filter\n");
        return 77;
    }
    heard h = {0};
    CHECK_OK(epw_log_set("path=info", hear, &h));
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.heap_bytes = COUNT * sizeof(float);
    comms c = open_comms(RANKS, config);
    activate_comms(&c, 1);
    on_all(RANKS, sum, &(sums){&c, false});
    on_all(RANKS, sum, &(sums){&c, true});
    CHECK_MSG(h.of[0][1] == 1 && h.of[1][0] == 1, "%d and %d lines", h.of[0][1], h.of[1][0]);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
    close_comms(&c);
    return check_result("unreadable");
}
