/* Where a window's memory comes from and how other ranks map it: host memory or a GPU's. The rest of the core
 * never asks which device it is. */
#ifndef EPW_DEVICE_DEVICE_H
#define EPW_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* What is known of memory before it is mapped. */
typedef struct epw_origin {
    uint32_t path;         /* how another process maps it: EPW_PATH_SHM, EPW_PATH_VMM or EPW_PATH_IPC */
    unsigned char gpu[16]; /* the UUID of the GPU that holds it; zeros: none */
} epw_origin;

/* A mapped range of memory. */
typedef struct epw_memory {
    unsigned char *base;
    uint64_t bytes;
    int fd;          /* the descriptor with which another process maps it; -1 in a mapping of memory that
                      * another rank owns */
    int32_t ordinal; /* ordinal, in this process, of the GPU that holds it or for which it is mapped; host:
                      * -1 */
    epw_origin origin;
    bool borrowed; /* it belongs to the caller, see adopt */
} epw_memory;

/* Any thread may call these; one epw_memory belongs to one caller. `where` names the public operation in
 * errors. `ordinal` is the CUDA ordinal of the GPU that is to use the memory, or EPW_DEVICE_HOST. */
typedef struct epw_device {
    const char *name;

    /* Allocates at least `bytes` zeroed, shareable, resident bytes that other processes can map by one of
     * `paths`, if there is a choice; out->bytes is the actual size (whole pages). A forked child does not
     * inherit the mapping. EPW_ERR_NO_MEMORY, EPW_ERR_SYSTEM, or EPW_ERR_NO_PATH naming what is missing. */
    epw_status (*create)(int32_t ordinal, uint32_t paths, uint64_t bytes, epw_where where, epw_memory *out);

    /* Makes memory that the caller has allocated on this GPU mappable like that of create: the whole
     * allocation in which these bytes lie, out->base and out->bytes. It stays the caller's. Not for the host.
     * EPW_ERR_INVALID, naming `memory` or `bytes`, if they are not in one allocation that can be mapped. */
    epw_status (*adopt)(int32_t ordinal, void *memory, uint64_t bytes, epw_where where, epw_memory *out);

    /* Undoes create or adopt: unmaps what it has created, and closes the fd. The memory must no longer be in
     * use. */
    void (*destroy)(epw_memory *memory);

    /* Maps memory that another process created, after checking that it is `bytes` long and can never become
     * shorter. Borrows the fd, which the caller may close after the return. A forked child does not inherit
     * the mapping. Large host memory takes a while: EPW_ERR_TIMEOUT, with everything undone, if it is not
     * done by until_ns (epw_now_ns); for GPU memory, no driver call begins after that time. EPW_ERR_PEER if
     * the fd is not such memory, EPW_ERR_NO_PATH if the GPU cannot reach it, EPW_ERR_NO_MEMORY or
     * EPW_ERR_SYSTEM. */
    epw_status (*map)(int32_t ordinal, const epw_origin *origin, int fd, uint64_t bytes, uint64_t until_ns,
                      epw_where where, epw_memory *out);

    /* Undoes map. */
    void (*unmap)(epw_memory *memory);

    /* Lets `ordinal` access memory that another rank of this process created, at its existing address.
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
