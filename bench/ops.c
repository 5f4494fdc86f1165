/* Single operations on the shapes of real models, beside the machine's roofs. Every case cycles through as
 * many copies of its weights or caches as a model would stream, so that nothing is found in the nearer
 * caches. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_ops.h"

enum { VOCAB = 49152, MAX_CASES = 256, MAX_COPIES = 1024, MAX_ROWS = 512, STREAM = 64 << 20 };
static const double SAMPLE = 0.003; /* seconds that one sample lasts at least */

typedef struct op_case {
    const char *op, *shape, *type;
    int32_t rows, keys;
    bool packed;        /* weights in the backend's own layout */
    double bytes, work; /* of one call: weights or cache read, operations done */
    void (*call)(dg_backend *be, const struct op_case *c, int32_t copy);
    dg_mat x, out;
    const dg_mat *w, *v;       /* [n_copy] keys and values, or another operand */
    const dg_product *product; /* [n_copy][n_product] */
    int32_t n_product;
    int32_t n_copy, next;
    dg_attn_shape heads;
    dg_sampling sampling;
    int32_t top_k;
    series time; /* seconds of one call */
} op_case;

typedef struct bench {
    dg_backend *be;
    const settings *set;
    const char *isa;
    peaks peak;
    int32_t pos[MAX_ROWS];
    op_case c[MAX_CASES];
    int n;
    FILE *csv;
} bench;

static op_case *add_case(bench *b, op_case c) {
    if (b->n == MAX_CASES) die("cases", "too many");
    b->c[b->n] = c;
    return &b->c[b->n++];
}

/* ---- running and reporting -------------------------------------------------------------------- */

static void sample(bench *b, op_case *c) {
    const double start = now();
    double seconds = 0;
    int n = 0;
    do {
        c->call(b->be, c, c->next);
        c->next = (c->next + 1) % c->n_copy;
        n++;
    } while ((seconds = now() - start) < SAMPLE);
    series_add(&c->time, seconds / n);
}

static void report(bench *b, const op_case *c) {
    const double t = series_median(&c->time), lo = series_at(&c->time, 0), hi = series_at(&c->time, 1);
    const double copy = series_median(&b->peak.copy), peak = peak_of(&b->peak, c->packed, b->set->compute);
    printf("%-10s %-14s %-7s %4d %6d %10.1f %9.1f..%-9.1f", c->op, c->shape, c->type, c->rows, c->keys,
           1e6 * t, 1e6 * lo, 1e6 * hi);
    if (c->bytes > 0) printf(" %7.1f %4.0f%%", 1e-9 * c->bytes / t, 100 * c->bytes / t / copy);
    if (c->work > 0) printf(" %8.1f %4.0f%%", 1e-9 * c->work / t, 100 * c->work / t / peak);
    printf("\n");
    if (b->csv)
        fprintf(b->csv, "%s,\"%s\",%s,%d,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.3f,%.4f\n", c->op, c->shape, c->type,
                c->rows, c->keys, 1e6 * t, 1e6 * lo, 1e6 * hi, 1e-9 * c->bytes / t, c->bytes / t / copy,
                1e-9 * c->work / t, c->work / t / peak);
}

/* Rounds over all cases together, then forgets them. */
static void run_cases(bench *b) {
    for (int i = 0; i < b->n; i++) b->c[i].call(b->be, &b->c[i], 0); /* pages and code warm */
    for (int r = 0; r < b->set->rounds; r++) {
        peaks_round(&b->peak, b->isa, b->set->threads);
        for (int i = 0; i < b->n; i++) sample(b, &b->c[i]);
    }
    for (int i = 0; i < b->n; i++) report(b, &b->c[i]);
    fflush(stdout);
    b->n = 0;
}

/* ---- matmul ----------------------------------------------------------------------------------- */

static const dg_dtype weight_type[] = {DG_F32, DG_F16, DG_BF16, DG_Q8_0, DG_Q4_0, DG_Q4_1, DG_Q4_K, DG_Q6_K};
enum { N_TYPE = sizeof weight_type / sizeof *weight_type };

enum { MAX_PRODUCTS = 3 };

static const struct {
    const char *name;
    int32_t k, m[MAX_PRODUCTS]; /* inputs, outputs of the products that share them */
} weight_shape[] = {
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
static const int32_t row_count[] = {1, 2, 4, 8, 16, 32, 64, 512};

static void call_matmul(dg_backend *be, const op_case *c, int32_t copy) {
    dg_product p[MAX_PRODUCTS];
    for (int32_t i = 0; i < c->n_product; i++) {
        p[i] = c->product[copy * c->n_product + i];
        p[i].out.rows = c->rows;
    }
    be->ops->matmul(be, c->x, p, c->n_product, false);
}

/* Copies to fill STREAM with. */
static int32_t copy_count(size_t bytes) {
    const size_t n = (STREAM + bytes - 1) / bytes;
    return n > MAX_COPIES ? MAX_COPIES : (int32_t)n;
}

/* As many copies of one random matrix as fill STREAM; *n of them. */
static dg_mat *copies_of(dg_dtype type, int32_t rows, int32_t cols, int32_t *n) {
    const size_t bytes = dg_dtype_bytes(type, (size_t)rows * (size_t)cols);
    *n = copy_count(bytes);
    dg_mat *w = malloc((size_t)*n * sizeof *w);
    if (!w) die("matrices", "no memory");
    w[0] = mat_random(type, rows, cols, 1);
    for (int32_t i = 1; i < *n; i++) {
        w[i] = mat_room(type, rows, cols);
        memcpy(w[i].data, w[0].data, bytes);
    }
    return w;
}

static void free_copies(dg_mat *w, int32_t n) {
    for (int32_t i = 0; i < n; i++) free(w[i].data);
    free(w);
}

/* Weights of one type for every product of a shape, as the backend wants them, copied until they fill STREAM.
 */
typedef struct weight_set {
    dg_product *product; /* [n_copy][n] */
    int32_t n, n_copy;
    double bytes, work; /* of the products of one copy; work: of one row */
    bool packed;
} weight_set;

static void *copy_of(const void *data, size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) die("matrices", "no memory");
    return memcpy(p, data, bytes);
}

static weight_set make_weights(dg_backend *be, dg_dtype type, const int32_t *m, int32_t k, dg_mat out) {
    weight_set s = {0};
    while (s.n < MAX_PRODUCTS && m[s.n]) s.n++;
    for (int32_t i = 0; i < s.n; i++) {
        s.bytes += (double)dg_dtype_bytes(type, (size_t)m[i] * (size_t)k);
        s.work += 2.0 * m[i] * k;
    }
    s.n_copy = copy_count((size_t)s.bytes);
    s.product = calloc((size_t)s.n_copy * (size_t)s.n, sizeof *s.product);
    if (!s.product) die("matrices", "no memory");
    for (int32_t i = 0, column = 0; i < s.n; column += m[i++]) {
        const dg_mat w = mat_random(type, m[i], k, 1);
        size_t bytes = be->ops->pack_bytes(be, w, type);
        dg_mat best = w;
        if (bytes)
            best = be->ops->pack(be, aligned_alloc(64, (bytes + 63) / 64 * 64), w, type), s.packed = true;
        if (bytes) free(w.data);
        if (!bytes) bytes = dg_dtype_bytes(type, (size_t)m[i] * (size_t)k);
        for (int32_t c = 0; c < s.n_copy; c++) {
            dg_product *p = &s.product[c * s.n + i];
            p->w = best;
            if (c) p->w.data = copy_of(best.data, bytes);
            p->out = dg_mat_make((float *)out.data + (size_t)column * MAX_ROWS, DG_F32, MAX_ROWS, m[i]);
        }
    }
    return s;
}

static void free_weights(weight_set *s) {
    for (int32_t i = 0; i < s->n * s->n_copy; i++) free(s->product[i].w.data);
    free(s->product);
}

static void bench_matmul(bench *b) {
    dg_mat x = mat_random(DG_F32, MAX_ROWS, 8192, 1), out = mat_random(DG_F32, MAX_ROWS, VOCAB, 1);
    for (size_t s = 0; s < sizeof weight_shape / sizeof *weight_shape; s++) {
        const int32_t k = weight_shape[s].k;
        weight_set set[N_TYPE] = {0};
        for (int t = 0; t < N_TYPE; t++) {
            const dg_dtype type = weight_type[t];
            if (k % dg_dtype_get(type)->block_len) continue; /* no such file exists */
            set[t] = make_weights(b->be, type, weight_shape[s].m, k, out);
            for (size_t r = 0; r < sizeof row_count / sizeof *row_count; r++) {
                const int32_t n = row_count[r];
                if (n == 512 && weight_shape[s].m[0] == VOCAB) continue; /* prefill scores no rows */
                add_case(b, (op_case){.op = "matmul",
                                      .shape = weight_shape[s].name,
                                      .type = dg_dtype_get(type)->name,
                                      .rows = n,
                                      .packed = set[t].packed,
                                      .bytes = set[t].bytes,
                                      .work = set[t].work * n,
                                      .call = call_matmul,
                                      .product = set[t].product,
                                      .n_product = set[t].n,
                                      .n_copy = set[t].n_copy,
                                      .x = dg_mat_make(x.data, DG_F32, n, k)});
            }
        }
        run_cases(b);
        for (int t = 0; t < N_TYPE; t++) free_weights(&set[t]);
    }
    free(x.data);
    free(out.data);
}

/* ---- attention -------------------------------------------------------------------------------- */

static int32_t *window_pos; /* of the case that is running; the ops know positions by pointer */

static void call_attention(dg_backend *be, const op_case *c, int32_t copy) {
    for (int32_t i = 0; i < c->rows; i++) window_pos[i] = c->keys + i;
    const dg_attn_seg seg = {c->w[copy], c->v[copy], window_pos, NULL,          c->keys,
                             c->rows,    0,          c->rows,    DG_MASK_CAUSAL, NULL};
    be->ops->attention(be, c->out, c->x, &seg, 1, &c->heads);
}

static void bench_attention(bench *b) {
    static const struct {
        const char *name;
        dg_attn_shape heads;
    } shape[] = {{"135M 9/3 of 64", {9, 3, 64, 0, 0.125f, false}}, {"1.7B 32/32 of 64", {32, 32, 64, 0, 0.125f, false}}};
    static const dg_dtype type[] = {DG_F32, DG_F16};
    static const int32_t keys[] = {128, 512, 1024, 2048, 4096}, rows[] = {1, 4, 16, 64, 256};
    dg_mat q = mat_random(DG_F32, 256, 2048, 1), out = mat_random(DG_F32, 256, 2048, 1);
    window_pos = b->pos;
    for (size_t s = 0; s < 2; s++) {
        const dg_attn_shape h = shape[s].heads;
        const int32_t width = h.n_kv_head * h.head_dim, q_width = h.n_head * h.head_dim;
        dg_mat *k[2], *v[2];
        int32_t n_copy[2];
        for (int t = 0; t < 2; t++) {
            k[t] = copies_of(type[t], keys[4] + 256, width, &n_copy[t]);
            v[t] = copies_of(type[t], keys[4] + 256, width, &n_copy[t]);
            for (size_t l = 0; l < 5; l++)
                for (size_t r = 0; r < 5; r++) {
                    const double n = rows[r], seen = n * keys[l] + n * (n + 1) / 2;
                    add_case(b, (op_case){.op = "attention",
                                          .shape = shape[s].name,
                                          .type = dg_dtype_get(type[t])->name,
                                          .rows = rows[r],
                                          .keys = keys[l],
                                          .heads = h,
                                          .work = 4.0 * q_width * seen,
                                          .bytes = 2.0 * (double)dg_dtype_bytes(type[t], (size_t)width) *
                                                   (n + keys[l]),
                                          .call = call_attention,
                                          .w = k[t],
                                          .v = v[t],
                                          .n_copy = n_copy[t],
                                          .x = dg_mat_make(q.data, DG_F32, rows[r], q_width),
                                          .out = dg_mat_make(out.data, DG_F32, rows[r], q_width)});
                }
        }
        run_cases(b);
        for (int t = 0; t < 2; t++) free_copies(k[t], n_copy[t]), free_copies(v[t], n_copy[t]);
    }
    free(q.data);
    free(out.data);
}

/* ---- the rest of a step ------------------------------------------------------------------------ */

static int32_t chosen[MAX_ROWS * 64];
static float chosen_logp[MAX_ROWS * 64];

static void call_sample(dg_backend *be, const op_case *c, int32_t copy) {
    (void)copy;
    be->ops->sample(be, chosen, chosen_logp, c->x, window_pos, &c->sampling);
}

static void call_top_k(dg_backend *be, const op_case *c, int32_t copy) {
    (void)copy;
    be->ops->top_k(be, chosen, chosen_logp, c->x, c->top_k);
}

static void call_norm(dg_backend *be, const op_case *c, int32_t copy) {
    be->ops->rms_norm(be, c->out, c->x, c->w[copy], 1e-5f);
}

static void call_swiglu(dg_backend *be, const op_case *c, int32_t copy) {
    be->ops->swiglu(be, c->out, c->x, c->w[copy]);
}

/* Queries, keys and values of a layer, to attention. */
static void call_qkv(dg_backend *be, const op_case *c, int32_t copy) {
    const dg_qkv r = {.q = c->out, .k = dg_mat_cols(c->x, 0, 192), .v = dg_mat_cols(c->x, 192, 192), .rope = c->w[copy],
                      .head_dim = 64};
    const dg_attn_seg seg = {.k = c->w[1], .v = c->w[2], .win = c->rows, .n = c->rows, .mask = DG_MASK_CAUSAL};
    be->ops->qkv(be, &r, &seg, 1);
}

static void call_rows_put(dg_backend *be, const op_case *c, int32_t copy) {
    static const int32_t row0 = 0;
    be->ops->rows_put(be, c->w[copy], &row0, c->x);
}

static void bench_rest(bench *b) {
    static const struct {
        const char *name;
        dg_sampling s;
        int32_t top_k;
    } choice[] = {{"greedy", {.temperature = 0}, 0},
                  {"T 1", {.temperature = 1}, 0},
                  {"top-k 40", {.temperature = 0.8f, .top_k = 40}, 0},
                  {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}, 0},
                  {"best 8", {.top_k = 0}, 8},
                  {"best 64", {.top_k = 0}, 64}};
    static const int32_t vocab[] = {VOCAB, 248320}, rows[] = {1, 16};
    dg_mat x = mat_random(DG_F32, 16, 248320, 12), y = mat_random(DG_F32, 16, 1536, 1),
           wide = mat_random(DG_F32, 16, 1536, 1);
    dg_mat norm = mat_random(DG_F32, 1, 576, 1), table = mat_random(DG_F32, 16, 64, 1),
           cache = mat_room(DG_F16, 16, 192), kv = mat_random(DG_F32, 16, 384, 1);
    dg_mat qkv[3] = {table, mat_room(DG_F16, DG_KV_BLOCK, 192), mat_room(DG_F16, DG_KV_BLOCK, 192)};
    window_pos = b->pos;
    for (size_t i = 0; i < 2; i++) {
        const int32_t n = rows[i];
        for (size_t v = 0; v < 2; v++)
            for (size_t c = 0; c < sizeof choice / sizeof *choice; c++)
                add_case(b, (op_case){.op = choice[c].top_k ? "top_k" : "sample",
                                      .shape = choice[c].name,
                                      .type = v ? "248320" : "49152",
                                      .rows = n,
                                      .sampling = choice[c].s,
                                      .n_copy = 1,
                                      .top_k = choice[c].top_k,
                                      .call = choice[c].top_k ? call_top_k : call_sample,
                                      .x = dg_mat_make(x.data, DG_F32, n, vocab[v])});
        const dg_mat gate = dg_mat_make(x.data, DG_F32, n, 1536), up = dg_mat_rows(wide, 0, n);
        const dg_mat y576 = dg_mat_make(y.data, DG_F32, n, 576), x576 = dg_mat_make(x.data, DG_F32, n, 576);
        const op_case rest[] = {
            {.op = "rms_norm", .shape = "135M", .call = call_norm, .x = x576, .out = y576, .w = &norm},
            {.op = "swiglu",
             .shape = "135M",
             .call = call_swiglu,
             .x = gate,
             .out = dg_mat_rows(y, 0, n),
             .w = &up},
            {.op = "qkv", .shape = "135M", .call = call_qkv, .x = dg_mat_rows(kv, 0, n), .out = y576, .w = qkv},
            {.op = "rows_put",
             .shape = "135M k",
             .call = call_rows_put,
             .x = dg_mat_make(x.data, DG_F32, n, 192),
             .w = &cache},
        };
        qkv[0].rows = n;
        for (size_t r = 0; r < sizeof rest / sizeof *rest; r++) {
            op_case *c = add_case(b, rest[r]);
            c->rows = n, c->type = "f32", c->n_copy = 1;
        }
        run_cases(b);
    }
    free(x.data), free(y.data), free(wide.data), free(norm.data), free(table.data), free(cache.data);
    free(kv.data), free(qkv[1].data), free(qkv[2].data);
}

/* ---- all --------------------------------------------------------------------------------------- */

static void print_peaks(const bench *b) {
    const struct {
        const char *name, *unit;
        const series *s;
    } line[] = {{"near", "GB/s", &b->peak.near},  {"read", "GB/s", &b->peak.read},
                {"copy", "GB/s", &b->peak.copy},  {"f32", "GOP/s", &b->peak.f32},
                {"bf16", "GOP/s", &b->peak.bf16}, {"int8", "GOP/s", &b->peak.int8}};
    printf("\nroofs of the machine, %d threads, %s: median, least..most of %d rounds\n", b->set->threads,
           b->isa, b->peak.read.n);
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

void bench_ops(const settings *set) {
    static bench b;
    const dg_backend_options opt = {.threads = set->threads,
                                    .isa = set->isa,
                                    .max_vocab = 248320,
                                    .max_cols = 8192,
                                    .precision = precision_of(set->compute)};
    const char *why = "";
    b = (bench){.set = set, .be = dg_backend_open("cpu", &opt, &why)};
    if (!b.be) die("backend", why);
    b.isa = isa_of(dg_backend_describe(b.be));
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
    dg_backend_close(b.be);
}
