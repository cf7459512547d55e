/* rdma-core as a witness: the commands that its dr_devx.c builds are recorded; the entries that its qp.c
 * posts go to a ring that our software NIC drains; and its cq.c polls the completions. */
#include "mlx5.h"
#include "mlx5dv_dr.h"
#include "wqe.h"

#include "entries.h"

#include "nic/mlx5/commands.h"
#include "nic/queue.h"
#include "nic/soft.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

static const char who[] = "rdma-core";

/* ---- what its files call ---- */

static unsigned char recorded[512];
static struct mlx5dv_devx_obj object;

static void record(const void *in, size_t bytes) {
    memset(recorded, 0, sizeof recorded);
    memcpy(recorded, in, bytes);
}

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen,
                                               void *out, size_t outlen) {
    (void)context, (void)out, (void)outlen;
    record(in, inlen);
    return &object;
}

int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out,
                           size_t outlen) {
    (void)obj, (void)out, (void)outlen;
    record(in, inlen);
    return 0;
}

/* Failing the first query ends the inquiry. */
int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t inlen, void *out,
                            size_t outlen) {
    (void)context, (void)out, (void)outlen;
    record(in, inlen);
    return EINVAL;
}

int mlx5_get_cmd_status_err(int err, void *out) {
    (void)out;
    return err;
}

struct mlx5_mkey *mlx5_find_mkey(struct mlx5_context *ctx, uint32_t mkeyn) {
    (void)ctx, (void)mkeyn;
    return NULL;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
    (void)qp;
    return NULL;
}

int mlx5_freeze_on_error_cqe;

/* ---- commands ---- */

static void commands(void) {
    epw_mlx5_in ours;
    const uint32_t number = 0x812345;
    object.object_id = number;

    unsigned char query[EPW_MLX5_SHORT_BYTES];
    struct dr_devx_caps caps = {0};
    dr_devx_query_device(NULL, &caps);
    epw_mlx5_build_query_cap(query, EPW_MLX5_CAP_GENERAL);
    compare_command(who, "QUERY_HCA_CAP", "query_hca_cap_in", NULL, recorded, query, sizeof query);

    dr_devx_create_qp(NULL, &(struct dr_devx_qp_create_attr){.page_id = 0x812345,
                                                             .pdn = 0x854321,
                                                             .cqn = 0x89abcd,
                                                             .pm_state = MLX5_QPC_PM_STATE_MIGRATED,
                                                             .service_type = MLX5_QPC_ST_RC,
                                                             .buff_umem_id = 0x81234567,
                                                             .db_umem_id = 0x89abcdef,
                                                             .qp_ts_format = 1,
                                                             .sq_wqe_cnt = 512,
                                                             .rq_wqe_cnt = 1,
                                                             .rq_wqe_shift = 4});
    epw_mlx5_build_create_qp(ours, &(epw_mlx5_qp){.umem = 0x81234567,
                                                  .record_umem = 0x89abcdef,
                                                  .uar = 0x812345,
                                                  .pd = 0x854321,
                                                  .cq = 0x89abcd,
                                                  .log_entries = 9,
                                                  .default_time = true});
    compare_command(who, "CREATE_QP", "create_qp_in", "qpc", recorded, ours, sizeof ours);

    const epw_mlx5_path path = {.ethernet = true,
                                .port = 0x81,
                                .remote = 0x876543,
                                .mtu = IBV_MTU_4096,
                                .gid = {0x81, [7] = 0x17, [8] = 0x18, [15] = 0x91},
                                .mac = {0x82, 1, 2, 3, 4, 0x93},
                                .gid_index = 0x83,
                                .udp_port = 49999, /* always 49999 there */
                                .hop_limit = 255,
                                .traffic_class = 106,
                                .service_level = 3,
                                .atomics = true,
                                .in_order = true,
                                .log_reads = 4,
                                .timeout = 8, /* always 8 there */
                                .retries = 7};
    dr_devx_modify_qp_rst2init(NULL, &object, 0x81);
    epw_mlx5_build_rst2init(ours, number, &path);
    compare_command(who, "RST2INIT", "rst2init_qp_in", "qpc", recorded, ours, sizeof ours);

    struct dr_devx_qp_rtr_attr rtr = {
        .mtu = IBV_MTU_4096, .qp_num = 0x876543, .port_num = 0x81, .sgid_index = 0x83};
    rtr.dgid_attr.roce_ver = MLX5_ROCE_VERSION_2;
    memcpy(rtr.dgid_attr.gid.raw, path.gid, sizeof path.gid);
    memcpy(rtr.dgid_attr.mac, path.mac, sizeof path.mac);
    dr_devx_modify_qp_init2rtr(NULL, &object, &rtr);
    epw_mlx5_build_init2rtr(ours, number, &path);
    compare_command(who, "INIT2RTR", "init2rtr_qp_in", "qpc", recorded, ours, sizeof ours);

    dr_devx_modify_qp_rtr2rts(NULL, &object,
                              &(struct dr_devx_qp_rts_attr){.timeout = 14, .retry_cnt = 7, .rnr_retry = 7});
    epw_mlx5_build_rtr2rts(ours, number, &path);
    compare_command(who, "RTR2RTS", "rtr2rts_qp_in", "qpc", recorded, ours, sizeof ours);
}

/* The command that none of the witnesses builds: its fields are listed, so that nobody considers them
 * confirmed. */
static void unwitnessed(void) {
    static const unsigned char none[EPW_MLX5_IN_BYTES];
    epw_mlx5_in ours;
    epw_mlx5_build_refuse(ours, 1);
    compare_command("nobody", "RTS2RTS", "rts2rts_qp_in", "qpc", none, ours, sizeof ours);
}

/* ---- entries and completions ---- */

enum { DEPTH = 64, BYTES = 4096 };

static const epw_where where = {"witness", 0, 1};

/* A queue pair that is connected to itself: rdma-core's ends of its ring and its completions, with our NIC in
 * between. */
typedef struct rig {
    struct mlx5_context context;
    struct mlx5_qp qp;
    struct mlx5_cq cq;
    struct mlx5_bf bf;
    uint64_t ids[DEPTH];
    unsigned heads[DEPTH];
    uint32_t data[DEPTH];
    epw_nic *nic;
    epw_pair *pair;
    const epw_pair_memory *memory;
    uint32_t key;
    _Alignas(64) unsigned char window[BYTES];
} rig;

static void open_rig(rig *r) {
    int fds[2];
    uint64_t links[2];
    memset(r, 0, sizeof *r);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) abort();
    if (epw_nic_open(where, &r->nic) != EPW_OK) abort();
    epw_region window = {.base = r->window,
                         .rights = EPW_REGION_READ | EPW_REGION_WRITE | EPW_REGION_ATOMIC,
                         .count = 1,
                         .stretches = {{0, BYTES}}};
    r->key = epw_nic_register(r->nic, &window);
    epw_pair_options options = {.peer = EPW_PAIR_ANY_PEER, .key = EPW_PAIR_ANY_KEY, .depth = DEPTH};
    if (epw_pair_create(r->nic, &options, where, &r->pair) != EPW_OK) abort();
    for (int i = 0; i < 2; i++)
        if (epw_nic_add_link(r->nic, fds[i], 1, where, &links[i]) != EPW_OK) abort();
    epw_pair_connect(r->pair, links[0], epw_pair_number(r->pair));
    r->memory = epw_pair_memory_of(r->pair);

    r->context.cqe_version = 1;
    r->context.uidx_table[0].table = calloc(1 << MLX5_UIDX_TABLE_SHIFT, sizeof(void *));
    r->context.uidx_table[0].refcnt = 1;
    ((struct mlx5_resource **)r->context.uidx_table[0].table)[0] = &r->qp.rsc;
    struct ibv_context *context = &r->context.ibv_ctx.context;

    r->cq.verbs_cq.cq.context = context;
    r->cq.verbs_cq.cq.cqe = 0; /* one entry */
    r->cq.buf_a.buf = r->memory->completion;
    r->cq.buf_a.type = MLX5_ALLOC_TYPE_ANON;
    r->cq.active_buf = &r->cq.buf_a;
    r->cq.cqe_sz = 64;
    r->cq.dbrec = calloc(2, sizeof(__be32));
    r->cq.lock.need_lock = 0;

    struct mlx5_qp *qp = &r->qp;
    qp->rsc.type = MLX5_RSC_TYPE_QP;
    qp->ibv_qp = &qp->verbs_qp.qp;
    qp->ibv_qp->context = context;
    qp->ibv_qp->qp_type = IBV_QPT_RC;
    qp->ibv_qp->qp_num = epw_pair_number(r->pair);
    qp->rsc.rsn = 0;
    qp->ibv_qp->send_cq = &r->cq.verbs_cq.cq;
    qp->max_inline_data = 28;
    qp->atomics_enabled = 1;
    qp->sq_start = r->memory->entries;
    qp->sq = (struct mlx5_wq){.wrid = r->ids,
                              .wqe_head = r->heads,
                              .wr_data = r->data,
                              .wqe_cnt = DEPTH,
                              .max_post = DEPTH,
                              .max_gs = 2,
                              .qp_state_max_gs = 2,
                              .wqe_shift = 6,
                              .qend = r->memory->entries + DEPTH * 64};
    qp->db = (__be32 *)r->memory->record;
    r->bf.reg = r->memory->doorbell;
    qp->bf = &r->bf;
    r->context.shut_up_bf = 1;
}

static void close_rig(rig *r) {
    epw_pair_destroy(r->pair);
    epw_nic_close(r->nic);
    free(r->context.uidx_table[0].table);
    free(r->cq.dbrec);
}

/* rdma-core posts `wr`; we build the same entry, and its parts are compared, if any are asked for; then the
 * NIC executes theirs, and they poll. */
static void post(rig *r, const char *what, struct ibv_send_wr *wr, const part *parts,
                 const epw_entry_block *ours, enum ibv_wc_status status) {
    uint32_t index = r->qp.sq.cur_post;
    struct ibv_send_wr *bad;
    struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
    unsigned char theirs[64];
    wr->wr_id = 0x700 + index;
    wr->send_flags |= IBV_SEND_SIGNALED;
    if (mlx5_post_send(r->qp.ibv_qp, wr, &bad) != 0) {
        printf("%s %s is not posted\n", who, what);
        return;
    }
    memcpy(theirs, r->memory->entries + (index & (DEPTH - 1)) * 64, sizeof theirs);
    compare_entry(who, what, parts, theirs, ours);
    if (index == 1)
        compare_ring(who, r->memory->record, r->memory->doorbell, epw_pair_number(r->pair), index + 1);

    /* The only entry always belongs to their first lap. */
    r->cq.cons_index = 0;
    int polled = 0;
    epw_pair_ring(r->pair);
    for (int i = 0; i < 5000 && polled == 0; i++) {
        polled = mlx5_poll_cq_v1(&r->cq.verbs_cq.cq, 1, &wc);
        if (polled == 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    bool same =
        polled == 1 && wc.status == status && wc.wr_id == wr->wr_id && wc.qp_num == epw_pair_number(r->pair);
    printf("%s %s completion.%s %s", who, what, status == IBV_WC_SUCCESS ? "success" : "error",
           same ? "agrees\n" : "differs");
    if (!same)
        printf(": polled %d, status %d, id %" PRIx64 ", pair %x\n", polled, wc.status, wc.wr_id, wc.qp_num);
    if (polled == 1 && status == IBV_WC_SUCCESS) {
        static const enum ibv_wc_opcode opcodes[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
                                                     [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
                                                     [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD};
        printf("%s %s completion.opcode %s\n", who, what,
               wc.opcode == opcodes[wr->opcode] ? "agrees" : "differs");
    }
    memset(r->memory->completion, 0xff, 64);
}

/* Their name of each syndrome that this library knows. Each completion says that their first entry has
 * failed. */
static void syndromes(rig *r) {
    static const struct {
        uint8_t syndrome;
        enum ibv_wc_status status;
    } all[] = {{EPW_SYNDROME_LENGTH, IBV_WC_LOC_LEN_ERR},
               {EPW_SYNDROME_OPERATION, IBV_WC_LOC_QP_OP_ERR},
               {EPW_SYNDROME_PROTECTION, IBV_WC_LOC_PROT_ERR},
               {EPW_SYNDROME_FLUSHED, IBV_WC_WR_FLUSH_ERR},
               {EPW_SYNDROME_REMOTE_REQUEST, IBV_WC_REM_INV_REQ_ERR},
               {EPW_SYNDROME_REMOTE_ACCESS, IBV_WC_REM_ACCESS_ERR},
               {EPW_SYNDROME_REMOTE_OPERATION, IBV_WC_REM_OP_ERR},
               {EPW_SYNDROME_RETRIES, IBV_WC_RETRY_EXC_ERR},
               {EPW_SYNDROME_RECEIVER, IBV_WC_RNR_RETRY_EXC_ERR},
               {EPW_SYNDROME_ABORTED, IBV_WC_REM_ABORT_ERR}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        unsigned char *completion = r->memory->completion; /* its queue is broken, so nobody writes it */
        struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
        memset(completion, 0, 64);
        completion[0x36] = 0x81;
        completion[0x37] = all[i].syndrome;
        completion[0x3f] = EPW_COMPLETION_ERROR << 4;
        r->cq.cons_index = 0;
        bool same = mlx5_poll_cq_v1(&r->cq.verbs_cq.cq, 1, &wc) == 1 && wc.status == all[i].status &&
                    wc.vendor_err == 0x81;
        printf("%s SYNDROMES completion.%02x %s", who, all[i].syndrome, same ? "agrees\n" : "differs");
        if (!same) printf(": status %d, vendor %x\n", wc.status, wc.vendor_err);
    }
}

static void entries(void) {
    rig *r = aligned_alloc(64, (sizeof *r + 63) / 64 * 64);
    open_rig(r);
    uint32_t pair = epw_pair_number(r->pair);
    const uint64_t to = 1024, from = 512, more = 768;
    epw_place_of remote = {to, epw_key_of(r->key)}, local = {from, epw_key_of(r->key)},
                 second = {more, epw_key_of(r->key)};
    struct ibv_sge sg[2] = {{from, 100, r->key}, {more, 50, r->key}};
    epw_entry_block ours;
    uint64_t value = UINT64_C(0x0706050403020100);

    struct ibv_send_wr wr = {.sg_list = sg, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    wr.wr.rdma.remote_addr = to, wr.wr.rdma.rkey = r->key;
    memset(r->window + from, 0x5c, 256 + 100);
    wr.num_sge = 0; /* first, because index 0 proves nothing */
    epw_entry_write(&ours, pair, r->qp.sq.cur_post, remote, local, 0, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE_NONE", &wr, none_parts, &ours, IBV_WC_SUCCESS);

    wr.num_sge = 1;
    epw_entry_write(&ours, pair, r->qp.sq.cur_post, remote, local, 100, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE", &wr, transfer_parts, &ours, IBV_WC_SUCCESS);
    printf("%s WRITE effect.bytes %s\n", who,
           memcmp(r->window + to, r->window + from, 100) == 0 ? "agrees" : "differs");

    wr.num_sge = 2;
    epw_entry_write_both(&ours, pair, r->qp.sq.cur_post, remote, local, 100, second, 50, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE_TWO", &wr, both_parts, &ours, IBV_WC_SUCCESS);

    wr.num_sge = 1, wr.send_flags = IBV_SEND_INLINE;
    sg[0] = (struct ibv_sge){(uintptr_t)&value, sizeof value, 0};
    epw_entry_write_word(&ours, pair, r->qp.sq.cur_post, remote, value, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE_INLINE", &wr, inline_parts, &ours, IBV_WC_SUCCESS);
    printf("%s WRITE_INLINE effect.bytes %s\n", who,
           memcmp(r->window + to, &value, 8) == 0 ? "agrees" : "differs");

    wr.send_flags = 0, wr.opcode = IBV_WR_RDMA_READ;
    sg[0] = (struct ibv_sge){from, 8, r->key};
    epw_entry_read(&ours, pair, r->qp.sq.cur_post, remote, local, 8, EPW_SIGNAL_ALWAYS);
    post(r, "READ", &wr, transfer_parts, &ours, IBV_WC_SUCCESS);
    printf("%s READ effect.bytes %s\n", who, memcmp(r->window + from, &value, 8) == 0 ? "agrees" : "differs");

    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = to, wr.wr.atomic.rkey = r->key, wr.wr.atomic.compare_add = 5,
    wr.wr.atomic.swap = 0;
    epw_entry_fetch_add(&ours, pair, r->qp.sq.cur_post, remote, 5, local, EPW_SIGNAL_ALWAYS);
    memset(r->memory->entries + (r->qp.sq.cur_post & (DEPTH - 1)) * 64, 0,
           64); /* they leave `compare` unchanged */
    post(r, "FETCH_ADD", &wr, add_parts, &ours, IBV_WC_SUCCESS);
    uint64_t sum;
    memcpy(&sum, r->window + to, 8);
    printf("%s FETCH_ADD effect.sum %s\n", who, sum == value + 5 ? "agrees" : "differs");

    /* A key that the peer does not have. */
    wr.opcode = IBV_WR_RDMA_WRITE, wr.wr.rdma.remote_addr = to, wr.wr.rdma.rkey = r->key ^ 0x55;
    remote.key = epw_key_of(r->key ^ 0x55);
    epw_entry_write(&ours, pair, r->qp.sq.cur_post, remote, local, 8, EPW_SIGNAL_ALWAYS);
    post(r, "WRITE_REFUSED", &wr, NULL, &ours, IBV_WC_REM_ACCESS_ERR);
    syndromes(r);
    close_rig(r);
    free(r);
}

int main(void) {
    commands();
    unwitnessed();
    entries();
    return 0;
}
