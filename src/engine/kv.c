/* kv.c - see kv.h. */
#include "engine/kv.h"
#include <stdlib.h>

mx_status mx_kv_init(mx_kv_pool *p, int n_group, const int *n_block, mx_err *err) {
    *p = (mx_kv_pool){.n_group = n_group};
    for (int g = 0; g < n_group; g++) {
        p->free_list[g] = malloc((size_t)n_block[g] * sizeof(int32_t) + 1);
        p->owners[g] = calloc((size_t)n_block[g] + 1, sizeof(int32_t));
        if (!p->free_list[g] || !p->owners[g]) {
            mx_kv_free(p);
            return mx_fail(err, MX_ENOMEM, "no memory for the list of %d KV blocks", n_block[g]);
        }
        p->n_block[g] = p->n_free[g] = n_block[g];
        for (int i = 0; i < n_block[g]; i++) p->free_list[g][i] = n_block[g] - 1 - i; // block 0 first
    }
    return MX_OK;
}

void mx_kv_free(mx_kv_pool *p) {
    for (int g = 0; g < MX_KV_GROUPS; g++) {
        free(p->free_list[g]);
        free(p->owners[g]);
    }
    *p = (mx_kv_pool){0};
}

int32_t mx_kv_take(mx_kv_pool *p, int group) {
    if (p->n_free[group] == 0) return -1;
    int32_t block = p->free_list[group][--p->n_free[group]];
    p->owners[group][block] = 1;
    return block;
}

void mx_kv_share(mx_kv_pool *p, int group, int32_t block) { p->owners[group][block]++; }

void mx_kv_give(mx_kv_pool *p, int group, int32_t block) {
    if (--p->owners[group][block] == 0) p->free_list[group][p->n_free[group]++] = block;
}

int mx_kv_need(int ctx, int window, int chunk, int block) {
    int64_t all = ((int64_t)ctx + block - 1) / block;
    if (window == 0) return (int)all;
    /* A step's oldest token sees window - 1 positions before it; the span may begin and end inside a block. */
    int64_t span = ((int64_t)window - 1 + chunk + block - 2) / block + 1;
    return (int)(span < all ? span : all);
}

int mx_kv_first(int pos, int window, int block) {
    return window == 0 || pos < window ? 0 : (pos - window + 1) / block;
}
