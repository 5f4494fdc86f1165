/* What goes wrong with a device: each is a status whose message says what to do, and leaves the device's memory free. */
#include "tests/cudasim/sim.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>

#include "runtime/session.h"
#include "tests/fixture.h"

static const char *model_dir;

static size_t device_free(void) {
    size_t available, total;
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    return available;
}

static char logged[512];

static void keep_log(void *ud, dg_log_level level, const char *message) {
    (void)ud;
    if (level == DG_LOG_WARN) snprintf(logged, sizeof logged, "%s", message);
}

static dg_status open_on(const char *device, dg_model **model) {
    const dg_model_options opt = {.device = device, .log = keep_log};
    *model = NULL;
    return dg_model_open(model_dir, &opt, model);
}

/* No device, an old driver, a device that is not there, one that is too old; with "auto" the CPU, and the log says so. */
static void test_no_device(void **state) {
    (void)state;
    const dgsim_config well = dgsim;
    const struct {
        int devices, driver, major, minor;
        const char *device, *says;
    } bad[] = {{0, well.driver, 9, 0, "cuda", "no CUDA device was found"},
               {1, 11080, 9, 0, "cuda", "update the driver"},
               {1, well.driver, 9, 0, "cuda:1", "there is no device cuda:1: the last one here is cuda:0"},
               {1, well.driver, 7, 5, "cuda", "build it with SMS=75"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dgsim.devices = bad[i].devices, dgsim.driver = bad[i].driver, dgsim.major = bad[i].major, dgsim.minor = bad[i].minor;
        dg_model *model;
        check_fails(open_on(bad[i].device, &model), DG_ERR_DEVICE, bad[i].says);
        if (i != 2) {
            *logged = 0;
            check_ok(open_on("auto", &model));
            assert_non_null(strstr(logged, "computing on the CPU"));
            assert_non_null(strstr(logged, bad[i].says));
            assert_true(model->be->ops->host_memory);
            dg_model_close(model);
        }
        dgsim = well;
        cudaGetLastError();
    }
}

/* The n-th allocation of device memory fails, for every n. */
static void test_allocations_fail(void **state) {
    (void)state;
    const size_t before = device_free();
    int failed = 0;
    for (bool done = false; !done;) {
        dg_model *model;
        dg_session *s = NULL;
        dgsim.fail_alloc = failed + 1;
        dg_status st = open_on("cuda", &model);
        if (st == DG_OK) st = dg_session_create(model, NULL, &s);
        done = st == DG_OK;
        if (!done && st != DG_ERR_MEMORY && st != DG_ERR_DEVICE) fail_msg("%d: %s", failed, dg_error_message());
        if (!done && !strstr(dg_error_message(), "memory")) fail_msg("%d: %s", failed, dg_error_message());
        failed += !done;
        dg_session_free(s);
        dg_model_close(model);
        assert_int_equal(device_free(), before);
    }
    dgsim.fail_alloc = 0;
    assert_true(failed > 4);
}

/* What does not fit is refused with what it would take; a smaller one still works. */
static void test_memory_is_short(void **state) {
    (void)state;
    const size_t whole = dgsim.memory, before = device_free();
    dg_model *model;
    dg_session *s = NULL;
    check_ok(open_on("cuda", &model));
    const size_t used = before - device_free();
    dgsim.memory = used + 100;
    check_fails(dg_session_create(model, NULL, &s), DG_ERR_MEMORY, "a smaller context needs less");
    dgsim.memory = whole;
    check_ok(dg_session_create(model, NULL, &s));
    dg_session_free(s);
    dg_model_close(model);
    dgsim.memory = used - 100;
    check_fails(open_on("cuda", &model), DG_ERR_MEMORY, "MiB of weights");
    dgsim.memory = whole;
    assert_int_equal(device_free(), before);
}

/* The plan knows what the backend takes of the device. */
static void test_plan_counts_scratch(void **state) {
    (void)state;
    const size_t before = device_free();
    dg_model *model;
    dg_session *s;
    dg_memory_plan plan;
    check_ok(open_on("cuda", &model));
    check_ok(dg_session_plan(model, NULL, &plan));
    check_ok(dg_session_create(model, NULL, &s));
    const size_t used = before - device_free();
    assert_true(model->backend_bytes > ((size_t)64 << 20) + ((size_t)32 << 20)); /* states of spans, cuBLASLt's workspace */
    assert_in_range(plan.workspace + plan.target_kv + model->packed_bytes, used, used + ((size_t)16 << 20)); /* and the host's */
    dg_session_free(s);
    dg_model_close(model);
}

/* A device that is lost in a round: the session is dead, the process is not, and nothing is kept. */
static void test_lost_in_a_round(void **state) {
    (void)state;
    const int32_t prompt[] = {40, 71, 96};
    const size_t before = device_free();
    dg_model *model;
    dg_session *s = NULL;
    size_t n, available, total;
    check_ok(open_on("cuda", &model));
    check_ok(dg_session_create(model, NULL, &s));
    check_ok(dg_session_sync(s, prompt, 3));
    check_ok(dg_session_step(s, NULL, 0, &n));
    dgsim.fail_launch = 5;
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_DEVICE, "cudaErrorLaunchFailure");
    check_fails(dg_session_step(s, NULL, 0, &n), DG_ERR_DEVICE, "died");
    dg_session_free(s);
    dg_model_close(model);
    dgsim.fail_launch = 0;
    cudaMemGetInfo(&available, &total); /* with the device's error, too */
    assert_int_equal(available, before);
}

int main(void) {
    model_dir = fixture_model(test_tmpdir(), FIXTURE_QWEN3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device),           cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_memory_is_short),     cmocka_unit_test(test_plan_counts_scratch),
        cmocka_unit_test(test_lost_in_a_round), /* last: the device is gone */
    };
    return cmocka_run_group_tests_name("bad devices", tests, NULL, NULL);
}
