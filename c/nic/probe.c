/* See probe.h. */
#include "nic/probe.h"

#include "device/cuda.h"
#include "device/cuda_rdma.h"
#include "nic/syndrome.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

void epw_probe_find(epw_probe_list *list, epw_probe_verdict verdict, const char *name, const char *remedy,
                    const char *format, ...) {
    if (list->count == EPW_PROBE_FINDINGS_MAX) return;
    epw_probe_finding *f = &list->out[list->count++];
    va_list arguments;
    f->verdict = verdict;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->remedy, sizeof f->remedy, "%s", remedy);
    va_start(arguments, format);
    vsnprintf(f->text, sizeof f->text, format, arguments);
    va_end(arguments);
}

void epw_probe_find_error(epw_probe_list *list, epw_probe_verdict verdict, const char *name) {
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail);
    epw_probe_find(list, verdict, name, "", "%s", detail.text);
}

/* ---- host memory ---- */

/* Adapters take memory by whole pages, which are not of 4 KiB everywhere. */
static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *epw_probe_page(void) {
    void *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return page != MAP_FAILED ? page : NULL;
}

void epw_probe_free_page(void *page) {
    munmap(page, page_bytes());
}

static int try_page(const epw_mlx5_calls *calls, void *device, void *pd, void *page) {
    epw_mlx5_umem umem;
    epw_mlx5_region region;
    int err = calls->umem != NULL ? calls->umem(device, page, PAGE, -1, &umem) : 0;
    if (err == 0 && calls->umem != NULL) calls->free_umem(umem.handle);
    if (err == 0)
        err =
            calls->register_memory(pd, page, PAGE, 0, EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE, &region);
    if (err == 0) calls->deregister(region.handle);
    return err;
}

void epw_probe_host_memory(epw_probe_list *list, const epw_mlx5_calls *calls, void *device, void *pd) {
    static const char name[] = "host memory";
    void *page = epw_probe_page();
    if (page == NULL) {
        epw_probe_find(list, EPW_PROBE_UNKNOWN, name, "", "there is no memory to try it with");
        return;
    }
    int err = try_page(calls, device, pd, page);
    epw_probe_free_page(page);
    if (err == 0) {
        epw_probe_find(list, EPW_PROBE_OK, name, "", "registered for queues and for windows");
    } else {
        epw_probe_find(list, EPW_PROBE_MISSING, name,
                       err == ENOMEM ? "raise the limit of locked memory (ulimit -l)" : "see dmesg",
                       "not registered (errno %d)", err);
    }
}

/* ---- GPU memory ---- */

static void tell_way(epw_probe_list *list, const char *what, const char *way, const char *remedy, int err,
                     bool other) {
    char name[EPW_PROBE_NAME];
    snprintf(name, sizeof name, "%s by %s", what, way);
    if (err == 0) {
        epw_probe_find(list, EPW_PROBE_OK, name, "", "registered");
    } else if (other) {
        epw_probe_find(list, EPW_PROBE_OK, name, "", "not registered (errno %d), nor needed", err);
    } else {
        epw_probe_find(list, EPW_PROBE_WARNING, name, remedy, "not registered (errno %d)", err);
    }
}

void epw_probe_ways(epw_probe_list *list, const char *what, const char *kernel, int by_descriptor,
                    int by_address) {
    char remedy[EPW_PROBE_REMEDY];
    snprintf(remedy, sizeof remedy, "%s or newer with the open GPU kernel modules", kernel);
    tell_way(list, what, "dma-buf", remedy, by_descriptor, by_address == 0);
    tell_way(list, what, "nvidia_peermem", "modprobe nvidia_peermem", by_address, by_descriptor == 0);
}

#ifdef EPW_CUDA

/* As epw_mlx5_register_far does; `dmabuf` -1: by address. */
static int try_window(const epw_mlx5_calls *calls, void *pd, void *address, int dmabuf) {
    const uint32_t rights = EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE;
    epw_mlx5_region region;
    int err = dmabuf >= 0 ? calls->register_descriptor(pd, dmabuf, 0, PAGE, 0, rights, &region)
                          : calls->register_memory(pd, address, PAGE, 0, rights, &region);
    if (err == 0) calls->deregister(region.handle);
    return err;
}

static void tell_order(epw_probe_list *list, bool reached, bool ordered) {
    static const char name[] = "GPU windows";
    if (reached && ordered) {
        epw_probe_find(list, EPW_PROBE_OK, name, "",
                       "peers may write to them: the GPU keeps the order of an adapter's writes");
    } else if (reached) {
        epw_probe_find(list, EPW_PROBE_WARNING, name, "EPWIRE_RINGS=host, or auto, which does so by itself",
                       "peers write to host memory: the GPU does not keep the order of an adapter's writes "
                       "(GPU_DIRECT_RDMA_WRITES_ORDERING)");
    } else {
        epw_probe_find(list, EPW_PROBE_WARNING, name, "EPWIRE_RINGS=host, or auto, which does so by itself",
                       "peers write to host memory: the adapter registers none of the GPU's");
    }
}

void epw_probe_windows(epw_probe_list *list, const epw_mlx5_calls *calls, void *pd, int32_t gpu) {
    static const char name[] = "GPU windows";
    static const epw_where where = {"doctor", -1, -1};
    epw_rdma_memory memory;
    if (gpu < 0) {
        epw_probe_find(list, EPW_PROBE_UNKNOWN, name, "", EPW_PROBE_NO_GPU);
        return;
    }
    if (epw_cuda_open(gpu, where) != EPW_OK || epw_cuda_rdma_alloc(gpu, PAGE, where, &memory) != EPW_OK) {
        epw_probe_find_error(list, EPW_PROBE_UNKNOWN, name);
        return;
    }
    int by_descriptor = memory.dmabuf >= 0 ? try_window(calls, pd, NULL, memory.dmabuf) : EOPNOTSUPP;
    int by_address = try_window(calls, pd, memory.address, -1);
    epw_cuda_rdma_free(gpu, &memory);
    epw_probe_ways(list, name, "Linux 5.12", by_descriptor, by_address);
    tell_order(list, by_descriptor == 0 || by_address == 0, epw_cuda_rdma_is_ordered(gpu));
}

#else

void epw_probe_windows(epw_probe_list *list, const epw_mlx5_calls *calls, void *pd, int32_t gpu) {
    (void)calls, (void)pd;
    epw_probe_find(list, EPW_PROBE_UNKNOWN, "GPU windows", "", "%s",
                   gpu < 0 ? EPW_PROBE_NO_GPU : EPW_NO_CUDA);
}

#endif

/* ---- a word to itself ---- */

void epw_probe_find_failed(epw_probe_list *list, const char *name, uint32_t syndrome, uint32_t vendor) {
    const char *remedy = epw_syndrome_remedy(syndrome, true);
    epw_probe_find(list, EPW_PROBE_MISSING, name, *remedy != '\0' ? remedy + strlen(": ") : "",
                   "a word sent to itself failed: %s (syndrome 0x%02x, vendor 0x%02x)",
                   epw_syndrome_text(syndrome), syndrome, vendor);
}

void epw_probe_find_unheard(epw_probe_list *list, const char *name) {
    epw_probe_find(list, EPW_PROBE_MISSING, name,
                   "some switches send nothing back to its sender: try two hosts; else see dmesg",
                   "a word sent to itself has neither arrived within %d ms nor failed", EPW_PROBE_WAIT_MS);
}
