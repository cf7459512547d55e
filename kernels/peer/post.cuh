// Posting to the queues of peers whose windows are not mapped. The data for such a peer already lies in its image: each entry
// says from where to where it is copied, and the doorbell tells the NIC, which carries the entries out in order.
//
// A queue has room for the entries of two halves of an operation and 256 words more. Completions may arrive late, so the rows of
// the next dispatch may find the queue full; the post of an operation then waits for room, for a bounded time. If the queue stays
// full, either the peer has accepted nothing for that long or words alone have filled it: the post is lost, and the queue is
// given up with it. Its NIC then breaks the queue, and waits for that peer find EPW_CAUSE_LINK.
#pragma once

#include "kernels/peer/words.cuh"

#include "nic/queue.h"

namespace epw {

// Data to be sent before a word: `count` stretches of `bytes` each, `stride` apart, starting at `from` in the image and going to
// `offset` of the peer's window.
struct Range {
    uint64_t offset;
    const unsigned char *from;
    uint32_t bytes, stride, count;

    // The number of queue entries: one, if the stretches are contiguous, and an entry can carry them all.
    __device__ __forceinline__ uint32_t entries() const {
        if (bytes == 0 || count == 0) return 0;
        return count == 1 || (bytes == stride && uint64_t(bytes) * count <= EPW_ENTRY_BYTES_MAX) ? 1 : count;
    }
};

// The way to a peer on `lane`, given the structure of any lane.
__device__ __forceinline__ epw_gpu_way *way_to(const epw_gpu_peers *peers, uint32_t lane, uint32_t peer) {
    return peers->ways + (int64_t(lane) - peers->lane) * EPW_GPU_PEERS + peer;
}

// Writes an entry that was built in registers, in four 16-byte stores: the widest that cross the bus at once.
__device__ __forceinline__ void put_entry(const epw_queue_post &post, uint64_t index, const epw_entry_block &e) {
    uint4 *slot = reinterpret_cast<uint4 *>(epw_queue_post_slot(&post, index));
#pragma unroll
    for (int i = 0; i < 4; i++) slot[i] = {e.words[4 * i], e.words[4 * i + 1], e.words[4 * i + 2], e.words[4 * i + 3]};
}

__device__ __forceinline__ void put_word(const epw_queue_post &post, uint64_t index, epw_key its, uint64_t offset,
                                         uint64_t value) {
    epw_entry_block e;
    epw_entry_write_word(&e, post.pair, index, {offset, its}, value, EPW_SIGNAL_ALWAYS);
    put_entry(post, index, e);
}

__device__ __forceinline__ void put_row(const epw_queue_post &post, uint64_t index, epw_place_of remote, epw_place_of local,
                                        uint32_t bytes) {
    epw_entry_block e;
    epw_entry_write(&e, post.pair, index, remote, local, bytes, EPW_SIGNAL_ERRORS);
    put_entry(post, index, e);
}

// Begins a post, waiting at most `patience` ns for room. Returns false if the queue is broken, or has been given up here. Called
// by one thread.
__device__ __forceinline__ bool begin_post(epw_queue *q, uint32_t entries, uint64_t patience, epw_queue_post *post) {
    const uint64_t until = ptx::global_timer_ns() + patience;
    while (!epw_queue_try_begin(q, entries, post->depth, post)) {
        if (epw_load_acquire_64(&q->completions.error) == 0 && ptx::global_timer_ns() < until) continue;
        epw_queue_give_up(q); // has no effect if the queue is broken already
        return false;
    }
    return true;
}

// Posts a word to `offset` of the peer's window, after everything posted before; gives the queue up if there is no room. Called
// by one thread. This is the long way, by mark and bell: the short one of the posts below needs so many registers that kernels
// which can call this for a rare word keep what they need often in local memory (collectives by lines took 15 % longer, H200).
__device__ __noinline__ inline void post_word(const epw_gpu_peers *peers, uint32_t lane, uint32_t peer, uint64_t offset,
                                              uint64_t value) {
    epw_gpu_way *way = way_to(peers, lane, peer);
    epw_queue *q = &way->queue;
    uint64_t index;
    if (!epw_queue_try_reserve(q, 1, &index)) {
        epw_queue_give_up(q);
        return;
    }
    epw_queue_post post = epw_queue_post_to(q);
    put_word(post, index, way->its, offset, value);
    epw_queue_publish(q, index, 1);
    epw_queue_ring(q, true);
}

// Posts the ranges, then the word; waits at most `patience` ns for room. Called by a whole warp. Writer of the data in the
// ranges: the threads from which this warp has acquired it. Reader: the NIC, which acquires the doorbell.
__device__ __noinline__ inline void post(const epw_gpu_peers *peers, uint32_t lane, uint32_t peer, const Range *ranges,
                                         uint32_t count, uint64_t offset, uint64_t value, uint64_t patience) {
    const uint32_t all = 0xffffffffu, thread = threadIdx.x % 32;
    epw_gpu_way *way = way_to(peers, lane, peer);
    epw_queue_post begun = epw_queue_post_to(&way->queue);
    const epw_key its = way->its, own = way->own;
    const uint64_t image = way->image;
    uint32_t entries = 1;
#pragma unroll 1
    for (uint32_t i = 0; i < count; i++) entries += ranges[i].entries();
    const bool room = thread != 0 || begin_post(&way->queue, entries, patience, &begun);
    if (!__all_sync(all, room)) return;
    const uint64_t index = __shfl_sync(all, begun.index, 0);
#pragma unroll 1
    for (uint32_t i = thread; i < entries; i += 32) {
        uint32_t n = i, r = 0;
#pragma unroll 1
        for (; r < count && n >= ranges[r].entries(); r++) n -= ranges[r].entries();
        if (r == count) {
            put_word(begun, index + i, its, offset, value);
            continue;
        }
        const Range &range = ranges[r];
        const uint64_t at = uint64_t(n) * range.stride, from = reinterpret_cast<uint64_t>(range.from) - image;
        put_row(begun, index + i, {range.offset + at, its}, {from + at, own},
                range.entries() == 1 ? range.bytes * range.count : range.bytes);
    }
    // Writer: each thread, of its entries. Reader: the first thread, whose fences pass them on to the NIC or to whoever rings.
    __syncwarp();
    if (thread == 0) epw_queue_finish(&way->queue, &begun);
    __syncwarp();
}

// Posts `count` stretches of data, given by range_of(i), then the word, all by this thread. Returns false, and posts nothing, if
// more than `most` entries of the queue would then not be done. Writer of the data: the threads from which this one has acquired
// it, or whose relaxed stores it has seen. Reader: the NIC, which acquires the doorbell.
template <typename RangeOf>
__device__ __noinline__ bool try_post(const Peers &p, uint32_t peer, uint32_t count, const RangeOf &range_of, uint32_t word,
                                      uint64_t value, uint32_t most) {
    epw_gpu_way *way = way_to(p.peers, p.lane, peer);
    epw_queue_post begun = epw_queue_post_to(&way->queue);
    const epw_key its = way->its, own = way->own;
    const uint64_t image = way->image;
    if (!epw_queue_try_begin(&way->queue, count + 1, most, &begun)) return false;
#pragma unroll 1
    for (uint32_t i = 0; i < count; i++) {
        const Range range = range_of(i);
        put_row(begun, begun.index + i, {range.offset, its}, {reinterpret_cast<uint64_t>(range.from) - image, own}, range.bytes);
    }
    put_word(begun, begun.index + count, its, epw_word_offset(p.rank, p.lane, word), value);
    // Its fences pass on the entries, and stores that were seen.
    epw_queue_finish(&way->queue, &begun);
    return true;
}

} // namespace epw
