/* gguf.h - a GGUF file (versions 2 and 3), mapped and checked: typed metadata and tensors.
 *
 * As with safetensors nothing that the file says is believed before it is checked: counts, lengths, shapes and offsets
 * against its real size, and memory grows with what was found, not with what was claimed. mlxcel does not run GGUF; `mlxcel
 * convert` makes an MLX model of it. Nothing here is thread-safe to open, everything is to read. */
#ifndef MX_FORMAT_GGUF_H
#define MX_FORMAT_GGUF_H
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- metadata ------------------------------------------------------------------------------------------- */

typedef enum { // numbers of the format
    MX_GGUF_U8 = 0,
    MX_GGUF_I8 = 1,
    MX_GGUF_U16 = 2,
    MX_GGUF_I16 = 3,
    MX_GGUF_U32 = 4,
    MX_GGUF_I32 = 5,
    MX_GGUF_F32 = 6,
    MX_GGUF_BOOL = 7,
    MX_GGUF_STRING = 8,
    MX_GGUF_ARRAY = 9,
    MX_GGUF_U64 = 10,
    MX_GGUF_I64 = 11,
    MX_GGUF_F64 = 12,
} mx_gguf_value;

typedef struct {
    const char *key; // NUL-terminated
    mx_gguf_value type;
    mx_gguf_value item; // of an array: the type of its items (never ARRAY); else the same as type
    uint64_t n;         // items; 1 if it is no array
    const char *raw;    // the first item in the mapping, unaligned; a string is a u64 length and its bytes
} mx_gguf_kv;

/* ---- tensors ---------------------------------------------------------------------------------------------- */

typedef enum { // ggml's numbers for how values are stored; those that are missing were removed from ggml
    MX_GGML_F32 = 0,
    MX_GGML_F16 = 1,
    MX_GGML_Q4_0 = 2,
    MX_GGML_Q4_1 = 3,
    MX_GGML_Q5_0 = 6,
    MX_GGML_Q5_1 = 7,
    MX_GGML_Q8_0 = 8,
    MX_GGML_Q8_1 = 9,
    MX_GGML_Q2_K = 10,
    MX_GGML_Q3_K = 11,
    MX_GGML_Q4_K = 12,
    MX_GGML_Q5_K = 13,
    MX_GGML_Q6_K = 14,
    MX_GGML_Q8_K = 15,
    MX_GGML_IQ2_XXS = 16,
    MX_GGML_IQ2_XS = 17,
    MX_GGML_IQ3_XXS = 18,
    MX_GGML_IQ1_S = 19,
    MX_GGML_IQ4_NL = 20,
    MX_GGML_IQ3_S = 21,
    MX_GGML_IQ2_S = 22,
    MX_GGML_IQ4_XS = 23,
    MX_GGML_I8 = 24,
    MX_GGML_I16 = 25,
    MX_GGML_I32 = 26,
    MX_GGML_I64 = 27,
    MX_GGML_F64 = 28,
    MX_GGML_IQ1_M = 29,
    MX_GGML_BF16 = 30,
    MX_GGML_TQ1_0 = 34,
    MX_GGML_TQ2_0 = 35,
    MX_GGML_MXFP4 = 39,
    MX_GGML_NVFP4 = 40,
    MX_GGML_Q1_0 = 41,
    MX_GGML_COUNT = 42,
} mx_ggml_type;

const char *mx_ggml_name(uint32_t type); // "Q4_K", also for removed types; "unknown"
int mx_ggml_block(uint32_t type);        // values in a block; 0: unknown or removed
int mx_ggml_bytes(uint32_t type);        // bytes of a block

enum { MX_GGUF_MAX_DIM = 4 };
typedef struct {
    const char *name; // NUL-terminated
    mx_ggml_type type;
    int n_dim; // 1 to 4
    int64_t shape
        [MX_GGUF_MAX_DIM]; // ggml's order: shape[0] runs fastest (a matrix [n_out, n_in] is {n_in, n_out})
    int64_t n_value;       // their product
    const void *data;      // borrowed from the mapping
    uint64_t n_bytes;
} mx_gguf_tensor;

/* ---- the file --------------------------------------------------------------------------------------------- */

typedef struct mx_gguf mx_gguf;

mx_status mx_gguf_open(mx_gguf **out, const char *path, mx_err *err);
void mx_gguf_free(mx_gguf *g);

size_t mx_gguf_n_kv(const mx_gguf *g);
const mx_gguf_kv *mx_gguf_kv_at(const mx_gguf *g, size_t i);      // in file order
const mx_gguf_kv *mx_gguf_get(const mx_gguf *g, const char *key); // NULL if absent
size_t mx_gguf_n_tensor(const mx_gguf *g);                        // in file order
const mx_gguf_tensor *mx_gguf_tensor_at(const mx_gguf *g, size_t i);
const mx_gguf_tensor *mx_gguf_find(const mx_gguf *g, const char *name); // NULL if absent

/* Typed reads with a default for an absent key. A value of another type gives the default and sets *bad (if not NULL) to
 * the key. int takes every integer type and bool; num also floats. A string is borrowed and not NUL-terminated. */
int64_t mx_gguf_int(const mx_gguf *g, const char *key, int64_t dflt, const char **bad);
double mx_gguf_num(const mx_gguf *g, const char *key, double dflt, const char **bad);
bool mx_gguf_bool(const mx_gguf *g, const char *key, bool dflt, const char **bad);
const char *mx_gguf_str(const mx_gguf *g, const char *key, size_t *len, const char **bad); // NULL if absent

bool mx_gguf_is_int(const mx_gguf_kv *kv); // its items are integers (bool included): for an array or a scalar
bool mx_gguf_is_num(const mx_gguf_kv *kv); // ... or floats
int64_t mx_gguf_int_at(const mx_gguf_kv *kv,
                       uint64_t i);                      // of an is_int; a u64 beyond int64_t gives INT64_MAX
double mx_gguf_num_at(const mx_gguf_kv *kv, uint64_t i); // of an is_num

/* Strings of an array (or a single one) in order: mx_gguf_iter it = mx_gguf_strings(kv); while (mx_gguf_next(&it)) use
 * it.p[0..it.len), the item number it.i. Empty if kv is NULL or holds no strings. */
typedef struct {
    const char *at;
    uint64_t left, i;
    const char *p;
    size_t len;
} mx_gguf_iter;
mx_gguf_iter mx_gguf_strings(const mx_gguf_kv *kv);
bool mx_gguf_next(mx_gguf_iter *it);

/* "llama, 272 tensors: 210 Q4_1, 61 F32, 1 Q8_0" into buf, for messages. */
const char *mx_gguf_summary(const mx_gguf *g, char *buf, size_t cap);

#endif
