/* The verbs wire: entries of a soft NIC's queue pairs, carried by an RDMA adapter of any vendor.
 *
 *     ring -> fetch, check -> ibv_post_send -> the peer's adapter -> window
 *                                |
 *                          completion -> the ring's own completion
 *
 * Each pair also has a reliable queue pair of the adapter, from which its peer's number and key follow. The
 * connection between the two NICs stays open: it shows which end has ended.
 *
 * Entries of a pair are sent in order, and a word is placed after everything before it. If an adapter may
 * place writes in another order (EPW_ORDER_*), the NIC holds each word back until everything before it is
 * done. */
#ifndef EPW_NIC_VERBS_H
#define EPW_NIC_VERBS_H

#include "nic/mlx5.h"
#include "nic/verbs/calls.h"

/* Pairs made from now on can be carried by this adapter, which outlives the NIC. Call it once, before the
 * first pair is made. */
epw_status epw_nic_carry_by(epw_nic *nic, const epw_verbs_calls *calls, epw_mlx5 *adapter, epw_where where);

/* Writes may be placed in any order: words wait for what is before them. Call it before the first pair is
 * made. */
void epw_nic_be_unordered(epw_nic *nic);

/* The number by which the peer's adapter names it; 0: it cannot be carried. */
uint32_t epw_pair_carried_number(const epw_pair *pair);

/* Whether the adapter carries it: its entries are not sent in frames. */
bool epw_pair_is_carried(const epw_pair *pair);

/* As epw_pair_connect, to a queue pair of the adapter at the path's end: that of pair `remote` of the link's
 * other end. Over the link each of the two learns that the other has ended. */
epw_status epw_pair_carry(epw_pair *pair, uint64_t link, uint32_t remote, const epw_mlx5_path *path,
                          epw_where where);

/* For printing: the event of the adapter that has broken it, and what to do; "" if there was none, or one
 * that concerns only this queue pair. Returns `text`. */
const char *epw_pair_carried_trouble(const epw_pair *pair, char text[EPW_MLX5_TEXT]);

/* Vendor codes in the completion of a pair that an event of the adapter has broken, or whose other end has
 * reported its end. */
enum { EPW_VENDOR_EVENT = 0xe0, EPW_VENDOR_ENDED = 0xe5 };

#endif
