/* Which incarnation of a rank holds its lease of a window, for how long, and what ends the lease: for host
 * memory the end of the connection, for GPU memory the end of the process or its goodbye. */
#include "imports/other.h"
#include "imports/raw.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

/* ---- of host memory ---- */

static void a_place_is_granted_again_once_its_holder_is_dead(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    other first = start_other(), second = start_other();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    stop_other(&first);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    /* A rank of this process is no exception. */
    end b = open_end(spec_of(1));
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_FENCED);
    kill(first.pid, SIGCONT);
    ask_write(&first, 1, 1);
    CHECK(epw_window_base(a.window)[1] == 1);
    kill_other(&first);
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);

    /* The leases of other ranks were never affected. */
    other third = start_other();
    export_to(&a, 2);
    CHECK(ask_import(&third, 2, 0, &a).status == EPW_OK);
    kill_other(&second);
    kill_other(&third);

    /* Now a thread holds the lease, and processes must wait for it. */
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_OK);
    other fourth = start_other();
    CHECK(fenced_by(ask_import(&fourth, 1, 0, &a), getpid()));
    epw_import_close(import);
    CHECK(ask_import(&fourth, 1, 0, &a).status == EPW_OK);
    end_other(&fourth);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void the_same_window_may_shake_hands_again(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    other first = start_other(), second = start_other();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK); /* the first import stays open */
    ask(&first, (command){.verb = 'c'});
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    kill_other(&first);
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
    ask(&second, (command){.verb = 'c'});
    other third = start_other();
    CHECK(ask_import(&third, 1, 0, &a).status == EPW_OK);
    end_other(&second);
    end_other(&third);
    epw_window_destroy(a.window);
}

/* A lease belongs to an incarnation, not to its process: through the former import of a rank, writing is
 * still possible, in the same process as in another. For either path, and any mixture of the two. */
static void a_second_window_of_a_process_waits_for_the_first(void) {
    static const uint32_t paths[] = {EPW_PATH_THREAD, EPW_PATH_SHM};
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    for (int i = 0; i < 4; i++) {
        spec former = spec_of(1), latter = spec_of(1);
        former.paths = paths[i % 2];
        latter.paths = paths[i / 2];
        end old = open_end(former), fresh = open_end(latter);
        epw_import *imports[2] = {NULL, NULL}, *import = NULL;
        CHECK_OK(epw_window_import(old.window, 0, a.blob, a.length, 5000 * MS, &imports[0]));
        CHECK(epw_import_path(imports[0]) == paths[i % 2]);
        CHECK(epw_window_import(fresh.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_ERR_FENCED);
        CHECK(error_has("another buffer of this process still has the peer's window mapped as rank 1"));
        CHECK(error_has("destroy that buffer, or disconnect it from the peer"));

        /* The first incarnation may import again; then both of its imports count. */
        CHECK_OK(epw_window_import(old.window, 0, a.blob, a.length, 5000 * MS, &imports[1]));
        for (int j = 0; j < 2; j++) {
            CHECK(epw_window_import(fresh.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_ERR_FENCED);
            epw_import_close(imports[j]);
        }
        CHECK_OK(epw_window_import(fresh.window, 0, a.blob, a.length, 5000 * MS, &import));
        CHECK(epw_import_path(import) == paths[i / 2]);
        epw_import *late = NULL;
        CHECK(epw_window_import(old.window, 0, a.blob, a.length, 5000 * MS, &late) == EPW_ERR_FENCED);
        epw_import_close(import);
        epw_window_destroy(old.window);
        epw_window_destroy(fresh.window);
    }
    epw_window_destroy(a.window);
}

static epw_status connect_buffer(epw_buffer *from, epw_buffer *to) {
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
    CHECK_OK(epw_buffer_export(to, 1, blob, &length));
    return epw_buffer_connect(from, 0, blob, length);
}

/* The same through the public interface. */
static void a_second_buffer_of_a_process_waits_for_the_first(void) {
    static const uint32_t paths[] = {EPW_PATH_THREAD, EPW_PATH_SHM};
    for (int i = 0; i < 4; i++) {
        epw_config config = EPW_CONFIG_INIT;
        config.ranks = config.experts = 2;
        config.max_tokens = config.topk = config.threads = 1;
        config.hidden = 8;
        epw_buffer *a = NULL, *old = NULL, *fresh = NULL;
        CHECK_OK(epw_buffer_create(&config, &a));
        config.rank = 1;
        config.paths = paths[i / 2];
        CHECK_OK(epw_buffer_create(&config, &old));
        CHECK_OK(epw_buffer_create(&config, &fresh));
        CHECK_OK(connect_buffer(old, a));
        CHECK_OK(connect_buffer(old, a)); /* the same buffer, again */
        CHECK(epw_buffer_path(old, 0) == paths[i / 2]);
        CHECK(connect_buffer(fresh, a) == EPW_ERR_FENCED);
        CHECK(error_has("connect: rank 1: peer 0: another buffer of this process still has"));
        if (i % 2) {
            CHECK_OK(epw_buffer_disconnect(old, 0));
        } else {
            epw_buffer_destroy(old);
            old = NULL;
        }
        CHECK_OK(connect_buffer(fresh, a));
        if (old != NULL) CHECK(connect_buffer(old, a) == EPW_ERR_FENCED);
        epw_buffer_destroy(old);
        epw_buffer_destroy(fresh);
        epw_buffer_destroy(a);
    }
}

/* The child neither holds the lease nor can write, and knows that it is another process. */
static void a_forked_child_inherits_nothing(void) {
    other o = start_other();
    end a = open_end(spec_of(0));
    answer got = {0};
    command c = {.verb = 'e', .peer = 0, .own = spec_of(1)};
    got = ask(&o, c);
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_OK);
    export_to(&a, 1);
    int before = open_fds();
    pid_t child = fork();
    if (child == 0) {
        int wrong = 0;
        unsigned char resident[1];
        wrong |= mincore(epw_import_base(import), 4096, resident) == 0;
        wrong |= mincore(epw_window_base(a.window), 4096, resident) == 0;
        /* memfd, listener, eventfd, the spare descriptor, and the lease */
        wrong |= (open_fds() != before - 5) << 1;
        unsigned char blob[EPW_BLOB_MAX];
        size_t length;
        wrong |= (epw_window_export(a.window, 1, NULL, blob, &length) != EPW_ERR_STATE) << 2;
        epw_identity self;
        epw_blob parsed;
        epw_identity_get(here, &self);
        epw_blob_parse(a.blob, a.length, here, &parsed);
        wrong |= epw_nonce_equal(&self.process, &parsed.host.process) << 3;
        epw_import_close(import);
        epw_window_destroy(a.window);
        _exit(wrong);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    epw_import_base(import)[0] = 1;
    CHECK(open_fds() == before);
    epw_import_close(import);
    epw_window_destroy(a.window);
    end_other(&o);
}

/* A holder that continues to send, or announces that it will send no more, may still write: only a closed
 * connection ends a lease. */
static void talking_does_not_end_a_lease(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    epw_blob blob;
    int fd = connect_raw(&a, &blob);
    CHECK(request_raw(fd, &blob, 1) == EPW_FD_GRANTED);
    CHECK(send(fd, &blob, sizeof(epw_fd_request), MSG_NOSIGNAL) == (ssize_t)sizeof(epw_fd_request));
    CHECK(!shutdown(fd, SHUT_WR));
    other o = start_other();
    CHECK(fenced_by(ask_import(&o, 1, 0, &a), getpid()));
    close(fd);
    CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK);
    end_other(&o);
    epw_window_destroy(a.window);
}

/* A rank that connects after the holder has closed is never refused, however soon it comes, even if the
 * server's thread is late. */
static void a_place_is_free_as_soon_as_its_holder_has_closed(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_blob blob;
    for (int round = 0; round < 300; round++) {
        int first = connect_raw(&a, &blob), second = connect_raw(&a, &blob);
        CHECK(request_raw(first, &blob, 1) == EPW_FD_GRANTED);
        close(first);
        CHECK(request_raw(second, &blob, 2) == EPW_FD_GRANTED);
        close(second);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_OK);
        epw_import_close(import);
    }
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* ---- of a peer behind a queue ---- */

/* Rank 1's blob for rank 0, as if rank 1 were on another host: only a queue leads there. */
static void move_away(end *e) {
    epw_blob blob;
    CHECK_OK(epw_blob_parse(e->blob, e->length, here, &blob));
    blob.host.boot_id.bytes[0] ^= 1;
    blob.host.process.bytes[0] ^= 1;
    blob.queue.length = 1;
    e->length = epw_blob_write(&blob, e->blob);
}

static epw_status import_by_queue(const end *own, const end *peer) {
    epw_import *import = NULL;
    epw_status status = epw_window_import(own->window, 1, peer->blob, peer->length, 5000 * MS, &import);
    if (status == EPW_OK) CHECK(epw_import_path(import) == EPW_PATH_QUEUE);
    epw_import_close(import);
    return status;
}

static end open_end_with_queues(void) {
    spec of = spec_of(0);
    of.queues = true;
    return open_end(of);
}

/* The replacement, which comes from another host, asks for no lease. */
static void a_place_behind_a_queue_is_granted_once_its_holder_is_dead(void) {
    end a = open_end_with_queues(), replacement = open_end(spec_of(1)), former = {0};
    export_to(&replacement, 0);
    move_away(&replacement);
    export_to(&a, 2);
    other of_rank_2 = start_other(), first = start_other();
    CHECK(ask_import(&of_rank_2, 2, 0, &a).status == EPW_OK);
    CHECK_OK(import_by_queue(&a, &replacement));

    export_to(&a, 1);
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "process %d still has this rank's window mapped as rank 1",
             (int)first.pid);
    CHECK(import_by_queue(&a, &replacement) == EPW_ERR_FENCED);
    CHECK(error_has(wanted));
    /* The holder itself may be behind a queue too. */
    answer got = ask(&first, (command){.verb = 'e', .peer = 0});
    former.length = got.length;
    memcpy(former.blob, got.blob, got.length);
    move_away(&former);
    CHECK_OK(import_by_queue(&a, &former));

    stop_other(&first);
    CHECK(import_by_queue(&a, &replacement) == EPW_ERR_FENCED);
    CHECK(error_has(wanted));
    kill_other(&first);
    CHECK_OK(import_by_queue(&a, &replacement));
    end_other(&of_rank_2);
    epw_window_destroy(replacement.window);
    epw_window_destroy(a.window);
}

static atomic_bool kept, may_go_on;

/* Keeps the server's thread, at most 10 s. */
static void keep(void *context, uint32_t rank) {
    (void)context, (void)rank;
    atomic_store(&kept, true);
    for (int ms = 0; ms < 10000 && !atomic_load(&may_go_on); ms++) usleep(1000);
}

/* Even if the server's thread is late. */
static void a_place_behind_a_queue_is_free_as_soon_as_its_holder_has_closed(void) {
    end a = open_end_with_queues(), replacement = open_end(spec_of(1));
    export_to(&replacement, 0);
    move_away(&replacement);
    export_to(&a, 1);
    epw_blob blob;
    int holder = connect_raw(&a, &blob);
    CHECK(request_raw(holder, &blob, 1) == EPW_FD_GRANTED);
    CHECK(import_by_queue(&a, &replacement) == EPW_ERR_FENCED);
    epw_window_on_ring(a.window, keep, NULL);
    epw_fd_notice ring = {EPW_FD_RING_MAGIC};
    CHECK(send(holder, &ring, sizeof ring, MSG_NOSIGNAL) == (ssize_t)sizeof ring);
    for (int ms = 0; ms < 10000 && !atomic_load(&kept); ms++) usleep(1000);
    CHECK(atomic_load(&kept));
    close(holder);
    CHECK_OK(import_by_queue(&a, &replacement));
    atomic_store(&may_go_on, true);
    epw_window_destroy(replacement.window);
    epw_window_destroy(a.window);
}

/* Through the public interface: rank 1's former buffer has mapped the window of rank 0, which then
 * reaches the latter by a queue. */
static void a_buffer_behind_a_queue_waits_for_the_former(void) {
    epw_fabric *fabrics[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
        options.rank = rank;
        CHECK_OK(epw_fabric_create(&options, &fabrics[rank]));
    }
    for (int destroys = 0; destroys < 2; destroys++) {
        epw_config config = EPW_CONFIG_INIT;
        config.ranks = config.experts = 2;
        config.max_tokens = config.topk = config.threads = 1;
        config.hidden = 8;
        epw_buffer *a = NULL, *old = NULL, *fresh = NULL;
        config.paths = EPW_PATH_SHM | EPW_PATH_QUEUE;
        config.fabric = fabrics[0];
        CHECK_OK(epw_buffer_create(&config, &a));
        config.rank = 1;
        config.paths = EPW_PATH_SHM;
        config.fabric = NULL;
        CHECK_OK(epw_buffer_create(&config, &old));
        config.paths = EPW_PATH_QUEUE;
        config.fabric = fabrics[1];
        CHECK_OK(epw_buffer_create(&config, &fresh));

        CHECK_OK(connect_buffer(old, a));
        unsigned char blob[EPW_BLOB_MAX];
        size_t length;
        CHECK_OK(epw_buffer_export(fresh, 0, blob, &length));
        CHECK(epw_buffer_connect(a, 1, blob, length) == EPW_ERR_FENCED);
        CHECK(error_has("connect: rank 0: peer 1: another buffer of this process"));
        CHECK(error_has("still has this rank's window mapped as rank 1, whose place the peer takes"));
        CHECK(epw_buffer_path(a, 1) == EPW_PATH_NONE);
        if (destroys) {
            epw_buffer_destroy(old);
            old = NULL;
        } else {
            CHECK_OK(epw_buffer_disconnect(old, 0));
        }
        CHECK_OK(epw_buffer_connect(a, 1, blob, length));
        CHECK(epw_buffer_path(a, 1) == EPW_PATH_QUEUE);
        CHECK_OK(connect_buffer(fresh, a));
        CHECK_OK(epw_buffer_probe(a, 1, 10000 * MS));
        epw_buffer_destroy(old);
        epw_buffer_destroy(fresh);
        epw_buffer_destroy(a);
    }
    for (uint32_t rank = 0; rank < 2; rank++) epw_fabric_destroy(fabrics[rank]);
}

/* ---- of GPU memory ---- */

static end open_gpu_end(uint32_t rank, uint32_t peer) {
    end e = open_end(spec_of(rank));
    export_to(&e, peer);
    pretend_gpu(e.blob, e.length, EPW_PATH_VMM);
    return e;
}

static bool say_goodbye(int fd) {
    epw_fd_notice goodbye = {EPW_FD_GOODBYE_MAGIC};
    return send(fd, &goodbye, sizeof goodbye, MSG_NOSIGNAL) == (ssize_t)sizeof goodbye;
}

/* Also if the holder's process lives on, and however soon the next one comes. */
static void a_goodbye_ends_a_gpu_lease_at_once(void) {
    int before = open_fds();
    end a = open_gpu_end(0, 1);
    other first = start_other(), second = start_other();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    ask(&first, (command){.verb = 'c'});
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
    ask(&second, (command){.verb = 'c'});
    end_other(&first);
    end_other(&second);

    epw_blob blob;
    for (int round = 0; round < 300; round++) {
        int holder = connect_raw(&a, &blob), next = connect_raw(&a, &blob);
        if (round % 2) {
            CHECK(request_raw(holder, &blob, 1) == EPW_FD_GRANTED);
        } else { /* it has given up by now, and does not read the reply */
            epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = 1, .window = blob.window};
            struct pollfd p = {.fd = holder, .events = POLLIN};
            CHECK(send(holder, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
            CHECK(poll(&p, 1, 5000) == 1);
        }
        CHECK(say_goodbye(holder));
        close(holder);
        CHECK(request_raw(next, &blob, 2) == EPW_FD_GRANTED);
        CHECK(say_goodbye(next));
        close(next);
    }
    epw_window_destroy(a.window);
    CHECK(open_fds() == before);
}

/* A goodbye only promises to close the connection; while that is open, the lease exists. */
static void a_goodbye_without_a_close_ends_nothing(void) {
    end a = open_gpu_end(0, 1);
    epw_blob blob;
    int holder = connect_raw(&a, &blob);
    CHECK(request_raw(holder, &blob, 1) == EPW_FD_GRANTED);
    CHECK(say_goodbye(holder));
    other o = start_other();
    CHECK(fenced_by(ask_import(&o, 1, 0, &a), getpid()));
    close(holder);
    CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK);
    end_other(&o);
    epw_window_destroy(a.window);
}

static void a_gpu_lease_ends_with_its_process(void) {
    end a = open_gpu_end(0, 1);
    other first = start_other(), second = start_other();
    int before = open_fds();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    stop_other(&first);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    /* It is enough that the process is dead; its parent need not have reaped it. */
    siginfo_t info;
    kill(first.pid, SIGKILL);
    CHECK(!waitid(P_PID, (id_t)first.pid, &info, WEXITED | WNOWAIT));
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
    kill_other(&first);
    kill_other(&second);

    /* Even without new requests the server drops what it holds of dead processes: connections and pidfds. */
    uint64_t begin = epw_now_ns();
    while (open_fds() != before - 2 && epw_now_ns() - begin < 5000 * MS) usleep(1000);
    CHECK(open_fds() == before - 2);
    epw_window_destroy(a.window);
}

/* As with a process whose sockets have closed while its GPU continues. */
static void a_gpu_lease_outlives_a_connection_closed_without_a_goodbye(void) {
    end a = open_gpu_end(0, 1), b = open_end(spec_of(1));
    other first = start_other(), second = start_other();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    ask(&first, (command){.verb = 'd'});
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (int i = 0; i < 20; i++) {
        CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
        usleep(20000);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    CHECK_MSG(seconds < 0.2, "the server waits by spinning: %f s", seconds);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_FENCED);
    ask_write(&first, 1, 1);
    CHECK(epw_window_base(a.window)[1] == 1);

    /* The same window may connect again, but a goodbye counts only for its own connection. */
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    ask(&first, (command){.verb = 'c'});
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    kill_other(&first);
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
    end_other(&second);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void what_is_no_goodbye_ends_no_gpu_lease(void) {
    static const epw_fd_notice goodbyes[2] = {{EPW_FD_GOODBYE_MAGIC}, {EPW_FD_GOODBYE_MAGIC}};
    static const epw_fd_notice wrong = {EPW_FD_GOODBYE_MAGIC ^ 1};
    static const struct {
        const void *bytes;
        size_t length;
    } packets[] = {{goodbyes, 0}, {goodbyes, 3}, {goodbyes, 5}, {goodbyes, sizeof goodbyes}, {&wrong, 4}};
    for (size_t i = 0; i < sizeof packets / sizeof packets[0]; i++) {
        end a = open_gpu_end(0, 1);
        epw_blob blob;
        int holder = connect_raw(&a, &blob), next = connect_raw(&a, &blob);
        CHECK(request_raw(holder, &blob, 1) == EPW_FD_GRANTED);
        CHECK(send(holder, packets[i].bytes, packets[i].length, MSG_NOSIGNAL) == (ssize_t)packets[i].length);
        close(holder);
        CHECK(request_raw(next, &blob, 2) == EPW_FD_FENCED);
        close(next);
        epw_window_destroy(a.window);
    }
}

/* The creator drops it first; processes that have it mapped must still find it. */
static void memory_that_outlives_leases_is_destroyed_behind_the_last(void) {
    CHECK(fd_servers_become(0));
    int fds = open_fds();
    end a = open_end(spec_of(0));
    other first = start_other(), second = start_other();
    export_to(&a, 1);
    end to_first = a;
    export_to(&a, 2);
    pretend_gpu(a.blob, a.length, EPW_PATH_IPC);
    CHECK(ask_import(&first, 1, 0, &to_first).status == EPW_OK);
    CHECK(ask_import(&second, 2, 0, &a).status == EPW_OK);
    unsigned char *base = epw_window_base(a.window);
    epw_window_destroy(a.window);
    ask_write(&first, 1, 1);
    CHECK(base[1] == 1);
    ask(&first, (command){.verb = 'c'});
    CHECK(ask_import(&first, 1, 0, &to_first).status == EPW_ERR_PEER); /* withdrawn all the same */
    usleep(20000);
    CHECK(mapped_windows() == 1);
    ask_write(&second, 2, 2);
    CHECK(base[2] == 2);

    /* Meanwhile another window of this process is created and destroyed. */
    end b = open_end(spec_of(0));
    export_to(&b, 1);
    CHECK(ask_import(&first, 1, 0, &b).status == EPW_OK);
    epw_window_destroy(b.window);
    CHECK(mapped_windows() == 1);

    kill_other(&second);
    CHECK(fd_servers_become(0));
    uint64_t begin = epw_now_ns();
    while (mapped_windows() != 0 && epw_now_ns() - begin < 5000 * MS) usleep(1000);
    CHECK_MSG(mapped_windows() == 0, "%d windows", mapped_windows());
    end_other(&first);
    CHECK(open_fds() == fds);
}

/* On old kernels, too, an exporter notices the end of its holders; otherwise it grants nothing that it could
 * not revoke. */
static void old_kernels_fence_gpu_windows_too(void) {
    for (uint32_t kernel = WITHOUT_PEERPIDFD; kernel <= WITHOUT_PIDFD; kernel++) {
        other exporter = start_other(), first = start_other(), second = start_other();
        CHECK(ask(&exporter, (command){.verb = 'o', .value = kernel}).status == EPW_OK);
        end a = {0};
        answer got = ask(&exporter, (command){.verb = 'e', .peer = 1, .own = spec_of(0)});
        CHECK(got.status == EPW_OK);
        a.length = got.length;
        memcpy(a.blob, got.blob, got.length);
        /* Host memory does not need that. */
        CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
        ask(&first, (command){.verb = 'c'});

        CHECK(ask(&exporter, (command){.verb = 'g', .peer = 1}).status == EPW_OK);
        got = ask_import(&first, 1, 0, &a);
        if (kernel == WITHOUT_PIDFD) {
            CHECK(got.status == EPW_ERR_NO_PATH && strstr(got.error, "cannot watch this one"));
        } else {
            CHECK(got.status == EPW_OK);
            CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
            ask(&first, (command){.verb = 'd'});
            CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
        }
        kill_other(&first);
        if (kernel == WITHOUT_PEERPIDFD) CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
        end_other(&second);
        end_other(&exporter);
    }
}

int main(int argc, char **argv) {
    int ended = other_main(argc, argv);
    if (ended >= 0) return ended;
    a_place_is_granted_again_once_its_holder_is_dead();
    the_same_window_may_shake_hands_again();
    a_second_window_of_a_process_waits_for_the_first();
    a_second_buffer_of_a_process_waits_for_the_first();
    a_forked_child_inherits_nothing();
    talking_does_not_end_a_lease();
    a_place_is_free_as_soon_as_its_holder_has_closed();
    a_place_behind_a_queue_is_granted_once_its_holder_is_dead();
    a_place_behind_a_queue_is_free_as_soon_as_its_holder_has_closed();
    a_buffer_behind_a_queue_waits_for_the_former();
    a_goodbye_ends_a_gpu_lease_at_once();
    a_goodbye_without_a_close_ends_nothing();
    a_gpu_lease_ends_with_its_process();
    a_gpu_lease_outlives_a_connection_closed_without_a_goodbye();
    what_is_no_goodbye_ends_no_gpu_lease();
    memory_that_outlives_leases_is_destroyed_behind_the_last();
    old_kernels_fence_gpu_windows_too();
    return check_result("leases");
}
