/* What a blob tells its importer, which values must agree, and bytes that are not a blob. */
#include "imports/end.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- what it says ---- */

static void every_term_that_differs_is_named(void) {
    end b = open_end(spec_of(1));
    epw_import *import = NULL;
    for (uint32_t i = 0; i < TERMS; i++) {
        for (int bit = 0; bit < 64; bit += 21) {
            spec of = spec_of(0);
            of.terms[i] ^= 1ull << bit;
            end a = open_end(of);
            export_to(&a, 1);
            CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
            char wanted[128];
            snprintf(wanted, sizeof wanted, "connect: rank 1: peer 0: %s is %llu here and %llu at peer 0;",
                     term_names[i], (unsigned long long)spec_of(1).terms[i], (unsigned long long)of.terms[i]);
            CHECK(error_has(wanted));
            epw_window_destroy(a.window);
        }
    }
    /* Of several differences the first is named; values that may differ do not matter. */
    spec of = spec_of(0);
    of.terms[1]++, of.terms[2]++;
    end a = open_end(of);
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("width is 7168 here and 7169 at peer 0; give all ranks the same configuration"));
    epw_window_destroy(a.window);
    of = spec_of(0);
    of.paths = EPW_PATH_THREAD;
    a = open_end(of);
    export_to(&a, 1);
    CHECK_OK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import));
    epw_import_close(import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void ranks_and_sizes_that_differ_are_named(void) {
    spec of = spec_of(3);
    of.ranks++;
    end a = open_end(of), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("ranks is 80 here and 81 at peer 3"));
    epw_window_destroy(a.window);
    of = spec_of(3);
    of.bytes = 2 * WINDOW_BYTES;
    a = open_end(of);
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("the window has 1048576 bytes here and 2097152 at peer 3"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* Another version has other fields, so values are not compared. */
static void other_names_are_a_mismatch_of_versions(void) {
    static const struct {
        epw_term terms[3];
        uint32_t count;
    } versions[] = {{{{"tokens", 128}, {"width", 7168}}, 2},
                    {{{"tokens", 128}, {"width", 7168}, {"patienc", 10000000000u}}, 3},
                    {{{"tokensw", 128}, {"idth", 7168}, {"patience", 10000000000u}}, 3},
                    {{{0}}, 0}};
    end b = open_end(spec_of(1));
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        epw_window_options options = {.ranks = RANKS,
                                      .device = EPW_DEVICE_HOST,
                                      .paths = EPW_PATH_ALL,
                                      .bytes = WINDOW_BYTES,
                                      .terms = versions[i].terms,
                                      .term_count = versions[i].count};
        end a = {0};
        epw_import *import = NULL;
        CHECK_OK(epw_window_create(&options, &a.window));
        export_to(&a, 1);
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
        CHECK(error_has("peer 0 has other fields in its configuration"));
        epw_window_destroy(a.window);
    }
    epw_window_destroy(b.window);
}

static void a_blob_of_the_most_terms_fits(void) {
    epw_term terms[EPW_TERMS_MAX + 1];
    for (uint32_t i = 0; i <= EPW_TERMS_MAX; i++) terms[i] = (epw_term){"a", i};
    epw_window_options options = {.ranks = RANKS,
                                  .device = EPW_DEVICE_HOST,
                                  .paths = EPW_PATH_ALL,
                                  .bytes = WINDOW_BYTES,
                                  .terms = terms,
                                  .term_count = EPW_TERMS_MAX + 1};
    end a = {0};
    CHECK(epw_window_create(&options, &a.window) == EPW_ERR_LIMIT);
    CHECK(error_has("33 fields must be equal, at most 32 can be"));
    options.term_count--;
    CHECK_OK(epw_window_create(&options, &a.window));
    export_to(&a, 1);
    epw_blob blob;
    CHECK_OK(epw_blob_parse(a.blob, a.length, here, &blob));
    CHECK(blob.term_count == EPW_TERMS_MAX && blob.terms[EPW_TERMS_MAX - 1] == EPW_TERMS_MAX - 1);
    epw_window_destroy(a.window);
}

/* A blob says where its window's memory is. Reading one needs no GPU. */
static void a_blob_tells_the_gpu_and_the_path(void) {
    end a = open_end(spec_of(0));
    export_to(&a, 1);
    epw_blob blob, parsed;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    CHECK(blob.origin.path == EPW_PATH_SHM);
    for (size_t i = 0; i < sizeof blob.origin.gpu; i++) {
        CHECK(blob.origin.gpu[i] == 0);
        blob.origin.gpu[i] = (unsigned char)(0xf0 + i);
    }
    static const uint32_t paths[] = {EPW_PATH_VMM, EPW_PATH_IPC};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        blob.origin.path = paths[i];
        CHECK(epw_blob_write(&blob, a.blob) == a.length);
        CHECK(epw_blob_parse(a.blob, a.length, here, &parsed) == EPW_OK);
        CHECK(!memcmp(&parsed.origin, &blob.origin, sizeof parsed.origin));
        CHECK(parsed.window_bytes == blob.window_bytes && parsed.terms[2] == blob.terms[2]);
    }
    blob.origin.path = EPW_PATH_THREAD;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_blob_parse(a.blob, a.length, here, &parsed) == EPW_ERR_INVALID);
    CHECK(error_has("names an unknown path, 2"));
    epw_window_destroy(a.window);
}

static void host_and_gpu_do_not_mix(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_blob blob;
    epw_import *import = NULL;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.origin.path = EPW_PATH_VMM;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is the host here and a GPU at peer 0; put all ranks on the host or all on GPUs"));

    /* With the roles exchanged; and GPUs may have different ordinals. */
    epw_term terms[TERMS];
    for (int i = 0; i < TERMS; i++) terms[i] = (epw_term){term_names[i], spec_of(1).terms[i]};
    epw_window_options options = {
        .rank = 1, .ranks = RANKS, .device = 3, .terms = terms, .term_count = TERMS};
    CHECK(epw_blob_check(&blob, &options, here) == EPW_OK);
    blob.origin.path = EPW_PATH_SHM;
    CHECK(epw_blob_check(&blob, &options, here) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is a GPU here and the host at peer 0"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_blob_is_for_one_pair_of_ranks(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1)), c = open_end(spec_of(2));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(c.window, 0, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported for rank 1"));
    CHECK(epw_window_import(b.window, 2, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported by rank 0"));
    CHECK(epw_window_import(b.window, 1, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(epw_window_import(b.window, RANKS, a.blob, a.length, 10000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(!import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
    epw_window_destroy(c.window);
}

/* ---- damage and forgery ---- */

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A copy of exactly `length` bytes, so that a sanitizer sees any read beyond it. */
static epw_status import_copy(epw_window *own, const unsigned char *blob, size_t length) {
    unsigned char *copy = malloc(length ? length : 1);
    memcpy(copy, blob, length);
    epw_import *import = NULL;
    epw_status status = epw_window_import(own, 0, copy, length, 10000 * MS, &import);
    epw_import_close(import);
    free(copy);
    return status;
}

static void damaged_blobs_are_errors(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    for (size_t length = 0; length < a.length; length++) CHECK(import_copy(b.window, a.blob, length) < 0);
    a.length++;
    CHECK(import_copy(b.window, a.blob, a.length) == EPW_ERR_INVALID);
    a.length--;
    for (size_t bit = 0; bit < 8 * a.length; bit++) {
        a.blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(import_copy(b.window, a.blob, a.length) < 0);
        a.blob[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 10000; round++) {
        unsigned char bytes[EPW_BLOB_MAX];
        size_t length = round % 2 ? a.length : next_random(&seed) % sizeof bytes;
        memcpy(bytes, a.blob, sizeof bytes);
        bool garbage = round % 4 == 0;
        for (size_t i = 0; i < sizeof bytes && garbage; i++) bytes[i] = (unsigned char)next_random(&seed);
        size_t at = next_random(&seed) % a.length;
        bytes[at] = (unsigned char)(bytes[at] + 1 + next_random(&seed) % 255);
        CHECK(import_copy(b.window, bytes, length) < 0);
    }
    CHECK(import_copy(b.window, a.blob, a.length) == EPW_OK);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* Values that no exporter writes, under a valid checksum. */
static void forged_blobs_are_errors_or_harmless(void) {
    end a = open_end(spec_of(0)), b = open_end(spec_of(1));
    export_to(&a, 1);
    epw_blob genuine;
    CHECK(epw_blob_parse(a.blob, a.length, here, &genuine) == EPW_OK);
    uint64_t seed = 88172645463325252u;
    int refused = 0;
    const size_t used = offsetof(epw_blob, terms) + TERMS * sizeof genuine.terms[0];
    for (int round = 0; round < 10000; round++) {
        epw_blob blob = genuine, parsed;
        unsigned char *bytes = (unsigned char *)&blob;
        for (int i = 0; i < 8; i++) bytes[next_random(&seed) % used] ^= (unsigned char)next_random(&seed);
        /* A value that epw_blob_write accepts. */
        blob.term_count = blob.term_count % (EPW_TERMS_MAX + 1);
        blob.queue.length = blob.queue.length % (EPW_BLOB_QUEUE_MAX + 1);
        a.length = epw_blob_write(&blob, a.blob);
        if (epw_blob_parse(a.blob, a.length, here, &parsed) == EPW_OK)
            CHECK(parsed.rank < parsed.ranks && parsed.ranks <= EPW_MAX_RANKS);
        refused += import_copy(b.window, a.blob, a.length) < 0;
    }
    CHECK(refused > 5000);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

int main(void) {
    every_term_that_differs_is_named();
    ranks_and_sizes_that_differ_are_named();
    other_names_are_a_mismatch_of_versions();
    a_blob_of_the_most_terms_fits();
    a_blob_tells_the_gpu_and_the_path();
    host_and_gpu_do_not_mix();
    a_blob_is_for_one_pair_of_ranks();
    damaged_blobs_are_errors();
    forged_blobs_are_errors_or_harmless();
    return check_result("blobs");
}
