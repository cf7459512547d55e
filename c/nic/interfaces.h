/* The addresses of this host for links, and which of them the user wants. */
#ifndef EPW_NIC_INTERFACES_H
#define EPW_NIC_INTERFACES_H

#include "nic/address.h"

/* Whether a filter matches an interface. A filter is a list of names separated by commas: "eth,ib" for those
 * whose names begin so, "=eth0,eth1" for exactly these, "^docker,veth" for all but those whose names begin
 * so, "^=eth2" for all but exactly this one. Marks before the first name apply to all names; a later name may
 * have additional ones. NULL and "" match everything. */
bool epw_interface_wanted(const char *filter, const char *name);

/* Whether the filter names what it wants, rather than only what it does not. */
bool epw_interface_is_named(const char *filter, const char *name);

/* The addresses, without ports, of the interfaces that are up and pass the filter: no link-local ones, those
 * of the loopback interface only if there are no others or the filter names it, each once, the first
 * EPW_ADDRESSES_MAX. EPW_ERR_INVALID if there are none, naming the filter and the interfaces. */
epw_status epw_interfaces_addresses(const char *filter, epw_where where, epw_addresses *out);

#endif
