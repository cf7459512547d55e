/* Numbers of 1 to 8 bytes in transit form: lowest byte first, at any address. */
#ifndef EPW_BASE_LITTLE_ENDIAN_H
#define EPW_BASE_LITTLE_ENDIAN_H

#include <stddef.h>
#include <stdint.h>

static inline void epw_put_little(unsigned char *at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t epw_take_little(const unsigned char *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

#endif
