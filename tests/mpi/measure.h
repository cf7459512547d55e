/* Measures operations of MPI as the bench measures its own: an iteration begins when all ranks have met, and
 * lasts from the first rank's call to the last rank's return, on the clock that all processes of a host
 * share. */
#ifndef EPW_TESTS_MPI_MEASURE_H
#define EPW_TESTS_MPI_MEASURE_H

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP = 20 };

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

/* Called by all ranks; returns the median in microseconds. */
static inline double median_us(void (*run)(void *context), void *context, int iterations) {
    double *spans = memory((size_t)iterations * sizeof *spans);
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
    const double median = spans[iterations / 2];
    free(spans);
    return median;
}

#endif
