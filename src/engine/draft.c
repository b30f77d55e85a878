/* draft.c - a second, smaller model that guesses what comes next: one of its own files, or the head for one token
 * more that a model has itself (MTP: DeepSeek-V3, arXiv:2412.19437, section 2.2).
 *
 * Behind each step it takes the tokens that are new and then, token by token for all sequences at once, its own
 * guesses; the next step verifies them (spec.c). Its keys and values lie in blocks of the same numbers as the
 * model's, so what a prefix hit finds, a fork shares or an end gives back needs no second book: `fill` notes which
 * known blocks it has been through. What it finds there decides how good guesses are, never what the answer is. A
 * draft with recurrent states has two slots for each sequence, behind its sure tokens and behind its guesses.
 *
 * MTP goes from position to position with the hidden states of the step that just ran. Where some were left out (it
 * was switched off, or the prefix came from the cache without) it starts afresh at the next block, as if the sequence
 * began there: attention by relative positions does not see the difference.
 *
 * A guess for a sampled answer is drawn by the random number that will draw the answer: the nearer the two
 * distributions, the more often both fall on the same token. */
#include <string.h>

#include "engine/engine_int.h"

enum { LAG_MOST = 256 }; /* tokens that are caught up on for one guess that is but a trial */

static bool is_mtp(const struct sy_engine_opt *o) { return o->draft_model && !strcmp(o->draft_model, "mtp"); }

enum sy_model_part draft_part(const struct sy_engine *e) { return is_mtp(&e->opt) ? SY_MODEL_KEEP : SY_MODEL_ALONE; }

/* ---- opening -------------------------------------------------------------------------------------------------- */

/* Ids must mean the same to both. */
static sy_status same_tokens(struct sy_engine *e, struct draft *d, struct sy_err *err)
{
    static const char probe[] =
        "The quick brown fox, 1234567 times: jumps_over(the) lazy dog;\n\n\tna\xc3\xafve \xe6\x97\xa5";
    struct sy_tokenizer *tok = NULL;
    struct sy_ids a, b;
    sy_ids_init(&a, e->env);
    sy_ids_init(&b, e->env);
    sy_status st = sy_tokenizer_open(e->env, d->ckpt, &tok, err);
    bool same = d->model.info.n_vocab == e->model.info.n_vocab;
    if (!st && tok && e->tok) {
        st = sy_tokenizer_encode(e->tok, probe, sizeof probe - 1, 0, &a, err);
        if (!st) st = sy_tokenizer_encode(tok, probe, sizeof probe - 1, 0, &b, err);
        same = !st && a.n == b.n && !memcmp(a.at, b.at, a.n * sizeof *a.at);
    }
    if (!st && !same)
        st = sy_fail(err, SY_EARG,
                     "--draft-model '%s': its tokens are not those of '%s'; take a smaller model of "
                     "the same family",
                     e->opt.draft_model, e->opt.model);
    sy_ids_release(&a);
    sy_ids_release(&b);
    sy_tokenizer_free(tok);
    return st;
}

sy_status draft_graph(struct sy_engine *e, struct sy_shape shape, struct sy_graph **out, struct sy_err *err)
{
    const struct draft *d = e->draft;
    return engine_graph_part(e, d->mtp ? &e->model : &d->model, d->mtp ? SY_MODEL_HEAD : SY_MODEL_ALONE, shape, out,
                             err);
}

sy_status draft_open(struct sy_engine *e, struct sy_shape shape, struct sy_err *err)
{
    const struct sy_shard *shard = &e->opt.backend_opt.shard;
    if (shard->n_stage > 1 || shard->n_ffn > 0)
        return sy_fail(err, SY_ENOSUP, "--draft-model: not with --pp or --afd; leave one of them out");
    struct draft *d = e->draft = sy_new(e->env, sizeof *d);
    if (!d) return sy_fail(err, SY_ENOMEM, "no memory for a draft model");
    d->mtp = is_mtp(&e->opt);
    struct sy_shape own = {shape.tok, shape.seq, shape.block, e->plan.seq_max, 0};
    sy_status st = SY_OK;
    if (d->mtp) {
        if (!e->model.info.build_mtp)
            return sy_fail(err, SY_ENOSUP,
                           "--draft-model mtp: '%s' has no head that predicts one token more; give "
                           "the path of a smaller model",
                           e->opt.model);
        d->n_ctx = e->plan.ctx_len;
    } else {
        st = sy_checkpoint_open(e->env, e->opt.draft_model, &d->ckpt, err);
        if (!st)
            st = sy_model_open(e->env, sy_checkpoint_config(d->ckpt), sy_checkpoint_path(d->ckpt), &d->model, err);
        if (!st) st = same_tokens(e, d, err);
        d->n_ctx = d->model.info.n_ctx;
    }
    if (!st) st = draft_graph(e, own, &d->graph, err);
    if (st) return st;
    d->recurrent = e->ops->slot_bytes && e->ops->slot_bytes(e->backend, d->graph) > 0;
    int64_t apart; /* they are not, in a draft: see own.apart */
    d->block_bytes = e->ops->kv_block_bytes(e->backend, d->graph, e->plan.block_len, &apart);
    return SY_OK;
}

/* With its head's weights too: both share the embedding and the matrix of logits. */
static sy_status load_both(struct sy_engine *e, struct sy_err *err)
{
    struct sy_graph *both;
    sy_status st = engine_graph_part(e, &e->model, SY_MODEL_BOTH, sy_graph_shape(e->graph), &both, err);
    if (st) return st;
    st = e->ops->load(e->backend, both, e->ckpt, &e->weights, err);
    sy_graph_free(both);
    return st ? sy_while(err, st, "--draft-model mtp") : SY_OK;
}

sy_status draft_load(struct sy_engine *e, struct sy_err *err)
{
    struct draft *d = e->draft;
    int32_t n_slot = d->recurrent ? 1 + 2 * e->plan.seq_max : 1;
    struct sy_cache_dim dim = {e->plan.block_len, e->plan.n_block, n_slot, 0};
    struct sy_shape shape = sy_graph_shape(d->graph);
    sy_status st = d->mtp ? load_both(e, err) : e->ops->load(e->backend, d->graph, d->ckpt, &d->weights, err);
    bool buckets = e->opt.fixed_shapes || !e->plan.device.ragged;
    d->ladder = (struct ladder){.weights = d->mtp ? e->weights : d->weights, .dim = dim, .draft = true};
    if (!st && buckets) st = buckets_compile(e, shape, &d->ladder, err);
    if (!st && !buckets) st = e->ops->compile(e->backend, d->graph, d->ladder.weights, dim, &d->program, err);
    if (!st) st = e->ops->allocate_kv_cache(e->backend, d->graph, dim, &d->kv, err);
    if (!st) st = sy_batch_new(e->env, shape, &d->batch, err);
    if (st) return st;
    d->d_model = d->mtp ? e->model.info.d_model : 0;
    size_t n_group = (size_t)sy_shard_groups(&e->opt.backend_opt.shard), n_given = (size_t)shape.tok;
    if (d->mtp) d->given = sy_new_array(e->env, n_given, (size_t)d->d_model * sizeof *d->given);
    if (d->mtp && buckets)
        d->given_own = sy_new_array(e->env, n_group * n_given, (size_t)d->d_model * sizeof *d->given_own);
    d->fill = sy_new_array(e->env, n_group * (size_t)e->plan.n_block, sizeof *d->fill);
    d->who = sy_new_array(e->env, (size_t)shape.out, sizeof *d->who);
    d->home = sy_new_array(e->env, (size_t)shape.seq, sizeof *d->home);
    int32_t *first = sy_new_array(e->env, (size_t)shape.seq, sizeof *first),
            *row = sy_new_array(e->env, (size_t)shape.out, sizeof *row);
    d->step = (struct ladder_step){&d->batch, d->home, first, row};
    d->slot_free = sy_new_array(e->env, (size_t)e->plan.seq_max, sizeof *d->slot_free);
    bool ok = d->fill && d->who && d->home && first && row && d->slot_free;
    if ((d->mtp && !d->given) || (d->mtp && buckets && !d->given_own) || !ok)
        return sy_fail(err, SY_ENOMEM, "no memory for a draft model's step");
    for (int32_t i = 0; d->recurrent && i < e->plan.seq_max; i++) d->slot_free[d->n_slot_free++] = 1 + 2 * i;
    return SY_OK;
}

void draft_free(struct sy_engine *e)
{
    struct draft *d = e->draft;
    if (!d) return;
    sy_batch_release(e->env, &d->batch);
    e->ops->free_kv_cache(d->kv);
    e->ops->program_free(d->program);
    buckets_free(e, &d->ladder);
    e->ops->weights_free(d->weights);
    sy_delete(e->env, d->given);
    sy_delete(e->env, d->given_own);
    sy_delete(e->env, d->home);
    sy_delete(e->env, d->step.first);
    sy_delete(e->env, d->step.row);
    sy_delete(e->env, d->fill);
    sy_delete(e->env, d->who);
    sy_delete(e->env, d->slot_free);
    sy_graph_free(d->graph);
    sy_model_release(&d->model);
    sy_checkpoint_free(d->ckpt);
    sy_delete(e->env, d);
    e->draft = NULL;
}

/* ---- what a sequence has of it -------------------------------------------------------------------------------- */

void draft_forget(struct sy_engine *e, struct seq *s)
{
    if (s->draft.slot) e->draft->slot_free[e->draft->n_slot_free++] = s->draft.slot;
    s->draft.slot = s->draft.n_done = s->draft.base = s->draft.n_noted = s->draft.fed_n = 0;
    s->n_guess = 0;
}

/* Of a block of s. */
static uint64_t *fill_of(const struct sy_engine *e, const struct seq *s, int32_t block)
{
    return &e->draft->fill[s->home * e->plan.n_block + block];
}

void draft_adopt(struct sy_engine *e, struct seq *s)
{
    const struct draft *d = e->draft;
    if (!d || d->recurrent) return;
    int32_t n = 0;
    for (; n < s->n_block; n++) {
        uint64_t key = *fill_of(e, s, s->block[n]);
        if (!key || key != cache_of(e, s)->block[s->block[n]].key) break;
    }
    s->draft.n_noted = n;
    s->draft.n_done = n * e->plan.block_len;
}

void draft_fork(const struct sy_engine *e, const struct seq *s, struct seq *sibling)
{
    if (!e->draft || e->draft->recurrent) return;
    sibling->draft.n_done = s->draft.n_done;
    sibling->draft.n_noted = s->draft.n_noted;
    sibling->draft.base = s->draft.base;
}

/* Known blocks that it has been through. */
static void note_fill(struct sy_engine *e, struct seq *s)
{
    int32_t len = e->plan.block_len;
    if (e->draft->recurrent || s->draft.base > 0) return;
    for (; s->draft.n_noted < s->n_learned && (s->draft.n_noted + 1) * len <= s->draft.n_done; s->draft.n_noted++) {
        int32_t b = s->block[s->draft.n_noted];
        *fill_of(e, s, b) = cache_of(e, s)->block[b].key;
    }
}

/* ---- one step of the draft ------------------------------------------------------------------------------------ */

static void clear(struct draft *d) { d->batch.n_tok = d->batch.n_seq = d->batch.n_out = 0; }

/* Positions [pos, pos + n) of s, from slot rd to slot wr; `want`: the row behind the last of them. A row of MTP's
 * position i is token i + 1. */
static void put(struct sy_engine *e, struct seq *s, int32_t pos, int32_t n, int32_t rd, int32_t wr, bool want)
{
    struct draft *d = e->draft;
    struct sy_batch *b = &d->batch;
    int32_t len = e->plan.block_len, base = s->draft.base, *table;
    table = b->field[SY_BLOCK_TABLE] + (int64_t)b->n_seq * b->shape.block;
    memcpy(table, s->block + base / len, (size_t)(s->n_block - base / len) * sizeof *table);
    b->field[SY_SLOT_RD][b->n_seq] = rd;
    b->field[SY_SLOT_WR][b->n_seq] = wr;
    b->field[SY_START][b->n_seq] = b->n_tok;
    d->home[b->n_seq] = s->home;
    for (int32_t i = pos; i < pos + n; i++) {
        int32_t at = b->n_tok++;
        b->field[SY_TOK][at] = s->tok[i + d->mtp];
        b->field[SY_POS][at] = i - base;
        b->field[SY_SPAN][at] = i < s->of->n_prompt ? s->of->n_prompt : i + 1;
        b->field[SY_ROW][at] = s->block[i / len] * len + i % len;
    }
    b->field[SY_CTX][b->n_seq] = pos + n - base;
    b->field[SY_START][++b->n_seq] = b->n_tok;
    if (!want) return;
    d->who[b->n_out] = s;
    d->step.row[b->n_out] = b->n_out;
    b->field[SY_OUT][b->n_out++] = b->n_tok - 1;
}

/* The given rows as the entries of each group lie in a bucket. */
static void give_rows(struct sy_engine *e, struct bucket *b)
{
    struct draft *d = e->draft;
    size_t each = (size_t)d->d_model * sizeof *d->given;
    int64_t n = b->batch[0].shape.tok;
    for (int32_t g = 0; g < e->n_group && d->mtp; g++) {
        b->batch[g].given = d->given_own + g * n * d->d_model;
        b->batch[g].ld_given = d->d_model;
    }
    for (int32_t s = 0; s < d->batch.n_seq && d->mtp; s++) {
        int32_t at = d->batch.field[SY_START][s], end = d->batch.field[SY_START][s + 1];
        memcpy(d->given_own + (int64_t)d->step.first[s] * d->d_model, d->given + (int64_t)at * d->d_model,
               (size_t)(end - at) * each);
    }
}

static sy_status run(struct sy_engine *e, struct sy_result *r, struct sy_err *err)
{
    struct draft *d = e->draft;
    bool logits = false;
    for (int32_t i = 0; i < d->batch.n_out; i++) logits |= !d->who[i]->of->plain;
    d->batch.given = d->given;
    d->batch.ld_given = d->d_model;
    struct bucket *b = NULL;
    sy_status st = d->ladder.bucket ? buckets_fit(e, &d->ladder, &d->step, &b, err) : SY_OK;
    if (st) return st;
    if (b) give_rows(e, b);
    st = e->ops->forward(e->backend, b ? b->program : d->program, d->kv, b ? b->batch : &d->batch);
    if (st) return sy_fail(err, st, "the backend refused a step of the draft model");
    return e->ops->wait(e->backend, (struct sy_want){.logits = logits, .hidden = d->mtp}, r, err);
}

/* Room for k guesses behind the tokens: blocks that no running sequence may want in the next step. */
static int32_t room(struct sy_engine *e, struct seq *s, int32_t k)
{
    int32_t len = e->plan.block_len;
    if (k > s->n_end - s->n_tok - 1) k = s->n_end - s->n_tok - 1;
    if (k > e->draft->n_ctx - s->n_tok) k = e->draft->n_ctx - s->n_tok;
    return k > 0 ? spec_lease(e, s, k, len) : 0;
}

/* Where the draft goes on; false: not in this step. */
static bool goes_on(struct sy_engine *e, struct seq *s, int32_t end)
{
    struct draft *d = e->draft;
    int32_t len = e->plan.block_len;
    if (d->recurrent && !s->draft.slot) {
        s->draft.n_done = 0;
        s->draft.slot = d->slot_free[--d->n_slot_free]; /* a pair for each running sequence is there */
    }
    if (!d->mtp || s->draft.n_done >= s->draft.fed_pos) return true;
    int32_t from = blocks_of(s->draft.fed_pos, len) * len; /* hidden states are missing */
    if (from >= end) return false;
    s->draft.base = s->draft.n_done = from;
    return true;
}

/* What is new of s, and how many guesses are wanted behind it. */
static int32_t feed(struct sy_engine *e, struct seq *s, const struct sy_result *r, bool mixed)
{
    struct draft *d = e->draft;
    struct sy_batch *b = &d->batch;
    bool decode = s->last_ns > 0 && s->n_tok - s->n_done <= 1 + e->opt.draft_max;
    int32_t k = 0, end = decode ? s->n_tok : s->n_done, fed = s->draft.fed_pos + s->draft.fed_n;
    if (d->mtp && s->draft.fed_n == 0) return 0;
    if (d->mtp) end = fed < s->n_tok - 1 ? fed : s->n_tok - 1;
    if (end > d->n_ctx || s->of->siblings) return 0;
    bool trial = !spec_pays(e, s, 0), curious = s->of->id % 16 == 0;
    if (trial && !curious && (!decode || (!d->mtp && end - s->draft.n_done > LAG_MOST))) return 0;
    if (decode) k = room(e, s, spec_len(e, s, 0, e->opt.draft_max));
    if (decode && k == 0) return 0;
    if (!goes_on(e, s, end)) return 0;
    int32_t n = end - s->draft.n_done, left = b->shape.tok - b->n_tok;
    if (mixed && left > b->shape.tok / 4) left = b->shape.tok / 4; /* others wait for their next token */
    if (n > left) {
        n = left;
        k = 0;
    }
    if (n <= 0 || sy_cache_is_shared(cache_of(e, s), s->block[(s->draft.n_done + n - 1) / e->plan.block_len]))
        return 0;
    for (int32_t i = 0; d->mtp && i < n; i++)
        memcpy(d->given + (int64_t)(b->n_tok + i) * d->d_model,
               r->all + (s->draft.fed_row + s->draft.n_done + i - s->draft.fed_pos) * r->ld_all,
               (size_t)d->d_model * sizeof *d->given);
    put(e, s, s->draft.n_done, n, s->draft.slot, s->draft.slot, k > 0);
    s->draft.n_done += n;
    return k;
}

static int32_t guess_of(struct sy_engine *e, struct seq *s, const struct sy_result *r, int32_t row)
{
    const struct seq_request *q = s->of;
    if (q->plain) return r->token[row];
    struct sy_sampling how = q->how;
    how.seed += (uint64_t)s->sample;
    how.n_logprob = -1;
    struct sy_sample_in in = {.logits = r->logits + row * r->ld,
                              .n_vocab = r->n_vocab < e->plan.info.n_vocab ? r->n_vocab : e->plan.info.n_vocab,
                              .how = &how,
                              .draw = s->n_draw + (uint64_t)s->n_guess};
    struct sy_sample_out o;
    sy_sample_draw(&in, e->scratch, &o);
    return o.id;
}

/* Guesses of the rows that ran become tokens of the next step of the draft. */
static void take_guesses(struct sy_engine *e, const struct sy_result *r)
{
    struct draft *d = e->draft;
    int32_t n = d->batch.n_out;
    clear(d);
    for (int32_t i = 0; i < n; i++) {
        struct seq *s = d->who[i];
        int32_t row = d->step.row[i], id = guess_of(e, s, r, row), pos = s->n_tok + s->n_guess - d->mtp;
        if (id >= e->plan.info.n_vocab) continue; /* one of those that pad its vocabulary */
        s->tok[s->n_tok + s->n_guess++] = id;
        if (s->n_guess >= s->draft.want) continue;
        if (d->mtp)
            memcpy(d->given + (int64_t)d->batch.n_tok * d->d_model, r->hidden + row * r->ld_hidden,
                   (size_t)d->d_model * sizeof *d->given);
        int32_t slot = s->draft.slot, next = slot ? slot + 1 : 0;
        put(e, s, pos, 1, s->n_guess > 1 ? next : slot, next, true);
    }
}

sy_status draft_run(struct sy_engine *e, const struct sy_result *step, struct sy_err *err)
{
    struct draft *d = e->draft;
    uint64_t began = sy_now_ns(e->env) - d->ladder.compile_ns;
    int32_t n_run = 0, n_guessing = 0, n_tok = 0;
    clear(d);
    for (int32_t i = 0; i < e->n_running; i++) {
        struct seq *s = e->running[i];
        s->n_guess = 0;
        if (d->batch.n_seq == d->batch.shape.seq) break;
        s->draft.want = feed(e, s, step, e->n_running > 1);
        n_guessing += s->draft.want > 0;
        note_fill(e, s);
    }
    n_tok = d->batch.n_tok;
    for (struct sy_result r; d->batch.n_tok > 0; n_run++) {
        sy_status st = run(e, &r, err);
        if (st) return st;
        take_guesses(e, &r);
    }
    if (n_run) spec_draft_cost(e, sy_now_ns(e->env) - d->ladder.compile_ns - began, n_run, n_guessing, n_tok);
    return SY_OK;
}
