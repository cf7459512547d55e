/* Examines an adapter for the doctor, one prerequisite after the other. Not part of the public interface.
 *
 * Everything that it takes is given back. It has not run on a real adapter yet. */
#ifndef EPW_NIC_MLX5_PROBE_H
#define EPW_NIC_MLX5_PROBE_H

#include "nic/fake.h"
#include "nic/probe.h"

/* Examines the adapter of this name, for the GPU of this ordinal; -1: for no GPU. Takes at most two seconds,
 * plus the time of the kernel's calls. Returns the number of findings. Callable from any thread. */
uint32_t epw_mlx5_probe(const char *name, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]);

/* The same for the first device of a fake adapter without the features in `lacks`, see epw_fake_options. */
uint32_t epw_mlx5_probe_fake(uint64_t lacks, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]);

#endif
