/* Chat templates without Jinja: the published families, recognised by their markers and rendered byte-equal. */
#ifndef DG_CHAT_H
#define DG_CHAT_H

#include "runtime/status.h"

typedef struct dg_chat_family dg_chat_family;

/* By --chat-template name ("chatml", "llama3", ...), or by the markers in a Jinja template. NULL: unknown. */
const dg_chat_family *dg_chat_by_name(const char *name);
const dg_chat_family *dg_chat_detect(const char *jinja);
const char *dg_chat_name(const dg_chat_family *c);
/* All names, for messages: "chatml, smollm2, llama3, ..." */
const char *dg_chat_names(void);

/* Renders the conversation (roles "system", "user", "assistant", "tool" where the family has it) to a fresh
 * string, freed with dg_mem_free. add_generation: end with the opening of an assistant turn.
 * thinking: Qwen3-style switch: -1 the template's default, 0 off, 1 on. bos/eos: texts of those tokens, "" if
 * none. ARGUMENT for what the template itself rejects (roles that must alternate, ...). */
dg_status dg_chat_render(const dg_chat_family *c, const dg_message *msg, size_t n, bool add_generation,
                         int thinking, const char *bos, const char *eos, char **text);

#endif
