/* file.h - whole files: map, read, write atomically; and the few path helpers that several modules need. */
#ifndef MX_BASE_FILE_H
#define MX_BASE_FILE_H
#include "base/arena.h"
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file mapped read-only. The mapping outlives the descriptor. p is NULL for an empty file. */
typedef struct {
    const char *p;
    size_t len;
} mx_map;

/* MX_ENOTFOUND if path does not exist, MX_EIO for the rest (a directory, a device, no permission). */
mx_status mx_map_open(mx_map *out, const char *path, mx_err *err);
void mx_map_close(mx_map *m);

/* Read a regular file or pipe of at most max bytes into the arena, NUL-terminated. MX_ELIMIT if it is longer. */
mx_status mx_file_read(char **out, size_t *len, mx_arena *a, const char *path, size_t max, mx_err *err);

/* A file that appears under its name only when it is complete: written as "path.partial-PID" beside it, then
 * synced and renamed. abort (or a crash) leaves nothing under the final name; abort accepts a zeroed struct. */
typedef struct {
    int fd;
    bool open;
    char *tmp, *path;
} mx_outfile;
mx_status mx_outfile_open(mx_outfile *f, const char *path, mx_err *err);
mx_status mx_outfile_write(mx_outfile *f, const void *p, size_t len, mx_err *err); // "disk full" says so
mx_status mx_outfile_commit(mx_outfile *f, mx_err *err);
void mx_outfile_abort(mx_outfile *f);

/* open + write + commit. */
mx_status mx_file_write(const char *path, const void *p, size_t len, mx_err *err);

mx_status mx_mkdirs(const char *path, mx_err *err); // like mkdir -p
bool mx_is_dir(const char *path);
bool mx_is_file(const char *path);                       // a regular file, links followed
int64_t mx_file_size(const char *path);                  // -1 if there is none
mx_status mx_remove_tree(const char *path, mx_err *err); // links are removed, not followed

/* "dir/name" in the arena (no double slash); the part after the last slash, borrowed. */
char *mx_path_join(mx_arena *a, const char *dir, const char *name);
const char *mx_path_base(const char *path);

#endif
