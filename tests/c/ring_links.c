/* A NIC whose peer misuses the rings between them: the cursors, the memory itself, or the bytes in it. The
 * peer is this test, with the raw ends of the rings. */
#include "check.h"
#include "garbage.h"

#include "base/clock.h"
#include "ipc/fd_pass.h"
#include "nic/soft.h"
#include "nic/soft/frame.h"
#include "nic/soft/parts.h"
#include "nic/soft/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum { MEMORY = 1 << 16, OPEN_FROM = 64, OPEN_BYTES = 30000, RING = 1 << 14, FILL = 0x5a };

static const epw_where here = {"test", 0, -1};

typedef struct victim {
    epw_nic *nic;
    epw_pair *pair;
    uint64_t link;
    uint32_t key;
    unsigned char *window;
    int fd;          /* the peer's */
    epw_rings rings; /* the peer's */
} victim;

static void open_unoffered(victim *v) {
    int fds[2];
    *v = (victim){.window = malloc(MEMORY)};
    memset(v->window, FILL, MEMORY);
    CHECK_OK(epw_nic_open(here, &v->nic));
    epw_region region = {.base = v->window,
                         .rights = EPW_REGION_READ | EPW_REGION_WRITE | EPW_REGION_ATOMIC,
                         .count = 1,
                         .stretches = {{OPEN_FROM, OPEN_BYTES}}};
    v->key = epw_nic_register(v->nic, &region);
    epw_pair_options options = {.peer = 1, .key = v->key, .depth = 16};
    CHECK_OK(epw_pair_create(v->nic, &options, here, &v->pair));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    CHECK_OK(epw_nic_add_ring_link(v->nic, fds[0], 1, 0, here, &v->link));
    v->fd = fds[1];
}

static void open_victim_with(victim *v, uint32_t ring) {
    open_unoffered(v);
    CHECK(epw_rings_offer(&v->rings, v->fd, ring) == 0);
    epw_pair_connect(v->pair, v->link, 1);
}

static void open_victim(victim *v) {
    open_victim_with(v, RING);
}

/* Checks that only what the key permits was written. */
static void close_victim(victim *v) {
    for (uint32_t i = 0; i < MEMORY; i++)
        if (i < OPEN_FROM || i >= OPEN_FROM + OPEN_BYTES) CHECK_MSG(v->window[i] == FILL, "byte %u", i);
    epw_pair_destroy(v->pair);
    epw_nic_close(v->nic);
    epw_rings_unmap(&v->rings);
    if (v->fd >= 0) close(v->fd);
    free(v->window);
}

static bool ends(const victim *v) {
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < 5000 * MS;) {
        if (!epw_nic_link_alive(v->nic, v->link)) return true;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

static void say(victim *v, const void *bytes, size_t length) {
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    CHECK(epw_ring_write(&v->rings.out, v->fd, &part, 1) == (ssize_t)length);
}

static void say_write(victim *v, uint32_t index, uint64_t offset, uint32_t bytes) {
    unsigned char head[EPW_FRAME_BYTES];
    epw_frame frame = {.kind = EPW_FRAME_WRITE,
                       .wants_ack = true,
                       .pair = epw_pair_number(v->pair),
                       .from = 7,
                       .index = index,
                       .key = v->key,
                       .offset = offset,
                       .bytes = bytes};
    epw_frame_write(&frame, head);
    say(v, head, sizeof head);
}

/* Waits until the ring of answers has this many bytes. */
static bool is_answered(const victim *v, uint64_t bytes) {
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < 5000 * MS;) {
        if (epw_ring_filled(&v->rings.in) >= bytes) return true;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

/* What a correct peer writes is answered; otherwise the following tests would prove nothing. */
static void a_sound_peer_is_answered(void) {
    victim v;
    open_victim(&v);
    static const unsigned char bytes[9000] = {[0] = 1, [8999] = 2};
    for (uint32_t i = 0; i < 40; i++) { /* many laps of the ring */
        say_write(&v, i, OPEN_FROM, sizeof bytes);
        say(&v, bytes, sizeof bytes / 2);
        say(&v, bytes + sizeof bytes / 2, sizeof bytes / 2);
        CHECK(is_answered(&v, EPW_FRAME_BYTES));
        epw_ring_advance(&v.rings.in, v.fd, EPW_FRAME_BYTES);
        CHECK(memcmp(v.window + OPEN_FROM, bytes, sizeof bytes) == 0);
    }
    CHECK(epw_nic_link_alive(v.nic, v.link));
    close_victim(&v);
}

static void call(const victim *v) {
    CHECK(send(v->fd, "", 1, MSG_NOSIGNAL) == 1);
}

static void cursors_that_cannot_be_end_the_connection(void) {
    static const uint64_t off[] = {RING + 1, RING + 64, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 31};
    for (size_t i = 0; i < 2 * sizeof off / sizeof off[0]; i++) {
        victim v;
        open_victim(&v);
        say_write(&v, 0, OPEN_FROM, 8);
        say(&v, "12345678", 8);
        CHECK(is_answered(&v, EPW_FRAME_BYTES));
        bool of_requests = i % 2 == 0;
        if (of_requests) {
            atomic_fetch_add(&v.rings.out.cursors->written, off[i / 2]);
            call(&v);
        } else { /* noticed with the next answer */
            atomic_fetch_add(&v.rings.in.cursors->read, off[i / 2] + EPW_RING_ANSWERS);
            say_write(&v, 1, OPEN_FROM, 8);
            say(&v, "12345678", 8);
        }
        CHECK_MSG(ends(&v), "cursor %zu", i);
        CHECK(epw_pair_broken(v.pair));
        close_victim(&v);
    }
}

static void garbage_ends_the_connection(void) {
    for (uint32_t seed = 1; seed <= 100; seed++) {
        victim v;
        open_victim(&v);
        unsigned char bytes[RING];
        fill_with_garbage(bytes, sizeof bytes, seed);
        say(&v, bytes, seed % 3 == 0 ? sizeof bytes : 512);
        close(v.fd);
        v.fd = -1;
        CHECK(ends(&v));
        close_victim(&v);
    }
}

/* The peer writes into the ring while it is read. */
static void what_changes_under_the_reader_touches_nothing_else(void) {
    victim v;
    open_victim(&v);
    const uint64_t began = epw_now_ns();
    uint32_t x = 1, index = 0;
    while (epw_now_ns() - began < (index > 2000 ? 200 : 5000) * MS && epw_nic_link_alive(v.nic, v.link)) {
        if (epw_ring_filled(&v.rings.in) >= EPW_FRAME_BYTES)
            epw_ring_advance(&v.rings.in, v.fd, EPW_FRAME_BYTES);
        if (epw_ring_has_room(&v.rings.out)) {
            say_write(&v, index++, OPEN_FROM, 8);
            say(&v, "12345678", 8);
        }
        x = x * 1664525u + 1013904223u;
        if (index > 1000)
            __atomic_store_n(&v.rings.out.bytes[(x >> 8) % RING], (unsigned char)x, __ATOMIC_RELAXED);
    }
    CHECK(index > 100);
    close_victim(&v);
}

/* Fewer bytes than a header: the thread sleeps until there are more. */
static void a_part_of_a_header_is_waited_for(void) {
    victim v;
    open_victim(&v);
    unsigned char head[EPW_FRAME_BYTES];
    epw_frame frame = {.kind = EPW_FRAME_NOP, .wants_ack = true, .pair = epw_pair_number(v.pair), .from = 7};
    struct timespec before, after;
    epw_frame_write(&frame, head);
    say(&v, head, 20);
    nanosleep(&(struct timespec){0, 20 * MS}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&(struct timespec){0, 200 * MS}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used = (int64_t)(after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    CHECK_MSG(used < (int64_t)(50 * MS), "%.1f ms of 200", (double)used / MS);
    say(&v, head + 20, sizeof head - 20);
    CHECK(is_answered(&v, EPW_FRAME_BYTES));
    close_victim(&v);
}

/* The thread sleeps between looks for the doorbells of kernels, here for longer than the test waits for an
 * answer. */
static void a_nap_ends_with_what_a_ring_brings(void) {
    victim v;
    open_victim(&v);
    epw_pair *polled = NULL;
    epw_pair_options options = {.peer = 1, .key = v.key, .depth = 16, .polled = true};
    epw_nic_stretch_sleeps(v.nic, 1000000);
    CHECK_OK(epw_pair_create(v.nic, &options, here, &polled));
    for (uint32_t i = 0; i < 5; i++) {
        nanosleep(&(struct timespec){0, 30 * MS}, NULL);
        say_write(&v, i, OPEN_FROM, 8);
        say(&v, "12345678", 8);
        CHECK_MSG(is_answered(&v, EPW_FRAME_BYTES), "write %u", i);
        epw_ring_advance(&v.rings.in, v.fd, EPW_FRAME_BYTES);
    }
    epw_pair_destroy(polled);
    close_victim(&v);
}

/* ---- the memory that is passed ---- */

static void pass(int fd, int memory) {
    CHECK(epw_fd_pass(fd, "", 1, memory, 0) == 1);
}

/* The peer's rings in this memory, as its other end maps it. */
static void map_by_hand(epw_rings *rings, int memory, size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    epw_ring_cursors *cursors = at;
    unsigned char *bytes = (unsigned char *)at + 4096;
    CHECK(at != MAP_FAILED);
    *rings = (epw_rings){.memory = at, .mapped = size};
    rings->out = (epw_ring){.cursors = cursors, .bytes = bytes, .size = RING};
    rings->in = (epw_ring){.cursors = cursors + 1, .bytes = bytes + RING, .size = EPW_RING_ANSWERS};
}

static void memory_that_is_no_rings_ends_the_connection(void) {
    enum { NONE, A_PIPE, UNSEALED, EMPTY, ODD, LARGE, GOOD, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        victim v;
        open_unoffered(&v);
        off_t size = 4096 + EPW_RING_ANSWERS + (off_t)RING;
        if (kind == EMPTY) size = 0;
        if (kind == ODD) size += 4096;
        if (kind == LARGE) size = (off_t)4096 + EPW_RING_ANSWERS + (off_t)2 * EPW_RING_BYTES_MAX;
        int memory = -1, pipes[2] = {-1, -1};
        if (kind == A_PIPE) {
            CHECK(!pipe(pipes));
            memory = dup(pipes[0]);
        } else if (kind != NONE) {
            memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            CHECK(!ftruncate(memory, size));
            int seals = F_SEAL_GROW | F_SEAL_SEAL | (kind == UNSEALED ? 0 : F_SEAL_SHRINK);
            CHECK(!fcntl(memory, F_ADD_SEALS, seals));
        }
        pass(v.fd, memory);
        if (kind == GOOD) {
            map_by_hand(&v.rings, memory, (size_t)size);
            epw_pair_connect(v.pair, v.link, 1);
            say_write(&v, 0, OPEN_FROM, 8);
            say(&v, "12345678", 8);
            CHECK(is_answered(&v, EPW_FRAME_BYTES) && epw_nic_link_alive(v.nic, v.link));
        } else {
            CHECK_MSG(ends(&v), "memory of kind %d", kind);
        }
        if (memory >= 0) close(memory);
        for (int i = 0; i < 2; i++)
            if (pipes[i] >= 0) close(pipes[i]);
        close_victim(&v);
    }
}

/* ---- an end that is gone ---- */

/* Its ring is larger than what is read in one turn, and full. */
static void all_that_a_peer_wrote_before_it_ended_is_placed(void) {
    enum { BYTES = OPEN_BYTES, LARGE_RING = 64 << 20, WRITES = LARGE_RING / (BYTES + EPW_FRAME_BYTES) - 1 };
    static unsigned char bytes[BYTES];
    victim v;
    open_victim_with(&v, LARGE_RING);
    /* Nothing but the end wakes the thread. */
    _Atomic uint32_t *sleeps = &v.rings.out.cursors->reader_sleeps;
    for (int ms = 0; ms < 5000 && atomic_load(sleeps) == 0; ms++) nanosleep(&(struct timespec){0, MS}, NULL);
    nanosleep(&(struct timespec){0, 20 * MS}, NULL);
    atomic_store(sleeps, 0);
    for (uint32_t i = 0; i < WRITES; i++) {
        memcpy(bytes, &i, sizeof i);
        say_write(&v, i, OPEN_FROM, BYTES);
        say(&v, bytes, BYTES);
    }
    close(v.fd);
    v.fd = -1;
    CHECK(ends(&v));
    uint32_t last;
    memcpy(&last, v.window + OPEN_FROM, sizeof last);
    CHECK_MSG(last == WRITES - 1, "%u of %u", last + 1, WRITES);
    close_victim(&v);
}

static void a_peer_that_has_closed_is_told_as_gone(void) {
    epw_nic *nic = NULL;
    uint64_t link = 0;
    int fds[2];
    CHECK_OK(epw_nic_open(here, &nic));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    close(fds[1]);
    CHECK(epw_nic_add_ring_link(nic, fds[0], 1, RING, here, &link) == EPW_ERR_PEER);
    CHECK_MSG(strstr(epw_last_error(), "the peer has closed the connection") != NULL, "%s", epw_last_error());
    epw_nic_close(nic);
}

/* ---- the size ---- */

static void sizes_are_checked(void) {
    static const uint32_t wrong[] = {1, 2048, 4097, UINT32_C(3) << 20, UINT32_C(1) << 31};
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    epw_fabric *fabric = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options.ring_bytes = wrong[i];
        CHECK(epw_fabric_create(&options, &fabric) == EPW_ERR_INVALID);
        CHECK_MSG(strstr(epw_last_error(), "options.ring_bytes") != NULL, "%s", epw_last_error());
    }
    options.ring_bytes = 0;
    static const uint32_t wrong_depths[] = {1, 8, 48, 65536};
    for (size_t i = 0; i < sizeof wrong_depths / sizeof wrong_depths[0]; i++) {
        options.queue_depth = wrong_depths[i];
        CHECK(epw_fabric_create(&options, &fabric) == EPW_ERR_INVALID);
        CHECK_MSG(strstr(epw_last_error(), "options.queue_depth") != NULL &&
                      strstr(epw_last_error(), "from 16 to 32768") != NULL,
                  "%s", epw_last_error());
    }
    options.queue_depth = EPW_QUEUE_DEPTH_MAX;
    options.doorbell_batch = EPW_QUEUE_DEPTH_MAX + 1;
    CHECK(epw_fabric_create(&options, &fabric) == EPW_ERR_INVALID);
    CHECK_MSG(strstr(epw_last_error(), "options.doorbell_batch is 32769, must be at most 32768") != NULL,
              "%s", epw_last_error());
    options.doorbell_batch = EPW_QUEUE_DEPTH_MAX;
    options.ring_bytes = EPW_RING_BYTES_MIN;
    CHECK_OK(epw_fabric_create(&options, &fabric));
    epw_fabric_destroy(fabric);
}

/* A forked child may keep the socket of a connection open that has ended. Its end must not wake the NIC's
 * thread, again and again. */
static void a_socket_that_somebody_keeps_is_watched_no_more(void) {
    int fds[2];
    uint64_t link;
    epw_nic *nic;
    CHECK_OK(epw_nic_open(here, &nic));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    int kept = dup(fds[0]);
    CHECK_OK(epw_nic_add_link(nic, fds[0], 1, here, &link));
    close(fds[1]);
    for (int i = 0; i < 5000 && epw_nic_link_alive(nic, link); i++)
        nanosleep(&(struct timespec){0, MS}, NULL);
    CHECK(!epw_nic_link_alive(nic, link));
    struct epoll_event events[4];
    int count = epoll_wait(nic->epoll, events, 4, 0);
    for (int i = 0; i < count; i++) CHECK(events[i].data.u64 != link);
    close(kept);
    epw_nic_close(nic);
}

int main(void) {
    a_socket_that_somebody_keeps_is_watched_no_more();
    a_sound_peer_is_answered();
    cursors_that_cannot_be_end_the_connection();
    garbage_ends_the_connection();
    what_changes_under_the_reader_touches_nothing_else();
    KEEP_TIME(a_part_of_a_header_is_waited_for());
    a_nap_ends_with_what_a_ring_brings();
    memory_that_is_no_rings_ends_the_connection();
    all_that_a_peer_wrote_before_it_ended_is_placed();
    a_peer_that_has_closed_is_told_as_gone();
    sizes_are_checked();
    return check_result("ring_links");
}
