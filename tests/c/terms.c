/* The fields of two configurations that must be equal for their ranks to connect. */
#include "ep/terms.h"
#include "group.h"

#include <stddef.h>

static epw_buffer *open_buffer(const epw_config *config) {
    epw_buffer *b = NULL;
    CHECK_OK(epw_buffer_create(config, &b));
    return b;
}

/* A pair of ranks of a group of `ranks`; rank 1 has a configuration of its own. */
static epw_status connect_pair(const epw_config *own, const epw_config *peers) {
    epw_buffer *a = open_buffer(own), *b = open_buffer(peers);
    epw_status status = connect_to(a, 0, b, 1);
    epw_buffer_destroy(a);
    epw_buffer_destroy(b);
    return status;
}

static void every_field_that_differs_is_named(void) {
    static const struct {
        const char *name;
        size_t offset;
        uint32_t value;
    } fields[] = {
#define FIELD(name, value) {#name, offsetof(epw_config, name), value}
        FIELD(ranks, 3),         FIELD(max_tokens, TOKENS + 1), FIELD(hidden, HIDDEN + 8),
        FIELD(experts, 24),      FIELD(topk, TOPK + 1),         FIELD(lanes, 1),
        FIELD(dtype, EPW_F16),   FIELD(combine_dtype, EPW_F16), FIELD(opaque_bytes, 16),
        FIELD(ordered, 0),       FIELD(zero_copy, 0),           FIELD(deadline_ns, 123456789),
        FIELD(sideband_bytes, 4)
#undef FIELD
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        epw_config own = config_of(0, 2), peers = config_of(1, 2);
        own.deadline_ns = peers.deadline_ns = 1000000000; /* 32 bits, whichever field is set */
        memcpy((char *)&peers + fields[i].offset, &fields[i].value, sizeof fields[i].value);
        CHECK(connect_pair(&own, &peers) == EPW_ERR_MISMATCH);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "connect: rank 0: peer 1: %s is ", fields[i].name);
        CHECK_MSG(strncmp(epw_last_error(), wanted, strlen(wanted)) == 0, "%s", epw_last_error());
    }
}

/* No buffer of another version can be created yet. */
static void the_version_is_a_term(void) {
    epw_config config = config_of(0, 2);
    epw_term terms[EPW_TERM_COUNT];
    config.version = 77;
    epw_terms_of(&config, terms);
    CHECK(strcmp(terms[0].name, "version") == 0 && terms[0].value == 77);
}

static void what_may_differ_does_not_matter(void) {
    epw_config own = config_of(0, 2), peers = config_of(1, 2);
    peers.threads = 3;
    peers.paths = EPW_PATH_THREAD;
    peers.sms = 24;
    CHECK_OK(connect_pair(&own, &peers));
}

int main(void) {
    every_field_that_differs_is_named();
    the_version_is_a_term();
    what_may_differ_does_not_matter();
    return check_result("terms");
}
