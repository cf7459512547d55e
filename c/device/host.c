/* Host memory that processes share: a sealed memfd, mapped by each process that uses it.
 *
 * The seals make a peer's memory safe to access: if a memfd could shrink, its owner could turn each of our
 * accesses into SIGBUS. Pages are made resident at creation, so that lack of memory is an error here instead
 * of a kill later, and so that the first operation takes no page faults. */
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/clock.h"
#include "device/memory_limit.h"

/* Values of the kernel's interface that older C libraries do not define. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The largest page of any kernel. Windows are whole multiples of it, so that hosts agree on their size. */
#define PAGE_MOST   (UINT64_C(64) << 10)
#define PIECE_BYTES (UINT64_C(16) << 20)
#define STEP_BYTES  (UINT64_C(1) << 20) /* an interrupted fallocate begins again */
#define NO_LIMIT    UINT64_MAX
#define SIZE_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* EPW_ERR_NO_MEMORY if the system reports a lack of memory, else EPW_ERR_SYSTEM. */
static epw_status memory_error(int err, epw_where where, const char *call, uint64_t bytes) {
    if (err != ENOMEM && err != ENOSPC)
        return epw_fail_errno(err, where, "%s of a window of %llu bytes", call, (unsigned long long)bytes);
    return epw_fail(
        EPW_ERR_NO_MEMORY, where,
        "%s: no memory for a window of %llu bytes; make it smaller (epw_plan_make itemises it) or raise the "
        "memory limit",
        call, (unsigned long long)bytes);
}

/* Maps `fd` so that no forked child ever inherits it: a child could write the window after its parent was
 * seen dead and its place was granted to another rank. The mapping has no access rights until MADV_DONTFORK
 * is set, so that a fork in between inherits nothing usable. */
static epw_status map_private_to_process(int fd, uint64_t bytes, epw_where where, unsigned char **out) {
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return memory_error(errno, where, "mmap", bytes);
    if (madvise(base, bytes, MADV_DONTFORK) || mprotect(base, bytes, PROT_READ | PROT_WRITE)) {
        epw_status status = memory_error(errno, where, "madvise(MADV_DONTFORK) and mprotect", bytes);
        munmap(base, bytes);
        return status;
    }
    madvise(base, bytes, MADV_HUGEPAGE); /* best effort: kernels without shared huge pages refuse it */
    *out = base;
    return EPW_OK;
}

/* Makes a piece's pages resident and maps them. Before Linux 5.14 the kernel can only make them resident. */
static epw_status populate_piece(int fd, unsigned char *base, uint64_t offset, uint64_t bytes,
                                 epw_where where) {
    if (!madvise(base + offset, bytes, MADV_POPULATE_WRITE)) return EPW_OK;
    /* EFAULT: a page cannot be had, and fallocate says why. */
    if (errno != EINVAL && errno != EFAULT)
        return memory_error(errno, where, "madvise(MADV_POPULATE_WRITE)", bytes);
    bool bad_page = errno == EFAULT;
    for (uint64_t done = 0; done < bytes; done += STEP_BYTES) {
        uint64_t step = bytes - done < STEP_BYTES ? bytes - done : STEP_BYTES;
        while (fallocate(fd, 0, (off_t)(offset + done), (off_t)step)) {
            if (errno != EINTR) return memory_error(errno, where, "fallocate", bytes);
        }
    }
    if (bad_page && madvise(base + offset, bytes, MADV_POPULATE_WRITE))
        return memory_error(errno, where, "madvise(MADV_POPULATE_WRITE)", bytes);
    return EPW_OK;
}

/* Populates piece by piece; a piece takes a few milliseconds, which is how late a timeout may be. */
static epw_status populate(int fd, unsigned char *base, uint64_t bytes, uint64_t until_ns, epw_where where) {
    for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
        if (until_ns != NO_LIMIT && epw_now_ns() >= until_ns)
            return epw_fail(
                EPW_ERR_TIMEOUT, where,
                "mapping the peer's window of %llu bytes takes longer than the deadline (%llu are "
                "mapped): raise it, or give connect_within more time",
                (unsigned long long)bytes, (unsigned long long)done);
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        epw_status status = populate_piece(fd, base, done, piece, where);
        if (status != EPW_OK) return status;
    }
    return EPW_OK;
}

static epw_status map_and_populate(int fd, uint64_t bytes, uint64_t until_ns, epw_where where,
                                   unsigned char **out) {
    unsigned char *base = NULL;
    epw_status status = map_private_to_process(fd, bytes, where, &base);
    if (status != EPW_OK) return status;
    status = populate(fd, base, bytes, until_ns, where);
    if (status != EPW_OK) {
        munmap(base, bytes);
        return status;
    }
    *out = base;
    return EPW_OK;
}

static int create_memfd(void) {
    int fd = memfd_create("epwire-window", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd >= 0 || errno != EINVAL) return fd;
    return memfd_create("epwire-window", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* for kernels before Linux 6.3 */
}

static epw_status host_create(int32_t ordinal, uint32_t paths, uint64_t bytes, epw_where where,
                              epw_memory *out) {
    (void)ordinal, (void)paths; /* there is one host, and one way to share its memory */
    if (bytes == 0 || bytes > (uint64_t)INT64_MAX - PAGE_MOST || bytes > SIZE_MAX - PAGE_MOST)
        return epw_fail(EPW_ERR_LIMIT, where, "a window of %llu bytes cannot be mapped",
                        (unsigned long long)bytes);
    bytes = epw_align(bytes, PAGE_MOST);
    epw_status status = epw_memory_limit_check("", "a window", bytes, where);
    if (status != EPW_OK) return status;

    int fd = create_memfd();
    if (fd < 0) return epw_fail_errno(errno, where, "memfd_create");
    if (ftruncate(fd, (off_t)bytes)) {
        status = memory_error(errno, where, "ftruncate", bytes);
    } else if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS)) {
        status = epw_fail_errno(errno, where, "sealing the window's size");
    } else {
        status = map_and_populate(fd, bytes, NO_LIMIT, where, &out->base);
    }
    if (status != EPW_OK) {
        close(fd);
        return status;
    }
    out->bytes = bytes;
    out->fd = fd;
    out->ordinal = EPW_DEVICE_HOST;
    out->origin = (epw_origin){.path = EPW_PATH_SHM};
    return EPW_OK;
}

static void host_unmap(epw_memory *memory) {
    munmap(memory->base, memory->bytes);
    memory->base = NULL;
}

static void host_destroy(epw_memory *memory) {
    host_unmap(memory);
    close(memory->fd);
    memory->fd = -1;
}

static epw_status host_map(int32_t ordinal, const epw_origin *origin, int fd, uint64_t bytes,
                           uint64_t until_ns, epw_where where, epw_memory *out) {
    struct stat stat;
    if (fstat(fd, &stat)) return epw_fail_errno(errno, where, "fstat of the peer's window");
    if (!S_ISREG(stat.st_mode) || stat.st_size < 0 || (uint64_t)stat.st_size != bytes)
        return epw_fail(EPW_ERR_PEER, where,
                        "the peer sent memory of %lld bytes for a window of %llu; use the same "
                        "epwire version on all ranks",
                        (long long)stat.st_size, (unsigned long long)bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS)
        return epw_fail(EPW_ERR_PEER, where,
                        "the peer sent memory whose size is not sealed: using it could end this "
                        "process by SIGBUS; use the same epwire version on all ranks");
    epw_status status = map_and_populate(fd, bytes, until_ns, where, &out->base);
    if (status != EPW_OK) return status;
    out->bytes = bytes;
    out->fd = -1;
    out->ordinal = ordinal;
    out->origin = *origin;
    return EPW_OK;
}

static epw_status host_share(const epw_memory *memory, int32_t ordinal, epw_where where) {
    (void)memory, (void)ordinal, (void)where; /* threads share it without a mapping of their own */
    return EPW_OK;
}

const epw_device epw_device_host = {
    .name = "host",
    .create = host_create,
    .destroy = host_destroy,
    .map = host_map,
    .unmap = host_unmap,
    .share = host_share,
};
