/* The handshake by which the two ends of a connection show each other that they know the fabric's key, and
 * for which link the connection is, before any frame: bytes in, bytes out, no sockets and no clock.
 *
 *     dialer                                listener
 *        | -- hello, challenge ---------------> |   who dials whom, which incarnations, which link
 *        | <-- the hello's mirror, challenge -- |   says nothing that the dialer has not said first
 *        | -- proof --------------------------> |   the dialer proves first: a stranger gets nothing that
 *        | <-- verdict, proof ----------------- |   derives from the key, nor who it is that listens
 *
 * A proof is HMAC-SHA256 under the key over {label, the prover's role, version, verdict, both hellos whole}.
 * The role keeps it from being sent back as one's own, the two fresh challenges from being used again, the
 * rest of the hellos from being used for another link, rank or incarnation. Whether it is the one whom the
 * dialer wants the listener decides, once the dialer has proven itself; its verdict is part of its own proof.
 *
 * Windows are not named: a link carries those of all buffers that its two fabrics have while it lasts, later
 * ones too. The hellos name both fabrics by nonces that are drawn anew whenever one is created, so that no
 * proof is of use to another incarnation; which window a frame may write is decided for each by the number of
 * the queue pair and the key, both with serials that no reused place repeats soon, and by the domain of the
 * two (soft/incoming.c).
 *
 * As with the bootstrap, what follows is neither encrypted nor authenticated: the key keeps strangers and
 * strays out of a trusted network, it does not replace one. */
#ifndef EPW_NIC_AUTH_H
#define EPW_NIC_AUTH_H

#include "base/sha256.h"
#include "ipc/process.h"

#define EPW_AUTH_VERSION         1
#define EPW_AUTH_KEY_BYTES       32
#define EPW_AUTH_CHALLENGE_BYTES 32

/* Messages, all numbers little-endian. Magic and version stay the first 8 bytes of a hello in all versions.
 */
enum {
    EPW_AUTH_PREFIX_BYTES = 4 + 4, /* magic, version */
    EPW_AUTH_HELLO_BYTES = EPW_AUTH_PREFIX_BYTES + 4 * 4 + 2 * 16 + EPW_AUTH_CHALLENGE_BYTES,
    EPW_AUTH_PROOF_BYTES = EPW_SHA256_BYTES,
    EPW_AUTH_VERDICT_BYTES = 4 + EPW_AUTH_PROOF_BYTES,
    EPW_AUTH_DIALER_BYTES = EPW_AUTH_HELLO_BYTES + EPW_AUTH_PROOF_BYTES, /* all that a dialer says */
    EPW_AUTH_LISTENER_BYTES = EPW_AUTH_HELLO_BYTES + EPW_AUTH_VERDICT_BYTES
};

typedef enum epw_auth_role { EPW_AUTH_DIALER = 1, EPW_AUTH_LISTENER = 2 } epw_auth_role;

typedef enum epw_auth_state {
    EPW_AUTH_MORE,   /* bytes are awaited */
    EPW_AUTH_DONE,   /* the other end knows the key and the link is agreed; output may be left to send */
    EPW_AUTH_REFUSED /* for the reason given; output may be left to send here, too */
} epw_auth_state;

typedef enum epw_auth_reason {
    EPW_AUTH_NO_REASON,
    EPW_AUTH_BAD_MAGIC,     /* no hello of epwire */
    EPW_AUTH_OTHER_VERSION, /* of the handshake */
    EPW_AUTH_WRONG_ROLE,    /* two dialers or two listeners, for example one's own bytes sent back */
    EPW_AUTH_WRONG_RANK,    /* the listener is another rank than the dialer wants */
    EPW_AUTH_OTHER_FABRIC,  /* the listener is another incarnation than the dialer wants */
    EPW_AUTH_OTHER_LINK,    /* the answer is to another hello */
    EPW_AUTH_BAD_PROOF,     /* another key, a replay, or bytes changed on the way */
    EPW_AUTH_CUT_OFF,       /* the connection ended before the handshake */
    EPW_AUTH_REASONS
} epw_auth_reason;

/* This end. */
typedef struct epw_auth_self {
    unsigned char key[EPW_AUTH_KEY_BYTES];
    uint32_t rank;
    epw_nonce fabric;                                  /* this incarnation of this rank's fabric */
    unsigned char challenge[EPW_AUTH_CHALLENGE_BYTES]; /* fresh random bytes for each connection */
} epw_auth_self;

/* The other end and the link. A dialer says them; a listener learns them, and may believe them once done. */
typedef struct epw_auth_peer {
    uint32_t rank;
    epw_nonce fabric;
    uint32_t link;
} epw_auth_peer;

/* A handshake under way. Who uses it reads `state`, `reason` and `peer`, and leaves the rest to the
 * functions. */
typedef struct epw_auth {
    epw_auth_state state;
    epw_auth_reason reason;
    epw_auth_peer peer;
    epw_auth_role role;
    epw_auth_self self; /* the key is wiped when the handshake is over */
    uint32_t step;
    uint32_t their_version;
    uint32_t have, want; /* of the message awaited, or of its first part */
    unsigned char in[EPW_AUTH_HELLO_BYTES];
    unsigned char hellos[2][EPW_AUTH_HELLO_BYTES]; /* the dialer's, the listener's */
    uint32_t out_length, out_sent;
    unsigned char out[EPW_AUTH_LISTENER_BYTES]; /* the longer of what the two ever say */
} epw_auth;

/* Begins. A dialer has its hello to send at once. */
void epw_auth_dial(epw_auth *auth, const epw_auth_self *self, const epw_auth_peer *peer);
void epw_auth_listen(epw_auth *auth, const epw_auth_self *self);

/* How many bytes it takes next at most, at least 1 while it wants more, 0 once it is over: who reads no more
 * than that at a time leaves what follows the handshake unread. */
size_t epw_auth_wanted(const epw_auth *auth);

/* Takes received bytes, in parts of any length, and returns how many; the rest lies behind the handshake. */
size_t epw_auth_take(epw_auth *auth, const void *bytes, size_t length);

/* The connection has ended: a handshake that wants more is refused as cut off. */
void epw_auth_end(epw_auth *auth);

/* What is to be sent, returning its length, and that `length` bytes of it were. */
size_t epw_auth_output(const epw_auth *auth, const unsigned char **bytes);
void epw_auth_sent(epw_auth *auth, size_t length);

/* The reason of a refusal by name, for example "bad proof". */
const char *epw_auth_reason_name(epw_auth_reason reason);

/* Why this end refused: what was found and what to do about it. Returns `text`. */
const char *epw_auth_explain(const epw_auth *auth, char *text, size_t size);

#endif
