/* elf.c - AMD code objects: versions 5 and 6, segments, relocations, kernel descriptors, and the metadata note's list of arguments. */
#include "emu.h"
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NO_BINARY = 209, INVALID_IMAGE = 200, OUT_OF_MEMORY = 2 };
enum { MACHINE_AMDGPU = 224, OSABI_HSA = 64, NOTE_METADATA = 32 };
enum {
    GIVEN,
    BLOCKS_X,
    BLOCKS_Y,
    BLOCKS_Z,
    GROUP_X,
    GROUP_Y,
    GROUP_Z,
    DIMS,
    DYNAMIC_LDS,
    PRIVATE_BASE,
    SHARED_BASE,
    ZERO
};
static const char *const kinds[] = {"",
                                    "hidden_block_count_x",
                                    "hidden_block_count_y",
                                    "hidden_block_count_z",
                                    "hidden_group_size_x",
                                    "hidden_group_size_y",
                                    "hidden_group_size_z",
                                    "hidden_grid_dims",
                                    "hidden_dynamic_lds_size",
                                    "hidden_private_base",
                                    "hidden_shared_base"};

/* ---- MessagePack: just enough of it ------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *p, *end;
} pack;
static uint64_t big(pack *k, int n) {
    uint64_t v = 0;
    while (n--) v = v << 8 | (k->p < k->end ? *k->p++ : 0);
    return v;
}
typedef struct {
    enum { P_INT, P_STR, P_MAP, P_ARRAY, P_OTHER } type;
    uint64_t n; // value, length, entries
    const char *s;
} item;
static item next(pack *k) {
    const uint8_t c = (uint8_t)big(k, 1);
    item r = {P_OTHER, 0, NULL};
    if (c < 0x80) return (item){P_INT, c, NULL};
    if (c < 0x90) return (item){P_MAP, c & 15, NULL};
    if (c < 0xA0) return (item){P_ARRAY, c & 15, NULL};
    if (c < 0xC0)
        r = (item){P_STR, c & 31, NULL};
    else if (c >= 0xD9 && c <= 0xDB)
        r = (item){P_STR, big(k, 1 << (c - 0xD9)), NULL};
    else if (c >= 0xCC && c <= 0xCF)
        return (item){P_INT, big(k, 1 << (c - 0xCC)), NULL};
    else if (c >= 0xD0 && c <= 0xD3)
        return (item){P_INT, big(k, 1 << (c - 0xD0)), NULL};
    else if (c == 0xDC || c == 0xDD)
        return (item){P_ARRAY, big(k, c == 0xDC ? 2 : 4), NULL};
    else if (c == 0xDE || c == 0xDF)
        return (item){P_MAP, big(k, c == 0xDE ? 2 : 4), NULL};
    if (r.type == P_STR) {
        if (r.n > (uint64_t)(k->end - k->p)) r.n = (uint64_t)(k->end - k->p);
        r.s = (const char *)k->p;
        k->p += r.n;
    }
    return r;
}
static void skip(pack *k) {
    item v = next(k);
    uint64_t n = v.type == P_MAP ? 2 * v.n : v.type == P_ARRAY ? v.n : 0;
    while (n-- && k->p < k->end) skip(k);
}
static bool is(const item *i, const char *s) {
    return i->type == P_STR && i->n == strlen(s) && !memcmp(i->s, s, i->n);
}

static void read_args(pack *k, emu_kernel *out) {
    item list = next(k);
    for (uint64_t i = 0; i < list.n && k->p < k->end; i++) {
        item map = next(k);
        uint64_t offset = 0, size = 0;
        int kind = GIVEN;
        for (uint64_t j = 0; j < map.n; j++) {
            item key = next(k);
            if (is(&key, ".offset"))
                offset = next(k).n;
            else if (is(&key, ".size"))
                size = next(k).n;
            else if (is(&key, ".value_kind")) {
                item v = next(k);
                if (v.n > 7 && !memcmp(v.s, "hidden_", 7)) kind = ZERO;
                for (int q = 1; q < ZERO; q++)
                    if (is(&v, kinds[q])) kind = q;
            } else
                skip(k);
        }
        if (out->n_arg < 96) {
            out->args[out->n_arg].offset = (uint16_t)offset;
            out->args[out->n_arg].size = (uint16_t)size;
            out->args[out->n_arg++].kind = (uint8_t)kind;
        }
    }
}
static void read_kernel(pack *k, emu_kernel *out) {
    item map = next(k);
    for (uint64_t j = 0; j < map.n; j++) {
        item key = next(k);
        if (is(&key, ".args"))
            read_args(k, out);
        else if (is(&key, ".name")) {
            item v = next(k);
            snprintf(out->name, sizeof out->name, "%.*s", (int)v.n, v.s);
        } else if (is(&key, ".vgpr_count"))
            out->vgprs = (uint32_t)next(k).n;
        else if (is(&key, ".max_flat_workgroup_size"))
            out->max_threads = (uint32_t)next(k).n;
        else
            skip(k);
    }
}
static void read_metadata(emu_module *m, pack k) {
    item top = next(&k);
    for (uint64_t j = 0; j < top.n && k.p < k.end; j++) {
        item key = next(&k);
        if (!is(&key, "amdhsa.kernels")) {
            skip(&k);
            continue;
        }
        item list = next(&k);
        m->kernels = calloc(list.n + 1, sizeof *m->kernels);
        for (uint64_t i = 0; m->kernels && i < list.n && k.p < k.end; i++) {
            m->kernels[m->n_kernel].module = m;
            read_kernel(&k, &m->kernels[m->n_kernel++]);
        }
    }
}

/* ---- the object --------------------------------------------------------------------------------------------- */

static const char *arch_of(unsigned mach) {
    switch (mach & 0xFF) {
    case 0x41: return "gfx1100";
    case 0x46: return "gfx1101";
    case 0x47: return "gfx1102";
    case 0x44: return "gfx1103";
    case 0x43: return "gfx1150";
    case 0x4A: return "gfx1151";
    case 0x54: return "gfx11-generic";
    default: return "an architecture that is not emulated";
    }
}
static void symbols(emu_module *m, const uint8_t *image, const Elf64_Shdr *table, const Elf64_Shdr *strings,
                    uint64_t delta) {
    const Elf64_Sym *s = (const void *)(image + table->sh_offset);
    const size_t n = table->sh_size / sizeof *s;
    m->symbols = calloc(n + 1, sizeof *m->symbols);
    for (size_t i = 0; m->symbols && i < n; i++) {
        const char *name = (const char *)image + strings->sh_offset + s[i].st_name;
        const size_t len = strlen(name);
        if (ELF64_ST_TYPE(s[i].st_info) == STT_FUNC && s[i].st_size) {
            m->symbols[m->n_symbol].begin = s[i].st_value + delta;
            m->symbols[m->n_symbol].end = s[i].st_value + s[i].st_size + delta;
            snprintf(m->symbols[m->n_symbol++].name, 120, "%s", name);
        }
        if (len < 4 || strcmp(name + len - 3, ".kd")) continue;
        for (int k = 0; k < m->n_kernel; k++) {
            emu_kernel *e = &m->kernels[k];
            if (strlen(e->name) != len - 3 || memcmp(e->name, name, len - 3)) continue;
            const uint8_t *kd = (const uint8_t *)(s[i].st_value + delta);
            int64_t entry;
            uint16_t props;
            memcpy(&e->lds, kd, 4), memcpy(&e->scratch, kd + 4, 4), memcpy(&e->kernarg_bytes, kd + 8, 4),
                memcpy(&entry, kd + 16, 8);
            memcpy(&e->rsrc1, kd + 48, 4), memcpy(&e->rsrc2, kd + 52, 4), memcpy(&props, kd + 56, 2);
            e->properties = props;
            e->entry = (uint64_t)kd + (uint64_t)entry;
        }
    }
}
static bool relocate(const uint8_t *image, const Elf64_Shdr *rela, const Elf64_Sym *dynsym, uint64_t delta) {
    const Elf64_Rela *r = (const void *)(image + rela->sh_offset);
    for (size_t i = 0; i < rela->sh_size / sizeof *r; i++) {
        uint64_t v = (uint64_t)r[i].r_addend + delta;
        const unsigned type = ELF64_R_TYPE(r[i].r_info);
        if (type == 3)
            v += dynsym[ELF64_R_SYM(r[i].r_info)].st_value; // ABS64
        else if (type != 13)
            return false; // RELATIVE64
        memcpy((void *)(r[i].r_offset + delta), &v, 8);
    }
    return true;
}

int emu_load(emu_module **out, const void *image, const char *arch) {
    const Elf64_Ehdr *e = image;
    const uint8_t *b = image;
    *out = NULL;
    if (memcmp(b, ELFMAG, SELFMAG) || e->e_machine != MACHINE_AMDGPU || e->e_ident[EI_OSABI] != OSABI_HSA ||
        !e->e_phnum) {
        emu_log("module: this is not a code object");
        return INVALID_IMAGE;
    }
    const char *is_for = arch_of(e->e_flags);
    const int version = e->e_ident[EI_ABIVERSION] + 2; // 3 is version 5
    const bool generic = !strcmp(is_for, "gfx11-generic") && !strncmp(arch, "gfx11", 5);
    if ((strcmp(is_for, arch) && !generic) || version < 5 || version > 6) {
        emu_log("module: a code object of version %d for %s does not run on %s", version, is_for, arch);
        return NO_BINARY;
    }
    emu_module *m = calloc(1, sizeof *m);
    const Elf64_Phdr *ph = (const void *)(b + e->e_phoff);
    if (!m) return OUT_OF_MEMORY;
    snprintf(m->arch, sizeof m->arch, "%s", is_for);
    for (int i = 0; i < e->e_phnum; i++)
        if (ph[i].p_type == PT_LOAD && ph[i].p_vaddr + ph[i].p_memsz > m->bytes)
            m->bytes = ph[i].p_vaddr + ph[i].p_memsz;
    m->base = mmap(NULL, m->bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED) {
        free(m);
        return OUT_OF_MEMORY;
    }
    for (int i = 0; i < e->e_phnum; i++) {
        if (ph[i].p_type == PT_LOAD) memcpy(m->base + ph[i].p_vaddr, b + ph[i].p_offset, ph[i].p_filesz);
        if (ph[i].p_type != PT_NOTE) continue;
        for (uint64_t at = 0; at + 12 < ph[i].p_filesz;) {
            uint32_t h[3];
            memcpy(h, b + ph[i].p_offset + at, 12);
            const uint8_t *d = b + ph[i].p_offset + at + 12 + ((h[0] + 3) & ~3u);
            if (h[2] == NOTE_METADATA) read_metadata(m, (pack){d, d + h[1]});
            at += 12 + ((h[0] + 3) & ~3u) + ((h[1] + 3) & ~3u);
        }
    }
    const Elf64_Shdr *sh = (const void *)(b + e->e_shoff);
    bool ok = true;
    for (int i = 0; i < e->e_shnum; i++)
        if (sh[i].sh_type == SHT_SYMTAB) symbols(m, b, &sh[i], &sh[sh[i].sh_link], (uint64_t)m->base);
    for (int i = 0; i < e->e_shnum; i++)
        if (sh[i].sh_type == SHT_RELA)
            ok &= relocate(b, &sh[i], (const void *)(b + sh[sh[i].sh_link].sh_offset), (uint64_t)m->base);
    for (int i = 0; i < m->n_kernel; i++) ok &= m->kernels[i].entry != 0;
    if (!ok || !m->n_kernel) {
        emu_log("module: a relocation or a kernel's descriptor that is not understood");
        emu_unload(m);
        return INVALID_IMAGE;
    }
    emu_register(m->base, m->bytes, MEM_CODE);
    *out = m;
    return 0;
}

void emu_unload(emu_module *m) {
    if (!m) return;
    emu_unregister(m->base);
    munmap(m->base, m->bytes + 4096);
    for (size_t i = 0; i < m->n_owned; i++) free(m->owned[i]);
    free(m->owned);
    free(m->kernels);
    free(m->symbols);
    free(m);
}

emu_kernel *emu_find_kernel(emu_module *m, const char *name) {
    for (int i = 0; i < m->n_kernel; i++)
        if (!strcmp(m->kernels[i].name, name)) return &m->kernels[i];
    return NULL;
}
const char *emu_symbol_at(const emu_module *m, uint64_t at) {
    for (int i = 0; i < m->n_symbol; i++)
        if (at >= m->symbols[i].begin && at < m->symbols[i].end) return m->symbols[i].name;
    return "?";
}

void emu_fill_args(const emu_kernel *k, uint8_t *kernarg, void **params, const uint32_t grid[3],
                   const uint32_t block[3], uint32_t dynamic_lds) {
    int given = 0;
    for (int i = 0; i < k->n_arg; i++) {
        uint64_t v = 0;
        const unsigned n = k->args[i].size;
        switch (k->args[i].kind) {
        case GIVEN: memcpy(kernarg + k->args[i].offset, params[given++], n); continue;
        case BLOCKS_X:
        case BLOCKS_Y:
        case BLOCKS_Z: v = grid[k->args[i].kind - BLOCKS_X]; break;
        case GROUP_X:
        case GROUP_Y:
        case GROUP_Z: v = block[k->args[i].kind - GROUP_X]; break;
        case DIMS: v = grid[2] * block[2] > 1 ? 3 : grid[1] * block[1] > 1 ? 2 : 1; break;
        case DYNAMIC_LDS: v = dynamic_lds; break;
        case PRIVATE_BASE: v = 0x20000; break; // machine.h: the upper halves of flat addresses
        case SHARED_BASE: v = 0x10000; break;
        }
        memcpy(kernarg + k->args[i].offset, &v, n);
    }
}
