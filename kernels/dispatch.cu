// Dispatch kernels and how they are launched.
#include "kernels/ep/receive.cuh"
#include "kernels/ep/send_many.cuh"
#include "kernels/launch.cuh"

#include <type_traits>

namespace epw {

// Many: blocks that send have several tokens each.
template <typename T, uint32_t Payload, bool Spreads, bool Many>
__global__ void __launch_bounds__(kThreads, 1) dispatch_kernel(const __grid_constant__ Dispatch a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Operation o;
    using Sends = std::conditional_t<Many, ManySender<T, Payload>, Sender<T, Payload>>;
    __shared__ std::conditional_t<Many, ManyShared, SendShared> sending;
    __shared__ ReceiveShared receiving;
    uint32_t *table = reinterpret_cast<uint32_t *>(memory + a.table_at);
    bool sends = a.halves & EPW_GPU_SEND, receives = a.halves & EPW_GPU_RECEIVE;

    if (threadIdx.x == 96) {
        if constexpr (Many) {
            ptx::barrier_init(&sending.numbered, kWarps);
            ptx::barrier_init(&sending.counted, kWarps);
        }
        for (auto &barrier : sending.loaded) ptx::barrier_init(&barrier, 1);
        for (auto &barrier : receiving.loaded) ptx::barrier_init(&barrier, 1);
        ptx::fence_barrier_init();
    }
    Sends sender(a, sending, memory, table);
    __syncthreads(); // barriers and counts are there
    ptx::wait_for_stream();
    if (sends) sender.begin();
    const Opening opening(a.lane, EPW_AREA_ROWS, a.in.deadline_ns);
    if (sends) sender.look();
    opening.write(o, sends);
    if (sends) sender.run(o);
    __syncthreads();
    if (o.stage != (sends ? EPW_GPU_FREE : EPW_GPU_SENT)) {
        refuse(o, sends, sends ? EPW_PHASE_DISPATCH_SEND : EPW_PHASE_DISPATCH_RECEIVE);
        return;
    }
    if (receives) {
        receive_rows<Spreads>(a, o, receiving, memory, table);
        return;
    }
    ptx::let_next_begin();
    if (blockIdx.x == 0 && threadIdx.x == 0) a.lane.peers->spoke = ptx::global_timer_ns();
    if (!must_close(o, EPW_GPU_SENT, true)) return;
    close_sending(o, EPW_PHASE_DISPATCH_SEND, EPW_GPU_SENT, true);
}

using Kernel = void (*)(Dispatch);

// Rows that are not quantised travel as they are, whatever their type.
template <typename T, bool Spreads, bool Many> static Kernel choose(uint32_t payload) {
    switch (payload) {
    case EPW_PAYLOAD_FP8_F32:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_F32, Spreads, Many>;
    case EPW_PAYLOAD_FP8_POW2:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_POW2, Spreads, Many>;
    case EPW_PAYLOAD_FP8_UE8M0:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_UE8M0, Spreads, Many>;
    default:
        return dispatch_kernel<Bf16, EPW_PAYLOAD_OPAQUE, Spreads, Many>;
    }
}

template <typename T> static Kernel choose(uint32_t payload, bool spreads, bool many) {
    if (many) return spreads ? choose<T, true, true>(payload) : choose<T, false, true>(payload);
    return spreads ? choose<T, true, false>(payload) : choose<T, false, false>(payload);
}

static Kernel choose(uint32_t dtype, uint32_t payload, bool spreads, bool many) {
    return dtype == EPW_F16 ? choose<F16>(payload, spreads, many) : choose<Bf16>(payload, spreads, many);
}

cudaError_t prepare_dispatch() {
    for (uint32_t dtype : {EPW_BF16, EPW_F16}) {
        for (uint32_t payload = 0; payload <= EPW_PAYLOAD_OPAQUE; payload++) {
            for (uint32_t kind = 0; kind < 4; kind++) {
                cudaError_t error = prepare(choose(dtype, payload, kind & 1, kind & 2), kThreads, kBlockMemory);
                if (error != cudaSuccess) return error;
            }
        }
    }
    return cudaSuccess;
}

} // namespace epw

extern "C" int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    const epw::Dispatch a(*args, blocks);
    const auto kernel = epw::choose(a.dtype, a.in.payload, a.spreads(), a.sends_many());
    const size_t shared = size_t(a.table_at) + epw::table_bytes(a.lane.layout);
    return epw::launch_in_stream(kernel, blocks, epw::kThreads, shared, static_cast<cudaStream_t>(stream), a);
}
