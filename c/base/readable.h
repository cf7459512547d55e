/* Whether memory is still there: a page whose cells have failed ends the process that touches it. */
#ifndef EPW_BASE_READABLE_H
#define EPW_BASE_READABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Has the kernel read the word: false where loading it would end this process. Takes a microsecond or less;
 * more where the word's low half is `unlikely`. */
bool epw_word_readable(const _Atomic uint64_t *word, uint32_t unlikely);

#endif
