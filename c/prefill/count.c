/* Counts where tokens would go, without sending anything: on the host here, on a GPU by gpu/count.c. */
#include "ep/input.h"
#include "prefill/gpu/gpu.h"

#include <string.h>

static epw_dispatch_input input_of(const void *topk_idx, uint32_t idx_type, uint32_t tokens, uint32_t topk) {
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    in.tokens = tokens;
    in.x = ""; /* there must be one; it is not read */
    in.topk_idx = topk_idx;
    in.idx_type = idx_type;
    in.topk = topk;
    return in;
}

epw_status epw_prefill_count(const epw_prefill_config *config, const void *topk_idx, uint32_t idx_type,
                             uint32_t tokens, uint32_t topk, uint32_t *rank_tokens, uint32_t *expert_tokens,
                             uint8_t *in_rank) {
    epw_prefill_layout l;
    epw_status status = epw_prefill_lay_out("count", config, &l, NULL);
    if (status != EPW_OK) return status;
    const epw_config *c = &config->ep;
    epw_where where = {"count", (int)c->rank, -1};
    epw_dispatch_input in = input_of(topk_idx, idx_type, tokens, topk);
    epw_row_format format;
    status = epw_input_check(where, c, &in, true, &format);
    int32_t ids[EPW_MAX_TOPK];
    float weights[EPW_MAX_TOPK];
    for (uint32_t t = 0; t < tokens && status == EPW_OK; t++)
        status = epw_input_read_topk(where, c, &in, t, ids, weights);
    if (status != EPW_OK) return status;
    if (rank_tokens != NULL) memset(rank_tokens, 0, c->ranks * sizeof rank_tokens[0]);
    if (expert_tokens != NULL) memset(expert_tokens, 0, c->experts * sizeof expert_tokens[0]);
    if (in_rank != NULL) memset(in_rank, 0, (size_t)tokens * c->ranks);
    for (uint32_t t = 0; t < tokens; t++) {
        (void)epw_input_read_topk(where, c, &in, t, ids, weights);
        for (uint32_t j = 0; j < topk; j++) {
            if (ids[j] < 0) continue;
            uint32_t rank = (uint32_t)ids[j] / l.local_experts;
            bool again = false;
            for (uint32_t i = 0; i < j; i++)
                again |= ids[i] >= 0 && (uint32_t)ids[i] / l.local_experts == rank;
            if (expert_tokens != NULL) expert_tokens[ids[j]]++;
            if (rank_tokens != NULL && !again) rank_tokens[rank]++;
            if (in_rank != NULL) in_rank[(size_t)t * c->ranks + rank] = 1;
        }
    }
    return EPW_OK;
}

epw_status epw_prefill_enqueue_count(epw_prefill *p, const void *topk_idx, uint32_t idx_type, uint32_t tokens,
                                     uint32_t topk, uint32_t *rank_tokens, uint32_t *expert_tokens,
                                     uint8_t *in_rank, uint32_t *bad_ids, void *stream) {
    epw_where where = {"count", -1, -1};
    if (p == NULL) return epw_fail(EPW_ERR_INVALID, where, "prefill is NULL");
    where.rank = (int)p->config.ep.rank;
    if (p->gpu == NULL)
        return epw_fail(EPW_ERR_STATE, where, "the buffer is on the host: call epw_prefill_count");
    epw_dispatch_input in = input_of(topk_idx, idx_type, tokens, topk);
    epw_row_format format;
    epw_status status = epw_input_check(where, &p->config.ep, &in, true, &format);
    if (status != EPW_OK) return status;
    in.stream = stream;
    epw_prefill_counts out = {rank_tokens, expert_tokens, in_rank, bad_ids};
    return epw_prefill_gpu_enqueue_count(p, &in, &out, where);
}
