/* See choice.h. */
#include "nic/choice.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_MAX = 255 };

/* The marks in front of a filter's names, and where the names begin. */
typedef struct marks {
    bool exclude, exact;
    const char *names;
} marks;

static marks marks_of(const char *filter) {
    marks m = {.names = filter};
    if (*m.names == '^') m.exclude = true, m.names++;
    if (*m.names == '=') m.exact = true, m.names++;
    return m;
}

/* Whether the name that begins at `at`, with its port or without one, is that of the adapter's port. */
static bool hits(const char *at, size_t length, bool exact, const char *name, uint32_t port) {
    const char *colon = memchr(at, ':', length);
    size_t own = colon != NULL ? (size_t)(colon - at) : length;
    if (strncmp(name, at, own) != 0 || (exact && name[own] != '\0')) return false;
    return colon == NULL || strtoul(colon + 1, NULL, 10) == port;
}

bool epw_adapter_wanted(const char *filter, const char *name, uint32_t port) {
    if (filter == NULL || *filter == '\0') return true;
    marks m = marks_of(filter);
    bool hit = false;
    for (const char *at = m.names; *at != '\0'; at += strspn(at, ",")) {
        size_t length = strcspn(at, ",");
        if (length > 0) hit |= hits(at, length, m.exact, name, port);
        at += length;
    }
    return hit != m.exclude;
}

/* "" or a text without ports, or with one that is a number. */
static bool is_name(const char *at, size_t length) {
    const char *colon = memchr(at, ':', length);
    size_t own = colon != NULL ? (size_t)(colon - at) : length;
    if (own == 0 || strcspn(at, "^= \t") < own) return false;
    if (colon == NULL) return true;
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    bool digits = colon[1] >= '0' && colon[1] <= '9';
    return digits && end == at + length && port >= 1 && port <= PORT_MAX;
}

epw_status epw_adapter_filter_check(const char *filter, const char *field, epw_where where) {
    if (filter == NULL || *filter == '\0') return EPW_OK;
    const char *at = marks_of(filter).names;
    for (;;) {
        size_t length = strcspn(at, ",");
        if (!is_name(at, length))
            return epw_fail(EPW_ERR_INVALID, where,
                            "%s is \"%s\", not a filter of adapters: give names such as mlx5_0 or mlx5_0:1, "
                            "with commas between them, and ^, = or ^= in front of them all",
                            field, filter);
        at += length;
        if (*at == '\0') return EPW_OK;
        at++;
    }
}

/* ---- addresses ---- */

uint32_t epw_gid_worth(const unsigned char gid[16], bool roce_v2) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const unsigned char nothing[16];
    bool link_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
    if (!roce_v2 || link_local || memcmp(gid, nothing, sizeof nothing) == 0) return 0;
    return memcmp(gid, mapped, sizeof mapped) == 0 ? 2 : 1;
}

/* ---- order ---- */

/* The length of a name without the number at its end. */
static size_t stem_of(const char *name) {
    size_t length = strlen(name);
    while (length > 0 && isdigit((unsigned char)name[length - 1])) length--;
    return length;
}

int epw_adapter_compare(const char *a, const char *b) {
    size_t stem = stem_of(a), other = stem_of(b);
    int order = strncmp(a, b, stem < other ? stem : other);
    if (order != 0) return order;
    if (stem != other) return stem < other ? -1 : 1;
    unsigned long long number = strtoull(a + stem, NULL, 10), its = strtoull(b + stem, NULL, 10);
    if (number != its) return number < its ? -1 : 1;
    return strcmp(a, b);
}

static bool is_wanted(const epw_adapter_wish *wish, const char *name) {
    bool wanted = false;
    for (uint32_t port = 1; port <= EPW_ADAPTER_PORTS; port++)
        wanted |= epw_adapter_wanted(wish->filter, name, port);
    return wanted && (wish->except == NULL || strcmp(wish->except, name) != 0);
}

static epw_bus_distance distance_to(const epw_bus_place *gpu, const epw_bus_place *place) {
    return gpu != NULL ? epw_bus_distance_of(gpu, place) : EPW_BUS_FAR;
}

/* Whether it is wanted, and at this distance. */
static bool is_at(const epw_adapter_listed *a, const epw_adapter_wish *wish, epw_bus_distance distance) {
    return distance_to(wish->gpu, a->place) == distance && is_wanted(wish, a->name);
}

uint32_t epw_adapters_order(const epw_adapter_listed *all, uint32_t count, const epw_adapter_wish *wish,
                            uint32_t *order) {
    uint32_t first = 0;
    for (epw_bus_distance d = EPW_BUS_SWITCH; d <= EPW_BUS_FAR; d++) {
        uint32_t same = 0;
        for (uint32_t i = 0; i < count; i++) same += is_at(&all[i], wish, d);
        for (uint32_t i = 0; i < count; i++) {
            if (!is_at(&all[i], wish, d)) continue;
            uint32_t nth = 0;
            for (uint32_t j = 0; j < count; j++)
                nth += is_at(&all[j], wish, d) && epw_adapter_compare(all[j].name, all[i].name) < 0;
            order[first + (nth + same - wish->turn % same) % same] = i;
        }
        first += same;
    }
    return first;
}
