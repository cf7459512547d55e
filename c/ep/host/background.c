/* Giving a handle up. Peers must not wait for a combine that will not come: the lane's machine knows which
 * words a released operation still owes them. They are posted at once if possible, otherwise by a thread in
 * the background or by the lane's next operation, whichever looks first. */
#include "ep/host/host.h"

#include "base/clock.h"
#include "base/thread.h"

epw_status epw_host_release(epw_buffer *b, epw_lane *lane, void *const *stream) {
    (void)stream;
    lane->host->faulted = true;
    epw_lane_give_up(&lane->machine, epw_now_ns());
    bool owing = epw_host_pay(b, lane) == EPW_PENDING;
    if (!owing) epw_host_post_all(b, lane);
    epw_lane_unlock(b, lane);
    if (owing) {
        epw_host *host = b->host;
        pthread_mutex_lock(&host->background_lock);
        host->background_needed = true;
        pthread_cond_signal(&host->background_wake);
        pthread_mutex_unlock(&host->background_lock);
    }
    return EPW_OK;
}

/* The thread sleeps on the words of one lane. At this interval it looks at what the other lanes owe, which
 * may be newer than its sleep. */
#define OTHER_LANES_NS UINT64_C(2000000)

/* Steps once every lane that owes something; returns one that still does. */
static epw_lane *step_debts(epw_buffer *b) {
    epw_lane *owing = NULL;
    for (uint32_t i = 0; i < b->config.lanes; i++) {
        epw_lane *lane = &b->lanes[i];
        pthread_mutex_lock(&lane->lock);
        if (epw_host_pay(b, lane) == EPW_PENDING) owing = lane;
        epw_lane_unlock(b, lane);
    }
    return owing;
}

static void *background_main(void *argument) {
    epw_thread_name("epw-background");
    epw_buffer *b = argument;
    epw_host *host = b->host;
    pthread_mutex_lock(&host->background_lock);
    while (!host->background_ending) {
        if (!host->background_needed) {
            pthread_cond_wait(&host->background_wake, &host->background_lock);
            continue;
        }
        host->background_needed = false;
        pthread_mutex_unlock(&host->background_lock);
        epw_lane *owing = step_debts(b);
        uint64_t most = b->config.lanes > 1 ? OTHER_LANES_NS : UINT64_MAX;
        if (owing != NULL) epw_watch_sleep(&b->peers, epw_lane_index(b, owing), &owing->host->watch, most);
        pthread_mutex_lock(&host->background_lock);
        host->background_needed |= owing != NULL;
    }
    pthread_mutex_unlock(&host->background_lock);
    return NULL;
}

epw_status epw_background_start(epw_buffer *b) {
    int err = epw_thread_start(background_main, b, &b->host->background);
    if (err != 0) {
        return epw_fail_errno(err, epw_buffer_where(b, "create"),
                              "cannot start the thread that completes releases");
    }
    b->host->background_started = true;
    return EPW_OK;
}

void epw_background_stop(epw_buffer *b) {
    epw_host *host = b->host;
    if (!host->background_started) return;
    pthread_mutex_lock(&host->background_lock);
    host->background_ending = true;
    pthread_cond_signal(&host->background_wake);
    pthread_mutex_unlock(&host->background_lock);
    pthread_join(host->background, NULL);
    host->background_started = false;
}
