/* measure_delta.c - costs of the kernels of the gated delta rule. */
#include <string.h>

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/schedule.h"

#define EPS   1e-6F /* of the layer's norms, and what follows them */
#define SCALE 0.1F

/* The longest loop is that over rounds; those inside it clear or copy states where a sequence begins or ends. */
static sy_status rounds_of(struct mo_schedule *k, double *round, double *inside, struct sy_err *err)
{
    int all = mo_longest(k->loop, k->n, -1);
    if (all < 0) return mo_schedule_unknown(err);
    *round = (double)mo_length(k->loop[all]);
    *inside = 0;
    for (int i = all + 1; i < k->n && k->loop[i].to <= k->loop[all].to; i++) *inside += (double)mo_length(k->loop[i]);
    *round -= *inside;
    return SY_OK;
}

/* The compiler's schedule of what m says: cycles of a round, and beside it those of its inner loops. */
static sy_status schedule_of(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                             struct mosaic *m, struct sy_delta_cost *out, double *inside, struct sy_err *err)
{
    struct mo_schedule k;
    sy_status st = mo_schedule(env, plugin, t, m, &k, err);
    if (!st) st = rounds_of(&k, &out->round, inside, err);
    if (!st) out->compile_s = k.compile_s;
    return st;
}

static double larger(double a, double b) { return a > b ? a : b; }

static sy_status decode_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                             const struct sy_delta_shape *s, struct sy_delta_cost *out, struct sy_err *err)
{
    struct mo_delta a = mo_delta_of(&s->dim, s->n_tap, s->bf16, s->n_seq, s->n_seq + 1);
    struct mosaic m;
    double inside = 0;
    mo_init(&m, env);
    mo_delta(&m, &a);
    sy_status st = schedule_of(env, plugin, t, &m, out, &inside, err);
    if (st) return st;
    int32_t rows = mo_delta_rows(&a), heads = mo_delta_heads(&a),
            n = (int32_t)sy_ceil_div(s->n_seq * mo_delta_units(&a), a.side);
    double state = 2.0 * a.unit * 128 * 128 * (a.bf16 ? 2 : 4), tokens = 4.0 * 128 * (rows + 3 * heads);
    double bytes = a.side * (state + tokens + 2.0 * 4 * 128 * (a.n_tap - 1) * rows);
    out->memory = bytes / t->hbm_bytes_s * t->clock_hz;
    out->side = a.side;
    out->unit = a.unit;
    out->all = n * larger(out->round, out->memory);
    return SY_OK;
}

static sy_status prompt_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                             const struct sy_delta_shape *s, struct sy_delta_cost *out, struct sy_err *err)
{
    enum { C = 64, D = 128 };
    struct mo_chunk a = mo_chunk_of(&s->dim, s->bf16, s->n_tok, s->n_seq, s->n_seq + 1);
    struct mosaic m;
    double inside = 0;
    a.norm = true;
    a.eps = EPS;
    a.q_scale = a.k_scale = SCALE;
    mo_init(&m, env);
    mo_chunk(&m, &a);
    sy_status st = schedule_of(env, plugin, t, &m, out, &inside, err);
    if (st) return st;
    int32_t units = a.n_val / a.unit, keys = a.n_key / units;
    int64_t rounds = units * sy_ceil_div(sy_ceil_div(s->n_tok, C), a.side);
    double piece = 2.0 * C * D * (2 * keys + a.unit) + 4.0 * D * C + 4.0 * C * D * a.unit;
    double states = 2.0 * a.unit * D * D * (a.bf16 ? 2 : 4) / t->hbm_bytes_s * t->clock_hz;
    out->memory = a.side * piece / t->hbm_bytes_s * t->clock_hz;
    out->side = a.side;
    out->unit = a.unit;
    out->all = (double)rounds * larger(out->round, out->memory) + units * (states + a.unit * inside);
    return SY_OK;
}

sy_status sy_delta_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                        const struct sy_delta_shape *s, struct sy_delta_cost *out, struct sy_err *err)
{
    *out = (struct sy_delta_cost){0};
    return (s->n_tok ? prompt_cost : decode_cost)(env, plugin, t, s, out, err);
}

enum node {
    X = 1,
    DECAY,
    BETA,
    TAPS,
    WINDOW,
    STATE,
    CONV,
    SILU,
    PART_Q,
    PART_K,
    PART_V,
    NORM_Q,
    NORM_K,
    Q,
    K,
    SCAN,
    N
};

/* The layer's nodes, as a model has them. */
static void layer_of(const struct sy_delta_shape *s, int64_t n_tok, struct sy_node *node)
{
    int64_t key = (int64_t)s->dim.n_key * s->dim.d_key, val = (int64_t)s->dim.n_val * s->dim.d_val,
            all = 2 * key + val;
    node[TAPS] = (struct sy_node){.op = SY_OP_WEIGHT, .name = "taps", .dim = {1, all * s->n_tap}};
    node[WINDOW] = (struct sy_node){.op = SY_OP_STATE};
    node[WINDOW].attr.state = (struct sy_state_spec){.kind = SY_SLOTS, .elems = (s->n_tap - 1) * all};
    node[STATE] = (struct sy_node){.op = SY_OP_STATE};
    node[STATE].attr.state = (struct sy_state_spec){.kind = SY_SLOTS, .elems = val * s->dim.d_key};
    node[CONV] = (struct sy_node){.op = SY_OP_CONV, .in = {{X}, {TAPS}, {0}, {WINDOW}}, .dim = {n_tok, all}};
    node[SILU] = (struct sy_node){.op = SY_OP_ACT, .in = {{CONV}}, .dim = {n_tok, all}, .attr.fn = SY_SILU};
    const int64_t lo[] = {0, key, 2 * key, all};
    for (uint32_t i = 0; i < 3; i++) {
        node[PART_Q + i] = (struct sy_node){.op = SY_OP_PART, .in = {{SILU}}, .dim = {n_tok, lo[i + 1] - lo[i]}};
        node[PART_Q + i].attr.part.lo = lo[i];
        node[PART_Q + i].attr.part.hi = lo[i + 1];
    }
    for (uint32_t i = 0; i < 2; i++) {
        node[NORM_Q + i] = (struct sy_node){.op = SY_OP_NORM, .in = {{PART_Q + i}}, .dim = {n_tok, key}};
        node[NORM_Q + i].attr.norm = (struct sy_norm_dim){.eps = EPS, .d = s->dim.d_key};
        node[Q + i] = (struct sy_node){.op = SY_OP_SCALE, .in = {{NORM_Q + i}}, .dim = {n_tok, key}, .attr.c = SCALE};
    }
    node[SCAN] =
        (struct sy_node){.op = SY_OP_SCAN, .in = {{Q}, {K}, {PART_V}, {DECAY}, {BETA}, {STATE}}, .dim = {n_tok, val}};
    node[SCAN].attr.scan = s->dim;
    node[X].dim[1] = all;
    node[DECAY].dim[1] = node[BETA].dim[1] = s->dim.n_val;
}

sy_status mo_delta_program(const struct sy_env *env, const struct sy_delta_shape *s, int32_t n_tok, unsigned kernels,
                           struct sy_buf *out, struct sy_err *err)
{
    int val[N] = {0}, kv[2], first[N] = {0}, result[3];
    bool inside[N] = {[X] = true, [DECAY] = true, [BETA] = true};
    struct sy_node node[N] = {{0}};
    layer_of(s, n_tok, node);
    struct pj_wentry entry = {.name = "taps", .vec = 0};
    struct sy_weights w = {.entry = &entry, .n_entry = 1, .n_rank = 1};
    struct lower l = {.node = node,
                      .n_node = N,
                      .val = val,
                      .inside = inside,
                      .w = &w,
                      .kv = kv,
                      .first = first,
                      .n_kv = 2,
                      .entry_of_token = -1,
                      .chain.head = -1};
    l.shape = (struct sy_shape){n_tok, s->n_seq, 1, s->n_seq, 0};
    l.opt = (struct pj_lower_opt){.compute = SY_COMPUTE_BF16,
                                  .state_elem = s->bf16 ? PJ_BF16 : PJ_F32,
                                  .cache = {.block_len = 32, .n_block = 2, .n_slot = 2 * s->n_seq + 1},
                                  .kernels = kernels,
                                  .n_rank = 1};
    first[STATE] = 1;
    int64_t n_step = 0, n_slot = l.opt.cache.n_slot;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        n_step += sy_field_len((enum sy_field)f, l.shape);
        l.field[f] = -1;
    }
    pj_hlo_init(&l.h, env);
    l.step = pj_arg(&l.h, PJ_TYPE(PJ_I32, n_step), -1);
    struct mo_delta a;
    struct pj_type window = PJ_TYPE(PJ_F32, n_slot, s->n_tap - 1, node[X].dim[1]);
    if (lower_delta_of_conv(node, N, &node[CONV], &l.opt, &a))
        window = PJ_TYPE(PJ_F32, n_slot, mo_delta_units(&a), s->n_tap - 1, mo_delta_rows(&a), 128);
    kv[0] = pj_arg(&l.h, window, 0);
    kv[1] = pj_arg(&l.h, PJ_TYPE(l.opt.state_elem, n_slot, s->dim.n_val, s->dim.d_key, s->dim.d_val), 1);
    for (int i = X; i <= BETA; i++) val[i] = pj_arg(&l.h, PJ_TYPE(PJ_F32, n_tok, node[i].dim[1]), -1);
    l.arg0 = pj_arg(&l.h, PJ_TYPE(PJ_F32, node[TAPS].dim[1]), -1);
    lower_delta_mark(&l);
    sy_status st = lower_nodes(&l);
    memcpy(result, kv, sizeof kv);
    result[2] = val[SCAN];
    if (!st) st = pj_hlo_end(&l.h, 1, result, 3, out, err);
    pj_hlo_release(&l.h);
    return st;
}

sy_status sy_delta_twin_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                             const struct sy_delta_shape *s, bool around, struct sy_twin_cost *out,
                             struct sy_err *err)
{
    struct sy_buf program;
    struct sy_aot_result r;
    struct sy_aot_job job = {.plugin = plugin, .target = t, .text = &program, .n_rank = 1, .trips = {1, 1, 1}};
    unsigned kernel = s->n_tok ? SY_KERNELS_CHUNK : SY_KERNELS_DELTA;
    if (s->n_tok) job.trips[0] = (double)sy_ceil_div(s->n_tok, 64); /* pieces, one after the other */
    sy_buf_init(&program, env, 0);
    sy_status st = mo_delta_program(env, s, s->n_tok ? s->n_tok : s->n_seq, around ? kernel : 0, &program, err);
    if (!st) st = sy_aot_compile(env, &job, &r, err);
    /* States read and written once; the compiler counts whole arrays where a part of one is read. */
    double bytes = 2.0 * (s->n_tok ? 1 : s->n_seq) * s->dim.n_val * s->dim.d_key * s->dim.d_val * (s->bf16 ? 2 : 4);
    if (!st) *out = (struct sy_twin_cost){r.cycles / t->clock_hz, bytes / t->hbm_bytes_s};
    sy_buf_release(&program);
    return st;
}

struct sy_delta_use sy_delta_use_of(const struct sy_graph *g, const struct sy_aot_opt *o)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    struct sy_shape s = sy_graph_shape(g);
    struct sy_delta_use u = {0};
    int32_t taps = 0;
    for (uint32_t i = 1; i < n_node; i++) {
        if (node[i].op == SY_OP_CONV)
            taps = (int32_t)(node[node[i].in[3].id].attr.state.elems / node[i].dim[1]) + 1; /* before its SCAN */
        if (node[i].op != SY_OP_SCAN) continue;
        /* States of programs that are compiled ahead are f32. */
        const char *why = pj_is_decode(s) ? lower_delta_refuses(node, n_node, &node[i], PJ_F32)
                                          : lower_chunk_refuses(node, &node[i], o->compute, PJ_F32);
        if (why) u.why = u.n_plain++ ? u.why : why;
        else if (u.n_kernel++ == 0)
            u.shape = (struct sy_delta_shape){
                .dim = node[i].attr.scan, .n_seq = s.seq, .n_tap = taps, .n_tok = pj_is_decode(s) ? 0 : s.tok};
    }
    return u;
}
