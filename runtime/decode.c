/* Streaming decode: bytes of tokens to whole UTF-8, ill-formed sequences to U+FFFD as soon as they are
 * certain. */
#include "runtime/tokenizer_impl.h"

static size_t put_replacement(char *out) {
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* One more byte. Each maximal subpart of an ill-formed sequence becomes one U+FFFD, as Unicode recommends. */
static size_t push_byte(dg_decoder *d, char byte, char *out) {
    size_t n = 0;
    d->tail[d->n_tail++] = byte;
    while (d->n_tail > 0) {
        const int k = dg_utf8_scan(d->tail, d->n_tail);
        if (k == 0) break;
        const size_t used = (size_t)(k > 0 ? k : -k);
        if (k > 0)
            memcpy(out + n, d->tail, used), n += used;
        else
            n += put_replacement(out + n);
        d->n_tail = (uint8_t)(d->n_tail - used);
        memmove(d->tail, d->tail + used, d->n_tail);
    }
    return n;
}

size_t dg_decoder_push(const dg_tokenizer *t, dg_decoder *d, int32_t id, bool skip_special, char *out) {
    if (skip_special && dg_tokenizer_is_special(t, id)) return 0;
    dg_str s = dg_tokenizer_bytes(t, id);
    if (t->strip_first && !d->started && s.len > 0 && s.ptr[0] == ' ') s.ptr++, s.len--;
    d->started = true;
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) n += push_byte(d, s.ptr[i], out + n);
    return n;
}

size_t dg_decoder_flush(dg_decoder *d, char *out) {
    if (d->n_tail == 0) return 0;
    d->n_tail = 0; /* a beginning of a character is one maximal subpart */
    return put_replacement(out);
}
