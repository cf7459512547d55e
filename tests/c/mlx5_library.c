/* Calls of libibverbs and libmlx5: their binary interface compared with their headers, and an error that says
 * what is missing where there is no adapter. */
#include "check.h"
#include "nic/mlx5.h"
#include "nic/mlx5/abi.h"
#include "nic/mlx5/library.h"

#include <string.h>

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>

#define SAME(ours, field, theirs, other)                                                                     \
    CHECK(offsetof(ours, field) == offsetof(theirs, other) &&                                                \
          sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->other))

static void the_binary_interface_is_that_of_the_headers(void) {
    SAME(epw_abi_context, device, struct ibv_context, device);
    SAME(epw_abi_context, async_fd, struct ibv_context, async_fd);
    SAME(epw_abi_port, state, struct ibv_port_attr, state);
    SAME(epw_abi_port, active_mtu, struct ibv_port_attr, active_mtu);
    SAME(epw_abi_port, gid_tbl_len, struct ibv_port_attr, gid_tbl_len);
    SAME(epw_abi_port, lid, struct ibv_port_attr, lid);
    SAME(epw_abi_port, link_layer, struct ibv_port_attr, link_layer);
    CHECK(sizeof(epw_abi_port) >= sizeof(struct ibv_port_attr));
    SAME(epw_abi_gid, bytes, struct ibv_gid_entry, gid);
    SAME(epw_abi_gid, type, struct ibv_gid_entry, gid_type);
    CHECK(sizeof(epw_abi_gid) == sizeof(struct ibv_gid_entry));
    SAME(epw_abi_mr, lkey, struct ibv_mr, lkey);
    SAME(epw_abi_mr, rkey, struct ibv_mr, rkey);
    SAME(epw_abi_ah_attr, dgid, struct ibv_ah_attr, grh.dgid);
    SAME(epw_abi_ah_attr, sgid_index, struct ibv_ah_attr, grh.sgid_index);
    SAME(epw_abi_ah_attr, hop_limit, struct ibv_ah_attr, grh.hop_limit);
    SAME(epw_abi_ah_attr, is_global, struct ibv_ah_attr, is_global);
    SAME(epw_abi_ah_attr, port, struct ibv_ah_attr, port_num);
    CHECK(sizeof(epw_abi_ah_attr) == sizeof(struct ibv_ah_attr));
    SAME(epw_abi_event, element, struct ibv_async_event, element);
    SAME(epw_abi_event, type, struct ibv_async_event, event_type);
    CHECK(sizeof(epw_abi_event) == sizeof(struct ibv_async_event));
    SAME(epw_abi_context_attr, flags, struct mlx5dv_context_attr, flags);
    CHECK(sizeof(epw_abi_context_attr) == sizeof(struct mlx5dv_context_attr));
    SAME(epw_abi_uar, reg, struct mlx5dv_devx_uar, reg_addr);
    SAME(epw_abi_uar, page, struct mlx5dv_devx_uar, page_id);
    SAME(epw_abi_umem, id, struct mlx5dv_devx_umem, umem_id);
    SAME(epw_abi_umem_in, access, struct mlx5dv_devx_umem_in, access);
    SAME(epw_abi_umem_in, page_sizes, struct mlx5dv_devx_umem_in, pgsz_bitmap);
    SAME(epw_abi_umem_in, dmabuf, struct mlx5dv_devx_umem_in, dmabuf_fd);
    CHECK(sizeof(epw_abi_umem_in) == sizeof(struct mlx5dv_devx_umem_in));
    SAME(epw_abi_pd, number, struct mlx5dv_pd, pdn);
    SAME(epw_abi_av, mac, struct mlx5_wqe_av, rmac);
    SAME(epw_abi_objects, ah, struct mlx5dv_obj, ah);
    SAME(epw_abi_objects, pd, struct mlx5dv_obj, pd);
    CHECK(sizeof(epw_abi_objects) == sizeof(struct mlx5dv_obj));

    CHECK((int)EPW_ABI_OBJECT_AH == MLX5DV_OBJ_AH && (int)EPW_ABI_OBJECT_PD == MLX5DV_OBJ_PD);
    CHECK((int)EPW_ABI_CONTEXT_DEVX == MLX5DV_CONTEXT_FLAGS_DEVX);
    CHECK((int)EPW_ABI_UMEM_DMABUF == MLX5DV_UMEM_MASK_DMABUF);
    CHECK(EPW_ABI_UAR_BF == MLX5DV_UAR_ALLOC_TYPE_BF && EPW_ABI_UAR_SHARED == MLX5DV_UAR_ALLOC_TYPE_NC);
    CHECK((int)EPW_ABI_PORT_ACTIVE == IBV_PORT_ACTIVE && (int)EPW_ABI_ETHERNET == IBV_LINK_LAYER_ETHERNET);
    CHECK((int)EPW_ABI_DEVICE_FATAL == IBV_EVENT_DEVICE_FATAL && (int)EPW_ABI_PORT_ERR == IBV_EVENT_PORT_ERR);
    CHECK((int)EPW_ABI_LID_CHANGE == IBV_EVENT_LID_CHANGE && (int)EPW_ABI_GID_CHANGE == IBV_EVENT_GID_CHANGE);
    CHECK((int)EPW_MLX5_GID_ROCE_V1 == IBV_GID_TYPE_ROCE_V1 &&
          (int)EPW_MLX5_GID_ROCE_V2 == IBV_GID_TYPE_ROCE_V2);
    CHECK((int)EPW_MLX5_LOCAL_WRITE == IBV_ACCESS_LOCAL_WRITE &&
          (int)EPW_ABI_LOCAL_WRITE == IBV_ACCESS_LOCAL_WRITE);
    CHECK((int)EPW_MLX5_REMOTE_WRITE == IBV_ACCESS_REMOTE_WRITE &&
          (int)EPW_MLX5_REMOTE_READ == IBV_ACCESS_REMOTE_READ);
    CHECK((int)EPW_MLX5_REMOTE_ATOMIC == IBV_ACCESS_REMOTE_ATOMIC);
    CHECK((int)EPW_MLX5_RELAXED_ORDERING == IBV_ACCESS_RELAXED_ORDERING);
}
#else
static void the_binary_interface_is_that_of_the_headers(void) {
    printf("NOT CHECKED: the binary interface of libmlx5, because there is no infiniband/mlx5dv.h\n");
}
#endif

/* With the libraries: which adapters there are, and that none has this name. Without them: what is
 * missing. */
static void an_adapter_that_is_not_there_is_an_error_that_says_so(void) {
    const epw_where where = {"test", 0, -1};
    const epw_mlx5_calls *calls = NULL;
    epw_mlx5 *adapter = NULL;
    epw_status status = epw_mlx5_library(where, &calls);
    if (status != EPW_OK) {
        CHECK(status == EPW_ERR_NO_PATH && strstr(epw_last_error(), "install rdma-core") != NULL);
        printf("NOT CHECKED: adapters: %s\n", epw_last_error());
        return;
    }
    status = epw_mlx5_open(calls, &(epw_mlx5_options){.filter = "no_such_adapter"}, where, &adapter);
    const char *text = epw_last_error();
    CHECK_MSG(status == EPW_ERR_NO_PATH, "%s", text);
    CHECK_MSG(strstr(text, "there is no mlx5 adapter") != NULL || strstr(text, "matches none of") != NULL,
              "%s", text);
}

/* A software NIC never takes its place. */
static void a_fabric_without_the_adapter_it_asks_for_is_refused(void) {
    epw_fabric_options options = EPW_FABRIC_OPTIONS_INIT;
    epw_fabric *fabric = NULL;
    options.nic = EPW_NIC_MLX5;
    epw_status status = epw_fabric_create(&options, &fabric);
    if (status == EPW_OK) {
        printf("NOT CHECKED: what is said without an adapter: there is one\n");
        epw_fabric_destroy(fabric);
        return;
    }
    CHECK_MSG(status == EPW_ERR_NO_PATH && fabric == NULL, "%s", epw_last_error());
    CHECK_MSG(strstr(epw_last_error(), "mlx5") != NULL || strstr(epw_last_error(), "rdma-core") != NULL, "%s",
              epw_last_error());
}

int main(void) {
    the_binary_interface_is_that_of_the_headers();
    an_adapter_that_is_not_there_is_an_error_that_says_so();
    a_fabric_without_the_adapter_it_asks_for_is_refused();
    return check_result("mlx5_library");
}
