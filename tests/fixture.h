/* Tiny models of our own, written to disk by the tests that use them: random weights from a fixed seed, so nothing
 * binary is kept in the repository and no golden folder is needed. */
#ifndef DG_TESTS_FIXTURE_H
#define DG_TESTS_FIXTURE_H

#include <stddef.h>

typedef enum fixture_kind { FIXTURE_LLAMA, FIXTURE_QWEN3, FIXTURE_DFLASH } fixture_kind;

enum { FIXTURE_VOCAB = 131, FIXTURE_HIDDEN = 48, FIXTURE_LAYERS = 4, FIXTURE_CONTEXT = 256, FIXTURE_MASK = 130 };

/* Writes config.json, model.safetensors (f32) and, for targets, a byte-level tokenizer.json into dir (made if absent). The DFlash drafter (2 layers, taps 0 and 2,
 * block 8) fits both targets. Fails the test on any error. Returns dir. */
const char *fixture_model(const char *dir, fixture_kind kind);

#endif
