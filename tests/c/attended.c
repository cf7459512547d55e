/* Queues of an adapter whose posters cannot call functions, as kernels on a GPU: who rings for them, who
 * notices failures, and what becomes of their memory and registers. The adapter is the one in software. */
#include "check.h"

#include "nic/fake.h"
#include "nic/mlx5.h"
#include "nic/queue.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 16, BYTES = 8192, WORD_OFFSET = 64 };

static const epw_where where = {"test", 0, -1};

static uint64_t lacks; /* of the adapters that are opened from now on */

typedef struct side {
    const epw_mlx5_far *entries; /* the entries of its pair, if they are elsewhere than the rest */
    epw_nic *nic;
    epw_fake *fake;
    epw_mlx5 *adapter;
    epw_keys window;
    epw_mlx5_pair *pair;
    unsigned char *ring; /* outlives its pairs */
    epw_queue queue;
    uint64_t marks[DEPTH];
    uint64_t link;
    atomic_uint broken;
    _Alignas(4096) unsigned char memory[BYTES];
} side;

static void broken(void *context) {
    side *s = context;
    atomic_fetch_add(&s->broken, 1);
}

static void open_pair(side *s, epw_mlx5_poster poster) {
    epw_mlx5_pair_options options = {.depth = DEPTH,
                                     .poster = poster,
                                     .memory = s->ring,
                                     .ring = s->entries,
                                     .broken = broken,
                                     .context = s};
    CHECK_OK(epw_mlx5_pair_create(s->adapter, &options, where, &s->pair));
    const epw_pair_memory *memory = epw_mlx5_pair_memory(s->pair);
    memset(s->marks, 0, sizeof s->marks);
    s->queue = (epw_queue){.entries = (epw_entry_block *)memory->entries,
                           .marks = s->marks,
                           .record = memory->record,
                           .doorbell = memory->doorbell,
                           .completions.entry = (const uint32_t *)(const void *)memory->completion,
                           .depth = DEPTH,
                           .pair = epw_mlx5_pair_number(s->pair),
                           .batch = 1};
}

static side *open_side_with(uint32_t rank, int fd, epw_mlx5_poster poster, const epw_mlx5_far *entries) {
    side *s = aligned_alloc(4096, (sizeof *s + 4095) / 4096 * 4096);
    memset(s, 0, sizeof *s);
    s->entries = entries;
    CHECK_OK(epw_nic_open(where, &s->nic));
    CHECK_OK(epw_nic_add_link(s->nic, fd, 1 - rank, where, &s->link));
    CHECK_OK(
        epw_fake_open(&(epw_fake_options){.rank = rank, .nic = s->nic, .lacks = lacks}, where, &s->fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(s->fake), &(epw_mlx5_options){0}, where, &s->adapter));
    epw_region window = {
        .base = s->memory, .rights = EPW_REGION_WRITE, .count = 1, .stretches = {{0, BYTES}}};
    CHECK_OK(epw_mlx5_register(s->adapter, &window, where, &s->window));
    s->ring = aligned_alloc(4096, epw_mlx5_pair_memory_bytes(DEPTH));
    memset(s->ring, 0x77, epw_mlx5_pair_memory_bytes(DEPTH)); /* left by an earlier pair */
    open_pair(s, poster);
    return s;
}

static side *open_side(uint32_t rank, int fd, epw_mlx5_poster poster) {
    return open_side_with(rank, fd, poster, NULL);
}

static void close_side(side *s) {
    CHECK(epw_mlx5_pair_destroy(s->pair));
    epw_mlx5_deregister(s->adapter, s->window.own);
    epw_mlx5_close(s->adapter);
    epw_fake_left left = epw_fake_count(s->fake);
    CHECK(left.devices + left.domains + left.uars + left.umems + left.objects + left.regions == 0);
    epw_fake_close(s->fake);
    epw_nic_close(s->nic);
    free(s->ring);
    free(s);
}

static void join(side *from, const side *to) {
    epw_mlx5_address address = epw_mlx5_address_of(to->adapter);
    epw_fake_route route = {.remote = epw_mlx5_pair_number(to->pair), .link = from->link};
    memcpy(route.gid, address.gid, sizeof route.gid);
    epw_fake_add_route(from->fake, epw_mlx5_pair_number(from->pair), &route);
    CHECK_OK(epw_mlx5_pair_connect(from->pair, route.remote, &address, UINT64_C(10000000000), where));
}

/* Posts by stores only. */
static uint64_t post(side *from, const side *to, uint64_t value) {
    uint64_t index = 0;
    CHECK(epw_queue_try_reserve(&from->queue, 1, &index));
    epw_entry_write_word(epw_queue_slot(&from->queue, index), from->queue.pair, index,
                         (epw_place_of){WORD_OFFSET, epw_key_of(to->window.its)}, value, EPW_SIGNAL_ALWAYS);
    epw_queue_publish(&from->queue, index, 1);
    epw_queue_ring(&from->queue, true);
    return index;
}

static bool await_done(side *s, uint64_t index) {
    for (int ms = 0; ms < 10000 && !epw_queue_is_done(&s->queue, index + 1); ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return epw_queue_is_done(&s->queue, index + 1);
}

static bool await_broken(side *s) {
    for (int ms = 0; ms < 10000 && atomic_load(&s->broken) == 0; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return atomic_load(&s->broken) == 1 && epw_mlx5_pair_broken(s->pair);
}

static uint64_t word_at(const side *s) {
    return __atomic_load_n((const uint64_t *)(const void *)(s->memory + WORD_OFFSET), __ATOMIC_ACQUIRE);
}

typedef struct two {
    side *a, *b;
} two;

static two open_two(epw_mlx5_poster poster) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    two t = {open_side(0, fds[0], poster), open_side(1, fds[1], EPW_MLX5_HOST)};
    join(t.a, t.b);
    join(t.b, t.a);
    return t;
}

static void close_two(two t) {
    close_side(t.a);
    close_side(t.b);
}

static void stores_alone_are_heard(epw_mlx5_poster poster) {
    two t = open_two(poster);
    CHECK(!epw_mlx5_pair_has_rung(t.a->pair) && epw_mlx5_pair_idle(t.a->pair));
    for (uint64_t i = 0; i < 100; i++) {
        if (i % 40 == 39)
            nanosleep(&(struct timespec){0, 5000000}, NULL); /* time for the thread to fall asleep */
        uint64_t index = post(t.a, t.b, i + 1);
        CHECK(index == i && await_done(t.a, index) && word_at(t.b) == i + 1);
    }
    CHECK(epw_mlx5_pair_has_rung(t.a->pair) && epw_mlx5_pair_idle(t.a->pair));
    CHECK(!epw_mlx5_pair_has_rung(t.b->pair) && atomic_load(&t.a->broken) == 0);
    char text[EPW_MLX5_TEXT];
    bool said =
        strstr(epw_mlx5_describe(t.a->adapter, text), ", a thread of the host rings for kernels") != NULL;
    CHECK(said == (poster == EPW_MLX5_KERNELS_UNHEARD));
    close_two(t);
}

/* The post that was lost follows one that may or may not have been executed yet. */
static void a_queue_that_is_given_up_breaks(epw_mlx5_poster poster) {
    two t = open_two(poster);
    CHECK(await_done(t.a, post(t.a, t.b, 1)));
    epw_queue_give_up(&t.a->queue);
    post(t.a, t.b, 2);
    CHECK(await_broken(t.a));
    CHECK(word_at(t.b) == 1);
    close_two(t);
}

/* Nobody checks the queue: kernels wait for the peer, whose end has refused an entry. */
static void a_failed_entry_is_noticed(epw_mlx5_poster poster) {
    two t = open_two(poster);
    epw_mlx5_pair_close(t.b->pair);
    post(t.a, t.b, 1);
    CHECK(await_broken(t.a));
    CHECK(word_at(t.b) == 0);
    close_two(t);
}

/* The next pair with the same memory starts afresh, with the register that the first has returned. */
static void memory_and_registers_serve_again(epw_mlx5_poster poster) {
    two t = open_two(poster);
    for (uint64_t i = 0; i < 3; i++) CHECK(await_done(t.a, post(t.a, t.b, i + 1)));
    uint32_t registers = epw_fake_count(t.a->fake).uars;
    CHECK(epw_mlx5_pair_destroy(t.a->pair) && epw_fake_count(t.a->fake).uars == registers);
    open_pair(t.a, poster);
    CHECK(epw_fake_count(t.a->fake).uars == registers && !epw_mlx5_pair_has_rung(t.a->pair));
    CHECK(epw_mlx5_pair_destroy(t.b->pair));
    open_pair(t.b, EPW_MLX5_HOST);
    join(t.a, t.b);
    join(t.b, t.a);
    CHECK(await_done(t.a, post(t.a, t.b, 9)) && word_at(t.b) == 9);
    close_two(t);
}

/* The register of one queue pair is not that of another, even if both lie in one page. */
static void queues_whose_registers_share_a_page_ring_alone(epw_mlx5_poster poster) {
    two t = open_two(poster);
    epw_mlx5_pair *beside = NULL;
    epw_mlx5_pair_options options = {.depth = DEPTH, .poster = EPW_MLX5_KERNELS};
    CHECK_OK(epw_mlx5_pair_create(t.a->adapter, &options, where, &beside));
    CHECK(await_done(t.a, post(t.a, t.b, 3)) && word_at(t.b) == 3);
    uintptr_t own = (uintptr_t)epw_mlx5_pair_memory(t.a->pair)->doorbell;
    uintptr_t other = (uintptr_t)epw_mlx5_pair_memory(beside)->doorbell;
    bool one_page = own / 4096 == other / 4096;
    CHECK(own != other && !epw_mlx5_pair_has_rung(beside));
    if (poster == EPW_MLX5_KERNELS) CHECK(one_page == (lacks != 0));
    CHECK(epw_mlx5_pair_destroy(beside));
    CHECK(await_done(t.a, post(t.a, t.b, 4)) && word_at(t.b) == 4);
    close_two(t);
}

static void memory_begins_a_page(void) {
    two t = open_two(EPW_MLX5_HOST);
    epw_mlx5_pair_options options = {.depth = DEPTH, .memory = t.a->ring + 64};
    epw_mlx5_pair *pair = NULL;
    CHECK(epw_mlx5_pair_create(t.a->adapter, &options, where, &pair) == EPW_ERR_INVALID && pair == NULL);
    CHECK_MSG(strcmp(epw_last_error(), "test: rank 0: memory of a queue pair does not begin on a page") == 0,
              "%s", epw_last_error());
    close_two(t);
}

/* ---- rings in other memory than the rest, as on a GPU ---- */

/* A descriptor that can be mapped stands for GPU memory. */
static void rings_elsewhere_are_reached_by_descriptor_or_address(void) {
    size_t bytes = (size_t)DEPTH * EPW_ENTRY_BYTES > 4096 ? (size_t)DEPTH * EPW_ENTRY_BYTES : 4096;
    int memory = memfd_create("entries", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, (off_t)bytes) == 0);
    unsigned char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(shared != MAP_FAILED);
    const epw_mlx5_far rings[] = {{shared, memory, false}, {shared, -1, false}};
    static const char *const said[] = {", rings in GPU memory by dma-buf",
                                       ", rings in GPU memory by nvidia_peermem"};
    for (int i = 0; i < 2; i++) {
        int fds[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        two t = {open_side_with(0, fds[0], EPW_MLX5_KERNELS, &rings[i]), open_side(1, fds[1], EPW_MLX5_HOST)};
        join(t.a, t.b);
        join(t.b, t.a);
        CHECK(epw_mlx5_pair_memory(t.a->pair)->entries == shared);
        for (uint64_t n = 0; n < 3 * DEPTH; n++)
            CHECK(await_done(t.a, post(t.a, t.b, n + 1)) && word_at(t.b) == n + 1);
        char text[EPW_MLX5_TEXT];
        CHECK_MSG(strstr(epw_mlx5_describe(t.a->adapter, text), said[i]) != NULL, "%s", text);
        close_two(t);
    }
    close(memory);
    munmap(shared, bytes);
}

/* Rows in such memory, like the staging memory of a GPU's peers. */
static void rows_elsewhere_are_sent_by_descriptor_or_address(void) {
    enum { ROW = 256, AT = 1024 };
    int memory = memfd_create("rows", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, BYTES) == 0);
    unsigned char *shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(shared != MAP_FAILED);
    const epw_mlx5_far rows[] = {{shared, memory, false}, {shared, -1, false}};
    for (uint32_t i = 0; i < 2; i++) {
        two t = open_two(EPW_MLX5_HOST);
        epw_keys keys = {0};
        uint64_t index = 0;
        memset(shared + AT, (int)(i + 1), ROW);
        epw_region region = {.rights = EPW_REGION_READ, .count = 1, .stretches = {{0, BYTES}}};
        CHECK_OK(epw_mlx5_register_far(t.a->adapter, &rows[i], &region, where, &keys));
        CHECK(epw_queue_try_reserve(&t.a->queue, 1, &index));
        epw_entry_write(epw_queue_slot(&t.a->queue, index), t.a->queue.pair, index,
                        (epw_place_of){AT, epw_key_of(t.b->window.its)},
                        (epw_place_of){AT, epw_key_of(keys.own)}, ROW, EPW_SIGNAL_ALWAYS);
        epw_queue_publish(&t.a->queue, index, 1);
        if (epw_queue_ring(&t.a->queue, true)) epw_mlx5_pair_ring(t.a->pair);
        CHECK(await_done(t.a, index) && memcmp(t.b->memory + AT, shared + AT, ROW) == 0);
        epw_mlx5_deregister(t.a->adapter, keys.own);
        close_two(t);
    }
    munmap(shared, BYTES);
    close(memory);
}

/* Windows in such memory, like that of a GPU: a peer's part of one, which begins anywhere in a page. */
static void windows_elsewhere_are_written_by_descriptor_or_address(void) {
    enum { PAGE = 4096, BEGIN = 2 * PAGE + 640, END = 4 * PAGE + 64, WORD = BEGIN + 8, ALL = 5 * PAGE };
    int memory = memfd_create("window", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, ALL) == 0);
    unsigned char *shared = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(shared != MAP_FAILED);
    const epw_mlx5_far windows[] = {{shared, memory, false}, {shared, -1, false}};
    static const char *const said[] = {", peers write to GPU memory by dma-buf",
                                       ", peers write to GPU memory by nvidia_peermem"};
    const epw_region region = {
        .rights = EPW_REGION_WRITE, .count = 2, .stretches = {{BEGIN, 64}, {END - 64, 64}}};
    for (uint64_t i = 0; i < 2; i++) {
        two t = open_two(EPW_MLX5_HOST);
        epw_keys keys = {0};
        uint64_t index = 0, word = 0;
        char text[EPW_MLX5_TEXT];
        CHECK_OK(epw_mlx5_register_far(t.b->adapter, &windows[i], &region, where, &keys));
        CHECK_MSG(strstr(epw_mlx5_describe(t.b->adapter, text), said[i]) != NULL, "%s", text);
        CHECK(epw_queue_try_reserve(&t.a->queue, 1, &index));
        epw_entry_write_word(epw_queue_slot(&t.a->queue, index), t.a->queue.pair, index,
                             (epw_place_of){WORD, epw_key_of(keys.its)}, 77 + i, EPW_SIGNAL_ALWAYS);
        epw_queue_publish(&t.a->queue, index, 1);
        if (epw_queue_ring(&t.a->queue, true)) epw_mlx5_pair_ring(t.a->pair);
        CHECK(await_done(t.a, index));
        memcpy(&word, shared + WORD, sizeof word);
        CHECK_MSG(word == 77 + i, "%llu", (unsigned long long)word);
        epw_mlx5_deregister(t.b->adapter, keys.own);
        close_two(t);
    }
    munmap(shared, ALL);
    close(memory);
}

static void refused_far(epw_mlx5 *adapter, const epw_mlx5_far *far, uint32_t rights, const char *text) {
    epw_region region = {.rights = rights, .count = 1, .stretches = {{0, 4096}}};
    epw_keys keys;
    CHECK(epw_mlx5_register_far(adapter, far, &region, where, &keys) == EPW_ERR_NO_PATH);
    CHECK_MSG(strstr(epw_last_error(), text) != NULL, "%s", epw_last_error());
}

/* If no way works, the error says for each way why, and that host memory can be asked for. Unreadable pages
 * stand for GPU addresses that no kernel module knows. */
static void a_ring_that_no_way_leads_to_is_refused(void) {
    size_t bytes = 4096;
    unsigned char *closed = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int memory = memfd_create("entries", MFD_CLOEXEC);
    CHECK(closed != MAP_FAILED && memory >= 0 && ftruncate(memory, (off_t)bytes) == 0);
    const epw_mlx5_far ring = {closed, memory, false}, none = {closed, -1, false},
                       unordered = {closed, memory, true};
    epw_fake *fake = NULL;
    epw_mlx5 *adapter = NULL;
    epw_mlx5_pair *pair = NULL;
    char text[EPW_MLX5_TEXT];
    CHECK_OK(epw_fake_open(&(epw_fake_options){.lacks = UINT64_C(1) << EPW_FAKE_NO_DMABUF}, where, &fake));
    CHECK_OK(epw_mlx5_open(epw_fake_calls(fake), &(epw_mlx5_options){0}, where, &adapter));
    epw_mlx5_pair_options options = {.depth = DEPTH, .poster = EPW_MLX5_KERNELS, .ring = &ring};
    static const char *const said[] = {
        "fake_0 reaches no ring in GPU memory, neither by dma-buf (errno 14), which needs Linux 6.0 and the "
        "open "
        "GPU kernel modules, nor by nvidia_peermem (errno 14), which modprobe loads; EPWIRE_RINGS=host does "
        "without",
        "neither by dma-buf (errno 95)"};
    for (int i = 0; i < 2; i++) {
        options.ring = i == 0 ? &ring : &none;
        CHECK(epw_mlx5_pair_create(adapter, &options, where, &pair) == EPW_ERR_NO_PATH && pair == NULL);
        CHECK_MSG(strstr(epw_last_error(), said[i]) != NULL, "%s", epw_last_error());
    }
    refused_far(adapter, &ring, EPW_REGION_READ,
                "fake_0 cannot send rows from GPU memory, neither by dma-buf (errno 14)");
    refused_far(adapter, &ring, EPW_REGION_WRITE,
                "fake_0 cannot let peers write to GPU memory, neither by dma-buf (errno 14)");
    CHECK(strstr(epw_mlx5_describe(adapter, text),
                 ", peers write to host memory because it does not reach the GPU's") != NULL);
    refused_far(adapter, &unordered, EPW_REGION_WRITE,
                "peers cannot write to GPU memory by fake_0, because the GPU does not keep the order");
    options.ring = NULL;
    CHECK_OK(epw_mlx5_pair_create(adapter, &options, where, &pair));
    CHECK(strstr(epw_mlx5_describe(adapter, text), "rings in host memory because it does not reach") != NULL);
    CHECK(strstr(text, ", rows in host memory because it sends none from the GPU's") != NULL);
    CHECK(strstr(text, ", peers write to host memory because the GPU's keeps no order") != NULL);
    CHECK(epw_mlx5_pair_destroy(pair));
    epw_mlx5_close(adapter);
    epw_fake_left left = epw_fake_count(fake);
    CHECK(left.devices + left.domains + left.uars + left.umems + left.objects + left.regions == 0);
    epw_fake_close(fake);
    close(memory);
    munmap(closed, bytes);
}

/* ---- what the log says ---- */

typedef struct heard {
    uint32_t count, level;
    char text[512];
} heard;

static void hear(void *context, const epw_log_record *record) {
    heard *h = context;
    if (strcmp(record->subsystem, "nic") != 0) return;
    h->count++;
    h->level = record->level;
    snprintf(h->text, sizeof h->text, "%s", record->text);
}

/* Of registers that are worse than the best kind, and of GPU memory that is reached by address: a line for an
 * adapter, however many queue pairs and regions it has. */
static void what_an_adapter_does_without_is_logged_once(void) {
    static const struct {
        epw_fake_lack lack;
        const char *text;
    } cases[] = {
        {EPW_FAKE_NO_OWN_UAR, "fake_0: all queue pairs share one doorbell register (errno 95): install "
                              "rdma-core 45 or newer, and a "
                              "newer kernel"},
        {EPW_FAKE_BF_UAR_ALONE,
         "fake_0: two doorbell registers share a page (errno 95): install rdma-core 45 or newer, and a newer "
         "kernel"},
    };
    unsigned char *memory = aligned_alloc(4096, 4096);
    const epw_mlx5_far far = {memory, -1, false};
    const epw_region region = {.rights = EPW_REGION_READ, .count = 1, .stretches = {{0, 4096}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heard h = {0};
        epw_fake *fake = NULL;
        epw_mlx5 *adapter = NULL;
        epw_mlx5_pair *pairs[2] = {NULL, NULL};
        epw_keys keys[2];
        CHECK_OK(epw_log_set("info", hear, &h));
        CHECK_OK(epw_fake_open(&(epw_fake_options){.lacks = UINT64_C(1) << cases[i].lack}, where, &fake));
        CHECK_OK(epw_mlx5_open(epw_fake_calls(fake), &(epw_mlx5_options){0}, where, &adapter));
        for (int n = 0; n < 2; n++)
            CHECK_OK(
                epw_mlx5_pair_create(adapter, &(epw_mlx5_pair_options){.depth = DEPTH}, where, &pairs[n]));
        CHECK_MSG(h.count == 1 && h.level == EPW_LOG_WARN && strcmp(h.text, cases[i].text) == 0, "%u: %s",
                  h.count, h.text);
        for (int n = 0; n < 2; n++) CHECK_OK(epw_mlx5_register_far(adapter, &far, &region, where, &keys[n]));
        CHECK_MSG(h.count == 2 && h.level == EPW_LOG_INFO &&
                      strcmp(h.text,
                             "fake_0 reaches the GPU's memory by its address (nvidia_peermem), not by "
                             "dma-buf (errno 95)") == 0,
                  "%u: %s", h.count, h.text);
        CHECK_OK(epw_log_set(NULL, NULL, NULL));
        for (int n = 0; n < 2; n++) {
            epw_mlx5_deregister(adapter, keys[n].own);
            CHECK(epw_mlx5_pair_destroy(pairs[n]));
        }
        epw_mlx5_close(adapter);
        epw_fake_close(fake);
    }
    free(memory);
}

/* An adapter that may reorder writes and cannot be told not to says so once, when it is opened. */
static void an_order_that_nobody_can_force_is_logged(void) {
    static const struct {
        uint64_t lacks;
        uint32_t count;
    } cases[] = {{0, 0},
                 {UINT64_C(1) << EPW_FAKE_NO_REORDERING, 0},
                 {UINT64_C(1) << EPW_FAKE_NO_ORDER_FORCED, 1},
                 {UINT64_C(1) << EPW_FAKE_NO_ORDER_FORCED | UINT64_C(1) << EPW_FAKE_NO_REORDERING, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heard h = {0};
        epw_fake *fake = NULL;
        epw_mlx5 *adapter = NULL;
        epw_mlx5_pair *pair = NULL;
        CHECK_OK(epw_log_set("info", hear, &h));
        CHECK_OK(epw_fake_open(&(epw_fake_options){.lacks = cases[i].lacks}, where, &fake));
        CHECK_OK(epw_mlx5_open(epw_fake_calls(fake), &(epw_mlx5_options){0}, where, &adapter));
        CHECK_OK(epw_mlx5_pair_create(adapter, &(epw_mlx5_pair_options){.depth = DEPTH}, where, &pair));
        CHECK_OK(epw_log_set(NULL, NULL, NULL));
        CHECK_MSG(h.count == cases[i].count, "%u lines, the last is %s", h.count, h.text);
        if (h.count > 0)
            CHECK_MSG(h.level == EPW_LOG_WARN &&
                          strcmp(h.text,
                                 "fake_0 can place writes in another order than that of posting, and no "
                                 "queue pair can forbid it (dp_ordering_force): see that adaptive routing is "
                                 "not forced on it (mlxreg, ROCE_ACCL), or update its firmware") == 0,
                      "%s", h.text);
        CHECK(epw_mlx5_pair_destroy(pair));
        epw_mlx5_close(adapter);
        epw_fake_close(fake);
    }
}

int main(void) {
    an_order_that_nobody_can_force_is_logged();
    rings_elsewhere_are_reached_by_descriptor_or_address();
    rows_elsewhere_are_sent_by_descriptor_or_address();
    windows_elsewhere_are_written_by_descriptor_or_address();
    a_ring_that_no_way_leads_to_is_refused();
    what_an_adapter_does_without_is_logged_once();
    static const epw_mlx5_poster posters[] = {EPW_MLX5_KERNELS, EPW_MLX5_KERNELS_UNHEARD};
    for (int i = 0; i < 4; i++) {
        lacks = i < 2 ? 0 : UINT64_C(1) << EPW_FAKE_NO_PAIR_EVENTS | UINT64_C(1) << EPW_FAKE_NO_OWN_PAGE;
        stores_alone_are_heard(posters[i % 2]);
        a_queue_that_is_given_up_breaks(posters[i % 2]);
        a_failed_entry_is_noticed(posters[i % 2]);
        memory_and_registers_serve_again(posters[i % 2]);
        queues_whose_registers_share_a_page_ring_alone(posters[i % 2]);
    }
    memory_begins_a_page();
    return check_result("attended");
}
