/* Sampling and top-k. Every filter of dg_sampling keeps the tokens above some value, so a row's kept set is
 * one threshold; it is found from the maxima of small groups, without sorting or copying the row.
 *
 * z is a logit over the temperature. Vectorised passes are in loops_select.h; what is here touches the few
 * groups that can matter. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "kernels/gumbel.h"

#include "kernels/cpu/loops_math.h"

enum { LOWEST_RANK = 256 }; /* first guess of how many tokens carry top_p's mass */

static float scale_logit(float x, float inv_t) {
    const float z = x * inv_t;
    return z > FLT_MAX ? FLT_MAX : z;
}

static int32_t group_count(int32_t n) { return (n + DG_CHUNK - 1) / DG_CHUNK * DG_LANES; }

/* Unsigned integers in the order of the floats; both zeros are one. */
static uint32_t order_key(float x) {
    const uint32_t bits = float_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float order_value(uint32_t key) { return bits_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

/* The largest value v such that the elements >= v weigh at least `limit` together (the smallest element if
 * all do not). An element weighs 1, or e^(z - z_max) when by_mass. Radix select: a byte of the key a pass. */
static float cut(const float *z, int32_t n, double limit, bool by_mass, float z_max) {
    uint32_t prefix = 0, mask = 0;
    double above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double weight[256] = {0};
        int32_t count[256] = {0};
        for (int32_t i = 0; i < n; i++) {
            const uint32_t key = order_key(z[i]);
            if ((key & mask) != prefix) continue;
            weight[key >> shift & 255] += by_mass ? (double)exp_f32(z[i] - z_max) : 1;
            count[key >> shift & 255]++;
        }
        int b = 255, last = -1;
        for (; b >= 0; b--) {
            if (!count[b]) continue;
            last = b;
            if (above + weight[b] >= limit) break;
            above += weight[b];
        }
        if (b < 0) above -= weight[last]; /* not reached: the lowest bucket, whatever is left of it */
        prefix |= (uint32_t)last << shift;
        mask |= 255u << shift;
    }
    return order_value(prefix);
}

/* Copies the z >= threshold of a row to dst (in no useful order), skipping groups without one. */
static int32_t collect(const float *x, int32_t n, float inv_t, const float *group, float threshold, float *dst) {
    int32_t count = 0;
    for (int32_t g = 0; g < group_count(n); g++) {
        if (!(scale_logit(group[g], inv_t) >= threshold)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const float z = scale_logit(x[i], inv_t);
            if (z >= threshold) dst[count++] = z;
        }
    }
    return count;
}

/* A bound that at least k elements reach: the k-th largest group maximum. */
static float bound(const float *group, int32_t n, int32_t k, float inv_t) {
    if (k > group_count(n)) return -FLT_MAX;
    const float z = scale_logit(cut(group, group_count(n), k, false, 0), inv_t);
    return z > -FLT_MAX ? z : -FLT_MAX;
}

static float top_k_threshold(const float *x, int32_t n, int32_t k, float inv_t, const dg_cpu_scratch *scratch) {
    if (k <= 0 || k >= n) return -FLT_MAX;
    const int32_t count = collect(x, n, inv_t, scratch->group, bound(scratch->group, n, k, inv_t), scratch->value);
    return count < k ? -FLT_MAX : cut(scratch->value, count, k, false, 0);
}

static float top_p_threshold(const dg_isa *isa, const float *x, int32_t n, float top_p, float inv_t, float z_max,
                             float threshold, const dg_cpu_scratch *scratch) {
    if (top_p <= 0 || top_p >= 1) return threshold;
    const double sum = isa->sum_exp(x, n, inv_t, z_max, threshold);
    /* A token stays while the tokens above it weigh less than top_p. The slack is what rounding top_p to f32
     * costs, so that a token exactly on the edge is dropped, as "cumulative <= 1 - top_p" says. */
    const double limit = ((double)top_p - 1e-6) * sum;
    for (int32_t rank = LOWEST_RANK;; rank *= 8) {
        float low = rank < group_count(n) ? bound(scratch->group, n, rank, inv_t) : threshold;
        if (low < threshold) low = threshold;
        const int32_t count = collect(x, n, inv_t, scratch->group, low, scratch->value);
        double mass = 0;
        for (int32_t i = 0; i < count; i++) mass += (double)exp_f32(scratch->value[i] - z_max);
        if (mass >= limit || low == threshold) return cut(scratch->value, count, limit, true, z_max);
    }
}

float dg_cpu_threshold(const dg_isa *isa, const float *logits, int32_t n, const dg_sampling *s,
                       const dg_cpu_scratch *scratch, float *inv_t, float *z_max) {
    *inv_t = 1.0f / s->temperature;
    if (*inv_t > FLT_MAX) *inv_t = FLT_MAX;
    *z_max = scale_logit(isa->row_max(logits, n, scratch->group), *inv_t);
    float threshold = top_k_threshold(logits, n, s->top_k, *inv_t, scratch);
    threshold = top_p_threshold(isa, logits, n, s->top_p, *inv_t, *z_max, threshold, scratch);
    if (s->min_p > 0) {
        const float low = (float)((double)*z_max + log((double)s->min_p));
        if (low > threshold) threshold = low;
    }
    return threshold;
}

/* The first element equal to the row's maximum; 0 when there is none but -inf. */
static int32_t find_max(const float *x, int32_t n, const float *group, float max) {
    for (int32_t base = 0; base < n; base += DG_CHUNK, group += DG_LANES) {
        bool here = false;
        for (int l = 0; l < DG_LANES; l++) here |= group[l] == max;
        const int32_t end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base; here && i < end; i++)
            if (x[i] == max) return i;
    }
    return 0;
}

/* gumbel_max of the table, for a kept set that is small: the same noise, token by token. */
static int32_t gumbel_few(const float *x, int32_t n, float inv_t, float threshold, const float *group, uint64_t seed,
                          uint32_t pos) {
    float best = -INFINITY;
    int32_t best_id = 0;
    for (int32_t g = 0; g < group_count(n); g++) {
        if (!(scale_logit(group[g], inv_t) >= threshold)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const float z = scale_logit(x[i], inv_t);
            if (!(z >= threshold)) continue;
            const float noisy = z + dg_token_noise(seed, pos, (uint32_t)i);
            if (noisy > best || (noisy == best && i < best_id)) best = noisy, best_id = i;
        }
    }
    return best_id;
}

static int32_t sample_row(const dg_isa *isa, const float *x, int32_t n, int32_t pos, const dg_sampling *s,
                          const dg_cpu_scratch *scratch, float *max) {
    *max = isa->row_max(x, n, scratch->group);
    float inv_t, z_max, threshold;
    if (s->temperature <= 0) return find_max(x, n, scratch->group, *max);
    threshold = dg_cpu_threshold(isa, x, n, s, scratch, &inv_t, &z_max);
    if (!(z_max >= -FLT_MAX)) return find_max(x, n, scratch->group, *max);
    int32_t groups = 0;
    for (int32_t g = 0; g < group_count(n); g++) groups += scale_logit(scratch->group[g], inv_t) >= threshold;
    if (groups > group_count(n) / 8) return isa->gumbel_max(x, n, inv_t, threshold, s->seed, (uint32_t)pos);
    return gumbel_few(x, n, inv_t, threshold, scratch->group, s->seed, (uint32_t)pos);
}

/* log-softmax of x[id] is x[id] - max - log_sum. */
static float log_sum(const dg_isa *isa, const float *x, int32_t n, float max) {
    return (float)log(isa->sum_exp(x, n, 1, max, -FLT_MAX));
}

static float log_prob(float x, float max, float log_sum_exp) {
    return x > -INFINITY ? scale_logit(x, 1) - max - log_sum_exp : -INFINITY; /* NaN: -inf */
}

typedef struct select_job {
    dg_cpu *cpu;
    int32_t *id;
    float *logp;
    dg_mat logits;
    const int32_t *pos;
    const dg_sampling *s;
    int32_t k;
} select_job;

static void sample_part(void *arg, int32_t worker, int32_t n_worker) {
    const select_job *job = arg;
    const dg_isa *isa = job->cpu->isa;
    const int32_t n = job->logits.cols;
    int32_t r, end;
    for (dg_split(job->logits.rows, 1, worker, n_worker, &r, &end); r < end; r++) {
        const float *x = dg_mat_row(&job->logits, r);
        float max;
        const int32_t id = sample_row(isa, x, n, job->pos[r], job->s, &job->cpu->scratch[worker], &max);
        job->id[r] = id;
        max = scale_logit(max, 1);
        if (job->logp) job->logp[r] = log_prob(x[id], max, log_sum(isa, x, n, max));
    }
}

void dg_cpu_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos,
                   const dg_sampling *s) {
    select_job job = {.cpu = dg_cpu_of(be), .id = id, .logp = logp, .logits = logits, .pos = pos, .s = s};
    assert(logits.cols <= job.cpu->max_vocab);
    dg_cpu_run(job.cpu, (int64_t)logits.rows * logits.cols / 4, sample_part, &job);
}

/* ---- top-k ---- */

/* Larger value first, then lower id: as one integer. */
static uint64_t rank_key(float x, int32_t id) {
    return (uint64_t)order_key(x) << 32 | (UINT32_MAX - (uint32_t)id);
}

/* heap[0] is the least of heap[0..n): moves it down to where it belongs. */
static void sift(uint64_t *heap, int32_t n, int32_t at) {
    const uint64_t key = heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= key) break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

/* heap[0..k) = the k best of the row, best first. */
static void best_k(const float *x, int32_t n, int32_t k, const float *group, float low, uint64_t *heap) {
    int32_t size = 0;
    for (int32_t g = 0; g < group_count(n); g++) {
        if (!(group[g] >= low)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const uint64_t key = rank_key(x[i] > -INFINITY ? x[i] : -INFINITY, i);
            if (size < k) {
                heap[size++] = key;
                for (int32_t at = size == k ? k / 2 - 1 : -1; at >= 0; at--) sift(heap, k, at);
            } else if (key > heap[0]) {
                heap[0] = key;
                sift(heap, k, 0);
            }
        }
    }
    for (int32_t left = k - 1; left > 0; left--) { /* the least goes last */
        const uint64_t least = heap[0];
        heap[0] = heap[left];
        heap[left] = least;
        sift(heap, left, 0);
    }
}

static void top_k_part(void *arg, int32_t worker, int32_t n_worker) {
    const select_job *job = arg;
    const dg_isa *isa = job->cpu->isa;
    const dg_cpu_scratch *scratch = &job->cpu->scratch[worker];
    const int32_t n = job->logits.cols, k = job->k, n_group = group_count(n);
    int32_t r, end;
    for (dg_split(job->logits.rows, 1, worker, n_worker, &r, &end); r < end; r++) {
        const float *x = dg_mat_row(&job->logits, r);
        const float max = scale_logit(isa->row_max(x, n, scratch->group), 1);
        const float low = k <= n_group ? cut(scratch->group, n_group, k, false, 0) : -INFINITY;
        best_k(x, n, k, scratch->group, low, scratch->heap);
        const float sum = job->logp ? log_sum(isa, x, n, max) : 0;
        for (int32_t i = 0; i < k; i++) {
            const int32_t id = (int32_t)(UINT32_MAX - (uint32_t)scratch->heap[i]);
            if (job->id) job->id[(size_t)r * (size_t)k + (size_t)i] = id;
            if (job->logp) job->logp[(size_t)r * (size_t)k + (size_t)i] = log_prob(x[id], max, sum);
        }
    }
}

void dg_cpu_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k) {
    select_job job = {.cpu = dg_cpu_of(be), .id = id, .logp = logp, .logits = logits, .k = k};
    assert(logits.cols <= job.cpu->max_vocab);
    dg_cpu_run(job.cpu, (int64_t)logits.rows * logits.cols / 4, top_k_part, &job);
}
