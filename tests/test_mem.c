/* Status messages, allocation hooks and the arena. */
#include "tests/test.h"

static void test_messages(void **state) {
    (void)state;
    assert_int_equal(dg_fail(DG_ERR_IO, "cannot open %s", "x"), DG_ERR_IO);
    assert_string_equal(dg_error_message(), "cannot open x");
    assert_int_equal(dg_fail_prefix(DG_ERR_FORMAT, "model %d", 7), DG_ERR_FORMAT);
    assert_string_equal(dg_error_message(), "model 7: cannot open x");
    assert_int_equal(dg_fail(DG_ERR_IO, "again: %s", dg_error_message()), DG_ERR_IO);
    assert_string_equal(dg_error_message(), "again: model 7: cannot open x");
    assert_string_equal(dg_status_name(DG_ERR_CONTEXT_FULL), "context full");
    assert_string_equal(dg_status_name((dg_status)99), "unknown");
}

static void test_alloc(void **state) {
    (void)state;
    const int64_t live = dg_mem_live();
    char *p = dg_mem_alloc(0);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    dg_mem_free(p);
    assert_null(dg_mem_calloc(SIZE_MAX / 2, 4));
    assert_null(dg_mem_alloc(SIZE_MAX));
    p = dg_mem_strdup("abc");
    p = dg_mem_grow(p, 4, 100);
    assert_string_equal(p, "abc");
    dg_mem_free(p);
    assert_int_equal(dg_mem_live(), live);

    dg_mem_fail_nth(2, 0);
    char *a = dg_mem_alloc(1), *b = dg_mem_alloc(1), *c = dg_mem_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(dg_mem_fail_nth(0, 0), 3);
    dg_mem_free(a), dg_mem_free(c);
}

/* What does not fit into memory at all must not come out as a small need. */
static void test_arena_overflow(void **state) {
    (void)state;
    static const size_t n[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        dg_arena a = {0};
        dg_arena_take(&a, n[i], 8);
        dg_arena_take(&a, n[i], 4); /* and stays so */
        dg_arena_take(&a, 100, 1);
        assert_null(dg_mem_alloc(a.used));
    }
}

static void test_arena(void **state) {
    (void)state;
    dg_arena a = {0};
    assert_null(dg_arena_take(&a, 3, 5));
    assert_null(dg_arena_take(&a, 1, 65));
    assert_int_equal(a.used, 64 + 128);
    a = (dg_arena){dg_mem_alloc(a.used), 0, a.used};
    char *p = dg_arena_take(&a, 3, 5), *q = dg_arena_take(&a, 1, 65);
    assert_ptr_equal(p, a.base);
    assert_ptr_equal(q, a.base + 64);
    dg_mem_free(a.base);
}

int main(void) {
    const struct CMUnitTest t[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_alloc),
                                   cmocka_unit_test(test_arena), cmocka_unit_test(test_arena_overflow)};
    return cmocka_run_group_tests_name("mem", t, NULL, NULL);
}
