/* The libraries that the backend calls, as the simulator has them: who computes what, and what happens where a library is
 * absent or refuses. Results against those of the backend's own kernels. */
#include <math.h>

#include "tests/cudasim/rig.h"

#include "kernels/ops.h"

enum { H = 4, G = 2, HD = 32, LEN = 70, N = 130, CAP = 256, ROW0 = 3 };

static dg_backend *open_device(void) {
    const dg_backend_options opt = {.max_cols = 512, .max_vocab = 16};
    const char *why = "";
    dg_backend *be = dg_backend_open("cuda", &opt, &why);
    if (!be) fail_msg("%s", why);
    return be;
}

static dg_mat random_rows(dg_backend *be, int32_t rows, int32_t cols, uint64_t *seed) {
    const size_t n = (size_t)rows * (size_t)cols;
    float *host = malloc(n * sizeof *host);
    for (size_t i = 0; i < n; i++) host[i] = test_random(seed);
    dg_mat m = dg_mat_make(be->ops->alloc(be, n * sizeof *host), DG_F32, rows, cols);
    be->ops->upload(be, m.data, host, n * sizeof *host);
    free(host);
    return m;
}

/* ---- attention -------------------------------------------------------------------------------- */

typedef struct scene {
    dg_mat q, out, ck, cv;
    int32_t *pos;
    dg_attn_seg seg;
    dg_attn_shape shape;
} scene;

static scene scene_new(dg_backend *be, dg_dtype dtype) {
    uint64_t seed = 3;
    scene c = {.q = random_rows(be, N + ROW0, H * HD, &seed), .out = random_rows(be, N + ROW0, H * HD, &seed)};
    const size_t bytes = CAP * G * HD * sizeof(float);
    c.ck = dg_mat_make(be->ops->alloc(be, bytes), dtype, CAP, G * HD), c.cv = dg_mat_make(be->ops->alloc(be, bytes), dtype, CAP, G * HD);
    be->ops->zero(be, c.ck), be->ops->zero(be, c.cv);
    dg_mat k = random_rows(be, LEN + N, G * HD, &seed), v = random_rows(be, LEN + N, G * HD, &seed);
    const dg_qkv rows = {.k = k, .v = v, .head_dim = HD};
    const dg_attn_seg all = {.k = c.ck, .v = c.cv, .win = LEN + N, .n = LEN + N, .mask = DG_MASK_CAUSAL};
    be->ops->qkv(be, &rows, &all, 1);
    int32_t pos[N];
    for (int32_t i = 0; i < N; i++) pos[i] = LEN + i;
    c.pos = be->ops->alloc(be, sizeof pos);
    be->ops->upload(be, c.pos, pos, sizeof pos);
    c.seg = (dg_attn_seg){.k = c.ck, .v = c.cv, .pos = c.pos, .len = LEN, .win = N, .row0 = ROW0, .n = N, .mask = DG_MASK_CAUSAL};
    c.shape = (dg_attn_shape){.n_head = H, .n_kv_head = G, .head_dim = HD, .scale = 0.8f};
    be->ops->free(be, k.data), be->ops->free(be, v.data);
    return c;
}

static void scene_free(dg_backend *be, scene *c) {
    void *const all[] = {c->q.data, c->out.data, c->ck.data, c->cv.data, c->pos};
    for (int i = 0; i < 5; i++) be->ops->free(be, all[i]);
}

/* The largest difference between loose attention and the other. */
static float loose_error(dg_backend *be, scene *c) {
    static float got[2][(N + ROW0) * H * HD];
    for (int i = 0; i < 2; i++) {
        c->shape.loose = i;
        be->ops->attention(be, c->out, c->q, &c->seg, 1, &c->shape);
        be->ops->download(be, got[i], c->out.data, sizeof got[i]);
    }
    float most = 0;
    for (size_t i = 0; i < sizeof got[0] / sizeof *got[0]; i++) most = fmaxf(most, fabsf(got[0][i] - got[1][i]));
    return most;
}

/* The graph for the library says what the kernel does, to the rounding of the cache's type. Twice: by the plan that is kept. */
static void test_cudnn_graph(void **state) {
    (void)state;
    dgsim.cudnn = 1;
    dg_backend *be = open_device();
    for (int t = 0; t < 2; t++) {
        scene c = scene_new(be, t ? DG_BF16 : DG_F16);
        const float error = loose_error(be, &c);
        assert_true(error > 0 && error < (t ? 2e-2f : 2e-3f));
        assert_true(loose_error(be, &c) == error);
        c.seg.len = 0, c.seg.win = LEN + N; /* the same keys, none of them committed, of which the last rows are asked for */
        assert_true(loose_error(be, &c) == error);
        scene_free(be, &c);
    }
    dg_backend_close(be);
    dgsim.cudnn = 0;
}

/* What is not the library's is the kernel's, to the bit. */
static void test_cudnn_is_not_asked(void **state) {
    (void)state;
    dg_backend *be = open_device();
    scene c = scene_new(be, DG_F16);
    assert_true(loose_error(be, &c) == 0); /* there is none */
    scene_free(be, &c);
    dg_backend_close(be);
    dgsim.cudnn = 1;
    be = open_device();
    c = scene_new(be, DG_F32);
    assert_true(loose_error(be, &c) == 0);
    scene_free(be, &c);
    c = scene_new(be, DG_F16);
    c.shape.window = LEN + N - 1;
    assert_true(loose_error(be, &c) == 0);
    c.shape.window = LEN + N;
    assert_true(loose_error(be, &c) > 0);
    c.seg.mask = DG_MASK_FULL;
    assert_true(loose_error(be, &c) == 0);
    c.seg.mask = DG_MASK_CAUSAL, c.seg.win = c.seg.n = 127;
    assert_true(loose_error(be, &c) == 0);
    scene_free(be, &c);
    dg_backend_close(be);
    dgsim.cudnn = 0;
}

/* ---- products --------------------------------------------------------------------------------- */

/* Whether a loose product has other bits than the other. */
static bool product_differs(dg_backend *be, dg_dtype dtype, int32_t rows) {
    uint64_t seed = 4;
    enum { M = 24, K = 320 };
    dg_mat x = random_rows(be, rows, K, &seed), bias = random_rows(be, 1, M, &seed), out = random_rows(be, rows, M, &seed);
    uint16_t host[M * K];
    for (int i = 0; i < M * K; i++) host[i] = (uint16_t)(0x3c00 + (int32_t)(512 * test_random(&seed))); /* small, in both types */
    dg_mat w = dtype == DG_F32 ? random_rows(be, M, K, &seed) : dg_mat_make(host, dtype, M, K), packed = w;
    if (dtype != DG_F32) packed = be->ops->pack(be, be->ops->alloc(be, be->ops->pack_bytes(be, w, dtype)), w, dtype);
    assert_true(dtype == DG_F32 || packed.packed);
    float *got[2];
    for (int i = 0; i < 2; i++) {
        x.loose = i;
        dg_matmul(be, out, x, packed, bias, false);
        got[i] = malloc((size_t)rows * M * sizeof(float));
        be->ops->download(be, got[i], out.data, (size_t)rows * M * sizeof(float));
    }
    const bool differs = memcmp(got[0], got[1], (size_t)rows * M * sizeof(float)) != 0;
    free(got[0]), free(got[1]);
    void *const all[] = {x.data, bias.data, out.data, packed.data};
    for (int i = 0; i < 4; i++) be->ops->free(be, all[i]);
    assert_true(be->ops->sync(be));
    return differs;
}

static void test_who_multiplies(void **state) {
    (void)state;
    static const dg_dtype dtype[] = {DG_F32, DG_F16, DG_BF16};
    dg_backend *be = open_device();
    for (int t = 0; t < 3; t++) {
        assert_true(product_differs(be, dtype[t], 17));
        assert_true(product_differs(be, dtype[t], 300));
        assert_false(product_differs(be, dtype[t], 16));
    }
    dg_backend_close(be);
    dgsim.no_blas = 1; /* what has been chosen before is kept, so with another backend */
    be = open_device();
    for (int t = 0; t < 3; t++) assert_false(product_differs(be, dtype[t], 40));
    dgsim.no_blas = 0;
    for (int t = 0; t < 3; t++) assert_false(product_differs(be, dtype[t], 40)); /* refusals are kept, too */
    dg_backend_close(be);
}

/* More shapes than choices are kept of. */
static void test_many_shapes(void **state) {
    (void)state;
    dg_backend *be = open_device();
    for (int32_t rows = 17; rows < 17 + 600; rows++) {
        uint64_t seed = 5;
        dg_mat x = random_rows(be, rows, 4, &seed), w = random_rows(be, 2, 4, &seed), out = random_rows(be, rows, 2, &seed);
        float last[2], want[2];
        dg_matmul(be, dg_mat_rows(out, rows - 1, 1), dg_mat_rows(x, rows - 1, 1), w, (dg_mat){0}, false);
        be->ops->download(be, want, (float *)out.data + 2 * (rows - 1), sizeof want);
        x.loose = true;
        dg_matmul(be, out, x, w, (dg_mat){0}, false);
        be->ops->download(be, last, (float *)out.data + 2 * (rows - 1), sizeof last);
        check_near(last, want, 2, 1e-6, "one of many shapes");
        be->ops->free(be, x.data), be->ops->free(be, w.data), be->ops->free(be, out.data);
    }
    assert_true(be->ops->sync(be));
    dg_backend_close(be);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_cudnn_graph), cmocka_unit_test(test_cudnn_is_not_asked),
                                   cmocka_unit_test(test_who_multiplies), cmocka_unit_test(test_many_shapes)};
    return cmocka_run_group_tests_name("libraries", t, setup, teardown);
}
