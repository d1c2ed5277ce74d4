/* select.c - see select.h. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math") // nobody reads FP exception flags: lets selects become vector code
#endif
#include "engine/select.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* ---- numbers -------------------------------------------------------------------------------------------- */

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

void mx_rng_seed(mx_rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) { // splitmix64
        uint64_t z = (seed += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        r->s[i] = z ^ (z >> 31);
    }
}

uint64_t mx_rng_next(mx_rng *r) {
    uint64_t *s = r->s, out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

double mx_rng_uniform(mx_rng *r) { return (double)(mx_rng_next(r) >> 11) * 0x1p-53; }

static inline double exp_neg(double x) {
    const double shift = 0x1.8p52;  // added and taken away it rounds to a whole number, left in the low bits
    double zero = x > -708 ? 1 : 0; // below it the result would be subnormal
    x = x > -708 ? x : -708;
    /* x = k ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts; then the series of e^r up to r^13 / 13!. */
    double t = x * 1.4426950408889634 + shift, k = t - shift;
    double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits;
    double scale;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52; // 2^k
    memcpy(&scale, &bits, sizeof scale);
    return p * scale * zero;
}

double mx_exp_neg(double x) { return exp_neg(x); }

/* Whole vocabularies go through in batches without a branch, which the compiler turns into vector code. */
enum { BATCH = 64 };

static void exp_batch(double *w, const mx_cand *c, int n, double max, double temperature) {
    for (int i = 0; i < n; i++) w[i] = (c[i].key - max) / temperature;
    for (int i = 0; i < n; i++) w[i] = exp_neg(w[i]);
}

bool mx_logits_ok(const float *logits, int n) {
    int bad = 0;
    for (int i = 0; i < n; i++) bad |= !(logits[i] <= FLT_MAX); // NaN compares false
    return !bad;
}

/* Logits are read in blocks: a whole block that holds nothing of interest costs one vector compare per few values. */
enum { BLOCK = 32 };

static bool any_above(const float *v, float bar) {
    int any = 0;
    for (int i = 0; i < BLOCK; i++) any |= v[i] > bar;
    return any;
}

int32_t mx_argmax(const float *logits, int n) {
    float best = -INFINITY;
    int32_t id = -1;
    for (int i = 0; i < n;) {
        int end = n - i < BLOCK ? n : i + BLOCK;
        if (end - i == BLOCK && !any_above(logits + i, best)) {
            i = end;
            continue;
        }
        for (; i < end; i++)
            if (logits[i] > best) best = logits[i], id = i;
    }
    return id;
}

double mx_log_sum_exp(const float *logits, int n) {
    int32_t at = mx_argmax(logits, n);
    if (at < 0) return -INFINITY;
    double max = logits[at], sum = 0, w[BATCH];
    for (int i = 0; i < n; i += BATCH) {
        int m = n - i < BATCH ? n - i : BATCH;
        for (int k = 0; k < m; k++) w[k] = exp_neg(logits[i + k] - max);
        for (int k = 0; k < m; k++) sum += w[k];
    }
    return max + log(sum);
}

/* ---- heaps ---------------------------------------------------------------------------------------------- */

static bool better(mx_cand a, mx_cand b) { return a.key > b.key || (a.key == b.key && a.id < b.id); }

/* Restore the heap below i. best_first: the root is the best candidate, else the worst. */
static void sift(mx_cand *c, int n, int i, bool best_first) {
    mx_cand v = c[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(c[child + 1], c[child]) == best_first) child++;
        if (better(c[child], v) != best_first) break;
        c[i] = c[child];
    }
    c[i] = v;
}

static void make_heap(mx_cand *c, int n, bool best_first) {
    for (int i = n / 2 - 1; i >= 0; i--) sift(c, n, i, best_first);
}

static mx_cand pop_best(mx_cand *c, int n) { // n before the pop
    mx_cand out = c[0];
    c[0] = c[n - 1];
    sift(c, n - 1, 0, true);
    return out;
}

int mx_cand_gather(mx_cand *c, const float *logits, int n, float lo, int k) {
    int m = 0, i = 0;
    if (k <= 0 || k > n) k = n;
    if (lo < -FLT_MAX) lo = -FLT_MAX;
    for (; i < n && m < k; i++)
        if (logits[i] >= lo) c[m++] = (mx_cand){logits[i], i};
    if (m < k) return m;
    if (i < n) make_heap(c, k, false);
    while (i < n) { // ids rise, so on a tie with the worst the one that is in stays
        int end = n - i < BLOCK ? n : i + BLOCK;
        if (end - i == BLOCK && !any_above(logits + i, c[0].key)) {
            i = end;
            continue;
        }
        for (; i < end; i++) {
            if (!(logits[i] > c[0].key)) continue;
            c[0] = (mx_cand){logits[i], i};
            sift(c, k, 0, false);
        }
    }
    return k;
}

float mx_top_n_sigma(const float *logits, int n, float n_sigma) {
    double sum = 0, square = 0;
    int count = 0;
    int32_t at = mx_argmax(logits, n);
    if (at < 0) return -FLT_MAX;
    for (int i = 0; i < n; i++)
        if (logits[i] >= -FLT_MAX) sum += logits[i], count++;
    double mean = sum / count;
    for (int i = 0; i < n; i++)
        if (logits[i] >= -FLT_MAX) square += (logits[i] - mean) * (logits[i] - mean);
    double lo = logits[at] - n_sigma * sqrt(square / count);
    return lo > -FLT_MAX ? (float)lo : -FLT_MAX;
}

/* ---- filters -------------------------------------------------------------------------------------------- */

static float best_key(const mx_cand *c, int n) {
    float max = c[0].key;
    for (int i = 1; i < n; i++)
        if (c[i].key > max) max = c[i].key;
    return max;
}

static double sum_exp(const mx_cand *c, int n, double max) {
    double sum = 0, w[BATCH];
    for (int i = 0; i < n; i += BATCH) {
        int m = n - i < BATCH ? n - i : BATCH;
        exp_batch(w, c + i, m, max, 1);
        for (int k = 0; k < m; k++) sum += w[k];
    }
    return sum;
}

/* How far below the best the candidates lie that hold `p` of the probability, rounded up: those farther away cannot be
 * among the first by order. *total: the sum of all e^(key - max). */
static double reach_of(const mx_cand *c, int n, double max, double p, double *total) {
    enum { BINS = 1024 }; // an eighth wide
    double bin[BINS] = {0}, w[BATCH], sum = 0;
    *total = 0;
    for (int i = 0; i < n; i += BATCH) {
        int m = n - i < BATCH ? n - i : BATCH;
        exp_batch(w, c + i, m, max, 1);
        for (int k = 0; k < m; k++) {
            double d = (max - c[i + k].key) * 8;
            bin[d < BINS - 1 ? (int)d : BINS - 1] += w[k];
            *total += w[k];
        }
    }
    for (int i = 0; i < BINS - 2;
         i++) // one bin more than it takes: sums in another order differ in the last place
        if ((sum += bin[i]) >= p * *total) return (i + 2) / 8.0;
    return INFINITY;
}

int mx_keep_top_p(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp) {
    double max = best_key(c, n), total, sum = 0, reach = reach_of(c, n, max, p, &total);
    int m = 0, near = 0;
    for (int i = 0; i < n; i++) near += max - c[i].key <= reach;
    if (near >= min_keep && near < n) { // only these need an order
        near = 0;
        for (int i = 0; i < n; i++)
            if (max - c[i].key <= reach) c[near++] = c[i];
        n = near;
    }
    make_heap(c, n, true);
    while (m < n) {
        tmp[m] = pop_best(c, n - m);
        sum += exp_neg(tmp[m++].key - max);
        if (sum >= p * total && m >= min_keep) break;
    }
    memcpy(c, tmp, (size_t)m * sizeof *c);
    return m;
}

/* Locally typical sampling (Meister et al. 2022): those whose surprise -log p is nearest to the entropy, until they hold p. */
int mx_keep_typical(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp) {
    double max = best_key(c, n), total = sum_exp(c, n, max), log_total = log(total), entropy = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        double x = c[i].key - max, w = exp_neg(x) / total;
        if (w > 0) entropy -= w * (x - log_total);
    }
    /* tmp: a heap by nearness, its id an index into c; c then gets the kept ones, which needs c's keys until the end, so the
     * indices collect at the heap's far end, where each pop frees a place. */
    for (int i = 0; i < n; i++) tmp[i] = (mx_cand){-(float)fabs(log_total - (c[i].key - max) - entropy), i};
    make_heap(tmp, n, true);
    int m = 0;
    while (m < n) {
        mx_cand got = pop_best(tmp, n - m);
        tmp[n - 1 - m++] = got;
        sum += exp_neg(c[got.id].key - max) / total;
        if (sum > p && m >= min_keep) break;
    }
    for (int i = n - m; i < n; i++) tmp[i] = c[tmp[i].id];
    memcpy(c, tmp + (n - m), (size_t)m * sizeof *c);
    return m;
}

int mx_keep_min_p(mx_cand *c, int n, float p, int min_keep, mx_cand *tmp) {
    float lo = (float)(best_key(c, n) + log(p));
    int m = 0;
    for (int i = 0; i < n; i++) m += c[i].key >= lo;
    if (m < min_keep) { // the best min_keep instead
        m = min_keep < n ? min_keep : n;
        make_heap(c, n, true);
        for (int i = 0; i < m; i++) tmp[i] = pop_best(c, n - i);
        memcpy(c, tmp, (size_t)m * sizeof *c);
        return m;
    }
    m = 0;
    for (int i = 0; i < n; i++)
        if (c[i].key >= lo) c[m++] = c[i];
    return m;
}

int mx_keep_xtc(mx_cand *c, int n, float threshold, int min_keep) {
    double max = best_key(c, n), total = sum_exp(c, n, max);
    mx_cand least = {0};
    int above = 0, m = 0;
    for (int i = 0; i < n; i++) {
        if (exp_neg(c[i].key - max) / total < threshold) continue;
        if (above++ == 0 || better(least, c[i])) least = c[i];
    }
    if (above < 2 || n - (above - 1) < min_keep) return n;
    for (int i = 0; i < n; i++)
        if (!better(c[i], least)) c[m++] = c[i];
    return m;
}

int32_t mx_cand_draw(const mx_cand *c, int n, float temperature, double u) {
    enum { SPANS = 256 };
    double max = best_key(c, n), total = 0, sum = 0, sums[SPANS], w[BATCH];
    int span = (n / SPANS / BATCH + 1) * BATCH, at = 0, last = -1;
    for (int i = 0; i < n; i += span) { // the sum of each span, so that only one is gone through again
        double part = 0;
        int end = n - i < span ? n : i + span;
        for (int j = i; j < end; j += BATCH) {
            int m = end - j < BATCH ? end - j : BATCH;
            exp_batch(w, c + j, m, max, temperature);
            for (int k = 0; k < m; k++) part += w[k];
        }
        sums[i / span] = part;
        total += part;
    }
    while ((at + 1) * (int64_t)span < n && sum + sums[at] <= u * total) sum += sums[at++];
    for (int i = at * span; i < n && (i < (at + 1) * span || last < 0); i++) {
        double x = exp_neg((c[i].key - max) / temperature);
        if (x == 0) continue;
        sum += x;
        last = i;
        if (sum > u * total) break;
    }
    for (int i = 0; last < 0; i++) // rounding left nothing behind the last span: the best one then
        if (c[i].key == max) last = i;
    return c[last].id;
}
