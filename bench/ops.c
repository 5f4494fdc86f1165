/* Single operations on the shapes of real models, beside the roofs of machine or device. Every case cycles through as
 * many copies of its weights or caches as a model would stream, so that nothing is found in the nearer
 * caches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/device.h"

enum { VOCAB = 49152, WIDE_VOCAB = 248320, MAX_CASES = 256, MAX_COPIES = 1024, MAX_ROWS = 512, MAX_KEYS = 4096, WINDOW = 256 };
/* Bytes that a case cycles through: more than the nearer caches hold, on a device more than its one cache. */
static const size_t STREAM = 64 << 20, STREAM_FAR = 512 << 20;
static const double SAMPLE = 0.003; /* seconds that one sample lasts at least */

struct bench;

typedef struct op_case {
    const char *op, *shape, *type;
    int32_t rows, keys;
    bool packed;        /* weights in the backend's own layout */
    double bytes, work; /* of one call: weights or cache read, operations done */
    void (*call)(const struct bench *b, const struct op_case *c, int32_t copy);
    dg_mat x, out;
    const dg_mat *w, *v;       /* [n_copy] keys and values, or another operand */
    const dg_product *product; /* [n_copy][n_product] */
    int32_t n_product;
    int32_t n_copy, next;
    int calls; /* of a sample */
    dg_attn_shape heads;
    dg_sampling sampling;
    int32_t best;
    series time; /* seconds of one call */
} op_case;

typedef struct bench {
    dg_backend *be;
    const settings *set;
    peaks peak;
    const dg_config *net; /* of --shape, else SmolLM2-135M */
    int32_t *pos;         /* device: 0, 1, 2, ... */
    int32_t *chosen;      /* device [MAX_ROWS * 64] */
    float *logp;
    op_case c[MAX_CASES];
    int n;
    FILE *csv;
} bench;

static op_case *add_case(bench *b, op_case c) {
    if (b->n == MAX_CASES) die("cases", "too many");
    c.calls = 1;
    b->c[b->n] = c;
    return &b->c[b->n++];
}

/* ---- running and reporting -------------------------------------------------------------------- */

/* As many calls as last a sample, the device waited for only behind the last. */
static void sample(bench *b, op_case *c) {
    double seconds = 0;
    for (int n = c->calls; seconds < SAMPLE; c->calls = n, n *= 2) {
        device_wait(b->be);
        const double start = now();
        for (int i = 0; i < n; i++) {
            c->call(b, c, c->next);
            c->next = (c->next + 1) % c->n_copy;
        }
        device_wait(b->be);
        seconds = now() - start;
    }
    series_add(&c->time, seconds / c->calls);
}

/* "  123.4   56%", the share where the roof is known. */
static void print_share(double amount, double roof, int width) {
    printf(" %*.1f", width, 1e-9 * amount);
    if (roof > 0)
        printf(" %4.0f%%", 100 * amount / roof);
    else
        printf("     -");
}

static void report(bench *b, const op_case *c) {
    const double t = series_median(&c->time), lo = series_at(&c->time, 0), hi = series_at(&c->time, 1);
    const double copy = series_median(&b->peak.copy), peak = peak_of(&b->peak, c->packed, b->set->compute);
    printf("%-10s %-14s %-7s %4d %6d %10.1f %9.1f..%-9.1f", c->op, c->shape, c->type, c->rows, c->keys,
           1e6 * t, 1e6 * lo, 1e6 * hi);
    if (c->bytes > 0) print_share(c->bytes / t, copy, 7);
    if (c->work > 0) print_share(c->work / t, peak, 8);
    printf("\n");
    if (b->csv)
        fprintf(b->csv, "%s,\"%s\",%s,%d,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.3f,%.4f\n", c->op, c->shape, c->type,
                c->rows, c->keys, 1e6 * t, 1e6 * lo, 1e6 * hi, 1e-9 * c->bytes / t, copy > 0 ? c->bytes / t / copy : 0,
                1e-9 * c->work / t, peak > 0 ? c->work / t / peak : 0);
}

/* Rounds over all cases together, then forgets them. */
static void run_cases(bench *b) {
    for (int i = 0; i < b->n; i++) b->c[i].call(b, &b->c[i], 0); /* pages and code warm */
    for (int r = 0; r < b->set->rounds; r++) {
        device_roofs(b->be, b->set, &b->peak);
        for (int i = 0; i < b->n; i++) sample(b, &b->c[i]);
    }
    for (int i = 0; i < b->n; i++) report(b, &b->c[i]);
    fflush(stdout);
    b->n = 0;
}

/* ---- matmul ----------------------------------------------------------------------------------- */

enum { MAX_PRODUCTS = 3, N_ROWS = 8 };

static const shape_product weight_shape[] = {
    {"135M q k v", 576, {576, 192, 192}},
    {"135M o", 576, {576}},
    {"135M gate up", 576, {1536, 1536}},
    {"135M down", 1536, {576}},
    {"135M head", 576, {VOCAB}},
    {"1.7B q k v", 2048, {2048, 2048, 2048}},
    {"1.7B o", 2048, {2048}},
    {"1.7B gate up", 2048, {8192, 8192}},
    {"1.7B down", 8192, {2048}},
    {"1.7B head", 2048, {VOCAB}},
};
static const int32_t row_count[N_ROWS] = {1, 2, 4, 8, 16, 32, 64, MAX_ROWS};

static void call_matmul(const bench *b, const op_case *c, int32_t copy) {
    dg_product p[MAX_PRODUCTS];
    for (int32_t i = 0; i < c->n_product; i++) {
        p[i] = c->product[copy * c->n_product + i];
        p[i].out.rows = c->rows;
    }
    dg_mat x = c->x;
    x.loose = b->set->inexact;
    b->be->ops->matmul(b->be, x, p, c->n_product, false);
}

/* Copies to fill the stream with. */
static int32_t copy_count(const bench *b, size_t bytes) {
    const size_t stream = b->be->ops->host_memory ? STREAM : STREAM_FAR, n = (stream + bytes - 1) / bytes;
    return n > MAX_COPIES ? MAX_COPIES : (int32_t)n;
}

/* Another of the same bytes in the device's memory. */
static void *copy_of(dg_backend *be, const void *data, size_t bytes) {
    void *p = device_room(be, bytes);
    const int32_t n = (int32_t)bytes;
    be->ops->copy2d(be, dg_mat_make(p, DG_U8, 1, n), dg_mat_make((void *)data, DG_U8, 1, n));
    return p;
}

/* As many copies of one random matrix as fill the stream; *n of them. */
static dg_mat *copies_of(const bench *b, dg_dtype type, int32_t rows, int32_t cols, int32_t *n) {
    const size_t bytes = dg_dtype_bytes(type, (size_t)rows * (size_t)cols);
    *n = copy_count(b, bytes);
    dg_mat *w = malloc((size_t)*n * sizeof *w);
    if (!w) die("matrices", "no memory");
    w[0] = device_mat(b->be, mat_random(type, rows, cols, 1));
    for (int32_t i = 1; i < *n; i++) {
        w[i] = w[0];
        w[i].data = copy_of(b->be, w[0].data, bytes);
    }
    return w;
}

static void free_copies(dg_backend *be, dg_mat *w, int32_t n) {
    for (int32_t i = 0; i < n; i++) be->ops->free(be, w[i].data);
    free(w);
}

/* Weights of one type for every product of a shape, as the backend wants them, copied until they fill the stream. */
typedef struct weight_set {
    dg_product *product; /* [n_copy][n] */
    int32_t n, n_copy;
    double bytes, work; /* of the products of one copy; work: of one row */
    bool packed;
} weight_set;

/* A random matrix as the backend wants it; *bytes that it takes there. */
static dg_mat make_weight(dg_backend *be, dg_dtype type, int32_t rows, int32_t cols, size_t *bytes) {
    const dg_mat w = mat_random(type, rows, cols, 1);
    *bytes = be->ops->pack_bytes(be, w, type);
    if (!*bytes) {
        *bytes = dg_dtype_bytes(type, (size_t)rows * (size_t)cols);
        return device_mat(be, w);
    }
    const dg_mat best = be->ops->pack(be, device_room(be, *bytes), w, type);
    device_wait(be);
    free(w.data);
    return best;
}

static weight_set make_weights(const bench *b, dg_dtype type, const shape_product *shape, dg_mat out) {
    weight_set s = {0};
    const int32_t *m = shape->m, k = shape->k;
    while (s.n < MAX_PRODUCTS && m[s.n]) s.n++;
    for (int32_t i = 0; i < s.n; i++) {
        s.bytes += (double)dg_dtype_bytes(type, (size_t)m[i] * (size_t)k);
        s.work += 2.0 * m[i] * k;
    }
    s.n_copy = copy_count(b, (size_t)s.bytes);
    s.product = calloc((size_t)s.n_copy * (size_t)s.n, sizeof *s.product);
    if (!s.product) die("matrices", "no memory");
    for (int32_t i = 0, column = 0; i < s.n; column += m[i++]) {
        size_t bytes;
        const dg_mat best = make_weight(b->be, type, m[i], k, &bytes);
        s.packed = s.packed || best.packed;
        for (int32_t c = 0; c < s.n_copy; c++) {
            dg_product *p = &s.product[c * s.n + i];
            p->w = best;
            if (c) p->w.data = copy_of(b->be, best.data, bytes);
            p->out = dg_mat_make((float *)out.data + (size_t)column * MAX_ROWS, DG_F32, MAX_ROWS, m[i]);
        }
    }
    return s;
}

static void free_weights(dg_backend *be, weight_set *s) {
    for (int32_t i = 0; i < s->n * s->n_copy; i++) be->ops->free(be, s->product[i].w.data);
    free(s->product);
}

static void add_products(bench *b, const shape_product *shape, const weight_set *w, dg_dtype type, dg_mat x) {
    for (int r = 0; r < N_ROWS; r++) {
        const int32_t n = row_count[r];
        if (n == MAX_ROWS && strstr(shape->name, "head")) continue; /* prefill scores no rows */
        add_case(b, (op_case){.op = "matmul",
                              .shape = shape->name,
                              .type = dg_dtype_get(type)->name,
                              .rows = n,
                              .packed = w->packed,
                              .bytes = w->bytes,
                              .work = w->work * n,
                              .call = call_matmul,
                              .product = w->product,
                              .n_product = w->n,
                              .n_copy = w->n_copy,
                              .x = dg_mat_make(x.data, DG_F32, n, shape->k)});
    }
}

static void bench_matmul(bench *b) {
    shape_product own[SHAPE_PRODUCTS];
    shape_products(b->net, own);
    const shape_product *shape = b->set->shape ? own : weight_shape;
    const int n_shape = b->set->shape ? SHAPE_PRODUCTS : (int)(sizeof weight_shape / sizeof *weight_shape);
    int32_t inputs = 0, outputs = 0;
    for (int s = 0; s < n_shape; s++) {
        const int32_t m = shape[s].m[0] + shape[s].m[1] + shape[s].m[2];
        if (m > outputs) outputs = m;
        if (shape[s].k > inputs) inputs = shape[s].k;
    }
    const dg_mat x = device_mat(b->be, mat_random(DG_F32, MAX_ROWS, inputs, 1)),
                 out = dg_mat_make(device_room(b->be, sizeof(float) * MAX_ROWS * (size_t)outputs), DG_F32, MAX_ROWS, outputs);
    for (int s = 0; s < n_shape; s++) {
        weight_set w[SHAPE_TYPES] = {0};
        for (int t = 0; t < SHAPE_TYPES; t++) {
            const dg_dtype type = shape_type[t];
            if (b->set->shape && type != b->set->type) continue;
            if (shape[s].k % dg_dtype_get(type)->block_len) continue; /* no such file exists */
            w[t] = make_weights(b, type, &shape[s], out);
            add_products(b, &shape[s], &w[t], type, x);
        }
        run_cases(b);
        for (int t = 0; t < SHAPE_TYPES; t++) free_weights(b->be, &w[t]);
    }
    b->be->ops->free(b->be, x.data);
    b->be->ops->free(b->be, out.data);
}

/* ---- attention -------------------------------------------------------------------------------- */

static void call_attention(const bench *b, const op_case *c, int32_t copy) {
    const dg_attn_seg seg = {.k = c->w[copy],
                             .v = c->v[copy],
                             .pos = b->pos + c->keys,
                             .len = c->keys,
                             .win = c->rows,
                             .n = c->rows,
                             .mask = DG_MASK_CAUSAL};
    b->be->ops->attention(b->be, c->out, c->x, &seg, 1, &c->heads);
}

static dg_attn_shape heads_of(const dg_config *c) {
    return (dg_attn_shape){.n_head = c->n_head,
                           .n_kv_head = c->n_kv_head,
                           .head_dim = c->head_dim,
                           .scale = 1 / sqrtf((float)c->head_dim)};
}

static void add_attention(bench *b, const char *name, dg_attn_shape h, dg_dtype type, op_case c) {
    static const int32_t keys[] = {128, 512, 1024, 2048, MAX_KEYS}, rows[] = {1, 4, 16, 64, WINDOW};
    const int32_t width = h.n_kv_head * h.head_dim, q_width = h.n_head * h.head_dim;
    for (size_t l = 0; l < sizeof keys / sizeof *keys; l++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            const double n = rows[r], seen = n * keys[l] + n * (n + 1) / 2;
            op_case *a = add_case(b, c);
            a->op = "attention", a->shape = name, a->type = dg_dtype_get(type)->name;
            a->rows = rows[r], a->keys = keys[l], a->heads = h;
            a->work = 4.0 * q_width * seen;
            a->bytes = 2.0 * (double)dg_dtype_bytes(type, (size_t)width) * (n + keys[l]);
            a->call = call_attention;
            a->x = dg_mat_make(c.x.data, DG_F32, rows[r], q_width);
            a->out = dg_mat_make(c.out.data, DG_F32, rows[r], q_width);
        }
}

static void bench_attention(bench *b) {
    char own[64];
    snprintf(own, sizeof own, "%d/%d of %d", b->net->n_head, b->net->n_kv_head, b->net->head_dim);
    const struct {
        const char *name;
        dg_attn_shape heads;
    } shape[] = {{b->set->shape ? own : "135M 9/3 of 64", heads_of(b->net)},
                 {"1.7B 32/32 of 64", {32, 32, 64, 0, 0.125f, false}}};
    static const dg_dtype type[] = {DG_F32, DG_F16};
    for (int s = 0; s < (b->set->shape ? 1 : 2); s++) {
        const dg_attn_shape h = shape[s].heads;
        const int32_t width = h.n_kv_head * h.head_dim, q_width = h.n_head * h.head_dim;
        const dg_mat q = device_mat(b->be, mat_random(DG_F32, WINDOW, q_width, 1)),
                     out = device_mat(b->be, mat_random(DG_F32, WINDOW, q_width, 1));
        dg_mat *k[2], *v[2];
        int32_t n_copy[2];
        for (int t = 0; t < 2; t++) {
            k[t] = copies_of(b, type[t], MAX_KEYS + WINDOW, width, &n_copy[t]);
            v[t] = copies_of(b, type[t], MAX_KEYS + WINDOW, width, &n_copy[t]);
            add_attention(b, shape[s].name, h, type[t], (op_case){.w = k[t], .v = v[t], .n_copy = n_copy[t], .x = q, .out = out});
        }
        run_cases(b);
        for (int t = 0; t < 2; t++) free_copies(b->be, k[t], n_copy[t]), free_copies(b->be, v[t], n_copy[t]);
        b->be->ops->free(b->be, q.data), b->be->ops->free(b->be, out.data);
    }
}

/* ---- the rest of a step ------------------------------------------------------------------------ */

static void call_sample(const bench *b, const op_case *c, int32_t copy) {
    (void)copy;
    b->be->ops->sample(b->be, b->chosen, b->logp, c->x, b->pos, &c->sampling, b->chosen + MAX_ROWS, c->best);
}

static void call_top_k(const bench *b, const op_case *c, int32_t copy) {
    (void)copy;
    b->be->ops->top_k(b->be, b->chosen, b->logp, c->x, c->best);
}

static void call_norm(const bench *b, const op_case *c, int32_t copy) {
    b->be->ops->rms_norm(b->be, c->out, c->x, c->w[copy], 1e-5f);
}

static void call_swiglu(const bench *b, const op_case *c, int32_t copy) {
    b->be->ops->swiglu(b->be, c->out, c->x, c->w[copy]);
}

/* Queries, keys and values of a layer, to attention. */
static void call_qkv(const bench *b, const op_case *c, int32_t copy) {
    const dg_qkv r = {.q = c->out,
                      .k = dg_mat_rows(c->x, 0, c->rows),
                      .v = dg_mat_rows(c->x, c->rows, c->rows),
                      .rope = dg_mat_rows(c->w[copy], 0, c->rows),
                      .head_dim = c->heads.head_dim};
    const dg_attn_seg seg = {.k = c->v[0], .v = c->v[1], .win = c->rows, .n = c->rows, .mask = DG_MASK_CAUSAL};
    b->be->ops->qkv(b->be, &r, &seg, 1);
}

static void call_rows_put(const bench *b, const op_case *c, int32_t copy) {
    b->be->ops->rows_put(b->be, c->w[copy], b->pos, c->x); /* from row 0 on */
}

/* Sampling and top-k over n rows of logits of each vocabulary. */
static void add_choices(bench *b, dg_mat x, int32_t n) {
    static const struct {
        const char *name;
        dg_sampling s;
        int32_t best;
        void (*call)(const bench *, const op_case *, int32_t);
    } choice[] = {{"greedy", {.temperature = 0}, 0, call_sample},
                  {"and best 8", {.temperature = 0}, 8, call_sample},
                  {"T 1", {.temperature = 1}, 0, call_sample},
                  {"top-k 40", {.temperature = 0.8f, .top_k = 40}, 0, call_sample},
                  {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}, 0, call_sample},
                  {"best 8", {.temperature = 0}, 8, call_top_k},
                  {"best 64", {.temperature = 0}, 64, call_top_k}};
    static char own[16];
    snprintf(own, sizeof own, "%d", b->net->vocab_size);
    for (int v = 0; v < (b->set->shape ? 1 : 2); v++)
        for (size_t c = 0; c < sizeof choice / sizeof *choice; c++)
            add_case(b, (op_case){.op = choice[c].call == call_top_k ? "top_k" : "sample",
                                  .shape = choice[c].name,
                                  .type = v ? "248320" : own,
                                  .rows = n,
                                  .sampling = choice[c].s,
                                  .n_copy = 1,
                                  .best = choice[c].best,
                                  .call = choice[c].call,
                                  .x = dg_mat_make(x.data, DG_F32, n, v ? WIDE_VOCAB : b->net->vocab_size)});
}

/* What the small ops take: activations, factors, a layer's cache. */
typedef struct rest_room {
    dg_mat x, y, wide, norm, table, kv, cache[2];
} rest_room;

static void add_small(bench *b, const rest_room *m, int32_t n) {
    const dg_config *c = b->net;
    const dg_attn_shape h = heads_of(c);
    const int32_t width = c->n_kv_head * c->head_dim;
    const dg_mat x = dg_mat_make(m->x.data, DG_F32, n, c->hidden_size), y = dg_mat_make(m->y.data, DG_F32, n, c->hidden_size),
                 gate = dg_mat_make(m->x.data, DG_F32, n, c->intermediate_size),
                 out = dg_mat_make(m->y.data, DG_F32, n, c->intermediate_size),
                 q = dg_mat_make(m->y.data, DG_F32, n, h.n_head * h.head_dim);
    static dg_mat up; /* of the cases that run */
    up = dg_mat_rows(m->wide, 0, n);
    const op_case rest[] = {
        {.op = "rms_norm", .call = call_norm, .x = x, .out = y, .w = &m->norm},
        {.op = "swiglu", .call = call_swiglu, .x = gate, .out = out, .w = &up},
        {.op = "qkv", .call = call_qkv, .x = dg_mat_rows(m->kv, 0, 2 * n), .out = q, .w = &m->table, .v = m->cache, .heads = h},
        {.op = "rows_put", .call = call_rows_put, .x = dg_mat_make(m->x.data, DG_F32, n, width), .w = &m->cache[0]},
    };
    for (size_t r = 0; r < sizeof rest / sizeof *rest; r++) {
        op_case *a = add_case(b, rest[r]);
        a->shape = b->set->shape ? b->set->shape : "135M";
        a->rows = n, a->type = "f32", a->n_copy = 1;
    }
}

static void bench_rest(bench *b) {
    enum { ROWS = 16 };
    const dg_config *c = b->net;
    const int32_t width = c->n_kv_head * c->head_dim, q = c->n_head * c->head_dim,
                  vocab = b->set->shape ? c->vocab_size : WIDE_VOCAB, most = vocab > c->intermediate_size ? vocab : c->intermediate_size;
    rest_room m = {.x = mat_random(DG_F32, ROWS, most, 12),
                   .y = mat_random(DG_F32, ROWS, c->intermediate_size > q ? c->intermediate_size : q, 1),
                   .wide = mat_random(DG_F32, ROWS, c->intermediate_size, 1),
                   .norm = mat_random(DG_F32, 1, c->hidden_size, 1),
                   .table = mat_random(DG_F32, ROWS, c->head_dim, 1),
                   .kv = mat_random(DG_F32, 2 * ROWS, width, 1), /* keys, then values */
                   .cache = {mat_random(DG_F16, DG_KV_BLOCK, width, 1), mat_random(DG_F16, DG_KV_BLOCK, width, 1)}};
    dg_mat *const all[] = {&m.x, &m.y, &m.wide, &m.norm, &m.table, &m.kv, &m.cache[0], &m.cache[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = device_mat(b->be, *all[i]);
    for (int32_t n = 1; n <= ROWS; n += ROWS - 1) {
        add_choices(b, m.x, n);
        add_small(b, &m, n);
        run_cases(b);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) b->be->ops->free(b->be, all[i]->data);
}

/* ---- all --------------------------------------------------------------------------------------- */

static void print_peaks(const bench *b) {
    const struct {
        const char *name, *unit;
        const series *s;
    } line[] = {{"near", "GB/s", &b->peak.near},  {"read", "GB/s", &b->peak.read},
                {"copy", "GB/s", &b->peak.copy},  {"f32", "GOP/s", &b->peak.f32},
                {"bf16", "GOP/s", &b->peak.bf16}, {"int8", "GOP/s", &b->peak.int8}};
    const bool host = b->be->ops->host_memory;
    printf("\nroofs of the %s, %s: median, least..most of %d rounds%s\n", host ? "machine" : "device",
           dg_backend_describe(b->be), b->peak.copy.n, b->set->bandwidth > 0 ? "; copy as told" : "");
    if (!b->peak.copy.n)
        printf("copy   not measured: the device has no memory for it; see --bandwidth\n");
    FILE *f = csv_open(b->set, "peaks.csv", "what,unit,median,min,max");
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        const series *s = line[i].s;
        if (!s->n) continue;
        const double med = 1e-9 * series_median(s), lo = 1e-9 * series_at(s, 0), hi = 1e-9 * series_at(s, 1);
        printf("%-6s %8.1f %s  %.1f..%.1f\n", line[i].name, med, line[i].unit, lo, hi);
        if (f) fprintf(f, "%s,%s,%.2f,%.2f,%.2f\n", line[i].name, line[i].unit, med, lo, hi);
    }
    if (f) fclose(f);
}

static dg_precision precision_of(const char *compute) {
    return !strcmp(compute, "f32")    ? DG_PRECISION_F32
           : !strcmp(compute, "int8") ? DG_PRECISION_INT8
                                      : DG_PRECISION_FIXED;
}

/* Positions from 0 on, and room for what is chosen. */
static void make_rows(bench *b) {
    static int32_t pos[MAX_KEYS + MAX_ROWS];
    for (int32_t i = 0; i < MAX_KEYS + MAX_ROWS; i++) pos[i] = i;
    b->pos = device_room(b->be, sizeof pos);
    b->be->ops->upload(b->be, b->pos, pos, sizeof pos);
    b->chosen = device_room(b->be, sizeof(int32_t) * MAX_ROWS * 64);
    b->logp = device_room(b->be, sizeof(float) * MAX_ROWS * 64);
}

void bench_ops(const settings *set) {
    static bench b;
    static dg_config small;
    shape_find("smollm2-135m", &small);
    const dg_config *net = set->shape ? &set->net : &small;
    const int32_t q = net->n_head * net->head_dim, widest = net->intermediate_size > q ? net->intermediate_size : q;
    const dg_backend_options opt = {.threads = set->threads,
                                    .isa = set->isa,
                                    .max_vocab = set->shape ? net->vocab_size : WIDE_VOCAB,
                                    .max_cols = set->shape ? widest : 8192,
                                    .precision = precision_of(set->compute)};
    b = (bench){.set = set, .net = net, .be = device_open(set, &opt)};
    make_rows(&b);
    printf("%s, compute %s\n\n%-10s %-14s %-7s %4s %6s %10s %20s %7s %5s %8s %5s\n",
           dg_backend_describe(b.be), set->compute, "op", "shape", "type", "rows", "keys", "us",
           "least..most", "GB/s", "copy", "GOP/s", "peak");
    b.csv =
        csv_open(set, "ops.csv",
                 "op,shape,type,rows,keys,us,us_min,us_max,gb_per_s,share_of_copy,gop_per_s,share_of_peak");
    if (section(set, "matmul")) bench_matmul(&b);
    if (section(set, "attention")) bench_attention(&b);
    if (section(set, "rest")) bench_rest(&b);
    if (b.csv) fclose(b.csv);
    print_peaks(&b);
    b.be->ops->free(b.be, b.pos), b.be->ops->free(b.be, b.chosen), b.be->ops->free(b.be, b.logp);
    dg_backend_close(b.be);
}
