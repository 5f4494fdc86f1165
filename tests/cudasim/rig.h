/* What the simulator's tests share. */
#ifndef DGSIM_RIG_H
#define DGSIM_RIG_H

#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/cudasim/cases.h"
#include "tests/cudasim/sim.h"

static cudaStream_t stream; /* the group's */

static inline void ok(cudaError_t e) {
    if (e) fail_msg("%s", cudaGetErrorName(e));
}

static inline void *device(const void *src, size_t bytes) {
    void *p = NULL;
    ok(cudaMalloc(&p, bytes));
    if (src)
        ok(cudaMemcpyAsync(p, src, bytes, cudaMemcpyHostToDevice, stream));
    else
        ok(cudaMemsetAsync(p, 0, bytes, stream));
    return p;
}

static inline void fetch(void *dst, const void *src, size_t bytes) {
    ok(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
}

/* Runs body(arg) in a child whose stderr becomes *report; its exit status. */
static inline int in_child(void (*body)(const void *arg), const void *arg, char *report, size_t size) {
    int pipe_end[2];
    assert_int_equal(pipe(pipe_end), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_end[1], 2);
        close(pipe_end[0]);
        body(arg);
        _exit(0);
    }
    close(pipe_end[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < size && (got = read(pipe_end[0], report + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    report[n] = 0;
    close(pipe_end[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline int setup(void **state) {
    (void)state;
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
}

static inline int teardown(void **state) {
    (void)state;
    return cudaStreamDestroy(stream) != cudaSuccess;
}

#endif
