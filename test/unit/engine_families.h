/* engine_families.h - a model of any family in a temporary folder: the config and the shapes are those of
 * test/golden/families, the weights are drawn from their names (as test/e2e/support/seeded.py draws them, by another
 * generator). */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/rng.h"

static inline char *family_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    assert_non_null(f);
    assert_non_null(text);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

static inline void family_write(const char *folder, const char *name, const struct sy_buf *a, const struct sy_buf *b)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_false(a->failed || (b && b->failed));
    uint64_t n = a->len;
    if (b) assert_int_equal(fwrite(&n, sizeof n, 1, f), 1);
    assert_int_equal(fwrite(a->at, 1, a->len, f), a->len);
    if (b) assert_int_equal(fwrite(b->at, 1, b->len, f), b->len);
    assert_int_equal(fclose(f), 0);
}

/* "ROWSxCOLS AMPLITUDE [OFFSET]": bfloat16, uniform around the offset; "ROWSxCOLS id N": rows of different numbers
 * below N. Appends the tensor and its entry in the header. */
static inline void family_tensor(const char *name, const char *spec, struct sy_buf *header, struct sy_buf *data)
{
    int64_t n = 1, last = 1;
    uint64_t key = 0, begin = data->len;
    float size, offset = 0;
    int below;
    for (const char *c = name; *c; c++) key = sy_rng_u64(key, (uint64_t)*c);
    sy_buf_printf(header, "%s\"%s\":{\"shape\":[", header->len > 1 ? "," : "", name);
    for (bool first = true; *spec != ' '; first = false) {
        n *= last = strtol(spec + (*spec == 'x'), (char **)&spec, 10);
        sy_buf_printf(header, "%s%lld", first ? "" : ",", (long long)last);
    }
    bool ids = sscanf(spec, " id %d", &below) == 1;
    if (!ids) assert_true(sscanf(spec, "%f %f", &size, &offset) >= 1);
    for (int64_t i = 0; i < n; i++) {
        if (ids) {
            uint64_t id = (sy_rng_u64(key, (uint64_t)(i / last)) + (uint64_t)(i % last)) % (uint64_t)below;
            sy_buf_add(data, &id, sizeof id);
            continue;
        }
        float x = offset + size * (float)(2 * sy_rng_unit(key, (uint64_t)i) - 1);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t top = (uint16_t)(bits >> 16);
        sy_buf_add(data, &top, sizeof top);
    }
    sy_buf_printf(header, "],\"dtype\":\"%s\",\"data_offsets\":[%llu,%llu]}", ids ? "I64" : "BF16",
                  (unsigned long long)begin, (unsigned long long)data->len);
}

/* The folder of a model of test/golden/families; family_drop() takes it away. */
static inline void family_make(const char *family, char folder[64])
{
    const struct sy_env *env = sy_env_default();
    struct sy_buf config, header, data;
    struct sy_err err;
    struct sy_json *root;
    size_t n;
    sy_buf_init(&config, env, 0);
    sy_buf_init(&header, env, 0);
    sy_buf_init(&data, env, 0);
    char *text = family_read(family, &n);
    if (sy_json_parse(env, text, n, false, &root, &err)) fail_msg("%s", err.msg);
    sy_json_write(&config, sy_json_get(root, "config"));
    sy_buf_printf(&header, "{");
    const char *key;
    const struct sy_json *value;
    for (void *it = NULL; (it = sy_json_next(sy_json_get(root, "tensors"), it, &key, &value));)
        family_tensor(key, sy_json_text(value), &header, &data);
    sy_buf_printf(&header, "}");
    while (header.len % 8) sy_buf_printf(&header, " ");
    strcpy(folder, "/tmp/systole-family-XXXXXX");
    assert_non_null(mkdtemp(folder));
    family_write(folder, "config.json", &config, NULL);
    family_write(folder, "model.safetensors", &header, &data);
    sy_json_free(root);
    free(text);
    sy_buf_release(&config);
    sy_buf_release(&header);
    sy_buf_release(&data);
}

static inline void family_drop(const char *folder)
{
    char path[200];
    static const char *const name[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, name[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}
