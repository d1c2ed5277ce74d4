/* fuzz_template: any bytes as a template, rendered with a small conversation; after a 0xFF byte, as the conversation. */
#include "base/json.h"
#include "text/template.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char dflt[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"h\\u00e9 \\ud83e\\udd17\"},{\"role\":\"assistant\","
    "\"content\":\"<think>x</think>y\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null,true]}}}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"add_generation_prompt\":true,\"n\":5,\"s\":\"a b\",\"f\":-1.5}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *cut = size ? memchr(data, 0xFF, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    mx_arena a = {0};
    mx_json *vars = NULL;
    mx_template *t = NULL;
    mx_str out = {0};
    mx_err err = {0};
    const char *json = cut ? (const char *)cut + 1 : dflt;
    if (mx_json_parse(&vars, &a, json, cut ? size - n - 1 : sizeof dflt - 1, NULL) == MX_OK) {
        mx_status st = mx_template_compile(&t, (const char *)data, n, "fuzz", &err);
        if (st == MX_OK) st = mx_template_render(t, vars, 0, &out, &err);
        if (st == MX_EINTERNAL || (st != MX_OK && (!*err.msg || err.code != st || out.len))) abort();
    }
    mx_template_free(t);
    mx_str_free(&out);
    mx_arena_free(&a);
    return 0;
}
