/* store.h - where models live: paths, mlxcel's own store, the Hugging Face cache; and downloads from a hub.
 *
 * Store: ${MLXCEL_CACHE_DIR:-${XDG_CACHE_HOME:-~/.cache}/mlxcel}/models/<owner>/<name>/files. HF cache: HF_HUB_CACHE, HF_HOME/hub,
 * ~/.cache/huggingface/hub, as models--owner--name/snapshots/<commit> with refs/main. */
#ifndef MX_FORMAT_STORE_H
#define MX_FORMAT_STORE_H
#include "base/arena.h"
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

/* The folder of a model given as a path (a folder; a file inside one is refused with the folder's name), as owner/name or
 * as bare name when exactly one owner has it. MX_ENOTFOUND says where it looked and names `mlxcel pull`. A GGUF file or
 * URL is refused with the convert command that would make it usable. */
mx_status mx_store_resolve(char **dir, mx_arena *a, const char *ref, mx_err *err);

typedef struct {
    const char *id, *path; // "owner/name"
    uint64_t bytes;
    int64_t modified; // seconds since 1970
    bool own;         // in mlxcel's store (can be removed), not in the Hugging Face cache
} mx_store_entry;
mx_status mx_store_list(mx_store_entry **out, size_t *n, mx_arena *a, mx_err *err); // sorted by id
/* Remove from mlxcel's store only; a copy in the Hugging Face cache is MX_EINVAL with its path. */
mx_status mx_store_remove(const char *id, mx_err *err);

typedef struct {
    const char *revision;                                       // NULL: main
    int jobs;                                                   // files at once, 0: 4
    bool quiet;                                                 // no progress bar even on a terminal
    void (*progress)(void *arg, uint64_t done, uint64_t total); // or NULL
    void *arg;
    const volatile int *cancel; // nonzero stops, or NULL
} mx_pull_options;
/* Download owner/name into the store from HF_ENDPOINT (https://huggingface.co) with HF_TOKEN. Files at the top of the
 * repository: *.json, *.safetensors, *.jinja, tokenizer files, *.txt, *.model, *.tiktoken (and additional_chat_templates);
 * several at once, resumed from what an earlier pull left, checked against size and hash (LFS sha256; git blob sha1). The
 * model's folder appears only when complete; .mlxcel.json in it names the commit, so that pulling again fetches only what
 * has changed. A second pull of the same model waits for the first. */
mx_status mx_store_pull(char **dir, mx_arena *a, const char *id, const mx_pull_options *opt, mx_err *err);

#endif
