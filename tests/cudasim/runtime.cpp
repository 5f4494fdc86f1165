/* The CUDA runtime's host interface: device, copies, streams, events, graphs. Work on a stream is put off
 * until something waits for it, and streams run only as far as events make them: a host that reads a result
 * too early, reuses a buffer under way or forgets an event between two streams gets it wrong here too. */
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <algorithm>
#include <map>
#include <memory>
#include "internal.h"

std::recursive_mutex dgsim_mutex;

namespace {

struct event_state {
    uint64_t recorded = 0, done = 0; /* the number of the last record asked for, and carried out */
    dgsim_stream *stream = nullptr;  /* of the last record */
    std::chrono::steady_clock::time_point time;
    std::shared_ptr<struct capture> capture; /* recorded within it, */
    uint64_t seen = 0;                 /* after so many operations of the stream */
};

struct operation {
    std::function<void()> run; /* or, with an event: */
    std::shared_ptr<event_state> event;
    uint64_t number;
    bool waits; /* else records */
};

using operations = std::vector<std::function<void()>>;

struct capture {
    dgsim_stream *origin;
    cudaStreamCaptureMode mode;
    std::shared_ptr<operations> ops;
    bool invalid, ended;
};

} // namespace

struct dgsim_stream {
    std::deque<operation> queue;
    std::shared_ptr<capture> capturing;
    uint64_t captured, joined; /* operations captured from it, and how many the origin waits for */
    bool blocking;             /* waits for and holds up the legacy stream */
};
struct dgsim_event { std::shared_ptr<event_state> state; };
struct dgsim_graph { std::shared_ptr<operations> ops; };
struct dgsim_graph_exec { std::shared_ptr<operations> ops; };

static std::vector<dgsim_stream *> streams;
static std::vector<std::shared_ptr<capture>> captures;
static dgsim_stream legacy = {{}, nullptr, 0, 0, true};
static std::map<const char *, size_t> registered;
static std::map<const void *, int> dynamic_limit; /* of kernels that have asked for more */
static cudaError_t lost;                          /* the device is, until it is reset */
static thread_local cudaError_t last_error;

dgsim_config dgsim = {1, CUDART_VERSION, 9, 0, size_t{4} << 30, 0, 0, DGSIM_FORWARD};

__attribute__((constructor)) static void read_environment(void) {
    const char *v;
    if ((v = getenv("DGSIM_DEVICES"))) dgsim.devices = atoi(v);
    if ((v = getenv("DGSIM_DRIVER"))) dgsim.driver = atoi(v);
    if ((v = getenv("DGSIM_CC"))) sscanf(v, "%d.%d", &dgsim.major, &dgsim.minor);
    if ((v = getenv("DGSIM_MEMORY"))) dgsim.memory = strtoull(v, nullptr, 0);
    if ((v = getenv("DGSIM_ORDER")))
        dgsim.order = !strcmp(v, "reverse") ? DGSIM_REVERSE : !strcmp(v, "shuffled") ? DGSIM_SHUFFLED : DGSIM_FORWARD;
}

using lock = std::lock_guard<std::recursive_mutex>;

#define LOCKED const lock guard_of_this_call(dgsim_mutex)

static cudaError_t done(cudaError_t e) {
    if (lost) e = lost;
    if (e) last_error = e;
    return e;
}

/* A wrong argument is a bug of the caller, which a status alone tells too little of. */
static cudaError_t wrong(cudaError_t e, const char *what) {
    fprintf(stderr, "cudasim: %s\n", what);
    return done(e);
}

/* --- running --- */

static void run_queue(dgsim_stream *s, const event_state *until, uint64_t number) {
    while (!s->queue.empty() && !(until && until->done >= number)) {
        operation op = std::move(s->queue.front());
        s->queue.pop_front();
        if (op.run) {
            if (!lost) op.run();
        } else if (op.waits) {
            if (op.event->done < op.number) run_queue(op.event->stream, op.event.get(), op.number);
        } else {
            op.event->done = std::max(op.event->done, op.number);
            op.event->time = std::chrono::steady_clock::now();
        }
    }
}

static void flush(dgsim_stream *s, const event_state *until = nullptr, uint64_t number = 0) {
    if (s->queue.empty()) return;
    dgsim_open_device(true);
    run_queue(s, until, number);
    dgsim_open_device(false);
}

static void flush_all(bool blocking_only) {
    for (dgsim_stream *s : streams)
        if (s->blocking || !blocking_only) flush(s);
    flush(&legacy);
}

static dgsim_stream *stream_of(cudaStream_t s) { return s && s != cudaStreamLegacy ? s : &legacy; }

/* Calls that wait or allocate may not come while a stream is captured. */
static bool forbidden(void) {
    bool any = false;
    for (const auto &c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed) any = c->invalid = true;
    return any;
}

static cudaError_t push(cudaStream_t which, std::function<void()> run) {
    dgsim_stream *s = stream_of(which);
    if (lost) return done(lost);
    if (s->capturing) {
        s->capturing->ops->push_back(std::move(run));
        s->captured++;
        return cudaSuccess;
    }
    if (s == &legacy) { /* in order with all blocking streams */
        if (forbidden()) return done(cudaErrorStreamCaptureImplicit);
        flush_all(true);
    }
    s->queue.push_back({std::move(run), nullptr, 0, false});
    if (s == &legacy) flush(s);
    return done(cudaSuccess);
}

cudaError_t dgsim_push(cudaStream_t s, std::function<void()> run) {
    LOCKED;
    return push(s, std::move(run));
}

/* --- launches --- */

void dgsim_enqueue(const dgsim_launch_config &c, cudaStream_t s) {
    LOCKED;
    const std::shared_ptr<void> args(c.args, c.destroy);
    const unsigned *g = c.grid, *b = c.block;
    const size_t threads = static_cast<size_t>(b[0]) * b[1] * b[2], own = dgsim_static_bytes(c.func);
    const auto raised = dynamic_limit.find(c.func);
    const size_t limit = raised == dynamic_limit.end() ? (48 << 10) - std::min(own, size_t{48} << 10) : static_cast<size_t>(raised->second);
    char why[200] = "";
    cudaError_t e = cudaErrorInvalidConfiguration;
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffffu || g[1] > 65535 || g[2] > 65535)
        snprintf(why, sizeof why, "a grid of (%u,%u,%u) blocks", g[0], g[1], g[2]);
    else if (!threads || threads > 1024 || b[0] > 1024 || b[1] > 1024 || b[2] > 64)
        snprintf(why, sizeof why, "a block of (%u,%u,%u) threads", b[0], b[1], b[2]);
    else if (c.shared > limit) {
        snprintf(why, sizeof why, "%zu bytes of dynamic shared memory, where it may have %zu", c.shared, limit);
        e = cudaErrorInvalidValue;
    } else if (own > 48 << 10)
        snprintf(why, sizeof why, "%zu bytes of static shared memory, where a kernel may have 49152", own);
    if (!*why) {
        push(s, [c, args] {
            if (dgsim.fail_launch > 0 && --dgsim.fail_launch == 0) lost = cudaErrorLaunchFailure;
            else dgsim_run(c);
        });
        return;
    }
    fprintf(stderr, "cudasim: kernel %s launched at %s:%d: %s\n", c.name, c.file, c.line, why);
    done(e);
}

static int shared_optin(void) {
    const int cc = dgsim.major * 10 + dgsim.minor;
    return (cc >= 90 ? 227 : cc == 80 || cc == 87 ? 163 : cc >= 80 ? 99 : cc == 75 ? 64 : 96) << 10;
}

cudaError_t cudaFuncSetAttribute(const void *func, cudaFuncAttribute attr, int value) {
    LOCKED;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return done(cudaSuccess);
    if (value < 0 || static_cast<size_t>(value) + dgsim_static_bytes(func) > static_cast<size_t>(shared_optin()))
        return done(cudaErrorInvalidValue);
    dynamic_limit[func] = value;
    return done(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *func) {
    LOCKED;
    *out = {};
    out->sharedSizeBytes = dgsim_static_bytes(func);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = dgsim.major * 10 + dgsim.minor;
    out->maxDynamicSharedSizeBytes = dynamic_limit.count(func) ? dynamic_limit[func] : 48 << 10;
    return done(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *func, int threads, size_t dynamic) {
    LOCKED;
    const size_t each = dgsim_static_bytes(func) + dynamic + 1024;
    *blocks = threads > 0 && threads <= 1024 ? std::min(2048 / threads, static_cast<int>((shared_optin() + 1024) / each)) : 0;
    return done(cudaSuccess);
}

/* --- device --- */

static cudaError_t device_state(void) {
    if (dgsim.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver; /* minor versions mix */
    return dgsim.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static thread_local int current_device;

cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_state() ? 0 : dgsim.devices;
    return done(device_state());
}

cudaError_t cudaSetDevice(int device) {
    if (device_state()) return done(device_state());
    if (device < 0 || device >= dgsim.devices) return done(cudaErrorInvalidDevice);
    current_device = device;
    return done(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return done(device_state());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device_state()) return done(device_state());
    if (device < 0 || device >= dgsim.devices) return done(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "simulated device");
    p->totalGlobalMem = dgsim.memory;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = static_cast<size_t>(shared_optin());
    p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    const int dim[3] = {1024, 1024, 64}, grid[3] = {0x7fffffff, 65535, 65535};
    memcpy(p->maxThreadsDim, dim, sizeof dim);
    memcpy(p->maxGridSize, grid, sizeof grid);
    p->major = dgsim.major;
    p->minor = dgsim.minor;
    p->multiProcessorCount = 4; /* few: work is split as if it were worth it, and stays quick here */
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->asyncEngineCount = 3;
    return done(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device) {
    cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e) return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrIntegrated: *value = p.integrated; break;
    case cudaDevAttrCanMapHostMemory: *value = p.canMapHostMemory; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrUnifiedAddressing: *value = p.unifiedAddressing; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    default: return wrong(cudaErrorInvalidValue, "an attribute that is not simulated");
    }
    return done(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = dgsim.devices > 0 ? dgsim.driver : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    LOCKED;
    if (forbidden()) return done(cudaErrorStreamCaptureUnsupported);
    flush_all(false);
    return done(cudaSuccess);
}

cudaError_t cudaDeviceReset(void) {
    LOCKED;
    flush_all(false);
    lost = last_error = cudaSuccess;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = lost ? lost : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) { return lost ? lost : last_error; }

static const struct { cudaError_t e; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
};

const char *cudaGetErrorName(cudaError_t e) {
    for (const auto &known : errors)
        if (known.e == e) return known.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e) {
    for (const auto &known : errors)
        if (known.e == e) return known.text;
    return "unrecognized error code";
}

/* --- memory --- */

static cudaError_t allocate(void **p, size_t bytes, bool pinned) {
    LOCKED;
    *p = nullptr;
    if (device_state()) return done(device_state());
    if (forbidden()) return done(cudaErrorStreamCaptureUnsupported);
    if (lost || bytes == 0) return done(cudaSuccess);
    *p = dgsim_alloc(bytes, pinned);
    return done(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t release(void *p, bool pinned) {
    LOCKED;
    if (!p) return done(cudaSuccess);
    if (forbidden()) return done(cudaErrorStreamCaptureUnsupported);
    flush_all(false);
    if (!dgsim_release(p, pinned)) return wrong(cudaErrorInvalidValue, "free of what was not allocated, or twice");
    return done(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, false); }
cudaError_t cudaFree(void *p) { return release(p, false); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, true); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) { return allocate(p, bytes, true); }
cudaError_t cudaFreeHost(void *p) { return release(p, true); }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    LOCKED;
    *total = dgsim.memory;
    *available = dgsim.memory - std::min(dgsim.memory, dgsim_used());
    return done(device_state());
}

bool dgsim_registered(const char *p, size_t bytes) {
    auto it = registered.upper_bound(p);
    if (it == registered.begin()) return false;
    --it;
    return p + bytes <= it->first + it->second;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
    LOCKED;
    if (dgsim_registered(static_cast<char *>(p), 1)) return done(cudaErrorHostMemoryAlreadyRegistered);
    registered[static_cast<char *>(p)] = bytes;
    return done(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p) {
    LOCKED;
    flush_all(false);
    return done(registered.erase(static_cast<char *>(p)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return done(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p) {
    LOCKED;
    const dgsim_block *b = dgsim_find(p);
    void *address = const_cast<void *>(p);
    const bool pinned = (b && b->pinned) || dgsim_registered(static_cast<const char *>(p), 1);
    *out = {pinned ? cudaMemoryTypeHost : b && b->live ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0, address, nullptr};
    if (out->type != cudaMemoryTypeDevice) out->hostPointer = address;
    return done(cudaSuccess);
}

/* --- copies --- */

enum memory_kind { PAGEABLE, PINNED, DEVICE, INVALID };

/* Where rows of width bytes lie */
static memory_kind kind_of(const void *p, size_t pitch, size_t width, size_t height) {
    const char *c = static_cast<const char *>(p), *end = c + (height - 1) * pitch + width;
    if (!dgsim_in_arena(p)) return dgsim_registered(c, static_cast<size_t>(end - c)) ? PINNED : PAGEABLE;
    const dgsim_block *b = dgsim_find(p);
    if (!b->live || c < b->start || end > b->start + b->bytes) return INVALID;
    return b->pinned ? PINNED : DEVICE;
}

static void copy_rows(char *dst, size_t dpitch, const char *src, size_t spitch, size_t width, size_t height) {
    for (size_t i = 0; i < height; i++) memcpy(dst + i * dpitch, src + i * spitch, width);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t s) {
    LOCKED;
    if (width == 0 || height == 0 || lost) return done(cudaSuccess);
    if (dpitch < width || spitch < width) return wrong(cudaErrorInvalidValue, "a copy whose rows overlap");
    const memory_kind to = kind_of(dst, dpitch, width, height), from = kind_of(src, spitch, width, height);
    if (to == INVALID || from == INVALID) return wrong(cudaErrorInvalidValue, "a copy outside of any allocation");
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to_device != (to == DEVICE) || from_device != (from == DEVICE)) && to != PINNED && from != PINNED)
        return wrong(cudaErrorInvalidValue, "a copy in another direction than it says");
    char *out = static_cast<char *>(dst);
    const char *in = static_cast<const char *>(src);
    const bool captured = stream_of(s)->capturing != nullptr;
    if (from == PAGEABLE && !captured) { /* read before the call returns */
        auto staged = std::make_shared<std::vector<char>>(width * height);
        copy_rows(staged->data(), width, in, spitch, width, height);
        const cudaError_t e = push(s, [=] { copy_rows(out, dpitch, staged->data(), width, width, height); });
        if (to == PAGEABLE) flush(stream_of(s));
        return e;
    }
    const cudaError_t e = push(s, [=] { copy_rows(out, dpitch, in, spitch, width, height); });
    if (to == PAGEABLE && !captured) flush(stream_of(s)); /* written before the call returns */
    return done(e);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, nullptr);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, nullptr);
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int byte, size_t width, size_t height, cudaStream_t s) {
    LOCKED;
    if (width == 0 || height == 0 || lost) return done(cudaSuccess);
    const memory_kind to = kind_of(dst, pitch, width, height);
    if (to == INVALID || to == PAGEABLE) return wrong(cudaErrorInvalidValue, "a memset outside of any allocation");
    return push(s, [=] {
        for (size_t i = 0; i < height; i++) memset(static_cast<char *>(dst) + i * pitch, byte, width);
    });
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t s) {
    return cudaMemset2DAsync(dst, bytes, byte, bytes, 1, s);
}

cudaError_t cudaMemset(void *dst, int byte, size_t bytes) { return cudaMemset2DAsync(dst, bytes, byte, bytes, 1, nullptr); }

/* --- streams --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    LOCKED;
    *s = nullptr;
    if (device_state()) return done(device_state());
    streams.push_back(new dgsim_stream{{}, nullptr, 0, 0, !(flags & cudaStreamNonBlocking)});
    *s = streams.back();
    return done(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    LOCKED;
    auto it = std::find(streams.begin(), streams.end(), s);
    if (it == streams.end()) return wrong(cudaErrorInvalidResourceHandle, "a stream that is none");
    flush_all(false); /* whoever waits for events of this one */
    streams.erase(it);
    delete s;
    return done(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t which) {
    LOCKED;
    dgsim_stream *s = stream_of(which);
    if (s->capturing || forbidden()) {
        if (s->capturing) s->capturing->invalid = true;
        return done(cudaErrorStreamCaptureUnsupported);
    }
    flush(s);
    return done(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t which) { /* an operation further each time, so that polling ends */
    LOCKED;
    dgsim_stream *s = stream_of(which);
    if (s->capturing) return done(cudaErrorStreamCaptureUnsupported);
    if (s->queue.empty()) return done(cudaSuccess);
    std::deque<operation> rest(std::make_move_iterator(s->queue.begin() + 1), std::make_move_iterator(s->queue.end()));
    s->queue.resize(1);
    flush(s);
    s->queue = std::move(rest);
    return lost ? done(lost) : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg) {
    LOCKED;
    return push(s, [=] { fn(arg); });
}

/* --- events --- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    LOCKED;
    *e = nullptr;
    if (device_state()) return done(device_state());
    *e = new dgsim_event{std::make_shared<event_state>()};
    return done(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    LOCKED;
    delete e;
    return done(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t which) {
    LOCKED;
    dgsim_stream *s = stream_of(which);
    event_state &state = *e->state;
    state.capture = s->capturing;
    state.stream = s;
    state.seen = s->captured;
    if (s->capturing) return done(cudaSuccess);
    s->queue.push_back({nullptr, e->state, ++state.recorded, false});
    if (s == &legacy) flush_all(true);
    return done(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t which, cudaEvent_t e, unsigned) {
    LOCKED;
    dgsim_stream *s = stream_of(which);
    const event_state &state = *e->state;
    if (state.capture && !state.capture->ended) { /* the stream is captured along; operations stay in the order of the calls */
        if (s->capturing && s->capturing != state.capture) return done(cudaErrorStreamCaptureUnsupported);
        s->capturing = state.capture;
        if (s == state.capture->origin) state.stream->joined = std::max(state.stream->joined, state.seen);
        return done(cudaSuccess);
    }
    if (s->capturing) {
        s->capturing->invalid = true;
        return done(cudaErrorStreamCaptureUnsupported);
    }
    if (state.recorded) s->queue.push_back({nullptr, e->state, state.recorded, true});
    return done(cudaSuccess);
}

static cudaError_t check_event(const event_state &state) {
    if (!state.capture || state.capture->ended) return cudaSuccess;
    state.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    LOCKED;
    event_state &state = *e->state;
    if (check_event(state) || forbidden()) return done(cudaErrorStreamCaptureUnsupported);
    if (state.done < state.recorded) flush(state.stream, &state, state.recorded);
    return done(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    LOCKED;
    event_state &state = *e->state;
    if (check_event(state)) return done(cudaErrorStreamCaptureUnsupported);
    if (state.done >= state.recorded) return done(cudaSuccess);
    cudaStreamQuery(state.stream);
    return state.done >= state.recorded ? done(cudaSuccess) : lost ? done(lost) : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    LOCKED;
    const event_state &a = *from->state, &b = *to->state;
    if (!a.recorded || !b.recorded) return done(cudaErrorInvalidResourceHandle);
    if (a.done < a.recorded || b.done < b.recorded) return done(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
    return done(cudaSuccess);
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    LOCKED;
    if (stream_of(s) == &legacy || s->capturing) return wrong(cudaErrorStreamCaptureUnsupported, "a stream that cannot be captured");
    s->capturing = std::make_shared<capture>(capture{s, mode, std::make_shared<operations>(), false, false});
    s->captured = s->joined = 0;
    captures.push_back(s->capturing);
    return done(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    LOCKED;
    const std::shared_ptr<capture> c = stream_of(s)->capturing;
    *graph = nullptr;
    if (!c) return done(cudaErrorInvalidValue);
    if (c->origin != s) return done(cudaErrorStreamCaptureUnmatched);
    cudaError_t e = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    for (dgsim_stream *side : streams) {
        if (side->capturing != c) continue;
        if (side != s && side->captured > side->joined && !e) e = cudaErrorStreamCaptureUnjoined;
        side->capturing = nullptr;
        side->captured = side->joined = 0;
    }
    if (!e) *graph = new dgsim_graph{c->ops};
    captures.erase(std::find(captures.begin(), captures.end(), c));
    c->ended = true;
    return done(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
    LOCKED;
    const auto &c = stream_of(s)->capturing;
    *status = !c ? cudaStreamCaptureStatusNone : c->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return done(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    if (nodes) return wrong(cudaErrorNotSupported, "the nodes of a graph cannot be had, only their number");
    *n = graph->ops->size();
    return done(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    LOCKED;
    *exec = new dgsim_graph_exec{graph->ops}; /* which nobody changes */
    return done(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return done(cudaSuccess); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    LOCKED;
    return push(s, [ops = exec->ops] {
        for (const auto &op : *ops)
            if (!lost) op();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return done(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return done(cudaSuccess);
}
