/* The fields of a configuration that must be equal on every rank of a group: the terms that windows compare
 * when they connect. */
#ifndef EPW_EP_TERMS_H
#define EPW_EP_TERMS_H

#include "epwire.h"
#include "window/window.h"

enum { EPW_TERM_COUNT = 14 };

/* terms [out, EPW_TERM_COUNT] */
void epw_terms_of(const epw_config *config, epw_term *terms);

#endif
