/* SHA-256 and HMAC-SHA256 against the published examples: FIPS 180-4 (and its file of examples), RFC 4231. */
#include "base/sha256.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* Whether `bytes` are those of the hexadecimal digits. */
static bool is(const unsigned char *bytes, size_t length, const char *hex) {
    char text[2 * EPW_SHA256_BYTES + 1] = {0};
    for (size_t i = 0; i < length; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return strncmp(text, hex, 2 * length) == 0 && strlen(hex) == 2 * length;
}

static void digests_are_the_published_ones(void) {
    static const struct {
        const char *text, *digest;
    } examples[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
         "mnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    unsigned char digest[EPW_SHA256_BYTES];
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        epw_sha256_of(examples[i].text, strlen(examples[i].text), digest);
        CHECK_MSG(is(digest, sizeof digest, examples[i].digest), "example %zu", i);
    }

    char *letters = malloc(1000000);
    CHECK(letters != NULL);
    if (letters == NULL) return;
    memset(letters, 'a', 1000000);
    epw_sha256_of(letters, 1000000, digest);
    CHECK(is(digest, sizeof digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    free(letters);
}

/* However a text is cut into parts, and however long its last block is. */
static void parts_give_the_digest_of_the_whole(void) {
    unsigned char text[200], whole[EPW_SHA256_BYTES], parts[EPW_SHA256_BYTES];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (unsigned char)(7 * i + 1);
    for (size_t length = 0; length <= sizeof text; length++) {
        epw_sha256_of(text, length, whole);
        for (size_t step = 1; step < 130; step += 13) {
            epw_sha256 hash;
            epw_sha256_begin(&hash);
            epw_sha256_add(&hash, NULL, 0);
            for (size_t at = 0; at < length; at += step)
                epw_sha256_add(&hash, text + at, length - at < step ? length - at : step);
            epw_sha256_end(&hash, parts);
            CHECK_MSG(memcmp(whole, parts, sizeof whole) == 0, "%zu bytes, %zu at a time", length, step);
        }
    }
}

typedef struct mac_case {
    unsigned char key[131];
    size_t key_length;
    unsigned char data[160];
    size_t length;
    const char *code; /* its first bytes, if the case truncates it */
} mac_case;

static void fill(unsigned char *to, size_t *length, unsigned char byte, size_t count) {
    memset(to, byte, count);
    *length = count;
}

static void say(unsigned char *to, size_t *length, const char *text) {
    *length = strlen(text);
    memcpy(to, text, *length);
}

static void codes_are_those_of_rfc_4231(void) {
    static mac_case cases[7];
    fill(cases[0].key, &cases[0].key_length, 0x0b, 20);
    say(cases[0].data, &cases[0].length, "Hi There");
    cases[0].code = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
    say(cases[1].key, &cases[1].key_length, "Jefe");
    say(cases[1].data, &cases[1].length, "what do ya want for nothing?");
    cases[1].code = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    fill(cases[2].key, &cases[2].key_length, 0xaa, 20);
    fill(cases[2].data, &cases[2].length, 0xdd, 50);
    cases[2].code = "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe";
    for (unsigned char i = 1; i <= 25; i++) cases[3].key[cases[3].key_length++] = i;
    fill(cases[3].data, &cases[3].length, 0xcd, 50);
    cases[3].code = "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b";
    fill(cases[4].key, &cases[4].key_length, 0x0c, 20);
    say(cases[4].data, &cases[4].length, "Test With Truncation");
    cases[4].code = "a3b6167473100ee06e0c796c2955552b";
    fill(cases[5].key, &cases[5].key_length, 0xaa, 131);
    say(cases[5].data, &cases[5].length, "Test Using Larger Than Block-Size Key - Hash Key First");
    cases[5].code = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
    fill(cases[6].key, &cases[6].key_length, 0xaa, 131);
    say(cases[6].data, &cases[6].length,
        "This is a test using a larger than block-size key and a larger than block-size data. The key needs "
        "to be hashed before being used by the HMAC algorithm.");
    cases[6].code = "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2";

    for (size_t i = 0; i < 7; i++) {
        const mac_case *c = &cases[i];
        unsigned char code[EPW_SHA256_BYTES], parts[EPW_SHA256_BYTES];
        epw_hmac_of(c->key, c->key_length, c->data, c->length, code);
        CHECK_MSG(is(code, strlen(c->code) / 2, c->code), "case %zu", i + 1);
        epw_hmac mac;
        epw_hmac_begin(&mac, c->key, c->key_length);
        for (size_t at = 0; at < c->length; at++) epw_hmac_add(&mac, c->data + at, 1);
        epw_hmac_end(&mac, parts);
        CHECK_MSG(memcmp(code, parts, sizeof code) == 0, "case %zu, byte by byte", i + 1);
    }
}

static void every_different_bit_is_seen(void) {
    unsigned char a[EPW_SHA256_BYTES], b[EPW_SHA256_BYTES];
    memset(a, 0x5a, sizeof a);
    memcpy(b, a, sizeof b);
    CHECK(epw_bytes_equal(a, b, sizeof a) && epw_bytes_equal(a, b, 0));
    for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        CHECK(!epw_bytes_equal(a, b, sizeof a));
        b[bit / 8] = a[bit / 8];
    }
}

int main(void) {
    digests_are_the_published_ones();
    parts_give_the_digest_of_the_whole();
    codes_are_those_of_rfc_4231();
    every_different_bit_is_seen();
    return check_result("sha256");
}
