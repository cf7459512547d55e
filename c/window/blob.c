/* See blob.h. */
#include "window/blob.h"

#include "base/little_endian.h"

#include <string.h>

#define MAGIC UINT32_C(0x42575045) /* "EPWB" */

/* FNV-1a, 64 bits: detects any change of one byte, and whatever else may happen to a blob that people copy
 * around. It does not protect against forgery; the channel does. */
#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static uint64_t hash_more(uint64_t hash, const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < length; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t epw_blob_sum(const void *bytes, size_t length) {
    return hash_more(HASH_BEGIN, bytes, length);
}

/* ---- the terms ---- */

/* Includes each name's terminator, so that no two lists of names hash alike by concatenation. */
static uint64_t hash_names(const epw_term *terms, uint32_t count) {
    uint64_t hash = HASH_BEGIN;
    for (uint32_t i = 0; i < count; i++) hash = hash_more(hash, terms[i].name, strlen(terms[i].name) + 1);
    return hash;
}

void epw_blob_set_terms(epw_blob *blob, const epw_term *terms, uint32_t count) {
    blob->term_names = hash_names(terms, count);
    blob->term_count = count;
    for (uint32_t i = 0; i < count; i++) blob->terms[i] = terms[i].value;
}

static epw_status differs(const epw_blob *blob, const char *name, uint64_t here, uint64_t there,
                          epw_where where) {
    return epw_fail(EPW_ERR_MISMATCH, where,
                    "%s is %llu here and %llu at peer %u; give all ranks the same configuration", name,
                    (unsigned long long)here, (unsigned long long)there, (unsigned)blob->rank);
}

static const char *kind(bool host) {
    return host ? "the host" : "a GPU";
}

epw_status epw_blob_check(const epw_blob *blob, const epw_window_options *own, epw_where where) {
    if (blob->term_count != own->term_count || blob->term_names != hash_names(own->terms, own->term_count))
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "peer %u has other fields in its configuration (%u that must be equal, here %u); use "
                        "the same epwire version on all ranks",
                        (unsigned)blob->rank, (unsigned)blob->term_count, (unsigned)own->term_count);
    bool here = own->device == EPW_DEVICE_HOST, there = blob->origin.path == EPW_PATH_SHM;
    if (here != there) /* first, because other fields follow from it */
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "device is %s here and %s at peer %u; put all ranks on the host or all on GPUs",
                        kind(here), kind(there), (unsigned)blob->rank);
    for (uint32_t i = 0; i < own->term_count; i++)
        if (own->terms[i].value != blob->terms[i])
            return differs(blob, own->terms[i].name, own->terms[i].value, blob->terms[i], where);
    if (blob->ranks != own->ranks) return differs(blob, "ranks", own->ranks, blob->ranks, where);
    return EPW_OK;
}

/* ---- bytes ---- */

/* Cursors at the next value. The length has been checked, so they cannot run over the end. */
static void put(unsigned char **at, uint64_t value, size_t bytes) {
    epw_put_little(*at, value, bytes);
    *at += bytes;
}

static uint64_t take(const unsigned char **at, size_t bytes) {
    uint64_t value = epw_take_little(*at, bytes);
    *at += bytes;
    return value;
}

static void put_nonce(unsigned char **at, const epw_nonce *nonce) {
    memcpy(*at, nonce->bytes, sizeof nonce->bytes);
    *at += sizeof nonce->bytes;
}

static void take_nonce(const unsigned char **at, epw_nonce *out) {
    memcpy(out->bytes, *at, sizeof out->bytes);
    *at += sizeof out->bytes;
}

enum {
    /* Zeros, reserved for a fabric handle, with which GPUs of several hosts share memory. */
    FABRIC_BYTES = 64,
    /* Everything before the terms except the queue's bytes. */
    FIXED_BYTES = 4 * 4 + 16 + 8 + 16 + 4 + 4 + 16 + 16 + 8 + 4 + 4 + 16 + FABRIC_BYTES + 4 + 4 + 4 + 8,
    CHECKSUM_BYTES = 8
};
_Static_assert(FIXED_BYTES + EPW_BLOB_QUEUE_MAX + 8 * EPW_TERMS_MAX + CHECKSUM_BYTES <= EPW_BLOB_MAX,
               "a blob must fit where the public header says");

size_t epw_blob_write(const epw_blob *blob, unsigned char *bytes) {
    unsigned char *at = bytes;
    put(&at, MAGIC, 4);
    put(&at, EPW_BLOB_FORMAT, 4);
    put(&at, blob->rank, 4);
    put(&at, blob->peer, 4);
    put_nonce(&at, &blob->host.boot_id);
    put(&at, blob->host.network_namespace, 8);
    put_nonce(&at, &blob->host.process);
    put(&at, blob->host.pid, 4);
    put(&at, blob->serves, 4);
    put(&at, blob->paths, 4);
    put_nonce(&at, &blob->server);
    put_nonce(&at, &blob->window);
    put(&at, blob->window_bytes, 8);
    put(&at, blob->origin.path, 4);
    memcpy(at, blob->origin.gpu, sizeof blob->origin.gpu);
    at += sizeof blob->origin.gpu;
    memset(at, 0, FABRIC_BYTES);
    at += FABRIC_BYTES;
    put(&at, blob->queue.length, 4);
    memcpy(at, blob->queue.bytes, blob->queue.length);
    at += blob->queue.length;
    put(&at, blob->ranks, 4);
    put(&at, blob->term_count, 4);
    put(&at, blob->term_names, 8);
    for (uint32_t i = 0; i < blob->term_count; i++) put(&at, blob->terms[i], 8);
    put(&at, epw_blob_sum(bytes, (size_t)(at - bytes)), CHECKSUM_BYTES);
    return (size_t)(at - bytes);
}

/* Checks the ranges of values in a blob that arrived intact. */
static epw_status check_ranges(const epw_blob *blob, epw_where where) {
    uint32_t rank = blob->rank, ranks = blob->ranks, path = blob->origin.path;
    if (ranks > EPW_MAX_RANKS || rank >= ranks || blob->peer >= ranks || rank == blob->peer)
        return epw_fail(EPW_ERR_INVALID, where, "the blob is of rank %u for rank %u in a group of %u",
                        (unsigned)rank, (unsigned)blob->peer, (unsigned)ranks);
    if (blob->window_bytes == 0) return epw_fail(EPW_ERR_INVALID, where, "the blob names an empty window");
    if (path != EPW_PATH_SHM && path != EPW_PATH_VMM && path != EPW_PATH_IPC)
        return epw_fail(EPW_ERR_INVALID, where, "the blob names an unknown path, %u", (unsigned)path);
    return EPW_OK;
}

epw_status epw_blob_parse(const void *bytes, size_t length, epw_where where, epw_blob *out) {
    const unsigned char *at = bytes;
    if (length < 8 || take(&at, 4) != MAGIC)
        return epw_fail(EPW_ERR_INVALID, where, "%zu bytes that are not a blob of epw_buffer_export", length);
    uint32_t format = (uint32_t)take(&at, 4);
    if (format != EPW_BLOB_FORMAT)
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "blob format is %u here and %u at the peer; use the same epwire version "
                        "on all ranks",
                        EPW_BLOB_FORMAT, (unsigned)format);
    if (length < FIXED_BYTES + CHECKSUM_BYTES || length > EPW_BLOB_MAX)
        return epw_fail(EPW_ERR_INVALID, where, "the blob was cut or lengthened on the way, to %zu bytes",
                        length);
    const unsigned char *sum_at = (const unsigned char *)bytes + length - CHECKSUM_BYTES;
    if (take(&sum_at, CHECKSUM_BYTES) != epw_blob_sum(bytes, length - CHECKSUM_BYTES))
        return epw_fail(EPW_ERR_INVALID, where,
                        "the blob was cut or damaged on the way: the checksum of its %zu bytes is wrong",
                        length);

    *out = (epw_blob){0};
    out->rank = (uint32_t)take(&at, 4);
    out->peer = (uint32_t)take(&at, 4);
    take_nonce(&at, &out->host.boot_id);
    out->host.network_namespace = take(&at, 8);
    take_nonce(&at, &out->host.process);
    out->host.pid = (uint32_t)take(&at, 4);
    out->serves = (uint32_t)take(&at, 4);
    out->paths = (uint32_t)take(&at, 4);
    take_nonce(&at, &out->server);
    take_nonce(&at, &out->window);
    out->window_bytes = take(&at, 8);
    out->origin.path = (uint32_t)take(&at, 4);
    memcpy(out->origin.gpu, at, sizeof out->origin.gpu);
    at += sizeof out->origin.gpu + FABRIC_BYTES;
    out->queue.length = (uint32_t)take(&at, 4);
    size_t variable = length - FIXED_BYTES - CHECKSUM_BYTES;
    if (out->queue.length > EPW_BLOB_QUEUE_MAX || out->queue.length > variable)
        return epw_fail(EPW_ERR_INVALID, where,
                        "the blob says that it has %u bytes about queues, at most %d are possible",
                        (unsigned)out->queue.length, EPW_BLOB_QUEUE_MAX);
    memcpy(out->queue.bytes, at, out->queue.length);
    at += out->queue.length;
    size_t terms = (variable - out->queue.length) / 8;
    out->ranks = (uint32_t)take(&at, 4);
    out->term_count = (uint32_t)take(&at, 4);
    out->term_names = take(&at, 8);
    if (out->term_count != terms || variable != out->queue.length + 8 * terms || terms > EPW_TERMS_MAX)
        return epw_fail(EPW_ERR_INVALID, where, "the blob has room for %zu fields, but says that it has %u",
                        terms, (unsigned)out->term_count);
    for (uint32_t i = 0; i < terms; i++) out->terms[i] = take(&at, 8);
    return check_ranges(out, where);
}
