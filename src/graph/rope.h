/* rope.h - angles of rotary embeddings (RoFormer, arXiv:2104.09864), for whoever reads or writes their parameters. */
#pragma once
#include <stdint.h>

/* freq[d_rot / 2]: theta^(-2 i / d_rot). */
void sy_rope_freqs(float *freq, int32_t d_rot, double theta);
/* Llama 3's bands: long waves divided by factor, short ones as they are, mixed between (arXiv:2407.21783). */
void sy_rope_bands(float *freq, int32_t d_rot, double factor, double low, double high, double old);
/* What YaRN multiplies cos and sin by (arXiv:2309.00071, section 3.4), with DeepSeek's two factors where both are
 * above 0; and the multiplier of one of them. */
double sy_rope_yarn_scale(double factor, double mscale, double mscale_all_dim);
double sy_rope_yarn_mscale(double factor, double k);
