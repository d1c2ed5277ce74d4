/* safetensors_impl.h - what safetensors.c (one file) and safetensors_dir.c (a folder) share. */
#ifndef MX_FORMAT_SAFETENSORS_IMPL_H
#define MX_FORMAT_SAFETENSORS_IMPL_H
#include "base/file.h"
#include "format/safetensors.h"

typedef struct {
    mx_map map;
    const char *name; // base name, in the arena
} mx_st_file;

typedef struct {
    const char *key, *value;
} mx_st_meta;

struct mx_st {
    mx_arena arena; // names and metadata
    mx_st_file *file;
    size_t n_file;
    mx_st_tensor *t; // in order of files, then of offsets
    size_t n, cap;
    uint32_t *slot; // hash table of n_slot (a power of two) entries: index into t plus 1, 0 is free
    size_t n_slot;
    uint64_t seed; // random, so that a crafted file cannot make the names collide
    uint64_t total;
    mx_st_meta *meta;
    size_t n_meta;
};

/* An empty set with room for n_file files. */
mx_status mx_st_new(mx_st **out, size_t n_file, mx_err *err);
/* Map path, validate all of it and append its tensors. */
mx_status mx_st_add_file(mx_st *s, const char *path, mx_err *err);
/* After the last file: build the table of names. A name that occurs twice is an error. */
mx_status mx_st_index_names(mx_st *s, mx_err *err);

/* A name out of a file, made fit for a message: control characters become '?', a long one is cut. */
enum { MX_ST_SHOWN = 112 };
const char *mx_st_show(char buf[MX_ST_SHOWN], const char *name, size_t len);

#endif
