/* See process.h. */
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sha256.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static atomic_uint generation;

/* Guarded by the lock. */
static struct {
    int *list;
    size_t count, capacity;
} private_fds;
static bool have_process_nonce;
static epw_nonce process_nonce;

void epw_process_lock(void) {
    pthread_mutex_lock(&lock);
}

void epw_process_unlock(void) {
    pthread_mutex_unlock(&lock);
}

void epw_process_wait(void) {
    pthread_cond_wait(&changed, &lock);
}

void epw_process_notify(void) {
    pthread_cond_broadcast(&changed);
}

uint32_t epw_process_generation(void) {
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

bool epw_fd_keep_from_child(int fd) {
    if (private_fds.count == private_fds.capacity) {
        size_t capacity = private_fds.capacity ? 2 * private_fds.capacity : 16;
        int *list = realloc(private_fds.list, capacity * sizeof *list);
        if (list == NULL) return false;
        private_fds.list = list;
        private_fds.capacity = capacity;
    }
    private_fds.list[private_fds.count++] = fd;
    return true;
}

void epw_fd_forget(int fd) {
    for (size_t i = 0; i < private_fds.count; i++) {
        if (private_fds.list[i] != fd) continue;
        private_fds.list[i] = private_fds.list[--private_fds.count];
        break;
    }
    if (private_fds.count > 0) return;
    free(private_fds.list);
    private_fds.list = NULL;
    private_fds.capacity = 0;
}

void epw_fd_close(int fd) {
    epw_fd_forget(fd);
    close(fd);
}

void epw_fd_release(int fd) {
    epw_process_lock();
    epw_fd_close(fd);
    epw_process_unlock();
}

/* A thread that holds one of the locks does not exist in the child, which would wait for it forever. */
static void before_fork(void) {
    epw_process_lock();
    epw_log_lock();
}

static void after_fork(void) {
    epw_log_unlock();
    epw_process_unlock();
}

static void child_after_fork(void) {
    for (size_t i = 0; i < private_fds.count; i++) close(private_fds.list[i]);
    private_fds.count = 0;
    have_process_nonce = false;
    pthread_cond_init(&changed, NULL); /* its waiters do not exist in the child */
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    after_fork();
}

static int atfork_error;

static void register_fork_handlers(void) {
    atfork_error = pthread_atfork(before_fork, after_fork, child_after_fork);
}

epw_status epw_process_ready(epw_where where) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
    return atfork_error ? epw_fail_errno(atfork_error, where, "pthread_atfork") : EPW_OK;
}

epw_status epw_nonce_make(epw_where where, epw_nonce *out) {
    ssize_t got;
    do got = getrandom(out->bytes, sizeof out->bytes, 0);
    while (got < 0 && errno == EINTR); /* requests of up to 256 bytes are never cut short */
    return got == (ssize_t)sizeof out->bytes ? EPW_OK : epw_fail_errno(errno, where, "getrandom");
}

bool epw_nonce_equal(const epw_nonce *a, const epw_nonce *b) {
    return epw_bytes_equal(a->bytes, b->bytes, sizeof a->bytes);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The kernel's boot id: 32 hexadecimal digits with dashes among them. */
static epw_status read_boot_id(epw_where where, epw_nonce *out) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return epw_fail_errno(errno, where, "opening %s", path);
    char text[64];
    ssize_t length = read(fd, text, sizeof text);
    int err = errno;
    close(fd);
    if (length < 0) return epw_fail_errno(err, where, "reading %s", path);
    size_t digits = 0;
    *out = (epw_nonce){{0}};
    for (ssize_t i = 0; i < length && digits < 2 * sizeof out->bytes; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0) continue;
        out->bytes[digits / 2] |= (unsigned char)(digit << (digits % 2 ? 0 : 4));
        digits++;
    }
    if (digits == 2 * sizeof out->bytes) return EPW_OK;
    return epw_fail(EPW_ERR_SYSTEM, where, "%s holds no boot id: mount a real /proc", path);
}

epw_status epw_identity_get(epw_where where, epw_identity *out) {
    epw_status status = read_boot_id(where, &out->boot_id);
    if (status != EPW_OK) return status;
    struct stat net;
    if (stat("/proc/thread-self/ns/net", &net))
        return epw_fail_errno(errno, where, "reading /proc/thread-self/ns/net");
    out->network_namespace = net.st_ino;
    out->pid = (uint32_t)getpid();
    epw_process_lock();
    if (!have_process_nonce) status = epw_nonce_make(where, &process_nonce);
    have_process_nonce = status == EPW_OK;
    out->process = process_nonce;
    epw_process_unlock();
    return status;
}
