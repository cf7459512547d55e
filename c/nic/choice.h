/* Which of the existing RDMA adapters a rank uses, and in what order it tries them. Pure functions. */
#ifndef EPW_NIC_CHOICE_H
#define EPW_NIC_CHOICE_H

#include <stdbool.h>

#include "base/status.h"
#include "nic/bus.h"

/* A filter has the grammar of NCCL_IB_HCA: names of adapters separated by commas, "mlx5" for all whose names
 * begin so, "=mlx5_0,mlx5_2" for exactly these, "^mlx5_1" for all but those whose names begin so, "^=mlx5_1"
 * for all but exactly this one; "mlx5_0:2" names one port. NULL and "" match everything. */
bool epw_adapter_wanted(const char *filter, const char *name, uint32_t port);

/* EPW_ERR_INVALID if the text is not a filter; the error says why, and names it `field`. */
epw_status epw_adapter_filter_check(const char *filter, const char *field, epw_where where);

/* An adapter has no more ports. */
enum { EPW_ADAPTER_PORTS = 2 };

/* An adapter of this host. */
typedef struct epw_adapter_listed {
    const char *name; /* no other one has it */
    const epw_bus_place *place;
} epw_adapter_listed;

/* What a rank wants of them. */
typedef struct epw_adapter_wish {
    const char *filter;       /* NULL: any */
    const char *except;       /* not the one of this name; NULL: any */
    const epw_bus_place *gpu; /* the nearest to this GPU first; NULL: all are equally near */
    uint32_t turn;
} epw_adapter_wish;

/* Below 0 if the adapter of name `a` comes before that of name `b` in the order of adapters, which is that of
 * their names, "mlx5_2" before "mlx5_10"; above 0 if behind it. */
int epw_adapter_compare(const char *a, const char *b);

/* Puts the numbers of those adapters of which the filter admits a port into the order in which a rank tries
 * them, and returns how many they are. Equally near ones are tried cyclically from number `turn` among them,
 * so that ranks with different turns begin with different ones. In which order they are listed does not
 * matter. `order` has room for `count`. */
uint32_t epw_adapters_order(const epw_adapter_listed *all, uint32_t count, const epw_adapter_wish *wish,
                            uint32_t *order);

/* How widely the GID of an Ethernet port can be reached by others, by RoCEv2: 2 for an IPv4 address, 1 for a
 * routed IPv6 one; 0: it cannot be used. Of several with the same worth the first in the table is used. */
uint32_t epw_gid_worth(const unsigned char gid[16], bool roce_v2);

#endif
