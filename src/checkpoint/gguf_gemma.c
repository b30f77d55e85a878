/* gguf_gemma.c - what GGUFs of the Gemma family have beyond the common keys (ggml-org/ggml, docs/gguf.md). */
#include <math.h>

#include "checkpoint/gguf_build.h"

/* A number (every n-th layer is global) or one bool a layer (true: sliding). */
void sy_gguf_pattern(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, own(b, "attention.sliding_window_pattern"));
    if (!kv || kv->type != SY_GGUF_ARRAY) {
        put_int(b, "sliding_window_pattern", sy_gguf_int_or(&b->m, b->key, b->arch->pattern, 1, INT32_MAX));
        return;
    }
    if (!(kv = sy_gguf_array(&b->m, b->key, SY_GGUF_BOOL))) return;
    if (kv->n != (uint64_t)b->d->n_layer) {
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected one bool for each of %lld layers, found %llu", b->key,
                       (long long)b->d->n_layer, (unsigned long long)kv->n);
        return;
    }
    struct sy_json *list = sy_json_new_array();
    for (uint64_t i = 0; i < kv->n; i++) {
        const char *type = kv->at[i] ? "sliding_attention" : "full_attention";
        if (!sy_json_push_take(list, sy_json_new_text(type, strlen(type)))) b->nomem = true;
    }
    put(b, b->o, "layer_types", list);
}

/* layers_27b: the one size of the family whose queries are scaled by hidden_size / heads, not head size. */
static void gemma_keys(struct build *b, int64_t layers_27b)
{
    int64_t hidden = sy_gguf_int(&b->m, own(b, "embedding_length"), 1, INT32_MAX);
    double scale = sy_gguf_num_or(&b->m, own(b, "attention.scale"), 0, 0, 1e6);
    if (scale > 0) put_num(b, "query_pre_attn_scalar", 1 / (scale * scale));
    else put_int(b, "query_pre_attn_scalar", b->d->n_layer == layers_27b ? hidden / b->n_head : b->d->head_dim);
    put_text(b, "hidden_activation", b->arch->act);
}

void sy_gguf_gemma2(struct build *b)
{
    gemma_keys(b, 46);
    put_int(b, "sliding_window", sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 4096, 1, INT32_MAX));
    sy_gguf_pattern(b);
    put_num(b, "attn_logit_softcapping", sy_gguf_num_or(&b->m, own(b, "attn_logit_softcapping"), 50, 1e-6, 1e6));
    put_num(b, "final_logit_softcapping", sy_gguf_num_or(&b->m, own(b, "final_logit_softcapping"), 30, 1e-6, 1e6));
}

void sy_gguf_gemma3(struct build *b)
{
    gemma_keys(b, 62);
    put_num(b, "rope_local_base_freq", sy_gguf_num_or(&b->m, own(b, "rope.freq_base_swa"), 10000, 1e-3, 1e12));
    int64_t window = sy_gguf_int_or(&b->m, own(b, "attention.sliding_window"), 0, 0, INT32_MAX);
    if (window > 0) {
        put_int(b, "sliding_window", window);
        sy_gguf_pattern(b);
    } else {
        put_int(b, "sliding_window_pattern", 1); /* every layer is global */
    }
    double cap = sy_gguf_num_or(&b->m, own(b, "final_logit_softcapping"), 0, 0, 1e6);
    if (cap > 0) put_num(b, "final_logit_softcapping", cap);
}

/* Whether layer l sees everything, by what sy_gguf_pattern() made. */
static bool is_full(const struct build *b, int64_t l)
{
    const char *type = sy_json_text(sy_json_at(sy_json_get(b->o, "layer_types"), (size_t)l));
    int64_t every = sy_json_int(sy_json_get(b->o, "sliding_window_pattern"), 0);
    return type ? !strcmp(type, "full_attention") : every > 0 && (l + 1) % every == 0;
}

/* Keys of both, and what their tensors tell. */
static void per_layer(struct build *b)
{
    const struct sy_tensor *t = sy_gguf_raw(b->m.g, "per_layer_token_embd.weight");
    put_text(b, "hidden_activation", b->arch->act);
    put_int(b, "sliding_window", sy_gguf_int(&b->m, own(b, "attention.sliding_window"), 1, INT32_MAX));
    sy_gguf_pattern(b);
    put_num(b, "final_logit_softcapping", sy_gguf_num_or(&b->m, own(b, "final_logit_softcapping"), 30, 1e-6, 1e6));
    if (t && t->n_dim == 2) put_int(b, "vocab_size_per_layer_input", t->dim[0]);
}

/* The share of gates that are put to 0: the file holds the deviations above the mean that this comes to. */
static void put_sparsity(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_array(&b->m, own(b, "activation_sparsity_scale"), SY_GGUF_F32);
    struct sy_json *list = sy_json_new_array();
    if (!kv || kv->n != (uint64_t)b->d->n_layer)
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected a number for each of %lld layers", b->key,
                       (long long)b->d->n_layer);
    for (uint64_t i = 0; !b->m.st && i < kv->n; i++) {
        float z;
        memcpy(&z, kv->at + 4 * i, sizeof z);
        if (isnan(z) || z > 8)
            sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': layer %llu: expected deviations below 8, found %g", b->key,
                           (unsigned long long)i, (double)z);
        double share = z < -8 || b->m.st ? 0 : 0.5 * erfc(-(double)z / sqrt(2));
        if (!sy_json_push_take(list, sy_json_new_number(share))) b->nomem = true;
    }
    put(b, b->o, "activation_sparsity_pattern", list);
}

void sy_gguf_gemma3n(struct build *b)
{
    const struct sy_tensor *t = sy_gguf_raw(b->m.g, "blk.0.laurel_l.weight");
    per_layer(b);
    put_sparsity(b);
    put_num(b, "rope_local_base_freq", sy_gguf_num_or(&b->m, own(b, "rope.freq_base_swa"), 10000, 1e-3, 1e12));
    if (t && t->n_dim == 2) put_int(b, "laurel_rank", t->dim[0]);
    put_bool(b, "altup_correct_scale", sy_gguf_raw(b->m.g, "blk.0.altup_correct_scale.weight") != NULL);
    (void)sy_gguf_int_layers(&b->m, own(b, "feed_forward_length"), b->d->n_layer, 1, INT32_MAX);
}

/* KV heads and widths may differ between the two kinds of layers; each kind has one number. */
static void put_two_kinds(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, own(b, "attention.head_count_kv"));
    int64_t n[2] = {0, 0};
    if (!kv || kv->type != SY_GGUF_ARRAY) {
        n[0] = n[1] = sy_gguf_int_or(&b->m, b->key, b->n_head, 1, INT32_MAX);
    } else if ((kv->elem != SY_GGUF_I32 && kv->elem != SY_GGUF_U32) || kv->n != (uint64_t)b->d->n_layer) {
        sy_gguf_refuse(&b->m, SY_EFORMAT, "key '%s': expected an integer for each of %lld layers", b->key,
                       (long long)b->d->n_layer);
    }
    for (uint64_t l = 0; !b->m.st && kv && kv->type == SY_GGUF_ARRAY && l < kv->n; l++) {
        int64_t *mine = &n[is_full(b, (int64_t)l)], v = sy_gguf_elem_int(kv, l);
        if (v < 1 || (*mine && v != *mine))
            sy_gguf_refuse(&b->m, SY_ENOSUP,
                           "key '%s': layer %llu: expected the same number in all layers that slide, and in all "
                           "others, found %lld",
                           b->key, (unsigned long long)l, (long long)v);
        *mine = v;
    }
    put_int(b, "num_key_value_heads", n[0] ? n[0] : n[1] ? n[1] : 1);
    if (n[1]) put_int(b, "num_global_key_value_heads", n[1]);
}

/* Layers that read another's keys may have MLPs twice as wide. */
static void put_wide(struct build *b)
{
    const struct sy_gguf_kv *kv = sy_gguf_find(&b->m, own(b, "feed_forward_length"));
    int64_t n_shared = sy_json_int(sy_json_get(b->o, "num_kv_shared_layers"), 0), n = b->d->n_layer;
    if (!kv || kv->type != SY_GGUF_ARRAY || b->m.st) return;
    int64_t first = sy_gguf_elem_int(kv, 0), last = sy_gguf_elem_int(kv, kv->n - 1);
    bool wide = n_shared > 0 && last == 2 * first;
    for (int64_t l = 0; l < n; l++)
        if (sy_gguf_elem_int(kv, (uint64_t)l) != (wide && l >= n - n_shared ? 2 * first : first))
            sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': layer %lld: layers of different widths are not supported",
                           b->key, (long long)l);
    put_bool(b, "use_double_wide_mlp", wide);
}

/* "rope_freqs.weight" divides the angles of the layers that see everything: 1, then so much that none is left. */
static void put_ropes(struct build *b, int64_t d_full)
{
    const struct sy_tensor *t = sy_gguf_raw(b->m.g, "rope_freqs.weight");
    struct sy_json *both = sy_json_new_object(), *full = sy_json_new_object(), *local = sy_json_new_object();
    int64_t n = 0;
    float f = 1;
    bool sized = !t || (t->n_dim == 1 && t->dim[0] == d_full / 2 && !strcmp(t->dtype, "f32"));
    for (int64_t i = 0; t && sized && i < t->dim[0]; i++) {
        memcpy(&f, t->data + 4 * i, sizeof f);
        if (f == 1 && n == i) n++;
        else if (!(f >= 1e20f)) sized = false;
    }
    if (!sized)
        sy_gguf_refuse(&b->m, SY_ENOSUP,
                       "tensor 'rope_freqs.weight': expected %lld numbers of f32, first 1, then 1e30",
                       (long long)(d_full / 2));
    double global = sy_gguf_num_or(&b->m, own(b, "rope.freq_base"), 1e6, 1e-3, 1e12);
    double near = sy_gguf_num_or(&b->m, own(b, "rope.freq_base_swa"), 1e4, 1e-3, 1e12);
    put(b, full, "rope_theta", sy_json_new_number(global));
    put(b, full, "rope_type", t ? sy_json_new_text("proportional", 12) : sy_json_new_text("default", 7));
    /* Half a step more: it is rounded down. */
    if (t)
        put(b, full, "partial_rotary_factor",
            sy_json_new_number(n < d_full / 2 ? (2 * (double)n + 0.5) / (double)d_full : 1));
    put(b, local, "rope_theta", sy_json_new_number(near));
    put(b, local, "rope_type", sy_json_new_text("default", 7));
    put(b, both, "full_attention", full);
    put(b, both, "sliding_attention", local);
    put(b, b->o, "rope_parameters", both);
}

/* Whether some layer that sees everything, and has keys of its own, has no v. */
static bool keys_are_values(const struct build *b)
{
    int64_t own_keys = b->d->n_layer - sy_json_int(sy_json_get(b->o, "num_kv_shared_layers"), 0);
    for (int64_t l = 0; l < own_keys; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)l);
        if (is_full(b, l)) return !sy_gguf_raw(b->m.g, name);
    }
    return false;
}

void sy_gguf_gemma4(struct build *b)
{
    int64_t d = b->d->head_dim, d_full = sy_gguf_int(&b->m, own(b, "attention.key_length"), 2, 8192);
    int64_t d_val = sy_gguf_int_or(&b->m, own(b, "attention.value_length"), d_full, 1, 1 << 20);
    if (d_val != d_full)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': expected the key length %lld, found %lld", b->key,
                       (long long)d_full, (long long)d_val);
    int64_t turned[2] = {sy_gguf_int_or(&b->m, own(b, "rope.dimension_count"), d_full, 0, INT32_MAX),
                         sy_gguf_int_or(&b->m, own(b, "rope.dimension_count_swa"), d, 0, INT32_MAX)};
    if (turned[0] != d_full || turned[1] != d)
        sy_gguf_refuse(&b->m, SY_ENOSUP, "key '%s': expected the head sizes, %lld and %lld of layers that slide",
                       own(b, "rope.dimension_count"), (long long)d_full, (long long)d);
    per_layer(b);
    if (b->m.st) return;
    put_int(b, "global_head_dim", d_full);
    put_two_kinds(b);
    put_wide(b);
    put_ropes(b, d_full);
    put_bool(b, "attention_k_eq_v", keys_are_values(b));
    put_bool(b, "enable_moe_block", b->d->n_expert > 0);
}
