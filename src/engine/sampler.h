/* sampler.h - from logits to the next token.
 *
 * The chain and its order are llama.cpp's: logit bias, penalties (repeat, frequency, presence), DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC,
 * temperature; then a draw. Temperature <= 0 is greedy: the largest logit after bias and penalties, lowest id on a tie. */
#ifndef MX_ENGINE_SAMPLER_H
#define MX_ENGINE_SAMPLER_H
#include "base/err.h"
#include "text/tokenizer.h"
#include <stdint.h>

typedef struct {
    int32_t id;
    float bias; // added to the logit; -INFINITY bans
} mx_logit_bias;

typedef struct {
    uint64_t seed;                 // MX_SEED_RANDOM: from the system
    float temperature;             // <= 0: greedy
    int top_k;                     // <= 0: off
    float top_p, min_p, typical_p; // 1, 0, 1: off
    float top_n_sigma;             // <= 0: off
    float xtc_probability, xtc_threshold;
    int penalty_last_n; // tokens looked back at; -1: the whole context, 0: off
    float repeat_penalty, frequency_penalty,
        presence_penalty; // 1, 0, 0: off. frequency and presence count generated tokens only (SMP-07)
    float dry_multiplier, dry_base;
    int dry_allowed_length, dry_penalty_last_n;
    const char *const *dry_breakers; // strings; NULL: "\n" ":" "\"" "*"
    int n_dry_breaker;
    int min_keep;
    const mx_logit_bias *bias; // copied
    int n_bias;
} mx_sampler_options;
#define MX_SEED_RANDOM UINT64_MAX

mx_sampler_options mx_sampler_defaults(void); // greedy: temperature 0 and everything off

typedef struct mx_sampler mx_sampler;
/* Checks every option (MX_EINVAL names it and its range). tok is needed for DRY breakers, else NULL. */
mx_status mx_sampler_new(mx_sampler **out, const mx_sampler_options *opt, int n_vocab,
                         const mx_tokenizer *tok, mx_err *err);
void mx_sampler_free(mx_sampler *s);
mx_status mx_sampler_ban(mx_sampler *s, const int32_t *ids, int n, mx_err *err); // never draw these: eos ids
/* Add the logit bias and the bans to logits[n_vocab], as the first step of mx_sampler_sample does: for log-probabilities,
 * which are those of the biased distribution (SMP-01). */
void mx_sampler_apply_bias(const mx_sampler *s, float *logits);
uint64_t mx_sampler_seed(const mx_sampler *s); // the one in use
void mx_sampler_accept(mx_sampler *s, int32_t id,
                       bool generated); // a prompt token or a generated one, in order
void mx_sampler_reset(mx_sampler *s);   // forget accepted tokens, restart the seed
/* Draw from logits[n_vocab], which is changed. MX_EINTERNAL if a logit is NaN or +inf or all are -inf. */
mx_status mx_sampler_sample(mx_sampler *s, float *logits, int32_t *id, mx_err *err);

/* How many of the largest logits a draw looks at, where that is known before the logits are: 1 when greedy, top_k, and one more
 * for each ban. 0: all of them (a bias, penalties, no top_k, more than 256). */
int mx_sampler_looks_at(const mx_sampler *s);
/* The same draw from these alone: ids and logits[n] by falling logit, n at least what mx_sampler_looks_at() says or n_vocab. */
mx_status mx_sampler_sample_best(mx_sampler *s, const int32_t *ids, const float *logits, int n, int32_t *id,
                                 mx_err *err);

typedef struct {
    int32_t id;
    float logprob;
} mx_logprob;
/* Log-probability of id and the n best (n <= 100) of the model's own distribution: softmax of unchanged logits[n_vocab]. */
void mx_logprobs(const float *logits, int n_vocab, int32_t id, float *logprob, mx_logprob *top, int n);

#endif
