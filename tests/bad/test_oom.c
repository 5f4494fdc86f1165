/* The n-th allocation fails, for every n in opening a model, creating a session and running it: a MEMORY (or DEVICE: no
 * backend) error each time, nothing leaks, and a later try works. */
#include "tests/test.h"

#include "runtime/session.h"
#include "tests/fixture.h"

static char dir[FIXTURE_KINDS][256], text_file[256];

static dg_status whole_life(int target) {
    static const int32_t prompt[6] = {40, 71, 96, 101, 13, 96};
    dg_model *m = NULL;
    dg_session *s = NULL;
    DG_TRY(dg_model_open(dir[target], &(dg_model_options){.threads = 2}, &m));
    const dg_draft /* few nodes each, so that all have a turn */
        draft[7] = {{"ngram", NULL, NULL}, {"eagle3", dir[3], "depth=1,topk=2"}, {"dflash", dir[2], "tree=1,width=1"},
                    {"pld", NULL, NULL}, {"recycling", NULL, NULL}, {"graft", text_file, NULL}, {"fused", NULL, NULL}};
    const char *const stop[1] = {"zzz"};
    const dg_session_options o = {.context = 64, .draft = draft, .n_draft = 7, .stop = stop, .n_stop = 1};
    dg_memory_plan plan;
    dg_status st = dg_session_plan(m, &o, &plan);
    if (st == DG_OK) st = dg_session_create(m, &o, &s);
    if (st == DG_OK) st = dg_session_sync(s, prompt, 6);
    if (st == DG_OK) st = dg_session_generate(s, 8, NULL, NULL, NULL);
    dg_session_free(s);
    dg_model_close(m);
    return st;
}

static void try_all(int target) {
    check_ok(whole_life(target)); /* what libraries keep for good is there now */
    const int64_t live = dg_mem_live();
    dg_mem_fail_nth(0, 0);
    check_ok(whole_life(target));
    const uint64_t total = dg_mem_fail_nth(0, 0);
    assert_true(total > 50);
    assert_int_equal(dg_mem_live(), live);
    const uint64_t step = total > 3000 ? total / 3000 : 1;
    for (int onward = 0; onward < 2; onward++)
        for (uint64_t n = 1; n <= total; n += n < 1000 ? 1 : step) {
            dg_mem_fail_nth(n, onward);
            const dg_status st = whole_life(target);
            dg_mem_fail_nth(0, 0);
            if (st == DG_OK && !onward) continue; /* a library that can do without (JIT, say) */
            if (st != DG_ERR_MEMORY && st != DG_ERR_DEVICE) {
                print_error("allocation %d of %d: %s: %s\n", (int)n, (int)total, dg_status_name(st), dg_error_message());
                fail();
            }
            if (dg_mem_live() != live) fail_msg("allocation %d of %d leaks: %d live, %d before", (int)n, (int)total,
                                                (int)dg_mem_live(), (int)live);
        }
    check_ok(whole_life(target));
}

static void test_llama(void **state) { (void)state, try_all(0); }
static void test_qwen3(void **state) { (void)state, try_all(1); }

int main(void) {
    const char *tmp = test_tmpdir();
    for (int i = 0; i < FIXTURE_KINDS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/%d", tmp, i);
        fixture_model(dir[i], (fixture_kind)i);
    }
    snprintf(text_file, sizeof text_file, "%s/text", tmp);
    FILE *f = fopen(text_file, "w");
    if (!f || fputs("the cat and the dog and the cat", f) < 0 || fclose(f)) return 1;
    const struct CMUnitTest t[] = {cmocka_unit_test(test_llama), cmocka_unit_test(test_qwen3)};
    return cmocka_run_group_tests_name("out of memory", t, NULL, NULL);
}
