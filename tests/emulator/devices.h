// The emulated GPUs' memory and contexts, which the runtime and the driver share.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

int device_count();
int sms_per_device();
size_t memory_bytes(); // of a GPU
size_t free_bytes(int device);

// Whether this environment variable is a number above 0.
bool is_set(const char *name);

// The device of the calling thread: that of the context pushed last, else the one set last.
int current_device();
void set_current_device(int device);
CUresult push(int device);
CUresult pop(int *device);

// Memory of a GPU is a file in memory, which other processes can map.
CUresult allocate(size_t bytes, int device, void **out);
CUresult release(void *memory);
// The allocation that an address lies in, mappings of other processes' memory too.
bool find_allocation(const void *address, void **base, size_t *bytes);
// Its device, and whether it is of a pool, which has no handles for other processes.
bool find_device(const void *address, int *device, bool *pooled);
// Whether it is memory that this process has allocated on another GPU, not by VMM functions.
bool is_of_other_gpu(const void *address, int device);
void put_into_pool(void *memory);

// A handle for other processes, and its mapping.
CUresult name_allocation(const void *memory, CUipcMemHandle *out);
CUresult open_allocation(const CUipcMemHandle *handle, void **out);

// A function of libcuda, by name; null if the emulated driver lacks it.
void *driver_function(const char *name);

} // namespace emulated
