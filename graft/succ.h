/* M, the successor matrix: for every token of the vocabulary the tokens that the target last thought likely
 * after it (Token Recycling, arXiv 2408.08696; Graft, arXiv 2605.20104). A memory of the whole vocabulary
 * that never needs more than one table look-up a token.
 *
 * M lives in backend memory; the host sees rows it asks for and expanded templates. Nothing here allocates
 * after the layout but reading and writing files. */
#ifndef DG_SUCC_H
#define DG_SUCC_H

#include "graft/template.h"
#include "runtime/drafter.h"

enum { DG_SUCC_WIDTH = 8, DG_SUCC_ROOTS = 64 };

typedef struct dg_succ {
    struct dg_model *model;
    dg_mat m;        /* device i32 [V, width] */
    int32_t width;   /* DG_SUCC_WIDTH, or V where that is less */
    int32_t empty;   /* what a new M is filled with: -1; 0 in Token Recycling */
    bool by_row;     /* among rows of one token the last wins, as in Token Recycling */
    int32_t source;  /* of the nodes that were drafted from M */
    int32_t *warm;   /* host [V, width]: what M starts with, NULL: `empty`. Borrowed */
    int32_t *up_dev; /* scratch, device: tokens, priorities, parents, ranks of the calls below */
    int32_t *prio_dev, *id_dev, *row_parent, *row_rank, *parent_dev, *rank_dev;
    int32_t *up, *prio, *id; /* scratch, host */
    int32_t n_template;      /* nodes of the template that parent_dev and rank_dev hold */
} dg_succ;

/* Carves the memory, about 32 bytes a token of the vocabulary, and clears M when the arenas are not counting.
 * model, empty, by_row, source and warm are set before. */
void dg_succ_layout(dg_succ *s, const dg_template *t, dg_arena *host, dg_arena *dev);

/* M as it was after the layout. */
void dg_succ_clear(dg_succ *s);

/* Learns the rows that the outcome has successors of; where there are none, its tokens by dg_succ_push. Which
 * of several rows of one token counts: by_row, the last; else the deepest on the accepted path, then nodes
 * that M itself did not propose, the best-scored first, then the lower index. In prefill the last. */
void dg_succ_learn(dg_succ *s, const dg_outcome *o);

/* For each i the token after token[i] (the last: `next`) goes to the front of row token[i]. */
void dg_succ_push(dg_succ *s, const int32_t *token, int32_t n, int32_t next);

/* row[n, width] = rows of M of these tokens; -1 where M has nothing, never a token outside the vocabulary. */
void dg_succ_rows(dg_succ *s, const int32_t *token, int32_t n, int32_t *row);

/* id[n] = the first n nodes of the layout's template below `root`, -1 where M has nothing. */
void dg_succ_expand(dg_succ *s, int32_t root, int32_t n, int32_t *id);

/* ---- files ------------------------------------------------------------------------------------ */

/* Writes M: magic, version, vocabulary size, width, checksum, rows; little-endian. */
dg_status dg_succ_save(const dg_succ *s, const char *path);

/* Reads what dg_succ_save wrote, or a UTF-8 text: then row t holds the tokens that follow t in it most often.
 * *warm: [V, DG_SUCC_WIDTH or V], free with dg_mem_free. FORMAT: damaged, of a newer version, of another
 * vocabulary, neither M nor text; UNSUPPORTED: a text, and the model has no tokenizer. */
dg_status dg_succ_read(const struct dg_model *model, const char *path, int32_t **warm);

#endif
