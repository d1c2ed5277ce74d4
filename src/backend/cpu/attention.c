/* attention.c - attention over the paged cache: cutting a batch into tasks, and joining what they give.
 *
 * Keys are cut into splits of 256 positions from position 0. For a row (a token and a head) each split gives
 * a maximum, a sum and a weighted value; a row's splits are joined in order of position. That fixes every sum
 * by positions alone: the same query gets the same bits in any chunk of a prompt, in decode, in any company.
 *
 * A task is a tile of at most 64 rows (some tokens of one sequence x the heads that share a key head), the
 * cell of work in which converted keys are shared. When tiles are too few to keep the workers busy (decode),
 * tasks are single splits, whose results wait in memory for a second loop that joins them. */
#include "backend/cpu/ops_impl.h"
#include <math.h>
#include <string.h>

enum { SPLIT = MX_ATTN_SPLIT, ROWS = MX_ATTN_ROWS, PARTS_BYTES = 16 << 20 };

typedef struct { // tokens [tok, tok + n_tok) of sequence seq
    int seq, tok, n_tok;
    int first, n_split; // splits of keys that any of them sees: [first, first + n_split) * SPLIT
    int64_t part;       // where its results begin, in units of (row, split)
} tile;

typedef struct {
    const mx_attention *a;
    const mx_batch *b;
    const mx_row_kernels *rk;
    const mx_attn_kernels *k;
    tile *tiles;
    int n_tile, hdp;
    int group, n_share; // heads that share a key head, at most ROWS (else a divisor); how many such shares
    int n_split;        // of all tiles, when each is a task of its own:
    int *split_of, *tile_of; // [n_split] which split of which tile
    char *work;
    size_t per_worker;
    float *part_o, *part_m, *part_l; // [(tile, share, split, row)] results of single splits
} attn_job;

/* A worker's memory, cut up. */
typedef struct {
    int64_t *lo, *hi;
    float *q, *s, *run, *o, *m, *l, *to, *tm, *tl;
} worker_mem;

static size_t worker_bytes(int hdp) {
    size_t rows = ROWS, h = (size_t)hdp;
    return 2 * rows * sizeof(int64_t) +
           (rows * h * 3 + rows * SPLIT + MX_ATTN_RUN * h + 4 * rows) * sizeof(float);
}

static worker_mem worker_memory(const attn_job *j, int worker) {
    worker_mem w;
    const size_t h = (size_t)j->hdp;
    w.lo = (int64_t *)(j->work + (size_t)worker * j->per_worker);
    w.hi = w.lo + ROWS;
    w.q = (float *)(w.hi + ROWS);
    w.o = w.q + ROWS * h;
    w.to = w.o + ROWS * h;
    w.s = w.to + ROWS * h;
    w.run = w.s + ROWS * SPLIT;
    w.m = w.run + MX_ATTN_RUN * h;
    w.l = w.m + ROWS;
    w.tm = w.l + ROWS;
    w.tl = w.tm + ROWS;
    return w;
}

/* The keys that token i sees: [lo, hi). */
static void range_of(const mx_attention *a, const mx_batch *b, int i, int64_t *lo, int64_t *hi) {
    const int64_t pos = b->pos[i], len = b->kv_len[b->seq[i]];
    *hi = pos + 1 < len ? pos + 1 : len;
    *lo = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
}

/* The kernel's task for a tile and a share of heads: scaled queries and ranges in w. Row r is token r /
 * group, head r % group. */
static mx_attn_task load_tile(const attn_job *j, const tile *t, int share, const worker_mem *w) {
    const mx_attention *a = j->a;
    mx_attn_task task = {.kv = &a->kv, .block = j->b->block, .hd = a->hd, .hdp = j->hdp};
    task.head = share * j->group / (a->n_head / a->n_kv);
    task.blocks = j->b->blocks[a->kv.group] + (int64_t)t->seq * j->b->block_stride;
    task.n_row = t->n_tok * j->group;
    task.softcap = a->softcap;
    task.q = w->q, task.lo = w->lo, task.hi = w->hi, task.s = w->s, task.run = w->run;
    task.o = w->o, task.m = w->m, task.l = w->l;
    for (int r = 0; r < task.n_row; r++) {
        const int tok = t->tok + r / j->group, head = share * j->group + r % j->group;
        float *q = w->q + (size_t)r * (size_t)j->hdp;
        range_of(a, j->b, tok, &w->lo[r], &w->hi[r]);
        j->rk->copy((mx_row){q, MX_F32}, mx_row_at(&a->q, tok, head * a->hd), a->scale, a->hd);
        memset(q + a->hd, 0, (size_t)(j->hdp - a->hd) * sizeof *q);
    }
    return task;
}

static void store_row(const attn_job *j, const tile *t, int share, int r, float m, float l, const float *o) {
    const int tok = t->tok + r / j->group, head = share * j->group + r % j->group;
    j->k->finish(mx_row_at(&j->a->out, tok, head * j->a->hd), m, l, o,
                 j->a->sinks ? &j->a->sinks[head] : NULL, j->a->hd);
}

/* Task: a whole tile of one share of heads. Late tiles see the most keys, so they come first. */
static void whole_tile(void *arg, int i, int worker) {
    const attn_job *j = arg;
    const tile *t = &j->tiles[j->n_tile - 1 - i / j->n_share];
    const int share = i % j->n_share;
    const worker_mem w = worker_memory(j, worker);
    const mx_attn_task task = load_tile(j, t, share, &w);
    for (int r = 0; r < task.n_row; r++) w.tm[r] = -INFINITY, w.tl[r] = 0;
    memset(w.to, 0, (size_t)task.n_row * (size_t)j->hdp * sizeof *w.to);
    for (int s = t->first; s < t->first + t->n_split; s++) {
        j->k->split(&task, (int64_t)s * SPLIT);
        for (int r = 0; r < task.n_row; r++) {
            const size_t at = (size_t)r * (size_t)j->hdp;
            j->k->merge(&w.tm[r], &w.tl[r], w.to + at, w.m[r], w.l[r], w.o + at, j->hdp);
        }
    }
    for (int r = 0; r < task.n_row; r++)
        store_row(j, t, share, r, w.tm[r], w.tl[r], w.to + (size_t)r * (size_t)j->hdp);
}

/* Where the results of a split begin. */
static int64_t part_at(const attn_job *j, const tile *t, int share, int split) {
    return t->part + ((int64_t)share * t->n_split + split - t->first) * t->n_tok * j->group;
}

/* Task: one split of a tile and a share of heads. Neighbouring tasks are neighbouring splits, whose keys a
 * worker that takes several has already asked for. */
static void one_split(void *arg, int i, int worker) {
    const attn_job *j = arg;
    const int n = i % j->n_split, share = i / j->n_split, s = j->split_of[n];
    const tile *t = &j->tiles[j->tile_of[n]];
    const worker_mem w = worker_memory(j, worker);
    mx_attn_task task = load_tile(j, t, share, &w);
    const int64_t at = part_at(j, t, share, s);
    task.o = j->part_o + at * j->hdp;
    task.m = j->part_m + at;
    task.l = j->part_l + at;
    j->k->split(&task, (int64_t)s * SPLIT);
}

/* Task: join the splits of a tile and a share of heads. */
static void join(void *arg, int i, int worker) {
    const attn_job *j = arg;
    const tile *t = &j->tiles[i / j->n_share];
    const int share = i % j->n_share;
    float *to = worker_memory(j, worker).to;
    for (int r = 0; r < t->n_tok * j->group; r++) {
        float tm = -INFINITY, tl = 0;
        memset(to, 0, (size_t)j->hdp * sizeof *to);
        for (int s = t->first; s < t->first + t->n_split; s++) {
            const int64_t at = part_at(j, t, share, s) + r;
            j->k->merge(&tm, &tl, to, j->part_m[at], j->part_l[at], j->part_o + at * j->hdp, j->hdp);
        }
        store_row(j, t, share, r, tm, tl, to);
    }
}

/* Cut the batch into tiles; the number of them, of all their splits, of all (row, split), and of products of
 * numbers. */
typedef struct {
    int n_tile;
    int64_t n_split, n_part;
    double work;
} plan;

static plan make_tiles(const attn_job *j, tile *out) {
    plan p = {0};
    const int step = ROWS / j->group > 0 ? ROWS / j->group : 1;
    for (int s = 0; s < j->b->n_seq; s++) {
        for (int tok = j->b->seq_start[s], end = j->b->seq_start[s + 1]; tok < end; tok += step) {
            tile t = {.seq = s, .tok = tok, .n_tok = end - tok < step ? end - tok : step, .part = p.n_part};
            int64_t lo = INT64_MAX, hi = 0;
            for (int i = tok; i < tok + t.n_tok; i++) {
                int64_t from, to;
                range_of(j->a, j->b, i, &from, &to);
                lo = from < lo ? from : lo;
                hi = to > hi ? to : hi;
                p.work += 2.0 * (double)(to - from) * j->a->n_head * j->a->hd / 8;
            }
            if (lo < hi) {
                t.first = (int)(lo / SPLIT);
                t.n_split = (int)((hi + SPLIT - 1) / SPLIT) - t.first;
            }
            if (out) out[p.n_tile] = t;
            p.n_tile++;
            p.n_split += t.n_split;
            p.n_part += (int64_t)t.n_split * t.n_tok * j->group * j->n_share;
        }
    }
    return p;
}

static size_t rounded(size_t n) { return (n + 63) & ~(size_t)63; }

mx_status mx_cpu_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    attn_job j = {.a = a, .b = b, .rk = mx_cpu_row_kernels(d->isa), .k = mx_cpu_attn_kernels(d->isa)};
    j.group = a->n_head / a->n_kv;
    j.hdp = (a->hd + 15) & ~15;
    while (j.group > ROWS || a->n_head / a->n_kv % j.group) j.group--;
    j.n_share = a->n_head / j.group;
    const plan p = make_tiles(&j, NULL);
    const size_t part_bytes = (size_t)p.n_part * ((size_t)j.hdp + 2) * sizeof(float);
    const bool splits = d->n_worker > 1 && (int64_t)p.n_tile * j.n_share < 4 * d->n_worker &&
                        p.n_split > p.n_tile && part_bytes <= PARTS_BYTES;
    j.n_tile = p.n_tile;
    j.per_worker = rounded(worker_bytes(j.hdp));
    const size_t tile_bytes = rounded((size_t)p.n_tile * sizeof(tile));
    const size_t task_bytes = splits ? rounded((size_t)p.n_split * 2 * sizeof(int)) : 0;
    const size_t all_workers = j.per_worker * (size_t)d->n_worker;
    MX_TRY(mx_cpu_reserve(&d->work, all_workers + tile_bytes + task_bytes + (splits ? part_bytes : 0), err));
    j.work = d->work.p;
    j.tiles = (tile *)(j.work + all_workers);
    make_tiles(&j, j.tiles);
    if (!splits) {
        mx_cpu_run(d, whole_tile, &j, p.n_tile * j.n_share, 1, p.work);
        return MX_OK;
    }
    j.tile_of = (int *)(j.work + all_workers + tile_bytes);
    j.split_of = j.tile_of + p.n_split;
    j.part_o = (float *)(j.work + all_workers + tile_bytes + task_bytes);
    j.part_m = j.part_o + p.n_part * j.hdp;
    j.part_l = j.part_m + p.n_part;
    for (int t = 0, n = 0; t < p.n_tile; t++)
        for (int s = 0; s < j.tiles[t].n_split; s++, n++)
            j.tile_of[n] = t, j.split_of[n] = j.tiles[t].first + s;
    j.n_split = (int)p.n_split;
    const int n_task = j.n_split * j.n_share, grain = n_task / (8 * d->n_worker);
    mx_cpu_run(d, one_split, &j, n_task, grain < 8 ? grain : 8, p.work);
    mx_cpu_run(d, join, &j, p.n_tile * j.n_share, 1, (double)p.n_part * j.hdp / 4);
    return MX_OK;
}
