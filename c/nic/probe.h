/* What the doctor finds about an adapter: one finding for each prerequisite. Not part of the public
 * interface. */
#ifndef EPW_NIC_PROBE_H
#define EPW_NIC_PROBE_H

#include "base/status.h"
#include "nic/mlx5/calls.h"

enum { EPW_PROBE_FINDINGS_MAX = 12, EPW_PROBE_NAME = 32, EPW_PROBE_TEXT = 512, EPW_PROBE_REMEDY = 256 };

typedef enum epw_probe_verdict {
    EPW_PROBE_OK,
    EPW_PROBE_UNKNOWN, /* it could not be examined */
    EPW_PROBE_WARNING, /* queues work without it, but slower */
    EPW_PROBE_MISSING  /* queues do not work without it */
} epw_probe_verdict;

typedef struct epw_probe_finding {
    uint32_t verdict;
    char name[EPW_PROBE_NAME];
    char text[EPW_PROBE_TEXT];
    char remedy[EPW_PROBE_REMEDY]; /* "": the text has it, or there is nothing to do */
} epw_probe_finding;

typedef struct epw_probe_list {
    uint32_t count;
    epw_probe_finding *out; /* [EPW_PROBE_FINDINGS_MAX] */
} epw_probe_list;

/* Adds a finding. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
void
epw_probe_find(epw_probe_list *list, epw_probe_verdict verdict, const char *name, const char *remedy,
               const char *format, ...);

/* Adds one whose text is this thread's last error, without the name of the operation. */
void epw_probe_find_error(epw_probe_list *list, epw_probe_verdict verdict, const char *name);

/* ---- what adapters of all makes have in common ---- */

/* Whether the adapter registers memory of this process. */
void epw_probe_host_memory(epw_probe_list *list, const epw_mlx5_calls *calls, void *device, void *pd);

/* Whether peers may write to windows in the memory of this GPU (-1: there is none): each way in which the
 * adapter may register it, and whether the GPU keeps the order of what arrives. */
void epw_probe_windows(epw_probe_list *list, const epw_mlx5_calls *calls, void *pd, int32_t gpu);

#define EPW_PROBE_NO_GPU "no GPU of this process to try it with"

/* The two ways to `what` in GPU memory, by the errno of each: by dma-buf, for which a kernel such as
 * "Linux 6.0" is needed, and by address. One of them is enough. */
void epw_probe_ways(epw_probe_list *list, const char *what, const char *kernel, int by_descriptor,
                    int by_address);

/* A zeroed page of this process, as a whole as adapters take memory; NULL: there is no memory. */
void *epw_probe_page(void);
void epw_probe_free_page(void *page);

/* A word that the adapter sends to itself has failed, or not arrived within EPW_PROBE_WAIT_MS. The adapter is
 * given EPW_PROBE_RETRIES_NS for its retries, which last up to four times as long, so that it gives up
 * first. */
enum { EPW_PROBE_WAIT_MS = 1000 };
#define EPW_PROBE_RETRIES_NS (UINT64_C(1000000) * EPW_PROBE_WAIT_MS / 8)
void epw_probe_find_failed(epw_probe_list *list, const char *name, uint32_t syndrome, uint32_t vendor);
void epw_probe_find_unheard(epw_probe_list *list, const char *name);

#endif
