/* Windows and their imports: by threads, by processes that live, stop and die, and by bytes that are no blob.
 *
 * The other processes are this program again: `window other FD` obeys commands on a socketpair. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "check.h"
#include "ipc/fd_client.h"
#include "ipc/fd_message.h"
#include "ipc/offer.h"
#include "window/blob.h"
#include "window/window.h"

#define MS 1000000ull

enum { WINDOW_BYTES = 1 << 20, RANKS = 80 };

static const epw_where here = {"test", -1, -1};

static epw_config config_of(uint32_t rank) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = RANKS;
    config.max_tokens = 128;
    config.hidden = 7168;
    config.experts = 4 * RANKS;
    config.topk = 8;
    return config;
}

/* A rank's window and the last blob made of it. */
typedef struct end {
    epw_window *window;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
} end;

static end open_end(epw_config config) {
    end e = {0};
    CHECK(epw_window_create(&config, WINDOW_BYTES, &e.window) == EPW_OK);
    return e;
}

static void export_to(end *e, uint32_t peer) {
    CHECK(epw_window_export(e->window, peer, e->blob, &e->length) == EPW_OK);
    CHECK(e->length <= EPW_BLOB_MAX);
}

static bool error_has(const char *text) {
    bool found = strstr(epw_last_error(), text) != NULL;
    if (!found) fprintf(stderr, "wanted \"%s\" in: %s\n", text, epw_last_error());
    return found;
}

static int entries_of(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static int open_fds(void) {
    return entries_of("/proc/self/fd");
}

/* Runs that a sanitizer adds threads to are compared with their own start. */
static int threads(void) {
    return entries_of("/proc/self/task");
}

/* ---- another process ---------------------------------------------------------------------------- */

typedef struct command {
    char verb; /* 'i'mport, 'w'rite, 'r'ead, 'c'lose, 'd'rop connections, 'e'xport, export as a 'g'pu's,
                  'f'etch raw, become 'u'ser, 'o'ld kernel */
    uint32_t peer;
    uint32_t value; /* written, or the user id, or one of the kernels below */
    uint64_t offset;
    uint64_t deadline_ns;
    epw_config config; /* of the process's own window */
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

/* Sends a request past the client's own check of the server's user; 0 if the server closed without an answer.
 */
static ssize_t fetch_raw(const epw_blob *blob) {
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

/* Makes the server take the host memory of a blob's window, of this process, for a GPU's. */
static void pretend_gpu(const unsigned char *bytes, size_t length) {
    epw_blob blob;
    CHECK(epw_blob_parse(bytes, length, here, &blob) == EPW_OK);
    epw_process_lock();
    epw_offer *offer = epw_offer_find(&blob.window);
    CHECK(offer);
    if (offer) ((epw_memory *)epw_offer_memory(offer))->origin.path = EPW_PATH_VMM;
    epw_process_unlock();
}

/* Closes what leads to fd servers, and says nothing. */
static void drop_connections(void) {
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un server;
        socklen_t length = sizeof server;
        if (!getpeername(fd, (struct sockaddr *)&server, &length) && length > sizeof server.sun_family + 8 &&
            !memcmp(server.sun_path, "\0epwire-", 8))
            close(fd);
    }
}

enum { WITHOUT_PEERPIDFD = 1, WITHOUT_PIDFD = 2 };

/* Lets the calls fail that kernels before Linux 6.5, and before 5.3, do not have. */
static epw_status become_old(uint32_t kernel) {
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

static void obey(const command *c, epw_window **own, epw_import **import, answer *a) {
    epw_blob blob;
    if (!*own && c->config.size) a->status = epw_window_create(&c->config, WINDOW_BYTES, own);
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
    case 'c':
        epw_import_close(*import);
        *import = NULL;
        break;
    case 'd':
        drop_connections();
        break;
    case 'e':
    case 'g':
        a->status = epw_window_export(*own, c->peer, a->blob, &a->length);
        if (c->verb == 'g') pretend_gpu(a->blob, a->length);
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

static int run_other(int fd) {
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

static other start_other(void) {
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

static answer ask(const other *o, command c) {
    answer a = {.status = EPW_ERR_SYSTEM};
    CHECK(send(o->fd, &c, sizeof c, MSG_NOSIGNAL) == (ssize_t)sizeof c);
    CHECK(recv(o->fd, &a, sizeof a, 0) == (ssize_t)sizeof a);
    return a;
}

static answer ask_import(const other *o, uint32_t rank, uint32_t peer, const end *e) {
    command c = {
        .verb = 'i', .peer = peer, .deadline_ns = 5000 * MS, .config = config_of(rank), .length = e->length};
    memcpy(c.blob, e->blob, e->length);
    return ask(o, c);
}

static void ask_write(const other *o, uint64_t offset, uint32_t value) {
    ask(o, (command){.verb = 'w', .offset = offset, .value = value});
}

/* Returns once it has stopped. */
static void stop_other(const other *o) {
    int status = 0;
    kill(o->pid, SIGSTOP);
    CHECK(waitpid(o->pid, &status, WUNTRACED) == o->pid && WIFSTOPPED(status));
}

static void kill_other(other *o) {
    kill(o->pid, SIGKILL);
    waitpid(o->pid, NULL, 0);
    close(o->fd);
}

/* Closing the socketpair ends its loop. */
static void end_other(other *o) {
    close(o->fd);
    int status = -1;
    waitpid(o->pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- the window itself -------------------------------------------------------------------------- */

static void a_window_is_zeroed_and_page_aligned(void) {
    end e = open_end(config_of(0));
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
    epw_config config = config_of(0);
    epw_window *window = NULL;
    CHECK(epw_window_create(&config, 0, &window) == EPW_ERR_LIMIT);
    CHECK(epw_window_create(&config, UINT64_MAX - 5, &window) == EPW_ERR_LIMIT);
    CHECK(epw_window_create(&config, 1ull << 52, &window) == EPW_ERR_NO_MEMORY);
    CHECK(!window);
}

static void export_refuses_a_wrong_peer(void) {
    end e = open_end(config_of(0));
    CHECK(epw_window_export(e.window, 0, e.blob, &e.length) == EPW_ERR_INVALID);
    CHECK(epw_window_export(e.window, RANKS, e.blob, &e.length) == EPW_ERR_INVALID);
    epw_window_destroy(e.window);
}

/* ---- threads ------------------------------------------------------------------------------------ */

static void threads_use_the_very_same_memory(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_THREAD);
    CHECK(epw_import_base(import) == epw_window_base(a.window));
    /* The exporter may go first. */
    epw_window_destroy(a.window);
    epw_import_base(import)[WINDOW_BYTES - 1] = 7;
    CHECK(epw_import_base(import)[WINDOW_BYTES - 1] == 7);
    epw_import *again = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &again) == EPW_ERR_PEER);
    epw_import_close(import);
    epw_import_close(NULL);
    epw_window_destroy(b.window);
}

static void paths_that_are_excluded_are_not_taken(void) {
    epw_config config = config_of(1);
    config.paths = EPW_PATH_SHM;
    end a = open_end(config_of(0)), b = open_end(config);
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_SHM);
    epw_import_base(import)[3] = 9;
    CHECK(epw_window_base(a.window)[3] == 9);
    epw_import_close(import);
    epw_window_destroy(b.window);

    config.paths = EPW_PATH_SELF;
    b = open_end(config);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("thread: excluded by config.paths; shm: excluded by config.paths"));
    epw_window_destroy(b.window);
    epw_window_destroy(a.window);
}

static void other_hosts_are_told_apart(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    epw_import *import = NULL;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.host.process.bytes[0] ^= 1;
    blob.host.network_namespace++;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("another network namespace"));
    blob.host.boot_id.bytes[5] ^= 1;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_NO_PATH);
    CHECK(error_has("shm: another host; network wires are not part of this build"));
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

/* Each rank writes its byte of each peer's window; after the barrier everyone finds all of them. */
static void *exchange_as_rank(void *argument) {
    member *m = argument;
    exchange *x = m->all;
    size_t length = 0;
    epw_import *imports[MEMBERS] = {0};
    end own = open_end(config_of(m->rank));
    for (uint32_t p = 0; p < MEMBERS; p++)
        if (p != m->rank) CHECK(epw_window_export(own.window, p, x->blobs[m->rank][p], &length) == EPW_OK);
    pthread_barrier_wait(&x->barrier);
    for (uint32_t p = 0; p < MEMBERS; p++) {
        if (p == m->rank) continue;
        const unsigned char *blob = x->blobs[p][m->rank];
        CHECK(epw_window_import(own.window, p, blob, length, 1000 * MS, &imports[p]) == EPW_OK);
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

/* ---- blobs -------------------------------------------------------------------------------------- */

static void every_field_that_differs_is_named(void) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
#define FIELD(name) {#name, offsetof(epw_config, name)}
        FIELD(version), FIELD(ranks),     FIELD(max_tokens),  FIELD(hidden),         FIELD(experts),
        FIELD(topk),    FIELD(lanes),     FIELD(dtype),       FIELD(combine_dtype),  FIELD(opaque_bytes),
        FIELD(ordered), FIELD(zero_copy), FIELD(deadline_ns), FIELD(sideband_bytes),
#undef FIELD
    };
    end b = open_end(config_of(1));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        epw_config config = config_of(0);
        (*(uint32_t *)((char *)&config + fields[i].offset))++;
        end a = open_end(config);
        export_to(&a, 1);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "peer 0: %s is ", fields[i].name);
        CHECK(error_has(wanted));
        epw_window_destroy(a.window);
    }
    /* What may differ does not matter. */
    epw_config config = config_of(0);
    config.threads = 5;
    config.paths = EPW_PATH_THREAD;
    config.sms = 24;
    end a = open_end(config);
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_OK);
    epw_import_close(import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void the_text_of_a_mismatch_has_both_values(void) {
    epw_config config = config_of(3);
    config.hidden = 4096;
    end a = open_end(config), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("connect: rank 1: peer 3: hidden is 7168 here and 4096 at peer 3"));
    epw_window_destroy(a.window);
    config.hidden = 7168;
    CHECK(epw_window_create(&config, 2 * WINDOW_BYTES, &a.window) == EPW_OK);
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("the window has 1048576 bytes here and 2097152 at peer 3"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* A blob says where its window's memory is. No GPU is needed to read one. */
static void a_blob_tells_the_gpu_and_the_path(void) {
    end a = open_end(config_of(0));
    export_to(&a, 1);
    epw_blob blob, parsed;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    CHECK(blob.origin.path == EPW_PATH_SHM);
    for (size_t i = 0; i < sizeof blob.origin.gpu; i++) {
        CHECK(blob.origin.gpu[i] == 0);
        blob.origin.gpu[i] = (unsigned char)(0xf0 + i);
    }
    static const uint32_t paths[] = {EPW_PATH_VMM, EPW_PATH_IPC};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        blob.origin.path = paths[i];
        epw_blob_write(&blob, a.blob);
        CHECK(epw_blob_parse(a.blob, EPW_BLOB_BYTES, here, &parsed) == EPW_OK);
        CHECK(!memcmp(&parsed.origin, &blob.origin, sizeof parsed.origin));
        CHECK(parsed.window_bytes == blob.window_bytes &&
              parsed.config.deadline_ns == blob.config.deadline_ns);
    }
    blob.origin.path = EPW_PATH_THREAD;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_blob_parse(a.blob, EPW_BLOB_BYTES, here, &parsed) == EPW_ERR_INVALID);
    CHECK(error_has("shared by an unknown path, 2"));
    epw_window_destroy(a.window);
}

static void host_and_gpu_do_not_mix(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    epw_import *import = NULL;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.origin.path = EPW_PATH_VMM;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is the host here and a GPU at peer 0; put all ranks on the host or all on GPUs"));

    /* The other way round, and GPUs of different ordinals, which may differ. */
    epw_config config = config_of(1);
    config.device = 3;
    CHECK(epw_blob_check_config(&blob, &config, here) == EPW_OK);
    blob.origin.path = EPW_PATH_SHM;
    CHECK(epw_blob_check_config(&blob, &config, here) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is a GPU here and the host at peer 0"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_blob_is_for_one_pair_of_ranks(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1)), c = open_end(config_of(2));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(c.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported for rank 1"));
    CHECK(epw_window_import(b.window, 2, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported by rank 0"));
    CHECK(epw_window_import(b.window, 1, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(epw_window_import(b.window, RANKS, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(!import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
    epw_window_destroy(c.window);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A copy of exactly `length` bytes, so that a sanitizer sees any read beyond it. */
static epw_status import_copy(epw_window *own, const unsigned char *blob, size_t length) {
    unsigned char *copy = malloc(length ? length : 1);
    memcpy(copy, blob, length);
    epw_import *import = NULL;
    epw_status status = epw_window_import(own, 0, copy, length, 1000 * MS, &import);
    epw_import_close(import);
    free(copy);
    return status;
}

static void damaged_blobs_are_errors(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    for (size_t length = 0; length < a.length; length++) CHECK(import_copy(b.window, a.blob, length) < 0);
    a.length++;
    CHECK(import_copy(b.window, a.blob, a.length) == EPW_ERR_INVALID);
    a.length--;
    for (size_t bit = 0; bit < 8 * a.length; bit++) {
        a.blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(import_copy(b.window, a.blob, a.length) < 0);
        a.blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 10000; round++) {
        unsigned char bytes[EPW_BLOB_MAX];
        size_t length = round % 2 ? a.length : next_random(&seed) % sizeof bytes;
        memcpy(bytes, a.blob, sizeof bytes);
        bool garbage = round % 4 == 0;
        for (size_t i = 0; i < sizeof bytes && garbage; i++) bytes[i] = (unsigned char)next_random(&seed);
        size_t at = next_random(&seed) % a.length;
        bytes[at] = (unsigned char)(bytes[at] + 1 + next_random(&seed) % 255);
        CHECK(import_copy(b.window, bytes, length) < 0);
    }
    CHECK(import_copy(b.window, a.blob, a.length) == EPW_OK);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* Values that no exporter wrote, under a checksum that is right. */
static void forged_blobs_are_errors_or_harmless(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob genuine;
    CHECK(epw_blob_parse(a.blob, a.length, here, &genuine) == EPW_OK);
    uint64_t seed = 88172645463325252u;
    int refused = 0;
    for (int round = 0; round < 10000; round++) {
        epw_blob blob = genuine, parsed;
        unsigned char *bytes = (unsigned char *)&blob;
        for (int i = 0; i < 3; i++)
            bytes[next_random(&seed) % sizeof blob] ^= (unsigned char)next_random(&seed);
        epw_blob_write(&blob, a.blob);
        if (epw_blob_parse(a.blob, a.length, here, &parsed) == EPW_OK)
            CHECK(parsed.config.rank < parsed.config.ranks && parsed.config.ranks <= EPW_MAX_RANKS);
        refused += import_copy(b.window, a.blob, a.length) < 0;
    }
    CHECK(refused > 5000);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* ---- processes ---------------------------------------------------------------------------------- */

static void processes_write_through_to_each_other(void) {
    end a = open_end(config_of(0));
    export_to(&a, 1);
    other o = start_other();
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_OK && got.path == EPW_PATH_SHM);
    ask_write(&o, 12345, 77);
    CHECK(epw_window_base(a.window)[12345] == 77);
    epw_window_base(a.window)[5] = 66;
    CHECK(ask(&o, (command){.verb = 'r', .offset = 5}).value == 66);

    /* And the other way round. */
    got = ask(&o, (command){.verb = 'e', .peer = 0});
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_OK);
    CHECK(epw_import_path(import) == EPW_PATH_SHM);
    epw_import_base(import)[0] = 1;

    /* What is mapped stays usable when its exporter dies. */
    kill_other(&o);
    epw_import_base(import)[WINDOW_BYTES - 1] = 2;
    CHECK(epw_import_base(import)[0] == 1 && epw_import_base(import)[WINDOW_BYTES - 1] == 2);
    epw_import_close(import);
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 5000 * MS, &import) == EPW_ERR_PEER);
    CHECK(error_has("no longer serves this window"));
    epw_window_destroy(a.window);
}

static void a_destroyed_window_is_not_served(void) {
    other o = start_other();
    end a = open_end(config_of(0)), keep = open_end(config_of(5));
    export_to(&a, 1);
    export_to(&keep, 1); /* keeps the server running */
    epw_window_destroy(a.window);
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_PEER && strstr(got.error, "no longer serves this window"));
    epw_window_destroy(keep.window);
    end_other(&o);
}

static void a_peer_that_permits_no_shm_is_named(void) {
    epw_config config = config_of(0);
    config.paths = EPW_PATH_THREAD;
    end a = open_end(config);
    int before = threads();
    export_to(&a, 1);
    CHECK(threads() == before);
    other o = start_other();
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_NO_PATH);
    CHECK(strstr(got.error, "thread: another process; shm: excluded by the peer's config.paths"));
    epw_window_destroy(a.window);
    end_other(&o);
}

/* ---- leases ------------------------------------------------------------------------------------- */

static bool fenced_by(answer got, pid_t pid) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "process %d still has", (int)pid);
    return got.status == EPW_ERR_FENCED && strstr(got.error, wanted);
}

static void a_place_is_granted_again_once_its_holder_is_dead(void) {
    end a = open_end(config_of(0));
    export_to(&a, 1);
    other first = start_other(), second = start_other();
    CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    stop_other(&first);
    CHECK(fenced_by(ask_import(&second, 1, 0, &a), first.pid));
    /* A rank of this process is no exception. */
    end b = open_end(config_of(1));
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_FENCED);
    kill(first.pid, SIGCONT);
    ask_write(&first, 1, 1);
    CHECK(epw_window_base(a.window)[1] == 1);
    kill_other(&first);
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);

    /* Other ranks' places were never concerned. */
    other third = start_other();
    export_to(&a, 2);
    CHECK(ask_import(&third, 2, 0, &a).status == EPW_OK);
    kill_other(&second);
    kill_other(&third);

    /* Now by a thread, and processes must wait for that. */
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_OK);
    other fourth = start_other();
    CHECK(fenced_by(ask_import(&fourth, 1, 0, &a), getpid()));
    epw_import_close(import);
    CHECK(ask_import(&fourth, 1, 0, &a).status == EPW_OK);
    end_other(&fourth);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void the_same_process_may_shake_hands_again(void) {
    end a = open_end(config_of(0));
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

/* The child neither holds the lease nor can write, and knows itself to be another process. */
static void a_forked_child_inherits_nothing(void) {
    other o = start_other();
    end a = open_end(config_of(0));
    answer got = {0};
    command c = {.verb = 'e', .peer = 0, .config = config_of(1)};
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
        /* memfd, listener, eventfd, and the lease */
        wrong |= (open_fds() != before - 4) << 1;
        unsigned char blob[EPW_BLOB_MAX];
        size_t length;
        wrong |= (epw_window_export(a.window, 1, blob, &length) != EPW_ERR_STATE) << 2;
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

/* ---- servers and clients that misbehave --------------------------------------------------------- */

static void a_silent_server_is_a_timeout(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.host.process.bytes[0] ^= 1;
    CHECK(epw_nonce_make(here, &blob.server) == EPW_OK);
    epw_blob_write(&blob, a.blob);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&blob.server, &address);
    CHECK(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 0));
    /* The first attempt gets no answer and stays in the listen queue, which is then full for the second. */
    const char *texts[] = {"did not answer within 100 ms", "did not accept a connection within 100 ms"};
    for (int i = 0; i < 2; i++) {
        uint64_t begin = epw_now_ns();
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 100 * MS, &import) == EPW_ERR_TIMEOUT);
        uint64_t took = epw_now_ns() - begin;
        CHECK(took >= 99 * MS && took < 1000 * MS);
        CHECK(error_has(texts[i]));
    }
    close(listener);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_stopped_exporter_is_a_timeout(void) {
    end a = open_end(config_of(0));
    other o = start_other();
    answer got = ask(&o, (command){.verb = 'e', .peer = 0, .config = config_of(1)});
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
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.host.process.bytes[0] ^= 1;
    CHECK(epw_nonce_make(here, &blob.server) == EPW_OK);
    epw_blob_write(&blob, a.blob);
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&blob.server, &address);

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

/* A raw connection to the server of a blob. */
static int connect_raw(const end *e, epw_blob *blob) {
    CHECK(epw_blob_parse(e->blob, e->length, here, blob) == EPW_OK);
    struct sockaddr_un address;
    socklen_t length = epw_fd_address(&blob->server, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (struct sockaddr *)&address, length));
    return fd;
}

static void bad_clients_delay_nobody(void) {
    end a = open_end(config_of(0));
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
    /* The secret is one bit off; then it is right, but the rank is none. */
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

/* Asks as a process of another name, over a connection of its own. */
static uint32_t request_raw(int fd, const epw_blob *blob, unsigned char name) {
    epw_fd_request request = {.magic = EPW_FD_REQUEST_MAGIC, .rank = 1, .window = blob->window};
    request.process.bytes[0] = name;
    epw_fd_reply reply = {0};
    CHECK(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    CHECK(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply.verdict;
}

/* A holder that talks on, or says that it will say no more, may still write: only a closed connection ends a
 * lease. */
static void talking_does_not_end_a_lease(void) {
    end a = open_end(config_of(0));
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

/* Who comes after a holder has closed is never refused, however soon: not because the server's thread is
 * late. */
static void a_place_is_free_as_soon_as_its_holder_has_closed(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    for (int round = 0; round < 300; round++) {
        int first = connect_raw(&a, &blob), second = connect_raw(&a, &blob);
        CHECK(request_raw(first, &blob, 1) == EPW_FD_GRANTED);
        close(first);
        CHECK(request_raw(second, &blob, 2) == EPW_FD_GRANTED);
        close(second);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_OK);
        epw_import_close(import);
    }
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* ---- leases of GPU windows ---------------------------------------------------------------------- */

static end open_gpu_end(uint32_t rank, uint32_t peer) {
    end e = open_end(config_of(rank));
    export_to(&e, peer);
    pretend_gpu(e.blob, e.length);
    return e;
}

static bool say_goodbye(int fd) {
    epw_fd_goodbye goodbye = {EPW_FD_GOODBYE_MAGIC};
    return send(fd, &goodbye, sizeof goodbye, MSG_NOSIGNAL) == (ssize_t)sizeof goodbye;
}

/* Also where the holder's process lives on, and however soon the next one comes. */
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

/* It is the promise to close; the open connection is the lease. */
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
    /* Dead is enough: its parent need not know. */
    siginfo_t info;
    kill(first.pid, SIGKILL);
    CHECK(!waitid(P_PID, (id_t)first.pid, &info, WEXITED | WNOWAIT));
    CHECK(ask_import(&second, 1, 0, &a).status == EPW_OK);
    kill_other(&first);
    kill_other(&second);

    /* With nobody asking, the server drops what it had of the dead, too: connections and pidfds. */
    uint64_t begin = epw_now_ns();
    while (open_fds() != before - 2 && epw_now_ns() - begin < 5000 * MS) usleep(1000);
    CHECK(open_fds() == before - 2);
    epw_window_destroy(a.window);
}

/* What is seen of a process whose sockets have closed and whose GPU goes on. */
static void a_gpu_lease_outlives_a_connection_closed_without_a_goodbye(void) {
    end a = open_gpu_end(0, 1), b = open_end(config_of(1));
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
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_FENCED);
    ask_write(&first, 1, 1);
    CHECK(epw_window_base(a.window)[1] == 1);

    /* The same process may shake hands again, but its goodbye is of the new connection alone. */
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
    static const epw_fd_goodbye goodbyes[2] = {{EPW_FD_GOODBYE_MAGIC}, {EPW_FD_GOODBYE_MAGIC}};
    static const epw_fd_goodbye wrong = {EPW_FD_GOODBYE_MAGIC ^ 1};
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

/* An exporter sees its holders end on old kernels as well, or grants nothing that it could not take back. */
static void old_kernels_fence_gpu_windows_too(void) {
    for (uint32_t kernel = WITHOUT_PEERPIDFD; kernel <= WITHOUT_PIDFD; kernel++) {
        other exporter = start_other(), first = start_other(), second = start_other();
        CHECK(ask(&exporter, (command){.verb = 'o', .value = kernel}).status == EPW_OK);
        end a = {0};
        answer got = ask(&exporter, (command){.verb = 'e', .peer = 1, .config = config_of(0)});
        CHECK(got.status == EPW_OK);
        a.length = got.length;
        memcpy(a.blob, got.blob, got.length);
        /* Host memory never needs it. */
        CHECK(ask_import(&first, 1, 0, &a).status == EPW_OK);
        ask(&first, (command){.verb = 'c'});

        CHECK(ask(&exporter, (command){.verb = 'g', .peer = 1}).status == EPW_OK);
        got = ask_import(&first, 1, 0, &a);
        if (kernel == WITHOUT_PIDFD) {
            CHECK(got.status == EPW_ERR_NO_PATH && strstr(got.error, "can not watch this one"));
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

static void silent_clients_are_closed_in_time(void) {
    end a = open_end(config_of(0));
    export_to(&a, 1);
    epw_blob blob;
    int fd = connect_raw(&a, &blob);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t begin = epw_now_ns();
    CHECK(poll(&p, 1, 20000) == 1 && (p.revents & POLLHUP));
    uint64_t took = epw_now_ns() - begin;
    CHECK(took > 4000 * MS && took < 8000 * MS);
    close(fd);
    epw_window_destroy(a.window);
}

static void other_users_are_refused(void) {
    if (geteuid() != 0) {
        printf("ignored: other_users_are_refused: needs root, to become another user\n");
        return;
    }
    end a = open_end(config_of(0));
    export_to(&a, 1);
    other o = start_other();
    command c = {.verb = 'u', .value = 65534, .config = config_of(1)};
    CHECK(ask(&o, c).status == 0);
    answer got = ask_import(&o, 1, 0, &a);
    CHECK(got.status == EPW_ERR_PEER && strstr(got.error, "belongs to user 0, this one to user 65534"));
    c.verb = 'f';
    c.length = a.length;
    memcpy(c.blob, a.blob, a.length);
    got = ask(&o, c);
    CHECK(got.status == EPW_OK && got.value == 0);

    /* Root is no exception the other way round: it does not take a window from another user. */
    got = ask(&o, (command){.verb = 'e', .peer = 0, .config = config_of(1)});
    epw_import *import = NULL;
    CHECK(epw_window_import(a.window, 1, got.blob, got.length, 1000 * MS, &import) == EPW_ERR_PEER);
    end_other(&o);
    epw_window_destroy(a.window);
}

/* ---- many, and for long ------------------------------------------------------------------------- */

typedef struct importer {
    end *exporter;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
    uint32_t rank;
} importer;

static void *import_as_rank(void *argument) {
    importer *m = argument;
    epw_config config = config_of(m->rank);
    config.paths = EPW_PATH_SHM;
    end own = open_end(config);
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
    end a = open_end(config_of(0));
    for (uint32_t i = 0; i < COUNT; i++) {
        importers[i].rank = i + 1;
        CHECK(epw_window_export(a.window, i + 1, importers[i].blob, &importers[i].length) == EPW_OK);
    }
    for (int i = 0; i < COUNT; i++) CHECK(!pthread_create(&ids[i], NULL, import_as_rank, &importers[i]));
    for (int i = 0; i < COUNT; i++) pthread_join(ids[i], NULL);
    for (uint32_t r = 1; r <= COUNT; r++) CHECK(epw_window_base(a.window)[r] == r);
    epw_window_destroy(a.window);
}

static void many_processes_import_at_once(void) {
    enum { COUNT = 16 };
    other others[COUNT];
    end a = open_end(config_of(0));
    for (int i = 0; i < COUNT; i++) others[i] = start_other();
    for (uint32_t i = 0; i < COUNT; i++) {
        export_to(&a, i + 1);
        command c = {.verb = 'i',
                     .peer = 0,
                     .deadline_ns = 20000 * MS,
                     .config = config_of(i + 1),
                     .length = a.length};
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
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    int before = threads(), fds = open_fds();
    export_to(&a, 1);
    CHECK(threads() == before + 1);
    export_to(&a, 2);
    export_to(&b, 2);
    CHECK(threads() == before + 1);
    epw_window_destroy(a.window);
    CHECK(threads() == before + 1);
    epw_window_destroy(b.window);
    CHECK(threads() == before);
    CHECK(open_fds() == fds - 2);
}

static void a_thousand_cycles_leak_no_descriptor(void) {
    int before = open_fds();
    epw_config config = config_of(1);
    for (int i = 0; i < 1000; i++) {
        config.paths = i % 2 ? EPW_PATH_SHM : EPW_PATH_ALL;
        end a = open_end(config_of(0)), b = open_end(config);
        export_to(&a, 1);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 5000 * MS, &import) == EPW_OK);
        /* Either order of parting. */
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
    if (argc == 3 && !strcmp(argv[1], "other")) return run_other(atoi(argv[2]));
    signal(SIGPIPE, SIG_DFL); /* nothing here may depend on its being ignored */
    a_window_is_zeroed_and_page_aligned();
    a_window_that_does_not_fit_is_an_error();
    export_refuses_a_wrong_peer();
    threads_use_the_very_same_memory();
    paths_that_are_excluded_are_not_taken();
    other_hosts_are_told_apart();
    many_threads_exchange_windows();
    every_field_that_differs_is_named();
    the_text_of_a_mismatch_has_both_values();
    a_blob_tells_the_gpu_and_the_path();
    host_and_gpu_do_not_mix();
    a_blob_is_for_one_pair_of_ranks();
    damaged_blobs_are_errors();
    forged_blobs_are_errors_or_harmless();
    processes_write_through_to_each_other();
    a_destroyed_window_is_not_served();
    a_peer_that_permits_no_shm_is_named();
    a_place_is_granted_again_once_its_holder_is_dead();
    the_same_process_may_shake_hands_again();
    a_forked_child_inherits_nothing();
    a_silent_server_is_a_timeout();
    a_stopped_exporter_is_a_timeout();
    lying_servers_are_errors();
    bad_clients_delay_nobody();
    talking_does_not_end_a_lease();
    a_place_is_free_as_soon_as_its_holder_has_closed();
    a_goodbye_ends_a_gpu_lease_at_once();
    a_goodbye_without_a_close_ends_nothing();
    a_gpu_lease_ends_with_its_process();
    a_gpu_lease_outlives_a_connection_closed_without_a_goodbye();
    what_is_no_goodbye_ends_no_gpu_lease();
    old_kernels_fence_gpu_windows_too();
    silent_clients_are_closed_in_time();
    other_users_are_refused();
    many_import_at_once();
    many_processes_import_at_once();
    the_server_ends_with_the_last_window();
    a_thousand_cycles_leak_no_descriptor();
    return check_result("window");
}
