/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

int epw_thread_start(void *(*body)(void *), void *argument, pthread_t *thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}
