/* __half: IEEE binary16, rounded to nearest even. Arithmetic is done in f32 and rounded once, which is exact
 * to the bit for one operation; __hfma rounds from double. */
#ifndef DGSIM_CUDA_FP16_H
#define DGSIM_CUDA_FP16_H

#include "cuda_runtime.h"

struct __half_raw {
    unsigned short x;
};
struct __half2_raw {
    unsigned short x, y;
};

struct __half {
    unsigned short bits;
    __half() = default;
    __half(const __half_raw &r) : bits(r.x) {}
    inline __half(float f);
    inline operator float() const;
    operator __half_raw() const { return {bits}; }
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half half;
typedef __half2 half2;

inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline short __half_as_short(__half h) { return static_cast<short>(h.bits); }

inline float __half2float(__half h) {
    const uint32_t exponent = h.bits >> 10 & 31u, mantissa = h.bits & 1023u, sign = (h.bits & 0x8000u) << 16;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
}

/* From double, which holds every float: the quantum of the result's binade divides, rounds and counts. */
inline __half __double2half(double d) {
    const unsigned short sign = std::signbit(d) ? 0x8000u : 0;
    const double a = fabs(d);
    if (d != d) return __ushort_as_half(0x7fffu);
    if (a >= 65520.0) return __ushort_as_half(sign | 0x7c00u);
    int exponent = -14; /* subnormal */
    if (a >= 0x1p-14) frexp(a, &exponent), exponent--;
    const unsigned steps =
        static_cast<unsigned>(nearbyint(ldexp(a, 10 - exponent))); /* 1024..2048, or fewer */
    return __ushort_as_half(
        static_cast<unsigned short>(sign + (static_cast<unsigned>(exponent + 14) << 10) + steps));
}

inline __half __float2half(float f) { return __double2half(f); }
inline __half __float2half_rn(float f) { return __double2half(f); }
inline __half::__half(float f) : bits(__float2half(f).bits) {}
inline __half::operator float() const { return __half2float(*this); }

inline __half __int2half_rn(int i) { return __double2half(i); }
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half2 __half2half2(__half a) { return __half2(a, a); }
inline __half2 __float2half2_rn(float a) { return __half2(__float2half(a), __float2half(a)); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(__float2half(a), __float2half(b)); }
inline __half2 __float22half2_rn(float2 a) { return __floats2half2_rn(a.x, a.y); }
inline float2 __half22float2(__half2 h) { return make_float2(__half2float(h.x), __half2float(h.y)); }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }

#define DGSIM_HALF_OP(name, op)                                                                              \
    inline __half name(__half a, __half b) { return __float2half(__half2float(a) op __half2float(b)); }      \
    inline __half2 name##2(__half2 a, __half2 b) { return __half2(name(a.x, b.x), name(a.y, b.y)); }
DGSIM_HALF_OP(__hadd, +)
DGSIM_HALF_OP(__hsub, -)
DGSIM_HALF_OP(__hmul, *)
inline __half __hdiv(__half a, __half b) { return __float2half(__half2float(a) / __half2float(b)); }
inline __half __hneg(__half a) { return __ushort_as_half(static_cast<unsigned short>(a.bits ^ 0x8000u)); }
inline __half __habs(__half a) { return __ushort_as_half(static_cast<unsigned short>(a.bits & 0x7fffu)); }
inline __half __hmax(__half a, __half b) { return __float2half(fmaxf(__half2float(a), __half2float(b))); }
inline __half __hmin(__half a, __half b) { return __float2half(fminf(__half2float(a), __half2float(b))); }
inline __half __hfma(__half a, __half b, __half c) {
    return __double2half(static_cast<double>(__half2float(a)) * static_cast<double>(__half2float(b)) +
                         static_cast<double>(__half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline bool __hisnan(__half a) { return (a.bits & 0x7fffu) > 0x7c00u; }

#endif
