/* The thread pool: each item runs once, nothing accesses a job after its end, and a worker that the system
 * does not run delays nobody. */
#include "base/pool.h"
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, SKIPPED = 77 };

typedef struct job {
    uint32_t items;
    _Atomic uint32_t *taken; /* [items], how often each has run */
    uint32_t *results;       /* [items], ordinary memory, read by the caller after the run */
    uint32_t salt;
} job;

static void do_item(void *context, uint32_t item, uint32_t thread) {
    job *j = context;
    CHECK(item < j->items && thread < THREADS);
    atomic_fetch_add_explicit(&j->taken[item], 1, memory_order_relaxed);
    j->results[item] = item ^ j->salt;
}

/* The job's memory is its own and is freed at once, so that the sanitizers notice a worker that still
 * accesses it. */
static void run_job(epw_pool *pool, uint32_t items, uint32_t salt) {
    job *j = malloc(sizeof *j);
    *j = (job){items, calloc(items, sizeof *j->taken), calloc(items, sizeof *j->results), salt};
    epw_pool_run(pool, do_item, j, items);
    for (uint32_t i = 0; i < items; i++) CHECK(j->taken[i] == 1 && j->results[i] == (i ^ salt));
    free(j->taken);
    free(j->results);
    memset(j, 0xee, sizeof *j);
    free(j);
}

static void *run_jobs(void *pool) {
    static const uint32_t sizes[] = {1, 2, 3, 5, 8, 64, 300};
    for (uint32_t r = 0; r < 3000; r++) run_job(pool, sizes[r % 7], r * 2654435761u);
    return NULL;
}

static void every_item_runs_once(void) {
    for (uint32_t threads = 1; threads <= THREADS; threads++) {
        epw_pool *pool = NULL;
        CHECK_OK(epw_pool_create(0, threads, &pool));
        epw_pool_run(pool, do_item, NULL, 0);
        run_jobs(pool);
        epw_pool_destroy(pool);
    }
}

static void callers_take_turns(void) {
    epw_pool *pool = NULL;
    CHECK_OK(epw_pool_create(0, THREADS, &pool));
    pthread_t other;
    CHECK(pthread_create(&other, NULL, run_jobs, pool) == 0);
    run_jobs(pool);
    pthread_join(other, NULL);
    epw_pool_destroy(pool);
}

/* ---- a worker that the system does not run ---- */

static void note_worker(void *context, uint32_t item, uint32_t thread) {
    (void)item;
    _Atomic pid_t *worker = context;
    if (thread == 1) atomic_store(worker, (pid_t)syscall(SYS_gettid));
    while (atomic_load(worker) == 0) sched_yield();
}

/* The worker of a pool of two threads: it gets one of two items that wait for it. */
static pid_t worker_of(epw_pool *pool) {
    _Atomic pid_t worker = 0;
    epw_pool_run(pool, note_worker, &worker, 2);
    return worker;
}

typedef struct stopper {
    pid_t process;
    int release[2]; /* the stopper continues the thread when the write end closes */
} stopper;

/* Starts a child that stops one thread as a debugger does. False: this system does not permit it. */
static bool stop_thread(pid_t thread, stopper *s) {
    int stopped[2];
    if (pipe(stopped) != 0 || pipe(s->release) != 0) return false;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* fails where nothing restricts tracing */
    s->process = fork();
    if (s->process == 0) {
        char byte = 0;
        close(s->release[1]);
        bool held = ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 &&
                    ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 &&
                    waitpid(thread, NULL, __WALL) == thread;
        if (held && write(stopped[1], &byte, 1) == 1) (void)!read(s->release[0], &byte, 1);
        if (held) ptrace(PTRACE_DETACH, thread, NULL, NULL);
        _exit(0);
    }
    close(stopped[1]);
    close(s->release[0]);
    char byte;
    bool held = s->process > 0 && read(stopped[0], &byte, 1) == 1;
    close(stopped[0]);
    return held;
}

static void let_go(stopper *s) {
    close(s->release[1]);
    if (s->process > 0) waitpid(s->process, NULL, 0);
}

/* False: skipped. */
static bool a_stopped_worker_holds_nobody_up(void) {
    epw_pool *pool = NULL;
    CHECK_OK(epw_pool_create(0, 2, &pool));
    stopper s;
    bool held = stop_thread(worker_of(pool), &s);
    if (held) {
        alarm(30); /* ends the test if a run waits for the stopped worker */
        for (uint32_t r = 0; r < 100; r++) run_job(pool, r + 1, r);
        alarm(0);
    }
    let_go(&s);
    /* The worker wakes up to jobs that are long over, and takes part again. */
    run_jobs(pool);
    epw_pool_destroy(pool);
    return held;
}

int main(void) {
    every_item_runs_once();
    callers_take_turns();
    bool whole = a_stopped_worker_holds_nobody_up();
    int result = check_result("pool");
    if (result == 0 && !whole) {
        printf("pool: a stopped worker is NOT CHECKED: this system does not let a child trace its parent\n");
        return SKIPPED;
    }
    return result;
}
