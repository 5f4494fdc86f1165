/* The CPU backend's state: options to threads, instruction set and scratch; memory ops; the op table. */
#include "kernels/cpu/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SPIN = 2000 };

/* In vector instructions, the measure of dg_cpu_run; a core does some three thousand in a microsecond. To claim a chunk
 * takes a tenth of one where threads meet. */
enum { CHUNK = 48 * 1024, WORTH_SHARING = 8 * 1024, CHUNKS_PER_THREAD = 16 };

/* ---- instruction sets ---- */

static bool runs_here(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init(); /* these also ask whether the system saves the registers */
    const bool amx = strcmp(name, "amx") == 0;
    if (amx || strcmp(name, "avx512") == 0 || strcmp(name, "amx-model") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && (!amx || dg_amx_works());
    const bool vnni = strcmp(name, "avxvnni") == 0;
    if (vnni && !__builtin_cpu_supports("avxvnni")) return false;
    if (vnni || strcmp(name, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return strcmp(name, "portable") == 0;
}

#if defined(__x86_64__)
static const dg_isa *const isa[] = { /* best first */
    &dg_isa_amx, &dg_isa_avx512, &dg_isa_avxvnni, &dg_isa_avx2, &dg_isa_portable,
#ifdef DG_TEST
    &dg_isa_amx_model,
#endif
};
#else
static const dg_isa *const isa[] = {&dg_isa_portable};
#endif

const dg_isa *dg_isa_get(const char *name) {
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
        if ((!name || strcmp(isa[i]->name, name) == 0) && runs_here(isa[i]->name)) return isa[i];
    return NULL;
}

/* ---- state ---- */

static int32_t online_cores(void) {
#ifdef __linux__
    cpu_set_t set; /* what this process may use, which can be less than what the machine has */
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

static int32_t thread_count(const dg_backend_options *opt) {
    const int32_t n = opt->threads > 0 ? opt->threads : online_cores();
    return n < MAX_THREADS ? n : MAX_THREADS;
}

/* Hands out 64-byte aligned pieces; with base NULL it only adds up. */
typedef struct layout {
    char *base;
    size_t used;
    bool overflow;
} layout;

static void *take(layout *l, size_t n, size_t size) {
    size_t bytes, end;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 4 ||
        __builtin_add_overflow(l->used, (bytes + 63) / 64 * 64, &end)) {
        l->overflow = true;
        return NULL;
    }
    void *p = l->base ? l->base + l->used : NULL;
    l->used = end;
    return p;
}

static dg_attn_scratch attention_scratch(layout *l) {
    enum { Q = DG_ATTN_QUERIES };
    return (dg_attn_scratch){
        .query = take(l, DG_ATTN_QUERY_FLOATS, sizeof(float)),
        .part = take(l, DG_ATTN_QUERY_FLOATS, sizeof(float)),
        .max = take(l, Q, sizeof(float)),
        .lanes = take(l, Q * 16, sizeof(float)),
        .weight = take(l, Q * DG_KV_BLOCK, sizeof(float)),
        .score = take(l, Q * DG_ATTN_TAIL, sizeof(float)),
        .wide = take(l, DG_KV_BLOCK * DG_ATTN_WIDE, sizeof(float)),
        .list = take(l, Q * DG_TREE_MAX, sizeof(int32_t)),
        .row = take(l, Q, sizeof(dg_attn_row)),
        .state = take(l, 2 * Q, sizeof(float)),
    };
}

/* The whole state; called once to count and once to build. *team: the team's memory, NULL for one thread. */
static dg_cpu *lay_out(layout *l, const dg_backend_options *opt, void **team) {
    const int32_t n = thread_count(opt);
    const size_t vocab = (size_t)(opt->max_vocab > 0 ? opt->max_vocab : 0);
    dg_cpu *cpu = take(l, 1, sizeof *cpu + (size_t)n * sizeof cpu->scratch[0]);
    *team = n > 1 ? take(l, 1, dg_team_bytes(n)) : NULL;
    const size_t blocks = ((size_t)(opt->max_cols > 0 ? opt->max_cols : 0) + DG_BLOCK - 1) / DG_BLOCK;
    const bool packs = opt->precision != DG_PRECISION_F32;
    dg_act_block *act = packs ? take(l, DG_PASS_ROWS / DG_ROW_TILE * blocks, sizeof *act) : NULL;
    float *parts = take(l, n > 1 ? DG_ATTN_PARTS : 0, sizeof(float));
    atomic_int *undone = take(l, n > 1 ? DG_ATTN_LINES : 0, sizeof *undone);
    for (int32_t i = 0; i < n; i++) {
        const dg_cpu_scratch s = {
            .panel = take(l, DG_PANEL_FLOATS, sizeof(float)),
            .sums = take(l, DG_PANEL_SUMS, sizeof(float)),
            .strip = packs ? take(l, 1, sizeof(dg_strip)) : NULL,
            .act = packs ? take(l, blocks, sizeof *act) : NULL,
            .attention = attention_scratch(l),
            .value = take(l, vocab, sizeof(float)),
            .group = take(l, vocab / DG_GROUP + DG_CHUNK, sizeof(float)),
            .heap = take(l, vocab, sizeof(uint64_t)),
        };
        if (cpu) cpu->scratch[i] = s;
    }
    if (!cpu) return NULL;
    cpu->n_thread = n;
    cpu->max_vocab = opt->max_vocab;
    cpu->max_cols = packs ? opt->max_cols : 0;
    cpu->precision = opt->precision;
    cpu->act = act;
    cpu->act_job = 0;
    cpu->parts = parts;
    cpu->undone = undone;
    return cpu;
}

static size_t cpu_bytes(const dg_backend_options *opt) {
    layout l = {0};
    void *team;
    lay_out(&l, opt, &team);
    return l.overflow ? SIZE_MAX : l.used;
}

static void *cpu_open(void *mem, const dg_backend_options *opt, const char **why) {
    layout l = {.base = mem};
    void *team;
    dg_cpu *cpu = lay_out(&l, opt, &team);
    const char *wanted = opt->isa;
#ifdef DG_TEST
    if (!wanted) wanted = getenv("DG_ISA");
#endif
    cpu->isa = dg_isa_get(wanted);
    if (!cpu->isa) {
        *why = "no such instruction set on this machine";
        return NULL;
    }
    cpu->alloc = opt->alloc;
    cpu->free = opt->free;
    cpu->team = NULL;
    if (team) {
        /* With more threads than cores, who spins keeps another from working. */
        cpu->team = dg_team_open(team, cpu->n_thread, cpu->n_thread > online_cores() ? 0 : SPIN);
        if (!cpu->team) {
            *why = "cannot start the backend's threads";
            return NULL;
        }
    }
    pthread_mutex_init(&cpu->lock, NULL);
    snprintf(cpu->text, sizeof cpu->text, "cpu, %s, %d thread%s", cpu->isa->name, cpu->n_thread,
             cpu->n_thread == 1 ? "" : "s");
    return cpu;
}

static void cpu_close(void *ctx) {
    dg_cpu *cpu = ctx;
    dg_team_close(cpu->team);
    pthread_mutex_destroy(&cpu->lock);
}

static const char *cpu_error(const void *ctx) {
    (void)ctx; /* nothing that runs on the CPU fails after open */
    return "";
}

static const char *cpu_describe(const void *ctx) { return ((const dg_cpu *)ctx)->text; }

void dg_cpu_run_locked(dg_cpu *cpu, int64_t work, dg_team_fn *fn, void *arg) {
    if (cpu->team && work >= WORTH_SHARING) {
        /* the same number for all: of three chunks on two threads the last would be waited for */
        const int64_t each = work / CHUNK / cpu->n_thread + 1;
        const int64_t chunks = cpu->n_thread * (each < CHUNKS_PER_THREAD ? each : CHUNKS_PER_THREAD);
        dg_team_run(cpu->team, (int32_t)chunks, fn, arg);
    } else {
        fn(arg, 0, 0, 1);
    }
}

void dg_cpu_run(dg_cpu *cpu, int64_t work, dg_team_fn *fn, void *arg) {
    pthread_mutex_lock(&cpu->lock);
    dg_cpu_run_locked(cpu, work, fn, arg);
    pthread_mutex_unlock(&cpu->lock);
}

/* ---- memory ---- */

static void *op_alloc(dg_backend *be, size_t bytes) { return dg_cpu_of(be)->alloc(bytes); }

static void op_free(dg_backend *be, void *p) {
    if (p) dg_cpu_of(be)->free(p);
}

static void op_copy(dg_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes) memcpy(dst, src, bytes);
}

static bool op_sync(dg_backend *be) {
    (void)be;
    return true;
}

/* A pass is run, every time. */
static bool op_pass_begin(dg_backend *be, const void *key, size_t bytes) {
    (void)be, (void)key, (void)bytes;
    return true;
}

static void op_pass_end(dg_backend *be) { (void)be; }

static int32_t op_pass_rows(dg_backend *be, int32_t n) {
    (void)be;
    return n;
}

static const dg_ops ops = {
    .name = "cpu",
    .host_memory = true,
    .alloc = op_alloc,
    .free = op_free,
    .upload = op_copy,
    .download = op_copy,
    .copy2d = dg_cpu_copy2d,
    .zero = dg_cpu_zero,
    .sync = op_sync,
    .pass_begin = op_pass_begin,
    .pass_end = op_pass_end,
    .pass_rows = op_pass_rows,
    .embed = dg_cpu_embed,
    .rms_norm = dg_cpu_rms_norm,
    .pack_bytes = dg_cpu_pack_bytes,
    .pack = dg_cpu_pack,
    .matmul = dg_cpu_matmul,
    .rope_table = dg_cpu_rope_table,
    .qkv = dg_cpu_qkv,
    .attention = dg_cpu_attention,
    .kv_move = dg_cpu_kv_move,
    .kv_get = dg_cpu_kv_get,
    .swiglu = dg_cpu_swiglu,
    .rows_put = dg_cpu_rows_put,
    .rows_gather = dg_cpu_rows_gather,
    .top_k = dg_cpu_top_k,
    .sample = dg_cpu_sample,
    .succ_update = dg_cpu_succ_update,
    .succ_expand = dg_cpu_succ_expand,
};

const dg_backend_driver dg_cpu_driver = {
    .name = "cpu",
    .ops = &ops,
    .bytes = cpu_bytes,
    .open = cpu_open,
    .close = cpu_close,
    .error = cpu_error,
    .describe = cpu_describe,
};
