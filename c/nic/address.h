/* The addresses at which a rank's links are dialed: numeric addresses with ports, as bytes in a blob, in the
 * kernel's form, and as text; and the abstract socket by which ranks of one host find each other. */
#ifndef EPW_NIC_ADDRESS_H
#define EPW_NIC_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>

#include "base/status.h"
#include "ipc/process.h"

#define EPW_ADDRESSES_MAX 8

enum {
    EPW_ADDRESS_BYTES = 1 + 16 + 2, /* family, 4 or 16 bytes, port */
    EPW_ADDRESSES_BYTES = EPW_ADDRESSES_MAX * EPW_ADDRESS_BYTES,
    EPW_ADDRESS_TEXT = 56 /* "[IPv6]:port" and its end */
};

enum { EPW_ADDRESS_LOCAL = 1 }; /* a family beside 4 and 6 */

typedef struct epw_address {
    uint8_t family;
    unsigned char bytes[16]; /* in network order; IPv4: the first 4, then zeros; LOCAL: a fabric's nonce */
    uint16_t port;           /* LOCAL: 0 */
} epw_address;

/* The address of a fabric for ranks of its host. Never among the addresses in a peer's blob. */
epw_address epw_address_local(const epw_nonce *fabric);

typedef struct epw_addresses {
    uint32_t count;
    epw_address list[EPW_ADDRESSES_MAX];
} epw_addresses;

/* Adds an address, unless there is one of the same host. False: the list has no room. */
bool epw_addresses_add(epw_addresses *list, const epw_address *address);

/* Writes all of them and returns the length. */
size_t epw_addresses_write(const epw_addresses *addresses, unsigned char bytes[EPW_ADDRESSES_BYTES]);

/* Reads `length` bytes of any content: at least one address, no more than EPW_ADDRESSES_MAX, each with a
 * port, and nothing after them. Otherwise EPW_ERR_INVALID or EPW_ERR_LIMIT. */
epw_status epw_addresses_parse(const void *bytes, size_t length, epw_where where, epw_addresses *out);

/* Reads a numeric address without a port, for example "10.0.0.1" or "fd00::1". EPW_ERR_INVALID also for
 * addresses that others cannot dial: wildcard, multicast and link-local ones. */
epw_status epw_address_read(const char *text, epw_where where, epw_address *out);

/* Whether it is valid only on one link of the network: for IPv6 its bytes are then not enough. */
bool epw_address_is_link_local(const epw_address *address);

/* Whether the two are equal apart from their ports. */
bool epw_address_same_host(const epw_address *a, const epw_address *b);

/* Converts it to the kernel's form; returns the length. */
socklen_t epw_address_to_socket(const epw_address *address, struct sockaddr_storage *out);

/* Converts from the kernel's form; false if it is of another family. */
bool epw_address_from_socket(const struct sockaddr *from, epw_address *out);

/* "10.0.0.1:700" or "[fd00::1]:700", without the port if that is 0, or "this host". Returns `text`. */
const char *epw_address_say(const epw_address *address, char text[EPW_ADDRESS_TEXT]);

#endif
