/* decode.c - from machine code to ops, by way of LLVM's disassembler: an instruction is known by its text, and one that is not in the
 * tables is an error with that text. A function is decoded once, when it is first run.
 *
 * A signature has a letter for each printed operand:
 *   d vector destination   D several registers of them   h half of one   t scalar destination   T several   c scalar carry out
 *   A destination that is there with glc only
 *   u f integer or f32 source   q r 64-bit integer or f64   w e half-register integer or f16   p pair of f16   m f32 or f16 (mixed)
 *   s scalar source   x 64-bit scalar   k 16-bit immediate, sign-extended   i immediate   O offset of a scalar load
 *   a vector address (slot 0)   g scalar base or off (slot 1)   V data (slot 2)   W second data (slot 1)
 *   b branch target   + the destination is also the last source   x in front of a compare: writes EXEC   * not read */
#include "machine.h"
#include <llvm-c/Disassembler.h>
#include <llvm-c/Target.h>
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>

const char *const emu_class_names[EMU_CLASSES] = {"salu",  "valu",   "trans", "wmma",   "smem", "load",
                                                  "store", "atomic", "lds",   "branch", "sync"};
void emu_dpp(emu_wave *w, const emu_op *o);

/* ---- the tables ---------------------------------------------------------------------------------------------- */

static const emu_def *defs[2048];
static int n_def;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int by_name(const void *a, const void *b) {
    return strcmp((*(emu_def *const *)a)->name, (*(emu_def *const *)b)->name);
}
static void gather(void) {
    const emu_def *const all[] = {emu_ops_scalar, emu_ops_int, emu_ops_compare, emu_ops_float, emu_ops_half,
                                  emu_ops_memory, emu_ops_lds, emu_ops_lane,    emu_ops_matrix};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        for (const emu_def *d = all[t]; d->name; d++) defs[n_def++] = d;
    qsort(defs, (size_t)n_def, sizeof *defs, by_name);
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
}
static const emu_def *lookup(const char *name) {
    int lo = 0, hi = n_def - 1;
    while (lo <= hi) {
        const int mid = (lo + hi) / 2, c = strcmp(name, defs[mid]->name);
        if (c == 0) return defs[mid];
        if (c < 0)
            hi = mid - 1;
        else
            lo = mid + 1;
    }
    return NULL;
}
const emu_def *emu_lookup(const char *name) {
    pthread_once(&once, gather);
    return lookup(name);
}

/* ---- memory of a module ---------------------------------------------------------------------------------------- */

void *emu_keep(emu_module *m, size_t bytes) {
    void *p = aligned_alloc(128, (bytes + 127) & ~(size_t)127);
    void **grown = realloc(m->owned, (m->n_owned + 1) * sizeof *grown);
    if (!p || !grown) abort();
    m->owned = grown;
    m->owned[m->n_owned++] = p;
    return memset(p, 0, bytes);
}
struct emu_const {
    uint64_t value;
    U *lanes; // low and high word, each in every lane
    struct emu_const *next;
};
static U *constant(emu_module *m, uint64_t v) {
    struct emu_const **at = &m->consts[(v ^ v >> 10 ^ v >> 20 ^ v >> 32) & 1023];
    for (struct emu_const *c = *at; c; c = c->next)
        if (c->value == v) return c->lanes;
    struct emu_const *c = emu_keep(m, sizeof *c);
    c->value = v;
    c->lanes = emu_keep(m, 2 * sizeof(U));
    c->lanes[0] = (U)((uint32_t)v);
    c->lanes[1] = (U)((uint32_t)(v >> 32));
    c->next = *at;
    *at = c;
    return c->lanes;
}
static uint64_t *scalar_constant(emu_module *m,
                                 uint64_t v) { // in memory the words lie side by side: a U of them twice
    U *lanes = constant(m, v);
    uint64_t *p = emu_keep(m, sizeof *p);
    (void)lanes;
    *p = v;
    return p;
}

/* ---- operands --------------------------------------------------------------------------------------------------- */

typedef struct {
    enum { O_VGPR, O_SGPR, O_CONST, O_OFF, O_SCC } kind;
    unsigned reg, n;
    uint64_t value;
    double number; // of an inline float
    bool is_float, neg, abs, hi, has_half;
} operand;

static bool named(const char *s, operand *p) {
    static const struct {
        const char *name;
        int reg, n;
    } names[] = {{"vcc_lo", VCC, 1},       {"vcc_hi", VCC + 1, 1}, {"vcc", VCC, 2}, {"exec_lo", EXEC, 1},
                 {"exec_hi", EXEC + 1, 1}, {"exec", EXEC, 2},      {"m0", M0, 1},   {"null", NUL, 1}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(s, names[i].name)) continue;
        *p = (operand){.kind = O_SGPR,
                       .reg = (unsigned)names[i].reg,
                       .n = (unsigned)names[i].n,
                       .neg = p->neg,
                       .abs = p->abs};
        return true;
    }
    return false;
}
static bool parse(char *s, operand *p) {
    *p = (operand){0};
    if (*s == '-' && (s[1] == 'v' || s[1] == 's' || s[1] == '|' || s[1] == 'm' || s[1] == 'e'))
        p->neg = true, s++;
    if (!strncmp(s, "neg(", 4)) {
        p->neg = true;
        s += 4;
        s[strlen(s) - 1] = 0;
    }
    if (*s == '|') {
        p->abs = true;
        s++;
        s[strlen(s) - 1] = 0;
    }
    if (!strncmp(s, "lit(", 4)) s += 4, s[strlen(s) - 1] = 0;
    if (!strncmp(s, "lit64(", 6)) s += 6, s[strlen(s) - 1] = 0;
    if (named(s, p)) return true;
    if (!strcmp(s, "off")) {
        p->kind = O_OFF;
        return true;
    }
    if (!strcmp(s, "src_scc") || !strcmp(s, "scc")) {
        p->kind = O_SCC;
        return true;
    }
    p->kind = O_CONST;
    if (!strcmp(s, "src_shared_base")) {
        p->value = (uint64_t)SHARED_APERTURE << 32;
        return true;
    }
    if (!strcmp(s, "src_private_base")) {
        p->value = (uint64_t)PRIVATE_APERTURE << 32;
        return true;
    }
    if (!strncmp(s, "ttmp", 4)) return false;
    if ((*s == 'v' || *s == 's') && (isdigit((unsigned char)s[1]) || s[1] == '[')) {
        char *end;
        p->kind = *s == 'v' ? O_VGPR : O_SGPR;
        p->n = 1;
        if (s[1] == '[') {
            p->reg = (unsigned)strtoul(s + 2, &end, 10);
            if (*end == ':') p->n = (unsigned)strtoul(end + 1, &end, 10) - p->reg + 1;
            if (*end != ']') return false;
            end++;
        } else {
            p->reg = (unsigned)strtoul(s + 1, &end, 10);
        }
        if (!strcmp(end, ".l") || !strcmp(end, ".h"))
            p->has_half = true, p->hi = end[1] == 'h';
        else if (*end)
            return false;
        return true;
    }
    char *end;
    if (strchr(s, '.') && strncmp(s, "0x", 2)) {
        p->is_float = true;
        p->number = strtod(s, &end);
        if (!strcmp(s, "0.15915494") || !strcmp(s, "0.15915494309189532") || !strcmp(s, "0.1592") ||
            !strcmp(s, "0.15915494309189535"))
            p->number = 0.15915494309189532;
        return *end == 0;
    }
    p->value = *s == '-' ? (uint64_t)strtoll(s, &end, 0) : strtoull(s, &end, 0);
    return end != s && *end == 0;
}
static uint64_t value_for(char letter, const operand *p) { // inline floats by the type of the operand
    if (!p->is_float) return p->value;
    const float f = (float)p->number;
    const bool small = letter == 'e' || letter == 'w' || letter == 'p';
    if (letter == 'q' || letter == 'r' || letter == 'x') return __builtin_bit_cast(uint64_t, p->number);
    if (small) return __builtin_bit_cast(uint16_t, (_Float16)f);
    return __builtin_bit_cast(uint32_t, f);
}
static void use(emu_op *o, unsigned first, unsigned n) {
    for (unsigned r = first; r < first + n && r < 384; r++) o->uses[r >> 6] |= 1ull << (r & 63);
}
static void source(emu_module *m, emu_op *o, char letter, const operand *p, bool reads_wait) {
    const int i = o->n_src++;
    const bool scalar = strchr("sxkiO", letter) != NULL;
    o->r[i] = 0xFFFF;
    if (p->neg) o->neg |= (uint8_t)(1 << i);
    if (p->abs) o->abs |= (uint8_t)(1 << i);
    if (p->has_half && p->hi) o->half |= (uint8_t)(1 << i);
    if (p->kind == O_VGPR) {
        o->r[i] = (uint16_t)p->reg;
        o->a[i] = (emu_src){~(uintptr_t)0, offsetof(emu_wave, v) + p->reg * sizeof(U)};
        if (reads_wait) use(o, p->reg, p->n);
    } else if (p->kind == O_SGPR) {
        o->r[i] = (uint16_t)(VGPRS + p->reg);
        o->a[i] = (emu_src){~(uintptr_t)0, scalar ? offsetof(emu_wave, s) + p->reg * 4
                                                  : offsetof(emu_wave, sv) + p->reg * sizeof(U)};
        if (reads_wait) use(o, VGPRS + p->reg, p->n);
    } else if (p->kind == O_SCC) {
        o->a[i] = (emu_src){~(uintptr_t)0, offsetof(emu_wave, scc)};
    } else {
        uint64_t v = value_for(letter, p);
        if (letter == 'k') v = (uint64_t)(int64_t)(int16_t)v;
        if (p->neg && p->is_float == false && letter == 'x') v = 0 - v;
        o->a[i] = (emu_src){0, scalar ? (uintptr_t)scalar_constant(m, v) : (uintptr_t)constant(m, v)};
    }
}

/* ---- modifiers --------------------------------------------------------------------------------------------------- */

static unsigned bits_of(const char *list) { // "[1,0,1]" with the first as bit 0
    unsigned r = 0, i = 0;
    for (; *list && *list != ']'; list++)
        if (isdigit((unsigned char)*list)) r |= (unsigned)(*list - '0') << i++;
    return r;
}
static bool dpp_lanes(const char *word, uint8_t *lanes) {
    int n = 0;
    char kind[32];
    const char *colon = strchr(word, ':');
    snprintf(kind, sizeof kind, "%.*s", colon ? (int)(colon - word) : 31, word);
    if (colon) n = (int)strtol(colon + 1, NULL, 0);
    for (int i = 0; i < LANES; i++) {
        const int row = i & ~15, at = i & 15;
        int from = -1;
        if (!strcmp(kind, "quad_perm"))
            from = (i & ~3) | (colon[2 + 2 * (i & 3)] - '0');
        else if (!strcmp(kind, "dpp8"))
            from = (i & ~7) | (colon[2 + 2 * (i & 7)] - '0');
        else if (!strcmp(kind, "row_shl"))
            from = at + n < 16 ? i + n : -1;
        else if (!strcmp(kind, "row_shr"))
            from = at - n >= 0 ? i - n : -1;
        else if (!strcmp(kind, "row_ror"))
            from = row | ((at - n) & 15);
        else if (!strcmp(kind, "row_mirror"))
            from = row | (15 - at);
        else if (!strcmp(kind, "row_half_mirror"))
            from = (i & ~7) | (7 - (i & 7));
        else if (!strcmp(kind, "row_share"))
            from = row | n;
        else if (!strcmp(kind, "row_xmask"))
            from = row | (at ^ n);
        else
            return false;
        lanes[i] = from < 0 ? 0xFF : (uint8_t)from;
    }
    return true;
}
/* One word behind the operands. False: not known. */
static bool modifier(emu_module *m, emu_op *o, char *word, bool halves) {
    char *colon = strchr(word, ':');
    const char *v = colon ? colon + 1 : "";
    const long n = strtol(v, NULL, 0);
    uint8_t lanes[LANES];
    if (!strncmp(word, "offset:", 7) || !strncmp(word, "offset0:", 8)) {
        o->off = (int32_t)n;
        if (!strncmp(v, "swizzle(",
                     8)) { // ds_swizzle prints its pattern by name: the bits are in the instruction
            uint16_t raw;
            memcpy(&raw, (const void *)o->pc, 2);
            o->off = raw;
        }
        return true;
    }
    if (!strncmp(word, "offset1:", 8)) {
        o->off1 = (int32_t)n;
        return true;
    }
    if (!strcmp(word, "glc")) {
        o->glc = true;
        return true;
    }
    if (!strcmp(word, "slc") || !strcmp(word, "dlc") || !strcmp(word, "off")) return true;
    if (!strcmp(word, "clamp")) {
        o->clamp = 1;
        return true;
    }
    if (!strncmp(word, "mul:", 4) || !strncmp(word, "div:", 4)) {
        o->omod = 1;
        return true;
    }
    if (!strncmp(word, "op_sel:", 7)) {
        if (!halves) o->op_sel = (uint8_t)bits_of(v);
        return true;
    }
    if (!strncmp(word, "op_sel_hi:", 10)) {
        o->op_sel_hi = (uint8_t)bits_of(v);
        return true;
    }
    if (!strncmp(word, "neg_lo:", 7)) {
        o->neg_lo = (uint8_t)bits_of(v);
        return true;
    }
    if (!strncmp(word, "neg_hi:", 7)) {
        o->neg_hi = (uint8_t)bits_of(v);
        return true;
    }
    if (!strncmp(word, "row_mask:", 9)) {
        o->row_mask = (uint8_t)n;
        return true;
    }
    if (!strncmp(word, "bank_mask:", 10)) {
        o->bank_mask = (uint8_t)n;
        return true;
    }
    if (!strncmp(word, "bound_ctrl:", 11)) {
        o->bound_ctrl = true;
        return true;
    }
    if (!strncmp(word, "fi:", 3)) {
        o->fetch_inactive = n != 0;
        return true;
    }
    if (!dpp_lanes(word, lanes)) return false;
    if (!strncmp(word, "dpp8", 4)) o->bound_ctrl = true;
    o->lanes = memcpy(emu_keep(m, LANES), lanes, LANES);
    return true;
}

/* ---- one instruction ----------------------------------------------------------------------------------------------- */

static bool ends(char *s, const char *suffix) {
    const size_t n = strlen(s), k = strlen(suffix);
    if (n < k || strcmp(s + n - k, suffix)) return false;
    s[n - k] = 0;
    return true;
}
/* Cut at spaces and commas outside brackets, in place. */
static int split(char *s, char **out, int max, int *n_operand) {
    int n = 0, deep = 0;
    bool more = true; // an operand follows: after the mnemonic or a comma
    *n_operand = 0;
    while (*s) {
        while (*s == ' ' || *s == '\t') s++;
        if (!*s || n == max) break;
        out[n++] = s;
        if (more) *n_operand = n;
        for (; *s && (deep || (*s != ' ' && *s != ',' && *s != '\t')); s++) {
            if (*s == '[' || *s == '(') deep++;
            if (*s == ']' || *s == ')') deep--;
        }
        while (*s == ' ' || *s == '\t') *s++ = 0;
        more = *s == ',';
        if (more) *s++ = 0;
    }
    return n;
}
/* text is "mnemonic operands modifiers"; vcc_operand: VOPD leaves the mask of cndmask out. */
static bool build(emu_module *m, emu_op *o, char *text, const emu_def **def_out, uint64_t *branch) {
    char name[96], *rest = text + strcspn(text, " \t"), *words[24];
    int n_operand = 0;
    snprintf(name, sizeof name, "%.*s", (int)(rest - text), text);
    const bool dual = !strncmp(name, "v_dual_", 7);
    if (dual) memmove(name + 2, name + 7, strlen(name + 7) + 1);
    bool dpp = ends(name, "_dpp");
    dpp |= ends(name, "_dpp8");
    if (!ends(name, "_e32")) (void)ends(name, "_e64");
    const emu_def *def = lookup(name);
    if (!def) return false;
    *def_out = def;
    o->fn = def->fn;
    o->cls = def->cls;
    o->size = def->size;
    if (!def->fn || *def->sig == '*') return true;
    const int n = split(rest, words, 24, &n_operand);
    bool halves = false;
    const bool packed = !strncmp(name, "v_pk_", 5) || !strncmp(name, "v_dot", 5);
    o->op_sel_hi = packed ? 7 : 0;
    o->row_mask = o->bank_mask = 15;
    for (int i = 0; i < n_operand; i++) {
        const size_t k = strlen(words[i]);
        halves |= k > 2 && words[i][k - 2] == '.' && (words[i][k - 1] == 'l' || words[i][k - 1] == 'h');
    }
    for (int i = n_operand; i < n; i++) {
        char copy[96];
        snprintf(copy, sizeof copy, "%s", words[i]);
        if (!modifier(m, o, copy, halves && !packed)) return false;
    }
    const char *sig = def->sig;
    int at = 0;
    if (*sig == 'x' && !strncmp(name, "v_cmpx", 6)) o->d = EXEC, sig++;
    for (; *sig; sig++) {
        operand p;
        char word[96];
        if (*sig == '+') {
            p = (operand){.kind = O_VGPR, .reg = o->d, .n = 1};
            source(m, o, 'u', &p, true);
            continue;
        }
        if (*sig == 'A' && !o->glc) continue;
        if (at >= n_operand) {
            if (*sig != 's' || !dual) return false;
            p = (operand){.kind = O_SGPR, .reg = VCC, .n = 1};
        } else {
            snprintf(word, sizeof word, "%s", words[at++]);
            if (!parse(word, &p)) return false;
        }
        switch (*sig) {
        case 'd':
        case 'D':
        case 'h':
        case 'A':
            if (p.kind != O_VGPR) return false;
            o->d = (uint16_t)p.reg;
            o->nd = (uint8_t)p.n;
            o->d_half = p.has_half && p.hi;
            if (o->cls != EMU_LOAD && o->cls != EMU_LDS && o->cls != EMU_ATOMIC) use(o, p.reg, p.n);
            break;
        case 't':
        case 'T':
        case 'c':
            if (p.kind != O_SGPR) return false;
            if (*sig == 'c')
                o->d2 = (uint16_t)p.reg;
            else
                o->d = (uint16_t)p.reg, o->nd = (uint8_t)p.n;
            use(o, VGPRS + p.reg, p.n);
            break;
        case 'b': *branch = o->pc + 4 + 4 * (uint64_t)(int64_t)(int16_t)p.value; break;
        case 'a':
        case 'V':
        case 'W': {
            const int slot = *sig == 'a' ? 0 : *sig == 'V' ? 2 : 1;
            if (p.kind == O_OFF && *sig == 'a') {
                o->r[0] = 0xFFFF;
                break;
            }
            if (p.kind != O_VGPR) return false;
            o->r[slot] = (uint16_t)p.reg;
            if (p.has_half && p.hi) o->half |= (uint8_t)(1 << slot);
            if (slot == 0) o->r[3] = p.n == 2;
            use(o, p.reg, p.n);
            break;
        }
        case 'g':
            if (p.kind == O_OFF) {
                o->a[1] = (emu_src){0, (uintptr_t)scalar_constant(m, 0)};
            } else {
                const int before = o->n_src;
                o->n_src = 1;
                source(m, o, 'x', &p, true);
                o->n_src = (uint8_t)before;
                if (p.kind == O_SGPR && p.n == 2) o->r[3] = 0;
            }
            break;
        default: source(m, o, *sig, &p, true);
        }
    }
    if (at != n_operand) return false;
    if (dpp) {
        if (!o->lanes || o->r[0] >= VGPRS) return false;
        o->inner = o->fn;
        o->fn = emu_dpp;
        o->a[0] = (emu_src){~(uintptr_t)0, offsetof(emu_wave, t0)};
    }
    return true;
}

/* ---- two in one ------------------------------------------------------------------------------------------------------ */

static bool reads(const emu_op *o, unsigned reg) {
    for (int i = 0; i < o->n_src; i++)
        if (o->r[i] == reg) return true;
    return false;
}
/* Both halves of a VOPD read before either writes. Returns how many ops it became. */
static int order_pair(emu_op *x, emu_op *y, emu_op *third) {
    for (int i = 0; i < 6; i++) x->uses[i] |= y->uses[i];
    memcpy(y->uses, x->uses, sizeof y->uses);
    if (!reads(y, x->d)) return 2;
    if (!reads(x, y->d)) {
        const emu_op t = *x;
        *x = *y;
        *y = t;
        return 2;
    }
    const unsigned d = x->d;
    x->d = VGPRS; // the room at the end
    *third = (emu_op){.fn = emu_lookup("v_mov_b32")->fn,
                      .cls = EMU_VALU,
                      .d = (uint16_t)d,
                      .n_src = 1,
                      .pc = x->pc,
                      .text = x->text};
    third->a[0] = (emu_src){~(uintptr_t)0, offsetof(emu_wave, v) + VGPRS * sizeof(U)};
    return 3;
}

/* ---- a function --------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void no_op(emu_wave *w, const emu_op *o) { (void)w, (void)o; }

static emu_func *decode(emu_module *m, uint64_t begin, uint64_t end, char *why, size_t n_why) {
    LLVMDisasmContextRef dis = LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", m->arch, NULL, 0, NULL, NULL);
    const size_t words = (end - begin) / 4;
    emu_op *ops = aligned_alloc(128, ((words * 3 / 2 + 8) * sizeof *ops + 127) & ~(size_t)127);
    uint32_t *index = calloc(words + 1, sizeof *index);
    uint64_t *branch = calloc(words * 3 / 2 + 8, sizeof *branch);
    size_t n = 0;
    bool ok = dis && ops && index && branch;
    if (!ok) snprintf(why, n_why, "LLVM has no disassembler for %s", m->arch);
    for (uint64_t at = begin; ok && at < end;) {
        char text[400], *second;
        const size_t len = LLVMDisasmInstruction(dis, (uint8_t *)at, end - at, at, text, sizeof text);
        index[(at - begin) / 4] = (uint32_t)n;
        if (!len) {
            snprintf(why, n_why, "%s: no instruction at +0x%llx: 0x%08x", emu_symbol_at(m, at),
                     (unsigned long long)(at - begin), *(uint32_t *)at);
            ok = false;
            break;
        }
        char *start = text + strspn(text, " \t");
        char *kept = memcpy(emu_keep(m, strlen(start) + 1), start, strlen(start) + 1);
        const emu_def *def, *def2;
        emu_op *o = &ops[n];
        *o = (emu_op){.pc = at, .text = kept};
        second = strstr(start, " :: ");
        if (second) *second = 0;
        ok = build(m, o, start, &def, &branch[n]);
        if (ok && second) {
            ops[n + 1] = (emu_op){.pc = at, .text = kept};
            ok = build(m, &ops[n + 1], second + 4, &def2, &branch[n + 1]);
            if (ok) n += (size_t)order_pair(o, &ops[n + 1], &ops[n + 2]);
        } else if (ok && o->fn) {
            if (!strcmp(def->name, "s_waitcnt")) memcpy(&o->off, (const void *)at, 2);
            n++;
        }
        if (!ok)
            snprintf(why, n_why, "%s: the instruction `%s` (0x%08x) is not known", emu_symbol_at(m, at), kept,
                     *(uint32_t *)at);
        at += len;
    }
    if (dis) LLVMDisasmDispose(dis);
    if (ok) ops[n++] = (emu_op){.fn = no_op, .pc = end, .text = "end of the function"};
    for (size_t i = 0; ok && i < n; i++) {
        if (!branch[i]) continue;
        if (branch[i] < begin || branch[i] >= end) {
            snprintf(why, n_why, "%s: `%s` leaves the function", emu_symbol_at(m, begin), ops[i].text);
            ok = false;
        } else {
            ops[i].target = &ops[index[(branch[i] - begin) / 4]];
        }
    }
    free(index);
    free(branch);
    if (!ok) {
        free(ops);
        return NULL;
    }
    emu_func *f = emu_keep(m, sizeof *f);
    emu_op *fit = emu_keep(m, n * sizeof *fit);
    memcpy(fit, ops, n * sizeof *fit);
    for (size_t i = 0; i < n; i++)
        if (fit[i].target) fit[i].target = fit + (fit[i].target - ops);
    free(ops);
    *f = (emu_func){.ops = fit, .n_op = n, .begin = begin, .end = end};
    return f;
}

const emu_func *emu_decode(emu_module *m, uint64_t at, char *why, size_t n) {
    pthread_once(&once, gather);
    emu_func *f = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < m->n_func && !f; i++)
        if (at >= m->funcs[i]->begin && at < m->funcs[i]->end) f = m->funcs[i];
    for (int i = 0; i < m->n_symbol && !f; i++) {
        if (at < m->symbols[i].begin || at >= m->symbols[i].end) continue;
        f = decode(m, m->symbols[i].begin, m->symbols[i].end, why, n);
        if (f && m->n_func < 512) m->funcs[m->n_func++] = f;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (!f && !*why) snprintf(why, n, "0x%llx is in no function", (unsigned long long)at);
    return f;
}
