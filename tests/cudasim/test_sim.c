/* The simulator against what CUDA says, and faults that it must report. Every fault runs in a process of its
 * own, which has to end with DGSIM_EXIT and name kernel, block and thread. */
#include <math.h>
#include <time.h>

#include "tests/cudasim/rig.h"

/* --- faults --- */

typedef struct fault_case {
    case_fault fault;
    const char *logged, *block, *thread; /* parts of the report, where accesses are logged */
    const char *plain;                   /* and where they are not; NULL: goes unnoticed */
} fault_case;

static const fault_case faults[] = {
    {FAULT_STATIC_INDEX, "out of bounds: index 128 of 'float", "(1,0,0)", "(5,0,0)",
     "0 bytes past the end of shared"},
    {FAULT_STATIC_POINTER, "shared memory out of bounds: 4 bytes written at byte 512", "(1,0,0)", "(5,0,0)",
     "0 bytes past the end of shared"},
    {FAULT_DYNAMIC_INDEX, "shared memory out of bounds: 4 bytes written at byte 512 of dynamic", "(1,0,0)",
     "(5,0,0)", "byte 512 of 512 bytes of dynamic"},
    {FAULT_GLOBAL_INDEX, "writes out of bounds: byte 1024 of device memory of 1024", "(1,0,0)", "(5,0,0)",
     "byte 1024"},
    {FAULT_GLOBAL_BEFORE, "writes out of bounds: 4 bytes before device memory", "(1,0,0)", "(5,0,0)",
     "4 bytes before"},
    {FAULT_FREED, "reads device memory that has been freed", "(1,0,0)", "(5,0,0)", "that has been freed"},
    {FAULT_UNINITIALISED, "read of uninitialised shared memory: byte 20 of", "(1,0,0)", "(122,0,0)", NULL},
    {FAULT_MISSING_BARRIER, "uninitialised shared memory", "(0,0,0)", "(0,0,0)", NULL},
    {FAULT_MISSING_SYNCWARP, "race on byte", "(0,0,0)", "thread (", NULL},
    {FAULT_READ_THEN_WRITTEN, "race on byte", "(0,0,0)", "thread (", NULL},
    {FAULT_EXIT_AT_BARRIER, "thread (5,0,0) has left the kernel", "(1,0,0)", "divergent barrier",
     "divergent barrier"},
    {FAULT_BARRIER_IN_BRANCH, "divergent barrier", "(1,0,0)", "thread (5,0,0) waits at __syncthreads",
     "divergent barrier"},
    {FAULT_LANE_NOT_IN_MASK, "lane 5 calls __shfl_sync with mask 0xffffffdf", "(1,0,0)", "(5,0,0)",
     "which leaves it out"},
    {FAULT_LANE_NEVER_COMES, "a lane that the mask names never arrives", "(1,0,0)",
     "thread (5,0,0) waits at __syncthreads", "never arrives"},
    {FAULT_LANE_HAS_LEFT, "it names a lane that has left", "(1,0,0)", "thread (5,0,0) has left", "has left"},
    {FAULT_SOURCE_NOT_IN_MASK, "lane 5 reads lane 16", "(1,0,0)", "thread (5,0,0)", "reads lane 16"},
    {FAULT_FLOAT4, "misaligned", "(1,0,0)", "(5,0,0)", NULL},
    {FAULT_EARLY_COPY, "uninitialised shared memory", "(0,0,0)", "thread (", NULL},
    {FAULT_HOST_POINTER, "which is no memory of the device", "(1,0,0)", "(5,0,0)", NULL},
    {FAULT_BLOCKS_MEET,
     "race on byte 20 of device memory of 1024 bytes: this thread writes what thread (5,0,0) of block number "
     "0 has written",
     "(1,0,0)", "(5,0,0)", NULL},
    {FAULT_BLOCK_READS,
     "race on byte 20 of device memory of 1024 bytes: this thread reads what thread (5,0,0) of block number "
     "0 has written",
     "(1,0,0)", "(5,0,0)", NULL},
    {FAULT_ASYNC_ALIGNMENT, "misaligned: 16 bytes", "(1,0,0)", "(5,0,0)", "misaligned: 16 bytes"},
    {FAULT_STACK, "stack overflows", "(0,0,0)", "thread (0,0,0)", "stack overflows"},
};

static void run_fault(const void *arg) {
    const fault_case *f = arg;
    const size_t bytes = 2 * CASE_THREADS * sizeof(float);
    float host[2 * CASE_THREADS] = {0};
    float *in = device(host, bytes), *out = device(NULL, bytes), *freed = device(NULL, bytes);
    ok(cudaFree(freed));
    case_fault_launch(f->fault, out, in, freed, host, stream);
    cudaStreamSynchronize(stream);
    cudaFree(out); /* looks at the margins */
}

static void test_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const fault_case *f = &faults[i];
        char report[4096];
        const int status = in_child(run_fault, f, report, sizeof report);
        const char *part = dgsim_logs_accesses() ? f->logged : f->plain;
        const int want = part ? DGSIM_EXIT : 0;
        if (status != want) fail_msg("fault %d: exit status %d, not %d: %s", f->fault, status, want, report);
        if (!part) continue;
        if (!strstr(report, "in kernel ") || !strstr(report, "cases.cu"))
            fail_msg("fault %d: where? %s", f->fault, report);
        if (!strstr(report, part)) fail_msg("fault %d: no \"%s\" in: %s", f->fault, part, report);
        if (!dgsim_logs_accesses()) continue;
        if (!strstr(report, f->block) || !strstr(report, f->thread))
            fail_msg("fault %d: which thread? %s", f->fault, report);
    }
}

static void test_no_fault(void **state) {
    (void)state;
    float in[2 * CASE_THREADS], out[2 * CASE_THREADS];
    for (int i = 0; i < 2 * CASE_THREADS; i++) in[i] = (float)i;
    float *din = device(in, sizeof in), *dout = device(NULL, sizeof out);
    for (int order = DGSIM_FORWARD; order <= DGSIM_SHUFFLED; order++) {
        dgsim.order = (dgsim_order)order;
        ok(cudaMemsetAsync(dout, 0, sizeof out, stream));
        case_fault_launch(FAULT_NONE, dout, din, NULL, NULL, stream);
        fetch(out, dout, sizeof out);
        for (int i = 0; i < CASE_THREADS; i++) {
            assert_float_equal(out[i], in[CASE_THREADS - 1 - i], 0);
            assert_float_equal(out[CASE_THREADS + i], in[2 * CASE_THREADS - 1 - i], 0);
        }
    }
    dgsim.order = DGSIM_FORWARD;
    ok(cudaFree(din));
    ok(cudaFree(dout));
}

static void follow_pointer(const void *arg) {
    (void)arg;
    const float *p = device(NULL, 64);
    volatile float x = *p;
    (void)x;
}

static void test_host_follows_device_pointer(void **state) {
    (void)state;
    char report[2048];
    assert_int_equal(in_child(follow_pointer, NULL, report, sizeof report), DGSIM_EXIT);
    assert_non_null(strstr(report, "host code accesses device memory, byte 0 of 64"));
}

/* --- what things compute --- */

static void test_index(void **state) {
    (void)state;
    uint32_t got[12 * 24];
    uint32_t *out = device(NULL, sizeof got);
    case_index(out, 3, 2, 2, 4, 3, 2, stream);
    fetch(got, out, sizeof got);
    for (uint32_t i = 0; i < 12 * 24; i++) {
        const uint32_t b = i / 24, t = i % 24;
        const uint32_t want =
            b % 3 << 20 | b / 3 % 2 << 16 | b / 6 << 12 | t % 4 << 8 | t / 4 % 3 << 4 | t / 12;
        assert_int_equal(got[i], want);
    }
    ok(cudaFree(out));
}

static void test_warp(void **state) {
    (void)state;
    uint32_t got[16][32];
    uint32_t *out = device(NULL, sizeof got);
    case_warp(out, stream);
    fetch(got, out, sizeof got);
    uint32_t odd = 0;
    for (uint32_t l = 0; l < 32; l++) odd |= (l * 7 % 32 & 1) << l;
    for (uint32_t l = 0; l < 32; l++) {
        uint32_t same = 0;
        for (uint32_t j = l % 3; j < 32; j += 3) same |= 1u << j;
        const uint32_t rest = l < 16 ? l ^ 1 : l ^ 2;
        const uint32_t want[16] = {3,
                                   (l & ~7u) + 5,
                                   l < 3 ? l : l - 3,
                                   l % 16 > 12 ? l : l + 3,
                                   l ^ 9,
                                   odd,
                                   1,
                                   1,
                                   496,
                                   31,
                                   (uint32_t)-5,
                                   0xffffffffu,
                                   same,
                                   0xffffffffu,
                                   l < 12 ? 11 : rest,
                                   1 + 2 * (l ^ 1)};
        for (int i = 0; i < 16; i++)
            if (got[i][l] != want[i]) fail_msg("row %d, lane %u: %u, not %u", i, l, got[i][l], want[i]);
    }
    ok(cudaFree(out));
}

static void test_votes(void **state) {
    (void)state;
    uint32_t got[3][64];
    uint32_t *out = device(NULL, sizeof got);
    case_votes(out, stream);
    fetch(got, out, sizeof got);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(got[0][i], 22);
        assert_int_equal(got[1][i], 1);
        assert_int_equal(got[2][i], 1);
    }
    ok(cudaFree(out));
}

static void test_atomics(void **state) {
    (void)state;
    uint32_t got[13] = {0, 0, 100, 0, 0, 0, 0, 0, 0, 11, 0, 77, 0};
    uint32_t *out = device(got, sizeof got);
    case_atomics(out, stream);
    fetch(got, out, sizeof got);
    float sum;
    memcpy(&sum, &got[4], sizeof sum);
    assert_float_equal(sum, 96, 0);
    const uint32_t want[13] = {191 * 192 / 2, 191, 3,  0xffffffffu, got[4], 0,       192,
                               192,           11,  22, 77,          5,      192 % 10};
    for (int i = 0; i < 13; i++)
        if (got[i] != want[i]) fail_msg("%d: %u, not %u", i, got[i], want[i]);
    ok(cudaFree(out));
}

static void test_math(void **state) {
    (void)state;
    float got[12];
    float *out = device(NULL, sizeof got);
    case_math(out, stream);
    fetch(got, out, sizeof got);
    const float want[12] = {
        127 + 256 - 3 - 8 + 10,    8 + 1100 + 40000, 1, 2 - 20 - 300, 1, 1.75f, 22, 5, 1, 8.5f, 4321,
        16 + 1600 + 80000 + 400000};
    for (int i = 0; i < 12; i++)
        if (got[i] != want[i]) fail_msg("%d: %g, not %g", i, (double)got[i], (double)want[i]);
    ok(cudaFree(out));
}

/* Values between two representable ones, by the spacing of the binade: the nearest, and at a tie the even
 * one. */
static void test_halves(void **state) {
    (void)state;
    static const struct {
        float x;
        uint32_t f16, bf16;
    } known[] = {{0, 0, 0},
                 {-0.0f, 0x8000, 0x8000},
                 {1, 0x3c00, 0x3f80},
                 {-2, 0xc000, 0xc000},
                 {65504, 0x7bff, 0x4780},
                 {65519.99f, 0x7bff, 0x4780},
                 {65520, 0x7c00, 0x4780},
                 {-1e9f, 0xfc00, 0xce6e},
                 {INFINITY, 0x7c00, 0x7f80},
                 {0x1p-14f, 0x0400, 0x3880},
                 {0x1p-24f, 0x0001, 0x3380},
                 {0x1p-25f, 0, 0x3300},
                 {0x1.8p-24f, 0x0002, 0x33c0},
                 {0x1.ffcp-15f, 0x0400, 0x3880},
                 {0x1.ffp-15f, 0x03fe, 0x3880},
                 {1 + 0x1p-11f, 0x3c00, 0x3f80},
                 {1 + 0x3p-11f, 0x3c02, 0x3f80},
                 {1 + 0x1p-8f, 0x3c04, 0x3f80},
                 {1 + 0x3p-8f, 0x3c0c, 0x3f82},
                 {0x1.fffffep127f, 0x7c00, 0x7f80},
                 {0x1p-149f, 0, 0}};
    enum { N = sizeof known / sizeof *known };
    float in[N], got[4][N];
    for (int i = 0; i < N; i++) in[i] = known[i].x;
    float *din = device(in, sizeof in), *out = device(NULL, sizeof got);
    case_halves(out, din, N, stream);
    fetch(got, out, sizeof got);
    for (int i = 0; i < N; i++) {
        if ((uint32_t)got[2][i] != known[i].f16)
            fail_msg("f16 of %a: %x", (double)in[i], (unsigned)got[2][i]);
        if ((uint32_t)got[3][i] != known[i].bf16)
            fail_msg("bf16 of %a: %x", (double)in[i], (unsigned)got[3][i]);
        const uint32_t bits = known[i].bf16 << 16;
        assert_memory_equal(&bits, &got[1][i], 4);
        const uint32_t e = known[i].f16 >> 10 & 31, m = known[i].f16 & 1023;
        const double value = e == 31 ? INFINITY : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
        assert_true((double)got[0][i] == (known[i].f16 & 0x8000 ? -value : value));
    }
    ok(cudaFree(din));
    ok(cudaFree(out));
}

static void test_mma(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int f16 = 0; f16 < 2; f16++) {
        uint16_t a[16][16], b[16][8];
        int8_t as[16][32], bs[32][8];
        float fa[16][16], fb[16][8], d[16][8], got[16][8];
        int32_t ds[16][8], gots[16][8];
        /* small integers, exact in either type: -4 .. 3 */
        static const uint16_t half[8] = {0xc400, 0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200};
        static const uint16_t bfloat[8] = {0xc080, 0xc040, 0xc000, 0xbf80, 0, 0x3f80, 0x4000, 0x4040};
        for (int i = 0; i < 256; i++) {
            const int v = (int)(4 + 4 * test_random(&seed));
            a[i / 16][i % 16] = f16 ? half[v] : bfloat[v], fa[i / 16][i % 16] = (float)(v - 4);
        }
        for (int i = 0; i < 128; i++) {
            const int v = (int)(4 + 4 * test_random(&seed));
            b[i / 8][i % 8] = f16 ? half[v] : bfloat[v], fb[i / 8][i % 8] = (float)(v - 4);
            d[i / 8][i % 8] = (float)i, ds[i / 8][i % 8] = -i;
        }
        for (int i = 0; i < 512; i++) as[i / 32][i % 32] = (int8_t)(127 * test_random(&seed));
        for (int i = 0; i < 256; i++) bs[i / 8][i % 8] = (int8_t)(127 * test_random(&seed));
        void *dd = device(d, sizeof d), *dds = device(ds, sizeof ds), *da = device(a, sizeof a),
             *db = device(b, sizeof b), *das = device(as, sizeof as), *dbs = device(bs, sizeof bs);
        case_mma(dd, dds, da, db, das, dbs, f16, stream);
        fetch(got, dd, sizeof got);
        fetch(gots, dds, sizeof gots);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float want = d[i][j];
                int32_t wants = ds[i][j];
                for (int k = 0; k < 16; k++) want += fa[i][k] * fb[k][j];
                for (int k = 0; k < 32; k++) wants += as[i][k] * bs[k][j];
                assert_float_equal(got[i][j], want, 0);
                assert_int_equal(gots[i][j], wants);
            }
        void *const all[] = {dd, dds, da, db, das, dbs};
        for (int i = 0; i < 6; i++) ok(cudaFree(all[i]));
    }
}

static void test_ldmatrix(void **state) {
    (void)state;
    uint32_t got[12][32];
    uint32_t *out = device(NULL, sizeof got);
    case_ldmatrix(out, stream);
    fetch(got, out, sizeof got);
    for (uint32_t r = 0; r < 12; r++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            const bool trans = r / 4 == 1 || r >= 10;
            const uint32_t i = r < 8 ? r % 4 : r % 2, g = lane / 4, t = 2 * (lane % 4);
            const uint32_t lo = 64 * i + (trans ? 8 * t + g : 8 * g + t), hi = lo + (trans ? 8 : 1);
            assert_int_equal(got[r][lane], lo | hi << 16);
        }
    ok(cudaFree(out));
}

static void test_async_copy(void **state) {
    (void)state;
    float in[256], got[256];
    for (int i = 0; i < 256; i++) in[i] = (float)(i + 1);
    float *din = device(in, sizeof in), *out = device(NULL, sizeof got);
    case_async(out, din, stream);
    fetch(got, out, sizeof got);
    for (int i = 0; i < 256; i++) {
        const int from = i / 64 * 64 + 63 - i % 64;
        assert_float_equal(got[i], from < 192 || from % 4 < 2 ? in[from] : 0, 0);
    }
    ok(cudaFree(din));
    ok(cudaFree(out));
}

/* A block of 256 threads meets well within 100 us; the machine may be busy, so the best of several counts. */
static void test_barriers_are_quick(void **state) {
    (void)state;
    double best = 1;
    for (int i = 0; i < 5; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        case_barriers(100, 256, stream);
        ok(cudaStreamSynchronize(stream));
        clock_gettime(CLOCK_MONOTONIC, &b);
        best = fmin(best, ((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec)) / 100);
    }
    if (best > 100e-6) fail_msg("%.1f us for a barrier of 256 threads", best * 1e6);
}

int main(int argc, char **argv) {
    if (argc > 1) { /* shows the report of a fault, by its number */
        const fault_case f = {.fault = (case_fault)atoi(argv[1])};
        setup(NULL);
        run_fault(&f);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_no_fault),
        cmocka_unit_test(test_host_follows_device_pointer),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_warp),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test(test_async_copy),
        cmocka_unit_test(test_barriers_are_quick),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
