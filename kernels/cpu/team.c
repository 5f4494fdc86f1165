/* A team of threads that lives as long as the backend. A run is one step of a generation counter; whoever
 * waits, for work or for the others to finish, spins for a while and then sleeps on a condition. Sleepers
 * announce themselves before they look a last time, so that a waker who sees none need not take the lock. */
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
    dg_team_fn *fn; /* NULL: leave */
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    _Alignas(64) atomic_uint generation;
    atomic_int sleeping; /* members asleep */
    _Alignas(64) atomic_int running; /* members not done with this generation */
    atomic_int caller_asleep;
    _Alignas(64) member member[];
};

size_t dg_team_bytes(int32_t n) { return sizeof(dg_team) + (size_t)n * sizeof(member); }

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns the generation that follows `seen`. */
static unsigned await_work(dg_team *t, unsigned seen) {
    unsigned now;
    for (int32_t i = 0; i < t->spin; i++) {
        if ((now = atomic_load_explicit(&t->generation, memory_order_acquire)) != seen) return now;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleeping, 1);
    while ((now = atomic_load(&t->generation)) == seen) pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleeping, 1);
    pthread_mutex_unlock(&t->lock);
    return now;
}

static void *member_main(void *arg) {
    const member *self = arg;
    dg_team *t = self->team;
    unsigned seen = 0;
    for (;;) {
        seen = await_work(t, seen);
        dg_team_fn *fn = t->fn;
        if (!fn) return NULL;
        fn(t->arg, self->index, t->n);
        if (atomic_fetch_sub(&t->running, 1) == 1 && atomic_load(&t->caller_asleep)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->done);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static void start_generation(dg_team *t, dg_team_fn *fn, void *arg) {
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->running, t->n - 1, memory_order_relaxed);
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->sleeping)) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
}

void dg_team_run(dg_team *t, dg_team_fn *fn, void *arg) {
    start_generation(t, fn, arg);
    fn(arg, 0, t->n);
    for (int32_t i = 0; i < t->spin; i++) {
        if (atomic_load_explicit(&t->running, memory_order_acquire) == 0) return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->caller_asleep, 1);
    while (atomic_load(&t->running)) pthread_cond_wait(&t->done, &t->lock);
    atomic_store(&t->caller_asleep, 0);
    pthread_mutex_unlock(&t->lock);
}

void dg_team_close(dg_team *t) {
    if (!t) return;
    start_generation(t, NULL, NULL);
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
    atomic_init(&t->generation, 0);
    atomic_init(&t->sleeping, 0);
    atomic_init(&t->running, 0);
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
