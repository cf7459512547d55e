// A collective from the first instruction of a kernel to the last: what a block reads of the communicator, the call that ranks
// tell each other, waits, and the state that the block leaves behind.
//
// Blocks do not wait for one another at the end, except blocks that met a failure: those that gave a peer up, waited long, or
// found calls that differ. One of these waits until all blocks are out, tells the host which ranks the operation lacks and the
// peers which calls differ, and stops the clocks.
#pragma once

#include "kernels/coll/state.h"
#include "kernels/peer/packet.cuh"

namespace epw {

constexpr uint32_t kCollThreads = 512;
constexpr uint32_t kSmallThreads =
    kCollThreads - 32; // those before the last warp, which tells and awaits small operations' calls

// What is to be done of an operation: nothing, because calls have differed before; nothing but telling calls, because its root is
// no member; or all.
enum class Began : uint32_t { kWhole, kStopped, kWithoutRoot };

// In shared memory, the arguments too: from there they come fast, also after an acquire, which empties the L1 cache.
struct Collective : Peers {
    static constexpr bool kPosts = false; // whether peers may be behind queues: see queues.cuh
    epw_coll_args args;
    uint64_t number;      // of the operation within the epoch, from 1
    uint64_t tag;         // of its packets
    uint64_t out;         // out_blocks when the kernel began
    uint32_t phase;       // of its waits
    uint32_t stopped;     // calls differ: this block does nothing more
    Began began;          // as open() found it: the same for all threads, whenever they look
    epw_rank_set lacking; // ranks that this block lacks besides those that it has given up
    uint32_t members;
    uint64_t part;                 // if shared out: bytes of a member's part, less of the last ones; whole cells
    uint16_t place[EPW_GPU_PEERS]; // index of each member among the members
};

__device__ __forceinline__ bool takes_part(const Collective &c, uint32_t peer) { return has(c.reachable, peer); }

// In the place of a word of a result that lacks a rank: a packet or a line with this tag, which no operation of its time has, and
// that rank.
__device__ __forceinline__ uint64_t lacking_tag(const Collective &c) { return ~c.tag; }

// The same answer for all threads of a warp, of which each may see a peer that is being given up or not. Called by the whole
// warp.
constexpr uint32_t kWholeWarp = 0xffffffffu;
__device__ __forceinline__ bool warp_agrees(bool says) { return __shfl_sync(kWholeWarp, uint32_t(says), 0) != 0; }

// Each rank starts with a different peer, so that not all write to the same one.
__device__ __forceinline__ uint32_t peer_after(const Collective &c, uint32_t distance) {
    const uint32_t peer = c.rank + distance;
    return peer < c.ranks ? peer : peer - c.ranks;
}

// ---- calls that differ ----

__device__ __forceinline__ uint64_t call_of(const Collective &c, uint32_t source) {
    return epw_coll_packets(&c.args.at, c.number, source);
}

// Stops because of calls that differ, as a notice says, unless another thread has stopped for some in this epoch.
//
// Writer of the notice: this thread, the tag last. Reader: tell_notice(), which acquires the tag.
__device__ __forceinline__ void stop(Collective &c, const uint64_t *notice) {
    c.stopped = 1;
    atomicOr(&c.troubled, 1u);
    epw_coll_state *s = c.args.state;
    if (atomicCAS(reinterpret_cast<unsigned long long *>(&s->halted), 0ull, epw_coll_halt(c.number)) != 0) return;
    epw_coll_differing *d = c.args.differing;
#pragma unroll
    for (uint32_t i = 0; i < EPW_COLL_NOTICE_WORDS; i++) d->notice[i] = notice[i];
#pragma unroll
    for (uint32_t i = 0; i < EPW_COLL_NOTICE_TAG; i++) s->notice[i] = notice[i];
    ptx::store_release_gpu(&s->notice[EPW_COLL_NOTICE_TAG], notice[EPW_COLL_NOTICE_TAG]);
    tell_host(c.args.faulted); // whoever is told which calls differ finds the fault too
    tell_host(&d->found);
}

// Stops because the peer's call differs from this rank's. Called by one thread.
__device__ __noinline__ inline void stop_for(Collective &c, uint32_t peer, const uint64_t its[2], const uint64_t own[2]) {
    const uint64_t notice[EPW_COLL_NOTICE_WORDS] = {peer | uint64_t(c.rank) << 32, its[0], its[1], own[0], own[1], c.tag};
    stop(c, notice);
}

// Stops because of a peer's notice, which had this tag. Returns false if it is just being replaced by one of another epoch.
__device__ __noinline__ inline bool heed_notice(Collective &c, const uint64_t *from, uint64_t tag) {
    uint64_t notice[EPW_COLL_NOTICE_WORDS];
    // The tag comes last. Each load is an acquire: with a word of another notice the tag is seen to be taken back.
#pragma unroll
    for (uint32_t i = 0; i < EPW_COLL_NOTICE_WORDS; i++) notice[i] = count_at(&from[i]);
    if (notice[EPW_COLL_NOTICE_TAG] != tag) return false;
    stop(c, notice);
    return true;
}

// Whether the peer's call of this operation has arrived. If it differs, this block stops.
__device__ __forceinline__ Come look_at_call(Collective &c, uint32_t peer) {
    const uint64_t at = call_of(c, peer);
    const Packet low = packet_at(c, at), high = packet_at(c, at + EPW_COLL_PACKET);
    if (low.tag != c.tag || high.tag != c.tag) return Come::kNotYet;
    if (low.data == c.args.call[0] && high.data == c.args.call[1]) return Come::kYes;
    const uint64_t its[2] = {low.data, high.data};
    stop_for(c, peer, its, c.args.call);
    return Come::kStop;
}

// Whether it has arrived, without a look at what it says.
__device__ __forceinline__ bool has_told_call(const Collective &c, uint32_t peer) {
    return packet_at(c, call_of(c, peer)).tag == c.tag;
}

// ---- waits ----

// The base of what `source` writes here, indexed by window offset.
template <typename C> __device__ __forceinline__ const unsigned char *base_of(const C &c, uint32_t source) {
    return C::kPosts ? written_by(c, source) : c.own;
}
template <typename C> __device__ __forceinline__ const uint64_t *notice_from(const C &c, uint32_t source) {
    return reinterpret_cast<const uint64_t *>(base_of(c, source) + epw_coll_notice(&c.args.at, source, 0));
}

// A look of a long wait. It is also at the peer's call, because after a different call the awaited data may never come; and, less
// often, at its notice, because the peer may have stopped for calls of others. The notice is loaded before the data: if the peer
// has stopped in a later operation, what it sent in this one is then found.
template <typename C, typename Look> struct LookAtAll {
    C &c;
    const Look &come;
    uint32_t peer;

    __device__ __forceinline__ Come operator()(uint32_t look) const {
        constexpr uint32_t kLooksPerNotice = 8;
        const uint64_t *notice = notice_from(c, peer);
        const uint64_t tag = look % kLooksPerNotice == 0 ? count_at(&notice[EPW_COLL_NOTICE_TAG]) : 0;
        if (come()) return Come::kYes;
        if (*static_cast<volatile uint32_t *>(&c.stopped)) return Come::kStop;
        if (ptx::load_relaxed_gpu(&c.args.state->halted)) {
            c.stopped = 1;
            return Come::kStop;
        }
        if (c.phase == EPW_PHASE_COLLECTIVE && look_at_call(c, peer) == Come::kStop) return Come::kStop;
        return epw_word_epoch(tag) == c.epoch && heed_notice(c, notice, tag) ? Come::kStop : Come::kNotYet;
    }
    // A send or a receive tells no call.
    __device__ __forceinline__ bool has_begun() const { return c.phase != EPW_PHASE_COLLECTIVE || has_told_call(c, peer); }
};

// Waits until `come()`, or gives the peer up.
template <typename C, typename Look>
__device__ __forceinline__ bool await_peer(C &c, uint32_t peer, uint64_t expected, const Look &come) {
    constexpr uint32_t kLooks = 256;
#pragma unroll 1
    for (uint32_t i = 0; i < kLooks; i++) {
        if (come()) return true;
    }
    return await_long<C::kPosts, true>(c, c.phase, peer, expected, LookAtAll<C, Look>{c, come, peer});
}

// Whether the count that `source` has written at `offset` is at least `count`.
template <typename C> __device__ __forceinline__ bool has_counted(const C &c, uint32_t source, uint64_t offset, uint64_t count) {
    return has_count(c, count_at(reinterpret_cast<const uint64_t *>(base_of(c, source) + offset)), count);
}

// The peer has begun the epoch: waits until nothing of an earlier one is on its way there. To a mapped window nothing can be.
__device__ __forceinline__ void await_earlier(Collective &, uint32_t) {}

// ---- beginning ----

// Whether calls have been found to differ. The first block, which tells this rank's call, does not heed what other blocks have
// found in this operation before it began: without the call the peers could not find the difference, and would take this rank for
// lost.
__device__ __forceinline__ bool is_halted(uint64_t halted, uint64_t number, uint32_t phase) {
    return halted != 0 && !(phase == EPW_PHASE_COLLECTIVE && blockIdx.x == 0 && halted == epw_coll_halt(number));
}

// Bytes of a member's part of what is shared out.
__device__ __forceinline__ uint64_t part_among(const epw_coll_args &a, uint32_t members) {
    const uint32_t sharers = a.kind == EPW_BROADCAST && members > 1 ? members - 1 : members;
    return ((a.bytes + sharers - 1) / sharers + 15) / 16 * 16;
}

// Called by the whole block, which waits here. Returns false if there is nothing to do. Sends and receives do not count as
// operations of the epoch. `inbox`: where peers behind queues write.
template <typename C>
__device__ __forceinline__ bool open(C &c, const epw_coll_args &a, uint32_t phase = EPW_PHASE_COLLECTIVE,
                                     const unsigned char *inbox = nullptr) {
    epw_gpu_peers *peers = a.peers;
    const epw_area area = C::kPosts && phase == EPW_PHASE_POINT ? EPW_AREA_ANSWERS : EPW_AREA_ROWS;
    static_assert(EPW_RANK_WORDS <= 32, "a lane of the first warp for each word");
    static_assert(sizeof c.args % 8 == 0 && alignof(epw_coll_args) == 8, "the arguments are copied by words");
    if (threadIdx.x < 32) {
        // All that is loaded is loaded together, before the first store.
        const uint32_t word = threadIdx.x;
        const epw_coll_turn turn = a.state->turns[blockIdx.x];
        const uint64_t epoch_word = peers->epoch_word, group_deadline = peers->deadline_ns;
        uint32_t active = 0, suspects = 0, queued = 0;
        if (word < EPW_RANK_WORDS) {
            active = peers->active.words[word];
            if (C::kPosts) queued = peers->queued.words[word];
            suspects = ptx::load_relaxed_gpu(&a.shared->suspects.words[word]);
        }
        const uint64_t halted = ptx::load_relaxed_gpu(&a.state->halted);
        if (word < EPW_RANK_WORDS) {
            c.active.words[word] = active;
            c.suspects.words[word] = suspects;
            c.present.words[word] = c.reachable.words[word] = active & ~suspects;
            c.mapped.words[word] = active & ~suspects & ~queued;
            c.queued.words[word] = queued;
            c.lacking.words[word] = 0;
        }
        const bool absent = __any_sync(kWholeWarp, active & suspects); // an active rank is a suspect
        bool rootless = false;
        if (phase == EPW_PHASE_COLLECTIVE && epw_coll_has_root(a.kind)) {
            rootless = __any_sync(kWholeWarp, word == a.root / 32 && !(active & bit_of(a.root)));
        }
        uint32_t members = __popc(active);
#pragma unroll
        for (uint32_t step = 16; step > 0; step /= 2) members += __shfl_xor_sync(kWholeWarp, members, step);
        if (word == 0) {
            c.peers = peers;
            c.own = a.window;
            c.inbox = inbox;
            c.rank = a.rank;
            c.ranks = a.ranks;
            c.lane = 0;
            c.epoch = epw_word_epoch(epoch_word);
            c.number = turn.op + (phase == EPW_PHASE_COLLECTIVE);
            c.phase = phase;
            c.op = uint32_t(c.number);
            c.out = turn.out;
            c.resumes = false;
            c.posts = C::kPosts;
            c.lands = C::kPosts && inbox != a.window;
            c.group_deadline = group_deadline;
            c.deadline = a.deadline_ns ? a.deadline_ns : group_deadline;
            c.spoke = 0;
            c.gave_up = 0;
            c.tag = epw_epoch_word(c.epoch, c.number & EPW_STEP_MAX);
            c.members = members;
            c.part = a.shared_out ? part_among(a, members) : 0;
            c.stopped = is_halted(halted, c.number, phase);
            c.began = c.stopped ? Began::kStopped : rootless ? Began::kWithoutRoot : Began::kWhole;
            c.troubled = c.stopped || absent;
        }
    } else {
        const uint32_t first = threadIdx.x - 32, step = blockDim.x - 32;
        for (uint32_t i = first; i < a.ranks; i += step) {
            uint32_t before = __popc(peers->active.words[i / 32] & (bit_of(i) - 1));
            for (uint32_t w = 0; w < i / 32; w++) before += __popc(peers->active.words[w]);
            c.data[i] = entry_of(peers, area, i);
            c.place[i] = uint16_t(before);
        }
        for (uint32_t i = first; i < sizeof c.args / 8; i += step) {
            reinterpret_cast<uint64_t *>(&c.args)[i] = reinterpret_cast<const uint64_t *>(&a)[i];
        }
    }
    __syncthreads();
    // A member that has begun the epoch has finished reading what was written there in the previous one. Only the epoch's first
    // operation waits for this.
    if (c.number == 1 && phase == EPW_PHASE_COLLECTIVE && c.began != Began::kStopped) {
        for (uint32_t peer = threadIdx.x; peer < a.ranks; peer += blockDim.x) {
            if (peer == c.rank || !takes_part(c, peer)) continue;
            if (!await(c, {EPW_WORD_EPOCH, 0, true}, EPW_PHASE_COLLECTIVE, peer, false).arrived) {
                leave_out(c, peer);
            } else {
                await_earlier(c, peer);
            }
        }
        __syncthreads();
    }
    if (c.began == Began::kWhole) return true;
    if (c.began == Began::kWithoutRoot) pass_over(c);
    return false;
}

__device__ __forceinline__ void tell_call(const Collective &c, uint32_t peer) {
    if (peer == c.rank || !takes_part(c, peer)) return;
    const uint64_t at = call_of(c, c.rank);
    put_packet(c, peer, at, c.args.call[0], c.tag);
    put_packet(c, peer, at + EPW_COLL_PACKET, c.args.call[1], c.tag);
    if (c.args.tells_lent) put_packet(c, peer, at + EPW_COLL_CALL_PACKETS * EPW_COLL_PACKET, c.args.lent, c.tag);
}
template <typename C> __device__ __forceinline__ void await_call(C &c, uint32_t peer) {
    if (peer == c.rank || !takes_part(c, peer) || c.stopped) return;
    await_peer(c, peer, c.tag, [&] { return look_at_call(c, peer) == Come::kYes; });
}

// Sends this rank's call to all other ranks, and behind it what it lends them. Called by the whole grid; the first block does it.
__device__ __forceinline__ void tell_call(const Collective &c) {
    if (blockIdx.x != 0) return;
    // Writer: this stream, of what is lent. Reader: the peers' learn_what_is_lent().
    if (c.args.lent) fence_beside_packets();
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) tell_call(c, peer);
}

// Waits for the calls of all other ranks: see state.h. The first block does it.
template <typename C> __device__ __forceinline__ void await_calls(C &c) {
    if (blockIdx.x != 0) return;
    for (uint32_t peer = threadIdx.x; peer < c.ranks; peer += blockDim.x) await_call(c, peer);
}

// The operation's root is no member: nothing moves, and the root is missing. Called by the whole block.
template <typename C> __device__ __noinline__ void pass_over(C &c) {
    if (threadIdx.x == 0) {
        insert(c.lacking, c.args.root);
        atomicOr(&c.troubled, 1u);
    }
    tell_call(c);
    await_calls(c);
}

// The same for small operations, which lend nothing, by the last warp of the first block. The other warps begin with the words
// meanwhile; where there are many words, this warp has some of them too.
__device__ __forceinline__ bool exchanges_calls() { return threadIdx.x >= kSmallThreads; }
template <typename C> __device__ __forceinline__ void tell_calls_aside(const C &c) {
    if (blockIdx.x != 0 || !exchanges_calls()) return;
    for (uint32_t peer = threadIdx.x % 32; peer < c.ranks; peer += 32) tell_call(c, peer);
}
template <typename C> __device__ __forceinline__ void await_calls_aside(C &c) {
    if (blockIdx.x != 0 || !exchanges_calls()) return;
    for (uint32_t peer = threadIdx.x % 32; peer < c.ranks; peer += 32) await_call(c, peer);
}

// ---- the end ----

// Waits for the other blocks, for as long as those that have begun may wait for peers.
__device__ __noinline__ inline void await_others_out(const Collective &c, uint64_t out) {
    const uint64_t began = ptx::global_timer_ns(), most = 2 * EPW_WAIT_DEADLINES_MAX * c.deadline;
    while (ptx::load_acquire_gpu(&c.args.state->out_blocks) < out && ptx::global_timer_ns() - began < most) {
    }
}

// Puts a word of this rank's notice at all peers, after the words that this thread has put before.
__device__ __noinline__ inline void put_notice(const Collective &c, uint32_t word, uint64_t value) {
    const uint64_t offset = epw_coll_notice(&c.args.at, c.rank, word);
    fence_before_counts();
#pragma unroll 1
    for (uint32_t peer = 0; peer < c.ranks; peer++) {
        if (peer == c.rank || !takes_part(c, peer)) continue;
        if (has(c.queued, peer)) {
            post_word(c.peers, c.lane, peer, offset, value);
        } else {
            put_count(reinterpret_cast<uint64_t *>(at(c, peer, offset)), value);
        }
    }
}

// Tells all peers for which calls this rank has stopped, once in an epoch: the kernel that stops does it at its end, where
// nothing is kept in registers.
//
// Writer: this thread, the tag last. Reader: the peers' heed_notice(), which acquires the tag. A peer that is still in an earlier
// epoch may be reading the notice of that one, so before the words the tag is taken back.
__device__ __noinline__ inline void tell_notice(const Collective &c) {
    epw_coll_state *s = c.args.state;
    const uint64_t tag = ptx::load_acquire_gpu(&s->notice[EPW_COLL_NOTICE_TAG]);
    if (tag == 0 || s->notice_told) return;
    s->notice_told = 1;
    put_notice(c, EPW_COLL_NOTICE_TAG, 0);
#pragma unroll 1
    for (uint32_t word = 0; word < EPW_COLL_NOTICE_TAG; word++) put_notice(c, word, s->notice[word]);
    put_notice(c, EPW_COLL_NOTICE_TAG, tag);
}

// Writer: this thread, the ticket first. Reader: the host, once the kernel has ended: it looks at the ticket again when it has
// read the rest, because an operation of a later ticket may be using the same place.
__device__ __noinline__ inline void put_report(const Collective &c, const epw_rank_set &missing, bool differs) {
    epw_coll_report &report = c.args.reports[c.args.ticket % EPW_COLL_REPORTS];
    show_host_first(&report.ticket, c.args.ticket);
    report.differs = differs;
    report.missing = missing;
    report.record = {};
    if (ptx::load_relaxed_gpu(&c.peers->recorded)) {
        report.record = c.peers->record;
        return;
    }
    epw_error_record &r = report.record;
    r.phase = c.phase;
    r.cause = any(missing & c.suspects) ? EPW_CAUSE_SUSPECTED : EPW_CAUSE_PARTIAL;
    r.rank = c.rank;
    r.peer = first_of(missing);
    r.epoch = c.epoch;
    r.op = c.op;
    r.deadline_ns = c.deadline;
}

// Called by one thread of one block, when all other blocks are out.
__device__ __noinline__ inline void tell_end(const Collective &c) {
    epw_coll_state *s = c.args.state;
    const epw_rank_set missing = load_now(s->missing);
    s->missing = {};
    tell_notice(c);
    // Perhaps another block has stopped, and this one has only waited long.
    const bool differs = ptx::load_relaxed_gpu(&s->halted) != 0;
    if (any(missing) || differs) {
        if (c.args.ticket != 0) put_report(c, missing, differs);
        tell_host(c.args.faulted);
    }
    end_waits(c);
    epw_rank_set told;
    tell_suspects(c, told);
}

// A collective lacks every member that this block lacks; sends and receives lack only ranks that they are for.
__device__ __noinline__ inline void close_troubled(Collective &c) {
    epw_coll_state *s = c.args.state;
    const uint64_t out = c.out + gridDim.x;
    const uint32_t all = c.phase == EPW_PHASE_COLLECTIVE ? ~0u : 0;
#pragma unroll 1
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) {
        const uint32_t bits = (c.active.words[i] & ~c.reachable.words[i] & all) | c.lacking.words[i];
        if (bits != 0) atomicOr(&s->missing.words[i], bits);
    }
    const bool closes = atomicMax(reinterpret_cast<unsigned long long *>(&s->closed), out) < out;
    ptx::add_acq_rel_gpu(&s->out_blocks, 1);
    if (!closes) return;
    await_others_out(c, out);
    tell_end(c);
}

// Called by the whole block.
__device__ __forceinline__ void close(Collective &c) {
    epw_coll_state *s = c.args.state;
    __syncthreads();
    ptx::let_next_begin();
    // Reader: the next kernel of the stream.
    const epw_coll_turn next = {c.number, c.out + gridDim.x};
    for (uint32_t i = blockIdx.x + threadIdx.x * gridDim.x; i < EPW_COLL_BLOCKS; i += blockDim.x * gridDim.x) s->turns[i] = next;
    if (threadIdx.x != 0) return;
    if (c.troubled) {
        close_troubled(c);
    } else {
        ptx::reduce_relaxed_gpu(&s->out_blocks, 1);
    }
}

} // namespace epw
