/* attention: against a double-precision loop for every mask, window, grouping and cache type, and its promise
 * that a tree path and a chain of the same tokens give the same bits. */
#include "tests/ops/ops.h"

typedef struct shape {
    int32_t heads, kv_heads, hd, window;
    dg_dtype dtype;
    dg_mask mask;
    int32_t len, win, n;
} shape;

static const shape cases[] = {
    {1, 1, 16, 0, DG_F32, DG_MASK_CAUSAL, 0, 1, 1},    {1, 1, 1, 0, DG_F32, DG_MASK_CAUSAL, 3, 2, 2},
    {3, 1, 64, 0, DG_F32, DG_MASK_CAUSAL, 100, 1, 1},  {9, 3, 64, 0, DG_F16, DG_MASK_CAUSAL, 300, 1, 1},
    {9, 3, 64, 0, DG_F32, DG_MASK_BITS, 77, 33, 33},   {4, 4, 80, 0, DG_BF16, DG_MASK_CAUSAL, 0, 40, 40},
    {4, 2, 24, 0, DG_F16, DG_MASK_FULL, 50, 16, 16},   {8, 2, 128, 0, DG_BF16, DG_MASK_BITS, 200, 20, 7},
    {5, 1, 40, 0, DG_F32, DG_MASK_FULL, 0, 9, 9},      {6, 1, 256, 0, DG_F32, DG_MASK_CAUSAL, 31, 5, 3},
    {3, 1, 24, 8, DG_F32, DG_MASK_CAUSAL, 20, 12, 12}, {3, 3, 32, 1, DG_F16, DG_MASK_CAUSAL, 20, 3, 3},
    {2, 1, 96, 16, DG_F32, DG_MASK_BITS, 64, 40, 40},  {2, 2, 24, 5, DG_BF16, DG_MASK_FULL, 3, 10, 10},
    {7, 1, 33, 64, DG_F32, DG_MASK_CAUSAL, 500, 9, 4}, {16, 16, 17, 0, DG_F16, DG_MASK_BITS, 0, 256, 5},
    {2, 1, 48, 7, DG_F32, DG_MASK_CAUSAL, 2, 1, 1},    {3, 1, 64, 0, DG_F32, DG_MASK_CAUSAL, 1500, 300, 3},
    {9, 3, 64, 0, DG_F16, DG_MASK_CAUSAL, 0, 256, 256}, {9, 3, 64, 0, DG_F16, DG_MASK_BITS, 1000, 64, 64},
    {8, 1, 264, 0, DG_F16, DG_MASK_CAUSAL, 70, 9, 9},  {70, 1, 32, 0, DG_F16, DG_MASK_FULL, 300, 2, 2},
    {4, 2, 64, 100, DG_F16, DG_MASK_CAUSAL, 900, 256, 256},
};

/* Too much for a simulated device. */
static bool too_long(shape s) { return test_device() && (int64_t)s.heads * s.n * (s.len + s.win) * s.hd > 4000000; }

typedef struct scene {
    dg_mat q, k, v, out; /* k, v: rows as the cache holds them, row by row */
    dg_mat ck, cv;       /* the cache */
    int32_t *pos;
    uint64_t *bits;
    dg_attn_seg seg;
    dg_attn_shape shape;
} scene;

static dg_mat cache_new(dg_dtype dtype, int32_t rows, int32_t cols) {
    return mat_new(dtype, (rows + DG_KV_BLOCK - 1) / DG_KV_BLOCK * DG_KV_BLOCK, cols, 0);
}

/* Puts rows of k and v, of any type, into a cache. */
static void cache_fill(dg_backend *be, dg_mat ck, dg_mat cv, dg_mat k, dg_mat v, int32_t head_dim) {
    dg_mat kf = mat_f32(k), vf = mat_f32(v);
    put_rows(be, ck, cv, 0, kf, vf, head_dim);
    mat_free(kf);
    mat_free(vf);
}

/* A random tree in the window: parents come first; positions are depths, so that siblings share one. */
static scene scene_new(dg_backend *be, shape s, uint64_t *seed) {
    scene c = {0};
    const int32_t cap = s.len + s.win + 2;
    c.q = mat_new(DG_F32, s.n + 3, s.heads * s.hd, 2);
    c.out = mat_new(DG_F32, s.n + 3, s.heads * s.hd, 1);
    c.k = mat_new(s.dtype, cap, s.kv_heads * s.hd, 4);
    c.v = mat_new(s.dtype, cap, s.kv_heads * s.hd, 8);
    mat_random(c.q, 2, seed);
    mat_random(c.k, 2, seed);
    mat_random(c.v, 1, seed);
    mat_random(c.out, 1, seed);
    c.pos = calloc((size_t)s.win, sizeof *c.pos);
    c.bits = calloc((size_t)s.win * DG_MASK_WORDS, sizeof *c.bits);
    uint64_t(*all)[DG_MASK_WORDS] = calloc((size_t)s.win, sizeof *all);
    for (int32_t j = 0; j < s.win; j++) {
        c.pos[j] = s.len + j;
        if (s.mask != DG_MASK_BITS) continue;
        const int32_t parent = j ? (int32_t)((test_random(seed) + 1) / 2 * (float)j) : -1;
        c.pos[j] = parent < 0 ? s.len : c.pos[parent] + 1;
        if (parent >= 0) memcpy(all[j], all[parent], sizeof all[j]);
        all[j][j / 64] |= (uint64_t)1 << (j % 64);
    }
    for (int32_t i = 0; i < s.n; i++) memcpy(c.bits + i * DG_MASK_WORDS, all[s.win - s.n + i], sizeof all[0]);
    free(all);
    c.ck = cache_new(s.dtype, cap, s.kv_heads * s.hd);
    c.cv = cache_new(s.dtype, cap, s.kv_heads * s.hd);
    cache_fill(be, c.ck, c.cv, c.k, c.v, s.hd);
    c.seg = (dg_attn_seg){c.ck, c.cv, c.pos, c.bits, s.len, s.win, 1, s.n, s.mask, NULL};
    c.shape = (dg_attn_shape){s.heads, s.kv_heads, s.hd, s.window, 1 / sqrtf((float)s.hd), false};
    return c;
}

static void scene_free(scene *c) {
    mat_free(c->q);
    mat_free(c->k);
    mat_free(c->v);
    mat_free(c->out);
    mat_free(c->ck);
    mat_free(c->cv);
    free(c->pos);
    free(c->bits);
}

static bool sees(const dg_attn_seg *s, int32_t i, int32_t row, int32_t window) {
    const int32_t self = s->win - s->n + i, j = row - s->len;
    const int32_t pos = j < 0 ? row : s->pos[j];
    if (window && abs(s->pos[self] - pos) >= window) return false;
    if (j < 0 || s->mask == DG_MASK_FULL) return true;
    if (s->mask == DG_MASK_CAUSAL) return j <= self;
    return s->bits[i * DG_MASK_WORDS + j / 64] >> (j % 64) & 1;
}

/* Softmax attention of head h of row i, in double. scale: what the tolerance is relative to. */
static void reference(const scene *c, dg_mat k, dg_mat v, int32_t i, int32_t h, double *want, double *scale) {
    const dg_attn_seg *s = &c->seg;
    const int32_t hd = c->shape.head_dim, g = h / (c->shape.n_head / c->shape.n_kv_head), n = s->len + s->win;
    double *score = malloc(sizeof(double) * (size_t)n), max = -INFINITY, sum = 0;
    for (int32_t r = 0; r < n; r++) {
        score[r] = -INFINITY;
        if (!sees(s, i, r, c->shape.window)) continue;
        score[r] = 0;
        for (int32_t d = 0; d < hd; d++)
            score[r] += (double)*f32_at(c->q, s->row0 + i, h * hd + d) * (double)*f32_at(k, r, g * hd + d);
        score[r] *= (double)c->shape.scale;
        max = fmax(max, score[r]);
    }
    for (int32_t r = 0; r < n; r++) sum += exp(score[r] - max);
    for (int32_t d = 0; d < hd; d++) {
        want[d] = 0;
        scale[d] = 1;
        for (int32_t r = 0; r < n; r++)
            if (score[r] > -INFINITY)
                want[d] += exp(score[r] - max) / sum * (double)*f32_at(v, r, g * hd + d);
    }
    free(score);
}

static void check_scene(dg_backend *be, scene *c, const char *name) {
    const dg_attn_seg *s = &c->seg;
    const int32_t heads = c->shape.n_head, hd = c->shape.head_dim;
    dg_mat k = mat_f32(c->k), v = mat_f32(c->v), before = mat_f32(c->out);
    const size_t cols = (size_t)(heads * hd);
    double *want = malloc(sizeof(double) * cols * (size_t)s->n),
           *scale = malloc(sizeof(double) * cols * (size_t)s->n);
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t h = 0; h < heads; h++) {
            const size_t at = (size_t)i * cols + (size_t)(h * hd);
            reference(c, k, v, i, h, want + at, scale + at);
        }
    be->ops->attention(be, c->out, c->q, s, 1, &c->shape);
    char what[100];
    snprintf(what, sizeof what, "%s, %s", dg_backend_describe(be), name);
    check_scaled(dg_mat_rows(c->out, 1, s->n), want, scale, 5e-6, what);
    check_same(dg_mat_rows(c->out, 0, 1), dg_mat_rows(before, 0, 1), "row before the segment");
    check_same(dg_mat_rows(c->out, 1 + s->n, 2), dg_mat_rows(before, 1 + s->n, 2), "rows behind the segment");
    check_gaps(c->out);
    mat_free(k);
    mat_free(v);
    mat_free(before);
    free(want);
    free(scale);
}

static void against_reference(dg_backend *be) {
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        if (too_long(cases[t])) continue;
        uint64_t seed = t + 1;
        char name[20];
        snprintf(name, sizeof name, "case %zu", t);
        scene c = scene_new(be, cases[t], &seed);
        check_scene(be, &c, name);
        scene_free(&c);
        if (!cases[t].window) continue;
        /* the same with window rows that skip positions, and that start behind a gap */
        c = scene_new(be, cases[t], &seed);
        for (int32_t j = 0; j < c.seg.win; j++) c.pos[j] += 2 + (c.pos[j] - c.seg.len);
        check_scene(be, &c, "positions with gaps");
        scene_free(&c);
    }
}

static void test_reference(void **state) {
    (void)state;
    on_every_cpu(against_reference);
}

/* Every path of a tree, run as a chain over a cache that holds just that path. */
static void tree_is_chain(dg_backend *be) {
    static const shape trees[] = {{9, 3, 64, 0, DG_F32, DG_MASK_BITS, 130, 60, 60},
                                  {9, 3, 64, 0, DG_F16, DG_MASK_BITS, 250, 16, 16},
                                  {4, 4, 24, 0, DG_F16, DG_MASK_BITS, 0, 64, 64},
                                  {4, 1, 80, 12, DG_BF16, DG_MASK_BITS, 37, 200, 200},
                                  {2, 1, 48, 300, DG_F16, DG_MASK_BITS, 500, 90, 90}};
    for (size_t t = 0; t < sizeof trees / sizeof *trees; t++) {
        const shape s = trees[t];
        const int32_t skip_by = test_device() ? 13 : 1;
        if (test_device() && t % 2 == 0) continue;
        uint64_t seed = 40 + t;
        scene c = scene_new(be, s, &seed);
        be->ops->attention(be, c.out, c.q, &c.seg, 1, &c.shape);
        const int32_t most = s.len + s.win;
        dg_mat k = mat_new(DG_F32, most, c.k.cols, 0), v = mat_new(DG_F32, most, c.k.cols, 0);
        dg_mat kf = mat_f32(c.k), vf = mat_f32(c.v);
        dg_mat ck = cache_new(s.dtype, most, c.k.cols), cv = cache_new(s.dtype, most, c.k.cols);
        dg_mat q = mat_new(DG_F32, s.win, c.q.cols, 0), out = mat_new(DG_F32, s.win, c.q.cols, 0);
        for (int32_t leaf = 0; leaf < s.win; leaf += skip_by) {
            int32_t idx[DG_TREE_MAX], depth = 0, pos[DG_TREE_MAX], row[MAX_KEYS];
            for (int32_t j = 0; j < s.win; j++)
                if (c.bits[leaf * DG_MASK_WORDS + j / 64] >> (j % 64) & 1)
                    idx[depth] = j + 1, pos[depth++] = c.pos[j];
            for (int32_t r = 0; r < s.len + depth; r++) row[r] = r < s.len ? r : s.len + idx[r - s.len] - 1;
            const dg_mat kp = dg_mat_rows(k, 0, s.len + depth), vp = dg_mat_rows(v, 0, s.len + depth);
            be->ops->rows_gather(be, kp, kf, row);
            be->ops->rows_gather(be, vp, vf, row);
            put_rows(be, ck, cv, 0, kp, vp, s.hd);
            be->ops->rows_gather(be, dg_mat_rows(q, 0, depth), c.q, idx);
            dg_attn_seg chain = {ck, cv, pos, NULL, s.len, depth, 0, depth, DG_MASK_CAUSAL, NULL};
            be->ops->attention(be, dg_mat_rows(out, 0, depth), dg_mat_rows(q, 0, depth), &chain, 1, &c.shape);
            for (int32_t d = 0; d < depth; d++)
                check_same(dg_mat_rows(out, d, 1), dg_mat_rows(c.out, idx[d], 1),
                           "path of a tree as a chain");
            /* and the last of them as a plain step, everything before it committed */
            const dg_attn_seg step = {ck, cv, pos + depth - 1, NULL, s.len + depth - 1, 1,
                                      0, 1, DG_MASK_CAUSAL, NULL};
            be->ops->attention(be, dg_mat_rows(out, 0, 1), dg_mat_rows(q, depth - 1, 1), &step, 1, &c.shape);
            check_same(dg_mat_rows(out, 0, 1), dg_mat_rows(c.out, idx[depth - 1], 1),
                       "path of a tree step by step");
        }
        dg_mat *const all[] = {&k, &v, &kf, &vf, &ck, &cv, &q, &out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) mat_free(*all[i]);
        scene_free(&c);
    }
}

static void test_tree_is_chain(void **state) {
    (void)state;
    on_every_cpu(tree_is_chain);
}

/* Two sequences in one call give what each gives alone, on any number of threads. */
static void test_segments_and_threads(void **state) {
    (void)state;
    static const shape pairs[][2] = {{{6, 2, 40, 0, DG_F32, DG_MASK_CAUSAL, 211, 9, 9},
                                      {6, 2, 40, 0, DG_F32, DG_MASK_BITS, 500, 17, 17}},
                                     {{9, 3, 64, 0, DG_F16, DG_MASK_CAUSAL, 1700, 1, 1},
                                      {9, 3, 64, 0, DG_F16, DG_MASK_BITS, 1023, 4, 4}}};
    for (int i = 0; i < 2 * N_ISA; i++) {
        const int isa = i / 2;
        const shape a = pairs[i % 2][0], b = pairs[i % 2][1];
        uint64_t seed = 70;
        dg_backend *any = open_cpu("portable", 1);
        scene one = scene_new(any, a, &seed), two = scene_new(any, b, &seed);
        dg_backend_close(any);
        dg_mat q = mat_new(DG_F32, a.n + b.n, one.q.cols, 0), out = mat_new(DG_F32, a.n + b.n, one.q.cols, 0);
        for (int32_t threads = 1; threads <= 5; threads++) {
            dg_backend *be = open_cpu(isa_name[isa], threads);
            if (!be) break;
            if (threads == 1) {
                be->ops->attention(be, one.out, one.q, &one.seg, 1, &one.shape);
                be->ops->attention(be, two.out, two.q, &two.seg, 1, &two.shape);
            }
            be->ops->copy2d(be, dg_mat_rows(q, 0, b.n), dg_mat_rows(two.q, 1, b.n));
            be->ops->copy2d(be, dg_mat_rows(q, b.n, a.n), dg_mat_rows(one.q, 1, a.n));
            be->ops->zero(be, out);
            dg_attn_seg seg[2] = {one.seg, two.seg};
            seg[1].row0 = 0;
            seg[0].row0 = b.n;
            be->ops->attention(be, out, q, seg, 2, &one.shape);
            check_same(dg_mat_rows(out, 0, b.n), dg_mat_rows(two.out, 1, b.n), dg_backend_describe(be));
            check_same(dg_mat_rows(out, b.n, a.n), dg_mat_rows(one.out, 1, a.n), dg_backend_describe(be));
            dg_backend_close(be);
        }
        mat_free(q);
        mat_free(out);
        scene_free(&one);
        scene_free(&two);
    }
}

/* A row of a batch is computed as if it were alone: each window row as the last of a shorter window. The lengths put
 * block and span borders into the window, and enough keys before it that spans are shared out. */
static void rows_alone(dg_backend *be) {
    static const shape shapes[] = {{3, 1, 64, 0, DG_F32, DG_MASK_CAUSAL, 90, 70, 70},
                                   {9, 3, 64, 0, DG_F16, DG_MASK_CAUSAL, 1500, 100, 100},
                                   {10, 2, 20, 333, DG_F16, DG_MASK_CAUSAL, 700, 80, 80}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        const shape s = shapes[t];
        if (too_long(s)) continue;
        uint64_t seed = 80 + t;
        scene c = scene_new(be, s, &seed);
        be->ops->attention(be, c.out, c.q, &c.seg, 1, &c.shape);
        dg_mat out = mat_new(DG_F32, s.win, c.q.cols, 0);
        static const int32_t size[] = {1, 2, 3, 5, 8, 40, 64, 69};
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (int32_t end = size[i]; end <= s.win; end += t || test_device() ? 23 : 7) {
                dg_attn_seg part = c.seg;
                part.win = end;
                part.n = size[i];
                part.row0 = 0;
                be->ops->attention(be, dg_mat_rows(out, 0, part.n), dg_mat_rows(c.q, 1 + end - part.n, part.n),
                                   &part, 1, &c.shape);
                check_same(dg_mat_rows(out, 0, part.n), dg_mat_rows(c.out, 1 + end - part.n, part.n),
                           "rows alone");
            }
        mat_free(out);
        scene_free(&c);
    }
}

static void test_rows_alone(void **state) {
    (void)state;
    on_every_cpu(rows_alone);
}

/* Loose attention may round scores and weights to the cache's type; where a library computes it, it is that of long causal
 * segments. */
static void loose(dg_backend *be) {
    static const shape shapes[] = {{4, 2, 64, 0, DG_F16, DG_MASK_CAUSAL, 70, 130, 130}, {3, 3, 32, 0, DG_BF16, DG_MASK_CAUSAL, 0, 200, 200},
                                   {2, 1, 64, 90, DG_F16, DG_MASK_CAUSAL, 20, 140, 140}, {2, 1, 64, 0, DG_F32, DG_MASK_CAUSAL, 3, 140, 129},
                                   {4, 2, 64, 0, DG_F16, DG_MASK_BITS, 70, 130, 130}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        uint64_t seed = 500 + t;
        scene c = scene_new(be, shapes[t], &seed);
        dg_mat out = mat_new(DG_F32, c.out.rows, c.out.cols, 0);
        be->ops->attention(be, c.out, c.q, &c.seg, 1, &c.shape);
        c.shape.loose = true;
        be->ops->attention(be, out, c.q, &c.seg, 1, &c.shape);
        const float most = shapes[t].dtype == DG_BF16 ? 4e-2f : 5e-3f; /* of values below 1 */
        for (int32_t i = 0; i < shapes[t].n; i++)
            check_near(f32_at(out, 1 + i, 0), f32_at(c.out, 1 + i, 0), (size_t)out.cols, most, "loose attention");
        mat_free(out);
        scene_free(&c);
    }
}

/* Lengths in the backend's memory: as if they had been said, and rows of padding change nothing. */
static void live_lengths(dg_backend *be) {
    static const shape shapes[] = {{9, 3, 64, 0, DG_F16, DG_MASK_BITS, 300, 21, 21},
                                   {4, 2, 40, 0, DG_F32, DG_MASK_FULL, 77, 9, 9},
                                   {3, 1, 24, 8, DG_F32, DG_MASK_CAUSAL, 20, 12, 5},
                                   {3, 1, 64, 0, DG_BF16, DG_MASK_BITS, 0, 1, 1}};
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        shape s = shapes[t];
        const int32_t pad = 3;
        uint64_t seed = 90 + t;
        scene c = scene_new(be, s, &seed);
        dg_mat q = mat_new(DG_F32, s.n + pad, c.q.cols, 0), out = mat_new(DG_F32, s.n + pad, c.q.cols, 0);
        mat_random(q, 2, &seed);
        for (int32_t i = 0; i < s.n; i++) memcpy(dg_mat_row(&q, i), dg_mat_row(&c.q, i + 1), (size_t)q.cols * sizeof(float));
        int32_t *pos = calloc((size_t)(s.win + pad), sizeof *pos);
        uint64_t *bits = calloc((size_t)(s.n + pad) * DG_MASK_WORDS, sizeof *bits);
        memcpy(pos, c.pos, (size_t)s.win * sizeof *pos);
        memcpy(bits, c.bits, (size_t)s.n * DG_MASK_WORDS * sizeof *bits);
        be->ops->attention(be, c.out, c.q, &c.seg, 1, &c.shape);
        /* len is what it was when the pass was recorded */
        const dg_live live = {s.len, s.n, 0};
        const dg_attn_seg seg = {c.ck, c.cv, pos, bits, s.len > 5 ? s.len - 5 : s.len, s.win + pad, 0, s.n + pad, s.mask, &live};
        be->ops->attention(be, out, q, &seg, 1, &c.shape);
        check_same(dg_mat_rows(out, 0, s.n), dg_mat_rows(c.out, 1, s.n), "lengths from memory");

        const int32_t kd = c.k.cols, rows = s.n + pad;
        dg_mat k = mat_new(DG_F32, rows, kd, 0), v = mat_new(DG_F32, rows, kd, 0), got[4];
        mat_random(k, 1, &seed), mat_random(v, 1, &seed);
        for (int i = 0; i < 4; i++) got[i] = mat_new(DG_F32, c.ck.rows, kd, 0);
        be->ops->kv_get(be, got[0], got[1], c.ck, c.cv, 0, s.hd);
        const dg_qkv r = {.k = k, .v = v, .head_dim = s.hd};
        be->ops->qkv(be, &r, &seg, 1);
        be->ops->kv_get(be, got[2], got[3], c.ck, c.cv, 0, s.hd);
        const int32_t first = s.len + s.win - s.n;
        dg_mat other[2] = {cache_new(s.dtype, first + s.n, kd), cache_new(s.dtype, first + s.n, kd)}, want[2];
        put_rows(be, other[0], other[1], first, dg_mat_rows(k, 0, s.n), dg_mat_rows(v, 0, s.n), s.hd);
        for (int i = 0; i < 2; i++) want[i] = mat_new(DG_F32, other[0].rows, kd, 0);
        be->ops->kv_get(be, want[0], want[1], other[0], other[1], 0, s.hd);
        for (int i = 0; i < 2; i++) { /* the new rows are there, and all others as before */
            check_same(dg_mat_rows(got[2 + i], first, s.n), dg_mat_rows(want[i], first, s.n), "stored rows");
            memcpy(dg_mat_row(&got[2 + i], first), dg_mat_row(&got[i], first), (size_t)s.n * (size_t)kd * sizeof(float));
            check_same(got[2 + i], got[i], "rows of padding");
            mat_free(other[i]), mat_free(want[i]);
        }
        for (int i = 0; i < 4; i++) mat_free(got[i]);
        free(pos), free(bits);
        mat_free(q), mat_free(out), mat_free(k), mat_free(v);
        scene_free(&c);
    }
}

static void test_loose(void **state) {
    (void)state;
    on_every_cpu(loose);
}

static void test_live_lengths(void **state) {
    (void)state;
    on_every_cpu(live_lengths);
}

/* What is put into a cache comes out rounded to its type and nothing else changes; rows move as kv_move says. */
static void cache_rows(dg_backend *be) {
    static const struct {
        dg_dtype dtype;
        int32_t heads, hd, cap, row0, n;
    } c[] = {{DG_F32, 3, 64, 192, 60, 70}, {DG_F16, 3, 64, 192, 0, 192}, {DG_BF16, 2, 33, 128, 63, 2},
             {DG_F16, 1, 7, 64, 5, 1},     {DG_F16, 5, 24, 320, 100, 200}};
    for (size_t t = 0; t < sizeof c / sizeof *c; t++) {
        uint64_t seed = 300 + t;
        const int32_t cols = c[t].heads * c[t].hd, hd = c[t].hd, n = c[t].n;
        dg_mat cache[2] = {cache_new(c[t].dtype, c[t].cap, cols), cache_new(c[t].dtype, c[t].cap, cols)};
        dg_mat base[2], src[2], got[2];
        for (int i = 0; i < 2; i++) {
            base[i] = mat_new(DG_F32, c[t].cap, cols, 0), got[i] = mat_new(DG_F32, c[t].cap, cols, 5);
            src[i] = mat_new(DG_F32, n, cols, 3);
            mat_random(base[i], 1, &seed);
            mat_random(src[i], 3, &seed);
        }
        put_rows(be, cache[0], cache[1], 0, base[0], base[1], hd);
        put_rows(be, cache[0], cache[1], c[t].row0, src[0], src[1], hd);
        int32_t idx[DG_TREE_MAX], count = 0; /* every third row moves down */
        for (int32_t r = 0; r < n; r += 3) idx[count++] = r;
        for (int moved = 0; moved < 2; moved++) {
            if (moved) be->ops->kv_move(be, &cache[0], &cache[1], 1, c[t].row0, idx, count, hd);
            be->ops->kv_get(be, got[0], got[1], cache[0], cache[1], 0, hd);
            for (int i = 0; i < 2; i++)
                for (int32_t r = 0; r < c[t].cap; r++) {
                    const int32_t in = r - c[t].row0, from = moved && in >= 0 && in < count ? idx[in] : in;
                    const float *want = from < 0 || from >= n ? dg_mat_row(&base[i], r) : dg_mat_row(&src[i], from);
                    for (int32_t k = 0; k < cols; k++) {
                        uint16_t half;
                        float x = want[k];
                        if (c[t].dtype != DG_F32) {
                            dg_quant_row(c[t].dtype, &x, &half, 1);
                            dg_dequant_row(c[t].dtype, &half, &x, 1);
                        }
                        assert_memory_equal(f32_at(got[i], r, k), &x, sizeof x);
                    }
                }
        }
        for (int i = 0; i < 2; i++) mat_free(cache[i]), mat_free(base[i]), mat_free(src[i]), mat_free(got[i]);
    }
}

static void test_cache_rows(void **state) {
    (void)state;
    on_every_cpu(cache_rows);
}

/* Nothing visible: zeros, not NaN. */
static void test_blind_row(void **state) {
    (void)state;
    dg_backend *be = open_cpu("portable", 1);
    uint64_t seed = 90;
    scene c = scene_new(be, (shape){2, 1, 24, 0, DG_F32, DG_MASK_BITS, 0, 3, 3}, &seed);
    memset(c.bits, 0, sizeof *c.bits * 3 * DG_MASK_WORDS);
    be->ops->attention(be, c.out, c.q, &c.seg, 1, &c.shape);
    for (int32_t r = 1; r <= 3; r++)
        for (int32_t d = 0; d < 48; d++) assert_true(*f32_at(c.out, r, d) == 0);
    scene_free(&c);
    dg_backend_close(be);
}

int main(void) {
    if (device_missing()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_tree_is_chain),
        cmocka_unit_test(test_segments_and_threads),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_loose),
        cmocka_unit_test(test_live_lengths),
        cmocka_unit_test(test_blind_row),
        cmocka_unit_test(test_cache_rows),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
