/* Where a window's memory comes from and how others map it: host memory or a GPU's. The rest of the core
 * never asks which device it is. */
#ifndef EPW_DEVICE_DEVICE_H
#define EPW_DEVICE_DEVICE_H

#include <stdint.h>

#include "base/status.h"

/* What there is to know of memory before it is mapped. */
typedef struct epw_origin {
    uint32_t path;         /* how another process maps it: EPW_PATH_SHM, EPW_PATH_VMM or EPW_PATH_IPC */
    unsigned char gpu[16]; /* the UUID of the GPU that it is on; zeros: none */
} epw_origin;

/* A mapped stretch of memory. */
typedef struct epw_memory {
    unsigned char *base;
    uint64_t bytes;
    int fd;          /* what another process maps it by; -1 in a mapping of somebody else's memory */
    int32_t ordinal; /* the GPU, in this process, that it is on or that it is mapped for; the host: -1 */
    epw_origin origin;
} epw_memory;

/* Any thread may call these; one epw_memory belongs to one caller. `where` names the public operation in
 * errors. `ordinal` is the CUDA ordinal of the GPU that is to use the memory, or EPW_DEVICE_HOST. */
typedef struct epw_device {
    const char *name;

    /* Allocates at least `bytes` zeroed, shareable, resident bytes that other processes can map by one of
     * `paths` where there is a choice; out->bytes is what it became (whole pages). A forked child does not
     * inherit the mapping. EPW_ERR_NO_MEMORY, EPW_ERR_SYSTEM, or EPW_ERR_NO_PATH naming what is missing. */
    epw_status (*create)(int32_t ordinal, uint32_t paths, uint64_t bytes, epw_where where, epw_memory *out);

    /* Undoes create: unmaps and closes the fd. Nobody uses the memory any more. */
    void (*destroy)(epw_memory *memory);

    /* Maps memory that another process created, after checking that it is `bytes` long and can never become
     * shorter. Borrows the fd: the caller may close it once this returns. A forked child does not inherit the
     * mapping. Large host memory takes a while: EPW_ERR_TIMEOUT, with all undone, if it is not done by
     * until_ns (epw_now_ns); for a GPU's, no call of the driver begins later. EPW_ERR_PEER if the fd is not
     * such memory, EPW_ERR_NO_PATH if the GPU cannot reach it, EPW_ERR_NO_MEMORY or EPW_ERR_SYSTEM. */
    epw_status (*map)(int32_t ordinal, const epw_origin *origin, int fd, uint64_t bytes, uint64_t until_ns,
                      epw_where where, epw_memory *out);

    /* Undoes map. */
    void (*unmap)(epw_memory *memory);

    /* Lets `ordinal` use memory that another rank of this process created, at its own address.
     * EPW_ERR_NO_PATH if the GPU cannot reach it. */
    epw_status (*share)(const epw_memory *memory, int32_t ordinal, epw_where where);
} epw_device;

extern const epw_device epw_device_host;

/* In a build without CUDA its create fails. */
extern const epw_device epw_device_cuda;

static inline const epw_device *epw_device_of(int32_t ordinal) {
    return ordinal == EPW_DEVICE_HOST ? &epw_device_host : &epw_device_cuda;
}

#endif
