/* A team of threads that lives as long as the backend.
 *
 * A job is a number of chunks that whoever has time claims one by one, the caller among them; it is over when
 * all chunks are done, so a member that the system does not run holds nobody up. Generation, size and next
 * chunk of a job are one atomic word, the ticket: a claim that succeeds proves that the job is still open,
 * and only then are its other fields read. Whoever waits, for work or for the last chunk, spins for a while
 * and then sleeps on a condition; sleepers announce themselves before they look a last time, so that a waker
 * who sees none need not take the lock. */
#include <assert.h>
#include <signal.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"

typedef struct member {
    dg_team *team;
    int32_t index;
    pthread_t thread;
} member;

struct dg_team {
    int32_t n, spin;
    dg_team_fn *fn;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_int leave;
    _Alignas(64) atomic_uint_least64_t ticket; /* generation << 32 | chunks << 16 | next chunk */
    atomic_int sleeping;                       /* members asleep */
    _Alignas(64) atomic_int undone;            /* chunks of the job that are not finished */
    atomic_int caller_asleep;
    _Alignas(64) member member[];
};

enum { CHUNK_BITS = 16, MAX_CHUNKS = (1 << CHUNK_BITS) - 1 };

static uint32_t generation_of(uint64_t ticket) { return (uint32_t)(ticket >> 2 * CHUNK_BITS); }
static int32_t chunks_of(uint64_t ticket) { return (int32_t)(ticket >> CHUNK_BITS & MAX_CHUNKS); }
static int32_t next_of(uint64_t ticket) { return (int32_t)(ticket & MAX_CHUNKS); }

size_t dg_team_bytes(int32_t n) { return sizeof(dg_team) + (size_t)n * sizeof(member); }

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Works on the job of this generation until all its chunks are claimed. */
static void work(dg_team *t, int32_t worker, uint32_t generation) {
    uint64_t ticket = atomic_load(&t->ticket);
    while (generation_of(ticket) == generation && next_of(ticket) < chunks_of(ticket)) {
        if (!atomic_compare_exchange_weak(&t->ticket, &ticket, ticket + 1)) continue;
        t->fn(t->arg, worker, next_of(ticket), chunks_of(ticket));
        if (atomic_fetch_sub(&t->undone, 1) == 1 && atomic_load(&t->caller_asleep)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->done);
            pthread_mutex_unlock(&t->lock);
        }
        ticket = atomic_load(&t->ticket);
    }
}

/* Returns the generation that follows `seen`. */
static uint32_t await_work(dg_team *t, uint32_t seen) {
    uint32_t now;
    for (int32_t i = 0; i < t->spin; i++) {
        if ((now = generation_of(atomic_load_explicit(&t->ticket, memory_order_acquire))) != seen) return now;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleeping, 1);
    while ((now = generation_of(atomic_load(&t->ticket))) == seen) pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleeping, 1);
    pthread_mutex_unlock(&t->lock);
    return now;
}

static void *member_main(void *arg) {
    const member *self = arg;
    dg_team *t = self->team;
    uint32_t seen = 0;
    for (;;) {
        seen = await_work(t, seen);
        if (atomic_load(&t->leave)) return NULL;
        work(t, self->index, seen);
    }
}

static uint32_t start_generation(dg_team *t, int32_t n_chunk) {
    const uint32_t generation = generation_of(atomic_load(&t->ticket)) + 1;
    atomic_store(&t->ticket, (uint64_t)generation << 2 * CHUNK_BITS | (uint64_t)n_chunk << CHUNK_BITS);
    if (atomic_load(&t->sleeping)) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
    return generation;
}

void dg_team_run(dg_team *t, int32_t n_chunk, dg_team_fn *fn, void *arg) {
    assert(n_chunk > 0 && n_chunk <= MAX_CHUNKS);
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->undone, n_chunk);
    work(t, 0, start_generation(t, n_chunk));
    for (int32_t i = 0; i < t->spin; i++) {
        if (atomic_load_explicit(&t->undone, memory_order_acquire) == 0) return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->caller_asleep, 1);
    while (atomic_load(&t->undone)) pthread_cond_wait(&t->done, &t->lock);
    atomic_store(&t->caller_asleep, 0);
    pthread_mutex_unlock(&t->lock);
}

void dg_team_close(dg_team *t) {
    if (!t) return;
    atomic_store(&t->leave, 1);
    start_generation(t, 0);
    for (int32_t i = 1; i < t->n; i++) pthread_join(t->member[i].thread, NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
}

dg_team *dg_team_open(void *mem, int32_t n, int32_t spin) {
    dg_team *t = mem;
    t->n = 1;
    t->spin = spin;
    t->fn = NULL;
    atomic_init(&t->leave, 0);
    atomic_init(&t->ticket, 0);
    atomic_init(&t->sleeping, 0);
    atomic_init(&t->undone, 0);
    atomic_init(&t->caller_asleep, 0);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->done, NULL);

    sigset_t all, before; /* signals are the application's business, on its own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (; t->n < n; t->n++) {
        member *m = &t->member[t->n];
        *m = (member){.team = t, .index = t->n};
        if (pthread_create(&m->thread, NULL, member_main, m)) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->n == n) return t;
    dg_team_close(t);
    return NULL;
}
