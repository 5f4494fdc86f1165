/* See fixture.h. */
#include "tests/fixture.h"

#include <sys/stat.h>

#include "tests/test.h"

enum { HEADS = 4, KV = 2, HEAD = 12, FFN = 80, MAX_TENSORS = 80 };

typedef struct writer {
    json_t *header;
    float *data;
    size_t n, cap;
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

const char *fixture_model(const char *dir, fixture_kind kind) {
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
    char *text = json_dumps(w.header, JSON_COMPACT);
    size_t len = strlen(text), padded = (len + 7) / 8 * 8;
    text = realloc(text, padded + 1);
    memset(text + len, ' ', padded - len);
    write_file(dir, "model.safetensors", text, padded, w.data, w.n * sizeof(float));
    write_json(dir, "config.json", config_of(kind));
    if (kind != FIXTURE_DFLASH) write_json(dir, "tokenizer.json", tokenizer_of());
    json_decref(w.header);
    free(text), free(w.data);
    return dir;
}
