/* GPU buffers on a machine without a GPU: planning works, and everything else is a clear error. */
#include "check.h"

#include "device/cuda.h"
#include "device/device.h"

#include <string.h>
#include <unistd.h>

static epw_config config_of(int32_t device) {
    epw_config config = EPW_CONFIG_INIT;
    config.ranks = 4;
    config.max_tokens = 16;
    config.hidden = 256;
    config.experts = 8;
    config.topk = 2;
    config.device = device;
    return config;
}

static int error_has(const char *text) {
    int found = strstr(epw_last_error(), text) != NULL;
    if (!found) fprintf(stderr, "wanted \"%s\" in: %s\n", text, epw_last_error());
    return found;
}

static void a_plan_needs_no_gpu(void) {
    epw_plan host = EPW_PLAN_INIT, gpu = EPW_PLAN_INIT;
    epw_config config = config_of(EPW_DEVICE_HOST);
    CHECK_OK(epw_plan_make(&config, &host));
    config = config_of(7);
    config.sms = 1024;
    CHECK_OK(epw_plan_make(&config, &gpu));
    CHECK(gpu.window_bytes == host.window_bytes && gpu.slot_bytes == host.slot_bytes);
    uint64_t written = gpu.window_bytes - gpu.zero_copy_bytes; /* by peers */
    CHECK(gpu.image_bytes == host.image_bytes && gpu.inbox_bytes + 8192 >= written &&
          gpu.inbox_bytes < written + 65536);
}

static void limits_of_gpus_are_named(void) {
    epw_plan plan = EPW_PLAN_INIT;
    epw_config config = config_of(-2);
    CHECK(epw_plan_make(&config, &plan) == EPW_ERR_INVALID);
    CHECK(error_has("device is -2, must be EPW_DEVICE_HOST (-1) or the ordinal of a GPU"));
    config = config_of(0);
    config.sms = 1025;
    CHECK(epw_plan_make(&config, &plan) == EPW_ERR_LIMIT);
    CHECK(error_has("sms is 1025, must be at most 1024"));
    config = config_of(0);
    config.ranks = config.experts = 257;
    CHECK(epw_plan_make(&config, &plan) == EPW_ERR_LIMIT);
    CHECK(error_has("ranks is 257, must be at most 256 on GPUs"));
    config.device = EPW_DEVICE_HOST;
    CHECK_OK(epw_plan_make(&config, &plan));
    config = config_of(0);
    config.experts = 8192;
    CHECK_OK(epw_plan_make(&config, &plan));
    config.experts += config.ranks;
    CHECK(epw_plan_make(&config, &plan) == EPW_ERR_LIMIT);
    CHECK(error_has("must be at most 8192 on GPUs"));
    config.device = EPW_DEVICE_HOST;
    CHECK_OK(epw_plan_make(&config, &plan));
}

/* A build without CUDA plans no prefill on GPUs, but names what would be too large. */
static void is_within_limits(const epw_prefill_config *config, epw_prefill_sizes *sizes) {
    epw_status status = epw_prefill_plan(config, sizes);
    CHECK_MSG(status == EPW_OK || status == EPW_ERR_NO_PATH, "status %d, %s", status, epw_last_error());
}

static void limits_of_prefill_on_gpus_are_named(void) {
    epw_prefill_sizes sizes = EPW_PREFILL_SIZES_INIT;
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    config.ep = config_of(0);
    config.ep.ranks = config.ep.experts = 256;
    is_within_limits(&config, &sizes);
    config.ep.ranks = config.ep.experts = 257;
    CHECK(epw_prefill_plan(&config, &sizes) == EPW_ERR_LIMIT);
    CHECK(error_has("ranks is 257, must be at most 256 on GPUs"));
    config.ep.device = EPW_DEVICE_HOST;
    CHECK_OK(epw_prefill_plan(&config, &sizes));
    config.ep = config_of(0);
    config.ep.experts = 8192;
    is_within_limits(&config, &sizes);
    config.ep.experts += config.ep.ranks;
    CHECK(epw_prefill_plan(&config, &sizes) == EPW_ERR_LIMIT);
    CHECK(error_has("must be at most 8192 on GPUs"));
    config.ep.device = EPW_DEVICE_HOST;
    CHECK_OK(epw_prefill_plan(&config, &sizes));
}

/* Creating the buffer fails, and leaves nothing behind. */
static void refused(int32_t device, const char *text) {
    epw_config config = config_of(device);
    epw_buffer *buffer = NULL;
    CHECK(epw_buffer_create(&config, &buffer) == EPW_ERR_NO_PATH);
    CHECK(buffer == NULL);
    CHECK(error_has(text));
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail);
    CHECK(detail.rank == 0);
}

#ifdef EPW_CUDA

static int driver_is_there(void) {
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
}

static int a_buffer_on_a_gpu_says_what_is_missing(void) {
    if (driver_is_there()) {
        refused(1 << 20, ""); /* no machine has a GPU of this ordinal */
        puts("not checked: what a machine without NVIDIA driver is told, because this one has a driver");
        return 0;
    }
    refused(0, "no NVIDIA driver: libcuda.so.1 cannot be found; install the driver");
    refused(0, "no NVIDIA driver"); /* and the same again */
    return 1;
}

#else

static int a_buffer_on_a_gpu_says_what_is_missing(void) {
    refused(0, "built without CUDA: build it with cargo feature `cuda`, or CMake option EPW_CUDA=ON");
    return 1;
}

#endif

int main(void) {
    a_plan_needs_no_gpu();
    limits_of_gpus_are_named();
    limits_of_prefill_on_gpus_are_named();
    int all = a_buffer_on_a_gpu_says_what_is_missing();
    int result = check_result("cuda");
    return result == 0 && !all ? 77 : result; /* 77: skipped, for the reason printed above */
}
