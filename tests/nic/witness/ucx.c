/* UCX as a witness: its ib_mlx5_dv.c and rc_mlx5_devx.c connect and close a queue pair on our fake adapter.
 * Each command is compared with ours for the same arguments and then passed to the fake, after the bits that
 * the fake refuses have been cleared, which is reported. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <uct/ib/mlx5/dv/ib_mlx5_ifc.h>
#include <uct/ib/mlx5/ib_mlx5.h>
#include <uct/ib/rc/accel/rc_mlx5_common.h>

#include "compare.h"

#include "nic/fake.h"
#include "nic/mlx5/commands.h"

#include <errno.h>
#include <sys/mman.h>

static const char who[] = "ucx";

enum { RANK = 3, PORT = 1, SEND_ENTRIES = 16, PAGE = 4096 };
static const uint32_t remote = 0x54321;

/* Our fake device, and the objects that a queue pair needs. */
static struct {
    epw_fake *fake;
    const epw_mlx5_calls *calls;
    void *device, *domain;
    uint32_t domain_number, event_queue, cq_number;
    epw_mlx5_uar uar;
    bool infiniband;
    epw_mlx5_path path;
    epw_mlx5_qp qp; /* requested by CREATE_QP */
    uint32_t number;
} rig;

/* ---- commands ---- */

typedef struct known_command {
    uint32_t opcode;
    const char *name, *structure;
    const char *context;
} known_command;

static const known_command *find(const void *in) {
    static const known_command commands[] = {{EPW_MLX5_CREATE_QP, "CREATE_QP", "create_qp_in", "qpc"},
                                             {EPW_MLX5_RST2INIT, "RST2INIT", "rst2init_qp_in", "qpc"},
                                             {EPW_MLX5_INIT2RTR, "INIT2RTR", "init2rtr_qp_in", "qpc"},
                                             {EPW_MLX5_RTR2RTS, "RTR2RTS", "rtr2rts_qp_in", "qpc"},
                                             {EPW_MLX5_2ERR, "2ERR", "modify_qp_in", NULL},
                                             {EPW_MLX5_2RST, "2RST", "modify_qp_in", NULL},
                                             {EPW_MLX5_QUERY_QP, "QUERY_QP", "query_qp_in", NULL}};
    uint32_t opcode = (uint32_t)bits_at(in, 0, 16), i = 0;
    while (commands[i].opcode != opcode) i++;
    return &commands[i];
}

static void build(uint32_t opcode, unsigned char ours[EPW_MLX5_IN_BYTES]) {
    memset(ours, 0, EPW_MLX5_IN_BYTES);
    switch (opcode) {
    case EPW_MLX5_CREATE_QP:
        epw_mlx5_build_create_qp(ours, &rig.qp);
        break;
    case EPW_MLX5_RST2INIT:
        epw_mlx5_build_rst2init(ours, rig.number, &rig.path);
        break;
    case EPW_MLX5_INIT2RTR:
        epw_mlx5_build_init2rtr(ours, rig.number, &rig.path);
        break;
    case EPW_MLX5_RTR2RTS:
        epw_mlx5_build_rtr2rts(ours, rig.number, &rig.path);
        break;
    default:
        epw_mlx5_build_short(ours, opcode, rig.number);
    }
}

static char *name_of(const known_command *c, char name[64]) {
    bool both = c->opcode == EPW_MLX5_INIT2RTR;
    snprintf(name, 64, "%s%s", c->name, !both ? "" : rig.infiniband ? "/InfiniBand" : "/RoCE");
    return name;
}

static void check(const void *in, size_t bytes) {
    const known_command *c = find(in);
    unsigned char ours[EPW_MLX5_IN_BYTES];
    char name[64];
    build(c->opcode, ours);
    size_t wanted = c->context != NULL ? EPW_MLX5_IN_BYTES : EPW_MLX5_SHORT_BYTES;
    if (bytes != wanted) printf("%s %s bytes differs: %zu, ours %zu\n", who, name_of(c, name), bytes, wanted);
    compare_command(who, name_of(c, name), c->structure, c->context, in, ours,
                    bytes < wanted ? bytes : wanted);
}

static void set_field(unsigned char *in, const char *structure, const char *field, uint32_t base,
                      uint32_t bits, uint32_t value) {
    uint32_t first = base + first_of(structure, field);
    for (uint32_t i = 0; i < bits; i++) {
        unsigned char mask = (unsigned char)(0x80u >> (first + i) % 8);
        in[(first + i) / 8] &= (unsigned char)~mask;
        if (value >> (bits - 1 - i) & 1) in[(first + i) / 8] |= mask;
    }
}

/* Sets what the kernel sets for its callers, and a receive queue, which does not exist here. */
static void prepare(const known_command *c, unsigned char *in) {
    if (c->opcode != EPW_MLX5_CREATE_QP) return;
    uint32_t qpc = first_of("create_qp_in", "qpc");
    set_field(in, "create_qp_in", "wq_umem_valid", 0, 1, 1);
    set_field(in, "qpc", "dbr_umem_valid", qpc, 1, 1);
    set_field(in, "qpc", "rq_type", qpc, 3, 3);
    printf("%s %s for the fake, qpc.rq_type is set to 3, and what the kernel sets: wq_umem_valid, "
           "dbr_umem_valid\n",
           who, c->name);
}

typedef int (*call)(void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes);

static void *created;

static int create(void *device, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    return rig.calls->create(device, in, in_bytes, out, out_bytes, &created);
}

/* The fake names the first bit that it does not know: the bit is cleared, and the command is passed again. */
static int carry(call by, void *object, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    enum { STRAY = 0x200000 };
    const known_command *c = find(in);
    unsigned char copy[EPW_MLX5_IN_BYTES];
    char name[64], field[64], last[64] = "";
    if (in_bytes > sizeof copy) return E2BIG;
    check(in, in_bytes);
    memcpy(copy, in, in_bytes);
    prepare(c, copy);
    for (;;) { /* ends: each iteration clears a bit */
        int err = by(object, copy, in_bytes, out, out_bytes);
        uint32_t syndrome = err == EREMOTEIO ? epw_mlx5_syndrome(out) : 0, bit = syndrome & (STRAY - 1);
        if ((syndrome & ~(uint32_t)(STRAY - 1)) != STRAY || bit >= in_bytes * 8) {
            printf("%s %s fake %s", who, name_of(c, name), err == 0 ? "takes\n" : "refuses");
            if (err != 0)
                printf(": errno %d, %s, syndrome %x\n", err, epw_mlx5_status_name(epw_mlx5_status(out)),
                       syndrome);
            return err;
        }
        copy[bit / 8] &= (unsigned char)~(0x80u >> bit % 8);
        name_bit(c->structure, bit, field, sizeof field);
        if (strcmp(field, last) != 0)
            printf("%s %s for the fake, cleared: %s\n", who, name_of(c, name), field);
        strcpy(last, field);
    }
}

/* ---- what UCX calls of libmlx5 ---- */

struct mlx5dv_devx_obj {
    void *item;
};

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen,
                                               void *out, size_t outlen) {
    (void)context;
    if (carry(create, rig.device, in, inlen, out, outlen) != 0) return NULL;
    struct mlx5dv_devx_obj *object = malloc(sizeof *object);
    object->item = created;
    rig.number = epw_mlx5_number(out);
    return object;
}

int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *object, const void *in, size_t inlen, void *out,
                           size_t outlen) {
    return carry(rig.calls->modify, object->item, in, inlen, out, outlen);
}

int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *object, const void *in, size_t inlen, void *out,
                          size_t outlen) {
    return carry(rig.calls->query, object->item, in, inlen, out, outlen);
}

int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *object) {
    int err = rig.calls->destroy(object->item);
    free(object);
    return err;
}

static struct {
    struct mlx5dv_devx_umem umem;
    epw_mlx5_umem ours;
} umems[4];

struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *address, size_t size,
                                              uint32_t access) {
    (void)context, (void)access;
    int i = 0;
    while (umems[i].ours.handle != NULL) i++;
    if (rig.calls->umem(rig.device, address, size, -1, &umems[i].ours) != 0) return NULL;
    umems[i].umem.umem_id = rig.qp.umem = umems[i].ours.id; /* the only umem that UCX registers is the ring */
    return &umems[i].umem;
}

int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem) {
    for (int i = 0; i < 4; i++)
        if (&umems[i].umem == umem) {
            int err = rig.calls->free_umem(umems[i].ours.handle);
            umems[i].ours.handle = NULL;
            return err;
        }
    return EINVAL;
}

int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t type) {
    static struct mlx5_wqe_av av;
    if (type & MLX5DV_OBJ_PD) obj->pd.out->pdn = rig.domain_number;
    if (type & MLX5DV_OBJ_CQ) obj->cq.out->cqn = rig.cq_number;
    if (type & MLX5DV_OBJ_AH) {
        memcpy(av.rmac, rig.path.mac, sizeof av.rmac);
        memcpy(av.rgid, rig.path.gid, sizeof av.rgid);
        av.hop_limit = (uint8_t)rig.path.hop_limit;
        obj->ah.out->av = &av;
    }
    return 0;
}

int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t inlen, void *out,
                            size_t outlen) {
    (void)context, (void)in, (void)inlen, (void)out, (void)outlen;
    return EINVAL;
}

/* ---- and of its other files ---- */

ucs_global_opts_t ucs_global_opts;

void ucs_log_dispatch(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                      ucs_log_component_config_t *component, const char *format, ...) {
    (void)file, (void)component;
    if (level > UCS_LOG_LEVEL_ERROR) return;
    printf("%s says in %s, line %u: %s\n", who, function, line, format);
}

void *ucs_malloc(size_t size, const char *name) {
    (void)name;
    return malloc(size);
}

void ucs_free(void *memory) {
    free(memory);
}

int ucs_posix_memalign(void **out, size_t boundary, size_t size, const char *name) {
    (void)name;
    return posix_memalign(out, boundary, size);
}

size_t ucs_get_page_size(void) {
    return PAGE;
}

void uct_ib_iface_fill_attr(uct_ib_iface_t *iface, uct_ib_qp_attr_t *attr) {
    (void)iface, (void)attr;
}

int uct_ib_iface_is_roce(uct_ib_iface_t *iface) {
    (void)iface;
    return !rig.infiniband;
}

int uct_ib_iface_is_roce_v2(uct_ib_iface_t *iface) {
    (void)iface;
    return !rig.infiniband;
}

ucs_status_t uct_ib_iface_create_ah(uct_ib_iface_t *iface, struct ibv_ah_attr *attr, const char *usage,
                                    struct ibv_ah **out) {
    (void)iface, (void)attr, (void)usage;
    *out = NULL;
    return UCS_OK;
}

size_t uct_ib_mtu_value(enum ibv_mtu mtu) {
    return (size_t)128 << mtu;
}

ucs_status_t uct_ib_mlx5_get_mmio_mode(uct_priv_worker_t *worker, uct_ib_mlx5_mmio_mode_t asked,
                                       unsigned bf_size, uct_ib_mlx5_mmio_mode_t *mode) {
    (void)worker, (void)asked, (void)bf_size;
    *mode = UCT_IB_MLX5_MMIO_MODE_DB;
    return UCS_OK;
}

static struct mlx5dv_devx_uar uar;

ucs_status_t uct_ib_mlx5_devx_uar_init(uct_ib_mlx5_devx_uar_t *out, uct_ib_mlx5_md_t *md,
                                       uct_ib_mlx5_mmio_mode_t mode) {
    (void)md, (void)mode;
    uar.page_id = rig.uar.page;
    out->uar = &uar;
    return UCS_OK;
}

void uct_ib_mlx5_devx_uar_cleanup(uct_ib_mlx5_devx_uar_t *out) {
    (void)out;
}

void uct_ib_mlx5_txwq_reset(uct_ib_mlx5_txwq_t *txwq) {
    (void)txwq;
}

/* ---- the way up and down ---- */

static void *page_of(int fill) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    return memset(page, fill, PAGE);
}

static void need(bool holds, const char *what) {
    if (holds) return;
    printf("%s harness: %s\n", who, what);
    exit(1);
}

static void lead(bool infiniband) {
    static uct_rc_mlx5_iface_common_t iface; /* zeroed, and too large for a stack */
    static uct_ib_mlx5_md_t md;
    static uct_priv_worker_t worker;
    static ucs_mpool_data_t pool;
    static struct {
        ucs_mpool_elem_t element;
        uct_ib_mlx5_dbrec_t record;
    } records;
    const epw_where where = {"witness", RANK, -1};
    memset(&rig, 0, sizeof rig);
    rig.infiniband = infiniband;
    /* This UCX is older than formats of timestamps, and than another order of writes. */
    const uint64_t lacks = UINT64_C(1) << EPW_FAKE_NO_TIME_FORMAT | UINT64_C(1) << EPW_FAKE_NO_REORDERING;
    need(epw_fake_open(&(epw_fake_options){.rank = RANK, .infiniband = infiniband, .lacks = lacks}, where,
                       &rig.fake) == EPW_OK,
         "open");
    rig.calls = epw_fake_calls(rig.fake);
    need(rig.calls->open(rig.calls->library, "fake_0", &rig.device) == 0, "device");
    need(rig.calls->domain(rig.device, &rig.domain, &rig.domain_number) == 0, "domain");
    need(rig.calls->event_queue(rig.device, &rig.event_queue) == 0, "event queue");
    need(rig.calls->uar(rig.device, EPW_MLX5_UAR_BF, &rig.uar) == 0, "register");
    rig.path = (epw_mlx5_path){.ethernet = !infiniband,
                               .port = PORT,
                               .remote = remote,
                               .mtu = 5,
                               .lid = infiniband ? 4 : 0,
                               .gid_index = 3,
                               .udp_port = 0xc123,
                               .hop_limit = 64,
                               .traffic_class = 106,
                               .service_level = 3,
                               .atomics = true,
                               .log_reads = 4,
                               .timeout = 18,
                               .retries = 7};
    if (!infiniband) {
        memcpy(rig.path.gid, (unsigned char[16]){[10] = 0xff, 0xff, 10, 77, 0, RANK}, 16);
        memcpy(rig.path.mac, (unsigned char[6]){2, 0, 10, 77, 0, RANK}, 6);
    }

    /* UCX lets libibverbs make its completion queues: this one is ours. */
    epw_mlx5_umem completions, record_umem;
    void *cq = NULL, *completion = page_of(0xff), *record = page_of(0);
    unsigned char in[EPW_MLX5_IN_BYTES], out[EPW_MLX5_OUT_BYTES];
    need(rig.calls->umem(rig.device, completion, PAGE, -1, &completions) == 0, "umem");
    need(rig.calls->umem(rig.device, record, PAGE, -1, &record_umem) == 0, "umem");
    epw_mlx5_build_create_cq(in, &(epw_mlx5_cq){.umem = completions.id,
                                                .record_umem = record_umem.id,
                                                .record = 128,
                                                .uar = rig.uar.page,
                                                .eq = rig.event_queue});
    need(rig.calls->create(rig.device, in, sizeof in, out, sizeof out, &cq) == 0, "completion queue");
    rig.cq_number = epw_mlx5_number(out);

    memset(&iface, 0, sizeof iface);
    memset(&md, 0, sizeof md);
    memset(&records, 0, sizeof records);
    uct_ib_iface_t *ib = &iface.super.super;
    ib->super.md = &md.super.super;
    ib->super.worker = &worker;
    ucs_list_head_init(&worker.tl_data);
    records.record.mem_id = record_umem.id;
    md.dbrec_pool = (ucs_mpool_t){.freelist = &records.element, .data = &pool};
    pthread_spin_init(&md.dbrec_lock.super.lock, 0);
    ib->config.sl = (uint8_t)rig.path.service_level;
    ib->config.traffic_class = (uint8_t)rig.path.traffic_class;
    iface.super.config.max_rd_atomic = 1 << rig.path.log_reads;
    iface.super.config.min_rnr_timer = 12;
    iface.super.config.retry_cnt = (uint8_t)rig.path.retries;
    iface.super.config.rnr_retry = 7;
    iface.super.config.timeout = (uint8_t)rig.path.timeout;
    iface.config.log_ack_req_freq = 8; /* the default */

    /* UCX tells the length of its ring only afterwards, but CREATE_QP is compared while it is made: the
     * length must be this. */
    enum { LOG_ENTRIES = 6 };
    rig.qp = (epw_mlx5_qp){.record_umem = record_umem.id,
                           .uar = rig.uar.page,
                           .pd = rig.domain_number,
                           .cq = rig.cq_number,
                           .log_entries = LOG_ENTRIES};
    uct_ib_mlx5_qp_attr_t attr = {.super = {.qp_type = IBV_QPT_RC, .port = PORT}};
    attr.super.cap.max_send_wr = SEND_ENTRIES;
    attr.super.cap.max_send_sge = 2;
    uct_ib_mlx5_txwq_t tx = {0};
    uct_ib_mlx5_qp_t *qp = &tx.super;
    need(uct_ib_mlx5_devx_create_qp(ib, qp, &tx, &attr) == UCS_OK, "CREATE_QP and RST2INIT");
    need(attr.super.cap.max_send_wr == 1 << LOG_ENTRIES, "its ring is not as long as ours");

    struct ibv_ah_attr ah = {
        .is_global = !infiniband, .port_num = PORT, .sl = (uint8_t)rig.path.service_level};
    ah.dlid = (uint16_t)(infiniband ? rig.path.lid : rig.path.udp_port); /* UCX keeps it there on Ethernet */
    ah.grh.sgid_index = (uint8_t)rig.path.gid_index;
    memcpy(ah.grh.dgid.raw, rig.path.gid, 16);
    need(uct_rc_mlx5_iface_common_devx_connect_qp(&iface, qp, remote, &ah, IBV_MTU_4096, 0) == UCS_OK,
         "INIT2RTR and RTR2RTS");

    uint32_t peer;
    need(uct_ib_mlx5_devx_query_qp_peer_info(ib, qp, &ah, &peer) == UCS_OK, "QUERY_QP");
    unsigned char state[EPW_MLX5_QUERY_QP_BYTES], few[EPW_MLX5_SHORT_BYTES];
    epw_mlx5_build_short(few, EPW_MLX5_QUERY_QP, rig.number);
    need(rig.calls->query(qp->devx.obj->item, few, sizeof few, state, sizeof state) == 0, "our QUERY_QP");
    printf("%s way up on %s %s\n", who, infiniband ? "InfiniBand" : "RoCE",
           epw_mlx5_state(state) == EPW_MLX5_STATE_RTS ? "ends in RTS" : "does not end in RTS");
    need(uct_ib_mlx5_devx_modify_qp_state(qp, IBV_QPS_ERR) == UCS_OK, "2ERR");
    need(uct_ib_mlx5_devx_modify_qp_state(qp, IBV_QPS_RESET) == UCS_OK, "2RST");
    uct_ib_mlx5_devx_destroy_qp(&md, qp);

    need(rig.calls->destroy(cq) == 0, "completion queue");
    need(rig.calls->free_umem(completions.handle) == 0 && rig.calls->free_umem(record_umem.handle) == 0,
         "umems");
    rig.calls->free_uar(rig.uar.handle);
    need(rig.calls->free_domain(rig.domain) == 0 && rig.calls->close(rig.device) == 0, "device");
    epw_fake_left left = epw_fake_count(rig.fake);
    need(left.objects + left.umems + left.uars + left.domains + left.devices == 0, "something is left");
    epw_fake_close(rig.fake);
    munmap(completion, PAGE);
    munmap(record, PAGE);
}

int main(void) {
    lead(false);
    lead(true);
    return 0;
}
