/* The floating-point mode of a thread: rounding, flushing and traps. Results are defined bit for bit
 * (numerics/numerics.h), but programs change the mode: torch.set_flush_denormal and -ffast-math flush
 * subnormals, interval arithmetic changes the rounding, debugging enables traps; and a new thread inherits
 * the mode of its creator. So code that computes first enters here, and on leaving restores the mode as
 * found, flags included. The compiler does not know of this: the computation must be behind a call that the
 * compiler cannot see into. */
#ifndef EPW_BASE_FLOAT_STATE_H
#define EPW_BASE_FLOAT_STATE_H

#include <stdint.h>

typedef struct epw_float_state {
    uint64_t control;
    uint64_t flags; /* exceptions raised so far, if they have a register of their own */
} epw_float_state;

/* Sets rounding to nearest even, keeps subnormals, disables traps. Returns the state for epw_float_leave. */
static inline epw_float_state epw_float_enter(void) {
    epw_float_state before = {0, 0};
#if defined(__x86_64__)
    /* MXCSR: FTZ 15, rounding 14:13, masks of exceptions 12:7, DAZ 6, flags 5:0. Writing it takes longer than
     * reading it, and usually nothing changes. */
    uint32_t found, wanted;
    __asm__ volatile("stmxcsr %0" : "=m"(found)::"memory");
    wanted = (found & ~0xffc0u) | 0x1f80u;
    if (wanted != found) __asm__ volatile("ldmxcsr %0" ::"m"(wanted) : "memory");
    before.control = found;
#elif defined(__aarch64__)
    /* FPCR: zero means all of that. FPSR: flags. */
    __asm__ volatile("mrs %0, fpcr" : "=r"(before.control)::"memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(before.flags)::"memory");
    if (before.control != 0) __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
#endif
    return before;
}

static inline void epw_float_leave(epw_float_state before) {
#if defined(__x86_64__)
    uint32_t found = (uint32_t)before.control, now;
    __asm__ volatile("stmxcsr %0" : "=m"(now)::"memory");
    if (now != found) __asm__ volatile("ldmxcsr %0" ::"m"(found) : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(before.control) : "memory");
    __asm__ volatile("msr fpsr, %0" ::"r"(before.flags) : "memory");
#else
    (void)before;
#endif
}

#endif
