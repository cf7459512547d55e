/* Steps a lane: reads the words of peers, moves messages, gives up peers, and waits. Waits follow
 * c/peer/wait.h, with one difference: operations may be long, so anything that arrives from a peer restarts
 * its clock. */
#include "prefill/parts.h"

#include "base/barrier.h"
#include "base/clock.h"
#include "peer/remote.h"
#include "peer/sleep.h"

#include <sched.h>

/* A sleeper wakes after this time, for changes that ring no bell. */
#define SLICE_NS UINT64_C(16000000)
/* The same while a word has arrived but may not be used yet: nobody rings when it may. */
#define HELD_SLICE_NS UINT64_C(100000)

static uint32_t epoch_of(const epw_prefill_lane *lane) {
    return epw_word_epoch(lane->own_word);
}

/* All peers that have not been given up. */
#define FOR_OTHERS(peer, p, lane)                                                                            \
    for (uint32_t peer = 0; peer < (p)->layout.ranks; peer++)                                                \
        if (peer != (p)->config.ep.rank && epw_prefill_present(&(lane)->peers[peer]))

static void post(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t word, uint64_t value,
                 const epw_range *ranges, uint32_t count, uint64_t now) {
    epw_signal(&p->peers, lane->index, peer, word, value, ranges, count);
    lane->peers[peer].spoke = now;
}

static uint32_t posted_word(uint32_t kind) {
    return kind == EPW_KIND_DISPATCH ? EPW_WORD_POSTED : EPW_WORD_ANSWERED;
}
static uint32_t taken_word(uint32_t kind) {
    return kind == EPW_KIND_DISPATCH ? EPW_WORD_TAKEN : EPW_WORD_COLLECTED;
}

/* ---- losses ---- */

static void record(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t cause, uint64_t now) {
    const epw_stream *s = &lane->streams[lane->kind][peer];
    bool receives = s->to_write == 0, dispatch = lane->kind == EPW_KIND_DISPATCH;
    uint32_t waiting = 0;
    FOR_OTHERS(other, p, lane)
    waiting += lane->streams[lane->kind][other].to_write > 0 || lane->streams[lane->kind][other].takes;
    if (lane->record.cause != EPW_CAUSE_NONE) return;
    lane->record = (epw_error_record){
        .phase = dispatch ? (receives ? EPW_PHASE_DISPATCH_RECEIVE : EPW_PHASE_DISPATCH_SEND)
                          : (receives ? EPW_PHASE_COMBINE_RECEIVE : EPW_PHASE_COMBINE_SEND),
        .cause = cause,
        .rank = p->config.ep.rank,
        .peer = peer,
        .lane = lane->index,
        .epoch = epoch_of(lane),
        .op = lane->ops[lane->kind] & EPW_OP_MAX,
        .waiting = waiting,
        .expected = epw_count_word(lane->own_word, receives ? s->ring.taken + 1 : s->ring.free + 1),
        .seen = epw_count_word(lane->own_word, receives ? s->ring.seen : s->ring.free),
        .elapsed_ns = now - lane->peers[peer].moved,
        .deadline_ns = lane->deadline_ns};
}

static void tell_dropped(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint64_t now) {
    epw_prefill_peer *q = &lane->peers[peer];
    if (q->told) return;
    q->told = true;
    if (epw_incarnation_of(&p->peers, peer) == q->incarnation && q->incarnation != 0)
        post(p, lane, peer, EPW_WORD_DROPPED, epw_word(epoch_of(lane), 0, 0), NULL, 0, now);
}

static void end_streams(epw_prefill_lane *lane, uint32_t peer) {
    for (uint32_t kind = 0; kind < EPW_KINDS; kind++) epw_stream_end(&lane->streams[kind][peer]);
    lane->peers[peer].opens = lane->peers[peer].voids = false;
}

/* Whether the operation is over for the peer. Otherwise, what it has sent counts completely or not at all. */
static bool is_part_over(const epw_prefill_lane *lane, uint32_t peer) {
    const epw_stream *s = &lane->streams[lane->kind][peer];
    return s->to_write == 0 && !s->takes;
}

void epw_prefill_miss(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, uint32_t cause, uint64_t now) {
    epw_prefill_peer *q = &lane->peers[peer];
    bool lost = cause != EPW_CAUSE_FORMAT && cause != EPW_CAUSE_PARTIAL;
    if (lane->running && (!lost || !is_part_over(lane, peer))) {
        record(p, lane, peer, cause, now);
        q->missing = true;
    }
    if (!lost || q->suspected) return;
    q->suspected = true;
    epw_peers_suspect(&p->peers, peer, cause == EPW_CAUSE_TIMEOUT, &lane->record);
    tell_dropped(p, lane, peer, now);
    end_streams(lane, peer);
}

/* Gives up members that other lanes have given up, or that the group leaves out. */
static void hear(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    uint64_t suspicions = atomic_load_explicit(&p->peers.suspicions, memory_order_seq_cst);
    if (suspicions == atomic_load_explicit(&lane->suspicions, memory_order_relaxed)) return;
    atomic_store_explicit(&lane->suspicions, suspicions, memory_order_relaxed);
    FOR_OTHERS(peer, p, lane) {
        if (!epw_peers_suspected(&p->peers, peer)) continue;
        uint32_t cause = epw_peers_revoked(&p->peers, peer) ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_SUSPECTED;
        lane->peers[peer].gone = cause;
        epw_prefill_miss(p, lane, peer, cause, now);
    }
}

/* The only way to unlock a lane. A peer that one lane gives up must be told on every lane, each time after
 * what that lane has sent. So whoever unlocks a lane tells it on all lanes that are free, without waiting. */
void epw_prefill_unlock(epw_prefill *p, epw_prefill_lane *lane) {
    pthread_mutex_unlock(&lane->lock);
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        epw_prefill_lane *other = &p->lanes[i];
        while (atomic_load_explicit(&other->suspicions, memory_order_relaxed) !=
                   atomic_load_explicit(&p->peers.suspicions, memory_order_seq_cst) &&
               pthread_mutex_trylock(&other->lock) == 0) {
            hear(p, other, epw_now_ns());
            pthread_mutex_unlock(&other->lock);
        }
    }
}

/* ---- looking ---- */

/* Whether the call waits for messages of the peer. */
static bool awaits_messages(const epw_prefill_lane *lane, uint32_t peer) {
    const epw_stream *s = &lane->streams[lane->kind][peer];
    return s->takes && (lane->goal == EPW_GOAL_ALL || !s->opened);
}

static bool awaits_room(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer) {
    const epw_stream *s = &lane->streams[lane->kind][peer];
    bool goes = lane->sends || lane->peers[peer].opens || lane->peers[peer].voids;
    return goes && s->to_write > 0 && (!s->writes || epw_ring_room(&s->ring, p->layout.slots) == 0);
}

/* Whether the peer has begun the epoch, and has received what this lane posted in the previous one. */
static bool has_begun(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer) {
    epw_look seen;
    epw_look_at(&p->peers, lane->index, peer, EPW_WORD_EPOCH, &seen);
    lane->held |= seen.held;
    return seen.sight.word == lane->own_word;
}

/* Reads one word of the peer, and everything else that a wait must notice. */
static void look(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer, bool posted, uint64_t now) {
    epw_prefill_peer *q = &lane->peers[peer];
    epw_row_ring *ring = &lane->streams[lane->kind][peer].ring;
    epw_look seen;
    epw_look_at(&p->peers, lane->index, peer, posted ? posted_word(lane->kind) : taken_word(lane->kind),
                &seen);
    lane->held |= seen.held;
    epw_heard heard = posted ? epw_ring_hear_posted(ring, p->layout.slots, seen.sight.word, lane->own_word)
                             : epw_ring_hear_taken(ring, seen.sight.word, lane->own_word);
    bool begun = q->begun || has_begun(p, lane, peer);
    if (heard == EPW_HEARD_IMPOSSIBLE) q->gone = EPW_CAUSE_FORMAT;
    if (heard == EPW_HEARD_MORE || begun != q->begun) q->moved = q->clock.since = now;
    q->begun = begun;
    for (uint32_t kind = 0; kind < EPW_KINDS; kind++) lane->streams[kind][peer].writes = begun;
    epw_clock_heed(&q->clock, &seen, p->peers.lanes, epoch_of(lane), p->layout.ranks, p->config.ep.rank, now);
    uint32_t cause = epw_rule_gone(seen.sight, lane->own_word);
    if (epw_peers_revoked(&p->peers, peer)) cause = EPW_CAUSE_SUPERSEDED;
    if (cause != EPW_CAUSE_NONE && q->gone == EPW_CAUSE_NONE) q->gone = cause;
}

/* Which words of the peer a step looks at; if neither, nothing that it says is heeded. */
static bool looks_for_messages(const epw_prefill_lane *lane, uint32_t peer) {
    return lane->streams[lane->kind][peer].takes;
}

static void look_around(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    lane->held = false;
    FOR_OTHERS(peer, p, lane) {
        if (looks_for_messages(lane, peer)) look(p, lane, peer, true, now);
        if (awaits_room(p, lane, peer)) look(p, lane, peer, false, now);
    }
}

/* Whether the peer must act next. It need not if its messages lie here unread because those of others are
 * lacking; but it must if they are some of its answers to a token, of which more are to come. */
static bool is_owing(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer) {
    const epw_row_ring *ring = &lane->streams[lane->kind][peer].ring;
    if (awaits_room(p, lane, peer)) return true;
    return awaits_messages(lane, peer) &&
           (ring->seen == ring->taken || epw_prefill_lacks_answer(p, lane, peer));
}

/* What the peer wrote before its farewell is still read. */
static bool is_lost(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer) {
    uint32_t gone = lane->peers[peer].gone;
    if (gone == EPW_CAUSE_NONE) return false;
    return lane->streams[lane->kind][peer].to_write > 0 || is_owing(p, lane, peer) ||
           gone == EPW_CAUSE_FORMAT;
}

static uint64_t expiry_of(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer) {
    const epw_prefill_peer *q = &lane->peers[peer];
    epw_wait wait = {.running = true, .began = q->moved, .deadline_ns = lane->deadline_ns};
    return epw_clock_expiry(&q->clock, &wait, p->config.ep.deadline_ns);
}

/* Gives up peers from which nothing will come. Called when nothing has moved. */
static bool lose_silent(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    bool lost = false;
    FOR_OTHERS(peer, p, lane) {
        epw_prefill_peer *q = &lane->peers[peer];
        bool owing = is_owing(p, lane, peer);
        if (!owing) q->moved = q->clock.since = now; /* the clock of a peer that need not act is stopped */
        uint32_t cause = is_lost(p, lane, peer) ? q->gone : EPW_CAUSE_NONE;
        bool late = q->gone == EPW_CAUSE_NONE && owing && now >= expiry_of(p, lane, peer);
        lane->overdue |= late && lane->tended;
        if (late && !lane->tended) cause = EPW_CAUSE_TIMEOUT;
        if (cause == EPW_CAUSE_NONE) continue;
        if (cause == EPW_CAUSE_FORMAT) cause = EPW_CAUSE_DROPPED; /* it is not trusted any more */
        epw_prefill_miss(p, lane, peer, cause, now);
        lost = true;
    }
    return lost;
}

/* ---- words ---- */

/* The bytes of the messages that the word announces, for a peer behind a queue: an opening, rows up to the
 * end of the ring, and rows from its beginning. */
static uint32_t ranges_of(const epw_prefill *p, const epw_prefill_lane *lane, uint32_t peer,
                          epw_range *ranges) {
    const epw_prefill_layout *l = &p->layout;
    const epw_row_ring *ring = &lane->streams[lane->kind][peer].ring;
    uint32_t rank = p->config.ep.rank, count = 0;
    bool rows = lane->kind == EPW_KIND_DISPATCH;
    uint64_t row = rows ? l->header_bytes + epw_align(epw_format_bytes(&lane->format), 16)
                        : l->answer_head + epw_prefill_answer_bytes(p, lane);
    uint64_t opening = rows ? sizeof(epw_row_head) + sizeof(epw_opening) + l->local_experts * sizeof(uint32_t)
                            : sizeof(epw_row_head);
    uint64_t at = ring->announced;
    while (at < ring->written) { /* ends: each iteration takes at least one message */
        bool opens = at == lane->peers[peer].opening;
        uint64_t n = opens ? 1 : ring->written - at, left = l->slots - epw_ring_slot(l, at);
        if (n > left) n = left;
        ranges[count++] = (epw_range){.offset = rows ? epw_row_slot_offset(l, lane->index, rank, at)
                                                     : epw_answer_slot_offset(l, lane->index, rank, at),
                                      .bytes = opens ? epw_align(opening, 16) : row,
                                      .stride = rows ? l->slot_bytes : l->answer_bytes,
                                      .count = (uint32_t)n};
        at += n;
    }
    return count;
}

/* Writer: this rank, after it has written the peer's slots, and has read its own. Reader: the peer's step,
 * which acquires POSTED before it reads the messages, and TAKEN before it writes those slots again. */
static void tell(epw_prefill *p, epw_prefill_lane *lane, bool rests, uint64_t now) {
    FOR_OTHERS(peer, p, lane) {
        epw_row_ring *ring = &lane->streams[lane->kind][peer].ring;
        if (epw_ring_announces(ring, p->layout.slots, rests)) {
            epw_range ranges[8];
            uint32_t count = epw_is_queued(&p->peers, peer) ? ranges_of(p, lane, peer, ranges) : 0;
            post(p, lane, peer, posted_word(lane->kind), epw_count_word(lane->own_word, ring->written),
                 ranges, count, now);
            ring->announced = ring->written;
        }
        if (epw_ring_returns(ring, p->layout.slots, rests)) {
            post(p, lane, peer, taken_word(lane->kind), epw_count_word(lane->own_word, ring->taken), NULL, 0,
                 now);
            ring->returned = ring->taken;
        }
    }
}

/* ---- beacons ---- */

static uint64_t last_spoken(const epw_prefill *p, const epw_prefill_lane *lane, uint64_t now) {
    uint64_t least = now;
    FOR_OTHERS(peer, p, lane) if (lane->peers[peer].spoke < least) least = lane->peers[peer].spoke;
    return least;
}

static void post_beacon(epw_prefill *p, epw_prefill_lane *lane, uint32_t said, uint64_t now) {
    lane->beacon = epw_next_op(lane->beacon);
    FOR_OTHERS(peer, p, lane)
    post(p, lane, peer, EPW_WORD_BEACON, epw_word(epoch_of(lane), lane->beacon, said), NULL, 0, now);
}

static uint32_t beacon_to_post(const epw_prefill *p, const epw_prefill_lane *lane) {
    uint32_t lengthened = epw_rule_lengthened(lane->deadline_ns, p->config.ep.deadline_ns);
    epw_naming naming = epw_naming_begin(p->config.ep.rank, lengthened);
    FOR_OTHERS(peer, p, lane)
    if (is_owing(p, lane, peer)) epw_naming_add(&naming, peer, &lane->peers[peer].clock);
    return epw_naming_value(&naming);
}

/* Posts a beacon if due, because a step that moves much may take long: it shows peers that this rank is
 * alive. */
static void tell_between_turns(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    if (epw_rule_beacons_due(now - last_spoken(p, lane, now), p->config.ep.deadline_ns) > 0)
        post_beacon(p, lane, epw_beacon_value(EPW_BEACON_NONE, 0), now);
}

/* Posts a beacon if this rank waits and has been silent for long, or one that it no longer waits. Sets the
 * time of the next look. */
static void tell_and_rest(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    uint64_t group_ns = p->config.ep.deadline_ns, spoke = last_spoken(p, lane, now);
    bool waits = false;
    FOR_OTHERS(peer, p, lane)
    waits |= lane->running && lane->goal != EPW_GOAL_NONE && is_owing(p, lane, peer);
    lane->look_again = UINT64_MAX;
    if (!waits) {
        bool was = lane->waiting && (lane->beaconed || epw_rule_silent(now - spoke, group_ns));
        if (was) post_beacon(p, lane, epw_beacon_value(EPW_BEACON_NONE, 0), now);
        lane->waiting = lane->beaconed = false;
        return;
    }
    lane->waiting = true;
    if (epw_rule_beacons_due(now - spoke, group_ns) > 0) {
        post_beacon(p, lane, beacon_to_post(p, lane), now);
        lane->beaconed = true;
        spoke = now;
    }
    lane->look_again = spoke + group_ns / 2;
    FOR_OTHERS(peer, p, lane) {
        uint64_t expiry = expiry_of(p, lane, peer);
        if (is_owing(p, lane, peer) && expiry < lane->look_again) lane->look_again = expiry;
    }
}

/* ---- operations ---- */

void epw_prefill_begin_wait(epw_prefill *p, epw_prefill_lane *lane) {
    uint64_t now = epw_now_ns();
    lane->call++;
    lane->advanced = now;
    lane->rested = 0; /* what the caller did since the last call is no wait */
    hear(p, lane, now);
    FOR_OTHERS(peer, p, lane) {
        lane->peers[peer].moved = now;
        epw_clock_start(&lane->peers[peer].clock, now);
    }
}

/* The messages to the peer after the opening. */
static uint64_t rows_for(const epw_prefill_lane *lane, uint32_t peer) {
    const epw_routing *r = lane->routing;
    if (lane->kind == EPW_KIND_DISPATCH) return r->sent_first[peer + 1] - r->sent_first[peer];
    return epw_routing_answers(r, peer, lane->combine.mode == EPW_COMBINE_ORDERED);
}

/* What this rank sends itself goes through no ring, and is available at once. */
static void begin_own(epw_prefill *p, epw_prefill_lane *lane) {
    epw_routing *r = lane->routing;
    uint32_t rank = p->config.ep.rank, local = p->layout.local_experts;
    epw_stream *s = &lane->streams[lane->kind][rank];
    uint64_t rows = rows_for(lane, rank);
    epw_stream_begin(s, false, 0);
    if (lane->kind == EPW_KIND_COMBINE) return;
    epw_stream_open(s, rows);
    s->ring.seen = s->ring.taken + rows;
    r->announced[rank] = (uint32_t)rows;
    memcpy(r->counts + (size_t)rank * local, r->sent_counts + (size_t)rank * local,
           local * sizeof r->counts[0]);
}

void epw_prefill_begin(epw_prefill *p, epw_prefill_lane *lane) {
    lane->running = true;
    lane->dropped = false;
    lane->status = EPW_OK;
    lane->ops[lane->kind]++;
    lane->next_token = 0;
    lane->rested = 0;
    lane->record = (epw_error_record){0};
    epw_prefill_begin_wait(p, lane);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_prefill_peer *q = &lane->peers[peer];
        bool other = peer != p->config.ep.rank, present = epw_prefill_present(q);
        q->missing = q->member && q->suspected;
        if (q->missing) record(p, lane, peer, EPW_CAUSE_SUSPECTED, q->moved);
        q->opens = other && present;
        q->voids = q->refused = q->ended = false;
        q->opening = UINT64_MAX;
        q->next = 0;
        q->checked = q->waited_ns = 0;
        epw_stream_begin(&lane->streams[lane->kind][peer], q->opens, 1 + rows_for(lane, peer));
    }
    begin_own(p, lane);
}

void epw_prefill_give_up(epw_prefill *p, epw_prefill_lane *lane) {
    if (lane->goal == EPW_GOAL_NONE) epw_prefill_begin_wait(p, lane);
    lane->dropped = lane->placed = lane->sends = lane->receives = true;
    lane->retaken = 0;
    lane->goal = EPW_GOAL_ALL;
    atomic_store_explicit(&p->faulted, true, memory_order_relaxed);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_prefill_peer *q = &lane->peers[peer];
        epw_stream *s = &lane->streams[lane->kind][peer];
        q->refused = true;
        if (peer == p->config.ep.rank) {
            epw_stream_took(s, s->to_take);
        } else if (s->to_write > 0) {
            q->voids = true;
            s->to_write = 1;
        }
    }
}

static bool is_reached(const epw_prefill *p, const epw_prefill_lane *lane) {
    const epw_stream *streams = lane->streams[lane->kind];
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        const epw_prefill_peer *q = &lane->peers[peer];
        if (q->opens || q->voids) return false;
        if (lane->goal != EPW_GOAL_COUNTS && streams[peer].to_write > 0) return false;
        if (lane->goal == EPW_GOAL_ALL && streams[peer].takes) return false;
    }
    if (lane->goal == EPW_GOAL_COUNTS) return epw_streams_opened(streams, p->layout.ranks);
    if (lane->goal == EPW_GOAL_SENT || lane->dropped) return true;
    if (lane->kind == EPW_KIND_DISPATCH) return lane->placed;
    return lane->next_token == lane->routing->tokens;
}

/* ---- steps ---- */

/* Writes and takes what is possible now; true if something has moved. */
static bool move(epw_prefill *p, epw_prefill_lane *lane) {
    epw_stream *streams = lane->streams[lane->kind];
    bool moved = epw_prefill_write_openings(p, lane);
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
        epw_stream *s = &streams[peer];
        if (s->takes && !s->opened && s->ring.seen > s->ring.taken) {
            epw_prefill_open(p, lane, peer);
            moved = true;
        }
    }
    moved |= epw_prefill_discard(p, lane);
    if (lane->dropped) return moved;
    epw_streams_turn(streams, p->layout.ranks, p->layout.slots, lane->placed, lane->turns);
    for (uint32_t peer = 0; peer < p->layout.ranks && !lane->sends; peer++) lane->turns[peer].write = 0;
    if (lane->kind == EPW_KIND_DISPATCH) {
        moved |= epw_prefill_send(p, lane);
        tell(p, lane, false, epw_now_ns());
        return epw_prefill_take(p, lane) || moved;
    }
    moved |= epw_prefill_answer(p, lane);
    tell(p, lane, false, epw_now_ns());
    return epw_prefill_sum(p, lane) || moved;
}

/* Adds the time in which nothing moved to each peer that had to act meanwhile. */
static void count_waits(epw_prefill *p, epw_prefill_lane *lane, uint64_t since, uint64_t now) {
    FOR_OTHERS(peer, p, lane) if (is_owing(p, lane, peer)) lane->peers[peer].waited_ns += now - since;
}

epw_status epw_prefill_step(epw_prefill *p, epw_prefill_lane *lane) {
    uint64_t now = epw_now_ns(), began = now;
    if (lane->rested != 0) count_waits(p, lane, lane->rested, now);
    lane->rested = 0;
    lane->moved = false;
    hear(p, lane, now);
    for (;;) { /* ends: each iteration moves messages of an operation, gives a peer up, or is the last */
        look_around(p, lane, now);
        bool moved = move(p, lane);
        lane->moved |= moved;
        bool reached = is_reached(p, lane);
        now = epw_now_ns();
        if (moved) lane->advanced = now;
        tell(p, lane, reached || !moved, now);
        if (reached) break;
        if (moved) {
            tell_between_turns(p, lane, now);
        } else if (!lose_silent(p, lane, now)) {
            tell_and_rest(p, lane, now);
            if (!lane->moved) count_waits(p, lane, began, now);
            lane->rested = now;
            return EPW_PENDING;
        }
    }
    lane->goal = EPW_GOAL_NONE;
    tell_and_rest(p, lane, now);
    return EPW_OK;
}

/* ---- waiting ---- */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Spins or gives the core away for a moment, and takes in what arrived by queues. */
static void yield(epw_prefill *p, epw_prefill_lane *lane, uint64_t idle_ns, uint64_t now) {
    epw_mask owing = {{0}};
    FOR_OTHERS(peer, p, lane) if (is_owing(p, lane, peer)) epw_mask_add(&owing, peer);
    bool spins = idle_ns < epw_spin_ns(&p->peers, &owing);
    epw_prefill_unlock(p, lane);
    epw_remotes_drive(&p->peers, now);
    if (spins) {
        epw_cpu_relax();
    } else {
        sched_yield();
    }
    pthread_mutex_lock(&lane->lock);
}

static void fill_outcome(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome) {
    epw_mask missing = {{0}};
    for (uint32_t peer = 0; peer < p->layout.ranks; peer++)
        if (lane->peers[peer].missing) epw_mask_add(&missing, peer);
    const epw_routing *r = lane->routing;
    bool overflows = lane->kind == EPW_KIND_DISPATCH && lane->placed && !lane->dropped && r->overflow > 0;
    if (overflows && lane->record.cause == EPW_CAUSE_NONE) {
        uint64_t rows = 0;
        for (uint32_t e = 0; e < p->layout.local_experts; e++) rows += r->expert_rows[e];
        if (!epw_by_expert(r->layout)) rows = r->row_first[p->layout.ranks];
        lane->record = (epw_error_record){.phase = EPW_PHASE_DISPATCH_RECEIVE,
                                          .cause = EPW_CAUSE_OVERFLOW,
                                          .rank = p->config.ep.rank,
                                          .peer = p->config.ep.rank,
                                          .lane = lane->index,
                                          .epoch = epoch_of(lane),
                                          .op = lane->ops[lane->kind] & EPW_OP_MAX,
                                          .expected = rows,
                                          .seen = rows - r->overflow,
                                          .deadline_ns = lane->deadline_ns};
    }
    bool degraded = !epw_mask_empty(&missing) || overflows;
    if (degraded) atomic_store_explicit(&p->faulted, true, memory_order_relaxed);
    if (outcome == NULL) return;
    outcome->missing = missing;
    outcome->degraded = degraded;
    outcome->record = lane->record;
}

/* Ends the call, whose goal has been reached. */
epw_status epw_prefill_end(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome) {
    epw_status status = lane->status;
    bool half = !lane->dropped && !lane->receives;
    if (half) return EPW_OK;
    lane->running = false;
    if (!lane->dropped) {
        fill_outcome(p, lane, outcome);
        if (lane->kind == EPW_KIND_DISPATCH) epw_prefill_tell(p, lane);
        for (uint32_t peer = 0; peer < p->layout.ranks && lane->kind == EPW_KIND_COMBINE; peer++)
            if (lane->sums.wait_ns != NULL)
                epw_add_total(&lane->sums.wait_ns[peer], lane->peers[peer].waited_ns);
        epw_prefill_count_moved(p, lane);
    }
    if (lane->routing != NULL) {
        lane->routing->busy = false;
        lane->routing->made |= lane->kind == EPW_KIND_DISPATCH && !lane->dropped;
    }
    lane->routing = NULL;
    if (status == EPW_ERR_NO_MEMORY)
        return epw_fail(status, epw_prefill_where(p, "dispatch"), "no memory for incoming rows");
    return EPW_OK;
}

/* Sleeps until a step may find something new. EPW_OK: it has not slept, the goal has been reached. */
static epw_status sleep_for_news(epw_prefill *p, epw_prefill_lane *lane, uint64_t now) {
    uint32_t heard = epw_bell_listen(&p->peers);
    epw_status status = epw_prefill_step(p, lane);
    uint64_t until = lane->look_again, slice = lane->held ? HELD_SLICE_NS : SLICE_NS;
    if (status == EPW_PENDING) {
        epw_prefill_unlock(p, lane);
        if (until > now) epw_bell_sleep(&p->peers, heard, least(slice, until - now));
        pthread_mutex_lock(&lane->lock);
    }
    epw_bell_leave(&p->peers);
    return status;
}

/* Whether the lane still runs this call. While it was unlocked, another thread may have ended the operation
 * or given it up, and may have begun another. */
static bool still_runs(const epw_prefill_lane *lane, uint64_t call, const epw_routing *routing) {
    return lane->running && lane->call == call && lane->routing == routing && lane->goal != EPW_GOAL_NONE;
}

epw_status epw_prefill_run(epw_prefill *p, epw_prefill_lane *lane, epw_outcome *outcome) {
    const epw_routing *routing = lane->routing;
    uint64_t call = lane->call, idle = epw_now_ns();
    epw_status status = epw_prefill_step(p, lane);
    while (status == EPW_PENDING && !lane->nonblocking) { /* ends: all waits are bounded */
        uint64_t now = epw_now_ns();
        if (now - idle < p->peers.spin_ns + p->peers.yield_ns) {
            yield(p, lane, now - idle, now);
        } else {
            status = sleep_for_news(p, lane, now);
            if (status == EPW_OK) break;
        }
        if (!still_runs(lane, call, routing)) {
            epw_prefill_unlock(p, lane);
            return epw_fail(EPW_ERR_STATE, epw_prefill_where(p, "wait"),
                            "the operation was ended or given up by another thread");
        }
        status = epw_prefill_step(p, lane);
        if (lane->moved) idle = epw_now_ns();
    }
    if (status == EPW_OK) status = epw_prefill_end(p, lane, outcome);
    epw_prefill_unlock(p, lane);
    return status;
}

/* Whether a step would find something new. */
static bool has_news(epw_prefill *p, epw_prefill_lane *lane) {
    FOR_OTHERS(peer, p, lane) {
        const epw_prefill_peer *q = &lane->peers[peer];
        epw_row_ring ring = lane->streams[lane->kind][peer].ring;
        bool room = awaits_room(p, lane, peer);
        if (!room && !looks_for_messages(lane, peer)) continue;
        uint64_t posted = epw_word_from(&p->peers, lane->index, peer, posted_word(lane->kind));
        uint64_t taken = epw_word_from(&p->peers, lane->index, peer, taken_word(lane->kind));
        if (awaits_messages(lane, peer) &&
            epw_ring_hear_posted(&ring, p->layout.slots, posted, lane->own_word) != EPW_HEARD_NOTHING)
            return true;
        if (room && epw_ring_hear_taken(&ring, taken, lane->own_word) != EPW_HEARD_NOTHING) return true;
        epw_sight seen = epw_glance_at(&p->peers, lane->index, peer);
        if ((q->gone == EPW_CAUSE_NONE && epw_rule_gone(seen, lane->own_word) != EPW_CAUSE_NONE) ||
            (!q->begun && seen.epoch_word == lane->own_word))
            return true;
    }
    return atomic_load_explicit(&lane->suspicions, memory_order_relaxed) !=
           atomic_load_explicit(&p->peers.suspicions, memory_order_seq_cst);
}

uint64_t epw_prefill_rest_ns(epw_prefill *p, epw_prefill_lane *lane, uint64_t polled, uint64_t now) {
    if (lane->rested == 0 || now >= lane->look_again) return 0;
    /* A word that may not be used yet is a reason to look again soon, but not again and again. */
    bool young = epw_wait_is_young(&p->peers, lane->advanced, now);
    uint64_t age = now - polled, held_ns = lane->held && !young ? HELD_SLICE_NS : 0;
    if (age >= held_ns && has_news(p, lane)) return 0;
    return least(age < held_ns ? held_ns - age : SLICE_NS, lane->look_again - now);
}

/* ---- membership ---- */

void epw_prefill_begin_epoch(epw_prefill *p, const epw_mask *active, uint64_t epoch_word) {
    uint64_t now = epw_now_ns();
    epw_peers_clear_suspects(&p->peers);
    uint64_t suspicions = atomic_load_explicit(&p->peers.suspicions, memory_order_relaxed);
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        epw_prefill_lane *lane = &p->lanes[i];
        atomic_store_explicit(&lane->suspicions, suspicions, memory_order_relaxed);
        lane->own_word = epoch_word;
        lane->running = lane->waiting = lane->beaconed = false;
        lane->routing = NULL;
        lane->look_again = UINT64_MAX;
        memset(lane->ops, 0, sizeof lane->ops);
        for (uint32_t peer = 0; peer < p->layout.ranks; peer++) {
            uint64_t incarnation = epw_incarnation_of(&p->peers, peer);
            lane->peers[peer] = (epw_prefill_peer){
                .incarnation = incarnation, .member = epw_mask_has(active, peer), .moved = now, .spoke = now};
            epw_clock_start(&lane->peers[peer].clock, now);
            for (uint32_t kind = 0; kind < EPW_KINDS; kind++)
                lane->streams[kind][peer] = (epw_stream){.writes = false};
            /* Writer: this rank, done with its reads and writes of the old epoch. Reader: each member, before
             * it writes its first message; and each rank that is no longer a member. */
            if (incarnation != 0) post(p, lane, peer, EPW_WORD_EPOCH, epoch_word, NULL, 0, now);
        }
    }
}

void epw_prefill_part(epw_prefill *p, epw_prefill_lane *lane, uint32_t peer) {
    epw_prefill_peer *q = &lane->peers[peer];
    if (q->incarnation == 0 || lane->own_word == 0) return;
    q->suspected = true;
    tell_dropped(p, lane, peer, epw_now_ns());
    end_streams(lane, peer);
}
