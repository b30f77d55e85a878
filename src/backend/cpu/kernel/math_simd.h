/* math_simd.h - exponential functions of vectors, for the names of a simd.h.
 *
 * The polynomials are minimax fits (Lawson's iteration in f64, rounded to f32); the figure beside each is its own
 * error, far below f32's 6e-8. Limits are taken: exp(-inf) is exactly 0, exp(inf) is inf, NaN stays. */
#pragma once

/* The nearest integer, for |x| < 2^22: adding 1.5 * 2^23 leaves no places for a fraction. */
INLINE VF v_whole(VF x)
{
    VF magic = v_set(12582912.0f);
    return (x + magic) - magic;
}

/* 2^x for x <= 0 or NaN, 0 below 2^-126: a subnormal result takes x86 hundreds of cycles, and every key that is not
 * seen would give one. 2^r = 1 + r P(r) on [-0.5, 0.5], relative error 9e-8. */
INLINE VF v_exp2(VF power)
{
    VF least = v_set(-126), x = v_max(least, power);
    VF n = v_whole(x), r = x - n;
    VF p = v_fma(v_set(0.00132647273f), r, v_set(0.00967151299f));
    p = v_fma(p, r, v_set(0.0555073358f));
    p = v_fma(p, r, v_set(0.240222424f));
    p = v_fma(p, r, v_set(0.693147004f));
    return v_less(power, least, v_set(0), v_scale2(v_fma(p, r, v_set(1)), n));
}

INLINE VF v_exp(VF x)
{
    x = v_max(v_set(-104.5f), v_min(v_set(89), x));
    VF n = v_whole(x * v_set(1.44269504f));
    /* ln 2 in two parts, the first of 12 bits: n times it is exact. Then e^r = 1 + r + r^2 P(r), relative error 3e-9.
     */
    VF r = v_fnma(n, v_set(-2.12194440e-4f), v_fnma(n, v_set(0.693359375f), x));
    VF p = v_fma(v_set(0.00138145988f), r, v_set(0.00836871658f));
    p = v_fma(p, r, v_set(0.041668389f));
    p = v_fma(p, r, v_set(0.166665211f));
    p = v_fma(p, r, v_set(0.49999994f));
    p = v_fma(p, r * r, r) + v_set(1);
    return v_scale2(p, n);
}

/* x + x^3 P(x^2) below 0.625 (relative error 4e-9), 1 - 2 / (e^2x + 1) above. */
INLINE VF v_tanh(VF x)
{
    VF a = v_abs(x), s = x * x;
    VF p = v_fma(v_set(-0.00570498733f), s, v_set(0.020639088f));
    p = v_fma(p, s, v_set(-0.0537397154f));
    p = v_fma(p, s, v_set(0.133314416f));
    p = v_fma(p, s, v_set(-0.333332807f));
    VF small = v_fma(p * s, x, x);
    VF large = v_set(1) - v_set(2) / (v_exp(a + a) + v_set(1));
    return v_less(a, v_set(0.625f), small, v_sign(large, x));
}

/* x Phi(x). The normal distribution's lower tail is Phi(-a) = exp(R(a) - a^2/2) with a smooth R, fitted on [0, 5.5]
 * with an error of 3e-9 in Phi; further out R stays, where a Phi(-a) is below 1e-7 of a. */
INLINE VF v_gelu(VF x)
{
    VF a = v_min(v_set(200), v_abs(x)), t = v_min(v_set(5.5f), a);
    VF r = v_fma(v_set(-2.49539767e-8f), t, v_set(7.03146895e-7f));
    r = v_fma(r, t, v_set(-8.55339022e-6f));
    r = v_fma(r, t, v_set(5.73753787e-5f));
    r = v_fma(r, t, v_set(-0.000205081582f));
    r = v_fma(r, t, v_set(1.58667372e-5f));
    r = v_fma(r, t, v_set(0.0048039523f));
    r = v_fma(r, t, v_set(-0.0363466144f));
    r = v_fma(r, t, v_set(0.181692705f));
    r = v_fma(r, t, v_set(-0.797884762f));
    r = v_fma(r, t, v_set(-0.693147182f));
    return v_max(v_set(0), x) - a * v_exp(v_fnma(a * v_set(0.5f), a, r));
}

/* log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 artanh z with z = y / (2 + y) <= 1/3, whose
 * series is cut at a relative error of 2e-9. */
INLINE VF v_softplus(VF x)
{
    VF y = v_exp(v_set(0) - v_abs(x)), z = y / (v_set(2) + y), s = z * z;
    VF p = v_fma(v_set(2.0f / 15), s, v_set(2.0f / 13));
    p = v_fma(p, s, v_set(2.0f / 11));
    p = v_fma(p, s, v_set(2.0f / 9));
    p = v_fma(p, s, v_set(2.0f / 7));
    p = v_fma(p, s, v_set(2.0f / 5));
    p = v_fma(p, s, v_set(2.0f / 3));
    return v_max(v_set(0), x) + v_fma(p * s, z, z + z);
}

INLINE VF v_sigmoid(VF x) { return v_set(1) / (v_set(1) + v_exp(v_set(0) - x)); }

/* Both tend to 0 towards -inf, where the formulas have -inf / inf; hence the bound. */
INLINE VF v_silu(VF x)
{
    x = v_max(v_set(-200), x);
    return x / (v_set(1) + v_exp(v_set(0) - x));
}
/* x sigmoid(1.702 x), likewise */
INLINE VF v_gelu_quick(VF x)
{
    x = v_max(v_set(-200), x);
    return x / (v_set(1) + v_exp(x * v_set(-1.702f)));
}
INLINE VF v_relu2(VF x)
{
    x = v_max(v_set(0), x);
    return x * x;
}
/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x / (1 + exp(-2 sqrt(2/pi) (...))) */
INLINE VF v_gelu_tanh(VF x)
{
    x = v_max(v_set(-200), x);
    VF u = x * v_fma(x * x, v_set(-0.0713548163f), v_set(-1.59576912f));
    return x / (v_set(1) + v_exp(u));
}
