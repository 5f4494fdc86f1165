/* See cases.h. The faults are what kernels get wrong: an index, a barrier, a mask, an alignment. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.h"
#include "cases.h"

/* --- faults --- */

/* out[block][i] = in[block][n - 1 - i]; thread 5 of block 1 errs, or what else the name of the fault says. */
template <int FAULT> static __global__ void reverse(float *out, const float *in, const float *other) {
    __shared__ float tile[CASE_THREADS];
    DG_DYN_SHARED(float, dynamic);
    const int n = CASE_THREADS, i = static_cast<int>(threadIdx.x), base = static_cast<int>(blockIdx.x) * n;
    const bool errs = blockIdx.x == 1 && i == 5;
    out += base, in += base;
    if (FAULT == FAULT_HOST_POINTER || FAULT == FAULT_FREED) in = errs ? other : in;
    int at = i;
    if (FAULT == FAULT_STATIC_INDEX) at = errs ? n : i;
    if (FAULT == FAULT_STATIC_POINTER) {
        float *volatile hidden = tile; /* the compiler shall not see an array */
        float *p = hidden;
        p[errs ? n : i] = in[i];
    } else if (FAULT != FAULT_UNINITIALISED || !errs) {
        tile[at] = in[i];
    }
    dynamic[FAULT == FAULT_DYNAMIC_INDEX && errs ? n : i] = 0;
    if (FAULT == FAULT_EXIT_AT_BARRIER && errs) return;
    if (FAULT == FAULT_BARRIER_IN_BRANCH && errs)
        __syncthreads();
    else if (FAULT != FAULT_MISSING_BARRIER)
        __syncthreads();
    float v = tile[n - 1 - i];
    if (FAULT == FAULT_MISSING_SYNCWARP) {
        dynamic[i] = v;
        v = dynamic[i ^ 1];
    }
    if (FAULT == FAULT_READ_THEN_WRITTEN) tile[i] = v;
    const unsigned all = 0xffffffffu;
    if (FAULT == FAULT_LANE_NOT_IN_MASK) v = __shfl_sync(errs ? ~(1u << 5) : all, v, i % 32);
    if (FAULT == FAULT_LANE_NEVER_COMES) {
        if (!errs) v = __shfl_sync(all, v, i % 32);
        __syncthreads();
    }
    if (FAULT == FAULT_LANE_HAS_LEFT) {
        if (errs) return;
        v = __shfl_xor_sync(all, v, 0);
    }
    if (FAULT == FAULT_SOURCE_NOT_IN_MASK && i % 32 < 16) v = __shfl_sync(0xffffu, v, errs ? 16 : i % 32);
    if (FAULT == FAULT_FLOAT4 && errs) v = reinterpret_cast<const float4 *>(in + 1)->w;
    if (FAULT == FAULT_EARLY_COPY) {
        if (i % 4 == 0) dg_cp_async16(&dynamic[i], &in[i]);
        dg_cp_async_commit();
        __syncthreads();
        v = dynamic[i];
    }
    if (FAULT == FAULT_ASYNC_ALIGNMENT && errs) dg_cp_async16(&dynamic[0], &in[1]);
    int o = i;
    if (FAULT == FAULT_GLOBAL_INDEX && errs) o = n;
    if (FAULT == FAULT_GLOBAL_BEFORE && errs) o = -n - 1;
    if (FAULT == FAULT_BLOCKS_MEET && errs) o = i - n;
    if (FAULT == FAULT_BLOCK_READS && errs) v = out[i - n];
    out[o] = v;
}

static __device__ float deep(int n, volatile float *x) {
    volatile float local[256];
    local[n % 256] = *x;
    return n > 0 ? deep(n - 1, &local[n % 256]) + local[(n + 1) % 256] : *x;
}

static __global__ void stack(float *out, int depth) {
    volatile float x = 0;
    out[threadIdx.x] = deep(depth, &x);
}

template <int FAULT>
static void launch(case_fault fault, float *out, const float *in, const float *other, cudaStream_t s) {
    if (static_cast<int>(fault) == FAULT)
        DG_LAUNCH(reverse<FAULT>, 2, CASE_THREADS, CASE_THREADS * sizeof(float), s, out, in, other);
}

template <int... FAULT>
static void launch_any(case_fault fault, float *out, const float *in, const float *other, cudaStream_t s) {
    const int each[] = {(launch<FAULT>(fault, out, in, other, s), 0)...};
    (void)each;
}

void case_fault_launch(case_fault fault, float *out, const float *in, const float *freed, const float *host,
                       cudaStream_t s) {
    if (fault == FAULT_STACK) {
        DG_LAUNCH(stack, 2, 32, 0, s, out, 1 << 20);
        return;
    }
    launch_any<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 23>(
        fault, out, in, fault == FAULT_FREED ? freed : host, s);
}

/* --- what things compute --- */

static __global__ void index_of(uint32_t *out) {
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const uint32_t n = blockDim.x * blockDim.y * blockDim.z;
    out[block * n + thread] = blockIdx.x << 20 | blockIdx.y << 16 | blockIdx.z << 12 | threadIdx.x << 8 |
                              threadIdx.y << 4 | threadIdx.z;
}

void case_index(uint32_t *out, int gx, int gy, int gz, int bx, int by, int bz, cudaStream_t s) {
    DG_LAUNCH(index_of, dim3(gx, gy, gz), dim3(bx, by, bz), 0, s, out);
}

static __global__ void warp(uint32_t *out) {
    const unsigned all = 0xffffffffu, lane = threadIdx.x, x = lane * 7 % 32;
    uint32_t *o = out + lane;
    o[0] = __shfl_sync(all, lane, 3);
    o[32] = __shfl_sync(all, lane, 5, 8);
    o[64] = __shfl_up_sync(all, lane, 3);
    o[96] = __shfl_down_sync(all, lane, 3, 16);
    o[128] = __shfl_xor_sync(all, lane, 9);
    o[160] = __ballot_sync(all, x & 1);
    o[192] = static_cast<uint32_t>(__all_sync(all, x < 32)) | static_cast<uint32_t>(__all_sync(all, x < 31))
                                                                  << 1;
    o[224] = static_cast<uint32_t>(__any_sync(all, x == 4)) | static_cast<uint32_t>(__any_sync(all, x > 31))
                                                                  << 1;
    o[256] = __reduce_add_sync(all, x);
    o[288] = __reduce_max_sync(all, x);
    o[320] = static_cast<uint32_t>(__reduce_min_sync(all, static_cast<int>(x) - 5));
    o[352] = __reduce_xor_sync(all, 1u << lane);
    o[384] = __match_any_sync(all, lane % 3);
    o[416] = __activemask();
    if (lane < 12)
        o[448] = __shfl_sync(0xfffu, lane, 11); /* a part of the warp, and the rest of it, */
    else
        o[448] = __shfl_xor_sync(0xfffff000u, lane, lane < 16 ? 1 : 2); /* in calls of their own */
    const double d = __shfl_xor_sync(all, 0.5 + lane, 1);               /* 8 bytes */
    o[480] = static_cast<uint32_t>(2 * d);
}

void case_warp(uint32_t *out, cudaStream_t s) {
    DG_LAUNCH(warp, 1, 32, 0, s, out);
}

static __global__ void votes(uint32_t *out) {
    const int x = static_cast<int>(threadIdx.x);
    out[x] = static_cast<uint32_t>(__syncthreads_count(x % 3 == 0));
    out[64 + x] = static_cast<uint32_t>(__syncthreads_and(x < 64)) |
                  static_cast<uint32_t>(__syncthreads_and(x < 63)) << 1;
    out[128 + x] = static_cast<uint32_t>(__syncthreads_or(x == 63)) |
                   static_cast<uint32_t>(__syncthreads_or(x == 64)) << 1;
}

void case_votes(uint32_t *out, cudaStream_t s) {
    DG_LAUNCH(votes, 1, 64, 0, s, out);
}

static __global__ void atomics(uint32_t *out) {
    const uint32_t x = threadIdx.x + blockIdx.x * blockDim.x;
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, static_cast<int>(x));
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&out[0], static_cast<uint32_t>(sum));
    atomicMax(&out[1], x);
    atomicMin(&out[2], x + 3);
    atomicOr(&out[3], 1u << x % 32);
    atomicAdd(reinterpret_cast<float *>(&out[4]), 0.5f);
    atomicAdd(reinterpret_cast<unsigned long long *>(&out[6]), 0x100000001ull);
    if (x == 7) out[8] = atomicCAS(&out[9], 11u, 22u);
    if (x == 9) out[10] = atomicExch(&out[11], 5u);
    atomicInc(&out[12], 9u);
}

void case_atomics(uint32_t *out, cudaStream_t s) {
    DG_LAUNCH(atomics, 3, 64, 0, s, out);
}

static __global__ void math(float *o) {
    o[0] =
        static_cast<float>(__dp4a(0x01fe03fc, 0x7f80ff02, 10)); /* (1, -2, 3, -4) . (127, -128, -1, 2) + 10 */
    o[1] = static_cast<float>(__popc(0xf0f0u) + 100 * __clz(1 << 20) + 10000 * __ffs(8));
    o[2] = static_cast<float>(__byte_perm(0x33221100u, 0x77665544u, 0x5140u) == 0x55114400u);
    o[3] =
        static_cast<float>(__float2int_rn(2.5f) + 10 * __float2int_rz(-2.5f) + 100 * __float2int_rd(-2.5f));
    o[4] = static_cast<float>(__float2int_rn(1e20f) == 0x7fffffff &&
                              __float2int_rz(__int_as_float(0x7fc00000)) == 0);
    o[5] = rsqrtf(4.0f) + __expf(0.0f) + __fdividef(1.0f, 4.0f);
    o[6] = fmaf(3.0f, 5.0f, 7.0f);
    o[7] = static_cast<float>(__umulhi(0x80000000u, 6u)) + static_cast<float>(__brev(0x40000000u));
    o[8] = static_cast<float>(__funnelshift_r(0x10u, 0x3u, 4) == 0x30000001u);
    o[9] = static_cast<float>(min(3, -2) + max(7u, 9u)) + max(1.5f, 0.5f);
    const float4 v = make_float4(1, 2, 3, 4);
    o[10] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w;
    o[11] = static_cast<float>(sizeof(float4) + alignof(float4) * 100 + alignof(int2) * 10000 +
                               alignof(float3) * 100000);
}

void case_math(float *out, cudaStream_t s) {
    DG_LAUNCH(math, 1, 1, 0, s, out);
}

static __global__ void halves(float *out, const float *in, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    const __half h = __float2half_rn(in[i]);
    const __nv_bfloat16 b = __float2bfloat16(in[i]);
    out[i] = __half2float(h);
    out[n + i] = __bfloat162float(b);
    out[2 * n + i] = static_cast<float>(__half_as_ushort(h));
    out[3 * n + i] = static_cast<float>(__bfloat16_as_ushort(b));
}

void case_halves(float *out, const float *in, int n, cudaStream_t s) {
    DG_LAUNCH(halves, (n + 63) / 64, 64, 0, s, out, in, n);
}

/* --- matrices --- */

/* d[16,8] += a[16,16] . b[16,8], ds[16,8] += as[16,32] . bs[32,8], all row by row */
static __global__ void mma(float *d, int32_t *ds, const uint16_t *a, const uint16_t *b, const int8_t *as,
                           const int8_t *bs, int f16) {
    const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
    uint32_t ra[4], rb[2], qa[4] = {}, qb[2] = {};
    for (int r = 0; r < 4; r++) {
        const int row = g + 8 * (r & 1), column = 2 * t + 8 * (r >> 1);
        ra[r] = a[16 * row + column] | static_cast<uint32_t>(a[16 * row + column + 1]) << 16;
        for (int e = 0; e < 4; e++)
            qa[r] |= static_cast<uint32_t>(static_cast<uint8_t>(as[32 * row + 4 * t + 16 * (r >> 1) + e]))
                     << 8 * e;
    }
    for (int r = 0; r < 2; r++) {
        const int row = 2 * t + 8 * r;
        rb[r] = b[8 * row + g] | static_cast<uint32_t>(b[8 * row + 8 + g]) << 16;
        for (int e = 0; e < 4; e++)
            qb[r] |= static_cast<uint32_t>(static_cast<uint8_t>(bs[8 * (4 * t + 16 * r + e) + g])) << 8 * e;
    }
    float acc[4];
    int32_t iacc[4];
    for (int i = 0; i < 4; i++) {
        const int at = 8 * (g + 8 * (i >> 1)) + 2 * t + (i & 1);
        acc[i] = d[at];
        iacc[i] = ds[at];
    }
    if (f16)
        dg_mma_m16n8k16_f16(acc, ra, rb);
    else
        dg_mma_m16n8k16_bf16(acc, ra, rb);
    dg_mma_m16n8k32_s8(iacc, qa, qb);
    for (int i = 0; i < 4; i++) {
        const int at = 8 * (g + 8 * (i >> 1)) + 2 * t + (i & 1);
        d[at] = acc[i];
        ds[at] = iacc[i];
    }
}

void case_mma(float *d, int32_t *ds, const uint16_t *a, const uint16_t *b, const int8_t *as, const int8_t *bs,
              int f16, cudaStream_t s) {
    DG_LAUNCH(mma, 1, 32, 0, s, d, ds, a, b, as, bs, f16);
}

/* Four 8x8 matrices whose element (i, r, c) is 64 i + 8 r + c */
static __global__ void ldmatrix(uint32_t *out) {
    DG_DYN_SHARED(uint16_t, e);
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = lane; i < 256; i += 32) e[i] = static_cast<uint16_t>(i);
    __syncwarp();
    uint32_t r[12];
    dg_ldmatrix_x4(r, e + 8 * lane);
    dg_ldmatrix_x4_trans(r + 4, e + 8 * lane);
    dg_ldmatrix_x2(r + 8, e + 8 * (lane % 16));
    dg_ldmatrix_x2_trans(r + 10, e + 8 * (lane % 16));
    for (int i = 0; i < 12; i++) out[32 * i + lane] = r[i];
}

void case_ldmatrix(uint32_t *out, cudaStream_t s) {
    DG_LAUNCH(ldmatrix, 1, 32, 512, s, out);
}

/* out[256] = in[256] through two buffers that are filled one ahead; of the last quarter 2 of 4 elements */
static __global__ void async(float *out, const float *in) {
    __shared__ __align__(16) float buffer[2][64];
    const int lane = static_cast<int>(threadIdx.x), n = 4;
    auto fetch = [&](int part) {
        if (lane < 16) {
            if (part == n - 1)
                dg_cp_async16_zfill(&buffer[part % 2][4 * lane], &in[64 * part + 4 * lane], 8);
            else
                dg_cp_async16(&buffer[part % 2][4 * lane], &in[64 * part + 4 * lane]);
        }
        dg_cp_async_commit();
    };
    fetch(0);
    for (int part = 0; part < n; part++) {
        if (part + 1 < n) {
            fetch(part + 1);
            dg_cp_async_wait<1>();
        } else {
            dg_cp_async_wait<0>();
        }
        __syncthreads();
        out[64 * part + lane] = buffer[part % 2][63 - lane];
        __syncthreads();
    }
}

void case_async(float *out, const float *in, cudaStream_t s) {
    DG_LAUNCH(async, 1, 64, 0, s, out, in);
}

/* --- launches --- */

static __global__ void barriers(int n) {
    for (int i = 0; i < n; i++) __syncthreads();
}

void case_barriers(int n, int threads, cudaStream_t s) {
    DG_LAUNCH(barriers, 1, threads, 0, s, n);
}

static __global__ void add(float *x, float y, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] += y;
}

void case_add(float *x, float y, int n, cudaStream_t s) {
    DG_LAUNCH(add, (n + 63) / 64, 64, 0, s, x, y, n);
}

cudaError_t case_launch(int threads, int shared, int raise_to) {
    if (raise_to) {
        const cudaError_t e =
            cudaFuncSetAttribute(barriers, cudaFuncAttributeMaxDynamicSharedMemorySize, raise_to);
        if (e != cudaSuccess) return e;
    }
    DG_LAUNCH(barriers, 1, threads, shared, static_cast<cudaStream_t>(0), 1);
    return cudaGetLastError();
}
