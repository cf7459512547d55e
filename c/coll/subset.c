/* A communicator of some of the ranks of another one, whose collectives carry what they need to connect. Each
 * rank whose own arguments are right takes all turns, whatever their results, because the others wait for
 * each. */
#include "coll/parts.h"

#include "nic/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OP "subset"

/* What a rank tells all others. */
typedef struct saying {
    epw_mask mask;
    uint64_t well; /* 1: it has got this far */
} saying;

/* A blob, as it travels. */
typedef struct parcel {
    uint64_t length;
    unsigned char blob[EPW_BLOB_MAX];
} parcel;

typedef struct making {
    epw_comm *comm, *made;
    const epw_mask *mask;
    epw_membership now;
    bool mine; /* this rank is in the mask */
    bool out; /* on a GPU: an exchange has failed here, so a later one might meet another one of the others */
    saying *said;
    parcel *parcels;
    epw_status status; /* the first failure, */
    char text[512];    /* and what it says, which later calls would overwrite, */
    int peer;          /* of this peer, -1: of none */
} making;

static void note(making *m, epw_status status) {
    if (status == EPW_OK || m->status != EPW_OK) return;
    epw_error_detail detail = EPW_ERROR_DETAIL_INIT;
    epw_last_error_detail(&detail);
    bool own = strcmp(detail.op, OP) == 0;
    m->status = status;
    m->peer = detail.peer;
    snprintf(m->text, sizeof m->text, "%s%s%s", own ? "" : detail.op, own ? "" : ": ", detail.text);
}

/* The rank that has this number in the subset. */
static int rank_of(const epw_mask *mask, int index) {
    EPW_MASK_FOR(r, mask, EPW_MAX_RANKS) if (index-- == 0) return (int)r;
    return -1;
}

/* The same of a call of the subset, which names ranks by its own numbers. */
static void note_of_made(making *m, epw_status status) {
    if (status == EPW_OK || m->status != EPW_OK) return;
    note(m, status);
    m->peer = rank_of(m->mask, m->peer);
}

static epw_where where_of(const making *m, int peer) {
    epw_where where = epw_comm_where(m->comm, OP);
    where.peer = peer;
    return where;
}

/* The number that a rank of the mask has in the subset. */
static uint32_t index_of(const epw_mask *mask, uint32_t rank) {
    uint32_t index = 0;
    for (uint32_t r = 0; r < rank; r++) index += epw_mask_has(mask, r);
    return index;
}

static epw_mask renumbered(const making *m, const epw_mask *ranks) {
    epw_mask out = {{0}};
    EPW_MASK_FOR(r, ranks, m->comm->layout.ranks)
    if (epw_mask_has(m->mask, r)) epw_mask_add(&out, index_of(m->mask, r));
    return out;
}

/* After an exchange that has failed here on a GPU this rank takes no more turns: the others find it missing.
 */
static epw_status end_turn(making *m, epw_status status, const epw_outcome *outcome) {
    m->out = status != EPW_OK && m->comm->gpu != NULL;
    if (status != EPW_OK || !outcome->degraded) return status;
    EPW_MASK_FOR(r, &outcome->missing, m->comm->layout.ranks)
    return epw_fail(EPW_ERR_PEER, where_of(m, (int)r), "it is missing");
    return EPW_OK;
}

/* What this rank says goes to all others, by a GPU in a block for each. */
static epw_status tell(making *m) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    const saying *own = &m->said[m->comm->config.rank];
    if (m->out) return m->status;
    epw_status status;
    if (m->comm->gpu == NULL) {
        status = epw_all_gather(m->comm, own, m->said, sizeof *own, EPW_TYPE_U8, NULL, &outcome);
    } else {
        const saying each = *own;
        for (uint32_t r = 0; r < m->comm->layout.ranks; r++) m->said[r] = each;
        status = epw_comm_exchange(m->comm, m->said, sizeof each, 0, &outcome);
    }
    return end_turn(m, status, &outcome);
}

static epw_status swap_parcels(making *m) {
    epw_outcome outcome = EPW_OUTCOME_INIT;
    if (m->out) return m->status;
    epw_status status = epw_comm_exchange(m->comm, m->parcels, sizeof *m->parcels, 0, &outcome);
    return end_turn(m, status, &outcome);
}

static epw_status check_saying(const making *m, uint32_t peer) {
    const saying *s = &m->said[peer];
    bool overlaps = epw_mask_has(m->mask, peer);
    EPW_MASK_FOR(r, &s->mask, m->comm->layout.ranks)
    overlaps |= epw_mask_has(&s->mask, peer) && epw_mask_has(m->mask, r);
    if (overlaps && memcmp(&s->mask, m->mask, sizeof s->mask) != 0)
        return epw_fail(
            EPW_ERR_MISMATCH, where_of(m, (int)peer),
            "its mask begins with %llx, this rank's with %llx: all ranks of a subset must give the "
            "same mask, and masks must not overlap",
            (unsigned long long)s->mask.bits[0], (unsigned long long)m->mask->bits[0]);
    if (epw_mask_has(m->mask, peer) && s->well == 0)
        return epw_fail(EPW_ERR_PEER, where_of(m, (int)peer),
                        "it could not make or connect its part, and reports why");
    return EPW_OK;
}

/* Whether everything is in order on all ranks of the mask. */
static void agree(making *m) {
    uint32_t me = m->comm->config.rank;
    m->said[me] = (saying){.mask = *m->mask, .well = m->status == EPW_OK};
    note(m, tell(m));
    if (!m->mine || m->status != EPW_OK) return;
    EPW_MASK_FOR(peer, &m->now.active, m->comm->layout.ranks)
    if (peer != me) note(m, check_saying(m, peer));
}

static void export_all(making *m) {
    EPW_MASK_FOR(peer, m->mask, m->comm->layout.ranks) {
        if (m->status != EPW_OK || peer == m->comm->config.rank) continue;
        size_t length = 0;
        note_of_made(m, epw_comm_export(m->made, index_of(m->mask, peer), m->parcels[peer].blob, &length));
        m->parcels[peer].length = length;
    }
}

/* Members that are not active have sent nothing. */
static void connect_all(making *m) {
    EPW_MASK_FOR(peer, m->mask, m->comm->layout.ranks) {
        const parcel *p = &m->parcels[peer];
        bool active = epw_mask_has(&m->now.active, peer);
        if (m->status != EPW_OK || peer == m->comm->config.rank || !active) continue;
        if (p->length == 0 || p->length > sizeof p->blob) {
            note(m, epw_fail(EPW_ERR_PEER, where_of(m, (int)peer), "it has sent no blob"));
        } else {
            note_of_made(m, epw_comm_connect(m->made, index_of(m->mask, peer), p->blob, p->length));
        }
    }
}

static void make(making *m, const epw_comm_config *config) {
    epw_comm_config own = config != NULL ? *config : m->comm->config;
    uint32_t ranks = m->comm->layout.ranks;
    own.rank = index_of(m->mask, m->comm->config.rank);
    own.ranks = index_of(m->mask, ranks);
    if (m->mine && own.fabric != NULL && epw_fabric_rank(own.fabric) != own.rank)
        note(m, epw_fail(
                    EPW_ERR_INVALID, where_of(m, -1),
                    "config.fabric is that of rank %u, must be that of %u, this rank's number in the subset",
                    epw_fabric_rank(own.fabric), own.rank));
    if (m->mine && m->status == EPW_OK) note(m, epw_comm_create(&own, &m->made));
    agree(m);
    if (m->mine) export_all(m);
    note(m, swap_parcels(m));
    if (m->mine) connect_all(m);
    agree(m);
    if (!m->mine || m->status != EPW_OK) return;
    epw_mask active = renumbered(m, &m->now.active);
    note_of_made(m, epw_comm_set_active(m->made, &active, m->now.epoch, m->now.step));
}

static epw_status check(const epw_comm *comm, const epw_mask *mask, const epw_comm_config *config) {
    epw_where where = epw_comm_where(comm, OP);
    for (uint32_t r = comm->layout.ranks; r < EPW_MAX_RANKS; r++)
        if (epw_mask_has(mask, r))
            return epw_fail(EPW_ERR_INVALID, where, "mask contains rank %u, must be below %u", r,
                            comm->layout.ranks);
    if (config != NULL && config->size != sizeof *config)
        return epw_fail(EPW_ERR_INVALID, where,
                        "config.size is %u, this library's is %zu: use EPW_COMM_CONFIG_INIT", config->size,
                        sizeof *config);
    return EPW_OK;
}

epw_status epw_comm_subset(epw_comm *comm, const epw_mask *mask, const epw_comm_config *config,
                           epw_comm **out) {
    if (comm == NULL || mask == NULL || out == NULL)
        return epw_fail(EPW_ERR_INVALID, (epw_where){OP, -1, -1}, "%s is NULL",
                        comm == NULL   ? "comm"
                        : mask == NULL ? "mask"
                                       : "out");
    *out = NULL;
    epw_status status = check(comm, mask, config);
    making m = {.comm = comm, .mask = mask, .now = EPW_MEMBERSHIP_INIT};
    if (status == EPW_OK) status = epw_comm_membership(comm, &m.now);
    if (status != EPW_OK) return status;
    if (m.now.epoch == 0)
        return epw_fail(EPW_ERR_STATE, where_of(&m, -1), "no membership yet: call set_active first");
    m.mine = epw_mask_has(mask, comm->config.rank);
    m.said = calloc(comm->layout.ranks, sizeof *m.said);
    m.parcels = calloc(comm->layout.ranks, sizeof *m.parcels);
    if (m.said != NULL && m.parcels != NULL) {
        make(&m, config);
    } else { /* the others find this rank missing */
        note(&m, epw_fail(EPW_ERR_NO_MEMORY, where_of(&m, -1), "no memory for what ranks exchange"));
    }
    free(m.said);
    free(m.parcels);
    if (m.status == EPW_OK) {
        *out = m.made;
        return EPW_OK;
    }
    epw_comm_destroy(m.made);
    return epw_fail(m.status, where_of(&m, m.peer), "%s", m.text);
}
