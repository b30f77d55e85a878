/* spec.c - speculative decoding: how many tokens are guessed ahead, and what becomes of them.
 *
 * Guesses come from a draft model (draft.c) or from looking up: what followed the last time the answer's end stood in
 * the text. Answers that quote their prompt (edited code, summaries) repeat runs of it (LLMA, arXiv:2304.04487).
 * Guesses are fed behind the last token in the same step, each with a row of logits, and rows are sampled in order
 * for as long as the token drawn is the one that was fed. A guess is never taken in a draw's place and rows have the
 * same bits as alone, so answers are those of plain decoding to the last random number. (For one guess this is the
 * rejection sampling of arXiv:2211.17192 with a proposal that is a point: kept with probability p(guess), else drawn
 * from p without it.)
 *
 * A state cannot be cut back as blocks can: guesses run in an entry of their own, from the slot behind the sure
 * tokens to a second one, which becomes the sequence's if all were right. Otherwise it is dropped, and the right ones
 * are fed again as sure tokens of the next step.
 *
 * k guesses of which each is right with probability a are worth a + .. + a^k tokens. They cost k rows of a step, by a
 * line fitted to the time of steps over their rows, and k steps of the draft. The k that is worth most is taken, for
 * each sequence by its own share of right guesses; where none pays, a single guess is tried, ever more rarely. And
 * what guesses have cost beyond what they brought stays below a part of the time that passed, trials included. */
#include "engine/engine_int.h"

enum { NGRAM_LEAST = 2, NGRAM_MOST = 8, WAIT_FIRST = 4, WAIT_MOST = 128, GUESS_FIRST = 2 };
#define LOSS_MOST 0.015 /* of the time of the last 500 decode steps; the first ones have a few tokens more */
enum { CREDIT_TOKENS = 12 };

/* ---- what steps cost ------------------------------------------------------------------------------------------ */

void spec_step_cost(struct sy_engine *e, uint64_t ns)
{
    struct spec *c = &e->spec;
    double x = e->batch.n_tok, y = (double)ns, usual = c->n > 0 ? c->y / c->n : y;
    if (y > 4 * usual) y = 4 * usual; /* held up by something else */
    c->last = y;
    if (e->opt.draft_max <= 0 || e->n_prefill > 0) return;
    double keep = 0.98;
    c->n = keep * c->n + 1;
    c->x = keep * c->x + x;
    c->xx = keep * c->xx + x * x;
    c->y = keep * c->y + y;
    c->xy = keep * c->xy + x * y;
}

void spec_draft_cost(struct sy_engine *e, uint64_t ns, int32_t n_run, int32_t n_guessing, int32_t n_tok)
{
    struct spec *c = &e->spec;
    if (e->n_prefill == 0) e->stats.spec_real_ns += (double)ns;
    c->behind += (double)ns;
    if (n_guessing == 0 || n_tok > 4 * n_guessing) return; /* it caught up, mostly */
    double each = (double)ns / n_run / n_guessing;
    c->draft_ns = c->draft_ns > 0 ? 0.9 * c->draft_ns + 0.1 * each : each;
}

/* Time of a row more in a step, and of a token of plain decoding as sequences are now; false: not known. */
static bool costs(const struct sy_engine *e, double *row, double *token)
{
    const struct spec *c = &e->spec;
    double seqs = e->n_running > 0 ? e->n_running : 1, det = c->n * c->xx - c->x * c->x;
    if (c->n < 1) return false;
    double mean = c->y / c->n, x = c->x / c->n;
    bool known = det > 0.01 * c->x * c->x;
    *row = known ? (c->n * c->xy - c->x * c->y) / det : 0.1 * mean / x;
    /* Rows are never free, and a line through steps that differ little is a guess itself. */
    double least = 0.04 * mean / x;
    if (*row < least) *row = least;
    *token = (mean + *row * (seqs - x)) / seqs;
    if (*token < *row) *token = *row;
    return true;
}

/* ---- how many guesses ----------------------------------------------------------------------------------------- */

/* A sequence begins with what others have seen. */
static struct hits *hits_of(struct sy_engine *e, struct seq *s, int kind)
{
    struct hits *h = &s->hits[kind], *all = &e->spec.hits[kind];
    float right = e->draft ? 1.4f : kind == 0 ? 0.2f : 1; /* low: what is right shows in two or three guesses */
    if (all->n == 0) *all = (struct hits){.right = right, .n = 2};
    if (h->n == 0)
        *h = (struct hits){
            .right = 2 * all->right / all->n, .n = 2, .wait = all->wait, .rest = all->wait, .most = GUESS_FIRST};
    return h;
}

static int32_t best_len(struct sy_engine *e, const struct hits *h, int32_t most)
{
    double row, token, p = (double)h->right / (double)h->n, right = p, gain = 0, best = 0;
    if (e->opt.draft_always) return most > 0 ? most : 0;
    if (most > h->most) most = h->most;
    if (!costs(e, &row, &token)) return most;
    int32_t len = 0;
    for (int32_t k = 1; k <= most; k++, right *= p) {
        gain += right * token - row - e->spec.draft_ns;
        if (gain <= best) continue;
        best = gain;
        len = k;
    }
    return best > 0.02 * token ? len : 0;
}

static bool may_lose_more(const struct sy_engine *e)
{
    double row, token;
    const struct spec *c = &e->spec;
    if (e->opt.draft_always || !costs(e, &row, &token)) return true;
    return c->behind <= LOSS_MOST * (c->passed + CREDIT_TOKENS * token);
}

bool spec_pays(struct sy_engine *e, struct seq *s, int kind)
{
    return best_len(e, hits_of(e, s, kind), e->opt.draft_max) > 0;
}

int32_t spec_len(struct sy_engine *e, struct seq *s, int kind, int32_t most)
{
    struct hits *h = hits_of(e, s, kind);
    if (!may_lose_more(e)) return 0;
    int32_t k = best_len(e, h, most);
    if (k > 0) {
        h->wait = h->rest = 0;
        return k;
    }
    if (most <= 0 || h->rest-- > 0) return 0;
    h->wait = h->wait ? 2 * h->wait : WAIT_FIRST;
    if (h->wait > WAIT_MOST) h->wait = WAIT_MOST;
    h->rest = h->wait;
    return 1;
}

static void count(struct hits *h, int32_t guessed, int32_t right, float keep)
{
    h->right = keep * h->right + (float)right;
    h->n = keep * h->n + (float)(right + (right < guessed));
}

/* ---- looking up ----------------------------------------------------------------------------------------------- */

/* The longest run of tok[0, n) that ends like the text and stands earlier in it, the latest of those: its length, and
 * where it went on. */
static int32_t look_up(const int32_t *tok, int32_t n, int32_t *from)
{
    int32_t best = 0;
    for (int32_t at = n - 2; at >= NGRAM_LEAST - 1 && best < NGRAM_MOST; at--) {
        if (tok[at] != tok[n - 1]) continue;
        int32_t len = 1;
        while (len < NGRAM_MOST && len <= at && tok[at - len] == tok[n - 1 - len]) len++;
        if (len <= best) continue;
        best = len;
        *from = at + 1;
    }
    return best < NGRAM_LEAST ? 0 : best;
}

/* Guesses take no block that a running sequence may want in the step. */
int32_t spec_lease(struct sy_engine *e, struct seq *s, int32_t k, int32_t len)
{
    int32_t want = blocks_of(s->n_tok + k, len) - s->n_block;
    bool leased = want <= 0 || (want + e->n_running <= sy_cache_available(cache_of(e, s)) &&
                                !sy_cache_lease(cache_of(e, s), want, &s->block[s->n_block]));
    if (leased && want > 0) s->n_block += want;
    if (!leased) k = s->n_block * len - s->n_tok;
    return k > 0 ? k : 0;
}

void spec_draft(struct sy_engine *e, struct seq *s, int32_t n_max)
{
    if (e->opt.draft_max <= 0 || s->last_ns == 0 || s->of->siblings) return;
    int32_t k = e->opt.draft_max, from = 0;
    if (k > n_max) k = n_max;
    if (k > s->n_end - s->n_tok - 1) k = s->n_end - s->n_tok - 1;
    if (e->draft) {
        s->guess_kind = 0;
        s->n_draft = s->n_guess < k ? s->n_guess : k;
        if (s->n_draft < 0) s->n_draft = 0;
        s->n_guess = 0;
        return;
    }
    int32_t len = k > 0 ? look_up(s->tok, s->n_tok, &from) : 0;
    if (len == 0) return;
    s->guess_kind = len < 4 ? 0 : len < NGRAM_MOST ? 1 : 2;
    k = spec_len(e, s, s->guess_kind, k);
    if (k > 0) k = spec_lease(e, s, k, e->plan.block_len);
    for (int32_t i = 0; i < k; i++) s->tok[s->n_tok + i] = s->tok[from + i]; /* a repetition may run on into itself */
    s->n_draft = k;
}

/* ---- what became of them -------------------------------------------------------------------------------------- */

void spec_settle(struct sy_engine *e)
{
    int32_t len = e->plan.block_len;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct seq *s = e->running[i];
        if (s->n_draft == 0) continue;
        int32_t hit = s->fed_end - s->n_sure;
        e->stats.n_draft++;
        e->spec.guessed = true;
        e->stats.n_draft_tok += (uint64_t)s->n_draft;
        e->stats.n_draft_hit_tok += (uint64_t)hit;
        s->n_done = s->n_sure + hit;
        if (s->draft_slot) {
            int32_t kept = hit == s->n_draft ? s->draft_slot : s->slot;
            sy_cache_item_return(cache_of(e, s), SY_CACHE_SLOT, kept == s->slot ? s->draft_slot : s->slot);
            if (kept == s->slot) s->n_done = s->n_sure;
            s->slot = kept;
            s->draft_slot = 0;
        }
        struct hits *h = hits_of(e, s, s->guess_kind), *all = &e->spec.hits[s->guess_kind];
        count(h, s->n_draft, hit, 0.85f);
        if (hit == s->n_draft && h->most < e->opt.draft_max) h->most *= 2;
        else if (hit == 0 && h->most > 1) h->most /= 2;
        count(all, s->n_draft, hit, 0.98f);
        all->wait = h->wait;
        s->n_draft = 0;
        while (s->n_block > blocks_of(s->n_tok, len)) sy_cache_return(cache_of(e, s), s->block[--s->n_block]);
    }
}

void spec_account(struct sy_engine *e, uint64_t n_gen)
{
    double row, token, ns = e->spec.last;
    struct spec *c = &e->spec;
    bool guessed = c->guessed;
    c->guessed = false;
    if (e->opt.draft_max <= 0 || e->n_prefill > 0 || !costs(e, &row, &token)) return;
    c->passed = 0.998 * c->passed + ns;
    c->behind = 0.998 * c->behind + (guessed ? ns - (double)n_gen * token : 0);
    if (c->behind < 0) c->behind = 0;
    e->stats.spec_plain_ns += (double)n_gen * token;
    e->stats.spec_real_ns += ns;
}
