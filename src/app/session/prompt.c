/* prompt.c - what the user wrote to token ids. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app/session/session.h"
#include "base/file.h"
#include "engine/chat.h"

enum { IDS_BYTES_MAX = 256 << 20 };

const struct sy_flag sy_flags_ids[] = {
    {.name = "ids", .kind = SY_FLAG_TEXT, .arg = "1,2,3", .help = "token ids instead of text"},
    {.name = "ids-file", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "the same from a file ('-': standard input)"},
    {0},
};

sy_status sy_ids_parse(const char *text, size_t n, const char *what, struct sy_ids *out, struct sy_err *err)
{
    for (size_t i = 0; i < n;) {
        if (isspace((unsigned char)text[i]) || strchr(",[]", text[i])) {
            i++;
            continue;
        }
        int64_t v = 0;
        size_t digits = 0;
        while (i + digits < n && isdigit((unsigned char)text[i + digits]) && digits < 11)
            v = 10 * v + (text[i + digits++] - '0');
        if (!digits || v > INT32_MAX)
            return sy_fail(err, SY_EARG, "%s: expected token ids such as 1,2,3, found '%.*s'", what,
                           (int)(n - i < 20 ? n - i : 20), text + i);
        sy_status st = sy_ids_push(out, (int32_t)v, err);
        if (st) return st;
        i += digits;
    }
    return SY_OK;
}

sy_status sy_ids_from_flags(struct sy_args *a, struct sy_ids *out, bool *given, struct sy_err *err)
{
    const char *text = sy_arg_text(a, "ids"), *path = sy_arg_text(a, "ids-file");
    *given = text || path;
    if (text && path) return sy_fail(err, SY_EARG, "--ids and --ids-file: expected one of them, found both");
    if (!*given) return SY_OK;
    char *whole = NULL;
    size_t n = text ? strlen(text) : 0;
    sy_status st = text ? SY_OK : sy_file_read(&a->app->env, path, IDS_BYTES_MAX, &whole, &n, err);
    if (!st) st = sy_ids_parse(text ? text : whole, n, text ? "--ids" : path, out, err);
    if (!st && !out->n)
        st = sy_fail(err, SY_EARG, "%s: expected at least one token id, found none", text ? "--ids" : path);
    sy_delete(&a->app->env, whole);
    return st;
}

sy_status sy_need_tokenizer(const struct sy_tokenizer *t, const char *path, struct sy_err *err)
{
    return t ? SY_OK
             : sy_fail(err, SY_ENOSUP,
                       "'%s' has no tokenizer: text cannot be read or written, give token ids (--ids)", path);
}

sy_status sy_prompt_raw(const struct sy_engine *e, const char *text, size_t n, struct sy_ids *out, struct sy_err *err)
{
    const struct sy_tokenizer *t = sy_engine_tokenizer(e);
    sy_status st = sy_need_tokenizer(t, sy_checkpoint_path(sy_engine_checkpoint(e)), err);
    return st ? st : sy_text_encode(t, text, n, out, err);
}

void sy_message_add(struct sy_buf *array, const char *role, const char *text, size_t n)
{
    sy_buf_printf(array, "%s{\"role\":\"%s\",\"content\":", array->len ? "," : "", role);
    sy_json_quote(array, text, n);
    sy_buf_char(array, '}');
}

int64_t sy_wall_clock(void)
{
    time_t now = time(NULL);
    struct tm local;
    return (int64_t)now + (localtime_r(&now, &local) ? local.tm_gmtoff : 0);
}

sy_status sy_prompt_chat(const struct sy_engine *e, const struct sy_env *env, const struct sy_buf *array,
                         struct sy_ids *out, struct sy_err *err)
{
    const struct sy_tokenizer *tok = sy_engine_tokenizer(e);
    const struct sy_template *tpl = sy_engine_template(e);
    if (!tpl)
        return sy_fail(err, SY_ENOSUP, "'%s' has no chat template: use 'systole run --raw'",
                       sy_checkpoint_path(sy_engine_checkpoint(e)));
    struct sy_buf text;
    sy_buf_init(&text, env, 0);
    sy_buf_char(&text, '[');
    if (array->len) sy_buf_add(&text, array->at, array->len);
    sy_buf_char(&text, ']');
    struct sy_json *messages = NULL;
    sy_status st = text.failed || array->failed ? sy_fail(err, SY_ENOMEM, "no memory for the conversation")
                                                : sy_json_parse(env, text.at, text.len, false, &messages, err);
    sy_buf_release(&text);
    if (st) return st;
    struct sy_render r = {.messages = messages, .add_generation_prompt = true, .now = sy_wall_clock()};
    sy_chat_tokens(tok, &r);
    st = sy_chat_encode(env, tpl, tok, &r, out, err);
    sy_json_free(messages);
    return st;
}
