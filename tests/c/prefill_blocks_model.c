/* Exploration of what the blocks of prefill's kernels do on GPUs: every state of 2 to 4 ranks that dispatch
 * and combine on one lane or both, through rings of 1 or 2 slots, with blocks that start late and in any
 * order. c/prefill/gate.h and c/prefill/lane_sms.h themselves run. The rest is modelled here after kernels:
 * flags, lines and tickets after operation.cuh, attendants after attend.cuh, the registrar after place.cuh,
 * movers after move.cuh and combine.cuh. How blocks pass the gate, access by access, is prefill_gate_model's
 * matter; here that is two steps. All ranks have begun the epoch; in some models one of them dies at any
 * time, and attendants of others may give it up whenever it owes them something. Checked in every state:
 *  - no slot is written before its owner has read what lies there;
 *  - what is read is the message of this lane, operation and number;
 *  - rows are taken only once all openings have been read, and no row twice;
 *  - each block works or leaves, and the SMs taken are no more than there are;
 *  - no deadlock. A mover that waits for the credit or the row of one peer, and thereby delays what it could
 *    move for others, is found this way, and so is a lane that keeps the other one from its SMs.
 *
 * A block has one mover, whose tickets are of one row. Blocks act in steps of one row or opening, or in
 * turns, in which a block does at once all that it can do; or only the starts of blocks are left open, and
 * all that run act at once. tests/faults shows that the explorer finds planted faults.
 *
 * prefill_blocks_model         all models, in seconds
 * prefill_blocks_model NAME    one of them; prints the path to a violation */
#include "prefill/gate.h"
#include "prefill/lane_sms.h"

#include "explore.h"

enum { RANKS_MAX = 4, LANES_MAX = 2, SLOTS_MAX = 2, BLOCKS_MAX = 3, DISPATCH = 0, COMBINE = 1, KINDS };

/* Where tokens go. */
typedef enum shape {
    TO_ALL, /* each token to all other ranks */
    ROUND   /* token t of rank r to rank r + 1 + t, so that ranks wait for each other in a circle */
} shape;

/* What is left open. */
typedef enum pace { STEPS, TURNS, STARTS } pace;

typedef struct model {
    const char *name;
    unsigned ranks, lanes, slots, tokens, ops;
    shape shape;
    pace pace;
    unsigned sms[RANKS_MAX]; /* of each rank's GPU */
    bool combines;           /* operations begin with a combine */
    bool takers;             /* only the first block's mover sends */
    bool deaths;             /* a rank may die, at any time */
    unsigned handful;        /* the most tokens that a mover takes up at a time, if more than one */
    bool wide;               /* kernels have as many blocks as there are SMs, so that some find none */
} model;

/* A model is a line. */
/* clang-format off */
static const model models[] = {
    /*                  ranks, lanes, slots, tokens, ops */
    {"two", 2, 1, 1, 2, 2, TO_ALL, STEPS, {2, 1}, .combines = false},
    {"two-of-2-slots", 2, 1, 2, 3, 2, TO_ALL, STEPS, {2, 1}, .combines = false},
    {"two-one-dies", 2, 1, 1, 2, 2, TO_ALL, STEPS, {2, 1}, .deaths = true},
    {"two-of-2-slots-one-dies", 2, 1, 2, 1, 2, TO_ALL, STEPS, {2, 1}, .deaths = true},
    {"two-combine-first", 2, 1, 1, 2, 2, TO_ALL, STEPS, {2, 2}, .combines = true},
    {"two-in-turns", 2, 2, 1, 2, 1, TO_ALL, TURNS, {3, 3}, .combines = false},
    {"two-both-lanes", 2, 2, 1, 1, 2, TO_ALL, STARTS, {4, 3}, .combines = false},
    {"three-round", 3, 1, 1, 4, 2, ROUND, TURNS, {2, 2, 2}, .combines = false},
    {"three-both-lanes", 3, 2, 2, 3, 2, ROUND, STARTS, {3, 3, 2}, .combines = false},
    {"three-one-dies", 3, 1, 1, 2, 2, TO_ALL, TURNS, {2, 1, 1}, .deaths = true},
    {"three-both-one-dies", 3, 2, 1, 2, 2, TO_ALL, STARTS, {3, 2, 2}, .deaths = true},
    {"three-both-in-turns", 3, 2, 1, 2, 1, ROUND, TURNS, {2, 2, 2}, .combines = false},
    {"four", 4, 1, 1, 1, 1, TO_ALL, TURNS, {2, 2, 1, 1}, .combines = false},
    {"four-2-slots", 4, 1, 2, 3, 1, TO_ALL, TURNS, {2, 2, 1, 1}, .combines = false},
    {"four-round", 4, 1, 1, 5, 1, ROUND, TURNS, {2, 1, 1, 1}, .combines = false},
    {"four-takers", 4, 1, 1, 4, 1, ROUND, TURNS, {2, 2, 1, 1}, .takers = true},
    {"four-combine", 4, 1, 1, 2, 1, TO_ALL, TURNS, {2, 1, 1, 1}, .combines = true},
    {"four-combine-round", 4, 1, 2, 5, 1, ROUND, TURNS, {2, 2, 2, 1}, .combines = true},
    {"four-combine-takers", 4, 1, 1, 4, 1, ROUND, TURNS, {2, 2, 1, 1}, .combines = true, .takers = true},
    {"two-combine-of-two", 2, 1, 1, 2, 2, TO_ALL, STEPS, {2, 2}, .combines = true, .handful = 2},
    {"two-combine-one-dies", 2, 1, 2, 2, 1, TO_ALL, STEPS, {2, 1}, .combines = true, .handful = 2, .deaths = true},
    {"four-combine-of-two", 4, 1, 1, 4, 1, ROUND, TURNS, {2, 2, 1, 1}, .combines = true, .handful = 2},
    {"four-takers-of-three", 4, 1, 1, 5, 1, ROUND, TURNS, {2, 2, 1, 1}, .combines = true, .takers = true, .handful = 3},
    {"four-both-of-two", 4, 2, 1, 4, 1, ROUND, STARTS, {3, 3, 2, 2}, .combines = true, .handful = 2},
    {"four-both-lanes", 4, 2, 1, 5, 1, ROUND, STARTS, {3, 3, 3, 2}, .combines = false},
    {"four-both-2-slots", 4, 2, 2, 3, 1, TO_ALL, STARTS, {3, 3, 2, 2}, .combines = true},
    {"four-both-one-dies", 4, 2, 1, 5, 1, ROUND, STARTS, {3, 2, 2, 2}, .deaths = true},
    {"four-both-again", 4, 2, 1, 4, 2, ROUND, STARTS, {3, 2, 2, 2}, .combines = false},
    {"four-both-wide", 4, 2, 1, 1, 1, TO_ALL, STARTS, {2, 2, 2, 2}, .wide = true},
};
/* clang-format on */

typedef struct slot {
    uint8_t op, index, rows; /* the message; index 0: the opening, which announces this many rows */
    uint8_t full;            /* it has not been read */
} slot;

/* What `source` writes in the window of `owner`, for one lane and kind, and the other way round. */
typedef struct ring {
    slot slots[SLOTS_MAX];
    uint8_t written[SLOTS_MAX]; /* flags at the owner, */
    uint8_t read[SLOTS_MAX];    /* and at the source: 1 more than the number of the message */
} ring;

/* epw_prefill_line */
typedef struct line {
    uint8_t next, moved, opened;
} line;

/* epw_prefill_gpu_peer, and the peer's attendant. */
typedef struct peer {
    uint8_t out[KINDS], in[KINDS]; /* messages of operations that are over */
    line send, take;
    uint8_t in_rows;
    bool present; /* it takes part in the kernel */
    bool lost, allowed, opened, heard, passed, taking;
} peer;

typedef enum place { NOT_YET, WAITS, WORKS, ENDED, GONE } place; /* WAITS: at the gate; ENDED: the mover */

enum { NO_LINE = 0, NO_ROWS = 255, NO_TOKEN = 255 }; /* else 1 + the row of a ticket, or a token */

typedef struct block {
    uint8_t at, number;
    uint8_t token, held; /* 1 + the first that the mover has taken up; which of them have no sum */
    uint8_t send[RANKS_MAX], take[RANKS_MAX]; /* tickets that the mover keeps */
} block;

typedef struct lane {
    uint32_t gate;
    uint8_t passed, met, out, placed, sums; /* as in epw_prefill_gpu_state */
    uint8_t op;                             /* kernels launched */
    peer of[RANKS_MAX];
    block blocks[BLOCKS_MAX];
} lane;

typedef struct rank {
    uint32_t taken;
    bool dead;
    uint8_t suspects;
    lane lanes[LANES_MAX];
} rank;

typedef struct state {
    bool died;
    rank ranks[RANKS_MAX];
    ring rings[RANKS_MAX][RANKS_MAX][LANES_MAX][KINDS]; /* [source][owner] */
} state;

static const model *m;

/* ---- who sends what ---- */

static unsigned grid_of(unsigned r) {
    return m->lanes == 1 || m->wide ? m->sms[r] : m->sms[r] - epw_sms_kept(m->sms[r]);
}

static unsigned kind_of(const lane *on) {
    return (on->op + m->combines) % 2 == 1 ? DISPATCH : COMBINE;
}

static bool goes_to(unsigned from, unsigned token, unsigned to) {
    return from != to && (m->shape == TO_ALL || (from + 1 + token) % m->ranks == to);
}

/* The rows of the first `tokens` tokens. */
static unsigned rows_before(unsigned from, unsigned tokens, unsigned to) {
    unsigned rows = 0;
    for (unsigned t = 0; t < tokens; t++) rows += goes_to(from, t, to);
    return rows;
}

/* The rows that `from` sends `to` in an operation of this kind. */
static unsigned rows_of(unsigned kind, unsigned from, unsigned to) {
    return kind == DISPATCH ? rows_before(from, m->tokens, to) : rows_before(to, m->tokens, from);
}

/* ---- slots and flags ---- */

/* arrival_of() */
static bool has_arrived(const state *s, unsigned r, unsigned l, unsigned p, unsigned number) {
    const ring *from = &s->rings[p][r][l][kind_of(&s->ranks[r].lanes[l])];
    return from->written[number % m->slots] >= number + 1;
}

/* room_for() */
static bool has_room(const state *s, unsigned r, unsigned l, unsigned p, unsigned number) {
    const ring *to = &s->rings[r][p][l][kind_of(&s->ranks[r].lanes[l])];
    return number < m->slots || to->read[number % m->slots] >= number - m->slots + 1;
}

/* `index` 0: the opening. */
static void write(state *s, unsigned r, unsigned l, unsigned p, unsigned index) {
    const lane *on = &s->ranks[r].lanes[l];
    unsigned kind = kind_of(on), number = on->of[p].out[kind] + index;
    ring *to = &s->rings[r][p][l][kind];
    BREAKS(to->slots[number % m->slots].full, "a slot is written before it was read");
    to->slots[number % m->slots] = (slot){on->op, (uint8_t)index, (uint8_t)rows_of(kind, r, p), 1};
    to->written[number % m->slots] = (uint8_t)(number + 1);
}

static slot read_slot(state *s, unsigned r, unsigned l, unsigned p, unsigned index) {
    const lane *on = &s->ranks[r].lanes[l];
    unsigned kind = kind_of(on), number = on->of[p].in[kind] + index;
    slot got = s->rings[p][r][l][kind].slots[number % m->slots];
    BREAKS(!got.full || got.op != on->op || got.index != index,
           "a message is read that is not the awaited one");
    return got;
}

static void give_slot_back(state *s, unsigned r, unsigned l, unsigned p, unsigned index) {
    const lane *on = &s->ranks[r].lanes[l];
    unsigned kind = kind_of(on), number = on->of[p].in[kind] + index;
    ring *from = &s->rings[p][r][l][kind];
    from->slots[number % m->slots] = (slot){.full = 0};
    from->read[number % m->slots] = (uint8_t)(number + 1);
}

/* ---- attendants and the registrar, of the first block ---- */

/* Does one thing, if there is one. */
static bool attend(state *s, unsigned r, unsigned l, unsigned p) {
    lane *on = &s->ranks[r].lanes[l];
    peer *q = &on->of[p];
    unsigned kind = kind_of(on), rows = rows_of(kind, r, p);
    if (!q->present || q->lost) return false;
    if (!q->allowed) { /* also if there are none */
        q->send.opened = (uint8_t)(rows + 1);
        q->allowed = true;
    } else if (!q->opened && has_room(s, r, l, p, q->out[kind])) {
        write(s, r, l, p, 0);
        q->opened = true;
    } else if (!q->heard && has_arrived(s, r, l, p, q->in[kind])) {
        q->in_rows = read_slot(s, r, l, p, 0).rows;
        q->heard = true;
    } else if (q->heard && !q->passed && (kind == COMBINE || on->placed)) {
        give_slot_back(s, r, l, p, 0);
        q->passed = true;
    } else if (q->passed && !q->taking && (kind == COMBINE || on->placed)) {
        q->take.opened = (uint8_t)(q->in_rows + 1);
        q->taking = true;
    } else {
        return false;
    }
    return true;
}

static bool is_attended(const lane *on, unsigned r, unsigned p) {
    const peer *q = &on->of[p];
    if (!q->present || q->lost) return true;
    return q->opened && q->taking && q->send.moved == rows_of(kind_of(on), r, p) &&
           q->take.moved == q->in_rows;
}

/* Rows of the peer that have arrived, up to the first one that has not. */
static unsigned rows_here(const state *s, unsigned r, unsigned l, unsigned p) {
    const peer *q = &s->ranks[r].lanes[l].of[p];
    unsigned first = q->in[kind_of(&s->ranks[r].lanes[l])] + 1u, rows = 0;
    while (q->taking && rows < q->in_rows && has_arrived(s, r, l, p, first + rows)) rows++;
    return rows;
}

/* is_owing() */
static bool is_owing(const state *s, unsigned r, unsigned l, unsigned p) {
    const lane *on = &s->ranks[r].lanes[l];
    const peer *q = &on->of[p];
    unsigned kind = kind_of(on), rows = rows_of(kind, r, p), next = q->in[kind] + 1u + rows_here(s, r, l, p);
    const ring *from = &s->rings[p][r][l][kind];
    if (!q->opened || q->send.moved < rows)
        for (unsigned n = q->out[kind]; n <= q->out[kind] + rows; n++)
            if (!has_room(s, r, l, p, n)) return true;
    if (q->taking && q->take.moved == q->in_rows) return false;
    bool given = next < m->slots || from->read[next % m->slots] >= next - m->slots + 1;
    return !q->heard || (q->passed && q->taking && rows_here(s, r, l, p) < q->in_rows && given);
}

/* lose(), and the end of the attendant, once there is nothing to attend to. */
static bool lose(state *s, unsigned r, unsigned l, unsigned p) {
    peer *q = &s->ranks[r].lanes[l].of[p];
    state copy;
    if (!s->ranks[p].dead || is_attended(&s->ranks[r].lanes[l], r, p) || !is_owing(s, r, l, p)) return false;
    copy = *s;
    if (attend(&copy, r, l, p)) return false;
    q->take.opened = (uint8_t)(rows_here(s, r, l, p) + 1);
    q->send.opened = 1;
    q->lost = true;
    s->ranks[r].suspects |= (uint8_t)(1u << p);
    return true;
}

/* Finds out where rows go. */
static bool place_rows(state *s, unsigned r, unsigned l) {
    lane *on = &s->ranks[r].lanes[l];
    if (kind_of(on) == COMBINE || on->placed) return false;
    for (unsigned p = 0; p < m->ranks; p++)
        if (on->of[p].present && !on->of[p].heard && !on->of[p].lost) return false;
    on->placed = 1;
    return true;
}

/* ---- movers ---- */

static bool has_ticket(uint8_t kept) {
    return kept != NO_LINE && kept != NO_ROWS;
}

/* A ticket of the line, if none is kept. It may be for no row, also later: then no other one is taken. */
static bool take_ticket(line *from, uint8_t *kept) {
    if (from->opened == 0 || *kept == NO_ROWS || (has_ticket(*kept) && *kept < from->opened)) return false;
    if (*kept == NO_LINE) *kept = (uint8_t)(1 + from->next++);
    if (*kept >= from->opened) *kept = NO_ROWS;
    return true;
}

static bool send_row(state *s, unsigned r, unsigned l, block *b, unsigned p) {
    peer *q = &s->ranks[r].lanes[l].of[p];
    uint8_t *kept = &b->send[p];
    if (take_ticket(&q->send, kept)) return true;
    if (!has_ticket(*kept) || !has_room(s, r, l, p, q->out[kind_of(&s->ranks[r].lanes[l])] + *kept))
        return false;
    write(s, r, l, p, *kept); /* row n is the message n + 1 behind the opening */
    q->send.moved++;
    *kept = NO_LINE;
    return true;
}

static void take_message(state *s, unsigned r, unsigned l, unsigned p, unsigned index) {
    (void)read_slot(s, r, l, p, index);
    give_slot_back(s, r, l, p, index);
    s->ranks[r].lanes[l].of[p].take.moved++;
}

static bool take_row(state *s, unsigned r, unsigned l, block *b, unsigned p) {
    lane *on = &s->ranks[r].lanes[l];
    peer *q = &on->of[p];
    uint8_t *kept = &b->take[p];
    if (kind_of(on) == COMBINE) return false; /* sums take answers */
    if (take_ticket(&q->take, kept)) return true;
    if (!has_ticket(*kept) || !has_arrived(s, r, l, p, q->in[DISPATCH] + *kept)) return false;
    for (unsigned other = 0; other < m->ranks; other++)
        BREAKS(on->of[other].present && !on->of[other].heard && !on->of[other].lost,
               "rows are taken before all openings have been read");
    take_message(s, r, l, p, *kept);
    *kept = NO_LINE;
    return true;
}

/* has_answer() */
static bool has_answer(const state *s, unsigned r, unsigned l, unsigned token, unsigned p, bool *awaited) {
    const lane *on = &s->ranks[r].lanes[l];
    unsigned row = rows_before(r, token, p), opened = on->of[p].take.opened;
    bool here = row + 1 < opened && has_arrived(s, r, l, p, on->of[p].in[COMBINE] + 1 + row);
    *awaited = !here && (opened == 0 || row + 1 < opened);
    return here;
}

static bool make_sum(state *s, unsigned r, unsigned l, unsigned token) {
    unsigned here = 0;
    for (unsigned p = 0; p < m->ranks; p++) {
        bool awaited = false;
        if (goes_to(r, token, p) && has_answer(s, r, l, token, p, &awaited)) here |= 1u << p;
        if (awaited) return false;
    }
    for (unsigned p = 0; p < m->ranks; p++)
        if (here >> p & 1) take_message(s, r, l, p, 1 + rows_before(r, token, p));
    return true;
}

/* Makes the sums that can be made of tokens that the mover has taken up. */
static bool make_sums(state *s, unsigned r, unsigned l, block *b) {
    unsigned before = b->held;
    for (unsigned k = 0; before >> k != 0; k++)
        if (before >> k & 1 && make_sum(s, r, l, b->token - 1u + k)) b->held &= (uint8_t) ~(1u << k);
    if (b->held == 0 && before != 0) b->token = 0;
    return b->held != before;
}

/* A mover takes up tokens only when it can send nothing. */
static bool take_up(lane *on, block *b) {
    if (kind_of(on) == DISPATCH || b->token != 0) return false;
    b->token = (uint8_t)(on->sums < m->tokens ? 1 + on->sums : NO_TOKEN);
    unsigned most = m->handful > 1 ? m->handful : 1;
    for (unsigned k = 0; k < most && on->sums < m->tokens; k++, on->sums++) b->held |= (uint8_t)(1u << k);
    return true;
}

static bool sends(unsigned i) {
    return i == 0 || !m->takers;
}

static bool has_ended(const lane *on, unsigned r, unsigned i) {
    const block *b = &on->blocks[i];
    bool takes = kind_of(on) == DISPATCH;
    for (unsigned p = 0; p < m->ranks; p++) {
        if (p == r) continue;
        if ((sends(i) && b->send[p] != NO_ROWS) || (takes && b->take[p] != NO_ROWS)) return false;
    }
    return takes || b->token == NO_TOKEN;
}

/* ---- blocks ---- */

static bool is_resident(const block *b) {
    return b->at != NOT_YET && b->at != GONE;
}

static bool may_start(const state *s, unsigned r, unsigned l, unsigned i) {
    unsigned busy = 0;
    const lane *on = &s->ranks[r].lanes[l];
    if (on->blocks[i].at != NOT_YET || s->ranks[r].dead) return false;
    for (unsigned k = 1; k < i; k++) /* all but the first are alike */
        if (on->blocks[k].at == NOT_YET) return false;
    for (unsigned k = 0; k < m->lanes; k++)
        for (unsigned b = 0; b < grid_of(r); b++) busy += is_resident(&s->ranks[r].lanes[k].blocks[b]);
    return busy < m->sms[r];
}

/* It gets an SM, and comes to the gate. */
static void start(state *s, unsigned r, unsigned l, unsigned i) {
    rank *me = &s->ranks[r];
    lane *on = &me->lanes[l];
    uint32_t before = on->gate;
    on->gate = i == 0 ? before | EPW_GATE_FIRST : before + 1;
    on->blocks[i].number = (uint8_t)epw_gate_number(before, i == 0);
    on->blocks[i].at = WAITS;
    for (unsigned p = 0; p < m->ranks && i == 0; p++) on->of[p].present = p != r && !(me->suspects >> p & 1);
    if (before != 0) return;
    epw_sms_taken taken = {me->taken, grid_of(r)};
    if (m->lanes > 1) taken = epw_sms_take(me->taken, l, grid_of(r), m->sms[r]);
    me->taken = taken.word;
    on->gate += epw_gate_opening(taken.sms);
    BREAKS(epw_sms_held(me->taken, 0) + epw_sms_held(me->taken, 1) > m->sms[r],
           "more SMs are taken than there are");
}

static void leave(state *s, unsigned r, unsigned l, unsigned passes) {
    lane *on = &s->ranks[r].lanes[l];
    on->passed = (uint8_t)(on->passed + passes);
    if (on->passed == grid_of(r)) on->passed = 0, on->gate = 0;
    for (unsigned i = 0; i < grid_of(r); i++)
        if (on->blocks[i].at != GONE) return;
    BREAKS(on->gate != 0, "the gate is not open for the next kernel");
    BREAKS(epw_sms_held(s->ranks[r].taken, l) != 0, "a kernel is over and has SMs");
    if (on->op == m->ops) return;
    on->op++;
    memset(on->blocks, 0, sizeof on->blocks);
}

/* close(), by the first block. */
static void close_kernel(state *s, unsigned r, unsigned l, unsigned blocks) {
    lane *on = &s->ranks[r].lanes[l];
    unsigned kind = kind_of(on);
    for (unsigned p = 0; p < m->ranks; p++) {
        peer *q = &on->of[p];
        if (p == r) continue;
        q->out[kind] = (uint8_t)(q->out[kind] + 1 + rows_of(kind, r, p));
        q->in[kind] = (uint8_t)(q->in[kind] + 1 + q->in_rows);
        q->send = q->take = (line){0};
        q->in_rows = 0;
        q->present = q->lost = q->allowed = q->opened = q->heard = q->passed = q->taking = false;
    }
    on->met = on->out = on->placed = on->sums = 0;
    s->ranks[r].taken &= epw_sms_others(l);
    on->blocks[0] = (block){.at = GONE};
    leave(s, r, l, blocks);
}

/* open(): peers that do not take part have no rows. */
static void open_absent(lane *on, unsigned r) {
    for (unsigned p = 0; p < m->ranks; p++)
        if (p != r && !on->of[p].present) on->of[p].send.opened = on->of[p].take.opened = 1;
}

/* What a block does besides moving: it passes the gate, and leaves. */
static bool go_on(state *s, unsigned r, unsigned l, unsigned i) {
    lane *on = &s->ranks[r].lanes[l];
    block *b = &on->blocks[i];
    unsigned blocks = epw_gate_blocks(on->gate);
    if (b->at == WAITS && epw_gate_passes(on->gate, b->number)) {
        bool works = b->number < blocks;
        on->met = (uint8_t)(on->met + works);
        b->at = works ? WORKS : GONE;
        if (i == 0) open_absent(on, r);
        if (works) return true;
        *b = (block){.at = GONE};
        leave(s, r, l, 1);
        return true;
    }
    if (b->at == WORKS && on->met == blocks && has_ended(on, r, i)) {
        *b = (block){.at = i == 0 ? ENDED : GONE};
        on->out = (uint8_t)(on->out + (i != 0));
        return true;
    }
    if (b->at != ENDED || on->out != blocks - 1) return false;
    for (unsigned p = 0; p < m->ranks; p++)
        if (p != r && !is_attended(on, r, p)) return false;
    close_kernel(s, r, l, blocks);
    return true;
}

static bool may_work(const lane *on, const block *b) { /* all have met, see meet() */
    return b->at == WORKS && on->met == epw_gate_blocks(on->gate);
}

/* One thing that the block can do, the `which`th kind of thing, of those for the peer. */
enum { GOES_ON, ATTENDS, PLACES, SENDS, TAKES, SUMS, TAKES_UP, LOSES, THINGS };

static bool act(state *s, unsigned r, unsigned l, unsigned i, unsigned thing, unsigned p) {
    lane *on = &s->ranks[r].lanes[l];
    block *b = &on->blocks[i];
    if (s->ranks[r].dead) return false;
    bool attends = i == 0 && (may_work(on, b) || b->at == ENDED);
    if (thing == GOES_ON) return p == 0 && go_on(s, r, l, i);
    if (thing == ATTENDS) return attends && p != r && attend(s, r, l, p);
    if (thing == LOSES) return attends && p != r && lose(s, r, l, p);
    if (thing == PLACES) return attends && p == 0 && place_rows(s, r, l);
    if (!may_work(on, b)) return false;
    if (thing == SENDS) return sends(i) && p != r && send_row(s, r, l, b, p);
    if (thing == TAKES) return p != r && take_row(s, r, l, b, p);
    if (thing == SUMS) return p == 0 && make_sums(s, r, l, b);
    return p == 0 && take_up(on, b);
}

/* All that the block can do now. */
static bool take_turn(state *s, unsigned r, unsigned l, unsigned i) {
    bool any = false;
    for (bool moved = true; moved && s->ranks[r].lanes[l].blocks[i].at != NOT_YET;) {
        moved = false;
        for (unsigned thing = 0; thing < LOSES && !(thing == TAKES_UP && moved); thing++)
            for (unsigned p = 0; p < m->ranks; p++)
                while (act(s, r, l, i, thing, p)) moved = true;
        any |= moved;
    }
    return any;
}

/* All that run do all that they can; what dead ranks owe is not awaited. */
static void settle(state *s) {
    for (bool moved = true; moved && x.broken == NULL;) {
        moved = false;
        for (unsigned r = 0; r < m->ranks; r++)
            for (unsigned l = 0; l < m->lanes; l++)
                for (unsigned i = 0; i < grid_of(r); i++) moved |= take_turn(s, r, l, i);
        for (unsigned r = 0; r < m->ranks && s->died && !moved; r++)
            for (unsigned l = 0; l < m->lanes; l++)
                for (unsigned p = 0; p < m->ranks; p++) moved |= act(s, r, l, 0, LOSES, p);
    }
}

/* ---- moves from a state ---- */

/* Things from the `first` kind on. */
static bool find_things(const state *s, unsigned r, unsigned l, unsigned i, unsigned first) {
    static const char *const names[] = {
        [GOES_ON] = "goes on",           [ATTENDS] = "attends to a peer", [PLACES] = "finds places",
        [SENDS] = "sends a row",         [TAKES] = "takes a row",         [SUMS] = "makes a sum",
        [TAKES_UP] = "takes up a token", [LOSES] = "gives up a peer",
    };
    bool any = false, sent = false;
    for (unsigned thing = first; thing < THINGS; thing++) {
        for (unsigned p = 0; p < m->ranks && !(thing == TAKES_UP && sent); p++) {
            state next = *s;
            if (!act(&next, r, l, i, thing, p)) continue;
            any = true;
            sent |= thing == SENDS;
            move(&next, names[thing], r, 10 * l + i);
        }
    }
    return any;
}

static bool find_of_block(const state *s, unsigned r, unsigned l, unsigned i) {
    state next = *s;
    if (may_start(s, r, l, i)) {
        start(&next, r, l, i);
        if (m->pace == STARTS) settle(&next);
        move(&next, "starts", r, 10 * l + i);
        return true;
    }
    if (m->pace == STARTS || !is_resident(&s->ranks[r].lanes[l].blocks[i])) return false;
    if (m->pace == STEPS) return find_things(s, r, l, i, GOES_ON);
    bool any = find_things(s, r, l, i, LOSES);
    if (!take_turn(&next, r, l, i)) return any;
    move(&next, "acts", r, 10 * l + i);
    return true;
}

static void find_death(const state *s, unsigned r) {
    if (!m->deaths || s->died) return;
    state next = *s;
    next.died = next.ranks[r].dead = true;
    if (m->pace == STARTS) settle(&next);
    move(&next, "dies", r, 0);
}

static void find_moves(const void *state_) {
    const state *s = state_;
    bool any = false, finished = true;
    for (unsigned r = 0; r < m->ranks; r++) {
        if (s->ranks[r].dead) continue;
        find_death(s, r);
        for (unsigned l = 0; l < m->lanes; l++) {
            finished &= s->ranks[r].lanes[l].op == m->ops;
            for (unsigned i = 0; i < grid_of(r) && x.broken == NULL; i++) {
                finished &= s->ranks[r].lanes[l].blocks[i].at == GONE;
                any |= find_of_block(s, r, l, i);
            }
        }
    }
    BREAKS(!any && !finished, "deadlock: nobody can move and not all is done");
}

static const char *begin(unsigned number, void *state_of) {
    state *first = state_of;
    m = &models[number];
    for (unsigned r = 0; r < m->ranks; r++)
        for (unsigned l = 0; l < m->lanes; l++) first->ranks[r].lanes[l].op = 1;
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("prefill_blocks_model", given, arguments, sizeof models / sizeof models[0], begin,
                       &first, sizeof first, find_moves, "rank", "10 * lane + block");
}
