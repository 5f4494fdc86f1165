/* SentencePiece: what its models have in common wherever they are stored, and its own file (tokenizer.model).
 *
 * The file is a protocol buffer (sentencepiece_model.proto: pieces 1, trainer_spec 2, normalizer_spec 3); the
 * few fields needed are read here, the rest is skipped by wire type. Only BPE models without a character map.
 */
#include "runtime/tokenizer_impl.h"

static const char SPACE_MARK[] = "\xE2\x96\x81"; /* U+2581 */

/* ---- shared with the other containers --------------------------------------------------------- */

dg_status dg_tokenizer_use_pieces(dg_tokenizer *t, const char *what, bool prefix, bool first_only) {
    const dg_normal front = {.kind = DG_NORMAL_PREPEND, .first_only = first_only, .to = SPACE_MARK};
    const dg_normal mark = {.kind = DG_NORMAL_REPLACE, .from = " ", .to = SPACE_MARK};
    t->strip_first = prefix;
    if (prefix) DG_TRY(dg_tokenizer_add_normal(t, what, front));
    return dg_tokenizer_add_normal(t, what, mark);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int dg_piece_byte(dg_str s) {
    if (s.len != 6 || memcmp(s.ptr, "<0x", 3) != 0 || s.ptr[5] != '>') return -1;
    const int high = hex_digit(s.ptr[3]), low = hex_digit(s.ptr[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

dg_status dg_tokenizer_set_piece(dg_tokenizer *t, int32_t id, dg_str s, bool is_byte) {
    if (!is_byte) return dg_tokenizer_set_printed(t, id, s, SPACE_MARK, " ");
    const int byte = dg_piece_byte(s);
    DG_CHECK(byte >= 0, DG_ERR_FORMAT, "a byte token: expected <0x00> to <0xFF>, found \"%.*s\"",
             (int)(s.len < 32 ? s.len : 32), s.ptr);
    t->vocab.byte_id[byte] = id;
    return dg_vocab_set_text(&t->vocab, id, &(char){(char)byte}, 1);
}

int dg_piece_kind(int64_t type) {
    switch (type) {
    case DG_PIECE_UNKNOWN:
    case DG_PIECE_CONTROL: return DG_TOKEN_SPECIAL;
    case DG_PIECE_UNUSED: return DG_TOKEN_PAD;
    case DG_PIECE_BYTE: return DG_TOKEN_BYTE;
    default: return DG_TOKEN_MODEL;
    }
}

/* ---- protocol buffer -------------------------------------------------------------------------- */

typedef struct field {
    uint64_t number, value; /* value: of a varint */
    dg_str bytes;           /* of everything else */
} field;

static bool read_varint(dg_str *s, uint64_t *v) {
    *v = 0;
    for (int shift = 0; s->len > 0 && shift < 64; shift += 7) {
        const uint8_t b = (uint8_t)*s->ptr++;
        s->len--;
        *v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80) return true;
    }
    return false;
}

/* Takes the next field off s. False when there is none, or when it is damaged: then s keeps it. */
static bool read_field(dg_str *s, field *f) {
    dg_str at = *s;
    uint64_t key, n = 0;
    bool whole = read_varint(&at, &key);
    *f = (field){.number = whole ? key >> 3 : 0};
    switch (whole ? key & 7 : 0) {
    case 0: whole = whole && read_varint(&at, &f->value); break;
    case 1: n = 8; break;
    case 2: whole = read_varint(&at, &n); break;
    case 5: n = 4; break;
    default: whole = false;
    }
    if (!whole || n > at.len) return false;
    f->bytes = (dg_str){at.ptr, (size_t)n};
    *s = (dg_str){at.ptr + n, at.len - (size_t)n};
    return true;
}

static float read_float(dg_str s) {
    uint32_t bits = 0;
    float v;
    for (size_t i = 0; i < 4 && i < s.len; i++) bits |= (uint32_t)(uint8_t)s.ptr[i] << (8 * i);
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- tokenizer.model -------------------------------------------------------------------------- */

/* The specifications, with the defaults of sentencepiece_model.proto. */
typedef struct model {
    int64_t n_piece;
    int64_t type, unknown, bos, eos;
    bool suffix, prefix, squeeze, escape;
    size_t map_len;
} model;

static dg_status read_specs(const char *path, dg_str file, model *m) {
    field f, g;
    *m = (model){.type = 1, .bos = 1, .eos = 2, .prefix = true, .squeeze = true, .escape = true};
    while (read_field(&file, &f)) {
        dg_str s = f.bytes;
        m->n_piece += f.number == 1;
        if (f.number != 2 && f.number != 3) continue;
        while (read_field(&s, &g)) {
            const int64_t v = (int64_t)g.value;
            switch (f.number * 100 + g.number) {
            case 203: m->type = v; break;
            case 224: m->suffix = v != 0; break;
            case 240: m->unknown = v; break;
            case 241: m->bos = v; break;
            case 242: m->eos = v; break;
            case 302: m->map_len = g.bytes.len; break;
            case 303: m->prefix = v != 0; break;
            case 304: m->squeeze = v != 0; break;
            case 305: m->escape = v != 0; break;
            default: break;
            }
        }
        DG_CHECK(s.len == 0, DG_ERR_FORMAT, "%s: a damaged specification", path);
    }
    DG_CHECK(file.len == 0, DG_ERR_FORMAT, "%s: not a sentencepiece model: damaged %zu bytes before its end",
             path, file.len);
    return DG_OK;
}

static dg_status check_specs(const char *path, const model *m) {
    static const char *const types[] = {"?", "unigram", "bpe", "word", "char"};
    DG_CHECK(m->type == 2, DG_ERR_UNSUPPORTED, "%s: model type %s; known: bpe", path,
             types[m->type > 0 && m->type < 5 ? m->type : 0]);
    DG_CHECK(m->map_len == 0, DG_ERR_UNSUPPORTED, "%s: a normaliser with a character map", path);
    DG_CHECK(!m->squeeze, DG_ERR_UNSUPPORTED, "%s: remove_extra_whitespaces", path);
    DG_CHECK(!m->suffix && m->escape, DG_ERR_UNSUPPORTED, "%s: white space other than as a prefix U+2581",
             path);
    return DG_OK;
}

static dg_status read_piece(dg_tokenizer *t, const char *path, int32_t id, dg_str s) {
    field f;
    dg_str piece = {"", 0};
    float score = 0;
    int64_t type = DG_PIECE_NORMAL;
    while (read_field(&s, &f)) {
        if (f.number == 1)
            piece = f.bytes;
        else if (f.number == 2)
            score = read_float(f.bytes);
        else if (f.number == 3)
            type = (int64_t)f.value;
    }
    DG_CHECK(s.len == 0, DG_ERR_FORMAT, "%s: piece %d is damaged", path, id);
    DG_TRY(dg_vocab_set(&t->vocab, path, id, piece.ptr, piece.len, dg_piece_kind(type)));
    DG_TRY(dg_vocab_set_score(&t->vocab, path, id, score));
    const bool special = (dg_piece_kind(type) & DG_TOKEN_SPECIAL) != 0;
    if (!special) DG_TRY(dg_tokenizer_set_piece(t, id, piece, type == DG_PIECE_BYTE));
    if (!special && type != DG_PIECE_USER_DEFINED) return DG_OK;
    const dg_str text = dg_tokenizer_bytes(t, id);
    return text.len ? dg_tokenizer_add_token(t, id, text.ptr, text.len, false, 0) : DG_OK;
}

static dg_status read_model(dg_tokenizer *t, const char *path, dg_str file, bool first_only) {
    model m;
    field f;
    int32_t id = 0;
    DG_TRY(read_specs(path, file, &m));
    DG_TRY(check_specs(path, &m));
    DG_TRY(dg_tokenizer_use_pieces(t, path, m.prefix, first_only));
    DG_TRY(dg_vocab_create(&t->vocab, path, m.n_piece));
    DG_TRY(dg_vocab_reserve_scores(&t->vocab));
    while (read_field(&file, &f))
        if (f.number == 1) DG_TRY(read_piece(t, path, id++, f.bytes));
    DG_TRY(dg_vocab_index(&t->vocab));
    if (m.unknown >= 0 && m.unknown < m.n_piece) t->unknown = (int32_t)m.unknown;
    if (m.bos >= 0 && m.bos < m.n_piece) t->bos = (int32_t)m.bos;
    if (m.eos >= 0 && m.eos < m.n_piece) t->eos = (int32_t)m.eos;
    if (t->bos >= 0) t->before = (dg_affix){{t->bos}, 1};
    return DG_OK;
}

dg_status dg_tokenizer_read_sentencepiece(dg_tokenizer *t, const char *path, dg_str file, bool first_only) {
    DG_TRY(read_model(t, path, file, first_only));
    return dg_tokenizer_finish(t, path, "SentencePiece BPE, tokenizer.model");
}
