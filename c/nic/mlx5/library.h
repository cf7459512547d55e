/* libibverbs and libmlx5, opened when somebody asks for an adapter. Unproven: they have been opened, and have
 * listed nothing, for want of an adapter. */
#ifndef EPW_NIC_MLX5_LIBRARY_H
#define EPW_NIC_MLX5_LIBRARY_H

#include "base/status.h"
#include "nic/mlx5/calls.h"

/* Opens them once for this process, which keeps them. EPW_ERR_NO_PATH names the library, or the function in
 * the version that is needed, which is missing. */
epw_status epw_mlx5_library(epw_where where, const epw_mlx5_calls **out);

#endif
