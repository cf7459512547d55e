/* Memory that a NIC may touch: what an entry or a frame names by a key is looked up here before a byte moves.
 *
 * A key is {serial 16 | slot 16}: the serial number is fresh each time a slot is used, so that a key of a
 * window that is gone opens no later one. */
#ifndef EPW_NIC_REGION_H
#define EPW_NIC_REGION_H

#include <stdbool.h>
#include <stdint.h>

/* Words, counts, rows and answers, the last three for each lane. */
#define EPW_STRETCHES_MAX 8

/* Bytes at an offset of a region. */
typedef struct epw_stretch {
    uint64_t offset, bytes;
} epw_stretch;

enum {
    EPW_REGION_READ = 1,  /* what this rank's own entries send, and what the peer with the key reads */
    EPW_REGION_WRITE = 2, /* what that peer writes, and where answers to this rank's own entries go */
    EPW_REGION_ATOMIC = 4 /* words that that peer adds to */
};

typedef struct epw_region {
    unsigned char *base; /* of offset 0 */
    uint32_t rights;     /* EPW_REGION_* */
    uint32_t domain;     /* of protection: pairs of the same one may use it */
    uint32_t count;      /* of stretches: all that the key opens */
    epw_stretch stretches[EPW_STRETCHES_MAX];
    /* Told of each aligned word of 8 bytes that was written here or added to, once it has this value, by an
     * exchange or an addition that is sequentially consistent. May be NULL. Called with the NIC locked. */
    void (*arrived)(void *context, uint64_t offset, uint64_t value);
    void *context;
    uint32_t carried_key; /* by which an adapter knows it that carries entries; 0: none does */
} epw_region;

/* Keys to a region: this rank's entries name its own bytes by the first, a peer's by the second. */
typedef struct epw_keys {
    uint32_t own, its;
    uint32_t carried; /* and so by the verbs wire; 0: not by that */
} epw_keys;

/* Of a fabric: each has keys of its own to a region. As many as lanes. */
enum { EPW_ADAPTERS_MAX = 2 };

typedef struct epw_region_slot {
    epw_region region;
    uint16_t serial;
    bool used;
} epw_region_slot;

/* With the NIC locked. */
typedef struct epw_regions {
    epw_region_slot *slots;
    uint32_t capacity;
} epw_regions;

/* The key of a new region, 0 if there is no memory or no slot left. `serial` of the first: any number. */
uint32_t epw_regions_add(epw_regions *regions, const epw_region *region);

/* False if the key opens nothing. */
bool epw_regions_drop(epw_regions *regions, uint32_t key);

void epw_regions_free(epw_regions *regions);

/* The region of a key, NULL if there is none. Until the next epw_regions_add. */
const epw_region *epw_regions_find(const epw_regions *regions, uint32_t key);

/* Where `bytes` bytes at `offset` lie; NULL if the region does not have them all in one stretch, or not with
 * these rights. */
unsigned char *epw_region_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes);

#endif
