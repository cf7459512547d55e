/* See blob.h. */
#include "window/blob.h"

#include <stddef.h>
#include <string.h>

#define MAGIC UINT32_C(0x42575045) /* "EPWB" */

/* ---- the configuration that must match ---------------------------------------------------------- */

typedef struct field {
    const char *name;
    uint8_t offset;
    uint8_t bytes;
} field;

#define FIELD(name)                                                                                          \
    { #name, offsetof(epw_config, name), sizeof(((epw_config *)0)->name) }

/* Every field but size, rank, threads, paths and sms; device is compared by its kind, which the origin tells.
 * Their order is the blob's. */
static const field shared_fields[] = {
    FIELD(version),        FIELD(ranks),   FIELD(max_tokens), FIELD(hidden),        FIELD(experts),
    FIELD(topk),           FIELD(lanes),   FIELD(dtype),      FIELD(combine_dtype), FIELD(opaque_bytes),
    FIELD(sideband_bytes), FIELD(ordered), FIELD(zero_copy),  FIELD(deadline_ns),
};
_Static_assert(sizeof(epw_config) == 88, "a new field of epw_config: does it belong in shared_fields?");

enum { SHARED_FIELDS = sizeof shared_fields / sizeof shared_fields[0] };

static uint64_t get_field(const epw_config *config, const field *f) {
    const unsigned char *at = (const unsigned char *)config + f->offset;
    uint32_t narrow;
    uint64_t wide;
    if (f->bytes == sizeof wide) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

static void set_field(epw_config *config, const field *f, uint64_t value) {
    unsigned char *at = (unsigned char *)config + f->offset;
    uint32_t narrow = (uint32_t)value;
    memcpy(at, f->bytes == sizeof value ? (void *)&value : (void *)&narrow, f->bytes);
}

static const char *kind(bool host) {
    return host ? "the host" : "a GPU";
}

epw_status epw_blob_check_config(const epw_blob *blob, const epw_config *own, epw_where where) {
    for (size_t i = 0; i < SHARED_FIELDS; i++) {
        const field *f = &shared_fields[i];
        uint64_t here = get_field(own, f), there = get_field(&blob->config, f);
        if (here == there) continue;
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "%s is %llu here and %llu at peer %u; give all ranks the same "
                        "configuration",
                        f->name, (unsigned long long)here, (unsigned long long)there,
                        (unsigned)blob->config.rank);
    }
    bool here = own->device == EPW_DEVICE_HOST, there = blob->origin.path == EPW_PATH_SHM;
    if (here != there)
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "device is %s here and %s at peer %u; put all ranks on the host or all on GPUs",
                        kind(here), kind(there), (unsigned)blob->config.rank);
    return EPW_OK;
}

/* ---- bytes -------------------------------------------------------------------------------------- */

/* Where the next value goes to or comes from. All lengths are fixed, so nothing can run over. */
static void put(unsigned char **at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) *(*at)++ = (unsigned char)(value >> (8 * i));
}

static uint64_t take(const unsigned char **at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t) * (*at)++ << (8 * i);
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

/* FNV-1a, 64 bits: finds any change of one byte, and what else may happen to a blob that people copy around.
 * It is no protection against forgery; the channel is. */
static uint64_t checksum(const unsigned char *bytes, size_t length) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Zeros, to become a fabric handle, by which GPUs of several hosts share memory. */
enum { FABRIC_BYTES = 64 };

enum { FIXED_BYTES = 4 * 4 + 16 + 8 + 16 + 4 + 4 + 16 + 16 + 8 + 4 + 16 + FABRIC_BYTES, CHECKSUM_BYTES = 8 };
_Static_assert(EPW_BLOB_BYTES == FIXED_BYTES + 13 * 4 + 8 + CHECKSUM_BYTES, "what epw_blob_write writes");

void epw_blob_write(const epw_blob *blob, unsigned char *bytes) {
    unsigned char *at = bytes;
    put(&at, MAGIC, 4);
    put(&at, EPW_BLOB_FORMAT, 4);
    put(&at, blob->config.rank, 4);
    put(&at, blob->peer, 4);
    put_nonce(&at, &blob->host.boot_id);
    put(&at, blob->host.network_namespace, 8);
    put_nonce(&at, &blob->host.process);
    put(&at, blob->host.pid, 4);
    put(&at, blob->serves, 4);
    put_nonce(&at, &blob->server);
    put_nonce(&at, &blob->window);
    put(&at, blob->window_bytes, 8);
    put(&at, blob->origin.path, 4);
    memcpy(at, blob->origin.gpu, sizeof blob->origin.gpu);
    at += sizeof blob->origin.gpu;
    memset(at, 0, FABRIC_BYTES);
    at += FABRIC_BYTES;
    for (size_t i = 0; i < SHARED_FIELDS; i++)
        put(&at, get_field(&blob->config, &shared_fields[i]), shared_fields[i].bytes);
    put(&at, checksum(bytes, EPW_BLOB_BYTES - CHECKSUM_BYTES), CHECKSUM_BYTES);
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
    if (length != EPW_BLOB_BYTES)
        return epw_fail(EPW_ERR_INVALID, where, "the blob has %zu bytes where epw_buffer_export wrote %d",
                        length, EPW_BLOB_BYTES);
    const unsigned char *sum_at = (const unsigned char *)bytes + EPW_BLOB_BYTES - CHECKSUM_BYTES;
    if (take(&sum_at, CHECKSUM_BYTES) != checksum(bytes, EPW_BLOB_BYTES - CHECKSUM_BYTES))
        return epw_fail(EPW_ERR_INVALID, where, "the blob was damaged on the way: its checksum is wrong");

    *out = (epw_blob){0};
    out->config.rank = (uint32_t)take(&at, 4);
    out->peer = (uint32_t)take(&at, 4);
    take_nonce(&at, &out->host.boot_id);
    out->host.network_namespace = take(&at, 8);
    take_nonce(&at, &out->host.process);
    out->host.pid = (uint32_t)take(&at, 4);
    out->serves = (uint32_t)take(&at, 4);
    take_nonce(&at, &out->server);
    take_nonce(&at, &out->window);
    out->window_bytes = take(&at, 8);
    out->origin.path = (uint32_t)take(&at, 4);
    memcpy(out->origin.gpu, at, sizeof out->origin.gpu);
    at += sizeof out->origin.gpu + FABRIC_BYTES;
    for (size_t i = 0; i < SHARED_FIELDS; i++)
        set_field(&out->config, &shared_fields[i], take(&at, shared_fields[i].bytes));

    uint32_t rank = out->config.rank, ranks = out->config.ranks;
    if (ranks > EPW_MAX_RANKS || rank >= ranks || out->peer >= ranks || rank == out->peer)
        return epw_fail(EPW_ERR_INVALID, where, "the blob is of rank %u for rank %u in a group of %u",
                        (unsigned)rank, (unsigned)out->peer, (unsigned)ranks);
    if (out->window_bytes == 0) return epw_fail(EPW_ERR_INVALID, where, "the blob names an empty window");
    uint32_t path = out->origin.path;
    if (path != EPW_PATH_SHM && path != EPW_PATH_VMM && path != EPW_PATH_IPC)
        return epw_fail(EPW_ERR_INVALID, where, "the blob's window is shared by an unknown path, %u",
                        (unsigned)path);
    return EPW_OK;
}
