#include "cublas.h"

#include "require.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The part of cuBLASLt's interface that is used, with its published values. */
enum { R_32F = 0, R_16BF = 14, R_8F_E4M3 = 28, COMPUTE_32F = 68, OP_T = 1 };
enum { DESC_TRANSA = 3, DESC_SM_COUNT_TARGET = 15, DESC_A_SCALE_POINTER = 17, DESC_B_SCALE_POINTER = 18 };
enum { DESC_FAST_ACCUM = 25, PREFERENCE_WORKSPACE_BYTES = 1, WORKSPACE = 64 << 20 };

typedef struct found {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} found;

struct cublas {
    void *library, *handle, *product, *factor, *result;
    void *a, *b, *c, *workspace, *one; /* device memory */
    found how;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*desc_create)(void **, int, int);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*desc_destroy)(void *);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*preference_create)(void **);
    int (*preference_set)(void *, int, const void *, size_t);
    int (*preference_destroy)(void *);
    int (*choose)(void *, void *, void *, void *, void *, void *, void *, int, found *, int *);
    int (*multiply)(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                    const void *, void *, void *, void *, const void *, void *, size_t, cudaStream_t);
};

static void must(int error, const char *what) {
    REQUIRE(error == 0, "%s: cuBLAS's error %d", what, error);
}

static void find(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    REQUIRE(*(void **)function != NULL, "cuBLAS's library has no %s", name);
}

static void find_all(cublas *c) {
    find(c->library, "cublasLtCreate", &c->create);
    find(c->library, "cublasLtDestroy", &c->destroy);
    find(c->library, "cublasLtMatmulDescCreate", &c->desc_create);
    find(c->library, "cublasLtMatmulDescSetAttribute", &c->desc_set);
    find(c->library, "cublasLtMatmulDescDestroy", &c->desc_destroy);
    find(c->library, "cublasLtMatrixLayoutCreate", &c->layout_create);
    find(c->library, "cublasLtMatrixLayoutDestroy", &c->layout_destroy);
    find(c->library, "cublasLtMatmulPreferenceCreate", &c->preference_create);
    find(c->library, "cublasLtMatmulPreferenceSetAttribute", &c->preference_set);
    find(c->library, "cublasLtMatmulPreferenceDestroy", &c->preference_destroy);
    find(c->library, "cublasLtMatmulAlgoGetHeuristic", &c->choose);
    find(c->library, "cublasLtMatmul", &c->multiply);
}

/* Numbers whose products neither vanish nor overflow, and of many bits: what they are costs power. */
static void *matrix(uint32_t n, int fp8) {
    size_t bytes = (size_t)n * n * (fp8 ? 1 : 2);
    unsigned char *host = malloc(bytes);
    void *at = NULL;
    uint64_t random = n;
    REQUIRE(host != NULL, "no memory");
    for (size_t i = 0; i < bytes; i++) {
        random = random * UINT64_C(6364136223846793005) + 1;
        host[i] = (unsigned char)(random >> 56);
        if (fp8) host[i] &= 0xbf;                                  /* below 2 */
        if (!fp8 && i % 2 == 1) host[i] = (host[i] & 0x80) | 0x3f; /* 0.5 to 2 */
    }
    REQUIRE_CUDA(cudaMalloc(&at, bytes));
    REQUIRE_CUDA(cudaMemcpy(at, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return at;
}

/* The first matrix is transposed, as 8-bit products have to be. */
static void describe(cublas *c, int fp8, uint32_t sms) {
    int32_t transposed = OP_T, target = (int32_t)sms;
    int8_t fast = 1;
    must(c->desc_create(&c->product, COMPUTE_32F, R_32F), "cublasLtMatmulDescCreate");
    must(c->desc_set(c->product, DESC_TRANSA, &transposed, sizeof transposed), "TRANSA");
    if (sms > 0)
        must(c->desc_set(c->product, DESC_SM_COUNT_TARGET, &target, sizeof target), "SM_COUNT_TARGET");
    if (!fp8) return;
    must(c->desc_set(c->product, DESC_FAST_ACCUM, &fast, sizeof fast), "FAST_ACCUM");
    must(c->desc_set(c->product, DESC_A_SCALE_POINTER, &c->one, sizeof c->one), "A_SCALE_POINTER");
    must(c->desc_set(c->product, DESC_B_SCALE_POINTER, &c->one, sizeof c->one), "B_SCALE_POINTER");
}

cublas *cublas_open(const char *library, uint32_t n, int fp8, uint32_t sms) {
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL), *preference = NULL;
    if (opened == NULL) return NULL;
    cublas *c = calloc(1, sizeof *c);
    size_t workspace = WORKSPACE;
    float one = 1.0f;
    int results = 0;
    REQUIRE(c != NULL, "no memory");
    c->library = opened;
    find_all(c);
    c->a = matrix(n, fp8);
    c->b = matrix(n, fp8);
    REQUIRE_CUDA(cudaMalloc(&c->c, (size_t)n * n * 2));
    REQUIRE_CUDA(cudaMalloc(&c->workspace, WORKSPACE));
    REQUIRE_CUDA(cudaMalloc(&c->one, sizeof one));
    REQUIRE_CUDA(cudaMemcpy(c->one, &one, sizeof one, cudaMemcpyHostToDevice));
    must(c->create(&c->handle), "cublasLtCreate");
    describe(c, fp8, sms);
    must(c->layout_create(&c->factor, fp8 ? R_8F_E4M3 : R_16BF, n, n, n), "cublasLtMatrixLayoutCreate");
    must(c->layout_create(&c->result, R_16BF, n, n, n), "cublasLtMatrixLayoutCreate");
    must(c->preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    must(c->preference_set(preference, PREFERENCE_WORKSPACE_BYTES, &workspace, sizeof workspace),
         "MAX_WORKSPACE_BYTES");
    must(c->choose(c->handle, c->product, c->factor, c->factor, c->result, c->result, preference, 1, &c->how,
                   &results),
         "cublasLtMatmulAlgoGetHeuristic");
    REQUIRE(results == 1, "cuBLAS has no way to multiply");
    must(c->preference_destroy(preference), "cublasLtMatmulPreferenceDestroy");
    return c;
}

void cublas_close(cublas *c) {
    must(c->layout_destroy(c->factor), "cublasLtMatrixLayoutDestroy");
    must(c->layout_destroy(c->result), "cublasLtMatrixLayoutDestroy");
    must(c->desc_destroy(c->product), "cublasLtMatmulDescDestroy");
    must(c->destroy(c->handle), "cublasLtDestroy");
    void *const memory[] = {c->a, c->b, c->c, c->workspace, c->one};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) REQUIRE_CUDA(cudaFree(memory[i]));
    free(c);
}

void cublas_multiply(const cublas *c, cudaStream_t stream) {
    const float one = 1.0f, zero = 0.0f;
    must(c->multiply(c->handle, c->product, &one, c->a, c->factor, c->b, c->factor, &zero, c->c, c->result,
                     c->c, c->result, &c->how.algorithm, c->workspace, WORKSPACE, stream),
         "cublasLtMatmul");
}
