/* Examines an adapter of any make for the doctor, as the verbs wire uses it: one prerequisite after the
 * other. Not part of the public interface. */
#ifndef EPW_NIC_VERBS_PROBE_H
#define EPW_NIC_VERBS_PROBE_H

#include "nic/probe.h"

/* Examines the adapter of this name, for the GPU of this ordinal; -1: for no GPU. Everything that it takes is
 * given back. Takes at most two seconds, plus the time of the kernel's calls. Returns the number of findings.
 * Callable from any thread. */
uint32_t epw_verbs_probe(const char *name, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]);

#endif
