/* verify.h - the correctness gate: does this model, on this device, predict what the reference predicts?
 *
 * Teacher-forced over documents of token ids. A position is decided when the reference's best logit leads the second by at
 * least `decided`; there the best token must be the same. Elsewhere rounding may flip the order, so it is only counted. */
#ifndef MX_ENGINE_VERIFY_H
#define MX_ENGINE_VERIFY_H
#include "engine/engine.h"

typedef struct {
    const char *reference; // reference_fp32.json: [{ids, top: [[id..]..], logit: [[..]..], lse: [..]}..]
    double decided;        // 2.0
    int min_decided;       // fewer decided positions are inconclusive: 50
    double
        max_logprob_diff; // bound of the mean absolute log-probability difference of the reference's best token; 0: none
    int width;            // tokens fed at once: 1, 8, 256; 0: the chunk
    int max_positions; // of each run, 0: all
} mx_verify_options;

typedef struct {
    int documents, positions, decided;
    int differ, differ_decided;                   // top-1 disagreements: at all positions, at decided ones
    double largest_gap;                           // reference lead at the worst disagreement
    double mean_logprob_diff, worst_logprob_diff; // of the reference's best token
    double mean_kl;                               // over the reference's listed tokens and the rest as one
    enum { MX_VERIFY_PASS, MX_VERIFY_FAIL, MX_VERIFY_INCONCLUSIVE } verdict;
    char reason[200];
} mx_verify_result;

/* Fails, too, if an op was composed on the engine's device that its table of ports does not list (backend/ports.h). */
mx_status mx_verify(mx_engine *e, const mx_verify_options *opt, mx_verify_result *out, mx_err *err);
/* Write such a reference from this engine, for the documents (ids) of another reference file or of a text file. */
mx_status mx_verify_write(mx_engine *e, const char *documents, const char *out, int width, mx_err *err);
/* Compare two reference files over the same documents: b against a. */
mx_status mx_verify_compare(const char *a, const char *b, const mx_verify_options *opt, mx_verify_result *out,
                            mx_err *err);

#endif
