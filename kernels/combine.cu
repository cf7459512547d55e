// The combine kernels and their launch.
#include "kernels/ep/answer.cuh"
#include "kernels/ep/collect.cuh"
#include "kernels/ep/combine_many.cuh"
#include "kernels/launch.cuh"

namespace epw {

// Where rows to be summed are noted.
template <bool Many> __device__ __forceinline__ auto &batch_of(const Combine &a, AnswerShared &s, unsigned char *memory) {
    if constexpr (Many) {
        return *reinterpret_cast<ManyRows *>(memory + a.table_size);
    } else {
        return s.batch;
    }
}

// Many: for blocks that have several rows each (sums), or with the code for blocks that have many tokens each (rows). Small
// operations load their code from memory as they go, and take a microsecond longer (H100) if it is among theirs.
template <typename T, Answers With, bool Many>
__global__ void __launch_bounds__(kCombineThreads, 1) combine_kernel(const __grid_constant__ Combine a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Operation o;
    __shared__ AnswerShared s;
    __shared__ Expected expected;
    const epw_gpu_lane_state *c = a.lane.state;
    bool sends = a.halves & EPW_GPU_SEND, receives = a.halves & EPW_GPU_RECEIVE;

    if (threadIdx.x == 0) {
        for (uint64_t &barrier : s.loaded) ptx::barrier_init(&barrier, 1);
        ptx::fence_barrier_init();
    }
    __syncthreads(); // the barriers are initialised
    ptx::wait_for_stream();
    const Opening opening(a.lane, EPW_AREA_ANSWERS, a.in.deadline_ns);
    if (threadIdx.x < a.lane.layout.ranks) {
        s.received[threadIdx.x] = c->received[threadIdx.x];
        expected.rows[threadIdx.x] = epw_word_value(c->sent[threadIdx.x]);
    }
    if (threadIdx.x == kOpeningThreads) expected.marked = c->ordered;
    uint32_t *first_row = reinterpret_cast<uint32_t *>(memory);
    if constexpr (With != Answers::rows) {
        // Where each source's rows begin in the experts' lists: loaded while the operation is loaded.
        uint32_t lists = sends ? a.lane.layout.local_experts * a.lane.layout.ranks : 0;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < lists; i += kCombineThreads) first_row[i] = a.lane.arrays.first_row[i];
    }
    const SourceOrder order(a, c->ends, sends);
    opening.write(o, false);
    Answerer<With, Many> answerer(a, s, order, memory + a.table_size);
    __syncthreads();
    if (o.stage != (sends ? EPW_GPU_DISPATCHED : EPW_GPU_ANSWERED)) {
        answerer.abandon();
        refuse(o, sends, sends ? EPW_PHASE_COMBINE_SEND : EPW_PHASE_COMBINE_RECEIVE);
        return;
    }
    if constexpr (Many && With == Answers::rows) {
        if (!o.posts) {
            combine_many<T>(a, o, s, expected, memory);
            return;
        }
    }
    auto &batch = batch_of < With == Answers::sums && Many > (a, s, memory);
    if (sends) answer_all<T>(a, o, s, order, answerer, batch, expected.marked, first_row);
    if (receives) {
        collect<T, With != Answers::rows>(a, o, expected, batch); // for sums all weights are 1
        return;
    }
    ptx::let_next_begin();
    if (blockIdx.x == 0 && threadIdx.x == 0) a.lane.peers->spoke = ptx::global_timer_ns();
    if (!must_close(o, EPW_GPU_ANSWERED, true)) return;
    close_sending(o, EPW_PHASE_COMBINE_SEND, EPW_GPU_ANSWERED, false);
}

using Kernel = void (*)(Combine);

template <typename T> static Kernel choose(Answers with, bool many) {
    switch (with) {
    case Answers::rows:
        return many ? combine_kernel<T, Answers::rows, true> : combine_kernel<T, Answers::rows, false>;
    case Answers::sums:
        return many ? combine_kernel<T, Answers::sums, true> : combine_kernel<T, Answers::sums, false>;
    default:
        return combine_kernel<T, Answers::parts, false>;
    }
}

static Kernel choose(uint32_t dtype, Answers with, bool many) {
    return dtype == EPW_F16 ? choose<F16>(with, many) : choose<Bf16>(with, many);
}

cudaError_t prepare_combine() {
    for (uint32_t dtype : {EPW_BF16, EPW_F16}) {
        for (Answers with : {Answers::rows, Answers::sums, Answers::parts}) {
            for (bool many : {false, true}) {
                cudaError_t error = prepare(choose(dtype, with, many), kCombineThreads, kAnswerMemory);
                if (error != cudaSuccess) return error;
            }
        }
    }
    return cudaSuccess;
}

} // namespace epw

extern "C" int epw_gpu_combine(const epw_combine_args *args, uint32_t blocks, void *stream) {
    const epw::Combine a(*args, blocks);
    return epw::launch_in_stream(epw::choose(a.dtype, a.answers_with(), a.many), blocks, epw::kCombineThreads, a.shared_size(),
                                 static_cast<cudaStream_t>(stream), a);
}
