/* engine.c - opening a model and taking it down; step.c runs it. */
#include <string.h>

#include "engine/chat.h"
#include "engine/engine_int.h"
#include "graph/shard.h"

static const struct sy_backend_ops *backend_by_name(const char *name, size_t n)
{
    for (int i = 0; sy_backends[i]; i++)
        if (strlen(sy_backends[i]->name) == n && !memcmp(sy_backends[i]->name, name, n)) return sy_backends[i];
    return NULL;
}

static sy_status open_backend(struct sy_engine *e, const struct sy_engine_opt *o, struct sy_err *err)
{
    const char *name = o->backend ? o->backend : "cpu", *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name);
    e->ops = backend_by_name(name, n);
    if (!e->ops)
        return sy_fail(err, SY_ENOSUP, "backend '%.*s' is not part of this build; 'cpu' and 'pjrt:PLUGIN' are",
                       (int)n, name);
    struct sy_backend_opt opt = o->backend_opt;
    opt.device = colon ? colon + 1 : NULL;
    return e->ops->open(e->env, &opt, &e->backend, err);
}

static void add_end(struct sy_engine *e, int64_t id)
{
    if (id < 0 || id >= e->model.info.n_vocab || e->n_end_id == (int32_t)SY_COUNT(e->end_id)) return;
    if (!sy_engine_is_end(e, (int32_t)id)) e->end_id[e->n_end_id++] = (int32_t)id;
}

static void add_ends(struct sy_engine *e, const struct sy_json *config)
{
    const struct sy_json *eos = sy_json_get(config, "eos_token_id");
    if (sy_json_is_int(eos)) add_end(e, sy_json_int(eos, -1));
    for (size_t i = 0; sy_json_is_array(eos) && i < sy_json_len(eos); i++)
        add_end(e, sy_json_int(sy_json_at(eos, i), -1));
}

/* The token that ends an answer in the model's own conversations: what its template writes behind an assistant's
 * message. Files that name an end of text only (eos) would otherwise never stop in a chat. */
static sy_status add_end_of_turn(struct sy_engine *e, struct sy_err *err)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"systole\"}]";
    struct sy_json *messages = NULL;
    struct sy_rendered r = {0};
    struct sy_ids ids;
    sy_ids_init(&ids, e->env);
    sy_status st = sy_json_parse(e->env, talk, sizeof talk - 1, false, &messages, err);
    struct sy_render in = {.messages = messages};
    sy_chat_tokens(e->tok, &in);
    /* A template that refuses this conversation tells nothing; that is no fault of the file. */
    bool told = !st && sy_template_render(e->tpl, e->env, &in, &r, NULL) == SY_OK;
    const char *at = told && r.text.len ? memmem(r.text.at, r.text.len, "systole", 7) : NULL;
    if (at) st = sy_tokenizer_encode(e->tok, at + 7, (size_t)(r.text.at + r.text.len - at) - 7, 0, &ids, err);
    for (size_t i = 0; !st && i < ids.n; i++)
        if (sy_tokenizer_is_special(e->tok, ids.at[i])) {
            add_end(e, ids.at[i]);
            break;
        }
    if (told) sy_rendered_release(&r, e->env);
    sy_ids_release(&ids);
    sy_json_free(messages);
    return st;
}

static sy_status open_text(struct sy_engine *e, struct sy_err *err)
{
    sy_status st = sy_tokenizer_open(e->env, e->ckpt, &e->tok, err);
    size_t n;
    const char *source = sy_checkpoint_chat_template(e->ckpt, &n);
    if (!st && source && e->tok) {
        st = sy_template_compile(e->env, source, n, NULL, &e->tpl, err);
        if (st) sy_while(err, st, "chat template of '%s'", sy_checkpoint_path(e->ckpt));
    }
    /* generation_config.json is what decides; config.json and the tokenizer are asked when it says nothing. */
    add_ends(e, sy_checkpoint_generation(e->ckpt));
    if (e->n_end_id == 0) add_ends(e, sy_checkpoint_config(e->ckpt));
    if (e->tok) add_end(e, sy_tokenizer_eos(e->tok));
    return !st && e->tpl ? add_end_of_turn(e, err) : st;
}

static int32_t or_default(int32_t v, int32_t otherwise) { return v > 0 ? v : otherwise; }

sy_status engine_graph_part(struct sy_engine *e, const struct sy_model *m, enum sy_model_part part,
                            struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    struct sy_graph *whole;
    sy_status st = sy_model_build_part(e->env, m, part, shape, &whole, err);
    if (st || sy_shard_ranks(&e->opt.backend_opt.shard) == 1) {
        if (!st) *out = whole;
        return st;
    }
    st = sy_graph_shard(e->env, whole, &e->opt.backend_opt.shard, out, err);
    sy_graph_free(whole);
    return st;
}

sy_status engine_graph(struct sy_engine *e, struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    return engine_graph_part(e, &e->model, draft_part(e), shape, out, err);
}

/* A running sequence reads one slot and writes another at most; what is left over holds snapshots. */
sy_status sy_engine_plan_slots(const struct sy_engine_opt *o, int64_t slot_bytes, struct sy_engine_plan *p,
                               struct sy_shape *shape, struct sy_err *err)
{
    p->slot_bytes = slot_bytes;
    if (slot_bytes == 0) return SY_OK;
    int64_t n = 8 + 4 * (int64_t)p->seq_group;
    if (o->snapshot_bytes > 0) n = o->snapshot_bytes / sy_shard_groups(&o->backend_opt.shard) / slot_bytes;
    if (o->no_prefix_cache) n = 0;
    n += 1 + 2 * (int64_t)p->seq_group;
    if (n > 1 << 20 || (double)n * (double)slot_bytes > 1e15)
        return sy_fail(err, SY_ENOMEM, "%lld states of %lld bytes are too many; lower --max-seqs", (long long)n,
                       (long long)slot_bytes);
    p->n_slot = (int32_t)n;
    shape->seq = 2 * p->seq_max + 2; /* a sequence stands in a step twice where a snapshot is taken */
    return SY_OK;
}

static sy_status rebuild(struct sy_engine *e, struct sy_shape shape, struct sy_err *err)
{
    sy_graph_free(e->graph);
    e->graph = NULL;
    return engine_graph(e, shape, &e->graph, err);
}

static sy_status plan_slots(struct sy_engine *e, struct sy_shape *shape, struct sy_err *err)
{
    int64_t slot = e->ops->slot_bytes ? e->ops->slot_bytes(e->backend, e->graph) : 0;
    sy_status st = sy_engine_plan_slots(&e->opt, slot, &e->plan, shape, err);
    return st || slot == 0 ? st : rebuild(e, *shape, err);
}

static sy_status plan_blocks(struct sy_engine *e, struct sy_shape *shape, struct sy_err *err)
{
    struct sy_engine_bytes each = {.window = sy_graph_window(e->graph),
                                   .draft = e->draft ? e->draft->block_bytes : 0};
    each.block = e->ops->kv_block_bytes(e->backend, e->graph, e->plan.block_len, &each.apart);
    e->block_bytes = each.block;
    sy_status st = sy_engine_plan_blocks(&e->opt, shape->block, &each, &e->plan, err);
    if (st || e->plan.n_apart == 0) return st;
    shape->apart = 1;
    return rebuild(e, *shape, err);
}

sy_status sy_engine_plan_shape(const struct sy_engine_opt *o, struct sy_engine_plan *p, struct sy_shape *shape,
                               struct sy_err *err)
{
    p->block_len = or_default(o->block_len, 32);
    if (p->block_len & (p->block_len - 1))
        return sy_fail(err, SY_EARG, "--block-size: expected a power of two, found %d", p->block_len);
    p->seq_max = or_default(o->seq_max, 1);
    p->seq_group = (int32_t)sy_ceil_div(p->seq_max, sy_shard_groups(&o->backend_opt.shard));
    p->batch_tok_max = or_default(o->batch_tok_max, 512);
    p->ctx_len = or_default(o->ctx_len, p->info.n_ctx < 8192 ? p->info.n_ctx : 8192);
    if (p->ctx_len > p->info.n_ctx)
        return sy_fail(err, SY_EARG, "--ctx-size %d is more than the %d tokens the model was made for", p->ctx_len,
                       p->info.n_ctx);
    if (p->batch_tok_max < p->seq_max) p->batch_tok_max = p->seq_max; /* each running sequence must advance */
    int32_t per_seq = blocks_of(p->ctx_len, p->block_len), rows = or_default(o->score_row_max, 64);
    *shape = (struct sy_shape){p->batch_tok_max, p->seq_max, per_seq, rows > p->seq_max ? rows : p->seq_max, 0};
    return SY_OK;
}

int32_t sy_engine_group_seqs(const struct sy_engine_plan *p)
{
    return p->n_slot ? 2 * p->seq_group + 2 : p->seq_group;
}

sy_status sy_engine_plan_blocks(const struct sy_engine_opt *o, int32_t per_seq, const struct sy_engine_bytes *each,
                                struct sy_engine_plan *p, struct sy_err *err)
{
    sy_status st = window_plan(o, per_seq, each, p, err);
    if (st || p->n_apart) return st;
    int32_t n_group = sy_shard_groups(&o->backend_opt.shard); /* each has its share of the sequences */
    int64_t n_block = 1 + (int64_t)p->seq_group * per_seq, most = o->kv_bytes_max / n_group;
    int64_t all_bytes = each->block + each->draft;
    if (o->kv_bytes_max > 0 && all_bytes > 0 && n_block > most / all_bytes)
        n_block = most / all_bytes; /* blocks of a model without attention have no bytes */
    if ((double)n_block * (double)all_bytes > 1e15)
        return sy_fail(err, SY_ENOMEM,
                       "%d sequences of %d tokens need a KV cache of %.0f GB; lower --max-seqs or --ctx-size",
                       p->seq_max, p->ctx_len, (double)n_block * (double)all_bytes / 1e9);
    if (n_block < 1 + per_seq)
        return sy_fail(err, SY_ENOMEM,
                       "--kv-memory: one sequence of %d tokens needs %lld bytes, the limit is %lld; raise it or "
                       "lower --ctx-size",
                       p->ctx_len, (long long)((1 + per_seq) * all_bytes * n_group), (long long)o->kv_bytes_max);
    if (n_block * n_group > INT32_MAX / p->block_len)
        return sy_fail(err, SY_ENOMEM, "%d sequences of %d tokens are too many; lower --max-seqs or --ctx-size",
                       p->seq_max, p->ctx_len);
    p->n_block = (int32_t)n_block;
    p->block_bytes = each->block;
    p->kv_bytes = n_group * n_block * each->block;
    p->draft_kv_bytes = n_group * n_block * each->draft;
    return SY_OK;
}

sy_status engine_tables_new(struct sy_engine *e, struct sy_shape shape, struct sy_err *err)
{
    const struct sy_env *env = e->env;
    e->next_id = 1;
    e->n_group = sy_shard_groups(&e->opt.backend_opt.shard);
    struct sy_cache_size size = {e->plan.block_len, e->plan.n_block, e->plan.n_slot, e->plan.n_apart, e->plan.window};
    e->cache = sy_new_array(env, (size_t)e->n_group, sizeof *e->cache);
    sy_status st = e->cache ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for the engine");
    for (int32_t g = 0; g < e->n_group && !st; g++)
        st = sy_cache_init(&e->cache[g], env, size, !e->opt.no_prefix_cache, err);
    if (!st) st = sy_batch_new(env, shape, &e->batch, err);
    if (st) return st;
    /* With states a sequence goes on from its last snapshot, which is cheaper than moving all of it. */
    if (!e->plan.n_slot) e->n_swap_slot = (int32_t)(e->opt.swap_bytes / (e->block_bytes > 0 ? e->block_bytes : 1));
    if (e->n_swap_slot > e->plan.n_block) e->n_swap_slot = e->plan.n_block;
    if (e->n_swap_slot) {
        e->swap_mem = sy_new_array(env, (size_t)e->n_swap_slot, (size_t)e->block_bytes);
        e->swap_free = sy_new_array(env, (size_t)e->n_swap_slot, sizeof *e->swap_free);
        if (!e->swap_mem || !e->swap_free)
            return sy_fail(err, SY_ENOMEM, "--swap-memory: no memory for %lld bytes", (long long)e->opt.swap_bytes);
        for (int32_t i = 0; i < e->n_swap_slot; i++) e->swap_free[e->n_swap_free++] = i;
    }
    e->running = sy_new_array(env, (size_t)shape.seq, sizeof *e->running);
    e->group_put = sy_new_array(env, (size_t)e->n_group, sizeof *e->group_put);
    e->entry = sy_new_array(env, (size_t)shape.seq, sizeof *e->entry);
    e->slot_drop = sy_new_array(env, (size_t)shape.seq, sizeof *e->slot_drop);
    e->copy = sy_new_array(env, (size_t)shape.seq, sizeof *e->copy);
    e->out = sy_new_array(env, (size_t)shape.out, sizeof *e->out);
    e->home = sy_new_array(env, (size_t)shape.seq, sizeof *e->home);
    e->first = sy_new_array(env, (size_t)shape.seq, sizeof *e->first);
    e->row = sy_new_array(env, (size_t)shape.out, sizeof *e->row);
    e->scratch = sy_new(env, sy_sample_scratch_bytes(e->plan.info.n_vocab));
    if (!e->running || !e->group_put || !e->entry || !e->slot_drop || !e->copy || !e->out || !e->scratch ||
        !e->home || !e->first || !e->row)
        return sy_fail(err, SY_ENOMEM, "no memory for the engine");
    return trace_open(e, err);
}

void engine_tables_free(struct sy_engine *e)
{
    while (e->n_running) sched_end(e, e->running[0], SY_FINISH_CANCELLED, false);
    while (e->wait) sched_end(e, e->wait, SY_FINISH_CANCELLED, false);
    sy_delete(e->env, e->running);
    sy_delete(e->env, e->group_put);
    sy_delete(e->env, e->entry);
    sy_delete(e->env, e->slot_drop);
    sy_delete(e->env, e->copy);
    sy_delete(e->env, e->out);
    sy_delete(e->env, e->home);
    sy_delete(e->env, e->first);
    sy_delete(e->env, e->row);
    sy_delete(e->env, e->scratch);
    sy_delete(e->env, e->swap_mem);
    sy_delete(e->env, e->swap_free);
    sy_batch_release(e->env, &e->batch);
    for (int32_t g = 0; e->cache && g < e->n_group; g++) sy_cache_release(&e->cache[g], e->env);
    sy_delete(e->env, e->cache);
    if (e->trace) fclose(e->trace);
}

static void add_window(struct sy_engine *e, int32_t window, double share)
{
    int32_t i = 0, most = (int32_t)SY_COUNT(e->kv_window);
    while (i < e->n_kv_window && e->kv_window[i].window != window && i + 1 < most) i++;
    if (i == e->n_kv_window) e->kv_window[e->n_kv_window++].window = window;
    e->kv_window[i].share += share;
}

static void find_ropes(struct sy_engine *e)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(e->graph, &n);
    for (uint32_t i = 1; i < n; i++)
        if (node[i].op == SY_OP_ROPE && node[i].attr.rope.inv_freq_long) e->n_ctx_short = node[i].attr.rope.n_short;
}

/* What of a sequence's keys and values a decode step reads. */
static void find_windows(struct sy_engine *e)
{
    uint32_t n;
    const struct sy_node *node = sy_graph_nodes(e->graph, &n);
    double all = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 1; i < n; i++) {
            const struct sy_attn_dim *a = &node[i].attr.attn;
            if (node[i].op != SY_OP_ATTEND) continue;
            double each = (double)a->n_kv * (a->d_key + (a->shared ? 0 : a->d_val));
            if (pass == 0) all += each;
            else add_window(e, a->window > 0 ? a->window : a->chunk, each / all);
        }
}

static sy_status allocate(struct sy_engine *e, struct sy_shape shape, struct sy_err *err)
{
    struct sy_cache_dim dim = {e->plan.block_len, e->plan.n_block, e->plan.n_slot > 0 ? e->plan.n_slot : 1,
                               e->plan.n_apart};
    bool mtp = e->draft && e->draft->mtp; /* loads both */
    e->ops->device(e->backend, &e->plan.device, false);
    sy_status st = mtp ? SY_OK : e->ops->load(e->backend, e->graph, e->ckpt, &e->weights, err);
    if (!st && e->draft) st = draft_load(e, err);
    bool buckets = e->opt.fixed_shapes || !e->plan.device.ragged;
    if (!st && !buckets) st = e->ops->compile(e->backend, e->graph, e->weights, dim, &e->program, err);
    e->ladder.dim = dim;
    e->ladder.weights = e->weights;
    if (!st && buckets) st = buckets_compile(e, shape, &e->ladder, err);
    if (!st) st = e->ops->allocate_kv_cache(e->backend, e->graph, dim, &e->kv, err);
    if (!st) st = engine_tables_new(e, shape, err);
    if (st) return st;
    find_windows(e);
    find_ropes(e);
    e->ops->weights_bytes(e->weights, &e->plan.weight_bytes_step, &e->plan.weight_bytes_held);
    e->ops->device(e->backend, &e->plan.device, false);
    e->n_compiled = e->plan.device.n_compiled;
    return SY_OK;
}

sy_status sy_engine_new(const struct sy_env *env, const struct sy_engine_opt *o, struct sy_engine **out,
                        struct sy_err *err)
{
    struct sy_engine *e = sy_new(env, sizeof *e);
    if (!e) return sy_fail(err, SY_ENOMEM, "no memory for the engine");
    e->env = env;
    e->opt = *o;
    if (o->draft_model && o->draft_max <= 0) e->opt.draft_max = 4;
    struct sy_shape shape;
    sy_status st = open_backend(e, o, err);
    if (!st) st = sy_checkpoint_open(env, o->model, &e->ckpt, err);
    if (!st) st = sy_model_open(env, sy_checkpoint_config(e->ckpt), sy_checkpoint_path(e->ckpt), &e->model, err);
    if (!st) st = open_text(e, err);
    if (!st) {
        e->plan.info = e->model.info;
        e->plan.arch = e->model.arch->name;
        st = sy_engine_plan_shape(o, &e->plan, &shape, err);
    }
    if (!st) st = engine_graph(e, shape, &e->graph, err);
    if (!st) st = sy_shard_check(e->graph, &o->backend_opt.shard, err);
    if (!st) st = plan_slots(e, &shape, err);
    if (!st && o->draft_model) st = draft_open(e, shape, err);
    if (!st) st = plan_blocks(e, &shape, err);
    if (!st) st = allocate(e, shape, err);
    if (st) {
        sy_engine_free(e);
        return st;
    }
    *out = e;
    return SY_OK;
}

sy_status sy_engine_new_bare(const struct sy_env *env, const struct sy_engine_opt *o, const struct sy_engine_bare *b,
                             struct sy_engine **out, struct sy_err *err)
{
    struct sy_engine *e = sy_new(env, sizeof *e);
    if (!e) {
        b->ops->close(b->backend);
        return sy_fail(err, SY_ENOMEM, "no memory for the engine");
    }
    e->env = env;
    e->opt = *o;
    e->ops = b->ops;
    e->backend = b->backend;
    e->plan.info = b->info;
    e->plan.arch = "";
    struct sy_shape shape;
    sy_status st = sy_engine_plan_shape(o, &e->plan, &shape, err);
    struct sy_engine_bytes each = {.block = e->block_bytes = b->block_bytes};
    if (!st) st = sy_engine_plan_blocks(o, shape.block, &each, &e->plan, err);
    if (!st) st = engine_tables_new(e, shape, err);
    if (st) {
        sy_engine_free(e);
        return st;
    }
    e->ops->device(e->backend, &e->plan.device, false);
    *out = e;
    return SY_OK;
}

void sy_engine_free(struct sy_engine *e)
{
    if (!e) return;
    engine_tables_free(e);
    if (e->backend) {
        draft_free(e);
        e->ops->free_kv_cache(e->kv);
        e->ops->program_free(e->program);
        buckets_free(e, &e->ladder);
        e->ops->weights_free(e->weights);
        e->ops->close(e->backend);
    }
    sy_graph_free(e->graph);
    sy_model_release(&e->model);
    sy_template_free(e->tpl);
    sy_tokenizer_free(e->tok);
    sy_checkpoint_free(e->ckpt);
    sy_delete(e->env, e);
}

const struct sy_engine_plan *sy_engine_plan(const struct sy_engine *e) { return &e->plan; }
const struct sy_checkpoint *sy_engine_checkpoint(const struct sy_engine *e) { return e->ckpt; }
const struct sy_tokenizer *sy_engine_tokenizer(const struct sy_engine *e) { return e->tok; }
const struct sy_template *sy_engine_template(const struct sy_engine *e) { return e->tpl; }
const struct sy_graph *sy_engine_graph(const struct sy_engine *e) { return e->graph; }

bool sy_engine_is_end(const struct sy_engine *e, int32_t id)
{
    for (int32_t i = 0; i < e->n_end_id; i++)
        if (e->end_id[i] == id) return true;
    return false;
}

double sy_engine_bandwidth(struct sy_engine *e)
{
    struct sy_device d;
    e->ops->device(e->backend, &d, true);
    return d.bytes_s;
}

const char *sy_finish_name(enum sy_finish f)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "deadline", "error"};
    return (unsigned)f < SY_COUNT(names) ? names[f] : "?";
}
