/* See lane.h. */
#include "ep/lane.h"

#include "base/bits.h"

/* How long the sending half waits for the permission of all peers before it starts with those that have given
 * it: with all of them it reads each token only once. */
#define SEND_GRACE_NS   UINT64_C(1000000)

#define FOR_PEERS(p, m) for (epw_lane_peer *p = (m)->peers, *end_ = p + (m)->ranks; p < end_; p++)

static uint32_t rank_of(const epw_machine *m, const epw_lane_peer *p) {
    return (uint32_t)(p - m->peers);
}

/* The epoch word that this rank posts to its peers, and expects from them. */
static uint64_t own_word(const epw_machine *m) {
    return epw_epoch_word(m->epoch, m->step);
}

/* ---- words to be posted ---- */

static void add_post(epw_machine *m, epw_lane_peer *p, uint8_t post) {
    if (p->posts == 0 && m->posts++ == 0) m->post_at = rank_of(m, p);
    p->posts |= post;
}

static void drop_posts(epw_machine *m, epw_lane_peer *p) {
    if (p->posts != 0) m->posts--;
    p->posts = 0;
}

/* The next word for the peer. The order of words follows from their meaning: a farewell comes after
 * everything else. */
static uint8_t first_post(const epw_lane_peer *p) {
    return p->posts & (uint8_t)-p->posts;
}

static epw_decision post_of(const epw_machine *m, const epw_lane_peer *p, uint8_t post) {
    epw_decision d = {.act = EPW_ACT_POST, .peer = rank_of(m, p), .incarnation = p->incarnation};
    switch (post) {
    case EPW_POST_EPOCH:
        d.word = EPW_WORD_EPOCH;
        d.value = own_word(m);
        break;
    case EPW_POST_DISPATCH:
        d.word = EPW_WORD_DISPATCH;
        d.value = epw_word(m->epoch, m->op, p->sent);
        break;
    case EPW_POST_COMBINE:
        d.word = EPW_WORD_COMBINE;
        d.value = epw_word(m->epoch, m->op,
                           p->received | (m->mode == EPW_COMBINE_ORDERED ? EPW_ANSWER_ORDERED : 0));
        break;
    case EPW_POST_DEBT_DISPATCH:
        d.word = EPW_WORD_DISPATCH;
        d.value = epw_word(m->epoch, m->debt_op, 0);
        break;
    case EPW_POST_DEBT_COMBINE:
        d.word = EPW_WORD_COMBINE;
        d.value = epw_word(m->epoch, m->debt_op, 0);
        break;
    case EPW_POST_BEACON:
        d.word = EPW_WORD_BEACON;
        d.value = epw_word(m->epoch, m->beacon, m->said);
        break;
    default:
        d.silent = p->silent;
        d.word = EPW_WORD_DROPPED;
        d.value = epw_word(m->epoch, 0, 0);
    }
    return d;
}

bool epw_lane_post(epw_machine *m, epw_decision *post) {
    if (m->posts == 0) return false;
    epw_lane_peer *p = &m->peers[m->post_at];
    while (p->posts == 0) {
        m->post_at = m->post_at + 1 < m->ranks ? m->post_at + 1 : 0;
        p = &m->peers[m->post_at];
    }
    uint8_t first = first_post(p);
    *post = post_of(m, p, first);
    p->posts &= (uint8_t)~first;
    if (p->posts == 0 && --m->posts == 0) m->post_at = 0;
    return true;
}

/* ---- waits ---- */

/* A beacon to every member that may still wait for this rank. */
static void post_beacon(epw_machine *m, uint32_t said, uint64_t now) {
    m->beacon = epw_next_op(m->beacon);
    m->said = said;
    m->spoke = now;
    FOR_PEERS(p, m) {
        if (p->member && !p->suspected && rank_of(m, p) != m->rank) add_post(m, p, EPW_POST_BEACON);
    }
}

void epw_lane_say_waiting(epw_machine *m, uint32_t peer, uint64_t deadline_ns, uint64_t now) {
    post_beacon(m, epw_beacon_value(peer, epw_rule_lengthened(deadline_ns, m->group_ns)), now);
}

/* This rank no longer waits. Peers that were told that it waits are told so. All peers are told also if this
 * rank's words went out at different times, since some peers may count from the first of them, or if they
 * have heard nothing for a while: from now on the caller has nearly a whole deadline before its next call. */
static void end_wait(epw_machine *m, bool spread, uint64_t now) {
    bool silent = now > m->spoke && epw_rule_silent(now - m->spoke, m->group_ns);
    m->wait.running = false;
    if (m->paying || !(m->beaconed || spread || silent)) return;
    post_beacon(m, epw_beacon_value(EPW_BEACON_NONE, 0), now);
    m->beaconed = false;
}

static void begin_wait(epw_machine *m, uint64_t now) {
    epw_wait_begin(&m->wait, now, m->deadline_ns);
    m->copies = false;
    m->waited_till = now;
    FOR_PEERS(p, m) epw_clock_start(&p->clock, now);
}

/* When the time of an awaited peer is over: what is still owed and the call that waits for it each have their
 * own deadline. */
static uint64_t expiry(const epw_machine *m, const epw_lane_peer *p) {
    uint64_t until = UINT64_MAX;
    if (m->paying) until = epw_clock_expiry(&p->debt_clock, &m->debt_wait, m->group_ns);
    if (m->wait.running && (p->part & EPW_PART_AWAITED)) {
        uint64_t own = epw_clock_expiry(&p->clock, &m->wait, m->group_ns);
        if (own < until) until = own;
    }
    return until;
}

/* ---- losses ---- */

static void record(epw_machine *m, const epw_lane_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                   uint64_t seen, uint64_t now) {
    if (m->record.cause != EPW_CAUSE_NONE) return;
    /* The wait that has ended: that for what is owed, if its time is over, else that of the call. */
    bool of_debt = m->paying && epw_clock_expiry(&p->debt_clock, &m->debt_wait, m->group_ns) <= now;
    const epw_wait *wait = of_debt ? &m->debt_wait : &m->wait;
    uint32_t waiting = 0;
    FOR_PEERS(other, m) waiting += (other->part & EPW_PART_AWAITED) != 0;
    m->record = (epw_error_record){.phase = phase,
                                   .cause = cause,
                                   .rank = m->rank,
                                   .peer = rank_of(m, p),
                                   .lane = m->lane,
                                   .epoch = m->epoch,
                                   .op = m->op,
                                   .waiting = waiting,
                                   .expected = expected,
                                   .seen = seen,
                                   .elapsed_ns = wait->running ? now - wait->began : 0,
                                   .deadline_ns = of_debt ? wait->deadline_ns : m->deadline_ns};
}

/* The peer becomes a suspect: it gets no word but DROPPED. */
static void suspect(epw_machine *m, epw_lane_peer *p) {
    if (!p->suspected) drop_posts(m, p);
    p->suspected = true;
    p->owed = 0;
    if (p->told) return;
    p->told = true;
    add_post(m, p, EPW_POST_DROPPED);
}

/* The peer has no further part in the operation. */
static void lose(epw_machine *m, epw_lane_peer *p, uint32_t phase, uint32_t cause, uint64_t expected,
                 uint64_t seen, uint64_t now) {
    if (p->part & EPW_PART_AWAITED) {
        record(m, p, phase, cause, expected, seen, now);
        p->part |= EPW_PART_MISSING;
        p->waited_ns = m->waited_till - m->wait.began;
    }
    p->part &= (uint8_t) ~(EPW_PART_AWAITED | EPW_PART_READY);
}

void epw_lane_hear_suspect(epw_machine *m, uint32_t peer, bool revoked) {
    epw_lane_peer *p = &m->peers[peer];
    if (!p->member) return;
    p->revoked = revoked;
    if (!p->suspected) suspect(m, p);
}

/* Why nobody waits for a suspect. */
static uint32_t suspects_cause(const epw_lane_peer *p) {
    return p->revoked ? EPW_CAUSE_SUPERSEDED : EPW_CAUSE_SUSPECTED;
}

void epw_lane_part_with(epw_machine *m, uint32_t peer) {
    epw_lane_peer *p = &m->peers[peer];
    p->owed = 0;
    if (p->member) suspect(m, p);
}

/* ---- membership ---- */

void epw_lane_init(epw_machine *m) {
    FOR_PEERS(p, m) *p = (epw_lane_peer){.clock.named = EPW_BEACON_NONE};
    m->stage = EPW_STAGE_FREE;
}

void epw_lane_begin_epoch(epw_machine *m, uint64_t epoch_word, const uint64_t *incarnations,
                          const epw_mask *members, uint64_t now) {
    m->epoch = epw_word_epoch(epoch_word);
    m->step = epw_word_step(epoch_word);
    m->op = m->debt_op = m->debt_more = 0;
    m->debt_more_ns = 0;
    m->wrapped = m->paying = m->wait.running = m->beaconed = false;
    m->posts = m->post_at = 0;
    m->spoke = now;
    FOR_PEERS(p, m) {
        uint32_t peer = rank_of(m, p);
        *p = (epw_lane_peer){.incarnation = incarnations[peer],
                             .member = incarnations[peer] != 0 && epw_mask_has(members, peer),
                             .clock.named = EPW_BEACON_NONE};
        if (p->incarnation != 0) add_post(m, p, EPW_POST_EPOCH);
    }
}

/* ---- calls ---- */

void epw_lane_begin_dispatch(epw_machine *m, uint64_t deadline_ns, bool receives, uint64_t now) {
    m->first = m->op == 0 && !m->wrapped;
    m->op = epw_next_op(m->op);
    if (m->op == 0) m->wrapped = true;
    m->deadline_ns = deadline_ns;
    m->receives = receives;
    m->next = 0;
    m->record = (epw_error_record){0};
    FOR_PEERS(p, m) {
        p->part = p->member && !p->suspected ? EPW_PART_AWAITED : p->member ? EPW_PART_MISSING : 0;
        p->sent = p->received = 0;
        p->waited_ns = 0;
    }
    FOR_PEERS(p, m) {
        if (p->part == EPW_PART_MISSING) {
            record(m, p, EPW_PHASE_DISPATCH_SEND, suspects_cause(p), 0, 0, now);
            break;
        }
    }
    m->stage = EPW_STAGE_SENDING;
    begin_wait(m, now);
}

/* Begins the wait of a receiving half, for all that take part in it. */
static void begin_receiving_wait(epw_machine *m, uint8_t who, uint64_t now) {
    if (m->wait.running) return; /* epw_lane_begin_wait has done so */
    FOR_PEERS(p, m) {
        bool awaited = who ? (p->part & who) != 0 : p->member && !(p->part & EPW_PART_MISSING);
        if (awaited) p->part |= EPW_PART_AWAITED;
        p->waited_ns = 0;
    }
    begin_wait(m, now);
}

void epw_lane_begin_wait(epw_machine *m, uint64_t now) {
    if (m->stage == EPW_STAGE_SENT) begin_receiving_wait(m, 0, now);
    if (m->stage == EPW_STAGE_ANSWERED) begin_receiving_wait(m, EPW_PART_PRESENT, now);
}

void epw_lane_begin_receive(epw_machine *m, uint64_t now) {
    begin_receiving_wait(m, 0, now);
    m->next = 0;
    m->stage = EPW_STAGE_RECEIVING;
}

void epw_lane_begin_combine(epw_machine *m, uint64_t deadline_ns, uint32_t mode, bool receives) {
    m->deadline_ns = deadline_ns;
    m->mode = mode;
    m->receives = receives;
    m->next = 0;
    m->stage = EPW_STAGE_ANSWERING;
}

void epw_lane_begin_collect(epw_machine *m, uint64_t now) {
    begin_receiving_wait(m, EPW_PART_PRESENT, now);
    m->stage = EPW_STAGE_COLLECTING;
}

/* ---- giving up ---- */

/* From now on every peer is owed both words of operation `op`. */
static void owe_all(epw_machine *m, uint32_t op, bool first, uint64_t deadline_ns, uint64_t now) {
    m->debt_op = op;
    m->debt_first = first;
    epw_wait_begin(&m->debt_wait, now, deadline_ns);
    FOR_PEERS(p, m) {
        p->owed = p->member && !p->suspected ? EPW_OWED_ROWS | EPW_OWED_ANSWER : 0;
        epw_clock_start(&p->debt_clock, now);
    }
    m->paying = true;
}

void epw_lane_give_up(epw_machine *m, uint64_t now) {
    epw_stage stage = m->stage;
    bool waiting = m->wait.running;
    uint64_t began = m->wait.began;
    m->stage = EPW_STAGE_FREE;
    if (stage == EPW_STAGE_FREE) return;
    if (m->paying) {
        /* The operation was still waiting for words that an older one owed: it has sent nothing to anybody.
         */
        m->debt_more++;
        if (m->deadline_ns > m->debt_more_ns) m->debt_more_ns = m->deadline_ns;
        m->wait.running = false;
        FOR_PEERS(p, m) p->part &= (uint8_t)~EPW_PART_AWAITED;
        return;
    }
    if (stage == EPW_STAGE_ANSWERED || stage == EPW_STAGE_COLLECTING) {
        end_wait(m, false, now);
        return;
    }
    owe_all(m, m->op, m->first, m->deadline_ns, now);
    if (waiting) m->debt_wait.began = began;
    m->wait.running = false; /* what is owed continues to wait, with its beacons */
    FOR_PEERS(p, m) {
        bool awaited = waiting && (p->part & EPW_PART_AWAITED);
        /* A lane that has waited for a dead peer, and continues to, must not take longer than others allow.
         */
        if (awaited) p->debt_clock = p->clock;
        if ((p->part & EPW_PART_MISSING) && !(p->part & EPW_PART_PRESENT)) p->owed = 0;
        if (stage != EPW_STAGE_SENDING || !awaited) p->owed &= EPW_OWED_ANSWER;
        p->part &= (uint8_t) ~(EPW_PART_AWAITED | EPW_PART_READY);
    }
}

/* Nothing is owed any more: continues with the next operation that was given up, if there is one. */
static void settle_debt(epw_machine *m, uint64_t now) {
    m->paying = false;
    if (m->debt_more > 0) {
        m->debt_more--;
        uint64_t deadline_ns = m->debt_more_ns;
        if (m->debt_more == 0) m->debt_more_ns = 0;
        owe_all(m, epw_next_op(m->debt_op), false, deadline_ns, now);
    } else if (!m->wait.running) {
        end_wait(m, false, now);
    }
}

/* ---- looking ---- */

static uint32_t permission_word(bool first) {
    return first ? EPW_WORD_EPOCH : EPW_WORD_COMBINE;
}

void epw_lane_begin_step(epw_machine *m) {
    m->copies = false;
}

bool epw_lane_awaits(const epw_machine *m, uint32_t peer, uint32_t *word) {
    const epw_lane_peer *p = &m->peers[peer];
    if (m->paying) {
        *word = p->owed & EPW_OWED_ROWS ? permission_word(m->debt_first) : EPW_WORD_DISPATCH;
        return p->owed != 0;
    }
    if (!m->wait.running || !(p->part & EPW_PART_AWAITED)) return false;
    switch (m->stage) {
    case EPW_STAGE_SENDING:
        *word = permission_word(m->first);
        return !(p->part & EPW_PART_READY);
    case EPW_STAGE_SENT:
    case EPW_STAGE_RECEIVING:
        *word = EPW_WORD_DISPATCH;
        return true;
    case EPW_STAGE_ANSWERED:
    case EPW_STAGE_COLLECTING:
        *word = EPW_WORD_COMBINE;
        return true;
    default:
        return false;
    }
}

/* Whether the answer is complete, and of the mode that this rank expects. */
static uint32_t answer_cause(const epw_machine *m, const epw_lane_peer *p, uint32_t value) {
    uint32_t rows = m->ordered ? value & ~EPW_ANSWER_ORDERED : value;
    if (rows != p->sent) return rows < p->sent ? EPW_CAUSE_PARTIAL : EPW_CAUSE_FORMAT;
    bool ordered = m->ordered && (value & EPW_ANSWER_ORDERED);
    return rows == 0 || ordered == (m->mode == EPW_COMBINE_ORDERED) ? EPW_CAUSE_NONE : EPW_CAUSE_FORMAT;
}

static void pay(epw_machine *m, epw_lane_peer *p) {
    bool rows = p->owed & EPW_OWED_ROWS;
    p->owed &= rows ? EPW_OWED_ANSWER : 0;
    add_post(m, p, rows ? EPW_POST_DEBT_DISPATCH : EPW_POST_DEBT_COMBINE);
}

/* What was awaited from the peer has arrived. */
static void arrived(epw_machine *m, epw_lane_peer *p, uint64_t word, uint64_t now) {
    uint32_t value = epw_word_value(word);
    if (m->paying) {
        pay(m, p);
        /* A word is a sign of life, also for the call that waits until nothing is owed. */
        p->clock.since = p->debt_clock.since = now;
        return;
    }
    if (m->stage == EPW_STAGE_SENDING) {
        p->part |= EPW_PART_READY;
        return;
    }
    p->waited_ns = m->waited_till - m->wait.began;
    if (m->stage == EPW_STAGE_SENT || m->stage == EPW_STAGE_RECEIVING) {
        p->received = value;
        p->part |= EPW_PART_PRESENT;
    } else {
        uint32_t cause = answer_cause(m, p, value);
        if (cause == EPW_CAUSE_NONE) {
            p->part |= EPW_PART_ANSWERED;
        } else {
            lose(m, p, EPW_PHASE_COMBINE_RECEIVE, cause, epw_word(m->epoch, m->op, 0), word, now);
        }
    }
    p->part &= (uint8_t)~EPW_PART_AWAITED;
}

static uint32_t phase_of(const epw_machine *m) {
    if (m->stage == EPW_STAGE_SENDING) return EPW_PHASE_DISPATCH_SEND;
    if (m->stage == EPW_STAGE_SENT || m->stage == EPW_STAGE_RECEIVING) return EPW_PHASE_DISPATCH_RECEIVE;
    return EPW_PHASE_COMBINE_RECEIVE;
}

void epw_lane_see(epw_machine *m, uint32_t peer, const epw_look *seen, uint64_t now) {
    uint32_t word;
    if (!epw_lane_awaits(m, peer, &word)) return;
    epw_lane_peer *p = &m->peers[peer];
    /* A peer whose word comes while rows are copied has kept nobody waiting. */
    if (!m->copies) m->waited_till = now;
    uint32_t op = m->paying ? m->debt_op : m->op;
    bool first = m->paying ? m->debt_first : m->first;
    bool permission = m->paying ? (p->owed & EPW_OWED_ROWS) != 0 : m->stage == EPW_STAGE_SENDING;
    epw_verdict verdict = permission ? epw_rule_may_send(seen->sight, own_word(m), op, first)
                                     : epw_rule_arrived(seen->sight, own_word(m), op);
    if (verdict == EPW_ARRIVED) {
        arrived(m, p, seen->sight.word, now);
        return;
    }
    uint32_t cause = epw_rule_gone(seen->sight, own_word(m));
    if (verdict == EPW_WAITING) {
        if (m->paying) epw_clock_heed(&p->debt_clock, seen, m->lanes, m->epoch, m->ranks, m->rank, now);
        epw_clock_heed(&p->clock, seen, m->lanes, m->epoch, m->ranks, m->rank, now);
        if (!p->suspected && now < expiry(m, p)) return;
        cause = p->suspected ? suspects_cause(p) : EPW_CAUSE_TIMEOUT;
    }
    if (p->revoked) cause = EPW_CAUSE_SUPERSEDED; /* whatever it has said to that */
    uint64_t expected =
        word == EPW_WORD_EPOCH ? own_word(m) : epw_word(m->epoch, permission ? op - 1 : op, 0);
    lose(m, p, phase_of(m), cause, expected, seen->sight.word, now);
    p->silent |= cause == EPW_CAUSE_TIMEOUT;
    suspect(m, p);
}

/* ---- deciding ---- */

static uint32_t beacon_to_post(const epw_machine *m) {
    uint64_t longest = m->wait.running ? m->wait.deadline_ns : 0;
    if (m->paying && m->debt_wait.deadline_ns > longest) longest = m->debt_wait.deadline_ns;
    epw_naming naming = epw_naming_begin(m->rank, epw_rule_lengthened(longest, m->group_ns));
    for (uint32_t peer = 0; peer < m->ranks; peer++) {
        uint32_t word;
        const epw_lane_peer *p = &m->peers[peer];
        if (epw_lane_awaits(m, peer, &word))
            epw_naming_add(&naming, peer, m->paying ? &p->debt_clock : &p->clock);
    }
    return epw_naming_value(&naming);
}

/* The wait continues: posts its beacon if that is due, else sleeps until something is due. */
static epw_decision pause(epw_machine *m, uint64_t now) {
    epw_decision d = {.act = EPW_ACT_SLEEP};
    if (now > m->spoke && epw_rule_beacons_due(now - m->spoke, m->group_ns) > 0) {
        post_beacon(m, beacon_to_post(m), now);
        m->beaconed = true;
        if (epw_lane_post(m, &d)) return d;
    }
    d.until = m->spoke + m->group_ns / 2;
    if (!m->paying && m->stage == EPW_STAGE_SENDING) {
        FOR_PEERS(p, m) {
            if ((p->part & EPW_PART_READY) && m->wait.began + SEND_GRACE_NS < d.until)
                d.until = m->wait.began + SEND_GRACE_NS;
        }
    }
    for (uint32_t peer = 0; peer < m->ranks; peer++) {
        uint32_t word;
        if (!epw_lane_awaits(m, peer, &word)) continue;
        uint64_t end = expiry(m, &m->peers[peer]);
        if (end < d.until) d.until = end;
    }
    return d;
}

static bool any(const epw_machine *m, uint8_t part) {
    FOR_PEERS(p, m) {
        if (p->part & part) return true;
    }
    return false;
}

/* SENDING: false if this stage is over. */
static bool decide_sending(epw_machine *m, epw_decision *d, uint64_t now) {
    uint32_t ready = 0, awaited = 0;
    FOR_PEERS(p, m) {
        if ((p->part & EPW_PART_READY) && p->suspected)
            lose(m, p, EPW_PHASE_DISPATCH_SEND, suspects_cause(p), 0, 0, now);
        ready += (p->part & EPW_PART_READY) != 0;
        awaited += (p->part & EPW_PART_AWAITED) != 0;
    }
    if (ready > 0 && (ready == awaited || now - m->wait.began >= SEND_GRACE_NS)) {
        *d = (epw_decision){.act = EPW_ACT_SEND};
        return true;
    }
    if (awaited > 0) {
        *d = pause(m, now);
        return true;
    }
    end_wait(m, m->next > 1, now);
    m->stage = EPW_STAGE_SENT;
    if (m->receives) epw_lane_begin_receive(m, now);
    return false;
}

/* RECEIVING: sources come in ascending order, so that the rows of an expert's list are ordered by source. */
static bool decide_receiving(epw_machine *m, epw_decision *d, uint64_t now) {
    if (m->next < m->ranks) {
        const epw_lane_peer *p = &m->peers[m->next];
        bool awaited = p->part & EPW_PART_AWAITED;
        *d = awaited ? pause(m, now)
                     : (epw_decision){.act = EPW_ACT_LAY_OUT, .peer = m->next, .incarnation = p->incarnation};
        return true;
    }
    end_wait(m, false, now);
    m->stage = EPW_STAGE_DISPATCHED;
    return false;
}

/* ANSWERING: begins with the rank after this one, so that not all ranks write to the same peer at once. */
static bool decide_answering(epw_machine *m, epw_decision *d, uint64_t now) {
    for (; m->next < m->ranks; m->next++) {
        uint32_t peer = m->rank + 1 + m->next;
        epw_lane_peer *p = &m->peers[peer < m->ranks ? peer : peer - m->ranks];
        if (!(p->part & EPW_PART_PRESENT)) continue;
        if (p->suspected) {
            record(m, p, EPW_PHASE_COMBINE_SEND, suspects_cause(p), 0, 0, now);
            p->part = (p->part & (uint8_t)~EPW_PART_PRESENT) | EPW_PART_MISSING;
            continue;
        }
        *d = (epw_decision){.act = EPW_ACT_ANSWER, .peer = rank_of(m, p), .incarnation = p->incarnation};
        return true;
    }
    m->spoke = now;
    m->stage = EPW_STAGE_ANSWERED;
    if (m->receives) epw_lane_begin_collect(m, now);
    return false;
}

epw_decision epw_lane_decide(epw_machine *m, uint64_t now) {
    epw_decision d = {.act = EPW_ACT_DONE};
    for (;;) { /* each iteration ends a stage, or returns */
        if (epw_lane_post(m, &d)) return d;
        if (m->paying) {
            bool owing = false;
            FOR_PEERS(p, m) owing |= p->owed != 0;
            if (owing) return pause(m, now);
            settle_debt(m, now);
            continue;
        }
        bool decided = true;
        switch (m->stage) {
        case EPW_STAGE_SENDING:
            decided = decide_sending(m, &d, now);
            break;
        case EPW_STAGE_RECEIVING:
            decided = decide_receiving(m, &d, now);
            break;
        case EPW_STAGE_ANSWERING:
            decided = decide_answering(m, &d, now);
            break;
        case EPW_STAGE_COLLECTING:
            d = any(m, EPW_PART_AWAITED) ? pause(m, now) : (epw_decision){.act = EPW_ACT_SUM};
            break;
        default: /* it is the caller's turn; it may have begun the wait of the next half */
            if (m->wait.running && any(m, EPW_PART_AWAITED)) d = pause(m, now);
        }
        if (decided) return d;
    }
}

void epw_lane_did(epw_machine *m, epw_decision done, uint64_t now) {
    switch (done.act) {
    case EPW_ACT_SEND:
        FOR_PEERS(p, m) {
            if (!(p->part & EPW_PART_READY)) continue;
            p->part &= (uint8_t) ~(EPW_PART_READY | EPW_PART_AWAITED);
            add_post(m, p, EPW_POST_DISPATCH);
        }
        if (m->next++ == 0) m->spoke = now; /* peers that got the first words count from here */
        break;
    case EPW_ACT_LAY_OUT:
        m->copies = true;
        m->next++;
        break;
    case EPW_ACT_ANSWER:
        add_post(m, &m->peers[done.peer], EPW_POST_COMBINE);
        m->next++;
        break;
    case EPW_ACT_SUM:
        end_wait(m, false, now);
        m->stage = EPW_STAGE_FREE;
        break;
    default:
        break;
    }
}

void epw_lane_refuse(epw_machine *m, epw_decision done, uint64_t now) {
    epw_lane_peer *p = &m->peers[done.peer];
    record(m, p, EPW_PHASE_DISPATCH_RECEIVE, EPW_CAUSE_FORMAT, epw_word(m->epoch, m->op, 0),
           epw_word(m->epoch, m->op, p->received), now);
    p->part |= EPW_PART_MISSING;
    p->received = 0;
    m->next++;
}

/* ---- what it knows ---- */

bool epw_lane_running(const epw_machine *m) {
    return m->stage == EPW_STAGE_SENDING || m->stage == EPW_STAGE_RECEIVING ||
           m->stage == EPW_STAGE_ANSWERING || m->stage == EPW_STAGE_COLLECTING;
}

epw_mask epw_lane_set(const epw_machine *m, uint8_t part) {
    epw_mask set = {{0}};
    for (uint32_t peer = 0; peer < m->ranks; peer++)
        if (m->peers[peer].part & part) epw_mask_add(&set, peer);
    return set;
}
