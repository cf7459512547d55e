/* Conditions that must hold for a GPU test to continue. If one fails, the program prints it and ends: peers,
 * and the process that started the test, then give this rank up. */
#ifndef EPW_TESTS_REQUIRE_H
#define EPW_TESTS_REQUIRE_H

#include "epwire.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77 };

#define MS UINT64_C(1000000)

#define REQUIRE(condition, ...)                                                                              \
    do {                                                                                                     \
        if (condition) break;                                                                                \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                      \
        fprintf(stderr, __VA_ARGS__);                                                                        \
        fputc('\n', stderr);                                                                                 \
        _exit(1);                                                                                            \
    } while (0)
#define REQUIRE_OK(call) REQUIRE((call) == EPW_OK, "%s", epw_last_error())
#define REQUIRE_CUDA(call)                                                                                   \
    do {                                                                                                     \
        cudaError_t error_ = (cudaError_t)(call);                                                            \
        REQUIRE(error_ == cudaSuccess, "%s (%s)", cudaGetErrorString(error_), #call);                        \
    } while (0)

static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

/* Waits until the stream, or the event, has completed; after timeout_ns the program ends. */
static inline void await_event(cudaEvent_t event, uint64_t timeout_ns, const char *what) {
    uint64_t began = now_ns();
    for (;;) {
        cudaError_t state = cudaEventQuery(event);
        if (state == cudaSuccess) return;
        REQUIRE(state == cudaErrorNotReady, "%s: %s", what, cudaGetErrorString(state));
        REQUIRE(now_ns() - began < timeout_ns, "%s: hangs, nothing for %llu ms", what,
                (unsigned long long)(timeout_ns / MS));
        if (now_ns() - began > MS) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

static inline void await_stream(cudaStream_t stream, uint64_t timeout_ns, const char *what) {
    uint64_t began = now_ns();
    for (;;) {
        cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaSuccess) return;
        REQUIRE(state == cudaErrorNotReady, "%s: %s", what, cudaGetErrorString(state));
        REQUIRE(now_ns() - began < timeout_ns, "%s: hangs, nothing for %llu ms", what,
                (unsigned long long)(timeout_ns / MS));
        if (now_ns() - began > MS) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}

/* Ends the program unless exactly these peers are suspects, and exactly those of them were silent. */
#define REQUIRE_SUSPECTS(buffer, suspects_, silent_)                                                         \
    do {                                                                                                     \
        epw_membership now_ = EPW_MEMBERSHIP_INIT;                                                           \
        REQUIRE_OK(epw_buffer_membership((buffer), &now_));                                                  \
        REQUIRE(now_.suspects.bits[0] == (suspects_) && now_.silent.bits[0] == (silent_),                    \
                "suspects %llx, silent %llx", (unsigned long long)now_.suspects.bits[0],                     \
                (unsigned long long)now_.silent.bits[0]);                                                    \
    } while (0)

/* What a kernel was told of the ranks, in pinned memory, which nothing writes now. */
static inline void require_told(const int32_t *told, uint32_t ranks, uint64_t members, uint64_t suspects,
                                const char *what) {
    for (uint32_t r = 0; r < ranks; r++) {
        int32_t wanted = !(members >> r & 1) ? -1 : (int32_t)(suspects >> r & 1);
        REQUIRE(told[r] == wanted, "%s: rank %u: %d, not %d", what, r, (int)told[r], (int)wanted);
    }
}

#endif
