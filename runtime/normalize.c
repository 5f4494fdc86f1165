/* UTF-8 and Unicode for the tokenizer: ill-formed bytes, NFC, literal replacements, character classes.
 *
 * The only file that uses utf8proc. Its NFC is taken in parts (decompose, order, compose): ordering is done
 * here because utf8proc's is quadratic in a run of combining marks. */
#include "runtime/tokenizer_impl.h"

#include <utf8proc.h>

/* ---- UTF-8 ------------------------------------------------------------------------------------ */

/* Table 3-7 of the Unicode standard: length by first byte, and the range of the second one. */
int dg_utf8_scan(const char *s, size_t len) {
    const uint8_t a = (uint8_t)s[0];
    if (a < 0x80) return 1;
    if (a < 0xC2 || a > 0xF4) return -1;
    const int n = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    const uint8_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < n; i++) {
        if ((size_t)i == len) return 0;
        const uint8_t b = (uint8_t)s[i];
        if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xBF)) return -i;
    }
    return n;
}

size_t dg_utf8_length(const char *s) {
    const uint8_t a = (uint8_t)s[0];
    return a < 0x80 ? 1 : a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
}

size_t dg_utf8_valid(const char *s, size_t len) {
    size_t i = 0;
    for (int n; i < len && (n = dg_utf8_scan(s + i, len - i)) > 0;) i += (size_t)n;
    return i;
}

dg_status dg_utf8_clean(const char *s, size_t len, dg_buffer *out) {
    for (size_t i = 0; i < len;) {
        const size_t good = dg_utf8_valid(s + i, len - i);
        DG_TRY(dg_buffer_add(out, s + i, good));
        i += good;
        if (i == len) break;
        DG_TRY(dg_buffer_add(out, "\xEF\xBF\xBD", 3));
        i++;
    }
    return DG_OK;
}

static int32_t code_point(const char *s) {
    utf8proc_int32_t c;
    utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)dg_utf8_length(s), &c);
    return c;
}

bool dg_utf8_is_space(const char *s) {
    const int32_t c = code_point(s);
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool dg_utf8_is_word(const char *s) {
    const int32_t c = code_point(s);
    const utf8proc_category_t k = utf8proc_category(c);
    if (c == 0x200C || c == 0x200D) return true; /* the joiners */
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

/* ---- NFC -------------------------------------------------------------------------------------- */

static int combining_class(int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Stable sort of marks by combining class: by insertion while short, by counting when somebody made it long.
 */
static dg_status order_marks(int32_t *mark, size_t n) {
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const int32_t c = mark[i];
            size_t j = i;
            for (; j > 0 && combining_class(mark[j - 1]) > combining_class(c); j--) mark[j] = mark[j - 1];
            mark[j] = c;
        }
        return DG_OK;
    }
    size_t start[257] = {0};
    int32_t *copy = dg_mem_alloc(n * sizeof *copy);
    DG_CHECK(copy, DG_ERR_MEMORY, "no memory to order %zu combining marks", n);
    memcpy(copy, mark, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) start[combining_class(mark[i]) + 1]++;
    for (int k = 0; k < 256; k++) start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++) mark[start[combining_class(copy[i])]++] = copy[i];
    dg_mem_free(copy);
    return DG_OK;
}

static dg_status compose(int32_t *c, size_t n, dg_buffer *out) {
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (combining_class(c[i]) == 0) continue;
        while (end < n && combining_class(c[end]) != 0) end++;
        DG_TRY(order_marks(c + i, end - i));
    }
    const utf8proc_ssize_t m =
        utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        DG_TRY(dg_buffer_reserve(out, 4));
        out->n += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out->p + out->n);
    }
    return DG_OK;
}

/* Nothing below U+0300 decomposes under NFC or joins what stands before it. */
static bool is_plain(const char *s, size_t len) {
    for (size_t i = 0; i < len; i++)
        if ((uint8_t)s[i] >= 0xCC) return false;
    return true;
}

static dg_status nfc(const char *s, size_t len, dg_buffer *out) {
    const size_t cap = 2 * len; /* the worst: two bytes become three code points (U+0390) */
    int32_t *c = dg_mem_alloc(dg_mem_mul(cap, sizeof *c));
    DG_CHECK(c, DG_ERR_MEMORY, "no memory to normalise %zu bytes", len);
    size_t n = 0;
    for (size_t i = 0; i < len; i += dg_utf8_length(s + i)) {
        int boundary = 0;
        n += (size_t)utf8proc_decompose_char(code_point(s + i), c + n, (utf8proc_ssize_t)(cap - n),
                                             UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
    }
    const dg_status st = compose(c, n, out);
    dg_mem_free(c);
    return st;
}

/* ---- steps ------------------------------------------------------------------------------------ */

static dg_status replace(const dg_normal *step, const char *s, size_t len, dg_buffer *out) {
    const size_t from = strlen(step->from), to = strlen(step->to);
    const char *end = s + len;
    for (const char *hit; (hit = memmem(s, (size_t)(end - s), step->from, from)); s = hit + from) {
        DG_TRY(dg_buffer_add(out, s, (size_t)(hit - s)));
        DG_TRY(dg_buffer_add(out, step->to, to));
    }
    return dg_buffer_add(out, s, (size_t)(end - s));
}

dg_status dg_normalize(const dg_normal *step, size_t n_step, dg_str s, bool first, dg_buffer a[2],
                       dg_str *out) {
    dg_str now = s;
    size_t k = 0;
    for (size_t i = 0; i < n_step && now.len > 0; i++) {
        if (step[i].first_only && !first) continue;
        if (step[i].kind == DG_NORMAL_NFC && is_plain(now.ptr, now.len)) continue;
        dg_buffer *to = &a[k];
        to->n = 0;
        switch (step[i].kind) {
        case DG_NORMAL_NFC: DG_TRY(nfc(now.ptr, now.len, to)); break;
        case DG_NORMAL_PREPEND:
            DG_TRY(dg_buffer_add(to, step[i].to, strlen(step[i].to)));
            DG_TRY(dg_buffer_add(to, now.ptr, now.len));
            break;
        case DG_NORMAL_REPLACE: DG_TRY(replace(&step[i], now.ptr, now.len, to)); break;
        }
        now = (dg_str){to->p, to->n};
        k = 1 - k;
    }
    *out = now;
    return DG_OK;
}
