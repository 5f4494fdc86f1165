/* Bandwidth and arithmetic peaks; see peaks.h. Loops of independent accumulators, as many as hide the
 * latency; nothing is loaded in them, so that they show what the units can do. */
#include "bench/peaks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { NEAR = 64 << 20, FAR = 512 << 20, MAX_THREADS = 256, ACC = 12 };

static volatile float sink; /* what the loops come to, so that they are not left out */

/* ---- arithmetic: each does `n` turns and returns the operations of one ------------------------- */

typedef double peak_fn(int64_t n);

typedef float v4f __attribute__((vector_size(16)));

static double peak_generic(int64_t n) {
    const float half = 0.5f + 0 * sink;
    const v4f b = {half, half, half, half}, c = {1, 2, 3, 4};
    v4f a0 = c, a1 = a0 + c, a2 = a1 + c, a3 = a2 + c, a4 = a3 + c, a5 = a4 + c; /* all different */
    v4f a6 = a5 + c, a7 = a6 + c, a8 = a7 + c, a9 = a8 + c, a10 = a9 + c, a11 = a10 + c;
    for (int64_t i = 0; i < n; i++) {
        a0 = a0 * b + c, a1 = a1 * b + c, a2 = a2 * b + c, a3 = a3 * b + c;
        a4 = a4 * b + c, a5 = a5 * b + c, a6 = a6 * b + c, a7 = a7 * b + c;
        a8 = a8 * b + c, a9 = a9 * b + c, a10 = a10 * b + c, a11 = a11 * b + c;
    }
    a0 += a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
    sink += a0[0] + a0[1] + a0[2] + a0[3];
    return ACC * 4 * 2;
}

#ifdef __x86_64__
/* One loop over twelve registers of type V: STEP(a), which does OPS operations. An array of them would live
 * in memory. */
#define PEAK(NAME, TARGET, V, ZERO, STEP, OPS)                                                               \
    __attribute__((target(TARGET))) static double NAME(int64_t n) {                                          \
        V b = ZERO, c = ZERO, a0 = ZERO, a1 = ZERO, a2 = ZERO, a3 = ZERO, a4 = ZERO, a5 = ZERO;              \
        V a6 = ZERO, a7 = ZERO, a8 = ZERO, a9 = ZERO, a10 = ZERO, a11 = ZERO;                                \
        __asm__ volatile("" : "+v"(b), "+v"(c));                                                             \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            a0 = STEP(a0), a1 = STEP(a1), a2 = STEP(a2), a3 = STEP(a3), a4 = STEP(a4), a5 = STEP(a5);        \
            a6 = STEP(a6), a7 = STEP(a7), a8 = STEP(a8), a9 = STEP(a9), a10 = STEP(a10), a11 = STEP(a11);    \
            __asm__ volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5));               \
            __asm__ volatile("" : "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9), "+v"(a10), "+v"(a11));             \
        }                                                                                                    \
        return (double)ACC * (OPS);                                                                          \
    }

#define STEP_AVX2(a)         _mm256_fmadd_ps(b, c, a)
#define STEP_AVX2_INT8(a)    _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(b, a), c))
#define STEP_AVXVNNI_INT8(a) _mm256_dpbusd_avx_epi32(a, b, c)
#define STEP_AVX512(a)       _mm512_fmadd_ps(b, c, a)
#define STEP_AVX512_INT8(a)  _mm512_dpbusd_epi32(a, b, c)
#define STEP_AVX512_BF16(a)  _mm512_dpbf16_ps(a, (__m512bh)b, (__m512bh)c)
PEAK(peak_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), STEP_AVX2, 8 * 2)
PEAK(peak_avx2_int8, "avx2", __m256i, _mm256_setzero_si256(), STEP_AVX2_INT8, 32 * 2)
PEAK(peak_avxvnni_int8, "avxvnni", __m256i, _mm256_setzero_si256(), STEP_AVXVNNI_INT8, 32 * 2)
PEAK(peak_avx512, "avx512f", __m512, _mm512_setzero_ps(), STEP_AVX512, 16 * 2)
PEAK(peak_avx512_int8, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), STEP_AVX512_INT8, 64 * 2)
PEAK(peak_avx512_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), STEP_AVX512_BF16, 32 * 2)

/* Four accumulator tiles, two of each factor, as a matmul would use them. */
#define PEAK_AMX(NAME, TARGET, DOT, OPS)                                                                     \
    __attribute__((target(TARGET))) static double NAME(int64_t n) {                                          \
        struct __attribute__((packed, aligned(64))) {                                                        \
            uint8_t palette, start, zero[14];                                                                \
            uint16_t bytes[16];                                                                              \
            uint8_t rows[16];                                                                                \
        } config = {.palette = 1};                                                                           \
        for (int t = 0; t < 8; t++) config.bytes[t] = 64, config.rows[t] = 16;                               \
        _tile_loadconfig(&config);                                                                           \
        _tile_zero(0);                                                                                       \
        _tile_zero(1);                                                                                       \
        _tile_zero(2);                                                                                       \
        _tile_zero(3);                                                                                       \
        _tile_zero(4);                                                                                       \
        _tile_zero(5);                                                                                       \
        _tile_zero(6);                                                                                       \
        _tile_zero(7);                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            DOT(0, 4, 6);                                                                                    \
            DOT(1, 4, 7);                                                                                    \
            DOT(2, 5, 6);                                                                                    \
            DOT(3, 5, 7);                                                                                    \
        }                                                                                                    \
        _tile_release();                                                                                     \
        return 4.0 * (OPS);                                                                                  \
    }

PEAK_AMX(peak_amx_int8, "amx-tile,amx-int8", _tile_dpbssd, 16 * 16 * 64 * 2)
PEAK_AMX(peak_amx_bf16, "amx-tile,amx-bf16", _tile_dpbf16ps, 16 * 16 * 32 * 2)

/* The kernel lends tiles on request. */
static bool amx_allowed(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

typedef struct arithmetic {
    const char *isa;
    peak_fn *f32, *bf16, *int8;
} arithmetic;

static arithmetic arithmetic_of(const char *isa) {
#ifdef __x86_64__
    const bool amx = !strcmp(isa, "amx") && amx_allowed();
    if (amx || !strcmp(isa, "avx512")) {
        arithmetic a = {isa, peak_avx512, NULL, NULL};
        if (__builtin_cpu_supports("avx512vnni")) a.int8 = peak_avx512_int8;
        if (__builtin_cpu_supports("avx512bf16")) a.bf16 = peak_avx512_bf16;
        if (amx) a.int8 = peak_amx_int8, a.bf16 = peak_amx_bf16;
        return a;
    }
    if (!strcmp(isa, "avxvnni")) return (arithmetic){isa, peak_avx2, NULL, peak_avxvnni_int8};
    if (!strcmp(isa, "avx2")) return (arithmetic){isa, peak_avx2, NULL, peak_avx2_int8};
#endif
    return (arithmetic){isa, peak_generic, NULL, NULL};
}

/* ---- threads ----------------------------------------------------------------------------------- */

typedef struct job {
    pthread_barrier_t *start;
    peak_fn *peak; /* NULL: memory */
    char *dst;     /* NULL: read only */
    const char *src;
    size_t bytes;
    double amount, begin, end; /* operations or bytes done, from when to when */
} job;

typedef uint64_t v8u __attribute__((vector_size(64)));

#if defined(__x86_64__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* Four streams at a time: more than one core gets out of a single one. bytes: a multiple of 256. */
WIDEST static double read_all(const char *src, size_t bytes) {
    const size_t quarter = bytes / 4 / sizeof(v8u);
    const v8u *x = (const v8u *)src;
    v8u a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < quarter; i++) {
        a ^= x[i], b ^= x[i + quarter];
        c ^= x[i + 2 * quarter], d ^= x[i + 3 * quarter];
    }
    a ^= b ^ c ^ d;
    sink += (float)(a[0] & 1);
    return (double)bytes;
}

static void *work(void *arg) {
    job *j = arg;
    enum { TURNS = 100000 };
    pthread_barrier_wait(j->start);
    j->begin = now();
    if (j->peak) {
        while (now() - j->begin < 0.008) j->amount += TURNS * j->peak(TURNS);
    } else if (j->dst) {
        memcpy(j->dst, j->src, j->bytes);
        j->amount = 2.0 * (double)j->bytes;
    } else {
        j->amount = read_all(j->src, j->bytes);
    }
    j->end = now();
    return NULL;
}

/* Amount a second of all threads together. */
static double run(const job *model, int threads) {
    pthread_barrier_t start;
    pthread_t id[MAX_THREADS];
    job j[MAX_THREADS];
    if (pthread_barrier_init(&start, NULL, (unsigned)threads)) die("peaks", "no barrier");
    for (int t = 0; t < threads; t++) {
        j[t] = *model;
        j[t].start = &start;
        const size_t share = model->bytes / (size_t)threads / 256 * 256;
        j[t].bytes = share;
        if (j[t].src) j[t].src += share * (size_t)t;
        if (j[t].dst) j[t].dst += share * (size_t)t;
        if (t && pthread_create(&id[t], NULL, work, &j[t])) die("peaks", "cannot start a thread");
    }
    work(&j[0]);
    double amount = j[0].amount, begin = j[0].begin, end = j[0].end;
    for (int t = 1; t < threads; t++) {
        pthread_join(id[t], NULL);
        amount += j[t].amount;
        if (j[t].begin < begin) begin = j[t].begin;
        if (j[t].end > end) end = j[t].end;
    }
    pthread_barrier_destroy(&start);
    return amount / (end - begin);
}

void peaks_round(peaks *p, const char *isa, int threads) {
    static char *src, *dst;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (!src) {
        src = aligned_alloc(64, FAR), dst = aligned_alloc(64, FAR);
        if (!src || !dst) die("peaks", "no memory");
        memset(src, 1, FAR), memset(dst, 1, FAR);
    }
    run(&(job){.src = src, .bytes = NEAR}, threads); /* brings it near */
    series_add(&p->near, run(&(job){.src = src, .bytes = NEAR}, threads));
    series_add(&p->read, run(&(job){.src = src, .bytes = FAR}, threads));
    series_add(&p->copy, run(&(job){.src = src, .dst = dst, .bytes = FAR}, threads));
    const arithmetic a = arithmetic_of(isa);
    series_add(&p->f32, run(&(job){.peak = a.f32}, threads));
    if (a.bf16) series_add(&p->bf16, run(&(job){.peak = a.bf16}, threads));
    if (a.int8) series_add(&p->int8, run(&(job){.peak = a.int8}, threads));
}
