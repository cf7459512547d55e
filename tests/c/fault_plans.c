/* Expert parallelism with faults: three ranks behind strict NICs go through operations call by call, in an
 * order and with one fault that a seed decides. A pure function computes from the plan, in advance, what each
 * rank must be told of each operation, {missing set, cause, peer, op}; the results must be equal to that.
 *
 * One thread makes all calls. After each call it waits until all that was sent has been placed, or never will
 * be, so that nothing depends on time except waits for something that does not come. */
#include "group.h"

#include "base/clock.h"
#include "nic/fabric.h"
#include "nic/soft/parts.h"

#include <stdio.h>

enum { RANKS = 3, LANES = 2, OPS = 5, PLANS = 132, DEADLINE_MS = 60, CALLS_MAX = RANKS * OPS * 4 + 1 };

/* ---- plans ---- */

/* Troubles beside the faults of a strict NIC (nic/soft/strict.h). */
enum {
    TROUBLE_NONE = EPW_FAULT_NONE,
    TROUBLE_LATE = EPW_FAULT_KINDS, /* a rank begins an operation when the others have ended it */
    TROUBLE_ENDS,                   /* all connections of a rank end, and it makes no further call */
    TROUBLES
};

typedef enum call { DISPATCH, RECEIVE, COMBINE, COLLECT, END } call;

typedef struct plan {
    uint64_t seed;
    uint32_t number, trouble;
    uint32_t from, to; /* of the entry; `from` is the rank that is late, or ends */
    uint32_t op;       /* in [0, OPS) */
    call at;           /* the call that the entry belongs to, DISPATCH or COMBINE; END: before this call */
    bool first;        /* the entry is the first before the word; otherwise it is the word */
    uint32_t lanes;    /* operations alternate between this many lanes */
    uint8_t syndrome;
    uint32_t bytes;
    uint32_t calls;
    struct {
        uint8_t rank, call, op;
    } order[CALLS_MAX];
} plan;

static uint32_t draw(plan *p, uint32_t below) {
    p->seed = p->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(p->seed >> 33) % below;
}

static void append(plan *p, uint32_t rank, call which, uint32_t op) {
    if (p->trouble == TROUBLE_ENDS && rank == p->from && (op > p->op || (op == p->op && which >= p->at))) {
        if (op == p->op && which == p->at) which = END;
        if (which != END) return;
    }
    p->order[p->calls].rank = (uint8_t)rank;
    p->order[p->calls].call = (uint8_t)which;
    p->order[p->calls++].op = (uint8_t)op;
}

static void shuffle(plan *p, uint32_t ranks[RANKS]) {
    for (uint32_t i = 0; i < RANKS; i++) ranks[i] = i;
    for (uint32_t i = RANKS - 1; i > 0; i--) {
        uint32_t j = draw(p, i + 1), other = ranks[j];
        ranks[j] = ranks[i];
        ranks[i] = other;
    }
}

static void append_all(plan *p, call which, uint32_t op, uint32_t but) {
    uint32_t ranks[RANKS];
    shuffle(p, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        if (ranks[i] != but) append(p, ranks[i], which, op);
}

/* The next doorbell of a queue makes up for a lost one. So `from` must ring again before anybody waits: in a
 * dispatch with its answer, in a combine with its next dispatch. */
static void order_of_lost_doorbell(plan *p) {
    bool ahead = false; /* `from` has already begun this operation */
    for (uint32_t op = 0; op < OPS; op++) {
        append_all(p, DISPATCH, op, ahead ? p->from : RANKS);
        bool hit = op == p->op, in_dispatch = hit && p->at == DISPATCH;
        if (in_dispatch) {
            append(p, p->from, RECEIVE, op);
            append(p, p->from, COMBINE, op);
        }
        append_all(p, RECEIVE, op, in_dispatch ? p->from : RANKS);
        append_all(p, COMBINE, op, in_dispatch ? p->from : RANKS);
        ahead = hit && !in_dispatch;
        if (ahead) {
            append(p, p->from, COLLECT, op);
            append(p, p->from, DISPATCH, op + 1);
        }
        append_all(p, COLLECT, op, ahead ? p->from : RANKS);
    }
}

static void order_calls(plan *p) {
    for (uint32_t op = 0; op < OPS; op++) {
        bool late = p->trouble == TROUBLE_LATE && op == p->op;
        for (call which = DISPATCH; which <= COLLECT; which++)
            append_all(p, which, op, late ? p->from : RANKS);
        for (call which = DISPATCH; late && which <= COLLECT; which++) append(p, p->from, which, op);
    }
}

static plan make_plan(uint32_t number) {
    static const uint8_t syndromes[] = {0x02, 0x04, 0x12, 0x13, 0x14, 0x22};
    plan p = {.seed = number * UINT64_C(0x9e3779b97f4a7c15), .number = number, .trouble = number % TROUBLES};
    draw(&p, 1);
    p.from = draw(&p, RANKS);
    p.to = (p.from + 1 + draw(&p, RANKS - 1)) % RANKS;
    p.op = draw(&p, OPS - 1);
    p.at = draw(&p, 2) ? COMBINE : DISPATCH;
    p.first = draw(&p, 2);
    p.lanes = 1 + draw(&p, LANES);
    p.syndrome = syndromes[draw(&p, sizeof syndromes)];
    p.bytes = draw(&p, EPW_FRAME_BYTES);
    if (p.trouble == EPW_FAULT_LOSE_DOORBELL) {
        p.lanes = 1;
        order_of_lost_doorbell(&p);
    } else {
        if (p.trouble == TROUBLE_ENDS) p.at = (call)draw(&p, 4);
        order_calls(&p);
    }
    return p;
}

static uint32_t lane_of(const plan *p, uint32_t op) {
    return op % p->lanes;
}
/* The number of an operation on its lane, from 1, as the buffer counts. */
static uint32_t number_of(const plan *p, uint32_t op) {
    return op / p->lanes + 1;
}

/* ---- what follows from them ---- */

typedef struct told {
    uint32_t missing, cause, peer, op; /* all 0: the operation is complete */
} told;

typedef struct prediction {
    told of[RANKS][OPS][2]; /* of the dispatch, of both halves */
    uint32_t suspects[RANKS];
} prediction;

enum { ROWS, ANSWERS, FAREWELL, WORDS }; /* the words of a rank at another one */

typedef struct state {
    uint32_t words[LANES][WORDS][RANKS][RANKS]; /* operation, [from][to] */
    bool held[LANES][WORDS][RANKS][RANKS];      /* waiting for a doorbell, because theirs was lost */
    bool broken[LANES][RANKS][RANKS];           /* the queue [from][to] */
    bool silent[RANKS][RANKS];                  /* their connection is frozen */
    uint32_t missing[RANKS];                    /* of the current operation */
} state;

static void cut(state *s, uint32_t a, uint32_t b) {
    for (uint32_t lane = 0; lane < LANES; lane++) s->broken[lane][a][b] = s->broken[lane][b][a] = true;
}

static bool strikes(const plan *p, uint32_t from, uint32_t to, uint32_t op, uint32_t word) {
    return p->trouble < EPW_FAULT_KINDS && from == p->from && to == p->to && op == p->op &&
           word == (p->at == DISPATCH ? ROWS : ANSWERS);
}

/* Posts a word with what precedes it, and applies the fault. */
static void say(const plan *p, state *s, uint32_t from, uint32_t to, uint32_t op, uint32_t lane,
                uint32_t word) {
    bool struck = strikes(p, from, to, op, word);
    if (s->broken[lane][from][to] || s->silent[from][to]) return;
    switch (struck ? p->trouble : EPW_FAULT_NONE) {
    case EPW_FAULT_DROP:
    case EPW_FAULT_TEAR:
        cut(s, from, to);
        return;
    case EPW_FAULT_FREEZE:
        s->silent[from][to] = true; /* the peer's queue uses another connection */
        return;
    case EPW_FAULT_ERROR:
        s->broken[lane][from][to] = true;
        return;
    case EPW_FAULT_DUPLICATE: /* refused by the peer, which takes nothing after it */
        s->broken[lane][from][to] = true;
        if (p->first) return;
        break;
    case EPW_FAULT_LOSE_DOORBELL:
        s->held[lane][word][from][to] = true;
        return;
    default:
        for (uint32_t w = 0; w < WORDS; w++) {
            if (s->held[lane][w][from][to]) s->words[lane][w][from][to] = number_of(p, p->op);
            s->held[lane][w][from][to] = false;
        }
    }
    s->words[lane][word][from][to] = number_of(p, op);
}

/* In either half: the rank has lost the peer, and tells it so on every lane. */
static void lose(const plan *p, state *s, prediction *out, told *t, uint32_t rank, uint32_t peer,
                 uint32_t cause, uint32_t op) {
    if (t->cause == 0) *t = (told){.cause = cause, .peer = peer, .op = number_of(p, op)};
    s->missing[rank] |= 1u << peer;
    if (out->suspects[rank] >> peer & 1) return;
    out->suspects[rank] |= 1u << peer;
    for (uint32_t lane = 0; lane < LANES; lane++) say(p, s, rank, peer, op, lane, FAREWELL);
}

/* The rank waits for the word of an operation from each peer that is not missing. The last argument says
 * whether a farewell or a broken queue counts although the word has arrived. What is known at once comes
 * before what takes a deadline. */
static void await(const plan *p, state *s, prediction *out, told *t, uint32_t rank, uint32_t op,
                  uint32_t word, bool to_send) {
    uint32_t lane = lane_of(p, op), wanted = number_of(p, op) - (to_send ? 1 : 0), late = 0;
    for (uint32_t peer = 0; peer < RANKS; peer++) {
        if (peer == rank || (s->missing[rank] >> peer & 1)) continue;
        bool here = (to_send && wanted == 0) || s->words[lane][word][peer][rank] == wanted;
        bool left = s->words[lane][FAREWELL][peer][rank] != 0, broken = s->broken[lane][rank][peer];
        if (here && !(to_send && (left || broken))) continue;
        if (left || broken) {
            lose(p, s, out, t, rank, peer, left ? EPW_CAUSE_DROPPED : EPW_CAUSE_LINK, op);
        } else {
            late |= 1u << peer;
        }
    }
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (late >> peer & 1) lose(p, s, out, t, rank, peer, EPW_CAUSE_TIMEOUT, op);
}

static void tell_present(const plan *p, state *s, uint32_t rank, uint32_t op, uint32_t word) {
    for (uint32_t peer = 0; peer < RANKS; peer++)
        if (peer != rank && !(s->missing[rank] >> peer & 1)) say(p, s, rank, peer, op, lane_of(p, op), word);
}

/* Pure function. */
static prediction predict(const plan *p) {
    state s = {0};
    prediction out = {0};
    told t[RANKS] = {0};
    for (uint32_t i = 0; i < p->calls; i++) {
        uint32_t rank = p->order[i].rank, op = p->order[i].op;
        switch ((call)p->order[i].call) {
        case DISPATCH:
            t[rank] = (told){0};
            s.missing[rank] = 0;
            for (uint32_t peer = 0; peer < RANKS; peer++) {
                if (out.suspects[rank] >> peer & 1)
                    lose(p, &s, &out, &t[rank], rank, peer, EPW_CAUSE_SUSPECTED, op);
            }
            await(p, &s, &out, &t[rank], rank, op, ANSWERS, true);
            tell_present(p, &s, rank, op, ROWS);
            break;
        case RECEIVE:
            await(p, &s, &out, &t[rank], rank, op, ROWS, false);
            t[rank].missing = s.missing[rank];
            out.of[rank][op][0] = t[rank];
            break;
        case COMBINE:
            tell_present(p, &s, rank, op, ANSWERS);
            break;
        case COLLECT:
            await(p, &s, &out, &t[rank], rank, op, ANSWERS, false);
            t[rank].missing = s.missing[rank];
            out.of[rank][op][1] = t[rank];
            break;
        case END:
            for (uint32_t peer = 0; peer < RANKS; peer++)
                if (peer != rank) cut(&s, rank, peer);
        }
    }
    return out;
}

/* ---- what they are tried on ---- */

typedef struct trial {
    const plan *plan;
    group group;
    bool struck;
    epw_handle handles[RANKS];
    batch batches[RANKS];
} trial;

static epw_nic *nic_of(const trial *t, uint32_t rank) {
    return epw_fabric_nic(t->group.fabrics[rank]);
}

/* The queue pair of a lane to a peer; numbers beyond the lanes are further pairs to it; NULL: no more. The
 * pairs of a peer are made in the order of lanes. */
static epw_pair *pair_of(const trial *t, uint32_t rank, uint32_t peer, uint32_t lane) {
    epw_nic *nic = nic_of(t, rank);
    epw_pair *found = NULL;
    epw_nic_lock(nic);
    for (uint32_t i = 0; found == NULL && i < nic->pair_count; i++) {
        epw_pair *pair = nic->pairs[i];
        if (pair != NULL && pair->options.peer == peer && lane-- == 0) found = pair;
    }
    epw_nic_unlock(nic);
    return found;
}

static void plan_fault(trial *t) {
    const plan *p = t->plan;
    epw_pair *pair = pair_of(t, p->from, p->to, lane_of(p, p->op));
    uint32_t rows = 0;
    /* One row of each token of the peer has arrived, and is answered. */
    for (uint32_t token = 0; token < TOKENS; token++) {
        bool goes = false;
        for (uint32_t j = 0; j < TOPK; j++) {
            int32_t id = t->batches[p->to].ids[token * TOPK + j];
            goes |= id >= 0 && (uint32_t)id / (EXPERTS / RANKS) == p->from;
        }
        rows += goes;
    }
    CHECK(rows > 1);
    epw_fault fault = {.kind = (epw_fault_kind)p->trouble,
                       .pair = epw_pair_number(pair),
                       .index = (uint32_t)epw_pair_rung_for(pair),
                       .syndrome = p->syndrome,
                       .bytes = p->bytes};
    /* Slots of a dispatch are full, so they are one entry, after one entry for the counts. Answers have one
     * entry for each slot. */
    if (!p->first) fault.index += p->at == DISPATCH ? 2 : rows;
    epw_nic_plan_fault(nic_of(t, p->from), &fault);
}

/* Whether the planned fault has happened. For some kinds the strict NIC does not report it; then there is
 * nothing to wait for. */
static bool fault_is_taken(const trial *t) {
    epw_nic *nic = nic_of(t, t->plan->from);
    if (t->plan->trouble == EPW_FAULT_DELAY || t->plan->trouble == EPW_FAULT_REORDER) return true;
    epw_nic_lock(nic);
    bool taken = nic->strict->fault.kind == EPW_FAULT_NONE;
    epw_nic_unlock(nic);
    return taken;
}

/* All that the rank has rung for has been placed at the peer, although ACKs may never come. */
static bool is_placed(const trial *t, uint32_t rank, uint32_t peer) {
    epw_pair *pair;
    for (uint32_t lane = 0; (pair = pair_of(t, rank, peer, lane)) != NULL; lane++) {
        uint32_t rung = (uint32_t)epw_pair_rung_for(pair);
        epw_nic_lock(nic_of(t, peer));
        const epw_pair *far = epw_nic_pair(nic_of(t, peer), pair->remote);
        bool placed = far != NULL && far->expected == rung;
        epw_nic_unlock(nic_of(t, peer));
        if (!placed) return false;
    }
    return true;
}

/* Nothing is in flight from the rank to the peer. */
static bool is_settled(const trial *t, uint32_t rank, uint32_t peer) {
    const plan *p = t->plan;
    bool between = (rank == p->from && peer == p->to) || (rank == p->to && peer == p->from);
    bool cut = between && (p->trouble == EPW_FAULT_DROP || p->trouble == EPW_FAULT_TEAR);
    cut |= p->trouble == TROUBLE_ENDS && (rank == p->from || peer == p->from);
    if (t->struck && between && p->trouble == EPW_FAULT_FREEZE)
        return rank == p->from || is_placed(t, rank, peer);
    bool refused = rank == p->from && peer == p->to && p->trouble == EPW_FAULT_DUPLICATE;
    epw_pair *pair;
    for (uint32_t lane = 0; (pair = pair_of(t, rank, peer, lane)) != NULL; lane++) {
        if (t->struck && (cut || (refused && lane == lane_of(p, p->op)))) {
            if (!epw_pair_broken(pair)) return false;
        } else if (!epw_pair_idle(pair)) {
            return false;
        }
    }
    return true;
}

static void settle(const trial *t) {
    uint64_t until = epw_now_ns() + 10000 * MS;
    bool settled = false;
    while (!settled && epw_now_ns() < until) {
        settled = !t->struck || t->plan->trouble >= EPW_FAULT_KINDS || fault_is_taken(t);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            epw_nic_poll(nic_of(t, rank));
            for (uint32_t peer = 0; peer < RANKS; peer++)
                if (peer != rank) settled = settled && is_settled(t, rank, peer);
        }
        if (!settled) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    CHECK_MSG(settled, "plan %u: what was sent has not come to an end", t->plan->number);
}

static void end_links(const trial *t, uint32_t rank) {
    epw_nic *nic = nic_of(t, rank);
    epw_nic_lock(nic);
    for (uint32_t i = 0; i < nic->link_count; i++)
        if (nic->links[i] != NULL) epw_nic_drop_link(nic, nic->links[i]);
    epw_nic_unlock(nic);
}

static const char *text_of(told t) {
    static char texts[2][64];
    static int turn;
    char *text = texts[turn++ % 2];
    snprintf(text, sizeof texts[0], "{missing %u, cause %u, peer %u, op %u}", t.missing, t.cause, t.peer,
             t.op);
    return text;
}

static void compare(const trial *t, uint32_t rank, uint32_t op, int half, const epw_outcome *got,
                    told wanted) {
    const plan *p = t->plan;
    told is = {(uint32_t)got->missing.bits[0], got->record.cause, got->record.peer, got->record.op};
    CHECK_MSG(memcmp(&is, &wanted, sizeof is) == 0 && got->degraded == (wanted.missing != 0),
              "plan %u, trouble %u from %u to %u at operation %u (%s, %s, %u lanes): rank %u is told of "
              "operation %u's %s %s, wanted %s",
              p->number, p->trouble, p->from, p->to, p->op, p->at == DISPATCH ? "dispatch" : "combine",
              p->first ? "row" : "word", p->lanes, rank, op, half ? "combine" : "dispatch", text_of(is),
              text_of(wanted));
}

static void make_call(trial *t, uint32_t rank, call which, uint32_t op, const prediction *wanted) {
    static _Alignas(64) uint16_t sums[TOKENS * HIDDEN];
    epw_buffer *b = t->group.of[rank];
    epw_dispatch_input in = make_batch(&t->batches[rank], rank);
    epw_dispatch_output received = EPW_DISPATCH_OUTPUT_INIT;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output result = EPW_COMBINE_OUTPUT_INIT;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    in.lane = (int32_t)lane_of(t->plan, op);
    in.layout = EPW_RANK_MAJOR;
    result.out = sums;
    switch (which) {
    case DISPATCH:
        CHECK_OK(epw_dispatch(b, &in, NULL, &t->handles[rank], NULL));
        break;
    case RECEIVE:
        CHECK_OK(epw_dispatch_receive(b, t->handles[rank], &received, &outcome));
        compare(t, rank, op, 0, &outcome, wanted->of[rank][op][0]);
        break;
    case COMBINE:
        CHECK_OK(epw_combine(b, t->handles[rank], &answer, NULL, NULL));
        break;
    case COLLECT:
        CHECK_OK(epw_combine_receive(b, t->handles[rank], &result, &outcome));
        compare(t, rank, op, 1, &outcome, wanted->of[rank][op][1]);
        break;
    case END:
        end_links(t, rank);
    }
}

static void run(const plan *p, const prediction *wanted) {
    static trial t;
    memset(&t, 0, sizeof t);
    t.plan = p;
    t.group = make_group(RANKS, longer * DEADLINE_MS * MS);
    for (uint32_t r = 0; r < RANKS; r++) make_batch(&t.batches[r], r);
    activate(&t.group, 1);
    settle(&t);
    for (uint32_t i = 0; i < p->calls; i++) {
        uint32_t rank = p->order[i].rank, op = p->order[i].op;
        call which = (call)p->order[i].call;
        bool now = p->trouble < EPW_FAULT_KINDS && rank == p->from && op == p->op && which == p->at;
        if (now && p->trouble != TROUBLE_NONE) plan_fault(&t);
        make_call(&t, rank, which, op, wanted);
        t.struck |= which == END || (now && p->trouble != TROUBLE_NONE);
        settle(&t);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t suspects = (uint32_t)membership_of(t.group.of[r]).suspects.bits[0];
        CHECK_MSG(suspects == wanted->suspects[r], "plan %u, rank %u: suspects %u, wanted %u", p->number, r,
                  suspects, wanted->suspects[r]);
    }
    destroy(&t.group);
}

int main(void) {
    uint32_t causes = 0, whole = 0;
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "strict", 1);
    for (uint32_t number = 0; number < PLANS; number++) {
        plan p = make_plan(number);
        prediction wanted = predict(&p);
        setenv("EPW_TEST_WIRE", number / TROUBLES % 2 ? "tcp" : "local", 1);
        for (uint32_t i = 0; i < RANKS * OPS * 2; i++) causes |= 1u << (&wanted.of[0][0][0])[i].cause;
        whole += (wanted.suspects[0] | wanted.suspects[1] | wanted.suspects[2]) == 0;
        KEEP_TIME(run(&p, &wanted));
    }
    /* Together, the plans cover what they are meant to cover. */
    CHECK(causes == (1u << EPW_CAUSE_NONE | 1u << EPW_CAUSE_TIMEOUT | 1u << EPW_CAUSE_DROPPED |
                     1u << EPW_CAUSE_SUSPECTED | 1u << EPW_CAUSE_LINK));
    CHECK(whole >= 3 * (PLANS / TROUBLES) && whole <= PLANS / 2);
    return check_result("fault_plans");
}
