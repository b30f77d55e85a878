/* bucket.c - one program of `systole compile`: whether it can fit, the compiler in a process of its own, and what
 * memory and arithmetic allow at best. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/aot/aot.h"
#include "app/aot/child.h"

struct child {
    const struct sy_env *env;
    struct sy_aot_job job;
};

static sy_status compile_in_child(void *ctx, void *result, struct sy_err *err)
{
    const struct child *c = ctx;
    return sy_aot_compile(c->env, &c->job, result, err);
}

static double one_byte(void *ctx, const struct sy_node *n)
{
    (void)ctx;
    (void)n;
    return 1;
}

/* Of the experts' weights those that some token chooses, were choices even. */
static double expert_share(const struct sy_graph *g, const struct sy_load *step)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    struct sy_load l = *step;
    double read = 0, held = 0;
    l.weight_bytes = one_byte;
    for (uint32_t i = 1; i < n; i++) {
        if (node[i].op != SY_OP_EXPERTS) continue;
        read += sy_node_cost(g, i, &l).b_weight;
        for (int k = 2; k < 4; k++)
            held += (double)node[node[i].in[k].id].dim[0] * (double)node[node[i].in[k].id].dim[1];
    }
    return held > 0 ? read / held : 0;
}

/* What memory and arithmetic allow at best: weights and keys read once, every device alike. */
static void count(const struct aot_job *j, const struct sy_graph *g, struct aot_bucket *b)
{
    static const double bytes[] = {[SY_KV_F32] = 4, [SY_KV_BF16] = 2, [SY_KV_F16] = 2, [SY_KV_Q8_0] = 1 + 2.0 / 128};
    struct sy_shape s = b->shape;
    double keys = (double)s.block * j->opt.cache.block_len, n = s.tok;
    bool decode = s.tok == s.seq;
    struct sy_load load = {.tok = n,
                           .out = decode ? n : 1,
                           .keys = decode ? n * keys : n * (n + 1) / 2,
                           .ctx = decode ? n * keys : n,
                           .seq = decode ? n : 1,
                           .kv_elem_bytes = bytes[j->opt.kv_dtype]};
    const struct sy_load one = {.tok = 1.0 / sy_shard_groups(&j->opt.shard)};
    struct sy_cost c = sy_graph_cost(g, &load);
    b->flops = c.flops;
    b->bytes = b->step_bytes + c.b_state + b->expert_bytes * (expert_share(g, &load) - expert_share(g, &one));
    b->memory_s = j->target->hbm_bytes_s > 0 ? b->bytes / j->target->hbm_bytes_s : 0;
    b->arithmetic_s = j->target->flops_s > 0 ? c.flops / j->target->flops_s : 0;
}

/* "; 4 chips more (v5e-16)": the next larger target of the same chip, if any. */
static void larger(const struct sy_aot_target *t, char *text, size_t n_text)
{
    int32_t n;
    const struct sy_aot_target *all = sy_aot_targets(&n), *best = NULL;
    for (int32_t i = 0; i < n; i++)
        if (all[i].kind == t->kind && all[i].flops_s == t->flops_s && all[i].n_device > t->n_device &&
            (!best || all[i].n_device < best->n_device))
            best = &all[i];
    snprintf(text, n_text, best ? "more chips (--target %s)" : "a larger chip", best ? best->name : "");
}

/* Says by how much it does not fit, and what would. over: bytes too many, of one device. */
static sy_status too_large(const struct aot_job *j, const struct aot_bucket *b, double over, struct sy_err *err)
{
    double gb = 1e9, have = j->target->hbm_bytes, seqs = (double)j->max.seq * (1 - over / b->kv_bytes);
    char chips[64], fewer[120] = "";
    larger(j->target, chips, sizeof chips);
    if (seqs >= 1)
        snprintf(fewer, sizeof fewer,
                 "about %.0f sequences of %d tokens would fit (--max-seqs, --ctx-size, --kv-memory); ", seqs,
                 j->plan.ctx_len);
    const char *dtype = j->opt.kv_dtype == SY_KV_F32 && b->kv_bytes / 2 > over ? "--kv-dtype bf16 would do; " : "";
    const char *format = b->weight_bytes / 2 > over ? "weights of 8 bits would do; " : "smaller weights or ";
    return sy_fail(err, SY_ENOMEM,
                   "weights of %.1f GB and a KV cache of %.1f GB a device exceed the %.1f GB of %s by %.2f GB%s; "
                   "%s%s%s%s",
                   b->weight_bytes / gb, b->kv_bytes / gb, have / gb, j->target->name, over / gb,
                   over > b->weight_bytes + b->kv_bytes - have + 1 ? ", with what the program needs besides" : "",
                   fewer, dtype, format, chips);
}

static double size_of(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    return v * (*end == 'G' ? 1073741824.0 : *end == 'M' ? 1048576.0 : *end == 'K' ? 1024.0 : 1);
}

/* Bytes too many by libtpu's words; held: of arguments. 0: it tells of none. */
static double exceeded(const char *message, double held, double have)
{
    static const char by[] = "xceeded hbm capacity by ", temporaries[] = "HLO temporaries (", all[] = "required (";
    const char *at = strstr(message, by);
    if (at) return size_of(at + sizeof by - 1);
    at = strstr(message, temporaries);
    if (at) return size_of(at + sizeof temporaries - 1) + held - have;
    at = strstr(message, all);
    return at ? size_of(at + sizeof all - 1) - have : 0;
}

static sy_status compile(struct aot_job *j, const struct sy_buf *text, const double *trips, struct sy_aot_result *r,
                         struct sy_err *err)
{
    struct child c = {.env = &j->a->app->env,
                      .job = {.plugin = j->plugin,
                              .target = j->target,
                              .text = text,
                              .n_rank = sy_shard_ranks(&j->opt.shard),
                              .trips = {trips[0], trips[1], trips[2]},
                              .store = j->store}};
    return sy_child_run(compile_in_child, &c, r, sizeof *r, err);
}

static sy_status run(struct aot_job *j, const struct sy_graph *g, struct sy_aot_program *p, struct aot_bucket *b,
                     struct sy_err *err)
{
    double trips[SY_AOT_LOOPS], have = j->target->hbm_bytes;
    sy_aot_trips(g, j->opt.cache.block_len, trips);
    struct sy_err own = {0};
    sy_status st = compile(j, &p->text, trips, &b->r, &own);
    double over = st == SY_ENOMEM ? exceeded(own.msg, p->weight_bytes + p->kv_bytes, have) : 0;
    if (over > 0) return too_large(j, b, over, err);
    if (st && err) *err = own;
    return st;
}

/* What is known before any compiler runs. */
static sy_status fits(const struct aot_job *j, const struct sy_aot_program *p, struct aot_bucket *b,
                      struct sy_err *err)
{
    double have = j->target->hbm_bytes, over = p->weight_bytes + p->kv_bytes - have;
    b->weight_bytes = p->weight_bytes;
    b->kv_bytes = p->kv_bytes;
    b->step_bytes = p->step_bytes;
    b->expert_bytes = p->expert_bytes;
    b->text_bytes = p->text.len;
    return have > 0 && over > 0 ? too_large(j, b, over, err) : SY_OK;
}

static sy_status lower(const struct aot_job *j, const struct sy_graph *g, struct sy_aot_program *p,
                       struct aot_bucket *b, struct sy_err *err)
{
    sy_status st = sy_aot_lower(&j->a->app->env, g, j->ckpt, &j->opt, p, err);
    if (!st) st = fits(j, p, b, err);
    if (st) sy_aot_program_release(p);
    return st;
}

sy_status aot_bucket_compile(struct aot_job *j, struct sy_shape shape, struct sy_err *err)
{
    struct sy_graph *g = NULL;
    struct sy_aot_program p = {0};
    struct aot_bucket *b = &j->bucket[j->n_bucket];
    *b = (struct aot_bucket){.shape = shape};
    sy_status st = aot_graph(j, shape, &g, err);
    if (!st) st = lower(j, g, &p, b, err);
    if (!st && !j->weighed[0].done) {
        st = aot_kernels_choose(j, err);
        if (st || j->opt.kernels) {
            sy_aot_program_release(&p);
            if (!st) st = lower(j, g, &p, b, err);
        }
    }
    if (!st) {
        st = run(j, g, &p, b, err);
        if (!st) st = aot_kernels_add(j, g, &p, &b->r, err);
        sy_aot_program_release(&p);
    }
    if (!st) {
        count(j, g, b);
        j->n_bucket++;
    }
    sy_graph_free(g);
    return st ? sy_while(err, st, "%d tokens of %d sequences", shape.tok, shape.seq) : SY_OK;
}

sy_status aot_moves_compile(struct aot_job *j, struct sy_err *err)
{
    struct sy_graph *g = NULL;
    struct sy_aot_result r;
    const double once[SY_AOT_LOOPS] = {1, 1, 1};
    sy_status st = aot_graph(j, j->max, &g, err);
    for (int i = 0; i < SY_AOT_MOVES && !st; i++) {
        struct sy_buf text;
        sy_buf_init(&text, &j->a->app->env, 0);
        st = sy_aot_lower_move(&j->a->app->env, g, &j->opt, i, &text, err);
        if (!st && text.len) st = compile(j, &text, once, &r, err); /* a model may have no blocks */
        sy_buf_release(&text);
    }
    sy_graph_free(g);
    return st ? sy_while(err, st, "programs that move blocks") : SY_OK;
}
