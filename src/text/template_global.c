/* template_global.c - the functions every template sees: those of jinja2 and the ones transformers adds. */
#include <string.h>

#include "text/template_int.h"

static bool need(struct run *r, const char *what, const struct args *args, size_t lo, size_t hi, bool named)
{
    if (args->n >= lo && args->n <= hi && (named || !args->n_kw)) return true;
    return sy_tpl_fail(r, SY_EARG,
                       "%s: found %zu positional and %zu named arguments, expected %zu to %zu positional%s", what,
                       args->n, args->n_kw, lo, hi, named ? "" : " alone");
}

static bool g_range(struct run *r, const struct args *args, struct val *out)
{
    int64_t v[3] = {0, 0, 1};
    bool taint = false;
    if (!need(r, "range", args, 1, 3, false)) return false;
    for (size_t i = 0; i < args->n; i++) {
        if (args->at[i].kind == V_UNDEF) return sy_tpl_undef_fail(r, &args->at[i]);
        if (!sy_tpl_index(&args->at[i], &v[args->n == 1 ? 1 : i]))
            return sy_tpl_fail(r, SY_EARG, "range: expected integers, found '%s'", sy_tpl_type(&args->at[i]));
        taint |= args->at[i].taint;
    }
    if (v[2] == 0) return sy_tpl_fail(r, SY_EARG, "range: the step is 0");
    uint64_t span = v[2] > 0      ? (v[1] > v[0] ? (uint64_t)(v[1] - v[0]) : 0)
                    : v[0] > v[1] ? (uint64_t)(v[0] - v[1])
                                  : 0;
    uint64_t size = (uint64_t)(v[2] > 0 ? v[2] : -v[2]), n = span ? (span - 1) / size + 1 : 0;
    if (n > SY_TPL_RANGE_MAX) return sy_tpl_fail(r, SY_EARG, "range: more than %d numbers", SY_TPL_RANGE_MAX);
    struct range *g = sy_tpl_get(r, 1, sizeof *g);
    if (!g) return false;
    *g = (struct range){v[0], v[1], v[2], (size_t)n};
    *out = (struct val){.kind = V_RANGE, .taint = taint, .range = g};
    return true;
}

/* dict(mapping or pairs, name=value...) */
static bool fill(struct run *r, struct dict *d, const struct args *args)
{
    struct walk w;
    struct val pair;
    bool more = true;
    if (args->n && args->at[0].kind == V_DICT) {
        const struct dict *from = args->at[0].dict;
        for (size_t i = 0; i < from->n; i++)
            if (!sy_tpl_dict_set(r, d, &from->at[i].key, &from->at[i].value)) return false;
    } else if (args->n) {
        if (!sy_tpl_walk(r, &args->at[0], &w)) return false;
        for (;;) {
            if (!sy_tpl_next(r, &w, &pair, &more)) return false;
            if (!more) break;
            struct list *l = sy_tpl_is_iterable(&pair) ? sy_tpl_to_list(r, &pair) : NULL;
            if (!l || l->n != 2) return sy_tpl_fail(r, SY_EARG, "dict: expected a mapping or pairs");
            if (!sy_tpl_dict_set(r, d, &l->at[0], &l->at[1])) return false;
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        struct val key = sy_tpl_of_str(args->kw[i].name);
        if (!sy_tpl_dict_set(r, d, &key, &args->kw[i].value)) return false;
    }
    return true;
}

static bool g_dict(struct run *r, const struct args *args, struct val *out)
{
    struct dict *d = sy_tpl_dict(r, args->n_kw);
    if (!d || !need(r, "dict", args, 0, 1, true) || !fill(r, d, args)) return false;
    *out = (struct val){.kind = V_DICT, .taint = args->n && args->at[0].taint, .dict = d};
    return true;
}

static bool g_namespace(struct run *r, const struct args *args, struct val *out)
{
    if (!g_dict(r, args, out)) return false;
    for (size_t i = 0; i < out->dict->n; i++) {
        const struct val *k = &out->dict->at[i].key;
        if (k->kind == V_STR && k->s->n && k->s->at[0] == '_')
            return sy_tpl_fail(r, SY_EARG, "a namespace cannot have an attribute that begins with '_', found '%.*s'",
                               (int)(k->s->n < 60 ? k->s->n : 60), k->s->at);
    }
    out->kind = V_NS;
    return true;
}

static bool g_cycler(struct run *r, const struct args *args, struct val *out)
{
    if (!need(r, "cycler", args, 1, SIZE_MAX, false)) return false;
    struct cycler *c = sy_tpl_get(r, 1, sizeof *c);
    if (!c || !(c->items = sy_tpl_list(r, args->n))) return false;
    memcpy(c->items->at, args->at, args->n * sizeof *args->at);
    *out = (struct val){.kind = V_CYCLER, .cycler = c};
    return true;
}

static bool g_joiner(struct run *r, const struct args *args, struct val *out)
{
    static const struct str comma = {.at = ", ", .n = 2, .n_char = 2, .trust = TRUSTED};
    static const char *const param[SY_TPL_PARAM_MAX] = {"sep"};
    struct val sep;
    struct joiner *j = sy_tpl_get(r, 1, sizeof *j);
    if (!j || !sy_tpl_bind(r, "joiner", param, 0, args, &sep)) return false;
    j->sep = &comma;
    if (sep.kind != V_MISSING && !sy_tpl_str(r, &sep, &j->sep)) return false;
    *out = (struct val){.kind = V_JOINER, .joiner = j};
    return true;
}

static bool g_lipsum(struct run *r, const struct args *args, struct val *out)
{
    (void)args, (void)out;
    return sy_tpl_fail(r, SY_ENOSUP,
                       "lipsum() is not supported: a prompt must not differ from one rendering to the next");
}

static bool g_raise_exception(struct run *r, const struct args *args, struct val *out)
{
    static const char *const param[SY_TPL_PARAM_MAX] = {"message"};
    const struct str *s;
    (void)out;
    struct val message;
    if (!sy_tpl_bind(r, "raise_exception", param, 1, args, &message) || !sy_tpl_str(r, &message, &s)) return false;
    return sy_tpl_fail(r, SY_EARG, "%.*s", (int)(s->n < 380 ? s->n : 380), s->at);
}

static bool g_strftime_now(struct run *r, const struct args *args, struct val *out)
{
    static const char *const param[SY_TPL_PARAM_MAX] = {"format"};
    struct val fmt;
    if (!sy_tpl_bind(r, "strftime_now", param, 1, args, &fmt)) return false;
    if (fmt.kind != V_STR)
        return sy_tpl_fail(r, SY_EARG, "strftime_now: expected a string, found '%s'", sy_tpl_type(&fmt));
    return sy_tpl_strftime(r, fmt.s, out);
}

const struct func *sy_tpl_global(const char *name, size_t n)
{
    static const struct func funcs[] = {
        {"range", g_range},
        {"dict", g_dict},
        {"namespace", g_namespace},
        {"cycler", g_cycler},
        {"joiner", g_joiner},
        {"lipsum", g_lipsum},
        {"raise_exception", g_raise_exception},
        {"strftime_now", g_strftime_now},
    };
    for (size_t i = 0; i < SY_COUNT(funcs); i++)
        if (strlen(funcs[i].name) == n && !memcmp(funcs[i].name, name, n)) return &funcs[i];
    return NULL;
}
