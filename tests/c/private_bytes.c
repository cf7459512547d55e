/* The plan's private_bytes is all that the host engine allocates beside the window: the lanes, and the
 * scratch memory of each thread, whether their number is given or chosen by the library. */
#include "group.h"

#include "ep/host/host.h"

#include <dirent.h>
#include <malloc.h>

static uint32_t threads_of_this_process(void) {
    uint32_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    if (tasks != NULL) closedir(tasks);
    return count;
}

static uint64_t planned(uint32_t threads) {
    epw_config config = config_of(0, 1);
    config.threads = threads;
    epw_plan plan = EPW_PLAN_INIT;
    CHECK_OK(epw_plan_make(&config, &plan));
    return plan.private_bytes;
}

/* Returns how many threads the buffer has started. */
static uint32_t make(uint32_t threads, epw_buffer **b) {
    epw_config config = config_of(0, 1);
    config.threads = threads;
    uint32_t before = threads_of_this_process();
    CHECK_OK(epw_buffer_create(&config, b));
    return threads_of_this_process() - before;
}

int main(void) {
    epw_buffer *first, *one, *three, *chosen;
    make(1, &first); /* also starts what comes with the first thread of a process: a sanitizer's own */
    /* What every buffer starts: in this one the caller is the only thread that moves data. */
    uint32_t alone = make(1, &one);
    CHECK(make(3, &three) == alone + 2);
    uint32_t threads = 1 + make(0, &chosen) - alone;

    uint64_t scratch = one->host->scratch_bytes, lanes = planned(1) - scratch, used = 0;
    for (uint32_t i = 0; i < one->config.lanes; i++) used += malloc_usable_size(one->host->lanes[i].arena);
    CHECK(scratch >= HIDDEN * 2 && malloc_usable_size(one->host->scratch) >= scratch);
    CHECK_MSG(used >= lanes && used < lanes + 4096, "%llu of %llu", (unsigned long long)used,
              (unsigned long long)lanes);
    CHECK(planned(3) == lanes + 3 * three->host->scratch_bytes);
    CHECK_MSG(planned(0) == lanes + threads * chosen->host->scratch_bytes, "%llu with %u threads chosen",
              (unsigned long long)planned(0), threads);

    epw_buffer_destroy(first);
    epw_buffer_destroy(one);
    epw_buffer_destroy(three);
    epw_buffer_destroy(chosen);
    return check_result("private_bytes");
}
