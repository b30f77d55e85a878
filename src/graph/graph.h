/* graph.h - the program a model is, for ONE shape: SSA over a closed set of transformer ops.
 *
 * Built once per bucket at start-up, never while serving. A value is an index, so a graph is a flat array: print,
 * hash, diff it, send it to a rank. Errors stick: after the first, builders return SY_NONE and do nothing, so model
 * code has no checks; sy_graph_finish() reports it. Values are [rows, cols]; rows is the step's tok or out. */
#pragma once
#include "base/arena.h"
#include "base/buf.h"
#include "graph/step.h"

typedef struct {
    uint32_t id;
} sy_val;
#define SY_NONE ((sy_val){0})

/* The whole vocabulary. Each op owns, by table: a shape rule and a cost rule (graph/), a lowering per backend. A gap
 * is a compile error or a refusal by op name. */
#define SY_OPS(X)                                                                                                    \
    X(INPUT, "a field of the step")                                                                                  \
    X(WEIGHT, "a named tensor")                                                                                      \
    X(STATE, "blocks or slots")                                                                                      \
    X(EMBED, "rows of a table by token id")                                                                          \
    X(LINEAR, "x w^T (+ b), accumulated in f32")                                                                     \
    X(NORM, "root mean square norm over the last d of w, times w")                                                   \
    X(ROPE, "rotates pairs of the first d_rot dims of each head by position")                                        \
    X(ACT, "elementwise function")                                                                                   \
    X(GLU, "act(a) * b")                                                                                             \
    X(ADD, "a + b")                                                                                                  \
    X(MUL, "a * b")                                                                                                  \
    X(SCALE, "x * constant")                                                                                         \
    X(SOFTCAP, "c tanh(x / c)")                                                                                      \
    X(PART, "columns [lo, hi)")                                                                                      \
    X(ROWS, "the rows that OUT names")                                                                               \
    X(ATTEND, "paged ragged causal attention; writes k and v to its state first")                                    \
    X(SAMPLE, "the most likely token of each row of logits")
enum sy_op {
#define X(name, doc) SY_OP_##name,
    SY_OPS(X)
#undef X
        SY_OP_COUNT
};
const char *sy_op_name(enum sy_op);

enum sy_dtype { SY_F32, SY_BF16, SY_I32 };                     /* compute types; storage formats stay in quant/ */
enum sy_split { SY_WHOLE, SY_BY_OUT, SY_BY_IN, SY_BY_EXPERT }; /* how ranks share a weight */
enum sy_fn { SY_SILU, SY_GELU, SY_GELU_TANH, SY_SIGMOID };

struct sy_attn_dim {
    int32_t n_head, n_kv, d_key, d_val;
    int32_t window;       /* keys seen, itself included; 0: all (query i sees j with i - window < j <= i) */
    float scale, softcap; /* softcap 0: none */
};
/* Angle of pair i at position p is p * inv_freq[i]; cos and sin are multiplied by mscale. Pairs are (i, i + d_rot/2),
 * or (2i, 2i+1) when interleaved. RoFormer: Su et al., arXiv:2104.09864. */
struct sy_rope_dim {
    int32_t d_head, d_rot;
    bool interleaved;
    float mscale;
    const float *inv_freq; /* [d_rot/2], in the arena of the model's hyper-parameters */
};
union sy_attr {
    struct sy_attn_dim attn;
    struct sy_state_spec state;
    struct sy_rope_dim rope;
    struct {
        int32_t lo, hi;
    } part;
    struct {
        enum sy_split split;
        bool plus_one; /* a norm's stored w means 1 + w */
    } weight;
    float eps, c;
    enum sy_fn fn;
    enum sy_field field;
};
struct sy_node {
    enum sy_op op;
    enum sy_dtype dtype;
    int32_t layer; /* -1: outside the layers */
    int64_t dim[2];
    sy_val in[4];
    const char *name; /* weights only; in the graph's arena */
    union sy_attr attr;
};

struct sy_graph; /* owns one arena: freed in one call */
SY_CHECK sy_status sy_graph_new(const struct sy_env *, struct sy_shape, struct sy_graph **out, struct sy_err *);
void sy_graph_free(struct sy_graph *);
SY_CHECK sy_status sy_graph_finish(struct sy_graph *, sy_val tokens_out, struct sy_err *);
const struct sy_node *sy_graph_nodes(const struct sy_graph *, uint32_t *n); /* borrowed; node 0 is SY_NONE */
sy_val sy_graph_result(const struct sy_graph *);                            /* the SAMPLE node */
struct sy_shape sy_graph_shape(const struct sy_graph *);
void sy_graph_print(const struct sy_graph *, struct sy_buf *);
/* For a model that finds its hyper-parameters impossible while building. */
void sy_graph_refuse(struct sy_graph *, sy_status, const char *fmt, ...) SY_PRINTF(3, 4);

/* Work of one step, by node and in sum. Bytes are what must cross memory once at least. */
struct sy_cost {
    double flops, b_weight, b_state, b_act;
};
struct sy_load { /* what a step holds; weight_bytes: of one element, by node (NULL: 2 each) */
    double tok, out;
    double keys; /* sum over tokens of the keys each sees (no window) */
    double ctx;  /* sum over sequences of the context length: keys that must be read */
    double kv_elem_bytes;
    double (*weight_bytes)(void *ctx, const struct sy_node *);
    void *weight_ctx;
};
struct sy_cost sy_node_cost(const struct sy_graph *, uint32_t node, const struct sy_load *);
struct sy_cost sy_graph_cost(const struct sy_graph *, const struct sy_load *);

/* Sources. The manifest (weights to load, state to allocate) is read back from these nodes; there is no second table
 * to keep in step. In name %d is the layer; {a,b,c} joins the rows of several tensors, in that order ("{q,k,v}_proj":
 * the checkpoint's reader never sees the joined name, see sy_weight_part()). A vector is [1, d]. */
sy_val sy_input(struct sy_graph *, enum sy_field);
sy_val sy_weight(struct sy_graph *, enum sy_split, const char *name, int layer, int64_t rows, int64_t cols);
sy_val sy_norm_weight(struct sy_graph *, const char *name, int layer, int64_t d, bool plus_one);
sy_val sy_state(struct sy_graph *, struct sy_state_spec);
/* i-th tensor name of a joined name, written to buf; false when there are no more. */
bool sy_weight_part(const char *name, int i, char *buf, size_t n_buf);

/* Ops. State is linear: an op consumes one version and leaves the next, which is memory updated in place on the CPU
 * and a donated operand/result pair in StableHLO. */
sy_val sy_embed(struct sy_graph *, sy_val table, sy_val ids);
sy_val sy_linear(struct sy_graph *, sy_val x, sy_val w, sy_val bias_or_none);
sy_val sy_norm(struct sy_graph *, sy_val x, sy_val w, float eps);
sy_val sy_rope(struct sy_graph *, sy_val x, struct sy_rope_dim);
sy_val sy_act(struct sy_graph *, sy_val x, enum sy_fn);
sy_val sy_glu(struct sy_graph *, sy_val gate, sy_val up, enum sy_fn);
sy_val sy_add(struct sy_graph *, sy_val a, sy_val b);
sy_val sy_mul(struct sy_graph *, sy_val a, sy_val b);
sy_val sy_scale(struct sy_graph *, sy_val x, float c);
sy_val sy_softcap(struct sy_graph *, sy_val x, float c);
sy_val sy_part(struct sy_graph *, sy_val x, int32_t lo, int32_t hi);
sy_val sy_rows(struct sy_graph *, sy_val x);
sy_val sy_attend(struct sy_graph *, sy_val q, sy_val k, sy_val v, sy_val kv, struct sy_attn_dim);
sy_val sy_sample(struct sy_graph *, sy_val logits);
