/* Ranks as threads of one process or as processes, and their communication outside the buffers: a socket
 * between each pair. Rank r has GPU r % gpus. If there are more ranks than GPUs, kernels wait for those of
 * other ranks on the same GPU. The kernels of threads of one process must then be co-resident, see ranks_sms.
 * Processes take turns on the GPU, unless MPS is running: a kernel that waits uses up its time slice, some
 * milliseconds, before the one that it waits for continues. */
#ifndef EPW_TESTS_RANKS_H
#define EPW_TESTS_RANKS_H

#include "epwire.h"

#include <sys/types.h>

enum { RANKS_LIMIT = 24 };

typedef struct rank_links {
    uint32_t rank, ranks, gpus;
    int to[RANKS_LIMIT]; /* socket to each peer; -1: itself */
} rank_links;

/* The body of a rank; returns the exit code. */
typedef int rank_body(const rank_links *links);

/* The CUDA ordinal of a rank's GPU. */
int32_t ranks_gpu(const rank_links *links);

/* The value of config.sms with which the kernels of all lanes of `buffers` buffers of each rank of the GPU
 * have an SM for each of their blocks. `most`: upper bound; 0: none. */
uint32_t ranks_sms(const rank_links *links, uint32_t buffers, uint32_t most);

/* Main begins with gpus_main if the only argument is --count-gpus: GPUs are counted in a process of their
 * own, since a process that starts others must not have used CUDA. Returns their number; 0, with the reason
 * printed, if there is none. */
int gpus_main(void);

/* An option of a program. With `preset` it takes no value, and *number becomes `preset`. Otherwise its value
 * goes to *number or, as text, to *text. All entries of the same name apply. */
typedef struct ranks_option {
    const char *name;
    uint32_t *number, preset;
    const char **text;
} ranks_option;

/* Then main reads its options; the list ends with one without a name. Returns 0; or 2, after printing
 * `usage`, if an option is unknown. */
int ranks_options(int argc, char **argv, const ranks_option *options, const char *usage);

/* Then main sets its time limit: after this many seconds `name` is taken to hang. */
void ranks_limit(const char *name, uint32_t seconds);

/* Then, in a process that was started to be a rank, runs body. In the program that was started by hand,
 * counts the GPUs and completes *ranks (0: one per GPU, RANKS_LIMIT at most), of which at least `least` are
 * needed. Returns the exit code, or -1 if main shall continue and start the ranks. */
int ranks_begin(rank_body *body, uint32_t least, uint32_t *ranks, uint32_t *gpus, char **argv);

/* Runs body once per rank, as threads or as processes that begin with argv, until all have ended. Returns the
 * exit code. */
int ranks_run(rank_body *body, uint32_t ranks, uint32_t gpus, uint32_t processes, char **argv);

/* Both of these, as the end of main. Returns the exit code. */
int ranks_main(rank_body *body, uint32_t ranks, uint32_t processes, char **argv);

/* Starts this program again as the process of a rank, in which ranks_begin receives `links`. The process dies
 * with its parent. */
pid_t ranks_start(const rank_links *links, char **argv);

/* EPW_TEST_PATH=queue: gives the config, with its rank, a fabric, and permits no path except queues, so that
 * no GPU maps another one's window. EPW_TEST_PATH=mixed: as if the group were on two hosts, its first half on
 * one. The ranks of each half permit queues, and a way to map each other that those of the other half
 * exclude. With EPW_TEST_WIRE=tcp queues use TCP, though all ranks are on this host. ranks_by_queue tells
 * whether EPW_TEST_PATH is queue. */
void ranks_path(epw_config *config);
int ranks_by_queue(void);

/* For a connected buffer with such a config: ends the program unless its peers, or this one, are reached that
 * way. */
void ranks_require_paths(const rank_links *links, const epw_buffer *buffer);
void ranks_require_path(const rank_links *links, uint32_t peer, uint32_t path);
void ranks_require_prefill_paths(const rank_links *links, const epw_prefill *prefill);

/* Gives the config, with its rank, a fabric, which must be destroyed after the buffer or left to the end of
 * the process. ranks_path does so too. */
void ranks_fabric(epw_config *config);

/* Encloses what a thread enqueues first, if ranks share a GPU: threads then do so one after another. When
 * threads enqueue kernels at the same moment for the first time, the driver (580) now and then holds one
 * kernel back until kernels of other streams have ended, although there is room for it; those wait for it
 * until their deadline. This happened in a third of the runs of eight ranks on one GPU, with 8 hardware
 * queues or 32, even if each thread had used the kernels and its streams before; it never happened once all
 * had enqueued one step. */
void ranks_begin_alone(const rank_links *links);
void ranks_end_alone(const rank_links *links);

/* Sends or receives one message. A rank that is silent for two minutes counts as gone, and ends this program
 * too. */
void ranks_say(int fd, const void *bytes, size_t length);
size_t ranks_hear(int fd, void *bytes, size_t capacity);

/* Waits for all ranks. */
void ranks_meet(const rank_links *links);

/* The sum of the values of all ranks. Waits for them. */
uint64_t ranks_sum(const rank_links *links, uint64_t value);

/* Connects the buffer to all peers, through blobs that travel over the links, and begins epoch 1. */
void ranks_connect(const rank_links *links, epw_buffer *buffer);
void ranks_connect_prefill(const rank_links *links, epw_prefill *prefill);

/* Connects the communicator likewise, but begins no epoch. */
void ranks_connect_comm(const rank_links *links, epw_comm *comm);

#endif
