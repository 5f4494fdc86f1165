/* Sampling and top-k. Every filter of dg_sampling keeps the tokens above some value, so a row's kept set is
 * one threshold; it is found from the maxima of small groups, without sorting or copying the row.
 *
 * z is a logit over the temperature, less the best one (dg_scale). Vectorised passes are in loops_select.h;
 * what is here touches the few groups that can matter. */
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/gumbel.h"

enum {
    FIRST_RANK = 256, /* first guess of how many tokens carry top_p's mass */
    FEW = 16,         /* so many best ones are found without a bound */
};

static int32_t group_count(int32_t n) { return (n + DG_CHUNK - 1) / DG_CHUNK * DG_LANES; }

/* The largest value v such that the elements >= v weigh at least `limit` together (the smallest element if
 * all do not). Element i weighs mass[i], or 1 where mass is NULL. Radix select: a byte of the key a pass. */
static float cut(const float *z, const float *mass, int32_t n, double limit) {
    uint32_t prefix = 0, mask = 0;
    double above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double weight[256] = {0};
        int32_t count[256] = {0};
        for (int32_t i = 0; i < n; i++) {
            const uint32_t key = dg_order_key(z[i]);
            if ((key & mask) != prefix) continue;
            weight[key >> shift & 255] += mass ? (double)mass[i] : 1;
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
    return dg_order_value(prefix);
}

/* Copies the z >= threshold of a row to dst (in no useful order), skipping groups without one. */
static int32_t collect(const float *x, int32_t n, dg_scale s, const float *group, float *dst) {
    int32_t count = 0;
    for (int32_t g = 0; g < group_count(n); g++) {
        if (!(dg_scale_logit(group[g], s) >= s.threshold)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const float z = dg_scale_logit(x[i], s);
            if (z >= s.threshold) dst[count++] = z;
        }
    }
    return count;
}

/* s with a threshold that at least k elements reach, the k-th largest group maximum; no lower than before. */
static dg_scale bounded(const float *group, int32_t n, int32_t k, dg_scale s) {
    if (k > group_count(n)) return s;
    const float z = dg_scale_logit(cut(group, NULL, group_count(n), k), s);
    if (z > s.threshold) s.threshold = z;
    return s;
}

static float top_k_threshold(const float *x, int32_t n, int32_t k, dg_scale s,
                             const dg_cpu_scratch *scratch) {
    if (k <= 0 || k >= n) return s.threshold;
    const int32_t count = collect(x, n, bounded(scratch->group, n, k, s), scratch->group, scratch->value);
    return count < k ? s.threshold : cut(scratch->value, NULL, count, k);
}

static float top_p_threshold(const dg_isa *isa, const float *x, int32_t n, float top_p, dg_scale s,
                             const dg_cpu_scratch *scratch) {
    if (top_p <= 0 || top_p >= 1) return s.threshold;
    const double limit = dg_top_p_share(top_p) * isa->sum_exp(x, n, s);
    for (int32_t rank = FIRST_RANK;; rank *= 8) {
        const dg_scale low = rank < group_count(n) ? bounded(scratch->group, n, rank, s) : s;
        const int32_t count = collect(x, n, low, scratch->group, scratch->value);
        isa->exp(scratch->mass, scratch->value, count);
        double mass = 0;
        for (int32_t i = 0; i < count; i++) mass += (double)scratch->mass[i];
        if (mass >= limit || low.threshold == s.threshold)
            return cut(scratch->value, scratch->mass, count, limit);
    }
}

dg_scale dg_cpu_keep(const dg_isa *isa, const float *logits, int32_t n, float max, const dg_sampling *s,
                     const dg_cpu_scratch *scratch) {
    dg_scale scale = dg_scale_of(max, s->temperature);
    scale.threshold = top_k_threshold(logits, n, s->top_k, scale, scratch);
    scale.threshold = top_p_threshold(isa, logits, n, s->top_p, scale, scratch);
    if (s->min_p > 0) scale.threshold = fmaxf(scale.threshold, dg_min_p_threshold(s->min_p));
    return scale;
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
static int32_t gumbel_few(const float *x, int32_t n, dg_scale s, const float *group, uint64_t seed,
                          uint32_t pos) {
    float best = -INFINITY;
    int32_t best_id = 0;
    for (int32_t g = 0; g < group_count(n); g++) {
        if (!(dg_scale_logit(group[g], s) >= s.threshold)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const float z = dg_scale_logit(x[i], s);
            if (!(z >= s.threshold)) continue;
            const float noisy = z + dg_token_noise(seed, pos, (uint32_t)i);
            if (noisy > best || (noisy == best && i < best_id)) best = noisy, best_id = i;
        }
    }
    return best_id;
}

static int32_t sample_row(const dg_isa *isa, const float *x, int32_t n, int32_t pos, const dg_sampling *s,
                          float max, const dg_cpu_scratch *scratch) {
    if (s->temperature <= 0 || max == -INFINITY) return find_max(x, n, scratch->group, max);
    const dg_scale scale = dg_cpu_keep(isa, x, n, max, s, scratch);
    int32_t groups = 0;
    for (int32_t g = 0; g < group_count(n); g++)
        groups += dg_scale_logit(scratch->group[g], scale) >= scale.threshold;
    if (groups > group_count(n) / 8) return isa->gumbel_max(x, n, scale, s->seed, (uint32_t)pos);
    return gumbel_few(x, n, scale, scratch->group, s->seed, (uint32_t)pos);
}

/* log-softmax of x is z - log_sum. */
static float log_sum(const dg_isa *isa, const float *x, int32_t n, float max) {
    return max > -INFINITY ? (float)log(isa->sum_exp(x, n, dg_scale_row(max))) : 0;
}

static float log_prob(float x, float max, float log_sum_exp) {
    return x > -INFINITY ? dg_scale_logit(x, dg_scale_row(max)) - log_sum_exp : -INFINITY; /* NaN: -inf */
}

/* ---- the best k ---- */

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

/* heap[0..k) = the k best of the row, best first. Groups below the least of the best so far are passed over; the k-th
 * largest maximum is a bound from the start, but costs more to find than it saves when few are wanted. */
static void best_k(const float *x, int32_t n, int32_t k, const float *group, uint64_t *heap) {
    const int32_t n_group = group_count(n);
    float low = k > FEW && k <= n_group ? cut(group, NULL, n_group, k) : -INFINITY;
    int32_t size = 0;
    for (int32_t g = 0; g < n_group; g++) {
        if (!(group[g] >= low)) continue;
        const int32_t base = g / DG_LANES * DG_CHUNK, end = base + DG_CHUNK < n ? base + DG_CHUNK : n;
        for (int32_t i = base + g % DG_LANES; i < end; i += DG_LANES) {
            const uint64_t key = dg_rank_key(x[i], i);
            if (size < k) {
                heap[size++] = key;
                for (int32_t at = size == k ? k / 2 - 1 : -1; at >= 0; at--) sift(heap, k, at);
            } else if (key > heap[0]) {
                heap[0] = key;
                sift(heap, k, 0);
            }
        }
        if (size == k) low = dg_order_value((uint32_t)(heap[0] >> 32));
    }
    for (int32_t left = k - 1; left > 0; left--) { /* the least goes last */
        const uint64_t least = heap[0];
        heap[0] = heap[left];
        heap[left] = least;
        sift(heap, left, 0);
    }
}

/* ---- the operations ---- */

enum { SAMPLE = 1, BEST = 2 };

typedef struct select_job {
    dg_cpu *cpu;
    dg_mat logits;
    int32_t *id; /* of the samples */
    float *logp;
    const int32_t *pos;
    const dg_sampling *s;
    int32_t *best; /* [rows, k] */
    float *best_logp;
    int32_t k;
    int what;
    bool apart; /* every row is two pieces of work */
} select_job;

static void select_row(const select_job *job, const dg_cpu_scratch *scratch, int32_t r, int what) {
    const dg_isa *isa = job->cpu->isa;
    const float *x = dg_mat_row(&job->logits, r);
    const int32_t n = job->logits.cols, k = job->k;
    const float max = isa->row_max(x, n, scratch->group);
    if (what & SAMPLE) {
        const int32_t id = sample_row(isa, x, n, job->pos[r], job->s, max, scratch);
        job->id[r] = id;
        if (job->logp) job->logp[r] = log_prob(x[id], max, log_sum(isa, x, n, max));
    }
    if (!(what & BEST)) return;
    best_k(x, n, k, scratch->group, scratch->heap);
    const float sum = job->best_logp ? log_sum(isa, x, n, max) : 0;
    for (int32_t i = 0; i < k; i++) {
        const int32_t id = dg_rank_id(scratch->heap[i]);
        const size_t at = (size_t)r * (size_t)k + (size_t)i;
        if (job->best) job->best[at] = id;
        if (job->best_logp) job->best_logp[at] = log_prob(x[id], max, sum);
    }
}

static void select_part(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    const select_job *job = arg;
    const int32_t each = job->apart ? 2 : 1;
    int32_t i, end;
    for (dg_split(job->logits.rows * each, 1, chunk, n_chunk, &i, &end); i < end; i++)
        select_row(job, &job->cpu->scratch[worker], i / each, !job->apart ? job->what : i % 2 ? BEST : SAMPLE);
}

static void run(dg_backend *be, select_job *job) {
    job->cpu = dg_cpu_of(be);
    assert(job->logits.cols <= job->cpu->max_vocab);
    /* one look at a row serves both, unless a thread would have nothing to do */
    job->apart = job->what == (SAMPLE | BEST) && job->logits.rows < job->cpu->n_thread;
    dg_cpu_run(job->cpu, (int64_t)job->logits.rows * job->logits.cols / 4, select_part, job);
}

void dg_cpu_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s, int32_t *best,
                   int32_t k) {
    run(be, &(select_job){.logits = logits, .id = id, .logp = logp, .pos = pos, .s = s, .best = best, .k = k,
                          .what = SAMPLE | (k ? BEST : 0)});
}

void dg_cpu_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k) {
    run(be, &(select_job){.logits = logits, .best = id, .best_logp = logp, .k = k, .what = BEST});
}
