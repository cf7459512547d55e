/* The effect of the device's events on its queue pairs, whether made by commands or by libibverbs. */
#include "nic/mlx5/parts.h"

#include <stdio.h>
#include <string.h>

/* Whether the address in use is unchanged: the kernel reports each change of a port's addresses, also of
 * those that no queue pair uses. */
static bool has_same_address(const epw_mlx5 *a) {
    epw_mlx5_port port;
    epw_mlx5_gid gid;
    if (a->port.ethernet)
        return a->calls->gid(a->device, a->port_number, a->gid_index, &gid) == 0 && gid.type == a->gid.type &&
               memcmp(gid.bytes, a->gid.bytes, sizeof gid.bytes) == 0;
    return a->calls->port(a->device, a->port_number, &port) == 0 && port.lid == a->port.lid;
}

bool epw_mlx5_concerns(const epw_mlx5 *a, const epw_mlx5_event *event) {
    switch (event->kind) {
    case EPW_MLX5_EVENT_PORT_DOWN:
        return event->number == a->port_number;
    case EPW_MLX5_EVENT_GIDS:
        return event->number == a->port_number && !has_same_address(a);
    default:
        return true;
    }
}

const char *epw_mlx5_event_text(const epw_mlx5 *a, epw_mlx5_event_kind kind, char text[EPW_MLX5_TEXT]) {
    *text = '\0';
    switch (kind) {
    case EPW_MLX5_EVENT_PORT_DOWN:
        snprintf(text, EPW_MLX5_TEXT,
                 "port %u of %s is down: see its cable and switch, and ip link; connect again when it is up",
                 a->port_number, a->name.text);
        break;
    case EPW_MLX5_EVENT_GIDS:
        snprintf(text, EPW_MLX5_TEXT,
                 "port %u of %s has lost the address that its queue pairs use: destroy this rank's fabric "
                 "and all that uses it, and create new ones",
                 a->port_number, a->name.text);
        break;
    case EPW_MLX5_EVENT_FATAL:
        snprintf(text, EPW_MLX5_TEXT,
                 "%s has failed: see dmesg; once it is back, destroy this rank's fabric and all that uses "
                 "it, and create new ones",
                 a->name.text);
        break;
    case EPW_MLX5_EVENT_PAIR:
        break;
    }
    return text;
}
