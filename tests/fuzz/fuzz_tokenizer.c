/* Fuzz entry: the bytes of a tokenizer.json, a NUL, and a text; or, not beginning with '{', of a sentencepiece
 * model. Whatever opens must encode and decode the text without a fault. */
#include <assert.h>
#include <stdlib.h>

#include "runtime/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const dg_tokenizer *t, const char *text, size_t len) {
    for (int flags = 0; flags <= (DG_ENCODE_BOS | DG_ENCODE_SPECIAL); flags++) {
        size_t n = 0, again = 0;
        if (dg_tokenizer_encode(t, text, len, flags, NULL, 0, &n) != DG_OK || n > 1 << 20) continue;
        int32_t *ids = malloc((n + 1) * sizeof *ids);
        char *out = malloc(dg_tokenizer_max_bytes(t) + 8);
        assert(dg_tokenizer_encode(t, text, len, flags, ids, n, &again) == DG_OK && again == n);
        dg_decoder d = {0};
        for (size_t i = 0; i < n; i++) {
            assert(ids[i] >= 0 && ids[i] < dg_tokenizer_size(t));
            const size_t more = dg_decoder_push(t, &d, ids[i], flags & 1, out);
            assert(more <= dg_tokenizer_max_bytes(t) + 8 && dg_utf8_valid(out, more) == more);
        }
        assert(dg_decoder_flush(&d, out) <= 3);
        free(ids);
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *file = (const char *)data, *nul = size ? memchr(file, 0, size) : NULL;
    const bool json = size && file[0] == '{';
    const size_t len = json && nul ? (size_t)(nul - file) : size;
    dg_tokenizer *t = dg_tokenizer_create();
    if (!t) return 0;
    const dg_status st = json ? dg_tokenizer_read_json(t, "fuzz", (dg_str){file, len})
                              : dg_tokenizer_read_sentencepiece(t, "fuzz", (dg_str){file, len}, true);
    if (st == DG_OK) use(t, file + len, size - len);
    if (st == DG_OK && !json) use(t, file, size);
    dg_tokenizer_close(t);
    return 0;
}
