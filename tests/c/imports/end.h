/* A rank's window and the blob made of it, as the tests of windows have them. */
#ifndef EPW_TESTS_IMPORTS_END_H
#define EPW_TESTS_IMPORTS_END_H

#include "../check.h"
#include "base/clock.h"
#include "window/blob.h"
#include "window/window.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#define MS 1000000ull

enum { WINDOW_BYTES = 1 << 20, RANKS = 80 };

static const epw_where here = {"test", -1, -1};

static inline epw_config config_of(uint32_t rank) {
    epw_config config = EPW_CONFIG_INIT;
    config.rank = rank;
    config.ranks = RANKS;
    config.max_tokens = 128;
    config.hidden = 7168;
    config.experts = 4 * RANKS;
    config.topk = 8;
    return config;
}

/* A rank's window and the last blob made of it. */
typedef struct end {
    epw_window *window;
    unsigned char blob[EPW_BLOB_MAX];
    size_t length;
} end;

static inline end open_end(epw_config config) {
    end e = {0};
    CHECK(epw_window_create(&config, WINDOW_BYTES, &e.window) == EPW_OK);
    return e;
}

static inline void export_to(end *e, uint32_t peer) {
    CHECK(epw_window_export(e->window, peer, e->blob, &e->length) == EPW_OK);
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

/* Runs that a sanitizer adds threads to are compared with their own start. */
static inline int threads(void) {
    return entries_of("/proc/self/task");
}

#endif
