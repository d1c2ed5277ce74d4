/* stats.c - what a launch did, as a line of JSON: for a roofline. Counts are exact; LDS passes follow a model (ops_lds.c). */
#include "machine.h"

void emu_write_stats(const emu_launch *l, const emu_func *f, emu_worker *const *k, int n,
                     uint64_t unique_lines);

void emu_write_stats(const emu_launch *l, const emu_func *f, emu_worker *const *k, int n,
                     uint64_t unique_lines) {
    uint64_t class[EMU_CLASSES] = {0}, total = 0, wmma = 0;
    FILE *out = fopen(emu_cfg.stats, "a");
    if (!out) return;
    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < f->n_op; j++)
            class[f->ops[j].cls] += k[i]->counts[j], total += k[i]->counts[j];
    wmma = class[EMU_WMMA];
#define SUM(field)                                                                                           \
    ({                                                                                                       \
        uint64_t s = 0;                                                                                      \
        for (int i = 0; i < n; i++) s += k[i]->field;                                                        \
        (unsigned long long)s;                                                                               \
    })
    fprintf(
        out,
        "{\"kernel\":\"%s\",\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"waves\":%llu,\"vgprs\":%u,\"lds\":%u,\"scratch\":%u,\"instructions\":%llu,\"lanes\":%llu",
        l->kernel->name, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
        SUM(waves_run), l->kernel->vgprs, l->kernel->lds + l->dynamic_lds, l->kernel->scratch,
        (unsigned long long)total, SUM(lanes));
    for (int c = 0; c < EMU_CLASSES; c++)
        fprintf(out, ",\"%s\":%llu", emu_class_names[c], (unsigned long long)class[c]);
    fprintf(
        out,
        ",\"load_bytes\":%llu,\"store_bytes\":%llu,\"atomic_bytes\":%llu,\"smem_bytes\":%llu,\"lds_bytes\":%llu,\"lines\":%llu,\"unique_lines\":%llu,\"lds_passes\":%llu,\"lds_accesses\":%llu,"
        "\"matrix_flops\":%llu}\n",
        SUM(load_bytes), SUM(store_bytes), SUM(atomic_bytes), SUM(smem_bytes), SUM(lds_bytes_moved),
        SUM(lines), (unsigned long long)unique_lines, SUM(lds_passes), SUM(lds_accesses),
        (unsigned long long)wmma * 8192);
    fclose(out);
}
