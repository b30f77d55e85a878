#include "backend/sim/timer.h"

#include <math.h>

const struct sy_consts sy_consts_roofline = {{[SY_CONST_WEIGHT] = 1, [SY_CONST_KV] = 1, [SY_CONST_FLOPS] = 1}};

const char *sy_const_name(enum sy_const c)
{
    static const char *const names[] = {"layer_us",     "sequence_us", "weight_bandwidth",
                                        "kv_bandwidth", "arithmetic",  "crowding"};
    return (unsigned)c < SY_COUNT(names) ? names[c] : "?";
}

static double max2(double a, double b) { return a > b ? a : b; }

static double min2(double a, double b) { return a < b ? a : b; }

/* Seconds per byte of an all-reduce over n chips: ring bound, 2 (n-1)/n of the data through what a chip can send.
 * A mesh of k axes has 2k links a chip but those at its rim; a torus all of them. Beyond `world` chips the slow
 * network carries what is left after the fast links have reduced. */
static double reduce_per_byte(const struct sy_chip *c, int32_t n)
{
    if (n <= 1) return 0;
    double links = c->topology == SY_LINK_TORUS ? 2.0 * c->dims : c->topology == SY_LINK_MESH ? c->dims : 1;
    double inside = n < c->world ? n : c->world;
    double s = 2 * (inside - 1) / inside / (links * c->link_bytes_s), groups = n / inside;
    if (groups > 1) s += 2 * (groups - 1) / groups / inside / (c->scale_out_bytes_s > 0 ? c->scale_out_bytes_s : 1e9);
    return s;
}

/* Latency of one collective: a switch answers in one go; a grid in as many hops as it is wide. */
static double hop_seconds(const struct sy_chip *c, int32_t n)
{
    if (n <= 1) return 0;
    double wide = c->dims > 0 ? pow(n, 1.0 / c->dims) : n;
    double hops = c->topology == SY_LINK_TORUS  ? c->dims * wide / 2
                  : c->topology == SY_LINK_MESH ? c->dims * wide
                                                : 2;
    return 0.7e-6 * hops + (n > c->world ? 10e-6 : 0);
}

sy_status sy_timer_init(struct sy_timer *t, const struct sy_profile *model, const struct sy_chip *chip,
                        const struct sy_path *path, struct sy_sharding l, struct sy_consts consts, struct sy_err *err)
{
    int32_t chips = l.chips - l.ffn_chips; /* that hold attention */
    int64_t devices = (int64_t)chips * chip->devices;
    if (chips < 1 || l.ffn_chips < 0 || l.tp < 1 || l.dp < 1 || l.pp < 1 || (int64_t)l.tp * l.dp * l.pp != devices)
        return sy_fail(err, SY_EARG, "layout: tp %d x dp %d x pp %d do not make the %lld devices of %d %s", l.tp,
                       l.dp, l.pp, (long long)devices, chips, chip->id);
    if (l.chips > 1 && chip->topology == SY_LINK_NONE)
        return sy_fail(err, SY_EARG, "chip '%s': its card has no 'link', so %d of them cannot work together",
                       chip->id, l.chips);
    if (l.pp > model->n_layer)
        return sy_fail(err, SY_EARG, "layout: pp %d is more than the model's %d layers", l.pp, model->n_layer);
    if (chip->memory_bytes_s <= 0)
        return sy_fail(err, SY_EARG, "chip '%s': its card has no memory_bytes_s", chip->id);
    double flops = sy_chip_flops(chip, path->arith);
    if (flops <= 0) return sy_fail(err, SY_EARG, "chip '%s': its card has no peak for this precision", chip->id);
    *t = (struct sy_timer){.model = *model, .chip = *chip, .path = *path, .layout = l, .consts = consts};
    t->bytes_s = chip->memory_bytes_s / chip->devices;
    t->flops = flops / chip->devices;
    int32_t chips_tp = (l.tp + chip->devices - 1) / chip->devices;
    int32_t chips_all = l.ffn_chips ? l.ffn_chips : (l.tp * l.dp + chip->devices - 1) / chip->devices;
    double row = 2.0 * model->d_model; /* bytes of a bf16 activation */
    t->reduce_s = row * model->n_layer * reduce_per_byte(chip, chips_tp);
    if (model->n_expert && l.expert_parallel && l.dp > 1) /* to the experts and back, what is not at home already */
        t->moe_s = row * model->n_moe_layer * 2 * min2(model->top_k, l.tp * l.dp) / (l.tp * l.dp) * 0.5 *
                   reduce_per_byte(chip, chips_all);
    else t->moe_s = row * model->n_layer * reduce_per_byte(chip, chips_all) / l.dp;
    t->hop_s = model->n_layer * (hop_seconds(chip, chips_tp) + hop_seconds(chip, chips_all));
    if (l.ffn_chips) {
        double links = chip->topology == SY_LINK_SWITCH ? 1 : chip->dims, least = min2(chips, l.ffn_chips);
        double bytes_s = l.chips <= chip->world ? links * chip->link_bytes_s : chip->scale_out_bytes_s;
        t->pass_s = 2 * row * model->n_layer / (least * (bytes_s > 0 ? bytes_s : 1e9));
        t->moe_s = 0; /* tokens go to the experts that they are passed for */
    }
    if (model->n_expert) t->no_expert = log1p(-(double)model->top_k / model->n_expert - 1e-12);
    return SY_OK;
}

double sy_timer_padded(const struct sy_timer *t, double tok)
{
    if (!t->chip.static_shapes || tok <= 0) return tok;
    double n = 8;
    while (n < tok) n *= 2;
    return n;
}

/* Attention on the fullest rank. Every rank is padded to the same bucket, and waits. */
static double attention_seconds(const struct sy_timer *t, const struct sy_rank_load *r, double tok)
{
    const struct sy_profile *m = &t->model;
    const double *c = t->consts.v;
    double tp = t->layout.tp, kv_share = max2(1 / tp, 1.0 / m->kv_heads), mean = r->seq > 0 ? r->ctx / r->seq : 0;
    double bytes = 2 * r->seq * m->state_bytes / tp, decode = r->keys - r->prompt_keys, flops = 0;
    for (int32_t i = 0; i < m->n_kv; i++) {
        const struct sy_kv_group *g = &m->kv[i];
        double part = g->window > 0 && mean > g->window ? g->window / mean : 1;
        bytes += r->ctx * part * g->elems * t->path.b_kv * kv_share;
        flops += part * (decode * g->key_flops + r->prompt_keys * g->prompt_flops) / tp;
    }
    flops += tok * (2 * m->attn_params + m->tok_flops) / tp;
    double crowd = 1 + c[SY_CONST_CROWD] * r->seq / 64;
    return c[SY_CONST_SEQ_S] * r->seq * m->n_layer + bytes * crowd / (c[SY_CONST_KV] * t->bytes_s) +
           flops / (c[SY_CONST_FLOPS] * t->flops) + tok * t->reduce_s;
}

/* What attention and everything else take, on the device of each that has most to do. */
struct halves {
    double attention, rest, passed;
};

/* share: of every rank's load, as a pipeline's stage or a micro-batch has it. */
static struct halves halves_of(const struct sy_timer *t, const struct sy_rank_load *rank, int32_t n_rank,
                               double share)
{
    const struct sy_profile *m = &t->model;
    const double *c = t->consts.v;
    double most = 0, widest = 0, out = 0, seq = 0;
    for (int32_t i = 0; i < n_rank; i++) {
        widest = max2(widest, rank[i].tok * share);
        out += rank[i].out * share;
        seq = max2(seq, rank[i].seq * share);
    }
    widest = sy_timer_padded(t, widest);
    double sum = 0; /* routed experts compute live tokens only, dense layers what they are padded to */
    for (int32_t i = 0; i < n_rank; i++) {
        const struct sy_rank_load *r = &rank[i];
        struct sy_rank_load micro = {r->tok * share, r->out * share,    r->seq * share,        r->keys * share,
                                     r->ctx * share, r->prompt * share, r->prompt_keys * share};
        most = max2(most, attention_seconds(t, &micro, widest));
        sum += micro.tok;
    }
    double devices =
        t->layout.ffn_chips ? (double)t->layout.ffn_chips * t->chip.devices : (double)t->layout.tp * t->layout.dp;
    double met = m->n_expert ? m->n_expert * -expm1(sum * t->no_expert) : 0;
    double bytes = (m->ffn_params * t->path.b_weight + met * m->expert_params * m->n_moe_layer * t->path.b_weight +
                    m->head_params * t->path.b_head) /
                   devices;
    double dense = t->chip.static_shapes ? widest * n_rank : sum;
    double flops =
        2 * (dense * m->ffn_params + sum * m->expert_params * m->top_k * m->n_moe_layer + out * m->head_params) /
        devices;
    double crowd = (1 + c[SY_CONST_CROWD] * seq / 64) / (c[SY_CONST_WEIGHT] * t->bytes_s);
    return (struct halves){.attention = most + m->attn_params * t->path.b_attn / t->layout.tp * crowd,
                           .rest = bytes * crowd + flops / (c[SY_CONST_FLOPS] * t->flops) + sum * t->moe_s,
                           .passed = sum * t->pass_s};
}

double sy_timer_step(const struct sy_timer *t, const struct sy_rank_load *rank, int32_t n_rank)
{
    double fixed = t->model.n_layer * t->consts.v[SY_CONST_LAYER_S] + t->hop_s, best = INFINITY;
    if (!t->layout.ffn_chips) {
        struct halves h = halves_of(t, rank, n_rank, 1.0 / t->layout.pp);
        return fixed + h.attention + h.rest;
    }
    /* Micro-batches hide each side behind the other, but read weights once each: as many as is best. */
    for (int32_t n = 1; n <= 4; n++) {
        struct halves h = halves_of(t, rank, n_rank, 1.0 / t->layout.pp / n);
        double a = h.attention + fixed / 2, r = h.rest + fixed / 2, once = a + r + h.passed;
        double s = n == 1 ? once : n * max2(max2(a, r), h.passed) + once / t->model.n_layer;
        best = min2(best, s);
    }
    return best;
}

struct sy_fit sy_timer_fit(const struct sy_timer *t, double memory_share, double ctx)
{
    const struct sy_profile *m = &t->model;
    const struct sy_sharding *l = &t->layout;
    double devices = l->ffn_chips ? (double)l->ffn_chips * t->chip.devices : (double)l->tp * l->dp * l->pp;
    double kv_share = max2(1.0 / l->tp, 1.0 / m->kv_heads) / l->pp;
    double device = memory_share * t->chip.memory_bytes / t->chip.devices;
    double attention = m->attn_params * t->path.b_attn / l->tp / l->pp;
    double rest = (m->ffn_params + m->expert_params * m->n_expert * m->n_moe_layer) * t->path.b_weight / devices +
                  (m->head_params + m->embed_params) * t->path.b_head / devices;
    struct sy_fit f = {.weights = l->ffn_chips ? max2(attention, rest) : attention + rest};
    for (int32_t i = 0; i < m->n_kv; i++) {
        double bytes = m->kv[i].elems * t->path.b_kv * kv_share;
        if (m->kv[i].window > 0 && ctx > m->kv[i].window) f.per_seq += m->kv[i].window * bytes;
        else f.per_token += bytes;
    }
    f.per_seq += m->state_bytes / l->tp / l->pp;
    f.room = device - (l->ffn_chips && rest < device ? attention : f.weights);
    double each = f.per_token * ctx + f.per_seq;
    if (f.room > 0 && each > 0) f.tokens = f.room / each * ctx * l->dp;
    return f;
}
