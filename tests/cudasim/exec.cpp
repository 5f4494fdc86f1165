/* Runs kernels: block after block, a block's threads as fibres that are switched where they wait for each
 * other. Threads start in an order that tests choose; a thread that waits for nobody runs to its end without
 * a switch. Must not know streams or memory. */
#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include "internal.h"

extern "C" {
/* What kernels see as constants: include/cuda_runtime.h. */
dgsim_index threadIdx, blockIdx, blockDim, gridDim;
void dgsim_switch(void **save_sp, void *sp);
}

const dgsim_launch_config *dgsim_running;
dgsim_thread *dgsim_current;
std::vector<dgsim_thread> dgsim_threads;
uint64_t dgsim_block_serial;
uint32_t dgsim_block_number, dgsim_phase;
long dgsim_kernels_run;

/* --- fibres --- */

struct dgsim_fibre {
    void *sp;
    char *stack;
    dgsim_thread *thread;
};

namespace {

constexpr size_t stack_bytes = 256 << 10, guard_bytes = 64 << 10; /* a guard is a whole page of any size */
std::vector<dgsim_fibre *> idle;
void *scheduler_sp;
std::vector<dgsim_thread *> ready; /* a ring: each thread is in it at most once */
size_t ready_head, ready_count;
int n_done, n_at_barrier;
bool in_block; /* else before the first or after the last */
struct warp_state {
    unsigned waiting, left;
}; /* lanes */
std::vector<warp_state> warps;
uint64_t order_state = 0x9e3779b97f4a7c15u;

} // namespace

/* Saves the registers that a call must preserve and goes on where another fibre saved its own. */
#if defined(__x86_64__)
asm(".text\n.globl dgsim_switch\n.type dgsim_switch, @function\ndgsim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size dgsim_switch, .-dgsim_switch\n");
constexpr size_t frame_words = 8, frame_return = 6; /* six registers, the return address, one for alignment */
#elif defined(__aarch64__)
asm(".text\n.globl dgsim_switch\n.type dgsim_switch, %function\ndgsim_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\n"
    "stp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n"
    ".size dgsim_switch, .-dgsim_switch\n");
constexpr size_t frame_words = 20, frame_return = 11;
#else
#error "dgsim_switch is written for x86-64 and aarch64"
#endif

static void fibre_main(void);

static dgsim_fibre *fibre_new(void) {
    char *p = static_cast<char *>(mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED || mprotect(p, guard_bytes, PROT_NONE)) {
        fprintf(stderr, "cudasim: no memory for a thread's stack\n");
        abort();
    }
    /* stacks begin at different places of a page, or their tops would share a few sets of the cache */
    static unsigned n;
    char *const end = p + guard_bytes + stack_bytes, *const top = end - 64 - n++ * 5 % 64 * 64;
    void **frame = reinterpret_cast<void **>(top) - frame_words;
    frame[frame_return] = reinterpret_cast<void *>(fibre_main);
    return new (end - sizeof(dgsim_fibre)) dgsim_fibre{frame, p + guard_bytes, nullptr};
}

static bool holds(const dgsim_fibre *f, const char *p, size_t bytes) {
    return f && p >= f->stack && p + bytes <= f->stack + stack_bytes;
}

bool dgsim_on_own_stack(const char *p, size_t bytes) {
    return holds(dgsim_current->fibre, p, bytes);
}

bool dgsim_on_stack(const char *p, size_t bytes) {
    for (const dgsim_thread &t : dgsim_threads)
        if (holds(t.fibre, p, bytes)) return true;
    return false;
}

void dgsim_enter(dgsim_thread *t) {
    dgsim_current = t;
    threadIdx = t->index;
}

/* The next thread that can run, with a fibre, or nullptr. */
static dgsim_thread *next_ready(void) {
    if (ready_count == 0) return nullptr;
    dgsim_thread *t = ready[ready_head];
    if (++ready_head == ready.size()) ready_head = 0;
    ready_count--;
    if (!t->fibre) {
        if (idle.empty()) idle.push_back(fibre_new());
        t->fibre = idle.back();
        idle.pop_back();
        t->fibre->thread = t;
    }
    dgsim_enter(t);
    return t;
}

static void make_ready(dgsim_thread *t) {
    t->state = DGSIM_READY;
    const size_t at = ready_head + ready_count++;
    ready[at < ready.size() ? at : at - ready.size()] = t;
}

static void switch_from(void **save) {
    dgsim_thread *t = next_ready();
    if (!t) dgsim_current = nullptr;
    dgsim_switch(save, t ? t->fibre->sp : scheduler_sp);
}

/* The current thread waits until another one makes it ready. */
static void wait(dgsim_state state) {
    dgsim_thread *t = dgsim_current;
    t->state = state;
    switch_from(&t->fibre->sp);
}

static void finish_copies(dgsim_thread *t, unsigned before_group);

static void fibre_main(void) {
    for (;;) {
        dgsim_thread *t = dgsim_current;
        dgsim_fibre *self = t->fibre;
        dgsim_running->call(dgsim_running->args);
        finish_copies(t, ~0u);
        warps[static_cast<size_t>(t->number) / 32].left |= 1u << t->number % 32;
        t->state = DGSIM_DONE;
        t->fibre = nullptr;
        n_done++;
        idle.push_back(self);
        dgsim_thread *next = next_ready(); /* one that has not started takes over this fibre */
        if (!next) dgsim_current = nullptr;
        if (!next || next->fibre != self) dgsim_switch(&self->sp, next ? next->fibre->sp : scheduler_sp);
    }
}

/* --- reports --- */

static void describe(char *out, size_t n, const dgsim_thread &t) {
    const int at = snprintf(out, n, "thread (%u,%u,%u) ", t.index.x, t.index.y, t.index.z);
    out += at, n -= static_cast<size_t>(at);
    if (t.state == DGSIM_DONE)
        snprintf(out, n, "has left the kernel");
    else if (t.state == DGSIM_AT_BARRIER)
        snprintf(out, n, "waits at __syncthreads, %s:%d", t.place.file, t.place.line);
    else if (t.state == DGSIM_AT_WARP)
        snprintf(out, n, "waits in %s with mask 0x%08x, %s:%d", dgsim_warp_name(t.op), t.mask, t.place.file,
                 t.place.line);
    else
        snprintf(out, n, "has not come this far");
}

void dgsim_locate(const void *pc, char *out, size_t n) {
    Dl_info info;
    if (!dladdr(pc, &info) || !info.dli_fbase) {
        snprintf(out, n, "%p", pc);
        return;
    }
    const size_t at =
        static_cast<size_t>(static_cast<const char *>(pc) - static_cast<const char *>(info.dli_fbase)) - 1;
    char command[600];
    snprintf(out, n, "%s+0x%zx", info.dli_fname, at);
    snprintf(command, sizeof command, "addr2line -Cfpe '%s' 0x%zx 2>/dev/null", info.dli_fname, at);
    FILE *f = popen(command, "r");
    if (!f) return;
    char line[300];
    if (fgets(line, sizeof line, f)) {
        char *end = strstr(line, " (discriminator");
        snprintf(out, n, "%.*s",
                 static_cast<int>(end ? static_cast<size_t>(end - line) : strcspn(line, "\n")), line);
    }
    pclose(f);
}

void dgsim_fault(const void *pc, dgsim_place place, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    dprintf(2, "cudasim: %s\n", line);
    if (dgsim_running) {
        const dgsim_launch_config &k = *dgsim_running;
        const bool wrapped = k.name[0] == '('; /* as a macro's argument with commas must be */
        dprintf(2, "cudasim:   in kernel %.*s", static_cast<int>(strlen(k.name)) - 2 * wrapped,
                k.name + wrapped);
        if (in_block) dprintf(2, ", block (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z);
        if (dgsim_current) dprintf(2, ", thread (%u,%u,%u)", threadIdx.x, threadIdx.y, threadIdx.z);
        dprintf(2, ", launched at %s:%d\n", k.file, k.line);
    }
    if (place.file) dprintf(2, "cudasim:   at %s:%d\n", place.file, place.line);
    if (pc) {
        dgsim_locate(pc, line, sizeof line);
        dprintf(2, "cudasim:   at %s\n", line);
    }
    _exit(DGSIM_EXIT);
}

[[noreturn]] static void fault_divergent(dgsim_thread &a, const dgsim_thread &b, const char *what) {
    char da[300], db[300];
    describe(da, sizeof da, a);
    describe(db, sizeof db, b);
    dgsim_enter(&a);
    dgsim_fault(nullptr, a.place, "%s: %s; %s", what, da, db);
}

/* Every thread waits or has ended: says who waits for whom. */
[[noreturn]] static void fault_stuck(void) {
    for (dgsim_thread &t : dgsim_threads) {
        if (t.state != DGSIM_AT_WARP) continue;
        const size_t warp = static_cast<size_t>(t.number) / 32 * 32;
        for (size_t lane = 0; lane < 32; lane++) {
            const dgsim_thread &u = dgsim_threads[warp + lane];
            if ((t.mask >> lane & 1) && (u.state != DGSIM_AT_WARP || u.mask != t.mask || u.op != t.op))
                fault_divergent(t, u, "a lane that the mask names never arrives");
        }
    }
    for (dgsim_thread &t : dgsim_threads)
        if (t.state == DGSIM_AT_BARRIER)
            for (const dgsim_thread &u : dgsim_threads)
                if (u.state != DGSIM_AT_BARRIER) fault_divergent(t, u, "divergent barrier");
    abort(); /* a bug of the simulator */
}

/* --- waiting for each other --- */

int dgsim_barrier(dgsim_vote op, int predicate, const char *file, int line) {
    dgsim_thread *t = dgsim_current;
    t->op = op;
    t->predicate = predicate != 0;
    t->place = {file, line};
    const int n = static_cast<int>(dgsim_threads.size());
    if (++n_at_barrier < n) {
        wait(DGSIM_AT_BARRIER);
        return t->result;
    }
    int count = 0;
    t->state = DGSIM_AT_BARRIER;
    for (dgsim_thread &u : dgsim_threads) {
        if (u.place.line != line || u.op != op || std::string_view(u.place.file) != file)
            fault_divergent(u, *t, "divergent barrier");
        count += u.predicate;
    }
    const int result[] = {0, count, count == n, count > 0};
    for (dgsim_thread &u : dgsim_threads) {
        u.result = result[op];
        if (&u != t) make_ready(&u);
    }
    t->state = DGSIM_READY;
    n_at_barrier = 0;
    dgsim_phase++;
    return t->result;
}

/* Two lanes that wait for each other in different calls would do so forever; a lane that waits for others
 * only may still come. */
static bool lanes_agree(dgsim_thread *lanes, const dgsim_thread &me, unsigned lane) {
    for (unsigned rest = me.mask; rest; rest &= rest - 1) {
        const dgsim_thread &u = lanes[__builtin_ctz(rest)];
        if (u.mask == me.mask && u.op == me.op) continue;
        if (u.mask >> lane & 1) fault_divergent(lanes[lane], u, "wrong mask: two lanes wait for each other");
        return false;
    }
    return true;
}

void dgsim_warp(dgsim_warp_op op, unsigned mask, void *io, const char *file, int line) {
    dgsim_thread *t = dgsim_current;
    const unsigned lane = static_cast<unsigned>(t->number) % 32,
                   first = static_cast<unsigned>(t->number) - lane;
    const size_t n = dgsim_threads.size() - first;
    dgsim_thread *lanes = t - lane;
    t->op = op, t->mask = mask, t->io = io, t->place = {file, line};
    if (!(mask >> lane & 1))
        dgsim_fault(nullptr, t->place, "wrong mask: lane %u calls %s with mask 0x%08x, which leaves it out",
                    lane, dgsim_warp_name(op), mask);
    if (n < 32 && mask >> n)
        dgsim_fault(nullptr, t->place, "wrong mask: %s with mask 0x%08x in a warp of %zu threads",
                    dgsim_warp_name(op), mask, n);
    warp_state &w = warps[first / 32];
    w.waiting |= 1u << lane;
    t->state = DGSIM_AT_WARP;
    if (w.left & mask)
        fault_divergent(*t, lanes[__builtin_ctz(w.left & mask)], "wrong mask: it names a lane that has left");
    if ((w.waiting & mask) != mask || !lanes_agree(lanes, *t, lane)) return wait(DGSIM_AT_WARP);
    dgsim_warp_complete(op, mask, lanes);
    w.waiting &= ~mask;
    for (unsigned rest = mask & ~(1u << lane); rest; rest &= rest - 1)
        make_ready(&lanes[__builtin_ctz(rest)]);
    t->state = DGSIM_READY;
}

unsigned dgsim_lanes(void) {
    const size_t warp = static_cast<size_t>(dgsim_current->number) / 32, n = dgsim_threads.size() - warp * 32;
    return (n < 32 ? (1u << n) - 1 : 0xffffffffu) & ~warps[warp].left;
}

/* --- asynchronous copies --- */

void dgsim_cp_async(void *dst, const void *src, unsigned bytes, const char *file, int line) {
    dgsim_check(dst, 16, 16, DGSIM_WRITE, file, line);
    if (bytes) dgsim_check(src, bytes, 16, DGSIM_READ, file, line);
    dgsim_log_pending(dst, 16);
    dgsim_current->copies.push_back({dst, src, bytes, dgsim_current->group, {file, line}});
}

void dgsim_cp_commit(void) {
    dgsim_current->group++;
}

static void finish_copies(dgsim_thread *t, unsigned before_group) {
    size_t kept = 0;
    for (const dgsim_copy &c : t->copies) {
        if (c.group >= before_group) {
            t->copies[kept++] = c;
            continue;
        }
        memcpy(c.dst, c.src, c.bytes);
        memset(static_cast<char *>(c.dst) + c.bytes, 0, 16 - c.bytes);
        dgsim_check(c.dst, 16, 16, DGSIM_WRITE, c.place.file, c.place.line);
    }
    t->copies.resize(kept);
}

void dgsim_cp_wait(int pending) {
    const unsigned n = static_cast<unsigned>(pending);
    finish_copies(dgsim_current, dgsim_current->group > n ? dgsim_current->group - n : 0);
}

/* --- blocks --- */

static uint64_t order_random(void) {
    order_state ^= order_state << 13, order_state ^= order_state >> 7, order_state ^= order_state << 17;
    return order_state;
}

/* order[i] = what comes i-th */
static void make_order(std::vector<uint32_t> &order, size_t n) {
    order.resize(n);
    for (size_t i = 0; i < n; i++)
        order[i] = static_cast<uint32_t>(dgsim.order == DGSIM_REVERSE ? n - 1 - i : i);
    if (dgsim.order == DGSIM_SHUFFLED)
        for (size_t i = n; i > 1; i--) std::swap(order[i - 1], order[order_random() % i]);
}

static void run_block(const std::vector<uint32_t> &order) {
    const unsigned *b = dgsim_running->block;
    ready_head = ready_count = 0;
    n_done = n_at_barrier = 0;
    dgsim_phase = 0;
    dgsim_block_serial++;
    std::fill(warps.begin(), warps.end(), warp_state{});
    for (size_t i = 0; i < dgsim_threads.size(); i++) {
        dgsim_thread &t = dgsim_threads[i];
        const unsigned n = static_cast<unsigned>(i);
        t.index = {n % b[0], n / b[0] % b[1], n / (b[0] * b[1])};
        t.number = static_cast<int>(i);
        t.fibre = nullptr;
        t.group = 0;
    }
    for (uint32_t i : order) make_ready(&dgsim_threads[i]);
    switch_from(&scheduler_sp);
    if (n_done < static_cast<int>(dgsim_threads.size())) fault_stuck();
}

void dgsim_run(const dgsim_launch_config &k) {
    const unsigned *g = k.grid, *b = k.block;
    const size_t n_blocks = static_cast<size_t>(g[0]) * g[1] * g[2];
    static std::vector<uint32_t> threads, blocks;
    dgsim_running = &k;
    dgsim_kernels_run++;
    gridDim = {g[0], g[1], g[2]};
    blockDim = {b[0], b[1], b[2]};
    dgsim_threads.resize(static_cast<size_t>(b[0]) * b[1] * b[2]);
    ready.resize(dgsim_threads.size());
    warps.resize((dgsim_threads.size() + 31) / 32);
    make_order(threads, dgsim_threads.size());
    make_order(blocks, n_blocks);
    dgsim_prepare_kernel(k);
    for (uint32_t i : blocks) {
        dgsim_block_number = i;
        blockIdx = {i % g[0], i / g[0] % g[1], i / g[0] / g[1]};
        in_block = true;
        dgsim_prepare_block();
        run_block(threads);
        dgsim_check_shared();
    }
    in_block = false;
    dgsim_check_margins();
    dgsim_running = nullptr;
}
