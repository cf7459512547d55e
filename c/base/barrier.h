/* Barriers and hints of the host that C11 atomics do not cover, named after their purpose. All other ordering
 * is by acquire loads and release stores of signal words. */
#ifndef EPW_BASE_BARRIER_H
#define EPW_BASE_BARRIER_H

/* Orders payload written with non-temporal stores (copy_stream, reduce with `stream`) before the release
 * store of the signal word that announces it.
 *
 * The two observers: this thread, whose non-temporal stores sit in write-combining buffers outside the order
 * that x86 gives ordinary stores, and the thread of another rank that acquires the word and then reads the
 * payload. Without the fence the word may be seen before the bytes. Elsewhere the streaming entry points use
 * ordinary stores, which the release store orders by itself. The thread that wrote must call it itself. */
static inline void epw_stream_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

/* Orders a store before the check whether its reader has an unread notice, and the taking of a notice before
 * the loads of what was stored.
 *
 * The two observers: a rank that writes to a peer's window, and skips the notice to the peer's host while
 * an earlier one is unread; and that host, which takes the notice and then loads. Without a full fence on
 * both sides each may miss what the other has done: acquire and release do not order a store before a
 * later load. */
static inline void epw_notice_fence(void) {
    __sync_synchronize();
}

/* Orders loads from memory that a peer has lent before the check whether the peer has taken it back
 * meanwhile.
 *
 * The two observers: this thread, and the peer, which stores a word to take the memory back before its
 * program writes there again. Without the fence the check may be done first, and the loads may then see what
 * was written since. */
static inline void epw_borrow_fence(void) {
    __sync_synchronize();
}

/* For polling loops: tells the core that this thread only waits, so that a sibling thread gets its issue
 * slots. Orders nothing. */
static inline void epw_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
