/* Opening and closing of the CUDA backend, its memory, and its op table.
 *
 * Uploads pass through pinned memory: small ones through a ring, so that the call returns at once and the caller's
 * buffer is free, long ones in pieces of which one is filled while another travels. A download waits for its data; small
 * ones come through the ring too. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/common.cuh"

/* ---- errors ---- */

bool dg_cuda_ok(dg_cuda *c, cudaError_t status, const char *call, const char *what) {
    if (status == cudaSuccess) return true;
    if (!c->failed)
        snprintf(c->error, sizeof c->error, "%s: %s failed: %s (%s, %d)", what, call, cudaGetErrorString(status),
                 cudaGetErrorName(status), static_cast<int>(status));
    c->failed = true;
    return false;
}

dg_cuda *dg_cuda_begin(dg_backend *be) {
    dg_cuda *c = dg_cuda_of(be);
    pthread_mutex_lock(&c->lock);
    if (!c->failed && dg_cuda_ok(c, cudaSetDevice(c->device), "cudaSetDevice", "an operation")) return c;
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void dg_cuda_end(dg_cuda *c, const char *what) {
    dg_cuda_ok(c, cudaGetLastError(), "launch", what);
    pthread_mutex_unlock(&c->lock);
}

/* ---- memory ---- */

static void *cuda_alloc(dg_backend *be, size_t bytes) {
    dg_cuda *c = dg_cuda_begin(be);
    if (!c) return NULL;
    void *p = NULL;
    const cudaError_t status = cudaMalloc(&p, bytes ? bytes : 1);
    cudaGetLastError(); /* running out of memory is the caller's to report, and no error of the device */
    if (status != cudaSuccess) p = NULL;
    if (status != cudaErrorMemoryAllocation) dg_cuda_ok(c, status, "cudaMalloc", "allocating device memory");
    pthread_mutex_unlock(&c->lock);
    return p;
}

static void cuda_free(dg_backend *be, void *p) {
    dg_cuda *c = dg_cuda_of(be);
    if (!p) return;
    pthread_mutex_lock(&c->lock); /* also of a failed backend */
    cudaSetDevice(c->device);
    dg_cuda_forget_passes(c);
    dg_cuda_ok(c, cudaFree(p), "cudaFree", "freeing device memory");
    pthread_mutex_unlock(&c->lock);
}

/* Waits for all that was launched. */
static bool wait(dg_cuda *c, const char *what) {
    if (!dg_cuda_ok(c, cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", what)) return false;
    c->ring_at = 0; /* nothing is under way */
    return true;
}

/* A place in the ring; what lay there has left it. */
static char *ring_take(dg_cuda *c, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (c->ring_at + bytes > DG_RING_BYTES && !wait(c, "upload")) return NULL;
    char *place = c->ring + c->ring_at;
    c->ring_at += bytes;
    return place;
}

void dg_cuda_upload_long(dg_cuda *c, char *dst, const char *src, size_t bytes) {
    for (int turn = 0; bytes > 0; turn ^= 1) {
        const size_t most = DG_CHUNK_BYTES, n = bytes < most ? bytes : most;
        if (!dg_cuda_ok(c, cudaEventSynchronize(c->chunk_free[turn]), "cudaEventSynchronize", "upload")) return;
        memcpy(c->chunk[turn], src, n);
        if (!dg_cuda_ok(c, cudaMemcpyAsync(dst, c->chunk[turn], n, cudaMemcpyHostToDevice, c->stream), "cudaMemcpyAsync",
                        "upload"))
            return;
        if (!dg_cuda_ok(c, cudaEventRecord(c->chunk_free[turn], c->stream), "cudaEventRecord", "upload")) return;
        dst += n, src += n, bytes -= n;
    }
}

static void cuda_upload(dg_backend *be, void *dst, const void *src, size_t bytes) {
    dg_cuda *c = bytes ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    if (bytes > DG_RING_UPLOAD) {
        dg_cuda_upload_long(c, static_cast<char *>(dst), static_cast<const char *>(src), bytes);
    } else {
        char *place = ring_take(c, bytes);
        if (place) {
            memcpy(place, src, bytes);
            dg_cuda_ok(c, cudaMemcpyAsync(dst, place, bytes, cudaMemcpyHostToDevice, c->stream), "cudaMemcpyAsync", "upload");
        }
    }
    pthread_mutex_unlock(&c->lock);
}

static void cuda_download(dg_backend *be, void *dst, const void *src, size_t bytes) {
    dg_cuda *c = bytes ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    char *place = bytes <= DG_RING_UPLOAD ? ring_take(c, bytes) : static_cast<char *>(dst);
    if (place && dg_cuda_ok(c, cudaMemcpyAsync(place, src, bytes, cudaMemcpyDeviceToHost, c->stream), "cudaMemcpyAsync", "download") &&
        wait(c, "download") && place != dst)
        memcpy(dst, place, bytes);
    pthread_mutex_unlock(&c->lock);
}

static bool cuda_sync(dg_backend *be) {
    dg_cuda *c = dg_cuda_begin(be);
    if (!c) return false;
    const bool ok = wait(c, "waiting for operations");
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* ---- opening ---- */

static __global__ void probe_kernel(int *word) { *word = 1; }

/* Why there is no device, in words that say what to do. */
static const char *no_device(cudaError_t status) {
    static __thread char text[200];
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0 && status == cudaErrorInsufficientDriver)
        snprintf(text, sizeof text, "no NVIDIA driver was found: is there an NVIDIA GPU, and its driver installed?");
    else if (status == cudaErrorInsufficientDriver)
        snprintf(text, sizeof text, "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d: update the driver",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (status == cudaErrorNoDevice)
        snprintf(text, sizeof text, "no CUDA device was found: is there an NVIDIA GPU, and is it visible to this process?");
    else
        snprintf(text, sizeof text, "CUDA does not start: %s (%s)", cudaGetErrorString(status), cudaGetErrorName(status));
    return text;
}

static const char *no_such_device(int32_t device, int count) {
    static __thread char text[100];
    snprintf(text, sizeof text, "there is no device cuda:%d: the last one here is cuda:%d", device, count - 1);
    return text;
}

static const char *no_code(const cudaDeviceProp *p) {
    static __thread char text[200];
    snprintf(text, sizeof text, "%.80s has compute capability %d.%d, for which this build holds no code: build it with "
             "SMS=%d%d", p->name, p->major, p->minor, p->major, p->minor);
    return text;
}

static size_t cuda_bytes(const dg_backend_options *) { return sizeof(dg_cuda); }

enum { PARTS = 16 << 20 }; /* floats for states of spans */

/* Activations for packed weights. */
static size_t cells_of(int32_t max_cols) { return DG_PACKED_ROWS * static_cast<size_t>(max_cols > 0 ? max_cols : 1); }

/* What take_resources takes. */
static size_t cuda_scratch(const dg_backend_options *opt) {
    const size_t cells = cells_of(opt->max_cols);
    return PARTS * sizeof(float) + cells * sizeof(uint32_t) + cells / 32 * sizeof(float) + dg_cuda_lt_bytes(opt->max_cols) +
           DG_RING_BYTES + 2 * DG_CHUNK_BYTES;
}

/* Scratch, pinned memory, events. */
static bool take_resources(dg_cuda *c, const char *what) {
    const size_t cells = cells_of(c->max_cols);
    c->n_part = PARTS;
    bool ok = dg_cuda_ok(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", what) &&
              dg_cuda_ok(c, cudaMalloc(reinterpret_cast<void **>(&c->parts), PARTS * sizeof(float)), "cudaMalloc", what) &&
              dg_cuda_ok(c, cudaMalloc(reinterpret_cast<void **>(&c->words), cells * sizeof *c->words), "cudaMalloc", what) &&
              dg_cuda_ok(c, cudaMalloc(reinterpret_cast<void **>(&c->sums), cells / 32 * sizeof *c->sums), "cudaMalloc", what) &&
              dg_cuda_ok(c, cudaMallocHost(reinterpret_cast<void **>(&c->ring), DG_RING_BYTES), "cudaMallocHost", what);
    ok = ok && dg_cuda_lt_open(c, what);
    for (int i = 0; i < 2 && ok; i++)
        ok = dg_cuda_ok(c, cudaMallocHost(reinterpret_cast<void **>(&c->chunk[i]), DG_CHUNK_BYTES), "cudaMallocHost", what) &&
             dg_cuda_ok(c, cudaEventCreateWithFlags(&c->chunk_free[i], cudaEventDisableTiming), "cudaEventCreate", what);
    return ok;
}

static void give_back(dg_cuda *c) {
    cudaSetDevice(c->device);
    dg_cuda_forget_passes(c);
    if (c->stream) cudaStreamSynchronize(c->stream);
    for (int i = 0; i < 2; i++) {
        if (c->chunk_free[i]) cudaEventDestroy(c->chunk_free[i]);
        if (c->chunk[i]) cudaFreeHost(c->chunk[i]);
    }
    if (c->ring) cudaFreeHost(c->ring);
    if (c->parts) cudaFree(c->parts);
    if (c->words) cudaFree(c->words);
    if (c->sums) cudaFree(c->sums);
    dg_cuda_lt_close(c);
    dg_sdpa_close(&c->sdpa);
    if (c->stream) cudaStreamDestroy(c->stream);
    cudaGetLastError();
}

/* The device answers, and runs this build's code. */
static const char *try_device(dg_cuda *c) {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) return no_device(status == cudaSuccess ? cudaErrorNoDevice : status);
    if (c->device >= count) return no_such_device(c->device, count);
    cudaDeviceProp p;
    status = cudaSetDevice(c->device);
    if (status == cudaSuccess) status = cudaGetDeviceProperties(&p, c->device);
    if (status != cudaSuccess) return no_device(status);
    if (p.major < 8) return no_code(&p);
    c->n_processor = p.multiProcessorCount;
    c->max_shared = p.sharedMemPerBlockOptin;
    snprintf(c->text, sizeof c->text, "cuda:%d, %.80s, sm_%d%d, %.1f GiB", c->device, p.name, p.major, p.minor,
             static_cast<double>(p.totalGlobalMem) / (1 << 30));
    if (!take_resources(c, "opening the backend")) return c->error;
    DG_LAUNCH(probe_kernel, dim3(1), dim3(1), 0, c->stream, reinterpret_cast<int *>(c->parts));
    status = cudaGetLastError();
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) return no_code(&p);
    if (status == cudaSuccess) status = cudaStreamSynchronize(c->stream);
    return status == cudaSuccess ? NULL : no_device(status);
}

static bool init_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t how;
    if (pthread_mutexattr_init(&how) != 0) return false;
    pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    const bool ok = pthread_mutex_init(lock, &how) == 0;
    pthread_mutexattr_destroy(&how);
    return ok;
}

static void *cuda_open(void *mem, const dg_backend_options *opt, const char **why) {
    static __thread char text[256];
    dg_cuda *c = static_cast<dg_cuda *>(mem);
    memset(c, 0, sizeof *c);
    c->device = opt->device;
    c->max_vocab = opt->max_vocab;
    c->max_cols = opt->max_cols;
    c->precision = opt->precision;
    const char *reason = try_device(c);
    if (!reason && init_lock(&c->lock)) return c;
    snprintf(text, sizeof text, "%s", reason ? reason : "no lock to be had"); /* c's own text goes away with it */
    *why = text;
    give_back(c);
    return NULL;
}

static void cuda_close(void *ctx) {
    dg_cuda *c = static_cast<dg_cuda *>(ctx);
    give_back(c);
    pthread_mutex_destroy(&c->lock);
}

static const char *cuda_error(const void *ctx) { return static_cast<const dg_cuda *>(ctx)->error; }
static const char *cuda_describe(const void *ctx) { return static_cast<const dg_cuda *>(ctx)->text; }

static const dg_ops ops = {
    .name = "cuda",
    .host_memory = false,
    .has_loose = true,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy2d = dg_cuda_copy2d,
    .zero = dg_cuda_zero,
    .sync = cuda_sync,
    .pass_begin = dg_cuda_pass_begin,
    .pass_end = dg_cuda_pass_end,
    .pass_rows = dg_cuda_pass_rows,
    .embed = dg_cuda_embed,
    .rms_norm = dg_cuda_rms_norm,
    .pack_bytes = dg_cuda_pack_bytes,
    .pack = dg_cuda_pack,
    .matmul = dg_cuda_matmul,
    .rope_table = dg_cuda_rope_table,
    .qkv = dg_cuda_qkv,
    .attention = dg_cuda_attention,
    .kv_move = dg_cuda_kv_move,
    .kv_get = dg_cuda_kv_get,
    .swiglu = dg_cuda_swiglu,
    .rows_put = dg_cuda_rows_put,
    .rows_gather = dg_cuda_rows_gather,
    .top_k = dg_cuda_top_k,
    .sample = dg_cuda_sample,
    .succ_update = dg_cuda_succ_update,
    .succ_expand = dg_cuda_succ_expand,
};

extern "C" const dg_backend_driver dg_cuda_driver = {
    .name = "cuda",
    .has_devices = true,
    .ops = &ops,
    .bytes = cuda_bytes,
    .scratch = cuda_scratch,
    .open = cuda_open,
    .close = cuda_close,
    .error = cuda_error,
    .describe = cuda_describe,
};
