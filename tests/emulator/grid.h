// How the emulated GPU runs a grid: every block is a thread of the operating system, and the threads of a block are fibers on it,
// which change at barriers, warp operations and loads that poll. Shared memory is thread_local, hence a block's own.
//
// What a GPU does asynchronously happens at a random moment here, as late as the program permits: a bulk load or store is carried
// out when the program waits for it, or at some change of fibers before. The order of fibers is random too. A missing wait or
// fence of that kind shows as a wrong result. What it cannot show: weak memory order between blocks (the processor's is stronger
// than a GPU's), and speed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulated {

struct Index {
    uint32_t x, y, z;
};

// The body of a kernel with its arguments; `run` is called once per thread of the grid.
struct Body {
    virtual void run() const = 0;
    virtual ~Body() = default;
};

// Runs all threads of the grid and returns when they have ended. A block begins when one of the GPU's SMs has room for it.
void run_grid(const Body &body, int device, Index grid, Index block, size_t shared_bytes);

// ---- Called by the threads of a block

void *dynamic_shared();

// Lets other fibers run; `poll` at every few calls only.
void pause();
void poll();

// A barrier for `threads` threads of the block, 0: all that have not ended. Returns whether `says` held for any of them.
bool barrier(uint32_t id, uint32_t threads, bool says);

// Waits for the lanes of `mask`, which must call it with the same mask. Returns the values of all 32 lanes; those of the mask are
// set. They stay valid until this thread's next call.
const uint64_t *exchange(uint32_t mask, uint64_t value);

uint32_t lane();

// A barrier of bulk copies (mbarrier), in the block's shared memory.
void copies_init(uint64_t *barrier, uint32_t arrivals);
void copies_arrive(uint64_t *barrier, uint32_t expected_bytes);
bool copies_have_come(const uint64_t *barrier, uint32_t parity);

void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier);
void bulk_store(void *to, const void *from, uint32_t bytes);
void bulk_commit();
// Of this thread's groups of stores all but the last `left` have been read, or read and written.
void bulk_await(uint32_t left, bool written);

// A thread's own copies to shared memory, which are carried out at once or when they are awaited. Without `from` zeros are
// written.
void copy_16(void *to, const void *from);
void copies_commit();
void copies_await(uint32_t left);

} // namespace emulated

// By the names that they have in CUDA.
extern thread_local emulated::Index threadIdx, blockIdx, blockDim, gridDim;
