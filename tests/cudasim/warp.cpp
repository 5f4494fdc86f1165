/* What the lanes of a warp do together, once the last of them has come. */
#include <cstring>
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "internal.h"

const char *dgsim_warp_name(int op) {
    static const char *const name[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
                                       "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",
                                       "__all_sync",        "__any_sync",        "__match_any_sync",
                                       "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                       "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
                                       "__reduce_or_sync",  "__reduce_xor_sync", "mma.m16n8k16.bf16",
                                       "mma.m16n8k16.f16",  "mma.m16n8k32.s8",   "ldmatrix"};
    return name[op];
}

static dgsim_word &word(const dgsim_thread &t) {
    return *static_cast<dgsim_word *>(t.io);
}

static void shuffle(int op, unsigned mask, dgsim_thread *lanes) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        dgsim_word &w = word(lanes[i]);
        if (w.width < 1 || w.width > 32 || (w.width & (w.width - 1)))
            dgsim_fault(nullptr, lanes[i].place, "%s of width %d", dgsim_warp_name(op), w.width);
        const int first = i & ~(w.width - 1), last = first + w.width - 1;
        int from = op == DGSIM_SHFL        ? first + (w.arg & (w.width - 1))
                   : op == DGSIM_SHFL_UP   ? i - w.arg
                   : op == DGSIM_SHFL_DOWN ? i + w.arg
                                           : i ^ w.arg;
        /* xor may read a lower segment, but no higher one */
        if (from > last || from < (op == DGSIM_SHFL_XOR ? 0 : first)) from = i;
        if (mask >> from & 1) {
            w.out = word(lanes[from]).in;
        } else {
            dgsim_enter(&lanes[i]);
            dgsim_fault(nullptr, lanes[i].place,
                        "wrong mask: in %s lane %d reads lane %d, which mask 0x%08x leaves out",
                        dgsim_warp_name(op), i, from, mask);
        }
    }
}

static uint64_t combine(int op, uint64_t a, uint64_t b) {
    const uint32_t x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
    const int32_t sx = static_cast<int32_t>(x), sy = static_cast<int32_t>(y);
    switch (op) {
    case DGSIM_REDUCE_ADD:
        return static_cast<uint32_t>(x + y);
    case DGSIM_REDUCE_MIN:
        return sx < sy ? x : y;
    case DGSIM_REDUCE_MAX:
        return sx > sy ? x : y;
    case DGSIM_REDUCE_UMIN:
        return x < y ? x : y;
    case DGSIM_REDUCE_UMAX:
        return x > y ? x : y;
    case DGSIM_REDUCE_AND:
    case DGSIM_ALL:
        return x & y;
    case DGSIM_REDUCE_OR:
    case DGSIM_ANY:
        return x | y;
    default:
        return x ^ y;
    }
}

static void reduce(int op, unsigned mask, dgsim_thread *lanes) {
    bool first = true;
    uint64_t sum = 0;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const uint64_t v = word(lanes[i]).in;
        if (op == DGSIM_BALLOT)
            sum |= v << i;
        else
            sum = first ? v : combine(op, sum, v);
        first = false;
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) word(lanes[i]).out = sum;
}

static void match(unsigned mask, dgsim_thread *lanes) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        uint64_t same = 0;
        for (int j = 0; j < 32; j++)
            if ((mask >> j & 1) && word(lanes[j]).in == word(lanes[i]).in) same |= uint64_t{1} << j;
        word(lanes[i]).out = same;
    }
}

/* --- matrices --- */

/* Elements of a register, 2 of 16 bits or 4 of 8 */
static double element(int op, uint32_t r, int i) {
    if (op == DGSIM_MMA_S8) return static_cast<int8_t>(r >> 8 * i);
    const uint32_t h = r >> 16 * i & 0xffff;
    const unsigned short bits = static_cast<unsigned short>(h);
    return op == DGSIM_MMA_BF16 ? __bfloat162float(__ushort_as_bfloat16(bits))
                                : __half2float(__ushort_as_half(bits));
}

/* d[16,8] += a[16,k] . b[k,8], k = 16 or 32 by the size of an element. Exact products, summed in double:
 * devices round the sums in ways of their own. */
static void mma(int op, dgsim_thread *lanes) {
    const int per = op == DGSIM_MMA_S8 ? 4 : 2, k = 8 * per;
    double a[16][32], b[32][8];
    for (int lane = 0; lane < 32; lane++) {
        const dgsim_mma &io = *static_cast<dgsim_mma *>(lanes[lane].io);
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < per; e++) {
            for (int r = 0; r < 4; r++)
                a[g + 8 * (r & 1)][per * t + e + k / 2 * (r >> 1)] = element(op, io.a[r], e);
            for (int r = 0; r < 2; r++) b[per * t + e + k / 2 * r][g] = element(op, io.b[r], e);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const dgsim_mma &io = *static_cast<dgsim_mma *>(lanes[lane].io);
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i >> 1), column = lane % 4 * 2 + (i & 1);
            double sum = 0;
            for (int j = 0; j < k; j++) sum += a[row][j] * b[j][column];
            if (op == DGSIM_MMA_S8) { /* wraps */
                int32_t *d = static_cast<int32_t *>(io.d) + i;
                *d = static_cast<int32_t>(static_cast<uint32_t>(*d) +
                                          static_cast<uint32_t>(static_cast<int32_t>(sum)));
            } else {
                float *d = static_cast<float *>(io.d) + i;
                *d = static_cast<float>(*d + sum);
            }
        }
    }
}

static void ldmatrix(dgsim_thread *lanes) {
    const dgsim_matrices &first = *static_cast<dgsim_matrices *>(lanes[0].io);
    for (int m = 0; m < first.n; m++) {
        uint16_t e[8][8];
        for (int row = 0; row < 8; row++) {
            dgsim_thread &t = lanes[8 * m + row];
            const void *p = static_cast<dgsim_matrices *>(t.io)->row;
            dgsim_check_as(&t, p, 16, 16, DGSIM_READ);
            memcpy(e[row], p, 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            const dgsim_matrices &io = *static_cast<dgsim_matrices *>(lanes[lane].io);
            const int g = lane / 4, t = lane % 4 * 2;
            const uint32_t lo = io.trans ? e[t][g] : e[g][t], hi = io.trans ? e[t + 1][g] : e[g][t + 1];
            io.r[m] = lo | hi << 16;
        }
    }
}

void dgsim_warp_complete(int op, unsigned mask, dgsim_thread *lanes) {
    switch (op) {
    case DGSIM_SYNCWARP:
        dgsim_log_warp_sync(mask, lanes);
        break;
    case DGSIM_SHFL:
    case DGSIM_SHFL_UP:
    case DGSIM_SHFL_DOWN:
    case DGSIM_SHFL_XOR:
        shuffle(op, mask, lanes);
        break;
    case DGSIM_MATCH:
        match(mask, lanes);
        break;
    case DGSIM_MMA_BF16:
    case DGSIM_MMA_F16:
    case DGSIM_MMA_S8:
        mma(op, lanes);
        break;
    case DGSIM_LDMATRIX:
        ldmatrix(lanes);
        break;
    default:
        reduce(op, mask, lanes);
    }
}
