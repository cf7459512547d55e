// Dispatch kernels and how they are launched.
#include "ep/receive.cuh"
#include "ep/send.cuh"

#include "launch.cuh"

namespace epw {

template <typename T, uint32_t Payload> __device__ void dispatch_body(const epw_dispatch_args &a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Operation o;
    __shared__ SendShared sending;
    __shared__ ReceiveShared receiving;
    const epw_layout &l = a.layout;
    const RowStages stages(l, a.payload_bytes, a.scale_count * a.scale_bytes);
    uint32_t *table = reinterpret_cast<uint32_t *>(memory + stages.bytes * stages.count);
    epw_gpu_context *c = a.context;
    bool sends = a.halves & EPW_GPU_SEND, receives = a.halves & EPW_GPU_RECEIVE;

    if (threadIdx.x == 96) {
        for (auto &barrier : sending.loaded) ptx::barrier_init(&barrier, 1);
        for (auto &barrier : receiving.loaded) ptx::barrier_init(&barrier, 1);
        ptx::fence_barrier_init();
    }
    ptx::wait_for_stream();
    begin(c, a.shared, a.window, a.rank, l.ranks, sends, a.deadline_ns, o);
    if (sends) send_tokens<T, Payload>(a, o, sending, memory, table);
    __syncthreads();
    if (o.stage != (sends ? EPW_GPU_FREE : EPW_GPU_SENT)) {
        refuse(o, sends ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_DISPATCH_RECEIVE);
        return;
    }
    uint64_t peers = o.peers;
    if (receives) {
        receive_rows(a, o, receiving, peers, memory, table);
        return;
    }
    ptx::let_next_begin();
    if (last_block(o, &c->blocks_out) && threadIdx.x == 0) {
        uint64_t present = peers & ~ptx::load_relaxed_gpu(&c->gone);
        leave(o, EPW_PHASE_DISPATCH_SEND, EPW_GPU_SENT, present, o.active & ~present, beacons_posted(c));
    }
}

template <typename T, uint32_t Payload>
__global__ void __launch_bounds__(kThreads, EPW_MAX_LANES) dispatch_kernel(const __grid_constant__ epw_dispatch_args args) {
    dispatch_body<T, Payload>(args);
}

using Kernel = void (*)(epw_dispatch_args);

// Rows that are not quantised travel as they are, whatever their type.
template <typename T> static Kernel choose(uint32_t payload) {
    switch (payload) {
    case EPW_PAYLOAD_FP8_F32: return dispatch_kernel<T, EPW_PAYLOAD_FP8_F32>;
    case EPW_PAYLOAD_FP8_POW2: return dispatch_kernel<T, EPW_PAYLOAD_FP8_POW2>;
    case EPW_PAYLOAD_FP8_UE8M0: return dispatch_kernel<T, EPW_PAYLOAD_FP8_UE8M0>;
    default: return dispatch_kernel<Bf16, EPW_PAYLOAD_OPAQUE>;
    }
}

static Kernel choose(uint32_t dtype, uint32_t payload) {
    return dtype == EPW_F16 ? choose<F16>(payload) : choose<Bf16>(payload);
}

cudaError_t prepare_dispatch(int *blocks_per_sm) {
    for (uint32_t dtype : {EPW_BF16, EPW_F16}) {
        for (uint32_t payload = 0; payload <= EPW_PAYLOAD_OPAQUE; payload++) {
            cudaError_t error = prepare(choose(dtype, payload), kThreads, kBlockMemory, blocks_per_sm);
            if (error != cudaSuccess) return error;
        }
    }
    return cudaSuccess;
}

} // namespace epw

extern "C" int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    auto *kernel = epw::choose(args->dtype, args->payload);
    epw::RowStages stages(args->layout, args->payload_bytes, args->scale_count * args->scale_bytes);
    size_t shared = size_t(stages.bytes) * stages.count + epw::RowStages::table_bytes(args->layout);
    return epw::launch_in_stream(kernel, blocks, epw::kThreads, shared, static_cast<cudaStream_t>(stream), *args);
}
