/* The drafters that are built in, and the modes that name lists of them: the only file that knows both. */
#include <string.h>

#include "runtime/drafter.h"

extern const dg_drafter_ops dg_dflash, dg_eagle3, dg_fill, dg_fused, dg_graft, dg_lm, dg_ngram, dg_pld, dg_recycling;

static const dg_drafter_ops *const drafter[] = {&dg_dflash, &dg_eagle3, &dg_fill, &dg_fused,
                                                &dg_graft,  &dg_lm,     &dg_ngram,  &dg_pld,  &dg_recycling};

/* A line and the paper each; "ours" where there is none. */
static const dg_mode mode[] = {
    {"plain", "", "the target alone", 0},
    {"pld", "pld", "prompt lookup decoding, the original rule (A. Saxena, 2023)", 0},
    {"ngram", "ngram", "longest suffix match in the running text, two continuations (ours; cf. arXiv 2411.10666)", 0},
    {"suffix", "ngram,alternatives=1", "suffix automaton, a single chain (SAM Decoding, arXiv 2411.10666)", 0},
    {"recycling", "recycling", "Token Recycling: successors of successors, 80 nodes (arXiv 2408.08696)", 80},
    {"lm", "lm:{lm}", "a small causal model drafts a chain of 7 (arXiv 2211.17192, 2302.01318)", 7},
    {"csd", "lm:{lm},cascade=1,tokens=5",
     "Cascade Speculative Drafting: n-grams draft for the small model, and go on behind it (arXiv 2312.11462)", 15},
    {"dflash", "dflash:{dflash}", "DFlash block as one chain (arXiv 2602.06036)", 15},
    {"ddtree", "dflash:{dflash},tree=1", "DFlash marginals as a best-first tree (DDTree, arXiv 2604.12989)", 15},
    {"ddtree60", "dflash:{dflash},tree=1", "the same with 60 nodes", 60},
    {"caddtree", "dflash:{dflash},tree=1",
     "DDTree that grows while expected tokens a second do (the rule of CaDDTree, arXiv 2606.01813)", 0},
    {"eagle3", "eagle3:{eagle3}", "EAGLE-3 dynamic tree, depth 8, top-k 10, 60 nodes (arXiv 2503.01840)", 60},
    {"eagle3-chain", "eagle3:{eagle3},topk=1", "EAGLE-3 as a chain of 7", 7},
    {"eagle3-ngram", "ngram,min=5,alternatives=1 eagle3:{eagle3}",
     "EAGLE-3, but a suffix match of 5 or more takes its place (SAM Decoding, arXiv 2411.10666)", 60},
    {"prune-only", "eagle3:{eagle3},gated=1", "EAGLE-3 stopped by Graft's gates, nothing filled in (arXiv 2605.20104)", 60},
    {"graft-eagle3", "eagle3:{eagle3},gated=1 fill",
     "Graft on EAGLE-3: what the gates left empty is filled from M, duplicates merged (arXiv 2605.20104)", 60},
    {"echo", "eagle3:{eagle3},gated=1,wide=1,keep0=255,keep1=255,keep5=255",
     "ECHO-style: where a gate stops drafting the tree gets wider (arXiv 2604.09603)", 60},
    {"ddd", "eagle3:{eagle3},depth=11,mass=0.3", "DDD-style: drafts on while the beam is probable enough (arXiv 2409.00142)", 60},
    {"svip", "eagle3:{eagle3},topk=1,depth=39,svip=0.3",
     "SVIP-style: an EAGLE-3 chain that ends where its next token is unsure (arXiv 2411.18462)", 40},
    {"graft-tail", "dflash:{dflash} graft,gated=1", "Graft-TAIL: the chain's unsure tail gives way to memory (arXiv 2605.20104)", 15},
    {"graft-tail-tree", "dflash:{dflash},width=8 graft,tree=1", "the same with a small tree at the cut (ours)", 15},
    {"fused", "dflash:{dflash},width=8,adapt=1 fused", "block marginals, text and successors in one ranked tree (ours)", 0},
    {"ngram-dflash", "ngram dflash:{dflash}", "suffix matches first, the DFlash chain fills the rest of the tree (ours)", 15},
};

enum { N_DRAFTER = sizeof drafter / sizeof *drafter, N_MODE = sizeof mode / sizeof *mode };

#ifdef DG_TEST
const dg_drafter_ops *dg_test_drafter[4]; /* oracle, liar and kin: they exist in test builds only */
#endif

const dg_drafter_ops *dg_drafter_find(const char *name) {
#ifdef DG_TEST
    for (size_t i = 0; i < sizeof dg_test_drafter / sizeof *dg_test_drafter; i++)
        if (dg_test_drafter[i] && !strcmp(dg_test_drafter[i]->name, name)) return dg_test_drafter[i];
#endif
    for (size_t i = 0; i < N_DRAFTER; i++)
        if (!strcmp(drafter[i]->name, name)) return drafter[i];
    return NULL;
}

size_t dg_drafter_count(void) { return N_DRAFTER; }
const char *dg_drafter_name(size_t i) { return i < N_DRAFTER ? drafter[i]->name : NULL; }
const char *dg_drafter_help(size_t i) { return i < N_DRAFTER ? drafter[i]->help : NULL; }
size_t dg_mode_count(void) { return N_MODE; }
const dg_mode *dg_mode_get(size_t i) { return i < N_MODE ? &mode[i] : NULL; }
