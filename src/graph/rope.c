#include "graph/rope.h"

#include <math.h>

void sy_rope_freqs(float *freq, int32_t d_rot, double theta)
{
    /* As torch computes it: the exponent in float32, the power in float32. */
    for (int i = 0; i < d_rot / 2; i++) freq[i] = (float)(1.0 / pow(theta, 2.0 * i / d_rot));
}

void sy_rope_bands(float *freq, int32_t d_rot, double factor, double low, double high, double old)
{
    for (int i = 0; i < d_rot / 2; i++) {
        double wave = 2 * M_PI / freq[i];
        if (wave < old / high) continue;
        double mix = wave > old / low ? 0 : (old / wave - low) / (high - low);
        freq[i] = (float)((1 - mix) * freq[i] / factor + mix * freq[i]);
    }
}

double sy_rope_yarn_mscale(double factor, double k) { return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1; }

double sy_rope_yarn_scale(double factor, double mscale, double mscale_all_dim)
{
    if (!(mscale > 0) || !(mscale_all_dim > 0)) return sy_rope_yarn_mscale(factor, 1);
    return sy_rope_yarn_mscale(factor, mscale) / sy_rope_yarn_mscale(factor, mscale_all_dim);
}
