/* The network's shape written down again, in either spelling; the readers are config_hf.c and config_gguf.c.
 * What a spelling cannot express is refused, never dropped. */
#ifndef DG_CONFIG_WRITE_H
#define DG_CONFIG_WRITE_H

#include "runtime/config.h"
#include "runtime/gguf_out.h"

/* llama.cpp's architecture name for c: mistral is a llama there. */
const char *dg_config_gguf_arch(const dg_config *c);

/* general.architecture and the keys under it (g->arch is set). path: the source, for messages. */
dg_status dg_config_to_gguf(const char *path, const dg_config *c, dg_gguf_out *g);

/* A config.json that transformers 4 and 5 and z-lab's DFlash class read. factors: the rope_freqs vector of a
 * GGUF source or NULL; it has to be that of a llama3 scaling. Free with json_decref. */
dg_status dg_config_to_json(const char *path, const dg_config *c, const float *factors,
                            const char *torch_dtype, json_t **out);

#endif
