/* Functions that the witnesses' files name on code paths that are never taken here: each ends the program. A
 * file of its own, without the headers that declare them. */
#include <stdio.h>
#include <stdlib.h>

#define NEVER(name)                                                                                          \
    __attribute__((weak)) void name(void) {                                                                  \
        fprintf(stderr, "%s has been called\n", #name);                                                      \
        abort();                                                                                             \
    }

/* rdma-core */
NEVER(mlx5_alloc_prefered_buf)
NEVER(mlx5_complete_odp_fault)
NEVER(mlx5_copy_to_recv_srq)
NEVER(mlx5_find_srq)
NEVER(mlx5_free_actual_buf)
NEVER(mlx5_free_srq_wqe)
NEVER(mlx5_get_alloc_type)
NEVER(mlx5dv_devx_obj_destroy)
NEVER(mlx5dv_devx_obj_query)
NEVER(mlx5dv_devx_qp_query)
NEVER(mlx5dv_get_clock_info)

/* UCX */
NEVER(mlx5dv_devx_qp_modify)
NEVER(ucs_mpool_get_grow)
NEVER(uct_ib_device_name)
NEVER(uct_ib_mlx5_devx_uar_cmp)
NEVER(uct_ib_mlx5_iface_get_res_domain)
NEVER(uct_ib_mlx5_srq_buff_init)
