/* matmul: against a double-precision loop for every weight type, and its promise that a row's result
 * depends on that row alone. */
#include "tests/ops/ops.h"

typedef struct shape {
    int32_t n, m, k;
    bool add, bias;
} shape;

static const shape plain_shape[] = {
    {1, 1, 1, 0, 0},     {1, 3, 7, 0, 1},    {2, 5, 16, 1, 0},   {3, 4, 17, 1, 1},    {4, 9, 31, 0, 0},
    {5, 17, 33, 0, 1},   {1, 70, 48, 1, 0},  {7, 13, 144, 0, 0}, {1, 33, 576, 0, 1},  {8, 6, 1000, 1, 1},
    {6, 10, 1536, 0, 0}, {16, 40, 80, 0, 0}, {65, 12, 96, 1, 0}, {70, 9, 2100, 0, 1}, {2, 300, 600, 0, 0},
};
static const shape block_shape[] = {
    {1, 1, 256, 0, 0}, {1, 9, 512, 1, 0},  {2, 5, 256, 0, 1},   {3, 7, 768, 0, 0},    {4, 12, 1024, 1, 1},
    {5, 6, 512, 0, 0}, {9, 3, 2560, 0, 0}, {66, 10, 256, 0, 1}, {1, 200, 1536, 0, 0},
};

typedef struct operands {
    dg_mat x, w, bias, out;
} operands;

static operands operands_new(shape s, dg_dtype dtype, uint64_t *seed) {
    const int32_t gap = dg_dtype_get(dtype)->block_len;
    operands o = {mat_new(DG_F32, s.n, s.k, 3),
                  mat_new(dtype, s.m, s.k, s.k % 2 ? gap : 0),
                  {0},
                  mat_new(DG_F32, s.n, s.m, 5)};
    mat_random(o.x, 1, seed);
    mat_random(o.out, 1, seed);
    if (gap == 1)
        mat_random(o.w, 1, seed);
    else
        mat_random_blocks(o.w, seed);
    static const dg_dtype bias_dtype[] = {DG_F32, DG_F16, DG_BF16};
    if (s.bias) {
        o.bias = mat_new(bias_dtype[s.k % 3], 1, s.m, 0);
        mat_random(o.bias, 1, seed);
    }
    return o;
}

static void operands_free(operands o) {
    mat_free(o.x);
    mat_free(o.w);
    mat_free(o.out);
    mat_free(o.bias);
}

/* want and the sum of absolute products, in double. */
static void reference(shape s, const operands *o, double *want, double *scale) {
    dg_mat w = mat_f32(o->w), bias = s.bias ? mat_f32(o->bias) : (dg_mat){0};
    for (int32_t r = 0; r < s.n; r++)
        for (int32_t m = 0; m < s.m; m++) {
            double sum = s.add ? (double)*f32_at(o->out, r, m) : 0;
            if (s.bias) sum += (double)*f32_at(bias, 0, m);
            double size = fabs(sum);
            for (int32_t k = 0; k < s.k; k++) {
                const double p = (double)*f32_at(o->x, r, k) * (double)*f32_at(w, m, k);
                sum += p;
                size += fabs(p);
            }
            want[r * s.m + m] = sum;
            scale[r * s.m + m] = size;
        }
    mat_free(w);
    mat_free(bias);
}

static void check_shape(dg_backend *be, shape s, dg_dtype dtype) {
    uint64_t seed = (uint64_t)(s.n * 131 + s.m * 17 + s.k) + dtype;
    operands o = operands_new(s, dtype, &seed);
    double *want = malloc(sizeof(double) * (size_t)(s.n * s.m)),
           *scale = malloc(sizeof(double) * (size_t)(s.n * s.m));
    reference(s, &o, want, scale);
    dg_matmul(be, o.out, o.x, o.w, o.bias, s.add);
    char what[160];
    snprintf(what, sizeof what, "%s, %s, n %d m %d k %d", dg_backend_describe(be), dg_dtype_get(dtype)->name,
             s.n, s.m, s.k);
    check_scaled(o.out, want, scale, 1e-6, what);
    check_gaps(o.out);
    free(want);
    free(scale);
    operands_free(o);
}

static void all_types(dg_backend *be) {
    for (int t = 0; t < DG_DTYPE_COUNT; t++) {
        if (!dg_dtype_is_weight((dg_dtype)t)) continue;
        const bool plain = dg_dtype_get((dg_dtype)t)->block_len == 1;
        const shape *shapes = plain ? plain_shape : block_shape;
        const size_t n =
            plain ? sizeof plain_shape / sizeof *plain_shape : sizeof block_shape / sizeof *block_shape;
        for (size_t i = 0; i < n; i++) check_shape(be, shapes[i], (dg_dtype)t);
    }
}

static void test_reference(void **state) {
    (void)state;
    on_every_cpu(all_types);
}

/* The value is defined by the decoded weights: packed and decoded weights give the same bits. */
static void packed_is_decoded(dg_backend *be) {
    uint64_t seed = 5;
    for (int t = 0; t < DG_DTYPE_COUNT; t++) {
        if (!dg_dtype_is_weight((dg_dtype)t)) continue;
        static const int32_t rows[] = {1, 2, 3, 4, 5, 9};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const shape s = {rows[i], 11, 1536, 0, 0};
            operands o = operands_new(s, (dg_dtype)t, &seed);
            dg_mat w = mat_f32(o.w), out = mat_new(DG_F32, s.n, s.m, 0);
            dg_matmul(be, o.out, o.x, o.w, o.bias, false);
            dg_matmul(be, out, o.x, w, o.bias, false);
            check_same(o.out, out, dg_dtype_get((dg_dtype)t)->name);
            mat_free(w);
            mat_free(out);
            operands_free(o);
        }
    }
}

static void test_packed_is_decoded(void **state) {
    (void)state;
    on_every_cpu(packed_is_decoded);
}

/* Rows [first, first+n) of a batch of 70 computed as a batch of their own. */
static void rows_alone(dg_backend *be) {
    static const dg_dtype dtype[] = {DG_F32,  DG_F16,  DG_BF16, DG_Q8_0, DG_Q4_0,
                                     DG_Q4_1, DG_Q5_1, DG_Q4_K, DG_Q5_K, DG_Q6_K};
    static const int32_t length[] = {256, 2304};
    static const int32_t n[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 31, 33, 64, 65};
    uint64_t seed = 6;
    for (size_t t = 0; t < sizeof dtype / sizeof *dtype; t += test_device() ? 3 : 1)
        for (size_t l = 0; l < (test_device() ? 1 : 2); l++) {
            const shape s = {70, 37, length[l] + (dg_dtype_get(dtype[t])->block_len == 1 ? 5 : 0), 0, 1};
            operands o = operands_new(s, dtype[t], &seed);
            dg_matmul(be, o.out, o.x, o.w, o.bias, false);
            dg_mat out = mat_new(DG_F32, 70, s.m, 1);
            for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
                const int32_t first = (int32_t)(i * 11) % (71 - n[i]);
                dg_matmul(be, dg_mat_rows(out, 0, n[i]), dg_mat_rows(o.x, first, n[i]), o.w, o.bias,
                                false);
                check_same(dg_mat_rows(out, 0, n[i]), dg_mat_rows(o.out, first, n[i]),
                           dg_dtype_get(dtype[t])->name);
            }
            mat_free(out);
            operands_free(o);
        }
}

static void test_rows_alone(void **state) {
    (void)state;
    on_every_cpu(rows_alone);
}

/* One and several threads, and the instruction sets with FMA among each other, to the bit. */
static void test_threads(void **state) {
    (void)state;
    static const dg_dtype dtype[] = {DG_F32, DG_Q4_1, DG_Q8_0, DG_Q3_K, DG_Q6_K};
    static const int32_t n[] = {1, 4, 9};
    uint64_t seed = 7;
    for (size_t t = 0; t < sizeof dtype / sizeof *dtype; t++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            const shape s = {n[i], 301, 768, 0, 0};
            operands o = operands_new(s, dtype[t], &seed);
            dg_mat out = mat_new(DG_F32, s.n, s.m, 0);
            for (int isa = 0; isa < N_ISA; isa++)
                for (int32_t threads = 1; threads <= 8; threads++) {
                    dg_backend *be = open_cpu(isa_name[isa], threads);
                    if (!be) break;
                    const bool first = threads == 1 && isa <= 1;
                    dg_matmul(be, first ? o.out : out, o.x, o.w, o.bias, false);
                    if (!first) check_same(out, o.out, dg_backend_describe(be));
                    dg_backend_close(be);
                }
            mat_free(out);
            operands_free(o);
        }
}

/* ---- packed weights ---- */

static const dg_dtype packable[] = {DG_Q4_0, DG_Q4_1, DG_Q5_0, DG_Q5_1, DG_Q8_0, DG_Q4_K, DG_Q5_K, DG_Q6_K};
enum { N_PACKABLE = sizeof packable / sizeof *packable };

static const shape packed_shape[] = {
    {1, 1, 256, 0, 0},  {2, 15, 512, 1, 0}, {3, 16, 768, 0, 1},  {4, 17, 1024, 1, 1},  {5, 40, 512, 0, 0},
    {9, 33, 256, 0, 0}, {7, 64, 256, 1, 0}, {130, 20, 256, 0, 1}, {16, 48, 2560, 0, 0}, {1, 700, 1536, 0, 0},
};

/* What rounding x to `most` steps on either side may change, with the largest of each 32 columns as unit. */
static void rounding_bound(shape s, const operands *o, double most, double *bound) {
    dg_mat w = mat_f32(o->w);
    for (int32_t r = 0; r < s.n; r++)
        for (int32_t m = 0; m < s.m; m++) {
            double sum = 0;
            for (int32_t k = 0; k < s.k; k += 32) {
                double largest = 0, weight = 0;
                for (int32_t i = k; i < k + 32; i++) {
                    largest = fmax(largest, fabs((double)*f32_at(o->x, r, i)));
                    weight += fabs((double)*f32_at(w, m, i));
                }
                sum += largest * weight / most / 2;
            }
            bound[r * s.m + m] = sum;
        }
    mat_free(w);
}

static void check_packed(dg_backend *be, shape s, dg_dtype dtype, double most, bool coarse) {
    uint64_t seed = (uint64_t)(s.n * 131 + s.m * 17 + s.k) + dtype;
    operands o = operands_new(s, dtype, &seed);
    const size_t cells = (size_t)(s.n * s.m);
    double *want = malloc(sizeof(double) * cells), *size = malloc(sizeof(double) * cells);
    double *bound = malloc(sizeof(double) * cells);
    reference(s, &o, want, size);
    rounding_bound(s, &o, most, bound);
    /* the codes have offsets as large as themselves, so that sums in f32 round at a few times their size */
    for (size_t i = 0; i < cells; i++) bound[i] += 4e-6 * size[i];
    dg_mat packed = mat_pack(be, o.w, dtype);
    packed.coarse = coarse;
    dg_matmul(be, o.out, o.x, packed, o.bias, s.add);
    char what[160];
    snprintf(what, sizeof what, "%s, packed %s, %g steps, n %d m %d k %d", dg_backend_describe(be),
             dg_dtype_get(dtype)->name, most, s.n, s.m, s.k);
    check_scaled(o.out, want, bound, 1, what);
    check_gaps(o.out);
    free(want);
    free(size);
    free(bound);
    mat_free(packed);
    operands_free(o);
}

/* Fine, with 8 bits, and with 8 bits for the sake of the weights. */
static void test_packed_reference(void **state) {
    (void)state;
    for (int isa = 0; isa < N_ISA; isa++)
        for (int32_t threads = 1; threads <= 2; threads++)
            for (int p = 0; p < 3; p++) {
                dg_backend *be = open_cpu_as(isa_name[isa], threads, p == 1 ? DG_PRECISION_INT8 : DG_PRECISION_FIXED);
                if (!be) break;
                for (int t = 0; t < N_PACKABLE; t++)
                    for (size_t i = 0; i < sizeof packed_shape / sizeof *packed_shape; i++)
                        check_packed(be, packed_shape[i], packable[t], p ? 127 : 63 * 128 + 63, p == 2);
                dg_backend_close(be);
            }
}

/* The largest codes with the largest digits: nothing saturates or overflows. Every weight and every x is the same, so
 * the sum is known: x is a multiple of its own scale. */
static void test_packed_extremes(void **state) {
    (void)state;
    for (int isa = 0; isa < N_ISA; isa++)
        for (int p = 0; p < 2; p++) {
            dg_backend *be = open_cpu_as(isa_name[isa], 1, p ? DG_PRECISION_INT8 : DG_PRECISION_FIXED);
            if (!be) break;
            for (int t = 0; t < N_PACKABLE; t++)
                for (int sign = -1; sign <= 1; sign += 2) {
                    dg_mat w = mat_new(packable[t], 16, 256, 0), x = mat_new(DG_F32, 9, 256, 0);
                    dg_mat out = mat_new(DG_F32, 9, 16, 0);
                    memset(w.data, 0xff, dg_dtype_bytes(w.dtype, 16 * 256));
                    const dg_dtype_info *info = dg_dtype_get(w.dtype);
                    /* codes of all ones; scales of one and no others where there are */
                    for (size_t b = 0; b < 16 * 256 / (size_t)info->block_len; b++) {
                        uint8_t *block = (uint8_t *)w.data + b * (size_t)info->block_size;
                        const uint8_t one[2] = {0x00, 0x3c};
                        memcpy(block + (w.dtype == DG_Q6_K ? 208 : 0), one, 2);
                        if (w.dtype == DG_Q4_1 || w.dtype == DG_Q5_1 || w.dtype == DG_Q4_K || w.dtype == DG_Q5_K)
                            memset(block + 2, 0, 2);
                    }
                    for (int32_t r = 0; r < 9; r++)
                        for (int32_t k = 0; k < 256; k++) *f32_at(x, r, k) = (float)sign * (k % 3 ? 1 : 0.5f);
                    dg_mat f = mat_f32(w), packed = mat_pack(be, w, w.dtype);
                    double want[9 * 16], size[9 * 16];
                    for (int32_t i = 0; i < 9 * 16; i++) want[i] = size[i] = 0;
                    for (int32_t i = 0; i < 9 * 16; i++)
                        for (int32_t k = 0; k < 256; k++) {
                            const double v = (double)*f32_at(x, i / 16, k) * (double)*f32_at(f, i % 16, k);
                            want[i] += v;
                            size[i] += fabs(v);
                        }
                    dg_matmul(be, out, x, packed, (dg_mat){0}, false);
                    check_scaled(out, want, size, p ? 4e-3 : 4e-5, dg_backend_describe(be));
                    mat_free(w), mat_free(x), mat_free(out), mat_free(f), mat_free(packed);
                }
            dg_backend_close(be);
        }
}

/* Rows of a batch, alone and among others; several products at once, and one by one: the same bits. */
static void packed_rows_alone(dg_backend *be) {
    static const int32_t n[] = {1, 2, 3, 4, 5, 8, 13, 16, 17, 31, 64, 129};
    uint64_t seed = 8;
    for (int t = 0; t < N_PACKABLE; t += test_device() ? 3 : 1) { /* a simulated device is slow */
        const shape s = {150, test_device() ? 17 : 37, test_device() ? 512 : 1024, 0, 1};
        operands o = operands_new(s, packable[t], &seed), other = operands_new((shape){150, 21, s.k, 0, 0}, DG_BF16, &seed);
        dg_mat packed = mat_pack(be, o.w, packable[t]), q8 = mat_pack(be, other.w, DG_Q8_0);
        dg_matmul(be, o.out, o.x, packed, o.bias, false);
        dg_matmul(be, other.out, o.x, q8, other.bias, false);
        dg_mat coarse = packed, rough = mat_new(DG_F32, 150, s.m, 0), out4 = mat_new(DG_F32, 150, s.m, 0);
        coarse.coarse = true;
        dg_matmul(be, rough, o.x, coarse, o.bias, false);
        dg_mat out = mat_new(DG_F32, 150, s.m, 1), out2 = mat_new(DG_F32, 150, 21, 1), out3 = mat_new(DG_F32, 150, 21, 0);
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            const int32_t first = (int32_t)(i * 11) % (151 - n[i]);
            const dg_product p[] = {{dg_mat_rows(out, 0, n[i]), packed, o.bias},
                                    {dg_mat_rows(out3, 0, n[i]), other.w, other.bias},
                                    {dg_mat_rows(out4, 0, n[i]), coarse, o.bias},
                                    {dg_mat_rows(out2, 0, n[i]), q8, other.bias}};
            be->ops->matmul(be, dg_mat_rows(o.x, first, n[i]), p, 4, false);
            check_same(dg_mat_rows(out, 0, n[i]), dg_mat_rows(o.out, first, n[i]), dg_dtype_get(packable[t])->name);
            check_same(dg_mat_rows(out4, 0, n[i]), dg_mat_rows(rough, first, n[i]), "coarse beside fine");
            check_same(dg_mat_rows(out2, 0, n[i]), dg_mat_rows(other.out, first, n[i]), "bf16 packed as q8_0");
        }
        mat_free(out), mat_free(out2), mat_free(out3), mat_free(out4), mat_free(rough), mat_free(packed), mat_free(q8);
        operands_free(o);
        operands_free(other);
    }
}

static void test_packed_rows_alone(void **state) {
    (void)state;
    on_every_cpu(packed_rows_alone);
}

/* Weights as they are in the file, of several types and sizes in one call, and one by one: the same bits. */
static void plain_together(dg_backend *be) {
    static const dg_dtype type[] = {DG_BF16, DG_BF16, DG_F16, DG_F32, DG_Q8_0};
    static const int32_t outs[] = {37, 0, 5, 130, 64};
    enum { N = sizeof type / sizeof *type };
    for (int32_t n = 1; n <= 6; n += 5) { /* few rows and many */
        uint64_t seed = 10;
        operands o[N];
        dg_product p[N];
        for (int i = 0; i < N; i++) {
            o[i] = operands_new((shape){n, outs[i] ? outs[i] : 1, 96, 0, i % 2}, type[i], &seed);
            p[i] = (dg_product){mat_new(DG_F32, n, o[i].w.rows, 2), o[i].w, o[i].bias};
            if (!outs[i]) p[i].out.cols = p[i].w.rows = 0, p[i].bias.data = NULL;
            dg_matmul(be, o[i].out, o[0].x, o[i].w, o[i].bias, false);
        }
        be->ops->matmul(be, o[0].x, p, N, false);
        for (int i = 0; i < N; i++) {
            if (outs[i]) check_same(p[i].out, o[i].out, dg_dtype_get(type[i])->name);
            mat_free(p[i].out);
            operands_free(o[i]);
        }
    }
}

static void test_plain_together(void **state) {
    (void)state;
    on_every_cpu(plain_together);
}

/* Products beside each other, as many as there are of one type and of another: the bits of each alone. */
static void side_by_side(dg_backend *be) {
    enum { N = 7, K = 256 };
    static const int32_t m[N] = {37, 1, 16, 21, 40, 8, 33}, rows[] = {1, 9, 18};
    static const dg_dtype dtype[] = {DG_F32, DG_Q2_K, DG_Q4_0, DG_Q5_0, DG_Q4_K, DG_BF16};
    uint64_t seed = 12;
    for (size_t t = 0; t < sizeof dtype / sizeof *dtype; t++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            operands o[N];
            dg_product p[N];
            dg_mat x = mat_new(DG_F32, rows[r], K, 4), alone[N];
            mat_random(x, 1, &seed);
            for (int i = 0; i < N; i++) {
                o[i] = operands_new((shape){rows[r], m[i], K, i % 2, i % 3 == 0}, i == N - 1 ? DG_Q8_0 : dtype[t], &seed);
                alone[i] = mat_new(DG_F32, rows[r], m[i], 0);
                p[i] = (dg_product){o[i].out, o[i].w, o[i].bias};
                if (t != 2 && be->ops->pack_bytes(be, o[i].w, o[i].w.dtype)) p[i].w = mat_pack(be, o[i].w, o[i].w.dtype);
                for (int32_t k = 0; k < rows[r]; k++)
                    memcpy(dg_mat_row(&alone[i], k), dg_mat_row(&o[i].out, k), (size_t)m[i] * sizeof(float));
                dg_matmul(be, alone[i], x, p[i].w, o[i].bias, r != 1);
            }
            be->ops->matmul(be, x, p, N, r != 1);
            for (int i = 0; i < N; i++) {
                check_same(o[i].out, alone[i], dg_dtype_get(dtype[t])->name);
                check_gaps(o[i].out);
                mat_free(alone[i]);
                if (p[i].w.packed) mat_free(p[i].w);
                operands_free(o[i]);
            }
            mat_free(x);
        }
}

static void test_side_by_side(void **state) {
    (void)state;
    on_every_cpu(side_by_side);
}

/* Threads, and the instruction sets with FMA among each other, to the bit; coarse weights as an 8-bit backend. */
static void test_packed_threads(void **state) {
    (void)state;
    uint64_t seed = 9;
    for (int t = 0; t < N_PACKABLE; t++) {
        const shape s = {21, 301, 1536, 0, 0};
        operands o = operands_new(s, packable[t], &seed);
        dg_mat out = mat_new(DG_F32, s.n, s.m, 0);
        for (int p = 0; p < 3; p++)
            for (int isa = p == 2; isa < N_ISA; isa++) /* portable sums, the first, round without FMA */
                for (int32_t threads = 1; threads <= 5; threads++) {
                    dg_backend *be = open_cpu_as(isa_name[isa], threads, p == 1 ? DG_PRECISION_INT8 : DG_PRECISION_FIXED);
                    if (!be) break;
                    dg_mat packed = mat_pack(be, o.w, o.w.dtype);
                    packed.coarse = p == 2;
                    const bool first = threads == 1 && isa <= 1 && p < 2;
                    dg_matmul(be, first ? o.out : out, o.x, packed, o.bias, false);
                    if (!first) check_same(out, o.out, dg_backend_describe(be));
                    mat_free(packed);
                    dg_backend_close(be);
                }
        mat_free(out);
        operands_free(o);
    }
}

/* Quantising while packing gives what quantising first gives. */
static void pack_as_q8(dg_backend *be) {
    static const dg_dtype plain[] = {DG_F32, DG_F16, DG_BF16};
    uint64_t seed = 10;
    for (int t = 0; t < 3; t++) {
        dg_mat w = mat_new(plain[t], 37, 544, 3), q = mat_new(DG_Q8_0, 37, 544, 0);
        mat_random(w, 1, &seed);
        dg_mat f = mat_f32(w);
        for (int32_t r = 0; r < w.rows; r++) dg_quant_row(DG_Q8_0, f32_at(f, r, 0), dg_mat_row(&q, r), 544);
        dg_mat a = mat_pack(be, w, DG_Q8_0), b = mat_pack(be, q, DG_Q8_0);
        assert_int_equal(a.dtype, DG_Q8_0);
        assert_memory_equal(a.data, b.data, be->ops->pack_bytes(be, q, DG_Q8_0));
        mat_free(w), mat_free(f), mat_free(q), mat_free(a), mat_free(b);
    }
}

static void test_pack_as_q8(void **state) {
    (void)state;
    on_every_cpu(pack_as_q8);
}

/* A row that is not finite becomes NaN where a sum sees it, and harms no other; zeros and the smallest numbers give 0. */
static void odd_activations(dg_backend *be) {
    uint64_t seed = 11;
    const shape s = {4, 16, 256, 0, 0};
    operands o = operands_new(s, DG_Q4_1, &seed);
    dg_mat packed = mat_pack(be, o.w, DG_Q4_1), want = mat_new(DG_F32, 1, 16, 0);
    *f32_at(o.x, 0, 40) = NAN;
    *f32_at(o.x, 1, 0) = -INFINITY;
    for (int32_t k = 0; k < 256; k++) *f32_at(o.x, 2, k) = k % 2 ? 1e-42f : 0;
    dg_matmul(be, o.out, o.x, packed, (dg_mat){0}, false);
    dg_matmul(be, want, dg_mat_rows(o.x, 3, 1), packed, (dg_mat){0}, false);
    for (int32_t m = 0; m < 16; m++) {
        assert_true(isnan(*f32_at(o.out, 0, m)) && isnan(*f32_at(o.out, 1, m)));
        assert_true(fabsf(*f32_at(o.out, 2, m)) < 1e-30f);
    }
    check_same(dg_mat_rows(o.out, 3, 1), want, "a row beside others that are not finite");
    mat_free(packed), mat_free(want);
    operands_free(o);
}

static void test_odd_activations(void **state) {
    (void)state;
    on_every_cpu(odd_activations);
}

/* What stays as it is: types without a packed form, rows that are not whole blocks, everything in f32. */
static void test_not_packed(void **state) {
    (void)state;
    dg_backend *be = open_cpu(NULL, 1), *exact = open_cpu_as(NULL, 1, DG_PRECISION_F32);
    for (int t = 0; t < DG_DTYPE_COUNT; t++) {
        if (!dg_dtype_is_weight((dg_dtype)t)) continue;
        dg_mat w = mat_new((dg_dtype)t, 16, 256, 0);
        bool packs = false;
        for (int i = 0; i < N_PACKABLE; i++) packs |= packable[i] == (dg_dtype)t;
        assert_int_equal(be->ops->pack_bytes(be, w, w.dtype), packs ? dg_dtype_bytes(w.dtype, 16 * 256) : 0);
        assert_int_equal(exact->ops->pack_bytes(exact, w, w.dtype), 0);
        assert_ptr_equal(exact->ops->pack(exact, NULL, w, w.dtype).data, w.data);
        mat_free(w);
    }
    dg_mat odd = mat_new(DG_F32, 16, 40, 0), wide = mat_new(DG_Q4_0, 1, MAX_COLS + 32, 0);
    assert_int_equal(be->ops->pack_bytes(be, odd, DG_Q8_0), 0);
    assert_int_equal(be->ops->pack_bytes(be, wide, DG_Q4_0), 0);
    mat_free(odd), mat_free(wide);
    dg_backend_close(be);
    dg_backend_close(exact);
}

/* ---- loose: by a library, on a device ---- */

/* On the CPU nothing is: one of its variants will do. */
static void once(void (*body)(dg_backend *be)) {
    dg_backend *be = open_cpu(NULL, 1);
    body(be);
    dg_backend_close(be);
}

static const shape loose_shape[] = {{17, 33, 256, 0, 0}, {31, 7, 512, 1, 1},  {64, 65, 768, 0, 1},  {129, 20, 256, 1, 0},
                                    {300, 9, 512, 0, 1}, {16, 12, 256, 1, 1}, {17, 5, 1280, 1, 1}};
static const shape loose_odd_shape[] = {{17, 33, 31, 0, 1}, {31, 7, 577, 1, 0}, {64, 3, 100, 1, 1}, {129, 18, 65, 0, 1}, {129, 1, 1, 1, 0}};

/* Packed where the backend packs it: activations have at least 16 bits then. All else is f32. */
static void check_loose(dg_backend *be, shape s, dg_dtype dtype) {
    uint64_t seed = (uint64_t)(s.n * 131 + s.m * 17 + s.k) + dtype;
    operands o = operands_new(s, dtype, &seed);
    const size_t cells = (size_t)(s.n * s.m);
    double *want = malloc(sizeof(double) * cells), *size = malloc(sizeof(double) * cells), tolerance = 4e-6;
    reference(s, &o, want, size);
    const bool halves = (dtype == DG_BF16 || dtype == DG_F16) && be->ops->pack_bytes(be, o.w, dtype);
    dg_mat w = halves ? mat_pack(be, o.w, dtype) : o.w, x = o.x;
    if (halves && dtype == DG_BF16) tolerance += 0x1p-17;
    x.loose = true;
    dg_matmul(be, o.out, x, w, o.bias, s.add);
    char what[160];
    snprintf(what, sizeof what, "%s, loose, %s, n %d m %d k %d", dg_backend_describe(be), dg_dtype_get(dtype)->name, s.n, s.m, s.k);
    check_scaled(o.out, want, size, tolerance, what);
    check_gaps(o.out);
    free(want), free(size);
    if (halves) mat_free(w);
    operands_free(o);
}

static void loose_reference(dg_backend *be) {
    for (int t = 0; t < DG_DTYPE_COUNT; t++) {
        if (!dg_dtype_is_weight((dg_dtype)t)) continue;
        const bool plain = dg_dtype_get((dg_dtype)t)->block_len == 1;
        /* quantised ones go where they always go: one shape is enough */
        for (size_t i = 0; i < (plain ? sizeof loose_shape / sizeof *loose_shape : 2); i++)
            check_loose(be, loose_shape[i], (dg_dtype)t);
        for (size_t i = 0; plain && i < sizeof loose_odd_shape / sizeof *loose_odd_shape; i++)
            check_loose(be, loose_odd_shape[i], (dg_dtype)t);
    }
}

static void test_loose_reference(void **state) {
    (void)state;
    once(loose_reference);
}

/* Of the same shape the same bits, whatever the other rows are; and a backend that has another way takes it. Products of
 * several types beside each other, with fewer bits, too. */
static void loose_rows(dg_backend *be) {
    uint64_t seed = 9;
    const shape s = {150, 19, 1536, 0, 1};
    bool differ = false;
    static const dg_dtype dtype[] = {DG_F32, DG_BF16, DG_F16, DG_Q8_0};
    operands o[4];
    dg_product p[4];
    dg_mat first[4];
    for (int t = 0; t < 4; t++) {
        o[t] = operands_new(s, dtype[t], &seed);
        dg_mat w = o[t].w;
        if (be->ops->pack_bytes(be, w, dtype[t])) w = mat_pack(be, w, dtype[t]);
        p[t] = (dg_product){o[t].out, w, o[t].bias};
        first[t] = mat_new(DG_F32, s.n, s.m, 0);
    }
    dg_mat x = o[0].x, other = mat_new(DG_F32, s.n, s.k, 3);
    x.loose = other.loose = true;
    be->ops->matmul(be, x, p, 4, false);
    for (int t = 0; t < 4; t++)
        for (int32_t r = 0; r < s.n; r++) memcpy(dg_mat_row(&first[t], r), dg_mat_row(&o[t].out, r), (size_t)s.m * sizeof(float));
    mat_random(other, 7, &seed); /* row 100 as before */
    memcpy(dg_mat_row(&other, 100), dg_mat_row(&x, 100), (size_t)s.k * sizeof(float));
    be->ops->matmul(be, other, p, 4, false);
    for (int t = 0; t < 4; t++) check_same(dg_mat_rows(o[t].out, 100, 1), dg_mat_rows(first[t], 100, 1), "loose, among other rows");
    x.loose = false;
    be->ops->matmul(be, x, p, 4, false);
    for (int t = 0; t < 3; t++)
        for (int32_t r = 0; r < s.n; r++)
            differ |= memcmp(dg_mat_row(&first[t], r), dg_mat_row(&o[t].out, r), (size_t)s.m * sizeof(float)) != 0;
    check_same(o[3].out, first[3], "loose, of a type that has one way");
    assert_int_equal(differ, be->ops->has_loose);
    for (int t = 0; t < 4; t++) {
        if (p[t].w.packed) mat_free(p[t].w);
        mat_free(first[t]);
        operands_free(o[t]);
    }
    mat_free(other);
}

static void test_loose_rows(void **state) {
    (void)state;
    once(loose_rows);
}

/* Large, small and no activations: what the halves of f16 hold. */
static void loose_range(dg_backend *be) {
    uint64_t seed = 10;
    const shape s = {40, 8, 64, 0, 0};
    for (int t = 0; t < 2; t++) {
        const dg_dtype dtype = t ? DG_F16 : DG_BF16;
        operands o = operands_new(s, dtype, &seed);
        for (int32_t r = 0; r < s.n; r++)
            for (int32_t k = 0; k < s.k; k++) *f32_at(o.x, r, k) *= r == 0 ? 0 : ldexpf(1, r - 16); /* 2^-15 to 2^23 */
        double want[40 * 8], size[40 * 8];
        reference(s, &o, want, size);
        for (int i = 0; i < s.n * s.m; i++) size[i] = size[i] * 2e-5 + 0x1p-28 * s.k;
        const bool halves = be->ops->pack_bytes(be, o.w, dtype) > 0;
        dg_mat w = halves ? mat_pack(be, o.w, dtype) : o.w, x = o.x;
        x.loose = true;
        dg_matmul(be, o.out, x, w, o.bias, false);
        check_scaled(o.out, want, size, 1, "loose, of every size");
        if (halves) mat_free(w);
        operands_free(o);
    }
}

static void test_loose_range(void **state) {
    (void)state;
    once(loose_range);
}

/* Weights of 16 bits, packed, at the numbers of rows that tensor cores are for: within 16 bits of x, and each row alone. */
static void test_packed_halves(void **state) {
    (void)state;
    dg_backend *be = open_cpu(NULL, 1);
    static const int32_t n[] = {1, 8, 9, 16, 17, 33, 70};
    uint64_t seed = 11;
    for (int t = 0; t < 2; t++) {
        const shape s = {70, 21, 544, 1, 1};
        operands o = operands_new(s, t ? DG_F16 : DG_BF16, &seed);
        dg_mat w = mat_pack(be, o.w, o.w.dtype), before = mat_new(DG_F32, s.n, s.m, 0), out = mat_new(DG_F32, s.n, s.m, 0);
        double want[70 * 21], size[70 * 21];
        reference(s, &o, want, size);
        for (int32_t r = 0; r < s.n; r++) memcpy(dg_mat_row(&before, r), dg_mat_row(&o.out, r), (size_t)s.m * sizeof(float));
        dg_matmul(be, o.out, o.x, w, o.bias, true);
        check_scaled(o.out, want, size, 0x1p-17 + 2e-6, t ? "packed f16" : "packed bf16");
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            const int32_t first = 70 - n[i];
            memcpy(out.data, before.data, (size_t)(s.n * s.m) * sizeof(float));
            dg_matmul(be, dg_mat_rows(out, first, n[i]), dg_mat_rows(o.x, first, n[i]), w, o.bias, true);
            check_same(dg_mat_rows(out, first, n[i]), dg_mat_rows(o.out, first, n[i]), t ? "packed f16 rows" : "packed bf16 rows");
        }
        mat_free(w), mat_free(before), mat_free(out);
        operands_free(o);
    }
    dg_backend_close(be);
}

int main(void) {
    if (device_missing()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_packed_is_decoded),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_threads),
    };
    const struct CMUnitTest packing[] = {
        cmocka_unit_test(test_packed_reference),
        cmocka_unit_test(test_packed_extremes),
        cmocka_unit_test(test_packed_rows_alone),
        cmocka_unit_test(test_plain_together),
        cmocka_unit_test(test_odd_activations),
        cmocka_unit_test(test_side_by_side),
    };
    const struct CMUnitTest loose[] = {
        cmocka_unit_test(test_loose_reference),
        cmocka_unit_test(test_loose_rows),
        cmocka_unit_test(test_loose_range),
    };
    const struct CMUnitTest halves[] = {cmocka_unit_test(test_packed_halves)}; /* a device packs them */
    const struct CMUnitTest layout[] = { /* the CPU's own: how it packs, and its threads */
        cmocka_unit_test(test_packed_threads),
        cmocka_unit_test(test_pack_as_q8),
        cmocka_unit_test(test_not_packed),
    };
    int failed = cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
    failed += cmocka_run_group_tests_name("packed weights", packing, NULL, NULL);
    failed += cmocka_run_group_tests_name("loose", loose, NULL, NULL);
    if (test_device()) failed += cmocka_run_group_tests_name("halves", halves, NULL, NULL);
    if (!test_device()) failed += cmocka_run_group_tests_name("packing", layout, NULL, NULL);
    return failed;
}
