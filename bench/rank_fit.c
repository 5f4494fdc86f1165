/* Fits the weights of graft/rank.c: answers prompts with `fused` behind a network drafter, or from memory alone, writes down
 * the candidates of every node that became text and which of them followed, and maximises the likelihood of that.
 *
 * Weights are drawn to those built in, as if TRUST nodes had said so; a node at depth d counts FADE^(d-1), as a path that
 * goes wrong early makes it worth nothing. Every prompt's nodes are scored by weights fitted on other prompts, too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/prompts.h"
#include "graft/rank.h"
#include "runtime/dgraft.h"

static const char usage[] =
    "usage: rank_fit -m MODEL [--drafter DIR] [options] PROMPTS...\n"
    "  --drafter DIR  DFlash drafter; none: weights from memory alone\n"
    "  -n N           tokens a prompt              [128]\n"
    "  --budget N     drafted nodes a round        [15]\n"
    "  -t N           threads                      [one a core]\n"
    "Writes the weights as graft/rank.c has them; what they are worth on standard error.\n";

enum { N = DG_RANK_WEIGHTS, FOLDS = 5, STEPS = 12, MOST = 64 /* candidates of a node */ };
static const double TRUST = 4, FADE = 0.85;

typedef struct node {
    int32_t first, n, right; /* candidates; which of them followed, -1: none */
    int32_t prompt;
    double weight;
} node;

static struct {
    float (*x)[N]; /* features of all candidates */
    node *node;
    size_t n_x, n_node, cap_x, cap_node;
    int32_t prompt;
} seen;

static void die(const char *what, const char *why) {
    fprintf(stderr, "rank_fit: %s: %s\n", what, why);
    exit(1);
}

static void *grown(void *p, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return p;
    *cap = need * 2;
    p = realloc(p, *cap * size);
    if (!p) die("nodes", "no memory");
    return p;
}

/* The linker puts this in the place of dg_rank_learn: what followed a node is seen here. */
void __real_dg_rank_learn(dg_rank *r, const dg_place *at, const dg_candidate *c, int32_t n, int32_t next);
void __wrap_dg_rank_learn(dg_rank *r, const dg_place *at, const dg_candidate *c, int32_t n, int32_t next);
void __wrap_dg_rank_learn(dg_rank *r, const dg_place *at, const dg_candidate *c, int32_t n, int32_t next) {
    if (n > MOST) die("nodes", "more candidates than there is room for");
    seen.x = grown(seen.x, &seen.cap_x, seen.n_x + (size_t)n, sizeof *seen.x);
    seen.node = grown(seen.node, &seen.cap_node, seen.n_node + 1, sizeof *seen.node);
    node *v = &seen.node[seen.n_node++];
    *v = (node){(int32_t)seen.n_x, n, -1, seen.prompt, pow(FADE, at->depth - 1)};
    for (int32_t i = 0; i < n; i++) {
        dg_rank_features(at, &c[i], seen.x[seen.n_x++]);
        if (c[i].token == next) v->right = i;
    }
    __real_dg_rank_learn(r, at, c, n, next);
}

/* ---- the fit ----------------------------------------------------------------------------------- */

/* p[i] of a node's candidates under w; returns that of "none of them". */
static double shares(const node *v, const double *w, double *p) {
    double most = 0, sum = 0;
    for (int32_t i = 0; i < v->n; i++) {
        p[i] = 0;
        for (int k = 0; k < N; k++) p[i] += w[k] * (double)seen.x[v->first + i][k];
        if (p[i] > most) most = p[i];
    }
    for (int32_t i = 0; i < v->n; i++) sum += p[i] = exp(p[i] - most);
    const double none = exp(-most);
    for (int32_t i = 0; i < v->n; i++) p[i] /= sum + none;
    return none / (sum + none);
}

/* Mean weighted -log of what followed, over the nodes of one fold (of all: -1). */
static double loss(const double *w, int fold) {
    double sum = 0, weight = 0, p[MOST];
    for (size_t i = 0; i < seen.n_node; i++) {
        const node *v = &seen.node[i];
        if (fold >= 0 && v->prompt % FOLDS != fold) continue;
        const double none = shares(v, w, p);
        sum -= v->weight * log(v->right < 0 ? none : p[v->right]);
        weight += v->weight;
    }
    return weight > 0 ? sum / weight : 0;
}

/* Solves h x = g in place (Cholesky; h is positive definite). */
static void solve(double h[N][N], double *g) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++) {
            double s = h[i][j];
            for (int k = 0; k < j; k++) s -= h[i][k] * h[j][k];
            h[i][j] = i == j ? sqrt(s) : s / h[j][j];
        }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < i; k++) g[i] -= h[i][k] * g[k];
        g[i] /= h[i][i];
    }
    for (int i = N - 1; i >= 0; i--) {
        for (int k = i + 1; k < N; k++) g[i] -= h[k][i] * g[k];
        g[i] /= h[i][i];
    }
}

/* w from w0 on, by Newton's method, over the nodes of all folds but `without`. */
static void fit(double *w, const double *w0, int without) {
    memcpy(w, w0, N * sizeof *w);
    for (int step = 0; step < STEPS; step++) {
        static double h[N][N];
        double g[N], p[MOST];
        memset(h, 0, sizeof h);
        for (int k = 0; k < N; k++) h[k][k] = TRUST, g[k] = TRUST * (w0[k] - w[k]);
        for (size_t i = 0; i < seen.n_node; i++) {
            const node *v = &seen.node[i];
            if (v->prompt % FOLDS == without) continue;
            double mean[N] = {0};
            shares(v, w, p);
            for (int32_t c = 0; c < v->n; c++) {
                const float *x = seen.x[v->first + c];
                for (int a = 0; a < N; a++) {
                    if (x[a] == 0) continue;
                    g[a] += v->weight * ((c == v->right ? 1 : 0) - p[c]) * (double)x[a];
                    mean[a] += p[c] * (double)x[a];
                    for (int b = 0; b <= a; b++) h[a][b] += v->weight * p[c] * (double)x[a] * (double)x[b];
                }
            }
            for (int a = 0; a < N; a++)
                for (int b = 0; b <= a; b++) h[a][b] -= v->weight * mean[a] * mean[b];
        }
        solve(h, g);
        for (int k = 0; k < N; k++) w[k] += g[k];
    }
}

/* How often what was promised came, by tenths of the promise. */
static void report_promises(const double *w) {
    double said[10] = {0}, came[10] = {0}, n[10] = {0}, p[MOST];
    for (size_t i = 0; i < seen.n_node; i++) {
        const node *v = &seen.node[i];
        shares(v, w, p);
        for (int32_t c = 0; c < v->n; c++) {
            const int b = p[c] < 1 ? (int)(10 * p[c]) : 9;
            said[b] += p[c], n[b]++, came[b] += c == v->right;
        }
    }
    fprintf(stderr, "promised .. came (candidates)\n");
    for (int b = 0; b < 10; b++)
        if (n[b] > 0) fprintf(stderr, "  %5.1f %% .. %5.1f %% (%.0f)\n", 100 * said[b] / n[b], 100 * came[b] / n[b], n[b]);
}

/* ---- what is recorded --------------------------------------------------------------------------- */

static void need(dg_status st, const char *what) {
    if (st != DG_OK) die(what, dg_error_message());
}

static void answer(dg_model *model, const bench_prompt *prompt, const dg_session_options *o, int tokens) {
    const dg_message message[2] = {{"system", prompt->system}, {"user", prompt->text}};
    const int skip = prompt->system ? 0 : 1;
    dg_model_info info;
    dg_model_get_info(model, &info);
    char *chat = NULL;
    if (info.chat_template) need(dg_chat_format(model, message + skip, (size_t)(2 - skip), -1, &chat), prompt->id);
    const char *text = chat ? chat : prompt->text;
    const int flags = chat ? DG_TOKENIZE_SPECIAL : DG_TOKENIZE_BOS;
    size_t n = 0;
    need(dg_tokenize(model, text, strlen(text), flags, NULL, 0, &n), prompt->id);
    int32_t *ids = malloc(n * sizeof *ids);
    if (!ids) die(prompt->id, "no memory");
    need(dg_tokenize(model, text, strlen(text), flags, ids, n, &n), prompt->id);
    dg_session *s;
    need(dg_session_create(model, o, &s), "session");
    need(dg_session_sync(s, ids, n), prompt->id);
    need(dg_session_generate(s, (size_t)tokens, NULL, NULL, NULL), prompt->id);
    dg_session_free(s);
    free(ids);
    dg_free(chat);
}

int main(int argc, char **argv) {
    const char *path = NULL, *drafter = NULL;
    int tokens = 128, budget = 15, threads = 0;
    bench_prompts prompts = {0};
    char error[1024];
    for (int i = 1; i < argc; i++) {
        const bool value = i + 1 < argc;
        if (!strcmp(argv[i], "-m") && value) path = argv[++i];
        else if (!strcmp(argv[i], "--drafter") && value) drafter = argv[++i];
        else if (!strcmp(argv[i], "-n") && value) tokens = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--budget") && value) budget = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-t") && value) threads = atoi(argv[++i]);
        else if (argv[i][0] == '-') return fputs(usage, stderr), 2;
        else if (!bench_prompts_read(&prompts, argv[i], 0, error, sizeof error)) die(argv[i], error);
    }
    if (!path || prompts.n < FOLDS || tokens < 1 || budget < 1) return fputs(usage, stderr), 2;
    dg_model *model;
    need(dg_model_open(path, &(dg_model_options){.threads = threads}, &model), path);
    const dg_draft draft[2] = {{"dflash", drafter, "width=8,adapt=1"}, {"fused", NULL, NULL}};
    const dg_session_options o = {.budget = budget, .draft = draft + !drafter, .n_draft = drafter ? 2 : 1, .calibration = "none"};
    for (int i = 0; i < prompts.n; i++) {
        seen.prompt = i;
        answer(model, &prompts.v[i], &o, tokens);
        fprintf(stderr, "\r%d of %d prompts, %zu nodes ", i + 1, prompts.n, seen.n_node);
    }
    fputc('\n', stderr);
    dg_rank built_in;
    dg_rank_init(&built_in, drafter != NULL, 0);
    double w0[N], w[N], before = 0, after = 0;
    for (int k = 0; k < N; k++) w0[k] = (double)built_in.weight[k];
    for (int f = 0; f < FOLDS; f++) {
        fit(w, w0, f);
        before += loss(w0, f) / FOLDS, after += loss(w, f) / FOLDS;
    }
    fprintf(stderr, "-log p of what followed, by weights fitted on other prompts: %.4f; by those built in: %.4f\n", after, before);
    fit(w, w0, -1);
    report_promises(w);
    for (int k = 0; k < N; k++) printf("%.2ff%s", w[k], k + 1 < N ? ", " : "\n");
    bench_prompts_free(&prompts);
    dg_model_close(model);
    return 0;
}
