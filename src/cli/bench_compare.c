/* bench_compare.c - `mlxcel bench --compare A.csv B.csv`: ratios of the rows that measure the same thing.
 *
 * Two rows match when model, test and depth are equal; host, backend and version may differ, they are what is compared.
 * Where several rows match, those with the same number of threads are taken if there are any. */
#include "base/file.h"
#include "cli/bench.h"
#include "cli/out.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    char **cell; // [n_col]
} row;
typedef struct {
    const char *path;
    char **col; // names
    int n_col;
    row *rows;
    int n_row;
} table;

static const char *const wanted[] = {"model",   "test",      "avg_ts",       "stddev_ts", "host",
                                     "backend", "n_threads", "quantization", "version"};
enum { MODEL, TEST, AVG, SD, HOST, BACKEND, THREADS, QUANT, VERSION, N_WANTED };

/* One line of csv into cells, in place (RFC 4180). *at moves behind it. A cell beyond cap is dropped, *n counts all. */
static void split(char **at, char **cell, int cap, int *n) {
    char *p = *at;
    *n = 0;
    for (;;) {
        char *w = p, *start = p;
        bool quoted = *p == '"';
        if (quoted) p++;
        while (*p && (quoted || (*p != ',' && *p != '\n' && *p != '\r'))) {
            if (quoted && *p == '"') {
                if (p[1] != '"') {
                    quoted = false;
                    p++;
                    continue;
                }
                p++;
            }
            *w++ = *p++;
        }
        char end = *p;
        if (*n < cap) cell[*n] = start;
        (*n)++;
        if (end == '\r' && p[1] == '\n') p++, end = '\n';
        if (*p) p++;
        *w = 0;
        if (end != ',') break;
    }
    *at = p;
}

static int column(const table *t, const char *name) {
    for (int i = 0; i < t->n_col; i++)
        if (!strcmp(t->col[i], name)) return i;
    return -1;
}

static mx_status load(table *t, cli *c, const char *path, mx_err *err) {
    enum { MAX_COL = 256 };
    char *text, *cell[MAX_COL];
    size_t len;
    int n;
    t->path = path;
    MX_TRY(mx_file_read(&text, &len, &c->a, path, 64 << 20, err));
    if (strlen(text) != len) return mx_fail(err, MX_EINVAL, "%s is no text file", path);
    size_t lines = 1;
    for (char *p = text; *p; p++) lines += *p == '\n';
    split(&text, cell, MAX_COL, &t->n_col);
    if (t->n_col > MAX_COL) return mx_fail(err, MX_EINVAL, "%s has more than %d columns", path, MAX_COL);
    t->col = mx_arena_array(&c->a, (size_t)t->n_col, sizeof *t->col);
    t->rows = mx_arena_array(&c->a, lines, sizeof *t->rows);
    if (!t->col || !t->rows) return mx_fail(err, MX_ENOMEM, "%s: no memory", path);
    memcpy(t->col, cell, (size_t)t->n_col * sizeof *cell);
    for (int i = 0; i < N_WANTED; i++)
        if (column(t, wanted[i]) < 0)
            return mx_fail(err, MX_EINVAL, "%s has no column %s; mlxcel bench -o csv writes such files", path,
                           wanted[i]);
    for (int line = 2; *text; line++) {
        if (*text == '\n' || *text == '\r') {
            text++;
            continue;
        }
        split(&text, cell, MAX_COL, &n);
        if (n != t->n_col)
            return mx_fail(err, MX_EINVAL, "%s line %d has %d cells, its first line %d", path, line, n,
                           t->n_col);
        row r = {mx_arena_array(&c->a, (size_t)n, sizeof *cell)};
        if (!r.cell) return mx_fail(err, MX_ENOMEM, "%s: no memory", path);
        for (int i = 0; i < N_WANTED; i++) r.cell[i] = cell[column(t, wanted[i])];
        char *end;
        if (!(strtod(r.cell[AVG], &end) > 0) || *end)
            return mx_fail(err, MX_EINVAL, "%s line %d: avg_ts \"%.30s\" is no speed", path, line,
                           r.cell[AVG]);
        t->rows[t->n_row++] = r;
    }
    return MX_OK;
}

static bool same(const row *a, const row *b, int by) { return !strcmp(a->cell[by], b->cell[by]); }
static bool match(const row *a, const row *b) { return same(a, b, MODEL) && same(a, b, TEST); }

static void print_pair(const row *a, const row *b, int i) {
    char left[80], right[80], fa[48], fb[48];
    if (i == 0)
        out_printf("| %-20s | %-15s | %-28s | %-28s | %18s | %18s | %6s |\n"
                   "| -------------------- | --------------- | ---------------------------- | "
                   "---------------------------- | -----------------: | -----------------: | -----: |\n",
                   "model", "test", "A", "B", "A t/s", "B t/s", "B / A");
    snprintf(left, sizeof left, "%.16s %.8s %.4s thr.", a->cell[HOST], a->cell[BACKEND], a->cell[THREADS]);
    snprintf(right, sizeof right, "%.16s %.8s %.4s thr.", b->cell[HOST], b->cell[BACKEND], b->cell[THREADS]);
    double x = strtod(a->cell[AVG], NULL), y = strtod(b->cell[AVG], NULL);
    snprintf(fa, sizeof fa, "%.2f ± %.2f", x, strtod(a->cell[SD], NULL));
    snprintf(fb, sizeof fb, "%.2f ± %.2f", y, strtod(b->cell[SD], NULL));
    out_printf("| %-20s | %-15s | %-28s | %-28s | %19s | %19s | %6.3f |\n", a->cell[MODEL], a->cell[TEST],
               left, right, fa, fb, y / x);
}

int bench_compare(cli *c, const char *path_a, const char *path_b) {
    mx_err err;
    table a = {0}, b = {0};
    int n = 0, alone = 0;
    mx_status st = load(&a, c, path_a, &err);
    if (st == MX_OK) st = load(&b, c, path_b, &err);
    if (st != MX_OK) return cli_fail(&err);
    for (int i = 0; i < a.n_row; i++) {
        bool any = false, by_threads = false;
        for (int j = 0; j < b.n_row; j++)
            if (match(&a.rows[i], &b.rows[j])) {
                any = true;
                by_threads = by_threads || same(&a.rows[i], &b.rows[j], THREADS);
            }
        alone += !any;
        for (int j = 0; j < b.n_row; j++)
            if (match(&a.rows[i], &b.rows[j]) && (!by_threads || same(&a.rows[i], &b.rows[j], THREADS)))
                print_pair(&a.rows[i], &b.rows[j], n++);
    }
    if (n == 0)
        return cli_error(EXIT_FAIL, "%s and %s have no row with the same model and test", path_a, path_b);
    if (alone && !c->o.quiet) fprintf(stderr, "%d rows of %s have no match in %s\n", alone, path_a, path_b);
    return EXIT_OK;
}
