/* conv.c - the short causal convolution of recurrent layers: a task is a sequence and 64 channels. */
#include "backend/cpu/ops_impl.h"

typedef struct {
    const mx_row_kernels *k;
    const mx_conv *c;
    const mx_batch *b;
    int n_part; // pieces of MX_CONV_CHANNELS channels
} conv_job;

static void conv_part(void *arg, int i, int worker) {
    const conv_job *j = arg;
    const mx_conv *c = j->c;
    (void)worker;
    const int s = i / j->n_part, from = i % j->n_part * MX_CONV_CHANNELS, channels = c->x.cols;
    const int nc = channels - from < MX_CONV_CHANNELS ? channels - from : MX_CONV_CHANNELS;
    const int first = j->b->seq_start[s], n_tok = j->b->seq_start[s + 1] - first;
    float *state = c->state + (int64_t)j->b->slot[s] * (c->k_width - 1) * channels + from;
    j->k->conv(mx_row_at(&c->y, first, from), c->y.ld, mx_row_at(&c->x, first, from), c->x.ld,
               c->w + (int64_t)from * c->k_width, c->bias ? c->bias + from : NULL, c->k_width, state,
               channels, nc, n_tok);
}

mx_status mx_cpu_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    conv_job j = {.k = mx_cpu_row_kernels(d->isa), .c = c, .b = b};
    j.n_part = (c->x.cols + MX_CONV_CHANNELS - 1) / MX_CONV_CHANNELS;
    mx_cpu_run(d, conv_part, &j, b->n_seq * j.n_part, 1, (double)b->n_tok * c->x.cols * (4 + c->k_width));
    return MX_OK;
}
