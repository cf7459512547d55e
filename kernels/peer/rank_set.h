/* A set of a group's ranks on GPUs, shared by host C and CUDA: kernels keep participants, lost peers and notified peers in such
 * sets. Its memory layout is the beginning of an epw_mask.
 *
 * Memory order. Each 32-bit word of a set is loaded, stored and changed atomically, the whole set is not. An acquire or release
 * with a rank's bit orders what belongs to that bit only: nothing is ordered between ranks in different words, and a copy of a
 * set that other threads change may hold one word older than the next. A set that several threads change either only grows or
 * only shrinks meanwhile. The operations of kernels are in rank_set.cuh. */
#ifndef EPW_KERNELS_PEER_RANK_SET_H
#define EPW_KERNELS_PEER_RANK_SET_H

#include "base/inline.h"
#include "epwire.h"

#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

#define EPW_GPU_PEERS  256 /* the most ranks of a group */
#define EPW_RANK_WORDS (EPW_GPU_PEERS / 32)

typedef struct epw_rank_set {
    alignas(16) uint32_t words[EPW_RANK_WORDS]; /* rank r: bit r%32 of words[r/32] */
} epw_rank_set;

static_assert(sizeof(epw_rank_set) <= sizeof(epw_mask), "a set of ranks is the beginning of a mask");

EPW_INLINE bool epw_ranks_have(const epw_rank_set *set, uint32_t rank) { return set->words[rank / 32] >> (rank % 32) & 1; }

#ifndef __CUDACC__
/* Converts a mask whose ranks are all below EPW_GPU_PEERS. */
static inline epw_rank_set epw_ranks_of(const epw_mask *mask) {
    epw_rank_set set;
    memcpy(&set, mask, sizeof set);
    return set;
}

static inline epw_mask epw_ranks_mask(const epw_rank_set *set) {
    epw_mask mask = {{0}};
    memcpy(&mask, set, sizeof *set);
    return mask;
}

/* Adds to a mask the ranks of a set that kernels change. Acquires what was released with each rank's bit. */
static inline void epw_ranks_join(epw_mask *mask, const epw_rank_set *set) {
    epw_rank_set seen;
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) seen.words[i] = __atomic_load_n(&set->words[i], __ATOMIC_ACQUIRE);
    epw_mask more = epw_ranks_mask(&seen);
    for (uint32_t i = 0; i < EPW_MAX_RANKS / 64; i++) mask->bits[i] |= more.bits[i];
}

/* Inserts a rank into a set that kernels read: a release. */
static inline void epw_ranks_insert(epw_rank_set *set, uint32_t rank) {
    __atomic_fetch_or(&set->words[rank / 32], UINT32_C(1) << (rank % 32), __ATOMIC_RELEASE);
}
static inline void epw_ranks_remove(epw_rank_set *set, uint32_t rank) {
    __atomic_fetch_and(&set->words[rank / 32], ~(UINT32_C(1) << (rank % 32)), __ATOMIC_RELEASE);
}
static inline void epw_ranks_clear(epw_rank_set *set) {
    for (uint32_t i = 0; i < EPW_RANK_WORDS; i++) __atomic_store_n(&set->words[i], 0, __ATOMIC_RELEASE);
}
#endif

#endif
