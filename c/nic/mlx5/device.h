/* An mlx5 adapter that this process has opened: which one, by which port and address others reach it, and the
 * memory that it may touch.
 *
 * Nothing here has met an adapter yet. What only one can show is listed at the end of pair.h. */
#ifndef EPW_NIC_MLX5_DEVICE_H
#define EPW_NIC_MLX5_DEVICE_H

#include "base/status.h"
#include "nic/mlx5/calls.h"
#include "nic/mlx5/commands.h"
#include "nic/region.h"

typedef struct epw_mlx5 epw_mlx5;

typedef struct epw_mlx5_options {
    const char *device; /* by name, "mlx5_0"; NULL: the first of those with a port that can be used */
    uint32_t traffic_class, service_level;
} epw_mlx5_options;

/* Opens it, looks at what it can do, and starts a thread that looks at words, see epw_mlx5_register.
 *   EPW_ERR_NO_PATH   there is none that can be used, for the reasons in the text */
epw_status epw_mlx5_open(const epw_mlx5_calls *calls, const epw_mlx5_options *options, epw_where where,
                         epw_mlx5 **out);

/* All pairs have been destroyed, and all regions dropped. NULL is allowed. */
void epw_mlx5_close(epw_mlx5 *adapter);

/* For print: which device, port and address, and what it does without. */
const char *epw_mlx5_describe(const epw_mlx5 *adapter);

/* Where others send to, for a blob. */
typedef struct epw_mlx5_address {
    bool ethernet;
    uint8_t mtu;
    uint16_t lid;
    unsigned char gid[16];
} epw_mlx5_address;

enum { EPW_MLX5_ADDRESS_BYTES = 1 + 1 + 2 + 16 };

epw_mlx5_address epw_mlx5_address_of(const epw_mlx5 *adapter);
void epw_mlx5_address_write(const epw_mlx5_address *address, unsigned char bytes[EPW_MLX5_ADDRESS_BYTES]);

/* EPW_ERR_INVALID if it is none. */
epw_status epw_mlx5_address_read(const unsigned char bytes[EPW_MLX5_ADDRESS_BYTES], epw_where where,
                                 epw_mlx5_address *out);

/* Keys to a region: this rank's entries name its own bytes by the first, a peer's by the second. */
typedef struct epw_keys {
    uint32_t own, its;
} epw_keys;

/* An adapter's keys open all from a region's first byte to its last, stretches or not. Its `arrived` is
 * called from a thread that looks at the words of its first stretch: every 50 us while something comes, else
 * ever less often, up to 500 us. */
epw_status epw_mlx5_register(epw_mlx5 *adapter, const epw_region *region, epw_where where, epw_keys *out);

/* Once this returns nothing of the region is touched any more. `own`: its key. */
void epw_mlx5_deregister(epw_mlx5 *adapter, uint32_t own);

#endif
