/* A drafter's vocabulary: its embedding and head, or the target's, and the way from ids of a reduced vocabulary to the
 * target's. The map stands in the file as offsets to add to the draft id (speculators, SafeAILab) or, in GGUF, as the
 * target's ids. Of a map without a head, the head is the target's rows that the map names. */
#ifndef DG_DRAFT_VOCAB_H
#define DG_DRAFT_VOCAB_H

#include "runtime/target.h"

typedef struct dg_draft_vocab {
    dg_mat embed, head; /* [V, hidden] [Vd, hidden] */
    dg_mat d2t;         /* data NULL: the identity */
    bool offsets;
    bool gathers; /* d2t without an own head: head is a copy of the target's rows that it names */
} dg_draft_vocab;

/* Checks that what the drafter lacks can be the target's, and that the map leads every id to a token of the target of
 * its own (and to the ones that t2d names, if the file has it). FORMAT failures name the tensor. A tokenizer
 * beside the drafter that is not the target's is logged as a warning. Borrows from both. */
dg_status dg_draft_vocab_open(const dg_net *net, const dg_model *target, dg_draft_vocab *out);

/* After dg_net_layout: the head as it has been packed. Takes room for a gathered one and, once there is memory
 * (dg_drafter_ops.layout), fills it. q8 as for dg_net_layout. */
void dg_draft_vocab_layout(dg_draft_vocab *v, const dg_net *net, const dg_model *target, bool q8, dg_arena *dev);

/* The target's id of a draft id in [0, Vd). */
int32_t dg_draft_vocab_target(const dg_draft_vocab *v, int32_t id);

#endif
