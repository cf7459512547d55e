/* Whether memory can still be read: touching a page whose memory cells have failed ends the process. */
#ifndef EPW_BASE_READABLE_H
#define EPW_BASE_READABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Lets the kernel read the word; returns false if loading it would end this process. Takes a microsecond or
 * less; longer if the low half of the word equals `unlikely`. */
bool epw_word_readable(const _Atomic uint64_t *word, uint32_t unlikely);

#endif
