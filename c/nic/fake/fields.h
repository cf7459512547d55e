/* Access to the fields of commands by name, at the positions that offsets.inc lists. */
#ifndef EPW_NIC_FAKE_FIELDS_H
#define EPW_NIC_FAKE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum epw_field {
#define FIELD(structure, name, first, bits) EPW_FIELD_##structure##_##name,
#include "nic/fake/offsets.inc"
#undef FIELD
    EPW_FIELDS
} epw_field;

#define EPW_FIELD(structure, name) EPW_FIELD_##structure##_##name

/* The first bit of a structure that is nested in another one. */
uint32_t epw_field_first(epw_field field);

/* Reads or writes a field, of at most 64 bits, of a structure that begins at bit `base`. */
uint64_t epw_field_get(const unsigned char *bytes, uint32_t base, epw_field field);
void epw_field_put(unsigned char *bytes, uint32_t base, epw_field field, uint64_t value);

/* Adds a field to a mask of the bits of a command that may be set. */
void epw_field_allow(unsigned char *mask, uint32_t base, epw_field field);

/* The first bit that is set outside the mask, `bytes * 8` if there is none. */
uint32_t epw_field_stray(const unsigned char *in, const unsigned char *mask, size_t bytes);

#endif
