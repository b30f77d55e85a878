/* lower_int.h - what lower.c and lower_attend.c share. */
#pragma once
#include "backend/pjrt/pjrt_int.h"

struct rope_value {
    const float *inv_freq;
    int32_t n;
    int cos, sin; /* f32 [tok, n] */
};
struct lower {
    struct pj_hlo h;
    const struct sy_node *node;
    uint32_t n_node;
    struct sy_shape shape;
    const struct sy_weights *w;
    struct pj_lower_opt opt;
    int *val; /* by node: its value; -1: none */
    int step; /* the step's int32 block */
    int field[SY_FIELD_COUNT];
    int arg0; /* of the weights */
    int *kv;  /* [2 n_attend] the KV arrays as they are now */
    int n_kv;
    struct rope_value rope[8];
    int n_rope;
    sy_status st;
    struct sy_err *err;
};
int lower_field(struct lower *, enum sy_field); /* the step's field, i32 [its length] */
/* a * b over one dimension each, as the graph's arithmetic has it: operands of the compute type, sums in f32. */
int lower_dot(struct lower *, int a, int b, const struct pj_dot *);
int lower_vec(struct lower *, sy_val weight); /* a WEIGHT used as a vector, f32 [cols] */
int lower_fn(struct lower *, enum sy_fn, int x);
/* Numbers of a quantised [rows, cols]: scale * code + min (-1: none), each group of a row with its own. */
int lower_dequantised(struct lower *, const struct pj_wseg *, int code, int scale, int min);
void lower_attend(struct lower *, uint32_t id);
int lower_route(struct lower *, const struct sy_node *);
int lower_experts(struct lower *, const struct sy_node *);
