/* Checks of single accesses. Kernels built for it (make's sim-log objects) call __tsan_* before every access
 * to memory and __ubsan_* where an index or alignment is wrong: the compiler's instrumentation, without its
 * run-time libraries. Exact bounds follow for global and shared memory, and from a record of who touched each
 * byte, uninitialised reads of shared memory and races.
 *
 * Two accesses of a byte by two threads, one of them a write, race unless a __syncthreads or, within a warp,
 * a
 * __syncwarp of both lies between (vector clocks over a warp's lanes; shuffles and votes order nothing). The
 * last write and two reads are kept, which may miss a race among several readers, never report one falsely.
 */
#include <algorithm>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include "internal.h"

namespace {

struct event {
    uint16_t thread, atomic; /* its number + 1, 0: none */
    uint32_t phase, clock, code;
};
struct cell {
    uint64_t block;
    event write, read[2];
    bool split;
};

/* A region's memory by words of 4 bytes; a word that smaller accesses touch is split into bytes. */
struct record {
    char *start;
    std::vector<cell> words, bytes;
};

bool logging; /* some kernel is instrumented */
record statics, dynamic;
std::vector<uint32_t> clocks; /* [thread][lane of its warp] */

} // namespace

extern "C" char __executable_start, _end;

int dgsim_logs_accesses(void) {
    return logging;
}

static uint32_t *clock_of(const dgsim_thread &t) {
    return &clocks[static_cast<size_t>(t.number) * 32];
}

void dgsim_log_block(void) {
    if (!logging) return;
    size_t bytes;
    statics.start = dgsim_tls(&bytes);
    statics.words.resize(bytes / 4 + 1);
    dynamic.start = dgsim_dynamic;
    dynamic.words.resize(dgsim_dynamic_bytes / 4 + 1);
    clocks.assign(dgsim_threads.size() * 32, 0);
    for (size_t i = 0; i < dgsim_threads.size(); i++) clocks[i * 32 + i % 32] = 1;
}

void dgsim_log_warp_sync(unsigned mask, dgsim_thread *lanes) {
    if (!logging) return;
    uint32_t joined[32] = {};
    for (int i = 0; i < 32; i++)
        for (int j = 0; (mask >> i & 1) && j < 32; j++)
            joined[j] = std::max(joined[j], clock_of(lanes[i])[j]);
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        memcpy(clock_of(lanes[i]), joined, sizeof joined);
        clock_of(lanes[i])[i]++;
    }
}

static bool ordered(const event &e) {
    const dgsim_thread &me = *dgsim_current;
    const int other = e.thread - 1;
    if (e.thread == 0 || other == me.number || e.phase != dgsim_phase) return true;
    return other / 32 == me.number / 32 && clock_of(me)[other % 32] >= e.clock;
}

[[noreturn]] static void fault_race(const char *p, const event &e, bool other_wrote, dgsim_access how,
                                    const void *pc, dgsim_place place) {
    dgsim_region r = {};
    dgsim_find_shared(p, &r);
    const dgsim_index t = dgsim_threads[static_cast<size_t>(e.thread) - 1].index;
    char where[300] = "";
    if (e.code) dgsim_locate(&__executable_start + e.code, where, sizeof where);
    dgsim_fault(
        pc, place,
        "race on byte %zd of %s: this thread %s what thread (%u,%u,%u) has %s%s%s, with no barrier between",
        p - r.start, r.name, how == DGSIM_READ ? "reads" : "writes", t.x, t.y, t.z,
        other_wrote ? "written" : "read", *where ? " at " : "", where);
}

static cell &fresh(cell &c) {
    if (c.block != dgsim_block_serial) c = {dgsim_block_serial, {}, {}, false};
    return c;
}

/* Calls f on the cells of the bytes at p. */
template <class F> static void each_cell(const char *p, size_t bytes, F f) {
    record &r = p >= dynamic.start && p < dynamic.start + 4 * dynamic.words.size() ? dynamic : statics;
    for (size_t at = static_cast<size_t>(p - r.start), end = at + bytes; at < end;) {
        cell &word = fresh(r.words[at / 4]);
        if (at % 4 == 0 && end - at >= 4 && !word.split) {
            f(word, r.start + at);
            at += 4;
            continue;
        }
        if (r.bytes.size() < 4 * r.words.size()) r.bytes.resize(4 * r.words.size());
        if (!word.split) std::fill_n(&r.bytes[at / 4 * 4], 4, word);
        word.split = true;
        f(r.bytes[at], r.start + at);
        at++;
    }
}

static void log_shared(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    const dgsim_thread &me = *dgsim_current;
    const uint32_t code = pc ? static_cast<uint32_t>(static_cast<const char *>(pc) - &__executable_start) : 0;
    const event now = {static_cast<uint16_t>(me.number + 1), how == DGSIM_ATOMIC, dgsim_phase,
                       clock_of(me)[me.number % 32], code};
    each_cell(p, bytes, [&](cell &c, const char *at) {
        const event &last = c.read[0]; /* reading again what nobody could rightly have written since */
        if (how == DGSIM_READ && last.thread == now.thread && last.phase == now.phase &&
            last.clock == now.clock)
            return;
        if (how != DGSIM_WRITE && c.write.thread == 0) {
            dgsim_region r = {};
            dgsim_find_shared(at, &r);
            dgsim_fault(pc, place, "read of uninitialised shared memory: byte %zd of %s", at - r.start,
                        r.name);
        }
        if (!ordered(c.write) && !(how == DGSIM_ATOMIC && c.write.atomic))
            fault_race(at, c.write, true, how, pc, place);
        if (how == DGSIM_READ) { /* keep a reader of another warp, or else of another thread */
            if (c.read[0].thread && (c.read[0].thread - 1) / 32 != me.number / 32) c.read[1] = c.read[0];
            c.read[0] = now;
            return;
        }
        for (const event &e : c.read)
            if (!ordered(e)) fault_race(at, e, false, how, pc, place);
        c.write = now;
    });
}

void dgsim_log_pending(const void *p, size_t bytes) {
    if (!logging || !dgsim_in_shared(static_cast<const char *>(p))) return;
    each_cell(static_cast<const char *>(p), bytes,
              [](cell &c, const char *) { c.write.thread = c.read[0].thread = 0; });
}

/* --- global memory: what another block, or another warp of this one before the next barrier, must not see
 * --- */

struct dgsim_word_log {
    long launch;
    struct {
        uint32_t block, phase, code;
        uint16_t thread;
        uint8_t bytes /* a mask */, atomic;
    } write, read;
};

static constexpr size_t big =
    1 << 20; /* a bigger allocation's reads count once something has been written to it */

/* Logs are used again: what an old launch left in them counts for nothing. */
static std::multimap<size_t, dgsim_word_log *> spare_logs; /* by number of words */

static size_t words_of(const dgsim_block &b) {
    return static_cast<size_t>(b.page_end - b.page) / 4;
}

void dgsim_log_release(dgsim_block *b) {
    if (b->words) spare_logs.insert({b->n_words, b->words});
    b->words = nullptr;
}

static bool take_log(dgsim_block *b) {
    b->n_words = words_of(*b);
    const auto spare = spare_logs.lower_bound(b->n_words);
    if (spare != spare_logs.end() && spare->first <= 4 * b->n_words) {
        b->n_words = spare->first;
        b->words = spare->second;
        spare_logs.erase(spare);
        return true;
    }
    void *m = mmap(nullptr, b->n_words * sizeof *b->words, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    b->words = m == MAP_FAILED ? nullptr : static_cast<dgsim_word_log *>(m);
    return b->words;
}

template <class E>
static void check_race(const E &e, const dgsim_block &b, const char *p, unsigned mask, bool other_wrote,
                       dgsim_access how, const void *pc, dgsim_place place) {
    const int me = dgsim_current->number, other = e.thread;
    if (!(e.bytes & mask) || (how == DGSIM_ATOMIC && e.atomic)) return;
    if (e.block == dgsim_block_number && (other / 32 == me / 32 || e.phase != dgsim_phase)) return;
    char where[300] = "";
    if (e.code) dgsim_locate(&__executable_start + e.code, where, sizeof where);
    const unsigned *d = dgsim_running->block, n = static_cast<unsigned>(other);
    dgsim_fault(pc, place,
                "race on byte %zd of device memory of %zu bytes: this thread %s what thread (%u,%u,%u) of "
                "block number %u "
                "has %s%s%s in this launch",
                p - b.start, b.bytes, how == DGSIM_READ ? "reads" : "writes", n % d[0], n / d[0] % d[1],
                n / (d[0] * d[1]), e.block, other_wrote ? "written" : "read", *where ? " at " : "", where);
}

static void log_global(dgsim_block *b, const char *p, size_t bytes, dgsim_access how, const void *pc,
                       dgsim_place place) {
    if (!b->words && !take_log(b)) return;
    if (how != DGSIM_READ)
        b->written = dgsim_kernels_run;
    else if (b->bytes > big && b->written != dgsim_kernels_run)
        return;
    const uint32_t code = pc ? static_cast<uint32_t>(static_cast<const char *>(pc) - &__executable_start) : 0;
    for (size_t at = static_cast<size_t>(p - b->page), end = at + bytes; at < end; at = (at / 4 + 1) * 4) {
        dgsim_word_log &w = b->words[at / 4];
        if (w.launch != dgsim_kernels_run) w = {dgsim_kernels_run, {}, {}};
        const unsigned last = static_cast<unsigned>(std::min(end - at / 4 * 4, size_t{4}));
        const unsigned mask = (1u << last) - (1u << at % 4);
        const char *start = b->page + at;
        check_race(w.write, *b, start, mask, true, how, pc, place);
        if (how != DGSIM_READ) check_race(w.read, *b, start, mask, false, how, pc, place);
        auto &e = how == DGSIM_READ ? w.read : w.write;
        e = {dgsim_block_number,
             dgsim_phase,
             code,
             static_cast<uint16_t>(dgsim_current->number),
             static_cast<uint8_t>(mask),
             how == DGSIM_ATOMIC};
    }
}

/* --- one access --- */

static void check_shared(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    static dgsim_region recent[4]; /* of this block */
    static uint64_t block;
    static unsigned next;
    if (block != dgsim_block_serial) std::fill_n(recent, 4, dgsim_region{});
    block = dgsim_block_serial;
    for (const dgsim_region &r : recent)
        if (p >= r.start && p + bytes <= r.start + r.bytes) {
            if (logging) log_shared(p, bytes, how, pc, place);
            return;
        }
    dgsim_region &r = recent[next++ % 4];
    const bool own = dgsim_find_shared(p, &r);
    if (!own || p < r.start || p + bytes > r.start + r.bytes)
        dgsim_fault(pc, place, "shared memory out of bounds: %zu bytes %s at byte %zd of %s%s, which has %zu",
                    bytes, how == DGSIM_READ ? "read" : "written", p - r.start,
                    own ? "" : "another kernel's ", r.name ? r.name : "?", r.bytes);
    if (logging) log_shared(p, bytes, how, pc, place);
}

dgsim_watch dgsim_watched;

static void check_global(const char *p, size_t bytes, dgsim_access how, const void *pc, dgsim_place place) {
    if (how == DGSIM_READ && p >= dgsim_watched.start && p < static_cast<const char *>(dgsim_watched.start) + dgsim_watched.bytes)
        dgsim_watched.read += static_cast<long>(bytes);
    static dgsim_block *last; /* blocks stay where they are */
    if (!last || !last->live || p < last->start || p + bytes > last->start + last->bytes) {
        last = dgsim_find(p);
        if (!last || !last->live || p < last->start || p + bytes > last->start + last->bytes)
            dgsim_fault_global(pc, place, p, bytes, how == DGSIM_READ ? "a thread reads" : "a thread writes");
    }
    if (logging) log_global(last, p, bytes, how, pc, place);
}

/* p: not on the thread's own stack */
static void check(const char *p, size_t bytes, size_t align, dgsim_access how, const void *pc,
                  dgsim_place place) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (at & (align - 1))
        dgsim_fault(pc, place, "misaligned: %zu bytes at address %p", bytes, static_cast<const void *>(p));
    if (dgsim_in_arena(p)) return check_global(p, bytes, how, pc, place);
    if (dgsim_in_shared(p)) return check_shared(p, bytes, how, pc, place);
    const char *args = static_cast<const char *>(dgsim_running->args);
    if (p >= args && p + bytes <= args + dgsim_running->args_bytes) return;
    if (p >= &__executable_start && p + bytes <= &_end) return; /* constants and __device__ variables */
    if (dgsim_registered(p, bytes)) return;
    if (dgsim_on_stack(p, bytes))
        dgsim_fault(pc, place, "a thread accesses a local variable of another thread");
    dgsim_fault(pc, place, "a thread %s address %p, which is no memory of the device",
                how == DGSIM_READ ? "reads" : "writes", static_cast<const void *>(p));
}

void dgsim_check(const void *p, size_t bytes, size_t align, dgsim_access how, const char *file, int line) {
    check(static_cast<const char *>(p), bytes, align, how, nullptr, {file, line});
}

void dgsim_check_as(dgsim_thread *t, const void *p, size_t bytes, size_t align, dgsim_access how) {
    dgsim_thread *self = dgsim_current;
    dgsim_enter(t);
    check(static_cast<const char *>(p), bytes, align, how, nullptr, t->place);
    dgsim_enter(self);
}

/* --- what instrumented code calls --- */

static void logged(const void *at, size_t bytes, size_t align, dgsim_access how, const void *pc) {
    const char *p = static_cast<const char *>(at);
    if (dgsim_current && !dgsim_on_own_stack(p, bytes)) check(p, bytes, align, how, pc, {});
}

#define DGSIM_TSAN(n)                                                                                        \
    void __tsan_read##n(void *p) {                                                                           \
        logged(p, n, n, DGSIM_READ, __builtin_return_address(0));                                            \
    }                                                                                                        \
    void __tsan_write##n(void *p) {                                                                          \
        logged(p, n, n, DGSIM_WRITE, __builtin_return_address(0));                                           \
    }                                                                                                        \
    void __tsan_unaligned_read##n(void *p) {                                                                 \
        logged(p, n, 1, DGSIM_READ, __builtin_return_address(0));                                            \
    }                                                                                                        \
    void __tsan_unaligned_write##n(void *p) {                                                                \
        logged(p, n, 1, DGSIM_WRITE, __builtin_return_address(0));                                           \
    }

struct ubsan_location {
    const char *file;
    uint32_t line, column;
};
struct ubsan_type {
    uint16_t kind, info;
    char name[1];
};
struct ubsan_mismatch {
    ubsan_location at;
    const ubsan_type *type;
    uint8_t log_align, kind;
};
struct ubsan_bounds {
    ubsan_location at;
    const ubsan_type *array, *index;
};

extern "C" {

DGSIM_TSAN(1)
DGSIM_TSAN(2)
DGSIM_TSAN(4)
DGSIM_TSAN(8)
DGSIM_TSAN(16)

void __tsan_init(void) {
    logging = true;
}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_read_range(void *p, size_t n) {
    logged(p, n, 1, DGSIM_READ, __builtin_return_address(0));
}
void __tsan_write_range(void *p, size_t n) {
    logged(p, n, 1, DGSIM_WRITE, __builtin_return_address(0));
}

/* clang's name for copies of whole objects */
void *__tsan_memcpy(void *dst, const void *src, size_t n) {
    logged(src, n, 1, DGSIM_READ, __builtin_return_address(0));
    logged(dst, n, 1, DGSIM_WRITE, __builtin_return_address(0));
    return memmove(dst, src, n);
}

void *__tsan_memmove(void *dst, const void *src, size_t n) {
    return __tsan_memcpy(dst, src, n);
}

void *__tsan_memset(void *dst, int byte, size_t n) {
    logged(dst, n, 1, DGSIM_WRITE, __builtin_return_address(0));
    return memset(dst, byte, n);
}

void __ubsan_handle_type_mismatch_v1(ubsan_mismatch *m, uintptr_t p) {
    const dgsim_place at = {m->at.file, static_cast<int>(m->at.line)};
    if (p & ((uintptr_t{1} << m->log_align) - 1))
        dgsim_fault(nullptr, at, "misaligned: address %#zx as %s, which is aligned to %d bytes",
                    static_cast<size_t>(p), m->type->name, 1 << m->log_align);
    dgsim_fault(nullptr, at, "out of bounds: there is no whole %s at address %#zx", m->type->name,
                static_cast<size_t>(p));
}

void __ubsan_handle_out_of_bounds(ubsan_bounds *b, uintptr_t index) {
    dgsim_fault(nullptr, {b->at.file, static_cast<int>(b->at.line)}, "out of bounds: index %zd of %s",
                static_cast<ssize_t>(index), b->array->name);
}

} /* extern "C" */
