/* Checks of single accesses. Kernels built for it (make's sim-log objects) call __tsan_* before every access
 * to memory and __ubsan_* where an index or alignment is wrong: the compiler's instrumentation, without its
 * run-time libraries. Exact bounds follow for global and shared memory, and from a record of who touched each
 * byte of shared memory, uninitialised reads and races.
 *
 * Two accesses of a byte by two threads, one of them a write, race unless a __syncthreads or, within a warp, a
 * __syncwarp of both lies between (vector clocks over a warp's lanes; shuffles and votes order nothing). The
 * last write and two reads are kept, which may miss a race among several readers, never report one falsely. */
#include <cstring>
#include "internal.h"

namespace {

struct event { uint16_t thread; /* number + 1, 0: none */ bool atomic; uint32_t phase, clock; const void *pc; };
struct cell { uint64_t block; event write, read[2]; };

bool logging; /* some kernel is instrumented */
constexpr size_t window = 4 << 20;
std::vector<cell> cells_static, cells_dynamic;
std::vector<uint32_t> clocks; /* [thread][lane of its warp] */

} // namespace

int dgsim_logs_accesses(void) { return logging; }

static uint32_t *clock_of(const dgsim_thread &t) { return &clocks[static_cast<size_t>(t.number) * 32]; }

void dgsim_log_block(void) {
    if (!logging) return;
    clocks.assign(dgsim_threads.size() * 32, 0);
    for (size_t i = 0; i < dgsim_threads.size(); i++) clocks[i * 32 + i % 32] = 1;
}

void dgsim_log_warp_sync(unsigned mask, dgsim_thread *lanes) {
    if (!logging) return;
    uint32_t joined[32] = {};
    for (int i = 0; i < 32; i++)
        for (int j = 0; (mask >> i & 1) && j < 32; j++) joined[j] = std::max(joined[j], clock_of(lanes[i])[j]);
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        memcpy(clock_of(lanes[i]), joined, sizeof joined);
        clock_of(lanes[i])[i]++;
    }
}

static cell *cells_of(const char *p, size_t bytes) {
    size_t tls_bytes;
    const char *tls = dgsim_tls(&tls_bytes);
    if (p >= tls && p < tls + tls_bytes) {
        if (cells_static.size() < tls_bytes) cells_static.resize(tls_bytes);
        return &cells_static[static_cast<size_t>(p - tls)];
    }
    const size_t at = static_cast<size_t>(p - dgsim_dynamic) + bytes;
    if (cells_dynamic.size() < at) cells_dynamic.resize(dgsim_dynamic_bytes);
    return &cells_dynamic[at - bytes];
}

static bool ordered(const event &e) {
    const dgsim_thread &me = *dgsim_current;
    const int other = e.thread - 1;
    if (e.thread == 0 || other == me.number || e.phase != dgsim_phase) return true;
    return other / 32 == me.number / 32 && clock_of(me)[other % 32] >= e.clock;
}

[[noreturn]] static void fault_race(const char *p, const event &e, bool other_wrote, dgsim_access how, const void *pc,
                                    dgsim_place place) {
    dgsim_region r = {};
    dgsim_find_shared(p, &r);
    const dgsim_index t = dgsim_threads[static_cast<size_t>(e.thread) - 1].index;
    char where[300] = "";
    dgsim_locate(e.pc, where, sizeof where);
    dgsim_fault(pc, place, "race on byte %zd of shared %s: this thread %s what thread (%u,%u,%u) has %s%s%s, with no barrier between",
                p - r.start, r.name, how == DGSIM_READ ? "reads" : "writes", t.x, t.y, t.z, other_wrote ? "written" : "read",
                *where ? " at " : "", where);
}

static void log_shared(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    const dgsim_thread &me = *dgsim_current;
    const event now = {static_cast<uint16_t>(me.number + 1), how == DGSIM_ATOMIC, dgsim_phase, clock_of(me)[me.number % 32], pc};
    cell *c = cells_of(p, bytes);
    for (size_t i = 0; i < bytes; i++, c++) {
        if (c->block != dgsim_block_serial) *c = {dgsim_block_serial, {}, {}};
        if (how != DGSIM_WRITE && c->write.thread == 0) {
            dgsim_region r = {};
            dgsim_find_shared(p, &r);
            dgsim_fault(pc, place, "read of uninitialised shared memory: byte %zd of %s", p + i - r.start, r.name);
        }
        if (!ordered(c->write) && !(how == DGSIM_ATOMIC && c->write.atomic))
            fault_race(p + i, c->write, true, how, pc, place);
        if (how == DGSIM_READ) { /* keep a reader of another warp, or else of another thread */
            if (c->read[0].thread && (c->read[0].thread - 1) / 32 != me.number / 32) c->read[1] = c->read[0];
            c->read[0] = now;
            continue;
        }
        for (const event &e : c->read)
            if (!ordered(e)) fault_race(p + i, e, false, how, pc, place);
        c->write = now;
    }
}

void dgsim_log_pending(const void *p, size_t bytes) {
    if (!logging || !dgsim_in_shared(static_cast<const char *>(p))) return;
    cell *c = cells_of(static_cast<const char *>(p), bytes);
    for (size_t i = 0; i < bytes; i++) c[i].write.thread = 0;
}

/* --- one access --- */

static void check_shared(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    dgsim_region r = {};
    const bool own = dgsim_find_shared(p, &r);
    if (!own || p < r.start || p + bytes > r.start + r.bytes)
        dgsim_fault(pc, place, "shared memory out of bounds: %zu bytes %s at byte %zd of %s%s, which has %zu", bytes,
                    how == DGSIM_READ ? "read" : "written", p - r.start, own ? "" : "another kernel's ", r.name ? r.name : "?", r.bytes);
    if (logging) log_shared(p, bytes, how, pc, place);
}

static void check_global(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    static const dgsim_block *last; /* blocks stay where they are */
    if (!last || !last->live || p < last->start || p + bytes > last->start + last->bytes) {
        last = dgsim_find(p);
        if (!last || !last->live || p < last->start || p + bytes > last->start + last->bytes)
            dgsim_fault_global(pc, place, p, bytes, how == DGSIM_READ ? "a thread reads" : "a thread writes");
    }
}

extern "C" char __executable_start, _end;

static void check(const char *p, size_t bytes, size_t align, dgsim_access how, const void *pc, dgsim_place place) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (at & (align - 1)) dgsim_fault(pc, place, "misaligned: %zu bytes at address %p", bytes, static_cast<const void *>(p));
    if (dgsim_in_arena(p)) return check_global(p, bytes, how, pc, place);
    if (dgsim_in_shared(p)) return check_shared(p, bytes, how, pc, place);
    bool own;
    if (dgsim_on_stack(p, bytes, &own)) {
        if (own) return;
        dgsim_fault(pc, place, "a thread accesses a local variable of another thread");
    }
    const char *args = static_cast<const char *>(dgsim_running->args);
    if (p >= args && p + bytes <= args + dgsim_running->args_bytes) return;
    if (p >= &__executable_start && p + bytes <= &_end) return; /* constants and __device__ variables */
    if (dgsim_registered(p, bytes)) return;
    dgsim_fault(pc, place, "a thread %s address %p, which is no memory of the device", how == DGSIM_READ ? "reads" : "writes",
                static_cast<const void *>(p));
}

void dgsim_check(const void *p, size_t bytes, size_t align, dgsim_access how, const char *file, int line) {
    check(static_cast<const char *>(p), bytes, align, how, nullptr, {file, line});
}

void dgsim_check_as(dgsim_thread *t, const void *p, size_t bytes, size_t align, dgsim_access how) {
    dgsim_thread *self = dgsim_current;
    dgsim_current = t, threadIdx = t->index;
    check(static_cast<const char *>(p), bytes, align, how, nullptr, t->place);
    dgsim_current = self, threadIdx = self->index;
}

/* --- what instrumented code calls --- */

static void logged(const void *p, size_t bytes, size_t align, dgsim_access how, const void *pc) {
    if (dgsim_current) check(static_cast<const char *>(p), bytes, align, how, pc, {});
}

#define DGSIM_TSAN(n)                                                                                           \
    void __tsan_read##n(void *p) { logged(p, n, n, DGSIM_READ, __builtin_return_address(0)); }                  \
    void __tsan_write##n(void *p) { logged(p, n, n, DGSIM_WRITE, __builtin_return_address(0)); }                \
    void __tsan_unaligned_read##n(void *p) { logged(p, n, 1, DGSIM_READ, __builtin_return_address(0)); }        \
    void __tsan_unaligned_write##n(void *p) { logged(p, n, 1, DGSIM_WRITE, __builtin_return_address(0)); }

struct ubsan_location { const char *file; uint32_t line, column; };
struct ubsan_type { uint16_t kind, info; char name[1]; };
struct ubsan_mismatch { ubsan_location at; const ubsan_type *type; uint8_t log_align, kind; };
struct ubsan_bounds { ubsan_location at; const ubsan_type *array, *index; };

extern "C" {

DGSIM_TSAN(1)
DGSIM_TSAN(2)
DGSIM_TSAN(4)
DGSIM_TSAN(8)
DGSIM_TSAN(16)

void __tsan_init(void) { logging = true; }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_read_range(void *p, size_t n) { logged(p, n, 1, DGSIM_READ, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t n) { logged(p, n, 1, DGSIM_WRITE, __builtin_return_address(0)); }

void __ubsan_handle_type_mismatch_v1(ubsan_mismatch *m, uintptr_t p) {
    const dgsim_place at = {m->at.file, static_cast<int>(m->at.line)};
    if (p & ((uintptr_t{1} << m->log_align) - 1))
        dgsim_fault(nullptr, at, "misaligned: address %#zx as %s, which is aligned to %d bytes", static_cast<size_t>(p),
                    m->type->name, 1 << m->log_align);
    dgsim_fault(nullptr, at, "out of bounds: there is no whole %s at address %#zx", m->type->name, static_cast<size_t>(p));
}

void __ubsan_handle_out_of_bounds(ubsan_bounds *b, uintptr_t index) {
    dgsim_fault(nullptr, {b->at.file, static_cast<int>(b->at.line)}, "out of bounds: index %zd of %s",
                static_cast<ssize_t>(index), b->array->name);
}

} /* extern "C" */
