/* Links: connections between the fabrics of two ranks, by TCP or within one host, authenticated before any
 * frame (auth.h). This is where they come from: listening, dialing and accepting, driven by one caller,
 * without a thread or a lock of its own and without ever blocking. A link that is up is the caller's: a
 * connected socket that does not block, on which nothing has been sent or read behind the handshake.
 *
 * Each link has a number, which both ends learn. Who dials whom is the caller's matter, and so is a second
 * link of the same number: it means that the other end has given up the first, perhaps before this end heard
 * of it.
 *
 * Strangers cost little: of connections that have not proven themselves EPW_LINKS_STRANGERS are kept, each
 * for EPW_LINKS_HANDSHAKE_NS at most, and none gets more read from it than a handshake has bytes. Beyond that
 * number the oldest makes room for the newest, so that silent ones keep nobody out. */
#ifndef EPW_NIC_LINK_H
#define EPW_NIC_LINK_H

#include "nic/address.h"
#include "nic/auth.h"

#define EPW_LINKS_STRANGERS     64
#define EPW_LINKS_HANDSHAKE_NS  5000000000u
#define EPW_LINKS_HEAD_START_NS 250000000u /* of one address, before the next is tried as well */

typedef struct epw_links epw_links;

typedef struct epw_links_options {
    unsigned char key[EPW_AUTH_KEY_BYTES]; /* shared by all ranks */
    uint32_t rank;
    epw_nonce fabric;               /* this incarnation of the rank's fabric */
    uint32_t wires;                 /* listens for these, EPW_WIRE_*; those below are of TCP */
    uint16_t first_port, last_port; /* listens on ports of this range; 0, 0: on any */
    const char *const *addresses;   /* listens on these, numeric and without port: "10.0.0.1", "fd00::1" */
    uint32_t address_count;         /* 0: on those of the interfaces, see epw_interfaces_addresses */
    const char *interfaces;         /* then: which, see epw_interface_wanted; NULL: all */
    uint64_t handshake_ns;          /* 0: EPW_LINKS_HANDSHAKE_NS */
} epw_links_options;

/* Listens: one socket for each address, and nowhere else. EPW_ERR_INVALID and EPW_ERR_LIMIT name the option;
 * EPW_ERR_SYSTEM the address, and the range where it is taken. */
epw_status epw_links_open(const epw_links_options *options, epw_links **out);

/* Closes all that is open and ends what is under way; links that were handed over stay. NULL is allowed. In a
 * fork's child, where nothing of it is open, it gives the memory back; the other functions do nothing there.
 */
void epw_links_close(epw_links *links);

/* Where others dial this rank by TCP: bytes for epw_addresses_parse. Returns their length, 0 without TCP. */
size_t epw_links_addresses(const epw_links *links, unsigned char bytes[EPW_ADDRESSES_BYTES]);

typedef struct epw_dial_order {
    uint32_t peer;
    epw_nonce fabric; /* the peer's, from where its addresses come */
    uint32_t link;
    const void
        *addresses; /* bytes that the peer's epw_links_addresses gave; copied. NULL: within this host */
    size_t length;
    uint64_t deadline_ns; /* on the clock of base/clock.h */
} epw_dial_order;

/* Starts to dial. Addresses are tried in their order, each with a head start; with the first that accepts,
 * the handshake is made, and if it is not the peer, the next are tried. The end is an event: a link, or that
 * all addresses have failed, which is no later than the deadline. EPW_ERR_INVALID, EPW_ERR_LIMIT: the order
 * is wrong; EPW_ERR_STATE: in a fork's child. */
epw_status epw_links_dial(epw_links *links, const epw_dial_order *order, uint64_t now_ns);

typedef enum epw_link_event_kind { EPW_LINK_UP, EPW_LINK_FAILED } epw_link_event_kind;

typedef struct epw_link_event {
    epw_link_event_kind kind;
    bool dialed; /* rather than accepted */
    int fd;      /* up: the caller's from now on, who closes it with epw_fd_close; failed: -1 */
    uint32_t peer;
    epw_nonce fabric; /* the peer's */
    uint32_t link;
    epw_status status; /* failed: EPW_ERR_TIMEOUT, else EPW_ERR_PEER */
    char reason[640];  /* failed: what was found at each address */
} epw_link_event;

/* Readable whenever epw_links_poll has something to do, be it that time has passed. Wait on it with poll or
 * epoll, and do nothing else with it. */
int epw_links_fd(const epw_links *links);

/* Carries on what is under way, and yields one event; false if there is none now. Call it until then. */
bool epw_links_poll(epw_links *links, uint64_t now_ns, epw_link_event *event);

/* What has become of accepted connections that are no links, in numbers. */
typedef struct epw_links_refusals {
    uint64_t refused[EPW_AUTH_REASONS]; /* by reason */
    uint64_t late;                      /* said too little in their time */
    uint64_t crowded_out;               /* made room for a newer one */
} epw_links_refusals;

epw_links_refusals epw_links_refused(const epw_links *links);

#endif
