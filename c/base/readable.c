/* See readable.h. */
#include "base/readable.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool epw_word_readable(const _Atomic uint64_t *word, uint32_t unlikely) {
    struct timespec nothing = {0, 0};
    return syscall(SYS_futex, (const uint32_t *)(const void *)word, FUTEX_WAIT, unlikely, &nothing, NULL,
                   0) == 0 ||
           errno != EFAULT;
}
