/* __nv_bfloat16: the upper half of a float, rounded to nearest even; arithmetic as in cuda_fp16.h. */
#ifndef DGSIM_CUDA_BF16_H
#define DGSIM_CUDA_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &r) : bits(r.x) {}
    inline __nv_bfloat16(float f);
    inline operator float() const;
    operator __nv_bfloat16_raw() const { return {bits}; }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return __nv_bfloat16(__nv_bfloat16_raw{bits});
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline float __bfloat162float(__nv_bfloat16 h) {
    return __uint_as_float(static_cast<uint32_t>(h.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16(float f) {
    const uint32_t u = __float_as_uint(f);
    if (f != f) return __ushort_as_bfloat16(0x7fffu);
    return __ushort_as_bfloat16(static_cast<unsigned short>((u + 0x7fffu + (u >> 16 & 1u)) >> 16));
}

inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __float2bfloat16(f); }
inline __nv_bfloat16::__nv_bfloat16(float f) : bits(__float2bfloat16(f).bits) {}
inline __nv_bfloat16::operator float() const { return __bfloat162float(*this); }

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
inline __nv_bfloat162 __float2bfloat162_rn(float a) {
    return __nv_bfloat162(__float2bfloat16(a), __float2bfloat16(a));
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return __nv_bfloat162(__float2bfloat16(a), __float2bfloat16(b));
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return __floats2bfloat162_rn(a.x, a.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) {
    return make_float2(__bfloat162float(h.x), __bfloat162float(h.y));
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }
inline float __low2float(__nv_bfloat162 h) { return __bfloat162float(h.x); }
inline float __high2float(__nv_bfloat162 h) { return __bfloat162float(h.y); }

#define DGSIM_BF16_OP(name, op)                                                                              \
    inline __nv_bfloat16 name(__nv_bfloat16 a, __nv_bfloat16 b) {                                            \
        return __float2bfloat16(__bfloat162float(a) op __bfloat162float(b));                                 \
    }                                                                                                        \
    inline __nv_bfloat162 name##2(__nv_bfloat162 a, __nv_bfloat162 b) {                                      \
        return __nv_bfloat162(name(a.x, b.x), name(a.y, b.y));                                               \
    }
DGSIM_BF16_OP(__hadd, +)
DGSIM_BF16_OP(__hsub, -)
DGSIM_BF16_OP(__hmul, *)
inline __nv_bfloat16 __hneg(__nv_bfloat16 a) {
    return __ushort_as_bfloat16(static_cast<unsigned short>(a.bits ^ 0x8000u));
}
inline __nv_bfloat16 __habs(__nv_bfloat16 a) {
    return __ushort_as_bfloat16(static_cast<unsigned short>(a.bits & 0x7fffu));
}
inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __float2bfloat16(fmaxf(__bfloat162float(a), __bfloat162float(b)));
}
inline __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __float2bfloat16(fminf(__bfloat162float(a), __bfloat162float(b)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return __float2bfloat16(fmaf(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

#endif
