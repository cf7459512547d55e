/* How much more host memory this process may take before the kernel starts to kill processes: what the
 * machine has left, and what the process's cgroup and each of its ancestors allow (v1 and v2, both if both
 * are mounted). A window is made resident at once, and running out of memory there ends in a kill, not in an
 * error: so the limit is checked first. */
#ifndef EPW_DEVICE_MEMORY_LIMIT_H
#define EPW_DEVICE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* One limit: of all that apply, the one that leaves the least. */
typedef struct epw_memory_limit {
    uint64_t left;    /* bytes that may still be taken */
    uint64_t limit;   /* of the cgroup; 0 for the machine */
    char cgroup[256]; /* its name, as in /proc/self/cgroup; "" for the machine */
    const char *file; /* the file that sets the limit, "memory.max" or "memory.limit_in_bytes" */
} epw_memory_limit;

/* Reads the files below `root`: "" for the machine's own /proc and /sys, else a folder that holds copies of
 * them. Files that are missing or unreadable impose no limit; returns false if there is no limit at all.
 * Allocates no memory and reads a bounded amount. */
bool epw_memory_limit_find(const char *root, epw_memory_limit *out);

/* EPW_ERR_NO_MEMORY if `bytes` of `what` ("a window", say), and what the kernel needs to map them, exceed the
 * limit. The text has both figures and the cgroup's name. */
epw_status epw_memory_limit_check(const char *root, const char *what, uint64_t bytes, epw_where where);

#endif
