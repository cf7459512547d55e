/* libibverbs and libmlx5, opened when somebody asks for an adapter. Unproven: libmlx5 has been opened, and
 * has listed nothing, for want of an adapter. libibverbs has worked with Soft-RoCE. */
#ifndef EPW_NIC_MLX5_LIBRARY_H
#define EPW_NIC_MLX5_LIBRARY_H

#include "base/status.h"
#include "nic/mlx5/calls.h"

/* Opens them once for this process, which keeps them. EPW_ERR_NO_PATH names the library, or the function in
 * the version that is needed, which is missing. */
epw_status epw_mlx5_library(epw_where where, const epw_mlx5_calls **out);

/* libibverbs alone, for adapters of any make: calls that take no commands are NULL. Errors as above. */
epw_status epw_verbs_library(epw_where where, const epw_mlx5_calls **out);

/* Once that has returned EPW_OK: a function of libibverbs in a version, NULL if there is none; and what the
 * library knows an opened device by. */
void *epw_verbs_function(const char *name, const char *version);
struct epw_abi_context *epw_verbs_context(void *device);

#endif
