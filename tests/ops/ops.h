/* Shared by the op tests: CPU backends of every instruction set and several thread counts, or a device's, random
 * operands, and comparisons. */
#ifndef DG_TESTS_OPS_H
#define DG_TESTS_OPS_H

#include "tests/test.h"

#include <math.h>

#include "kernels/ops.h"
#include "kernels/quant.h"
#include "tests/mirror.h"

enum { MAX_KEYS = 2048, MAX_VOCAB = 70000, MAX_COLS = 3072 };

/* amx-model is amx with the tiles in software, and exists in test builds only. */
static const char *const isa_name[] = {"portable", "avx2", "avxvnni", "avx512", "amx", "amx-model"};
enum { N_ISA = 6 };

/* The device's backend, for host memory. It stands in for the first of the CPU's variants; there are no others. */
static inline dg_backend *open_mirrored(const char *isa, int32_t threads, const dg_backend_options *opt) {
    if ((isa && strcmp(isa, isa_name[0]) != 0) || threads != 1) return NULL;
    const char *why = "";
    dg_backend *be = dg_backend_open(test_device(), opt, &why);
    if (!be) fail_msg("%s", why);
    mirror_backend(be);
    return be;
}

/* NULL when the machine has no such instruction set. Where a device is tested, it is what the tests get. */
static inline dg_backend *open_cpu_as(const char *isa, int32_t threads, dg_precision precision) {
    const dg_backend_options opt = {.threads = threads,
                                    .isa = isa,
                                    .precision = precision,
                                    .max_cols = MAX_COLS,
                                    .max_vocab = MAX_VOCAB,
                                    .alloc = dg_mem_alloc,
                                    .free = dg_mem_free};
    if (test_device()) return open_mirrored(isa, threads, &opt);
    const char *why = "";
    dg_backend *be = dg_backend_open("cpu", &opt, &why);
    if (!be && strcmp(why, "no such instruction set on this machine") != 0) fail_msg("%s", why);
    return be;
}

static inline dg_backend *open_cpu(const char *isa, int32_t threads) {
    return open_cpu_as(isa, threads, DG_PRECISION_FIXED);
}

/* w as the backend packs it, of type `as`; free with mat_free. */
static inline dg_mat mat_pack(dg_backend *be, dg_mat w, dg_dtype as) {
    const size_t bytes = be->ops->pack_bytes(be, w, as);
    assert_true(bytes > 0 && bytes % 16 == 0);
    return be->ops->pack(be, aligned_alloc(64, (bytes + 63) / 64 * 64), w, as);
}

/* Runs body(be) for every instruction set of the machine with 1, 2 and 3 threads. */
static inline void on_every_cpu(void (*body)(dg_backend *be)) {
    for (int i = 0; i < N_ISA; i++)
        for (int32_t threads = 1; threads <= 3; threads++) {
            dg_backend *be = open_cpu(isa_name[i], threads);
            if (!be) break;
            body(be);
            dg_backend_close(be);
        }
}

/* rows x cols with `gap` unused elements behind each row; free with mat_free. */
static inline dg_mat mat_new(dg_dtype dtype, int32_t rows, int32_t cols, int32_t gap) {
    dg_mat m = dg_mat_make(NULL, dtype, rows, cols);
    m.stride = cols + gap;
    const size_t bytes = dg_dtype_bytes(dtype, (size_t)(rows * m.stride));
    m.data = malloc(bytes + 1);
    memset(m.data, 0xab, bytes);
    return m;
}

static inline void mat_free(dg_mat m) { free(m.data); }

static inline float *f32_at(dg_mat m, int32_t row, int32_t col) { return (float *)dg_mat_row(&m, row) + col; }

/* Uniform in [-scale, scale). */
static inline void mat_random(dg_mat m, float scale, uint64_t *seed) {
    float *row = malloc(sizeof(float) * (size_t)m.cols);
    for (int32_t r = 0; r < m.rows; r++) {
        for (int32_t c = 0; c < m.cols; c++) row[c] = scale * test_random(seed);
        if (m.dtype == DG_F64)
            for (int32_t c = 0; c < m.cols; c++) ((double *)dg_mat_row(&m, r))[c] = (double)row[c];
        else
            dg_quant_row(m.dtype, row, dg_mat_row(&m, r), (size_t)m.cols);
    }
    free(row);
}

/* Random bytes in every block, drawn again until the block decodes to ordinary numbers. */
static inline void mat_random_blocks(dg_mat m, uint64_t *seed) {
    const dg_dtype_info *info = dg_dtype_get(m.dtype);
    float value[256];
    for (int32_t r = 0; r < m.rows; r++) {
        uint8_t *b = dg_mat_row(&m, r);
        for (int32_t i = 0; i < m.cols / info->block_len; i++, b += info->block_size) {
            float most;
            do {
                for (int32_t k = 0; k < info->block_size; k++)
                    b[k] = (uint8_t)(128 * test_random(seed) + 128);
                dg_dequant_row(m.dtype, b, value, (size_t)info->block_len);
                most = 0;
                for (int32_t k = 0; k < info->block_len; k++)
                    most = fabsf(value[k]) <= most ? most : isfinite(value[k]) ? fabsf(value[k]) : 1e9f;
            } while (!(most <= 16));
        }
    }
}

/* Rows row0.. of a cache = k and v, f32. */
static inline void put_rows(dg_backend *be, dg_mat ck, dg_mat cv, int32_t row0, dg_mat k, dg_mat v, int32_t head_dim) {
    const dg_qkv r = {.k = k, .v = v, .head_dim = head_dim};
    const dg_attn_seg seg = {.k = ck, .v = cv, .len = row0, .win = k.rows, .n = k.rows, .mask = DG_MASK_CAUSAL};
    be->ops->qkv(be, &r, &seg, 1);
}

/* Rotates the heads of x by its rows of a table. */
static inline void turn_rows(dg_backend *be, dg_mat x, dg_mat table, bool interleaved) {
    const int32_t hd = table.cols, cap = (x.rows + DG_KV_BLOCK - 1) / DG_KV_BLOCK * DG_KV_BLOCK;
    float *zero = calloc(4 * (size_t)cap * (size_t)hd, sizeof *zero);
    dg_mat part[4];
    for (int i = 0; i < 4; i++)
        part[i] = dg_mat_make(zero + (size_t)i * (size_t)cap * (size_t)hd, DG_F32, i < 2 ? cap : x.rows, hd);
    const dg_qkv r = {.q = x, .k = part[2], .v = part[3], .rope = table, .head_dim = hd, .interleaved = interleaved};
    const dg_attn_seg seg = {.k = part[0], .v = part[1], .win = x.rows, .n = x.rows, .mask = DG_MASK_CAUSAL};
    be->ops->qkv(be, &r, &seg, 1);
    free(zero);
}

/* The same numbers as f32, densely. */
static inline dg_mat mat_f32(dg_mat m) {
    dg_mat f = mat_new(DG_F32, m.rows, m.cols, 0);
    for (int32_t r = 0; r < m.rows; r++)
        dg_dequant_row(m.dtype, dg_mat_row(&m, r), dg_mat_row(&f, r), (size_t)m.cols);
    return f;
}

/* Equal to the bit, row by row; the gaps behind rows do not count. */
#define check_same(a, b, what) check_same_at((a), (b), (what), __FILE__, __LINE__)
static inline void check_same_at(dg_mat a, dg_mat b, const char *what, const char *file, int line) {
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.cols, b.cols);
    for (int32_t r = 0; r < a.rows; r++) {
        if (memcmp(dg_mat_row(&a, r), dg_mat_row(&b, r), dg_dtype_bytes(a.dtype, (size_t)a.cols)) == 0)
            continue;
        int32_t c = 0;
        if (a.dtype == DG_F32)
            while (memcmp(f32_at(a, r, c), f32_at(b, r, c), sizeof(float)) == 0) c++;
        print_error("%s: row %d column %d: %.9g is not %.9g\n", what, r, c,
                    a.dtype == DG_F32 ? (double)*f32_at(a, r, c) : 0,
                    a.dtype == DG_F32 ? (double)*f32_at(b, r, c) : 0);
        _fail(file, line);
    }
}

/* |got - want| <= tol * scale for every element; want and scale are [rows*cols] in double. */
#define check_scaled(got, want, scale, tol, what) \
    check_scaled_at((got), (want), (scale), (tol), (what), __FILE__, __LINE__)
static inline void check_scaled_at(dg_mat got, const double *want, const double *scale, double tol,
                                   const char *what, const char *file, int line) {
    for (int32_t r = 0; r < got.rows; r++)
        for (int32_t c = 0; c < got.cols; c++) {
            const size_t i = (size_t)r * (size_t)got.cols + (size_t)c;
            const double g = (double)*f32_at(got, r, c);
            if (fabs(g - want[i]) <= tol * scale[i]) continue;
            print_error("%s: row %d column %d: got %.9g, want %.9g, tolerance %g\n", what, r, c, g, want[i],
                        tol * scale[i]);
            _fail(file, line);
        }
}

/* The gaps behind the rows still hold what mat_new put there. */
static inline void check_gaps(dg_mat m) {
    const size_t used = dg_dtype_bytes(m.dtype, (size_t)m.cols),
                 all = dg_dtype_bytes(m.dtype, (size_t)m.stride);
    for (int32_t r = 0; r < m.rows; r++)
        for (size_t i = used; i < all; i++) assert_int_equal(((uint8_t *)dg_mat_row(&m, r))[i], 0xab);
}

#endif
