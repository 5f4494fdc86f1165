/* The safetensors container: one file, or shards named by an index, with the config files beside them.
 *
 * A file is an 8-byte little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, and
 * the data, which the tensors fill without holes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/file_build.h"
#include "runtime/mem.h"

enum {
    HEADER_MAX = 100000000, /* the format's own limit */
    INDEX_MAX = 64 << 20,
    SHARDS_MAX = 4096
};

static dg_status read_dtype(const char *path, const char *name, const json_t *entry, dg_dtype *out) {
    static const struct {
        const char *name;
        dg_dtype dtype;
    } known[] = {{"F32", DG_F32}, {"F16", DG_F16}, {"BF16", DG_BF16}, {"F64", DG_F64}, {"I8", DG_I8},
                 {"I16", DG_I16}, {"I32", DG_I32}, {"I64", DG_I64},   {"U8", DG_U8},   {"BOOL", DG_BOOL}};
    const char *s = json_string_value(json_object_get(entry, "dtype"));
    DG_CHECK(s, DG_ERR_FORMAT, "%s: tensor %s: dtype: expected a string", path, name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(s, known[i].name) != 0) continue;
        *out = known[i].dtype;
        return DG_OK;
    }
    DG_FAIL(DG_ERR_UNSUPPORTED,
            "%s: tensor %s: dtype %.32s is not supported; supported: F32, F16, BF16, F64, I8, I16, I32, I64, "
            "U8, BOOL",
            path, name, s);
}

/* An array of non-negative integers of at most max entries. */
static dg_status read_sizes(const char *path, const char *name, const json_t *entry, const char *key,
                            size_t max, int64_t *v, size_t *n) {
    const json_t *a = json_object_get(entry, key);
    DG_CHECK(json_is_array(a), DG_ERR_FORMAT, "%s: tensor %s: %s: expected an array", path, name, key);
    *n = json_array_size(a);
    DG_CHECK(*n <= max, DG_ERR_FORMAT, "%s: tensor %s: %s: expected at most %zu numbers, found %zu", path,
             name, key, max, *n);
    for (size_t i = 0; i < *n; i++) {
        const json_t *e = json_array_get(a, i);
        DG_CHECK(json_is_integer(e) && json_integer_value(e) >= 0, DG_ERR_FORMAT,
                 "%s: tensor %s: %s[%zu]: expected an integer from 0 up", path, name, key, i);
        v[i] = json_integer_value(e);
    }
    return DG_OK;
}

/* Fills t, whose name the caller has set; data is the size bytes after the header. */
static dg_status read_entry(const char *path, const json_t *entry, const uint8_t *data, size_t size,
                            dg_file_tensor *t) {
    size_t n;
    int64_t range[2];
    DG_CHECK(json_is_object(entry), DG_ERR_FORMAT, "%s: tensor %s: expected an object", path, t->name);
    DG_TRY(read_dtype(path, t->name, entry, &t->dtype));
    DG_TRY(read_sizes(path, t->name, entry, "shape", DG_MAX_DIMS, t->dim, &n));
    t->n_dim = (int32_t)n;
    DG_TRY(read_sizes(path, t->name, entry, "data_offsets", 2, range, &n));
    DG_CHECK(n == 2 && range[0] <= range[1], DG_ERR_FORMAT,
             "%s: tensor %s: data_offsets: expected begin and end in this order", path, t->name);
    DG_CHECK(
        (uint64_t)range[1] <= size, DG_ERR_FORMAT,
        "%s: tensor %s: data_offsets: expected an end of at most %zu, found %lld (is the file complete?)",
        path, t->name, size, (long long)range[1]);
    DG_TRY(dg_tensor_measure(path, t));
    DG_CHECK((uint64_t)(range[1] - range[0]) == t->size, DG_ERR_FORMAT,
             "%s: tensor %s: data_offsets: expected %zu bytes for its shape and dtype, found %lld", path,
             t->name, t->size, (long long)(range[1] - range[0]));
    t->data = data + range[0];
    return DG_OK;
}

/* The tensors fill the data from begin to end. */
static dg_status check_filled(const char *path, dg_file_tensor *t, size_t n, const uint8_t *data,
                              size_t size) {
    DG_TRY(dg_tensor_layout(path, t, n, data));
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i++) {
        DG_CHECK(t[i].data == at, DG_ERR_FORMAT,
                 "%s: tensor %s: data_offsets: expected to begin at %zu, found %zu", path, t[i].name,
                 (size_t)(at - data), (size_t)((const uint8_t *)t[i].data - data));
        at += t[i].size;
    }
    DG_CHECK(at == data + size, DG_ERR_FORMAT, "%s: expected %zu bytes of data after the header, found %zu",
             path, (size_t)(at - data), size);
    return DG_OK;
}

static dg_status read_header(const char *path, const uint8_t *p, size_t size, json_t **out,
                             const uint8_t **data) {
    uint64_t n = 0;
    DG_CHECK(size > 8, DG_ERR_FORMAT, "%s: expected a safetensors header, found %zu bytes", path, size);
    for (int i = 0; i < 8; i++) n |= (uint64_t)p[i] << (8 * i);
    DG_CHECK(
        n <= HEADER_MAX && n <= size - 8, DG_ERR_FORMAT,
        "%s: header length: expected at most %zu (the rest of the file, or the format's limit), found %llu",
        path, size - 8 < HEADER_MAX ? size - 8 : (size_t)HEADER_MAX, (unsigned long long)n);
    DG_TRY(dg_json_parse(path, (const char *)p + 8, (size_t)n, out));
    *data = p + 8 + n;
    return DG_OK;
}

/* Maps one file and appends its tensors. */
static dg_status read_file(dg_file *f, const char *path) {
    DG_TRY(dg_file_map(f, path));
    const struct dg_mapping m = f->mapping[f->n_mapping - 1];
    json_t *header = NULL;
    const uint8_t *data = NULL;
    const size_t first = f->n_tensor;
    const char *key;
    json_t *entry;

    dg_status st = read_header(path, m.data, m.size, &header, &data);
    if (st != DG_OK) goto out;
    const size_t size = m.size - (size_t)(data - m.data);
    if (!json_is_object(header)) {
        st = dg_fail(DG_ERR_FORMAT, "%s: header: expected an object", path);
        goto out;
    }
    st = dg_file_reserve(f, json_object_size(header));
    if (st != DG_OK) goto out;
    json_object_foreach(header, key, entry) {
        if (strcmp(key, "__metadata__") == 0) continue;
        dg_file_tensor *t = &f->tensor[f->n_tensor];
        st = dg_name_check(path, "tensor", key, strlen(key));
        if (st != DG_OK) goto out;
        t->name = dg_mem_strdup(key);
        if (!t->name) {
            st = dg_fail(DG_ERR_MEMORY, "%s: no memory", path);
            goto out;
        }
        f->n_tensor++;
        st = read_entry(path, entry, data, size, t);
        if (st != DG_OK) goto out;
    }
    if (f->n_tensor == first)
        st = dg_fail(DG_ERR_FORMAT, "%s: expected at least one tensor, found none", path);
    if (st == DG_OK) st = check_filled(path, f->tensor + first, f->n_tensor - first, data, size);
out:
    json_decref(header);
    return st;
}

/* ---- shards ----------------------------------------------------------------------------------- */

/* {shard: number} of every file that the weight map names. */
static dg_status list_shards(const char *path, json_t *weights, json_t *shards) {
    const char *name;
    json_t *entry;
    DG_CHECK(json_object_size(weights) > 0, DG_ERR_FORMAT, "%s: weight_map: expected an object of file names",
             path);
    json_object_foreach(weights, name, entry) {
        const char *shard = json_string_value(entry);
        DG_CHECK(shard && *shard && !strchr(shard, '/') && *shard != '.', DG_ERR_FORMAT,
                 "%s: weight_map: %.64s: expected the name of a file in the same folder, found %.64s", path,
                 name, shard ? shard : "no string");
        if (json_object_get(shards, shard)) continue;
        const size_t n = json_object_size(shards);
        DG_CHECK(n < SHARDS_MAX, DG_ERR_FORMAT, "%s: weight_map: expected at most %d files", path,
                 SHARDS_MAX);
        DG_CHECK(json_object_set_new(shards, shard, json_integer((json_int_t)n)) == 0, DG_ERR_MEMORY,
                 "%s: no memory", path);
    }
    return DG_OK;
}

/* Every tensor of the weight map is where the map says. */
static dg_status check_shards(const dg_file *f, const char *path, json_t *weights, const json_t *shards) {
    const char *name;
    json_t *entry;
    json_object_foreach(weights, name, entry) {
        const char *shard = json_string_value(entry);
        const struct dg_mapping *m = &f->mapping[json_integer_value(json_object_get(shards, shard))];
        const dg_file_tensor *t = dg_file_find(f, name);
        const uint8_t *p = t ? t->data : NULL;
        DG_CHECK(t && p >= m->data && p <= m->data + m->size, DG_ERR_FORMAT,
                 "%s: weight_map: expected tensor %.64s in %s, found %s", path, name, shard,
                 t ? "it in another file" : "none");
    }
    return DG_OK;
}

/* "dir/name" in fresh memory. */
static char *join(const char *dir, const char *name) {
    const size_t cap = strlen(dir) + strlen(name) + 2;
    char *p = dg_mem_alloc(cap);
    if (p) snprintf(p, cap, "%s/%s", dir, name);
    return p;
}

static dg_status read_shards(dg_file *f, const char *index) {
    char *text = NULL, *path = NULL;
    size_t len;
    json_t *root = NULL, *shards = json_object(), *entry;
    const char *name;
    dg_status st = shards ? dg_file_slurp(index, INDEX_MAX, &text, &len)
                          : dg_fail(DG_ERR_MEMORY, "%s: no memory", index);
    if (st == DG_OK) st = dg_json_parse(index, text, len, &root);
    if (st != DG_OK) goto out;
    json_t *weights = json_object_get(root, "weight_map");
    st = list_shards(index, weights, shards);
    if (st != DG_OK) goto out;
    /* in the order of their numbers: jansson keeps insertion order, so mapping[number] is the shard */
    json_object_foreach(shards, name, entry) {
        dg_mem_free(path);
        path = join(f->path, name);
        st = path ? read_file(f, path) : dg_fail(DG_ERR_MEMORY, "%s: no memory", index);
        if (st == DG_ERR_IO) dg_fail_prefix(st, "a shard named in %s", index);
        if (st != DG_OK) goto out;
    }
    st = dg_file_index(f);
    if (st == DG_OK) st = check_shards(f, index, weights, shards);
out:
    dg_mem_free(path);
    dg_mem_free(text);
    json_decref(root);
    json_decref(shards);
    return st;
}

/* ---- opening ---------------------------------------------------------------------------------- */

static dg_status read_directory(dg_file *f) {
    char *single = join(f->path, "model.safetensors"), *index = join(f->path, "model.safetensors.index.json");
    dg_status st = DG_OK;
    if (!single || !index)
        st = dg_fail(DG_ERR_MEMORY, "%s: no memory", f->path);
    else if (access(single, F_OK) == 0) {
        st = read_file(f, single);
        if (st == DG_OK) st = dg_file_index(f);
    } else if (access(index, F_OK) == 0)
        st = read_shards(f, index);
    else
        st = dg_fail(DG_ERR_IO,
                     "%s: expected model.safetensors or model.safetensors.index.json in the folder, "
                     "found neither",
                     f->path);
    dg_mem_free(single);
    dg_mem_free(index);
    return st;
}

dg_status dg_safetensors_open(const char *path, dg_file **out) {
    struct stat sb;
    dg_file *f;
    DG_CHECK(stat(path, &sb) == 0, DG_ERR_IO, "%s: %s", path, strerror(errno));
    const bool dir = S_ISDIR(sb.st_mode);
    DG_TRY(dg_file_new(path, DG_CONTAINER_SAFETENSORS, &f));
    dg_status st = dg_file_json(f, "config.json", dir, &f->config);
    if (st == DG_OK) st = dg_file_json(f, "generation_config.json", false, &f->generation);
    if (st == DG_OK) {
        st = dir ? read_directory(f) : read_file(f, path);
        if (st == DG_OK && !dir) st = dg_file_index(f);
    }
    if (st != DG_OK) {
        dg_file_close(f);
        return st;
    }
    *out = f;
    return DG_OK;
}
