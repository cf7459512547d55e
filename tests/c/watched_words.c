/* The thread that polls the words which an adapter places: it reports those that change, and survives memory
 * that has failed. */
#include "mlx5_rank.h"

#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096 };

/* The words of two regions, a page each. The thread polls the later region first. */
typedef struct watched {
    _Atomic uint64_t *word;
    atomic_uint came;
    atomic_bool holds; /* the thread waits in its callback */
    epw_keys keys;
} watched;

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

static void tell(void *context, uint64_t offset, uint64_t value) {
    watched *w = context;
    (void)offset, (void)value;
    atomic_fetch_add(&w->came, 1);
    while (atomic_load(&w->holds)) pause_ms(1);
}

static void await(const atomic_uint *count, unsigned wanted) {
    for (int ms = 0; ms < 10000 && atomic_load(count) < wanted; ms++) pause_ms(1);
    CHECK_MSG(atomic_load(count) == wanted, "%u came, not %u", atomic_load(count), wanted);
}

static void watch(bench *b, watched *w, unsigned char *page) {
    epw_region region = {.base = page,
                         .rights = EPW_REGION_WRITE,
                         .count = 1,
                         .stretches = {{0, PAGE}},
                         .arrived = tell,
                         .context = w};
    w->word = (_Atomic uint64_t *)(void *)(page + 512);
    CHECK_OK(epw_mlx5_register(b->adapter, &region, where, &w->keys));
}

/* Like a page whose memory cells have failed, of which only the kernel knows. */
static void a_page_that_is_gone_ends_nobody(void) {
    bench *b = new_bench();
    watched lost = {.word = NULL}, first = {.word = NULL};
    unsigned char *pages =
        mmap(NULL, 2 * (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_OK(set_up(b, &(epw_fake_options){0}, &(epw_mlx5_options){0}));
    watch(b, &lost, pages);
    watch(b, &first, pages + PAGE);
    atomic_store(lost.word, 1);
    await(&lost.came, 1);
    atomic_store(&first.holds, true);
    atomic_store(first.word, 1);
    await(&first.came, 1); /* the thread is in its callback, before it polls the other page */
    CHECK(mprotect(pages, PAGE, PROT_NONE) == 0);
    atomic_store(&first.holds, false);
    for (uint64_t value = 2; value < 5; value++) { /* it has polled, and continues */
        atomic_store(first.word, value);
        await(&first.came, (unsigned)value);
    }
    CHECK(atomic_load(&lost.came) == 1);
    CHECK(mprotect(pages, PAGE, PROT_READ | PROT_WRITE) == 0);
    atomic_store(lost.word, 2);
    await(&lost.came, 2);
    epw_mlx5_deregister(b->adapter, first.keys.own);
    epw_mlx5_deregister(b->adapter, lost.keys.own);
    take_down(b);
    munmap(pages, 2 * (size_t)PAGE);
    free(b);
}

int main(void) {
    a_page_that_is_gone_ends_nobody();
    return check_result("watched_words");
}
