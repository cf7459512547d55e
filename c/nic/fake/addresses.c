/* The addresses of the fake adapter's ports: GIDs and LIDs, derived from the rank. */
#include "nic/fake/parts.h"

#include "epwire.h"

#include <errno.h>
#include <string.h>

enum { ENTRIES = 8 };

/* A link-local address, fe80::5:RANK for the first device. */
static void local_gid(uint32_t rank, uint32_t device, unsigned char gid[16]) {
    memset(gid, 0, 16);
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[13] = (unsigned char)(5 + device);
    gid[14] = (unsigned char)(rank >> 8);
    gid[15] = (unsigned char)rank;
}

/* 10.77.RANK as an IPv4-mapped IPv6 address; the second device has 10.78.RANK. */
static void routed_gid(uint32_t rank, uint32_t device, unsigned char gid[16]) {
    memset(gid, 0, 16);
    gid[10] = gid[11] = 0xff;
    gid[12] = 10;
    gid[13] = (unsigned char)(77 + device);
    gid[14] = (unsigned char)(rank >> 8);
    gid[15] = (unsigned char)rank;
}

uint32_t epw_fake_gids(const epw_fake *fake) {
    (void)fake;
    return ENTRIES;
}

/* Entries are in the kernel's order: each address first for RoCEv1, then for RoCEv2. The rest of the table is
 * empty. */
int epw_fake_gid(const epw_fake *fake, uint32_t device, uint32_t index, epw_mlx5_gid *out) {
    if (epw_fake_lacks(fake, EPW_FAKE_GIDS_REVERSED)) index = ENTRIES - 1 - index;
    bool routed = index / 2 == 1;
    if (index >= 4 || (routed && epw_fake_lacks(fake, EPW_FAKE_NO_ROUTED_GID))) return ENODATA;
    out->type = index % 2 == 0 ? EPW_MLX5_GID_ROCE_V1 : EPW_MLX5_GID_ROCE_V2;
    if (fake->options.infiniband) {
        out->type = EPW_MLX5_GID_IB;
    } else if (out->type == EPW_MLX5_GID_ROCE_V2 && epw_fake_lacks(fake, EPW_FAKE_NO_ROCE_V2)) {
        return ENODATA;
    }
    (routed ? routed_gid : local_gid)(fake->options.rank, device, out->bytes);
    if (atomic_load_explicit(&fake->moved, memory_order_relaxed)) out->bytes[12]++;
    return 0;
}

uint32_t epw_fake_lid(const epw_fake *fake, uint32_t device) {
    if (epw_fake_lacks(fake, EPW_FAKE_NO_LID)) return 0;
    bool moved = atomic_load_explicit(&fake->moved, memory_order_relaxed);
    uint32_t first = moved ? 1 + EPW_FAKE_DEVICES_MAX * EPW_MAX_RANKS : 1;
    return fake->options.infiniband ? first + fake->options.rank + device * EPW_MAX_RANKS : 0;
}

uint32_t epw_fake_mtu(const epw_fake *fake) {
    return fake->options.mtu != 0 ? fake->options.mtu : 5;
}

void epw_fake_mac(const unsigned char gid[16], unsigned char mac[6]) {
    mac[0] = 0x02; /* locally administered */
    mac[1] = 0;
    memcpy(mac + 2, gid + 12, 4);
}
