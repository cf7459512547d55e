/* Doorbell registers of an adapter. A destroyed queue pair returns its register to the adapter, not to the
 * device: a GPU that has mapped the register keeps the mapping, because removing it would wait for
 * kernels. */
#include "nic/mlx5/parts.h"

#include "base/log.h"

#include <stdlib.h>

/* Logs it if no register was worse so far; `err`: of the best kind. */
static void note_kind(epw_mlx5 *a, epw_mlx5_uar_kind kind, int err, epw_where where) {
    static const char *const texts[] = {[EPW_MLX5_UAR_OWN] = "",
                                        [EPW_MLX5_UAR_SHARED] = "all queue pairs share one doorbell register",
                                        [EPW_MLX5_UAR_BF] = "two doorbell registers share a page"};
    unsigned worst = atomic_load_explicit(&a->worst_uar, memory_order_relaxed);
    do {
        if (worst >= kind) return;
    } while (!atomic_compare_exchange_weak_explicit(&a->worst_uar, &worst, kind, memory_order_relaxed,
                                                    memory_order_relaxed));
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){where.op, where.rank, -1},
            "%s: %s (errno %d): install rdma-core 45 or newer, and a newer kernel", a->name.text, texts[kind],
            err);
}

static epw_status fresh(epw_mlx5 *a, epw_mlx5_uar *out, epw_where where) {
    int err = 0, first = 0;
    for (epw_mlx5_uar_kind kind = EPW_MLX5_UAR_OWN; kind < EPW_MLX5_UAR_KINDS; kind++) {
        err = a->calls->uar(a->device, kind, out);
        if (err == 0) {
            note_kind(a, kind, first, where);
            return EPW_OK;
        }
        if (first == 0) first = err;
    }
    return epw_fail_errno(err, where,
                          "%s gives no doorbell register of any kind (the first kind: errno %d): use fewer "
                          "buffers or peers, or a newer kernel",
                          a->name.text, first);
}

epw_status epw_mlx5_take_register(epw_mlx5 *a, epw_where where, epw_mlx5_spare **out) {
    pthread_mutex_lock(&a->pairs_lock);
    epw_mlx5_spare *spare = a->spares;
    if (spare != NULL) a->spares = spare->next;
    pthread_mutex_unlock(&a->pairs_lock);
    epw_status status = EPW_OK;
    if (spare == NULL) {
        spare = calloc(1, sizeof *spare);
        if (spare == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a doorbell register");
        status = fresh(a, &spare->uar, where);
    }
    if (status == EPW_OK) {
        *out = spare;
    } else {
        free(spare);
    }
    return status;
}

void epw_mlx5_give_register(epw_mlx5 *a, epw_mlx5_spare *spare) {
    if (spare == NULL) return;
    pthread_mutex_lock(&a->pairs_lock);
    spare->next = a->spares;
    a->spares = spare;
    pthread_mutex_unlock(&a->pairs_lock);
}

void epw_mlx5_free_registers(epw_mlx5 *a) {
    while (a->spares != NULL) {
        epw_mlx5_spare *spare = a->spares;
        a->spares = spare->next;
        a->calls->free_uar(spare->uar.handle);
        free(spare);
    }
}
