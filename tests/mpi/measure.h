/* Measures operations of MPI as the bench measures its own: an iteration begins when all ranks have met, and
 * lasts from the first rank's call to the last rank's return, on the clock that all processes of a host
 * share. Where ranks outnumber the cores, they first meet for as long as those of the bench do. Warm-up takes
 * 20 iterations, of which the bench has 5. */
#ifndef EPW_TESTS_MPI_MEASURE_H
#define EPW_TESTS_MPI_MEASURE_H

#include <mpi.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP = 20, SETTLES_US = 250000 };

static inline double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static inline int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Allocated and filled with ones, so that no page of it is new later. Ends all ranks if there is no
 * memory. */
static inline void *memory(size_t bytes) {
    void *p = malloc(bytes);
    if (p == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        exit(1);
    }
    memset(p, 1, bytes);
    return p;
}

static inline int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Called by all ranks, which outnumber the cores or do nothing: Linux may leave one of them alone on a core
 * for up to this long. All meet as often as the rank says that thinks so most. */
static inline void settle(void) {
    enum { TRIED = 100 };
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const double begin = now_us();
    for (int i = 0; i < TRIED; i++) MPI_Barrier(MPI_COMM_WORLD);
    const double each = (now_us() - begin) / TRIED;
    const double own = ranks > cores() ? SETTLES_US / each : 0;
    double count;
    MPI_Allreduce(&own, &count, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    for (long i = 0; i < (long)count; i++) MPI_Barrier(MPI_COMM_WORLD);
}

/* Called by all ranks; returns the median in microseconds, by nearest rank as the bench has it. */
static inline double median_us(void (*run)(void *context), void *context, int iterations) {
    double *spans = memory((size_t)iterations * sizeof *spans);
    settle();
    for (int i = -WARMUP; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = now_us();
        run(context);
        const double end = now_us();
        double first, last;
        MPI_Allreduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) spans[i] = last - first;
    }
    qsort(spans, (size_t)iterations, sizeof *spans, by_size);
    const double median = spans[(iterations - 1) / 2];
    free(spans);
    return median;
}

#endif
