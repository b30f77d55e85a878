#include "checkpoint/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/internal.h"
#include "quant/scheme/scheme.h"

/* Whole pages of a file alone: memory of other kinds would lose what it holds. */
static void let_go(const struct sy_checkpoint *c, const unsigned char *at, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < c->n_map; i++) {
        const struct sy_map *m = &c->map[i];
        if (at < m->at || at >= m->at + m->n || n > (size_t)(m->at + m->n - at)) continue;
        size_t from = ((size_t)(at - m->at) + page - 1) / page * page,
               to = (size_t)(at - m->at + (ptrdiff_t)n) / page * page;
        if (from < to) (void)madvise((void *)(uintptr_t)(m->at + from), to - from, MADV_DONTNEED);
    }
}

void sy_checkpoint_let_go(const struct sy_checkpoint *c, const struct sy_tensor *t, int64_t lo, int64_t hi)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->n_dim; i++) rows *= t->dim[i];
    if (rows < 1 || lo < 0 || hi > rows || lo >= hi || t->row_bytes || t->col_bytes || t->part_step > 1) return;
    size_t n = t->n_bytes / (size_t)rows;
    if (t->data) let_go(c, t->data + n * (size_t)lo, n * (size_t)(hi - lo));
    for (int i = 0; t->parts && i < SY_PARTS_MAX && lo == 0 && hi == rows; i++)
        if (t->parts->part[i].at) let_go(c, t->parts->part[i].at, t->parts->part[i].n_bytes);
}
