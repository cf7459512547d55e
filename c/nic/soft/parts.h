/* The parts of a soft NIC, for its own files: queue pairs, connections, and the calls between them.
 * Everything here is used with the NIC locked. */
#ifndef EPW_NIC_SOFT_PARTS_H
#define EPW_NIC_SOFT_PARTS_H

#include "nic/other_end.h"
#include "nic/soft/fetch.h"
#include "nic/soft/frame.h"
#include "nic/soft/ring.h"
#include "nic/soft/strict.h"
#include "nic/soft.h"
#include "nic/verbs.h"

#include <pthread.h>
#include <sys/uio.h>

typedef struct epw_link epw_link;
typedef struct epw_carrier epw_carrier; /* an adapter, see carry.c, and a pair's part of it */
typedef struct epw_carried epw_carried;

/* State of a queue pair at a strict NIC. */
typedef struct epw_strict_pair {
    uint64_t fetch_at_ns; /* not before that time */
    uint64_t hashes[];    /* [2 * depth]: hashes of an entry, and of the bytes that it sends */
} epw_strict_pair;

/* Of a strict NIC. */
typedef struct epw_strict {
    uint64_t random;
    uint32_t delay_us;
    epw_fault fault;
} epw_strict;

/* The READ or FETCH_ADD whose answer has not come: nothing after it is fetched. */
typedef struct epw_asked {
    bool waits, signalled;
    uint32_t index, key, bytes; /* where the answer goes */
    uint64_t local;
} epw_asked;

/* The answer that must be sent to the peer. */
typedef struct epw_owed {
    bool due;
    epw_frame request;
    uint64_t old; /* of a FETCH_ADD */
} epw_owed;

struct epw_pair {
    epw_nic *nic;
    epw_pair_options options;
    epw_pair_memory memory;
    uint32_t number;

    /* Rung and not yet looked at: a stack that any thread pushes on. */
    _Atomic(epw_pair *) rung_next;
    atomic_bool rung;

    /* Sending. Entries below `completed` are done, below `fetched` in frames, below `target` rung for. */
    epw_link *link;      /* NULL: not connected, or gone */
    uint32_t remote;     /* 0: it is not connected */
    epw_other_end other; /* carried pairs */
    uint64_t completed, fetched, target;
    bool travels; /* frames of entries that are not done */
    atomic_bool broken, given_up;
    epw_pair_cause cause;
    bool heard; /* the other end has acknowledged that this one is connected to it */
    bool sends; /* in the link's list of those with entries */
    epw_pair *next_sender;
    epw_asked asked;
    epw_strict_pair *strict; /* NULL: it is not */
    epw_carried *carried;    /* NULL: there is no adapter to carry it */

    /* Receiving, from the connection by which the first frame came, or the latest that announced a pair of
     * the peer before that. */
    epw_link *from;
    bool taken;  /* a request has come by it, so no other connection may take its place */
    bool closed; /* nothing more is taken: that connection is gone, or the peer has replaced its end */
    uint32_t answers_to, expected, ack;
    bool ack_due;
    epw_owed owed;
    bool answers; /* in the link's list of those with an answer to give */
    epw_pair *next_answerer;
};

enum {
    LINK_FRAMES = 128,                    /* under way at a time */
    LINK_PIECES = 1 + EPW_FETCH_SEGMENTS, /* of a frame: its header, and what an entry sends */
    LINK_HEADS_BYTES =
        LINK_FRAMES * (EPW_FRAME_BYTES + EPW_FETCH_INLINE), /* their headers and inline bytes */
    LINK_IN_BYTES = 1 << 19, /* pages that no large entry uses are never touched */
    LINK_NOTICES = 16
};

/* Bytes of frames under way whose pair or region is gone. */
typedef struct epw_copied {
    struct epw_copied *next;
    uint64_t bytes;
    unsigned char at[];
} epw_copied;

struct epw_link {
    epw_nic *nic;
    int fd;
    uint32_t peer;
    uint64_t id;
    /* The rings that carry its bytes, if any: then the socket carries only wake-ups. */
    epw_rings rings;
    bool awaits_rings; /* the other end has not passed them yet */

    /* Out: frames being sent, then the pairs that have more. */
    epw_pair *senders, *last_sender, *answerers;
    epw_frame notices[LINK_NOTICES]; /* NAKs, and what is said about pairs, in this order */
    uint32_t notice_count;
    struct iovec out[LINK_PIECES * LINK_FRAMES];
    uint32_t out_at, out_count;
    uint32_t heads_used;
    unsigned char heads[LINK_HEADS_BYTES];
    epw_frame last;           /* of those under way, where it may be extended, */
    unsigned char *last_head; /* and where its header lies; NULL: it may not be extended */
    epw_copied *copied;
    bool awaits_room;
    bool urgent;       /* one of the answerers has more to send than an ACK, which may wait */
    uint64_t acks_by;  /* then: until this time; 0: it waits for nothing */
    bool ends, frozen; /* by a planned fault: closes once what is in frames has been sent; at once */

    /* In: bytes read and not yet looked at, and the frame whose bytes are coming. */
    bool over; /* it brings nothing more, and is about to be closed */
    uint32_t in_begin, in_end;
    epw_frame frame;
    bool in_frame;
    epw_pair *to;            /* NULL: the frame is refused, or its pair is gone */
    uint32_t key;            /* of the region that its bytes are for */
    unsigned char *at;       /* where the next bytes go: there, or to `word` */
    uint64_t left, row_left; /* of the frame, and of its entry */
    bool is_word;            /* what a WRITE of a word brings, or a FETCH_ADD */
    uint64_t word;
    unsigned char in[LINK_IN_BYTES];
};

struct epw_nic {
    pthread_mutex_t lock;
    _Atomic uint32_t lockers; /* threads that wait for the lock itself, not only for their work to be done */
    pthread_t thread;
    bool started, ending;
    int epoll, wake;
    _Atomic(epw_pair *) rung;

    /* Who drives. */
    atomic_uint drives, rests; /* so far */
    atomic_uint left;          /* the drives when a driver last left */
    atomic_bool dozing;        /* the thread, which takes the lock after a doze */
    uint64_t now_ns;           /* locked: of the driver that holds the lock; 0: it is none */
    uint32_t held_links;       /* locked: those that wait for a socket's room */
    uint32_t ring_links;       /* locked: those by rings, and all */
    uint32_t open_links;
    uint64_t looked_ns; /* locked: when a driver last looked at sockets */
    bool goes_on;       /* locked: a ring has room for what was not sent in its turn */
    bool called;        /* locked: the thread has been woken, and has not reacted yet */
    bool unsent;        /* locked: more is to be sent than when all last had their turn */
    atomic_uint stretch;

    epw_nic_traffic sent;
    epw_strict *strict;   /* NULL: it is not */
    epw_carrier *carrier; /* NULL: there is none */
    epw_nic_owner owner;  /* of the adapters' pairs; zeros: there are none */
    epw_regions regions;
    epw_link **links;
    uint32_t link_count, link_serial;
    epw_pair **pairs; /* by the low 16 bits of their numbers */
    uint8_t *serials; /* the upper 8 bits of the last number in each place */
    uint32_t pair_count;
    uint32_t polled; /* of them, those whose doorbells the thread looks at */
};

/* ---- pair.c ---- */

epw_pair *epw_nic_pair(const epw_nic *nic, uint32_t number);

/* Looks at the doorbells that have been rung. */
void epw_nic_heed_rung(epw_nic *nic);

/* Polls the doorbells that nobody announces. Returns whether one had been rung. */
bool epw_nic_heed_polled(epw_nic *nic);

/* Whether it has entries that may be fetched now. */
bool epw_pair_has_more(const epw_pair *pair);

/* Reads the bytes of an entry, and decodes them, with the addresses of the segments that it sends or to which
 * its answer goes. */
const unsigned char *epw_pair_entry(const epw_pair *pair, uint32_t index);
uint8_t epw_pair_fetch(const epw_pair *pair, uint32_t index, epw_fetched *entry,
                       const unsigned char *bytes[EPW_FETCH_SEGMENTS]);

/* The next frame of the pair, with its bytes; false if it has none, or has just failed. */
bool epw_pair_next(epw_pair *pair, epw_frame *frame, epw_fetched *entry,
                   const unsigned char *bytes[EPW_FETCH_SEGMENTS]);

/* The peer has placed all entries up to this one. False if that is impossible. */
bool epw_pair_complete(epw_pair *pair, uint32_t index);

/* Where the answer of this many bytes to entry `index` goes, NULL if the region is gone. False if no answer
 * is awaited. */
bool epw_pair_answer_place(const epw_pair *pair, uint32_t index, uint32_t bytes, unsigned char **at);

/* The answer is there. */
void epw_pair_answered(epw_pair *pair);

/* Nothing more completes. */
void epw_pair_fail(epw_pair *pair, uint32_t index, uint8_t syndrome);
void epw_pair_fail_as(epw_pair *pair, uint32_t index, uint8_t syndrome, uint32_t vendor);
void epw_pair_end_by_peer(epw_pair *pair);

/* As epw_pair_break, but without taking the lock: the caller must wake the NIC's thread. */
void epw_pair_give_up(epw_pair *pair);

/* A later connection of its peer is for the pair too: whoever it has taken requests from has been replaced.
 */
void epw_pair_leave_replaced(epw_pair *pair);

/* Its connection is gone. */
void epw_pair_lose(epw_pair *pair, const epw_link *link);

/* ---- carry.c: with an adapter ---- */

/* The id of the event that announces completions; no link has it. */
#define EPW_CARRIER_ID UINT64_MAX

void epw_carrier_free(epw_carrier *carrier);

/* Makes the adapter's queue pair, if there is an adapter. */
epw_status epw_carry_open(epw_pair *pair, epw_where where);

/* Ends it. Not while it is being connected; epw_carry_await waits for that. False: it still exists, and what
 * comes by it may be placed; epw_carry_end, after which nobody tries again, then logs it. */
bool epw_carry_stop(epw_pair *pair);
void epw_carry_end(epw_pair *pair);
void epw_carry_await(epw_pair *pair);

/* From now on events do not concern it. Called without the lock, before the last look at what has been rung.
 */
void epw_carry_leave(epw_pair *pair);

/* Whether an event of the adapter has broken it. */
bool epw_pair_is_alarmed(const epw_pair *pair);

/* It has entries to be posted; or it has none that matter any more. */
void epw_carry_add(epw_pair *pair);
void epw_carry_forget(epw_pair *pair);

/* Posts what there is. Takes in completions, and returns whether there were any. Handles the event that
 * announces completions. */
void epw_carry_send(epw_nic *nic);
bool epw_carry_take(epw_nic *nic);
void epw_carry_heed(epw_nic *nic);

/* ---- link.c ---- */

epw_link *epw_link_open(epw_nic *nic, int fd, uint32_t peer);
void epw_link_free(epw_link *link);

/* Whether some pair has something to send that is not in frames yet, even if it may wait. */
bool epw_link_has_output(const epw_link *link);

/* Whether all that it has are ACKs that may wait. */
bool epw_link_may_wait(const epw_link *link);

/* The pair has entries to be fetched. */
void epw_link_has_sender(epw_link *link, epw_pair *pair);

/* It sends by another connection from now on; it receives by another one. */
void epw_link_drop_sender(epw_link *link, const epw_pair *pair);
void epw_link_drop_answerer(epw_link *link, epw_pair *pair);

/* The pair has an answer to give. An ACK may wait for what the driver sends next. */
void epw_link_has_answer(epw_link *link, epw_pair *pair);

/* A sender continues until it learns of the NAK. One answer is enough; if there are too many of them, later
 * frames are refused again. */
void epw_link_refuse(epw_link *link, const epw_frame *frame, uint8_t syndrome);

/* Says about pair `from` of this end, to pair `pair` of the peer, what a frame of this kind says: ENDED,
 * CONNECTED or HEARD. It is sent before entries that come later. If there is no room for it, the peer finds
 * out by its deadline. */
void epw_link_tell(epw_link *link, uint8_t kind, uint32_t pair, uint32_t from);

/* If a frame for the pair is being received, nothing more of it is placed: of a request of the peer, or of
 * its answer. */
void epw_link_stop(epw_link *link, const epw_pair *pair, bool answers);

/* Nothing of the pair is used any more. False: the connection must go for that. */
bool epw_link_forget(epw_link *link, epw_pair *pair);

/* Nothing that arrives is placed in the region any more, and nothing is sent from it. False: as above. */
bool epw_link_forget_region(epw_link *link, uint32_t key, const epw_region *region);

/* ---- outgoing.c ---- */

/* Sends as far as that does not block. False: the connection is gone. */
bool epw_link_send(epw_link *link);

/* Frames that are being sent point to bytes of regions: copies those that are left in this one, or in any if
 * it is NULL. False: there is no memory. */
bool epw_link_copy_out(epw_link *link, const epw_region *region);
void epw_link_drop_copied(epw_link *link);

/* ---- incoming.c ---- */

/* Reads as far as that does not block. False: the connection is gone. */
bool epw_link_read(epw_link *link);

/* With rings: reads them, without checking by the socket whether the other end still exists. Does nothing
 * before this many bytes are in the ring, because fewer than a header cannot be used. */
bool epw_link_take_bytes(epw_link *link);
uint32_t epw_link_wants_bytes(const epw_link *link);

/* The same for all that is in the ring now, however much: the other end is gone. */
bool epw_link_take_rest(epw_link *link);

/* ---- inspect.c: at a strict NIC ---- */

/* False: no memory. */
bool epw_strict_open_pair(epw_pair *pair);

/* Entries from `from` to `to` have been rung for. */
void epw_strict_rung(epw_pair *pair, uint64_t from, uint64_t to);

/* Whether the entry is still what was rung for. */
bool epw_strict_is_unchanged(const epw_pair *pair, uint64_t index);

/* Entries from `from` to `to` are done. False if the bytes of one were overwritten before that: *index says
 * which. */
bool epw_strict_done(epw_pair *pair, uint64_t from, uint64_t to, uint64_t *index);

/* Whether the next entry may be fetched by now: it is not delayed, and no fault waits for earlier entries. */
bool epw_strict_may_fetch(const epw_pair *pair);

/* Whether a fault that is planned for the next entry waits until this one is done; its completion must then
 * be reported even if it is not signalled. */
bool epw_strict_awaits(const epw_pair *pair, uint32_t index);

/* Takes the fault that is planned for the entry; each happens once. */
epw_fault epw_strict_take(epw_pair *pair, uint64_t index);

/* ---- nic.c ---- */

/* Takes the NIC's lock, before a thread that takes it again and again. */
void epw_nic_lock(epw_nic *nic);

/* Unlocks the NIC. Sends what the caller has left to be sent, since others that find the NIC locked leave it
 * too; and works for threads that have rung meanwhile and found it locked. */
void epw_nic_unlock(epw_nic *nic);

/* The connection of an id, NULL if it is gone. */
epw_link *epw_nic_link(const epw_nic *nic, uint64_t id);

/* Closes the connection: its pairs break. */
void epw_nic_drop_link(epw_nic *nic, epw_link *link);

/* Sends what waits, and takes nothing in. */
void epw_nic_carry(epw_nic *nic);

/* Ends the thread's sleep. */
void epw_nic_wake(epw_nic *nic);

/* The connection has its rings: the thread, which may be listening already, must be woken for what arrives.
 */
void epw_link_ringed(epw_link *link);

/* Takes nothing in from the connection any more. */
void epw_nic_freeze(epw_link *link);

/* Whether to be notified when there is room to send: by the system or, with rings, by the other end. */
void epw_nic_await_room(epw_link *link, bool awaits);

#endif
