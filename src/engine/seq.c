/* seq.c - sequences: their tokens, their blocks and their state slot. */
#include "engine/engine_int.h"

mx_status mx_seq_new(mx_seq **out, mx_engine *e, mx_err *err) {
    for (int i = 0; i < e->n_seq; i++) {
        mx_seq *s = &e->seqs[i];
        if (s->used) continue;
        s->used = true;
        s->broken = false;
        s->len = 0;
        *out = s;
        return MX_OK;
    }
    return mx_fail(err, MX_ELIMIT, "all %d sequences of this engine are in use", e->n_seq);
}

/* Give back the blocks outside [first, end) of a group. */
static void hold(mx_seq *s, int g, int first, int end) {
    while (s->end[g] > end && s->end[g] > s->first[g]) {
        mx_kv_give(&s->e->pool, g, s->blocks[g][--s->end[g]]);
        s->blocks[g][s->end[g]] = -1;
    }
    while (s->first[g] < first && s->first[g] < s->end[g]) {
        mx_kv_give(&s->e->pool, g, s->blocks[g][s->first[g]]);
        s->blocks[g][s->first[g]++] = -1;
    }
    if (s->first[g] == s->end[g]) s->first[g] = s->end[g] = first;
}

void mx_seq_slide(mx_seq *s) {
    const mx_model_info *info = mx_model_get_info(s->e->model);
    for (int g = 0; g < info->n_group; g++)
        hold(s, g, mx_kv_first(s->len, info->window[g], MX_KV_BLOCK), s->end[g]);
}

void mx_seq_free(mx_seq *s) {
    if (!s) return;
    for (int g = 0; g < s->e->pool.n_group; g++) hold(s, g, 0, 0);
    s->used = false;
}

int mx_seq_len(const mx_seq *s) { return s->len; }
const int32_t *mx_seq_ids(const mx_seq *s) { return s->ids; }

mx_status mx_seq_truncate(mx_seq *s, int n, mx_err *err) {
    const mx_model_info *info = mx_model_get_info(s->e->model);
    if (s->broken)
        return mx_fail(err, MX_EINVAL, "this sequence failed in an earlier step and must be freed");
    if (n < 0 || n > s->len)
        return mx_fail(err, MX_EINVAL, "cannot cut a sequence of %d tokens to %d", s->len, n);
    if (n == s->len) return MX_OK;
    if (n > 0 && info->n_recurrent > 0)
        return mx_fail(err, MX_UNSUPPORTED, "the state of %s's recurrent layers cannot go back to token %d",
                       info->family, n);
    for (int g = 0; n > 0 && g < info->n_group; g++)
        if (mx_kv_first(n, info->window[g], MX_KV_BLOCK) < s->first[g])
            return mx_fail(err, MX_UNSUPPORTED,
                           "the window of %d tokens before token %d is no longer in the cache",
                           info->window[g], n);
    for (int g = 0; g < info->n_group; g++)
        hold(s, g, n == 0 ? 0 : s->first[g], (n + MX_KV_BLOCK - 1) / MX_KV_BLOCK);
    s->len = n;
    return MX_OK;
}
