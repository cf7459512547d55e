/* Which RDMA adapters a rank uses of those that there are, and in what order it tries them. Pure. */
#ifndef EPW_NIC_CHOICE_H
#define EPW_NIC_CHOICE_H

#include <stdbool.h>

#include "base/status.h"
#include "nic/bus.h"

/* A filter has the grammar of NCCL_IB_HCA: names of adapters parted by commas, "mlx5" for all that begin so,
 * "=mlx5_0,mlx5_2" for just these, "^mlx5_1" for all but those that begin so, "^=mlx5_1" for all but this
 * one; "mlx5_0:2" names one port. NULL and "" let everything through. */
bool epw_adapter_wanted(const char *filter, const char *name, uint32_t port);

/* EPW_ERR_INVALID, with what is wrong and `field`, what the filter is called, if it is none. */
epw_status epw_adapter_filter_check(const char *filter, const char *field, epw_where where);

/* Puts the numbers of `count` places into the order in which this rank tries them: the nearest to `gpu` first
 * (NULL: all are equally near). Those that are equally near begin with number `turn` of them, so that ranks
 * with different turns begin with different ones, and go round. */
void epw_adapters_order(const epw_bus_place *const *places, uint32_t count, const epw_bus_place *gpu,
                        uint32_t turn, uint32_t *order);

#endif
