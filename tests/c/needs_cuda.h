/* Include this first in a program that needs a build with CUDA: in another build the program says so and is
 * skipped. */
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
