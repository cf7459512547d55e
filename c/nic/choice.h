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

/* Puts the numbers of `count` places into the order in which this rank tries them: the nearest to `gpu` first
 * (NULL: all are equally near). Equally near ones are tried cyclically from number `turn` among them, so that
 * ranks with different turns begin with different ones. */
void epw_adapters_order(const epw_bus_place *const *places, uint32_t count, const epw_bus_place *gpu,
                        uint32_t turn, uint32_t *order);

/* How widely the GID of an Ethernet port can be reached by others, by RoCEv2: 2 for an IPv4 address, 1 for a
 * routed IPv6 one; 0: it cannot be used. Of several with the same worth the first in the table is used. */
uint32_t epw_gid_worth(const unsigned char gid[16], bool roce_v2);

#endif
