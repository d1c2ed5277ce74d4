/* fuzz_config: any bytes as config.json (first part) and generation_config.json (after a 0xFF byte). */
#include "base/file.h"
#include "format/config.h"
#include "model/arch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];
static mx_arch arch;

static void cleanup(void) { mx_remove_tree(dir, NULL); }

static void put(const char *name, const uint8_t *p, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!*dir) {
        strcpy(dir, "/tmp/mlxcel-fuzz-XXXXXX");
        if (!mkdtemp(dir)) abort();
        atexit(cleanup);
    }
    const uint8_t *cut = memchr(data, 0xFF, size);
    size_t n = cut ? (size_t)(cut - data) : size;
    put("config.json", data, n);
    put("generation_config.json", cut ? cut + 1 : (const uint8_t *)"{}", cut ? size - n - 1 : 2);
    mx_config *c;
    mx_err err;
    if (mx_config_open(&c, dir, &err) != MX_OK) return 0;
    const mx_family *family;
    const char *token;
    int32_t ids[16];
    mx_status st = mx_arch_describe(&arch, &family, c, &err);
    if (st != MX_OK && (!*err.msg || err.code != st)) abort(); // a failure always has its sentence
    mx_config_eos(c, ids, 16, &token);
    mx_config_quant(c, "model.layers.0.mlp.up_proj");
    mx_config_unused_quant(c);
    mx_config_foreign_quant(c);
    mx_config_free(c);
    return 0;
}
