/* template_test.c - jinja2's tests: what may stand behind 'is' and be named to select and reject. */
#include <string.h>

#include "text/template_int.h"

static bool remainder_is(struct run *r, const struct val *v, __int128 by, __int128 want, bool *out)
{
    struct val divisor = sy_tpl_int(by, false), rest, expected = sy_tpl_int(want, false);
    return sy_tpl_arith(r, T_MOD, v, &divisor, &rest) && sy_tpl_equal(r, &rest, &expected, out);
}
static bool t_odd(struct run *r, const struct val *arg, bool *out) { return remainder_is(r, arg, 2, 1, out); }
static bool t_even(struct run *r, const struct val *arg, bool *out) { return remainder_is(r, arg, 2, 0, out); }

static bool t_divisibleby(struct run *r, const struct val *arg, bool *out)
{
    struct val rest, zero = sy_tpl_int(0, false);
    return sy_tpl_arith(r, T_MOD, &arg[0], &arg[1], &rest) && sy_tpl_equal(r, &rest, &zero, out);
}

#define KIND_TEST(name, condition)                                                                                   \
    static bool t_##name(struct run *r, const struct val *arg, bool *out)                                            \
    {                                                                                                                \
        const struct val *v = &arg[0];                                                                               \
        (void)r;                                                                                                     \
        *out = (condition);                                                                                          \
        return true;                                                                                                 \
    }
KIND_TEST(defined, v->kind != V_UNDEF)
KIND_TEST(undefined, v->kind == V_UNDEF)
KIND_TEST(none, v->kind == V_NONE)
KIND_TEST(boolean, v->kind == V_BOOL)
KIND_TEST(false, v->kind == V_BOOL && !v->b)
KIND_TEST(true, v->kind == V_BOOL && v->b)
KIND_TEST(integer, v->kind == V_INT)
KIND_TEST(float, v->kind == V_FLOAT)
KIND_TEST(string, v->kind == V_STR)
KIND_TEST(mapping, v->kind == V_DICT)
KIND_TEST(number, v->kind == V_INT || v->kind == V_FLOAT || v->kind == V_BOOL)
KIND_TEST(sequence, (v->kind >= V_STR && v->kind <= V_DICT) || v->kind == V_RANGE || v->kind == V_UNDEF)
KIND_TEST(iterable, sy_tpl_is_iterable(v) || v->kind == V_LOOP)
KIND_TEST(callable, (v->kind >= V_MACRO && v->kind <= V_LOOP) || v->kind == V_JOINER || v->kind == V_UNDEF)
KIND_TEST(escaped, v->kind == V_STR && v->s->markup)
KIND_TEST(filter,
          v->kind == V_STR && (sy_tpl_filter_find(v->s->at, v->s->n) || sy_tpl_refused_filter(v->s->at, v->s->n)))
KIND_TEST(test, v->kind == V_STR && sy_tpl_test_find(v->s->at, v->s->n))

static bool has_case(struct run *r, const struct val *v, const char *which, bool *out)
{
    const struct str *s;
    if (!sy_tpl_str(r, v, &s)) return false;
    sy_tpl_cost(r, s->n / 4);
    *out = sy_tpl_is_class(s, which);
    return true;
}
static bool t_lower(struct run *r, const struct val *arg, bool *out) { return has_case(r, arg, "islower", out); }
static bool t_upper(struct run *r, const struct val *arg, bool *out) { return has_case(r, arg, "isupper", out); }

/* Python's 'is': None, booleans, small integers, the same object; equal texts may be the same one and mostly are. */
static bool t_sameas(struct run *r, const struct val *arg, bool *out)
{
    const struct val *a = &arg[0], *b = &arg[1];
    *out = false;
    if (a->kind != b->kind) return true;
    if (a->kind == V_UNDEF || a->kind == V_FLOAT) return true;
    if (a->kind == V_LIST || a->kind == V_TUPLE) *out = a->list == b->list;
    else if (a->kind == V_DICT) *out = a->dict == b->dict;
    else return sy_tpl_equal(r, a, b, out);
    return true;
}

static bool t_in(struct run *r, const struct val *arg, bool *out)
{
    return sy_tpl_contains(r, &arg[0], &arg[1], out);
}

#define COMPARE_TEST(name, op)                                                                                       \
    static bool t_##name(struct run *r, const struct val *arg, bool *out)                                            \
    {                                                                                                                \
        return sy_tpl_compare(r, op, &arg[0], &arg[1], out);                                                         \
    }
COMPARE_TEST(eq, CMP_EQ)
COMPARE_TEST(ne, CMP_NE)
COMPARE_TEST(lt, CMP_LT)
COMPARE_TEST(le, CMP_LE)
COMPARE_TEST(gt, CMP_GT)
COMPARE_TEST(ge, CMP_GE)

static const struct test tests[] = {
    {"odd", t_odd, {0}, 0},
    {"even", t_even, {0}, 0},
    {"divisibleby", t_divisibleby, {"num"}, 1},
    {"defined", t_defined, {0}, 0},
    {"undefined", t_undefined, {0}, 0},
    {"filter", t_filter, {0}, 0},
    {"test", t_test, {0}, 0},
    {"none", t_none, {0}, 0},
    {"boolean", t_boolean, {0}, 0},
    {"false", t_false, {0}, 0},
    {"true", t_true, {0}, 0},
    {"integer", t_integer, {0}, 0},
    {"float", t_float, {0}, 0},
    {"lower", t_lower, {0}, 0},
    {"upper", t_upper, {0}, 0},
    {"string", t_string, {0}, 0},
    {"mapping", t_mapping, {0}, 0},
    {"number", t_number, {0}, 0},
    {"sequence", t_sequence, {0}, 0},
    {"iterable", t_iterable, {0}, 0},
    {"callable", t_callable, {0}, 0},
    {"sameas", t_sameas, {"other"}, 1},
    {"escaped", t_escaped, {0}, 0},
    {"in", t_in, {"seq"}, 1},
    {"==", t_eq, {""}, 1},
    {"eq", t_eq, {""}, 1},
    {"equalto", t_eq, {""}, 1},
    {"!=", t_ne, {""}, 1},
    {"ne", t_ne, {""}, 1},
    {">", t_gt, {""}, 1},
    {"gt", t_gt, {""}, 1},
    {"greaterthan", t_gt, {""}, 1},
    {"ge", t_ge, {""}, 1},
    {">=", t_ge, {""}, 1},
    {"<", t_lt, {""}, 1},
    {"lt", t_lt, {""}, 1},
    {"lessthan", t_lt, {""}, 1},
    {"<=", t_le, {""}, 1},
    {"le", t_le, {""}, 1},
};

const struct test *sy_tpl_test_find(const char *name, size_t n)
{
    for (size_t i = 0; i < SY_COUNT(tests); i++)
        if (strlen(tests[i].name) == n && !memcmp(tests[i].name, name, n)) return &tests[i];
    return NULL;
}

bool sy_tpl_test_call(struct run *r, const struct test *t, const struct val *v, const struct args *args, bool *out)
{
    struct val arg[1 + SY_TPL_PARAM_MAX] = {*v};
    const char *const param[SY_TPL_PARAM_MAX] = {t->param[0], t->param[1]};
    return sy_tpl_spend(r, 1) && sy_tpl_bind(r, t->name, param, t->n_required, args, arg + 1) && t->call(r, arg, out);
}
