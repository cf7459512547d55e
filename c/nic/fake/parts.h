/* The parts of the fake adapter, for its own files: what it has made, and its firmware. */
#ifndef EPW_NIC_FAKE_PARTS_H
#define EPW_NIC_FAKE_PARTS_H

#include "nic/fake.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    EPW_FAKE_EQ = 7,
    EPW_FAKE_PORT = 1,
    EPW_FAKE_LOG_ENTRIES = 15, /* of a ring at most */
    EPW_FAKE_LOG_MESSAGE = 30,
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
    uint32_t device; /* whose it is, by number */
    uint32_t id;
    uint32_t users; /* others that cannot be without it */

    unsigned char *address; /* UAR: its page. UMEM, REGION. CQ: its entry */
    size_t bytes;
    bool mapped;           /* UMEM, REGION: by this process, of a descriptor */
    epw_mlx5_uar_kind uar; /* UAR */

    struct epw_fake_item *uses[5]; /* CQ, QP, REGION: in no order */
    uint32_t state;                /* QP: EPW_MLX5_STATE_* */
    epw_pair *pair;                /* QP: its end at the soft NIC; NULL: there is none */
    epw_fake_route route, reached; /* QP: as said; as INIT2RTR has asked */
} epw_fake_item;

struct epw_fake {
    epw_fake_options options;
    epw_mlx5_calls calls;
    atomic_bool moved; /* see epw_fake_move */

    pthread_mutex_t lock; /* of what follows. Nothing of the soft NIC is called with it */
    epw_fake_item *items;
    uint32_t last_id, calls_of_failing;
    epw_fake_tap tap;

    pthread_mutex_t event_lock; /* taken with the soft NIC locked */
    struct {
        void (*event)(void *context, const epw_mlx5_event *event);
        void *context;
    } listeners[EPW_FAKE_DEVICES_MAX];
};

static inline bool epw_fake_lacks(const epw_fake *fake, epw_fake_lack lack) {
    return (fake->options.lacks >> lack & 1) != 0;
}

/* ---- items.c ---- */

/* Fresh, in the list; NULL: no memory. `id`: 0: the next one. */
epw_fake_item *epw_fake_add(epw_fake *fake, epw_fake_kind kind, uint32_t device, uint32_t id);

/* Of this kind and number; NULL if there is none. */
epw_fake_item *epw_fake_find(epw_fake *fake, epw_fake_kind kind, uint32_t id);

/* Gives it another number. */
void epw_fake_rename(epw_fake_item *item, uint32_t id);

/* EBUSY: others cannot be without it. */
int epw_fake_drop(epw_fake_item *item);

/* `user` cannot be without `used`. */
void epw_fake_use(epw_fake_item *user, epw_fake_item *used);

/* Whether this call is the one that is to fail. */
bool epw_fake_fails(epw_fake *fake, epw_fake_call call);

/* ---- addresses.c ---- */

/* GID `index` of the device's port; ENODATA: there is none. */
int epw_fake_gid(const epw_fake *fake, uint32_t device, uint32_t index, epw_mlx5_gid *out);
uint32_t epw_fake_gids(const epw_fake *fake);
uint32_t epw_fake_lid(const epw_fake *fake, uint32_t device);
uint32_t epw_fake_mtu(const epw_fake *fake);
void epw_fake_mac(const unsigned char gid[16], unsigned char mac[6]);

/* ---- firmware.c ---- */

/* Carries a command out on `object`, or on a device, that has come by this call (CREATE, MODIFY, QUERY or
 * GENERAL). *made: the object that it creates. 0, or EREMOTEIO with status and syndrome in `out`, or another
 * errno: EINVAL for a command that the kernel does not pass on. */
int epw_fake_command(epw_fake_item *object, epw_fake_call call, const void *in, size_t in_bytes, void *out,
                     size_t out_bytes, epw_fake_item **made);

/* A queue pair that works sends by the link of its route, or by none, if that leads elsewhere than it has
 * been connected to. */
void epw_fake_reach(epw_fake_item *qp);

#endif
