// See poster.h.
#include "poster.h"

#include "kernels/peer/post.cuh"

#include <cuda_runtime.h>

namespace {

using namespace epw;

__device__ void note(poster_result *result, uint64_t began, bool late) {
    auto *first = reinterpret_cast<unsigned long long *>(&result->began_ns);
    auto *last = reinterpret_cast<unsigned long long *>(&result->ended_ns);
    atomicCAS(first, 0, began);
    atomicMin(first, began);
    atomicMax(last, ptx::global_timer_ns());
    if (late) atomicAdd(&result->late, 1);
}

__global__ void nops_kernel(epw_queue *queues, uint32_t batches, uint32_t batch, uint64_t limit_ns,
                            poster_result *result) {
    const uint32_t thread = threadIdx.x;
    const uint64_t began = ptx::global_timer_ns();
    epw_queue *q = &queues[blockIdx.x];
    epw_queue_post begun = epw_queue_post_to(q);
    bool late = false;
    for (uint32_t n = 0; n < batches && !late; n++) {
        while (thread == 0 && !late && !epw_queue_try_begin(q, batch, begun.depth, &begun))
            late = ptx::global_timer_ns() - began > limit_ns;
        late = __shfl_sync(0xffffffffu, late, 0);
        const uint64_t index = __shfl_sync(0xffffffffu, begun.index, 0);
        if (late) break;
        if (thread < batch) {
            epw_entry_block e;
            epw_entry_nop(&e, begun.pair, index + thread,
                          thread == batch - 1 ? EPW_SIGNAL_ALWAYS : EPW_SIGNAL_ERRORS);
            put_entry(begun, index + thread, e);
        }
        // Writer: each thread, of its entry. Reader: the first thread, whose fences pass them on.
        __syncwarp();
        if (thread == 0) epw_queue_finish(q, &begun);
        __syncwarp();
    }
    if (thread != 0) return;
    while (!late && !epw_queue_is_done(q, uint64_t(batches) * batch))
        late = ptx::global_timer_ns() - began > limit_ns;
    note(result, began, late);
}

// Called by one thread. Returns false if the word has not come in time.
__device__ bool await_word(const uint64_t *word, uint64_t value, uint64_t until) {
    for (uint32_t looks = 0; ptx::load_acquire_sys(word) < value; looks++)
        if (looks % 64 == 63 && ptx::global_timer_ns() > until) return false;
    return true;
}

// Posts a word to the beginning of the peer's window, in the same steps as post() and try_post(). Returns
// false if there is no room.
__device__ bool try_post_word(epw_queue *q, epw_key its, uint64_t value) {
    epw_queue_post begun;
    if (!epw_queue_try_begin(q, 1, q->depth, &begun)) return false;
    put_word(begun, begun.index, its, 0, value);
    epw_queue_finish(q, &begun);
    return true;
}

__global__ void ping_pong_kernel(poster_end end, int first, uint32_t rounds, uint64_t limit_ns,
                                 poster_result *result) {
    const uint64_t began = ptx::global_timer_ns();
    bool late = false;
    for (uint64_t n = 1; n <= rounds && !late; n++) {
        if (!first) late = !await_word(end.window, n, began + limit_ns);
        if (late || !try_post_word(end.queue, end.its, n)) break;
        if (first) late = !await_word(end.window, n, began + limit_ns);
    }
    note(result, began, late);
}

__global__ void bounce_kernel(uint64_t *to, const uint64_t *from, uint32_t rounds, uint64_t limit_ns,
                              poster_result *result) {
    const uint64_t began = ptx::global_timer_ns();
    bool late = false;
    for (uint64_t n = 1; n <= rounds && !late; n++) {
        ptx::store_release_sys(to, n);
        late = !await_word(from, n, began + limit_ns);
    }
    note(result, began, late);
}

} // namespace

extern "C" int poster_nops(epw_queue *queues, uint32_t count, uint32_t batches, uint32_t batch,
                           uint64_t limit_ns, poster_result *result, void *stream) {
    nops_kernel<<<count, 32, 0, static_cast<cudaStream_t>(stream)>>>(queues, batches, batch, limit_ns,
                                                                     result);
    return cudaGetLastError();
}

extern "C" int poster_ping_pong(poster_end end, int first, uint32_t rounds, uint64_t limit_ns,
                                poster_result *result, void *stream) {
    ping_pong_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(end, first, rounds, limit_ns, result);
    return cudaGetLastError();
}

extern "C" int poster_bounce(uint64_t *to, const uint64_t *from, uint32_t rounds, uint64_t limit_ns,
                             poster_result *result, void *stream) {
    bounce_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(to, from, rounds, limit_ns, result);
    return cudaGetLastError();
}
