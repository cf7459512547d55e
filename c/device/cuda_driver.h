/* The functions of libcuda for which the CUDA runtime has no equivalent, looked up through the runtime:
 * nothing links libcuda, so a program starts without it. */
#ifndef EPW_DEVICE_CUDA_DRIVER_H
#define EPW_DEVICE_CUDA_DRIVER_H

#include "base/status.h"

#ifdef EPW_CUDA

#include <cudaTypedefs.h>

typedef struct epw_cuda_driver {
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetAttribute_v2000 device_get_attribute;
    PFN_cuDeviceGetUuid_v11040 device_get_uuid;
    PFN_cuDevicePrimaryCtxRetain_v7000 context_retain;
    PFN_cuCtxPushCurrent_v4000 context_push;
    PFN_cuCtxPopCurrent_v4000 context_pop;
    PFN_cuMemAddressReserve_v10020 address_reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemGetAccess_v10020 get_access;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemExportToShareableHandle_v10020 export_handle;
    PFN_cuMemImportFromShareableHandle_v10020 import_handle;
    PFN_cuMemRetainAllocationHandle_v11000 retain_handle;
    PFN_cuMemGetAddressRange_v3020 address_range;
    PFN_cuMemGetHandleForAddressRange_v11070 range_handle;
    PFN_cuPointerGetAttribute_v4000 pointer_get;
    PFN_cuPointerSetAttribute_v6000 pointer_set;
} epw_cuda_driver;

/* Looks up all functions, once per process; any thread. EPW_ERR_NO_PATH: the driver lacks one, which the text
 * names. */
epw_status epw_cuda_driver_load(epw_where where);

/* Valid after epw_cuda_driver_load has returned EPW_OK. */
const epw_cuda_driver *epw_cuda_driver_get(void);

#endif

#endif
