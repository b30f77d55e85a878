#include "graph/step.h"

int64_t sy_field_len(enum sy_field f, struct sy_shape s)
{
    switch (f) {
    case SY_TOK:
    case SY_POS:
    case SY_SPAN:
    case SY_ROW: return s.tok;
    case SY_START: return (int64_t)s.seq + 1;
    case SY_CTX:
    case SY_SLOT_RD:
    case SY_SLOT_WR: return s.seq;
    case SY_BLOCK_TABLE: return (int64_t)s.seq * s.block;
    case SY_ROW_APART: return s.apart ? s.tok : 0;
    case SY_TABLE_APART: return s.apart ? (int64_t)s.seq * s.block : 0;
    case SY_OUT: return s.out;
    case SY_FIELD_COUNT: break;
    }
    return 0;
}

const char *sy_field_name(enum sy_field f)
{
    static const char *const names[] = {
#define X(name, doc) #name,
        SY_FIELDS(X)
#undef X
    };
    return (unsigned)f < SY_COUNT(names) ? names[f] : "?";
}

sy_status sy_batch_new(const struct sy_env *env, struct sy_shape shape, struct sy_batch *b, struct sy_err *err)
{
    *b = (struct sy_batch){.shape = shape};
    for (int f = 0; f < SY_FIELD_COUNT; f++) b->n_mem += (size_t)sy_field_len(f, shape);
    b->mem = sy_new_array(env, b->n_mem, sizeof *b->mem);
    if (!b->mem) return sy_fail(err, SY_ENOMEM, "no memory for a step of %zu integers", b->n_mem);
    int32_t *at = b->mem;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        b->field[f] = at;
        at += sy_field_len(f, shape);
    }
    return SY_OK;
}

void sy_batch_release(const struct sy_env *env, struct sy_batch *b)
{
    sy_delete(env, b->mem);
    *b = (struct sy_batch){0};
}
