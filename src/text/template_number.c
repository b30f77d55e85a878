/* template_number.c - arithmetic as Python does it: integers exact as far as 128 bits reach (an error beyond), floor
 * division, % with the divisor's sign, true division always a float. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_int.h"

static const char *op_name(enum token_kind op)
{
    switch (op) {
    case T_ADD: return "+";
    case T_SUB: return "-";
    case T_MUL: return "*";
    case T_DIV: return "/";
    case T_FLOORDIV: return "//";
    case T_MOD: return "%";
    default: return "**";
    }
}

static bool too_big(struct run *r) { return sy_tpl_fail(r, SY_ENOSUP, "an integer is beyond 128 bits"); }
static bool by_zero(struct run *r) { return sy_tpl_fail(r, SY_EARG, "division or modulo by zero"); }

static bool is_whole(const struct val *v) { return v->kind == V_INT || v->kind == V_BOOL; }
static __int128 whole(const struct val *v) { return v->kind == V_BOOL ? v->b : v->i; }

bool sy_tpl_as_float(const struct val *v, double *out)
{
    if (v->kind == V_FLOAT) *out = v->f;
    else if (is_whole(v)) *out = (double)whole(v);
    else return false;
    return true;
}

bool sy_tpl_trunc(double f, __int128 *out)
{
    if (!(fabs(f) < 0x1p127)) return false;
    *out = (__int128)f;
    return true;
}

static bool int_power(struct run *r, __int128 base, __int128 exp, struct val *out)
{
    __int128 v = 1;
    if (exp < 0) {
        if (base == 0) return by_zero(r);
        *out = sy_tpl_float(pow((double)base, (double)exp), false);
        return true;
    }
    if (base == 0 || base == 1) {
        *out = sy_tpl_int(exp == 0 ? 1 : base, false);
        return true;
    }
    if (base == -1) {
        *out = sy_tpl_int(exp % 2 ? -1 : 1, false);
        return true;
    }
    for (; exp > 0; exp--) /* at most 127 rounds: |base| > 1 */
        if (__builtin_mul_overflow(v, base, &v)) return too_big(r);
    *out = sy_tpl_int(v, false);
    return true;
}

static bool int_arith(struct run *r, enum token_kind op, __int128 a, __int128 b, struct val *out)
{
    __int128 v = 0;
    bool over = false;
    switch (op) {
    case T_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case T_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case T_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case T_DIV:
        if (b == 0) return by_zero(r);
        *out = sy_tpl_float((double)a / (double)b, false);
        return true;
    case T_FLOORDIV:
    case T_MOD:
        if (b == 0) return by_zero(r);
        if (b == -1) { /* the one quotient that may not fit */
            over = op == T_FLOORDIV && __builtin_sub_overflow((__int128)0, a, &v);
            break;
        }
        v = op == T_MOD ? a % b : a / b;
        if (a % b != 0 && ((a % b < 0) != (b < 0))) v += op == T_MOD ? b : -1;
        break;
    default: return int_power(r, a, b, out);
    }
    *out = sy_tpl_int(v, false);
    return !over || too_big(r);
}

static bool float_arith(struct run *r, enum token_kind op, double a, double b, struct val *out)
{
    double v, mod;
    switch (op) {
    case T_ADD: v = a + b; break;
    case T_SUB: v = a - b; break;
    case T_MUL: v = a * b; break;
    case T_DIV:
        if (b == 0) return by_zero(r);
        v = a / b;
        break;
    case T_FLOORDIV:
    case T_MOD:
        if (b == 0) return by_zero(r);
        mod = fmod(a, b);
        v = (a - mod) / b;
        if (mod == 0) mod = copysign(0, b);
        else if ((b < 0) != (mod < 0)) {
            mod += b;
            v -= 1;
        }
        if (op == T_MOD) v = mod;
        else v = v == 0 ? copysign(0, a / b) : v - floor(v) > 0.5 ? floor(v) + 1 : floor(v);
        break;
    default:
        if (a == 0 && b < 0) return by_zero(r);
        if (a < 0 && b != floor(b)) return sy_tpl_fail(r, SY_ENOSUP, "a power is a complex number");
        v = pow(a, b);
        if (isinf(v) && isfinite(a) && isfinite(b)) return sy_tpl_fail(r, SY_EARG, "a power is out of range");
    }
    *out = sy_tpl_float(v, false);
    return true;
}

/* str * n, list * n, tuple * n. */
static bool repeat(struct run *r, const struct val *v, const struct val *times, struct val *out)
{
    int64_t n;
    if (!sy_tpl_index(times, &n) || n < 0) n = 0;
    if (v->kind == V_STR) {
        struct store *st = sy_tpl_store(r, 0);
        return st && sy_tpl_add_fill(r, st, v->s, n) && sy_tpl_took(r, st, out);
    }
    size_t len = v->list->n;
    if (len && (uint64_t)n > SY_TPL_RANGE_MAX / len)
        return sy_tpl_fail(r, SY_ENOMEM, "a list repeated to more than %d items", SY_TPL_RANGE_MAX);
    struct list *l = sy_tpl_list(r, len * (size_t)n);
    if (!l) return false;
    for (size_t i = 0; i < l->n; i++) l->at[i] = v->list->at[i % len];
    *out = sy_tpl_of_list(v->kind, l, v->taint || times->taint);
    return true;
}

/* + of texts, lists, tuples. A text that |safe or |escape made escapes what it is joined to. */
static bool join(struct run *r, const struct val *a, const struct val *b, struct val *out)
{
    if (a->kind == V_STR) {
        struct val x = *a, y = *b;
        bool markup = a->s->markup || b->s->markup;
        if (markup && (!sy_tpl_escape(r, a->s, &x) || !sy_tpl_escape(r, b->s, &y))) return false;
        const struct str *s = sy_tpl_concat(r, x.s, y.s);
        if (s && markup) s = sy_tpl_marked(r, s, true);
        if (s) *out = sy_tpl_of_str(s);
        return s != NULL;
    }
    struct list *l = sy_tpl_list(r, a->list->n + b->list->n);
    if (!l || !sy_tpl_spend(r, l->n / 8)) return false;
    if (a->list->n) memcpy(l->at, a->list->at, a->list->n * sizeof *l->at);
    if (b->list->n) memcpy(l->at + a->list->n, b->list->at, b->list->n * sizeof *l->at);
    *out = sy_tpl_of_list(a->kind, l, a->taint || b->taint);
    return true;
}

static bool is_sequence(const struct val *v) { return v->kind == V_STR || v->kind == V_LIST || v->kind == V_TUPLE; }

bool sy_tpl_arith(struct run *r, enum token_kind op, const struct val *a, const struct val *b, struct val *out)
{
    double x, y;
    bool taint = a->taint || b->taint;
    if (is_whole(a) && is_whole(b)) {
        if (!int_arith(r, op, whole(a), whole(b), out)) return false;
        out->taint = taint;
        return true;
    }
    if (sy_tpl_as_float(a, &x) && sy_tpl_as_float(b, &y)) {
        if (!float_arith(r, op, x, y, out)) return false;
        out->taint = taint;
        return true;
    }
    if (op == T_MOD && a->kind == V_STR) return sy_tpl_percent(r, a->s, b, out);
    if (op == T_ADD && a->kind == b->kind && is_sequence(a)) return join(r, a, b, out);
    if (op == T_MUL && is_sequence(a) && is_whole(b)) return repeat(r, a, b, out);
    if (op == T_MUL && is_sequence(b) && is_whole(a)) return repeat(r, b, a, out);
    if (a->kind == V_UNDEF || b->kind == V_UNDEF) return sy_tpl_undef_fail(r, a->kind == V_UNDEF ? a : b);
    return sy_tpl_fail(r, SY_EARG, "unsupported operand types for %s: '%s' and '%s'", op_name(op), sy_tpl_type(a),
                       sy_tpl_type(b));
}

bool sy_tpl_negate(struct run *r, const struct val *v, bool minus, struct val *out)
{
    if (v->kind == V_UNDEF) return sy_tpl_undef_fail(r, v);
    if (v->kind == V_FLOAT) {
        *out = sy_tpl_float(minus ? -v->f : v->f, v->taint);
        return true;
    }
    if (!is_whole(v)) return sy_tpl_fail(r, SY_EARG, "a %s has no sign", sy_tpl_type(v));
    __int128 i = whole(v);
    if (minus && __builtin_sub_overflow((__int128)0, i, &i)) return too_big(r);
    *out = sy_tpl_int(i, v->taint);
    return true;
}

static bool round_down(struct run *r, __int128 v, int64_t zeros, __int128 *out)
{
    __int128 unit = 1;
    for (; zeros > 0; zeros--)
        if (__builtin_mul_overflow(unit, (__int128)10, &unit)) {
            *out = 0;
            return true;
        }
    __int128 rest = v % unit, down = v - rest;
    __int128 size = rest < 0 ? -rest : rest, half = unit / 2;
    bool up = size > half || (size == half && unit > 1 && (down / unit) % 2 != 0);
    *out = down;
    return !up || !__builtin_add_overflow(down, rest < 0 ? -unit : unit, out) || too_big(r);
}

bool sy_tpl_round(struct run *r, const struct val *v, int64_t digits, struct val *out)
{
    if (is_whole(v)) {
        __int128 i = whole(v);
        if (digits < 0 && !round_down(r, i, -digits, &i)) return false;
        *out = sy_tpl_int(i, v->taint);
        return true;
    }
    if (v->kind != V_FLOAT) return sy_tpl_fail(r, SY_EARG, "a %s cannot be rounded", sy_tpl_type(v));
    double f = v->f;
    if (isfinite(f) && digits < -308) f = copysign(0, f);
    else if (isfinite(f) && digits < 0) {
        long double unit = powl(10, (long double)-digits);
        f = (double)(rintl((long double)f / unit) * unit);
    } else if (isfinite(f) && digits < 324) {
        char text[700]; /* 309 digits, the point, 323 decimals: correctly rounded, ties to even */
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        f = strtod(text, NULL);
    }
    *out = sy_tpl_float(f, v->taint);
    return true;
}

/* ---- reading -------------------------------------------------------- */

static void trim(const char **s, size_t *n)
{
    *n = sy_tpl_trim_end(*s, *n);
    while (*n) {
        uint32_t cp;
        size_t len = sy_utf8_next(*s, *n, &cp);
        if (!sy_tpl_is_space(cp)) return;
        *s += len;
        *n -= len;
    }
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

bool sy_tpl_parse_int(const char *s, size_t n, unsigned base, __int128 *out)
{
    trim(&s, &n);
    bool minus = n && *s == '-';
    if (n && (*s == '-' || *s == '+')) s++, n--;
    if (n > 2 && s[0] == '0') {
        char mark = s[1] | 32;
        unsigned own = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (own && (base == own || base == 0)) {
            base = own;
            s += 2;
            n -= 2;
            if (*s == '_') s++, n--;
        }
    }
    bool zero_only = base == 0 && n > 1 && s[0] == '0'; /* base 0 has no leading zeros but in 000 */
    if (base == 0) base = 10;
    __int128 v = 0;
    bool digit = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && digit) {
            digit = false;
            continue;
        }
        int d = digit_value(s[i]);
        if (d >= (int)base || (zero_only && d)) return false;
        if (__builtin_mul_overflow(v, (__int128)base, &v) || __builtin_add_overflow(v, (__int128)d, &v)) return false;
        digit = true;
    }
    *out = minus ? -v : v;
    return digit;
}

bool sy_tpl_parse_float(const char *s, size_t n, double *out)
{
    char text[1024], *end;
    size_t len = 0;
    trim(&s, &n);
    if (!n || n >= sizeof text) return false;
    for (size_t i = 0; i < n; i++) {
        bool under = s[i] == '_';
        if (under && (!i || i + 1 == n || digit_value(s[i - 1]) > 9 || digit_value(s[i + 1]) > 9)) return false;
        if (!under && (s[i] | 32) == 'x') return false; /* strtod would read hexadecimal */
        if (s[i] == '(' || !s[i]) return false;
        if (!under) text[len++] = s[i];
    }
    text[len] = 0;
    *out = strtod(text, &end);
    return end == text + len;
}
