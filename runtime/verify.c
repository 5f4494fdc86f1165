/* The walk; see verify.h. */
#include "runtime/verify.h"

void dg_verify(const dg_tree *t, const int32_t *sampled, dg_walk *out) {
    out->n = 0;
    for (int32_t node = 0; node >= 0; node = dg_tree_child(t, node, out->next)) {
        out->path[out->n++] = node;
        out->next = sampled[node];
    }
}
