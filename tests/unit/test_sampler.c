/* test_sampler.c - the chain against slow and obvious versions of its parts, and the cases that other engines got wrong. */
#include "engine/sampler.h"
#include "engine/select.h"
#include "test.h"
#include <float.h>

static mx_err err;

enum { FLAT = 64 };
static mx_sampler *make(const mx_sampler_options *o, int n_vocab) {
    mx_sampler *s = NULL;
    CHECK_OK(mx_sampler_new(&s, o, n_vocab, NULL, &err), &err);
    return s;
}

/* A draw from all-zero logits, where the bias alone is the distribution. */
static int32_t draw_flat(mx_sampler *s, int n_vocab) {
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    int32_t id = -1;
    mx_status st = mx_sampler_sample(s, logits, &id, &err);
    free(logits);
    CHECK(st == MX_OK, "%s", err.msg);
    return id;
}

static int32_t one_draw(const mx_sampler_options *o, int n_vocab) {
    mx_sampler *s = make(o, n_vocab);
    int32_t id = draw_flat(s, n_vocab);
    mx_sampler_free(s);
    return id;
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

TEST(exp_is_accurate)
{
    uint64_t r = 1;
    for (int i = 0; i < 200000; i++) {
        double x = -700 * mx_test_uniform(&r) * mx_test_uniform(&r), want = exp(x);
        CHECK(fabs(mx_exp_neg(x) - want) <= 4 * DBL_EPSILON * want, "exp(%.17g)", x);
    }
    CHECK(mx_exp_neg(0) == 1);
    CHECK(mx_exp_neg(-INFINITY) == 0);
    CHECK(mx_exp_neg(-1e9) == 0);
}

TEST(rng_is_xoshiro256)
{
    mx_rng r;
    mx_rng_seed(&r, 0);
    CHECK(r.s[0] == 0xe220a8397b1dcdafu && r.s[1] == 0x6e789e6aa1b965f4u); // splitmix64's published outputs
    CHECK(r.s[2] == 0x06c45d188009454fu && r.s[3] == 0xf88bb8a8724c81ecu);
    r = (mx_rng){{1, 2, 3, 4}}; // the test vector of the Rust crate rand_xoshiro, from the authors' C code
    CHECK(mx_rng_next(&r) == 11520 && mx_rng_next(&r) == 0 && mx_rng_next(&r) == 1509978240);
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        double u = mx_rng_uniform(&r);
        CHECK(u >= 0 && u < 1);
        sum += u;
    }
    CHECK(fabs(sum / 10000 - 0.5) < 0.02);
}

/* ---- filters against a full sort ------------------------------------------------------------------------ */

static int by_key(const void *a, const void *b) {
    const mx_cand *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static float *random_logits(uint64_t *r, int n, bool ties) {
    float *v = malloc((size_t)n * sizeof *v);
    for (int i = 0; i < n; i++) {
        v[i] = (float)mx_test_normal(r) * 3;
        if (ties) v[i] = roundf(v[i]);
        if (mx_test_uniform(r) < 0.02) v[i] = -INFINITY;
    }
    return v;
}

static int sorted(mx_cand *c, const float *v, int n) {
    int m = 0;
    for (int i = 0; i < n; i++)
        if (v[i] > -INFINITY) c[m++] = (mx_cand){v[i], i};
    qsort(c, (size_t)m, sizeof *c, by_key);
    return m;
}

static void same_set(mx_cand *got, int n_got, const mx_cand *want, int n_want, const char *what) {
    CHECK(n_got == n_want, "%s keeps %d, not %d", what, n_got, n_want);
    qsort(got, (size_t)n_got, sizeof *got, by_key);
    for (int i = 0; i < n_want; i++)
        CHECK(got[i].id == want[i].id && got[i].key == want[i].key, "%s, item %d", what, i);
}

TEST(top_k_is_the_head_of_a_sort)
{
    static const int sizes[] = {1, 2, 31, 32, 33, 1000, 5000};
    static const int ks[] = {1, 2, 40, 999, 100000};
    uint64_t r = 2;
    for (size_t i = 0; i < countof(sizes); i++) {
        for (size_t j = 0; j < countof(ks); j++) {
            for (int order = 0; order < 3; order++) { // random with ties, rising, random
                int n = sizes[i];
                float *v = random_logits(&r, n, order == 0);
                for (int k = 0; order == 1 && k < n; k++) v[k] = (float)k;
                mx_cand *want = calloc((size_t)n, sizeof *want), *got = calloc((size_t)n, sizeof *got);
                int m = sorted(want, v, n);
                if (m > ks[j]) m = ks[j];
                same_set(got, mx_cand_gather(got, v, n, -FLT_MAX, ks[j]), want, m, "top_k");
                if (m) CHECK_INT(mx_argmax(v, n), want[0].id);
                free(v);
                free(want);
                free(got);
            }
        }
    }
}

TEST(filters_match_their_definitions)
{
    enum { N = 700 };
    uint64_t r = 3;
    mx_cand want[N], got[N], tmp[N], typical[N];
    for (int round = 0; round < 60; round++) {
        float *v = random_logits(&r, N, round % 3 == 0);
        int n = sorted(want, v, N), keep = 1 + round % 5, m;
        double p[N], total = 0, sum = 0, entropy = 0;
        for (int i = 0; i < n; i++) total += p[i] = exp(want[i].key - want[0].key);
        for (int i = 0; i < n; i++) {
            p[i] /= total;
            entropy -= p[i] * log(p[i]);
        }
        float top_p = (float)mx_test_uniform(&r);
        for (m = 0; m < n && (sum < top_p || m < keep); m++) sum += p[m];
        same_set(got, mx_keep_top_p(got, mx_cand_gather(got, v, N, -FLT_MAX, 0), top_p, keep, tmp), want, m,
                 "top_p");

        float min_p = (float)(mx_test_uniform(&r) * mx_test_uniform(&r));
        for (m = 0; m < n && (p[m] >= min_p * p[0] || m < keep); m++) {}
        same_set(got, mx_keep_min_p(got, mx_cand_gather(got, v, N, -FLT_MAX, 0), min_p, keep, tmp), want, m,
                 "min_p");

        for (int i = 0; i < n; i++) // ids here are ranks in `want`, which is what ties go by
            typical[i] = (mx_cand){-(float)fabs(-log(p[i]) - entropy), want[i].id};
        if (round % 3) { // with ties, two candidates may be equally typical and rounding decides
            qsort(typical, (size_t)n, sizeof *typical, by_key);
            float typ = 0.1f + 0.8f * (float)mx_test_uniform(&r);
            for (m = 0, sum = 0; m < n; m++) {
                sum += exp(v[typical[m].id] - want[0].key) / total;
                if (sum > typ && m + 1 >= keep) {
                    m++;
                    break;
                }
            }
            int k = mx_keep_typical(got, mx_cand_gather(got, v, N, -FLT_MAX, 0), typ, keep, tmp);
            CHECK_INT(k, m);
            for (int i = 0; i < k; i++) {
                bool found = false;
                for (int j = 0; j < m; j++) found |= typical[j].id == got[i].id;
                CHECK(found && got[i].key == v[got[i].id], "typical, item %d", i);
            }
        }

        float threshold = 0.5f * (float)mx_test_uniform(&r) * (float)mx_test_uniform(&r);
        for (m = 0; m < n && p[m] >= threshold; m++) {}
        int drop = m >= 2 && n - (m - 1) >= keep ? m - 1 : 0;
        same_set(got, mx_keep_xtc(got, mx_cand_gather(got, v, N, -FLT_MAX, 0), threshold, keep), want + drop,
                 n - drop, "xtc");

        double mean = 0, var = 0;
        for (int i = 0; i < n; i++) mean += want[i].key / (double)n;
        for (int i = 0; i < n; i++) var += (want[i].key - mean) * (want[i].key - mean) / n;
        float lo = mx_top_n_sigma(v, N, 1.5f);
        CHECK(fabs(lo - (want[0].key - 1.5 * sqrt(var))) < 1e-4, "top_n_sigma");
        free(v);
    }
}

/* ---- the chain ------------------------------------------------------------------------------------------ */

TEST(smp_01_temperature_zero_is_greedy)
{
    static const mx_logit_bias bias[] = {{20, 3}, {10, 2}, {30, 1}};
    static const float temperatures[] = {0, 1e-9f, -1};
    for (int i = 0; i < 4; i++) {
        mx_sampler_options o = mx_sampler_defaults();
        o.bias = bias;
        o.n_bias = 3;
        o.temperature = temperatures[i % 3];
        if (i == 3) o.top_p = 0, o.top_k = 0;
        CHECK_INT(one_draw(&o, FLAT), 20);
        mx_sampler *s = make(&o, FLAT);
        float logits[FLAT] = {0}, logprob;
        mx_logprob top[3];
        mx_sampler_apply_bias(s, logits);
        mx_logprobs(logits, FLAT, 20, &logprob, top, 3);
        CHECK(top[0].id == 20 && top[1].id == 10 && top[2].id == 30);
        double lse = log(61 + exp(3) + exp(2) + exp(1));
        for (int k = 0; k < 3; k++) CHECK(fabs(top[k].logprob - (3 - k - lse)) < 1e-6);
        CHECK(logprob == top[0].logprob);
        mx_sampler_free(s);
    }
    mx_sampler_options o = mx_sampler_defaults(); // a tie: the lowest id
    CHECK_INT(one_draw(&o, FLAT), 0);
}

TEST(smp_03_filters_come_before_temperature)
{
    static const mx_logit_bias bias[] = {{1, 32.0f}, {2, 31.4f}, {3, 30.3f}, {4, 29.0f}};
    int count[5] = {0};
    mx_sampler_options o = mx_sampler_defaults();
    o.bias = bias;
    o.n_bias = 4;
    o.temperature = 0.4f;
    o.top_p = 0.7f;
    for (int seed = 0; seed < 2000; seed++) {
        o.seed = (uint64_t)seed;
        int32_t id = one_draw(&o, FLAT);
        CHECK(id >= 1 && id <= 4);
        count[id]++;
    }
    CHECK(count[3] == 0 && count[4] == 0);
    CHECK(count[2] > 310 && count[2] < 420, "second id drawn %d times of 2000", count[2]); // 18.2 %
    static const mx_logit_bias two[] = {{39000, 40}, {35000, 39}};
    o = mx_sampler_defaults();
    o.bias = two;
    o.n_bias = 2;
    o.temperature = 1;
    o.min_p = 0.5f;
    for (int seed = 0; seed < 50; seed++) {
        o.seed = (uint64_t)seed;
        CHECK_INT(one_draw(&o, 40000), 39000);
    }
}

TEST(top_p_is_measured_on_what_top_k_left)
{
    /* Probabilities 0.4 0.3 0.2 0.1. After top_k 2 they are 0.571 0.429: top_p 0.5 then leaves one, without top_k two. */
    float p[4] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)}, v[4];
    for (int with_k = 0; with_k < 2; with_k++) {
        int count[4] = {0};
        for (int seed = 0; seed < 300; seed++) {
            mx_sampler_options o = mx_sampler_defaults();
            o.temperature = 1;
            o.top_p = 0.5f;
            o.top_k = with_k ? 2 : 0;
            o.seed = (uint64_t)seed;
            mx_sampler *s = make(&o, 4);
            int32_t id;
            memcpy(v, p, sizeof v);
            CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
            mx_sampler_free(s);
            count[id]++;
        }
        CHECK(count[2] + count[3] == 0 && (count[1] > 0) == !with_k);
    }
}

TEST(draws_follow_the_distribution)
{
    static const double p[5] = {0.5, 0.25, 0.15, 0.07, 0.03};
    mx_sampler_options o = mx_sampler_defaults();
    o.temperature = 1;
    o.seed = 7;
    mx_sampler *s = make(&o, 5);
    int count[5] = {0}, total = 40000;
    for (int i = 0; i < total; i++) {
        float v[5];
        int32_t id;
        for (int k = 0; k < 5; k++) v[k] = (float)log(p[k]);
        CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
        count[id]++;
    }
    double chi = 0;
    for (int k = 0; k < 5; k++) chi += pow(count[k] - total * p[k], 2) / (total * p[k]);
    CHECK(chi < 18.5, "chi-square %g with 4 degrees of freedom", chi); // p = 0.001
    mx_sampler_free(s);
}

static void sequence(uint64_t seed, int32_t out[20]) {
    mx_sampler_options o = mx_sampler_defaults();
    o.temperature = 1;
    o.seed = seed;
    mx_sampler *s = make(&o, FLAT);
    for (int i = 0; i < 20; i++) out[i] = draw_flat(s, FLAT);
    mx_sampler_reset(s);
    for (int i = 0; i < 20; i++) CHECK_INT(draw_flat(s, FLAT), out[i]); // reset starts the seed again
    if (seed != MX_SEED_RANDOM) CHECK(mx_sampler_seed(s) == seed);
    mx_sampler_free(s);
}

TEST(smp_04_seeds)
{
    int32_t a[20], b[20];
    sequence(42, a);
    sequence(42, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    sequence(43, b);
    CHECK(memcmp(a, b, sizeof a) != 0);
    sequence(42 + (1ull << 32), b); // not folded to 32 bits
    CHECK(memcmp(a, b, sizeof a) != 0);
    int32_t free_runs[5][20];
    for (int i = 0; i < 5; i++) {
        sequence(MX_SEED_RANDOM, free_runs[i]);
        for (int j = 0; j < i; j++) CHECK(memcmp(free_runs[i], free_runs[j], sizeof a) != 0);
    }
}

TEST(smp_06_bias_names_only_real_tokens)
{
    static const struct {
        int32_t id;
        float bias;
        const char *part; // NULL: legal
    } cases[] = {{-1, 1, "token -1"},         {FLAT, 1, "token 64"}, {FLAT - 1, 1, NULL},
                 {999999, 1, "token 999999"}, {3, NAN, "token 3"},   {3, INFINITY, "token 3"},
                 {FLAT - 1, -INFINITY, NULL}, {3, FLT_MAX, NULL}};
    for (size_t i = 0; i < countof(cases); i++) {
        mx_logit_bias b = {cases[i].id, cases[i].bias};
        mx_sampler_options o = mx_sampler_defaults();
        o.bias = &b;
        o.n_bias = 1;
        mx_sampler *s = NULL;
        if (cases[i].part) {
            CHECK_FAILS(mx_sampler_new(&s, &o, FLAT, NULL, &err), MX_EINVAL, &err, cases[i].part);
            continue;
        }
        int32_t id = one_draw(&o, FLAT);
        CHECK(cases[i].bias > 0 ? id == cases[i].id : id != cases[i].id);
    }
    mx_logit_bias *many = calloc(5000, sizeof *many); // the same token again and again: biases add up
    for (int i = 0; i < 5000; i++) many[i] = (mx_logit_bias){i % FLAT, i % FLAT == 9 ? 0.01f : 0};
    mx_sampler_options o = mx_sampler_defaults();
    o.bias = many;
    o.n_bias = 5000;
    CHECK_INT(one_draw(&o, FLAT), 9);
    free(many);
}

TEST(smp_07_penalties)
{
    mx_sampler_options o = mx_sampler_defaults();
    o.repeat_penalty = 1.5f;
    mx_sampler *s = make(&o, FLAT);
    mx_sampler_accept(s, 5, false);
    mx_sampler_accept(s, 6, true);
    mx_sampler_accept(s, 6, true);
    float v[FLAT] = {0};
    int32_t id;
    v[5] = 2, v[6] = -2, v[7] = 2;
    CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
    CHECK(fabsf(v[5] - 1.3333334f) < 1e-6f && v[6] == -3 && v[7] == 2 && id == 7);
    mx_sampler_free(s);

    o = mx_sampler_defaults();
    o.presence_penalty = o.frequency_penalty = 0.5f;
    s = make(&o, FLAT);
    for (int i = 0; i < 4; i++) mx_sampler_accept(s, 8, false); // only in the prompt
    for (int i = 0; i < 3; i++) mx_sampler_accept(s, 9, true);
    memset(v, 0, sizeof v);
    CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
    CHECK(v[8] == 0 && v[9] == -2);
    mx_sampler_free(s);
}

TEST(penalties_forget_behind_their_window)
{
    static const struct {
        int last_n;
        bool gone;
    } cases[] = {{4, true}, {5, false}, {-1, false}, {0, true}};
    for (size_t i = 0; i < countof(cases); i++) {
        mx_sampler_options o = mx_sampler_defaults();
        o.presence_penalty = 1;
        o.penalty_last_n = cases[i].last_n;
        mx_sampler *s = make(&o, FLAT);
        mx_sampler_accept(s, 1, true);
        for (int k = 0; k < 4; k++) mx_sampler_accept(s, 2, true);
        float v[FLAT] = {0};
        int32_t id;
        CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
        CHECK(v[1] == (cases[i].gone ? 0 : -1), "last_n %d", cases[i].last_n);
        mx_sampler_free(s);
    }
}

TEST(logits_that_are_not_finite_are_an_error)
{
    static const float bad[] = {NAN, INFINITY, -NAN};
    for (int greedy = 0; greedy < 2; greedy++) {
        mx_sampler_options o = mx_sampler_defaults();
        o.temperature = greedy ? 0 : 1;
        mx_sampler *s = make(&o, 100);
        for (size_t i = 0; i < countof(bad); i++) {
            float v[100] = {0};
            int32_t id = -5;
            v[(i * 37 + 50) % 100] = bad[i];
            CHECK_FAILS(mx_sampler_sample(s, v, &id, &err), MX_EINTERNAL, &err, "not finite");
            CHECK_INT(id, -5);
        }
        float v[100];
        int32_t id;
        for (int i = 0; i < 100; i++) v[i] = -INFINITY;
        CHECK_FAILS(mx_sampler_sample(s, v, &id, &err), MX_EINTERNAL, &err, "banned");
        v[77] = -1e30f; // one that is left is drawn
        CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
        CHECK_INT(id, 77);
        mx_sampler_free(s);
    }
}

TEST(bans_hold_in_every_mode)
{
    mx_sampler_options o = mx_sampler_defaults();
    o.temperature = 1;
    mx_sampler *s = make(&o, 3);
    CHECK_OK(mx_sampler_ban(s, (int32_t[]){0, 2, 99, -1}, 4, &err), &err);
    for (int i = 0; i < 50; i++) CHECK_INT(draw_flat(s, 3), 1);
    mx_sampler_free(s);
}

TEST(options_out_of_range_are_named)
{
    static const struct {
        const char *name;
        size_t at;
        float v;
    } cases[] = {{"temperature", offsetof(mx_sampler_options, temperature), NAN},
                 {"temperature", offsetof(mx_sampler_options, temperature), INFINITY},
                 {"top_p", offsetof(mx_sampler_options, top_p), 1.01f},
                 {"top_p", offsetof(mx_sampler_options, top_p), -0.1f},
                 {"min_p", offsetof(mx_sampler_options, min_p), 2},
                 {"typical_p", offsetof(mx_sampler_options, typical_p), NAN},
                 {"xtc_probability", offsetof(mx_sampler_options, xtc_probability), 1.5f},
                 {"xtc_threshold", offsetof(mx_sampler_options, xtc_threshold), -1},
                 {"repeat_penalty", offsetof(mx_sampler_options, repeat_penalty), 0},
                 {"frequency_penalty", offsetof(mx_sampler_options, frequency_penalty), INFINITY},
                 {"presence_penalty", offsetof(mx_sampler_options, presence_penalty), NAN},
                 {"dry_multiplier", offsetof(mx_sampler_options, dry_multiplier), -1},
                 {"dry_base", offsetof(mx_sampler_options, dry_base), 0.5f},
                 {"top_n_sigma", offsetof(mx_sampler_options, top_n_sigma), NAN}};
    for (size_t i = 0; i < countof(cases); i++) {
        mx_sampler_options o = mx_sampler_defaults();
        mx_sampler *s = NULL;
        memcpy((char *)&o + cases[i].at, &cases[i].v, sizeof(float));
        CHECK_FAILS(mx_sampler_new(&s, &o, FLAT, NULL, &err), MX_EINVAL, &err, cases[i].name);
    }
    mx_sampler_options o = mx_sampler_defaults();
    mx_sampler *s = NULL;
    o.penalty_last_n = -2;
    CHECK_FAILS(mx_sampler_new(&s, &o, FLAT, NULL, &err), MX_EINVAL, &err, "penalty_last_n is -2");
}

/* ---- DRY ------------------------------------------------------------------------------------------------ */

/* The definition: for every earlier place in the window, how many tokens before it equal those at the end. */
static void slow_dry(float *v, const int32_t *h, int n, int last_n, int allowed, double mult, double base) {
    if (last_n >= 0 && n > last_n) h += n - last_n, n = last_n;
    int best[FLAT];
    for (int i = 0; i < FLAT; i++) best[i] = -1;
    for (int i = 0; i + 1 < n; i++) { // h[i] ends a match with h[n - 1]; h[i + 1] would go on
        int len = 0;
        while (len <= i && h[i - len] == h[n - 1 - len]) len++;
        if (len >= allowed && len > best[h[i + 1]]) best[h[i + 1]] = len;
    }
    for (int i = 0; i < FLAT; i++)
        if (best[i] >= 0) v[i] -= (float)(mult * pow(base, best[i] - allowed));
}

TEST(dry_matches_its_definition)
{
    uint64_t r = 11;
    for (int round = 0; round < 200; round++) {
        mx_sampler_options o = mx_sampler_defaults();
        o.dry_multiplier = 0.8f;
        o.dry_base = 1.25f;
        o.dry_allowed_length = 1 + round % 4;
        o.dry_penalty_last_n = round % 3 == 0 ? -1 : 5 + round % 50;
        mx_sampler *s = make(&o, FLAT);
        int32_t h[120], id;
        int n = round % 120, kinds = 1 + round % 6;
        for (int i = 0; i < n; i++) {
            h[i] = (int32_t)(mx_test_rand(&r) % (uint64_t)kinds);
            mx_sampler_accept(s, h[i], i % 2);
        }
        float got[FLAT] = {0}, want[FLAT] = {0};
        CHECK_OK(mx_sampler_sample(s, got, &id, &err), &err);
        slow_dry(want, h, n, o.dry_penalty_last_n, o.dry_allowed_length, o.dry_multiplier, o.dry_base);
        for (int i = 0; i < FLAT; i++)
            CHECK(fabsf(got[i] - want[i]) <= 1e-4f * fabsf(want[i]), "round %d: token %d: %g, not %g", round,
                  i, (double)got[i], (double)want[i]);
        mx_sampler_free(s);
    }
}

TEST(dry_off_means_off)
{
    for (int i = 0; i < 2; i++) {
        mx_sampler_options o = mx_sampler_defaults();
        o.dry_multiplier = i ? 0 : 1;
        o.dry_penalty_last_n = i ? -1 : 0; // 0 looks at nothing, it is not "everything"
        mx_sampler *s = make(&o, FLAT);
        float v[FLAT] = {0};
        int32_t id;
        for (int k = 0; k < 40; k++) mx_sampler_accept(s, k % 2, true);
        CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
        for (int k = 0; k < FLAT; k++) CHECK(v[k] == 0);
        mx_sampler_free(s);
    }
}

/* Logit change of the token that would go on with `again`, after the text has been seen. */
static float dry_loss(const mx_tokenizer *t, const char *text, int32_t again, const char *breaker) {
    mx_sampler_options o = mx_sampler_defaults();
    o.dry_multiplier = 1;
    if (breaker) o.dry_breakers = &breaker, o.n_dry_breaker = 1;
    mx_sampler *s = NULL;
    int n = mx_tokenizer_size(t);
    CHECK_OK(mx_sampler_new(&s, &o, n, t, &err), &err);
    mx_ids ids = {0};
    CHECK_OK(mx_tokenizer_encode(t, text, strlen(text), 0, &ids, &err), &err);
    for (size_t i = 0; i < ids.n; i++) mx_sampler_accept(s, ids.id[i], true);
    float *v = calloc((size_t)n, sizeof *v);
    int32_t id;
    CHECK_OK(mx_sampler_sample(s, v, &id, &err), &err);
    float loss = -v[again];
    free(v);
    mx_ids_free(&ids);
    mx_sampler_free(s);
    return loss;
}

TEST(dry_breakers_end_a_repetition)
{
    mx_tokenizer *t = NULL;
    CHECK_OK(mx_tokenizer_open(&t, mx_test_path("models/demo"), &err), &err);
    /* Digits are single tokens here. After "1234 ... 123" a 4 would go on with a repetition of three (and the text before). */
    int32_t four = mx_tokenizer_find(t, "4"), colon = mx_tokenizer_find(t, ":");
    CHECK(four >= 0 && colon >= 0);
    CHECK(dry_loss(t, "1234x123", four, NULL) > 1);
    CHECK(dry_loss(t, "12:34x12:3", four, NULL) == 0);             // one token since the colon
    CHECK(dry_loss(t, "12:34x12:3", four, "\n") > 1);              // with another breaker it counts
    CHECK(dry_loss(t, "7591234x7591234x759123", four, "91") == 1); // a breaker of two tokens: "23" is left
    CHECK(dry_loss(t, "12345:x12345", colon, NULL) == 0);          // a breaker itself is never made rarer
    CHECK(dry_loss(t, "12345:x12345", colon, "\n") > 1);
    mx_tokenizer_free(t);
}

/* ---- candidates that a device has chosen -------------------------------------------------------------------- */

static void device_top(const float *logits, int n, int k, int32_t *ids, float *values) { // slow and obvious
    bool *taken = calloc((size_t)n, sizeof *taken);
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || logits[i] > logits[best])) best = i;
        taken[best] = true, ids[j] = best, values[j] = logits[best];
    }
    free(taken);
}

/* The same seed draws the same tokens, whether the chain sees all logits or only those that it looks at. */
TEST(the_likeliest_are_enough)
{
    enum { N = 500 };
    const mx_logit_bias bans[] = {{7, -INFINITY}, {N - 1, -INFINITY}, {3, -INFINITY}};
    mx_sampler_options o[8];
    for (size_t i = 0; i < countof(o); i++) o[i] = mx_sampler_defaults(), o[i].seed = 11;
    o[1].temperature = 0.7f, o[1].top_k = 20;
    o[2].temperature = 1.3f, o[2].top_k = 40, o[2].top_p = 0.8f;
    o[3].temperature = 1, o[3].top_k = 256, o[3].min_p = 0.05f;
    o[4].temperature = 1, o[4].top_k = 5, o[4].typical_p = 0.9f, o[4].min_keep = 9;
    o[5].temperature = 1, o[5].top_k = 30, o[5].xtc_probability = 0.5f, o[5].xtc_threshold = 0.05f;
    o[6].n_bias = 3, o[6].bias = bans;
    o[7].temperature = 1, o[7].top_k = 10, o[7].n_bias = 3, o[7].bias = bans;
    static const int want_k[] = {1, 20, 40, 256, 9, 30, 4, 13};
    uint64_t r = 5;
    for (size_t i = 0; i < countof(o); i++) {
        mx_sampler *all = make(&o[i], N), *few = make(&o[i], N);
        const int k = mx_sampler_looks_at(few);
        CHECK(k == want_k[i], "case %zu: %d", i, k);
        for (int step = 0; step < 200; step++) {
            float logits[N], values[N];
            int32_t ids[N], a, b;
            for (int j = 0; j < N; j++) // ties too
                logits[j] = floorf((float)mx_test_normal(&r) * 16) / (step % 2 ? 8 : 2);
            logits[7] += step % 3 ? 100 : 0;
            device_top(logits, N, k, ids, values);
            CHECK_OK(mx_sampler_sample(all, logits, &a, &err), &err);
            CHECK_OK(mx_sampler_sample_best(few, ids, values, k, &b, &err), &err);
            CHECK(a == b, "case %zu, step %d: %d, not %d", i, step, b, a);
        }
        mx_sampler_free(all), mx_sampler_free(few);
    }
}

TEST(what_needs_all_logits_says_so)
{
    const mx_logit_bias bias = {3, 1.5f};
    mx_sampler_options o[7];
    for (size_t i = 0; i < countof(o); i++) o[i] = mx_sampler_defaults();
    o[0].temperature = 1;
    o[1].temperature = 1, o[1].top_k = 257;
    o[2].n_bias = 1, o[2].bias = &bias;
    o[3].repeat_penalty = 1.1f;
    o[4].dry_multiplier = 1;
    o[5].temperature = 1, o[5].top_k = 20, o[5].top_n_sigma = 1;
    o[6].temperature = 1, o[6].top_k = 2, o[6].min_keep = 300;
    for (size_t i = 0; i < countof(o); i++) {
        mx_sampler *s = make(&o[i], 1000);
        CHECK(mx_sampler_looks_at(s) == 0, "case %zu", i);
        mx_sampler_free(s);
    }
    mx_sampler_options all_banned = mx_sampler_defaults();
    const mx_logit_bias bans[] = {{0, -INFINITY}, {1, -INFINITY}};
    all_banned.n_bias = 2, all_banned.bias = bans;
    mx_sampler *s = make(&all_banned, 2);
    int32_t id;
    CHECK(mx_sampler_looks_at(s) == 2);
    CHECK_FAILS(mx_sampler_sample_best(s, (int32_t[]){0, 1}, (float[]){2, 1}, 2, &id, &err), MX_EINTERNAL,
                &err, "every token is banned");
    mx_sampler_free(s);
}
