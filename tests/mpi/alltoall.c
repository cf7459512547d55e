/* How long Open MPI takes for two all-to-alls, one after the other: what `.ci/beside_mpi` puts beside a pair
 * of dispatch and combine. An iteration is timed as the bench times its own: it begins when all ranks have
 * met, and lasts from the first rank's call to the last rank's return, on the clock that all processes of a
 * host share.
 *
 * mpirun -n RANKS alltoall BYTES ITERATIONS: the median in microseconds, of BYTES to each rank. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP = 20 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *memory(size_t bytes) {
    void *p = malloc(bytes);
    if (p == NULL) {
        fprintf(stderr, "alltoall: no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        exit(1);
    }
    memset(p, 1, bytes);
    return p;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int bytes = argc == 3 ? atoi(argv[1]) : 0, iterations = argc == 3 ? atoi(argv[2]) : 0;
    if (bytes < 1 || iterations < 1) {
        if (rank == 0) fprintf(stderr, "usage: alltoall BYTES ITERATIONS\n");
        MPI_Finalize();
        return 1;
    }
    char *out = memory((size_t)bytes * (size_t)ranks), *in = memory((size_t)bytes * (size_t)ranks);
    double *spans = memory((size_t)iterations * sizeof *spans);
    for (int i = -WARMUP; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = now_us();
        MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        MPI_Alltoall(in, bytes, MPI_BYTE, out, bytes, MPI_BYTE, MPI_COMM_WORLD);
        const double end = now_us();
        double first, last;
        MPI_Allreduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) spans[i] = last - first;
    }
    qsort(spans, (size_t)iterations, sizeof *spans, by_size);
    if (rank == 0) printf("%.1f\n", spans[iterations / 2]);
    free(spans);
    free(in);
    free(out);
    return MPI_Finalize();
}
