/* Another process, which imports windows, lives, stops and dies. It is the test program, started again with
 * the two arguments `other FD`, and obeys commands on that socketpair. Main begins with other_main. */
#ifndef EPW_TESTS_IMPORTS_OTHER_H
#define EPW_TESTS_IMPORTS_OTHER_H

#include "end.h"
#include "ipc/fd_message.h"
#include "ipc/offer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct command {
    char verb; /* 'i'mport, 'w'rite, 'r'ead, 'c'lose, 'd'rop connections, 'e'xport, export as a 'g'pu's,
                  'f'etch raw, become 'u'ser, 'o'ld kernel, 'b'ell: ring, 'x': use up descriptors */
    uint32_t peer;
    uint32_t value; /* to write, or how often to ring, or how many descriptors to leave, or the user id, or
                       one of the kernels below */
    uint64_t offset;
    uint64_t deadline_ns;
    spec own; /* of the process's own window */
    size_t length;
    unsigned char blob[EPW_BLOB_MAX];
} command;

typedef struct answer {
    epw_status status;
    uint32_t path;
    uint32_t value;
    size_t length;
    unsigned char blob[EPW_BLOB_MAX];
    char error[512];
} answer;

typedef struct other {
    pid_t pid;
    int fd;
} other;

/* ---- what it does ---- */

/* Sends a request without the client's own check of the server's user; 0 if the server closed without an
 * answer. */
static inline ssize_t fetch_raw(const epw_blob *blob) {
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&blob->server, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = 1, .window = blob->window};
    epw_fd_reply reply;
    ssize_t got = -1;
    if (!connect(fd, (struct sockaddr *)&address, length)) {
        send(fd, &request, sizeof request, MSG_NOSIGNAL);
        got = recv(fd, &reply, sizeof reply, 0);
        if (got < 0 && errno == ECONNRESET) got = 0;
    }
    close(fd);
    return got;
}

/* Makes the server treat the host memory of a blob's window, in this process, as a GPU's that is mapped by
 * `path`. */
static inline void pretend_gpu(const unsigned char *bytes, size_t length, uint32_t path) {
    epw_blob blob;
    CHECK(epw_blob_parse(bytes, length, here, &blob) == EPW_OK);
    epw_process_lock();
    epw_offer *offer = epw_offer_find(&blob.window);
    CHECK(offer);
    if (offer) ((epw_memory *)epw_offer_memory(offer))->origin.path = path;
    epw_process_unlock();
}

/* Closes all connections to fd servers, without a goodbye. */
static inline void drop_connections(void) {
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un server;
        socklen_t length = sizeof server;
        if (!getpeername(fd, (struct sockaddr *)&server, &length) && length > sizeof server.sun_family + 8 &&
            !memcmp(server.sun_path, "\0epwire-", 8))
            close(fd);
    }
}

/* Opens files until only `left` more can be opened, with a limit of 64. */
static inline void use_up_descriptors(uint32_t left) {
    static int opened[64];
    static uint32_t count;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (count < 64 && (opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) count++;
    for (; left > 0 && count > 0; left--) close(opened[--count]);
}

enum { WITHOUT_PEERPIDFD = 1, WITHOUT_PIDFD = 2 };

/* Makes those calls fail that kernels before Linux 6.5, and before 5.3, do not have. */
static inline epw_status become_old(uint32_t kernel) {
    enum { PEERPIDFD = 77 };
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, kernel == WITHOUT_PIDFD ? SECCOMP_RET_ERRNO | ENOSYS : SECCOMP_RET_ALLOW),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PEERPIDFD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
               ? EPW_ERR_SYSTEM
               : EPW_OK;
}

static inline void obey(const command *c, epw_window **own, epw_import **import, answer *a) {
    epw_blob blob;
    if (!*own && c->own.ranks) a->status = create_window(&c->own, own);
    if (a->status) return;
    switch (c->verb) {
    case 'i':
        a->status = epw_window_import(*own, c->peer, c->blob, c->length, c->deadline_ns, import);
        if (a->status == EPW_OK) a->path = epw_import_path(*import);
        break;
    case 'w':
        epw_import_base(*import)[c->offset] = (unsigned char)c->value;
        break;
    case 'r':
        a->value = epw_import_base(*import)[c->offset];
        break;
    case 'b':
        for (uint32_t i = 0; i < c->value && a->status == EPW_OK; i++)
            a->status = epw_import_ring(*import, here);
        break;
    case 'x':
        use_up_descriptors(c->value);
        break;
    case 'c':
        epw_import_close(*import);
        *import = NULL;
        break;
    case 'd':
        drop_connections();
        break;
    case 'e':
    case 'g':
        a->status = epw_window_export(*own, c->peer, NULL, a->blob, &a->length);
        if (c->verb == 'g') pretend_gpu(a->blob, a->length, EPW_PATH_VMM);
        break;
    case 'o':
        a->status = become_old(c->value);
        break;
    case 'f':
        a->status = epw_blob_parse(c->blob, c->length, here, &blob);
        a->value = (uint32_t)fetch_raw(&blob);
        break;
    case 'u':
        a->status = setuid(c->value);
        break;
    }
}

static inline int run_other(int fd) {
    epw_window *own = NULL;
    epw_import *import = NULL;
    command c;
    while (recv(fd, &c, sizeof c, 0) == (ssize_t)sizeof c) {
        answer a = {0};
        obey(&c, &own, &import, &a);
        snprintf(a.error, sizeof a.error, "%s", epw_last_error());
        if (send(fd, &a, sizeof a, MSG_NOSIGNAL) != (ssize_t)sizeof a) break;
    }
    epw_import_close(import);
    epw_window_destroy(own);
    return 0;
}

/* The exit code of the other process; -1 in the test itself. */
static inline int other_main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "other")) return run_other(atoi(argv[2]));
    signal(SIGPIPE, SIG_DFL); /* nothing here may depend on SIGPIPE being ignored */
    return -1;
}

/* ---- what is asked of it ---- */

static inline other start_other(void) {
    int ends[2];
    other o = {0};
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    char fd[16];
    snprintf(fd, sizeof fd, "%d", ends[1]);
    o.pid = fork();
    if (o.pid == 0) {
        fcntl(ends[1], F_SETFD, 0);
        execl("/proc/self/exe", "window", "other", fd, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    o.fd = ends[0];
    return o;
}

static inline answer ask(const other *o, command c) {
    answer a = {.status = EPW_ERR_SYSTEM};
    CHECK(send(o->fd, &c, sizeof c, MSG_NOSIGNAL) == (ssize_t)sizeof c);
    CHECK(recv(o->fd, &a, sizeof a, 0) == (ssize_t)sizeof a);
    return a;
}

static inline answer ask_import(const other *o, uint32_t rank, uint32_t peer, const end *e) {
    command c = {
        .verb = 'i', .peer = peer, .deadline_ns = 5000 * MS, .own = spec_of(rank), .length = e->length};
    memcpy(c.blob, e->blob, e->length);
    return ask(o, c);
}

static inline void ask_write(const other *o, uint64_t offset, uint32_t value) {
    ask(o, (command){.verb = 'w', .offset = offset, .value = value});
}

/* Returns once the process has stopped. */
static inline void stop_other(const other *o) {
    int status = 0;
    kill(o->pid, SIGSTOP);
    CHECK(waitpid(o->pid, &status, WUNTRACED) == o->pid && WIFSTOPPED(status));
}

static inline void kill_other(other *o) {
    kill(o->pid, SIGKILL);
    waitpid(o->pid, NULL, 0);
    close(o->fd);
}

/* Closing the socketpair ends its loop. */
static inline void end_other(other *o) {
    close(o->fd);
    int status = -1;
    waitpid(o->pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline bool fenced_by(answer got, pid_t pid) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "process %d still has", (int)pid);
    return got.status == EPW_ERR_FENCED && strstr(got.error, wanted);
}

#endif
