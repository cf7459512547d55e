/* See cuda_driver.h. */
#include "device/cuda_driver.h"

#ifdef EPW_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* A function: its name in libcuda, the version whose signature its type has, and its member. */
typedef struct entry {
    const char *name;
    unsigned version;
    size_t offset;
} entry;

#define ENTRY(name, version, member)                                                                         \
    { name, version, offsetof(epw_cuda_driver, member) }

static const entry entries[] = {
    ENTRY("cuDeviceGet", 2000, device_get),
    ENTRY("cuDeviceGetAttribute", 2000, device_get_attribute),
    ENTRY("cuDeviceGetUuid", 11040, device_get_uuid),
    ENTRY("cuDevicePrimaryCtxRetain", 7000, context_retain),
    ENTRY("cuCtxPushCurrent", 4000, context_push),
    ENTRY("cuCtxPopCurrent", 4000, context_pop),
    ENTRY("cuMemAddressReserve", 10020, address_reserve),
    ENTRY("cuMemAddressFree", 10020, address_free),
    ENTRY("cuMemCreate", 10020, create),
    ENTRY("cuMemRelease", 10020, release),
    ENTRY("cuMemMap", 10020, map),
    ENTRY("cuMemUnmap", 10020, unmap),
    ENTRY("cuMemGetAccess", 10020, get_access),
    ENTRY("cuMemSetAccess", 10020, set_access),
    ENTRY("cuMemGetAllocationGranularity", 10020, granularity),
    ENTRY("cuMemExportToShareableHandle", 10020, export_handle),
    ENTRY("cuMemImportFromShareableHandle", 10020, import_handle),
    ENTRY("cuMemRetainAllocationHandle", 11000, retain_handle),
    ENTRY("cuMemGetAddressRange", 3020, address_range),
    ENTRY("cuMemGetHandleForAddressRange", 11070, range_handle),
    ENTRY("cuPointerGetAttribute", 4000, pointer_get),
    ENTRY("cuPointerSetAttribute", 6000, pointer_set),
};

static epw_cuda_driver driver;
static const char *missing; /* name of the first function that was not found */

static void load(void) {
    for (size_t i = 0; i < sizeof entries / sizeof entries[0] && !missing; i++) {
        const entry *e = &entries[i];
        void *function = NULL;
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        cudaError_t error =
            cudaGetDriverEntryPointByVersion(e->name, &function, e->version, cudaEnableDefault, &found);
#else
        cudaError_t error = cudaGetDriverEntryPoint(e->name, &function, cudaEnableDefault, &found);
#endif
        if (error != cudaSuccess) (void)cudaGetLastError(); /* hides the error from the caller */
        if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !function) missing = e->name;
        memcpy((char *)&driver + e->offset, &function, sizeof function);
    }
}

epw_status epw_cuda_driver_load(epw_where where) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (missing == NULL) return EPW_OK;
    return epw_fail(EPW_ERR_NO_PATH, where, "the CUDA driver has no %s; install a newer NVIDIA driver",
                    missing);
}

const epw_cuda_driver *epw_cuda_driver_get(void) {
    return &driver;
}

#endif
