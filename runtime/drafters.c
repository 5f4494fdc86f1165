/* The drafters that are built in, and the modes that name lists of them: the only file that knows both. */
#include <string.h>

#include "runtime/drafter.h"

extern const dg_drafter_ops dg_dflash, dg_ngram, dg_pld;

static const dg_drafter_ops *const drafter[] = {&dg_dflash, &dg_ngram, &dg_pld};

static const dg_mode mode[] = {
    {"plain", "", "the target alone", 0},
    {"pld", "pld", "prompt lookup decoding, the original rule", 0},
    {"ngram", "ngram", "longest suffix match in the running text", 0},
    {"dflash", "dflash:{dflash}", "DFlash block as one chain (the original)", 15},
    {"ddtree", "dflash:{dflash},tree=1", "DFlash marginals as a best-first tree (DDTree)", 15},
    {"ddtree60", "dflash:{dflash},tree=1", "the same with 60 nodes", 60},
    {"dflash-ngram", "dflash:{dflash} ngram", "DFlash chain and suffix matches in one tree", 15},
};

enum { N_DRAFTER = sizeof drafter / sizeof *drafter, N_MODE = sizeof mode / sizeof *mode };

const dg_drafter_ops *dg_drafter_find(const char *name) {
    for (size_t i = 0; i < N_DRAFTER; i++)
        if (!strcmp(drafter[i]->name, name)) return drafter[i];
    return NULL;
}

size_t dg_drafter_count(void) { return N_DRAFTER; }
const char *dg_drafter_name(size_t i) { return i < N_DRAFTER ? drafter[i]->name : NULL; }
const char *dg_drafter_help(size_t i) { return i < N_DRAFTER ? drafter[i]->help : NULL; }
size_t dg_mode_count(void) { return N_MODE; }
const dg_mode *dg_mode_get(size_t i) { return i < N_MODE ? &mode[i] : NULL; }
