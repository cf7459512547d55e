/* A peer whose process is killed becomes a suspect within 10 ms, long before its deadline, and the record
 * gives the reason: a connection that ends is not silence. Over each wire; each kill is of a process of its
 * own. */
#include "group.h"

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIMES_SLOWER = 10 }; /* the tear-down of the killed process is slower, too */
#else
enum { TIMES_SLOWER = 1 };
#endif

enum { KILLS = 11, DEADLINE_MS = 10000, WITHIN_MS = 30 * TIMES_SLOWER };

static bool pass_blob(int fd, epw_buffer *b, uint32_t peer) {
    struct {
        size_t length;
        unsigned char bytes[EPW_BLOB_MAX];
    } own = {0}, its;
    CHECK_OK(epw_buffer_export(b, peer, own.bytes, &own.length));
    if (send(fd, &own, sizeof own, MSG_NOSIGNAL) != (ssize_t)sizeof own) return false;
    if (recv(fd, &its, sizeof its, MSG_WAITALL) != (ssize_t)sizeof its) return false;
    return CHECK_OK(epw_buffer_connect(b, peer, its.bytes, its.length)), true;
}

/* Connects to the other rank, and begins a membership with it. NULL: that has failed. */
static epw_buffer *begin(uint32_t rank, int fd, epw_fabric **fabric) {
    epw_buffer *b = make_rank(rank, 2, DEADLINE_MS * MS, fabric);
    epw_mask all = first_ranks(2);
    if (!pass_blob(fd, b, 1 - rank)) return NULL;
    CHECK_OK(epw_buffer_set_active(b, &all, 1, 0));
    return b;
}

/* The peer: begins once it is told the wire, and is killed while the other rank waits for it. */
static _Noreturn void be_killed(int fd) {
    char wire[8];
    epw_fabric *fabric;
    if (recv(fd, wire, sizeof wire, MSG_WAITALL) != (ssize_t)sizeof wire) _exit(1);
    setenv("EPW_TEST_WIRE", wire, 1);
    if (begin(1, fd, &fabric) == NULL) _exit(1);
    for (;;) pause();
}

typedef struct victim {
    pid_t process;
    int fd;
    uint64_t killed_ns;
} victim;

static void *kill_it(void *argument) {
    victim *v = argument;
    nanosleep(&(struct timespec){0, (long)(20 * MS)}, NULL);
    v->killed_ns = epw_now_ns();
    kill(v->process, SIGKILL);
    return NULL;
}

/* The line that tells of the loss. It gives the reason that epw_buffer_trouble gives, unless another thread
 * was busy with the peers at that moment. */
typedef struct heard {
    char text[1024];
} heard;

static void hear(void *context, const epw_log_record *record) {
    heard *h = context;
    if (record->peer == 1) snprintf(h->text, sizeof h->text, "%s", record->text);
}

static unsigned explained, losses; /* losses whose line gives the reason, and all */

/* How long after the kill the peer was given up. */
static uint64_t time_of_kill(victim *v, const char *wire) {
    char name[8] = {0};
    epw_fabric *fabric;
    pthread_t killer;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    memcpy(name, wire, strlen(wire));
    setenv("EPW_TEST_WIRE", wire, 1);
    CHECK(send(v->fd, name, sizeof name, MSG_NOSIGNAL) == (ssize_t)sizeof name);
    epw_buffer *b = begin(0, v->fd, &fabric);
    epw_handle handle = send_batch(b, 0, 0, 0);
    heard line = {0};
    CHECK_OK(epw_log_set("wait=warn", hear, &line));
    pthread_create(&killer, NULL, kill_it, v);
    CHECK_OK(epw_dispatch_receive(b, handle, &nothing, &outcome));
    uint64_t known_ns = epw_now_ns();
    pthread_join(killer, NULL);
    CHECK_MSG(outcome.missing.bits[0] == 2 && outcome.record.cause == EPW_CAUSE_LINK &&
                  outcome.record.peer == 1 && outcome.record.op == 1,
              "cause %u", outcome.record.cause);
    CHECK(outcome.record.elapsed_ns < DEADLINE_MS * MS / 2);
    CHECK(membership_of(b).suspects.bits[0] == 2 && membership_of(b).silent.bits[0] == 0);
    char text[EPW_TROUBLE_TEXT];
    /* The cause is the entry that was in flight or, once entries posted later have hidden that, the
     * connection. */
    epw_buffer_trouble(b, 1, text);
    CHECK_MSG(strstr(text, "the connection to its NIC is gone") != NULL ||
                  strcmp(text,
                         "an entry for it failed: the peer is not reached any more (syndrome 0x15, vendor "
                         "0x81): see that its process lives, and the network between the hosts") == 0,
              "%s", text);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
    CHECK_MSG(strncmp(line.text, "given up: ", 10) == 0, "%s", line.text);
    losses++;
    explained += strstr(line.text, "the connection to its NIC is gone") != NULL ||
                 strstr(line.text, "an entry for it failed: ") != NULL;
    CHECK_OK(epw_release(b, handle));
    epw_buffer_destroy(b);
    epw_fabric_destroy(fabric);
    return known_ns > v->killed_ns ? known_ns - v->killed_ns : 0;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Checks the median: on a loaded machine some kills are noticed late, and if it is busy all may be. Once the
 * median is certain to be too late, the rest is skipped. */
static void a_killed_peer_is_given_up_soon(victim *victims, const char *wire) {
    uint64_t times[KILLS], within = WITHIN_MS * MS * times_busier();
    for (int i = 0, late = 0; i < KILLS; i++) {
        times[i] = late <= KILLS / 2 ? time_of_kill(&victims[i], wire) : UINT64_MAX;
        late += times[i] >= within;
    }
    qsort(times, KILLS, sizeof times[0], by_size);
    CHECK_MSG(times[KILLS / 2] < within, "over %s: median %llu us, %llu to %llu", wire,
              (unsigned long long)times[KILLS / 2] / 1000, (unsigned long long)times[0] / 1000,
              (unsigned long long)times[KILLS - 1] / 1000);
    printf("given up %llu us after the kill over %s (median of %d; %llu to %llu)\n",
           (unsigned long long)times[KILLS / 2] / 1000, wire, KILLS, (unsigned long long)times[0] / 1000,
           (unsigned long long)times[KILLS - 1] / 1000);
}

int main(void) {
    static victim victims[2 * KILLS];
    setenv("EPW_TEST_PATH", "queue", 1);
    unsetenv("EPW_TEST_NIC");
    /* All before this process has threads. */
    for (int i = 0; i < 2 * KILLS; i++) {
        int fds[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
        victims[i] = (victim){.process = fork(), .fd = fds[0]};
        if (victims[i].process == 0) {
            for (int j = 0; j <= i; j++) close(victims[j].fd);
            be_killed(fds[1]);
        }
        close(fds[1]);
    }
    a_killed_peer_is_given_up_soon(victims, "local");
    a_killed_peer_is_given_up_soon(victims + KILLS, "tcp");
    CHECK_MSG(explained > losses / 2, "%u of %u losses were logged with their reason", explained, losses);
    for (int i = 0; i < 2 * KILLS; i++) {
        close(victims[i].fd);
        waitpid(victims[i].process, NULL, 0);
    }
    return check_result("resets");
}
