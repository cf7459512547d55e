/* The interface of libibverbs as the verbs wire declares it, compared with the library's own header; and
 * every function in its version, where the library is installed. */
#include "check.h"

#if __has_include(<infiniband/verbs.h>)
#include "nic/mlx5.h"
#include "nic/mlx5/library.h"
#include "nic/verbs/abi.h"
#include "nic/verbs/calls.h"

#include <infiniband/verbs.h>

#define SAME(ours, field, theirs, other)                                                                     \
    CHECK(offsetof(ours, field) == offsetof(theirs, other) &&                                                \
          sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->other))
#define EQUAL(ours, theirs)                                                                                  \
    CHECK_MSG((long)(ours) == (long)(theirs), "%ld, not %ld", (long)(ours), (long)(theirs))

static void objects_are_those_of_the_header(void) {
    SAME(epw_abi_device, node, struct ibv_device, node_type);
    SAME(epw_abi_device, transport, struct ibv_device, transport_type);
    EQUAL(EPW_ABI_TRANSPORT_IB, IBV_TRANSPORT_IB);
    SAME(epw_abi_channel, context, struct ibv_comp_channel, context);
    SAME(epw_abi_channel, fd, struct ibv_comp_channel, fd);
    EQUAL(sizeof(epw_abi_channel), sizeof(struct ibv_comp_channel));
    SAME(epw_abi_cq, context, struct ibv_cq, context);
    SAME(epw_abi_cq, channel, struct ibv_cq, channel);
    SAME(epw_abi_cq, name, struct ibv_cq, cq_context);
    SAME(epw_abi_qp, context, struct ibv_qp, context);
    SAME(epw_abi_qp, name, struct ibv_qp, qp_context);
    SAME(epw_abi_qp, pd, struct ibv_qp, pd);
    SAME(epw_abi_qp, send_cq, struct ibv_qp, send_cq);
    SAME(epw_abi_qp, receive_cq, struct ibv_qp, recv_cq);
    SAME(epw_abi_qp, srq, struct ibv_qp, srq);
    SAME(epw_abi_qp, handle, struct ibv_qp, handle);
    SAME(epw_abi_qp, number, struct ibv_qp, qp_num);
    SAME(epw_abi_functions, device, struct ibv_context, device);
    SAME(epw_abi_functions, poll, struct ibv_context, ops.poll_cq);
    SAME(epw_abi_functions, notify, struct ibv_context, ops.req_notify_cq);
    SAME(epw_abi_functions, post, struct ibv_context, ops.post_send);
}

static void attributes_are_those_of_the_header(void) {
    SAME(epw_abi_limits, sends, struct ibv_qp_cap, max_send_wr);
    SAME(epw_abi_limits, receives, struct ibv_qp_cap, max_recv_wr);
    SAME(epw_abi_limits, send_pieces, struct ibv_qp_cap, max_send_sge);
    SAME(epw_abi_limits, receive_pieces, struct ibv_qp_cap, max_recv_sge);
    SAME(epw_abi_limits, inline_bytes, struct ibv_qp_cap, max_inline_data);
    EQUAL(sizeof(epw_abi_limits), sizeof(struct ibv_qp_cap));
    SAME(epw_abi_qp_init, name, struct ibv_qp_init_attr, qp_context);
    SAME(epw_abi_qp_init, send_cq, struct ibv_qp_init_attr, send_cq);
    SAME(epw_abi_qp_init, receive_cq, struct ibv_qp_init_attr, recv_cq);
    SAME(epw_abi_qp_init, srq, struct ibv_qp_init_attr, srq);
    SAME(epw_abi_qp_init, limits, struct ibv_qp_init_attr, cap);
    SAME(epw_abi_qp_init, type, struct ibv_qp_init_attr, qp_type);
    SAME(epw_abi_qp_init, signals_all, struct ibv_qp_init_attr, sq_sig_all);
    EQUAL(sizeof(epw_abi_qp_init), sizeof(struct ibv_qp_init_attr));
    SAME(epw_abi_qp_attr, state, struct ibv_qp_attr, qp_state);
    SAME(epw_abi_qp_attr, current_state, struct ibv_qp_attr, cur_qp_state);
    SAME(epw_abi_qp_attr, mtu, struct ibv_qp_attr, path_mtu);
    SAME(epw_abi_qp_attr, migration, struct ibv_qp_attr, path_mig_state);
    SAME(epw_abi_qp_attr, qkey, struct ibv_qp_attr, qkey);
    SAME(epw_abi_qp_attr, receive_psn, struct ibv_qp_attr, rq_psn);
    SAME(epw_abi_qp_attr, send_psn, struct ibv_qp_attr, sq_psn);
    SAME(epw_abi_qp_attr, remote, struct ibv_qp_attr, dest_qp_num);
    SAME(epw_abi_qp_attr, access, struct ibv_qp_attr, qp_access_flags);
    SAME(epw_abi_qp_attr, limits, struct ibv_qp_attr, cap);
    SAME(epw_abi_qp_attr, to, struct ibv_qp_attr, ah_attr);
    SAME(epw_abi_qp_attr, otherwise, struct ibv_qp_attr, alt_ah_attr);
    SAME(epw_abi_qp_attr, pkey_index, struct ibv_qp_attr, pkey_index);
    SAME(epw_abi_qp_attr, other_pkey_index, struct ibv_qp_attr, alt_pkey_index);
    SAME(epw_abi_qp_attr, drains_notified, struct ibv_qp_attr, en_sqd_async_notify);
    SAME(epw_abi_qp_attr, draining, struct ibv_qp_attr, sq_draining);
    SAME(epw_abi_qp_attr, reads, struct ibv_qp_attr, max_rd_atomic);
    SAME(epw_abi_qp_attr, reads_of_peer, struct ibv_qp_attr, max_dest_rd_atomic);
    SAME(epw_abi_qp_attr, receiver_timer, struct ibv_qp_attr, min_rnr_timer);
    SAME(epw_abi_qp_attr, port, struct ibv_qp_attr, port_num);
    SAME(epw_abi_qp_attr, timeout, struct ibv_qp_attr, timeout);
    SAME(epw_abi_qp_attr, retries, struct ibv_qp_attr, retry_cnt);
    SAME(epw_abi_qp_attr, receiver_retries, struct ibv_qp_attr, rnr_retry);
    SAME(epw_abi_qp_attr, other_port, struct ibv_qp_attr, alt_port_num);
    SAME(epw_abi_qp_attr, other_timeout, struct ibv_qp_attr, alt_timeout);
    SAME(epw_abi_qp_attr, rate_limit, struct ibv_qp_attr, rate_limit);
    EQUAL(sizeof(epw_abi_qp_attr), sizeof(struct ibv_qp_attr));
    SAME(epw_abi_ah_attr, traffic_class, struct ibv_ah_attr, grh.traffic_class);
    SAME(epw_abi_ah_attr, flow_label, struct ibv_ah_attr, grh.flow_label);
    SAME(epw_abi_ah_attr, dlid, struct ibv_ah_attr, dlid);
    SAME(epw_abi_ah_attr, sl, struct ibv_ah_attr, sl);
}

static void entries_are_those_of_the_header(void) {
    SAME(epw_abi_piece, address, struct ibv_sge, addr);
    SAME(epw_abi_piece, bytes, struct ibv_sge, length);
    SAME(epw_abi_piece, key, struct ibv_sge, lkey);
    EQUAL(sizeof(epw_abi_piece), sizeof(struct ibv_sge));
    SAME(epw_abi_send, name, struct ibv_send_wr, wr_id);
    SAME(epw_abi_send, next, struct ibv_send_wr, next);
    SAME(epw_abi_send, pieces, struct ibv_send_wr, sg_list);
    SAME(epw_abi_send, count, struct ibv_send_wr, num_sge);
    SAME(epw_abi_send, opcode, struct ibv_send_wr, opcode);
    SAME(epw_abi_send, flags, struct ibv_send_wr, send_flags);
    SAME(epw_abi_send, immediate, struct ibv_send_wr, imm_data);
    SAME(epw_abi_send, remote.rdma.address, struct ibv_send_wr, wr.rdma.remote_addr);
    SAME(epw_abi_send, remote.rdma.key, struct ibv_send_wr, wr.rdma.rkey);
    SAME(epw_abi_send, remote.atomic.address, struct ibv_send_wr, wr.atomic.remote_addr);
    SAME(epw_abi_send, remote.atomic.add, struct ibv_send_wr, wr.atomic.compare_add);
    SAME(epw_abi_send, remote.atomic.swap, struct ibv_send_wr, wr.atomic.swap);
    SAME(epw_abi_send, remote.atomic.key, struct ibv_send_wr, wr.atomic.rkey);
    EQUAL(sizeof(epw_abi_send), sizeof(struct ibv_send_wr));
    SAME(epw_abi_completion, name, struct ibv_wc, wr_id);
    SAME(epw_abi_completion, status, struct ibv_wc, status);
    SAME(epw_abi_completion, opcode, struct ibv_wc, opcode);
    SAME(epw_abi_completion, vendor, struct ibv_wc, vendor_err);
    SAME(epw_abi_completion, bytes, struct ibv_wc, byte_len);
    SAME(epw_abi_completion, number, struct ibv_wc, qp_num);
    EQUAL(sizeof(epw_abi_completion), sizeof(struct ibv_wc));
}

static void numbers_are_those_of_the_header(void) {
    EQUAL(EPW_ABI_RC, IBV_QPT_RC);
    EQUAL(EPW_ABI_STATE_RESET, IBV_QPS_RESET);
    EQUAL(EPW_ABI_STATE_INIT, IBV_QPS_INIT);
    EQUAL(EPW_ABI_STATE_RTR, IBV_QPS_RTR);
    EQUAL(EPW_ABI_STATE_RTS, IBV_QPS_RTS);
    EQUAL(EPW_ABI_STATE_ERR, IBV_QPS_ERR);
    EQUAL(EPW_ABI_SETS_STATE, IBV_QP_STATE);
    EQUAL(EPW_ABI_SETS_ACCESS, IBV_QP_ACCESS_FLAGS);
    EQUAL(EPW_ABI_SETS_PKEY, IBV_QP_PKEY_INDEX);
    EQUAL(EPW_ABI_SETS_PORT, IBV_QP_PORT);
    EQUAL(EPW_ABI_SETS_PATH, IBV_QP_AV);
    EQUAL(EPW_ABI_SETS_MTU, IBV_QP_PATH_MTU);
    EQUAL(EPW_ABI_SETS_TIMEOUT, IBV_QP_TIMEOUT);
    EQUAL(EPW_ABI_SETS_RETRIES, IBV_QP_RETRY_CNT);
    EQUAL(EPW_ABI_SETS_RECEIVER_RETRIES, IBV_QP_RNR_RETRY);
    EQUAL(EPW_ABI_SETS_RECEIVE_PSN, IBV_QP_RQ_PSN);
    EQUAL(EPW_ABI_SETS_READS, IBV_QP_MAX_QP_RD_ATOMIC);
    EQUAL(EPW_ABI_SETS_RECEIVER_TIMER, IBV_QP_MIN_RNR_TIMER);
    EQUAL(EPW_ABI_SETS_SEND_PSN, IBV_QP_SQ_PSN);
    EQUAL(EPW_ABI_SETS_READS_OF_PEER, IBV_QP_MAX_DEST_RD_ATOMIC);
    EQUAL(EPW_ABI_SETS_REMOTE, IBV_QP_DEST_QPN);
    EQUAL(EPW_ABI_SEND_WRITE, IBV_WR_RDMA_WRITE);
    EQUAL(EPW_ABI_SEND_READ, IBV_WR_RDMA_READ);
    EQUAL(EPW_ABI_SEND_FETCH_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD);
    EQUAL(EPW_ABI_SIGNALLED, IBV_SEND_SIGNALED);
    EQUAL(EPW_ABI_INLINE, IBV_SEND_INLINE);
    EQUAL(EPW_ABI_QP_FATAL, IBV_EVENT_QP_FATAL);
    EQUAL(EPW_ABI_QP_REQUEST_ERR, IBV_EVENT_QP_REQ_ERR);
    EQUAL(EPW_ABI_QP_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void every_function_is_in_the_library(void) {
    const epw_mlx5_calls *calls = NULL;
    if (epw_verbs_library((epw_where){"test", 0, -1}, &calls) != EPW_OK) {
        printf("NOT CHECKED: functions of libibverbs: %s\n", epw_last_error());
        return;
    }
    static const char *const names[] = {"ibv_create_comp_channel", "ibv_destroy_comp_channel"};
    for (int i = 0; i < 2; i++) CHECK(epw_verbs_function(names[i], "IBVERBS_1.0") != NULL);
    static const char *const later[] = {"ibv_get_cq_event", "ibv_ack_cq_events", "ibv_create_cq",
                                        "ibv_destroy_cq",   "ibv_create_qp",     "ibv_modify_qp",
                                        "ibv_destroy_qp"};
    for (int i = 0; i < 7; i++) CHECK(epw_verbs_function(later[i], "IBVERBS_1.1") != NULL);
    CHECK(epw_verbs_function("ibv_create_qp", "IBVERBS_9.9") == NULL);
}

int main(void) {
    objects_are_those_of_the_header();
    attributes_are_those_of_the_header();
    entries_are_those_of_the_header();
    numbers_are_those_of_the_header();
    every_function_is_in_the_library();
    return check_result("verbs_library");
}
#else
int main(void) {
    printf("NOT CHECKED: the interface of libibverbs, because there is no infiniband/verbs.h "
           "(libibverbs-dev)\n");
    return 77;
}
#endif
