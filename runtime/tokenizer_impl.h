/* What the files of the tokenizer share: its tables, and the steps from text to ids.
 *
 * Private to tokenizer*.c, vocab.c, normalize.c, pretokenize.c, bpe.c, decode.c and sentencepiece.c. PCRE2
 * stays in pretokenize.c, utf8proc in normalize.c. */
#ifndef DG_TOKENIZER_IMPL_H
#define DG_TOKENIZER_IMPL_H

#include <string.h>

#include "runtime/buffer.h"
#include "runtime/mem.h"
#include "runtime/tokenizer.h"

enum {
    DG_MAX_VOCAB = 1 << 22,     /* ids a file may name */
    DG_MAX_TOKEN = 1 << 16,     /* bytes of one token */
    DG_MAX_STEPS = 16,          /* normaliser and pre-tokenizer steps each */
    DG_MAX_AFFIX = 8            /* ids a post-processor puts before or after a text */
};

/* ---- vocabulary (vocab.c) --------------------------------------------------------------------- */

typedef struct dg_range {
    uint32_t at, len; /* bytes in the blob */
} dg_range;

/* What a token is; 0: a hole in the numbering. */
enum {
    DG_TOKEN_USED = 1,
    DG_TOKEN_MODEL = 2,   /* the model may produce it: it is in the vocabulary table */
    DG_TOKEN_SPECIAL = 4, /* recognised in text only on request, not printed */
    DG_TOKEN_BYTE = 8,    /* SentencePiece <0xNN> */
    DG_TOKEN_ADDED = 16,  /* found in the text before the model sees it */
    DG_TOKEN_PAD = 32     /* fills up the embedding; not part of the vocabulary's hash */
};

/* How an added token takes its surroundings (the flags of tokenizer.json). */
enum { DG_ADDED_LSTRIP = 1, DG_ADDED_RSTRIP = 2, DG_ADDED_WORD = 4 };

typedef struct dg_trie_node {
    int32_t child, next; /* -1: none */
    int32_t id;          /* token that ends here, -1 */
    uint8_t byte, flags; /* flags: DG_ADDED_* of that token */
} dg_trie_node;

typedef struct dg_trie {
    dg_trie_node *node;
    size_t n, cap;
    int32_t root[256];
} dg_trie;

/* merge[r] is the rule of rank r: left right -> out. */
typedef struct dg_merge {
    int32_t left, right, out;
} dg_merge;

typedef struct dg_vocab {
    int32_t n;
    dg_buffer blob;     /* every string, one after the other */
    dg_range *key;      /* [n] as the model spells the token: bytes, or text with U+2581 for a space */
    dg_range *text;     /* [n] as it is printed */
    uint8_t *kind;      /* [n] DG_TOKEN_* */
    uint32_t *score;    /* [n] SentencePiece: smaller merges first; NULL: merges are listed */
    int32_t *slot;      /* open addressing over DG_TOKEN_MODEL tokens by key */
    size_t n_slot;
    dg_merge *merge;
    uint32_t n_merge;
    uint32_t *pair_slot; /* open addressing over merges by (left, right); UINT32_MAX: free */
    size_t n_pair_slot;
    int32_t byte_id[256]; /* the token of a byte, -1: none */
    uint32_t longest_key, longest_text;
} dg_vocab;

/* Empty tables for ids below n. FORMAT when n is not within 1 .. DG_MAX_VOCAB. */
dg_status dg_vocab_create(dg_vocab *v, const char *what, int64_t n);
void dg_vocab_clear(dg_vocab *v);
/* Stores key (and the same as text) for a free id. FORMAT for ids out of range, given twice, or overlong. */
dg_status dg_vocab_set(dg_vocab *v, const char *what, int64_t id, const char *key, size_t len, int kind);
/* Another printed text than the key. */
dg_status dg_vocab_set_text(dg_vocab *v, int32_t id, const char *text, size_t len);
/* Builds the table once every token is set. Of two tokens with one key the first id wins. */
dg_status dg_vocab_index(dg_vocab *v);
int32_t dg_vocab_find(const dg_vocab *v, const char *key, size_t len); /* -1: none */
/* Room for n rules; then each in order of rank. A pair that comes again takes its later rank, as in Hugging
 * Face's library. */
dg_status dg_vocab_reserve_merges(dg_vocab *v, size_t n);
void dg_vocab_add_merge(dg_vocab *v, int32_t left, int32_t right, int32_t out);
/* NULL: the two do not merge. The rank is the difference to v->merge. */
const dg_merge *dg_vocab_merge(const dg_vocab *v, int32_t left, int32_t right);
/* Switches from listed merges to scores (SentencePiece): first the room, then each id. FORMAT for NaN. */
dg_status dg_vocab_reserve_scores(dg_vocab *v);
dg_status dg_vocab_set_score(dg_vocab *v, const char *what, int32_t id, float score);
size_t dg_vocab_memory(const dg_vocab *v);

static inline const char *dg_vocab_key(const dg_vocab *v, int32_t id) { return v->blob.p + v->key[id].at; }

void dg_trie_create(dg_trie *t);
void dg_trie_clear(dg_trie *t);
dg_status dg_trie_add(dg_trie *t, const char *s, size_t len, int32_t id, int flags);
/* Length of the longest entry that s begins with, 0 if none; *at is its node. */
size_t dg_trie_longest(const dg_trie *t, const char *s, size_t len, const dg_trie_node **at);

/* GPT-2's alphabet writes every byte as one printable character. Decodes it into out (len bytes are enough);
 * returns the length, or -1 when a character is outside the alphabet. */
int64_t dg_alphabet_decode(const char *s, size_t len, char *out);

/* ---- normalisation (normalize.c) -------------------------------------------------------------- */

typedef enum dg_normal_kind { DG_NORMAL_NFC, DG_NORMAL_PREPEND, DG_NORMAL_REPLACE } dg_normal_kind;

typedef struct dg_normal {
    dg_normal_kind kind;
    bool first_only;      /* PREPEND: at the beginning of the text alone */
    const char *from, *to; /* REPLACE: from, to; PREPEND: to */
} dg_normal;

/* Looks at the character at s (len > 0): its length; 0 when s is the beginning of a character and ends in the
 * middle of it; -k when k bytes are ill-formed together (what Unicode calls the maximal subpart). */
int dg_utf8_scan(const char *s, size_t len);
/* Bytes before the first ill-formed one. */
size_t dg_utf8_valid(const char *s, size_t len);
/* Appends s to out with every ill-formed byte as U+FFFD. */
dg_status dg_utf8_clean(const char *s, size_t len, dg_buffer *out);
/* Length of the character at s, in well-formed text. */
size_t dg_utf8_length(const char *s);
/* In well-formed text, the character at s: is it White_Space; is it a letter, mark, number or connector? */
bool dg_utf8_is_space(const char *s);
bool dg_utf8_is_word(const char *s);

/* Runs the steps over well-formed s; *out points to the result: s itself when nothing changes, else a[0] or
 * a[1]. first: s is the beginning of the whole text. */
dg_status dg_normalize(const dg_normal *step, size_t n_step, dg_str s, bool first, dg_buffer a[2],
                       dg_str *out);

/* ---- pre-tokenization (pretokenize.c) --------------------------------------------------------- */

typedef enum dg_split_kind {
    DG_SPLIT_PATTERN, /* cut at the matches of a regular expression */
    DG_SPLIT_LITERAL, /* cut at the occurrences of a text */
    DG_SPLIT_PREFIX,  /* put `text` in front unless the piece begins with it */
    DG_SPLIT_ESCAPE   /* spaces become `text` */
} dg_split_kind;

typedef enum dg_behavior { /* what becomes of a match */
    DG_SPLIT_ISOLATED, DG_SPLIT_REMOVED, DG_SPLIT_CONTIGUOUS, DG_SPLIT_WITH_PREVIOUS, DG_SPLIT_WITH_NEXT
} dg_behavior;

typedef struct dg_split {
    dg_split_kind kind;
    dg_behavior behavior;
    bool invert;     /* pieces between matches count as the matches */
    bool first_only; /* PREFIX: at the beginning of the text alone */
    struct dg_pattern *pattern;
    const char *text;
} dg_split;

/* FORMAT: the pattern does not compile (the message has its text and PCRE2's complaint). */
dg_status dg_pattern_compile(const char *what, const char *regex, struct dg_pattern **out);
void dg_pattern_free(struct dg_pattern *p);
size_t dg_pattern_memory(const struct dg_pattern *p);

/* The words of a text by GPT-2 (the pattern inside ByteLevel): contractions, letters, numbers, the rest, and
 * white space but for the last before a word. */
#define DG_PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- the tokenizer ---------------------------------------------------------------------------- */

typedef struct dg_affix {
    int32_t id[DG_MAX_AFFIX];
    int32_t n;
} dg_affix;

struct dg_tokenizer {
    dg_vocab vocab;
    dg_trie raw, normal; /* added tokens looked for before and after normalisation */
    dg_normal normalize[DG_MAX_STEPS];
    size_t n_normalize;
    dg_split split[DG_MAX_STEPS];
    size_t n_split;
    bool byte_level;    /* symbols are bytes, else characters */
    bool whole_first;   /* ignore_merges: a piece that is a token needs no merges */
    bool fuse_unknown;  /* neighbouring unknown characters are one unknown token */
    bool strip_first;   /* the first piece loses one leading space when printed */
    int32_t unknown, bos, eos;
    dg_affix before, after;
    char *chat_template;
    char kind[48];
    uint64_t hash;
};

dg_tokenizer *dg_tokenizer_create(void); /* empty; NULL without memory */
/* Has the token looked for in texts, spelled `content`. normalized: after normalisation, and its own spelling
 * is normalised too, so every normaliser step must be there already. */
dg_status dg_tokenizer_add_token(dg_tokenizer *t, int32_t id, const char *content, size_t len,
                                 bool normalized, int flags);
/* Append a step; its texts are copied, `regex` (NULL: none) is compiled. */
dg_status dg_tokenizer_add_normal(dg_tokenizer *t, const char *what, dg_normal step);
dg_status dg_tokenizer_add_split(dg_tokenizer *t, const char *what, dg_split step, const char *regex);
/* What id prints: s with every `from` replaced. */
dg_status dg_tokenizer_set_printed(dg_tokenizer *t, int32_t id, dg_str s, const char *from, const char *to);
/* Last step of reading: byte tokens, lengths, hash, name. */
dg_status dg_tokenizer_finish(dg_tokenizer *t, const char *what, const char *kind);

/* Spaces as U+2581 and, with prefix, one in front: of the whole text (first_only) or of every stretch of text
 * between special tokens. */
dg_status dg_tokenizer_use_pieces(dg_tokenizer *t, const char *what, bool prefix, bool first_only);
/* What the piece s prints. is_byte: s is <0xNN>, and id becomes that byte's token. */
dg_status dg_tokenizer_set_piece(dg_tokenizer *t, int32_t id, dg_str s, bool is_byte);
/* Types of pieces; GGUF took the numbers over. */
enum {
    DG_PIECE_NORMAL = 1, DG_PIECE_UNKNOWN, DG_PIECE_CONTROL, DG_PIECE_USER_DEFINED, DG_PIECE_UNUSED,
    DG_PIECE_BYTE
};
int dg_piece_kind(int64_t type); /* DG_TOKEN_* */
int dg_piece_byte(dg_str s); /* 10 for <0x0A>; -1: not such a piece */

/* The bytes of tokenizer.json, and of sentencepiece's tokenizer.model, into an empty t; path is for messages,
 * first_only as above. */
dg_status dg_tokenizer_read_json(dg_tokenizer *t, const char *path, dg_str file);
dg_status dg_tokenizer_read_sentencepiece(dg_tokenizer *t, const char *path, dg_str file, bool first_only);

/* ---- encoding --------------------------------------------------------------------------------- */

typedef struct dg_symbol {
    int32_t id, prev, next; /* id -1: not in the vocabulary */
    uint32_t at, len;       /* bytes in the piece; len 0: merged away */
} dg_symbol;

typedef struct dg_candidate {
    uint64_t order; /* rank, then position */
    uint32_t len;   /* bytes of both halves when it was found */
    int32_t id;     /* what they become */
} dg_candidate;

/* The state of one dg_tokenizer_encode. */
typedef struct dg_encoder {
    const dg_tokenizer *t;
    int flags;
    int32_t *ids;
    size_t cap, n;
    dg_buffer clean, normal[2], step[DG_MAX_STEPS];
    struct dg_matcher *matcher;
    dg_symbol *symbol;
    size_t symbol_cap;
    dg_candidate *heap;
    size_t heap_n, heap_cap;
} dg_encoder;

static inline void dg_encoder_emit(dg_encoder *e, int32_t id) {
    if (e->n < e->cap) e->ids[e->n] = id;
    e->n++;
}

/* Cuts normalised text into pieces from step on and hands each to dg_bpe_encode. first: s is the beginning
 * of the whole text. */
dg_status dg_pretokenize(dg_encoder *e, size_t step, const char *s, size_t len, bool first);
void dg_matcher_free(struct dg_matcher *m);
/* Appends the ids of one piece. */
dg_status dg_bpe_encode(dg_encoder *e, const char *s, size_t len);

#endif
