/* The Mamba-2 mixer that several architectures share (arXiv:2405.21060; transformers: Mamba2Mixer and its kin). */
#include <stdio.h>

#include "model/model.h"

sy_status sy_mamba2_limits(struct sy_jread *c)
{
    const struct sy_json *limit = sy_json_get(c->obj, "time_step_limit");
    double lo = sy_json_number(sy_json_at(limit, 0), 0), hi = sy_json_number(sy_json_at(limit, 1), 1e300);
    if (sy_json_is_array(limit) && (lo > 0 || hi < 1e30))
        return sy_jread_refuse(c, SY_ENOSUP, "'time_step_limit' [%g, %g] is not supported; [0, Infinity] is", lo, hi);
    return c->st;
}

static sy_val vec(struct sy_graph *g, const struct sy_mamba2 *m, int l, const char *name, int64_t d, enum sy_wmap map,
                  int32_t repeat)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", m->prefix, name);
    return sy_vector(g, full, l, d, map, repeat);
}

static sy_val linear(struct sy_graph *g, const struct sy_mamba2 *m, int l, sy_val x, const char *name,
                     enum sy_split split, int64_t rows, int64_t cols)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s.weight", m->prefix, name);
    sy_val w = sy_weight(g, split, full, l, rows, cols);
    snprintf(full, sizeof full, "%s%s.bias", m->prefix, name);
    return sy_linear(g, x, w, m->proj_bias ? sy_vector(g, full, l, rows, SY_AS_IS, 1) : SY_NONE);
}

/* The gate and the norm, in the order of the model. */
static sy_val gated(struct sy_graph *g, const struct sy_mamba2 *m, int l, sy_val y, sy_val z)
{
    int32_t d = m->n_head * m->d_head;
    if (m->norm != SY_MAMBA_NORM_FIRST) y = sy_glu(g, z, y, SY_SILU);
    if (m->norm != SY_MAMBA_NO_NORM) {
        y = sy_norm_unit(g, y, d / m->n_norm_group, m->eps);
        y = sy_mul(g, y, vec(g, m, l, "norm.weight", d, SY_AS_IS, 1));
    }
    return m->norm == SY_MAMBA_NORM_FIRST ? sy_glu(g, z, y, SY_SILU) : y;
}

sy_val sy_build_mamba2(struct sy_graph *g, const struct sy_mamba2 *m, int l, sy_val x)
{
    int32_t d = m->n_head * m->d_head, side = m->n_group * m->d_state, mixed = d + 2 * side,
            all = d + mixed + m->n_head;
    sy_val in = linear(g, m, l, x, "in_proj", SY_BY_OUT, all, m->d_model);
    if (m->in_scale) in = sy_mul(g, in, sy_const(g, m->in_scale, all));
    sy_val z = sy_part(g, in, 0, d), conv = sy_part(g, in, d, d + mixed), dt = sy_part(g, in, d + mixed, all);
    sy_val window =
        sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)(m->n_tap - 1) * mixed});
    conv = sy_conv(g, conv, vec(g, m, l, "conv1d.weight", (int64_t)mixed * m->n_tap, SY_AS_IS, 1),
                   m->conv_bias ? vec(g, m, l, "conv1d.bias", mixed, SY_AS_IS, 1) : SY_NONE, window);
    conv = sy_act(g, conv, SY_SILU);
    dt = sy_act(g, sy_add(g, dt, vec(g, m, l, "dt_bias", m->n_head, SY_AS_IS, 1)), SY_SOFTPLUS);
    sy_val decay = sy_mul(g, dt, vec(g, m, l, "A_log", m->n_head, SY_NEG_EXP, 1));
    sy_val v = sy_part(g, conv, 0, d), k = sy_part(g, conv, d, d + side), q = sy_part(g, conv, d + side, mixed);
    sy_val s = sy_state(g, (struct sy_state_spec){.kind = SY_SLOTS, .layer = l, .elems = (int64_t)d * m->d_state});
    sy_val y =
        sy_scan(g, q, k, v, decay, dt, s, (struct sy_scan_dim){m->n_group, m->n_head, m->d_state, m->d_head, false});
    y = sy_add(g, y, sy_mul(g, v, vec(g, m, l, "D", d, SY_AS_IS, m->d_head)));
    return linear(g, m, l, gated(g, m, l, y, z), "out_proj", SY_BY_IN, m->d_model, d);
}
