/* See sm_ledger.h. */
#include "device/sm_ledger.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct epw_sm_share {
    epw_sm_request of;
    uint32_t sms;
    epw_sm_share *next; /* the next share, taken earlier */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static epw_sm_share *shares; /* shares of all GPUs */

enum { HOLDERS_TEXT = 320, HOLDERS_NAMED = 6 };

/* Called with the lock held, as are the next two functions. */
static uint32_t taken(int32_t device) {
    uint32_t sum = 0;
    for (const epw_sm_share *s = shares; s != NULL; s = s->next)
        if (s->of.device == device) sum += s->sms;
    return sum;
}

static void name_holders(int32_t device, char text[HOLDERS_TEXT]) {
    int at = 0, named = 0, others = 0;
    text[0] = '\0';
    for (const epw_sm_share *s = shares; s != NULL; s = s->next) {
        if (s->of.device != device) continue;
        if (named == HOLDERS_NAMED) {
            others++;
            continue;
        }
        at += snprintf(text + at, HOLDERS_TEXT - (size_t)at, "%sthe %s of rank %u has %u",
                       named > 0 ? ", " : "", s->of.holder, s->of.rank, s->sms);
        named++;
    }
    if (others > 0) snprintf(text + at, HOLDERS_TEXT - (size_t)at, ", and %d more have some", others);
}

static epw_status refuse(const epw_sm_request *r, uint32_t free_sms, epw_where where) {
    char text[HOLDERS_TEXT];
    name_holders(r->device, text);
    return epw_fail(
        EPW_ERR_LIMIT, where,
        "config.sms: at least %u SMs are needed, and %u of GPU %d's %u are free: %s. Kernels that wait for "
        "peers must all fit at the same time: give each holder fewer with its config.sms",
        r->least, free_sms, r->device, r->sms, text);
}

epw_status epw_sm_ledger_take(const epw_sm_request *request, epw_where where, epw_sm_share **out) {
    epw_sm_share *share = malloc(sizeof *share);
    if (share == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a share of the GPU's SMs");
    epw_status status = EPW_OK;
    pthread_mutex_lock(&lock);
    uint32_t held = taken(request->device), free_sms = held < request->sms ? request->sms - held : 0;
    uint32_t fits = free_sms - free_sms % request->multiple;
    if (free_sms >= request->least) {
        *share = (epw_sm_share){*request, fits < request->most ? fits : request->most, shares};
        shares = share;
    } else {
        status = refuse(request, free_sms, where);
    }
    pthread_mutex_unlock(&lock);
    if (status != EPW_OK) {
        free(share);
        return status;
    }
    *out = share;
    return EPW_OK;
}

void epw_sm_ledger_give(epw_sm_share *share) {
    if (share == NULL) return;
    pthread_mutex_lock(&lock);
    epw_sm_share **at = &shares;
    while (*at != share) at = &(*at)->next;
    *at = share->next;
    pthread_mutex_unlock(&lock);
    free(share);
}

uint32_t epw_sm_share_of(const epw_sm_share *share) {
    return share->sms;
}
