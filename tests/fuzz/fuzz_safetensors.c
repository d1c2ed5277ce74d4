/* fuzz_safetensors: any bytes as a safetensors file; those that start with '{' as the index of a good one instead. */
#include "fuzz.h"
#include "base/file.h"
#include "format/safetensors.h"
#include <string.h>

static char dir[64], index_path[128];

static void cleanup(void) { mx_remove_tree(dir, NULL); }

static void make_folder(void) {
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    char file[256], path[128];
    uint64_t len = sizeof header - 1;
    memcpy(file, &len, 8);
    memcpy(file + 8, header, len);
    memcpy(file + 8 + len, "xy", 2);
    strcpy(dir, "/tmp/mlxcel-fuzz-XXXXXX");
    if (!mkdtemp(dir)) abort();
    atexit(cleanup);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", dir);
    if (mx_file_write(path, file, (size_t)len + 10, NULL) != MX_OK) abort();
}

static void put_index(const uint8_t *data, size_t size) {
    FILE *f = fopen(index_path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mx_st *s = NULL;
    mx_err err = {0};
    mx_status st;
    if (size && data[0] == '{') {
        if (!*dir) make_folder();
        put_index(data, size);
        st = mx_st_open(&s, dir, &err);
    } else {
        st = mx_st_open_file(&s, fuzz_file(data, size), &err);
    }
    if (st != MX_OK) {
        if (!*err.msg || err.code != st || s) abort(); // a failure has its sentence and gives nothing
        return 0;
    }
    uint64_t sum = 0;
    volatile unsigned char seen = 0;
    for (size_t i = 0; i < mx_st_count(s); i++) {
        mx_st_tensor *t = mx_st_at(s, i);
        char buf[256];
        if (mx_st_find(s, t->name) != t) abort();
        mx_st_describe(t, buf, sizeof buf);
        const unsigned char *p = t->data;
        for (uint64_t k = 0; k < t->n_bytes; k++) seen ^= p[k]; // all of it is readable
        sum += t->n_bytes;
    }
    if (sum != mx_st_total_bytes(s) || sum > size + 2) abort();
    mx_st_free(s);
    return 0;
}
