/* What the engine for GPUs enqueues, orders, waits for and refuses, without a GPU: its sources are compiled
 * here with CUDA (fake_cuda.h) and the kernels replaced by records of the calls. tests/gpu compares the
 * kernels themselves with the host. */
#include "needs_cuda.h"

#ifdef EPW_CUDA

#include "fake_cuda.h"
#include "group.h"
#include "ep/buffer.h"
#include "kernels/ep/launch.h"

/* ---- the kernels, as the engine sees them here ---- */

static struct kernels {
    int undispatched; /* result of a dispatch's launch */
    int quiet_releases;
    epw_dispatch_args dispatch;
    epw_combine_args combine;
} kernels;

static int fake_prepare(void) {
    return 0;
}
static int fake_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    kernels.dispatch = *args;
    return kernels.undispatched ? kernels.undispatched : fake_launch(blocks, stream);
}
static int fake_combine(const epw_combine_args *args, uint32_t blocks, void *stream) {
    kernels.combine = *args;
    return fake_launch(blocks, stream);
}
static int fake_release(const epw_release_args *args, void *stream) {
    uint64_t own = args->lane.peers->table[EPW_AREA_CONTROL][args->lane.rank];
    CHECK(args->lane.peers->lanes == 2 && own == (uintptr_t)args->lane.window &&
          args->lane.layout.ranks == 2);
    if (args->quiet && !fake.failing) kernels.quiet_releases++;
    return fake_launch(1, stream);
}
/* The word of lane 0 that this rank writes at a peer. */
static uint64_t *word_of(epw_gpu_peers *peers, uint32_t rank, uint32_t peer, uint32_t word) {
    return (uint64_t *)(uintptr_t)(peers->table[EPW_AREA_CONTROL][peer] + epw_word_offset(rank, 0, word));
}
static int fake_checkpoint(const epw_checkpoint_args *args, void *stream) {
    if (fake.failing) return fake_launch(1, stream);
    epw_gpu_lane_state *state = args->states[0];
    bool faulted = state->faulted != 0 || args->states[1]->faulted != 0;
    state->faulted = args->states[1]->faulted = 0;
    state->report = epw_report_next(state->report, epw_word_epoch(args->peers[0]->epoch_word), args->step,
                                    faulted, epw_ranks_have(&args->shared->suspects, 1));
    for (uint32_t peer = 0; peer < args->ranks; peer++)
        *word_of(args->peers[0], args->rank, peer, EPW_WORD_REPORT) = state->report;
    return fake_launch(1, stream);
}
static int fake_set_active(const epw_membership_args *args, void *stream) {
    if (fake.failing) return fake_launch(1, stream);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(args->peers[i]->lane == i && args->peers[i]->shared == args->shared);
        args->peers[i]->epoch_word = args->epoch_word;
        for (uint32_t p = 0; p < args->ranks; p++) {
            CHECK(args->peers[i]->table[EPW_AREA_ROWS][p] != 0 || !epw_ranks_have(&args->active, p));
        }
    }
    for (uint32_t p = 0; p < args->ranks; p++) {
        if (!epw_ranks_have(&args->active, p)) continue;
        *word_of(args->peers[0], args->rank, p, EPW_WORD_LAST) = args->last[0];
        *word_of(args->peers[0], args->rank, p, EPW_WORD_LAST_BUT_ONE) = args->last[1];
        *word_of(args->peers[0], args->rank, p, EPW_WORD_EPOCH) = args->epoch_word;
    }
    args->states[0]->report = 0;
    memset(args->shared->suspects_host, 0, EPW_MAX_LANES * sizeof(epw_rank_set));
    memset(args->shared->silent_host, 0, EPW_MAX_LANES * sizeof(epw_rank_set));
    if (fake.hangs) fake.done = 0;
    return fake_launch(1, stream);
}

static int fake_disconnect(const epw_disconnect_args *args, void *stream) {
    CHECK(args->peers[1]->lane == 1 && args->states[1] != NULL && args->ranks == 2);
    for (uint32_t i = 0; i < 2 * EPW_AREAS; i++)
        args->peers[i / EPW_AREAS]->table[i % EPW_AREAS][args->peer] = 0;
    if (fake.stalls) fake.done = 0;
    return fake_launch(1, stream);
}

#define epw_gpu_prepare    fake_prepare
#define epw_gpu_dispatch   fake_dispatch
#define epw_gpu_combine    fake_combine
#define epw_gpu_release    fake_release
#define epw_gpu_set_active fake_set_active
#define epw_gpu_disconnect fake_disconnect
#define epw_gpu_checkpoint fake_checkpoint
/* The library has its own copies of these. */
#define epw_engine_gpu                tested_engine
#define epw_gpu_private_bytes         tested_private_bytes
#define epw_gpu_call_dispatch         tested_dispatch
#define epw_gpu_call_dispatch_receive tested_dispatch_receive
#define epw_gpu_call_combine          tested_combine
#define epw_gpu_call_combine_receive  tested_combine_receive
#define epw_gpu_call_release          tested_release
#define epw_gpu_call_report           tested_report
#define epw_gpu_call_poll             tested_poll
#define epw_gpu_call_ready            tested_ready
#define epw_gpu_call_await            tested_await
#define epw_gpu_call_look             tested_look
#define epw_gpu_call_stream_wait      tested_stream_wait
#define epw_gpu_call_outcome_read     tested_outcome_read
#define epw_gpu_call_traffic          tested_traffic
#define epw_gpu_call_take_errors      tested_take_errors
extern const epw_engine tested_engine;
uint64_t tested_private_bytes(const epw_config *config);
#include "../../c/ep/gpu/engine.c"
#include "../../c/ep/gpu/call.c"

/* ---- two ranks with windows in host memory ---- */

#define FIRST_STREAM  ((void *)0x1000)
#define SECOND_STREAM ((void *)0x2000)

static epw_buffer *make_buffer(uint32_t rank) {
    epw_config config = config_of(rank, 2);
    config.deadline_ns = 20 * MS;
    epw_buffer *b = NULL;
    CHECK_OK(epw_buffer_create(&config, &b));
    CHECK(b->engine->leave(b));
    b->engine->close(b);
    b->engine = &tested_engine;
    b->config.device = (int32_t)rank; /* each buffer needs the SMs of a GPU of its own */
    CHECK_OK(b->engine->open(b));
    return b;
}

static group make_gpu_group(void) {
    fake = (struct fake){.done = 1};
    kernels = (struct kernels){0};
    group g = {.ranks = 2};
    for (uint32_t r = 0; r < 2; r++) g.of[r] = make_buffer(r);
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(connect_to(g.of[r], r, g.of[1 - r], 1 - r));
    activate(&g, 1);
    fake.launches = fake.records = fake.waits = 0;
    return g;
}

static _Alignas(64) unsigned char rows[1 << 20];
static uint32_t counts[EXPERTS];
static batch made;

static epw_dispatch_input input_on(void *stream, int32_t lane) {
    epw_dispatch_input in = make_batch(&made, 0);
    in.stream = stream;
    in.lane = lane;
    return in;
}

static epw_dispatch_output output_on(void *stream) {
    epw_dispatch_output out = EPW_DISPATCH_OUTPUT_INIT;
    out.rows = rows;
    out.counts = counts;
    out.stream = stream;
    return out;
}

static epw_handle dispatch_on(epw_buffer *b, void *stream, int32_t lane) {
    epw_dispatch_input in = input_on(stream, lane);
    epw_dispatch_output out = output_on(stream);
    epw_handle handle = 0;
    CHECK_OK(epw_dispatch(b, &in, &out, &handle, NULL));
    return handle;
}

/* ---- tests ---- */

static void lanes_hold_the_peer_table(void) {
    group g = make_gpu_group();
    epw_gpu_peers *peers = g.of[0]->gpu->lanes[1].peers, *first = g.of[0]->gpu->lanes[0].peers;
    for (uint32_t area = 0; area < EPW_AREAS; area++) {
        CHECK(peers->table[area][0] == (uintptr_t)epw_peers_own(&g.of[0]->peers));
        CHECK(peers->table[area][1] == (uintptr_t)epw_peers_own(&g.of[1]->peers));
    }
    CHECK(peers->lane == 1 && peers->deadline_ns == 20 * MS && g.of[0]->gpu->lanes[1].state->ordered == 1);
    CHECK_MSG(g.of[0]->gpu->blocks == 20, "two lanes of %u blocks on 40 SMs", g.of[0]->gpu->blocks);
    REFUSED(epw_buffer_disconnect(g.of[0], 1), EPW_ERR_STATE, "disconnect", 0, 1, "active");
    /* As kernels would: one lane has given up rank 1 without evidence, then the other lane because it was
     * silent. */
    uint8_t reachable[EXPERTS];
    g.of[0]->peers.gpu->pinned->suspects[1].words[0] = 2;
    epw_membership now = membership_of(g.of[0]);
    CHECK(now.suspects.bits[0] == 2 && now.silent.bits[0] == 0);
    g.of[0]->peers.gpu->pinned->silent[0].words[0] = 2;
    now = membership_of(g.of[0]);
    CHECK(now.suspects.bits[0] == 2 && now.silent.bits[0] == 2);
    g.of[0]->peers.gpu->pinned->suspects[1].words[0] = g.of[0]->peers.gpu->pinned->silent[0].words[0] = 0;
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{2 | 4}}));
    now = membership_of(g.of[0]);
    CHECK(now.suspects.bits[0] == 2 && now.silent.bits[0] == 0 &&
          g.of[0]->peers.gpu->pinned->revoked.words[0] == 2);
    CHECK_OK(epw_buffer_reachable_experts(g.of[0], reachable));
    CHECK(reachable[0] == 1 && reachable[EXPERTS - 1] == 0);
    CHECK_OK(epw_buffer_disconnect(g.of[0], 1));
    CHECK(peers->table[EPW_AREA_ROWS][1] == 0 && first->table[EPW_AREA_ANSWERS][1] == 0);
    destroy(&g);
    CHECK(fake.depth == 0);
}

static void entries_are_those_of_their_lane_and_area(void) {
    group g = make_gpu_group();
    const epw_peers *floor = &g.of[0]->peers;
    epw_where where = epw_peers_where(floor, "connect", 1);
    epw_route route = {.lanes = {{0x11000, 0x12000, 0x13000}, {0x21000, 0x22000, 0x23000}}};
    CHECK_OK(epw_peers_enter(floor, 1, &route, where));
    for (uint32_t lane = 0; lane < 2; lane++) {
        const epw_gpu_peers *peers = g.of[0]->gpu->lanes[lane].peers;
        const epw_areas *areas = &route.lanes[lane];
        CHECK(peers->table[EPW_AREA_CONTROL][1] == areas->control);
        CHECK(peers->table[EPW_AREA_ROWS][1] == areas->rows);
        CHECK(peers->table[EPW_AREA_ANSWERS][1] == areas->answers);
        CHECK(peers->table[EPW_AREA_ROWS][0] == (uintptr_t)epw_peers_own(floor));
    }
    CHECK(fake.depth == 0);
    fake.stalls = 1;
    REFUSED(epw_peers_enter(floor, 1, &floor->routes[1], where), EPW_ERR_TIMEOUT, "connect", 0, 1,
            "has not taken the change within the deadline of 20 ms");
    fake.stalls = 0;
    fake.done = 1;
    destroy(&g);
}

static void words_are_copied_both_ways(void) {
    group g = make_gpu_group();
    const epw_peers *floor = &g.of[0]->peers;
    epw_where where = epw_peers_where(floor, "probe", 1);
    uint64_t word = 0, there = 5, read = 0;
    epw_word_copy out = {.use = 0, .writes = true, .at = (unsigned char *)&word, .value = &there};
    epw_word_copy in = {.use = 1, .at = (unsigned char *)&word, .value = &read};
    CHECK_OK(epw_peers_copy_word(floor, &out, MS, where));
    CHECK_OK(epw_peers_copy_word(floor, &in, MS, where));
    CHECK(word == 5 && read == 5);
    fake.stalls = 1;
    word = 6;
    REFUSED(epw_peers_copy_word(floor, &in, 2 * MS, where), EPW_ERR_TIMEOUT, "probe", 0, 1,
            "has not copied a word within 2 ms");
    CHECK(read == 5 && fake.depth == 0);
    fake.stalls = 0;
    fake.done = 1;
    destroy(&g);
}

static void there_are_no_more_blocks_than_rows(void) {
    gpu_sms = 132;
    group g = make_gpu_group();
    CHECK_MSG(g.of[0]->gpu->blocks == 2 * TOKENS, "%u blocks", g.of[0]->gpu->blocks);
    CHECK(g.of[0]->gpu->lanes[0].state->blocks == 2 * TOKENS);
    destroy(&g);
    gpu_sms = 40;
}

static void halves_are_launched_as_called(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_dispatch_input in = input_on(FIRST_STREAM, 1);
    epw_dispatch_output out = output_on(FIRST_STREAM);
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    float weights[TOKENS * TOPK];
    epw_handle handle;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    CHECK(kernels.dispatch.halves == EPW_GPU_SEND && kernels.dispatch.lane.peers->lane == 1 &&
          fake.blocks == 20);
    CHECK(kernels.dispatch.in.tokens == TOKENS && kernels.dispatch.in.x_stride == HIDDEN * 2 &&
          kernels.dispatch.out.rows == NULL);
    REFUSED(epw_combine(b, handle, &answer, NULL, NULL), EPW_ERR_STATE, "combine", 0, -1,
            "has not been received");
    CHECK_OK(epw_dispatch_receive(b, handle, &out, NULL));
    CHECK(kernels.dispatch.halves == EPW_GPU_RECEIVE && kernels.dispatch.out.rows == rows &&
          kernels.dispatch.format.hash != 0);
    epw_rows_view view = EPW_ROWS_VIEW_INIT;
    CHECK_OK(epw_next_combine_buffer(b, handle, &view));
    CHECK(view.source_counts == b->gpu->lanes[1].state->received);
    answer.mode = EPW_COMBINE_ORDERED;
    answer.topk_weights = weights;
    CHECK_OK(epw_combine(b, handle, &answer, NULL, NULL));
    CHECK(kernels.combine.halves == EPW_GPU_SEND && kernels.combine.in.expert_out == view.rows);
    combined.out = rows;
    CHECK_OK(epw_combine_receive(b, handle, &combined, NULL));
    CHECK(kernels.combine.halves == EPW_GPU_RECEIVE && kernels.combine.in.mode == EPW_COMBINE_ORDERED);
    CHECK(kernels.combine.in.topk_weights == weights && kernels.combine.out.out == rows);
    destroy(&g);
}

static void an_operation_has_the_sms_that_it_asks_for(int captured) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_dispatch_input in = input_on(FIRST_STREAM, 1);
    epw_dispatch_output out = output_on(FIRST_STREAM);
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    float weights[TOKENS * TOPK];
    epw_handle handle;
    in.topk_weights = weights;
    in.sms = 7;
    fake.captured = captured;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL));
    CHECK(fake.blocks == 7 && kernels.dispatch.lane.blocks == 20);
    CHECK_OK(epw_dispatch_receive(b, handle, &out, NULL));
    CHECK(fake.blocks == 7);
    answer.expert_out = rows;
    answer.sms = 21; /* the lane has 20 */
    combined.out = rows;
    CHECK_OK(epw_combine(b, handle, &answer, NULL, NULL));
    CHECK(fake.blocks == 20);
    CHECK_OK(epw_combine_receive(b, handle, &combined, NULL));
    CHECK(fake.blocks == 20 && kernels.combine.lane.blocks == 20);
    fake.captured = 0;
    destroy(&g);
}

static void streams_follow_each_other(void) {
    group g = make_gpu_group();
    CHECK_OK(epw_release(g.of[0], dispatch_on(g.of[0], FIRST_STREAM, 0)));
    CHECK_MSG(fake.waits == 0 && fake.stream == FIRST_STREAM, "%d waits", fake.waits);
    CHECK_OK(epw_release_on(g.of[0], dispatch_on(g.of[0], NULL, 0), SECOND_STREAM));
    CHECK_MSG(fake.waits == 2 && fake.stream == SECOND_STREAM, "%d waits", fake.waits);
    CHECK_OK(epw_release(g.of[0], dispatch_on(g.of[0], FIRST_STREAM, 1)));
    CHECK_MSG(fake.waits == 2 && fake.records == 6, "another lane: %d waits, %d records", fake.waits,
              fake.records);
    destroy(&g);
}

static void another_stream_waits_for_a_lane(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_handle first = dispatch_on(b, FIRST_STREAM, 0), second = dispatch_on(b, FIRST_STREAM, 1);
    CHECK_OK(epw_stream_wait(b, first, FIRST_STREAM));
    CHECK_MSG(fake.waits == 0, "%d waits on the stream of the call itself", fake.waits);
    CHECK_OK(epw_stream_wait(b, second, SECOND_STREAM));
    CHECK(fake.waits == 1 && fake.waiting == SECOND_STREAM && fake.waited == b->peers.gpu->orders[1].event);
    CHECK_OK(epw_stream_wait(b, first, NULL));
    CHECK(fake.waits == 2 && fake.waiting == NULL && fake.waited == b->peers.gpu->orders[0].event);
    CHECK_OK(epw_release(b, first));
    CHECK_OK(epw_stream_wait(b, first, SECOND_STREAM));
    CHECK_MSG(fake.waits == 3 && fake.waiting == SECOND_STREAM, "consumed: %d waits", fake.waits);
    CHECK(fake.waited == b->peers.gpu->orders[0].event);
    CHECK_MSG(fake.launches == 3 && fake.records == 3, "the lane itself got on: %d records", fake.records);
    /* The other stream waited; the lane's own stream continues without a wait. */
    CHECK_OK(epw_release(b, second));
    CHECK(fake.waits == 3);
    destroy(&g);
    CHECK(fake.depth == 0);
}

static void streams_wait_for_no_other_calls(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    const char *op = "stream_wait";
    REFUSED(epw_stream_wait(NULL, 2, FIRST_STREAM), EPW_ERR_INVALID, op, -1, -1, "buffer is NULL");
    REFUSED(epw_stream_wait(b, 0, FIRST_STREAM), EPW_ERR_INVALID, op, 0, -1, "not a handle");
    REFUSED(epw_stream_wait(b, 2, FIRST_STREAM), EPW_ERR_STATE, op, 0, -1, "not one of this buffer");
    epw_handle old = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_release(b, old));
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    REFUSED(epw_stream_wait(b, old, SECOND_STREAM), EPW_ERR_STATE, op, 0, -1, "moved on");
    CHECK_OK(epw_release(b, handle));
    CHECK_MSG(fake.waits == 0 && fake.depth == 0, "%d waits", fake.waits);
    destroy(&g);

    group host = {.ranks = 1};
    epw_config config = config_of(0, 1);
    CHECK_OK(epw_buffer_create(&config, &host.of[0]));
    REFUSED(epw_stream_wait(host.of[0], 2, FIRST_STREAM), EPW_ERR_STATE, op, 0, -1, "host device");
    destroy(&host);
}

static void streams_join_the_capture_of_a_call(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    const char *op = "stream_wait";
    const epw_stream_order *order = &b->peers.gpu->orders[0];
    fake.captured = 7;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_stream_wait(b, handle, SECOND_STREAM));
    CHECK(fake.waits == 1 && fake.waiting == SECOND_STREAM && fake.waited == order->inside &&
          fake.flags == 0);
    fake.captured = 8;
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, op, 0, -1, "under another capture");
    fake.captured = 0; /* the other stream is in none yet */
    CHECK_OK(epw_stream_wait(b, handle, SECOND_STREAM));
    CHECK(fake.waits == 2 && fake.waited == order->inside);
    REFUSED(epw_stream_wait(b, handle, NULL), EPW_ERR_STATE, op, 0, -1, "legacy default stream");
    fake.unawaited = cudaErrorCapturedEvent;
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, op, 0, -1, "its capture has ended");
    fake.unawaited = cudaErrorInvalidValue; /* as CUDA 13.0 has it */
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, op, 0, -1, "its capture has ended");
    fake.unawaited = cudaErrorLaunchFailure;
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_SYSTEM, op, 0, -1, "cudaStreamWaitEvent");
    fake.unawaited = 0;
    fake.captured = 9;
    fake.recording = cudaErrorMemoryAllocation;
    CHECK_OK(epw_release(b, handle));
    fake.recording = 0;
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, op, 0, -1, "could record no event");
    CHECK(fake.waits == 2 && !order->enqueued);
    fake.captured = 0;
    destroy(&g);
    CHECK(fake.depth == 0);
}

static void a_graph_waits_for_calls_outside_of_it(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    const epw_stream_order *order = &b->peers.gpu->orders[0];
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    fake.captured = 7;
    CHECK_OK(epw_stream_wait(b, handle, SECOND_STREAM));
    CHECK(fake.waits == 1 && fake.waiting == SECOND_STREAM && fake.waited == order->event);
    CHECK(fake.flags == cudaEventWaitExternal);
    fake.captured = 0;
    CHECK_OK(epw_release(b, handle));
    destroy(&g);
    CHECK(fake.depth == 0);
}

/* The kernel is behind its stream alone; who frees what it reads waits for it, whichever stream it is on. */
static void suspects_are_told_behind_what_the_stream_does(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    const char *op = "suspects";
    const epw_peers_gpu *floor = b->peers.gpu;
    int32_t suspects[3];
    REFUSED(epw_buffer_suspects(NULL, suspects, NULL), EPW_ERR_INVALID, op, -1, -1, "buffer is NULL");
    REFUSED(epw_buffer_suspects(b, NULL, NULL), EPW_ERR_INVALID, op, 0, -1, "suspects is NULL");
    REFUSED(epw_buffer_suspects(b, (void *)((char *)suspects + 2), NULL), EPW_ERR_INVALID, op, 0, -1,
            "aligned to 4 bytes");
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 1);
    CHECK_OK(epw_buffer_suspects(b, suspects, FIRST_STREAM));
    CHECK(fake.waits == 0 && fake.records == 2 && fake.launches == 2 && fake.stream == FIRST_STREAM &&
          !floor->looks.enqueued && told_suspects_of == b->gpu->lanes[0].peers);
    CHECK_OK(epw_buffer_suspects(b, suspects, SECOND_STREAM));
    CHECK_MSG(fake.waits == 0 && floor->looks.enqueued, "%d waits for a lane", fake.waits);
    CHECK_OK(epw_buffer_suspects(b, suspects, NULL));
    CHECK(fake.waits == 1 && fake.waiting == NULL && fake.waited == floor->looks.event);
    fake.captured = 1;
    CHECK_OK(epw_buffer_suspects(b, suspects, SECOND_STREAM));
    CHECK(fake.waits == 1 && fake.records == 4 && fake.launches == 5);
    fake.captured = 0;
    fake.failing = cudaErrorLaunchOutOfResources;
    REFUSED(epw_buffer_suspects(b, suspects, FIRST_STREAM), EPW_ERR_SYSTEM, op, 0, -1, "tells suspects");
    fake.failing = 0;
    CHECK_OK(epw_release(b, handle));

    epw_mask all = first_ranks(2);
    fake.recording = cudaErrorMemoryAllocation;
    CHECK_OK(epw_buffer_suspects(b, suspects, SECOND_STREAM));
    fake.recording = 0;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_STATE, "set_active", 0, -1, "no event behind");
    REFUSED(epw_buffer_suspects(b, suspects, NULL), EPW_ERR_STATE, op, 0, -1, "same stream");
    CHECK_OK(epw_buffer_suspects(b, suspects, SECOND_STREAM));
    fake.done = 0;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_TIMEOUT, "set_active", 0, -1, "enqueued before");
    fake.done = 1;
    destroy(&g);
    CHECK(fake.depth == 0);

    group host = {.ranks = 1};
    epw_config config = config_of(0, 1);
    CHECK_OK(epw_buffer_create(&config, &host.of[0]));
    REFUSED(epw_buffer_suspects(host.of[0], suspects, NULL), EPW_ERR_STATE, op, 0, -1, "host device");
    destroy(&host);
}

/* The dispatch is in one graph and the combine in another; the handle is kept in between. */
static void a_handle_spans_two_captures(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_combine_output combined = EPW_COMBINE_OUTPUT_INIT;
    fake.captured = 1;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    fake.captured = 0;
    epw_handle beside = dispatch_on(b, FIRST_STREAM, 1);
    CHECK_OK(epw_release(b, beside));
    fake.captured = 1;
    answer.expert_out = combined.out = rows;
    answer.stream = SECOND_STREAM;
    CHECK_OK(epw_combine(b, handle, &answer, &combined, NULL));
    CHECK(fake.stream == SECOND_STREAM && kernels.combine.lane.peers == b->gpu->lanes[0].peers);
    CHECK_MSG(fake.launches == 4 && fake.records == 2 && fake.waits == 0, "%d records", fake.records);
    CHECK(b->lanes[0].machine.stage == EPW_STAGE_FREE);
    destroy(&g);
}

static void captures_neither_wait_nor_record(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_dispatch_input in = input_on(SECOND_STREAM, 0);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_release(b, handle));
    fake.captured = 1;
    in.deadline_ns = 30 * MS;
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_INVALID, "dispatch", 0, -1, "under capture");
    handle = dispatch_on(b, SECOND_STREAM, 0);
    CHECK(fake.waits == 0 && fake.records == 2);
    REFUSED(epw_outcome_read(b, handle, &outcome), EPW_ERR_STATE, "outcome_read", 0, -1, "captured");
    REFUSED(epw_await(b, handle, MS), EPW_ERR_STATE, "await", 0, -1, "captured");
    CHECK_OK(epw_release(b, handle));
    fake.captured = 0;
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 0)));
    CHECK(fake.waits == 0 && fake.records == 4);
    destroy(&g);
}

static void calls_that_must_not_be_captured_are_refused(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    const char *why = "graphs outlive the buffer";
    epw_dispatch_input in = input_on(FIRST_STREAM, 1);
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    int32_t suspects[2];
    uint32_t epoch;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0), other;
    answer.expert_out = rows;
    answer.stream = FIRST_STREAM;
    fake.captured = 1;
    CHECK(epw_refuse_captures(why) == NULL);
    REFUSED(epw_dispatch(b, &in, NULL, &other, NULL), EPW_ERR_STATE, "dispatch", 0, -1, why);
    REFUSED(epw_combine(b, handle, &answer, NULL, NULL), EPW_ERR_STATE, "combine", 0, -1, why);
    REFUSED(epw_release_on(b, handle, SECOND_STREAM), EPW_ERR_STATE, "release", 0, -1, why);
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, "stream_wait", 0, -1, why);
    REFUSED(epw_checkpoint(b, 0, FIRST_STREAM, &epoch), EPW_ERR_STATE, "checkpoint", 0, -1, why);
    REFUSED(epw_buffer_suspects(b, suspects, FIRST_STREAM), EPW_ERR_STATE, "suspects", 0, -1, why);
    CHECK(fake.launches == 1 && fake.waits == 0 && fake.depth == 0);
    CHECK_OK(epw_release_on(b, handle, NULL)); /* the legacy default stream is never captured */
    CHECK(fake.launches == 2 && fake.stream == NULL);
    fake.captured = 0;
    handle = dispatch_on(b, FIRST_STREAM, 0);
    fake.captured = 1;
    CHECK_OK(epw_release(b, handle));
    CHECK_MSG(fake.launches == 3 && kernels.quiet_releases == 0, "%d launches", fake.launches);
    fake.captured = 0;
    handle = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_MSG(fake.launches == 5 && kernels.quiet_releases == 1, "%d launches", fake.launches);
    fake.captured = 1;
    CHECK(epw_refuse_captures(NULL) == why);
    CHECK_OK(epw_release(b, handle));
    CHECK(fake.launches == 6);
    fake.captured = 0;
    destroy(&g);
    CHECK(fake.depth == 0);
}

/* A handle is given up even if nothing can be enqueued, and the lane's next dispatch first enqueues the
 * release: the handle's work may have run, in an earlier graph or outside one. */
static void a_release_under_an_invalidated_capture_is_owed(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask all = first_ranks(2);
    epw_handle eager = dispatch_on(b, FIRST_STREAM, 1);
    fake.captured = 1;
    epw_handle handle = dispatch_on(b, SECOND_STREAM, 0);
    fake.invalidated = 1;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    answer.expert_out = rows;
    answer.stream = SECOND_STREAM;
    REFUSED(epw_combine(b, handle, &answer, NULL, NULL), EPW_ERR_STATE, "combine", 0, -1, "invalidated");
    CHECK_OK(epw_release(b, handle));
    CHECK_OK(epw_release(b, eager));
    CHECK_MSG(b->lanes[0].machine.stage == EPW_STAGE_FREE && b->lanes[1].machine.stage == EPW_STAGE_FREE &&
                  fake.launches == 2,
              "%d launches", fake.launches);
    epw_dispatch_input in = input_on(SECOND_STREAM, 0);
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_STATE, "dispatch", 0, -1, "invalidated");
    fake.invalidated = 0;
    CHECK_OK(epw_dispatch(b, &in, NULL, &handle, NULL)); /* of a graph that may never be launched */
    CHECK_MSG(fake.launches == 4 && kernels.quiet_releases == 1, "%d launches", fake.launches);
    epw_dispatch_output out = output_on(SECOND_STREAM);
    CHECK_OK(epw_dispatch_receive(b, handle, &out, NULL));
    CHECK_MSG(fake.launches == 5 && kernels.quiet_releases == 1, "%d launches", fake.launches);
    CHECK_OK(epw_release(b, handle));
    CHECK_MSG(fake.launches == 6 && kernels.quiet_releases == 1, "%d launches", fake.launches);
    fake.captured = fake.launches = kernels.quiet_releases = 0;
    handle = dispatch_on(b, SECOND_STREAM, 0);
    CHECK_MSG(fake.launches == 2 && kernels.quiet_releases == 1, "%d launches", fake.launches);
    CHECK_OK(epw_release(b, handle));
    CHECK_OK(epw_release(b, dispatch_on(b, SECOND_STREAM, 0)));
    CHECK_MSG(fake.launches == 5 && kernels.quiet_releases == 1, "owed once: %d launches", fake.launches);
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0)); /* frees the other lane */
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 1)));
    CHECK(kernels.quiet_releases == 1);
    destroy(&g);
    CHECK(fake.depth == 0);
}

/* The release runs, so the lane's next work must follow it: a stream other than the release's waits, or the
 * call is refused if there is no event to wait for. */
static void an_owed_release_stands_though_the_dispatch_behind_it_fails(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_dispatch_input in = input_on(SECOND_STREAM, 0);
    for (int unmarked = 0; unmarked < 2; unmarked++) {
        fake.captured = 1;
        epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
        fake.invalidated = 1;
        CHECK_OK(epw_release(b, handle));
        fake.captured = fake.invalidated = 0;
        fake.launches = fake.records = kernels.quiet_releases = 0;
        kernels.undispatched = cudaErrorLaunchFailure;
        if (unmarked) fake.recording = cudaErrorMemoryAllocation;
        REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_SYSTEM, "dispatch", 0, -1,
                "dispatch kernel: CUDA");
        kernels.undispatched = fake.recording = 0;
        CHECK_MSG(fake.launches == 1 && kernels.quiet_releases == 1, "%d launches", fake.launches);
        CHECK_MSG(fake.records == !unmarked, "%d records", fake.records);
        if (!unmarked) {
            fake.waits = 0;
            handle = dispatch_on(b, FIRST_STREAM, 0);
            CHECK_MSG(fake.waits == 1 && fake.waiting == FIRST_STREAM, "%d waits", fake.waits);
        } else {
            in.stream = FIRST_STREAM;
            REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_STATE, "dispatch", 0, -1,
                    "same stream");
            handle = dispatch_on(b, SECOND_STREAM, 0);
        }
        CHECK_MSG(fake.launches == 2 && kernels.quiet_releases == 1, "owed once: %d launches", fake.launches);
        CHECK_OK(epw_release(b, handle));
    }
    destroy(&g);
    CHECK(fake.depth == 0);
}

static void a_failed_launch_changes_nothing(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_handle handle = 0;
    fake.failing = cudaErrorLaunchFailure;
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_SYSTEM, "dispatch", 0, -1,
            "dispatch kernel: CUDA");
    CHECK(handle == 0);
    fake.failing = 0;
    handle = dispatch_on(b, FIRST_STREAM, 0);
    fake.failing = cudaErrorLaunchFailure;
    REFUSED(epw_release_on(b, handle, FIRST_STREAM), EPW_ERR_SYSTEM, "release", 0, -1,
            "release kernel: CUDA");
    /* Whoever drops the handle has no way to try again, so the release is owed. */
    CHECK_OK(epw_release(b, handle));
    fake.failing = 0;
    CHECK(b->lanes[0].machine.stage == EPW_STAGE_FREE && kernels.quiet_releases == 0);
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 0)));
    CHECK(kernels.quiet_releases == 1);
    destroy(&g);
    CHECK(fake.depth == 0);
}

/* The kernel was launched and runs, so the call succeeds; only its own stream is known to follow it. */
static void a_call_whose_event_fails_stands(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask all = first_ranks(2);
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_combine_input answer = EPW_COMBINE_INPUT_INIT;
    epw_handle first = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_release(b, first));
    fake.recording = cudaErrorMemoryAllocation;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    fake.recording = 0;
    CHECK_MSG(handle != 0 && fake.launches == 3, "%d launches", fake.launches);
    REFUSED(epw_await(b, handle, 0), EPW_ERR_STATE, "await", 0, -1, "no event behind");
    REFUSED(epw_outcome_read(b, handle, &outcome), EPW_ERR_STATE, "outcome_read", 0, -1, "no event behind");
    REFUSED(epw_stream_wait(b, handle, SECOND_STREAM), EPW_ERR_STATE, "stream_wait", 0, -1, "same stream");
    answer.expert_out = rows;
    answer.stream = SECOND_STREAM;
    REFUSED(epw_combine(b, handle, &answer, NULL, NULL), EPW_ERR_STATE, "combine", 0, -1, "same stream");
    CHECK_MSG(fake.launches == 3 && fake.waits == 0, "%d launches", fake.launches);
    answer.stream = FIRST_STREAM;
    CHECK_OK(epw_combine(b, handle, &answer, NULL, NULL));
    CHECK_OK(epw_await(b, handle, 0));
    CHECK_OK(epw_release_on(b, handle, SECOND_STREAM));
    CHECK_MSG(fake.waits == 1, "%d waits", fake.waits);

    fake.recording = cudaErrorMemoryAllocation;
    CHECK_OK(epw_release(b, dispatch_on(b, SECOND_STREAM, 1)));
    fake.recording = 0;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_STATE, "set_active", 0, -1, "no event behind");
    CHECK_OK(epw_release(b, dispatch_on(b, SECOND_STREAM, 1)));
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0));
    destroy(&g);
    CHECK(fake.depth == 0);
}

static void outcomes_are_read_when_the_event_is_done(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_handle handle = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_release(b, handle));
    fake.done = 0;
    CHECK(epw_outcome_read(b, handle, &outcome) == EPW_PENDING);
    CHECK(epw_await(b, handle, 2 * MS) == EPW_PENDING);
    fake.done = 1;
    b->gpu->lanes[0].arrays.report->missing.words[0] = 2;
    b->gpu->lanes[0].arrays.report->record.cause = EPW_CAUSE_TIMEOUT;
    CHECK_OK(epw_await(b, handle, 0));
    CHECK_OK(epw_outcome_read(b, handle, &outcome));
    CHECK(outcome.degraded && outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_TIMEOUT);
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 0)));
    REFUSED(epw_outcome_read(b, handle, &outcome), EPW_ERR_STATE, "outcome_read", 0, -1, "moved on");
    destroy(&g);
}

static void waits_are_bounded(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask all = first_ranks(2);
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 0)));
    fake.done = 0;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_TIMEOUT, "set_active", 0, -1, "enqueued before");
    fake.done = fake.hangs = 1;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_TIMEOUT, "set_active", 0, -1, "larger epoch");
    fake.done = 1;
    fake.hangs = 0;
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_handle handle;
    REFUSED(epw_dispatch(b, &in, NULL, &handle, NULL), EPW_ERR_STATE, "dispatch", 0, -1, "no membership");
    REFUSED(epw_buffer_set_active(b, &all, 2, 1), EPW_ERR_INVALID, "set_active", 0, -1, "epoch is 2");
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0)); /* the same again */
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_INVALID, "set_active", 0, -1, "epoch is 2");
    CHECK_OK(epw_buffer_set_active(b, &all, 3, 0));
    CHECK_OK(epw_release(b, dispatch_on(b, FIRST_STREAM, 0)));
    const epw_line *line = (const epw_line *)(epw_peers_own(&g.of[1]->peers) + epw_line_offset(0));
    epw_buffer_destroy(b);
    CHECK(line->lanes[0].dropped == epw_word(3, 0, 0) && line->lanes[1].dropped == epw_word(3, 0, 0));
    epw_buffer_destroy(g.of[1]);
}

static void a_membership_that_fails_keeps_who_was_revoked(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask all = first_ranks(2), gone = {{2}};
    epw_membership now = EPW_MEMBERSHIP_INIT;
    CHECK_OK(epw_buffer_revoke(b, &gone));
    fake.failing = cudaErrorLaunchOutOfResources;
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_SYSTEM, "set_active", 0, -1, "membership kernel");
    fake.failing = 0;
    CHECK_OK(epw_buffer_membership(b, &now));
    CHECK(now.epoch == 1 && now.suspects.bits[0] == gone.bits[0]);
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0));
    CHECK_OK(epw_buffer_membership(b, &now));
    CHECK(now.epoch == 2 && epw_mask_empty(&now.suspects));
    destroy(&g);
}

/* The removal of its entry from the peer table may have run, or may run later: no membership may include the
 * peer. */
static void a_disconnect_that_is_not_seen_done_leaves_the_peer_out(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask all = first_ranks(2);
    b->peers.gpu->pinned->suspects[0].words[0] = 2;
    fake.stalls = 1;
    REFUSED(epw_buffer_disconnect(b, 1), EPW_ERR_TIMEOUT, "disconnect", 0, 1, "has not taken the change");
    fake.stalls = 0;
    fake.done = 1;
    CHECK(epw_buffer_path(b, 1) == EPW_PATH_NONE);
    REFUSED(epw_buffer_set_active(b, &all, 2, 0), EPW_ERR_STATE, "set_active", 0, 1, "connect it first");
    CHECK_OK(epw_buffer_disconnect(b, 1));
    CHECK_OK(connect_to(b, 0, g.of[1], 1));
    CHECK_OK(epw_buffer_set_active(b, &all, 2, 0));
    destroy(&g);
}

/* While a kernel runs: only copies, no kernel, and nothing but the copies is waited for. */
static void who_is_no_member_goes_and_comes_beside_operations(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_mask alone = first_ranks(1), all = first_ranks(2);
    CHECK_OK(epw_buffer_set_active(b, &alone, 2, 0));
    epw_handle held = dispatch_on(b, FIRST_STREAM, 0);
    int launches = fake.launches;
    b->peers.gpu->orders[0].unmarked = true; /* nothing could wait for it */
    for (uint32_t lane = 0; lane < 2; lane++) pthread_mutex_lock(&b->lanes[lane].lock);
    const epw_gpu_peers *peers = b->gpu->lanes[1].peers;
    CHECK_OK(epw_buffer_disconnect(b, 1));
    CHECK(epw_buffer_path(b, 1) == EPW_PATH_NONE && peers->table[EPW_AREA_ROWS][1] == 0);
    CHECK_OK(connect_to(b, 0, g.of[1], 1));
    CHECK(peers->table[EPW_AREA_ANSWERS][1] == (uintptr_t)epw_peers_own(&g.of[1]->peers));
    fake.stalls = 1;
    REFUSED(epw_buffer_disconnect(b, 1), EPW_ERR_TIMEOUT, "disconnect", 0, 1, "has not taken the change");
    fake.stalls = 0;
    fake.done = 1;
    CHECK(epw_buffer_path(b, 1) == EPW_PATH_NONE && b->peers.imports[1] != NULL);
    CHECK_OK(connect_to(b, 0, g.of[1], 1));
    for (uint32_t lane = 0; lane < 2; lane++) pthread_mutex_unlock(&b->lanes[lane].lock);
    CHECK_MSG(fake.launches == launches, "%d kernels", fake.launches - launches);
    b->peers.gpu->orders[0].unmarked = false;
    CHECK_OK(epw_release(b, held));
    CHECK_OK(epw_buffer_set_active(b, &all, 3, 0));
    destroy(&g);
}

/* Whoever keeps what the kernels use has to know: nobody sees whether they have ended. */
static void a_buffer_whose_kernel_may_still_run_is_kept(void) {
    group g = make_gpu_group();
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_handle handle;
    CHECK_OK(epw_dispatch(g.of[0], &in, NULL, &handle, NULL));
    fake.done = 0;
    CHECK(!epw_buffer_try_destroy(g.of[0]));
    fake.done = 1;
    for (uint32_t r = 0; r < 2; r++) CHECK(epw_buffer_try_destroy(g.of[r]));
    CHECK(epw_buffer_try_destroy(NULL) && fake.depth == 0);
}

/* The farewell goes to peers that kernels have not told, among them a revoked one. */
static void a_revoked_peer_is_told_at_the_end(void) {
    group g = make_gpu_group();
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{2}}));
    const epw_line *line = (const epw_line *)(epw_peers_own(&g.of[1]->peers) + epw_line_offset(0));
    epw_buffer_destroy(g.of[0]);
    CHECK(line->lanes[0].dropped == epw_word(1, 0, 0) && line->lanes[1].dropped == epw_word(1, 0, 0));
    epw_buffer_destroy(g.of[1]);
}

static void a_membership_revokes_nobody(void) {
    group g = make_gpu_group();
    CHECK_OK(epw_buffer_revoke(g.of[0], &(epw_mask){{2}}));
    CHECK(membership_of(g.of[0]).suspects.bits[0] == 2);
    activate(&g, 2);
    CHECK(membership_of(g.of[0]).suspects.bits[0] == 0 && g.of[0]->peers.gpu->pinned->revoked.words[0] == 0);
    destroy(&g);
}

static uint32_t verdict_of(epw_buffer *b, uint32_t epoch, uint64_t step) {
    uint32_t verdict = UINT32_MAX;
    CHECK_OK(epw_checkpoint_verdict(b, epoch, step, &verdict));
    return verdict;
}

static void end_step(epw_buffer *b, uint64_t step, void *stream) {
    uint32_t epoch = 0;
    CHECK_OK(epw_checkpoint(b, step, stream, &epoch));
    CHECK(epoch == membership_of(b).epoch && fake.stream == stream && fake.depth == 0);
}

/* After everything enqueued on either lane, and before everything enqueued later. */
static void a_checkpoint_is_between_the_calls_of_all_lanes(void) {
    group g = make_gpu_group();
    epw_buffer *b = g.of[0];
    epw_handle held = dispatch_on(b, FIRST_STREAM, 0);
    CHECK_OK(epw_release(b, dispatch_on(b, SECOND_STREAM, 1)));
    CHECK(fake.waits == 0);
    end_step(b, 4, SECOND_STREAM);
    CHECK_MSG(fake.waits == 1 && fake.waiting == SECOND_STREAM &&
                  fake.waited == b->peers.gpu->orders[0].event,
              "%d waits", fake.waits);
    CHECK_OK(epw_release(b, held)); /* on the handle's own stream, which waits for the checkpoint */
    CHECK_MSG(fake.waits == 2 && fake.waiting == FIRST_STREAM && fake.waited == b->peers.gpu->orders[0].event,
              "%d waits", fake.waits);

    uint32_t epoch = 9;
    fake.captured = 1;
    REFUSED(epw_checkpoint(b, 5, FIRST_STREAM, &epoch), EPW_ERR_STATE, "checkpoint", 0, -1, "under capture");
    fake.captured = 0;
    fake.failing = 1;
    REFUSED(epw_checkpoint(b, 5, FIRST_STREAM, &epoch), EPW_ERR_SYSTEM, "checkpoint", 0, -1, "launch of the");
    fake.failing = 0;
    CHECK(epoch == 9 && fake.depth == 0);
    end_step(b, 5, FIRST_STREAM); /* a refused call has ended no step */
    destroy(&g);
}

/* The release that a given-up handle owes comes before the checkpoint, and faults its step. */
static void a_checkpoint_comes_behind_releases_that_are_owed(void) {
    group g = make_gpu_group();
    epw_handle handle = dispatch_on(g.of[0], FIRST_STREAM, 0);
    fake.invalidated = 1;
    CHECK_OK(epw_release(g.of[0], handle));
    fake.invalidated = 0;
    end_step(g.of[0], 1, FIRST_STREAM);
    CHECK(kernels.quiet_releases == 1 && !g.of[0]->gpu->lanes[0].owes_release);
    destroy(&g);
}

static void verdicts_are_read_from_copies(void) {
    group g = make_gpu_group();
    end_step(g.of[0], 1, FIRST_STREAM);
    CHECK(verdict_of(g.of[0], 1, 1) == EPW_VERDICT_PENDING);
    end_step(g.of[1], 1, FIRST_STREAM);
    CHECK(verdict_of(g.of[0], 1, 1) == EPW_VERDICT_CLEAN && verdict_of(g.of[1], 1, 1) == EPW_VERDICT_CLEAN);

    /* Slow copies: nothing waits for them, and their results are out of date when they end. */
    g.of[1]->gpu->lanes[1].state->faulted = 1;
    end_step(g.of[0], 2, FIRST_STREAM);
    fake.done = 0;
    CHECK(verdict_of(g.of[0], 1, 2) == EPW_VERDICT_PENDING);
    end_step(g.of[1], 2, FIRST_STREAM);
    CHECK(verdict_of(g.of[0], 1, 2) == EPW_VERDICT_PENDING);
    fake.done = 1;
    CHECK(verdict_of(g.of[0], 1, 2) == EPW_VERDICT_FAULTED);

    /* Rank 1 has not ended step 3 when the membership ends. */
    end_step(g.of[0], 3, FIRST_STREAM);
    CHECK_OK(epw_buffer_set_active(g.of[0], &(epw_mask){{3}}, 2, 4));
    CHECK(verdict_of(g.of[0], 1, 3) == EPW_VERDICT_PENDING);
    CHECK_OK(epw_buffer_set_active(g.of[1], &(epw_mask){{3}}, 2, 4));
    CHECK(verdict_of(g.of[0], 1, 3) == EPW_VERDICT_FAULTED);
    CHECK(verdict_of(g.of[1], 1, 2) == EPW_VERDICT_FAULTED && verdict_of(g.of[1], 1, 1) == EPW_VERDICT_CLEAN);
    destroy(&g);
}

/* Neither the old nor the new membership is in effect: the old one's verdicts are not lost. */
static void verdicts_outlive_a_membership_that_does_not_begin(void) {
    group g = make_gpu_group();
    for (uint32_t r = 0; r < 2; r++) end_step(g.of[r], 1, FIRST_STREAM);
    fake.hangs = 1;
    REFUSED(epw_buffer_set_active(g.of[0], &(epw_mask){{3}}, 2, 2), EPW_ERR_TIMEOUT, "set_active", 0, -1,
            "larger epoch");
    fake.hangs = 0;
    fake.done = 1;
    uint32_t epoch = 9;
    REFUSED(epw_checkpoint(g.of[0], 2, FIRST_STREAM, &epoch), EPW_ERR_STATE, "checkpoint", 0, -1,
            "set_active");
    REFUSED(epw_buffer_set_active(g.of[0], &(epw_mask){{3}}, 2, 3), EPW_ERR_INVALID, "set_active", 0, -1,
            "must be in [3, ");
    /* The same again, which hands on what it would have handed on at first; and once more after a refusal. */
    fake.failing = 1;
    REFUSED(epw_buffer_set_active(g.of[1], &(epw_mask){{3}}, 2, 2), EPW_ERR_SYSTEM, "set_active", 1, -1,
            "launch");
    fake.failing = 0;
    for (uint32_t r = 0; r < 2; r++) CHECK_OK(epw_buffer_set_active(g.of[r], &(epw_mask){{3}}, 2, 2));
    CHECK(g.of[0]->verdicts.past[0].last == g.of[1]->verdicts.past[0].last &&
          g.of[0]->verdicts.past[1].last == 0);
    CHECK(verdict_of(g.of[0], 1, 1) == EPW_VERDICT_CLEAN && verdict_of(g.of[1], 1, 1) == EPW_VERDICT_CLEAN);
    destroy(&g);
}

static void records_are_taken_once_and_in_order(void) {
    group g = make_gpu_group();
    epw_gpu_ring *ring = &g.of[0]->gpu->pinned->ring;
    epw_error_record taken[300];
    uint32_t count;
    uint64_t lost, next = 0;
    for (; next < 10; next++) {
        ring->slots[next].record.seen = next;
        ring->slots[next].sequence = next + 1;
    }
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 3, &count, &lost));
    CHECK(count == 3 && lost == 0 && taken[2].seen == 2);
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 300, &count, NULL));
    CHECK(count == 7 && taken[6].seen == 9);
    for (; next < 600; next++) {
        ring->slots[next % EPW_GPU_RECORDS].record.seen = next;
        ring->slots[next % EPW_GPU_RECORDS].sequence = next + 1;
    }
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 300, &count, &lost));
    CHECK_MSG(count == EPW_GPU_RECORDS && lost == 600 - 10 - EPW_GPU_RECORDS, "%u taken", count);
    CHECK(taken[0].seen == 600 - EPW_GPU_RECORDS && taken[EPW_GPU_RECORDS - 1].seen == 599);
    ring->slots[600 % EPW_GPU_RECORDS].sequence = 0; /* it is being written */
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 300, &count, &lost));
    CHECK(count == 0 && lost == 0);
    ring->unrecorded[0] = 5; /* bad ids that found no room in the ring */
    ring->unrecorded[1] = 2;
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 300, &count, &lost));
    CHECK(count == 0 && lost == 7);
    ring->unrecorded[1] = 3;
    CHECK_OK(epw_take_errors(g.of[0], taken, sizeof(epw_error_record), 300, &count, &lost));
    CHECK(count == 0 && lost == 1);
    destroy(&g);
}

int main(void) {
    lanes_hold_the_peer_table();
    entries_are_those_of_their_lane_and_area();
    words_are_copied_both_ways();
    there_are_no_more_blocks_than_rows();
    halves_are_launched_as_called();
    an_operation_has_the_sms_that_it_asks_for(0);
    an_operation_has_the_sms_that_it_asks_for(1); /* and its replays */
    streams_follow_each_other();
    another_stream_waits_for_a_lane();
    streams_wait_for_no_other_calls();
    streams_join_the_capture_of_a_call();
    a_graph_waits_for_calls_outside_of_it();
    suspects_are_told_behind_what_the_stream_does();
    a_handle_spans_two_captures();
    captures_neither_wait_nor_record();
    calls_that_must_not_be_captured_are_refused();
    a_release_under_an_invalidated_capture_is_owed();
    an_owed_release_stands_though_the_dispatch_behind_it_fails();
    a_failed_launch_changes_nothing();
    a_call_whose_event_fails_stands();
    outcomes_are_read_when_the_event_is_done();
    waits_are_bounded();
    a_membership_that_fails_keeps_who_was_revoked();
    a_disconnect_that_is_not_seen_done_leaves_the_peer_out();
    who_is_no_member_goes_and_comes_beside_operations();
    a_buffer_whose_kernel_may_still_run_is_kept();
    a_revoked_peer_is_told_at_the_end();
    a_membership_revokes_nobody();
    records_are_taken_once_and_in_order();
    a_checkpoint_is_between_the_calls_of_all_lanes();
    a_checkpoint_comes_behind_releases_that_are_owed();
    verdicts_are_read_from_copies();
    verdicts_outlive_a_membership_that_does_not_begin();
    return check_result("enqueue");
}
#endif
