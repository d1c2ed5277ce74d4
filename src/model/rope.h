/* rope.h - frequencies of rotary position embeddings and their scalings for longer contexts. */
#ifndef MX_MODEL_ROPE_H
#define MX_MODEL_ROPE_H
#include "format/config.h"

/* Fill inv_freq[n_rot / 2] (radians a position) and *scale, the factor on cosines and sines. n_rot is even, > 0.
 *   default  theta^(-2i / n_rot)                                       Su et al. 2021, "RoFormer"
 *   linear   the same / factor                                         Chen et al. 2023, position interpolation
 *   llama3   slow turns / factor, fast ones kept, a ramp between       Llama 3.1's reference code
 *   yarn     likewise by turns within the original context             Peng et al. 2023, "YaRN", section 3 */
void mx_rope_frequencies(const mx_rope_config *r, int n_rot, float *inv_freq, float *scale);

#endif
