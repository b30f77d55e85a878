#include "base/normal.h"

#include <math.h>

/* Halving the interval is exact enough and cannot fail. */
double sy_normal_quantile(double p)
{
    double lo = -9, hi = 9;
    for (int i = 0; i < 80; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(-mid / sqrt(2)) < p) lo = mid;
        else hi = mid;
    }
    return (lo + hi) / 2;
}
