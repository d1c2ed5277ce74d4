/* fuzz_gguf: any bytes as a GGUF file; what opens is read to its last value. */
#include "fuzz.h"
#include "format/gguf.h"
#include "format/gguf_dequant.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mx_gguf *g = NULL;
    mx_err err = {0};
    mx_status st = mx_gguf_open(&g, fuzz_file(data, size), &err);
    if (st != MX_OK) {
        if (!*err.msg || err.code != st || g) abort();
        return 0;
    }
    char buf[512];
    volatile double sum = 0;
    mx_gguf_summary(g, buf, sizeof buf);
    for (size_t i = 0; i < mx_gguf_n_kv(g); i++) {
        const mx_gguf_kv *kv = mx_gguf_kv_at(g, i);
        if (mx_gguf_get(g, kv->key) != kv) abort();
        mx_gguf_iter it = mx_gguf_strings(kv);
        while (mx_gguf_next(&it))
            for (size_t k = 0; k < it.len; k++) sum += it.p[k];
        for (uint64_t k = 0; mx_gguf_is_num(kv) && k < kv->n; k++) sum += mx_gguf_num_at(kv, k);
    }
    for (size_t i = 0; i < mx_gguf_n_tensor(g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        if (mx_gguf_find(g, t->name) != t || t->n_bytes > size) abort();
        float v[256];
        int block = mx_ggml_block(t->type), bytes = mx_ggml_bytes(t->type);
        for (int64_t k = 0; mx_gguf_can_dequant(t->type) && k < t->n_value / block; k++) {
            if (mx_gguf_dequant(t->type, (const char *)t->data + k * bytes, block, v, &err) != MX_OK) abort();
            sum += v[0];
        }
    }
    mx_gguf_free(g);
    return 0;
}
