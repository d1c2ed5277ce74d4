#include "model/rope.h"
#include <math.h>

static const double two_pi = 6.283185307179586476925;

/* Share of the unscaled frequency in llama3's scaling, for a wave of this length in positions. */
static double llama3_keep(const mx_rope_config *r, double wavelength) {
    double turns = r->original_ctx / wavelength;
    if (turns < r->low_freq_factor) return 0;
    if (turns > r->high_freq_factor) return 1;
    return (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
}

/* Index of the pair that makes `turns` turns within the original context. */
static double yarn_index(const mx_rope_config *r, int n_rot, double turns) {
    return n_rot * log(r->original_ctx / (turns * two_pi)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention(const mx_rope_config *r) {
    if (!isnan(r->attention_factor)) return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0) {
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    }
    return yarn_mscale(r->factor, 1);
}

void mx_rope_frequencies(const mx_rope_config *r, int n_rot, float *inv_freq, float *scale) {
    double low = 0, high = 0;
    *scale = 1;
    if (r->kind == MX_ROPE_YARN) {
        low = yarn_index(r, n_rot, r->beta_fast);
        high = yarn_index(r, n_rot, r->beta_slow);
        if (r->truncate) low = floor(low), high = ceil(high);
        low = fmax(low, 0);
        high = fmin(high, n_rot - 1);
        if (low == high) high += 0.001; // the ramp needs a width
        *scale = (float)yarn_attention(r);
    }
    for (int i = 0; i < n_rot / 2; i++) {
        double f = pow(r->theta, -2.0 * i / n_rot), keep = 1; // share of f; the rest is f / factor
        if (r->kind == MX_ROPE_LINEAR) keep = 0;
        if (r->kind == MX_ROPE_LLAMA3) keep = llama3_keep(r, two_pi / f);
        if (r->kind == MX_ROPE_YARN) keep = 1 - fmin(fmax((i - low) / (high - low), 0), 1);
        inv_freq[i] = (float)(f * keep + f / r->factor * (1 - keep));
    }
}
