/* Ringing: a rank tells the process that owns a peer's window that something was written there. */
#include "imports/other.h"
#include "imports/raw.h"

#include <pthread.h>

/* What an owner's callback has seen. */
typedef struct bell {
    const unsigned char *base; /* of the owner's window, whose first 8 bytes are a number */
    atomic_uint calls, rank;
    _Atomic uint64_t seen;
    atomic_bool silenced; /* no call is allowed any more */
    pthread_t thread;
    uint32_t pause_us;
} bell;

static _Atomic uint64_t *number_at(const unsigned char *base) {
    return (_Atomic uint64_t *)base;
}

static void note(void *context, uint32_t rank) {
    bell *b = context;
    CHECK(!atomic_load(&b->silenced));
    b->thread = pthread_self();
    atomic_store(&b->rank, rank);
    atomic_store(&b->seen, atomic_load_explicit(number_at(b->base), memory_order_relaxed));
    if (b->pause_us > 0) usleep(b->pause_us);
    CHECK(!atomic_load(&b->silenced));
    atomic_fetch_add(&b->calls, 1);
}

static bool await(_Atomic uint64_t *value, uint64_t wanted) {
    uint64_t begin = epw_now_ns();
    while (atomic_load(value) < wanted && epw_now_ns() - begin < 10000 * MS) sched_yield();
    return atomic_load(value) >= wanted;
}

static bool await_calls(bell *b, uint32_t wanted) {
    uint64_t begin = epw_now_ns();
    while (atomic_load(&b->calls) < wanted && epw_now_ns() - begin < 10000 * MS) usleep(100);
    return atomic_load(&b->calls) >= wanted;
}

/* Rank 0 owns a window and listens; rank 1 of this process has an import of it by one path. */
typedef struct pair {
    end owner, ringer;
    epw_import *import;
    bell bell;
} pair;

static void open_pair(pair *p, uint32_t path) {
    spec of = spec_of(1);
    of.paths = path;
    *p = (pair){.owner = open_end(spec_of(0)), .ringer = open_end(of)};
    p->bell.base = epw_window_base(p->owner.window);
    epw_window_on_ring(p->owner.window, note, &p->bell);
    export_to(&p->owner, 1);
    CHECK_OK(epw_window_import(p->ringer.window, 0, p->owner.blob, p->owner.length, 5000 * MS, &p->import));
    CHECK(epw_import_path(p->import) == path);
}

static void close_pair(pair *p) {
    epw_import_close(p->import);
    epw_window_destroy(p->ringer.window);
    epw_window_destroy(p->owner.window);
}

static const uint32_t paths[] = {EPW_PATH_THREAD, EPW_PATH_SHM};

static void a_ring_reaches_the_owner_behind_what_was_written(void) {
    for (int i = 0; i < 2; i++) {
        pair p;
        open_pair(&p, paths[i]);
        for (uint64_t round = 1; round <= 5000; round++) {
            atomic_store_explicit(number_at(epw_import_base(p.import)), round, memory_order_relaxed);
            CHECK_OK(epw_import_ring(p.import, here));
            CHECK_MSG(await(&p.bell.seen, round), "path %u: ring %llu was lost", paths[i],
                      (unsigned long long)round);
        }
        CHECK(atomic_load(&p.bell.rank) == 1);
        CHECK(await_calls(&p.bell, 1));
        CHECK(!pthread_equal(p.bell.thread, pthread_self()) == (paths[i] == EPW_PATH_SHM));

        /* Rings in quick succession may count as one, and the last is always heard. */
        uint64_t last = 1000000;
        for (uint64_t round = 0; round <= last; round += 100) {
            atomic_store_explicit(number_at(epw_import_base(p.import)), 5000 + round, memory_order_relaxed);
            CHECK_OK(epw_import_ring(p.import, here));
        }
        CHECK(await(&p.bell.seen, 5000 + last));
        close_pair(&p);
    }
}

static void nobody_need_listen(void) {
    for (int i = 0; i < 2; i++) {
        pair p, other;
        open_pair(&p, paths[i]);
        open_pair(&other, paths[i]);
        epw_window_on_ring(p.owner.window, NULL, NULL);
        atomic_store(&p.bell.silenced, true);
        for (int round = 0; round < 100; round++) CHECK_OK(epw_import_ring(p.import, here));
        /* The thread that hears rings has been at every connection between two of these. */
        for (uint32_t turn = 1; turn <= 3; turn++) {
            CHECK_OK(epw_import_ring(other.import, here));
            CHECK(await_calls(&other.bell, turn));
        }
        close_pair(&other);
        atomic_store(&p.bell.silenced, false);
        epw_window_on_ring(p.owner.window, note, &p.bell);
        CHECK_OK(epw_import_ring(p.import, here));
        CHECK(await_calls(&p.bell, 1));
        close_pair(&p);
    }
}

static void ringing_one_who_is_gone_says_so(void) {
    for (int i = 0; i < 2; i++) {
        pair p;
        open_pair(&p, paths[i]);
        epw_window_destroy(p.owner.window);
        p.owner.window = NULL;
        CHECK(epw_import_ring(p.import, here) == EPW_ERR_PEER);
        CHECK(error_has("destroyed") && error_has("connect with a blob of its present buffer"));
        close_pair(&p);
    }
    end b = open_end(spec_of(1));
    other o = start_other();
    answer got = ask(&o, (command){.verb = 'e', .peer = 1, .own = spec_of(0)});
    epw_import *import = NULL;
    CHECK_OK(epw_window_import(b.window, 0, got.blob, got.length, 5000 * MS, &import));
    CHECK_OK(epw_import_ring(import, here));
    kill_other(&o);
    CHECK(epw_import_ring(import, here) == EPW_ERR_PEER);
    CHECK(error_has("it has ended, or destroyed its buffer"));
    epw_import_close(import);
    epw_window_destroy(b.window);
}

typedef struct ringing {
    epw_import *import;
    atomic_bool over;
} ringing;

static void *ring_on(void *argument) {
    ringing *r = argument;
    while (!atomic_load(&r->over)) {
        epw_status status = epw_import_ring(r->import, here);
        CHECK(status == EPW_OK || status == EPW_ERR_PEER);
    }
    return NULL;
}

/* Whenever the owner leaves during a call, it waits for the call's end. */
static void nothing_is_called_once_the_window_is_destroyed(void) {
    for (int round = 0; round < 100; round++) {
        pair p;
        open_pair(&p, paths[round % 2]);
        p.bell.pause_us = 300;
        ringing r = {.import = p.import};
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, ring_on, &r));
        CHECK(await_calls(&p.bell, 1));
        usleep((useconds_t)(round * 7));
        if (round % 4 < 2) {
            epw_window_destroy(p.owner.window);
            p.owner.window = NULL;
        } else {
            epw_window_on_ring(p.owner.window, NULL, NULL);
        }
        atomic_store(&p.bell.silenced, true);
        usleep(1000);
        atomic_store(&r.over, true);
        pthread_join(thread, NULL);
        close_pair(&p);
    }
}

/* The socket has room for the goodbye, without which the lease of a GPU's window would stay taken. */
static void a_stopped_owner_delays_no_ringer(void) {
    other owner = start_other();
    answer got = ask(&owner, (command){.verb = 'g', .peer = 1, .own = spec_of(0)});
    CHECK(got.status == EPW_OK);
    end b = open_end(spec_of(1));
    epw_import *import = NULL;
    /* In the blob the memory is still the host's. */
    CHECK_OK(epw_window_import(b.window, 0, got.blob, got.length, 5000 * MS, &import));
    stop_other(&owner);
    uint64_t begin = epw_now_ns();
    for (int i = 0; i < 100000; i++) CHECK_OK(epw_import_ring(import, here));
    CHECK(epw_now_ns() - begin < 5000 * MS);
    epw_import_close(import);
    kill(owner.pid, SIGCONT);
    other next = start_other();
    end a = {.length = got.length};
    memcpy(a.blob, got.blob, got.length);
    CHECK(ask_import(&next, 1, 0, &a).status == EPW_OK);
    end_other(&next);
    end_other(&owner);
    epw_window_destroy(b.window);
}

typedef struct storm {
    int fd;
    uint32_t magic;
    atomic_bool over;
    atomic_ullong sent;
} storm;

static void *rage(void *argument) {
    storm *s = argument;
    epw_fd_notice notice = {s->magic};
    while (!atomic_load(&s->over)) {
        bool sent = send(s->fd, &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
        atomic_fetch_add(&s->sent, sent);
        if (!sent) sched_yield();
    }
    return NULL;
}

/* Holders that ring without end, or send nonsense, of which little is ever read. */
static void storms_delay_nobody(void) {
    enum { STORMS = 4 };
    end a = open_end(spec_of(0));
    bell heard = {.base = epw_window_base(a.window)};
    epw_window_on_ring(a.window, note, &heard);
    storm storms[STORMS] = {0};
    pthread_t threads_of[STORMS];
    for (uint32_t i = 0; i < STORMS; i++) {
        epw_blob blob;
        export_to(&a, 1);
        storms[i].fd = connect_raw(&a, &blob);
        storms[i].magic = i < 2 ? EPW_FD_RING_MAGIC : 0x12345678;
        epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = 10 + i, .window = blob.window};
        epw_fd_reply reply = {0};
        CHECK(send(storms[i].fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
        CHECK(recv(storms[i].fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        CHECK(reply.verdict == EPW_FD_GRANTED);
        CHECK(!pthread_create(&threads_of[i], NULL, rage, &storms[i]));
    }
    CHECK(await_calls(&heard, 100));
    other o = start_other();
    for (int round = 0; round < 20; round++) {
        uint64_t begin = epw_now_ns();
        CHECK(ask_import(&o, 1, 0, &a).status == EPW_OK);
        ask(&o, (command){.verb = 'c'});
        CHECK(epw_now_ns() - begin < 4000 * MS);
    }
    for (int i = 0; i < STORMS; i++) {
        atomic_store(&storms[i].over, true);
        pthread_join(threads_of[i], NULL);
    }
    /* Nonsense stays in the socket, which soon is full. */
    CHECK_MSG(atomic_load(&storms[3].sent) < 10000, "%llu packets of nonsense were read",
              atomic_load(&storms[3].sent));
    for (int i = 0; i < STORMS; i++) close(storms[i].fd);
    end_other(&o);
    epw_window_destroy(a.window);
}

static void rings_of_other_processes_are_heard(void) {
    end a = open_end(spec_of(0));
    bell heard[2] = {{.base = epw_window_base(a.window)}, {.base = epw_window_base(a.window)}};
    epw_window_on_ring(a.window, note, &heard[0]);
    other o = start_other();
    export_to(&a, 7);
    CHECK(ask_import(&o, 7, 0, &a).status == EPW_OK);
    for (uint32_t round = 1; round <= 10; round++) {
        ask_write(&o, 0, round);
        CHECK(ask(&o, (command){.verb = 'b', .value = 1}).status == EPW_OK);
        CHECK(await(&heard[0].seen, round));
    }
    CHECK(atomic_load(&heard[0].rank) == 7);
    epw_window_on_ring(a.window, note, &heard[1]);
    CHECK(ask(&o, (command){.verb = 'b', .value = 1}).status == EPW_OK);
    CHECK(await_calls(&heard[1], 1));
    epw_window_destroy(a.window);
    CHECK(ask(&o, (command){.verb = 'b', .value = 1}).status == EPW_ERR_PEER);
    end_other(&o);
}

static void a_forked_child_rings_nobody(void) {
    for (int i = 0; i < 2; i++) {
        pair p;
        open_pair(&p, paths[i]);
        pid_t child = fork();
        if (child == 0) _exit(epw_import_ring(p.import, here) != EPW_ERR_STATE);
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(atomic_load(&p.bell.calls) == 0);
        close_pair(&p);
    }
}

int main(int argc, char **argv) {
    int ended = other_main(argc, argv);
    if (ended >= 0) return ended;
    a_ring_reaches_the_owner_behind_what_was_written();
    nobody_need_listen();
    ringing_one_who_is_gone_says_so();
    nothing_is_called_once_the_window_is_destroyed();
    a_stopped_owner_delays_no_ringer();
    storms_delay_nobody();
    rings_of_other_processes_are_heard();
    a_forked_child_rings_nobody();
    return check_result("rings");
}
