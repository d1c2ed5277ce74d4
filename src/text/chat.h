/* chat.h - from a conversation to a prompt, with a model folder's own template.
 *
 * Finds the template as transformers does: chat_template.jinja wins over tokenizer_config.json's chat_template, which
 * may be a list of {name, template} ("tool_use" when tools are given, else "default"); also chat_template.json. A model
 * without one is fine until mx_chat_render is called, which then fails with a sentence. */
#ifndef MX_TEXT_CHAT_H
#define MX_TEXT_CHAT_H
#include "text/template.h"
#include <stdbool.h>

typedef struct mx_chat mx_chat;

mx_status mx_chat_open(mx_chat **out, const char *dir, mx_err *err);
void mx_chat_free(mx_chat *c);
bool mx_chat_has_template(const mx_chat *c);
const mx_template *mx_chat_template(const mx_chat *c, bool with_tools); // borrowed; NULL if there is none
/* Replace the template, e.g. --chat-template-file. */
mx_status mx_chat_set_template(mx_chat *c, const char *src, size_t len, const char *name, mx_err *err);

typedef struct {
    const mx_json *messages; // array of {role, content, tool_calls, ...}: checked, then given to the template
    const mx_json *tools;    // array or NULL
    const mx_json *kwargs;   // object of further variables (chat_template_kwargs) or NULL
    bool add_generation_prompt; // else the last assistant message is continued (its end marker is cut off)
    bool continue_final;
    long long now; // -1: the clock
} mx_chat_request;

/* Append the prompt to out. Content given as parts is joined to text for templates that expect a string; a tool call's
 * `arguments` string is parsed to an object (order kept), and one that is no JSON object is MX_EINVAL naming the message (JIN-08).
 * bos_token, eos_token, ... of tokenizer_config.json are set as variables. */
mx_status mx_chat_render(const mx_chat *c, const mx_chat_request *req, mx_str *out, mx_err *err);

#endif
