/* Doorbell registers that are mapped for kernels, page by page, without a GPU: the source is compiled here
 * with CUDA's calls replaced by a list of what is mapped. The registers are those of an adapter in software,
 * of which two may lie in one page. */
#include "needs_cuda.h"

#ifdef EPW_CUDA

#include "check.h"
#include "device/cuda.h"
#include "nic/fake.h"
#include "nic/mlx5/parts.h"

#include <cuda_runtime_api.h>
#include <string.h>

enum { REGISTERS = 5, PAGES_MAX = 8, ORDINAL = 3 };

static const epw_where where = {"test", 0, -1};

static struct fake {
    void *mapped[PAGES_MAX];       /* NULL: a free place */
    int maps, unmaps;              /* calls so far */
    cudaError_t mapping, pointing; /* results of the calls */
    unsigned flags;                /* of the last mapping */
    int depth;
} fake;

static int place_of(const void *page) {
    int at = 0;
    while (at < PAGES_MAX && fake.mapped[at] != page) at++;
    return at;
}

static int mapped(void) {
    int count = 0;
    for (int i = 0; i < PAGES_MAX; i++) count += fake.mapped[i] != NULL;
    return count;
}

static cudaError_t fake_register(void *at, size_t bytes, unsigned flags) {
    CHECK(fake.depth == 1 && bytes == 4096 && (uintptr_t)at % 4096 == 0);
    CHECK_MSG(place_of(at) == PAGES_MAX, "%s", "a page is mapped twice");
    fake.maps++;
    fake.flags = flags;
    if (fake.mapping == cudaSuccess) fake.mapped[place_of(NULL)] = at;
    return fake.mapping;
}
static cudaError_t fake_unregister(void *at) {
    CHECK(fake.depth == 1 && place_of(at) < PAGES_MAX);
    fake.unmaps++;
    fake.mapped[place_of(at)] = NULL;
    return cudaSuccess;
}
/* To kernels a page is elsewhere than to the host. */
enum { SHIFT = 1 << 20 };
static cudaError_t fake_pointer(void **device, void *host, unsigned flags) {
    CHECK(flags == 0 && place_of(host) < PAGES_MAX);
    *device = (void *)((uintptr_t)host + SHIFT);
    return fake.pointing;
}
static cudaError_t fake_last_error(void) {
    return cudaSuccess;
}
static epw_status fake_enter(int32_t ordinal, epw_where from, epw_cuda_scope *scope) {
    (void)from, (void)scope;
    CHECK(ordinal == ORDINAL);
    fake.depth++;
    return EPW_OK;
}
static void fake_leave(const epw_cuda_scope *scope) {
    (void)scope;
    fake.depth--;
}
static epw_status fake_fail(int error, epw_where from, const char *call) {
    return epw_fail(EPW_ERR_SYSTEM, from, "%s: %d", call, error);
}
static const char *fake_name(cudaError_t error) {
    return error == cudaErrorNotPermitted ? "cudaErrorNotPermitted" : "another error";
}

#define cudaHostRegister         fake_register
#define cudaHostUnregister       fake_unregister
#define cudaHostGetDevicePointer fake_pointer
#define cudaGetLastError         fake_last_error
#define cudaGetErrorName         fake_name
#define epw_cuda_enter_relaxed   fake_enter
#define epw_cuda_leave_relaxed   fake_leave
#define epw_fail_cuda            fake_fail
#define epw_cuda_map_register    tested_map /* the library has its own copy */
#define epw_cuda_unmap_register  tested_unmap
#include "../../c/device/cuda_registers.c"

/* ---- an adapter's registers ---- */

typedef struct registers {
    epw_fake *adapter;
    epw_mlx5 *opened;
    epw_mlx5_spare *of[REGISTERS];
} registers;

static registers take(uint64_t lacks) {
    registers r;
    memset(&fake, 0, sizeof fake);
    CHECK_OK(epw_fake_open(&(epw_fake_options){.lacks = lacks}, where, &r.adapter));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(r.adapter), &(epw_mlx5_options){0}, where, &r.opened));
    for (int i = 0; i < REGISTERS; i++) CHECK_OK(epw_mlx5_take_register(r.opened, where, &r.of[i]));
    return r;
}

static void give_back(registers *r) {
    CHECK(mapped() == 0 && fake.depth == 0);
    for (int i = 0; i < REGISTERS; i++) epw_mlx5_give_register(r->opened, r->of[i]);
    epw_mlx5_close(r->opened);
    CHECK(epw_fake_count(r->adapter).uars == 0);
    epw_fake_close(r->adapter);
}

static uint64_t *register_of(const registers *r, int i) {
    return r->of[i]->uar.reg;
}

/* ---- tests ---- */

/* A page is mapped for its first register, and stays mapped until the last one has been unmapped. */
static void a_page_is_mapped_while_one_of_its_registers_is(uint64_t lacks, int pages) {
    registers r = take(lacks);
    for (int round = 0; round < 2; round++) {
        uint64_t *at = NULL;
        for (int i = 0; i < REGISTERS; i++) {
            CHECK_OK(tested_map(ORDINAL, register_of(&r, i), false, where, &at));
            CHECK((uintptr_t)at == (uintptr_t)register_of(&r, i) + SHIFT);
            CHECK(fake.flags ==
                  (cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory));
        }
        CHECK_MSG(mapped() == pages && fake.maps == (round + 1) * pages, "%d pages, %d calls", mapped(),
                  fake.maps);
        /* By another buffer, too. */
        for (int i = 0; i < REGISTERS; i++)
            CHECK_OK(tested_map(ORDINAL, register_of(&r, i), false, where, &at));
        for (int i = 0; i < REGISTERS; i++) tested_unmap(ORDINAL, register_of(&r, i));
        CHECK(mapped() == pages && fake.maps == (round + 1) * pages && fake.unmaps == round * pages);
        for (int i = REGISTERS - 1; i >= 0; i--) {
            tested_unmap(ORDINAL, register_of(&r, i));
            int left = pages == REGISTERS ? i : (i + 1) / 2;
            CHECK_MSG(mapped() == left, "%d pages behind register %d, not %d", mapped(), i, left);
        }
        CHECK(fake.unmaps == (round + 1) * pages);
    }
    tested_unmap(ORDINAL, register_of(&r, 0)); /* one that is not mapped */
    give_back(&r);
}

/* Those of an adapter in software are ordinary memory. */
static void registers_in_memory_are_mapped_as_memory(void) {
    registers r = take(0);
    uint64_t *at = NULL;
    CHECK_OK(tested_map(ORDINAL, register_of(&r, 0), true, where, &at));
    CHECK(fake.flags == (cudaHostRegisterPortable | cudaHostRegisterMapped));
    tested_unmap(ORDINAL, register_of(&r, 0));
    give_back(&r);
}

static void a_driver_that_maps_none_is_said(void) {
    registers r = take(UINT64_C(1) << EPW_FAKE_NO_OWN_PAGE);
    uint64_t *at = NULL;
    fake.mapping = cudaErrorNotPermitted;
    for (int i = 0; i < 2; i++)
        CHECK(tested_map(ORDINAL, register_of(&r, i), false, where, &at) == EPW_ERR_NO_PATH);
    CHECK_MSG(
        strcmp(epw_last_error(),
               "test: rank 0: the GPU's driver does not map the adapter's doorbell registers for kernels "
               "(cudaErrorNotPermitted): load it with PeerMappingOverride=1, or let a thread of the host "
               "ring (EPWIRE_DOORBELLS=host)") == 0,
        "%s", epw_last_error());
    CHECK(at == NULL && fake.maps == 2 && mapped() == 0);
    fake.mapping = cudaSuccess;
    give_back(&r);
}

/* The page stays mapped only if another register of it is in use. */
static void a_page_without_an_address_is_unmapped(void) {
    registers r = take(UINT64_C(1) << EPW_FAKE_NO_OWN_PAGE);
    uint64_t *at = NULL;
    fake.pointing = cudaErrorInvalidValue;
    CHECK(tested_map(ORDINAL, register_of(&r, 0), false, where, &at) == EPW_ERR_SYSTEM && mapped() == 0);
    CHECK(strcmp(epw_last_error(), "test: rank 0: cudaHostGetDevicePointer of a doorbell register: 1") == 0);
    fake.pointing = cudaSuccess;
    CHECK_OK(tested_map(ORDINAL, register_of(&r, 0), false, where, &at));
    fake.pointing = cudaErrorInvalidValue;
    CHECK(tested_map(ORDINAL, register_of(&r, 1), false, where, &at) == EPW_ERR_SYSTEM && mapped() == 1);
    fake.pointing = cudaSuccess;
    tested_unmap(ORDINAL, register_of(&r, 0));
    give_back(&r);
}

int main(void) {
    a_page_is_mapped_while_one_of_its_registers_is(0, REGISTERS);
    a_page_is_mapped_while_one_of_its_registers_is(UINT64_C(1) << EPW_FAKE_NO_OWN_PAGE, (REGISTERS + 1) / 2);
    registers_in_memory_are_mapped_as_memory();
    a_driver_that_maps_none_is_said();
    a_page_without_an_address_is_unmapped();
    return check_result("mapped_registers");
}

#endif
