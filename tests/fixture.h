/* Tiny models of our own, written to disk by the tests that use them: random weights from a fixed seed, so nothing
 * binary is kept in the repository and no golden folder is needed. */
#ifndef DG_TESTS_FIXTURE_H
#define DG_TESTS_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum fixture_kind { FIXTURE_LLAMA, FIXTURE_QWEN3, FIXTURE_DFLASH, FIXTURE_EAGLE3, FIXTURE_KINDS } fixture_kind;

enum { FIXTURE_VOCAB = 131, FIXTURE_HIDDEN = 48, FIXTURE_LAYERS = 4, FIXTURE_CONTEXT = 256, FIXTURE_MASK = 130 };

/* Writes config.json, model.safetensors (f32) and, for targets, a byte-level tokenizer.json into dir (made if absent).
 * The DFlash drafter (2 layers, taps 0 and 2, block 8) and the EAGLE-3 head (fixture_eagle3 with `(fixture_head){0}`)
 * fit both targets. Fails the test on any error. Returns dir. */
const char *fixture_model(const char *dir, fixture_kind kind);

/* How an EAGLE-3 head is written; all zero: SpecForge's names, the outputs of layers 1, 2 and 3, a draft vocabulary of 64
 * without embedding. */
typedef struct fixture_head {
    bool speculators; /* nested configuration, layers.0 */
    bool norm_before_residual, norm_before_fc, fc_norm, norm_output, qk_norm, fc_bias;
    bool whole_vocabulary; /* no d2t, t2d; with no_head: the target's head */
    bool embedding, no_head;
    int hidden, target_hidden; /* 0: the target's */
    const char *layers;        /* JSON of the list; "null": none */
    int bad_d2t, bad_t2d;      /* added to the last entry of d2t (an id), xored onto that of t2d */
} fixture_head;

/* Random weights from a seed of its own. d2t leads from i to 2i + 1. */
const char *fixture_eagle3(const char *dir, const fixture_head *head);

enum { FIXTURE_DRAFT_VOCAB = 64, FIXTURE_HEAD_FFN = 80 };

#endif
