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
    for (size_t t = 0; t < sizeof dtype / sizeof *dtype; t++)
        for (size_t l = 0; l < 2; l++) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_packed_is_decoded),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
