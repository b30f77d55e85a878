/* gguf_make.c - GGUF metadata (ggml-org/ggml, docs/gguf.md) of a folder's config: what gguf_config.c reads, by its
 * tables from right to left. What the format has no key for is left out; whoever writes the file compares the models
 * that the two describe. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/normal.h"
#include "checkpoint/internal.h"
#include "graph/rope.h"

struct make {
    const struct sy_checkpoint *c;
    const struct sy_gguf_arch *arch;
    const struct sy_json *cfg;
    struct sy_arena *mem;
    struct sy_gguf_made *out;
    int64_t n_layer, n_head, head_dim;
    struct sy_err *err;
};

/* ---- values --------------------------------------------------------------------------------------------- */

static void put_u32(struct make *m, uint32_t v) { sy_buf_add(&m->out->kv, &v, sizeof v); }
static void put_u64(struct make *m, uint64_t v) { sy_buf_add(&m->out->kv, &v, sizeof v); }
static void put_text(struct make *m, const char *s, size_t n)
{
    put_u64(m, n);
    if (n) sy_buf_add(&m->out->kv, s, n);
}

/* "general." and "tokenizer." keys stand as they are, others belong to the architecture. */
static void key(struct make *m, const char *tail, uint32_t type)
{
    char name[160];
    bool whole = !strncmp(tail, "general.", 8) || !strncmp(tail, "tokenizer.", 10);
    snprintf(name, sizeof name, "%s%s%s", whole ? "" : m->arch->name, whole ? "" : ".", tail);
    put_text(m, name, strlen(name));
    put_u32(m, type);
    m->out->n_kv++;
}

static void array(struct make *m, const char *tail, uint32_t elem, size_t n)
{
    key(m, tail, SY_GGUF_ARRAY);
    put_u32(m, elem);
    put_u64(m, n);
}

static void key_u32(struct make *m, const char *tail, int64_t v)
{
    if (v < 0 || v > UINT32_MAX)
        (void)sy_fail(m->err, SY_ENOSUP, "GGUF key '%s': expected a number from 0 to %u, found %lld", tail,
                      UINT32_MAX, (long long)v);
    key(m, tail, SY_GGUF_U32);
    put_u32(m, (uint32_t)v);
}

static void key_f32(struct make *m, const char *tail, double v)
{
    float f = (float)v;
    key(m, tail, SY_GGUF_F32);
    sy_buf_add(&m->out->kv, &f, sizeof f);
}

static void key_bool(struct make *m, const char *tail, bool v)
{
    key(m, tail, SY_GGUF_BOOL);
    sy_buf_char(&m->out->kv, v);
}

static void key_text(struct make *m, const char *tail, const char *s, size_t n)
{
    key(m, tail, SY_GGUF_STRING);
    put_text(m, s, n);
}

static const struct sy_json *get(const struct make *m, const char *name) { return sy_json_get(m->cfg, name); }
static bool is(const struct make *m, const char *arch) { return !strcmp(m->arch->name, arch); }

static bool is_latent(const struct make *m) { return m->arch->latent; }

/* A key of the config, where it is a number. */
static void copy_num(struct make *m, const char *tail, const struct sy_json *v)
{
    if (sy_json_is_number(v)) key_f32(m, tail, sy_json_number(v, 0));
}

/* ---- rope ----------------------------------------------------------------------------------------------- */

static float *extra(struct make *m, const char *name, int64_t n)
{
    float *at = sy_arena_array(m->mem, (size_t)n, sizeof *at);
    if (!at) (void)sy_fail(m->err, SY_ENOMEM, "no memory to convert");
    m->out->extra[m->out->n_extra].name = name;
    m->out->extra[m->out->n_extra].at = at;
    m->out->extra[m->out->n_extra++].n = n;
    return at;
}

/* Llama 3's bands as what divides the angles, so that dividing gives the very floats that the bands give. */
static void put_bands(struct make *m, const struct sy_json *s, double theta, int64_t d_rot)
{
    int64_t n = d_rot / 2;
    float *plain = sy_arena_array(m->mem, (size_t)n, sizeof *plain);
    float *banded = sy_arena_array(m->mem, (size_t)n, sizeof *banded);
    float *out = extra(m, "rope_freqs.weight", n);
    if (!plain || !banded || !out) {
        (void)sy_fail(m->err, SY_ENOMEM, "no memory to convert");
        return;
    }
    sy_rope_freqs(plain, (int32_t)d_rot, theta);
    memcpy(banded, plain, (size_t)n * sizeof *plain);
    sy_rope_bands(banded, (int32_t)d_rot, sy_json_number(sy_json_get(s, "factor"), 1),
                  sy_json_number(sy_json_get(s, "low_freq_factor"), 1),
                  sy_json_number(sy_json_get(s, "high_freq_factor"), 4),
                  sy_json_number(sy_json_get(s, "original_max_position_embeddings"), 8192));
    for (int64_t i = 0; i < n; i++) {
        float f = (float)((double)plain[i] / (double)banded[i]), up = f, down = f;
        out[i] = f;
        for (int k = 0; k < 8 && (float)(plain[i] / sy_gguf_meant(out[i])) != banded[i]; k++) {
            if (k % 2) out[i] = up = nextafterf(up, INFINITY);
            else out[i] = down = nextafterf(down, 0);
        }
    }
}

static void put_yarn(struct make *m, const struct sy_json *s)
{
    double all = sy_json_number(sy_json_get(s, "mscale_all_dim"), 0);
    double one = sy_json_number(sy_json_get(s, "mscale"), 0);
    copy_num(m, "rope.scaling.factor", sy_json_get(s, "factor"));
    copy_num(m, "rope.scaling.yarn_beta_fast", sy_json_get(s, "beta_fast"));
    copy_num(m, "rope.scaling.yarn_beta_slow", sy_json_get(s, "beta_slow"));
    const struct sy_json *attn = sy_json_get(s, "attention_factor");
    copy_num(m, "rope.scaling.yarn_attn_factor", attn);
    /* One key stands for both of DeepSeek's; what they come to is said where they differ. */
    if (all > 0 && !sy_json_is_number(attn) && one != all)
        key_f32(m, "rope.scaling.yarn_attn_factor",
                sy_rope_yarn_scale(sy_json_number(sy_json_get(s, "factor"), 1), one, all));
    /* DeepSeek's files hold a tenth of it. */
    if (all > 0) key_f32(m, "rope.scaling.yarn_log_multiplier", is_latent(m) ? 0.1 * all : all);
    copy_num(m, "attention.temperature_scale", sy_json_get(s, "llama_4_scaling_beta"));
}

/* LongRoPE's two tables, and by how much it makes the scores larger (arXiv:2402.13753). */
static void put_long(struct make *m, const struct sy_json *s, double old, double n_ctx)
{
    static const char *const name[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    const struct sy_json *list[] = {sy_json_get(s, "short_factor"), sy_json_get(s, "long_factor")};
    for (int i = 0; i < 2; i++) {
        size_t n = sy_json_len(list[i]);
        float *at = extra(m, name[i], (int64_t)n);
        for (size_t k = 0; at && k < n; k++) at[k] = (float)sy_json_number(sy_json_at(list[i], k), 0);
    }
    if (old > 1 && n_ctx > old) key_f32(m, "rope.scaling.attn_factor", sqrt(1 + log(n_ctx / old) / log(old)));
}

/* Dims of a head that turn. */
static int64_t rope_dims(const struct make *m)
{
    double part = sy_json_number(get(m, "partial_rotary_factor"), 1);
    part = sy_json_number(sy_json_get(get(m, "rope_parameters"), "partial_rotary_factor"), part);
    int64_t n = sy_json_int(get(m, "rotary_dim"), (int64_t)((double)m->head_dim * part));
    return n < 2 || n > m->head_dim || n % 2 ? m->head_dim : n;
}

/* What the config says of angles that are scaled. */
static void put_scaling(struct make *m, const struct sy_json *s, double theta, int64_t d_rot)
{
    const char *type = sy_json_text(sy_json_get(s, "rope_type"));
    if (!type) type = sy_json_text(sy_json_get(s, "type"));
    if (!type || !strcmp(type, "default")) return;
    const struct sy_json *old = sy_json_get(s, "original_max_position_embeddings");
    if (!old) old = get(m, "original_max_position_embeddings");
    bool yarn = !strcmp(type, "yarn"), wide = !strcmp(type, "longrope");
    if (yarn || wide)
        if (sy_json_is_number(old))
            key_u32(m, "rope.scaling.original_context_length", (int64_t)sy_json_number(old, 0));
    if (yarn || !strcmp(type, "linear")) key_text(m, "rope.scaling.type", type, strlen(type));
    if (yarn) put_yarn(m, s);
    else if (wide) put_long(m, s, sy_json_number(old, 0), sy_json_number(get(m, "max_position_embeddings"), 0));
    else if (!strcmp(type, "llama3")) put_bands(m, s, theta, d_rot);
    else if (!strcmp(type, "linear")) copy_num(m, "rope.scaling.factor", sy_json_get(s, "factor"));
    else
        (void)sy_fail(m->err, SY_ENOSUP, "'%s': rope of type '%s' has no form in GGUF for '%s'", m->c->path, type,
                      m->arch->name);
}

static void put_rope(struct make *m)
{
    const struct sy_json *params = get(m, "rope_parameters"), *s = sy_json_get(params, "full_attention");
    const struct sy_json *local = sy_json_get(params, "sliding_attention");
    if (!sy_json_is_object(s)) s = sy_json_is_object(params) ? params : get(m, "rope_scaling");
    double theta = sy_json_number(sy_json_get(s, "rope_theta"), sy_json_number(get(m, "rope_theta"), 10000));
    int64_t d_rot = rope_dims(m);
    if (!is_latent(m)) key_u32(m, "rope.dimension_count", d_rot); /* whose tables have it */
    key_f32(m, "rope.freq_base", theta);
    const struct sy_json *swa = sy_json_get(local, "rope_theta");
    copy_num(m, "rope.freq_base_swa", swa ? swa : get(m, "rope_local_base_freq"));
    put_scaling(m, s, theta, d_rot);
}

/* DeepSeek-V4's layers that slide turn by one base, the others by another and what scales it; newer configs have both
 * under "rope_parameters". */
static void put_ropes(struct make *m)
{
    const struct sy_json *both = get(m, "rope_parameters"), *packed = sy_json_get(both, "compress");
    bool nested = sy_json_is_object(packed);
    const struct sy_json *s = nested ? packed : sy_json_is_object(both) ? both : get(m, "rope_scaling");
    const struct sy_json *main = nested ? sy_json_get(both, "main") : both;
    double theta = sy_json_number(get(m, "rope_theta"), 10000);
    double part = sy_json_number(get(m, "partial_rotary_factor"), 64.0 / 512);
    int64_t d_rot = sy_json_int(get(m, "qk_rope_head_dim"), (int64_t)((double)m->head_dim * part));
    if (!sy_json_is_number(get(m, "qk_rope_head_dim"))) key_u32(m, "rope.dimension_count", d_rot);
    key_f32(m, "rope.freq_base", sy_json_number(sy_json_get(main, "rope_theta"), theta));
    if (!sy_json_is_number(get(m, "compress_rope_theta")))
        key_f32(m, "attention.compress_rope_freq_base",
                nested ? sy_json_number(sy_json_get(packed, "rope_theta"), theta) : 160000);
    const char *type = sy_json_text(sy_json_get(s, "rope_type"));
    if (!type) type = sy_json_text(sy_json_get(s, "type"));
    if (type && strcmp(type, "yarn") && strcmp(type, "default"))
        (void)sy_fail(m->err, SY_ENOSUP, "'%s': rope of type '%s' has no form in GGUF for '%s'", m->c->path, type,
                      m->arch->name);
    else put_scaling(m, s, theta, d_rot);
}

/* ---- layers that slide ---------------------------------------------------------------------------------- */

/* Whether layer l sees beyond the window; *said: the config tells. */
static bool full_at(const struct make *m, int64_t l, bool *said)
{
    const struct sy_json *types = get(m, "layer_types"), *every = get(m, "sliding_window_pattern");
    const char *letters = sy_json_text(every), *type = sy_json_text(sy_json_at(types, (size_t)l));
    int64_t n = letters ? (int64_t)strlen(letters) : sy_json_int(every, 0);
    *said = type || n > 0;
    if (type) return !strcmp(type, "full_attention");
    if (letters && n > 0) return letters[l % n] == 'G';
    return n > 0 && (l + 1) % n == 0;
}

static void put_window(struct make *m)
{
    int64_t window = sy_json_int(get(m, "sliding_window"), 0);
    if (m->arch->pattern == 0 || window <= 0) return;
    key_u32(m, "attention.sliding_window", window);
    bool usual = true, said = true;
    for (int64_t l = 0; l < m->n_layer && said && m->arch->pattern > 1; l++)
        usual &= full_at(m, l, &said) == ((l + 1) % m->arch->pattern == 0);
    if ((usual || !said) && !m->arch->patterned) return; /* not every reader knows the key */
    array(m, "attention.sliding_window_pattern", SY_GGUF_BOOL, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) sy_buf_char(&m->out->kv, !full_at(m, l, &said));
}

/* What a hybrid's layer is, in Nemotron-H's letters: M * - E. */
static char layer_kind(const struct make *m, int64_t l)
{
    const char *pattern = sy_json_text(get(m, "hybrid_override_pattern"));
    const struct sy_json *types = get(m, "layers_block_type");
    if (!types) types = get(m, "layer_types");
    const char *type = sy_json_text(sy_json_at(types, (size_t)l));
    if (!type) return pattern && (size_t)l < strlen(pattern) ? pattern[l] : 'M';
    return !strcmp(type, "attention") || !strcmp(type, "full_attention") ? '*'
           : !strcmp(type, "mlp")                                        ? '-'
           : !strcmp(type, "moe")                                        ? 'E'
                                                                         : 'M';
}

/* ---- what single architectures have more ---------------------------------------------------------------- */

static void put_gemma(struct make *m, int64_t layers_27b)
{
    int64_t hidden = sy_json_int(get(m, "hidden_size"), 0);
    double scalar = sy_json_number(get(m, "query_pre_attn_scalar"), 256);
    if (scalar != (double)(m->n_layer == layers_27b ? hidden / m->n_head : m->head_dim) && scalar > 0)
        key_f32(m, "attention.scale", 1 / sqrt(scalar));
    copy_num(m, "attn_logit_softcapping", get(m, "attn_logit_softcapping"));
    copy_num(m, "final_logit_softcapping", get(m, "final_logit_softcapping"));
}

static void put_routing(struct make *m)
{
    static const char *const sigmoid[] = {"deepseek2",   "deepseek32", "glm-dsa",    "glm4moe",
                                          "kimi-linear", "lfm2moe",    "minimax-m2", "nemotron_h_moe"};
    const struct sy_json *normed = get(m, is(m, "kimi-linear") ? "moe_renormalize" : "norm_topk_prob");
    for (size_t i = 0; i < SY_COUNT(sigmoid); i++)
        if (is(m, sigmoid[i])) key_u32(m, "expert_gating_func", 2);
    if (sy_json_is_bool(normed)) key_bool(m, "expert_weights_norm", sy_json_bool(normed, false));
}

/* Heads of latent attention: the one that the cache holds, and as long as they are before it is made smaller. */
static void put_mla(struct make *m)
{
    int64_t rank = sy_json_int(get(m, "kv_lora_rank"), 0);
    key_u32(m, "attention.key_length", rank + m->head_dim);
    key_u32(m, "attention.value_length", rank);
    key_u32(m, "attention.key_length_mla", sy_json_int(get(m, "qk_nope_head_dim"), 0) + m->head_dim);
    key_u32(m, "attention.value_length_mla", sy_json_int(get(m, "v_head_dim"), 0));
    if (!is(m, "kimi-linear")) {
        key_u32(m, "attention.head_count_kv", 1);
        return;
    }
    const struct sy_json *delta = get(m, "linear_attn_config"), *full = sy_json_get(delta, "full_attn_layers");
    key_u32(m, "kda.head_dim", sy_json_int(sy_json_get(delta, "head_dim"), 0));
    key_u32(m, "ssm.conv_kernel", sy_json_int(sy_json_get(delta, "short_conv_kernel_size"), 4));
    if (!sy_json_is_number(get(m, "max_position_embeddings")))
        key_u32(m, "context_length", sy_json_int(get(m, "model_max_length"), 2048));
    array(m, "attention.head_count_kv", SY_GGUF_I32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) {
        bool attends = false;
        for (size_t i = 0; i < sy_json_len(full); i++) attends |= sy_json_int(sy_json_at(full, i), 0) == l + 1;
        put_u32(m, attends);
    }
}

/* ---- Gemma 3n and 4 --------------------------------------------------------------------------------------- */

static void put_per_layer(struct make *m)
{
    copy_num(m, "final_logit_softcapping", get(m, "final_logit_softcapping"));
    if (!sy_json_is_number(get(m, "hidden_size_per_layer_input")))
        key_u32(m, "embedding_length_per_layer_input", 256);
    if (!sy_json_is_number(get(m, "num_kv_shared_layers"))) key_u32(m, "attention.shared_kv_layers", 0);
}

static void put_gemma3n(struct make *m)
{
    const struct sy_json *share = get(m, "activation_sparsity_pattern");
    put_per_layer(m);
    if (!sy_json_is_number(get(m, "altup_num_inputs"))) key_u32(m, "altup.num_inputs", 4);
    if (!sy_json_is_number(get(m, "altup_active_idx"))) key_u32(m, "altup.active_idx", 0);
    array(m, "activation_sparsity_scale", SY_GGUF_F32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) {
        double p = sy_json_number(sy_json_at(share, (size_t)l), 0);
        float z = p > 0 ? (float)sy_normal_quantile(p) : -INFINITY;
        sy_buf_add(&m->out->kv, &z, sizeof z);
    }
}

/* A number of the layers that see everything: under a name of its own, or of the first such layer in newer configs.
 */
static int64_t of_full(const struct make *m, const char *name, const char *each, int64_t otherwise)
{
    bool said;
    char layer[24];
    if (sy_json_is_number(get(m, name))) return sy_json_int(get(m, name), otherwise);
    for (int64_t l = 0; l < m->n_layer; l++) {
        if (!full_at(m, l, &said)) continue;
        snprintf(layer, sizeof layer, "%lld", (long long)l);
        return sy_json_int(sy_json_get(sy_json_get(get(m, "per_layer_config"), layer), each), otherwise);
    }
    return otherwise;
}

/* Heads, widths and angles, which the two kinds of layers have each their own of. */
static void put_gemma4(struct make *m)
{
    int64_t n_kv = sy_json_int(get(m, "num_key_value_heads"), m->n_head), n_full = n_kv;
    int64_t d_full = of_full(m, "global_head_dim", "head_dim", m->head_dim);
    int64_t n_shared = sy_json_int(get(m, "num_kv_shared_layers"), 0),
            ff = sy_json_int(get(m, "intermediate_size"), 0);
    const struct sy_json *ropes = get(m, "rope_parameters"), *full = sy_json_get(ropes, "full_attention");
    bool said, wide = n_shared > 0 && sy_json_bool(get(m, "use_double_wide_mlp"), false);
    if (sy_json_bool(get(m, "attention_k_eq_v"), false))
        n_full = of_full(m, "num_global_key_value_heads", "num_key_value_heads", n_kv);
    key_u32(m, "attention.key_length", d_full);
    key_u32(m, "attention.value_length", d_full);
    key_u32(m, "attention.key_length_swa", m->head_dim);
    key_u32(m, "attention.value_length_swa", m->head_dim);
    array(m, "attention.head_count_kv", SY_GGUF_I32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) put_u32(m, (uint32_t)(full_at(m, l, &said) ? n_full : n_kv));
    if (wide) array(m, "feed_forward_length", SY_GGUF_I32, (size_t)m->n_layer);
    else key_u32(m, "feed_forward_length", ff);
    for (int64_t l = 0; wide && l < m->n_layer; l++) put_u32(m, (uint32_t)(l >= m->n_layer - n_shared ? 2 * ff : ff));
    key_u32(m, "rope.dimension_count", d_full);
    key_u32(m, "rope.dimension_count_swa", m->head_dim);
    key_f32(m, "rope.freq_base", sy_json_number(sy_json_get(full, "rope_theta"), 1e6));
    key_f32(m, "rope.freq_base_swa",
            sy_json_number(sy_json_get(sy_json_get(ropes, "sliding_attention"), "rope_theta"), 1e4));
    const char *type = sy_json_text(sy_json_get(full, "rope_type"));
    double share = sy_json_number(sy_json_get(full, "partial_rotary_factor"), 1);
    if (!type || strcmp(type, "proportional") || d_full < 2 || d_full > 8192) return;
    float *f = extra(m, "rope_freqs.weight", d_full / 2);
    for (int64_t i = 0; f && i < d_full / 2; i++) f[i] = i < (int64_t)(share * (double)d_full / 2) ? 1 : 1e30f;
}

static void put_lfm2(struct make *m)
{
    array(m, "attention.head_count_kv", SY_GGUF_I32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(get(m, "layer_types"), (size_t)l));
        bool full = type && !strcmp(type, "full_attention");
        put_u32(m, full ? (uint32_t)sy_json_int(get(m, "num_key_value_heads"), 0) : 0);
    }
    copy_num(m, "attention.layer_norm_rms_epsilon", get(m, "norm_eps"));
    key_u32(m, "shortconv.l_cache", sy_json_int(get(m, "conv_L_cache"), 0));
    if (is(m, "lfm2moe")) key_u32(m, "leading_dense_block_count", sy_json_int(get(m, "num_dense_layers"), 0));
    /* The config's width may be one that is still to be adjusted. */
    const struct sy_tensor *up = sy_checkpoint_find(m->c, "model.layers.0.feed_forward.w1.weight");
    if (up) key_u32(m, "feed_forward_length", up->dim[0]);
}

/* One number a layer: `value` where any of these kinds is what the layer is, else 0. */
static void put_where(struct make *m, const char *tail, const char *kinds, int64_t value, const char *other_kinds,
                      int64_t other)
{
    array(m, tail, SY_GGUF_I32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) {
        char kind = layer_kind(m, l);
        put_u32(m, (uint32_t)(strchr(kinds, kind) ? value : strchr(other_kinds, kind) ? other : 0));
    }
}

static void put_hybrid(struct make *m)
{
    int64_t n_kv = sy_json_int(get(m, "num_key_value_heads"), m->n_head),
            ff = sy_json_int(get(m, "intermediate_size"), 0);
    bool nemotron = !is(m, "granitehybrid");
    int64_t hidden = sy_json_int(get(m, "hidden_size"), 0), expand = sy_json_int(get(m, "mamba_expand"), 2);
    int64_t inner = nemotron ? sy_json_int(get(m, "mamba_num_heads"), 0) * sy_json_int(get(m, "mamba_head_dim"), 0)
                             : expand * hidden;
    put_where(m, "attention.head_count_kv", "*", n_kv, "", 0);
    key_u32(m, "ssm.inner_size", inner);
    if (nemotron) {
        copy_num(m, "attention.layer_norm_epsilon", get(m, "layer_norm_epsilon")); /* asked for by other readers */
        put_where(m, "feed_forward_length", "-", ff, "E", sy_json_int(get(m, "moe_intermediate_size"), 0));
        return;
    }
    const char *type = sy_json_text(get(m, "position_embedding_type"));
    if (sy_gguf_experts(m->cfg) == 0) ff = sy_json_int(get(m, "shared_intermediate_size"), 0);
    key_u32(m, "feed_forward_length", ff);
    key_bool(m, "rope.scaling.finetuned", type && !strcmp(type, "rope"));
}

static void put_llama4(struct make *m)
{
    int64_t chunk = sy_json_int(get(m, "attention_chunk_size"), 8192);
    const struct sy_json *ropes = get(m, "no_rope_layers");
    int64_t every = sy_json_int(get(m, "no_rope_layer_interval"), 4);
    bool usual = true;
    key_u32(m, "feed_forward_length",
            sy_json_int(get(m, "intermediate_size_mlp"), 2 * sy_json_int(get(m, "intermediate_size"), 0)));
    if (!sy_json_is_number(get(m, "interleave_moe_layer_step"))) key_u32(m, "interleave_moe_layer_step", 1);
    if (chunk != 8192) key_u32(m, "attention.sliding_window", chunk);
    for (int pass = 0; pass < 2; pass++) {
        if (pass && usual) break; /* not every reader knows the key */
        if (pass) array(m, "attention.sliding_window_pattern", SY_GGUF_BOOL, (size_t)m->n_layer);
        for (int64_t l = 0; l < m->n_layer; l++) {
            bool roped = every < 1 || (l + 1) % every != 0;
            if (sy_json_len(ropes)) roped = sy_json_int(sy_json_at(ropes, (size_t)l), 1) != 0;
            usual &= roped == ((l + 1) % 4 != 0);
            if (pass) sy_buf_char(&m->out->kv, roped);
        }
    }
}

/* What models of mixers alone have. */
static void put_mamba2(struct make *m)
{
    key_u32(m, "feed_forward_length", 0);
    key_u32(m, "attention.head_count", 0);
    key_u32(m, "ssm.inner_size", sy_json_int(get(m, "num_heads"), 0) * sy_json_int(get(m, "head_dim"), 0));
    if (!sy_json_is_number(get(m, "max_position_embeddings"))) key_u32(m, "context_length", 1 << 20);
    if (!sy_json_is_number(get(m, "layer_norm_epsilon"))) key_f32(m, "attention.layer_norm_rms_epsilon", 1e-5);
}

/* A number of `name` that GGUF has no key for, at place i of a list where it is one. */
static void only_one(struct make *m, const char *name, size_t i)
{
    const struct sy_json *v = get(m, name);
    if (sy_json_is_array(v)) v = sy_json_at(v, i);
    if (sy_json_is_number(v) && sy_json_number(v, 1) != 1 && !m->err->code)
        (void)sy_fail(
            m->err, SY_ENOSUP,
            "'%s': '%s' %g: a GGUF of %s has no key for it; llama.cpp multiplies it into the weights, which "
            "rounds them",
            m->c->path, name, sy_json_number(v, 1), m->arch->name);
}

static void put_falcon_h1(struct make *m)
{
    static const char *const names[] = {"embedding_multiplier",     "lm_head_multiplier", "key_multiplier",
                                        "attention_in_multiplier",  "ssm_in_multiplier",  "ssm_out_multiplier",
                                        "attention_out_multiplier", "ssm_multipliers",    "mlp_multipliers"};
    for (size_t k = 0; k < SY_COUNT(names); k++)
        for (size_t i = 0; i < 5; i++) only_one(m, names[k], i);
    if (!sy_json_is_number(get(m, "mamba_d_ssm")))
        key_u32(m, "ssm.inner_size", sy_json_int(get(m, "mamba_expand"), 2) * sy_json_int(get(m, "hidden_size"), 0));
}

/* Sections of the angles by time, height and width: of text all are the same. llama.cpp asks for them. */
static void put_sections(struct make *m)
{
    const struct sy_json *list = sy_json_get(get(m, "rope_parameters"), "mrope_section");
    int64_t n = rope_dims(m) / 2;
    array(m, "rope.dimension_sections", SY_GGUF_I32, 4);
    for (size_t i = 0; i < 4; i++)
        put_u32(m, (uint32_t)sy_json_int(sy_json_at(list, i), i < 3 && !list ? (n + 2 - (int64_t)i) / 3 : 0));
}

/* Of a kind of layers the number that every reader has for it; others it has no key for. */
static int64_t compress_ratio(const struct make *m, int64_t l)
{
    const struct sy_json *types = get(m, "layer_types"), *ratios = get(m, "compress_ratios");
    const char *type = sy_json_text(sy_json_at(types, (size_t)l));
    if (type) return !strcmp(type, "sliding_attention") ? 0 : !strcmp(type, "compressed_sparse_attention") ? 4 : 128;
    if (sy_json_is_array(ratios)) return sy_json_int(sy_json_at(ratios, (size_t)l), 0);
    return l < 2 || l % 2 == 0 ? 128 : 4;
}

static void put_deepseek4(struct make *m)
{
    static const struct {
        const char *gguf, *hf;
        int64_t usual;
    } ints[] = {{"attention.sliding_window", "sliding_window", 128},
                {"attention.output_group_count", "o_groups", 8},
                {"attention.output_lora_rank", "o_lora_rank", 1024},
                {"attention.indexer.head_count", "index_n_heads", 64},
                {"attention.indexer.key_length", "index_head_dim", 128},
                {"attention.indexer.top_k", "index_topk", 512},
                {"hyper_connection.count", "hc_mult", 4},
                {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", 20},
                {"expert_shared_count", "n_shared_experts", 1}};
    static const char *const clamps[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    const struct sy_json *kinds = get(m, "mlp_layer_types");
    for (size_t i = 0; i < SY_COUNT(ints); i++)
        if (!sy_json_is_number(get(m, ints[i].hf))) key_u32(m, ints[i].gguf, ints[i].usual);
    if (!sy_json_is_number(get(m, "hc_eps"))) key_f32(m, "hyper_connection.epsilon", 1e-6);
    if (!sy_json_is_number(get(m, "routed_scaling_factor"))) key_f32(m, "expert_weights_scale", 1.5);
    if (!sy_json_is_number(get(m, "num_hash_layers"))) {
        const char *type;
        int64_t n = 0;
        while ((type = sy_json_text(sy_json_at(kinds, (size_t)n))) && !strcmp(type, "hash_moe")) n++;
        key_u32(m, "hash_layer_count", kinds ? n : 3);
    }
    key_u32(m, "expert_gating_func", 4);
    key_u32(m, "embedding_length_out", sy_json_int(get(m, "hidden_size"), 0) * sy_json_int(get(m, "hc_mult"), 4));
    float limit = (float)sy_json_number(get(m, "swiglu_limit"), 10);
    for (size_t i = 0; i < SY_COUNT(clamps); i++) {
        array(m, clamps[i], SY_GGUF_F32, (size_t)m->n_layer);
        for (int64_t l = 0; l < m->n_layer; l++) sy_buf_add(&m->out->kv, &limit, sizeof limit);
    }
    array(m, "attention.compress_ratios", SY_GGUF_I32, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) put_u32(m, (uint32_t)compress_ratio(m, l));
}

/* One number for what the residual is multiplied by; layers that do not attend by an interval, or else listed. */
static void put_minimax_01(struct make *m)
{
    bool said, fits = false;
    int64_t every = 0;
    key_f32(m, "residual_scale", sy_json_number(get(m, "full_attn_alpha_factor"), 1));
    while (!fits && every++ <= m->n_layer) {
        fits = true;
        for (int64_t l = 0; l < m->n_layer && fits; l++) fits = full_at(m, l, &said) == ((l + 1) % every == 0);
    }
    if (fits) {
        key_u32(m, "full_attention_interval", every);
        return;
    }
    array(m, "attention.recurrent_layers", SY_GGUF_BOOL, (size_t)m->n_layer);
    for (int64_t l = 0; l < m->n_layer; l++) sy_buf_char(&m->out->kv, !full_at(m, l, &said));
}

static void put_more(struct make *m)
{
    bool qwen35 = is(m, "qwen35") || is(m, "qwen35moe");
    if (qwen35) put_sections(m);
    if (is(m, "gemma3n")) put_gemma3n(m);
    if (is(m, "gemma4")) put_per_layer(m);
    if (is(m, "falcon-h1")) put_falcon_h1(m);
    if (is(m, "qwen3next") || qwen35)
        key_u32(m, "ssm.inner_size",
                sy_json_int(get(m, "linear_num_value_heads"), 0) * sy_json_int(get(m, "linear_value_head_dim"), 0));
    if (is(m, "llama4")) put_llama4(m);
    if (is(m, "minimax-01")) put_minimax_01(m);
    if (is(m, "deepseek4")) put_deepseek4(m);
    if (m->arch->hybrid) put_hybrid(m);

    if (is(m, "gemma2")) put_gemma(m, 46);
    if (is(m, "gemma3")) put_gemma(m, 62);
    if (is(m, "cohere2")) copy_num(m, "logit_scale", get(m, "logit_scale"));
}

/* ---- the tokenizer -------------------------------------------------------------------------------------- */

static void put_texts(struct make *m, const char *tail, const struct sy_text *t, size_t n)
{
    array(m, tail, SY_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) put_text(m, t[i].at, t[i].n);
}

static void put_vocab(struct make *m, const struct sy_gguf_vocab *v)
{
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", v->bos},       {"tokenizer.ggml.eos_token_id", v->eos},
               {"tokenizer.ggml.eot_token_id", v->eot},       {"tokenizer.ggml.eom_token_id", v->eom},
               {"tokenizer.ggml.unknown_token_id", v->unk},   {"tokenizer.ggml.padding_token_id", v->pad},
               {"tokenizer.ggml.seperator_token_id", v->sep}, {"tokenizer.ggml.cls_token_id", v->cls}};
    const struct {
        const char *key;
        int value;
    } flags[] = {{"tokenizer.ggml.add_bos_token", v->add_bos},
                 {"tokenizer.ggml.add_eos_token", v->add_eos},
                 {"tokenizer.ggml.add_space_prefix", v->add_space_prefix},
                 {"tokenizer.ggml.remove_extra_whitespaces", v->remove_extra_whitespaces}};
    key_text(m, "tokenizer.ggml.model", v->model, strlen(v->model));
    key_text(m, "tokenizer.ggml.pre", v->pre, strlen(v->pre));
    put_texts(m, "tokenizer.ggml.tokens", v->token, v->n_token);
    array(m, "tokenizer.ggml.token_type", SY_GGUF_I32, v->n_token);
    sy_buf_add(&m->out->kv, v->type, v->n_token * sizeof *v->type);
    if (v->score) {
        array(m, "tokenizer.ggml.scores", SY_GGUF_F32, v->n_token);
        sy_buf_add(&m->out->kv, v->score, v->n_token * sizeof *v->score);
    }
    if (v->merge) put_texts(m, "tokenizer.ggml.merges", v->merge, v->n_merge);
    if (v->charsmap) {
        array(m, "tokenizer.ggml.precompiled_charsmap", SY_GGUF_U8, v->n_charsmap);
        sy_buf_add(&m->out->kv, v->charsmap, v->n_charsmap);
    }
    for (size_t i = 0; i < SY_COUNT(ids); i++)
        if (ids[i].id >= 0) key_u32(m, ids[i].key, ids[i].id);
    for (size_t i = 0; i < SY_COUNT(flags); i++)
        if (flags[i].value >= 0) key_bool(m, flags[i].key, flags[i].value != 0);
}

/* ---- together ------------------------------------------------------------------------------------------- */

static const struct sy_json *experts_of(const struct sy_json *config)
{
    static const char *const same[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    const struct sy_json *v = NULL;
    for (size_t i = 0; i < SY_COUNT(same) && !sy_json_is_number(v); i++) v = sy_json_get(config, same[i]);
    return v;
}

int64_t sy_gguf_experts(const struct sy_json *config) { return sy_json_int(experts_of(config), 0); }

int64_t sy_gguf_ssm_groups(const struct sy_json *config)
{
    return sy_json_int(sy_json_get(config, "n_groups"), sy_json_int(sy_json_get(config, "mamba_n_groups"), 1));
}

/* A key of the tables; the number of experts goes by three names. */
static const struct sy_json *find(const struct make *m, const char *name)
{
    const struct sy_json *v = get(m, name);
    bool experts =
        !strcmp(name, "num_local_experts") || !strcmp(name, "num_experts") || !strcmp(name, "n_routed_experts");
    return experts && !sy_json_is_number(v) ? experts_of(m->cfg) : v;
}

/* Keys that put_more() and its like write otherwise. */
static bool is_own(const struct make *m, const struct sy_key_rule *r)
{
    bool width = !strcmp(r->gguf, "feed_forward_length"), eps = !strcmp(r->hf, "rms_norm_eps");
    if (!strncmp(m->arch->name, "lfm2", 4)) return eps || width;
    if (!strncmp(m->arch->name, "nemotron_h", 10)) return eps || width;
    return width && (m->arch->hybrid || is(m, "llama4") || is(m, "gemma4"));
}

static void put_tables(struct make *m)
{
    const struct sy_key_rule *table[SY_KEY_TABLES + 1];
    sy_gguf_keys(m->arch, table);
    for (size_t i = 0; table[i]; i++)
        for (const struct sy_key_rule *r = table[i]; r->gguf; r++) {
            const struct sy_json *v = find(m, r->hf);
            if (r->type == SY_KEY_LAYERS && sy_json_is_array(v)) v = sy_json_at(v, 0); /* all of them are the same */
            /* As many as come along. */
            if (!sy_json_is_number(v) || !strcmp(r->hf, "num_nextn_predict_layers")) continue;
            if (is_own(m, r)) continue;
            if (r->type == SY_KEY_NUM) key_f32(m, r->gguf, sy_json_number(v, 0));
            else key_u32(m, r->gguf, sy_json_int(v, -1));
        }
}

static void put_general(struct make *m, uint32_t file_type)
{
    const char *name = m->c->path, *end = name + strlen(name);
    while (end > name && end[-1] == '/') end--;
    for (const char *p = name; p < end; p++)
        if (*p == '/') name = p + 1;
    key_text(m, "general.architecture", m->arch->name, strlen(m->arch->name));
    key_text(m, "general.type", "model", 5);
    key_text(m, "general.name", name, (size_t)(end - name));
    key_u32(m, "general.file_type", file_type);
    key_u32(m, "general.quantization_version", 2);
}

/* What every model with attention has. */
static sy_status put_attending(struct make *m)
{
    bool lfm2 = is(m, "lfm2") || is(m, "lfm2moe"), mla = is_latent(m), four = is(m, "gemma4");
    m->n_head = sy_json_int(get(m, "num_attention_heads"), 0);
    int64_t hidden = sy_json_int(get(m, "hidden_size"), 0);
    if (m->n_head < 1 || hidden < m->n_head || hidden > INT32_MAX)
        return sy_fail(m->err, SY_EFORMAT, "'%s': expected 'num_attention_heads' and 'hidden_size' above 0",
                       m->c->path);
    m->head_dim = sy_json_int(get(m, mla ? "qk_rope_head_dim" : "head_dim"), hidden / m->n_head);
    if (m->head_dim < 2 || m->head_dim > 1 << 20)
        return sy_fail(m->err, SY_EFORMAT, "'%s': expected heads of 2 dims or more, found %lld", m->c->path,
                       (long long)m->head_dim);
    if (lfm2) put_lfm2(m);
    else if (!mla && !m->arch->hybrid && !four)
        key_u32(m, "attention.head_count_kv", sy_json_int(get(m, "num_key_value_heads"), m->n_head));
    if (mla) put_mla(m);
    else if (four) put_gemma4(m);
    else {
        key_u32(m, "attention.key_length", m->head_dim);
        key_u32(m, "attention.value_length", m->head_dim);
    }
    if (is(m, "deepseek4")) put_ropes(m);
    else if (!four) put_rope(m);
    put_window(m);
    put_routing(m);
    return m->err->code;
}

sy_status sy_gguf_make(const struct sy_checkpoint *c, const struct sy_gguf_arch *arch,
                       const struct sy_gguf_vocab *vocab, uint32_t file_type, int64_t n_next, struct sy_arena *mem,
                       struct sy_gguf_made *out, struct sy_err *err)
{
    struct make m = {.c = c, .arch = arch, .cfg = c->config, .mem = mem, .out = out, .err = err};
    sy_buf_init(&out->kv, c->env, 0);
    m.n_layer = sy_json_int(get(&m, "num_hidden_layers"), (int64_t)sy_json_len(get(&m, "layers_block_type")));
    if (m.n_layer < 1 || m.n_layer > SY_CKPT_LAYERS_MAX)
        return sy_fail(err, SY_EFORMAT, "'%s': expected 'num_hidden_layers' above 0", c->path);
    put_general(&m, file_type);
    key_u32(&m, "block_count", m.n_layer + n_next); /* counts them, too */
    if (n_next > 0) key_u32(&m, "nextn_predict_layers", n_next);
    put_tables(&m);
    key_u32(&m, "vocab_size", sy_json_int(get(&m, "vocab_size"), 0));
    if (is(&m, "mamba2")) put_mamba2(&m);
    else if (put_attending(&m)) return err->code;
    put_more(&m);
    if (vocab) put_vocab(&m, vocab);
    else key_text(&m, "tokenizer.ggml.model", "none", 4); /* other readers ask for it */
    if (c->chat_template) key_text(&m, "tokenizer.chat_template", c->chat_template, c->n_chat_template);
    if (out->kv.failed) return sy_fail(err, SY_ENOMEM, "no memory to convert");
    return err->code;
}
