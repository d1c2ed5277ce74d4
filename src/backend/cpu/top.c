/* top.c - the k largest of each row of logits and the logarithm of the row's sum of exponentials. */
#include "backend/cpu/ops_impl.h"
#include "backend/ports.h"
#include <math.h>
#include <string.h>

static bool finite_row(const float *x, int n) {
    uint32_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        bad |= (u & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
}

/* The list is kept in falling order: with k of at most 256 a shift is short, and few values of a row get in. */
static int top_row(const float *x, int n, int k, int32_t *ids, float *values) {
    int m = 0;
    for (int i = 0; i < n; i++) {
        if (m == k && !(x[i] > values[k - 1])) continue;
        int at = m < k ? m++ : k - 1;
        for (; at > 0 && x[i] > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x[i], ids[at] = i;
    }
    return m;
}

void mx_host_top(const mx_top *t) {
    for (int r = 0; r < t->logits.rows; r++) {
        const float *x = (const float *)t->logits.p + r * t->logits.ld;
        float *values = t->values + (size_t)r * (size_t)t->k;
        top_row(x, t->logits.cols, t->k, t->ids + (size_t)r * (size_t)t->k, values);
        double sum = 0;
        for (int i = 0; i < t->logits.cols; i++) sum += exp((double)x[i] - (double)values[0]);
        t->lse[r] = finite_row(x, t->logits.cols) ? (float)(values[0] + log(sum)) : NAN;
    }
}

mx_status mx_cpu_top(mx_dev *dev, const void *args, mx_err *err) {
    (void)dev, (void)err;
    mx_host_top(args);
    return MX_OK;
}
