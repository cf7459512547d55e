/* Enqueues the count of where tokens would go. It waits for nobody and uses nothing of the buffer, so it has
 * no place among the operations of a lane. */
#include "prefill/gpu/gpu.h"

#ifdef EPW_CUDA
#include "device/cuda.h"
#include "ep/gpu/check.h"
#include "kernels/prefill/count.h"

epw_status epw_prefill_gpu_enqueue_count(const epw_prefill *p, const epw_dispatch_input *in,
                                         const epw_prefill_counts *out, epw_where where) {
    const epw_gpu_pointer pointers[] = {{"topk_idx", in->topk_idx, in->idx_type == EPW_I64 ? 8 : 4},
                                        {"rank_tokens", out->rank_tokens, 4},
                                        {"expert_tokens", out->expert_tokens, 4},
                                        {"bad_ids", out->bad_ids, 4}};
    epw_stream_call on = {.stream = in->stream};
    epw_status status = EPW_CHECK_ALIGNED(where, pointers);
    if (status == EPW_OK) status = epw_cuda_enter(p->config.ep.device, where);
    if (status != EPW_OK) return status;
    status = epw_stream_find_capture(&on, where);
    if (status == EPW_OK) {
        const epw_prefill_count_args args = {.in = *in,
                                             .rank_tokens = out->rank_tokens,
                                             .expert_tokens = out->expert_tokens,
                                             .in_rank = out->in_rank,
                                             .bad_ids = out->bad_ids,
                                             .ranks = p->layout.ranks,
                                             .experts = p->config.ep.experts};
        int error = epw_prefill_gpu_run_count(&args, in->stream);
        if (error != cudaSuccess) status = epw_fail_cuda(error, where, "launch of the kernel that counts");
    }
    epw_cuda_leave();
    return status;
}
#else
epw_status epw_prefill_gpu_enqueue_count(const epw_prefill *p, const epw_dispatch_input *in,
                                         const epw_prefill_counts *out, epw_where where) {
    (void)p, (void)in, (void)out;
    return epw_fail(EPW_ERR_STATE, where, "there is no prefill buffer on a GPU");
}
#endif
