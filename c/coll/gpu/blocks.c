/* Uneven blocks, and rows with gaps between them, as kernels take them: what this rank gives to each rank,
 * and what it takes from each. */
#include "coll/gpu/gpu.h"

#ifdef EPW_CUDA
#include "coll/blocks.h"

static epw_coll_block block_of(const blocks *b, uint32_t rank) {
    return (epw_coll_block){.at = b->base + offset_of(b, rank), .row_bytes = row_bytes_of(b, rank)};
}

/* The only block of send or recv, with rows of this many bytes. */
static epw_coll_block alone(const epw_coll *c, bool in_recv, uint64_t row_bytes) {
    unsigned char *at = in_recv ? c->recv : (unsigned char *)(uintptr_t)c->send;
    return (epw_coll_block){.at = at, .row_bytes = row_bytes};
}

static uint64_t alone_pitch(const epw_coll *c, bool in_recv, uint64_t row_bytes) {
    uint64_t pitch = in_recv ? c->recv_pitch : c->send_pitch;
    return pitch != 0 ? pitch * epw_type_bytes(c->type) : row_bytes;
}

static uint64_t longest(const epw_coll_block *blocks, uint32_t ranks, uint64_t rows) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < ranks; r++)
        if (blocks[r].row_bytes > most) most = blocks[r].row_bytes;
    return rows * most;
}

void epw_coll_gpu_lay_out(const epw_comm *comm, const epw_coll *c, epw_coll_blocks_args *args) {
    uint32_t ranks = comm->layout.ranks, me = comm->config.rank;
    blocks in_send = blocks_in(comm, c, false), in_recv = blocks_in(comm, c, true);
    bool gathers = c->kind == EPW_ALL_GATHER || c->kind == EPW_GATHER, root = c->peer == me;
    uint64_t own = row_bytes_of(gathers ? &in_recv : &in_send, me); /* of the only block */
    args->rows = in_send.rows;
    args->element = (uint32_t)in_send.element;
    args->give_pitch = gathers ? alone_pitch(c, false, own) : in_send.pitch;
    args->take_pitch = gathers || c->kind == EPW_ALL_TO_ALL ? in_recv.pitch : alone_pitch(c, true, own);
    for (uint32_t r = 0; r < ranks; r++) {
        epw_coll_block *give = &args->give[r], *take = &args->take[r];
        switch (c->kind) {
        case EPW_ALL_GATHER:
            *give = alone(c, false, own);
            *take = block_of(&in_recv, r);
            break;
        case EPW_GATHER:
            if (r == c->peer) *give = alone(c, false, own);
            if (root) *take = block_of(&in_recv, r);
            break;
        case EPW_REDUCE_SCATTER:
            *give = block_of(&in_send, r);
            *take = alone(c, true, own);
            break;
        case EPW_SCATTER:
            if (root) *give = block_of(&in_send, r);
            if (r == c->peer) *take = alone(c, true, own);
            break;
        default: /* all_to_all */
            *give = block_of(&in_send, r);
            *take = block_of(&in_recv, r);
        }
    }
    args->give_bytes = longest(args->give, ranks, args->rows);
    args->take_bytes = longest(args->take, ranks, args->rows);
}
#endif
