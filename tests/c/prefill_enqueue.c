/* What prefill on GPUs enqueues, orders, waits for and refuses, without a GPU: its sources are compiled here
 * with CUDA (fake_cuda.h) and the kernels replaced by records of the calls. tests/gpu/prefill.c compares the
 * kernels themselves with the host. */
#include "needs_cuda.h"

#ifdef EPW_CUDA

#define revoke revoke_of_unistd /* the engine has a static function of this name */
#include <sys/wait.h>
#include <unistd.h>
#undef revoke

#include "fake_cuda.h"
#include "prefills.h"
#include "kernels/prefill/count.h"
#include "kernels/prefill/state.h"
#include "prefill/parts.h"

/* ---- the kernels, as the engine sees them here ---- */

static int fake_prepare(bool queues) {
    CHECK(!queues);
    return 0;
}
static int fake_dispatch(const epw_prefill_dispatch_args *args, uint32_t blocks, void *stream) {
    CHECK((args->call.ticket == 0) == (fake.captured != 0) && args->call.routing.ids != NULL);
    return fake_launch(blocks, stream);
}
static int fake_combine(const epw_prefill_combine_args *args, uint32_t blocks, void *stream) {
    CHECK((args->call.ticket == 0) == (fake.captured != 0) && args->call.routing.ids != NULL);
    return fake_launch(blocks, stream);
}
static int fake_epoch(const epw_prefill_membership_args *args, void *stream) {
    CHECK(args->lane_count == 2);
    return fake_launch(1, stream);
}
static int fake_part(const epw_prefill_part_args *args, void *stream) {
    CHECK(args->lane_count == 2);
    return fake_launch(1, stream);
}
static int fake_prepare_count(void) {
    return 0;
}
static int fake_count(const epw_prefill_count_args *args, void *stream) {
    CHECK(args->ranks == 1 && args->experts > 0 && args->in.topk_idx != NULL && args->bad_ids == NULL);
    return fake_launch(1, stream);
}

#define epw_prefill_gpu_prepare       fake_prepare
#define epw_prefill_gpu_prepare_count fake_prepare_count
#define epw_prefill_gpu_run_count     fake_count
#define epw_prefill_gpu_run_dispatch  fake_dispatch
#define epw_prefill_gpu_run_combine   fake_combine
#define epw_prefill_gpu_run_epoch     fake_epoch
#define epw_prefill_gpu_run_part      fake_part
/* Not renamed, as in fake_cuda.h. */
#include "../../c/prefill/gpu/engine.c"
#include "../../c/prefill/gpu/call.c"
#include "../../c/prefill/gpu/count.c"

/* ---- a rank ---- */

#define FIRST_STREAM  ((void *)0x1000)
#define SECOND_STREAM ((void *)0x2000)

enum { N = 8, WIDTH = 128, K = 2, LOCAL = 4 };

static _Alignas(64) uint16_t x[N * WIDTH];
static int32_t ids[N * K];
static float weights[N * K];

static epw_prefill *make_with(uint32_t sms, uint32_t lanes) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill *p = NULL;
    fake = (struct fake){.done = 1};
    config.ep.ranks = 1;
    config.ep.experts = LOCAL;
    config.ep.topk = K;
    config.ep.max_tokens = N;
    config.ep.hidden = WIDTH;
    config.ep.opaque_bytes = 2 * WIDTH;
    config.ep.lanes = lanes;
    config.ep.sms = sms;
    CHECK_OK(epw_prefill_create(&config, &p));
    epw_pool_destroy(p->pool);
    p->pool = NULL;
    p->config.ep.device = 0;
    p->peers.user = &epw_prefill_gpu_user;
    CHECK_OK(epw_prefill_gpu_open(p, epw_prefill_where(p, "create")));
    return p;
}

static epw_prefill *make_alone(void) {
    epw_prefill *p = make_with(0, 2);
    epw_mask alone = first_ranks(1);
    CHECK_OK(epw_prefill_set_active(p, &alone, 1, 0));
    fake.launches = fake.records = fake.waits = fake.frees = 0;
    return p;
}

static void destroy_alone(epw_prefill *p) {
    epw_prefill_destroy(p);
    CHECK(fake.depth == 0);
}

static epw_routing *make_routing(epw_prefill *p) {
    epw_routing *r = NULL;
    CHECK_OK(epw_routing_create(p, &r));
    return r;
}

static epw_dispatch_input input_on(void *stream, int32_t lane) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = N;
    in.x = x;
    in.topk_idx = ids;
    in.topk_weights = weights;
    in.topk = K;
    in.lane = lane;
    in.stream = stream;
    return in;
}

static epw_status dispatch_by(epw_prefill *p, epw_routing *r, void *stream, int32_t lane, uint32_t sms) {
    epw_dispatch_input in = input_on(stream, lane);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    in.sms = sms;
    out.capacity = N * K;
    return epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL);
}
static epw_status dispatch(epw_prefill *p, epw_routing *r, void *stream, int32_t lane) {
    return dispatch_by(p, r, stream, lane, 0);
}

static epw_status combine(epw_prefill *p, epw_routing *r, void *stream) {
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.expert_out = x;
    in.stream = stream;
    out.out = x;
    return epw_prefill_combine(p, r, &in, &out, NULL);
}

static epw_status received(epw_prefill *p, epw_routing *r) {
    uint64_t rows = 0;
    return epw_prefill_received(p, r, EPW_PACKED, 1, &rows, NULL, NULL);
}

static epw_status count(epw_prefill *p, void *stream) {
    static uint32_t tokens[LOCAL];
    return epw_prefill_enqueue_count(p, ids, EPW_I32, N, K, NULL, tokens, NULL, NULL, stream);
}

/* ---- tests ---- */

static void waits_last_until_the_event_is_done(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    REFUSED(epw_prefill_await(p, 0, 0), EPW_ERR_STATE, "await", 0, -1, "no operation runs");
    REFUSED(epw_prefill_poll(p, r, NULL), EPW_ERR_STATE, "poll", 0, -1, "no operation runs");
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.done = 0;
    CHECK(epw_prefill_poll(p, r, NULL) == EPW_PENDING && received(p, r) == EPW_PENDING);
    CHECK_OK(epw_prefill_await(p, 0, 2 * MS)); /* the time is over */
    fake.done = 1;
    CHECK_OK(epw_prefill_await(p, 0, 0));
    CHECK_OK(epw_prefill_poll(p, r, NULL));
    CHECK_OK(received(p, r));
    epw_routing_free(r);
    destroy_alone(p);
}

static void an_operation_has_the_sms_that_it_asks_for(int captured) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_prefill_combine_input in = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output out = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    uint32_t share = p->gpu->blocks;
    fake.captured = captured;
    CHECK(share > 3);
    CHECK_OK(dispatch_by(p, r, FIRST_STREAM, 0, 3));
    CHECK(fake.blocks == 3);
    CHECK_OK(dispatch_by(p, r, FIRST_STREAM, 0, share + 1));
    CHECK(fake.blocks == share);
    in.expert_out = x;
    in.stream = FIRST_STREAM;
    out.out = x;
    in.sms = 2;
    CHECK_OK(epw_prefill_combine(p, r, &in, NULL, NULL));
    CHECK(fake.blocks == 2);
    out.stream = FIRST_STREAM;
    CHECK_OK(epw_prefill_collect(p, r, &out, NULL));
    CHECK(fake.blocks == 2);
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    CHECK(fake.blocks == share);
    fake.captured = 0;
    epw_routing_free(r);
    destroy_alone(p);
}

/* The plan has the device memory of as many blocks as the buffer may have, whatever a GPU has free. */
static void what_is_allocated_was_planned(void) {
    static const uint32_t sms[] = {0, 2, 3, 16, 33, 40};
    for (uint32_t i = 0; i < sizeof sms / sizeof sms[0]; i++) {
        for (uint32_t lanes = 1; lanes <= 2; lanes++) {
            epw_prefill *p = make_with(sms[i], lanes);
            epw_prefill_sizes planned;
            epw_prefill_gpu_plan(&p->config, &p->layout, &planned);
            uint64_t of_a_block = lanes * (LOCAL + 2) * sizeof(uint32_t);
            CHECK(p->gpu->blocks > 0 && fake.allocated > p->gpu->blocks * of_a_block);
            CHECK_MSG(planned.private_bytes >= fake.allocated, "%u SMs, %u lanes: %llu bytes, not %llu",
                      sms[i], lanes, (unsigned long long)planned.private_bytes,
                      (unsigned long long)fake.allocated);
            CHECK(sms[i] == 0 || sms[i] % lanes != 0 || planned.private_bytes == fake.allocated);
            destroy_alone(p);
        }
    }
}

/* The kernel was launched and runs, so the call succeeds; only its own stream is known to follow it. */
static void a_call_whose_events_fail_stands(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    fake.recording = cudaErrorMemoryAllocation;
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.recording = 0;
    REFUSED(epw_prefill_await(p, 0, 0), EPW_ERR_STATE, "await", 0, -1, "no event behind the lane's");
    REFUSED(epw_prefill_poll(p, r, NULL), EPW_ERR_STATE, "poll", 0, -1, "no event behind the routing's");
    REFUSED(received(p, r), EPW_ERR_STATE, "received", 0, -1, "no event behind the routing's");
    REFUSED(combine(p, r, SECOND_STREAM), EPW_ERR_STATE, "combine", 0, -1, "same stream");
    CHECK_MSG(fake.launches == 1 && fake.waits == 0, "%d launches", fake.launches);
    CHECK_OK(combine(p, r, FIRST_STREAM));
    CHECK_OK(epw_prefill_await(p, 0, 0));
    CHECK_OK(epw_prefill_poll(p, r, NULL));
    CHECK_OK(received(p, r));
    epw_routing_free(r);
    destroy_alone(p);
}

/* A later call on the lane says nothing about the routing of an earlier one. */
static void a_routing_whose_event_fails_has_no_end(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p), *other = make_routing(p);
    fake.recording = cudaErrorMemoryAllocation;
    fake.spared = 1; /* the lane's */
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.recording = 0;
    CHECK_OK(epw_prefill_await(p, 0, 0));
    CHECK_OK(dispatch(p, other, SECOND_STREAM, 0));
    CHECK_OK(epw_prefill_poll(p, other, NULL));
    REFUSED(epw_prefill_poll(p, r, NULL), EPW_ERR_STATE, "poll", 0, -1, "no event behind the routing's");
    REFUSED(dispatch(p, r, SECOND_STREAM, 1), EPW_ERR_STATE, "dispatch", 0, -1,
            "no event behind the routing's");
    fake.frees = 0;
    epw_routing_free(r);
    r = make_routing(p);
    CHECK_MSG(fake.frees == 0, "%d frees: its kernel may still run", fake.frees);
    epw_routing_free(r);
    epw_routing_free(other);
    destroy_alone(p);
}

/* If a lane has no event, no other stream can be ordered after the half, not even to give it up. */
static void a_half_that_cannot_be_given_up_leaves_its_lane_useless(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    fake.recording = cudaErrorMemoryAllocation;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, NULL, NULL));
    fake.recording = 0;
    epw_routing_free(r);
    r = make_routing(p);
    REFUSED(dispatch(p, r, FIRST_STREAM, 0), EPW_ERR_STATE, "dispatch", 0, -1,
            "lane 0 has half an operation that could not be given up");
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 1));
    epw_routing_free(r);
    /* Otherwise the memory is kept, because nobody sees the end of the half. */
    epw_lane_order(&p->peers, 0)->unmarked = false;
    destroy_alone(p);
}

/* The caller orders replays; the library orders eager calls. */
static void a_routing_is_behind_its_eager_work_on_another_lane(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.captured = 1;
    CHECK_OK(combine(p, r, FIRST_STREAM));
    fake.captured = 0;
    REFUSED(epw_prefill_poll(p, r, NULL), EPW_ERR_STATE, "poll", 0, -1, "captured");
    CHECK_MSG(fake.waits == 0 && fake.records == 2, "%d waits, %d records", fake.waits, fake.records);
    CHECK_OK(dispatch(p, r, SECOND_STREAM, 1));
    CHECK_MSG(fake.waits == 1 && fake.waiting == SECOND_STREAM && fake.waited == r->gpu->order.event,
              "%d waits", fake.waits);
    epw_routing_free(r);
    destroy_alone(p);
}

/* A replay of a graph with one half would be half an operation. A half that is refused is still due. */
static void both_halves_are_in_the_same_graph_or_in_none(void) {
    epw_prefill *p = make_alone();
    static const struct {
        int first, second;
        const char *says;
    } splits[] = {{0, 7, "was not captured and this one is captured"},
                  {7, 0, "was captured and this one is not"},
                  {7, 8, "was captured and this one is captured elsewhere"}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        epw_routing *r = make_routing(p);
        epw_dispatch_input in = input_on(FIRST_STREAM, 0);
        epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
        out.capacity = N * K;
        out.stream = FIRST_STREAM;
        fake.captured = splits[i].first;
        CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, NULL, NULL));
        fake.captured = splits[i].second;
        REFUSED(epw_prefill_receive(p, r, &out, NULL), EPW_ERR_STATE, "receive", 0, -1, splits[i].says);
        fake.captured = splits[i].first;
        CHECK_OK(epw_prefill_receive(p, r, &out, NULL));
        fake.captured = 0;
        epw_routing_free(r);
    }
    destroy_alone(p);
}

static void streams_wait_for_the_last_call_of_a_routing(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p), *other = make_routing(p);
    const char *op = "stream_wait";
    REFUSED(epw_prefill_stream_wait(NULL, r, FIRST_STREAM), EPW_ERR_INVALID, op, -1, -1, "prefill is NULL");
    REFUSED(epw_prefill_stream_wait(p, r, FIRST_STREAM), EPW_ERR_STATE, op, 0, -1, "no operation");
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    CHECK_OK(dispatch(p, other, FIRST_STREAM, 0)); /* the lane has gone on */
    CHECK_OK(epw_prefill_stream_wait(p, r, FIRST_STREAM));
    CHECK(fake.waits == 0);
    CHECK_OK(epw_prefill_stream_wait(p, r, SECOND_STREAM));
    CHECK(fake.waits == 1 && fake.waiting == SECOND_STREAM && fake.waited == r->gpu->order.event &&
          fake.flags == 0);
    fake.captured = 1;
    CHECK_OK(epw_prefill_stream_wait(p, r, SECOND_STREAM));
    CHECK(fake.waits == 2 && fake.waited == r->gpu->order.event && fake.flags == cudaEventWaitExternal);
    CHECK_OK(combine(p, r, FIRST_STREAM));
    CHECK_OK(epw_prefill_stream_wait(p, r, SECOND_STREAM));
    CHECK(fake.waits == 3 && fake.waited == r->gpu->order.inside && fake.flags == 0);
    fake.captured = 0;
    epw_routing_free(other);
    epw_routing_free(r);
    destroy_alone(p);
}

/* Freed routings are examined when another one is created. */
static int frees_of_next_routing(epw_prefill *p) {
    fake.frees = 0;
    epw_routing *r = make_routing(p);
    int frees = fake.frees;
    epw_routing_free(r);
    return frees;
}

static void memory_of_a_routing_is_kept_while_its_kernel_may_run(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    epw_routing_free(r);
    fake.done = 0;
    CHECK(frees_of_next_routing(p) == 0);
    fake.done = 1;
    fake.unlocked = &p->gpu->lock; /* cudaFree may wait for kernels */
    CHECK_MSG(frees_of_next_routing(p) == 4, "%d frees: device and pinned memory of two", fake.frees);
    fake.unlocked = NULL;
    destroy_alone(p);
}

/* Its graph contains the addresses, even if the last call was eager. */
static void memory_of_a_captured_routing_is_kept_as_long_as_the_buffer(void) {
    for (int eager_after = 0; eager_after < 2; eager_after++) {
        epw_prefill *p = make_alone();
        epw_routing *r = make_routing(p);
        fake.captured = 1;
        CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
        fake.captured = 0;
        if (eager_after) CHECK_OK(combine(p, r, FIRST_STREAM));
        epw_routing_free(r);
        CHECK_MSG(frees_of_next_routing(p) == 0, "%d frees", fake.frees);
        CHECK_MSG(frees_of_next_routing(p) == 2, "%d frees: those of the one before", fake.frees);
        fake.frees = 0;
        destroy_alone(p);
        CHECK_MSG(fake.frees >= 4, "%d frees", fake.frees);
    }
}

static void calls_that_must_not_be_captured_are_refused(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    const char *why = "graphs outlive the buffer";
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.capacity = N * K;
    out.stream = FIRST_STREAM;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_COUNTS, NULL, NULL));
    fake.captured = 1;
    fake.launches = fake.waits = 0;
    CHECK(epw_refuse_captures(why) == NULL);
    REFUSED(epw_prefill_receive(p, r, &out, NULL), EPW_ERR_STATE, "receive", 0, -1, why);
    REFUSED(epw_prefill_stream_wait(p, r, SECOND_STREAM), EPW_ERR_STATE, "stream_wait", 0, -1, why);
    REFUSED(count(p, SECOND_STREAM), EPW_ERR_STATE, "count", 0, -1, why);
    CHECK(fake.launches == 0 && fake.waits == 0 && fake.depth == 0);
    fake.captured = 0;
    CHECK_OK(epw_prefill_receive(p, r, &out, NULL));
    CHECK(epw_refuse_captures(NULL) == why);
    epw_routing_free(r);
    destroy_alone(p);
}

/* The memory where counts go still has those of an earlier dispatch. */
static void captured_counts_are_not_known(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    out.capacity = N * K;
    out.stream = FIRST_STREAM;
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    CHECK_OK(received(p, r));
    fake.captured = 1;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_COUNTS, NULL, NULL));
    REFUSED(received(p, r), EPW_ERR_STATE, "received", 0, -1, "the counts were captured");
    CHECK_OK(epw_prefill_receive(p, r, &out, NULL));
    fake.captured = 0;
    CHECK_OK(received(p, r)); /* of the last replay */
    epw_routing_free(r);
    destroy_alone(p);
}

/* Kernels would access it all the same, which ends the CUDA context. */
static void misaligned_scales_are_refused(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    static _Alignas(16) unsigned char scales[N * 32];
    in.payload = EPW_PAYLOAD_OPAQUE;
    in.opaque_row_bytes = WIDTH;
    in.scale_count = 2;
    in.scale_bytes = 4;
    in.scales = scales;
    in.scale_row_stride = 8;
    in.scale_col_stride = 4;
    out.capacity = N * K;
    out.scales = scales;
    out.stream = FIRST_STREAM;
#define WRONG(field, value, words)                                                                           \
    do {                                                                                                     \
        epw_dispatch_input bad = in;                                                                         \
        bad.field = (value);                                                                                 \
        REFUSED(epw_prefill_dispatch(p, r, &bad, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL),                 \
                EPW_ERR_INVALID, "dispatch", 0, -1, words);                                                  \
        bad.tokens = 0; /* then nothing is read */                                                           \
        CHECK_OK(epw_prefill_dispatch(p, r, &bad, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));               \
    } while (0)
    WRONG(scales, scales + 2, "scales must be aligned to 4 bytes");
    WRONG(scale_row_stride, 10, "scale_row_stride is 10 and scale_col_stride 4 bytes, must be multiples of");
    WRONG(scale_col_stride, 6, "scale_row_stride is 8 and scale_col_stride 6 bytes, must be multiples of");
    WRONG(x, (char *)x + 2, "x must be aligned to 16 bytes");
    WRONG(x_stride, WIDTH + 8, "x_stride is 136 bytes, must be a multiple of 16");
#undef WRONG
    epw_prefill_output bad = out;
    bad.scales = scales + 2;
    const char *words = "output.scales must be aligned to 4 bytes";
    REFUSED(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &bad, NULL), EPW_ERR_INVALID,
            "dispatch", 0, -1, words);
    static const uint32_t halves[] = {EPW_HALF_SENDS, EPW_HALF_COUNTS};
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, halves[i], NULL, NULL));
        REFUSED(epw_prefill_receive(p, r, &bad, NULL), EPW_ERR_INVALID, "receive", 0, -1, words);
        CHECK_OK(epw_prefill_receive(p, r, &out, NULL));
    }
    in.scale_bytes = 1; /* bytes are aligned everywhere */
    in.scales = scales + 1;
    in.scale_row_stride = 3;
    in.scale_col_stride = 1;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &bad, NULL));
    in = input_on(FIRST_STREAM, 0);
    in.payload = EPW_PAYLOAD_FP8_UE8M0; /* four of which are packed into a word */
    REFUSED(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &bad, NULL), EPW_ERR_INVALID,
            "dispatch", 0, -1, words);
    epw_routing_free(r);
    destroy_alone(p);
}

/* Without places nothing is read or written there, so it may be NULL, or the address of an empty array. */
static void memory_of_no_rows_is_not_looked_at(void) {
    char *const empty = (char *)x + 2;
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_prefill_combine_input made = EPW_PREFILL_COMBINE_INPUT_INIT;
    epw_prefill_combine_output sums = EPW_PREFILL_COMBINE_OUTPUT_INIT;
    in.tokens = 0;
    in.x = empty;
    out.rows = out.scales = empty;
    made.stream = FIRST_STREAM;
    made.bias[0] = made.bias[1] = sums.out = empty;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));
    CHECK_OK(epw_prefill_combine(p, r, &made, &sums, NULL));
    made.expert_out = empty;
    CHECK_OK(epw_prefill_combine(p, r, &made, &sums, NULL));
    out.capacity = 1;
    REFUSED(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL), EPW_ERR_INVALID,
            "dispatch", 0, -1, "output.rows must be aligned to 16 bytes");
    out.rows = x;
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));
    REFUSED(epw_prefill_combine(p, r, &made, &sums, NULL), EPW_ERR_INVALID, "combine", 0, -1,
            "expert_out must be aligned to 16 bytes");
    made.expert_out = NULL;
    REFUSED(epw_prefill_combine(p, r, &made, &sums, NULL), EPW_ERR_INVALID, "combine", 0, -1,
            "expert_out is NULL");
    epw_routing_free(r);
    destroy_alone(p);
}

/* Threads of the parent may hold these locks when the child is made. */
static void a_child_frees_routings_of_operations_under_way(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    epw_dispatch_input in = input_on(FIRST_STREAM, 0);
    CHECK_OK(epw_prefill_dispatch(p, r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, NULL, NULL));
    pthread_mutex_lock(&p->gpu->lock);
    pthread_mutex_lock(&p->lanes[0].lock);
    int launches = fake.launches, status = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        int cancelled = epw_prefill_cancel(p, r);
        epw_routing_free(r);
        epw_prefill_destroy(p);
        _exit(cancelled != EPW_ERR_STATE || fake.launches != launches || fake.frees != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_mutex_unlock(&p->lanes[0].lock);
    pthread_mutex_unlock(&p->gpu->lock);
    epw_routing_free(r);
    destroy_alone(p);
}

/* It is behind nothing, and nothing is behind it: no event, though other streams have work of the lanes. */
static void a_count_has_no_place_among_the_operations_of_a_lane(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.launches = fake.records = fake.waits = 0;
    CHECK_OK(count(p, SECOND_STREAM));
    CHECK(fake.launches == 1 && fake.stream == SECOND_STREAM && fake.records == 0 && fake.waits == 0);
    CHECK_OK(combine(p, r, FIRST_STREAM));
    CHECK(fake.launches == 2 && fake.waits == 0);
    fake.captured = 1;
    CHECK_OK(count(p, SECOND_STREAM));
    fake.captured = 0;
    fake.invalidated = 1;
    REFUSED(count(p, SECOND_STREAM), EPW_ERR_STATE, "count", 0, -1, "capture");
    fake.invalidated = 0;
    fake.failing = cudaErrorLaunchOutOfResources;
    CHECK(count(p, SECOND_STREAM) == EPW_ERR_SYSTEM);
    fake.failing = 0;
    CHECK(fake.depth == 0);
    epw_routing_free(r);
    destroy_alone(p);
}

/* Whoever keeps what the kernels use has to know: nobody sees whether they have ended. */
static void a_buffer_whose_kernel_may_still_run_is_kept(void) {
    epw_prefill *p = make_alone();
    epw_routing *r = make_routing(p);
    p->config.ep.deadline_ns = MS;
    CHECK_OK(dispatch(p, r, FIRST_STREAM, 0));
    fake.done = 0;
    CHECK(!epw_prefill_try_destroy(p));
    fake.done = 1;
    epw_routing_free(r);
    CHECK(epw_prefill_try_destroy(p));
    CHECK(epw_prefill_try_destroy(NULL) && fake.depth == 0);
}

/* That the ring's reader does what it should is seen in enqueue.c. */
static void records_are_taken_from_the_ring_of_the_kernels(void) {
    epw_prefill *p = make_alone();
    epw_gpu_ring *ring = &p->gpu->pinned->ring;
    epw_error_record taken[4];
    uint32_t count;
    uint64_t lost;
    for (uint64_t n = 0; n < 2; n++) {
        ring->slots[n].record = (epw_error_record){.cause = EPW_CAUSE_ROUTING, .seen = n};
        ring->slots[n].sequence = n + 1;
    }
    ring->unrecorded[1] = 3;
    CHECK_OK(epw_prefill_take_errors(p, taken, sizeof taken[0], 4, &count, &lost));
    CHECK(count == 2 && lost == 3 && taken[0].seen == 0 && taken[1].seen == 1);
    CHECK_OK(epw_prefill_take_errors(p, taken, sizeof taken[0], 4, &count, &lost));
    CHECK(count == 0 && lost == 0);
    REFUSED(epw_prefill_take_errors(p, taken, sizeof taken[0] - 8, 4, &count, &lost), EPW_ERR_INVALID,
            "take_errors", 0, -1, "record_size is 56, this library's is 64");
    REFUSED(epw_prefill_take_errors(p, NULL, sizeof taken[0], 4, &count, &lost), EPW_ERR_INVALID,
            "take_errors", 0, -1, "records is NULL");
    REFUSED(epw_prefill_take_errors(NULL, taken, sizeof taken[0], 4, &count, &lost), EPW_ERR_INVALID,
            "take_errors", -1, -1, "prefill is NULL");
    destroy_alone(p);
}

int main(void) {
    waits_last_until_the_event_is_done();
    an_operation_has_the_sms_that_it_asks_for(0);
    an_operation_has_the_sms_that_it_asks_for(1); /* and its replays */
    what_is_allocated_was_planned();
    a_call_whose_events_fail_stands();
    a_routing_whose_event_fails_has_no_end();
    a_half_that_cannot_be_given_up_leaves_its_lane_useless();
    a_routing_is_behind_its_eager_work_on_another_lane();
    streams_wait_for_the_last_call_of_a_routing();
    memory_of_a_routing_is_kept_while_its_kernel_may_run();
    memory_of_a_captured_routing_is_kept_as_long_as_the_buffer();
    both_halves_are_in_the_same_graph_or_in_none();
    calls_that_must_not_be_captured_are_refused();
    captured_counts_are_not_known();
    misaligned_scales_are_refused();
    memory_of_no_rows_is_not_looked_at();
    a_child_frees_routings_of_operations_under_way();
    a_count_has_no_place_among_the_operations_of_a_lane();
    a_buffer_whose_kernel_may_still_run_is_kept();
    records_are_taken_from_the_ring_of_the_kernels();
    return check_result("prefill_enqueue");
}
#endif
