/* Nemotron-H (transformers: NemotronHForCausalLM; arXiv:2504.03624): each layer is one mixer, a Mamba-2 (M),
 * attention without rope (*), an MLP (-) or experts (E), both of relu squared. */
#include <math.h>
#include <string.h>

#include "model/model.h"

struct nemotron_h {
    struct sy_decoder d;
    struct sy_mamba2 mixer;
    struct sy_moe_opt moe;
    char *kind; /* [n_layer] M * - E */
    int32_t d_shared;
};

/* "layers_block_type", a list of names, in newer configs. */
static sy_status open_types(struct sy_arena *a, struct sy_jread *c, struct nemotron_h *m, const struct sy_json *types)
{
    static const struct {
        const char *name;
        char kind;
    } known[] = {{"mamba", 'M'}, {"linear_attention", 'M'}, {"attention", '*'}, {"full_attention", '*'}, {"mlp", '-'},
                 {"moe", 'E'}};
    size_t n = (size_t)m->d.n_layer;
    m->kind = sy_arena_array(a, n + 1, 1);
    if (!m->kind) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_json_len(types) != n)
        return sy_jread_refuse(c, SY_EFORMAT, "'layers_block_type': expected %zu entries, found %zu", n,
                               sy_json_len(types));
    for (size_t l = 0; l < n; l++) {
        const char *type = sy_json_text(sy_json_at(types, l));
        for (size_t i = 0; type && i < SY_COUNT(known); i++)
            if (!strcmp(type, known[i].name)) m->kind[l] = known[i].kind;
        if (!m->kind[l])
            return sy_jread_refuse(c, SY_ENOSUP, "'layers_block_type'[%zu]: '%s' is not supported", l,
                                   type ? type : "");
    }
    return c->st;
}

static sy_status open_pattern(struct sy_arena *a, struct sy_jread *c, struct nemotron_h *m)
{
    const struct sy_json *types = sy_json_get(c->obj, "layers_block_type");
    if (sy_json_is_array(types)) return open_types(a, c, m, types);
    const char *pattern = sy_jread_text(c, "hybrid_override_pattern");
    size_t n = (size_t)m->d.n_layer;
    m->kind = sy_arena_text(a, pattern ? pattern : "", pattern ? strlen(pattern) : 0);
    if (!m->kind) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (c->st) return c->st;
    if (strlen(m->kind) != n || strspn(m->kind, "M*-E") != n)
        return sy_jread_refuse(c, SY_EFORMAT, "'hybrid_override_pattern': expected %zu of 'M*-E', found '%s'", n,
                               m->kind);
    return c->st;
}

static sy_status open_mixer(struct sy_jread *c, struct nemotron_h *m)
{
    struct sy_mamba2 *x = &m->mixer;
    *x = (struct sy_mamba2){
        .prefix = "backbone.layers.%d.mixer.",
        .d_model = m->d.d_model,
        .n_head = (int32_t)sy_jread_int(c, "mamba_num_heads", 1, 1 << 16),
        .d_head = (int32_t)sy_jread_int(c, "mamba_head_dim", 1, 8192),
        .n_group = (int32_t)sy_jread_int_or(c, "n_groups", 8, 1, 1 << 16),
        .d_state = (int32_t)sy_jread_int_or(c, "ssm_state_size", 128, 1, 8192),
        .n_tap = (int32_t)sy_jread_int_or(c, "conv_kernel", 4, 2, 64),
        .conv_bias = sy_jread_bool_or(c, "use_conv_bias", true),
        .proj_bias = sy_jread_bool_or(c, "mamba_proj_bias", sy_jread_bool_or(c, "use_bias", false)),
        .norm = SY_MAMBA_GATE_FIRST,
        .eps = m->d.eps,
    };
    x->n_norm_group = x->n_group;
    if (x->n_head % x->n_group)
        return sy_jread_refuse(c, SY_EFORMAT, "'mamba_num_heads' %d is not a multiple of 'n_groups' %d", x->n_head,
                               x->n_group);
    return sy_mamba2_limits(c);
}

static sy_status open_moe(struct sy_jread *c, struct nemotron_h *m)
{
    m->moe = (struct sy_moe_opt){
        .router = "backbone.layers.%d.mixer.gate.weight",
        .choice_bias = "backbone.layers.%d.mixer.gate.e_score_correction_bias",
        .experts_in = "backbone.layers.%d.mixer.experts.#.up_proj.weight",
        .experts_out = "backbone.layers.%d.mixer.experts.#.down_proj.weight",
        .route = {.score = SY_SCORE_SIGMOID, .eps = 1e-20f},
    };
    if (sy_moe_open(c, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", &m->moe)) return c->st;
    m->moe.moe.gated = false;
    m->moe.moe.glu.fn = SY_RELU2;
    m->d_shared = (int32_t)sy_jread_int_or(c, "moe_shared_expert_intermediate_size", 0, 0, 1 << 20);
    if (sy_jread_int_or(c, "n_shared_experts", 1, 0, 1 << 10) == 0) m->d_shared = 0;
    return sy_moe_open_sigmoid(c, "n_group", "norm_topk_prob", &m->moe);
}

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct nemotron_h *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    if (sy_decoder_open(c, &m->d, false, info)) return c->st;
    m->d.eps = (float)sy_jread_num_or(c, "layer_norm_epsilon", 1e-5, 0, 1);
    if (strcmp(sy_jread_text_or(c, "mlp_hidden_act", "relu2"), "relu2"))
        return sy_jread_refuse(c, SY_ENOSUP, "'mlp_hidden_act': only relu2 is supported");
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < SY_COUNT(biases); i++)
        if (sy_jread_bool_or(c, biases[i], false))
            return sy_jread_refuse(c, SY_ENOSUP, "'%s' is not supported", biases[i]);
    if (sy_jread_has(c, "moe_latent_size"))
        return sy_jread_refuse(c, SY_ENOSUP, "'moe_latent_size' is not supported");
    if (open_pattern(a, c, m) || open_mixer(c, m)) return c->st;
    return strchr(m->kind, 'E') ? open_moe(c, m) : c->st;
}

static sy_val linear(struct sy_graph *g, int l, sy_val x, enum sy_split split, const char *name, int64_t rows,
                     int64_t cols)
{
    return sy_linear(g, x, sy_weight(g, split, name, l, rows, cols), SY_NONE);
}

static sy_val attention(struct sy_graph *g, const struct nemotron_h *m, int l, sy_val x)
{
    const struct sy_decoder *d = &m->d;
    int32_t q_dim = d->n_head * d->d_head, kv_dim = d->n_kv * d->d_head, all = q_dim + 2 * kv_dim;
    sy_val qkv = linear(g, l, x, SY_BY_OUT, "backbone.layers.%d.mixer.{q,k,v}_proj.weight", all, d->d_model);
    sy_val kv = sy_state(g, (struct sy_state_spec){.kind = SY_BLOCKS, .layer = l, .elems = 2 * (int64_t)kv_dim});
    sy_val a = sy_attend(g, sy_part(g, qkv, 0, q_dim), sy_part(g, qkv, q_dim, q_dim + kv_dim),
                         sy_part(g, qkv, q_dim + kv_dim, all), kv,
                         (struct sy_attn_dim){.n_head = d->n_head,
                                              .n_kv = d->n_kv,
                                              .d_key = d->d_head,
                                              .d_val = d->d_head,
                                              .scale = 1 / sqrtf((float)d->d_head)});
    return linear(g, l, a, SY_BY_IN, "backbone.layers.%d.mixer.o_proj.weight", d->d_model, q_dim);
}

/* down(relu(up x)^2) */
static sy_val relu2(struct sy_graph *g, const struct nemotron_h *m, int l, sy_val x, const char *up, const char *down,
                    int32_t d_ff)
{
    sy_val h = sy_act(g, linear(g, l, x, SY_BY_OUT, up, d_ff, m->d.d_model), SY_RELU2);
    return linear(g, l, h, SY_BY_IN, down, m->d.d_model, d_ff);
}

static sy_val mixer(struct sy_graph *g, const struct nemotron_h *m, int l, sy_val x)
{
    if (m->kind[l] == 'M') return sy_build_mamba2(g, &m->mixer, l, x);
    if (m->kind[l] == '*') return attention(g, m, l, x);
    if (m->kind[l] == '-')
        return relu2(g, m, l, x, "backbone.layers.%d.mixer.up_proj.weight",
                     "backbone.layers.%d.mixer.down_proj.weight", m->d.d_ff);
    sy_val y = sy_build_moe(g, &m->d, l, x, x, &m->moe);
    if (m->d_shared == 0) return y;
    return sy_add(g, y,
                  relu2(g, m, l, x, "backbone.layers.%d.mixer.shared_experts.up_proj.weight",
                        "backbone.layers.%d.mixer.shared_experts.down_proj.weight", m->d_shared));
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct nemotron_h *m = hp;
    const struct sy_decoder *d = &m->d;
    const char *table = "backbone.embeddings.weight";
    sy_val x = sy_embed(g, sy_weight(g, SY_WHOLE, table, -1, d->n_vocab, d->d_model), sy_input(g, SY_TOK));
    for (int l = 0; l < d->n_layer; l++)
        x = sy_add(g, mixer(g, m, l, sy_build_norm(g, d, "backbone.layers.%d.norm.weight", l, x)), x);
    x = sy_build_norm(g, d, "backbone.norm_f.weight", -1, sy_rows(g, x));
    return sy_sample(g, linear(g, -1, x, SY_BY_OUT, d->tied ? table : "lm_head.weight", d->n_vocab, d->d_model));
}

static const char *const claims[] = {"NemotronHForCausalLM", NULL};
const struct sy_arch sy_arch_nemotron_h = {"nemotron_h", claims, open, build};
