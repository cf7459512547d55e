/* See image.h. */
#include "peer/image.h"

#include "nic/end.h"
#include "peer/remote_gpu.h"

#include <sys/mman.h>

enum { HUGE_FROM_BYTES = 8 << 20 };

uint64_t epw_image_offset(const epw_peers *peers, uint32_t peer, uint32_t lane, uint32_t area,
                          epw_stretch *stretch) {
    uint64_t at = 0, here = 0;
    for (uint32_t l = 0; l < peers->lanes; l++) {
        for (uint32_t a = 0; a < EPW_AREAS; a++) {
            epw_stretch s = peers->user->footprint(peers->user_context, peers->rank, l, a);
            if (l == lane && a == area) {
                here = at;
                *stretch = s;
            }
            at += epw_align(s.bytes, EPW_IMAGE_ALIGN);
        }
    }
    return peer * at + here;
}

static uint64_t bytes_of(const epw_peers *peers) {
    epw_remote_shape shape = epw_peers_shape(peers);
    return epw_images_bytes(&shape);
}

/* One allocation for all peers. On the host pages are allocated when they are written. */
static epw_status allocate(epw_peers *peers, uint64_t bytes, epw_where where, unsigned char **out) {
    if (peers->gpu != NULL) return epw_remote_gpu_image(peers, bytes, where, out);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for %llu bytes of images of peers behind queues",
                        (unsigned long long)bytes);
    /* An adapter continues to read these pages, so a forked child must not share them. */
    madvise(at, bytes, MADV_DONTFORK);
    /* A hint to the kernel, given if a peer's part is large enough to fill huge pages. */
    if (bytes / peers->ranks >= HUGE_FROM_BYTES) madvise(at, bytes, MADV_HUGEPAGE);
    *out = at;
    return EPW_OK;
}

static void give_back(epw_peers *peers, unsigned char *image, uint64_t bytes) {
    if (peers->gpu != NULL) {
        epw_remote_gpu_free_image(peers, image);
    } else {
        munmap(image, bytes);
    }
}

/* In the memory of the GPU, whose kernels write it and from which an adapter reads. */
static epw_status open_far(epw_peers *peers, uint64_t bytes, epw_where where) {
    epw_mlx5_far far;
    epw_region region = {.rights = EPW_REGION_READ, .count = 1, .stretches = {{0, bytes}}};
    epw_status status = epw_remote_gpu_far_image(peers, bytes, where, &far);
    if (status != EPW_OK) return status;
    status = epw_end_register_far(peers->fabric, &far, &region, where, peers->image_keys);
    if (status != EPW_OK) {
        epw_remote_gpu_free_image(peers, far.address);
        return status;
    }
    peers->image = far.address;
    return EPW_OK;
}

bool epw_image_wants_far(const epw_peers *peers) {
    return peers->gpu != NULL && epw_fabric_adapter(peers->fabric, 0) != NULL &&
           epw_fabric_rings(peers->fabric) != EPW_RINGS_HOST;
}

epw_status epw_image_open(epw_peers *peers, epw_where where) {
    if (peers->image != NULL) return EPW_OK;
    uint64_t bytes = bytes_of(peers);
    unsigned char *at;
    if (epw_image_wants_far(peers)) {
        epw_status far = open_far(peers, bytes, where);
        if (far != EPW_ERR_NO_PATH || epw_fabric_rings(peers->fabric) == EPW_RINGS_GPU) return far;
        epw_fabric_fall_back(peers->fabric, EPW_FALLBACK_ROWS);
    }
    epw_status status = allocate(peers, bytes, where, &at);
    if (status != EPW_OK) return status;
    epw_region region = {.base = at, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, bytes}}};
    status = epw_end_register_all(peers->fabric, &region, where, peers->image_keys);
    if (status != EPW_OK) {
        give_back(peers, at, bytes);
        return status;
    }
    peers->image = at;
    return EPW_OK;
}

void epw_image_close(epw_peers *peers) {
    if (peers->image == NULL) return;
    epw_end_deregister_all(peers->fabric, peers->image_keys);
    give_back(peers, peers->image, bytes_of(peers));
    peers->image = NULL;
}
