#include "backend/cpu/kernel.h"

#include <stdio.h>
#include <string.h>

enum { TEN = 10 };

static const void *table_of(const char *family, const char *isa)
{
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++)
        if (strcmp(e->family, family) == 0 && strcmp(e->isa, isa) == 0) return e->table;
    return NULL;
}

/* The usable folder of the lowest rank above `rank`, up to rank_max; NULL: none. */
static const struct sy_kernel_entry *next_isa(int rank, int rank_max)
{
    const struct sy_kernel_entry *best = NULL;
    int best_rank = 0;
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family; e++) {
        if (strcmp(e->family, "isa") != 0) continue;
        const struct sy_kernels_isa *isa = e->table;
        if (isa->rank <= rank || isa->rank > rank_max || (best && isa->rank >= best_rank) || !isa->usable()) continue;
        best = e;
        best_rank = isa->rank;
    }
    return best;
}

/* Families are structs of function pointers and nothing else, so a table is an array of them. */
typedef void entry_fn(void);
#define MERGE(family, isa_name, into)                                                                                \
    do {                                                                                                             \
        _Static_assert(sizeof(into) % sizeof(entry_fn *) == 0, "a table holds function pointers only");              \
        merge(table_of(family, isa_name), &(into), sizeof(into) / sizeof(entry_fn *));                               \
    } while (0)

static void merge(const void *from, void *into, size_t n)
{
    for (size_t i = 0; from && i < n; i++) {
        entry_fn *f;
        memcpy(&f, (const char *)from + i * sizeof f, sizeof f);
        if (f) memcpy((char *)into + i * sizeof f, &f, sizeof f);
    }
}

static void list_isas(char *buf, size_t n, bool usable_only)
{
    size_t at = 0;
    buf[0] = 0;
    for (const struct sy_kernel_entry *e = sy_kernel_entries; e->family && at < n; e++) {
        if (strcmp(e->family, "isa") != 0) continue;
        if (usable_only && !((const struct sy_kernels_isa *)e->table)->usable()) continue;
        at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "", e->isa);
    }
}

sy_status sy_kernels_pick(const char *isa, struct sy_kernels *out, struct sy_err *err)
{
    int rank_max = INT32_MAX;
    char names[160];
    if (isa) {
        const struct sy_kernels_isa *asked = table_of("isa", isa);
        if (!asked) {
            list_isas(names, sizeof names, false);
            return sy_fail(err, SY_EARG, "unknown instruction set '%s'; this build has %s", isa, names);
        }
        if (!asked->usable()) {
            list_isas(names, sizeof names, true);
            return sy_fail(err, SY_ENOSUP, "this machine cannot run instruction set '%s'; it can run %s", isa, names);
        }
        rank_max = asked->rank / TEN * TEN + TEN - 1;
    }
    struct sy_kernels k = {0};
    size_t at = 0;
    int rank = -1;
    for (const struct sy_kernel_entry *e; (e = next_isa(rank, rank_max)) != NULL;) {
        const struct sy_kernels_isa *found = e->table;
        rank = found->rank;
        MERGE("gemm", e->isa, k.gemm);
        MERGE("attend", e->isa, k.attend);
        MERGE("vec", e->isa, k.vec);
        MERGE("scan", e->isa, k.scan);
        MERGE("peak", e->isa, k.peak);
        k.bf16 |= found->bf16;
        k.bf16_codes |= found->bf16_codes;
        at += (size_t)snprintf(k.isa + at, sizeof k.isa - at, "%s%s", at ? " " : "", e->isa);
        if (at >= sizeof k.isa) at = sizeof k.isa - 1;
    }
    *out = k;
    return SY_OK;
}
