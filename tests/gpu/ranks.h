/* Ranks as threads of one process or as processes, one to a GPU, and what they say to each other outside the
 * buffers: a socket from each to each. */
#ifndef EPW_TESTS_RANKS_H
#define EPW_TESTS_RANKS_H

#include "epwire.h"

#include <sys/types.h>

enum { RANKS_LIMIT = 8 };

typedef struct rank_links {
    uint32_t rank, ranks, gpus;
    int to[RANKS_LIMIT]; /* socket to each peer; -1: itself */
} rank_links;

/* GPUs of this machine, asked for in a process of its own: who starts processes has not used CUDA. 0 with the
 * reason printed if there is none. Calls the program again with the single argument --count-gpus, which main
 * must give to gpus_main. */
int gpus_count(char **argv);
int gpus_main(void);

/* Runs body once per rank and returns 0 if all ended well. argv: this program's, given to the processes,
 * whose main must call ranks_join first: it runs body and returns its exit code, or -1 in the program that
 * was started by hand. */
typedef int rank_body(const rank_links *links);
int ranks_run(rank_body *body, uint32_t ranks, uint32_t gpus, int processes, char **argv);
int ranks_join(rank_body *body);

/* All of that, as the end of main: joins, or counts the GPUs and runs the ranks (0: one to a GPU, four at
 * most). Returns the exit code. */
int ranks_main(rank_body *body, uint32_t ranks, int processes, char **argv);

/* Starts this program again as the process of a rank, whose ranks_join finds `links`. It dies with its
 * parent. */
pid_t ranks_start(const rank_links *links, char **argv);

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
