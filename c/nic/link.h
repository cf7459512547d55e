/* Links: connections between the fabrics of two ranks, by TCP or within one host, authenticated before any
 * frame (auth.h). This file makes them: it listens, dials and accepts, driven by one caller, without a thread
 * or a lock of its own and without ever blocking. A link that is up belongs to the caller: a connected,
 * non-blocking socket, on which nothing has been sent or read after the handshake.
 *
 * Each link has a number, which both ends learn. The caller decides who dials whom. It also handles a second
 * link of the same number, which means that the other end has given up the first, perhaps before this end
 * noticed.
 *
 * Strangers cost little: at most EPW_LINKS_STRANGERS connections that have not proven themselves are kept,
 * each for at most EPW_LINKS_HANDSHAKE_NS, and no more is read from one than the bytes of a handshake. Beyond
 * that number the oldest is closed for the newest, so silent ones keep nobody out; but first it has
 * EPW_LINKS_GRACE_NS to prove itself, while newer ones wait in the system's queue. So ranks that all dial one
 * at the same time do not crowd each other out. */
#ifndef EPW_NIC_LINK_H
#define EPW_NIC_LINK_H

#include "nic/address.h"
#include "nic/auth.h"

#define EPW_LINKS_STRANGERS     64
#define EPW_LINKS_HANDSHAKE_NS  5000000000u
#define EPW_LINKS_GRACE_NS      100000000u
#define EPW_LINKS_HEAD_START_NS 250000000u /* for one address, before the next is tried as well */

typedef struct epw_links epw_links;

typedef struct epw_links_options {
    unsigned char key[EPW_AUTH_KEY_BYTES]; /* shared by all ranks */
    uint32_t rank;
    epw_nonce fabric;               /* this incarnation of the rank's fabric */
    uint32_t wires;                 /* listens for these, EPW_WIRE_*; the following are for TCP */
    uint16_t first_port, last_port; /* listens on ports of this range; 0, 0: on any */
    const char *const *addresses;   /* listens on these, numeric and without port: "10.0.0.1", "fd00::1" */
    uint32_t address_count;         /* 0: on those of the interfaces, see epw_interfaces_addresses */
    const char *interfaces;         /* in that case: which interfaces, see epw_interface_wanted; NULL: all */
    uint64_t handshake_ns;          /* 0: EPW_LINKS_HANDSHAKE_NS */
} epw_links_options;

/* Listens: one socket for each address, and nowhere else. EPW_ERR_INVALID and EPW_ERR_LIMIT name the option;
 * EPW_ERR_SYSTEM names the address, and the range if all its ports are taken. */
epw_status epw_links_open(const epw_links_options *options, epw_links **out);

/* Closes all that is open and ends what is under way; links that were handed over stay. NULL is allowed. In a
 * forked child, where nothing of it is open, it only frees the memory; the other functions do nothing there.
 */
void epw_links_close(epw_links *links);

/* Where others dial this rank by TCP: bytes for epw_addresses_parse. Returns their length, 0 without TCP. */
size_t epw_links_addresses(const epw_links *links, unsigned char bytes[EPW_ADDRESSES_BYTES]);

typedef struct epw_dial_order {
    uint32_t peer;
    epw_nonce fabric; /* the peer's fabric, from which its addresses come */
    uint32_t link;
    const void *addresses; /* bytes from the peer's epw_links_addresses; copied. NULL: within this host */
    size_t length;
    uint64_t deadline_ns; /* on the clock of base/clock.h */
} epw_dial_order;

/* Starts to dial. Addresses are tried in order, each with a head start. The handshake is made with the first
 * that accepts; if that is not the peer, the next ones are tried. A listener that hangs up or does not take
 * the connection because many others dial it is dialed again after a pause. The result is an event, no later
 * than the deadline: a link, or the failure of all addresses. EPW_ERR_INVALID, EPW_ERR_LIMIT: an argument is
 * wrong; EPW_ERR_STATE: in a forked child. */
epw_status epw_links_dial(epw_links *links, const epw_dial_order *order, uint64_t now_ns);

typedef enum epw_link_event_kind { EPW_LINK_UP, EPW_LINK_FAILED } epw_link_event_kind;

typedef struct epw_link_event {
    epw_link_event_kind kind;
    bool dialed; /* rather than accepted */
    int fd;      /* up: belongs to the caller from now on, who closes it with epw_fd_close; failed: -1 */
    uint32_t peer;
    epw_nonce fabric; /* the peer's */
    uint32_t link;
    epw_status status; /* failed: EPW_ERR_TIMEOUT, else EPW_ERR_PEER */
    char reason[640];  /* failed: what was found at each address */
} epw_link_event;

/* A descriptor that is readable whenever epw_links_poll has something to do, also because time has passed.
 * Wait for it with poll or epoll, and do nothing else with it. */
int epw_links_fd(const epw_links *links);

/* Continues what is under way, and gives one event; false if there is none now. Call it until it returns
 * false. */
bool epw_links_poll(epw_links *links, uint64_t now_ns, epw_link_event *event);

/* Numbers of accepted connections that did not become links. */
typedef struct epw_links_refusals {
    uint64_t refused[EPW_AUTH_REASONS]; /* by reason */
    uint64_t late;                      /* sent too little in time */
    uint64_t crowded_out;               /* made room for a newer one */
} epw_links_refusals;

epw_links_refusals epw_links_refused(const epw_links *links);

#endif
