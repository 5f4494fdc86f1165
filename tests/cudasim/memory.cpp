/* Device and pinned memory between pages that nobody can touch, shared memory with margins, and the signal
 * that says who touched them. Device memory is open only while kernels and copies run: host code that follows
 * a device pointer is stopped as on a machine with a GPU. Freed addresses are not used again. */
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <csignal>
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>
#include "internal.h"

namespace {

constexpr size_t page_bytes = 64 << 10; /* a multiple of any machine's */
constexpr size_t guard_bytes = 1 << 20; /* between allocations */
constexpr size_t huge_bytes = 2 << 20;
constexpr size_t dynamic_limit = 256 << 10, alignment = 256, dynamic_alignment = 128;
constexpr unsigned char poison = 0xff, margin_byte = 0xca; /* all ones is a NaN in every float type */
char *arena_next, *dynamic_pages;
size_t used;
int open_depth;
std::map<const char *, dgsim_block> blocks; /* by first page */
std::vector<dgsim_block *> opened;

/* --- the program's symbols: where shared variables lie and whose they are --- */

struct symbol {
    std::string owner, name;
    size_t offset, bytes, margin;
};
std::vector<symbol> statics;                   /* by offset in the thread-local block */
std::map<const void *, std::string> functions; /* encoding: the mangled name without _Z */
size_t tls_bytes, tls_align;
std::vector<std::string> kernels; /* encodings of those that have run */
struct kernel_statics {
    size_t n_kernels;
    std::vector<size_t> own;
    size_t bytes;
};
std::map<const void *, kernel_statics> statics_of;
const std::vector<size_t> *running_statics;
char *running_tls; /* of the host thread that runs the kernel */

} // namespace

char *dgsim_arena, *dgsim_dynamic;
size_t dgsim_dynamic_bytes;

static thread_local char tls_probe; /* not within functions: there it would pass for a shared variable */
static thread_local bool has_signal_stack;

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static char *tls_block(void) {
    char *tp = static_cast<char *>(__builtin_thread_pointer());
#if defined(__x86_64__)
    return tp - round_up(tls_bytes, tls_align); /* variant II: below the thread pointer */
#else
    return tp + round_up(16, tls_align); /* variant I: above it */
#endif
}

/* A shared variable `x` of function f is the thread-local symbol _ZZ<f>E<x>: __shared__ makes it so. */
static void read_symbols(void) {
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) return;
    const size_t size = static_cast<size_t>(st.st_size);
    char *base = static_cast<char *>(mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0));
    close(fd);
    if (base == MAP_FAILED) return;
    const ElfW(Ehdr) *eh = reinterpret_cast<const ElfW(Ehdr) *>(base);
    const ElfW(Phdr) *ph = reinterpret_cast<const ElfW(Phdr) *>(base + eh->e_phoff);
    const ElfW(Shdr) *sh = reinterpret_cast<const ElfW(Shdr) *>(base + eh->e_shoff);
    size_t load = 0;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *at) {
            *static_cast<size_t *>(at) = info->dlpi_addr;
            return 1; /* the program is first */
        },
        &load);
    for (int i = 0; i < eh->e_phnum; i++)
        if (ph[i].p_type == PT_TLS) tls_bytes = ph[i].p_memsz, tls_align = ph[i].p_align;
    std::vector<size_t> starts = {tls_bytes};
    for (int i = 0; i < eh->e_shnum; i++) {
        if (sh[i].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *sym = reinterpret_cast<const ElfW(Sym) *>(base + sh[i].sh_offset);
        const char *names = base + sh[sh[i].sh_link].sh_offset;
        for (size_t j = 0; j < sh[i].sh_size / sizeof *sym; j++) {
            const std::string name = names + sym[j].st_name;
            const int type = sym[j].st_info & 15;
            if (type == STT_FUNC && name.compare(0, 2, "_Z") == 0)
                functions[reinterpret_cast<const void *>(load + sym[j].st_value)] = name.substr(2);
            if (type != STT_TLS || sym[j].st_shndx == SHN_UNDEF) continue;
            starts.push_back(sym[j].st_value);
            if (name == "_ZL9tls_probe" && tls_block() + sym[j].st_value != &tls_probe) {
                fprintf(stderr, "cudasim: thread-local memory lies elsewhere than expected\n");
                abort();
            }
            if (name.compare(0, 3, "_ZZ") == 0)
                statics.push_back({name.substr(3), name, sym[j].st_value, sym[j].st_size, 0});
        }
    }
    munmap(base, size);
    std::sort(starts.begin(), starts.end());
    std::sort(statics.begin(), statics.end(),
              [](const symbol &a, const symbol &b) { return a.offset < b.offset; });
    for (symbol &s : statics) {
        const size_t end = s.offset + s.bytes, next = *std::lower_bound(starts.begin(), starts.end(), end);
        s.margin = std::min(next - end, size_t{64});
        int status = 0;
        char *plain = abi::__cxa_demangle(s.name.c_str(), nullptr, nullptr, &status);
        s.name = std::string("shared ") + (plain ? plain : s.name.c_str());
        free(plain);
    }
}

static bool belongs(const symbol &s, const std::string &function) {
    return s.owner.compare(0, function.size() + 1, function + "E") == 0;
}

/* The shared variables that a kernel may touch: its own and those of functions that are no kernels. */
static const kernel_statics &find_statics(const void *func) {
    const auto f = functions.find(func);
    const std::string mine = f == functions.end() ? "" : f->second;
    if (!mine.empty() && std::find(kernels.begin(), kernels.end(), mine) == kernels.end())
        kernels.push_back(mine);
    kernel_statics &k = statics_of[func];
    if (k.n_kernels == kernels.size()) return k;
    k = {kernels.size(), {}, 0};
    for (size_t i = 0; i < statics.size(); i++) {
        const bool own = !mine.empty() && belongs(statics[i], mine);
        const bool other = std::any_of(kernels.begin(), kernels.end(),
                                       [&](const std::string &name) { return belongs(statics[i], name); });
        if (own) k.bytes += round_up(statics[i].bytes, 16);
        if (own || !other) k.own.push_back(i);
    }
    return k;
}

size_t dgsim_static_bytes(const void *func) {
    return find_statics(func).bytes;
}

/* --- allocations --- */

static void on_signal(int sig, siginfo_t *info, void *context);

static struct sigaction old_action[2];

static bool memory_init(void) {
    dgsim_arena = static_cast<char *>(
        mmap(nullptr, dgsim_arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    dynamic_pages =
        static_cast<char *>(mmap(nullptr, 3 * dynamic_limit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (dgsim_arena == MAP_FAILED || dynamic_pages == MAP_FAILED) {
        fprintf(stderr, "cudasim: no address space for device memory\n");
        abort();
    }
    dynamic_pages += dynamic_limit;
    mprotect(dynamic_pages, dynamic_limit, PROT_READ | PROT_WRITE);
    arena_next = dgsim_arena + guard_bytes;
    read_symbols();
    return true;
}

[[maybe_unused]] static const bool initialised = memory_init(); /* after the tables above */

/* Signals are ours from the next call on, whoever took them since the last (test libraries do for each test).
 * A fibre's stack may be what faults, so that a thread which runs kernels needs one for signals. */
static void take_signals(void) {
    for (int i = 0; i < 2; i++) {
        struct sigaction action, old;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        if (sigaction(i ? SIGBUS : SIGSEGV, &action, &old) == 0 && old.sa_sigaction != on_signal)
            old_action[i] = old;
    }
    if (has_signal_stack) return;
    has_signal_stack = true;
    stack_t st = {};
    st.ss_size = 256 << 10;
    st.ss_sp = mmap(nullptr, st.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (st.ss_sp != MAP_FAILED) sigaltstack(&st, nullptr);
}

size_t dgsim_used(void) {
    return used;
}

void *dgsim_alloc(size_t bytes, bool pinned) {
    take_signals();
    if (!pinned && dgsim.fail_alloc > 0 && --dgsim.fail_alloc == 0) return nullptr;
    const size_t held = round_up(bytes, alignment), pages = round_up(held, page_bytes);
    if (pages + guard_bytes + huge_bytes > static_cast<size_t>(dgsim_arena + dgsim_arena_bytes - arena_next))
        return nullptr;
    if (!pinned && used + held > dgsim.memory) return nullptr;
    char *page = arena_next;
    if (pages >= 2 * huge_bytes) { /* whose protection changes faster by huge pages */
        page += (huge_bytes - reinterpret_cast<uintptr_t>(page) % huge_bytes) % huge_bytes;
        madvise(page, pages, MADV_HUGEPAGE);
    }
    if (mprotect(page, pages, PROT_READ | PROT_WRITE)) return nullptr;
    char *start = page + pages - held; /* so that the guard is near the end */
    memset(page, margin_byte, static_cast<size_t>(start - page));
    memset(start, poison, bytes);
    memset(start + bytes, margin_byte, held - bytes);
    if (!pinned) {
        used += held;
        mprotect(page, pages, PROT_NONE);
    }
    arena_next = page + pages + guard_bytes;
    blocks[page] = {start, bytes, page, page + pages, pinned, true, nullptr, 0, 0};
    return start;
}

dgsim_block *dgsim_find(const void *p) {
    const char *c = static_cast<const char *>(p);
    if (!dgsim_in_arena(p) || blocks.empty()) return nullptr;
    auto it = blocks.upper_bound(c);
    if (it != blocks.begin()) --it; /* else it lies in the first guard */
    /* of the guard between two, the lower half goes to the one before */
    auto next = std::next(it);
    if (next != blocks.end() && c >= it->second.page_end + guard_bytes / 2) it = next;
    return &it->second;
}

/* Looks at no more than `reach` bytes before an allocation. */
static void check_margin(const dgsim_block &b, size_t reach) {
    auto bad = [](const char *p, const char *end) {
        while (p < end && static_cast<unsigned char>(*p) == margin_byte) p++;
        return p < end ? p : nullptr;
    };
    const char *before = bad(std::max<const char *>(b.page, b.start - reach), b.start);
    const char *after = bad(b.start + b.bytes, b.page_end);
    if (before)
        dgsim_fault(nullptr, {}, "something wrote %zd bytes before an allocation of %zu bytes",
                    b.start - before, b.bytes);
    if (after)
        dgsim_fault(nullptr, {}, "something wrote %zd bytes past the end of an allocation of %zu bytes",
                    after - (b.start + b.bytes), b.bytes);
}

void dgsim_check_margins(void) {
    for (const dgsim_block *b : opened)
        if (b->live) check_margin(*b, 256);
}

bool dgsim_release(void *p, bool pinned) {
    dgsim_block *found = dgsim_find(p);
    if (!found || found->start != p || !found->live || found->pinned != pinned) return false;
    dgsim_block &b = *found;
    dgsim_open_device(true);
    check_margin(b, page_bytes);
    dgsim_open_device(false);
    b.live = false;
    dgsim_log_release(&b);
    const size_t pages = static_cast<size_t>(b.page_end - b.page);
    mmap(b.page, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (!pinned) used -= round_up(b.bytes, alignment);
    return true;
}

static void protect(const dgsim_block &b, int how) {
    if (mprotect(b.page, static_cast<size_t>(b.page_end - b.page), how)) abort();
}

/* While the device is open, the first access to an allocation opens it (on_signal): most calls touch few. */
void dgsim_open_device(bool open) {
    take_signals();
    if (open ? open_depth++ : --open_depth) return;
    for (const dgsim_block *b : opened)
        if (b->live) protect(*b, PROT_NONE);
    opened.clear();
}

static bool open_block(const char *p) {
    dgsim_block *b = open_depth ? dgsim_find(p) : nullptr;
    if (!b || !b->live || p < b->page || p >= b->page_end ||
        std::find(opened.begin(), opened.end(), b) != opened.end())
        return false;
    protect(*b, PROT_READ | PROT_WRITE);
    opened.push_back(b);
    return true;
}

/* --- shared memory --- */

void dgsim_prepare_kernel(const dgsim_launch_config &c) {
    running_statics = &find_statics(c.func).own;
    running_tls = tls_block();
    dgsim_dynamic_bytes = c.shared;
    dgsim_dynamic = dynamic_pages + dynamic_limit - round_up(c.shared, dynamic_alignment);
}

void *dgsim_dyn_shared(void) {
    return dgsim_dynamic;
}

void dgsim_prepare_block(void) {
    char *tls = running_tls;
    for (size_t i : *running_statics) {
        memset(tls + statics[i].offset, poison, statics[i].bytes);
        memset(tls + statics[i].offset + statics[i].bytes, margin_byte, statics[i].margin);
    }
    char *end = dynamic_pages + dynamic_limit;
    memset(dgsim_dynamic - 64, margin_byte, 64);
    memset(dgsim_dynamic, poison, dgsim_dynamic_bytes);
    memset(dgsim_dynamic + dgsim_dynamic_bytes, margin_byte,
           static_cast<size_t>(end - dgsim_dynamic) - dgsim_dynamic_bytes);
    dgsim_log_block();
}

void dgsim_check_shared(void) {
    char *tls = running_tls;
    for (size_t i : *running_statics) {
        const symbol &s = statics[i];
        const char *margin = tls + s.offset + s.bytes;
        for (size_t j = 0; j < s.margin; j++)
            if (static_cast<unsigned char>(margin[j]) != margin_byte)
                dgsim_fault(nullptr, {},
                            "a thread of the block wrote %zu bytes past the end of %s (%zu bytes)", j,
                            s.name.c_str(), s.bytes);
    }
    const char *end = dynamic_pages + dynamic_limit;
    for (const char *p = dgsim_dynamic - 64; p < end; p++) {
        if (p == dgsim_dynamic) p += dgsim_dynamic_bytes;
        if (p < end && static_cast<unsigned char>(*p) != margin_byte)
            dgsim_fault(nullptr, {},
                        "a thread of the block wrote at byte %zd of %zu bytes of dynamic shared memory",
                        p - dgsim_dynamic, dgsim_dynamic_bytes);
    }
}

char *dgsim_tls(size_t *bytes) {
    *bytes = tls_bytes;
    return running_tls;
}

bool dgsim_in_shared(const char *p) {
    const char *tls = running_tls;
    return (p >= tls && p < tls + tls_bytes) ||
           (p >= dynamic_pages && p < dynamic_pages + dynamic_limit + page_bytes);
}

bool dgsim_find_shared(const char *p, dgsim_region *out) {
    if (p >= dynamic_pages && p < dynamic_pages + dynamic_limit + page_bytes) {
        *out = {dgsim_dynamic, dgsim_dynamic_bytes, "dynamic shared memory"};
        return true;
    }
    char *tls = running_tls;
    const size_t offset = static_cast<size_t>(p - tls);
    auto it = std::upper_bound(statics.begin(), statics.end(), offset,
                               [](size_t at, const symbol &s) { return at < s.offset; });
    if (it == statics.begin()) return false;
    --it;
    const size_t i = static_cast<size_t>(it - statics.begin());
    *out = {tls + it->offset, it->bytes, it->name.c_str()};
    return std::binary_search(running_statics->begin(), running_statics->end(), i);
}

/* --- who touched a guard --- */

void dgsim_fault_global(const void *pc, dgsim_place place, const char *p, size_t bytes, const char *verb) {
    const dgsim_block *b = dgsim_find(p);
    const char *kind = b && b->pinned ? "pinned" : "device";
    if (!b)
        dgsim_fault(pc, place, "%s address %p, which is no memory of the device", verb,
                    static_cast<const void *>(p));
    if (!b->live)
        dgsim_fault(pc, place, "%s %s memory that has been freed (byte %zd of %zu)", verb, kind, p - b->start,
                    b->bytes);
    if (p < b->start)
        dgsim_fault(pc, place, "%s out of bounds: %zd bytes before %s memory of %zu bytes", verb,
                    b->start - p, kind, b->bytes);
    if (p + bytes > b->start + b->bytes)
        dgsim_fault(pc, place, "%s out of bounds: byte %zd of %s memory of %zu bytes", verb, p - b->start,
                    kind, b->bytes);
    dgsim_fault(pc, place, "%s %s memory, byte %zd of %zu: only kernels and copies may", verb, kind,
                p - b->start, b->bytes);
}

static void on_signal(int sig, siginfo_t *info, void *context) {
    const char *p = static_cast<const char *>(info->si_addr);
    const ucontext_t *uc = static_cast<const ucontext_t *>(context);
#if defined(__x86_64__)
    const void *pc = reinterpret_cast<const void *>(uc->uc_mcontext.gregs[REG_RIP] + 1);
#else
    const void *pc = reinterpret_cast<const void *>(uc->uc_mcontext.pc + 4);
#endif
    if (dgsim_in_arena(p) && open_block(p)) return;
    if (dgsim_in_arena(p))
        dgsim_fault_global(pc, {}, p, 1, dgsim_running ? "a thread accesses" : "host code accesses");
    if (dgsim_running) {
        if (p >= dynamic_pages - dynamic_limit && p < dynamic_pages + 2 * dynamic_limit)
            dgsim_fault(pc, {}, "shared memory out of bounds: byte %zd of %zu bytes of dynamic shared memory",
                        p - dgsim_dynamic, dgsim_dynamic_bytes);
        if (dgsim_on_stack(p + (64 << 10), 1)) dgsim_fault(pc, {}, "a thread's stack overflows");
        dgsim_fault(pc, {}, "a thread accesses address %p, which is no memory of the device", info->si_addr);
    }
    sigaction(sig, &old_action[sig == SIGBUS], nullptr); /* not ours: it happens again under the old one */
}
