/* libibverbs and libmlx5, loaded when an adapter is asked for. Not proven on hardware: libmlx5 has been
 * loaded, but only without an adapter, and has listed none. libibverbs has worked with Soft-RoCE. */
#ifndef EPW_NIC_MLX5_LIBRARY_H
#define EPW_NIC_MLX5_LIBRARY_H

#include "base/status.h"
#include "nic/mlx5/calls.h"

/* Loads both once; the process keeps them loaded. EPW_ERR_NO_PATH names the missing library, or the missing
 * function and its version. */
epw_status epw_mlx5_library(epw_where where, const epw_mlx5_calls **out);

/* Loads only libibverbs, for adapters of any vendor: calls that take commands are NULL. Same errors. */
epw_status epw_verbs_library(epw_where where, const epw_mlx5_calls **out);

/* After epw_verbs_library has returned EPW_OK: a function of libibverbs in a version, NULL if there is none;
 * and the library's context of an opened device. */
void *epw_verbs_function(const char *name, const char *version);
struct epw_abi_context *epw_verbs_context(void *device);

#endif
