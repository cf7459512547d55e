/* Exploration of what the two lanes of a prefill buffer share on the host: the set of peers that are given
 * up, how often it has changed, and the locks that are taken to tell of it on lanes that nobody drives. Every
 * state of 2 to 4 ranks that dispatch on both lanes through rings of 1 or 2 slots. c/prefill/rules.h and
 * c/peer/rules.h themselves run; their callers are modelled here after c/prefill/drive.c. What a lane does
 * alone, combines among it, is prefill_model's matter. Checked in every state:
 *  - no deadlock: as long as something is left to do, somebody can move. Each rank gives up a dead peer on
 *    one lane only, and a slow one is given up only once: what the other lanes and ranks wait for must end by
 *    what they hear of it;
 *  - once no thread of a rank is in a call's step, all lanes have told each peer that one has given up;
 *  - nobody is given up but dead ranks, slow ones, and those who have given this rank up;
 *  - operations of one lane end although those of the other have not begun, in whatever order ranks begin;
 *  - no slot is written before its owner has taken what lies there, or has begun the epoch, and what is taken
 *    is the message of this lane, epoch, operation and number.
 *
 * Each lane has a thread. Those of a *watched* rank act in the smallest steps that others can tell apart,
 * among them taking a lock, looking at what is shared, and unlocking; those of other ranks lock, act and
 * unlock in one. tests/faults shows that the explorer finds planted faults.
 *
 * prefill_lanes_model         all models, in seconds
 * prefill_lanes_model NAME    one of them; prints the path to a violation */
#include "prefill/rules.h"

#include "explore.h"

enum { RANKS_MAX = 4, LANES = 2, SLOTS_MAX = 2, STEP = 5 };

/* In which order a rank's operations begin. */
typedef enum order {
    ANY,     /* each lane's as soon as the one before it on that lane is over */
    FIRST_0, /* those of lane 1 when all of lane 0 are over, */
    FIRST_1  /* and the other way round */
} order;

typedef struct model {
    const char *name;
    unsigned ranks, slots, tokens, ops, epochs;
    unsigned watched; /* bit r: rank r */
    order order[RANKS_MAX];
    unsigned slow; /* so many times rank 0 gives up a peer that is alive */
    bool deaths;   /* one rank may die, at any time */
    bool begun;    /* all begin in the first epoch */
    bool stops;    /* a rank that has lost a peer begins no more operations in this epoch */
} model;

/* A model is a line. */
/* clang-format off */
static const model models[] = {
    /*                  ranks, slots, tokens, ops, epochs */
    {"two", 2, 1, 1, 2, 1, .watched = 1},
    {"two-of-2-slots", 2, 2, 2, 1, 1, .watched = 1},
    {"two-epochs", 2, 1, 1, 1, 2, .watched = 1},
    {"three", 3, 1, 1, 1, 1, .watched = 0},
    {"three-of-2-slots", 3, 2, 1, 1, 1, .watched = 0},
    {"three-in-order", 3, 1, 1, 2, 1, .order = {FIRST_0, ANY, ANY}},
    {"crossed", 2, 1, 1, 2, 1, .watched = 1, .order = {ANY, FIRST_1}},
    {"crossed-three", 3, 1, 1, 1, 1, .order = {FIRST_1, ANY, FIRST_1}},
    {"one-dies", 2, 1, 1, 2, 2, .watched = 1, .deaths = true},
    {"one-of-three-dies", 3, 1, 0, 1, 2, .deaths = true, .begun = true},
    {"one-of-three-watched", 3, 1, 0, 1, 1, .watched = 1, .deaths = true, .begun = true},
    {"slow", 2, 1, 1, 1, 1, .watched = 1, .slow = 1, .stops = true},
    {"slow-and-watched", 2, 1, 1, 1, 1, .watched = 2, .slow = 1, .stops = true},
    {"slow-two-epochs", 2, 1, 1, 1, 2, .watched = 1, .slow = 1, .stops = true},
    {"slow-goes-on", 2, 1, 1, 2, 1, .watched = 1, .slow = 1},
    {"four-openings", 4, 1, 0, 1, 1, .watched = 0, .order = {FIRST_0, ANY, ANY, FIRST_0}, .begun = true},
    {"four-openings-watched", 4, 1, 0, 1, 1, .watched = 1, .order = {FIRST_0, FIRST_0, FIRST_0, ANY}, .begun = true},
    {"four-rows-of-2-slots", 4, 2, 1, 1, 1, .order = {FIRST_0, FIRST_0, FIRST_0, FIRST_0}, .begun = true},
    {"one-of-four-dies", 4, 1, 0, 1, 1, .order = {FIRST_0, FIRST_0, FIRST_0, FIRST_0}, .deaths = true, .begun = true},
    {"two-are-slow", 3, 1, 0, 1, 1, .watched = 1, .order = {ANY, FIRST_0, FIRST_0}, .slow = 2, .begun = true},
};
/* clang-format on */

typedef struct message {
    uint8_t epoch, op, index, rows; /* index 0: the opening, which announces this many rows */
} message;

typedef struct count {
    uint8_t epoch, count;
} count;

/* What a rank writes in the window of another, for one lane. */
typedef struct words {
    message slots[SLOTS_MAX];
    count posted, taken;
    uint8_t epoch, dropped; /* epochs */
} words;

/* epw_stream, and the rest of a lane's view of a peer. */
typedef struct peer {
    uint8_t written, announced, free, seen, taken, returned;
    uint8_t to_write, to_take;
    bool writes, takes, opened;
    bool member, suspected, told, gone;
    uint8_t rows, messages; /* of the operation that have been taken, and written */
} peer;

typedef struct lane {
    uint8_t lock;  /* 0: nobody has it, else 1 + the lane whose thread has */
    uint8_t heard; /* the count of suspicions, as last read */
    uint8_t op;    /* operations begun in this epoch */
    bool running;
    peer of[RANKS_MAX];
} lane;

/* Where the thread of a lane is. */
typedef enum place {
    CALLS,   /* between calls, */
    WAITS,   /* or between steps of one: it has no lock */
    HEARS,   /* it has a lock, has read a new count of suspicions, and next hears which they are */
    MOVES,   /* it has its lane's lock, and moves messages. If it then gives nobody up it also unlocks */
    RAISES,  /* it has made a peer a suspect, and next counts that, */
    TELLS,   /* and tells that peer */
    UNLOCKS, /* it has heard of suspects on a lane, and unlocks it */
    ASKS,    /* has not to tell on lane `on`? */
    TRIES    /* it has, and tries to lock that lane */
} place;

typedef struct thread {
    uint8_t at;
    uint8_t on;   /* the lane that it has locked, or looks at */
    uint8_t peer; /* that is given up */
    bool begins;  /* an operation */
    bool rounds;  /* it goes round all lanes: epw_prefill_unlock */
} thread;

typedef struct rank {
    bool dead, lost; /* lost: an operation of this epoch lacked a peer */
    uint8_t epoch, suspects, suspicions;
    uint8_t slow; /* peers that it has given up although they are alive */
    bool waited;  /* for a dead one, for too long */
    lane lanes[LANES];
    thread threads[LANES];
} rank;

typedef struct state {
    bool died;
    rank ranks[RANKS_MAX];
    words words[RANKS_MAX][RANKS_MAX][LANES]; /* [writer][owner] */
} state;

static const model *m;

static uint64_t own_word(const rank *me) {
    return epw_epoch_word(me->epoch, STEP);
}

static unsigned tokens(void) {
    return m->tokens; /* each goes to all other ranks */
}

/* ---- a peer's stream ---- */

static epw_stream stream_of(const peer *q) {
    return (epw_stream){.ring = {q->written, q->announced, q->free, q->seen, q->taken, q->returned},
                        .writes = q->writes,
                        .to_write = q->to_write,
                        .takes = q->takes,
                        .opened = q->opened,
                        .to_take = q->to_take};
}

static void set_stream(peer *q, const epw_stream *s) {
    q->written = (uint8_t)s->ring.written;
    q->announced = (uint8_t)s->ring.announced;
    q->free = (uint8_t)s->ring.free;
    q->seen = (uint8_t)s->ring.seen;
    q->taken = (uint8_t)s->ring.taken;
    q->returned = (uint8_t)s->ring.returned;
    q->to_write = (uint8_t)s->to_write;
    q->to_take = (uint8_t)s->to_take;
    q->writes = s->writes;
    q->takes = s->takes;
    q->opened = s->opened;
}

static void end_stream(peer *q) {
    epw_stream s = stream_of(q);
    epw_stream_end(&s);
    set_stream(q, &s);
}

static bool is_present(const peer *q) {
    return q->member && !q->suspected;
}

static bool is_owing(const peer *q) {
    epw_stream s = stream_of(q);
    if (q->to_write > 0 && (!q->writes || epw_ring_room(&s.ring, m->slots) == 0)) return true;
    return q->takes && q->seen == q->taken;
}

/* ---- losses ---- */

/* The lane's part of giving a peer up: epw_prefill_miss. */
static void tell_dropped(state *s, unsigned r, unsigned l, unsigned p) {
    rank *me = &s->ranks[r];
    peer *q = &me->lanes[l].of[p];
    if (me->lanes[l].running && (q->to_write > 0 || q->takes)) me->lost = true;
    q->suspected = true;
    if (!q->told) s->words[r][p][l].dropped = me->epoch;
    q->told = true;
    end_stream(q);
}

/* hear(), once it has seen that the count has changed. */
static void hear(state *s, unsigned r, unsigned l) {
    for (unsigned p = 0; p < m->ranks; p++)
        if (is_present(&s->ranks[r].lanes[l].of[p]) && s->ranks[r].suspects >> p & 1)
            tell_dropped(s, r, l, p);
}

/* ---- moving: what prefill_model does in a turn ---- */

static uint64_t count_word(count c) {
    return epw_count_word(epw_epoch_word(c.epoch, STEP), c.count);
}

static void look(state *s, unsigned r, unsigned l, unsigned p) {
    const rank *me = &s->ranks[r];
    const words *its = &s->words[p][r][l];
    peer *q = &s->ranks[r].lanes[l].of[p];
    epw_stream stream = stream_of(q);
    epw_sight sight = {.dropped = epw_word(its->dropped, 0, 0),
                       .epoch_word = its->epoch ? epw_epoch_word(its->epoch, STEP) : 0};
    epw_heard posted = epw_ring_hear_posted(&stream.ring, m->slots, count_word(its->posted), own_word(me));
    epw_heard taken = epw_ring_hear_taken(&stream.ring, count_word(its->taken), own_word(me));
    BREAKS(posted == EPW_HEARD_IMPOSSIBLE || taken == EPW_HEARD_IMPOSSIBLE,
           "a correct peer is judged faulty");
    stream.writes = sight.epoch_word == own_word(me);
    set_stream(q, &stream);
    q->gone = epw_rule_gone(sight, own_word(me)) != EPW_CAUSE_NONE;
}

static void write_one(state *s, unsigned r, unsigned l, unsigned p) {
    rank *me = &s->ranks[r];
    const rank *owner = &s->ranks[p];
    peer *q = &me->lanes[l].of[p];
    epw_stream stream = stream_of(q);
    bool counts = !owner->dead && owner->epoch == me->epoch && !(owner->suspects >> r & 1);
    BREAKS(owner->epoch < me->epoch && !owner->dead,
           "a slot is written before its owner has begun the epoch");
    BREAKS(counts && q->written >= owner->lanes[l].of[r].taken + m->slots,
           "a slot is written before it was read");
    s->words[r][p][l].slots[q->written % m->slots] =
        (message){me->epoch, me->lanes[l].op, q->messages, (uint8_t)tokens()};
    q->messages++;
    epw_stream_wrote(&stream, 1);
    set_stream(q, &stream);
}

static void take_one(state *s, unsigned r, unsigned l, unsigned p) {
    rank *me = &s->ranks[r];
    peer *q = &me->lanes[l].of[p];
    epw_stream stream = stream_of(q);
    message got = s->words[p][r][l].slots[q->taken % m->slots];
    BREAKS(got.epoch != me->epoch || got.op != me->lanes[l].op || got.index != (q->opened ? q->rows + 1 : 0),
           "a message is taken that is not the next one");
    if (q->opened) {
        q->rows++;
        epw_stream_took(&stream, 1);
    } else {
        stream.ring.taken++;
        epw_stream_open(&stream, got.rows);
    }
    set_stream(q, &stream);
}

static void tell(state *s, unsigned r, unsigned l) {
    for (unsigned p = 0; p < m->ranks; p++) {
        peer *q = &s->ranks[r].lanes[l].of[p];
        words *w = &s->words[r][p][l];
        epw_stream stream = stream_of(q);
        if (!is_present(q)) continue;
        if (epw_ring_announces(&stream.ring, m->slots, true)) {
            w->posted = (count){s->ranks[r].epoch, q->written};
            q->announced = q->written;
        }
        if (epw_ring_returns(&stream.ring, m->slots, true)) {
            w->taken = (count){s->ranks[r].epoch, q->taken};
            q->returned = q->taken;
        }
    }
}

static void turns_of(const lane *on, epw_turn turns[RANKS_MAX]) {
    epw_stream streams[RANKS_MAX];
    for (unsigned p = 0; p < m->ranks; p++) streams[p] = stream_of(&on->of[p]);
    epw_streams_turn(streams, m->ranks, m->slots, epw_streams_opened(streams, m->ranks), turns);
}

/* Moves what can be moved for one peer. */
static bool move_one(state *s, unsigned r, unsigned l, unsigned p) {
    epw_turn turns[RANKS_MAX];
    turns_of(&s->ranks[r].lanes[l], turns);
    if (turns[p].write > 0) {
        write_one(s, r, l, p);
    } else if (turns[p].take > 0) {
        take_one(s, r, l, p);
    } else {
        return false;
    }
    return true;
}

/* All that the lane can do with what it sees now. */
static void move_all(state *s, unsigned r, unsigned l) {
    lane *on = &s->ranks[r].lanes[l];
    for (unsigned p = 0; p < m->ranks; p++)
        if (is_present(&on->of[p])) look(s, r, l, p);
    for (bool moved = true; moved;) { /* ends: an operation has so many messages */
        moved = false;
        for (unsigned p = 0; p < m->ranks; p++)
            while (move_one(s, r, l, p)) moved = true;
    }
    tell(s, r, l);
}

static bool is_over(const lane *on) {
    for (unsigned p = 0; p < m->ranks; p++)
        if (on->of[p].to_write > 0 || on->of[p].takes) return false;
    return true;
}

/* ---- calls ---- */

static bool ends_all(const rank *me, unsigned l) {
    return me->threads[l].at == CALLS && (me->lanes[l].op == m->ops || (m->stops && me->lost));
}

static bool may_begin(const rank *me, unsigned r, unsigned l) {
    if (me->epoch == 0 || ends_all(me, l)) return false;
    if (m->order[r] == ANY || l == (unsigned)m->order[r] - FIRST_0) return true;
    return ends_all(me, 1 - l);
}

static void begin_op(state *s, unsigned r, unsigned l) {
    rank *me = &s->ranks[r];
    lane *on = &me->lanes[l];
    on->op++;
    on->running = true;
    for (unsigned p = 0; p < m->ranks; p++) {
        peer *q = &on->of[p];
        epw_stream stream = stream_of(q);
        me->lost |= q->member && q->suspected;
        q->rows = q->messages = 0;
        epw_stream_begin(&stream, is_present(q), 1 + tokens());
        set_stream(q, &stream);
    }
}

/* No lane runs anything. */
static bool may_begin_epoch(const rank *me) {
    for (unsigned l = 0; l < LANES; l++)
        if (me->lanes[l].lock != 0 || (me->epoch > 0 && !ends_all(me, l))) return false;
    return me->epoch < m->epochs;
}

static void begin_epoch(state *s, unsigned r) {
    rank *me = &s->ranks[r];
    me->epoch++;
    me->suspects = 0;
    me->lost = false;
    for (unsigned l = 0; l < LANES; l++) {
        memset(&me->lanes[l], 0, sizeof me->lanes[l]);
        me->lanes[l].heard = me->suspicions;
        for (unsigned p = 0; p < m->ranks; p++) {
            me->lanes[l].of[p].member = p != r && (me->epoch == 1 || !s->ranks[p].dead);
            s->words[r][p][l].epoch = me->epoch;
        }
    }
}

/* ---- steps of a thread, from epw_prefill_run and epw_prefill_unlock ---- */

/* epw_prefill_unlock: on which lane to look next. */
static void ask_on(thread *t, const rank *me, unsigned own, unsigned next) {
    t->rounds = next < LANES;
    t->on = (uint8_t)(t->rounds ? next : own);
    t->at = t->rounds ? ASKS : me->lanes[own].running ? WAITS : CALLS;
}

/* Locks lane t->on and reads the count of suspicions, if nobody has the lock. */
static bool lock_lane(rank *me, thread *t, unsigned own) {
    lane *on = &me->lanes[t->on];
    if (on->lock != 0) return false;
    on->lock = (uint8_t)(1 + own);
    t->at = on->heard != me->suspicions ? HEARS : t->rounds ? UNLOCKS : MOVES;
    on->heard = me->suspicions;
    return true;
}

static void unlock(thread *t, rank *me, unsigned own) {
    me->lanes[t->on].lock = 0;
    ask_on(t, me, own, t->rounds ? t->on : 0);
}

static bool is_silent_for_long(const state *s, unsigned r, unsigned p) {
    const rank *me = &s->ranks[r];
    return s->ranks[p].dead ? !me->waited : me->epoch == 1 && r == 0 && me->slow < m->slow;
}

/* The peer that the lane gives up now; `choice`: 0: one that is gone, 1 + p: peer p, which is silent for too
 * long. m->ranks: none. */
static unsigned to_lose(const state *s, unsigned r, unsigned l, unsigned choice) {
    const rank *me = &s->ranks[r];
    for (unsigned p = 0; p < m->ranks; p++) {
        const peer *q = &me->lanes[l].of[p];
        if (!is_present(q)) continue;
        if (choice == 0 && q->gone && (q->to_write > 0 || is_owing(q))) return p;
        if (choice == 1 + p && is_owing(q) && !q->gone && is_silent_for_long(s, r, p)) return p;
    }
    return m->ranks;
}

static void lose(state *s, unsigned r, unsigned l, unsigned p, bool silent) {
    rank *me = &s->ranks[r];
    thread *t = &me->threads[l];
    if (silent && s->ranks[p].dead) me->waited = true;
    if (silent && !s->ranks[p].dead) me->slow++;
    bool news = !(me->suspects >> p & 1);
    me->suspects |= (uint8_t)(1u << p);
    t->peer = (uint8_t)p;
    t->at = news ? RAISES : TELLS;
    BREAKS(!silent && !s->ranks[p].dead && s->ranks[p].epoch == me->epoch && !(s->ranks[p].suspects >> r & 1),
           "a rank is given up though it is alive and waits");
}

/* One step; `choice`: see to_lose. False: nothing can be done. */
static bool step(state *s, unsigned r, unsigned l, unsigned choice) {
    rank *me = &s->ranks[r];
    thread *t = &me->threads[l];
    lane *on = &me->lanes[t->on];
    if (choice > 0 && t->at != MOVES) return false;
    switch ((place)t->at) {
    case CALLS:
        if (!may_begin(me, r, l)) return false;
        t->begins = true;
        /* fall through */
    case WAITS:
        t->on = (uint8_t)l;
        return lock_lane(me, t, l); /* waits for it; it is never held for long */
    case HEARS:
        hear(s, r, t->on);
        t->at = t->rounds ? UNLOCKS : MOVES;
        return true;
    case MOVES:
        if (t->begins) begin_op(s, r, l);
        t->begins = false;
        move_all(s, r, l);
        on->running = !is_over(on);
        unsigned p = on->running ? to_lose(s, r, l, choice) : m->ranks;
        if (p < m->ranks) {
            lose(s, r, l, p, choice > 0);
            return true;
        }
        unlock(t, me, l);
        return choice == 0;
    case RAISES:
        me->suspicions++;
        t->at = TELLS;
        return true;
    case TELLS:
        tell_dropped(s, r, l, t->peer);
        t->peer = 0;
        t->at = MOVES;
        return true;
    case UNLOCKS:
        unlock(t, me, l);
        return true;
    case ASKS:
        if (on->heard != me->suspicions) {
            t->at = TRIES;
        } else {
            ask_on(t, me, l, t->on + 1u);
        }
        return true;
    case TRIES:
        /* Whoever has it asks when he has unlocked it. */
        if (!lock_lane(me, t, l)) ask_on(t, me, l, t->on + 1u);
        return true;
    }
    return false;
}

/* The rank's lane can go on with what it waits for, or begins: all steps up to the end of epw_prefill_unlock.
 */
static bool run(state *s, unsigned r, unsigned l, unsigned choice) {
    const thread *t = &s->ranks[r].threads[l];
    bool chosen = choice == 0;
    do {
        bool chooses = !chosen && t->at == MOVES;
        if (!step(s, r, l, chooses ? choice : 0)) return false;
        chosen |= chooses;
    } while (t->at != CALLS && t->at != WAITS); /* ends: nobody else has a lock */
    return chosen;
}

/* ---- what holds in every state, and moves from it ---- */

static bool rests(const rank *me) {
    for (unsigned l = 0; l < LANES; l++)
        if (me->threads[l].at != CALLS && me->threads[l].at != WAITS) return false;
    return true;
}

static void check_told(const rank *me) {
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned p = 0; p < m->ranks; p++)
            BREAKS(me->suspects >> p & 1 && me->lanes[l].of[p].member && !me->lanes[l].of[p].told,
                   "a peer that is given up has not been told on each lane");
}

/* Whether something is left to do, and nobody can do any of it. */
static bool is_stuck(const state *s) {
    bool finished = true;
    for (unsigned r = 0; r < m->ranks; r++) {
        const rank *me = &s->ranks[r];
        if (me->dead) continue;
        if (!rests(me) || may_begin_epoch(me)) return false;
        finished &= ends_all(me, 0) && ends_all(me, 1);
        for (unsigned l = 0; l < LANES; l++) {
            for (unsigned choice = 0; choice <= m->ranks; choice++) {
                state next = *s;
                if (run(&next, r, l, choice) && memcmp(&next, s, sizeof next) != 0) return false;
            }
        }
    }
    return !finished;
}

static void find_death(const state *s, unsigned r) {
    if (!m->deaths || s->died) return;
    for (unsigned p = 0; p < m->ranks; p++) /* later epochs begin without it */
        if (s->ranks[p].epoch > 1) return;
    if (s->ranks[r].epoch == 0) return;
    state next = *s;
    next.died = next.ranks[r].dead = true;
    move(&next, "dies", r, 0);
}

static const char *name_of(place at) {
    static const char *const names[] = {
        [CALLS] = "takes its lock",
        [WAITS] = "takes its lock",
        [HEARS] = "hears who they are",
        [MOVES] = "moves messages",
        [RAISES] = "counts a suspect",
        [TELLS] = "tells a suspect",
        [UNLOCKS] = "unlocks",
        [ASKS] = "asks if a lane is to be told",
        [TRIES] = "tries to lock a lane",
    };
    return names[at];
}

static void find_moves(const void *state_) {
    const state *s = state_;
    BREAKS(is_stuck(s), "deadlock: nobody can move and not all is done");
    for (unsigned r = 0; r < m->ranks && x.broken == NULL; r++) {
        const rank *me = &s->ranks[r];
        bool watched = m->watched >> r & 1;
        if (me->dead) continue;
        if (rests(me)) check_told(me);
        if (may_begin_epoch(me)) {
            state next = *s;
            begin_epoch(&next, r);
            move(&next, "begins an epoch", r, 0);
        }
        for (unsigned l = 0; l < LANES; l++) {
            for (unsigned choice = 0; choice <= m->ranks; choice++) {
                state next = *s;
                if (!(watched ? step(&next, r, l, choice) : run(&next, r, l, choice))) continue;
                const char *what = watched ? name_of((place)me->threads[l].at) : "runs";
                move(&next, choice > 0 ? "gives up a silent peer" : what, r, l);
            }
        }
        find_death(s, r);
    }
}

static const char *begin(unsigned number, void *state_of) {
    state *first = state_of;
    m = &models[number];
    for (unsigned r = 0; r < m->ranks && m->begun; r++) begin_epoch(first, r);
    return m->name;
}

int main(int given, char **arguments) {
    static state first;
    return explore_all("prefill_lanes_model", given, arguments, sizeof models / sizeof models[0], begin,
                       &first, sizeof first, find_moves, "rank", "lane");
}
