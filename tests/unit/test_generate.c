/* test_generate.c - stop strings, and answers of a model that says what it is told to. */
#include "engine/generate.h"
#include "engine/stop.h"
#include "fixture.h"

static mx_err err;

/* ---- stop strings --------------------------------------------------------------------------------------- */

/* Text through a matcher in pieces of `size` bytes; returns the index of the stop string, or -1. */
static int through(const char *const *words, int n, const char *text, size_t size, mx_str *out) {
    mx_stop *s;
    int hit = -1;
    CHECK_OK(mx_stop_new(&s, words, n, &err), &err);
    for (size_t at = 0, len = strlen(text); at < len && hit < 0; at += size)
        mx_stop_push(s, text + at, len - at < size ? len - at : size, out, &hit);
    mx_stop_flush(s, out);
    mx_stop_free(s);
    mx_str_putc(out, '\0'); // CHECK_STR sees "" and not NULL
    return hit;
}

TEST(stop_strings_do_not_depend_on_the_cut)
{
    static const struct {
        const char *words[3], *text, *want;
        int hit;
    } cases[] = {
        {{"haBe"}, "AlphaBeta", "Alp", 0},
        {{"zz", "aB"}, "AlphaBeta", "Alph", 1},
        {{"zz"}, "AlphaBeta", "AlphaBeta", -1},
        {{"aab"}, "aaaab", "aa", 0}, // the second a is not lost
        {{"abab", "b"}, "aab", "aa", 1},
        {{"abcd", "bc"}, "xabcd", "xa", 1}, // the first to be complete counts
        {{"bc", "abc"}, "xabc", "x", 1},    // of two that end together the longer
        {{"", "x"}, "axb", "a", 1},         // an empty one is ignored
        {{"a"}, "abc", "", 0},
        {{"\xc3\xa9"}, "caf\xc3\xa9!", "caf", 0},
        {{"\n\nUser:"},
         "Hi\n\nUse it",
         "Hi\n\nUse it",
         -1}, // what looked like a stop string is text after all
        {{"end"}, "the en", "the en", -1},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        int n = 0;
        while (n < 3 && cases[i].words[n]) n++;
        for (size_t size = 1; size < 12; size++) {
            mx_str out = {0};
            int hit = through(cases[i].words, n, cases[i].text, size, &out);
            CHECK(hit == cases[i].hit, "case %zu, pieces of %zu: %d", i, size, hit);
            CHECK_STR(out.p, cases[i].want);
            mx_str_free(&out);
        }
    }
}

/* Random words and texts of two letters against a search of the whole text. */
TEST(stop_strings_match_a_search)
{
    uint64_t r = 4;
    for (int round = 0; round < 500; round++) {
        char text[41] = "", words[3][6] = {""};
        const char *list[3] = {words[0], words[1], words[2]};
        for (int i = 0; i < 40; i++) text[i] = "ab"[mx_test_rand(&r) % 2];
        for (int w = 0; w < 3; w++)
            for (int i = 0, n = 1 + (int)(mx_test_rand(&r) % 5); i < n; i++)
                words[w][i] = "ab"[mx_test_rand(&r) % 2];
        size_t best_end = SIZE_MAX, best_len = 0;
        for (int w = 0; w < 3; w++) {
            const char *p = strstr(text, words[w]);
            if (!p) continue;
            size_t end = (size_t)(p - text) + strlen(words[w]);
            if (end < best_end || (end == best_end && strlen(words[w]) > best_len))
                best_end = end, best_len = strlen(words[w]);
        }
        mx_str out = {0};
        int hit = through(list, 3, text, 1 + (size_t)round % 7, &out);
        if (best_end == SIZE_MAX) {
            CHECK(hit == -1 && strcmp(out.p, text) == 0);
        } else {
            CHECK(hit >= 0 && strlen(words[hit]) == best_len);
            CHECK(strlen(out.p) == best_end - best_len && memcmp(out.p, text, best_end - best_len) == 0);
        }
        mx_str_free(&out);
    }
}

TEST(a_stop_string_is_text)
{
    mx_stop *s = NULL;
    CHECK_FAILS(mx_stop_new(&s, (const char *const[]){"ok", "\xff"}, 2, &err), MX_EINVAL, &err,
                "stop string 2");
}

/* ---- a scripted model ----------------------------------------------------------------------------------- */

typedef struct {
    mx_str text;
    int n_token, n_call, stop_after; // stop_after: the callback ends the answer at this call
    int32_t last;
    float logprob;
    mx_logprob top[20];
    int n_top;
    bool half; // a piece was not whole characters
    mx_generate_stats st;
    mx_ids ids;
} answer;

static int on_token(void *arg, const mx_token_event *ev) {
    answer *a = arg;
    mx_str_add(&a->text, ev->text, ev->text_len);
    a->half |= mx_utf8_valid(ev->text, ev->text_len) != ev->text_len || strlen(ev->text) != ev->text_len;
    a->n_call++;
    if (ev->id >= 0) {
        a->n_token++;
        a->last = ev->id;
        a->logprob = ev->logprob;
        a->n_top = ev->n_top;
        if (ev->n_top) memcpy(a->top, ev->top, (size_t)ev->n_top * sizeof *ev->top);
    }
    return a->n_call == a->stop_after;
}

static void done(answer *a) {
    mx_str_free(&a->text);
    mx_ids_free(&a->ids);
}

static mx_engine *engine_of(const tape *t, int ctx) {
    char dir[600];
    mx_engine *e = NULL;
    snprintf(dir, sizeof dir, "%s/tape", mx_test_tmpdir());
    tape_make(t, dir);
    mx_engine_options o = {.device = "cpu", .ctx = ctx, .need_tokenizer = true, .dev = {.exact = true}};
    CHECK_OK(mx_engine_open(&e, dir, &o, &err), &err);
    return e;
}

static mx_status ask(mx_engine *e, mx_seq *seq, const int32_t *prompt, int n, mx_generate_options *o,
                     answer *a) {
    mx_seq *own = NULL;
    if (!seq) CHECK_OK(mx_seq_new(&own, e, &err), &err);
    o->on_token = on_token;
    o->arg = a;
    mx_status st = mx_generate(e, seq ? seq : own, prompt, n, o, &a->ids, &a->st, &err);
    mx_seq_free(own);
    mx_str_puts(&a->text, "");
    return st;
}

static void say(mx_engine *e, int32_t prompt, mx_generate_options *o, answer *a) {
    CHECK_OK(ask(e, NULL, &prompt, 1, o, a), &err);
}

TEST(tok_01_characters_come_whole)
{
    static const char text[] = "\xc3\xa9\xed\x95\x9c\xf0\x9f\x99\x82 ok"; // no byte twice
    tape t = tape_blank();
    tape_say(&t, 'A', text, TAPE_EOS);
    mx_engine *e = engine_of(&t, 128);
    mx_generate_options o = mx_generate_defaults();
    answer a = {0};
    say(e, 'A', &o, &a);
    CHECK_STR(a.text.p, text);
    CHECK(!a.half && a.st.stop == MX_STOP_EOS);
    CHECK_INT(a.n_token, (int)sizeof text); // the bytes and eos
    CHECK(a.st.n_generated == a.n_token && a.ids.n == (size_t)a.n_token && a.last == TAPE_EOS);
    done(&a);
    a = (answer){0};
    o.max_tokens = 4; // ends inside the second character: what is missing shows as U+FFFD
    say(e, 'A', &o, &a);
    CHECK_STR(a.text.p, "\xc3\xa9\xef\xbf\xbd");
    CHECK(a.st.stop == MX_STOP_LENGTH && a.n_call == 5);
    done(&a);
    mx_engine_free(e);
}

TEST(srv_01_stop_strings_over_tokens)
{
    tape t = tape_blank();
    static const char *const pieces[] = {"A", "lp", "ha", "Be", "ta"};
    t.next['x'] = TAPE_PIECES;
    for (int i = 0; i < 5; i++) {
        t.pieces[i] = i ? pieces[i] : "AA"; // "A" itself is a byte token
        t.next[TAPE_PIECES + i] = i == 4 ? TAPE_EOS : TAPE_PIECES + i + 1;
    }
    t.next['x'] = 'A';
    t.next['A'] = TAPE_PIECES + 1;
    mx_engine *e = engine_of(&t, 128);
    static const struct {
        const char *stop[2], *want, *word;
    } cases[] = {{{"haBe"}, "Alp", "haBe"},
                 {{"zz", "aB"}, "Alph", "aB"},
                 {{"tat"}, "AlphaBeta", NULL},
                 {{""}, "AlphaBeta", NULL}};
    for (size_t i = 0; i < countof(cases); i++) {
        mx_generate_options o = mx_generate_defaults();
        o.stop = cases[i].stop;
        o.n_stop = cases[i].stop[1] ? 2 : 1;
        answer a = {0};
        say(e, 'x', &o, &a);
        CHECK_STR(a.text.p, cases[i].want);
        CHECK(a.st.stop == (cases[i].word ? MX_STOP_WORD : MX_STOP_EOS));
        if (cases[i].word) CHECK_STR(a.st.stop_word, cases[i].word);
        done(&a);
    }
    mx_engine_free(e);
}

TEST(load_12_every_eos_ends_the_answer)
{
    static const char *const texts[] = {"xyz", "uvw", "rst"};
    for (int only_generation = 0; only_generation < 2; only_generation++) {
        tape t =
            tape_blank(); // the tokenizer says <|eos|>, config <|im_start|>, generation_config <|im_end|>
        t.eos = only_generation ? NULL : "256";
        t.generation = only_generation ? "{\"eos_token_id\": 257}" : "{\"eos_token_id\": [256, 257]}";
        tape_say(&t, 'A', "xyz", TAPE_IM_END);
        tape_say(&t, 'B', "uvw", TAPE_EOS);
        tape_say(&t, 'C', "rst", TAPE_IM_START);
        t.next[TAPE_IM_END] = t.next[TAPE_EOS] = t.next[TAPE_IM_START] = 'q';
        mx_engine *e = engine_of(&t, 128);
        for (int i = 0; i < 3; i++) {
            bool is_end = i < 2 || !only_generation;
            mx_generate_options o = mx_generate_defaults();
            o.max_tokens = 6;
            o.keep_special = true;
            answer a = {0};
            say(e, 'A' + i, &o, &a);
            CHECK(a.st.stop == (is_end ? MX_STOP_EOS : MX_STOP_LENGTH), "prompt %c", 'A' + i);
            if (is_end) CHECK_STR(a.text.p, texts[i]); // no marker
            done(&a);
            a = (answer){0};
            o.ignore_eos = true;
            say(e, 'A' + i, &o, &a);
            CHECK(a.st.stop == MX_STOP_LENGTH && a.st.n_generated == 6);
            for (size_t k = 0; k < a.ids.n; k++) CHECK(a.ids.id[k] != TAPE_IM_END && a.ids.id[k] != TAPE_EOS);
            done(&a);
        }
        mx_engine_free(e);
    }
}

TEST(smp_09_ids_beyond_the_tokenizer_have_no_text)
{
    tape t = tape_blank();
    mx_engine *e = engine_of(&t, 128);
    mx_logit_bias bias = {310, 100};
    mx_generate_options o = mx_generate_defaults();
    o.sampler.bias = &bias;
    o.sampler.n_bias = 1;
    o.max_tokens = 7;
    answer a = {0};
    say(e, 'A', &o, &a);
    CHECK(a.st.stop == MX_STOP_LENGTH && a.st.n_generated == 7 && a.last == 310);
    CHECK_STR(a.text.p, "");
    done(&a);
    mx_engine_free(e);
}

TEST(logprobs_are_of_the_biased_distribution)
{
    tape t = tape_blank();
    mx_engine *e = engine_of(&t, 128);
    static const mx_logit_bias bias[] = {{40, 3}, {20, 2}, {30, 1}};
    mx_generate_options o = mx_generate_defaults();
    o.sampler.bias = bias;
    o.sampler.n_bias = 3;
    o.max_tokens = 1;
    static const int wanted[] = {-1, 0, 3};
    for (int i = 0; i < 3; i++) {
        answer a = {0};
        o.n_logprobs = wanted[i];
        say(e, 'A', &o, &a);
        double lse = log(TAPE_VOCAB - 3 + exp(3) + exp(2) + exp(1));
        CHECK(fabs(a.logprob - (i ? 3 - lse : 0)) < 1e-5);
        CHECK_INT(a.n_top, i == 2 ? 3 : 0);
        if (i == 2) CHECK(a.top[0].id == 40 && a.top[1].id == 20 && a.top[2].id == 30);
        done(&a);
    }
    mx_engine_free(e);
}

TEST(max_tokens_cancel_and_callback_end_it)
{
    tape t = tape_blank();
    t.next['A'] = 'B';
    t.next['B'] = 'A';
    mx_engine *e = engine_of(&t, 64);
    mx_generate_options o = mx_generate_defaults();
    answer a = {0};
    o.max_tokens = 0;
    say(e, 'A', &o, &a);
    CHECK(a.st.stop == MX_STOP_LENGTH && a.st.n_generated == 0 && a.n_call == 0 && a.st.n_prompt == 1);
    done(&a);
    a = (answer){.stop_after = 3};
    o.max_tokens = -1;
    say(e, 'A', &o, &a);
    CHECK(a.st.stop == MX_STOP_CANCEL && a.n_call == 3 && a.st.n_generated == 3);
    done(&a);
    a = (answer){0};
    int stop = 1;
    o.cancel = &stop;
    say(e, 'A', &o, &a); // before the prompt is read
    CHECK(a.st.stop == MX_STOP_CANCEL && a.st.n_generated == 0);
    done(&a);
    a = (answer){0};
    o.cancel = NULL;
    say(e, 'A', &o, &a); // the context of 64: one token of prompt, 64 more, of which the last is not fed
    CHECK(a.st.stop == MX_STOP_CONTEXT && a.st.n_generated == 64);
    done(&a);
    mx_engine_free(e);
}

TEST(kvc_05_long_prompts_are_refused_or_slide)
{
    tape t = tape_blank();
    tape_say(&t, 'A', "done", TAPE_EOS);
    mx_engine *e = engine_of(&t, 128);
    static const int lengths[] = {129, 200, 10000};
    int32_t ids[10000];
    for (int i = 0; i < 10000; i++) ids[i] = 'z';
    for (size_t i = 0; i < countof(lengths); i++) {
        int n = lengths[i];
        char want[80];
        answer a = {0};
        mx_generate_options o = mx_generate_defaults();
        snprintf(want, sizeof want, "prompt of %d tokens does not fit the context of 128", n);
        CHECK_FAILS(ask(e, NULL, ids, n, &o, &a), MX_ELIMIT, &err, want);
        CHECK(a.n_call == 0 && a.ids.n == 0);
        o.context_shift = true;
        o.n_keep = 10;
        ids[n - 1] = 'A';
        CHECK_OK(ask(e, NULL, ids, n, &o, &a), &err);
        CHECK_STR(a.text.p, "done");
        ids[n - 1] = 'z';
        done(&a);
    }
    mx_generate_options o = mx_generate_defaults();
    answer a = {0};
    CHECK_FAILS(ask(e, NULL, ids, 0, &o, &a), MX_EINVAL, &err, "empty");
    o.context_shift = true;
    o.n_keep = 127;
    CHECK_FAILS(ask(e, NULL, ids, 4, &o, &a), MX_EINVAL, &err, "keep is 127");
    int32_t bad = TAPE_VOCAB;
    o = mx_generate_defaults();
    CHECK_FAILS(ask(e, NULL, &bad, 1, &o, &a), MX_EINVAL, &err, "token 320");
    o.max_tokens = -2;
    CHECK_FAILS(ask(e, NULL, ids, 1, &o, &a), MX_EINVAL, &err, "max_tokens");
    done(&a);
    mx_engine_free(e);
}

/* ---- trained models ------------------------------------------------------------------------------------- */

static mx_engine *open_model(const char *model, int ctx) {
    mx_engine *e = NULL;
    mx_engine_options o = {.device = "cpu", .ctx = ctx, .chunk = 64, .dev = {.exact = true}};
    CHECK_OK(mx_engine_open(&e, mx_test_path(model), &o, &err), &err);
    return e;
}

static const char *const models[] = {"models/demo", "tests/checkpoints/gemma3-4bit-g64",
                                     "tests/checkpoints/qwen3-5-bf16"};

/* A full context slides: what follows is what the model would say to the kept tokens alone. */
TEST(a_slid_context_is_a_shorter_prompt)
{
    enum { CTX = 64, KEEP = 6, PROMPT = 60, HALF = (CTX - KEEP) / 2 };
    for (size_t m = 0; m < countof(models); m++) {
        mx_engine *e = open_model(models[m], CTX);
        int32_t prompt[PROMPT];
        uint64_t r = 8;
        for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(mx_test_rand(&r) % 1200);
        mx_generate_options o = mx_generate_defaults();
        o.ignore_eos = true;
        o.context_shift = true;
        o.n_keep = KEEP;
        o.max_tokens = 12;
        answer a = {0}, b = {0};
        CHECK_OK(ask(e, NULL, prompt, PROMPT, &o, &a), &err);
        CHECK(a.ids.n == 12 && a.st.stop == MX_STOP_LENGTH);
        /* The cache holds 64 after four tokens; the fifth makes it slide. */
        int32_t all[PROMPT + 5], kept[KEEP + HALF];
        memcpy(all, prompt, sizeof prompt);
        memcpy(all + PROMPT, a.ids.id, 5 * sizeof *all);
        memcpy(kept, all, KEEP * sizeof *kept);
        memcpy(kept + KEEP, all + PROMPT + 5 - HALF, HALF * sizeof *kept);
        o.max_tokens = 7;
        CHECK_OK(ask(e, NULL, kept, KEEP + HALF, &o, &b), &err);
        CHECK(memcmp(a.ids.id + 5, b.ids.id, 7 * sizeof(int32_t)) == 0, "%s", models[m]);
        done(&a);
        done(&b);
        mx_engine_free(e);
    }
}

/* Prompts that share a beginning with what the sequence holds: the answer is a fresh one's, and something is always
 * computed. */
TEST(kvc_02_cached_tokens_change_nothing)
{
    enum { N = 200 };
    static const struct {
        int same, len;
    } prompts[] = {{200, 200}, {150, 200}, {200, 200}, {40, 40}, {200, 200}};
    for (size_t m = 0; m < countof(models); m++) {
        mx_engine *e = open_model(models[m], 256);
        mx_seq *held;
        int32_t base[N];
        uint64_t r = 12;
        for (int i = 0; i < N; i++) base[i] = (int32_t)(mx_test_rand(&r) % 1200);
        /* A second engine, so that the fresh sequence is not the one that holds something. */
        mx_engine *fresh = open_model(models[m], 256);
        CHECK_OK(mx_seq_new(&held, e, &err), &err);
        int reused = 0;
        for (size_t i = 0; i < countof(prompts); i++) {
            int32_t p[N];
            memcpy(p, base, sizeof p);
            for (int k = prompts[i].same; k < prompts[i].len; k++) p[k] = (base[k] + 1) % 1200;
            mx_generate_options o = mx_generate_defaults();
            o.max_tokens = 8;
            o.ignore_eos = true;
            answer a = {0}, b = {0};
            CHECK_OK(ask(e, held, p, prompts[i].len, &o, &a), &err);
            CHECK_OK(ask(fresh, NULL, p, prompts[i].len, &o, &b), &err);
            CHECK(a.ids.n == 8 && memcmp(a.ids.id, b.ids.id, 8 * sizeof(int32_t)) == 0, "%s, prompt %zu",
                  models[m], i);
            CHECK(a.st.n_cached <= prompts[i].len - 1 && b.st.n_cached == 0);
            reused += a.st.n_cached;
            done(&a);
            done(&b);
        }
        CHECK(m != 0 || reused >= 150 + 150 + 39 + 39); // full attention always can go back
        /* Going on where the sequence ends never needs to go back: a chat's next turn. */
        int len = mx_seq_len(held);
        int32_t next[256];
        memcpy(next, mx_seq_ids(held), (size_t)len * sizeof *next);
        next[len] = 7;
        answer a = {0};
        mx_generate_options o = mx_generate_defaults();
        o.max_tokens = 2;
        CHECK_OK(ask(e, held, next, len + 1, &o, &a), &err);
        CHECK_INT(a.st.n_cached, len);
        done(&a);
        mx_seq_free(held);
        mx_engine_free(e);
        mx_engine_free(fresh);
    }
}

TEST(the_same_seed_gives_the_same_text)
{
    mx_engine *e = open_model("models/demo", 256);
    mx_generate_options o = mx_generate_defaults();
    o.sampler.temperature = 1.5f;
    o.sampler.top_k = 40;
    o.sampler.repeat_penalty = 1.1f;
    o.sampler.dry_multiplier = 0.5f;
    o.max_tokens = 30;
    o.ignore_eos = true;
    answer a[3] = {{.n_call = 0}};
    for (int i = 0; i < 3; i++) {
        o.sampler.seed = i < 2 ? 42 : 43;
        say(e, 100, &o, &a[i]);
        CHECK(a[i].st.seed == o.sampler.seed);
    }
    CHECK_STR(a[0].text.p, a[1].text.p);
    CHECK(strcmp(a[0].text.p, a[2].text.p) != 0);
    for (int i = 0; i < 3; i++) done(&a[i]);
    mx_engine_free(e);
}
