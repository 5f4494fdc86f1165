/* Whether AMX tiles may be used. A processor that has them can lack the kernel's permission, and some hypervisors
 * show them and fault; so after asking both, a product is computed under a fault handler and compared. */
#include "kernels/cpu/cpu.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* ---- trials ---- */

enum { N_FAULT = 2 };
static const int fault[N_FAULT] = {SIGILL, SIGSEGV};

/* Handlers belong to the process, so there is one trial at a time. */
static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    sigjmp_buf back;
    struct sigaction before[N_FAULT];
} trial = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Another thread's faults go where they went before. */
static void on_fault(int sig, siginfo_t *info, void *context) {
    if (pthread_equal(pthread_self(), trial.thread)) siglongjmp(trial.back, 1);
    const struct sigaction *before = &trial.before[sig == fault[1]];
    if (before->sa_flags & SA_SIGINFO) {
        before->sa_sigaction(sig, info, context);
    } else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(sig);
    } else {
        sigaction(sig, before, NULL);
        raise(sig);
    }
}

bool dg_try(bool (*attempt)(void)) {
    struct sigaction mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigset_t faults, mask;
    sigemptyset(&mine.sa_mask);
    sigemptyset(&faults);
    pthread_mutex_lock(&trial.lock);
    trial.thread = pthread_self();
    for (int i = 0; i < N_FAULT; i++) {
        sigaddset(&faults, fault[i]);
        sigaction(fault[i], NULL, &trial.before[i]); /* known before it may be needed */
        sigaction(fault[i], &mine, NULL);
    }
    pthread_sigmask(SIG_UNBLOCK, &faults, &mask); /* a fault that is blocked ends the process */
    volatile bool ok = false;
    if (sigsetjmp(trial.back, 1) == 0) ok = attempt();
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    for (int i = 0; i < N_FAULT; i++) sigaction(fault[i], &trial.before[i], NULL);
    pthread_mutex_unlock(&trial.lock);
    return ok;
}

/* ---- AMX ---- */

#if defined(__x86_64__) && defined(__linux__)

bool dg_amx_agrees(const dg_isa *isa) {
    enum { ROWS = DG_ROW_TILE, OUTS = DG_PACK_OUTS, BLOCKS = 2, COLS = BLOCKS * DG_BLOCK };
    uint8_t w[BLOCKS * 34 * OUTS]; /* Q8_0 */
    float row[COLS], sums[ROWS][OUTS], out[2][ROWS][OUTS];
    dg_act_block x[BLOCKS];
    dg_strip strip;
    for (size_t i = 0; i < sizeof w; i++) w[i] = (uint8_t)(37 * i + i / 16);
    for (int b = 0; b < BLOCKS; b++)
        for (int o = 0; o < OUTS; o++) memcpy(w + b * 34 * OUTS + 2 * o, &(uint16_t){(uint16_t)(0x3400 + 64 * o)}, 2);
    for (int32_t r = 0; r < ROWS; r++) {
        for (int k = 0; k < COLS; k++) row[k] = (float)((r * COLS + k) * 29 % 97 - 48);
        isa->fix_row(row, BLOCKS, 2, r, x);
    }
    const dg_isa *const both[2] = {isa, &dg_isa_avx512};
    for (int i = 0; i < 2; i++) {
        const dg_packed_args a = {x, dg_mat_make(out[i], DG_F32, ROWS, OUTS), dg_mat_make(w, DG_Q8_0, OUTS, COLS), {0},
                                  false, 2};
        both[i]->matmul_packed(&a, 0, 1, &strip, sums);
    }
    return memcmp(out[0], out[1], sizeof out[0]) == 0;
}

static bool agrees(void) { return dg_amx_agrees(&dg_isa_amx); }

static bool works;

/* The permission is the process's and cannot be given back. */
static void find_out(void) {
    enum { TILE = 1 << 24, INT8 = 1 << 25, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILE) || !(d & INT8)) return;
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0) return;
    works = dg_try(agrees);
}

bool dg_amx_works(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_out);
    return works;
}

#else

bool dg_amx_works(void) { return false; }

#endif
