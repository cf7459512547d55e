/* Measures how long Open MPI takes for the work of a dispatch, as programs without this library do it: each
 * rank packs the rows of its tokens by destination, once for each rank that has one of the token's experts;
 * the counts are exchanged, and then the rows. `.ci/beside_mpi --dispatch` compares it with a dispatch.
 *
 * mpirun -n RANKS alltoallv TOKENS HIDDEN EXPERTS TOPK ITERATIONS: prints the median in microseconds, for
 * rows of HIDDEN bfloat16. */
#include "measure.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct shape {
    int rank, ranks, tokens, hidden, experts, topk;
} shape;

typedef struct exchange {
    shape of;
    size_t row_bytes;
    bool *goes;                                 /* [tokens][ranks] */
    unsigned char *tokens, *out, *in;           /* rows: [tokens]; packed; [ranks * tokens] */
    int *sent, *sent_at, *received, *arrive_at; /* [ranks], in rows */
    MPI_Datatype row;
} exchange;

/* Chooses distinct experts, evenly. */
static void route(const shape *of, bool *goes) {
    uint64_t seed = (uint64_t)of->rank * 977 + 5;
    bool *taken = memory((size_t)of->experts);
    for (int t = 0; t < of->tokens; t++) {
        memset(taken, 0, (size_t)of->experts);
        for (int k = 0; k < of->topk;) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            const int expert = (int)((seed >> 33) % (uint64_t)of->experts);
            if (taken[expert]) continue;
            taken[expert] = true;
            goes[t * of->ranks + expert / (of->experts / of->ranks)] = true;
            k++;
        }
    }
    free(taken);
}

static void pack_and_exchange(void *context) {
    const exchange *e = context;
    const int ranks = e->of.ranks;
    int at = 0;
    for (int to = 0; to < ranks; to++) {
        e->sent_at[to] = at;
        for (int t = 0; t < e->of.tokens; t++) {
            if (!e->goes[t * ranks + to]) continue;
            memcpy(e->out + (size_t)at * e->row_bytes, e->tokens + (size_t)t * e->row_bytes, e->row_bytes);
            at++;
        }
        e->sent[to] = at - e->sent_at[to];
    }
    MPI_Alltoall(e->sent, 1, MPI_INT, e->received, 1, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0, rows = 0; from < ranks; rows += e->received[from++]) e->arrive_at[from] = rows;
    MPI_Alltoallv(e->out, e->sent, e->sent_at, e->row, e->in, e->received, e->arrive_at, e->row,
                  MPI_COMM_WORLD);
}

static double measure(const shape *of, int iterations) {
    const size_t ranks = (size_t)of->ranks, tokens = (size_t)of->tokens;
    exchange e = {.of = *of, .row_bytes = (size_t)of->hidden * 2};
    e.goes = memory(tokens * ranks);
    memset(e.goes, 0, tokens * ranks);
    route(of, e.goes);
    e.tokens = memory(tokens * e.row_bytes);
    e.out = memory(tokens * ranks * e.row_bytes);
    e.in = memory(tokens * ranks * e.row_bytes);
    int *counts = memory(4 * ranks * sizeof *counts);
    e.sent = counts;
    e.sent_at = counts + ranks;
    e.received = counts + 2 * ranks;
    e.arrive_at = counts + 3 * ranks;
    MPI_Type_contiguous((int)e.row_bytes, MPI_BYTE, &e.row);
    MPI_Type_commit(&e.row);
    const double median = median_us(pack_and_exchange, &e, iterations);
    MPI_Type_free(&e.row);
    free(counts);
    free(e.in);
    free(e.out);
    free(e.tokens);
    free(e.goes);
    return median;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    shape of;
    MPI_Comm_rank(MPI_COMM_WORLD, &of.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &of.ranks);
    int *const into[] = {&of.tokens, &of.hidden, &of.experts, &of.topk, &(int){0}};
    bool good = argc == 6;
    for (int i = 0; i < 5 && good; i++) good = (*into[i] = atoi(argv[i + 1])) > 0;
    if (!good || of.experts % of.ranks != 0 || of.topk > of.experts) {
        if (of.rank == 0)
            fprintf(stderr, "usage: alltoallv TOKENS HIDDEN EXPERTS TOPK ITERATIONS, as many EXPERTS on each "
                            "rank\n");
        MPI_Finalize();
        return 1;
    }
    const double median = measure(&of, *into[4]);
    if (of.rank == 0) printf("%.1f\n", median);
    return MPI_Finalize();
}
