/* Conversion without golden files: row order, keys and tokens by hand, companions, progress, and every way to
 * fail, after which nothing may be left. */
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "runtime/config.h"
#include "runtime/convert.h"
#include "runtime/gguf_out.h"
#include "runtime/target.h"
#include "tests/files.h"
#include "tests/fixture.h"

static char tmp[64], llama[96], qwen3[96], draft[96];

static int setup(void **state) {
    (void)state;
    strcpy(tmp, test_tmpdir());
    snprintf(llama, sizeof llama, "%s/llama", tmp);
    snprintf(qwen3, sizeof qwen3, "%s/qwen3", tmp);
    snprintf(draft, sizeof draft, "%s/draft", tmp);
    fixture_model(llama, FIXTURE_LLAMA);
    fixture_model(qwen3, FIXTURE_QWEN3);
    fixture_model(draft, FIXTURE_DFLASH);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_tree(tmp);
    return 0;
}

/* A path in the temporary folder; a ring of 4. */
static const char *temp(const char *name) {
    static char ring[4][192];
    static unsigned next;
    char *p = ring[next++ % 4];
    snprintf(p, sizeof ring[0], "%s/%s", tmp, name);
    return p;
}

static dg_file *open_file(const char *path) {
    dg_file *f = NULL;
    check_ok(dg_file_open(path, &f));
    return f;
}

/* Entries of a folder other than . and .. */
static int count_entries(const char *dir) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = -2;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Sets or (value NULL) removes a key of DIR/config.json. */
static void edit_config(const char *dir, const char *file, const char *key, json_t *value) {
    char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    if (value)
        json_object_set_new(j, key, value);
    else
        json_object_del(j, key);
    assert_int_equal(json_dump_file(j, path, 0), 0);
    json_decref(j);
}

/* ---- what is written -------------------------------------------------------------------------- */

static const float *row_of(const dg_file *f, const char *name, size_t row) {
    const dg_file_tensor *t = dg_file_find(f, name);
    assert_non_null(t);
    assert_int_equal(t->dtype, DG_F32);
    return (const float *)t->data + row * (size_t)t->dim[1];
}

/* head_dim 12: row 2j of a head is its row j, row 2j+1 its row j+6; 4 heads of q, 2 of k; v stays. */
static void test_row_order(void **state) {
    (void)state;
    check_ok(dg_convert(llama, temp("order.gguf"), DG_F32, NULL, NULL));
    dg_file *a = open_file(llama), *b = open_file(temp("order.gguf"));
    static const size_t from[12] = {0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11};
    const size_t row_bytes = FIXTURE_HIDDEN * sizeof(float);
    for (size_t r = 0; r < 48; r++)
        assert_memory_equal(row_of(b, "blk.1.attn_q.weight", r),
                            row_of(a, "model.layers.1.self_attn.q_proj.weight", r / 12 * 12 + from[r % 12]),
                            row_bytes);
    for (size_t r = 0; r < 24; r++) {
        assert_memory_equal(row_of(b, "blk.3.attn_k.weight", r),
                            row_of(a, "model.layers.3.self_attn.k_proj.weight", r / 12 * 12 + from[r % 12]),
                            row_bytes);
        assert_memory_equal(row_of(b, "blk.3.attn_v.weight", r),
                            row_of(a, "model.layers.3.self_attn.v_proj.weight", r), row_bytes);
    }
    dg_file_close(a), dg_file_close(b);
    check_ok(dg_convert(qwen3, temp("order.gguf"), DG_F32, NULL, NULL));
    a = open_file(qwen3), b = open_file(temp("order.gguf"));
    for (size_t r = 0; r < 48; r++) /* only the llama family */
        assert_memory_equal(row_of(b, "blk.1.attn_q.weight", r),
                            row_of(a, "model.layers.1.self_attn.q_proj.weight", r), row_bytes);
    dg_file_close(a), dg_file_close(b);
}

/* Rows of 48 and 80 are no multiple of 32: f16 in a q8_0 file. fc has rows of 96. Vectors are f32. */
static void test_types(void **state) {
    (void)state;
    check_ok(dg_convert(draft, temp("t.gguf"), DG_Q8_0, NULL, NULL));
    dg_file *f = open_file(temp("t.gguf"));
    assert_int_equal(dg_file_find(f, "fc.weight")->dtype, DG_Q8_0);
    assert_int_equal(dg_file_find(f, "blk.0.attn_q.weight")->dtype, DG_F16);
    assert_int_equal(dg_file_find(f, "blk.0.ffn_down.weight")->dtype, DG_F16);
    assert_int_equal(dg_file_find(f, "blk.1.attn_q_norm.weight")->dtype, DG_F32);
    assert_int_equal(dg_file_find(f, "enc.output_norm.weight")->dtype, DG_F32);
    uint64_t v;
    assert_true(dg_meta_u64(f, "general.file_type", &v, NULL) && v == 7);
    assert_true(dg_meta_u64(f, "dflash.block_size", &v, NULL) && v == 8);
    assert_true(dg_meta_u64(f, "tokenizer.ggml.mask_token_id", &v, NULL) && v == FIXTURE_MASK);
    assert_true(dg_meta_u64(f, "tokenizer.ggml.eos_token_id", &v, NULL) && v == 1);
    const dg_meta *taps = dg_meta_find(f, "dflash.target_layers");
    assert_int_equal(taps->n, 2);
    assert_int_equal(dg_meta_int(taps, 0), 1); /* the output of layer 0 is the input of layer 1 */
    assert_int_equal(dg_meta_int(taps, 1), 3);
    dg_file_close(f);
    check_ok(dg_convert(draft, temp("t.gguf"), DG_BF16, NULL, NULL)); /* replaces the old one */
    f = open_file(temp("t.gguf"));
    assert_int_equal(dg_file_find(f, "fc.weight")->dtype, DG_BF16);
    assert_true(dg_meta_u64(f, "general.file_type", &v, NULL) && v == 32);
    dg_file_close(f);
}

/* A directory to a directory: all tensors rounded, config.json but for the type as it was, companions. */
static void test_directory(void **state) {
    (void)state;
    save_text(llama, "chat_template.jinja", "{{ messages }}");
    save_text(llama, "notes.txt", "not a part of the model");
    edit_config(llama, "config.json", "made_up", json_real(0.1));
    edit_config(llama, "config.json", "torch_dtype", json_string("float32"));
    check_ok(dg_convert(llama, temp("copy/"), DG_BF16, NULL, NULL));
    dg_file *a = open_file(llama), *b = open_file(temp("copy"));
    assert_int_equal(a->n_tensor, b->n_tensor);
    for (size_t i = 0; i < a->n_tensor; i++) {
        const dg_file_tensor *t = &a->tensor[i], *u = &b->tensor[i];
        assert_string_equal(t->name, u->name);
        assert_int_equal(u->dtype, DG_BF16);
        const float *x = t->data;
        for (size_t k = 0; k < t->size / 4; k++) {
            uint16_t h;
            memcpy(&h, (const char *)u->data + 2 * k, 2);
            assert_int_equal(h, dg_f32_to_bf16(x[k]));
        }
    }
    json_t *want = json_deep_copy(a->config);
    json_object_set_new(want, "torch_dtype", json_string("bfloat16"));
    assert_true(json_equal(want, b->config));
    json_decref(want);
    dg_file_close(a), dg_file_close(b);
    assert_int_equal(count_entries(temp("copy")), 4);
    assert_int_equal(access(temp("copy/tokenizer.json"), R_OK), 0);
    assert_int_equal(access(temp("copy/chat_template.jinja"), R_OK), 0);
    char path[192];
    snprintf(path, sizeof path, "%s/chat_template.jinja", llama);
    unlink(path);
}

/* The weights' file by itself, with and without a folder in its name, finds what lies beside it. */
static void test_bare_file(void **state) {
    (void)state;
    char path[192], here[1024];
    snprintf(path, sizeof path, "%s/model.safetensors", qwen3);
    check_ok(dg_convert(path, temp("f.gguf"), DG_F16, NULL, NULL));
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(qwen3), 0);
    const dg_status st = dg_convert("model.safetensors", temp("g.gguf"), DG_F16, NULL, NULL);
    assert_int_equal(chdir(here), 0);
    check_ok(st);
    dg_file *a = open_file(temp("f.gguf")), *b = open_file(temp("g.gguf"));
    assert_int_equal(a->n_meta, b->n_meta);
    assert_non_null(dg_meta_find(b, "tokenizer.ggml.tokens"));
    dg_file_close(a), dg_file_close(b);
}

/* Stop ids: the tokenizer's end of text first, then the others, as far as GGUF has keys. */
static void test_stops(void **state) {
    (void)state;
    edit_config(draft, "config.json", "eos_token_id", json_pack("[i,i,i,i]", 7, 1, 3, 9));
    check_ok(dg_convert_with(draft, llama, temp("s.gguf"), DG_F16, NULL, NULL));
    dg_file *f = open_file(temp("s.gguf"));
    uint64_t v;
    assert_true(dg_meta_u64(f, "tokenizer.ggml.eos_token_id", &v, NULL) && v == 1); /* the target's */
    assert_true(dg_meta_u64(f, "tokenizer.ggml.eot_token_id", &v, NULL) && v == 7);
    assert_true(dg_meta_u64(f, "tokenizer.ggml.eom_token_id", &v, NULL) && v == 3);
    dg_file_close(f);
    edit_config(draft, "config.json", "eos_token_id", json_integer(1));
}

typedef struct told {
    size_t calls, done, total;
} told;

static void listen(void *ud, size_t done, size_t total) {
    told *t = ud;
    assert_true(done > t->done && done <= total);
    assert_true(t->calls == 0 || total == t->total);
    t->calls++, t->done = done, t->total = total;
}

static void test_progress(void **state) {
    (void)state;
    told t = {0};
    check_ok(dg_convert(qwen3, temp("p.gguf"), DG_F16, listen, &t));
    assert_true(t.calls >= 1);
    assert_int_equal(t.done, t.total);
    dg_file *f = open_file(temp("p.gguf"));
    size_t size = 0;
    for (size_t i = 0; i < f->n_tensor; i++) size += f->tensor[i].size;
    assert_int_equal(t.total, size);
    dg_file_close(f);
}

/* ---- tokenizers ------------------------------------------------------------------------------- */

/* Writes the tokenizer of tmp/DIR as a GGUF without tensors. */
static dg_status write_vocab(const char *dir, int32_t n_vocab, int32_t *eos) {
    dg_gguf_out g = {.arch = "llama"};
    dg_out *o = NULL;
    dg_status st = dg_gguf_out_tokenizer(&g, temp(dir), n_vocab, eos);
    if (st == DG_OK) {
        check_ok(dg_out_open(temp("vocab.gguf"), &o));
        check_ok(dg_gguf_out_header(&g, o));
        check_ok(dg_out_commit(o));
    }
    dg_gguf_out_clear(&g);
    return st;
}

static void check_strings(const dg_file *f, const char *key, const char *const *want, size_t n) {
    const dg_meta *m = dg_meta_find(f, key);
    assert_non_null(m);
    assert_int_equal(m->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(m->string[i].len, strlen(want[i]));
        assert_memory_equal(m->string[i].ptr, want[i], strlen(want[i]));
    }
}

static const char bytes_tokenizer[] = "{\"added_tokens\":[{\"id\":3,\"content\":\"<e>\",\"special\":true},{"
                                      "\"id\":5,\"content\":\"<t>\",\"special\":false}],"
                                      "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_"
                                      "prefix_space\":false,\"use_regex\":true},"
                                      "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                                      "\"SpecialToken\":{\"id\":\"<e>\",\"type_id\":0}},"
                                      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]},"
                                      "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
                                      "\"aba\":4},\"merges\":[\"a b\",[\"ab\",\"a\"]]}}";

static void test_byte_level(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "b", "ab", "<e>", "aba", "<t>", "[PAD6]"};
    static const char *const merges[] = {"a b", "ab a"};
    static const int types[] = {1, 1, 1, 3, 1, 4, 5};
    int32_t eos;
    mkdir(temp("tok"), 0777);
    save_text(temp("tok"), "tokenizer.json", bytes_tokenizer);
    save_text(
        temp("tok"), "tokenizer_config.json",
        "{\"bos_token\":\"<e>\",\"eos_token\":{\"content\":\"<t>\"},\"chat_template\":[{\"name\":\"tools\","
        "\"template\":\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}");
    check_ok(write_vocab("tok", 7, &eos));
    assert_int_equal(eos, 5);
    dg_file *f = open_file(temp("vocab.gguf"));
    check_strings(f, "tokenizer.ggml.model", (const char *const[]){"gpt2"}, 1);
    check_strings(f, "tokenizer.ggml.pre", (const char *const[]){"gpt-2"}, 1);
    check_strings(f, "tokenizer.ggml.tokens", tokens, 7);
    check_strings(f, "tokenizer.ggml.merges", merges, 2);
    check_strings(f, "tokenizer.chat_template", (const char *const[]){"D"}, 1);
    const dg_meta *m = dg_meta_find(f, "tokenizer.ggml.token_type");
    for (uint64_t i = 0; i < 7; i++) assert_int_equal(dg_meta_int(m, i), types[i]);
    uint64_t id;
    bool adds = false;
    assert_true(dg_meta_u64(f, "tokenizer.ggml.bos_token_id", &id, NULL) && id == 3);
    assert_true(dg_meta_bool(f, "tokenizer.ggml.add_bos_token", &adds, NULL) && adds);
    assert_null(dg_meta_find(f, "tokenizer.ggml.add_eos_token"));
    dg_file_close(f);
    check_fails(write_vocab("tok", 5, &eos), DG_ERR_FORMAT, "expected an id from 0 to 4, found 5");
}

static const char piece_tokenizer[] = "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{"
                                      "\"id\":1,\"content\":\"</s>\",\"special\":true}],"
                                      "\"normalizer\":%s,\"pre_tokenizer\":null,\"post_processor\":null,"
                                      "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
                                      "\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"</"
                                      "s>\":1,\"<0x0A>\":2,\"a\":3,\"b\":4,\"ba\":5,\"aba\":6},"
                                      "\"merges\":[[\"a\",\"ba\"],[\"b\",\"a\"],[\"ab\",\"a\"]]}}";

static void test_pieces(void **state) {
    (void)state;
    static const int types[] = {2, 3, 6, 1, 1, 1, 1};
    static const double scores[] = {0, 0, 0, 0, 0, -2, -1};
    char text[1024];
    int32_t eos;
    bool space = true;
    mkdir(temp("pieces"), 0777);
    snprintf(text, sizeof text, piece_tokenizer, "null");
    save_text(temp("pieces"), "tokenizer.json", text);
    save_text(temp("pieces"), "config.json", "{\"eos_token_id\":[1,6]}");
    check_ok(write_vocab("pieces", 7, &eos));
    assert_int_equal(eos, 1);
    dg_file *f = open_file(temp("vocab.gguf"));
    check_strings(f, "tokenizer.ggml.model", (const char *const[]){"llama"}, 1);
    const dg_meta *type = dg_meta_find(f, "tokenizer.ggml.token_type");
    const dg_meta *score = dg_meta_find(f, "tokenizer.ggml.scores");
    for (uint64_t i = 0; i < 7; i++) {
        assert_int_equal(dg_meta_int(type, i), types[i]);
        assert_true(dg_meta_number(score, i) == scores[i]);
    }
    assert_true(dg_meta_bool(f, "tokenizer.ggml.add_space_prefix", &space, NULL) && !space);
    dg_file_close(f);
    snprintf(text, sizeof text, piece_tokenizer, "{\"type\":\"Prepend\",\"prepend\":\"_\"}");
    save_text(temp("pieces"), "tokenizer.json", text);
    check_ok(write_vocab("pieces", 7, &eos));
    f = open_file(temp("vocab.gguf"));
    assert_null(dg_meta_find(f, "tokenizer.ggml.add_space_prefix")); /* the default */
    dg_file_close(f);
}

/* Replaces one part of the byte-level tokenizer; what comes of it must be refused. */
static void refuse(const char *from, const char *to, dg_status code, const char *part) {
    char text[2048];
    int32_t eos;
    const char *at = strstr(bytes_tokenizer, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - bytes_tokenizer), bytes_tokenizer, to,
             at + strlen(from));
    save_text(temp("tok"), "tokenizer.json", text);
    check_fails(write_vocab("tok", 7, &eos), code, part);
}

static void test_unknown_tokenizers(void **state) {
    (void)state;
    mkdir(temp("tok"), 0777);
    refuse("\"use_regex\":true", "\"use_regex\":false", DG_ERR_UNSUPPORTED, "no name for this pre_tokenizer");
    refuse("\"add_prefix_space\":false", "\"add_prefix_space\":true", DG_ERR_UNSUPPORTED, "pre_tokenizer");
    refuse("{\"type\":\"ByteLevel\"", "{\"type\":\"Whitespace\"", DG_ERR_UNSUPPORTED, "neither on bytes");
    refuse("\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}", DG_ERR_UNSUPPORTED, "Lowercase");
    refuse("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", DG_ERR_UNSUPPORTED, "pre_tokenizer");
    refuse("\"type\":\"BPE\"", "\"type\":\"WordPiece\"", DG_ERR_UNSUPPORTED, "WordPiece");
    refuse("[\"ab\",\"a\"]", "[\"a b\",\"a\"]", DG_ERR_FORMAT, "model.merges[1]");
    refuse("[\"ab\",\"a\"]", "7", DG_ERR_FORMAT, "model.merges[1]");
    refuse("\"aba\":4", "\"aba\":-1", DG_ERR_FORMAT, "found -1");
    refuse("\"aba\":4", "\"aba\":\"x\"", DG_ERR_FORMAT, "aba");
    refuse("\"id\":5,", "", DG_ERR_FORMAT, "added_tokens[1]");
}

/* ---- failures --------------------------------------------------------------------------------- */

/* Converting must fail and leave the folder with as many entries as before. */
static void fail_clean(const char *in, const char *out, dg_dtype type, dg_status code, const char *part) {
    const int before = count_entries(tmp);
    const int64_t live = dg_mem_live();
    check_fails(dg_convert(in, out, type, NULL, NULL), code, part);
    assert_int_equal(count_entries(tmp), before);
    assert_int_equal(dg_mem_live(), live);
}

static void test_refusals(void **state) {
    (void)state;
    fail_clean(llama, temp("x"), DG_Q8_0, DG_ERR_ARGUMENT,
               "expected f32, f16 or bf16 (a directory), found q8_0");
    fail_clean(llama, temp("x.gguf"), DG_Q4_0, DG_ERR_ARGUMENT, "or q8_0, found q4_0");
    fail_clean(llama, temp("none/x.gguf"), DG_F32, DG_ERR_IO, "none/x.gguf");
    fail_clean(llama, temp("none/x"), DG_F32, DG_ERR_IO, "none/x");
    fail_clean(temp("absent"), temp("x"), DG_F32, DG_ERR_IO, "absent");
    mkdir(temp("full"), 0777);
    save_text(temp("full"), "a.txt", "a");
    fail_clean(llama, temp("full"), DG_F32, DG_ERR_IO, "not empty");
    fail_clean(llama, temp("full/a.txt"), DG_F32, DG_ERR_IO, "not a directory");
    mkdir(temp("full/d.gguf"), 0777);
    fail_clean(llama, temp("full/d.gguf"), DG_F32, DG_ERR_IO, "cannot rename");
    assert_int_equal(count_entries(temp("full")), 2);
    mkdir(temp("empty"), 0777);
    check_ok(dg_convert(llama, temp("empty"), DG_F32, NULL, NULL));

    check_ok(dg_convert(draft, temp("bare.gguf"), DG_F32, NULL, NULL)); /* no tokenizer in it */
    check_fails(dg_convert_with(draft, temp("bare.gguf"), temp("x.gguf"), DG_F32, NULL, NULL), DG_ERR_FORMAT,
                "bare.gguf: expected a tokenizer");

    char from[192], to[192];
    snprintf(from, sizeof from, "%s/tokenizer.json", llama), snprintf(to, sizeof to, "%s/hidden", llama);
    assert_int_equal(rename(from, to), 0);
    fail_clean(llama, temp("x.gguf"), DG_F32, DG_ERR_IO, "tokenizer.json");
    assert_int_equal(rename(to, from), 0);
}

/* 1e5 fits into bf16 but not into f16; an infinity stays one. */
static void test_f16_range(void **state) {
    (void)state;
    fixture_model(temp("big"), FIXTURE_DFLASH);
    dg_file *f = open_file(temp("big"));
    const dg_file_tensor *t = dg_file_find(f, "fc.weight");
    FILE *file = fopen(temp("big/model.safetensors"), "r+b");
    assert_non_null(file);
    uint64_t header;
    assert_int_equal(fread(&header, 8, 1, file), 1);
    const float first = *(const float *)t->data, values[2] = {INFINITY, 1e5f};
    float at;
    assert_int_equal(fseek(file, (long)(8 + header), SEEK_SET), 0); /* fc is the fixture's first tensor */
    assert_int_equal(fread(&at, 4, 1, file), 1);
    assert_true(at == first);
    dg_file_close(f);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fseek(file, (long)(8 + header), SEEK_SET), 0);
        assert_int_equal(fwrite(&values[i], 4, 1, file), 1);
        fflush(file);
        if (i == 0) check_ok(dg_convert(temp("big"), temp("big.gguf"), DG_F16, NULL, NULL));
    }
    fclose(file);
    unlink(temp("big.gguf"));
    fail_clean(temp("big"), temp("big.gguf"), DG_F16, DG_ERR_UNSUPPORTED, "fc.weight: 100000 does not fit");
    fail_clean(temp("big"), temp("big16"), DG_F16, DG_ERR_UNSUPPORTED, "fc.weight");
    check_ok(dg_convert(temp("big"), temp("big.gguf"), DG_BF16, NULL, NULL));
}

/* A scaling that config.json has no words for. */
static void test_lost_factors(void **state) {
    (void)state;
    fixture_model(temp("rope"), FIXTURE_LLAMA);
    edit_config(temp("rope"), "config.json", "rope_scaling",
                json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor", 8.0, "low_freq_factor",
                          1.0, "high_freq_factor", 4.0, "original_max_position_embeddings", 64));
    check_ok(dg_convert(temp("rope"), temp("rope.gguf"), DG_F32, NULL, NULL));
    check_ok(dg_convert(temp("rope.gguf"), temp("rope2"), DG_F32, NULL, NULL));
    dg_file *f = open_file(temp("rope.gguf")), *g = open_file(temp("rope2"));
    const dg_file_tensor *t = dg_file_find(f, "rope_freqs.weight");
    assert_non_null(t);
    float old[6], odd[6] = {1, 3, 1, 3, 1, 3};
    memcpy(old, t->data, sizeof old);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(g->config, "rope_scaling"),
                                                        "original_max_position_embeddings")),
                     64);
    dg_file_close(f), dg_file_close(g);

    FILE *file = fopen(temp("rope.gguf"), "r+b");
    static char all[1 << 20];
    const size_t n = fread(all, 1, sizeof all, file);
    char *at = memmem(all, n, old, sizeof old);
    assert_non_null(at);
    assert_int_equal(fseek(file, at - all, SEEK_SET), 0);
    assert_int_equal(fwrite(odd, sizeof odd, 1, file), 1);
    fclose(file);
    fail_clean(temp("rope.gguf"), temp("rope3"), DG_F32, DG_ERR_UNSUPPORTED, "rope_freqs.weight");
    check_ok(dg_convert(temp("rope.gguf"), temp("rope3.gguf"), DG_F16, NULL, NULL)); /* GGUF to GGUF may */
}

/* YaRN's own numbers survive; llama.cpp's factor leaves out what llama.cpp multiplies it with, 0.1 ln 4 + 1.
 */
static void test_yarn(void **state) {
    (void)state;
    fixture_model(temp("yarn"), FIXTURE_QWEN3);
    edit_config(temp("yarn"), "config.json", "rope_scaling",
                json_pack("{s:s,s:f,s:f,s:f,s:f,s:i}", "rope_type", "yarn", "factor", 4.0, "beta_fast", 16.0,
                          "beta_slow", 2.0, "attention_factor", 1.3, "original_max_position_embeddings", 64));
    check_ok(dg_convert(temp("yarn"), temp("yarn.gguf"), DG_F32, NULL, NULL));
    check_ok(dg_convert(temp("yarn.gguf"), temp("yarn2"), DG_F32, NULL, NULL));
    dg_file *a = open_file(temp("yarn")), *b = open_file(temp("yarn2")), *g = open_file(temp("yarn.gguf"));
    double factor;
    assert_true(dg_meta_f64(g, "qwen3.rope.scaling.attn_factor", &factor, NULL));
    assert_true(fabs(factor - 1.3 / 1.13862943611199) < 1e-6);
    dg_config c, d;
    check_ok(dg_config_read(a, &c));
    check_ok(dg_config_read(b, &d));
    assert_true(c.rope_factor == d.rope_factor && c.yarn_beta_fast == d.yarn_beta_fast);
    assert_true(c.yarn_beta_slow == d.yarn_beta_slow && c.rope_original == d.rope_original);
    assert_true(fabsf(c.yarn_attn_factor - d.yarn_attn_factor) < 1e-6f);
    dg_file_close(a), dg_file_close(b), dg_file_close(g);
    edit_config(temp("yarn"), "config.json", "rope_scaling",
                json_pack("{s:s,s:f,s:b}", "rope_type", "yarn", "factor", 4.0, "truncate", 0));
    fail_clean(temp("yarn"), temp("yarn3.gguf"), DG_F32, DG_ERR_UNSUPPORTED, "truncate");
}

/* Writing stops after a few kilobytes, as on a full disk: the old file stays, nothing else. */
static void test_full_disk(void **state) {
    (void)state;
    save_text(tmp, "old.gguf", "old");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old, small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    fail_clean(qwen3, temp("old.gguf"), DG_F32, DG_ERR_IO, "old.gguf");
    fail_clean(qwen3, temp("disk"), DG_F32, DG_ERR_IO, "disk");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    char text[8] = "";
    FILE *f = fopen(temp("old.gguf"), "r");
    assert_int_equal(fread(text, 1, sizeof text, f), 3);
    fclose(f);
    assert_string_equal(text, "old");
}

/* Every allocation fails once: MEMORY each time, nothing leaks, nothing is left. */
static void fail_each(const char *in, const char *out) {
    const int64_t live = dg_mem_live();
    const int before = count_entries(tmp);
    for (uint64_t n = 1;; n++) {
        assert_true(n < 100000);
        dg_mem_fail_nth(n, 1);
        const dg_status st = dg_convert_with(in, NULL, out, DG_F16, NULL, NULL);
        dg_mem_fail_nth(0, 0);
        assert_int_equal(dg_mem_live(), live);
        if (st == DG_OK) break;
        /* jansson's parser takes a lack of memory for an error of the text */
        const bool parse = st == DG_ERR_FORMAT && strstr(dg_error_message(), ": line ");
        if (st != DG_ERR_MEMORY && !parse)
            fail_msg("allocation %d: %s: %s", (int)n, dg_status_name(st), dg_error_message());
        assert_int_equal(count_entries(tmp), before);
    }
    remove_tree(out);
}

static void test_memory(void **state) {
    (void)state;
    fail_each(draft, temp("m.gguf"));
    fail_each(draft, temp("m"));
    mkdir(temp("small"), 0777);
    check_ok(dg_convert(draft, temp("d.gguf"), DG_F32, NULL, NULL));
    fail_each(temp("d.gguf"), temp("m"));
    fail_each(temp("d.gguf"), temp("m.gguf"));
    fail_each(llama, temp("m.gguf"));
}

/* ---- the first layers ------------------------------------------------------------------------- */

/* What a model says behind three tokens; layers 0: all it has. */
static void say(const char *path, int32_t layers, int32_t *out, size_t n) {
    dg_model *m = NULL;
    dg_session *s = NULL;
    size_t total;
    check_ok(dg_model_open(path, &(dg_model_options){.threads = 1, .compute = DG_COMPUTE_F32}, &m));
    if (layers) m->net.config.n_layer = layers;
    assert_true(layers || m->net.config.n_layer == 2);
    check_ok(dg_session_create(m, &(dg_session_options){.context = 64, .ignore_stop_tokens = true}, &s));
    check_ok(dg_session_sync(s, (const int32_t[]){5, 60, 7}, 3));
    check_ok(dg_session_generate(s, n, NULL, NULL, NULL));
    memcpy(out, dg_session_tokens(s, &total) + 3, n * sizeof *out);
    dg_session_free(s);
    dg_model_close(m);
}

/* From either container to either: the model that stops after its second layer. */
static void test_first_layers(void **state) {
    (void)state;
    enum { N = 40 };
    const char *const model[] = {llama, qwen3};
    for (int i = 0; i < 2; i++) {
        char whole[192], dir[192], file[192], again[192], back[192];
        int32_t want[N], got[N];
        snprintf(whole, sizeof whole, "%s/whole%d.gguf", tmp, i);
        snprintf(dir, sizeof dir, "%s/first%d", tmp, i);
        snprintf(file, sizeof file, "%s/first%d.gguf", tmp, i);
        snprintf(again, sizeof again, "%s/again%d.gguf", tmp, i);
        snprintf(back, sizeof back, "%s/back%d", tmp, i);
        check_ok(dg_convert(model[i], whole, DG_F32, NULL, NULL));
        check_ok(dg_convert_first(model[i], 2, NULL, dir, DG_F32, NULL, NULL));
        check_ok(dg_convert_first(model[i], 2, NULL, file, DG_F32, NULL, NULL));
        check_ok(dg_convert_first(whole, 2, NULL, again, DG_F32, NULL, NULL));
        check_ok(dg_convert_first(whole, 2, NULL, back, DG_F32, NULL, NULL));
        say(model[i], 2, want, N);
        const char *const made[] = {dir, file, again, back};
        for (int k = 0; k < 4; k++) {
            say(made[k], 0, got, N);
            assert_memory_equal(got, want, sizeof got);
        }
        dg_file *f = open_file(again);
        assert_non_null(dg_meta_find(f, "tokenizer.ggml.tokens"));
        assert_null(dg_file_find(f, "blk.2.attn_q.weight"));
        dg_file_close(f);
    }
    check_fails(dg_convert_first(llama, FIXTURE_LAYERS + 1, NULL, temp("x"), DG_F32, NULL, NULL), DG_ERR_ARGUMENT,
                "layers: expected 1 to 4, found 5");
    check_fails(dg_convert_first(llama, -1, NULL, temp("x"), DG_F32, NULL, NULL), DG_ERR_ARGUMENT, "found -1");
    check_fails(dg_convert_first(draft, 1, NULL, temp("x"), DG_F32, NULL, NULL), DG_ERR_ARGUMENT, "expected a target");
}

int main(void) {
    json_set_alloc_funcs(dg_mem_alloc, dg_mem_free); /* so that the JSON's allocations fail too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_layers), cmocka_unit_test(test_row_order),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_bare_file),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_unknown_tokenizers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_f16_range),
        cmocka_unit_test(test_lost_factors),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
