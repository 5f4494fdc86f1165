/* The walk; see verify.h. */
#include "runtime/verify.h"

#include <stdbool.h>

void dg_verify(const dg_tree *t, const int32_t *sampled, dg_walk *out) {
    bool right[DG_TREE_MAX] = {true};
    int32_t last = 0;
    for (int32_t i = 1; i < t->n; i++) {
        const int32_t parent = t->parent[i];
        right[i] = right[parent] && t->token[i] == sampled[parent];
        if (right[i] && t->depth[i] > t->depth[last]) last = i;
    }
    out->n = t->depth[last] + 1;
    out->next = sampled[last];
    for (int32_t i = out->n - 1, node = last; i >= 0; node = t->parent[node]) out->path[i--] = node;
}
