/* Declarations for the files of the fake adapter: its objects, and its firmware. */
#ifndef EPW_NIC_FAKE_PARTS_H
#define EPW_NIC_FAKE_PARTS_H

#include "nic/fake.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    EPW_FAKE_EQ = 7,
    EPW_FAKE_PORT = 1,
    EPW_FAKE_LOG_ENTRIES = 15, /* the most that a ring may have */
    EPW_FAKE_PAGE = 4096
};

typedef enum epw_fake_kind {
    EPW_FAKE_DEVICE,
    EPW_FAKE_DOMAIN,
    EPW_FAKE_UAR,
    EPW_FAKE_UMEM,
    EPW_FAKE_REGION,
    EPW_FAKE_CQ,
    EPW_FAKE_QP
} epw_fake_kind;

typedef struct epw_fake_item {
    struct epw_fake_item *next;
    epw_fake *fake;
    epw_fake_kind kind;
    uint32_t device; /* number of the device that it belongs to */
    uint32_t id;
    uint32_t users; /* objects that depend on it */

    unsigned char *address; /* UAR: its register. UMEM, REGION: its memory. CQ: its entry */
    size_t bytes;
    unsigned char *record; /* CQ: its doorbell record */
    bool mapped;           /* UMEM, REGION: this process has mapped it by a descriptor */

    struct epw_fake_item *uses[5]; /* CQ, QP, REGION: the objects that it depends on, in any order */
    uint32_t state;                /* QP: EPW_MLX5_STATE_* */
    epw_pair *pair;                /* QP: the soft NIC's queue pair; NULL: there is none */
    epw_fake_route route, reached; /* QP: from epw_fake_add_route; from INIT2RTR */
    bool astray;                   /* QP: whatever it sends is lost */
} epw_fake_item;

struct epw_fake {
    epw_fake_options options;
    epw_mlx5_calls calls;
    atomic_bool moved; /* see epw_fake_move */

    pthread_mutex_t lock; /* guards what follows; never held while the soft NIC is called */
    epw_fake_item *items;
    uint32_t last_id, calls_of_failing, failed;
    bool lasting; /* see epw_fake_fail */
    epw_fake_tap tap;

    pthread_mutex_t uar_lock;   /* guards the pages of registers; taken before `lock` */
    pthread_mutex_t event_lock; /* taken while the soft NIC is locked */
    struct {
        void (*event)(void *context, const epw_mlx5_event *event);
        void *context;
    } listeners[EPW_FAKE_DEVICES_MAX];
};

static inline bool epw_fake_lacks(const epw_fake *fake, epw_fake_lack lack) {
    return (fake->options.lacks >> lack & 1) != 0;
}

/* ---- items.c ---- */

/* A new item in the list; NULL: no memory. An `id` of 0 takes the next free number. */
epw_fake_item *epw_fake_add(epw_fake *fake, epw_fake_kind kind, uint32_t device, uint32_t id);

/* The item of this kind and number; NULL if there is none. */
epw_fake_item *epw_fake_find(epw_fake *fake, epw_fake_kind kind, uint32_t id);

/* The register at this address; NULL if there is none. */
epw_fake_item *epw_fake_find_uar(epw_fake *fake, const unsigned char *address);

void epw_fake_rename(epw_fake_item *item, uint32_t id);

/* EBUSY: other items depend on it. */
int epw_fake_drop(epw_fake_item *item);

/* Makes `user` depend on `used`. */
void epw_fake_use(epw_fake_item *user, epw_fake_item *used);

/* Counts the call, and says whether it is the one that must fail. */
bool epw_fake_fails(epw_fake *fake, epw_fake_call call);

/* ---- addresses.c ---- */

/* GID `index` of the device's port; ENODATA if that entry is empty. */
int epw_fake_gid(const epw_fake *fake, uint32_t device, uint32_t index, epw_mlx5_gid *out);
uint32_t epw_fake_gids(const epw_fake *fake);
uint32_t epw_fake_lid(const epw_fake *fake, uint32_t device);
uint32_t epw_fake_mtu(const epw_fake *fake);
void epw_fake_mac(const unsigned char gid[16], unsigned char mac[6]);

/* ---- firmware.c ---- */

/* Executes a command that came by this call (CREATE, MODIFY, QUERY or GENERAL) on `object`, which is a device
 * for GENERAL and CREATE. *made is the object that it creates. Returns 0, or EREMOTEIO with status and
 * syndrome in `out`, or another errno: EINVAL for a command that the kernel does not pass on. */
int epw_fake_command(epw_fake_item *object, epw_fake_call call, const void *in, size_t in_bytes, void *out,
                     size_t out_bytes, epw_fake_item **made);

/* Connects a queue pair in RTS by the link of its route, or by no link if its route leads elsewhere than the
 * address to which it is connected. */
void epw_fake_reach(epw_fake_item *qp);

#endif
