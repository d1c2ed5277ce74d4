#include "text/normalize.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Unicode normal forms -------------------------------------------------------------------------------
 *
 * utf8proc decomposes a character and composes a string; the canonical ordering in between is ours, since utf8proc's
 * takes time in the square of the length of a run of marks. */

/* Marks and compositions that are younger than the Unicode version by which tokenizers normalizes (9): there they are
 * ordinary characters, so here they are too, or a text in a young script would get other ids. */
static const struct {
    uint32_t first, last;
} young[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x107BA},
    {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

static bool is_young(uint32_t cp) {
    size_t lo = 0, hi = countof(young);
    if (cp < young[0].first) return false;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (young[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < countof(young) && young[lo].first <= cp;
}

enum { CHAR_MAX_DECOMPOSED = 32 }; // U+FDFA takes 18 code points under NFKD

static int combining_class(utf8proc_int32_t cp) {
    int c = cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
    return c && is_young((uint32_t)cp) ? 0 : c;
}

/* Sort each run of marks by class, marks of one class in their order: a counting sort of every run. */
static bool order_marks(utf8proc_int32_t *cp, size_t n) {
    utf8proc_int32_t *copy = NULL;
    for (size_t i = 0; i < n;) {
        if (!combining_class(cp[i])) {
            i++;
            continue;
        }
        size_t first = i, count[257] = {0};
        bool sorted = true;
        int before = 0;
        for (; i < n; i++) {
            int c = combining_class(cp[i]);
            if (!c) break;
            sorted &= c >= before;
            before = c;
            count[c + 1]++;
        }
        if (sorted) continue;
        if (!copy && !(copy = malloc(n * sizeof *copy))) return false;
        memcpy(copy + first, cp + first, (i - first) * sizeof *cp);
        for (int c = 0; c < 256; c++) count[c + 1] += count[c];
        for (size_t k = first; k < i; k++) cp[first + count[combining_class(copy[k])]++] = copy[k];
    }
    free(copy);
    return true;
}

/* Compose in place; returns the new length. Young characters compose with nothing. */
static size_t compose_all(utf8proc_int32_t *cp, size_t n) {
    size_t to = 0;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && !is_young((uint32_t)cp[end]);) end++;
        utf8proc_ssize_t k =
            utf8proc_normalize_utf32(cp + i, (utf8proc_ssize_t)(end - i), UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (k < 0) k = (utf8proc_ssize_t)(end - i);
        memmove(cp + to, cp + i, (size_t)k * sizeof *cp);
        to += (size_t)k;
        for (; end < n && is_young((uint32_t)cp[end]); end++) cp[to++] = cp[end];
    }
    return to;
}

/* The part of p[0..len) before which nothing can change under this form: it ends before a character that is sure to be
 * a starter and unchanged. ASCII never changes; under NFC nothing below U+0300 does. */
static size_t unchanged(mx_norm_kind kind, const char *p, size_t len) {
    unsigned char limit = kind == MX_NORM_NFC ? 0xCC : 0x80; // 0xCC leads U+0300
    size_t i = 0;
    while (i < len && (unsigned char)p[i] < limit) i++;
    if (i == len) return len;
    if (i) i--; // the character before may combine with what follows
    while (i && ((unsigned char)p[i] & 0xC0) == 0x80) i--;
    return i;
}

static mx_status normal_form(mx_norm_kind kind, const char *p, size_t len, mx_str *out, mx_err *err) {
    bool compose = kind == MX_NORM_NFC || kind == MX_NORM_NFKC;
    int options = UTF8PROC_DECOMPOSE | (kind == MX_NORM_NFKC || kind == MX_NORM_NFKD ? UTF8PROC_COMPAT : 0);
    size_t same = unchanged(kind, p, len), n = 0, cap = (len - same) + CHAR_MAX_DECOMPOSED;
    mx_str_add(out, p, same);
    utf8proc_int32_t *cp = malloc(cap * sizeof *cp);
    if (!cp) return mx_fail(err, MX_ENOMEM, "no memory to normalize a text of %zu bytes", len);
    int last = 0;
    for (size_t i = same, used; i < len; i += used) {
        int32_t c = mx_utf8_decode(p + i, len - i, &used);
        if (c < 0x80 || is_young((uint32_t)c)) {
            cp[n++] = c;
        } else {
            utf8proc_ssize_t k =
                utf8proc_decompose_char(c, cp + n, (utf8proc_ssize_t)(cap - n), options, &last);
            if (k < 0 || (size_t)k > cap - n) k = 1, cp[n] = c;
            n += (size_t)k;
        }
        if (cap - n < CHAR_MAX_DECOMPOSED) {
            cap *= 2;
            utf8proc_int32_t *more = realloc(cp, cap * sizeof *cp);
            if (!more) {
                free(cp);
                return mx_fail(err, MX_ENOMEM, "no memory to normalize a text of %zu bytes", len);
            }
            cp = more;
        }
    }
    bool ok = order_marks(cp, n);
    if (ok && compose) n = compose_all(cp, n);
    if (ok && (ok = mx_str_reserve(out, 4 * n))) {
        char *o = out->p + out->len;
        for (size_t i = 0; i < n; i++) o += mx_utf8_encode((uint32_t)cp[i], o);
        *o = 0;
        out->len = (size_t)(o - out->p);
    }
    free(cp);
    return ok ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory to normalize a text of %zu bytes", len);
}

/* ---- steps that look at one character ------------------------------------------------------------------- */

static void put_cp(mx_str *out, uint32_t cp) {
    char b[4];
    mx_str_add(out, b, mx_utf8_encode(cp, b));
}

static bool ideograph(uint32_t c) { // BERT's own list
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Nmt drops control characters and makes separators plain spaces; the list is that of sentencepiece's nmt rules. */
static bool nmt_dropped(uint32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_space(uint32_t c) {
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static void map_char(mx_norm_kind kind, uint32_t c, mx_str *out) {
    uint32_t low[2];
    switch (kind) {
    case MX_NORM_LOWERCASE: {
        size_t n = mx_uc_lower(c, low);
        for (size_t i = 0; i < n; i++) put_cp(out, low[i]);
        return;
    }
    case MX_NORM_STRIP_ACCENTS:
        if (!mx_uc_mark(c)) put_cp(out, c);
        return;
    case MX_NORM_STRIP_MN:
        if (mx_uc_category(c) != UTF8PROC_CATEGORY_MN) put_cp(out, c);
        return;
    case MX_NORM_NMT:
        if (!nmt_dropped(c)) put_cp(out, nmt_space(c) ? ' ' : c);
        return;
    case MX_NORM_CLEAN:
        if (c == '\t' || c == '\n' || c == '\r')
            put_cp(out, ' ');
        else if (c && c != 0xFFFD && !mx_uc_other(c))
            put_cp(out, mx_uc_space(c) ? ' ' : c);
        return;
    default: // MX_NORM_CJK
        if (ideograph(c)) mx_str_putc(out, ' ');
        put_cp(out, c);
        if (ideograph(c)) mx_str_putc(out, ' ');
        return;
    }
}

/* ---- replacing and stripping ---------------------------------------------------------------------------- */

mx_status mx_replace_all(mx_str *out, const char *text, size_t len, const mx_regex *re, mx_matcher *m,
                         const char *pattern, size_t pattern_len, const char *content, size_t content_len,
                         mx_err *err) {
    size_t done = 0;
    if (re) {
        size_t pos = 0, last = SIZE_MAX, start, end;
        bool found = len > 0; // an empty text has no matches, not even empty ones
        while (found) {
            MX_TRY(mx_regex_next(re, m, text, len, &pos, &last, &start, &end, &found, err));
            if (!found) break;
            if (start > done) mx_str_add(out, text + done, start - done);
            mx_str_add(out, content, content_len);
            done = end;
        }
    } else {
        const char *hit;
        while (done < len && (hit = memmem(text + done, len - done, pattern, pattern_len))) {
            size_t at = (size_t)(hit - text);
            mx_str_add(out, text + done, at - done);
            mx_str_add(out, content, content_len);
            done = at + pattern_len;
        }
    }
    mx_str_add(out, text + done, len - done);
    return MX_OK;
}

static void strip(const mx_norm_step *s, const char *p, size_t len, mx_str *out) {
    size_t start = 0, end = len, used;
    if (s->left) {
        while (start < end && mx_uc_space((uint32_t)mx_utf8_decode(p + start, end - start, &used)))
            start += used;
    }
    while (s->right && end > start) {
        size_t b = end - 1;
        while (b > start && ((unsigned char)p[b] & 0xC0) == 0x80) b--;
        if (!mx_uc_space((uint32_t)mx_utf8_decode(p + b, end - b, &used))) break;
        end = b;
    }
    mx_str_add(out, p + start, end - start);
}

static mx_status run_step(const mx_norm_step *s, mx_matcher *m, const char *p, size_t len, mx_str *out,
                          mx_err *err) {
    switch (s->kind) {
    case MX_NORM_NFC:
    case MX_NORM_NFD:
    case MX_NORM_NFKC:
    case MX_NORM_NFKD: return normal_form(s->kind, p, len, out, err);
    case MX_NORM_STRIP: strip(s, p, len, out); return MX_OK;
    case MX_NORM_PREPEND:
        if (len) mx_str_add(out, s->content, s->content_len);
        mx_str_add(out, p, len);
        return MX_OK;
    case MX_NORM_REPLACE:
        return mx_replace_all(out, p, len, s->re, m, s->pattern, s->pattern_len, s->content, s->content_len,
                              err);
    case MX_NORM_BYTE_LEVEL: mx_bl_encode(out, p, len); return MX_OK;
    default: break;
    }
    for (size_t i = 0, used; i < len; i += used)
        map_char(s->kind, (uint32_t)mx_utf8_decode(p + i, len - i, &used), out);
    return MX_OK;
}

mx_status mx_normalize(const mx_normalizer *nz, mx_matcher *m, const char *text, size_t len, mx_str *one,
                       mx_str *two, const char **out, size_t *out_len, bool *cut_left, mx_err *err) {
    *cut_left = false;
    for (size_t i = 0; i < nz->n; i++) {
        const mx_norm_step *s = &nz->step[i];
        if (s->kind <= MX_NORM_NFKD && unchanged(s->kind, text, len) == len) continue;
        mx_str_clear(one);
        MX_TRY(run_step(s, m, text, len, one, err));
        if (one->oom) return mx_fail(err, MX_ELIMIT, "the normalizer makes this text too long");
        if (s->kind == MX_NORM_STRIP && s->left && one->len < len && mx_uc_space((unsigned char)text[0]))
            *cut_left = true;
        text = one->p ? one->p : "";
        len = one->len;
        mx_str *swap = one; // the next step reads what this one wrote
        one = two;
        two = swap;
    }
    *out = text;
    *out_len = len;
    return MX_OK;
}
