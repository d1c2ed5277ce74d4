/* safetensors.h - a folder of *.safetensors files as one set of named tensors.
 *
 * Files are mapped, never read: a 40 GB file opens in milliseconds. Everything is validated (header length, JSON, dtypes,
 * shapes against spans, spans inside the file, no overlap, no hole) before a tensor can be seen. */
#ifndef MX_FORMAT_SAFETENSORS_H
#define MX_FORMAT_SAFETENSORS_H
#include "base/err.h"
#include "base/json.h"
#include <stdint.h>

typedef enum { // every dtype of the format
    MX_ST_BOOL,
    MX_ST_U8,
    MX_ST_I8,
    MX_ST_U16,
    MX_ST_I16,
    MX_ST_U32,
    MX_ST_I32,
    MX_ST_U64,
    MX_ST_I64,
    MX_ST_F16,
    MX_ST_BF16,
    MX_ST_F32,
    MX_ST_F64,
    MX_ST_F8_E4M3,
    MX_ST_F8_E5M2,
    MX_ST_F8_E8M0,
    MX_ST_F8_E4M3FNUZ,
    MX_ST_F8_E5M2FNUZ,
    MX_ST_C64,
    MX_ST_F4,
    MX_ST_F6_E2M3,
    MX_ST_F6_E3M2, // sub-byte: spans count bits
} mx_st_dtype;

enum { MX_ST_MAX_DIM = 8 };
typedef struct {
    const char *name; // NUL-terminated
    mx_st_dtype dtype;
    int n_dim;
    int64_t shape[MX_ST_MAX_DIM];
    const void *data; // borrowed from the mapping; not aligned to more than the file says
    uint64_t n_bytes;
    const char *file; // base name of the shard, for messages
    bool used;        // the model's loader marks what it took, so that leftovers can be named
} mx_st_tensor;

typedef struct mx_st mx_st;

/* Open all weights of folder dir: the *.safetensors files in it (except names starting with "consolidated", which
 * repeat the weights under other names, unless nothing else is there; and adapter files). An index file is checked
 * against them: a shard or tensor it names that is missing is an error naming it (incomplete download); an index that
 * names no existing shard at all is an error too when it lists files that the folder lacks (LOAD-03); weight_map entries with a path are refused. The
 * same tensor name in two files is an error. */
mx_status mx_st_open(mx_st **out, const char *dir, mx_err *err);
mx_status mx_st_open_file(mx_st **out, const char *path, mx_err *err); // one file
void mx_st_free(mx_st *s);

size_t mx_st_count(const mx_st *s);
mx_st_tensor *mx_st_at(mx_st *s, size_t i);           // in file order
mx_st_tensor *mx_st_find(mx_st *s, const char *name); // O(1); NULL if absent
uint64_t mx_st_total_bytes(const mx_st *s);
const char *mx_st_metadata(const mx_st *s, const char *key); // "__metadata__" of the first file, or NULL
const char *mx_st_dtype_name(mx_st_dtype t);                 // "BF16"
int mx_st_dtype_bits(mx_st_dtype t);
/* "[2, 3] BF16" into buf, for messages. */
const char *mx_st_describe(const mx_st_tensor *t, char *buf, size_t cap);

/* Writing: a plan of names, dtypes and shapes first (the header needs all sizes), then the data in order, streamed. A folder
 * writer splits into shards of at most max_shard bytes with model.safetensors.index.json, as mlx-lm and transformers do. */
typedef struct {
    const char *name;
    mx_st_dtype dtype;
    int n_dim;
    int64_t shape[MX_ST_MAX_DIM];
} mx_st_plan;
typedef struct mx_st_writer mx_st_writer;
mx_status mx_st_writer_new(mx_st_writer **out, const char *dir, const mx_st_plan *plan, size_t n,
                           uint64_t max_shard, mx_err *err);
mx_status mx_st_writer_put(mx_st_writer *w, const void *data, uint64_t n_bytes,
                           mx_err *err); // the next bytes; any split
mx_status mx_st_writer_finish(mx_st_writer *w,
                              mx_err *err); // all bytes must have come; files appear under their names
void mx_st_writer_free(mx_st_writer *w);    // without finish: nothing is left behind

#endif
