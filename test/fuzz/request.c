/* Bodies of API calls. The first byte chooses the call. */
#include "serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum sy_api apis[] = {SY_API_CHAT,     SY_API_COMPLETION, SY_API_EMBEDDING,
                                       SY_API_TOKENIZE, SY_API_DETOKENIZE, SY_API_TEMPLATE};
    static const char *const names[] = {"m"};
    const struct sy_ask_limits l = {.n_vocab = 320,
                                    .ctx_len = 128,
                                    .d_model = 64,
                                    .choices_max = 8,
                                    .has_tokenizer = true,
                                    .has_template = true,
                                    .model = names,
                                    .n_model = 1,
                                    .defaults = {.temperature = 1, .top_p = 1}};
    if (n < 1) return 0;
    struct sy_ask a;
    struct sy_problem p = {0};
    struct sy_buf b;
    bool ok =
        sy_ask_parse(sy_env_default(), apis[data[0] % SY_COUNT(apis)], (const char *)data + 1, n - 1, &l, &a, &p);
    sy_assert(ok ? p.status == 0 : p.status >= 400 && p.status < 500 && p.type);
    sy_buf_init(&b, sy_env_default(), 0);
    sy_problem_json(&p, &b);
    sy_buf_release(&b);
    sy_ask_release(&a);
    return 0;
}
