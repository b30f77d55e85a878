/* cpu.c - the CPU backend: opening, loading weights into compute layouts, the KV cache. See plan.c and run.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "checkpoint/pages.h"

static void close_backend(struct sy_backend *b)
{
    if (!b) return;
    sy_pool_free(b->pool);
    sy_delete(b->env, b);
}

static sy_status open_backend(const struct sy_env *env, const struct sy_backend_opt *opt, struct sy_backend **out,
                              struct sy_err *err)
{
    if (opt->device && *opt->device)
        return sy_fail(err, SY_EARG, "--backend cpu takes no device, found '%s'", opt->device);
    if (sy_shard_ranks(&opt->shard) > 1)
        return sy_fail(err, SY_ENOSUP, "%d devices (--tp and the like) are asked for: the cpu backend is one device",
                       sy_shard_ranks(&opt->shard));
    if (opt->attend_bf16)
        return sy_fail(err, SY_ENOSUP, "--attention-accumulate bf16: the cpu backend sums in f32; leave it out");
    if (opt->own_kernels)
        return sy_fail(err, SY_ENOSUP,
                       "--kernels mosaic: these are for TPUs (--backend pjrt:libtpu.so); leave it out");
    struct sy_backend *b = sy_new(env, sizeof *b);
    if (!b) return sy_fail(err, SY_ENOMEM, "no memory for the cpu backend");
    b->env = env;
    b->opt = *opt;
    b->attend_part = opt->attend_part ? opt->attend_part : sy_attend_part;
    sy_status st = sy_kernels_pick(getenv("SYSTOLE_ISA"), &b->kern, err);
    if (opt->one_sequence) b->kern.bf16_codes = false; /* which integers outdo on one row: no widening */
    if (!st) st = sy_pool_new(env, opt->n_thread, &b->pool, err);
    if (st) {
        close_backend(b);
        return st;
    }
    *out = b;
    return SY_OK;
}

static void device(struct sy_backend *b, struct sy_device *d, bool measure)
{
    *d = (struct sy_device){.ragged = true, .n_thread = sy_pool_size(b->pool)};
    snprintf(d->name, sizeof d->name, "cpu");
    snprintf(d->isa, sizeof d->isa, "%s", b->kern.isa);
    if (measure && b->bytes_s <= 0) b->bytes_s = sy_measure_bandwidth(b->pool);
    d->bytes_s = b->bytes_s;
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

enum use { USE_MATRIX = 1, USE_VECTOR = 2, USE_TABLE = 4 };

/* How the graph's ops read WEIGHT node id. */
static unsigned uses_of(const struct sy_node *node, uint32_t n, uint32_t id)
{
    unsigned u = 0;
    for (uint32_t i = 1; i < n; i++)
        for (size_t k = 0; k < SY_COUNT(node[i].in); k++) {
            if (node[i].in[k].id != id) continue;
            bool matrix = (node[i].op == SY_OP_LINEAR && k == 1) || (node[i].op == SY_OP_EXPERTS && k >= 2 && k < 4);
            if (matrix) u |= USE_MATRIX;
            else if (node[i].op == SY_OP_HEADS) continue; /* load_heads() */
            else if (node[i].op == SY_OP_EMBED) u |= USE_TABLE;
            else u |= USE_VECTOR;
        }
    return u;
}

/* The part of WEIGHT node id that one token's step reads: of experts, the chosen ones. */
static double share_of(const struct sy_node *node, uint32_t n, uint32_t id)
{
    for (uint32_t i = 1; i < n; i++)
        if (node[i].op == SY_OP_EXPERTS && (node[i].in[2].id == id || node[i].in[3].id == id))
            return (double)node[i].attr.moe.n_used / node[i].attr.moe.n_expert;
    return 1;
}

struct loader {
    struct sy_backend *b;
    const struct sy_checkpoint *ckpt;
    struct sy_weights *w;
    bool *used;
    struct sy_err *err;
    size_t n_bytes; /* of all matrices */
};

static const struct sy_tensor *find(struct loader *l, const char *name)
{
    const struct sy_tensor *t = sy_checkpoint_find(l->ckpt, name);
    if (!t) {
        (void)sy_fail(l->err, SY_EFORMAT, "tensor '%s' is missing: the model's configuration asks for it", name);
        return NULL;
    }
    l->used[sy_checkpoint_index(l->ckpt, t)] = true;
    if (t->format) return t;
    (void)sy_fail(l->err, SY_ENOSUP, "tensor '%s' in '%s': data type '%s' is not supported", t->file_name, t->file,
                  t->dtype);
    return NULL;
}

static sy_status wrong_shape(struct loader *l, const struct sy_tensor *t, int64_t rows, int64_t cols)
{
    char found[64];
    if (t->n_dim < 2) snprintf(found, sizeof found, "[%lld]", (long long)t->dim[0]);
    else
        snprintf(found, sizeof found, "[%lld, %lld]%s", (long long)t->dim[0], (long long)t->dim[1],
                 t->n_dim > 2 ? " and more" : "");
    return sy_fail(l->err, SY_ESHAPE, "tensor '%s': expected [%lld, %lld], found %s", t->file_name, (long long)rows,
                   (long long)cols, found);
}

/* Segments of a matrix: one per part of its joined name. */
static sy_status plan_matrix(struct loader *l, const struct sy_node *n, struct wentry *e, double share)
{
    char name[300];
    int n_part = 0;
    while (sy_weight_part(n->name, n_part, name, sizeof name)) n_part++;
    e->seg = sy_arena_array(&l->w->arena, (size_t)n_part, sizeof *e->seg);
    if (!e->seg) return sy_fail(l->err, SY_ENOMEM, "no memory for the table of weights");
    e->n_seg = n_part;
    int64_t col = 0;
    for (int i = 0; i < n_part; i++) {
        (void)sy_weight_part(n->name, i, name, sizeof name);
        const struct sy_tensor *t = find(l, name);
        if (!t) return l->err ? l->err->code : SY_EFORMAT;
        int64_t rest = n->dim[0] - col, want = i + 1 < n_part ? t->dim[0] : rest;
        if (n->attr.weight.split == SY_BY_EXPERT) want = n->dim[0] / n_part;
        if (t->n_dim != 2 || t->dim[1] != n->dim[1] || t->dim[0] != want || t->dim[0] > rest)
            return wrong_shape(l, t, want < rest ? want : rest, n->dim[1]);
        enum sy_layout layout;
        enum sy_compute mode = n->attr.weight.exact ? SY_COMPUTE_F32 : l->b->opt.compute;
        sy_status st = sy_layout_choose(t->format, mode, &l->b->kern, &layout, l->err);
        if (st) return sy_while(l->err, st, "tensor '%s'", t->file_name);
        struct wseg *s = &e->seg[i];
        s->tensor = t;
        s->col0 = col;
        sy_panels_plan(&s->p, layout, t->format, t->dim[0], t->dim[1]);
        s->p.regroup = n->attr.weight.regroup;
        l->n_bytes += (s->p.n_bytes + 4095) & ~(size_t)4095;
        l->w->bytes_step += share * (double)s->p.n_bytes;
        col += t->dim[0];
    }
    return SY_OK;
}

/* One segment per head of the part of a weight that a HEADS node reads. Transposed rows of blocks are no blocks: they
 * are taken as floats. */
static sy_status load_heads(struct loader *l, const struct sy_node *node, const struct sy_node *n)
{
    const struct sy_node *weight = &node[n->in[1].id];
    const struct sy_heads_dim *d = &n->attr.heads;
    if (cpu_weight_heads(l->w, weight->name, d)) return SY_OK;
    struct wentry *e = &l->w->entry[l->w->n_entry++];
    *e = (struct wentry){.rows = weight->dim[0], .cols = weight->dim[1], .n_seg = d->n_head};
    e->name = sy_arena_text(&l->w->arena, weight->name, strlen(weight->name));
    e->seg = sy_arena_array(&l->w->arena, (size_t)d->n_head, sizeof *e->seg);
    struct sy_heads_dim *dim = sy_arena_get(&l->w->arena, sizeof *dim);
    if (!e->name || !e->seg || !dim) return sy_fail(l->err, SY_ENOMEM, "no memory for the table of weights");
    *dim = *d;
    e->heads = dim;
    const struct sy_tensor *t = find(l, weight->name);
    if (!t) return l->err ? l->err->code : SY_EFORMAT;
    if (t->n_dim != 2 || t->dim[0] != e->rows || t->dim[1] != e->cols) return wrong_shape(l, t, e->rows, e->cols);
    enum sy_layout layout = SY_LAYOUT_F32;
    enum sy_compute mode = l->b->opt.compute;
    bool as_floats = d->transposed && (t->parts || t->format->block_len > 1);
    if (as_floats && mode == SY_COMPUTE_BF16) layout = SY_LAYOUT_BF16;
    sy_status st = as_floats ? SY_OK : sy_layout_choose(t->format, mode, &l->b->kern, &layout, l->err);
    if (st) return sy_while(l->err, st, "tensor '%s'", t->file_name);
    for (int32_t h = 0; h < d->n_head; h++) {
        struct wseg *s = &e->seg[h];
        *s = (struct wseg){.tensor = t, .row0 = (int64_t)h * d->w_rows + d->row0, .transposed = d->transposed};
        sy_panels_plan(&s->p, layout, t->format, d->d_out, d->d_in);
        l->n_bytes += (s->p.n_bytes + 4095) & ~(size_t)4095;
        l->w->bytes_step += (double)s->p.n_bytes;
    }
    return SY_OK;
}

static sy_status load_vector(struct loader *l, const struct sy_node *n, struct wentry *e)
{
    int32_t repeat = n->attr.weight.repeat > 0 ? n->attr.weight.repeat : 1;
    int64_t want = n->dim[1] / repeat; /* stored values */
    e->vec = sy_arena_array(&l->w->arena, (size_t)n->dim[1], sizeof(float));
    float *raw = sy_new_array(l->b->env, (size_t)n->dim[1], sizeof(float));
    sy_status st = e->vec && raw ? SY_OK : sy_fail(l->err, SY_ENOMEM, "no memory for '%s'", n->name);
    int64_t at = 0;
    char name[300];
    for (int i = 0; !st && sy_weight_part(n->name, i, name, sizeof name); i++) {
        const struct sy_tensor *t = find(l, name);
        if (!t) {
            st = l->err ? l->err->code : SY_EFORMAT;
            break;
        }
        int64_t d = t->format->whole ? 0 : sy_tensor_flat_len(t, n->attr.weight.flat);
        if (d == 0 || d > want - at || d % t->format->block_len) {
            st = wrong_shape(l, t, 1, want - at);
            break;
        }
        int64_t cols = t->dim[t->n_dim - 1];
        for (int64_t r = 0; r < d / cols; r++) sy_tensor_floats(t, r, raw + r * cols);
        for (int64_t k = 0; k < d * repeat; k++)
            e->vec[at * repeat + k] =
                sy_weight_value(n->attr.weight.map, t, raw[t->n_dim > 1 ? k / repeat : sy_tensor_row(t, k / repeat)]);
        at += d;
    }
    if (!st && at != want)
        st = sy_fail(l->err, SY_ESHAPE, "'%s': expected %lld values, found %lld", n->name, (long long)want,
                     (long long)at);
    sy_delete(l->b->env, raw);
    return st;
}

/* A table of expert numbers, which ROUTE takes as they are: they must be numbers of experts. */
static sy_status check_ids(struct loader *l, const struct sy_node *node, uint32_t n_node, uint32_t id,
                           const struct sy_tensor *t)
{
    int32_t n_expert = 0;
    for (uint32_t i = 1; i < n_node; i++)
        if (node[i].op == SY_OP_ROUTE && node[node[i].in[3].id].in[0].id == id)
            n_expert = node[i].attr.route.n_expert;
    if (n_expert == 0) return SY_OK;
    float *row = sy_new_array(l->b->env, (size_t)t->dim[1], sizeof *row);
    if (!row) return sy_fail(l->err, SY_ENOMEM, "no memory for '%s'", t->file_name);
    sy_status st = SY_OK;
    for (int64_t r = 0; r < t->dim[0] && !st; r++) {
        sy_tensor_floats(t, r, row);
        for (int64_t i = 0; i < t->dim[1] && !st; i++)
            if (!(row[i] >= 0 && row[i] < (float)n_expert) || row[i] != (float)(int32_t)row[i])
                st = sy_fail(l->err, SY_EFORMAT, "tensor '%s' [%lld, %lld]: expected an expert below %d, found %g",
                             t->file_name, (long long)r, (long long)i, n_expert, (double)row[i]);
    }
    sy_delete(l->b->env, row);
    return st;
}

static sy_status load_entry(struct loader *l, const struct sy_node *node, uint32_t n_node, uint32_t id)
{
    const struct sy_node *n = &node[id];
    struct wentry *e = &l->w->entry[l->w->n_entry++];
    *e = (struct wentry){.rows = n->dim[0], .cols = n->dim[1]};
    e->name = sy_arena_text(&l->w->arena, n->name, strlen(n->name));
    if (!e->name) return sy_fail(l->err, SY_ENOMEM, "no memory for the table of weights");
    unsigned u = uses_of(node, n_node, id);
    sy_status st = SY_OK;
    if (u & USE_TABLE) {
        e->table = find(l, n->name);
        if (!e->table) return l->err ? l->err->code : SY_EFORMAT;
        if (e->table->n_dim != 2 || e->table->dim[0] != n->dim[0] || e->table->dim[1] != n->dim[1])
            return wrong_shape(l, e->table, n->dim[0], n->dim[1]);
        st = check_ids(l, node, n_node, id, e->table);
    }
    if (!st && (u & USE_MATRIX)) st = plan_matrix(l, n, e, share_of(node, n_node, id));
    if (!st && (u & USE_VECTOR)) st = load_vector(l, n, e);
    return st;
}

struct pack_item {
    const struct wseg *seg;
    int64_t lo, hi;
};
struct pack {
    struct pack_item *item;
    float *scratch; /* per thread */
    size_t scratch_each;
    struct sy_backend *b;
    const struct sy_checkpoint *ckpt;
    int64_t n_item, n_done;
};

static void pack_some(void *ctx, int64_t i, int32_t thread)
{
    struct pack *p = ctx;
    const struct pack_item *it = &p->item[i];
    (it->seg->transposed ? sy_panels_pack_transposed : sy_panels_pack)(
        &it->seg->p, it->seg->tensor, it->seg->row0, it->lo, it->hi, p->scratch + (size_t)thread * p->scratch_each);
    int64_t last = it->hi * SY_PANEL < it->seg->p.n ? it->hi * SY_PANEL : it->seg->p.n;
    if (!it->seg->transposed)
        sy_checkpoint_let_go(p->ckpt, it->seg->tensor, it->seg->row0 + it->lo * SY_PANEL, it->seg->row0 + last);
    int64_t done = __atomic_add_fetch(&p->n_done, 1, __ATOMIC_RELAXED);
    if (thread == 0 && p->b->opt.progress)
        p->b->opt.progress(p->b->opt.progress_ctx, (double)done / (double)p->n_item);
}

enum { PANELS_PER_ITEM = 64 };

static sy_status pack_all(struct loader *l)
{
    struct sy_weights *w = l->w;
    struct pack p = {.b = l->b, .ckpt = l->ckpt};
    size_t scratch = 0;
    int64_t k_max = 1;
    for (int i = 0; i < w->n_entry; i++)
        for (int s = 0; s < w->entry[i].n_seg; s++) {
            const struct sy_panels *q = &w->entry[i].seg[s].p;
            p.n_item += ((q->n + SY_PANEL - 1) / SY_PANEL + PANELS_PER_ITEM - 1) / PANELS_PER_ITEM;
            if (q->k > k_max) k_max = q->k;
            size_t need = w->entry[i].seg[s].transposed ? sy_panels_scratch_transposed(q->n, q->k) : 0;
            if (need > scratch) scratch = need;
        }
    p.scratch_each = sy_panels_scratch(k_max);
    if (scratch > p.scratch_each) p.scratch_each = scratch;
    p.item = sy_new_array(l->b->env, (size_t)p.n_item + 1, sizeof *p.item);
    p.scratch = sy_new_array(l->b->env, p.scratch_each * (size_t)sy_pool_size(l->b->pool), sizeof(float));
    sy_status st = p.item && p.scratch ? SY_OK : sy_fail(l->err, SY_ENOMEM, "no memory to repack weights");
    size_t at = 0;
    int64_t n = 0;
    for (int i = 0; !st && i < w->n_entry; i++)
        for (int s = 0; s < w->entry[i].n_seg; s++) {
            struct wseg *seg = &w->entry[i].seg[s];
            seg->p.data = w->mem.at + at;
            at += (seg->p.n_bytes + 4095) & ~(size_t)4095;
            int64_t panels = (seg->p.n + SY_PANEL - 1) / SY_PANEL;
            for (int64_t lo = 0; lo < panels; lo += PANELS_PER_ITEM) {
                int64_t hi = lo + PANELS_PER_ITEM < panels ? lo + PANELS_PER_ITEM : panels;
                p.item[n++] = (struct pack_item){seg, lo, hi};
            }
        }
    if (!st) sy_pool_run(l->b->pool, n, pack_some, &p);
    sy_delete(l->b->env, p.item);
    sy_delete(l->b->env, p.scratch);
    return st;
}

static void weights_free(struct sy_weights *w)
{
    if (!w) return;
    const struct sy_env *env = w->arena.env;
    sy_pages_free(&w->mem);
    sy_arena_release(&w->arena);
    sy_delete(env, w);
}

static sy_status load(struct sy_backend *b, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                      struct sy_weights **out, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    struct sy_err own = {0};
    struct loader l = {.b = b, .ckpt = ckpt, .err = err ? err : &own};
    l.w = sy_new(b->env, sizeof *l.w);
    l.used = sy_new_array(b->env, sy_checkpoint_count(ckpt) + 1, sizeof *l.used);
    if (!l.w || !l.used) {
        sy_delete(b->env, l.w);
        sy_delete(b->env, l.used);
        return sy_fail(err, SY_ENOMEM, "no memory for the table of weights");
    }
    l.w->b = b;
    sy_arena_init(&l.w->arena, b->env, 0);
    l.w->entry = sy_arena_array(&l.w->arena, n_node, sizeof *l.w->entry);
    sy_status st = l.w->entry ? SY_OK : sy_fail(err, SY_ENOMEM, "no memory for the table of weights");
    for (uint32_t i = 1; i < n_node && !st; i++) {
        if (node[i].op == SY_OP_WEIGHT) st = load_entry(&l, node, n_node, i);
        else if (node[i].op == SY_OP_HEADS) st = load_heads(&l, node, &node[i]);
    }
    if (!st) st = sy_checkpoint_check_extra(ckpt, l.used, err);
    if (!st && l.n_bytes) st = sy_pages_new(&l.w->mem, l.n_bytes, !b->opt.no_huge_pages, err);
    if (!st) st = pack_all(&l);
    sy_delete(b->env, l.used);
    if (st) {
        weights_free(l.w);
        return sy_while(err, st, "loading '%s'", sy_checkpoint_path(ckpt));
    }
    *out = l.w;
    return SY_OK;
}

const struct wentry *cpu_weight(const struct sy_weights *w, const char *name)
{
    for (int i = 0; i < w->n_entry; i++)
        if (!w->entry[i].heads && !strcmp(w->entry[i].name, name)) return &w->entry[i];
    return NULL;
}

const struct wentry *cpu_weight_heads(const struct sy_weights *w, const char *name, const struct sy_heads_dim *d)
{
    for (int i = 0; i < w->n_entry; i++) {
        const struct wentry *e = &w->entry[i];
        if (e->heads && !strcmp(e->name, name) && e->heads->transposed == d->transposed &&
            e->heads->row0 == d->row0 && e->heads->d_in == d->d_in && e->heads->d_out == d->d_out &&
            e->heads->w_rows == d->w_rows)
            return e;
    }
    return NULL;
}

static void weights_bytes(const struct sy_weights *w, double *read_per_step, double *held)
{
    *read_per_step = w->bytes_step;
    *held = (double)w->mem.n;
}

/* ---- KV cache ----------------------------------------------------------------------------------------------- */

struct sy_kv_dim cpu_kv_dim(const struct sy_backend *b, const struct sy_node *n, int32_t block_len)
{
    struct sy_attn_dim keys = {.n_kv = 1, .shared = true};
    const struct sy_attn_dim *a = n->op == SY_OP_ATTEND ? &n->attr.attn : &keys;
    keys.d_key = n->op == SY_OP_INDEX ? n->attr.index.d : (int32_t)n->dim[1];
    int32_t every = cpu_keeps_every(n);
    block_len = (block_len + every - 1) / every;
    return (struct sy_kv_dim){
        .n_kv = a->n_kv,
        .d_key = a->d_key,
        .d_val = a->d_val,
        .block_len = block_len,
        .dtype = b->opt.kv_dtype,
        .block_bytes = sy_kv_block_bytes(a->n_kv, a->d_key, a->shared ? 0 : a->d_val, block_len, b->opt.kv_dtype),
        .shared = a->shared,
    };
}

static int64_t kv_block_bytes(struct sy_backend *b, const struct sy_graph *g, int32_t block_len, int64_t *apart)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    int64_t sum = 0;
    *apart = 0;
    for (uint32_t i = 1; i < n_node; i++) {
        if (!cpu_has_cache(&node[i])) continue;
        int64_t each = cpu_kv_dim(b, &node[i], block_len).block_bytes;
        sum += each;
        if (node[node[i].in[3].id].attr.state.window > 0) *apart += each;
    }
    return sum;
}

static int64_t slot_bytes(struct sy_backend *b, const struct sy_graph *g) { return cpu_slot_bytes(b, g); }

static void free_kv_cache(struct sy_kv_cache *c)
{
    if (!c) return;
    sy_pages_free(&c->mem);
    sy_delete(c->b->env, c);
}

static sy_status allocate_kv_cache(struct sy_backend *b, const struct sy_graph *g, struct sy_cache_dim dim,
                                   struct sy_kv_cache **out, struct sy_err *err)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    struct sy_kv_cache *c = sy_new(b->env, sizeof *c);
    if (!c) return sy_fail(err, SY_ENOMEM, "no memory for the KV cache");
    c->b = b;
    int64_t bytes = b->opt.kv_offset;
    for (uint32_t i = 1; i < n_node; i++) {
        if (!cpu_has_cache(&node[i])) continue;                /* without keys: reads another's */
        sy_assert(c->n_layer < (int)SY_COUNT(c->layer_bytes)); /* models have at most 1,024 layers */
        int64_t each = cpu_kv_dim(b, &node[i], dim.block_len).block_bytes;
        bool apart = sy_state_is_apart(sy_graph_shape(g), &node[node[i].in[3].id]);
        c->layer_bytes[c->n_layer] = bytes;
        c->apart[c->n_layer] = apart;
        c->block_bytes[c->n_layer++] = each;
        bytes += each * (apart ? dim.n_apart : dim.n_block);
    }
    c->slot_at = (bytes + 255) & ~(int64_t)255;
    c->slot_bytes = cpu_slot_bytes(b, g);
    bytes = c->slot_at + c->slot_bytes * dim.n_slot +
            1; /* a model of slots alone has no block's bytes, and the other way round */
    sy_status st = sy_pages_new(&c->mem, (size_t)bytes, !b->opt.no_huge_pages, err);
    if (st) {
        sy_delete(b->env, c);
        return sy_while(err, st, "KV cache of %d blocks and %d slots", dim.n_block, dim.n_slot);
    }
    *out = c;
    return SY_OK;
}

static unsigned char *block_at(const struct sy_kv_cache *c, int layer, struct sy_spot p)
{
    return c->mem.at + c->layer_bytes[layer] + c->block_bytes[layer] * (c->apart[layer] ? p.apart : p.block);
}

static void copy_blocks(struct sy_backend *b, struct sy_kv_cache *c, const struct sy_copy *copy, int32_t n)
{
    (void)b;
    for (int32_t i = 0; i < n; i++)
        for (int l = 0; l < c->n_layer; l++)
            memmove(block_at(c, l, copy[i].to), block_at(c, l, copy[i].from), (size_t)c->block_bytes[l]);
}

static void save_block(struct sy_backend *b, struct sy_kv_cache *c, struct sy_spot place, void *host)
{
    (void)b;
    unsigned char *at = host;
    for (int l = 0; l < c->n_layer; at += c->block_bytes[l++])
        memcpy(at, block_at(c, l, place), (size_t)c->block_bytes[l]);
}

static void restore_block(struct sy_backend *b, struct sy_kv_cache *c, struct sy_spot place, const void *host)
{
    (void)b;
    const unsigned char *at = host;
    for (int l = 0; l < c->n_layer; at += c->block_bytes[l++])
        memcpy(block_at(c, l, place), at, (size_t)c->block_bytes[l]);
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

static sy_status forward(struct sy_backend *b, struct sy_program *p, struct sy_kv_cache *kv,
                         const struct sy_batch *batch)
{
    p->batch = batch;
    p->kv = kv;
    cpu_run(p);
    b->result = (struct sy_result){.token = p->token,
                                   .logits = p->result->at,
                                   .ld = p->result->ld,
                                   .n = batch->n_out,
                                   .n_vocab = p->n_vocab,
                                   .hidden = p->hidden ? p->hidden->at : NULL,
                                   .ld_hidden = p->hidden ? p->hidden->ld : 0,
                                   .all = p->all ? p->all->at : NULL,
                                   .ld_all = p->all ? p->all->ld : 0,
                                   .d_model = p->d_model};
    return SY_OK;
}

static sy_status wait_result(struct sy_backend *b, struct sy_want want, struct sy_result *out, struct sy_err *err)
{
    (void)want;
    (void)err;
    *out = b->result;
    return SY_OK;
}

const struct sy_backend_ops sy_backend_cpu = {
    .name = "cpu",
    .open = open_backend,
    .close = close_backend,
    .device = device,
    .load = load,
    .weights_bytes = weights_bytes,
    .compile = cpu_compile,
    .allocate_kv_cache = allocate_kv_cache,
    .copy_blocks = copy_blocks,
    .save_block = save_block,
    .restore_block = restore_block,
    .kv_block_bytes = kv_block_bytes,
    .slot_bytes = slot_bytes,
    .forward = forward,
    .wait = wait_result,
    .weights_free = weights_free,
    .program_free = cpu_program_free,
    .free_kv_cache = free_kv_cache,
};
