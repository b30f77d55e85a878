/* Experts stored as one tensor per layer: split into one per expert, where they lie, so that models and backends know
 * one way only. */
#include <stdio.h>
#include <string.h>

#include "checkpoint/internal.h"

struct stack_rule {
    const char *stored;  /* what the name ends with */
    const char *stem;    /* what stands there instead, before the expert's number and the part */
    const char *part[2]; /* tails of the names of the parts: halves of the rows; one: all of them */
    int n_dim;           /* 3: matrices, 2: biases */
    bool alone;          /* one matrix, of no expert; n_dim counts one of them */
};
static const struct stack_rule rules[] = {
    {"experts.gate_up_proj", "experts.", {"gate_proj.weight", "up_proj.weight"}, 3, false},
    {"experts.down_proj", "experts.", {"down_proj.weight", NULL}, 3, false},
    {"experts.gate_up_proj_bias", "experts.", {"gate_proj.bias", "up_proj.bias"}, 2, false},
    {"experts.down_proj_bias", "experts.", {"down_proj.bias", NULL}, 2, false},
    {"block_sparse_moe.input_linear.weight",
     "block_sparse_moe.experts.",
     {"gate_proj.weight", "up_proj.weight"},
     3,
     false},
    {"block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.", {"down_proj.weight", NULL}, 3, false},
    {"shared_mlp.input_linear.weight", "shared_mlp.", {"gate_proj.weight", "up_proj.weight"}, 3, true},
};

/* Classes whose matrices are stored [in, out] unless quantised, and whose rows of gate and up alternate. */
static const struct {
    const char *class_start;
    bool transposed, alternate;
} classes[] = {
    {"GptOss", true, true},
    {"Llama4", true, false},
};

struct dialect {
    bool transposed, alternate;
};

static struct dialect dialect_of(const struct sy_checkpoint *c)
{
    const char *name = sy_json_text(sy_json_at(sy_json_get(c->config, "architectures"), 0));
    for (size_t i = 0; name && i < SY_COUNT(classes); i++)
        if (!strncmp(name, classes[i].class_start, strlen(classes[i].class_start)))
            return (struct dialect){classes[i].transposed, classes[i].alternate};
    return (struct dialect){0};
}

static const struct stack_rule *rule_of(const struct sy_tensor *t)
{
    size_t n = strlen(t->name);
    for (size_t i = 0; i < SY_COUNT(rules); i++) {
        size_t m = strlen(rules[i].stored);
        if (n > m && !strcmp(t->name + n - m, rules[i].stored) && t->name[n - m - 1] == '.' &&
            t->n_dim == rules[i].n_dim - rules[i].alone && t->format)
            return &rules[i];
    }
    return NULL;
}

/* Part `half` of `parts` of one expert, whose bytes start at `data`: [rows, cols] stored, or [cols, rows]. */
static void cut(struct sy_tensor *t, const unsigned char *data, int64_t rows, int64_t cols, int half, int parts,
                struct dialect d)
{
    int64_t size = t->format->block_bytes, mine = rows / parts, step = d.alternate && parts == 2 ? 2 : 1;
    int64_t first = step == 2 ? half : half * mine;
    t->n_dim = 2;
    t->dim[0] = mine;
    t->dim[1] = cols;
    t->dim[2] = 1;
    if (t->parts) {
        t->part_row0 += first;
        t->part_step = step;
    } else if (d.transposed) {
        t->data = data + first * size;
        t->row_bytes = step * size;
        t->col_bytes = rows * size;
    } else {
        int64_t row = sy_quant_row_bytes(t->format, cols);
        t->data = data + first * row;
        t->row_bytes = step * row;
    }
}

/* The same of a bias of `rows` elements. */
static void cut_bias(struct sy_tensor *t, const unsigned char *data, int64_t rows, int half, int parts,
                     struct dialect d)
{
    int64_t size = t->format->block_bytes, mine = rows / parts, step = d.alternate && parts == 2 ? 2 : 1;
    t->n_dim = 1;
    t->dim[0] = mine;
    t->dim[1] = 1;
    t->data = data + (step == 2 ? half : half * mine) * size;
    if (step == 2) t->col_bytes = step * size;
}

static sy_status split(struct sy_checkpoint *c, const struct sy_tensor *whole, const struct stack_rule *r,
                       struct dialect d, struct sy_err *err)
{
    int parts = r->part[1] ? 2 : 1;
    bool bias = r->n_dim == 2, blocks = whole->format->block_len > 1 || whole->parts;
    if (blocks) d.transposed = false;
    int64_t n = whole->dim[0], rows = whole->dim[d.transposed && !bias ? 2 : 1],
            cols = whole->dim[d.transposed ? 1 : 2];
    if (n < 1 || n > SY_CKPT_EXPERTS_MAX || rows % parts || (bias && blocks))
        return sy_fail(err, SY_ESHAPE, "'%s': tensor '%s': expected up to %d experts of %s, found [%lld, %lld, %lld]",
                       whole->file, whole->file_name, SY_CKPT_EXPERTS_MAX, parts == 2 ? "two halves" : "rows",
                       (long long)n, (long long)whole->dim[1], (long long)whole->dim[2]);
    size_t each = whole->n_bytes / (size_t)n, before = strlen(whole->name) - strlen(r->stored);
    for (int64_t e = 0; e < n; e++)
        for (int half = 0; half < parts; half++) {
            struct sy_tensor t = *whole;
            if (r->alone)
                t.name = sy_arena_printf(&c->mem, "%.*s%s%s", (int)before, whole->name, r->stem, r->part[half]);
            else
                t.name = sy_arena_printf(&c->mem, "%.*s%s%lld.%s", (int)before, whole->name, r->stem, (long long)e,
                                         r->part[half]);
            if (!t.name) return sy_ckpt_nomem(c, err);
            const unsigned char *data = whole->data ? whole->data + each * (size_t)e : NULL;
            if (bias) cut_bias(&t, data, rows, half, parts, d);
            else cut(&t, data, rows, cols, half, parts, d);
            t.n_bytes = each / (size_t)parts;
            if (t.parts) t.part_row0 += e * rows;
            sy_status st = sy_ckpt_add(c, &t, err);
            if (st) return st;
        }
    return SY_OK;
}

sy_status sy_stacked_split(struct sy_checkpoint *c, struct sy_err *err)
{
    struct dialect d = dialect_of(c);
    size_t n = c->n_tensor, kept = 0;
    sy_status st = SY_OK;
    for (size_t i = 0; i < n && st == SY_OK; i++) {
        struct sy_tensor whole = c->tensor[i];
        const struct stack_rule *r = rule_of(&whole);
        if (r && r->alone) {
            memmove(whole.dim + 1, whole.dim, 3 * sizeof *whole.dim);
            whole.dim[0] = 1;
            whole.n_dim = 3;
        }
        if (r) st = split(c, &whole, r, d, err);
        else c->tensor[kept++] = whole;
    }
    if (st) return st;
    if (kept < n) memmove(c->tensor + kept, c->tensor + n, (c->n_tensor - n) * sizeof *c->tensor);
    c->n_tensor -= n - kept;
    return SY_OK;
}
