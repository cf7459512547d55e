/* See peers.h: creating and destroying, checks of ranks, and suspects. */
#include "peer/peers.h"

#include "base/condition.h"
#include "base/log.h"
#include "nic/fabric.h"
#include "peer/tell.h"

#include <stdlib.h>

static void make_locks(epw_peers *peers) {
    pthread_mutex_init(&peers->lock, NULL);
    pthread_mutex_init(&peers->probe_lock, NULL);
    epw_condition_init(&peers->probe_ended);
    pthread_mutex_init(&peers->ask_lock, NULL);
    pthread_mutex_init(&peers->answer_lock, NULL);
    pthread_mutex_init(&peers->answerer.lock, NULL);
    pthread_cond_init(&peers->answerer.wake, NULL);
}

epw_status epw_peers_create(epw_peers *peers, const epw_peers_options *options) {
    uint32_t ranks = options->window.ranks, rank = options->window.rank;
    peers->rank = rank;
    peers->ranks = ranks;
    peers->lanes = options->lanes;
    peers->user = options->user;
    peers->user_context = options->user_context;
    peers->what = options->what;
    peers->permitted = options->window.paths;
    peers->fabric = options->fabric;
    epw_fabric_hold(peers->fabric);
    peers->depth = options->depth;
    peers->deadline_ns = options->deadline_ns;
    make_locks(peers);
    peers->imports = calloc(ranks, sizeof peers->imports[0]);
    peers->routes = calloc(ranks, sizeof peers->routes[0]);
    peers->remotes = calloc(ranks, sizeof peers->remotes[0]);
    peers->offered = calloc(ranks, sizeof peers->offered[0]);
    if (peers->imports == NULL || peers->routes == NULL || peers->remotes == NULL || peers->offered == NULL ||
        !epw_traffic_make(peers->traffic, peers->lanes, ranks)) {
        return epw_fail(EPW_ERR_NO_MEMORY, (epw_where){"create", (int)rank, -1},
                        "no memory for the peer table of %u ranks", ranks);
    }
    epw_status status = epw_log_open((epw_where){"create", (int)rank, -1});
    if (status == EPW_OK) status = epw_window_create(&options->window, &peers->window);
    if (status != EPW_OK) return status;
    uint64_t base = (uint64_t)(uintptr_t)epw_window_base(peers->window);
    peers->incarnations = 1;
    peers->routes[rank] = (epw_route){.path = EPW_PATH_SELF, .incarnation = 1};
    for (uint32_t lane = 0; lane < EPW_MAX_LANES; lane++)
        peers->routes[rank].lanes[lane] = (epw_areas){base, base, base};
    return EPW_OK;
}

void epw_peers_destroy(epw_peers *peers) {
    epw_remotes_close(peers);
    for (uint32_t p = 0; peers->imports != NULL && p < peers->ranks; p++) epw_import_close(peers->imports[p]);
    epw_imports_close(peers->kept);
    bool inherited = epw_peers_inherited(peers);
    epw_window_destroy(peers->window);
    epw_fabric_let_go(peers->fabric);
    free(peers->imports);
    free(peers->routes);
    epw_traffic_free(peers->traffic, peers->lanes);
    free(peers->gpu); /* in a forked child, which cannot use CUDA's part of it */
    free(peers->inbox_memory);
    free(peers->direct);
    if (inherited) return; /* its locks may be held by threads that exist only in the parent */
    pthread_cond_destroy(&peers->answerer.wake);
    pthread_mutex_destroy(&peers->answerer.lock);
    pthread_mutex_destroy(&peers->answer_lock);
    pthread_mutex_destroy(&peers->ask_lock);
    pthread_cond_destroy(&peers->probe_ended);
    pthread_mutex_destroy(&peers->probe_lock);
    pthread_mutex_destroy(&peers->lock);
}

bool epw_peers_inherited(const epw_peers *peers) {
    return peers->window != NULL && epw_window_inherited(peers->window);
}

epw_status epw_peers_check(const epw_peers *peers, const char *op, uint32_t peer) {
    if (peer < peers->ranks) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, (epw_where){op, (int)peers->rank, -1}, "peer is %u, must be below %u",
                    peer, peers->ranks);
}

static epw_mask loaded(const _Atomic uint64_t words[EPW_MASK_WORDS]) {
    epw_mask mask;
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++)
        mask.bits[i] = atomic_load_explicit(&words[i], memory_order_acquire);
    return mask;
}

/* The loads acquire what epw_peers_suspect has released, so for each suspect it is known whether it was
 * silent. */
epw_mask epw_peers_suspects(const epw_peers *peers, epw_mask *silent) {
    epw_mask suspects = loaded(peers->suspects);
    if (silent == NULL) return suspects;
    *silent = loaded(peers->silent);
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) silent->bits[i] &= suspects.bits[i];
    return suspects;
}

/* True if the bit is new. */
static bool add(_Atomic uint64_t words[EPW_MASK_WORDS], uint32_t peer) {
    uint64_t bit = UINT64_C(1) << (peer % 64);
    return !(atomic_fetch_or_explicit(&words[peer / 64], bit, memory_order_release) & bit);
}

/* Writer: the lane that gives the peer up. Readers: every lane's next step, which looks at `suspicions`
 * first; and epw_peers_suspects, for which `silent` is set before the suspect. */
void epw_peers_suspect(epw_peers *peers, uint32_t peer, bool silent, const epw_error_record *record) {
    if (silent) add(peers->silent, peer);
    if (!add(peers->suspects, peer)) return;
    atomic_fetch_add_explicit(&peers->suspicions, 1, memory_order_seq_cst);
    char trouble[EPW_TROUBLE_TEXT];
    epw_tell_suspect(epw_peers_where(peers, "wait", peer), peers->what, peers->epoch, silent,
                     epw_peers_revoked(peers, peer), record, epw_peers_try_trouble(peers, peer, trouble));
}

/* The same. Lanes are also told of a peer that is a suspect already, because the cause changes. */
void epw_peers_suspect_revoked(epw_peers *peers, uint32_t peer) {
    bool news = add(peers->revoked, peer);
    bool first = add(peers->suspects, peer);
    if (news || first) atomic_fetch_add_explicit(&peers->suspicions, 1, memory_order_seq_cst);
    if (first) epw_tell_suspect(epw_peers_where(peers, "wait", peer), peers->what, 0, false, true, NULL, "");
}

void epw_peers_clear_suspects(epw_peers *peers) {
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) {
        atomic_store_explicit(&peers->suspects[i], 0, memory_order_relaxed);
        atomic_store_explicit(&peers->silent[i], 0, memory_order_relaxed);
        atomic_store_explicit(&peers->revoked[i], 0, memory_order_relaxed);
    }
}
