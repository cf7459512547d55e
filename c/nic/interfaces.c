/* See interfaces.h. */
#include "nic/interfaces.h"

#include "base/log.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* ---- the filter ---- */

typedef struct verdict {
    bool any_wanted; /* the filter names what is wanted */
    bool named;      /* one of them is this interface's */
    bool excluded;
} verdict;

static verdict judge(const char *filter, const char *name) {
    verdict v = {0};
    bool exclude_all = false, exact_all = false, first = true;
    for (const char *at = filter ? filter : ""; *at;) {
        bool exclude = exclude_all, exact = exact_all;
        while (*at == ' ') at++;
        for (; *at == '^' || *at == '='; at++) {
            if (*at == '^') exclude = true;
            if (*at == '=') exact = true;
        }
        size_t length = strcspn(at, ", ");
        if (length > 0) {
            if (first) exclude_all = exclude, exact_all = exact;
            first = false;
            bool hit = strncmp(name, at, length) == 0 && (!exact || name[length] == '\0');
            if (!exclude) v.any_wanted = true;
            if (hit && exclude) v.excluded = true;
            if (hit && !exclude) v.named = true;
        }
        at += length;
        at += strspn(at, ", ");
    }
    return v;
}

bool epw_interface_wanted(const char *filter, const char *name) {
    verdict v = judge(filter, name);
    return !v.excluded && (v.named || !v.any_wanted);
}

bool epw_interface_is_named(const char *filter, const char *name) {
    verdict v = judge(filter, name);
    return v.named && !v.excluded;
}

/* ---- this host's ---- */

static bool is_up(const struct ifaddrs *i) {
    return (i->ifa_flags & IFF_UP) && i->ifa_addr != NULL;
}

/* Adds the addresses of the loopback interface, or of all others. Several interfaces may have the same one,
 * on which only one listener can listen at a port. Returns for how many there was no room. */
static uint32_t add(const struct ifaddrs *all, const char *filter, bool loopback, epw_addresses *out) {
    uint32_t left_out = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        epw_address found;
        if (!is_up(i) || !epw_address_from_socket(i->ifa_addr, &found)) continue;
        if (((i->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
        if (epw_address_is_link_local(&found) || !epw_interface_wanted(filter, i->ifa_name)) continue;
        found.port = 0;
        left_out += !epw_addresses_add(out, &found);
    }
    return left_out;
}

static bool names_loopback(const struct ifaddrs *all, const char *filter) {
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if ((i->ifa_flags & IFF_LOOPBACK) && epw_interface_is_named(filter, i->ifa_name)) return true;
    return false;
}

/* The names of the interfaces that are up, each once, for an error text. An interface is listed once for each
 * address. */
static void list_names(const struct ifaddrs *all, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (const struct ifaddrs *i = all; i && used < size; i = i->ifa_next) {
        bool listed = !is_up(i);
        for (const struct ifaddrs *before = all; before != i && !listed; before = before->ifa_next)
            listed = is_up(before) && strcmp(before->ifa_name, i->ifa_name) == 0;
        if (!listed)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", i->ifa_name);
    }
}

epw_status epw_interfaces_addresses(const char *filter, epw_where where, epw_addresses *out) {
    struct ifaddrs *all = NULL;
    *out = (epw_addresses){0};
    if (getifaddrs(&all)) return epw_fail_errno(errno, where, "getifaddrs");
    uint32_t left_out = add(all, filter, false, out);
    if (out->count == 0 || names_loopback(all, filter)) left_out += add(all, filter, true, out);
    if (left_out > 0)
        epw_log(EPW_LOG_NIC, EPW_LOG_WARN, where,
                "peers are offered only the first %d of this host's addresses, not the other %u: choose "
                "interfaces with EPWIRE_IFNAME",
                EPW_ADDRESSES_MAX, left_out);
    epw_status status = EPW_OK;
    if (out->count == 0) {
        char names[256];
        list_names(all, names, sizeof names);
        status =
            epw_fail(EPW_ERR_INVALID, where,
                     "no interface that is up and passes the filter \"%s\" has an address that others can "
                     "dial; up are: %s",
                     filter ? filter : "", names);
    }
    freeifaddrs(all);
    return status;
}
