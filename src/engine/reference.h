/* reference.h - the reference file of the correctness gate, read and written.
 *
 * A list of documents [{"ids": [n], "top": [n][k], "logit": [n][k], "lse": [n]}]: for every position the k best next tokens
 * of the reference, their logits by falling order, and the log-sum-exp of all logits. */
#ifndef MX_ENGINE_REFERENCE_H
#define MX_ENGINE_REFERENCE_H
#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int n;               // positions
    int32_t *ids, *top;  // [n], [n, k]
    double *logit, *lse; // [n, k], [n]
} mx_ref_doc;

typedef struct {
    int n_doc, k;
    mx_ref_doc *docs; // in the arena
} mx_reference;

enum { MX_REF_MAX_K = 100 };

/* MX_EINVAL names the document and what is wrong with it. ids_only: for a file whose documents alone are wanted. */
mx_status mx_reference_read(mx_reference *out, mx_arena *a, const char *path, bool ids_only, mx_err *err);
void mx_reference_put(mx_str *s, const mx_ref_doc *doc, int k); // one document as JSON

#endif
