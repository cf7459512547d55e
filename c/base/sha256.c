/* See sha256.h. */
#include "base/sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t value, int by) {
    return value >> by | value << (32 - by);
}

/* The block function; names as in FIPS 180-4, 6.2.2. */
static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        uint32_t choice = (e & f) ^ (~e & g);
        uint32_t t1 = h + sum1 + choice + round_constants[t] + w[t];
        uint32_t sum0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
        uint32_t t2 = sum0 + majority;
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void epw_sha256_begin(epw_sha256 *hash) {
    /* The first 32 bits of the fractional parts of the square roots of the first eight primes. */
    *hash = (epw_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                   0x1f83d9ab, 0x5be0cd19}};
}

void epw_sha256_add(epw_sha256 *hash, const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    while (length > 0) {
        size_t filled = (size_t)(hash->length % EPW_SHA256_BLOCK), part = EPW_SHA256_BLOCK - filled;
        if (part > length) part = length;
        memcpy(hash->block + filled, at, part);
        hash->length += part;
        at += part;
        length -= part;
        if (hash->length % EPW_SHA256_BLOCK == 0) compress(hash->state, hash->block);
    }
}

void epw_sha256_end(epw_sha256 *hash, unsigned char digest[EPW_SHA256_BYTES]) {
    static const unsigned char padding[EPW_SHA256_BLOCK] = {0x80};
    uint64_t bits = hash->length * 8;
    size_t filled = (size_t)(hash->length % EPW_SHA256_BLOCK);
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    epw_sha256_add(hash, padding, (filled < 56 ? 56 : 56 + EPW_SHA256_BLOCK) - filled);
    epw_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < EPW_SHA256_BYTES; i++)
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void epw_sha256_of(const void *bytes, size_t length, unsigned char digest[EPW_SHA256_BYTES]) {
    epw_sha256 hash;
    epw_sha256_begin(&hash);
    epw_sha256_add(&hash, bytes, length);
    epw_sha256_end(&hash, digest);
}

void epw_hmac_begin(epw_hmac *mac, const void *key, size_t key_length) {
    unsigned char block[EPW_SHA256_BLOCK] = {0}, inner[EPW_SHA256_BLOCK], outer[EPW_SHA256_BLOCK];
    if (key_length > sizeof block) {
        epw_sha256_of(key, key_length, block);
    } else if (key_length > 0) {
        memcpy(block, key, key_length);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    epw_sha256_begin(&mac->inner);
    epw_sha256_add(&mac->inner, inner, sizeof inner);
    epw_sha256_begin(&mac->outer);
    epw_sha256_add(&mac->outer, outer, sizeof outer);
    explicit_bzero(block, sizeof block);
    explicit_bzero(inner, sizeof inner);
    explicit_bzero(outer, sizeof outer);
}

void epw_hmac_add(epw_hmac *mac, const void *bytes, size_t length) {
    epw_sha256_add(&mac->inner, bytes, length);
}

void epw_hmac_end(epw_hmac *mac, unsigned char code[EPW_SHA256_BYTES]) {
    unsigned char digest[EPW_SHA256_BYTES];
    epw_sha256_end(&mac->inner, digest);
    epw_sha256_add(&mac->outer, digest, sizeof digest);
    epw_sha256_end(&mac->outer, code);
    explicit_bzero(mac, sizeof *mac);
}

void epw_hmac_of(const void *key, size_t key_length, const void *bytes, size_t length,
                 unsigned char code[EPW_SHA256_BYTES]) {
    epw_hmac mac;
    epw_hmac_begin(&mac, key, key_length);
    epw_hmac_add(&mac, bytes, length);
    epw_hmac_end(&mac, code);
}

bool epw_bytes_equal(const void *a, const void *b, size_t length) {
    const volatile unsigned char *left = a, *right = b;
    unsigned char differs = 0;
    for (size_t i = 0; i < length; i++) differs |= left[i] ^ right[i];
    return differs == 0;
}
