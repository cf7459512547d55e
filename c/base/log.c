/* See log.h. */
#include "base/log.h"

#include "base/bits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static const char *const subsystems[EPW_LOG_SUBSYSTEMS] = {"plan", "path", "member", "wait", "nic"};
static const char *const levels[] = {"off", "warn", "info", "trace"};

_Atomic uint8_t epw_log_levels[EPW_LOG_SUBSYSTEMS];

/* Serialises writers: settings change one at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_open;

/* Lines. The descriptor is written before any level above off is set, and is never closed. */
static atomic_int lines_fd = STDERR_FILENO;
static _Atomic uint8_t line_levels[EPW_LOG_SUBSYSTEMS];

/* Records. */
static _Atomic(epw_log_fn) record_fn;
static void *_Atomic record_context;
static _Atomic uint8_t record_levels[EPW_LOG_SUBSYSTEMS];

/* ---- settings ---- */

void epw_log_lock(void) {
    pthread_mutex_lock(&lock);
}

void epw_log_unlock(void) {
    pthread_mutex_unlock(&lock);
}

/* The level that `text` of `length` bytes names; -1 if none. */
static int level_of(const char *text, size_t length) {
    for (int i = 0; i < (int)(sizeof levels / sizeof levels[0]); i++)
        if (strlen(levels[i]) == length && memcmp(levels[i], text, length) == 0) return i;
    return -1;
}

/* Parses "info" or "warn,path=trace" into `out`; false if it is neither. */
static bool parse(const char *text, uint8_t out[EPW_LOG_SUBSYSTEMS]) {
    memset(out, 0, EPW_LOG_SUBSYSTEMS);
    while (true) {
        size_t length = strcspn(text, ","), name = strcspn(text, "=,");
        bool names = name < length, found = false;
        int level = names ? level_of(text + name + 1, length - name - 1) : level_of(text, length);
        if (level < 0) return false;
        for (int s = 0; s < EPW_LOG_SUBSYSTEMS; s++) {
            if (names && (strlen(subsystems[s]) != name || memcmp(subsystems[s], text, name) != 0)) continue;
            out[s] = (uint8_t)level;
            found = true;
        }
        if (!found) return false;
        if (text[length] == '\0') return true;
        text += length + 1;
    }
}

static epw_status wrong(const char *what, const char *text, epw_where where) {
    return epw_fail(
        EPW_ERR_INVALID, where,
        "%s is \"%.64s\": give off, warn, info or trace, or a level for each of plan, path, member, "
        "wait and nic, as in warn,path=trace",
        what, text);
}

/* Called with the lock held. */
static void set_levels(_Atomic uint8_t own[EPW_LOG_SUBSYSTEMS], const uint8_t to[EPW_LOG_SUBSYSTEMS]) {
    for (int s = 0; s < EPW_LOG_SUBSYSTEMS; s++) {
        atomic_store_explicit(&own[s], to[s], memory_order_relaxed);
        uint8_t a = atomic_load_explicit(&line_levels[s], memory_order_relaxed);
        uint8_t b = atomic_load_explicit(&record_levels[s], memory_order_relaxed);
        atomic_store_explicit(&epw_log_levels[s], a > b ? a : b, memory_order_relaxed);
    }
}

/* Called with the lock held. Opens the file for appending; %p in its name stands for the process id. */
static epw_status open_file(const char *name, epw_where where) {
    char path[1024];
    const char *process = strstr(name, "%p");
    int length = process == NULL ? snprintf(path, sizeof path, "%s", name)
                                 : snprintf(path, sizeof path, "%.*s%d%s", (int)(process - name), name,
                                            (int)getpid(), process + 2);
    if (length < 0 || (size_t)length >= sizeof path)
        return epw_fail(EPW_ERR_LIMIT, where, "EPWIRE_LOG_FILE has more than %zu bytes", sizeof path - 1);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return epw_fail_errno(errno, where, "EPWIRE_LOG_FILE: cannot open %.256s", path);
    atomic_store_explicit(&lines_fd, fd, memory_order_relaxed);
    return EPW_OK;
}

/* Called with the lock held. An empty variable counts as unset. */
static epw_status read_variables(epw_where where) {
    const char *text = getenv("EPWIRE_LOG"), *file = getenv("EPWIRE_LOG_FILE");
    uint8_t asked[EPW_LOG_SUBSYSTEMS];
    if (text == NULL || *text == '\0') return EPW_OK;
    if (!parse(text, asked)) return wrong("EPWIRE_LOG", text, where);
    epw_status status = file != NULL && *file != '\0' ? open_file(file, where) : EPW_OK;
    if (status == EPW_OK) set_levels(line_levels, asked);
    return status;
}

epw_status epw_log_open(epw_where where) {
    pthread_mutex_lock(&lock);
    epw_status status = is_open ? EPW_OK : read_variables(where);
    is_open = status == EPW_OK;
    pthread_mutex_unlock(&lock);
    return status;
}

epw_status epw_log_set(const char *text, epw_log_fn fn, void *context) {
    uint8_t asked[EPW_LOG_SUBSYSTEMS] = {0};
    if (fn != NULL && (text == NULL || !parse(text, asked)))
        return wrong("levels", text == NULL ? "NULL" : text, (epw_where){"log_set", -1, -1});
    pthread_mutex_lock(&lock);
    /* Writer: this thread. Reader: epw_log on any thread, which loads the function, an acquire, before the
     * context. */
    atomic_store_explicit(&record_fn, NULL, memory_order_seq_cst);
    atomic_store_explicit(&record_context, context, memory_order_relaxed);
    atomic_store_explicit(&record_fn, fn, memory_order_release);
    set_levels(record_levels, asked);
    pthread_mutex_unlock(&lock);
    return EPW_OK;
}

/* ---- speaking ---- */

static uint64_t wall_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Makes the text safe for a terminal: one line without control characters, whatever peers have sent. Those of
 * C1 have two bytes, c2 80 to c2 9f. */
static void make_printable(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        bool c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (at[0] < ' ' || at[0] == 0x7f || c1) at[0] = ' ';
        if (c1) at[1] = ' ';
    }
}

static void write_line(const epw_log_record *record) {
    char line[LINE_MAX_BYTES + 128], whose[48] = "";
    time_t seconds = (time_t)(record->time_ns / 1000000000u);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    if (record->peer >= 0) {
        snprintf(whose, sizeof whose, "rank %d: peer %d: ", record->rank, record->peer);
    } else if (record->rank >= 0) {
        snprintf(whose, sizeof whose, "rank %d: ", record->rank);
    }
    int length = snprintf(line, sizeof line - 1, "%02d:%02d:%02d.%06dZ epwire %s %s: %s%s", utc.tm_hour,
                          utc.tm_min, utc.tm_sec, (int)(record->time_ns % 1000000000u / 1000u),
                          levels[record->level], record->subsystem, whose, record->text);
    size_t used = (size_t)length < sizeof line - 1 ? (size_t)length : sizeof line - 2;
    make_printable(line);
    line[used] = '\n';
    /* One call, so that lines of several processes do not mix. What cannot be written is lost. */
    ssize_t written = write(atomic_load_explicit(&lines_fd, memory_order_relaxed), line, used + 1);
    (void)written;
}

static bool on(const _Atomic uint8_t of[EPW_LOG_SUBSYSTEMS], uint32_t subsystem, uint32_t level) {
    return atomic_load_explicit(&of[subsystem], memory_order_relaxed) >= level;
}

void epw_log(epw_log_subsystem subsystem, uint32_t level, epw_where where, const char *fmt, ...) {
    if (!epw_log_on(subsystem, level)) return;
    int saved = errno;
    char text[LINE_MAX_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    epw_log_record record = {.size = sizeof record,
                             .level = level,
                             .rank = where.rank,
                             .peer = where.peer,
                             .subsystem = subsystems[subsystem],
                             .text = text,
                             .time_ns = wall_clock()};
    if (on(line_levels, subsystem, level)) write_line(&record);
    epw_log_fn fn = atomic_load_explicit(&record_fn, memory_order_acquire);
    if (fn != NULL && on(record_levels, subsystem, level)) {
        make_printable(text);
        fn(atomic_load_explicit(&record_context, memory_order_relaxed), &record);
    }
    errno = saved;
}

const char *epw_log_size(uint64_t bytes, char text[EPW_LOG_SIZE]) {
    if (bytes < UINT64_C(1) << 20) {
        snprintf(text, EPW_LOG_SIZE, "%llu KiB", (unsigned long long)((bytes + 1023) / 1024));
    } else {
        snprintf(text, EPW_LOG_SIZE, "%.1f MiB", (double)bytes / (1 << 20));
    }
    return text;
}

bool epw_log_listens(uint32_t subsystem, uint32_t level) {
    epw_log_open((epw_where){"log", -1, -1}); /* the creation of the next buffer reports what is wrong with
                                               * it */
    return subsystem < EPW_LOG_SUBSYSTEMS && on(line_levels, subsystem, level);
}

void epw_log_line(uint32_t subsystem, uint32_t level, uint32_t rank, const char *text) {
    if (level > EPW_LOG_TRACE || !epw_log_listens(subsystem, level)) return;
    epw_log_record record = {.size = sizeof record,
                             .level = level,
                             .rank = (int32_t)rank,
                             .peer = -1,
                             .subsystem = subsystems[subsystem],
                             .text = text,
                             .time_ns = wall_clock()};
    write_line(&record);
}
