/* See direct.h. */
#include "peer/direct.h"

#include "nic/end.h"

bool epw_direct_is_wanted(const epw_peers *peers) {
    return epw_fabric_is_of_adapters(peers->fabric) && epw_fabric_rings(peers->fabric) != EPW_RINGS_HOST;
}

#ifdef EPW_CUDA
#include "device/cuda_rdma.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Not shared with a forked child, as an inbox. */
static epw_status make_lines(epw_peers *peers, epw_where where) {
    uint64_t bytes = epw_align(epw_floor_bytes(peers->ranks), EPW_LINES_OFFSET);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, bytes, MADV_DONTFORK) != 0) {
        epw_status status =
            epw_fail_errno(errno, where, "%llu bytes for words of peers", (unsigned long long)bytes);
        if (at != MAP_FAILED) munmap(at, bytes);
        return status;
    }
    peers->lines = at;
    peers->direct->lines_bytes = bytes;
    return EPW_OK;
}

/* Every peer's part is registered later, by itself. */
static epw_status try_window(epw_peers *peers, uint64_t bytes, epw_where where) {
    epw_region whole = {.rights = EPW_REGION_WRITE, .count = 1, .stretches = {{0, bytes}}};
    epw_keys keys[EPW_ADAPTERS_MAX];
    epw_status status = epw_end_register_far(peers->fabric, &peers->direct->window, &whole, where, keys);
    if (status == EPW_OK) epw_end_deregister_all(peers->fabric, keys);
    return status;
}

epw_status epw_direct_open(epw_peers *peers, int32_t device, epw_where where) {
    epw_remote_shape shape = epw_peers_shape(peers);
    uint64_t bytes = epw_inbox_bytes(&shape); /* as much as an inbox would have; a window has no less */
    epw_rdma_memory window;
    struct epw_direct *direct = calloc(1, sizeof *direct);
    if (direct == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a window's description");
    epw_status status = epw_cuda_rdma_open(device, epw_peers_own(peers), bytes, where, &window);
    if (status != EPW_OK) {
        free(direct);
        return status;
    }
    direct->window = (epw_mlx5_far){
        .address = window.address, .dmabuf = window.dmabuf, .unordered = !epw_cuda_rdma_is_ordered(device)};
    peers->direct = direct;
    status = try_window(peers, bytes, where);
    if (status == EPW_OK) status = make_lines(peers, where);
    if (status != EPW_OK) epw_direct_close(peers);
    return status;
}

void epw_direct_close(epw_peers *peers) {
    if (peers->direct == NULL) return;
    epw_cuda_rdma_close(&(epw_rdma_memory){.dmabuf = peers->direct->window.dmabuf});
    if (peers->direct->lines_bytes > 0) munmap(peers->lines, peers->direct->lines_bytes);
    free(peers->direct);
    peers->direct = NULL;
    peers->lines = NULL;
}

#endif
