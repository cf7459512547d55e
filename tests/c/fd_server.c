/* The server that hands out windows and its clients, when one of the two is silent, stopped, lying, or of
 * another user. */
#include "imports/other.h"
#include "imports/raw.h"
#include "ipc/fd_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

/* ---- servers ---- */

/* Lets the blob that `a` exports to rank 1 name a server of another process; returns the address that the
 * server must have. */
static struct sockaddr_un forge_server(end *a, socklen_t *length) {
    export_to(a, 1);
    epw_blob blob;
    CHECK(epw_blob_parse(a->blob, a->length, here, &blob) == EPW_OK);
    blob.host.process.bytes[0] ^= 1;
    CHECK(epw_nonce_make(here, &blob.server) == EPW_OK);
    epw_blob_write(&blob, a->blob);
    struct sockaddr_un address;
    *length = epw_fd_address(&blob.server, &address);
    return address;
}

static void a_silent_server_is_a_timeout(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    socklen_t length;
    struct sockaddr_un address = forge_server(&a, &length);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 0));
    /* The first attempt gets no answer and stays in the listen queue, so the queue is full for the second. */
    const char *texts[] = {"did not answer within 100 ms", "did not accept a connection within 100 ms"};
    for (int i = 0; i < 2; i++) {
        uint64_t begin = epw_now_ns();
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 100 * MS, &import) == EPW_ERR_TIMEOUT);
        uint64_t took = epw_now_ns() - begin;
        CHECK(took >= 99 * MS && took < 5000 * MS);
        CHECK(error_has(texts[i]));
    }
    close(listener);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_stopped_exporter_is_a_timeout(void) {
    end a = open_end(spec_of(0));
    other o = start_other();
    answer got = ask(&o, (command){.verb = 'e', .peer = 0, .own = spec_of(1)});
    stop_other(&o);
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 100 * MS, &import) == EPW_ERR_TIMEOUT);
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 0, &import) == EPW_ERR_TIMEOUT);
    kill(o.pid, SIGCONT);
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_OK);
    epw_import_close(import);
    epw_window_destroy(a.window);
    end_other(&o);
}

/* Answers one client with `reply` and up to two descriptors. */
typedef struct liar {
    int listener;
    const void *reply;
    size_t length;
    int fds[2];
    size_t fd_count;
} liar;

static void *lie(void *argument) {
    const liar *l = argument;
    epw_fd_request request;
    char control[CMSG_SPACE(2 * sizeof(int))] __attribute__((aligned(16))) = {0};
    int fd = accept(l->listener, NULL, NULL);
    CHECK(recv(fd, &request, sizeof request, 0) == (ssize_t)sizeof request);
    struct iovec part = {(void *)l->reply, l->length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (l->fd_count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(l->fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(l->fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), l->fds, l->fd_count * sizeof(int));
    }
    CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)l->length);
    close(fd);
    return NULL;
}

static void lying_servers_are_errors(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    socklen_t length;
    struct sockaddr_un address = forge_server(&a, &length);

    int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(!ftruncate(unsealed, WINDOW_BYTES) && !ftruncate(small, 4096));
    CHECK(!fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    epw_fd_reply granted = {EPW_FD_REPLY_MAGIC, EPW_FD_GRANTED, 0}, refused = {EPW_FD_REPLY_MAGIC, 99, 0};
    char longer[sizeof granted + 1] = {0};
    memcpy(longer, &granted, sizeof granted);
    liar liars[] = {
        {0, "", 0, {small}, 1},
        {0, "x", 1, {0}, 0},
        {0, longer, sizeof longer, {unsealed}, 1},
        {0, &granted, sizeof granted, {0}, 0},
        {0, &granted, sizeof granted, {unsealed}, 1},
        {0, &granted, sizeof granted, {small, unsealed}, 2},
        {0, &granted, sizeof granted, {null}, 1},
        {0, &refused, sizeof refused, {0}, 0},
        {0, &refused, sizeof refused, {small}, 1},
    };
    int before = open_fds();
    for (size_t i = 0; i < sizeof liars / sizeof liars[0]; i++) {
        liars[i].listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(!bind(liars[i].listener, (struct sockaddr *)&address, length) && !listen(liars[i].listener, 4));
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, lie, &liars[i]));
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 2000 * MS, &import) == EPW_ERR_PEER);
        pthread_join(thread, NULL);
        close(liars[i].listener);
    }
    CHECK(open_fds() == before);
    close(unsealed);
    close(small);
    close(null);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* ---- clients ---- */

static void bad_clients_delay_nobody(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    epw_blob blob;
    int silent[100];
    for (int i = 0; i < 100; i++) silent[i] = connect_raw(&a, &blob);
    uint64_t begin = epw_now_ns();
    other o = start_other();
    CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK);
    CHECK(epw_now_ns() - begin < 4000 * MS);
    for (int i = 0; i < 100; i++) close(silent[i]);
    end_other(&o);

    epw_fd_reply reply;
    static const char garbage[5000] = {1, 2, 3};
    size_t lengths[] = {1, sizeof(epw_fd_request), sizeof(epw_fd_request) + 1, sizeof garbage};
    for (int i = 0; i < 4; i++) {
        int fd = connect_raw(&a, &blob);
        CHECK(send(fd, garbage, lengths[i], MSG_NOSIGNAL) == (ssize_t)lengths[i]);
        CHECK(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        CHECK(reply.verdict == EPW_FD_MALFORMED);
        CHECK(recv(fd, &reply, sizeof reply, 0) <= 0);
        close(fd);
    }
    /* The secret differs in one bit; then it is right, but the rank does not exist. */
    for (uint32_t i = 0; i < 2; i++) {
        int fd = connect_raw(&a, &blob);
        epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = RANKS, .window = blob.window};
        request.window.bytes[15] ^= i == 0;
        CHECK(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
        CHECK(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        CHECK(reply.verdict == (i == 0 ? EPW_FD_UNKNOWN_WINDOW : EPW_FD_NO_SUCH_RANK));
        close(fd);
    }
    epw_window_destroy(a.window);
}

/* With far more connections than the server keeps, a client that sends a request is served at once. */
static void idle_connections_delay_nobody(void) {
    enum { IDLE = 700 };
    struct rlimit limit, before;
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    setrlimit(RLIMIT_NOFILE, &limit);
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    epw_blob blob;
    static int idle[IDLE];
    other o = start_other();
    uint64_t begin = epw_now_ns();
    for (int i = 0; i < IDLE; i++) {
        idle[i] = connect_raw(&a, &blob);
        if (i % 10 != 9) continue;
        command c = {.verb = 'i', .deadline_ns = 20000 * MS, .own = spec_of(1), .length = a.length};
        memcpy(c.blob, a.blob, a.length);
        answer got = ask(&o, c);
        CHECK_MSG(got.status == EPW_OK, "with %d idle connections: %s", i + 1, got.error);
        ask(&o, (command){.verb = 'c'});
    }
    CHECK(epw_now_ns() - begin <
          EPW_FD_REQUEST_NS); /* otherwise the first were closed because of their age */
    /* The oldest connections were closed to make room; the newest are open and may still send a request. */
    struct pollfd first = {.fd = idle[0], .events = POLLIN};
    CHECK(poll(&first, 1, 1000) == 1 && (first.revents & POLLHUP));
    CHECK(request_raw(idle[IDLE - 1], &blob, 1) == EPW_FD_GRANTED);
    for (int i = 0; i < IDLE; i++) close(idle[i]);
    end_other(&o);
    epw_window_destroy(a.window);
    setrlimit(RLIMIT_NOFILE, &before);
}

/* ---- descriptors ---- */

static bool names_the_limit(answer got, const char *who) {
    bool found = strstr(got.error, who) && strstr(got.error, "raise ulimit -n");
    if (!found) fprintf(stderr, "%s\n", got.error);
    return found;
}

static void an_exporter_without_descriptors_says_so(void) {
    end b = open_end(spec_of(1));
    other o = start_other();
    answer got = ask(&o, (command){.verb = 'e', .peer = 1, .own = spec_of(0)});
    CHECK(got.status == EPW_OK);
    ask(&o, (command){.verb = 'x'});
    for (int round = 0; round < 20; round++) {
        epw_import *import = NULL;
        uint64_t begin = epw_now_ns();
        CHECK(epw_window_import(b.window, 0, got.blob, got.length, 20000 * MS, &import) == EPW_ERR_PEER);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "process %d is out of file descriptors", (int)o.pid);
        CHECK(error_has(wanted) && error_has("raise ulimit -n there"));
        CHECK(epw_now_ns() - begin < 10000 * MS); /* and not because it did not answer in time */
    }
    ask(&o, (command){.verb = 'x', .value = 10});
    epw_import *import = NULL;
    CHECK_OK(epw_window_import(b.window, 0, got.blob, got.length, 2000 * MS, &import));
    epw_import_close(import);
    epw_window_destroy(b.window);
    end_other(&o);
}

static void an_exporter_needs_a_descriptor_to_watch_a_gpu_importer(void) {
    end b = open_end(spec_of(1));
    other o = start_other();
    answer got = ask(&o, (command){.verb = 'g', .peer = 1, .own = spec_of(0)});
    CHECK(got.status == EPW_OK);
    ask(&o, (command){.verb = 'x', .value = 1});
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, got.blob, got.length, 2000 * MS, &import) == EPW_ERR_PEER);
    CHECK(error_has("is out of file descriptors"));
    epw_window_destroy(b.window);
    end_other(&o);
}

/* An import needs a socket, and a descriptor of the window's memory: one or both cannot be opened. */
static void an_importer_without_descriptors_says_so(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    other o = start_other(), next = start_other();
    CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK); /* it can import its own window */
    ask(&o, (command){.verb = 'c'});
    static const char *const lacks[] = {"Too many open files", "this process is out of file descriptors"};
    for (uint32_t left = 0; left < 2; left++) {
        ask(&o, (command){.verb = 'x', .value = left});
        answer got = ask_import(&o, 1, 0, &a);
        CHECK(got.status == EPW_ERR_SYSTEM && names_the_limit(got, lacks[left]));
    }
    CHECK(ask_import(&next, 1, 0, &a).status == EPW_OK); /* no lease was left behind */
    ask(&next, (command){.verb = 'c'});
    ask(&o, (command){.verb = 'x', .value = 2});
    CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK);
    end_other(&o);
    end_other(&next);
    epw_window_destroy(a.window);
}

/* ---- time and users ---- */

static void silent_clients_are_closed_in_time(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    epw_blob blob;
    int fd = connect_raw(&a, &blob);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t begin = epw_now_ns();
    CHECK(poll(&p, 1, 20000) == 1 && (p.revents & POLLHUP));
    uint64_t took = epw_now_ns() - begin;
    CHECK(took > 4000 * MS && took < 15000 * MS);
    close(fd);
    epw_window_destroy(a.window);
}

static void other_users_are_refused(void) {
    if (geteuid() != 0) {
        printf("ignored: other_users_are_refused: needs root, to become another user\n");
        return;
    }
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    other o = start_other();
    command c = {.verb = 'u', .value = 65534, .own = spec_of(1)};
    CHECK(ask(&o, c).status == 0);
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_PEER && strstr(got.error, "belongs to user 0, this one to user 65534"));
    c.verb = 'f';
    c.length = a.length;
    memcpy(c.blob, a.blob, a.length);
    got = ask(&o, c);
    CHECK(got.status == EPW_OK && got.value == 0);

    /* Root is no exception in the other direction: it does not take a window from another user. */
    got = ask(&o, (command){.verb = 'e', .peer = 0, .own = spec_of(1)});
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 1000 * MS, &import) == EPW_ERR_PEER);
    end_other(&o);
    epw_window_destroy(a.window);
}

int main(int argc, char **argv) {
    int ended = other_main(argc, argv);
    if (ended >= 0) return ended;
    a_silent_server_is_a_timeout();
    a_stopped_exporter_is_a_timeout();
    lying_servers_are_errors();
    bad_clients_delay_nobody();
    idle_connections_delay_nobody();
    an_exporter_without_descriptors_says_so();
    an_exporter_needs_a_descriptor_to_watch_a_gpu_importer();
    an_importer_without_descriptors_says_so();
    silent_clients_are_closed_in_time();
    other_users_are_refused();
    return check_result("fd_server");
}
