/* CUDA C++ for the host's compiler: qualifiers, vector types, built-in variables and device functions, as far
 * as dgraft's kernels use them. What needs other threads of a block goes through dgsim_* (exec.cpp,
 * warp.cpp); file and line of the caller go along for reports. */
#ifndef DGSIM_CUDA_RUNTIME_H
#define DGSIM_CUDA_RUNTIME_H

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include "dgsim.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__      static thread_local /* so that its symbols tell shared variables from others */
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define DGSIM_AT       const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define DGSIM_UNLOGGED __attribute__((noinline, no_sanitize("thread")))

/* --- vector types --- */

#define DGSIM_VECTORS(name, T)                                                                               \
    struct name##1 {                                                                                         \
        T x;                                                                                                 \
    };                                                                                                       \
    struct alignas(2 * sizeof(T)) name##2 {                                                                  \
        T x, y;                                                                                              \
    };                                                                                                       \
    struct name##3 {                                                                                         \
        T x, y, z;                                                                                           \
    };                                                                                                       \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 {                                        \
        T x, y, z, w;                                                                                        \
    };                                                                                                       \
    inline name##1 make_##name##1(T x) { return {x}; }                                                       \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                               \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                       \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

DGSIM_VECTORS(char, signed char)
DGSIM_VECTORS(uchar, unsigned char)
DGSIM_VECTORS(short, short)
DGSIM_VECTORS(ushort, unsigned short)
DGSIM_VECTORS(int, int)
DGSIM_VECTORS(uint, unsigned)
DGSIM_VECTORS(longlong, long long)
DGSIM_VECTORS(ulonglong, unsigned long long)
DGSIM_VECTORS(float, float)
DGSIM_VECTORS(double, double)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};

/* --- launch --- */

template <class... P> struct dgsim_args {
    void (*kernel)(P...);
    std::tuple<P...> values;
    static void call(void *p) {
        dgsim_args *a = static_cast<dgsim_args *>(p);
        std::apply(a->kernel, a->values);
    }
    static void destroy(void *p) { delete static_cast<dgsim_args *>(p); }
};

template <class... P, class... A>
void dgsim_launch(const char *name, const char *file, int line, void (*kernel)(P...), dim3 grid, dim3 block,
                  size_t shared, cudaStream_t s, A &&...args) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel takes as many arguments as it declares");
    using all = dgsim_args<P...>;
    dgsim_enqueue({name,
                   file,
                   line,
                   reinterpret_cast<const void *>(kernel),
                   {grid.x, grid.y, grid.z},
                   {block.x, block.y, block.z},
                   shared,
                   new all{kernel, std::tuple<P...>(args...)},
                   sizeof(all),
                   all::call,
                   all::destroy},
                  s);
}

template <class T> cudaError_t cudaMalloc(T **p, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void **>(p), bytes);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void **>(p), bytes);
}
template <class... P> cudaError_t cudaFuncSetAttribute(void (*f)(P...), cudaFuncAttribute attr, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(f), attr, value);
}
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, void (*f)(P...)) {
    return cudaFuncGetAttributes(out, reinterpret_cast<const void *>(f));
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*f)(P...), int threads,
                                                          size_t dynamic) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(f), threads,
                                                         dynamic);
}

/* --- built-in variables: constant as far as a thread can tell --- */

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* --- a block's threads --- */

inline void __syncthreads(DGSIM_AT) { dgsim_barrier(DGSIM_SYNC, 0, file, line); }
inline int __syncthreads_count(int p, DGSIM_AT) { return dgsim_barrier(DGSIM_COUNT, p, file, line); }
inline int __syncthreads_and(int p, DGSIM_AT) { return dgsim_barrier(DGSIM_AND, p, file, line); }
inline int __syncthreads_or(int p, DGSIM_AT) { return dgsim_barrier(DGSIM_OR, p, file, line); }

/* --- a warp's lanes --- */

inline unsigned __activemask(void) { return dgsim_lanes(); }

template <class T>
inline T dgsim_exchange(dgsim_warp_op op, unsigned mask, T v, int arg, int width, const char *file,
                        int line) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a shuffle moves at most 8 bytes");
    dgsim_word w = {0, 0, arg, width};
    memcpy(&w.in, &v, sizeof v);
    dgsim_warp(op, mask, &w, file, line);
    memcpy(&v, &w.out, sizeof v);
    return v;
}

template <class T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, DGSIM_AT) {
    return dgsim_exchange(DGSIM_SHFL, mask, v, lane, width, file, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, DGSIM_AT) {
    return dgsim_exchange(DGSIM_SHFL_UP, mask, v, static_cast<int>(delta), width, file, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, DGSIM_AT) {
    return dgsim_exchange(DGSIM_SHFL_DOWN, mask, v, static_cast<int>(delta), width, file, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, DGSIM_AT) {
    return dgsim_exchange(DGSIM_SHFL_XOR, mask, v, lanes, width, file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, DGSIM_AT) {
    dgsim_exchange(DGSIM_SYNCWARP, mask, 0, 0, 32, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int p, DGSIM_AT) {
    return dgsim_exchange<unsigned>(DGSIM_BALLOT, mask, p != 0, 0, 32, file, line);
}
inline int __all_sync(unsigned mask, int p, DGSIM_AT) {
    return dgsim_exchange(DGSIM_ALL, mask, int(p != 0), 0, 32, file, line);
}
inline int __any_sync(unsigned mask, int p, DGSIM_AT) {
    return dgsim_exchange(DGSIM_ANY, mask, int(p != 0), 0, 32, file, line);
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T v, DGSIM_AT) {
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return static_cast<unsigned>(dgsim_exchange(DGSIM_MATCH, mask, bits, 0, 32, file, line));
}

#define DGSIM_REDUCE(name, T, op)                                                                            \
    inline T name(unsigned mask, T v, DGSIM_AT) { return dgsim_exchange(op, mask, v, 0, 32, file, line); }
DGSIM_REDUCE(__reduce_add_sync, int, DGSIM_REDUCE_ADD)
DGSIM_REDUCE(__reduce_add_sync, unsigned, DGSIM_REDUCE_ADD)
DGSIM_REDUCE(__reduce_min_sync, int, DGSIM_REDUCE_MIN)
DGSIM_REDUCE(__reduce_min_sync, unsigned, DGSIM_REDUCE_UMIN)
DGSIM_REDUCE(__reduce_max_sync, int, DGSIM_REDUCE_MAX)
DGSIM_REDUCE(__reduce_max_sync, unsigned, DGSIM_REDUCE_UMAX)
DGSIM_REDUCE(__reduce_and_sync, unsigned, DGSIM_REDUCE_AND)
DGSIM_REDUCE(__reduce_or_sync, unsigned, DGSIM_REDUCE_OR)
DGSIM_REDUCE(__reduce_xor_sync, unsigned, DGSIM_REDUCE_XOR)

/* --- memory --- */

template <class T, class F> DGSIM_UNLOGGED inline T dgsim_atomic(T *p, F f, const char *file, int line) {
    dgsim_check(p, sizeof *p, sizeof *p, DGSIM_ATOMIC, file, line);
    const T old = *p;
    *p = f(old);
    return old;
}

template <class T>
using dgsim_same = std::common_type_t<T>; /* a parameter that does not take part in deduction */

#define DGSIM_ATOMIC_FN(name, expr)                                                                          \
    template <class T> inline T name(T *p, dgsim_same<T> v, DGSIM_AT) {                                      \
        return dgsim_atomic(                                                                                 \
            p, [v](T old) -> T { return expr; }, file, line);                                                \
    }
DGSIM_ATOMIC_FN(atomicAdd, old + v)
DGSIM_ATOMIC_FN(atomicSub, old - v)
DGSIM_ATOMIC_FN(atomicMin, old < v ? old : v)
DGSIM_ATOMIC_FN(atomicMax, old > v ? old : v)
DGSIM_ATOMIC_FN(atomicAnd, old &v)
DGSIM_ATOMIC_FN(atomicOr, old | v)
DGSIM_ATOMIC_FN(atomicXor, old ^ v)
DGSIM_ATOMIC_FN(atomicExch, (void(old), v))
DGSIM_ATOMIC_FN(atomicInc, old >= v ? 0 : old + 1)
DGSIM_ATOMIC_FN(atomicDec, old == 0 || old > v ? v : old - 1)
template <class T> inline T atomicCAS(T *p, dgsim_same<T> expected, dgsim_same<T> v, DGSIM_AT) {
    return dgsim_atomic(
        p, [=](T old) -> T { return old == expected ? v : old; }, file, line);
}

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldca(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldlu(const T *p) { return *p; }
template <class T> inline T __ldcv(const T *p) { return *p; }
template <class T> inline void __stcg(T *p, dgsim_same<T> v) { *p = v; }
template <class T> inline void __stcs(T *p, dgsim_same<T> v) { *p = v; }
template <class T> inline void __stwt(T *p, dgsim_same<T> v) { *p = v; }
inline void __threadfence(void) {}
inline void __threadfence_block(void) {}
inline void __threadfence_system(void) {}

/* --- arithmetic --- */

template <class To, class From> inline To dgsim_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To out;
    memcpy(&out, &v, sizeof out);
    return out;
}

#define DGSIM_MINMAX(T)                                                                                      \
    inline T min(T a, T b) { return b < a ? b : a; }                                                         \
    inline T max(T a, T b) { return a < b ? b : a; }
DGSIM_MINMAX(int)
DGSIM_MINMAX(unsigned)
DGSIM_MINMAX(long)
DGSIM_MINMAX(unsigned long)
DGSIM_MINMAX(long long)
DGSIM_MINMAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }

inline int __float_as_int(float x) { return dgsim_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return dgsim_bits<unsigned>(x); }
inline float __int_as_float(int x) { return dgsim_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return dgsim_bits<float>(x); }
inline long long __double_as_longlong(double x) { return dgsim_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return dgsim_bits<double>(x); }

/* Conversions to integers saturate and take NaN to 0, as on the device. */
template <class T> inline T dgsim_to_int(double x) {
    constexpr double lo = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double hi = static_cast<double>(std::numeric_limits<T>::max());
    return x != x    ? T(0)
           : x <= lo ? std::numeric_limits<T>::min()
           : x >= hi ? std::numeric_limits<T>::max()
                     : static_cast<T>(x);
}
inline int __float2int_rn(float x) { return dgsim_to_int<int>(nearbyint(x)); }
inline int __float2int_rz(float x) { return dgsim_to_int<int>(trunc(x)); }
inline int __float2int_rd(float x) { return dgsim_to_int<int>(floor(x)); }
inline int __float2int_ru(float x) { return dgsim_to_int<int>(ceil(x)); }
inline unsigned __float2uint_rn(float x) { return dgsim_to_int<unsigned>(nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return dgsim_to_int<unsigned>(trunc(x)); }
inline long long __float2ll_rn(float x) { return dgsim_to_int<long long>(nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __byte_perm(unsigned lo, unsigned hi, unsigned select) {
    const uint64_t all = static_cast<uint64_t>(hi) << 32 | lo;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = select >> 4 * i & 15u, byte = static_cast<unsigned>(all >> 8 * (s & 7u)) & 255u;
        r |= (s & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) << (n & 31u) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (n & 31u));
}
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<int64_t>(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

/* c + the dot product of four bytes, each signed or not */
template <class A, class B, class C> inline C dgsim_dp4a(unsigned a, unsigned b, C c) {
    unsigned sum = static_cast<unsigned>(c); /* wraps as the device does */
    for (int i = 0; i < 4; i++)
        sum += static_cast<unsigned>(static_cast<A>(a >> 8 * i) * static_cast<B>(b >> 8 * i));
    return static_cast<C>(sum);
}
inline int __dp4a(int a, int b, int c) {
    return dgsim_dp4a<int8_t, int8_t>(static_cast<unsigned>(a), static_cast<unsigned>(b), c);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return dgsim_dp4a<uint8_t, uint8_t>(a, b, c); }

#endif
