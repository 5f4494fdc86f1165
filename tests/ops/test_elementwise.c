/* Norm, rotation, activation, sums, copies, embedding, cache rows: against double-precision loops, alone and
 * in batches, with strides wider than the rows and the aliasing that ops.h allows. */
#include "tests/ops/ops.h"

static const int32_t widths[] = {1, 2, 15, 16, 17, 24, 48, 64, 80, 144, 576, 1000, 1536};
enum { N_WIDTH = sizeof widths / sizeof *widths, N_ROW = 70 };

typedef struct doubles {
    double *want, *scale;
} doubles;

static doubles doubles_new(size_t n) {
    return (doubles){calloc(n, sizeof(double)), calloc(n, sizeof(double))};
}

static void doubles_free(doubles d) {
    free(d.want);
    free(d.scale);
}

static void rms_norm(dg_backend *be) {
    static const dg_dtype w_dtype[] = {DG_F32, DG_F16, DG_BF16};
    uint64_t seed = 1;
    for (int i = 0; i < N_WIDTH; i++) {
        const int32_t d = widths[i], n = 5;
        const float eps = 1e-5f;
        dg_mat x = mat_new(DG_F32, n, d, 3), out = mat_new(DG_F32, n, d, 1),
               w = mat_new(w_dtype[i % 3], 1, d, 0);
        mat_random(x, 3, &seed);
        mat_random(w, 1, &seed);
        dg_mat wf = mat_f32(w);
        doubles ref = doubles_new((size_t)(n * d));
        for (int32_t r = 0; r < n; r++) {
            double sum = 0;
            for (int32_t c = 0; c < d; c++) sum += (double)*f32_at(x, r, c) * (double)*f32_at(x, r, c);
            for (int32_t c = 0; c < d; c++) {
                ref.want[r * d + c] =
                    (double)*f32_at(x, r, c) / sqrt(sum / d + (double)eps) * (double)*f32_at(wf, 0, c);
                ref.scale[r * d + c] = fabs(ref.want[r * d + c]) + 1e-30;
            }
        }
        be->ops->rms_norm(be, out, x, w, eps);
        check_scaled(out, ref.want, ref.scale, 1e-6, "rms_norm");
        check_gaps(out);
        be->ops->rms_norm(be, x, x, w, eps);
        check_same(x, out, "rms_norm in place");
        check_gaps(x);
        doubles_free(ref);
        mat_free(x);
        mat_free(out);
        mat_free(w);
        mat_free(wf);
    }
}

static void test_rms_norm(void **state) {
    (void)state;
    on_every_cpu(rms_norm);
}

static void swiglu(dg_backend *be) {
    uint64_t seed = 2;
    for (int i = 0; i < N_WIDTH; i++) {
        const int32_t d = widths[i], n = 4;
        dg_mat gate = mat_new(DG_F32, n, d, 2), up = mat_new(DG_F32, n, d, 7), out = mat_new(DG_F32, n, d, 0);
        mat_random(gate, i % 2 ? 120 : 4, &seed); /* wide enough for e^-x to leave f32 */
        mat_random(up, 2, &seed);
        doubles silu = doubles_new((size_t)(n * d));
        for (int32_t r = 0; r < n; r++)
            for (int32_t c = 0; c < d; c++) {
                const double g = (double)*f32_at(gate, r, c), u = (double)*f32_at(up, r, c);
                silu.want[r * d + c] = g / (1 + exp(-g)) * u;
                silu.scale[r * d + c] = fabs(silu.want[r * d + c]) + 1e-29;
            }
        be->ops->swiglu(be, out, gate, up);
        check_scaled(out, silu.want, silu.scale, 5e-7, "swiglu");
        be->ops->swiglu(be, gate, gate, up);
        check_same(gate, out, "swiglu in place");
        check_gaps(gate);
        doubles_free(silu);
        mat_free(gate);
        mat_free(up);
        mat_free(out);
    }
}

static void test_swiglu(void **state) {
    (void)state;
    on_every_cpu(swiglu);
}

static void swiglu_edges(dg_backend *be) {
    enum { N = 20 };
    float gate[N] = {INFINITY, -INFINITY, NAN, 0, -0.0f, 1e30f, -1e30f, 88, -88, 1e-30f}, up[N], out[N];
    for (int i = 0; i < N; i++) up[i] = 1;
    be->ops->swiglu(be, dg_mat_make(out, DG_F32, 1, N), dg_mat_make(gate, DG_F32, 1, N),
                    dg_mat_make(up, DG_F32, 1, N));
    assert_true(out[0] == INFINITY && isnan(out[2]) && out[3] == 0 && out[4] == 0 && out[5] == 1e30f);
    assert_true(out[7] == 88 && fabsf(out[8]) < 1e-30f && fabsf(out[9] / 0.5e-30f - 1) < 1e-6f);
}

static void test_swiglu_edges(void **state) {
    (void)state;
    on_every_cpu(swiglu_edges);
}

static void rope(dg_backend *be) {
    static const int32_t head_dim[] = {2, 6, 24, 64, 80, 128, 256}, pos[] = {0, 1, 77, 4095, 131071, 1000000};
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof head_dim / sizeof *head_dim; i++)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            const int32_t hd = head_dim[i], half = hd / 2, heads = 3, n = 6;
            const float mscale = interleaved ? 1.5f : 1;
            float freq[128];
            for (int32_t j = 0; j < half; j++) freq[j] = powf(10000, -2.0f * (float)j / (float)hd);
            dg_mat table = mat_new(DG_F32, n, hd, 1), x = mat_new(DG_F32, n, heads * hd, 5);
            mat_random(x, 1, &seed);
            doubles t = doubles_new((size_t)(n * hd)), ref = doubles_new((size_t)(n * heads * hd));
            for (int32_t r = 0; r < n; r++)
                for (int32_t j = 0; j < half; j++) {
                    const double angle = (double)((float)pos[r] * freq[j]);
                    const double co = cos(angle) * (double)mscale, si = sin(angle) * (double)mscale;
                    t.want[r * hd + j] = co;
                    t.want[r * hd + half + j] = si;
                    t.scale[r * hd + j] = t.scale[r * hd + half + j] = 1;
                    for (int32_t h = 0; h < heads; h++) {
                        const int32_t at = h * hd + (interleaved ? 2 * j : j), next = interleaved ? 1 : half;
                        const double a = (double)*f32_at(x, r, at), b = (double)*f32_at(x, r, at + next);
                        double *want = ref.want + r * heads * hd, *scale = ref.scale + r * heads * hd;
                        want[at] = a * co - b * si;
                        want[at + next] = a * si + b * co;
                        scale[at] = scale[at + next] = 1;
                    }
                }
            be->ops->rope_table(be, table, pos, freq, mscale);
            check_scaled(table, t.want, t.scale, 2e-7, "rope_table");
            turn_rows(be, x, table, interleaved);
            check_scaled(x, ref.want, ref.scale, 1e-6, "rope");
            check_gaps(x);
            doubles_free(t);
            doubles_free(ref);
            mat_free(table);
            mat_free(x);
        }
}

static void test_rope(void **state) {
    (void)state;
    on_every_cpu(rope);
}

/* Heads under norms, rotated and stored, some rows in each of two caches: the bits of the steps one by one. */
static void qkv(dg_backend *be) {
    static const struct {
        dg_dtype norm, cache;
        int32_t heads, kv_heads, hd;
        bool normed, interleaved;
    } c[] = {{DG_F32, DG_F16, 9, 3, 64, false, false}, {DG_BF16, DG_F32, 8, 2, 128, true, false},
             {DG_F32, DG_F16, 2, 2, 6, true, true},    {DG_F16, DG_BF16, 3, 1, 80, true, false},
             {DG_F32, DG_F32, 2, 1, 256, true, true}};
    enum { N = 7, ALSO = 3, CAP = 64 }; /* rows 0 .. 2 and 3 .. 5; the last row is of no segment */
    uint64_t seed = 8;
    for (size_t t = 0; t < sizeof c / sizeof *c; t++) {
        const int32_t hd = c[t].hd, qd = c[t].heads * hd, kd = c[t].kv_heads * hd;
        int32_t pos[N];
        float freq[128];
        for (int32_t j = 0; j < hd / 2; j++) freq[j] = powf(10000, -2.0f * (float)j / (float)hd);
        for (int32_t i = 0; i < N; i++) pos[i] = 5 * i;
        dg_mat table = mat_new(DG_F32, N, hd, 0), q = mat_new(DG_F32, N, qd, 3), k = mat_new(DG_F32, N, kd, 1),
               v = mat_new(DG_F32, N, kd, 2), w[2], cache[2][2][2], got[2][2];
        be->ops->rope_table(be, table, pos, freq, 1);
        mat_random(q, 2, &seed), mat_random(k, 2, &seed), mat_random(v, 2, &seed);
        for (int i = 0; i < 2; i++) {
            w[i] = mat_new(c[t].norm, 1, hd, 0);
            mat_random(w[i], 1, &seed);
            for (int j = 0; j < 2; j++) {
                got[i][j] = mat_new(DG_F32, CAP, kd, 0);
                for (int s = 0; s < 2; s++) cache[i][j][s] = mat_new(c[t].cache, CAP, kd, 0);
            }
        }
        const dg_attn_seg seg[2] = {{.k = cache[0][0][0], .v = cache[0][0][1], .len = 10, .win = 4, .n = 3, .row0 = 0},
                                    {.k = cache[0][1][0], .v = cache[0][1][1], .len = 61, .win = ALSO, .n = ALSO, .row0 = 3}};
        dg_mat q1 = mat_f32(q), k1 = mat_f32(k);
        for (int32_t r = 0; c[t].normed && r < N; r++) { /* heads of one row as rows */
            const dg_mat qh = dg_mat_make(dg_mat_row(&q1, r), DG_F32, c[t].heads, hd),
                         kh = dg_mat_make(dg_mat_row(&k1, r), DG_F32, c[t].kv_heads, hd);
            be->ops->rms_norm(be, qh, qh, w[0], 1e-5f);
            be->ops->rms_norm(be, kh, kh, w[1], 1e-5f);
        }
        turn_rows(be, q1, table, c[t].interleaved);
        turn_rows(be, k1, table, c[t].interleaved);
        put_rows(be, cache[1][0][0], cache[1][0][1], 11, dg_mat_rows(k1, 0, 3), dg_mat_rows(v, 0, 3), hd);
        put_rows(be, cache[1][1][0], cache[1][1][1], 61, dg_mat_rows(k1, 3, ALSO), dg_mat_rows(v, 3, ALSO), hd);
        const dg_mat none = {0};
        const dg_qkv r = {q, k, v, c[t].normed ? w[0] : none, c[t].normed ? w[1] : none, 1e-5f, table, hd, c[t].interleaved};
        be->ops->qkv(be, &r, seg, 2);
        check_same(dg_mat_rows(q, 0, 6), dg_mat_rows(q1, 0, 6), "q");
        check_gaps(q), check_gaps(k), check_gaps(v);
        for (int s = 0; s < 2; s++) {
            for (int i = 0; i < 2; i++) be->ops->kv_get(be, got[i][0], got[i][1], cache[i][s][0], cache[i][s][1], 0, hd);
            check_same(got[0][0], got[1][0], "cached keys");
            check_same(got[0][1], got[1][1], "cached values");
        }
        for (int i = 0; i < 8; i++) mat_free(cache[i / 4][i / 2 % 2][i % 2]);
        for (int i = 0; i < 4; i++) mat_free(got[i / 2][i % 2]);
        dg_mat *const all[] = {&table, &q, &k, &v, &w[0], &w[1], &q1, &k1};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) mat_free(*all[i]);
    }
}

static void test_qkv(void **state) {
    (void)state;
    on_every_cpu(qkv);
}

/* A large batch gives each row what the row gets alone, and every thread count the same. */
static void test_rows_alone(void **state) {
    (void)state;
    enum { HEADS = 9, HD = 64, D = HEADS * HD };
    int32_t pos[N_ROW];
    float freq[HD / 2];
    for (int32_t i = 0; i < N_ROW; i++) pos[i] = 31 * i;
    for (int32_t j = 0; j < HD / 2; j++) freq[j] = 1 / (1 + (float)j);
    for (int isa = 0; isa < N_ISA; isa++) {
        dg_mat first[3] = {{0}};
        for (int32_t threads = 1; threads <= 4; threads++) {
            dg_backend *be = open_cpu(isa_name[isa], threads);
            if (!be) break;
            uint64_t seed = 4;
            dg_mat x = mat_new(DG_F32, N_ROW, D, 0), up = mat_new(DG_F32, N_ROW, D, 0),
                   w = mat_new(DG_F32, 1, D, 0);
            mat_random(x, 1, &seed);
            mat_random(up, 1, &seed);
            mat_random(w, 1, &seed);
            for (int whole = 1; whole >= 0; whole--) { /* in one call; row by row */
                dg_mat out[3];
                for (int k = 0; k < 3; k++) out[k] = mat_f32(x);
                dg_mat table = mat_new(DG_F32, N_ROW, HD, 0);
                for (int32_t r = 0; r < N_ROW; r += whole ? N_ROW : 1) {
                    const int32_t n = whole ? N_ROW : 1;
                    be->ops->rms_norm(be, dg_mat_rows(out[0], r, n), dg_mat_rows(x, r, n), w, 1e-6f);
                    be->ops->swiglu(be, dg_mat_rows(out[1], r, n), dg_mat_rows(x, r, n),
                                    dg_mat_rows(up, r, n));
                    be->ops->rope_table(be, dg_mat_rows(table, r, n), pos + r, freq, 1);
                    turn_rows(be, dg_mat_rows(out[2], r, n), dg_mat_rows(table, r, n), false);
                }
                mat_free(table);
                for (int k = 0; k < 3; k++) {
                    if (!first[k].data) {
                        first[k] = out[k];
                        continue;
                    }
                    check_same(out[k], first[k], dg_backend_describe(be));
                    mat_free(out[k]);
                }
            }
            mat_free(x);
            mat_free(up);
            mat_free(w);
            dg_backend_close(be);
        }
        for (int k = 0; k < 3; k++) mat_free(first[k]);
    }
}

static void embed(dg_backend *be) {
    uint64_t seed = 5;
    static const int32_t id[] = {6, 0, 3, 3, 8};
    for (int t = 0; t < DG_DTYPE_COUNT; t++) {
        if (!dg_dtype_is_weight((dg_dtype)t)) continue;
        const int32_t gap = dg_dtype_get((dg_dtype)t)->block_len;
        dg_mat table = mat_new((dg_dtype)t, 9, 512, gap), out = mat_new(DG_F32, 5, 512, 9);
        if (gap == 1)
            mat_random(table, 1, &seed);
        else
            mat_random_blocks(table, &seed);
        dg_mat all = mat_f32(table);
        be->ops->embed(be, out, table, id);
        for (int32_t r = 0; r < 5; r++)
            check_same(dg_mat_rows(out, r, 1), dg_mat_rows(all, id[r], 1), dg_dtype_get((dg_dtype)t)->name);
        check_gaps(out);
        mat_free(table);
        mat_free(out);
        mat_free(all);
    }
}

static void test_embed(void **state) {
    (void)state;
    on_every_cpu(embed);
}

static void rows(dg_backend *be) {
    static const dg_dtype dtype[] = {DG_F32, DG_F16, DG_BF16};
    static const int32_t row0 = 3, late = 7; /* the last two of four rows do not fit */
    uint64_t seed = 6;
    for (int t = 0; t < 3; t++) {
        dg_mat src = mat_new(DG_F32, 4, 51, 3), dst = mat_new(dtype[t], 9, 51, 2),
               want = mat_new(dtype[t], 4, 51, 0);
        mat_random(src, 70000, &seed); /* beyond the largest f16 now and then */
        *f32_at(src, 0, 0) = 1e-7f;
        *f32_at(src, 0, 1) = INFINITY;
        *f32_at(src, 0, 20) = -1e30f;
        *f32_at(src, 1, 50) = 6.1e-5f;
        *f32_at(src, 2, 3) = 1.00048828125f; /* half way between two f16 */
        for (int32_t r = 0; r < 4; r++) dg_quant_row(dtype[t], dg_mat_row(&src, r), dg_mat_row(&want, r), 51);
        be->ops->rows_put(be, dst, &row0, src);
        check_same(dg_mat_rows(dst, 3, 4), want, "rows_put");
        for (size_t i = 0; i < dg_dtype_bytes(dtype[t], (size_t)(3 * dst.stride)); i++)
            assert_int_equal(((uint8_t *)dst.data)[i], 0xab);
        check_gaps(dst);
        be->ops->rows_put(be, dst, &late, src);
        check_same(dg_mat_rows(dst, 7, 2), dg_mat_rows(want, 0, 2), "rows_put at the end");
        *f32_at(src, 3, 7) = NAN;
        be->ops->rows_put(be, dst, &row0, src);
        float nan;
        dg_dequant_row(dtype[t], (char *)dg_mat_row(&dst, 6) + dg_dtype_bytes(dtype[t], 7), &nan, 1);
        assert_true(isnan(nan));
        mat_free(src);
        mat_free(dst);
        mat_free(want);

        dg_mat cache = mat_new(dtype[t], 12, 20, 4), copy = mat_new(dtype[t], 12, 20, 0);
        mat_random(cache, 1, &seed);
        be->ops->copy2d(be, copy, cache);
        check_same(copy, cache, "copy2d");
        static const int32_t path[] = {0, 2, 3, 7, 11};
        be->ops->rows_gather(be, dg_mat_rows(cache, 0, 5), cache, path); /* onto itself, as the commit does */
        for (int32_t i = 0; i < 5; i++)
            check_same(dg_mat_rows(cache, i, 1), dg_mat_rows(copy, path[i], 1), "rows_gather");
        check_same(dg_mat_rows(cache, 5, 7), dg_mat_rows(copy, 5, 7), "rows behind the gathered ones");
        be->ops->zero(be, dg_mat_rows(cache, 1, 2));
        float value[20];
        for (int32_t r = 0; r < 3; r++) {
            dg_dequant_row(dtype[t], dg_mat_row(&cache, r), value, 20);
            for (int c = 0; c < 20; c++) assert_int_equal(value[c] == 0, r > 0);
        }
        check_gaps(cache);
        mat_free(cache);
        mat_free(copy);
    }
}

/* Rows of a number of bytes that no wider type divides. */
static void gather_odd(dg_backend *be, dg_dtype dtype, int32_t cols) {
    static const int32_t idx[] = {0, 3, 4};
    dg_mat from = mat_new(dtype, 6, cols, 0), to = mat_new(dtype, 3, cols, 0);
    const size_t bytes = dg_dtype_bytes(dtype, (size_t)cols);
    for (size_t i = 0; i < 6 * bytes; i++) ((uint8_t *)from.data)[i] = (uint8_t)i;
    be->ops->rows_gather(be, to, from, idx);
    for (int32_t i = 0; i < 3; i++) assert_memory_equal(dg_mat_row(&to, i), dg_mat_row(&from, idx[i]), bytes);
    mat_free(from);
    mat_free(to);
}

static void odd_rows(dg_backend *be) {
    gather_odd(be, DG_U8, 7);
    gather_odd(be, DG_F16, 5);
    gather_odd(be, DG_Q8_0, 32);
}

static void test_rows(void **state) {
    (void)state;
    on_every_cpu(rows);
    on_every_cpu(odd_rows);
}

static void test_memory(void **state) {
    (void)state;
    const int64_t before = dg_mem_live();
    dg_backend *be = open_cpu("portable", test_device() ? 1 : 2);
    char *p = be->ops->alloc(be, 1000), back[10];
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    be->ops->upload(be, p + 3, "graftgraft", 10);
    be->ops->download(be, back, p + 3, 10);
    assert_memory_equal(back, "graftgraft", 10);
    assert_true(be->ops->sync(be));
    assert_string_equal(dg_backend_error(be), "");
    be->ops->free(be, p);
    be->ops->free(be, NULL);
    dg_backend_close(be);
    dg_backend_close(NULL);
    assert_int_equal(dg_mem_live(), before);
}

int main(void) {
    if (device_missing()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),     cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_swiglu_edges), cmocka_unit_test(test_rope), cmocka_unit_test(test_qkv),
        cmocka_unit_test(test_rows_alone),   cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("elementwise", tests, NULL, NULL);
}
