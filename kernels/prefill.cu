// The kernels of prefill and their launch.
#include "kernels/prefill/attend.cuh"
#include "kernels/prefill/combine.cuh"
#include "kernels/prefill/membership.cuh"
#include "kernels/prefill/move.cuh"
#include "kernels/prefill/number.cuh"
#include "kernels/launch.cuh"

namespace epw {

// A block's shared memory: a tile for each mover, then the tickets that it keeps; as many movers as find room. The tiles' memory
// is first that of the numbering.
struct BlockMemory {
    static constexpr uint32_t kMost = EPW_GPU_SHARE - 8 * 1024; // less what the kernels declare statically
    uint32_t tile, head, lines, movers, tiles, bytes;

    __host__ __device__ BlockMemory(const epw_prefill_layout &l, uint32_t kind)
        : tile(tile_bytes(l, kind)), head(tile - kRowPiece - kRowScales), lines(2 * l.ranks * uint32_t(sizeof(uint32_t))),
          movers(kMost / (tile + lines) < kMovers ? kMost / (tile + lines) : kMovers), tiles(movers * tile),
          bytes(tiles + movers * lines) {}
};

// What is common to both kernels: one warp of a block does one thing.
struct Roles {
    unsigned char *memory;
    uint64_t *loaded;
    const BlockMemory m;

    __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / 32; }
    __device__ __forceinline__ Tile tile() const { return {memory + warp() * m.tile, m.head, &loaded[warp()]}; }
    __device__ __forceinline__ uint32_t *kept() const {
        return reinterpret_cast<uint32_t *>(memory + m.tiles + warp() * m.lines);
    }
};

// Called by one warp.
__device__ __forceinline__ void init_barriers(uint64_t *loaded) {
    if (threadIdx.x < kMovers) ptx::barrier_init(&loaded[threadIdx.x], 1);
    if (threadIdx.x < 32) ptx::fence_barrier_init();
}

template <typename T>
__global__ void __launch_bounds__(kMostPrefillThreads, 1)
    prefill_dispatch_kernel(const __grid_constant__ epw_prefill_dispatch_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Prefill o;
    __shared__ uint64_t loaded[kMovers];
    const Roles roles = {memory, loaded, BlockMemory(a.call.lane.layout, 0)};
    const epw_prefill_gpu_routing &r = a.call.routing;
    init_barriers(loaded);
    ptx::wait_for_stream();
    if (!open(o, a.call)) {
        close_shut(o);
        return;
    }
    if (o.does(EPW_PREFILL_OPENS)) {
        if (a.again) {
            renew_weights(a, o);
        } else {
            Numbering(a, o, memory, roles.m.tiles).run();
        }
    }
    ptx::fence_shared_before_bulk();
    __syncthreads(); // the numbering's memory becomes the tiles
    if (roles.warp() < roles.m.movers && !a.call.gives_up) {
        Tile tile = roles.tile();
        RowMover<T>(a, o, tile).run(roles.kept(), roles.m.movers);
    } else if (blockIdx.x == 0 && roles.warp() == kRegistrar) {
        if (!a.call.gives_up) Registrar(a, o).run();
        finish(o);
    } else if (blockIdx.x == 0 && roles.warp() > kRegistrar) {
        const uint32_t peer = threadIdx.x - kFirstAttendant;
        if (is_prefill_peer(o, peer)) {
            const uint32_t rows = r.sent_first[peer + 1] - r.sent_first[peer];
            Attendant(o, peer, rows, a.again ? r.received[peer] : kNoTicket, a.again).run(a.out.wait_ns);
        }
    }
    if (blockIdx.x != 0) {
        go_out(o);
        return;
    }
    await_others_out(o);
    if (threadIdx.x == 0) gather_refused(o);
    __syncthreads();
    if (o.does(EPW_PREFILL_RECEIVES) && !a.call.gives_up) tell_received(a, o);
    __syncthreads();
    if (threadIdx.x == 0) close(o);
}

template <typename T>
__global__ void __launch_bounds__(kMostPrefillThreads, 1)
    prefill_combine_kernel(const __grid_constant__ epw_prefill_combine_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Prefill o;
    __shared__ uint64_t loaded[kMovers];
    const Roles roles = {memory, loaded, BlockMemory(a.call.lane.layout, 1)};
    const epw_prefill_gpu_routing &r = a.call.routing;
    init_barriers(loaded);
    ptx::wait_for_stream();
    if (!open(o, a.call)) {
        close_shut(o);
        return;
    }
    const bool ordered = a.in.mode == EPW_COMBINE_ORDERED;
    if (ordered && o.does(EPW_PREFILL_SENDS) && !a.call.gives_up) number_entries(a, o);
    if (roles.warp() < roles.m.movers && !a.call.gives_up) {
        Tile tile = roles.tile();
        AnswerMover<T>(a, o, tile).run(roles.kept(), roles.m.movers);
    } else if (blockIdx.x == 0 && roles.warp() == kRegistrar) {
        finish(o);
    } else if (blockIdx.x == 0 && roles.warp() > kRegistrar) {
        const uint32_t peer = threadIdx.x - kFirstAttendant, local = a.call.lane.layout.local_experts;
        if (is_prefill_peer(o, peer)) {
            uint32_t answers = r.received[peer], asked = r.sent_first[peer + 1] - r.sent_first[peer];
            if (ordered) {
                asked = r.sent_entries[peer];
                uint32_t entries = 0;
                for (uint32_t e = 0; e < local && answers > 0; e++) entries += r.counts[size_t(peer) * local + e];
                answers = entries;
            }
            Attendant(o, peer, answers, asked, 0).run(a.out.wait_ns);
        }
    }
    if (blockIdx.x != 0) {
        go_out(o);
        return;
    }
    await_others_out(o);
    if (threadIdx.x != 0) return;
    gather_refused(o);
    close(o);
}

static uint32_t threads_of(const epw_prefill_layout &l) { return kFirstAttendant + (l.ranks + 31) / 32 * 32; }

} // namespace epw

extern "C" int epw_prefill_gpu_prepare(void) {
    constexpr size_t kShared = epw::BlockMemory::kMost;
    cudaError_t error = epw::prepare(epw::prefill_dispatch_kernel<epw::Bf16>, epw::kMostPrefillThreads, kShared);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_dispatch_kernel<epw::F16>, epw::kMostPrefillThreads, kShared);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_combine_kernel<epw::Bf16>, epw::kMostPrefillThreads, kShared);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_combine_kernel<epw::F16>, epw::kMostPrefillThreads, kShared);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_epoch_kernel, EPW_GPU_PEERS, 0);
    if (error == cudaSuccess) error = epw::prepare(epw::prefill_part_kernel, EPW_GPU_PEERS, 0);
    return error;
}

extern "C" int epw_prefill_gpu_run_dispatch(const epw_prefill_dispatch_args *args, uint32_t blocks, void *stream) {
    const epw_prefill_layout &l = args->call.lane.layout;
    const auto kernel =
        args->call.dtype == EPW_F16 ? epw::prefill_dispatch_kernel<epw::F16> : epw::prefill_dispatch_kernel<epw::Bf16>;
    return epw::launch_in_stream(kernel, blocks, epw::threads_of(l), epw::BlockMemory(l, 0).bytes,
                                 static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_combine(const epw_prefill_combine_args *args, uint32_t blocks, void *stream) {
    const epw_prefill_layout &l = args->call.lane.layout;
    const auto kernel =
        args->call.dtype == EPW_F16 ? epw::prefill_combine_kernel<epw::F16> : epw::prefill_combine_kernel<epw::Bf16>;
    return epw::launch_in_stream(kernel, blocks, epw::threads_of(l), epw::BlockMemory(l, 1).bytes,
                                 static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_epoch(const epw_prefill_membership_args *args, void *stream) {
    return epw::launch_in_stream(epw::prefill_epoch_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}

extern "C" int epw_prefill_gpu_run_part(const epw_prefill_part_args *args, void *stream) {
    return epw::launch_in_stream(epw::prefill_part_kernel, 1, EPW_GPU_PEERS, 0, static_cast<cudaStream_t>(stream), *args);
}
