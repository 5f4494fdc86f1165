/* Writing a target or a drafter in the other container or another type: Hugging Face directory or GGUF; an
 * EAGLE-3 head as GGUF only.
 *
 * Knows the containers through file.h and gguf_out.h, the names through bind.h, the shape through config.h.
 */
#ifndef DG_CONVERT_H
#define DG_CONVERT_H

#include "runtime/file.h"

/* Reads `in` (whatever dg_file_open reads) and writes `out`. If its name ends in ".gguf", that is a GGUF v3
 * file for llama.cpp and others, of type f32, f16, bf16 or q8_0: vectors stay f32, and matrices whose rows
 * are not whole blocks are f16 in a q8_0 file. Else it is a Hugging Face directory with every tensor in f32,
 * f16 or bf16; the tokenizer's files come along if `in` is a directory too and are absent otherwise.
 *
 * tokenizer: the directory or GGUF file whose tokenizer goes into a GGUF file, as a rule the target of a
 * drafter without one of its own; NULL: that of `in`. A target without a tokenizer is an IO failure; a
 * drafter without becomes a file that dgraft opens and llama.cpp does not.
 *
 * progress (may be NULL) hears of bytes of weights. Everything is written under temporary names and renamed
 * at the end: on failure there is no `out`, or the old one as it was. An `out` that exists is replaced if it
 * is a file and refused if it is a directory with anything in it.
 *
 * Errors: those of dg_file_open, dg_config_read and dg_bind; ARGUMENT for a type that `out` cannot have;
 * UNSUPPORTED for what the other container cannot express, and for a value beyond f16 in an f16 file; IO
 * naming the path; MEMORY. */
dg_status dg_convert_with(const char *in, const char *tokenizer, const char *out, dg_dtype type,
                          void (*progress)(void *ud, size_t done, size_t total), void *ud);

/* The same of a target's first layers alone, under its final norm and head: a smaller causal model of the same vocabulary
 * to draft with (drafter lm). layers: 1 to those that `in` has; ARGUMENT for others, and for a drafter. 0: all. */
dg_status dg_convert_first(const char *in, int32_t layers, const char *tokenizer, const char *out, dg_dtype type,
                           void (*progress)(void *ud, size_t done, size_t total), void *ud);

/* dg_convert_with, tokenizer NULL. */
dg_status dg_convert(const char *in, const char *out, dg_dtype type,
                     void (*progress)(void *ud, size_t done, size_t total), void *ud);

#endif
