/* The program that is started by hand as the coordinator of ranks that are processes: it starts them, tells
 * them what to do, stops and kills them. */
#ifndef EPW_TESTS_COORDINATOR_H
#define EPW_TESTS_COORDINATOR_H

#include "ranks.h"
#include "require.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum {
    CREATE = 1, /* what the rank works with */
    EXPORT,     /* to `peer`; answers with the blob */
    CONNECT,    /* to `peer`, with its blob */
    DISCONNECT, /* from `peer` */
    ACTIVATE,   /* `mask` from `epoch` on */
    STEPS,      /* `count` of them */
    QUIT,
    MORE /* the first that a test has for itself */
};

/* What a rank is told to do. It answers with the same message, once that is done. */
typedef struct message {
    uint32_t what, peer, epoch, count, cause, kind;
    uint64_t mask, iteration;
    uint64_t took_ns; /* in the answer: the operation in question */
    size_t length;
    unsigned char blob[EPW_BLOB_MAX];
} message;

typedef struct crew {
    uint32_t ranks, gpus;
    char **argv;
    int to[RANKS_LIMIT];
    pid_t process[RANKS_LIMIT];
} crew;

static inline uint64_t bit(uint32_t rank) {
    return UINT64_C(1) << rank;
}

/* ---- a rank ---- */

/* What it has been told next. */
static inline message told(const rank_links *links) {
    message in;
    REQUIRE(ranks_hear(links->to[0], &in, sizeof in) == sizeof in, "half a message");
    return in;
}

/* Connects by `connect`, which is tried again until the peer's former process has been seen dead. */
#define CONNECT_WITHIN(connect, to, in)                                                                      \
    do {                                                                                                     \
        uint64_t began_ = now_ns();                                                                          \
        epw_status status_;                                                                                  \
        while ((status_ = connect((to), (in)->peer, (in)->blob, (in)->length, 10000 * MS)) ==                \
                   EPW_ERR_FENCED &&                                                                         \
               now_ns() - began_ < 10000 * MS)                                                               \
            nanosleep(&(struct timespec){0, 5000000}, NULL);                                                 \
        REQUIRE(status_ == EPW_OK, "%s", epw_last_error());                                                  \
    } while (0)

/* ---- the coordinator ---- */

static inline void tell(const crew *c, uint32_t rank, message out) {
    ranks_say(c->to[rank], &out, sizeof out);
}

static inline message answer(const crew *c, uint32_t rank) {
    message in;
    REQUIRE(ranks_hear(c->to[rank], &in, sizeof in) == sizeof in, "half a message from rank %u", rank);
    return in;
}

static inline message ask(const crew *c, uint32_t rank, message out) {
    tell(c, rank, out);
    return answer(c, rank);
}

static inline void start(crew *c, uint32_t rank, uint64_t iteration) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair: %s",
            strerror(errno));
    rank_links links = {
        .rank = rank, .ranks = c->ranks, .gpus = c->gpus, .to = {pair[1], -1, -1, -1, -1, -1, -1, -1}};
    c->to[rank] = pair[0];
    c->process[rank] = ranks_start(&links, c->argv);
    close(pair[1]);
    ask(c, rank, (message){.what = CREATE, .iteration = iteration});
}

static inline void connect_pair(const crew *c, uint32_t a, uint32_t b) {
    message from_a = ask(c, a, (message){.what = EXPORT, .peer = b});
    message from_b = ask(c, b, (message){.what = EXPORT, .peer = a});
    from_a.what = from_b.what = CONNECT;
    from_a.peer = a;
    from_b.peer = b;
    ask(c, b, from_a);
    ask(c, a, from_b);
}

static inline void start_all(crew *c, uint64_t iteration) {
    for (uint32_t r = 0; r < c->ranks; r++) start(c, r, iteration);
    for (uint32_t a = 0; a < c->ranks; a++) {
        for (uint32_t b = 0; b < a; b++) connect_pair(c, a, b);
    }
}

/* Another process takes the rank's place. */
static inline void replace(crew *c, uint32_t rank, uint64_t iteration) {
    start(c, rank, iteration);
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (r != rank) connect_pair(c, r, rank);
    }
}

static inline void send_signal(const crew *c, uint32_t rank, int which) {
    REQUIRE(kill(c->process[rank], which) == 0, "kill: %s", strerror(errno));
}

/* Awaits the end of the rank's process; `with`: the signal that ends it, 0: it ends by itself. */
static inline void end(const crew *c, uint32_t rank, int with) {
    int status = 0;
    if (with != 0) send_signal(c, rank, with);
    REQUIRE(waitpid(c->process[rank], &status, 0) == c->process[rank], "waitpid: %s", strerror(errno));
    REQUIRE(with != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "rank %u ended with %d", rank,
            status);
    close(c->to[rank]);
}

/* Kills or stops it, by SIGKILL or SIGSTOP. */
static inline void strike_with(const crew *c, uint32_t rank, int with) {
    int status = 0;
    pid_t process = c->process[rank];
    if (with == SIGKILL) {
        end(c, rank, SIGKILL);
        return;
    }
    send_signal(c, rank, SIGSTOP);
    REQUIRE(waitpid(process, &status, WUNTRACED) == process && WIFSTOPPED(status), "waitpid: %d", status);
}

#endif
