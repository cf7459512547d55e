/* See probe.h. */
#include "nic/verbs/probe.h"

#include "nic/mlx5.h"
#include "nic/mlx5/library.h"
#include "nic/order.h"
#include "nic/verbs/calls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, DEPTH = 16 };

static const epw_where where = {"doctor", -1, -1};

typedef struct probe {
    const epw_mlx5_calls *calls;
    epw_mlx5 *adapter;
    epw_adapter_device device;
    epw_probe_list found;
} probe;

/* ---- device, port, address, protection domain ---- */

static bool open_adapter(probe *p, const char *name) {
    char exactly[EPW_MLX5_NAME_BYTES + 1], text[EPW_MLX5_TEXT];
    snprintf(exactly, sizeof exactly, "=%s", name);
    if (epw_mlx5_open(p->calls, &(epw_mlx5_options){.filter = exactly}, where, &p->adapter) != EPW_OK) {
        epw_probe_find_error(&p->found, EPW_PROBE_MISSING, "verbs");
        return false;
    }
    p->device = epw_mlx5_device(p->adapter);
    epw_probe_find(&p->found, EPW_PROBE_OK, "verbs", "", "%s", epw_mlx5_describe(p->adapter, text));
    if (epw_mlx5_is_unordered(p->adapter)) {
        epw_probe_find(&p->found, EPW_PROBE_WARNING, "order", "",
                       "its transport promises none: words are posted when what is before them is done");
    } else {
        epw_probe_find(&p->found, EPW_PROBE_OK, "order", "",
                       "its transport promises to place writes as they are posted");
    }
    return true;
}

/* ---- a queue pair that is connected to itself ---- */

/* Polls until the work is done, *count 1, or EPW_PROBE_WAIT_MS have passed, *count 0. Returns an errno. */
static int await_done(const epw_verbs_calls *verbs, void *queue, epw_verbs_done *done, uint32_t *count) {
    *count = 0;
    for (int ms = 0; ms < EPW_PROBE_WAIT_MS; ms++) {
        int err = verbs->poll(queue, done, 1, count);
        if (err != 0 || *count == 1) return err;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return 0;
}

static void find_errno(probe *p, const char *name, const char *remedy, const char *what, int err) {
    epw_probe_find(&p->found, EPW_PROBE_MISSING, name, remedy, "%s: %s (errno %d)", what, strerror(err), err);
}

static void send_to_itself(probe *p, const epw_verbs_calls *verbs, void *queue, uint32_t number,
                           const epw_mlx5_region *region, const uint64_t *word, const char *name) {
    epw_mlx5_address self = epw_mlx5_address_of(p->adapter);
    epw_mlx5_path path = p->device.path;
    const uint64_t value = 1;
    epw_verbs_done done;
    uint32_t posted, count;
    path.remote = number;
    path.lid = self.lid;
    memcpy(path.gid, self.gid, sizeof path.gid);
    epw_mlx5_choose_retries(EPW_PROBE_RETRIES_NS, &path);
    int err = verbs->connect(queue, &path);
    if (err != 0) {
        find_errno(p, name, "see the port's state with ibv_devinfo -v", "not connected to itself", err);
        return;
    }
    epw_verbs_work work = {.opcode = EPW_OPCODE_WRITE,
                           .signalled = true,
                           .is_inline = true,
                           .key = region->rkey,
                           .inlined = (const unsigned char *)&value,
                           .inlined_bytes = sizeof value};
    err = verbs->post(queue, &work, 1, &posted);
    if (err != 0) {
        find_errno(p, name, "see dmesg", "takes no entry", err);
    } else if ((err = await_done(verbs, queue, &done, &count)) != 0) {
        find_errno(p, name, "see dmesg", "tells no completions", err);
    } else if (count == 0) {
        epw_probe_find_unheard(&p->found, name);
    } else if (done.syndrome != EPW_SYNDROME_NONE) {
        epw_probe_find_failed(&p->found, name, done.syndrome, done.vendor);
    } else if (epw_load_acquire_64(word) != value) {
        epw_probe_find(&p->found, EPW_PROBE_MISSING, name, "see dmesg",
                       "a word sent to itself is done, but has not arrived");
    } else {
        epw_probe_find(&p->found, EPW_PROBE_OK, name, "", "a word sent to itself arrived");
    }
}

/* False: the adapter may still write to the page. */
static bool try_queue(probe *p, const epw_mlx5_region *region, const uint64_t *word, const char *name) {
    const epw_verbs_calls *verbs = epw_verbs_calls_of_library();
    void *channel, *queue;
    uint32_t number;
    int fd, err = verbs->open_channel(p->device.device, &channel, &fd);
    if (err != 0) {
        find_errno(p, name, "see the limit of open files (ulimit -n)", "completions are not reported", err);
        return true;
    }
    err = verbs->open_queue(p->device.device, p->device.pd, channel, DEPTH, 0, &queue, &number);
    if (err != 0) {
        find_errno(p, name,
                   err == ENOMEM ? "raise the limit of locked memory (ulimit -l)"
                                 : "it needs an adapter with reliable connected queue pairs (RC)",
                   "not made", err);
        verbs->close_channel(channel);
        return true;
    }
    send_to_itself(p, verbs, queue, number, region, word, name);
    bool gone = verbs->close_queue(queue) == 0;
    if (gone) {
        verbs->close_channel(channel);
    } else {
        verbs->leave_queue(queue);
    }
    return gone;
}

static void look_at_queue_pair(probe *p) {
    static const char name[] = "queue pair";
    epw_mlx5_region region;
    uint64_t *page = epw_probe_page();
    if (page == NULL) {
        epw_probe_find(&p->found, EPW_PROBE_UNKNOWN, name, "", "there is no memory to try it with");
        return;
    }
    const uint32_t rights = EPW_MLX5_LOCAL_WRITE | EPW_MLX5_REMOTE_WRITE;
    if (p->calls->register_memory(p->device.pd, page, PAGE, 0, rights, &region) != 0) {
        epw_probe_free_page(page); /* its own finding has said why */
        return;
    }
    bool gone = try_queue(p, &region, page, name);
    p->calls->deregister(region.handle);
    if (gone) epw_probe_free_page(page);
}

/* ---- all of it ---- */

uint32_t epw_verbs_probe(const char *name, int32_t gpu, epw_probe_finding out[EPW_PROBE_FINDINGS_MAX]) {
    probe p = {.found = {.out = out}};
    if (epw_verbs_library(where, &p.calls) != EPW_OK) {
        epw_probe_find_error(&p.found, EPW_PROBE_MISSING, "libibverbs");
        return p.found.count;
    }
    if (!open_adapter(&p, name)) return p.found.count;
    epw_probe_host_memory(&p.found, p.calls, p.device.device, p.device.pd);
    epw_probe_windows(&p.found, p.calls, p.device.pd, gpu);
    look_at_queue_pair(&p);
    epw_mlx5_close(p.adapter);
    return p.found.count;
}
