/* epwire: expert-parallel Mixture-of-Experts communication.
 *
 * A rank owns some experts. `dispatch` sends each of its tokens once to every rank that owns one of the
 * token's top-k experts; `combine` brings the experts' outputs home and sums them with the routing weights.
 *
 * Sections: 1 status and errors, 2 configuration, 3 plan, 4 fabric, 5 buffer and membership, 6 dispatch and
 * combine (at its end: CUDA), 7 numerics, 8 collectives, 9 prefill.
 *
 * Conventions. Sizes are bytes unless a name says otherwise, times are nanoseconds, matrices are row-major.
 * Structs that cross this interface begin with `size` so that they can grow, and are filled with their
 * defaults before use: `epw_config config = EPW_CONFIG_INIT;` or `epw_config_init(&config)`, the same for
 * each. Two have no size of their own: epw_mask, which never changes, and epw_error_record, whose size is
 * part of epw_outcome.size and an argument of epw_take_errors. The macros are for C; C++ before 20 and other
 * languages use the functions. [in] and [out] say who writes. No function aborts; each returns a status, and
 * epw_last_error() then says in words what went wrong on this thread. A refused call changes nothing.
 *
 * Every wait is bounded. A peer that is silent for a deadline is given up. A rank that waits itself says so,
 * and is waited for longer; a wait ends after EPW_WAIT_DEADLINES_MAX deadlines at most, so that ranks which
 * wait for each other because their operations do not pair up end then. A call with a longer deadline of its
 * own says that too: its peers wait for it as long, and need not use the same.
 *
 * Between its calls, and between the halves of a split one, a rank says nothing. So while peers wait for it,
 * it makes its next call within one deadline of its last: else it is given up.
 */
#ifndef EPWIRE_H
#define EPWIRE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EPW_API __attribute__((visibility("default")))
#else
#define EPW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EPW_VERSION_MAJOR 0
#define EPW_VERSION_MINOR 1
#define EPW_VERSION_PATCH 0

/* ---- 1. Status and errors ------------------------------------------------------------------------------ */

typedef int32_t epw_status;

enum {
    EPW_OK = 0,
    EPW_PENDING = 1,        /* a non-blocking operation has not finished yet; not an error */
    EPW_ERR_INVALID = -1,   /* an argument is wrong */
    EPW_ERR_LIMIT = -2,     /* a size passes a limit of the plan or of the library */
    EPW_ERR_STATE = -3,     /* not possible now: lane held, handle already consumed, no membership yet */
    EPW_ERR_NO_MEMORY = -4, /* the system has no memory to give */
    EPW_ERR_SYSTEM = -5,    /* an operating system call failed */
    EPW_ERR_NO_PATH = -6,   /* no permitted path leads to the peer */
    EPW_ERR_MISMATCH = -7,  /* the peer's configuration or version differs */
    EPW_ERR_FENCED = -8,    /* the place still belongs to another, living incarnation */
    EPW_ERR_TIMEOUT = -9,   /* a bounded wait outside dispatch and combine expired */
    EPW_ERR_PEER = -10      /* the peer refused or is gone */
};

/* Short name of a status, for example "EPW_ERR_LIMIT". Never NULL. */
EPW_API const char *epw_status_name(epw_status status);

/* The text of the last error on the calling thread: operation, rank, peer, what was found, remedy. Valid
 * until the thread's next failing call. Empty if there was none. */
EPW_API const char *epw_last_error(void);

/* The same in parts. op and text live as long as epw_last_error's text. */
typedef struct epw_error_detail {
    uint32_t size;
    int32_t rank; /* this rank, -1 if not known */
    int32_t peer; /* the peer concerned, -1 if none */
    uint32_t reserved;
    const char *op;   /* the operation, for example "dispatch"; "" if there was no error */
    const char *text; /* what was found and what to do */
} epw_error_detail;

#define EPW_ERROR_DETAIL_INIT                                                                                \
    { .size = sizeof(epw_error_detail), .rank = -1, .peer = -1 }
EPW_API void epw_error_detail_init(epw_error_detail *detail);

/* Nothing beyond `size` is written. detail [in: size, out] */
EPW_API void epw_last_error_detail(epw_error_detail *detail);

/* "0.1.0" */
EPW_API const char *epw_version(void);

/* What the library says while it runs: which path leads to a peer and why others do not, sizes, memberships,
 * peers that are given up and why. The variable EPWIRE_LOG has it printed on stderr, or appended to the file
 * EPWIRE_LOG_FILE (%p in its name: the process): "off", "warn", "info" or "trace", or a level for each of the
 * subsystems plan, path, member, wait and nic, as in "warn,path=trace". Nothing is said of operations that go
 * well, and nothing costs more than a load where nobody listens. */
enum { EPW_LOG_OFF = 0, EPW_LOG_WARN = 1, EPW_LOG_INFO = 2, EPW_LOG_TRACE = 3 };

typedef struct epw_log_record {
    uint32_t size;
    uint32_t level;        /* EPW_LOG_WARN to EPW_LOG_TRACE */
    int32_t rank;          /* this rank, -1 if not known */
    int32_t peer;          /* the peer concerned, -1 if none */
    const char *subsystem; /* the name, for example "path" */
    const char *text;      /* without line ends; like the record valid until the function returns */
    uint64_t time_ns;      /* since 1970 */
} epw_log_record;

/* Called by the thread that has something to say, with locks of the library held: it may not call the
 * library, and returns soon. */
typedef void (*epw_log_fn)(void *context, const epw_log_record *record);

/* Has `fn` called with `context` for what `levels` names, in the form of EPWIRE_LOG, beside what EPWIRE_LOG
 * asks for; instead of the function that was given before. NULL: no more. A call that is under way in another
 * thread may still use the former function, with either context. EPW_ERR_INVALID: `levels` is something else.
 */
EPW_API epw_status epw_log_set(const char *levels, epw_log_fn fn, void *context);

/* ---- 2. Configuration ---------------------------------------------------------------------------------- */

#define EPW_MAX_RANKS    1024
#define EPW_MAX_TOPK     32
#define EPW_MAX_TOKENS   65536
#define EPW_MAX_LANES    2
#define EPW_MAX_SIDEBAND 64
#define EPW_FP8_BLOCK    128 /* channels that share one FP8 scale */

/* A wait ends after so many deadlines, whatever its peers say. */
#define EPW_WAIT_DEADLINES_MAX 4u

/* 16-bit floating-point types of tokens and expert outputs. */
enum { EPW_BF16 = 0, EPW_F16 = 1 };

/* What travels in a dispatched row. */
enum {
    EPW_PAYLOAD_SAME = 0,      /* the input's own 16-bit values */
    EPW_PAYLOAD_FP8_F32 = 1,   /* e4m3, one f32 scale per 128 channels */
    EPW_PAYLOAD_FP8_POW2 = 2,  /* e4m3, f32 scales rounded up to powers of two */
    EPW_PAYLOAD_FP8_UE8M0 = 3, /* e4m3, the same scales as 8-bit exponents, four to an i32 */
    EPW_PAYLOAD_OPAQUE = 4     /* the caller's own bytes and scales */
};

/* How received rows are laid out. */
enum { EPW_EXPERT_MAJOR = 0, EPW_RANK_MAJOR = 1 };

/* What combine returns over the wire. */
enum {
    EPW_COMBINE_RANK_REDUCED = 0, /* one row per (token, rank), summed over that rank's experts there */
    EPW_COMBINE_ORDERED = 1       /* one row per (token, expert), summed at home in top-k order */
};

/* Element types of top-k indices. -1 (or the unsigned type's maximum) means "not routed". */
enum { EPW_I32 = 0, EPW_U32 = 1, EPW_I64 = 2 };

/* Element types of collectives. */
enum {
    EPW_TYPE_I8 = 0,
    EPW_TYPE_U8 = 1,
    EPW_TYPE_I32 = 2,
    EPW_TYPE_U32 = 3,
    EPW_TYPE_I64 = 4,
    EPW_TYPE_U64 = 5,
    EPW_TYPE_F16 = 6,
    EPW_TYPE_BF16 = 7,
    EPW_TYPE_F32 = 8,
    EPW_TYPE_F64 = 9
};
/* Reductions. */
enum { EPW_SUM = 0, EPW_PRODUCT = 1, EPW_MIN = 2, EPW_MAX = 3, EPW_AVERAGE = 4 };

/* Connections to ranks that this one reaches by queues (EPW_PATH_QUEUE), and the threads that serve them. One
 * for all buffers of a rank. */
typedef struct epw_fabric epw_fabric;

/* Paths to a peer: bits of epw_config.paths, and what epw_buffer_path reports. */
enum {
    EPW_PATH_NONE = 0,
    EPW_PATH_SELF = 1,   /* the rank itself */
    EPW_PATH_THREAD = 2, /* another rank of this process: its window is used directly */
    EPW_PATH_SHM = 4,    /* another process of this host: its window, of host memory, is mapped */
    EPW_PATH_VMM = 8, /* another process of this host: its window, of GPU memory, is mapped by a VMM handle */
    EPW_PATH_IPC = 16,  /* the same by a CUDA IPC handle */
    EPW_PATH_QUEUE = 32 /* a rank of any host: what is written for it travels by a queue, see epw_fabric */
};
#define EPW_PATH_ALL 0xffffffffu

/* epw_config.device: tokens, outputs and the window are in host memory, and host threads move the bytes. */
#define EPW_DEVICE_HOST (-1)

/* A set of ranks: bit r%64 of bits[r/64]. It never changes. */
typedef struct epw_mask {
    uint64_t bits[EPW_MAX_RANKS / 64];
} epw_mask;

/* What a buffer must be able to do. All fields but `rank`, `threads`, `paths`, `sms`, `queue_depth` and the
 * ordinal in `device` must be equal on every rank; connect refuses a peer whose value differs and names the
 * field. */
typedef struct epw_config {
    uint32_t size;       /* sizeof(epw_config) */
    uint32_t version;    /* EPW_CONFIG_VERSION */
    uint32_t rank;       /* [0, ranks) */
    uint32_t ranks;      /* [1, EPW_MAX_RANKS] */
    uint32_t max_tokens; /* tokens per rank and operation, [1, EPW_MAX_TOKENS] */
    uint32_t hidden;     /* channels of a token, a multiple of 8 (of 128 for FP8), at most 2^24 */
    uint32_t
        experts;    /* physical experts in all, a multiple of ranks; expert e lives on e / (experts/ranks) */
    uint32_t topk;  /* experts per token at most, [1, min(EPW_MAX_TOPK, experts)] */
    uint32_t lanes; /* operations in flight, 1 or 2 */
    uint32_t dtype; /* EPW_BF16 or EPW_F16: type of tokens */
    uint32_t combine_dtype; /* EPW_BF16 or EPW_F16: type of expert outputs and of combine's result */
    uint32_t opaque_bytes;  /* most payload + scale bytes of an opaque row, up to 2^30; 0: no such payloads */
    uint32_t sideband_bytes; /* most opaque bytes per token, [0, EPW_MAX_SIDEBAND] */
    uint32_t ordered;        /* 1: also reserve what EPW_COMBINE_ORDERED needs */
    uint32_t zero_copy;      /* 1: also reserve an expert-major area for epw_next_combine_buffer */
    uint32_t
        threads;    /* threads that move data for this rank, the caller included; 0: chosen by the library */
    uint32_t paths; /* permitted EPW_PATH_* bits; EPW_PATH_ALL: any */
    int32_t device; /* EPW_DEVICE_HOST, or the CUDA ordinal, in this process, of the GPU that holds tokens,
                       outputs and the window. All ranks on the host or all on GPUs */
    uint32_t sms; /* CUDA: SMs that the kernels of all lanes take together at most, a thread block to each; 0:
                     all of the GPU's that no other buffer or communicator of this process has. Kernels that
                     wait for peers must find room together: else one keeps another off the GPU that a peer
                     waits for, until the deadline. So the SMs are this buffer's until it is destroyed, and
                     what would not fit is refused with EPW_ERR_LIMIT, which names who has how many. What
                     other processes run on the GPU is theirs to bound */
    uint32_t queue_depth; /* entries of a queue at least, a power of two from EPW_QUEUE_DEPTH_MIN to
                             EPW_QUEUE_DEPTH_MAX; 0: that of the fabric, if there is one. For plans that are
                             made before the fabric */
    uint64_t deadline_ns; /* a peer silent for so long is given up: 1 ms to 1 day */
    epw_fabric *fabric;   /* by which peers behind a queue are reached; of this rank, and outlives the buffer.
                             NULL: none are. With one, and EPW_PATH_QUEUE in `paths`, max_tokens is at most
                             16254, and a buffer on a GPU also has pinned host memory: see epw_plan */
} epw_config;

#define EPW_CONFIG_VERSION 1
/* Two lanes, bf16, 10 s deadline, any path, on the host; ranks, rank, max_tokens, hidden, experts and topk
 * are left to fill in. config [out]. */
#define EPW_CONFIG_INIT                                                                                      \
    {                                                                                                        \
        .size = sizeof(epw_config), .version = EPW_CONFIG_VERSION, .lanes = 2, .dtype = EPW_BF16,            \
        .combine_dtype = EPW_BF16, .paths = EPW_PATH_ALL, .device = EPW_DEVICE_HOST,                         \
        .deadline_ns = 10000000000u                                                                          \
    }
EPW_API void epw_config_init(epw_config *config);

/* ---- 3. Plan ------------------------------------------------------------------------------------------- */

/* Sizes that follow from a configuration. Computed without allocating anything. */
typedef struct epw_plan {
    uint32_t size;          /* sizeof(epw_plan) */
    uint32_t local_experts; /* experts / ranks */
    uint64_t rows; /* ranks * max_tokens: rows per local expert (expert-major) or in all (rank-major) */
    /* One dispatch slot: [header][payload][scales], and where in it the payload begins. */
    uint64_t slot_bytes;
    uint64_t slot_header_bytes;
    /* Window, every cost on its own line. */
    uint64_t control_bytes;   /* header and signal words */
    uint64_t dispatch_bytes;  /* dispatch slots of all lanes */
    uint64_t combine_bytes;   /* combine slots of all lanes, rank-reduced */
    uint64_t ordered_bytes;   /* what `ordered` adds to them */
    uint64_t zero_copy_bytes; /* what `zero_copy` adds */
    uint64_t window_bytes;    /* sum of the above, rounded up to pages; a GPU takes 2 MiB at a time */
    uint64_t private_bytes; /* memory of this rank's own beside the window; with `threads` 0 it is that of the
                               threads that would be chosen now. On a GPU it is device memory: some 50 KB of
                               pinned host memory, through which kernels report, are not in it */
    /* Host memory for peers behind queues, pinned where `device` is a GPU, if all other ranks were; 0 if
     * `paths` excludes queues. It is taken when the first such peer is connected, or for each. */
    uint64_t image_bytes; /* what is written for them and read by the NIC; for all ranks at a time */
    uint64_t ring_bytes;  /* queues by which lanes post to them; for each. What the wire local shares with
                             peers is the fabric's: epw_fabric_options.ring_bytes */
    uint64_t inbox_bytes; /* what they write here, of a rank on a GPU, whose window mapped peers alone write;
                             for each its places of the window */
} epw_plan;

#define EPW_PLAN_INIT                                                                                        \
    { .size = sizeof(epw_plan) }
EPW_API void epw_plan_init(epw_plan *plan);

/* Checks `config` and computes its plan. EPW_ERR_INVALID or EPW_ERR_LIMIT name the field and the limit.
 * config [in], plan [in: size, out]. */
EPW_API epw_status epw_plan_make(const epw_config *config, epw_plan *plan);

/* Shapes of the rows that a dispatch with this payload delivers. */
typedef struct epw_row_shape {
    uint32_t size;
    uint32_t payload_bytes;       /* of one row, scales not included */
    uint32_t scale_count;         /* scales of one row: hidden/128 for FP8, the caller's for opaque rows */
    uint32_t scale_bytes;         /* bytes of one scale as it travels: 4 (f32), 1 (UE8M0), the caller's */
    uint64_t expert_rows_bytes;   /* expert-major payload output: local_experts * rows * payload_bytes */
    uint64_t expert_scales_bytes; /* expert-major scale output, see epw_dispatch_output.scales */
    uint64_t rank_rows_bytes;     /* rank-major payload copy: rows * payload_bytes */
    uint64_t rank_scales_bytes;   /* rank-major scale copy */
} epw_row_shape;

#define EPW_ROW_SHAPE_INIT                                                                                   \
    { .size = sizeof(epw_row_shape) }
EPW_API void epw_row_shape_init(epw_row_shape *shape);

/* ---- 4. Fabric ----------------------------------------------------------------------------------------- */

/* Peers whose window this rank does not map are reached by queues: what is to be written there is sent by a
 * NIC, in software or not, and placed by that of the peer. EPW_PATH_QUEUE as the only bit of epw_config.paths
 * beside EPW_PATH_SELF sends all by queues, also where memory could be shared. */

/* What carries the bytes of queues between two ranks. */
enum {
    EPW_WIRE_LOCAL = 1, /* memory of this host, shared by a socket of its network namespace */
    EPW_WIRE_TCP = 2,   /* TCP over IPv4 or IPv6 */
    EPW_WIRE_VERBS = 4  /* an RDMA adapter of any make, by libibverbs: the first with an active port and, on
                           Ethernet, a RoCEv2 address that others can reach. Ranks still call each other
                           within a host, or by TCP where they have a key, and see so who has ended */
};

/* What drains the queues. */
enum {
    EPW_NIC_SOFT = 1,   /* a thread of this process */
    EPW_NIC_STRICT = 2, /* the same for tests: it delays fetches, overwrites entries that are done, and breaks
                           a queue whose entries or bytes have changed behind the doorbell; slow */
    EPW_NIC_FAKE = 3, /* for tests: an mlx5 adapter in software, which takes a real one's commands, and is as
                         strict with them as firmware */
    EPW_NIC_MLX5 = 4  /* an mlx5 adapter with an active port, by libibverbs and libmlx5. Unproven: no adapter
                         has been tried yet */
};

/* How kernels ring for the queues of an adapter. */
enum {
    EPW_DOORBELLS_AUTO = 0, /* the first of those below that can be had; epw_fabric_describe says which */
    EPW_DOORBELLS_GPU = 1,  /* they write the adapter's registers, which the GPU's driver has to map */
    EPW_DOORBELLS_HOST = 2 /* they write words that a thread of this process copies to the registers: it takes
                              a core while they post, and up to 0.1 ms when they begin again after 2 ms */
};

/* Where the queues of an adapter are that kernels post to, and the rows that they send by them. */
enum {
    EPW_RINGS_HOST = 0, /* pinned host memory */
    EPW_RINGS_GPU = 1,  /* entries and rows in the memory of the GPU, if the adapter reaches it */
    EPW_RINGS_AUTO = 2  /* the same, else host memory; epw_fabric_describe says which */
};

typedef struct epw_fabric_options {
    uint32_t size;  /* sizeof(epw_fabric_options) */
    uint32_t rank;  /* [0, EPW_MAX_RANKS): that of the buffers that use it */
    uint32_t wires; /* EPW_WIRE_* bits. Two ranks of one host that both have it take EPW_WIRE_LOCAL, others
                       the last of these bits that they have in common */
    uint32_t nic;   /* EPW_NIC_* */
    uint16_t first_port, last_port; /* TCP: listens on one of these for each address; 0, 0: on any */
    const char *interfaces;         /* TCP: on the addresses of these interfaces, in the grammar of
                                       NCCL_SOCKET_IFNAME, "eth,ib", "=eth0" or "^docker"; NULL: of all */
    const unsigned char *key;       /* TCP: 32 secret bytes, the same on all ranks: both ends of a connection
                                       prove that they know them. What follows is neither encrypted nor protected
                                       on the way. NULL: none. Copied */
    /* Local: of the ring in shared memory by which this rank sends to a peer, a power of two from
     * EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: 2^22. Each peer of this host that is reached by a queue
     * takes so much, 68 KiB more, and what its own options say for the way back, once for all buffers of the
     * fabric. It is in no plan; pages are taken as they are used. */
    uint32_t ring_bytes;
    uint32_t doorbells; /* EPW_DOORBELLS_*: of an adapter, for buffers on a GPU */
    /* Adapters: which ones, in the grammar of NCCL_IB_HCA: "mlx5" for all whose names begin so, "=mlx5_0:1"
     * for this one and this port of it, "^mlx5_1,mlx5_2" for all but these, "^=mlx5_1" for all but exactly
     * this one. NULL: any. Of those the nearest to `device` on the PCI bus is taken; ranks take turns at what
     * is equally near. epw_fabric_describe tells which it is. Copied */
    const char *adapters;
    int32_t device; /* the GPU of the buffers that use it, as in epw_config; EPW_DEVICE_HOST: all are near */
    uint32_t adapter_count; /* how many, at which lanes take turns: 1 or 2; 0: 1. EPW_ERR_NO_PATH if there are
                               fewer */
    uint32_t service_level; /* InfiniBand: [0, 15]; Ethernet: the priority, [0, 7] */
    uint32_t traffic_class; /* Ethernet: [0, 255], four times the DSCP; what the kernel has for the port does
                               not hold for queue pairs of this kind */
    uint32_t hop_limit;     /* Ethernet: [1, 255]; 0: 255 */
    uint32_t rings;         /* EPW_RINGS_*: of an adapter, for buffers on a GPU */
    /* Of each queue, of a buffer's lane to a peer: at least so many entries of 64 bytes, a power of two from
     * EPW_QUEUE_DEPTH_MIN to EPW_QUEUE_DEPTH_MAX; 0, or fewer than its operations may post at a time: as many
     * as these need. A peer that takes nothing is given up once its queue is full. In epw_plan.ring_bytes if
     * epw_config.fabric is set. */
    uint32_t queue_depth;
    uint32_t doorbell_batch; /* the host rings whenever it has posted so many entries of an operation's rows
                                to a peer, and behind the last: [1, EPW_QUEUE_DEPTH_MAX]; 0: behind the last
                                alone. Kernels post all that a peer is sent at once, and ring once */
} epw_fabric_options;

#define EPW_QUEUE_DEPTH_MIN 16u
#define EPW_QUEUE_DEPTH_MAX 32768u

#define EPW_RING_BYTES_MIN  4096u
#define EPW_RING_BYTES_MAX  1073741824u

#define EPW_FABRIC_OPTIONS_INIT                                                                              \
    {                                                                                                        \
        .size = sizeof(epw_fabric_options), .wires = EPW_WIRE_LOCAL, .nic = EPW_NIC_SOFT,                    \
        .device = EPW_DEVICE_HOST                                                                            \
    }
EPW_API void epw_fabric_options_init(epw_fabric_options *options);

/* Starts its threads and listens. options [in], out [out]. Any thread. */
EPW_API epw_status epw_fabric_create(const epw_fabric_options *options, epw_fabric **out);

/* Says for print what it has come to: its NIC, with an adapter's port, address, and what it does without.
 * Pieces may be added, and nothing is to be read out of it. fabric [in], text [out, EPW_FABRIC_TEXT bytes at
 * most with the zero at the end]; returns `text`. Any thread. */
#define EPW_FABRIC_TEXT 800
EPW_API const char *epw_fabric_describe(const epw_fabric *fabric, char *text);

/* Ends them. All buffers that used it have been destroyed. NULL is allowed. In a forked child it does
 * nothing. */
EPW_API void epw_fabric_destroy(epw_fabric *fabric);

/* ---- 5. Buffer and membership -------------------------------------------------------------------------- */

/* A rank's end: its window, its mappings of the peers' windows, its lanes. */
typedef struct epw_buffer epw_buffer;

/* Bytes that an exported blob takes at most. */
#define EPW_BLOB_MAX 1024

/* Allocates the window and starts the rank's threads. EPW_ERR_INVALID also if the environment variable
 * EPWIRE_ISA names an instruction set that is unknown or cannot run here. config [in], out [out]. */
EPW_API epw_status epw_buffer_create(const epw_config *config, epw_buffer **out);

/* Tells active peers that this rank leaves, ends its threads, unmaps the peers and frees the window. Not
 * while another thread uses the buffer. NULL is allowed. In a forked child, the only call on a buffer that it
 * inherited: frees its memory and reaches no peer; the parent's buffer lives on. */
EPW_API void epw_buffer_destroy(epw_buffer *buffer);

/* Writes what `peer` needs to reach this rank's window, to be carried there by any means and given to its
 * epw_buffer_connect. It holds a secret that lets processes of the same user map the window: carry it over a
 * channel you trust. blob [out, EPW_BLOB_MAX bytes], length [out]. */
EPW_API epw_status epw_buffer_export(epw_buffer *buffer, uint32_t peer, void *blob, size_t *length);

/* Maps the window that `peer` exported for this rank. Every peer needs it once before it may be active, the
 * rank itself not. Refused with EPW_ERR_MISMATCH if a field of the configuration differs, with EPW_ERR_FENCED
 * while a former incarnation of this rank, be it another buffer of this process, still has the peer's window
 * mapped. Bounded by the deadline; no other call on the buffer waits for it, one that connects or disconnects
 * the same peer is EPW_ERR_STATE.
 * Connecting a peer again first disconnects it. Any thread, at any time where the peer is not active: beside
 * operations, none of which it waits for. A peer that is active must have been given up, and no lane be held.
 */
EPW_API epw_status epw_buffer_connect(epw_buffer *buffer, uint32_t peer, const void *blob, size_t length);

/* The same, bounded by deadline_ns, not 0, instead of the buffer's deadline: for one bound over many peers.
 */
EPW_API epw_status epw_buffer_connect_within(epw_buffer *buffer, uint32_t peer, const void *blob,
                                             size_t length, uint64_t deadline_ns);

/* Unmaps the peer's window, after telling the peer. It must not be active, unless it has been given up: then
 * no lane may be held. Otherwise any thread, at any time, as epw_buffer_connect. */
EPW_API epw_status epw_buffer_disconnect(epw_buffer *buffer, uint32_t peer);

/* Is the path to `peer` alive? Asks its process by a word written the way rows are, beside all operations,
 * and waits for the answer, which its library gives whether or not its program calls anything. Any thread.
 * EPW_ERR_TIMEOUT: no answer within timeout_ns, and, on GPUs, the time for some copies of 8 bytes.
 * EPW_ERR_PEER: its process has ended. EPW_ERR_STATE: not connected, or another thread probes a path of this
 * buffer.
 * With this rank itself as the peer, its own device is probed: whether its window takes a word and gives it
 * back, on the host by this process, on GPUs by copies on a stream of the library's own. EPW_ERR_SYSTEM: it
 * does not; EPW_ERR_TIMEOUT: not within timeout_ns. */
EPW_API epw_status epw_buffer_probe(epw_buffer *buffer, uint32_t peer, uint64_t timeout_ns);

/* The EPW_PATH_* by which `peer` is reached, EPW_PATH_NONE if it is not connected. */
EPW_API uint32_t epw_buffer_path(const epw_buffer *buffer, uint32_t peer);

/* The EPW_WIRE_* that carries what is written for `peer`, 0 unless its path is EPW_PATH_QUEUE, and where
 * adapters carry it, which have their own. */
EPW_API uint32_t epw_buffer_wire(const epw_buffer *buffer, uint32_t peer);

/* For print: why nothing travels by the queues to `peer` any more (EPW_CAUSE_LINK), and what to do about it;
 * "" if something does, or the path is no queue. Until the peer is connected again. Nothing is to be read out
 * of it. text [out, EPW_TROUBLE_TEXT bytes at most with the zero at the end]; returns `text`. Any thread. */
#define EPW_TROUBLE_TEXT 512
EPW_API const char *epw_buffer_trouble(const epw_buffer *buffer, uint32_t peer, char *text);

/* What to call one EPW_PATH_* in print, for example "CUDA IPC". Never NULL. */
EPW_API const char *epw_path_name(uint32_t path);

/* The last step at which a membership may begin: 2^41 - 1. */
#define EPW_STEP_MAX 2199023255551u

/* Begins a membership: every member calls it with the same mask, epoch and step, with no lane held and its
 * own writes done. epoch is in [1, 8388607] and larger than any before, or once more one that a GPU was not
 * seen to begin (EPW_ERR_TIMEOUT); step is that of the group at which
 * the membership begins, in [0, EPW_STEP_MAX], 0 in programs that count none; all other members must be
 * connected. Clears suspects and restarts the operation counters. Members that begin the epoch at different
 * steps do not take part in each other's operations (EPW_CAUSE_STEP). Who is left out is told: its operations
 * end without this rank at once (EPW_CAUSE_SUPERSEDED). Who decides mask, epoch and step is the caller's
 * affair. CUDA: waits for what has been enqueued before, see section CUDA. */
EPW_API epw_status epw_buffer_set_active(epw_buffer *buffer, const epw_mask *active, uint32_t epoch,
                                         uint64_t step);

/* The group goes on without these peers: they become suspects of this membership, and waits for them, running
 * and future ones, end at once (EPW_CAUSE_SUPERSEDED). For callers that have learnt so otherwise, and need
 * not wait for a deadline to see it; no accusation, so it makes none of them `silent`. Peers that are no
 * members are ignored; EPW_ERR_INVALID if the mask names this rank. Any thread, beside running operations,
 * none of which it waits for: a wait ends some milliseconds later at most. CUDA: kernels ask after some tens
 * of microseconds of waiting; an operation that finds a peer's words there goes on with it. */
EPW_API epw_status epw_buffer_revoke(epw_buffer *buffer, const epw_mask *peers);

/* A membership, and what has become of it. */
typedef struct epw_membership {
    uint32_t size;
    uint32_t epoch; /* 0: none yet */
    uint64_t step;  /* at which it began */
    epw_mask active;
    epw_mask suspects; /* active peers given up since set_active, neither sent to nor waited for until the
                          next one. CUDA: also this rank itself, see epw_error_record.peer */
    epw_mask silent;   /* those of them that this rank has seen silent for a whole deadline
                          (EPW_CAUSE_TIMEOUT). Of the others it has been told, which is no evidence that they
                          fail */
} epw_membership;

#define EPW_MEMBERSHIP_INIT                                                                                  \
    { .size = sizeof(epw_membership) }
EPW_API void epw_membership_init(epw_membership *membership);

/* The current membership. membership [in: size, out]. Any thread. */
EPW_API epw_status epw_buffer_membership(const epw_buffer *buffer, epw_membership *membership);

/* The newest epoch that this rank or one of its active peers has begun: larger than this rank's own where
 * others have gone on, and await it there. epoch [out]. Any thread. CUDA: copies a word for each peer;
 * EPW_ERR_TIMEOUT where the GPU does not do so within 10 ms. */
EPW_API epw_status epw_buffer_newest_epoch(epw_buffer *buffer, uint32_t *epoch);

/* Active ranks, this one included, that have begun `epoch` at another step than this one: they count steps
 * otherwise than was agreed, and no operation of theirs meets one of the others (EPW_CAUSE_STEP). Says
 * nothing about ranks that are in another epoch. epoch is in [0, 8388607], step in [0, EPW_STEP_MAX]. ranks
 * [out]. Any thread. CUDA: as epw_buffer_newest_epoch. */
EPW_API epw_status epw_buffer_diverged(epw_buffer *buffer, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* ---- verdicts ----
 *
 * An operation that is complete here may lack rows elsewhere. Whether what was computed in a step may be
 * used, all members learn alike: each ends the step with a checkpoint, and asks for the verdict when it is
 * wanted. */

enum {
    EPW_VERDICT_PENDING = 0, /* not known yet: some member has not ended the step; or one that was lost leaves
                                it open until the next membership has begun everywhere */
    EPW_VERDICT_CLEAN = 1,   /* all members have completed everything that ended in the step. Where the
                                membership   has changed since: all those that belong to both */
    EPW_VERDICT_FAULTED = 2  /* some have not: an outcome was degraded, or a handle was released */
};

/* Ends a step of this buffer: posts to all members whether everything that has ended since the checkpoint
 * before was complete. An operation counts for the step in which its combine ends. All members end the same
 * steps, at least that at which the membership began and larger than any before, at most EPW_STEP_MAX; steps
 * left out share the verdict of the next. epoch [out]: the present one, by which to ask for the verdict.
 * Waits for nobody. EPW_ERR_STATE: no membership yet, or CUDA: `stream` is under capture.
 * CUDA: enqueues on `stream` a kernel of one block, which comes behind what calls have enqueued on all lanes,
 * and ahead of their next calls. Replays of graphs, before and after it, are put in order by the caller. */
EPW_API epw_status epw_checkpoint(epw_buffer *buffer, uint64_t step, void *stream, uint32_t *epoch);

/* Counts the step that the next checkpoint ends as incomplete: for what a program does beside this buffer,
 * such as collectives (epw_comm_take_fault). Any thread, also while operations run. */
EPW_API epw_status epw_checkpoint_fault(epw_buffer *buffer);

/* The verdict, EPW_VERDICT_*, of a step that this rank has ended with a checkpoint, in that epoch. The same
 * for all that belong to the present membership, though not at the same moment. An answer once given stays
 * right; but who asks again after the membership has changed may get EPW_VERDICT_PENDING until all have begun
 * the next. EPW_ERR_LIMIT: it is not known any more, 16 steps or 3 memberships later, not counting steps that
 * began after some member was given up; or this rank does not belong to the membership that judges the step.
 * Waits for no peer, any thread. CUDA: copies 384 bytes for each rank, beside the streams of the caller, and
 * is EPW_VERDICT_PENDING where that takes more than 200 microseconds: ask again. verdict [out]. */
EPW_API epw_status epw_checkpoint_verdict(epw_buffer *buffer, uint32_t epoch, uint64_t step,
                                          uint32_t *verdict);

/* What a buffer on the host has moved since it was created. Rows to and from this rank itself count too. */
typedef struct epw_traffic {
    uint32_t size;
    uint32_t reserved;
    uint64_t rows_sent;     /* by dispatch: one for each token and rank that it goes to */
    uint64_t rows_received; /* by dispatch, and found good */
    uint64_t
        rows_answered;   /* by combine: of each received row one, ordered one for each of its experts here */
    uint64_t bytes_sent; /* of rows with their scales, and of answers; no headers, counts and words */
    uint64_t bytes_received; /* of rows with their scales */
} epw_traffic;

#define EPW_TRAFFIC_INIT                                                                                     \
    { .size = sizeof(epw_traffic) }
EPW_API void epw_traffic_init(epw_traffic *traffic);

/* wait_ns [out, may be NULL]: [ranks], how long operations have waited for each peer, as the outputs of this
 * name tell of one operation. Any thread, also while operations run. EPW_ERR_STATE on a GPU, where kernels
 * count nothing: there ask for source_counts and wait_ns. traffic [in: size, out]. */
EPW_API epw_status epw_buffer_traffic(const epw_buffer *buffer, epw_traffic *traffic, uint64_t *wait_ns);

/* Which experts can be reached now: reachable[e] = 1 if expert e's rank is active and not suspected, else 0.
 * reachable [out, experts bytes]. */
EPW_API epw_status epw_buffer_reachable_experts(const epw_buffer *buffer, uint8_t *reachable);

/* ---- 6. Dispatch and combine --------------------------------------------------------------------------- */

/* Where a wait was when it gave up on a peer. */
enum {
    EPW_PHASE_DISPATCH_SEND = 1,    /* waiting for permission to write the peer's dispatch slots */
    EPW_PHASE_DISPATCH_RECEIVE = 2, /* waiting for the peer's rows */
    EPW_PHASE_COMBINE_SEND = 3,     /* answering: the peer's rows were never seen */
    EPW_PHASE_COMBINE_RECEIVE = 4,  /* waiting for the peer's answer */
    EPW_PHASE_COLLECTIVE = 5,       /* waiting for the peer's part of a collective */
    EPW_PHASE_POINT = 6             /* waiting for the peer in a send or receive */
};

/* Why a peer is missing from an operation. */
enum {
    EPW_CAUSE_NONE = 0,
    EPW_CAUSE_TIMEOUT = 1,    /* it was silent for a whole deadline */
    EPW_CAUSE_DROPPED = 2,    /* it said that it dropped this rank, or left */
    EPW_CAUSE_SUSPECTED = 3,  /* it was given up by an earlier operation of this epoch */
    EPW_CAUSE_FORMAT = 4,     /* its rows have another payload or sideband than this rank's, or weights where
                                 this rank's have none, or it answers in another EPW_COMBINE_* mode */
    EPW_CAUSE_PARTIAL = 5,    /* it answered fewer rows than it was sent: it gave the operation up, and takes
                                 part in the next one. No reason for a change of membership: that
                                 is a peer among epw_membership.suspects */
    EPW_CAUSE_ROUTING = 6,    /* CUDA: not a peer's fault: a routing id was out of range or repeated */
    EPW_CAUSE_HELD = 7,       /* CUDA: not a peer's fault: the lane was not in the state that the replayed
                                 operation needs (held, or not held), which has therefore done nothing */
    EPW_CAUSE_SUPERSEDED = 8, /* it moved on to a newer epoch, or the group goes on without it: see
                                 epw_buffer_revoke */
    EPW_CAUSE_STEP = 9,       /* it begins this epoch at another step */
    EPW_CAUSE_LINK = 10,    /* of a peer behind a queue: the connection to it is gone, or it has taken nothing
                               for so long that the queue had no room for what it was to be sent next */
    EPW_CAUSE_OVERFLOW = 11 /* prefill, and not a peer's fault: `expected` rows were received, and only `seen`
                               of them fit the capacity of the output */
};

/* The first peer that an operation gave up on, with every variable of that wait. The library fills it in,
 * within an outcome and by epw_take_errors, which both know how large the caller takes it to be. */
typedef struct epw_error_record {
    uint32_t phase; /* EPW_PHASE_* */
    uint32_t cause; /* EPW_CAUSE_* */
    uint32_t rank;  /* this rank */
    uint32_t peer;  /* the peer given up. CUDA: this rank itself if other work kept its own kernel off the GPU
                       until the wait's bound; it is a suspect of its own then */
    uint32_t lane;
    uint32_t epoch;
    uint32_t op;          /* operation number in the lane, from 1 in each epoch; wraps after 2^24 - 1 */
    uint32_t waiting;     /* how many peers were still awaited */
    uint64_t expected;    /* the signal word awaited; value bits zero, but not those of an epoch word */
    uint64_t seen;        /* the word found */
    uint64_t elapsed_ns;  /* since the wait began */
    uint64_t deadline_ns; /* its bound */
} epw_error_record;

/* How an operation ended: complete, or without the rows of some peers. */
typedef struct epw_outcome {
    uint32_t size;
    uint32_t degraded;       /* 0: every active peer took part; 1: see missing */
    epw_mask missing;        /* active peers whose part of this operation is absent */
    epw_error_record record; /* record.cause is EPW_CAUSE_NONE if complete */
} epw_outcome;

#define EPW_OUTCOME_INIT                                                                                     \
    { .size = sizeof(epw_outcome) }
EPW_API void epw_outcome_init(epw_outcome *outcome);

/* Names one dispatch until its combine has been received or it is released. Never 0. Consumed handles are
 * recognised and refused. */
typedef uint64_t epw_handle;

/* What a rank sends. */
typedef struct epw_dispatch_input {
    uint32_t size;
    uint32_t tokens;           /* n, [0, max_tokens] */
    const void *x;             /* [n, hidden] of config.dtype, or [n, opaque_row_bytes] */
    uint64_t x_stride;         /* bytes from row to row; 0: dense */
    const void *topk_idx;      /* [n, topk] of idx_type, dense */
    const float *topk_weights; /* [n, topk] f32, dense; NULL where no one needs weights at dispatch */
    const void *sideband;      /* [n, sideband_bytes], dense; NULL if sideband_bytes is 0 */
    const void *scales;        /* opaque only: [n, scale_count] of scale_bytes each; NULL without scales */
    uint64_t scale_row_stride; /* bytes from token to token */
    uint64_t scale_col_stride; /* bytes from scale to scale of one token */
    uint32_t idx_type;         /* EPW_I32, EPW_U32 or EPW_I64 */
    uint32_t topk;             /* k of this call, [1, config.topk] */
    uint32_t payload;          /* EPW_PAYLOAD_*; the same on all ranks */
    uint32_t opaque_row_bytes; /* opaque only: payload bytes of a row, a multiple of 16 */
    uint32_t scale_count;      /* opaque only: scales of a row, 0 for none */
    uint32_t scale_bytes;      /* opaque only: bytes of one scale: 1, 2, 4 or 8 */
    uint32_t sideband_bytes;   /* of this call, [0, config.sideband_bytes]; the same on all ranks */
    uint32_t layout;           /* EPW_EXPERT_MAJOR or EPW_RANK_MAJOR: how this rank wants what it receives */
    int32_t lane;         /* 0, 1, or -1: lanes in turn. All ranks use the same lane for the same operation */
    uint32_t nonblocking; /* 1: return EPW_PENDING instead of waiting; go on with epw_poll. The memory of all
                             inputs and outputs must live until the operation has finished or been released */
    uint64_t deadline_ns; /* of this rank's waits; 0: the buffer's; else at least that */
    void *stream;         /* CUDA: the cudaStream_t to enqueue on; see "CUDA" */
    uint32_t sms; /* CUDA: the most SMs for the kernels of this operation, those of both halves; 0, or more
                     than the lane's part of config.sms: all of that. A captured call keeps it. Each rank
                     chooses its own */
    uint32_t reserved;
} epw_dispatch_input;

#define EPW_DISPATCH_INPUT_INIT                                                                              \
    {                                                                                                        \
        .size = sizeof(epw_dispatch_input), .idx_type = EPW_I32, .payload = EPW_PAYLOAD_SAME,                \
        .layout = EPW_EXPERT_MAJOR, .lane = -1                                                               \
    }
EPW_API void epw_dispatch_input_init(epw_dispatch_input *input);

/* Where received rows go. M = plan.rows = ranks*max_tokens, E = local experts, K = scales per row. Rows are
 * ordered by source rank, then by token at the source. Any pointer may be NULL where that output is not
 * wanted, except that expert-major needs `rows` and `counts`; those that a layout does not fill must be NULL.
 * Rows beyond the counts are left as they were (CUDA: of a degraded operation they may hold anything). */
typedef struct epw_dispatch_output {
    uint32_t size;
    uint32_t scale_order; /* 0: scales column-major; 1: row-major */
    uint32_t nonblocking; /* for epw_dispatch_receive: as in epw_dispatch_input */
    uint32_t reserved;
    void *rows;       /* expert-major [E, M, payload]; rank-major [M, payload], source s from s*max_tokens on
                         (NULL: read them in place, see epw_rows_view) */
    void *scales;     /* expert-major, column-major: [E, K, M]; row-major: [E, M, K]; rank-major: the same
                         with E = 1. UE8M0 column-major: i32 [E, ceil(K/4), M], exponent of channel block b
                         in byte b%4 of word b/4, zero-padded */
    void *sideband;   /* expert-major [E, M, sideband_bytes], rank-major [M, sideband_bytes] */
    uint32_t *counts; /* rows per local expert [E] */
    uint32_t *source_counts; /* rows per source rank [ranks] */
    uint32_t *ranges; /* [E, ranks, 2]: where each source rank's rows begin in the expert's list, and how
                         many there are; rank-major, that list is the expert's in expert_rows */
    uint32_t *source_token;  /* expert-major [E, M], rank-major [M]: the row's token index at its source */
    int32_t *row_experts;    /* rank-major [M, topk]: local expert id, -1 where the entry lives elsewhere */
    float *row_weights;      /* rank-major [M, topk]: routing weights, 0 where the expert id is -1 */
    uint32_t *expert_rows;   /* rank-major [E, M]: the rows of each local expert, counts[e] of them */
    uint64_t *expert_totals; /* [E]: adds the tokens of each local physical expert */
    uint64_t *wait_ns;       /* [ranks]: adds the time spent waiting for each source */
    void *stream;            /* for epw_dispatch_receive, CUDA: the cudaStream_t to enqueue on */
} epw_dispatch_output;

#define EPW_DISPATCH_OUTPUT_INIT                                                                             \
    { .size = sizeof(epw_dispatch_output) }
EPW_API void epw_dispatch_output_init(epw_dispatch_output *output);

/* What combine takes. */
typedef struct epw_combine_input {
    uint32_t size;
    uint32_t mode; /* EPW_COMBINE_RANK_REDUCED or, expert-major and planned for, EPW_COMBINE_ORDERED */
    const void *expert_out; /* expert-major [E, M, hidden], rank-major [M, hidden] (already reduced over this
                               rank's experts with the weights), of combine_dtype. NULL: the caller has
                               written into epw_next_combine_buffer */
    const float *topk_weights; /* ordered only: [n, topk] f32, dense; NULL: those given at dispatch, and
                                  always so if rank-reduced */
    uint32_t nonblocking;      /* as in epw_dispatch_input */
    uint32_t sms;              /* CUDA: as in epw_dispatch_input */
    uint64_t deadline_ns;      /* 0: the buffer's; else at least that */
    void *stream;              /* CUDA: the cudaStream_t to enqueue on */
} epw_combine_input;

#define EPW_COMBINE_INPUT_INIT                                                                               \
    { .size = sizeof(epw_combine_input), .mode = EPW_COMBINE_RANK_REDUCED }
EPW_API void epw_combine_input_init(epw_combine_input *input);

/* Where the combined tokens go. */
typedef struct epw_combine_output {
    uint32_t size;
    uint32_t nonblocking;    /* for epw_combine_receive: as in epw_dispatch_input */
    void *out;               /* [n, hidden] of combine_dtype, dense. Tokens routed nowhere become zeros */
    uint16_t *contributions; /* [n, 2]: expert contributions arrived, expected; NULL if not wanted */
    uint64_t *wait_ns;       /* [ranks]: adds the time spent waiting for each peer; NULL if not wanted */
    void *stream;            /* for epw_combine_receive, CUDA: the cudaStream_t to enqueue on */
} epw_combine_output;

#define EPW_COMBINE_OUTPUT_INIT                                                                              \
    { .size = sizeof(epw_combine_output) }
EPW_API void epw_combine_output_init(epw_combine_output *output);

/* The shape of the rows that `input` would deliver under `config`. Checks the fields of `input` that decide
 * it: payload, opaque sizes, sideband. */
EPW_API epw_status epw_row_shape_make(const epw_config *config, const epw_dispatch_input *input,
                                      epw_row_shape *shape);

/* Sends this rank's tokens and, if `output` is not NULL, receives those of the others. With `output` NULL
 * this is the sending half; receive with epw_dispatch_receive. handle [out] is valid for every status but an
 * error. outcome [out] may be NULL; it is filled when the receiving half ends. A wrong or repeated expert id
 * is EPW_ERR_INVALID naming row and column, and nothing is sent. */
EPW_API epw_status epw_dispatch(epw_buffer *buffer, const epw_dispatch_input *input,
                                const epw_dispatch_output *output, epw_handle *handle, epw_outcome *outcome);

/* The receiving half of a dispatch. Like any next call, to be made within one deadline of the sending half.
 */
EPW_API epw_status epw_dispatch_receive(epw_buffer *buffer, epw_handle handle,
                                        const epw_dispatch_output *output, epw_outcome *outcome);

/* Rows in place in the window, source s's from row s*max_tokens on. Valid from the end of dispatch until
 * combine or release. `rows` may be written (rank-major zero-copy combine) once all experts have read the
 * row: the row then holds [hidden] of combine_dtype. */
typedef struct epw_rows_view {
    uint32_t size;
    uint32_t reserved;
    uint64_t stride;    /* bytes from row to row, also of scales */
    void *rows;         /* the first row's payload */
    const void *scales; /* the first row's scales, row-major; NULL if the payload has none */
    const uint32_t
        *source_counts; /* [ranks]: rows of each source; owned by the buffer, valid as the rows are */
} epw_rows_view;

#define EPW_ROWS_VIEW_INIT                                                                                   \
    { .size = sizeof(epw_rows_view) }
EPW_API void epw_rows_view_init(epw_rows_view *view);

/* The received rows of a rank-major dispatch, in place. */
EPW_API epw_status epw_dispatched_rows(epw_buffer *buffer, epw_handle handle, epw_rows_view *view);

/* The area that experts may write their outputs into, so that combine copies nothing before sending:
 * rank-major the lane's own rows, expert-major [E, M, hidden] where the plan has zero_copy. Pass expert_out =
 * NULL to combine. */
EPW_API epw_status epw_next_combine_buffer(epw_buffer *buffer, epw_handle handle, epw_rows_view *view);

/* Answers every received row and, if `output` is not NULL, receives the answers to this rank's own rows, sums
 * them and consumes the handle. With `output` NULL this is the sending half. */
EPW_API epw_status epw_combine(epw_buffer *buffer, epw_handle handle, const epw_combine_input *input,
                               const epw_combine_output *output, epw_outcome *outcome);

/* The receiving half of a combine. Consumes the handle. */
EPW_API epw_status epw_combine_receive(epw_buffer *buffer, epw_handle handle,
                                       const epw_combine_output *output, epw_outcome *outcome);

/* Goes on with a non-blocking operation without waiting: EPW_PENDING, EPW_OK (outcome is filled) or an error.
 * It takes in what peers behind queues have sent, as far as it is there, and so does epw_ready: a program
 * that only looks needs no other thread. */
EPW_API epw_status epw_poll(epw_buffer *buffer, epw_handle handle, epw_outcome *outcome);

/* Sleeps until epw_poll may find something new, at most timeout_ns. Touches no memory of the operation: any
 * thread may call it while another polls. Returns EPW_OK, or EPW_ERR_STATE if the handle is not in an
 * operation. */
EPW_API epw_status epw_await(epw_buffer *buffer, epw_handle handle, uint64_t timeout_ns);

/* After the sending half of a dispatch or combine: EPW_OK if the receiving half would not wait for anybody,
 * else EPW_PENDING. The first such call begins the wait that the receiving half goes on with: from then on
 * peers are told that this rank waits, and who is silent for a deadline is given up. So call it again
 * whenever epw_await, which sleeps as it does between polls, returns. */
EPW_API epw_status epw_ready(epw_buffer *buffer, epw_handle handle);

/* Gives the handle up: peers that sent rows are answered with none, in the background where they have not
 * sent yet. Does not wait, touches no caller memory afterwards. */
EPW_API epw_status epw_release(epw_buffer *buffer, epw_handle handle);

/* ---- CUDA ----
 *
 * A buffer whose config.device is a GPU takes the same calls with these differences:
 * - Pointers of inputs and outputs are device memory of that GPU (epw_rows_view.source_counts too). They must
 *   stay valid, and inputs unchanged, until the work enqueued with them has run.
 * - A call checks its arguments, enqueues on `stream` (NULL: the legacy default stream; the per-thread one
 *   and streams under capture are fine) and returns: nothing is waited for, copied or allocated.
 *   `nonblocking` must be 0 and `outcome` NULL: the outcome is known when the stream has come so far, see
 *   epw_outcome_read.
 * - A routing id that is out of range or repeated within its token counts as "not routed" and is recorded, up
 *   to 64 of an operation, see epw_take_errors.
 * - A lane's operations run in the order of the calls: where `stream` differs from that of the lane's call
 *   before, an event is waited for on it. Under capture the caller orders replays. A per-call deadline_ns is
 *   refused under capture; tokens is frozen at capture (rows of -1 ids move nothing).
 * - The host knows lanes and handles by the calls, captured ones included, not by replays. Before a change of
 *   membership, or of a peer that is active, and before the buffer's end, replays must have run; what eager
 *   calls have enqueued is waited for, up to the deadline (then EPW_ERR_TIMEOUT; epw_buffer_destroy waits for
 * 24 of them, and leaves the memory to the end of the process if the GPU is still not done with it). A window
 * that peers reach by CUDA IPC is freed once the last of them has let go of it.
 * - epw_release enqueues on the stream of the handle's last call. Where that was the per-thread default
 *   stream, it is the calling thread's: another thread's release comes behind that call, but not behind
 *   what the program has enqueued there since. On a stream whose capture has been invalidated nothing can
 *   be enqueued: then the lane's next dispatch releases first.
 * - What a peer says of its rows is bounded, so that nothing is read or written outside the windows and the
 *   outputs; but counts are not compared with the rows' entries, as the host does: a peer that lies about
 *   them leaves places of expert_rows, or rows of an expert's list, unwritten. Where a row by itself is
 *   malformed (a token, or a place in a list, that cannot be), the host leaves out all rows of its source.
 *   Here the source is missing as well, by EPW_CAUSE_FORMAT, and gets no answer, but its rows stay counted:
 *   in their places are zeros or rows that it has sent. A peer that was given up and has sent after all,
 *   which some blocks may see where other work kept them off the GPU for a while, is missing too, and its
 *   rows are there and stay counted.
 * - A handle of a captured dispatch is ended by a captured combine or release, in the same graph or another.
 *   For two graphs, keep the handle from one capture to the other, then replay them in turns, on one stream
 *   or with an event of the program between. A release outside captures runs at once, before any replay.
 * - topk_weights of an ordered combine must stay valid until its receiving half has run.
 * - wait_ns leaves out waits of less than some 15 microseconds; asking for it, or for expert_totals, makes
 *   the kernel end some microseconds later.
 * - Addresses are aligned to their element, contributions to 4 bytes; x, rows, expert_out and out to 16, and
 *   x_stride is a multiple of 16.
 * - Kernels wait for those of peers. What the program must leave alone meanwhile (loading kernels, calls that
 *   synchronise, streams that share a hardware queue) is in src/guide/gpus.md.
 * - epw_poll and epw_ready do not apply. epw_await waits for the handle's last eager call to have run, and
 *   returns EPW_PENDING if timeout_ns is over first; like epw_outcome_read, also for a consumed handle. To
 *   wait on another stream: epw_stream_wait. */

/* epw_release with the stream that the release is enqueued on; epw_release takes that of the handle's last
 * call. The host device ignores `stream`. */
EPW_API epw_status epw_release_on(epw_buffer *buffer, epw_handle handle, void *stream);

/* CUDA: lets `stream` (as in a call; of the buffer's GPU) wait for what calls have enqueued so far on the
 * handle's lane: what is enqueued on it later runs after that. Enqueues nothing where that is so already, on
 * the stream of the lane's last call. Also for a consumed handle, until the lane's next dispatch. The host
 * waits for nothing; any thread, also beside one that drives the handle.
 * EPW_ERR_STATE: the lane has gone on to another dispatch, or the handle is another buffer's; the
 * handle's last call was captured, or `stream` is under capture (order such streams by events of the program,
 * captured with the calls, or around the graph's launch); the buffer is on the host. */
EPW_API epw_status epw_stream_wait(epw_buffer *buffer, epw_handle handle, void *stream);

/* CUDA: the outcome of the last half that was enqueued for `handle`: EPW_PENDING if the GPU has not come so
 * far. Also for a consumed handle, until the lane's next dispatch. Not for captured calls: their outcomes are
 * in `contributions` and epw_take_errors. outcome [out]. */
EPW_API epw_status epw_outcome_read(epw_buffer *buffer, epw_handle handle, epw_outcome *outcome);

/* CUDA: moves up to `capacity` of the error records that kernels have written since the last call, oldest
 * first, to `records` [out], each of `record_size` bytes, sizeof(epw_error_record); *count [out] is how many,
 * *lost [out, may be NULL] how many more there would have been since then. A record with cause
 * EPW_CAUSE_ROUTING is of a routing id: `expected` is token << 32 | column, `seen` the id. Lost are records
 * overwritten before anybody took them, and bad ids of one operation beyond 64. The host device has none: its
 * outcomes and errors say all. */
EPW_API epw_status epw_take_errors(epw_buffer *buffer, epw_error_record *records, size_t record_size,
                                   uint32_t capacity, uint32_t *count, uint64_t *lost);

/* ---- 7. Numerics --------------------------------------------------------------------------------------- */

/* Quantises [rows, hidden] of `dtype` to e4m3 with one scale per 128 channels: the code that dispatch uses,
 * of the instruction set that EPWIRE_ISA may name (see epw_buffer_create).
 * q [out, rows*hidden], scales [out]: f32 [rows, hidden/128], for EPW_PAYLOAD_FP8_UE8M0 bytes [rows,
 * hidden/128]. */
EPW_API epw_status epw_quantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                                    const void *x, uint8_t *q, void *scales);

/* The inverse: x = q * scale, rounded to `dtype`. */
EPW_API epw_status epw_dequantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                                      const uint8_t *q, const void *scales, void *x);

/* ---- 8. Collectives ------------------------------------------------------------------------------------ */

/* A rank's end of a communicator: collectives, and sends and receives, among the ranks of a group.
 *
 * All members call the same collectives in the same order, with the same type, reduction, root and counts. A
 * rank that calls another one is found out: the operation ends with EPW_ERR_MISMATCH on every rank that waits
 * in it, and so does the next call of every other, naming both calls. The communicator then waits for its
 * next membership. Sends and receives are matched by peer and tag, in the order of the calls.
 *
 * Operations follow the rules of dispatch and combine: every wait is bounded, a peer that is silent for a
 * deadline is given up for the epoch, and the outcome names who is missing. What a missing rank was to give
 * is then unspecified in `recv`; a reduction that lacks anybody has no result at all, anywhere in `recv`.
 * Where `recv` is not `send` the input survives; in place it does not. Complete here does not mean complete
 * everywhere.
 *
 * Reductions. Element i of the result is the fold of element i of all members in ascending rank order:
 * 16-bit floats in f32 and rounded once to nearest even, f32 and f64 in their own type, integers wrapping.
 * The fold begins with the first member's element. A NaN result is the positive quiet NaN. EPW_MIN and
 * EPW_MAX give NaN if any element is, and take -0 for less than +0. EPW_AVERAGE divides the sum by the number
 * of members: floats before the rounding, integers exactly and towards zero. With one member the element is
 * copied. So the bits are the same on every rank, device and run.
 *
 * Buffers have any alignment and any count, also 0, in which case they may be NULL. `send` and `recv` may be
 * the same where that is said; otherwise they do not overlap.
 *
 * Memory. Small pieces travel through rings of slots in the peers' windows. Where the host permits it, peers
 * of the same host read large ones straight from the caller's buffer (process_vm_readv), or from memory that
 * epw_comm_alloc gave, with no system call; behind queues, and where it is not permitted, everything goes
 * through the rings, which costs a copy more on each side.
 *
 * Any thread may call; calls on one communicator take turns. */
typedef struct epw_comm epw_comm;

/* All fields but `rank`, `paths`, the ordinal in `device` and `fabric` must be equal on every rank.
 *
 * CUDA. Calls enqueue a kernel on the stream of their epw_call and return. Buffers are device memory. What an
 * operation lacks is known when it has run: `outcome` is NULL, and whoever wants it asks for `work`, or looks
 * at the suspects of epw_comm_membership. Calls on different streams run in the order of the calls. Streams
 * may be under capture: replays take their turn as kernels do, all ranks in the same order, and find the
 * membership of then; such calls have no `work`.
 *     Sends and receives of a group progress together, before its collectives; of different calls they are in
 * stream order, so that a large send waits for its receive before whatever comes behind it. They meet in the
 * order of the calls: one that differs from its other end in type or tag, or has no room for what comes, is a
 * mismatch. So far all peers map each other's windows.
 *     Blocks that are uneven, or have offsets or rows, are of at most 96 ranks. Uneven ones take the way of
 * large ones at any size, once each pair of ranks has told each other the same counts.
 *     slots and slot_bytes are those of each block; 0: 4, and so many that all rings take 64 MiB, but at
 * least 1 KiB and at most 32 KiB. */
typedef struct epw_comm_config {
    uint32_t size;       /* sizeof(epw_comm_config) */
    uint32_t version;    /* EPW_COMM_CONFIG_VERSION */
    uint32_t rank;       /* [0, ranks) */
    uint32_t ranks;      /* [1, EPW_MAX_RANKS] */
    uint32_t slots;      /* of the ring from one rank to another, a power of two in [2, 256]; 0: 8 */
    uint32_t slot_bytes; /* that a slot carries, a multiple of 64 in [64, 2^24]; 0: so many that the rings of
                            all ranks take 16 MiB together, but at least 1 KiB and at most 32 KiB */
    uint32_t paths;      /* permitted EPW_PATH_* bits; EPW_PATH_ALL: any */
    int32_t device; /* EPW_DEVICE_HOST, or the CUDA ordinal of the GPU whose memory is sent and received */
    uint64_t heap_bytes;  /* for epw_comm_alloc; CUDA: 0 */
    uint64_t deadline_ns; /* a peer silent for so long is given up: 1 ms to 1 day */
    epw_fabric *fabric;   /* as in epw_config; CUDA: NULL */
    uint32_t
        sms; /* CUDA: blocks of a kernel at most, [1, 64], the same on all ranks; 0: 32. As in epw_config
                the SMs are this communicator's: create it before a buffer that takes all that are free */
    uint32_t reserved;
} epw_comm_config;

#define EPW_COMM_CONFIG_VERSION 1
#define EPW_COMM_CONFIG_INIT                                                                                 \
    {                                                                                                        \
        .size = sizeof(epw_comm_config), .version = EPW_COMM_CONFIG_VERSION, .paths = EPW_PATH_ALL,          \
        .device = EPW_DEVICE_HOST, .deadline_ns = 10000000000u                                               \
    }
EPW_API void epw_comm_config_init(epw_comm_config *config);

/* As the functions of these names for a buffer. */
EPW_API epw_status epw_comm_create(const epw_comm_config *config, epw_comm **out);
EPW_API void epw_comm_destroy(epw_comm *comm);
EPW_API epw_status epw_comm_export(epw_comm *comm, uint32_t peer, void *blob, size_t *length);
EPW_API epw_status epw_comm_connect(epw_comm *comm, uint32_t peer, const void *blob, size_t length);
EPW_API epw_status epw_comm_connect_within(epw_comm *comm, uint32_t peer, const void *blob, size_t length,
                                           uint64_t deadline_ns);
EPW_API epw_status epw_comm_disconnect(epw_comm *comm, uint32_t peer);
EPW_API epw_status epw_comm_probe(epw_comm *comm, uint32_t peer, uint64_t timeout_ns);
EPW_API uint32_t epw_comm_path(const epw_comm *comm, uint32_t peer);
EPW_API uint32_t epw_comm_wire(const epw_comm *comm, uint32_t peer);
EPW_API epw_status epw_comm_set_active(epw_comm *comm, const epw_mask *active, uint32_t epoch, uint64_t step);
EPW_API epw_status epw_comm_revoke(epw_comm *comm, const epw_mask *peers);
EPW_API epw_status epw_comm_membership(const epw_comm *comm, epw_membership *membership);
EPW_API epw_status epw_comm_newest_epoch(epw_comm *comm, uint32_t *epoch);
EPW_API epw_status epw_comm_diverged(epw_comm *comm, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* Memory of the communicator's window, aligned to 64, zeroed when the communicator is created: peers that map
 * the window read what lies there with no copy on the way. EPW_ERR_LIMIT where heap_bytes does not suffice.
 * Freed in any order, by any thread, when no operation uses it; all of it is gone with the communicator. */
EPW_API epw_status epw_comm_alloc(epw_comm *comm, uint64_t bytes, void **memory);
EPW_API void epw_comm_free(epw_comm *comm, void *memory);

/* Whether something that has ended since the last such call was incomplete: an outcome was degraded, work was
 * dropped, or ranks had called different operations. Complete here does not mean complete everywhere: a
 * program that commits what a step has computed hands this to the checkpoint of a buffer,
 * epw_checkpoint_fault, and asks for its verdict. faulted [out]: 0 or 1. Any thread. */
EPW_API epw_status epw_comm_take_fault(epw_comm *comm, uint32_t *faulted);

/* What an operation is. */
enum {
    EPW_BARRIER = 0,
    EPW_BROADCAST = 1,      /* root's send to all recv; root's own recv may be send, or NULL */
    EPW_ALL_REDUCE = 2,     /* in place: recv == send */
    EPW_REDUCE = 3,         /* recv of root alone; in place there: recv == send */
    EPW_REDUCE_SCATTER = 4, /* block r of send is reduced to rank r's recv; in place: recv is its own block */
    EPW_ALL_GATHER = 5,     /* rank r's send to block r of all recv; in place: send is its own block */
    EPW_ALL_TO_ALL = 6, /* block p of send to rank p, where it is this rank's block; in place: recv == send,
                           with equal blocks */
    EPW_GATHER = 7,     /* to root's recv; in place at root: send is its own block */
    EPW_SCATTER = 8,    /* from root's send; in place at root: recv is its own block */
    EPW_SEND = 9,
    EPW_RECV = 10
};
#define EPW_TAG_MAX         0x7fffffffu

#define EPW_NORM_HIDDEN_MAX 16384u

/* What follows a sum of all_reduce in the same call, as between two layers of a tensor-parallel model: it is
 * added to the residual, and each row is normalised (RMSNorm) and, by choice, quantised. Ranks may differ in
 * all but rows * hidden. On a GPU one kernel does all of it where the call goes by packets, up to 1 MiB with
 * 2 ranks, 512 KiB with 4; beyond, a second one that waits for nobody; memory is aligned to 16 bytes there,
 * also the call's send and recv. Results have the same bits on host and GPU: see the rules in
 * c/numerics/norm.h. Where a member is missing there is no result: of `residual` and `out` each row is the
 * old one or none. */
typedef struct epw_norm {
    uint32_t size;
    uint32_t payload;   /* of out: EPW_PAYLOAD_SAME, or one of EPW_PAYLOAD_FP8_* */
    uint32_t hidden;    /* elements of a row: a multiple of 8, of FP8 of 128, in [8, EPW_NORM_HIDDEN_MAX] */
    float epsilon;      /* at least 0, finite */
    uint64_t rows;      /* rows * hidden is the call's count */
    void *residual;     /* [rows][hidden] of the call's type, in: the residual, out: its sum with the call's;
                           NULL: none */
    const void *weight; /* [hidden] of the call's type */
    void *out;          /* [rows][hidden]; may be recv where payload is EPW_PAYLOAD_SAME */
    void *scales;       /* [rows][hidden / 128]: f32, of EPW_PAYLOAD_FP8_UE8M0 bytes; else NULL */
} epw_norm;

#define EPW_NORM_INIT                                                                                        \
    { .size = sizeof(epw_norm), .epsilon = 1e-6f }
EPW_API void epw_norm_init(epw_norm *norm);

/* One operation, for epw_group. Counts, offsets and pitches are elements of `type`. */
typedef struct epw_coll {
    uint32_t size;
    uint32_t kind; /* EPW_BARRIER to EPW_RECV */
    uint32_t type; /* EPW_TYPE_*: any for what only moves */
    uint32_t op;   /* EPW_SUM to EPW_AVERAGE, of reductions */
    uint32_t peer; /* the root, or of EPW_SEND and EPW_RECV whom to or from */
    uint32_t tag;  /* of these two, at most EPW_TAG_MAX */
    const void *send;
    void *recv;
    uint64_t count; /* of all, or of each block; EPW_RECV: the most that may come */
    /* Uneven blocks: of reduce_scatter (send), all_gather and gather (recv), scatter (send), all_to_all
     * (both). [ranks], the same everywhere but for all_to_all, where send_counts[p] here are recv_counts of
     * this rank at p. NULL: `count` each, one behind the other. Offsets NULL: one behind the other. */
    const uint64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
    /* Blocks of `rows` rows, with a count of elements in each, and pitches from row to row; 0 rows: one. Of
     * all_gather: send_pitch within send, recv_pitch within recv, where block r begins at its offset. Of
     * reduce_scatter the other way round. Pitches 0: the elements of a row, in the matrix of all blocks those
     * of all blocks' rows. */
    uint64_t rows, send_pitch, recv_pitch;
    const epw_norm *norm; /* of all_reduce by EPW_SUM of bf16 or f16; NULL: none. Copied by the call */
} epw_coll;

#define EPW_COLL_INIT                                                                                        \
    { .size = sizeof(epw_coll) }
EPW_API void epw_coll_init(epw_coll *coll);

/* Names operations that have been begun, until they are waited for or dropped. Never 0. */
typedef uint64_t epw_work;

/* How to call: may be NULL for all defaults. */
typedef struct epw_call {
    uint32_t size;
    uint32_t reserved;
    uint64_t deadline_ns; /* of this rank's waits; 0: the communicator's; else at least that */
    epw_work
        *work;    /* [out]: the call begins the operation and returns; buffers stay valid and unchanged
                     until it has ended or been dropped. NULL: it waits; CUDA: it does not, and nobody asks */
    void *stream; /* CUDA: a cudaStream_t of the communicator's GPU; NULL: the default stream */
} epw_call;

#define EPW_CALL_INIT                                                                                        \
    { .size = sizeof(epw_call) }
EPW_API void epw_call_init(epw_call *call);

/* Begins `count` operations, which progress together: sends that cross do not wait for each other.
 * Collectives among them keep their order. A refused call has no effect. outcome [out], of all of them, may
 * be NULL; it is filled by the call that sees the end. */
EPW_API epw_status epw_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                             epw_outcome *outcome);

EPW_API epw_status epw_barrier(epw_comm *comm, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_broadcast(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                                 uint32_t root, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_all_reduce(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                                  uint32_t op, const epw_call *call, epw_outcome *outcome);
/* recv: the sum itself, may be send. */
EPW_API epw_status epw_all_reduce_norm(epw_comm *comm, const void *send, void *recv, uint32_t type,
                                       const epw_norm *norm, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_reduce(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                              uint32_t op, uint32_t root, const epw_call *call, epw_outcome *outcome);
/* count: of each rank's block. */
EPW_API epw_status epw_reduce_scatter(epw_comm *comm, const void *send, void *recv, uint64_t count,
                                      uint32_t type, uint32_t op, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_all_gather(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                                  const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_all_to_all(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                                  const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_gather(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                              uint32_t root, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_scatter(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                               uint32_t root, const epw_call *call, epw_outcome *outcome);
EPW_API epw_status epw_send(epw_comm *comm, const void *send, uint64_t count, uint32_t type, uint32_t peer,
                            uint32_t tag, const epw_call *call, epw_outcome *outcome);
/* A longer message than `count` elements is EPW_ERR_LIMIT here, and is consumed; a shorter one leaves the
 * rest as it was. */
EPW_API epw_status epw_recv(epw_comm *comm, void *recv, uint64_t count, uint32_t type, uint32_t peer,
                            uint32_t tag, const epw_call *call, epw_outcome *outcome);

/* Waits for the work to end, timeout_ns at most (UINT64_MAX: its own deadlines bound it): EPW_PENDING if it
 * has not; else it is consumed, and the result is as the call's would have been. */
EPW_API epw_status epw_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome);

/* The same without waiting. */
EPW_API epw_status epw_work_poll(epw_comm *comm, epw_work work, epw_outcome *outcome);

/* Sleeps until epw_work_poll may find something new, at most timeout_ns. Touches no buffer of an operation:
 * any thread, beside one that polls. */
EPW_API epw_status epw_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns);

/* Gives it up: its buffers are not touched again. Peers find this rank missing from it (EPW_CAUSE_PARTIAL),
 * now or when this rank's calls come so far. */
EPW_API epw_status epw_work_drop(epw_comm *comm, epw_work work);

/* ---- 9. Prefill ---------------------------------------------------------------------------------------- */

/* A rank's end of dispatch and combine for many tokens: up to EPW_MAX_TOKENS of each rank in an operation,
 * through rings of fewer slots than that in the peers' windows, so that memory does not grow with the tokens.
 * A row is copied out of its slot to its place in the output as it comes, and its slot is its source's again.
 * Each peer and direction progresses by itself.
 *
 * All members call the same operations on the same lane in the same order; each lane has one at a time.
 * Waits, losses, membership and numbers are those of section 6, with these differences. A dispatch or combine
 * is an operation by itself: a rank owes none after the other, and a routing may be combined as often as is
 * wanted. A peer that is lost while its rows come keeps its places, and has none of its rows in them.
 *
 * On a GPU (config.ep.device) all memory that calls name is the GPU's, and `stream` is a cudaStream_t. A call
 * enqueues one kernel and returns; it never waits, may be captured into a graph, a routing's halves in one,
 * and takes neither `nonblocking` nor `outcome`: epw_prefill_poll says how the last eager operation of a
 * routing has ended. Ids that are out of range or repeated are left out, and make the outcome degraded with
 * EPW_CAUSE_ROUTING. x, rows, expert_out, bias and out are aligned to 16 bytes, the others to their elements.
 * A routing has room for ranks * max_tokens rows from the start. EPW_HALF_COUNTS enqueues as well:
 * epw_prefill_received is EPW_PENDING until the counts are there. config.ep.sms are shared by the lanes.
 * config.ep.fabric is NULL: peers behind queues are not reached in this version. */
typedef struct epw_prefill epw_prefill;

/* What a dispatch has found out of who sends what to whom, and where it lies: needed to combine, and to
 * dispatch other rows the same way. One operation at a time. Of the buffer that made it, and of the
 * membership of its dispatch. */
typedef struct epw_routing epw_routing;

/* Layouts of what is received, beside EPW_EXPERT_MAJOR and EPW_RANK_MAJOR. */
enum {
    EPW_PACKED =
        2,        /* rows of a local expert together, experts in order, each at a multiple of an alignment */
    EPW_DENSE = 3 /* rows by source, one source behind the other */
};

/* ep: as for a buffer, and so must its fields be equal on every rank. `ordered` and `zero_copy` are 0:
 * ordered combine needs nothing more. max_tokens is of an operation. */
typedef struct epw_prefill_config {
    uint32_t size;        /* sizeof(epw_prefill_config) */
    uint32_t ring_tokens; /* slots of the ring from one rank to another, [1, EPW_MAX_TOKENS + 1], equal on
                             every rank; 0: as many as EPW_PREFILL_RING_TOKENS, on GPUs
                             EPW_PREFILL_RING_TOKENS_GPU, or fewer where max_tokens is less, or the windows
                             would pass 256 MiB, down to 16 */
    epw_config ep;
} epw_prefill_config;

#define EPW_PREFILL_RING_TOKENS     512
#define EPW_PREFILL_RING_TOKENS_GPU 2048 /* more rows are under way at the same time */
#define EPW_PREFILL_CONFIG_INIT                                                                              \
    { .size = sizeof(epw_prefill_config), .ep = EPW_CONFIG_INIT }
EPW_API void epw_prefill_config_init(epw_prefill_config *config);

/* Sizes that follow from a configuration. Computed without allocating anything. */
typedef struct epw_prefill_sizes {
    uint32_t size;                 /* sizeof(epw_prefill_sizes) */
    uint32_t local_experts;        /* experts / ranks */
    uint32_t ring_tokens;          /* as chosen */
    uint32_t split_tokens;         /* most tokens of a sending half of dispatch or of rank-reduced combine */
    uint32_t split_tokens_ordered; /* ordered combine: the ring holds several rows of a token */
    uint32_t reserved;
    uint64_t slot_bytes;     /* of a dispatched row in a ring */
    uint64_t answer_bytes;   /* of an answer in a ring */
    uint64_t control_bytes;  /* header and signal words */
    uint64_t dispatch_bytes; /* rings of dispatched rows, of all lanes */
    uint64_t combine_bytes;  /* rings of answers, of all lanes */
    uint64_t window_bytes;   /* sum of the above, rounded up to pages */
    uint64_t private_bytes;  /* of this rank's own beside the window, as in epw_plan */
    uint64_t routing_bytes;  /* of an epw_routing, with max_tokens tokens of this rank; for each row received,
                                routing_row_bytes more. On a GPU all of it, in its memory */
    uint64_t routing_row_bytes;
    uint64_t image_bytes, ring_bytes, inbox_bytes; /* as in epw_plan, for peers behind queues */
} epw_prefill_sizes;

#define EPW_PREFILL_SIZES_INIT                                                                               \
    { .size = sizeof(epw_prefill_sizes) }
EPW_API void epw_prefill_sizes_init(epw_prefill_sizes *sizes);

/* Checks `config` and computes its sizes. config [in], sizes [in: size, out]. */
EPW_API epw_status epw_prefill_plan(const epw_prefill_config *config, epw_prefill_sizes *sizes);

/* As the functions of these names for a buffer. Before epw_prefill_destroy all routings are freed. */
EPW_API epw_status epw_prefill_create(const epw_prefill_config *config, epw_prefill **out);
EPW_API void epw_prefill_destroy(epw_prefill *prefill);
EPW_API epw_status epw_prefill_export(epw_prefill *prefill, uint32_t peer, void *blob, size_t *length);
EPW_API epw_status epw_prefill_connect(epw_prefill *prefill, uint32_t peer, const void *blob, size_t length);
EPW_API epw_status epw_prefill_connect_within(epw_prefill *prefill, uint32_t peer, const void *blob,
                                              size_t length, uint64_t deadline_ns);
EPW_API epw_status epw_prefill_disconnect(epw_prefill *prefill, uint32_t peer);
EPW_API epw_status epw_prefill_probe(epw_prefill *prefill, uint32_t peer, uint64_t timeout_ns);
EPW_API uint32_t epw_prefill_path(const epw_prefill *prefill, uint32_t peer);
EPW_API uint32_t epw_prefill_wire(const epw_prefill *prefill, uint32_t peer);
EPW_API epw_status epw_prefill_set_active(epw_prefill *prefill, const epw_mask *active, uint32_t epoch,
                                          uint64_t step);
EPW_API epw_status epw_prefill_revoke(epw_prefill *prefill, const epw_mask *peers);
EPW_API epw_status epw_prefill_membership(const epw_prefill *prefill, epw_membership *membership);
EPW_API epw_status epw_prefill_newest_epoch(epw_prefill *prefill, uint32_t *epoch);
EPW_API epw_status epw_prefill_diverged(epw_prefill *prefill, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* Whether something that has ended since the last such call was incomplete, as epw_comm_take_fault. */
EPW_API epw_status epw_prefill_take_fault(epw_prefill *prefill, uint32_t *faulted);

/* An empty routing. It takes memory as dispatches need it, and keeps it for the next. */
EPW_API epw_status epw_routing_create(epw_prefill *prefill, epw_routing **out);

/* Frees it. An operation of it that is under way, or of which a half is still to come, is given up: peers
 * find this rank missing from it (EPW_CAUSE_PARTIAL), now or when this rank's next call on the lane comes so
 * far. Waits for nobody, and no memory of the operation is touched afterwards. NULL is allowed.
 * On a GPU what has been enqueued runs all the same, and graphs may be replayed: the routing's own memory is
 * kept until that has run, and if any call was captured until epw_prefill_destroy. A program that captures
 * again and again keeps a routing for it. */
EPW_API void epw_routing_free(epw_routing *routing);

/* Where received rows go. E = local experts, C = capacity, K = scales per row. Rows of an expert or source
 * are ordered by source rank, then by token. Any pointer may be NULL where that output is not wanted; those
 * that the layout does not fill must be NULL.
 *
 * A row's place in `rows` and in every array [C]:
 *   EPW_PACKED        offsets[e] + its number among the rows of expert e; offsets are multiples of alignment
 *   EPW_EXPERT_MAJOR  e * C + its number, arrays are [E, C]
 *   EPW_DENSE         source_offsets[s] + its number among the rows of source s
 *   EPW_RANK_MAJOR    s * max_tokens + its number, C is at least ranks * max_tokens
 * The first two have a token once for each of its experts that this rank owns, the others once.
 *
 * Overflow: rows whose place is C or more (expert-major: whose number is) are left out, are counted in
 * `overflow`, and make the outcome degraded, with EPW_CAUSE_OVERFLOW unless a peer is missing as well.
 * Combine adds nothing for them. */
typedef struct epw_prefill_output {
    uint32_t size;
    uint32_t layout;       /* EPW_EXPERT_MAJOR, EPW_RANK_MAJOR, EPW_PACKED or EPW_DENSE: this rank's affair */
    uint32_t alignment;    /* packed: rows, at least 1; else 0 */
    uint32_t scale_order;  /* 0: scales column-major; 1: row-major */
    uint32_t zero_padding; /* packed: 1: zeroes the rows between an expert's last and the next one's first,
                              and in all places of lost sources */
    uint32_t nonblocking;  /* for epw_prefill_receive: as in epw_dispatch_input */
    uint64_t capacity;     /* C, below 2^32 - 1 */
    void *rows;            /* payloads */
    void
        *scales; /* row-major [C, K], column-major [K, stride] with columns of C scales, each rounded up to 16
                    bytes; expert-major one of these for each expert. UE8M0: i32 with four exponents,
                    that of block b in byte b%4, ceil(K/4) in place of K, zero-padded */
    void *sideband;           /* [C, sideband_bytes] */
    uint32_t *counts;         /* [E]: places of each expert, those of lost sources included */
    uint32_t *offsets;        /* [E]: packed: first place of each expert; expert-major: e * C */
    uint32_t *overflow;       /* [E]: rows of each expert that did not fit */
    uint32_t *source_counts;  /* [ranks]: rows of each source that have come; 0 of one that was lost */
    uint32_t *source_offsets; /* [ranks]: dense and rank-major: first place of each source */
    int32_t *row_expert;   /* packed and expert-major [C]: local expert; -1 in places of nobody: padding, what
                              is beyond the last, lost sources */
    int32_t *row_source;   /* [C]: source rank, -1 as above */
    int32_t *row_token;    /* [C]: token index there, -1 as above */
    int32_t *row_position; /* packed and expert-major [C]: which of the token's top-k, -1 as above */
    float *row_weight;     /* packed and expert-major [C]: routing weight, 0 as above */
    int32_t *row_experts;  /* dense and rank-major [C, topk]: local expert ids, -1 where the entry lives
                              elsewhere, and as above */
    float *row_weights;    /* dense and rank-major [C, topk]: routing weights, 0 where the id is -1 */
    uint64_t *ranges; /* packed and expert-major [E, ranks], as DeepEP packs them: in the lower 32 bits how
                         many rows of the expert each source has, 0 of one that was lost, in the upper ones
                         the number of the first of them among the expert's */
    uint64_t *expert_totals;    /* [E]: adds the rows of each local expert */
    int32_t *expert_totals_i32; /* [E]: adds them too, modulo 2^32 */
    uint64_t *wait_ns;          /* [ranks]: adds the time spent waiting for each source */
    void *stream;               /* for GPUs */
} epw_prefill_output;

#define EPW_PREFILL_OUTPUT_INIT                                                                              \
    { .size = sizeof(epw_prefill_output), .layout = EPW_PACKED, .alignment = 1 }
EPW_API void epw_prefill_output_init(epw_prefill_output *output);

/* How a dispatch goes beyond what epw_dispatch_input says. */
enum {
    EPW_ROUTE_NEW = 0,  /* counts go first; the routing is filled */
    EPW_ROUTE_AGAIN = 1 /* the routing's: input.topk_idx is not read, tokens are as many, nothing is counted,
                           and rows take the places that they took before, by the same layout and capacity.
                           Without topk_weights the weights stay as they were */
};

/* What a call without an output does; its receiving half is epw_prefill_receive. */
enum {
    EPW_HALF_SENDS = 0, /* sends the rows: at most split_tokens of the plan, else EPW_ERR_LIMIT */
    EPW_HALF_COUNTS = 1 /* sends the counts alone and waits for those of all: epw_prefill_received says how
                           many rows come. The rows go and come in the receiving half */
};

/* Sends this rank's tokens and, if `output` is not NULL, receives those of the others. input->layout is left
 * as it is initialised. With input->nonblocking go on by epw_prefill_poll. outcome [out] may be NULL; it is
 * filled when the operation ends. A refused call changes nothing. */
EPW_API epw_status epw_prefill_dispatch(epw_prefill *prefill, epw_routing *routing,
                                        const epw_dispatch_input *input, uint32_t route, uint32_t half,
                                        const epw_prefill_output *output, epw_outcome *outcome);

/* How many rows come, when that is known: after a dispatch of any kind; after a sending half EPW_PENDING
 * until all counts have come. *rows [out]: the capacity that takes all of them in this layout and alignment
 * (expert-major: of an expert). counts [out, E] and source_counts [out, ranks] may be NULL. */
EPW_API epw_status epw_prefill_received(epw_prefill *prefill, epw_routing *routing, uint32_t layout,
                                        uint32_t alignment, uint64_t *rows, uint32_t *counts,
                                        uint32_t *source_counts);

/* The receiving half of a dispatch. */
EPW_API epw_status epw_prefill_receive(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_output *output, epw_outcome *outcome);

/* What combine takes. `rows` are places as dispatch gave them. */
typedef struct epw_prefill_combine_input {
    uint32_t size;
    uint32_t mode;  /* EPW_COMBINE_RANK_REDUCED; packed and expert-major also EPW_COMBINE_ORDERED, where the
                       rings  have a slot for each of a token's experts on a rank */
    uint32_t width; /* channels of a row, a multiple of 8, at most hidden; 0: hidden. The same on all ranks */
    uint32_t nonblocking;   /* as in epw_dispatch_input */
    const void *expert_out; /* [rows, width] of combine_dtype, dense; dense and rank-major layouts: already
                               reduced over this rank's experts with the weights */
    const float
        *row_weights; /* rank-reduced, packed and expert-major: [rows], instead of those of dispatch */
    const float
        *topk_weights;       /* ordered: [n, topk] of this rank's own tokens, instead of those of dispatch */
    const float *row_values; /* packed and expert-major [rows], else [rows, topk]: carried back to
                                epw_prefill_combine_output.values. All ranks, or none */
    const void *bias[2];  /* [n, width] of combine_dtype: added to this rank's own tokens behind all else, the
                             first first, ahead of the rounding; NULL: none */
    uint64_t deadline_ns; /* 0: the buffer's; else at least that */
    void *stream;         /* for GPUs */
    uint32_t sms;         /* for GPUs: as in epw_dispatch_input */
    uint32_t reserved;
} epw_prefill_combine_input;

#define EPW_PREFILL_COMBINE_INPUT_INIT                                                                       \
    { .size = sizeof(epw_prefill_combine_input), .mode = EPW_COMBINE_RANK_REDUCED }
EPW_API void epw_prefill_combine_input_init(epw_prefill_combine_input *input);

/* Where the combined tokens go. */
typedef struct epw_prefill_combine_output {
    uint32_t size;
    uint32_t nonblocking; /* for epw_prefill_collect: as in epw_dispatch_input */
    void *out; /* [n, width] of combine_dtype, dense. Tokens routed nowhere become zeros, and bias */
    uint16_t *contributions; /* [n, 2]: expert contributions arrived, expected */
    uint32_t *lacks;   /* [n, ceil(ranks/32)]: bit r%32 of word r/32: the sum lacks the answer of rank r */
    float *values;     /* [n, topk of the dispatch]: what row_values was for each, 0 where none came */
    uint64_t *wait_ns; /* [ranks]: adds the time spent waiting for each peer */
    void *stream;      /* for GPUs */
} epw_prefill_combine_output;

#define EPW_PREFILL_COMBINE_OUTPUT_INIT                                                                      \
    { .size = sizeof(epw_prefill_combine_output) }
EPW_API void epw_prefill_combine_output_init(epw_prefill_combine_output *output);

/* Answers every received row of the routing's dispatch and, if `output` is not NULL, receives the answers to
 * this rank's own rows and sums them. With `output` NULL this is the sending half, of at most
 * split_tokens (split_tokens_ordered) rows from each rank. */
EPW_API epw_status epw_prefill_combine(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_combine_input *input,
                                       const epw_prefill_combine_output *output, epw_outcome *outcome);

/* The receiving half of a combine. */
EPW_API epw_status epw_prefill_collect(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_combine_output *output, epw_outcome *outcome);

/* Goes on with a non-blocking operation without waiting, as epw_poll. */
EPW_API epw_status epw_prefill_poll(epw_prefill *prefill, epw_routing *routing, epw_outcome *outcome);

/* Sleeps until epw_prefill_poll may find something new on the lane, at most timeout_ns. Touches no memory of
 * the operation: any thread, beside one that polls. EPW_ERR_STATE: no operation runs there. */
EPW_API epw_status epw_prefill_await(epw_prefill *prefill, uint32_t lane, uint64_t timeout_ns);

/* Gives up an operation of the routing that is under way, or of which a half is still to come, as
 * epw_routing_free does, and keeps the routing: after a dispatch it is empty; after a combine, and after a
 * dispatch with EPW_ROUTE_AGAIN that had no topk_weights, it is as before, and may be combined or used again.
 * A call that waits for the operation in another thread ends with EPW_ERR_STATE. */
EPW_API epw_status epw_prefill_cancel(epw_prefill *prefill, epw_routing *routing);

/* The lane of its last operation. */
EPW_API uint32_t epw_routing_lane(const epw_routing *routing);

/* Who gets what, of a routing that need not be sent: pure, of any thread. rank_tokens [out, ranks]: tokens
 * that go to each rank; expert_tokens [out, experts]: to each expert; in_rank [out, tokens * ranks]: 1 where
 * the token goes to the rank. Each may be NULL. Ids are as in epw_dispatch_input. */
EPW_API epw_status epw_prefill_count(const epw_prefill_config *config, const void *topk_idx,
                                     uint32_t idx_type, uint32_t tokens, uint32_t topk, uint32_t *rank_tokens,
                                     uint32_t *expert_tokens, uint8_t *in_rank);

#ifdef __cplusplus
}
#endif

#endif
