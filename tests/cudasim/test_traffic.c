/* What kernels read of the device's memory: the figures that bench/roofline.py holds against the least there is to read.
 * Only where accesses are logged. */
#include "tests/cudasim/rig.h"

#include "kernels/ops.h"

enum { K = 256, M = 48, H = 8, G = 2, HD = 32, CAP = 320 };

static dg_backend *be;

static dg_mat rows_new(dg_dtype dtype, int32_t rows, int32_t cols) {
    dg_mat m = dg_mat_make(NULL, dtype, rows, cols);
    m.data = be->ops->alloc(be, dg_dtype_bytes(dtype, (size_t)rows * (size_t)cols));
    be->ops->zero(be, m);
    return m;
}

static void watch(dg_mat m) {
    assert_true(be->ops->sync(be));
    dgsim_watched = (dgsim_watch){m.data, dg_dtype_bytes(m.dtype, (size_t)m.rows * (size_t)m.cols), 0};
}

/* How often every byte of the matrix was read. */
static double times_read(void) {
    assert_true(be->ops->sync(be));
    return (double)dgsim_watched.read / (double)dgsim_watched.bytes;
}

/* Packed weights once for every 64 rows, rows of x once for sixteen outputs; other weights once for every eight rows. */
static void test_products(void **state) {
    (void)state;
    static const int32_t n[] = {1, 5, 16, 61, 64, 65};
    dg_mat packed = rows_new(DG_BF16, M, K), plain = rows_new(DG_F32, M, K);
    packed.packed = true;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        dg_mat x = rows_new(DG_F32, n[i], K), out = rows_new(DG_F32, 3 * n[i], M);
        dg_product p[3];
        for (int k = 0; k < 3; k++) p[k] = (dg_product){dg_mat_rows(out, k * n[i], n[i]), packed, {0}};
        watch(packed);
        be->ops->matmul(be, x, p, 3, false); /* as q, k and v: of one matrix, so each reads it */
        assert_true(times_read() == 3 * ((n[i] + 63) / 64));
        watch(x);
        be->ops->matmul(be, x, p, 3, false);
        assert_true(times_read() == 1); /* split once for all products */
        watch(plain);
        dg_matmul(be, p[0].out, x, plain, (dg_mat){0}, false);
        assert_true(times_read() == (n[i] + 7) / 8);
        be->ops->free(be, x.data), be->ops->free(be, out.data);
    }
    be->ops->free(be, packed.data), be->ops->free(be, plain.data);
}

/* K and V once for every strip of rows: those whose query heads of a KV head are sixteen together. */
static void test_attention(void **state) {
    (void)state;
    const int32_t group = H / G, n[] = {1, 4, 16, 61};
    dg_mat cache[2] = {rows_new(DG_F16, CAP, G * HD), rows_new(DG_F16, CAP, G * HD)};
    int32_t at[64];
    uint64_t bits[64][DG_MASK_WORDS] = {{0}};
    for (int32_t i = 0; i < 64; i++) at[i] = CAP - 64 + i, bits[i][0] = UINT64_MAX >> (63 - i);
    int32_t *pos = be->ops->alloc(be, sizeof at);
    uint64_t *seen = be->ops->alloc(be, sizeof bits);
    be->ops->upload(be, pos, at, sizeof at);
    be->ops->upload(be, seen, bits, sizeof bits);
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        dg_mat q = rows_new(DG_F32, n[i], H * HD), out = rows_new(DG_F32, n[i], H * HD);
        const int32_t len = 256; /* spans of their own: a span that window rows may be in is gone through with all of them */
        const dg_attn_seg seg = {.k = cache[0], .v = cache[1], .pos = pos, .bits = seen, .len = len, .win = n[i], .n = n[i],
                                 .mask = DG_MASK_BITS};
        const dg_attn_shape shape = {.n_head = H, .n_kv_head = G, .head_dim = HD, .scale = 1};
        for (int k = 0; k < 2; k++) {
            watch(dg_mat_rows(cache[k], 0, len + n[i]));
            be->ops->attention(be, out, q, &seg, 1, &shape);
            assert_true(times_read() == (n[i] * group + 15) / 16);
        }
        be->ops->free(be, q.data), be->ops->free(be, out.data);
    }
    void *const all[] = {cache[0].data, cache[1].data, pos, seen};
    for (int i = 0; i < 4; i++) be->ops->free(be, all[i]);
}

static int open_device(void **state) {
    const dg_backend_options opt = {.max_cols = K, .max_vocab = 16};
    const char *why = "";
    be = dg_backend_open("cuda", &opt, &why);
    if (!be) print_error("%s\n", why);
    return setup(state) || !be;
}

static int close_device(void **state) {
    dgsim_watched = (dgsim_watch){0};
    dg_backend_close(be);
    return teardown(state);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests_name("traffic", t, open_device, close_device);
}
