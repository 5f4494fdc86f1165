/* Whole passes as CUDA graphs: what a pass launches costs the host one call from its third run on.
 *
 * A key that is new is run as it comes, so that all modules are loaded and all limits set; when it comes again, its
 * launches are captured, and from then on they are replayed with nothing changed: tokens, positions, masks, lengths and
 * the number of rows lie in device memory. The keys used last are kept. All of them are dropped when memory is freed, as
 * any of it may be what they point to. */
#include <string.h>

#include "kernels/cuda/common.cuh"

/* Rows of a pass: a graph each. */
static const int32_t row_counts[] = {1, 4, 8, 16, 32, 64, 128};

int32_t dg_cuda_pass_rows(dg_backend *, int32_t n) {
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++)
        if (n <= row_counts[i]) return n ? row_counts[i] : 0;
    return n;
}

static void drop(dg_cuda *c, dg_cuda_graph *g) {
    if (g->exec) dg_cuda_ok(c, cudaGraphExecDestroy(g->exec), "cudaGraphExecDestroy", "forgetting a pass");
    g->exec = NULL;
    g->bytes = 0;
}

void dg_cuda_forget_passes(dg_cuda *c) {
    bool any = false;
    for (int i = 0; i < DG_GRAPHS; i++) any |= c->graph[i].exec != NULL;
    if (any) dg_cuda_ok(c, cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", "forgetting passes");
    for (int i = 0; i < DG_GRAPHS; i++) drop(c, &c->graph[i]);
}

/* The key's place; *fresh: it was given one just now, perhaps that of the key used longest ago. */
static dg_cuda_graph *find(dg_cuda *c, const void *key, size_t bytes, bool *fresh) {
    dg_cuda_graph *oldest = &c->graph[0];
    for (int i = 0; i < DG_GRAPHS; i++) {
        dg_cuda_graph *g = &c->graph[i];
        if (g->bytes == bytes && memcmp(g->key, key, bytes) == 0) return *fresh = false, g;
        if (g->bytes == 0 ? oldest->bytes > 0 : oldest->bytes > 0 && g->used < oldest->used) oldest = g;
    }
    if (oldest->exec) dg_cuda_ok(c, cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", "forgetting a pass");
    drop(c, oldest);
    memcpy(oldest->key, key, bytes);
    oldest->bytes = bytes;
    return *fresh = true, oldest;
}

/* Holds the lock until pass_end, so that nobody else's operations get among those of the pass. */
bool dg_cuda_pass_begin(dg_backend *be, const void *key, size_t bytes) {
    dg_cuda *c = dg_cuda_begin(be);
    if (!c) return false;
    c->recording = NULL;
    c->keyed = bytes > 0;
    if (!bytes) return true;
    bool fresh;
    dg_cuda_graph *g = find(c, key, bytes, &fresh);
    g->used = ++c->n_pass;
    if (fresh) return true;
    if (g->exec) {
        dg_cuda_ok(c, cudaGraphLaunch(g->exec, c->stream), "cudaGraphLaunch", "a pass");
        dg_cuda_end(c, "a pass");
        return false;
    }
    if (!dg_cuda_ok(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture",
                    "recording a pass")) {
        pthread_mutex_unlock(&c->lock);
        return false;
    }
    c->recording = g;
    return true;
}

/* Ends the recording, also of a pass in which an operation failed, and runs what was recorded. */
static void run_recorded(dg_cuda *c, dg_cuda_graph *g) {
    cudaGraph_t graph = NULL;
    const char *what = "recording a pass";
    bool ok = dg_cuda_ok(c, cudaStreamEndCapture(c->stream, &graph), "cudaStreamEndCapture", what) && !c->failed;
    if (ok && !dg_cuda_ok(c, cudaGraphInstantiate(&g->exec, graph, 0), "cudaGraphInstantiate", what)) ok = false, g->exec = NULL;
    if (graph) dg_cuda_ok(c, cudaGraphDestroy(graph), "cudaGraphDestroy", what);
    if (ok) dg_cuda_ok(c, cudaGraphLaunch(g->exec, c->stream), "cudaGraphLaunch", "a pass");
}

void dg_cuda_pass_end(dg_backend *be) {
    dg_cuda *c = dg_cuda_of(be);
    if (c->recording) run_recorded(c, c->recording);
    c->recording = NULL;
    c->keyed = false;
    dg_cuda_end(c, "a pass");
}
