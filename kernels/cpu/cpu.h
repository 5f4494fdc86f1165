/* The CPU backend's own types: the state behind dg_backend.ctx, the team of threads, and the table of inner
 * loops that exists once per instruction set (isa_*.c). Files of kernels/cpu/ only (and their tests).
 *
 * An op is: take the lock, split rows or outputs into chunks for the team (dg_cpu_run), call an inner loop.
 * The split never reaches into a sum, so no result depends on the number of threads or on who does what. */
#ifndef DG_CPU_H
#define DG_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cpu/packed.h"
#include "kernels/select.h"

/* ---- team.c ---- */

/* One chunk of a job. worker: which member does it, 0 being the caller; its scratch is nobody else's. */
typedef void dg_team_fn(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk);
typedef struct dg_team dg_team;

size_t dg_team_bytes(int32_t n);

/* Starts n-1 threads with their state in mem (64-byte aligned, dg_team_bytes(n) long). NULL when a thread
 * cannot be had; those that were started are joined. spin: turns to wait busily before sleeping. */
dg_team *dg_team_open(void *mem, int32_t n, int32_t spin);

/* Does chunks 0 .. n_chunk-1 (at least 1, at most 65535), each once, on whatever members come; returns when
 * all are done. One caller at a time. */
void dg_team_run(dg_team *team, int32_t n_chunk, dg_team_fn *fn, void *arg);
void dg_team_close(dg_team *team);

/* [*begin, *end) of n things for this chunk, cut at multiples of `grain`. */
static inline void dg_split(int32_t n, int32_t grain, int32_t chunk, int32_t n_chunk, int32_t *begin,
                            int32_t *end) {
    const int64_t grains = (n + (int64_t)grain - 1) / grain;
    const int64_t a = grains * chunk / n_chunk * grain, b = grains * (chunk + 1) / n_chunk * grain;
    *begin = (int32_t)(a < n ? a : n);
    *end = (int32_t)(b < n ? b : n);
}

/* ---- isa_*.c: the inner loops ---- */

/* The operands of one matmul; x, bias, out and add as in ops.h. */
typedef struct dg_matmul_args {
    dg_mat out, x, w, bias;
    bool add;
} dg_matmul_args;

/* The operands of one matmul by packed weights. */
typedef struct dg_packed_args {
    const dg_act_block *x; /* [rows / DG_ROW_TILE, w.cols / DG_BLOCK]; rows: those of out, at most DG_PASS_ROWS */
    dg_mat out, w, bias;
    bool add;
    int digits; /* of x: 1 or 2 */
} dg_packed_args;

enum {
    DG_ATTN_SPAN = 256,          /* keys whose sums start anew, to be merged in order: what threads share out */
    DG_ATTN_QUERIES = 64,        /* rows times heads of one call, all of one KV head */
    DG_ATTN_QUERY_FLOATS = 8192, /* and their floats, each query's padded to whole vectors */
    DG_ATTN_WIDE = 256,          /* widest head whose blocks are widened to f32 for many queries */
    DG_ATTN_PARTS = 1 << 19,     /* floats in which spans wait to be merged */
    DG_ATTN_LINES = 1024,        /* (rows, KV head) pairs whose spans are shared out */
    DG_ATTN_TAIL = DG_KV_BLOCK + DG_TREE_MAX /* cache rows from the block in which lists begin */
};

/* The keys of one row of queries: those of indices first .. last-1, each in the cache row of that number;
 * then, where there are lists, index len + i in cache row list[i], or -1 for a key outside the attention
 * window. */
typedef struct dg_attn_row {
    int32_t first, last, n_list;
    const int32_t *list;
} dg_attn_row;

/* A worker's scratch. Queries are row-major: query r * n_head + h. */
typedef struct dg_attn_scratch {
    float *query, *part;       /* [DG_ATTN_QUERY_FLOATS]: scaled queries, the outputs of a span */
    float *max;                /* [DG_ATTN_QUERIES] */
    float *lanes;              /* [DG_ATTN_QUERIES, 16]: sums of weights */
    float *weight;             /* [DG_ATTN_QUERIES, DG_KV_BLOCK]: scores, then weights */
    float *score;              /* [DG_ATTN_QUERIES, DG_ATTN_TAIL] */
    float *wide;               /* [DG_KV_BLOCK, DG_ATTN_WIDE]: K or V of a block */
    int32_t *list;             /* [DG_ATTN_QUERIES, DG_TREE_MAX] */
    dg_attn_row *row;          /* [DG_ATTN_QUERIES] */
    float *state;              /* [2, DG_ATTN_QUERIES]: max and sum where nobody else needs them */
} dg_attn_scratch;

/* Some heads of one KV group, of some rows: at most DG_ATTN_QUERIES queries. */
typedef struct dg_attn_args {
    const char *k, *v;         /* the KV head in the first block, see cache.c */
    size_t block_bytes;        /* from one block to the next */
    const char *next;          /* what the next call will read first, NULL: unknown */
    dg_dtype dtype;
    int32_t n_head, n_row, head_dim, stride; /* stride: head_dim in whole vectors, in floats */
    int32_t len, n_cached;     /* cache rows that are committed, and that hold anything */
    float scale;
    const dg_attn_row *row;    /* all with a list or all without */
    const float *q[DG_ATTN_QUERIES];
    float *out[DG_ATTN_QUERIES], *max, *sum; /* state of each query: largest score (-inf: nothing yet), sum of
                                                e^(score - max), weighted sum of values */
    const dg_attn_scratch *s;
} dg_attn_args;

enum {
    DG_PANEL_OUTS = 8,  /* weight rows that are decoded together */
    DG_PANEL_LEN = 768, /* and how much of each: multiple of every block length */
    DG_PANEL_ROWS = 64, /* rows of x that one decoded panel serves */
    DG_LANES = 16,      /* partial sums of every dot product, on every instruction set */
    DG_GROUP = 16,      /* logits per entry of row_max's group maxima */
    DG_CHUNK = DG_GROUP * DG_LANES,
    DG_PANEL_FLOATS = DG_PANEL_OUTS * DG_PANEL_LEN,
    DG_PANEL_SUMS = DG_PANEL_ROWS * DG_PANEL_OUTS * DG_LANES
};

typedef struct dg_isa {
    const char *name;

    /* Outputs [m0, m1) of every row. panel [DG_PANEL_FLOATS] and sums [DG_PANEL_SUMS] are scratch. */
    void (*matmul)(const dg_matmul_args *a, int32_t m0, int32_t m1, float *panel, float *sums);

    /* x[n_block * DG_BLOCK] in fixed point, as row `row` of dst[n_block]. */
    void (*fix_row)(const float *x, int32_t n_block, int digits, int32_t row, dg_act_block *dst);

    /* Panels [p0, p1) of every row; strip and sums [DG_PASS_ROWS] are scratch. */
    void (*matmul_packed)(const dg_packed_args *a, int32_t p0, int32_t p1, dg_strip *strip, float (*sums)[DG_PACK_OUTS]);

    /* Takes the keys of indices [begin, end) into the state of every query; begin: a multiple of DG_KV_BLOCK. */
    void (*attend)(const dg_attn_args *a, int32_t begin, int32_t end);

    /* Merges the state of a span into that of what is before it. */
    void (*attend_merge)(float *max, float *sum, float *out, float span_max, float span_sum,
                         const float *span_out, int32_t head_dim);
    void (*attend_end)(float *out, float max, float sum, int32_t head_dim); /* out /= sum */

    /* One row of d elements; w f32, f16 or bf16. */
    void (*rms_norm)(float *out, const float *x, const void *w, dg_dtype w_dtype, int32_t d, float eps);
    void (*swiglu)(float *out, const float *gate, const float *up, int32_t n);
    void (*rope_halves)(float *x, const float *cos, const float *sin, int32_t half);
    void (*rope_pairs)(float *x, const float *cos, const float *sin, int32_t half);
    void (*to_f16)(uint16_t *dst, const float *src, int32_t n);
    void (*to_bf16)(uint16_t *dst, const float *src, int32_t n);

    /* The largest of x[n] (NaN ignored, -inf for none) and the maxima of groups: element i belongs to group
     * i / DG_CHUNK * DG_LANES + i % DG_LANES. groups: n rounded up to DG_CHUNK, over DG_GROUP. */
    float (*row_max)(const float *x, int32_t n, float *groups);

    /* Sum of e^z over the elements with z >= s.threshold. */
    double (*sum_exp)(const float *x, int32_t n, dg_scale s);

    /* out[i] = e^z[i]. */
    void (*exp)(float *out, const float *z, int32_t n);

    /* Lowest index of the largest z + noise among the elements with z >= s.threshold. */
    int32_t (*gumbel_max)(const float *x, int32_t n, dg_scale s, uint64_t seed, uint32_t pos);
} dg_isa;

extern const dg_isa dg_isa_portable, dg_isa_avx2, dg_isa_avxvnni, dg_isa_avx512, dg_isa_amx;
#ifdef DG_TEST
extern const dg_isa dg_isa_amx_model; /* amx by a model of the tiles in software; only by name */
#endif

/* The best table that this machine runs, or the named one; NULL if the name is unknown or cannot run. */
const dg_isa *dg_isa_get(const char *name);

/* ---- amx.c ---- */

/* Whether AMX tiles multiply right on this machine, where AVX-512 runs. The first call asks the kernel for the
 * process's permission and tries; later ones remember. */
bool dg_amx_works(void);

/* Whether a product by this table, of 16 rows by a panel of Q8_0, has the bits of avx512's. x86-64 Linux only. */
bool dg_amx_agrees(const dg_isa *isa);

/* What attempt() returns, or false if it is stopped by SIGILL or SIGSEGV. The application's handlers and the thread's
 * signal mask are as before afterwards; meanwhile other threads' faults go to those handlers. */
bool dg_try(bool (*attempt)(void));

/* ---- cpu.c: the backend's state ---- */

typedef struct dg_cpu_scratch { /* one worker's */
    float *panel, *sums;        /* matmul */
    dg_strip *strip;            /* by packed weights */
    dg_act_block *act;          /* x of few rows, [max_cols / DG_BLOCK] */
    int64_t act_job;            /* the job that act belongs to */
    dg_attn_scratch attention;
    float *value;               /* select: a row's candidates, [max_vocab] */
    float *group;               /* select: group maxima */
    union {                     /* [max_vocab] */
        uint64_t *heap;         /* top_k: best so far */
        float *mass;            /* sample: e^z of the candidates */
    };
} dg_cpu_scratch;

typedef struct dg_cpu {
    const dg_isa *isa;
    dg_team *team; /* NULL with one thread */
    dg_precision precision;
    dg_act_block *act; /* matmul by packed weights: x, [DG_PASS_ROWS / DG_ROW_TILE, max_cols / DG_BLOCK] */
    int64_t act_job;   /* jobs so far */
    int32_t n_thread, max_vocab, max_cols;
    float *parts;              /* attention: states of spans, [DG_ATTN_PARTS] */
    atomic_int *undone;        /* and how many of each line of spans are missing, [DG_ATTN_LINES] */
    pthread_mutex_t lock; /* held by every op that uses the team or scratch */
    void *(*alloc)(size_t);
    void (*free)(void *);
    char text[64];
    dg_cpu_scratch scratch[]; /* one a worker */
} dg_cpu;

static inline dg_cpu *dg_cpu_of(dg_backend *be) { return be->ctx; }

/* Runs fn on the team, or on the calling thread alone when the work (about the number of vector
 * instructions) is too small to share. Takes the lock. */
void dg_cpu_run(dg_cpu *cpu, int64_t work, dg_team_fn *fn, void *arg);

/* Likewise; the caller has the lock. For ops that run in several steps. */
void dg_cpu_run_locked(dg_cpu *cpu, int64_t work, dg_team_fn *fn, void *arg);

/* ---- the ops, by file ---- */

size_t dg_cpu_pack_bytes(dg_backend *be, dg_mat w, dg_dtype as);
dg_mat dg_cpu_pack(dg_backend *be, void *dst, dg_mat w, dg_dtype as);
void dg_cpu_matmul(dg_backend *be, dg_mat x, const dg_product *product, int32_t n, bool add);
void dg_cpu_attention(dg_backend *be, dg_mat out, dg_mat q, const dg_attn_seg *seg, int32_t n_seg,
                      const dg_attn_shape *shape);

/* Rows row0.. of a cache = k[n, G*hd] and v[n, G*hd], both f32. */
void dg_cpu_kv_put(dg_cpu *cpu, dg_mat ck, dg_mat cv, int32_t row0, dg_mat k, dg_mat v, int32_t head_dim);
void dg_cpu_kv_move(dg_backend *be, const dg_mat *ck, const dg_mat *cv, int32_t n_layer, int32_t row0, const int32_t *idx,
                    int32_t n, int32_t head_dim);
void dg_cpu_kv_get(dg_backend *be, dg_mat k, dg_mat v, dg_mat ck, dg_mat cv, int32_t row0, int32_t head_dim);

void dg_cpu_rms_norm(dg_backend *be, dg_mat out, dg_mat x, dg_mat w, float eps);
void dg_cpu_rope_table(dg_backend *be, dg_mat table, const int32_t *pos, const float *freq, float mscale);
void dg_cpu_qkv(dg_backend *be, const dg_qkv *r, const dg_attn_seg *seg, int32_t n_seg);
void dg_cpu_swiglu(dg_backend *be, dg_mat out, dg_mat gate, dg_mat up);

void dg_cpu_copy2d(dg_backend *be, dg_mat dst, dg_mat src);
void dg_cpu_zero(dg_backend *be, dg_mat dst);
void dg_cpu_embed(dg_backend *be, dg_mat out, dg_mat table, const int32_t *id);
void dg_cpu_rows_put(dg_backend *be, dg_mat dst, const int32_t *row0, dg_mat src);
void dg_cpu_rows_gather(dg_backend *be, dg_mat dst, dg_mat src, const int32_t *idx);
void dg_cpu_succ_update(dg_backend *be, dg_mat m, const int32_t *token, dg_mat id, const int32_t *prio);
void dg_cpu_succ_expand(dg_backend *be, int32_t *id, dg_mat m, const int32_t *parent, const int32_t *rank,
                        int32_t n_root, int32_t n);

void dg_cpu_top_k(dg_backend *be, int32_t *id, float *logp, dg_mat logits, int32_t k);
void dg_cpu_sample(dg_backend *be, int32_t *id, float *logp, dg_mat logits, const int32_t *pos, const dg_sampling *s, int32_t *best,
                   int32_t k);

/* What sample keeps of one row, for temperature > 0. `max`: row_max of the row, whose group maxima are in
 * scratch->group; not -inf. */
dg_scale dg_cpu_keep(const dg_isa *isa, const float *logits, int32_t n, float max, const dg_sampling *s,
                     const dg_cpu_scratch *scratch);

#endif
