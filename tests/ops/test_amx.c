/* AMX tiles: the software model that other tests compute by, the trial before tiles are believed, and the choice. That
 * amx has the bits of avx512 is in test_matmul. */
#include "tests/ops/ops.h"

#include <signal.h>

#include "kernels/cpu/amx_model.h"
#include "kernels/cpu/cpu.h"

/* ---- the model ---- */

static void set_shape(uint8_t config[64], int tile, int rows, int bytes) {
    config[16 + 2 * tile] = (uint8_t)bytes;
    config[48 + tile] = (uint8_t)rows;
}

/* Two rows of eight columns by eight columns of three outputs, worked by hand. */
static void test_model_product(void **state) {
    (void)state;
    uint8_t config[64] = {1};
    set_shape(config, 0, 2, 12);
    set_shape(config, 3, 2, 8);
    set_shape(config, 7, 2, 12);
    const int8_t a[2][8] = {{1, -2, 3, -4, 5, -6, 7, -8}, {-128, 127, 0, 0, 0, 0, 0, -1}};
    const uint8_t b[2][12] = {
        {1, 1, 1, 1, 255, 0, 0, 0, 10, 20, 30, 40}, /* columns 0..3 of each output */
        {1, 1, 1, 1, 0, 0, 0, 255, 50, 60, 70, 80}, /* columns 4..7 */
    };
    int32_t c[2][3] = {{1000, 0, 0}, {0, 0, -5}};
    tile_config(config);
    tile_load(0, c, sizeof c[0]);
    tile_load(3, a, sizeof a[0]);
    tile_load(7, b, sizeof b[0]);
    tile_dot(0, 3, 7);
    tile_store(0, c, sizeof c[0]);
    const int32_t want[2][3] = {{1000 - 4, 255 - 8 * 255, -100 - 260}, {-2, -128 * 255 - 255, -1280 + 2540 - 80 - 5}};
    assert_memory_equal(c, want, sizeof c);
    tile_dot(0, 3, 7); /* accumulates */
    tile_store(0, c, sizeof c[0]);
    assert_int_equal(c[0][0], 1000 - 8);
    assert_int_equal(c[1][1], 2 * (-128 * 255 - 255));
    tile_zero(0);
    tile_dot(0, 3, 7);
    tile_store(0, c, sizeof c[0]);
    assert_int_equal(c[0][0], -4);
    tile_release();
}

/* A tile is as large as configured, in memory and in the register. */
static void test_model_shapes(void **state) {
    (void)state;
    uint8_t config[64] = {1}, from[3][64], to[4][64];
    set_shape(config, 2, 3, 8);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < 64; i++) from[r][i] = (uint8_t)(64 * r + i);
    memset(to, 0xee, sizeof to);
    tile_config(config);
    memset(tiles.data[2], 0xdd, sizeof tiles.data[2]);
    tile_load(2, from, 64);
    tile_store(2, to[2], -64);
    for (int r = 0; r < 3; r++) {
        assert_memory_equal(to[2 - r], from[r], 8);
        assert_int_equal(to[r][8], 0xee);
        assert_int_equal(tiles.data[2][r][8], 0);
    }
    assert_int_equal(to[3][0], 0xee);
    assert_int_equal(tiles.data[2][3][0], 0);
    tile_release();
    assert_int_equal(tiles.palette, 0);
    assert_int_equal(tiles.rows[2], 0);
}

/* ---- trials ---- */

static volatile sig_atomic_t seen;
static void application(int sig) { seen = sig; }

static bool fine(void) { return true; }
static bool wrong(void) { return false; }
static bool illegal(void) { return raise(SIGILL) == 0; }
static bool outside(void) { return raise(SIGSEGV) == 0; }
static bool instruction(void) { __builtin_trap(); }

static void *fault_elsewhere(void *unused) {
    (void)unused;
    raise(SIGILL);
    return NULL;
}

static bool beside_a_fault(void) {
    pthread_t thread;
    return pthread_create(&thread, NULL, fault_elsewhere, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

static void *try_illegal(void *ok) {
    for (int i = 0; i < 200; i++) *(bool *)ok |= dg_try(illegal);
    return NULL;
}

static void check_handlers(void) {
    const int fault[] = {SIGILL, SIGSEGV};
    for (int i = 0; i < 2; i++) {
        struct sigaction now;
        sigaction(fault[i], NULL, &now);
        assert_ptr_equal(now.sa_handler, application);
        seen = 0;
        raise(fault[i]);
        assert_int_equal(seen, fault[i]);
    }
}

static void test_trial(void **state) {
    (void)state;
    struct sigaction mine = {.sa_handler = application}, before[2];
    sigaction(SIGILL, &mine, &before[0]);
    sigaction(SIGSEGV, &mine, &before[1]);
    assert_true(dg_try(fine));
    check_handlers();
    assert_false(dg_try(wrong));
    check_handlers();
    seen = 0;
    assert_false(dg_try(illegal));
    assert_false(dg_try(outside));
#ifdef __x86_64__
    assert_false(dg_try(instruction));
#else
    (void)instruction;
#endif
    assert_int_equal(seen, 0);
    check_handlers();

    seen = 0;
    assert_true(dg_try(beside_a_fault));
    assert_int_equal(seen, SIGILL);

    /* blocked signals stay blocked */
    sigset_t ill, old, now;
    sigemptyset(&ill);
    sigaddset(&ill, SIGILL);
    pthread_sigmask(SIG_BLOCK, &ill, &old);
    assert_false(dg_try(illegal));
    pthread_sigmask(SIG_SETMASK, &old, &now);
    assert_true(sigismember(&now, SIGILL));
    assert_false(sigismember(&now, SIGSEGV));

    /* several threads at once */
    pthread_t thread[4];
    bool ok[4] = {0};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, try_illegal, &ok[i]), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < 4; i++) assert_false(ok[i]);
    check_handlers();
    sigaction(SIGILL, &before[0], NULL);
    sigaction(SIGSEGV, &before[1], NULL);
}

#if defined(__x86_64__) && defined(__linux__)

/* The trial's product by the model, and by something that multiplies wrongly. */
static void nothing(const dg_packed_args *a, int32_t p0, int32_t p1, dg_strip *strip, float (*sums)[DG_PACK_OUTS]) {
    (void)p0, (void)p1, (void)strip, (void)sums;
    for (int32_t r = 0; r < a->out.rows; r++) memset(f32_at(a->out, r, 0), 0, DG_PACK_OUTS * sizeof(float));
}

static void test_agreement(void **state) {
    (void)state;
    const dg_isa *model = dg_isa_get("amx-model");
    if (!model) skip();
    assert_true(dg_amx_agrees(model));
    dg_isa broken = *model;
    broken.matmul_packed = nothing;
    assert_false(dg_amx_agrees(&broken));
}

#endif

/* ---- the choice ---- */

/* amx where it works; else it is refused by name as any other, and nobody notices otherwise. */
static void test_choice(void **state) {
    (void)state;
    const bool vectors = dg_isa_get("avx512") != NULL, works = vectors && dg_amx_works();
    assert_int_equal(dg_isa_get("amx") != NULL, works);
    assert_int_equal(dg_isa_get("amx-model") != NULL, vectors);
    const char *best = dg_isa_get(NULL)->name;
    if (vectors)
        assert_string_equal(best, works ? "amx" : "avx512");
    else
        assert_string_not_equal(best, "amx-model");

    dg_backend_options opt = {.threads = 1, .isa = "amx", .alloc = dg_mem_alloc, .free = dg_mem_free};
    const char *why = "";
    dg_backend *be = dg_backend_open("cpu", &opt, &why);
    if (works)
        assert_string_equal(dg_backend_describe(be), "cpu, amx, 1 thread");
    else
        assert_string_equal(why, "no such instruction set on this machine");
    dg_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_product),
        cmocka_unit_test(test_model_shapes),
        cmocka_unit_test(test_trial),
#if defined(__x86_64__) && defined(__linux__)
        cmocka_unit_test(test_agreement),
#endif
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
