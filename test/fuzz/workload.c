/* Files that the benchmarks read, by the first byte: a dataset, a trace of lengths, a record of an engine's run. */
#include "bench/workload.h"
#include "bench/replay.h"

static void use(struct sy_workload *w)
{
    struct sy_buf b;
    sy_buf_init(&b, sy_env_default(), 1 << 16);
    for (size_t i = 0; i < w->n; i++) {
        const struct sy_user_session *s = &w->session[i];
        sy_assert(s->n_turn > 0 && (i == 0 || !w->timed || s->start_ns >= w->session[i - 1].start_ns));
        for (size_t k = 0; k < s->n_turn; k++) {
            const struct sy_turn *t = &s->turn[k];
            int64_t n = 0;
            for (size_t p = 0; p < t->n_piece; p++) n += t->piece[p].n_tok;
            sy_assert(t->n_in > 0 && t->n_out > 0 && (t->text || n == t->n_in));
            if (t->n_in > 1000) continue;
            if (!t->text) sy_turn_ids(t, 100, &b);
            sy_buf_clear(&b);
            sy_turn_words(t, &b);
            sy_buf_clear(&b);
        }
    }
    sy_buf_release(&b);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    if (n < 1) return 0;
    const char *text = (const char *)data + 1;
    struct sy_workload w;
    struct sy_err err = {0};
    sy_status st;
    if (data[0] % 3 == 2) {
        st = sy_trace_check(sy_env_default(), text, n - 1, &err);
    } else {
        st = data[0] % 3 == 0 ? sy_workload_dataset(sy_env_default(), text, n - 1, 0, 1, &w, &err)
                              : sy_workload_trace(sy_env_default(), text, n - 1, 1, &w, &err);
        if (!st) use(&w);
        if (!st) sy_workload_release(&w);
    }
    sy_assert(!st || (err.code == st && err.msg[0]));
    return 0;
}
