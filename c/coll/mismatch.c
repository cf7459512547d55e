/* Detection of ranks that have called different operations. A rank that finds such a message sends both calls
 * to all members, and then the word MISMATCH. The epoch is over: on every rank operations fail with the same
 * text.
 *
 * The message need not be of the call that differs. If two ranks differ in the root, one may have done its
 * part and be in its next call, or its message may lie unread in the ring of a rank that expects none. So
 * each message also carries the previous call, and each rank remembers its own. If all ranks wait for each
 * other while lending memory, the message lies in a ring from which nothing is expected: a rank that waits
 * looks there too.
 *
 * A message of another type than the receive with its tag is reported in the same way, by the receiver. */
#include "coll/parts.h"

#include "base/clock.h"

#include <string.h>

/* The calls of this rank and the peer: of the same number if both are known, and the first in which they
 * differ. */
static epw_mismatch describe(const epw_comm *comm, uint32_t peer, const epw_message *m,
                             const epw_descriptor *own) {
    epw_mismatch found = {
        .rank = {comm->config.rank, peer}, .number = {comm->calls, m->call}, .call = {*own, m->what}};
    epw_descriptor its_before = epw_message_before(m);
    bool same_before = epw_descriptor_briefly_equal(&comm->before, &its_before);
    if (m->call == comm->calls && !same_before) {
        found.number[0] = found.number[1] = comm->calls - 1;
        found.call[0] = comm->before;
        found.call[1] = its_before;
    } else if (m->call + 1 == comm->calls && !epw_descriptor_briefly_equal(&comm->before, &m->what)) {
        found.number[0] = m->call;
        found.call[0] = comm->before;
    } else if (m->call == comm->calls + 1 && !epw_descriptor_briefly_equal(own, &its_before)) {
        found.number[1] = comm->calls;
        found.call[1] = its_before;
    }
    return found;
}

/* Sends what this rank has found to all members. */
static void tell_all(epw_comm *comm, const epw_mismatch *found, uint64_t now) {
    comm->mismatched = true;
    comm->mismatch = *found;
    uint64_t offset = epw_mismatch_offset(&comm->layout, comm->config.rank);
    uint64_t word = epw_epoch_word(epw_word_epoch(comm->own_word), 1);
    epw_range range = {
        .offset = offset, .bytes = sizeof comm->mismatch, .stride = sizeof comm->mismatch, .count = 1};
    /* Writer: this rank, once in an epoch. Reader: each member that waits or calls, see
     * epw_comm_heed_mismatch. */
    EPW_COMM_OTHERS(p, comm) {
        uint32_t peer = epw_coll_rank(comm, p);
        if (!p->begun) p->begun = epw_comm_has_begun(comm, p);
        memcpy(epw_control_at(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, offset), &comm->mismatch,
               sizeof comm->mismatch);
        epw_signal(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, EPW_WORD_MISMATCH, word, &range, 1);
        p->spoke = now;
    }
}

void epw_comm_mismatch(epw_comm *comm, epw_coll_peer *from, const epw_descriptor *own, uint64_t now) {
    if (comm->mismatched) return;
    epw_mismatch found =
        describe(comm, epw_coll_rank(comm, from), &from->rings[EPW_CHANNEL_COLLECTIVE].message, own);
    tell_all(comm, &found, now);
}

void epw_comm_mismatched_message(epw_comm *comm, epw_coll_peer *from, const epw_descriptor *own,
                                 const epw_descriptor *sent, uint64_t now) {
    if (comm->mismatched) return;
    epw_mismatch found = {.rank = {comm->config.rank, epw_coll_rank(comm, from)}, .call = {*own, *sent}};
    tell_all(comm, &found, now);
}

bool epw_comm_heed_mismatch(epw_comm *comm) {
    EPW_COMM_OTHERS(p, comm) {
        uint32_t peer = epw_coll_rank(comm, p);
        if (comm->mismatched) break;
        uint64_t word = epw_word_from(&comm->peers, EPW_CHANNEL_COLLECTIVE, peer, EPW_WORD_MISMATCH);
        if (epw_word_epoch(word) != epw_word_epoch(comm->own_word)) continue;
        memcpy(&comm->mismatch, epw_peers_from(&comm->peers, peer) + epw_mismatch_offset(&comm->layout, peer),
               sizeof comm->mismatch);
        comm->mismatched = true;
    }
    return comm->mismatched;
}

epw_status epw_comm_fail_mismatch(const epw_comm *comm, epw_where where) {
    const epw_mismatch *m = &comm->mismatch;
    char first[EPW_CALL_TEXT], second[EPW_CALL_TEXT];
    epw_descriptor_text(&m->call[0], first);
    epw_descriptor_text(&m->call[1], second);
    where.peer = m->rank[0] == comm->config.rank ? (int)m->rank[1] : (int)m->rank[0];
    if (m->call[0].kind == EPW_RECV)
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "ranks have called different operations: rank %u has called %s, and the message of "
                        "rank %u is a %s; continue in a new membership",
                        m->rank[0], first, m->rank[1], second);
    if (m->number[0] == m->number[1])
        return epw_fail(EPW_ERR_MISMATCH, where,
                        "ranks have called different operations: collective %u of this epoch is %s on rank "
                        "%u and %s on rank %u; continue in a new membership",
                        m->number[0], first, m->rank[0], second, m->rank[1]);
    return epw_fail(EPW_ERR_MISMATCH, where,
                    "ranks have called different operations: rank %u is in collective %u of this epoch, %s, "
                    "and has received from rank %u a part of collective %u, %s; continue in a new membership",
                    m->rank[0], m->number[0], first, m->rank[1], m->number[1], second);
}
