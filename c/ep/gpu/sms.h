/* The SMs that the lanes of a buffer share, of decode and prefill on GPUs alike. */
#ifndef EPW_EP_GPU_SMS_H
#define EPW_EP_GPU_SMS_H

#ifdef EPW_CUDA

#include "base/status.h"
#include "device/sm_ledger.h"

/* Blocks of a kernel, `most` at most: so many that those of all lanes have an SM each, of this buffer's
 * share. Two lanes on two streams must never keep each other off the GPU: a peer may wait for one with its
 * other lane. `holder`: see epw_sm_request. */
epw_status epw_gpu_take_sms(const epw_config *config, uint64_t most, const char *holder, epw_where where,
                            epw_sm_share **share, uint32_t *blocks);

/* Blocks of the kernels of one operation, whose input says `sms`. `share`: those of the lane. */
uint32_t epw_gpu_blocks_of(uint32_t sms, uint32_t share);

#endif

#endif
