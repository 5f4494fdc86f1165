/* See fixture.h. */
#include "tests/fixture.h"

#include <sys/stat.h>

#include "tests/test.h"

enum { HEADS = 4, KV = 2, HEAD = 12, FFN = 80, MAX_TENSORS = 80 };

typedef struct writer {
    json_t *header;
    float *data;
    size_t n, cap;
    size_t spare; /* bytes at the end that belong to no tensor */
    uint64_t seed;
} writer;

static void put(writer *w, const char *name, int rows, int cols, float scale, float offset) {
    const size_t n = (size_t)(rows ? rows : 1) * (size_t)cols;
    while (w->n + n > w->cap) w->data = realloc(w->data, (w->cap = 2 * w->cap + n) * sizeof(float));
    for (size_t i = 0; i < n; i++) w->data[w->n + i] = offset + scale * test_random(&w->seed);
    json_t *shape = rows ? json_pack("[i,i]", rows, cols) : json_pack("[i]", cols);
    json_object_set_new(w->header, name,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                  (json_int_t)(w->n * 4), (json_int_t)((w->n + n) * 4)));
    w->n += n;
}

static void put_layer(writer *w, const char *prefix, int l, bool qk_norm) {
    const struct {
        const char *name;
        int rows, cols;
        float scale, offset;
    } part[] = {{"input_layernorm.weight", 0, FIXTURE_HIDDEN, 0.3f, 1},
                {"self_attn.q_proj.weight", HEADS * HEAD, FIXTURE_HIDDEN, 0.5f, 0},
                {"self_attn.k_proj.weight", KV * HEAD, FIXTURE_HIDDEN, 0.5f, 0},
                {"self_attn.v_proj.weight", KV * HEAD, FIXTURE_HIDDEN, 0.5f, 0},
                {"self_attn.o_proj.weight", FIXTURE_HIDDEN, HEADS * HEAD, 0.3f, 0},
                {"post_attention_layernorm.weight", 0, FIXTURE_HIDDEN, 0.3f, 1},
                {"mlp.gate_proj.weight", FFN, FIXTURE_HIDDEN, 0.4f, 0},
                {"mlp.up_proj.weight", FFN, FIXTURE_HIDDEN, 0.4f, 0},
                {"mlp.down_proj.weight", FIXTURE_HIDDEN, FFN, 0.3f, 0},
                {"self_attn.q_norm.weight", 0, HEAD, 0.3f, 1},
                {"self_attn.k_norm.weight", 0, HEAD, 0.3f, 1}};
    for (size_t i = 0; i < sizeof part / sizeof *part - (qk_norm ? 0 : 2); i++) {
        char name[128];
        snprintf(name, sizeof name, "%slayers.%d.%s", prefix, l, part[i].name);
        put(w, name, part[i].rows, part[i].cols, part[i].scale, part[i].offset);
    }
}

static void write_file(const char *dir, const char *leaf, const void *a, size_t na, const void *b, size_t nb) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, leaf);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t len = na;
    if (b) assert_int_equal(fwrite(&len, 1, 8, f), 8);
    assert_int_equal(fwrite(a, 1, na, f), na);
    if (b) assert_int_equal(fwrite(b, 1, nb, f), nb);
    fclose(f);
}

static json_t *config_of(fixture_kind kind) {
    json_t *c = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:i}", "vocab_size", FIXTURE_VOCAB, "hidden_size",
                          FIXTURE_HIDDEN, "num_attention_heads", HEADS, "num_key_value_heads", KV, "head_dim", HEAD,
                          "intermediate_size", FFN, "max_position_embeddings", FIXTURE_CONTEXT, "rms_norm_eps", 1e-5,
                          "rope_theta", 10000.0, "eos_token_id", 1);
    const bool draft = kind == FIXTURE_DFLASH;
    json_object_set_new(c, "num_hidden_layers", json_integer(draft ? 2 : FIXTURE_LAYERS));
    json_object_set_new(c, "model_type", json_string(kind == FIXTURE_LLAMA ? "llama" : "qwen3"));
    json_object_set_new(c, "architectures",
                        json_pack("[s]", draft                   ? "DFlashDraftModel"
                                         : kind == FIXTURE_LLAMA ? "LlamaForCausalLM"
                                                                 : "Qwen3ForCausalLM"));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(kind == FIXTURE_LLAMA));
    if (draft) {
        json_object_set_new(c, "block_size", json_integer(8));
        json_object_set_new(c, "num_target_layers", json_integer(FIXTURE_LAYERS));
        json_object_set_new(c, "dflash_config",
                            json_pack("{s:[i,i],s:i}", "target_layer_ids", 0, 2, "mask_token_id", FIXTURE_MASK));
    }
    return c;
}

/* Byte-level BPE over printable ASCII, space, newline, the two bytes of U+00E9, and merges of common pairs. */
static json_t *tokenizer_of(void) {
    static const char *const pair[] = {"th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of",
                                       "ed", "is", "it", "al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le"};
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    int id = 2;
    for (int ch = 33; ch < 127; ch++) {
        const char text[2] = {(char)ch, 0};
        json_object_set_new(vocab, text, json_integer(id++));
    }
    json_object_set_new(vocab, "\u0120", json_integer(id++)); /* space */
    json_object_set_new(vocab, "\u010a", json_integer(id++)); /* newline */
    json_object_set_new(vocab, "\u00c3", json_integer(id++)); /* bytes c3, a9 */
    json_object_set_new(vocab, "\u00a9", json_integer(id++));
    for (size_t i = 0; i < sizeof pair / sizeof *pair && id < FIXTURE_MASK; i++) {
        char merge[8];
        snprintf(merge, sizeof merge, "%c %c", pair[i][0], pair[i][1]);
        json_array_append_new(merges, json_string(merge));
        json_object_set_new(vocab, pair[i], json_integer(id++));
    }
    assert_int_equal(id, FIXTURE_MASK);
    const struct {
        int id;
        const char *text;
    } special[] = {{0, "<|pad|>"}, {1, "<|end|>"}, {FIXTURE_MASK, "<|mask|>"}};
    for (int i = 0; i < 3; i++)
        json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", special[i].id, "content", special[i].text,
                                               "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    return json_pack("{s:s,s:o,s:n,s:{s:s,s:b,s:b},s:n,s:{s:s,s:b,s:b},s:{s:s,s:o,s:o}}", "version", "1.0", "added_tokens", added,
                     "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 1,
                     "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 1, "model", "type",
                     "BPE", "vocab", vocab, "merges", merges);
}

static void write_json(const char *dir, const char *leaf, json_t *j) {
    char *text = json_dumps(j, JSON_INDENT(1));
    assert_non_null(text);
    write_file(dir, leaf, text, strlen(text), NULL, 0);
    free(text);
    json_decref(j);
}

/* Writes and ends w. */
static void write_weights(const char *dir, writer *w) {
    char *text = json_dumps(w->header, JSON_COMPACT);
    size_t len = strlen(text), padded = (len + 7) / 8 * 8;
    text = realloc(text, padded + 1);
    memset(text + len, ' ', padded - len);
    write_file(dir, "model.safetensors", text, padded, w->data, w->n * sizeof(float) - w->spare);
    json_decref(w->header);
    free(text), free(w->data);
}

/* ---- EAGLE-3 ---------------------------------------------------------------------------------- */

/* n elements of another type than f32. Tensors leave no holes: what is not a multiple of 4 bytes long comes last. */
static void put_raw(writer *w, const char *name, const char *type, const void *data, size_t n, size_t size) {
    const size_t words = (n * size + 3) / 4, at = w->n;
    json_object_set_new(w->header, name,
                        json_pack("{s:s,s:[I],s:[I,I]}", "dtype", type, "shape", (json_int_t)n, "data_offsets",
                                  (json_int_t)(at * 4), (json_int_t)(at * 4 + n * size)));
    while (w->n + words > w->cap) w->data = realloc(w->data, (w->cap = 2 * w->cap + words) * sizeof(float));
    memcpy(w->data + at, data, n * size);
    w->n += words;
    w->spare = words * 4 - n * size;
}

static void put_d2t(writer *w, const fixture_head *head) {
    int64_t d2t[FIXTURE_DRAFT_VOCAB];
    for (int i = 0; i < FIXTURE_DRAFT_VOCAB; i++) d2t[i] = i + 1;
    d2t[FIXTURE_DRAFT_VOCAB - 1] += head->bad_d2t;
    put_raw(w, "d2t", "I64", d2t, FIXTURE_DRAFT_VOCAB, 8);
}

static void put_t2d(writer *w, const fixture_head *head) {
    uint8_t t2d[FIXTURE_VOCAB] = {0};
    for (int i = 0; i < FIXTURE_DRAFT_VOCAB; i++) t2d[2 * i + 1] = 1;
    t2d[2 * FIXTURE_DRAFT_VOCAB - 1] ^= (uint8_t)head->bad_t2d;
    put_raw(w, "t2d", "BOOL", t2d, FIXTURE_VOCAB, 1);
}

static void put_head_layer(writer *w, const fixture_head *head, int hidden) {
    const struct {
        const char *name;
        int rows, cols;
        float scale, offset;
    } part[] = {{"input_layernorm.weight", 0, hidden, 0.3f, 1},
                {"hidden_norm.weight", 0, hidden, 0.3f, 1},
                {"self_attn.q_proj.weight", HEADS * HEAD, 2 * hidden, 0.4f, 0},
                {"self_attn.k_proj.weight", KV * HEAD, 2 * hidden, 0.4f, 0},
                {"self_attn.v_proj.weight", KV * HEAD, 2 * hidden, 0.4f, 0},
                {"self_attn.o_proj.weight", hidden, HEADS * HEAD, 0.3f, 0},
                {"post_attention_layernorm.weight", 0, hidden, 0.3f, 1},
                {"mlp.gate_proj.weight", FIXTURE_HEAD_FFN, hidden, 0.4f, 0},
                {"mlp.up_proj.weight", FIXTURE_HEAD_FFN, hidden, 0.4f, 0},
                {"mlp.down_proj.weight", hidden, FIXTURE_HEAD_FFN, 0.3f, 0},
                {"self_attn.q_norm.weight", 0, HEAD, 0.3f, 1},
                {"self_attn.k_norm.weight", 0, HEAD, 0.3f, 1}};
    for (size_t i = 0; i < sizeof part / sizeof *part - (head->qk_norm ? 0 : 2); i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", head->speculators ? "layers.0" : "midlayer", part[i].name);
        put(w, name, part[i].rows, part[i].cols, part[i].scale, part[i].offset);
    }
}

static json_t *head_config(const fixture_head *head, int hidden, int target_hidden) {
    json_t *body = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b}", "model_type", head->qk_norm ? "qwen3" : "llama",
                             "vocab_size", FIXTURE_VOCAB, "hidden_size", hidden, "num_hidden_layers", 1, "num_attention_heads",
                             HEADS, "num_key_value_heads", KV, "intermediate_size", FIXTURE_HEAD_FFN, "max_position_embeddings",
                             FIXTURE_CONTEXT, "rms_norm_eps", 1e-5, "rope_theta", 5000.0, "tie_word_embeddings", 0);
    json_t *top = head->speculators ? json_object() : body;
    json_object_set_new(top, "architectures", json_pack("[s]", head->speculators ? "Eagle3Speculator" : "LlamaForCausalLMEagle3"));
    if (head->speculators) {
        json_object_set_new(top, "speculators_model_type", json_string("eagle3"));
        json_object_set_new(top, "transformer_layer_config", body);
    }
    json_object_set_new(top, "draft_vocab_size", json_integer(head->whole_vocabulary ? FIXTURE_VOCAB : FIXTURE_DRAFT_VOCAB));
    if (target_hidden != hidden) json_object_set_new(top, "target_hidden_size", json_integer(target_hidden));
    json_object_set_new(top, "eagle_aux_hidden_state_layer_ids",
                        json_loads(head->layers ? head->layers : head->speculators ? "[2,3,4]" : "[1,2,3]", JSON_DECODE_ANY, NULL));
    json_object_set_new(top, "norm_before_residual", json_boolean(head->norm_before_residual));
    json_object_set_new(top, "norm_before_fc", json_boolean(head->norm_before_fc));
    json_object_set_new(top, "fc_norm", json_boolean(head->fc_norm));
    if (head->speculators) json_object_set_new(top, "norm_output", json_boolean(head->norm_output));
    return top;
}

const char *fixture_eagle3(const char *dir, const fixture_head *head) {
    const int hidden = head->hidden ? head->hidden : FIXTURE_HIDDEN;
    const int target_hidden = head->target_hidden ? head->target_hidden : FIXTURE_HIDDEN;
    mkdir(dir, 0777);
    writer w = {.header = json_object(), .seed = 4321};
    if (!head->whole_vocabulary) put_d2t(&w, head); /* first, where int64 is aligned */
    put(&w, "fc.weight", hidden, 3 * target_hidden, 0.3f, 0);
    if (head->fc_bias) put(&w, "fc.bias", 0, hidden, 1, 0);
    if (head->norm_before_fc) put(&w, "input_norm.weight", 0, 3 * target_hidden, 0.3f, 1);
    for (int i = 0; i < 3 && head->fc_norm; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        put(&w, name, 0, target_hidden, 0.3f, 1);
    }
    put_head_layer(&w, head, hidden);
    put(&w, "norm.weight", 0, hidden, 0.3f, 1);
    if (head->embedding) put(&w, "embed_tokens.weight", FIXTURE_VOCAB, hidden, 1, 0);
    if (!head->no_head) put(&w, "lm_head.weight", head->whole_vocabulary ? FIXTURE_VOCAB : FIXTURE_DRAFT_VOCAB, hidden, 1, 0);
    if (!head->whole_vocabulary) put_t2d(&w, head);
    write_weights(dir, &w);
    write_json(dir, "config.json", head_config(head, hidden, target_hidden));
    return dir;
}

/* ---- the others ------------------------------------------------------------------------------- */

const char *fixture_model(const char *dir, fixture_kind kind) {
    if (kind == FIXTURE_EAGLE3) return fixture_eagle3(dir, &(fixture_head){0});
    mkdir(dir, 0777);
    writer w = {.header = json_object(), .seed = 1234u + (unsigned)kind};
    const char *prefix = kind == FIXTURE_DFLASH ? "" : "model.";
    if (kind == FIXTURE_DFLASH) {
        put(&w, "fc.weight", FIXTURE_HIDDEN, 2 * FIXTURE_HIDDEN, 0.3f, 0);
        put(&w, "hidden_norm.weight", 0, FIXTURE_HIDDEN, 0.3f, 1);
        put(&w, "norm.weight", 0, FIXTURE_HIDDEN, 0.3f, 1);
    } else {
        put(&w, "model.embed_tokens.weight", FIXTURE_VOCAB, FIXTURE_HIDDEN, 1, 0);
        put(&w, "model.norm.weight", 0, FIXTURE_HIDDEN, 0.3f, 1);
        if (kind == FIXTURE_QWEN3) put(&w, "lm_head.weight", FIXTURE_VOCAB, FIXTURE_HIDDEN, 1, 0);
    }
    for (int l = 0; l < (kind == FIXTURE_DFLASH ? 2 : FIXTURE_LAYERS); l++)
        put_layer(&w, prefix, l, kind != FIXTURE_LLAMA);
    write_weights(dir, &w);
    write_json(dir, "config.json", config_of(kind));
    if (kind != FIXTURE_DFLASH) write_json(dir, "tokenizer.json", tokenizer_of());
    return dir;
}
