/* See memory_limit.h. */
#include "device/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FILE_BYTES_MAX = 4 << 20
}; /* read of one file at most: /proc/self/mountinfo has a line for each
    * mount */

/* ---- reading ---- */

/* Reads a file line by line. */
typedef struct lines {
    int fd;
    size_t begin, end; /* range of the bytes read and not yet returned */
    size_t budget;     /* bytes still to be read */
    bool too_long;     /* the line that begins here does not fit, and is skipped */
    char bytes[PATH_MAX + 512];
} lines;

/* False if there is no such file. */
static bool lines_open(lines *l, const char *root, const char *path) {
    if ((size_t)snprintf(l->bytes, sizeof l->bytes, "%s%s", root, path) >= sizeof l->bytes) return false;
    l->fd = open(l->bytes, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    l->begin = l->end = 0;
    l->budget = FILE_BYTES_MAX;
    l->too_long = false;
    return l->fd >= 0;
}

static void lines_close(const lines *l) {
    close(l->fd);
}

/* False at the end, or on any error. */
static bool read_more(lines *l) {
    memmove(l->bytes, l->bytes + l->begin, l->end - l->begin);
    l->end -= l->begin;
    l->begin = 0;
    if (l->end == sizeof l->bytes - 1) {
        l->too_long = true;
        l->end = 0;
    }
    ssize_t got;
    do got = read(l->fd, l->bytes + l->end, sizeof l->bytes - 1 - l->end);
    while (got < 0 && errno == EINTR);
    if (got <= 0 || (size_t)got > l->budget) return false;
    l->budget -= (size_t)got;
    l->end += (size_t)got;
    return true;
}

/* The next line without its newline, which the caller may modify; NULL after the last line. */
static char *next_line(lines *l) {
    for (;;) {
        char *line = l->bytes + l->begin, *stop = memchr(line, '\n', l->end - l->begin);
        bool last = false;
        if (stop == NULL) {
            if (read_more(l)) continue;
            if (l->begin == l->end) return NULL;
            line = l->bytes + l->begin;
            stop = l->bytes + l->end;
            last = true;
        }
        *stop = '\0';
        l->begin = last ? l->end : (size_t)(stop + 1 - l->bytes);
        if (!l->too_long) return line;
        l->too_long = false;
    }
}

/* Parses a number of bytes; false if there is none ("max", for example), or if it exceeds 64 bits. */
static bool parse_bytes(const char *text, uint64_t *out) {
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return errno == 0;
}

/* The value after `name` in a line of name and value; false if the line has another name. */
static bool parse_named(const char *line, const char *name, uint64_t *out) {
    size_t length = strlen(name);
    if (strncmp(line, name, length) != 0) return false;
    line += length;
    if (*line != ' ' && *line != ':') return false;
    return parse_bytes(line + 1 + strspn(line + 1, " "), out);
}

/* ---- the machine ---- */

static bool find_machine(const char *root, epw_memory_limit *out) {
    lines l;
    if (!lines_open(&l, root, "/proc/meminfo")) return false;
    bool known = false;
    uint64_t kib = 0;
    for (char *line; !known && (line = next_line(&l)) != NULL;)
        known = parse_named(line, "MemAvailable", &kib);
    lines_close(&l);
    if (!known || kib > UINT64_MAX / 1024) return false;
    *out = (epw_memory_limit){.left = kib * 1024};
    return true;
}

/* ---- cgroups ---- */

/* The names of one version of the memory controller. */
typedef struct version {
    const char *filesystem, *limit, *usage;
    const char *caches[2]; /* fields of memory.stat: file pages, which the kernel reclaims before it kills */
} version;

static const version versions[] = {
    {"cgroup2", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"cgroup",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

static bool is_v1(const version *v) {
    return v == &versions[1];
}

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
    return false;
}

/* Finds the process's cgroup: the last part of "4:cpu,memory:/a/b" (v1) or "0::/a/b" (v2). */
static bool find_cgroup(const char *root, const version *v, char path[PATH_MAX]) {
    lines l;
    bool found = false;
    if (!lines_open(&l, root, "/proc/self/cgroup")) return false;
    for (char *line; !found && (line = next_line(&l)) != NULL;) {
        char *controllers = strchr(line, ':'),
             *name = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (name == NULL) continue;
        *controllers++ = *name++ = '\0';
        found = is_v1(v) ? has_word(controllers, "memory") : strcmp(line, "0") == 0 && *controllers == '\0';
        found = found && (size_t)snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    }
    lines_close(&l);
    return found;
}

/* Unescapes in place: mountinfo writes blanks and the like as \040. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
            from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* Parses ROOT and MOUNT_POINT of a line "36 35 98:0 ROOT MOUNT_POINT OPTIONS ... - FILESYSTEM SOURCE
 * OPTIONS"; false if it is not a mount of the memory controller. */
static bool parse_mount(char *line, const version *v, char **mount_root, char **mount_point) {
    char *rest = strstr(line, " - "), *save = NULL;
    if (rest == NULL) return false;
    *rest = '\0';
    const char *filesystem = strtok_r(rest + 3, " ", &save);
    const char *source = strtok_r(NULL, " ", &save), *options = strtok_r(NULL, " ", &save);
    if (filesystem == NULL || strcmp(filesystem, v->filesystem) != 0) return false;
    if (is_v1(v) && (source == NULL || options == NULL || !has_word(options, "memory"))) return false;
    char *fields[5] = {NULL};
    fields[0] = strtok_r(line, " ", &save);
    for (int i = 1; i < 5 && fields[i - 1] != NULL; i++) fields[i] = strtok_r(NULL, " ", &save);
    if (fields[4] == NULL) return false;
    unescape(*mount_root = fields[3]);
    unescape(*mount_point = fields[4]);
    return true;
}

/* The part of `path` below `top`: "" if they are equal, NULL if `path` does not lie below it. */
static const char *below(const char *path, const char *top) {
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(path, top, length) != 0 || (path[length] != '/' && path[length] != '\0')) return NULL;
    path += length;
    return strcmp(path, "/") == 0 ? "" : path;
}

/* The folder of a cgroup. */
typedef struct folder {
    char path[PATH_MAX];
    size_t top;            /* length of the mount point at its start: ancestors above that are not visible */
    char cgroup[PATH_MAX]; /* the cgroup's name */
} folder;

/* Finds where the cgroup is mounted. Only a part of the tree may be mounted, for example in a container
 * without a cgroup namespace. If the process's own cgroup is not in it, the top of the mounted part stands
 * for it. */
static bool find_folder(const char *root, const version *v, folder *out) {
    lines l;
    bool found = false, exact = false;
    if (!find_cgroup(root, v, out->cgroup) || !lines_open(&l, root, "/proc/self/mountinfo")) return false;
    for (char *line; !exact && (line = next_line(&l)) != NULL;) {
        char *mount_root, *mount_point;
        if (!parse_mount(line, v, &mount_root, &mount_point)) continue;
        const char *inner = strstr(out->cgroup, "/..") ? NULL : below(out->cgroup, mount_root);
        int length = snprintf(out->path, sizeof out->path, "%s%s", mount_point, inner != NULL ? inner : "");
        if (length < 0 || (size_t)length >= sizeof out->path) continue;
        out->top = strlen(mount_point);
        exact = inner != NULL;
        found = true;
    }
    lines_close(&l);
    if (found && !exact) memcpy(out->cgroup, out->path, sizeof out->cgroup);
    return found;
}

static bool read_bytes(const char *root, const folder *f, const char *name, uint64_t *out) {
    lines l;
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (!lines_open(&l, root, path)) return false;
    const char *line = next_line(&l);
    bool known = line != NULL && parse_bytes(line, out);
    lines_close(&l);
    return known;
}

static uint64_t read_caches(const char *root, const folder *f, const version *v) {
    lines l;
    char path[PATH_MAX + 64];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", f->path);
    if (!lines_open(&l, root, path)) return 0;
    for (char *line; (line = next_line(&l)) != NULL;) {
        uint64_t bytes;
        for (int i = 0; i < 2; i++)
            if (parse_named(line, v->caches[i], &bytes) && bytes < UINT64_MAX - sum) sum += bytes;
    }
    lines_close(&l);
    return sum;
}

/* Reads the limit of one cgroup, if it has one. */
static bool read_limit(const char *root, const folder *f, const version *v, epw_memory_limit *out) {
    uint64_t limit, usage = 0;
    if (!read_bytes(root, f, v->limit, &limit)) return false;
    (void)read_bytes(root, f, v->usage, &usage);
    uint64_t caches = read_caches(root, f, v);
    uint64_t used = usage > caches ? usage - caches : 0;
    *out = (epw_memory_limit){.left = limit > used ? limit - used : 0, .limit = limit, .file = v->limit};
    snprintf(out->cgroup, sizeof out->cgroup, "%.255s", f->cgroup[0] != '\0' ? f->cgroup : "/");
    return true;
}

/* Moves to the parent cgroup; false if this is the topmost visible one. */
static bool go_up(folder *f) {
    char *slash = strrchr(f->path, '/'), *name = strrchr(f->cgroup, '/');
    if (slash == NULL || (size_t)(slash - f->path) < f->top) return false;
    *slash = '\0';
    if (name != NULL) *name = '\0';
    return true;
}

/* ---- all of them ---- */

static void keep_tighter(epw_memory_limit *kept, bool *any, const epw_memory_limit *found) {
    if (!*any || found->left < kept->left) *kept = *found;
    *any = true;
}

bool epw_memory_limit_find(const char *root, epw_memory_limit *out) {
    epw_memory_limit found;
    bool any = find_machine(root, out);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        folder f;
        if (!find_folder(root, &versions[i], &f)) continue;
        do {
            if (read_limit(root, &f, &versions[i], &found)) keep_tighter(out, &any, &found);
        } while (go_up(&f));
    }
    return any;
}

epw_status epw_memory_limit_check(const char *root, const char *what, uint64_t bytes, epw_where where) {
    epw_memory_limit tightest;
    /* Page tables and the index of a memfd's pages count too: less than one byte in 128. */
    if (!epw_memory_limit_find(root, &tightest) || bytes + bytes / 128 <= tightest.left) return EPW_OK;
    if (tightest.limit == 0 && tightest.file == NULL)
        return epw_fail(EPW_ERR_NO_MEMORY, where,
                        "%s of %llu bytes, and the machine has %llu available; make the window smaller "
                        "(epw_plan_make itemises it)",
                        what, (unsigned long long)bytes, (unsigned long long)tightest.left);
    return epw_fail(EPW_ERR_NO_MEMORY, where,
                    "%s of %llu bytes, and cgroup %s may take %llu more: its limit is %llu; make the "
                    "window smaller (epw_plan_make itemises it) or raise the limit (%s)",
                    what, (unsigned long long)bytes, tightest.cgroup, (unsigned long long)tightest.left,
                    (unsigned long long)tightest.limit, tightest.file);
}
