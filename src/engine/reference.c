/* reference.c - see reference.h. */
#include "engine/reference.h"
#include "base/file.h"
#include "base/json.h"
#include <math.h>

enum { MAX_BYTES = 1 << 30 };

static mx_status broken(const char *path, int doc, const char *what, mx_err *err) {
    return mx_fail(err, MX_EINVAL, "%s: document %d: %s", path, doc + 1, what);
}

/* A row of k numbers at out, and, ids being wanted, at id. */
static bool read_row(const mx_json *row, int k, double *out, int32_t *id) {
    if (!mx_json_is(row, MX_JSON_ARRAY) || mx_json_count(row) != (size_t)k) return false;
    for (const mx_json *v = mx_json_first(row); v; v = v->next) {
        if (id) {
            if (!mx_json_is(v, MX_JSON_INT) || v->u.i < 0 || v->u.i > INT32_MAX) return false;
            *id++ = (int32_t)v->u.i;
        } else {
            if (!mx_json_is_num(v) || !isfinite(mx_json_as_num(v))) return false;
            *out++ = mx_json_as_num(v);
        }
    }
    return true;
}

static mx_status read_doc(mx_ref_doc *d, int *k, const mx_json *v, mx_arena *a, const char *path, int at,
                          bool ids_only, mx_err *err) {
    const mx_json *ids = mx_json_get(v, "ids"), *top = mx_json_get(v, "top");
    const mx_json *logit = mx_json_get(v, "logit"), *lse = mx_json_get(v, "lse");
    size_t n = mx_json_count(ids);
    if (!mx_json_is(ids, MX_JSON_ARRAY) || n == 0 || n > 1 << 24)
        return broken(path, at, "\"ids\" must be a list of tokens", err);
    d->n = (int)n;
    d->ids = mx_arena_array(a, n, sizeof *d->ids);
    if (!d->ids) return mx_fail(err, MX_ENOMEM, "%s: no memory for its documents", path);
    if (!read_row(ids, d->n, NULL, d->ids)) return broken(path, at, "\"ids\" must be whole numbers", err);
    if (ids_only) return MX_OK;
    if (!mx_json_is(top, MX_JSON_ARRAY) || !mx_json_is(logit, MX_JSON_ARRAY) || mx_json_count(top) != n ||
        mx_json_count(logit) != n || mx_json_count(lse) != n)
        return broken(path, at, "\"top\", \"logit\" and \"lse\" must be lists as long as \"ids\"", err);
    if (*k == 0) *k = (int)mx_json_count(mx_json_first(top));
    if (*k < 2 || *k > MX_REF_MAX_K)
        return broken(path, at, "\"top\" must list from 2 to 100 tokens a position", err);
    d->top = mx_arena_array(a, n * (size_t)*k, sizeof *d->top);
    d->logit = mx_arena_array(a, n * (size_t)*k, sizeof *d->logit);
    d->lse = mx_arena_array(a, n, sizeof *d->lse);
    if (!d->top || !d->logit || !d->lse)
        return mx_fail(err, MX_ENOMEM, "%s: no memory for its documents", path);
    if (!read_row(lse, d->n, d->lse, NULL)) return broken(path, at, "\"lse\" must be finite numbers", err);
    const mx_json *t = mx_json_first(top), *l = mx_json_first(logit);
    for (int i = 0; i < d->n; i++, t = t->next, l = l->next) {
        double *row = d->logit + (size_t)i * (size_t)*k;
        if (!read_row(t, *k, NULL, d->top + (size_t)i * (size_t)*k))
            return broken(path, at, "\"top\" must hold as many tokens at every position", err);
        if (!read_row(l, *k, row, NULL))
            return broken(path, at, "\"logit\" must hold as many finite numbers as \"top\" has tokens", err);
        for (int j = 1; j < *k; j++)
            if (row[j] > row[j - 1]) return broken(path, at, "\"logit\" must fall along each position", err);
    }
    return MX_OK;
}

mx_status mx_reference_read(mx_reference *out, mx_arena *a, const char *path, bool ids_only, mx_err *err) {
    char *text;
    size_t len;
    mx_json *root;
    MX_TRY(mx_file_read(&text, &len, a, path, MAX_BYTES, err));
    mx_status st = mx_json_parse(&root, a, text, len, err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", path);
    size_t n = mx_json_count(root);
    if (!mx_json_is(root, MX_JSON_ARRAY) || n == 0 || n > 1 << 24)
        return mx_fail(err, MX_EINVAL, "%s: a reference is a list of documents with \"ids\", \"top\", ...",
                       path);
    *out = (mx_reference){.n_doc = (int)n, .docs = mx_arena_array(a, n, sizeof *out->docs)};
    if (!out->docs) return mx_fail(err, MX_ENOMEM, "%s: no memory for its documents", path);
    int at = 0;
    for (const mx_json *v = mx_json_first(root); v; v = v->next, at++)
        MX_TRY(read_doc(&out->docs[at], &out->k, v, a, path, at, ids_only, err));
    return MX_OK;
}

void mx_reference_put(mx_str *s, const mx_ref_doc *d, int k) {
    mx_str_puts(s, "{\"ids\": [");
    for (int i = 0; i < d->n; i++) mx_str_printf(s, "%s%d", i ? ", " : "", d->ids[i]);
    mx_str_puts(s, "], \"top\": [");
    for (int i = 0; i < d->n * k; i++)
        mx_str_printf(s, "%s%d%s", i % k ? ", " : i ? ", [" : "[", d->top[i], i % k == k - 1 ? "]" : "");
    mx_str_puts(s, "], \"logit\": [");
    for (int i = 0; i < d->n * k; i++) // 9 digits: every float32 reads back the same
        mx_str_printf(s, "%s%.9g%s", i % k ? ", " : i ? ", [" : "[", d->logit[i], i % k == k - 1 ? "]" : "");
    mx_str_puts(s, "], \"lse\": [");
    for (int i = 0; i < d->n; i++) mx_str_printf(s, "%s%.9g", i ? ", " : "", d->lse[i]);
    mx_str_puts(s, "]}");
}
