/* Shared by the witnesses: compares commands and entries field by field, with a line for each:
 *
 *     WITNESS COMMAND FIELD agrees | differs: THEIRS, ours OURS | ours alone | theirs alone: THEIRS
 *
 * Fields that are 0 on both sides are left out. Include this in one source of each program. */
#ifndef EPW_WITNESS_COMPARE_H
#define EPW_WITNESS_COMPARE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct place {
    const char *structure, *name;
    uint32_t first, bits;
} place;

static const place places[] = {
#define FIELD(structure, name, first, bits) {#structure, #name, first, bits},
#include "nic/fake/offsets.inc"
#undef FIELD
};

enum { PLACES = sizeof places / sizeof places[0] };

/* The bits of a command that belong to known fields. */
typedef struct known {
    unsigned char bits[512];
} known;

static inline uint64_t bits_at(const void *bytes, uint32_t first, uint32_t bits) {
    const unsigned char *at = bytes;
    uint64_t value = 0;
    for (uint32_t bit = first; bit < first + bits; bit++)
        value = value << 1 | (at[bit / 8] >> (7 - bit % 8) & 1u);
    return value;
}

static inline void say(const char *who, const char *what, const char *structure, const char *name,
                       uint64_t theirs, uint64_t ours) {
    if (theirs == 0 && ours == 0) return;
    printf("%s %s %s.%s ", who, what, structure, name);
    if (theirs == ours)
        printf("agrees\n");
    else if (theirs == 0)
        printf("ours alone\n");
    else if (ours == 0)
        printf("theirs alone: %" PRIx64 "\n", theirs);
    else
        printf("differs: %" PRIx64 ", ours %" PRIx64 "\n", theirs, ours);
}

static inline bool is_nested(const char *name) {
    return strcmp(name, "qpc") == 0 || strcmp(name, "cqc") == 0 || strstr(name, "_address_path") != NULL;
}

/* Compares the fields of a structure that begins at bit `base`. A field of more than 64 bits is compared in
 * parts. */
static inline void compare(const char *who, const char *what, const char *structure, uint32_t base,
                           const void *theirs, const void *ours, known *k) {
    for (const place *p = places; p < places + PLACES; p++) {
        if (strcmp(p->structure, structure) != 0 || is_nested(p->name)) continue;
        for (uint32_t bit = base + p->first; bit < base + p->first + p->bits; bit++)
            k->bits[bit / 8] |= (unsigned char)(0x80u >> bit % 8);
        for (uint32_t at = 0; at < p->bits; at += 64) {
            uint32_t bits = p->bits - at < 64 ? p->bits - at : 64;
            char name[64];
            snprintf(name, sizeof name, at == 0 ? "%s" : "%s+%" PRIu32, p->name, at);
            say(who, what, structure, name, bits_at(theirs, base + p->first + at, bits),
                bits_at(ours, base + p->first + at, bits));
        }
    }
}

/* Prints what they have set where no field is known. */
static inline void compare_rest(const char *who, const char *what, const void *theirs, size_t bytes,
                                const known *k) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)theirs)[i] & ~k->bits[i])
            printf("%s %s byte %zu theirs alone: %x\n", who, what, i, ((const unsigned char *)theirs)[i]);
}

static inline uint32_t first_of(const char *structure, const char *name) {
    for (const place *p = places; p < places + PLACES; p++)
        if (strcmp(p->structure, structure) == 0 && strcmp(p->name, name) == 0) return p->first;
    abort();
}

/* Compares a command, and the fields of its context: "qpc", "cqc", or NULL. */
static inline void compare_command(const char *who, const char *what, const char *structure,
                                   const char *context, const void *theirs, const void *ours, size_t bytes) {
    known k = {0};
    compare(who, what, structure, 0, theirs, ours, &k);
    if (context != NULL && strcmp(context, "cqc") == 0) {
        compare(who, what, "cqc", first_of(structure, "cqc"), theirs, ours, &k);
    } else if (context != NULL) {
        uint32_t qpc = first_of(structure, "qpc");
        compare(who, what, "qpc", qpc, theirs, ours, &k);
        compare(who, what, "ads", qpc + first_of("qpc", "primary_address_path"), theirs, ours, &k);
    }
    compare_rest(who, what, theirs, bytes, &k);
}

/* The name of the field to which this bit of a command belongs, for a caller that clears the bit. */
static inline void name_bit(const char *structure, uint32_t bit, char *out, size_t size) {
    const place *inner = NULL;
    for (uint32_t base = 0;;) {
        inner = NULL;
        for (const place *p = places; p < places + PLACES; p++)
            if (strcmp(p->structure, structure) == 0 && bit >= base + p->first &&
                bit < base + p->first + p->bits)
                inner = p;
        if (inner == NULL || !is_nested(inner->name)) break;
        base += inner->first;
        structure = strcmp(inner->name, "qpc") == 0 ? "qpc" : strcmp(inner->name, "cqc") == 0 ? "cqc" : "ads";
    }
    snprintf(out, size, "%s.%s", structure, inner != NULL ? inner->name : "?");
}

#endif
