/* store_impl.h - what the store (store.c) and the downloads (pull.c) share: places and names. */
#ifndef MX_FORMAT_STORE_IMPL_H
#define MX_FORMAT_STORE_IMPL_H
#include "base/arena.h"
#include "base/err.h"
#include <stdbool.h>

/* The store's folder of models; the Hugging Face cache; the user's Hugging Face folder (for its token). In a. */
mx_status mx_store_root(char **out, mx_arena *a, mx_err *err);
mx_status mx_store_hf_cache(char **out, mx_arena *a, mx_err *err);
mx_status mx_store_hf_home(char **out, mx_arena *a, mx_err *err);

/* "owner/name" as the hub allows it: letters, digits, '-', '_', '.', neither part starting with '.' or '-'. */
bool mx_store_valid_id(const char *id);

/* Beside the model's folder <root>/owner/name: ".name.lock", ".name.download". */
char *mx_store_beside(mx_arena *a, const char *root, const char *id, const char *suffix);

/* Take the lock of a model: only one process may change it. *fd is -1 and the status MX_OK if another has it. */
mx_status mx_store_lock(int *fd, const char *path, mx_err *err);
void mx_store_unlock(int fd, const char *path);

#endif
