/* How much more host memory this process may take before the kernel begins to kill: what the machine has
 * left, and what each cgroup that the process is in, and each above it, allows (v1 and v2, both where both
 * are mounted). A window is made resident at once, and that fails by a kill, not by an error: so it is asked
 * for here first. */
#ifndef EPW_DEVICE_MEMORY_LIMIT_H
#define EPW_DEVICE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* One bound. Of all that hold, the one that leaves least. */
typedef struct epw_memory_limit {
    uint64_t left;    /* bytes that may still be taken */
    uint64_t limit;   /* of the cgroup; of the machine 0 */
    char cgroup[256]; /* its name, as in /proc/self/cgroup; of the machine "" */
    const char *file; /* where its limit is set, "memory.max" or "memory.limit_in_bytes" */
} epw_memory_limit;

/* Reads what is below `root`: "" for the machine's own /proc and /sys, else a folder that has the like. What
 * is missing or unreadable limits nothing; false if nothing does. Allocates no memory, reads a bounded
 * amount. */
bool epw_memory_limit_find(const char *root, epw_memory_limit *out);

/* EPW_ERR_NO_MEMORY if `bytes` of `what` ("a window", say), and what the kernel takes to map them, pass the
 * limit. The text has both figures and the cgroup's name. */
epw_status epw_memory_limit_check(const char *root, const char *what, uint64_t bytes, epw_where where);

#endif
