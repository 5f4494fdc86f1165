/* What the two readers of a configuration share: the table of plain fields, defaults, refusals. Private to
 * config.c, config_hf.c and config_gguf.c. */
#ifndef DG_CONFIG_READ_H
#define DG_CONFIG_READ_H

#include "kernels/ops.h"
#include "runtime/config.h"

/* Positive integers that both containers name directly. A row with need == false is filled in by
 * dg_config_finish (see there) when the file says nothing. */
typedef struct dg_config_field {
    const char *hf, *gguf; /* key in config.json; GGUF key without "ARCH." */
    size_t offset;         /* of the int32_t in dg_config */
    int32_t max;
    bool need;
} dg_config_field;

enum { DG_CONFIG_FIELDS = 8 };
extern const dg_config_field dg_config_fields[DG_CONFIG_FIELDS];

/* All fields zero but those whose "nothing said" is something else. */
void dg_config_init(dg_config *c);

/* Fills what may be left out (n_kv_head: n_head; head_dim: hidden_size / n_head, or 128 for qwen3 and dflash,
 * whose code fixes it; rope_original: max_position) and checks what no reader checks: even head_dim, whole
 * groups of heads, ids within the vocabulary, ascending taps. */
dg_status dg_config_finish(const char *path, dg_config *c);

/* Adds a stop id once; negative ids mean "none". */
dg_status dg_config_add_stop(const char *path, dg_config *c, int64_t id);

/* UNSUPPORTED, naming the architecture, why (if a table knows it), and what is supported. */
dg_status dg_config_refuse(const char *path, const char *arch);

/* Whether the class is that of a drafter which dg_config_refuse knows, whatever the rest of the file looks like. */
bool dg_config_foreign_drafter(const char *cls);

/* UNSUPPORTED: the file needs `what` (a feature, with the key or tensor that shows it). */
dg_status dg_config_lacks(const char *path, const char *what, const char *shown_by);

/* UNSUPPORTED if one of the tensors belongs to a relative of the architecture that dgraft does not run. */
dg_status dg_config_check_tensors(const dg_file *f, const dg_config *c);

dg_status dg_config_read_hf(const dg_file *f, dg_config *c);
dg_status dg_config_read_gguf(const dg_file *f, dg_config *c);

#endif
