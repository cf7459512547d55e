/* The objects of the fake adapter, in one list. Each counts the other objects that depend on it. */
#include "nic/fake/parts.h"

#include <errno.h>
#include <stdlib.h>

enum { FIRST_ID = 0x100 };

epw_fake_item *epw_fake_add(epw_fake *fake, epw_fake_kind kind, uint32_t device, uint32_t id) {
    epw_fake_item *item = calloc(1, sizeof *item);
    if (item == NULL) return NULL;
    item->fake = fake;
    item->kind = kind;
    item->device = device;
    pthread_mutex_lock(&fake->lock);
    item->id = id != 0 ? id : FIRST_ID + ++fake->last_id;
    item->next = fake->items;
    fake->items = item;
    pthread_mutex_unlock(&fake->lock);
    return item;
}

epw_fake_item *epw_fake_find(epw_fake *fake, epw_fake_kind kind, uint32_t id) {
    pthread_mutex_lock(&fake->lock);
    epw_fake_item *item = fake->items;
    while (item != NULL && (item->kind != kind || item->id != id)) item = item->next;
    pthread_mutex_unlock(&fake->lock);
    return item;
}

epw_fake_item *epw_fake_find_uar(epw_fake *fake, const unsigned char *address) {
    pthread_mutex_lock(&fake->lock);
    epw_fake_item *item = fake->items;
    while (item != NULL && (item->kind != EPW_FAKE_UAR || item->address != address)) item = item->next;
    pthread_mutex_unlock(&fake->lock);
    return item;
}

void epw_fake_rename(epw_fake_item *item, uint32_t id) {
    pthread_mutex_lock(&item->fake->lock);
    item->id = id;
    pthread_mutex_unlock(&item->fake->lock);
}

void epw_fake_use(epw_fake_item *user, epw_fake_item *used) {
    uint32_t i = 0;
    pthread_mutex_lock(&user->fake->lock);
    while (user->uses[i] != NULL) i++;
    user->uses[i] = used;
    used->users++;
    pthread_mutex_unlock(&user->fake->lock);
}

int epw_fake_drop(epw_fake_item *item) {
    epw_fake *fake = item->fake;
    pthread_mutex_lock(&fake->lock);
    bool busy = item->users > 0;
    if (!busy) {
        epw_fake_item **at = &fake->items;
        while (*at != item) at = &(*at)->next;
        *at = item->next;
        for (uint32_t i = 0; i < sizeof item->uses / sizeof item->uses[0] && item->uses[i] != NULL; i++)
            item->uses[i]->users--;
    }
    pthread_mutex_unlock(&fake->lock);
    if (busy) return EBUSY;
    free(item);
    return 0;
}

bool epw_fake_fails(epw_fake *fake, epw_fake_call call) {
    bool fails = false;
    pthread_mutex_lock(&fake->lock);
    if (fake->options.failing == call) {
        uint32_t before = fake->calls_of_failing++, after = fake->options.failing_after;
        fails = before == after || (fake->lasting && before > after);
    }
    fake->failed += fails;
    pthread_mutex_unlock(&fake->lock);
    return fails;
}

void epw_fake_fail(epw_fake *fake, epw_fake_call call, uint32_t after, int err, bool lasting) {
    pthread_mutex_lock(&fake->lock);
    fake->options.failing = call;
    fake->options.failing_after = after;
    fake->options.failing_errno = err;
    fake->calls_of_failing = 0;
    fake->lasting = lasting;
    pthread_mutex_unlock(&fake->lock);
}

uint32_t epw_fake_failed(epw_fake *fake) {
    pthread_mutex_lock(&fake->lock);
    uint32_t failed = fake->failed;
    pthread_mutex_unlock(&fake->lock);
    return failed;
}

void epw_fake_count_pairs(epw_fake *fake, uint32_t *all, uint32_t *warm) {
    *all = *warm = 0;
    for (const epw_fake_item *item = fake->items; item != NULL; item = item->next) {
        if (item->kind != EPW_FAKE_QP) continue;
        *all += 1;
        *warm += item->pair != NULL && epw_pair_rung_for(item->pair) > 0 && epw_pair_idle(item->pair) &&
                 !epw_pair_broken(item->pair);
    }
}

epw_fake_left epw_fake_count(epw_fake *fake) {
    epw_fake_left left = {0};
    pthread_mutex_lock(&fake->lock);
    for (const epw_fake_item *item = fake->items; item != NULL; item = item->next) {
        left.devices += item->kind == EPW_FAKE_DEVICE;
        left.domains += item->kind == EPW_FAKE_DOMAIN;
        left.uars += item->kind == EPW_FAKE_UAR;
        left.umems += item->kind == EPW_FAKE_UMEM;
        left.regions += item->kind == EPW_FAKE_REGION;
        left.objects += item->kind == EPW_FAKE_CQ || item->kind == EPW_FAKE_QP;
    }
    pthread_mutex_unlock(&fake->lock);
    return left;
}
