/* See thread.h. */
#include "base/thread.h"

#include <sched.h>
#include <signal.h>

int epw_thread_start(void *(*body)(void *), void *argument, pthread_t *thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

void epw_thread_name(const char *name) {
    pthread_setname_np(pthread_self(), name);
}

/* 0: the set is too small for this kernel, or there is no memory for it. */
static uint32_t count_cores(int cpus) {
    cpu_set_t *set = CPU_ALLOC((size_t)cpus);
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
    uint32_t count = 0;
    if (set != NULL && sched_getaffinity(0, bytes, set) == 0) count = (uint32_t)CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return count;
}

uint32_t epw_thread_cores(void) {
    uint32_t count = 0;
    for (int cpus = CPU_SETSIZE; count == 0 && cpus <= 1 << 20; cpus *= 2) count = count_cores(cpus);
    return count > 0 ? count : 1;
}
