/* Steps of self-checking traffic through one lane of a buffer: make tokens, dispatch, check and answer,
 * combine, check. Everything is enqueued on the lane's stream; nothing waits. */
#ifndef EPW_TESTS_STEP_H
#define EPW_TESTS_STEP_H

#include "traffic.h"

#include "require.h"

/* How a step is done. All ranks must use the same mode; the rest each may choose. */
typedef struct step_kind {
    uint32_t layout, mode, scale_order;
    int split;    /* separate receive calls */
    int in_place; /* rank-major: rows are read in the window, and answered there */
} step_kind;

enum { STEP_KINDS = 8 };

/* Kind number `index` of a rank's STEP_KINDS: both layouts, halves together and apart, copied and in place,
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
    uint64_t *wait_ns;    /* [ranks], device memory; NULL: not requested */
    cudaStream_t stream;
    cudaEvent_t event; /* for callers that need to know its progress */
} step_lane;

/* The shape of a buffer's traffic; all ranks give the same seed. */
traffic_shape step_shape(const epw_config *config, uint64_t seed);

/* Opens the lane on the current device. iteration: of the first step; stride: from one step to the next. */
void step_open(step_lane *l, epw_buffer *buffer, const epw_config *config, uint64_t seed, uint32_t lane,
               uint32_t payload, uint64_t iteration, uint64_t stride, uint64_t pause_ns);
void step_close(step_lane *l);

/* Sets the ranks that take part from now on. Nothing of the lane may be running. */
void step_set_members(step_lane *l, uint64_t sources, uint64_t answers);

/* The parts of a step, in this order. `tokens`: rows that are passed to the calls; the surplus ones are
 * routed nowhere. */
void step_make(step_lane *l);
epw_handle step_dispatch(step_lane *l, step_kind kind, uint32_t tokens);
void step_answer(step_lane *l, step_kind kind, uint32_t tokens, epw_handle handle);
void step_combine(step_lane *l, step_kind kind, epw_handle handle);
void step_check(step_lane *l, step_kind kind, uint32_t tokens);

/* All parts. */
void step_run(step_lane *l, step_kind kind, uint32_t tokens);

/* Begin and end a capture of the stream: returns the graph of what was enqueued, ready to be launched. */
void step_capture(cudaStream_t stream);
cudaGraphExec_t step_captured(cudaStream_t stream);

/* `count` steps of kinds 0, 1, ... as a graph, ready to be launched. */
cudaGraphExec_t step_graph(step_lane *l, uint32_t count, int checked);

/* Reads the state from device memory. Nothing of the lane may be running. */
traffic_state step_state(const step_lane *l);

/* Returns 1 if a check has failed, and prints the first failure as "NAME: wrong ...". */
int step_wrong(const step_lane *l, const char *name);
int step_faulty(const traffic_faults *f, const char *name, uint32_t rank, uint32_t lane);

/* Requires that no peer was given up. */
void step_untroubled(const step_lane *l);

#endif
