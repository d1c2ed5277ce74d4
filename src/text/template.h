/* template.h - chat templates: Jinja as transformers sets it up.
 *
 * A compiled template is read-only and may be rendered by several threads at once. Rendering is bounded (depth, steps,
 * bytes), so a hostile template ends with MX_ELIMIT within about 2 seconds. */
#ifndef MX_TEXT_TEMPLATE_H
#define MX_TEXT_TEMPLATE_H
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

typedef struct mx_template mx_template;

/* Compile src[0..len), which is copied. MX_EINVAL "name line 12: ..." for a syntax error. */
mx_status mx_template_compile(mx_template **out, const char *src, size_t len, const char *name, mx_err *err);
void mx_template_free(mx_template *t);

/* Append the rendering to out. vars is a JSON object: the variables (messages, tools, add_generation_prompt, bos_token,
 * enable_thinking, ...). now: seconds since 1970 for strftime_now, or -1 for the clock. MX_EINVAL with the line for an
 * error in the template and for raise_exception, whose sentence is kept; MX_ELIMIT beyond a bound. */
mx_status mx_template_render(const mx_template *t, const mx_json *vars, long long now, mx_str *out,
                             mx_err *err);

/* What a template uses, found by reading it: for `inspect` and the server's /props. */
typedef struct {
    bool tools, tool_calls, tool_role, system, thinking /* enable_thinking or reasoning_content */,
        generation, parts;
} mx_template_features;
mx_template_features mx_template_inspect(const mx_template *t);

#endif
