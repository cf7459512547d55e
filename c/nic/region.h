/* Memory that a NIC may access: what an entry or a frame names by a key is looked up here before any byte
 * moves.
 *
 * A key is {serial 16 | slot 16}: the serial changes each time a slot is used, so that the key of a window
 * that is gone does not open a later one. */
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
    EPW_REGION_READ = 1,  /* for sending by this rank's own entries, and for reading by the peer with the
                             key */
    EPW_REGION_WRITE = 2, /* for writing by that peer, and for answers to this rank's own entries */
    EPW_REGION_ATOMIC = 4 /* for atomic additions by that peer */
};

typedef struct epw_region {
    unsigned char *base; /* of offset 0 */
    uint32_t rights;     /* EPW_REGION_* */
    uint32_t domain;     /* protection domain: queue pairs of the same domain may use it */
    uint32_t count;      /* the stretches that the key opens */
    epw_stretch stretches[EPW_STRETCHES_MAX];
    /* Called for each aligned 8-byte word that was written here or added to, once it has this value, by a
     * sequentially consistent exchange or addition. May be NULL. Called with the NIC locked. */
    void (*arrived)(void *context, uint64_t offset, uint64_t value);
    void *context;
    uint32_t carried_key; /* the key for an adapter that carries entries; 0: none */
} epw_region;

/* Keys to a region: this rank's entries name its own bytes by the first, a peer's by the second. */
typedef struct epw_keys {
    uint32_t own, its;
    uint32_t carried; /* the peer's key for the verbs wire; 0: none */
} epw_keys;

/* The most adapters of a fabric, as many as lanes: each has its own keys to a region. */
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

/* The key of a new region; 0 if no memory or slot is left. `serial` of the first region: any number. */
uint32_t epw_regions_add(epw_regions *regions, const epw_region *region);

/* False if the key opens nothing. */
bool epw_regions_drop(epw_regions *regions, uint32_t key);

void epw_regions_free(epw_regions *regions);

/* The region of a key, NULL if there is none. Valid until the next epw_regions_add. */
const epw_region *epw_regions_find(const epw_regions *regions, uint32_t key);

/* The address of `bytes` bytes at `offset`; NULL if the region does not have all of them in one stretch, with
 * these rights. */
unsigned char *epw_region_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes);

/* The same for as many rows of so many bytes, each `stride` behind the one before, the first at `offset`: the
 * region must have each row in one stretch, but not all rows in the same one. `stride`: above 0 if there is
 * more than one. */
unsigned char *epw_region_rows_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes,
                                  uint64_t stride, uint64_t rows);

#endif
