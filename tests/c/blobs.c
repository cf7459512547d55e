/* What a blob tells its importer, what must agree, and bytes that are no blob. */
#include "imports/end.h"

#include <stdlib.h>

/* ---- what it says ---- */

static void every_field_that_differs_is_named(void) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
#define FIELD(name) {#name, offsetof(epw_config, name)}
        FIELD(version), FIELD(ranks),     FIELD(max_tokens),  FIELD(hidden),         FIELD(experts),
        FIELD(topk),    FIELD(lanes),     FIELD(dtype),       FIELD(combine_dtype),  FIELD(opaque_bytes),
        FIELD(ordered), FIELD(zero_copy), FIELD(deadline_ns), FIELD(sideband_bytes),
#undef FIELD
    };
    end b = open_end(config_of(1));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        epw_config config = config_of(0);
        (*(uint32_t *)((char *)&config + fields[i].offset))++;
        end a = open_end(config);
        export_to(&a, 1);
        epw_import *import = NULL;
        CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "peer 0: %s is ", fields[i].name);
        CHECK(error_has(wanted));
        epw_window_destroy(a.window);
    }
    /* What may differ does not matter. */
    epw_config config = config_of(0);
    config.threads = 5;
    config.paths = EPW_PATH_THREAD;
    config.sms = 24;
    end a = open_end(config);
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_OK);
    epw_import_close(import);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void the_text_of_a_mismatch_has_both_values(void) {
    epw_config config = config_of(3);
    config.hidden = 4096;
    end a = open_end(config), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("connect: rank 1: peer 3: hidden is 7168 here and 4096 at peer 3"));
    epw_window_destroy(a.window);
    config.hidden = 7168;
    CHECK(epw_window_create(&config, 2 * WINDOW_BYTES, &a.window) == EPW_OK);
    export_to(&a, 1);
    CHECK(epw_window_import(b.window, 3, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("the window has 1048576 bytes here and 2097152 at peer 3"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

/* A blob says where its window's memory is. No GPU is needed to read one. */
static void a_blob_tells_the_gpu_and_the_path(void) {
    end a = open_end(config_of(0));
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
        epw_blob_write(&blob, a.blob);
        CHECK(epw_blob_parse(a.blob, EPW_BLOB_BYTES, here, &parsed) == EPW_OK);
        CHECK(!memcmp(&parsed.origin, &blob.origin, sizeof parsed.origin));
        CHECK(parsed.window_bytes == blob.window_bytes &&
              parsed.config.deadline_ns == blob.config.deadline_ns);
    }
    blob.origin.path = EPW_PATH_THREAD;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_blob_parse(a.blob, EPW_BLOB_BYTES, here, &parsed) == EPW_ERR_INVALID);
    CHECK(error_has("shared by an unknown path, 2"));
    epw_window_destroy(a.window);
}

static void host_and_gpu_do_not_mix(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob blob;
    epw_import *import = NULL;
    CHECK(epw_blob_parse(a.blob, a.length, here, &blob) == EPW_OK);
    blob.origin.path = EPW_PATH_VMM;
    epw_blob_write(&blob, a.blob);
    CHECK(epw_window_import(b.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is the host here and a GPU at peer 0; put all ranks on the host or all on GPUs"));

    /* The other way round, and GPUs of different ordinals, which may differ. */
    epw_config config = config_of(1);
    config.device = 3;
    CHECK(epw_blob_check_config(&blob, &config, here) == EPW_OK);
    blob.origin.path = EPW_PATH_SHM;
    CHECK(epw_blob_check_config(&blob, &config, here) == EPW_ERR_MISMATCH);
    CHECK(error_has("device is a GPU here and the host at peer 0"));
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

static void a_blob_is_for_one_pair_of_ranks(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1)), c = open_end(config_of(2));
    export_to(&a, 1);
    epw_import *import = NULL;
    CHECK(epw_window_import(c.window, 0, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported for rank 1"));
    CHECK(epw_window_import(b.window, 2, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(error_has("exported by rank 0"));
    CHECK(epw_window_import(b.window, 1, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
    CHECK(epw_window_import(b.window, RANKS, a.blob, a.length, 1000 * MS, &import) == EPW_ERR_INVALID);
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
    epw_status status = epw_window_import(own, 0, copy, length, 1000 * MS, &import);
    epw_import_close(import);
    free(copy);
    return status;
}

static void damaged_blobs_are_errors(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
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

/* Values that no exporter wrote, under a checksum that is right. */
static void forged_blobs_are_errors_or_harmless(void) {
    end a = open_end(config_of(0)), b = open_end(config_of(1));
    export_to(&a, 1);
    epw_blob genuine;
    CHECK(epw_blob_parse(a.blob, a.length, here, &genuine) == EPW_OK);
    uint64_t seed = 88172645463325252u;
    int refused = 0;
    for (int round = 0; round < 10000; round++) {
        epw_blob blob = genuine, parsed;
        unsigned char *bytes = (unsigned char *)&blob;
        for (int i = 0; i < 3; i++)
            bytes[next_random(&seed) % sizeof blob] ^= (unsigned char)next_random(&seed);
        epw_blob_write(&blob, a.blob);
        if (epw_blob_parse(a.blob, a.length, here, &parsed) == EPW_OK)
            CHECK(parsed.config.rank < parsed.config.ranks && parsed.config.ranks <= EPW_MAX_RANKS);
        refused += import_copy(b.window, a.blob, a.length) < 0;
    }
    CHECK(refused > 5000);
    epw_window_destroy(a.window);
    epw_window_destroy(b.window);
}

int main(void) {
    every_field_that_differs_is_named();
    the_text_of_a_mismatch_has_both_values();
    a_blob_tells_the_gpu_and_the_path();
    host_and_gpu_do_not_mix();
    a_blob_is_for_one_pair_of_ranks();
    damaged_blobs_are_errors();
    forged_blobs_are_errors_or_harmless();
    return check_result("blobs");
}
