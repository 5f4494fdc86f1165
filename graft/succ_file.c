/* Files of the successor matrix: its own, and warm-up from text. */
#include <inttypes.h>
#include <string.h>

#include "graft/succ.h"
#include "runtime/out.h"
#include "runtime/target.h"

enum { VERSION = 1, HEAD = 32 };
static const char magic[8] = {'d', 'g', 's', 'u', 'c', 'c', '\r', '\n'};

/* The head of a file: magic, version, vocabulary, width, and a checksum of the rows. */
typedef struct head {
    uint32_t version, vocab, width;
    uint64_t sum;
} head;

static void put32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* FNV-1a, 64 bits. */
static uint64_t checksum(uint64_t sum, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
    return sum;
}
static const uint64_t sum_start = UINT64_C(0xcbf29ce484222325);

static int32_t width_for(const dg_model *m) {
    return m->net.config.vocab_size < DG_SUCC_WIDTH ? m->net.config.vocab_size : DG_SUCC_WIDTH;
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* Rows [at, at + n) as bytes. */
static void rows_out(const dg_succ *s, int32_t at, int32_t n, uint8_t *to) {
    int32_t row[DG_SUCC_ROOTS * DG_SUCC_WIDTH];
    dg_backend *be = s->model->be;
    be->ops->download(be, row, dg_mat_row(&s->m, at), (size_t)(n * s->width) * sizeof *row);
    for (int32_t i = 0; i < n * s->width; i++) put32(to + 4 * i, (uint32_t)row[i]);
}

dg_status dg_succ_save(const dg_succ *s, const char *path) {
    uint8_t bytes[DG_SUCC_ROOTS * DG_SUCC_WIDTH * 4], first[HEAD];
    uint64_t sum = sum_start;
    dg_out *out = NULL;
    DG_TRY(dg_out_open(path, &out));
    for (int pass = 0; pass < 2; pass++) { /* the checksum stands before what it covers */
        for (int32_t at = 0; at < s->m.rows; at += DG_SUCC_ROOTS) {
            const int32_t n = s->m.rows - at < DG_SUCC_ROOTS ? s->m.rows - at : DG_SUCC_ROOTS;
            rows_out(s, at, n, bytes);
            if (pass == 0)
                sum = checksum(sum, bytes, (size_t)(n * s->width) * 4);
            else
                dg_out_write(out, bytes, (size_t)(n * s->width) * 4);
        }
        if (pass) break;
        memcpy(first, magic, sizeof magic);
        put32(first + 8, VERSION);
        put32(first + 12, (uint32_t)s->m.rows);
        put32(first + 16, (uint32_t)s->width);
        put32(first + 20, 0);
        put32(first + 24, (uint32_t)sum);
        put32(first + 28, (uint32_t)(sum >> 32));
        dg_out_write(out, first, sizeof first);
    }
    const dg_status st = dg_backend_check(s->model->be);
    if (st == DG_OK) return dg_out_commit(out);
    dg_out_abandon(out);
    return st;
}

/* ---- reading ---------------------------------------------------------------------------------- */

static dg_status read_rows(const dg_model *m, const char *path, const uint8_t *p, size_t len, int32_t *warm) {
    const uint32_t vocab = (uint32_t)m->net.config.vocab_size, width = (uint32_t)width_for(m);
    DG_CHECK(len >= HEAD, DG_ERR_FORMAT, "%s: a successor matrix of %zu bytes: expected at least %d", path,
             len, HEAD);
    const head h = {get32(p + 8), get32(p + 12), get32(p + 16),
                    get32(p + 24) | (uint64_t)get32(p + 28) << 32};
    DG_CHECK(h.version == VERSION, DG_ERR_FORMAT,
             "%s: version of the successor matrix: expected %d, found %" PRIu32, path, VERSION, h.version);
    DG_CHECK(h.vocab == vocab && h.width == width, DG_ERR_FORMAT,
             "%s: successors of a vocabulary of %" PRIu32 " tokens, %" PRIu32 " each: the model has %" PRIu32
             ", %" PRIu32 " each; the file was made for another model",
             path, h.vocab, h.width, vocab, width);
    const size_t cells = (size_t)vocab * width;
    DG_CHECK(len == HEAD + 4 * cells, DG_ERR_FORMAT, "%s: expected %zu bytes, found %zu", path,
             HEAD + 4 * cells, len);
    DG_CHECK(checksum(sum_start, p + HEAD, 4 * cells) == h.sum, DG_ERR_FORMAT,
             "%s: the checksum does not match: the file is damaged", path);
    for (size_t i = 0; i < cells; i++) {
        const uint32_t id = get32(p + HEAD + 4 * i);
        DG_CHECK(id < vocab || id == UINT32_MAX, DG_ERR_FORMAT,
                 "%s: successor %zu of token %zu is %" PRIu32 ": expected a token below %" PRIu32, path,
                 i % width, i / width, id, vocab);
        warm[i] = (int32_t)id;
    }
    return DG_OK;
}

/* A pair of neighbours in a text, as one integer that sorts by the first. */
static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Enters (next, count) into a row sorted by count; of equal counts the first stays ahead. */
static void enter(int32_t *row, size_t *count, int32_t width, int32_t next, size_t n) {
    if (n <= count[width - 1]) return;
    int32_t at = width - 1;
    for (; at > 0 && n > count[at - 1]; at--) row[at] = row[at - 1], count[at] = count[at - 1];
    row[at] = next, count[at] = n;
}

static void count_pairs(const uint64_t *pair, size_t n, int32_t width, int32_t *warm) {
    size_t count[DG_SUCC_WIDTH] = {0};
    for (size_t i = 0, end; i < n; i = end) {
        if (i > 0 && pair[i] >> 32 != pair[i - 1] >> 32) memset(count, 0, sizeof count);
        for (end = i + 1; end < n && pair[end] == pair[i];) end++;
        enter(warm + (size_t)(pair[i] >> 32) * (size_t)width, count, width, (int32_t)(uint32_t)pair[i],
              end - i);
    }
}

static bool is_text(const char *p, size_t len) {
    if (memchr(p, 0, len)) return false;
    for (size_t i = 0; i < len;) { /* UTF-8 by the lengths of its sequences; the tokenizer minds the rest */
        const uint8_t c = (uint8_t)p[i];
        const size_t more = c < 0x80 ? 0 : c < 0xc2 ? len : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : len;
        if (more >= len - i) return false;
        for (size_t k = 1; k <= more; k++)
            if (((uint8_t)p[i + k] & 0xc0) != 0x80) return false;
        i += 1 + more;
    }
    return true;
}

static dg_status read_text(const dg_model *m, const char *path, const char *text, size_t len, int32_t *warm) {
    DG_CHECK(is_text(text, len), DG_ERR_FORMAT, "%s: neither a successor matrix nor UTF-8 text", path);
    DG_CHECK(m->tokenizer, DG_ERR_UNSUPPORTED, "%s: %s has no tokenizer to read a text with", path,
             m->net.file->path);
    size_t n = 0;
    DG_TRY(dg_tokenize(m, text, len, 0, NULL, 0, &n));
    DG_CHECK(n >= 2, DG_ERR_FORMAT, "%s: a text of %zu tokens: expected at least 2", path, n);
    int32_t *id = dg_mem_alloc(dg_mem_mul(n, sizeof *id));
    uint64_t *pair = dg_mem_alloc(dg_mem_mul(n, sizeof *pair));
    dg_status st = id && pair ? dg_tokenize(m, text, len, 0, id, n, &n)
                              : dg_fail(DG_ERR_MEMORY, "%s: no memory for %zu tokens", path, n);
    if (st == DG_OK) {
        for (size_t i = 0; i + 1 < n; i++) pair[i] = (uint64_t)(uint32_t)id[i] << 32 | (uint32_t)id[i + 1];
        qsort(pair, n - 1, sizeof *pair, by_value);
        count_pairs(pair, n - 1, width_for(m), warm);
    }
    dg_mem_free(id);
    dg_mem_free(pair);
    return st;
}

dg_status dg_succ_read(const struct dg_model *m, const char *path, int32_t **warm) {
    enum { MOST = 256 << 20 };
    const size_t cells = (size_t)m->net.config.vocab_size * (size_t)width_for(m);
    char *bytes = NULL;
    size_t len;
    DG_TRY(dg_file_slurp(path, MOST, &bytes, &len));
    int32_t *rows = dg_mem_alloc(dg_mem_mul(cells, sizeof *rows));
    dg_status st = rows ? DG_OK : dg_fail(DG_ERR_MEMORY, "%s: no memory for a successor matrix", path);
    if (st == DG_OK) {
        memset(rows, 0xff, cells * sizeof *rows); /* -1 */
        if (len >= sizeof magic && !memcmp(bytes, magic, sizeof magic))
            st = read_rows(m, path, (const uint8_t *)bytes, len, rows);
        else
            st = read_text(m, path, bytes, len, rows);
    }
    dg_mem_free(bytes);
    if (st != DG_OK) {
        dg_mem_free(rows);
        return st;
    }
    *warm = rows;
    return DG_OK;
}
