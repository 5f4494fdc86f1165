/* Sampling and top-k, a block a row. What is kept and which noise is drawn follow select.h and gumbel.h, as on the CPU.
 *
 * A threshold is found by radix selection over the order of the floats; masses are added up in fixed point, so that the
 * order of atomic additions changes nothing. The whole row is rarely gone through for it: the k-th largest of the threads'
 * own maxima is a bound that few more than k elements reach, and those go to shared memory. */
#include <math.h>

#include "kernels/cuda/common.cuh"

#include "kernels/gumbel.h"
#include "kernels/select.h"

enum {
    THREADS = 512,
    LIST = 1024,      /* candidates in shared memory: what top_k sorts */
    TOP_P_RANK = 256, /* first guess of how many tokens carry top_p's mass */
    DIGIT = 256
};

typedef unsigned long long u64;

static_assert(LIST >= DG_TOP_K_MAX, "top_k sorts its candidates in shared memory");

/* The block's shared memory. */
typedef struct desk {
    u64 weight[DIGIT];   /* radix selection: of each bucket */
    u64 above, prefix;
    int bucket;
    u64 key[LIST];       /* top_k */
    float value[LIST];   /* sample */
    float most[THREADS]; /* maxima of the threads' elements */
    float part[THREADS / DG_WARP];
    u64 best[THREADS / DG_WARP];
    int count;
} desk;

/* ---- reductions ---- */

/* The row's maximum, to all threads; leaves each thread's own in most. */
DG_DEV float row_max(desk &t, const float *x, int32_t n) {
    float max = -INFINITY;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) max = fmaxf(max, x[i]); /* passes over NaN */
    t.most[threadIdx.x] = max;
    max = dg_warp_max(max);
    if (threadIdx.x % DG_WARP == 0) t.part[threadIdx.x / DG_WARP] = max;
    __syncthreads();
    max = t.part[0];
    for (int i = 1; i < THREADS / DG_WARP; i++) max = fmaxf(max, t.part[i]);
    __syncthreads();
    return max;
}

DG_DEV u64 block_best(desk &t, u64 key) {
    for (int step = DG_WARP / 2; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, key, step);
        key = other > key ? other : key;
    }
    if (threadIdx.x % DG_WARP == 0) t.best[threadIdx.x / DG_WARP] = key;
    __syncthreads();
    key = t.best[0];
    for (int i = 1; i < THREADS / DG_WARP; i++) key = t.best[i] > key ? t.best[i] : key;
    __syncthreads();
    return key;
}

DG_DEV u64 block_total(desk &t, u64 x) {
    for (int step = DG_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % DG_WARP == 0) t.best[threadIdx.x / DG_WARP] = x;
    __syncthreads();
    x = t.best[0];
    for (int i = 1; i < THREADS / DG_WARP; i++) x += t.best[i];
    __syncthreads();
    return x;
}

/* log-softmax of x is z - log_sum. */
DG_DEV float log_sum(desk &t, const float *x, int32_t n, float max) {
    const dg_scale s = dg_scale_row(max);
    float sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS)
        if (x[i] > -INFINITY) sum += expf(dg_scale_logit(x[i], s));
    sum = dg_block_sum(sum, t.part);
    __syncthreads();
    return max > -INFINITY ? static_cast<float>(log(static_cast<double>(sum))) : 0;
}

DG_DEV float log_prob(float x, float max, float log_sum_exp) {
    return x > -INFINITY ? dg_scale_logit(x, dg_scale_row(max)) - log_sum_exp : -INFINITY;
}

/* ---- thresholds ---- */

/* Warp 0 finds the bucket in which the weight from the top reaches limit, the lowest that is not empty if it never does;
 * above = what lies higher. */
DG_DEV void find_bucket(desk &t, u64 limit) {
    enum { OWN = DIGIT / DG_WARP };
    const int lane = threadIdx.x, top = DIGIT - 1 - lane * OWN; /* a lane owns OWN buckets, lane 0 the highest */
    if (lane >= DG_WARP) return;
    u64 own = 0;
    for (int i = 0; i < OWN; i++) own += t.weight[top - i];
    u64 through = own;
    for (int step = 1; step < DG_WARP; step *= 2) {
        const u64 before = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += before;
    }
    u64 above = t.above + through - own;
    const unsigned reached = __ballot_sync(0xffffffffu, above + own >= limit && own > 0),
                   filled = __ballot_sync(0xffffffffu, own > 0);
    const int chosen = reached ? __ffs(static_cast<int>(reached)) - 1 : filled ? 31 - __clz(static_cast<int>(filled)) : 0;
    __syncwarp(); /* all have read what the chosen one is about to write */
    if (lane != chosen) return;
    int last = -1;
    u64 before = above;
    for (int i = 0; i < OWN; i++) {
        const u64 w = t.weight[top - i];
        if (!w) continue;
        last = top - i, before = above;
        if (above + w >= limit) break;
        above += w;
    }
    t.bucket = last < 0 ? 0 : last;
    t.above = before;
}

/* Mass of z in fixed point: e^0 is 2^40, of which 2^24 tokens fit the sum. */
DG_DEV u64 mass_of(float z) { return static_cast<u64>(static_cast<double>(expf(z)) * 1099511627776.0); }

/* The largest value v such that what is >= v weighs at least limit (the smallest value with a weight if all does not). The
 * elements are x[n] on the given scale, without those below its threshold; each weighs its mass, or 1. */
DG_DEV float cut(desk &t, const float *x, int32_t n, dg_scale s, bool by_mass, u64 limit) {
    uint32_t prefix = 0, mask = 0;
    if (threadIdx.x == 0) t.above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGIT; i += THREADS) t.weight[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x; i < n; i += THREADS) {
            const float z = dg_scale_logit(x[i], s);
            if (!(z >= s.threshold)) continue;
            const uint32_t key = dg_order_key(z);
            if ((key & mask) != prefix) continue;
            const u64 weight = by_mass ? mass_of(z) : 1;
            if (weight) atomicAdd(&t.weight[key >> shift & 255], weight);
        }
        __syncthreads();
        find_bucket(t, limit);
        __syncthreads();
        prefix |= static_cast<uint32_t>(t.bucket) << shift;
        mask |= 255u << shift;
    }
    __syncthreads();
    return dg_order_value(prefix);
}

/* A value that at least k elements of the row reach, where so many threads have elements above -inf; else too high, or
 * -inf: whoever uses it counts. */
DG_DEV float bound(desk &t, int32_t n, int32_t k) {
    if (k > THREADS || k > n) return -INFINITY;
    const dg_scale same = {0, 1, -FLT_MAX};
    return cut(t, t.most, THREADS, same, false, static_cast<u64>(k));
}

/* Copies the elements >= low to t.value, of infinite ones nothing; how many there are, also where they do not fit. */
DG_DEV int collect(desk &t, const float *x, int32_t n, float low) {
    if (threadIdx.x == 0) t.count = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        if (!(x[i] >= low && x[i] > -INFINITY)) continue;
        const int at = atomicAdd(&t.count, 1);
        if (at < LIST) t.value[at] = x[i];
    }
    __syncthreads();
    const int count = t.count;
    __syncthreads();
    return count;
}

/* ---- sampling ---- */

typedef struct sample_args {
    int32_t *id;
    float *logp;
    const float *x;
    int64_t stride;
    const int32_t *pos;
    int32_t n;
    dg_sampling s;
    double top_p_share;
    float min_p_threshold; /* -FLT_MAX: off */
} sample_args;

DG_DEV float top_k_threshold(desk &t, const sample_args &a, const float *x, dg_scale s) {
    const int32_t k = a.s.top_k;
    if (k <= 0 || k >= a.n) return s.threshold;
    const int count = collect(t, x, a.n, bound(t, a.n, k));
    const bool listed = count >= k && count <= LIST;
    return cut(t, listed ? t.value : x, listed ? count : a.n, s, false, static_cast<u64>(k));
}

DG_DEV u64 total_mass(desk &t, const float *x, int32_t n, dg_scale s) {
    u64 sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const float z = dg_scale_logit(x[i], s);
        if (z >= s.threshold) sum += mass_of(z);
    }
    return block_total(t, sum);
}

DG_DEV float top_p_threshold(desk &t, const sample_args &a, const float *x, dg_scale s) {
    if (a.s.top_p <= 0 || a.s.top_p >= 1) return s.threshold;
    const double share = a.top_p_share * static_cast<double>(total_mass(t, x, a.n, s));
    const u64 limit = share < 1 ? 1 : static_cast<u64>(ceil(share));
    const int count = collect(t, x, a.n, bound(t, a.n, TOP_P_RANK));
    const bool listed = count <= LIST && total_mass(t, t.value, count, s) >= limit;
    return cut(t, listed ? t.value : x, listed ? count : a.n, s, true, limit);
}

/* The kept token with the largest z + noise. A thread takes four neighbours, which share a counter of the noise. */
DG_DEV int32_t gumbel_max(desk &t, const sample_args &a, const float *x, int32_t pos, dg_scale s) {
    u64 best = 0;
    for (int32_t first = 4 * threadIdx.x; first < a.n; first += 4 * THREADS) {
        float z[4];
        bool any = false;
        DG_UNROLL
        for (int e = 0; e < 4; e++) {
            z[e] = first + e < a.n ? dg_scale_logit(x[first + e], s) : -INFINITY;
            any |= z[e] >= s.threshold;
        }
        if (!any) continue;
        uint32_t word[4];
        dg_philox(a.s.seed, static_cast<uint32_t>(pos), static_cast<uint32_t>(first / 4), word);
        DG_UNROLL
        for (int e = 0; e < 4; e++) {
            if (!(z[e] >= s.threshold)) continue;
            const u64 key = dg_rank_key(z[e] + dg_gumbel(word[e]), first + e);
            best = key > best ? key : best;
        }
    }
    return dg_rank_id(block_best(t, best));
}

DG_DEV int32_t greedy(desk &t, const float *x, int32_t n) {
    u64 best = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const u64 key = dg_rank_key(x[i], i);
        best = key > best ? key : best;
    }
    return dg_rank_id(block_best(t, best));
}

static __global__ void __launch_bounds__(THREADS, 1) sample_kernel(sample_args a) {
    __shared__ desk t;
    const int32_t row = blockIdx.x;
    const float *x = a.x + row * a.stride;
    const float max = row_max(t, x, a.n);
    int32_t id;
    if (a.s.temperature <= 0 || max == -INFINITY) {
        id = greedy(t, x, a.n);
    } else {
        dg_scale s = dg_scale_of(max, a.s.temperature);
        s.threshold = top_k_threshold(t, a, x, s);
        s.threshold = top_p_threshold(t, a, x, s);
        s.threshold = fmaxf(s.threshold, a.min_p_threshold);
        id = gumbel_max(t, a, x, a.pos[row], s);
    }
    if (threadIdx.x == 0) a.id[row] = id;
    if (!a.logp) return;
    const float sum = log_sum(t, x, a.n, max);
    if (threadIdx.x == 0) a.logp[row] = log_prob(x[id], max, sum);
}

void dg_cuda_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s, int32_t *best,
                    int32_t k) {
    dg_cuda *c = logits.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    sample_args a;
    a.id = id, a.logp = logp, a.x = static_cast<const float *>(logits.data), a.stride = logits.stride;
    a.pos = pos, a.n = logits.cols, a.s = *s;
    a.top_p_share = dg_top_p_share(s->top_p);
    a.min_p_threshold = s->min_p > 0 ? dg_min_p_threshold(s->min_p) : -FLT_MAX;
    DG_LAUNCH(sample_kernel, dim3(logits.rows), dim3(THREADS), 0, c->stream, a);
    dg_cuda_end(c, "sample");
    if (k) dg_cuda_top_k(be, best, NULL, logits, k);
}

/* ---- top-k ---- */

typedef struct top_k_args {
    int32_t *id;
    float *logp;
    const float *x;
    int64_t stride;
    int32_t n, k;
} top_k_args;

/* The k-th largest rank key of the row: eight digits, which tell all keys apart. */
DG_DEV u64 kth_key(desk &t, const float *x, int32_t n, int32_t k) {
    u64 prefix = 0, mask = 0;
    if (threadIdx.x == 0) t.above = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGIT; i += THREADS) t.weight[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x; i < n; i += THREADS) {
            const u64 key = dg_rank_key(x[i], i);
            if ((key & mask) == prefix) atomicAdd(&t.weight[key >> shift & 255], static_cast<u64>(1));
        }
        __syncthreads();
        find_bucket(t, static_cast<u64>(k));
        __syncthreads();
        prefix |= static_cast<u64>(t.bucket) << shift;
        mask |= static_cast<u64>(255) << shift;
    }
    __syncthreads();
    return prefix;
}

/* Puts the keys >= low into t.key; how many there are, also where they do not fit. */
DG_DEV int collect_keys(desk &t, const float *x, int32_t n, u64 low) {
    if (threadIdx.x == 0) t.count = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const u64 key = dg_rank_key(x[i], i);
        if (key < low) continue;
        const int at = atomicAdd(&t.count, 1);
        if (at < LIST) t.key[at] = key;
    }
    __syncthreads();
    const int count = t.count;
    __syncthreads();
    return count;
}

/* Sorts t.key[0..count), the largest first: Batcher's bitonic network over the next power of two. */
DG_DEV void sort_keys(desk &t, int count) {
    int n = 1;
    while (n < count) n *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < n; i += THREADS) t.key[i] = 0;
    __syncthreads();
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < n; i += THREADS) {
                const int other = i ^ step;
                if (other < i) continue;
                const u64 a = t.key[i], b = t.key[other];
                if (((i & size) == 0) == (a < b)) t.key[i] = b, t.key[other] = a;
            }
            __syncthreads();
        }
}

static __global__ void __launch_bounds__(THREADS, 1) top_k_kernel(top_k_args a) {
    __shared__ desk t;
    const int64_t row = blockIdx.x;
    const float *x = a.x + row * a.stride;
    const float max = row_max(t, x, a.n), low = bound(t, a.n, a.k);
    int count = low > -INFINITY ? collect_keys(t, x, a.n, static_cast<u64>(dg_order_key(low)) << 32) : 0;
    if (count < a.k || count > LIST) count = collect_keys(t, x, a.n, kth_key(t, x, a.n, a.k));
    sort_keys(t, count);
    const float sum = a.logp ? log_sum(t, x, a.n, max) : 0;
    for (int32_t i = threadIdx.x; i < a.k; i += THREADS) {
        const int32_t id = dg_rank_id(t.key[i]);
        if (a.id) a.id[row * a.k + i] = id;
        if (a.logp) a.logp[row * a.k + i] = log_prob(x[id], max, sum);
    }
}

void dg_cuda_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k) {
    dg_cuda *c = logits.rows ? dg_cuda_begin(be) : NULL;
    if (!c) return;
    top_k_args a;
    a.id = id, a.logp = logp, a.x = static_cast<const float *>(logits.data), a.stride = logits.stride;
    a.n = logits.cols, a.k = k;
    DG_LAUNCH(top_k_kernel, dim3(logits.rows), dim3(THREADS), 0, c->stream, a);
    dg_cuda_end(c, "top_k");
}
