/* Ranks as threads of one process or as processes, and what they say to each other outside the buffers: a
 * socket from each to each. Rank r has GPU r % gpus. Where there are more ranks than GPUs, kernels wait for
 * those of other ranks of the same GPU. Threads of one process must then all have room on it at once: see
 * ranks_sms. Processes take turns on it, unless MPS is there: a kernel that waits spends the rest of its time
 * slice, some milliseconds, before the one that it waits for goes on. */
#ifndef EPW_TESTS_RANKS_H
#define EPW_TESTS_RANKS_H

#include "epwire.h"

#include <sys/types.h>

enum { RANKS_LIMIT = 8 };

typedef struct rank_links {
    uint32_t rank, ranks, gpus;
    int to[RANKS_LIMIT]; /* socket to each peer; -1: itself */
} rank_links;

/* What a rank does; returns the exit code. */
typedef int rank_body(const rank_links *links);

/* The GPU of a rank, by its ordinal. */
int32_t ranks_gpu(const rank_links *links);

/* What config.sms must be, so that the kernels of all lanes of `buffers` buffers of each rank of the GPU have
 * an SM for each of their blocks. `most`: no more than so many; 0: no such bound. */
uint32_t ranks_sms(const rank_links *links, uint32_t buffers, uint32_t most);

/* Main begins with gpus_main if the only argument is --count-gpus: GPUs are counted in a process of its own,
 * since who starts processes must not have used CUDA. Returns their number, 0 with the reason printed. */
int gpus_main(void);

/* An option of a program. With `preset` it takes no value: *number becomes that. Else the value goes to
 * *number or, as it is, to *text. Options of one name all hold. */
typedef struct ranks_option {
    const char *name;
    uint32_t *number, preset;
    const char **text;
} ranks_option;

/* Then main reads its options, up to one without a name. Returns 0; or 2, after `usage`, if one is unknown.
 */
int ranks_options(int argc, char **argv, const ranks_option *options, const char *usage);

/* Then main sets its limit: `name` hangs if it has not ended after so many seconds. */
void ranks_limit(const char *name, uint32_t seconds);

/* Then, in a process that was started to be a rank, runs body. In the program that was started by hand counts
 * the GPUs and completes *ranks (0: one to a GPU, RANKS_LIMIT at most), of which at least `least` are needed.
 * Returns the exit code, or -1 if main is to go on and start the ranks. */
int ranks_begin(rank_body *body, uint32_t least, uint32_t *ranks, uint32_t *gpus, char **argv);

/* Runs body once per rank, as threads or as processes that begin with argv, until all have ended. Returns the
 * exit code. */
int ranks_run(rank_body *body, uint32_t ranks, uint32_t gpus, uint32_t processes, char **argv);

/* Both as the end of main. Returns the exit code. */
int ranks_main(rank_body *body, uint32_t ranks, uint32_t processes, char **argv);

/* Starts this program again as the process of a rank, whose ranks_begin finds `links`. It dies with its
 * parent. */
pid_t ranks_start(const rank_links *links, char **argv);

/* EPW_TEST_PATH=queue: gives the config, with its rank, a fabric, and no path but by queues, so that no GPU
 * maps another one's window. EPW_TEST_PATH=mixed: as if the group were on two hosts, its first half on one.
 * The ranks of each half permit a way to map each other that those of the other half exclude, and queues.
 * ranks_by_queue asks for the former. */
void ranks_path(epw_config *config);
int ranks_by_queue(void);

/* Of a connected buffer with such a config: ends the program unless its peers are reached so. */
void ranks_require_paths(const rank_links *links, const epw_buffer *buffer);

/* Gives the config, with its rank, a fabric, which is to be destroyed after the buffer, or left to the end of
 * the process. So does ranks_path. */
void ranks_fabric(epw_config *config);

/* Around what a thread enqueues first, where ranks share a GPU: threads then do so one after another. Of
 * kernels that they enqueue at the same moment for the first time, the driver (580) now and then holds one
 * back until kernels of other streams have ended, though there is room for it; those wait for it until their
 * deadline. So it went in a third of the runs of eight ranks on one GPU, with 8 hardware queues or 32, and
 * when each thread had used the kernels and its streams before; never once all had enqueued one step. */
void ranks_begin_alone(const rank_links *links);
void ranks_end_alone(const rank_links *links);

/* One message. Who says nothing for two minutes is gone, and then so is this program. */
void ranks_say(int fd, const void *bytes, size_t length);
size_t ranks_hear(int fd, void *bytes, size_t capacity);

/* Waits for all ranks. */
void ranks_meet(const rank_links *links);

/* The sum of what all ranks give. Waits for them. */
uint64_t ranks_sum(const rank_links *links, uint64_t value);

/* Connects the buffer to all peers, through blobs that travel over the links, and begins epoch 1. */
void ranks_connect(const rank_links *links, epw_buffer *buffer);

#endif
