/* emu.h - a gfx11 GPU in software: what the parts of the emulator share.
 *
 * elf.c loads a code object, decode.c turns a kernel's instructions into ops, run.c executes a launch as workgroups of waves, and
 * ops_*.c hold one function per instruction. A device address is a host address. hip.c and its neighbours are the runtime library
 * that stands in for AMD's; they reach the machine by emu_load(), emu_kernel() and emu_launch() only. */
#ifndef EMU_H
#define EMU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { LANES = 32, VGPRS = 256, SGPRS = 128 };
enum { VCC = 106, NUL = 124, M0 = 125, EXEC = 126 }; // scalar registers by their number

/* One vector register: a 32-bit value a lane. */
typedef uint32_t U __attribute__((ext_vector_type(32)));
typedef int32_t I __attribute__((ext_vector_type(32)));
typedef float F __attribute__((ext_vector_type(32)));
typedef uint64_t Q __attribute__((ext_vector_type(32)));
typedef int64_t L __attribute__((ext_vector_type(32)));
typedef double D __attribute__((ext_vector_type(32)));
typedef uint16_t H __attribute__((ext_vector_type(32)));

/* ---- memory ------------------------------------------------------------------------------------------- */

enum { MEM_DEVICE = 1, MEM_PINNED, MEM_CODE };
typedef struct {
    uint64_t begin, end;
    uint8_t *written; // a byte per byte, or NULL where first writes are not followed
    uint8_t *lines;   // a byte per 128-byte line touched in this launch, or NULL
    int kind;
} emu_range;

/* Memory with room around it that belongs to nobody, filled with 0xFF. NULL where there is none. */
void *emu_alloc(size_t bytes, int kind);
bool emu_release(void *p); // false: not the start of live memory of ours
/* The live range that holds [at, at + n), as a copy. */
bool emu_find(uint64_t at, size_t n, emu_range *out);
void emu_register(void *p, size_t n, int kind); // memory owned elsewhere
void emu_unregister(void *p);
void emu_mark_written(void *p, size_t n);
void emu_lines_clear(void);
uint64_t emu_lines_count(void);

/* ---- instructions ------------------------------------------------------------------------------------- */

typedef struct emu_wave emu_wave;
typedef struct emu_op emu_op;
typedef void emu_fn(emu_wave *w, const emu_op *o);

/* Where an operand is: in the wave (mask all ones, `at` an offset) or a constant (mask 0, `at` its address). No branch to read. */
typedef struct {
    uintptr_t mask, at;
} emu_src;

typedef enum {
    EMU_SALU,
    EMU_VALU,
    EMU_TRANS,
    EMU_WMMA,
    EMU_SMEM,
    EMU_LOAD,
    EMU_STORE,
    EMU_ATOMIC,
    EMU_LDS,
    EMU_BRANCH,
    EMU_SYNC,
    EMU_CLASSES
} emu_class;
extern const char *const emu_class_names[EMU_CLASSES];

struct emu_op {
    emu_fn *fn;
    emu_fn *inner;     // what a DPP op does after the lanes have moved
    emu_src a[4];      // sources in printed order
    uint16_t r[4];     // their first registers: vectors 0..255, scalars 256..383, constants 0xFFFF
    uint16_t d, d2;    // destination: vector register, or scalar (d2: the second one, a carry)
    uint8_t n_src, nd; // nd: registers that d spans
    uint8_t neg, abs;  // bit i: of source i
    uint8_t op_sel, op_sel_hi, neg_lo, neg_hi;
    uint8_t half, d_half; // 16-bit operands: bit i: the upper half of source i; of the destination
    uint8_t clamp, omod;  // omod: 1 *2, 2 *4, 3 /2
    uint8_t cls, size;    // emu_class; bytes a lane moves
    bool glc, carry_vcc;
    int32_t off, off1;    // offsets of memory instructions, or an immediate
    const emu_op *target; // of a branch
    const uint8_t *lanes; // DPP: the lane each lane reads, 0xFF none
    uint8_t row_mask, bank_mask;
    bool bound_ctrl, fetch_inactive;
    uint64_t uses[6]; // registers that must have arrived, as bits: r above
    uint64_t pc;      // address of the instruction
    const char *text;
};

typedef struct {
    const char *name; // without _e32, _e64, _dpp
    const char *sig;  // a letter per printed operand, see decode.c
    emu_fn *fn;
    uint8_t cls, size;
} emu_def;
extern const emu_def emu_ops_scalar[], emu_ops_int[], emu_ops_compare[], emu_ops_float[], emu_ops_half[],
    emu_ops_memory[], emu_ops_lds[], emu_ops_lane[], emu_ops_matrix[];

typedef struct {
    emu_op *ops;
    size_t n_op;
    uint64_t begin, end; // addresses
} emu_func;

/* ---- code objects ------------------------------------------------------------------------------------- */

typedef struct emu_module emu_module;
typedef struct {
    char name[120];
    emu_module *module;
    uint64_t entry;
    uint32_t lds, scratch, kernarg_bytes, rsrc1, rsrc2, properties;
    uint32_t vgprs, max_threads;
    struct {
        uint16_t offset, size;
        uint8_t kind; // 0: given by the launch, otherwise a hidden one: enum in elf.c
    } args[96];
    int n_arg;
    const emu_func *func; // decoded at the first launch
} emu_kernel;

struct emu_module {
    uint8_t *base; // the loaded segments
    size_t bytes;
    char arch[32];
    emu_kernel *kernels;
    int n_kernel;
    struct {
        uint64_t begin, end;
        char name[120];
    } * symbols; // of functions
    int n_symbol;
    emu_func *funcs[512];
    int n_func;
    struct emu_const *consts[1024];
    void **owned; // freed with the module
    size_t n_owned;
};

/* Both return 0 or a hipError_t, with a sentence in the log. */
int emu_load(emu_module **out, const void *image, const char *arch);
void emu_unload(emu_module *m);
emu_kernel *emu_find_kernel(emu_module *m, const char *name);
void emu_fill_args(const emu_kernel *k, uint8_t *kernarg, void **params, const uint32_t grid[3],
                   const uint32_t block[3], uint32_t dynamic_lds);
/* The function at an address, decoded once. NULL with a sentence: an instruction that is not known. */
const emu_func *emu_decode(emu_module *m, uint64_t at, char *why, size_t n);
const char *emu_symbol_at(const emu_module *m, uint64_t at);
void *emu_keep(emu_module *m, size_t bytes); // zeroed memory that lives as long as the module

/* ---- launches ----------------------------------------------------------------------------------------- */

typedef struct {
    emu_kernel *kernel;
    uint32_t grid[3], block[3], dynamic_lds;
    uint8_t *kernarg;
} emu_launch;

/* Runs a launch to its end. 0, or 700 (a bad access) or 719 (anything else that a kernel may not do), with the place in the log. */
int emu_run(const emu_launch *l);

typedef struct {
    char arch[32], name[64], stats[256], log[256], fail[512];
    uint64_t memory_total, memory_free; // bytes
    uint64_t alloc_limit;               // hipMalloc fails above it; 0: no limit
    int version, devices, threads, units, driver_error;
    int shuffle;                 // a seed: waves and workgroups run in another order
    int ulp;                     // transcendental results are moved by up to one unit in the last place
    int races;                   // LDS accesses of two waves without a barrier between them are faults
    int unwritten;               // reads of memory never written: 1 are logged, 2 are faults
    int hang;                    // the n-th launch never ends
    int lost;                    // from the n-th launch on every call fails
    int event_fault, event_code; // the n-th event that is waited for reports this
} emu_config;
extern emu_config emu_cfg;
void emu_configure(void); // from $EMU_CONFIG (a file of key = value lines), then EMU_KEY in the environment
void emu_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
