#include "text/detok.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include "text/unicode.h"
#include <string.h>

/* A token travels through the chain in one or more parts: FIRST marks its first part, LAST its last. After a step that
 * makes all tokens one (Fuse, ByteLevel) the last part comes with the flush. */
enum { FIRST = 1, LAST = 2, WHOLE = FIRST | LAST };

static mx_status feed(mx_dec_run *r, size_t at, const char *p, size_t len, int part, mx_str *out,
                      mx_err *err);

/* The byte of "<0xHH>", or -1. */
static int byte_token(const char *p, size_t len) {
    int v = 0;
    if (len != 6 || memcmp(p, "<0x", 3) || p[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Append a token of the byte alphabet as bytes; one that holds any other character stays as it is. */
static void alphabet_bytes(const char *p, size_t len, mx_str *out) {
    if (!mx_str_reserve(out, len)) return;
    char *o = out->p + out->len;
    size_t used;
    for (size_t i = 0; i < len; i += used) {
        unsigned char c = (unsigned char)p[i];
        used = 1;
        int b = c > ' ' && c < 0x7F ? c : mx_bl_byte((uint32_t)mx_utf8_decode(p + i, len - i, &used));
        if (b < 0) {
            mx_str_add(out, p, len);
            return;
        }
        *o++ = (char)b;
    }
    *o = 0;
    out->len = (size_t)(o - out->p);
}

static mx_status byte_level(mx_dec_run *r, size_t at, const char *p, size_t len, mx_str *out, mx_err *err) {
    struct mx_dec_state *s = &r->state[at];
    alphabet_bytes(p, len, &s->held);
    size_t rest = mx_utf8_partial(s->held.p ? s->held.p : "", s->held.len), ready = s->held.len - rest;
    mx_str_clear(&s->made);
    mx_utf8_repair(&s->made, s->held.p, ready);
    if (s->held.p) memmove(s->held.p, s->held.p + ready, rest);
    s->held.len = rest;
    return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, s->n_token++ ? 0 : FIRST, out, err);
}

/* The end of a run of byte tokens. */
static mx_status end_bytes(mx_dec_run *r, size_t at, mx_str *out, mx_err *err) {
    struct mx_dec_state *s = &r->state[at];
    size_t n = s->held.len;
    if (!n) return MX_OK;
    mx_status st = MX_OK;
    if (mx_utf8_valid(s->held.p, n) == n) {
        st = feed(r, at + 1, s->held.p, n, WHOLE, out, err);
    } else {
        for (size_t i = 0; i < n && st == MX_OK; i++)
            st = feed(r, at + 1, "\xEF\xBF\xBD", 3, WHOLE, out, err);
    }
    mx_str_clear(&s->held);
    return st;
}

static mx_status strip(mx_dec_run *r, size_t at, const char *p, size_t len, int part, mx_str *out,
                       mx_err *err) {
    const mx_dec_step *k = &r->chain->step[at];
    struct mx_dec_state *s = &r->state[at];
    if (part & FIRST) s->leading = true, s->cut = s->kept = 0;
    mx_str_clear(&s->made);
    for (size_t i = 0, used; i < len; i += used) {
        mx_utf8_decode(p + i, len - i, &used);
        bool is = used == k->content_len && !memcmp(p + i, k->content, used);
        if (is && s->leading && s->cut < k->start) {
            s->cut++;
            continue;
        }
        s->leading = false;
        if (is && s->kept < k->stop) {
            s->kept++;
            continue;
        }
        if (!is) {
            for (; s->kept; s->kept--) mx_str_add(&s->made, k->content, k->content_len);
        }
        mx_str_add(&s->made, p + i, used);
    }
    return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, part, out, err);
}

/* A literal pattern in a token that comes in parts: what could be the start of a match is kept for the next part. */
static mx_status replace(mx_dec_run *r, size_t at, const char *p, size_t len, int part, mx_str *out,
                         mx_err *err) {
    const mx_dec_step *k = &r->chain->step[at];
    struct mx_dec_state *s = &r->state[at];
    mx_str_clear(&s->made);
    if (part == WHOLE) {
        MX_TRY(mx_replace_all(&s->made, p, len, k->re, &r->matcher, k->pattern, k->pattern_len, k->content,
                              k->content_len, err));
        return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, part, out, err);
    }
    mx_str_add(&s->held, p, len);
    size_t done = 0, n = s->held.len;
    for (const char *hit;
         done < n && (hit = memmem(s->held.p + done, n - done, k->pattern, k->pattern_len));) {
        size_t to = (size_t)(hit - s->held.p);
        mx_str_add(&s->made, s->held.p + done, to - done);
        mx_str_add(&s->made, k->content, k->content_len);
        done = to + k->pattern_len;
    }
    size_t keep = 0;
    if (!(part & LAST)) {
        keep = k->pattern_len - 1 < n - done ? k->pattern_len - 1 : n - done;
        while (keep && memcmp(s->held.p + n - keep, k->pattern, keep)) keep--;
    }
    if (n) {
        mx_str_add(&s->made, s->held.p + done, n - done - keep);
        memmove(s->held.p, s->held.p + n - keep, keep);
        s->held.len = keep;
    }
    return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, part, out, err);
}

static mx_status metaspace(mx_dec_run *r, size_t at, const char *p, size_t len, int part, mx_str *out,
                           mx_err *err) {
    const mx_dec_step *k = &r->chain->step[at];
    struct mx_dec_state *s = &r->state[at];
    if (part & FIRST) s->n_token++;
    bool drop = s->n_token == 1 && k->drop_first;
    mx_str_clear(&s->made);
    MX_TRY(mx_replace_all(&s->made, p, len, NULL, NULL, k->pattern, k->pattern_len, " ", drop ? 0 : 1, err));
    return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, part, out, err);
}

/* BPEDecoder: the token before is known not to be the last once another comes. */
static mx_status suffix(mx_dec_run *r, size_t at, const char *p, size_t len, mx_str *out, mx_err *err) {
    const mx_dec_step *k = &r->chain->step[at];
    struct mx_dec_state *s = &r->state[at];
    if (s->n_token++) {
        mx_str_clear(&s->made);
        MX_TRY(mx_replace_all(&s->made, s->held.p ? s->held.p : "", s->held.len, NULL, NULL, k->pattern,
                              k->pattern_len, " ", p ? 1 : 0, err));
        MX_TRY(feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, WHOLE, out, err));
    }
    mx_str_clear(&s->held);
    mx_str_add(&s->held, p ? p : "", len);
    return MX_OK;
}

static bool needs_whole(const mx_dec_step *k) {
    return k->kind == MX_DEC_BYTE_LEVEL || k->kind == MX_DEC_BYTE_FALLBACK || k->kind == MX_DEC_SUFFIX ||
           (k->kind == MX_DEC_REPLACE && k->re);
}

static mx_status feed(mx_dec_run *r, size_t at, const char *p, size_t len, int part, mx_str *out,
                      mx_err *err) {
    if (at == r->chain->n) {
        mx_str_add(out, p, len);
        return MX_OK;
    }
    const mx_dec_step *k = &r->chain->step[at];
    struct mx_dec_state *s = &r->state[at];
    if (part != WHOLE && needs_whole(k)) {
        if (part & FIRST) mx_str_clear(&s->token);
        mx_str_add(&s->token, p, len);
        if (!(part & LAST)) return MX_OK;
        p = s->token.p ? s->token.p : "";
        len = s->token.len;
        part = WHOLE;
    }
    switch (k->kind) {
    case MX_DEC_BYTE_LEVEL: return byte_level(r, at, p, len, out, err);
    case MX_DEC_BYTE_FALLBACK: {
        int b = byte_token(p, len);
        if (b >= 0) {
            mx_str_putc(&s->held, (char)b);
            return MX_OK;
        }
        MX_TRY(end_bytes(r, at, out, err));
        return feed(r, at + 1, p, len, WHOLE, out, err);
    }
    case MX_DEC_FUSE: return feed(r, at + 1, p, len, s->n_token++ ? 0 : FIRST, out, err);
    case MX_DEC_STRIP: return strip(r, at, p, len, part, out, err);
    case MX_DEC_REPLACE: return replace(r, at, p, len, part, out, err);
    case MX_DEC_METASPACE: return metaspace(r, at, p, len, part, out, err);
    case MX_DEC_SUFFIX: return suffix(r, at, p, len, out, err);
    case MX_DEC_JOIN:
        if ((part & FIRST) && s->n_token++) MX_TRY(feed(r, at + 1, " ", 1, WHOLE, out, err));
        return feed(r, at + 1, p, len, part, out, err);
    }
    return MX_OK;
}

/* What a step still holds when the tokens end. */
static mx_status finish(mx_dec_run *r, size_t at, mx_str *out, mx_err *err) {
    struct mx_dec_state *s = &r->state[at];
    switch (r->chain->step[at].kind) {
    case MX_DEC_BYTE_LEVEL:
        if (!s->n_token) return MX_OK;
        mx_str_clear(&s->made);
        mx_utf8_repair(&s->made, s->held.p, s->held.len);
        return feed(r, at + 1, s->made.p ? s->made.p : "", s->made.len, LAST, out, err);
    case MX_DEC_BYTE_FALLBACK: return end_bytes(r, at, out, err);
    case MX_DEC_FUSE: return s->n_token ? feed(r, at + 1, "", 0, LAST, out, err) : MX_OK;
    case MX_DEC_SUFFIX: return suffix(r, at, NULL, 0, out, err);
    default: return MX_OK;
    }
}

static mx_status check(const mx_dec_run *r, const mx_str *out, mx_err *err) {
    bool oom = out->oom;
    for (size_t i = 0; i < r->chain->n; i++)
        oom |= r->state[i].held.oom | r->state[i].token.oom | r->state[i].made.oom;
    return oom ? mx_fail(err, MX_ENOMEM, "no memory for decoded text") : MX_OK;
}

mx_status mx_dec_push(mx_dec_run *r, const char *token, size_t len, mx_str *out, mx_err *err) {
    MX_TRY(feed(r, 0, token, len, WHOLE, out, err));
    return check(r, out, err);
}

mx_status mx_dec_flush(mx_dec_run *r, mx_str *out, mx_err *err) {
    mx_status st = MX_OK;
    for (size_t i = 0; i < r->chain->n && st == MX_OK; i++) st = finish(r, i, out, err);
    if (st == MX_OK) st = check(r, out, err);
    mx_dec_run_reset(r);
    return st;
}

void mx_dec_run_reset(mx_dec_run *r) {
    for (size_t i = 0; i < r->chain->n; i++) {
        struct mx_dec_state *s = &r->state[i];
        mx_str_clear(&s->held);
        mx_str_clear(&s->token);
        mx_str_clear(&s->made);
        s->n_token = s->cut = s->kept = 0;
        s->leading = false;
    }
}

void mx_dec_run_free(mx_dec_run *r) {
    for (size_t i = 0; i < MX_DEC_MAX; i++) {
        mx_str_free(&r->state[i].held);
        mx_str_free(&r->state[i].token);
        mx_str_free(&r->state[i].made);
    }
    mx_matcher_free(&r->matcher);
}

mx_status mx_decoder_bytes(const mx_decoder *d, mx_matcher *m, const char *p, size_t len, mx_str scratch[2],
                           mx_str *out, mx_err *err) {
    bool fused = false;
    int turn = 0; // a step reads what the step before it wrote, so the two strings take turns
    for (size_t i = 0; i < d->n; i++) {
        const mx_dec_step *k = &d->step[i];
        mx_str *o = &scratch[turn];
        int b;
        mx_str_clear(o);
        switch (k->kind) {
        case MX_DEC_FUSE: fused = true; continue;
        case MX_DEC_JOIN: continue;
        case MX_DEC_BYTE_LEVEL:
            fused = true;
            alphabet_bytes(p, len, o);
            break;
        case MX_DEC_BYTE_FALLBACK:
            if ((b = byte_token(p, len)) < 0) continue;
            mx_str_putc(o, (char)b);
            break;
        case MX_DEC_METASPACE:
        case MX_DEC_SUFFIX:
            MX_TRY(mx_replace_all(o, p, len, NULL, NULL, k->pattern, k->pattern_len, " ", 1, err));
            break;
        case MX_DEC_REPLACE:
            MX_TRY(mx_replace_all(o, p, len, k->re, m, k->pattern, k->pattern_len, k->content, k->content_len,
                                  err));
            break;
        case MX_DEC_STRIP: {
            if (fused) continue; // it strips the ends of the whole text only
            size_t n = k->content_len, cut = 0, stop = 0;
            for (; cut < k->start && len >= n && !memcmp(p, k->content, n); cut++) p += n, len -= n;
            for (; stop < k->stop && len >= n && !memcmp(p + len - n, k->content, n); stop++) len -= n;
            continue;
        }
        }
        if (o->oom) return mx_fail(err, MX_ENOMEM, "no memory for the bytes of a token");
        p = o->p ? o->p : "";
        len = o->len;
        turn = !turn;
    }
    mx_str_add(out, p, len);
    return MX_OK;
}
