// The emulated GPUs' CUDA runtime: streams, events, graphs and copies, as far as epwire uses them. A stream is a thread that does
// one thing after another.
#include "devices.h"
#include "grid.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

using Work = std::function<void()>;

thread_local cudaError_t last = cudaSuccess;

cudaError_t done(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}
cudaError_t done(CUresult error) { return done(cudaError_t(error)); }

double now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) * 1e3 + double(now.tv_nsec) / 1e6;
}

void start_thread(Work *work, bool detached, pthread_t *thread) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (detached) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const auto run = [](void *argument) -> void * {
        const std::unique_ptr<Work> own(static_cast<Work *>(argument));
        (*own)();
        return nullptr;
    };
    if (pthread_create(thread, &attributes, run, work) != 0) {
        fprintf(stderr, "emulated GPU: no thread for a stream\n");
        abort();
    }
    pthread_attr_destroy(&attributes);
}

// A number that only grows, and those who wait for it.
struct Count {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t value = 0;

    void raise(uint64_t to) {
        const std::lock_guard<std::mutex> guard(lock);
        if (to > value) value = to;
        changed.notify_all();
    }
    void await(uint64_t at_least) {
        std::unique_lock<std::mutex> guard(lock);
        while (value < at_least) changed.wait(guard);
    }
    bool has(uint64_t at_least) {
        const std::lock_guard<std::mutex> guard(lock);
        return value >= at_least;
    }
};

// What a captured stream does: work; or it marks a point for other streams, or waits for one, or for an event of outside.
struct Step {
    enum { run, mark, await, outside } what;
    Work work;
    size_t point; // or which of the events
};

struct Graph {
    std::vector<std::vector<Step>> branches; // the first is the stream that began the capture
    size_t points = 0;
    std::vector<cudaEvent_t> outside;
};

// Of the events of outside: what had been recorded when the graph was launched.
using Recorded = std::vector<std::pair<Count *, uint64_t>>;

void run_branch(const Graph &g, size_t branch, std::vector<Count> &points, const Recorded &recorded) {
    for (const Step &s : g.branches[branch]) {
        if (s.what == Step::run) s.work();
        if (s.what == Step::mark) points[s.point].raise(1);
        if (s.what == Step::await) points[s.point].await(1);
        if (s.what == Step::outside) recorded[s.point].first->await(recorded[s.point].second);
    }
}

void run_graph(const Graph &g, const Recorded &recorded) {
    std::vector<Count> points(g.points);
    std::vector<pthread_t> threads(g.branches.size());
    for (size_t i = 1; i < g.branches.size(); i++)
        start_thread(new Work([&, i] { run_branch(g, i, points, recorded); }), false, &threads[i]);
    run_branch(g, 0, points, recorded);
    for (size_t i = 1; i < g.branches.size(); i++) pthread_join(threads[i], nullptr);
}

struct Capture {
    unsigned long long id;
    Graph graph;
    std::vector<CUstream_st *> streams; // by branch
    std::atomic<bool> ended{false};
};

std::atomic<unsigned long long> streams_made{0}, captures_begun{0};

std::mutex registered_lock;
std::set<void *> registered; // host memory, by where it begins

} // namespace

// The types that the runtime's interface names.
struct CUevent_st {
    std::mutex lock;
    uint64_t recorded = 0; // how often
    Count reached;         // which recording
    double at_ms = 0;
    std::shared_ptr<Capture> capture; // it was recorded in a stream that is captured, last,
    size_t point = 0;                 // as this point of the graph
};

struct CUstream_st {
    int device;
    unsigned long long id = ++streams_made;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> queue;
    uint64_t put = 0, ran = 0;
    bool ends = false;
    std::shared_ptr<Capture> capture; // null: it is not captured
    size_t branch = 0;

    explicit CUstream_st(int of) : device(of) {}

    void serve() {
        emulated::set_current_device(device);
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            while (queue.empty() && !ends) changed.wait(guard);
            if (queue.empty()) break;
            Work work = std::move(queue.front());
            queue.pop_front();
            guard.unlock();
            work();
            work = nullptr;
            guard.lock();
            ran++;
            changed.notify_all();
        }
    }

    void enqueue(Work work) {
        const std::lock_guard<std::mutex> guard(lock);
        if (capture) {
            capture->graph.branches[branch].push_back({Step::run, std::move(work), 0});
            return;
        }
        put++;
        queue.push_back(std::move(work));
        changed.notify_all();
    }
    bool is_captured() {
        const std::lock_guard<std::mutex> guard(lock);
        return capture != nullptr;
    }
    // What was enqueued up to now has been done.
    void finish() {
        std::unique_lock<std::mutex> guard(lock);
        const uint64_t target = put;
        while (ran < target) changed.wait(guard);
    }
    bool is_idle() {
        const std::lock_guard<std::mutex> guard(lock);
        return ran == put;
    }
};

struct CUgraph_st {
    std::shared_ptr<Graph> graph;
};
struct CUgraphExec_st {
    std::shared_ptr<Graph> graph;
};

namespace {

// A stream is kept by its thread, by this list until it is destroyed, and by who waits for all of a device's streams.
using Stream = std::shared_ptr<CUstream_st>;

std::mutex streams_lock;
std::vector<Stream> streams;
cudaStream_t defaults[64];

// Called with the lock held.
cudaStream_t add_stream(int device) {
    const auto stream = std::make_shared<CUstream_st>(device);
    pthread_t thread;
    start_thread(new Work([stream] { stream->serve(); }), true, &thread);
    streams.push_back(stream);
    return stream.get();
}

// The default stream is one of its own for each device, and does not wait for the others: epwire's tests use streams that do not
// wait for it either.
cudaStream_t resolve(cudaStream_t stream) {
    if (uintptr_t(stream) > 2) return stream;
    const int device = emulated::current_device();
    const std::lock_guard<std::mutex> guard(streams_lock);
    if (defaults[device] == nullptr) defaults[device] = add_stream(device);
    return defaults[device];
}

void finish_device(int device) {
    std::vector<Stream> all;
    {
        const std::lock_guard<std::mutex> guard(streams_lock);
        std::copy_if(streams.begin(), streams.end(), std::back_inserter(all),
                     [&](const Stream &s) { return s->device == device; });
    }
    for (const Stream &s : all) s->finish();
}

// Copies of a device's streams from memory that was allocated on another device run in the order in which they were enqueued,
// whatever their streams are, as was seen on H200s.
struct Turns {
    std::mutex lock; // held until the copy is enqueued
    uint64_t taken = 0;
    Count over;
};
Turns turns[64]; // of each device

void copy_in_turn(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    Turns &own = turns[stream->device];
    const std::lock_guard<std::mutex> guard(own.lock);
    const uint64_t turn = ++own.taken;
    stream->enqueue([=, &own] {
        own.over.await(turn - 1);
        memcpy(to, from, bytes);
        own.over.raise(turn);
    });
}

cudaError_t copy(void *to, const void *from, size_t bytes, cudaStream_t stream, bool waits) {
    stream = resolve(stream);
    if (emulated::is_of_other_gpu(from, stream->device) && !stream->is_captured()) {
        copy_in_turn(to, from, bytes, stream);
    } else {
        stream->enqueue([=] { memcpy(to, from, bytes); });
    }
    if (waits) stream->finish();
    return cudaSuccess;
}

bool is_device(int device) { return device >= 0 && device < emulated::device_count(); }

} // namespace

namespace emulated {

namespace {
std::mutex permits_lock;
std::map<const void *, size_t> permits; // bytes of dynamic shared memory for a kernel's blocks, if more than kShared
constexpr size_t kShared = 48 << 10;
} // namespace

void permit_shared(const void *kernel, size_t bytes) {
    const std::lock_guard lock(permits_lock);
    permits[kernel] = std::max(kShared, bytes);
}

static bool is_permitted(const void *kernel, size_t bytes) {
    const std::lock_guard lock(permits_lock);
    const auto found = permits.find(kernel);
    return bytes <= (found == permits.end() ? kShared : found->second);
}

cudaError_t enqueue(const void *kernel, const Body *body, dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    const std::shared_ptr<const Body> own(body);
    if (!is_permitted(kernel, shared)) return done(cudaErrorInvalidValue);
    if (grid.x * grid.y * grid.z == 0 || block.x * block.y * block.z == 0 || block.x * block.y * block.z > 1024)
        return done(cudaErrorInvalidConfiguration);
    stream = resolve(stream);
    const int device = stream->device;
    stream->enqueue([=] { run_grid(*own, device, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared); });
    return cudaSuccess;
}

} // namespace emulated

extern "C" {

// ---- Errors

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(cudaError_t error) {
    if (error == cudaErrorNotPermitted) return "cudaErrorNotPermitted";
    return error == cudaSuccess ? "cudaSuccess" : "an error of the emulated GPU";
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorInvalidValue:
        return "invalid argument";
    default:
        return "an error of the emulated GPU";
    }
}

// ---- Devices

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = emulated::device_count();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) return done(cudaErrorInvalidDevice);
    emulated::set_current_device(device);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = emulated::current_device();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (!is_device(device)) return done(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = emulated::sms_per_device();
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 232448;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    if (!is_device(device)) return done(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "emulated GPU %d", device);
    out->major = 9;
    out->multiProcessorCount = emulated::sms_per_device();
    out->totalGlobalMem = emulated::memory_bytes();
    out->sharedMemPerBlockOptin = 232448;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device) {
    if (!is_device(device)) return done(cudaErrorInvalidDevice);
    snprintf(out, size_t(bytes), "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int, int) {
    *value = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) {
    finish_device(emulated::current_device());
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *free = emulated::free_bytes(emulated::current_device());
    *total = emulated::memory_bytes();
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) {
    memset(out, 0, sizeof *out);
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found) {
    *function = emulated::driver_function(name);
    *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// ---- Memory

cudaError_t cudaMalloc(void **out, size_t bytes) { return done(emulated::allocate(bytes, emulated::current_device(), out)); }
cudaError_t cudaFree(void *memory) {
    if (memory == nullptr) return cudaSuccess;
    finish_device(emulated::current_device());
    return done(emulated::release(memory));
}
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t) {
    const cudaError_t error = cudaMalloc(out, bytes > 0 ? bytes : 1);
    if (error == cudaSuccess) emulated::put_into_pool(*out);
    return error;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *memory) {
    bool pooled;
    memset(out, 0, sizeof *out);
    out->type = emulated::find_device(memory, &out->device, &pooled) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    resolve(stream)->enqueue([=] { emulated::release(memory); });
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *out != nullptr ? cudaSuccess : done(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}
// A single page is one of an adapter's registers, which the driver may not map for kernels.
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    if (bytes == 4096 && emulated::is_set("EMULATED_GPU_NO_REGISTERS")) return done(cudaErrorNotPermitted);
    const std::lock_guard<std::mutex> guard(registered_lock);
    return registered.insert(memory).second ? cudaSuccess : done(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void *memory) {
    const std::lock_guard<std::mutex> guard(registered_lock);
    return registered.erase(memory) == 1 ? cudaSuccess : done(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned) {
    *out = memory;
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory) {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
    return done(emulated::name_allocation(memory, reinterpret_cast<CUipcMemHandle *>(out)));
}
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned) {
    return done(emulated::open_allocation(reinterpret_cast<CUipcMemHandle *>(&handle), out));
}
cudaError_t cudaIpcCloseMemHandle(void *memory) {
    void *base;
    size_t bytes;
    finish_device(emulated::current_device());
    if (!emulated::find_allocation(memory, &base, &bytes)) return done(cudaErrorInvalidValue);
    return done(emulated::release(base));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes, nullptr, true); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
    resolve(stream)->enqueue([=] {
        for (size_t row = 0; row < height; row++)
            memcpy(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width);
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    const cudaStream_t stream = resolve(nullptr);
    stream->enqueue([=] { memset(to, value, bytes); });
    stream->finish();
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    resolve(stream)->enqueue([=] { memset(to, value, bytes); });
    return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    const std::lock_guard<std::mutex> guard(streams_lock);
    *out = add_stream(emulated::current_device());
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) { return cudaStreamCreateWithFlags(out, flags); }
// What it was given is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Stream kept;
    {
        const std::lock_guard<std::mutex> guard(streams_lock);
        const auto found = std::find_if(streams.begin(), streams.end(), [&](const Stream &s) { return s.get() == stream; });
        if (found == streams.end()) return done(cudaErrorInvalidResourceHandle);
        kept = *found;
        streams.erase(found);
    }
    const std::lock_guard<std::mutex> guard(stream->lock);
    stream->ends = true;
    stream->changed.notify_all();
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    *id = resolve(stream)->id;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    resolve(stream)->finish();
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return resolve(stream)->is_idle() ? cudaSuccess : cudaErrorNotReady; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = new CUevent_st();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
// Kept: a stream may still have to reach it.
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    stream = resolve(stream);
    {
        const std::lock_guard<std::mutex> guard(stream->lock);
        const std::lock_guard<std::mutex> own(event->lock);
        event->capture = stream->capture;
        if (stream->capture) {
            event->point = stream->capture->graph.points++;
            stream->capture->graph.branches[stream->branch].push_back({Step::mark, nullptr, event->point});
            return cudaSuccess;
        }
        event->recorded++;
    }
    const uint64_t recording = event->recorded;
    stream->enqueue([=] {
        event->at_ms = now_ms();
        event->reached.raise(recording);
    });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    stream = resolve(stream);
    uint64_t recording;
    {
        const std::lock_guard<std::mutex> guard(stream->lock);
        const std::lock_guard<std::mutex> own(event->lock);
        if (event->capture) {
            if (event->capture->ended) return done(cudaErrorInvalidValue);
            if (!stream->capture) {
                stream->capture = event->capture;
                stream->branch = event->capture->graph.branches.size();
                event->capture->graph.branches.emplace_back();
                event->capture->streams.push_back(stream);
            }
            if (stream->capture != event->capture) return done(cudaErrorStreamCaptureIsolation);
            stream->capture->graph.branches[stream->branch].push_back({Step::await, nullptr, event->point});
            return cudaSuccess;
        }
        if (stream->capture) {
            if (flags != cudaEventWaitExternal) return done(cudaErrorStreamCaptureIsolation);
            Graph &graph = stream->capture->graph;
            graph.branches[stream->branch].push_back({Step::outside, nullptr, graph.outside.size()});
            graph.outside.push_back(event);
            return cudaSuccess;
        }
        recording = event->recorded;
    }
    stream->enqueue([=] { event->reached.await(recording); });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return event->reached.has(event->recorded) ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    event->reached.await(event->recorded);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->reached.has(from->recorded) || !to->reached.has(to->recorded)) return done(cudaErrorNotReady);
    *ms = float(to->at_ms - from->at_ms);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    resolve(stream)->enqueue([=] { function(data); });
    return cudaSuccess;
}

// ---- Graphs

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    stream = resolve(stream);
    const std::lock_guard<std::mutex> guard(stream->lock);
    stream->capture = std::make_shared<Capture>();
    stream->capture->id = ++captures_begun;
    stream->branch = 0;
    stream->capture->graph.branches.resize(1);
    stream->capture->streams.push_back(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    stream = resolve(stream);
    const std::lock_guard<std::mutex> guard(stream->lock);
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *,
                                     const cudaGraphNode_t **, const cudaGraphEdgeData **, size_t *) {
    stream = resolve(stream);
    const std::lock_guard<std::mutex> guard(stream->lock);
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (stream->capture) *id = stream->capture->id;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    const std::shared_ptr<Capture> capture = resolve(stream)->capture;
    if (!capture) return done(cudaErrorIllegalState);
    capture->ended = true;
    for (cudaStream_t s : capture->streams) {
        const std::lock_guard<std::mutex> guard(s->lock);
        s->capture = nullptr;
    }
    *out = new CUgraph_st{std::make_shared<Graph>(std::move(capture->graph))};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    *out = new CUgraphExec_st{graph->graph};
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    Recorded recorded;
    for (cudaEvent_t event : exec->graph->outside) {
        const std::lock_guard<std::mutex> own(event->lock);
        recorded.emplace_back(&event->reached, event->recorded);
    }
    resolve(stream)->enqueue([graph = exec->graph, recorded] { run_graph(*graph, recorded); });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}

} // extern "C"
