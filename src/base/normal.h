/* normal.h - the normal distribution. */
#pragma once

/* z with Phi(z) = p, for 0 < p < 1, within 10^-15 of it between -8 and 8. */
double sy_normal_quantile(double p);
