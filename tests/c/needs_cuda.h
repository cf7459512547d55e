/* First in a program that is nothing without CUDA: built without, it says so and is skipped. */
#ifndef EPW_TESTS_NEEDS_CUDA_H
#define EPW_TESTS_NEEDS_CUDA_H

#define SKIPPED 77

#ifndef EPW_CUDA
#include <stdio.h>

int main(void) {
    puts("ignored: built without CUDA");
    return SKIPPED;
}
#endif

#endif
