/* fuzz_prompt: any bytes as a user's message to the demo model: template, tokenizer, detokenizer. */
#include "base/json.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mx_tokenizer *tok;
static mx_chat *chat;

static void open_once(void) {
    const char *root = getenv("MX_SOURCE_ROOT");
    char dir[4096];
    if (!root || (size_t)snprintf(dir, sizeof dir, "%s/models/demo", root) >= sizeof dir) abort();
    if (mx_tokenizer_open(&tok, dir, NULL) != MX_OK || mx_chat_open(&chat, dir, NULL) != MX_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tok) open_once();
    mx_arena a = {0};
    mx_str json = {0}, prompt = {0}, whole = {0}, pieces = {0};
    mx_ids ids = {0};
    mx_json *messages;
    mx_err err;
    mx_str_puts(&json, "[{\"role\": \"user\", \"content\": ");
    mx_json_put_string(&json, (const char *)data, size);
    mx_str_puts(&json, "}]");
    if (mx_json_parse(&messages, &a, json.p, json.len, &err) != MX_OK) abort(); // what we write, we read
    mx_chat_request req = {.messages = messages, .add_generation_prompt = true, .now = 0};
    if (mx_chat_render(chat, &req, &prompt, &err) != MX_OK) abort();
    if (mx_tokenizer_encode(tok, (const char *)data, size, 0, &ids, &err) != MX_OK) abort();
    if (mx_tokenizer_encode(tok, prompt.p, prompt.len, MX_TOK_PARSE_SPECIAL | MX_TOK_ADD_SPECIAL, &ids,
                            &err) != MX_OK)
        abort();
    mx_detok *d;
    if (mx_tokenizer_decode(tok, ids.id, ids.n, false, &whole, &err) != MX_OK ||
        mx_detok_new(&d, tok, false, &err) != MX_OK)
        abort();
    for (size_t i = 0; i < ids.n; i++) {
        if (mx_detok_push(d, ids.id[i], &pieces, &err) != MX_OK) abort();
    }
    if (mx_detok_flush(d, &pieces, &err) != MX_OK) abort();
    if (whole.len != pieces.len || (whole.len && memcmp(whole.p, pieces.p, whole.len))) abort();
    mx_detok_free(d);
    mx_ids_free(&ids);
    mx_str_free(&json);
    mx_str_free(&prompt);
    mx_str_free(&whole);
    mx_str_free(&pieces);
    mx_arena_free(&a);
    return 0;
}
