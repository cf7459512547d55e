// The dispatch kernels and their launch.
#include "kernels/ep/receive.cuh"
#include "kernels/ep/send.cuh"
#include "kernels/ep/send_few.cuh"
#include "kernels/ep/send_many.cuh"
#include "kernels/launch.cuh"

namespace epw {

// Begins the operation, and sends the block's tokens if the kernel sends. Called by the whole block.
template <typename Sending>
__device__ __forceinline__ void begin(const Dispatch &a, Operation &o, SendShared &s, unsigned char *memory, uint32_t *table) {
    const bool sends = a.halves & EPW_GPU_SEND;
    Sending sender(a, s, memory, table);
    __syncthreads(); // the barriers are initialised, the counts are cleared
    ptx::wait_for_stream();
    if (sends) sender.begin();
    const Opening opening(a.lane, EPW_AREA_ROWS, a.in.deadline_ns);
    if (sends) sender.look();
    opening.write(o, sends);
    if (sends) sender.run(o);
}

// Few: see send_few.cuh. Small operations load their code from memory as they go, so these have kernels of their own.
template <typename T, uint32_t Payload, bool Spreads, bool Few>
__global__ void __launch_bounds__(kThreads, 1) dispatch_kernel(const __grid_constant__ Dispatch a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Operation o;
    __shared__ SendShared sending;
    __shared__ ReceiveShared receiving;
    uint32_t *table = reinterpret_cast<uint32_t *>(memory + a.tiles.bytes * a.tiles.count);
    bool sends = a.halves & EPW_GPU_SEND, receives = a.halves & EPW_GPU_RECEIVE;

    if (threadIdx.x == 96) {
        for (auto &barrier : sending.loaded) ptx::barrier_init(&barrier, 1);
        for (auto &barrier : receiving.loaded) ptx::barrier_init(&barrier, 1);
        ptx::fence_barrier_init();
    }
    if constexpr (Few) {
        begin<FewSender<T, Payload>>(a, o, sending, memory, table);
    } else if (Spreads || !sends || !a.many) { // copying received rows takes longer than sending
        begin<Sender<T, Payload>>(a, o, sending, memory, table);
    } else {
        begin<ManySender<T, Payload>>(a, o, sending, memory, table);
    }
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

// Rows that are not quantised travel unchanged, whatever their type.
template <typename T, bool Spreads, bool Few> static Kernel choose(uint32_t payload) {
    switch (payload) {
    case EPW_PAYLOAD_FP8_F32:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_F32, Spreads, Few>;
    case EPW_PAYLOAD_FP8_POW2:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_POW2, Spreads, Few>;
    case EPW_PAYLOAD_FP8_UE8M0:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_UE8M0, Spreads, Few>;
    default:
        return dispatch_kernel<Bf16, EPW_PAYLOAD_OPAQUE, Spreads, Few>;
    }
}

template <typename T> static Kernel choose(uint32_t payload, bool spreads, bool few) {
    if (spreads) return few ? choose<T, true, true>(payload) : choose<T, true, false>(payload);
    return few ? choose<T, false, true>(payload) : choose<T, false, false>(payload);
}

static Kernel choose(uint32_t dtype, uint32_t payload, bool spreads, bool few) {
    return dtype == EPW_F16 ? choose<F16>(payload, spreads, few) : choose<Bf16>(payload, spreads, few);
}

cudaError_t prepare_dispatch() {
    for (uint32_t dtype : {EPW_BF16, EPW_F16}) {
        for (uint32_t payload = 0; payload <= EPW_PAYLOAD_OPAQUE; payload++) {
            for (bool spreads : {false, true}) {
                for (bool few : {false, true}) {
                    cudaError_t error = prepare(choose(dtype, payload, spreads, few), kThreads, kBlockMemory);
                    if (error != cudaSuccess) return error;
                }
            }
        }
    }
    return cudaSuccess;
}

} // namespace epw

extern "C" int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    const epw::Dispatch a(*args, blocks);
    return epw::launch_in_stream(epw::choose(a.dtype, a.in.payload, a.spreads(), a.sends_few()), blocks, epw::kThreads,
                                 a.shared_size(), static_cast<cudaStream_t>(stream), a);
}
