/* What a connected object has allocated for peers behind software NICs, to compare with its plan. */
#ifndef EPW_TESTS_ALLOCATED_H
#define EPW_TESTS_ALLOCATED_H

#include "check.h"

#include "peer/image.h"
#include "peer/remote_part.h"

#include <malloc.h>

/* Up to the end of what is written for the last rank. */
static inline uint64_t images_of(const epw_peers *peers) {
    epw_stretch last;
    uint64_t at = epw_image_offset(peers, peers->ranks - 1, peers->lanes - 1, EPW_AREAS - 1, &last);
    return epw_align(at + last.bytes, EPW_IMAGE_ALIGN);
}

/* `planned` for its queues, of which it has one for each lane and peer, is what they take. */
static inline void check_queues_of(const epw_peers *peers, uint64_t planned) {
    uint64_t bytes = 0, count = 0;
    for (uint32_t peer = 0; peer < peers->ranks; peer++) {
        for (uint32_t lane = 0; peers->remotes[peer] != NULL && lane < peers->lanes; lane++, count++)
            bytes += malloc_usable_size(peers->remotes[peer]->ways[lane].queue.entries);
    }
    CHECK(count == (uint64_t)peers->lanes * (peers->ranks - 1));
    /* Adapters have pages beside the entries, software NICs a few cache lines. */
    CHECK_MSG(bytes <= planned && bytes + UINT64_C(12288) * count > planned, "%llu of %llu",
              (unsigned long long)bytes, (unsigned long long)planned);
}

#endif
