/* What is known of this process's GPUs before one is used, for the doctor to print. Not part of the
 * interface; in a build without CUDA every call says so. Any thread. */
#ifndef EPW_DEVICE_GPUS_H
#define EPW_DEVICE_GPUS_H

#include <stdint.h>

#include "base/status.h"

#define EPW_GPUS_MAX      64 /* ordinals that are looked at */
#define EPW_GPU_BUS_BYTES 32 /* of "0000:1A:00.0" */

typedef struct epw_gpu_facts {
    char name[96];
    char bus[EPW_GPU_BUS_BYTES];
    uint32_t major, minor;
    uint64_t memory_bytes;
    uint32_t dma_buf; /* 1: adapters can reach its memory by dma-buf */
    uint64_t access;  /* 1 << ordinal of the GPUs whose memory it may reach */
    uint64_t atomics; /* of these the ones with atomics on the way, as NVLink has */
} epw_gpu_facts;

/* EPW_ERR_NO_PATH: none, and why. At most EPW_GPUS_MAX. */
epw_status epw_gpus_count(uint32_t *count);

/* Where it is on the PCI bus. Creates no context. */
epw_status epw_gpu_bus(uint32_t ordinal, epw_where where, char out[EPW_GPU_BUS_BYTES]);

/* Creates no context. `count`: as epw_gpus_count says. */
epw_status epw_gpu_look(uint32_t ordinal, uint32_t count, epw_gpu_facts *out);

/* Makes memory that other processes could map by this path, EPW_PATH_VMM or EPW_PATH_IPC, and frees it again.
 * The GPU's primary context stays. EPW_ERR_NO_PATH too where the kernels cannot run there. */
epw_status epw_gpu_try(uint32_t ordinal, uint32_t path);

#endif
