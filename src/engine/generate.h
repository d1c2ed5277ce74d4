/* generate.h - one prompt to one answer: prefill, sample, detokenize, stop.
 *
 * The token that ends the answer (eos) is counted, given to the callback with no text, and appended to out; its marker is
 * never shown. */
#ifndef MX_ENGINE_GENERATE_H
#define MX_ENGINE_GENERATE_H
#include "engine/engine.h"
#include "engine/sampler.h"

typedef enum {
    MX_STOP_NONE,
    MX_STOP_EOS,
    MX_STOP_LENGTH,
    MX_STOP_WORD,
    MX_STOP_CANCEL,
    MX_STOP_CONTEXT
} mx_stop_reason;

typedef struct { // one generated token, as the callback sees it
    int32_t id;
    const char *
        text; // whole characters that became certain with this token (possibly ""), not part of a stop string
    size_t text_len;
    float logprob;
    const mx_logprob *top;
    int n_top;
} mx_token_event;

typedef struct {
    mx_sampler_options sampler;
    int max_tokens;          // -1: to the end of the context
    const char *const *stop; // stop strings; an empty one is ignored
    int n_stop;
    bool ignore_eos;
    bool keep_special; // show special tokens in the text
    int n_logprobs;    // -1: none; 0: of the chosen token; n: and the n best
    bool
        context_shift; // slide when the context is full (drop the older half behind the first n_keep) instead of stopping
    int n_keep;
    const volatile int *cancel; // nonzero stops before the next token
    /* Called for each token, and once more with id -1 for text withheld at the end. Returning nonzero stops (MX_STOP_CANCEL). */
    int (*on_token)(void *arg, const mx_token_event *ev);
    void *arg;
} mx_generate_options;

typedef struct {
    int n_prompt, n_cached, n_generated;
    double prefill_seconds, decode_seconds; // decode: from the first token to the last
    mx_stop_reason stop;
    const char *stop_word; // of the options, when stop is MX_STOP_WORD
    uint64_t seed;
    uint64_t device_bytes; // the most that was taken of a GPU's memory since it was opened; 0: no GPU
} mx_generate_stats;

mx_generate_options mx_generate_defaults(void);

/* A full context slides by computing the kept tokens again, so that every kind of layer may slide and what the model sees is
 * exactly a shorter text; it costs a prefill of about half the context each time.
 *
 * Continue seq with prompt ids (those beyond what it holds already: the part of the prompt equal to its cached tokens is not
 * computed again; at least one token always is). The answer's tokens are appended to out (if not NULL). A prompt longer than the context is MX_ELIMIT
 * naming both numbers, unless context_shift. */
mx_status mx_generate(mx_engine *e, mx_seq *seq, const int32_t *prompt, int n_prompt,
                      const mx_generate_options *opt, mx_ids *out, mx_generate_stats *stats, mx_err *err);

#endif
