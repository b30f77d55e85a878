/* The tokenizer inside a GGUF file: arrays whose types and lengths are checked against each other, once. */
#include <math.h>
#include <string.h>

#include "checkpoint/internal.h"

enum { TOKENS_MAX = 1 << 24 };

/* Views of all strings of an array, which was walked when it was read. */
static struct sy_text *strings(struct sy_checkpoint *ck, const struct sy_gguf_kv *kv)
{
    struct sy_text *t = sy_arena_array(&ck->mem, kv->n, sizeof *t);
    const unsigned char *p = kv->at;
    for (uint64_t i = 0; t && i < kv->n; i++) {
        uint64_t n;
        memcpy(&n, p, 8);
        t[i] = (struct sy_text){(const char *)p + 8, (size_t)n};
        p += 8 + n;
    }
    return t;
}

/* A C string of a metadata string; NULL: absent or refused. */
static const char *name_of(struct sy_checkpoint *ck, struct sy_gguf_meta *m, const char *key)
{
    struct sy_text t;
    if (!sy_gguf_text(m, key, &t)) return NULL;
    if (t.n > 255 || memchr(t.at, 0, t.n)) {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a name of up to 255 bytes, found %zu", key, t.n);
        return NULL;
    }
    const char *s = sy_arena_text(&ck->mem, t.at, t.n);
    if (!s && m->st == SY_OK) m->st = sy_ckpt_nomem(ck, m->err);
    return s;
}

/* An aligned copy of one number per token; NULL: absent or refused. */
static void *per_token(struct sy_checkpoint *ck, struct sy_gguf_meta *m, const char *key, uint32_t elem,
                       size_t n_token)
{
    const struct sy_gguf_kv *kv = sy_gguf_array(m, key, elem);
    if (!kv) return NULL;
    if (kv->n != n_token) {
        sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected one element for each of the %zu tokens, found %llu", key,
                       n_token, (unsigned long long)kv->n);
        return NULL;
    }
    void *p = sy_arena_array(&ck->mem, n_token, 4);
    if (p) memcpy(p, kv->at, 4 * n_token);
    else if (m->st == SY_OK) m->st = sy_ckpt_nomem(ck, m->err);
    return p;
}

static void read_ids(struct sy_gguf_meta *m, struct sy_gguf_vocab *v)
{
    const struct {
        const char *key;
        int64_t *id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos},       {"tokenizer.ggml.eos_token_id", &v->eos},
        {"tokenizer.ggml.eot_token_id", &v->eot},       {"tokenizer.ggml.eom_token_id", &v->eom},
        {"tokenizer.ggml.unknown_token_id", &v->unk},   {"tokenizer.ggml.padding_token_id", &v->pad},
        {"tokenizer.ggml.seperator_token_id", &v->sep}, {"tokenizer.ggml.cls_token_id", &v->cls},
        {"tokenizer.ggml.mask_token_id", &v->mask},
    };
    for (size_t i = 0; i < SY_COUNT(ids); i++) {
        /* -1, also as 32 bits without a sign, is how converters write "none". */
        int64_t id = sy_gguf_int_or(m, ids[i].key, -1, INT64_MIN, INT64_MAX);
        if (id == UINT32_MAX) id = -1;
        if (id < -1 || id >= (int64_t)v->n_token) {
            sy_gguf_refuse(m, SY_EFORMAT, "key '%s': expected a token from 0 to %zu, found %lld", ids[i].key,
                           v->n_token - 1, (long long)id);
            return;
        }
        *ids[i].id = id;
    }
}

static void read_arrays(struct sy_checkpoint *ck, struct sy_gguf_meta *m, struct sy_gguf_vocab *v)
{
    const struct sy_gguf_kv *tokens = sy_gguf_array(m, "tokenizer.ggml.tokens", SY_GGUF_STRING);
    const struct sy_gguf_kv *merges = sy_gguf_array(m, "tokenizer.ggml.merges", SY_GGUF_STRING);
    if (m->st) return;
    if (!tokens || tokens->n < 1 || tokens->n > TOKENS_MAX) {
        sy_gguf_refuse(m, SY_EFORMAT,
                       "key 'tokenizer.ggml.tokens': expected an array of 1 to %d strings for tokenizer "
                       "model '%s', found %llu",
                       TOKENS_MAX, v->model, tokens ? (unsigned long long)tokens->n : 0);
        return;
    }
    v->n_token = tokens->n;
    v->token = strings(ck, tokens);
    v->n_merge = merges ? merges->n : 0;
    v->merge = merges ? strings(ck, merges) : NULL;
    if (!v->token || (merges && !v->merge)) m->st = sy_ckpt_nomem(ck, m->err);
    v->score = per_token(ck, m, "tokenizer.ggml.scores", SY_GGUF_F32, v->n_token);
    v->type = per_token(ck, m, "tokenizer.ggml.token_type", SY_GGUF_I32, v->n_token);
    for (size_t i = 0; v->type && i < v->n_token; i++)
        if (v->type[i] < 0 || v->type[i] > 6) {
            sy_gguf_refuse(m, SY_EFORMAT,
                           "key 'tokenizer.ggml.token_type': expected types from 0 to 6, found %d for "
                           "token %zu",
                           v->type[i], i);
            break;
        }
    for (size_t i = 0; v->score && i < v->n_token; i++)
        if (!(v->score[i] >= -1e30f && v->score[i] <= 1e30f)) {
            sy_gguf_refuse(m, SY_EFORMAT,
                           "key 'tokenizer.ggml.scores': expected finite numbers, found %g for token %zu",
                           isnan(v->score[i]) ? (double)NAN : (double)v->score[i], i);
            break;
        }
}

/* Ends of generation: eos, and the ends of a turn and of a message where the file names them. */
static sy_status generation(struct sy_checkpoint *ck, struct sy_gguf_meta *m, const struct sy_gguf_vocab *v)
{
    int64_t ids[] = {v->eos, v->eot, v->eom};
    struct sy_json *o = sy_json_new_object(), *list = sy_json_new_array();
    bool ok = true;
    for (size_t i = 0; i < SY_COUNT(ids); i++) {
        bool seen = ids[i] < 0;
        for (size_t j = 0; j < i; j++) seen |= ids[j] == ids[i];
        if (!seen) ok &= sy_json_push_take(list, sy_json_new_int(ids[i]));
    }
    if (sy_json_len(list)) ok &= sy_json_set_take(o, "eos_token_id", list);
    else sy_json_free(list);
    if (v->bos >= 0) ok &= sy_json_set_take(o, "bos_token_id", sy_json_new_int(v->bos));
    if (v->pad >= 0) ok &= sy_json_set_take(o, "pad_token_id", sy_json_new_int(v->pad));
    ck->generation = o;
    if (m->st) return m->st;
    return o && ok ? SY_OK : sy_ckpt_nomem(ck, m->err);
}

sy_status sy_gguf_tokenizer(struct sy_checkpoint *ck, const struct sy_gguf *g, struct sy_err *err)
{
    struct sy_gguf_meta m = {g, err, SY_OK};
    struct sy_text text = {NULL, 0};
    if (sy_gguf_text(&m, "tokenizer.chat_template", &text)) {
        ck->chat_template = text.at;
        ck->n_chat_template = text.n;
    }
    const char *model = name_of(ck, &m, "tokenizer.ggml.model");
    if (m.st) return m.st;
    if (!model || !strcmp(model, "none") || !strcmp(model, "no_vocab")) return SY_OK;
    struct sy_gguf_vocab *v = sy_arena_get(&ck->mem, sizeof *v);
    if (!v) return sy_ckpt_nomem(ck, err);
    v->model = model;
    v->pre = name_of(ck, &m, "tokenizer.ggml.pre");
    read_arrays(ck, &m, v);
    if (m.st) return m.st;
    read_ids(&m, v);
    v->add_bos = sy_gguf_bool_or(&m, "tokenizer.ggml.add_bos_token", -1);
    v->add_eos = sy_gguf_bool_or(&m, "tokenizer.ggml.add_eos_token", -1);
    v->add_space_prefix = sy_gguf_bool_or(&m, "tokenizer.ggml.add_space_prefix", -1);
    v->remove_extra_whitespaces = sy_gguf_bool_or(&m, "tokenizer.ggml.remove_extra_whitespaces", -1);
    const struct sy_gguf_kv *map = sy_gguf_find(&m, "tokenizer.ggml.precompiled_charsmap");
    if (map) map = sy_gguf_array(&m, map->key, map->elem == SY_GGUF_I8 ? SY_GGUF_I8 : SY_GGUF_U8);
    if (map) {
        v->charsmap = map->at;
        v->n_charsmap = map->n;
    }
    const struct sy_tensor *embed = sy_gguf_raw(g, "token_embd.weight");
    if (embed && (int64_t)v->n_token > embed->dim[0])
        sy_gguf_refuse(&m, SY_EFORMAT,
                       "key 'tokenizer.ggml.tokens': %zu tokens, but tensor 'token_embd.weight' has only "
                       "%lld rows",
                       v->n_token, (long long)embed->dim[0]);
    if (m.st) return m.st;
    ck->vocab = v;
    return generation(ck, &m, v);
}
