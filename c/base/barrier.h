/* Barriers and hints of the host that C11 atomics do not cover, named by what they are for. Everything else
 * orders by acquire loads and release stores of signal words. */
#ifndef EPW_BASE_BARRIER_H
#define EPW_BASE_BARRIER_H

/* Between payload written with non-temporal stores (copy_stream, reduce with `stream`) and the release store
 * of the signal word that announces it.
 *
 * The two observers: this thread, whose non-temporal stores sit in write-combining buffers outside the order
 * that x86 gives ordinary stores, and the thread of another rank that acquires the word and then reads the
 * payload. Without the fence the word may be seen before the bytes. Elsewhere the streaming entry points use
 * ordinary stores, which the release store orders by itself. Must be called by the very thread that wrote. */
static inline void epw_stream_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

/* Between a store and the check whether its reader has been notified, and between the notification and the
 * load of what was stored.
 *
 * The two observers: a rank that writes to a peer's window, and skips telling the peer's host while an
 * earlier notice lies unread; and that host, which takes the notice and then loads. Without a full fence on
 * both sides each may miss what the other has done: acquire and release do not order a store before a later
 * load. */
static inline void epw_notice_fence(void) {
    __sync_synchronize();
}

/* Between reading memory that a peer has lent and the check whether it has been taken back meanwhile.
 *
 * The two observers: this thread, and the peer, which stores that it takes the memory back before its program
 * writes there again. Without the fence the check may come first, and the reads may then find what was
 * written after it. */
static inline void epw_borrow_fence(void) {
    __sync_synchronize();
}

/* In a polling loop: tells the core that this thread only waits, so that a sibling thread gets its issue
 * slots. Orders nothing. */
static inline void epw_cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
