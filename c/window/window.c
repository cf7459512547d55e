/* See window.h. */
#include "window/window.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "ipc/fd_client.h"
#include "ipc/fd_server.h"
#include "ipc/offer.h"
#include "window/blob.h"

struct epw_window {
    epw_window_options options; /* its terms are the array below */
    epw_term terms[EPW_TERMS_MAX];
    epw_offer *offer;
    epw_nonce server;    /* valid if serving */
    bool serving;        /* holds a reference to the fd server */
    uint32_t generation; /* of the process that created it */
};

struct epw_import {
    uint32_t path;
    uint32_t rank;       /* this rank, which holds the lease */
    uint32_t owner_pid;  /* for error texts */
    uint32_t generation; /* of the process that created it */
    epw_offer *offer;    /* EPW_PATH_THREAD: a reference to the peer's offer */
    const epw_device *device;
    epw_memory memory;    /* the other paths: a mapping of this process */
    int lease_fd;         /* and the connection that holds its lease */
    epw_blob_queue queue; /* EPW_PATH_QUEUE */
    epw_nonce window;     /* nonce of the peer's window */
    epw_import *next;     /* of those that are kept */
};

/* ---- a rank's own window ------------------------------------------------------------------------ */

/* Describes a window, without its offer. */
static epw_status describe(const epw_window_options *options, epw_where where, epw_window **out) {
    if (options->term_count > EPW_TERMS_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "%u fields must be equal, at most %d can be",
                        (unsigned)options->term_count, EPW_TERMS_MAX);
    epw_window *window = calloc(1, sizeof *window);
    if (window == NULL) return epw_fail(EPW_ERR_NO_MEMORY, where, "no memory for a window's description");
    window->options = *options;
    for (uint32_t i = 0; i < options->term_count; i++) window->terms[i] = options->terms[i];
    window->options.terms = window->terms;
    window->generation = epw_process_generation();
    *out = window;
    return EPW_OK;
}

epw_status epw_window_create(const epw_window_options *options, epw_window **out) {
    epw_where where = {"create", (int)options->rank, -1};
    epw_window *window = NULL;
    epw_status status = describe(options, where, &window);
    if (status != EPW_OK) return status;
    status = epw_offer_create(options->device, options->paths, options->ranks, options->bytes, where,
                              &window->offer);
    if (status != EPW_OK) {
        free(window);
        return status;
    }
    *out = window;
    return EPW_OK;
}

epw_status epw_window_adopt(epw_window *like, void *memory, uint64_t bytes, epw_where where, uint64_t *offset,
                            epw_window **out) {
    epw_window *window = NULL;
    epw_status status = describe(&like->options, where, &window);
    if (status != EPW_OK) return status;
    status = epw_offer_adopt(like->options.device, like->options.ranks, memory, bytes, where, &window->offer);
    if (status != EPW_OK) {
        free(window);
        return status;
    }
    *offset = (uint64_t)((unsigned char *)memory - epw_window_base(window));
    *out = window;
    return EPW_OK;
}

bool epw_window_retire(epw_window *window, uint32_t *holder) {
    epw_process_lock();
    bool held = epw_lease_is_held(window->offer, holder);
    if (held) {
        epw_fd_server_reap();
        held = epw_lease_is_held(window->offer, holder);
    }
    if (!held) epw_offer_withdraw(window->offer);
    epw_process_unlock();
    return !held;
}

bool epw_window_inherited(const epw_window *window) {
    return window && window->generation != epw_process_generation();
}

void epw_window_destroy(epw_window *window) {
    if (window == NULL) return;
    if (!epw_window_inherited(window)) {
        epw_process_lock();
        epw_offer_withdraw(window->offer);
        epw_fd_server_forget(window->offer);
        epw_process_unlock();
        epw_offer_on_ring(window->offer, NULL, NULL);
        if (window->serving) epw_fd_server_release();
    }
    epw_offer_unref(window->offer);
    free(window);
}

void epw_window_on_ring(epw_window *window, void (*fn)(void *context, uint32_t rank), void *context) {
    if (!epw_window_inherited(window)) epw_offer_on_ring(window->offer, fn, context);
}

const epw_nonce *epw_window_nonce(const epw_window *window) {
    return epw_offer_nonce(window->offer);
}

unsigned char *epw_window_base(const epw_window *window) {
    return epw_offer_memory(window->offer)->base;
}

/* Refuses calls on a window inherited by a fork. */
static epw_status check_generation(const epw_window *window, epw_where where) {
    if (!epw_window_inherited(window)) return EPW_OK;
    return epw_fail(EPW_ERR_STATE, where,
                    "the buffer belongs to the process that forked this one; create a buffer after fork");
}

epw_status epw_window_export(epw_window *window, uint32_t peer, const epw_blob_queue *queue, void *blob,
                             size_t *length) {
    const epw_window_options *own = &window->options;
    epw_where where = {"export", (int)own->rank, (int)peer};
    epw_status status = check_generation(window, where);
    if (status != EPW_OK) return status;
    const epw_memory *memory = epw_offer_memory(window->offer);
    if (!window->serving && (own->paths & memory->origin.path)) {
        status = epw_fd_server_acquire(where, &window->server);
        if (status != EPW_OK) return status;
        window->serving = true;
    }
    epw_blob contents = {.rank = own->rank,
                         .ranks = own->ranks,
                         .peer = peer,
                         .serves = window->serving,
                         .paths = own->paths,
                         .window = *epw_offer_nonce(window->offer),
                         .server = window->server,
                         .window_bytes = memory->bytes,
                         .origin = memory->origin};
    if (queue != NULL) contents.queue = *queue;
    epw_blob_set_terms(&contents, own->terms, own->term_count);
    status = epw_identity_get(where, &contents.host);
    if (status != EPW_OK) return status;
    *length = epw_blob_write(&contents, blob);
    return EPW_OK;
}

/* ---- imports ------------------------------------------------------------------------------------ */

/* The inputs of an import. */
typedef struct attempt {
    epw_window *own;
    epw_blob blob;
    epw_identity self;
    uint64_t deadline_ns, until_ns;
    epw_where where;
} attempt;

/* `bytes`: of the window; 0: any. */
static epw_status check_blob(const epw_blob *blob, const epw_window_options *own, uint64_t bytes,
                             epw_where where) {
    unsigned peer = (unsigned)where.peer;
    if (blob->rank != peer)
        return epw_fail(EPW_ERR_INVALID, where, "the blob was exported by rank %u; give the one of rank %u",
                        (unsigned)blob->rank, peer);
    if (blob->peer != own->rank)
        return epw_fail(EPW_ERR_INVALID, where, "the blob was exported for rank %u; give the one for rank %u",
                        (unsigned)blob->peer, (unsigned)own->rank);
    epw_status status = epw_blob_check(blob, own, where);
    if (status != EPW_OK) return status;
    if (bytes == 0 || blob->window_bytes == bytes) return EPW_OK;
    return epw_fail(EPW_ERR_MISMATCH, where,
                    "the window has %llu bytes here and %llu at peer %u; use the same epwire "
                    "version on all ranks",
                    (unsigned long long)bytes, (unsigned long long)blob->window_bytes, peer);
}

static epw_status read_blob(const epw_window *own, uint64_t bytes, const void *blob, size_t length,
                            epw_where where, epw_blob *out) {
    epw_status status = check_generation(own, where);
    if (status == EPW_OK) status = epw_blob_parse(blob, length, where, out);
    return status == EPW_OK ? check_blob(out, &own->options, bytes, where) : status;
}

static epw_where connect_where(const epw_window *own, uint32_t peer) {
    return (epw_where){"connect", (int)own->options.rank, (int)peer};
}

static uint64_t own_bytes(const epw_window *own) {
    return epw_offer_memory(own->offer)->bytes;
}

epw_status epw_window_read_blob(const epw_window *own, uint32_t peer, const void *blob, size_t length,
                                epw_blob *out) {
    return read_blob(own, own_bytes(own), blob, length, connect_where(own, peer), out);
}

/* The kind of the peer's window, if the path cannot map it. */
static const char *other_origin(uint32_t path) {
    return path == EPW_PATH_VMM ? "the peer's window has a VMM handle"
                                : "the peer's window has an IPC handle";
}

/* Why the peer's window cannot be mapped by this process by `path`; NULL if it can. */
static const char *why_not_mapped(const attempt *a, uint32_t path) {
    const epw_identity *here = &a->self, *there = &a->blob.host;
    if (!epw_nonce_equal(&here->boot_id, &there->boot_id)) return "another host";
    if (here->network_namespace != there->network_namespace)
        return "same host, but another network namespace (run containers on the host's network)";
    if (!(a->own->options.paths & path)) return "excluded by config.paths";
    if (path == EPW_PATH_IPC && epw_nonce_equal(&here->process, &there->process))
        return "not within one process (permit EPW_PATH_THREAD)";
    if (a->blob.origin.path != path) return other_origin(a->blob.origin.path);
    if (!a->blob.serves) return "excluded by the peer's config.paths";
    return NULL;
}

/* Whether the peer will find that it can map this rank's window: the same conditions from its point of
 * view. */
static bool can_map_own(const attempt *a) {
    const epw_identity *here = &a->self, *there = &a->blob.host;
    uint32_t path = epw_offer_memory(a->own->offer)->origin.path;
    bool same_process = epw_nonce_equal(&here->process, &there->process);
    if (same_process && (a->blob.paths & EPW_PATH_THREAD)) return true;
    return epw_nonce_equal(&here->boot_id, &there->boot_id) &&
           here->network_namespace == there->network_namespace && (a->blob.paths & path) &&
           (a->own->options.paths & path) && !(path == EPW_PATH_IPC && same_process);
}

/* Why no queue leads to the peer; NULL if one does. */
static const char *why_no_queue(const attempt *a) {
    if (!a->own->options.queues) return "this rank has no fabric";
    if (!(a->own->options.paths & EPW_PATH_QUEUE)) return "excluded by config.paths";
    if (a->blob.queue.length == 0) return "the peer has no fabric, or its config.paths exclude it";
    return NULL;
}

/* Chooses the path; EPW_PATH_NONE, with an error that gives the reason against each path, if there is
 * none. */
static uint32_t choose_path(const attempt *a) {
    const char *not_thread = "another process", *no = why_not_mapped(a, a->blob.origin.path);
    uint32_t mapped = no == NULL ? a->blob.origin.path : EPW_PATH_NONE;
    if (epw_nonce_equal(&a->self.process, &a->blob.host.process)) {
        not_thread = "excluded by config.paths";
        if (a->own->options.paths & EPW_PATH_THREAD) mapped = EPW_PATH_THREAD;
    }
    const char *no_queue = why_no_queue(a);
    /* A GPU rank may receive from a peer behind a queue in its inbox and from a mapped peer in its window,
     * and assumes for both the path that it itself takes to the peer. So both ranks must choose alike: either
     * both use queues, or each maps the other's window. */
    bool alike = a->own->options.device == EPW_DEVICE_HOST || can_map_own(a);
    if (mapped != EPW_PATH_NONE && (alike || no_queue != NULL)) return mapped;
    if (no_queue == NULL) return EPW_PATH_QUEUE;
    unsigned pid = (unsigned)a->blob.host.pid;
    if (a->own->options.device == EPW_DEVICE_HOST) {
        epw_fail(EPW_ERR_NO_PATH, a->where,
                 "no permitted path leads to the peer (process %u). thread: %s; shm: %s; queue: %s", pid,
                 not_thread, no, no_queue);
    } else {
        epw_fail(EPW_ERR_NO_PATH, a->where,
                 "no permitted path leads to the peer (process %u). thread: %s; vmm: %s; ipc: %s; queue: %s",
                 pid, not_thread, why_not_mapped(a, EPW_PATH_VMM), why_not_mapped(a, EPW_PATH_IPC), no_queue);
    }
    return EPW_PATH_NONE;
}

/* Logs the path, and the reasons against the preferred ones. */
static void tell_path(const attempt *a, uint32_t path) {
    if (path == EPW_PATH_NONE) {
        epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
        epw_last_error_detail(&detail);
        epw_log(EPW_LOG_PATH, EPW_LOG_WARN, a->where, "%s", detail.text);
        return;
    }
    bool same = epw_nonce_equal(&a->self.process, &a->blob.host.process);
    const char *thread = !same                                     ? "another process"
                         : a->own->options.paths & EPW_PATH_THREAD ? "possible"
                                                                   : "excluded by config.paths";
    const char *mapped = why_not_mapped(a, a->blob.origin.path), *queue = why_no_queue(a);
    epw_log(EPW_LOG_PATH, EPW_LOG_TRACE, a->where, "process %u by %s. thread: %s; %s: %s; queue: %s",
            (unsigned)a->blob.host.pid, epw_path_name(path), thread, epw_path_name(a->blob.origin.path),
            mapped != NULL ? mapped : "possible", queue != NULL ? queue : "possible");
}

static epw_status destroyed(epw_where where) {
    return epw_fail(
        EPW_ERR_PEER, where,
        "the peer's buffer, of this process, has been destroyed; connect with a blob of its present buffer");
}

static epw_status import_thread(const attempt *a, epw_import *import) {
    epw_holder self = {
        .process = a->self.process, .window = *epw_offer_nonce(a->own->offer), .pid = a->self.pid};
    epw_holder holder = {0};
    epw_lease_verdict verdict = EPW_LEASE_NO_SUCH_RANK;
    epw_process_lock();
    epw_offer *offer = epw_offer_find(&a->blob.window);
    if (offer != NULL) {
        verdict = epw_lease_take(offer, import->rank, &self, &holder);
        if (verdict == EPW_LEASE_HELD) {
            epw_fd_server_reap();
            verdict = epw_lease_take(offer, import->rank, &self, &holder);
        }
        if (verdict == EPW_LEASE_GRANTED) epw_offer_ref(offer);
    }
    epw_process_unlock();
    if (verdict == EPW_LEASE_HELD) return epw_fenced(a->where, import->rank, &self, &holder);
    if (verdict != EPW_LEASE_GRANTED) return destroyed(a->where);
    epw_status status =
        epw_offer_device(offer)->share(epw_offer_memory(offer), a->own->options.device, a->where);
    if (status != EPW_OK) {
        epw_process_lock();
        epw_lease_end(offer, import->rank);
        epw_process_unlock();
        epw_offer_unref(offer);
        return status;
    }
    import->offer = offer;
    return EPW_OK;
}

static epw_status import_mapping(const attempt *a, epw_import *import) {
    epw_fd_request request = {.rank = import->rank,
                              .pid = a->self.pid,
                              .process = a->self.process,
                              .holder = *epw_offer_nonce(a->own->offer),
                              .window = a->blob.window};
    epw_fd_grant grant;
    epw_status status = epw_fd_fetch(&a->blob.server, &request, a->blob.host.pid, a->deadline_ns, a->until_ns,
                                     a->where, &grant);
    if (status != EPW_OK) return status;
    status = import->device->map(a->own->options.device, &a->blob.origin, grant.memory_fd,
                                 a->blob.window_bytes, a->until_ns, a->where, &import->memory);
    close(grant.memory_fd);
    if (status != EPW_OK) {
        epw_fd_leave(grant.lease_fd);
        return status;
    }
    import->lease_fd = grant.lease_fd;
    return EPW_OK;
}

/* A peer behind a queue asks for no lease, so this rank itself checks that no other incarnation of the peer
 * has its window mapped: through the mapping that one would write where the peer now may. Checking here is
 * enough: the peer writes rows only from an epoch on that begins after it has been connected. */
static epw_status check_lease(const attempt *a) {
    const epw_offer *own = a->own->offer;
    uint32_t peer = a->blob.rank;
    epw_holder holder;
    epw_process_lock();
    bool fenced = epw_lease_is_of_another(own, peer, &a->blob.window, &holder);
    if (fenced) {
        epw_fd_server_reap();
        fenced = epw_lease_is_of_another(own, peer, &a->blob.window, &holder);
    }
    epw_process_unlock();
    if (!fenced) return EPW_OK;
    if (epw_nonce_equal(&holder.process, &a->self.process))
        return epw_fail(
            EPW_ERR_FENCED, a->where,
            "another buffer of this process still has this rank's window mapped as rank %u, whose "
            "place the peer takes, and might write there; destroy or disconnect it, then connect "
            "again",
            (unsigned)peer);
    return epw_fail(EPW_ERR_FENCED, a->where,
                    "process %u still has this rank's window mapped as rank %u, whose place the peer takes, "
                    "and might write there; end that process, or let it destroy or disconnect its buffer, "
                    "then connect again",
                    (unsigned)holder.pid, (unsigned)peer);
}

/* The inputs are those of epw_window_import; `bytes`: as in check_blob. */
static epw_status import_of(epw_window *own, epw_where where, uint64_t bytes, const void *blob, size_t length,
                            uint64_t deadline_ns, epw_import **out) {
    uint64_t now = epw_now_ns();
    attempt a = {.own = own,
                 .deadline_ns = deadline_ns,
                 .until_ns = deadline_ns < UINT64_MAX - now ? now + deadline_ns : UINT64_MAX,
                 .where = where};
    epw_status status = read_blob(own, bytes, blob, length, where, &a.blob);
    if (status == EPW_OK) status = epw_identity_get(a.where, &a.self);
    if (status != EPW_OK) return status;

    uint32_t path = choose_path(&a);
    tell_path(&a, path);
    if (path == EPW_PATH_NONE) return EPW_ERR_NO_PATH;
    epw_import *import = calloc(1, sizeof *import);
    if (import == NULL) return epw_fail(EPW_ERR_NO_MEMORY, a.where, "no memory for an import's description");
    import->path = path;
    import->window = a.blob.window;
    import->owner_pid = a.blob.host.pid;
    import->rank = own->options.rank;
    import->device = epw_device_of(own->options.device);
    import->generation = epw_process_generation();
    if (path == EPW_PATH_QUEUE) {
        import->queue = a.blob.queue;
        status = check_lease(&a);
    } else {
        status = path == EPW_PATH_THREAD ? import_thread(&a, import) : import_mapping(&a, import);
    }
    if (status != EPW_OK) {
        free(import);
        return status;
    }
    *out = import;
    return EPW_OK;
}

epw_status epw_window_import(epw_window *own, uint32_t peer, const void *blob, size_t length,
                             uint64_t deadline_ns, epw_import **out) {
    return import_of(own, connect_where(own, peer), own_bytes(own), blob, length, deadline_ns, out);
}

epw_status epw_window_import_memory(epw_window *own, uint32_t peer, const void *blob, size_t length,
                                    uint64_t deadline_ns, epw_import **out) {
    epw_where where = {"import", (int)own->options.rank, (int)peer};
    return import_of(own, where, 0, blob, length, deadline_ns, out);
}

static const epw_memory *memory_of(const epw_import *import) {
    return import->path == EPW_PATH_THREAD ? epw_offer_memory(import->offer) : &import->memory;
}

unsigned char *epw_import_base(const epw_import *import) {
    return memory_of(import)->base;
}

uint64_t epw_import_bytes(const epw_import *import) {
    return memory_of(import)->bytes;
}

const epw_blob_queue *epw_import_queue(const epw_import *import) {
    return &import->queue;
}

const epw_nonce *epw_import_window(const epw_import *import) {
    return &import->window;
}

uint32_t epw_import_path(const epw_import *import) {
    return import->path;
}

bool epw_import_orders_copies(const epw_import *import, int32_t ordinal) {
    const epw_memory *memory = memory_of(import);
    return import->path == EPW_PATH_THREAD && memory->origin.path == EPW_PATH_IPC &&
           memory->ordinal != ordinal;
}

epw_status epw_import_ring(epw_import *import, epw_where where) {
    if (import->generation != epw_process_generation())
        return epw_fail(EPW_ERR_STATE, where, "the import belongs to the process that forked this one");
    if (import->path != EPW_PATH_THREAD) return epw_fd_ring(import->lease_fd, import->owner_pid, where);
    epw_process_lock();
    bool there = epw_offer_ring(import->offer, import->rank);
    epw_process_unlock();
    return there ? EPW_OK : destroyed(where);
}

void epw_import_keep(epw_import *import, epw_import **kept) {
    import->next = *kept;
    *kept = import;
}

void epw_imports_close(epw_import *kept) {
    while (kept != NULL) {
        epw_import *next = kept->next;
        epw_import_close(kept);
        kept = next;
    }
}

void epw_import_close(epw_import *import) {
    if (import == NULL) return;
    /* A forked child has neither the mapping nor the connection. */
    bool inherited = import->generation != epw_process_generation();
    if (import->path == EPW_PATH_THREAD) {
        epw_process_lock();
        if (!inherited) epw_lease_end(import->offer, import->rank);
        epw_process_unlock();
        epw_offer_unref(import->offer);
    } else if (!inherited && import->path != EPW_PATH_QUEUE) {
        /* In this order: leaving tells the exporter that the mapping is gone. */
        import->device->unmap(&import->memory);
        epw_fd_leave(import->lease_fd);
    }
    free(import);
}
