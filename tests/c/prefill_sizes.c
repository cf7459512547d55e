/* The sizes of epw_prefill_plan are what a prefill buffer and a routing allocate: the window, the images and
 * queues of peers behind queues, and memory beside them. What they say of any configuration fits together,
 * the largest value of each field is accepted, and the next one is refused by its name, with the limit.
 * tests/c/prefill_enqueue.c and tests/cuda have the same for GPUs. */
#include "allocated.h"
#include "prefills.h"

#include "ep/engine.h"
#include "prefill/parts.h"

#include <stdbool.h>

enum { RANKS = 3, CASES = 20000, MADE = 40 };
#define MIB          (UINT64_C(1) << 20)
#define CHOSEN_BYTES (256 * MIB) /* of the rings, if ring_tokens is 0 */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- what is allocated ---- */

/* Bytes of the mapping that begins at this address. */
static uint64_t mapped_at(const void *base) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long from, to, found = 0;
    char line[512];
    CHECK(maps != NULL);
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from == (unsigned long)(uintptr_t)base)
            found = to - from;
    }
    if (maps != NULL) fclose(maps);
    return found;
}

/* Beside the window: of each lane, and of each thread. */
static uint64_t private_of(const epw_prefill *p) {
    uint64_t bytes = epw_host_threads(&p->config.ep) * p->scratch_bytes;
    CHECK(malloc_usable_size(p->scratch) >= bytes);
    for (uint32_t i = 0; i < p->config.ep.lanes; i++) {
        const epw_prefill_lane *lane = &p->lanes[i];
        void *const arrays[] = {lane->peers, lane->turns, lane->collected, lane->until, lane->batch};
        for (uint32_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++)
            bytes += malloc_usable_size(arrays[k]);
        for (uint32_t kind = 0; kind < EPW_KINDS; kind++) bytes += malloc_usable_size(lane->streams[kind]);
    }
    return bytes;
}

/* malloc gives up to 24 bytes more than it was asked for, and whole pages to what is large. */
static void check_allocated(const char *what, uint64_t planned, uint64_t used, uint64_t arrays) {
    const uint64_t more = arrays * (planned < 128 << 10 ? 24 : 4096 + 24);
    CHECK_MSG(used >= planned && used <= planned + more, "%s: %llu bytes of %llu", what,
              (unsigned long long)used, (unsigned long long)planned);
}

/* As the first dispatch of all tokens makes it. */
static void check_routing(epw_prefill *p, const epw_prefill_sizes *planned) {
    epw_routing *r = NULL;
    CHECK_OK(epw_routing_create(p, &r));
    CHECK_OK(epw_routing_take(r, p->config.ep.max_tokens, epw_prefill_where(p, "dispatch")));
    check_allocated("a routing", planned->routing_bytes, malloc_usable_size(r->own), 1);
    epw_routing_free(r);
}

/* A row comes for each token, whatever experts it goes to. */
static void a_routing_takes_more_for_each_row(void) {
    static uint16_t x[TOKENS * HIDDEN];
    int32_t ids[TOKENS * TOPK];
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill_sizes planned = EPW_PREFILL_SIZES_INIT;
    epw_dispatch_input in = EPW_DISPATCH_INPUT_INIT;
    epw_prefill_output out = EPW_PREFILL_OUTPUT_INIT;
    epw_routing *r = NULL;
    config.ep = config_of(0, 1);
    config.ep.ordered = config.ep.zero_copy = 0;
    CHECK_OK(epw_prefill_plan(&config, &planned));
    prefills g = make_mapped_prefills(&config);
    for (int32_t i = 0; i < TOKENS * TOPK; i++) ids[i] = i % EXPERTS;
    in.tokens = TOKENS;
    in.topk = TOPK;
    in.x = x;
    in.topk_idx = ids;
    out.capacity = TOKENS * TOPK;
    CHECK_OK(epw_routing_create(g.of[0], &r));
    CHECK_OK(epw_prefill_dispatch(g.of[0], r, &in, EPW_ROUTE_NEW, EPW_HALF_SENDS, &out, NULL));
    const uint64_t rows = TOKENS * planned.routing_row_bytes, used = malloc_usable_size(r->come);
    CHECK_MSG(used >= rows && used < rows + 512, "%llu bytes of %llu", (unsigned long long)used,
              (unsigned long long)rows);
    epw_routing_free(r);
    destroy_prefills(&g);
}

static void a_plan_is_what_is_allocated(uint32_t lanes, uint32_t queue_depth) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill_sizes planned = EPW_PREFILL_SIZES_INIT;
    config.ring_tokens = 20;
    config.ep = config_of(0, RANKS);
    config.ep.ordered = config.ep.zero_copy = 0;
    config.ep.lanes = lanes;
    config.ep.threads = 2;
    config.ep.queue_depth = queue_depth;
    CHECK_OK(epw_prefill_plan(&config, &planned));
    prefills g = make_prefills(&config);
    for (uint32_t r = 0; r < RANKS; r++) {
        const epw_peers *peers = &g.of[r]->peers;
        const uint64_t images = images_of(peers);
        CHECK_MSG(images == planned.image_bytes, "%llu of %llu", (unsigned long long)images,
                  (unsigned long long)planned.image_bytes);
        check_queues_of(peers, planned.ring_bytes);
        CHECK(planned.ring_bytes >= UINT64_C(64) * queue_depth * lanes * (RANKS - 1));
        CHECK(mapped_at(epw_peers_own(peers)) == epw_align(planned.window_bytes, 64 << 10));
        check_routing(g.of[r], &planned);
    }
    destroy_prefills(&g);
}

static void only_what_is_permitted_is_counted(void) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill_sizes all = EPW_PREFILL_SIZES_INIT, mapped = all, alone = all;
    config.ep = config_of(0, RANKS);
    config.ep.ordered = config.ep.zero_copy = 0;
    CHECK_OK(epw_prefill_plan(&config, &all));
    CHECK(all.image_bytes > 0 && all.ring_bytes > 0 && all.inbox_bytes == 0);
    config.ep.paths &= ~(uint32_t)EPW_PATH_QUEUE;
    CHECK_OK(epw_prefill_plan(&config, &mapped));
    CHECK(mapped.image_bytes == 0 && mapped.ring_bytes == 0 && mapped.window_bytes == all.window_bytes);
    config.ep.paths = EPW_PATH_ALL;
    config.ep.ranks = 1;
    CHECK_OK(epw_prefill_plan(&config, &alone));
    CHECK(alone.image_bytes == 0 && alone.ring_bytes == 0);
}

/* ---- any configuration ---- */

/* Small and large numbers are equally likely. */
static uint32_t some(uint64_t *state, uint32_t most) {
    uint32_t bits = 0;
    while (bits < 32 && most >> bits != 0) bits++;
    const uint32_t below_ = bits == 32 ? UINT32_MAX : 1u << (1 + below(state, bits));
    const uint32_t made = 1 + below(state, below_);
    return made < most ? made : most;
}

static epw_prefill_config random_config(uint64_t seed) {
    uint64_t s = seed * 977;
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_config *c = &config.ep;
    c->ranks = some(&s, EPW_MAX_RANKS);
    c->rank = below(&s, c->ranks);
    c->experts = c->ranks * some(&s, (1 << 20) / c->ranks);
    c->topk = some(&s, c->experts < EPW_MAX_TOPK ? c->experts : EPW_MAX_TOPK);
    c->max_tokens = some(&s, EPW_MAX_TOKENS);
    c->hidden = 8 * some(&s, 1 << 21);
    c->lanes = 1 + below(&s, 2);
    c->threads = some(&s, 256);
    c->sideband_bytes = below(&s, EPW_MAX_SIDEBAND + 1);
    if (below(&s, 3) == 0) c->opaque_bytes = some(&s, 1 << 30);
    if (below(&s, 2) == 0) config.ring_tokens = some(&s, EPW_MAX_TOKENS + 1);
    if (below(&s, 3) == 0) c->paths = EPW_PATH_SELF | EPW_PATH_THREAD;
    return config;
}

static void check_ring(const epw_prefill_config *config, const epw_prefill_sizes *z) {
    const uint64_t slot = (uint64_t)config->ep.lanes * config->ep.ranks * (z->slot_bytes + z->answer_bytes);
    const uint64_t most = least(EPW_PREFILL_RING_TOKENS, config->ep.max_tokens + UINT64_C(1));
    if (config->ring_tokens != 0) {
        CHECK(z->ring_tokens == config->ring_tokens);
        return;
    }
    CHECK(z->ring_tokens <= most && z->ring_tokens >= least(most, 16));
    CHECK(z->ring_tokens <= 16 || z->ring_tokens * slot <= CHOSEN_BYTES);
    CHECK_MSG(z->ring_tokens == most || 2 * (z->ring_tokens + UINT64_C(1)) * slot > CHOSEN_BYTES,
              "%u where %llu fit", z->ring_tokens, (unsigned long long)(CHOSEN_BYTES / slot));
}

static void check_sizes(const epw_prefill_config *config, const epw_prefill_sizes *z) {
    const epw_config *c = &config->ep;
    const uint64_t rings = (uint64_t)c->lanes * c->ranks * z->ring_tokens, row = UINT64_C(2) * c->hidden;
    const uint32_t local = c->experts / c->ranks, answers = c->topk < local ? c->topk : local;
    CHECK(z->size == sizeof *z && z->local_experts == local && z->reserved == 0);
    CHECK(z->slot_bytes >= row + c->topk * UINT64_C(8) + c->sideband_bytes && z->answer_bytes >= row);
    CHECK(z->slot_bytes >= c->opaque_bytes && z->slot_bytes >= local * sizeof(uint32_t)); /* its counts */
    CHECK(z->dispatch_bytes == rings * z->slot_bytes && z->combine_bytes == rings * z->answer_bytes);
    CHECK(z->window_bytes == epw_align(z->control_bytes + z->dispatch_bytes + z->combine_bytes, 4096));
    CHECK(z->window_bytes <= UINT64_C(1) << 46);
    CHECK(z->split_tokens == least(z->ring_tokens - 1, c->max_tokens));
    CHECK(z->split_tokens_ordered == least((z->ring_tokens - 1) / answers, c->max_tokens));
    CHECK(z->routing_bytes >= (uint64_t)c->max_tokens * c->topk * 8 && z->private_bytes > 0);
    CHECK((z->image_bytes > 0) == (c->ranks > 1 && (c->paths & EPW_PATH_QUEUE)));
    CHECK((z->ring_bytes > 0) == (z->image_bytes > 0) && z->inbox_bytes == 0);
    check_ring(config, z);
}

/* What is too large is so only as a window. */
static void what_a_plan_says_fits_together(void) {
    uint32_t large = 0, made = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        epw_prefill_config config = random_config(seed);
        epw_prefill_sizes z = EPW_PREFILL_SIZES_INIT;
        epw_status status = epw_prefill_plan(&config, &z);
        if (status == EPW_ERR_LIMIT) {
            REFUSED(status, EPW_ERR_LIMIT, "plan", (int)config.ep.rank, -1,
                    "more than 64: lower ring_tokens");
            large++;
            continue;
        }
        CHECK_MSG(status == EPW_OK, "seed %llu: %s", (unsigned long long)seed, epw_last_error());
        if (status != EPW_OK) continue;
        check_sizes(&config, &z);
        if (z.window_bytes + z.private_bytes > 4 * MIB || made == MADE) continue;
        epw_prefill *p = NULL;
        CHECK_OK(epw_prefill_create(&config, &p));
        CHECK(mapped_at(epw_peers_own(&p->peers)) == epw_align(z.window_bytes, 64 << 10));
        check_allocated("beside the window", z.private_bytes, private_of(p),
                        config.ep.lanes * (5 + EPW_KINDS));
        check_routing(p, &z);
        epw_prefill_destroy(p);
        made++;
    }
    CHECK_MSG(large > 0 && large < CASES / 2 && made == MADE, "%u too large, %u made", large, made);
}

/* ---- limits ---- */

/* Accepted with `most`; refused with `more` by these words. */
#define LIMIT(config, field, most, more, code, words)                                                        \
    do {                                                                                                     \
        epw_prefill_config c_ = *(config);                                                                   \
        epw_prefill_sizes z_ = EPW_PREFILL_SIZES_INIT;                                                       \
        epw_prefill *none_ = NULL;                                                                           \
        c_.field = (most);                                                                                   \
        CHECK_OK(epw_prefill_plan(&c_, &z_));                                                                \
        c_.field = (more);                                                                                   \
        REFUSED(epw_prefill_plan(&c_, &z_), (code), "plan", rank_in(words), -1, (words));                    \
        REFUSED(epw_prefill_create(&c_, &none_), (code), "create", rank_in(words), -1, (words));             \
        CHECK(none_ == NULL);                                                                                \
    } while (0)

/* Errors about rank and ranks name no rank. */
static int rank_in(const char *words) {
    return strncmp(words, "rank", 4) == 0 || strncmp(words, "config", 6) == 0 ? -1 : 0;
}

static void each_field_has_its_limit(void) {
    epw_prefill_config plain = EPW_PREFILL_CONFIG_INIT;
    plain.ep.ranks = 1;
    plain.ep.max_tokens = 1;
    plain.ep.hidden = 8;
    plain.ep.experts = 64;
    plain.ep.topk = 1;
    epw_prefill_config wide = plain, *p = &plain;
    wide.ep.experts = 1024 * 1025;
    LIMIT(p, ep.size, sizeof(epw_config), sizeof(epw_config) - 1, EPW_ERR_INVALID, "config.size is ");
    LIMIT(p, size, sizeof plain, sizeof plain + 1, EPW_ERR_INVALID, "config.size is ");
    LIMIT(p, ep.version, 1, 2, EPW_ERR_INVALID, "config.version is 2, this library knows 1");
    LIMIT(p, ep.ranks, 64, 0, EPW_ERR_LIMIT, "ranks is 0, must be in [1, 1024]");
    LIMIT(p, ep.ranks, 64, 48, EPW_ERR_INVALID, "experts is 64, must be a multiple of ranks 48");
    LIMIT(p, ep.rank, 0, 1, EPW_ERR_INVALID, "rank is 1, must be below ranks 1");
    LIMIT(p, ep.max_tokens, 65536, 65537, EPW_ERR_LIMIT, "max_tokens is 65537, must be in [1, 65536]");
    LIMIT(p, ep.max_tokens, 1, 0, EPW_ERR_LIMIT, "max_tokens is 0, must be in [1, 65536]");
    LIMIT(p, ep.hidden, 1 << 24, (1 << 24) + 8, EPW_ERR_LIMIT, "hidden is 16777224, must be a positive");
    LIMIT(p, ep.hidden, 16, 12, EPW_ERR_LIMIT, "hidden is 12, must be a positive multiple of 8");
    LIMIT(p, ep.experts, 1 << 20, (1 << 20) + 1, EPW_ERR_LIMIT,
          "experts is 1048577, must be in [1, 1048576]");
    LIMIT(p, ep.topk, 32, 33, EPW_ERR_LIMIT, "topk is 33, must be in [1, 32]");
    LIMIT(p, ep.lanes, 2, 3, EPW_ERR_LIMIT, "lanes is 3, must be 1 or 2");
    LIMIT(p, ep.dtype, EPW_F16, EPW_F16 + 1, EPW_ERR_INVALID, "dtype is 2, must be EPW_BF16 or EPW_F16");
    LIMIT(p, ep.combine_dtype, EPW_F16, EPW_F16 + 1, EPW_ERR_INVALID, "combine_dtype is 2");
    LIMIT(p, ep.opaque_bytes, 1 << 30, (1u << 30) + 1, EPW_ERR_LIMIT,
          "opaque_bytes is 1073741825, must be at most 1073741824");
    LIMIT(p, ep.sideband_bytes, 64, 65, EPW_ERR_LIMIT, "sideband_bytes is 65, must be at most 64");
    LIMIT(p, ep.ordered, 0, 1, EPW_ERR_INVALID, "ordered is 1 and zero_copy 0, must be 0: prefill");
    LIMIT(p, ep.zero_copy, 0, 1, EPW_ERR_INVALID, "ordered is 0 and zero_copy 1, must be 0: prefill");
    LIMIT(p, ep.threads, 256, 257, EPW_ERR_LIMIT, "threads is 257, must be at most 256");
    LIMIT(p, ep.device, EPW_DEVICE_HOST, -2, EPW_ERR_INVALID, "device is -2, must be EPW_DEVICE_HOST");
    LIMIT(p, ep.queue_depth, EPW_QUEUE_DEPTH_MAX, EPW_QUEUE_DEPTH_MAX * 2, EPW_ERR_INVALID,
          "queue_depth is 65536, must be 0 or a power of two from ");
    LIMIT(p, ep.queue_depth, EPW_QUEUE_DEPTH_MIN, EPW_QUEUE_DEPTH_MIN + 1, EPW_ERR_INVALID,
          "queue_depth is ");
    LIMIT(p, ep.deadline_ns, UINT64_C(86400000000000), UINT64_C(86400000000001), EPW_ERR_LIMIT,
          "deadline is 86400000000001 ns, must be in [1000000, 86400000000000]");
    LIMIT(p, ep.deadline_ns, 1000000, 999999, EPW_ERR_LIMIT, "deadline is 999999 ns, must be in [1000000, ");
    LIMIT(p, ring_tokens, 65537, 65538, EPW_ERR_LIMIT, "ring_tokens is 65538, must be in [1, 65537]");
    wide.ep.ranks = 1024;
    wide.ep.experts = 1024;
    epw_prefill_sizes z = EPW_PREFILL_SIZES_INIT;
    CHECK_OK(epw_prefill_plan(&wide, &z));
    wide.ep.ranks = wide.ep.experts = 1025;
    REFUSED(epw_prefill_plan(&wide, &z), EPW_ERR_LIMIT, "plan", -1, -1,
            "ranks is 1025, must be in [1, 1024]");
}

/* The longest ring of the widest rows of the most ranks, and one slot more. */
static void a_window_has_its_limit(void) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill_sizes z = EPW_PREFILL_SIZES_INIT;
    config.ep.ranks = config.ep.experts = EPW_MAX_RANKS;
    config.ep.max_tokens = EPW_MAX_TOKENS;
    config.ep.hidden = 1 << 24;
    config.ep.topk = EPW_MAX_TOPK;
    uint32_t fits = 1, too_many = EPW_MAX_TOKENS + 1;
    while (too_many - fits > 1) {
        config.ring_tokens = (fits + too_many) / 2;
        *(epw_prefill_plan(&config, &z) == EPW_OK ? &fits : &too_many) = config.ring_tokens;
    }
    config.ring_tokens = fits;
    CHECK_OK(epw_prefill_plan(&config, &z));
    const uint64_t slots = UINT64_C(2) * EPW_MAX_RANKS * (z.slot_bytes + z.answer_bytes);
    CHECK(z.window_bytes <= UINT64_C(1) << 46 && z.window_bytes + slots > UINT64_C(1) << 46);
    char words[96];
    config.ring_tokens = too_many;
    snprintf(words, sizeof words, "TiB, more than 64: lower ring_tokens %u, hidden 16777216, ", too_many);
    REFUSED(epw_prefill_plan(&config, &z), EPW_ERR_LIMIT, "plan", 0, -1, words);
    config.ring_tokens = 0; /* the library's choice */
    CHECK_OK(epw_prefill_plan(&config, &z));
    CHECK(z.ring_tokens == 16);
    config.ep.opaque_bytes = 1 << 30;
    config.ring_tokens = 65;
    REFUSED(epw_prefill_plan(&config, &z), EPW_ERR_LIMIT, "plan", 0, -1,
            "opaque_bytes 1073741824 or lanes 2");
}

/* What a queue carries at a time. */
static void a_queue_has_its_limits(void) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_fabric *fabric = NULL;
    epw_prefill *p = NULL;
    config.ep = config_of(0, 1);
    config.ep.ordered = config.ep.zero_copy = 0;
    config.ep.lanes = 1;
    config.ep.hidden = 8;
    take_path(&config.ep, &fabric);
    config.ring_tokens = 16248;
    CHECK_OK(epw_prefill_create(&config, &p));
    epw_prefill_destroy(p);
    p = NULL;
    config.ring_tokens++;
    REFUSED(epw_prefill_create(&config, &p), EPW_ERR_LIMIT, "create", 0, -1,
            "ring_tokens is 16249, a queue takes 16248: lower it");
    config.ring_tokens = 1;
    config.ep.opaque_bytes = 1 << 30;
    REFUSED(epw_prefill_create(&config, &p), EPW_ERR_LIMIT, "create", 0, -1,
            "a row of config.opaque_bytes 1073741824 takes ");
    CHECK(p == NULL);
    epw_fabric_destroy(fabric);
}

static void what_is_wrong_is_named(void) {
    epw_prefill_config config = EPW_PREFILL_CONFIG_INIT;
    epw_prefill_sizes sizes = EPW_PREFILL_SIZES_INIT;
    config.ep = config_of(0, 1);
    config.ep.ordered = config.ep.zero_copy = 0;
    REFUSED(epw_prefill_plan(NULL, &sizes), EPW_ERR_INVALID, "plan", -1, -1, "config is NULL");
    REFUSED(epw_prefill_plan(&config, NULL), EPW_ERR_INVALID, "plan", -1, -1, "sizes is NULL");
    REFUSED(epw_prefill_create(&config, NULL), EPW_ERR_INVALID, "create", -1, -1, "out is NULL");
    sizes.size--;
    REFUSED(epw_prefill_plan(&config, &sizes), EPW_ERR_INVALID, "plan", 0, -1, "use EPW_PREFILL_SIZES_INIT");
}

int main(void) {
    setenv("EPW_TEST_PATH", "queue", 1);
    setenv("EPW_TEST_NIC", "soft", 1); /* whose queues malloc has given */
    for (uint32_t lanes = 1; lanes <= 2; lanes++) {
        a_plan_is_what_is_allocated(lanes, 0);
        a_plan_is_what_is_allocated(lanes, 8192);
    }
    a_routing_takes_more_for_each_row();
    only_what_is_permitted_is_counted();
    what_a_plan_says_fits_together();
    each_field_has_its_limit();
    a_window_has_its_limit();
    a_queue_has_its_limits();
    what_is_wrong_is_named();
    return check_result("prefill_sizes");
}
