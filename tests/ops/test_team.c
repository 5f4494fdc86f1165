/* The team of threads, many more than cores; several callers of one backend; and everything that can keep a
 * backend from opening. */
#include "tests/ops/ops.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

/* ---- team ---- */

enum { MAX_CHUNKS = 300 };

typedef struct counts {
    atomic_int ran[MAX_CHUNKS], busy[64], wrong;
    int32_t n_worker, n_chunk;
    int plain; /* written in one job, read in the next: the team orders them */
} counts;

static void count(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    counts *c = arg;
    if (n_chunk != c->n_chunk || worker < 0 || worker >= c->n_worker) atomic_fetch_add(&c->wrong, 1);
    if (atomic_fetch_add(&c->busy[worker], 1) != 0)
        atomic_fetch_add(&c->wrong, 1); /* two at once on one scratch */
    atomic_fetch_add(&c->ran[chunk], 1);
    atomic_fetch_sub(&c->busy[worker], 1);
}

static void write_plain(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    counts *c = arg;
    (void)worker, (void)n_chunk;
    if (chunk == 0) c->plain++;
}

static void read_plain(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    counts *c = arg;
    (void)worker, (void)n_chunk;
    if (c->plain != atomic_load(&c->ran[chunk])) atomic_fetch_add(&c->wrong, 1);
}

static void test_team(void **state) {
    (void)state;
    static const int32_t size[] = {1, 2, 3, 8, 33}, spin[] = {0, 50, 2000}, chunks[] = {1, 2, 7, MAX_CHUNKS};
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < (size[i] > 8 ? 2 : 3); k++)
            for (size_t m = 0; m < 4; m++) {
                const int32_t n = size[i], runs = n > 8 ? 30 : 100;
                void *mem = dg_mem_alloc(dg_team_bytes(n));
                dg_team *team = dg_team_open(mem, n, spin[k]);
                assert_non_null(team);
                counts c = {.n_worker = n, .n_chunk = chunks[m]};
                for (int r = 1; r <= runs; r++) {
                    dg_team_run(team, c.n_chunk, count, &c);
                    dg_team_run(team, 2, write_plain, &c);
                    dg_team_run(team, c.n_chunk, read_plain, &c);
                    if (r % 50 == 0) usleep(3000); /* long enough to fall asleep */
                }
                for (int32_t w = 0; w < c.n_chunk; w++) assert_int_equal(c.ran[w], runs);
                assert_int_equal(c.wrong, 0);
                dg_team_close(team);
                dg_mem_free(mem);
            }
}

static void test_split(void **state) {
    (void)state;
    for (int32_t n = 0; n < 70; n++)
        for (int32_t grain = 1; grain <= 9; grain += 4)
            for (int32_t workers = 1; workers < 12; workers++) {
                int32_t begin, end, at = 0, most = 0, least = INT32_MAX;
                for (int32_t w = 0; w < workers; w++) {
                    dg_split(n, grain, w, workers, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && (begin % grain == 0 || begin == n));
                    at = end;
                    if (end - begin > most) most = end - begin;
                    if (end - begin < least) least = end - begin;
                }
                assert_int_equal(at, n);
                assert_true(most - least < 2 * grain);
            }
}

/* ---- one backend, several callers ---- */

enum { ROWS = 6, K = 512, M = 333 };

typedef struct caller {
    dg_backend *be;
    dg_mat x, w, want;
    uint64_t seed;
    bool fine;
    pthread_t thread;
} caller;

static void *call(void *arg) {
    caller *c = arg;
    dg_mat out = mat_new(DG_F32, ROWS, M, 0);
    c->fine = true;
    for (int i = 0; i < 150; i++) {
        const int32_t n = 1 + i % ROWS;
        dg_matmul(c->be, dg_mat_rows(out, 0, n), dg_mat_rows(c->x, 0, n), c->w, (dg_mat){0}, false);
        for (int32_t r = 0; r < n; r++)
            c->fine &= memcmp(dg_mat_row(&out, r), dg_mat_row(&c->want, r), M * sizeof(float)) == 0;
    }
    mat_free(out);
    return NULL;
}

static void test_callers(void **state) {
    (void)state;
    enum { CALLERS = 4 };
    dg_backend *be = open_cpu(NULL, 8); /* more than this machine is likely to have */
    caller c[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (caller){.be = be, .seed = (uint64_t)i + 1};
        c[i].x = mat_new(DG_F32, ROWS, K, 0);
        c[i].w = mat_new(DG_Q4_1, M, K, 0);
        c[i].want = mat_new(DG_F32, ROWS, M, 0);
        mat_random(c[i].x, 1, &c[i].seed);
        mat_random_blocks(c[i].w, &c[i].seed);
        dg_matmul(be, c[i].want, c[i].x, c[i].w, (dg_mat){0}, false);
    }
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_create(&c[i].thread, NULL, call, &c[i]), 0);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(c[i].thread, NULL);
        assert_true(c[i].fine);
        mat_free(c[i].x);
        mat_free(c[i].w);
        mat_free(c[i].want);
    }
    dg_backend_close(be);
}

/* ---- opening ---- */

static void note_chunks(void *arg, int32_t worker, int32_t chunk, int32_t n_chunk) {
    (void)worker, (void)chunk;
    atomic_store((atomic_int *)arg, n_chunk);
}

/* Work of any size falls into as many chunks for every thread, more of them the more there is; a trifle stays with the caller. */
static void test_chunks_are_even(void **state) {
    (void)state;
    for (int32_t threads = 2; threads <= 5; threads++) {
        dg_backend *be = open_cpu(NULL, threads);
        assert_non_null(be);
        dg_cpu *cpu = dg_cpu_of(be);
        int32_t before = 0;
        for (int64_t work = 1; work < (int64_t)1 << 34; work = work * 5 / 4 + 1) {
            atomic_int n = 0;
            dg_cpu_run(cpu, work, note_chunks, &n);
            assert_true(n == 1 || n % threads == 0);
            assert_true(n >= before);
            before = n;
        }
        assert_true(before > 4 * threads);
        dg_backend_close(be);
    }
}

static void test_open(void **state) {
    (void)state;
    const char *why = NULL;
    dg_backend_options opt = {
        .threads = 2, .max_vocab = 1000, .alloc = dg_mem_alloc, .free = dg_mem_free};
    assert_null(dg_backend_open("abacus", &opt, &why));
    assert_string_equal(why, "no such device; known are cpu, cuda and cuda:N");
    assert_null(dg_backend_open("abacus", &opt, NULL));
    assert_int_equal(dg_backend_bytes("abacus", &opt), 0);

    opt.isa = "mmx";
    assert_null(dg_backend_open("cpu", &opt, &why));
    assert_string_equal(why, "no such instruction set on this machine");
    opt.isa = "portable";
    dg_backend *be = dg_backend_open("cpu", &opt, &why);
    assert_non_null(be);
    assert_string_equal(dg_backend_describe(be), "cpu, portable, 2 threads");
    dg_backend_close(be);

    setenv("DG_ISA", "portable", 1);
    opt.isa = NULL;
    opt.threads = 1;
    be = dg_backend_open("cpu", &opt, &why);
    assert_string_equal(dg_backend_describe(be), "cpu, portable, 1 thread");
    dg_backend_close(be);
    setenv("DG_ISA", "mmx", 1);
    assert_null(dg_backend_open("cpu", &opt, &why));
    unsetenv("DG_ISA");

    opt.threads = 0; /* one a core */
    opt.alloc = NULL, opt.free = NULL;
    be = dg_backend_open("cpu", &opt, &why);
    assert_non_null(be);
    dg_backend_close(be);
    assert_int_equal(dg_mem_live(), 0);
}

static size_t counted;
static void *counted_alloc(size_t bytes) {
    counted += bytes;
    return dg_mem_alloc(bytes);
}

/* What is announced is what is taken; without it nothing opens and nothing leaks. */
static void test_memory(void **state) {
    (void)state;
    const char *why = NULL;
    dg_backend_options opt = {
        .threads = 3, .max_vocab = 54321, .alloc = counted_alloc, .free = dg_mem_free};
    counted = 0;
    dg_backend *be = dg_backend_open("cpu", &opt, &why);
    assert_non_null(be);
    assert_int_equal(counted, dg_backend_bytes("cpu", &opt));
    dg_backend_close(be);
    for (uint64_t nth = 1;; nth++) {
        dg_mem_fail_nth(nth, 0);
        be = dg_backend_open("cpu", &opt, &why);
        dg_mem_fail_nth(0, 0);
        if (be) break;
        assert_string_equal(why, "not enough memory for the backend");
        assert_int_equal(dg_mem_live(), 0);
    }
    dg_backend_close(be);
    opt.max_vocab = INT32_MAX;
    opt.threads = 256;
    assert_true(dg_backend_bytes("cpu", &opt) > ((size_t)1 << 40));
    assert_int_equal(dg_mem_live(), 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void test_no_threads(void **state) {
    (void)state;
    skip(); /* a sanitizer's own memory does not fit under the limit */
}
#else
/* A process without room for more stacks: open fails and says so. In a child, which can be spoilt. */
static void test_no_threads(void **state) {
    (void)state;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const dg_backend_options opt = {.threads = 200};
        const char *why = "";
        const struct rlimit limit = {512u << 20, 512u << 20};
        setrlimit(RLIMIT_AS, &limit); /* about 60 stacks of 8 MiB */
        dg_backend *be = dg_backend_open("cpu", &opt, &why);
        _exit(be ? 1 : strcmp(why, "cannot start the backend's threads") == 0 ? 0 : 2);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_team), cmocka_unit_test(test_split),  cmocka_unit_test(test_callers),
        cmocka_unit_test(test_chunks_are_even),
        cmocka_unit_test(test_open), cmocka_unit_test(test_memory), cmocka_unit_test(test_no_threads),
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
