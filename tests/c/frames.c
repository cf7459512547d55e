/* Frames of the software NIC that carry several entries: which entries share a frame, which bytes are not a
 * frame, where the bytes go, in whatever pieces they arrive, and who sends them. */
#include "check.h"

#include "base/clock.h"
#include "nic/other_end.h"
#include "nic/queue.h"
#include "nic/soft.h"
#include "nic/soft/frame.h"
#include "nic/soft/parts.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum { WINDOW = 1 << 20, OPEN = WINDOW - 4096, DEPTH = 64, FILL = 0x5a };

static const epw_where here = {"test", 0, -1};

static const epw_frame row = {
    .kind = EPW_FRAME_WRITE, .pair = 3, .from = 4, .index = 9, .key = 5, .offset = 1000, .bytes = 100};

/* The row `number` places after the first, 128 bytes apart. */
static epw_frame row_at(uint32_t number) {
    epw_frame frame = row;
    frame.index += number;
    frame.offset += UINT64_C(128) * number;
    return frame;
}

static void rows_of_a_range_share_a_frame(void) {
    epw_frame all = row, last = row_at(7);
    last.wants_ack = true;
    for (uint32_t i = 1; i < 7; i++) {
        epw_frame next = row_at(i);
        CHECK(epw_frame_extend(&all, &next));
    }
    CHECK(epw_frame_extend(&all, &last));
    CHECK(all.index == 9 && all.offset == 1000 && all.more == 7 && all.stride == 128 && all.wants_ack);
    CHECK(epw_frame_payload(&all) == 800);
    unsigned char bytes[EPW_FRAME_BYTES], again[EPW_FRAME_BYTES];
    epw_frame read;
    epw_frame_write(&all, bytes);
    CHECK(epw_frame_parse(bytes, &read));
    epw_frame_write(&read, again);
    CHECK(memcmp(bytes, again, sizeof bytes) == 0 && read.more == 7 && read.stride == 128);
    epw_frame behind = row_at(8); /* an ACK names the last entry of a frame */
    CHECK(!epw_frame_extend(&all, &behind) && all.more == 7);
}

static void others_have_frames_of_their_own(void) {
    for (int kind = 0; kind < 11; kind++) {
        epw_frame two = row, next = row_at(1), third = row_at(2);
        CHECK(epw_frame_extend(&two, &next));
        if (kind == 0) third.kind = EPW_FRAME_READ;
        if (kind == 1) third.pair++;
        if (kind == 2) third.from++;
        if (kind == 3) third.key++;
        if (kind == 4) third.bytes--;
        if (kind == 5) third.index++;
        if (kind == 6) third.offset++;
        if (kind == 7) third.offset -= 256;
        if (kind == 8) two = row, third = row_at(1), third.offset = row.offset + EPW_FRAME_PAYLOAD_MAX;
        if (kind == 8) two.bytes = third.bytes = EPW_FRAME_PAYLOAD_MAX / 2 + 1;
        if (kind == 9) two = row, third = row_at(1), third.offset = row.offset + row.bytes - 1;
        if (kind == 10) two = row, third = row_at(1), third.offset += UINT64_C(1) << 32;
        epw_frame before = two;
        CHECK_MSG(!epw_frame_extend(&two, &third), "kind %d", kind);
        CHECK(two.more == before.more && two.stride == before.stride);
    }
    /* A word is placed in one step, after everything before it. */
    epw_frame word = row, next = row_at(1);
    word.bytes = next.bytes = EPW_FRAME_WORD;
    CHECK(!epw_frame_extend(&word, &next));
}

static void what_no_nic_says_is_no_frame(void) {
    for (int kind = 0; kind < 8; kind++) {
        epw_frame frame = row, read;
        frame.more = 3;
        frame.stride = 128;
        if (kind == 1) frame.stride = 99;
        if (kind == 2) frame.more = 0;
        if (kind == 3) frame.bytes = EPW_FRAME_WORD;
        if (kind == 4) frame.kind = EPW_FRAME_READ;
        if (kind == 5) frame.more = UINT32_MAX;
        if (kind == 6) frame.bytes = EPW_FRAME_PAYLOAD_MAX / 2, frame.stride = UINT32_MAX;
        if (kind == 7) frame.bytes = 0;
        unsigned char bytes[EPW_FRAME_BYTES];
        epw_frame_write(&frame, bytes);
        CHECK_MSG(epw_frame_parse(bytes, &read) == (kind == 0), "kind %d", kind);
    }
}

/* Frames ENDED, CONNECTED and HEARD name two pairs, and nothing else. */
static void some_name_two_pairs(uint8_t kind) {
    const unsigned char expected[EPW_FRAME_BYTES] = {
        [0] = kind, [4] = 0x33, 0x22, 0x11, [28] = 0x66, 0x55, 0x44};
    const epw_frame frame = {.kind = kind, .pair = 0x112233, .from = 0x445566};
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame read;
    epw_frame_write(&frame, bytes);
    CHECK(memcmp(bytes, expected, sizeof bytes) == 0 && epw_frame_parse(bytes, &read));
    CHECK(read.kind == kind && read.pair == frame.pair && read.from == frame.from);
    CHECK(!epw_frame_is_request(&read) && epw_frame_payload(&read) == 0);
    for (uint32_t i = 0; i < EPW_FRAME_BYTES; i++) {
        bool named = (i >= 4 && i < 8) || (i >= 28 && i < 32);
        bytes[i] ^= 0x40;
        CHECK_MSG(epw_frame_parse(bytes, &read) == named, "kind %u, byte %u", kind, i);
        bytes[i] ^= 0x40;
    }
}

/* ---- a NIC, and its peer by hand ---- */

typedef struct end {
    epw_nic *nic;
    epw_pair *pair;
    uint64_t link;
    uint32_t key;
    unsigned char *window;
    int fd; /* the peer's end */
} end;

/* Makes another connection of a peer; returns the peer's end. */
static int connect_by(const end *e, uint32_t peer, uint64_t *link) {
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    CHECK(!setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &(int){1 << 16}, sizeof(int)));
    CHECK_OK(epw_nic_add_link(e->nic, fds[0], peer, here, link));
    return fds[1];
}

static void open_end_with(end *e, uint32_t stretches, const epw_stretch stretch[]) {
    *e = (end){0};
    e->window = malloc(WINDOW);
    memset(e->window, FILL, WINDOW);
    CHECK_OK(epw_nic_open(here, &e->nic));
    epw_region region = {.base = e->window, .rights = EPW_REGION_READ | EPW_REGION_WRITE, .count = stretches};
    memcpy(region.stretches, stretch, stretches * sizeof stretch[0]);
    e->key = epw_nic_register(e->nic, &region);
    epw_pair_options options = {.peer = 1, .key = e->key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(e->nic, &options, here, &e->pair));
    e->fd = connect_by(e, 1, &e->link);
    epw_pair_connect(e->pair, e->link, 77);
}

static void open_end(end *e) {
    open_end_with(e, 1, &(epw_stretch){0, OPEN});
}

/* ---- the end of an adapter's pair ---- */

typedef struct ends {
    atomic_uint count;
    uint32_t peer, pair, from; /* of the last report */
} ends;

static void heard_end(void *context, uint32_t peer, uint32_t pair, uint32_t from) {
    ends *heard = context;
    heard->peer = peer;
    heard->pair = pair;
    heard->from = from;
    atomic_fetch_add(&heard->count, 1);
}

static bool takes_6(void *context, uint32_t peer, uint32_t pair, uint32_t from) {
    heard_end(context, peer, pair, from);
    return from == 6;
}

static void close_end(end *e) {
    epw_pair_destroy(e->pair);
    epw_nic_close(e->nic);
    close(e->fd);
    free(e->window);
}

static void hear(const end *e, void *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        struct pollfd comes = {.fd = e->fd, .events = POLLIN};
        ssize_t got = poll(&comes, 1, 5000) == 1 ? read(e->fd, (char *)bytes + at, length - at) : 0;
        CHECK(got > 0);
        if (got <= 0) return;
        at += (size_t)got;
    }
}

static epw_frame hear_frame(const end *e) {
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame frame = {0};
    hear(e, bytes, sizeof bytes);
    CHECK(epw_frame_parse(bytes, &frame));
    return frame;
}

/* Writes `count` rows of `bytes` each, whose bytes are numbered, in pieces of at most `piece`. */
static void say_rows(const end *e, epw_frame frame, size_t piece) {
    size_t length = EPW_FRAME_BYTES + epw_frame_payload(&frame);
    unsigned char *said = malloc(length);
    epw_frame_write(&frame, said);
    for (size_t i = 0; i < epw_frame_payload(&frame); i++)
        said[EPW_FRAME_BYTES + i] = (unsigned char)(i % 251);
    for (size_t at = 0; at < length; at += piece) {
        size_t now = length - at < piece ? length - at : piece;
        CHECK(write(e->fd, said + at, now) == (ssize_t)now);
        if (piece < length) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    free(said);
}

static epw_frame rows_of(const end *e, uint32_t count, uint32_t bytes, uint32_t stride) {
    return (epw_frame){.kind = EPW_FRAME_WRITE,
                       .wants_ack = true,
                       .pair = epw_pair_number(e->pair),
                       .from = 7,
                       .key = e->key,
                       .offset = 64,
                       .bytes = bytes,
                       .stride = count > 1 ? stride : 0,
                       .more = count - 1};
}

/* Whether the window has the bytes of the frame's rows in their places, and nothing else. */
static void has_rows(const end *e, const epw_frame *frame, const char *what, size_t number) {
    uint64_t wrong = 0, next = 0, span = (uint64_t)frame->more * frame->stride + frame->bytes;
    for (uint64_t at = 0; at < WINDOW; at++) {
        uint64_t in = at - frame->offset, within = frame->more > 0 ? in % frame->stride : in;
        bool ours = at >= frame->offset && in < span && within < frame->bytes;
        wrong += e->window[at] != (ours ? (unsigned char)(next++ % 251) : FILL);
    }
    CHECK_MSG(wrong == 0, "%s %zu: %llu bytes are others", what, number, (unsigned long long)wrong);
}

/* Short rows and long ones, and more long ones than are read at a time. */
static void rows_go_to_their_places_however_they_come(void) {
    static const struct {
        uint32_t count, bytes, stride;
    } shapes[] = {{5, 100, 128}, {3, 5000, 5000}, {100, 4096, 4160}, {7, 20000, 20480}, {1, 9000, 0}};
    static const size_t pieces[] = {1 << 30, 65536, 4999, 777};
    for (size_t i = 0; i < 20; i++) {
        end e;
        open_end(&e);
        epw_frame frame = rows_of(&e, shapes[i % 5].count, shapes[i % 5].bytes, shapes[i % 5].stride);
        for (uint32_t turn = 0; turn < 2;
             turn++) { /* in the second turn the link is as the first turn has left it */
            memset(e.window, FILL, WINDOW);
            say_rows(&e, frame, pieces[i / 5]);
            epw_frame ack = hear_frame(&e);
            CHECK(ack.kind == EPW_FRAME_ACK && ack.pair == 7 && ack.index == frame.index + frame.more);
            has_rows(&e, &frame, "case", i);
            frame.index += frame.more + 1;
        }
        close_end(&e);
    }
}

/* Not even the rows within the region are placed. */
static void rows_that_leave_the_region_are_refused(void) {
    end e;
    open_end(&e);
    epw_frame frame = rows_of(&e, 5, 4096, 8192);
    frame.offset = OPEN - 4 * 8192 - 4095;
    say_rows(&e, frame, 1 << 30);
    epw_frame nak = hear_frame(&e);
    CHECK(nak.kind == EPW_FRAME_NAK && nak.index == 0 && nak.syndrome == EPW_SYNDROME_REMOTE_ACCESS);
    for (uint32_t i = 0; i < WINDOW; i++) CHECK(e.window[i] == FILL);
    CHECK(epw_nic_link_alive(e.nic, e.link));
    close_end(&e);
}

/* ---- areas of a region ---- */

static const epw_stretch areas[] = {{0, 400}, {1000, 300}, {5000, 1000}, {5500, 1000}, {6500, 100}};

enum { AREAS = sizeof areas / sizeof areas[0] };

/* Each row lies in one area, but not all rows lie in the same one. */
static void rows_may_lie_in_several_areas(void) {
    static const struct {
        uint64_t offset, bytes, stride, rows;
        bool fit;
    } cases[] = {
        {100, 200, 0, 1, true},
        {100, 200, 950, 2, true},
        {150, 200, 950, 2, true},   /* the second ends with its area */
        {150, 200, 951, 2, false},  /* one byte after it */
        {201, 200, 900, 2, false},  /* so does the first */
        {100, 200, 400, 2, false},  /* between areas */
        {0, 100, 100, 4, true},     /* all in one */
        {0, 100, 100, 5, false},    /* all but the last */
        {299, 100, 701, 3, false},  /* one in each of two, then none */
        {5100, 200, 400, 4, true},  /* the third is in the second of two that overlap */
        {5100, 200, 400, 5, false}, /* behind both */
        {6450, 100, 0, 1, false},   /* across the border of two */
        {6400, 100, 100, 2, true},  /* at its two sides */
        {5000, 9, 9, UINT64_C(1) << 32, false},
        {0, 9, UINT32_MAX, UINT64_C(1) << 32, false},
    };
    unsigned char base[1];
    epw_region region = {.base = base, .rights = EPW_REGION_WRITE, .count = AREAS};
    memcpy(region.stretches, areas, sizeof areas);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const unsigned char *at = epw_region_rows_at(&region, EPW_REGION_WRITE, cases[i].offset,
                                                     cases[i].bytes, cases[i].stride, cases[i].rows);
        CHECK_MSG((at != NULL) == cases[i].fit, "case %zu", i);
        CHECK(!cases[i].fit || (uintptr_t)at == (uintptr_t)base + cases[i].offset);
    }
    CHECK(epw_region_rows_at(&region, EPW_REGION_READ, 100, 200, 950, 2) == NULL);
}

/* Counts, and the first row of a range: entries of one size in two areas share a frame. */
static void a_frame_goes_to_two_areas(void) {
    for (uint32_t beyond = 0; beyond < 2; beyond++) {
        end e;
        open_end_with(&e, AREAS, areas);
        epw_frame frame = rows_of(&e, 2, 200, 950 + beyond);
        frame.offset = 150;
        say_rows(&e, frame, 1 << 30);
        epw_frame answer = hear_frame(&e);
        if (beyond) {
            CHECK(answer.kind == EPW_FRAME_NAK && answer.syndrome == EPW_SYNDROME_REMOTE_ACCESS);
            for (uint32_t i = 0; i < WINDOW; i++) CHECK(e.window[i] == FILL);
        } else {
            CHECK(answer.kind == EPW_FRAME_ACK && answer.index == 1);
            has_rows(&e, &frame, "areas", 2);
        }
        close_end(&e);
    }
}

/* ---- sending ---- */

static epw_queue queue_of(const end *e, uint64_t marks[DEPTH]) {
    const epw_pair_memory *memory = epw_pair_memory_of(e->pair);
    return (epw_queue){.entries = (epw_entry_block *)memory->entries,
                       .marks = marks,
                       .record = memory->record,
                       .doorbell = memory->doorbell,
                       .completions.entry = (const uint32_t *)memory->completion,
                       .depth = DEPTH,
                       .pair = epw_pair_number(e->pair),
                       .batch = 1};
}

/* Ten rows a stride apart, then one elsewhere, as one post. */
static void a_range_is_sent_as_one_frame(void) {
    enum { ROWS = 10, BYTES = 6000, STRIDE = 8000 };
    end e;
    open_end(&e);
    uint64_t marks[DEPTH] = {0};
    epw_queue queue = queue_of(&e, marks);
    for (uint32_t i = 0; i < WINDOW; i++) e.window[i] = (unsigned char)(i / STRIDE);
    uint64_t index = 0;
    epw_key own = epw_key_of(e.key), its = epw_key_of(99);
    CHECK(epw_queue_try_reserve(&queue, ROWS + 1, &index));
    for (uint32_t i = 0; i <= ROWS; i++)
        epw_entry_write(epw_queue_slot(&queue, i), queue.pair, i,
                        (epw_place_of){i < ROWS ? 500 + UINT64_C(7000) * i : 0, its},
                        (epw_place_of){(uint64_t)i * STRIDE, own}, BYTES,
                        i < ROWS ? EPW_SIGNAL_ERRORS : EPW_SIGNAL_ALWAYS);
    epw_queue_publish(&queue, index, ROWS + 1);
    CHECK(epw_queue_ring(&queue, true));
    epw_pair_ring(e.pair);
    static unsigned char bytes[BYTES];
    epw_frame frame = hear_frame(&e);
    CHECK(frame.index == 0 && frame.more == ROWS - 1 && frame.stride == 7000 && frame.offset == 500);
    CHECK(frame.bytes == BYTES && !frame.wants_ack);
    for (uint32_t i = 0; i <= ROWS; i++) {
        if (i == ROWS) frame = hear_frame(&e);
        hear(&e, bytes, BYTES);
        for (uint32_t k = 0; k < BYTES; k++) CHECK(bytes[k] == i);
    }
    CHECK(frame.index == ROWS && frame.more == 0 && frame.offset == 0 && frame.wants_ack);
    close_end(&e);
}

/* Posts `count` entries of `bytes` each, from `offset` of the region of `key`. */
static void post(epw_queue *queue, uint32_t count, uint32_t key, uint64_t offset, uint32_t bytes) {
    uint64_t index = 0;
    CHECK(epw_queue_try_reserve(queue, count, &index));
    for (uint32_t i = 0; i < count; i++)
        epw_entry_write(epw_queue_slot(queue, index + i), queue->pair, (uint32_t)index + i,
                        (epw_place_of){0, epw_key_of(99)}, (epw_place_of){offset, epw_key_of(key)}, bytes,
                        EPW_SIGNAL_ALWAYS);
    epw_queue_publish(queue, index, count);
    CHECK(epw_queue_ring(queue, true));
}

static void hear_bytes(const end *e, uint32_t bytes, unsigned char of) {
    unsigned char *heard = malloc(bytes);
    uint32_t wrong = 0;
    hear(e, heard, bytes);
    for (uint32_t i = 0; i < bytes; i++) wrong += heard[i] != of;
    CHECK_MSG(wrong == 0, "%u of %u bytes are not %u", wrong, bytes, of);
    free(heard);
}

/* What is left to be sent from a region that goes is copied, and nothing else: what other regions have to
 * send still lies in them. */
static void a_region_that_goes_takes_only_its_bytes_along(void) {
    enum { LONG = 900000, SHORT = 50000, OLD = 1, NEW = 2, LENT = 3 };
    end e;
    open_end(&e);
    unsigned char *lent = malloc(SHORT);
    memset(lent, LENT, SHORT);
    memset(e.window, OLD, WINDOW);
    epw_region region = {.base = lent, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, SHORT}}};
    uint32_t key = epw_nic_register(e.nic, &region);
    uint64_t marks[DEPTH] = {0};
    epw_queue queue = queue_of(&e, marks);
    post(&queue, 1, e.key, 0, LONG); /* more than a socket holds */
    post(&queue, 1, key, 0, SHORT);
    post(&queue, 1, e.key, 0, SHORT);
    uint64_t before = epw_nic_sent(e.nic).bytes;
    epw_pair_ring(e.pair);
    for (int ms = 0; ms < 5000 && epw_nic_sent(e.nic).bytes == before; ms++) usleep(1000);
    memset(e.window + LONG - SHORT, NEW, SHORT);
    epw_nic_deregister(e.nic, key);
    memset(lent, NEW, SHORT);
    memset(e.window, NEW, SHORT);
    CHECK(!epw_pair_idle(e.pair)); /* its thread takes the lock after this */
    CHECK(hear_frame(&e).bytes == LONG);
    hear_bytes(&e, LONG - SHORT, OLD);
    hear_bytes(&e, SHORT, NEW);
    CHECK(hear_frame(&e).index == 1);
    hear_bytes(&e, SHORT, LENT);
    CHECK(hear_frame(&e).index == 2);
    hear_bytes(&e, SHORT, NEW);
    free(lent);
    close_end(&e);
}

/* A reader that keeps up, here a ring with room for everything, does not hold up other connections. */
static void a_turn_ends_after_a_while(void) {
    enum { COUNT = 32, BYTES = 1000000, RING = 64 << 20, TURN = 8 << 20 };
    const uint64_t all = COUNT * (uint64_t)(BYTES + EPW_FRAME_BYTES);
    end e;
    int fds[2];
    uint64_t link, marks[DEPTH] = {0};
    open_end(&e);
    epw_queue queue = queue_of(&e, marks);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
    CHECK_OK(epw_nic_add_ring_link(e.nic, fds[0], 1, RING, here, &link));
    epw_pair_connect(e.pair, link, 77);
    post(&queue, COUNT, e.key, 0, BYTES);
    epw_nic_lock(e.nic);
    uint64_t before = e.nic->sent.bytes;
    epw_pair_ring(e.pair); /* finds the lock taken */
    epw_nic_heed_rung(e.nic);
    CHECK(epw_link_send(epw_nic_link(e.nic, link)));
    uint64_t sent = e.nic->sent.bytes - before;
    epw_nic_unlock(e.nic);
    CHECK_MSG(sent == TURN, "%llu bytes in a turn", (unsigned long long)sent);
    for (int ms = 0; ms < 5000 && epw_nic_sent(e.nic).bytes - before < all; ms++) usleep(1000);
    CHECK(epw_nic_sent(e.nic).bytes - before == all && !epw_pair_broken(e.pair));
    close(fds[1]);
    close_end(&e);
}

/* ---- who sends ---- */

/* Its thread sleeps, because somebody drives the NIC, and nothing wakes it. */
static void lull(epw_nic *nic) {
    epw_nic_stretch_sleeps(nic, 1000000);
    bool dozes = false;
    for (int i = 0; i < 200 && !dozes; i++) {
        epw_nic_drive(nic, epw_now_ns());
        if (!atomic_load(&nic->dozing)) epw_nic_wake(nic); /* so that it notices that */
        usleep(20000);
        dozes = atomic_load(&nic->dozing);
        usleep(20000); /* no wake-up is on its way to it */
        dozes = dozes && atomic_load(&nic->dozing);
    }
    CHECK(dozes);
}

static void what_a_look_takes_in_is_answered(void) {
    end e;
    open_end(&e);
    lull(e.nic);
    epw_frame frame = rows_of(&e, 1, 100, 0);
    say_rows(&e, frame, 1 << 30);
    epw_nic_look(e.nic);
    CHECK(hear_frame(&e).kind == EPW_FRAME_ACK);
    CHECK(atomic_load(&e.nic->dozing));
    close_end(&e);
}

/* Nobody else can have sent meanwhile. */
static void who_unlocks_sends_what_is_left(void) {
    end e;
    open_end(&e);
    lull(e.nic);
    epw_nic_lock(e.nic);
    epw_link_tell(epw_nic_link(e.nic, e.link), EPW_FRAME_CONNECTED, 5, 6);
    epw_nic_unlock(e.nic);
    epw_frame frame = hear_frame(&e);
    CHECK(frame.kind == EPW_FRAME_CONNECTED && frame.pair == 5 && frame.from == 6);
    CHECK(atomic_load(&e.nic->dozing));
    close_end(&e);
}

/* Others have rung, and found the lock taken by whoever has just left it to the pair's end. */
static void the_end_of_a_pair_sends_for_others(void) {
    end e;
    epw_pair *ending;
    open_end(&e);
    epw_pair_options options = {.peer = 1, .key = e.key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(e.nic, &options, here, &ending));
    lull(e.nic);
    uint64_t marks[DEPTH] = {0};
    epw_queue queue = queue_of(&e, marks);
    post(&queue, 1, e.key, 0, 100);
    epw_nic_lock(e.nic);
    epw_pair_ring(e.pair);
    pthread_mutex_unlock(&e.nic->lock);
    epw_pair_destroy(ending);
    CHECK(hear_frame(&e).bytes == 100);
    hear_bytes(&e, 100, FILL);
    CHECK(atomic_load(&e.nic->dozing));
    close_end(&e);
}

/* ---- ACKs ---- */

static void acknowledge(const end *e, int fd, uint32_t index) {
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame frame = {.kind = EPW_FRAME_ACK, .pair = epw_pair_number(e->pair), .index = index};
    epw_frame_write(&frame, bytes);
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
}

static bool comes_true(bool (*what)(end *), end *e, uint64_t ns) {
    for (uint64_t began = epw_now_ns(); !what(e) && epw_now_ns() - began < ns;)
        nanosleep(&(struct timespec){0, 50000}, NULL);
    return what(e);
}

static bool is_idle(end *e) {
    return epw_pair_idle(e->pair);
}

static bool is_gone(end *e) {
    return !epw_nic_link_alive(e->nic, e->link);
}

/* The peer has two connections to this NIC, one for the requests of each side. The peer chooses the
 * connection of each ACK, and a later ACK may arrive first. Another peer has nothing to acknowledge, and
 * nobody may acknowledge what was not sent. */
static void acks_come_by_any_connection_of_the_peer(void) {
    end e;
    open_end(&e);
    uint64_t links[2];
    int other = connect_by(&e, 1, &links[0]), stranger = connect_by(&e, 2, &links[1]);
    uint64_t marks[DEPTH] = {0};
    epw_queue queue = queue_of(&e, marks);
    uint64_t index = 0;
    CHECK(epw_queue_try_reserve(&queue, 2, &index));
    for (uint32_t i = 0; i < 2; i++)
        epw_entry_write_word(epw_queue_slot(&queue, i), queue.pair, i, (epw_place_of){8 * i, epw_key_of(99)},
                             5, EPW_SIGNAL_ALWAYS);
    epw_queue_publish(&queue, index, 2);
    CHECK(epw_queue_ring(&queue, true));
    epw_pair_ring(e.pair);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t word;
        CHECK(hear_frame(&e).index == i);
        hear(&e, &word, sizeof word);
    }
    acknowledge(&e, stranger, 1);
    CHECK(!comes_true(is_idle, &e, 20 * MS));
    acknowledge(&e, other, 1);
    CHECK(comes_true(is_idle, &e, 5000 * MS) && !epw_pair_broken(e.pair));
    acknowledge(&e, e.fd, 0);
    CHECK(!comes_true(is_gone, &e, 20 * MS));
    acknowledge(&e, e.fd, 2);
    CHECK(comes_true(is_gone, &e, 5000 * MS));
    close(other);
    close(stranger);
    close_end(&e);
}

/* An end is reported with the rank that says so, which the connection knows: whether that rank may end the
 * pair is for the pair's owner to decide. A pair of the NIC itself uses frames, and cannot be ended so. */
static void ends_are_told_with_who_says_so(void) {
    end e;
    ends heard = {0};
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame frame = {.kind = EPW_FRAME_ENDED, .pair = 5, .from = 6};
    open_end(&e);
    epw_nic_set_owner(e.nic, &(epw_nic_owner){.ended = heard_end, .context = &heard});
    epw_frame_write(&frame, bytes);
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    for (int ms = 0; ms < 5000 && atomic_load(&heard.count) == 0; ms++) usleep(1000);
    CHECK(atomic_load(&heard.count) == 1 && heard.peer == 1 && heard.pair == 5 && heard.from == 6);
    epw_nic_set_owner(e.nic, &(epw_nic_owner){0});
    frame.pair = epw_pair_number(e.pair);
    frame.from = 77;
    epw_frame_write(&frame, bytes);
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    frame.kind = EPW_FRAME_HEARD; /* heard after the other */
    epw_frame_write(&frame, bytes);
    CHECK(!epw_pair_is_heard(e.pair));
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    for (int ms = 0; ms < 5000 && !epw_pair_is_heard(e.pair); ms++) usleep(1000);
    CHECK(epw_pair_is_heard(e.pair) && !epw_pair_broken(e.pair));
    epw_nic_end_pair(e.nic, e.link, 9, 10);
    hear(&e, bytes, sizeof bytes);
    CHECK(epw_frame_parse(bytes, &frame) && frame.kind == EPW_FRAME_ENDED && frame.pair == 9 &&
          frame.from == 10);
    CHECK(!epw_nic_link_alive(e.nic, e.link) && epw_pair_broken(e.pair));
    close_end(&e);
}

/* For the pairs of adapters their owner decides, and is told what the peer has decided. */
static void an_owner_says_whom_its_pairs_take(void) {
    end e;
    ends heard = {0}, by = {0};
    unsigned char bytes[EPW_FRAME_BYTES];
    open_end(&e);
    epw_nic_set_owner(
        e.nic,
        &(epw_nic_owner){.ended = heard_end, .connected = takes_6, .heard = heard_end, .context = &heard});
    for (uint32_t from = 6; from < 8; from++) {
        epw_frame frame = {.kind = EPW_FRAME_CONNECTED, .pair = 5, .from = from}, answer;
        epw_frame_write(&frame, bytes);
        CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
        hear(&e, bytes, sizeof bytes);
        CHECK(epw_frame_parse(bytes, &answer) && answer.pair == from && answer.from == 5);
        CHECK(answer.kind == (from == 6 ? EPW_FRAME_HEARD : EPW_FRAME_ENDED));
        CHECK(heard.peer == 1 && heard.pair == 5 && heard.from == from);
    }
    epw_nic_set_owner(e.nic, &(epw_nic_owner){.heard = heard_end, .context = &by});
    epw_frame frame = {.kind = EPW_FRAME_HEARD, .pair = 8, .from = 9};
    epw_frame_write(&frame, bytes);
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    for (int ms = 0; ms < 5000 && atomic_load(&by.count) == 0; ms++) usleep(1000);
    CHECK(atomic_load(&by.count) == 1 && by.peer == 1 && by.pair == 8 && by.from == 9);
    epw_nic_announce_pair(e.nic, e.link, 9, 8);
    hear(&e, bytes, sizeof bytes);
    CHECK(epw_frame_parse(bytes, &frame) && frame.kind == EPW_FRAME_CONNECTED && frame.pair == 9 &&
          frame.from == 8);
    epw_nic_set_owner(e.nic, &(epw_nic_owner){0});
    close_end(&e);
}

/* A pair of the NIC itself is heard by the pair to which it is connected, and by no other. */
static void a_pair_is_heard_by_its_other_end(void) {
    end e;
    open_end(&e);
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_pair_announce(e.pair);
    epw_frame frame = hear_frame(&e);
    CHECK(frame.kind == EPW_FRAME_CONNECTED && frame.from == epw_pair_number(e.pair));
    epw_frame answer = {.kind = EPW_FRAME_HEARD, .pair = frame.from, .from = frame.pair + 1};
    epw_frame_write(&answer, bytes);
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    epw_frame next = {.kind = EPW_FRAME_CONNECTED, .pair = frame.from, .from = frame.pair};
    epw_frame_write(&next, bytes); /* its answer comes after the other has been taken in */
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    next = hear_frame(&e);
    CHECK(next.kind == EPW_FRAME_HEARD && next.pair == frame.pair && next.from == frame.from);
    CHECK(!epw_pair_is_heard(e.pair));
    answer.from = frame.pair;
    epw_frame_write(&answer, bytes);
    CHECK(write(e.fd, bytes, sizeof bytes) == sizeof bytes);
    for (int ms = 0; ms < 5000 && !epw_pair_is_heard(e.pair); ms++) usleep(1000);
    CHECK(epw_pair_is_heard(e.pair) && !epw_pair_broken(e.pair));
    close_end(&e);
}

/* ---- what reports mean for a pair of an adapter ---- */

static void an_adapters_pair_takes_one_pair_once(void) {
    epw_other_end other = {0};
    CHECK(epw_other_end_connects(&other, 0, 7) && epw_other_end_connects(&other, 0, 8));
    CHECK(
        epw_other_end_connects(&other, 0, 7)); /* before this end is connected anybody may come, and again */
    CHECK(!epw_other_end_is_met(&other, 7));
    CHECK(!epw_other_end_connects(&other, 7, 7) && !epw_other_end_connects(&other, 7, 8));
    other = (epw_other_end){0};
    CHECK(epw_other_end_connects(&other, 0, 8) && !epw_other_end_is_met(&other, 7));
    CHECK(epw_other_end_connects(&other, 7, 7) && !epw_other_end_connects(&other, 7, 7));
}

static void an_end_before_this_one_is_connected_is_kept(void) {
    epw_other_end other = {0};
    CHECK(!epw_other_end_ends(&other, 0, 7) && epw_other_end_is_met(&other, 7));
    CHECK(!epw_other_end_ends(&other, 0, 7) && !epw_other_end_is_met(&other, 8));
    CHECK(!epw_other_end_ends(&other, 8, 7) && epw_other_end_ends(&other, 8, 8));
    other = (epw_other_end){0};
    CHECK(!epw_other_end_ends(&other, 0, 7) &&
          epw_other_end_connects(&other, 0, 7)); /* another of its number */
    CHECK(!epw_other_end_is_met(&other, 7));
}

/* ---- connections of one pair ---- */

/* What the NIC answers to a CONNECTED, and to a row after it, of pair `from` of the peer's end `fd`. */
static epw_frame announced(const end *e, int fd, uint32_t from) {
    epw_frame frame = {.kind = EPW_FRAME_CONNECTED, .pair = epw_pair_number(e->pair), .from = from};
    end by = *e;
    by.fd = fd;
    say_rows(&by, frame, 1 << 30);
    return hear_frame(&by);
}

static bool takes(const end *e, int fd, uint32_t from, uint32_t index) {
    epw_frame frame = rows_of(e, 1, 100, 0);
    end by = *e;
    by.fd = fd;
    frame.from = from;
    frame.index = index;
    say_rows(&by, frame, 1 << 30);
    epw_frame answer = hear_frame(&by);
    CHECK(answer.pair == from && answer.index == index);
    return answer.kind == EPW_FRAME_ACK;
}

static bool is_acknowledged(const end *e, epw_frame answer, uint32_t from) {
    return answer.kind == EPW_FRAME_HEARD && answer.pair == from && answer.from == epw_pair_number(e->pair);
}

static bool is_refused(epw_frame answer, uint32_t from) {
    return answer.kind == EPW_FRAME_NAK && answer.pair == from && answer.index == 0;
}

/* Before the first row a later connection of the peer takes the place of an earlier one, also if that ends.
 */
static void an_unused_pair_is_of_the_latest_connection(void) {
    end e;
    open_end(&e);
    uint64_t links[2];
    int later = connect_by(&e, 1, &links[0]), stranger = connect_by(&e, 2, &links[1]);
    CHECK(is_refused(announced(&e, stranger, 5), 5));
    CHECK(is_acknowledged(&e, announced(&e, e.fd, 7), 7));
    CHECK(is_acknowledged(&e, announced(&e, later, 8), 8));
    CHECK(is_refused(announced(&e, e.fd, 7), 7));
    CHECK(!takes(&e, e.fd, 7, 0) && takes(&e, later, 8, 0) && takes(&e, later, 8, 1));
    CHECK(!epw_pair_broken(e.pair) && !epw_pair_is_closed(e.pair));
    close(later);
    close(stranger);
    close_end(&e);
}

/* Afterwards a later one shows that the peer has replaced its end. */
static void a_used_pair_ends_with_its_connection(void) {
    end e;
    open_end(&e);
    uint64_t links[2];
    int used = connect_by(&e, 1, &links[0]), later = connect_by(&e, 1, &links[1]);
    CHECK(takes(&e, used, 7, 0));
    CHECK(is_refused(announced(&e, e.fd, 6), 6)); /* an earlier one shows nothing */
    CHECK(takes(&e, used, 7, 1) && !epw_pair_broken(e.pair));
    CHECK(is_refused(announced(&e, later, 8), 8));
    CHECK(epw_pair_broken(e.pair) && epw_pair_is_closed(e.pair));
    CHECK(!takes(&e, used, 7, 2));
    close(used);
    close(later);
    close_end(&e);
}

int main(void) {
    rows_of_a_range_share_a_frame();
    others_have_frames_of_their_own();
    what_no_nic_says_is_no_frame();
    some_name_two_pairs(8);
    some_name_two_pairs(9);
    some_name_two_pairs(10);
    ends_are_told_with_who_says_so();
    an_owner_says_whom_its_pairs_take();
    a_pair_is_heard_by_its_other_end();
    an_adapters_pair_takes_one_pair_once();
    an_end_before_this_one_is_connected_is_kept();
    rows_go_to_their_places_however_they_come();
    rows_that_leave_the_region_are_refused();
    rows_may_lie_in_several_areas();
    a_frame_goes_to_two_areas();
    a_range_is_sent_as_one_frame();
    a_region_that_goes_takes_only_its_bytes_along();
    a_turn_ends_after_a_while();
    what_a_look_takes_in_is_answered();
    who_unlocks_sends_what_is_left();
    the_end_of_a_pair_sends_for_others();
    acks_come_by_any_connection_of_the_peer();
    an_unused_pair_is_of_the_latest_connection();
    a_used_pair_ends_with_its_connection();
    return check_result("frames");
}
