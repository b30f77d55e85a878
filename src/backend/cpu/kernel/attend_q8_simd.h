/* attend_q8_simd.h - the q8_0 cache in the names of a simd.h: tiles of it in f32, and writing. Part of attend_simd.h.
 * A code times its scale is exact in f32, so that the order in which codes are met by scales changes no bit. */

/* to[d][j - t] = element d0 + d of key j, d < n, for the keys of a tile; 0 for what is not among them. d0 is a
 * multiple of SY_KV_GROUP. */
INLINE void tile_keys_q8(const struct sy_attend *a, int32_t t, struct sy_span keys, int32_t d0, int32_t n, float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    if (keys.hi - keys.lo < SY_KEY_TILE) memset(to, 0, (size_t)n * SY_KEY_TILE * sizeof *to);
    for (int32_t j = keys.lo, run; j < keys.hi; j += run) {
        int32_t off = j % kv->block_len, stride;
        int64_t scale, code = sy_kv_q8_key(kv, a->kv_head, off, &stride, &scale);
        run = stride - off % SY_KV_PANEL;
        if (run > keys.hi - j) run = keys.hi - j;
        const unsigned char *codes = sy_kv_block(a, j) + code + (int64_t)d0 * stride;
        const unsigned char *scales = sy_kv_block(a, j) + scale + 2 * (int64_t)(d0 / SY_KV_GROUP) * stride;
        for (int32_t i = 0, lanes; i < run; i += lanes) {
            lanes = run - i < LANES ? run - i : LANES;
            float *col = to + (j - t) + i;
            for (int32_t g = 0; g < n; g += SY_KV_GROUP) {
                const unsigned char *from = codes + (int64_t)g * stride + i;
                int32_t end = n - g < SY_KV_GROUP ? n : g + SY_KV_GROUP;
                VF s = v_load_f16_n(scales + 2 * ((int64_t)(g / SY_KV_GROUP) * stride + i), lanes);
                if (lanes == LANES)
                    for (int32_t d = g; d < end; d++, from += stride)
                        v_store(col + d * SY_KEY_TILE, v_load_i8(from) * s);
                else
                    for (int32_t d = g; d < end; d++, from += stride)
                        v_store_n(col + d * SY_KEY_TILE, v_load_i8_n(from, lanes) * s, lanes);
            }
        }
    }
}

/* to[j - t][d] = element d0 + d of value j, d < n; up to the next whole vector 0. d0 is a multiple of SY_KV_GROUP. */
INLINE void tile_values_q8(const struct sy_attend *a, int32_t t, struct sy_span keys, int32_t d0, int32_t n,
                           float *to)
{
    const struct sy_kv_dim *kv = a->kv;
    for (int32_t j = keys.lo; j < keys.hi; j++, to += V_CHUNK) {
        int64_t scale, code = sy_kv_q8_value(kv, a->kv_head, j % kv->block_len, &scale) + d0;
        const unsigned char *block = sy_kv_block(a, j), *scales = block + scale + 2 * (int64_t)(d0 / SY_KV_GROUP);
        float *row = to + (keys.lo - t) * V_CHUNK;
        for (int32_t d = 0; d < n; d += LANES) {
            VF s = v_set_f16(scales + 2 * (d / SY_KV_GROUP));
            int32_t lanes = n - d < LANES ? n - d : LANES;
            v_store(row + d,
                    (lanes == LANES ? v_load_i8(block + code + d) : v_load_i8_n(block + code + d, lanes)) * s);
        }
    }
}

/* A group of n elements. code: room for SY_KV_GROUP */
INLINE void quantise(const float *x, int32_t n, unsigned char *code, unsigned char *scale)
{
    VF max = v_set(0), bad = v_set(0);
    for (int32_t i = 0; i < n; i += LANES) {
        VF one = v_load_n(x + i, n - i < LANES ? n - i : LANES);
        max = v_max(v_abs(one), max);
        bad = bad + (one - one); /* 0, or NaN where x is not finite */
    }
    float s = v_top(max) / 127 + v_sum(bad);
    if (s > SY_KV_SCALE_MAX) s = SY_KV_SCALE_MAX;
    v_store_f16_n(scale, v_set(s), 1);
    s = v_set_f16(scale)[0];
    VF inverse = v_set(s != 0 ? 1 / s : 0);
    for (int32_t i = 0; i < n; i += LANES) {
        int32_t lanes = n - i < LANES ? n - i : LANES;
        VF c = v_load_n(x + i, lanes) * inverse;
        v_store_i8_n(code + i, v_max(v_min(c, v_set(127)), v_set(-127)), lanes);
    }
}

static void write_q8_0(const struct sy_kv_dim *kv, unsigned char *layer, const float *k, int64_t ldk, const float *v,
                       int64_t ldv, const int32_t *row, int32_t n)
{
    unsigned char some[SY_KV_GROUP];
    for (int32_t i = 0; i < n; i++, k += ldk, v += ldv) {
        unsigned char *block = layer + row[i] / kv->block_len * kv->block_bytes;
        int32_t off = row[i] % kv->block_len, stride, width;
        int64_t scale;
        for (int32_t h = 0; h < kv->n_kv; h++) {
            const float *from = k + (int64_t)h * kv->d_key;
            unsigned char *to = block + sy_kv_q8_key(kv, h, off, &stride, &scale);
            for (int32_t d = 0; d < kv->d_key; d += width, scale += 2 * (int64_t)stride) {
                width = kv->d_key - d < SY_KV_GROUP ? kv->d_key - d : SY_KV_GROUP;
                quantise(from + d, width, some, block + scale);
                for (int32_t e = 0; e < width; e++, to += stride) *to = some[e];
            }
            if (kv->shared) continue;
            from = v + (int64_t)h * kv->d_val;
            to = block + sy_kv_q8_value(kv, h, off, &scale);
            for (int32_t d = 0; d < kv->d_val; d += width, scale += 2) {
                width = kv->d_val - d < SY_KV_GROUP ? kv->d_val - d : SY_KV_GROUP;
                quantise(from + d, width, to + d, block + scale);
            }
        }
    }
}
