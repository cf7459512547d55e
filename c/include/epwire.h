/* epwire: expert-parallel Mixture-of-Experts communication.
 *
 * A rank owns some experts. `dispatch` sends each token once to every rank that owns one of the token's top-k
 * experts; `combine` brings the experts' outputs back to the token's rank and sums them with the routing
 * weights.
 *
 * Sections: 1 status and errors, 2 configuration, 3 plan, 4 fabric, 5 buffer and membership, 6 dispatch and
 * combine (at its end: CUDA), 7 numerics, 8 collectives, 9 prefill.
 *
 * Conventions. Sizes are bytes unless a name says otherwise, times are nanoseconds, matrices are row-major.
 * Structs that cross this interface begin with `size`, and are filled with their defaults before use:
 * `epw_config config = EPW_CONFIG_INIT;` or `epw_config_init(&config)`, the same for each. A caller that was
 * built with the header of another version may have another size: then the call is refused with
 * EPW_ERR_INVALID, and the caller must be built again with the header of the library that it loads; only
 * epw_last_error_detail serves a caller of any size, so that errors can be read. Three
 * structs have no `size`: epw_mask, which never grows; epw_error_record, whose size is part of
 * epw_outcome.size and an argument of epw_take_errors and its like; and epw_peer_traffic, whose size is
 * epw_traffic.peer_size. The macros are for C; C++ before 20 and other languages use the functions. The
 * caller fills in what is marked [in], the library what is marked [out]. No function aborts. Functions that
 * can fail return a status; after an error, epw_last_error() says in words what went wrong on this thread. A
 * call that is refused has no effect.
 *
 * Threads. Unless a function says otherwise, one thread at a time may use an object (a buffer's lane and its
 * handle, a communicator's work, a routing and its lane), and no thread may use what another one destroys.
 * Different objects, lanes and routings may be used by different threads. What concerns the whole of a
 * buffer, such as epw_buffer_set_active, locks all of it by itself.
 *
 * Every wait is bounded. A peer that is silent for a deadline is given up: the operation ends without it. A
 * rank that is itself waiting tells its peers so, and they wait for it longer. No wait takes more than
 * EPW_WAIT_DEADLINES_MAX deadlines, so that ranks whose operations do not match do not wait for each other
 * forever. A rank whose call has a longer deadline tells its peers that too: they wait for it as long, and
 * need not pass the same deadline.
 *
 * Between its calls, and between the halves of a split one, a rank sends its peers nothing. While peers wait
 * for it, it must therefore make its next call within one deadline of its last, or it is given up. */
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
    EPW_ERR_LIMIT = -2,     /* a size exceeds a limit of the plan or of the library */
    EPW_ERR_STATE = -3,     /* not possible now: the lane is held, the handle is already consumed, there is no
                               membership yet */
    EPW_ERR_NO_MEMORY = -4, /* the system has no memory to give */
    EPW_ERR_SYSTEM = -5,    /* an operating system call failed */
    EPW_ERR_NO_PATH = -6,   /* no permitted path leads to the peer */
    EPW_ERR_MISMATCH = -7,  /* the peer's configuration or version differs */
    EPW_ERR_FENCED = -8,    /* another living incarnation of the rank still holds its place */
    EPW_ERR_TIMEOUT = -9,   /* a bounded wait outside dispatch and combine expired */
    EPW_ERR_PEER = -10      /* the peer refused or is gone */
};

/* Short name of a status, for example "EPW_ERR_LIMIT". Never NULL. */
EPW_API const char *epw_status_name(epw_status status);

/* The text of the last error on the calling thread: operation, rank, peer, what was found, remedy. Valid
 * until the thread's next failing call. Empty if there was none. */
EPW_API const char *epw_last_error(void);

/* The last error in parts. `op` and `text` are valid as long as the text of epw_last_error. */
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

/* Fills in the last error of the calling thread; writes at most `size` bytes. detail [in: size, out] */
EPW_API void epw_last_error_detail(epw_error_detail *detail);

/* "0.1.0" */
EPW_API const char *epw_version(void);

/* The log: which path leads to a peer and why others do not, sizes, memberships, which peers are given up and
 * why. The environment variable EPWIRE_LOG turns it on: "off", "warn", "info" or "trace", or a level for each
 * of the subsystems plan, path, member, wait and nic, as in "warn,path=trace". Lines go to stderr, or are
 * appended to the file EPWIRE_LOG_FILE (%p in the name stands for the process id). Operations that succeed
 * log nothing. A message that is turned off costs one load. */
enum { EPW_LOG_OFF = 0, EPW_LOG_WARN = 1, EPW_LOG_INFO = 2, EPW_LOG_TRACE = 3 };

typedef struct epw_log_record {
    uint32_t size;
    uint32_t level;        /* EPW_LOG_WARN to EPW_LOG_TRACE */
    int32_t rank;          /* this rank, -1 if not known */
    int32_t peer;          /* the peer concerned, -1 if none */
    const char *subsystem; /* the name, for example "path" */
    const char *text;      /* one line, without a line end; valid until the function returns, as the record
                              is */
    uint64_t time_ns;      /* since 1970-01-01 UTC */
} epw_log_record;

/* Called by the thread that logs, with locks of the library held: it must not call the library, and must
 * return soon. */
typedef void (*epw_log_fn)(void *context, const epw_log_record *record);

/* From now on calls `fn` with `context` for each message that `levels` selects; `levels` has the form of
 * EPWIRE_LOG, which continues to print by itself. `fn` replaces the function set before; NULL only removes
 * that one. Another thread that is logging at this moment may still call the former function, with either
 * context. EPW_ERR_INVALID: `levels` has another form. */
EPW_API epw_status epw_log_set(const char *levels, epw_log_fn fn, void *context);

/* ---- 2. Configuration ---------------------------------------------------------------------------------- */

#define EPW_MAX_RANKS    1024
#define EPW_MAX_TOPK     32
#define EPW_MAX_TOKENS   65536
#define EPW_MAX_LANES    2
#define EPW_MAX_SIDEBAND 64
#define EPW_FP8_BLOCK    128 /* channels that share one FP8 scale */

/* A wait ends after this many deadlines, whatever the peers say. */
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
    EPW_COMBINE_RANK_REDUCED = 0, /* one row per (token, rank), summed by that rank over its experts */
    EPW_COMBINE_ORDERED = 1       /* one row per (token, expert), summed at the token's own rank in top-k
                                     order */
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
 * fabric serves all buffers of a rank. */
typedef struct epw_fabric epw_fabric;

/* Paths to a peer: bits of epw_config.paths, and what epw_buffer_path reports. */
enum {
    EPW_PATH_NONE = 0,
    EPW_PATH_SELF = 1,   /* the rank itself */
    EPW_PATH_THREAD = 2, /* another rank of this process: its window is used directly */
    EPW_PATH_SHM = 4,    /* another process of this host: its window, of host memory, is mapped */
    EPW_PATH_VMM = 8, /* another process of this host: its window, of GPU memory, is mapped by a VMM handle */
    EPW_PATH_IPC = 16,  /* the same by a CUDA IPC handle */
    EPW_PATH_QUEUE = 32 /* a rank on any host: what is written for it travels by a queue, see epw_fabric */
};
#define EPW_PATH_ALL 0xffffffffu

/* epw_config.device: tokens, outputs and the window are in host memory, and host threads move the bytes. */
#define EPW_DEVICE_HOST (-1)

/* A set of ranks: rank r is bit r%64 of bits[r/64]. This struct never grows. */
typedef struct epw_mask {
    uint64_t bits[EPW_MAX_RANKS / 64];
} epw_mask;

/* What a buffer must be able to do. All fields but `rank`, `threads`, `paths`, `sms`, `serial_lanes`,
 * `queue_depth`, `fabric` and the ordinal in `device` must be equal on every rank; epw_buffer_connect refuses
 * a peer whose value differs, and names the field. */
typedef struct epw_config {
    uint32_t size;       /* sizeof(epw_config) */
    uint32_t version;    /* EPW_CONFIG_VERSION */
    uint32_t rank;       /* [0, ranks) */
    uint32_t ranks;      /* [1, EPW_MAX_RANKS]; on GPUs at most 256 */
    uint32_t max_tokens; /* tokens per rank and operation, [1, EPW_MAX_TOKENS]; 65535 with `ordered` */
    uint32_t hidden;     /* channels of a token, a multiple of 8 (of 128 for FP8), at most 2^24 */
    uint32_t experts;    /* physical experts in all, a multiple of ranks, at most 2^20, on GPUs 8192; expert e
                            lives on e / (experts/ranks) */
    uint32_t topk;       /* experts per token at most, [1, min(EPW_MAX_TOPK, experts)] */
    uint32_t lanes;      /* operations in flight, 1 or 2 */
    uint32_t dtype;      /* EPW_BF16 or EPW_F16: type of tokens */
    uint32_t combine_dtype;  /* EPW_BF16 or EPW_F16: type of expert outputs and of combine's result */
    uint32_t opaque_bytes;   /* most payload + scale bytes of an opaque row, up to 2^30; 0: no opaque rows */
    uint32_t sideband_bytes; /* most opaque bytes per token, [0, EPW_MAX_SIDEBAND] */
    uint32_t ordered;        /* 1: also reserve what EPW_COMBINE_ORDERED needs */
    uint32_t zero_copy;      /* 1: also reserve an expert-major area for epw_next_combine_buffer */
    uint32_t threads; /* threads that move data for this rank, the caller included, at most 256; 0: chosen by
                         the library */
    uint32_t paths;   /* permitted EPW_PATH_* bits; EPW_PATH_ALL: any */
    int32_t device;   /* EPW_DEVICE_HOST, or the CUDA ordinal, in this process, of the GPU that holds tokens,
                         outputs and the window. All ranks use the host, or all use GPUs */
    uint32_t sms; /* CUDA: the most SMs that the kernels of all lanes take together, one thread block on each,
                     at most 1024; 0: all SMs of the GPU that no other buffer or communicator of this process
                     has. All kernels that wait for peers must be resident at once: otherwise a kernel that
                     waits can keep another one from starting, and the peers that need that other one wait
                     until the deadline. The SMs therefore belong to this buffer until it is destroyed, and a
                     buffer that does not fit is refused with EPW_ERR_LIMIT, which names the holders and how
                     many each has. What other processes take of the GPU is not counted */
    uint32_t queue_depth;  /* least number of entries of a queue, a power of two from EPW_QUEUE_DEPTH_MIN to
                              EPW_QUEUE_DEPTH_MAX; 0: queue_depth of the fabric, if there is one. Lets a plan
                              be made before the fabric exists */
    uint64_t deadline_ns;  /* a peer silent for so long is given up: 1 ms to 1 day */
    epw_fabric *fabric;    /* reaches the peers behind queues. It belongs to this rank and must outlive the
                              buffer. NULL: no peer is reached by a queue. With a fabric, and EPW_PATH_QUEUE in
                              `paths`, max_tokens of decode is at most 16254, and a buffer on a GPU also takes
                              pinned host memory: see epw_plan */
    uint32_t serial_lanes; /* CUDA: 1: kernels of the two lanes never run at the same time, as when both lanes
                              are used on one stream; then each kernel may take all of `sms`. With 0 a lane of
                              decode has half of them, and for prefill see epw_prefill. The library puts eager
                              calls of both lanes one behind the other, whatever their streams; the order in
                              which graphs run is up to the caller: kernels of two lanes that run at once may
                              keep each other off the GPU until the deadline */
    uint32_t reserved;     /* 0 */
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
    /* The parts of the window. */
    uint64_t control_bytes;   /* header and signal words */
    uint64_t dispatch_bytes;  /* dispatch slots of all lanes */
    uint64_t combine_bytes;   /* combine slots of all lanes, rank-reduced */
    uint64_t ordered_bytes;   /* what `ordered` adds to them */
    uint64_t zero_copy_bytes; /* what `zero_copy` adds */
    uint64_t window_bytes;    /* sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB */
    uint64_t private_bytes;   /* this rank's memory outside the window; with `threads` 0, for the threads that
                                 the library would choose now. On a GPU it is device memory; about 0.4 MB of
                                 pinned host memory, through which kernels report, are not counted */
    /* Memory for peers behind queues, computed as if all other ranks were such peers; 0 if `paths` excludes
     * queues. It is host memory, pinned if `device` is a GPU, but for what EPW_RINGS_* places in the GPU's.
     * Some is allocated for all ranks when the first such peer is connected, the rest for each peer when it
     * is connected. */
    uint64_t image_bytes; /* what this rank writes for them, and the NIC reads; allocated for all ranks at
                             once */
    uint64_t ring_bytes;  /* queues to which lanes post; allocated for each peer. Memory that EPW_WIRE_LOCAL
                             shares with peers belongs to the fabric: epw_fabric_options.ring_bytes */
    uint64_t inbox_bytes; /* GPU only: what they write to this rank if only mapped peers write into its
                             window; allocated for each peer, as large as the peer's part of the window. 0 if
                             `fabric` has EPW_RINGS_GPU, since they then write into the window; with
                             EPW_RINGS_AUTO it is allocated only if the adapter does not reach that */
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

/* Peers whose windows this rank does not map are reached by queues: this rank's NIC, in software or an
 * adapter, sends what is written for them, and the peer's NIC places it in the peer's window. With
 * EPW_PATH_QUEUE as the only bit of epw_config.paths beside EPW_PATH_SELF everything goes by queues, even
 * where memory could be shared. */

/* What carries the bytes of queues between two ranks. */
enum {
    EPW_WIRE_LOCAL = 1, /* memory shared within one host, by way of a Unix socket of its network namespace */
    EPW_WIRE_TCP = 2,   /* TCP over IPv4 or IPv6 */
    EPW_WIRE_VERBS = 4  /* an RDMA adapter of any make, by libibverbs: the first with an active port and, on
                           Ethernet, a RoCEv2 address that others can reach. Ranks still connect to each other
                           by a Unix socket within a host, or by TCP if they have a key, and so see which
                           ranks have ended */
};

/* What drains the queues. */
enum {
    EPW_NIC_SOFT = 1,   /* a thread of this process */
    EPW_NIC_STRICT = 2, /* the same for tests, and slow: it delays fetches, overwrites entries that are done,
                           and breaks a queue whose entries or bytes change after their doorbell */
    EPW_NIC_FAKE = 3,   /* for tests: an mlx5 adapter in software, which takes the commands of a real one, and
                           is as strict with them as its firmware */
    EPW_NIC_MLX5 = 4 /* an mlx5 adapter with an active port, by libibverbs and libmlx5. Unproven: no adapter
                        has been tried yet */
};

/* How kernels ring the doorbells of an adapter's queues. */
enum {
    EPW_DOORBELLS_AUTO = 0, /* the first of the two below that works here; epw_fabric_describe says which */
    EPW_DOORBELLS_GPU = 1,  /* kernels write the adapter's registers, which the GPU's driver must map */
    EPW_DOORBELLS_HOST = 2  /* kernels write words that a thread of this process copies to the registers. The
                               thread takes a core while kernels post; after 2 ms without a post, the next one
                               takes up to 0.1 ms longer */
};

/* Adapters: where the queues that kernels post to lie, the rows that kernels send by them, and what peers
 * send. With EPW_WIRE_VERBS as the only wire this is about the last alone, for its NIC reads the first two.
 */
enum {
    EPW_RINGS_HOST = 0, /* pinned host memory */
    EPW_RINGS_GPU = 1, /* memory of the GPU, for each of them; the adapter must reach it. What peers send goes
                          to the window itself. EPW_ERR_NO_PATH if it cannot */
    EPW_RINGS_AUTO = 2 /* for each of them GPU memory if the adapter reaches it, else host memory;
                          epw_fabric_describe says which */
};

/* Whether an adapter of EPW_WIRE_VERBS places what it writes in the order of posting. Where it may not, a
 * word is posted only when everything before it is done, one round trip later. */
enum {
    EPW_ORDER_AUTO = 0, /* as the device's transport promises: InfiniBand's and RoCE's do */
    EPW_ORDER_NONE = 1  /* it does not, for example because switches spread the packets of one queue pair over
                           several paths. EPW_ERR_INVALID with an mlx5 adapter as the NIC: nobody holds back
                           what is posted to its queues */
};

typedef struct epw_fabric_options {
    uint32_t size;  /* sizeof(epw_fabric_options) */
    uint32_t rank;  /* [0, EPW_MAX_RANKS): the rank of the buffers that use this fabric */
    uint32_t wires; /* EPW_WIRE_* bits. Two ranks of one host that both have EPW_WIRE_LOCAL use it; others use
                       the highest bit that they have in common */
    uint32_t nic;   /* EPW_NIC_* */
    uint16_t first_port, last_port; /* TCP: for each address it listens on a port of this range; 0, 0: on any
                                       port */
    const char *interfaces;         /* TCP: listens on the addresses of these interfaces, in the grammar of
                                       NCCL_SOCKET_IFNAME: "eth,ib", "=eth0" or "^docker"; NULL: of all */
    const unsigned char *key;       /* TCP: 32 secret bytes, the same on all ranks: both ends of a connection
                                       prove that they know them. The data is neither encrypted nor protected
                                       on the way. NULL: no key. Copied */
    /* EPW_WIRE_LOCAL: size of the ring in shared memory by which this rank sends to one peer, a power of two
     * from EPW_RING_BYTES_MIN to EPW_RING_BYTES_MAX; 0: 2^22. Each peer on this host that a buffer reaches
     * by a queue takes this much, 68 KiB more, and a ring for the way back, whose size the peer's options
     * set. No plan counts them; pages are allocated as they are used. */
    uint32_t ring_bytes;
    uint32_t doorbells; /* EPW_DOORBELLS_*: of an adapter, for buffers on a GPU */
    /* Which adapters may be used, in the grammar of NCCL_IB_HCA: "mlx5": all whose names begin so;
     * "=mlx5_0:1": exactly this one, and this port of it; "^mlx5_1,mlx5_2": all but those whose names begin
     * so; "^=mlx5_1": all but exactly this one. NULL: any. Of these the one nearest to `device` on the PCI
     * bus is taken; among equally near ones each rank takes the next. epw_fabric_describe says which it is.
     * Copied */
    const char *adapters;
    int32_t device; /* the GPU of the buffers that use this fabric, as in epw_config; EPW_DEVICE_HOST: all
                       adapters are equally near */
    uint32_t adapter_count; /* number of adapters, which lanes use in turn: 1 or 2; 0: 1. EPW_ERR_NO_PATH if
                               there are fewer */
    uint32_t service_level; /* InfiniBand: [0, 15]; Ethernet: the priority, [0, 7] */
    uint32_t traffic_class; /* Ethernet: [0, 255], four times the DSCP; a traffic class that the kernel sets
                               for the port does not apply to these queue pairs */
    uint32_t hop_limit;     /* Ethernet: [1, 255]; 0: 255 */
    uint32_t rings;         /* EPW_RINGS_*: of an adapter, for buffers on a GPU */
    /* Least number of entries, of 64 bytes each, of a queue; each lane of a buffer has a queue to each peer.
     * A power of two from EPW_QUEUE_DEPTH_MIN to EPW_QUEUE_DEPTH_MAX; 0, or fewer than the lane's operations
     * may post at a time: as many as these need. A peer that takes nothing is given up once its queue is
     * full. epw_plan.ring_bytes takes this into account if epw_config.fabric is set. */
    uint32_t queue_depth;
    uint32_t doorbell_batch; /* the host rings the doorbell each time it has posted this many entries of an
                                operation's rows to a peer, and after the last: [1, EPW_QUEUE_DEPTH_MAX]; 0:
                                only after the last. Kernels post all entries for a peer at once, and ring
                                once */
    uint32_t order;          /* EPW_ORDER_*: of EPW_WIRE_VERBS */
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

/* Creates a fabric: starts its threads and listens for connections. options [in], out [out]. Any thread. */
EPW_API epw_status epw_fabric_create(const epw_fabric_options *options, epw_fabric **out);

/* Describes the fabric for printing: its NIC and, of an adapter, the port, the address and the features that
 * it lacks. The form may change: do not parse it. fabric [in], text [out, at most EPW_FABRIC_TEXT bytes, the
 * final zero included]; returns `text`. Any thread. */
#define EPW_FABRIC_TEXT 800
EPW_API const char *epw_fabric_describe(const epw_fabric *fabric, char *text);

/* Ends its threads and connections. All buffers that used the fabric must have been destroyed before; if the
 * process keeps one of them, because a GPU may still write to it, it keeps the fabric too. NULL is allowed.
 * Does nothing in a forked child. */
EPW_API void epw_fabric_destroy(epw_fabric *fabric);

/* ---- 5. Buffer and membership -------------------------------------------------------------------------- */

/* One rank's side: its window, its mappings of the peers' windows, its lanes. */
typedef struct epw_buffer epw_buffer;

/* The most bytes that an exported blob takes. */
#define EPW_BLOB_MAX 1024

/* Allocates the window and starts the rank's threads. EPW_ERR_INVALID also if an environment variable cannot
 * be followed: EPWIRE_ISA names an instruction set that is unknown or cannot run here, or EPWIRE_LOG is no
 * list of levels. EPW_ERR_SYSTEM also if the file of EPWIRE_LOG_FILE cannot be opened, EPW_ERR_LIMIT if its
 * name has more than 1023 bytes. config [in], out [out]. */
EPW_API epw_status epw_buffer_create(const epw_config *config, epw_buffer **out);

/* Tells active peers that this rank leaves, ends its threads, unmaps the peers and frees the window. No other
 * thread may be using the buffer. NULL is allowed. In a forked child this is the only call allowed on a
 * buffer that it inherited: it frees the child's memory and tells no peer; the parent's buffer lives on. */
EPW_API void epw_buffer_destroy(epw_buffer *buffer);

/* Writes what `peer` needs to reach this rank's window. The program carries it there and passes it to the
 * peer's epw_buffer_connect. It holds a secret that lets processes of the same user map the window: carry it
 * over a channel that you trust. blob [out, EPW_BLOB_MAX bytes], length [out]. */
EPW_API epw_status epw_buffer_export(epw_buffer *buffer, uint32_t peer, void *blob, size_t *length);

/* Maps the window that `peer` exported for this rank. Every peer must be connected once before it may be
 * active; this rank itself cannot be (EPW_ERR_INVALID). EPW_ERR_MISMATCH: a field of the configuration
 * differs. EPW_ERR_FENCED: a former incarnation of this rank, which may be another buffer of this process,
 * still has the peer's window mapped; or a former incarnation of the peer has this rank's, and a queue leads
 * to the peer. EPW_ERR_PEER: its process has ended; or it has exported queues that serve a former connection
 * of this rank, whose end it had not noticed yet: let it export again. Bounded by the deadline. No other call
 * on the buffer waits for it; one that connects or disconnects the same peer meanwhile gets EPW_ERR_STATE.
 * Connecting a peer again first disconnects it, unless the blob is refused for what it says: cut, damaged,
 * of another rank or of another configuration. While the peer is not active, any thread may call this at
 * any time, also beside operations, none of which it waits for. An active peer must have been given up, and
 * no lane may be held. */
EPW_API epw_status epw_buffer_connect(epw_buffer *buffer, uint32_t peer, const void *blob, size_t length);

/* The same, bounded by deadline_ns (not 0) instead of the buffer's deadline: lets a program connect many
 * peers within one bound. */
EPW_API epw_status epw_buffer_connect_within(epw_buffer *buffer, uint32_t peer, const void *blob,
                                             size_t length, uint64_t deadline_ns);

/* Tells the peer, then unmaps its window. The peer must not be active, unless it has been given up and no
 * lane is held. Any thread, at any time. */
EPW_API epw_status epw_buffer_disconnect(epw_buffer *buffer, uint32_t peer);

/* Finds out whether the path to `peer` works: sends its process a word in the way in which rows travel,
 * beside all operations, and waits for the answer, which the library there gives even if its program makes no
 * call. Any thread; a probe first waits for those of the peer by other threads, on a GPU for all of theirs.
 * EPW_ERR_TIMEOUT: no answer within timeout_ns, in all, plus, on GPUs, the time of a few copies of 8 bytes.
 * EPW_ERR_PEER: the peer's process has ended, or the queue to it is broken, for instance because it has
 * disconnected this rank. EPW_ERR_STATE: not connected. If `peer` is this rank itself, its own device is
 * probed: a word is written into its window and read back, on the host by this process, on GPUs by copies on
 * a stream of the library's own. EPW_ERR_SYSTEM: this fails; EPW_ERR_TIMEOUT: it takes longer than
 * timeout_ns. */
EPW_API epw_status epw_buffer_probe(epw_buffer *buffer, uint32_t peer, uint64_t timeout_ns);

/* The EPW_PATH_* by which `peer` is reached, EPW_PATH_NONE if it is not connected. */
EPW_API uint32_t epw_buffer_path(const epw_buffer *buffer, uint32_t peer);

/* The EPW_WIRE_* that carries what is written for `peer`; 0 if its path is not EPW_PATH_QUEUE, or if mlx5
 * adapters drain the queues, since they have a wire of their own. */
EPW_API uint32_t epw_buffer_wire(const epw_buffer *buffer, uint32_t peer);

/* For printing: why the queues to `peer` carry nothing any more (EPW_CAUSE_LINK), and what to do about it,
 * until the peer is connected again; "" if they work, or if the path is no queue. Do not parse it, its form
 * may change. text [out, at most EPW_TROUBLE_TEXT bytes, the final zero included]; returns `text`. Any
 * thread. */
#define EPW_TROUBLE_TEXT 512
EPW_API const char *epw_buffer_trouble(const epw_buffer *buffer, uint32_t peer, char *text);

/* The name of one EPW_PATH_* for printing, for example "CUDA IPC". Never NULL. */
EPW_API const char *epw_path_name(uint32_t path);

/* The last step at which a membership may begin: 2^41 - 1. */
#define EPW_STEP_MAX 2199023255551u

/* Begins a membership: every member calls it with the same mask, epoch and step, with no lane held and its
 * own writes done. `epoch` is in [1, 8388607] and larger than any before; only after EPW_ERR_TIMEOUT, when
 * the GPU was not seen to begin the epoch, may the same one be passed again, with the same step. `step` is
 * the group's step at which the membership begins, in [0, EPW_STEP_MAX]; programs that count no steps pass 0.
 * All other members must be connected. Clears suspects and restarts the operation counters. Members that
 * begin the epoch at different steps do not take part in each other's operations (EPW_CAUSE_STEP). Former
 * members that are left out are told: their operations end at once without this rank (EPW_CAUSE_SUPERSEDED).
 * How mask, epoch and step are decided is up to the caller. CUDA: waits for what has been enqueued before,
 * see section CUDA. */
EPW_API epw_status epw_buffer_set_active(epw_buffer *buffer, const epw_mask *active, uint32_t epoch,
                                         uint64_t step);

/* Says that the group continues without these peers: they become suspects of this membership, and present and
 * future waits for them end at once (EPW_CAUSE_SUPERSEDED). For callers that already know it, so that
 * nobody waits for a deadline to find out. It does not say that the peers have failed, so none of them
 * becomes `silent`. Peers that are no members are ignored; EPW_ERR_INVALID if the mask names this rank. Any
 * thread, beside running operations, none of which it waits for: they stop waiting within some milliseconds.
 * CUDA: a kernel looks for this once it has waited for some tens of microseconds; an operation that finds a
 * peer's words in place completes with that peer. */
EPW_API epw_status epw_buffer_revoke(epw_buffer *buffer, const epw_mask *peers);

/* A membership, and what has become of it. */
typedef struct epw_membership {
    uint32_t size;
    uint32_t epoch; /* 0: none yet */
    uint64_t step;  /* at which it began */
    epw_mask active;
    epw_mask suspects; /* active peers given up since epw_buffer_set_active; until the next one this rank
                          neither sends to them nor waits for them. CUDA: may contain this rank itself, see
                          epw_error_record.peer */
    epw_mask silent;   /* suspects that this rank itself has seen silent for a whole deadline
                          (EPW_CAUSE_TIMEOUT). It was told of the others, which is no evidence that they have
                          failed */
} epw_membership;

#define EPW_MEMBERSHIP_INIT                                                                                  \
    { .size = sizeof(epw_membership) }
EPW_API void epw_membership_init(epw_membership *membership);

/* The current membership. membership [in: size, out]. Any thread. */
EPW_API epw_status epw_buffer_membership(const epw_buffer *buffer, epw_membership *membership);

/* CUDA: enqueues on `stream` a small kernel that tells the program's kernels of the suspects. It writes for
 * each rank 0 if it takes part, 1 if it is a suspect of the membership, or -1 if it is no member, all as of
 * this point of the stream: what work before it has found is there. Not 0 means that nothing is sent there or
 * awaited from there. May be captured; each replay looks again. It waits for no work but that of `stream`,
 * and of earlier such kernels on streams that no lane's last call used. As calls are, it is waited for before
 * the membership changes and before the buffer is destroyed; replays must have run. Any thread.
 * suspects [out, device memory, ranks]. EPW_ERR_STATE: the buffer is on the host. */
EPW_API epw_status epw_buffer_suspects(epw_buffer *buffer, int32_t *suspects, void *stream);

/* The newest epoch that this rank or one of its active peers has begun. If it is larger than this rank's own,
 * others have moved on, and wait for this rank there. epoch [out]. Any thread. CUDA: copies a word for each
 * peer; EPW_ERR_TIMEOUT if the GPU does not finish that within 10 ms. */
EPW_API epw_status epw_buffer_newest_epoch(epw_buffer *buffer, uint32_t *epoch);

/* Active ranks, this one included, that have begun `epoch` at a step other than `step`: they do not count
 * steps as the group agreed, and their operations match none of the others (EPW_CAUSE_STEP). Ranks that are
 * in another epoch are never in the set. epoch is in [0, 8388607], step in [0, EPW_STEP_MAX]. ranks
 * [out]. Any thread. CUDA: as epw_buffer_newest_epoch. */
EPW_API epw_status epw_buffer_diverged(epw_buffer *buffer, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* ---- verdicts ----
 *
 * An operation that is complete here may lack rows elsewhere. A verdict tells all members alike whether what
 * they computed in a step may be used: each ends the step with a checkpoint, and asks for the verdict when it
 * needs it. */

enum {
    EPW_VERDICT_PENDING = 0, /* not known yet: some member has not ended the step; if that member was lost,
                                the verdict is open until the next membership has begun everywhere */
    EPW_VERDICT_CLEAN = 1,   /* all members have completed everything that ended in the step. If the
                                membership has changed since: all that are members of both */
    EPW_VERDICT_FAULTED = 2  /* some member has not: an outcome was degraded, or a handle was released */
};

/* Ends a step of this buffer: tells all members whether everything that has ended since the last checkpoint
 * was complete. An operation counts for the step in which its combine ends. All members end the same steps.
 * `step` is at least the one at which the membership began, larger than any before, and at most EPW_STEP_MAX;
 * at most 2^22 more than the one before, if the membership has had one. A step that is skipped has the
 * verdict of the next one. epoch [out]: the present epoch, with which to ask for the verdict. Waits for
 * nobody. EPW_ERR_STATE: no membership yet, or CUDA: `stream` is under capture. CUDA: enqueues on `stream` a
 * kernel of one block, which runs after everything that calls have enqueued on all lanes so far, and before
 * what their next calls enqueue. The caller must order replays of graphs before or after it. */
EPW_API epw_status epw_checkpoint(epw_buffer *buffer, uint64_t step, void *stream, uint32_t *epoch);

/* Makes the step that the next checkpoint ends count as incomplete: for failures outside this buffer, such as
 * those of collectives (epw_comm_take_fault). Any thread, also while operations run. */
EPW_API epw_status epw_checkpoint_fault(epw_buffer *buffer);

/* The verdict, EPW_VERDICT_*, of a step that this rank has ended with a checkpoint in `epoch`. All members of
 * the present membership get the same verdict, though not at the same moment. A verdict once given stays
 * right; but a rank that asks again after the membership has changed may get EPW_VERDICT_PENDING until all
 * have begun the next one. EPW_ERR_LIMIT: the verdict is not known any more, 16 steps or 3 memberships later
 * (steps that began after some member was given up do not count), or this rank does not belong to the
 * membership that judges the step. Waits for no peer. Any thread. CUDA: copies 384 bytes for each rank, on no
 * stream of the caller; gives EPW_VERDICT_PENDING if that takes more than 200 microseconds: ask again.
 * verdict [out]. */
EPW_API epw_status epw_checkpoint_verdict(epw_buffer *buffer, uint32_t epoch, uint64_t step,
                                          uint32_t *verdict);

/* What a buffer or communicator has moved since it was created, traffic with this rank itself included. Bytes
 * are those of rows with their scales, of answers, and of the messages of collectives, sends and receives;
 * without headers, counts and signal words. */
typedef struct epw_traffic {
    uint32_t size;
    uint32_t peer_size;         /* of epw_peer_traffic */
    uint64_t operations;        /* that have ended, complete or degraded: dispatches and combines; of a
                                   communicator, collectives, sends and receives */
    uint64_t rows_sent;         /* by dispatch: one for each token and each rank that it goes to */
    uint64_t rows_received;     /* by dispatch, and valid */
    uint64_t rows_answered;     /* by combine: one for each received row; ordered: one for each of the row's
                                   experts on this rank */
    uint64_t bytes_sent;        /* to all ranks */
    uint64_t bytes_received;    /* from all ranks */
    uint64_t operations_copied; /* of a communicator on a GPU: how often copy engines have moved the bytes of
                                   an operation, in replays too; see epw_comm_alloc */
} epw_traffic;

/* Its part with one rank; the way to that rank is epw_buffer_path, epw_prefill_path or epw_comm_path. */
typedef struct epw_peer_traffic {
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t wait_ns; /* how long operations could not continue without the peer, in nanoseconds. The output
                         wait_ns of a dispatch or combine is the same for that operation */
} epw_peer_traffic;

#define EPW_TRAFFIC_INIT                                                                                     \
    { .size = sizeof(epw_traffic), .peer_size = sizeof(epw_peer_traffic) }
EPW_API void epw_traffic_init(epw_traffic *traffic);

/* traffic [in: sizes, out]. peers [out, may be NULL]: [ranks]. Any thread, also while operations run, whose
 * bytes count at their end at the latest. What an operation had moved before it was given up may be missing.
 * CUDA: kernels count, in replays of graphs too, from the first such call on: those of operations and graphs
 * that were enqueued or captured before do not. Copies their counts, on no stream of the caller.
 * EPW_ERR_TIMEOUT if the copy takes longer than the group's deadline. wait_ns is 0: use the output wait_ns.
 * The same for the others: epw_prefill_traffic, epw_comm_traffic. */
EPW_API epw_status epw_buffer_traffic(const epw_buffer *buffer, epw_traffic *traffic,
                                      epw_peer_traffic *peers);

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
    EPW_CAUSE_DROPPED = 2,    /* it has told this rank that it continues without it, or that it leaves */
    EPW_CAUSE_SUSPECTED = 3,  /* it was given up by an earlier operation of this epoch */
    EPW_CAUSE_FORMAT = 4,     /* its rows have another payload or sideband than this rank's, or weights where
                                 this rank's have none, or it answers in another EPW_COMBINE_* mode */
    EPW_CAUSE_PARTIAL = 5,    /* it answered fewer rows than it was sent: it gave the operation up, and takes
                                 part in the next one. Or a routing is used again that never had all of its
                                 rows, because it was missing from the dispatch that filled the routing. This
                                 is no reason to change the membership; a peer in epw_membership.suspects is */
    EPW_CAUSE_ROUTING = 6,    /* CUDA: not a peer's fault: a routing id was out of range or repeated */
    EPW_CAUSE_HELD = 7,       /* CUDA: not a peer's fault: the replayed operation did nothing, because the
                                 lane was not in the state that it needs (held, or not held) */
    EPW_CAUSE_SUPERSEDED = 8, /* it moved on to a newer epoch, or the group continues without it: see
                                 epw_buffer_revoke */
    EPW_CAUSE_STEP = 9,       /* it has begun this epoch at another step */
    EPW_CAUSE_LINK = 10,      /* a peer behind a queue: the connection to it is gone, or it has taken nothing
                                 for so long that the queue has no room for more */
    EPW_CAUSE_OVERFLOW = 11 /* prefill, not a peer's fault: `expected` rows were received, and only `seen` of
                               them fit the capacity of the output */
};

/* The first peer that an operation gave up, with every variable of that wait. The library fills it in as a
 * part of epw_outcome, and in epw_take_errors and its like; in all cases the caller has passed its size. */
typedef struct epw_error_record {
    uint32_t phase; /* EPW_PHASE_* */
    uint32_t cause; /* EPW_CAUSE_* */
    uint32_t rank;  /* this rank */
    uint32_t peer;  /* the peer given up. CUDA: this rank itself if other work kept its kernel off the GPU
                       until the wait's bound; the rank is then among its own suspects */
    uint32_t lane;
    uint32_t epoch;
    uint32_t op;          /* operation number in the lane, from 1 in each epoch; wraps after 2^24 - 1 */
    uint32_t waiting;     /* how many peers were still awaited */
    uint64_t expected;    /* the signal word awaited; its value bits are zero, except in an epoch word */
    uint64_t seen;        /* the word found */
    uint64_t elapsed_ns;  /* since the wait began */
    uint64_t deadline_ns; /* its bound */
} epw_error_record;

/* How an operation ended: complete, or without the rows of some peers. */
typedef struct epw_outcome {
    uint32_t size;
    uint32_t degraded;       /* 0: every active peer took part; 1: see missing, which may be empty, and
                                record.cause */
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
    const float *topk_weights; /* [n, topk] f32, dense; NULL if no rank needs weights at dispatch. Not NULL
                                  even with 0 tokens, if other ranks give it */
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
    int32_t lane; /* 0, 1, or -1: the lanes in turn, of prefill lane 0. All ranks use the same lane for the
                     same operation */
    uint32_t nonblocking; /* 1: return EPW_PENDING instead of waiting; epw_poll continues. The memory of all
                             inputs and outputs must live until the operation has finished or been released */
    uint64_t deadline_ns; /* of this rank's waits, at least the buffer's; 0: the buffer's */
    void *stream;         /* CUDA: the cudaStream_t to enqueue on; see "CUDA" */
    uint32_t sms; /* CUDA: the most SMs for the kernels of this operation, both halves; 0, or more than the
                     lane's part of config.sms (of prefill: than what its lane may take): that part. A
                     captured call keeps the number. Ranks may have different ones */
    uint32_t reserved;
} epw_dispatch_input;

#define EPW_DISPATCH_INPUT_INIT                                                                              \
    {                                                                                                        \
        .size = sizeof(epw_dispatch_input), .idx_type = EPW_I32, .payload = EPW_PAYLOAD_SAME,                \
        .layout = EPW_EXPERT_MAJOR, .lane = -1                                                               \
    }
EPW_API void epw_dispatch_input_init(epw_dispatch_input *input);

/* Where received rows go. M = plan.rows = ranks*max_tokens, E = local experts, K = scales per row. Rows are
 * ordered by source rank, then by token at the source. Any pointer may be NULL if that output is not wanted,
 * except that expert-major needs `rows` and `counts`; pointers that the layout does not fill must be NULL.
 * Rows beyond the counts are left as they were (CUDA: after a degraded operation they may hold anything). */
typedef struct epw_dispatch_output {
    uint32_t size;
    uint32_t scale_order; /* 0: scales column-major; 1: row-major */
    uint32_t nonblocking; /* for epw_dispatch_receive: as in epw_dispatch_input */
    uint32_t reserved;
    void *rows;     /* a multiple of 16: expert-major [E, M, payload]; rank-major [M, payload], source s from
                       s*max_tokens on (NULL: read them in place, see epw_rows_view) */
    void *scales;   /* expert-major, column-major: [E, K, M]; row-major: [E, M, K]; rank-major: the same
                       with E = 1. UE8M0 column-major: i32 [E, ceil(K/4), M], exponent of channel block b
                       in byte b%4 of word b/4, zero-padded */
    void *sideband; /* expert-major [E, M, sideband_bytes], rank-major [M, sideband_bytes] */
    uint32_t *counts;        /* rows per local expert [E] */
    uint32_t *source_counts; /* rows per source rank [ranks] */
    uint32_t *ranges; /* [E, ranks, 2]: where each source rank's rows begin in the expert's list, and how
                         many there are; rank-major, that list is the expert's in expert_rows */
    uint64_t *packed_ranges; /* [E, ranks]: the same, packed as in DeepEP: the count in the lower 32 bits, the
                                beginning in the upper */
    uint32_t *source_token;  /* expert-major [E, M], rank-major [M]: the row's token index at its source */
    int32_t
        *row_experts;   /* rank-major [M, config.topk]: local expert id, -1 where the entry lives elsewhere */
    float *row_weights; /* rank-major [M, config.topk]: routing weights, 0 where the expert id is -1 */
    uint32_t *expert_rows;      /* rank-major [E, M]: the rows of each local expert, counts[e] of them */
    uint64_t *expert_totals;    /* [E]: adds the tokens of each local physical expert */
    int32_t *expert_totals_i32; /* [E]: adds the same, modulo 2^32 */
    uint64_t *wait_ns; /* [ranks]: adds the time spent waiting for each source; on the host from the first
                          epw_ready on, if that came before the receiving half */
    void *stream;      /* for epw_dispatch_receive, CUDA: the cudaStream_t to enqueue on */
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
    const float *topk_weights; /* ordered only: [n, topk] f32, dense; NULL: those given at dispatch, which
                                  rank-reduced always uses */
    uint32_t nonblocking;      /* as in epw_dispatch_input */
    uint32_t sms;              /* CUDA: as in epw_dispatch_input */
    uint64_t deadline_ns;      /* at least the buffer's; 0: the buffer's */
    void *stream;              /* CUDA: the cudaStream_t to enqueue on */
} epw_combine_input;

#define EPW_COMBINE_INPUT_INIT                                                                               \
    { .size = sizeof(epw_combine_input), .mode = EPW_COMBINE_RANK_REDUCED }
EPW_API void epw_combine_input_init(epw_combine_input *input);

/* Where the combined tokens go. */
typedef struct epw_combine_output {
    uint32_t size;
    uint32_t nonblocking; /* for epw_combine_receive: as in epw_dispatch_input */
    void *out; /* a multiple of 16: [n, hidden] of combine_dtype, dense. Tokens routed nowhere become zeros */
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
 * error. outcome [out] may be NULL; it is filled when the call ends, and by a sending half on the host too,
 * as far as it knows. A wrong or repeated expert id is EPW_ERR_INVALID naming row and column, and nothing is
 * sent. */
EPW_API epw_status epw_dispatch(epw_buffer *buffer, const epw_dispatch_input *input,
                                const epw_dispatch_output *output, epw_handle *handle, epw_outcome *outcome);

/* The receiving half of a dispatch. Call it, like any next call, within one deadline of the sending half. */
EPW_API epw_status epw_dispatch_receive(epw_buffer *buffer, epw_handle handle,
                                        const epw_dispatch_output *output, epw_outcome *outcome);

/* Rows where they lie in the window; those of source s begin at row s*max_tokens. Valid from the end of
 * dispatch until combine or release. `rows` may be written (rank-major zero-copy combine) once all experts
 * have read the row: the row then holds [hidden] of combine_dtype. */
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
 * rank-major, the received rows themselves; expert-major, [E, M, hidden], if config.zero_copy is set. Then
 * pass expert_out = NULL to epw_combine. */
EPW_API epw_status epw_next_combine_buffer(epw_buffer *buffer, epw_handle handle, epw_rows_view *view);

/* Answers every received row and, if `output` is not NULL, receives the answers to this rank's own rows, sums
 * them and consumes the handle. With `output` NULL this is the sending half. */
EPW_API epw_status epw_combine(epw_buffer *buffer, epw_handle handle, const epw_combine_input *input,
                               const epw_combine_output *output, epw_outcome *outcome);

/* The receiving half of a combine. Consumes the handle. */
EPW_API epw_status epw_combine_receive(epw_buffer *buffer, epw_handle handle,
                                       const epw_combine_output *output, epw_outcome *outcome);

/* Continues a non-blocking operation without waiting: EPW_PENDING, EPW_OK (outcome is filled) or an error.
 * Like epw_ready it also receives what peers behind queues have sent so far: a program that only polls needs
 * no other thread. */
EPW_API epw_status epw_poll(epw_buffer *buffer, epw_handle handle, epw_outcome *outcome);

/* Sleeps until epw_poll may find something new, at most timeout_ns. Touches no memory of the operation: any
 * thread may call it while another polls. Returns EPW_OK, or EPW_ERR_STATE if no operation of the handle is
 * under way and no receiving half is due. */
EPW_API epw_status epw_await(epw_buffer *buffer, epw_handle handle, uint64_t timeout_ns);

/* After the sending half of a dispatch or combine: EPW_OK if the receiving half would not wait for anybody,
 * else EPW_PENDING. The first such call begins the wait that the receiving half continues with: from then on
 * peers are told that this rank waits, and who is silent for a deadline is given up. Between calls of
 * epw_ready, epw_await sleeps as it does between polls; call epw_ready again whenever it returns. */
EPW_API epw_status epw_ready(epw_buffer *buffer, epw_handle handle);

/* Gives the handle up: answers with no rows every peer that has sent rows, and in the background those that
 * have not sent yet. Does not wait, and touches no memory of the caller afterwards. */
EPW_API epw_status epw_release(epw_buffer *buffer, epw_handle handle);

/* ---- CUDA ----
 *
 * A buffer whose config.device is a GPU takes the same calls with these differences:
 * - Pointers of inputs and outputs are device memory of that GPU (epw_rows_view.source_counts too). They must
 *   stay valid, and inputs unchanged, until the work enqueued with them has run.
 * - A call checks its arguments, enqueues on `stream` (NULL: the legacy default stream; the per-thread one
 *   and streams under capture are fine) and returns: it waits for nothing, copies nothing and allocates
 *   nothing. `nonblocking` must be 0 and `outcome` NULL: the outcome is known once the stream has run the
 *   work, see epw_outcome_read.
 * - A routing id that is out of range or repeated within its token counts as "not routed" and is recorded, up
 *   to 64 of them for one operation, see epw_take_errors.
 * - A lane's operations run in the order of the calls: if `stream` differs from that of the lane's previous
 *   call, it first waits, by an event, for what that call has enqueued. Under capture the caller orders
 *   replays. A per-call deadline_ns is refused under capture; `tokens` is frozen at capture (rows of -1 ids
 *   move nothing).
 * - The host tracks lanes and handles by calls, captured ones included, not by replays. Before the membership
 *   changes, before an active peer is connected again or disconnected, and before the buffer is destroyed,
 *   replays must have run. These functions wait for what eager calls have enqueued, up to the deadline (then
 *   EPW_ERR_TIMEOUT; epw_buffer_destroy waits for 24 of them, and leaves the memory allocated until the
 *   process ends if the GPU is still using it). A window that peers reach by CUDA IPC is freed once the last
 *   of them has let go of it.
 * - epw_release enqueues on the stream of the handle's last call. If that was the per-thread default stream,
 *   it uses the one of the thread that calls epw_release: a release from another thread runs after the
 *   handle's last call, but not after what the program has enqueued on that call's stream since. If CUDA
 *   cannot enqueue it, epw_release succeeds all the same, and the lane's next dispatch releases the handle
 *   first; epw_release_on returns the error, except on a stream whose capture has been invalidated.
 * - Values that a peer sends with its rows are clamped, so that nothing outside the windows and the outputs
 *   is read or written. But kernels do not compare counts with the rows' entries, as the host does: if a peer
 *   lies about them, places of expert_rows, or rows of an expert's list, are left unwritten. If a row itself
 *   is malformed (an impossible token or place in a list), the host leaves out all rows of its source. On a
 *   GPU the source is missing too, with EPW_CAUSE_FORMAT, and gets no answer, but its rows stay counted: in
 *   their places are zeros or rows that it has sent. The same holds for a peer that was given up and sends
 *   after all, which thread blocks that other work kept off the GPU for a while may see: it is missing, and
 *   its rows are in place and stay counted.
 * - The handle of a captured dispatch is ended by a captured combine or release, in the same graph or
 *   another. With two graphs, keep the handle from one capture to the other, then replay the graphs in turns,
 *   on one stream or with an event of the program between them. A release outside captures runs at once,
 *   before any replay.
 * - topk_weights of an ordered combine must stay valid until its receiving half has run.
 * - wait_ns leaves out waits shorter than about 15 microseconds. Asking for it costs nothing that could be
 *   measured, asking for expert_totals 0.3 microseconds with rows by rank and nothing with rows by expert (2
 *   H200s, 128 tokens).
 * - Addresses are aligned to their element, `contributions` to 4 bytes, and x, rows, expert_out and out to
 *   16; x_stride is a multiple of 16.
 * - Kernels wait for those of peers. What the program must leave alone meanwhile (loading kernels, calls that
 *   synchronise, streams that share a hardware queue) is in src/guide/gpus.md.
 * - epw_poll and epw_ready do not apply. epw_await waits until the handle's last eager call has run, and
 *   returns EPW_PENDING if timeout_ns passes first; like epw_outcome_read it also takes a consumed handle. To
 *   make another stream wait, use epw_stream_wait. */

/* From now on, calls of the calling thread for buffers, prefill buffers and communicators are refused if
 * their stream is under capture: EPW_ERR_STATE with the text `why`, which must stay valid. NULL, as at first:
 * they are captured. epw_release is not refused: the lane's next dispatch does it first. Returns what was set
 * before. For callers that cannot promise that a graph is launched only while what it uses is there. */
EPW_API const char *epw_refuse_captures(const char *why);

/* epw_release on a given stream; epw_release itself uses the one of the handle's last call. The host device
 * ignores `stream`. */
EPW_API epw_status epw_release_on(epw_buffer *buffer, epw_handle handle, void *stream);

/* CUDA: makes `stream` (as in a call; of the buffer's GPU) wait for what calls have enqueued so far on the
 * handle's lane: what is enqueued on `stream` later runs after that. Enqueues nothing if `stream` is that of
 * the lane's last call, since this then holds already. Also takes a consumed handle, until the lane's next
 * dispatch. The host waits for nothing. Any thread, also while another uses the handle. Under capture:
 * - The handle's last call was captured: `stream` joins its capture, if it is not in it already, and waits
 *   for that call, as by an event that the program records behind it. Before the capture ends, the program
 *   makes its first stream wait for `stream`, as CUDA demands of all streams that have joined.
 * - Only `stream` is under capture: whenever the graph is launched, it waits for what eager calls have
 *   enqueued on the lane before the launch. It must not be launched any more once the buffer is destroyed.
 * EPW_ERR_STATE: the lane has moved on to another dispatch, or the handle is another buffer's; the handle's
 * last call was captured, and its capture has ended (let `stream` wait for the graph), or `stream` is under
 * another capture, or is the legacy default stream; the buffer is on the host. A refused call leaves captures
 * as they were. */
EPW_API epw_status epw_stream_wait(epw_buffer *buffer, epw_handle handle, void *stream);

/* CUDA: the outcome of the last half that was enqueued for `handle`; EPW_PENDING if the GPU has not run it
 * yet. Also takes a consumed handle, until the lane's next dispatch. Not for captured calls: their outcomes
 * are in `contributions` and epw_take_errors. outcome [out]. */
EPW_API epw_status epw_outcome_read(epw_buffer *buffer, epw_handle handle, epw_outcome *outcome);

/* CUDA: moves up to `capacity` of the error records that kernels have written since the last call, oldest
 * first, to `records` [out], each of `record_size` bytes, sizeof(epw_error_record). *count [out] is how many
 * it has moved, *lost [out, may be NULL] how many have been lost since the last call: records overwritten
 * before anybody took them, and bad ids of one operation beyond 64. A record with cause EPW_CAUSE_ROUTING
 * describes a routing id: `expected` is token << 32 | column, `seen` the id. The host device has no records:
 * its outcomes and errors say everything. */
EPW_API epw_status epw_take_errors(epw_buffer *buffer, epw_error_record *records, size_t record_size,
                                   uint32_t capacity, uint32_t *count, uint64_t *lost);

/* ---- 7. Numerics --------------------------------------------------------------------------------------- */

/* Quantises [rows, hidden] of `dtype` to e4m3 with one scale per 128 channels: the code that dispatch uses,
 * for the instruction set that EPWIRE_ISA may name (see epw_buffer_create).
 * q [out, rows*hidden], scales [out]: f32 [rows, hidden/128]; with EPW_PAYLOAD_FP8_UE8M0 bytes [rows,
 * hidden/128]. */
EPW_API epw_status epw_quantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                                    const void *x, uint8_t *q, void *scales);

/* The inverse: x = q * scale, rounded to `dtype`. */
EPW_API epw_status epw_dequantize_fp8(uint32_t payload, uint32_t dtype, uint64_t rows, uint32_t hidden,
                                      const uint8_t *q, const void *scales, void *x);

/* ---- 8. Collectives ------------------------------------------------------------------------------------ */

/* One rank's side of a communicator: collectives, sends and receives among the ranks of a group.
 *
 * All members call the same collectives in the same order, with the same type, reduction, root and counts. If
 * a rank calls another one, the operation ends with EPW_ERR_MISMATCH on every rank that waits in it, and so
 * does the next call of every other rank; the error names both calls. On the host a rank that has 0 elements
 * for another one tells it so unless the ring to it is full: then those that wait for elements of it find it
 * missing (EPW_CAUSE_TIMEOUT), if it makes no other call within the deadline. The communicator can be used
 * again from its next membership on. Sends and receives are matched by peer and tag, in the order of the
 * calls; a message of another type than the receive that it matches is such a mismatch too. On the host that
 * receive writes nothing, and what was sent and not received is lost with the membership, as always when one
 * ends: also if its send was complete. On a GPU a send that still waits for its receive ends with the error
 * too, and a rank whose operations are complete learns of the mismatch in its next collective.
 *
 *     NCCL                         MPI                              here
 *     ncclCommInitRank             MPI_Init                         epw_comm_create, epw_comm_connect
 *     ncclCommUserRank, -Count     MPI_Comm_rank, MPI_Comm_size     rank and ranks of epw_comm_config
 *     ncclCommSplit                MPI_Comm_split, MPI_Comm_dup     epw_comm_subset
 *     ncclCommAbort                MPI_Comm_revoke (ULFM)           epw_comm_revoke: waits for some ranks end
 *     ncclCommShrink               MPI_Comm_shrink (ULFM)           epw_comm_set_active
 *     ncclCommGetAsyncError                                         the outcome, epw_comm_take_fault
 *     ncclMemAlloc                 MPI_Alloc_mem, MPI_Win_allocate  epw_comm_alloc
 *     ncclCommRegister             MPI_Win_create                   epw_comm_register on GPUs
 *     ncclBroadcast, ncclBcast     MPI_Bcast                        epw_broadcast
 *     ncclAllReduce                MPI_Allreduce                    epw_all_reduce
 *     ncclReduce                   MPI_Reduce                       epw_reduce
 *     ncclReduceScatter            MPI_Reduce_scatter_block         epw_reduce_scatter
 *     ncclAllGather                MPI_Allgather                    epw_all_gather
 *     ncclAlltoAll                 MPI_Alltoall                     epw_all_to_all
 *     ncclGather, ncclScatter      MPI_Gather, MPI_Scatter          epw_gather, epw_scatter
 *                                  MPI_Allgatherv, MPI_Alltoallv    epw_group, counts and offsets in epw_coll
 *                                  and others that end with v
 *                                  MPI_IN_PLACE                     see the kinds of operations below
 *                                  MPI_Barrier                      epw_barrier
 *     ncclSend, ncclRecv           MPI_Send, MPI_Recv               epw_send, epw_recv
 *                                  MPI_Ibarrier, MPI_Isend, ...     the same calls, with epw_call.work
 *     ncclGroupStart, -End         MPI_Sendrecv                     epw_group
 *                                  MPI_Wait, MPI_Test               epw_work_wait, epw_work_poll
 *                                  MPI_Request_free                 epw_work_drop
 *     ncclSum, -Prod, -Min, -Max,  MPI_SUM, MPI_PROD, MPI_MIN,      EPW_SUM, EPW_PRODUCT, EPW_MIN, EPW_MAX,
 *     ncclAvg                      MPI_MAX                          EPW_AVERAGE
 *
 * Operations follow the rules of dispatch and combine: every wait is bounded, a peer that is silent for a
 * deadline is given up for the epoch, and the outcome names who is missing. The parts of `recv` that a
 * missing rank was to give are then unspecified; a reduction that lacks any rank has no result at all, and
 * all of `recv` is unspecified. The input survives if `recv` is not `send`, but not in place. A root that is
 * no member counts as missing, and so does the other rank of a send or receive. Complete here does not mean
 * complete everywhere.
 *
 * Reductions. Element i of the result is the fold of element i of all members in ascending rank order: 16-bit
 * floats in f32 and rounded once to nearest even, f32 and f64 in their own type, integers wrapping. The fold
 * begins with the first member's element. A NaN result is the positive quiet NaN. EPW_MIN and EPW_MAX give
 * NaN if any element is one, and treat -0 as less than +0. EPW_AVERAGE divides the sum by the number of
 * members: floats before the rounding, integers exactly, then rounded towards zero. With one member the
 * element is copied. So the bits are the same on every rank, on every device and in every run. Sums are never
 * in two levels: no partial sums of the ranks of a host, or of any other group, are added up. A program that
 * wants that makes it of subsets: the guide of the Rust crate, page collectives, shows how.
 *
 * Buffers may have any alignment and any count; with a count of 0 they may be NULL. `send` and `recv` may be
 * the same where the description says "in place"; otherwise they must not overlap.
 *
 * Memory. Pieces travel through rings of slots in the peers' windows: one copy into a slot, and one from
 * there. Large ones that lie in memory that epw_comm_alloc gave are read there by peers of the same host,
 * with no system call and one copy. Those in any other memory are read there too (process_vm_readv), from the
 * size on from which that is faster, if it is and the host permits it: a process measures this once, unless
 * EPWIRE_PULL_FROM says it.
 *
 * Any thread may call; calls on one communicator take turns. */
typedef struct epw_comm epw_comm;

/* All fields but `rank`, `paths`, the ordinal in `device`, `fabric` and `queue_depth` must be equal on every
 * rank.
 *
 * CUDA. Calls enqueue a kernel on the stream of their epw_call and return. Buffers are device memory. Who is
 * missing is known only when the operation has run: `outcome` must be NULL; pass `work` to ask for it later,
 * or look at the suspects in epw_comm_membership. Calls on different streams run in the order of the calls.
 * Streams may be under capture: a replay takes its turn like a call, on all ranks in the same order, and uses
 * the membership that it finds when it runs; captured calls have no `work`.
 *     Sends and receives of one epw_group progress together, before its collectives; those of different calls
 *     run in stream order, so that a large send holds up what comes after it until it is received. Each pair
 *     of ranks matches sends with receives in the order of the calls: if the two ends differ in type or tag,
 *     or the receiver has too little room, that is a mismatch.
 *     With `fabric`, and EPW_PATH_QUEUE in `paths`, peers whose windows cannot be mapped are reached by
 *     queues. Either all ranks permit that or none does. If they do, all operations of any size, with mapped
 *     peers too, go in pieces through rings, without what makes operations by windows alone fast: so leave
 *     EPW_PATH_QUEUE out where all peers map each other. Results are the same. The communicator then also
 *     takes pinned host memory: images and an inbox, each at most as large as the rings of all ranks, and the
 *     queues. epw_comm_plan computes the sizes.
 *     Blocks that are uneven, or have offsets or rows, are limited to 96 ranks. Uneven ones always go as
 *     large operations do, once each pair of ranks has exchanged its counts and found them equal.
 *     `slots` and `slot_bytes` are for each thread block of a kernel; 0: 8 slots, and such a size that all
 *     rings together take 64 MiB, but at least 1 KiB and at most 32 KiB. If both are 0, the window has
 *     another 56 MiB, by which operations of medium size (an all-reduce of 2 to 4 ranks: up to 16 MiB)
 *     take as little as half the time where switches of NVLink join the GPUs; if one is given, they use
 *     the rings. */
typedef struct epw_comm_config {
    uint32_t size;       /* sizeof(epw_comm_config) */
    uint32_t version;    /* EPW_COMM_CONFIG_VERSION */
    uint32_t rank;       /* [0, ranks) */
    uint32_t ranks;      /* [1, EPW_MAX_RANKS]; CUDA: at most 256 */
    uint32_t slots;      /* slots of the ring from one rank to another, a power of two in [2, 256]; 0: 8 */
    uint32_t slot_bytes; /* payload of a slot, a multiple of 64 in [64, 2^24]; 0: such that the rings of all
                            ranks take 16 MiB together, but at least 1 KiB and at most 32 KiB */
    uint32_t paths;      /* permitted EPW_PATH_* bits; EPW_PATH_ALL: any */
    int32_t device; /* EPW_DEVICE_HOST, or the CUDA ordinal of the GPU whose memory is sent and received */
    uint64_t heap_bytes;  /* for epw_comm_alloc, the same on all ranks, at most 2^44 */
    uint64_t deadline_ns; /* a peer silent for so long is given up: 1 ms to 1 day */
    epw_fabric *fabric;   /* as in epw_config; CUDA: see above */
    uint32_t sms; /* CUDA: the most thread blocks of a kernel, [1, 64], the same on all ranks; 0: 32, or 8
                     where queues are permitted. As in epw_config the SMs belong to this communicator: create
                     it before a buffer that takes all that are free */
    uint32_t queue_depth;       /* as in epw_config; each rank may have its own */
    uint64_t copy_engines_from; /* CUDA: bytes of recv from which on copy engines move an all-gather or
                                   all-to-all of equal blocks, see epw_comm_alloc; 0: none */
} epw_comm_config;

#define EPW_COMM_CONFIG_VERSION 1

/* For copy_engines_from: smaller operations are faster by kernels. */
#define EPW_COPY_ENGINES_FROM 33554432
#define EPW_COMM_CONFIG_INIT                                                                                 \
    {                                                                                                        \
        .size = sizeof(epw_comm_config), .version = EPW_COMM_CONFIG_VERSION, .paths = EPW_PATH_ALL,          \
        .device = EPW_DEVICE_HOST, .deadline_ns = 10000000000u                                               \
    }
EPW_API void epw_comm_config_init(epw_comm_config *config);

/* Sizes that follow from a configuration. Computed without allocating anything. */
typedef struct epw_comm_sizes {
    uint32_t size;       /* sizeof(epw_comm_sizes) */
    uint32_t slots;      /* of a ring, as chosen if `slots` is 0; likewise the next two */
    uint32_t slot_bytes; /* that a slot carries */
    uint32_t sms;        /* CUDA: the most thread blocks of a kernel; 0 on the host */
    /* The parts of the window. */
    uint64_t control_bytes; /* signal words, and what goes with them */
    uint64_t ring_bytes;    /* rings from all ranks, for collectives and for sends */
    uint64_t heap_bytes;
    uint64_t window_bytes; /* sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB */
    /* Memory for peers behind queues, as in epw_plan; 0 if `paths` excludes queues. */
    uint64_t image_bytes; /* what this rank writes for them */
    uint64_t queue_bytes; /* the queues: ring_bytes of epw_plan */
    uint64_t inbox_bytes; /* GPU only: what they write to this rank */
} epw_comm_sizes;

#define EPW_COMM_SIZES_INIT                                                                                  \
    { .size = sizeof(epw_comm_sizes) }
EPW_API void epw_comm_sizes_init(epw_comm_sizes *sizes);

/* Checks `config` and computes its sizes. `paths` alone says whether there are queues: on a GPU the window is
 * another one with them, so leave EPW_PATH_QUEUE out of it if there will be no fabric. config [in], sizes
 * [in: size, out]. */
EPW_API epw_status epw_comm_plan(const epw_comm_config *config, epw_comm_sizes *sizes);

/* As the functions of these names for a buffer. epw_comm_create: EPW_ERR_INVALID also if EPWIRE_PULL_FROM is
 * no number of bytes. epw_comm_set_active on the host: EPW_ERR_STATE while work is under way; wait for it, or
 * drop it. On a GPU it waits for what has been enqueued. */
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
EPW_API const char *epw_comm_trouble(const epw_comm *comm, uint32_t peer, char *text);
EPW_API epw_status epw_comm_set_active(epw_comm *comm, const epw_mask *active, uint32_t epoch, uint64_t step);
EPW_API epw_status epw_comm_revoke(epw_comm *comm, const epw_mask *peers);
EPW_API epw_status epw_comm_membership(const epw_comm *comm, epw_membership *membership);
EPW_API epw_status epw_comm_suspects(epw_comm *comm, int32_t *suspects, void *stream);
EPW_API epw_status epw_comm_newest_epoch(epw_comm *comm, uint32_t *epoch);
EPW_API epw_status epw_comm_diverged(epw_comm *comm, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* Exchanges host memory among the members, also of a communicator on a GPU: for what ranks tell each other
 * when they set something up, such as the blobs of their registrations. An all-to-all in place: `bytes` bytes
 * at memory + r * bytes go to rank r, and those that rank r has for this rank take their place. All members
 * call it, in the same order relative to the collectives of `comm`, with the same number of bytes. Returns
 * when it has ended.
 *     CUDA. Not for the steps of a program: it waits on the host, for a kernel on a stream of the
 * communicator's own, which runs after what eager calls on `comm` have enqueued, and whose waits are those of
 * a collective. Later calls run after it, as it has ended. No stream of the caller waits for it or joins it:
 * streams may be under capture meanwhile, and are not changed. Replays are the caller's to wait for before it
 * calls. `comm` keeps GPU memory for this until it is destroyed: 64 KiB, or up to four times the largest
 * exchange. EPW_ERR_TIMEOUT: the GPU has not come to it and past it within 2 * EPW_WAIT_DEADLINES_MAX
 * deadlines. memory [in, out]. deadline_ns: as that of epw_call, 0: the communicator's. outcome [in: size,
 * out], may be NULL. */
#define EPW_EXCHANGE_MAX 65536 /* the most bytes for a rank */
EPW_API epw_status epw_comm_exchange(epw_comm *comm, void *memory, uint64_t bytes, uint64_t deadline_ns,
                                     epw_outcome *outcome);

/* A communicator of the ranks of `mask`, renumbered from 0 in ascending order, without connections that the
 * program makes: what its ranks need goes by collectives of `comm`, on a GPU by epw_comm_exchange, with all
 * that is said there. All members of `comm` call it, in the same order relative to its collectives. Each
 * passes a mask that contains it, or one that does not: then *out is NULL. All ranks of a mask pass that same
 * mask, and masks do not overlap. NULL as `config` is that of `comm`: the subset is on the same device.
 * Otherwise it is equal on all ranks of the mask where epw_comm_create wants that, and rank and ranks in it
 * are not read: with it one on the host makes a subset on GPUs, and the other way round. On a GPU a subset
 * takes SMs of its own, config.sms of them. A fabric must be one that was created for this rank's number in
 * the subset, which may differ from its number in `comm`: where there are queues, give a config. Blocks for
 * as long as `comm` waits for its members, and connections take. Its membership is that of `comm`, as far as
 * ranks are in the mask, with its epoch and step. From then on it is a communicator of its own, with a window
 * of its own: its program tells it of later memberships, exports it to ranks that come and connects them, and
 * destroys it. EPW_ERR_MISMATCH: masks overlap. EPW_ERR_PEER: a member is missing, or a rank of the mask,
 * which is named, could not make or connect its part. A mask or config.size that is wrong on this rank alone
 * is refused before anything is exchanged: the others wait for it, as in any collective. Of anything else
 * that is wrong there they are told, by EPW_ERR_PEER. After an error *out is NULL, on all
 * ranks of the mask unless the last exchange has lost a rank, and `comm` goes on; on a GPU what was made is
 * freed, which waits for the work that runs there. mask [in], config [in], out [out]. */
EPW_API epw_status epw_comm_subset(epw_comm *comm, const epw_mask *mask, const epw_comm_config *config,
                                   epw_comm **out);

/* Memory in the communicator's window, aligned to 64 bytes; the window is zeroed when the communicator is
 * created. On a GPU it is that GPU's memory. Peers that map the window read this memory directly, without a
 * copy in between; on GPUs if on every rank all buffers that peers read lie in such memory (or in that of
 * epw_comm_register), at multiples of 16 bytes, and blocks are multiples of 16 bytes. These buffers are those
 * that send; of an all-reduce also those that receive. An in-place all-to-all copies, and so does a
 * broadcast. EPW_ERR_LIMIT: heap_bytes does not suffice. Any thread may free it, in any order, when no
 * operation uses it; epw_comm_destroy frees all of it.
 *
 * On GPUs, with config.copy_engines_from, copy engines instead of SMs read the peers' memory, in an
 * all-gather or all-to-all of equal blocks that peers can read so and that has at least so many bytes at
 * recv. A kernel of one block begins the operation; one that has nothing to move ends it. The send of each
 * rank must be at the same offset: allocate in the same order on all ranks, or register ranges of the same
 * sizes in the same order. If some are elsewhere, or a rank is missing, this is found on the GPU, and the
 * last kernel moves the bytes, with the same result after a longer time; epw_traffic counts the operations
 * where copies did. The copies of an operation must take less than the deadline. If a rank is missing or
 * calls differ, recv holds anything, also in the place of that rank; and so do, in replays, places of ranks
 * that are no members any more.
 *
 * In a graph, only memory of epw_comm_alloc is read so, by copies from fixed addresses: the window of a
 * member that such a graph was captured with stays mapped, and its memory allocated, until epw_comm_destroy,
 * even if the peer is disconnected or ends. Replays with another peer in its place have the right result, by
 * kernels, until the graph is captured again. Three streams of the communicator's own copy at the same time
 * as the caller's; where one of them belongs to another capture that has not ended, only the caller's does.
 *
 * Kernels move the bytes if one process has the communicators of several GPUs and they have registered memory
 * of cudaMalloc, or share windows by EPW_PATH_IPC only: CUDA copies such memory in the order in which the
 * copies were enqueued, whatever their streams are, so a copy that waits for a peer would hold up the one
 * that the peer waits for. */
EPW_API epw_status epw_comm_alloc(epw_comm *comm, uint64_t bytes, void **memory);
EPW_API void epw_comm_free(epw_comm *comm, void *memory);

/* ---- memory of the caller's ----
 *
 * On GPUs large operations on memory of epw_comm_alloc are read directly by peers. Registration gives that to
 * memory that the caller has allocated by cudaMalloc, or by cuMemCreate with a POSIX file descriptor as
 * handle type. Each rank registers its own ranges, of any size, and each peer maps them:
 *
 *     epw_comm_register                 the owner; then, for each peer:
 *     epw_comm_export_registration      the owner; the program carries the blob to the peer
 *     epw_comm_import_registration      the peer
 *     epw_comm_lend                     the owner, once it has been told who has imported it
 *
 * From then on buffers in it are used as those of epw_comm_alloc are. An operation takes this way if on every
 * rank all buffers that peers read are in memory of either kind, and what is registered was lent to all
 * current members. Otherwise all ranks use rings, with the same result. A graph must be captured after
 * epw_comm_register; each replay looks up what is lent then.
 *
 * The way back: each peer unmaps it, then the owner deregisters it, and only then may the memory be freed.
 * CUDA does not define what happens if memory is freed that another process has mapped by CUDA IPC. Peers
 * also unmap it when they disconnect the owner, connect another incarnation of it, or destroy their
 * communicator. epw_comm_destroy of the owner deregisters everything, but the memory must stay until peers
 * have unmapped it. A rank that has been connected again is lent nothing until the memory is exported to it,
 * imported and lent again.
 *
 * While this rank calls epw_comm_import_registration, epw_comm_lend, epw_comm_unmap or epw_comm_deregister,
 * no operation of it may be in flight: what was enqueued is waited for within the deadline, replays are the
 * caller's to await. Between the first unmapping of a range and its deregistration its owner must not use it
 * in an operation, unless it has lent it to nobody before.
 *
 * In a communicator that permits queues, or has more than 8 ranks, peers read no memory directly; on the
 * host they read any memory without this. There registration gains nothing, but a program need not treat it
 * as a special case: these calls check what they get and succeed, peers map nothing, and operations go as
 * they would without registration. On the host they do not look at the memory, and have no limits.
 *
 * Limits: EPW_REGISTRATIONS_MAX ranges of a rank at a time, and 32 GiB together with heap_bytes. */
#define EPW_REGISTRATIONS_MAX     32
#define EPW_REGISTRATION_BLOB_MAX 1152 /* the most bytes of an exported blob */

/* A running number of the rank that has registered the memory, from 1. */
typedef uint64_t epw_registration;

/* Registers memory of this communicator's GPU, which begins at a multiple of 16 and lies in one allocation.
 * Nobody reads it yet. Peers map the whole allocation (CUDA also shares the 2 MiB in which a small one lies),
 * so they must be trusted with all of it. registration [out].
 * EPW_ERR_INVALID: no memory. On a GPU also host memory, managed memory, memory of a pool (cudaMallocAsync)
 * or of another GPU, which peers cannot map; memory that is registered already, or is the communicator's own.
 * EPW_ERR_LIMIT: see above. */
EPW_API epw_status epw_comm_register(epw_comm *comm, void *memory, uint64_t bytes,
                                     epw_registration *registration);

/* Writes what `peer` needs to map it. As epw_comm_export, to be carried over a channel that you trust. blob
 * [out, EPW_REGISTRATION_BLOB_MAX bytes], length [out]. */
EPW_API epw_status epw_comm_export_registration(epw_comm *comm, epw_registration registration, uint32_t peer,
                                                void *blob, size_t *length);

/* Maps what `peer`, which is connected, exported for this rank. Bounded by the deadline. registration [out]:
 * the peer's number of it. EPW_ERR_STATE: it is mapped already, or another incarnation of the peer is
 * connected. Otherwise as epw_comm_connect. */
EPW_API epw_status epw_comm_import_registration(epw_comm *comm, uint32_t peer, const void *blob,
                                                size_t length, epw_registration *registration);

/* From now on lends it to these ranks, which have mapped it, and to no others: `ranks` replaces what was said
 * before. This rank itself may be missing. EPW_ERR_STATE: one of them is not connected. */
EPW_API epw_status epw_comm_lend(epw_comm *comm, epw_registration registration, const epw_mask *ranks);

/* Unmaps the peer's registration, if it is mapped. */
EPW_API epw_status epw_comm_unmap(epw_comm *comm, uint32_t peer, epw_registration registration);

/* Ends this rank's registration. EPW_ERR_STATE: a peer, which is named, still has it mapped; the mappings of
 * a process that has ended are gone. After an error the memory must not be freed. */
EPW_API epw_status epw_comm_deregister(epw_comm *comm, epw_registration registration);

/* Whether something that has ended since the last such call was incomplete: an outcome was degraded, work was
 * dropped (on the host), or ranks had called different operations. Complete here does not mean complete
 * everywhere: a program that must know before it uses what a step has computed calls epw_checkpoint_fault of
 * a buffer if this is 1, and asks for the verdict of that buffer's checkpoint. faulted [out]: 0 or 1. Any
 * thread. */
EPW_API epw_status epw_comm_take_fault(epw_comm *comm, uint32_t *faulted);

/* As epw_buffer_traffic. All bytes are counted that go from rank to rank: an all-reduce of n bytes moves more
 * than n. Rows are 0. CUDA: calls that are not captured count when they are enqueued, as if no rank were
 * missing, and receives as what they have room for; wait_ns is 0. */
EPW_API epw_status epw_comm_traffic(const epw_comm *comm, epw_traffic *traffic, epw_peer_traffic *peers);

/* What an operation is. */
enum {
    EPW_BARRIER = 0,
    EPW_BROADCAST = 1,      /* root's send to everyone's recv; root's own recv may be send, or NULL */
    EPW_ALL_REDUCE = 2,     /* in place: recv == send */
    EPW_REDUCE = 3,         /* only root has a recv; in place there: recv == send */
    EPW_REDUCE_SCATTER = 4, /* block r of send is reduced to rank r's recv; in place: recv is this rank's
                               block of send */
    EPW_ALL_GATHER = 5,     /* rank r's send to block r of everyone's recv; in place: send is this rank's
                               block of recv */
    EPW_ALL_TO_ALL = 6, /* block p of send to rank p, into this rank's block of recv there; in place: recv ==
                           send, where block p is sent to rank p and then holds what rank p has sent */
    EPW_GATHER = 7,     /* rank r's send to block r of root's recv; in place at root: send is its own block */
    EPW_SCATTER = 8,    /* block r of root's send to rank r's recv; in place at root: recv is its own block */
    EPW_SEND = 9,
    EPW_RECV = 10
};
#define EPW_TAG_MAX         0x7fffffffu

#define EPW_NORM_HIDDEN_MAX 16384u

/* What all_reduce does with its sum in the same call, as between two layers of a tensor-parallel model: the
 * sum is added to the residual, and each row is normalised (RMSNorm) and, optionally, quantised. payload,
 * hidden, epsilon and rows are the same on every rank; an all_reduce without a norm is another operation. On
 * a GPU one kernel does all of it if peers are reached without queues, the sum travels in packets, and the
 * communicator has an SM for each 15 pieces of 128 elements: with 32 SMs, and up to 32 ranks, 8 rows of 7168.
 * A larger call takes a second kernel, which waits for nobody. On a GPU all memory, send and recv included,
 * must be aligned to 16 bytes. Results have the same bits on host and GPU: see the rules in
 * c/numerics/norm.h. If a member is missing there is no result: each row of `residual` and `out` is either
 * the old one or unspecified. */
typedef struct epw_norm {
    uint32_t size;
    uint32_t payload;   /* of out: EPW_PAYLOAD_SAME, or one of EPW_PAYLOAD_FP8_* */
    uint32_t hidden;    /* elements of a row: a multiple of 8 (for FP8 of 128), in [8, EPW_NORM_HIDDEN_MAX] */
    float epsilon;      /* in [0, 1e30] */
    uint64_t rows;      /* rows * hidden is the call's count */
    void *residual;     /* [rows][hidden] of the call's type; in: the residual, out: the residual plus the
                           call's sum; NULL: none */
    const void *weight; /* [hidden] of the call's type */
    void *out;          /* [rows][hidden]; may be recv where payload is EPW_PAYLOAD_SAME */
    void *scales;       /* [rows][hidden / 128]: f32, or bytes for EPW_PAYLOAD_FP8_UE8M0; NULL if payload is
                           EPW_PAYLOAD_SAME */
} epw_norm;

#define EPW_NORM_INIT                                                                                        \
    { .size = sizeof(epw_norm), .epsilon = 1e-6f }
EPW_API void epw_norm_init(epw_norm *norm);

/* One operation, for epw_group. Counts, offsets and pitches are elements of `type`. */
typedef struct epw_coll {
    uint32_t size;
    uint32_t kind; /* EPW_BARRIER to EPW_RECV */
    uint32_t type; /* EPW_TYPE_*; any type if nothing is reduced */
    uint32_t op;   /* reductions: EPW_SUM to EPW_AVERAGE */
    uint32_t peer; /* the root; EPW_SEND: the receiver; EPW_RECV: the sender */
    uint32_t tag;  /* EPW_SEND and EPW_RECV: at most EPW_TAG_MAX */
    const void *send;
    void *recv;
    uint64_t count; /* of the operation, or of each block; EPW_RECV: the most that may come */
    /* Uneven blocks: in send of reduce_scatter and scatter, in recv of all_gather and gather, in both of
     * all_to_all. [ranks]; counts are the same on every rank, except that in all_to_all send_counts[p] here
     * equals recv_counts[this rank] at p. Counts NULL: `count` elements each. Offsets NULL: one block after
     * the other. In an all_to_all in place, block p is what goes to rank p and what comes from it:
     * send_counts and send_offsets must be NULL or equal those of recv, and recv_counts[p] here equals
     * recv_counts[this rank] at p. As with other counts, a rank that has another one there is
     * EPW_ERR_MISMATCH. */
    const uint64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
    /* Blocks of `rows` rows; the counts are then elements of one row, and a pitch is the distance from row to
     * row. `rows` 0: one row. For all_gather and reduce_scatter: in all_gather send_pitch applies to this
     * rank's block, and recv_pitch to the matrix of all blocks, in which block r begins at its offset; in
     * reduce_scatter send_pitch applies to the matrix, and recv_pitch to the block. Pitch 0: dense, that is,
     * the elements of one row of the block, or of one row of all blocks together. Other pitches are at least
     * that; with offsets, that of the matrix at least the largest count. */
    uint64_t rows, send_pitch, recv_pitch;
    const epw_norm *norm; /* for all_reduce with EPW_SUM of bf16 or f16; NULL: none. Copied by the call */
} epw_coll;

#define EPW_COLL_INIT                                                                                        \
    { .size = sizeof(epw_coll) }
EPW_API void epw_coll_init(epw_coll *coll);

/* A handle to operations in flight, valid until they are waited for or dropped. Never 0. */
typedef uint64_t epw_work;

/* How a call behaves; a NULL pointer to it stands for all defaults. */
typedef struct epw_call {
    uint32_t size;
    uint32_t reserved;
    uint64_t deadline_ns; /* of this rank's waits, at least the communicator's; 0: the communicator's */
    epw_work *work; /* [out]: the call begins the operation and returns; buffers must stay valid and unchanged
                       until it has ended or been dropped (CUDA: until the stream has run it, dropped or not).
                       NULL: the call waits; CUDA: it does not wait, and its result cannot be asked for */
    void *stream;   /* CUDA: a cudaStream_t of the communicator's GPU; NULL: the default stream */
} epw_call;

#define EPW_CALL_INIT                                                                                        \
    { .size = sizeof(epw_call) }
EPW_API void epw_call_init(epw_call *call);

/* Begins `count` operations, which progress together: sends that cross do not wait for each other.
 * Collectives among them keep their order. At most 65536 operations, on GPUs at most 48 sends and receives,
 * which are for at most 4 peers per SM of the communicator; one that is both sent to and received from counts
 * twice. A refused call has no effect. outcome [out], of
 * all of them, may be NULL; it is filled by the call that sees the end. */
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
/* On the host a message that fits a slot (slot_bytes of epw_comm_plan) is complete once it has been copied,
 * as long as such messages to the peer that it has not received take at most 256 KiB. Any other is complete
 * when it has been received, and so is one to the rank itself: EPW_ERR_TIMEOUT if no receive matches it
 * within the deadline. At most 1,024 messages of one rank to another are announced and not received: further
 * sends wait for receives. A rank takes in messages while it waits in any call of the communicator, or polls
 * a work; for one that does neither there is room for `slots` of them, and further sends wait for it as for a
 * peer. */
EPW_API epw_status epw_send(epw_comm *comm, const void *send, uint64_t count, uint32_t type, uint32_t peer,
                            uint32_t tag, const epw_call *call, epw_outcome *outcome);
/* EPW_ERR_LIMIT: the message, which the error names, is longer than `count` elements; it is consumed. A
 * shorter one leaves the rest of `recv` as it was. EPW_ERR_MISMATCH: it is of another type. Until they are
 * received messages are kept here, within the limits of epw_send, so none of them holds up another one. As
 * long as anything comes from the peer, also of other calls, it is not given up; otherwise it is after the
 * deadline, for other calls too. */
EPW_API epw_status epw_recv(epw_comm *comm, void *recv, uint64_t count, uint32_t type, uint32_t peer,
                            uint32_t tag, const epw_call *call, epw_outcome *outcome);

/* Waits for the work to end, at most timeout_ns (UINT64_MAX: as long as its own deadlines permit).
 * EPW_PENDING: it has not ended. Otherwise `work` is consumed, and status and outcome are those that the call
 * would have given; but a call that is refused (EPW_ERR_STATE: there is no such work) consumes nothing. CUDA:
 * EPW_ERR_LIMIT if the outcome is not known any more, because an operation that lacked a rank, 256 or more
 * operations later, has taken its place. */
EPW_API epw_status epw_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome);

/* The same without waiting. */
EPW_API epw_status epw_work_poll(epw_comm *comm, epw_work work, epw_outcome *outcome);

/* Sleeps until epw_work_poll may find something new, at most timeout_ns. Touches no buffer of an operation:
 * any thread may call it while another polls. EPW_OK also if the time is over or there is no such work. */
EPW_API epw_status epw_work_await(epw_comm *comm, epw_work work, uint64_t timeout_ns);

/* Gives the work up: its buffers are not touched again. Peers find this rank missing from it
 * (EPW_CAUSE_PARTIAL), now or when this rank's later calls get there. CUDA: only its outcome cannot be asked
 * for any more; the operation runs all the same, and its buffers are needed until the stream has run it. */
EPW_API epw_status epw_work_drop(epw_comm *comm, epw_work work);

/* ---- 9. Prefill ---------------------------------------------------------------------------------------- */

/* One rank's side of dispatch and combine for many tokens: up to EPW_MAX_TOKENS from each rank in an
 * operation, through rings of fewer slots in the peers' windows, so that memory does not grow with the number
 * of tokens. As a row arrives it is copied out of its slot to its place in the output, and its source may use
 * the slot again. Each peer and direction progresses by itself.
 *
 * All members call the same operations on the same lane in the same order; each lane has one at a time.
 * Waits, losses, membership and numbers are those of section 6, with these differences. Dispatch and combine
 * are separate operations: a dispatch need not be followed by a combine, and a routing may be combined any
 * number of times. If a peer is lost while its rows arrive, their places in the output stay reserved, and
 * hold none of its rows.
 *
 * On a GPU (config.ep.device) all memory passed to calls is memory of the GPU, and `stream` is a
 * cudaStream_t. A call enqueues one kernel and returns without waiting. It may be captured into a graph, both
 * halves of an operation into the same one. It takes neither `nonblocking` nor `outcome`: epw_prefill_poll
 * says how the last eager operation of a routing has ended, and epw_prefill_take_errors what went wrong in
 * replays too. Ids that are out of range or repeated are left out, and make the outcome degraded, with
 * EPW_CAUSE_ROUTING unless a peer is missing or rows have no place as well. x, rows, expert_out, bias and out
 * are aligned to 16 bytes, other memory to its elements. A routing has room for ranks * max_tokens rows from
 * the start. EPW_HALF_COUNTS enqueues a kernel as well, which waits for the counts and ends:
 * epw_prefill_received is EPW_PENDING until they are there, and then no kernel of the operation runs until
 * the receiving half. If it was captured, epw_prefill_received is EPW_ERR_STATE. A sending half counts
 * nothing: after it epw_prefill_received is EPW_ERR_STATE until the receiving half has been called. A half
 * that is captured while the other one is not, or into another graph, is EPW_ERR_STATE.
 *
 * Two lanes share config.ep.sms unless config.ep.serial_lanes is 1. A kernel that begins while the other lane
 * has none in flight takes nearly all of them: of 24 one is kept for the other lane, of 132 there are 17. If
 * both have one in flight, the second takes what is left, at most half, and the next kernels of both take at
 * most half, until 16 in a row have begun alone. `sms` of an operation limits this. Replays are no different.
 *
 * For peers behind queues (config.ep.fabric) kernels write to pinned host memory and read from there, see
 * epw_prefill_sizes. */
typedef struct epw_prefill epw_prefill;

/* Records which rows each rank sends to which other, and where they lie: a dispatch fills it in; combine
 * needs it, and so does a dispatch of other rows in the same way. It runs one operation at a time, and is
 * used by one thread at a time. It can be used only with the epw_prefill that made it and in the membership
 * of its dispatch. */
typedef struct epw_routing epw_routing;

/* Layouts of what is received, beside EPW_EXPERT_MAJOR and EPW_RANK_MAJOR. */
enum {
    EPW_PACKED = 2, /* rows of each local expert together, experts in order, each beginning at a multiple of
                       `alignment` rows, at most 65536 */
    EPW_DENSE = 3   /* rows by source, one source after the other */
};

/* `ep` is as for a buffer, and the same fields must be equal on every rank. `ordered` and `zero_copy` are 0:
 * ordered combine needs no reservation. max_tokens is the most tokens of a rank in one operation. */
typedef struct epw_prefill_config {
    uint32_t size;        /* sizeof(epw_prefill_config) */
    uint32_t ring_tokens; /* slots of the ring from one rank to another, [1, EPW_MAX_TOKENS + 1], with
                             EPW_PATH_QUEUE at most 16248, equal on
                             every rank; 0: EPW_PREFILL_RING_TOKENS, on GPUs EPW_PREFILL_RING_TOKENS_GPU;
                             fewer if max_tokens is less, or if the windows would exceed 256 MiB, but at least
                             16 */
    epw_config ep;
} epw_prefill_config;

#define EPW_PREFILL_RING_TOKENS     512
#define EPW_PREFILL_RING_TOKENS_GPU 2048 /* more, because more rows are under way at the same time */
#define EPW_PREFILL_CONFIG_INIT                                                                              \
    { .size = sizeof(epw_prefill_config), .ep = EPW_CONFIG_INIT }
EPW_API void epw_prefill_config_init(epw_prefill_config *config);

/* Sizes that follow from a configuration. Computed without allocating anything. */
typedef struct epw_prefill_sizes {
    uint32_t size;                 /* sizeof(epw_prefill_sizes) */
    uint32_t local_experts;        /* experts / ranks */
    uint32_t ring_tokens;          /* as chosen */
    uint32_t split_tokens;         /* most tokens of the sending half of a dispatch or of a rank-reduced
                                      combine */
    uint32_t split_tokens_ordered; /* the same for an ordered combine, whose ring holds several rows of a
                                      token */
    uint32_t reserved;
    uint64_t slot_bytes;     /* of a dispatched row in a ring */
    uint64_t answer_bytes;   /* of an answer in a ring */
    uint64_t control_bytes;  /* header and signal words */
    uint64_t dispatch_bytes; /* rings of dispatched rows, of all lanes */
    uint64_t combine_bytes;  /* rings of answers, of all lanes */
    uint64_t window_bytes;   /* sum of the above; the host takes 64 KiB at a time, a GPU 2 MiB */
    uint64_t private_bytes; /* this rank's memory outside the window, as in epw_plan. On a GPU that has counts
                               for each block of a kernel: for as many as config.ep.sms permits or, if that
                               is 0, as 1024 SMs would have, more than a buffer then allocates */
    uint64_t routing_bytes; /* of an epw_routing for max_tokens tokens of this rank; each row received takes
                               routing_row_bytes more. On a GPU it includes those, and is device memory */
    uint64_t routing_row_bytes;
    uint64_t image_bytes, ring_bytes, inbox_bytes; /* as in epw_plan, for peers behind queues */
} epw_prefill_sizes;

#define EPW_PREFILL_SIZES_INIT                                                                               \
    { .size = sizeof(epw_prefill_sizes) }
EPW_API void epw_prefill_sizes_init(epw_prefill_sizes *sizes);

/* Checks `config` and computes its sizes. config [in], sizes [in: size, out]. */
EPW_API epw_status epw_prefill_plan(const epw_prefill_config *config, epw_prefill_sizes *sizes);

/* As the functions of these names for a buffer. epw_prefill_set_active: EPW_ERR_STATE while an operation is
 * under way or (also on a GPU) a half of one is still to come. Free all routings before epw_prefill_destroy.
 */
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
EPW_API const char *epw_prefill_trouble(const epw_prefill *prefill, uint32_t peer, char *text);
EPW_API epw_status epw_prefill_set_active(epw_prefill *prefill, const epw_mask *active, uint32_t epoch,
                                          uint64_t step);
EPW_API epw_status epw_prefill_revoke(epw_prefill *prefill, const epw_mask *peers);
EPW_API epw_status epw_prefill_membership(const epw_prefill *prefill, epw_membership *membership);
EPW_API epw_status epw_prefill_suspects(epw_prefill *prefill, int32_t *suspects, void *stream);
EPW_API epw_status epw_prefill_newest_epoch(epw_prefill *prefill, uint32_t *epoch);
EPW_API epw_status epw_prefill_diverged(epw_prefill *prefill, uint32_t epoch, uint64_t step, epw_mask *ranks);

/* Whether an operation that has ended since the last such call was incomplete, as epw_comm_take_fault. */
EPW_API epw_status epw_prefill_take_fault(epw_prefill *prefill, uint32_t *faulted);

/* CUDA: moves error records, as epw_take_errors does, also those of replays, which have no outcome. Each
 * kernel writes one for the first peer that it loses (not for peers that were suspects before), one with
 * cause EPW_CAUSE_ROUTING for each bad id, at most 64 for one operation, and one with EPW_CAUSE_OVERFLOW if
 * rows had no place. Of a kernel whose blocks did not all get SMs in time, `peer` is this rank, all active
 * ranks are missing, and the outputs are as they were. A complete operation writes none. On the host there
 * are none. */
EPW_API epw_status epw_prefill_take_errors(epw_prefill *prefill, epw_error_record *records,
                                           size_t record_size, uint32_t capacity, uint32_t *count,
                                           uint64_t *lost);

/* As epw_buffer_traffic, but with wait_ns on GPUs too. Of a split operation all of it counts when its second
 * half ends; on a GPU what each half has moved counts when that half ends. An answer counts as a whole row,
 * of the width that combine was given. */
EPW_API epw_status epw_prefill_traffic(const epw_prefill *prefill, epw_traffic *traffic,
                                       epw_peer_traffic *peers);

/* Creates an empty routing. It allocates memory when a dispatch needs it, and keeps it for later ones. */
EPW_API epw_status epw_routing_create(epw_prefill *prefill, epw_routing **out);

/* Frees it. An operation of it that is under way, or of which a half is still to come, is given up: peers
 * find this rank missing from it (EPW_CAUSE_PARTIAL) if rows or answers are still to be sent, now or when
 * this rank's next call on the lane gets there; what a sending half has sent arrives completely. Waits for
 * nobody, and touches no memory of the operation afterwards. NULL is allowed. On a GPU work that has been
 * enqueued still runs, and graphs may be replayed: the routing's own memory is kept until that work has run,
 * or until epw_prefill_destroy if any call was captured. A program that captures repeatedly should therefore
 * use one routing for all captures. In a forked child this frees the child's memory, as epw_prefill_destroy
 * does then, and the parent's operation goes on. */
EPW_API void epw_routing_free(epw_routing *routing);

/* Where received rows go. E = local experts, C = capacity, K = scales per row. Rows of an expert or source
 * are ordered by source rank, then by token. Any pointer may be NULL if that output is not wanted; those that
 * the layout does not fill must be NULL.
 *
 * A row's place in `rows` and in every array [C]:
 *   EPW_PACKED        offsets[e] + its number among the rows of expert e; offsets are multiples of alignment
 *   EPW_EXPERT_MAJOR  e * C + its number, arrays are [E, C]
 *   EPW_DENSE         source_offsets[s] + its number among the rows of source s
 *   EPW_RANK_MAJOR    s * max_tokens + its number, C is at least ranks * max_tokens
 * The first two hold a token once for each of its experts that this rank owns, the others once.
 *
 * Overflow: rows whose place, in expert-major order whose number, is C or more are left out, are counted in
 * `overflow`, and make the outcome degraded, with EPW_CAUSE_OVERFLOW unless a peer is missing as well.
 * Combine adds nothing for them. */
typedef struct epw_prefill_output {
    uint32_t size;
    uint32_t layout;       /* EPW_EXPERT_MAJOR, EPW_RANK_MAJOR, EPW_PACKED or EPW_DENSE; ranks may differ */
    uint32_t alignment;    /* packed: rows, at least 1; else 0 */
    uint32_t scale_order;  /* 0: scales column-major; 1: row-major */
    uint32_t zero_padding; /* packed: 1: zeroes the rows between the last of an expert and the first of the
                              next, and the places of lost sources; not their scales */
    uint32_t nonblocking;  /* for epw_prefill_receive: as in epw_dispatch_input */
    uint64_t capacity;     /* C, below 2^32 - 1; expert-major: below that divided by E */
    void *rows;            /* payloads; a multiple of 16 */
    void
        *scales; /* row-major [C, K], column-major [K, stride] with columns of C scales, each rounded up to 16
                    bytes; expert-major one of these for each expert. UE8M0: i32 with four exponents,
                    that of block b in byte b%4, ceil(K/4) in place of K, zero-padded */
    void *sideband;           /* [C, sideband_bytes] */
    uint32_t *counts;         /* [E]: places of each expert, those of lost sources included */
    uint32_t *offsets;        /* [E]: packed: first place of each expert; expert-major: e * C */
    uint32_t *overflow;       /* packed and expert-major [E]: rows of each expert that did not fit; dense and
                                 rank-major [ranks]: rows of each source, 0 in rank-major */
    uint32_t *source_counts;  /* [ranks]: rows received from each source; 0 for one that was lost */
    uint32_t *source_offsets; /* [ranks]: dense and rank-major: first place of each source */
    int32_t *row_expert;   /* packed and expert-major [C]: local expert; -1 in places without a row: padding,
                              places beyond the last row, lost sources */
    int32_t *row_source;   /* [C]: source rank, -1 as above */
    int32_t *row_token;    /* [C]: token index there, -1 as above */
    int32_t *row_position; /* packed and expert-major [C]: which of the token's top-k, -1 as above */
    float *row_weight;     /* packed and expert-major [C]: routing weight, 0 as above */
    int32_t *row_experts;  /* dense and rank-major [C, config.ep.topk]: local expert ids, -1 where the entry
                              lives elsewhere, and as above */
    float *row_weights; /* dense and rank-major [C, config.ep.topk]: routing weights, 0 where the id is -1 */
    uint64_t *ranges; /* packed and expert-major [E, ranks], packed as in DeepEP: the lower 32 bits count the
                         rows of the expert from each source (0 for one that was lost), the upper 32 bits are
                         the index of the first of them among the expert's rows */
    uint64_t *expert_totals;    /* [E]: adds the rows of each local expert */
    int32_t *expert_totals_i32; /* [E]: adds the same, modulo 2^32 */
    uint64_t *wait_ns;          /* [ranks]: adds the time spent waiting for each source */
    void *stream;               /* for GPUs */
} epw_prefill_output;

#define EPW_PREFILL_OUTPUT_INIT                                                                              \
    { .size = sizeof(epw_prefill_output), .layout = EPW_PACKED, .alignment = 1 }
EPW_API void epw_prefill_output_init(epw_prefill_output *output);

/* Where a dispatch gets its routing from. */
enum {
    EPW_ROUTE_NEW = 0,  /* counts go first; the routing is filled */
    EPW_ROUTE_AGAIN = 1 /* the routing is used again: input.topk_idx is not read, input.tokens must be the
                           same, nothing is counted, and rows take the same places as before, with the same
                           layout and capacity. Without topk_weights the weights stay as they were */
};

/* What a call without an output does; epw_prefill_receive is the receiving half. */
enum {
    EPW_HALF_SENDS = 0, /* sends the rows: at most split_tokens of the plan, else EPW_ERR_LIMIT */
    EPW_HALF_COUNTS = 1 /* sends only the counts and waits for everyone's: epw_prefill_received then says how
                           many rows will arrive. The receiving half sends and receives the rows */
};

/* Sends this rank's tokens and, if `output` is not NULL, receives those of the others. input->layout keeps
 * its initial value. With input->nonblocking, epw_prefill_poll continues the operation. outcome [out] may be
 * NULL; it is filled when the operation ends. A call that is refused has no effect.
 * Of a split operation, here and in combine, the inputs of the first half must stay valid and unchanged until
 * the receiving half has ended or the operation is given up: that half reads them too (on a GPU: until the
 * stream has run it). This differs from epw_dispatch, whose sending half on the host copies everything. */
EPW_API epw_status epw_prefill_dispatch(epw_prefill *prefill, epw_routing *routing,
                                        const epw_dispatch_input *input, uint32_t route, uint32_t half,
                                        const epw_prefill_output *output, epw_outcome *outcome);

/* How many rows arrive. Known after a dispatch of any kind; after a sending half on the host, EPW_PENDING
 * until all counts have arrived. Each call looks for them, and from the first one on a peer that is silent
 * for a whole deadline is given up, as in the receiving half; meanwhile epw_prefill_await waits for news.
 * *rows [out]: the capacity that holds all rows in this layout and alignment (expert-major: the rows of any
 * one expert). counts [out, E] and source_counts [out, ranks] may be NULL. */
EPW_API epw_status epw_prefill_received(epw_prefill *prefill, epw_routing *routing, uint32_t layout,
                                        uint32_t alignment, uint64_t *rows, uint32_t *counts,
                                        uint32_t *source_counts);

/* The receiving half of a dispatch. */
EPW_API epw_status epw_prefill_receive(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_output *output, epw_outcome *outcome);

/* What combine takes. `rows` are the places that dispatch filled. */
typedef struct epw_prefill_combine_input {
    uint32_t size;
    uint32_t mode;  /* EPW_COMBINE_RANK_REDUCED; packed and expert-major also EPW_COMBINE_ORDERED, if the
                       rings have a slot for each of a token's experts on a rank */
    uint32_t width; /* channels of a row, a multiple of 8, at most hidden; 0: hidden. The same on all ranks */
    uint32_t nonblocking;      /* as in epw_dispatch_input */
    const void *expert_out;    /* [rows, width] of combine_dtype, dense; dense and rank-major layouts: already
                                  reduced over this rank's experts with the weights. Not read, and may be
                                  NULL, if dispatch had a capacity of 0, and on the host if no row came */
    const float *row_weights;  /* rank-reduced, packed and expert-major: [rows], in place of the weights given
                                  at dispatch; NULL: those */
    const float *topk_weights; /* ordered: [n, topk] of this rank's own tokens, in place of the weights given
                                  at dispatch; NULL: those */
    const float *row_values;   /* packed and expert-major [rows], else [rows, config.ep.topk]: carried back to
                                  epw_prefill_combine_output.values. All ranks pass it, or none does: it is
                                  not NULL even without rows, if other ranks give it */
    const void *bias[2];  /* [n, width] of combine_dtype: added to this rank's own tokens last, bias[0] before
                             bias[1], before the sum is rounded; NULL: none */
    uint64_t deadline_ns; /* at least the buffer's; 0: the buffer's */
    void *stream;         /* for GPUs */
    uint32_t sms;         /* CUDA: the most SMs for the kernels of this operation; 0: see epw_prefill */
    uint32_t reserved;
} epw_prefill_combine_input;

#define EPW_PREFILL_COMBINE_INPUT_INIT                                                                       \
    { .size = sizeof(epw_prefill_combine_input), .mode = EPW_COMBINE_RANK_REDUCED }
EPW_API void epw_prefill_combine_input_init(epw_prefill_combine_input *input);

/* Where the combined tokens go. */
typedef struct epw_prefill_combine_output {
    uint32_t size;
    uint32_t nonblocking; /* for epw_prefill_collect: as in epw_dispatch_input */
    void *out; /* a multiple of 16: [n, width] of combine_dtype, dense. Tokens routed nowhere become zeros
                  plus the bias */
    uint16_t *contributions; /* [n, 2]: expert contributions arrived, expected */
    uint32_t *lacks;   /* [n, ceil(ranks/32)]: bit r%32 of word r/32 is set if the sum lacks the answer of
                          rank r */
    float *values;     /* [n, topk of the dispatch]: the row_values of each entry, 0 where none came */
    uint64_t *wait_ns; /* [ranks]: adds the time spent waiting for each peer */
    void *stream;      /* for GPUs */
} epw_prefill_combine_output;

#define EPW_PREFILL_COMBINE_OUTPUT_INIT                                                                      \
    { .size = sizeof(epw_prefill_combine_output) }
EPW_API void epw_prefill_combine_output_init(epw_prefill_combine_output *output);

/* Answers every received row of the routing's dispatch and, if `output` is not NULL, receives the answers to
 * this rank's own rows and sums them. With `output` NULL this is the sending half: at most split_tokens
 * (ordered: split_tokens_ordered) rows from each rank. CUDA: the host knows how many there are once an eager
 * dispatch has run, of a routing that no graph has; otherwise max_tokens must be within the limit. */
EPW_API epw_status epw_prefill_combine(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_combine_input *input,
                                       const epw_prefill_combine_output *output, epw_outcome *outcome);

/* The receiving half of a combine. */
EPW_API epw_status epw_prefill_collect(epw_prefill *prefill, epw_routing *routing,
                                       const epw_prefill_combine_output *output, epw_outcome *outcome);

/* Continues a non-blocking operation without waiting, as epw_poll. */
EPW_API epw_status epw_prefill_poll(epw_prefill *prefill, epw_routing *routing, epw_outcome *outcome);

/* Sleeps until epw_prefill_poll, or epw_prefill_received, may find something new on the lane, at most
 * timeout_ns. Touches no memory of the operation: any thread may call it while another polls. EPW_ERR_STATE:
 * no operation runs there. */
EPW_API epw_status epw_prefill_await(epw_prefill *prefill, uint32_t lane, uint64_t timeout_ns);

/* On a GPU: makes `stream` wait for the last call that was enqueued for the routing, under capture as
 * epw_stream_wait does. EPW_ERR_STATE also if there was no such call. Any thread, one at a time for each
 * routing. */
EPW_API epw_status epw_prefill_stream_wait(epw_prefill *prefill, const epw_routing *routing, void *stream);

/* Gives up an operation of the routing that is under way, or of which a half is still to come, as
 * epw_routing_free does, and keeps the routing: after a dispatch it is empty; after a combine, and after a
 * dispatch with EPW_ROUTE_AGAIN that had no topk_weights, it is as before, and may be combined or used again.
 * A call that waits for the operation in another thread ends with EPW_ERR_STATE. EPW_ERR_STATE in a forked
 * child.
 * What peers still need of it the lane's next call does first: a blocking one waits for that, a non-blocking
 * one is EPW_ERR_STATE until it is done, so call epw_prefill_await and repeat it. The same holds after
 * epw_routing_free. */
EPW_API epw_status epw_prefill_cancel(epw_prefill *prefill, epw_routing *routing);

/* The lane of the routing's last operation. */
EPW_API uint32_t epw_routing_lane(const epw_routing *routing);

/* Counts where tokens would go, without sending anything. Any thread. rank_tokens [out, ranks]: tokens that
 * go to each rank; expert_tokens [out, experts]: tokens that go to each expert; in_rank [out, tokens *
 * ranks]: 1 if the token goes to the rank, else 0. Each may be NULL. Ids are as in epw_dispatch_input. */
EPW_API epw_status epw_prefill_count(const epw_prefill_config *config, const void *topk_idx,
                                     uint32_t idx_type, uint32_t tokens, uint32_t topk, uint32_t *rank_tokens,
                                     uint32_t *expert_tokens, uint8_t *in_rank);

/* The same on the GPU of a prefill buffer: enqueues the count on `stream` and returns. All arrays are in the
 * GPU's memory, and any thread may call. rank_tokens, expert_tokens and in_rank as above. bad_ids [out, 1]:
 * how many ids were out of range or repeat one of their token: these are ignored, where epw_prefill_count
 * refuses them. Each output may be NULL; numbers are aligned as their type needs. It uses a few SMs, waits
 * for no peer, needs no membership and belongs to no lane: it comes behind what is on the stream, and is not
 * ordered with operations on other streams. It may be captured. tokens is at most the buffer's max_tokens.
 * EPW_ERR_STATE: the buffer is on the host. */
EPW_API epw_status epw_prefill_enqueue_count(epw_prefill *prefill, const void *topk_idx, uint32_t idx_type,
                                             uint32_t tokens, uint32_t topk, uint32_t *rank_tokens,
                                             uint32_t *expert_tokens, uint8_t *in_rank, uint32_t *bad_ids,
                                             void *stream);

#ifdef __cplusplus
}
#endif

#endif
