/* Tensor names: a GGUF's to the Hugging Face names of its architecture, and a composite model's to those of
 * its text model. What a GGUF converter does to q and k rows and to norms stands here too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

/* ---- GGUF names ---------------------------------------------------------------------------------------- */

static bool is_named(const struct sy_name_rule *r, const char *stem)
{
    size_t n = strlen(r->gguf);
    if (r->flags & SY_NAME_WHOLE) return !strcmp(r->gguf, stem);
    return !strncmp(r->gguf, stem, n) && (!strcmp(stem + n, ".weight") || !strcmp(stem + n, ".bias"));
}

/* Of what a GGUF calls `stem`, with ".weight" or ".bias" where its rule is not whole; r may be NULL. linear: in a
 * layer of linear attention. */
static const struct sy_name_rule *rule_for(const struct sy_name_rule *r, const char *stem, bool linear)
{
    for (; r && r->gguf; r++)
        if (is_named(r, stem) && (linear || !(r->flags & SY_NAME_LINEAR))) return r;
    return NULL;
}

static bool is_linear(const struct sy_checkpoint *c, int64_t layer)
{
    const char *type = sy_json_text(sy_json_at(sy_json_get(c->config, "layer_types"), (size_t)layer));
    return type && !strcmp(type, "linear_attention");
}

static const char *layers_of(const struct sy_gguf_arch *a) { return a->layers ? a->layers : "model.layers."; }

/* A decimal number without leading zeros, below limit, up to the dot; -1: none. Moves *s behind the dot. */
static int64_t number(const char **s, int64_t limit)
{
    const char *p = *s;
    int64_t v = 0;
    if (*p == '0' && p[1] != '.') return -1;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = 10 * v + (*p - '0');
        if (v >= limit) return -1;
    }
    if (p == *s || *p != '.') return -1;
    *s = p + 1;
    return v;
}

/* The rule for a GGUF name, with its layer (-1: none) and what follows the last dot; NULL: no rule. */
static const struct sy_name_rule *parse(const struct sy_checkpoint *c, const char *name, const struct sy_gguf_dims *d,
                                        int64_t *layer, const char **suffix)
{
    const char *dot = strrchr(name, '.'), *stem = name + 4;
    const struct sy_name_rule *r;
    *suffix = dot ? dot + 1 : "";
    *layer = -1;
    if (strncmp(name, "blk.", 4)) {
        r = rule_for(d->arch->whole, name, false);
        return r ? r : rule_for(sy_gguf_whole, name, false);
    }
    *layer = number(&stem, d->n_layer + (d->arch->next ? d->n_next : 0));
    if (*layer < 0) return NULL;
    r = *layer >= d->n_layer ? rule_for(d->arch->next, stem, false) : NULL;
    if (!r) r = rule_for(d->arch->names, stem, is_linear(c, *layer));
    return r ? r : rule_for(sy_gguf_block, stem, false);
}

/* What stands before the names in a layer; "": outside of layers, or the name is whole. */
static const char *prefix_of(struct sy_checkpoint *c, const struct sy_gguf_dims *d, const struct sy_name_rule *r,
                             int64_t layer)
{
    bool next = layer >= d->n_layer && d->arch->next_at;
    if (layer < 0) return "";
    for (const struct sy_name_rule *n = d->arch->next; next && n->gguf; n++)
        if (n == r) return "";
    return sy_arena_printf(&c->mem, "%s%lld.", next ? d->arch->next_at : layers_of(d->arch),
                           (long long)(next ? layer - d->n_layer : layer));
}

/* One tensor per expert: slices of the stored one, where they lie; or two, that are halves of its slice. */
static sy_status map_experts(struct sy_checkpoint *c, struct sy_tensor t, const struct sy_name_rule *r, int64_t layer,
                             const char *suffix, const struct sy_gguf_dims *d, struct sy_err *err)
{
    bool bias = !strcmp(suffix, "bias");
    int n_half = r->flags & SY_NAME_HALVES ? 2 : 1;
    int64_t n = layer < 0 ? t.dim[0] : d->n_expert;
    const char *prefix = prefix_of(c, d, r, layer);
    if (t.n_dim != (bias ? 2 : 3) || t.dim[0] != n || n > SY_CKPT_EXPERTS_MAX || t.dim[1] % n_half)
        return sy_fail(err, SY_ESHAPE,
                       "'%s': tensor '%s': expected %d dimensions with %lld experts outermost "
                       "(expert_count)%s, found %d with %lld",
                       t.file, t.file_name, bias ? 2 : 3, (long long)n, n_half == 2 ? " of two halves" : "", t.n_dim,
                       (long long)t.dim[0]);
    if (!prefix) return sy_ckpt_nomem(c, err);
    t.n_dim--;
    t.dim[0] = t.dim[1] / n_half;
    t.dim[1] = t.dim[2];
    t.dim[2] = 1;
    t.n_bytes /= (size_t)(n * n_half);
    for (int64_t i = 0; i < n * n_half; i++) {
        const char *hf = r[i % n_half].hf, *mark = strchr(hf, '#');
        t.name = sy_arena_printf(&c->mem, "%s%.*s%lld%s.%s", prefix, (int)(mark - hf), hf, (long long)(i / n_half),
                                 mark + 1, suffix);
        if (!t.name) return sy_ckpt_nomem(c, err);
        sy_status st = sy_ckpt_add(c, &t, err);
        if (st) return st;
        t.data += t.n_bytes;
    }
    return SY_OK;
}

/* Value heads that stand tiled. */
static sy_status tile(struct sy_tensor *t, const struct sy_name_rule *r, const struct sy_gguf_dims *d,
                      struct sy_err *err)
{
    bool cols = r->flags & SY_NAME_TILED_COLS;
    if (d->tiles.n_key == 0 || !(r->flags & (SY_NAME_TILED | SY_NAME_TILED_COLS))) return SY_OK;
    t->tiles = sy_vheads_of(&d->tiles, t->dim[cols ? t->n_dim - 1 : 0]);
    t->tiled_cols = cols;
    int64_t step = t->format->affine.bits ? t->format->affine.group : 1;
    bool whole = t->format->block_len == 1 || t->tiles.len % step == 0;
    if (t->tiles.n_key > 0 && (!cols || whole)) return SY_OK;
    return sy_fail(err, SY_ESHAPE,
                   "'%s': tensor '%s': expected %d value heads in groups of %d at its end, found %lld %s of %s",
                   t->file, t->file_name, d->tiles.n_key * d->tiles.per_key, (int)step,
                   (long long)t->dim[cols ? t->n_dim - 1 : 0], cols ? "columns" : "rows", t->dtype);
}

static sy_status map_one(struct sy_checkpoint *c, struct sy_tensor t, const struct sy_gguf_dims *d,
                         struct sy_err *err)
{
    int64_t layer;
    const char *suffix;
    const struct sy_name_rule *r = parse(c, t.file_name, d, &layer, &suffix);
    if (!r) return sy_ckpt_add(c, &t, err);
    if (r->flags & SY_NAME_EXPERTS) return map_experts(c, t, r, layer, suffix, d, err);
    bool bare = r->flags & (SY_NAME_BARE | SY_NAME_WHOLE);
    const char *prefix = prefix_of(c, d, r, layer);
    if (!prefix) return sy_ckpt_nomem(c, err);
    t.name = sy_arena_printf(&c->mem, "%s%s%s%s", prefix, r->hf, bare ? "" : ".", bare ? "" : suffix);
    if (!t.name) return sy_ckpt_nomem(c, err);
    if (((r->flags & SY_NAME_COLUMN) && t.n_dim == 2 && t.dim[1] == 1) ||
        ((r->flags & SY_NAME_GROUPS) && t.n_dim == 2)) {
        t.n_dim = 1;
        t.dim[0] *= t.dim[1];
        t.dim[1] = 1;
    }
    if ((r->flags & SY_NAME_ROW) && t.n_dim == 1) {
        t.n_dim = 2;
        t.dim[1] = t.dim[0];
        t.dim[0] = 1;
    }
    if ((r->flags & SY_NAME_FILTER) && t.n_dim == 2) {
        t.n_dim = 3;
        t.dim[2] = t.dim[1];
        t.dim[1] = 1;
    }
    if ((r->flags & SY_NAME_WIDE) && t.n_dim == 4 && t.dim[0] == 1) {
        t.n_dim = 3;
        for (int i = 0; i < 3; i++) t.dim[i] = t.dim[i + 1];
        t.dim[3] = 1;
    }
    if ((r->flags & SY_NAME_FLAT) && t.n_dim == 3) {
        t.n_dim = 2;
        t.dim[0] *= t.dim[1];
        t.dim[1] = t.dim[2];
        t.dim[2] = 1;
    }
    if ((r->flags & SY_NAME_ROPE) && d->arch->rope_pairs) {
        if (t.n_dim > 2 || t.dim[0] % d->head_dim)
            return sy_fail(err, SY_ESHAPE,
                           "'%s': tensor '%s': expected whole heads of %lld rows, found %lld rows in %d "
                           "dimensions",
                           t.file, t.file_name, (long long)d->head_dim, (long long)t.dim[0], t.n_dim);
        t.head_rows = (int32_t)d->head_dim;
    }
    t.norm_plus_one = (r->flags & SY_NAME_NORM) && d->arch->norm_plus_one && !strcmp(suffix, "weight");
    t.neg_exp = r->flags & SY_NAME_NEG_EXP;
    sy_status st = tile(&t, r, d, err);
    return st ? st : sy_ckpt_add(c, &t, err);
}

sy_status sy_names_map(struct sy_checkpoint *c, const struct sy_gguf *g, const struct sy_gguf_dims *d,
                       struct sy_err *err)
{
    for (size_t i = 0; i < g->n_raw; i++) {
        sy_status st = map_one(c, g->raw[i], d, err);
        if (st) return st;
    }
    return SY_OK;
}

/* ---- back: the GGUF name of a Hugging Face name ------------------------------------------------------------ */

/* Whether rest, what follows the layer's number, is what the rule makes; then *suffix is "weight" or "bias". */
static bool undo(const struct sy_name_rule *r, const char *rest, int64_t *expert, const char **suffix)
{
    const char *mark = strchr(r->hf, '#');
    size_t n = strlen(r->hf);
    *expert = -1;
    if (r->flags & SY_NAME_WHOLE) {
        *suffix = NULL;
        return !strcmp(rest, r->hf);
    }
    if (r->flags & SY_NAME_BARE) {
        /* e_score_correction_bias and the like are biases there, the others weights. */
        *suffix = !strcmp(r->gguf, "exp_probs_b") ? "bias" : "weight";
        return !strcmp(rest, r->hf);
    }
    if (mark) {
        if (strncmp(rest, r->hf, (size_t)(mark - r->hf))) return false;
        rest += mark - r->hf;
        *expert = number(&rest, SY_CKPT_EXPERTS_MAX);
        if (*expert < 0) return false;
        *suffix = rest;
        if (!mark[1]) return !strcmp(rest, "weight") || !strcmp(rest, "bias");
        n -= (size_t)(mark + 2 - r->hf);
        if (strncmp(rest, mark + 2, n)) return false;
    } else if (strncmp(rest, r->hf, n)) {
        return false;
    }
    *suffix = rest + n + 1;
    return rest[n] == '.' && (!strcmp(*suffix, "weight") || !strcmp(*suffix, "bias"));
}

static bool has_rule(const struct sy_name_rule *r, const char *gguf)
{
    while (r && r->gguf && strcmp(r->gguf, gguf) != 0) r++;
    return r && r->gguf;
}

struct sy_vheads sy_vheads_of(const struct sy_vheads *heads, int64_t rows)
{
    struct sy_vheads t = *heads;
    int64_t n = (int64_t)t.n_key * t.per_key;
    if (n < 1) return (struct sy_vheads){0};
    if (rows == n) t.len = 1; /* a number for each head */
    t.first = rows - n * t.len;
    if (t.first < 0) t.n_key = 0;
    return t;
}

static const struct sy_name_rule *undo_any(const struct sy_name_rule *r, const struct sy_name_rule *before,
                                           const char *rest, int64_t *expert, const char **suffix)
{
    for (; r && r->gguf; r++)
        if (undo(r, rest, expert, suffix) && !has_rule(before, r->gguf)) return r;
    return NULL;
}

const struct sy_name_rule *sy_names_back(const struct sy_gguf_arch *arch, bool dense, int64_t n_layer,
                                         const char *name, char *gguf, size_t n, int64_t *layer, int64_t *expert)
{
    const struct sy_name_rule *r;
    const char *suffix, *rest = name;
    bool next = arch->next_at && !strncmp(name, arch->next_at, strlen(arch->next_at));
    size_t prefix = strlen(next ? arch->next_at : layers_of(arch));
    *layer = -1;
    if (!next && strncmp(name, layers_of(arch), prefix)) {
        r = arch->next_at ? undo_any(arch->next, NULL, name, expert, &suffix) : NULL;
        if (r) *layer = n_layer;
        if (r) snprintf(gguf, n, "blk.%lld.%s.%s", (long long)n_layer, r->gguf, suffix);
        if (r) return r;
        r = undo_any(arch->whole, NULL, name, expert, &suffix);
        if (!r) r = undo_any(sy_gguf_whole, arch->whole, name, expert, &suffix);
        if (r) snprintf(gguf, n, "%s%s%s", r->gguf, suffix ? "." : "", suffix ? suffix : "");
        return r;
    }
    rest += prefix;
    *layer = number(&rest, SY_CKPT_LAYERS_MAX);
    if (*layer < 0) return NULL;
    if (next) *layer += n_layer;
    r = *layer >= n_layer ? undo_any(arch->next_at ? NULL : arch->next, NULL, rest, expert, &suffix) : NULL;
    if (!r && dense) r = undo_any(arch->dense, NULL, rest, expert, &suffix);
    if (!r) r = undo_any(arch->names, NULL, rest, expert, &suffix);
    if (!r) r = undo_any(sy_gguf_block, arch->names, rest, expert, &suffix);
    if (r) snprintf(gguf, n, "blk.%lld.%s%s%s", (long long)*layer, r->gguf, suffix ? "." : "", suffix ? suffix : "");
    return r;
}

/* ---- Hugging Face names -------------------------------------------------------------------------------- */

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }
static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && !strcmp(s + n - m, with);
}

const char *sy_names_text(struct sy_checkpoint *c, const char *name)
{
    static const struct {
        const char *composite, *text;
    } prefix[] = {
        {"model.language_model.", "model."},
        {"language_model.model.", "model."},
        {"language_model.lm_head.", "lm_head."},
        {"model.text_model.", "model."},
        /* DeepSeek-V4 as released, and as transformers writes it. */
        {"layers.", "model.layers."},
        {"embed.weight", "model.embed_tokens.weight"},
        {"norm.weight", "model.norm.weight"},
        {"head.weight", "lm_head.weight"},
        {"hc_head_", "model.hc_head_"},
        {"model.hc_head.hc_", "model.hc_head_"},
    };
    for (size_t i = 0; i < SY_COUNT(prefix); i++)
        if (starts(name, prefix[i].composite))
            return sy_arena_printf(&c->mem, "%s%s", prefix[i].text, name + strlen(prefix[i].composite));
    /* What transformers itself writes where it undoes its own renaming too far. */
    static const struct {
        const char *written, *meant;
    } inner[] = {{".block_sparse_moe.gate_proj.", ".mlp.gate_proj."},
                 {".block_sparse_moe.up_proj.", ".mlp.up_proj."},
                 {".block_sparse_moe.down_proj.", ".mlp.down_proj."},
                 {".attn.norm.weight", ".attn.kv_norm.weight"},
                 {".compressor.kv_norm.weight", ".compressor.norm.weight"}};
    for (size_t i = 0; i < SY_COUNT(inner); i++) {
        const char *at = starts(name, "model.layers.") ? strstr(name, inner[i].written) : NULL;
        if (at)
            return sy_arena_printf(&c->mem, "%.*s%s%s", (int)(at - name), name, inner[i].meant,
                                   at + strlen(inner[i].written));
    }
    return name;
}

bool sy_names_foreign(const char *name)
{
    static const char *const parts[] = {
        "visual.",       "vision_tower.",          "vision_model.", "vision_encoder.", "audio_tower.",
        "mm_projector.", "multi_modal_projector.", "embed_vision.", "embed_audio.",    "connector.",
    };
    const char *inner = starts(name, "model.") ? name + 6 : name;
    for (size_t i = 0; i < SY_COUNT(parts); i++)
        if (starts(inner, parts[i])) return true;
    return false;
}

bool sy_names_is_key(const char *name)
{
    const char *digits = name + 13;
    if (!starts(name, "model.layers.") || number(&digits, SY_CKPT_LAYERS_MAX) < 0) return false;
    return starts(digits, "self_attn.k_") || starts(digits, "self_attn.v_");
}

bool sy_names_spare(const char *name, const struct sy_json *config)
{
    if (starts(name, "mtp.")) return true; /* Qwen's; DeepSeek's are layers */
    if (!starts(name, "model.layers.") && !starts(name, "blk.")) return false;
    const char *digits = strchr(name, '.') + 1; /* a GGUF's layers behind the last may have kept their names */
    if (*name == 'm') digits = name + 13;
    int64_t n_layer = sy_json_int(sy_json_get(config, "num_hidden_layers"), 0);
    int64_t n_next = sy_json_int(sy_json_get(config, "num_nextn_predict_layers"), 0);
    int64_t layer = number(&digits, SY_CKPT_LAYERS_MAX);
    /* Layers that read another's keys may come with projections nobody uses. */
    int64_t n_shared = sy_json_int(sy_json_get(config, "num_kv_shared_layers"), 0);
    bool keys = starts(digits, "self_attn.k_") || starts(digits, "self_attn.v_");
    if (keys && layer >= 0 && n_shared > 0 && layer < n_layer && layer >= n_layer - n_shared) return true;
    return layer >= n_layer && n_layer > 0 && n_next > 0 && layer - n_layer < n_next;
}

bool sy_names_ignorable(const char *name, const struct sy_json *config)
{
    /* Tables that follow from the config, and scales of activations or of a quantised cache. */
    static const char *const tails[] = {
        ".rotary_emb.inv_freq",
        ".attn_rot_embd.weight",
        ".input_scale",
        ".input_global_scale",
        ".k_scale",
        ".v_scale",
        /* of MiniMax's lightning attention: follow from the number of heads */
        ".slope_rate",
        ".query_decay",
        ".key_decay",
        ".diagonal_decay",
    };
    for (size_t i = 0; i < SY_COUNT(tails); i++)
        if (ends(name, tails[i])) return true;
    if (!strcmp(name, "rope_freqs.weight")) return true; /* gguf_config.c put it into the config */
    if (!strcmp(name, "lm_head.weight")) return sy_json_bool(sy_json_get(config, "tie_word_embeddings"), false);
    if (!strncmp(name, "rope_factors_", 13)) return true; /* as rope_freqs */
    return sy_names_foreign(name) || sy_names_spare(name, config);
}
