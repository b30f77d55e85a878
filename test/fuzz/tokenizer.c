/* A tokenizer.json, a NUL and a text: loads it, encodes the text in every way, decodes what came out. Input whose
 * first byte is below 10 is a text for one of the fixtures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

static struct sy_tokenizer *open_json(const char *s, size_t n)
{
    struct sy_json *j = NULL;
    struct sy_tokenizer *t = NULL;
    struct sy_err err = {0};
    if (sy_json_parse(sy_env_default(), s, n, false, &j, &err) != SY_OK) return NULL;
    sy_status st = sy_tokenizer_from_json(sy_env_default(), j, j, "fuzz", &t, &err);
    sy_assert((st == SY_OK) == (t != NULL) && (st == SY_OK || (err.code == st && err.msg[0])));
    sy_json_free(j);
    return t;
}

static const struct sy_tokenizer *fixture(unsigned i)
{
    static const char *const names[10] = {
        "bytelevel_deepseek", "bytelevel_gpt4", "bytelevel_llama3", "bytelevel_o200k",         "bytelevel_qwen",
        "bytelevel_qwen35",   "spm_bpe_gemma",  "spm_bpe_llama2",   "spm_bpe_metaspace_first", "unigram",
    };
    static struct sy_tokenizer *open[10];
    if (open[i]) return open[i];
    char path[200], *text;
    size_t n;
    snprintf(path, sizeof path, "test/golden/tokenizers/%s/tokenizer.json", names[i]);
    if (sy_file_read(sy_env_default(), path, 1 << 24, &text, &n, NULL) != SY_OK) abort();
    open[i] = open_json(text, n);
    sy_delete(sy_env_default(), text);
    return open[i];
}

static void decode(const struct sy_tokenizer *t, const struct sy_ids *ids, bool skip)
{
    struct sy_buf whole, part;
    struct sy_detok k;
    sy_buf_init(&whole, sy_env_default(), 0);
    sy_buf_init(&part, sy_env_default(), 0);
    sy_assert(sy_tokenizer_decode(t, ids->at, ids->n, skip, &whole, NULL) == SY_OK);
    sy_detok_init(&k, t, skip);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = part.len;
        sy_detok_feed(&k, ids->at[i], &part);
        sy_assert(part.len == before || sy_utf8_valid(part.at + before, part.len - before));
    }
    sy_detok_finish(&k, &part);
    /* A run of byte tokens beyond what the stream holds back may differ. */
    if (ids->n <= sizeof k.held)
        sy_assert(whole.len == part.len && (!whole.len || !memcmp(whole.at, part.at, whole.len)));
    sy_buf_release(&whole);
    sy_buf_release(&part);
}

static void encode(const struct sy_tokenizer *t, const char *s, size_t n)
{
    struct sy_ids a, b;
    struct sy_err err = {0};
    sy_ids_init(&a, sy_env_default());
    sy_ids_init(&b, sy_env_default());
    for (unsigned flags = 0; flags < 4; flags++) {
        a.n = 0;
        if (sy_tokenizer_encode(t, s, n, flags, &a, &err) != SY_OK) continue;
        for (size_t i = 0; i < a.n; i++) sy_assert(sy_tokenizer_token(t, a.at[i], NULL));
        decode(t, &a, flags & 1);
    }
    /* A trusted text is the text; an untrusted one is plain. */
    for (unsigned trusted = 0; trusted < 2; trusted++) {
        struct sy_span whole = {0, n, trusted};
        a.n = b.n = 0;
        if (sy_tokenizer_encode(t, s, n, trusted ? 0 : SY_ENCODE_PLAIN, &a, &err) != SY_OK) continue;
        sy_assert(sy_tokenizer_encode_spans(t, s, &whole, 1, 0, &b, &err) == SY_OK);
        sy_assert(a.n == b.n && (!a.n || !memcmp(a.at, b.at, a.n * sizeof *a.at)));
    }
    struct sy_span thirds[3] = {{0, n / 3, true}, {n / 3, n - n / 3, false}, {n - n / 3, n, true}};
    a.n = 0;
    (void)(sy_tokenizer_encode_spans(t, s, thirds, 3, 0, &a, &err) == SY_OK);
    sy_ids_release(&a);
    sy_ids_release(&b);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    const char *s = (const char *)data;
    if (n && data[0] < 10) {
        encode(fixture(data[0]), s + 1, n - 1);
        return 0;
    }
    const char *end = n ? memchr(s, 0, n) : NULL;
    size_t n_json = end ? (size_t)(end - s) : n;
    struct sy_tokenizer *t = open_json(s, n_json);
    if (t) encode(t, end ? end + 1 : "", end ? n - n_json - 1 : 0);
    sy_tokenizer_free(t);
    return 0;
}
