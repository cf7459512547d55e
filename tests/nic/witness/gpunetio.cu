// DOCA GPUNetIO, with which newer NVSHMEM and NCCL post from kernels: the device code of its one-sided
// operations, in the package nvidia-nvshmem-cu13.
#include <assert.h>
#include <errno.h>

#include <gpunetio/doca_gpunetio_device.h>

#include "peer.cuh"

namespace {

struct Gpunetio {
    using Pair = doca_gpu_dev_verbs_qp;

    static __device__ uint64_t post(Pair *pair, const gpu_operation &o) {
        const doca_gpu_dev_verbs_addr remote = {o.remote, big_endian(o.remote_key)},
                                      local = {o.local, big_endian(o.local_key)};
        uint64_t index = 0;
        switch (o.kind) {
        case GPU_NOP:
            doca_gpu_dev_verbs_put(pair, remote, local, 0, &index);
            break; // what they make of no bytes
        case GPU_WRITE:
            doca_gpu_dev_verbs_put(pair, remote, local, o.bytes, &index);
            break;
        case GPU_WRITE_TWO:
            write_two(pair, remote, local, o, &index);
            break;
        case GPU_WRITE_WORD:
            doca_gpu_dev_verbs_p(pair, remote, o.value, &index);
            break;
        case GPU_READ:
            doca_gpu_dev_verbs_get(pair, remote, local, o.bytes, {}, &index);
            break;
        case GPU_FETCH_ADD:
            doca_gpu_dev_verbs_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD>(pair, remote, local, o.value,
                                                                         &index);
            break;
        }
        return index + 1;
    }

    // No operation of theirs posts this entry: the steps are those of the others.
    static __device__ void write_two(Pair *pair, doca_gpu_dev_verbs_addr remote,
                                     doca_gpu_dev_verbs_addr local, const gpu_operation &o, uint64_t *index) {
        *index = doca_gpu_dev_verbs_reserve_wq_slots(pair, 1);
        doca_gpu_dev_verbs_wqe_prepare_write(
            pair, doca_gpu_dev_verbs_get_wqe_ptr(pair, *index), *index,
            DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE, DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE, 0, remote.addr,
            remote.key, local.addr, local.key, o.bytes - o.second_bytes, o.second, local.key, o.second_bytes);
        doca_gpu_dev_verbs_mark_wqes_ready(pair, *index, *index);
        doca_gpu_dev_verbs_submit(pair, *index + 1);
    }

    // Their look at a collapsed queue takes the number of entries that are to be done, though they call it an
    // index.
    static __device__ gpu_completion poll(Pair *pair, uint64_t count) {
        const uint64_t until = doca_gpu_dev_verbs_query_globaltimer() + 4000000000;
        int status;
        do status = doca_gpu_dev_verbs_poll_one_cq_at(pair, count);
        while (status == EBUSY && doca_gpu_dev_verbs_query_globaltimer() < until);
        return {status, 0};
    }
};

int open(const gpu_ring *ring, void **out) {
    const uint32_t number = ring->pair << 8;
    Gpunetio::Pair pair = {};
    pair.sq_num = ring->pair;
    pair.sq_num_shift8 = number;
    pair.sq_num_shift8_be = big_endian(number);
    pair.sq_num_shift8_be_1ds = big_endian(number | 1);
    pair.sq_num_shift8_be_2ds = big_endian(number | 2);
    pair.sq_num_shift8_be_3ds = big_endian(number | 3);
    pair.sq_num_shift8_be_4ds = big_endian(number | 4);
    pair.sq_num_shift8_be_5ds = big_endian(number | 5);
    pair.sq_wqe_num = uint16_t(ring->depth);
    pair.sq_wqe_mask = uint16_t(ring->depth - 1);
    pair.sq_wqe_daddr = static_cast<uint8_t *>(ring->entries);
    pair.sq_dbrec = static_cast<__be32 *>(ring->record) + 1; // the send queue's
    pair.sq_db = static_cast<uint64_t *>(ring->doorbell);
    pair.cq_sq.cqe_daddr = static_cast<uint8_t *>(ring->completion);
    pair.cq_sq.cqe_num = ring->depth;
    pair.cq_sq.cqe_mask = ring->depth - 1;
    pair.cq_sq.cqe_size = 64;
    pair.cq_sq.cq_type = DOCA_GPUNETIO_VERBS_CQ_64B_COLLAPSED;
    pair.nic_handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
    const cudaError_t error = cudaMalloc(out, sizeof pair);
    return error != cudaSuccess ? error : cudaMemcpy(*out, &pair, sizeof pair, cudaMemcpyHostToDevice);
}

} // namespace

extern "C" const gpu_peer gpunetio_peer = {
    "gpunetio",
    1 << GPU_NOP | 1 << GPU_WRITE | 1 << GPU_WRITE_TWO | 1 << GPU_WRITE_WORD | 1 << GPU_READ |
        1 << GPU_FETCH_ADD,
    open,
    post<Gpunetio>,
    poll<Gpunetio>,
    rounds<Gpunetio>,
};
