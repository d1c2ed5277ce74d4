/* template: every recorded case of tests/oracle/template_cases, the cases JIN-* and SEC-03, errors with their lines,
 * hostile templates, and the templates of the fixtures. */
#include "test.h"
#include "../oracle/template_cases.h"
#include "base/file.h"
#include "base/json.h"
#include "text/template.h"
#include <pthread.h>
#include <time.h>

enum { NOW = 1735787045 }; // 2025-01-02 03:04:05 UTC, as template_tool has it

static mx_status render_json(const char *src, size_t len, const mx_json *vars, mx_str *out, mx_err *err) {
    mx_template *t = NULL;
    MX_TRY(mx_template_compile(&t, src, len, "test", err));
    mx_status st = mx_template_render(t, vars, NOW, out, err);
    mx_template_free(t);
    return st;
}

static mx_status render(const char *src, const char *json, mx_str *out, mx_err *err) {
    mx_arena a = {0};
    mx_json *vars = NULL;
    CHECK_OK(mx_json_parse(&vars, &a, json, strlen(json), err), err);
    mx_status st = render_json(src, strlen(src), vars, out, err);
    mx_arena_free(&a);
    return st;
}

static void gives(const char *src, const char *json, const char *want) {
    mx_str out = {0};
    mx_err err;
    CHECK_OK(render(src, json, &out, &err), &err);
    CHECK_STR(out.p ? out.p : "", want);
    mx_str_free(&out);
}

static void fails(const char *src, mx_status want, const char *part) {
    mx_str out = {0};
    mx_err err = {0};
    CHECK_FAILS(render(src, "{\"n\": 5, \"d\": {\"a\": 1}}", &out, &err), want, &err, part);
    CHECK_INT(out.len, 0);
    mx_str_free(&out);
}

static const char C[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"hi\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>\\nplan\\n</think>\\n\\nok\"}, {\"role\": \"user\", \"content\": \"bye\"}]}";

static const mx_json *read_contexts(mx_arena *a) {
    char *text;
    size_t len;
    mx_json *doc = NULL;
    mx_err err;
    CHECK_OK(mx_file_read(&text, &len, a, mx_test_path("tests/oracle/template_cases/contexts.json"), 1 << 24,
                          &err),
             &err);
    CHECK_OK(mx_json_parse(&doc, a, text, len, &err), &err);
    return doc;
}

static size_t run_cases(const char *file, const mx_json *contexts, mx_arena *a) {
    char path[256], *text;
    size_t len, n = 0;
    mx_err err;
    snprintf(path, sizeof path, "tests/oracle/template_cases/%s.txt", file);
    CHECK_OK(mx_file_read(&text, &len, a, mx_test_path(path), 1 << 24, &err), &err);
    template_case c;
    for (const char *p = text; template_next(p, text + len, &c); p = c.next, n++) {
        mx_str out = {0};
        const mx_json *vars = mx_json_getn(contexts, c.ctx, c.n_ctx);
        CHECK(vars != NULL, "%.*s", (int)c.n_name, c.name);
        mx_status st = render_json(c.src, c.n_src, vars, &out, &err);
        CHECK((st != MX_OK) == c.fails, "%.*s: %s", (int)c.n_name, c.name,
              st == MX_OK ? "should fail" : err.msg);
        if (st == MX_OK) {
            bool same = out.len == c.n_want && (!out.len || !memcmp(out.p, c.want, out.len));
            CHECK(same, "%.*s: got %s", (int)c.n_name, c.name, out.p ? out.p : "");
        }
        mx_str_free(&out);
    }
    return n;
}

TEST(recorded_cases_match_jinja2)
{
    static const struct {
        const char *file;
        size_t least;
    } files[] = {{"expressions", 390}, {"filters", 340}, {"methods", 200},
                 {"statements", 260},  {"models", 115},  {"mixed", 350}};
    mx_arena a = {0};
    setenv("TZ", "UTC", 1);
    tzset();
    const mx_json *contexts = read_contexts(&a);
    for (size_t i = 0; i < countof(files); i++)
        CHECK(run_cases(files[i].file, contexts, &a) >= files[i].least, "%s", files[i].file);
    mx_arena_free(&a);
}

TEST(jin_01_loop_controls_and_namespaces)
{
    gives(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m.content }};{% endfor %}end",
        C, "S;hi;end");
    gives(
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index }}{{ m.role[0] }}"
        "{{ ',' if not loop.last }}{% endfor %}",
        C, "2u,3a,4u");
    gives(
        "{% set p = 0 %}{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% set p = p + 1 %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ p }}/{{ ns.n }}",
        C, "0/2");
}

TEST(jin_03_methods_on_filter_results)
{
    gives(
        "{% set s=messages[2].content %}{{ (s.split('</think>')|first).rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|"
        "{{ (s.split('</think>')|last).lstrip('\\n') }}",
        C, "plan|ok");
    gives("{{ {'a':1,'b':2,'c':3}.keys()|reject('in',['a','c'])|list|join('+') }}", C, "b");
    gives("{{ messages|rejectattr('role','equalto','system')|map(attribute='content')|list|length }}", C,
          "3");
}

TEST(jin_04_dates_and_recursive_macros)
{
    setenv("TZ", "UTC", 1);
    tzset();
    gives("{{ strftime_now('%d %b %Y %H:%M') }}", "{}", "02 Jan 2025 03:04");
    gives("{{ strftime_now('%d %b %Y %H:%M')|length }}{{ strftime_now('%%') }}", "{}", "17%");
    gives(
        "{%- macro ty(s, end='') -%}{%- if s.type == 'object' -%}{ {% for k, v in s.properties.items() %}{{ k }}: {{ ty(v) }}"
        "{{ ', ' if not loop.last }}{% endfor %} }{%- elif s.type == 'array' -%}{{ ty(s['items']) }}[]{%- else -%}{{ s.type }}"
        "{%- endif -%}{{ end }}{%- endmacro -%}{{ ty(s, '') }}",
        "{\"s\": {\"type\": \"object\", \"properties\": {\"q\": {\"type\": \"string\"}, \"n\": {\"type\": \"array\", \"items\":"
        "{\"type\": \"object\", \"properties\": {\"k\": {\"type\": \"integer\"}}}}}}}",
        "{ q: string, n: { k: integer }[] }");
}

TEST(jin_05_tojson_as_transformers)
{
    gives("{{ x|tojson }}",
          "{\"x\": {\"b\":1,\"a\":[\"a/b\",\"<é—🤗>\",\"it's & \\\"q\\\"\",1.0,true,null]}}",
          "{\"b\": 1, \"a\": [\"a/b\", \"<é—🤗>\", \"it's & \\\"q\\\"\", 1.0, true, null]}");
    gives("{{ x|tojson(indent=2) }}", "{\"x\": {\"b\":1,\"a\":[1,{\"c\":[]}]}}",
          "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}");
    gives("{{ x|tojson(ensure_ascii=True) }}{{ x|tojson(separators=(',', ':')) }}", "{\"x\": {\"k\":\"é\"}}",
          "{\"k\": \"\\u00e9\"}{\"k\":\"é\"}");
}

TEST(jin_07_white_space)
{
    gives(
        "{% for x in messages %}\n    {% if x.role == 'user' %}\n  U:{{ x.content }}\n    {% endif %}\n{% endfor %}\nEND\n",
        C, "  U:hi\n  U:bye\nEND");
    gives("    {%+ if true %}\nA{% endif +%}\nB", "{}", "    A\nB");
}

TEST(jin_09_a_refusal_keeps_its_sentence)
{
    fails("\n\n{% if true %}{{ raise_exception('Roles must alternate, ' ~ n) }}{% endif %}", MX_EINVAL,
          "test line 3: Roles must alternate, 5");
}

TEST(errors_name_the_line)
{
    fails("a\n{{ 1 +", MX_EINVAL, "line 2");
    fails("a\n\n{% if x %}", MX_EINVAL, "line 3: Unexpected end of template");
    fails("\n{% frobnicate %}", MX_EINVAL, "line 2: Encountered unknown tag 'frobnicate'");
    fails("\n\n\n{{ x.y }}", MX_EINVAL, "line 4: 'x' is undefined");
    fails("{{ n }}\n{{ d.b.c }}", MX_EINVAL, "line 2: 'dict object' has no attribute 'b'");
    fails("{#\n#}\n{{ n|nothing }}", MX_EINVAL, "line 3: No filter named 'nothing'");
    fails("{% macro m() %}\n{{ 1 // 0 }}\n{% endmacro %}\n{{ m() }}", MX_EINVAL, "line 2: integer division");
    fails("{{ n.append(1) }}", MX_EINVAL, "'int object' has no attribute 'append'");
    fails("\n{{ [].append(1) }}", MX_EINVAL,
          "line 2: access to attribute 'append' of 'list' object is unsafe");
    fails("{% include 'x' %}", MX_UNSUPPORTED, "one file");
    fails("{{ 9223372036854775807 + 1 }}", MX_EINVAL, "64 bits");
    fails("{{ 99999999999999999999 }}", MX_EINVAL, "64 bits");
    fails("\xff", MX_EINVAL, "UTF-8");
}

/* Each ends with MX_ELIMIT, within the time that SEC-03 allows (ten times that, for sanitizers and busy machines). */
TEST(sec_03_hostile_templates_are_stopped)
{
    static const char *const hostile[] = {
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% for d in range(1000) %}x"
        "{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% for d in range(1000) %}"
        "{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ range(100001)|list }}",
        "{{ [0] * 10**9 }}",
        "{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x'|center(10**12) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x\n'|indent(10**9) }}",
        "{{ [1]|tojson(indent=10**9) }}",
        "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{% for i in range(100000) %}{{ ('a' * 100000) in ('a' * 200000 ~ 'b') }}{% endfor %}",
        "{% for i in range(100000) %}{{ ('é' * 100000)[99999] }}{% endfor %}",
        "{{ range(100000)|map('string')|map('list')|map('string')|map('upper')|list|string|wordwrap(10)|length * 0 }}"
        "{% for i in range(100000) %}{{ range(100000)|sum }}{% endfor %}",
        "{{ [[1] * 1000] * 1000 * 1000 }}",
        "{{ range(100000)|batch(1, 0)|list|length }}{{ [1]|batch(10**9, 0)|list }}",
        "{{ [1]|slice(10**9)|list }}",
        "{{ 'a'.zfill(10**10) }}",
    };
    for (size_t i = 0; i < countof(hostile); i++) {
        mx_str out = {0};
        mx_err err = {0};
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        mx_status st = render(hostile[i], "{}", &out, &err);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        CHECK(st == MX_ELIMIT, "case %zu: %d %s", i, st, err.msg);
        CHECK(s < 20, "case %zu took %.1f s", i, s);
        CHECK_INT(out.len, 0);
        mx_str_free(&out);
    }
}

/* n times open, then middle, then n times close. */
static mx_status nested(const char *open, const char *middle, const char *close, size_t n, mx_err *err) {
    mx_str src = {0}, out = {0};
    for (size_t i = 0; i < n; i++) mx_str_puts(&src, open);
    mx_str_puts(&src, middle);
    for (size_t i = 0; i < n; i++) mx_str_puts(&src, close);
    mx_status st = render_json(src.p, src.len, NULL, &out, err);
    mx_str_free(&src);
    mx_str_free(&out);
    return st;
}

static void *deep_sources(void *arg) {
    mx_err err;
    bool *ok = arg;
    static const struct {
        const char *open, *middle, *close;
    } shapes[] = {{"{% if 1 %}", "x", "{% endif %}"},
                  {"{% for x in [1] %}", "x", "{% endfor %}"},
                  {"{% macro m() %}", "x", "{% endmacro %}"},
                  {"{% filter upper %}", "x", "{% endfilter %}"}};
    *ok = true;
    for (size_t i = 0; i < countof(shapes); i++) {
        *ok = *ok && nested(shapes[i].open, shapes[i].middle, shapes[i].close, 20000, &err) == MX_ELIMIT;
        *ok = *ok && nested(shapes[i].open, shapes[i].middle, shapes[i].close, 15, &err) == MX_OK;
    }
    mx_str src = {0}, out = {0};
    static const char *const inside[] = {"(",  "[",  "{1:",  "-",   "not ",     "a if b else ",
                                         "a[", "a(", "x|f(", "1+(", "1 is eq ("};
    for (size_t i = 0; i < countof(inside); i++) {
        mx_str_clear(&src);
        mx_str_puts(&src, "{{ ");
        for (size_t k = 0; k < 50000; k++) mx_str_puts(&src, inside[i]);
        mx_str_puts(&src, "1");
        *ok = *ok && render_json(src.p, src.len, NULL, &out, &err) == MX_ELIMIT;
    }
    static const char *const chains[] = {"+1", ".a", "[0]", "|upper", "|d(1)", " and 1", "()", " is eq 1"};
    for (size_t i = 0; i < countof(chains); i++) { // deep to the left: parsed by a loop, too deep to evaluate
        mx_str_clear(&src);
        mx_str_puts(&src, "{{ 1");
        for (size_t k = 0; k < 50000; k++) mx_str_puts(&src, chains[i]);
        mx_str_puts(&src, " }}");
        *ok = *ok && render_json(src.p, src.len, NULL, &out, &err) == MX_ELIMIT;
    }
    mx_str_free(&src);
    mx_str_free(&out);
    return NULL;
}

TEST(deep_nesting_does_not_overflow_a_small_stack)
{
    pthread_attr_t attr;
    pthread_t th;
    bool ok = false;
    pthread_attr_init(&attr);
    CHECK_INT(pthread_attr_setstacksize(&attr, 1 << 20), 0); // 1 MB: less than any thread of the server has
    CHECK_INT(pthread_create(&th, &attr, deep_sources, &ok), 0);
    pthread_join(th, NULL);
    pthread_attr_destroy(&attr);
    CHECK(ok);
}

TEST(long_but_flat_templates_are_fine)
{
    mx_str src = {0}, out = {0};
    mx_err err;
    mx_str_puts(&src, "{% if 0 %}");
    for (int i = 0; i < 5000; i++) mx_str_printf(&src, "{%% elif n == %d %%}%d", i, i);
    mx_str_puts(&src, "{% endif %}{{ ''");
    for (int i = 0; i < 5000; i++) mx_str_puts(&src, " ~ 'x'");
    mx_str_puts(&src, "}}");
    for (int i = 0; i < 5000; i++) mx_str_puts(&src, "{{ n }}{% set a = 1 %}");
    CHECK_OK(render(src.p, "{\"n\": 4999}", &out, &err), &err);
    CHECK_INT(out.len, 4 + 5000 + 5000 * 4);
    mx_str_free(&src);
    mx_str_free(&out);
}

/* Collecting the output in a string takes linear time and memory, not quadratic. */
TEST(appending_is_linear)
{
    mx_str out = {0};
    mx_err err;
    CHECK_OK(
        render(
            "{% set ns = namespace(s='') %}{% for i in range(20000) %}{% set ns.s = ns.s + 'some fifty bytes of text, more or less, are here: ' %}"
            "{% endfor %}{{ ns.s|length }}",
            "{}", &out, &err),
        &err);
    CHECK_STR(out.p, "1000000");
    mx_str_free(&out);
}

TEST(json_input_is_read_as_python_would)
{
    gives("{{ a }} {{ a.b }} {{ a['b'] }}", "{\"a\": {\"b\": 1, \"b\": 2}}",
          "{'b': 2} 2 2"); // the last one counts
    gives("{{ x }}{{ y }}", "{\"x\": 123456789012345678901234567890, \"y\": -0.0}",
          "1.2345678901234568e+29-0.0");
    gives("{{ x|length }}{{ x[1] }}", "{\"x\": \"a\\u0000b\"}", (const char[]){'3', 0});
    gives("{{ range }}", "{\"range\": 5}", "5"); // a variable hides a global
}

TEST(inspect_tells_what_a_template_uses)
{
    mx_err err;
    mx_template *t = NULL;
    const char *src =
        "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{% if m.role == 'tool' or m.tool_calls %}"
        "{% elif m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% endif %}{% endfor %}{% if enable_thinking %}{% generation %}{% endgeneration %}{% endif %}";
    CHECK_OK(mx_template_compile(&t, src, strlen(src), "t", &err), &err);
    mx_template_features f = mx_template_inspect(t);
    CHECK(f.tools && f.tool_calls && f.tool_role && f.thinking && f.generation && f.parts && !f.system);
    mx_template_free(t);
    src = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}";
    CHECK_OK(mx_template_compile(&t, src, strlen(src), "t", &err), &err);
    f = mx_template_inspect(t);
    CHECK(!f.tools && !f.tool_calls && !f.tool_role && !f.thinking && !f.generation && !f.parts && !f.system);
    mx_template_free(t);
}

typedef struct {
    const mx_template *t;
    const mx_json *vars;
    bool ok;
} worker;

static void *render_often(void *arg) {
    worker *w = arg;
    w->ok = true;
    for (int i = 0; i < 200; i++) {
        mx_str out = {0};
        w->ok = w->ok && mx_template_render(w->t, w->vars, NOW, &out, NULL) == MX_OK && out.p &&
                !strcmp(out.p, "S-hi-");
        mx_str_free(&out);
    }
    return NULL;
}

TEST(threads_share_a_template)
{
    mx_arena a = {0};
    mx_err err;
    mx_json *vars = NULL;
    mx_template *t = NULL;
    const char *src =
        "{% macro m(x) %}{{ x|replace('é', '') }}-{% endmacro %}{% for x in messages[:2] %}{{ m(x.content ~ 'é') }}{% endfor %}";
    CHECK_OK(mx_json_parse(&vars, &a, C, strlen(C), &err), &err);
    CHECK_OK(mx_template_compile(&t, src, strlen(src), "t", &err), &err);
    pthread_t th[4];
    worker w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){.t = t, .vars = vars};
        CHECK_INT(pthread_create(&th[i], NULL, render_often, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    for (int i = 0; i < 4; i++) CHECK(w[i].ok);
    mx_template_free(t);
    mx_arena_free(&a);
}
