/* Parses bytes as JSON, strictly and laxly, and walks what came out: by kind, by reader, by quoting. */
#include <math.h>
#include <string.h>

#include "base/json.h"

static volatile unsigned sink; /* what was read must be used, or it is not read */

static void walk(const struct sy_json *j, int depth, struct sy_buf *out)
{
    size_t n = 0;
    const char *text = sy_json_text_n(j, &n), *key;
    const struct sy_json *v;
    int kinds = sy_json_is_object(j) + sy_json_is_array(j) + sy_json_is_text(j) + sy_json_is_number(j) +
                sy_json_is_bool(j) + sy_json_is_null(j);
    sy_assert(kinds == 1);
    if (text) {
        sy_buf_clear(out);
        sy_json_quote(out, text, n);
        struct sy_json *again = NULL;
        size_t n_again = 0;
        sy_assert(sy_json_parse(sy_env_default(), out->at, out->len, false, &again, NULL) == SY_OK);
        const char *same = sy_json_text_n(again, &n_again);
        sy_assert(n_again == n && !memcmp(same, text, n));
        sy_json_free(again);
    }
    if (sy_json_is_number(j)) sy_assert(isfinite(sy_json_number(j, 0)));
    if (depth > 3000) return;
    for (size_t i = 0; sy_json_is_array(j) && i < sy_json_len(j); i++) walk(sy_json_at(j, i), depth + 1, out);
    for (void *it = NULL; sy_json_is_object(j) && (it = sy_json_next(j, it, &key, &v));) {
        sy_assert(sy_json_get(j, key) == v);
        walk(v, depth + 1, out);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    for (int lax = 0; lax < 2; lax++) {
        struct sy_json *j = NULL;
        struct sy_err err = {0};
        sy_status st = sy_json_parse(sy_env_default(), (const char *)data, n, lax, &j, &err);
        sy_assert((st == SY_OK) == (j != NULL) && (st == SY_OK || err.msg[0]));
        if (st) continue;
        struct sy_buf out;
        sy_buf_init(&out, sy_env_default(), 0);
        walk(j, 0, &out);
        sy_buf_release(&out);
        struct sy_jread r = {j, "x.json", &err, SY_OK};
        int64_t i = sy_jread_int(&r, "i", -5, 5);
        double d = sy_jread_num(&r, "d", 0, 1);
        sy_assert(i >= -5 && i <= 5 && d >= 0 && d <= 1);
        sink = (unsigned)strlen(sy_jread_text_or(&r, "s", "")) + sy_jread_bool_or(&r, "b", true);
        sy_json_free(j);
    }
    return 0;
}
