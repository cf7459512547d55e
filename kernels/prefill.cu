// The kernels of prefill and their launch.
#include "kernels/prefill/attend.cuh"
#include "kernels/prefill/combine.cuh"
#include "kernels/prefill/end.cuh"
#include "kernels/prefill/membership.cuh"
#include "kernels/prefill/move.cuh"
#include "kernels/prefill/number.cuh"
#include "kernels/launch.cuh"

#include <new>

namespace epw {

constexpr uint32_t kFirsts = 2 * sizeof(uint64_t), kAttendant = sizeof(Attendant<true>); // of a peer
static_assert(sizeof(Attendant<false>) <= kAttendant && kAttendant % 8 == 0 && alignof(Attendant<true>) == 8,
              "a place for an attendant of either kind");

// A block's shared memory: the movers' tiles, then for each mover the tickets that it keeps, then what there is of each peer:
// numbers of openings, and in the first block its attendant. The tiles' memory is first that of the numbering. A block has an SM
// to itself (c/device/sm_ledger.h), and takes most of it.
struct BlockMemory {
    static __host__ __device__ uint32_t attending(const epw_prefill_layout &l) { return (l.ranks + 31) / 32; } // warps

    static constexpr uint32_t kMost = EPW_GPU_SM_MEMORY - 13 * 1024; // less what the kernels declare statically
    uint32_t peer_bytes;                                             // of all peers: numbers of openings, and attendants
    uint32_t head, tile, lines, movers, tiles, bytes;

    static __host__ __device__ uint32_t wanted(uint32_t blocks, uint32_t most) {
        const uint32_t share = kEnoughMovers / blocks, least = kLeastMovers < most ? kLeastMovers : most;
        return share > most ? most : share < least ? least : share;
    }

    __host__ __device__ BlockMemory(const epw_prefill_layout &l, uint32_t kind, uint32_t blocks)
        : peer_bytes(l.ranks * (kFirsts + kAttendant)), head(kind == 0 ? uint32_t(l.header_bytes) : kAddendBytes),
          tile(tile_bytes(head)), lines(2 * l.ranks * uint32_t(sizeof(uint32_t))),
          movers(wanted(blocks, most_movers(kind) + 1 - attending(l))) {
        const uint32_t fitting = (kMost - peer_bytes) / (tile + lines);
        if (movers > fitting) movers = fitting;
        tiles = movers * tile;
        bytes = tiles + movers * lines + peer_bytes;
    }
};

// What is common to both kernels: one warp of a block does one thing.
struct Roles {
    unsigned char *memory;
    uint64_t *loaded;
    const BlockMemory m;

    __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
    __device__ __forceinline__ bool moves(const Prefill &o) const { return warp() < m.movers && o.block >= attending_blocks(o); }
    // Half of the movers send, and no more than keep the wire busy: rows are not to queue there for long, while others wait for a
    // mover. But all do in a kernel that does nothing else, and, if they have nothing else to do, where few blocks quantise:
    // there the wire idles.
    __device__ __forceinline__ Sending sending(const Prefill &o, bool quantise) const {
        const uint32_t half = (m.movers + 1) / 2, few = o.call.kind == 0 ? (kSenders + o.blocks - 1) / o.blocks : half;
        const bool all = !o.does(EPW_PREFILL_RECEIVES), first = warp() < min(few, half);
        const bool sends = all || first || (quantise && o.blocks < kManyBlocks), can = o.does(EPW_PREFILL_SENDS);
        return {can && sends, can && (all || first)};
    }
    __device__ __forceinline__ bool tells(const Prefill &o) const { return warp() == teller() && o.block >= attending_blocks(o); }
    __device__ __forceinline__ uint32_t teller() const { return m.movers; }
    __device__ __forceinline__ uint32_t registrar() const { return m.movers + 1; }
    __device__ __forceinline__ uint32_t attended_peer() const { return threadIdx.x - (m.movers + 2) * 32; }
    __device__ __forceinline__ Tile tile() const { return {memory + warp() * m.tile, m.head, loaded + 2 * warp()}; }
    __device__ __forceinline__ uint32_t *kept() const {
        return reinterpret_cast<uint32_t *>(memory + m.tiles + warp() * m.lines);
    }
    __device__ __forceinline__ uint64_t *firsts() const { return reinterpret_cast<uint64_t *>(memory + m.bytes - m.peer_bytes); }
    // Attends to the peer, at the place that it has.
    template <bool Queues>
    __device__ __forceinline__ void attend(Prefill &o, uint32_t peer, uint32_t rows, uint32_t expected, uint32_t again,
                                           uint64_t *wait_ns, uint32_t opens_with, uint32_t bytes) const {
        auto *place = reinterpret_cast<Attendant<Queues> *>(reinterpret_cast<unsigned char *>(firsts()) + o.ranks * kFirsts +
                                                            peer * kAttendant);
        (new (place) Attendant<Queues>(o, peer, rows, expected, again))->run(wait_ns, opens_with, bytes);
    }
};

// Called by the whole block.
__device__ __forceinline__ void init_barriers(uint64_t *loaded, uint32_t count) {
    if (threadIdx.x < count) ptx::barrier_init(&loaded[threadIdx.x], 1);
    if (threadIdx.x < (count + 31) / 32 * 32) ptx::fence_barrier_init();
}

// Rows of this rank's tokens that go to the rank.
__device__ __forceinline__ uint32_t rows_to(const epw_prefill_gpu_routing &r, uint32_t rank) {
    return r.sent_first[rank + 1] - r.sent_first[rank];
}

__device__ __forceinline__ uint32_t answers_to(const epw_prefill_combine_args &a, uint32_t peer) {
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t local = a.call.lane.layout.local_experts, rows = r.received[peer];
    if (a.in.mode != EPW_COMBINE_ORDERED || rows == 0) return rows;
    uint32_t entries = 0;
    for (uint32_t e = 0; e < local; e++) entries += r.counts[size_t(peer) * local + e];
    return entries;
}

// What lies in a slot of a dispatch.
__device__ __forceinline__ uint32_t opening_bytes(const epw_prefill_dispatch_args &a) {
    return uint32_t(sizeof(epw_row_head) + sizeof(epw_opening) + a.call.lane.layout.local_experts * sizeof(uint32_t));
}
__device__ __forceinline__ uint32_t row_bytes(const epw_prefill_dispatch_args &a) {
    const uint32_t scales = whole_units(a.format.scale_count * a.format.scale_bytes);
    return uint32_t(a.call.lane.layout.header_bytes) + a.format.payload_bytes + scales;
}

// Whether scales of rows are grouped. Called by warps that move rows, or would, of a kernel in which rows are received.
__device__ __forceinline__ bool groups_scales(const ScaleShape &scales, const Prefill &o) {
    if (!scales.may_group) return false;
    while (!ptx::load_acquire_gpu(&o.state->placed)) pause(); // bounded: the registrar's waits are
    return o.state->groups;
}

// `Queues`: some peers may be behind queues.
template <typename T, bool Queues>
__global__ void __launch_bounds__(most_threads(0), 1)
    prefill_dispatch_kernel(const __grid_constant__ epw_prefill_dispatch_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Prefill o;
    __shared__ uint64_t loaded[2 * kRowMovers];
    __shared__ Post posts[kRowMovers];
    __shared__ ScaleShape scales;
    __shared__ InGroup groups[kRowMovers * 32];
    const Roles roles = {memory, loaded, BlockMemory(a.call.lane.layout, 0, gridDim.x)};
    const epw_prefill_gpu_routing &r = a.call.routing;
    init_barriers(loaded, 2 * kRowMovers);
    if (threadIdx.x < kRowMovers) posts[threadIdx.x].lanes = 0;
    if (threadIdx.x == 0) scales = ScaleShape::of(a);
    if (threadIdx.x < kRowMovers * 32) groups[threadIdx.x] = a.out.scale_order == 1 ? InGroup::by_row() : InGroup::alone();
    ptx::wait_for_stream();
    if (!open<Queues>(o, a.call, roles.firsts(), roles.m.movers, a.in.tokens)) {
        close_shut(o);
        return;
    }
    if (o.does(EPW_PREFILL_OPENS)) {
        if (a.again) {
            renew_weights(a, o);
        } else {
            const uint32_t peer = a.call.gives_up ? kNone : roles.attended_peer();
            Numbering(a, o, memory, roles.m.tiles, roles.m.movers, peer).run(roles.registrar() * 32);
        }
    }
    if (roles.warp() < roles.m.movers && !a.call.gives_up) {
        Tile tile = roles.tile();
        if (roles.moves(o))
            RowMover<T, Queues>(a, o, tile, posts[roles.warp()], scales, groups)
                .run(roles.kept(), roles.sending(o, quantises(a.in.payload)));
        if (o.does(EPW_PREFILL_RECEIVES) && groups_scales(scales, o)) {
            meet(o, roles.m.movers * 32); // all rows are there
            turn_groups(a, o, scales, tile.halves, o.block * roles.m.movers + roles.warp(), o.blocks * roles.m.movers);
        }
    } else if (roles.tells(o) && !a.call.gives_up) {
        tell(o, posts, roles.m.movers);
    } else if (blockIdx.x == 0 && roles.warp() == roles.registrar()) {
        if (!a.call.gives_up) Registrar<Queues>(a, o).run();
    } else if (blockIdx.x == 0 && roles.warp() > roles.registrar()) {
        const uint32_t peer = roles.attended_peer();
        if (is_prefill_peer(o, peer)) {
            const uint32_t rows = rows_to(r, peer);
            const uint32_t expected = a.again ? r.announced[peer] : kNone;
            roles.attend<Queues>(o, peer, rows, expected, a.again, a.out.wait_ns, opening_bytes(a), row_bytes(a));
        }
    }
    if (blockIdx.x != 0) {
        go_out(o);
        return;
    }
    __syncthreads(); // all warps of this block have found out what they can
    const bool tells = o.does(EPW_PREFILL_RECEIVES) && !a.call.gives_up, counts = a.call.counts && !a.call.gives_up;
    const bool adds = tells && (a.out.expert_totals || a.out.expert_totals_i32);
    Came came = {tells && threadIdx.x < o.ranks ? r.announced[threadIdx.x] : 0,
                 adds && threadIdx.x < a.call.lane.layout.local_experts ? r.expert_rows[threadIdx.x] : 0};
    // Rows of this rank itself are in no line.
    const uint32_t own = counts && threadIdx.x == o.rank && o.does(EPW_PREFILL_SENDS) ? rows_to(r, o.rank) : 0;
    await_others_out(o);
    const AtEnd end(o);
    const bool whole = is_whole(o, end);
    clear_peers(o);
    clear_claims(o, a.call.lane.max_tokens);
    if (tells && !whole) came = tell_losses(a, o);
    if (adds) add_totals(a, o, came);
    if (counts && threadIdx.x < o.ranks) {
        count_traffic(o, threadIdx.x, threadIdx.x == o.rank ? own : end.sent, came.rows, epw_format_bytes(&a.format));
    }
    if (threadIdx.x == 0) close(o, end, whole);
}

template <typename T, bool Queues>
__global__ void __launch_bounds__(most_threads(1), 1) prefill_combine_kernel(const __grid_constant__ epw_prefill_combine_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Prefill o;
    __shared__ uint64_t loaded[2 * kAnswerMovers];
    __shared__ Post posts[kAnswerMovers];
    const Roles roles = {memory, loaded, BlockMemory(a.call.lane.layout, 1, gridDim.x)};
    const epw_prefill_gpu_routing &r = a.call.routing;
    init_barriers(loaded, 2 * kAnswerMovers);
    if (threadIdx.x < kAnswerMovers) posts[threadIdx.x].lanes = 0;
    ptx::wait_for_stream();
    if (!open<Queues>(o, a.call, roles.firsts(), roles.m.movers, a.tokens)) {
        close_shut(o);
        return;
    }
    const bool ordered = a.in.mode == EPW_COMBINE_ORDERED;
    if (ordered && o.does(EPW_PREFILL_SENDS) && !a.call.gives_up) number_entries(a, o);
    if (roles.moves(o) && !a.call.gives_up) {
        Tile tile = roles.tile();
        AnswerMover<T, Queues>(a, o, tile, posts[roles.warp()]).run(roles.kept(), roles.sending(o, false));
    } else if (roles.tells(o) && !a.call.gives_up) {
        tell(o, posts, roles.m.movers);
    } else if (blockIdx.x == 0 && roles.warp() > roles.registrar()) {
        const uint32_t peer = roles.attended_peer();
        if (is_prefill_peer(o, peer)) {
            const uint32_t asked = ordered ? r.sent_entries[peer] : rows_to(r, peer);
            const uint32_t bytes = uint32_t(a.call.lane.layout.answer_head) + 2 * a.width;
            roles.attend<Queues>(o, peer, answers_to(a, peer), asked, 0, a.out.wait_ns, sizeof(epw_row_head), bytes);
        }
    }
    if (blockIdx.x != 0) {
        go_out(o);
        return;
    }
    __syncthreads(); // all warps of this block have found out what they can
    const bool counts = a.call.counts && !a.call.gives_up && threadIdx.x < o.ranks, own = threadIdx.x == o.rank;
    // This rank's own answers are made where the sums are.
    const uint32_t made = counts && own && o.does(EPW_PREFILL_RECEIVES) ? answers_to(a, o.rank) : 0;
    await_others_out(o);
    const AtEnd end(o);
    const bool whole = is_whole(o, end);
    clear_peers(o);
    if (counts) count_traffic(o, threadIdx.x, own ? made : end.sent, own ? made : end.come, uint64_t(a.width) * 2);
    if (threadIdx.x == 0) close(o, end, whole);
}

static uint32_t threads_of(const epw_prefill_layout &l, const BlockMemory &m) {
    return (m.movers + 2 + BlockMemory::attending(l)) * 32;
}

} // namespace epw

namespace {

template <typename T, bool Queues> cudaError_t prepare_operations() {
    constexpr size_t kShared = epw::BlockMemory::kMost;
    const cudaError_t error = epw::prepare(epw::prefill_dispatch_kernel<T, Queues>, epw::most_threads(0), kShared);
    if (error != cudaSuccess) return error;
    return epw::prepare(epw::prefill_combine_kernel<T, Queues>, epw::most_threads(1), kShared);
}
template <bool Queues> cudaError_t prepare_operations() {
    const cudaError_t error = prepare_operations<epw::Bf16, Queues>();
    return error == cudaSuccess ? prepare_operations<epw::F16, Queues>() : error;
}

} // namespace

extern "C" int epw_prefill_gpu_prepare(bool queues) {
    cudaError_t error = queues ? prepare_operations<true>() : prepare_operations<false>();
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_epoch_kernel, EPW_GPU_PEERS, 0);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_part_kernel, EPW_GPU_PEERS, 0);
    return error;
}

extern "C" int epw_prefill_gpu_run_dispatch(const epw_prefill_dispatch_args *args, uint32_t blocks, void *stream) {
    using namespace epw;
    const epw_prefill_layout &l = args->call.lane.layout;
    const BlockMemory m(l, 0, blocks);
    const bool half = args->call.dtype == EPW_F16, queues = args->call.lane.queue_room > 0;
    const auto kernel = half     ? queues ? prefill_dispatch_kernel<F16, true> : prefill_dispatch_kernel<F16, false>
                            : queues ? prefill_dispatch_kernel<Bf16, true>
                                 : prefill_dispatch_kernel<Bf16, false>;
    return launch_in_stream(kernel, blocks, threads_of(l, m), m.bytes, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_combine(const epw_prefill_combine_args *args, uint32_t blocks, void *stream) {
    using namespace epw;
    const epw_prefill_layout &l = args->call.lane.layout;
    const BlockMemory m(l, 1, blocks);
    const bool half = args->call.dtype == EPW_F16, queues = args->call.lane.queue_room > 0;
    const auto kernel = half     ? queues ? prefill_combine_kernel<F16, true> : prefill_combine_kernel<F16, false>
                            : queues ? prefill_combine_kernel<Bf16, true>
                                 : prefill_combine_kernel<Bf16, false>;
    return launch_in_stream(kernel, blocks, threads_of(l, m), m.bytes, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_epoch(const epw_prefill_membership_args *args, void *stream) {
    return epw::launch_in_stream(epw::prefill_epoch_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_part(const epw_prefill_part_args *args, void *stream) {
    return epw::launch_in_stream(epw::prefill_part_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}
