/* See notice.h. */
#include "coll/notice.h"

#include "base/little_endian.h"
#include "window/blob.h"

#include <string.h>

#define MAGIC UINT32_C(0x52575045) /* "EPWR" */
enum { FORMAT = 1, SUM_BYTES = 8, SUM_AT = EPW_NOTICE_BYTES - SUM_BYTES };
_Static_assert(EPW_NOTICE_BYTES + EPW_BLOB_MAX <= EPW_REGISTRATION_BLOB_MAX,
               "a blob must fit where the public header says");

void epw_notice_write(const epw_notice *n, unsigned char *at) {
    epw_put_little(at, MAGIC, 4);
    epw_put_little(at + 4, FORMAT, 4);
    epw_put_little(at + 8, n->id, 8);
    epw_put_little(at + 16, n->first, 8);
    epw_put_little(at + 24, n->bytes, 8);
    epw_put_little(at + 32, n->offset, 8);
    epw_put_little(at + 40, n->slot, 4);
    memcpy(at + 44, n->owner.bytes, sizeof n->owner.bytes);
    epw_put_little(at + SUM_AT, epw_blob_sum(at, SUM_AT), SUM_BYTES);
}

epw_status epw_notice_parse(const void *bytes, size_t length, uint64_t least, uint64_t most, epw_where where,
                            epw_notice *out) {
    const unsigned char *at = bytes;
    if (length < 8 || epw_take_little(at, 4) != MAGIC)
        return epw_fail(EPW_ERR_INVALID, where,
                        "%zu bytes that are not a blob of epw_comm_export_registration", length);
    uint32_t format = (uint32_t)epw_take_little(at + 4, 4);
    if (format != FORMAT)
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "the blob's format is %u here and %u at the peer; use the same epwire version on all "
                        "ranks",
                        FORMAT, (unsigned)format);
    if (length < EPW_NOTICE_BYTES || epw_take_little(at + SUM_AT, SUM_BYTES) != epw_blob_sum(at, SUM_AT))
        return epw_fail(EPW_ERR_INVALID, where, "the blob of %zu bytes was cut or damaged on the way",
                        length);
    *out = (epw_notice){.id = epw_take_little(at + 8, 8),
                        .first = epw_take_little(at + 16, 8),
                        .bytes = epw_take_little(at + 24, 8),
                        .offset = epw_take_little(at + 32, 8),
                        .slot = (uint32_t)epw_take_little(at + 40, 4)};
    memcpy(out->owner.bytes, at + 44, sizeof out->owner.bytes);
    if (out->id != 0 && out->slot < EPW_REGISTRATIONS_MAX && out->bytes > 0 && out->bytes <= most &&
        out->first > least && out->first % 16 == 0 && out->first <= most - out->bytes)
        return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where,
                    "the blob names registration %llu, number %u, of %llu bytes at %llu, which cannot be",
                    (unsigned long long)out->id, (unsigned)out->slot, (unsigned long long)out->bytes,
                    (unsigned long long)out->first);
}

bool epw_notice_fits(const epw_notice *n, uint64_t window_bytes) {
    return n->offset <= window_bytes && n->bytes <= window_bytes - n->offset;
}

epw_status epw_notice_check_owner(const epw_notice *n, epw_peers *peers, epw_where where,
                                  uint64_t *incarnation) {
    epw_nonce window;
    epw_status status = epw_peers_connected(peers, where, &window, incarnation);
    if (status != EPW_OK || epw_nonce_equal(&window, &n->owner)) return status;
    return epw_fail(EPW_ERR_STATE, where,
                    "the blob is of another incarnation of the peer than the one that is connected");
}
