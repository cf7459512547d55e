/* See ring.h. */
#include "nic/soft/ring.h"

#include "base/barrier.h"
#include "ipc/fd_pass.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 4096,
    /* A long piece is announced in parts of this size: the reader copies them while more is written. */
    TELL_BYTES = 32 << 10
};

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert(2 * sizeof(epw_ring_cursors) <= HEAD_BYTES, "cursors of both rings lie in front of the bytes");

/* Both ends may be in one process, with mappings at two addresses. ThreadSanitizer cannot know that these are
 * the same memory, so it is told what each cursor publishes. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char handed_on;
#define HANDS_ON() __tsan_release(&handed_on)
#define TAKES_ON() __tsan_acquire(&handed_on)
#else
#define HANDS_ON() ((void)0)
#define TAKES_ON() ((void)0)
#endif

/* ---- memory ---- */

static int map(epw_rings *rings, int memory, uint32_t bytes, bool dialed) {
    rings->mapped = HEAD_BYTES + (uint64_t)bytes + EPW_RING_ANSWERS;
    void *at = mmap(NULL, rings->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (at == MAP_FAILED) return errno;
    /* The other end continues to use these pages, so a forked child must not keep them when this end has
     * gone. */
    if (madvise(at, rings->mapped, MADV_DONTFORK) != 0) {
        int err = errno;
        munmap(at, rings->mapped);
        return err;
    }
    epw_ring_cursors *cursors = at;
    unsigned char *data = (unsigned char *)at + HEAD_BYTES;
    epw_ring requests = {.cursors = cursors, .bytes = data, .size = bytes};
    epw_ring answers = {.cursors = cursors + 1, .bytes = data + bytes, .size = EPW_RING_ANSWERS};
    rings->memory = at;
    rings->out = dialed ? requests : answers;
    rings->in = dialed ? answers : requests;
    return 0;
}

void epw_rings_unmap(epw_rings *rings) {
    if (rings->memory != NULL) munmap(rings->memory, rings->mapped);
    *rings = (epw_rings){0};
}

static int create(uint32_t bytes) {
    int memory = memfd_create("epwire-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) return -1;
    off_t size = HEAD_BYTES + (off_t)bytes + EPW_RING_ANSWERS;
    if (ftruncate(memory, size) == 0 && fcntl(memory, F_ADD_SEALS, SIZE_SEALS) == 0) return memory;
    int err = errno;
    close(memory);
    errno = err;
    return -1;
}

int epw_rings_offer(epw_rings *rings, int fd, uint32_t bytes) {
    int memory = create(bytes);
    if (memory < 0) return errno;
    int err = map(rings, memory, bytes, true);
    if (err == 0) err = epw_fd_pass(fd, "", 1, memory, MSG_DONTWAIT) == 1 ? 0 : errno;
    if (err != 0) epw_rings_unmap(rings);
    close(memory);
    return err;
}

/* Memory that could shrink under this process would end it. */
static int map_passed(epw_rings *rings, int memory) {
    struct stat stat;
    if (fstat(memory, &stat) != 0) return errno;
    int seals = fcntl(memory, F_GET_SEALS);
    if (!S_ISREG(stat.st_mode) || seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS) return EPROTO;
    int64_t bytes = (int64_t)stat.st_size - HEAD_BYTES - EPW_RING_ANSWERS;
    if (bytes < EPW_RING_BYTES_MIN || bytes > EPW_RING_BYTES_MAX || (bytes & (bytes - 1)) != 0) return EPROTO;
    return map(rings, memory, (uint32_t)bytes, false);
}

int epw_rings_take(epw_rings *rings, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&(char){0}, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EINTR || errno == EWOULDBLOCK ? EAGAIN : errno;
    int memory = epw_fd_taken(&message);
    if (memory < 0) return EPROTO;
    int err = map_passed(rings, memory);
    close(memory);
    return err;
}

/* ---- wake-ups ---- */

bool epw_rings_hear(int fd) {
    char calls[64];
    for (;;) {
        ssize_t n = recv(fd, calls, sizeof calls, MSG_DONTWAIT);
        if (n == (ssize_t)sizeof calls || (n < 0 && errno == EINTR)) continue;
        return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
    }
}

/* Called after a cursor was published. The two observers: this end, which publishes a cursor and then checks
 * whether the other end sleeps; and the other end, which says that it sleeps and then reads the cursor. With
 * a full fence on both sides either this end sees the sleeper, or the other one the cursor. A socket that
 * takes no more wake-ups still holds some that have not been read. */
static void wake(_Atomic uint32_t *sleeps, int fd) {
    epw_notice_fence();
    if (atomic_load_explicit(sleeps, memory_order_relaxed) == 0) return;
    if (atomic_exchange_explicit(sleeps, 0, memory_order_relaxed) == 0) return;
    while (send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

static void sleeps(_Atomic uint32_t *sleeps) {
    atomic_store_explicit(sleeps, 1, memory_order_relaxed);
    epw_notice_fence(); /* see wake */
}

bool epw_ring_await_bytes(epw_ring *ring, uint32_t bytes) {
    sleeps(&ring->cursors->reader_sleeps);
    return epw_ring_filled(ring) < bytes;
}

bool epw_ring_await_room(epw_ring *ring) {
    sleeps(&ring->cursors->writer_sleeps);
    return !epw_ring_has_room(ring);
}

/* ---- writing ---- */

/* Writer: the ring's reader, after its copies of what it frees. Reader: the ring's writer, before it writes
 * there. */
static uint64_t used(const epw_ring *ring) {
    uint64_t read = atomic_load_explicit(&ring->cursors->read, memory_order_acquire);
    TAKES_ON();
    return ring->at - read;
}

bool epw_ring_has_room(const epw_ring *ring) {
    uint64_t taken = used(ring);
    return taken > ring->size || ring->size - taken >= ring->size / 4;
}

/* Writer: the ring's writer, after the bytes. Reader: epw_ring_filled. */
static void tell_written(epw_ring *ring, int fd) {
    HANDS_ON();
    atomic_store_explicit(&ring->cursors->written, ring->at, memory_order_release);
    wake(&ring->cursors->reader_sleeps, fd);
}

static void put(epw_ring *ring, const unsigned char *from, uint64_t bytes) {
    uint64_t at = ring->at & (ring->size - 1), first = ring->size - at < bytes ? ring->size - at : bytes;
    memcpy(ring->bytes + at, from, first);
    memcpy(ring->bytes, from + first, bytes - first);
    ring->at += bytes;
}

ssize_t epw_ring_write(epw_ring *ring, int fd, const struct iovec *from, size_t count) {
    uint64_t taken = used(ring), began = ring->at, told = began;
    if (taken > ring->size) {
        errno = EPROTO;
        return -1;
    }
    uint64_t room = ring->size - taken;
    for (size_t i = 0; i < count && room > 0; i++) {
        const unsigned char *bytes = from[i].iov_base;
        uint64_t left = from[i].iov_len < room ? from[i].iov_len : room;
        room -= left;
        while (left > 0) {
            uint64_t piece = left < TELL_BYTES ? left : TELL_BYTES;
            put(ring, bytes, piece);
            bytes += piece;
            left -= piece;
            if (ring->at - told < TELL_BYTES) continue;
            tell_written(ring, fd);
            told = ring->at;
        }
    }
    if (ring->at == began) {
        errno = EAGAIN;
        return -1;
    }
    if (ring->at != told) tell_written(ring, fd);
    return (ssize_t)(ring->at - began);
}

/* ---- reading ---- */

uint64_t epw_ring_filled(const epw_ring *ring) {
    uint64_t written = atomic_load_explicit(&ring->cursors->written, memory_order_acquire);
    TAKES_ON();
    return written - ring->at;
}

void epw_ring_copy(const epw_ring *ring, unsigned char *to, uint64_t bytes) {
    uint64_t at = ring->at & (ring->size - 1), first = ring->size - at < bytes ? ring->size - at : bytes;
    memcpy(to, ring->bytes + at, first);
    memcpy(to + first, ring->bytes, bytes - first);
}

void epw_ring_advance(epw_ring *ring, int fd, uint64_t bytes) {
    ring->at += bytes;
    HANDS_ON();
    atomic_store_explicit(&ring->cursors->read, ring->at, memory_order_release); /* see used */
    if (epw_ring_filled(ring) <= ring->size - ring->size / 4) wake(&ring->cursors->writer_sleeps, fd);
}
