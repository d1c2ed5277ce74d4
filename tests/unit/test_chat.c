/* chat: where the template comes from, what is done to a conversation, and the fixtures' own templates. */
#include "test.h"
#include "base/file.h"
#include "text/chat.h"
#include <dirent.h>

static char dir[512];

static void fresh_dir(void) {
    static int n;
    snprintf(dir, sizeof dir, "%s/chat-%d", mx_test_tmpdir(), n++);
    mx_err err;
    CHECK_OK(mx_mkdirs(dir, &err), &err);
}

static void put(const char *name, const char *text) {
    char path[700];
    mx_err err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(mx_file_write(path, text, strlen(text), &err), &err);
}

typedef struct {
    const char *messages, *tools, *kwargs;
    bool gen, cont;
} request;

static mx_status render_with(const mx_chat *c, const request *q, mx_str *out, mx_err *err) {
    mx_arena a = {0};
    mx_json *m = NULL, *t = NULL, *k = NULL;
    CHECK_OK(mx_json_parse(&m, &a, q->messages, strlen(q->messages), err), err);
    if (q->tools) CHECK_OK(mx_json_parse(&t, &a, q->tools, strlen(q->tools), err), err);
    if (q->kwargs) CHECK_OK(mx_json_parse(&k, &a, q->kwargs, strlen(q->kwargs), err), err);
    mx_chat_request r = {.messages = m,
                         .tools = t,
                         .kwargs = k,
                         .add_generation_prompt = q->gen,
                         .continue_final = q->cont,
                         .now = 0};
    mx_status st = mx_chat_render(c, &r, out, err);
    mx_arena_free(&a);
    return st;
}

static mx_status render(const request *q, mx_str *out, mx_err *err) {
    mx_chat *c = NULL;
    MX_TRY(mx_chat_open(&c, dir, err));
    mx_status st = render_with(c, q, out, err);
    mx_chat_free(c);
    return st;
}

static void gives(const request *q, const char *want) {
    mx_str out = {0};
    mx_err err;
    CHECK_OK(render(q, &out, &err), &err);
    CHECK_STR(out.p ? out.p : "", want);
    mx_str_free(&out);
}

static void fails(const request *q, mx_status st, const char *part) {
    mx_str out = {0};
    mx_err err = {0};
    mx_str_puts(&out, "before");
    CHECK_FAILS(render(q, &out, &err), st, &err, part);
    CHECK_STR(out.p, "before"); // nothing was added
    mx_str_free(&out);
}

#define HI "[{\"role\": \"user\", \"content\": \"hi\"}]"
#define TOOL "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

TEST(jin_10_where_templates_are_found)
{
    const request plain = {.messages = HI}, tools = {.messages = HI, .tools = TOOL};
    fresh_dir();
    fails(&plain, MX_EINVAL, "no chat template");
    mx_chat *c = NULL;
    mx_err err;
    CHECK_OK(mx_chat_open(&c, dir, &err), &err);
    CHECK(!mx_chat_has_template(c) && !mx_chat_template(c, false));
    CHECK_OK(mx_chat_set_template(c, "own", 3, "own", &err), &err);
    CHECK(mx_chat_has_template(c));
    CHECK_FAILS(mx_chat_set_template(c, "{{", 2, "bad.jinja", &err), MX_EINVAL, &err, "bad.jinja line 1");
    CHECK(mx_chat_has_template(c)); // the old one stays
    mx_chat_free(c);

    put("chat_template.json", "{\"chat_template\": \"json {{ messages[0].content }}\"}");
    gives(&plain, "json hi");
    put("tokenizer_config.json", "{\"chat_template\": \"config {{ messages[0].content }}\"}");
    gives(&plain, "config hi");
    put("chat_template.jinja", "file {{ messages[0].content }}");
    gives(&plain, "file hi");

    fresh_dir();
    put("chat_template.jinja", "only {{ messages[0].content }}");
    gives(&plain, "only hi");

    fresh_dir();
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"},"
        "{\"name\": \"rag\", \"template\": \"{{ broken\"}, {\"name\": \"default\", \"template\": \"D\"}]}");
    gives(&plain, "D");
    gives(&tools, "T1");
    const request no_tools = {.messages = HI, .tools = "[]"};
    gives(&no_tools, "D");
}

TEST(broken_folders_are_refused_with_the_file)
{
    mx_chat *c = NULL;
    mx_err err;
    fresh_dir();
    put("tokenizer_config.json", "{\"chat_template\": ");
    CHECK_FAILS(mx_chat_open(&c, dir, &err), MX_EINVAL, &err, "tokenizer_config.json");
    put("tokenizer_config.json", "[]");
    CHECK_FAILS(mx_chat_open(&c, dir, &err), MX_EINVAL, &err, "an object is expected");
    put("tokenizer_config.json", "{\"chat_template\": [1]}");
    CHECK_FAILS(mx_chat_open(&c, dir, &err), MX_EINVAL, &err, "list of {name, template}");
    put("tokenizer_config.json", "{\"chat_template\": \"\\n{% if %}\"}");
    CHECK_FAILS(mx_chat_open(&c, dir, &err), MX_EINVAL, &err, "tokenizer_config.json chat_template line 2");
    CHECK(c == NULL);
}

TEST(special_tokens_become_variables)
{
    fresh_dir();
    put("tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}, \"unk_token\": null,"
        "\"add_bos_token\": true, \"chat_template\": \"{{ bos_token }}{{ eos_token }}{{ pad_token }}"
        "{{ unk_token is defined }}{{ add_bos_token is defined }}\"}");
    put("special_tokens_map.json", "{\"bos_token\": \"<other>\", \"pad_token\": {\"content\": \"<pad>\"}}");
    const request q = {.messages = HI};
    gives(&q, "<s></s><pad>FalseFalse");
    const request kw = {
        .messages = HI,
        .kwargs = "{\"bos_token\": \"<kw>\", \"messages\": 1}"}; // kwargs win, but not over messages
    gives(&kw, "<kw></s><pad>FalseFalse");
}

#define CALL(args)                                                                                                             \
    "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\"," \
    "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " args "}}]}]"

TEST(jin_08_arguments_are_objects)
{
    fresh_dir();
    put("chat_template.jinja",
        "{% for tc in messages[1].tool_calls %}{% for k,v in tc.function.arguments|items %}{{k}}={{v}};{% endfor %}{% endfor %}"
        "{{ messages[1].content is defined }}");
    const request text = {.messages = CALL("\"{\\\"z\\\":1,\\\"city\\\":\\\"Oslo\\\"}\"")};
    gives(&text, "z=1;city=Oslo;False");
    const request object = {.messages = CALL("{\"z\":1,\"city\":\"Oslo\"}")};
    gives(&object, "z=1;city=Oslo;False");
    const request empty = {.messages = CALL("\"\"")};
    gives(&empty, "False");
    const request cut = {.messages = CALL("\"{\\\"city\\\": \\\"Os\"")};
    fails(&cut, MX_EINVAL, "messages[1].tool_calls[0].function.arguments is not valid JSON");
    const request list = {.messages = CALL("\"[1]\"")};
    fails(&list, MX_EINVAL, "messages[1].tool_calls[0].function.arguments must be a JSON object");
    const request number = {.messages = CALL("5")};
    fails(&number, MX_EINVAL, "messages[1]");
}

TEST(jin_08_deep_arguments_are_refused)
{
    fresh_dir();
    put("chat_template.jinja", "x");
    mx_str m = {0};
    mx_str_puts(
        &m, "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"");
    for (int i = 0; i < 20000; i++) mx_str_puts(&m, "[");
    mx_str_puts(&m, "\"}}]}]");
    const request q = {.messages = m.p};
    fails(&q, MX_EINVAL, "messages[0]");
    mx_str_free(&m);
}

TEST(messages_are_checked)
{
    static const struct {
        const char *messages, *part;
    } bad[] = {{"{}", "messages must be a list"},
               {"[1]", "messages[0] must be an object"},
               {"[{\"content\": \"x\"}]", "messages[0].role"},
               {"[{\"role\": 1}]", "messages[0].role"},
               {"[{\"role\": \"user\", \"content\": 5}]", "messages[0].content"},
               {"[{\"role\": \"user\", \"content\": {}}]", "messages[0].content"},
               {"[{\"role\": \"user\", \"tool_calls\": {}}]", "messages[0].tool_calls"},
               {"[{\"role\": \"user\", \"tool_calls\": [1]}]", "messages[0].tool_calls[0]"},
               {"[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]", "a part is of type image"}};
    fresh_dir();
    put("chat_template.jinja", "{{ messages[0].content + '' }}");
    for (size_t i = 0; i < countof(bad); i++) {
        const request q = {.messages = bad[i].messages};
        fails(&q, MX_EINVAL, bad[i].part);
    }
    const request tools = {.messages = HI, .tools = "{}"}, kwargs = {.messages = HI, .kwargs = "[]"};
    fails(&tools, MX_EINVAL, "tools must be a list");
    fails(&kwargs, MX_EINVAL, "chat_template_kwargs");
}

TEST(jin_09_refusals_of_the_template)
{
    fresh_dir();
    put("chat_template.jinja",
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}");
    const request q = {
        .messages = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}]"};
    fails(&q, MX_EINVAL, "Conversation roles must alternate");
}

#define PARTS                                                                                                \
    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"What \"}, {\"type\": \"text\", \"text\": \"now?\"}]}]"

TEST(parts_are_joined_only_where_text_is_expected)
{
    const request q = {.messages = PARTS};
    fresh_dir();
    put("chat_template.jinja", "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}");
    gives(&q, "user:What now?");
    fresh_dir();
    put("chat_template.jinja",
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}");
    gives(&q, "<What ><now?>");
}

TEST(reasoning_has_all_its_names)
{
    fresh_dir();
    put("chat_template.jinja",
        "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }};{% endfor %}");
    const request q = {
        .messages =
            "[{\"role\": \"assistant\", \"reasoning\": \"a\"}, {\"role\": \"assistant\", \"thinking\": \"b\"},"
            "{\"role\": \"assistant\", \"reasoning_content\": \"c\", \"thinking\": null}, {\"role\": \"user\"}]"};
    gives(&q, "a/a;b/b;c/c;/;");
}

#define ENDS(text)                                                                                           \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": " text "}]"

TEST(the_final_message_is_continued)
{
    fresh_dir();
    put("chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>\n{% endfor %}{% if add_generation_prompt %}<gen>{% endif %}");
    const request plain = {.messages = ENDS("\"The answer is \""), .cont = true},
                  both = {.messages = ENDS("\"42\""), .gen = true, .cont = true};
    gives(&plain, "<user>q</end>\n<assistant>The answer is ");
    gives(&both, "<user>q</end>\n<assistant>42"); // continuing wins over a new turn
    const request none = {.messages = "[{\"role\": \"assistant\"}]", .cont = true},
                  nobody = {.messages = "[]", .cont = true};
    fails(&none, MX_EINVAL, "no content to continue");
    fails(&nobody, MX_EINVAL, "no content to continue");
    const request parts = {
        .messages = ENDS("[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]"),
        .cont = true};
    gives(&parts, "<user>q</end>\n<assistant>ab");
    fresh_dir();
    put("chat_template.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</end>{% endfor %}");
    gives(&plain, "<user>q</end><assistant>The answer is"); // the template trims
    fresh_dir();
    put("chat_template.jinja", "{% for m in messages %}{{ m.content|upper }}{% endfor %}");
    fails(&plain, MX_EINVAL, "cannot be continued");
}

static void fixture(const char *folder) {
    mx_chat *c = NULL;
    mx_err err;
    mx_str out = {0};
    CHECK_OK(mx_chat_open(&c, folder, &err), &err);
    CHECK(mx_chat_has_template(c), "%s", folder);
    const request q = {
        .messages = "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"hi\"}]",
        .gen = true};
    CHECK_OK(render_with(c, &q, &out, &err), &err);
    CHECK_STR(out.p,
              "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    mx_str_clear(&out);
    const request call = {.messages = CALL("\"{\\\"a\\\": \\\"é\\\"}\""), .tools = TOOL};
    CHECK_OK(render_with(c, &call, &out, &err), &err);
    CHECK(strstr(out.p, "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"), "%s",
          folder);
    CHECK(strstr(out.p,
                 "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call><|im_end|>"),
          "%s", folder);
    mx_str_free(&out);
    mx_chat_free(c);
}

TEST(every_fixture_renders)
{
    fixture(mx_test_path("models/demo"));
    DIR *d = opendir(mx_test_path("tests/checkpoints"));
    CHECK(d != NULL);
    int n = 0;
    char path[512];
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/checkpoints/%s/tokenizer_config.json", e->d_name);
        if (!mx_is_file(mx_test_path(path))) continue;
        *strrchr(path, '/') = 0;
        fixture(mx_test_path(path));
        n++;
    }
    closedir(d);
    CHECK(n >= 8);
}
