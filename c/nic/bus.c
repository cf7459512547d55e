/* See bus.h. */
#include "nic/bus.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS "/sys/bus/pci/devices"

enum { FUNCTIONS_MAX = 4096, TEXT_BYTES = 64 };

/* ---- distance ---- */

/* The part of the path that begins with the root complex, "pci0000:00/..."; "" if there is none. */
static const char *below_devices(const epw_bus_place *place) {
    const char *at = strstr(place->path, "/pci");
    return at != NULL ? at + 1 : "";
}

/* How many names two paths have in common from their beginning on. */
static uint32_t same_names(const char *a, const char *b) {
    uint32_t same = 0;
    while (*a != '\0' && *b != '\0') {
        size_t first = strcspn(a, "/"), second = strcspn(b, "/");
        if (first != second || strncmp(a, b, first) != 0) break;
        same++;
        a += first + (a[first] == '/');
        b += second + (b[second] == '/');
    }
    return same;
}

epw_bus_distance epw_bus_distance_of(const epw_bus_place *a, const epw_bus_place *b) {
    uint32_t same = same_names(below_devices(a), below_devices(b));
    if (same == 0) return a->node >= 0 && a->node == b->node ? EPW_BUS_SOCKET : EPW_BUS_FAR;
    if (same == 1) return EPW_BUS_ROOT_COMPLEX;
    return same == 2 ? EPW_BUS_ROOT_PORT : EPW_BUS_SWITCH;
}

const char *epw_bus_distance_name(epw_bus_distance distance) {
    switch (distance) {
    case EPW_BUS_SWITCH:
        return "behind the same switch";
    case EPW_BUS_ROOT_PORT:
        return "behind the same root port";
    case EPW_BUS_ROOT_COMPLEX:
        return "across the root complex";
    case EPW_BUS_SOCKET:
        return "on another root complex of the same socket";
    default:
        return "on another socket";
    }
}

/* ---- sysfs ---- */

/* The beginning of a file, "" if it cannot be read. */
static void read_text(const char *path, char out[TEXT_BYTES]) {
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(out, 1, TEXT_BYTES - 1, file) : 0;
    out[length] = '\0';
    if (file != NULL) fclose(file);
}

static void find(const char *root, const char *link, epw_bus_place *out) {
    char path[PATH_MAX], real[PATH_MAX], base[PATH_MAX] = "", text[TEXT_BYTES];
    *out = (epw_bus_place){.node = -1};
    if (*root != '\0' && realpath(root, base) == NULL) return;
    int length = snprintf(path, sizeof path, "%s%s", root, link);
    if (length < 0 || (size_t)length >= sizeof path || realpath(path, real) == NULL) return;
    size_t skipped = strlen(base);
    if (strncmp(real, base, skipped) != 0 || real[skipped] != '/' ||
        strlen(real + skipped) >= sizeof out->path)
        return;
    memcpy(out->path, real + skipped, strlen(real + skipped) + 1);
    length = snprintf(path, sizeof path, "%s/numa_node", real);
    if (length < 0 || (size_t)length >= sizeof path) return;
    read_text(path, text);
    char *end;
    long node = strtol(text, &end, 10);
    if (end != text && node >= 0 && node <= INT32_MAX) out->node = (int32_t)node;
}

/* Whether a name can only be that of an entry of a folder, and does not lead out of the folder. */
static bool is_plain(const char *name) {
    return *name != '\0' && *name != '.' && strchr(name, '/') == NULL && strlen(name) < TEXT_BYTES;
}

void epw_bus_find_adapter(const char *root, const char *name, epw_bus_place *out) {
    char link[2 * TEXT_BYTES] = "";
    if (is_plain(name)) snprintf(link, sizeof link, "/sys/class/infiniband/%s/device", name);
    find(root, link, out);
}

/* CUDA writes addresses in capitals, the kernel does not. */
static void lower(const char *bus, char out[TEXT_BYTES]) {
    size_t i = 0;
    for (; bus[i] != '\0' && i < TEXT_BYTES - 1; i++) out[i] = (char)tolower((unsigned char)bus[i]);
    out[i] = '\0';
}

void epw_bus_find_function(const char *root, const char *bus, epw_bus_place *out) {
    char name[TEXT_BYTES], link[2 * TEXT_BYTES] = "";
    lower(bus, name);
    if (is_plain(name)) snprintf(link, sizeof link, FUNCTIONS "/%s", name);
    find(root, link, out);
}

static bool is_gpu(const char *root, const char *name) {
    char path[PATH_MAX], vendor[TEXT_BYTES], kind[TEXT_BYTES];
    snprintf(path, sizeof path, "%s" FUNCTIONS "/%.63s/vendor", root, name);
    read_text(path, vendor);
    snprintf(path, sizeof path, "%s" FUNCTIONS "/%.63s/class", root, name);
    read_text(path, kind);
    return strncmp(vendor, "0x10de", 6) == 0 && strncmp(kind, "0x03", 4) == 0;
}

uint32_t epw_bus_turn_of_gpu(const char *root, const char *bus) {
    char path[PATH_MAX], own[TEXT_BYTES];
    uint32_t before = 0, looked = 0;
    lower(bus, own);
    snprintf(path, sizeof path, "%s" FUNCTIONS, root);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL && looked < FUNCTIONS_MAX; looked++)
        if (is_plain(entry->d_name) && strcmp(entry->d_name, own) < 0) before += is_gpu(root, entry->d_name);
    closedir(folder);
    return before;
}
