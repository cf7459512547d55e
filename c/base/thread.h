/* Threads of the library's own. */
#ifndef EPW_BASE_THREAD_H
#define EPW_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* pthread_create with all signals blocked: they belong to the program's threads, whose handlers never run on
 * one of ours. Returns 0 or an errno value. */
int epw_thread_start(void *(*body)(void *), void *argument, pthread_t *thread);

/* Names the calling thread, for ps -L and its like: at most 15 characters. */
void epw_thread_name(const char *name);

/* Cores that the calling thread may run on; at least 1. */
uint32_t epw_thread_cores(void);

#endif
