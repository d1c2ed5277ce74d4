/* mlxcel.h - run language models from MLX and Hugging Face folders: the C API of libmlxcel.
 *
 * A model is opened from a folder (config.json, *.safetensors, tokenizer.json), or by the name "owner/name" of one that was
 * pulled. It answers one request at a time: a model must not be used by two threads at once; different models may be.
 * Every function that can fail returns a status and, if the pointer to it is not NULL, fills an mlxcel_error with one
 * sentence. Strings are UTF-8. Everything that is returned through a pointer to a pointer belongs to the caller.
 *
 *     mlxcel_model *m;
 *     mlxcel_error err;
 *     if (mlxcel_model_open(&m, "models/demo", NULL, &err) != MLXCEL_OK) return fail(err.message);
 *     mlxcel_message ask = {"user", "What is 17 + 25?"};
 *     mlxcel_chat(m, &ask, 1, NULL, NULL, &err);       (see examples/simple.c)
 *     mlxcel_model_free(m); */
#ifndef MLXCEL_H
#define MLXCEL_H
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLXCEL_API __attribute__((visibility("default")))
#else
#define MLXCEL_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MLXCEL_OK = 0,
    MLXCEL_EINVAL,      /* the input is wrong: an option, a prompt, a file's content */
    MLXCEL_ENOTFOUND,   /* a file or model that should be there is not */
    MLXCEL_EIO,         /* the system refused to read or write */
    MLXCEL_ENOMEM,      /* no memory, or less than the model needs */
    MLXCEL_UNSUPPORTED, /* understood, but this library cannot do it */
    MLXCEL_ELIMIT,      /* a bound was reached: a prompt longer than the context */
    MLXCEL_ECANCELLED,  /* the caller asked to stop */
    MLXCEL_EINTERNAL,   /* a fault of the library, or numbers that are not finite */
} mlxcel_status;

typedef struct {
    mlxcel_status code;
    char message[480]; /* what went wrong, where, and what to do */
} mlxcel_error;

MLXCEL_API const char *mlxcel_version(void); /* "0.1.0" */

/* ---- models ---- */

typedef struct mlxcel_model mlxcel_model;

typedef struct {
    const char *device;  /* "auto", "cpu", ...; NULL: auto */
    int threads;         /* of the CPU; 0: one a core */
    int context;         /* positions; 0: as many as the model was made for and memory allows */
    int no_memory_check; /* nonzero: load even if it seems not to fit into memory */
} mlxcel_model_options;

/* opt may be NULL: all zero. */
MLXCEL_API mlxcel_status mlxcel_model_open(mlxcel_model **out, const char *model,
                                           const mlxcel_model_options *opt, mlxcel_error *err);
MLXCEL_API void mlxcel_model_free(mlxcel_model *m); /* accepts NULL */

MLXCEL_API int mlxcel_model_context(const mlxcel_model *m);        /* positions */
MLXCEL_API int mlxcel_model_vocabulary(const mlxcel_model *m);     /* tokens are 0 .. this - 1 */
MLXCEL_API const char *mlxcel_model_family(const mlxcel_model *m); /* "qwen3"; lives as long as m */
MLXCEL_API const char *mlxcel_model_device(const mlxcel_model *m); /* what it runs on, for display */
MLXCEL_API uint64_t mlxcel_model_parameters(const mlxcel_model *m);
MLXCEL_API int mlxcel_model_can_chat(const mlxcel_model *m); /* whether the folder has a chat template */

/* ---- tokens ---- */

enum {
    MLXCEL_PARSE_SPECIAL = 1, /* "<|im_end|>" in the text becomes that token; else it is ordinary text */
    MLXCEL_ADD_SPECIAL = 2,   /* add what the model wants around a text, such as a bos token */
};

/* The tokens of text[0..len); *ids is freed with mlxcel_free. */
MLXCEL_API mlxcel_status mlxcel_tokenize(const mlxcel_model *m, const char *text, size_t len, unsigned flags,
                                         int32_t **ids, size_t *n, mlxcel_error *err);
/* The text of n tokens, NUL-terminated; *text is freed with mlxcel_free. len may be NULL. */
MLXCEL_API mlxcel_status mlxcel_detokenize(const mlxcel_model *m, const int32_t *ids, size_t n,
                                           int skip_special, char **text, size_t *len, mlxcel_error *err);
MLXCEL_API void mlxcel_free(void *p); /* accepts NULL */

/* ---- answers ---- */

typedef struct {
    int max_tokens;          /* -1: until the model ends or the context is full */
    float temperature;       /* 0: always the likeliest token */
    int top_k;               /* 0: off */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* 1: off */
    uint64_t seed;           /* MLXCEL_SEED_RANDOM: another one each time */
    const char *const *stop; /* the answer ends before any of these n_stop strings */
    int n_stop;
    /* Called with text as it is made: whole characters, NUL-terminated. Nonzero ends the answer. NULL: print to stdout. */
    int (*on_text)(void *arg, const char *text, size_t len);
    void *arg;
} mlxcel_options;
#define MLXCEL_SEED_RANDOM UINT64_MAX

/* What the model's own generation_config.json asks for, else greedy; m may be NULL. */
MLXCEL_API mlxcel_options mlxcel_options_for(const mlxcel_model *m);

typedef enum {
    MLXCEL_STOP_END,     /* the model ended its answer */
    MLXCEL_STOP_LENGTH,  /* max_tokens */
    MLXCEL_STOP_STRING,  /* one of stop */
    MLXCEL_STOP_CANCEL,  /* on_text said so */
    MLXCEL_STOP_CONTEXT, /* the context is full */
} mlxcel_stop;

typedef struct {
    int prompt_tokens, cached_tokens, answer_tokens; /* cached: of the prompt, known from the call before */
    double prompt_seconds, answer_seconds;
    mlxcel_stop stop;
    uint64_t seed;
} mlxcel_stats;

typedef struct {
    const char *role, *content; /* "system", "user", "assistant" */
} mlxcel_message;

/* Answer a conversation with the model's chat template. What it shares with the call before is not computed again. opt NULL:
 * mlxcel_options_for(m). stats may be NULL. */
MLXCEL_API mlxcel_status mlxcel_chat(mlxcel_model *m, const mlxcel_message *messages, size_t n_message,
                                     const mlxcel_options *opt, mlxcel_stats *stats, mlxcel_error *err);
/* Continue a text as it is, without a template. */
MLXCEL_API mlxcel_status mlxcel_complete(mlxcel_model *m, const char *prompt, size_t len,
                                         const mlxcel_options *opt, mlxcel_stats *stats, mlxcel_error *err);

#ifdef __cplusplus
}
#endif
#endif
