/* Running regular expressions. The rewriting from Oniguruma's syntax is in rx_rewrite.c. */
#include "text/rx.h"

#include <string.h>

#include "text/rx_rewrite.h"

enum {
    PATTERN_BYTES_MAX = 1 << 16,
    HEAP_KIB_MAX = 256 << 10, /* of the interpreter's backtracking frames  */
    JIT_STACK_MAX = 64 << 20,
    WINDOW_WORK = 1 << 22, /* start positions x text length per PCRE2 call */
    WINDOW_MIN = 64,
};

static void *pcre_get(size_t n, void *env) { return sy_new(env, n); }
static void pcre_free(void *p, void *env) { sy_delete(env, p); }

sy_status sy_rx_env_init(struct rx_env *e, const struct sy_env *env, struct sy_err *err)
{
    *e = (struct rx_env){.env = env};
    e->general = pcre2_general_context_create(pcre_get, pcre_free, (void *)(uintptr_t)env);
    e->compile = e->general ? pcre2_compile_context_create(e->general) : NULL;
    if (!e->compile) {
        sy_rx_env_release(e);
        return sy_fail(err, SY_ENOMEM, "no memory for regular expressions");
    }
    pcre2_set_newline(e->compile, PCRE2_NEWLINE_LF);
    pcre2_set_bsr(e->compile, PCRE2_BSR_UNICODE);
    return SY_OK;
}

void sy_rx_env_release(struct rx_env *e)
{
    if (e->compile) pcre2_compile_context_free(e->compile);
    if (e->general) pcre2_general_context_free(e->general);
    *e = (struct rx_env){0};
}

static sy_status compile_failed(const char *pattern, size_t n, int code, struct sy_err *err)
{
    if (code == PCRE2_ERROR_HEAP_FAILED) return sy_fail(err, SY_ENOMEM, "no memory for a regular expression");
    PCRE2_UCHAR why[120];
    pcre2_get_error_message(code, why, sizeof why);
    return sy_fail(err, SY_ENOSUP, "regular expression '%.*s': %s", (int)(n < 160 ? n : 160), pattern, (char *)why);
}

sy_status sy_rx_compile(struct rx_env *e, const char *pattern, size_t n, struct rx *out, struct sy_err *err)
{
    if (n == 0 || n > PATTERN_BYTES_MAX)
        return sy_fail(err, SY_EFORMAT, "a regular expression of %zu bytes: expected 1 to %d", n, PATTERN_BYTES_MAX);
    struct sy_buf text;
    sy_buf_init(&text, e->env, 8 * PATTERN_BYTES_MAX);
    sy_status st = sy_rx_rewrite(e, pattern, n, &text, err);
    if (st == SY_OK) {
        int code;
        PCRE2_SIZE where;
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
        pcre2_code *c = pcre2_compile((PCRE2_SPTR)text.at, text.len, options, &code, &where, e->compile);
        if (c) *out = (struct rx){.code = c, .jit = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE) == 0};
        else st = compile_failed(pattern, n, code, err);
    }
    sy_buf_release(&text);
    return st;
}

void sy_rx_literal(struct rx *rx, const char *text, size_t n) { *rx = (struct rx){.text = text, .n_text = n}; }

void sy_rx_release(struct rx *rx)
{
    if (rx->code) pcre2_code_free(rx->code);
    *rx = (struct rx){0};
}

sy_status sy_rx_work_init(struct rx_work *w, const struct rx_env *e, size_t n_text, struct sy_err *err)
{
    *w = (struct rx_work){.env = e};
    w->data = pcre2_match_data_create(1, e->general);
    w->context = pcre2_match_context_create(e->general);
    if (!w->data || !w->context) {
        sy_rx_work_release(w);
        return sy_fail(err, SY_ENOMEM, "no memory for matching");
    }
    /* A published pattern gives back at most the run it has taken: a few steps per character. */
    size_t steps = 20000 + 8 * n_text;
    pcre2_set_match_limit(w->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    pcre2_set_heap_limit(w->context, HEAP_KIB_MAX);
    w->deadline_ns = sy_now_ns(e->env) + 2000000000u + 20000u * (uint64_t)n_text;
    return SY_OK;
}

void sy_rx_work_release(struct rx_work *w)
{
    if (w->data) pcre2_match_data_free(w->data);
    if (w->context) pcre2_match_context_free(w->context);
    if (w->stack) pcre2_jit_stack_free(w->stack);
    *w = (struct rx_work){0};
}

static int match_at(struct rx_work *w, const struct rx *rx, const char *s, size_t n, size_t at)
{
    PCRE2_SPTR text = (PCRE2_SPTR)s;
    if (!rx->jit) return pcre2_match(rx->code, text, n, at, PCRE2_NO_UTF_CHECK, w->data, w->context);
    int rc = pcre2_jit_match(rx->code, text, n, at, PCRE2_NO_UTF_CHECK, w->data, w->context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || w->stack) return rc;
    w->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, w->env->general);
    if (!w->stack) return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return pcre2_jit_match(rx->code, text, n, at, PCRE2_NO_UTF_CHECK, w->data, w->context);
}

static sy_status match_failed(int rc, size_t n, struct sy_err *err)
{
    if (rc == PCRE2_ERROR_NOMEMORY) return sy_fail(err, SY_ENOMEM, "no memory for matching");
    PCRE2_UCHAR why[120];
    pcre2_get_error_message(rc, why, sizeof why);
    return sy_fail(err, SY_ENOSUP, "the tokenizer's regular expression cannot split a text of %zu bytes: %s", n,
                   (char *)why);
}

/* One search, in windows of start positions: a pattern that scans far and fails would otherwise take quadratic time
 * within a single call, where no clock can be looked at. */
static sy_status search(struct rx_work *w, const struct rx_walk *k, bool *found, size_t *lo, size_t *hi,
                        struct sy_err *err)
{
    *found = false;
    for (size_t at = k->at; at <= k->n;) {
        size_t rest = k->n - at, window = WINDOW_WORK / (rest + 1);
        if (window < WINDOW_MIN) window = WINDOW_MIN;
        pcre2_set_offset_limit(w->context, window < rest ? at + window : PCRE2_UNSET);
        int rc = match_at(w, k->rx, k->s, k->n, at);
        if (rc >= 0) {
            const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->data);
            if (o[0] < k->at || o[1] < o[0] || o[1] > k->n)
                return sy_fail(err, SY_ENOSUP, "the tokenizer's regular expression moves a match backwards");
            *found = true;
            *lo = o[0];
            *hi = o[1];
        } else if (rc != PCRE2_ERROR_NOMATCH) {
            return match_failed(rc, k->n, err);
        }
        if (++w->calls % 64 == 0 && sy_now_ns(w->env->env) > w->deadline_ns)
            return sy_fail(err, SY_ENOSUP, "the tokenizer's regular expression takes too long on a text of %zu bytes",
                           k->n);
        if (*found || window >= rest) break;
        at += window + 1;
        while (at < k->n && ((unsigned char)k->s[at] & 0xc0) == 0x80) at++;
    }
    return SY_OK;
}

static size_t next_char(const char *s, size_t n, size_t at)
{
    at++;
    while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80) at++;
    return at;
}

sy_status sy_rx_next(struct rx_work *w, struct rx_walk *k, bool *found, size_t *lo, size_t *hi, struct sy_err *err)
{
    if (!k->rx->code) {
        const char *from = k->s + k->at;
        size_t rest = k->n - k->at;
        const char *p =
            k->rx->n_text == 1 ? memchr(from, k->rx->text[0], rest) : memmem(from, rest, k->rx->text, k->rx->n_text);
        *found = p != NULL;
        if (!p) return SY_OK;
        *lo = (size_t)(p - k->s);
        *hi = k->at = *lo + k->rx->n_text;
        return SY_OK;
    }
    while (k->at <= k->n) {
        sy_status st = search(w, k, found, lo, hi, err);
        if (st != SY_OK || !*found) return st;
        if (*lo == *hi && k->any && k->last_end == *hi) {
            k->at = next_char(k->s, k->n, *hi);
            continue;
        }
        k->at = k->last_end = *hi;
        k->any = true;
        return SY_OK;
    }
    *found = false;
    return SY_OK;
}
