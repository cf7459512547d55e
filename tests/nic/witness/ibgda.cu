// NVSHMEM's own device code for adapters (IBGDA), in the package nvidia-nvshmem-cu13: the functions with
// which its operations build entries, ring and poll, on a reliable connected queue pair.
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#define NVSHMEM_TIMEOUT_DEVICE_POLLING // after 4 s
#include <device/nvshmem_device_macros.h>

#include <non_abi/device/pt-to-pt/ibgda_device.cuh>

#include "peer.cuh"

namespace {

// A queue pair, what it points to, and the bounds of its completions.
struct Ibgda {
    struct Pair {
        nvshmemi_ibgda_device_qp_t qp;
        nvshmemi_ibgda_device_cq_t cq;
    };

#ifdef __CUDA_ARCH__ // their functions exist only for the GPU
    static __device__ uint64_t post(Pair *pair, const gpu_operation &o) {
        nvshmemi_ibgda_device_qp_t *qp = &pair->qp;
        const __be32 remote = big_endian(o.remote_key), local = big_endian(o.local_key);
        const uint64_t index = ibgda_reserve_wqe_slots(qp, 1, true);
        void *entry = ibgda_get_wqe_ptr(qp, index);
        const uint8_t flags = MLX5_WQE_CTRL_CQ_UPDATE;
        switch (o.kind) {
        case GPU_WRITE:
            ibgda_write_rdma_write_wqe<false>(qp, 0, o.local, local, o.remote, remote, o.bytes, index, flags,
                                              &entry);
            break;
        case GPU_WRITE_WORD:
            ibgda_write_rdma_write_inl_wqe<false>(qp, 0, &o.value, o.remote, remote, sizeof o.value, index,
                                                  flags, &entry);
            break;
        case GPU_READ:
            ibgda_write_rdma_read_wqe<false>(qp, 0, o.local, local, o.remote, remote, o.bytes, index, flags,
                                             &entry);
            break;
        default:
            ibgda_write_atomic_wqe<false>(qp, 0, &o.value, nullptr, o.local, local, o.remote, remote,
                                          sizeof o.value, index, NVSHMEMI_AMO_FETCH_ADD, flags, &entry);
        }
        ibgda_submit_requests<true>(qp, index, 1);
        return index + 1;
    }

    static __device__ gpu_completion poll(Pair *pair, uint64_t count) {
        int error = 0;
        const int status = ibgda_poll_cq(&pair->cq, count, &error);
        return {status, uint32_t(error)};
    }
#else
    static __device__ uint64_t post(Pair *, const gpu_operation &);
    static __device__ gpu_completion poll(Pair *, uint64_t);
#endif
};

int open(const gpu_ring *ring, void **out) {
    void *place;
    cudaError_t error = cudaMalloc(&place, sizeof(Ibgda::Pair));
    if (error != cudaSuccess) return error;
    auto *there = static_cast<Ibgda::Pair *>(place);
    Ibgda::Pair pair = {};
    pair.qp.qp_type = NVSHMEMI_IBGDA_DEVICE_QP_TYPE_RC;
    pair.qp.qpn = ring->pair;
    pair.qp.tx_wq.nwqes = uint16_t(ring->depth);
    pair.qp.tx_wq.wqe = ring->entries;
    pair.qp.tx_wq.dbrec = static_cast<__be32 *>(ring->record) + 1; // the send queue's
    pair.qp.tx_wq.bf = ring->doorbell;
    pair.qp.tx_wq.cq = &there->cq;
    pair.qp.tx_wq.prod_idx = &there->qp.mvars.tx_wq.prod_idx;
    pair.cq.qp_type = NVSHMEMI_IBGDA_DEVICE_QP_TYPE_RC;
    pair.cq.cqe = ring->completion;
    pair.cq.prod_idx = &there->qp.mvars.tx_wq.prod_idx;
    pair.cq.cons_idx = &there->qp.mvars.tx_wq.cons_idx;
    pair.cq.resv_head = &there->qp.mvars.tx_wq.resv_head;
    pair.cq.ready_head = &there->qp.mvars.tx_wq.ready_head;
    pair.cq.ncqes = ring->depth;
    pair.cq.qpn = ring->pair;
    nvshmemi_ibgda_device_state_t state = {};
    state.num_requests_in_batch = 1;
    state.num_rc_per_pe = 1;
    error = cudaMemcpyToSymbol(nvshmemi_ibgda_device_state_d, &state, sizeof state);
    *out = place;
    return error != cudaSuccess ? error : cudaMemcpy(place, &pair, sizeof pair, cudaMemcpyHostToDevice);
}

} // namespace

extern "C" const gpu_peer ibgda_peer = {
    "ibgda",     1 << GPU_WRITE | 1 << GPU_WRITE_WORD | 1 << GPU_READ | 1 << GPU_FETCH_ADD,
    open,        post<Ibgda>,
    poll<Ibgda>, rounds<Ibgda>,
};
