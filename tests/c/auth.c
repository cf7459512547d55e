/* The handshake of a link, with both ends in memory: what it accepts, and everything that it must refuse. */
#include "check.h"
#include "nic/auth.h"

#include <string.h>

/* A dialer, rank 3, and a listener, rank 5, which agree in everything. */
static epw_auth_self self_of(uint32_t rank, unsigned char challenge) {
    epw_auth_self self = {.rank = rank};
    memset(self.key, 0x4b, sizeof self.key);
    memset(self.fabric.bytes, (int)(0x10 + rank), sizeof self.fabric.bytes);
    for (size_t i = 0; i < sizeof self.challenge; i++) self.challenge[i] = (unsigned char)(challenge + i);
    return self;
}

static epw_auth_peer wanted(uint32_t link) {
    epw_auth_peer peer = {.rank = 5, .link = link};
    peer.fabric = self_of(5, 0).fabric;
    return peer;
}

typedef struct pair {
    epw_auth dialer, listener;
} pair;

static pair begin(void) {
    pair p;
    epw_auth_self dialer = self_of(3, 1), listener = self_of(5, 101);
    epw_auth_peer peer = wanted(7);
    epw_auth_dial(&p.dialer, &dialer, &peer);
    epw_auth_listen(&p.listener, &listener);
    return p;
}

/* The bytes that both have sent. */
typedef struct record {
    unsigned char said[2][EPW_AUTH_LISTENER_BYTES]; /* by the dialer, by the listener */
    size_t length[2];
} record;

/* Carries what one end has to send to the other, `most` bytes at a time; true if there was something. */
static bool carry(epw_auth *from, epw_auth *to, size_t most, unsigned char *said, size_t *said_length) {
    const unsigned char *bytes;
    size_t length = epw_auth_output(from, &bytes);
    if (length > most) length = most;
    if (length == 0) return false;
    memcpy(said + *said_length, bytes, length);
    *said_length += length;
    epw_auth_take(to, bytes, length);
    epw_auth_sent(from, length);
    return true;
}

static record converse(pair *p, size_t most) {
    record r = {0};
    while (carry(&p->dialer, &p->listener, most, r.said[0], &r.length[0]) ||
           carry(&p->listener, &p->dialer, most, r.said[1], &r.length[1]))
        continue;
    return r;
}

static bool refused(const epw_auth *auth, epw_auth_reason reason) {
    char text[160];
    bool right = auth->state == EPW_AUTH_REFUSED && auth->reason == reason;
    if (!right)
        fprintf(stderr, "state %d: %s\n", (int)auth->state, epw_auth_explain(auth, text, sizeof text));
    return right && strncmp(epw_auth_explain(auth, text, sizeof text), epw_auth_reason_name(reason),
                            strlen(epw_auth_reason_name(reason))) == 0;
}

static bool is_wiped(const epw_auth *auth) {
    static const unsigned char zeros[EPW_AUTH_KEY_BYTES];
    return memcmp(auth->self.key, zeros, sizeof zeros) == 0;
}

static void the_two_agree_in_parts_of_any_length(void) {
    for (size_t most = 1; most <= EPW_AUTH_LISTENER_BYTES; most++) {
        pair p = begin();
        record r = converse(&p, most);
        CHECK(p.dialer.state == EPW_AUTH_DONE && p.listener.state == EPW_AUTH_DONE);
        CHECK(p.dialer.peer.rank == 5 && p.listener.peer.rank == 3);
        epw_auth_self dialer = self_of(3, 1);
        CHECK(epw_nonce_equal(&p.listener.peer.fabric, &dialer.fabric));
        CHECK(p.dialer.peer.link == 7 && p.listener.peer.link == 7);
        CHECK(r.length[0] == EPW_AUTH_DIALER_BYTES && r.length[1] == EPW_AUTH_LISTENER_BYTES);
        CHECK(is_wiped(&p.dialer) && is_wiped(&p.listener));
    }
}

static void what_follows_is_left_alone(void) {
    pair p = begin();
    record r = converse(&p, 1000);
    for (size_t split = 0; split <= EPW_AUTH_DIALER_BYTES; split++) {
        unsigned char all[EPW_AUTH_DIALER_BYTES + 9];
        memcpy(all, r.said[0], EPW_AUTH_DIALER_BYTES);
        memset(all + EPW_AUTH_DIALER_BYTES, 0xee, 9);
        p = begin();
        size_t taken = epw_auth_take(&p.listener, all, split);
        CHECK(taken == split);
        taken += epw_auth_take(&p.listener, all + split, sizeof all - split);
        CHECK(taken == EPW_AUTH_DIALER_BYTES && p.listener.state == EPW_AUTH_DONE);
        CHECK(epw_auth_wanted(&p.listener) == 0 && epw_auth_take(&p.listener, all, 9) == 0);
    }
    /* Reading only as many bytes as are wanted has the same result. */
    p = begin();
    size_t read = 0;
    for (size_t want; (want = epw_auth_wanted(&p.listener)) > 0; read += want)
        CHECK(epw_auth_take(&p.listener, r.said[0] + read, want) == want);
    CHECK(read == EPW_AUTH_DIALER_BYTES && p.listener.state == EPW_AUTH_DONE);
}

/* With the same challenges and one bit changed, whichever end receives the bytes refuses. */
static void every_change_of_a_byte_is_refused(void) {
    pair p = begin();
    record r = converse(&p, 1000);
    for (int by = 0; by < 2; by++) {
        for (size_t at = 0; at < r.length[by]; at++) {
            for (int change = 1; change < 256; change++) {
                if (change != 0xff && (change & (change - 1)) != 0) continue;
                unsigned char said[EPW_AUTH_LISTENER_BYTES];
                memcpy(said, r.said[by], r.length[by]);
                said[at] ^= (unsigned char)change;
                p = begin();
                epw_auth *to = by == 0 ? &p.listener : &p.dialer;
                epw_auth_take(to, said, r.length[by]);
                epw_auth_end(to);
                CHECK_MSG(to->state == EPW_AUTH_REFUSED, "byte %zu of %d, by %02x", at, by, (unsigned)change);
                CHECK(is_wiped(to));
            }
        }
        /* Cut at any byte, it is refused as well. */
        for (size_t length = 0; length < r.length[by]; length++) {
            p = begin();
            epw_auth *to = by == 0 ? &p.listener : &p.dialer;
            epw_auth_take(to, r.said[by], length);
            CHECK(to->state == EPW_AUTH_MORE);
            epw_auth_end(to);
            CHECK(refused(to, EPW_AUTH_CUT_OFF));
        }
    }
}

static void refusals_have_names(void) {
    pair p = begin();
    record r = converse(&p, 1000);
    static const struct {
        size_t at;
        epw_auth_reason by_listener, by_dialer;
    } fields[] = {
        {0, EPW_AUTH_BAD_MAGIC, EPW_AUTH_BAD_MAGIC},     {4, EPW_AUTH_OTHER_VERSION, EPW_AUTH_OTHER_VERSION},
        {8, EPW_AUTH_WRONG_ROLE, EPW_AUTH_WRONG_ROLE},   {12, EPW_AUTH_BAD_PROOF, EPW_AUTH_WRONG_RANK},
        {16, EPW_AUTH_BAD_PROOF, EPW_AUTH_WRONG_RANK},   {20, EPW_AUTH_BAD_PROOF, EPW_AUTH_OTHER_LINK},
        {24, EPW_AUTH_BAD_PROOF, EPW_AUTH_OTHER_FABRIC}, {40, EPW_AUTH_BAD_PROOF, EPW_AUTH_OTHER_FABRIC},
        {56, EPW_AUTH_BAD_PROOF, EPW_AUTH_BAD_PROOF},    {88, EPW_AUTH_BAD_PROOF, EPW_AUTH_BAD_PROOF},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        record changed = r;
        changed.said[0][fields[i].at] ^= 4;
        changed.said[1][fields[i].at] ^= 4;
        p = begin();
        epw_auth_take(&p.listener, changed.said[0], changed.length[0]);
        CHECK_MSG(refused(&p.listener, fields[i].by_listener), "field at %zu", fields[i].at);
        epw_auth_take(&p.dialer, changed.said[1], changed.length[1]);
        CHECK_MSG(refused(&p.dialer, fields[i].by_dialer), "field at %zu", fields[i].at);
    }
    for (int reason = 0; reason < EPW_AUTH_REASONS; reason++)
        for (int other = 0; other < reason; other++)
            CHECK(strcmp(epw_auth_reason_name((epw_auth_reason)reason),
                         epw_auth_reason_name((epw_auth_reason)other)) != 0);
}

/* Garbage is refused by its first bytes, before a whole message has arrived. */
static void garbage_is_refused_at_once(void) {
    pair p = begin();
    const unsigned char *bytes;
    CHECK(epw_auth_take(&p.listener, "GET / HTTP/1.1\r\n", 16) == 8);
    CHECK(refused(&p.listener, EPW_AUTH_BAD_MAGIC) && epw_auth_output(&p.listener, &bytes) == 0);
    CHECK(epw_auth_take(&p.dialer, "SSH-2.0-x\r\n", 11) == 8);
    CHECK(refused(&p.dialer, EPW_AUTH_BAD_MAGIC));
}

static void both_ends_learn_of_another_version(void) {
    pair p = begin();
    record r = converse(&p, 1000);
    r.said[0][4] = 9;
    p = begin();
    epw_auth_take(&p.listener, r.said[0], 8); /* anything may follow these */
    CHECK(refused(&p.listener, EPW_AUTH_OTHER_VERSION));
    const unsigned char *bytes;
    size_t length = epw_auth_output(&p.listener, &bytes);
    CHECK(length == EPW_AUTH_PREFIX_BYTES);
    unsigned char answer[EPW_AUTH_PREFIX_BYTES];
    memcpy(answer, bytes, sizeof answer);
    CHECK(answer[4] == EPW_AUTH_VERSION);
    answer[4] = 9; /* as the other role would */
    epw_auth_take(&p.dialer, answer, sizeof answer);
    char text[160];
    CHECK(refused(&p.dialer, EPW_AUTH_OTHER_VERSION));
    CHECK(strstr(epw_auth_explain(&p.dialer, text, sizeof text), "version 1 here and 9 there"));
}

/* A dialer that has not proven itself gets the mirror of its own hello and a challenge, and nothing more. */
static void a_stranger_gets_nothing_past_the_challenge(void) {
    pair p = begin();
    epw_auth_self stranger = self_of(3, 1);
    stranger.key[31] ^= 1;
    epw_auth_peer peer = wanted(7);
    peer.rank = 77; /* it must not learn who listens, either */
    epw_auth_dial(&p.dialer, &stranger, &peer);
    record r = converse(&p, 1000);
    CHECK(refused(&p.listener, EPW_AUTH_BAD_PROOF));
    CHECK(r.length[1] == EPW_AUTH_HELLO_BYTES && r.said[1][12] == 77);
    epw_auth_end(&p.dialer);
    char text[160];
    CHECK(refused(&p.dialer, EPW_AUTH_CUT_OFF));
    CHECK(strstr(epw_auth_explain(&p.dialer, text, sizeof text), "the same token"));
}

/* A listener without the key, which accepts everybody. */
static void a_false_listener_is_refused(void) {
    pair p = begin();
    epw_auth_self stranger = self_of(5, 101);
    stranger.key[0] ^= 1;
    epw_auth_listen(&p.listener, &stranger);
    converse(&p, 1000);
    unsigned char verdict[EPW_AUTH_VERDICT_BYTES] = {0};
    epw_auth_take(&p.dialer, verdict, sizeof verdict);
    CHECK(refused(&p.dialer, EPW_AUTH_BAD_PROOF));
}

static void own_messages_sent_back_are_refused(void) {
    /* All messages are replayed whole, to each role. */
    pair p = begin();
    const unsigned char *bytes;
    size_t length = epw_auth_output(&p.dialer, &bytes);
    epw_auth_take(&p.dialer, bytes, length);
    CHECK(refused(&p.dialer, EPW_AUTH_WRONG_ROLE));
    p = begin();
    record r = converse(&p, 1000);
    p = begin();
    epw_auth_take(&p.listener, r.said[1], r.length[1]);
    CHECK(refused(&p.listener, EPW_AUTH_WRONG_ROLE));

    /* The dialer's proof is sent as the listener's. */
    p = begin();
    epw_auth_take(&p.dialer, r.said[1], EPW_AUTH_HELLO_BYTES);
    unsigned char verdict[EPW_AUTH_VERDICT_BYTES] = {0};
    memcpy(verdict + 4, r.said[0] + EPW_AUTH_HELLO_BYTES, EPW_AUTH_PROOF_BYTES);
    epw_auth_take(&p.dialer, verdict, sizeof verdict);
    CHECK(refused(&p.dialer, EPW_AUTH_BAD_PROOF));

    /* A hello is sent back with the role corrected; then the listener's proof is missing. An attacker could
     * ask the dialer itself for it, if that also listens; but an end proves itself as a listener only to a
     * dialer that has proven itself. */
    p = begin();
    unsigned char mirror[EPW_AUTH_HELLO_BYTES];
    memcpy(mirror, r.said[1], sizeof mirror);
    memcpy(mirror + 56, r.said[0] + 56, EPW_AUTH_CHALLENGE_BYTES); /* the dialer's own challenge */
    epw_auth_take(&p.dialer, mirror, sizeof mirror);
    CHECK(p.dialer.state == EPW_AUTH_MORE);
    memcpy(verdict + 4, r.said[1] + EPW_AUTH_HELLO_BYTES + 4, EPW_AUTH_PROOF_BYTES);
    epw_auth_take(&p.dialer, verdict, sizeof verdict);
    CHECK(refused(&p.dialer, EPW_AUTH_BAD_PROOF));
}

static void a_recorded_handshake_is_refused(void) {
    pair p = begin();
    record r = converse(&p, 1000);
    epw_auth_self dialer = self_of(3, 2), listener = self_of(5, 102); /* fresh challenges */
    epw_auth_peer peer = wanted(7);
    epw_auth_listen(&p.listener, &listener);
    epw_auth_take(&p.listener, r.said[0], r.length[0]);
    CHECK(refused(&p.listener, EPW_AUTH_BAD_PROOF));
    epw_auth_dial(&p.dialer, &dialer, &peer);
    epw_auth_take(&p.dialer, r.said[1], r.length[1]);
    CHECK(refused(&p.dialer, EPW_AUTH_BAD_PROOF));
}

/* An attacker between the ends wants the link to be another one: it changes the hello on the way, and changes
 * the mirror back. */
static void a_proof_is_good_for_its_link_alone(void) {
    static const size_t fields[] = {12, 16, 20, 24, 40}; /* both ranks, link, both incarnations */
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        pair p = begin();
        unsigned char hello[EPW_AUTH_HELLO_BYTES];
        const unsigned char *bytes;
        epw_auth_output(&p.dialer, &bytes);
        memcpy(hello, bytes, sizeof hello);
        epw_auth_sent(&p.dialer, sizeof hello);
        hello[fields[i]] ^= 1;
        epw_auth_take(&p.listener, hello, sizeof hello);

        epw_auth_output(&p.listener, &bytes);
        memcpy(hello, bytes, sizeof hello);
        epw_auth_sent(&p.listener, sizeof hello);
        static const size_t mirrors[] = {16, 12, 20, 40, 24};
        hello[mirrors[i]] ^= 1;
        epw_auth_take(&p.dialer, hello, sizeof hello);
        CHECK(p.dialer.state == EPW_AUTH_MORE);

        epw_auth_output(&p.dialer, &bytes);
        epw_auth_take(&p.listener, bytes, EPW_AUTH_PROOF_BYTES);
        CHECK_MSG(refused(&p.listener, EPW_AUTH_BAD_PROOF), "field at %zu", fields[i]);
    }
}

/* A dialer that has the key, but wants another rank, is told so, and both ends refuse. */
static void both_ends_learn_who_was_wanted(void) {
    for (int i = 0; i < 3; i++) {
        pair p = begin();
        epw_auth_self dialer = self_of(3, 1);
        epw_auth_peer peer = wanted(7);
        if (i == 0) peer.rank = 6;
        if (i == 1) peer.fabric.bytes[15] ^= 1;
        if (i == 2) dialer.rank = EPW_MAX_RANKS;
        epw_auth_dial(&p.dialer, &dialer, &peer);
        converse(&p, 1);
        epw_auth_reason reason = i == 1 ? EPW_AUTH_OTHER_FABRIC : EPW_AUTH_WRONG_RANK;
        CHECK(refused(&p.listener, reason) && refused(&p.dialer, reason));
    }
}

int main(void) {
    the_two_agree_in_parts_of_any_length();
    what_follows_is_left_alone();
    every_change_of_a_byte_is_refused();
    refusals_have_names();
    garbage_is_refused_at_once();
    both_ends_learn_of_another_version();
    a_stranger_gets_nothing_past_the_challenge();
    a_false_listener_is_refused();
    own_messages_sent_back_are_refused();
    a_recorded_handshake_is_refused();
    a_proof_is_good_for_its_link_alone();
    both_ends_learn_who_was_wanted();
    return check_result("auth");
}
