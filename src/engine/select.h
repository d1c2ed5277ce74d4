/* select.h - choosing among logits: candidates, the filters that drop some of them, and the draw.
 *
 * A filter is given the candidates that are left and says how many stay. None sorts the whole vocabulary: top-k keeps a
 * heap of k while it reads the logits once, top-p and typical take the best from a heap until they have enough. Order is
 * total (larger key first, then lower id), sums run in double in a fixed order, and exp is our own, so that the same
 * logits and seed give the same token on every machine. */
#ifndef MX_ENGINE_SELECT_H
#define MX_ENGINE_SELECT_H
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    float key; // what is ordered by: the logit
    int32_t id;
} mx_cand;

/* xoshiro256** (Blackman and Vigna 2018), its state filled from a seed by splitmix64. */
typedef struct {
    uint64_t s[4];
} mx_rng;
void mx_rng_seed(mx_rng *r, uint64_t seed);
uint64_t mx_rng_next(mx_rng *r);
double mx_rng_uniform(mx_rng *r); // [0, 1), 53 bits

/* e^x for x <= 0 (also -infinity: 0), within 2 units in the last place. */
double mx_exp_neg(double x);

/* Whether all logits are numbers below +infinity; -infinity (a ban) is fine. */
bool mx_logits_ok(const float *logits, int n);
/* The largest logit's id, the lowest on a tie; -1 if all are -infinity. */
int32_t mx_argmax(const float *logits, int n);

/* Collect into c the ids whose logit is at least lo and above -infinity; k > 0: only the k best. c holds n (or k) items.
 * Returns how many. */
int mx_cand_gather(mx_cand *c, const float *logits, int n, float lo, int k);

/* The threshold of top-n-sigma: the largest logit less n_sigma standard deviations of those above -infinity. */
float mx_top_n_sigma(const float *logits, int n, float n_sigma);

/* Filters: c[0..n) in, the kept ones in c[0..return) out, at least min(min_keep, n), min_keep >= 1. tmp holds n items. */
int mx_keep_top_p(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp);
int mx_keep_typical(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp);
int mx_keep_min_p(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp);
/* Drops all candidates with probability of at least threshold but the least of them, if two or more have it. */
int mx_keep_xtc(mx_cand *c, int n, float threshold, int min_keep);

/* A candidate drawn with probability ~ e^(key / temperature); u is uniform in [0, 1). */
int32_t mx_cand_draw(const mx_cand *c, int n, float temperature, double u);

/* log(sum(e^logits)). */
double mx_log_sum_exp(const float *logits, int n);

#endif
