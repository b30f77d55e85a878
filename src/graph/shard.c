#include "graph/shard.h"

#include <stdio.h>
#include <string.h>

enum { EVERY = -1 }; /* in place of a stage: all ranks have the value */
struct pass {
    struct sy_graph *g; /* the rank's */
    const struct sy_node *node;
    uint32_t n_node;
    struct sy_shard s;
    int32_t n_rank, per_stage, n_layer; /* ranks, those of a stage, layers of a stage */
    int32_t stage;                      /* of the node at hand; EVERY before the layers, n_stage behind them */
    sy_val *val;                        /* by node of the whole graph */
    int32_t *cut;                       /* its columns are in so many parts, of which a rank has one; 0: whole */
    int32_t *from;                      /* the first rank that has one */
    int32_t *lo;                        /* of a PART of cut columns: where they begin in the rank's */
    int32_t *at;                        /* the stage whose ranks have the value */
};
enum side { ATTENTION, FEED_FORWARD, HEAD };

static int32_t one_at_least(int32_t n) { return n > 1 ? n : 1; }
int32_t sy_shard_ranks(const struct sy_shard *s)
{
    return (one_at_least(s->n_tp) * one_at_least(s->n_dp) + s->n_ffn) * one_at_least(s->n_stage);
}
int32_t sy_shard_groups(const struct sy_shard *s) { return one_at_least(s->n_dp); }

int64_t sy_shard_rows(int64_t rows, int32_t n_rank, int32_t unit)
{
    int64_t each = rows / n_rank;
    return each > unit ? each : unit;
}

int64_t sy_shard_first(int64_t rows, int32_t n_rank, int32_t unit, int32_t rank)
{
    int64_t each = sy_shard_rows(rows, n_rank, unit), shares = rows / each;
    return rank * shares / n_rank * each;
}

static const struct sy_node *operand(const struct pass *p, const struct sy_node *n, int k)
{
    return &p->node[n->in[k].id];
}

/* How a side's weights are shared. */
static struct sy_share share_of(const struct pass *p, enum side side, int32_t unit)
{
    bool split = p->s.n_ffn > 0;
    int32_t n = split && side == FEED_FORWARD ? p->s.n_ffn : split && side == HEAD ? p->n_rank : p->s.n_tp;
    return (struct sy_share){.n = n > 1 || split ? n : 0,
                             .unit = unit,
                             .first = split && side == FEED_FORWARD ? p->s.n_tp : 0,
                             .period = split ? p->n_rank : p->s.n_tp};
}

/* The ranks whose sums are one value. */
static struct sy_rank_dim sharers(const struct pass *p)
{
    return (struct sy_rank_dim){.n = p->s.n_ffn > 0 ? p->n_rank : p->s.n_tp, .stride = 1};
}

/* Rows can be given to ranks: evenly, or (fewer units than ranks) each to as many ranks. */
static bool divides(int64_t rows, int32_t n, int32_t unit)
{
    int64_t each = sy_shard_rows(rows, n, unit);
    return rows % each == 0 && each % unit == 0 && n % (rows / each) == 0 && (rows / each == n || each == unit);
}

/* The PART that an operand of attention comes from, through ops that keep its columns. */
static uint32_t part_of(const struct pass *p, uint32_t id)
{
    while (id && p->node[id].op != SY_OP_PART)
        id = p->node[id].op == SY_OP_NORM || p->node[id].op == SY_OP_ROPE ? p->node[id].in[0].id : 0;
    return id;
}

/* The attention that reads LINEAR id; NULL: none does. */
static const struct sy_attn_dim *reader_of(const struct pass *p, uint32_t id)
{
    for (uint32_t i = id + 1; i < p->n_node; i++) {
        const struct sy_node *n = &p->node[i];
        for (int k = 0; n->op == SY_OP_ATTEND && k < 3; k++) {
            uint32_t part = part_of(p, n->in[k].id);
            if (part && p->node[part].in[0].id == id) return &n->attr.attn;
        }
    }
    return NULL;
}

/* Columns of LINEAR id that must stay together: a head, where attention reads them. */
static int32_t unit_of(const struct pass *p, uint32_t id)
{
    const struct sy_attn_dim *d = reader_of(p, id);
    return d ? d->d_key : 1;
}

/* KV heads may be held by several ranks, others may not. */
static bool heads_divide(const struct pass *p, uint32_t id, int32_t n)
{
    const struct sy_attn_dim *d = reader_of(p, id);
    return !d || d->n_head % n == 0;
}

/* True where attention reads what LINEAR id gives, or gives what it reads. */
static bool is_attention(const struct pass *p, uint32_t id)
{
    uint32_t from = p->node[id].in[0].id;
    while (from && p->node[from].op != SY_OP_LINEAR && p->node[from].op != SY_OP_ATTEND &&
           p->node[from].op != SY_OP_EMBED && p->node[from].layer == p->node[id].layer)
        from = p->node[from].op == SY_OP_ADD ? 0 : p->node[from].in[0].id;
    return (from && p->node[from].op == SY_OP_ATTEND && p->node[from].layer == p->node[id].layer) ||
           unit_of(p, id) > 1;
}

static enum side side_of(const struct pass *p, uint32_t id)
{
    return p->node[id].layer < 0 ? HEAD : is_attention(p, id) ? ATTENTION : FEED_FORWARD;
}

/* Places the PARTs of LINEAR id side by side in the columns of one of n; returns how many columns those are, 0:
 * cannot.
 */
static int64_t place_parts(struct pass *p, uint32_t id, int32_t n_share, int32_t unit)
{
    const struct sy_node *n = &p->node[id];
    int64_t at = 0, done = 0;
    bool any = false;
    while (done < n->dim[1]) {
        uint32_t found = 0;
        for (uint32_t i = id + 1; i < p->n_node && !found; i++) {
            const struct sy_node *m = &p->node[i];
            if (m->op == SY_OP_PART && m->in[0].id == id && m->attr.part.lo == done) found = i;
        }
        if (!found) break;
        int64_t rows = p->node[found].dim[1];
        if (!divides(rows, n_share, unit)) return 0;
        for (uint32_t i = found; i < p->n_node; i++)
            if (p->node[i].op == SY_OP_PART && p->node[i].in[0].id == id && p->node[i].attr.part.lo == done)
                p->lo[i] = (int32_t)at;
        at += sy_shard_rows(rows, n_share, unit);
        done += rows;
        any = true;
    }
    if (!any) return divides(n->dim[1], n_share, 1) ? n->dim[1] / n_share : 0;
    bool joined = strchr(operand(p, n, 1)->name, '{') != NULL;
    return done == n->dim[1] && joined ? at : 0;
}

/* ---- stages ------------------------------------------------------------------------------------------------------
 */

/* The node that is to another stage what id (a WEIGHT or a STATE of a layer) is to its own; 0: there is none. */
static uint32_t counterpart(const struct pass *p, uint32_t id, int32_t stage)
{
    const struct sy_node *n = &p->node[id];
    int32_t layer = n->layer % p->n_layer + stage * p->n_layer, place = 0;
    for (uint32_t i = 1; i < id; i++) place += p->node[i].op == n->op && p->node[i].layer == n->layer;
    for (uint32_t i = 1; i < p->n_node; i++) {
        const struct sy_node *m = &p->node[i];
        if (m->op == n->op && m->layer == layer && place-- == 0)
            return m->dim[0] == n->dim[0] && m->dim[1] == n->dim[1] ? i : 0;
    }
    return 0;
}

enum { NAMES_MAX = 2000 };
/* The names that the stages' ranks know a weight by. */
static bool stage_names(struct pass *p, uint32_t id, char *name)
{
    size_t at = 0;
    name[0] = 0;
    for (int32_t s = 0; s < p->s.n_stage; s++) {
        uint32_t other = counterpart(p, id, s);
        if (!other || at + strlen(p->node[other].name) + 2 > NAMES_MAX) {
            sy_graph_refuse(p->g, SY_ENOSUP, "the layers of %d stages are not alike: '%s' is in one only",
                            p->s.n_stage, p->node[id].name);
            return false;
        }
        at += (size_t)snprintf(name + at, NAMES_MAX - at, "%s%s", s ? "|" : "", p->node[other].name);
    }
    return true;
}

static sy_val weight(struct pass *p, sy_val v, int64_t rows, int64_t cols, struct sy_share share)
{
    char names[NAMES_MAX];
    if (!v.id) return SY_NONE;
    const struct sy_node *n = &p->node[v.id];
    if (p->s.n_stage <= 1 || n->layer < 0) return sy_weight_rank(p->g, n, n->name, rows, cols, share);
    share.stage = p->per_stage;
    return stage_names(p, v.id, names) ? sy_weight_rank(p->g, n, names, rows, cols, share) : SY_NONE;
}

static sy_val whole_weight(struct pass *p, sy_val v)
{
    const struct sy_node *w = &p->node[v.id];
    return weight(p, v, w->dim[0], w->dim[1], (struct sy_share){0});
}

/* An operand as the node's own stage has it. */
static sy_val value(struct pass *p, sy_val v)
{
    struct sy_rank_dim d = {.n = p->s.n_stage, .stride = p->per_stage, .at = p->s.n_stage - 1};
    if (p->s.n_stage <= 1 || p->at[v.id] == EVERY) return p->val[v.id];
    for (; p->at[v.id] < p->stage; p->at[v.id]++)
        p->val[v.id] =
            p->at[v.id] < d.at ? sy_rank_shift(p->g, p->val[v.id], d) : sy_rank_pick(p->g, p->val[v.id], d);
    return p->val[v.id];
}

/* ---- ops ---------------------------------------------------------------------------------------------------------
 */

static void set_cut(struct pass *p, const struct sy_node *n, sy_val as)
{
    p->cut[n - p->node] = p->cut[as.id];
    p->from[n - p->node] = p->from[as.id];
}

/* Tables whose rows are ids are given to ranks by rows, where they divide evenly. */
static bool shares_table(const struct pass *p, uint32_t table)
{
    int32_t n = share_of(p, HEAD, 1).n;
    bool is_table = false;
    for (uint32_t i = 1; i < p->n_node && !is_table; i++)
        is_table = p->node[i].op == SY_OP_EMBED && p->node[i].in[0].id == table;
    return is_table && n > 0 && p->node[table].dim[0] % n == 0;
}

static sy_val embed(struct pass *p, const struct sy_node *n)
{
    const struct sy_node *table = operand(p, n, 0);
    struct sy_share share = share_of(p, HEAD, 1);
    sy_val ids = value(p, n->in[1]);
    if (!shares_table(p, n->in[0].id)) return sy_embed(p->g, whole_weight(p, n->in[0]), ids);
    sy_val w = weight(p, n->in[0], table->dim[0] / share.n, table->dim[1], share);
    return sy_rank_sum(p->g, sy_embed(p->g, w, ids), sharers(p));
}

static sy_val linear(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id], *w = operand(p, n, 1);
    sy_val x = value(p, n->in[0]), bias = n->in[2];
    enum side side = side_of(p, id);
    int32_t cut = p->cut[n->in[0].id], unit = unit_of(p, id);
    struct sy_share share = share_of(p, side, unit);
    if (w->attr.weight.split == SY_BY_IN && cut) {
        share.unit = 1;
        sy_val y = sy_linear(p->g, x, weight(p, n->in[1], w->dim[0], w->dim[1] / cut, share), SY_NONE);
        y = sy_rank_sum(p->g, y, sharers(p));
        return bias.id ? sy_add(p->g, y, whole_weight(p, bias)) : y;
    }
    if (cut) {
        sy_graph_refuse(p->g, SY_ENOSUP, "'%s' cannot be given to %d ranks: its operand is split", w->name, cut);
        return SY_NONE;
    }
    bool by_out = w->attr.weight.split == SY_BY_OUT || shares_table(p, n->in[1].id);
    int64_t cols = by_out && share.n > 0 && heads_divide(p, id, share.n) ? place_parts(p, id, share.n, unit) : 0;
    if (cols == 0) return sy_linear(p->g, x, whole_weight(p, n->in[1]), bias.id ? whole_weight(p, bias) : SY_NONE);
    p->cut[id] = share.n;
    p->from[id] = share.first;
    return sy_linear(p->g, x, weight(p, n->in[1], cols, w->dim[1], share), weight(p, bias, 1, cols, share));
}

/* How many columns of a value of the whole graph the rank has. */
static int64_t columns(const struct pass *p, sy_val v)
{
    uint32_t n;
    return sy_graph_nodes(p->g, &n)[p->val[v.id].id].dim[1];
}

/* The value whole on every rank. */
static sy_val joined(struct pass *p, sy_val v)
{
    sy_val x = value(p, v);
    int32_t cut = p->cut[v.id], from = p->from[v.id];
    if (!cut) return x;
    int64_t cols = columns(p, v);
    if (cols * cut != p->node[v.id].dim[1])
        sy_graph_refuse(p->g, SY_ENOSUP, "%d ranks hold the same KV heads, which a norm over all heads cannot have",
                        cut);
    x = sy_rank_join(p->g, x, sharers(p));
    return cut == sharers(p).n ? x : sy_part(p->g, x, (int32_t)(from * cols), (int32_t)((from + cut) * cols));
}

/* The state of an ATTEND: that of the first stage's layer in its place, since a rank has but its own stage's. */
static sy_val state_of(struct pass *p, uint32_t id, struct sy_state_spec spec)
{
    uint32_t first = p->s.n_stage > 1 ? counterpart(p, id, 0) : id;
    spec.layer = p->node[first].attr.state.layer;
    if (!p->val[first].id) p->val[first] = sy_state(p->g, spec);
    return p->val[first];
}

static sy_val attend(struct pass *p, const struct sy_node *n)
{
    struct sy_attn_dim d = n->attr.attn;
    int32_t cut = p->cut[n->in[0].id];
    if (cut != p->cut[n->in[1].id] || cut != p->cut[n->in[2].id]) {
        sy_graph_refuse(p->g, SY_ENOSUP, "%d heads and %d KV heads cannot be given to %d ranks", d.n_head, d.n_kv,
                        p->s.n_tp);
        return SY_NONE;
    }
    if (!n->in[1].id || n->in[4].id || n->in[5].id || n->in[6].id) {
        sy_graph_refuse(p->g, SY_ENOSUP, "attention %s cannot be given to %d ranks",
                        n->in[4].id   ? "with sinks"
                        : n->in[5].id ? "to chosen keys"
                        : n->in[6].id ? "to kept keys"
                                      : "on another layer's keys",
                        p->n_rank);
        return SY_NONE;
    }
    struct sy_state_spec spec = operand(p, n, 3)->attr.state;
    if (cut) {
        d.n_head /= cut;
        d.n_kv = d.n_kv > cut ? d.n_kv / cut : 1;
        spec.elems = (int64_t)d.n_kv * (d.d_key + d.d_val);
    }
    if (p->s.n_stage > 1) {
        d.stage_ranks = p->per_stage;
        d.stage = p->stage;
    }
    set_cut(p, n, n->in[0]);
    sy_val q = value(p, n->in[0]), k = value(p, n->in[1]), v = n->in[2].id ? value(p, n->in[2]) : SY_NONE;
    return sy_attend(p->g, q, k, v, state_of(p, n->in[3].id, spec), d);
}

static sy_val norm(struct pass *p, const struct sy_node *n)
{
    bool over_all = columns(p, n->in[0]) % n->attr.norm.d != 0; /* the rank has not all of a run */
    sy_val x = over_all ? joined(p, n->in[0]) : value(p, n->in[0]);
    if (!over_all) set_cut(p, n, n->in[0]);
    if (n->attr.norm.centred) return sy_norm_centred(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
    if (!n->in[1].id) return sy_norm_unit(p->g, x, n->attr.norm.d, n->attr.norm.eps);
    return sy_norm(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
}

/* Both operands of an elementwise op cut alike. */
static void pair(struct pass *p, const struct sy_node *n, sy_val *a, sy_val *b)
{
    bool is_weight = operand(p, n, 1)->op == SY_OP_WEIGHT;
    bool alike = !is_weight && p->cut[n->in[0].id] == p->cut[n->in[1].id];
    *a = alike ? value(p, n->in[0]) : joined(p, n->in[0]);
    *b = is_weight ? whole_weight(p, n->in[1]) : alike ? value(p, n->in[1]) : joined(p, n->in[1]);
    if (alike) set_cut(p, n, n->in[0]);
}

static sy_val part(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id];
    sy_val x = value(p, n->in[0]);
    int32_t cut = p->cut[n->in[0].id];
    if (!cut) return sy_part(p->g, x, n->attr.part.lo, n->attr.part.hi);
    int32_t unit = unit_of(p, n->in[0].id), rows = n->attr.part.hi - n->attr.part.lo;
    set_cut(p, n, n->in[0]);
    return sy_part(p->g, x, p->lo[id], p->lo[id] + (int32_t)sy_shard_rows(rows, cut, unit));
}

/* Ranks that hold all experts, or each some of them. */
static sy_val experts(struct pass *p, const struct sy_node *n)
{
    struct sy_moe_dim d = n->attr.moe;
    int32_t n_ffn = p->s.n_ffn, over = n_ffn > 0 ? n_ffn : p->s.experts ? p->per_stage : 1;
    struct sy_share share = {.n = over, .unit = 1, .first = n_ffn > 0 ? p->s.n_tp : 0, .period = p->per_stage};
    struct sy_rank_dim all = {.n = p->per_stage, .stride = 1}, groups = {.n = p->s.n_dp, .stride = p->s.n_tp};
    sy_val w[4], x = joined(p, n->in[0]), route = value(p, n->in[1]);
    if (over == 1) share = (struct sy_share){0};
    if (d.n_expert % over) {
        sy_graph_refuse(p->g, SY_ENOSUP, "%d experts cannot be given evenly to %d ranks", d.n_expert, over);
        return SY_NONE;
    }
    for (int k = 0; k < 4; k++) {
        const struct sy_node *m = operand(p, n, 2 + k);
        bool vector = m->dim[0] == 1;
        w[k] = n->in[2 + k].id ? weight(p, n->in[2 + k], vector ? 1 : m->dim[0] / over,
                                        vector ? m->dim[1] / over : m->dim[1], share)
                               : SY_NONE;
    }
    d.n_expert /= over;
    d.share = share;
    bool gather = over > 1 && p->s.n_dp > 1;
    if (gather) {
        x = sy_rank_rows(p->g, x, groups);
        route = sy_rank_rows(p->g, route, groups);
    }
    sy_val y = sy_experts(p->g, x, route, (struct sy_expert_weights){w[0], w[1], w[2], w[3]}, d);
    if (!gather) return over > 1 ? sy_rank_sum(p->g, y, all) : y;
    y = sy_rank_share(p->g, y, groups);
    return p->s.n_tp > 1 ? sy_rank_sum(p->g, y, sharers(p)) : y;
}

static sy_val rewrite(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id];
    struct sy_graph *g = p->g;
    sy_val x, a, b;
    switch (n->op) {
    case SY_OP_INPUT: return sy_input(g, n->attr.field);
    case SY_OP_GIVEN: return sy_given(g, n->dim[1]);
    case SY_OP_CONST: return sy_const(g, n->attr.constant, n->dim[1]);
    case SY_OP_WEIGHT: return SY_NONE; /* made where they are used */
    case SY_OP_STATE: return p->val[id];
    case SY_OP_EMBED: return embed(p, n);
    case SY_OP_LINEAR: return linear(p, id);
    case SY_OP_NORM: return norm(p, n);
    case SY_OP_PART: return part(p, id);
    case SY_OP_ATTEND: return attend(p, n);
    case SY_OP_ROUTE:
        if (n->in[3].id) return sy_route_given(g, joined(p, n->in[0]), p->val[n->in[3].id], n->attr.route);
        return sy_route(g, joined(p, n->in[0]), n->in[1].id ? whole_weight(p, n->in[1]) : SY_NONE,
                        n->in[2].id ? whole_weight(p, n->in[2]) : SY_NONE, n->attr.route);
    case SY_OP_EXPERTS: return experts(p, n);
    case SY_OP_SAMPLE: return sy_sample(g, joined(p, n->in[0]));
    case SY_OP_GLU: pair(p, n, &a, &b); return sy_glu_bounded(g, a, b, n->attr.glu);
    case SY_OP_ADD: pair(p, n, &a, &b); return sy_add(g, a, b);
    case SY_OP_MUL: pair(p, n, &a, &b); return sy_mul(g, a, b);
    default: break;
    }
    x = value(p, n->in[0]);
    set_cut(p, n, n->in[0]);
    switch (n->op) {
    case SY_OP_ROPE: return sy_rope(g, x, n->attr.rope);
    case SY_OP_ACT: return sy_act(g, x, n->attr.fn);
    case SY_OP_TEMPER: return sy_temper(g, x, n->attr.temper);
    case SY_OP_SCALE: return sy_scale(g, x, n->attr.c);
    case SY_OP_SOFTCAP: return sy_softcap(g, x, n->attr.c);
    case SY_OP_ROWS: return sy_rows(g, x);
    default:
        sy_graph_refuse(g, SY_ENOSUP, "the op %s cannot be given to %d ranks", sy_op_name(n->op), p->n_rank);
        return SY_NONE;
    }
}

/* The stage that computes a node; EVERY: all of them do. */
static int32_t stage_of(const struct pass *p, const struct sy_node *n)
{
    bool source = n->op == SY_OP_INPUT || n->op == SY_OP_CONST || n->op == SY_OP_WEIGHT || n->op == SY_OP_STATE;
    if (p->s.n_stage <= 1 || source) return EVERY;
    return n->layer >= 0 ? n->layer / p->n_layer : p->stage == EVERY ? EVERY : p->s.n_stage;
}

static sy_status count_layers(struct pass *p, struct sy_err *err)
{
    int32_t n = 0;
    for (uint32_t i = 1; i < p->n_node; i++)
        if (p->node[i].layer >= n) n = p->node[i].layer + 1;
    p->n_layer = n / p->s.n_stage;
    if (n % p->s.n_stage || p->n_layer == 0)
        return sy_fail(err, SY_ENOSUP, "--pp %d: %d layers cannot be divided evenly", p->s.n_stage, n);
    return SY_OK;
}

static sy_status rewrite_all(struct pass *p, const struct sy_graph *whole, struct sy_err *err)
{
    p->stage = EVERY;
    for (uint32_t i = 1; i < p->n_node; i++) {
        int32_t stage = stage_of(p, &p->node[i]);
        if (stage != EVERY) p->stage = stage;
        p->val[i] = rewrite(p, i);
        p->at[i] = stage == p->s.n_stage ? EVERY : stage;
    }
    return sy_graph_finish(p->g, p->val[sy_graph_result(whole).id], err);
}

sy_status sy_graph_shard(const struct sy_env *env, const struct sy_graph *whole, const struct sy_shard *shard,
                         struct sy_graph **out, struct sy_err *err)
{
    struct pass p = {.s = {one_at_least(shard->n_tp), one_at_least(shard->n_dp), one_at_least(shard->n_stage),
                           shard->n_ffn, shard->experts}};
    p.n_rank = sy_shard_ranks(&p.s);
    p.per_stage = p.n_rank / p.s.n_stage;
    p.node = sy_graph_nodes(whole, &p.n_node);
    sy_status st = count_layers(&p, err);
    if (st) return st;
    struct sy_arena a;
    sy_arena_init(&a, env, 0);
    st = sy_graph_new(env, sy_graph_shape(whole), &p.g, err);
    p.val = sy_arena_array(&a, p.n_node, sizeof *p.val);
    p.cut = sy_arena_array(&a, p.n_node, sizeof *p.cut);
    p.from = sy_arena_array(&a, p.n_node, sizeof *p.from);
    p.lo = sy_arena_array(&a, p.n_node, sizeof *p.lo);
    p.at = sy_arena_array(&a, p.n_node, sizeof *p.at);
    if (!st && (!p.val || !p.cut || !p.from || !p.lo || !p.at))
        st = sy_fail(err, SY_ENOMEM, "no memory to shard a graph");
    if (!st) st = rewrite_all(&p, whole, err);
    sy_arena_release(&a);
    if (st) sy_graph_free(p.g);
    else *out = p.g;
    return st;
}
