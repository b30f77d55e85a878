/* shard.c - the pass: each node of the whole graph again, as the rank has it. */
#include <stdio.h>
#include <string.h>

#include "graph/shard_int.h"

enum { EVERY = -1 }; /* in place of a stage: all ranks have the value */
enum side { ATTENTION, FEED_FORWARD, HEAD };

static int32_t one_at_least(int32_t n) { return n > 1 ? n : 1; }
int32_t sy_shard_ranks(const struct sy_shard *s)
{
    return (one_at_least(s->n_tp) * one_at_least(s->n_dp) + s->n_ffn) * one_at_least(s->n_stage);
}
int32_t sy_shard_groups(const struct sy_shard *s) { return one_at_least(s->n_dp); }

static const struct sy_node *operand(const struct pass *p, const struct sy_node *n, int k)
{
    return &p->node[n->in[k].id];
}

/* How a side's weights are shared. */
static struct sy_share share_of(const struct pass *p, enum side side)
{
    bool split = p->s.n_ffn > 0;
    int32_t n = split && side == FEED_FORWARD ? p->s.n_ffn : split && side == HEAD ? p->n_rank : p->s.n_tp;
    return (struct sy_share){.n = n > 1 || split ? n : 0,
                             .first = split && side == FEED_FORWARD ? p->s.n_tp : 0,
                             .period = split ? p->n_rank : p->s.n_tp};
}

/* Columns that lie as value id's do; each of them stands for `times` of the weight's. */
static struct sy_share share_like(const struct pass *p, uint32_t id, int32_t times)
{
    const struct lay *l = &p->lay[id];
    struct sy_share s = {.n = p->cut[id], .first = p->from[id], .period = p->s.n_ffn > 0 ? p->n_rank : p->s.n_tp};
    if (l->n == 1 && l->part[0].unit == 1) return s;
    s.n_part = l->n;
    for (int32_t i = 0; i < l->n; i++)
        s.part[i] = (struct sy_share_part){l->part[i].rows * times, l->part[i].unit * times};
    return s;
}

/* The ranks whose sums are one value. */
static struct sy_rank_dim sharers(const struct pass *p)
{
    return (struct sy_rank_dim){.n = p->s.n_ffn > 0 ? p->n_rank : p->s.n_tp, .stride = 1};
}

/* Layers that mix tokens: what such an op reads or has given. */
static bool is_attention(const struct pass *p, uint32_t id)
{
    uint32_t from = p->node[id].in[0].id;
    for (; from && p->node[from].layer == p->node[id].layer; from = p->node[from].in[0].id) {
        enum sy_op op = p->node[from].op;
        if (op == SY_OP_ATTEND || op == SY_OP_SCAN || op == SY_OP_CONV) return true;
        if (op == SY_OP_LINEAR || op == SY_OP_EMBED || op == SY_OP_ADD) break;
    }
    return shard_is_read_by_heads(p, id);
}

static enum side side_of(const struct pass *p, uint32_t id)
{
    return p->node[id].layer < 0 ? HEAD : is_attention(p, id) ? ATTENTION : FEED_FORWARD;
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
    bool staged = p->s.n_stage > 1 && n->layer >= 0;
    share.stage = staged ? p->per_stage : 0;
    if (staged && !stage_names(p, v.id, names)) return SY_NONE;
    sy_val w = sy_weight_rank(p->g, n, staged ? names : n->name, rows, cols, share);
    uint32_t n_node;
    const struct sy_node *got = sy_graph_nodes(p->g, &n_node) + w.id;
    if (w.id && (got->dim[0] != rows || got->dim[1] != cols))
        sy_graph_refuse(p->g, SY_ENOSUP, "'%s' is read in two ways, which ranks would share unlike", n->name);
    return w;
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
    p->lay[n - p->node] = p->lay[as.id];
}

/* The same ranks have the value, as heads of so many columns. */
static void set_cut_heads(struct pass *p, const struct sy_node *n, sy_val as, int32_t unit)
{
    set_cut(p, n, as);
    p->lay[n - p->node] = (struct lay){1, {{(int32_t)n->dim[1], unit}}};
}

/* Tables whose rows are ids are given to ranks by rows, where they divide evenly. */
static bool shares_table(const struct pass *p, uint32_t table)
{
    int32_t n = share_of(p, HEAD).n;
    bool is_table = false;
    for (uint32_t i = 1; i < p->n_node && !is_table; i++)
        is_table = p->node[i].op == SY_OP_EMBED && p->node[i].in[0].id == table;
    return is_table && n > 0 && p->node[table].dim[0] % n == 0;
}

static sy_val embed(struct pass *p, const struct sy_node *n)
{
    const struct sy_node *table = operand(p, n, 0);
    struct sy_share share = share_of(p, HEAD);
    sy_val ids = value(p, n->in[1]);
    if (!shares_table(p, n->in[0].id)) return sy_embed(p->g, whole_weight(p, n->in[0]), ids);
    sy_val w = weight(p, n->in[0], table->dim[0] / share.n, table->dim[1], share);
    return sy_rank_sum(p->g, sy_embed(p->g, w, ids), sharers(p));
}

/* How many columns of a value of the whole graph the rank has. */
static int32_t columns(const struct pass *p, sy_val v)
{
    return p->cut[v.id] ? shard_columns(&p->lay[v.id], p->cut[v.id]) : (int32_t)p->node[v.id].dim[1];
}

/* The value whole on every rank. */
static sy_val joined(struct pass *p, sy_val v)
{
    sy_val x = value(p, v), all = SY_NONE;
    int32_t cut = p->cut[v.id], from = p->from[v.id], at = 0;
    if (!cut) return x;
    const struct lay *l = &p->lay[v.id];
    if (columns(p, v) * (int64_t)cut != p->node[v.id].dim[1]) {
        sy_graph_refuse(p->g, SY_ENOSUP, "%d ranks hold the same KV heads, which a norm over all heads cannot have",
                        cut);
        return SY_NONE;
    }
    for (int32_t i = 0; i < l->n; i++) {
        int32_t n = shard_part_columns(l->part[i], cut);
        sy_val y = l->n > 1 ? sy_part(p->g, x, at, at + n) : x;
        y = sy_rank_join(p->g, y, sharers(p));
        if (cut != sharers(p).n) y = sy_part(p->g, y, from * n, (from + cut) * n);
        all = i ? sy_join(p->g, all, y) : y;
        at += n;
    }
    return all;
}

/* A product over columns of which a rank has its share, summed over ranks. */
static sy_val linear_by_in(struct pass *p, const struct sy_node *n)
{
    const struct sy_node *w = operand(p, n, 1);
    int32_t cut = p->cut[n->in[0].id];
    sy_val x = value(p, n->in[0]),
           own = weight(p, n->in[1], w->dim[0], w->dim[1] / cut, share_like(p, n->in[0].id, 1));
    x = sy_rank_sum(p->g, sy_linear(p->g, x, own, SY_NONE), sharers(p));
    return n->in[2].id ? sy_add(p->g, x, whole_weight(p, n->in[2])) : x;
}

/* The rank's columns are those of its number among equal shares. */
static bool is_even(const struct pass *p, sy_val v)
{
    int32_t cut = p->cut[v.id];
    return cut && p->lay[v.id].n == 1 && (int64_t)columns(p, v) * cut == p->node[v.id].dim[1];
}

static sy_val linear(struct pass *p, uint32_t id)
{
    const struct sy_node *n = &p->node[id], *w = operand(p, n, 1);
    sy_val bias = n->in[2];
    struct sy_share share = share_of(p, side_of(p, id));
    if (w->attr.weight.split == SY_BY_IN && is_even(p, n->in[0])) return linear_by_in(p, n);
    sy_val x = joined(p, n->in[0]);
    bool by_out = w->attr.weight.split == SY_BY_OUT || shares_table(p, n->in[1].id);
    if (!by_out || share.n == 0 || !shard_lay_out(p, id, share.n, &p->lay[id]))
        return sy_linear(p->g, x, whole_weight(p, n->in[1]), bias.id ? whole_weight(p, bias) : SY_NONE);
    p->cut[id] = share.n;
    p->from[id] = share.first;
    share = share_like(p, id, 1);
    int64_t cols = columns(p, (sy_val){id});
    return sy_linear(p->g, x, weight(p, n->in[1], cols, w->dim[1], share), weight(p, bias, 1, cols, share));
}

/* The state of a node: that of the first stage's layer in its place, since a rank has but its own stage's. It keeps
 * what any of the layers in its place sees. */
static sy_val state_of(struct pass *p, uint32_t id, struct sy_state_spec spec)
{
    uint32_t first = p->s.n_stage > 1 ? counterpart(p, id, 0) : id;
    spec.layer = p->node[first].attr.state.layer;
    for (int32_t stage = 0; stage < p->s.n_stage && p->s.n_stage > 1 && spec.window > 0; stage++) {
        int32_t window = p->node[counterpart(p, id, stage)].attr.state.window;
        if (window == 0 || window > spec.window) spec.window = window;
    }
    if (!p->val[first].id) p->val[first] = sy_state(p->g, spec);
    return p->val[first];
}

/* Ranks of other stages would write theirs. */
static bool refuses_stages(struct pass *p, const struct sy_node *n)
{
    if (p->s.n_stage > 1)
        sy_graph_refuse(p->g, SY_ENOSUP, "the op %s cannot be given to %d stages", sy_op_name(n->op), p->s.n_stage);
    return p->s.n_stage > 1;
}

/* Operands k of n (those that are not weights) are shared by as many ranks; else all ranks have them whole. */
static bool cut_alike(const struct pass *p, const struct sy_node *n, int lo, int hi)
{
    for (int k = lo + 1; k < hi; k++)
        if (n->in[k].id && p->cut[n->in[k].id] != p->cut[n->in[lo].id]) return false;
    return p->cut[n->in[lo].id] > 0;
}

static sy_val own_or_whole(struct pass *p, sy_val v, bool own)
{
    return !v.id ? SY_NONE : own ? value(p, v) : joined(p, v);
}

/* Queries' heads are shared; keys' too, but for one that all heads read and every rank has. */
static sy_val attend(struct pass *p, const struct sy_node *n)
{
    struct sy_attn_dim d = n->attr.attn;
    uint32_t state = n->in[3].id;
    bool shared = d.shared && d.n_kv == 1 && !p->cut[n->in[1].id];
    bool own = n->in[1].id ? cut_alike(p, n, 0, shared ? 1 : 3) : p->cut[n->in[0].id] > 0;
    int32_t cut = own ? p->cut[n->in[0].id] : 0;
    if (n->in[6].id || (!n->in[1].id && (p->cut[state] != cut || p->s.n_stage > 1))) {
        sy_graph_refuse(p->g, SY_ENOSUP, "attention %s cannot be given to %d ranks",
                        n->in[6].id ? "to kept keys" : "on another layer's keys", p->n_rank);
        return SY_NONE;
    }
    struct sy_state_spec spec = operand(p, n, 3)->attr.state;
    sy_val sinks = n->in[4].id && !cut ? whole_weight(p, n->in[4]) : SY_NONE;
    if (cut) {
        d.n_head /= cut;
        d.n_kv = shared ? 1 : d.n_kv > cut ? d.n_kv / cut : 1;
        spec.elems = (int64_t)d.n_kv * (d.d_key + (d.shared ? 0 : d.d_val));
        set_cut_heads(p, n, n->in[0], d.d_val);
        struct sy_share share = share_of(p, ATTENTION);
        if (n->in[4].id) sinks = weight(p, n->in[4], 1, d.n_head, share);
    }
    if (n->in[1].id) p->cut[state] = cut;
    if (p->s.n_stage > 1) {
        d.stage_ranks = p->per_stage;
        d.stage = p->stage;
    }
    sy_val q = own_or_whole(p, n->in[0], own), k = own_or_whole(p, n->in[1], own && !shared);
    sy_val v = own_or_whole(p, n->in[2], own), kv = state_of(p, state, spec);
    if (n->in[5].id) return sy_attend_chosen(p->g, q, k, value(p, n->in[5]), kv, d);
    return sy_attend_sinks(p->g, q, k, v, kv, sinks, d);
}

/* Keys are chosen by every rank, for all heads. */
static sy_val chosen_keys(struct pass *p, const struct sy_node *n)
{
    if (refuses_stages(p, n)) return SY_NONE;
    sy_val q = joined(p, n->in[0]), k = joined(p, n->in[1]), w = joined(p, n->in[2]);
    return sy_index(p->g, q, k, w, state_of(p, n->in[3].id, operand(p, n, 3)->attr.state), n->attr.index);
}

static sy_val heads(struct pass *p, const struct sy_node *n)
{
    struct sy_heads_dim d = n->attr.heads;
    const struct sy_node *w = operand(p, n, 1);
    int32_t cut = p->cut[n->in[0].id];
    if (!cut || !is_even(p, n->in[0]) || d.n_head % cut)
        return sy_heads(p->g, joined(p, n->in[0]), whole_weight(p, n->in[1]), d);
    set_cut_heads(p, n, n->in[0], (int32_t)n->dim[1] / d.n_head);
    struct sy_share share = share_like(p, n->in[0].id, 1);
    share.n_part = 1;
    share.part[0] = (struct sy_share_part){(int32_t)w->dim[0], d.w_rows};
    d.n_head /= cut;
    return sy_heads(p->g, value(p, n->in[0]), weight(p, n->in[1], w->dim[0] / cut, w->dim[1], share), d);
}

static sy_val conv(struct pass *p, const struct sy_node *n)
{
    if (refuses_stages(p, n)) return SY_NONE;
    struct sy_state_spec spec = operand(p, n, 3)->attr.state;
    int32_t taps = (int32_t)(operand(p, n, 1)->dim[1] / n->dim[1]), own = columns(p, n->in[0]);
    spec.elems = spec.elems / n->dim[1] * own;
    set_cut(p, n, n->in[0]);
    bool cut = p->cut[n->in[0].id] > 0;
    sy_val w = cut ? weight(p, n->in[1], 1, (int64_t)own * taps, share_like(p, n->in[0].id, taps))
                   : whole_weight(p, n->in[1]);
    sy_val bias = !n->in[2].id ? SY_NONE
                  : cut        ? weight(p, n->in[2], 1, own, share_like(p, n->in[0].id, 1))
                               : whole_weight(p, n->in[2]);
    return sy_conv(p->g, value(p, n->in[0]), w, bias, state_of(p, n->in[3].id, spec));
}

static sy_val scan(struct pass *p, const struct sy_node *n)
{
    if (refuses_stages(p, n)) return SY_NONE;
    struct sy_scan_dim d = n->attr.scan;
    struct sy_state_spec spec = operand(p, n, 5)->attr.state;
    bool own = cut_alike(p, n, 0, 5);
    int32_t cut = p->cut[n->in[0].id];
    if (own) {
        d.n_key = d.n_key > cut ? d.n_key / cut : 1;
        d.n_val /= cut;
        spec.elems /= cut;
        set_cut_heads(p, n, n->in[2], d.d_val);
    }
    sy_val v[5];
    for (int k = 0; k < 5; k++) v[k] = own_or_whole(p, n->in[k], own);
    return sy_scan(p->g, v[0], v[1], v[2], v[3], v[4], state_of(p, n->in[5].id, spec), d);
}

/* Whole runs of every part are the rank's. */
static bool has_runs(const struct pass *p, sy_val v, int32_t d)
{
    const struct lay *l = &p->lay[v.id];
    int32_t cut = p->cut[v.id];
    for (int32_t i = 0; cut && i < l->n; i++)
        if (shard_part_columns(l->part[i], cut) % d) return false;
    return true;
}

static sy_val norm(struct pass *p, const struct sy_node *n)
{
    bool own = has_runs(p, n->in[0], n->attr.norm.d);
    sy_val x = own_or_whole(p, n->in[0], own);
    if (own) set_cut(p, n, n->in[0]);
    if (n->attr.norm.centred) return sy_norm_centred(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
    if (!n->in[1].id) return sy_norm_unit(p->g, x, n->attr.norm.d, n->attr.norm.eps);
    return sy_norm(p->g, x, whole_weight(p, n->in[1]), n->attr.norm.eps);
}

/* Ranks have the same columns of both. */
static bool lie_alike(const struct pass *p, sy_val a, sy_val b)
{
    const struct lay *x = &p->lay[a.id], *y = &p->lay[b.id];
    int32_t cut = p->cut[a.id];
    if (cut != p->cut[b.id] || (cut && x->n != y->n)) return false;
    for (int32_t i = 0; cut && i < x->n; i++)
        if (x->part[i].rows != y->part[i].rows ||
            shard_part_columns(x->part[i], cut) != shard_part_columns(y->part[i], cut))
            return false;
    return true;
}

/* Both operands of an elementwise op cut alike. */
static void pair(struct pass *p, const struct sy_node *n, sy_val *a, sy_val *b)
{
    const struct sy_node *second = operand(p, n, 1);
    bool is_weight = second->op == SY_OP_WEIGHT, fits = is_weight && second->dim[1] == n->dim[1];
    bool own = is_weight ? fits : lie_alike(p, n->in[0], n->in[1]);
    *a = own_or_whole(p, n->in[0], own);
    if (own) set_cut(p, n, n->in[0]);
    if (!is_weight) *b = own_or_whole(p, n->in[1], own);
    else if (!own || !p->cut[n->in[0].id]) *b = whole_weight(p, n->in[1]);
    else *b = weight(p, n->in[1], 1, columns(p, n->in[0]), share_like(p, n->in[0].id, 1));
}

/* Times a row that is the same number all through each part of a value that is cut: parts, each scaled. */
static sy_val scaled_parts(struct pass *p, const struct sy_node *n)
{
    const struct lay *l = &p->lay[n->in[0].id];
    const float *c = operand(p, n, 1)->attr.constant;
    int32_t cut = p->cut[n->in[0].id], at = 0;
    sy_val x = value(p, n->in[0]), all = SY_NONE;
    for (int32_t i = 0; i < l->n; i++) {
        for (int32_t k = 1; k < l->part[i].rows; k++)
            if (c[k] != c[0]) return SY_NONE;
        int32_t own = shard_part_columns(l->part[i], cut);
        sy_val y = sy_scale(p->g, l->n > 1 ? sy_part(p->g, x, at, at + own) : x, *c);
        all = i ? sy_join(p->g, all, y) : y;
        at += own;
        c += l->part[i].rows;
    }
    set_cut(p, n, n->in[0]);
    return all;
}

static sy_val product(struct pass *p, const struct sy_node *n)
{
    const struct sy_node *second = operand(p, n, 1);
    sy_val a, b = SY_NONE;
    if (second->op == SY_OP_CONST && second->dim[1] == n->dim[1] && p->cut[n->in[0].id]) b = scaled_parts(p, n);
    if (b.id) return b;
    pair(p, n, &a, &b);
    return sy_mul(p->g, a, b);
}

/* Columns of a value that is cut: whole parts of it. */
static sy_val part(struct pass *p, const struct sy_node *n)
{
    int32_t cut = p->cut[n->in[0].id], lo = n->attr.part.lo, hi = n->attr.part.hi, at = 0, begin = 0, first = -1;
    const struct lay *l = &p->lay[n->in[0].id];
    struct lay own = {0};
    for (int32_t i = 0; cut && i < l->n; i++) {
        if (begin >= lo && begin + l->part[i].rows <= hi) {
            if (first < 0) first = at;
            own.part[own.n++] = l->part[i];
        }
        begin += l->part[i].rows;
        at += shard_part_columns(l->part[i], cut);
    }
    int32_t rows = 0;
    for (int32_t i = 0; i < own.n; i++) rows += own.part[i].rows;
    if (!cut || rows != hi - lo) return sy_part(p->g, joined(p, n->in[0]), lo, hi);
    set_cut(p, n, n->in[0]);
    p->lay[n - p->node] = own;
    return sy_part(p->g, value(p, n->in[0]), first, first + shard_columns(&own, cut));
}

/* Ranks that hold all experts, or each some of them. */
static sy_val experts(struct pass *p, const struct sy_node *n)
{
    struct sy_moe_dim d = n->attr.moe;
    int32_t n_ffn = p->s.n_ffn, over = n_ffn > 0 ? n_ffn : p->s.experts ? p->per_stage : 1;
    struct sy_share share = {.n = over, .first = n_ffn > 0 ? p->s.n_tp : 0, .period = p->per_stage};
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
    case SY_OP_PART: return part(p, n);
    case SY_OP_ATTEND: return attend(p, n);
    case SY_OP_HEADS: return heads(p, n);
    case SY_OP_INDEX: return chosen_keys(p, n);
    case SY_OP_CONV: return conv(p, n);
    case SY_OP_SCAN: return scan(p, n);
    case SY_OP_JOIN: return sy_join(g, joined(p, n->in[0]), joined(p, n->in[1]));
    case SY_OP_MATCH: return sy_match(g, joined(p, n->in[0]), joined(p, n->in[1]), n->attr.c);
    case SY_OP_SPARSIFY: return sy_sparsify(g, joined(p, n->in[0]), n->attr.c);
    case SY_OP_ROUTE:
        if (n->in[3].id) return sy_route_given(g, joined(p, n->in[0]), p->val[n->in[3].id], n->attr.route);
        return sy_route(g, joined(p, n->in[0]), n->in[1].id ? whole_weight(p, n->in[1]) : SY_NONE,
                        n->in[2].id ? whole_weight(p, n->in[2]) : SY_NONE, n->attr.route);
    case SY_OP_EXPERTS: return experts(p, n);
    case SY_OP_SAMPLE: return sy_sample(g, joined(p, n->in[0]));
    case SY_OP_GLU: pair(p, n, &a, &b); return sy_glu_bounded(g, a, b, n->attr.glu);
    case SY_OP_ADD: pair(p, n, &a, &b); return sy_add(g, a, b);
    case SY_OP_MUL: return product(p, n);
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
    if (!st && sy_graph_keeps_hidden(whole)) sy_graph_keep_hidden(p.g);
    p.val = sy_arena_array(&a, p.n_node, sizeof *p.val);
    p.cut = sy_arena_array(&a, p.n_node, sizeof *p.cut);
    p.from = sy_arena_array(&a, p.n_node, sizeof *p.from);
    p.lay = sy_arena_array(&a, p.n_node, sizeof *p.lay);
    p.at = sy_arena_array(&a, p.n_node, sizeof *p.at);
    if (!st && (!p.val || !p.cut || !p.from || !p.lay || !p.at))
        st = sy_fail(err, SY_ENOMEM, "no memory to shard a graph");
    if (!st) st = rewrite_all(&p, whole, err);
    sy_arena_release(&a);
    if (st) sy_graph_free(p.g);
    else *out = p.g;
    return st;
}

sy_status sy_shard_check(const struct sy_graph *g, const struct sy_shard *shard, struct sy_err *err)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    bool found = !shard->experts || shard->n_ffn > 0; /* A+F shares whatever feed-forward there is */
    for (uint32_t i = 1; i < n && !found; i++) found = node[i].op == SY_OP_EXPERTS;
    return found ? SY_OK
                 : sy_fail(err, SY_EARG, "--ep: the model has no experts to share; leave it out, or use --tp");
}
