/* scheme_int.h - what the schemes share: checking parts, reading numbers of several types. Private to this folder. */
#pragma once
#include "quant/quant_int.h"
#include "quant/scheme/scheme.h"

/* Element i of a part of floats. */
float sy_part_float(const struct sy_part *, int64_t i);
/* Fails unless the part has this shape; dims of -1 are free. Leading dimensions of 1 may be missing or extra. */
sy_status sy_part_shape(const struct sy_part *, int n_dim, int64_t d0, int64_t d1, struct sy_err *);
/* Fails unless the part is there and of one of the types (a mask of SY_TYPE()). */
#define SY_TYPE(t) (1u << SY_PART_##t)
enum { SY_TYPES_FLOAT = SY_TYPE(F32) | SY_TYPE(F16) | SY_TYPE(BF16) };
sy_status sy_part_need(const struct sy_parts *, int i, unsigned types, const char *what, struct sy_err *);
/* Part i is the group of each column, below the number of groups. *odd: the first column that is not in the group of
 * its place, -1 where there is none. */
sy_status sy_part_order(const struct sy_parts *, int i, int64_t *odd, struct sy_err *);
/* The format of a weight of codes: affine if its groups are whole layout groups (16, or multiples of 32). */
void sy_parts_affine(struct sy_parts *, const char *name, struct sy_affine);
/* How many stored values a layout's group stands for: scale g of the layout is scale g / this of the file. */
static inline int64_t sy_parts_spread(const struct sy_parts *p) { return p->group / p->format.affine.group; }
