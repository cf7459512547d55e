/* See tell.h. */
#include "peer/tell.h"

#include <stdio.h>
#include <string.h>

/* Long enough for most sets; what does not fit ends in "...". */
#define RANKS_TEXT 192

/* "0-3,7" or "none". */
static const char *ranks_text(const epw_mask *mask, uint32_t ranks, char text[RANKS_TEXT]) {
    size_t used = 0;
    snprintf(text, RANKS_TEXT, "none");
    for (uint32_t first = 0; first < ranks; first++) {
        if (!epw_mask_has(mask, first)) continue;
        uint32_t last = first;
        while (last + 1 < ranks && epw_mask_has(mask, last + 1)) last++;
        if (used > RANKS_TEXT - 16) {
            snprintf(text + used, RANKS_TEXT - used, ",...");
            break;
        }
        const char *comma = used > 0 ? "," : "";
        used +=
            (size_t)(first == last ? snprintf(text + used, RANKS_TEXT - used, "%s%u", comma, first)
                                   : snprintf(text + used, RANKS_TEXT - used, "%s%u-%u", comma, first, last));
        first = last;
    }
    return text;
}

/* ---- memberships ---- */

static const char *wire_name(uint32_t wire) {
    switch (wire) {
    case EPW_WIRE_LOCAL:
        return " over a local socket";
    case EPW_WIRE_TCP:
        return " over TCP";
    case EPW_WIRE_VERBS:
        return " over verbs";
    default:
        return " between adapters";
    }
}

/* "; shared memory to 1-3; queue over TCP to 4-7". */
static void paths_text(const epw_begun *begun, char *text, size_t size) {
    static const uint32_t paths[] = {EPW_PATH_THREAD, EPW_PATH_SHM, EPW_PATH_VMM, EPW_PATH_IPC};
    static const uint32_t wires[] = {EPW_WIRE_LOCAL, EPW_WIRE_TCP, EPW_WIRE_VERBS, 0};
    size_t used = 0;
    *text = '\0';
    for (int kind = 0; kind < 8; kind++) {
        uint32_t path = kind < 4 ? paths[kind] : EPW_PATH_QUEUE;
        epw_mask by;
        char ranks[RANKS_TEXT];
        epw_mask_clear(&by);
        EPW_MASK_FOR(peer, begun->active, begun->ranks) {
            const epw_route *route = &begun->routes[peer];
            if (route->path == path && (kind < 4 || route->wire == wires[kind - 4])) epw_mask_add(&by, peer);
        }
        if (epw_mask_empty(&by) || used >= size) continue;
        used += (size_t)snprintf(text + used, size - used, "; %s%s to %s", epw_path_name(path),
                                 kind < 4 ? "" : wire_name(wires[kind - 4]),
                                 ranks_text(&by, begun->ranks, ranks));
    }
}

void epw_tell_membership(const epw_begun *begun) {
    bool members_on = epw_log_on(EPW_LOG_MEMBER, EPW_LOG_INFO);
    if (!members_on && !epw_log_on(EPW_LOG_PATH, EPW_LOG_INFO)) return;
    epw_mask gone = *begun->before;
    for (uint32_t i = 0; i < EPW_MASK_WORDS; i++) gone.bits[i] &= ~begun->active->bits[i];
    char members[RANKS_TEXT], left[RANKS_TEXT], paths[512];
    paths_text(begun, paths, sizeof paths);
    bool none = epw_mask_empty(&gone);
    epw_where where = {"", (int)begun->rank, -1};
    if (!members_on) { /* whoever asks for paths alone gets these alone */
        if (*paths) epw_log(EPW_LOG_PATH, EPW_LOG_INFO, where, "%s%s", begun->what, paths);
        return;
    }
    epw_log(EPW_LOG_MEMBER, EPW_LOG_INFO, where, "%s: epoch %u from step %llu: members %s%s%s%s", begun->what,
            begun->epoch, (unsigned long long)begun->step, ranks_text(begun->active, begun->ranks, members),
            none ? "" : "; without ", none ? "" : ranks_text(&gone, begun->ranks, left), paths);
}

/* ---- peers that are given up ---- */

/* `revoked`: by this program, which may act for a group. */
static const char *cause_text(uint32_t cause, bool revoked) {
    switch (cause) {
    case EPW_CAUSE_TIMEOUT:
        return "it was silent for a deadline";
    case EPW_CAUSE_DROPPED:
        return "it has left, or has given up this rank";
    case EPW_CAUSE_SUPERSEDED:
        return revoked ? "this program or its group has revoked it" : "it is in a newer epoch";
    case EPW_CAUSE_STEP:
        return "it began the epoch at a different step";
    case EPW_CAUSE_LINK:
        return "the connection of its queue is gone, or the queue stayed full";
    case EPW_CAUSE_FORMAT:
        return "its rows are of another kind than this rank's";
    case EPW_CAUSE_PARTIAL:
        return "it gave the operation up";
    case EPW_CAUSE_ROUTING:
        return "a routing id was out of range or repeated";
    case EPW_CAUSE_OVERFLOW:
        return "more rows arrived than the output can hold";
    case EPW_CAUSE_HELD:
        return "the lane was not in the state that the replay needs";
    default:
        return "an earlier operation gave it up";
    }
}

static const char *phase_text(uint32_t phase) {
    switch (phase) {
    case EPW_PHASE_DISPATCH_SEND:
        return "for permission to dispatch";
    case EPW_PHASE_DISPATCH_RECEIVE:
        return "for its rows";
    case EPW_PHASE_COMBINE_SEND:
        return "to answer its rows";
    case EPW_PHASE_COMBINE_RECEIVE:
        return "for its answer";
    case EPW_PHASE_COLLECTIVE:
        return "for its part of a collective";
    default:
        return "for it in a send or receive";
    }
}

/* `trouble`: what has broken the queues to the peer; "" if that is not known. */
static void tell_record(uint32_t level, const char *event, const epw_error_record *r, bool revoked,
                        const char *trouble) {
    bool explained = r->cause == EPW_CAUSE_LINK && *trouble != '\0';
    double ms = (double)r->elapsed_ns / 1e6, of = (double)r->deadline_ns / 1e6;
    char words[64] = ""; /* for those who know the protocol */
    if (epw_log_on(EPW_LOG_WAIT, EPW_LOG_TRACE))
        snprintf(words, sizeof words, "expected word %#llx, seen %#llx; ", (unsigned long long)r->expected,
                 (unsigned long long)r->seen);
    epw_log(
        EPW_LOG_WAIT, level, (epw_where){"", (int)r->rank, (int)r->peer},
        "%s: %s; waited %s in epoch %u, lane %u, operation %u, for %.1f of %.10g ms; %s%u %s still awaited",
        event, explained ? trouble : cause_text(r->cause, revoked), phase_text(r->phase), r->epoch, r->lane,
        r->op, ms, of, words, r->waiting, r->waiting == 1 ? "peer" : "peers");
}

/* Whether the record describes the wait that gave the peer up, and not an older operation that lacked the
 * peer. */
static bool tells_of(const epw_error_record *record, uint32_t peer, uint32_t epoch) {
    if (record == NULL || record->peer != peer || record->epoch != epoch) return false;
    return record->cause != EPW_CAUSE_NONE && record->cause != EPW_CAUSE_PARTIAL &&
           record->cause != EPW_CAUSE_FORMAT;
}

void epw_tell_suspect(epw_where where, const char *what, uint32_t epoch, bool silent, bool revoked,
                      const epw_error_record *record, const char *trouble) {
    if (!epw_log_on(EPW_LOG_WAIT, EPW_LOG_WARN)) return;
    if (tells_of(record, (uint32_t)where.peer, epoch)) {
        tell_record(EPW_LOG_WARN, "given up", record, revoked, trouble);
    } else if (silent) {
        epw_log(EPW_LOG_WAIT, EPW_LOG_WARN, where, "given up: %s, in a wait of the %s",
                cause_text(EPW_CAUSE_TIMEOUT, false), what);
    } else if (revoked) { /* by the caller, who knows why: a group has told it */
        epw_log(EPW_LOG_WAIT, EPW_LOG_TRACE, where,
                "given up: this program or its group has revoked it in the %s", what);
    } else { /* also of each peer when this rank's buffer ends */
        epw_log(EPW_LOG_WAIT, EPW_LOG_TRACE, where, "no more operations with it");
    }
}

void epw_tell_outcome(const epw_outcome *outcome, bool revoked, const char *trouble) {
    const epw_error_record *r = &outcome->record;
    if (r->cause == EPW_CAUSE_NONE) return;
    /* Operations after the one that gave a peer up have nothing new to say. */
    uint32_t level = r->cause == EPW_CAUSE_SUSPECTED ? EPW_LOG_TRACE : EPW_LOG_WARN;
    if (!epw_log_on(EPW_LOG_WAIT, level)) return;
    char missing[RANKS_TEXT], what[RANKS_TEXT + 32];
    bool one = strpbrk(ranks_text(&outcome->missing, EPW_MAX_RANKS, missing), ",-") == NULL;
    snprintf(what, sizeof what, "ended without %s %s", one ? "rank" : "ranks", missing);
    tell_record(level, what, r, revoked, trouble);
}
