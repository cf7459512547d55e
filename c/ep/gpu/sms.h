/* How the lanes of a buffer on a GPU share its SMs, in decode and in prefill. */
#ifndef EPW_EP_GPU_SMS_H
#define EPW_EP_GPU_SMS_H

#ifdef EPW_CUDA

#include "base/status.h"
#include "device/sm_ledger.h"

/* How many lanes may have kernels on the GPU at the same time. */
uint32_t epw_gpu_concurrent_lanes(const epw_config *config);

/* The number of blocks of a kernel, at most `most`, such that each block of all lanes that run at the same
 * time has an SM of this buffer's share. Two lanes on two streams must never keep each other off the GPU,
 * because a peer may be waiting for one of them. `holder`: see epw_sm_request. */
epw_status epw_gpu_take_sms(const epw_config *config, uint64_t most, const char *holder, epw_where where,
                            epw_sm_share **share, uint32_t *blocks);

/* The number of blocks of the kernels of one operation, whose input asks for `sms`. `share`: the lane's
 * blocks. */
uint32_t epw_gpu_blocks_of(uint32_t sms, uint32_t share);

#endif

#endif
