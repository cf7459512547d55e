/* Waiting for any of several operations that are under way: how one thread serves all that a process awaits.
 *
 *     look       of each: may a poll find something new? If not, on which word to sleep
 *     yield      while one of them is young: its word may come within microseconds
 *     sleep      on all these words, and on the news of who awaits more, until the first changes
 *
 * Looks touch no memory of an operation's caller and wait for no lock: what a poll has locked, which may move
 * megabytes, is looked at again soon, and keeps nobody else waiting. */
#ifndef EPW_PEER_AWAIT_H
#define EPW_PEER_AWAIT_H

#include "peer/peers.h"

typedef struct epw_awaited {
    /* epw_buffer_look, epw_comm_look or epw_prefill_look: fills in what is [out], all of which is 0 before.
     * `sleeps`: the thread is about to sleep, so it is counted where who stores a word looks for sleepers,
     * and that before the look: either it sees the word, or who stores it sees the sleeper. */
    void (*look)(void *owner, uint64_t of, bool sleeps, uint64_t now, struct epw_awaited *self);
    void *owner;     /* the buffer, communicator or prefill buffer */
    uint64_t of;     /* the handle, work or lane */
    uint64_t age_ns; /* how long it has been awaited, since it was polled */

    bool ready;                 /* [out] a poll may find something new, or nothing is under way any more */
    bool young;                 /* [out] not ready, but may soon be */
    uint32_t seen;              /* [out] what the word was */
    _Atomic uint32_t *word;     /* [out] NULL: nothing wakes who waits for it */
    _Atomic uint32_t *sleepers; /* [out] one of these is the thread, from the look to its next one */
    uint64_t ns;                /* [out] look again after this, whatever the word is */
    const epw_peers *peers;     /* [out] whose queues are driven meanwhile; NULL: none */
} epw_awaited;

/* Somebody's wish that the awaiter should return, because what is awaited has changed. */
typedef struct epw_news {
    _Atomic uint32_t told;
    _Atomic uint32_t sleepers;
} epw_news;

/* Ends the epw_await_any that goes on, and the next that was given an older number. Any thread. */
void epw_news_tell(epw_news *news);

/* Returns once one of them is ready, the news are others than `told`, or timeout_ns are over, after one look
 * at each at least. One thread at a time for the same news, which may be NULL. */
void epw_await_any(epw_awaited *all, uint32_t count, epw_news *news, uint32_t told, uint64_t timeout_ns);

/* ---- for looks ---- */

/* Somebody has it locked, and goes on with it: looked at again soon. */
void epw_awaited_busy(epw_awaited *self);

/* Nothing wakes who waits for it, as for work on a GPU: looked at again the less often the longer it takes.
 */
void epw_awaited_by_time(epw_awaited *self, bool ready);

#endif
