#include "cli/args.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------- */

/* The next word of a list of names; *at moves behind it. */
static bool next_name(const char **at, char *buf, size_t cap) {
    while (**at == ' ') (*at)++;
    size_t n = strcspn(*at, " ");
    if (n == 0) return false;
    snprintf(buf, cap, "%.*s", (int)n, *at);
    *at += n;
    return true;
}

enum { NAME_LEN = 40 };

static bool has_name(const arg_flag *f, const char *name, size_t len) {
    char buf[NAME_LEN];
    for (const char *at = f->names; next_name(&at, buf, sizeof buf);)
        if (strlen(buf) == len && !memcmp(buf, name, len)) return true;
    return false;
}

static int find_flag(const arg_line *l, const char *name, size_t len) {
    for (int i = 0; i < l->n_flag; i++)
        if ((l->flags[i].cmds & l->cmd) && has_name(&l->flags[i], name, len)) return i;
    return -1;
}

const arg_flag *arg_find(const arg_line *l, const char *name) {
    int i = find_flag(l, name, strlen(name));
    return i < 0 ? NULL : &l->flags[i];
}

bool arg_given(const arg_line *l, const char *name) {
    int i = find_flag(l, name, strlen(name));
    return i >= 0 && l->given[i];
}

const char *arg_name(const arg_flag *f, char *buf, size_t cap) {
    char name[NAME_LEN];
    buf[0] = 0;
    for (const char *at = f->names; next_name(&at, name, sizeof name);) {
        if (!buf[0]) snprintf(buf, cap, "%s", name);
        if (!strncmp(name, "--", 2)) {
            snprintf(buf, cap, "%s", name);
            break;
        }
    }
    return buf;
}

/* Edit distance in which a swap of neighbours counts once (optimal string alignment), at most 64 letters. */
static int distance(const char *a, const char *b) {
    enum { MAX = 64 };
    size_t na = strlen(a), nb = strlen(b);
    if (na >= MAX || nb >= MAX) return INT_MAX;
    int d[3][MAX + 1]; // rows i, i - 1, i - 2, in turn
    for (size_t j = 0; j <= nb; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[na % 3][nb];
}

const char *arg_near(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    int least = INT_MAX;
    for (int i = 0; i < n; i++) {
        int d = distance(word, names[i]);
        if (d < least) least = d, best = names[i];
    }
    if (!best) return NULL;
    size_t len = strlen(best) - strspn(best, "-"); // the dashes say nothing
    return least <= (int)(len < 3 ? 1 : (len + 2) / 3) ? best : NULL;
}

/* "unknown flag --tmep; did you mean --temp?" A flag that begins with the word is near too (--temper). */
static mx_status unknown(const arg_line *l, const char *word, size_t len, mx_err *err) {
    char names[ARG_MAX_FLAGS * 3][NAME_LEN];
    const char *list[ARG_MAX_FLAGS * 3];
    char typed[NAME_LEN];
    int n = 0;
    snprintf(typed, sizeof typed, "%.*s", (int)len, word);
    const char *near = NULL;
    for (int i = 0; i < l->n_flag; i++) {
        if (!(l->flags[i].cmds & l->cmd)) continue;
        for (const char *at = l->flags[i].names; n < ARG_MAX_FLAGS * 3 && next_name(&at, names[n], NAME_LEN);
             n++)
            list[n] = names[n];
    }
    for (int i = 0; i < n && !near && strlen(typed) > 4; i++)
        if (!strncmp(names[i], typed, strlen(typed))) near = names[i];
    if (!near) near = arg_near(typed, list, n);
    if (near) return mx_fail(err, MX_EINVAL, "%s: unknown flag %s; did you mean %s?", l->where, typed, near);
    return mx_fail(err, MX_EINVAL, "%s: unknown flag %s; %s --help lists the flags", l->where, typed,
                   l->where);
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* The range as text: "from 0 to 1", "at least 1". */
static const char *range(const arg_flag *f, char *buf, size_t cap) {
    double lo = f->min, hi = f->max;
    if (hi >= INT_MAX)
        snprintf(buf, cap, "at least %g", lo);
    else if (lo <= -INT_MAX)
        snprintf(buf, cap, "at most %g", hi);
    else
        snprintf(buf, cap, "from %g to %g", lo, hi);
    return buf;
}

static mx_status bad_value(const arg_flag *f, const char *name, const char *v, size_t len, mx_err *err) {
    char buf[64];
    const char *kind = f->type == ARG_NUM ? "a number" : "a whole number";
    return mx_fail(err, MX_EINVAL, "%s takes %s %s, not \"%.*s\"", name, kind, range(f, buf, sizeof buf),
                   (int)(len < 60 ? len : 60), v);
}

static mx_status parse_int(const arg_flag *f, const char *name, const char *v, size_t len, int *out,
                           mx_err *err) {
    char buf[32], *end;
    if (len == 0 || len >= sizeof buf || v[0] == ' ') return bad_value(f, name, v, len, err);
    memcpy(buf, v, len);
    buf[len] = 0;
    errno = 0;
    long long x = strtoll(buf, &end, 10);
    if (*end || errno || (double)x < f->min || (double)x > f->max) return bad_value(f, name, v, len, err);
    *out = (int)x;
    return MX_OK;
}

static mx_status parse_bool(const char *name, const char *v, bool *out, mx_err *err) {
    static const char *const yes[] = {"1", "on", "true", "yes"}, *const no[] = {"0", "off", "false", "no"};
    for (int i = 0; i < 4; i++) {
        if (!strcmp(v, yes[i])) return *out = true, MX_OK;
        if (!strcmp(v, no[i])) return *out = false, MX_OK;
    }
    return mx_fail(err, MX_EINVAL, "%s is on or off, not \"%s\"", name, v);
}

/* Append n zeroed items' room behind the items of a list: lists are short, so each append copies. */
static void *grown(mx_arena *a, const void *old, int n_old, int n_more, size_t size) {
    char *p = mx_arena_array(a, (size_t)n_old + (size_t)n_more, size);
    if (p && n_old) memcpy(p, old, (size_t)n_old * size);
    return p;
}

static mx_status add_ints(const arg_flag *f, const char *name, arg_ints *l, mx_arena *a, const char *v,
                          mx_err *err) {
    int n = 0;
    for (const char *at = v;; n++) {
        size_t len = strcspn(at, ",");
        int x = 0;
        MX_TRY(parse_int(f, name, at, len, &x, err));
        int *p = grown(a, l->v, l->n, 1, sizeof *p);
        if (!p) return mx_fail(err, MX_ENOMEM, "%s: no memory", name);
        p[l->n] = x;
        *l = (arg_ints){.v = p, .n = l->n + 1};
        if (!at[len]) break;
        at += len + 1;
    }
    if (f->type == ARG_PAIRS && n != 1) // n counts the commas
        return mx_fail(err, MX_EINVAL, "%s takes two numbers with a comma between them, not \"%s\"", name, v);
    return MX_OK;
}

/* fresh: a list starts anew, since what it holds came from a weaker source (default, environment). */
static mx_status store(const arg_flag *f, const char *name, void *opts, mx_arena *a, const char *v,
                       bool fresh, mx_err *err) {
    void *p = (char *)opts + f->off;
    char *end, buf[64];
    switch (f->type) {
    case ARG_BOOL: return parse_bool(name, v, p, err);
    case ARG_INT: return parse_int(f, name, v, strlen(v), p, err);
    case ARG_NUM: {
        float x = strtof(v, &end); // "inf" and "nan" are stopped by the range
        if (end == v || *end || !(x >= (float)f->min && x <= (float)f->max))
            return bad_value(f, name, v, strlen(v), err);
        memcpy(p, &x, sizeof x);
        return MX_OK;
    }
    case ARG_SEED: {
        errno = 0;
        uint64_t x = !strcmp(v, "-1") ? UINT64_MAX : strtoull(v, &end, 10);
        if (x != UINT64_MAX && (v[0] < '0' || v[0] > '9' || *end || errno))
            return mx_fail(err, MX_EINVAL,
                           "%s takes a whole number from 0 to 2^64 - 2, or -1 for a random one, "
                           "not \"%.60s\"",
                           name, v);
        if (x == UINT64_MAX && strcmp(v, "-1"))
            return mx_fail(err, MX_EINVAL, "%s: %.60s is too large; the largest seed is 2^64 - 2", name, v);
        memcpy(p, &x, sizeof x);
        return MX_OK;
    }
    case ARG_STR: *(const char **)p = v; return MX_OK;
    case ARG_CHOICE:
        for (const char *c = f->choices; *c;) {
            size_t len = strcspn(c, "|");
            if (strlen(v) == len && !memcmp(c, v, len)) return *(const char **)p = v, MX_OK;
            c += len + (c[len] == '|');
        }
        mx_str s = {0};
        for (const char *c = f->choices; *c; c++)
            if (*c == '|')
                mx_str_puts(&s, strchr(c + 1, '|') ? ", " : " or ");
            else
                mx_str_putc(&s, *c);
        mx_fail(err, MX_EINVAL, "%s is %s, not \"%.60s\"", name, s.p ? s.p : f->choices, v);
        mx_str_free(&s);
        return MX_EINVAL;
    case ARG_MANY: {
        arg_strings *l = p;
        if (fresh) *l = (arg_strings){0};
        const char **w = grown(a, l->v, l->n, 1, sizeof *w);
        if (!w) return mx_fail(err, MX_ENOMEM, "%s: no memory", name);
        w[l->n] = v;
        *l = (arg_strings){.v = w, .n = l->n + 1};
        return MX_OK;
    }
    case ARG_INTS:
    case ARG_PAIRS:
        if (fresh) *(arg_ints *)p = (arg_ints){0};
        return add_ints(f, name, p, a, v, err);
    }
    return mx_fail(err, MX_EINTERNAL, "%s: a flag of no type%s", name, arg_name(f, buf, sizeof buf));
}

/* ---- the command line ---------------------------------------------------------------------------------- */

static bool repeatable(const arg_flag *f) {
    return f->type == ARG_MANY || f->type == ARG_INTS || f->type == ARG_PAIRS;
}

static mx_status set_default(const arg_line *l, void *opts, mx_err *err) {
    for (int i = 0; i < l->n_flag; i++) {
        const arg_flag *f = &l->flags[i];
        if ((f->cmds & l->cmd) && f->dflt) MX_TRY(store(f, f->names, opts, l->a, f->dflt, true, err));
    }
    return MX_OK;
}

static mx_status from_env(arg_line *l, void *opts, mx_err *err) {
    for (int i = 0; i < l->n_flag; i++) {
        const arg_flag *f = &l->flags[i];
        char word[NAME_LEN], var[2 * NAME_LEN];
        if (!(f->cmds & l->cmd) || !f->env) continue;
        for (const char *at = f->env; !l->given[i] && next_name(&at, word, sizeof word);) {
            const char *v = NULL;
            for (int own = 1; own >= 0 && !v; own--) {
                snprintf(var, sizeof var, "%s%s", own ? "MLXCEL_" : "LLAMA_ARG_", word);
                v = getenv(var);
                if (v && !*v) v = NULL; // set but empty is unset
            }
            if (!v) continue;
            mx_status st = store(f, var, opts, l->a, v, true, err);
            if (st != MX_OK) return mx_err_prefix(err, st, "environment");
            l->given[i] = true;
        }
    }
    return MX_OK;
}

/* Store a typed value: a second time is an error for flags that hold one value. */
static mx_status typed(arg_line *l, int i, void *opts, const char *name, const char *v, mx_err *err) {
    const arg_flag *f = &l->flags[i];
    if (l->typed[i] && !repeatable(f))
        return mx_fail(err, MX_EINVAL, "%s: %s is given twice", l->where, name);
    mx_status st = store(f, name, opts, l->a, v, !l->typed[i], err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", l->where);
    l->typed[i] = l->given[i] = true;
    return MX_OK;
}

/* One word that starts with a dash; *used is set when the next word was its value. */
static mx_status parse_flag(arg_line *l, void *opts, const char *w, const char *next, bool *used,
                            mx_err *err) {
    const char *eq = !strncmp(w, "--", 2) ? strchr(w, '=') : NULL;
    size_t len = eq ? (size_t)(eq - w) : strlen(w);
    char name[NAME_LEN];
    bool no = false;
    int i = find_flag(l, w, len);
    if (i < 0 && !strncmp(w, "--no-", 5) && !eq && len < NAME_LEN) { // --no-x switches --x off
        snprintf(name, sizeof name, "--%s", w + 5);
        i = find_flag(l, name, strlen(name));
        if (i >= 0 && l->flags[i].type != ARG_BOOL) i = -1;
        no = i >= 0;
    }
    if (i < 0 && w[1] != '-' && w[1] && w[2]) { // -n5
        i = find_flag(l, w, 2);
        if (i >= 0 && l->flags[i].type != ARG_INT && l->flags[i].type != ARG_INTS) i = -1;
        if (i >= 0 && !strchr("-0123456789", w[2])) i = -1;
        if (i >= 0) {
            snprintf(name, sizeof name, "%.2s", w);
            return typed(l, i, opts, name, w + 2, err);
        }
    }
    if (i < 0) return unknown(l, w, len, err);
    snprintf(name, sizeof name, "%.*s", (int)len, w);
    if (l->flags[i].type == ARG_BOOL && !eq) return typed(l, i, opts, name, no ? "off" : "on", err);
    if (eq) return typed(l, i, opts, name, eq + 1, err);
    if (!next || (next[0] == '-' && next[1] && find_flag(l, next, strcspn(next, "=")) >= 0)) {
        char shown[NAME_LEN];
        if (!next)
            return mx_fail(err, MX_EINVAL, "%s: %s needs a value (%s)", l->where, name, l->flags[i].value);
        return mx_fail(err, MX_EINVAL,
                       "%s: %s needs a value (%s); a value that looks like a flag is written %s=%s", l->where,
                       name, l->flags[i].value, arg_name(&l->flags[i], shown, sizeof shown), next);
    }
    *used = true;
    return typed(l, i, opts, name, next, err);
}

mx_status arg_parse(arg_line *l, void *opts, int argc, char *const *argv, mx_err *err) {
    bool flags = true; // until "--"
    if (l->n_flag > ARG_MAX_FLAGS) return mx_fail(err, MX_EINTERNAL, "more flags than ARG_MAX_FLAGS");
    l->positional = mx_arena_array(l->a, (size_t)argc + 1, sizeof *l->positional);
    if (!l->positional) return mx_fail(err, MX_ENOMEM, "no memory for the command line");
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return l->help = true, MX_OK;
    MX_TRY(set_default(l, opts, err));
    MX_TRY(from_env(l, opts, err));
    for (int i = 0; i < argc; i++) {
        const char *w = argv[i];
        bool used = false;
        if (flags && !strcmp(w, "--")) {
            flags = false;
        } else if (flags && w[0] == '-' && w[1]) { // a lone "-" is a word
            MX_TRY(parse_flag(l, opts, w, i + 1 < argc ? argv[i + 1] : NULL, &used, err));
            i += used;
        } else {
            l->positional[l->n_positional++] = w;
        }
    }
    return MX_OK;
}

mx_status arg_set(arg_line *l, void *opts, const char *name, const char *value, mx_err *err) {
    int i = find_flag(l, name, strlen(name));
    if (i < 0) {
        unknown(l, name, strlen(name), err);
        return err ? (err->code = MX_ENOTFOUND) : MX_ENOTFOUND;
    }
    MX_TRY(store(&l->flags[i], name, opts, l->a, value, true, err));
    l->given[i] = true;
    return MX_OK;
}

/* ---- showing ------------------------------------------------------------------------------------------- */

void arg_show(mx_str *s, const arg_flag *f, const void *opts) {
    const void *p = (const char *)opts + f->off;
    switch (f->type) {
    case ARG_BOOL: mx_str_puts(s, *(const bool *)p ? "on" : "off"); break;
    case ARG_INT: mx_str_printf(s, "%d", *(const int *)p); break;
    case ARG_NUM: mx_str_printf(s, "%g", (double)*(const float *)p); break;
    case ARG_SEED:
        if (*(const uint64_t *)p == UINT64_MAX)
            mx_str_puts(s, "-1");
        else
            mx_str_printf(s, "%llu", (unsigned long long)*(const uint64_t *)p);
        break;
    case ARG_STR:
    case ARG_CHOICE: mx_str_puts(s, *(const char *const *)p ? *(const char *const *)p : ""); break;
    case ARG_MANY:
        for (int i = 0; i < ((const arg_strings *)p)->n; i++)
            mx_str_printf(s, "%s%s", i ? " " : "", ((const arg_strings *)p)->v[i]);
        break;
    case ARG_INTS:
    case ARG_PAIRS:
        for (int i = 0; i < ((const arg_ints *)p)->n; i++)
            mx_str_printf(s, "%s%d", i ? "," : "", ((const arg_ints *)p)->v[i]);
        break;
    }
}

/* "-n, --max-tokens N": one short name and one long one. */
static void usage(mx_str *s, const arg_flag *f) {
    char name[NAME_LEN], brief[NAME_LEN] = "", full[NAME_LEN] = "";
    for (const char *at = f->names; next_name(&at, name, sizeof name);) {
        bool is_long = !strncmp(name, "--", 2);
        if (is_long && !full[0]) memcpy(full, name, sizeof full);
        if (!is_long && !brief[0]) memcpy(brief, name, sizeof brief);
    }
    mx_str_printf(s, "%s%s%s", brief, brief[0] && full[0] ? ", " : "", full);
    if (f->type == ARG_CHOICE)
        mx_str_printf(s, " %s", f->value ? f->value : f->choices);
    else if (f->type != ARG_BOOL)
        mx_str_printf(s, " %s", f->value);
}

static void cell(mx_str *s, const arg_flag *f, int pad) {
    size_t start = s->len;
    usage(s, f);
    while ((int)(s->len - start) < pad) mx_str_putc(s, ' ');
    mx_str_printf(s, "  %s", f->help);
    if (f->dflt && f->dflt[0] && f->type != ARG_BOOL) mx_str_printf(s, " (%s)", f->dflt);
}

static int usage_width(const arg_flag *f) {
    mx_str s = {0};
    usage(&s, f);
    int n = (int)s.len;
    mx_str_free(&s);
    return n;
}

/* The widths of n rows set under each other: of the usages (pad), and of the whole. */
static int measure(const arg_flag *const *rows, int n, int *pad) {
    int widest = 0;
    *pad = 0;
    for (int i = 0; i < n; i++) {
        int w = usage_width(rows[i]);
        if (w > *pad) *pad = w;
    }
    for (int i = 0; i < n; i++) {
        mx_str c = {0};
        cell(&c, rows[i], *pad);
        if ((int)c.len > widest) widest = (int)c.len;
        mx_str_free(&c);
    }
    return widest;
}

/* A long group is set in two columns when they fit the width: the many sampling flags then fit a screen. */
static void help_group(mx_str *s, const arg_flag *const *rows, int n, int width) {
    int pad[2], half = (n + 1) / 2;
    int left = measure(rows, half, &pad[0]), right = measure(rows + half, n - half, &pad[1]);
    bool two = n > 6 && left + right + 4 <= width;
    if (!two) (void)measure(rows, n, &pad[0]);
    for (int i = 0; i < (two ? half : n); i++) {
        size_t start = s->len;
        mx_str_puts(s, "  ");
        cell(s, rows[i], pad[0]);
        if (two && i + half < n) {
            while ((int)(s->len - start) < left + 4) mx_str_putc(s, ' ');
            cell(s, rows[i + half], pad[1]);
        }
        mx_str_putc(s, '\n');
    }
}

void arg_help(mx_str *s, const arg_flag *flags, int n_flag, unsigned cmd, int width) {
    const arg_flag *rows[ARG_MAX_FLAGS];
    bool done[ARG_MAX_FLAGS] = {0};
    for (int i = 0; i < n_flag; i++) {
        if (done[i] || !(flags[i].cmds & cmd)) continue;
        int n = 0;
        for (int j = i; j < n_flag; j++) // all rows under this heading, wherever the table has them
            if ((flags[j].cmds & cmd) && !strcmp(flags[j].group, flags[i].group)) {
                rows[n++] = &flags[j];
                done[j] = true;
            }
        mx_str_printf(s, "%s\n", flags[i].group);
        help_group(s, rows, n, width);
    }
}
