/* tokenize_tool.c - tokenizes and decodes in bulk for tests/oracle/tokenizer.py.
 *
 * tokenize_tool DIR|FILE.json [FLAGS]: reads records from stdin, a 32-bit length and as many bytes each, and writes for
 * each a 32-bit count and as many 32-bit ids; then the decoded text as length and bytes, once with all and once without
 * special tokens. The text is also decoded token by token and compared; a difference ends the program. With --time it
 * prints the processor time of loading and encoding instead. All numbers are of the machine's byte order. */
#include "text/tokenizer.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(const char *what) {
    fprintf(stderr, "tokenize_tool: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); // other programs may be running
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mx_status load(mx_tokenizer **t, const char *path, mx_err *err) {
    if (mx_is_dir(path)) return mx_tokenizer_open(t, path, err);
    mx_map map;
    MX_TRY(mx_map_open(&map, path, err));
    mx_status st = mx_tokenizer_parse(t, map.p ? map.p : "", map.len, path, err);
    mx_map_close(&map);
    return st;
}

static void put_text(const mx_str *s) {
    uint32_t n = (uint32_t)s->len;
    fwrite(&n, 4, 1, stdout);
    if (n) fwrite(s->p, 1, n, stdout);
}

/* Decode all at once and token by token: both must give the same, and no part may end inside a character. */
static void decode(const mx_tokenizer *t, const mx_ids *ids, bool skip, mx_str *whole, mx_str *parts) {
    mx_err err;
    mx_detok *d;
    mx_str_clear(whole);
    mx_str_clear(parts);
    if (mx_tokenizer_decode(t, ids->id, ids->n, skip, whole, &err) != MX_OK) die(err.msg);
    if (mx_detok_new(&d, t, skip, &err) != MX_OK) die(err.msg);
    for (size_t i = 0; i < ids->n; i++) {
        if (mx_detok_push(d, ids->id[i], parts, &err) != MX_OK) die(err.msg);
        size_t n = parts->len, back = 0;
        while (back < n && back < 3 && ((unsigned char)parts->p[n - 1 - back] & 0xC0) == 0x80) back++;
        unsigned char lead = n ? (unsigned char)parts->p[n - 1 - back] : 0;
        size_t want = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (back != want) die("a part ends inside a character");
    }
    if (mx_detok_flush(d, parts, &err) != MX_OK) die(err.msg);
    if (whole->len != parts->len || (whole->len && memcmp(whole->p, parts->p, whole->len)))
        die("decoding token by token gives another text");
    mx_detok_free(d);
}

int main(int argc, char **argv) {
    mx_err err;
    mx_tokenizer *t;
    if (argc < 2) die("usage: tokenize_tool DIR|FILE.json [FLAGS | --time]");
    double start = now();
    if (load(&t, argv[1], &err) != MX_OK) die(err.msg);
    double loaded = now();
    bool timing = argc > 2 && !strcmp(argv[2], "--time");
    unsigned flags = argc > 2 && !timing ? (unsigned)atoi(argv[2]) : MX_TOK_PARSE_SPECIAL;
    char *text = NULL;
    mx_ids ids = {0};
    mx_str whole = {0}, parts = {0};
    if (timing) printf("load %.1f ms\n", 1e3 * (loaded - start));
    for (uint32_t n; fread(&n, 4, 1, stdin) == 1;) {
        char *p = realloc(text, n + 1u);
        if (!p) die("no memory");
        text = p;
        if (fread(text, 1, n, stdin) != n) die("the input ends early");
        ids.n = 0;
        start = now();
        if (mx_tokenizer_encode(t, text, n, flags, &ids, &err) != MX_OK) die(err.msg);
        if (timing) {
            printf("encode %u bytes, %zu ids, %.1f ms\n", n, ids.n, 1e3 * (now() - start));
            continue;
        }
        uint32_t count = (uint32_t)ids.n;
        fwrite(&count, 4, 1, stdout);
        if (count) fwrite(ids.id, 4, count, stdout);
        for (int skip = 0; skip < 2; skip++) {
            decode(t, &ids, skip, &whole, &parts);
            put_text(&whole);
        }
    }
    free(text);
    mx_ids_free(&ids);
    mx_str_free(&whole);
    mx_str_free(&parts);
    mx_tokenizer_free(t);
    return 0;
}
