/* Exploration of progress words (c/ep/layout.h, epw_progress_offset): every state of a rank that answers many
 * rows and of one that sums them, over several operations and epochs. The words and the rules of c/peer run;
 * the two ranks are modelled here after kernels/ep/combine_many.cuh and, for what a dispatch does, send.cuh.
 * Checked in every state:
 *  - what a sum holds has been answered, completely, in this operation;
 *  - no sum holds anything of a rank that was given up;
 *  - what a peer has told of an operation is not wiped out before it ends;
 *  - no deadlock: as long as something is left to do, somebody can move.
 *
 * Blocks of the answering rank take rows in turn, of a sequence in which those of all its peers alternate.
 * Their stores become complete in any order, and so do parts of the sequence; a block counts a row when its
 * store is complete. What a word announces is complete before it is told, as by its release; loads and stores
 * of one word by several blocks come in any order. tests/faults shows that the explorer finds planted faults.
 *
 * progress_model         all models, in seconds
 * progress_model NAME    one of them; prints the path to a violation */
#include "peer/rules.h"

#include "explore.h"

enum { ROWS_MAX = 12, PARTS_MAX = 4, BLOCKS = 2, OPEN = 2, STEP = 3 };

typedef struct model {
    const char *name;
    unsigned rows;    /* that the reader has sent; other peers have sent as many */
    unsigned peers;   /* whom the other rank answers; the reader is the last */
    unsigned each;    /* rows of the sequence that a block takes at a time */
    unsigned parts;   /* of the sequence, at most */
    unsigned ops;     /* in each epoch */
    unsigned numbers; /* after as many operations their numbers begin anew */
    unsigned epochs;
    bool impatient; /* ranks may give each other up although nobody has died */
    bool dies;      /* the answering rank may die, at any time */
} model;

/* clang-format off: a model is a line */
static const model models[] = {
    /*          rows, peers, each, parts, ops, numbers, epochs */
    {"parts", 4, 1, 1, 4, 1, 16, 1, .impatient = false},
    {"peers", 3, 2, 1, 4, 2, 16, 1, .impatient = false},
    {"takes-of-2", 6, 2, 2, 4, 1, 16, 1, .impatient = false},
    {"few-parts", 4, 1, 1, 2, 2, 16, 2, .impatient = false},
    {"numbers-again", 3, 1, 1, 4, 4, 2, 1, .impatient = false},
    {"impatient", 3, 1, 1, 4, 2, 16, 3, .impatient = true},
    {"impatient-again", 3, 1, 1, 4, 3, 2, 2, .impatient = true},
    {"one-dies", 3, 2, 1, 4, 2, 16, 2, .dies = true},
};
/* clang-format on */

static const model *m; /* the current one */

/* ---- the state ---- */

enum { READER, ANSWERER };

typedef enum stage {
    BETWEEN, /* epochs */
    AWAITS,  /* READER: permission to send. ANSWERER: the rows */
    RUNS,    /* READER: sums. ANSWERER: answers */
    DONE
} stage;

/* A block of the answering rank. */
typedef struct block {
    uint8_t taken[OPEN], open; /* first rows of what it has taken and not yet counted, the oldest first */
    uint8_t part, sent;        /* rows of a part that are complete, and not noted */
    bool last;                 /* it has completed a part, and has yet to look at all */
    uint8_t tells;             /* parts that it has yet to tell; 0: none */
    bool over;
} block;

typedef enum store { NONE, FLIES, COMPLETE } store;

typedef struct state {
    bool dead;
    uint64_t own_word[2]; /* epoch words, which each has at the other one too */
    uint64_t dropped[2];  /* farewells to the other */
    uint8_t stage[2], op[2];
    uint64_t dispatched, combined, progress;
    /* ANSWERER */
    bool tells;               /* it answers so many rows that it tells its progress */
    uint8_t next;             /* row of the sequence that nobody has taken */
    uint8_t stores[ROWS_MAX]; /* of the sequence */
    uint8_t sent_parts[PARTS_MAX];
    block blocks[BLOCKS];
    /* READER */
    uint8_t answers[ROWS_MAX]; /* the operation that has answered a row, counted over all epochs; 0: in
                                  part, or none */
    bool cleared;              /* the progress word, for this operation */
    bool looks;                /* at progress, because it sums many rows */
    uint8_t known, summed;     /* rows */
    bool settled, lost, wrong; /* wrong: a sum holds what was not an answer */
} state;

static uint32_t epoch_of(const state *s, unsigned r) {
    return epw_word_epoch(s->own_word[r]);
}
static unsigned total_of(void) {
    return m->rows * m->peers;
}
/* Rows of the sequence in a part: whole takes, of as many rows of each peer. */
static unsigned part_of(void) {
    unsigned part = (total_of() + m->parts - 1) / m->parts, whole = m->each * m->peers;
    return (part + whole - 1) / whole * whole;
}
static uint32_t number(uint32_t op) {
    return op % m->numbers;
}
/* An operation by its place among those of all epochs. */
static uint8_t id_of(const state *s, unsigned r) {
    return (uint8_t)((epoch_of(s, r) - 1) * m->ops + s->op[r]);
}
static epw_sight sight_of(const state *s, unsigned writer, uint64_t word) {
    return (epw_sight){.dropped = s->dropped[writer], .epoch_word = s->own_word[writer], .word = word};
}

/* ---- moves ---- */

static const char *said; /* of the move */

static bool finished(const state *s) {
    return s->stage[READER] == DONE && (s->dead || s->stage[ANSWERER] == DONE);
}

static state *begin(const state *s, state *next, const char *what) {
    memcpy(next, s, sizeof *next);
    said = what;
    return next;
}

/* Death is not progress. */
static void take(const state *next) {
    const state *from = x.at;
    x.changes += next->dead == from->dead && memcmp(next, from, sizeof *next) != 0;
    move(next, said, 0, 0);
}

/* ---- epochs ---- */

static void begin_epoch(const state *s, unsigned r) {
    state next;
    begin(s, &next, r == READER ? "the reader begins an epoch" : "the answerer begins an epoch");
    if (epoch_of(s, r) == m->epochs) {
        next.stage[r] = DONE;
    } else {
        next.own_word[r] = epw_epoch_word(epoch_of(s, r) + 1, STEP);
        next.op[r] = 1;
        next.stage[r] = AWAITS;
    }
    take(&next);
}

static void end_op(state *s, unsigned r, bool alone) {
    s->stage[r] = alone || s->op[r] == m->ops ? BETWEEN : AWAITS;
    s->op[r] = s->stage[r] == BETWEEN ? 0 : s->op[r] + 1;
}

static void give_up(state *s, unsigned r) {
    s->dropped[r] = epw_word(epoch_of(s, r), 0, 0);
}

/* ---- the answering rank ---- */

static void await_rows(const state *s) {
    state next;
    uint32_t op = number(s->op[ANSWERER]);
    epw_verdict verdict = epw_rule_arrived(sight_of(s, READER, s->dispatched), s->own_word[ANSWERER], op);
    for (unsigned tells = 0; verdict == EPW_ARRIVED && tells < 2; tells++) {
        begin(s, &next, tells ? "the rows have come, and are many" : "the rows have come, and are few");
        next.stage[ANSWERER] = RUNS;
        next.tells = tells;
        next.next = 0;
        memset(next.stores, NONE, sizeof next.stores);
        memset(next.sent_parts, 0, sizeof next.sent_parts);
        memset(next.blocks, 0, sizeof next.blocks);
        take(&next);
    }
    if (verdict == EPW_GONE || (verdict == EPW_WAITING && m->impatient)) {
        begin(s, &next, "the answerer gives the reader up");
        give_up(&next, ANSWERER);
        end_op(&next, ANSWERER, true);
        take(&next);
    }
}

/* A store of any block becomes complete. */
static void complete_stores(const state *s) {
    for (unsigned n = 0; n < total_of(); n++) {
        if (s->stores[n] != FLIES) continue;
        state next;
        begin(s, &next, "a store becomes complete");
        next.stores[n] = COMPLETE;
        if (n % m->peers == m->peers - 1) next.answers[n / m->peers] = id_of(s, ANSWERER);
        take(&next);
    }
}

static void take_rows(const state *s, unsigned b) {
    state next;
    begin(s, &next, "a block takes rows");
    block *me = &next.blocks[b];
    me->taken[me->open++] = s->next;
    for (unsigned n = s->next; n < s->next + m->each; n++) {
        next.stores[n] = FLIES;
        if (n % m->peers == m->peers - 1) next.answers[n / m->peers] = 0;
    }
    next.next = (uint8_t)(s->next + m->each);
    take(&next);
}

/* Counts what the block has completed. The last part is told by the combine word. */
static void note(state *s, block *me) {
    unsigned part = part_of();
    if (s->tells && me->sent > 0 && (me->part + 1u) * part < total_of()) {
        s->sent_parts[me->part] += me->sent;
        me->last = s->sent_parts[me->part] == part;
    }
    me->sent = 0;
}

static bool are_complete(const state *s, unsigned first) {
    bool all = true;
    for (unsigned n = first; n < first + m->each; n++) all &= s->stores[n] == COMPLETE;
    return all;
}

static void count_rows(const state *s, unsigned b) {
    state next;
    begin(s, &next, "a block counts rows");
    block *me = &next.blocks[b];
    unsigned n = me->taken[0], part = n / part_of();
    if (part != me->part && me->sent > 0) {
        note(&next, me);
    } else {
        me->part = (uint8_t)part;
        me->sent += m->each;
        memmove(me->taken, me->taken + 1, --me->open);
        me->taken[me->open] = 0;
    }
    take(&next);
}

/* How many parts are complete, of those that have none missing before them. */
static unsigned whole_parts(const state *s) {
    unsigned first = 0;
    while (first < m->parts && s->sent_parts[first] == part_of()) first++;
    return first;
}

static void look_at_parts(const state *s, unsigned b) {
    state next;
    begin(s, &next, "a block looks at all parts");
    block *me = &next.blocks[b];
    unsigned first = whole_parts(s);
    me->last = false;
    me->tells = first <= me->part ? 0 : (uint8_t)first;
    take(&next);
}

static void tell(const state *s, unsigned b) {
    state next;
    begin(s, &next, "a block tells the progress");
    uint32_t rows = s->blocks[b].tells * part_of() / m->peers;
    next.progress = epw_word(epoch_of(s, ANSWERER), number(s->op[ANSWERER]), rows);
    next.blocks[b].tells = 0;
    take(&next);
}

static void block_moves(const state *s, unsigned b) {
    const block *me = &s->blocks[b];
    if (me->over) return;
    if (me->last) {
        look_at_parts(s, b);
        return;
    }
    if (me->tells > 0) {
        tell(s, b);
        return;
    }
    if (me->open < OPEN && s->next < total_of()) take_rows(s, b);
    if (me->open > 0 && are_complete(s, me->taken[0])) count_rows(s, b);
    if (me->open > 0 || s->next < total_of()) return;
    state next;
    begin(s, &next, "a block has nothing left to send");
    if (me->sent > 0) {
        note(&next, &next.blocks[b]);
    } else {
        next.blocks[b].over = true;
    }
    take(&next);
}

static void answerers_moves(const state *s) {
    state next;
    if (m->dies) {
        begin(s, &next, "the answerer dies");
        next.dead = true;
        take(&next);
    }
    if (s->stage[ANSWERER] == BETWEEN) begin_epoch(s, ANSWERER);
    if (s->stage[ANSWERER] == AWAITS) await_rows(s);
    if (s->stage[ANSWERER] != RUNS) return;
    bool over = true;
    for (unsigned b = 0; b < BLOCKS; b++) {
        block_moves(s, b);
        over &= s->blocks[b].over;
    }
    if (!over) return;
    begin(s, &next, "the last block posts the combine word");
    next.combined = epw_word(epoch_of(s, ANSWERER), number(s->op[ANSWERER]), m->rows);
    end_op(&next, ANSWERER, false);
    take(&next);
}

/* ---- the rank that sums ---- */

static bool may_give_up(const state *s) {
    return s->dead || m->impatient;
}

static void clear_progress(const state *s) {
    state next;
    begin(s, &next, "the reader clears the progress word");
    bool told = epw_word_matches(s->progress, epoch_of(s, READER), number(s->op[READER]));
    BREAKS(told && s->answers[0] == id_of(s, READER), "a word is wiped out that was told for this operation");
    next.progress = 0;
    next.cleared = true;
    take(&next);
}

static void dispatch(const state *s) {
    state next;
    uint32_t op = s->op[READER], before = number(op - 1);
    epw_sight seen = sight_of(s, ANSWERER, s->combined);
    epw_verdict verdict = epw_rule_may_send(seen, s->own_word[READER], before + 1, op == 1);
    bool may = verdict == EPW_ARRIVED && s->cleared;
    for (unsigned looks = 0; may && looks < 2; looks++) {
        begin(s, &next, looks ? "the reader sends many rows" : "the reader sends a few rows");
        next.dispatched = epw_word(epoch_of(s, READER), number(op), m->rows);
        next.stage[READER] = RUNS;
        next.looks = looks;
        take(&next);
    }
    if (verdict == EPW_GONE || (verdict == EPW_WAITING && may_give_up(s))) {
        begin(s, &next, "the reader gives up the answerer, to whom it has sent nothing");
        give_up(&next, READER);
        next.cleared = false;
        end_op(&next, READER, true);
        take(&next);
    }
}

static void await_answers(const state *s) {
    state next;
    uint32_t op = number(s->op[READER]);
    epw_verdict verdict = epw_rule_arrived(sight_of(s, ANSWERER, s->combined), s->own_word[READER], op);
    if (verdict == EPW_ARRIVED) {
        begin(s, &next, "the reader sees the combine word");
        next.settled = true;
        take(&next);
    } else if (verdict == EPW_GONE || may_give_up(s)) {
        begin(s, &next, "the reader gives up the answerer");
        give_up(&next, READER);
        next.settled = next.lost = true;
        take(&next);
    }
}

static void look_at_progress(const state *s) {
    state next;
    begin(s, &next, "the reader looks at the progress word");
    if (epw_word_matches(s->progress, epoch_of(s, READER), number(s->op[READER])))
        next.known = (uint8_t)epw_word_value(s->progress);
    take(&next);
}

static void sum_row(const state *s) {
    state next;
    begin(s, &next, "the reader sums a row");
    next.wrong |= s->answers[s->summed] != id_of(s, READER);
    next.summed++;
    take(&next);
}

/* All is summed and all ranks are settled. Without one of them all is summed again. */
static void close(const state *s) {
    state next;
    begin(s, &next, "the reader closes the operation");
    unsigned held = s->summed;
    if (s->lost) held = 0;
    BREAKS(s->lost && held > 0, "a sum holds answers of a rank that was given up");
    BREAKS(held > 0 && s->wrong, "a sum holds what is no answer of this operation");
    next.cleared = next.looks = next.settled = next.lost = next.wrong = false;
    next.known = next.summed = 0;
    end_op(&next, READER, s->lost);
    take(&next);
}

static void readers_moves(const state *s) {
    if (s->stage[READER] == BETWEEN) begin_epoch(s, READER);
    if (s->stage[READER] == AWAITS) dispatch(s);
    if (s->op[READER] > 0 && !s->cleared) clear_progress(s);
    if (s->stage[READER] != RUNS) return;
    if (!s->settled) await_answers(s);
    if (s->looks && !s->settled) look_at_progress(s);
    if (s->summed < m->rows && (s->settled || s->known > s->summed)) sum_row(s);
    if (s->summed == m->rows && s->settled) close(s);
}

static void find_moves(const void *state_) {
    const state *s = state_;
    readers_moves(s);
    if (!s->dead) answerers_moves(s);
    if (!s->dead) complete_stores(s);
    BREAKS(x.changes == 0 && !finished(s), "deadlock: nobody can move and not all is done");
}

static const char *begin_model(unsigned number, void *first) {
    (void)first;
    m = &models[number];
    CHECK(total_of() <= ROWS_MAX && m->parts <= PARTS_MAX && m->rows * m->peers % m->each == 0);
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("progress_model", given, arguments, sizeof models / sizeof models[0], begin_model,
                       &first, sizeof first, find_moves, NULL, NULL);
}
