/* ports.h - fused ops that a device may have, each beside primitive ops that give the same result.
 *
 * A backend lists its ports in one const table. A row says which op it is, what shapes it takes, and the function. Whoever wants
 * a fused op calls mx_port_run(); MX_UNSUPPORTED, with a sentence, means that no port of this device takes these arguments, and
 * the caller composes the primitives. Rows of an op are tried in order, the first that takes the arguments runs. A row without a
 * function says that a composition is meant for what it takes, and why: only then is a composition expected. Every outcome is
 * counted, so that the gate can tell a fallback that is meant from one that crept in. */
#ifndef MX_BACKEND_PORTS_H
#define MX_BACKEND_PORTS_H
#include "backend/backend.h"
#include "base/str.h"

struct mx_port { // NULL takes: whatever the op's checks let through
    mx_port_op op;
    const char *shapes; // what it takes, in words; of a row without a function: why a composition is as good
    mx_status (*takes)(const mx_dev *dev, const void *args,
                       mx_err *err); // MX_UNSUPPORTED and a sentence, or MX_OK
    mx_status (*run)(mx_dev *dev, const void *args, mx_err *err);
};

const char *mx_port_name(mx_port_op op); // "token_log_prob"

/* args: the struct that ports.h names for the op, checked by the caller. What run() returns, or MX_UNSUPPORTED: compose. */
mx_status mx_port_run(mx_dev *dev, mx_port_op op, const void *args, mx_err *err);

/* Ports and compositions since the device was opened, as one line: "token_log_prob 12, qq_expert_matmul composed 3"; "none"
 * without any. A recorded step counts when it is queued, not when it is replayed. */
void mx_port_summary(const mx_dev *dev, mx_str *out);
/* MX_EINTERNAL, naming them, if ops were composed that no row lists; the gate fails on this. */
mx_status mx_port_unlisted(const mx_dev *dev, mx_err *err);

extern const mx_port mx_cpu_ports[], mx_gpu_ports[]; // cpu/ports.c, gpu/ports.c; the last row has no `shapes`

/* ---- the ports, with the struct that args points to ------------------------------------------------------ */

typedef struct {        // MX_PORT_TOKEN_LOG_PROB: out[i] = logits[i, ids[i]] - log(sum(exp(logits[i])))
    mx_mat logits;      // [n, n_vocab] f32
    const int32_t *ids; // [n]
    float *out;         // [n]
    float *work;        // [n]: for the composition
} mx_token_log_prob;

typedef struct {          // MX_PORT_QQ_EXPERT_MATMUL: y[i] = W[ids[i]] x[i / x_div], both quantized
    mx_mat y;             // [n_row, n_out]
    const mx_qmat *w, *x; // a stack of n_expert [n_out, n_in]; one matrix [n_row / x_div, n_in]
    const int32_t *ids;   // [n_row]
    int n_row, x_div;
    float *work; // [n_row / x_div, n_in]: x expanded, for the composition
} mx_qq_expert_matmul;

typedef struct
{ // MX_PORT_PRODUCT: products of one x with what stands around them in a layer. Composed of rms_norm, matmul or
    // expert_matmul, glu, expert_sum and add
    const mx_matmul *mm; // n_mm products; glu: gate, then up, and the gate's y takes act(gate) * up
    int n_mm;
    mx_mat x;          // [n, n_in] f32; of experts with `weights` [n * k, n_in]
    const float *norm; // [n_in]: x is RMS-normed with these weights on its way in; NULL: as it is
    float eps;
    bool glu;
    mx_act act;
    bool add;           // y += instead of y =; one product, y f32
    const int32_t *ids; // [n, k] experts, every weight a stack, or NULL. Row i of x serves rows i * k .. of y
    int k;
    const float
        *weights; // [n, k], with ids and add: y[i] += sum over j of weights[i, j] * W[ids[i, j]] x[i * k + j]
} mx_product;

typedef struct
{ // MX_PORT_DECODE_ATTENTION: rope_append, then attention over the same cache, for one token a sequence
    mx_rope_append rope;
    mx_attention attention; // its q is rope's, which may be left as it was
    const mx_batch *b;
} mx_decode_attention;

enum { MX_MAX_TOP = 256 };
typedef struct {   // MX_PORT_TOP: the k largest of each row of logits
    mx_mat logits; // [n, n_vocab] f32
    int k;         // 1 .. MX_MAX_TOP, at most n_vocab
    int32_t *ids;  // [n, k] by falling logit; a tie goes to the lower id
    float *values; // [n, k] their logits
    float *lse;    // [n] log of the sum of exp of the whole row; NaN if a logit of the row is not finite
} mx_top;
void mx_host_top(const mx_top *t); // the same in host memory: the composition, after a download

#endif
