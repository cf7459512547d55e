/* The firmware of the fake adapter: decodes commands by the positions in offsets.inc, refuses those that
 * firmware refuses, and keeps the states of queue pairs.
 *
 * Every bit that a kind of command does not use must be 0, reserved or not. Otherwise the syndrome is
 * SYNDROME_STRAY plus the bit's number, counted from the most significant bit of the first byte. */
#include "nic/fake/fields.h"
#include "nic/fake/parts.h"
#include "nic/mlx5/commands.h"

#include <errno.h>
#include <string.h>

enum {
    OK = 0x00,
    BAD_PARAM = 0x03,
    BAD_RESOURCE = 0x05,
    EXCEED_LIM = 0x08,
    BAD_QP_STATE = 0x10,
    BAD_INPUT_LEN = 0x50,
    BAD_OUTPUT_LEN = 0x51
};

/* Syndromes: the numbers by which this firmware says what is wrong. */
enum {
    SYNDROME_PLANNED = 0x100001,
    SYNDROME_UMEM,   /* unknown, too small, or not valid */
    SYNDROME_UAR,    /* unknown */
    SYNDROME_EQ,     /* unknown */
    SYNDROME_CQ,     /* unknown */
    SYNDROME_PD,     /* unknown */
    SYNDROME_SIZE,   /* above the limit */
    SYNDROME_FILL,   /* the completion queue was not filled with ones */
    SYNDROME_KIND,   /* another service or receive queue, or completions that are not collapsed */
    SYNDROME_PORT,   /* unknown */
    SYNDROME_MTU,    /* none, or larger than the port's */
    SYNDROME_RIGHTS, /* set without being named in opt_param_mask, or without the right to write */
    SYNDROME_PATH,   /* no peer, or no route to it */
    SYNDROME_SOURCE, /* the port has no such GID, or the GID has another type */
    SYNDROME_RETRIES,
    SYNDROME_ATOMICS,
    SYNDROME_TIME,             /* no format of timestamps, or one that the adapter does not have */
    SYNDROME_ORDER,            /* writes could be placed in another order */
    SYNDROME_STATE = 0x110000, /* plus the state that it is in, and the opcode */
    SYNDROME_STRAY = 0x200000
};

enum { MIGRATED = 3, RECEIVE_NONE = 3, RIGHTS = 0xe, UDP_FIRST = 0xc000, CQ_FILL = 0xff };

/* A command that is being executed. */
typedef struct command {
    epw_fake *fake;
    epw_fake_item *object; /* a device, if the command is for no object */
    const unsigned char *in;
    unsigned char *out;
    size_t in_bytes, out_bytes;
    uint32_t status, syndrome;
    epw_fake_item *made;
} command;

static void refuse(command *c, uint32_t status, uint32_t syndrome) {
    if (c->status != OK) return;
    c->status = status;
    c->syndrome = syndrome;
}

static void require(command *c, bool holds, uint32_t syndrome) {
    if (!holds) refuse(c, BAD_PARAM, syndrome);
}

/* ---- fields ---- */

/* Reads a field of the command itself, of the context in it, or of the address path in that context. */
#define IN(structure, name)   epw_field_get(c->in, 0, EPW_FIELD(structure, name))
#define CQC(name)             epw_field_get(c->in, cqc(), EPW_FIELD(cqc, name))
#define QPC(structure, name)  epw_field_get(c->in, qpc(structure), EPW_FIELD(qpc, name))
#define PATH(structure, name) epw_field_get(c->in, path(structure), EPW_FIELD(ads, name))

static uint32_t cqc(void) {
    return epw_field_first(EPW_FIELD(create_cq_in, cqc));
}

static uint32_t qpc(epw_field context) {
    return epw_field_first(context);
}

static uint32_t path(epw_field context) {
    return qpc(context) + epw_field_first(EPW_FIELD(qpc, primary_address_path));
}

/* The fields that a command uses: its own, those of its context, and those of the address path in the
 * context. */
typedef struct use {
    epw_field context; /* EPW_FIELDS: it has no context */
    const epw_field *own, *inner, *way;
} use;

#define LIST(...) ((const epw_field[]){__VA_ARGS__, EPW_FIELDS})

static void check_stray(command *c, const use *u) {
    unsigned char mask[EPW_MLX5_IN_BYTES] = {0};
    size_t bytes = c->in_bytes < sizeof mask ? c->in_bytes : sizeof mask;
    uint32_t inner = u->context != EPW_FIELDS ? epw_field_first(u->context) : 0;
    uint32_t way = inner + epw_field_first(EPW_FIELD(qpc, primary_address_path));
    for (const epw_field *f = u->own; f != NULL && *f != EPW_FIELDS; f++) epw_field_allow(mask, 0, *f);
    for (const epw_field *f = u->inner; f != NULL && *f != EPW_FIELDS; f++) epw_field_allow(mask, inner, *f);
    for (const epw_field *f = u->way; f != NULL && *f != EPW_FIELDS; f++) epw_field_allow(mask, way, *f);
    uint32_t stray = epw_field_stray(c->in, mask, bytes);
    require(c, stray == bytes * 8, SYNDROME_STRAY | stray);
}

/* ---- what commands name ---- */

static epw_fake_item *named(command *c, epw_fake_kind kind, uint64_t id, uint32_t syndrome) {
    epw_fake_item *item = epw_fake_find(c->fake, kind, (uint32_t)id);
    if (item != NULL && item->device != c->object->device) item = NULL; /* it belongs to another device */
    if (item == NULL) refuse(c, BAD_RESOURCE, syndrome);
    return item;
}

static epw_fake_item *umem(command *c, uint64_t id, uint64_t valid, size_t bytes) {
    require(c, valid, SYNDROME_UMEM);
    epw_fake_item *item = named(c, EPW_FAKE_UMEM, id, SYNDROME_UMEM);
    if (item != NULL) require(c, item->bytes >= bytes, SYNDROME_UMEM);
    return item;
}

static void make(command *c, epw_fake_kind kind, uint32_t id, epw_fake_item *const *uses, uint32_t count) {
    c->made = epw_fake_add(c->fake, kind, c->object->device, id);
    if (c->made == NULL) refuse(c, EXCEED_LIM, 0);
    for (uint32_t i = 0; c->made != NULL && i < count; i++) epw_fake_use(c->made, uses[i]);
}

/* ---- QUERY_HCA_CAP ---- */

/* The most entries of a ring, and bytes of an entry, as powers of two. */
static uint32_t log_entries_of(const epw_fake *fake) {
    return epw_fake_lacks(fake, EPW_FAKE_SHORT_RINGS) ? 6 : EPW_FAKE_LOG_ENTRIES;
}

static uint32_t log_message_of(const epw_fake *fake) {
    return epw_fake_lacks(fake, EPW_FAKE_SHORT_ENTRIES) ? 20 : 30;
}

/* The formats of timestamps: none to choose from, or real time alone. */
static uint64_t time_formats_of(const epw_fake *fake) {
    return epw_fake_lacks(fake, EPW_FAKE_NO_TIME_FORMAT) ? 0 : 1;
}

static bool reorders(const epw_fake *fake) {
    return !epw_fake_lacks(fake, EPW_FAKE_NO_REORDERING);
}

static bool forces_order(const epw_fake *fake) {
    return !epw_fake_lacks(fake, EPW_FAKE_NO_ORDER_FORCED);
}

static void put_roce(command *c, uint32_t base) {
    epw_field_put(c->out, base, EPW_FIELD(roce_cap, qp_ts_format), time_formats_of(c->fake));
}

static void put_general_2(command *c, uint32_t base) {
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap_2, dp_ordering_force), forces_order(c->fake));
}

static void put_general(command *c, uint32_t base) {
    const epw_fake *fake = c->fake;
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, log_max_qp_sz), log_entries_of(fake));
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, log_max_cq_sz), 22);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, log_max_msg), log_message_of(fake));
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, port_type), fake->options.infiniband ? 0 : 1);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, cqe_version),
                  epw_fake_lacks(fake, EPW_FAKE_NO_CQE_VERSION) ? 0 : 1);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, cq_oi), !epw_fake_lacks(fake, EPW_FAKE_NO_OVERRUN));
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, atomic), !epw_fake_lacks(fake, EPW_FAKE_NO_ATOMICS));
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, bf), 1);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, log_bf_reg_size), 9);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, rc), 1);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, roce), !fake->options.infiniband);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, hca_cap_2), 1);
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, dp_ordering_ooo_rw_rc), reorders(fake));
    /* With RoCE it is the other field that counts; then this one says the opposite, so that whoever reads it
     * is found out. */
    epw_field_put(c->out, base, EPW_FIELD(cmd_hca_cap, sq_ts_format),
                  fake->options.infiniband ? time_formats_of(fake) : !time_formats_of(fake));
}

static void query_cap(command *c) {
    check_stray(
        c, &(use){.context = EPW_FIELDS,
                  .own = LIST(EPW_FIELD(query_hca_cap_in, opcode), EPW_FIELD(query_hca_cap_in, op_mod))});
    uint64_t op_mod = IN(query_hca_cap_in, op_mod);
    /* The bit at which the capabilities begin, after status and syndrome. */
    const uint32_t base = 128, current = 1;
    uint64_t kind = op_mod >> 1;
    bool has_roce = !c->fake->options.infiniband;
    require(c, (op_mod & 1) == current, 0);
    require(c,
            kind == EPW_MLX5_CAP_GENERAL || kind == EPW_MLX5_CAP_GENERAL_2 ||
                (kind == EPW_MLX5_CAP_ROCE && has_roce),
            0);
    if (c->out_bytes < EPW_MLX5_QUERY_CAP_BYTES) refuse(c, BAD_OUTPUT_LEN, 0);
    if (c->status != OK) return;
    if (kind == EPW_MLX5_CAP_GENERAL) put_general(c, base);
    if (kind == EPW_MLX5_CAP_GENERAL_2) put_general_2(c, base);
    if (kind == EPW_MLX5_CAP_ROCE) put_roce(c, base);
}

/* ---- CREATE_CQ ---- */

static void create_cq(command *c) {
    check_stray(c, &(use){EPW_FIELD(create_cq_in, cqc),
                          LIST(EPW_FIELD(create_cq_in, opcode), EPW_FIELD(create_cq_in, cq_umem_id),
                               EPW_FIELD(create_cq_in, cq_umem_valid)),
                          LIST(EPW_FIELD(cqc, dbr_umem_valid), EPW_FIELD(cqc, cc), EPW_FIELD(cqc, oi),
                               EPW_FIELD(cqc, dbr_umem_id), EPW_FIELD(cqc, dbr_addr),
                               EPW_FIELD(cqc, log_cq_size), EPW_FIELD(cqc, uar_page), EPW_FIELD(cqc, c_eqn)),
                          NULL});
    epw_fake_item *uses[] = {
        umem(c, IN(create_cq_in, cq_umem_id), IN(create_cq_in, cq_umem_valid),
             (size_t)64 << CQC(log_cq_size)),
        umem(c, CQC(dbr_umem_id), CQC(dbr_umem_valid), 8),
        named(c, EPW_FAKE_UAR, CQC(uar_page), SYNDROME_UAR),
    };
    uint64_t record = CQC(dbr_addr);
    if (uses[1] != NULL) require(c, record % 8 == 0 && record <= uses[1]->bytes - 8, SYNDROME_UMEM);
    require(c, CQC(c_eqn) == EPW_FAKE_EQ, SYNDROME_EQ);
    require(c, CQC(cc) && CQC(oi), SYNDROME_KIND);
    /* The entry must not look like a completion before the first one has arrived. */
    for (uint32_t i = 0; c->status == OK && i < 64; i++)
        require(c, uses[0]->address[i] == CQ_FILL, SYNDROME_FILL);
    if (c->status != OK) return;
    make(c, EPW_FAKE_CQ, 0, uses, 3);
    if (c->made == NULL) return;
    c->made->address = uses[0]->address;
    c->made->record = uses[1]->address + record;
}

/* ---- CREATE_QP ---- */

/* Called by the soft NIC, with its lock held, when the pair has stopped working. */
static void broken(void *context) {
    epw_fake_item *qp = context;
    if (epw_fake_lacks(qp->fake, EPW_FAKE_NO_PAIR_EVENTS)) return;
    epw_fake_raise(qp->fake, qp->device, &(epw_mlx5_event){EPW_MLX5_EVENT_PAIR, qp->id});
}

static void carry_out(command *c, epw_fake_item *qp, uint32_t domain, const epw_pair_memory *memory,
                      epw_pair **pair) {
    epw_pair_options options = {.peer = EPW_PAIR_ANY_PEER,
                                .key = EPW_PAIR_ANY_KEY,
                                .domain = domain,
                                .depth = memory->depth,
                                .parts = memory,
                                .broken = broken,
                                .context = qp};
    epw_where where = {"create", (int)c->fake->options.rank, -1};
    if (epw_pair_create(c->fake->options.nic, &options, where, pair) != EPW_OK) refuse(c, EXCEED_LIM, 0);
}

static void make_qp(command *c, epw_fake_item *const *uses, uint32_t count, uint32_t log_entries) {
    epw_pair_memory memory = {.entries = uses[0]->address,
                              .depth = UINT32_C(1) << log_entries,
                              .record = (uint32_t *)(void *)uses[1]->address,
                              .doorbell = (uint64_t *)(void *)uses[2]->address,
                              .completion = uses[3]->address};
    make(c, EPW_FAKE_QP, 0, uses, count);
    if (c->made == NULL || c->fake->options.nic == NULL) return;
    carry_out(c, c->made, uses[4]->id, &memory, &c->made->pair);
    if (c->made->pair != NULL) {
        epw_fake_rename(c->made, epw_pair_number(c->made->pair));
    } else {
        epw_fake_drop(c->made);
        c->made = NULL;
    }
}

static void create_qp(command *c) {
    const epw_field context = EPW_FIELD(create_qp_in, qpc);
    check_stray(c, &(use){context,
                          LIST(EPW_FIELD(create_qp_in, opcode), EPW_FIELD(create_qp_in, wq_umem_id),
                               EPW_FIELD(create_qp_in, wq_umem_valid)),
                          LIST(EPW_FIELD(qpc, st), EPW_FIELD(qpc, pm_state), EPW_FIELD(qpc, pd),
                               EPW_FIELD(qpc, log_sq_size), EPW_FIELD(qpc, uar_page), EPW_FIELD(qpc, cqn_snd),
                               EPW_FIELD(qpc, cqn_rcv), EPW_FIELD(qpc, rq_type), EPW_FIELD(qpc, ts_format),
                               EPW_FIELD(qpc, dbr_umem_valid), EPW_FIELD(qpc, dbr_umem_id)),
                          NULL});
    uint32_t log_entries = (uint32_t)QPC(context, log_sq_size);
    epw_fake_item *uses[] = {
        umem(c, IN(create_qp_in, wq_umem_id), IN(create_qp_in, wq_umem_valid), (size_t)64 << log_entries),
        umem(c, QPC(context, dbr_umem_id), QPC(context, dbr_umem_valid), 8),
        named(c, EPW_FAKE_UAR, QPC(context, uar_page), SYNDROME_UAR),
        named(c, EPW_FAKE_CQ, QPC(context, cqn_snd), SYNDROME_CQ),
        named(c, EPW_FAKE_DOMAIN, QPC(context, pd), SYNDROME_PD),
    };
    named(c, EPW_FAKE_CQ, QPC(context, cqn_rcv), SYNDROME_CQ);
    if (log_entries > log_entries_of(c->fake)) refuse(c, EXCEED_LIM, SYNDROME_SIZE);
    require(c, QPC(context, st) == 0 && QPC(context, rq_type) == RECEIVE_NONE, SYNDROME_KIND);
    require(c, QPC(context, pm_state) == MIGRATED, SYNDROME_KIND);
    /* Format 1 is the one that the adapter is set to. */
    require(c, QPC(context, ts_format) == time_formats_of(c->fake), SYNDROME_TIME);
    /* Firmware would take a record of both, in which it reads counters of the one as commands of the other.
     */
    if (c->status == OK) require(c, uses[3]->record != uses[1]->address, SYNDROME_UMEM);
    if (c->status == OK) make_qp(c, uses, 5, log_entries);
}

/* ---- a queue pair's states ---- */

static void move_if(command *c, bool allowed, uint32_t to) {
    epw_fake_item *qp = c->object;
    if (!allowed)
        refuse(c, BAD_QP_STATE,
               SYNDROME_STATE | qp->state << 12 |
                   (uint32_t)epw_field_get(c->in, 0, EPW_FIELD(modify_qp_in, opcode)));
    if (c->status == OK) qp->state = to;
}

static void move(command *c, uint32_t from, uint32_t to) {
    move_if(c, c->object->state == from, to);
}

static void to_init(command *c) {
    const epw_field context = EPW_FIELD(rst2init_qp_in, qpc);
    check_stray(c, &(use){context, LIST(EPW_FIELD(rst2init_qp_in, opcode), EPW_FIELD(rst2init_qp_in, qpn)),
                          LIST(EPW_FIELD(qpc, pm_state)), LIST(EPW_FIELD(ads, vhca_port_num))});
    require(c, QPC(context, pm_state) == MIGRATED, SYNDROME_KIND);
    require(c, PATH(context, vhca_port_num) == EPW_FAKE_PORT, SYNDROME_PORT);
    move(c, EPW_MLX5_STATE_RST, EPW_MLX5_STATE_INIT);
}

/* Reads and checks an address path for Ethernet, as INIT2RTR carries it. */
static void take_ethernet(command *c, epw_field context, epw_fake_route *to) {
    unsigned char mac[6];
    epw_mlx5_gid own = {.type = EPW_MLX5_GID_IB};
    uint32_t first = (path(context) + epw_field_first(EPW_FIELD(ads, rgid_rip))) / 8;
    uint64_t said = PATH(context, rmac_47_32) << 32 | PATH(context, rmac_31_0), right = 0;
    memcpy(to->gid, c->in + first, sizeof to->gid);
    epw_fake_mac(to->gid, mac);
    for (uint32_t i = 0; i < sizeof mac; i++) right = right << 8 | mac[i];
    require(c, said == right && PATH(context, hop_limit) > 0 && PATH(context, udp_sport) >= UDP_FIRST,
            SYNDROME_PATH);
    bool has = epw_fake_gid(c->fake, c->object->device, (uint32_t)PATH(context, src_addr_index), &own) == 0;
    require(c, has && own.type == EPW_MLX5_GID_ROCE_V2, SYNDROME_SOURCE);
}

static void check_rights(command *c, epw_field context) {
    uint64_t mask = IN(init2rtr_qp_in, opt_param_mask);
    uint64_t rights = QPC(context, rre) << 1 | QPC(context, rae) << 2 | QPC(context, rwe) << 3;
    require(c, (mask & ~(uint64_t)RIGHTS) == 0 && (rights & ~mask) == 0 && QPC(context, rwe),
            SYNDROME_RIGHTS);
    bool atomics = QPC(context, rae) != 0;
    require(c, atomics == (QPC(context, atomic_mode) > 0), SYNDROME_ATOMICS);
    require(c, !atomics || !epw_fake_lacks(c->fake, EPW_FAKE_NO_ATOMICS), SYNDROME_ATOMICS);
}

static void to_rtr(command *c) {
    const epw_field context = EPW_FIELD(init2rtr_qp_in, qpc);
    bool infiniband = c->fake->options.infiniband;
    const epw_field *ethernet =
        LIST(EPW_FIELD(ads, vhca_port_num), EPW_FIELD(ads, src_addr_index), EPW_FIELD(ads, hop_limit),
             EPW_FIELD(ads, rgid_rip), EPW_FIELD(ads, dscp), EPW_FIELD(ads, udp_sport),
             EPW_FIELD(ads, eth_prio), EPW_FIELD(ads, rmac_47_32), EPW_FIELD(ads, rmac_31_0));
    const epw_field *local = LIST(EPW_FIELD(ads, vhca_port_num), EPW_FIELD(ads, rlid), EPW_FIELD(ads, sl));
    check_stray(c, &(use){context,
                          LIST(EPW_FIELD(init2rtr_qp_in, opcode), EPW_FIELD(init2rtr_qp_in, qpn),
                               EPW_FIELD(init2rtr_qp_in, opt_param_mask)),
                          LIST(EPW_FIELD(qpc, mtu), EPW_FIELD(qpc, log_msg_max), EPW_FIELD(qpc, remote_qpn),
                               EPW_FIELD(qpc, log_rra_max), EPW_FIELD(qpc, atomic_mode), EPW_FIELD(qpc, rre),
                               EPW_FIELD(qpc, rwe), EPW_FIELD(qpc, rae), EPW_FIELD(qpc, min_rnr_nak),
                               EPW_FIELD(qpc, next_rcv_psn), EPW_FIELD(qpc, dp_ordering_force)),
                          infiniband ? local : ethernet});
    epw_fake_route to = {.remote = (uint32_t)QPC(context, remote_qpn)};
    uint64_t mtu = QPC(context, mtu);
    require(c, mtu >= 1 && mtu <= epw_fake_mtu(c->fake), SYNDROME_MTU);
    require(c, QPC(context, log_msg_max) <= log_message_of(c->fake), SYNDROME_SIZE);
    require(c, PATH(context, vhca_port_num) == EPW_FAKE_PORT, SYNDROME_PORT);
    check_rights(c, context);
    /* Firmware would take a queue pair without order, or ignore what it does not know. */
    require(c, QPC(context, dp_ordering_force) == (reorders(c->fake) && forces_order(c->fake)),
            SYNDROME_ORDER);
    if (infiniband) {
        to.lid = (uint32_t)PATH(context, rlid);
        require(c, to.lid != 0, SYNDROME_PATH);
    } else {
        take_ethernet(c, context, &to);
    }
    require(c, to.remote != 0, SYNDROME_PATH);
    move(c, EPW_MLX5_STATE_INIT, EPW_MLX5_STATE_RTR);
    if (c->status == OK) c->object->reached = to;
}

static bool is_of_device(const epw_fake_item *qp, const epw_fake_route *to) {
    epw_mlx5_gid own;
    if (qp->fake->options.infiniband) return to->lid == epw_fake_lid(qp->fake, qp->device);
    for (uint32_t i = 0; i < epw_fake_gids(qp->fake); i++)
        if (epw_fake_gid(qp->fake, qp->device, i, &own) == 0 && memcmp(own.bytes, to->gid, 16) == 0)
            return true;
    return false;
}

/* Connects the pair by the link that leads to the address which INIT2RTR has named, or by no link if there is
 * none. One that goes astray fails when it is rung for, as if the retries were over at once. */
void epw_fake_reach(epw_fake_item *qp) {
    if (qp->pair == NULL) return;
    const epw_fake_route *way = &qp->route, *to = &qp->reached;
    bool same =
        way->remote == to->remote && way->lid == to->lid && memcmp(way->gid, to->gid, sizeof to->gid) == 0;
    qp->astray = epw_fake_lacks(qp->fake, EPW_FAKE_NO_LOOPBACK) && is_of_device(qp, to);
    if (!qp->astray) epw_pair_connect(qp->pair, same ? way->link : 0, to->remote);
}

static void to_rts(command *c) {
    const epw_field context = EPW_FIELD(rtr2rts_qp_in, qpc);
    check_stray(c, &(use){context, LIST(EPW_FIELD(rtr2rts_qp_in, opcode), EPW_FIELD(rtr2rts_qp_in, qpn)),
                          LIST(EPW_FIELD(qpc, log_sra_max), EPW_FIELD(qpc, retry_count),
                               EPW_FIELD(qpc, rnr_retry), EPW_FIELD(qpc, next_send_psn)),
                          LIST(EPW_FIELD(ads, ack_timeout))});
    /* 0 would retry without end, and every wait of this library is bounded. */
    require(c, PATH(context, ack_timeout) > 0 && QPC(context, retry_count) > 0, SYNDROME_RETRIES);
    move(c, EPW_MLX5_STATE_RTR, EPW_MLX5_STATE_RTS);
    if (c->status == OK) epw_fake_reach(c->object);
}

/* Can only take rights away. */
static void change_rts(command *c) {
    check_stray(c, &(use){.context = EPW_FIELDS,
                          .own = LIST(EPW_FIELD(rts2rts_qp_in, opcode), EPW_FIELD(rts2rts_qp_in, qpn),
                                      EPW_FIELD(rts2rts_qp_in, opt_param_mask))});
    require(c, IN(rts2rts_qp_in, opt_param_mask) == RIGHTS, SYNDROME_RIGHTS);
    move(c, EPW_MLX5_STATE_RTS, EPW_MLX5_STATE_RTS);
    if (c->status == OK && c->object->pair != NULL) epw_pair_close(c->object->pair);
}

static void check_short(command *c) {
    check_stray(c, &(use){.context = EPW_FIELDS,
                          .own = LIST(EPW_FIELD(modify_qp_in, opcode), EPW_FIELD(modify_qp_in, qpn))});
}

/* From RST the kernel's own table of states does not allow it, and some firmware refuses it. */
static void to_error(command *c) {
    check_short(c);
    move_if(c, c->object->state != EPW_MLX5_STATE_RST, EPW_MLX5_STATE_ERR);
    if (c->status != OK || c->object->pair == NULL) return;
    epw_pair_close(c->object->pair);
    epw_pair_break(c->object->pair);
}

static void to_reset(command *c) {
    check_short(c);
    move_if(c, true, EPW_MLX5_STATE_RST);
}

static void query_qp(command *c) {
    check_short(c);
    if (c->out_bytes < EPW_MLX5_QUERY_QP_BYTES) refuse(c, BAD_OUTPUT_LEN, 0);
    if (c->status != OK) return;
    const epw_fake_item *qp = c->object;
    bool failed = qp->pair != NULL && epw_pair_broken(qp->pair);
    epw_field_put(c->out, epw_field_first(EPW_FIELD(query_qp_out, qpc)), EPW_FIELD(qpc, state),
                  failed ? EPW_MLX5_STATE_ERR : qp->state);
}

/* ---- any command ---- */

static const struct {
    uint32_t opcode;
    size_t in_bytes;
    epw_fake_call call; /* the only call that accepts it */
    void (*carry)(command *c);
} commands[] = {
    {EPW_MLX5_QUERY_HCA_CAP, EPW_MLX5_SHORT_BYTES, EPW_FAKE_CALL_GENERAL, query_cap},
    {EPW_MLX5_CREATE_CQ, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_CREATE, create_cq},
    {EPW_MLX5_CREATE_QP, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_CREATE, create_qp},
    {EPW_MLX5_RST2INIT, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_MODIFY, to_init},
    {EPW_MLX5_INIT2RTR, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_MODIFY, to_rtr},
    {EPW_MLX5_RTR2RTS, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_MODIFY, to_rts},
    {EPW_MLX5_RTS2RTS, EPW_MLX5_IN_BYTES, EPW_FAKE_CALL_MODIFY, change_rts},
    {EPW_MLX5_2ERR, EPW_MLX5_SHORT_BYTES, EPW_FAKE_CALL_MODIFY, to_error},
    {EPW_MLX5_2RST, EPW_MLX5_SHORT_BYTES, EPW_FAKE_CALL_MODIFY, to_reset},
    {EPW_MLX5_QUERY_QP, EPW_MLX5_SHORT_BYTES, EPW_FAKE_CALL_QUERY, query_qp},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* What the kernel checks before firmware sees a command: that this call accepts the opcode, and that the
 * number in the command is that of the object. */
static bool passes_kernel(const command *c, epw_fake_call call, uint32_t i) {
    if (i == COMMANDS || commands[i].call != call) return false;
    const epw_fake_item *object = c->object;
    if (call == EPW_FAKE_CALL_CREATE || call == EPW_FAKE_CALL_GENERAL) return object->kind == EPW_FAKE_DEVICE;
    return object->kind == EPW_FAKE_QP && c->in_bytes >= EPW_MLX5_SHORT_BYTES &&
           IN(modify_qp_in, qpn) == object->id;
}

int epw_fake_command(epw_fake_item *object, epw_fake_call call, const void *in, size_t in_bytes, void *out,
                     size_t out_bytes, epw_fake_item **made) {
    epw_fake *fake = object->fake;
    unsigned char seen[EPW_MLX5_IN_BYTES];
    if (in_bytes > sizeof seen || in_bytes < 4 || out_bytes < EPW_MLX5_OUT_BYTES) return EINVAL;
    memcpy(seen, in, in_bytes);
    pthread_mutex_lock(&fake->lock);
    epw_fake_tap tap = fake->tap;
    pthread_mutex_unlock(&fake->lock);
    if (tap.command != NULL) tap.command(tap.context, seen, in_bytes);
    command c = {
        .fake = fake, .object = object, .in = seen, .out = out, .in_bytes = in_bytes, .out_bytes = out_bytes};
    uint32_t i = 0, opcode = (uint32_t)epw_field_get(seen, 0, EPW_FIELD(modify_qp_in, opcode));
    while (i < COMMANDS && commands[i].opcode != opcode) i++;
    if (!passes_kernel(&c, call, i)) return EINVAL;
    memset(out, 0, out_bytes);
    if (epw_fake_fails(fake, call)) {
        pthread_mutex_lock(&fake->lock);
        int err = fake->options.failing_errno;
        uint32_t status = fake->options.failing_status;
        pthread_mutex_unlock(&fake->lock);
        if (err != 0) return err;
        refuse(&c, status != OK ? status : BAD_PARAM, SYNDROME_PLANNED);
    } else if (in_bytes != commands[i].in_bytes) {
        refuse(&c, BAD_INPUT_LEN, 0);
    } else {
        commands[i].carry(&c);
    }
    epw_field_put(out, 0, EPW_FIELD(create_cq_out, status), c.status);
    epw_field_put(out, 0, EPW_FIELD(create_cq_out, syndrome), c.syndrome);
    if (c.made != NULL) epw_field_put(out, 0, EPW_FIELD(create_cq_out, cqn), c.made->id);
    if (tap.answer != NULL) tap.answer(tap.context, out, out_bytes);
    if (c.status != OK) return EREMOTEIO;
    if (made != NULL) *made = c.made;
    return 0;
}
