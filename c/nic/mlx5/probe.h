/* What an adapter tells when it is opened, one prerequisite after the other: for the doctor. Not part of the
 * interface.
 *
 * Everything that is taken is given back. Nothing of it has met an adapter yet. */
#ifndef EPW_NIC_MLX5_PROBE_H
#define EPW_NIC_MLX5_PROBE_H

#include "nic/fake.h"

enum { EPW_PROBE_FINDINGS_MAX = 8, EPW_PROBE_NAME = 32, EPW_PROBE_TEXT = 512 };

typedef enum epw_probe_verdict {
    EPW_PROBE_OK,
    EPW_PROBE_UNKNOWN, /* it could not be looked at */
    EPW_PROBE_WARNING, /* queues work without it, slower */
    EPW_PROBE_MISSING  /* they do not */
} epw_probe_verdict;

typedef struct epw_probe_finding {
    uint32_t verdict;
    char name[EPW_PROBE_NAME];
    char text[EPW_PROBE_TEXT];
} epw_probe_finding;

/* Of the adapter of this name, for the GPU of this ordinal; -1: for none. Takes two seconds at most, but for
 * what the kernel does. Returns how many findings there are. Any thread. */
uint32_t epw_mlx5_probe(const char *name, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]);

/* The same of the first device of a fake adapter, which lacks this: see epw_fake_options. */
uint32_t epw_mlx5_probe_fake(uint64_t lacks, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]);

#endif
