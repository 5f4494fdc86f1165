/* The sweeps that have a name: a list of arms each, as --arm would take them. A sweep whose mode lacks a key
 * is an error of this table, and the tests notice. */
#ifndef DG_BENCH_ABLATIONS_H
#define DG_BENCH_ABLATIONS_H

typedef struct bench_ablation {
    const char *name, *help;
    const char *arm[16]; /* up to the first NULL */
} bench_ablation;

static const bench_ablation bench_ablation_list[] = {
    {"threshold",
     "confidence at which Graft-TAIL cuts the block",
     {"tail-0.1=graft-tail,gated=0,tau=0.1", "tail-0.2=graft-tail,gated=0,tau=0.2",
      "tail-0.3=graft-tail,gated=0,tau=0.3", "tail-0.4=graft-tail,gated=0,tau=0.4",
      "tail-0.5=graft-tail,gated=0,tau=0.5", "tail-0.6=graft-tail,gated=0,tau=0.6",
      "tail-0.7=graft-tail,gated=0,tau=0.7", "tail-0.9=graft-tail,gated=0,tau=0.9",
      "tail-expected=graft-tail,gated=0"}},
    {"gate",
     "EAGLE-3 with and without Graft's gates, and where they stand",
     {"gates-off=graft-eagle3,gated=0", "gates-usual=graft-eagle3",
      "gates-0.3=graft-eagle3,gate0=0.3,gate1=0.3,gate5=0.3",
      "gates-0.6=graft-eagle3,gate0=0.6,gate1=0.6,gate5=0.6", "gates-only=prune-only"}},
    {"merge",
     "what becomes of retrieved nodes that are drafted already",
     {"merge-trie=graft-eagle3", "merge-append=graft-eagle3,append=1", "merge-skip=graft-eagle3,skip=1"}},
    {"template",
     "the fixed templates of M, and one fitted to the statistics",
     {"template-fixed=graft-eagle3", "template-fitted=graft-eagle3,fit=1"}},
    {"width",
     "second choices that a position offers, and depth, in trees",
     {"width-1=fused,dflash.width=1", "width-2=fused,dflash.width=2", "width-4=fused,dflash.width=4",
      "width-8=fused,dflash.width=8", "width-16=fused,dflash.width=16", "depth-2=eagle3,depth=2",
      "depth-4=eagle3,depth=4", "depth-8=eagle3,depth=8", "topk-4=eagle3,topk=4", "topk-10=eagle3,topk=10"}},
    {"memory",
     "which memory grafts: text, M, both, none",
     {"memory-both=graft-tail", "memory-text=graft-tail,m=0", "memory-m=graft-tail,text=0",
      "fused-both=fused", "fused-text=fused,m=0", "fused-m=fused,text=0", "fused-none=fused,text=0,m=0"}},
    {"scope",
     "M kept over requests or forgotten with each",
     {"m-global=graft-tail", "m-request=graft-tail,request=1", "fused-global=fused",
      "fused-request=fused,request=1"}},
    {"warmup",
     "rounds on another text before a prompt: what M and the automatic budget know by then",
     {"tail-cold=graft-tail,warmup=0", "tail-warm-5=graft-tail,warmup=5", "tail-warm-50=graft-tail,warmup=50",
      "recycling-cold=recycling,warmup=0", "recycling-warm-5=recycling,warmup=5",
      "recycling-warm-50=recycling,warmup=50", "auto-cold=fused,budget=auto,warmup=0",
      "auto-warm-50=fused,budget=auto,warmup=50"}},
    {"budget",
     "nodes verified in a round",
     {"fused=fused,budget=7", "fused=fused,budget=15", "fused=fused,budget=31", "fused=fused,budget=63",
      "fused=fused,budget=127", "fused=fused,budget=255", "fused=fused,budget=auto", "ddtree=ddtree,budget=7",
      "ddtree=ddtree,budget=15", "ddtree=ddtree,budget=31", "ddtree=ddtree,budget=63",
      "ddtree=ddtree,budget=127", "ddtree=ddtree,budget=255", "ddtree=ddtree,budget=auto"}},
    {"block",
     "positions that DFlash drafts at once",
     {"block-4=dflash,block=4", "block-6=dflash,block=6", "block-8=dflash,block=8",
      "block-10=dflash,block=10", "block-12=dflash,block=12", "block-16=dflash,block=16",
      "fused-block-4=fused,dflash.block=4,adapt=0", "fused-block-8=fused,dflash.block=8,adapt=0",
      "fused-block-16=fused,dflash.block=16,adapt=0", "fused-adapts=fused"}},
};

#endif
