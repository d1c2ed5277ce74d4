/* args: command lines from the program's own table, and the filter for reasoning. */
#include "test.h"
/* The program's files are not in the archive that tests link, so they are compiled into this test. */
#include "cli/args.c"
#include "cli/flags.c"
#include "cli/think.c"

static mx_arena arena;
static cli_options o;
static arg_line l;
static mx_err err;

/* Parse words for a command; the last word is NULL. */
static mx_status parse(unsigned cmd, const char *const *words) {
    int n = 0;
    while (words[n]) n++;
    mx_arena_free(&arena);
    o = (cli_options){0};
    l = (arg_line){.flags = cli_flags, .n_flag = cli_n_flag, .cmd = cmd, .where = "prog", .a = &arena};
    return arg_parse(&l, &o, n, (char *const *)words, &err);
}
#define PARSE(cmd, ...) parse(cmd, (const char *const[]){__VA_ARGS__, NULL})

TEST(defaults_come_from_the_table)
{
    CHECK_OK(PARSE(C_RUN, "model"), &err);
    CHECK_INT(o.max_tokens, -1);
    CHECK_INT(o.repeat_last_n, 64);
    CHECK(o.dry_base == 1.75f && o.top_p == 1 && o.temp == 0);
    CHECK(o.seed == UINT64_MAX);
    CHECK_STR(o.device, "auto");
    CHECK_INT(l.n_positional, 1);
    CHECK_STR(l.positional[0], "model");
    CHECK(!arg_given(&l, "--temp"));
}

TEST(values_may_be_joined_or_apart_and_names_have_aliases)
{
    CHECK_OK(PARSE(C_RUN, "m", "--temp=0.5", "--n-predict", "7", "-sys", "be brief", "-t4", "--top-nsigma",
                   "1.5", "--typical-p=0.9", "-c", "100"),
             &err);
    CHECK(o.temp == 0.5f && o.top_n_sigma == 1.5f && o.typical == 0.9f);
    CHECK_INT(o.max_tokens, 7);
    CHECK_INT(o.threads, 4);
    CHECK_INT(o.ctx, 100);
    CHECK_STR(o.system, "be brief");
    CHECK(arg_given(&l, "--temp") && arg_given(&l, "--temperature") && !arg_given(&l, "--top-k"));
    CHECK_OK(PARSE(C_RUN, "m", "-n", "-1", "--seed=18446744073709551614"),
             &err); // a value may start with a dash
    CHECK_INT(o.max_tokens, -1);
    CHECK(o.seed == UINT64_MAX - 1);
    CHECK_OK(PARSE(C_RUN, "m", "-p", "-"), &err);
    CHECK_STR(o.prompt, "-");
    CHECK_OK(PARSE(C_RUN, "--", "-m"), &err); // behind "--" all words are words
    CHECK_STR(l.positional[0], "-m");
    CHECK_OK(PARSE(C_RUN, "m", "-p", "x", "--help", "--nonsense"), &err);
    CHECK(l.help);
}

TEST(booleans_and_lists)
{
    CHECK_OK(PARSE(C_RUN, "m", "--exact", "--no-context-shift", "--ignore-eos=off", "-r", "a", "--stop", "b"),
             &err);
    CHECK(o.exact && !o.context_shift && !o.ignore_eos);
    CHECK_INT(o.stop.n, 2);
    CHECK_STR(o.stop.v[1], "b");
    CHECK_OK(PARSE(C_BENCH, "m", "-p", "1,2,3", "-p", "4", "-n", "0", "-pg", "5,6", "-pg", "7,8"), &err);
    CHECK_INT(o.n_prompt.n, 4); // the default 512 is gone
    CHECK_INT(o.n_prompt.v[0], 1);
    CHECK_INT(o.n_prompt.v[3], 4);
    CHECK_INT(o.n_gen.n, 1);
    CHECK_INT(o.n_pg.n, 4);
    CHECK_INT(o.n_pg.v[3], 8);
}

TEST(wrong_lines_end_in_one_sentence)
{
    static const struct {
        unsigned cmd;
        const char *words[4], *part;
    } cases[] = {
        {C_RUN, {"--tmep", "1"}, "unknown flag --tmep; did you mean --temp?"},
        {C_RUN, {"--max-token", "1"}, "did you mean --max-tokens?"},
        {C_RUN, {"--top_k=1"}, "did you mean --top-k?"},
        {C_RUN, {"--temper=1"}, "did you mean --temperature?"},
        {C_RUN, {"--zzzzzzzzz"}, "unknown flag --zzzzzzzzz; prog --help lists the flags"},
        {C_RUN, {"-Z"}, "unknown flag -Z"},
        {C_LIST, {"--temp", "1"}, "unknown flag --temp"},
        {C_RUN, {"--temp"}, "--temp needs a value (F)"},
        {C_RUN, {"--temp", "--top-k", "1"}, "--temp needs a value"},
        {C_RUN, {"--temp", "warm"}, "--temp takes a number from 0 to 100, not \"warm\""},
        {C_RUN, {"--temp", "nan"}, "--temp takes a number"},
        {C_RUN, {"--temp", "1x"}, "--temp takes a number"},
        {C_RUN, {"--temp", ""}, "--temp takes a number"},
        {C_RUN, {"--top-p", "1.5"}, "--top-p takes a number from 0 to 1, not \"1.5\""},
        {C_RUN, {"-n", "2.5"}, "-n takes a whole number"},
        {C_RUN, {"-n", "-2"}, "-n takes a whole number at least -1"},
        {C_RUN, {"-n", "99999999999999999999"}, "-n takes a whole number"},
        {C_RUN, {"-n", ""}, "-n takes a whole number"},
        {C_RUN, {"--seed", "-2"}, "--seed takes a whole number"},
        {C_RUN, {"--seed", "18446744073709551616"}, "too large"},
        {C_RUN, {"--seed", "18446744073709551615"}, "too large"},
        {C_RUN, {"--cache-type", "q4"}, "--cache-type is auto, bf16, f16 or f32, not \"q4\""},
        {C_RUN, {"--temp=1", "--temperature=1"}, "--temperature is given twice"},
        {C_RUN, {"--exact", "--exact"}, "--exact is given twice"},
        {C_RUN, {"--exact=maybe"}, "--exact is on or off"},
        {C_BENCH, {"-p", "1,,2"}, "-p takes a whole number"},
        {C_BENCH, {"-pg", "5"}, "-pg takes two numbers"},
        {C_BENCH, {"-pg", "5,6,7"}, "-pg takes two numbers"},
    };
    for (size_t i = 0; i < countof(cases); i++)
        CHECK_FAILS(parse(cases[i].cmd, cases[i].words), MX_EINVAL, &err, cases[i].part);
}

TEST(the_environment_is_weaker_than_the_line)
{
    setenv("MLXCEL_THREADS", "3", 1);
    setenv("LLAMA_ARG_THREADS", "5", 1);
    setenv("LLAMA_ARG_N_PREDICT", "9", 1);
    setenv("MLXCEL_TOP_K", "", 1);
    CHECK_OK(PARSE(C_RUN, "m"), &err);
    CHECK_INT(o.threads, 3); // ours before llama.cpp's
    CHECK_INT(o.max_tokens, 9);
    CHECK_INT(o.top_k, 0); // empty is unset
    CHECK(arg_given(&l, "-n") && !arg_given(&l, "--top-k"));
    CHECK_OK(PARSE(C_RUN, "m", "-t", "1"), &err);
    CHECK_INT(o.threads, 1);
    setenv("MLXCEL_THREADS", "many", 1);
    CHECK_FAILS(PARSE(C_RUN, "m"), MX_EINVAL, &err, "environment: MLXCEL_THREADS takes a whole number");
    unsetenv("MLXCEL_THREADS");
    unsetenv("LLAMA_ARG_THREADS");
    unsetenv("LLAMA_ARG_N_PREDICT");
    unsetenv("MLXCEL_TOP_K");
}

TEST(set_changes_one_value)
{
    CHECK_OK(PARSE(C_RUN, "m"), &err);
    CHECK_OK(arg_set(&l, &o, "--temp", "0.25", &err), &err);
    CHECK(o.temp == 0.25f && arg_given(&l, "--temp"));
    CHECK_FAILS(arg_set(&l, &o, "--tmp", "1", &err), MX_ENOTFOUND, &err, "did you mean --temp?");
    CHECK_FAILS(arg_set(&l, &o, "--temp", "-1", &err), MX_EINVAL, &err, "from 0 to 100");
    mx_str s = {0};
    arg_show(&s, arg_find(&l, "--temp"), &o);
    CHECK_STR(s.p, "0.25");
    mx_str_free(&s);
}

/* The table itself: names are unique in a command, defaults are valid, and the texts keep to the width. */
TEST(the_table_is_sound)
{
    for (unsigned bit = 1; bit <= C_DEVICES; bit *= 2) {
        for (int i = 0; i < cli_n_flag; i++) {
            char name[NAME_LEN];
            if (!(cli_flags[i].cmds & bit)) continue;
            for (const char *at = cli_flags[i].names; next_name(&at, name, sizeof name);)
                for (int j = i + 1; j < cli_n_flag; j++)
                    if (cli_flags[j].cmds & bit)
                        CHECK(!has_name(&cli_flags[j], name, strlen(name)), "%s twice in command %u", name,
                              bit);
            CHECK(cli_flags[i].type == ARG_BOOL || cli_flags[i].type == ARG_CHOICE || cli_flags[i].value);
        }
        CHECK_OK(parse(bit, (const char *const[]){NULL}), &err);
        mx_str s = {0};
        arg_help(&s, cli_flags, cli_n_flag, bit, 100);
        int lines = 0;
        for (const char *p = s.p; *p; lines++) {
            size_t n = strcspn(p, "\n");
            CHECK(n <= 100, "%.*s", (int)n, p);
            p += n + 1;
        }
        CHECK(lines > 0 && lines <= 46, "command %u has %d lines of flags", bit, lines);
        mx_str_free(&s);
    }
}

TEST(near_words)
{
    static const char *const words[] = {"run", "list", "bench", "inspect"};
    CHECK_STR(arg_near("rnu", words, 4), "run");
    CHECK_STR(arg_near("insepct", words, 4), "inspect");
    CHECK_STR(arg_near("banch", words, 4), "bench");
    CHECK(arg_near("serve", words, 4) == NULL);
    CHECK(arg_near("", words, 4) == NULL);
    char big[300];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    CHECK(arg_near(big, words, 4) == NULL);
}

/* ---- reasoning ------------------------------------------------------------------------------------------- */

static char thought[256], said[256];

static void collect(void *arg, const char *p, size_t n, bool thinking) {
    (void)arg;
    strncat(thinking ? thought : said, p, n);
}

/* Every split of the text into pieces of the same size gives the same. */
static void check_think(const char *prompt, const char *text, const char *want_thought,
                        const char *want_said) {
    size_t len = strlen(text);
    for (size_t step = 1; step <= len; step++) {
        think_filter t;
        thought[0] = said[0] = 0;
        think_start(&t, prompt, strlen(prompt), collect, NULL);
        for (size_t at = 0; at < len; at += step)
            think_push(&t, text + at, len - at < step ? len - at : step);
        think_end(&t);
        CHECK_STR(thought, want_thought);
        CHECK_STR(said, want_said);
    }
}

TEST(reasoning_is_found_in_any_cut)
{
    check_think("", "<think>\na < b\n</think>\n\nYes, a < b.", "a < b\n", "Yes, a < b.");
    check_think("x<think>\n", "hm</think>\nSo.", "hm", "So.");
    check_think("x<think>", "a<b<</thin</think>c", "a<b<</thin", "c");
    check_think("", "No tags: 1 < 2 <think>", "", "No tags: 1 < 2 <think>"); // later the words are quoted
    check_think("", "<thinking>x", "", "<thinking>x");
    check_think("", "<<think>x", "", "<<think>x");
    check_think("", "<think>never ends </thi", "never ends </thi", "");
    check_think("", "\n<think>a</think>b", "a", "\nb");
}
