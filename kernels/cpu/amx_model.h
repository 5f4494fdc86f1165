/* AMX tiles in software, for tests: configuration and the five operations of loops_amx.h as the pseudocode of Intel's
 * manual (volume 2, LDTILECFG to TILEZERO) has them. Where the hardware would fault, an assert fails. A thread has
 * its own tiles. */
#ifndef DG_AMX_MODEL_H
#define DG_AMX_MODEL_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

enum { MODEL_TILES = 8, MODEL_ROWS = 16, MODEL_BYTES = 64 };

typedef struct tile_model {
    uint8_t palette; /* 0: no tiles */
    int rows[MODEL_TILES], bytes[MODEL_TILES];
    uint8_t data[MODEL_TILES][MODEL_ROWS][MODEL_BYTES];
} tile_model;

static _Thread_local tile_model tiles;

static inline void tile_release(void) { memset(&tiles, 0, sizeof tiles); }

/* 64 bytes: palette, first row, 14 zeros, columns in bytes (16 bits) of 16 tiles, rows (8 bits) of 16 tiles. */
static inline void tile_config(const void *shapes) {
    const uint8_t *p = shapes;
    tile_release();
    if (p[0] == 0) return;
    assert(p[0] == 1 && p[1] == 0);
    for (int i = 2; i < 16; i++) assert(p[i] == 0);
    tiles.palette = p[0];
    for (int t = 0; t < 16; t++) {
        const int bytes = p[16 + 2 * t] | p[17 + 2 * t] << 8, rows = p[48 + t];
        assert(t < MODEL_TILES || (bytes == 0 && rows == 0));
        assert(bytes <= MODEL_BYTES && rows <= MODEL_ROWS && (bytes == 0) == (rows == 0));
        if (t < MODEL_TILES) tiles.bytes[t] = bytes, tiles.rows[t] = rows;
    }
}

static inline void tile_usable(int t) {
    (void)t;
    assert(t >= 0 && t < MODEL_TILES);
    assert(tiles.palette == 1 && tiles.rows[t] > 0);
}

static inline void tile_zero(int t) {
    tile_usable(t);
    memset(tiles.data[t], 0, sizeof tiles.data[t]);
}

/* What is outside the tile's shape becomes zero. */
static inline void tile_load(int t, const void *from, int64_t stride) {
    tile_zero(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy(tiles.data[t][r], (const char *)from + r * stride, (size_t)tiles.bytes[t]);
}

static inline void tile_store(int t, void *to, int64_t stride) {
    tile_usable(t);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy((char *)to + r * stride, tiles.data[t][r], (size_t)tiles.bytes[t]);
}

/* TDPBSUD: c += a . b in 32 bits. a: signed bytes; b: unsigned ones, four rows of the factor in each of its own. */
static inline void tile_dot(int c, int a, int b) {
    tile_usable(c);
    tile_usable(a);
    tile_usable(b);
    assert(c != a && c != b && a != b);
    assert(tiles.bytes[c] % 4 == 0 && tiles.bytes[a] % 4 == 0 && tiles.bytes[b] % 4 == 0);
    assert(tiles.rows[c] == tiles.rows[a] && tiles.bytes[c] == tiles.bytes[b]);
    assert(tiles.bytes[a] / 4 == tiles.rows[b]);
    for (int m = 0; m < tiles.rows[c]; m++) {
        int32_t sum[MODEL_BYTES / 4];
        memcpy(sum, tiles.data[c][m], sizeof sum);
        for (int k = 0; k < tiles.bytes[a] / 4; k++)
            for (int n = 0; n < tiles.bytes[c] / 4; n++)
                for (int i = 0; i < 4; i++)
                    sum[n] += (int8_t)tiles.data[a][m][4 * k + i] * tiles.data[b][k][4 * n + i];
        memcpy(tiles.data[c][m], sum, (size_t)tiles.bytes[c]);
    }
}

#endif
