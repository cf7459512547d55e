/* Threads of the library. */
#ifndef EPW_BASE_THREAD_H
#define EPW_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* pthread_create with all signals blocked: signals belong to the program's threads, so that its handlers
 * never run on a thread of the library. Returns 0 or an errno value. */
int epw_thread_start(void *(*body)(void *), void *argument, pthread_t *thread);

/* Names the calling thread, for ps -L and the like: at most 15 characters. */
void epw_thread_name(const char *name);

/* The number of cores on which the calling thread may run; at least 1. */
uint32_t epw_thread_cores(void);

#endif
