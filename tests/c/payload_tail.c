/* Rows are sent in whole units of 16 bytes. The rest of the last unit is zeros, never bytes of this process's
 * memory: peers are other processes. */
#include "group.h"

#include "base/bits.h"
#include "ep/host/host.h"

static void sends_zeros_behind(const group *g, epw_dispatch_input *in, uint32_t row_bytes) {
    epw_buffer *from = g->of[0];
    uint32_t pieces = (uint32_t)(epw_align(row_bytes, 16) - row_bytes);
    CHECK(pieces > 0);
    memset(from->host->scratch, 0xa5, from->host->scratch_bytes); /* of its only thread */
    epw_handle handle;
    CHECK_OK(epw_dispatch(from, in, NULL, &handle, NULL));
    const int32_t *ids = in->topk_idx;
    for (uint32_t i = 0, row = 0; i < TOKENS * TOPK; i++) {
        if (ids[i] < EXPERTS / 2) continue;
        const unsigned char *payload =
            epw_at(from->peers.routes[1].lanes[0].rows, epw_slot_offset(&from->layout, 0, 0, row)) +
            from->layout.header_bytes;
        for (uint32_t at = row_bytes; at < row_bytes + pieces; at++)
            CHECK_MSG(payload[at] == 0, "payload %u, row %u, byte %u is 0x%02x", in->payload, row, at,
                      payload[at]);
        while (i % TOPK != TOPK - 1) i++; /* one row for each token and rank */
        row++;
    }
    CHECK_OK(epw_release(from, handle));
}

static void sends_nothing_else(uint32_t payload) {
    group g = {.ranks = 2};
    for (uint32_t r = 0; r < 2; r++) {
        epw_config config = config_of(r, 2);
        config.opaque_bytes = 128;
        CHECK_OK(epw_buffer_create(&config, &g.of[r]));
    }
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    CHECK_OK(connect_to(g.of[1], 1, g.of[0], 0));
    activate(&g, 1);
    static batch made;
    static unsigned char scales[TOKENS * 3 * 4];
    epw_dispatch_input in = make_batch(&made, 0);
    in.payload = payload;
    in.lane = 0;
    uint32_t row_bytes = HIDDEN + HIDDEN / EPW_FP8_BLOCK * (payload == EPW_PAYLOAD_FP8_UE8M0 ? 1 : 4);
    if (payload == EPW_PAYLOAD_OPAQUE) {
        in.opaque_row_bytes = 80;
        in.scale_count = 3;
        in.scale_bytes = 4;
        in.scales = scales;
        in.scale_row_stride = 12;
        in.scale_col_stride = 4;
        row_bytes = 80 + 12;
    }
    sends_zeros_behind(&g, &in, row_bytes);
    destroy(&g);
}

int main(void) {
    for (uint32_t payload = EPW_PAYLOAD_FP8_F32; payload <= EPW_PAYLOAD_OPAQUE; payload++)
        sends_nothing_else(payload);
    return check_result("payload_tail");
}
