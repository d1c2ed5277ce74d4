/* convert_int.h - the plan of a conversion, which the readers of the source formats make and convert.c carries out.
 *
 * An item is one tensor of the result, [n_row, n_in] however many axes its shape has. Its rows come from one or more parts of
 * the source laid end to end (the experts of a layer), which stay in the mapped source file. */
#ifndef MX_MODEL_CONVERT_INT_H
#define MX_MODEL_CONVERT_INT_H
#include "base/arena.h"
#include "base/json.h"
#include "base/str.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/convert.h"

typedef enum {
    MX_CV_PLAIN, // numbers of a safetensors dtype
    MX_CV_GGML,  // numbers or blocks of a ggml type
    MX_CV_QMAT,  // an MLX quantized matrix, to be expanded
    MX_CV_RAW,   // bytes to copy: codes and scales that are already what MLX wants, integers
} mx_cv_source;

typedef struct {
    mx_cv_source from;
    int type; // PLAIN, RAW: mx_st_dtype; GGML: mx_ggml_type
    mx_qmat qmat;
    const void **part; // [n_part], each n_row / n_part rows
    int n_part;
    int64_t row_bytes; // of a source row, but for QMAT

    const char *name; // "model.norm.weight"; of a quantized module also .scales and .biases
    int n_dim;
    int64_t shape[MX_ST_MAX_DIM];
    int64_t n_row, n_in;
    int unpermute; // heads whose rows llama.cpp interleaved for its rope; 0: none
    float add;     // to every value, rounded to add_type: norms that one side stores less 1
    mx_dtype add_type;

    // the result
    mx_quant kind; // NONE: plain numbers of dtype
    int bits, group;
    mx_dtype dtype;
    bool blocks; // GGML: take the codes as they are instead of quantizing the values
} mx_cv_item;

typedef struct {
    const char *name; // in the result's folder
    const char *text; // its content, or
    size_t len;
    const char *copy; // a file to copy
} mx_cv_file;

/* One conversion. Everything hangs on the arena; free with mx_cv_job_free. */
typedef struct {
    const mx_convert_options *opt;
    mx_arena arena;
    mx_cv_item *item;
    size_t n_item, cap_item;
    mx_cv_file *file;
    size_t n_file, cap_file;
    const mx_json *config;     // the source's config.json, or what was made of GGUF's metadata
    const char *config_prefix; // NULL, or the whole config is nested: "text_config" of a model of this type
    mx_quant kind;             // the default entry of config.json's "quantization"; NONE: no such entry
    int bits, group;
    mx_st *st;
    mx_gguf *gguf;
} mx_cv_job;

void mx_cv_job_free(mx_cv_job *j);
mx_status mx_cv_add_item(mx_cv_job *j, const mx_cv_item *it, mx_err *err);
mx_status mx_cv_add_file(mx_cv_job *j, const char *name, const char *text, size_t len, const char *copy,
                         mx_err *err);
void mx_cv_note(const mx_cv_job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
mx_status mx_cv_nomem(mx_err *err);
bool mx_cv_dtype(mx_dtype *out, const char *name); // by mlx-lm's names

/* The module of a weight: its name less ".weight". mlx-lm keeps 8 bits for the routers of some families. */
bool mx_cv_is_router(const char *model_type, const char *module);

/* Decide how every item is stored from -q and its parameters: the same layers as mlx-lm quantizes. */
void mx_cv_choose_quant(mx_cv_job *j, const char *model_type);

mx_status mx_cv_plan_hf(mx_cv_job *j, mx_err *err);   // convert_hf.c
mx_status mx_cv_plan_gguf(mx_cv_job *j, mx_err *err); // convert_gguf.c
/* tokenizer.json, tokenizer_config.json, chat_template.jinja from GGUF metadata: convert_tokenizer.c. */
mx_status mx_cv_tokenizer(mx_cv_job *j, int64_t n_ctx, mx_err *err);

/* convert_write.c: all items into folder dir. */
mx_status mx_cv_write(mx_cv_job *j, const char *dir, mx_err *err);

/* convert_blocks.c: ggml blocks whose grid is MLX's affine grid. */
typedef struct {
    int bits;   // affine, group 32; 0: there is none
    bool exact; // scales and biases are f16 numbers
} mx_cv_grid;
mx_cv_grid mx_cv_block_grid(int ggml_type);
/* n values (whole blocks) to codes and to f32 scales and biases, n / 32 of each. */
void mx_cv_unpack_blocks(int ggml_type, const void *src, int64_t n, uint8_t *q, float *scales, float *biases);

#endif
