/* safetensors files and Hugging Face folders made here, whole and broken: what they become, and the one
 * sentence that each broken one gets. */
#include "checkpoint_util.h"

#include <glob.h>

static const char config[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\"}";

/* A file of this header and n_data bytes. n_header: what the length field says; 0: the truth. */
static struct sy_bytes make(struct sy_buf *b, const char *header, uint64_t n_header, size_t n_data)
{
    sy_buf_clear(b);
    put_n(b, n_header ? n_header : strlen(header), 8);
    sy_buf_text(b, header);
    for (size_t i = 0; i < n_data; i++) sy_buf_char(b, (char)i);
    return (struct sy_bytes){"m.safetensors", (const unsigned char *)b->at, b->len};
}

static sy_status open_with(const struct sy_env *env, const char *conf, const struct sy_bytes *f,
                           struct sy_checkpoint **c, struct sy_err *err)
{
    struct sy_bytes cf = {"config.json", (const unsigned char *)conf, strlen(conf)};
    return sy_checkpoint_from_safetensors(env, &cf, f, 1, c, err);
}

/* ---- whole files --------------------------------------------------------------------------------------- */

static const char good[] = "{\"__metadata__\": {\"format\": \"pt\"},"
                           "\"b\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [8, 20]},"
                           "\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
                           "\"scalar\": {\"dtype\": \"F16\", \"shape\": [], \"data_offsets\": [20, 22]},"
                           "\"nothing\": {\"dtype\": \"F32\", \"shape\": [3, 0], \"data_offsets\": [20, 20]},"
                           "\"fp8\": {\"dtype\": \"F8_E4M3\", \"shape\": [2, 2], \"data_offsets\": [22, 26]},"
                           "\"i64\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [26, 34]},"
                           "\"f4\": {\"dtype\": \"F4\", \"shape\": [2, 2], \"data_offsets\": [34, 36]},"
                           "\"five\": {\"dtype\": \"U8\", \"shape\": [2, 3, 1, 2, 1], \"data_offsets\": [36, "
                           "48]}}   ";

static void test_tensors(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    struct sy_bytes f = make(&b, good, 0, 48);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (open_with(sy_env_default(), config, &f, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(sy_checkpoint_count(c), 8);
    assert_string_equal(sy_checkpoint_kind(c), "safetensors");
    const struct sy_tensor *t = sy_checkpoint_find(c, "b");
    assert_string_equal(t->dtype, "BF16");
    assert_string_equal(t->format->name, "bf16");
    assert_true(t->n_dim == 2 && t->dim[0] == 2 && t->dim[1] == 3 && t->dim[2] == 1 && t->n_bytes == 12);
    assert_true(t->data[0] == 8 && t->data[11] == 19);
    t = sy_checkpoint_find(c, "scalar");
    assert_true(t->n_dim == 0 && t->dim[0] == 1 && t->n_bytes == 2);
    t = sy_checkpoint_find(c, "nothing");
    assert_true(t->n_dim == 2 && t->dim[1] == 0 && t->n_bytes == 0);
    t = sy_checkpoint_find(c, "i64");
    assert_true(t->format == &sy_quant_ids && t->n_bytes == 8);
    assert_string_equal(t->dtype, "I64");
    assert_int_equal(sy_checkpoint_find(c, "f4")->n_bytes, 2);
    t = sy_checkpoint_find(c, "five"); /* outer dimensions are folded */
    assert_true(t->n_dim == 4 && t->dim[0] == 6 && t->dim[1] == 1 && t->dim[2] == 2 && t->dim[3] == 1);
    assert_null(sy_checkpoint_find(c, "__metadata__"));
    assert_null(sy_checkpoint_find(c, ""));
    sy_checkpoint_free(c);
    f = make(&b, "{}", 0, 0);
    if (open_with(sy_env_default(), config, &f, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(sy_checkpoint_count(c), 0);
    sy_checkpoint_free(c);
    sy_buf_release(&b);
}

/* ---- broken headers ------------------------------------------------------------------------------------------ */

#define ONE(body)           "{\"t\": {" body "}}"
#define F32(shape, offsets) ONE("\"dtype\": \"F32\", \"shape\": " shape ", \"data_offsets\": " offsets)
#define TWO(a, b)                                                                                                    \
    "{\"t\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": " a "},"                                          \
    "\"u\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": " b "}}"

static const struct {
    const char *header;
    uint64_t n_header;
    size_t n_data;
    sy_status code;
    const char *says; /* after "'m.safetensors': " */
} broken[] = {
    {F32("[1000, 1000]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': its shape as F32 takes 32000000 bits, expected the same of 'data_offsets', found 4 bytes"},
    {"{}", UINT64_MAX - 2, 0, SY_EFORMAT,
     "expected a header of at most 2 bytes, found a length of 18446744073709551613"},
    {"{}", 3, 0, SY_EFORMAT, "expected a header of at most 2 bytes, found a length of 3"},
    {"{}", 100000001, 0, SY_EFORMAT, "expected a header of at most 2 bytes, found a length of 100000001"},
    {"[]", 0, 0, SY_EFORMAT, "expected a header that begins with '{'"},
    {" {}", 0, 0, SY_EFORMAT, "expected a header that begins with '{'"},
    {"{\"t\": 1, \"t\": 2}", 0, 0, SY_EFORMAT, "header: not valid JSON: duplicate object key near '\"t\"'"},
    {"{\"t\": {}", 0, 0, SY_EFORMAT, "header: not valid JSON: '}' expected near end of file"},
    {ONE("\"dtype\": \"U8\", \"dtype\": \"U8\", \"shape\": [0], \"data_offsets\": [0, 0]"), 0, 0, SY_EFORMAT,
     "header: not valid JSON: duplicate object key near '\"dtype\"'"},
    {"{\"t\": 1}", 0, 0, SY_EFORMAT, "tensor 't': expected an object, found an integer"},
    {"{\"t\": null}", 0, 0, SY_EFORMAT, "tensor 't': expected an object, found another value"},
    {"{\"__metadata__\": []}", 0, 0, SY_EFORMAT, "'__metadata__': expected an object of strings, found an array"},
    {ONE("\"shape\": [0], \"data_offsets\": [0, 0]"), 0, 0, SY_EFORMAT,
     "tensor 't': 'dtype': expected a string, found nothing"},
    {ONE("\"dtype\": \"Q4\", \"shape\": [0], \"data_offsets\": [0, 0]"), 0, 0, SY_ENOSUP,
     "tensor 't': dtype 'Q4' is not one that safetensors defines"},
    {ONE("\"dtype\": \"F32\", \"data_offsets\": [0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'shape': expected an array of up to 16 integers, found nothing"},
    {F32("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'shape': expected an array of up to 16 integers, found more"},
    {F32("[-1]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'shape': expected integers >= 0, found a negative one at 0"},
    {F32("[1, 1.0]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'shape': expected integers >= 0, found another value at 1"},
    {F32("[1, \"1\"]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'shape': expected integers >= 0, found a string at 1"},
    {F32("[4611686018427387904, 4]", "[0, 4]"), 0, 4, SY_EFORMAT, "tensor 't': 'shape': its size overflows"},
    {F32("[9223372036854775807, 9223372036854775807, 0]", "[0, 0]"), 0, 0, SY_EFORMAT,
     "tensor 't': 'shape': its size overflows"},
    {F32("[99999999999999999999]", "[0, 4]"), 0, 4, SY_EFORMAT,
     "header: not valid JSON: too big integer near '99999999999999999999'"},
    {F32("[1]", "[0]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': expected [begin, end] with 0 <= begin <= end, found an array of 1 with 0 "
     "and -1"},
    {F32("[1]", "[0, 4, 8]"), 0, 8, SY_EFORMAT,
     "tensor 't': 'data_offsets': expected [begin, end] with 0 <= begin <= end, found an array of 3 with 0 "
     "and 4"},
    {F32("[1]", "[4, 0]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': expected [begin, end] with 0 <= begin <= end, found an array of 2 with 4 "
     "and 0"},
    {F32("[1]", "[-4, 0]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': expected [begin, end] with 0 <= begin <= end, found an array of 2 with -4 "
     "and 0"},
    {F32("[1]", "7"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': expected [begin, end] with 0 <= begin <= end, found an integer of 0 with "
     "-1 and -1"},
    {F32("[1]", "[0, 8]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': end 8 is beyond the 4 bytes of data in the file"},
    {F32("[1]", "[9223372036854775804, 9223372036854775807]"), 0, 4, SY_EFORMAT,
     "tensor 't': 'data_offsets': end 9223372036854775807 is beyond the 4 bytes of data in the file"},
    {F32("[1]", "[0, 3]"), 0, 3, SY_EFORMAT,
     "tensor 't': its shape as F32 takes 32 bits, expected the same of 'data_offsets', found 3 bytes"},
    {ONE("\"dtype\": \"F4\", \"shape\": [3], \"data_offsets\": [0, 2]"), 0, 2, SY_EFORMAT,
     "tensor 't': its shape as F4 takes 12 bits, expected the same of 'data_offsets', found 2 bytes"},
    {TWO("[0, 4]", "[2, 6]"), 0, 6, SY_EFORMAT, "tensors 't' and 'u' overlap at data offset 2"},
    {TWO("[0, 4]", "[6, 10]"), 0, 10, SY_EFORMAT,
     "tensor 'u': expected it at data offset 4, found 6: a gap that belongs to no tensor"},
    {TWO("[1, 5]", "[5, 9]"), 0, 9, SY_EFORMAT,
     "tensor 't': expected it at data offset 0, found 1: a gap that belongs to no tensor"},
    {TWO("[0, 4]", "[4, 8]"), 0, 9, SY_EFORMAT,
     "expected the file to end with its last tensor at data offset 8, found 1 bytes more"},
    {"{}", 0, 1, SY_EFORMAT, "expected the file to end with its last tensor at data offset 0, found 1 bytes more"},
};

static void test_broken(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    static const char prefix[] = "'m.safetensors': ";
    for (size_t i = 0; i < SY_COUNT(broken); i++) {
        struct sy_bytes f = make(&b, broken[i].header, broken[i].n_header, broken[i].n_data);
        struct counted c;
        counted_init(&c, 0);
        struct sy_checkpoint *ck = NULL;
        struct sy_err err = {0};
        sy_status st = open_with(&c.env, config, &f, &ck, &err);
        assert_memory_equal(err.msg, prefix, sizeof prefix - 1);
        char *place = strstr(err.msg, " (line "); /* how the JSON library counts is not ours to check */
        if (place) *place = 0;
        assert_string_equal(err.msg + sizeof prefix - 1, broken[i].says);
        assert_int_equal(st, broken[i].code);
        assert_null(ck);
        assert_int_equal(c.live, 0);
        assert_true(c.peak < 1 << 17);
    }
    struct sy_bytes f = {"m.safetensors", (const unsigned char *)"1234567", 7};
    struct sy_checkpoint *ck = NULL;
    struct sy_err err = {0};
    assert_int_equal(open_with(sy_env_default(), config, &f, &ck, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "'m.safetensors': expected 8 bytes of header length, found a file of 7");
    sy_buf_release(&b);
}

/* Nesting that would break a recursive reader, and more values than any model has. */
static void test_hostile(void **state)
{
    (void)state;
    struct sy_buf header, b;
    sy_buf_init(&header, sy_env_default(), 0);
    sy_buf_init(&b, sy_env_default(), 0);
    sy_buf_text(&header, "{\"a\":");
    for (int i = 0; i < 100000; i++) sy_buf_char(&header, '[');
    struct sy_bytes f = make(&b, header.at, 0, 0);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    assert_int_equal(open_with(sy_env_default(), config, &f, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "'m.safetensors': header: not valid JSON: maximum parsing depth "
                                    "reached"));
    sy_buf_clear(&header);
    sy_buf_text(&header, "{\"a\":[");
    for (int i = 0; i < 9000000; i++) sy_buf_add(&header, "0,", 2);
    f = make(&b, header.at, 0, 0);
    assert_int_equal(open_with(sy_env_default(), config, &f, &c, &err), SY_EFORMAT);
    assert_string_equal(err.msg, "'m.safetensors': expected a header of at most 8000000 values, found "
                                 "9000001");
    sy_buf_clear(&header);
    sy_buf_text(&header, "{\"");
    for (int i = 0; i < 2000; i++) sy_buf_char(&header, 'n');
    sy_buf_text(&header, "\":{}}");
    f = make(&b, header.at, 0, 0);
    assert_int_equal(open_with(sy_env_default(), config, &f, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "expected a name of up to 1024 bytes, found 2000"));
    assert_null(c);
    sy_buf_release(&header);
    sy_buf_release(&b);
}

static void test_every_byte(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    struct sy_bytes f = make(&b, good, 0, 48);
    unsigned char *copy = malloc(f.n);
    for (size_t n = 0; n < f.n; n++) {
        unsigned char *cut = malloc(n ? n : 1);
        memcpy(cut, f.at, n);
        struct sy_checkpoint *c = NULL;
        struct sy_bytes part = {f.name, cut, n};
        assert_int_not_equal(open_with(sy_env_default(), config, &part, &c, NULL), SY_OK);
        free(cut);
    }
    for (size_t i = 0; i < f.n; i++)
        for (int k = 0; k < 8; k++) {
            memcpy(copy, f.at, f.n);
            copy[i] ^= (unsigned char)(1 << k);
            struct sy_checkpoint *c = NULL;
            struct sy_bytes part = {f.name, copy, f.n};
            if (open_with(sy_env_default(), config, &part, &c, NULL) == SY_OK) sy_checkpoint_free(c);
        }
    free(copy);
    sy_buf_release(&b);
}

/* ---- config.json --------------------------------------------------------------------------------------------- */

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } bad[] = {
        {"[]", "'config.json': 'architectures': expected a list with the name of the model's class, found "
               "nothing"},
        {"{}", "'config.json': 'architectures': expected a list with the name of the model's class, found "
               "nothing"},
        {"{\"architectures\": \"X\"}", "'config.json': 'architectures': expected a list with the name of the "
                                       "model's class, found something else"},
        {"{\"architectures\": []}", "'config.json': 'architectures': expected a list with the name of the "
                                    "model's class, found something else"},
        {"{\"architectures\": [\"X\"]}", "'config.json': 'model_type': expected a string, found nothing"},
        {"{\"architectures\": [\"X\"], \"model_type\": 1}", "'config.json': 'model_type': expected a string, "
                                                            "found something else"},
        {"{\"architectures\"", "'config.json': not valid JSON: ':' expected near end of file (line 1, column "
                               "16)"},
    };
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    struct sy_bytes f = make(&b, "{}", 0, 0);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    for (size_t i = 0; i < SY_COUNT(bad); i++) {
        assert_int_equal(open_with(sy_env_default(), bad[i].config, &f, &c, &err), SY_EFORMAT);
        assert_memory_equal(err.msg, bad[i].says, strlen(bad[i].says));
    }
    assert_null(c);
    sy_buf_release(&b);
}

static void test_composite(void **state)
{
    (void)state;
    static const char nested[] = "{\"architectures\": [\"Outer\"], \"model_type\": \"outer\", \"eps\": "
                                 "Infinity, \"hidden_size\": 1,"
                                 "\"text_config\": {\"architectures\": [\"Inner\"], \"model_type\": "
                                 "\"inner\", \"hidden_size\": 2,"
                                 "\"tie_word_embeddings\": true, \"num_hidden_layers\": 2, "
                                 "\"num_nextn_predict_layers\": 1}}";
    static const char header[] =
        "{\"model.language_model.embed_tokens.weight\": {\"dtype\": \"U8\", \"shape\": [1], "
        "\"data_offsets\": [0, 1]},"
        "\"language_model.model.norm.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, 2]},"
        "\"language_model.lm_head.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [2, 3]},"
        "\"model.visual.patch.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [3, 4]},"
        "\"vision_tower.x\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [4, 5]},"
        "\"mtp.fc.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [5, 6]},"
        "\"model.layers.2.eh_proj.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [6, 7]},"
        "\"model.layers.1.self_attn.rotary_emb.inv_freq\": {\"dtype\": \"U8\", \"shape\": [1], "
        "\"data_offsets\": [7, 8]},"
        "\"model.layers.1.extra.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [8, 9]}}";
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    struct sy_bytes f = make(&b, header, 0, 9);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (open_with(sy_env_default(), nested, &f, &c, &err)) fail_msg("%s", err.msg);
    const struct sy_json *j = sy_checkpoint_config(c);
    assert_string_equal(sy_json_text(sy_json_at(sy_json_get(j, "architectures"), 0)), "Outer");
    assert_string_equal(sy_json_text(sy_json_get(j, "model_type")), "inner");
    assert_int_equal(sy_json_int(sy_json_get(j, "hidden_size"), 0), 2);
    assert_null(sy_json_get(j, "text_config"));
    const struct sy_tensor *t = sy_checkpoint_find(c, "model.embed_tokens.weight");
    assert_string_equal(t->file_name, "model.language_model.embed_tokens.weight");
    bool used[9] = {false};
    used[sy_checkpoint_index(c, t)] = true;
    used[sy_checkpoint_index(c, sy_checkpoint_find(c, "model.norm.weight"))] = true;
    assert_non_null(sy_checkpoint_find(c, "lm_head.weight")); /* tied: a copy that need not be used */
    assert_int_equal(sy_checkpoint_check_extra(c, used, &err), SY_ENOSUP);
    assert_string_equal(err.msg, "'m.safetensors': tensor 'model.layers.1.extra.weight' is no part of the "
                                 "architecture "
                                 "as its config describes it; leaving it out would change the model");
    used[sy_checkpoint_index(c, sy_checkpoint_find(c, "model.layers.1.extra.weight"))] = true;
    assert_int_equal(sy_checkpoint_check_extra(c, used, &err), SY_OK);
    sy_checkpoint_free(c);
    c = NULL;

    /* Two names that mean one tensor. */
    f = make(&b,
             "{\"model.norm.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]},"
             "\"model.language_model.norm.weight\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": "
             "[1, 2]}}",
             0, 2);
    assert_int_equal(open_with(sy_env_default(), config, &f, &c, &err), SY_EFORMAT);
    assert_non_null(strstr(err.msg, "is there twice, expected once (also as '"));
    assert_null(c);
    sy_buf_release(&b);
}

/* ---- folders ------------------------------------------------------------------------------------------------- */

struct folder {
    char path[64], sub[128];
    struct sy_buf b;
};

static void put_weights(struct folder *f, const char *folder, const char *file, const char *tensor)
{
    char header[300];
    snprintf(header, sizeof header, "{\"%s\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}",
             tensor);
    struct sy_bytes w = make(&f->b, header, 0, 8);
    write_file(folder, file, w.at, w.n);
}

/* A folder with a subfolder "model" that has a config; files may be put beside it. */
static void folder_make(struct folder *f)
{
    make_folder(f->path, sizeof f->path);
    snprintf(f->sub, sizeof f->sub, "%s/model", f->path);
    assert_int_equal(mkdir(f->sub, 0700), 0);
    sy_buf_init(&f->b, sy_env_default(), 0);
    write_text(f->sub, "config.json", config);
}

static void folder_remove(struct folder *f)
{
    sy_buf_release(&f->b);
    remove_folder(f->path);
}

static void put_index(struct folder *f, const char *map)
{
    char text[600];
    snprintf(text, sizeof text, "{\"metadata\": {}, \"weight_map\": %s}", map);
    write_text(f->sub, "model.safetensors.index.json", text);
}

static void expect(struct folder *f, sy_status code, const char *words)
{
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    sy_status st = sy_checkpoint_open(sy_env_default(), f->sub, &c, &err);
    sy_checkpoint_free(c);
    if (st != code || !strstr(err.msg, words))
        fail_msg("expected %d with '%s', found %d with '%s'", code, words, st, err.msg);
}

static void test_folder(void **state)
{
    (void)state;
    struct folder f;
    folder_make(&f);
    expect(&f, SY_EIO, "found neither 'model.safetensors' nor 'model.safetensors.index.json'");
    put_weights(&f, f.sub, "model.safetensors", "model.norm.weight");
    write_text(f.sub, "generation_config.json", "{\"eos_token_id\": 2}");
    write_text(f.sub, "tokenizer.json", "{\"model\": {}}");
    write_text(f.sub, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"chat_template\": \"plain\"}");
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    const struct sy_tensor *t = sy_checkpoint_find(c, "model.norm.weight");
    assert_true(t && t->data[7] == 7);
    assert_non_null(strstr(t->file, "/model/model.safetensors"));
    assert_int_equal(sy_json_int(sy_json_get(sy_checkpoint_generation(c), "eos_token_id"), 0), 2);
    assert_non_null(sy_json_get(sy_checkpoint_tokenizer_json(c), "model"));
    assert_non_null(sy_json_get(sy_checkpoint_tokenizer_config(c), "bos_token"));
    assert_null(sy_checkpoint_gguf_vocab(c));
    size_t n;
    assert_string_equal(sy_checkpoint_chat_template(c, &n), "plain");
    sy_checkpoint_free(c);

    write_text(f.sub, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"},"
               "{\"name\": \"default\", \"template\": \"listed\"}]}");
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    assert_string_equal(sy_checkpoint_chat_template(c, &n), "listed");
    sy_checkpoint_free(c);
    write_text(f.sub, "chat_template.jinja", "file");
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    assert_string_equal(sy_checkpoint_chat_template(c, &n), "file");
    assert_int_equal(n, 4);
    sy_checkpoint_free(c);

    write_text(f.sub, "generation_config.json", "[]");
    expect(&f, SY_EFORMAT, "file 'generation_config.json': expected a JSON object");
    write_text(f.sub, "generation_config.json", "{");
    expect(&f, SY_EFORMAT, "file 'generation_config.json': not valid JSON");
    folder_remove(&f);
    folder_make(&f);
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", f.sub);
    unlink(path);
    expect(&f, SY_EIO, "found no 'config.json'");
    folder_remove(&f);
}

static void test_index(void **state)
{
    (void)state;
    struct folder f;
    folder_make(&f);
    put_weights(&f, f.sub, "a.safetensors", "a");
    put_weights(&f, f.sub, "b.safetensors", "b");
    put_index(&f, "{\"b\": \"b.safetensors\", \"a\": \"a.safetensors\"}");
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    assert_int_equal(sy_checkpoint_count(c), 2);
    assert_true(sy_checkpoint_find(c, "a") && sy_checkpoint_find(c, "b"));
    sy_checkpoint_free(c);

    put_index(&f, "{\"a\": \"a.safetensors\", \"b\": \"b.safetensors\", \"c\": \"b.safetensors\"}");
    expect(&f, SY_EFORMAT, "expected tensor 'c' in file 'b.safetensors', found no such tensor there");
    put_weights(&f, f.sub, "b.safetensors", "x");
    put_index(&f, "{\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}");
    expect(&f, SY_EFORMAT, "expected tensor 'b' in file 'b.safetensors', found no such tensor there");
    put_weights(&f, f.sub, "b.safetensors", "a");
    expect(&f, SY_EFORMAT, "file 'b.safetensors': tensor 'a' is not one that 'model.safetensors.index.json' places");
    put_index(&f, "{\"a\": \"a.safetensors\", \"b\": \"none.safetensors\"}");
    expect(&f, SY_EFORMAT, "file 'none.safetensors', which 'model.safetensors.index.json' names, is missing");
    put_index(&f, "{}");
    expect(&f, SY_EFORMAT, "'weight_map': expected an object of 1 to 1048576 tensors, found 0");
    put_index(&f, "[\"a.safetensors\"]");
    expect(&f, SY_EFORMAT, "'weight_map': expected an object of 1 to 1048576 tensors, found 1");
    put_index(&f, "{\"a\": 1}");
    expect(&f, SY_EFORMAT, "tensor 'a': expected a file name");
    put_index(&f, "{\"a\": \"a.safetensors\", \"a\": \"b.safetensors\"}");
    expect(&f, SY_EFORMAT, "file 'model.safetensors.index.json': not valid JSON: duplicate object key");
    folder_remove(&f);
}

/* F18: a shard that is anything but a plain file of the folder is refused, and nothing outside is read. */
static void test_outside(void **state)
{
    (void)state;
    struct folder f;
    folder_make(&f);
    put_weights(&f, f.path, "secret.safetensors", "a"); /* beside the model's folder */
    static const char plain[] = "expected a plain name inside the folder";
    char map[300], path[300];
    put_index(&f, "{\"a\": \"../secret.safetensors\"}");
    expect(&f, SY_EFORMAT, plain);
    snprintf(map, sizeof map, "{\"a\": \"%s/secret.safetensors\"}", f.path);
    put_index(&f, map);
    expect(&f, SY_EFORMAT, plain);
    static const char *const names[] = {"..",       ".", "", "./a.safetensors", "sub/../../secret.safetensors",
                                        "/dev/zero"};
    for (size_t i = 0; i < SY_COUNT(names); i++) {
        snprintf(map, sizeof map, "{\"a\": \"%s\"}", names[i]);
        put_index(&f, map);
        expect(&f, SY_EFORMAT, plain);
    }
    put_index(&f, "{\"a\": \"a\\u0000.safetensors\"}");
    expect(&f, SY_EFORMAT, "tensor 'a': expected a file name");

    put_index(&f, "{\"a\": \"link.safetensors\"}");
    snprintf(path, sizeof path, "%s/link.safetensors", f.sub);
    assert_int_equal(symlink("../secret.safetensors", path), 0);
    expect(&f, SY_EFORMAT, "file 'link.safetensors' is a link that leads out of the folder; refused");
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    expect(&f, SY_EFORMAT, "file 'link.safetensors' is a link that leads out of the folder; refused");
    unlink(path);
    assert_int_equal(symlink("link.safetensors", path), 0);
    expect(&f, SY_EIO, "link.safetensors");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect(&f, SY_EFORMAT, "file 'link.safetensors': expected a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(&f, SY_EFORMAT, "file 'link.safetensors': expected a regular file");
    rmdir(path);

    put_weights(&f, f.sub, "real.safetensors", "a"); /* a link inside the folder is fine */
    assert_int_equal(symlink("real.safetensors", path), 0);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    sy_checkpoint_free(c);

    snprintf(path, sizeof path, "%s/config.json", f.sub); /* the other files as well */
    unlink(path);
    write_text(f.path, "config.json", config);
    assert_int_equal(symlink("../config.json", path), 0);
    expect(&f, SY_EFORMAT, "file 'config.json' is a link that leads out of the folder; refused");
    folder_remove(&f);
}

static void test_hub_cache(void **state)
{
    (void)state;
    struct folder f;
    folder_make(&f);
    char repo[300], path[400];
    static const char *const dirs[] = {"", "/blobs", "/snapshots", "/snapshots/main"};
    for (size_t i = 0; i < SY_COUNT(dirs); i++) {
        snprintf(repo, sizeof repo, "%s/models--org--name%s", f.path, dirs[i]);
        assert_int_equal(mkdir(repo, 0700), 0);
    }
    snprintf(f.sub, sizeof f.sub, "%s/models--org--name/snapshots/main", f.path);
    snprintf(repo, sizeof repo, "%s/models--org--name/blobs", f.path);
    write_text(repo, "c0ffee", config);
    put_weights(&f, repo, "beef", "a");
    snprintf(path, sizeof path, "%s/config.json", f.sub);
    assert_int_equal(symlink("../../blobs/c0ffee", path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", f.sub);
    assert_int_equal(symlink("../../blobs/beef", path), 0);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (sy_checkpoint_open(sy_env_default(), f.sub, &c, &err)) fail_msg("%s", err.msg);
    assert_non_null(strstr(sy_checkpoint_at(c, 0)->file, "snapshots/main/model.safetensors"));
    sy_checkpoint_free(c);
    unlink(path);
    put_weights(&f, f.path, "secret", "a");
    assert_int_equal(symlink("../../../secret", path), 0);
    expect(&f, SY_EFORMAT, "is a link that leads out of the folder and the cache's blobs; refused");
    unlink(path);
    snprintf(repo, sizeof repo, "%s/models--org--name/blobs-not", f.path);
    assert_int_equal(mkdir(repo, 0700), 0);
    put_weights(&f, repo, "beef", "a");
    assert_int_equal(symlink("../../blobs-not/beef", path), 0);
    expect(&f, SY_EFORMAT, "is a link that leads out of the folder and the cache's blobs; refused");
    folder_remove(&f);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct folder f;
    folder_make(&f);
    put_weights(&f, f.sub, "a.safetensors", "a");
    put_weights(&f, f.sub, "b.safetensors", "model.language_model.b");
    put_index(&f, "{\"a\": \"a.safetensors\", \"model.language_model.b\": \"b.safetensors\"}");
    write_text(f.sub, "chat_template.jinja", "file");
    bool done = false;
    for (long i = 1; !done; i++) {
        struct counted c;
        counted_init(&c, i);
        struct sy_checkpoint *ck = NULL;
        struct sy_err err = {0};
        sy_status st = sy_checkpoint_open(&c.env, f.sub, &ck, &err);
        done = c.n < i;
        assert_int_equal(st, done ? SY_OK : SY_ENOMEM);
        sy_checkpoint_free(ck);
        assert_int_equal(c.live, 0);
        assert_true(i < 1000);
    }
    folder_remove(&f);
}

/* Every model folder of the golden data: a decoder's tensors are there, all of them readable. */
/* ---- experts of a layer in one tensor ------------------------------------------------------------------- */

static const char stacked[] =
    "{\"model.layers.0.mlp.experts.gate_up_proj\": {\"dtype\": \"F16\", \"shape\": [2, S], "
    "\"data_offsets\": [0, 48]},"
    "\"model.layers.0.mlp.experts.gate_up_proj_bias\": {\"dtype\": \"F16\", \"shape\": [2, 4], "
    "\"data_offsets\": [48, 64]}}";

/* 16-bit words 0, 1, 2, ... as stored: which of them is element `col` of row `row` of the part. */
static int word_of(const struct sy_checkpoint *c, const char *name, int64_t row, int64_t col)
{
    const struct sy_tensor *t = sy_checkpoint_find(c, name);
    float v[16];
    if (!t) fail_msg("no '%s'", name);
    sy_tensor_floats(t, row, v);
    return (sy_f32_to_f16(v[col]) & 255) / 2;
}

static struct sy_checkpoint *open_stacked(struct sy_buf *b, const char *class, const char *shape, sy_status want)
{
    char conf[128], head[512];
    const char *mark = strchr(stacked, 'S');
    snprintf(conf, sizeof conf, "{\"architectures\": [\"%s\"], \"model_type\": \"x\"}", class);
    snprintf(head, sizeof head, "%.*s%s%s", (int)(mark - stacked), stacked, shape, mark + 1);
    struct sy_bytes f = make(b, head, 0, 64);
    struct sy_checkpoint *c = NULL;
    struct sy_err err = {0};
    if (open_with(sy_env_default(), conf, &f, &c, &err) != want) fail_msg("%s", err.msg);
    return c;
}

static void test_stacked(void **state)
{
    (void)state;
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 0);
    /* [2 experts, 4 rows of gate and up, 3]: halves */
    struct sy_checkpoint *c = open_stacked(&b, "Qwen3MoeForCausalLM", "4, 3", SY_OK);
    assert_int_equal(sy_checkpoint_count(c), 8);
    const struct sy_tensor *t = sy_checkpoint_find(c, "model.layers.0.mlp.experts.1.up_proj.weight");
    assert_true(t && t->n_dim == 2 && t->dim[0] == 2 && t->dim[1] == 3 && t->n_bytes == 12);
    assert_int_equal(word_of(c, t->name, 1, 2), 12 + 3 * 3 + 2);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.0.gate_proj.weight", 1, 0), 3);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.1.up_proj.bias", 0, 1), 24 + 4 + 2 + 1);
    sy_checkpoint_free(c);
    /* [2, 3, 4]: transposed, halves */
    c = open_stacked(&b, "Llama4ForCausalLM", "3, 4", SY_OK);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.1.up_proj.weight", 1, 2), 12 + 2 * 4 + 2 + 1);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.0.gate_proj.weight", 0, 1), 4);
    sy_checkpoint_free(c);
    /* transposed, gate and up in turn */
    c = open_stacked(&b, "GptOssForCausalLM", "3, 4", SY_OK);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.1.up_proj.weight", 1, 2), 12 + 2 * 4 + 2 * 1 + 1);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.0.gate_proj.weight", 1, 1), 4 + 2);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.1.up_proj.bias", 0, 1), 24 + 4 + 2 + 1);
    assert_int_equal(word_of(c, "model.layers.0.mlp.experts.0.gate_proj.bias", 0, 1), 24 + 2);
    sy_checkpoint_free(c);
    assert_null(open_stacked(&b, "Qwen3MoeForCausalLM", "3, 4", SY_ESHAPE)); /* rows that have no halves */
    sy_buf_release(&b);
}

static void test_golden(void **state)
{
    (void)state;
    glob_t found;
    int n_named = 0, n_attention = 0; /* hybrids have other names, and layers of other kinds */
    assert_int_equal(glob("test/golden/models/*/config.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.*s", (int)strlen(found.gl_pathv[i]) - 12, found.gl_pathv[i]);
        struct sy_checkpoint *c = NULL;
        struct sy_err err = {0};
        if (sy_checkpoint_open(sy_env_default(), path, &c, &err)) fail_msg("%s", err.msg);
        assert_string_equal(sy_checkpoint_path(c), path);
        n_named += sy_checkpoint_find(c, "model.embed_tokens.weight") && sy_checkpoint_find(c, "model.norm.weight");
        int64_t n_layer = sy_json_int(sy_json_get(sy_checkpoint_config(c), "num_hidden_layers"), -1);
        assert_true(n_layer > 0);
        for (int64_t l = 0; l < n_layer; l++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.weight", (int)l);
            const struct sy_tensor *t = sy_checkpoint_find(c, name);
            if (!t) continue; /* a layer without attention */
            n_attention++;
            assert_true(t->format && t->n_dim == 2 && t->head_rows == 0 && !t->norm_plus_one);
            assert_int_equal(t->n_bytes, t->dim[0] * sy_quant_row_bytes(t->format, t->dim[1]));
        }
        sy_checkpoint_free(c);
    }
    assert_true(n_named >= 10 && n_attention >= 36);
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),    cmocka_unit_test(test_broken),    cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_every_byte), cmocka_unit_test(test_config),    cmocka_unit_test(test_composite),
        cmocka_unit_test(test_folder),     cmocka_unit_test(test_index),     cmocka_unit_test(test_outside),
        cmocka_unit_test(test_hub_cache),  cmocka_unit_test(test_no_memory), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_stacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
