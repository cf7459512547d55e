/* A fork in a process with buffers: the child can destroy what it inherited, and create its own; the parent
 * is not affected. */
#include "base/log.h"
#include "ep/buffer.h"
#include "group.h"
#include "nic/fabric.h"
#include "nic/soft/parts.h"
#include "prefill/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOCAL = EXPERTS / 2, ROWS = 2 * TOKENS, CHILD_SECONDS = 60 };

/* The exit code of a child that runs `body`; a hang counts as a failure. */
static int in_child(int (*body)(void *), void *context) {
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(body(context));
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status), "killed by signal %d", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int destroy_all(void *context) {
    destroy(context);
    return 0;
}

/* Two ranks with threads of their own, connected by this path. */
static group open_group(uint32_t path) {
    group g = {.ranks = 2};
    for (uint32_t r = 0; r < 2; r++) {
        epw_config config = config_of(r, 2);
        config.threads = 3;
        config.paths = path;
        CHECK_OK(epw_buffer_create(&config, &g.of[r]));
    }
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_to(g.of[r], r, g.of[1 - r], 1 - r));
    return g;
}

static epw_handle send_made(epw_buffer *b, batch *made, uint32_t rank, int32_t lane) {
    epw_handle handle = 0;
    epw_dispatch_input in = make_batch(made, rank);
    in.lane = lane;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    return handle;
}

/* Receives, answers with the rows as they came, and sums: every value of the result is known. */
static void finish_exactly(const group *g, const batch made[2], const epw_handle handles[2]) {
    unsigned char *rows[2];
    for (uint32_t r = 0; r < 2; r++) {
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
        uint32_t counts[LOCAL];
        rows[r] = aligned_alloc(64, (size_t)LOCAL * ROWS * HIDDEN * 2);
        out.rows = rows[r];
        out.counts = counts;
        CHECK_OK(epw_dispatch_receive(g->of[r], handles[r], &out, &outcome));
        CHECK(!outcome.degraded);
    }
    for (uint32_t r = 0; r < 2; r++) {
        epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
        answer.expert_out = rows[r];
        CHECK_OK(epw_combine(g->of[r], handles[r], &answer, NULL, NULL));
    }
    for (uint32_t r = 0; r < 2; r++) {
        static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
        epw_outcome outcome = EPW_OUTCOME_INIT;
        epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
        result.out = sums;
        CHECK_OK(epw_combine_receive(g->of[r], handles[r], &result, &outcome));
        CHECK(!outcome.degraded);
        uint32_t differ = 0;
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
            float routed = i < HIDDEN ? TOPK - 1 : TOPK;
            differ += sums[i] != bf16(from_bf16(made[r].x[i]) * 0.25f * routed);
        }
        CHECK_MSG(differ == 0, "rank %u: %u values", r, differ);
        free(rows[r]);
    }
}

static const uint32_t paths[] = {EPW_PATH_THREAD, EPW_PATH_SHM};

static void a_child_destroys_buffers_without_a_membership(void) {
    for (int i = 0; i < 2; i++) {
        group g = open_group(paths[i]);
        CHECK(in_child(destroy_all, &g) == 0);
        destroy(&g);
    }
}

/* One lane holds a handle; the other owes something that the background thread will pay. */
static void a_child_destroys_buffers_in_the_middle_of_operations(void) {
    static batch made[2], other[2];
    for (int i = 0; i < 2; i++) {
        group g = open_group(paths[i]);
        activate(&g, 1);
        CHECK_OK(epw_release(g.of[0], send_made(g.of[0], &other[0], 0, 1)));
        epw_handle handles[2];
        for (uint32_t r = 0; r < 2; r++) handles[r] = send_made(g.of[r], &made[r], r, 0);
        for (int round = 0; round < 5; round++) CHECK(in_child(destroy_all, &g) == 0);
        CHECK(g.of[0]->lanes[1].machine.paying);
        finish_exactly(&g, made, handles);
        CHECK_OK(epw_release(g.of[1], send_made(g.of[1], &other[1], 1, 1)));
        for (uint32_t r = 0; r < 2; r++) handles[r] = send_made(g.of[r], &made[r], r, 1);
        finish_exactly(&g, made, handles);
        destroy(&g);
    }
}

/* The numbers of the parent's descriptors are used by other files in the child: here each is the end of a
 * pipe, in which nothing must appear. */
static int make_a_window_and_look(void *context) {
    (void)context;
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0) return 1;
    for (int fd = 3; fd < 64; fd++)
        if (fd != ends[0] && fcntl(fd, F_GETFD) < 0) dup2(ends[1], fd);
    epw_window_options options = {
        .ranks = 2, .device = EPW_DEVICE_HOST, .paths = EPW_PATH_THREAD, .bytes = 1};
    epw_window *window = NULL;
    if (epw_window_create(&options, &window) != EPW_OK) return 2;
    epw_window_destroy(window);
    char byte;
    return read(ends[0], &byte, 1) > 0 ? 3 : 0;
}

static void a_child_writes_to_none_of_its_parents_descriptors(void) {
    group g = open_group(EPW_PATH_SHM);
    CHECK(in_child(make_a_window_and_look, &g) == 0);
    destroy(&g);
}

#if defined(__SANITIZE_THREAD__)
enum { THREADS_AFTER_FORK = 0 }; /* ThreadSanitizer ends a child that starts threads */
#else
enum { THREADS_AFTER_FORK = 1 };
#endif

static int work_on_its_own(void *context) {
    static batch made[2];
    const group *inherited = context;
    group g = open_group(EPW_PATH_SHM);
    activate(&g, 1);
    epw_handle handles[2];
    for (uint32_t r = 0; r < 2; r++) handles[r] = send_made(g.of[r], &made[r], r, 0);
    destroy(inherited);
    finish_exactly(&g, made, handles);
    destroy(&g);
    return atomic_load(&checks_failed) != 0;
}

static void a_child_makes_buffers_of_its_own(void) {
    if (!THREADS_AFTER_FORK) {
        printf("ignored: a_child_makes_buffers_of_its_own: ThreadSanitizer forbids threads after a fork\n");
        return;
    }
    group g = open_group(EPW_PATH_SHM);
    activate(&g, 1);
    CHECK(in_child(work_on_its_own, &g) == 0);
    destroy(&g);
}

typedef struct coming_and_going {
    atomic_bool over;
    uint32_t path;
} coming_and_going;

static void *come_and_go(void *argument) {
    coming_and_going *c = argument;
    while (!atomic_load(&c->over)) {
        group g = open_group(c->path);
        activate(&g, 1);
        destroy(&g);
    }
    return NULL;
}

/* At any point of what other threads are doing. */
static void a_child_of_a_busy_process_destroys_what_it_inherited(void) {
    group g = open_group(EPW_PATH_SHM);
    activate(&g, 1);
    coming_and_going busy[2] = {{.path = EPW_PATH_THREAD}, {.path = EPW_PATH_SHM}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, come_and_go, &busy[i]) == 0);
    for (int round = 0; round < 100; round++) {
        CHECK(in_child(destroy_all, &g) == 0);
        CHECK(in_child(make_a_window_and_look, &g) == 0);
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&busy[i].over, true);
        pthread_join(threads[i], NULL);
    }
    destroy(&g);
}

static int is_not_there(void *memory) {
    int ends[2];
    if (pipe(ends) != 0) return 1;
    return write(ends[1], memory, 1) == 1 ? 2 : errno != EFAULT;
}

/* The rings of a connection of the NIC. */
static void *find_rings(epw_nic *nic) {
    void *found = NULL;
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count; i++)
        if (nic->links[i] != NULL && nic->links[i]->rings.memory != NULL) found = nic->links[i]->rings.memory;
    epw_nic_unlock(nic);
    return found;
}

/* An adapter reads images. If a child had them too, the parent's next write would copy a page, and the
 * adapter would go on reading the former one. Rings are shared with the NICs of peers. */
static void a_child_has_neither_images_nor_rings(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_WIRE", "local", 1);
    unsetenv("EPW_TEST_NIC");
    group g = make_group(2, 60000 * MS);
    epw_nic *nic = epw_fabric_nic(g.fabrics[0]);
    CHECK(g.of[0]->peers.image != NULL && in_child(is_not_there, g.of[0]->peers.image) == 0);
    AWAIT(find_rings(nic) != NULL);
    CHECK(find_rings(nic) != NULL && in_child(is_not_there, find_rings(nic)) == 0);
    destroy(&g);
    unsetenv("EPW_TEST_PATH");
}

enum { LOG_HELD = 1, CHILD_ENDED };

/* Outlives the fork: ThreadSanitizer calls a thread that ended before it a leak of the child. */
static void *hold_the_log(void *argument) {
    atomic_int *stage = argument;
    epw_log_lock();
    atomic_store(stage, LOG_HELD);
    nanosleep(&(struct timespec){0, 50 * MS}, NULL); /* meanwhile the child is being made */
    epw_log_unlock();
    while (atomic_load(stage) != CHILD_ENDED) nanosleep(&(struct timespec){0, MS}, NULL);
    return NULL;
}

static int set_the_log(void *context) {
    (void)context;
    return epw_log_set(NULL, NULL, NULL) != EPW_OK;
}

static void a_child_can_set_the_log_while_the_parent_does(void) {
    atomic_int stage = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, hold_the_log, &stage) == 0);
    while (!atomic_load(&stage)) nanosleep(&(struct timespec){0, MS}, NULL);
    CHECK(in_child(set_the_log, NULL) == 0);
    atomic_store(&stage, CHILD_ENDED);
    pthread_join(thread, NULL);
}

/* A rank of prefill, and a dispatch whose receiving half is due. */
typedef struct half_dispatch {
    epw_prefill *prefill;
    epw_routing *routing;
} half_dispatch;

static int free_prefill(void *context) {
    half_dispatch *half = context;
    epw_status cancelled = epw_prefill_cancel(half->prefill, half->routing);
    epw_routing_free(half->routing);
    epw_prefill_destroy(half->prefill);
    return cancelled != EPW_ERR_STATE;
}

/* A thread of the parent may hold a lane's lock when the child is made. */
static void a_child_frees_routings_of_operations_under_way(void) {
    enum { N = 4, WIDTH = 8 };
    half_dispatch half = {0};
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_mask alone = first_ranks(1);
    static _Alignas(64) uint16_t x[N * WIDTH], rows[N * WIDTH];
    static int32_t ids[N];
    config.ep.ranks = config.ep.experts = config.ep.topk = config.ep.lanes = 1;
    config.ep.max_tokens = N;
    config.ep.hidden = WIDTH;
    CHECK_OK(epw_prefill_create(&config, &half.prefill));
    CHECK_OK(epw_prefill_set_active(half.prefill, &alone, 1, 0));
    CHECK_OK(epw_routing_create(half.prefill, &half.routing));
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = N;
    in.x = x;
    in.topk_idx = ids;
    in.topk = 1;
    for (uint32_t i = 0; i < N * WIDTH; i++) x[i] = bf16((float)(i % 16));
    CHECK_OK(
        epw_prefill_dispatch(half.prefill, half.routing, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, NULL, NULL));
    pthread_mutex_lock(&half.prefill->lanes[0].lock);
    CHECK(in_child(free_prefill, &half) == 0);
    pthread_mutex_unlock(&half.prefill->lanes[0].lock);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.capacity = N;
    out.rows = rows;
    CHECK_OK(epw_prefill_receive(half.prefill, half.routing, &out, NULL));
    CHECK(memcmp(rows, x, sizeof x) == 0);
    epw_routing_free(half.routing);
    epw_prefill_destroy(half.prefill);
}

int main(void) {
    a_child_destroys_buffers_without_a_membership();
    a_child_destroys_buffers_in_the_middle_of_operations();
    a_child_writes_to_none_of_its_parents_descriptors();
    a_child_makes_buffers_of_its_own();
    a_child_of_a_busy_process_destroys_what_it_inherited();
    a_child_can_set_the_log_while_the_parent_does();
    a_child_frees_routings_of_operations_under_way();
    a_child_has_neither_images_nor_rings();
    return check_result("forks");
}
