/* The device as it is asked for and described: limits of launches, properties, errors, and the settings of
 * tests. What it does is in runtime.cpp. */
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include "internal.h"

static std::map<const void *, int> dynamic_limit; /* of kernels that have asked for more */
static thread_local cudaError_t last_error;
cudaError_t dgsim_lost;

dgsim_config dgsim = {1, CUDART_VERSION, 9, 0, size_t{4} << 30, 0, 0, DGSIM_FORWARD};

__attribute__((constructor)) static void read_environment(void) {
    const char *v;
    if ((v = getenv("DGSIM_DEVICES"))) dgsim.devices = atoi(v);
    if ((v = getenv("DGSIM_DRIVER"))) dgsim.driver = atoi(v);
    if ((v = getenv("DGSIM_CC"))) sscanf(v, "%d.%d", &dgsim.major, &dgsim.minor);
    if ((v = getenv("DGSIM_MEMORY"))) dgsim.memory = strtoull(v, nullptr, 0);
    if ((v = getenv("DGSIM_CUDNN"))) dgsim.cudnn = atoi(v);
    if ((v = getenv("DGSIM_ORDER")))
        dgsim.order = !strcmp(v, "reverse")    ? DGSIM_REVERSE
                      : !strcmp(v, "shuffled") ? DGSIM_SHUFFLED
                                               : DGSIM_FORWARD;
}

cudaError_t dgsim_done(cudaError_t e) {
    if (dgsim_lost) e = dgsim_lost;
    if (e) last_error = e;
    return e;
}

cudaError_t dgsim_wrong(cudaError_t e, const char *what) {
    fprintf(stderr, "cudasim: %s\n", what);
    return dgsim_done(e);
}

/* --- launches --- */

void dgsim_enqueue(const dgsim_launch_config &c, cudaStream_t s) {
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    const std::shared_ptr<void> args(c.args, c.destroy);
    const unsigned *g = c.grid, *b = c.block;
    const size_t threads = static_cast<size_t>(b[0]) * b[1] * b[2], own = dgsim_static_bytes(c.func);
    const auto raised = dynamic_limit.find(c.func);
    const size_t limit = raised == dynamic_limit.end() ? (48 << 10) - std::min(own, size_t{48} << 10)
                                                       : static_cast<size_t>(raised->second);
    char why[200] = "";
    cudaError_t e = cudaErrorInvalidConfiguration;
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffffu || g[1] > 65535 || g[2] > 65535)
        snprintf(why, sizeof why, "a grid of (%u,%u,%u) blocks", g[0], g[1], g[2]);
    else if (!threads || threads > 1024 || b[0] > 1024 || b[1] > 1024 || b[2] > 64)
        snprintf(why, sizeof why, "a block of (%u,%u,%u) threads", b[0], b[1], b[2]);
    else if (c.shared > limit) {
        snprintf(why, sizeof why, "%zu bytes of dynamic shared memory, where it may have %zu", c.shared,
                 limit);
        e = cudaErrorInvalidValue;
    } else if (own > 48 << 10)
        snprintf(why, sizeof why, "%zu bytes of static shared memory, where a kernel may have 49152", own);
    if (!*why) {
        dgsim_push(s, [c, args] {
            if (dgsim.fail_launch > 0 && --dgsim.fail_launch == 0)
                dgsim_lost = cudaErrorLaunchFailure;
            else
                dgsim_run(c);
        });
        return;
    }
    fprintf(stderr, "cudasim: kernel %s launched at %s:%d: %s\n", c.name, c.file, c.line, why);
    dgsim_done(e);
}

static int shared_optin(void) {
    const int cc = dgsim.major * 10 + dgsim.minor;
    return (cc >= 90 ? 227 : cc == 80 || cc == 87 ? 163 : cc >= 80 ? 99 : cc == 75 ? 64 : 96) << 10;
}

cudaError_t cudaFuncSetAttribute(const void *func, cudaFuncAttribute attr, int value) {
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return dgsim_done(cudaSuccess);
    if (value < 0 ||
        static_cast<size_t>(value) + dgsim_static_bytes(func) > static_cast<size_t>(shared_optin()))
        return dgsim_done(cudaErrorInvalidValue);
    dynamic_limit[func] = value;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *func) {
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    *out = {};
    out->sharedSizeBytes = dgsim_static_bytes(func);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = dgsim.major * 10 + dgsim.minor;
    out->maxDynamicSharedSizeBytes = dynamic_limit.count(func) ? dynamic_limit[func] : 48 << 10;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *func, int threads,
                                                          size_t dynamic) {
    const std::lock_guard<std::recursive_mutex> guard(dgsim_mutex);
    const size_t each = dgsim_static_bytes(func) + dynamic + 1024;
    *blocks = threads > 0 && threads <= 1024
                  ? std::min(2048 / threads, static_cast<int>((shared_optin() + 1024) / each))
                  : 0;
    return dgsim_done(cudaSuccess);
}

/* --- device --- */

cudaError_t dgsim_device_state(void) {
    if (dgsim.driver < CUDART_VERSION / 1000 * 1000)
        return cudaErrorInsufficientDriver; /* minor versions mix */
    return dgsim.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static thread_local int current_device;

cudaError_t cudaGetDeviceCount(int *count) {
    *count = dgsim_device_state() ? 0 : dgsim.devices;
    return dgsim_done(dgsim_device_state());
}

cudaError_t cudaSetDevice(int device) {
    if (dgsim_device_state()) return dgsim_done(dgsim_device_state());
    if (device < 0 || device >= dgsim.devices) return dgsim_done(cudaErrorInvalidDevice);
    current_device = device;
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return dgsim_done(dgsim_device_state());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (dgsim_device_state()) return dgsim_done(dgsim_device_state());
    if (device < 0 || device >= dgsim.devices) return dgsim_done(cudaErrorInvalidDevice);
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
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device) {
    cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e) return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(p.sharedMemPerBlock);
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrIntegrated:
        *value = p.integrated;
        break;
    case cudaDevAttrCanMapHostMemory:
        *value = p.canMapHostMemory;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = p.asyncEngineCount;
        break;
    case cudaDevAttrUnifiedAddressing:
        *value = p.unifiedAddressing;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(p.sharedMemPerMultiprocessor);
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(p.sharedMemPerBlockOptin);
        break;
    default:
        return dgsim_wrong(cudaErrorInvalidValue, "an attribute that is not simulated");
    }
    return dgsim_done(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = dgsim.devices > 0 ? dgsim.driver : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = dgsim_lost ? dgsim_lost : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) {
    return dgsim_lost ? dgsim_lost : last_error;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
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
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
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
