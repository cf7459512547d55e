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

unsigned char *epw_region_at(const epw_region *region, uint32_t rights, uint64_t offset, uint64_t bytes) {
    if ((region->rights & rights) != rights) return NULL;
    for (uint32_t i = 0; i < region->count; i++) {
        const epw_stretch *s = &region->stretches[i];
        if (offset < s->offset || offset - s->offset > s->bytes) continue;
        if (bytes <= s->bytes - (offset - s->offset)) return region->base + offset;
    }
    return NULL;
}
