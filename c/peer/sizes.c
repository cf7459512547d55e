/* See sizes.h. */
#include "peer/sizes.h"

#include "base/bits.h"
#include "nic/fabric.h"
#include "nic/mlx5.h"
#include "peer/words.h"

uint32_t epw_queue_depth(uint32_t entries, uint32_t asked) {
    uint64_t needed = (uint64_t)entries + EPW_REMOTE_WORDS;
    uint32_t depth = EPW_QUEUE_DEPTH_MIN;
    while (depth < needed && depth < EPW_QUEUE_DEPTH_MAX) depth *= 2;
    return depth > asked ? depth : asked;
}

uint64_t epw_rings_bytes(const epw_remote_shape *shape) {
    return (uint64_t)(shape->ranks - 1) * shape->lanes * epw_mlx5_pair_memory_bytes(shape->depth);
}

uint64_t epw_images_bytes(const epw_remote_shape *shape) {
    uint64_t of_one = 0; /* what this rank may write at one peer: as much as rank 0 may */
    for (uint32_t lane = 0; lane < shape->lanes; lane++) {
        for (uint32_t area = 0; area < EPW_AREAS; area++)
            of_one += epw_align(shape->footprint(shape->user, 0, lane, area).bytes, EPW_IMAGE_ALIGN);
    }
    return shape->ranks * of_one;
}

/* Up to the last byte that a peer may write. The user of the floor may lay out anything after that. */
uint64_t epw_inbox_bytes(const epw_remote_shape *shape) {
    uint64_t end = epw_floor_bytes(shape->ranks);
    for (uint32_t lane = 0; lane < shape->lanes; lane++) {
        for (uint32_t area = 0; area < EPW_AREAS; area++) {
            epw_stretch last = shape->footprint(shape->user, shape->ranks - 1, lane, area);
            if (last.offset + last.bytes > end) end = last.offset + last.bytes;
        }
    }
    return epw_align(end, EPW_INBOX_CHUNK_BYTES);
}

uint64_t epw_planned_inbox_bytes(const epw_remote_shape *shape, int32_t device, const epw_fabric *fabric) {
    bool has_none = device == EPW_DEVICE_HOST || epw_fabric_rings(fabric) == EPW_RINGS_GPU;
    return has_none ? 0 : epw_inbox_bytes(shape);
}
