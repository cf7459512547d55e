/* Doorbell registers of an adapter, mapped for kernels page by page. Several registers may lie in one page,
 * and several buffers of a process may use the same page: it stays mapped until its last user has unmapped
 * it. For builds with CUDA.
 *
 * Not yet tested with an adapter: the driver maps these pages only if it was loaded with PeerMappingOverride
 * (module option NVreg_RegistryDwords="PeerMappingOverride=1;") or does not need it. */
#ifndef EPW_DEVICE_CUDA_REGISTERS_H
#define EPW_DEVICE_CUDA_REGISTERS_H

#include "base/status.h"

#include <stdbool.h>

#ifdef EPW_CUDA

/* **out: the address at which kernels of this GPU write the register `reg`. `in_memory`: it is ordinary
 * memory. EPW_ERR_NO_PATH: the GPU cannot reach it; the text says what to do. */
epw_status epw_cuda_map_register(int32_t ordinal, uint64_t *reg, bool in_memory, epw_where where,
                                 uint64_t **out);

/* No kernel may write it any more. */
void epw_cuda_unmap_register(int32_t ordinal, uint64_t *reg);

#endif

#endif
