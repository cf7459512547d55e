/* The core's log: lines on stderr or in a file, as EPWIRE_LOG selects, and records for the program, as
 * epw_log_set selects (epwire.h, section 1). It logs where paths are chosen, memberships begin and peers are
 * given up, never for each operation: when it is off, a log call costs one load, and waits contain none. A
 * line is formatted on the stack and written by one call: no lock, no allocation. */
#ifndef EPW_BASE_LOG_H
#define EPW_BASE_LOG_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The subsystems, in the order of the names in log.c. */
typedef enum epw_log_subsystem {
    EPW_LOG_PLAN,   /* sizes of what is created */
    EPW_LOG_PATH,   /* how peers are reached, and why not */
    EPW_LOG_MEMBER, /* memberships and what the group agrees on */
    EPW_LOG_WAIT,   /* peers that are given up, and why */
    EPW_LOG_NIC,    /* adapters and connections of queues */
    EPW_LOG_SUBSYSTEMS
} epw_log_subsystem;

/* The level of each subsystem to which a line or record receiver listens. Writer: epw_log_open and
 * epw_log_set, under a lock. Reader: any thread, relaxed: a thread that sees a change late logs one line less
 * or more. */
extern _Atomic uint8_t epw_log_levels[EPW_LOG_SUBSYSTEMS];

static inline bool epw_log_on(epw_log_subsystem subsystem, uint32_t level) {
    return atomic_load_explicit(&epw_log_levels[subsystem], memory_order_relaxed) >= level;
}

/* Logs to all receivers of this level. `where`: rank and peer, -1 if there is none; its op is not logged.
 * Preserves errno and the last error. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
void
epw_log(epw_log_subsystem subsystem, uint32_t level, epw_where where, const char *fmt, ...);

/* A size for a line of the log, such as "57 KiB" or "56.3 MiB"; returns `text`. */
enum { EPW_LOG_SIZE = 32 };
const char *epw_log_size(uint64_t bytes, char text[EPW_LOG_SIZE]);

/* Reads EPWIRE_LOG and EPWIRE_LOG_FILE, on the first call. EPW_ERR_INVALID: a variable has an invalid value;
 * EPW_ERR_SYSTEM: the file cannot be opened. */
epw_status epw_log_open(epw_where where);

/* Takes the lock of the settings, so that a child is not made while another thread changes them. */
void epw_log_lock(void);
void epw_log_unlock(void);

/* For the crate: its group and launcher write lines to the same log. The callback does not get them, because
 * the crate reports the same as events. UINT32_MAX: the line has no rank. The first opens the log, and
 * returns whether EPWIRE_LOG selects such lines: */
bool epw_log_listens(uint32_t subsystem, uint32_t level);
void epw_log_line(uint32_t subsystem, uint32_t level, uint32_t rank, const char *text);

#endif
