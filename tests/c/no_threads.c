/* What is said where a thread cannot be started, and that nothing is left behind then. */
#include "no_threads.h"

#include "held.h"
#include "mlx5_rank.h"

#include <sys/syscall.h>
#include <unistd.h>

/* A thread that sleeps on descriptors is started behind its eventfd. This many later, no more threads start.
 */
static int until_none = -1;

int eventfd(unsigned value, int flags) {
    if (until_none >= 0 && until_none-- == 0) start_no_threads(true);
    return (int)syscall(SYS_eventfd2, value, flags);
}

static void is_refused(epw_status status, const char *text) {
    start_no_threads(false);
    until_none = -1;
    CHECK_MSG(status == EPW_ERR_SYSTEM, "%s", epw_status_name(status));
    CHECK_MSG(strcmp(epw_last_error(), text) == 0, "%s\nand not\n%s", epw_last_error(), text);
}

static void a_fabric_says_which_thread(void) {
    static const char *const texts[] = {
        "fabric: rank 3: cannot start the thread of the software NIC: Resource temporarily unavailable "
        "(errno 11)",
        "fabric: rank 3: cannot start the thread that makes connections: Resource temporarily unavailable "
        "(errno 11)"};
    for (int i = 0; i < 2; i++) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        epw_fabric *fabric = NULL;
        options.rank = RANK;
        until_none = i;
        is_refused(epw_fabric_create(&options, &fabric), texts[i]);
        CHECK(fabric == NULL);
        nothing_more_is_held("a fabric", (uint32_t)i);
    }
}

static void an_adapter_says_which_thread(void) {
    bench *b = new_bench();
    CHECK_OK(epw_nic_open(where, &b->nic));
    CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK, .nic = b->nic}, where, &b->fake));
    start_no_threads(true);
    is_refused(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter),
               "test: rank 3: cannot start the thread that looks at words: Resource temporarily unavailable "
               "(errno 11)");
    take_down(b);
    free(b);
    nothing_more_is_held("an adapter", 0);
}

/* Queues have a thread that attends them. */
static void a_queue_says_which_thread(void) {
    static const epw_mlx5_poster posters[] = {EPW_MLX5_HOST, EPW_MLX5_KERNELS, EPW_MLX5_KERNELS_UNHEARD};
    for (int i = 0; i < 3; i++) {
        bench *b = new_bench();
        epw_mlx5_pair *pair = NULL;
        epw_mlx5_pair_options options = {.depth = DEPTH, .poster = posters[i]};
        CHECK_OK(epw_nic_open(where, &b->nic));
        CHECK_OK(epw_fake_open(&(epw_fake_options){.rank = RANK, .nic = b->nic}, where, &b->fake));
        CHECK_OK(epw_mlx5_open(epw_fake_calls(b->fake), &(epw_mlx5_options){0}, where, &b->adapter));
        start_no_threads(true);
        is_refused(epw_mlx5_pair_create(b->adapter, &options, where, &pair),
                   "test: rank 3: cannot start the thread that attends queues: Resource temporarily "
                   "unavailable (errno 11)");
        CHECK(pair == NULL);
        CHECK_OK(epw_mlx5_pair_create(b->adapter, &options, where, &pair)); /* once there is room again */
        CHECK(epw_mlx5_pair_destroy(pair));
        take_down(b);
        free(b);
        nothing_more_is_held("a queue", 0);
    }
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
    a_fabric_says_which_thread();
    an_adapter_says_which_thread();
    a_queue_says_which_thread();
    return check_result("no_threads");
}
