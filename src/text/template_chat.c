/* template_chat.c - the conversation as transformers' apply_chat_template (5.24) hands it to a template: keys of
 * messages whose value is null are dropped, reasoning is there under each of its names, and continue_final_message
 * leaves the last message open. */
#include <string.h>

#include "text/template_int.h"

static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";
static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

static bool text(struct run *r, const struct sy_json *j, bool trusted, struct val *out)
{
    size_t n;
    const char *at = sy_json_text_n(j, &n);
    const struct str *s = sy_tpl_string(r, at, n, trusted);
    if (s) *out = sy_tpl_of_str(s);
    return s != NULL;
}

static bool key_text(struct run *r, const char *key, struct val *out)
{
    const struct str *s = sy_tpl_string(r, key, strlen(key), false);
    if (s) *out = sy_tpl_of_str(s);
    return s != NULL;
}

static bool object(struct run *r, const struct sy_json *j, int depth, struct val *out)
{
    struct dict *d = sy_tpl_dict(r, sy_json_len(j));
    const char *key;
    const struct sy_json *value;
    if (!d) return false;
    for (void *it = NULL; (it = sy_json_next(j, it, &key, &value));) {
        struct val k, v;
        if (!key_text(r, key, &k) || !sy_tpl_from_json(r, value, depth + 1, &v) || !sy_tpl_dict_set(r, d, &k, &v))
            return false;
    }
    *out = (struct val){.kind = V_DICT, .taint = true, .dict = d};
    return true;
}

bool sy_tpl_from_json(struct run *r, const struct sy_json *j, int depth, struct val *out)
{
    if (depth > SY_TPL_DATA_DEPTH_MAX)
        return sy_tpl_fail(r, SY_EARG, "the conversation's data nest deeper than %d", SY_TPL_DATA_DEPTH_MAX);
    if (!sy_tpl_spend(r, 1)) return false;
    if (sy_json_is_text(j)) return text(r, j, false, out);
    if (sy_json_is_object(j)) return object(r, j, depth, out);
    if (sy_json_is_array(j)) {
        struct list *l = sy_tpl_list(r, sy_json_len(j));
        for (size_t i = 0; l && i < l->n; i++)
            if (!sy_tpl_from_json(r, sy_json_at(j, i), depth + 1, &l->at[i])) return false;
        if (l) *out = sy_tpl_of_list(V_LIST, l, true);
        return l != NULL;
    }
    if (sy_json_is_bool(j)) *out = sy_tpl_bool(sy_json_bool(j, false), true);
    else if (sy_json_is_int(j)) *out = sy_tpl_int(sy_json_int(j, 0), true);
    else if (sy_json_is_number(j)) *out = sy_tpl_float(sy_json_number(j, 0), true);
    else *out = (struct val){.kind = V_NONE, .taint = true};
    return true;
}

/* Roles are words of the protocol, not text of a user: a template may make a control token of one, as in
 * '<|' + role + '|>'. Any other word in their place is as untrusted as the rest. */
static bool is_role(const struct sy_json *j)
{
    static const char *const roles[] = {"system",  "developer",   "user",        "assistant", "tool",    "function",
                                        "ipython", "environment", "observation", "model",     "context", "documents"};
    const char *s = sy_json_text(j);
    for (size_t i = 0; s && i < SY_COUNT(roles); i++)
        if (!strcmp(s, roles[i])) return true;
    return false;
}

static bool set(struct run *r, struct dict *d, const char *key, const struct val *v)
{
    struct val k;
    return key_text(r, key, &k) && sy_tpl_dict_set(r, d, &k, v);
}

static bool message(struct run *r, const struct sy_json *j, struct val *out)
{
    struct dict *d = sy_tpl_dict(r, sy_json_len(j) + 2);
    const struct sy_json *reasoning = NULL, *value;
    const char *key;
    struct val v, why;
    if (!d) return false;
    for (size_t i = 0; i < SY_COUNT(reasoning_names) && !reasoning; i++) {
        reasoning = sy_json_get(j, reasoning_names[i]);
        if (sy_json_is_null(reasoning)) reasoning = NULL;
    }
    if (reasoning && (!sy_tpl_from_json(r, reasoning, 2, &why) || !set(r, d, "thinking", &why))) return false;
    for (void *it = NULL; (it = sy_json_next(j, it, &key, &value));) {
        if (sy_json_is_null(value)) continue;
        bool role = !strcmp(key, "role") && is_role(value);
        if (!(role ? text(r, value, true, &v) : sy_tpl_from_json(r, value, 2, &v)) || !set(r, d, key, &v))
            return false;
    }
    if (reasoning && !set(r, d, "reasoning_content", &why)) return false;
    *out = (struct val){.kind = V_DICT, .taint = true, .dict = d};
    return true;
}

static bool messages(struct run *r, const struct sy_json *j, struct val *out)
{
    if (!sy_json_is_array(j)) return sy_tpl_fail(r, SY_EARG, "messages: expected an array");
    if (!sy_json_len(j)) return sy_tpl_fail(r, SY_EARG, "messages: expected at least one message, found none");
    struct list *l = sy_tpl_list(r, sy_json_len(j));
    for (size_t i = 0; l && i < l->n; i++) {
        const struct sy_json *m = sy_json_at(j, i);
        if (!sy_json_is_object(m)) return sy_tpl_fail(r, SY_EARG, "messages[%zu]: expected an object", i);
        if (!message(r, m, &l->at[i])) return false;
    }
    if (l) *out = sy_tpl_of_list(V_LIST, l, true);
    return l != NULL;
}

/* ---- continue_final_message -------------------------------------------------------- */

static bool append_tag(struct run *r, struct dict *d, const char *key, const struct str *old, struct chat_end *end)
{
    size_t at, n;
    const struct str *t = sy_tpl_string(r, tag, sizeof tag - 1, false), *with = t ? sy_tpl_concat(r, old, t) : NULL;
    if (!with) return false;
    sy_tpl_strip(r, old, NULL, true, true, &at, &n);
    end->on = true;
    end->text = sy_tpl_part(r, old, at, n);
    struct val v = sy_tpl_of_str(with);
    return end->text && set(r, d, key, &v);
}

static bool open_parts(struct run *r, const struct list *parts, struct chat_end *end)
{
    for (size_t i = parts->n; i-- > 0;) {
        const struct val *part = &parts->at[i];
        const struct val *words = part->kind == V_DICT ? sy_tpl_dict_text(part->dict, "text", 4) : NULL;
        if (words && words->kind == V_STR) return append_tag(r, part->dict, "text", words->s, end);
    }
    return sy_tpl_fail(r, SY_EARG, "continue_final_message: the final message has no text to continue");
}

static bool in_source(const struct run *r, const char *name)
{
    return memmem(r->t->source, r->t->n_source, name, strlen(name)) != NULL;
}

/* Reasoning is there under three names: all that say the same are left open, and the template may read any. */
static bool open_message(struct run *r, const struct val *chat, const char *field, struct chat_end *end)
{
    struct dict *d = chat->list->at[chat->list->n - 1].dict;
    const struct val *found = sy_tpl_dict_text(d, field, strlen(field));
    if (!found || found->kind == V_NONE)
        return sy_tpl_fail(r, SY_EARG, "continue_final_message: the final message has no '%.60s' to continue", field);
    struct val v = *found;
    bool reasoning = false, used = false, same;
    for (size_t i = 0; i < SY_COUNT(reasoning_names); i++) reasoning |= !strcmp(field, reasoning_names[i]);
    const char *fields[SY_COUNT(reasoning_names)] = {field};
    size_t n = reasoning ? 0 : 1;
    for (size_t i = 0; reasoning && i < SY_COUNT(reasoning_names); i++) {
        const struct val *other = sy_tpl_dict_text(d, reasoning_names[i], strlen(reasoning_names[i]));
        if (!other) continue;
        if (!sy_tpl_equal(r, other, &v, &same)) return false;
        if (same) fields[n++] = reasoning_names[i];
    }
    for (size_t i = 0; i < n; i++) used |= in_source(r, fields[i]);
    if (!used) return sy_tpl_fail(r, SY_EARG, "continue_final_message: the template does not read '%.60s'", field);
    if (v.kind == V_LIST) return open_parts(r, v.list, end);
    if (v.kind != V_STR) return sy_tpl_fail(r, SY_EARG, "continue_final_message: '%.60s' is not a text", field);
    for (size_t i = 0; i < n; i++)
        if (!append_tag(r, d, fields[i], v.s, end)) return false;
    return true;
}

static void cut_spans(struct sy_rendered *o, size_t len)
{
    while (o->n_span && o->span[o->n_span - 1].lo >= len) o->n_span--;
    if (o->n_span && o->span[o->n_span - 1].hi > len) o->span[o->n_span - 1].hi = len;
}

bool sy_tpl_cut(struct run *r, const struct chat_end *end)
{
    struct sy_buf *b = &r->out->text;
    size_t n = sizeof tag - 2; /* without its space */
    const char *said = b->len ? memmem(b->at, b->len, end->text->at, end->text->n) : NULL;
    size_t i = b->len >= n ? b->len - n + 1 : 0;
    while (i > 0 && memcmp(b->at + i - 1, tag, n)) i--;
    if (!said || i == 0)
        return sy_tpl_fail(r, SY_EARG,
                           "continue_final_message: the final message does not appear in what the template makes "
                           "of the conversation");
    size_t len = i - 1;
    bool spaced = len + n < b->len && b->at[len + n] == ' ';
    if (!spaced) len = sy_tpl_trim_end(b->at, len); /* the template trims, so the message is taken as trimmed */
    b->len = len;
    b->at[len] = 0;
    cut_spans(r->out, len);
    return true;
}

/* ---- variables -------------------------------------------------------- */

static bool token(struct run *r, const char *name, const char *value)
{
    if (!value) return true;
    const struct str *s = sy_tpl_string(r, value, strlen(value), true);
    struct val v;
    if (!s) return false;
    v = sy_tpl_of_str(s);
    return set(r, r->vars, name, &v);
}

bool sy_tpl_chat(struct run *r, const struct sy_render *in, struct chat_end *end)
{
    struct val chat, v = sy_tpl_none();
    const char *key, *field = in->continue_final_message ? "content" : NULL;
    const struct sy_json *value;
    *end = (struct chat_end){0};
    r->vars = sy_tpl_dict(r, 16);
    if (!r->vars || !messages(r, in->messages, &chat) || !set(r, r->vars, "documents", &v)) return false;
    if (in->tools && !sy_tpl_from_json(r, in->tools, 1, &v)) return false;
    if (!set(r, r->vars, "tools", &v)) return false;
    v = sy_tpl_bool(in->add_generation_prompt, false);
    if (!set(r, r->vars, "add_generation_prompt", &v) || !token(r, "bos_token", in->bos) ||
        !token(r, "eos_token", in->eos) || !token(r, "pad_token", in->pad))
        return false;
    for (void *it = NULL; in->kwargs && (it = sy_json_next(in->kwargs, it, &key, &value));) {
        if (!strcmp(key, "messages"))
            return sy_tpl_fail(r, SY_EARG, "the variable 'messages' cannot be set by a keyword");
        if (!strcmp(key, "continue_final_message")) {
            const char *name = sy_json_text(value);
            field = name && *name ? name : sy_json_bool(value, false) ? "content" : NULL;
            continue;
        }
        if (!sy_tpl_from_json(r, value, 1, &v) || !set(r, r->vars, key, &v)) return false;
    }
    const struct val *prompt = sy_tpl_dict_text(r->vars, "add_generation_prompt", 21);
    if (field && sy_tpl_truth(prompt))
        return sy_tpl_fail(r, SY_EARG, "continue_final_message and add_generation_prompt exclude each other");
    if (field && !open_message(r, &chat, field, end)) return false;
    return set(r, r->vars, "messages", &chat);
}
