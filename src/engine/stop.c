/* stop.c - see stop.h. One Knuth-Morris-Pratt matcher a word: its state is how many bytes of the word the text ends in, so
 * the largest state is what has to be withheld, and withheld text need not be stored: it is a prefix of that word. */
#include "engine/stop.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *text;
    size_t len, matched;
    size_t *fail; // [len]: longest proper prefix of text[0..i] that is also its suffix
} word;

struct mx_stop {
    int n;
    bool done;
    word *words;    // [n], those that are empty with len 0
    size_t *fails;  // all tables
    char *texts;    // all words
    size_t pending; // bytes withheld: a prefix of the word `holder`
    int holder;
};

mx_status mx_stop_new(mx_stop **out, const char *const *words, int n, mx_err *err) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(words[i]);
        if (mx_utf8_valid(words[i], len) != len)
            return mx_fail(err, MX_EINVAL, "stop string %d is not valid UTF-8", i + 1);
        total += len;
    }
    mx_stop *s = calloc(1, sizeof *s);
    if (s) {
        s->words = calloc((size_t)n + 1, sizeof *s->words);
        s->fails = calloc(total + 1, sizeof *s->fails);
        s->texts = malloc(total + 1);
    }
    if (!s || !s->words || !s->fails || !s->texts) {
        mx_stop_free(s);
        return mx_fail(err, MX_ENOMEM, "no memory for %d stop strings", n);
    }
    s->n = n;
    for (size_t i = 0, at = 0; i < (size_t)n; at += s->words[i++].len) {
        word *w = &s->words[i];
        *w = (word){.text = s->texts + at, .len = strlen(words[i]), .fail = s->fails + at};
        memcpy(s->texts + at, words[i], w->len);
        for (size_t j = 1, k = 0; j < w->len; j++) {
            while (k && w->text[j] != w->text[k]) k = w->fail[k - 1];
            if (w->text[j] == w->text[k]) k++;
            w->fail[j] = k;
        }
    }
    *out = s;
    return MX_OK;
}

void mx_stop_free(mx_stop *s) {
    if (!s) return;
    free(s->words);
    free(s->fails);
    free(s->texts);
    free(s);
}

void mx_stop_reset(mx_stop *s) {
    for (int i = 0; i < s->n; i++) s->words[i].matched = 0;
    s->pending = 0;
    s->done = false;
}

/* One more byte of text, which is not in out yet. Returns the word that is complete, the longest of them, or -1. */
static int feed(mx_stop *s, char c) {
    int hit = -1;
    s->pending = 0;
    for (int i = 0; i < s->n; i++) {
        word *w = &s->words[i];
        if (w->len == 0) continue;
        size_t k = w->matched;
        while (k && c != w->text[k]) k = w->fail[k - 1];
        if (c == w->text[k]) k++;
        w->matched = k;
        if (k > s->pending) s->pending = k, s->holder = i;
        if (k == w->len && (hit < 0 || k > s->words[hit].len)) hit = i;
    }
    return hit;
}

void mx_stop_push(mx_stop *s, const char *text, size_t len, mx_str *out, int *hit) {
    *hit = -1;
    for (size_t i = 0; i < len && !s->done; i++) {
        /* The withheld bytes and this one: a longer prefix of one word, or its end is a shorter one and the rest is certain. */
        size_t before = s->pending;
        const char *held = s->words[s->holder].text;
        *hit = feed(s, text[i]);
        size_t keep = *hit >= 0 ? s->words[*hit].len : s->pending;
        size_t sure = before + 1 - keep;
        mx_str_add(out, held, sure < before ? sure : before);
        if (sure > before) mx_str_add(out, text + i, 1);
        if (*hit >= 0) s->done = true;
    }
}

void mx_stop_flush(mx_stop *s, mx_str *out) {
    if (!s->done) mx_str_add(out, s->words[s->holder].text, s->pending);
    mx_stop_reset(s);
    s->done = true;
}
