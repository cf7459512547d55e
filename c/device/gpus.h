/* Facts about the GPUs of this process before one is used, which the doctor shows to people. Not part of the
 * public interface; in a build without CUDA every call fails and says so. Any thread. */
#ifndef EPW_DEVICE_GPUS_H
#define EPW_DEVICE_GPUS_H

#include <stdint.h>

#include "base/status.h"

#define EPW_GPUS_MAX      64 /* the most ordinals that are examined */
#define EPW_GPU_BUS_BYTES 32 /* room for "0000:1A:00.0" */

typedef struct epw_gpu_facts {
    char name[96];
    char bus[EPW_GPU_BUS_BYTES];
    uint32_t major, minor;
    uint64_t memory_bytes;
    uint32_t dma_buf; /* 1: adapters can reach its memory by dma-buf */
    uint64_t access;  /* bits 1 << ordinal of the GPUs whose memory it can access */
    uint64_t atomics; /* those of them with native atomics on the link, as NVLink has */
} epw_gpu_facts;

/* At most EPW_GPUS_MAX. EPW_ERR_NO_PATH: none, with the reason. */
epw_status epw_gpus_count(uint32_t *count);

/* The GPU's PCI address. Creates no context. */
epw_status epw_gpu_bus(uint32_t ordinal, epw_where where, char out[EPW_GPU_BUS_BYTES]);

/* Creates no context. `count`: from epw_gpus_count. */
epw_status epw_gpu_look(uint32_t ordinal, uint32_t count, epw_gpu_facts *out);

/* Allocates memory that other processes could map by this path, EPW_PATH_VMM or EPW_PATH_IPC, and frees it
 * again. The GPU's primary context stays. EPW_ERR_NO_PATH also if the kernels cannot run there. */
epw_status epw_gpu_try(uint32_t ordinal, uint32_t path);

#endif
