#include "text/pretok.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

void mx_pieces_add(mx_pieces *l, mx_piece piece) {
    if (l->oom || (piece.id < 0 && !piece.len)) return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        mx_piece *p = realloc(l->p, cap * sizeof *p);
        if (!p) {
            l->oom = true;
            return;
        }
        l->p = p;
        l->cap = cap;
    }
    l->p[l->n++] = piece;
}

void mx_pre_state_free(mx_pre_state *s) {
    mx_str_free(&s->text);
    mx_str_free(&s->other);
    free(s->pieces.p);
    free(s->next.p);
    free(s->segment);
    mx_matcher_free(&s->matcher);
}

/* ---- cutting -------------------------------------------------------------------------------------------- */

static void segment(mx_pre_state *s, size_t start, size_t end, bool match) {
    if (s->oom) return;
    if (s->n_segment == s->cap_segment) {
        size_t cap = s->cap_segment ? 2 * s->cap_segment : 64;
        mx_segment *p = realloc(s->segment, cap * sizeof *p);
        if (!p) {
            s->oom = true;
            return;
        }
        s->segment = p;
        s->cap_segment = cap;
    }
    s->segment[s->n_segment++] = (mx_segment){.start = (uint32_t)start, .end = (uint32_t)end, .match = match};
}

static mx_status find_regex(const mx_pre_step *step, mx_pre_state *s, const char *p, size_t len,
                            mx_err *err) {
    size_t pos = 0, last = SIZE_MAX, start, end, done = 0;
    for (bool found;;) {
        MX_TRY(mx_regex_next(step->re, &s->matcher, p, len, &pos, &last, &start, &end, &found, err));
        if (!found) break;
        if (start < done) start = done; // \K can look back
        if (start > done) segment(s, done, start, step->invert);
        segment(s, start, end, !step->invert);
        done = end;
    }
    if (done < len) segment(s, done, len, step->invert);
    return MX_OK;
}

static void find_literal(const mx_pre_step *step, mx_pre_state *s, const char *p, size_t len) {
    size_t done = 0;
    const char *hit;
    while (done < len && (hit = memmem(p + done, len - done, step->lit, step->lit_len))) {
        size_t at = (size_t)(hit - p);
        if (at > done) segment(s, done, at, step->invert);
        segment(s, at, at + step->lit_len, !step->invert);
        done = at + step->lit_len;
    }
    if (done < len) segment(s, done, len, step->invert);
}

static void find_class(const mx_pre_step *step, mx_pre_state *s, const char *p, size_t len) {
    size_t done = 0, used;
    for (size_t i = 0; i < len; i += used) {
        if (!step->in_class((uint32_t)mx_utf8_decode(p + i, len - i, &used))) continue;
        if (i > done) segment(s, done, i, false);
        segment(s, i, i + used, true);
        done = i + used;
    }
    if (done < len) segment(s, done, len, false);
}

static void find_words(mx_pre_state *s, const char *p, size_t len) {
    enum { SPACE, WORD, SIGN } kind = SPACE, before = SPACE;
    size_t start = 0, used;
    for (size_t i = 0; i < len; i += used) {
        uint32_t c = (uint32_t)mx_utf8_decode(p + i, len - i, &used);
        kind = mx_uc_word(c) ? WORD : mx_uc_space(c) ? SPACE : SIGN;
        if (kind == before) continue;
        if (i > start) segment(s, start, i, before == SPACE);
        start = i;
        before = kind;
    }
    if (len > start) segment(s, start, len, before == SPACE);
}

static void find_fixed(const mx_pre_step *step, mx_pre_state *s, const char *p, size_t len) {
    size_t start = 0, n = 0, used;
    for (size_t i = 0; i < len; i += used) {
        if (n == step->count) {
            segment(s, start, i, true);
            start = i;
            n = 0;
        }
        mx_utf8_decode(p + i, len - i, &used);
        n++;
    }
    if (len > start) segment(s, start, len, true);
}

/* The segments of a piece as new pieces. Neighbours are joined as the behavior says; "with next" joins from the right,
 * which from the left means: a match stays open for the segment after it. */
static void join(const mx_pre_step *step, mx_pre_state *s, mx_piece of) {
    const mx_segment *g = s->segment;
    size_t n = s->n_segment, start = 0;
    for (size_t i = 0; i < n; i++) {
        bool ends; // does a piece end after segment i?
        switch (step->behavior) {
        case MX_SPLIT_CONTIGUOUS: ends = i + 1 == n || g[i + 1].match != g[i].match; break;
        case MX_SPLIT_WITH_PREVIOUS: ends = i + 1 == n || !g[i + 1].match || g[i].match; break;
        case MX_SPLIT_WITH_NEXT: ends = i + 1 == n || !g[i].match || g[i + 1].match; break;
        default: ends = true; break;
        }
        if (!ends) continue;
        bool drop = step->behavior == MX_SPLIT_REMOVED && g[i].match;
        if (!drop) {
            mx_pieces_add(&s->next, (mx_piece){.off = of.off + g[start].start,
                                               .len = g[i].end - g[start].start,
                                               .id = -1,
                                               .first = of.first && g[start].start == 0});
        }
        start = i + 1;
    }
}

static mx_status cut(const mx_pre_step *step, mx_pre_state *s, mx_piece of, mx_err *err) {
    const char *p = s->text.p + of.off;
    s->n_segment = 0;
    switch (step->kind) {
    case MX_PRE_REGEX: MX_TRY(find_regex(step, s, p, of.len, err)); break;
    case MX_PRE_LITERAL: find_literal(step, s, p, of.len); break;
    case MX_PRE_CLASS: find_class(step, s, p, of.len); break;
    case MX_PRE_WORDS: find_words(s, p, of.len); break;
    default: find_fixed(step, s, p, of.len); break;
    }
    join(step, s, of);
    return MX_OK;
}

/* ---- writing the text anew ------------------------------------------------------------------------------ */

static void rewrite(const mx_pre_step *step, mx_pre_state *s, mx_piece of) {
    const char *p = s->text.p + of.off;
    mx_str *o = &s->other;
    size_t at = o->len;
    if (step->kind == MX_PRE_BYTES) {
        mx_bl_encode(o, p, of.len);
    } else if (step->kind == MX_PRE_PREFIX) {
        bool has = of.len >= step->lit_len && !memcmp(p, step->lit, step->lit_len);
        if (!has && (of.first || !step->only_first)) mx_str_add(o, step->lit, step->lit_len);
        mx_str_add(o, p, of.len);
    } else {
        for (size_t i = 0; i < of.len;) {
            const char *sp = memchr(p + i, ' ', of.len - i);
            size_t end = sp ? (size_t)(sp - p) : of.len;
            mx_str_add(o, p + i, end - i);
            if (sp) mx_str_add(o, step->lit, step->lit_len);
            i = end + 1;
        }
    }
    mx_pieces_add(
        &s->next,
        (mx_piece){.off = (uint32_t)at, .len = (uint32_t)(o->len - at), .id = -1, .first = of.first});
}

mx_status mx_pretok_run(const mx_pretok *pt, mx_pre_state *s, mx_err *err) {
    for (size_t k = 0; k < pt->n; k++) {
        const mx_pre_step *step = &pt->step[k];
        bool writes =
            step->kind == MX_PRE_BYTES || step->kind == MX_PRE_PREFIX || step->kind == MX_PRE_REPLACE;
        s->next.n = 0;
        mx_str_clear(&s->other);
        for (size_t i = 0; i < s->pieces.n; i++) {
            mx_piece of = s->pieces.p[i];
            if (of.id >= 0)
                mx_pieces_add(&s->next, of);
            else if (writes)
                rewrite(step, s, of);
            else
                MX_TRY(cut(step, s, of, err));
        }
        if (s->other.oom) return mx_fail(err, MX_ELIMIT, "the pre-tokenizer makes this text too long");
        if (s->next.oom || s->oom) return mx_fail(err, MX_ENOMEM, "no memory for the pieces of a text");
        mx_pieces swap = s->pieces;
        s->pieces = s->next;
        s->next = swap;
        if (writes) {
            mx_str t = s->text;
            s->text = s->other;
            s->other = t;
        }
    }
    return MX_OK;
}
