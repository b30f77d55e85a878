/* suggest.c - "did you mean": optimal string alignment distance (Damerau, CACM 7(3), 1964). */
#include <string.h>

#include "app/cli/cli.h"

enum { WORD_MAX = 40 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t edits(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > WORD_MAX || nb > WORD_MAX) return SIZE_MAX;
    size_t d[3][WORD_MAX + 1]; /* row i of the table is d[i % 3] */
    for (size_t j = 0; j <= nb; j++) d[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = least(least(up[j], now[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], up2[j - 2] + 1);
        }
    }
    return d[na % 3][nb];
}

void sy_suggest_init(struct sy_suggest *s, const char *wanted)
{
    *s = (struct sy_suggest){.wanted = wanted, .best_edits = SIZE_MAX};
}

void sy_suggest_offer(struct sy_suggest *s, const char *candidate)
{
    size_t e = edits(s->wanted, candidate);
    if (e >= s->best_edits) return;
    s->best_edits = e;
    s->best = candidate;
}

/* Near: a third of the word may differ, and one letter always. */
const char *sy_suggest_best(const struct sy_suggest *s)
{
    size_t may = strlen(s->wanted) / 3;
    return s->best && s->best_edits <= (may ? may : 1) ? s->best : NULL;
}
