/* Waiting for any of several operations: how one thread serves all that a process awaits.
 *
 *     look       at each: may a poll find something new? If not, on which word to sleep
 *     yield      while one of them is young, because its word may come within microseconds
 *     sleep      on all these words and on the interrupt, until the first of them changes
 *
 * A look touches no memory of an operation's caller and waits for no lock: what another thread has locked,
 * perhaps to move megabytes, is looked at again soon, and holds up nobody else. */
#ifndef EPW_PEER_AWAIT_H
#define EPW_PEER_AWAIT_H

#include "peer/peers.h"

typedef struct epw_awaited epw_awaited;

struct epw_awaited {
    /* epw_buffer_look, epw_comm_look or epw_prefill_look: fills in what is [out], all of which is 0 before.
     * `sleeps`: the thread is about to sleep, so the look first counts it where those who store a word look
     * for sleepers. Either the look sees the new word, or whoever stores it sees the sleeper. */
    void (*look)(epw_awaited *self, bool sleeps, uint64_t now);
    void *owner;       /* the buffer, communicator or prefill buffer */
    uint64_t of;       /* the handle, work or lane */
    uint64_t since;    /* when it was last polled; 0: at the next look */
    uint64_t limit_ns; /* it is ready that long after `since`, whatever its look says */

    bool ready;                 /* [out] a poll may find something new, or nothing runs any more */
    bool young;                 /* [out] not ready, but may be soon */
    uint32_t seen;              /* [out] the value of the word */
    _Atomic uint32_t *word;     /* [out] NULL: nobody wakes those who wait for it */
    _Atomic uint32_t *sleepers; /* [out] counts the thread, until it looks again */
    uint64_t ns;                /* [out] look again after this time, whatever the word is */
    const epw_peers *peers;     /* [out] whose queues to drive meanwhile; NULL: none */
};

/* Makes a waiting thread return, because there is something else to wait for. */
typedef struct epw_interrupt {
    _Atomic uint32_t count;
    _Atomic uint32_t sleepers;
} epw_interrupt;

/* Ends the current epw_await_any, and later ones that are given an older count. Any thread. */
void epw_interrupt_raise(epw_interrupt *interrupt);

/* Returns when one of them is ready or the interrupt's count is not `count` any more, after at least one look
 * at each. Bounded by the shortest limit. One thread at a time per interrupt, which may be NULL if n > 0. */
void epw_await_any(epw_awaited *const *all, uint32_t n, epw_interrupt *interrupt, uint32_t count);

/* ---- for looks ---- */

/* Another thread has it locked and makes it progress: look again soon. */
void epw_awaited_busy(epw_awaited *self);

/* Nobody wakes those who wait for it, as for work on a GPU: the longer it takes, the less often it is looked
 * at. */
void epw_awaited_by_time(epw_awaited *self, bool ready, uint64_t now);

#endif
