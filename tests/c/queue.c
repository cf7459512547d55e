/* Send queues: entries byte by byte, and many posters against a NIC that reads nothing but bytes. */
#include "check.h"

#include "base/clock.h"
#include "nic/queue.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
#define HAS_MLX5DV 1
#else
#define HAS_MLX5DV 0
#endif

#define MS UINT64_C(1000000)

/* ---- bytes ---- */

enum { PAIR = 0x1234, INDEX = 0x7abcd }; /* of INDEX, 16 bits are sent */

static epw_place_of remote(void) {
    return (epw_place_of){UINT64_C(0x1122334455667788), epw_key_of(0xcafebabe)};
}
static epw_place_of local(void) {
    return (epw_place_of){UINT64_C(0x99aabbccddeeff00), epw_key_of(0xdeadbeef)};
}

static void check_bytes(int line, const epw_entry_block *entry, const char *hex) {
    unsigned char wanted[EPW_ENTRY_BYTES] = {0};
    size_t n = 0;
    for (const char *at = hex; *at != '\0'; at++) {
        if (*at == ' ') continue;
        unsigned byte = 0;
        CHECK(sscanf(at, "%2x", &byte) == 1);
        wanted[n++] = (unsigned char)byte;
        at++;
    }
    const unsigned char *got = (const unsigned char *)entry;
    for (size_t i = 0; i < EPW_ENTRY_BYTES; i++)
        CHECK_MSG(got[i] == wanted[i], "line %d: byte %zu is %02x, wanted %02x", line, i, got[i], wanted[i]);
}
#define CHECK_BYTES(entry, hex) check_bytes(__LINE__, entry, hex)

/* Written by hand after the adapter's manual and, where they are installed, with the inline functions of
 * mlx5dv. */
static void entries_have_these_bytes(void) {
    epw_entry_block e;
    epw_entry_write(&e, PAIR, INDEX, remote(), local(), 4096, EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd08 00123403 00000008 00000000 1122334455667788 cafebabe 00000000"
                    "00001000 deadbeef 99aabbccddeeff00");
    epw_entry_write(&e, PAIR, INDEX, remote(), local(), 0x7fffffff, EPW_SIGNAL_ERRORS);
    CHECK_BYTES(&e, "00abcd08 00123403 00000000 00000000 1122334455667788 cafebabe 00000000"
                    "7fffffff deadbeef 99aabbccddeeff00");
    /* Without bytes there is no segment, because a length of 0 would mean 2^31. */
    epw_entry_write(&e, PAIR, INDEX, remote(), local(), 0, EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd08 00123402 00000008 00000000 1122334455667788 cafebabe 00000000");
    epw_place_of second = {UINT64_C(0x0123456789abcdef), epw_key_of(0x0badf00d)};
    epw_entry_write_both(&e, PAIR, INDEX, remote(), local(), 256, second, 4096, EPW_SIGNAL_ERRORS);
    CHECK_BYTES(&e, "00abcd08 00123404 00000000 00000000 1122334455667788 cafebabe 00000000"
                    "00000100 deadbeef 99aabbccddeeff00 00001000 0badf00d 0123456789abcdef");
    epw_entry_read(&e, PAIR, INDEX, remote(), local(), 0, EPW_SIGNAL_ERRORS);
    CHECK_BYTES(&e, "00abcd10 00123402 00000000 00000000 1122334455667788 cafebabe 00000000");
    uint64_t value;
    memcpy(&value, "\x00\x01\x02\x03\x04\x05\x06\x07", sizeof value);
    epw_entry_write_word(&e, PAIR, INDEX, remote(), value, EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd08 00123403 00000008 00000000 1122334455667788 cafebabe 00000000"
                    "80000008 0001020304050607 00000000");
    epw_entry_read(&e, PAIR, INDEX, remote(), local(), 8, EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd10 00123403 00000008 00000000 1122334455667788 cafebabe 00000000"
                    "00000008 deadbeef 99aabbccddeeff00");
    epw_entry_fetch_add(&e, PAIR, INDEX, remote(), 1, local(), EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd12 00123404 00000008 00000000 1122334455667788 cafebabe 00000000"
                    "0000000000000001 0000000000000000 00000008 deadbeef 99aabbccddeeff00");
    epw_entry_fetch_add(&e, PAIR, INDEX, remote(), UINT64_C(0xfedcba9876543210), local(), EPW_SIGNAL_ERRORS);
    CHECK_BYTES(&e, "00abcd12 00123404 00000000 00000000 1122334455667788 cafebabe 00000000"
                    "fedcba9876543210 0000000000000000 00000008 deadbeef 99aabbccddeeff00");
    epw_entry_nop(&e, PAIR, INDEX, EPW_SIGNAL_ALWAYS);
    CHECK_BYTES(&e, "00abcd00 00123401 00000008 00000000");

    uint32_t record = epw_doorbell_record(UINT64_C(0x7abcd) + 1);
    CHECK(memcmp(&record, "\x00\x00\xab\xce", sizeof record) == 0);
    uint64_t doorbell = epw_doorbell(PAIR, UINT64_C(0x7abcd) + 1);
    CHECK(memcmp(&doorbell, "\x00\xab\xce\x00\x00\x12\x34\x00", sizeof doorbell) == 0);
}

/* An independent builder of the control and data segments. */
static void mlx5dv_builds_the_same(void) {
#if HAS_MLX5DV
    static const struct {
        uint8_t ours, theirs, units;
    } kinds[] = {{EPW_WQE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE, 3},
                 {EPW_WQE_RDMA_READ, MLX5_OPCODE_RDMA_READ, 3},
                 {EPW_WQE_FETCH_ADD, MLX5_OPCODE_ATOMIC_FA, 4},
                 {EPW_WQE_NOP, MLX5_OPCODE_NOP, 1}};
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t pair = (i * 2654435761u) >> 8, bytes = 1 + i * 40503u % 0x7fffffff, lkey = i * 2246822519u;
        uint64_t index = (uint64_t)i * 977, at = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
        bool signals = i & 1;
        uint32_t signal = signals ? EPW_SIGNAL_ALWAYS : EPW_SIGNAL_ERRORS;
        epw_place_of here = {at, epw_key_of(lkey)}, there = {~at, epw_key_of(~lkey)};
        epw_entry_block e;
        switch (i % 4) {
        case 0:
            epw_entry_write(&e, pair, index, there, here, bytes, signal);
            break;
        case 1:
            epw_entry_read(&e, pair, index, there, here, bytes, signal);
            break;
        case 2:
            epw_entry_fetch_add(&e, pair, index, there, at, here, signal);
            bytes = 8;
            break;
        default:
            epw_entry_nop(&e, pair, index, signal);
        }
        struct mlx5_wqe_ctrl_seg control;
        memset(&control, 0, sizeof control);
        mlx5dv_set_ctrl_seg(&control, (uint16_t)index, kinds[i % 4].theirs, 0, pair,
                            signals ? MLX5_WQE_CTRL_CQ_UPDATE : 0, kinds[i % 4].units, 0, 0);
        CHECK(memcmp(&e, &control, sizeof control) == 0);
        if (i % 4 == 3) continue;
        struct mlx5_wqe_raddr_seg address = {htobe64(~at), htobe32(~lkey), 0};
        CHECK(memcmp(e.words + 4, &address, sizeof address) == 0);
        struct mlx5_wqe_data_seg data;
        mlx5dv_set_data_seg(&data, bytes, lkey, at);
        CHECK(memcmp(e.words + (i % 4 == 2 ? 12 : 8), &data, sizeof data) == 0);
        if (i % 4 != 2) continue;
        struct mlx5_wqe_atomic_seg add = {htobe64(at), 0};
        CHECK(memcmp(e.words + 8, &add, sizeof add) == 0);
    }
#else
    printf("NOT CHECKED: entries beside those of mlx5dv, because there is no infiniband/mlx5dv.h\n");
#endif
}

/* ---- a queue and its NIC ---- */

enum { DEPTH_MAX = 64, KINDS = 3 };

/* An adapter's view of a queue, and the behaviour of this one. It knows entries only by their bytes. */
typedef struct rig {
    epw_queue q;
    epw_entry_block entries[DEPTH_MAX];
    uint64_t marks[DEPTH_MAX];
    uint32_t record[2];
    uint64_t doorbell;
    _Alignas(64) uint32_t completion[16];

    pthread_t thread;
    atomic_bool ending, frozen;
    uint64_t fails_at; /* index of an entry; UINT64_MAX: none */
    uint64_t target, executed, doorbells;
    uint64_t *seen; /* how often each value was executed */
    uint64_t values, wrong;
} rig;

static uint32_t big32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void complete(rig *r, uint64_t index, uint8_t syndrome) {
    unsigned char *entry = (unsigned char *)r->completion;
    unsigned char last[4] = {(unsigned char)(index >> 8), (unsigned char)index, 0, syndrome ? 0xd0 : 0x00};
    uint32_t word;
    if (syndrome != 0) {
        unsigned char said[4] = {0, 0, syndrome == EPW_SYNDROME_FLUSHED ? 0 : 0x81, syndrome};
        memcpy(&word, said, sizeof word);
        __atomic_store_n((uint32_t *)(entry + 0x34), word, __ATOMIC_RELAXED);
    }
    memcpy(&word, last, sizeof word);
    __atomic_store_n((uint32_t *)(entry + 0x3c), word, __ATOMIC_RELEASE);
}

/* Each entry is what was posted, at its index, once; then it is overwritten. */
static void execute(rig *r) {
    unsigned char *at = (unsigned char *)&r->entries[r->executed % r->q.depth];
    uint32_t first = big32(at), second = big32(at + 4);
    bool sound = first == ((uint32_t)(r->executed & 0xffff) << 8 | 0x08) && second == (PAIR << 8 | 3);
    uint64_t value = 0;
    memcpy(&value, at + 36, sizeof value);
    if (!sound || value >= r->values || r->seen[value]++ != 0) r->wrong++;
    bool signalled = at[11] == 8;
    memset(at, 0xa5, EPW_ENTRY_BYTES);
    bool failed = r->executed >= r->fails_at;
    if (failed) {
        complete(r, r->executed, r->executed == r->fails_at ? 0x13 : EPW_SYNDROME_FLUSHED);
    } else if (signalled) {
        complete(r, r->executed, 0);
    }
    r->executed++;
}

static void *nic_main(void *argument) {
    rig *r = argument;
    uint64_t doorbell = 0;
    while (!atomic_load(&r->ending)) {
        uint64_t now = __atomic_load_n(&r->doorbell, __ATOMIC_ACQUIRE);
        if (now == doorbell || atomic_load(&r->frozen)) {
            sched_yield();
            continue;
        }
        doorbell = now;
        r->doorbells++;
        uint32_t record = __atomic_load_n(&r->record[1], __ATOMIC_ACQUIRE);
        r->target += (uint16_t)(big32((unsigned char *)&record) - (uint32_t)r->target);
        if (r->target - r->executed > r->q.depth) r->wrong++;
        while (r->executed < r->target) execute(r);
    }
    return NULL;
}

static rig *open_rig(uint32_t depth, uint32_t batch, uint64_t values) {
    rig *r = aligned_alloc(64, sizeof *r);
    memset(r, 0, sizeof *r);
    memset(r->completion, 0xff, sizeof r->completion);
    r->q = (epw_queue){.entries = r->entries,
                       .marks = r->marks,
                       .record = r->record,
                       .doorbell = &r->doorbell,
                       .completions.entry = r->completion,
                       .depth = depth,
                       .pair = PAIR,
                       .batch = batch};
    r->fails_at = UINT64_MAX;
    r->values = values;
    r->seen = calloc(values, sizeof r->seen[0]);
    CHECK(!pthread_create(&r->thread, NULL, nic_main, r));
    return r;
}

static void close_rig(rig *r) {
    atomic_store(&r->ending, true);
    pthread_join(r->thread, NULL);
    CHECK_MSG(r->wrong == 0, "%llu entries that were not as posted", (unsigned long long)r->wrong);
    free(r->seen);
    free(r);
}

static void build(rig *r, uint64_t index, uint64_t value, bool signals) {
    epw_entry_write_word(epw_queue_slot(&r->q, index), PAIR, index, remote(), value,
                         signals ? EPW_SIGNAL_ALWAYS : EPW_SIGNAL_ERRORS);
}

static bool is_late(uint64_t began) {
    return epw_now_ns() - began > 5000 * MS;
}

static bool await_done(rig *r, uint64_t index) {
    for (uint64_t began = epw_now_ns(); !epw_queue_is_done(&r->q, index); sched_yield())
        if (is_late(began)) return false;
    return true;
}

/* ---- many posters ---- */

enum { POSTERS = 4, EACH = 80000 };

typedef struct poster {
    rig *r;
    uint64_t first;
} poster;

static void *post_main(void *argument) {
    poster *p = argument;
    uint64_t index = 0;
    for (uint64_t at = 0; at < EACH;) {
        uint32_t count = 1 + (uint32_t)(at * 7 % 5);
        if (count > EACH - at) count = (uint32_t)(EACH - at);
        bool at_once = at % 3 != 0; /* posters of both kinds meet */
        epw_queue_post post = {.index = 0};
        uint64_t began = epw_now_ns();
        while (!(at_once ? epw_queue_try_begin(&p->r->q, count, p->r->q.depth, &post)
                         : epw_queue_try_reserve(&p->r->q, count, &index))) {
            if (is_late(began)) {
                CHECK_MSG(false, "no room for value %llu", (unsigned long long)(p->first + at));
                return NULL;
            }
            /* The entries for which there is no room may be waiting for a doorbell that others have left
             * out. */
            epw_queue_ring(&p->r->q, true);
            sched_yield();
        }
        if (at_once) index = post.index;
        for (uint32_t i = 0; i < count; i++) {
            build(p->r, index + i, p->first + at + i, i + 1 == count);
            if (at_once && i == 1) epw_queue_finish_part(&p->r->q, &post, index + 2);
        }
        if (at_once) {
            epw_queue_finish(&p->r->q, &post);
        } else {
            epw_queue_publish(&p->r->q, index, count);
            epw_queue_ring(&p->r->q, at % 11 == 0);
        }
        at += count;
    }
    epw_queue_ring(&p->r->q, true);
    CHECK(await_done(p->r, index + 1));
    return NULL;
}

/* More entries than 16 bits of an index count, many laps of the ring, each entry once and in order. */
static void many_post_at_a_time(void) {
    static const struct { uint32_t depth, batch; } cases[] = {{16, 1}, {16, 8}, {64, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig *r = open_rig(cases[i].depth, cases[i].batch, (uint64_t)POSTERS * EACH);
        poster posters[POSTERS];
        pthread_t threads[POSTERS];
        for (uint32_t t = 0; t < POSTERS; t++) {
            posters[t] = (poster){r, (uint64_t)t * EACH};
            CHECK(!pthread_create(&threads[t], NULL, post_main, &posters[t]));
        }
        for (uint32_t t = 0; t < POSTERS; t++) pthread_join(threads[t], NULL);
        CHECK(await_done(r, (uint64_t)POSTERS * EACH));
        epw_queue_fault fault;
        CHECK(!epw_queue_failed(&r->q, &fault));
        close_rig(r);
    }
}

enum { ROUNDS = 20000 };

/* Waits for its own entry, after ringing once, when it had published it. */
static void *ring_once_main(void *argument) {
    poster *p = argument;
    uint64_t index = 0;
    for (uint64_t at = 0; at < ROUNDS; at++) {
        epw_queue_post post;
        if (at % 2 == 0) {
            while (!epw_queue_try_begin(&p->r->q, 1, p->r->q.depth, &post)) sched_yield();
            index = post.index;
            build(p->r, index, p->first + at, true);
            epw_queue_finish(&p->r->q, &post);
        } else {
            while (!epw_queue_try_reserve(&p->r->q, 1, &index)) sched_yield();
            build(p->r, index, p->first + at, true);
            epw_queue_publish(&p->r->q, index, 1);
            epw_queue_ring(&p->r->q, true);
        }
        if (await_done(p->r, index + 1)) continue;
        CHECK_MSG(false, "nobody rang for entry %llu", (unsigned long long)index);
        break;
    }
    return NULL;
}

static void ringing_once_is_enough_whoever_holds_the_bell(void) {
    rig *r = open_rig(64, 64, (uint64_t)POSTERS * ROUNDS);
    poster posters[POSTERS];
    pthread_t threads[POSTERS];
    for (uint32_t t = 0; t < POSTERS; t++) {
        posters[t] = (poster){r, (uint64_t)t * ROUNDS};
        CHECK(!pthread_create(&threads[t], NULL, ring_once_main, &posters[t]));
    }
    for (uint32_t t = 0; t < POSTERS; t++) pthread_join(threads[t], NULL);
    close_rig(r);
}

/* Step by step what the threads above do when they meet. */
static void a_bell_with_requests_is_not_let_go(void) {
    uint64_t word = 0;
    epw_bell holder, other;
    CHECK(epw_bell_take(&word, false, &holder) && holder.rung == 0 && !holder.flush);
    holder.rung = 3;
    CHECK(epw_bell_let_go(&word, 0, &holder));

    CHECK(epw_bell_take(&word, false, &holder) && holder.rung == 3 && !holder.flush);
    CHECK(!epw_bell_take(&word, false, &other)); /* slots were published */
    CHECK(!epw_bell_let_go(&word, 3, &holder) && !holder.flush);
    CHECK(!epw_bell_take(&word, true, &other)); /* and must be rung for */
    holder.rung = 5;
    CHECK(!epw_bell_let_go(&word, 3, &holder) && holder.flush);
    CHECK(!epw_bell_take(&word, true, &other)); /* the same once more */
    holder.flush = false;
    CHECK(!epw_bell_let_go(&word, 5, &holder) && holder.flush);
    /* A flush that could not be done is left to the next holder. */
    CHECK(epw_bell_let_go(&word, 5, &holder));
    CHECK(epw_bell_take(&word, false, &other) && other.rung == 5 && other.flush);
}

static void a_bell_that_is_given_up_is_taken_no_more(void) {
    uint64_t word = 0;
    epw_bell holder, other;
    CHECK(epw_bell_take(&word, false, &holder));
    epw_bell_give_up(&word);
    CHECK(!epw_bell_take(&word, true, &other));
    CHECK(epw_bell_is_given_up(&word));
    holder.rung = 2;
    CHECK(epw_bell_let_go(&word, 0, &holder)); /* without the request of the other thread */
    CHECK(!epw_bell_take(&word, true, &other));
}

/* Other posters published slots after a post that was lost, while somebody held the bell. */
static void nothing_is_rung_for_behind_a_post_that_was_lost(void) {
    rig *r = open_rig(16, 1, 64);
    uint64_t index;
    CHECK(epw_queue_try_reserve(&r->q, 1, &index));
    epw_queue_give_up(&r->q);
    epw_queue_publish(&r->q, index, 1);
    uint64_t before = *r->q.doorbell;
    CHECK(!epw_queue_ring(&r->q, true));
    CHECK(*r->q.doorbell == before && epw_record_is_given_up(r->q.record));
    close_rig(r);
}

/* ---- posting at once ---- */

static epw_queue_post begin(rig *r, uint32_t count) {
    epw_queue_post post = {.index = UINT64_MAX};
    CHECK(epw_queue_try_begin(&r->q, count, r->q.depth, &post) && post.count == count);
    return post;
}

static void a_post_in_its_turn_needs_no_mark_and_no_bell(void) {
    rig *r = open_rig(16, 64, 64);
    epw_bell holder;
    epw_queue_post post = begin(r, 2);
    CHECK(post.next && post.index == 0);
    for (uint64_t i = 0; i < 2; i++) build(r, i, i, true);
    CHECK(epw_queue_finish(&r->q, &post));
    CHECK(await_done(r, 2) && r->marks[0] == 0 && r->marks[1] == 0);
    CHECK(epw_bell_has_reached(&r->q.bell, 2));

    /* Even while another thread holds the bell, which then finds that it has nothing to do. */
    CHECK(epw_bell_take(&r->q.bell, false, &holder) && holder.rung == 2);
    post = begin(r, 1);
    build(r, 2, 2, true);
    CHECK(post.next && epw_queue_finish(&r->q, &post));
    CHECK(await_done(r, 3));
    CHECK(!epw_bell_let_go(&r->q.bell, 2, &holder) && holder.rung == 3 && !holder.flush);
    CHECK(epw_bell_let_go(&r->q.bell, 3, &holder) && epw_bell_has_reached(&r->q.bell, 3));
    close_rig(r);
}

/* The NIC has completed a post, and another poster has taken and marked its slot, before the holder of the
 * bell looks again. */
static void a_slot_taken_again_while_the_bell_is_held_hides_nothing(void) {
    rig *r = open_rig(16, 1, 64);
    epw_bell holder;
    epw_queue_post post = begin(r, 2);
    for (uint64_t i = 0; i < 2; i++) build(r, i, i, true);
    CHECK(post.next && epw_bell_take(&r->q.bell, false, &holder));
    CHECK(epw_queue_finish(&r->q, &post) && await_done(r, 2));
    uint64_t index = 77;
    CHECK(epw_queue_try_reserve(&r->q, 16, &index) && index == 2);
    for (uint64_t i = 2; i < 18; i++) build(r, i, i, true);
    epw_queue_publish(&r->q, 2, 16);
    CHECK(!epw_queue_ring(&r->q, true)); /* the holder's task */
    CHECK(!epw_bell_let_go(&r->q.bell, 0, &holder) && holder.rung == 2 && holder.flush);
    CHECK(epw_bell_let_go(&r->q.bell, 2, &holder));
    CHECK(epw_queue_ring(&r->q, true) && await_done(r, 18));
    close_rig(r);
}

/* Somebody who has let go of the bell wanted all that was posted to be rung for. */
static void a_post_in_its_turn_serves_a_flush_that_was_left(void) {
    rig *r = open_rig(16, 16, 64);
    uint64_t second = 77;
    epw_queue_post first = begin(r, 1);
    CHECK(epw_queue_try_reserve(&r->q, 1, &second) && second == 1);
    CHECK(!epw_queue_ring(&r->q, true));
    build(r, 0, 0, true);
    CHECK(epw_queue_finish(&r->q, &first) && await_done(r, 1));
    build(r, 1, 1, true);
    epw_queue_publish(&r->q, 1, 1);
    CHECK(epw_queue_ring(&r->q, false) && await_done(r, 2));
    close_rig(r);
}

static void posts_out_of_turn_wait_for_those_before_them(void) {
    rig *r = open_rig(16, 1, 64);
    epw_queue_post first = begin(r, 1), second = begin(r, 1), third = begin(r, 1);
    CHECK(first.next && !second.next && !third.next);
    build(r, 2, 2, true);
    CHECK(!epw_queue_finish(&r->q, &third));
    build(r, 1, 1, true);
    CHECK(!epw_queue_finish(&r->q, &second));
    nanosleep(&(struct timespec){0, 20 * (long)MS}, NULL);
    CHECK(!epw_queue_is_done(&r->q, 1));
    build(r, 0, 0, true);
    CHECK(epw_queue_finish(&r->q, &first));
    CHECK(await_done(r, 3));
    close_rig(r);
}

/* Of what is published, but not flushed, behind the post the bell's word says nothing. */
static void a_post_in_its_turn_rings_for_what_was_published_behind_it(void) {
    rig *r = open_rig(16, 1, 64);
    uint64_t second = 77;
    epw_queue_post first = begin(r, 1);
    CHECK(epw_queue_try_reserve(&r->q, 1, &second) && second == 1);
    build(r, 1, 1, true);
    epw_queue_publish(&r->q, 1, 1);
    CHECK(!epw_queue_ring(&r->q, false));
    build(r, 0, 0, true);
    CHECK(epw_queue_finish(&r->q, &first));
    CHECK(await_done(r, 2));
    close_rig(r);
}

static void parts_of_a_post_are_told_of_before_the_rest_is_built(void) {
    rig *r = open_rig(16, 2, 64);
    for (uint64_t at = 0; at < 9; at += 4) {
        uint64_t before = 77;
        bool in_turn = at < 8;
        if (!in_turn) CHECK(epw_queue_try_reserve(&r->q, 1, &before) && before == at);
        uint64_t from = at + !in_turn;
        epw_queue_post post = begin(r, 4);
        CHECK(post.next == in_turn && post.index == from);
        for (uint64_t i = from; i < from + 2; i++) build(r, i, i, true);
        CHECK(epw_queue_finish_part(&r->q, &post, from + 2) == in_turn);
        if (!in_turn) {
            build(r, before, before, true);
            epw_queue_publish(&r->q, before, 1);
            CHECK(epw_queue_ring(&r->q, false));
        }
        CHECK(await_done(r, from + 2) && !epw_queue_is_done(&r->q, from + 3));
        for (uint64_t i = from + 2; i < from + 4; i++) build(r, i, i, true);
        CHECK(epw_queue_finish(&r->q, &post) && await_done(r, from + 4));
    }
    close_rig(r);
}

static void a_post_takes_no_more_than_its_room(void) {
    rig *r = open_rig(16, 1, 64);
    epw_queue_post post;
    atomic_store(&r->frozen, true);
    CHECK(epw_queue_try_begin(&r->q, 4, 4, &post));
    for (uint64_t i = 0; i < 4; i++) build(r, i, i, true);
    epw_queue_finish(&r->q, &post);
    CHECK(!epw_queue_try_begin(&r->q, 1, 4, &post) && epw_queue_try_begin(&r->q, 1, 5, &post));
    build(r, 4, 4, true);
    epw_queue_finish(&r->q, &post);
    atomic_store(&r->frozen, false);
    CHECK(await_done(r, 5));
    CHECK(epw_queue_try_begin(&r->q, 4, 4, &post) && post.index == 5);
    close_rig(r);
}

static void a_post_that_begins_behind_a_lost_one_is_not_told_of(void) {
    rig *r = open_rig(16, 1, 64);
    epw_queue_give_up(&r->q);
    uint64_t before = r->doorbell;
    epw_queue_post post = begin(r, 1);
    build(r, 0, 0, true);
    CHECK(!post.next && !epw_queue_finish(&r->q, &post));
    CHECK(r->doorbell == before && r->record[1] == 0);
    close_rig(r);
}

/* ---- completions ---- */

static uint32_t last_word(uint64_t index, uint32_t opcode) {
    return (uint32_t)(index & 0xffff) << 16 | opcode << 4;
}

/* Fills an entry's end, bytes 0x20 to 0x3f, from hexadecimal; the bytes before that stay as they are. */
static void fill(uint32_t entry[16], const char *hex) {
    unsigned char *at = (unsigned char *)entry;
    memset(at, 0xff, 64);
    at += 0x20;
    for (; *hex != '\0'; hex++) {
        unsigned byte = 0;
        if (*hex == ' ') continue;
        CHECK(sscanf(hex++, "%2x", &byte) == 1);
        *at++ = (unsigned char)byte;
    }
    CHECK(at == (unsigned char *)entry + 64);
}

/* Written down by hand after the layout of the adapter's manual (struct mlx5_cqe64 and mlx5_err_cqe of
 * mlx5dv.h; where that is installed they are also read by it). */
static const struct {
    const char *hex;
    uint32_t opcode, index, vendor, syndrome, wqe_opcode;
} completions[] = {
    /* Of a WRITE; of an inline WRITE on an adapter with a clock; of a FETCH_ADD. */
    {"00000000 00000000 00000000 00000000 00000000 00000000 08001234 abcd0000", 0, 0xabcd, 0, 0, 0x08},
    {"00000000 00000000 00000000 00001000 0123456789abcdef 08001234 fffe5a01", 0, 0xfffe, 0, 0, 0x08},
    {"00000000 00000000 00000000 00000008 00000000 00000000 12001234 00000000", 0, 0, 0, 0, 0x12},
    /* Retries exceeded; the remote key is not valid; flushed. */
    {"00000000 00000000 00000000 00000000 00000000 00008115 08001234 abcd00d0", 0xd, 0xabcd, 0x81, 0x15,
     0x08},
    {"00000000 00000000 00000000 00000000 00000000 00008813 12001234 0102a5d1", 0xd, 0x0102, 0x88, 0x13,
     0x12},
    {"00000000 00000000 00000000 00000000 00000000 0000f905 10001234 abce00d0", 0xd, 0xabce, 0xf9, 0x05,
     0x10},
};

static void completions_are_read_from_these_bytes(void) {
    for (size_t i = 0; i < sizeof completions / sizeof completions[0]; i++) {
        uint32_t entry[16];
        fill(entry, completions[i].hex);
        epw_completions c = {.entry = entry};
        epw_queue_fault fault = {0};
        bool failed = epw_completions_failed(&c, &fault);
        CHECK_MSG(failed == (completions[i].opcode != 0), "vector %zu", i);
        CHECK(c.done == (failed ? 0 : completions[i].index + 1));
        if (failed)
            CHECK_MSG(fault.index == completions[i].index && fault.vendor == completions[i].vendor &&
                          fault.syndrome == completions[i].syndrome,
                      "vector %zu: %x, %x, %x", i, fault.index, fault.vendor, fault.syndrome);
#if HAS_MLX5DV
        const struct mlx5_cqe64 *theirs = (const void *)entry;
        const struct mlx5_err_cqe *error = (const void *)entry;
        CHECK(mlx5dv_get_cqe_opcode((struct mlx5_cqe64 *)(uintptr_t)theirs) == completions[i].opcode);
        CHECK(be16toh(theirs->wqe_counter) == completions[i].index);
        CHECK(be32toh(theirs->sop_drop_qpn) == (completions[i].wqe_opcode << 24 | PAIR));
        if (failed)
            CHECK(error->syndrome == completions[i].syndrome &&
                  error->vendor_err_synd == completions[i].vendor);
#endif
    }
}

static void looks_are_joined_by_their_maximum(void) {
    uint32_t entry[16] = {0};
    epw_completions c = {.entry = entry};
    CHECK(epw_completions_follow(&c, 0, last_word(9, 0)) == 10 && c.done == 10);
    /* It was loaded before the previous one, and is used after it. */
    CHECK(epw_completions_follow(&c, 0, last_word(4, 0)) == 10 && c.done == 10);
    CHECK(epw_completions_follow(&c, 10, last_word(9, 0)) == 10);
    CHECK(epw_completions_follow(&c, 10, 0xf0) == 10 && c.done == 10); /* none has arrived yet */
    for (uint64_t index = 9; index < 400000; index += 32768) {
        uint64_t bound = c.done;
        CHECK(epw_completions_follow(&c, bound, last_word(index, 0)) == index + 1 && c.done == index + 1);
        /* A bound from long ago is too low, but not wrong, however often the 16 bits have wrapped. */
        CHECK(epw_completions_follow(&c, 0, last_word(index, 0)) == index + 1 && c.done == index + 1);
    }
}

static void each_syndrome_has_a_text(void) {
    static const uint8_t known[] = {0x01, 0x02, 0x04, 0x05, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22};
    const char *unknown = epw_syndrome_text(0x77);
    for (size_t i = 0; i < sizeof known; i++)
        for (size_t j = 0; j < i; j++)
            CHECK(strcmp(epw_syndrome_text(known[i]), epw_syndrome_text(known[j])) != 0 &&
                  strcmp(epw_syndrome_text(known[i]), unknown) != 0);
}

/* ---- room, batches, doorbells ---- */

static void post(rig *r, uint64_t value, bool flush) {
    uint64_t index = UINT64_MAX;
    CHECK(epw_queue_try_reserve(&r->q, 1, &index));
    CHECK(index == value);
    build(r, index, value, true);
    epw_queue_publish(&r->q, index, 1);
    epw_queue_ring(&r->q, flush);
}

static void a_full_queue_takes_nothing_until_entries_complete(void) {
    rig *r = open_rig(16, 1, 64);
    atomic_store(&r->frozen, true);
    for (uint64_t i = 0; i < 16; i++) post(r, i, true);
    uint64_t index = 77;
    CHECK(!epw_queue_try_reserve(&r->q, 1, &index) && index == 77);
    CHECK(!epw_queue_is_done(&r->q, 1));
    CHECK(!epw_queue_try_reserve(&r->q, 16, &index));
    atomic_store(&r->frozen, false);
    CHECK(await_done(r, 16));
    CHECK(epw_queue_try_reserve(&r->q, 16, &index) && index == 16); /* those that failed have taken nothing */
    CHECK(!epw_queue_try_reserve(&r->q, 1, &index));
    for (uint64_t i = 16; i < 32; i++) build(r, i, i, true);
    /* Published in reverse order: nothing is rung for before the first. */
    for (uint64_t i = 31; i > 16; i--) {
        epw_queue_publish(&r->q, i, 1);
        CHECK(!epw_queue_ring(&r->q, true));
    }
    epw_queue_publish(&r->q, 16, 1);
    CHECK(epw_queue_ring(&r->q, false));
    CHECK(await_done(r, 32));
    close_rig(r);
}

static void doorbells_come_in_batches(void) {
    rig *r = open_rig(64, 8, 64);
    for (uint64_t i = 0; i < 7; i++) post(r, i, false);
    nanosleep(&(struct timespec){0, 20 * (long)MS}, NULL);
    CHECK(!epw_queue_is_done(&r->q, 1));
    post(r, 7, false);
    CHECK(await_done(r, 8));
    post(r, 8, false);
    post(r, 9, true);
    CHECK(await_done(r, 10));
    CHECK(!epw_queue_ring(&r->q, true)); /* there is nothing to ring for */
    atomic_store(&r->ending, true);
    pthread_join(r->thread, NULL);
    CHECK(r->doorbells == 2);
    CHECK(!pthread_create(&r->thread, NULL, nic_main, r));
    close_rig(r);
}

/* A poster that wanted all entries to be rung for had an unpublished entry before its own. */
static void a_flush_reaches_what_is_published_after_it(void) {
    rig *r = open_rig(64, 64, 64);
    uint64_t first = 77, second = 77;
    CHECK(epw_queue_try_reserve(&r->q, 1, &first) && epw_queue_try_reserve(&r->q, 1, &second));
    build(r, second, 1, true);
    epw_queue_publish(&r->q, second, 1);
    CHECK(!epw_queue_ring(&r->q, true));
    build(r, first, 0, false);
    epw_queue_publish(&r->q, first, 1);
    CHECK(epw_queue_ring(&r->q, false));
    CHECK(await_done(r, 2));
    post(r, 2, false); /* nobody asks for a doorbell for it */
    nanosleep(&(struct timespec){0, 20 * (long)MS}, NULL);
    CHECK(!epw_queue_is_done(&r->q, 3));
    close_rig(r);
}

/* ---- waiting ---- */

/* Unfreezes the NIC after some turns. */
typedef struct patience {
    rig *r;
    uint32_t turns, thaws_at, rang;
} patience;

static uint64_t idle(void *context, bool rang) {
    patience *p = context;
    p->rang += rang;
    if (++p->turns == p->thaws_at) atomic_store(&p->r->frozen, false);
    nanosleep(&(struct timespec){0, 100000}, NULL);
    return p->turns;
}

static void waits_end_in_time(void) {
    rig *r = open_rig(16, 64, 64);
    atomic_store(&r->frozen, true);
    for (uint64_t i = 0; i < 16; i++) post(r, i, false);
    patience never = {.r = r};
    epw_queue_wait wait = {idle, &never, 10};
    epw_queue_fault fault = {0};
    uint64_t index = 77;
    CHECK(epw_queue_reserve(&r->q, 1, &wait, &index, &fault) == EPW_QUEUE_LATE && index == 77);
    CHECK(never.turns == 10 && never.rang == 1);
    CHECK(epw_queue_quiet(&r->q, &wait, &fault) == EPW_QUEUE_LATE && never.turns == 11);

    patience soon = {.r = r, .thaws_at = 5};
    wait = (epw_queue_wait){idle, &soon, 20000};
    CHECK(epw_queue_reserve(&r->q, 16, &wait, &index, &fault) == EPW_QUEUE_DONE && index == 16);
    CHECK(soon.turns >= 5 && soon.turns < 20000);
    for (uint64_t i = 16; i < 32; i++) build(r, i, i, i == 31);
    epw_queue_publish(&r->q, index, 16);
    /* Nobody has rung: the waiting thread does. */
    CHECK(epw_queue_quiet(&r->q, &wait, &fault) == EPW_QUEUE_DONE && soon.rang == 1);
    CHECK(epw_queue_is_done(&r->q, 32));
    soon.turns = 0;
    CHECK(epw_queue_quiet(&r->q, &wait, &fault) == EPW_QUEUE_DONE && soon.turns == 0);
    close_rig(r);
}

static void waits_find_errors(void) {
    rig *r = open_rig(16, 1, 64);
    r->fails_at = 3;
    patience p = {.r = r};
    epw_queue_wait wait = {idle, &p, 20000};
    epw_queue_fault fault = {0};
    uint64_t index = 77;
    for (uint64_t i = 0; i < 3; i++) post(r, i, true);
    CHECK(epw_queue_await(&r->q, 3, &wait, &fault) == EPW_QUEUE_DONE);
    post(r, 3, true);
    CHECK(epw_queue_await(&r->q, 4, &wait, &fault) == EPW_QUEUE_FAILED);
    CHECK(fault.pair == PAIR && fault.syndrome == 0x13 && fault.vendor == 0x81 && fault.index == 3);
    CHECK(epw_queue_await(&r->q, 3, &wait, &fault) == EPW_QUEUE_DONE); /* what was done stays done */
    fault = (epw_queue_fault){0};
    CHECK(epw_queue_quiet(&r->q, &wait, &fault) == EPW_QUEUE_FAILED && fault.syndrome == 0x13);
    fault = (epw_queue_fault){0};
    CHECK(epw_queue_reserve(&r->q, 1, &wait, &index, &fault) == EPW_QUEUE_FAILED && index == 77);
    CHECK(fault.pair == PAIR && fault.syndrome == 0x13 && fault.vendor == 0x81 && fault.index == 3);
    close_rig(r);
}

/* ---- errors ---- */

static void the_first_error_is_found_by_all(void) {
    for (uint64_t fails_at = 0; fails_at < 40; fails_at += 13) {
        rig *r = open_rig(64, 1, 64);
        r->fails_at = fails_at;
        epw_queue_fault fault = {0};
        for (uint64_t i = 0; i <= fails_at; i++) post(r, i, true);
        uint64_t began = epw_now_ns();
        while (!epw_queue_failed(&r->q, &fault) && epw_now_ns() - began < 5000 * MS) sched_yield();
        CHECK(fault.syndrome == 0x13 && fault.vendor == 0x81 && fault.index == fails_at);
        /* Later entries are flushed, and do not hide the cause. */
        for (uint64_t i = fails_at + 1; i < fails_at + 6; i++) post(r, i, true);
        nanosleep(&(struct timespec){0, 2 * (long)MS}, NULL);
        CHECK(epw_queue_failed(&r->q, &fault));
        CHECK(fault.syndrome == 0x13 && fault.vendor == 0x81 && fault.index == fails_at);
        CHECK(!epw_queue_is_done(&r->q, fails_at + 1));
        close_rig(r);
    }
}

int main(void) {
    entries_have_these_bytes();
    mlx5dv_builds_the_same();
    many_post_at_a_time();
    ringing_once_is_enough_whoever_holds_the_bell();
    a_bell_with_requests_is_not_let_go();
    a_bell_that_is_given_up_is_taken_no_more();
    nothing_is_rung_for_behind_a_post_that_was_lost();
    a_post_in_its_turn_needs_no_mark_and_no_bell();
    a_slot_taken_again_while_the_bell_is_held_hides_nothing();
    a_post_in_its_turn_serves_a_flush_that_was_left();
    posts_out_of_turn_wait_for_those_before_them();
    a_post_in_its_turn_rings_for_what_was_published_behind_it();
    parts_of_a_post_are_told_of_before_the_rest_is_built();
    a_post_takes_no_more_than_its_room();
    a_post_that_begins_behind_a_lost_one_is_not_told_of();
    completions_are_read_from_these_bytes();
    looks_are_joined_by_their_maximum();
    each_syndrome_has_a_text();
    a_full_queue_takes_nothing_until_entries_complete();
    doorbells_come_in_batches();
    a_flush_reaches_what_is_published_after_it();
    waits_end_in_time();
    waits_find_errors();
    the_first_error_is_found_by_all();
    return check_result("queue");
}
