/* sampler.c - see sampler.h. The filters are in select.c; this file holds the options, what was said before, and the two
 * penalties that look back at it. */
#include "engine/sampler.h"
#include "engine/select.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* One string that ends a repetition, with its Knuth-Morris-Pratt table, so that it is found over token borders. */
typedef struct {
    char *text;
    int len, matched; // bytes of text that the tokens so far end in
    int *fail;        // [len]: longest proper prefix of text[0..i] that is also its suffix
} breaker;

typedef struct { // of one token id, in the window that penalties look at
    int32_t all, generated;
    int32_t repeat; // DRY: longest repetition that this id would continue; 0 between steps
    bool done;      // false between steps
} seen;

struct mx_sampler {
    mx_sampler_options opt; // its pointers are not used
    int n_vocab;
    uint64_t seed;
    mx_rng rng;
    const mx_tokenizer *tok;
    mx_logit_bias *bias;
    int n_bias;
    bool penalize, dry, no_memory;
    uint32_t *history; // id, and GENERATED
    int32_t *reach;    // DRY's scratch, as long as history
    size_t n_history, cap;
    size_t break_end; // tokens up to and with the last one that ends in a breaker; 0: none
    breaker *breakers;
    int n_breaker;
    seen *seen;          // [n_vocab] when a penalty is on
    mx_cand *cand, *tmp; // [n_vocab]; pages that are never reached take no memory
};
enum { MOST_LOOKED_AT = 256 }; // candidates that a device chooses
#define GENERATED 0x80000000u
#define ID_MASK 0x7fffffffu

mx_sampler_options mx_sampler_defaults(void) {
    return (mx_sampler_options){.seed = MX_SEED_RANDOM,
                                .top_p = 1,
                                .typical_p = 1,
                                .top_n_sigma = -1,
                                .xtc_threshold = 0.1f,
                                .penalty_last_n = 64,
                                .repeat_penalty = 1,
                                .dry_base = 1.75f,
                                .dry_allowed_length = 2,
                                .dry_penalty_last_n = -1};
}

/* ---- options -------------------------------------------------------------------------------------------- */

static mx_status check_options(const mx_sampler_options *o, int n_vocab, mx_err *err) {
    const struct {
        const char *name;
        double v, lo, hi;
    } r[] = {
        {"temperature", o->temperature, -FLT_MAX, FLT_MAX},
        {"top_p", o->top_p, 0, 1},
        {"min_p", o->min_p, 0, 1},
        {"typical_p", o->typical_p, 0, 1},
        {"top_n_sigma", o->top_n_sigma, -FLT_MAX, FLT_MAX},
        {"xtc_probability", o->xtc_probability, 0, 1},
        {"xtc_threshold", o->xtc_threshold, 0, 1},
        {"penalty_last_n", o->penalty_last_n, -1, INT32_MAX},
        {"frequency_penalty", o->frequency_penalty, -1000, 1000},
        {"presence_penalty", o->presence_penalty, -1000, 1000},
        {"dry_multiplier", o->dry_multiplier, 0, 1000},
        {"dry_base", o->dry_base, 1, 1000},
        {"dry_allowed_length", o->dry_allowed_length, 0, INT32_MAX},
        {"dry_penalty_last_n", o->dry_penalty_last_n, -1, INT32_MAX},
        {"min_keep", o->min_keep, 0, INT32_MAX},
    };
    for (size_t i = 0; i < countof(r); i++) {
        if (r[i].v >= r[i].lo && r[i].v <= r[i].hi) continue; // NaN is in no range
        if (fabs(r[i].hi) == FLT_MAX)
            return mx_fail(err, MX_EINVAL, "%s is %g; it must be a finite number", r[i].name, r[i].v);
        if (r[i].hi == INT32_MAX)
            return mx_fail(err, MX_EINVAL, "%s is %g; it must be %g or more", r[i].name, r[i].v, r[i].lo);
        return mx_fail(err, MX_EINVAL, "%s is %g; it must be from %g to %g", r[i].name, r[i].v, r[i].lo,
                       r[i].hi);
    }
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 1000))
        return mx_fail(err, MX_EINVAL, "repeat_penalty is %g; it must be above 0 (1 is off)",
                       (double)o->repeat_penalty);
    if (o->n_bias < 0 || o->n_dry_breaker < 0)
        return mx_fail(err, MX_EINVAL, "the number of logit biases or DRY breakers is negative");
    for (int i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id < 0 || o->bias[i].id >= n_vocab)
            return mx_fail(err, MX_EINVAL, "logit_bias names token %d, but this model's tokens are 0 to %d",
                           o->bias[i].id, n_vocab - 1);
        if (!(o->bias[i].bias <= FLT_MAX))
            return mx_fail(err, MX_EINVAL, "logit_bias of token %d is %g; it must be finite or -infinity",
                           o->bias[i].id, (double)o->bias[i].bias);
    }
    return MX_OK;
}

static mx_status add_breaker(mx_sampler *s, const char *text, mx_err *err) {
    size_t len = strlen(text);
    if (len == 0) return MX_OK;
    if (len > 4096) return mx_fail(err, MX_EINVAL, "a DRY sequence breaker is longer than 4096 bytes");
    breaker *b = &s->breakers[s->n_breaker++];
    b->len = (int)len;
    b->text = strdup(text);
    b->fail = calloc(len, sizeof *b->fail);
    if (!b->text || !b->fail) return mx_fail(err, MX_ENOMEM, "no memory for the DRY sequence breakers");
    for (int i = 1, k = 0; i < b->len; i++) {
        while (k && text[i] != text[k]) k = b->fail[k - 1];
        if (text[i] == text[k]) k++;
        b->fail[i] = k;
    }
    return MX_OK;
}

static mx_status take_breakers(mx_sampler *s, const mx_sampler_options *o, mx_err *err) {
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const char *const *list = o->dry_breakers ? o->dry_breakers : usual;
    int n = o->dry_breakers ? o->n_dry_breaker : (int)countof(usual);
    s->breakers = calloc((size_t)n + 1, sizeof *s->breakers);
    if (!s->breakers) return mx_fail(err, MX_ENOMEM, "no memory for the DRY sequence breakers");
    for (int i = 0; i < n; i++) MX_TRY(add_breaker(s, list[i], err));
    return MX_OK;
}

mx_status mx_sampler_new(mx_sampler **out, const mx_sampler_options *opt, int n_vocab,
                         const mx_tokenizer *tok, mx_err *err) {
    MX_TRY(check_options(opt, n_vocab, err));
    mx_status st = MX_OK;
    mx_sampler *s = calloc(1, sizeof *s);
    if (!s) return mx_fail(err, MX_ENOMEM, "no memory for the sampler");
    s->opt = *opt;
    s->n_vocab = n_vocab;
    s->tok = tok;
    s->penalize = opt->penalty_last_n != 0 &&
                  (opt->repeat_penalty != 1 || opt->frequency_penalty != 0 || opt->presence_penalty != 0);
    s->dry = opt->dry_multiplier > 0 && opt->dry_penalty_last_n != 0;
    s->seed = opt->seed;
    if (s->seed == MX_SEED_RANDOM && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        st = mx_fail(err, MX_EIO, "no random seed from the system: %s", strerror(errno));
    s->n_bias = opt->n_bias;
    s->bias = calloc((size_t)opt->n_bias + 1, sizeof *s->bias);
    s->cand = calloc((size_t)n_vocab, sizeof *s->cand);
    s->tmp = calloc((size_t)n_vocab, sizeof *s->tmp);
    if (s->penalize || s->dry) s->seen = calloc((size_t)n_vocab, sizeof *s->seen);
    if (!s->bias || !s->cand || !s->tmp || ((s->penalize || s->dry) && !s->seen))
        st = mx_fail(err, MX_ENOMEM, "no memory for a sampler over %d tokens", n_vocab);
    else if (opt->n_bias)
        memcpy(s->bias, opt->bias, (size_t)opt->n_bias * sizeof *s->bias);
    if (st == MX_OK && s->dry && tok) st = take_breakers(s, opt, err);
    if (st != MX_OK) {
        mx_sampler_free(s);
        return st;
    }
    mx_rng_seed(&s->rng, s->seed);
    *out = s;
    return MX_OK;
}

void mx_sampler_free(mx_sampler *s) {
    if (!s) return;
    for (int i = 0; i < s->n_breaker; i++) {
        free(s->breakers[i].text);
        free(s->breakers[i].fail);
    }
    free(s->breakers);
    free(s->bias);
    free(s->history);
    free(s->reach);
    free(s->seen);
    free(s->cand);
    free(s->tmp);
    free(s);
}

uint64_t mx_sampler_seed(const mx_sampler *s) { return s->seed; }

mx_status mx_sampler_ban(mx_sampler *s, const int32_t *ids, int n, mx_err *err) {
    mx_logit_bias *grown = realloc(s->bias, ((size_t)s->n_bias + (size_t)n + 1) * sizeof *grown);
    if (!grown) return mx_fail(err, MX_ENOMEM, "no memory for %d banned tokens", n);
    s->bias = grown;
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < s->n_vocab) s->bias[s->n_bias++] = (mx_logit_bias){ids[i], -INFINITY};
    return MX_OK;
}

/* ---- what was said before ------------------------------------------------------------------------------- */

static bool grow_history(mx_sampler *s) {
    size_t cap = s->cap ? s->cap * 2 : 1024;
    uint32_t *history = realloc(s->history, cap * sizeof *history);
    if (history) s->history = history;
    int32_t *reach = realloc(s->reach, cap * sizeof *reach);
    if (reach) s->reach = reach;
    if (!history || !reach) return false;
    s->cap = cap;
    return true;
}

static void find_breakers(mx_sampler *s, int32_t id) {
    size_t len;
    const char *p = mx_tokenizer_bytes(s->tok, id, &len);
    for (int i = 0; i < s->n_breaker; i++) {
        breaker *b = &s->breakers[i];
        int k = b->matched;
        for (size_t j = 0; j < len; j++) {
            while (k && p[j] != b->text[k]) k = b->fail[k - 1];
            if (p[j] == b->text[k]) k++;
            if (k == b->len) {
                s->break_end = s->n_history;
                k = b->fail[k - 1];
            }
        }
        b->matched = k;
    }
}

void mx_sampler_accept(mx_sampler *s, int32_t id, bool generated) {
    if (id < 0 || id >= s->n_vocab || !s->seen || s->no_memory) return;
    if (s->n_history == s->cap && !grow_history(s)) {
        s->no_memory = true; // the next sample says so
        return;
    }
    s->history[s->n_history++] = (uint32_t)id | (generated ? GENERATED : 0);
    if (s->n_breaker) find_breakers(s, id);
    s->seen[id].all++;
    s->seen[id].generated += generated;
    size_t window = (size_t)s->opt.penalty_last_n;
    if (s->opt.penalty_last_n < 0 || s->n_history <= window) return;
    uint32_t gone = s->history[s->n_history - 1 - window];
    s->seen[gone & ID_MASK].all--;
    s->seen[gone & ID_MASK].generated -= (gone & GENERATED) != 0;
}

void mx_sampler_reset(mx_sampler *s) {
    if (s->seen) memset(s->seen, 0, (size_t)s->n_vocab * sizeof *s->seen);
    for (int i = 0; i < s->n_breaker; i++) s->breakers[i].matched = 0;
    s->n_history = s->break_end = 0;
    s->no_memory = false;
    mx_rng_seed(&s->rng, s->seed);
}

/* ---- penalties ------------------------------------------------------------------------------------------ */

void mx_sampler_apply_bias(const mx_sampler *s, float *logits) {
    for (int i = 0; i < s->n_bias; i++) {
        float v = logits[s->bias[i].id] + s->bias[i].bias;
        logits[s->bias[i].id] = v > FLT_MAX ? FLT_MAX : v;
    }
}

/* A token in the window loses once, however often it is there: negative logits are multiplied, so that a repeat is never
 * rewarded. What the model itself said also loses presence + frequency * count. */
static void apply_penalties(mx_sampler *s, float *logits) {
    size_t window = s->opt.penalty_last_n < 0 ? s->n_history : (size_t)s->opt.penalty_last_n;
    size_t from = s->n_history > window ? s->n_history - window : 0;
    for (size_t i = from; i < s->n_history; i++) {
        uint32_t id = s->history[i] & ID_MASK;
        seen *c = &s->seen[id];
        if (c->done) continue;
        c->done = true;
        float v = logits[id];
        v = v <= 0 ? v * s->opt.repeat_penalty : v / s->opt.repeat_penalty;
        if (c->generated) v -= s->opt.presence_penalty + s->opt.frequency_penalty * (float)c->generated;
        logits[id] = v > FLT_MAX ? FLT_MAX : v;
    }
    for (size_t i = from; i < s->n_history; i++) s->seen[s->history[i] & ID_MASK].done = false;
}

static bool has_breaker(const mx_sampler *s, int32_t id) {
    size_t len;
    if (!s->n_breaker) return false;
    const char *p = mx_tokenizer_bytes(s->tok, id, &len);
    for (int i = 0; i < s->n_breaker; i++)
        if (len && memmem(p, len, s->breakers[i].text, (size_t)s->breakers[i].len)) return true;
    return false;
}

/* DRY ("don't repeat yourself", p-e-w 2024): where the last tokens also stand earlier in the window, the token that followed
 * there loses multiplier * base^(length - allowed), once length reaches allowed. Lengths do not pass a breaker. */
static void apply_dry(mx_sampler *s, float *logits) {
    size_t n = s->n_history, limit = n - s->break_end;
    if (s->opt.dry_penalty_last_n >= 0 && n > (size_t)s->opt.dry_penalty_last_n)
        n = (size_t)s->opt.dry_penalty_last_n;
    size_t allowed = (size_t)s->opt.dry_allowed_length;
    if (n <= allowed || limit < allowed) return;
        /* Z algorithm over the window read backwards, at(0) being the last token: reach[k] is how many tokens before
     * at(k) equal those at the end. [left, right) is the match that reaches farthest. */
#define at(i) (s->history[s->n_history - 1 - (i)] & ID_MASK)
    int32_t *reach = s->reach;
    for (size_t k = 1, left = 0, right = 0; k < n; k++) {
        size_t z = 0;
        if (k < right) {
            z = (size_t)reach[k - left];
            if (z > right - k) z = right - k;
        }
        while (k + z < n && at(z) == at(k + z)) z++;
        if (k + z > right) left = k, right = k + z;
        reach[k] = (int32_t)z;
        if (z > limit) z = limit;
        seen *c = &s->seen[at(k - 1)];
        if (z >= allowed && (int32_t)z + 1 > c->repeat) c->repeat = (int32_t)z + 1; // 0 means none
    }
    for (size_t k = 1; k < n; k++) {
        uint32_t id = at(k - 1);
        seen *c = &s->seen[id];
        if (!c->repeat) continue;
        double loss = s->opt.dry_multiplier;
        for (size_t i = allowed; i + 1 < (size_t)c->repeat && loss < 1e30; i++) loss *= s->opt.dry_base;
        c->repeat = 0;
        if (!has_breaker(s, (int32_t)id)) logits[id] -= (float)loss;
    }
#undef at
}

/* ---- the chain ------------------------------------------------------------------------------------------ */

/* How many candidates top-k leaves; 0: all. */
static int first_k(const mx_sampler *s) {
    int keep = s->opt.min_keep > 1 ? s->opt.min_keep : 1;
    return s->opt.top_k <= 0 ? 0 : s->opt.top_k > keep ? s->opt.top_k : keep;
}

static mx_status all_banned(mx_err *err) {
    return mx_fail(err, MX_EINTERNAL, "every token is banned: there is none to draw");
}

/* The chain behind top-k, over the n candidates in s->cand. */
static mx_status draw(mx_sampler *s, int n, int32_t *id, mx_err *err) {
    const mx_sampler_options *o = &s->opt;
    int keep = o->min_keep > 1 ? o->min_keep : 1;
    if (n == 0) return all_banned(err);
    if (o->typical_p < 1) n = mx_keep_typical(s->cand, n, o->typical_p, keep, s->tmp);
    if (o->top_p < 1) n = mx_keep_top_p(s->cand, n, o->top_p, keep, s->tmp);
    if (o->min_p > 0) n = mx_keep_min_p(s->cand, n, o->min_p, keep, s->tmp);
    if (o->xtc_probability > 0 && o->xtc_threshold <= 0.5f && n > 1 &&
        mx_rng_uniform(&s->rng) < o->xtc_probability)
        n = mx_keep_xtc(s->cand, n, o->xtc_threshold, keep);
    *id = mx_cand_draw(s->cand, n, o->temperature, mx_rng_uniform(&s->rng));
    return MX_OK;
}

mx_status mx_sampler_sample(mx_sampler *s, float *logits, int32_t *id, mx_err *err) {
    const mx_sampler_options *o = &s->opt;
    int k = first_k(s);
    if (s->no_memory) return mx_fail(err, MX_ENOMEM, "no memory for the tokens that penalties look back at");
    if (!mx_logits_ok(logits, s->n_vocab))
        return mx_fail(err, MX_EINTERNAL,
                       "the model gave a logit that is not finite; no token can be drawn from it");
    mx_sampler_apply_bias(s, logits);
    if (s->penalize) apply_penalties(s, logits);
    if (s->dry) apply_dry(s, logits);
    if (!(o->temperature > 0)) {
        *id = mx_argmax(logits, s->n_vocab);
        return *id < 0 ? all_banned(err) : MX_OK;
    }
    float lo = o->top_n_sigma > 0 ? mx_top_n_sigma(logits, s->n_vocab, o->top_n_sigma) : -FLT_MAX;
    if (o->min_p > 0 && o->top_k <= 0 && !(o->typical_p < 1) && !(o->top_p < 1) && o->min_keep <= 1) {
        /* min-p alone needs no list of all candidates: its threshold is known from the largest logit. */
        int32_t best = mx_argmax(logits, s->n_vocab);
        float bar = best < 0 ? lo : (float)(logits[best] + log(o->min_p));
        if (bar > lo) lo = bar;
    }
    int n = mx_cand_gather(s->cand, logits, s->n_vocab, lo, k);
    if (n > 0 && k > 0 && k <= MOST_LOOKED_AT) // by rank, as a device that chose them gives them
        n = mx_keep_top_p(s->cand, n, 1, n, s->tmp);
    return draw(s, n, id, err);
}

int mx_sampler_looks_at(const mx_sampler *s) {
    const mx_sampler_options *o = &s->opt;
    int k = o->temperature > 0 ? first_k(s) : 1;
    if (s->penalize || s->dry || k == 0 || k > MOST_LOOKED_AT) return 0;
    if (o->temperature > 0 && o->top_n_sigma > 0) return 0;
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].bias != -INFINITY) return 0;
    k += s->n_bias;
    if (k > s->n_vocab) k = s->n_vocab;
    return k <= MOST_LOOKED_AT ? k : 0;
}

mx_status mx_sampler_sample_best(mx_sampler *s, const int32_t *ids, const float *logits, int n, int32_t *id,
                                 mx_err *err) {
    int m = 0, k = s->opt.temperature > 0 ? first_k(s) : 1;
    for (int i = 0; i < n && m < k; i++) {
        bool banned = false;
        for (int j = 0; j < s->n_bias; j++) banned |= s->bias[j].id == ids[i];
        if (!banned) s->cand[m++] = (mx_cand){logits[i], ids[i]};
    }
    if (m == 0) return all_banned(err);
    if (s->opt.temperature > 0) return draw(s, m, id, err);
    *id = s->cand[0].id;
    return MX_OK;
}

void mx_logprobs(const float *logits, int n_vocab, int32_t id, float *logprob, mx_logprob *top, int n) {
    mx_cand best[100];
    double lse = mx_log_sum_exp(logits, n_vocab);
    if (logprob) *logprob = (float)(logits[id] - lse);
    if (n > (int)countof(best)) n = (int)countof(best);
    if (n <= 0) return;
    int m = mx_cand_gather(best, logits, n_vocab, -FLT_MAX, n);
    m = mx_keep_top_p(best, m, 1, m, (mx_cand[countof(best)]){{0}}); // sorts
    for (int i = 0; i < n; i++)
        top[i] = i < m ? (mx_logprob){best[i].id, (float)(best[i].key - lse)} : (mx_logprob){-1, -INFINITY};
}
