/* Mamba-2 (transformers: Mamba2ForCausalLM): no attention; each layer is one mixer. */
#include "model/model.h"

struct mamba2 {
    struct sy_decoder d;
    struct sy_mamba2 mixer;
};

static sy_status open(struct sy_arena *a, struct sy_jread *c, struct sy_info *info, void **hp)
{
    struct mamba2 *m = *hp = sy_arena_get(a, sizeof *m);
    if (!m) return sy_jread_refuse(c, SY_ENOMEM, "no memory");
    m->d = (struct sy_decoder){.n_layer = (int32_t)sy_jread_int(c, "num_hidden_layers", 1, 1024),
                               .d_model = (int32_t)sy_jread_int(c, "hidden_size", 1, 1 << 20),
                               .n_vocab = (int32_t)sy_jread_int(c, "vocab_size", 1, 1 << 24),
                               .n_ctx = (int32_t)sy_jread_int_or(c, "max_position_embeddings", 1 << 20, 1, 1 << 30),
                               .eps = (float)sy_jread_num_or(c, "layer_norm_epsilon", 1e-5, 0, 1),
                               .tied = sy_jread_bool_or(c, "tie_word_embeddings", false)};
    m->mixer = (struct sy_mamba2){.prefix = "backbone.layers.%d.mixer.",
                                  .d_model = m->d.d_model,
                                  .n_head = (int32_t)sy_jread_int(c, "num_heads", 1, 1 << 16),
                                  .d_head = (int32_t)sy_jread_int(c, "head_dim", 1, 8192),
                                  .n_group = (int32_t)sy_jread_int_or(c, "n_groups", 8, 1, 1 << 16),
                                  .d_state = (int32_t)sy_jread_int_or(c, "state_size", 128, 1, 8192),
                                  .n_tap = (int32_t)sy_jread_int_or(c, "conv_kernel", 4, 2, 64),
                                  .conv_bias = sy_jread_bool_or(c, "use_conv_bias", true),
                                  .proj_bias = sy_jread_bool_or(c, "use_bias", false),
                                  .norm = SY_MAMBA_GATE_FIRST,
                                  .eps = m->d.eps};
    m->mixer.n_norm_group = m->mixer.n_group;
    enum sy_fn fn;
    if (sy_fn_open(c, "hidden_act", "silu", &fn) || sy_mamba2_limits(c)) return c->st;
    if (fn != SY_SILU) return sy_jread_refuse(c, SY_ENOSUP, "'hidden_act': only silu is supported");
    if (sy_jread_bool_or(c, "norm_before_gate", false))
        return sy_jread_refuse(c, SY_ENOSUP, "'norm_before_gate' is not supported");
    if (m->mixer.n_head % m->mixer.n_group)
        return sy_jread_refuse(c, SY_EFORMAT, "'num_heads' %d is not a multiple of 'n_groups' %d", m->mixer.n_head,
                               m->mixer.n_group);
    *info = (struct sy_info){
        .n_vocab = m->d.n_vocab, .n_ctx = m->d.n_ctx, .n_layer = m->d.n_layer, .d_model = m->d.d_model};
    return c->st;
}

static sy_val build(struct sy_graph *g, const void *hp)
{
    const struct mamba2 *m = hp;
    const struct sy_decoder *d = &m->d;
    const char *table = "backbone.embeddings.weight";
    sy_val x = sy_embed(g, sy_weight(g, SY_WHOLE, table, -1, d->n_vocab, d->d_model), sy_input(g, SY_TOK));
    for (int l = 0; l < d->n_layer; l++) {
        sy_val n = sy_norm(g, x, sy_norm_weight(g, "backbone.layers.%d.norm.weight", l, d->d_model, false), d->eps);
        x = sy_add(g, sy_build_mamba2(g, &m->mixer, l, n), x);
    }
    x = sy_norm(g, sy_rows(g, x), sy_norm_weight(g, "backbone.norm_f.weight", -1, d->d_model, false), d->eps);
    const char *head = d->tied ? table : "lm_head.weight";
    return sy_sample(g, sy_linear(g, x, sy_weight(g, SY_BY_OUT, head, -1, d->n_vocab, d->d_model), SY_NONE));
}

static const char *const claims[] = {"Mamba2ForCausalLM", NULL};
const struct sy_arch sy_arch_mamba2 = {"mamba2", claims, open, build};
