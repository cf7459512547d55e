// See grid.h.
#include "grid.h"

#include "devices.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <vector>

#ifndef __x86_64__
#error "the emulated GPU changes fibers by a few instructions of x86-64"
#endif

thread_local emulated::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

namespace {

// ---- Fibers

// Saves the registers that a call preserves on this stack and its pointer in *from, and continues with the stack `to`.
extern "C" void emulated_change(void **from, void *to);
asm(".text\n.globl emulated_change\n.hidden emulated_change\n.type emulated_change, @function\n"
    "emulated_change:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "ret\n.size emulated_change, .-emulated_change\n");

constexpr size_t kStack = 64 << 10;
constexpr uint32_t kMostThreads = 1024, kPollsPerPause = 8;

// Of Hopper: what a block may have of an SM's shared memory, what an SM has, and what each block takes besides.
constexpr uint32_t kMostShared = 232448, kSmShared = 233472, kOfBlock = 1024;
constexpr uint32_t kSmThreads = 2048, kMostSms = 256;

struct Fiber {
    void *stack; // where it continues
    Index index;
    bool ended, polled;
    // It waits as long as *watched == seen; null: it can run.
    const uint32_t *watched;
    uint32_t seen;
    uint32_t polls;
    uint64_t group;  // of bulk stores: the one that is open
    uint64_t copies; // the same of its own copies
    uint64_t lanes[32];
};

struct Barrier {
    uint32_t arrived, needed, number;
    bool says, said[2]; // by the barrier's number, since a thread may be one barrier ahead of those that still read
};

// One exchange between lanes of a warp.
struct Meeting {
    uint32_t mask, arrived, left, number;
    uint64_t values[32];
};

struct Warp {
    Meeting meetings[32];
};

// Of a thread for itself.
struct Copy {
    void *to;
    const void *from; // nullptr: zeros
    uint32_t thread;
    uint64_t group;
};

struct Store {
    void *to;
    const void *from;
    uint32_t bytes, thread;
    uint64_t group;
    bool read;
    std::unique_ptr<unsigned char[]> bytes_read;
};

struct Load {
    void *to;
    const void *from;
    uint32_t bytes;
    uint64_t *barrier;
};

// The state of an mbarrier in its 64 bits. Used by the threads of one block only, which run one at a time.
struct Copies {
    uint16_t expected : 15, phase : 1;
    uint16_t pending;
    int32_t bytes;
};
static_assert(sizeof(Copies) == 8);

// A thread of the operating system that runs blocks, one after another.
struct Worker {
    unsigned char *stacks, *shared;
    Fiber fibers[kMostThreads];
    Barrier barriers[16];
    Warp warps[kMostThreads / 32];
    std::vector<Store> stores;
    std::vector<Copy> copies;
    std::vector<Load> loads;
    void *scheduler; // its stack while a fiber runs
    Fiber *current;
    uint32_t threads, alive;
    uint64_t random;

    // The work: guarded by `lock` of the pool.
    struct Grid *grid;
    uint32_t block, sm;
    Worker *next;
    pthread_cond_t called;
};

struct Sm {
    size_t shared; // taken by blocks
    uint32_t threads;
};

struct Grid {
    const Body *body;
    Sm *sms; // of its GPU
    Index grid, block;
    size_t shared;
    uint32_t left;
    pthread_cond_t ended;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Worker *idle;
Sm sms[64][kMostSms];
pthread_cond_t left_sm = PTHREAD_COND_INITIALIZER;
std::atomic<uint64_t> seeds{0};

thread_local Worker *worker;

[[noreturn]] void fail(const char *text) {
    fprintf(stderr, "emulated GPU: block %u: %s\n", blockIdx.x, text);
    abort();
}

uint32_t random_below(Worker &w, uint32_t n) {
    w.random ^= w.random << 13;
    w.random ^= w.random >> 7;
    w.random ^= w.random << 17;
    return uint32_t((w.random >> 32) * n >> 32);
}

void leave() { emulated_change(&worker->current->stack, worker->scheduler); }

void wait_while(const uint32_t *counter, uint32_t seen) {
    while (*static_cast<const volatile uint32_t *>(counter) == seen) {
        worker->current->watched = counter;
        worker->current->seen = seen;
        leave();
    }
}

void release(Barrier &b) {
    b.said[b.number & 1] = b.says;
    b.says = false;
    b.arrived = 0;
    b.number++;
}

void begin_fiber() {
    worker->grid->body->run();
    worker->current->ended = true;
    leave();
    fail("a thread continues after its end");
}

// ---- Bulk copies

void settle(Copies &c) {
    if (c.pending != 0 || c.bytes != 0) return;
    c.phase ^= 1;
    c.pending = c.expected;
}

Copies &copies_of(const uint64_t *barrier) { return *reinterpret_cast<Copies *>(const_cast<uint64_t *>(barrier)); }

void carry_out(const Load &l) {
    memcpy(l.to, l.from, l.bytes);
    Copies &c = copies_of(l.barrier);
    c.bytes -= int32_t(l.bytes);
    settle(c);
}

void read(Store &s) {
    if (s.read) return;
    s.bytes_read.reset(new unsigned char[s.bytes]);
    memcpy(s.bytes_read.get(), s.from, s.bytes);
    s.read = true;
}

void write(Store &s) {
    read(s);
    memcpy(s.to, s.bytes_read.get(), s.bytes);
}

template <typename T> void drop(std::vector<T> &list, size_t i) {
    if (i + 1 != list.size()) list[i] = std::move(list.back());
    list.pop_back();
}

// Carries out some of the copies: one in `of`, by chance.
void copy_some(Worker &w, uint32_t of) {
    for (size_t i = w.loads.size(); i-- > 0;) {
        if (random_below(w, of) != 0) continue;
        const Load l = w.loads[i];
        drop(w.loads, i);
        carry_out(l);
    }
    for (size_t i = w.stores.size(); i-- > 0;) {
        if (random_below(w, of) != 0) continue;
        if (!w.stores[i].read && random_below(w, 2) != 0) {
            read(w.stores[i]);
            continue;
        }
        write(w.stores[i]);
        drop(w.stores, i);
    }
}

void carry_out(const Copy &copy) {
    if (copy.from) {
        memcpy(copy.to, copy.from, 16);
    } else {
        memset(copy.to, 0, 16);
    }
}

void check_copy(const void *a, const void *b, uint32_t bytes) {
    if ((uintptr_t(a) | uintptr_t(b) | bytes) % 16 != 0 || bytes == 0) fail("a bulk copy is not of whole 16-byte units");
}

// ---- Blocks

void begin_block(Worker &w) {
    const Grid &g = *w.grid;
    w.threads = w.alive = g.block.x * g.block.y * g.block.z;
    if (w.threads == 0 || w.threads > kMostThreads) fail("a block must have from 1 to 1024 threads");
    gridDim = g.grid;
    blockDim = g.block;
    blockIdx = {w.block % g.grid.x, w.block / g.grid.x % g.grid.y, w.block / g.grid.x / g.grid.y};
    memset(w.barriers, 0, sizeof w.barriers);
    memset(w.warps, 0, sizeof w.warps);
    for (uint32_t i = 0; i < w.threads; i++) {
        Fiber &f = w.fibers[i];
        f = {};
        f.index = {i % g.block.x, i / g.block.x % g.block.y, i / g.block.x / g.block.y};
        auto **top = reinterpret_cast<void **>(w.stacks + (i + 1) * kStack);
        top[-2] = reinterpret_cast<void *>(begin_fiber); // as after a call: 8 bytes off a multiple of 16
        f.stack = top - 8;                               // below it the six registers
    }
}

void end_fiber(Worker &w) {
    w.alive--;
    Barrier &all = w.barriers[0];
    if (all.needed == 0 && all.arrived > 0 && all.arrived == w.alive) release(all);
}

// Runs every fiber that can run, once. Returns whether any ran; `moved`: whether one did more than poll.
bool run_round(Worker &w, bool &moved) {
    bool ran = false;
    const uint32_t first = random_below(w, w.threads);
    for (uint32_t n = 0; n < w.threads; n++) {
        const uint32_t i = first + n < w.threads ? first + n : first + n - w.threads;
        Fiber &f = w.fibers[i];
        if (f.ended || (f.watched != nullptr && *f.watched == f.seen)) continue;
        f.watched = nullptr;
        f.polled = false;
        w.current = &f;
        threadIdx = f.index;
        emulated_change(&w.scheduler, f.stack);
        ran = true;
        if (!f.polled) moved = true;
        if (f.ended) end_fiber(w);
    }
    return ran;
}

void run_block(Worker &w) {
    begin_block(w);
    for (uint32_t still = 0; w.alive > 0;) {
        bool moved = false;
        if (!run_round(w, moved)) {
            if (w.loads.empty() && w.stores.empty()) fail("all threads wait at barriers or for lanes that do not come");
            copy_some(w, 1);
            continue;
        }
        copy_some(w, 4);
        still = moved ? 0 : still + 1;
        if (still > 64) {
            const timespec a_while = {0, 50000};
            nanosleep(&a_while, nullptr);
        } else if (still > 0) {
            sched_yield();
        }
    }
    copy_some(w, 1); // what was read
    copy_some(w, 1);
    w.stores.clear();
    w.copies.clear();
}

void *work(void *argument) {
    Worker &w = *static_cast<Worker *>(argument);
    worker = &w;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (w.grid == nullptr) pthread_cond_wait(&w.called, &lock);
        pthread_mutex_unlock(&lock);
        run_block(w);
        pthread_mutex_lock(&lock);
        Grid *g = w.grid;
        g->sms[w.sm].shared -= g->shared + kOfBlock;
        g->sms[w.sm].threads -= w.threads;
        pthread_cond_broadcast(&left_sm);
        w.grid = nullptr;
        w.next = idle;
        idle = &w;
        if (--g->left == 0) pthread_cond_signal(&g->ended);
    }
}

// Called with the lock held.
Worker *hire() {
    if (idle != nullptr) {
        Worker *w = idle;
        idle = w->next;
        return w;
    }
    auto *w = new Worker();
    const size_t bytes = kMostThreads * kStack + kMostShared + 4096;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for a block's stacks");
    w->stacks = static_cast<unsigned char *>(memory);
    w->shared = w->stacks + kMostThreads * kStack;
    const char *seed = getenv("EMULATED_GPU_SEED");
    w->random = (seed ? strtoull(seed, nullptr, 10) : 1) * 0x9e3779b97f4a7c15u + ++seeds * 0xbf58476d1ce4e5b9u;
    pthread_cond_init(&w->called, nullptr);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, w) != 0) fail("no thread for a block");
    pthread_attr_destroy(&attributes);
    return w;
}

} // namespace

// Finds the SM with the most shared memory left, if it has room for a block. Called with the lock held.
bool find_sm(const Grid &g, uint32_t *out) {
    const uint32_t count = uint32_t(sms_per_device()) < kMostSms ? uint32_t(sms_per_device()) : kMostSms;
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (g.sms[i].shared < g.sms[best].shared) best = i;
    }
    *out = best;
    const uint32_t threads = g.block.x * g.block.y * g.block.z;
    return g.sms[best].shared + g.shared + kOfBlock <= kSmShared && g.sms[best].threads + threads <= kSmThreads;
}

void run_grid(const Body &body, int device, Index grid, Index block, size_t shared_bytes) {
    if (shared_bytes > kMostShared) fail("a block asks for more shared memory than there is");
    Grid g = {&body, sms[device], grid, block, shared_bytes, grid.x * grid.y * grid.z, {}};
    pthread_cond_init(&g.ended, nullptr);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0, blocks = g.left; i < blocks; i++) {
        uint32_t sm;
        while (!find_sm(g, &sm)) pthread_cond_wait(&left_sm, &lock);
        g.sms[sm].shared += shared_bytes + kOfBlock;
        g.sms[sm].threads += block.x * block.y * block.z;
        Worker *w = hire();
        w->block = i;
        w->sm = sm;
        w->grid = &g;
        pthread_cond_signal(&w->called);
    }
    while (g.left > 0) pthread_cond_wait(&g.ended, &lock);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&g.ended);
}

void *dynamic_shared() { return worker->shared; }

void pause() {
    worker->current->polled = true;
    leave();
}

void poll() {
    if (++worker->current->polls % kPollsPerPause == 0) pause();
}

bool barrier(uint32_t id, uint32_t threads, bool says) {
    Barrier &b = worker->barriers[id];
    b.needed = threads;
    b.says |= says;
    const uint32_t number = b.number;
    if (++b.arrived == (threads == 0 ? worker->alive : threads)) {
        release(b);
    } else {
        wait_while(&b.number, number);
    }
    return b.said[number & 1];
}

uint32_t lane() { return uint32_t(worker->current - worker->fibers) % 32; }

const uint64_t *exchange(uint32_t mask, uint64_t value) {
    Fiber &f = *worker->current;
    const uint32_t me = lane(), bit = 1u << me;
    if (!(mask & bit)) fail("a lane is not in the mask that it names");
    Warp &warp = worker->warps[(worker->current - worker->fibers) / 32];
    Meeting *m = nullptr;
    for (Meeting &open : warp.meetings) {
        if (open.mask == mask && open.arrived != mask) m = &open;
    }
    for (Meeting &free : warp.meetings) {
        if (m == nullptr && free.mask == 0) m = &free;
    }
    if (m == nullptr) fail("the lanes of a warp meet in more ways than there are lanes");
    m->mask = mask;
    m->values[me] = value;
    m->arrived |= bit;
    const uint32_t number = m->number;
    if (m->arrived == mask) {
        m->number++;
    } else {
        wait_while(&m->number, number);
    }
    memcpy(f.lanes, m->values, sizeof f.lanes);
    m->left |= bit;
    if (m->left == mask) m->mask = m->arrived = m->left = 0;
    return f.lanes;
}

void copies_init(uint64_t *barrier, uint32_t arrivals) { copies_of(barrier) = {uint16_t(arrivals), 0, uint16_t(arrivals), 0}; }

void copies_arrive(uint64_t *barrier, uint32_t expected_bytes) {
    Copies &c = copies_of(barrier);
    if (c.pending == 0) fail("more arrivals at a barrier of copies than it awaits");
    c.bytes += int32_t(expected_bytes);
    c.pending--;
    settle(c);
}

bool copies_have_come(const uint64_t *barrier, uint32_t parity) {
    if (copies_of(barrier).phase != parity) return true;
    pause();
    return copies_of(barrier).phase != parity;
}

void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    check_copy(to, from, bytes);
    worker->loads.push_back({to, from, bytes, barrier});
}

void bulk_store(void *to, const void *from, uint32_t bytes) {
    check_copy(to, from, bytes);
    const auto thread = uint32_t(worker->current - worker->fibers);
    worker->stores.push_back({to, from, bytes, thread, worker->current->group, false, nullptr});
}

void bulk_commit() { worker->current->group++; }

void copy_16(void *to, const void *from) {
    check_copy(to, from, 16);
    Worker &w = *worker;
    const Copy copy = {to, from, uint32_t(w.current - w.fibers), w.current->copies};
    if (random_below(w, 2) != 0) {
        w.copies.push_back(copy);
    } else {
        carry_out(copy);
    }
}

void copies_commit() { worker->current->copies++; }

void copies_await(uint32_t left) {
    Worker &w = *worker;
    const auto thread = uint32_t(w.current - w.fibers);
    size_t kept = 0;
    for (const Copy &copy : w.copies) {
        if (copy.thread == thread && copy.group + left < w.current->copies) {
            carry_out(copy);
        } else {
            w.copies[kept++] = copy;
        }
    }
    w.copies.resize(kept);
}

void bulk_await(uint32_t left, bool written) {
    Worker &w = *worker;
    const auto thread = uint32_t(w.current - w.fibers);
    for (size_t i = w.stores.size(); i-- > 0;) {
        Store &s = w.stores[i];
        if (s.thread != thread || s.group + left >= w.current->group) continue;
        read(s);
        if (!written) continue;
        write(s);
        drop(w.stores, i);
    }
}

} // namespace emulated
