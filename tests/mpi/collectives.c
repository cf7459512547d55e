/* Measures how long Open MPI takes for a collective, which `.ci/beside_mpi --collectives` compares with that
 * of epwire.
 *
 * mpirun -n RANKS collectives NAME BYTES ITERATIONS: prints the median in microseconds, for f32. BYTES is the
 * size of the larger buffer: in an all-reduce or broadcast, of every rank's buffer; otherwise, of all ranks'
 * blocks together. */
#include "measure.h"

typedef struct operation {
    const char *name;
    int count, block; /* elements: of all, and of each rank's block */
    float *out, *in;
} operation;

static void run(void *context) {
    const operation *o = context;
    if (strcmp(o->name, "all_reduce") == 0) {
        MPI_Allreduce(o->out, o->in, o->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (strcmp(o->name, "broadcast") == 0) {
        MPI_Bcast(o->in, o->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (strcmp(o->name, "all_gather") == 0) {
        MPI_Allgather(o->out, o->block, MPI_FLOAT, o->in, o->block, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (strcmp(o->name, "reduce_scatter") == 0) {
        MPI_Reduce_scatter_block(o->out, o->in, o->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (strcmp(o->name, "all_to_all") == 0) {
        MPI_Alltoall(o->out, o->block, MPI_FLOAT, o->in, o->block, MPI_FLOAT, MPI_COMM_WORLD);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const long bytes = argc == 4 ? atol(argv[2]) : -1;
    const int iterations = argc == 4 ? atoi(argv[3]) : 0;
    if (bytes < 0 || iterations < 1) {
        if (rank == 0) fprintf(stderr, "usage: collectives NAME BYTES ITERATIONS\n");
        MPI_Finalize();
        return 1;
    }
    const size_t count = (size_t)bytes / sizeof(float);
    operation o = {.name = argv[1],
                   .count = (int)count,
                   .block = (int)(count / (size_t)ranks),
                   .out = memory(count * sizeof(float) + sizeof(float)),
                   .in = memory(count * sizeof(float) + sizeof(float))};
    const double median = median_us(run, &o, iterations);
    if (rank == 0) printf("%.1f\n", median);
    free(o.in);
    free(o.out);
    return MPI_Finalize();
}
