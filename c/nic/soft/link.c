/* A connection of a soft NIC: its life, and the pairs that have something to send over it. */
#include "nic/soft/parts.h"

#include "ipc/process.h"

#include <stdlib.h>

epw_link *epw_link_open(epw_nic *nic, int fd, uint32_t peer) {
    epw_link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->nic = nic;
    link->fd = fd;
    link->peer = peer;
    return link;
}

void epw_link_free(epw_link *link) {
    epw_rings_unmap(&link->rings);
    epw_fd_release(link->fd);
    epw_link_drop_copied(link);
    free(link);
}

/* ---- pairs that have something to send ---- */

void epw_link_has_sender(epw_link *link, epw_pair *pair) {
    if (epw_pair_is_carried(pair)) {
        epw_carry_add(pair);
        return;
    }
    link->nic->unsent = true;
    if (pair->sends) return;
    pair->sends = true;
    pair->next_sender = NULL;
    if (link->senders == NULL) {
        link->senders = pair;
    } else {
        link->last_sender->next_sender = pair;
    }
    link->last_sender = pair;
}

void epw_link_drop_sender(epw_link *link, const epw_pair *pair) {
    epw_pair *kept = link->senders;
    link->senders = NULL;
    while (kept != NULL) {
        epw_pair *next = kept->next_sender;
        kept->sends = false;
        if (kept != pair) epw_link_has_sender(link, kept);
        kept = next;
    }
}

void epw_link_has_answer(epw_link *link, epw_pair *pair) {
    uint64_t now = link->nic->now_ns;
    link->nic->unsent = true;
    if (pair->owed.due || now == 0) link->urgent = true;
    if (link->acks_by == 0) link->acks_by = now + EPW_NIC_ACK_NS;
    if (pair->answers) return;
    pair->answers = true;
    pair->next_answerer = link->answerers;
    link->answerers = pair;
}

void epw_link_drop_answerer(epw_link *link, epw_pair *pair) {
    for (epw_pair **at = &link->answerers; *at != NULL;) {
        if (*at == pair) {
            *at = pair->next_answerer;
        } else {
            at = &(*at)->next_answerer;
        }
    }
    pair->answers = false;
}

static void add_notice(epw_link *link, epw_frame notice) {
    link->nic->unsent = true;
    if (link->notice_count < LINK_NOTICES) link->notices[link->notice_count++] = notice;
}

void epw_link_refuse(epw_link *link, const epw_frame *frame, uint8_t syndrome) {
    for (uint32_t i = 0; i < link->notice_count; i++)
        if (link->notices[i].kind == EPW_FRAME_NAK && link->notices[i].pair == frame->from) return;
    add_notice(
        link,
        (epw_frame){.kind = EPW_FRAME_NAK, .pair = frame->from, .index = frame->index, .syndrome = syndrome});
}

void epw_link_tell(epw_link *link, uint8_t kind, uint32_t pair, uint32_t from) {
    add_notice(link, (epw_frame){.kind = kind, .pair = pair, .from = from});
}

/* ---- forgetting ---- */

void epw_link_stop(epw_link *link, const epw_pair *pair, bool answers) {
    if (link->to != pair || (link->frame.kind == EPW_FRAME_ANSWER) != answers) return;
    link->to = NULL;
    link->at = NULL;
}

bool epw_link_forget(epw_link *link, epw_pair *pair) {
    epw_link_drop_sender(link, pair);
    epw_link_drop_answerer(link, pair);
    epw_link_stop(link, pair, false);
    epw_link_stop(link, pair, true);
    return epw_link_copy_out(link, NULL);
}

bool epw_link_forget_region(epw_link *link, uint32_t key, const epw_region *region) {
    if (link->in_frame && link->to != NULL && link->key == key) {
        if (link->frame.kind == EPW_FRAME_ANSWER) {
            epw_pair_fail(link->to, link->frame.index, EPW_SYNDROME_PROTECTION);
        } else {
            epw_link_stop(link, link->to, false);
        }
    }
    return epw_link_copy_out(link, region);
}
