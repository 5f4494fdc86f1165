/* What convert.c shares with the writers of the two containers, convert_gguf.c and convert_hf.c; private to
 * them. */
#ifndef DG_CONVERT_JOB_H
#define DG_CONVERT_JOB_H

#include "runtime/bind.h"
#include "runtime/out.h"

enum { DG_ITEM_NAME = 128 };

/* One tensor of the output. */
typedef struct dg_item {
    const char *name; /* in the output: own[], or borrowed from the source */
    char own[DG_ITEM_NAME];
    const char *data; /* rows x cols of `from`, in the source */
    dg_dtype from, to;
    int64_t dim[DG_MAX_DIMS];
    int32_t n_dim;
    size_t rows, cols;
    int32_t head;  /* > 0: the rows of each head, so many, change their order */
    int64_t shift; /* d2t: this times the index is added to each integer */
} dg_item;

typedef struct dg_job {
    const char *in, *out;
    dg_file *file;
    dg_config config;
    dg_weights weights; /* into the file, but for rope_freqs of a llama3 scaling, which is `factors` */
    float *factors;
    dg_dtype type;
    int32_t layers;  /* to keep of a target's; 0: all */
    bool gguf;       /* the output is GGUF */
    bool interleave; /* rows that change their order go to interleaved pairs, else to halves */
    dg_item *item;
    size_t n_item;
    float *row;               /* the widest row as f32 */
    void *encoded;            /* and as the output has it */
    size_t done, total, told; /* bytes of weights; told: at the last call of progress */
    void (*progress)(void *ud, size_t done, size_t total);
    void *ud;
} dg_job;

/* Bytes of the item in the output. */
size_t dg_item_bytes(const dg_item *it);

/* Writes the data of one tensor. */
dg_status dg_job_write(dg_job *j, const dg_item *it, dg_out *o);

/* Path of a file in the directory of the source, or of the directory (name ""); false if it is too long. */
bool dg_job_beside(const dg_job *j, const char *name, char *path, size_t cap);

dg_status dg_job_to_gguf(dg_job *j, const char *tokenizer);
dg_status dg_job_to_hf(dg_job *j);

#endif
