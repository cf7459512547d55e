// Numbers that mapped peers tell each other beside the signal words, at offsets that code above this folder has laid out.
#pragma once

#include "kernels/peer/words.cuh"

namespace epw {

// Writer: this thread, which has acquired all other data that the number announces. Reader: the peer, by told().
__device__ __forceinline__ void tell_mapped(const Peers &p, uint32_t peer, uint64_t offset, uint64_t value) {
    ptx::store_release_sys(reinterpret_cast<uint64_t *>(at(p, peer, offset)), value);
}

// What a mapped peer has told, an acquire of what it wrote before.
__device__ __forceinline__ uint64_t told(const Peers &p, uint64_t offset) {
    return ptx::load_acquire_sys(reinterpret_cast<const uint64_t *>(p.own + offset));
}

} // namespace epw
