/* See sms.h. */
#ifdef EPW_CUDA
#include "ep/gpu/sms.h"

#include "device/cuda.h"

uint32_t epw_gpu_concurrent_lanes(const epw_config *config) {
    return config->serial_lanes ? 1 : config->lanes;
}

epw_status epw_gpu_take_sms(const epw_config *config, uint64_t most, const char *holder, epw_where where,
                            epw_sm_share **share, uint32_t *blocks) {
    uint32_t sms = 0, lanes = epw_gpu_concurrent_lanes(config);
    epw_status status = epw_cuda_sms(config->device, where, &sms);
    if (status != EPW_OK) return status;
    uint32_t wanted = config->sms != 0 ? config->sms : sms;
    if (wanted > sms || wanted < lanes)
        return epw_fail(EPW_ERR_LIMIT, where,
                        "sms is %u, must be in [%u, %u]: lanes that run at once, and SMs of the GPU", wanted,
                        lanes, sms);
    uint32_t all = (wanted / lanes < most ? wanted / lanes : (uint32_t)most) * lanes;
    epw_sm_request request = {.device = config->device,
                              .sms = sms,
                              .least = config->sms == 0 ? lanes : all,
                              .most = all,
                              .multiple = lanes,
                              .holder = holder,
                              .rank = config->rank};
    status = epw_sm_ledger_take(&request, where, share);
    if (status == EPW_OK) *blocks = epw_sm_share_of(*share) / lanes;
    return status;
}

uint32_t epw_gpu_blocks_of(uint32_t sms, uint32_t share) {
    return sms != 0 && sms < share ? sms : share;
}
#else
typedef int epw_no_gpu_sms; /* ISO C requires a declaration in every file */
#endif
