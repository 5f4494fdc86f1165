/* What the simulator's files share. exec.cpp runs blocks, warp.cpp holds what the lanes of a warp do
 * together, memory.cpp device and shared memory with their guards, access.cpp the checks of single accesses,
 * runtime.cpp and device.cpp the host's interface, blas.cpp cuBLASLt. One mutex: one host thread at a time
 * is inside. */
#ifndef DGSIM_INTERNAL_H
#define DGSIM_INTERNAL_H

#include <cstdio>
#include <functional>
#include <mutex>
#include <vector>
#include "include/dgsim.h"
#include "sim.h"

struct dgsim_index {
    unsigned x, y, z;
};
struct dgsim_place {
    const char *file;
    int line;
};

struct dgsim_copy {
    void *dst;
    const void *src;
    unsigned bytes, group;
    dgsim_place place;
};

enum dgsim_state { DGSIM_READY, DGSIM_AT_BARRIER, DGSIM_AT_WARP, DGSIM_DONE };

struct dgsim_thread {
    dgsim_index index;
    int number; /* in the block; lane number % 32 of warp number / 32 */
    dgsim_state state;
    struct dgsim_fibre *fibre; /* nullptr before it starts and after it ends */
    int op;                    /* what it waits in: dgsim_vote or dgsim_warp_op */
    int predicate, result;     /* of a barrier */
    unsigned mask;             /* of a warp op */
    void *io;
    dgsim_place place;
    std::vector<dgsim_copy> copies; /* asynchronous ones that no wait has covered yet */
    unsigned group;                 /* that copies belong to now */
};

/* --- exec.cpp --- */
extern const dgsim_launch_config *dgsim_running; /* nullptr: the host runs */
extern dgsim_thread *dgsim_current;              /* nullptr: between threads */
extern std::vector<dgsim_thread> dgsim_threads;
extern uint64_t dgsim_block_serial; /* of the running block, unique in the process */
extern uint32_t dgsim_block_number; /* of the running block, in the grid */
extern uint32_t dgsim_phase;        /* barriers that the block has passed */
void dgsim_run(const dgsim_launch_config &k);
void dgsim_enter(dgsim_thread *t);                    /* makes it the current one */
bool dgsim_on_own_stack(const char *p, size_t bytes); /* of the current thread */
bool dgsim_on_stack(const char *p, size_t bytes);     /* of any in the block */

/* Function, file and line of code, as far as they can be had. */
void dgsim_locate(const void *pc, char *out, size_t n);

/* Reports kernel, block, thread and the message, then ends the process with DGSIM_EXIT. pc: the code that did
 * it, or nullptr; place: likewise, where that is known. */
[[noreturn]] void dgsim_fault(const void *pc, dgsim_place place, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* --- warp.cpp --- */
const char *dgsim_warp_name(int op);
void dgsim_warp_complete(int op, unsigned mask, dgsim_thread *lanes);

/* --- memory.cpp --- */
struct dgsim_block { /* an allocation */
    char *start;
    size_t bytes;
    char *page, *page_end; /* its pages, between two that nobody can touch */
    bool pinned, live;
    struct dgsim_word_log *words; /* access.cpp's, from page on; nullptr: none */
    size_t n_words;
    long written; /* the last launch that has written here */
};

void *dgsim_alloc(size_t bytes, bool pinned); /* nullptr: no memory */
bool dgsim_release(void *p, bool pinned);     /* checks the margins; false: no such allocation */
dgsim_block *dgsim_find(const void *p);       /* whose pages or guards hold p, live or not; nullptr: none */
extern char *dgsim_arena;                     /* all allocations lie in it */
constexpr size_t dgsim_arena_bytes = size_t{1} << 37;
inline bool dgsim_in_arena(const void *p) {
    return static_cast<size_t>(static_cast<const char *>(p) - dgsim_arena) < dgsim_arena_bytes;
}
size_t dgsim_used(void);
/* Calls nest. Host code cannot touch device memory while it is closed. */
void dgsim_open_device(bool open);
void dgsim_check_margins(void); /* of what has been touched since the device was opened */

/* Shared memory: prepare_block poisons it, check_shared looks at the margins when the block has ended. */
void dgsim_prepare_kernel(const dgsim_launch_config &c);
void dgsim_prepare_block(void);
void dgsim_check_shared(void);
size_t dgsim_static_bytes(const void *func); /* that a kernel declares itself */
bool dgsim_in_shared(const char *p);
char *dgsim_tls(size_t *bytes); /* where static shared variables lie: the host thread's own variables */
struct dgsim_region {
    char *start;
    size_t bytes;
    const char *name;
};
/* The variable that holds p or ends before it; false: none, or another kernel's. */
bool dgsim_find_shared(const char *p, dgsim_region *out);
extern char *dgsim_dynamic; /* the running block's dynamic shared memory */
extern size_t dgsim_dynamic_bytes;

/* An access to global memory that is not allowed: says why and ends. */
[[noreturn]] void dgsim_fault_global(const void *pc, dgsim_place place, const char *p, size_t bytes,
                                     const char *verb);

/* --- access.cpp: what is known of memory byte by byte, where kernels log their accesses --- */
void dgsim_check_as(dgsim_thread *t, const void *p, size_t bytes, size_t align, dgsim_access how);
void dgsim_log_pending(const void *p, size_t bytes); /* a copy is under way: nobody may read it */
void dgsim_log_warp_sync(unsigned mask, dgsim_thread *lanes);
void dgsim_log_release(dgsim_block *b);
void dgsim_log_block(void); /* a block begins */

/* --- device.cpp --- */
extern cudaError_t dgsim_lost;         /* why the device is, until it is reset */
cudaError_t dgsim_done(cudaError_t e); /* every call of the interface ends with it */
/* A wrong argument is a bug of the caller, which a status alone tells too little of. */
cudaError_t dgsim_wrong(cudaError_t e, const char *what);
cudaError_t dgsim_device_state(void); /* whether there is one */

/* --- runtime.cpp --- */
extern std::recursive_mutex dgsim_mutex;
cudaError_t dgsim_push(cudaStream_t s, std::function<void()> run);
bool dgsim_registered(const char *p, size_t bytes); /* by cudaHostRegister */

#endif
