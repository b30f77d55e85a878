/* lower_kernel.c - ops that a hand-written kernel for TPUs takes. */
#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum {
    LANES = 128,           /* of a vector register: heads and fetches come in multiples of it */
    FETCH_KEYS_MIN = 256,  /* fewer keys are bound by latency */
    FETCH_KEYS_MAX = 4096, /* and of more, shorter contexts waste what work takes */
    BLOCK_MAX = 1024,
    TILE_ROWS = 256, /* queries times their heads, of one key head, that prompts take at once */
    SIDE_ROWS = 128,
    PART_KEYS = 512,       /* worked on at once where few heads leave the matrix unit waiting */
    FETCH_BYTES = 4 << 20, /* of keys and values together, of which two are in memory at once */
};

const char *lower_kernel_refuses(const struct sy_node *n, const struct pj_lower_opt *o)
{
    const struct sy_attn_dim *a = &n->attr.attn;
    int32_t len = o->cache.block_len;
    bool bytes = o->kv_elem == PJ_I8;
    return o->kv_elem != PJ_BF16 && !bytes                        ? "a KV cache of another type than bf16 or q8_0"
           : bytes && (len < 32 || a->d_key != LANES)             ? "a KV cache of q8_0 of heads or blocks like these"
           : o->compute != SY_COMPUTE_BF16 || o->attend_bf16      ? "products not of bf16, or sums not of f32"
           : a->shared || a->d_key != a->d_val                    ? "values that are not as wide as keys"
           : a->d_key % LANES != 0                                ? "heads whose width is no multiple of 128"
           : a->chunk != 0                                        ? "attention within chunks"
           : n->in[4].id                                          ? "sinks"
           : n->in[5].id                                          ? "keys that an indexer chooses"
           : 3 * a->n_kv > MO_CARRY_MAX                           ? "more than 21 key heads on a device"
           : (len & (len - 1)) != 0 || len < 8 || len > BLOCK_MAX ? "blocks not of 8 to 1024 positions"
                                                                  : NULL;
}

bool lower_kernel_takes(const struct sy_node *n, const struct pj_lower_opt *o)
{
    unsigned attention = SY_KERNELS_DECODE | SY_KERNELS_PROMPT;
    return o->kernels & attention && n->op == SY_OP_ATTEND && !lower_kernel_refuses(n, o);
}

/* Few rows leave the units waiting for one another's results; many fill them, and the registers too. */
int32_t mo_attend_heads(int32_t n_kv, int32_t rows)
{
    int32_t n = rows < SIDE_ROWS ? SIDE_ROWS / rows : 1;
    return n < n_kv ? n : n_kv;
}

/* One or two heads wait for their own results: parts of a long fetch take turns. */
int32_t mo_attend_part(const struct mo_attend *a)
{
    int32_t keys = a->fetch * a->block_len, part = keys;
    while (a->n_kv <= 2 && a->tile == 1 && part > PART_KEYS && part / 2 >= a->block_len) part /= 2;
    return part;
}

struct mo_attend mo_attend_of(const struct sy_attn_dim *d, const struct sy_cache_dim *cache, bool bytes,
                              struct sy_shape s)
{
    struct mo_attend a = {.n_seq = s.seq,
                          .n_tok = s.tok,
                          .n_table = s.block,
                          .n_block = cache->n_block,
                          .block_len = cache->block_len,
                          .n_kv = d->n_kv,
                          .d = d->d_key,
                          .tile = 1,
                          .slots = 2,
                          .window = d->window,
                          .scale = d->scale,
                          .softcap = d->softcap,
                          .bytes = bytes};
    for (a.g = 4; a.g < d->n_head / d->n_kv; a.g *= 2) continue;
    while (!pj_is_decode(s) && a.tile * a.g < TILE_ROWS && a.tile < s.tok) a.tile *= 2;
    a.heads = mo_attend_heads(a.n_kv, a.tile * a.g);
    int64_t key_bytes = (int64_t)a.n_kv * a.d * 2 * (bytes ? 1 : 2), keys = (int64_t)a.n_table * a.block_len;
    for (a.fetch = 1; a.fetch * a.block_len < FETCH_KEYS_MIN; a.fetch *= 2) continue;
    /* Of prompts work is what counts, not memory: smaller fetches compute fewer scores that the mask takes away, down
     * to where one waits for another. */
    int64_t most = pj_is_decode(s) ? FETCH_KEYS_MAX : a.n_kv > 2 ? FETCH_KEYS_MIN : 2 * FETCH_KEYS_MIN;
    if (keys > most) keys = most;
    while (a.fetch * a.block_len * key_bytes < FETCH_BYTES && a.fetch * a.block_len < keys) a.fetch *= 2;
    a.part = mo_attend_part(&a);
    return a;
}

static enum pj_elem elem_of(enum mo_elem e)
{
    return e == MO_BF16 ? PJ_BF16 : e == MO_F32 ? PJ_F32 : e == MO_I8 ? PJ_I8 : PJ_I32;
}

struct pj_type lower_kernel_type(const struct mosaic *m, int v)
{
    struct mo_type t = mo_type_of(m, v);
    int64_t dim[MO_DIM_MAX];
    for (int k = 0; k < t.n_dim; k++) dim[k] = t.dim[k];
    return pj_type(elem_of(t.elem), t.n_dim, dim);
}

void lower_kernel_call(struct pj_hlo *h, struct mosaic *m, const int *operand, int *result)
{
    struct sy_buf text, config;
    struct pj_type t[MO_ARG_MAX];
    int n = m->n_prefetch + m->n_operand;
    sy_buf_init(&text, h->env, 0);
    sy_buf_init(&config, h->env, 0);
    for (int i = 0; i < m->n_result && !m->failed; i++) t[i] = lower_kernel_type(m, m->arg[n + i]);
    if (mo_end(m, &text, NULL)) h->failed = true;
    mo_config(m, &text, MO_VMEM_BYTES, &config);
    pj_kernel(h, &config, operand, n, t, m->alias, m->n_result, result);
    mo_release(m);
    sy_buf_release(&text);
    sy_buf_release(&config);
}

int lower_kernel_attend(struct lower *l, const struct sy_node *n, int q, const int *arrays)
{
    struct pj_hlo *h = &l->h;
    const struct sy_attn_dim *d = &n->attr.attn;
    const struct sy_node *keeps = &l->node[n->in[3].id];
    struct sy_cache_dim cache = l->opt.cache;
    if (sy_state_is_apart(l->shape, keeps)) cache.n_block = cache.n_apart;
    bool bytes = l->opt.kv_elem == PJ_I8;
    struct mo_attend a = mo_attend_of(d, &cache, bytes, l->shape);
    int64_t tok = l->shape.tok, group = d->n_head / d->n_kv;
    struct pj_type scalar = PJ_TYPE(PJ_I32, 1), rows = PJ_TYPE(PJ_I32, tok);
    int start = lower_field(l, SY_START);
    int has = pj_compare(h, "LT", pj_slice(h, start, 0, 0, a.n_seq), pj_slice(h, start, 0, 1, a.n_seq + 1));
    int live = pj_reshape(h, pj_reduce(h, "add", pj_convert(h, has, PJ_I32), 0, 0), 1, scalar.dim);
    /* Padded while rows are whole: with heads apart XLA takes three times as long. */
    int64_t reach = mo_attend_rows(&a);
    if (reach > tok) q = pj_pad_after(h, q, 0, reach - tok);
    q = pj_convert(h, PJ_RESHAPE(h, q, reach, d->n_kv, group, d->d_key), PJ_BF16);
    if (group < a.g) q = pj_pad_after(h, q, 2, a.g - group);
    /* Arrays of a layer that no kernel takes, whose keys this one reads, have heads apart. */
    const int64_t flat[] = {a.n_block, a.block_len, (int64_t)a.n_kv * a.d};
    int keys = pj_reshape(h, arrays[0], 3, flat), vals = pj_reshape(h, arrays[1], 3, flat);
    int table = lower_field(l, sy_state_table(l->shape, keeps));
    int operand[8] = {table, start, lower_field(l, SY_CTX), live, q, keys, vals};
    if (bytes) {
        int64_t more = mo_attend_wide(&a) - pj_type_of(h, arrays[2])->dim[2];
        operand[7] = more > 0 ? pj_pad_after(h, arrays[2], 2, more) : arrays[2];
    }
    struct mosaic m;
    mo_init(&m, h->env);
    mo_attend(&m, &a);
    int y;
    lower_kernel_call(h, &m, operand, &y);
    if (reach > tok) y = pj_slice(h, y, 0, 0, tok);
    if (group < a.g) y = pj_slice(h, y, 2, 0, group);
    y = PJ_RESHAPE(h, pj_convert(h, y, PJ_F32), tok, (int64_t)d->n_head * d->d_val);
    /* Rows of padding are not written. */
    int all = pj_slice(h, start, 0, a.n_seq, a.n_seq + 1);
    int is = pj_compare(h, "LT", pj_iota(h, rows, 0), PJ_BROADCAST(h, all, rows, 0));
    return pj_select(h, PJ_BROADCAST(h, is, ((struct pj_type){PJ_PRED, 2, {tok, (int64_t)d->n_head * d->d_val}}), 0),
                     y, pj_splat(h, 0, y));
}
