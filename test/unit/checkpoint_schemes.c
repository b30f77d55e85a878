/* Weights stored as several tensors: each scheme against vectors made by numpy alone, codes against floats, what is
 * refused and by which words, the n-th allocation failing, and bytes turned over. */
#include "checkpoint_util.h"

#include "base/rng.h"
#include "quant/scheme/scheme.h"

#include <math.h>

static const char *const cases[] = {
    "fp8_block",   "fp8_tensor", "fp8_channel", "int8_channel", "int4_group",     "int4_zero", "int4_order",
    "int8_packed", "int8_zero",  "nvfp4_ct",    "mxfp4_ct",     "nvfp4_modelopt", "nf4",       "nf4_nested",
    "fp4",         "awq",        "gptq4",       "gptq4_order",  "gptq4_v2",       "gptq8",     "mxfp4_experts",
};

struct vec { /* one case in memory */
    char *config, *file;
    size_t n_config, n_file;
};

static char *slurp(const char *name, const char *ext, size_t *n)
{
    char path[256];
    snprintf(path, sizeof path, "test/golden/quantscheme/%s.%s", name, ext);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open '%s' (run the tests from the project's root)", path);
    char *at = malloc(1 << 17);
    assert_non_null(at);
    *n = fread(at, 1, 1 << 17, f);
    fclose(f);
    return at;
}

static struct vec vec_open(const char *name)
{
    struct vec v;
    v.config = slurp(name, "json", &v.n_config);
    v.file = slurp(name, "safetensors", &v.n_file);
    return v;
}

static void vec_free(struct vec *v)
{
    free(v->config);
    free(v->file);
}

/* Writes `to` over the first `from` in the file's header or the config; blanks fill what is left. */
static void replace(char *at, size_t n, const char *from, const char *to)
{
    char *p = memmem(at, n, from, strlen(from));
    if (!p) fail_msg("'%s' is not there", from);
    assert_true(strlen(to) <= strlen(from));
    memset(p, ' ', strlen(from));
    memcpy(p, to, strlen(to));
}

static sy_status open_vec(const struct sy_env *env, const struct vec *v, struct sy_checkpoint **c, struct sy_err *err)
{
    struct sy_bytes config = {"config.json", (unsigned char *)v->config, v->n_config};
    struct sy_bytes file = {"model.safetensors", (unsigned char *)v->file, v->n_file};
    return sy_checkpoint_from_safetensors(env, &config, &file, 1, c, err);
}

static const struct sy_tensor *made_of(const struct sy_checkpoint *c)
{
    const struct sy_tensor *t = sy_checkpoint_find(c, "m.weight");
    return t ? t : sy_checkpoint_find(c, "m");
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static void check_codes(const char *name, const struct sy_tensor *t, int64_t r, const float *want)
{
    const struct sy_affine *a = &t->format->affine;
    int64_t cols = t->dim[t->n_dim - 1];
    uint8_t code[256];
    float scale[16], min[16];
    if (a->bits == 0) return;
    assert_non_null(t->format->row_codes);
    sy_tensor_codes(t, r, code, scale, a->has_min ? min : NULL);
    for (int64_t i = 0; i < cols; i++) {
        assert_true(code[i] >> a->bits == 0);
        float v = scale[i / a->group] * (float)(code[i] - a->zero) + (a->has_min ? min[i / a->group] : 0);
        float size = fabsf(want[i]) + (a->has_min ? fabsf(min[i / a->group]) : 0);
        if (fabsf(v - want[i]) > 1e-6f * size)
            fail_msg("%s: row %d, %d: codes give %g, not %g", name, (int)r, (int)i, (double)v, (double)want[i]);
    }
}

static void test_values(void **state)
{
    (void)state;
    int n_affine = 0;
    for (size_t k = 0; k < SY_COUNT(cases); k++) {
        struct vec v = vec_open(cases[k]);
        struct sy_checkpoint *c;
        struct sy_err err = {0};
        if (open_vec(sy_env_default(), &v, &c, &err)) fail_msg("%s: %s", cases[k], err.msg);
        const struct sy_tensor *t = made_of(c), *e = sy_checkpoint_find(c, "expect");
        assert_true(t && t->parts && t->format && !t->data && e);
        assert_int_equal(t->n_dim, e->n_dim);
        int64_t rows = 1, cols = t->dim[t->n_dim - 1];
        for (int i = 0; i < 4; i++) assert_int_equal(t->dim[i], e->dim[i]);
        for (int i = 0; i < t->n_dim - 1; i++) rows *= t->dim[i];
        float got[256], want[256];
        for (int64_t r = 0; r < rows; r++) {
            sy_tensor_floats(t, r, got);
            sy_tensor_floats(e, r, want);
            for (int64_t i = 0; i < cols; i++)
                if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]) + 2e-9f)) /* nested scales may cancel */
                    fail_msg("%s: row %d, %d: %g, expected %g", cases[k], (int)r, (int)i, (double)got[i],
                             (double)want[i]);
            check_codes(cases[k], t, r, want);
        }
        n_affine += t->format->affine.bits > 0;
        /* Nothing of it is left over but what activations would need. */
        for (size_t i = 0; i < sy_checkpoint_count(c); i++) {
            const struct sy_tensor *x = sy_checkpoint_at(c, i);
            assert_true(x == t || x == e || strstr(x->name, "input_scale"));
        }
        sy_checkpoint_free(c);
        vec_free(&v);
    }
    assert_int_equal(n_affine, 12);
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool in_config;
        const char *from, *to, *words;
    } bad[] = {
        {"fp8_block", true, "\"fp8\"", "\"f9\"", "'quant_method': 'f9' is not supported"},
        {"fp8_block", true, "\"e4m3\"", "\"e3m4\"", "'fmt': 'e3m4'"},
        {"fp8_block", true, "\"weight_block_size\"", "\"weight_block_sizo\"", "m.weight_scale_inv"},
        {"fp8_block", true, "16,", "20,", "expected [2, 3]"},
        {"fp8_block", true, "16,", "-1,", "'weight_block_size'"},
        {"fp8_block", false, "\"F8_E4M3\"", "\"I8\"", "expected floats of 8 bits"},
        {"fp8_block", false, "m.weight_scale_inv", "m.weight_scale_xxx", "scales are missing"},
        {"fp8_channel", true, "\"float-quantized\"", "\"weird-quantized\"", "'weird-quantized'"},
        {"fp8_channel", true, "\"channel\"", "\"channal\"", "'strategy': 'channal'"},
        {"int4_group", true, "\"symmetric\": true", "\"symmetric\": 1", "symmetric"},
        {"int4_group", true, "\"group_size\": 32", "\"group_size\": 64", "m.weight_scale"},
        {"int4_group", true, "\"num_bits\": 4", "\"num_bits\": 3", "3 bits"},
        {"int4_group", true, "\"num_bits\": 4", "\"num_bits\": 8", "m.weight_shape"},
        {"int4_group", true, "\"lm_head\"", "\"m\"", "says that its module is not"},
        {"int4_group", false, "m.weight_shape", "m.weight_shapo", "shape is missing"},
        {"int4_zero", true, "\"symmetric\": false", "\"symmetric\": true", "says symmetric"},
        {"int4_order", false, "m.weight_g_idx", "m.weight_g_idy", "order is missing"},
        {"nvfp4_ct", true, "\"group_size\": 16", "\"group_size\": 32", "groups of 32"},
        {"nvfp4_modelopt", true, "\"NVFP4\"", "\"W4A8\"", "'quant_algo': 'W4A8'"},
        {"nf4", true, "\"nf4\"", "\"nf5\"", "'bnb_4bit_quant_type'"},
        {"nf4", false, "\"blocksize\": 64", "\"blocksize\": 32", "m.weight.absmax"},
        {"nf4", false, "\"blocksize\": 64", "\"blocksize\": 0", "blocksize"},
        {"nf4", false, "[12, 80]}", "[12, 81]}", "expected 486 bytes"},
        {"awq", true, "\"gemm\"", "\"gemv\"", "'version': 'gemv'"},
        {"awq", true, "\"bits\": 4", "\"bits\": 3", "3 bits"},
        {"awq", true, "\"zero_point\": true", "\"zero_point\":false", "zero_point"},
        {"gptq4", true, "\"gptq\"", "\"gpto\"", "gpto"},
        {"gptq4_order", true, "\"desc_act\": true", "\"desc_act\":false", "'desc_act': false"},
        {"gptq4_order", true, "\"sym\": false", "\"sym\": true", "'sym': true"},
        {"gptq4", true, "\"group_size\": 64", "\"group_size\": 32", "m.qzeros"},
    };
    for (size_t k = 0; k < SY_COUNT(bad); k++) {
        struct vec v = vec_open(bad[k].name);
        if (bad[k].in_config) replace(v.config, v.n_config, bad[k].from, bad[k].to);
        else replace(v.file, v.n_file, bad[k].from, bad[k].to);
        struct sy_checkpoint *c = NULL;
        struct sy_err err = {0};
        if (!open_vec(sy_env_default(), &v, &c, &err))
            fail_msg("%s with %s for %s: expected to be refused", bad[k].name, bad[k].to, bad[k].from);
        if (!strstr(err.msg, bad[k].words))
            fail_msg("%s with %s: expected '%s' in '%s'", bad[k].name, bad[k].to, bad[k].words, err.msg);
        vec_free(&v);
    }
}

/* ---- hostile bytes --------------------------------------------------------------------------------------------- */

/* Whatever opens can be read: rows of everything that was made, under the sanitizers. */
static void test_flipped(void **state)
{
    (void)state;
    int opened = 0;
    for (size_t k = 0; k < SY_COUNT(cases); k++)
        for (uint64_t round = 0; round < 200; round++) {
            struct vec v = vec_open(cases[k]);
            uint64_t n_head, r = sy_rng_u64(k, round);
            memcpy(&n_head, v.file, 8);
            if (round % 3 == 0) v.config[r % v.n_config] ^= (char)(1 << (r >> 40 & 7));
            else if (round % 3 == 1) v.file[8 + r % n_head] ^= (char)(1 << (r >> 40 & 7));
            else v.file[8 + n_head + r % (v.n_file - 8 - n_head)] ^= (char)(1 << (r >> 40 & 7));
            struct sy_checkpoint *c = NULL;
            struct sy_err err = {0};
            if (open_vec(sy_env_default(), &v, &c, &err) == SY_OK) {
                opened++;
                const struct sy_tensor *t = made_of(c);
                float *row = t && t->parts ? calloc((size_t)t->dim[t->n_dim - 1], sizeof *row) : NULL;
                if (row) sy_tensor_floats(t, t->dim[0] - 1, row);
                if (row) sy_tensor_floats(t, 0, row);
                free(row);
                sy_checkpoint_free(c);
            } else {
                assert_true(err.msg[0] != 0);
            }
            vec_free(&v);
        }
    assert_true(opened > 200);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (size_t k = 0; k < SY_COUNT(cases); k++) {
        struct vec v = vec_open(cases[k]);
        bool done = false;
        for (long at = 1; !done; at++) {
            struct counted env;
            struct sy_checkpoint *c = NULL;
            struct sy_err err = {0};
            counted_init(&env, at);
            sy_status st = open_vec(&env.env, &v, &c, &err);
            done = st == SY_OK;
            if (!done) assert_int_equal(st, SY_ENOMEM);
            sy_checkpoint_free(c);
            assert_int_equal(env.live, 0);
        }
        vec_free(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
