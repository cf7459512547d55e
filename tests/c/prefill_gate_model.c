/* Exploration of how blocks of prefill's kernels begin and end on a GPU: every state of two lanes whose
 * kernels share its SMs. c/prefill/gate.h and c/prefill/lane_sms.h themselves run; what calls them is
 * modelled here after enter(), take_sms(), pass_gate(), meet() and close() in kernels/prefill/operation.cuh,
 * each atomic access a step. The GPU starts a block of a kernel whenever it has an SM free, as late as it
 * likes and in any order; a kernel of a lane follows on the one before it. What working blocks do is
 * prefill_blocks_model's matter. Checked in every state:
 *  - no deadlock, though a block keeps its SM while it waits, and one lane may have to wait for the other,
 *    whose peers began in another order;
 *  - the SMs that kernels have taken are no more than there are, and as many blocks work as were taken for;
 *  - each block works or leaves; it works only once all that will work have an SM, and not if the gate was
 *    closed;
 *  - once a kernel is over, its SMs have been given back, once, and the gate is open for the next one, or
 *    closed until the next epoch.
 *
 * prefill_gate_model         all models, in seconds
 * prefill_gate_model NAME    one of them; prints the path to a violation */
#include "prefill/gate.h"
#include "prefill/lane_sms.h"

#include "explore.h"

enum { LANES = 2, BLOCKS_MAX = 5 };

typedef struct model {
    const char *name;
    unsigned sms, lanes, kernels, epochs;
    unsigned grid[LANES]; /* blocks of a kernel. 0: as many as a lane that is alone has SMs */
    unsigned after;    /* 1 + the lane whose blocks work until all kernels of the other are over; 0: none */
    unsigned closings; /* so many times in an epoch a block may find that it has waited for too long */
} model;

/* clang-format off: a model is a line */
static const model models[] = {
    /*                 SMs, lanes, kernels, epochs */
    {"one-lane", 3, 1, 3, 2, .grid = {3}},
    {"two-sms", 2, 2, 3, 1, .closings = 0},
    {"three-sms", 3, 2, 2, 1, .closings = 0},
    {"four-sms", 4, 2, 2, 1, .closings = 0},
    {"five-sms", 5, 2, 1, 1, .closings = 0},
    {"four-sms-again", 4, 2, 2, 1, .grid = {3, 1}},
    {"more-blocks-than-sms", 2, 2, 2, 1, .grid = {3, 2}},
    {"after-the-other-lane", 3, 2, 2, 1, .after = 1},
    {"before-the-other-lane", 3, 2, 2, 1, .after = 2},
    {"after-the-other-of-two", 2, 2, 3, 1, .after = 1},
    {"closed", 3, 1, 2, 2, .grid = {3}, .closings = 1},
    {"closed-of-two", 2, 2, 2, 2, .closings = 2},
    {"closed-of-three", 3, 2, 2, 1, .closings = 1},
};
/* clang-format on */

/* What a block does next. */
typedef enum place {
    NOT_YET, /* it has no SM */
    COMES,
    TAKES,   /* it has looked at what SMs are taken: `word` */
    OPENS,   /* it has taken `word` SMs */
    REFUNDS, /* the gate was closed meanwhile: it gives them back */
    LOOKS,
    CLOSES, /* it has seen the gate, `word`, and has waited for too long */
    SHUTS,  /* it has closed the gate, and gives SMs back that were taken */
    MEETS,
    WORKS, /* until all of the kernel's that work have come here */
    ENDS,  /* the grid's first one: all others are out */
    PASSES,
    RESETS, /* it is the last through the gate */
    GONE
} place;

typedef struct block {
    uint32_t word;
    uint8_t at, number, blocks; /* blocks: of the kernel that work */
} block;

typedef struct lane {
    uint32_t gate;
    uint8_t passed, met, out; /* as in epw_prefill_gpu_state */
    uint8_t kernel;           /* kernels of the epoch that were launched */
    uint8_t sms, worked;      /* of this kernel: taken; blocks that were through the gate to work */
    block blocks[BLOCKS_MAX];
} lane;

typedef struct state {
    uint32_t taken;
    uint8_t epoch, closings;
    lane lanes[LANES];
} state;

static const model *m;

static unsigned grid_of(unsigned l) {
    return m->grid[l] > 0 ? m->grid[l] : m->sms - epw_sms_kept(m->sms);
}

static unsigned count(const state *s, unsigned l, place from, place to) {
    unsigned blocks = 0;
    for (unsigned i = 0; i < grid_of(l); i++)
        blocks += s->lanes[l].blocks[i].at >= from && s->lanes[l].blocks[i].at <= to;
    return blocks;
}

static bool is_over(const state *s, unsigned l) {
    return count(s, l, GONE, GONE) == grid_of(l);
}

static bool all_over(const state *s, unsigned l) {
    return is_over(s, l) && s->lanes[l].kernel == m->kernels;
}

static unsigned free_sms(const state *s) {
    unsigned busy = 0;
    for (unsigned l = 0; l < m->lanes; l++) busy += count(s, l, COMES, RESETS);
    return busy < m->sms ? m->sms - busy : 0;
}

/* ---- steps of a block ---- */

static void give_sms_back(state *s, unsigned l) {
    if (m->lanes == 1) return;
    BREAKS(epw_sms_held(s->taken, l) == 0, "SMs are given back twice");
    s->taken &= epw_sms_others(l);
}

/* The kernel is over: the next one of the lane follows on it. */
static void follow_on(state *s, unsigned l) {
    lane *on = &s->lanes[l];
    bool closed = on->gate & EPW_GATE_CLOSED;
    BREAKS(!closed && (on->gate != 0 || on->passed != 0), "the gate is not open for the next kernel");
    BREAKS(on->worked != (closed ? 0 : on->sms), "not all blocks that SMs were taken for have worked");
    BREAKS(m->lanes > 1 && epw_sms_held(s->taken, l) != 0, "a kernel is over and has SMs");
    BREAKS(on->met != 0 || on->out != 0, "the next kernel's blocks do not wait for one another");
    on->sms = on->worked = 0;
    if (on->kernel == m->kernels) return;
    on->kernel++;
    memset(on->blocks, 0, sizeof on->blocks);
}

static void leave(state *s, unsigned l, block *b) {
    *b = (block){.at = GONE};
    if (is_over(s, l)) follow_on(s, l);
}

/* Whether the grid's first block finds that ranks are absent from the kernel's operation: from every other.
 */
static bool has_absent(const lane *on) {
    return on->kernel % 2 == 1;
}

static void come(lane *on, block *b, bool first) {
    uint32_t before = on->gate;
    if (first) {
        on->gate |= EPW_GATE_FIRST | (has_absent(on) ? EPW_GATE_ABSENT : 0);
    } else {
        on->gate++;
    }
    b->number = (uint8_t)epw_gate_number(before, first);
    b->at = before == 0 ? TAKES : LOOKS;
}

static void take(state *s, unsigned l, block *b) {
    if (m->lanes == 1) {
        b->word = grid_of(l);
    } else {
        epw_sms_taken taken = epw_sms_take(b->word, l, grid_of(l), m->sms);
        if (s->taken != b->word) { /* the other lane has begun or ended a kernel */
            b->word = s->taken;
            return;
        }
        s->taken = taken.word;
        b->word = taken.sms;
    }
    b->at = OPENS;
}

static void open_gate(lane *on, block *b) {
    bool closed = on->gate & EPW_GATE_CLOSED;
    on->gate += epw_gate_opening(b->word);
    on->sms = (uint8_t)b->word;
    b->word = 0;
    b->at = closed ? REFUNDS : LOOKS;
}

/* Blocks that have come and will work. */
static unsigned workers(const state *s, unsigned l, unsigned blocks) {
    unsigned all = 0;
    for (unsigned i = 0; i < grid_of(l); i++) {
        const block *b = &s->lanes[l].blocks[i];
        all += b->at > COMES && b->at < GONE && b->number < blocks;
    }
    return all;
}

/* False: it waits. */
static bool look(state *s, unsigned l, block *b, bool for_too_long) {
    lane *on = &s->lanes[l];
    if (on->gate & EPW_GATE_CLOSED) {
        leave(s, l, b);
        return true;
    }
    b->blocks = (uint8_t)epw_gate_blocks(on->gate);
    if (epw_gate_passes(on->gate, b->number)) {
        b->at = b->number >= b->blocks ? PASSES : MEETS;
        on->worked += b->at == MEETS;
        BREAKS(b->at == MEETS && workers(s, l, b->blocks) < b->blocks,
               "a block works before all that will work have an SM");
        BREAKS(b->at == MEETS && ((on->gate & EPW_GATE_ABSENT) != 0) != has_absent(on),
               "a block takes another view of who takes part than the first one");
        return true;
    }
    if (for_too_long) {
        b->word = on->gate;
        b->at = CLOSES;
        s->closings++;
    } else {
        b->blocks = 0;
    }
    return for_too_long;
}

static void close_gate(lane *on, block *b) {
    b->at = LOOKS;
    if (on->gate == b->word) {
        on->gate |= EPW_GATE_CLOSED;
        b->at = SHUTS;
    }
    b->word = 0;
}

/* Whether the block is through with its work, and with waiting for the others. */
static bool work(state *s, unsigned l, block *b) {
    lane *on = &s->lanes[l];
    if (on->met < b->blocks || (m->after == 1 + l && !all_over(s, 1 - l))) return false;
    if (b->number == 0) {
        if (on->out < b->blocks - 1) return false;
        on->met = on->out = 0;
        b->at = ENDS;
    } else {
        on->out++;
        leave(s, l, b);
    }
    return true;
}

/* pass_gate(): all that have worked at once, of the others each itself. */
static void pass(state *s, unsigned l, block *b) {
    lane *on = &s->lanes[l];
    unsigned blocks = b->number >= b->blocks ? 1 : b->blocks;
    if (blocks != grid_of(l)) on->passed = (uint8_t)(on->passed + blocks);
    if (blocks == grid_of(l) || on->passed == grid_of(l)) {
        on->passed = 0;
        b->at = RESETS;
    } else {
        leave(s, l, b);
    }
}

/* False: nothing can be done. */
static bool step(state *s, unsigned l, unsigned i) {
    lane *on = &s->lanes[l];
    block *b = &on->blocks[i];
    switch ((place)b->at) {
    case NOT_YET:
        if (free_sms(s) == 0) return false;
        b->at = COMES;
        return true;
    case COMES:
        come(on, b, i == 0);
        if (b->at == TAKES) b->word = s->taken;
        return true;
    case TAKES:
        take(s, l, b);
        return true;
    case OPENS:
        open_gate(on, b);
        return true;
    case REFUNDS:
        give_sms_back(s, l);
        b->at = LOOKS;
        return true;
    case LOOKS:
        return look(s, l, b, false);
    case CLOSES:
        close_gate(on, b);
        return true;
    case SHUTS:
        if (b->blocks > 0) give_sms_back(s, l);
        leave(s, l, b);
        return true;
    case MEETS:
        on->met++;
        b->at = WORKS;
        return true;
    case WORKS:
        return work(s, l, b);
    case ENDS:
        give_sms_back(s, l);
        b->at = PASSES;
        return true;
    case PASSES:
        pass(s, l, b);
        return true;
    case RESETS:
        on->gate = 0;
        leave(s, l, b);
        return true;
    case GONE:
        break;
    }
    return false;
}

/* ---- what holds in every state, and moves from it ---- */

static const char *const names[] = {
    [NOT_YET] = "gets an SM",
    [COMES] = "comes",
    [TAKES] = "takes SMs",
    [OPENS] = "opens the gate",
    [REFUNDS] = "gives back what it took in vain",
    [LOOKS] = "looks at the gate",
    [CLOSES] = "closes the gate",
    [SHUTS] = "leaves the gate closed",
    [MEETS] = "comes to a meeting",
    [WORKS] = "is through with its work",
    [ENDS] = "gives SMs back",
    [PASSES] = "is counted as through the gate",
    [RESETS] = "opens the gate for the next kernel",
};

/* The GPU's block, of those that have not started: the grid's first one, or any other, which are alike. */
static bool is_next(const lane *on, unsigned i) {
    if (on->blocks[i].at != NOT_YET) return true;
    for (unsigned k = 1; k < i; k++)
        if (on->blocks[k].at == NOT_YET) return false;
    return true;
}

static void check(const state *s) {
    unsigned held = 0;
    for (unsigned l = 0; l < m->lanes; l++) {
        unsigned mine = epw_sms_held(s->taken, l);
        held += mine;
        BREAKS(m->lanes > 1 && count(s, l, MEETS, ENDS) > mine, "more blocks work than have SMs");
    }
    BREAKS(held > m->sms, "more SMs are taken than there are");
}

static bool find_epoch(const state *s) {
    for (unsigned l = 0; l < m->lanes; l++)
        if (!all_over(s, l)) return false;
    if (s->epoch + 1u == m->epochs) return true;
    state next = {.epoch = (uint8_t)(s->epoch + 1)}; /* prefill_epoch_kernel */
    for (unsigned l = 0; l < m->lanes; l++) next.lanes[l].kernel = 1;
    move(&next, "begins an epoch", 0, 0);
    return true;
}

static void find_moves(const void *state_) {
    const state *s = state_;
    check(s);
    bool any = find_epoch(s);
    for (unsigned l = 0; l < m->lanes; l++) {
        for (unsigned i = 0; i < grid_of(l); i++) {
            if (!is_next(&s->lanes[l], i)) continue;
            state next = *s;
            if (step(&next, l, i)) {
                any = true;
                move(&next, names[s->lanes[l].blocks[i].at], l, i);
            } else if (s->lanes[l].blocks[i].at == LOOKS && s->closings < m->closings) {
                next = *s;
                (void)look(&next, l, &next.lanes[l].blocks[i], true);
                move(&next, "waits for too long", l, i);
            }
        }
    }
    BREAKS(!any, "deadlock: nobody can move and not all is done");
}

static const char *begin(unsigned number, void *state_of) {
    state *first = state_of;
    m = &models[number];
    for (unsigned l = 0; l < m->lanes; l++) first->lanes[l].kernel = 1;
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("prefill_gate_model", given, arguments, sizeof models / sizeof models[0], begin,
                       &first, sizeof first, find_moves, "lane", "block");
}
