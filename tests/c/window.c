/* Windows and their imports, by threads and by processes. blobs.c tests blobs, leases.c the leases of
 * imports, and fd_server.c the server that grants them. */
#include "imports/other.h"

#include <pthread.h>
#include <sys/mman.h>

/* ---- the window itself ---- */

static void a_window_is_zeroed_and_page_aligned(void) {
    end e = open_end(spec_of(0));
    unsigned char *base = epw_window_base(e.window);
    CHECK((uintptr_t)base % 4096 == 0);
    unsigned sum = 0;
    for (size_t i = 0; i < WINDOW_BYTES; i++) sum |= base[i];
    CHECK(sum == 0);
    unsigned char resident[WINDOW_BYTES / 4096];
    CHECK(!mincore(base, WINDOW_BYTES, resident));
    for (size_t i = 0; i < sizeof resident; i++) CHECK(resident[i] & 1);
    epw_window_destroy(e.window);
    epw_window_destroy(NULL);
}

static void a_window_that_does_not_fit_is_an_error(void) {
    static const struct {
        uint64_t bytes;
        epw_status wanted;
    } sizes[] = {{0, EPW_ERR_LIMIT}, {UINT64_MAX - 5, EPW_ERR_LIMIT}, {1ull << 52, EPW_ERR_NO_MEMORY}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        spec of = spec_of(0);
        of.bytes = sizes[i].bytes;
        epw_window *window = NULL;
        CHECK(create_window(&of, &window) == sizes[i].wanted);
        CHECK(!window);
    }
}

/* ---- threads ---- */

static void threads_use_the_very_same_memory(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_THREAD);
    CHECK(epw_import_base(import) == epw_window_base(a.window));
    /* The exporter may be destroyed first. */
    epw_window_destroy(a.window);
    epw_import_base(import)[WINDOW_BYTES - 1] = 7;
    CHECK(epw_import_base(import)[WINDOW_BYTES - 1] == 7);
    epw_import *again = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &again) == EPW_ERR_PEER);
    epw_import_close(import);
    epw_import_close(NULL);
    epw_window_destroy(b.window);
}

static void paths_that_are_excluded_are_not_taken(void) {
    spec of = spec_of(1);
    of.paths = EPW_PATH_SHM;
    end a = open_end(spec_of(0)), b = open_end(of);
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_SHM);
    epw_import_base(import)[3] = 9;
    CHECK(epw_window_base(a.window)[3] == 9);
    epw_import_close(import);
    epw_window_destroy(b.window);

    of.paths = EPW_PATH_SELF;
    b = open_end(of);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("thread: excluded by config.paths; shm: excluded by config.paths"));
    epw_window_destroy(b.window);
    epw_window_destroy(a.window);
}

static void other_hosts_are_told_apart(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_blob blob;
    epw_import *import = NULL;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.host.process.bytes[0] ^= 1;
    blob.host.network_namespace++;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("another network namespace"));
    blob.host.boot_id.bytes[5] ^= 1;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("shm: another host; queue: this rank has no fabric"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

enum { MEMBERS = 8 };

typedef struct exchange {
    pthread_barrier_t barrier;
    unsigned char blobs[MEMBERS][MEMBERS][EPW_BLOB_MAX]; /* [exporter][importer] */
} exchange;

typedef struct member {
    exchange *all;
    uint32_t rank;
} member;

/* Each rank writes its byte in each peer's window; after the barrier each finds all of them. */
static void *exchange_as_rank(void *argument) {
    member *m = argument;
    exchange *x = m->all;
    size_t length = 0;
    epw_import *imports[MEMBERS] = {0};
    end own = open_end(spec_of(m->rank));
    for (uint32_t p = 0; p < MEMBERS; p++)
        if (p != m->rank)
            CHECK(epw_window_export(own.window, p, NULL, x->blobs[m->rank][p], &length) == EPW_OK);
    pthread_barrier_wait(&x->barrier);
    for (uint32_t p = 0; p < MEMBERS; p++) {
        if (p == m->rank) continue;
        const unsigned char *blob = x->blobs[p][m->rank];
        CHECK(epw_window_import(own.window, p, blob, length, 10000 * MS, &imports[p]) == EPW_OK);
        epw_import_base(imports[p])[m->rank] = (unsigned char)(m->rank + 1);
    }
    pthread_barrier_wait(&x->barrier);
    for (uint32_t p = 0; p < MEMBERS; p++)
        if (p != m->rank) CHECK(epw_window_base(own.window)[p] == p + 1);
    for (uint32_t p = 0; p < MEMBERS; p++) epw_import_close(imports[p]);
    epw_window_destroy(own.window);
    return NULL;
}

static void many_threads_exchange_windows(void) {
    static exchange all;
    member members[MEMBERS];
    pthread_t ids[MEMBERS];
    pthread_barrier_init(&all.barrier, NULL, MEMBERS);
    for (uint32_t r = 0; r < MEMBERS; r++) {
        members[r] = (member){&all, r};
        CHECK(!pthread_create(&ids[r], NULL, exchange_as_rank, &members[r]));
    }
    for (uint32_t r = 0; r < MEMBERS; r++) pthread_join(ids[r], NULL);
    pthread_barrier_destroy(&all.barrier);
}

/* ---- processes ---- */

static void processes_write_through_to_each_other(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    other o = start_other();
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_OK && got.path == EPW_PATH_SHM);
    ask_write(&o, 12345, 77);
    CHECK(epw_window_base(a.window)[12345] == 77);
    epw_window_base(a.window)[5] = 66;
    CHECK(ask(&o, (command){.verb = 'r', .offset = 5}).value == 66);

    /* And in the other direction. */
    got = ask(&o, (command){.verb = 'e', .peer = 0});
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_SHM);
    epw_import_base(import)[0] = 1;

    /* Mapped memory stays usable when its exporter dies. */
    kill_other(&o);
    epw_import_base(import)[WINDOW_BYTES - 1] = 2;
    CHECK(epw_import_base(import)[0] == 1 && epw_import_base(import)[WINDOW_BYTES - 1] == 2);
    epw_import_close(import);
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_ERR_PEER);
    CHECK(error_has("no longer serves this window"));
    epw_window_destroy(a.window);
}

/* Mapping a large window takes a while, which counts towards the deadline, too. */
static void an_import_ends_with_its_deadline_also_while_it_maps(void) {
    enum { TRIES = 21 };
    spec of = spec_of(0);
    of.bytes = 1ull << 28;
    end a = open_end(of);
    of.rank = 1;
    of.paths = EPW_PATH_SHM;
    end b = open_end(of);
    export_to(&a, 1);
    epw_import *import = NULL;
    int fds = open_fds();
    uint64_t begin, all = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        begin = epw_now_ns();
        CHECK_OK(epw_window_import(b.window, 0, a.blob, a.length, 60000 * MS, &import));
        uint64_t took = epw_now_ns() - begin;
        if (took < all) all = took;
        epw_import_close(import);
    }
    bool while_mapping = false;
    for (int i = 0; i < TRIES && !while_mapping; i++) {
        /* On busy cores connecting alone may take as long; and half the time may suffice when they are idle
         * again. */
        uint64_t part = UINT64_C(8) >> i % 3;
        import = NULL;
        begin = epw_now_ns();
        epw_status status = epw_window_import(b.window, 0, a.blob, a.length, all / part, &import);
        uint64_t took = epw_now_ns() - begin;
        bool late = status == EPW_ERR_TIMEOUT && !import;
        CHECK_MSG(late || (part < 8 && status == EPW_OK), "status %d within %llu us of %llu", status,
                  (unsigned long long)took / 1000, (unsigned long long)all / 1000);
        while_mapping =
            late && strstr(epw_last_error(), "mapping the peer's window of 268435456 bytes takes longer");
        epw_import_close(import);
    }
    CHECK(while_mapping);
    CHECK(mapped_windows() == 2);
    begin = epw_now_ns(); /* the server, in this process, closes its ends a little later */
    while (open_fds() != fds && epw_now_ns() - begin < 5000 * MS) usleep(1000);
    CHECK(open_fds() == fds);
    CHECK_OK(epw_window_import(b.window, 0, a.blob, a.length, 60000 * MS, &import)); /* no lease was left */
    epw_import_close(import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_destroyed_window_is_not_served(void) {
    other o = start_other();
    end a = open_end(spec_of(0)), keep = open_end(spec_of(5));
    export_to(&a, 1);
    export_to(&keep, 1); /* keeps the server running */
    epw_window_destroy(a.window);
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_PEER && strstr(got.error, "no longer serves this window"));
    epw_window_destroy(keep.window);
    end_other(&o);
}

static void a_peer_that_permits_no_shm_is_named(void) {
    spec of = spec_of(0);
    of.paths = EPW_PATH_THREAD;
    end a = open_end(of);
    CHECK(fd_servers_become(0));
    export_to(&a, 1);
    usleep(20000); /* a server would have its name by now */
    CHECK(fd_servers() == 0);
    other o = start_other();
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_NO_PATH);
    CHECK(strstr(got.error, "thread: another process; shm: excluded by the peer's config.paths"));
    epw_window_destroy(a.window);
    end_other(&o);
}

/* ---- many, and for long ---- */

typedef struct importer {
    end *exporter;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
    uint32_t rank;
} importer;

static void *import_as_rank(void *argument) {
    importer *m = argument;
    spec of = spec_of(m->rank);
    of.paths = EPW_PATH_SHM;
    end own = open_end(of);
    for (int round = 0; round < 5; round++) {
        epw_import *import = NULL;
        CHECK(epw_window_import(own.window, 0, m->blob, m->length, 20000 * MS, &import) == EPW_OK);
        if (import) epw_import_base(import)[m->rank] = (unsigned char)m->rank;
        epw_import_close(import);
    }
    epw_window_destroy(own.window);
    return NULL;
}

static void many_import_at_once(void) {
    enum { COUNT = 64 };
    static importer importers[COUNT];
    pthread_t ids[COUNT];
    end a = open_end(spec_of(0));
    for (uint32_t i = 0; i < COUNT; i++) {
        importers[i].rank = i + 1;
        CHECK(epw_window_export(a.window, i + 1, NULL, importers[i].blob, &importers[i].length) == EPW_OK);
    }
    for (int i = 0; i < COUNT; i++) CHECK(!pthread_create(&ids[i], NULL, import_as_rank, &importers[i]));
    for (int i = 0; i < COUNT; i++) pthread_join(ids[i], NULL);
    for (uint32_t r = 1; r <= COUNT; r++) CHECK(epw_window_base(a.window)[r] == r);
    epw_window_destroy(a.window);
}

static void many_processes_import_at_once(void) {
    enum { COUNT = 16 };
    other others[COUNT];
    end a = open_end(spec_of(0));
    for (int i = 0; i < COUNT; i++) others[i] = start_other();
    for (uint32_t i = 0; i < COUNT; i++) {
        export_to(&a, i + 1);
        command c = {
            .verb = 'i', .peer = 0, .deadline_ns = 20000 * MS, .own = spec_of(i + 1), .length = a.length};
        memcpy(c.blob, a.blob, a.length);
        CHECK(send(others[i].fd, &c, sizeof c, MSG_NOSIGNAL) == (ssize_t)sizeof c);
    }
    for (int i = 0; i < COUNT; i++) {
        answer got;
        CHECK(recv(others[i].fd, &got, sizeof got, 0) == (ssize_t)sizeof got && got.status == EPW_OK);
    }
    for (int i = 0; i < COUNT; i++) end_other(&others[i]);
    epw_window_destroy(a.window);
}

static void the_server_ends_with_the_last_window(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    CHECK(fd_servers_become(0));
    int fds = open_fds();
    export_to(&a, 1);
    CHECK(fd_servers_become(1));
    export_to(&a, 2);
    export_to(&b, 2);
    usleep(20000); /* a second server would have its name by now */
    CHECK(fd_servers() == 1);
    epw_window_destroy(a.window);
    CHECK(fd_servers() == 1);
    epw_window_destroy(b.window);
    CHECK(fd_servers_become(0));
    CHECK(open_fds() == fds - 2);
}

static void a_thousand_cycles_leak_no_descriptor(void) {
    int before = open_fds();
    spec of = spec_of(1);
    for (int i = 0; i < 1000; i++) {
        of.paths = i % 2 ? EPW_PATH_SHM : EPW_PATH_ALL;
        end a = open_end(spec_of(0)), b = open_end(of);
        export_to(&a, 1);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_OK);
        /* In either order of destruction. */
        if (i % 3) {
            epw_import_close(import);
            epw_window_destroy(a.window);
        } else {
            epw_window_destroy(a.window);
            epw_import_close(import);
        }
        epw_window_destroy(b.window);
    }
    CHECK(open_fds() == before);
}

int main(int argc, char **argv) {
    int ended = other_main(argc, argv);
    if (ended >= 0) return ended;
    a_window_is_zeroed_and_page_aligned();
    a_window_that_does_not_fit_is_an_error();
    threads_use_the_very_same_memory();
    paths_that_are_excluded_are_not_taken();
    other_hosts_are_told_apart();
    many_threads_exchange_windows();
    processes_write_through_to_each_other();
    an_import_ends_with_its_deadline_also_while_it_maps();
    a_destroyed_window_is_not_served();
    a_peer_that_permits_no_shm_is_named();
    many_import_at_once();
    many_processes_import_at_once();
    the_server_ends_with_the_last_window();
    a_thousand_cycles_leak_no_descriptor();
    return check_result("window");
}
