/* See fields.h. Bits are counted from the most significant one of the first byte. */
#include "nic/fake/fields.h"

static const struct {
    uint16_t first, bits;
} places[] = {
#define FIELD(structure, name, first, bits) {first, bits},
#include "nic/fake/offsets.inc"
#undef FIELD
};

uint32_t epw_field_first(epw_field field) {
    return places[field].first;
}

uint64_t epw_field_get(const unsigned char *bytes, uint32_t base, epw_field field) {
    uint64_t value = 0;
    uint32_t first = base + places[field].first;
    for (uint32_t bit = first; bit < first + places[field].bits; bit++)
        value = value << 1 | (bytes[bit / 8] >> (7 - bit % 8) & 1u);
    return value;
}

void epw_field_put(unsigned char *bytes, uint32_t base, epw_field field, uint64_t value) {
    uint32_t first = base + places[field].first;
    for (uint32_t bit = first + places[field].bits; bit-- > first; value >>= 1) {
        unsigned char mask = (unsigned char)(0x80u >> bit % 8);
        bytes[bit / 8] = (unsigned char)((bytes[bit / 8] & ~mask) | (value & 1 ? mask : 0));
    }
}

void epw_field_allow(unsigned char *mask, uint32_t base, epw_field field) {
    uint32_t first = base + places[field].first;
    for (uint32_t bit = first; bit < first + places[field].bits; bit++)
        mask[bit / 8] |= (unsigned char)(0x80u >> bit % 8);
}

uint32_t epw_field_stray(const unsigned char *in, const unsigned char *mask, size_t bytes) {
    uint32_t bit = 0;
    while (bit < bytes * 8 && !((in[bit / 8] & ~mask[bit / 8]) >> (7 - bit % 8) & 1)) bit++;
    return bit;
}
