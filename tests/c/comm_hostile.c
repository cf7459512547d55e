/* A faulty peer of a communicator writes messages that no rank writes, with every field of the header wrong
 * in turn, and words that announce too much. It becomes missing by EPW_CAUSE_FORMAT, nothing is read out of
 * bounds, and the next epoch works. */
#include "comms.h"

#include "coll/parts.h"

#include <stdbool.h>

enum { COUNT = 8 };

typedef struct trick {
    const char *name;
    uint64_t number, bytes, address, ahead; /* ahead: by how much the word exceeds the message */
    uint32_t call, carry, voids;
    epw_descriptor what;
    bool point;
} trick;

typedef struct scene {
    comms c;
    const trick *t;
} scene;

/* Rank 1 writes the faulty message as soon as the protocol permits. */
static void play(epw_comm *comm, const trick *t) {
    uint32_t channel = t->point ? EPW_CHANNEL_POINT : EPW_CHANNEL_COLLECTIVE;
    epw_look seen = {0};
    for (int ms = 0; ms < 10000 && seen.sight.word != comm->own_word; ms++) {
        epw_look_at(&comm->peers, channel, 0, EPW_WORD_EPOCH, &seen);
        if (seen.held) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    epw_message *slot = epw_slot_for(comm, &comm->of[0], channel, 1);
    *slot = (epw_message){.number = t->number,
                          .call = t->call,
                          .carry = t->carry,
                          .what = t->what,
                          .voids = t->voids,
                          .bytes = t->bytes,
                          .address = t->address};
    epw_range range = {.offset = epw_message_offset(&comm->layout, channel, 1, 1),
                       .bytes = sizeof *slot + 64,
                       .stride = sizeof *slot + 64,
                       .count = 1};
    epw_signal(&comm->peers, channel, 0, EPW_WORD_POSTED,
               epw_epoch_word(epw_word_epoch(comm->own_word), 1 + t->ahead), &range, 1);
}

static void be_tricked(uint32_t rank, void *context) {
    const scene *s = context;
    if (rank == 1) {
        play(s->c.of[1], s->t);
        return;
    }
    int32_t mine[COUNT] = {1, 2, 3}, got[COUNT];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (s->t->point) {
        CHECK_OK(epw_recv(s->c.of[0], got, COUNT, EPW_TYPE_I32, 1, 0, NULL, &outcome));
    } else {
        CHECK_OK(epw_all_reduce(s->c.of[0], mine, got, COUNT, EPW_TYPE_I32, EPW_SUM, NULL, &outcome));
    }
    CHECK_MSG(outcome.degraded && outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_FORMAT,
              "%s: missing %llx, cause %u", s->t->name, (unsigned long long)outcome.missing.bits[0],
              outcome.record.cause);
}

static void meet(uint32_t rank, void *context) {
    const scene *s = context;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    CHECK_OK(epw_barrier(s->c.of[rank], NULL, &outcome));
    CHECK_MSG(!outcome.degraded, "%s", s->t->name);
}

static void activate_two(const comms *c, uint32_t epoch) {
    epw_mask two = all_of(2);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_comm_set_active(c->of[r], &two, epoch, 0));
}

int main(void) {
    const epw_descriptor sum = {.kind = EPW_ALL_REDUCE, .type = EPW_TYPE_I32, .op = EPW_SUM, .count = COUNT};
    const epw_descriptor message = {.kind = EPW_SEND, .type = EPW_TYPE_I32, .count = COUNT};
    const epw_descriptor untyped = {.kind = EPW_SEND, .type = 99, .count = COUNT};
    const epw_descriptor unknown = {.kind = 77, .type = 99, .op = 88, .count = COUNT};
    const uint64_t huge = UINT64_MAX - 63;
    const trick tricks[] = {
        {"another number", 7, 32, 0, 0, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"an unknown call", 1, 32, 0, 0, 1, EPW_CARRY_INLINE, 0, unknown, false},
        {"an unknown carry", 1, 32, 0, 0, 1, 99, 0, sum, false},
        {"no carry", 1, 32, 0, 0, 1, 0, 0, sum, false},
        {"a carry of sends", 1, 32, 0, 0, 1, EPW_CARRY_OFFER, 0, sum, false},
        {"more bytes than are to come", 1, 64, 0, 0, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"more bytes than there are", 1, UINT64_MAX - 3, 0, 0, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"no bytes", 1, 0, 0, 0, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"half an element", 1, 30, 0, 0, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"an unknown rank that lacks", 1, 0, 0, 0, 1, EPW_CARRY_VOID, 1000, sum, false},
        {"a rank that lacks and is no member", 1, 0, 0, 0, 1, EPW_CARRY_VOID, 2, sum, false},
        {"a place before the heap", 1, 32, 0, 0, 1, EPW_CARRY_HEAP, 0, sum, false},
        {"a place behind the heap", 1, 32, huge, 0, 1, EPW_CARRY_HEAP, 0, sum, false},
        {"a word that runs ahead", 1, 32, 0, 1000, 1, EPW_CARRY_INLINE, 0, sum, false},
        {"a send of another number", 7, 32, 0, 0, 0, EPW_CARRY_INLINE, 0, message, true},
        {"a send beyond the slot", 1, huge, 0, 0, 0, EPW_CARRY_INLINE, 0, message, true},
        {"a send of another length", 1, 28, 0, 0, 0, EPW_CARRY_INLINE, 0, message, true},
        {"a send of no type", 1, 32, 0, 0, 0, EPW_CARRY_INLINE, 0, untyped, true},
        {"a send that is none", 1, 32, 0, 0, 0, EPW_CARRY_INLINE, 0, sum, true},
        {"a send from nowhere", 1, 32, huge, 0, 1, EPW_CARRY_HEAP, 0, message, true},
        {"what was not asked for", 1, 32, 0, 0, 5, EPW_CARRY_INLINE, 0, message, true},
        {"an end of what was not asked for", 1, 0, 0, 0, 5, EPW_CARRY_VOID, 0, message, true},
        {"a question for nothing", 1, 0, 9, 0, 0, EPW_CARRY_ASK, 0, message, true},
        {"an answer to nothing", 1, 0, 9, 0, 0, EPW_CARRY_DONE, 0, message, true},
        {"matches of nothing", 1, 9, 9, 0, 0, EPW_CARRY_MATCHED, 0, message, true},
        {"a send of an unknown carry", 1, 32, 0, 0, 0, 99, 0, message, true},
        {"a word of sends that runs ahead", 1, 32, 0, 1000, 0, EPW_CARRY_INLINE, 0, message, true},
    };
    epw_comm_config config = EPW_COMM_CONFIG_INIT;
    config.heap_bytes = 4096;
    scene s = {.c = open_comms(3, config)}; /* rank 2 is no member */
    for (uint32_t i = 0; i < sizeof tricks / sizeof tricks[0]; i++) {
        s.t = &tricks[i];
        activate_two(&s.c, 2 * i + 1);
        on_all(2, be_tricked, &s);
        activate_two(&s.c, 2 * i + 2);
        on_all(2, meet, &s);
    }
    close_comms(&s.c);
    return check_result("comm_hostile");
}
