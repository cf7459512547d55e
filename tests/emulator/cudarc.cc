// The driver's library as cudarc loads it (libcuda.so), for Rust programs on the emulated GPU: each function is one of the
// emulated runtime's, which is in the program. The program must export those: link it with -rdynamic. Kernels that come as PTX
// are loaded but do nothing when they run, so a program that measures with them measures 0.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

// Programs may load these by either of their names.
#undef cuDeviceGetUuid
#undef cuEventElapsedTime

namespace {

CUresult result(cudaError_t error) { return CUresult(error); }
int device_of(CUcontext context) { return int(reinterpret_cast<uintptr_t>(context)) - 1; }
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device) + 1); }
void *memory(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

thread_local CUcontext current;

// From pageable memory: the driver has finished with it when the call returns.
CUresult copy(void *to, const void *from, size_t bytes, CUstream stream) {
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (error == cudaSuccess && stream) error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaSuccess && capture == cudaStreamCaptureStatusNone) error = cudaStreamSynchronize(stream);
    return result(error);
}

} // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char **out) {
    *out = "an error of the emulated GPU";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **out) { return cuGetErrorName(error, out); }

CUresult cuDeviceGetCount(int *count) { return result(cudaGetDeviceCount(count)); }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = 1;
    if (attribute == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) return CUDA_SUCCESS;
    return result(cudaDeviceGetAttribute(value, cudaDeviceAttr(attribute), device));
}
CUresult cuDeviceGetName(char *name, int length, CUdevice) {
    strncpy(name, "emulated", size_t(length));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = context_of(device);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return context ? result(cudaSetDevice(device_of(context))) : CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return result(cudaDeviceSynchronize()); }

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return result(cudaStreamCreateWithFlags(stream, flags)); }
CUresult cuStreamDestroy_v2(CUstream stream) { return result(cudaStreamDestroy(stream)); }
CUresult cuStreamSynchronize(CUstream stream) { return result(cudaStreamSynchronize(stream)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    return result(cudaStreamWaitEvent(stream, event, flags));
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return result(cudaStreamBeginCapture(stream, cudaStreamCaptureMode(mode)));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { return result(cudaStreamEndCapture(stream, graph)); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    *out = CUstreamCaptureStatus(status);
    return result(error);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    return result(cudaGraphInstantiate(out, graph, flags));
}
CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) { return result(cudaGraphUpload(graph, stream)); }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return result(cudaGraphLaunch(graph, stream)); }
CUresult cuGraphDestroy(CUgraph graph) { return result(cudaGraphDestroy(graph)); }
CUresult cuGraphExecDestroy(CUgraphExec graph) { return result(cudaGraphExecDestroy(graph)); }

CUresult cuEventCreate(CUevent *event, unsigned flags) { return result(cudaEventCreateWithFlags(event, flags)); }
CUresult cuEventDestroy_v2(CUevent event) { return result(cudaEventDestroy(event)); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return result(cudaEventRecord(event, stream)); }
CUresult cuEventQuery(CUevent event) { return result(cudaEventQuery(event)); }
CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return result(cudaEventElapsedTime(ms, from, to)); }
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime_v2(ms, from, to); }
CUresult cuEventSynchronize(CUevent event) { return result(cudaEventSynchronize(event)); }

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return result(cudaMemcpy(memory(to), from, bytes, cudaMemcpyHostToDevice));
}
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return result(cudaMalloc(reinterpret_cast<void **>(out), bytes)); }
CUresult cuMemFree_v2(CUdeviceptr address) { return result(cudaFree(memory(address))); }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { return result(cudaMemGetInfo(free, total)); }
CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    return result(cudaMallocAsync(reinterpret_cast<void **>(out), bytes, stream));
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return result(cudaFreeAsync(memory(address), stream)); }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return result(cudaMemcpy(to, memory(from), bytes, cudaMemcpyDeviceToHost));
}
CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
    return result(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t *>(out), memory(address)));
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
    cudaIpcMemHandle_t same;
    memcpy(&same, &handle, sizeof same);
    return result(cudaIpcOpenMemHandle(reinterpret_cast<void **>(out), same, flags));
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) { return result(cudaIpcCloseMemHandle(memory(address))); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    return result(cudaMemsetAsync(memory(to), value, bytes, stream));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(memory(to), from, bytes, stream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return result(cudaMemcpyAsync(memory(to), memory(from), bytes, cudaMemcpyDeviceToDevice, stream));
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, memory(from), bytes, stream);
}

CUresult cuModuleLoadData(CUmodule *module, const void *) {
    *module = reinterpret_cast<CUmodule>(uintptr_t(1));
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *) {
    *function = reinterpret_cast<CUfunction>(uintptr_t(1));
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **) {
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **) { return CUDA_SUCCESS; }

} // extern "C"
