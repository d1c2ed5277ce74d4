/* config.h - what a model folder says about itself: config.json, generation_config.json, tokenizer_config.json.
 *
 * Fields are asked for by name and every question is remembered. When a family has asked all it understands, what is left
 * over is either known to be without effect on the text or an error by name: a field is never ignored (mx_config_finish).
 * The first wrong field is remembered too, so that a family reads all its fields and looks at the outcome once.
 *
 * Both spellings of transformers 4 and 5 are understood here, once for all families: rope_theta + rope_scaling or rope_parameters,
 * nested text_config, `type` or `rope_type`, one eos id or a list. A member of text_config hides one of the same name outside. */
#ifndef MX_FORMAT_CONFIG_H
#define MX_FORMAT_CONFIG_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct mx_config mx_config;

mx_status mx_config_open(mx_config **out, const char *dir, mx_err *err);
void mx_config_free(mx_config *c);

const char *mx_config_model_type(const mx_config *c);   // of text_config if there is one
const char *mx_config_architecture(const mx_config *c); // "" if none is named
bool mx_config_nested(const mx_config *c);              // a text_config inside a larger model's
mx_arena *mx_config_arena(mx_config *c);

/* Fields. A value of the wrong type or outside [lo, hi] is remembered as the error; so is an absent one when dflt is MX_REQUIRED. */
#define MX_REQUIRED INT32_MIN
int mx_config_int(mx_config *c, const char *key, int dflt, int lo, int hi);
double mx_config_num(mx_config *c, const char *key, double dflt); // dflt NAN: required
bool mx_config_bool(mx_config *c, const char *key, bool dflt);
const char *mx_config_str(mx_config *c, const char *key, const char *dflt); // copied into the config's arena
const mx_json *mx_config_get(mx_config *c, const char *key);                // NULL if absent or null
bool mx_config_has(const mx_config *c, const char *key); // present and not null; does not count as asking
void mx_config_ignore(mx_config *c, const char *key);    // the family knows it and needs nothing of it

/* Remember an error of a family's own: a sentence about a field. */
void mx_config_fail(mx_config *c, mx_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
mx_status mx_config_status(const mx_config *c, mx_err *err); // the first one remembered, or MX_OK
/* As mx_config_status, and an error for the first field that nobody asked for and that is not known to be without effect. */
mx_status mx_config_finish(mx_config *c, mx_err *err);

/* Rotary position embedding of one kind of layer, as the config gives it. */
typedef enum { MX_ROPE_DEFAULT, MX_ROPE_LINEAR, MX_ROPE_LLAMA3, MX_ROPE_YARN } mx_rope_kind;
typedef struct {
    mx_rope_kind kind;
    double theta, factor;
    double partial;                           // part of the head that rotates: 1, 0.25, ...
    double low_freq_factor, high_freq_factor; // llama3
    int original_ctx;                         // llama3, yarn: positions before scaling
    double beta_fast, beta_slow, attention_factor /* NAN: by the formula */, mscale, mscale_all_dim;
    bool truncate;
} mx_rope_config;
/* The parameters for layers of `layer_type` ("full_attention", "sliding_attention"), or of all if it is NULL or the config makes no difference. */
mx_rope_config mx_config_rope(mx_config *c, const char *layer_type, double default_theta);

/* Ids that end a text, from generation_config.json, config.json and the tokenizer's eos_token, each once. tokenizer ids are
 * resolved by the caller: *eos_token is tokenizer_config.json's text or NULL. Returns how many. */
int mx_config_eos(mx_config *c, int32_t *ids, int cap, const char **eos_token);
int32_t mx_config_bos(mx_config *c); // -1: none

/* generation_config.json, or NULL. */
const mx_json *mx_config_generation(const mx_config *c);

/* How MLX stored a module: the entry of `quantization` for the module's path, else the default. */
typedef struct {
    bool quantized;   // false: plain numbers
    const char *mode; // "affine", "mxfp4", ...
    int bits, group;
} mx_module_quant;
bool mx_config_has_quantization(const mx_config *c);
/* Paths are compared without the prefixes that wrap a text model ("model.language_model.", "language_model.model.", ...). */
mx_module_quant mx_config_quant(mx_config *c, const char *module);
/* The first override that no module asked for, or NULL (LOAD-05). */
const char *mx_config_unused_quant(const mx_config *c);
/* quantization_config of a foreign method ("fp8", "gptq", "awq", ...), or NULL for MLX's own or none. */
const char *mx_config_foreign_quant(const mx_config *c);

/* The name without the prefix that wraps a text model: "model.layers.0..." for all of "model.language_model.layers.0...",
 * "language_model.model.layers.0...", "language_model.layers..."; "lm_head..." likewise. Into buf, or name itself. */
const char *mx_canonical_name(const char *name, char *buf, size_t cap);

#endif
