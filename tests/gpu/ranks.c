/* See ranks.h. */
#include "ranks.h"

#include "require.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* "rank ranks gpus fd fd ..." for a process that is a rank. */
#define PLACE "EPW_TEST_PLACE"

/* ---- the program: its options, its limit, its GPUs ---- */

/* The number of arguments that form an option of that name; 0 if it is unknown, or its value is not a
 * number. */
static int take_option(const ranks_option *options, int argc, char **argv) {
    int taken = 0;
    for (const ranks_option *o = options; o->name != NULL; o++) {
        char *rest = NULL;
        if (strcmp(argv[0], o->name) != 0) continue;
        if (o->preset != 0) {
            *o->number = o->preset;
            taken = 1;
            continue;
        }
        if (argc < 2) return 0;
        taken = 2;
        if (o->text != NULL) {
            *o->text = argv[1];
            continue;
        }
        *o->number = (uint32_t)strtoul(argv[1], &rest, 10);
        if (rest == argv[1] || *rest != 0) return 0;
    }
    return taken;
}

int ranks_options(int argc, char **argv, const ranks_option *options, const char *usage) {
    for (int i = 1; i < argc;) {
        int taken = take_option(options, argc - i, argv + i);
        if (taken == 0) {
            fprintf(stderr, "unknown option, or no value: %s\n%s\n", argv[i], usage);
            return 2;
        }
        i += taken;
    }
    return 0;
}

static const char *program = "";

static void too_long(int signal) {
    (void)signal;
    static const char text[] = ": hangs: the limit of --seconds is over\n";
    if (write(1, program, strlen(program)) < 0 || write(1, text, sizeof text - 1) < 0) _exit(1);
    _exit(1);
}

void ranks_limit(const char *name, uint32_t seconds) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);      /* lazy loading could wait for kernels that wait for a
                                                     * peer */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* enough hardware queues that a waiting kernel blocks no
                                                     * other stream */
    program = name;
    signal(SIGALRM, too_long);
    alarm(seconds);
}

int gpus_main(void) {
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess || gpus == 0)
        printf("ignored: no GPU: %s\n", error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
    return error == cudaSuccess ? gpus : 0;
}

static uint32_t count_gpus(char **argv) {
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        execv("/proc/self/exe", (char *[]){argv[0], "--count-gpus", NULL});
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    return WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : 0;
}

int32_t ranks_gpu(const rank_links *links) {
    return (int32_t)(links->rank % links->gpus);
}

uint32_t ranks_sms(const rank_links *links, uint32_t buffers, uint32_t most) {
    uint32_t sharing = (links->ranks + links->gpus - 1) / links->gpus;
    int sms = 0;
    REQUIRE_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ranks_gpu(links)));
    uint32_t share = (uint32_t)sms / (sharing * buffers);
    return most > 0 && most < share ? most : share;
}

static pthread_mutex_t enqueuing = PTHREAD_MUTEX_INITIALIZER;

void ranks_begin_alone(const rank_links *links) {
    if (links->ranks > links->gpus) pthread_mutex_lock(&enqueuing);
}

void ranks_end_alone(const rank_links *links) {
    if (links->ranks > links->gpus) pthread_mutex_unlock(&enqueuing);
}

/* ---- starting ---- */

typedef struct rank_thread {
    rank_links links;
    rank_body *body;
    pthread_t thread;
    pid_t process;
    int result;
} rank_thread;

static void *thread_main(void *argument) {
    rank_thread *t = argument;
    t->result = t->body(&t->links);
    return NULL;
}

static void keep_open(int fd) {
    if (fd >= 0) REQUIRE(fcntl(fd, F_SETFD, 0) == 0, "fcntl: %s", strerror(errno));
}

pid_t ranks_start(const rank_links *links, char **argv) {
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0, "fork: %s", strerror(errno));
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no process outlives its parent */
    if (getppid() != parent) _exit(1);
    char place[256];
    int at = snprintf(place, sizeof place, "%u %u %u", links->rank, links->ranks, links->gpus);
    for (uint32_t p = 0; p < links->ranks; p++) {
        keep_open(links->to[p]);
        at += snprintf(place + at, sizeof place - (size_t)at, " %d", links->to[p]);
    }
    setenv(PLACE, place, 1);
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* Waits for all processes; if one fails, ends the others. */
static int await_processes(rank_thread *ranks, uint32_t count) {
    int result = 0;
    for (uint32_t ended = 0; ended < count; ended++) {
        int status = 0;
        pid_t process = waitpid(-1, &status, 0);
        if (process < 0) return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        result = 1;
        for (uint32_t r = 0; r < count; r++) {
            if (ranks[r].process == process) {
                ranks[r].process = 0;
                fprintf(stderr, "rank %u ended with status %d\n", r, status);
            }
        }
        nanosleep(&(struct timespec){2, 0}, NULL); /* gives them time to report what they saw */
        for (uint32_t r = 0; r < count; r++) {
            if (ranks[r].process > 0) kill(ranks[r].process, SIGKILL);
        }
    }
    return result;
}

static void start_all(rank_thread *all, uint32_t ranks, uint32_t processes, char **argv) {
    for (uint32_t r = 0; r < ranks; r++) {
        if (processes) {
            all[r].process = ranks_start(&all[r].links, argv);
        } else {
            REQUIRE(pthread_create(&all[r].thread, NULL, thread_main, &all[r]) == 0, "no thread for rank %u",
                    r);
        }
    }
}

static int await_threads(rank_thread *all, uint32_t ranks) {
    int result = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        pthread_join(all[r].thread, NULL);
        result |= all[r].result;
    }
    return result;
}

int ranks_run(rank_body *body, uint32_t ranks, uint32_t gpus, uint32_t processes, char **argv) {
    static rank_thread all[RANKS_LIMIT];
    for (uint32_t r = 0; r < ranks; r++) {
        all[r] = (rank_thread){.links = {.rank = r, .ranks = ranks, .gpus = gpus}, .body = body};
        for (uint32_t p = 0; p < RANKS_LIMIT; p++) all[r].links.to[p] = -1;
        for (uint32_t p = 0; p < r; p++) {
            int pair[2];
            REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair: %s",
                    strerror(errno));
            all[r].links.to[p] = pair[0];
            all[p].links.to[r] = pair[1];
        }
    }
    start_all(all, ranks, processes, argv);
    int result = processes ? await_processes(all, ranks) : await_threads(all, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t p = 0; p < ranks; p++) {
            if (p != r) close(all[r].links.to[p]);
        }
    }
    return result;
}

/* Runs body as the rank that this process was started to be. Returns its exit code, or -1 if the program was
 * started by hand. */
static int join(rank_body *body) {
    const char *place = getenv(PLACE);
    if (place == NULL) return -1;
    long numbers[3 + RANKS_LIMIT];
    char *rest = (char *)place;
    rank_links links = {0};
    for (uint32_t i = 0; i < 3 + RANKS_LIMIT; i++) numbers[i] = *rest ? strtol(rest, &rest, 10) : -1;
    links.rank = (uint32_t)numbers[0];
    links.ranks = (uint32_t)numbers[1];
    links.gpus = (uint32_t)numbers[2];
    for (uint32_t p = 0; p < RANKS_LIMIT; p++) links.to[p] = (int)numbers[3 + p];
    return body(&links);
}

int ranks_begin(rank_body *body, uint32_t least, uint32_t *ranks, uint32_t *gpus, char **argv) {
    int joined = join(body);
    if (joined >= 0) return joined;
    *gpus = count_gpus(argv);
    if (*gpus == 0) return EXIT_SKIPPED;
    if (*ranks == 0 && *gpus < least) {
        printf("ignored: %u GPUs where %u are needed, one to a rank\n", *gpus, least);
        return EXIT_SKIPPED;
    }
    if (*ranks == 0) *ranks = *gpus < RANKS_LIMIT ? *gpus : RANKS_LIMIT;
    REQUIRE(*ranks >= least && *ranks <= RANKS_LIMIT, "ranks is %u, must be from %u to %d", *ranks, least,
            RANKS_LIMIT);
    return -1;
}

int ranks_main(rank_body *body, uint32_t ranks, uint32_t processes, char **argv) {
    uint32_t gpus = 0;
    int ended = ranks_begin(body, 1, &ranks, &gpus, argv);
    return ended >= 0 ? ended : ranks_run(body, ranks, gpus, processes, argv);
}

/* ---- talking ---- */

void ranks_say(int fd, const void *bytes, size_t length) {
    REQUIRE(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length, "a rank is gone: %s", strerror(errno));
}

size_t ranks_hear(int fd, void *bytes, size_t capacity) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    REQUIRE(poll(&one, 1, 120000) == 1, "a rank was silent for two minutes");
    ssize_t got = recv(fd, bytes, capacity, 0);
    REQUIRE(got > 0, "a rank is gone");
    return (size_t)got;
}

uint64_t ranks_sum(const rank_links *links, uint64_t value) {
    uint64_t sum = value, other = 0;
    for (uint32_t p = 0; p < links->ranks; p++) {
        if (p != links->rank) ranks_say(links->to[p], &value, sizeof value);
    }
    for (uint32_t p = 0; p < links->ranks; p++) {
        if (p == links->rank) continue;
        ranks_hear(links->to[p], &other, sizeof other);
        sum += other;
    }
    return sum;
}

void ranks_meet(const rank_links *links) {
    ranks_sum(links, 0);
}

/* ---- paths ---- */

/* For EPW_TEST_PATH=mixed: the path between the ranks of one half. The two halves share their windows, if at
 * all, by different kinds of handle, and within one process there are no IPC handles. */
static uint32_t path_of_half(uint32_t half) {
    if (getenv(PLACE) != NULL) return half == 0 ? EPW_PATH_VMM : EPW_PATH_IPC;
    return half == 0 ? EPW_PATH_THREAD : EPW_PATH_VMM;
}

static uint32_t half_of(uint32_t rank, uint32_t ranks) {
    return rank >= (ranks + 1) / 2;
}

static int is_set_to(const char *variable, const char *value) {
    const char *set = getenv(variable);
    return set != NULL && strcmp(set, value) == 0;
}

static int is_path(const char *name) {
    return is_set_to("EPW_TEST_PATH", name);
}

int ranks_by_queue(void) {
    return is_path("queue");
}

void ranks_fabric(epw_config *config) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    static const unsigned char key[32] = "known to all ranks of the tests";
    options.rank = config->rank;
    if (is_set_to("EPW_TEST_WIRE", "tcp")) {
        options.wires = EPW_WIRE_TCP;
        options.interfaces = "lo";
        options.key = key;
    }
    if (is_set_to("EPW_TEST_NIC", "strict")) options.nic = EPW_NIC_STRICT;
    if (is_set_to("EPW_TEST_NIC", "fake") || is_set_to("EPW_TEST_NIC", "fakes")) options.nic = EPW_NIC_FAKE;
    if (is_set_to("EPW_TEST_NIC", "fakes")) options.adapter_count = 2;
    options.device = config->device;
    if (is_set_to("EPW_TEST_WIRE", "verbs")) options.wires = EPW_WIRE_VERBS;
    if (is_set_to("EPW_TEST_DOORBELLS", "gpu")) options.doorbells = EPW_DOORBELLS_GPU;
    if (is_set_to("EPW_TEST_DOORBELLS", "host")) options.doorbells = EPW_DOORBELLS_HOST;
    if (is_set_to("EPW_TEST_RINGS", "gpu")) options.rings = EPW_RINGS_GPU;
    if (is_set_to("EPW_TEST_RINGS", "auto")) options.rings = EPW_RINGS_AUTO;
    if (is_set_to("EPW_TEST_RINGS", "mixed") && config->rank % 2 == 1) options.rings = EPW_RINGS_GPU;
    REQUIRE_OK(epw_fabric_create(&options, &config->fabric));
}

void ranks_path(epw_config *config) {
    if (!is_path("queue") && !is_path("mixed")) return;
    ranks_fabric(config);
    config->paths = EPW_PATH_SELF | EPW_PATH_QUEUE;
    if (is_path("mixed")) config->paths |= path_of_half(half_of(config->rank, config->ranks));
}

void ranks_require_path(const rank_links *links, uint32_t peer, uint32_t path) {
    uint32_t half = half_of(links->rank, links->ranks), wanted = EPW_PATH_QUEUE;
    if (!is_path("queue") && !is_path("mixed")) return;
    if (is_path("mixed") && half_of(peer, links->ranks) == half) wanted = path_of_half(half);
    if (peer == links->rank) wanted = EPW_PATH_SELF;
    REQUIRE(path == wanted, "rank %u reaches rank %u by path %s, not %s", links->rank, peer,
            epw_path_name(path), epw_path_name(wanted));
}

void ranks_require_paths(const rank_links *links, const epw_buffer *buffer) {
    for (uint32_t p = 0; p < links->ranks; p++) ranks_require_path(links, p, epw_buffer_path(buffer, p));
}
void ranks_require_prefill_paths(const rank_links *links, const epw_prefill *prefill) {
    for (uint32_t p = 0; p < links->ranks; p++) ranks_require_path(links, p, epw_prefill_path(prefill, p));
}

/* ---- connecting ---- */

typedef epw_status export_to(void *of, uint32_t peer, void *blob, size_t *length);
typedef epw_status connect_with(void *of, uint32_t peer, const void *blob, size_t length);

static void exchange(const rank_links *links, void *of, export_to *export, connect_with *connect) {
    unsigned char blob[EPW_BLOB_MAX];
    for (uint32_t p = 0; p < links->ranks; p++) {
        size_t length = 0;
        if (p == links->rank) continue;
        REQUIRE_OK(export(of, p, blob, &length));
        ranks_say(links->to[p], blob, length);
    }
    for (uint32_t p = 0; p < links->ranks; p++) {
        if (p == links->rank) continue;
        size_t length = ranks_hear(links->to[p], blob, sizeof blob);
        REQUIRE_OK(connect(of, p, blob, length));
    }
}

static epw_status export_buffer(void *of, uint32_t peer, void *blob, size_t *length) {
    return epw_buffer_export(of, peer, blob, length);
}
static epw_status connect_buffer(void *of, uint32_t peer, const void *blob, size_t length) {
    return epw_buffer_connect(of, peer, blob, length);
}
static epw_status export_prefill(void *of, uint32_t peer, void *blob, size_t *length) {
    return epw_prefill_export(of, peer, blob, length);
}
static epw_status connect_prefill(void *of, uint32_t peer, const void *blob, size_t length) {
    return epw_prefill_connect(of, peer, blob, length);
}
static epw_status export_comm(void *of, uint32_t peer, void *blob, size_t *length) {
    return epw_comm_export(of, peer, blob, length);
}
static epw_status connect_comm(void *of, uint32_t peer, const void *blob, size_t length) {
    return epw_comm_connect(of, peer, blob, length);
}

static epw_mask all_ranks(const rank_links *links) {
    return (epw_mask){{(UINT64_C(1) << links->ranks) - 1}};
}

void ranks_connect(const rank_links *links, epw_buffer *buffer) {
    epw_mask all = all_ranks(links);
    exchange(links, buffer, export_buffer, connect_buffer);
    REQUIRE_OK(epw_buffer_set_active(buffer, &all, 1, 0));
    ranks_meet(links);
}

void ranks_connect_prefill(const rank_links *links, epw_prefill *prefill) {
    epw_mask all = all_ranks(links);
    exchange(links, prefill, export_prefill, connect_prefill);
    REQUIRE_OK(epw_prefill_set_active(prefill, &all, 1, 0));
    ranks_meet(links);
}

void ranks_connect_comm(const rank_links *links, epw_comm *comm) {
    exchange(links, comm, export_comm, connect_comm);
}
