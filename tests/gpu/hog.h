/* Work that holds SMs: for tests that want a kernel's blocks to begin late. */
#ifndef EPW_TESTS_HOG_H
#define EPW_TESTS_HOG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel on the current device. Returns a cudaError_t, as below. */
int hog_prepare(void);

/* Enqueues `blocks` blocks, each of which has an SM to itself for so long, and the next one for `apart_ns`
 * longer. */
int hog_sms(uint32_t blocks, uint64_t ns, uint64_t apart_ns, void *stream);

#ifdef __cplusplus
}
#endif

#endif
