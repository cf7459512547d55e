/* Measures how long Open MPI takes for two all-to-alls, one after the other, which `.ci/beside_mpi` compares
 * with a dispatch and a combine.
 *
 * mpirun -n RANKS alltoall BYTES ITERATIONS: prints the median in microseconds, for BYTES to each rank. */
#include "measure.h"

typedef struct buffers {
    int bytes;
    char *out, *in;
} buffers;

static void there_and_back(void *context) {
    const buffers *b = context;
    MPI_Alltoall(b->out, b->bytes, MPI_BYTE, b->in, b->bytes, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Alltoall(b->in, b->bytes, MPI_BYTE, b->out, b->bytes, MPI_BYTE, MPI_COMM_WORLD);
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
    buffers b = {.bytes = bytes,
                 .out = memory((size_t)bytes * (size_t)ranks),
                 .in = memory((size_t)bytes * (size_t)ranks)};
    const double median = median_us(there_and_back, &b, iterations);
    if (rank == 0) printf("%.1f\n", median);
    free(b.in);
    free(b.out);
    return MPI_Finalize();
}
