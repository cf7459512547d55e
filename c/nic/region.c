/* See region.h. */
#include "nic/region.h"

#include <stdlib.h>

#define SLOTS_MAX   UINT32_C(65535)
#define SLOTS_FIRST 16u

static uint32_t key_of(const epw_regions *regions, uint32_t slot) {
    return (uint32_t)regions->slots[slot].serial << 16 | slot;
}

static bool grow(epw_regions *regions) {
    uint32_t capacity = regions->capacity == 0 ? SLOTS_FIRST : regions->capacity * 2;
    if (capacity > SLOTS_MAX) capacity = SLOTS_MAX;
    if (capacity == regions->capacity) return false;
    epw_region_slot *slots = realloc(regions->slots, capacity * sizeof *slots);
    if (slots == NULL) return false;
    for (uint32_t i = regions->capacity; i < capacity; i++) slots[i] = (epw_region_slot){.serial = 0};
    regions->slots = slots;
    regions->capacity = capacity;
    return true;
}

uint32_t epw_regions_add(epw_regions *regions, const epw_region *region) {
    uint32_t slot = 0;
    while (slot < regions->capacity && regions->slots[slot].used) slot++;
    if (slot == regions->capacity && !grow(regions)) return 0;
    epw_region_slot *s = &regions->slots[slot];
    s->used = true;
    s->region = *region;
    if (++s->serial == 0) s->serial = 1; /* no key is 0 */
    return key_of(regions, slot);
}

static epw_region_slot *slot_of(const epw_regions *regions, uint32_t key) {
    uint32_t slot = key & 0xffff;
    if (slot >= regions->capacity || !regions->slots[slot].used) return NULL;
    return key_of(regions, slot) == key ? &regions->slots[slot] : NULL;
}

bool epw_regions_drop(epw_regions *regions, uint32_t key) {
    epw_region_slot *slot = slot_of(regions, key);
    if (slot == NULL) return false;
    slot->used = false;
    return true;
}

void epw_regions_free(epw_regions *regions) {
    free(regions->slots);
    *regions = (epw_regions){0};
}

const epw_region *epw_regions_find(const epw_regions *regions, uint32_t key) {
    const epw_region_slot *slot = slot_of(regions, key);
    return slot != NULL ? &slot->region : NULL;
}

/* How many of the rows, from the first one on, lie in the stretch. */
static uint64_t rows_in(const epw_stretch *s, uint64_t offset, uint64_t bytes, uint64_t stride,
                        uint64_t rows) {
    if (offset < s->offset || offset - s->offset > s->bytes) return 0;
    uint64_t room = s->bytes - (offset - s->offset);
    if (bytes > room) return 0;
    if (rows == 1) return 1;
    uint64_t fit = (room - bytes) / stride + 1;
    return fit < rows ? fit : rows;
}

unsigned char *epw_region_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes) {
    return epw_region_rows_at(region, rights, offset, bytes, 0, 1);
}

/* Of the stretches that hold the next row, the one that holds the most rows leaves none to itself: each has
 * its turn once at most, however many rows a peer names. */
unsigned char *epw_region_rows_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes,
                                  uint64_t stride, uint64_t rows) {
    if ((region->rights & rights) != rights) return NULL;
    for (uint64_t at = offset, most; rows > 0; at += most * stride, rows -= most) {
        most = 0;
        for (uint32_t i = 0; i < region->count; i++) {
            uint64_t here = rows_in(&region->stretches[i], at, bytes, stride, rows);
            if (here > most) most = here;
        }
        if (most == 0) return NULL;
    }
    return region->base + offset;
}
