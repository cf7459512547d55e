/* See cuda_registers.h. */
#include "device/cuda_registers.h"

#ifdef EPW_CUDA

#include "device/cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

enum { PAGE = 4096 };

typedef struct page {
    struct page *next;
    unsigned char *base;
    uint32_t users;
} page;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static page *pages;

static page **find(const unsigned char *base) {
    page **at = &pages;
    while (*at != NULL && (*at)->base != base) at = &(*at)->next;
    return at;
}

static unsigned char *page_of(uint64_t *reg) {
    return (unsigned char *)reg - (uintptr_t)reg % PAGE;
}

/* Called with the lock held, in a scope of the GPU. Maps the page for all GPUs of the process. */
static epw_status add(unsigned char *base, bool in_memory, epw_where where, page **out) {
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    page *p = calloc(1, sizeof *p);
    if (p == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a doorbell register");
    cudaError_t error = cudaHostRegister(base, PAGE, in_memory ? flags : flags | cudaHostRegisterIoMemory);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        free(p);
        return epw_fail(
            EPW_ERR_NO_PATH, where,
            "the GPU's driver does not map the adapter's doorbell registers for kernels (%s): load "
            "it with PeerMappingOverride=1, or let a thread of the host ring "
            "(EPWIRE_DOORBELLS=host)",
            cudaGetErrorName(error));
    }
    *p = (page){.next = pages, .base = base};
    pages = p;
    *out = p;
    return EPW_OK;
}

/* Called with the lock held, in a scope of a GPU. */
static void drop_unused(page **at) {
    page *p = *at;
    if (p->users > 0) return;
    *at = p->next;
    if (cudaHostUnregister(p->base) != cudaSuccess) (void)cudaGetLastError();
    free(p);
}

epw_status epw_cuda_map_register(int32_t ordinal, uint64_t *reg, bool in_memory, epw_where where,
                                 uint64_t **out) {
    epw_cuda_scope scope = {0};
    epw_status status = epw_cuda_enter_relaxed(ordinal, where, &scope);
    if (status != EPW_OK) return status;
    unsigned char *base = page_of(reg);
    void *device = NULL;
    pthread_mutex_lock(&lock);
    page *p = *find(base);
    if (p == NULL) status = add(base, in_memory, where, &p);
    if (status == EPW_OK) {
        cudaError_t error = cudaHostGetDevicePointer(&device, base, 0);
        if (error != cudaSuccess) {
            status = epw_fail_cuda(error, where, "cudaHostGetDevicePointer of a doorbell register");
            drop_unused(find(base));
        } else {
            p->users++;
        }
    }
    pthread_mutex_unlock(&lock);
    epw_cuda_leave_relaxed(&scope);
    if (status == EPW_OK)
        *out = (uint64_t *)(void *)((unsigned char *)device + ((unsigned char *)reg - base));
    return status;
}

void epw_cuda_unmap_register(int32_t ordinal, uint64_t *reg) {
    static const epw_where releasing = {"destroy", -1, -1};
    epw_cuda_scope scope = {0};
    if (epw_cuda_enter_relaxed(ordinal, releasing, &scope) != EPW_OK) return;
    pthread_mutex_lock(&lock);
    page **at = find(page_of(reg));
    if (*at != NULL) {
        (*at)->users--;
        drop_unused(at);
    }
    pthread_mutex_unlock(&lock);
    epw_cuda_leave_relaxed(&scope);
}

#endif
