/* Commands of an mlx5 adapter as bytes: what its firmware is asked through DevX, and its answers. Pure
 * functions. Positions of fields follow the adapter's programming manual; all numbers are big-endian.
 *
 *     CREATE_CQ, CREATE_QP          make an object, in memory that has been registered for it
 *     RST2INIT, INIT2RTR, RTR2RTS   connect a queue pair: port, then rights and the peer, then retries
 *     RTS2RTS                       changes a right of a queue pair that works
 *     2ERR, 2RST                    stop a queue pair; the kernel destroys objects by its own commands
 *     QUERY_QP, QUERY_HCA_CAP       the state of a queue pair; the capabilities of the adapter */
#ifndef EPW_NIC_MLX5_COMMANDS_H
#define EPW_NIC_MLX5_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EPW_MLX5_IN_BYTES = 272, /* of commands that have a context */
    EPW_MLX5_SHORT_BYTES = 16,
    EPW_MLX5_OUT_BYTES = 16,
    EPW_MLX5_QUERY_QP_BYTES = 272,
    EPW_MLX5_QUERY_CAP_BYTES = 16 + 4096
};

enum {
    EPW_MLX5_QUERY_HCA_CAP = 0x100,
    EPW_MLX5_CREATE_CQ = 0x400,
    EPW_MLX5_CREATE_QP = 0x500,
    EPW_MLX5_RST2INIT = 0x502,
    EPW_MLX5_INIT2RTR = 0x503,
    EPW_MLX5_RTR2RTS = 0x504,
    EPW_MLX5_RTS2RTS = 0x505,
    EPW_MLX5_2ERR = 0x507,
    EPW_MLX5_2RST = 0x50a,
    EPW_MLX5_QUERY_QP = 0x50b
};

/* Queue pairs are made for entries of up to 2^30 bytes. */
enum { EPW_MLX5_LOG_MESSAGE = 30 };

/* Kinds of capabilities. */
enum {
    EPW_MLX5_CAP_GENERAL = 0,
    EPW_MLX5_CAP_ATOMIC = 3,
    EPW_MLX5_CAP_ROCE = 4,
    EPW_MLX5_CAP_GENERAL_2 = 0x20
};

enum {
    EPW_MLX5_STATE_RST,
    EPW_MLX5_STATE_INIT,
    EPW_MLX5_STATE_RTR,
    EPW_MLX5_STATE_RTS,
    EPW_MLX5_STATE_ERR = 6
};

/* A completion queue with one entry, which each completion overwrites, for any number of entries of the send
 * queue. */
typedef struct epw_mlx5_cq {
    uint32_t umem, record_umem; /* the first begins with the entry */
    uint32_t
        record; /* where the doorbell record lies in the second, a multiple of 8; it has no other owner */
    uint32_t uar, eq;
    uint32_t log_entries; /* the size that the adapter is told */
} epw_mlx5_cq;

/* A reliable queue pair without a receive queue. */
typedef struct epw_mlx5_qp {
    uint32_t umem, record_umem; /* each begins with the ring, or with the doorbell record */
    uint32_t uar, pd, cq;
    uint32_t log_entries; /* entries of 64 bytes */
    bool default_time;    /* timestamps as the adapter is set to take them, not of a free-running clock */
} epw_mlx5_qp;

/* The peer of a queue pair, and the path to it. */
typedef struct epw_mlx5_path {
    bool ethernet;             /* RoCEv2; else InfiniBand, within one subnet */
    uint32_t port;             /* this rank's */
    uint32_t remote;           /* number of the peer's queue pair */
    uint32_t mtu;              /* 1 for 256 bytes ... 5 for 4096 */
    uint32_t lid;              /* InfiniBand: the peer's */
    unsigned char gid[16];     /* Ethernet: the peer's */
    unsigned char mac[6];      /* Ethernet: of the first hop to the peer */
    uint32_t gid_index;        /* this rank's */
    uint32_t udp_port;         /* source port, at least 0xc000: switches spread flows by it */
    uint32_t hop_limit;        /* Ethernet */
    uint32_t traffic_class;    /* Ethernet: its upper 6 bits are the DSCP */
    uint32_t service_level;    /* Ethernet: the priority */
    bool atomics;              /* the peer may use atomics */
    bool in_order;             /* writes are placed as they were posted, whatever the administrator has set */
    uint32_t log_reads;        /* READs and atomics in flight, in each direction */
    uint32_t timeout, retries; /* 4.096 us * 2^timeout, `retries` times */
} epw_mlx5_path;

typedef unsigned char epw_mlx5_in[EPW_MLX5_IN_BYTES];

/* Each function writes all bytes of the command. */
void epw_mlx5_build_create_cq(epw_mlx5_in in, const epw_mlx5_cq *cq);
void epw_mlx5_build_create_qp(epw_mlx5_in in, const epw_mlx5_qp *qp);
void epw_mlx5_build_rst2init(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path);
void epw_mlx5_build_init2rtr(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path);
void epw_mlx5_build_rtr2rts(epw_mlx5_in in, uint32_t qpn, const epw_mlx5_path *path);

/* The adapter places nothing more that the peer sends; the queue pair can still send. */
void epw_mlx5_build_refuse(epw_mlx5_in in, uint32_t qpn);

/* 2ERR, 2RST, QUERY_QP: an opcode and the number of a queue pair. */
void epw_mlx5_build_short(unsigned char in[EPW_MLX5_SHORT_BYTES], uint32_t opcode, uint32_t number);

/* Asks for the current values. */
void epw_mlx5_build_query_cap(unsigned char in[EPW_MLX5_SHORT_BYTES], uint32_t kind);

/* ---- answers ---- */

uint32_t epw_mlx5_status(const unsigned char *out);
uint32_t epw_mlx5_syndrome(const unsigned char *out);
uint32_t epw_mlx5_number(const unsigned char *out); /* of the object that was created */
uint32_t epw_mlx5_state(const unsigned char out[EPW_MLX5_QUERY_QP_BYTES]);

typedef struct epw_mlx5_caps {
    uint32_t cqe_version;
    uint32_t log_qp_entries, log_message;
    bool atomic, cq_overrun_ignored;
    bool roce, general_2; /* whether it has capabilities of these kinds */
    bool chooses_time; /* its timestamps have formats; without that it takes no queue pair that names one, and
                          with it perhaps none that does not */
    bool reorders;     /* writes of a reliable queue pair may be placed in another order, if that is set */
    bool keeps_order;  /* but not if the queue pair says so */
} epw_mlx5_caps;

/* Reads the answer for EPW_MLX5_CAP_GENERAL. The others add what the answers for EPW_MLX5_CAP_ROCE and
 * EPW_MLX5_CAP_GENERAL_2 say. */
epw_mlx5_caps epw_mlx5_read_caps(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES]);
void epw_mlx5_read_roce_caps(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES], epw_mlx5_caps *caps);
void epw_mlx5_read_caps_2(const unsigned char out[EPW_MLX5_QUERY_CAP_BYTES], epw_mlx5_caps *caps);

/* "BAD_PARAM" and so on, for messages. */
const char *epw_mlx5_status_name(uint32_t status);

/* "CREATE_QP" and so on. */
const char *epw_mlx5_command_name(uint32_t opcode);

/* The first packet number of the queue pair of this number. Its peer computes it too. A packet does not say
 * who has sent it: of those for a number that has been given out again, only this tells the late ones apart
 * that another sender has left on the way. */
uint32_t epw_mlx5_first_psn(uint32_t number);

/* The UDP source port of a queue pair. It differs between pairs of numbers, so that a fabric spreads them. */
uint32_t epw_mlx5_udp_port(uint32_t own, uint32_t remote);

/* Chooses timeout and retries with which a send queue gives up a silent peer within 2 to 4 times
 * `deadline_ns`, up to 9 hours. Timeouts are powers of 2; an adapter may have a least one of its own, and may
 * take up to 4 times the timeout for each try. */
void epw_mlx5_choose_retries(uint64_t deadline_ns, epw_mlx5_path *path);

#endif
