/* Random bytes for readers of frames. */
#ifndef EPW_TESTS_GARBAGE_H
#define EPW_TESTS_GARBAGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Fills at least 4 bytes, the same for the same seed; most begin as frames do. */
static inline void fill_with_garbage(unsigned char *bytes, size_t length, uint32_t seed) {
    uint32_t x = seed * 2654435761u;
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(x >> 24);
    }
    bytes[0] = (unsigned char)(seed % 9);
    if (seed % 2) memset(bytes + 1, 0, 3);
}

#endif
