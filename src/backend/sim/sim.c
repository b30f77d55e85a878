#include "backend/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/data.h"
#include "base/rng.h"

struct sy_backend {
    const struct sy_env *env;
    struct sy_chip chip;
    int32_t chips;
    bool timed; /* forward() costs real time */
    struct sy_timer timer;
    struct sy_rank_load load;
    uint64_t end_ns;
    int32_t *token, out_max, n_vocab, d_model;
    float *row; /* one row of logits, all alike, that every output shares */
    struct sy_result result;
};
struct sy_weights {
    const struct sy_env *env;
    double read, held;
};
struct sy_program {
    const struct sy_env *env;
};
struct sy_kv_cache {
    const struct sy_env *env;
};

static void close_backend(struct sy_backend *b)
{
    if (!b) return;
    sy_delete(b->env, b->token);
    sy_delete(b->env, b->row);
    sy_delete(b->env, b);
}

sy_status sy_sim_rank_new(const struct sy_env *env, int32_t out_max, int32_t n_vocab, struct sy_backend **out,
                          struct sy_err *err)
{
    struct sy_backend *b = sy_new(env, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    b->env = env;
    b->out_max = out_max;
    b->n_vocab = n_vocab;
    b->token = sy_new_array(env, (size_t)out_max, sizeof *b->token);
    if (!b->token) {
        close_backend(b);
        return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    }
    *out = b;
    return SY_OK;
}

struct sy_rank_load sy_sim_rank_load(const struct sy_backend *b) { return b->load; }

/* "b200" or "b200x8": so many of them, sharded by tensors. */
static sy_status open_backend(const struct sy_env *env, const struct sy_backend_opt *opt, struct sy_backend **out,
                              struct sy_err *err)
{
    const char *device = opt->device ? opt->device : "", *times = strrchr(device, 'x');
    char *end = NULL, id[32], path[64];
    long chips = times && times[1] >= '1' && times[1] <= '9' ? strtol(times + 1, &end, 10) : 1;
    size_t n = end && !*end ? (size_t)(times - device) : strlen(device);
    if (n == 0 || n >= sizeof id || chips < 1 || chips > 4096)
        return sy_fail(err, SY_EARG, "--backend sim: expected sim:CHIP or sim:CHIPxN, found 'sim:%.60s'", device);
    snprintf(id, sizeof id, "%.*s", (int)n, device);
    snprintf(path, sizeof path, "chips/%s.json", id);
    const struct sy_data *d = sy_data_find(path);
    if (!d) return sy_fail(err, SY_EARG, "--backend sim: no card for chip '%s'; 'systole plan list' shows them", id);
    struct sy_backend *b = sy_new(env, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    b->env = env;
    b->chips = (int32_t)chips;
    b->timed = true;
    sy_status st = sy_chip_read(env, id, d->at, d->n, &b->chip, err);
    if (st) {
        close_backend(b);
        return st;
    }
    *out = b;
    return SY_OK;
}

static void device(struct sy_backend *b, struct sy_device *d, bool measure)
{
    (void)measure;
    *d = (struct sy_device){.ragged = !b->chip.static_shapes, .n_thread = 1, .bytes = (int64_t)b->chip.memory_bytes};
    snprintf(d->name, sizeof d->name, "sim:%.32s", b->chip.id);
    snprintf(d->isa, sizeof d->isa, "simulated");
    d->bytes_s = b->chip.memory_bytes_s * b->chips;
}

/* Weights stay where they are: only their number counts. */
static sy_status load(struct sy_backend *b, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                      struct sy_weights **out, struct sy_err *err)
{
    (void)ckpt;
    struct sy_profile p;
    struct sy_path path;
    struct sy_sharding l = {.chips = b->chips, .tp = b->chips * b->chip.devices, .dp = 1, .pp = 1};
    sy_profile_of_graph(g, INT32_MAX, &p);
    sy_status st = sy_path_named("bf16", &b->chip, &path, err);
    if (!st) st = sy_timer_init(&b->timer, &p, &b->chip, &path, l, sy_consts_roofline, err);
    if (st) return st;
    b->out_max = sy_graph_shape(g).out;
    b->n_vocab = p.n_vocab;
    b->d_model = p.d_model;
    b->token = sy_new_array(b->env, (size_t)b->out_max, sizeof *b->token);
    b->row = sy_new_array(b->env, (size_t)(p.n_vocab > p.d_model ? p.n_vocab : p.d_model), sizeof *b->row);
    struct sy_weights *w = sy_new(b->env, sizeof *w);
    if (!b->token || !b->row || !w) {
        sy_delete(b->env, w);
        return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    }
    *w = (struct sy_weights){b->env, 2 * sy_profile_active(&p), 2 * sy_profile_params(&p)};
    *out = w;
    return SY_OK;
}

static void weights_bytes(const struct sy_weights *w, double *read, double *held)
{
    *read = w->read;
    *held = w->held;
}

static sy_status compile(struct sy_backend *b, const struct sy_graph *g, const struct sy_weights *w,
                         struct sy_cache_dim dim, struct sy_program **out, struct sy_err *err)
{
    (void)g;
    (void)w;
    (void)dim;
    *out = sy_new(b->env, sizeof **out);
    if (!*out) return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    (*out)->env = b->env;
    return SY_OK;
}

static sy_status allocate_kv_cache(struct sy_backend *b, const struct sy_graph *g, struct sy_cache_dim dim,
                                   struct sy_kv_cache **out, struct sy_err *err)
{
    (void)g;
    (void)dim;
    *out = sy_new(b->env, sizeof **out);
    if (!*out) return sy_fail(err, SY_ENOMEM, "no memory for the sim backend");
    (*out)->env = b->env;
    return SY_OK;
}

/* Copies within the cache and to the host move nothing here; their time is small beside a step's. */
static void copy_blocks(struct sy_backend *b, struct sy_kv_cache *kv, const struct sy_copy *c, int32_t n)
{
    (void)b;
    (void)kv;
    (void)c;
    (void)n;
}

static void save_block(struct sy_backend *b, struct sy_kv_cache *kv, struct sy_spot place, void *host)
{
    (void)b;
    (void)kv;
    (void)place;
    (void)host;
}

static void restore_block(struct sy_backend *b, struct sy_kv_cache *kv, struct sy_spot place, const void *host)
{
    (void)b;
    (void)kv;
    (void)place;
    (void)host;
}

static int64_t kv_block_bytes(struct sy_backend *b, const struct sy_graph *g, int32_t block_len, int64_t *apart)
{
    (void)b;
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    int64_t sum = 0;
    *apart = 0;
    for (uint32_t i = 1; i < n; i++) {
        const struct sy_state_spec *s = &node[i].attr.state;
        if (node[i].op != SY_OP_STATE || s->kind != SY_BLOCKS) continue;
        int64_t each = block_len * (2 * s->elems / (s->every > 1 ? s->every : 1));
        sum += each;
        if (s->window > 0) *apart += each;
    }
    return sum;
}

static int64_t slot_bytes(struct sy_backend *b, const struct sy_graph *g)
{
    (void)b;
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(g, &n);
    int64_t sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if (node[i].op == SY_OP_STATE && node[i].attr.state.kind == SY_SLOTS) sum += 4 * node[i].attr.state.elems;
    return sum;
}

static struct sy_rank_load load_of(const struct sy_batch *b)
{
    const int32_t *start = b->field[SY_START], *ctx = b->field[SY_CTX];
    struct sy_rank_load l = {.tok = b->n_tok, .out = b->n_out, .seq = b->n_seq};
    for (int32_t i = 0; i < b->n_seq; i++) {
        double n = start[i + 1] - start[i], c = ctx[i], keys = n * c - n * (n - 1) / 2;
        l.keys += keys;
        l.ctx += c;
        if (n > 1) {
            l.prompt += n;
            l.prompt_keys += keys;
        }
    }
    return l;
}

static sy_status forward(struct sy_backend *b, struct sy_program *p, struct sy_kv_cache *kv,
                         const struct sy_batch *in)
{
    (void)p;
    (void)kv;
    b->load = load_of(in);
    for (int32_t i = 0; i < in->n_out; i++) {
        int32_t at = in->field[SY_OUT][i];
        if (b->timed)
            b->token[i] = (int32_t)(sy_rng_u64((uint64_t)in->field[SY_TOK][at], (uint64_t)in->field[SY_POS][at]) %
                                    (uint64_t)b->n_vocab);
    }
    b->result = (struct sy_result){.token = b->token,
                                   .logits = b->row,
                                   .hidden = b->row,
                                   .n = in->n_out,
                                   .n_vocab = b->n_vocab,
                                   .d_model = b->d_model};
    if (b->timed) b->end_ns = sy_now_ns(b->env) + (uint64_t)(1e9 * sy_timer_step(&b->timer, &b->load, 1));
    return SY_OK;
}

static sy_status wait_result(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    (void)want;
    (void)err;
    /* Only where time passes by itself: a clock that its owner moves needs nobody to wait. */
    bool waits = b->timed && b->env->clock == sy_env_default()->clock;
    for (uint64_t now; waits && (now = sy_now_ns(b->env)) < b->end_ns;) {
        uint64_t rest = b->end_ns - now;
        nanosleep(&(struct timespec){(time_t)(rest / 1000000000), (long)(rest % 1000000000)}, NULL);
    }
    *out = b->result;
    return SY_OK;
}

static void weights_free(struct sy_weights *w)
{
    if (w) sy_delete(w->env, w);
}

static void program_free(struct sy_program *p)
{
    if (p) sy_delete(p->env, p);
}

static void free_kv_cache(struct sy_kv_cache *kv)
{
    if (kv) sy_delete(kv->env, kv);
}

const struct sy_backend_ops sy_backend_sim = {
    .name = "sim",
    .open = open_backend,
    .close = close_backend,
    .device = device,
    .load = load,
    .weights_bytes = weights_bytes,
    .compile = compile,
    .allocate_kv_cache = allocate_kv_cache,
    .copy_blocks = copy_blocks,
    .save_block = save_block,
    .restore_block = restore_block,
    .kv_block_bytes = kv_block_bytes,
    .slot_bytes = slot_bytes,
    .forward = forward,
    .wait = wait_result,
    .weights_free = weights_free,
    .program_free = program_free,
    .free_kv_cache = free_kv_cache,
};
