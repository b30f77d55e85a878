#include "plan/card.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"

enum { FILE_MAX = 16 << 20 };

sy_status sy_data_open(const struct sy_env *env, const char *kind, const char *name, char **text, size_t *n,
                       struct sy_err *err)
{
    size_t len = strlen(name);
    if (strchr(name, '/') || (len > 5 && !strcmp(name + len - 5, ".json")))
        return sy_file_read(env, name, FILE_MAX, text, n, err);
    char path[128];
    snprintf(path, sizeof path, "%s/%.80s.json", kind, name);
    const struct sy_data *d = sy_data_find(path);
    if (!d)
        return sy_fail(err, SY_EARG,
                       "%s: no '%.60s' in the program's data; 'systole plan list' shows what there is, "
                       "and a path to a file of yours will do",
                       kind, name);
    *text = sy_new(env, d->n + 1);
    if (!*text) return sy_fail(err, SY_ENOMEM, "no memory for '%s'", path);
    memcpy(*text, d->at, d->n);
    *n = d->n;
    return SY_OK;
}

sy_status sy_chip_find(const struct sy_env *env, const char *name, struct sy_chip *out, struct sy_err *err)
{
    char *text, id[sizeof out->id];
    size_t n;
    const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    size_t len = strlen(base), end = len > 5 && !strcmp(base + len - 5, ".json") ? len - 5 : len;
    if (end == 0 || end >= sizeof id)
        return sy_fail(err, SY_EARG, "chip '%.60s': expected a name of 1 to %zu bytes", name, sizeof id - 1);
    snprintf(id, sizeof id, "%.*s", (int)end, base);
    sy_status st = sy_data_open(env, "chips", name, &text, &n, err);
    if (st) return st;
    st = sy_chip_read(env, id, text, n, out, err);
    sy_delete(env, text);
    return st;
}

/* ---- hyper-parameters ---------------------------------------------------------------------------------------- */

struct reading {
    struct sy_jread top;
    struct sy_profile *p;
    double hidden;
};

static struct sy_jread part(const struct reading *r, const char *key)
{
    return (struct sy_jread){.obj = sy_json_get(r->top.obj, key), .where = r->top.where, .err = r->top.err};
}

static double dim(struct sy_jread *r, const char *key) { return (double)sy_jread_int(r, key, 1, 1 << 24); }

static void read_gqa(struct reading *r, struct sy_jread *a, double layers)
{
    double q = dim(a, "q_heads"), kv = dim(a, "kv_heads"), d = dim(a, "head_dim"), per = 2 * kv * d;
    double gate = sy_jread_bool_or(a, "output_gate", false) ? 2 : 1, keys = 2 * q * 2 * d;
    double sliding = (double)sy_jread_int_or(a, "sliding_layers", 0, 0, (int64_t)layers);
    r->p->attn_params += layers * r->hidden * (q * d * (gate + 1) + per);
    r->p->kv_heads = (int32_t)kv;
    r->p->kv[0] =
        (struct sy_kv_group){0, (layers - sliding) * per, (layers - sliding) * keys, (layers - sliding) * keys};
    r->p->n_kv = 1;
    if (sliding > 0) {
        int32_t window = (int32_t)sy_jread_int(a, "window", 1, 1 << 24);
        r->p->kv[r->p->n_kv++] = (struct sy_kv_group){window, sliding * per, sliding * keys, sliding * keys};
    }
    if (!a->st && fmod(q, kv) != 0)
        sy_jread_refuse(a, SY_EFORMAT, "'q_heads' %g is no multiple of 'kv_heads' %g", q, kv);
}

/* Multi-head latent attention: one latent per token and layer is cached and every device holds it whole; decoding
 * works on latents, prompts expand them. DeepSeek-V2, arXiv:2405.04434; the sparse indexer: DeepSeek-V3.2. */
static void read_mla(struct reading *r, struct sy_jread *a, double layers)
{
    double q = dim(a, "q_heads"), lora = (double)sy_jread_int_or(a, "q_lora_rank", 0, 0, 1 << 20);
    double kv = dim(a, "kv_lora_rank"), nope = dim(a, "qk_nope"), rope = dim(a, "qk_rope"), v = dim(a, "v_head_dim");
    double up = lora > 0 ? r->hidden * lora + lora * q * (nope + rope) : r->hidden * q * (nope + rope);
    int32_t top = (int32_t)sy_jread_int_or(a, "index_topk", 0, 0, 1 << 24);
    r->p->attn_params += layers * (up + r->hidden * (kv + rope) + kv * q * (nope + v) + q * v * r->hidden);
    r->p->kv_heads = 1;
    r->p->kv[0] = (struct sy_kv_group){top, layers * (kv + rope), layers * 2 * q * (2 * kv + rope),
                                       layers * 2 * q * (nope + rope + v)};
    r->p->n_kv = 1;
    if (top > 0) {
        double heads = dim(a, "index_heads"), d = dim(a, "index_head_dim"), keys = layers * 2 * heads * d;
        r->p->attn_params += layers * (d * heads * (lora > 0 ? lora : r->hidden) + r->hidden * d);
        r->p->kv[r->p->n_kv++] = (struct sy_kv_group){0, layers * d, keys, keys};
    }
}

static void read_attention(struct reading *r)
{
    struct sy_jread a = part(r, "attention");
    if (!a.obj) sy_jread_refuse(&a, SY_EFORMAT, "expected an object 'attention', found none");
    const char *kind = sy_jread_text(&a, "kind");
    double layers = (double)sy_jread_int(&a, "layers", 0, r->p->n_layer);
    if (!a.st && !strcmp(kind, "gqa")) read_gqa(r, &a, layers);
    else if (!a.st && !strcmp(kind, "mla")) read_mla(r, &a, layers);
    else if (!a.st) sy_jread_refuse(&a, SY_EFORMAT, "'kind': expected gqa or mla, found '%.40s'", kind);
    if (!r->top.st) r->top.st = a.st;
}

/* Gated delta networks and their kin: a matrix of d_k x d_v per head and a short convolution's last inputs. */
static void read_linear(struct reading *r)
{
    struct sy_jread a = part(r, "linear_attention");
    if (!a.obj) return;
    double layers = (double)sy_jread_int(&a, "layers", 1, r->p->n_layer), v = dim(&a, "v_heads"),
           k = dim(&a, "qk_heads");
    double dk = dim(&a, "d_k"), dv = dim(&a, "d_v"), conv = dim(&a, "conv_kernel");
    const char *type = sy_jread_text_or(&a, "state_dtype", "bf16");
    double channels = 2 * k * dk + v * dv, bytes = !strcmp(type, "f32") ? 4 : 2;
    r->p->attn_params += layers * r->hidden * (channels + 2 * v * dv);
    r->p->state_elems += layers * (v * dk * dv + channels * (conv - 1));
    r->p->state_bytes += layers * (v * dk * dv * bytes + channels * (conv - 1) * 2);
    r->p->tok_flops += layers * v * dk * dv * 6;
    if (!r->top.st) r->top.st = a.st;
}

static void read_ffn(struct reading *r)
{
    struct sy_profile *p = r->p;
    struct sy_jread m = part(r, "moe");
    double dense = p->n_layer;
    if (m.obj) {
        dense = (double)sy_jread_int_or(&r->top, "dense_layers", 0, 0, p->n_layer);
        p->n_expert = (int32_t)sy_jread_int(&m, "experts", 2, 1 << 16);
        p->top_k = (int32_t)sy_jread_int(&m, "top_k", 1, 1 << 16);
        if (!m.st && p->top_k > p->n_expert)
            sy_jread_refuse(&m, SY_EFORMAT, "'top_k' %d is more than 'experts' %d", p->top_k, p->n_expert);
        double each = dim(&m, "intermediate"), shared = (double)sy_jread_int_or(&m, "shared_experts", 0, 0, 64);
        double wide = (double)sy_jread_int_or(&m, "shared_intermediate", (int64_t)each, 1, 1 << 24);
        p->n_moe_layer = p->n_layer - (int32_t)dense;
        p->expert_params = 3 * r->hidden * each;
        p->ffn_params += p->n_moe_layer * r->hidden * (3 * shared * wide + p->n_expert);
        if (!r->top.st) r->top.st = m.st;
    }
    if (dense > 0) p->ffn_params += dense * 3 * r->hidden * dim(&r->top, "intermediate");
}

/* ---- the graph, where the architecture is part of the program ------------------------------------------------ */

static bool set_int(struct sy_json *o, const char *key, double v)
{
    return sy_json_set_take(o, key, sy_json_new_int((int64_t)v));
}

/* The card as the config.json that such a model comes with. */
static struct sy_json *config_of(const struct sy_json *card, const char *arch)
{
    static const char *const names[][2] = {
        {"layers", "num_hidden_layers"},
        {"hidden", "hidden_size"},
        {"vocab", "vocab_size"},
        {"context", "max_position_embeddings"},
        {"intermediate", "intermediate_size"},
    };
    static const char *const heads[][2] = {
        {"q_heads", "num_attention_heads"}, {"kv_heads", "num_key_value_heads"}, {"head_dim", "head_dim"}};
    static const char *const experts[][2] = {{"experts", "num_experts"},
                                             {"top_k", "num_experts_per_tok"},
                                             {"intermediate", "moe_intermediate_size"},
                                             {"intermediate", "intermediate_size"}};
    struct sy_json *o = sy_json_new_object(), *list = sy_json_new_array();
    const struct sy_json *a = sy_json_get(card, "attention");
    bool ok = sy_json_push_take(list, sy_json_new_text(arch, strlen(arch)));
    ok = sy_json_set_take(o, "architectures", list) && ok;
    for (size_t i = 0; i < SY_COUNT(names); i++)
        ok = ok && set_int(o, names[i][1], sy_json_number(sy_json_get(card, names[i][0]), 0));
    for (size_t i = 0; i < SY_COUNT(heads); i++)
        ok = ok && set_int(o, heads[i][1], sy_json_number(sy_json_get(a, heads[i][0]), 0));
    const struct sy_json *moe = sy_json_get(card, "moe");
    for (size_t i = 0; i < SY_COUNT(experts) && moe; i++)
        ok = ok && set_int(o, experts[i][1], sy_json_number(sy_json_get(moe, experts[i][0]), 0));
    if (moe) ok = ok && sy_json_set_take(o, "norm_topk_prob", sy_json_new_bool(true));
    ok = ok &&
         sy_json_set_take(o, "tie_word_embeddings", sy_json_new_bool(sy_json_bool(sy_json_get(card, "tied"), false)));
    ok = ok && sy_json_set_take(o, "rms_norm_eps", sy_json_new_number(1e-6));
    ok = ok && sy_json_set_take(o, "rope_theta", sy_json_new_number(1e6));
    ok = ok && sy_json_set_take(o, "hidden_act", sy_json_new_text("silu", 4));
    if (ok) return o;
    sy_json_free(o);
    return NULL;
}

sy_status sy_card_of_config(const struct sy_env *env, const struct sy_json *config, const char *name,
                            struct sy_card *c, struct sy_err *err)
{
    struct sy_model m;
    struct sy_graph *g = NULL;
    sy_status st = sy_model_open(env, config, name, &m, err);
    if (st) return st;
    st = sy_model_build(env, &m, (struct sy_shape){8, 8, 8, 8, 0}, &g, err);
    if (!st) {
        sy_profile_of_graph(g, m.info.n_ctx, &c->profile);
        snprintf(c->from, sizeof c->from, "graph of %s", m.arch->name);
        snprintf(c->name, sizeof c->name, "%s", name);
        c->accepted[0] = 1;
    }
    sy_graph_free(g);
    sy_model_release(&m);
    return st;
}

static sy_status read_graph(const struct sy_env *env, const struct sy_json *card, const char *arch, struct sy_card *c,
                            struct sy_err *err)
{
    char name[sizeof c->name];
    struct sy_json *config = config_of(card, arch);
    if (!config) return sy_fail(err, SY_ENOMEM, "no memory for model card '%s'", c->name);
    snprintf(name, sizeof name, "%s", c->name);
    sy_status st = sy_card_of_config(env, config, name, c, err);
    sy_json_free(config);
    return st;
}

static void read_hyper(struct sy_jread *top, struct sy_profile *p)
{
    struct reading r = {.top = *top, .p = p, .hidden = dim(top, "hidden")};
    *p = (struct sy_profile){.n_layer = (int32_t)sy_jread_int(top, "layers", 1, 100000),
                             .n_vocab = (int32_t)sy_jread_int(top, "vocab", 1, 1 << 24),
                             .n_ctx = (int32_t)sy_jread_int(top, "context", 1, 1 << 30),
                             .d_model = (int32_t)r.hidden};
    p->head_params = r.hidden * p->n_vocab;
    p->embed_params = sy_jread_bool_or(top, "tied", false) ? 0 : p->head_params;
    r.top.st = top->st;
    if (!r.top.st) read_attention(&r);
    if (!r.top.st) read_linear(&r);
    if (!r.top.st) read_ffn(&r);
    top->st = r.top.st;
}

static void read_accepted(struct sy_jread *top, struct sy_card *c)
{
    const struct sy_json *list = sy_json_get(sy_json_get(top->obj, "accepted"), "by_draft");
    c->accepted[0] = 1;
    for (size_t i = 0; i < sy_json_len(list) && i + 1 < SY_COUNT(c->accepted); i++) {
        double v = sy_json_number(sy_json_at(list, i), -1);
        if (!(v >= 1 && v <= (double)i + 2))
            sy_jread_refuse(top, SY_EFORMAT, "'by_draft': expected 1 to %zu after %zu drafted tokens, found %g",
                            i + 2, i + 1, v);
        else c->accepted[i + 1] = v;
    }
}

static sy_status check_params(struct sy_jread *r, struct sy_card *c)
{
    double have = sy_profile_params(&c->profile);
    c->stated_params = sy_jread_num_or(r, "total_params", 0, 0, 1e15);
    if (!r->st && c->stated_params > 0 && fabs(have / c->stated_params - 1) > 0.05)
        return sy_jread_refuse(r, SY_EFORMAT,
                               "the shapes make %.4g parameters, 'total_params' says %.4g: one of them "
                               "is wrong",
                               have, c->stated_params);
    return r->st;
}

sy_status sy_card_read(const struct sy_env *env, const char *name, const char *text, size_t n, struct sy_card *out,
                       struct sy_err *err)
{
    char where[80];
    struct sy_json *root;
    snprintf(where, sizeof where, "model card '%.48s'", name);
    sy_status st = sy_json_parse(env, text, n, false, &root, err);
    if (st) return sy_while(err, st, "%s", where);
    struct sy_card c = {0};
    struct sy_jread r = {.obj = root, .where = where, .err = err};
    const char *said = sy_jread_text(&r, "name"), *arch = sy_jread_text_or(&r, "architecture", NULL);
    snprintf(c.name, sizeof c.name, "%s", said ? said : "");
    if (!r.st) read_hyper(&r, &c.profile);
    snprintf(c.from, sizeof c.from, "hyper-parameters");
    if (!r.st) read_accepted(&r, &c);
    if (!r.st) check_params(&r, &c);
    if (!r.st && arch) r.st = read_graph(env, root, arch, &c, err);
    sy_json_free(root);
    if (!r.st) *out = c;
    return r.st;
}

static bool is_alias(const struct sy_env *env, const struct sy_data *d, const char *name)
{
    struct sy_json *root;
    if (sy_json_parse(env, d->at, d->n, false, &root, NULL)) return false;
    const struct sy_json *list = sy_json_get(root, "aliases");
    bool found = false;
    for (size_t i = 0; i < sy_json_len(list) && !found; i++) {
        const char *s = sy_json_text(sy_json_at(list, i));
        found = s && !strcmp(s, name);
    }
    sy_json_free(root);
    return found;
}

/* The text of the program's own card of that name or alias, or of a file. */
static sy_status card_text(const struct sy_env *env, const char *name, char **text, size_t *n, struct sy_err *err)
{
    char path[128];
    snprintf(path, sizeof path, "models/%.80s.json", name);
    for (const struct sy_data *d = sy_data_files; d->path && !sy_data_find(path); d++) {
        if (strncmp(d->path, "models/", 7) || !is_alias(env, d, name)) continue;
        snprintf(path, sizeof path, "%s", d->path);
        path[strlen(path) - strlen(".json")] = 0;
        return sy_data_open(env, "models", path + strlen("models/"), text, n, err);
    }
    return sy_data_open(env, "models", name, text, n, err);
}

sy_status sy_card_find(const struct sy_env *env, const char *name, struct sy_card *out, struct sy_err *err)
{
    char *text;
    size_t n;
    sy_status st = card_text(env, name, &text, &n, err);
    if (st) return st;
    st = sy_card_read(env, name, text, n, out, err);
    sy_delete(env, text);
    return st;
}

sy_status sy_card_config(const struct sy_env *env, const char *name, struct sy_json **out, struct sy_err *err)
{
    char *text;
    size_t n;
    struct sy_json *card, *config = NULL;
    sy_status st = card_text(env, name, &text, &n, err);
    if (st) return st;
    st = sy_json_parse(env, text, n, false, &card, err);
    sy_delete(env, text);
    if (st) return sy_while(err, st, "model card '%.80s'", name);
    if (sy_json_get(card, "architectures")) {
        st = sy_config_flatten(&card, err);
        if (st) sy_json_free(card);
        else *out = card;
        return st;
    }
    const char *arch = sy_json_text(sy_json_get(card, "architecture"));
    if (arch) config = config_of(card, arch);
    st = !arch    ? sy_fail(err, SY_ENOSUP,
                            "model card '%.80s' names no architecture of this program, which a graph takes; give the "
                               "model's config.json",
                            name)
         : config ? SY_OK
                  : sy_fail(err, SY_ENOMEM, "no memory for model card '%.80s'", name);
    sy_json_free(card);
    if (!st) *out = config;
    return st;
}
