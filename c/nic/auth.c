/* See auth.h. */
#include "nic/auth.h"

#include <stdio.h>
#include <string.h>

#define MAGIC   UINT32_C(0x4c575045) /* "EPWL" */
#define WELCOME 0u                   /* a verdict that is not a reason */

/* What is awaited. */
enum { HELLO_PREFIX, HELLO_REST, DIALER_PROOF, VERDICT, OVER };

/* Offsets of the fields of a hello. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_ROLE = 8,
    AT_RANK = 12,
    AT_WANTED_RANK = 16,
    AT_LINK = 20,
    AT_FABRIC = 24,
    AT_WANTED_FABRIC = 40,
    AT_CHALLENGE = 56
};
_Static_assert(AT_CHALLENGE + EPW_AUTH_CHALLENGE_BYTES == EPW_AUTH_HELLO_BYTES,
               "a hello ends with its challenge");
_Static_assert((int)EPW_AUTH_LISTENER_BYTES >= (int)EPW_AUTH_DIALER_BYTES, "the output of both has room");

static void put(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static uint32_t get(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static epw_nonce get_nonce(const unsigned char *at) {
    epw_nonce nonce;
    memcpy(nonce.bytes, at, sizeof nonce.bytes);
    return nonce;
}

/* ---- what is said ---- */

static void say(epw_auth *auth, const void *bytes, size_t length) {
    memcpy(auth->out + auth->out_length, bytes, length);
    auth->out_length += (uint32_t)length;
}

typedef struct end {
    uint32_t rank;
    epw_nonce fabric;
} end;

static void write_hello(unsigned char *hello, epw_auth_role role, end from, end to, uint32_t link,
                        const unsigned char *challenge) {
    put(hello + AT_MAGIC, MAGIC);
    put(hello + AT_VERSION, EPW_AUTH_VERSION);
    put(hello + AT_ROLE, role);
    put(hello + AT_RANK, from.rank);
    put(hello + AT_WANTED_RANK, to.rank);
    put(hello + AT_LINK, link);
    memcpy(hello + AT_FABRIC, from.fabric.bytes, sizeof from.fabric.bytes);
    memcpy(hello + AT_WANTED_FABRIC, to.fabric.bytes, sizeof to.fabric.bytes);
    memcpy(hello + AT_CHALLENGE, challenge, EPW_AUTH_CHALLENGE_BYTES);
}

static void prove(const epw_auth *auth, epw_auth_role role, uint32_t verdict,
                  unsigned char proof[EPW_AUTH_PROOF_BYTES]) {
    static const char label[] = "epwire link handshake";
    unsigned char numbers[12];
    put(numbers, role);
    put(numbers + 4, EPW_AUTH_VERSION);
    put(numbers + 8, verdict);
    epw_hmac mac;
    epw_hmac_begin(&mac, auth->self.key, sizeof auth->self.key);
    epw_hmac_add(&mac, label, sizeof label);
    epw_hmac_add(&mac, numbers, sizeof numbers);
    epw_hmac_add(&mac, auth->hellos, sizeof auth->hellos);
    epw_hmac_end(&mac, proof);
}

static bool proven(const epw_auth *auth, epw_auth_role role, uint32_t verdict, const unsigned char *proof) {
    unsigned char right[EPW_AUTH_PROOF_BYTES];
    prove(auth, role, verdict, right);
    bool equal = epw_bytes_equal(right, proof, sizeof right);
    explicit_bzero(right, sizeof right);
    return equal;
}

/* ---- steps ---- */

static void await(epw_auth *auth, uint32_t step, uint32_t want) {
    auth->step = step;
    auth->want = want;
}

static void finish(epw_auth *auth, epw_auth_state state, epw_auth_reason reason) {
    auth->state = state;
    auth->reason = reason;
    if (reason != EPW_AUTH_CUT_OFF) auth->step = OVER; /* else it tells where */
    explicit_bzero(auth->self.key, sizeof auth->self.key);
}

static void refuse(epw_auth *auth, epw_auth_reason reason) {
    finish(auth, EPW_AUTH_REFUSED, reason);
}

/* An end of another version is sent our version, so that it can report the difference. */
static void take_prefix(epw_auth *auth) {
    auth->their_version = get(auth->in + AT_VERSION);
    if (get(auth->in + AT_MAGIC) != MAGIC) {
        refuse(auth, EPW_AUTH_BAD_MAGIC);
    } else if (auth->their_version != EPW_AUTH_VERSION) {
        unsigned char prefix[EPW_AUTH_PREFIX_BYTES];
        put(prefix + AT_MAGIC, MAGIC);
        put(prefix + AT_VERSION, EPW_AUTH_VERSION);
        if (auth->role == EPW_AUTH_LISTENER) say(auth, prefix, sizeof prefix);
        refuse(auth, EPW_AUTH_OTHER_VERSION);
    } else {
        await(auth, HELLO_REST, EPW_AUTH_HELLO_BYTES);
    }
}

/* The listener answers with the mirror of the dialer's hello, whether that is right or not. */
static void take_dialer_hello(epw_auth *auth) {
    const unsigned char *hello = auth->in;
    if (get(hello + AT_ROLE) != EPW_AUTH_DIALER) {
        refuse(auth, EPW_AUTH_WRONG_ROLE);
        return;
    }
    end dialer = {get(hello + AT_RANK), get_nonce(hello + AT_FABRIC)};
    end wanted = {get(hello + AT_WANTED_RANK), get_nonce(hello + AT_WANTED_FABRIC)};
    auth->peer = (epw_auth_peer){dialer.rank, dialer.fabric, get(hello + AT_LINK)};
    memcpy(auth->hellos[0], hello, EPW_AUTH_HELLO_BYTES);
    write_hello(auth->hellos[1], EPW_AUTH_LISTENER, wanted, dialer, auth->peer.link, auth->self.challenge);
    say(auth, auth->hellos[1], EPW_AUTH_HELLO_BYTES);
    await(auth, DIALER_PROOF, EPW_AUTH_PROOF_BYTES);
}

static bool names(const unsigned char *at, const epw_nonce *nonce) {
    epw_nonce named = get_nonce(at);
    return epw_nonce_equal(&named, nonce);
}

static void take_listener_hello(epw_auth *auth) {
    const unsigned char *hello = auth->in;
    if (get(hello + AT_ROLE) != EPW_AUTH_LISTENER) {
        refuse(auth, EPW_AUTH_WRONG_ROLE);
    } else if (get(hello + AT_RANK) != auth->peer.rank || get(hello + AT_WANTED_RANK) != auth->self.rank) {
        refuse(auth, EPW_AUTH_WRONG_RANK);
    } else if (!names(hello + AT_FABRIC, &auth->peer.fabric) ||
               !names(hello + AT_WANTED_FABRIC, &auth->self.fabric)) {
        refuse(auth, EPW_AUTH_OTHER_FABRIC);
    } else if (get(hello + AT_LINK) != auth->peer.link) {
        refuse(auth, EPW_AUTH_OTHER_LINK);
    } else {
        unsigned char proof[EPW_AUTH_PROOF_BYTES];
        memcpy(auth->hellos[1], hello, EPW_AUTH_HELLO_BYTES);
        prove(auth, EPW_AUTH_DIALER, WELCOME, proof);
        say(auth, proof, sizeof proof);
        await(auth, VERDICT, EPW_AUTH_VERDICT_BYTES);
    }
}

/* The dialer knows the key: from now on it is told why it is refused. */
static void take_dialer_proof(epw_auth *auth) {
    if (!proven(auth, EPW_AUTH_DIALER, WELCOME, auth->in)) {
        refuse(auth, EPW_AUTH_BAD_PROOF);
        return;
    }
    const unsigned char *hello = auth->hellos[0];
    epw_auth_reason reason = EPW_AUTH_NO_REASON;
    if (get(hello + AT_WANTED_RANK) != auth->self.rank || auth->peer.rank >= EPW_MAX_RANKS) {
        reason = EPW_AUTH_WRONG_RANK;
    } else if (!names(hello + AT_WANTED_FABRIC, &auth->self.fabric)) {
        reason = EPW_AUTH_OTHER_FABRIC;
    }
    unsigned char verdict[EPW_AUTH_VERDICT_BYTES];
    put(verdict, reason);
    prove(auth, EPW_AUTH_LISTENER, reason, verdict + 4);
    say(auth, verdict, sizeof verdict);
    finish(auth, reason == EPW_AUTH_NO_REASON ? EPW_AUTH_DONE : EPW_AUTH_REFUSED, reason);
}

static void take_verdict(epw_auth *auth) {
    uint32_t verdict = get(auth->in);
    if (!proven(auth, EPW_AUTH_LISTENER, verdict, auth->in + 4)) {
        refuse(auth, EPW_AUTH_BAD_PROOF);
    } else if (verdict == WELCOME) {
        finish(auth, EPW_AUTH_DONE, EPW_AUTH_NO_REASON);
    } else {
        refuse(auth, verdict == EPW_AUTH_WRONG_RANK ? EPW_AUTH_WRONG_RANK : EPW_AUTH_OTHER_FABRIC);
    }
}

static void take_message(epw_auth *auth) {
    switch (auth->step) {
    case HELLO_PREFIX:
        take_prefix(auth); /* which stays, as the first part of the hello */
        return;
    case HELLO_REST:
        if (auth->role == EPW_AUTH_LISTENER) {
            take_dialer_hello(auth);
        } else {
            take_listener_hello(auth);
        }
        break;
    case DIALER_PROOF:
        take_dialer_proof(auth);
        break;
    case VERDICT:
        take_verdict(auth);
        break;
    default:
        break;
    }
    auth->have = 0;
}

/* ---- the machine ---- */

static void begin(epw_auth *auth, epw_auth_role role, const epw_auth_self *self) {
    memset(auth, 0, sizeof *auth);
    auth->role = role;
    auth->self = *self;
    await(auth, HELLO_PREFIX, EPW_AUTH_PREFIX_BYTES);
}

void epw_auth_dial(epw_auth *auth, const epw_auth_self *self, const epw_auth_peer *peer) {
    begin(auth, EPW_AUTH_DIALER, self);
    auth->peer = *peer;
    end from = {self->rank, self->fabric}, to = {peer->rank, peer->fabric};
    write_hello(auth->hellos[0], EPW_AUTH_DIALER, from, to, peer->link, self->challenge);
    say(auth, auth->hellos[0], EPW_AUTH_HELLO_BYTES);
}

void epw_auth_listen(epw_auth *auth, const epw_auth_self *self) {
    begin(auth, EPW_AUTH_LISTENER, self);
}

size_t epw_auth_wanted(const epw_auth *auth) {
    return auth->state == EPW_AUTH_MORE ? auth->want - auth->have : 0;
}

size_t epw_auth_take(epw_auth *auth, const void *bytes, size_t length) {
    size_t taken = 0;
    while (taken < length && auth->state == EPW_AUTH_MORE) {
        size_t part = epw_auth_wanted(auth);
        if (part > length - taken) part = length - taken;
        memcpy(auth->in + auth->have, (const unsigned char *)bytes + taken, part);
        auth->have += (uint32_t)part;
        taken += part;
        if (auth->have == auth->want) take_message(auth);
    }
    return taken;
}

void epw_auth_end(epw_auth *auth) {
    if (auth->state == EPW_AUTH_MORE) refuse(auth, EPW_AUTH_CUT_OFF);
}

size_t epw_auth_output(const epw_auth *auth, const unsigned char **bytes) {
    *bytes = auth->out + auth->out_sent;
    return auth->out_length - auth->out_sent;
}

void epw_auth_sent(epw_auth *auth, size_t length) {
    size_t left = auth->out_length - auth->out_sent;
    auth->out_sent += (uint32_t)(length < left ? length : left);
}

bool epw_auth_has_proven(const epw_auth *auth) {
    return auth->step == VERDICT;
}

/* ---- reasons ---- */

const char *epw_auth_reason_name(epw_auth_reason reason) {
    switch (reason) {
    case EPW_AUTH_BAD_MAGIC:
        return "bad magic";
    case EPW_AUTH_OTHER_VERSION:
        return "other version";
    case EPW_AUTH_WRONG_ROLE:
        return "wrong role";
    case EPW_AUTH_WRONG_RANK:
        return "wrong rank";
    case EPW_AUTH_OTHER_FABRIC:
        return "not this fabric";
    case EPW_AUTH_OTHER_LINK:
        return "other link";
    case EPW_AUTH_BAD_PROOF:
        return "bad proof";
    case EPW_AUTH_CUT_OFF:
        return "cut off";
    default:
        return "no reason";
    }
}

static const char *explain_cut_off(const epw_auth *auth) {
    switch (auth->step) {
    case VERDICT:
        return "the peer hung up on this rank's proof; give all ranks the same token";
    case DIALER_PROOF:
        return "the dialer hung up before it proved that it knows the key";
    default:
        return "the other end hung up before its hello";
    }
}

const char *epw_auth_explain(const epw_auth *auth, char *text, size_t size) {
    const char *name = epw_auth_reason_name(auth->reason);
    bool dials = auth->role == EPW_AUTH_DIALER;
    switch (auth->reason) {
    case EPW_AUTH_BAD_MAGIC:
        snprintf(text, size, "%s: no rank of epwire answers at this address", name);
        break;
    case EPW_AUTH_OTHER_VERSION:
        snprintf(text, size,
                 "%s: the handshake is of version %d here and %u there; use the same epwire version", name,
                 EPW_AUTH_VERSION, (unsigned)auth->their_version);
        break;
    case EPW_AUTH_WRONG_ROLE:
        snprintf(text, size, "%s: the other end is no %s", name, dials ? "listener" : "dialer");
        break;
    case EPW_AUTH_WRONG_RANK:
        snprintf(text, size, "%s: %s %u", name,
                 dials ? "the listener is not rank" : "the dialer wants another rank than",
                 (unsigned)(dials ? auth->peer.rank : auth->self.rank));
        break;
    case EPW_AUTH_OTHER_FABRIC:
        snprintf(text, size, "%s: %s", name,
                 dials ? "the listener is another incarnation of the rank than the one that gave this address"
                       : "the dialer wants another incarnation of this rank");
        break;
    case EPW_AUTH_OTHER_LINK:
        snprintf(text, size, "%s: the answer is not to link %u", name, (unsigned)auth->peer.link);
        break;
    case EPW_AUTH_BAD_PROOF:
        snprintf(text, size, "%s: the other end does not know the key; give all ranks the same token", name);
        break;
    case EPW_AUTH_CUT_OFF:
        snprintf(text, size, "%s: %s", name, explain_cut_off(auth));
        break;
    default:
        snprintf(text, size, "%s", name);
    }
    return text;
}
