/* A rank's window and its blob, for the tests of windows. */
#ifndef EPW_TESTS_IMPORTS_END_H
#define EPW_TESTS_IMPORTS_END_H

#include "../check.h"
#include "base/clock.h"
#include "window/blob.h"
#include "window/window.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000ull

enum { WINDOW_BYTES = 1 << 20, RANKS = 80 };

static const epw_where here = {"test", -1, -1};

enum { TERMS = 3 };

static const char *const term_names[TERMS] = {"tokens", "width", "patience"};

/* The options of a window as plain bytes, which can be sent to another process. */
typedef struct spec {
    uint32_t rank, ranks;
    int32_t device;
    uint32_t paths;
    uint64_t bytes;
    uint64_t terms[TERMS];
    bool queues;
} spec;

static inline spec spec_of(uint32_t rank) {
    return (spec){.rank = rank,
                  .ranks = RANKS,
                  .device = EPW_DEVICE_HOST,
                  .paths = EPW_PATH_ALL,
                  .bytes = WINDOW_BYTES,
                  .terms = {128, 7168, 10000000000u}};
}

static inline epw_status create_window(const spec *of, epw_window **out) {
    epw_term terms[TERMS];
    for (int i = 0; i < TERMS; i++) terms[i] = (epw_term){term_names[i], of->terms[i]};
    epw_window_options options = {.rank = of->rank,
                                  .ranks = of->ranks,
                                  .device = of->device,
                                  .paths = of->paths,
                                  .bytes = of->bytes,
                                  .queues = of->queues,
                                  .terms = terms,
                                  .term_count = TERMS};
    return epw_window_create(&options, out);
}

/* A rank's window and its latest blob. */
typedef struct end {
    epw_window *window;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
} end;

static inline end open_end(spec of) {
    end e = {0};
    CHECK_OK(create_window(&of, &e.window));
    return e;
}

static inline void export_to(end *e, uint32_t peer) {
    CHECK(epw_window_export(e->window, peer, NULL, e->blob, &e->length) == EPW_OK);
    CHECK(e->length <= EPW_BLOB_MAX);
}

static inline bool error_has(const char *text) {
    bool found = strstr(epw_last_error(), text) != NULL;
    if (!found) fprintf(stderr, "wanted \"%s\" in: %s\n", text, epw_last_error());
    return found;
}

static inline int entries_of(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static inline int open_fds(void) {
    return entries_of("/proc/self/fd");
}

/* The number of fd server threads. They are counted by name: sanitizers have threads of their own, and the
 * kernel lists a thread for a moment after it was joined. */
static inline int fd_servers(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *task; dir && (task = readdir(dir));) {
        char path[sizeof "/proc/self/task//comm" + sizeof task->d_name], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "r");
        if (comm && fgets(name, sizeof name, comm)) count += !strcmp(name, "epw-fd-server\n");
        if (comm) fclose(comm);
    }
    if (dir) closedir(dir);
    return count;
}

/* A thread sets its name after it has started, and is listed slightly longer than it runs. A list that is
 * read while a thread ends may lack another thread, so two lists in succession must agree. */
static inline bool fd_servers_become(int count) {
    uint64_t begin = epw_now_ns();
    for (int agree = 0; epw_now_ns() - begin < 5000 * MS; usleep(1000)) {
        agree = fd_servers() == count ? agree + 1 : 0;
        if (agree == 2) return true;
    }
    return false;
}

/* Mappings of windows in this process. */
static inline int mapped_windows(void) {
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:epwire")) count++;
    if (maps) fclose(maps);
    return count;
}

#endif
