/* The handshake by which, before any frame, the two ends of a connection prove to each other that they know
 * the fabric's key, and agree on the link for which the connection is. Bytes in, bytes out: no sockets and no
 * clock.
 *
 *     dialer                                listener
 *        | -- hello, challenge ---------------> |   who dials whom, which incarnations, which link
 *        | <-- the hello's mirror, challenge -- |   says nothing that the dialer has not said first
 *        | -- proof --------------------------> |   the dialer proves first: a stranger gets nothing that
 *        | <-- verdict, proof ----------------- |   derives from the key, nor who it is that listens
 *
 * A proof is HMAC-SHA256 under the key over {label, the prover's role, version, verdict, both complete
 * hellos}. The role prevents a proof from being reflected, the two fresh challenges prevent it from being
 * replayed, and the rest of the hellos prevents it from being used for another link, rank or incarnation.
 * Once the dialer has proven itself, the listener decides whether it is the one whom the dialer wants; its
 * verdict is part of its own proof.
 *
 * Windows are not named: a link serves all buffers of its two fabrics while it lasts, including later ones.
 * The hellos name both fabrics by nonces that are drawn whenever a fabric is created, so no proof is valid
 * for another incarnation. Which window a frame may write is decided for each frame by the number of the
 * queue pair and the key, both with serials that a reused slot does not repeat soon, and by their domain
 * (soft/incoming.c).
 *
 * As with the bootstrap, what follows is neither encrypted nor authenticated: the key keeps strangers and
 * misdirected connections out, but does not replace a trusted network. */
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
    EPW_AUTH_DONE,   /* the other end knows the key and the link is agreed; output may still have to be
                        sent */
    EPW_AUTH_REFUSED /* for the reason given; output may still have to be sent */
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

/* The other end and the link. A dialer sets them; a listener learns them, and may trust them once the
 * handshake is done. */
typedef struct epw_auth_peer {
    uint32_t rank;
    epw_nonce fabric;
    uint32_t link;
} epw_auth_peer;

/* A handshake in progress. Users read `state`, `reason` and `peer`, and leave the rest to the functions. */
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
    unsigned char out[EPW_AUTH_LISTENER_BYTES]; /* the longest message of either */
} epw_auth;

/* Begins. A dialer has its hello to send at once. */
void epw_auth_dial(epw_auth *auth, const epw_auth_self *self, const epw_auth_peer *peer);
void epw_auth_listen(epw_auth *auth, const epw_auth_self *self);

/* The most bytes that it takes next: at least 1 while it wants more, 0 once it is over. A user that never
 * reads more than that leaves what follows the handshake unread. */
size_t epw_auth_wanted(const epw_auth *auth);

/* Takes received bytes, in parts of any length, and returns how many it has taken; the rest follows the
 * handshake. */
size_t epw_auth_take(epw_auth *auth, const void *bytes, size_t length);

/* The connection has ended: a handshake that wants more is refused as cut off. */
void epw_auth_end(epw_auth *auth);

/* Gives what is to be sent, and returns its length; reports that `length` bytes of it were sent. */
size_t epw_auth_output(const epw_auth *auth, const unsigned char **bytes);
void epw_auth_sent(epw_auth *auth, size_t length);

/* Whether this end is a dialer that has given its proof. */
bool epw_auth_has_proven(const epw_auth *auth);

/* The reason of a refusal by name, for example "bad proof". */
const char *epw_auth_reason_name(epw_auth_reason reason);

/* Why this end refused: what was found and what to do about it. Returns `text`. */
const char *epw_auth_explain(const epw_auth *auth, char *text, size_t size);

#endif
