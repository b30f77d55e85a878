/* mosaic_util.h - what the tests of kernels share: numbers, and mistakes planted in a kernel's text. */
#pragma once
#include "backend/pjrt/mosaic/kernels.h"
#include "checkpoint_util.h"
#include "mosaic_interp.h"

static float dice(uint64_t *seed) /* -1 .. 1, as bf16 holds it */
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return in_round(IN_BF16, (float)((double)(*seed >> 40) / 8388608.0 - 1));
}

static inline float *numbers(int64_t n, uint64_t seed)
{
    float *x = malloc((size_t)n * sizeof *x + 1);
    for (int64_t i = 0; i < n; i++) x[i] = dice(&seed);
    return x;
}

/* The nth line that holds `what` (and `also`) with `old` in it replaced; with NULL the line goes. */
struct mistake {
    const char *name, *what, *also, *old, *with;
    int nth;           /* from 0; -1: all such lines */
    const char *above; /* what the line two above holds; NULL: anything */
};

/* A copy of text with the mistake; how many lines it changed. */
static inline int plant(const struct sy_buf *text, const struct mistake *k, struct sy_buf *out)
{
    int seen = 0, changed = 0;
    char last[3][4000] = {{0}};
    sy_buf_init(out, sy_env_default(), 0);
    for (const char *at = text->at, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        memmove(last[1], last[0], sizeof last - sizeof last[0]);
        char *line = last[0];
        assert_true((size_t)(end - at) < sizeof last[0]);
        snprintf(line, sizeof last[0], "%.*s", (int)(end - at), at);
        bool like = strstr(line, k->what) && strstr(line, k->also) && (!k->above || strstr(last[2], k->above));
        bool is = like && (k->nth < 0 || seen == k->nth);
        seen += like;
        char *old = is && k->old ? strstr(line, k->old) : NULL;
        if (!is) sy_buf_printf(out, "%s\n", line);
        else if (old) sy_buf_printf(out, "%.*s%s%s\n", (int)(old - line), line, k->with, old + strlen(k->old));
        changed += is;
    }
    return changed;
}

/* Each mistake, planted in a kernel's text, is seen by its result or by the bytes it moves. run: the error of a
 * text's result, whether it moves the bytes that it should, and why it did not end if it did not. */
static inline void all_found(const struct sy_buf *text, const struct mistake *list, size_t n, double limit,
                             double (*run)(const void *data, const struct sy_buf *text, bool *moved, char why[300]),
                             const void *data)
{
    for (size_t i = 0; i < n; i++) {
        struct sy_buf bad;
        char why[300];
        bool moved;
        assert_true(plant(text, &list[i], &bad) > 0);
        double e = run(data, &bad, &moved, why);
        print_message("%s: error %g%s %s\n", list[i].name, e, moved ? "" : ", other bytes", why);
        if (e < limit && moved) fail_msg("not found: %s", list[i].name);
        sy_buf_release(&bad);
    }
}

/* Memory that runs out is told, whenever it does. write(m, shape): a kernel. */
static inline void memory_is_told(void (*write)(struct mosaic *, const void *shape), const void *shape)
{
    for (long n = 1;; n++) {
        struct counted c;
        struct mosaic m;
        struct sy_buf text;
        counted_init(&c, n);
        mo_init(&m, &c.env);
        sy_buf_init(&text, &c.env, 0);
        write(&m, shape);
        sy_status st = mo_end(&m, &text, NULL);
        mo_release(&m);
        sy_buf_release(&text);
        assert_int_equal(c.live, 0);
        if (!st) break;
        assert_int_equal(st, SY_ENOMEM);
    }
}
