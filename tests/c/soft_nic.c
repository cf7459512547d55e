/* The software NIC: two of them, connected by a socket pair or also by rings, and entries written byte by
 * byte after the adapter's manual. */
#include "check.h"
#include "garbage.h"

#include "base/clock.h"
#include "nic/queue.h"
#include "nic/soft.h"
#include "nic/soft/frame.h"
#include "nic/soft/ring.h"
#include "nic/soft/strict.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum { DEPTH = 64, MEMORY = 1 << 20, WORD_AT = 4096 };
enum { SOURCE_RIGHTS = EPW_REGION_READ | EPW_REGION_WRITE }; /* answers are placed there, too */

static const epw_where here = {"test", 0, -1};

/* ---- one end ---- */

typedef struct end {
    epw_nic *nic;
    epw_pair *pair;
    uint64_t link;
    uint32_t source_key, window_key;
    unsigned char *source, *window;
    _Atomic uint64_t word;  /* the last word placed at WORD_AT */
    _Atomic uint64_t words; /* number of words placed */
    bool shared;            /* this end adds to its words as well */
    uint64_t posted;        /* entries */
} end;

static uint64_t *word_at(end *e, uint64_t offset) {
    return (uint64_t *)(e->window + offset);
}

static void arrived(void *context, uint64_t offset, uint64_t value) {
    end *e = context;
    CHECK(offset % 8 == 0);
    if (!e->shared) CHECK(__atomic_load_n(word_at(e, offset), __ATOMIC_ACQUIRE) == value);
    if (offset != WORD_AT) return;
    atomic_store_explicit(&e->word, value, memory_order_release);
    atomic_fetch_add(&e->words, 1);
}

static bool strict;

static void open_end(end *e, uint32_t peer) {
    *e = (end){0};
    CHECK_OK(epw_nic_open(here, &e->nic));
    if (strict) CHECK_OK(epw_nic_be_strict(e->nic, 1, 0, here));
    e->source = calloc(1, MEMORY);
    e->window = calloc(1, MEMORY);
    epw_region source = {.base = e->source, .rights = SOURCE_RIGHTS, .count = 1, .stretches = {{0, MEMORY}}};
    /* The peer may write everything but the end of the second page. */
    epw_region window = {.base = e->window,
                         .rights = EPW_REGION_READ | EPW_REGION_WRITE | EPW_REGION_ATOMIC,
                         .count = 2,
                         .stretches = {{0, 8000}, {8192, MEMORY - 8192}},
                         .arrived = arrived,
                         .context = e};
    e->source_key = epw_nic_register(e->nic, &source);
    e->window_key = epw_nic_register(e->nic, &window);
    CHECK(e->source_key != 0 && e->window_key != 0);
    epw_pair_options options = {.peer = peer, .key = e->window_key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(e->nic, &options, here, &e->pair));
}

static void close_end(end *e) {
    epw_pair_destroy(e->pair);
    epw_nic_close(e->nic);
    free(e->source);
    free(e->window);
}

typedef struct two {
    end a, b;
} two;

static uint32_t ring_bytes; /* 0: only the socket */

/* The second NIC offers the rings: requests of the first use the smaller one. */
static void join(two *t, const int fds[2]) {
    if (ring_bytes == 0) {
        CHECK_OK(epw_nic_add_link(t->a.nic, fds[0], 1, here, &t->a.link));
        CHECK_OK(epw_nic_add_link(t->b.nic, fds[1], 0, here, &t->b.link));
    } else {
        CHECK_OK(epw_nic_add_ring_link(t->a.nic, fds[0], 1, 0, here, &t->a.link));
        CHECK_OK(epw_nic_add_ring_link(t->b.nic, fds[1], 0, ring_bytes, here, &t->b.link));
    }
}

static void open_two(two *t) {
    open_end(&t->a, 1);
    open_end(&t->b, 0);
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    join(t, fds);
    epw_pair_connect(t->a.pair, t->a.link, epw_pair_number(t->b.pair));
    epw_pair_connect(t->b.pair, t->b.link, epw_pair_number(t->a.pair));
}

static void close_two(two *t) {
    close_end(&t->a);
    close_end(&t->b);
}

/* ---- entries ---- */

static void put(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * (bytes - 1 - i)));
}

/* The next entry's 64 bytes, with a control segment. */
static unsigned char *entry(end *e, uint8_t opcode, uint32_t units, bool signalled) {
    const epw_pair_memory *memory = epw_pair_memory_of(e->pair);
    unsigned char *at = memory->entries + (e->posted % DEPTH) * 64;
    memset(at, 0, 64);
    put(at, (uint64_t)(e->posted & 0xffff) << 8 | opcode, 4);
    put(at + 4, (uint64_t)epw_pair_number(e->pair) << 8 | units, 4);
    at[11] = signalled ? 8 : 0;
    e->posted++;
    return at;
}

static void write_word(end *e, uint32_t key, uint64_t offset, uint64_t value, bool signalled) {
    unsigned char *at = entry(e, 8, 3, signalled);
    put(at + 16, offset, 8);
    put(at + 24, key, 4);
    put(at + 32, UINT32_C(0x80000008), 4);
    memcpy(at + 36, &value, sizeof value);
}

static void write_bytes(end *e, uint32_t key, uint64_t offset, uint64_t from, uint32_t bytes,
                        bool signalled) {
    unsigned char *at = entry(e, 8, 3, signalled);
    put(at + 16, offset, 8);
    put(at + 24, key, 4);
    put(at + 32, bytes, 4);
    put(at + 36, e->source_key, 4);
    put(at + 40, from, 8);
}

/* Posts a READ or FETCH_ADD, whose answer goes to `to` in `source`. */
static void read_bytes(end *e, uint32_t key, uint64_t offset, uint64_t to, uint32_t bytes, bool signalled) {
    write_bytes(e, key, offset, to, bytes, signalled);
    epw_pair_memory_of(e->pair)->entries[((e->posted - 1) % DEPTH) * 64 + 3] = 0x10;
}

static void fetch_add(end *e, uint32_t key, uint64_t offset, uint64_t addend, uint64_t to, bool signalled) {
    unsigned char *at = entry(e, 0x12, 4, signalled);
    put(at + 16, offset, 8);
    put(at + 24, key, 4);
    put(at + 32, addend, 8);
    put(at + 48, 8, 4);
    put(at + 52, e->source_key, 4);
    put(at + 56, to, 8);
}

/* Says what was posted, and does not make the NIC look. */
static void tell(end *e) {
    const epw_pair_memory *memory = epw_pair_memory_of(e->pair);
    unsigned char record[4], doorbell[8] = {0};
    uint32_t word;
    uint64_t both;
    put(record, e->posted & 0xffff, 4);
    put(doorbell, (e->posted & 0xffff) << 8, 4);
    put(doorbell + 4, (uint64_t)epw_pair_number(e->pair) << 8, 4);
    memcpy(&word, record, sizeof word);
    memcpy(&both, doorbell, sizeof both);
    __atomic_store_n(memory->record + 1, word, __ATOMIC_RELEASE);
    __atomic_store_n(memory->doorbell, both, __ATOMIC_RELEASE);
}

static void ring(end *e) {
    tell(e);
    epw_pair_ring(e->pair);
}

/* The completion's last word: {counter, opcode}. */
static uint32_t completion(const end *e, uint16_t *counter) {
    uint32_t word =
        __atomic_load_n((const uint32_t *)(epw_pair_memory_of(e->pair)->completion + 0x3c), __ATOMIC_ACQUIRE);
    unsigned char bytes[4];
    memcpy(bytes, &word, sizeof bytes);
    *counter = (uint16_t)(bytes[0] << 8 | bytes[1]);
    return bytes[3] >> 4;
}

static bool await_completion(const end *e, uint16_t index, uint32_t opcode) {
    uint16_t counter = 0;
    uint32_t seen = 0;
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < 5000 * MS;) {
        seen = completion(e, &counter);
        if (seen == opcode && counter == index) return true;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    fprintf(stderr, "completion %u of entry %u, wanted %u of %u\n", seen, counter, opcode, index);
    return false;
}

static bool await_done(const end *e) {
    return await_completion(e, (uint16_t)(e->posted - 1), 0);
}

/* The completion of a failure comes before the pair counts as broken. */
static bool await_broken(const end *e) {
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < 5000 * MS;) {
        if (epw_pair_broken(e->pair)) return true;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

static uint8_t syndrome(const end *e) {
    return epw_pair_memory_of(e->pair)->completion[0x37];
}

static bool await_word(end *e, uint64_t value) {
    for (uint64_t began = epw_now_ns(); epw_now_ns() - began < 5000 * MS;) {
        if (atomic_load_explicit(&e->word, memory_order_acquire) == value) return true;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

/* ---- what arrives ---- */

/* Ranges of any length, each followed by a word: whoever sees the word sees the bytes. */
static void a_word_is_placed_behind_the_bytes_before_it(void) {
    two t;
    open_two(&t);
    for (uint32_t round = 1; round <= 3000; round++) {
        end *from = round % 2 ? &t.a : &t.b, *to = round % 2 ? &t.b : &t.a;
        uint32_t bytes = (round * 7919) % (round % 50 == 0 ? 400000 : 3000);
        uint64_t at = 8192 + (round % 16) * 4;
        for (uint32_t i = 0; i < bytes; i++) from->source[at + i] = (unsigned char)(i * 31 + round);
        write_bytes(from, to->window_key, at, at, bytes, round % 3 == 0);
        write_word(from, to->window_key, WORD_AT, round, true);
        ring(from);
        CHECK_MSG(await_word(to, round), "round %u: no word", round);
        CHECK_MSG(memcmp(from->source + at, to->window + at, bytes) == 0, "round %u: other bytes", round);
        CHECK(await_done(from));
    }
    CHECK(!epw_pair_broken(t.a.pair) && !epw_pair_broken(t.b.pair));
    close_two(&t);
}

/* More entries than 16 bits of an index count, with full rings. */
static void indices_wrap(void) {
    two t;
    open_two(&t);
    uint64_t value = 0;
    while (t.a.posted < 3 * 65536 + 100) {
        for (int i = 0; i < DEPTH; i++) {
            if (i % 4 == 3) {
                entry(&t.a, 0, 1, i % 8 == 7);
            } else {
                write_word(&t.a, t.b.window_key, WORD_AT, ++value, false);
            }
        }
        ring(&t.a);
        if (!await_done(&t.a)) break;
    }
    CHECK(atomic_load(&t.b.word) == value && atomic_load(&t.b.words) == value);
    close_two(&t);
}

/* After entries that are done, a NOP is done at once, and nothing is sent for it; otherwise it is done with
 * the entries before it. */
static void a_nop_completes_behind_what_is_before_it(void) {
    two t;
    open_two(&t);
    for (uint32_t round = 1; round <= 100; round++) {
        uint64_t frames = epw_nic_sent(t.a.nic).frames;
        for (int i = 0; i < 20; i++) entry(&t.a, 0, 1, i == 19);
        ring(&t.a);
        CHECK(await_done(&t.a));
        CHECK_MSG(epw_nic_sent(t.a.nic).frames == frames, "round %u: a NOP travels", round);
        write_word(&t.a, t.b.window_key, WORD_AT, round, false);
        entry(&t.a, 0, 1, true);
        ring(&t.a);
        CHECK(await_done(&t.a));
        CHECK_MSG(atomic_load(&t.b.word) == round, "round %u: the NOP was done before the word", round);
    }
    close_two(&t);
}

static void doorbells_alone_make_a_strict_one_fetch(void) {
    two t;
    strict = true;
    open_two(&t);
    strict = false;
    const epw_pair_memory *memory = epw_pair_memory_of(t.a.pair);
    write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
    unsigned char record[4] = {0, 0, 0, 1};
    uint32_t word;
    memcpy(&word, record, sizeof word);
    __atomic_store_n(memory->record + 1, word, __ATOMIC_RELEASE);
    for (int i = 0; i < 100; i++) {
        epw_nic_poll(t.a.nic);
        epw_pair_ring(
            t.a.pair); /* says that there may be something new; the doorbell itself has not changed */
    }
    CHECK(atomic_load(&t.b.word) == 0);
    /* The next doorbell makes up for a lost one. */
    write_word(&t.a, t.b.window_key, WORD_AT, 2, true);
    ring(&t.a);
    CHECK(await_word(&t.b, 2) && await_done(&t.a));
    CHECK(atomic_load(&t.b.words) == 2);
    close_two(&t);
}

/* Some posters ring before they write the record, and with the same value after it. */
static void a_strict_one_notices_the_same_doorbell_again(void) {
    two t;
    strict = true;
    open_two(&t);
    strict = false;
    const epw_pair_memory *memory = epw_pair_memory_of(t.a.pair);
    for (uint64_t round = 1; round <= 100; round++) {
        write_word(&t.a, t.b.window_key, WORD_AT, round, true);
        __atomic_store_n(memory->doorbell, epw_doorbell(epw_pair_number(t.a.pair), t.a.posted),
                         __ATOMIC_RELEASE);
        epw_pair_ring(t.a.pair);
        CHECK(atomic_load(&t.b.word) == round - 1);
        ring(&t.a);
        CHECK(await_word(&t.b, round) && await_done(&t.a));
    }
    close_two(&t);
}

static void entries_before_the_connection_wait_for_it(void) {
    two t;
    open_end(&t.a, 1);
    open_end(&t.b, 0);
    write_word(&t.a, t.b.window_key, WORD_AT, 5, true);
    ring(&t.a);
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    join(&t, fds);
    epw_pair_connect(t.a.pair, t.a.link, epw_pair_number(t.b.pair));
    /* The other end has connected nothing, and is written all the same. */
    CHECK(await_word(&t.b, 5) && await_done(&t.a));
    CHECK(epw_nic_link_alive(t.a.nic, t.a.link) && !epw_nic_link_alive(t.a.nic, t.a.link + 1));
    close_two(&t);
}

/* ---- what is asked for ---- */

static uint64_t answer(const end *e, uint64_t at) {
    uint64_t value;
    memcpy(&value, e->source + at, sizeof value);
    return value;
}

/* Between WRITEs to the same bytes, a READ of any length sees those before it and none after it. */
static void a_read_is_in_order_with_writes(void) {
    static const uint32_t lengths[] = {1, 8, 4096, 250000};
    two t;
    open_two(&t);
    for (uint32_t round = 1; round <= 200; round++) {
        uint32_t bytes = lengths[round % 4], half = MEMORY / 2;
        memset(t.a.source, (int)round, bytes);
        memset(t.a.source + bytes, (int)round + 1, bytes);
        memset(t.a.source + half, 0x5a, bytes + 1);
        write_bytes(&t.a, t.b.window_key, 8192, 0, bytes, round % 2);
        read_bytes(&t.a, t.b.window_key, 8192, half, bytes, round % 3 == 0);
        write_bytes(&t.a, t.b.window_key, 8192, bytes, bytes, round % 5 == 0);
        write_word(&t.a, t.b.window_key, WORD_AT, round, true);
        ring(&t.a);
        CHECK(await_done(&t.a));
        for (uint32_t i = 0; i < bytes; i += 1 + bytes / 50)
            CHECK_MSG(t.a.source[half + i] == (unsigned char)round, "round %u, byte %u", round, i);
        CHECK(t.a.source[half + bytes - 1] == (unsigned char)round && t.a.source[half + bytes] == 0x5a);
        CHECK(t.b.window[8192 + bytes - 1] == (unsigned char)(round + 1));
    }
    CHECK(!epw_pair_broken(t.a.pair));
    close_two(&t);
}

/* A signalled READ completes after its bytes have arrived, one without a signal never completes; both ends
 * read at the same time. */
static void reads_complete_behind_their_bytes(void) {
    two t;
    open_two(&t);
    memset(t.a.window + 8192, 0xaa, 600000);
    memset(t.b.window + 8192, 0xbb, 600000);
    for (uint32_t round = 1; round <= 50; round++) {
        memset(t.a.source, 0, 600000);
        memset(t.b.source, 0, 600000);
        read_bytes(&t.a, t.b.window_key, 8192, 0, 600000, true);
        read_bytes(&t.b, t.a.window_key, 8192, 0, 600000, true);
        ring(&t.a);
        ring(&t.b);
        CHECK(await_done(&t.a) && t.a.source[0] == 0xbb && t.a.source[599999] == 0xbb);
        CHECK(await_done(&t.b) && t.b.source[0] == 0xaa && t.b.source[599999] == 0xaa);
    }
    uint16_t counter;
    read_bytes(&t.a, t.b.window_key, 8192, 700000, 1, false);
    ring(&t.a);
    nanosleep(&(struct timespec){0, 20 * (long)MS}, NULL);
    CHECK(completion(&t.a, &counter) == 0 && counter == 49);
    entry(&t.a, 0, 1, true);
    ring(&t.a);
    CHECK(await_done(&t.a) && t.a.source[700000] == 0xbb);
    close_two(&t);
}

static void write_both(end *e, uint64_t offset, uint64_t first, uint32_t first_bytes, uint64_t second,
                       uint32_t second_bytes, uint32_t window_key) {
    write_bytes(e, window_key, offset, first, first_bytes, true);
    unsigned char *at = epw_pair_memory_of(e->pair)->entries + ((e->posted - 1) % DEPTH) * 64;
    at[7] = 4;
    put(at + 48, second_bytes, 4);
    put(at + 52, e->source_key, 4);
    put(at + 56, second, 8);
}

static void two_places_make_one_write(void) {
    two t;
    open_two(&t);
    memset(t.a.source + 100, 0xaa, 1000);
    memset(t.a.source + 500000, 0xbb, 300000);
    write_both(&t.a, 8192, 100, 1000, 500000, 300000, t.b.window_key);
    write_both(&t.a, 400000, 500000, 300000, 100, 1000, t.b.window_key);
    ring(&t.a);
    CHECK(await_done(&t.a));
    CHECK(memcmp(t.b.window + 8192, t.a.source + 100, 1000) == 0);
    CHECK(memcmp(t.b.window + 9192, t.a.source + 500000, 300000) == 0 && t.b.window[309192] == 0);
    CHECK(memcmp(t.b.window + 400000, t.a.source + 500000, 300000) == 0);
    CHECK(memcmp(t.b.window + 700000, t.a.source + 100, 1000) == 0 && t.b.window[701000] == 0);
    /* The window's bounds apply to both pieces together, the source's bounds to each. */
    write_both(&t.a, MEMORY - 1500, 100, 1000, 500000, 1000, t.b.window_key);
    ring(&t.a);
    CHECK(await_completion(&t.a, 2, 0xd) && syndrome(&t.a) == 0x13);
    close_two(&t);
    open_two(&t);
    write_both(&t.a, 8192, 100, 1000, MEMORY - 10, 11, t.b.window_key);
    ring(&t.a);
    CHECK(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == 0x04 && t.b.window[8192] == 0);
    close_two(&t);
}

/* Without bytes there is no segment. */
static void transfers_of_nothing_complete(void) {
    two t;
    open_two(&t);
    for (uint8_t opcode = 0x08; opcode <= 0x10; opcode += 8) {
        unsigned char *at = entry(&t.a, opcode, 2, true);
        put(at + 16, 8192, 8);
        put(at + 24, t.b.window_key, 4);
        ring(&t.a);
        CHECK(await_done(&t.a));
    }
    close_two(&t);
}

enum { ADDS = 30000, ADDS_AT_A_TIME = 60 };

typedef struct adder {
    end *e;
    atomic_bool ends;
    uint32_t added;
} adder;

static void *add_main(void *argument) {
    adder *a = argument;
    for (; !atomic_load(&a->ends); a->added++)
        __atomic_fetch_add(word_at(a->e, WORD_AT), 1, __ATOMIC_RELAXED);
    return NULL;
}

/* No addition is lost, even with additions by the word's own host, and each old value is one that the word
 * had. */
static void a_fetch_add_is_atomic(void) {
    two t;
    open_two(&t);
    t.b.shared = true;
    adder other = {.e = &t.b};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, add_main, &other));
    uint32_t last = 0;
    for (uint32_t i = 0; i < ADDS; i++) {
        bool waits = i % ADDS_AT_A_TIME == ADDS_AT_A_TIME - 1;
        fetch_add(&t.a, t.b.window_key, WORD_AT, UINT64_C(1) << 40, 64, waits);
        if (!waits) continue;
        ring(&t.a);
        if (!await_done(&t.a)) break;
        uint64_t old = answer(&t.a, 64);
        CHECK(old >> 40 == i && (uint32_t)old >= last);
        last = (uint32_t)old;
    }
    atomic_store(&other.ends, true);
    pthread_join(thread, NULL);
    CHECK(*word_at(&t.b, WORD_AT) == ((uint64_t)ADDS << 40) + other.added);
    CHECK(atomic_load(&t.b.words) == ADDS); /* the region was told of each */
    close_two(&t);
}

/* A word that is advanced by additions follows the bytes before it, as a word that is written does. */
static void a_word_may_be_added_to(void) {
    two t;
    open_two(&t);
    for (uint64_t round = 1; round <= 500; round++) {
        uint32_t bytes = 1 + (uint32_t)round * 7919 % 100000;
        memset(t.a.source + 128, (int)round, bytes);
        write_bytes(&t.a, t.b.window_key, 8192, 128, bytes, false);
        fetch_add(&t.a, t.b.window_key, WORD_AT, 3, 64, round % 2);
        write_bytes(&t.a, t.b.window_key, 8192 + 200000, 128, bytes, true);
        ring(&t.a);
        CHECK(await_word(&t.b, 3 * round));
        CHECK(t.b.window[8192] == (unsigned char)round &&
              t.b.window[8192 + bytes - 1] == (unsigned char)round);
        CHECK(await_done(&t.a) && answer(&t.a, 64) == 3 * (round - 1));
    }
    close_two(&t);
}

typedef struct asks {
    const char *what;
    uint8_t syndrome;
    uint32_t without; /* a right that the window lacks */
    bool adds;
    uint64_t offset, to;
    uint32_t key_off, answer_off;
} asks;

static void rights_of_what_is_asked_are_checked(void) {
    static const asks cases[] = {
        {"all is right with a READ", 0, 0, false, 8192, 0, 0, 0},
        {"all is right with a FETCH_ADD", 0, 0, true, 8192, 0, 0, 0},
        {"no right to read", 0x13, EPW_REGION_READ, false, 8192, 0, 0, 0},
        {"no right to add", 0x13, EPW_REGION_ATOMIC, true, 8192, 0, 0, 0},
        {"reading needs no other right", 0, EPW_REGION_WRITE | EPW_REGION_ATOMIC, false, 8192, 0, 0, 0},
        {"adding needs no other right", 0, EPW_REGION_READ | EPW_REGION_WRITE, true, 8192, 0, 0, 0},
        {"READ by another key", 0x13, 0, false, 8192, 0, 1, 0},
        {"FETCH_ADD by another key", 0x13, 0, true, 8192, 0, 1, 0},
        {"READ past a stretch", 0x13, 0, false, 7996, 0, 0, 0},
        {"FETCH_ADD past a stretch", 0x13, 0, true, 8000, 0, 0, 0},
        {"FETCH_ADD of no word", 0x12, 0, true, 8196, 0, 0, 0},
        {"READ to another's memory", 0x04, 0, false, 8192, 0, 0, 7},
        {"FETCH_ADD to another's memory", 0x04, 0, true, 8192, 0, 0, 7},
        {"READ past this side's end", 0x04, 0, false, 8192, MEMORY - 7, 0, 0},
        {"FETCH_ADD past this side's end", 0x04, 0, true, 8192, MEMORY - 7, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const asks *c = &cases[i];
        two t;
        open_two(&t);
        epw_nic_deregister(t.b.nic, t.b.window_key);
        epw_region window = {.base = t.b.window,
                             .rights = (EPW_REGION_READ | EPW_REGION_WRITE | EPW_REGION_ATOMIC) & ~c->without,
                             .count = 2,
                             .stretches = {{0, 8000}, {8192, MEMORY - 8192}}};
        t.b.window_key = epw_nic_register(t.b.nic, &window);
        epw_pair_destroy(t.b.pair);
        epw_pair_options options = {.peer = 0, .key = t.b.window_key, .depth = DEPTH};
        CHECK_OK(epw_pair_create(t.b.nic, &options, here, &t.b.pair));
        epw_pair_destroy(t.a.pair);
        options = (epw_pair_options){.peer = 1, .key = t.a.window_key, .depth = DEPTH};
        CHECK_OK(epw_pair_create(t.a.nic, &options, here, &t.a.pair));
        epw_pair_connect(t.a.pair, t.a.link, epw_pair_number(t.b.pair));
        memset(t.b.window, 0x11, MEMORY);
        t.a.source_key += c->answer_off;
        if (c->adds) fetch_add(&t.a, t.b.window_key + c->key_off, c->offset, 1, c->to, true);
        if (!c->adds) read_bytes(&t.a, t.b.window_key + c->key_off, c->offset, c->to, 8, true);
        ring(&t.a);
        bool failed = c->syndrome != 0;
        CHECK_MSG(await_completion(&t.a, 0, failed ? 0xd : 0), "%s", c->what);
        if (failed) CHECK_MSG(syndrome(&t.a) == c->syndrome, "%s: syndrome %02x", c->what, syndrome(&t.a));
        uint64_t was = failed ? 0 : UINT64_C(0x1111111111111111);
        CHECK_MSG(answer(&t.a, c->to > 0 ? 0 : c->to) == was, "%s", c->what);
        CHECK(*word_at(&t.b, 8192) == UINT64_C(0x1111111111111111) + (!failed && c->adds));
        close_two(&t);
    }
}

/* The other end of its connection, whose NIC is the test. */
static int connect_by_hand(end *e) {
    int fds[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
    CHECK_OK(epw_nic_add_link(e->nic, fds[0], 1, here, &e->link));
    epw_pair_connect(e->pair, e->link, 77);
    return fds[1];
}

/* The memory of an answer is deregistered in the middle of the answer: the rest is not placed, and the
 * connection continues. */
static void an_answer_ends_with_its_memory(void) {
    enum { BYTES = 100000 };
    end e;
    open_end(&e, 1);
    int fd = connect_by_hand(&e);
    read_bytes(&e, 0x5555, 8192, 0, BYTES, true);
    ring(&e);
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame request, frame;
    struct pollfd comes = {.fd = fd, .events = POLLIN};
    CHECK(poll(&comes, 1, 5000) == 1);
    CHECK(read(fd, bytes, sizeof bytes) == sizeof bytes && epw_frame_parse(bytes, &request));
    CHECK(request.kind == EPW_FRAME_READ && request.pair == 77 && request.from == epw_pair_number(e.pair));
    CHECK(request.key == 0x5555 && request.offset == 8192 && request.bytes == BYTES && request.index == 0);

    static unsigned char half[BYTES / 2];
    memset(half, 0x11, sizeof half);
    frame = (epw_frame){.kind = EPW_FRAME_ANSWER, .pair = request.from, .index = 0, .bytes = BYTES};
    epw_frame_write(&frame, bytes);
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
    CHECK(write(fd, half, sizeof half) == sizeof half);
    nanosleep(&(struct timespec){0, 10 * (long)MS}, NULL);
    epw_nic_deregister(e.nic, e.source_key);
    memset(e.source, 0x22, MEMORY);
    CHECK(await_completion(&e, 0, 0xd) && syndrome(&e) == 0x04);
    CHECK(write(fd, half, sizeof half) == sizeof half);
    frame = (epw_frame){.kind = EPW_FRAME_CONNECTED, .pair = request.from, .from = 77};
    epw_frame_write(&frame, bytes); /* the pair has failed, so this is refused, behind the rest */
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
    CHECK(poll(&comes, 1, 5000) == 1 && read(fd, bytes, sizeof bytes) == sizeof bytes);
    CHECK(epw_frame_parse(bytes, &frame) && frame.kind == EPW_FRAME_NAK);
    CHECK(epw_nic_link_alive(e.nic, e.link));
    for (uint32_t i = 0; i < BYTES; i++) CHECK(e.source[i] == 0x22);
    close_end(&e);
    close(fd);
}

/* A correct peer sends no answer that nobody has asked for. */
static void answers_without_a_question_end_the_connection(void) {
    end e;
    open_end(&e, 1);
    int fd = connect_by_hand(&e);
    unsigned char bytes[EPW_FRAME_BYTES];
    epw_frame frame = {.kind = EPW_FRAME_ANSWER, .pair = epw_pair_number(e.pair)};
    epw_frame_write(&frame, bytes);
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
    CHECK(await_broken(&e) && !epw_nic_link_alive(e.nic, e.link));
    close_end(&e);
    close(fd);
}

/* ---- what is refused ---- */

typedef struct wrong {
    const char *what;
    uint8_t syndrome;
    uint64_t offset;
    uint32_t bytes, key_off, source_off;
    uint64_t from;
} wrong;

static void keys_and_bounds_are_checked_at_both_ends(void) {
    static const wrong cases[] = {
        {"remote key", 0x13, WORD_AT, 8, 1, 0, 0},
        {"old serial", 0x13, WORD_AT, 8, 1 << 16, 0, 0},
        {"past a stretch", 0x13, 7996, 8, 0, 0, 0},
        {"between stretches", 0x13, 8100, 4, 0, 0, 0},
        {"across both", 0x13, 7000, 4000, 0, 0, 0},
        {"past the end", 0x13, MEMORY - 4, 8, 0, 0, 0},
        {"wrapping round", 0x13, UINT64_MAX - 3, 8, 0, 0, 0},
        {"local key", 0x04, 8192, 8, 0, 7, 0},
        {"local bounds", 0x04, 8192, 8, 0, 0, MEMORY - 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const wrong *w = &cases[i];
        two t;
        open_two(&t);
        memset(t.b.window, 0x5a, MEMORY);
        write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
        uint32_t source_key = t.a.source_key;
        t.a.source_key += w->source_off;
        write_bytes(&t.a, t.b.window_key + w->key_off, w->offset, w->from, w->bytes, false);
        t.a.source_key = source_key;
        /* The entries after it are not executed. */
        write_word(&t.a, t.b.window_key, WORD_AT, 2, true);
        ring(&t.a);
        CHECK_MSG(await_completion(&t.a, 1, 0xd), "%s", w->what);
        CHECK_MSG(syndrome(&t.a) == w->syndrome, "%s: syndrome %02x", w->what, syndrome(&t.a));
        CHECK(await_broken(&t.a));
        CHECK(await_word(&t.b, 1) && t.b.window[8192] == 0x5a && t.b.window[8000] == 0x5a);
        /* Entries that are posted later are flushed. */
        write_word(&t.a, t.b.window_key, WORD_AT, 3, true);
        ring(&t.a);
        CHECK(await_completion(&t.a, 3, 0xd) && syndrome(&t.a) == 0x05);
        CHECK(atomic_load(&t.b.word) == 1);
        close_two(&t);
    }
}

static void entries_that_are_none_end_the_queue(void) {
    for (int kind = 0; kind < 14; kind++) {
        two t;
        open_two(&t);
        unsigned char *at = NULL;
        write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
        at = epw_pair_memory_of(t.a.pair)->entries;
        if (kind == 0) at[2] ^= 1;                            /* index */
        if (kind == 1) at[4] ^= 1;                            /* queue pair */
        if (kind == 2) at[3] = 0x0a;                          /* opcode */
        if (kind == 3) at[7] = 4;                             /* size */
        if (kind == 4) at[11] |= 0x80;                        /* a fence */
        if (kind == 5) put(at + 32, UINT32_C(0x8000001d), 4); /* 29 bytes inline */
        if (kind == 6) memset(at, 0xa5, 64);
        if (kind == 7) at[3] = 0x10;            /* a READ to the entry itself */
        if (kind == 8) at[3] = 0x12;            /* a FETCH_ADD without a place for its answer */
        if (kind == 9) at[3] = 0x12, at[7] = 4; /* or with a place of no bytes */
        if (kind >= 10) {                       /* with two places */
            memset(at + 32, 0, 32);
            at[7] = 4;
            put(at + 32, 100, 4);
            put(at + 48, 100, 4);
        }
        if (kind == 10) put(at + 48, 0, 4);                    /* 2^31 bytes */
        if (kind == 11) put(at + 48, UINT32_C(0x80000008), 4); /* inline */
        if (kind == 12) put(at + 48, 0x7fffff9c, 4);           /* together 2^31 */
        if (kind == 13) at[3] = 0x10;                          /* a READ */
        ring(&t.a);
        CHECK_MSG(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == 0x02, "kind %d", kind);
        CHECK(atomic_load(&t.b.words) == 0);
        close_two(&t);
    }
}

/* From byte 0x20 on, except for the queue pair's number, at 0x39, as adapters write them according to the
 * manual. The bytes before that, and an adapter's counts and clocks, stay as they were. */
static void completions_have_these_bytes(void) {
    static const unsigned char success[32] = {
        0,    0,    0,    0,    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x12, 0,    0,    0,    0x00, 0x01, 0x00, 0x00};
    static const unsigned char failure[32] = {
        0,    0,    0,    0,    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x13, 0x08, 0,    0,    0,    0x00, 0x02, 0x00, 0xd0};
    two t;
    open_two(&t);
    unsigned char got[32];
    const unsigned char *completion = epw_pair_memory_of(t.a.pair)->completion;
    write_word(&t.a, t.b.window_key, WORD_AT, 1, false);
    fetch_add(&t.a, t.b.window_key, WORD_AT, 1, 64, true);
    ring(&t.a);
    CHECK(await_done(&t.a));
    memcpy(got, completion + 0x20, sizeof got);
    CHECK(got[0x19] << 16 == (int)(epw_pair_number(t.a.pair) & 0xff0000) &&
          (got[0x1a] << 8 | got[0x1b]) == (int)(epw_pair_number(t.a.pair) & 0xffff));
    memset(got + 0x19, 0, 3);
    CHECK(memcmp(got, success, sizeof got) == 0);
    write_word(&t.a, t.b.window_key + 1, WORD_AT, 1, true);
    ring(&t.a);
    CHECK(await_completion(&t.a, 2, 0xd));
    memcpy(got, completion + 0x20, sizeof got);
    got[0x16] = 0; /* the vendor's code */
    memset(got + 0x19, 0, 3);
    CHECK(memcmp(got, failure, sizeof got) == 0);
    close_two(&t);
}

static void a_pair_that_is_gone_refuses(void) {
    two t;
    open_two(&t);
    write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
    ring(&t.a);
    CHECK(await_done(&t.a));
    uint32_t number = epw_pair_number(t.b.pair);
    epw_pair_destroy(t.b.pair);
    /* Another pair takes its place, with another number. */
    epw_pair_options options = {.peer = 0, .key = t.b.window_key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(t.b.nic, &options, here, &t.b.pair));
    CHECK(epw_pair_number(t.b.pair) != number);
    write_word(&t.a, t.b.window_key, WORD_AT, 2, true);
    ring(&t.a);
    CHECK(await_completion(&t.a, 1, 0xd) && syndrome(&t.a) == 0x13);
    CHECK(atomic_load(&t.b.word) == 1);
    close_two(&t);
}

/* Frames of one peer are not accepted for a pair of another. */
static void a_pair_takes_frames_of_its_peer_alone(void) {
    two t;
    open_two(&t);
    epw_pair *others = NULL;
    epw_pair_options options = {.peer = 7, .key = t.b.window_key, .depth = DEPTH};
    CHECK_OK(epw_pair_create(t.b.nic, &options, here, &others));
    epw_pair_destroy(t.a.pair);
    options.peer = 1;
    CHECK_OK(epw_pair_create(t.a.nic, &options, here, &t.a.pair));
    epw_pair_connect(t.a.pair, t.a.link, epw_pair_number(others));
    write_word(&t.a, t.b.window_key, WORD_AT, 9, true);
    ring(&t.a);
    CHECK(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == 0x13);
    CHECK(atomic_load(&t.b.words) == 0);
    epw_pair_destroy(others);
    close_two(&t);
}

static void a_window_that_is_gone_is_not_written(void) {
    two t;
    open_two(&t);
    epw_nic_deregister(t.b.nic, t.b.window_key);
    memset(t.b.window, 0x5a, MEMORY);
    write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
    ring(&t.a);
    CHECK(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == 0x13);
    CHECK(atomic_load(&t.b.words) == 0 && t.b.window[WORD_AT] == 0x5a);
    close_two(&t);
}

/* Meanwhile other memory is registered in its slot: a key is valid only for the memory for which it was
 * made. */
static void a_key_of_memory_that_is_gone_opens_no_other(void) {
    for (int local = 0; local < 2; local++) {
        two t;
        open_two(&t);
        end *e = local ? &t.a : &t.b;
        uint32_t old = local ? e->source_key : e->window_key;
        epw_nic_deregister(e->nic, old);
        epw_region other = {.base = local ? e->source : e->window,
                            .rights = EPW_REGION_READ | EPW_REGION_WRITE,
                            .count = 1,
                            .stretches = {{0, MEMORY}}};
        uint32_t fresh = epw_nic_register(e->nic, &other);
        CHECK(fresh != old && (uint16_t)fresh == (uint16_t)old);
        memset(t.a.source, 0x77, 8);
        write_bytes(&t.a, t.b.window_key, 8192, 0, 8, true);
        ring(&t.a);
        CHECK(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == (local ? 0x04 : 0x13));
        CHECK(t.b.window[8192] == 0);
        close_two(&t);
    }
}

/* ---- connections that end ---- */

static void a_lost_connection_breaks_its_pairs_soon(void) {
    for (int turn = 0; turn < 20; turn++) {
        two t;
        open_two(&t);
        for (int i = 0; i < 20; i++) write_bytes(&t.a, t.b.window_key, 8192, 0, 500000, false);
        write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
        ring(&t.a);
        if (turn % 2) nanosleep(&(struct timespec){0, turn * 20000}, NULL);
        /* The peer's pair is destroyed in the middle of it. */
        epw_pair_destroy(t.b.pair);
        t.b.pair = NULL;
        epw_nic_close(t.b.nic);
        t.b.nic = NULL;
        CHECK(await_broken(&t.a));
        uint16_t counter;
        CHECK(completion(&t.a, &counter) == 0xd);
        CHECK(syndrome(&t.a) == 0x15 || syndrome(&t.a) == 0x13);
        close_end(&t.a);
        free(t.b.source);
        free(t.b.window);
    }
}

/* Giving up a pair breaks only that pair, and need not wait for the lock. */
static void a_pair_that_is_given_up_breaks(void) {
    two t;
    open_two(&t);
    epw_pair_break(t.a.pair);
    CHECK(await_broken(&t.a) && !epw_pair_broken(t.b.pair));
    CHECK(epw_nic_link_alive(t.a.nic, t.a.link));
    write_word(&t.b, t.a.window_key, WORD_AT, 4, true);
    ring(&t.b);
    CHECK(await_word(&t.a, 4) && await_done(&t.b)); /* it can still receive */
    close_two(&t);
}

/* The NIC hears of an entry after the pair has broken: that entry keeps the cause, later ones are flushed. */
static void an_entry_completes_once(void) {
    two t;
    open_two(&t);
    write_word(&t.a, t.b.window_key, WORD_AT, 1, true);
    tell(&t.a);
    epw_pair_connect(t.a.pair, 0, epw_pair_number(t.b.pair));
    CHECK(await_broken(&t.a) && await_completion(&t.a, 0, 0xd));
    CHECK(epw_pair_rung_for(t.a.pair) == 1);
    CHECK(await_completion(&t.a, 0, 0xd) && syndrome(&t.a) == 0x15);
    write_word(&t.a, t.b.window_key, WORD_AT, 2, true);
    ring(&t.a);
    CHECK(await_completion(&t.a, 1, 0xd) && syndrome(&t.a) == 0x05);
    close_two(&t);
}

/* A post has found no room: what was posted before it may be sent, and nothing after it. */
static void a_queue_that_its_poster_gives_up_breaks(void) {
    for (uint32_t round = 0; round < 50; round++) {
        two t;
        open_two(&t);
        epw_queue queue = {.record = epw_pair_memory_of(t.a.pair)->record};
        write_word(&t.a, t.b.window_key, WORD_AT, 3, true);
        ring(&t.a);
        CHECK(await_word(&t.b, 3) && await_done(&t.a));
        epw_queue_give_up(&queue);
        write_word(&t.a, t.b.window_key, WORD_AT, 4, true);
        ring(&t.a);
        CHECK(await_broken(&t.a) && epw_pair_cause_of(t.a.pair).syndrome == EPW_SYNDROME_RETRIES);
        CHECK(epw_nic_link_alive(t.a.nic, t.a.link));
        write_word(&t.b, t.a.window_key, WORD_AT, 5, true);
        ring(&t.b);
        CHECK(await_word(&t.a, 5) && await_done(&t.b)); /* it can still receive */
        CHECK(*word_at(&t.b, WORD_AT) == 3);
        close_two(&t);
    }
}

/* Random bytes end a connection, and nothing else. */
static void garbage_ends_the_connection(void) {
    for (uint32_t seed = 1; seed <= 200; seed++) {
        end e;
        open_end(&e, 1);
        int fds[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
        CHECK_OK(epw_nic_add_link(e.nic, fds[0], 1, here, &e.link));
        unsigned char bytes[512];
        fill_with_garbage(bytes, sizeof bytes, seed);
        CHECK(write(fds[1], bytes, sizeof bytes) == (ssize_t)sizeof bytes);
        close(fds[1]);
        uint64_t began = epw_now_ns();
        while (epw_nic_link_alive(e.nic, e.link) && epw_now_ns() - began < 5000 * MS)
            nanosleep(&(struct timespec){0, 20000}, NULL);
        CHECK(!epw_nic_link_alive(e.nic, e.link));
        CHECK(atomic_load(&e.words) == 0);
        close_end(&e);
    }
}

/* ---- many ---- */

enum { PAIRS = 8, ROUNDS = 300 };

typedef struct poster {
    end e;
    end *to;
} poster;

static void *post_many(void *argument) {
    poster *p = argument;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        memset(p->e.source, (int)round, 20000);
        for (int i = 0; i < 8; i++)
            write_bytes(&p->e, p->to->window_key, 8192 + (uint64_t)i * 20000, 0, 20000, false);
        write_word(&p->e, p->to->window_key, WORD_AT, round, true);
        ring(&p->e);
        CHECK(await_done(&p->e));
        CHECK(atomic_load(&p->to->word) == round);
        CHECK(p->to->window[8192] == (unsigned char)round &&
              p->to->window[8192 + 159999] == (unsigned char)round);
    }
    return NULL;
}

/* Queue pairs of one connection, each with a posting thread of its own, in both directions. */
static void many_pairs_share_a_connection(void) {
    two t;
    open_two(&t);
    static poster posters[PAIRS];
    static end targets[PAIRS];
    pthread_t threads[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        end *from = i % 2 ? &t.b : &t.a, *to = i % 2 ? &t.a : &t.b;
        open_end(&posters[i].e, 0);
        open_end(&targets[i], 0);
        end *of[] = {&posters[i].e, &targets[i]};
        for (int side = 0; side < 2; side++) { /* of the same two NICs */
            end *e = of[side], *host = side ? to : from;
            epw_pair_destroy(e->pair);
            epw_nic_close(e->nic);
            e->nic = host->nic;
            epw_region source = {
                .base = e->source, .rights = EPW_REGION_READ, .count = 1, .stretches = {{0, MEMORY}}};
            epw_region window = {.base = e->window,
                                 .rights = EPW_REGION_WRITE,
                                 .count = 1,
                                 .stretches = {{0, MEMORY}},
                                 .arrived = arrived,
                                 .context = e};
            e->source_key = epw_nic_register(e->nic, &source);
            e->window_key = epw_nic_register(e->nic, &window);
            epw_pair_options options = {.peer = host == &t.a ? 1 : 0, .key = e->window_key, .depth = DEPTH};
            CHECK_OK(epw_pair_create(e->nic, &options, here, &e->pair));
        }
        epw_pair_connect(posters[i].e.pair, from->link, epw_pair_number(targets[i].pair));
        posters[i].to = &targets[i];
    }
    for (int i = 0; i < PAIRS; i++) CHECK(!pthread_create(&threads[i], NULL, post_many, &posters[i]));
    for (int i = 0; i < PAIRS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < PAIRS; i++) {
        end *of[] = {&posters[i].e, &targets[i]};
        for (int side = 0; side < 2; side++) {
            epw_pair_destroy(of[side]->pair);
            free(of[side]->source);
            free(of[side]->window);
        }
    }
    close_two(&t);
}

/* A pair is destroyed while it sends and receives; the others are not affected. */
static void pairs_come_and_go_beside_others(void) {
    two t;
    open_two(&t);
    for (uint32_t round = 1; round <= 300; round++) {
        epw_pair *from = NULL, *to = NULL;
        epw_pair_options at_b = {.peer = 0, .key = t.b.window_key, .depth = DEPTH};
        epw_pair_options at_a = {.peer = 1, .key = t.a.window_key, .depth = DEPTH};
        CHECK_OK(epw_pair_create(t.b.nic, &at_b, here, &to));
        CHECK_OK(epw_pair_create(t.a.nic, &at_a, here, &from));
        epw_pair_connect(from, t.a.link, epw_pair_number(to));
        end brief = t.a;
        brief.pair = from;
        brief.posted = 0;
        for (int i = 0; i < 10; i++) write_bytes(&brief, t.b.window_key, 500000, 0, 200000, false);
        ring(&brief);
        if (round % 3 == 0) epw_pair_destroy(to);
        epw_pair_destroy(from);
        if (round % 3 != 0) epw_pair_destroy(to);
        memset(t.a.source + 400000, (int)round, 100);
        write_bytes(&t.a, t.b.window_key, 8192, 400000, 100, false);
        write_word(&t.a, t.b.window_key, WORD_AT, round, true);
        ring(&t.a);
        CHECK_MSG(await_word(&t.b, round), "round %u", round);
        CHECK(t.b.window[8192] == (unsigned char)round);
        CHECK(await_done(&t.a));
    }
    close_two(&t);
}

static void all(uint32_t rings) {
    ring_bytes = rings;
    a_word_is_placed_behind_the_bytes_before_it();
    indices_wrap();
    a_nop_completes_behind_what_is_before_it();
    doorbells_alone_make_a_strict_one_fetch();
    a_strict_one_notices_the_same_doorbell_again();
    entries_before_the_connection_wait_for_it();
    a_read_is_in_order_with_writes();
    reads_complete_behind_their_bytes();
    two_places_make_one_write();
    transfers_of_nothing_complete();
    a_fetch_add_is_atomic();
    a_word_may_be_added_to();
    rights_of_what_is_asked_are_checked();
    an_answer_ends_with_its_memory();
    answers_without_a_question_end_the_connection();
    keys_and_bounds_are_checked_at_both_ends();
    entries_that_are_none_end_the_queue();
    completions_have_these_bytes();
    a_pair_that_is_gone_refuses();
    a_pair_takes_frames_of_its_peer_alone();
    a_window_that_is_gone_is_not_written();
    a_key_of_memory_that_is_gone_opens_no_other();
    a_lost_connection_breaks_its_pairs_soon();
    a_pair_that_is_given_up_breaks();
    an_entry_completes_once();
    a_queue_that_its_poster_gives_up_breaks();
    garbage_ends_the_connection();
    many_pairs_share_a_connection();
    pairs_come_and_go_beside_others();
}

int main(void) {
    all(0);
    all(EPW_RING_BYTES_MIN);
    all(EPW_RING_BYTES);
    return check_result("soft_nic");
}
