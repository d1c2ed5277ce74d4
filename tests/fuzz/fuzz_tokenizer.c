/* fuzz_tokenizer: any bytes as a tokenizer.json. One that loads must encode and decode whatever it is given, and token by
 * token must give the text of all at once. */
#include "text/tokenizer.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode_both(const mx_tokenizer *t, const mx_ids *ids, bool skip) {
    mx_str whole = {0}, parts = {0};
    mx_detok *d = NULL;
    mx_err err;
    mx_status st = mx_tokenizer_decode(t, ids->id, ids->n, skip, &whole, &err);
    if (mx_detok_new(&d, t, skip, &err) != MX_OK) abort();
    mx_status each = MX_OK;
    for (size_t i = 0; i < ids->n && each == MX_OK; i++) each = mx_detok_push(d, ids->id[i], &parts, &err);
    if (each == MX_OK) each = mx_detok_flush(d, &parts, &err);
    if (st != each) abort();
    if (st == MX_OK && (whole.len != parts.len || (whole.len && memcmp(whole.p, parts.p, whole.len))))
        abort();
    mx_detok_free(d);
    mx_str_free(&whole);
    mx_str_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const texts[] = {"", "a b  ab\n12 é한🙂 <s>x</s> ▁ word's",
                                        "\xff\xc3 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};
    mx_tokenizer *t = NULL;
    mx_err err;
    mx_status st = mx_tokenizer_parse(&t, (const char *)data, size, "fuzz", &err);
    if (st != MX_OK) {
        if (t || !memchr(err.msg, 0, sizeof err.msg) || !err.msg[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (unsigned flags = 0; flags < 4; flags++) {
            mx_ids ids = {0};
            if (mx_tokenizer_encode(t, texts[i], strlen(texts[i]), flags, &ids, &err) == MX_OK)
                decode_both(t, &ids, flags & 1);
            mx_ids_free(&ids);
        }
    }
    mx_ids all = {0}; // every id once, and some beyond
    for (int32_t id = 0; id < mx_tokenizer_size(t) + 2 && id < 2000; id++) {
        size_t n;
        const char *bytes = mx_tokenizer_bytes(t, id, &n), *piece = mx_tokenizer_piece(t, id);
        if ((n && !bytes) || (piece && strlen(piece) > size)) abort();
        if (mx_ids_add(&all, id, &err) != MX_OK) abort();
    }
    decode_both(t, &all, false);
    mx_ids_free(&all);
    mx_tokenizer_free(t);
    return 0;
}
