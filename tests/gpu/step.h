/* Steps of self-checking traffic through one lane of a buffer: make tokens, dispatch, check and answer,
 * combine, check. Everything is enqueued on the lane's stream; nothing waits. */
#ifndef EPW_TESTS_STEP_H
#define EPW_TESTS_STEP_H

#include "traffic.h"

#include "require.h"

/* How a step is done. The same mode on all ranks, the rest as each likes. */
typedef struct step_kind {
    uint32_t layout, mode, scale_order;
    int split;    /* receive in calls of their own */
    int in_place; /* rank-major: rows are read in the window, and answered there */
} step_kind;

enum { STEP_KINDS = 8 };

/* Kind number `index` of STEP_KINDS of a rank: both layouts, halves together and apart, copied and in place,
 * and one kind that all ranks sum in top-k order. */
step_kind step_kind_of(uint32_t rank, uint32_t index);

typedef struct step_lane {
    traffic_shape shape;
    traffic_memory memory;
    traffic_faults *faults; /* as the host addresses them */
    epw_buffer *buffer;
    epw_row_shape row;
    uint32_t lane, payload;
    uint64_t deadline_ns; /* of the calls; 0: the buffer's */
    uint64_t *wait_ns;    /* [ranks], device memory; NULL: not asked for */
    cudaStream_t stream;
    cudaEvent_t event; /* for who wants to know how far it is */
} step_lane;

/* The shape of a buffer's traffic; all ranks give the same seed. */
traffic_shape step_shape(const epw_config *config, uint64_t seed);

/* On the current device. iteration: of the first step; stride: from a step to the next. */
void step_open(step_lane *l, epw_buffer *buffer, const epw_config *config, uint64_t seed, uint32_t lane,
               uint32_t payload, uint64_t iteration, uint64_t stride, uint64_t pause_ns);
void step_close(step_lane *l);

/* Who takes part from now on. Nothing of the lane runs. */
void step_set_members(step_lane *l, uint64_t sources, uint64_t answers);

/* Parts of a step, in this order. `tokens`: rows that the calls are given; the others are routed nowhere. */
void step_make(step_lane *l);
epw_handle step_dispatch(step_lane *l, step_kind kind, uint32_t tokens);
void step_answer(step_lane *l, step_kind kind, uint32_t tokens, epw_handle handle);
void step_combine(step_lane *l, step_kind kind, epw_handle handle);
void step_check(step_lane *l, step_kind kind, uint32_t tokens);

/* All of them. */
void step_run(step_lane *l, step_kind kind, uint32_t tokens);

/* Begins to capture the stream, and ends it: the graph of what was enqueued, ready to be launched. */
void step_capture(cudaStream_t stream);
cudaGraphExec_t step_captured(cudaStream_t stream);

/* `count` steps of kinds 0, 1, ... as a graph, ready to be launched. */
cudaGraphExec_t step_graph(step_lane *l, uint32_t count, int checked);

/* State as it is in device memory. Nothing of the lane runs. */
traffic_state step_state(const step_lane *l);

/* 1 if a check has failed, of which the first is then printed as "NAME: wrong ...". */
int step_wrong(const step_lane *l, const char *name);

/* Nobody was given up. */
void step_untroubled(const step_lane *l);

#endif
