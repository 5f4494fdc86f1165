/* Whole passes of a model: t(n) of a verify pass over n rows beside a plain step, where the time goes,
 * prefill, loading to the first token, one proposal of a DFlash drafter. Works on the session's own buffers,
 * as the round does. */
#include <stdlib.h>
#include <string.h>

#include "bench/device.h"
#include "runtime/session.h"

enum { PREFILL = 512, BLOCK = 16, N_TEXT = 8192, BUDGET = DG_TREE_MAX - 1 };
static const double SAMPLE = 0.02; /* seconds that one sample lasts at least */
static const int32_t row_count[] = {1, 2, 4, 8, 16, 32, 61, 64, 128, 256};
enum { N_COUNT = sizeof row_count / sizeof *row_count, UP_TO_64 = 8, AT_16 = 4, AT_61 = 6 };

static int32_t text[N_TEXT];
/* What is looked up in the text takes no pass; a session without drafters has room for one row. */
static const dg_draft remembering = {"ngram", NULL, NULL};

static void need(dg_status st) {
    if (st != DG_OK) die("model", dg_error_message());
}

static void tell(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level == DG_LOG_WARN) fprintf(stderr, "bench_ops: %s\n", message);
}

static dg_model *open_model(const settings *set) {
    const dg_compute compute = !strcmp(set->compute, "f32")    ? DG_COMPUTE_F32
                               : !strcmp(set->compute, "int8") ? DG_COMPUTE_INT8
                                                               : DG_COMPUTE_DEFAULT;
    const dg_model_options opt = {
        .threads = set->threads, .compute = compute, .device = set->device, .inexact = set->inexact, .log = tell};
    dg_model *m;
    need(dg_model_open(set->model, &opt, &m));
    for (int32_t i = 0; i < N_TEXT; i++)
        text[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)m->net.config.vocab_size);
    return m;
}

/* A session with `held` rows in its cache; draft may be NULL, budget then has no meaning. */
static dg_session *open_session(dg_model *m, int32_t context, int32_t held, const dg_draft *draft, int32_t budget) {
    const dg_session_options opt = {.context = context,
                                    .ignore_stop_tokens = true,
                                    .draft = draft,
                                    .n_draft = draft != NULL,
                                    .budget = draft ? budget : 0};
    dg_session *s;
    need(dg_session_create(m, &opt, &s));
    need(dg_session_sync(s, text, (size_t)held + 1));
    return s;
}

/* ---- one pass ---------------------------------------------------------------------------------- */

/* The head and a greedy choice for rows [from, from + n) of the last forward pass. */
static void score(dg_session *s, int32_t from, int32_t n) {
    dg_backend *be = s->model->be;
    for (int32_t at = 0; at < n; at += DG_HEAD_ROWS) {
        const int32_t rows = n - at < DG_HEAD_ROWS ? n - at : DG_HEAD_ROWS;
        const dg_mat logits = dg_mat_rows(s->logits, 0, rows);
        dg_target_head(s->model, dg_mat_rows(s->work.x, from + at, rows), logits);
        be->ops->sample(be, s->sampled_dev->id + at, s->sampled_dev->logp + at, logits, s->batch.dev.pos + from + at,
                        &s->sampling, NULL, 0);
    }
    be->ops->download(be, &s->sampled, s->sampled_dev, (size_t)n * sizeof *s->sampled.id);
    need(dg_backend_check(be));
}

/* Seconds of a pass over n rows behind what the cache holds, `scored` of them through the head; its rows are
 * dropped. */
static double pass(dg_session *s, int32_t n, int32_t scored) {
    const double start = now();
    dg_batch_reset(&s->batch);
    dg_batch_add_rows(&s->batch, &s->kv, text, n, DG_MASK_CAUSAL);
    dg_batch_upload(s->model->be, &s->batch);
    dg_batch_begin(s->model->be, &s->batch);
    dg_target_forward(s->model, &s->batch, &s->work, NULL, 0);
    score(s, n - scored, scored);
    dg_kv_truncate(&s->kv, s->kv.len);
    return now() - start;
}

/* Mean of passes that last a sample together. */
static double passes(dg_session *s, int32_t n, int32_t scored) {
    double seconds = 0;
    int count = 0;
    for (; seconds < SAMPLE; count++) seconds += pass(s, n, scored);
    return seconds / count;
}

/* The same of verify passes as rounds make them. */
static double verifies(dg_session *s, int32_t n) {
    double seconds = 0, one;
    int count = 0;
    for (; seconds < SAMPLE; count++, seconds += one) need(dg_session_time_rows(s, n, s->kv.len, &one));
    return seconds / count;
}

/* Evaluates PREFILL rows from nothing, the last through the head. */
static double prefill(dg_session *s) {
    const int32_t clear = text[0] + 1;
    need(dg_session_sync(s, &clear, 1));
    const double start = now();
    need(dg_session_sync(s, text, PREFILL + 1));
    score(s, (PREFILL - 1) % s->chunk, 1);
    return now() - start;
}

/* ---- where the time of a pass goes ------------------------------------------------------------- */

static const dg_ops *real_ops;
static double in_matmul, in_attention;

/* A device has done what came before. */
static double begin_timed(dg_backend *be) {
    device_wait(be);
    return now();
}

static void timed_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add) {
    const double start = begin_timed(be);
    real_ops->matmul(be, x, product, n, add);
    device_wait(be);
    in_matmul += now() - start;
}

static void timed_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                            const dg_attn_shape *shape) {
    const double start = begin_timed(be);
    real_ops->attention(be, out, q, seg, n_seg, shape);
    device_wait(be);
    in_attention += now() - start;
}

static void bench_shares(const settings *set, dg_session *s) {
    dg_backend *be = s->model->be;
    real_ops = be->ops;
    dg_ops timed = *real_ops;
    timed.matmul = timed_matmul;
    timed.attention = timed_attention;
    FILE *csv = csv_open(set, "shares.csv", "rows,matmul,attention,rest");
    printf("\nwhere the time of a pass goes, %d rows of context\n%6s %8s %10s %8s\n", set->context, "rows",
           "matmul", "attention", "rest");
    for (int i = 0; i < UP_TO_64; i++) {
        series matmul = {0}, attention = {0}, rest = {0};
        for (int r = 0; r < set->rounds; r++) {
            in_matmul = in_attention = 0;
            be->ops = &timed;
            double total = 0;
            while (total < SAMPLE) total += pass(s, row_count[i], row_count[i]);
            be->ops = real_ops;
            series_add(&matmul, in_matmul / total);
            series_add(&attention, in_attention / total);
            series_add(&rest, 1 - (in_matmul + in_attention) / total);
        }
        const double m = series_median(&matmul), a = series_median(&attention), o = series_median(&rest);
        printf("%6d %7.1f%% %9.1f%% %7.1f%%\n", row_count[i], 100 * m, 100 * a, 100 * o);
        if (csv) fprintf(csv, "%d,%.4f,%.4f,%.4f\n", row_count[i], m, a, o);
    }
    if (csv) fclose(csv);
}

/* ---- t(n) -------------------------------------------------------------------------------------- */

static void add_cost(dg_mat m, double *work, double *bytes) {
    *work += 2.0 * m.rows * m.cols;
    *bytes += (double)dg_dtype_bytes(m.dtype, (size_t)m.rows * (size_t)m.cols);
}

/* What a pass takes at least: operations of one row through all matrices, the head among them, and their bytes. */
static void cost_of(const dg_model *m, double *work, double *bytes) {
    const dg_weights *w = &m->net.weights;
    *work = *bytes = 0;
    add_cost(w->head_rows, work, bytes);
    for (int32_t l = 0; l < m->net.config.n_layer; l++) {
        const dg_layer *y = &w->layer[l];
        const dg_mat all[] = {y->wq, y->wk, y->wv, y->wo, y->w_gate, y->w_up, y->w_down};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) add_cost(all[i], work, bytes);
    }
}

/* Bytes of the cache that a pass over n rows behind what is held reads and writes. */
static double cache_bytes(const dg_session *s, int32_t n) {
    const dg_config *c = &s->model->net.config;
    const size_t row = 2 * (size_t)c->n_kv_head * (size_t)c->head_dim * (size_t)c->n_layer;
    return (double)dg_dtype_bytes(s->kv_dtype, row) * (s->kv.len + n);
}

typedef struct curve {                   /* of each number of rows */
    series all[N_COUNT], ratio[N_COUNT]; /* every row scored, as verifying needs: seconds, plain steps */
    series last[N_COUNT];                /* the last one */
    series read[N_COUNT];                /* share of copy bandwidth at which weights and cache are read; where it is known */
    peaks roof;
} curve;

static void report_row(const curve *c, int i, double bytes, double share) {
    const series *t = &c->all[i], *r = &c->read[i];
    printf("t(%d) = %.2f ms (%.2f..%.2f) [%.2f ms], ", row_count[i], 1e3 * series_median(t), 1e3 * series_at(t, 0),
           1e3 * series_at(t, 1), 1e3 * series_median(&c->last[i]));
    if (share > 0) printf("%.0f%% of the arithmetic peak, ", 100 * share);
    printf("%.1f GB/s", 1e-9 * bytes / series_median(t));
    if (r->n) printf(" = %.0f%% of copy (%.0f..%.0f)", 100 * series_median(r), 100 * series_at(r, 0), 100 * series_at(r, 1));
    printf("\n");
}

static void report_rows(const settings *set, const dg_session *s, const curve *c) {
    double work, bytes;
    cost_of(s->model, &work, &bytes);
    const double peak = peak_of(&c->roof, s->model->net.weights.head.packed, set->compute), one = series_median(&c->all[0]);
    FILE *csv = csv_open(set, "steps.csv",
                         "rows,ms,ms_min,ms_max,ratio,ratio_min,ratio_max,ms_last,ratio_last,share_of_peak,share_of_copy");
    printf("\npasses over n rows behind %d, every row scored [and the last alone]; weights and cache read once\n", set->context);
    for (int i = 0; i < N_COUNT; i++) {
        const int32_t n = row_count[i];
        const series *t = &c->all[i], *x = &c->ratio[i];
        const double last = series_median(&c->last[i]), share = peak > 0 ? n * work / series_median(t) / peak : 0;
        report_row(c, i, bytes + cache_bytes(s, n), share);
        if (csv)
            fprintf(csv, "%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f\n", n, 1e3 * series_median(t),
                    1e3 * series_at(t, 0), 1e3 * series_at(t, 1), series_median(x), series_at(x, 0),
                    series_at(x, 1), 1e3 * last, last / one, share, series_median(&c->read[i]));
    }
    for (int i = 1; i < N_COUNT; i++)
        printf("t(%d)/t(1) = %.2f (%.2f..%.2f)\n", row_count[i], series_median(&c->ratio[i]),
               series_at(&c->ratio[i], 0), series_at(&c->ratio[i], 1));
    printf("verify(16)/plain = %.3f\nverify(61)/plain = %.3f\n", series_median(&c->ratio[AT_16]),
           series_median(&c->ratio[AT_61]));
    if (c->roof.copy.n)
        printf("copy bandwidth = %.1f GB/s (%.1f..%.1f)%s\n", 1e-9 * series_median(&c->roof.copy),
               1e-9 * series_at(&c->roof.copy, 0), 1e-9 * series_at(&c->roof.copy, 1), set->bandwidth > 0 ? ", as told" : "");
    else
        printf("copy bandwidth not measured: the device has no memory for it; see --bandwidth\n");
    if (csv) fclose(csv);
}

static void bench_rows(const settings *set, dg_session *s) {
    static curve c;
    double work, bytes;
    c = (curve){0};
    cost_of(s->model, &work, &bytes);
    for (int i = 0; i < N_COUNT; i++) pass(s, row_count[i], 1), verifies(s, row_count[i]); /* code warm, passes recorded */
    for (int r = 0; r < set->rounds; r++) {
        device_roofs(s->model->be, set, &c.roof);
        pass(s, 1, 1); /* the roofs emptied the caches */
        for (int i = 0; i < N_COUNT; i++) {
            series_add(&c.all[i], verifies(s, row_count[i]));
            series_add(&c.last[i], passes(s, row_count[i], 1));
            series_add(&c.ratio[i], c.all[i].v[r] / c.all[0].v[r]);
            if (c.roof.copy.n)
                series_add(&c.read[i], (bytes + cache_bytes(s, row_count[i])) / c.all[i].v[r] / c.roof.copy.v[c.roof.copy.n - 1]);
        }
    }
    report_rows(set, s, &c);
}

/* ---- rounds ------------------------------------------------------------------------------------ */

/* What a round takes besides its verify pass: asking a drafter without network, choosing the path, committing it. */
static void bench_overhead(const settings *set, dg_model *m, FILE *csv) {
    enum { STEPS = 16 };
    dg_session *s = open_session(m, set->context + 2 * DG_TREE_MAX, set->context, &remembering, BLOCK - 1);
    series outside = {0}, propose = {0}, commit = {0}, rows = {0};
    for (int r = -1; r < set->rounds; r++) {
        need(dg_session_sync(s, text, (size_t)set->context + 1));
        dg_session_reset_stats(s);
        const double start = now();
        for (int i = 0; i < STEPS; i++) need(dg_session_step(s, NULL, 0, &(size_t){0}));
        const double wall = now() - start;
        dg_stats st;
        dg_session_get_stats(s, &st);
        if (r < 0) continue; /* warms up */
        series_add(&outside, (wall - st.verify_seconds) / STEPS);
        series_add(&propose, st.draft_seconds / STEPS);
        series_add(&commit, st.commit_seconds / STEPS);
        series_add(&rows, (double)st.verified_rows / STEPS);
    }
    printf("round overhead outside kernels = %.1f us (%.1f..%.1f): propose %.1f us, commit %.1f us, of %.1f rows\n",
           1e6 * series_median(&outside), 1e6 * series_at(&outside, 0), 1e6 * series_at(&outside, 1),
           1e6 * series_median(&propose), 1e6 * series_median(&commit), series_median(&rows));
    if (csv)
        fprintf(csv, "\"round overhead outside kernels\",%.4f,%.4f,%.4f\n", 1e3 * series_median(&outside),
                1e3 * series_at(&outside, 0), 1e3 * series_at(&outside, 1));
    dg_session_free(s);
}

/* ---- prefill, loading, proposals --------------------------------------------------------------- */

static void print_ms(FILE *csv, const char *name, const series *s) {
    const double t = 1e3 * series_median(s), lo = 1e3 * series_at(s, 0), hi = 1e3 * series_at(s, 1);
    printf("%s = %.1f ms  %.1f..%.1f\n", name, t, lo, hi);
    if (csv) fprintf(csv, "\"%s\",%.4f,%.4f,%.4f\n", name, t, lo, hi);
}

static void bench_prefill(const settings *set, dg_model *m, FILE *csv) {
    dg_session *s = open_session(m, PREFILL + 8, 1, NULL, 0);
    series t = {0};
    prefill(s);
    for (int r = 0; r < set->rounds; r++) series_add(&t, prefill(s));
    print_ms(csv, "prefill of 512", &t);
    printf("prefill = %.0f tokens/s\n", PREFILL / series_median(&t));
    dg_session_free(s);
}

/* Open, session, a prompt of 16 tokens, one step. The file is in the page cache after the first time. */
static void bench_load(const settings *set, FILE *csv) {
    series open = {0}, first = {0};
    for (int r = -1; r < set->rounds; r++) {
        const double start = now();
        dg_model *m = open_model(set);
        const double opened = now() - start;
        dg_session *s = open_session(m, PREFILL, 15, NULL, 0);
        size_t n;
        need(dg_session_step(s, NULL, 0, &n));
        const double total = now() - start;
        if (r >= 0) series_add(&open, opened), series_add(&first, total);
        dg_session_free(s);
        dg_model_close(m);
    }
    print_ms(csv, "opening the model", &open);
    print_ms(csv, "load to first token", &first);
}

/* The first drafter of s proposes a block behind the text; it leaves its cache as it was. */
static double proposal(dg_session *s) {
    dg_drafter *d = s->slot[0].drafter;
    const double start = now();
    dg_tree_reset(&s->tree, s->token[s->n_token - 1]);
    s->offer.lattice.n_depth = 0;
    need(d->ops->propose(d, &s->tree, BLOCK - 1));
    return now() - start;
}

static void bench_proposal(const settings *set, dg_model *m, const char *path, FILE *csv) {
    const dg_draft draft = {"dflash", path, "tree=1,width=8"};
    dg_session *s = open_session(m, set->context + 2 * DG_TREE_MAX, set->context, &draft, BLOCK - 1);
    series t = {0}, ratio = {0};
    proposal(s);
    pass(s, 1, 1);
    for (int r = 0; r < set->rounds; r++) {
        double seconds = 0;
        int n = 0;
        for (; seconds < SAMPLE; n++) seconds += proposal(s);
        series_add(&t, seconds / n);
        series_add(&ratio, seconds / n / passes(s, 1, 1));
    }
    char name[512];
    snprintf(name, sizeof name, "proposal of %s", path);
    print_ms(csv, name, &t);
    printf("proposal/t(1) = %.3f  %.3f..%.3f\n", series_median(&ratio), series_at(&ratio, 0),
           series_at(&ratio, 1));
    if (csv)
        fprintf(csv, "\"%s in plain steps\",%.4f,%.4f,%.4f\n", name, series_median(&ratio),
                series_at(&ratio, 0), series_at(&ratio, 1));
    dg_session_free(s);
}

void bench_steps(const settings *set) {
    dg_model *m = open_model(set);
    dg_model_info info;
    dg_model_get_info(m, &info);
    printf("\n%s (%s), %s, compute %s\n", set->shape ? set->shape : info.path, info.weight_types, info.backend, set->compute);
    dg_session *s = open_session(m, set->context + 2 * DG_TREE_MAX, set->context, &remembering, BUDGET);
    if (section(set, "steps")) bench_rows(set, s);
    if (section(set, "shares")) bench_shares(set, s);
    dg_session_free(s);
    FILE *csv = csv_open(set, "times.csv", "what,median,min,max");
    printf("\n");
    if (section(set, "rounds")) bench_overhead(set, m, csv);
    if (section(set, "prefill")) bench_prefill(set, m, csv);
    for (int i = 0; i < set->n_drafter && section(set, "proposal"); i++)
        bench_proposal(set, m, set->drafter[i], csv);
    dg_model_close(m);
    if (section(set, "load")) bench_load(set, csv);
    if (csv) fclose(csv);
}

/* ---- as llama-bench does it -------------------------------------------------------------------- */

/* Milliseconds a call: ppN = N rows into an empty cache, the last scored (verifyN: all of them); tg64 = one
 * of 64 tokens decoded from an empty cache. */
void bench_peer(const settings *set) {
    dg_model *m = open_model(set);
    dg_session *s = open_session(m, PREFILL + 8, 0, NULL, 0);
    series last[UP_TO_64] = {0}, all[UP_TO_64] = {0}, decode = {0}, fill = {0};
    for (int r = -1; r < set->rounds; r++) {
        const int32_t clear = text[0] + 1;
        need(dg_session_sync(s, &clear, 1));
        for (int i = 0; i < UP_TO_64; i++) {
            const double a = pass(s, row_count[i], 1), b = pass(s, row_count[i], row_count[i]);
            if (r >= 0) series_add(&last[i], a), series_add(&all[i], b);
        }
        const double start = now();
        need(dg_session_generate(s, 64, NULL, NULL, NULL));
        const double seconds = (now() - start) / 64, f = prefill(s);
        if (r >= 0) series_add(&decode, seconds), series_add(&fill, f);
    }
    printf("test,ms\n");
    for (int i = 0; i < UP_TO_64; i++) {
        printf("pp%d,%.4f\n", row_count[i], 1e3 * series_median(&last[i]));
        printf("verify%d,%.4f\n", row_count[i], 1e3 * series_median(&all[i]));
    }
    printf("pp512,%.4f\ntg64,%.4f\n", 1e3 * series_median(&fill), 1e3 * series_median(&decode));
    dg_session_free(s);
    dg_model_close(m);
}
