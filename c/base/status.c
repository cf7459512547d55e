/* See status.h. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The whole text, and the offset of the part after "op: rank R: peer P: ". */
static _Thread_local char last_error[768];
static _Thread_local size_t text_at;
static _Thread_local epw_where last_where = {"", -1, -1};

static size_t write_where(epw_where where) {
    size_t used = (size_t)snprintf(last_error, sizeof last_error, "%.64s", where.op);
    if (where.rank >= 0)
        used += (size_t)snprintf(last_error + used, sizeof last_error - used, ": rank %d", where.rank);
    if (where.peer >= 0)
        used += (size_t)snprintf(last_error + used, sizeof last_error - used, ": peer %d", where.peer);
    used += (size_t)snprintf(last_error + used, sizeof last_error - used, ": ");
    last_where = where;
    text_at = used;
    return used;
}

epw_status epw_fail(epw_status code, epw_where where, const char *fmt, ...) {
    size_t used = write_where(where);
    va_list args;
    va_start(args, fmt);
    vsnprintf(last_error + used, sizeof last_error - used, fmt, args);
    va_end(args);
    return code;
}

epw_status epw_fail_errno(int err, epw_where where, const char *fmt, ...) {
    size_t used = write_where(where);
    va_list args;
    va_start(args, fmt);
    vsnprintf(last_error + used, sizeof last_error - used, fmt, args);
    va_end(args);
    used = strlen(last_error);
    /* strerror is thread-safe for known codes in glibc and musl. */
    const char *remedy = err == EMFILE ? "; raise ulimit -n" : "";
    snprintf(last_error + used, sizeof last_error - used, ": %s (errno %d)%s", strerror(err), err, remedy);
    return EPW_ERR_SYSTEM;
}

const char *epw_last_error(void) {
    return last_error;
}

void epw_last_error_detail(epw_error_detail *detail) {
    if (detail == NULL) return;
    uint32_t size = detail->size < sizeof *detail ? detail->size : sizeof *detail;
    epw_error_detail all = {.size = detail->size,
                            .rank = last_where.rank,
                            .peer = last_where.peer,
                            .op = last_where.op,
                            .text = last_error + text_at};
    memcpy(detail, &all, size);
}

const char *epw_status_name(epw_status status) {
    switch (status) {
    case EPW_OK:
        return "EPW_OK";
    case EPW_PENDING:
        return "EPW_PENDING";
    case EPW_ERR_INVALID:
        return "EPW_ERR_INVALID";
    case EPW_ERR_LIMIT:
        return "EPW_ERR_LIMIT";
    case EPW_ERR_STATE:
        return "EPW_ERR_STATE";
    case EPW_ERR_NO_MEMORY:
        return "EPW_ERR_NO_MEMORY";
    case EPW_ERR_SYSTEM:
        return "EPW_ERR_SYSTEM";
    case EPW_ERR_NO_PATH:
        return "EPW_ERR_NO_PATH";
    case EPW_ERR_MISMATCH:
        return "EPW_ERR_MISMATCH";
    case EPW_ERR_FENCED:
        return "EPW_ERR_FENCED";
    case EPW_ERR_TIMEOUT:
        return "EPW_ERR_TIMEOUT";
    case EPW_ERR_PEER:
        return "EPW_ERR_PEER";
    default:
        return "unknown status";
    }
}

#define TEXT(x)   #x
#define NUMBER(x) TEXT(x)

const char *epw_version(void) {
    return NUMBER(EPW_VERSION_MAJOR) "." NUMBER(EPW_VERSION_MINOR) "." NUMBER(EPW_VERSION_PATCH);
}
