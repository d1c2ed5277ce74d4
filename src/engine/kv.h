/* kv.h - which blocks of the KV pools belong to whom.
 *
 * The pools themselves are the model's (mx_cache). Here are only numbers: for each KV group a stack of free blocks and a
 * count of owners for each block, so that sequences can share one. A block goes back when its last owner lets go. */
#ifndef MX_ENGINE_KV_H
#define MX_ENGINE_KV_H
#include "backend/backend.h"

typedef struct {
    int n_group;
    int n_block[MX_KV_GROUPS], n_free[MX_KV_GROUPS];
    int32_t *free_list[MX_KV_GROUPS]; // a stack; its top is taken next
    int32_t *owners[MX_KV_GROUPS];    // [n_block]; 0: free
} mx_kv_pool;

mx_status mx_kv_init(mx_kv_pool *p, int n_group, const int *n_block, mx_err *err);
void mx_kv_free(mx_kv_pool *p);                            // accepts a zeroed one
int32_t mx_kv_take(mx_kv_pool *p, int group);              // a free block, now with one owner; -1: none left
void mx_kv_share(mx_kv_pool *p, int group, int32_t block); // one more owner
void mx_kv_give(mx_kv_pool *p, int group, int32_t block);  // one owner less

/* Blocks that a sequence of ctx positions needs at most in a group with this window (0: none) when a step brings up to
 * chunk new positions. */
int mx_kv_need(int ctx, int window, int chunk, int block);
/* The first block that a token at position pos still sees through the window; those before it can be given back. */
int mx_kv_first(int pos, int window, int block);

#endif
