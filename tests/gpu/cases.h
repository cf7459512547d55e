/* Programs of named cases. Each case runs in a process of its own, because it may leave the GPU's memory or a
 * lane in a state that no other case can use. `--case NAME` runs one case in this process. */
#ifndef EPW_TESTS_CASES_H
#define EPW_TESTS_CASES_H

#include "require.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

typedef struct gpu_case {
    const char *name;
    void (*run)(uint32_t gpus);
    uint32_t gpus, seconds; /* GPUs that the case needs; seconds that it may take */
} gpu_case;

/* The number of GPUs; 0, with the reason printed, if there is none. */
static inline uint32_t cases_gpus(void) {
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess || gpus == 0) {
        printf("ignored: no GPU: %s\n", error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
        return 0;
    }
    return (uint32_t)gpus;
}

static inline int cases_run_one(const char *program, const gpu_case *c) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);      /* lazy loading could wait for kernels that wait for a
                                                     * peer */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* enough hardware queues that a waiting kernel blocks no
                                                     * other stream */
    alarm(c->seconds);                              /* after that it hangs, and SIGALRM ends it */
    uint32_t gpus = cases_gpus();
    if (gpus < c->gpus) {
        printf("%s: ignored %s: %u GPUs where %u are needed\n", program, c->name, gpus, c->gpus);
        return EXIT_SKIPPED;
    }
    uint64_t began = now_ns();
    c->run(gpus);
    printf("%s: OK %s: seconds=%.1f\n", program, c->name, (double)(now_ns() - began) * 1e-9);
    return 0;
}

/* The rest of main. The program counts as ignored only if all its cases are. */
static inline int cases_main(const char *program, const gpu_case *cases, size_t count, int argc,
                             char **argv) {
    int failed = 0, passed = 0;
    const char *only = argc == 3 && strcmp(argv[1], "--case") == 0 ? argv[2] : NULL;
    if (argc > 1 && only == NULL) {
        fprintf(stderr, "%s [--case NAME], of these:\n", program);
        for (size_t i = 0; i < count; i++) fprintf(stderr, "  %s\n", cases[i].name);
        return 2;
    }
    for (size_t i = 0; i < count; i++) {
        if (only != NULL && strcmp(only, cases[i].name) == 0) return cases_run_one(program, &cases[i]);
        if (only != NULL) continue;
        fflush(NULL);
        pid_t child = fork(); /* before any use of CUDA */
        REQUIRE(child >= 0, "fork");
        if (child == 0) {
            execv("/proc/self/exe", (char *[]){argv[0], "--case", (char *)cases[i].name, NULL});
            _exit(127);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child, "waitpid");
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (code == 0) passed++;
        if (code == 0 || code == EXIT_SKIPPED) continue;
        printf("%s: FAILED %s: %s %d\n", program, cases[i].name, code > 128 ? "ended by signal" : "exit code",
               code > 128 ? code - 128 : code);
        failed++;
    }
    if (only != NULL) {
        fprintf(stderr, "no case is called %s\n", only);
        return 2;
    }
    return failed ? 1 : passed ? 0 : EXIT_SKIPPED;
}

#endif
