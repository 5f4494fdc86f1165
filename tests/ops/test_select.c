/* top_k and sample: against sorting, against the exact distribution, and across instruction sets, batches and
 * threads to the bit. */
#include "tests/ops/ops.h"

#include "kernels/gumbel.h"

/* ---- top_k ---- */

typedef struct entry {
    float value;
    int32_t id;
} entry;

static int by_rank(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static double log_sum(const float *x, int32_t n) {
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) max = fmax(max, (double)x[i]); /* fmax passes over NaN */
    for (int32_t i = 0; i < n; i++) sum += isnan(x[i]) ? 0 : exp((double)x[i] - max);
    return max + log(sum);
}

/* Rows of different character; some have ties, infinities or NaN. */
enum { N_KIND = 8 };

static void fill_row(float *x, int32_t n, int kind, uint64_t *seed) {
    for (int32_t i = 0; i < n; i++) {
        const float u = test_random(seed), v = test_random(seed);
        switch (kind) {
        case 0: x[i] = 8 * (u + v); break;
        case 1: x[i] = floorf(4 * u); break;
        case 2: x[i] = (float)i / (float)n; break;
        case 3: x[i] = -(float)i; break;
        case 4: x[i] = 2.5f; break;
        case 5: x[i] = u < 0.9f ? -INFINITY : v; break;
        case 6: x[i] = u < 0 ? 0.0f : -0.0f; break;
        default: x[i] = u < -0.5f ? NAN : 1e4f * v; break;
        }
    }
}

/* The best that sample gives are `id`, those of top_k, for few rows and for many, and its samples are what they are alone. */
static void best_beside_samples(dg_backend *be, dg_mat x, const int32_t *id, int32_t *best, int32_t k) {
    static const dg_sampling s[] = {{.temperature = 0}, {.temperature = 0.9f, .top_k = 9, .top_p = 0.8f, .seed = 5}};
    int32_t pos[N_KIND], alone[N_KIND], token[N_KIND];
    for (int32_t r = 0; r < N_KIND; r++) pos[r] = 3 * r;
    for (int i = 0; i < 2; i++)
        for (int32_t rows = 1; rows <= N_KIND; rows += rows < 3 ? 1 : N_KIND - 3) {
            const size_t bytes = sizeof *best * (size_t)(rows * k);
            memset(best, 0xff, bytes);
            be->ops->sample(be, alone, NULL, dg_mat_rows(x, 0, rows), pos, &s[i], NULL, 0);
            be->ops->sample(be, token, NULL, dg_mat_rows(x, 0, rows), pos, &s[i], best, k);
            assert_memory_equal(best, id, bytes);
            assert_memory_equal(token, alone, sizeof *token * (size_t)rows);
        }
}

static void top_k(dg_backend *be) {
    static const int32_t length[] = {1, 2, 17, 64, 257, 1000, 5000, 50000},
                         count[] = {1, 2, 8, 20, 64, 200, 256};
    uint64_t seed = 1;
    for (size_t l = 0; l < sizeof length / sizeof *length; l++)
        for (size_t c = 0; c < sizeof count / sizeof *count; c++) {
            const int32_t n = length[l], k = count[c];
            if (k > n || (n == 50000 && c % 3) || (test_device() && (n > 5000 || c % 2))) continue;
            dg_mat x = mat_new(DG_F32, N_KIND, n, 3);
            int32_t *id = malloc(sizeof(int32_t) * (size_t)(N_KIND * k));
            float *logp = malloc(sizeof(float) * (size_t)(N_KIND * k));
            entry *all = malloc(sizeof(entry) * (size_t)n);
            for (int32_t r = 0; r < N_KIND; r++) fill_row(f32_at(x, r, 0), n, r, &seed);
            be->ops->top_k(be, id, logp, x, k);
            for (int32_t r = 0; r < N_KIND; r++) {
                for (int32_t i = 0; i < n; i++) {
                    const float v = *f32_at(x, r, i);
                    all[i] = (entry){isnan(v) ? -INFINITY : v, i};
                }
                qsort(all, (size_t)n, sizeof *all, by_rank);
                const double sum = log_sum(f32_at(x, r, 0), n);
                for (int32_t i = 0; i < k; i++) {
                    assert_int_equal(id[r * k + i], all[i].id);
                    const double want = (double)all[i].value - sum;
                    if (all[i].value > -INFINITY)
                        assert_true(fabs((double)logp[r * k + i] - want) < 3e-6 * (1 + fabs(want)));
                    else
                        assert_true(logp[r * k + i] == -INFINITY);
                }
            }
            int32_t *again = malloc(sizeof(int32_t) * (size_t)(N_KIND * k));
            be->ops->top_k(be, again, NULL, x, k);
            assert_memory_equal(again, id, sizeof(int32_t) * (size_t)(N_KIND * k));
            best_beside_samples(be, x, id, again, k);
            free(again);
            free(all);
            free(id);
            free(logp);
            mat_free(x);
        }
}

static void test_top_k(void **state) {
    (void)state;
    on_every_cpu(top_k);
}

/* ---- noise ---- */

static void test_noise(void **state) {
    (void)state;
    /* log: against libm, over all exponents and near 1 */
    uint64_t seed = 2;
    for (int i = 0; i < 200000; i++) {
        const float u = test_random(&seed),
                    x = i % 2 ? ldexpf(1.5f + u / 2, i % 250 - 125) : 1 + u * 0x1p-10f;
        const double want = log((double)x);
        assert_true(fabs((double)dg_log_f32(x) - want) <= 1.5e-7 * fabs(want) + 1e-12);
    }
    /* Gumbel: mean gamma, variance pi^2/6, and finite at both ends of the generator */
    double sum = 0, square = 0;
    const int n = 1 << 20;
    for (int i = 0; i < n; i++) {
        const double g = (double)dg_token_noise(99, (uint32_t)(i >> 10), (uint32_t)(i & 1023));
        sum += g;
        square += g * g;
    }
    const double mean = sum / n, variance = square / n - mean * mean;
    assert_true(fabs(mean - 0.5772157) < 5 * 1.2825 / 1024);
    assert_true(fabs(variance - 1.6449341) < 0.02);
    assert_true(dg_gumbel(0) > -3 && dg_gumbel(0) < -2 && dg_gumbel(UINT32_MAX) > 16 &&
                dg_gumbel(UINT32_MAX) < 17);
}

/* Philox4x32-10: the known answers that Random123 publishes for counters and keys of zeros and of ones. */
static void test_philox(void **state) {
    (void)state;
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    uint32_t out[4];
    dg_philox(0, 0, 0, out);
    assert_memory_equal(out, zeros, sizeof zeros);
}

/* ---- sample ---- */

static int32_t sample_one(dg_backend *be, const float *x, int32_t n, int32_t pos, const dg_sampling *s,
                          float *logp) {
    int32_t id = -1;
    float p;
    be->ops->sample(be, &id, logp ? logp : &p, dg_mat_make((void *)(uintptr_t)x, DG_F32, 1, n), &pos, s, NULL, 0);
    return id;
}

static void greedy(dg_backend *be) {
    static const int32_t length[] = {1, 3, 16, 255, 256, 257, 4096, 50001};
    const dg_sampling s = {0};
    uint64_t seed = 3;
    float *x = malloc(sizeof(float) * 50001);
    for (size_t l = 0; l < sizeof length / sizeof *length; l++)
        for (int kind = 0; kind < N_KIND; kind++) {
            const int32_t n = length[l];
            if (test_device() && n > 5000) continue;
            fill_row(x, n, kind, &seed);
            int32_t want = 0;
            for (int32_t i = 1; i < n; i++)
                if (x[i] > x[want] || (isnan(x[want]) && !isnan(x[i]))) want = i;
            float logp;
            const int32_t id = sample_one(be, x, n, 5, &s, &logp);
            assert_int_equal(id, isnan(x[want]) || x[want] == -INFINITY ? 0 : want);
            if (x[id] > -INFINITY)
                assert_true(fabs((double)logp - ((double)x[id] - log_sum(x, n))) <
                            3e-6 * (1 + fabs((double)logp)));
            else
                assert_true(logp == -INFINITY);
        }
    free(x);
}

static void test_greedy(void **state) {
    (void)state;
    on_every_cpu(greedy);
}

/* Chi-square of `draws` samples against the exact probabilities; small cells are merged. */
static void check_distribution(dg_backend *be, const float *x, int32_t n, const dg_sampling *s,
                               const double *p) {
    enum { BATCH = 200 };
    const int draws = test_device() ? 400 : 20000; /* a simulated device is slow */
    int32_t *count = calloc((size_t)n, sizeof *count), id[BATCH], pos[BATCH];
    dg_mat rows = mat_new(DG_F32, BATCH, n, 0);
    for (int i = 0; i < BATCH; i++) memcpy(f32_at(rows, i, 0), x, sizeof(float) * (size_t)n);
    for (int d = 0; d < draws; d += BATCH) {
        for (int i = 0; i < BATCH; i++) pos[i] = d + i;
        be->ops->sample(be, id, NULL, rows, pos, s, NULL, 0);
        for (int i = 0; i < BATCH; i++) {
            assert_in_range(id[i], 0, n - 1);
            if (!(p[id[i]] > 0))
                fail_msg("token %d is not among the kept (T %g, k %d, p %g, min-p %g)", id[i],
                         (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p);
            count[id[i]]++;
        }
    }
    double chi = 0, rest = 0, rest_want = 0;
    int cells = 0;
    for (int32_t i = 0; i < n; i++) {
        const double want = p[i] * draws;
        if (want < 10) {
            rest += count[i];
            rest_want += want;
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        cells++;
    }
    if (rest_want >= 10) chi += (rest - rest_want) * (rest - rest_want) / rest_want, cells++;
    const double df = cells - 1;
    if (df > 0 && chi > df + 4.5 * sqrt(2 * df) + 6)
        fail_msg("chi-square %g with %g degrees of freedom", chi, df);
    mat_free(rows);
    free(count);
}

static void distribution(dg_backend *be) {
    static const int32_t length[] = {2, 5, 40, 300};
    static const float temperature[] = {0.5f, 1, 1.7f};
    uint64_t seed = 4;
    float x[300];
    double p[300];
    for (size_t l = 0; l < 4; l++)
        for (size_t t = 0; t < 3; t++) {
            const int32_t n = length[l];
            const dg_sampling s = {.temperature = temperature[t], .seed = 1000 * l + t};
            double sum = 0;
            for (int32_t i = 0; i < n; i++) x[i] = i % 7 == 3 ? -INFINITY : 3 * test_random(&seed);
            for (int32_t i = 0; i < n; i++) sum += p[i] = exp((double)x[i] / (double)s.temperature);
            for (int32_t i = 0; i < n; i++) p[i] /= sum;
            check_distribution(be, x, n, &s, p);
        }
}

/* The draws of one thread and of several are compared elsewhere. */
static void on_every_isa(void (*body)(dg_backend *be)) {
    for (int i = 0; i < N_ISA; i++) {
        dg_backend *be = open_cpu(isa_name[i], test_device() ? 1 : 2);
        if (be) body(be);
        dg_backend_close(be);
    }
}

static void test_distribution(void **state) {
    (void)state;
    on_every_isa(distribution);
}

/* Filters: what may come out, by sorting; probabilities of the kept tokens stay in proportion. */
static void filtered(dg_backend *be) {
    static const dg_sampling setting[] = {
        {.temperature = 1, .top_k = 3, .seed = 1},
        {.temperature = 0.8f, .top_p = 0.7f, .seed = 2},
        {.temperature = 1.3f, .min_p = 0.2f, .seed = 3},
        {.temperature = 0.9f, .top_k = 20, .top_p = 0.9f, .min_p = 0.05f, .seed = 4},
        {.temperature = 1, .top_k = 1, .seed = 5},
        {.temperature = 1, .top_p = 1e-9f, .seed = 6},
        {.temperature = 1, .top_k = 500, .top_p = 1, .seed = 7},
    };
    enum { N = 60 };
    uint64_t seed = 5;
    for (size_t c = 0; c < sizeof setting / sizeof *setting; c++) {
        const dg_sampling s = setting[c];
        float x[N];
        entry all[N];
        double p[N], sum = 0, kept_sum = 0;
        for (int32_t i = 0; i < N; i++) x[i] = 3 * test_random(&seed), all[i] = (entry){x[i], i};
        qsort(all, N, sizeof *all, by_rank);
        const int32_t k = s.top_k > 0 && s.top_k < N ? s.top_k : N;
        for (int32_t i = 0; i < N; i++)
            p[all[i].id] = i < k ? exp((double)(all[i].value / s.temperature)) : 0;
        for (int32_t i = 0; i < N; i++) sum += p[i];
        double before = 0;
        for (int32_t i = 0; i < N; i++) { /* p[all[0]] is the best */
            const int32_t id = all[i].id;
            const double mass = p[id];
            if (i && s.top_p > 0 && s.top_p < 1 && before >= (double)s.top_p * sum) p[id] = 0;
            if (mass < (double)s.min_p * p[all[0].id]) p[id] = 0;
            before += mass;
            kept_sum += p[id];
        }
        for (int32_t i = 0; i < N; i++) p[i] /= kept_sum;
        check_distribution(be, x, N, &s, p);
    }
}

static void test_filtered(void **state) {
    (void)state;
    on_every_isa(filtered);
}

static void edges(dg_backend *be) {
    enum { N = 700 };
    float x[N], logp;
    const dg_sampling hot = {.temperature = 100, .seed = 8}, one = {.temperature = 1, .seed = 9},
                      tiny = {.temperature = 1e-30f, .seed = 10},
                      k = {.temperature = 2, .top_k = 600, .top_p = 0.99f};
    for (int32_t pos = 0; pos < (test_device() ? 5 : 200); pos++) {
        for (int i = 0; i < N; i++) x[i] = i == 333 || i == 612 ? (float)i : -INFINITY;
        const int32_t id = sample_one(be, x, N, pos, &hot, NULL);
        assert_true(id == 333 || id == 612);
        const int32_t both = sample_one(be, x, N, pos, &k, NULL);
        assert_true(both == 612);
        x[100] = NAN;
        assert_int_equal(sample_one(be, x, N, pos, &tiny, &logp), 612);
        assert_true(fabsf(logp) < 1e-6f);
        x[400] = INFINITY;
        assert_int_equal(sample_one(be, x, N, pos, &one, NULL), 400);
        x[400] = 3.4e38f;
        assert_int_equal(sample_one(be, x, N, pos, &hot, NULL), 400);
    }
    for (int i = 0; i < N; i++) x[i] = -INFINITY;
    assert_int_equal(sample_one(be, x, N, 0, &one, &logp), 0);
    assert_true(logp == -INFINITY);
    for (int i = 0; i < N; i++) x[i] = -3.4e38f; /* overflows once divided by the temperature */
    x[5] = -3e38f;
    assert_int_equal(sample_one(be, x, N, 0, &tiny, NULL), 5);
}

static void test_edges(void **state) {
    (void)state;
    on_every_cpu(edges);
}

/* The same text on every instruction set, thread count and batch: ids to the bit. Few and many kept tokens
 * take different ways through the code and must draw the same noise. */
static void test_same_everywhere(void **state) {
    (void)state;
    enum { ROWS = 40, N = 50257 };
    const int32_t n_row = test_device() ? 3 : ROWS;
    static const dg_sampling setting[] = {
        {.temperature = 1, .seed = 77},
        {.temperature = 0.7f, .top_p = 0.95f, .seed = 78},
        {.temperature = 1.2f, .top_k = 50, .min_p = 0.01f, .seed = UINT64_MAX},
        {.temperature = 4, .top_k = 40000, .seed = 1ull << 40},
        {.temperature = 9, .top_p = 0.9f, .seed = 3},
    };
    uint64_t seed = 6;
    dg_mat x = mat_new(DG_F32, n_row, N, 0);
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t i = 0; i < N; i++)
            *f32_at(x, r, i) =
                3 * (test_random(&seed) + test_random(&seed) + test_random(&seed) * test_random(&seed) * 3);
    int32_t pos[ROWS];
    for (int32_t r = 0; r < n_row; r++) pos[r] = 1000 - r;
    for (size_t c = 0; c < sizeof setting / sizeof *setting; c++) {
        int32_t first[ROWS], id[ROWS], distinct = 0;
        float logp[ROWS];
        bool any = false;
        for (int isa = 0; isa < N_ISA; isa++)
            for (int32_t threads = 1; threads <= 4; threads += 3) {
                dg_backend *be = open_cpu(isa_name[isa], threads);
                if (!be) break;
                be->ops->sample(be, any ? id : first, logp, x, pos, &setting[c], NULL, 0);
                if (any) assert_memory_equal(id, first, (size_t)n_row * sizeof *first);
                any = true;
                for (int32_t r = 0; r < n_row; r += 13) {
                    float alone;
                    assert_int_equal(sample_one(be, f32_at(x, r, 0), N, pos[r], &setting[c], &alone),
                                     first[r]);
                    assert_true(alone == logp[r]);
                }
                dg_backend_close(be);
            }
        for (int32_t r = 1; r < n_row; r++) distinct += first[r] != first[0];
        assert_true(distinct > n_row / 2);
        /* By definition: the largest logit/T + noise; without filters over all tokens. */
        if (c) continue;
        for (int32_t r = 0; r < n_row; r++) {
            int32_t best = 0;
            float most = -INFINITY, max = -INFINITY;
            for (int32_t i = 0; i < N; i++) max = fmaxf(max, *f32_at(x, r, i));
            for (int32_t i = 0; i < N; i++) {
                const float v =
                    *f32_at(x, r, i) - max + dg_token_noise(setting[c].seed, (uint32_t)pos[r], (uint32_t)i);
                if (v > most) most = v, best = i;
            }
            assert_int_equal(first[r], best);
        }
    }
    mat_free(x);
}

/* A single row: the same bits for any number of threads, wherever the best lies. */
static void test_one_row(void **state) {
    (void)state;
    enum { N = 65003, K = 300 };
    dg_mat x = mat_new(DG_F32, 1, N, 0);
    const dg_sampling greedy = {.temperature = 0};
    for (int c = 0; c < 6; c++) {
        static const int32_t best[] = {0, 255, 256, 40000, N - 1, -1};
        uint64_t seed = 90 + (unsigned)c;
        mat_random(x, 20, &seed);
        if (best[c] >= 0) *f32_at(x, 0, best[c]) = 21;
        for (int32_t i = 0; c == 5 && i < N; i++) *f32_at(x, 0, i) = i == 30000 ? 1 : -INFINITY;
        for (int isa = 0; isa < N_ISA; isa++) {
            int32_t id[2][K], token[2], pos = 0;
            float logp[2][K], sampled[2];
            for (int t = 0; t < 2; t++) {
                dg_backend *be = open_cpu(isa_name[isa], t ? 4 : 1);
                if (!be) break;
                be->ops->top_k(be, id[t], logp[t], x, K);
                be->ops->sample(be, &token[t], &sampled[t], x, &pos, &greedy, NULL, 0);
                dg_backend_close(be);
                assert_int_equal(token[t], best[c] >= 0 ? best[c] : 30000);
                assert_int_equal(id[t][0], token[t]);
                assert_memory_equal(id[t], id[0], sizeof id[0]);
                assert_memory_equal(logp[t], logp[0], sizeof logp[0]);
                assert_true(sampled[t] == logp[0][0]);
            }
        }
    }
    mat_free(x);
}

int main(void) {
    if (device_missing()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_k),        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_philox),       cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_filtered),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_same_everywhere),
        cmocka_unit_test(test_one_row),
    };
    return cmocka_run_group_tests_name("select", tests, NULL, NULL);
}
