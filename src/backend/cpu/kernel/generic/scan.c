/* scan.c - what runs along a sequence, in portable C: the meaning of struct sy_kernels_scan. */
#include "backend/cpu/kernel/conv.h"
#include "quant/quant.h"

#include <math.h>
#include <string.h>

static void conv(const struct sy_conv_run *r)
{
    int32_t rows = r->n_tap - 1;
    for (int32_t t = 0; t < r->n_tok; t++)
        for (int64_t c = 0; c < r->d; c++) {
            float sum = r->bias ? r->bias[c] : 0;
            for (int32_t i = 0; i < r->n_tap; i++) {
                int32_t at = t - rows + i;
                float x = at >= 0 ? r->x[at * r->ldx + c] : r->from ? r->from[(rows + at) * r->ld_state + c] : 0;
                sum += r->w[i * r->ldw + c] * x;
            }
            r->y[t * r->ldy + c] = sum;
        }
    sy_conv_keep(r);
}

static float get(enum sy_state_dtype dtype, const unsigned char *p, int64_t i)
{
    if (dtype == SY_STATE_F32) return ((const float *)(const void *)p)[i];
    const uint16_t *h = (const uint16_t *)(const void *)(dtype == SY_STATE_BF16 ? p + 2 * i : p + SY_SCAN_PAIR(i));
    return dtype == SY_STATE_BF16 ? sy_bf16_to_f32(*h) : sy_bf16_to_f32(*h) + sy_bf16_to_f32(h[SY_SCAN_PANEL]);
}

static void put(enum sy_state_dtype dtype, unsigned char *p, int64_t i, float x)
{
    if (dtype == SY_STATE_F32) {
        ((float *)(void *)p)[i] = x;
        return;
    }
    uint16_t *h = (uint16_t *)(void *)(dtype == SY_STATE_BF16 ? p + 2 * i : p + SY_SCAN_PAIR(i));
    *h = sy_f32_to_bf16(x);
    if (dtype == SY_STATE_PAIR) h[SY_SCAN_PANEL] = sy_f32_to_bf16(x - sy_bf16_to_f32(*h));
}

/* One token, one column: S'^T k and S'^T q need one pass, since out = S'^T q + u (k q). */
static void column(const struct sy_scan_run *r, enum sy_state_dtype dtype, int32_t t, int32_t c,
                   const unsigned char *from)
{
    const float *q = r->q + t * r->ldq, *k = r->k + t * r->ldk, *decay = r->decay + t * r->ld_decay;
    int64_t at = (int64_t)(c / SY_SCAN_PANEL) * r->d_key * SY_SCAN_PANEL + c % SY_SCAN_PANEL;
    float sk = 0, sq = 0, kq = 0, v = r->v[t * r->ldv + c], beta = r->beta ? r->beta[t * r->ld_beta] : 1;
    for (int32_t i = 0; i < r->d_key; i++) {
        float a = expf(decay[r->decay_each ? i : 0]), s = from ? get(dtype, from, at + i * SY_SCAN_PANEL) : 0;
        sk += a * k[i] * s;
        sq += a * q[i] * s;
        kq += k[i] * q[i];
    }
    float u = beta * (r->delta ? v - sk : v);
    r->y[t * r->ldy + c] = sq + u * kq;
    for (int32_t i = 0; i < r->d_key; i++) {
        float a = expf(decay[r->decay_each ? i : 0]), s = from ? get(dtype, from, at + i * SY_SCAN_PANEL) : 0;
        put(dtype, r->to, at + i * SY_SCAN_PANEL, a * s + k[i] * u);
    }
}

static void scan(const struct sy_scan_run *r, enum sy_state_dtype dtype)
{
    int32_t whole = (r->d_val + SY_SCAN_PANEL - 1) / SY_SCAN_PANEL * SY_SCAN_PANEL;
    for (int32_t t = 0; t < r->n_tok; t++)
        for (int32_t c = 0; c < r->d_val; c++) column(r, dtype, t, c, t ? r->to : r->from);
    for (int32_t c = r->d_val; c < whole; c++)
        for (int32_t i = 0; i < r->d_key; i++)
            put(dtype, r->to, ((int64_t)(c / SY_SCAN_PANEL) * r->d_key + i) * SY_SCAN_PANEL + c % SY_SCAN_PANEL, 0);
}

static void scan_f32(const struct sy_scan_run *r) { scan(r, SY_STATE_F32); }
static void scan_bf16(const struct sy_scan_run *r) { scan(r, SY_STATE_BF16); }
static void scan_pair(const struct sy_scan_run *r) { scan(r, SY_STATE_PAIR); }

const struct sy_kernels_scan sy_scan_generic = {
    .conv = conv, .scan = {[SY_STATE_F32] = scan_f32, [SY_STATE_BF16] = scan_bf16, [SY_STATE_PAIR] = scan_pair}};
