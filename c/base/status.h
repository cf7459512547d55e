/* The last-error text of status codes: every failing function of the core ends in one of these two calls. */
#ifndef EPW_BASE_STATUS_H
#define EPW_BASE_STATUS_H

#include "epwire.h"

/* Where an error happened. rank and peer are -1 if they have no meaning. */
typedef struct epw_where {
    const char *op; /* the public operation, for example "dispatch" */
    int rank;
    int peer;
} epw_where;

/* Sets the calling thread's last-error text to "op: rank R: peer P: <text>" and returns `code`. The text says
 * what was found, which limit it breaks, and what to do. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
epw_status
epw_fail(epw_status code, epw_where where, const char *fmt, ...);

/* The same for a failed system call: appends ": <strerror(err)> (errno N)". Returns EPW_ERR_SYSTEM. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
epw_status
epw_fail_errno(int err, epw_where where, const char *fmt, ...);

#endif
