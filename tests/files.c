/* See files.h. */
#include "tests/files.h"

#include <ftw.h>

#include "tests/test.h"

void put(bytes *b, const void *p, size_t n) {
    assert_true(b->n + n <= sizeof b->p);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void put_int(bytes *b, uint64_t v, int width) {
    for (int i = 0; i < width; i++) {
        const uint8_t byte = (uint8_t)(v >> (8 * i));
        put(b, &byte, 1);
    }
}

void put_f32(bytes *b, float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    put_int(b, u, 4);
}

void put_gguf(bytes *b, uint32_t version, uint64_t n_tensor, uint64_t n_key) {
    put(b, "GGUF", 4);
    put_int(b, version, 4);
    put_int(b, n_tensor, 8);
    put_int(b, n_key, 8);
}

void put_str(bytes *b, const char *s) {
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

void put_key(bytes *b, const char *name, uint32_t type) {
    put_str(b, name);
    put_int(b, type, 4);
}

void put_key_str(bytes *b, const char *name, const char *value) {
    put_key(b, name, GGUF_STRING);
    put_str(b, value);
}

void put_key_u32(bytes *b, const char *name, uint32_t value) {
    put_key(b, name, GGUF_U32);
    put_int(b, value, 4);
}

void put_array(bytes *b, const char *name, uint32_t type, uint64_t n) {
    put_key(b, name, GGUF_ARRAY);
    put_int(b, type, 4);
    put_int(b, n, 8);
}

void put_tensor(bytes *b, const char *name, const uint64_t *ne, uint32_t n_dim, uint32_t type,
                uint64_t offset) {
    put_str(b, name);
    put_int(b, n_dim, 4);
    for (uint32_t i = 0; i < n_dim; i++) put_int(b, ne[i], 8);
    put_int(b, type, 4);
    put_int(b, offset, 8);
}

void put_align(bytes *b, size_t alignment) {
    while (b->n % alignment) put_int(b, 0, 1);
}

void put_safetensors(bytes *b, const char *header, size_t n_data) {
    put_int(b, strlen(header), 8);
    put(b, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) put_int(b, i & 255, 1);
}

const char *save(const char *dir, const char *name, const void *p, size_t n) {
    static char ring[8][512];
    static unsigned next;
    char *path = ring[next++ % 8];
    snprintf(path, sizeof ring[0], "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("cannot write %s", path);
    if (n) assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *save_text(const char *dir, const char *name, const char *text) {
    return save(dir, name, text, strlen(text));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

void remove_tree(const char *dir) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

void sample_safetensors(bytes *b) {
    b->n = 0;
    put_safetensors(b,
                    "{\"__metadata__\":{\"format\":\"pt\"},"
                    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                    "\"a.bias\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
                    "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]},"
                    "\"none\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[40,40]}}   ",
                    40);
}

void sample_gguf(bytes *b) {
    static const uint64_t matrix[] = {32, 2}, vector[] = {5};
    b->n = 0;
    put_gguf(b, 3, 2, 16);
    put_key_str(b, "general.architecture", "llama");
    put_key(b, "t.u8", GGUF_U8), put_int(b, 250, 1);
    put_key(b, "t.i8", GGUF_I8), put_int(b, (uint64_t)-5, 1);
    put_key(b, "t.u16", GGUF_U16), put_int(b, 65530, 2);
    put_key(b, "t.i16", GGUF_I16), put_int(b, (uint64_t)-300, 2);
    put_key_u32(b, "t.u32", 4000000000u);
    put_key(b, "t.i32", GGUF_I32), put_int(b, (uint64_t)-70000, 4);
    put_key(b, "t.f32", GGUF_F32), put_f32(b, -1.5f);
    put_key(b, "t.bool", GGUF_BOOL), put_int(b, 1, 1);
    put_key(b, "t.u64", GGUF_U64), put_int(b, UINT64_MAX, 8);
    put_key(b, "t.i64", GGUF_I64), put_int(b, (uint64_t)INT64_MIN, 8);
    put_key(b, "t.f64", GGUF_F64), put_int(b, 0x400921fb54442d18u, 8);
    put_array(b, "t.ints", GGUF_I16, 3), put_int(b, 7, 2), put_int(b, 0xffff, 2), put_int(b, 9, 2);
    put_array(b, "t.strings", GGUF_STRING, 3), put_str(b, "one"), put_str(b, ""), put_str(b, "three");
    put_array(b, "t.flags", GGUF_BOOL, 2), put_int(b, 0, 1), put_int(b, 1, 1);
    put_array(b, "t.none", GGUF_F32, 0);
    put_tensor(b, "blk.0.w", matrix, 2, 8, 0); /* q8_0: two blocks of 34 bytes */
    put_tensor(b, "a.norm", vector, 1, 0, 96);
    put_align(b, 32);
    for (int i = 0; i < 68; i++) put_int(b, (uint64_t)i, 1);
    put_align(b, 32);
    for (int i = 0; i < 5; i++) put_f32(b, (float)i);
}
