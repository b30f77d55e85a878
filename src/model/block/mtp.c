/* mtp.c - what heads for one token more have in common. */
#include "model/model.h"

sy_val sy_build_mtp_input(struct sy_graph *g, const struct sy_decoder *d, int l, const struct sy_mtp_opt *o)
{
    sy_val e =
        sy_norm(g, sy_build_embed(g, d), sy_norm_weight(g, o->norm_e, l, d->d_model, o->norm_plus_one), d->eps);
    sy_val h =
        sy_norm(g, sy_given(g, d->d_model), sy_norm_weight(g, o->norm_h, l, d->d_model, o->norm_plus_one), d->eps);
    return sy_linear(g, sy_join(g, e, h), sy_weight(g, SY_WHOLE, o->proj, l, d->d_model, 2 * (int64_t)d->d_model),
                     SY_NONE);
}

sy_val sy_build_mtp_head(struct sy_graph *g, const struct sy_decoder *d, int l, sy_val x, const char *norm,
                         bool norm_plus_one)
{
    x = sy_norm(g, sy_rows(g, x), sy_norm_weight(g, norm, l, d->d_model, norm_plus_one), d->eps);
    return sy_sample(g, sy_build_logits(g, d, x));
}
