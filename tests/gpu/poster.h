/* Kernels that post to queues as those of EP do, but do nothing else, with blocks of one warp. All are only
 * enqueued; each function returns a cudaError_t. */
#ifndef EPW_TESTS_POSTER_H
#define EPW_TESTS_POSTER_H

#include "nic/queue.h"

#include <stdint.h>

/* The kernels' results, zeroed before, in device memory. */
typedef struct poster_result {
    uint64_t began_ns, ended_ns; /* by globaltimer: first begin, last end */
    uint32_t late;               /* kernels or blocks that gave up */
} poster_result;

#ifdef __cplusplus
extern "C" {
#endif

/* One block per queue posts `batches` times `batch` NOPs, 32 at most, and rings once per batch; the last NOP
 * of a batch is signalled. Then it waits until all are done. Gives up after limit_ns. */
int poster_nops(epw_queue *queues, uint32_t count, uint32_t batches, uint32_t batch, uint64_t limit_ns,
                poster_result *result, void *stream);

/* Bounces a word `rounds` times: posts it to offset 0 of the peer's window, by its key, and awaits the reply
 * in this window. The end with `first` begins. */
typedef struct poster_end {
    epw_queue *queue;
    epw_key its;
    const uint64_t *window;
} poster_end;
int poster_ping_pong(poster_end end, int first, uint32_t rounds, uint64_t limit_ns, poster_result *result,
                     void *stream);

/* The same with a word that the host answers: stored to `to`, awaited at `from`. */
int poster_bounce(uint64_t *to, const uint64_t *from, uint32_t rounds, uint64_t limit_ns,
                  poster_result *result, void *stream);

#ifdef __cplusplus
}
#endif

#endif
