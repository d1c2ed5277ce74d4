/* test_verify.c - the gate passes what is right, fails what is slightly wrong, and says when it cannot tell. */
#include "engine/verify.h"
#include "engine/reference.h"
#include "fixture.h"
#include "quant/quant.h"

static mx_err err;

static mx_status try_verify(const char *dir, const char *isa, mx_verify_options o, mx_verify_result *r) {
    mx_engine *e = NULL;
    mx_engine_options eo = {.device = "cpu", .ctx = 512, .dev = {.isa = isa, .exact = true}, .kv = MX_KV_F32};
    CHECK_OK(mx_engine_open(&e, dir, &eo, &err), &err);
    mx_status st = mx_verify(e, &o, r, &err);
    mx_engine_free(e);
    return st;
}

static mx_verify_options usual(const char *reference, int positions) {
    return (mx_verify_options){
        .reference = reference, .decided = 2, .min_decided = 50, .max_positions = positions};
}

TEST(a_right_model_passes_at_every_width)
{
    static const int widths[] = {1, 8, 256};
    const char *ref = mx_test_path("models/demo/reference_fp32.json");
    for (size_t i = 0; i < countof(widths); i++) {
        mx_verify_options o = usual(ref, widths[i] == 1 ? 128 : 256);
        mx_verify_result r;
        o.width = widths[i];
        CHECK_OK(try_verify(mx_test_path("models/demo"), NULL, o, &r), &err);
        CHECK(r.verdict == MX_VERIFY_PASS, "%s", r.reason);
        CHECK(r.positions == o.max_positions && r.differ_decided == 0 && r.decided >= 50);
        CHECK(r.mean_logprob_diff > 0 && r.mean_logprob_diff < 0.005, "mean %g", r.mean_logprob_diff);
        CHECK(r.mean_kl < 1e-3 && r.worst_logprob_diff >= r.mean_logprob_diff);
    }
}

/* One weight matrix of one layer 3 % too large. */
static void scale_dense(const char *name, void *data, size_t n_bytes) {
    if (strcmp(name, "model.layers.1.mlp.down_proj.weight") != 0) return;
    uint16_t *v = data;
    for (size_t i = 0; i < n_bytes / 2; i++) v[i] = mx_f32_to_bf16(mx_bf16_to_f32(v[i]) * 1.03f);
}

static void scale_affine(const char *name, void *data, size_t n_bytes) {
    if (strcmp(name, "model.layers.2.mlp.down_proj.scales") != 0 &&
        strcmp(name, "model.layers.2.mlp.down_proj.biases") != 0)
        return;
    uint16_t *v = data;
    for (size_t i = 0; i < n_bytes / 2; i++) v[i] = mx_f32_to_bf16(mx_bf16_to_f32(v[i]) * 1.03f);
}

/* It changes no decided token; the log-probabilities give it away. The bound is twice what the plain scalar backend
 * differs by. */
TEST(one_layer_off_by_three_percent_fails)
{
    const char *right = mx_test_path("tests/checkpoints/qwen3-5-bf16");
    char dir[600];
    snprintf(dir, sizeof dir, "%s/scaled", mx_test_tmpdir());
    fixture_copy(dir, "tests/checkpoints/qwen3-5-bf16", scale_dense);
    mx_verify_options o = usual(mx_test_path("tests/checkpoints/qwen3-5-bf16/reference_fp32.json"), 300);
    mx_verify_result twin, r;
    CHECK_OK(try_verify(right, "scalar", o, &twin), &err);
    CHECK(twin.verdict == MX_VERIFY_PASS, "%s", twin.reason);
    o.max_logprob_diff = 2 * twin.mean_logprob_diff;
    CHECK_OK(try_verify(right, NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_PASS, "%s", r.reason);
    CHECK_OK(try_verify(dir, NULL, o, &r), &err);
    CHECK(r.differ_decided == 0 && r.verdict == MX_VERIFY_FAIL, "mean %g, allowed %g", r.mean_logprob_diff,
          o.max_logprob_diff);
}

/* The stored references of affine checkpoints come from weights that MLX rounded to bf16 when it expanded them, which moves
 * log-probabilities by as much as such a fault does. A reference that the scalar backend writes has no such floor. */
TEST(against_the_scalar_twin_it_fails_for_affine_weights_too)
{
    const char *right = mx_test_path("models/demo"), *tmp = mx_test_tmpdir();
    char dir[600], ref[620];
    snprintf(dir, sizeof dir, "%s/scaled", tmp);
    snprintf(ref, sizeof ref, "%s/scalar.json", tmp);
    fixture_copy(dir, "models/demo", scale_affine);
    static const char docs[] =
        "[{\"ids\": [1308, 82, 360, 358, 12, 77, 300, 41, 5, 900, 17, 630, 222, 48, 1001, 64, 64, 31, 8, 450]}]";
    char docs_path[620];
    snprintf(docs_path, sizeof docs_path, "%s/docs.json", tmp);
    fixture_write(tmp, "docs.json", docs, strlen(docs));
    mx_engine *e = NULL;
    mx_engine_options eo = {
        .device = "cpu", .ctx = 512, .dev = {.isa = "scalar", .exact = true}, .kv = MX_KV_F32};
    CHECK_OK(mx_engine_open(&e, right, &eo, &err), &err);
    CHECK_OK(mx_verify_write(e, docs_path, ref, 0, &err), &err);
    mx_engine_free(e);
    mx_verify_options o = {.reference = ref, .max_logprob_diff = 1e-4, .decided = 1, .min_decided = 1};
    mx_verify_result r;
    CHECK_OK(try_verify(right, NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_PASS, "%s", r.reason);
    CHECK_OK(try_verify(dir, NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_FAIL, "mean %g", r.mean_logprob_diff);
}

TEST(too_few_decided_positions_are_inconclusive)
{
    mx_verify_options o = usual(mx_test_path("models/demo/reference_fp32.json"), 60);
    mx_verify_result r;
    CHECK_OK(try_verify(mx_test_path("models/demo"), NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_PASS || r.decided < 50);
    o.max_positions = 20;
    CHECK_OK(try_verify(mx_test_path("models/demo"), NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_INCONCLUSIVE && r.decided < 50, "%s", r.reason);
    o.min_decided = 0; // one at least is always needed
    o.decided = 1000;
    CHECK_OK(try_verify(mx_test_path("models/demo"), NULL, o, &r), &err);
    CHECK(r.verdict == MX_VERIFY_INCONCLUSIVE && r.decided == 0);
}

/* All positions may agree: a fused op that was composed unnoticed costs speed, and fails too. */
TEST(a_composition_that_no_port_lists_fails)
{
    mx_verify_options o = usual(mx_test_path("models/demo/reference_fp32.json"), 100);
    for (int unlisted = 0; unlisted < 2; unlisted++) {
        mx_engine *e = NULL;
        mx_verify_result r;
        mx_engine_options eo = {.device = "cpu", .ctx = 512};
        CHECK_OK(mx_engine_open(&e, mx_test_path("models/demo"), &eo, &err), &err);
        mx_engine_dev(e)->ports[MX_PORT_TOKEN_LOG_PROB].composed = 5; // meant: does not matter
        mx_engine_dev(e)->ports[MX_PORT_TOKEN_LOG_PROB].unlisted = (uint64_t)unlisted;
        mx_status st = mx_verify(e, &o, &r, &err);
        mx_engine_free(e);
        CHECK_OK(st, &err);
        CHECK(r.verdict == (unlisted ? MX_VERIFY_FAIL : MX_VERIFY_PASS), "%s", r.reason);
        CHECK(!unlisted || strstr(r.reason, "token_log_prob was composed 1 times on cpu"), "%s", r.reason);
    }
}

TEST(another_models_reference_fails)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s/blank", mx_test_tmpdir());
    tape t = tape_blank();
    tape_make(&t, dir);
    static const char text[] =
        "[{\"ids\": [1, 2], \"top\": [[5, 6], [7, 8]], \"logit\": [[9, 1], [3, 2]], \"lse\": [9.1, 4]}]";
    char path[620];
    snprintf(path, sizeof path, "%s/ref.json", dir);
    fixture_write(dir, "ref.json", text, strlen(text));
    mx_verify_result r;
    CHECK_OK(try_verify(dir, NULL, usual(path, 0), &r), &err);
    CHECK(r.verdict == MX_VERIFY_FAIL && r.positions == 2 && r.decided == 1 && r.differ_decided == 1);
    CHECK(r.differ == 2 && r.largest_gap == 8, "the lead at the worst disagreement");
    /* All logits are 0: every token has log-probability -log(320). */
    CHECK(fabs(r.worst_logprob_diff - (log(320) - 0.1)) < 1e-6);
    CHECK(fabs(r.mean_logprob_diff - (2 * log(320) - 0.1 - 1) / 2) < 1e-6);
}

TEST(broken_references_are_named)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "ref.json"},
        {"{}", "list of documents"},
        {"[]", "list of documents"},
        {"[{}]", "document 1: \"ids\""},
        {"[{\"ids\": [1, \"a\"]}]", "\"ids\" must be whole"},
        {"[{\"ids\": [-1]}]", "\"ids\" must be whole"},
        {"[{\"ids\": [1]}]", "as long as"},
        {"[{\"ids\": [1, 2], \"top\": [[1, 2]], \"logit\": [[2, 1]], \"lse\": [3]}]", "as long as"},
        {"[{\"ids\": [1], \"top\": [[1]], \"logit\": [[2]], \"lse\": [3]}]", "from 2 to 100"},
        {"[{\"ids\": [1], \"top\": [[1, 2]], \"logit\": [[2]], \"lse\": [3]}]", "\"logit\""},
        {"[{\"ids\": [1], \"top\": [[1, 2]], \"logit\": [[2, 3]], \"lse\": [3]}]", "must fall"},
        {"[{\"ids\": [1], \"top\": [[1, 2]], \"logit\": [[NaN, 3]], \"lse\": [3]}]", "finite"},
        {"[{\"ids\": [1], \"top\": [[1, 2]], \"logit\": [[3, 2]], \"lse\": [Infinity]}]", "lse"},
        {"[{\"ids\": [1536], \"top\": [[1, 2]], \"logit\": [[3, 2]], \"lse\": [4]}]", "token 1536"},
        {"[{\"ids\": [1], \"top\": [[1, 99999]], \"logit\": [[3, 2]], \"lse\": [4]}]", "token 99999"},
    };
    const char *dir = mx_test_tmpdir();
    char path[620];
    snprintf(path, sizeof path, "%s/ref.json", dir);
    for (size_t i = 0; i < countof(cases); i++) {
        mx_verify_result r;
        fixture_write(dir, "ref.json", cases[i].text, strlen(cases[i].text));
        CHECK_FAILS(try_verify(mx_test_path("models/demo"), NULL, usual(path, 0), &r), MX_EINVAL, &err,
                    cases[i].part);
    }
}

/* What is written can be verified and compared: against itself it is the same to the last digit. */
TEST(a_written_reference_agrees_with_its_writer)
{
    const char *dir = mx_test_tmpdir();
    char docs[620], a[620], b[620];
    snprintf(docs, sizeof docs, "%s/docs.json", dir);
    snprintf(a, sizeof a, "%s/a.json", dir);
    snprintf(b, sizeof b, "%s/b.json", dir);
    mx_arena arena = {0};
    mx_reference ref;
    CHECK_OK(mx_reference_read(&ref, &arena, mx_test_path("models/demo/reference_fp32.json"), false, &err),
             &err);
    mx_str s = {0};
    mx_str_puts(&s, "[");
    for (int i = 0; i < 2; i++) {
        mx_str_puts(&s, i ? ", " : "");
        mx_reference_put(&s, &ref.docs[i], ref.k);
    }
    mx_str_puts(&s, "]");
    fixture_write(dir, "docs.json", s.p, s.len);
    mx_str_free(&s);
    mx_engine *e = NULL;
    mx_engine_options eo = {.device = "cpu", .ctx = 512, .dev = {.exact = true}};
    CHECK_OK(mx_engine_open(&e, mx_test_path("models/demo"), &eo, &err), &err);
    CHECK_OK(mx_verify_write(e, docs, a, 1, &err), &err);
    CHECK_OK(mx_verify_write(e, docs, b, 0, &err), &err); // exact: another width, the same numbers
    mx_verify_options o = usual(NULL, 0);
    mx_verify_result r;
    CHECK_OK(mx_verify_compare(a, b, &o, &r, &err), &err);
    CHECK(r.verdict == MX_VERIFY_PASS && r.differ == 0 && r.worst_logprob_diff == 0 && r.mean_kl < 1e-9, "%s",
          r.reason);
    CHECK_OK(mx_verify_compare(docs, a, &o, &r, &err), &err);
    CHECK(r.verdict == MX_VERIFY_PASS && r.mean_logprob_diff < 0.005, "%s", r.reason);
    o.reference = a;
    CHECK_OK(mx_verify(e, &o, &r, &err), &err);
    CHECK(r.verdict == MX_VERIFY_PASS && r.differ == 0 && r.worst_logprob_diff < 1e-5, "%s", r.reason);
    CHECK_FAILS(mx_verify_compare(a, mx_test_path("models/demo/reference_fp32.json"), &o, &r, &err),
                MX_EINVAL, &err, "documents");
    /* From plain text, and refused when the place to write to is not there. */
    fixture_write(dir, "text.txt", "What is 17 + 25?\n42\n", 20);
    snprintf(docs, sizeof docs, "%s/text.txt", dir);
    CHECK_OK(mx_verify_write(e, docs, b, 0, &err), &err);
    CHECK_OK(mx_reference_read(&ref, &arena, b, false, &err), &err);
    CHECK(ref.n_doc == 1 && ref.k == 3 && ref.docs[0].n > 5);
    snprintf(b, sizeof b, "%s/none/b.json", dir);
    CHECK(mx_verify_write(e, docs, b, 0, &err) == MX_EIO || err.code == MX_ENOTFOUND);
    mx_engine_free(e);
    mx_arena_free(&arena);
}
