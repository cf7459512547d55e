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

uint32_t epw_thread_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return (uint32_t)CPU_COUNT(&set);
}
