/* SHA-256 (FIPS 180-4), HMAC-SHA256 over it (RFC 2104), and a constant-time comparison, with which processes
 * prove to each other that they know a key. In plain C, for some kilobytes now and then. */
#ifndef EPW_BASE_SHA256_H
#define EPW_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EPW_SHA256_BYTES 32 /* size of a digest and of an HMAC */
#define EPW_SHA256_BLOCK 64

/* A digest in progress: begin, add any number of times, end once. */
typedef struct epw_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes added so far */
    unsigned char block[EPW_SHA256_BLOCK];
} epw_sha256;

void epw_sha256_begin(epw_sha256 *hash);
void epw_sha256_add(epw_sha256 *hash, const void *bytes, size_t length);
void epw_sha256_end(epw_sha256 *hash, unsigned char digest[EPW_SHA256_BYTES]);

void epw_sha256_of(const void *bytes, size_t length, unsigned char digest[EPW_SHA256_BYTES]);

/* The same for an HMAC, with a key of any length. Ending it wipes the remains of the key. */
typedef struct epw_hmac {
    epw_sha256 inner, outer;
} epw_hmac;

void epw_hmac_begin(epw_hmac *mac, const void *key, size_t key_length);
void epw_hmac_add(epw_hmac *mac, const void *bytes, size_t length);
void epw_hmac_end(epw_hmac *mac, unsigned char code[EPW_SHA256_BYTES]);

void epw_hmac_of(const void *key, size_t key_length, const void *bytes, size_t length,
                 unsigned char code[EPW_SHA256_BYTES]);

/* Whether `length` bytes are equal, in a time that does not depend on where they differ. */
bool epw_bytes_equal(const void *a, const void *b, size_t length);

#endif
