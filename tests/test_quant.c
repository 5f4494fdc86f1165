/* Types, 16-bit conversions (exhaustively), blocks worked out by hand, the Q8_0 encoder. The types that no
 * block is worked out for here are covered by golden/test_gguf_types.c. */
#include "tests/test.h"

#include <float.h>
#include <math.h>

#include "kernels/quant.h"

static void test_types(void **state) {
    (void)state;
    static const struct {
        dg_dtype dtype;
        const char *name;
        size_t bytes_256; /* bytes of 256 elements */
        bool weight;
    } want[] = {
        {DG_F32, "f32", 1024, true},         {DG_F16, "f16", 512, true},
        {DG_BF16, "bf16", 512, true},        {DG_F64, "f64", 2048, true},
        {DG_I8, "i8", 256, false},           {DG_I16, "i16", 512, false},
        {DG_I32, "i32", 1024, false},        {DG_I64, "i64", 2048, false},
        {DG_U8, "u8", 256, false},           {DG_BOOL, "bool", 256, false},
        {DG_Q4_0, "q4_0", 144, true},        {DG_Q4_1, "q4_1", 160, true},
        {DG_Q5_0, "q5_0", 176, true},        {DG_Q5_1, "q5_1", 192, true},
        {DG_Q8_0, "q8_0", 272, true},        {DG_Q2_K, "q2_k", 84, true},
        {DG_Q3_K, "q3_k", 110, true},        {DG_Q4_K, "q4_k", 144, true},
        {DG_Q5_K, "q5_k", 176, true},        {DG_Q6_K, "q6_k", 210, true},
        {DG_IQ2_XXS, "iq2_xxs", 66, true},   {DG_IQ2_XS, "iq2_xs", 74, true},
        {DG_IQ2_S, "iq2_s", 82, true},       {DG_IQ3_XXS, "iq3_xxs", 98, true},
        {DG_IQ3_S, "iq3_s", 110, true},      {DG_IQ1_S, "iq1_s", 50, true},
        {DG_IQ1_M, "iq1_m", 56, true},       {DG_IQ4_NL, "iq4_nl", 144, true},
        {DG_IQ4_XS, "iq4_xs", 136, true},    {DG_TQ1_0, "tq1_0", 54, true},
        {DG_TQ2_0, "tq2_0", 66, true},       {DG_MXFP4, "mxfp4", 136, true},
        {DG_NVFP4, "nvfp4", 144, true},
    };
    assert_int_equal(sizeof want / sizeof *want, DG_DTYPE_COUNT);
    for (size_t i = 0; i < DG_DTYPE_COUNT; i++) {
        assert_string_equal(dg_dtype_get(want[i].dtype)->name, want[i].name);
        assert_int_equal(dg_dtype_bytes(want[i].dtype, 256), want[i].bytes_256);
        assert_int_equal(dg_dtype_is_weight(want[i].dtype), want[i].weight);
    }
    assert_int_equal(dg_dtype_get(DG_NVFP4)->block_len, 64);
    assert_int_equal(dg_dtype_get(DG_MXFP4)->block_len, 32);
    assert_int_equal(dg_dtype_get(DG_IQ4_XS)->block_len, 256);
}

/* Value of a finite 16-bit float with `bits` mantissa bits, from the definition. */
static double value_of(unsigned h, int bits, int bias) {
    const unsigned exponent = (h & 0x7fff) >> bits, mantissa = h & ((1u << bits) - 1);
    const double m = exponent ? (1u << bits) + mantissa : mantissa;
    const double v = ldexp(m, (int)(exponent ? exponent : 1) - bias - bits);
    return h & 0x8000 ? -v : v;
}

typedef struct format {
    float (*decode)(uint16_t h);
    uint16_t (*encode)(float f);
    int bits, bias;
    unsigned inf;
} format;
static const format f16 = {dg_f16_to_f32, dg_f32_to_f16, 10, 15, 0x7c00};
static const format bf16 = {dg_bf16_to_f32, dg_f32_to_bf16, 7, 127, 0x7f80};

static void check_round_trip(const format *t) {
    for (unsigned h = 0; h < 0x10000; h++) {
        const float f = t->decode((uint16_t)h);
        const unsigned magnitude = h & 0x7fff, back = t->encode(f);
        if (magnitude > t->inf) {
            assert_true(isnan(f) && (signbit(f) != 0) == (h >= 0x8000));
            assert_true((back & 0x7fff) > t->inf && (back & 0x8000) == (h & 0x8000));
            continue;
        }
        if (magnitude == t->inf)
            assert_true(isinf(f));
        else
            assert_true((double)f == value_of(h, t->bits, t->bias));
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(back, h);
    }
}

/* Between neighbours, just below the middle, the middle itself (to the even one) and just above it. The
 * neighbour above the largest is what the next exponent would give, that is, infinity. */
static void check_rounding(const format *t) {
    for (unsigned h = 0; h < t->inf; h++) {
        const double above = h + 1 == t->inf ? ldexp(1, (int)(t->inf >> t->bits) - t->bias)
                                             : value_of(h + 1, t->bits, t->bias);
        const float middle = (float)((value_of(h, t->bits, t->bias) + above) / 2);
        const float below_middle = nextafterf(middle, 0), above_middle = nextafterf(middle, INFINITY);
        assert_int_equal(t->encode(middle), h + (h & 1));
        assert_int_equal(t->encode(-middle), 0x8000 | (h + (h & 1)));
        assert_int_equal(t->encode(below_middle), h);
        assert_int_equal(t->encode(-below_middle), 0x8000 | h);
        assert_int_equal(t->encode(above_middle), h + 1);
        assert_int_equal(t->encode(-above_middle), 0x8000 | (h + 1));
    }
}

static void check_extremes(const format *t) {
    assert_int_equal(t->encode(INFINITY), t->inf);
    assert_int_equal(t->encode(-INFINITY), 0x8000 | t->inf);
    assert_int_equal(t->encode(FLT_MAX), t->inf);
    assert_int_equal(t->encode(-0.0f), 0x8000);
    for (uint32_t payload = 1; payload < 0x800000; payload <<= 1) { /* also where only low bits are set */
        const uint32_t u = 0xff800000u | payload;
        float f;
        memcpy(&f, &u, sizeof f);
        assert_true((t->encode(f) & 0x7fff) > t->inf);
        assert_true(t->encode(f) & 0x8000);
    }
}

static void test_f16(void **state) {
    (void)state;
    check_round_trip(&f16);
    check_rounding(&f16);
    check_extremes(&f16);
    assert_int_equal(dg_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(dg_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(dg_f32_to_f16(FLT_TRUE_MIN), 0);
}

static void test_bf16(void **state) {
    (void)state;
    check_round_trip(&bf16);
    check_rounding(&bf16);
    check_extremes(&bf16);
    assert_int_equal(dg_f32_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: half-way, to even */
    assert_int_equal(dg_f32_to_bf16(1.01171875f), 0x3f82); /* 1 + 3 * 2^-8 */
}

static void check_exact(const float *got, const float *want, size_t n) {
    check_near(got, want, n, 0, "values");
    for (size_t i = 0; i < n; i++) assert_int_equal(signbit(got[i]) != 0, signbit(want[i]) != 0);
}

static void test_plain(void **state) {
    (void)state;
    static const uint8_t f16s[] = {0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x7b};
    static const float f16_want[] = {1, -2, 0x1p-24f, 65504};
    static const uint8_t bf16s[] = {0x80, 0x3f, 0x49, 0xc0, 0x00, 0x80, 0x01, 0x00};
    static const float bf16_want[] = {1, -3.140625f, -0.0f, 0x1p-133f};
    static const double f64s[] = {1.5, -1e300, 1e-300, 0.1};
    static const float f64_want[] = {1.5f, -INFINITY, 0, 0.1f};
    static const float f32s[] = {0.1f, -3, 1e-40f, FLT_MAX};
    float y[4];
    dg_dequant_row(DG_F16, f16s, y, 4);
    check_exact(y, f16_want, 4);
    dg_dequant_row(DG_BF16, bf16s, y, 4);
    check_exact(y, bf16_want, 4);
    dg_dequant_row(DG_F64, f64s, y, 4);
    check_exact(y, f64_want, 4);
    dg_dequant_row(DG_F32, f32s, y, 4);
    check_exact(y, f32s, 4);

    uint8_t b[16];
    dg_quant_row(DG_F16, f16_want, b, 4);
    assert_memory_equal(b, f16s, 8);
    dg_quant_row(DG_BF16, bf16_want, b, 4);
    assert_memory_equal(b, bf16s, 8);
    dg_quant_row(DG_F32, f32s, b, 4);
    assert_memory_equal(b, f32s, 16);
}

/* d = 0.5; low nibbles 0..15, high nibbles 15..0; value (q - 8) / 2. */
static void test_q4_0(void **state) {
    (void)state;
    static const uint8_t b[18] = {0x00, 0x38, 0xf0, 0xe1, 0xd2, 0xc3, 0xb4, 0xa5, 0x96,
                                  0x87, 0x78, 0x69, 0x5a, 0x4b, 0x3c, 0x2d, 0x1e, 0x0f};
    static const float want[32] = {-4,  -3.5f, -3,  -2.5f, -2,  -1.5f, -1,  -0.5f, 0,     0.5f, 1,
                                   1.5f, 2,    2.5f, 3,    3.5f, 3.5f, 3,   2.5f,  2,     1.5f, 1,
                                   0.5f, 0,    -0.5f, -1,  -1.5f, -2,  -2.5f, -3,  -3.5f, -4};
    float y[32];
    dg_dequant_row(DG_Q4_0, b, y, 32);
    check_exact(y, want, 32);
}

/* d = 2, m = -3; value 2q - 3. Two blocks at an odd address: the second has d = 0, m = 1. */
static void test_q4_1(void **state) {
    (void)state;
    static const uint8_t b[41] = {0xff, 0x00, 0x40, 0x00, 0xc2, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba,
                                  0xdc, 0xfe, 0x0f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x00,
                                  0x00, 0x00, 0x3c, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const float want[32] = {-3, 1, 5, 9,  13, 17, 21, 25, 27, -3, -3, -3, -3, -3, -3, -3,
                                   -1, 3, 7, 11, 15, 19, 23, 27, -3, -3, -3, -3, -3, -3, -3, 27};
    float y[64];
    dg_dequant_row(DG_Q4_1, b + 1, y, 64);
    check_exact(y, want, 32);
    for (int i = 32; i < 64; i++) assert_true(y[i] == 1);
}

/* d = -0.25; quants 0, 1, -1, 127, -128, 64 and, at the end, 2. */
static void test_q8_0(void **state) {
    (void)state;
    static const uint8_t b[34] = {0x00, 0xb4, 0x00, 0x01, 0xff, 0x7f, 0x80, 0x40, [33] = 0x02};
    float want[32], y[32];
    for (int i = 0; i < 32; i++) want[i] = -0.0f;
    want[1] = -0.25f, want[2] = 0.25f, want[3] = -31.75f, want[4] = 32, want[5] = -16, want[31] = -0.5f;
    dg_dequant_row(DG_Q8_0, b, y, 32);
    check_exact(y, want, 32);
}

/* d = 0.5, dmin = 0.25, scales 1 2 3 63 17 32 48 63, minima 0 5 63 1 16 33 2 63. Each run of 32 bytes is
 * 0f f0 53 .. 53 21: in the even sub-blocks quants 15 0 3 .. 3 1, in the odd ones 0 15 5 .. 5 2. */
static void test_q4_k(void **state) {
    (void)state;
    uint8_t b[144] = {0x00, 0x38, 0x00, 0x34, 0x41, 0x82, 0xc3, 0xff, 0x40, 0x85, 0x3f, 0xc1,
                      0x01, 0x10, 0x20, 0xff};
    for (int run = 0; run < 4; run++) {
        uint8_t *q = b + 16 + 32 * run;
        memset(q, 0x53, 32);
        q[0] = 0x0f, q[1] = 0xf0, q[31] = 0x21;
    }
    static const float want[8][4] = {/* elements 0, 1, 2..30, 31 of each sub-block */
                                     {7.5f, 0, 1.5f, 0.5f},
                                     {-1.25f, 13.75f, 3.75f, 0.75f},
                                     {6.75f, -15.75f, -11.25f, -14.25f},
                                     {-0.25f, 472.25f, 157.25f, 62.75f},
                                     {123.5f, -4, 21.5f, 4.5f},
                                     {-8.25f, 231.75f, 71.75f, 23.75f},
                                     {359.5f, -0.5f, 71.5f, 23.5f},
                                     {-15.75f, 456.75f, 141.75f, 47.25f}};
    float all[256], y[256];
    for (int i = 0; i < 256; i++) {
        const int k = i % 32;
        all[i] = want[i / 32][k < 2 ? k : k < 31 ? 2 : 3];
    }
    dg_dequant_row(DG_Q4_K, b, y, 256);
    check_exact(y, all, 256);
}

/* d = 0.25; quants are -32 (bits 0) but where a few bytes of ql (0..127) and qh (128..191) say otherwise. */
static void test_q6_k(void **state) {
    (void)state;
    static const uint8_t b[210] = {
        [0] = 0x21,   [32] = 0x43,  [95] = 0xf0,  [127] = 0x0f, [128] = 0xe4, [191] = 0xc3, [192] = 2,
        [193] = 3,    [194] = 0xfc, [195] = 5,    [196] = 6,    [197] = 7,    [198] = 0x80, [199] = 8,
        [200] = 9,    [201] = 10,   [202] = 11,   [203] = 127,  [204] = 12,   [205] = 1,    [206] = 13,
        [207] = 0xff, [208] = 0x00, [209] = 0x34};
    static const float rest[16] = {-16, -24, 32,  -40, -48, -56,   1024, -64,
                                   -72, -80, -88, -1016, -96, -8, -104, 8}; /* -8 * scale */
    float want[256], y[256];
    for (int i = 0; i < 256; i++) want[i] = rest[i / 16];
    want[0] = -15.5f;     /* quant -31 */
    want[32] = 13;        /* -13 */
    want[64] = 3;         /* 2 */
    want[96] = -640;      /* 20 */
    want[159] = 40;       /* 16 */
    want[191] = -539.75f; /* -17 */
    want[223] = -4.25f;   /* -17 */
    want[255] = -4;       /* 16 */
    dg_dequant_row(DG_Q6_K, b, y, 256);
    check_exact(y, want, 256);
}

/* The scale bytes with a rule of their own: e8m0 below 2, and e4m3 zero, subnormal, normal, NaN. */
static void test_fp4_scales(void **state) {
    (void)state;
    uint8_t b[17] = {0, 0x97}; /* low nibble 7 is 6, high nibble 9 is -0.5 */
    static const struct {
        uint8_t e;
        float scale;
    } mx[] = {{0, 0x1p-127f}, {1, 0x1p-126f}, {2, 0x1p-125f}, {127, 1}, {254, 0x1p127f}};
    float y[64];
    for (size_t i = 0; i < sizeof mx / sizeof *mx; i++) {
        b[0] = mx[i].e;
        dg_dequant_row(DG_MXFP4, b, y, 32);
        if (mx[i].e < 254) assert_true(y[0] == 6 * mx[i].scale);
        assert_true(y[16] == mx[i].scale * -0.5f);
        assert_true(y[1] == 0 && y[17] == 0);
    }
    uint8_t nv[36] = {0x00, 0x7f, 0x07, 0x38};
    for (int i = 4; i < 36; i++) nv[i] = 0x97;
    static const float scale[4] = {0, 0, 7 * 0x1p-9f, 1};
    dg_dequant_row(DG_NVFP4, nv, y, 64);
    for (int i = 0; i < 64; i++) assert_true(y[i] == scale[i / 16] * (i % 16 < 8 ? 6 : -0.5f));
    nv[0] = 0x7e; /* the largest, 448 */
    nv[1] = 0x08; /* the smallest normal number, 2^-6 */
    dg_dequant_row(DG_NVFP4, nv, y, 64);
    assert_true(y[0] == 448 * 6);
    assert_true(y[16] == 6 * 0x1p-6f);
}

/* amax 127 gives d = 1; half-way values round away from zero. */
static void test_encode_q8_0(void **state) {
    (void)state;
    const float x[32] = {127, -127, 0.5f, -0.5f, 1.4999f, -2.5f, 0.25f, 100.51f};
    static const uint8_t want[34] = {0x00, 0x3c, 127, 0x81, 1, 0xff, 1, 0xfd, 0, 101};
    uint8_t b[68];
    dg_quant_row(DG_Q8_0, x, b, 32);
    assert_memory_equal(b, want, 34);

    /* d = 1/127, rounded to f16 0x2008; the quants come from the unrounded one. */
    const float one[32] = {1, -1, 0.5f};
    static const uint8_t want_one[34] = {0x08, 0x20, 127, 0x81, 64};
    dg_quant_row(DG_Q8_0, one, b, 32);
    assert_memory_equal(b, want_one, 34);

    const float zero[32] = {0}, tiny[32] = {1e-39f, -1e-39f};
    static const uint8_t none[34] = {0};
    dg_quant_row(DG_Q8_0, zero, b, 32);
    assert_memory_equal(b, none, 34);
    dg_quant_row(DG_Q8_0, tiny, b, 32); /* the reciprocal of d overflows */
    assert_memory_equal(b, none, 34);
    const float broken[32] = {NAN, INFINITY, 1};
    dg_quant_row(DG_Q8_0, broken, b, 32);
    assert_int_equal(b[0] | b[1] << 8, 0x7c00);
}

/* |error| <= d/2 from rounding the quants, and 127 half units of d in f16, over six decades. */
static void test_q8_0_error(void **state) {
    (void)state;
    enum { N = 32 * 600 };
    static float x[N], y[N];
    static uint8_t b[N / 32 * 34];
    uint64_t seed = 1;
    double worst = 0;
    for (int i = 0; i < N; i++) x[i] = test_random(&seed) * powf(10, (float)(i / 32 % 7) - 3);
    dg_quant_row(DG_Q8_0, x, b, N);
    dg_dequant_row(DG_Q8_0, b, y, N);
    for (int block = 0; block < N / 32; block++) {
        double amax = 0;
        for (int i = 32 * block; i < 32 * block + 32; i++) amax = fmax(amax, fabs((double)x[i]));
        const double d = amax / 127, half_unit = fmax(d * 0x1p-11, 0x1p-25);
        for (int i = 32 * block; i < 32 * block + 32; i++) {
            const double error = fabs((double)x[i] - (double)y[i]);
            worst = fmax(worst, error / d);
            if (error > d * 0.5001 + 127 * half_unit)
                fail_msg("element %d: %g became %g, d %g", i, (double)x[i], (double)y[i], d);
        }
    }
    assert_true(worst > 0.4); /* the bound means something */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),      cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),       cmocka_unit_test(test_plain),
        cmocka_unit_test(test_q4_0),       cmocka_unit_test(test_q4_1),
        cmocka_unit_test(test_q8_0),       cmocka_unit_test(test_q4_k),
        cmocka_unit_test(test_q6_k),       cmocka_unit_test(test_fp4_scales),
        cmocka_unit_test(test_encode_q8_0), cmocka_unit_test(test_q8_0_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
