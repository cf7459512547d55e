/* Moves the bytes of the current collective: writes messages for peers, reads messages of peers, and folds
 * what they give. Nothing here waits: what cannot continue is left for the next step. */
#include "coll/heap.h"
#include "coll/pull.h"

#include "base/barrier.h"
#include "base/clock.h"
#include "base/float_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* From this size on, the peer reads a piece from memory that epw_comm_alloc gave. */
    HEAP_FROM_BYTES = 16 << 10,
    /* A part of a result that is worth a message of its own. */
    ANNOUNCE_BYTES = 64 << 10,
    /* Bytes that are copied between two looks at the rings. */
    TURN_BYTES = 256 << 10,
    /* The most that a message lends. The peer reports each message that it has read, which shows that it goes
     * on. */
    LENT_BYTES = 32 << 20,
    STREAM_LEAST = 4096
};

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- copying ---- */

void epw_coll_copy(const epw_comm *comm, void *to, const void *from, uint64_t bytes) {
    uint64_t head = bytes & ~UINT64_C(15);
    if (!comm->streams || bytes < STREAM_LEAST || (uintptr_t)to % 16 != 0) {
        memcpy(to, from, bytes);
        return;
    }
    comm->numerics->copy_stream(to, from, head);
    memcpy((char *)to + head, (const char *)from + head, bytes - head);
}

bool epw_pull(const epw_coll_peer *p, void *to, uint64_t address, uint64_t bytes) {
    return epw_pull_from(p->pid, to, address, bytes);
}

/* ---- the current leg of a flow ---- */

static epw_leg *leg_of(epw_flow *flow) {
    return &flow->legs[flow->leg];
}

/* Counts bytes that were written or read. */
static void advance(epw_flow *flow, uint64_t bytes) {
    epw_leg *leg = leg_of(flow);
    leg->done += bytes;
    if (leg->done < leg->bytes) return;
    if (flow->leg == 0 && flow->legs[1].bytes > 0) {
        flow->leg = 1;
    } else {
        flow->open = false;
    }
}

/* The elements of a flow. Both ends must agree on them where blocks are uneven. */
static uint64_t elements_of(const epw_coll *call, const epw_flow *flow) {
    uint64_t element = epw_type_bytes(call->type);
    return element > 0 ? (flow->legs[0].bytes + flow->legs[1].bytes) / element : 0;
}

/* ---- to peers ---- */

epw_message *epw_slot_for(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint64_t number) {
    uint64_t offset = epw_message_offset(&comm->layout, channel, comm->config.rank, number);
    return (epw_message *)(void *)epw_rows_at(&comm->peers, channel, epw_coll_rank(comm, p), offset);
}

uint32_t epw_carry_of(const epw_comm *comm, const epw_coll_peer *p, const void *from, uint64_t bytes,
                      uint64_t *address) {
    if (epw_is_queued(&comm->peers, epw_coll_rank(comm, p))) return EPW_CARRY_INLINE;
    if (bytes >= HEAP_FROM_BYTES && epw_heap_holds(comm, from, bytes, address)) return EPW_CARRY_HEAP;
    *address = (uint64_t)(uintptr_t)from;
    return p->reads && bytes >= comm->pull_from ? EPW_CARRY_PULL : EPW_CARRY_INLINE;
}

/* Copies the next bytes of a leg, row after row. */
static void gather_into(const epw_leg *leg, unsigned char *to, uint64_t bytes) {
    for (uint64_t done = 0, left; done < bytes; done += left) {
        const unsigned char *from = epw_run_at(&leg->at, leg->done + done, &left);
        left = least(left, bytes - done);
        memcpy(to + done, from, left);
    }
}

static epw_message header_of(const epw_comm *comm, const epw_op *op, const epw_coll_peer *p, uint32_t carry) {
    return (epw_message){.number = p->rings[EPW_CHANNEL_COLLECTIVE].posted + 1,
                         .call = comm->calls,
                         .carry = carry,
                         .what = epw_descriptor_of(&op->call, elements_of(&op->call, &p->out)),
                         .before = epw_brief(&comm->before),
                         .before_count = epw_brief_count(&comm->before)};
}

/* Tells a peer that gets nothing what this rank calls, once it has begun the epoch, if its ring has room.
 * True: a message was written. */
static bool write_nothing(epw_comm *comm, const epw_op *op, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    if (!p->tells || (!p->begun && p->gone == EPW_CAUSE_NONE)) return false;
    p->tells = false;
    if (p->gone != EPW_CAUSE_NONE || !epw_ring_has_room_for_nothing(ring, comm->layout.slots)) return false;
    *epw_slot_for(comm, p, EPW_CHANNEL_COLLECTIVE, ring->posted + 1) =
        header_of(comm, op, p, EPW_CARRY_NOTHING);
    epw_ring_wrote(ring, false);
    return true;
}

/* Writes the next message of the flow to the peer. False: there is nothing to write yet. */
static bool write_message(epw_comm *comm, const epw_op *op, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    epw_leg *leg = leg_of(&p->out);
    uint64_t ready = leg->folded && !comm->fold.lacks ? comm->fold.done : leg->bytes, address = 0, run;
    uint64_t bytes = ready - leg->done;
    bool all = ready == leg->bytes;
    if (leg->folded && !comm->fold.lacks && (bytes == 0 || (!all && bytes < ANNOUNCE_BYTES))) return false;
    const unsigned char *from = epw_run_at(&leg->at, leg->done, &run);
    /* What will be overwritten as soon as it is written for the others is not lent. */
    bool lends = !comm->exchanges && !comm->fold.behind_out;
    uint32_t carry = lends ? epw_carry_of(comm, p, from, least(bytes, run), &address) : EPW_CARRY_INLINE;
    bytes = least(bytes, carry == EPW_CARRY_INLINE ? comm->layout.slot_bytes : least(run, LENT_BYTES));
    if (op->job == NULL || (leg->folded && comm->fold.lacks)) {
        carry = EPW_CARRY_VOID;
        bytes = 0;
    }
    epw_message *slot = epw_slot_for(comm, p, EPW_CHANNEL_COLLECTIVE, ring->posted + 1);
    if (carry == EPW_CARRY_INLINE) gather_into(leg, (unsigned char *)(slot + 1), bytes);
    *slot = header_of(comm, op, p, carry);
    slot->voids = op->job == NULL ? comm->config.rank : comm->fold.voids;
    slot->bytes = bytes;
    slot->address = address;
    epw_ring_wrote(ring, carry == EPW_CARRY_PULL || carry == EPW_CARRY_HEAP);
    if (carry == EPW_CARRY_VOID) {
        p->out.open = false;
    } else {
        advance(&p->out, bytes);
    }
    return true;
}

/* ---- from peers ---- */

bool epw_may_borrow(const epw_comm *comm, const epw_coll_peer *p, const epw_message *m) {
    const epw_coll_layout *l = &comm->layout;
    if (m->carry == EPW_CARRY_PULL) return p->readable;
    if (m->carry != EPW_CARRY_HEAP) return true;
    return !epw_is_queued(&comm->peers, epw_coll_rank(comm, p)) && m->address >= l->heap_offset &&
           m->address <= l->window_bytes && m->bytes <= l->window_bytes - m->address;
}

/* Trusts the peer no longer. */
static bool refuse_message(epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    p->gone = EPW_CAUSE_FORMAT;
    ring->seen = ring->consumed;
    return false;
}

/* Copies the peer's next message header, because the peer can write there at any time. False: there is
 * none. */
static bool copy_message(epw_comm *comm, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    if (!epw_ring_may_read(ring)) return false;
    uint64_t offset =
        epw_message_offset(&comm->layout, EPW_CHANNEL_COLLECTIVE, epw_coll_rank(comm, p), ring->consumed + 1);
    memcpy(&ring->message, epw_peers_own(&comm->peers) + offset, sizeof ring->message);
    return true;
}

/* Takes in messages of the peer by which it says what it calls, and has nothing. True: there were some. */
static bool read_nothing(epw_comm *comm, const epw_op *op, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    bool some = false;
    while (!ring->here && copy_message(comm, p) && ring->message.carry == EPW_CARRY_NOTHING) {
        epw_descriptor own = epw_descriptor_of(&op->call, elements_of(&op->call, &p->in));
        epw_found found = epw_nothing_found(ring, comm->calls, &own, &comm->before, p->in.open);
        if (found == EPW_FOUND_NONSENSE) refuse_message(p);
        if (found == EPW_FOUND_ANOTHER) epw_comm_mismatch(comm, p, &own, epw_now_ns());
        if (found != EPW_FOUND_OURS) break;
        epw_ring_consume(ring);
        some = true;
    }
    return some;
}

void epw_flow_check_unexpected(epw_comm *comm, const epw_op *op, epw_coll_peer *p, uint64_t now) {
    if (p->in.open) return;
    if (read_nothing(comm, op, p)) epw_rings_post(comm, now);
    if (comm->mismatched || !copy_message(comm, p)) return;
    if (!epw_message_unexpected(&p->rings[EPW_CHANNEL_COLLECTIVE], comm->calls)) return;
    epw_descriptor own = epw_descriptor_of(&op->call, 0);
    epw_comm_mismatch(comm, p, &own, now);
}

/* Checks the peer's next message. False: there is none, or it is not of this collective. */
static bool open_message(epw_comm *comm, const epw_op *op, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    if (ring->here) return true;
    const epw_message *m = &ring->message;
    if (!copy_message(comm, p)) return false;
    epw_descriptor own = epw_descriptor_of(&op->call, elements_of(&op->call, &p->in));
    epw_found found = epw_message_found(ring, comm->calls, &own, &comm->before);
    if (found == EPW_FOUND_NONSENSE) return refuse_message(p);
    if (found == EPW_FOUND_ANOTHER) {
        epw_comm_mismatch(comm, p, &own, epw_now_ns());
        return false;
    }
    const epw_leg *leg = leg_of(&p->in);
    uint64_t element = op->call.kind == EPW_BARRIER ? 1 : epw_type_bytes(op->call.type);
    bool fits = m->bytes <= leg->bytes - leg->done && m->bytes % element == 0 && epw_may_borrow(comm, p, m);
    /* Only the messages of a barrier have no bytes. */
    if (m->carry != EPW_CARRY_VOID) fits = fits && (m->bytes > 0) == (leg->bytes > 0);
    if (m->carry == EPW_CARRY_INLINE) fits = fits && m->bytes <= comm->layout.slot_bytes;
    if (m->carry == EPW_CARRY_VOID) fits = fits && m->voids < comm->layout.ranks && comm->of[m->voids].member;
    if (m->carry < EPW_CARRY_INLINE || m->carry > EPW_CARRY_VOID || !fits) return refuse_message(p);
    ring->here = true;
    ring->done = 0;
    return true;
}

static const unsigned char *behind_header(const epw_comm *comm, uint32_t source, uint64_t number) {
    return epw_peers_own(&comm->peers) +
           epw_message_offset(&comm->layout, EPW_CHANNEL_COLLECTIVE, source, number) + sizeof(epw_message);
}

/* Whether the peer still lent its memory when it was read. It ends the loan by a farewell or by the word
 * CANCELLED, which it posts before its caller may write there. */
static bool still_given(epw_comm *comm, epw_coll_peer *p, uint64_t number) {
    epw_look seen;
    /* Reader: this thread, after it has read the peer's memory. Writer: the peer, which stores its word
     * before its caller stores anything there: whoever has read one of those later stores also sees the
     * word. */
    epw_borrow_fence();
    epw_look_at(&comm->peers, EPW_CHANNEL_POINT, epw_coll_rank(comm, p), EPW_WORD_CANCELLED, &seen);
    if (p->gone == EPW_CAUSE_NONE) p->gone = epw_rule_gone(seen.sight, comm->own_word);
    return epw_ring_still_lent(seen.sight, comm->own_word, number);
}

bool epw_read_borrowed(epw_comm *comm, epw_coll_peer *p, uint32_t carry, void *to, uint64_t address,
                       uint64_t bytes) {
    uint32_t peer = epw_coll_rank(comm, p);
    if (carry == EPW_CARRY_PULL) {
        if (!epw_pull(p, to, address, bytes)) return false;
    } else {
        epw_coll_copy(comm, to, epw_rows_at(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, address), bytes);
        /* Writer: this thread, by streaming stores. Reader: whoever sees that the job has ended. */
        if (comm->streams) epw_stream_fence();
    }
    return still_given(comm, p, EPW_NO_MESSAGE);
}

/* Whether the open message, if it was read from the peer's memory, was lent until the end. */
static bool was_given(epw_comm *comm, epw_coll_peer *p) {
    const epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    bool borrowed = ring->message.carry == EPW_CARRY_PULL || ring->message.carry == EPW_CARRY_HEAP;
    return !borrowed || still_given(comm, p, ring->consumed + 1);
}

/* Reads the next bytes of the peer's open message into `to`. False: the loan has ended. */
static bool read_bytes(epw_comm *comm, epw_coll_peer *p, unsigned char *to, uint64_t bytes, bool last) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    const epw_message *m = &ring->message;
    uint32_t peer = epw_coll_rank(comm, p);
    if (m->carry == EPW_CARRY_PULL) {
        if (!epw_pull(p, to, m->address + ring->done, bytes)) return false;
    } else {
        const unsigned char *from = behind_header(comm, peer, ring->consumed + 1);
        if (m->carry == EPW_CARRY_HEAP)
            from = epw_rows_at(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, m->address);
        epw_coll_copy(comm, to, from + ring->done, bytes);
    }
    return !last || was_given(comm, p);
}

/* A part of what the peer had to give will not come, because rank `voids` is missing. */
static void note_lack(epw_comm *comm, epw_coll_peer *p, uint32_t voids) {
    bool folds = false;
    for (uint32_t l = p->in.leg; p->in.open && l < 2; l++)
        folds |= p->in.legs[l].folded && p->in.legs[l].done < p->in.legs[l].bytes;
    if (folds && comm->fold.on && !comm->fold.lacks) {
        comm->fold.lacks = true;
        comm->fold.voids = voids;
    }
    /* A peer that lacks another rank is not missing itself. */
    bool another = voids < comm->layout.ranks && voids != comm->config.rank;
    uint32_t missing = another ? voids : epw_coll_rank(comm, p);
    comm->of[missing].missing = true;
    if (comm->record.cause != EPW_CAUSE_NONE) return;
    comm->record = (epw_error_record){.phase = EPW_PHASE_COLLECTIVE,
                                      .cause = EPW_CAUSE_PARTIAL,
                                      .rank = comm->config.rank,
                                      .peer = missing,
                                      .epoch = epw_word_epoch(comm->own_word),
                                      .op = comm->calls & EPW_OP_MAX,
                                      .deadline_ns = comm->config.deadline_ns};
}

void epw_flow_void(epw_comm *comm, epw_coll_peer *p, uint32_t voids) {
    note_lack(comm, p, voids);
    p->in.open = false;
}

/* The peer has ended the loan of its open message. The flow continues after it: a later message says how it
 * ends. */
static void skip_message(epw_comm *comm, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    note_lack(comm, p, epw_coll_rank(comm, p));
    advance(&p->in, ring->message.bytes - ring->done);
    epw_ring_consume(ring);
}

/* Handles a message without bytes: VOID, which ends the flow, or one of a barrier. False: the message has
 * bytes. */
static bool read_empty(epw_comm *comm, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    const epw_message *m = &ring->message;
    if (m->carry == EPW_CARRY_VOID) {
        epw_flow_void(comm, p, m->voids);
    } else if (m->bytes == 0) {
        p->in.open = false; /* only a barrier has such messages */
    } else {
        return false;
    }
    epw_ring_consume(ring);
    return true;
}

/* Reads what goes directly to the caller's memory. True: something has moved. */
static bool read_some(epw_comm *comm, const epw_op *op, epw_coll_peer *p) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    if (!p->in.open || !open_message(comm, op, p)) return false;
    if (read_empty(comm, p)) return true;
    epw_leg *leg = leg_of(&p->in);
    if (leg->folded && !comm->fold.lacks) return false; /* fold_some reads it */
    uint64_t run, bytes = least(ring->message.bytes - ring->done, TURN_BYTES);
    if (comm->exchanges && op->job != NULL) {
        uint64_t gone = p->out.open ? leg_of(&p->out)->done : leg->bytes;
        if (gone <= leg->done) return false;
        bytes = least(bytes, gone - leg->done);
    }
    unsigned char *to = epw_run_at(&leg->at, leg->done, &run);
    bytes = least(bytes, run);
    bool last = ring->done + bytes == ring->message.bytes;
    if (op->job != NULL && !leg->folded && !read_bytes(comm, p, to, bytes, last)) {
        skip_message(comm, p);
        return true;
    }
    ring->done += bytes;
    advance(&p->in, bytes);
    if (last) epw_ring_consume(ring);
    return true;
}

/* ---- the fold ---- */

static bool folds_now(const epw_flow *in) {
    return in->open && in->legs[in->leg].folded;
}

/* The bytes that every peer has given and that are contiguous everywhere; 0: some peer's are not here yet. */
static uint64_t bytes_to_fold(epw_comm *comm, const epw_op *op) {
    epw_fold *fold = &comm->fold;
    uint64_t bytes = fold->bytes - fold->done, run;
    epw_run_at(&fold->own, fold->done, &run);
    bytes = least(bytes, run);
    epw_run_at(&fold->out, fold->done, &run);
    bytes = least(bytes, run);
    bytes = least(bytes, comm->scratch_bytes);
    EPW_COMM_OTHERS(p, comm) {
        epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
        if (!folds_now(&p->in) || !open_message(comm, op, p)) return 0;
        if (ring->message.carry == EPW_CARRY_VOID) return 0; /* read_some handles it */
        bytes = least(bytes, ring->message.bytes - ring->done);
    }
    return bytes;
}

/* The peer's next bytes, in its message or copied to the scratch memory. NULL: they could not be read. */
static const unsigned char *bytes_given(epw_comm *comm, epw_coll_peer *p, uint64_t bytes) {
    epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
    uint32_t peer = epw_coll_rank(comm, p);
    if (ring->message.carry == EPW_CARRY_INLINE)
        return behind_header(comm, peer, ring->consumed + 1) + ring->done;
    unsigned char *to = comm->scratch + peer * comm->scratch_bytes;
    if (ring->message.carry == EPW_CARRY_HEAP)
        return epw_rows_at(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, ring->message.address) + ring->done;
    return epw_pull(p, to, ring->message.address + ring->done, bytes) ? to : NULL;
}

/* Bytes that were folded were no longer lent, so the result is void. */
static void lose_fold(epw_comm *comm, epw_coll_peer *p) {
    note_lack(comm, p, epw_coll_rank(comm, p));
    comm->fold.lacks = true;
    comm->fold.voids = epw_coll_rank(comm, p);
}

/* Folds the bytes that every peer has given. True: something has moved. */
static bool fold_some(epw_comm *comm, const epw_op *op) {
    epw_fold *fold = &comm->fold;
    if (!fold->on || fold->lacks || fold->done == fold->bytes) return false;
    if (fold->behind_out) EPW_COMM_PEERS(p, comm) if (p->out.open) return false;
    uint64_t bytes = bytes_to_fold(comm, op), run;
    if (bytes == 0) return false;
    size_t n = 0;
    EPW_COMM_PEERS(p, comm) {
        if (!epw_coll_present(p)) continue;
        if (epw_coll_is_me(comm, p)) {
            comm->rows[n++] = epw_run_at(&fold->own, fold->done, &run);
            continue;
        }
        const unsigned char *given = bytes_given(comm, p, bytes);
        if (given == NULL) {
            skip_message(comm, p);
            return true;
        }
        comm->rows[n++] = given;
    }
    if (op->job != NULL) {
        epw_float_state before = epw_float_enter();
        comm->sums->reduce(fold->type, fold->op, comm->rows, n, bytes / epw_type_bytes(fold->type),
                           epw_run_at(&fold->out, fold->done, &run));
        epw_float_leave(before);
    }
    EPW_COMM_OTHERS(p, comm) {
        epw_ring *ring = &p->rings[EPW_CHANNEL_COLLECTIVE];
        ring->done += bytes;
        advance(&p->in, bytes);
        bool last = ring->done == ring->message.bytes;
        if (last && !was_given(comm, p)) lose_fold(comm, p);
        if (last) epw_ring_consume(ring);
    }
    fold->done += bytes;
    return true;
}

/* ---- all of it ---- */

/* Copies a piece of what this rank gives itself. */
static bool copy_own(epw_comm *comm, epw_op *op) {
    if (op->local_done == op->local_bytes || op->job == NULL) return false;
    uint64_t from_run, to_run;
    const unsigned char *from = epw_run_at(&op->local_from, op->local_done, &from_run);
    unsigned char *to = epw_run_at(&op->local_to, op->local_done, &to_run);
    uint64_t bytes = least(least(op->local_bytes - op->local_done, TURN_BYTES), least(from_run, to_run));
    epw_coll_copy(comm, to, from, bytes);
    op->local_done += bytes;
    return true;
}

/* Starts after this rank, so that the ranks do not all write to, or read from, the same peer. */
static epw_coll_peer *in_turn(epw_comm *comm, uint32_t turn) {
    uint32_t peer = comm->config.rank + 1 + turn;
    return &comm->of[peer < comm->layout.ranks ? peer : peer - comm->layout.ranks];
}

bool epw_flows_move(epw_comm *comm, epw_op *op, uint64_t now) {
    bool moved = false;
    for (uint32_t i = 0; i + 1 < comm->layout.ranks; i++) {
        epw_coll_peer *p = in_turn(comm, i);
        moved |= write_nothing(comm, op, p);
        while (p->out.open && p->begun && p->gone == EPW_CAUSE_NONE &&
               epw_ring_has_room(&p->rings[EPW_CHANNEL_COLLECTIVE], comm->layout.slots) &&
               write_message(comm, op, p))
            moved = true;
    }
    if (moved) epw_rings_post(comm, now);
    for (uint32_t i = 0; i + 1 < comm->layout.ranks; i++) {
        moved |= read_nothing(comm, op, in_turn(comm, i));
        moved |= read_some(comm, op, in_turn(comm, i));
    }
    moved |= fold_some(comm, op);
    moved |= copy_own(comm, op);
    if (!moved) return false;
    if (comm->streams) epw_stream_fence();
    epw_rings_post(comm, now);
    return true;
}

bool epw_flow_over(const epw_coll_peer *p) {
    return !p->out.open && !p->in.open && !p->tells && !epw_ring_lends(&p->rings[EPW_CHANNEL_COLLECTIVE]);
}

/* ---- words ---- */

/* The bytes of the messages that the word POSTED announces, for a peer behind a queue. */
static uint32_t ranges_of(epw_comm *comm, epw_coll_peer *p, uint32_t channel, epw_range *ranges) {
    epw_ring *ring = &p->rings[channel];
    uint32_t count = 0;
    for (uint64_t n = ring->announced + 1; n <= ring->posted; n++) {
        const epw_message *m = epw_slot_for(comm, p, channel, n);
        uint64_t bytes = sizeof *m + (m->carry == EPW_CARRY_INLINE ? m->bytes : 0);
        ranges[count++] =
            (epw_range){.offset = epw_message_offset(&comm->layout, channel, comm->config.rank, n),
                        .bytes = bytes,
                        .stride = bytes,
                        .count = 1};
    }
    return count;
}

static void post(epw_comm *comm, epw_coll_peer *p, uint32_t channel, uint32_t word, uint64_t count,
                 const epw_range *ranges, uint32_t range_count, uint64_t now) {
    uint64_t value = epw_count_word(comm->own_word, count);
    epw_signal(&comm->peers, channel, epw_coll_rank(comm, p), word, value, ranges, range_count);
    p->spoke = now;
}

/* Writer: this rank, after it has written the peer's slots, and has read its own. Reader: the peer's step,
 * which acquires POSTED before it reads the messages, and TAKEN before it writes those slots again. */
void epw_rings_post(epw_comm *comm, uint64_t now) {
    EPW_COMM_OTHERS(p, comm) {
        for (uint32_t c = 0; c < EPW_CHANNELS; c++) {
            epw_ring *ring = &p->rings[c];
            uint64_t posted = epw_ring_to_announce(ring);
            uint64_t taken = epw_ring_to_give_back(ring, comm->layout.slots);
            if (posted > 0) {
                epw_range ranges[256];
                uint32_t count =
                    epw_is_queued(&comm->peers, epw_coll_rank(comm, p)) ? ranges_of(comm, p, c, ranges) : 0;
                post(comm, p, c, EPW_WORD_POSTED, posted, ranges, count, now);
                ring->announced = posted;
            }
            if (taken > 0) {
                post(comm, p, c, EPW_WORD_TAKEN, taken, NULL, 0, now);
                ring->told = taken;
            }
            ring->urgent = false;
        }
    }
}
