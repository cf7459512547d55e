/* DPDK as a witness: the commands that its mlx5_devx_cmds.c builds for the kernel are recorded, and compared
 * with ours for the same requests. It leaves nothing to the kernel: it asks for completion queues with
 * CREATE_CQ, and says itself which memory is valid. */
#include "mlx5_common_log.h"
#include "mlx5_devx_cmds.h"

#include "compare.h"

#include "nic/mlx5/commands.h"

#include <errno.h>
#include <limits.h>

static const char who[] = "dpdk";

static const uint32_t number = 0x812345;

/* ---- what its file calls ---- */

static struct {
    unsigned char in[512];
    size_t bytes;
    unsigned queries, most;
} recorded = {.most = 1};

static _Alignas(4) unsigned char answer[EPW_MLX5_QUERY_CAP_BYTES];

static void record(const void *in, size_t bytes, void *out, size_t out_bytes) {
    if (bytes > sizeof recorded.in || out_bytes > sizeof answer) abort();
    memset(recorded.in, 0, sizeof recorded.in);
    memcpy(recorded.in, in, bytes);
    recorded.bytes = bytes;
    memcpy(out, answer, out_bytes);
}

static struct mlx5dv_devx_obj *create(struct ibv_context *context, const void *in, size_t inlen, void *out,
                                      size_t outlen) {
    static char object;
    (void)context;
    record(in, inlen, out, outlen);
    return (void *)&object;
}

static int modify(struct mlx5dv_devx_obj *object, const void *in, size_t inlen, void *out, size_t outlen) {
    (void)object;
    record(in, inlen, out, outlen);
    return 0;
}

/* Failing a query ends the inquiry. */
static int query(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen) {
    (void)context;
    if (recorded.queries++ >= recorded.most) return EINVAL;
    record(in, inlen, out, outlen);
    return 0;
}

const struct mlx5_glue *mlx5_glue = &(const struct mlx5_glue){
    .devx_obj_create = create, .devx_obj_modify = modify, .devx_general_cmd = query};

void *mlx5_malloc(uint32_t flags, size_t size, unsigned align, int socket) {
    (void)flags, (void)align, (void)socket;
    return calloc(1, size);
}

void mlx5_free(void *memory) {
    free(memory);
}

/* ---- commands ---- */

static void need(bool holds, const char *what) {
    if (holds) return;
    printf("%s harness: %s\n", who, what);
    exit(1);
}

/* Compares what has been recorded. */
static void check(const char *what, const char *structure, const char *context, const unsigned char *ours,
                  size_t bytes) {
    if (recorded.bytes != bytes)
        printf("%s %s bytes differs: %zu, ours %zu\n", who, what, recorded.bytes, bytes);
    compare_command(who, what, structure, context, recorded.in, ours, recorded.bytes);
}

/* The answer of the next commands that create an object: its number. */
static void answer_number(void) {
    memset(answer, 0, sizeof answer);
    for (int i = 0; i < 3; i++) answer[9 + i] = (unsigned char)(number >> (16 - 8 * i));
}

static void check_number(const char *what, const struct mlx5_devx_obj *object) {
    bool same = (uint32_t)object->id == epw_mlx5_number(answer) && epw_mlx5_number(answer) == number;
    printf("%s %s effect.number %s\n", who, what, same ? "agrees" : "differs");
}

static void completion_queue(void) {
    epw_mlx5_in ours;
    answer_number();
    struct mlx5_devx_obj *cq =
        mlx5_devx_cmd_create_cq(NULL, &(struct mlx5_devx_cq_attr){.q_umem_valid = 1,
                                                                  .db_umem_valid = 1,
                                                                  .use_first_only = 1,
                                                                  .overrun_ignore = 1,
                                                                  .log_cq_size = 17,
                                                                  .uar_page_id = 0x812345,
                                                                  .q_umem_id = 0x81234567,
                                                                  .db_umem_id = 0x89abcdef,
                                                                  .db_umem_offset = 0x80000018,
                                                                  .eqn = 0x83});
    need(cq != NULL, "CREATE_CQ");
    epw_mlx5_build_create_cq(ours, &(epw_mlx5_cq){.umem = 0x81234567,
                                                  .record_umem = 0x89abcdef,
                                                  .record = 0x80000018,
                                                  .uar = 0x812345,
                                                  .eq = 0x83,
                                                  .log_entries = 17});
    check("CREATE_CQ", "create_cq_in", "cqc", ours, sizeof ours);
    check_number("CREATE_CQ", cq);
    mlx5_free(cq);
}

/* A queue pair, which DPDK connects to another one of the same port, without rights. */
static void queue_pair(void) {
    epw_mlx5_in ours;
    answer_number();
    struct mlx5_devx_obj *qp =
        mlx5_devx_cmd_create_qp(NULL, &(struct mlx5_devx_qp_attr){.pd = 0x854321,
                                                                  .uar_index = 0x812345,
                                                                  .cqn = 0x89abcd,
                                                                  .num_of_send_wqbbs = 512,
                                                                  .dbr_umem_valid = 1,
                                                                  .dbr_umem_id = 0x89abcdef,
                                                                  .ts_format = 1,
                                                                  .wq_umem_id = 0x81234567});
    need(qp != NULL, "CREATE_QP");
    epw_mlx5_build_create_qp(ours, &(epw_mlx5_qp){.umem = 0x81234567,
                                                  .record_umem = 0x89abcdef,
                                                  .uar = 0x812345,
                                                  .pd = 0x854321,
                                                  .cq = 0x89abcd,
                                                  .log_entries = 9,
                                                  .default_time = true});
    check("CREATE_QP", "create_qp_in", "qpc", ours, sizeof ours);
    check_number("CREATE_QP", qp);

    const epw_mlx5_path path = {.port = 1, /* always 1 there, as mtu, timeout and retries are what they are */
                                .remote = 0x876543,
                                .mtu = 1,
                                .atomics = true,
                                .in_order = true,
                                .log_reads = 4,
                                .timeout = 16,
                                .retries = 7};
    need(mlx5_devx_cmd_modify_qp_state(qp, MLX5_CMD_OP_RST2INIT_QP, path.remote) == 0, "RST2INIT");
    epw_mlx5_build_rst2init(ours, number, &path);
    check("RST2INIT", "rst2init_qp_in", "qpc", ours, sizeof ours);

    need(mlx5_devx_cmd_modify_qp_state(qp, MLX5_CMD_OP_INIT2RTR_QP, path.remote) == 0, "INIT2RTR");
    epw_mlx5_build_init2rtr(ours, number, &path);
    check("INIT2RTR", "init2rtr_qp_in", "qpc", ours, sizeof ours);

    need(mlx5_devx_cmd_modify_qp_state(qp, MLX5_CMD_OP_RTR2RTS_QP, path.remote) == 0, "RTR2RTS");
    epw_mlx5_build_rtr2rts(ours, number, &path);
    check("RTR2RTS", "rtr2rts_qp_in", "qpc", ours, sizeof ours);

    unsigned char few[EPW_MLX5_SHORT_BYTES];
    need(mlx5_devx_cmd_modify_qp_state(qp, MLX5_CMD_OP_QP_2RST, path.remote) == 0, "2RST");
    epw_mlx5_build_short(few, EPW_MLX5_2RST, number);
    check("2RST", "modify_qp_in", NULL, few, sizeof few);
    mlx5_free(qp);
}

/* Answers in which one bit is set, or that beside the one of RoCE: the two of us find the same ones. Some
 * bits lead it to questions that end the inquiry. */
static void flags(void) {
    enum { FIRST = 16 * 8, FORMAT_BITS = 2 };
    bool roce = true, plain = true, with_roce = true;
    uint32_t formats = 0;
    recorded.most = UINT_MAX;
    for (uint32_t bit = FIRST; bit < sizeof answer * 8; bit++) {
        struct mlx5_hca_attr theirs = {0};
        memset(answer, 0, sizeof answer);
        answer[bit / 8] = (unsigned char)(0x80u >> bit % 8);
        mlx5_devx_cmd_query_hca_attr(NULL, &theirs);
        epw_mlx5_caps caps = epw_mlx5_read_caps(answer);
        roce &= caps.roce == (theirs.roce != 0);
        plain &= caps.chooses_time == (theirs.sq_ts_format != 0);
        theirs = (struct mlx5_hca_attr){0};
        MLX5_SET(query_hca_cap_out, answer, capability.cmd_hca_cap.roce, 1);
        MLX5_SET(query_hca_cap_out, answer, capability.cmd_hca_cap.eth_net_offloads, 1); /* else it ends */
        if (mlx5_devx_cmd_query_hca_attr(NULL, &theirs) != 0) continue;
        epw_mlx5_read_roce_caps(answer, &caps);
        with_roce &= caps.chooses_time == (theirs.qp_ts_format != 0);
        formats += caps.chooses_time;
    }
    say(who, "HCA_CAP", "caps", "roce", 1, roce);
    say(who, "HCA_CAP", "caps", "sq_ts_format", 1, plain);
    say(who, "HCA_CAP", "caps", "qp_ts_format", 1, with_roce && formats == FORMAT_BITS);
    static const char *const unread[] = {"hca_cap_2", "dp_ordering_ooo_rw_rc", "dp_ordering_ooo_all_rc",
                                         "dp_ordering_force"};
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        say(who, "HCA_CAP", "caps", unread[i], 0, 1);
}

/* The query of capabilities, and what the two of us read in the same answer. */
static void capabilities(void) {
    unsigned char ours[EPW_MLX5_SHORT_BYTES];
    struct mlx5_hca_attr theirs = {0};
    for (size_t i = 0; i < sizeof answer; i++) answer[i] = (unsigned char)(i * 37 + 0x8f); /* no field is 0 */
    memset(answer, 0, 16);
    mlx5_devx_cmd_query_hca_attr(NULL, &theirs);
    epw_mlx5_build_query_cap(ours, EPW_MLX5_CAP_GENERAL);
    check("QUERY_HCA_CAP", "query_hca_cap_in", NULL, ours, sizeof ours);

    epw_mlx5_caps caps = epw_mlx5_read_caps(answer);
    say(who, "HCA_CAP", "caps", "log_max_qp_sz", theirs.log_max_qp_sz, caps.log_qp_entries);
    say(who, "HCA_CAP", "caps", "log_max_msg", 0, caps.log_message);
    say(who, "HCA_CAP", "caps", "cqe_version", 0, caps.cqe_version);
    say(who, "HCA_CAP", "caps", "atomic", 0, caps.atomic);
    say(who, "HCA_CAP", "caps", "cq_oi", 0, caps.cq_overrun_ignored);
    flags();
}

int main(void) {
    capabilities();
    completion_queue();
    queue_pair();
    return 0;
}
