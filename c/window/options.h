/* What a window is created with, and what must be equal on both ends of a connection. */
#ifndef EPW_WINDOW_OPTIONS_H
#define EPW_WINDOW_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define EPW_TERMS_MAX 32

/* One field of the user's configuration that must be equal on both ends. Its name, which errors show, is a
 * string literal. */
typedef struct epw_term {
    const char *name;
    uint64_t value;
} epw_term;

typedef struct epw_window_options {
    uint32_t rank, ranks; /* rank < ranks <= EPW_MAX_RANKS */
    int32_t device;       /* EPW_DEVICE_HOST, or the CUDA ordinal of the GPU that holds the window */
    uint32_t paths;       /* permitted EPW_PATH_* bits */
    bool queues;          /* this rank has a fabric, through which peers behind queues are reached */
    uint64_t bytes;       /* minimum size; rounded up to whole pages */
    const epw_term *terms;
    uint32_t term_count; /* at most EPW_TERMS_MAX */
} epw_window_options;

#endif
