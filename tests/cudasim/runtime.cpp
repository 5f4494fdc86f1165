/* The CUDA runtime's host interface: memory, copies, streams, events, graphs. Work on a stream is put off
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
dgsim_counts dgsim_count;

namespace {

struct event_state {
    uint64_t recorded = 0, done = 0; /* the number of the last record asked for, and carried out */
    dgsim_stream *stream = nullptr;  /* of the last record */
    std::chrono::steady_clock::time_point time;
    std::shared_ptr<struct capture> capture; /* recorded within it, */
    uint64_t seen = 0;                       /* after so many operations of the stream */
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
struct dgsim_event {
    std::shared_ptr<event_state> state;
};
struct dgsim_graph {
    std::shared_ptr<operations> ops;
};
struct dgsim_graph_exec {
    std::shared_ptr<operations> ops;
};

static std::vector<dgsim_stream *> streams;
static std::vector<std::shared_ptr<capture>> captures;
static dgsim_stream legacy = {{}, nullptr, 0, 0, true};
static std::map<const char *, size_t> registered;

using lock = std::lock_guard<std::recursive_mutex>;

/* --- running --- */

static void run_queue(dgsim_stream *s, const event_state *until, uint64_t number) {
    while (!s->queue.empty() && !(until && until->done >= number)) {
        operation op = std::move(s->queue.front());
        s->queue.pop_front();
        if (op.run) {
            if (!dgsim_lost) op.run();
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

static dgsim_stream *stream_of(cudaStream_t s) {
    return s && s != cudaStreamLegacy ? s : &legacy;
}

/* Calls that wait or allocate may not come while a stream is captured. */
static bool forbidden(void) {
    bool any = false;
    for (const auto &c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed) any = c->invalid = true;
    return any;
}

static cudaError_t unsupported(const char *what) {
    char text[100];
    snprintf(text, sizeof text, "%s while a stream is captured", what);
    return dgsim_wrong(cudaErrorStreamCaptureUnsupported, text);
}

/* counter: what the operation counts as, unless it is captured. */
static cudaError_t push(cudaStream_t which, long *counter, std::function<void()> run) {
    const lock guard(dgsim_mutex);
    dgsim_stream *s = stream_of(which);
    if (dgsim_lost) return dgsim_done(dgsim_lost);
    if (s->capturing) {
        s->capturing->ops->push_back(std::move(run));
        s->captured++;
        return cudaSuccess;
    }
    ++*counter;
    if (s == &legacy) { /* in order with all blocking streams */
        if (forbidden()) return dgsim_done(cudaErrorStreamCaptureImplicit);
        flush_all(true);
    }
    s->queue.push_back({std::move(run), nullptr, 0, false});
    if (s == &legacy) flush(s);
    return dgsim_done(cudaSuccess);
}

cudaError_t dgsim_push(cudaStream_t s, std::function<void()> run) {
    return push(s, &dgsim_count.launches, std::move(run));
}

cudaError_t cudaDeviceSynchronize(void) {
    const lock guard(dgsim_mutex);
    if (forbidden()) return unsupported("waiting for the device");
    dgsim_count.waits++;
    flush_all(false);
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaDeviceReset(void) {
    const lock guard(dgsim_mutex);
    flush_all(false);
    dgsim_lost = cudaSuccess;
    cudaGetLastError();
    return cudaSuccess;
}

/* --- memory --- */

static cudaError_t allocate(void **p, size_t bytes, bool pinned) {
    const lock guard(dgsim_mutex);
    *p = nullptr;
    if (dgsim_device_state()) return dgsim_done(dgsim_device_state());
    if (forbidden()) return unsupported("an allocation");
    if (dgsim_lost || bytes == 0) return dgsim_done(cudaSuccess);
    *p = dgsim_alloc(bytes, pinned);
    return dgsim_done(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t release(void *p, bool pinned) {
    const lock guard(dgsim_mutex);
    if (!p) return dgsim_done(cudaSuccess);
    if (forbidden()) return unsupported("a free");
    flush_all(false);
    if (!dgsim_release(p, pinned))
        return dgsim_wrong(cudaErrorInvalidValue, "free of what was not allocated, or twice");
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    return allocate(p, bytes, false);
}
cudaError_t cudaFree(void *p) {
    return release(p, false);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return allocate(p, bytes, true);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    return allocate(p, bytes, true);
}
cudaError_t cudaFreeHost(void *p) {
    return release(p, true);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    const lock guard(dgsim_mutex);
    *total = dgsim.memory;
    *available = dgsim.memory - std::min(dgsim.memory, dgsim_used());
    return dgsim_done(dgsim_device_state());
}

bool dgsim_registered(const char *p, size_t bytes) {
    auto it = registered.upper_bound(p);
    if (it == registered.begin()) return false;
    --it;
    return p + bytes <= it->first + it->second;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
    const lock guard(dgsim_mutex);
    if (dgsim_registered(static_cast<char *>(p), 1)) return dgsim_done(cudaErrorHostMemoryAlreadyRegistered);
    registered[static_cast<char *>(p)] = bytes;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p) {
    const lock guard(dgsim_mutex);
    flush_all(false);
    return dgsim_done(registered.erase(static_cast<char *>(p)) ? cudaSuccess
                                                               : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p) {
    const lock guard(dgsim_mutex);
    const dgsim_block *b = dgsim_find(p);
    void *address = const_cast<void *>(p);
    const bool pinned = (b && b->pinned) || dgsim_registered(static_cast<const char *>(p), 1);
    *out = {pinned         ? cudaMemoryTypeHost
            : b && b->live ? cudaMemoryTypeDevice
                           : cudaMemoryTypeUnregistered,
            0, address, nullptr};
    if (out->type != cudaMemoryTypeDevice) out->hostPointer = address;
    return dgsim_done(cudaSuccess);
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

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s) {
    const lock guard(dgsim_mutex);
    if (width == 0 || height == 0 || dgsim_lost) return dgsim_done(cudaSuccess);
    if (dpitch < width || spitch < width)
        return dgsim_wrong(cudaErrorInvalidValue, "a copy whose rows overlap");
    const memory_kind to = kind_of(dst, dpitch, width, height), from = kind_of(src, spitch, width, height);
    if (to == INVALID || from == INVALID)
        return dgsim_wrong(cudaErrorInvalidValue, "a copy outside of any allocation");
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to_device != (to == DEVICE) || from_device != (from == DEVICE)) &&
        to != PINNED && from != PINNED)
        return dgsim_wrong(cudaErrorInvalidValue, "a copy in another direction than it says");
    char *out = static_cast<char *>(dst);
    const char *in = static_cast<const char *>(src);
    const auto &capturing = stream_of(s)->capturing;
    if (capturing && (from == PAGEABLE || to == PAGEABLE)) {
        capturing->invalid = true;
        return unsupported("a copy of memory that is not pinned");
    }
    long *counter = to == DEVICE && from != DEVICE ? &dgsim_count.uploads
                    : from == DEVICE && to != DEVICE ? &dgsim_count.downloads : &dgsim_count.launches;
    if (from == PAGEABLE) { /* read before the call returns */
        auto staged = std::make_shared<std::vector<char>>(width * height);
        copy_rows(staged->data(), width, in, spitch, width, height);
        const cudaError_t e =
            push(s, counter, [=] { copy_rows(out, dpitch, staged->data(), width, width, height); });
        if (to == PAGEABLE) flush(stream_of(s));
        return e;
    }
    const cudaError_t e = push(s, counter, [=] { copy_rows(out, dpitch, in, spitch, width, height); });
    if (to == PAGEABLE) flush(stream_of(s)); /* written before the call returns */
    return dgsim_done(e);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, nullptr);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, nullptr);
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int byte, size_t width, size_t height,
                              cudaStream_t s) {
    const lock guard(dgsim_mutex);
    if (width == 0 || height == 0 || dgsim_lost) return dgsim_done(cudaSuccess);
    const memory_kind to = kind_of(dst, pitch, width, height);
    if (to == INVALID || to == PAGEABLE)
        return dgsim_wrong(cudaErrorInvalidValue, "a memset outside of any allocation");
    return dgsim_push(s, [=] {
        for (size_t i = 0; i < height; i++) memset(static_cast<char *>(dst) + i * pitch, byte, width);
    });
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t s) {
    return cudaMemset2DAsync(dst, bytes, byte, bytes, 1, s);
}

cudaError_t cudaMemset(void *dst, int byte, size_t bytes) {
    return cudaMemset2DAsync(dst, bytes, byte, bytes, 1, nullptr);
}

/* --- streams --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    const lock guard(dgsim_mutex);
    *s = nullptr;
    if (dgsim_device_state()) return dgsim_done(dgsim_device_state());
    streams.push_back(new dgsim_stream{{}, nullptr, 0, 0, !(flags & cudaStreamNonBlocking)});
    *s = streams.back();
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *s) {
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int) {
    return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    const lock guard(dgsim_mutex);
    auto it = std::find(streams.begin(), streams.end(), s);
    if (it == streams.end()) return dgsim_wrong(cudaErrorInvalidResourceHandle, "a stream that is none");
    flush_all(false); /* whoever waits for events of this one */
    streams.erase(it);
    delete s;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t which) {
    const lock guard(dgsim_mutex);
    dgsim_stream *s = stream_of(which);
    if (s->capturing || forbidden()) {
        if (s->capturing) s->capturing->invalid = true;
        return unsupported("waiting for a stream");
    }
    dgsim_count.waits++;
    flush(s);
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t which) { /* an operation further each time, so that polling ends */
    const lock guard(dgsim_mutex);
    dgsim_stream *s = stream_of(which);
    if (s->capturing) {
        s->capturing->invalid = true;
        return unsupported("asking for the state of a stream");
    }
    if (s->queue.empty()) return dgsim_done(cudaSuccess);
    std::deque<operation> rest(std::make_move_iterator(s->queue.begin() + 1),
                               std::make_move_iterator(s->queue.end()));
    s->queue.resize(1);
    flush(s);
    s->queue = std::move(rest);
    return dgsim_lost ? dgsim_done(dgsim_lost) : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg) {
    const lock guard(dgsim_mutex);
    return dgsim_push(s, [=] { fn(arg); });
}

/* --- events --- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    const lock guard(dgsim_mutex);
    *e = nullptr;
    if (dgsim_device_state()) return dgsim_done(dgsim_device_state());
    *e = new dgsim_event{std::make_shared<event_state>()};
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    const lock guard(dgsim_mutex);
    delete e;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t which) {
    const lock guard(dgsim_mutex);
    dgsim_stream *s = stream_of(which);
    event_state &state = *e->state;
    state.capture = s->capturing;
    state.stream = s;
    state.seen = s->captured;
    if (s->capturing) return dgsim_done(cudaSuccess);
    s->queue.push_back({nullptr, e->state, ++state.recorded, false});
    if (s == &legacy) flush_all(true);
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t which, cudaEvent_t e, unsigned) {
    const lock guard(dgsim_mutex);
    dgsim_stream *s = stream_of(which);
    const event_state &state = *e->state;
    if (state.capture &&
        !state.capture->ended) { /* the stream is captured along; operations stay in the order of the calls */
        if (s->capturing && s->capturing != state.capture)
            return dgsim_done(cudaErrorStreamCaptureUnsupported);
        s->capturing = state.capture;
        if (s == state.capture->origin) state.stream->joined = std::max(state.stream->joined, state.seen);
        return dgsim_done(cudaSuccess);
    }
    if (s->capturing) {
        s->capturing->invalid = true;
        return dgsim_done(cudaErrorStreamCaptureUnsupported);
    }
    if (state.recorded) s->queue.push_back({nullptr, e->state, state.recorded, true});
    return dgsim_done(cudaSuccess);
}

static cudaError_t check_event(const event_state &state) {
    if (!state.capture || state.capture->ended) return cudaSuccess;
    state.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    const lock guard(dgsim_mutex);
    event_state &state = *e->state;
    if (check_event(state) || forbidden()) return unsupported("waiting for an event");
    dgsim_count.waits++;
    if (state.done < state.recorded) flush(state.stream, &state, state.recorded);
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    const lock guard(dgsim_mutex);
    event_state &state = *e->state;
    if (check_event(state)) return dgsim_done(cudaErrorStreamCaptureUnsupported);
    if (state.done >= state.recorded) return dgsim_done(cudaSuccess);
    cudaStreamQuery(state.stream);
    return state.done >= state.recorded ? dgsim_done(cudaSuccess)
           : dgsim_lost                 ? dgsim_done(dgsim_lost)
                                        : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    const lock guard(dgsim_mutex);
    const event_state &a = *from->state, &b = *to->state;
    if (!a.recorded || !b.recorded) return dgsim_done(cudaErrorInvalidResourceHandle);
    if (a.done < a.recorded || b.done < b.recorded) return dgsim_done(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
    return dgsim_done(cudaSuccess);
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    const lock guard(dgsim_mutex);
    if (stream_of(s) == &legacy || s->capturing)
        return dgsim_wrong(cudaErrorStreamCaptureUnsupported, "a stream that cannot be captured");
    s->capturing = std::make_shared<capture>(capture{s, mode, std::make_shared<operations>(), false, false});
    s->captured = s->joined = 0;
    captures.push_back(s->capturing);
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    const lock guard(dgsim_mutex);
    const std::shared_ptr<capture> c = stream_of(s)->capturing;
    *graph = nullptr;
    if (!c) return dgsim_done(cudaErrorInvalidValue);
    if (c->origin != s) return dgsim_done(cudaErrorStreamCaptureUnmatched);
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
    return dgsim_done(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
    const lock guard(dgsim_mutex);
    const auto &c = stream_of(s)->capturing;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    if (nodes)
        return dgsim_wrong(cudaErrorNotSupported, "the nodes of a graph cannot be had, only their number");
    *n = graph->ops->size();
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    const lock guard(dgsim_mutex);
    *exec = new dgsim_graph_exec{graph->ops}; /* which nobody changes */
    dgsim_count.captured++;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    const lock guard(dgsim_mutex);
    return push(s, &dgsim_count.graphs, [ops = exec->ops] {
        for (const auto &op : *ops)
            if (!dgsim_lost) op();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return dgsim_done(cudaSuccess);
}
