// The dispatch kernels and their launch.
#include "kernels/ep/receive.cuh"
#include "kernels/ep/send.cuh"
#include "kernels/ep/send_many.cuh"
#include "kernels/launch.cuh"

namespace epw {

template <typename T, uint32_t Payload, bool Spreads>
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
    Sender<T, Payload> sender(a, sending, memory, table);
    __syncthreads(); // the barriers are initialised, the counts are cleared
    ptx::wait_for_stream();
    // Only where received rows stay in place: copying them takes longer than sending. A small operation loads its code from
    // memory as it goes, and so this code is said to be unlikely, and lies behind the rest: in between it costs up to a
    // microsecond (H100).
    const bool many = !Spreads && sends && a.many;
    if (sends && !many) sender.begin();
    const Opening opening(a.lane, EPW_AREA_ROWS, a.in.deadline_ns);
    if (sends && !many) sender.look();
    opening.write(o, sends);
    if (sends && !many) sender.run(o);
    if constexpr (!Spreads) {
        if (__builtin_expect(many, 0)) send_many<T, Payload>(a, o, sending, memory, table);
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
template <typename T, bool Spreads> static Kernel choose(uint32_t payload) {
    switch (payload) {
    case EPW_PAYLOAD_FP8_F32:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_F32, Spreads>;
    case EPW_PAYLOAD_FP8_POW2:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_POW2, Spreads>;
    case EPW_PAYLOAD_FP8_UE8M0:
        return dispatch_kernel<T, EPW_PAYLOAD_FP8_UE8M0, Spreads>;
    default:
        return dispatch_kernel<Bf16, EPW_PAYLOAD_OPAQUE, Spreads>;
    }
}

static Kernel choose(uint32_t dtype, uint32_t payload, bool spreads) {
    if (dtype == EPW_F16) return spreads ? choose<F16, true>(payload) : choose<F16, false>(payload);
    return spreads ? choose<Bf16, true>(payload) : choose<Bf16, false>(payload);
}

cudaError_t prepare_dispatch() {
    for (uint32_t dtype : {EPW_BF16, EPW_F16}) {
        for (uint32_t payload = 0; payload <= EPW_PAYLOAD_OPAQUE; payload++) {
            for (bool spreads : {false, true}) {
                cudaError_t error = prepare(choose(dtype, payload, spreads), kThreads, kBlockMemory);
                if (error != cudaSuccess) return error;
            }
        }
    }
    return cudaSuccess;
}

} // namespace epw

extern "C" int epw_gpu_dispatch(const epw_dispatch_args *args, uint32_t blocks, void *stream) {
    const epw::Dispatch a(*args, blocks);
    return epw::launch_in_stream(epw::choose(a.dtype, a.in.payload, a.spreads()), blocks, epw::kThreads, a.shared_size(),
                                 static_cast<cudaStream_t>(stream), a);
}
