/* Steps a communicator: reads the words of peers, moves bytes, gives up silent peers, and waits. Waits follow
 * c/peer/wait.h, with one difference: collectives may be long, so anything that arrives from a peer restarts
 * its clock entirely. */
#include "coll/gpu/gpu.h"
#include "coll/parts.h"
#include "coll/point.h"

#include "base/barrier.h"
#include "base/clock.h"
#include "base/float_state.h"
#include "base/log.h"
#include "numerics/norm.h"
#include "peer/remote.h"
#include "peer/sleep.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A step ends after this time, because other threads want the lock; the next step continues. */
#define TURN_NS UINT64_C(1000000)
/* A sleeper wakes after this time, for changes that ring no bell. */
#define SLICE_NS UINT64_C(16000000)
/* The same while a word has arrived but may not be used yet: nobody rings when it may. */
#define HELD_SLICE_NS UINT64_C(100000)

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint32_t epoch_of(const epw_comm *comm) {
    return epw_word_epoch(comm->own_word);
}

static void post(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint32_t word, uint64_t value,
                 const epw_range *range, uint64_t now) {
    epw_signal(&comm->peers, channel, epw_coll_rank(comm, p), word, value, range, range != NULL ? 1 : 0);
    p->spoke = now;
}

/* ---- losses ---- */

static uint64_t deadline_of(const epw_comm *comm) {
    uint64_t deadline = comm->config.deadline_ns;
    for (const epw_job *job = comm->jobs; job != NULL; job = job->next)
        if (job->left > 0 && job->deadline_ns > deadline) deadline = job->deadline_ns;
    return deadline;
}

static void record(epw_comm *comm, const epw_coll_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                   uint64_t seen, uint64_t now) {
    uint32_t waiting = 0;
    EPW_COMM_OTHERS(other, comm) waiting += !epw_flow_over(other);
    comm->point_record = (epw_error_record){.phase = phase,
                                            .cause = cause,
                                            .rank = comm->config.rank,
                                            .peer = epw_coll_rank(comm, p),
                                            .lane = phase == EPW_PHASE_POINT,
                                            .epoch = epoch_of(comm),
                                            .op = comm->calls & EPW_OP_MAX,
                                            .waiting = waiting,
                                            .expected = expected,
                                            .seen = seen,
                                            .elapsed_ns = now - p->moved,
                                            .deadline_ns = deadline_of(comm)};
    /* A loss in this collective says more than an earlier one. */
    if (comm->record.cause == EPW_CAUSE_NONE || comm->record.cause == EPW_CAUSE_SUSPECTED)
        comm->record = comm->point_record;
}

epw_error_record epw_comm_suspected(const epw_comm *comm, const epw_coll_peer *p, uint32_t phase) {
    uint32_t peer = epw_coll_rank(comm, p);
    if (!p->member || !p->suspected) return (epw_error_record){0};
    return (epw_error_record){.phase = phase,
                              .cause = epw_peers_revoked(&comm->peers, peer) ? EPW_CAUSE_SUPERSEDED
                                                                             : EPW_CAUSE_SUSPECTED,
                              .rank = comm->config.rank,
                              .peer = peer,
                              .lane = phase == EPW_PHASE_POINT,
                              .epoch = epoch_of(comm),
                              .op = comm->calls & EPW_OP_MAX,
                              .deadline_ns = deadline_of(comm)};
}

static void drop_member(epw_comm *comm, epw_coll_peer *p, bool silent, uint64_t now) {
    if (p->suspected) return;
    p->suspected = true;
    epw_peers_suspect(&comm->peers, epw_coll_rank(comm, p), silent, &comm->point_record);
    if (epw_incarnation_of(&comm->peers, epw_coll_rank(comm, p)) != p->incarnation) return;
    for (uint32_t c = 0; c < EPW_CHANNELS; c++)
        post(comm, p, c, EPW_WORD_DROPPED, epw_word(epoch_of(comm), 0, 0), NULL, now);
}

void epw_comm_lose(epw_comm *comm, epw_coll_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                   uint64_t seen, uint64_t now) {
    record(comm, p, phase, cause, expected, seen, now);
    /* The peer is told before its flows end: after that it reads nothing of the caller's memory. */
    drop_member(comm, p, cause == EPW_CAUSE_TIMEOUT, now);
    epw_flow_void(comm, p, epw_coll_rank(comm, p));
    p->out.open = p->tells = false;
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    ring->borrowed = ring->taken;
    epw_point_lose(comm, p);
}

/* Gives up members that the floor was told to leave out. */
static void hear(epw_comm *comm, uint64_t now) {
    uint64_t suspicions = atomic_load_explicit(&comm->peers.suspicions, memory_order_seq_cst);
    if (suspicions == comm->suspicions) return;
    comm->suspicions = suspicions;
    EPW_COMM_OTHERS(p, comm) {
        uint32_t peer = epw_coll_rank(comm, p);
        if (!epw_peers_suspected(&comm->peers, peer)) continue;
        uint32_t cause = epw_peers_revoked(&comm->peers, peer) ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_SUSPECTED;
        p->gone = cause;
        epw_comm_lose(comm, p, EPW_PHASE_COLLECTIVE, cause, 0, 0, now);
    }
}

/* ---- looking ---- */

static bool points_await(const epw_comm *comm, const epw_coll_peer *p) {
    return comm->pointing && epw_point_awaits(p);
}

static bool points_have_more(const epw_comm *comm, const epw_coll_peer *p) {
    return comm->pointing && epw_point_has_more(p);
}

/* Whether this rank waits for messages of the peer on this channel. */
static bool awaits_messages(const epw_comm *comm, const epw_coll_peer *p, uint32_t channel) {
    return channel == EPW_CHANNEL_COLLECTIVE ? p->in.open : points_await(comm, p);
}

static bool awaits_taken(const epw_comm *comm, const epw_coll_peer *p, uint32_t channel) {
    const epw_ring *ring = &p->rings[channel];
    if (epw_ring_lends(ring)) return true;
    bool more = channel == EPW_CHANNEL_COLLECTIVE ? p->out.open : points_have_more(comm, p);
    bool tells = channel == EPW_CHANNEL_COLLECTIVE && p->tells;
    return (more && !epw_ring_has_room(ring, comm->layout.slots)) ||
           (tells && !epw_ring_has_room_for_nothing(ring, comm->layout.slots));
}

/* An epoch that ends by a mismatch may leave messages that are still to be sent from the staging memory:
 * hence what was posted in it must have been received. */
bool epw_comm_has_begun(epw_comm *comm, const epw_coll_peer *p) {
    for (uint32_t c = 0; c < EPW_CHANNELS; c++) {
        epw_look seen;
        epw_look_at(&comm->peers, c, epw_coll_rank(comm, p), EPW_WORD_EPOCH, &seen);
        comm->held |= seen.held;
        /* Compare the word itself: behind a queue it is held back for longer than the epoch word of a
         * look. */
        if (seen.sight.word != comm->own_word) return false;
    }
    return true;
}

/* Reads one word of the peer, and everything else that a wait must notice. */
static void look(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint32_t word, uint64_t now) {
    uint32_t peer = epw_coll_rank(comm, p);
    epw_ring *ring = &p->rings[channel];
    epw_look seen;
    epw_look_at(&comm->peers, channel, peer, word, &seen);
    comm->held |= seen.held;
    epw_heard heard = EPW_HEARD_NOTHING;
    if (!seen.held && word == EPW_WORD_POSTED)
        heard = epw_ring_hear_posted(ring, seen.sight, comm->own_word, comm->layout.slots);
    if (!seen.held && word == EPW_WORD_TAKEN) heard = epw_ring_hear_taken(ring, seen.sight, comm->own_word);
    bool begun = p->begun || epw_comm_has_begun(comm, p);
    if (heard == EPW_HEARD_IMPOSSIBLE) {
        p->gone = EPW_CAUSE_FORMAT;
    } else if (heard == EPW_HEARD_MORE || begun != p->begun) {
        p->begun = begun;
        p->moved = p->clock.since = now;
    }
    epw_clock_heed(&p->clock, &seen, comm->peers.lanes, epoch_of(comm), comm->layout.ranks, comm->config.rank,
                   now);
    uint32_t cause = epw_rule_gone(seen.sight, comm->own_word);
    if (epw_peers_revoked(&comm->peers, peer)) cause = EPW_CAUSE_SUPERSEDED;
    if (cause != EPW_CAUSE_NONE && p->gone == EPW_CAUSE_NONE) p->gone = cause;
}

/* Finds out whether this rank can read the peer's memory: the greeting has a secret, and the address of that
 * secret in the peer's process. */
static void greet(epw_comm *comm, epw_coll_peer *p, uint64_t now) {
    uint32_t peer = epw_coll_rank(comm, p);
    if (p->greeted || !p->begun || epw_is_queued(&comm->peers, peer)) return;
    p->greeted = true;
    epw_greeting said;
    unsigned char found[sizeof said.secret];
    memcpy(&said, epw_peers_own(&comm->peers) + epw_greeting_offset(&comm->layout, peer), sizeof said);
    p->pid = said.pid;
    p->readable = said.address != 0 && epw_pull(p, found, said.address, sizeof found) &&
                  memcmp(found, said.secret, sizeof found) == 0;
    /* Writer: this rank, after it has read the secret. Reader: the peer, which may then announce bytes in its
     * own memory. */
    if (p->readable) {
        post(comm, p, EPW_CHANNEL_COLLECTIVE, EPW_WORD_MAY_PULL, epw_epoch_word(epoch_of(comm), 1), NULL,
             now);
    } else {
        epw_log(
            EPW_LOG_PATH, EPW_LOG_INFO, (epw_where){"", (int)comm->config.rank, (int)peer},
            "process_vm_readv cannot read the peer's memory: its large pieces pass through the ring, unless "
            "they lie in memory that epw_comm_alloc gave");
    }
}

/* Whether the peer has to begin the epoch before this rank may write to it, as it would. */
static bool awaits_beginning(const epw_comm *comm, const epw_coll_peer *p) {
    return !p->begun && (p->out.open || p->tells || points_have_more(comm, p));
}

static void look_at(epw_comm *comm, epw_coll_peer *p, uint64_t now) {
    for (uint32_t c = 0; c < EPW_CHANNELS; c++) {
        if (awaits_messages(comm, p, c)) look(comm, p, c, EPW_WORD_POSTED, now);
        if (awaits_taken(comm, p, c)) look(comm, p, c, EPW_WORD_TAKEN, now);
    }
    if (awaits_beginning(comm, p)) look(comm, p, EPW_CHANNEL_COLLECTIVE, EPW_WORD_TAKEN, now);
    greet(comm, p, now);
    if (!p->reads && (p->out.open || points_have_more(comm, p))) {
        uint64_t may =
            epw_word_from(&comm->peers, EPW_CHANNEL_COLLECTIVE, epw_coll_rank(comm, p), EPW_WORD_MAY_PULL);
        p->reads = epw_word_epoch(may) == epoch_of(comm);
    }
}

static bool says_more(const epw_comm *comm, uint64_t word, uint64_t count) {
    return epw_ring_ahead(word, count, epoch_of(comm)) > 0;
}

/* Whether the peer has sent messages that nothing here awaits. They are taken in all the same, as long as
 * this rank waits for anything: otherwise the ring would fill, and the peer would wait for a rank that waits.
 */
static bool has_messages(const epw_comm *comm, const epw_coll_peer *p) {
    if (points_await(comm, p) || p->gone != EPW_CAUSE_NONE) return false; /* look_at sees them; or they end */
    uint64_t posted = epw_word_from(&comm->peers, EPW_CHANNEL_POINT, epw_coll_rank(comm, p), EPW_WORD_POSTED);
    return says_more(comm, posted, p->rings[EPW_CHANNEL_POINT].seen);
}

/* Called when nothing moves. True: there are messages to take in. */
static bool look_for_messages(epw_comm *comm, uint64_t now) {
    bool more = false;
    EPW_COMM_OTHERS(p, comm) {
        uint64_t seen = p->rings[EPW_CHANNEL_POINT].seen;
        if (!has_messages(comm, p)) continue;
        look(comm, p, EPW_CHANNEL_POINT, EPW_WORD_POSTED, now);
        more |= p->rings[EPW_CHANNEL_POINT].seen > seen;
    }
    comm->pointing |= more;
    return more;
}

/* Whether messages have arrived in a ring from which the current collective expects none, also of a peer that
 * has left since. One whose messages were refused has none any more. */
static bool has_unexpected(const epw_comm *comm, const epw_coll_peer *p) {
    if (!comm->running || p->in.open || p->gone == EPW_CAUSE_FORMAT) return false;
    uint64_t posted =
        epw_word_from(&comm->peers, EPW_CHANNEL_COLLECTIVE, epw_coll_rank(comm, p), EPW_WORD_POSTED);
    return says_more(comm, posted, p->rings[EPW_CHANNEL_COLLECTIVE].seen);
}

/* Called when nothing moves. If ranks differ in the root, this rank may wait for a peer that waits for
 * another one, while all lend memory or have full rings. The message that proves the mismatch then lies in a
 * ring from which nothing is expected. */
static void look_for_unexpected(epw_comm *comm, uint64_t now) {
    if (!comm->running) return;
    EPW_COMM_OTHERS(p, comm) {
        if (has_unexpected(comm, p)) look(comm, p, EPW_CHANNEL_COLLECTIVE, EPW_WORD_POSTED, now);
        epw_flow_check_unexpected(comm, comm->queue, p, now);
    }
}

/* Whether the peer has still to do its part in any operation. */
static bool is_awaited(const epw_comm *comm, const epw_coll_peer *p) {
    return (comm->running && !epw_flow_over(p)) || points_await(comm, p) || points_have_more(comm, p);
}

/* Whether the peer must act next. It need not if its messages lie here unread because the fold lacks those of
 * others, or if this rank has nothing to write for it yet. */
static bool is_owing(const epw_comm *comm, const epw_coll_peer *p) {
    const epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    bool blocked = p->out.open && (!p->begun || !epw_ring_has_room(ring, comm->layout.slots));
    blocked |= p->tells && !p->begun;
    bool silent = p->in.open && !epw_ring_may_read(ring);
    return (comm->running && (blocked || silent || epw_ring_lends(ring))) ||
           (comm->pointing && epw_point_owed(p));
}

/* The clock of a peer that need not act is stopped. */
static void rest_clock(const epw_comm *comm, epw_coll_peer *p, uint64_t now) {
    if (!is_owing(comm, p)) p->moved = p->clock.since = now;
}

/* Whether everything awaited on the channel has been read after the peer's farewell was seen. */
static bool has_ended(const epw_comm *comm, const epw_coll_peer *p, uint32_t channel) {
    return epw_ring_ended(&p->rings[channel], awaits_messages(comm, p, channel),
                          awaits_taken(comm, p, channel));
}

/* What the peer wrote before its farewell is still taken in. */
static bool is_lost(const epw_comm *comm, const epw_coll_peer *p) {
    if (p->gone == EPW_CAUSE_NONE || p->gone == EPW_CAUSE_FORMAT) return p->gone == EPW_CAUSE_FORMAT;
    for (uint32_t c = 0; c < EPW_CHANNELS; c++)
        if (!has_ended(comm, p, c)) return false;
    return p->out.open || is_owing(comm, p);
}

/* ---- operations ---- */

void epw_comm_end_of_job(epw_comm *comm, epw_job *job) {
    /* Writer of `left`: this thread, with the lock held. Reader: the thread that waits for the job, which
     * this wakes. */
    if (--job->left == 0) epw_bell_toll(&comm->peers);
}

void epw_comm_wait_begins(epw_coll_peer *p, uint64_t now) {
    p->moved = now;
    epw_clock_start(&p->clock, now);
}

/* Ends the loan of the caller's memory. Writer: this rank, before its caller may write there. Reader: the
 * peer, after it has read. */
void epw_comm_take_back(epw_comm *comm, uint64_t now) {
    EPW_COMM_OTHERS(p, comm) {
        epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
        if (!epw_ring_lends(ring)) continue;
        uint64_t value = epw_count_word(comm->own_word, ring->posted);
        post(comm, p, EPW_CHANNEL_POINT, EPW_WORD_CANCELLED, value, NULL, now);
        ring->borrowed = ring->taken;
    }
}

/* What the current collective has moved; its flows tell. */
static void count_moved(epw_comm *comm, const epw_op *op, bool ended) {
    epw_lane_traffic *traffic = comm->peers.traffic;
    EPW_COMM_PEERS(p, comm) {
        epw_exchanged *with = &traffic->with[epw_coll_rank(comm, p)];
        epw_count(&with->bytes_sent, p->out.legs[0].done + p->out.legs[1].done);
        epw_count(&with->bytes_received, p->in.legs[0].done + p->in.legs[1].done);
    }
    epw_count(&traffic->with[comm->config.rank].bytes_sent, op->local_done);
    epw_count(&traffic->with[comm->config.rank].bytes_received, op->local_done);
    if (ended) epw_count(&traffic->operations, 1);
}

/* The current collective has ended, or cannot continue. */
static void end_collective(epw_comm *comm, epw_status status) {
    epw_op *op = comm->queue;
    epw_job *job = op->job;
    if (job != NULL && job->status == EPW_OK) job->status = status;
    if (job != NULL) {
        EPW_COMM_PEERS(p, comm) if (p->missing) epw_mask_add(&job->outcome.missing, epw_coll_rank(comm, p));
        job->outcome.degraded = !epw_mask_empty(&job->outcome.missing);
        if (job->outcome.record.cause == EPW_CAUSE_NONE) job->outcome.record = comm->record;
    }
    count_moved(comm, op, job != NULL && status == EPW_OK);
    EPW_COMM_PEERS(p, comm) p->out.open = p->in.open = p->tells = false;
    comm->running = false;
    comm->queue = op->next;
    if (comm->queue == NULL) comm->queue_end = &comm->queue;
    comm->faulted |= job != NULL && (job->status != EPW_OK || job->outcome.degraded);
    if (job != NULL) epw_comm_end_of_job(comm, job);
    op->next = NULL;
    epw_ops_free(op);
}

/* This rank has no memory for the current collective: its job fails, and the operation continues as one that
 * was dropped, so that peers are told that this rank is missing. */
static void fail_collective(epw_comm *comm, epw_status status) {
    epw_op *op = comm->queue;
    comm->fold.lacks = true;
    comm->fold.voids = comm->config.rank;
    if (op->job == NULL) return;
    comm->faulted = true;
    if (op->job->status == EPW_OK) op->job->status = status;
    epw_comm_end_of_job(comm, op->job);
    op->job = NULL;
}

static void begin_collective(epw_comm *comm, uint64_t now) {
    comm->running = true;
    comm->calls++;
    comm->before = comm->now;
    comm->now = epw_descriptor_of(&comm->queue->call, 0);
    comm->record = (epw_error_record){0};
    EPW_COMM_PEERS(p, comm)
    if (comm->record.cause == EPW_CAUSE_NONE)
        comm->record = epw_comm_suspected(comm, p, EPW_PHASE_COLLECTIVE);
    if (!epw_program_begin(comm, comm->queue)) fail_collective(comm, EPW_ERR_NO_MEMORY);
    /* Of a peer that a send or receive waits for already, the wait goes on, unless this rank was away. */
    bool away = now - comm->stepped > comm->config.deadline_ns;
    EPW_COMM_OTHERS(p, comm) if (away || !comm->pointing || !epw_point_owed(p)) epw_comm_wait_begins(p, now);
}

/* The sum is complete: normalises some of its rows. False: no row is left, or a rank is missing and there is
 * no sum. */
static bool norm_some(epw_comm *comm, epw_op *op) {
    enum { TURN_ELEMENTS = 1 << 16 };
    const epw_norm *n = op->call.norm;
    if (n == NULL || op->job == NULL || op->normed == n->rows) return false;
    EPW_COMM_PEERS(p, comm) if (p->missing) return false;
    epw_float_state before = epw_float_enter();
    uint64_t elements = 0;
    for (; op->normed < n->rows && elements < TURN_ELEMENTS; elements += n->hidden) {
        uint64_t at = op->normed++ * n->hidden, scale = at / EPW_FP8_BLOCK;
        uint64_t scale_bytes = n->payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4;
        uint64_t bytes = n->payload == EPW_PAYLOAD_SAME ? 2 : 1;
        epw_norm_row row = {.dtype = op->call.type == EPW_TYPE_BF16 ? EPW_BF16 : EPW_F16,
                            .payload = n->payload,
                            .hidden = n->hidden,
                            .epsilon = n->epsilon,
                            .sum = (const char *)op->call.recv + 2 * at,
                            .weight = n->weight,
                            .residual = n->residual != NULL ? (char *)n->residual + 2 * at : NULL,
                            .out = (char *)n->out + bytes * at,
                            .scales = n->scales != NULL ? (char *)n->scales + scale_bytes * scale : NULL};
        epw_norm_row_run(comm->numerics, &row);
    }
    epw_float_leave(before);
    return true;
}

static bool is_over(const epw_comm *comm) {
    const epw_op *op = comm->queue;
    const epw_fold *fold = &comm->fold;
    if (fold->on && !fold->lacks && fold->done < fold->bytes) return false;
    if (op->job != NULL && op->local_done < op->local_bytes) return false;
    EPW_COMM_PEERS(p, comm) if (epw_coll_present(p) && !epw_flow_over(p)) return false;
    return true;
}

static uint64_t expiry_of(const epw_comm *comm, const epw_coll_peer *p) {
    epw_wait wait = {.running = true, .began = p->moved, .deadline_ns = deadline_of(comm)};
    return epw_clock_expiry(&p->clock, &wait, comm->config.deadline_ns);
}

/* Gives up peers from which nothing will come. Called when nothing has moved. */
static bool lose_silent(epw_comm *comm, uint64_t now) {
    bool lost = false;
    EPW_COMM_OTHERS(p, comm) {
        if (!is_awaited(comm, p)) continue;
        rest_clock(comm, p, now);
        uint32_t cause = is_lost(comm, p) ? p->gone : EPW_CAUSE_NONE;
        if (cause == EPW_CAUSE_NONE && now >= expiry_of(comm, p))
            cause = p->gone != EPW_CAUSE_NONE ? p->gone : EPW_CAUSE_TIMEOUT;
        if (cause == EPW_CAUSE_NONE) continue;
        /* Who tells of a mismatch may go on to another epoch before this rank has looked for it again. */
        if (epw_comm_heed_mismatch(comm)) return lost;
        const epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
        uint32_t phase = comm->running && !epw_flow_over(p) ? EPW_PHASE_COLLECTIVE : EPW_PHASE_POINT;
        epw_comm_lose(comm, p, phase, cause, epw_count_word(comm->own_word, ring->consumed + 1),
                      epw_count_word(comm->own_word, ring->seen), now);
        lost = true;
    }
    return lost;
}

/* ---- beacons ---- */

static bool any_awaited(const epw_comm *comm) {
    EPW_COMM_OTHERS(p, comm) if (is_owing(comm, p)) return true;
    return false;
}

static uint64_t last_spoken(const epw_comm *comm, uint64_t now) {
    uint64_t least = now;
    EPW_COMM_OTHERS(p, comm) if (p->spoke < least) least = p->spoke;
    return least;
}

static void post_beacon(epw_comm *comm, uint32_t said, uint64_t now) {
    comm->beacon = epw_next_op(comm->beacon);
    EPW_COMM_OTHERS(p, comm)
    post(comm, p, EPW_CHANNEL_COLLECTIVE, EPW_WORD_BEACON, epw_word(epoch_of(comm), comm->beacon, said), NULL,
         now);
}

static uint32_t beacon_to_post(const epw_comm *comm) {
    uint64_t group_ns = comm->config.deadline_ns;
    epw_naming naming = epw_naming_begin(comm->config.rank, epw_rule_lengthened(deadline_of(comm), group_ns));
    EPW_COMM_OTHERS(p, comm) {
        if (is_owing(comm, p)) epw_naming_add(&naming, epw_coll_rank(comm, p), &p->clock);
    }
    return epw_naming_value(&naming);
}

/* Posts a beacon if due, because a step that moves much may take long: it shows peers that this rank is
 * alive. */
static void tell_between_turns(epw_comm *comm, uint64_t now) {
    if (epw_rule_beacons_due(now - last_spoken(comm, now), comm->config.deadline_ns) > 0)
        post_beacon(comm, epw_beacon_value(EPW_BEACON_NONE, 0), now);
}

/* Posts a beacon if this rank waits and has been silent for long, or one that it no longer waits. Returns the
 * time of the next look. */
static uint64_t tell_and_rest(epw_comm *comm, uint64_t now) {
    uint64_t group_ns = comm->config.deadline_ns, spoke = last_spoken(comm, now), until = UINT64_MAX;
    if (!any_awaited(comm)) {
        bool was = comm->waiting && (comm->beaconed || epw_rule_silent(now - spoke, group_ns));
        if (was) post_beacon(comm, epw_beacon_value(EPW_BEACON_NONE, 0), now);
        comm->waiting = comm->beaconed = false;
        return until;
    }
    comm->waiting = true;
    if (epw_rule_beacons_due(now - spoke, group_ns) > 0) {
        post_beacon(comm, beacon_to_post(comm), now);
        comm->beaconed = true;
        spoke = now;
    }
    until = spoke + group_ns / 2;
    EPW_COMM_OTHERS(p, comm) {
        if (is_owing(comm, p) && expiry_of(comm, p) < until) until = expiry_of(comm, p);
    }
    return until;
}

/* ---- steps ---- */

/* Adds the time in which nothing moved to each peer that had to act meanwhile, from when it was awaited. */
static void count_waits(epw_comm *comm, uint64_t since, uint64_t now) {
    EPW_COMM_OTHERS(p, comm) {
        uint64_t from = p->moved > since ? p->moved : since;
        if (is_owing(comm, p) && now > from)
            epw_count(&comm->peers.traffic->with[epw_coll_rank(comm, p)].wait_ns, now - from);
    }
}

static bool is_under_way(const epw_comm *comm) {
    const epw_job *job = comm->jobs;
    while (job != NULL && job->left == 0) job = job->next; /* these have ended, and wait for their callers */
    return comm->queue != NULL || job != NULL;
}

static void end_all(epw_comm *comm, uint64_t now) {
    if (!is_under_way(comm)) return;
    /* Ends the loans of collectives, and of sends that peers may be reading. Writer: this rank, before its
     * callers may write there. Reader: the peer, after it has read. */
    EPW_COMM_OTHERS(p, comm) {
        post(comm, p, EPW_CHANNEL_POINT, EPW_WORD_CANCELLED, epw_epoch_word(epoch_of(comm), EPW_STEP_MAX),
             NULL, now);
        p->rings[EPW_CHANNEL_COLLECTIVE].borrowed = p->rings[EPW_CHANNEL_COLLECTIVE].taken;
    }
    while (comm->queue != NULL) {
        comm->running = true;
        end_collective(comm, EPW_ERR_MISMATCH);
    }
    epw_points_end(comm, EPW_ERR_MISMATCH);
}

bool epw_comm_step(epw_comm *comm, uint64_t *time, uint64_t *until) {
    bool moved = false, more = true;
    uint64_t began = *time, now = began;
    if (comm->rested != 0) count_waits(comm, comm->rested, now);
    hear(comm, now);
    while (more && now - began < TURN_NS && !epw_comm_heed_mismatch(comm)) {
        more = comm->held = false;
        if (!comm->running && comm->queue != NULL) begin_collective(comm, now);
        EPW_COMM_OTHERS(p, comm) if (is_awaited(comm, p)) look_at(comm, p, now);
        if (comm->running) {
            more |= epw_flows_move(comm, comm->queue, now);
            if (!comm->mismatched && is_over(comm)) {
                if (!norm_some(comm, comm->queue)) end_collective(comm, EPW_OK);
                more = true;
            }
        }
        more |= epw_points_move(comm, now);
        moved |= more;
        if (more && !is_under_way(comm) && !comm->pointing) {
            more = false;
        } else if (more) {
            now = epw_now_ns();
            tell_between_turns(comm, now);
        } else {
            look_for_unexpected(comm, now);
            more = !comm->mismatched && (look_for_messages(comm, now) || lose_silent(comm, now));
        }
    }
    if (comm->mismatched) end_all(comm, now);
    if (moved) comm->moved = now;
    *until = least(tell_and_rest(comm, now), epw_points_expiry(comm));
    if (more && !comm->mismatched) *until = now;
    comm->rested = comm->waiting && !more ? now : 0;
    comm->look_again = *until;
    comm->stepped = *time = now;
    return moved;
}

/* ---- waiting ---- */

static epw_status consume(epw_comm *comm, epw_job *job, epw_where where, epw_outcome *outcome) {
    epw_job **at = &comm->jobs;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    epw_status status = job->status;
    if (status == EPW_ERR_MISMATCH) {
        status = epw_comm_fail_mismatch(comm, where);
    } else if (status == EPW_ERR_NO_MEMORY) {
        status = epw_fail(status, where, "no memory for a collective");
    } else if (status == EPW_ERR_TIMEOUT) {
        status = epw_fail(status, where, "a send or receive of this rank to itself has no counterpart");
    } else if (status == EPW_ERR_LIMIT) {
        char text[EPW_CALL_TEXT];
        where.peer = (int)job->sender;
        status = epw_fail(status, where, "the peer's message is a %s, recv has room for %llu",
                          epw_descriptor_text(&job->longer, text), (unsigned long long)job->room);
    } else if (outcome != NULL) {
        *outcome = job->outcome;
    }
    free(job);
    return status;
}

/* Spins or gives the core away for a moment, and takes in what arrived by queues. */
static void yield(epw_comm *comm, uint64_t idle_ns, uint64_t now) {
    epw_mask owing = {{0}};
    EPW_COMM_OTHERS(p, comm) if (is_owing(comm, p)) epw_mask_add(&owing, epw_coll_rank(comm, p));
    bool spins = idle_ns < epw_spin_ns(&comm->peers, &owing);
    pthread_mutex_unlock(&comm->lock);
    epw_remotes_drive(&comm->peers, now);
    if (spins) {
        epw_cpu_relax();
    } else {
        sched_yield();
    }
    pthread_mutex_lock(&comm->lock);
}

epw_status epw_comm_wait(epw_comm *comm, epw_job *job, uint64_t began, uint64_t timeout_ns,
                         epw_outcome *outcome) {
    uint64_t now = began, idle = began, until;
    epw_work id = job->id;
    for (;;) { /* ends with the job, whose waits are bounded, or after timeout_ns */
        bool moved = epw_comm_step(comm, &now, &until);
        if (job->left == 0) break;
        if (now - began >= timeout_ns) {
            pthread_mutex_unlock(&comm->lock);
            return EPW_PENDING;
        }
        if (moved) idle = now;
        if (now - idle < comm->peers.spin_ns + comm->peers.yield_ns) {
            yield(comm, now - idle, now);
        } else {
            uint32_t heard = epw_bell_listen(&comm->peers);
            now = epw_now_ns();
            moved = epw_comm_step(comm, &now, &until);
            bool ended = job->left == 0;
            uint64_t left_ns = timeout_ns - least(timeout_ns, now - began);
            uint64_t most = least(comm->held ? HELD_SLICE_NS : SLICE_NS, left_ns);
            pthread_mutex_unlock(&comm->lock);
            if (!moved && !ended && until > now)
                epw_bell_sleep(&comm->peers, heard, least(most, until - now));
            epw_bell_leave(&comm->peers);
            pthread_mutex_lock(&comm->lock);
            if (moved) idle = now;
        }
        job = epw_comm_find(comm, id);
        if (job == NULL) {
            pthread_mutex_unlock(&comm->lock);
            return epw_fail(EPW_ERR_STATE, epw_comm_where(comm, "wait"),
                            "the work was consumed or dropped by another thread");
        }
        now = epw_now_ns();
    }
    epw_status status = consume(comm, job, epw_comm_where(comm, "wait"), outcome);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

epw_job *epw_comm_find(epw_comm *comm, epw_work work) {
    epw_job *job = comm->jobs;
    while (job != NULL && job->id != work) job = job->next;
    return job;
}

/* Whether a step would find something new. With the lock held. */
static bool has_news(epw_comm *comm) {
    if (epw_now_ns() >= comm->look_again) return true;
    EPW_COMM_OTHERS(p, comm) {
        uint64_t word =
            epw_word_from(&comm->peers, EPW_CHANNEL_COLLECTIVE, epw_coll_rank(comm, p), EPW_WORD_MISMATCH);
        if (!comm->mismatched && epw_word_epoch(word) == epoch_of(comm)) return true;
        if (has_messages(comm, p)) return true;
        if (has_unexpected(comm, p)) return true;
        if (!is_awaited(comm, p)) continue;
        bool begun = true; /* as in epw_comm_has_begun */
        for (uint32_t c = 0; c < EPW_CHANNELS; c++) {
            uint32_t peer = epw_coll_rank(comm, p);
            const epw_ring *ring = &p->rings[c];
            uint64_t posted = epw_word_from(&comm->peers, c, peer, EPW_WORD_POSTED);
            uint64_t taken = epw_word_from(&comm->peers, c, peer, EPW_WORD_TAKEN);
            if (awaits_messages(comm, p, c) && says_more(comm, posted, ring->seen)) return true;
            if (awaits_taken(comm, p, c) && says_more(comm, taken, ring->taken)) return true;
            epw_sight seen = epw_glance_at(&comm->peers, c, peer);
            /* A step judges the peer by the channels that it reads. */
            bool reads = awaits_messages(comm, p, c) || awaits_taken(comm, p, c) ||
                         (c == EPW_CHANNEL_COLLECTIVE && awaits_beginning(comm, p));
            bool heeded = p->gone != EPW_CAUSE_NONE && has_ended(comm, p, c);
            if (reads && !heeded && epw_rule_gone(seen, comm->own_word) != EPW_CAUSE_NONE) return true;
            begun &= epw_ring_begun(seen, comm->own_word);
        }
        if (begun && !p->begun) return true;
    }
    return comm->suspicions != atomic_load_explicit(&comm->peers.suspicions, memory_order_seq_cst);
}

void epw_comm_look(epw_awaited *self, bool sleeps, uint64_t now) {
    epw_comm *comm = self->owner;
    if (comm->gpu != NULL) {
        epw_coll_gpu_look(self, now);
        return;
    }
    epw_bell_look(&comm->peers, sleeps, self);
    if (pthread_mutex_trylock(&comm->lock) != 0) {
        epw_awaited_busy(self); /* whoever steps it rings the bell when a work ends */
        return;
    }
    const epw_job *job = epw_comm_find(comm, self->of);
    self->young = epw_wait_is_young(&comm->peers, comm->moved, now);
    /* A word that may not be used yet is a reason to look again soon, but not again and again. */
    uint64_t age = now - self->since, held_ns = comm->held && !self->young ? HELD_SLICE_NS : 0;
    self->ready = job == NULL || job->left == 0 || (age >= held_ns && has_news(comm));
    self->ns = least(SLICE_NS, comm->look_again - least(now, comm->look_again));
    if (age < held_ns) self->ns = least(self->ns, held_ns - age);
    pthread_mutex_unlock(&comm->lock);
}

epw_status epw_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns) {
    if (comm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"work_await", -1, -1}, "comm is NULL");
    if (comm->gpu != NULL) {
        epw_status status = epw_coll_gpu_work_await(comm, work, timeout_ns);
        return status == EPW_PENDING || status == EPW_ERR_STATE ? EPW_OK : status;
    }
    epw_awaited one = {.look = epw_comm_look, .owner = comm, .of = work, .limit_ns = timeout_ns};
    epw_awaited *all[] = {&one};
    epw_await_any(all, 1, NULL, 0);
    return EPW_OK;
}

/* ---- membership ---- */

/* Writes the greeting for a mapped peer, and tells every connected peer that this rank has begun the
 * epoch. */
static void announce(epw_comm *comm, epw_coll_peer *p, uint64_t now) {
    uint32_t peer = epw_coll_rank(comm, p);
    if (p->incarnation == 0) return;
    if (!epw_is_queued(&comm->peers, peer)) {
        epw_greeting said = {.address = (uint64_t)(uintptr_t)comm->secret, .pid = (uint32_t)getpid()};
        memcpy(said.secret, comm->secret, sizeof said.secret);
        memcpy(epw_control_at(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer,
                              epw_greeting_offset(&comm->layout, comm->config.rank)),
               &said, sizeof said);
    }
    /* Writer: this rank, done with its reads and writes of the old epoch. Reader: each member, before it
     * writes its first message; and each rank that is no longer a member. */
    for (uint32_t c = 0; c < EPW_CHANNELS; c++) post(comm, p, c, EPW_WORD_EPOCH, comm->own_word, NULL, now);
}

void epw_comm_begin_epoch(epw_comm *comm, const epw_mask *active, uint64_t epoch_word) {
    uint64_t now = epw_now_ns();
    epw_ops_free(comm->queue); /* of dropped jobs */
    comm->queue = NULL;
    comm->queue_end = &comm->queue;
    epw_points_forget(comm);
    epw_peers_clear_suspects(&comm->peers);
    comm->suspicions = atomic_load_explicit(&comm->peers.suspicions, memory_order_relaxed);
    comm->own_word = epoch_word;
    comm->look_again = UINT64_MAX;
    comm->rested = 0;
    comm->running = comm->pointing = comm->waiting = comm->beaconed = comm->mismatched = false;
    comm->calls = comm->members = 0;
    comm->before = comm->now = (epw_descriptor){0};
    EPW_COMM_PEERS(p, comm) {
        uint32_t peer = epw_coll_rank(comm, p);
        uint64_t incarnation = epw_incarnation_of(&comm->peers, peer);
        *p = (epw_coll_peer){.incarnation = incarnation,
                             .member = epw_mask_has(active, peer),
                             .moved = now,
                             .spoke = now,
                             .rings = {epw_ring_restarted(), epw_ring_restarted()},
                             .point = p->point};
        epw_clock_start(&p->clock, now);
        comm->members += p->member;
    }
    EPW_COMM_PEERS(p, comm) announce(comm, p, now);
}

void epw_comm_part(epw_comm *comm, uint32_t peer) {
    epw_coll_peer *p = &comm->of[peer];
    if (p->incarnation == 0 || comm->own_word == 0) return;
    drop_member(comm, p, false, epw_now_ns());
}
