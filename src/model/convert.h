/* convert.h - making an MLX model folder: from a Hugging Face folder, an MLX folder, or a GGUF file.
 *
 * What comes out is what mlx-lm's convert would write, tensor by tensor and byte by byte, where mlx-lm can read the source.
 * Tensors are streamed: memory holds one of them at a time. The folder appears under its name only when it is complete. */
#ifndef MX_MODEL_CONVERT_H
#define MX_MODEL_CONVERT_H
#include "base/err.h"
#include "quant/quant.h"
#include <stdbool.h>

typedef struct {
    const char *source; // a folder with config.json and *.safetensors, or a GGUF file
    const char *out;    // the folder to make; must not exist, or be empty
    bool quantize;      // -q; a GGUF file keeps its own blocks without it
    mx_quant mode;      // --q-mode; MX_QUANT_NONE: affine; of no effect without -q
    int bits,
        group; // --q-bits, --q-group-size; 0: affine 4 at 64, mxfp4 4 at 32, mxfp8 8 at 32, nvfp4 4 at 16
    bool dequantize;   // -d: quantized weights become plain ones
    const char *dtype; // "bfloat16", "float16", "float32"; NULL: config.json's torch_dtype, else as stored
    int threads;       // 0: all cores
    bool quiet;        // no progress bar, not even on a terminal
    void (*note)(void *arg,
                 const char *line); // what was done and what was not exact, a line each; NULL: dropped
    void *arg;
    const volatile int *cancel; // nonzero stops with MX_ECANCELLED; or NULL
} mx_convert_options;

mx_status mx_convert(const mx_convert_options *opt, mx_err *err);

#endif
