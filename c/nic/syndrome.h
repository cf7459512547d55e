/* Why an entry of a send queue has failed, as an error completion reports it. */
#ifndef EPW_NIC_SYNDROME_H
#define EPW_NIC_SYNDROME_H

#include "base/inline.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    EPW_SYNDROME_NONE = 0,
    EPW_SYNDROME_LENGTH = 0x01,
    EPW_SYNDROME_OPERATION = 0x02,
    EPW_SYNDROME_PROTECTION = 0x04,
    EPW_SYNDROME_FLUSHED = 0x05,
    EPW_SYNDROME_REMOTE_REQUEST = 0x12,
    EPW_SYNDROME_REMOTE_ACCESS = 0x13,
    EPW_SYNDROME_REMOTE_OPERATION = 0x14,
    EPW_SYNDROME_RETRIES = 0x15,
    EPW_SYNDROME_RECEIVER = 0x16,
    EPW_SYNDROME_ABORTED = 0x22
};

/* For messages: "an entry failed: %s". */
EPW_INLINE const char *epw_syndrome_text(uint32_t syndrome) {
    switch (syndrome) {
    case EPW_SYNDROME_NONE:
        return "nothing is wrong";
    case EPW_SYNDROME_LENGTH:
        return "its length is wrong";
    case EPW_SYNDROME_OPERATION:
        return "it is no entry of this queue: malformed, or rung for before it was written";
    case EPW_SYNDROME_PROTECTION:
        return "its local key does not open its bytes";
    case EPW_SYNDROME_FLUSHED:
        return "an entry before it has failed";
    case EPW_SYNDROME_REMOTE_REQUEST:
        return "the peer does not do what it asks for";
    case EPW_SYNDROME_REMOTE_ACCESS:
        return "its remote key does not open its bytes";
    case EPW_SYNDROME_REMOTE_OPERATION:
        return "the peer could not do what it asks for";
    case EPW_SYNDROME_RETRIES:
        return "the peer is not reached any more";
    case EPW_SYNDROME_RECEIVER:
        return "the peer has no receive posted";
    case EPW_SYNDROME_ABORTED:
        return "the peer has given up its queue pair";
    default:
        return "the adapter gives a reason that is not known here";
    }
}

/* And what to do about it: ": ...", to follow that text. `adapter`: an adapter carries the entries, not a
 * software NIC. */
EPW_INLINE const char *epw_syndrome_remedy(uint32_t syndrome, bool adapter) {
    switch (syndrome) {
    case EPW_SYNDROME_REMOTE_REQUEST:
    case EPW_SYNDROME_REMOTE_ACCESS:
    case EPW_SYNDROME_ABORTED:
        return ": it has taken the place from this rank, or ended; connect it again";
    case EPW_SYNDROME_RETRIES:
        return adapter
                   ? ": see that it lives, that ping reaches it between the addresses of the adapters, that "
                     "both have one MTU, and that the traffic class is one that the switches do not drop"
                   : ": see that its process lives, and the network between the hosts";
    case EPW_SYNDROME_LENGTH:
    case EPW_SYNDROME_OPERATION:
    case EPW_SYNDROME_PROTECTION:
        return ": this is an error of this library: report it";
    default:
        return "";
    }
}

#endif
