/* Work that occupies SMs: for tests in which a kernel's blocks must begin late, and plain copies beside which
 * other work is measured. */
#ifndef EPW_TESTS_HOG_H
#define EPW_TESTS_HOG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel on the current device. Returns a cudaError_t, as below. */
int hog_prepare(void);

/* Enqueues `blocks` blocks, each of which occupies an SM alone: the first for `ns`, each further one for
 * `apart_ns` longer. */
int hog_sms(uint32_t blocks, uint64_t ns, uint64_t apart_ns, void *stream);

/* Enqueues `blocks` blocks, each of which occupies an SM alone, that copy `bytes`, a multiple of 16, so many
 * times. */
int hog_copy(uint32_t blocks, void *to, const void *from, uint64_t bytes, uint32_t times, void *stream);

#ifdef __cplusplus
}
#endif

#endif
