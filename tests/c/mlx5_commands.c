/* Commands of an mlx5 adapter, bit by bit: the builder's output is compared with a table of positions from
 * another source (nic/fake/offsets.inc), and whole commands with words that are written down here. */
#include "check.h"
#include "nic/fake/fields.h"
#include "nic/mlx5/commands.h"

#include <string.h>

/* A field of a command, and its expected value. */
typedef struct expected {
    uint32_t base;
    epw_field field;
    uint64_t value;
} expected;

#define F(structure, name) EPW_FIELD(structure, name)

/* These fields have these values, and no other bit is set. */
static void check_fields(const char *command, const unsigned char *in, size_t bytes, const expected *fields,
                         size_t count) {
    unsigned char mask[EPW_MLX5_IN_BYTES] = {0};
    for (size_t i = 0; i < count; i++) {
        uint64_t is = epw_field_get(in, fields[i].base, fields[i].field);
        CHECK_MSG(is == fields[i].value, "%s: field %zu is %llx, not %llx", command, i,
                  (unsigned long long)is, (unsigned long long)fields[i].value);
        epw_field_allow(mask, fields[i].base, fields[i].field);
    }
    uint32_t stray = epw_field_stray(in, mask, bytes);
    CHECK_MSG(stray == bytes * 8, "%s: bit %u is set, which is of none of its fields", command, stray);
}

#define CHECK_FIELDS(command, in, bytes, ...)                                                                \
    check_fields(command, in, bytes, (const expected[]){__VA_ARGS__},                                        \
                 sizeof((const expected[]){__VA_ARGS__}) / sizeof(expected))

static uint32_t inner(epw_field context) {
    return epw_field_first(context);
}

static uint32_t way(epw_field context) {
    return inner(context) + epw_field_first(F(qpc, primary_address_path));
}

/* Every value has ones at both ends, so that a field that is one bit off, or too short, is noticed. */
static void a_completion_queue_is_created_by_these_fields(void) {
    epw_mlx5_in in;
    epw_mlx5_cq cq = {.umem = 0x81234567,
                      .record_umem = 0x89abcdef,
                      .record = 0x80000018,
                      .uar = 0x812345,
                      .eq = 0x81,
                      .log_entries = 0x11};
    uint32_t cqc = inner(F(create_cq_in, cqc));
    epw_mlx5_build_create_cq(in, &cq);
    CHECK_FIELDS("CREATE_CQ", in, sizeof in, {0, F(create_cq_in, opcode), 0x400}, {cqc, F(cqc, cc), 1},
                 {cqc, F(cqc, oi), 1}, {cqc, F(cqc, dbr_umem_valid), 1},
                 {cqc, F(cqc, dbr_umem_id), 0x89abcdef}, {cqc, F(cqc, dbr_addr), 0x80000018},
                 {cqc, F(cqc, log_cq_size), 0x11}, {cqc, F(cqc, uar_page), 0x812345},
                 {cqc, F(cqc, c_eqn), 0x81}, {0, F(create_cq_in, cq_umem_id), 0x81234567},
                 {0, F(create_cq_in, cq_umem_valid), 1});
}

static void a_queue_pair_is_created_by_these_fields(void) {
    epw_mlx5_in in;
    epw_mlx5_qp qp = {.umem = 0x81234567,
                      .record_umem = 0x89abcdef,
                      .uar = 0x812345,
                      .pd = 0x854321,
                      .cq = 0x89abcd,
                      .log_entries = 9,
                      .default_time = true};
    uint32_t qpc = inner(F(create_qp_in, qpc));
    epw_mlx5_build_create_qp(in, &qp);
    CHECK_FIELDS("CREATE_QP", in, sizeof in, {0, F(create_qp_in, opcode), 0x500}, {qpc, F(qpc, st), 0},
                 {qpc, F(qpc, pm_state), 3}, {qpc, F(qpc, pd), 0x854321}, {qpc, F(qpc, log_sq_size), 9},
                 {qpc, F(qpc, uar_page), 0x812345}, {qpc, F(qpc, cqn_snd), 0x89abcd},
                 {qpc, F(qpc, cqn_rcv), 0x89abcd}, {qpc, F(qpc, rq_type), 3},
                 {qpc, F(qpc, dbr_umem_valid), 1}, {qpc, F(qpc, dbr_umem_id), 0x89abcdef},
                 {qpc, F(qpc, ts_format), 1}, {0, F(create_qp_in, wq_umem_id), 0x81234567},
                 {0, F(create_qp_in, wq_umem_valid), 1});
}

static const epw_mlx5_path ethernet = {.ethernet = true,
                                       .port = 1,
                                       .remote = 0x876543,
                                       .mtu = 5,
                                       .gid = {0x81, [15] = 0x91},
                                       .mac = {0x82, 1, 2, 3, 4, 0x93},
                                       .gid_index = 0x83,
                                       .udp_port = 0xc001,
                                       .hop_limit = 0x85,
                                       .traffic_class = 0x86,
                                       .service_level = 5,
                                       .atomics = true,
                                       .in_order = true,
                                       .log_reads = 5,
                                       .timeout = 0x13,
                                       .retries = 5};

static void the_way_up_on_ethernet_has_these_fields(void) {
    epw_mlx5_in in;
    const uint32_t number = 0x812345;
    uint32_t qpc = inner(F(rst2init_qp_in, qpc)), ads = way(F(rst2init_qp_in, qpc));
    epw_mlx5_build_rst2init(in, number, &ethernet);
    CHECK_FIELDS("RST2INIT", in, sizeof in, {0, F(rst2init_qp_in, opcode), 0x502},
                 {0, F(rst2init_qp_in, qpn), number}, {qpc, F(qpc, pm_state), 3},
                 {ads, F(ads, vhca_port_num), 1});

    epw_mlx5_build_init2rtr(in, number, &ethernet);
    qpc = inner(F(init2rtr_qp_in, qpc));
    ads = way(F(init2rtr_qp_in, qpc));
    CHECK_FIELDS("INIT2RTR", in, sizeof in, {0, F(init2rtr_qp_in, opcode), 0x503},
                 {0, F(init2rtr_qp_in, qpn), number}, {0, F(init2rtr_qp_in, opt_param_mask), 0xe},
                 {qpc, F(qpc, dp_ordering_force), 1}, {qpc, F(qpc, mtu), 5}, {qpc, F(qpc, log_msg_max), 30},
                 {qpc, F(qpc, remote_qpn), 0x876543}, {qpc, F(qpc, log_rra_max), 5},
                 {qpc, F(qpc, atomic_mode), 3}, {qpc, F(qpc, rre), 1}, {qpc, F(qpc, rwe), 1},
                 {qpc, F(qpc, rae), 1}, {qpc, F(qpc, min_rnr_nak), 12}, {qpc, F(qpc, next_rcv_psn), 0x77deae},
                 {ads, F(ads, src_addr_index), 0x83}, {ads, F(ads, hop_limit), 0x85},
                 {ads, F(ads, dscp), 0x86 >> 2}, {ads, F(ads, udp_sport), 0xc001}, {ads, F(ads, eth_prio), 5},
                 {ads, F(ads, vhca_port_num), 1}, {ads, F(ads, rmac_47_32), 0x8201},
                 {ads, F(ads, rmac_31_0), 0x02030493}, {ads, F(ads, rgid_rip), 0x91});
    /* The last 64 of the GID's 128 bits have been checked. */
    CHECK(in[(ads + epw_field_first(F(ads, rgid_rip))) / 8] == 0x81);

    epw_mlx5_build_rtr2rts(in, number, &ethernet);
    qpc = inner(F(rtr2rts_qp_in, qpc));
    ads = way(F(rtr2rts_qp_in, qpc));
    CHECK_FIELDS("RTR2RTS", in, sizeof in, {0, F(rtr2rts_qp_in, opcode), 0x504},
                 {0, F(rtr2rts_qp_in, qpn), number}, {qpc, F(qpc, log_sra_max), 5},
                 {qpc, F(qpc, retry_count), 5}, {qpc, F(qpc, rnr_retry), 7},
                 {qpc, F(qpc, next_send_psn), 0x8cc7ff}, {ads, F(ads, ack_timeout), 0x13});
}

/* No global route, hence no traffic class, whatever is requested. Without atomics there is no right to
 * them. */
static void the_way_up_on_infiniband_has_these_fields(void) {
    epw_mlx5_in in;
    epw_mlx5_path path = ethernet;
    path.ethernet = path.atomics = path.in_order = false;
    path.lid = 0x8421;
    path.service_level = 9;
    uint32_t qpc = inner(F(init2rtr_qp_in, qpc)), ads = way(F(init2rtr_qp_in, qpc));
    epw_mlx5_build_init2rtr(in, 0x812345, &path);
    CHECK_FIELDS("INIT2RTR", in, sizeof in, {0, F(init2rtr_qp_in, opcode), 0x503},
                 {0, F(init2rtr_qp_in, qpn), 0x812345}, {0, F(init2rtr_qp_in, opt_param_mask), 0xa},
                 {qpc, F(qpc, mtu), 5}, {qpc, F(qpc, log_msg_max), 30}, {qpc, F(qpc, remote_qpn), 0x876543},
                 {qpc, F(qpc, log_rra_max), 5}, {qpc, F(qpc, rre), 1}, {qpc, F(qpc, rwe), 1},
                 {qpc, F(qpc, min_rnr_nak), 12}, {qpc, F(qpc, next_rcv_psn), 0x77deae},
                 {ads, F(ads, vhca_port_num), 1}, {ads, F(ads, rlid), 0x8421}, {ads, F(ads, sl), 9});
}

static void the_way_down_has_these_fields(void) {
    epw_mlx5_in in;
    unsigned char few[EPW_MLX5_SHORT_BYTES];
    epw_mlx5_build_refuse(in, 0x812345);
    CHECK_FIELDS("RTS2RTS", in, sizeof in, {0, F(rts2rts_qp_in, opcode), 0x505},
                 {0, F(rts2rts_qp_in, qpn), 0x812345}, {0, F(rts2rts_qp_in, opt_param_mask), 0xe});
    static const uint32_t opcodes[] = {EPW_MLX5_2ERR, EPW_MLX5_2RST, EPW_MLX5_QUERY_QP};
    for (int i = 0; i < 3; i++) {
        epw_mlx5_build_short(few, opcodes[i], 0x812345);
        CHECK_FIELDS(epw_mlx5_command_name(opcodes[i]), few, sizeof few,
                     {0, F(modify_qp_in, opcode), opcodes[i]}, {0, F(modify_qp_in, qpn), 0x812345});
    }
    epw_mlx5_build_query_cap(few, EPW_MLX5_CAP_ATOMIC);
    CHECK_FIELDS("QUERY_HCA_CAP", few, sizeof few, {0, F(query_hca_cap_in, opcode), 0x100},
                 {0, F(query_hca_cap_in, op_mod), 7});
}

/* ---- whole commands, word by word ---- */

/* A word of 4 bytes, as the adapter reads it, that begins at this byte of a command. */
typedef struct word {
    uint32_t offset, value;
} word;

/* The command consists of these words, and zeroes. */
static void check_words(const char *command, const unsigned char *in, size_t bytes, const word *words,
                        size_t count) {
    unsigned char expected[EPW_MLX5_IN_BYTES] = {0};
    for (size_t i = 0; i < count; i++)
        for (uint32_t b = 0; b < 4; b++)
            expected[words[i].offset + b] = (unsigned char)(words[i].value >> (24 - 8 * b));
    for (size_t i = 0; i < bytes; i++)
        CHECK_MSG(in[i] == expected[i], "%s: byte 0x%zx is %02x, not %02x", command, i, in[i], expected[i]);
}

#define CHECK_WORDS(command, in, bytes, ...)                                                                 \
    check_words(command, in, bytes, (const word[]){__VA_ARGS__},                                             \
                sizeof((const word[]){__VA_ARGS__}) / sizeof(word))

/* The words were computed by hand from the values and the places of the fields, not by this library: a bit
 * that the builder sets elsewhere is found even if the table of the fake firmware has it in the same wrong
 * place. The places are those of a table of bytes and bits that was compiled by reading the sources of
 * rdma-core, UCX, NVSHMEM and DOCA; those in nic/fake/offsets.inc were extracted by a program. The context of
 * a completion queue begins at 0x10, that of a queue pair at 0x18, and the address path in it at 0x30. */
static void objects_are_created_by_these_words(void) {
    epw_mlx5_in in;
    epw_mlx5_build_create_cq(in, &(epw_mlx5_cq){.umem = 0x81234567,
                                                .record_umem = 0x89abcdef,
                                                .record = 0x80000018,
                                                .uar = 0x812345,
                                                .eq = 0x81,
                                                .log_entries = 0x11});
    CHECK_WORDS("CREATE_CQ", in, sizeof in, {0x00, 0x04000000},
                {0x10, 0x02120000},                     /* record umem valid, collapsed, overrun ignored */
                {0x14, 0x89abcdef}, {0x1c, 0x11812345}, /* size, register */
                {0x24, 0x00000081}, {0x4c, 0x80000018}, /* where the record lies */
                {0x58, 0x81234567}, {0x5c, 0x80000000} /* umem valid */);
    epw_mlx5_build_create_qp(in, &(epw_mlx5_qp){.umem = 0x81234567,
                                                .record_umem = 0x89abcdef,
                                                .uar = 0x812345,
                                                .pd = 0x854321,
                                                .cq = 0x89abcd,
                                                .log_entries = 9});
    CHECK_WORDS("CREATE_QP", in, sizeof in, {0x00, 0x05000000}, {0x18, 0x00001800}, /* migrated */
                {0x1c, 0x00854321}, {0x20, 0x00004800}, /* size of the send queue */
                {0x24, 0x00812345}, {0x94, 0x0089abcd}, {0xb4, 0x0089abcd},
                {0xc4, 0x03000000},                     /* no receive queue */
                {0xe8, 0x10000000}, {0xfc, 0x89abcdef}, /* record umem: valid, number */
                {0x108, 0x81234567}, {0x10c, 0x80000000});
    epw_mlx5_build_create_qp(in, &(epw_mlx5_qp){.pd = 0x854321, .default_time = true});
    CHECK_WORDS("CREATE_QP with timestamps", in, sizeof in, {0x00, 0x05000000}, {0x18, 0x00001800},
                {0x1c, 0x00854321}, {0x20, 0x00000040}, /* format of timestamps */
                {0xc4, 0x03000000}, {0xe8, 0x10000000}, {0x10c, 0x80000000});
}

static void a_queue_pair_goes_up_by_these_words(void) {
    epw_mlx5_in in;
    const uint32_t number = 0x812345;
    epw_mlx5_build_rst2init(in, number, &ethernet);
    CHECK_WORDS("RST2INIT", in, sizeof in, {0x00, 0x05020000}, {0x08, 0x00812345}, {0x18, 0x00001800},
                {0x54, 0x00010000} /* port */);
    epw_mlx5_build_init2rtr(in, number, &ethernet);
    CHECK_WORDS("INIT2RTR on Ethernet", in, sizeof in, {0x00, 0x05030000}, {0x08, 0x00812345},
                {0x10, 0x0000000e}, {0x1c, 0x01000000}, /* rights that are set; order forced */
                {0x20, 0xbe000000},                     /* MTU, longest message */
                {0x2c, 0x00876543}, {0x38, 0x00830085}, /* remote; index of the GID, hop limit */
                {0x40, 0x81000000}, {0x4c, 0x00000091}, /* the peer's GID */
                {0x50, 0x0021c001},                     /* DSCP, UDP port */
                {0x54, 0x50018201}, {0x58, 0x02030493}, /* priority, port, the peer's MAC */
                {0xa8, 0x00a3e000},
                {0xac, 0x0c77deae} /* reads, atomics, rights; the receiver's timer, first packet */);
    epw_mlx5_path infiniband = ethernet;
    infiniband.ethernet = infiniband.atomics = infiniband.in_order = false;
    infiniband.lid = 0x8421;
    infiniband.service_level = 9;
    epw_mlx5_build_init2rtr(in, number, &infiniband);
    CHECK_WORDS("INIT2RTR on InfiniBand", in, sizeof in, {0x00, 0x05030000}, {0x08, 0x00812345},
                {0x10, 0x0000000a}, {0x20, 0xbe000000}, {0x2c, 0x00876543}, {0x34, 0x00008421}, /* LID */
                {0x54, 0x09010000}, /* service level, port */
                {0xa8, 0x00a0c000}, {0xac, 0x0c77deae});
    epw_mlx5_build_rtr2rts(in, number, &ethernet);
    CHECK_WORDS("RTR2RTS", in, sizeof in, {0x00, 0x05040000}, {0x08, 0x00812345}, {0x38, 0x98000000},
                {0x88, 0x00a5e000}, /* timeout; reads, retries, retries when not ready */
                {0x90, 0x008cc7ff} /* first packet */);
}

static void a_queue_pair_goes_down_by_these_words(void) {
    epw_mlx5_in in;
    unsigned char few[EPW_MLX5_SHORT_BYTES];
    const uint32_t number = 0x812345;
    epw_mlx5_build_refuse(in, number);
    CHECK_WORDS("RTS2RTS", in, sizeof in, {0x00, 0x05050000}, {0x08, 0x00812345}, {0x10, 0x0000000e});
    epw_mlx5_build_short(few, EPW_MLX5_2ERR, number);
    CHECK_WORDS("2ERR", few, sizeof few, {0x00, 0x05070000}, {0x08, 0x00812345});
    epw_mlx5_build_short(few, EPW_MLX5_2RST, number);
    CHECK_WORDS("2RST", few, sizeof few, {0x00, 0x050a0000}, {0x08, 0x00812345});
    epw_mlx5_build_short(few, EPW_MLX5_QUERY_QP, number);
    CHECK_WORDS("QUERY_QP", few, sizeof few, {0x00, 0x050b0000}, {0x08, 0x00812345});
    epw_mlx5_build_query_cap(few, EPW_MLX5_CAP_ATOMIC);
    CHECK_WORDS("QUERY_HCA_CAP", few, sizeof few, {0x00, 0x01000000}, {0x04, 0x00000007});
}

static void answers_are_read_where_firmware_writes_them(void) {
    static unsigned char out[EPW_MLX5_QUERY_CAP_BYTES];
    epw_field_put(out, 0, F(create_qp_out, status), 0x81);
    epw_field_put(out, 0, F(create_qp_out, syndrome), 0x89abcdef);
    epw_field_put(out, 0, F(create_qp_out, qpn), 0x812345);
    CHECK(epw_mlx5_status(out) == 0x81 && epw_mlx5_syndrome(out) == 0x89abcdef);
    CHECK(epw_mlx5_number(out) == 0x812345);

    memset(out, 0, sizeof out);
    epw_field_put(out, inner(F(query_qp_out, qpc)), F(qpc, state), 9);
    CHECK(epw_mlx5_state(out) == 9);

    memset(out, 0, sizeof out);
    const uint32_t caps = 128;
    epw_field_put(out, caps, F(cmd_hca_cap, cqe_version), 9);
    epw_field_put(out, caps, F(cmd_hca_cap, log_max_qp_sz), 0x81);
    epw_field_put(out, caps, F(cmd_hca_cap, log_max_msg), 0x11);
    epw_mlx5_caps read = epw_mlx5_read_caps(out);
    CHECK(read.cqe_version == 9 && read.log_qp_entries == 0x81 && read.log_message == 0x11);
    CHECK(!read.atomic && !read.cq_overrun_ignored);
    epw_field_put(out, caps, F(cmd_hca_cap, atomic), 1);
    CHECK(epw_mlx5_read_caps(out).atomic);
    epw_field_put(out, caps, F(cmd_hca_cap, cq_oi), 1);
    CHECK(epw_mlx5_read_caps(out).cq_overrun_ignored);
    CHECK(!read.roce && !read.general_2 && !read.reorders && !read.chooses_time && !read.keeps_order);
    epw_field_put(out, caps, F(cmd_hca_cap, roce), 1);
    CHECK(epw_mlx5_read_caps(out).roce && !epw_mlx5_read_caps(out).general_2);
    epw_field_put(out, caps, F(cmd_hca_cap, hca_cap_2), 1);
    CHECK(epw_mlx5_read_caps(out).general_2);
    static const epw_field orders[] = {F(cmd_hca_cap, dp_ordering_ooo_rw_rc),
                                       F(cmd_hca_cap, dp_ordering_ooo_all_rc)};
    for (int i = 0; i < 2; i++) {
        epw_field_put(out, caps, orders[i], 1);
        CHECK(epw_mlx5_read_caps(out).reorders);
        epw_field_put(out, caps, orders[i], 0);
        CHECK(!epw_mlx5_read_caps(out).reorders);
    }
    for (uint32_t format = 1; format < 4; format++) {
        epw_field_put(out, caps, F(cmd_hca_cap, sq_ts_format), format);
        CHECK(epw_mlx5_read_caps(out).chooses_time);
    }

    memset(out, 0, sizeof out);
    for (uint32_t format = 0; format < 4; format++) {
        read = (epw_mlx5_caps){.chooses_time = format == 0};
        epw_field_put(out, caps, F(roce_cap, qp_ts_format), format);
        epw_mlx5_read_roce_caps(out, &read);
        CHECK(read.chooses_time == (format > 0));
    }
    memset(out, 0, sizeof out);
    epw_mlx5_read_caps_2(out, &read);
    CHECK(!read.keeps_order);
    epw_field_put(out, caps, F(cmd_hca_cap_2, dp_ordering_force), 1);
    epw_mlx5_read_caps_2(out, &read);
    CHECK(read.keeps_order);
}

/* By the numbers of the adapter's manual. */
static void statuses_have_the_names_of_the_manual(void) {
    static const struct {
        uint32_t status;
        const char *name;
    } statuses[] = {{0x00, "OK"},
                    {0x01, "INTERNAL_ERR"},
                    {0x02, "BAD_OP"},
                    {0x03, "BAD_PARAM"},
                    {0x04, "BAD_SYS_STATE"},
                    {0x05, "BAD_RESOURCE"},
                    {0x06, "RESOURCE_BUSY"},
                    {0x08, "EXCEED_LIM"},
                    {0x09, "BAD_RES_STATE"},
                    {0x0a, "BAD_INDEX"},
                    {0x0f, "NO_RESOURCES"},
                    {0x10, "BAD_QP_STATE"},
                    {0x50, "BAD_INPUT_LEN"},
                    {0x51, "BAD_OUTPUT_LEN"},
                    {0x7f, "a status that is not known here"}};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        CHECK_MSG(strcmp(epw_mlx5_status_name(statuses[i].status), statuses[i].name) == 0, "%x: %s",
                  statuses[i].status, epw_mlx5_status_name(statuses[i].status));
}

/* For every deadline from the least that a buffer can have, in steps of a thousandth. A peer that answers
 * late is tried at least three times more. */
static void a_silent_peer_is_given_up_within_2_to_4_deadlines(void) {
    const uint64_t most = UINT64_C(9) * 3600 * 1000000000;
    for (uint64_t ns = 1000000; ns <= most; ns += ns / 1000) {
        epw_mlx5_path path = {0};
        epw_mlx5_choose_retries(ns, &path);
        uint64_t try_ns = UINT64_C(4096) << path.timeout, all_ns = try_ns * (path.retries + 1);
        CHECK_MSG(all_ns >= 2 * ns && all_ns < 4 * ns, "%llu ns: %llu", (unsigned long long)ns,
                  (unsigned long long)all_ns);
        CHECK(path.timeout >= 1 && path.timeout <= 31 && path.retries >= 3 && path.retries <= 7);
        CHECK_MSG(try_ns >= 67000000 || 2 * try_ns >= ns, "%llu ns: a try of %llu", (unsigned long long)ns,
                  (unsigned long long)try_ns);
    }
    epw_mlx5_path path = {0};
    epw_mlx5_choose_retries(24 * most, &path);
    CHECK(path.timeout == 31 && path.retries == 7);
}

/* The figures of the guide's page for operators. */
static void silent_peers_of_these_deadlines_are_given_up_so_late(void) {
    static const struct {
        uint64_t deadline_ms, given_up_ms;
    } cases[] = {{20, 67}, {100, 268}, {200, 536}, {1000, 2147}, {10000, 34359}, {60000, 137438}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_mlx5_path path = {0};
        epw_mlx5_choose_retries(cases[i].deadline_ms * 1000000, &path);
        uint64_t all_ms = (UINT64_C(4096) << path.timeout) * (path.retries + 1) / 1000000;
        CHECK_MSG(all_ms == cases[i].given_up_ms, "%llu ms: %llu", (unsigned long long)cases[i].deadline_ms,
                  (unsigned long long)all_ms);
    }
}

static void two_queue_pairs_between_the_same_ranks_take_other_ports(void) {
    uint32_t seen[64], different = 0;
    for (uint32_t i = 0; i < 64; i++) {
        seen[i] = epw_mlx5_udp_port(0x10000 + i, 0x20000 + i);
        CHECK(seen[i] >= 0xc000 && seen[i] <= 0xffff);
        bool fresh = true;
        for (uint32_t j = 0; j < i; j++) fresh &= seen[j] != seen[i];
        different += fresh;
    }
    CHECK_MSG(different >= 60, "%u", different);
}

int main(void) {
    a_completion_queue_is_created_by_these_fields();
    a_queue_pair_is_created_by_these_fields();
    the_way_up_on_ethernet_has_these_fields();
    the_way_up_on_infiniband_has_these_fields();
    the_way_down_has_these_fields();
    objects_are_created_by_these_words();
    a_queue_pair_goes_up_by_these_words();
    a_queue_pair_goes_down_by_these_words();
    answers_are_read_where_firmware_writes_them();
    statuses_have_the_names_of_the_manual();
    a_silent_peer_is_given_up_within_2_to_4_deadlines();
    silent_peers_of_these_deadlines_are_given_up_so_late();
    two_queue_pairs_between_the_same_ranks_take_other_ports();
    return check_result("mlx5_commands");
}
