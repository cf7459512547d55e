/* Where a window's memory comes from and how another process maps it. The host's memory stands behind this
 * table today; the rest of the core never asks which device it is. */
#ifndef EPW_DEVICE_DEVICE_H
#define EPW_DEVICE_DEVICE_H

#include <stdint.h>

#include "base/status.h"

/* A mapped stretch of memory. */
typedef struct epw_memory {
    unsigned char *base;
    uint64_t bytes;
    int fd; /* what another process maps it by; -1 in a mapping of somebody else's memory */
} epw_memory;

/* Any thread may call these; one epw_memory belongs to one caller. `where` names the public operation in
 * errors. */
typedef struct epw_device {
    const char *name;

    /* Allocates at least `bytes` zeroed, shareable, resident bytes; out->bytes is what it became (whole
     * pages). A forked child does not inherit the mapping. EPW_ERR_NO_MEMORY or EPW_ERR_SYSTEM. */
    epw_status (*create)(uint64_t bytes, epw_where where, epw_memory *out);

    /* Undoes create: unmaps and closes the fd. */
    void (*destroy)(epw_memory *memory);

    /* Maps memory that another process created, after checking that it is exactly `bytes` long and can never
     * become shorter. Borrows the fd: the caller may close it once this returns. A forked child does not
     * inherit the mapping. EPW_ERR_PEER if the fd is not such memory, EPW_ERR_NO_MEMORY or EPW_ERR_SYSTEM. */
    epw_status (*map)(int fd, uint64_t bytes, epw_where where, epw_memory *out);

    /* Undoes map. */
    void (*unmap)(epw_memory *memory);
} epw_device;

extern const epw_device epw_device_host;

#endif
