/* Queue pairs of a soft NIC: their memory, fetching from it, and completions. */
#include "nic/soft/parts.h"

#include "base/barrier.h"
#include "base/bits.h"
#include "nic/entry.h"
#include "nic/queue.h"
#include "nic/verbs.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BITS = 16, SLOTS_MAX = 1 << SLOT_BITS, CACHE_LINE = 64, VENDOR_LOST = 0x81 };

/* ---- memory ---- */

uint64_t epw_pair_memory_bytes(uint32_t depth) {
    return (uint64_t)depth * EPW_FETCH_BYTES + 3 * CACHE_LINE;
}

static bool allocate(epw_pair *pair, const epw_pair_options *options) {
    if (options->parts != NULL) {
        pair->memory = *options->parts;
        return true;
    }
    uint32_t depth = options->depth;
    size_t ring = (size_t)depth * EPW_FETCH_BYTES, bytes = epw_pair_memory_bytes(depth);
    unsigned char *at = options->memory != NULL ? options->memory : aligned_alloc(CACHE_LINE, bytes);
    if (at == NULL) return false;
    memset(at, 0, bytes);
    pair->memory = (epw_pair_memory){.entries = at,
                                     .depth = depth,
                                     .record = (uint32_t *)(at + ring),
                                     .doorbell = (uint64_t *)(at + ring + CACHE_LINE),
                                     .completion = at + ring + (size_t)2 * CACHE_LINE};
    memset(pair->memory.completion, 0xff, CACHE_LINE);
    return true;
}

static void release(epw_pair *pair) {
    if (pair->options.memory == NULL && pair->options.parts == NULL) free(pair->memory.entries);
    free(pair->strict);
    free(pair->carried);
}

const unsigned char *epw_pair_entry(const epw_pair *pair, uint32_t index) {
    return pair->memory.entries + (size_t)(index & (pair->memory.depth - 1)) * EPW_FETCH_BYTES;
}

/* The operation of the entry, for its completion. An entry beyond those that were rung for may be in the
 * process of being written. */
static uint32_t opcode_at(const epw_pair *pair, uint32_t index) {
    bool posted = (uint32_t)pair->target - index - 1 < pair->memory.depth;
    return posted ? epw_pair_entry(pair, index)[3] : EPW_OPCODE_NOP;
}

/* Writes the completion queue's only entry, including what other readers check: the queue pair, what has
 * completed, and its index. Writer: the NIC. Reader: whoever polls it, which acquires the last four bytes. */
static void complete(epw_pair *pair, uint32_t index, uint32_t opcode, uint8_t syndrome, uint32_t vendor) {
    unsigned char *entry = pair->memory.completion;
    bool failed = syndrome != EPW_SYNDROME_NONE;
    uint32_t what = epw_swap_32(opcode << 24 | pair->number);
    const uint32_t user_index = 0; /* CREATE_QP gives it none */
    __atomic_store_n((uint32_t *)(entry + 0x20), user_index, __ATOMIC_RELAXED);
    if (failed)
        __atomic_store_n((uint32_t *)(entry + 0x34), epw_swap_32(vendor << 8 | syndrome), __ATOMIC_RELAXED);
    __atomic_store_n((uint32_t *)(entry + 0x38), what, __ATOMIC_RELAXED);
    uint32_t word = epw_swap_32((index & 0xffff) << 16 | (failed ? 0xd0 : 0));
    __atomic_store_n((uint32_t *)(entry + 0x3c), word, __ATOMIC_RELEASE);
}

/* Tells the other end over the connection, at once if there is room, since the connection may be about to be
 * closed. */
static void end_carried(epw_pair *pair) {
    pair->closed = true;
    if (pair->link == NULL) return;
    epw_link_tell(pair->link, EPW_FRAME_ENDED, pair->remote, pair->number);
    epw_link_send(pair->link); /* a pair that is removed is found by whoever looks at all of them */
}

void epw_pair_fail_as(epw_pair *pair, uint32_t index, uint8_t syndrome, uint32_t vendor) {
    if (atomic_load_explicit(&pair->broken, memory_order_relaxed)) return;
    if (pair->link != NULL) epw_link_stop(pair->link, pair, true);
    if (epw_pair_is_carried(pair)) end_carried(pair);
    epw_carry_stop(pair);
    pair->cause = (epw_pair_cause){syndrome, (uint8_t)vendor, index};
    complete(pair, index, opcode_at(pair, index), syndrome, vendor);
    /* Writer: the NIC, once nothing that came by this pair is placed any more. Reader: epw_pair_broken. */
    atomic_store_explicit(&pair->broken, true, memory_order_release);
    if (pair->options.broken != NULL) pair->options.broken(pair->options.context);
}

void epw_pair_end_by_peer(epw_pair *pair) {
    epw_pair_fail_as(pair, (uint32_t)pair->completed, EPW_SYNDROME_ABORTED, EPW_VENDOR_ENDED);
}

/* ---- life ---- */

epw_pair *epw_nic_pair(const epw_nic *nic, uint32_t number) {
    uint32_t slot = number & (SLOTS_MAX - 1);
    epw_pair *pair = slot < nic->pair_count ? nic->pairs[slot] : NULL;
    return pair != NULL && pair->number == number ? pair : NULL;
}

static bool grow(epw_nic *nic) {
    uint32_t count = nic->pair_count == 0 ? 16 : 2 * nic->pair_count;
    if (count > SLOTS_MAX) return false;
    epw_pair **pairs = realloc(nic->pairs, count * sizeof(epw_pair *));
    if (pairs == NULL) return false;
    nic->pairs = pairs;
    uint8_t *serials = realloc(nic->serials, count);
    if (serials == NULL) return false;
    nic->serials = serials;
    for (uint32_t i = nic->pair_count; i < count; i++) {
        pairs[i] = NULL;
        serials[i] = 0;
    }
    nic->pair_count = count;
    return true;
}

/* Locked. */
static bool enter(epw_nic *nic, epw_pair *pair) {
    uint32_t slot = 0;
    while (slot < nic->pair_count && nic->pairs[slot] != NULL) slot++;
    if (slot == nic->pair_count && !grow(nic)) return false;
    if (++nic->serials[slot] == 0) nic->serials[slot] = 1;
    pair->number = (uint32_t)nic->serials[slot] << SLOT_BITS | slot;
    nic->pairs[slot] = pair;
    nic->polled += pair->options.polled;
    return true;
}

epw_status epw_pair_create(epw_nic *nic, const epw_pair_options *options, epw_where where, epw_pair **out) {
    epw_pair *pair = calloc(1, sizeof *pair);
    if (pair != NULL) pair->options = *options;
    bool made = pair != NULL && allocate(pair, options);
    if (made) {
        pair->nic = nic;
        epw_nic_lock(nic);
        made = (nic->strict == NULL || epw_strict_open_pair(pair)) && enter(nic, pair);
        epw_status status = made ? epw_carry_open(pair, where) : EPW_OK;
        epw_nic_unlock(nic);
        if (status != EPW_OK) {
            epw_pair_destroy(pair);
            return status;
        }
        if (!made) release(pair);
    }
    if (!made) {
        free(pair);
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a queue pair of %u entries", options->depth);
    }
    if (options->polled) epw_nic_wake(nic); /* its thread must look now */
    *out = pair;
    return EPW_OK;
}

void epw_pair_poll(epw_pair *pair) {
    epw_nic *nic = pair->nic;
    epw_nic_lock(nic);
    nic->polled += !pair->options.polled;
    pair->options.polled = true;
    epw_nic_unlock(nic);
    epw_nic_wake(nic);
}

void epw_pair_destroy(epw_pair *pair) {
    if (pair == NULL) return;
    epw_nic *nic = pair->nic;
    epw_carry_leave(pair);
    epw_nic_lock(nic);
    epw_carry_await(pair);
    epw_nic_heed_rung(nic); /* it is no longer in that list */
    epw_carry_forget(pair);
    if (epw_pair_is_carried(pair) && !epw_pair_broken(pair)) end_carried(pair);
    epw_carry_end(pair);
    nic->pairs[pair->number & (SLOTS_MAX - 1)] = NULL;
    nic->polled -= pair->options.polled;
    epw_link *link = pair->link, *from = pair->from;
    if (link != NULL && !epw_link_forget(link, pair)) {
        epw_nic_drop_link(nic, link);
        if (from == link) from = NULL;
    }
    if (from != NULL && from != link && !epw_link_forget(from, pair)) epw_nic_drop_link(nic, from);
    epw_nic_unlock(nic); /* this sends for the others that were in that list */
    release(pair);
    free(pair);
}

uint32_t epw_pair_number(const epw_pair *pair) {
    return pair->number;
}

const epw_pair_memory *epw_pair_memory_of(const epw_pair *pair) {
    return &pair->memory;
}

/* This is the adapter's own end, through which it also sends. */
static bool close_carried(epw_pair *pair) {
    epw_carry_await(pair);
    epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_ABORTED);
    return epw_carry_stop(pair);
}

bool epw_pair_close(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    pair->closed = true;
    bool shut = !epw_pair_is_carried(pair) || close_carried(pair);
    if (pair->from != NULL) epw_link_stop(pair->from, pair, false);
    epw_nic_unlock(pair->nic);
    return shut;
}

bool epw_pair_is_closed(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    bool closed = pair->closed;
    epw_nic_unlock(pair->nic);
    return closed;
}

epw_pair_cause epw_pair_cause_of(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    epw_pair_cause cause = pair->cause;
    epw_nic_unlock(pair->nic);
    return cause;
}

bool epw_pair_broken(const epw_pair *pair) {
    return atomic_load_explicit(&pair->broken, memory_order_acquire);
}

/* ---- sending ---- */

/* A planned fault: the doorbell that rings for the entry is ignored. */
static bool loses_doorbell(epw_pair *pair, uint16_t ahead) {
    const epw_fault *fault = &pair->nic->strict->fault;
    bool covers = fault->kind == EPW_FAULT_LOSE_DOORBELL && fault->index - (uint32_t)pair->target < ahead;
    return covers && epw_strict_take(pair, fault->index).kind != EPW_FAULT_NONE;
}

/* Somebody has given it up, or the adapter has reported something with which it cannot continue. */
static void give_up(epw_pair *pair) {
    if (epw_pair_is_alarmed(pair))
        epw_pair_fail_as(pair, (uint32_t)pair->completed, EPW_SYNDROME_ABORTED, EPW_VENDOR_EVENT);
    epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_RETRIES);
}

/* Takes the doorbell's value away, so that the same value is noticed when it is stored again: some posters
 * ring before they write the record, too. It is never 0, and no other pair has this doorbell. */
static bool takes_doorbell(const epw_pair *pair) {
    uint64_t *at = pair->memory.doorbell;
    return __atomic_load_n(at, __ATOMIC_RELAXED) != 0 && __atomic_exchange_n(at, 0, __ATOMIC_ACQUIRE) != 0;
}

/* The pair is broken, and more was rung for. The entry that has failed by itself may be the last of that: an
 * entry completes once. */
static void flush(epw_pair *pair) {
    uint32_t last = (uint32_t)pair->target - 1;
    if (last != pair->cause.index) complete(pair, last, opcode_at(pair, last), EPW_SYNDROME_FLUSHED, 0);
}

/* How far it may fetch, according to the doorbell record. Whoever rings writes the record, and after it the
 * doorbell, which announces it: a strict NIC reacts only to the doorbell, as an adapter does. The record is
 * visible earlier, by the time that a GPU's fence takes. Writer of both: the thread that rings, after the
 * entries. Reader: the NIC. */
static void heed(epw_pair *pair) {
    bool strict = pair->strict != NULL, rung = !strict || takes_doorbell(pair);
    uint16_t record = epw_fetch_record(pair->memory.record);
    if (atomic_load_explicit(&pair->given_up, memory_order_acquire) ||
        epw_record_is_given_up(pair->memory.record))
        give_up(pair);
    if (!rung) return;
    uint16_t ahead = (uint16_t)(record - (uint16_t)pair->target);
    if (ahead == 0 || (strict && loses_doorbell(pair, ahead))) return;
    pair->target += ahead;
    bool overrun = pair->target - pair->completed > pair->memory.depth;
    if (strict && !overrun) epw_strict_rung(pair, pair->target - ahead, pair->target);
    if (overrun) {
        epw_pair_fail_as(pair, (uint32_t)pair->fetched, EPW_SYNDROME_OPERATION, EPW_VENDOR_OVERRUN);
    } else if (atomic_load_explicit(&pair->broken, memory_order_relaxed)) {
        flush(pair);
    } else if (pair->link != NULL && epw_pair_has_more(pair)) {
        epw_link_has_sender(pair->link, pair);
    }
}

/* The stack is taken as a whole, so that no node can be popped and pushed again during a push (ABA). */
void epw_nic_heed_rung(epw_nic *nic) {
    epw_pair *pair = atomic_exchange_explicit(&nic->rung, NULL, memory_order_acquire);
    while (pair != NULL) {
        epw_pair *next = atomic_load_explicit(&pair->rung_next, memory_order_relaxed);
        /* Before the record, the doorbell and `given_up` are read: a pair that is rung for from now on is
         * pushed again. Writer of these three, then of `rung`: see push. Reader: this thread, after it has
         * written `rung`. */
        atomic_store_explicit(&pair->rung, false, memory_order_seq_cst);
        epw_notice_fence();
        heed(pair);
        pair = next;
    }
}

bool epw_nic_heed_polled(epw_nic *nic) {
    bool rung = false;
    for (uint32_t i = 0; nic->polled > 0 && i < nic->pair_count; i++) {
        epw_pair *pair = nic->pairs[i];
        if (pair == NULL || !pair->options.polled) continue;
        uint64_t before = pair->target;
        heed(pair);
        rung |= pair->target != before;
    }
    return rung;
}

uint64_t epw_pair_rung_for(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    heed(pair);
    uint64_t entries = pair->target;
    epw_nic_unlock(pair->nic);
    return entries;
}

bool epw_pair_idle(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    heed(pair);
    bool idle = pair->completed == pair->target || atomic_load_explicit(&pair->broken, memory_order_relaxed);
    epw_nic_unlock(pair->nic);
    return idle;
}

/* The two observers: the thread that has rung for the pair or given it up, and then finds `rung` set; and
 * the NIC, which clears `rung` and then looks what it was rung for. Writer of the record, the doorbell and
 * `given_up`: the former, before this. Reader: the NIC. Without a full fence on both sides the former may
 * leave the pair to a NIC that has looked too early. */
static void push(epw_pair *pair) {
    epw_nic *nic = pair->nic;
    epw_notice_fence();
    if (!atomic_exchange_explicit(&pair->rung, true, memory_order_seq_cst)) {
        epw_pair *head = atomic_load_explicit(&nic->rung, memory_order_relaxed);
        do {
            atomic_store_explicit(&pair->rung_next, head, memory_order_relaxed);
        } while (!atomic_compare_exchange_weak_explicit(&nic->rung, &head, pair, memory_order_seq_cst,
                                                        memory_order_relaxed));
    }
}

void epw_pair_ring(epw_pair *pair) {
    push(pair);
    epw_nic_carry(pair->nic);
}

void epw_pair_give_up(epw_pair *pair) {
    atomic_store_explicit(&pair->given_up, true, memory_order_release);
    push(pair);
}

void epw_pair_break(epw_pair *pair) {
    epw_pair_give_up(pair);
    epw_nic_carry(pair->nic); /* this takes no lock that its thread may hold */
}

void epw_pair_connect(epw_pair *pair, uint64_t link, uint32_t remote) {
    epw_nic *nic = pair->nic;
    epw_nic_lock(nic);
    if (pair->link != NULL) epw_link_drop_sender(pair->link, pair);
    pair->link = epw_nic_link(nic, link);
    pair->remote = remote;
    pair->heard = false;
    if (pair->link == NULL) epw_pair_fail(pair, 0, EPW_SYNDROME_RETRIES);
    if (pair->link != NULL && epw_pair_has_more(pair)) epw_link_has_sender(pair->link, pair);
    epw_nic_unlock(nic);
}

void epw_pair_announce(epw_pair *pair) {
    epw_nic *nic = pair->nic;
    epw_nic_lock(nic);
    if (pair->link != NULL) epw_link_tell(pair->link, EPW_FRAME_CONNECTED, pair->remote, pair->number);
    epw_nic_unlock(nic);
}

bool epw_pair_is_heard(epw_pair *pair) {
    epw_nic_lock(pair->nic);
    bool heard = pair->heard;
    epw_nic_unlock(pair->nic);
    return heard;
}

bool epw_pair_has_more(const epw_pair *pair) {
    return pair->fetched != pair->target && !pair->asked.waits &&
           !atomic_load_explicit(&pair->broken, memory_order_relaxed) &&
           (pair->strict == NULL || epw_strict_may_fetch(pair));
}

static unsigned char *local_at(const epw_pair *pair, uint32_t rights, uint32_t key, uint64_t at,
                               uint32_t bytes) {
    const epw_region *region = epw_regions_find(&pair->nic->regions, key);
    if (region == NULL || region->domain != pair->options.domain) return NULL;
    return epw_region_at(region, rights, at, bytes);
}

uint8_t epw_pair_fetch(const epw_pair *pair, uint32_t index, epw_fetched *entry,
                       const unsigned char *bytes[EPW_FETCH_SEGMENTS]) {
    uint8_t wrong = epw_fetch(epw_pair_entry(pair, index), pair->number, (uint16_t)index, entry);
    if (wrong != EPW_SYNDROME_NONE) return wrong;
    bool answered = entry->opcode == EPW_OPCODE_READ || entry->opcode == EPW_OPCODE_FETCH_ADD;
    for (uint32_t i = 0; i < entry->local_count; i++) {
        const epw_segment *s = &entry->local[i];
        uint32_t rights = answered ? EPW_REGION_WRITE : EPW_REGION_READ;
        bytes[i] = local_at(pair, rights, s->key, s->offset, s->bytes);
        if (bytes[i] == NULL) return EPW_SYNDROME_PROTECTION;
    }
    return EPW_SYNDROME_NONE;
}

static uint8_t frame_kind(uint8_t opcode) {
    switch (opcode) {
    case EPW_OPCODE_WRITE:
        return EPW_FRAME_WRITE;
    case EPW_OPCODE_READ:
        return EPW_FRAME_READ;
    case EPW_OPCODE_FETCH_ADD:
        return EPW_FRAME_FETCH_ADD;
    default:
        return EPW_FRAME_NOP;
    }
}

/* At a strict NIC. False: the entry has failed. */
static bool refetch(epw_pair *pair) {
    const epw_fault *fault = &pair->nic->strict->fault;
    if (!epw_strict_is_unchanged(pair, pair->fetched)) {
        epw_pair_fail_as(pair, (uint32_t)pair->fetched, EPW_SYNDROME_OPERATION, EPW_VENDOR_CHANGED);
        return false;
    }
    if (fault->kind != EPW_FAULT_ERROR) return true;
    uint8_t syndrome = fault->syndrome;
    if (epw_strict_take(pair, pair->fetched).kind == EPW_FAULT_NONE) return true;
    epw_pair_fail_as(pair, (uint32_t)pair->fetched, syndrome, EPW_VENDOR_PLANNED);
    return false;
}

/* All before it too. */
static void done(epw_pair *pair, uint64_t entries, bool tell) {
    if (atomic_load_explicit(&pair->broken, memory_order_relaxed)) return;
    uint64_t index;
    uint32_t opcode = opcode_at(pair, (uint32_t)entries - 1); /* a strict NIC overwrites it */
    if (pair->strict != NULL && !epw_strict_done(pair, pair->completed, entries, &index)) {
        epw_pair_fail_as(pair, (uint32_t)index, EPW_SYNDROME_PROTECTION, EPW_VENDOR_REWRITTEN);
        return;
    }
    pair->completed = entries;
    if (entries == pair->fetched) pair->travels = false;
    if (tell) complete(pair, (uint32_t)entries - 1, opcode, EPW_SYNDROME_NONE, 0);
}

bool epw_pair_next(epw_pair *pair, epw_frame *frame, epw_fetched *entry,
                   const unsigned char *bytes[EPW_FETCH_SEGMENTS]) {
    while (epw_pair_has_more(pair)) {
        uint32_t index = (uint32_t)pair->fetched;
        if (pair->strict != NULL && !refetch(pair)) return false;
        uint8_t wrong = epw_pair_fetch(pair, index, entry, bytes);
        if (wrong != EPW_SYNDROME_NONE) {
            epw_pair_fail(pair, index, wrong);
            return false;
        }
        pair->fetched++;
        if (entry->opcode == EPW_OPCODE_NOP && !(entry->signalled && pair->travels)) {
            if (entry->signalled) done(pair, pair->fetched, true); /* all before it is done, and so is it */
            continue;
        }
        pair->travels = true;
        *frame = (epw_frame){.kind = frame_kind(entry->opcode),
                             .pair = pair->remote,
                             .from = pair->number,
                             .index = index,
                             .key = entry->remote_key,
                             .offset = entry->remote,
                             .bytes = entry->bytes};
        if (frame->kind == EPW_FRAME_READ || frame->kind == EPW_FRAME_FETCH_ADD) {
            pair->asked = (epw_asked){.waits = true,
                                      .signalled = entry->signalled,
                                      .index = index,
                                      .key = entry->local[0].key,
                                      .bytes = entry->bytes,
                                      .local = entry->local[0].offset};
        } else {
            frame->wants_ack = entry->signalled || (pair->strict != NULL && epw_strict_awaits(pair, index));
        }
        return true;
    }
    return false;
}

bool epw_pair_complete(epw_pair *pair, uint32_t index) {
    uint32_t ahead = index - (uint32_t)pair->completed;
    if (ahead >= UINT32_C(1) << 31) return true; /* a later one came first, over the other connection */
    uint64_t entries = pair->completed + ahead + 1;
    if (entries > pair->fetched - (pair->asked.waits ? 1 : 0)) return false;
    done(pair, entries, true);
    return true;
}

bool epw_pair_answer_place(const epw_pair *pair, uint32_t index, uint32_t bytes, unsigned char **at) {
    const epw_asked *asked = &pair->asked;
    if (!asked->waits || asked->index != index || asked->bytes != bytes) return false;
    *at = bytes > 0 ? local_at(pair, EPW_REGION_WRITE, asked->key, asked->local, bytes) : NULL;
    return true;
}

void epw_pair_answered(epw_pair *pair) {
    pair->asked.waits = false;
    done(pair, pair->fetched, pair->asked.signalled); /* nothing after it was fetched */
    if (epw_pair_has_more(pair)) epw_link_has_sender(pair->link, pair);
}

void epw_pair_fail(epw_pair *pair, uint32_t index, uint8_t syndrome) {
    epw_pair_fail_as(pair, index, syndrome, syndrome == EPW_SYNDROME_RETRIES ? VENDOR_LOST : 0);
}

void epw_pair_leave_replaced(epw_pair *pair) {
    pair->closed = true;
    epw_link_stop(pair->from, pair, false);
    epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_RETRIES);
}

void epw_pair_lose(epw_pair *pair, const epw_link *link) {
    bool concerned = pair->link == link || (pair->from == link && pair->taken);
    if (pair->from == link) {
        pair->from = NULL;
        pair->closed |= pair->taken;
        pair->ack_due = pair->owed.due = pair->answers = false;
    }
    if (pair->link == link) {
        epw_carry_forget(pair);
        pair->link = NULL;
        pair->sends = false;
    }
    if (concerned) epw_pair_fail(pair, (uint32_t)pair->completed, EPW_SYNDROME_RETRIES);
}
