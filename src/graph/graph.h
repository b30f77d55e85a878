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
    X(CONST, "a row of numbers of the model's hyper-parameters")                                                     \
    X(STATE, "blocks or slots")                                                                                      \
    X(GIVEN, "rows of floats that come with the step, one for each token")                                           \
    X(EMBED, "rows of a table by token id; ids beyond it: row 0; of a shared table zeros for others' rows")          \
    X(LINEAR, "x w^T (+ b), accumulated in f32")                                                                     \
    X(NORM, "root mean square norm over runs of d, the mean taken off before if so said, times w if any")            \
    X(ROPE, "rotates pairs of d_rot dims of each head by position")                                                  \
    X(ACT, "elementwise function")                                                                                   \
    X(GLU, "act(a) * b")                                                                                             \
    X(ADD, "a + b")                                                                                                  \
    X(MUL, "a * b, b alike or one row or one column")                                                                \
    X(SCALE, "x * constant")                                                                                         \
    X(SOFTCAP, "c tanh(x / c)")                                                                                      \
    X(TEMPER, "x * (1 + beta ln(1 + floor((position + offset) / every)))")                                           \
    X(SPARSIFY, "max(x - (mean + c deviations) of the row, 0)")                                                      \
    X(MATCH, "a, scaled to the root mean square of b's row")                                                         \
    X(PART, "columns [lo, hi)")                                                                                      \
    X(JOIN, "columns of a, then of b")                                                                               \
    X(HEADS, "the columns of each head by a matrix of its own")                                                      \
    X(ROWS, "the rows that OUT names")                                                                               \
    X(RANK_SUM, "sum over a group of ranks")                                                                         \
    X(RANK_JOIN, "columns of a group's ranks, in their order")                                                       \
    X(RANK_ROWS, "rows of a group's ranks, in their order")                                                          \
    X(RANK_SHARE, "sum over a group's ranks, of whose rows each keeps its part")                                     \
    X(RANK_SHIFT, "the value that the rank before in the group has; the first has zeros")                            \
    X(RANK_PICK, "the value that one rank of the group has")                                                         \
    X(INDEX, "chooses the keys that each token attends to; writes k to its state first")                             \
    X(ATTEND, "paged ragged causal attention; writes k and v to its state first")                                    \
    X(ROUTE, "chooses experts: [ids | weights] of the n_used best by score")                                         \
    X(EXPERTS, "weighted sum of the chosen experts' feed-forward networks")                                          \
    X(CONV, "causal convolution of each column along its sequence; its slot holds the last inputs")                  \
    X(SCAN, "gated linear attention along a sequence; its slot holds the matrix of each head")                       \
    X(GATES, "weights of a mixture of streams: two kinds of sigmoids and a matrix whose rows and columns sum to 1")  \
    X(BLEND, "streams, each a weighted sum of those given, and of a value that all share if any")                    \
    X(COMPRESS, "per column, a mean over a run of tokens weighted by softmax; its slot holds the sums")              \
    X(KEEP, "writes the row of every so-manieth token to its state")                                                 \
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
/* quick: x sigmoid(1.702 x); relu2: max(x, 0)^2 */
enum sy_fn { SY_SILU, SY_GELU, SY_GELU_TANH, SY_SIGMOID, SY_GELU_QUICK, SY_RELU2, SY_TANH, SY_SOFTPLUS };
enum sy_wmap { SY_AS_IS, SY_PLUS_ONE, SY_NEG_EXP }; /* of a vector's stored values: w, 1 + w, -exp(w) */

struct sy_attn_dim {
    int32_t n_head, n_kv, d_key, d_val;
    int32_t window;       /* keys seen, itself included; 0: all (query i sees j with i - window < j <= i) */
    float scale, softcap; /* softcap 0: none */
    int32_t chunk;        /* only keys of the same run of chunk positions are seen; 0: no such bound */
    bool shared;          /* V is the first d_val elements of K, and not stored */
    int32_t stage_ranks;  /* only ranks r with r / stage_ranks == stage write keys and values; 0: all do */
    int32_t stage;
};
/* y of head h is W_h x of its first d_in columns; its other columns follow unchanged. Of w, w_rows rows belong to a
 * head: W_h is rows [row0, row0 + d_out) of them, [d_out, d_in], or, transposed, the transpose of rows
 * [row0, row0 + d_in), [d_in, d_out]. (The two halves of kv_b_proj in multi-head latent attention, DeepSeek-V2,
 * arXiv:2405.04434, section 2.1.2.) */
struct sy_heads_dim {
    int32_t n_head, d_in, d_out, w_rows, row0;
    bool transposed;
};
/* Manifold-constrained hyper-connections (arXiv:2512.24880): n streams. Of x = [a n | b n | c n x n],
 * scale s [3] and base: [sigmoid(s_0 a + base) + eps | 2 sigmoid(s_1 b + base) | M], M the softmax of each row of
 * s_2 c + base, plus eps, whose columns are then divided by their sum + eps, and n_round - 1 times rows and columns.
 */
enum { SY_STREAMS_MAX = 16 };
struct sy_gates_dim {
    int32_t n, n_round;
    float eps;
};
/* Stream m of n_out: sum over the n_in streams of weight[n n_out + m] x_n (+ weight2[m] y). */
struct sy_blend_dim {
    int32_t n_in, n_out;
};
/* x = [value | gate], of c columns each. With w [1, every c], token j of a run of `every` tokens (counted from
 * position 0) weighs exp(gate + w[j c ..]). The row of a run's last token is the weighted mean of the run; other rows
 * are unspecified. overlap: c = 2 d, and the mean is over the first d columns of the run before (if any) and the last
 * d of this run (compressed sparse attention of DeepSeek-V4). */
struct sy_compress_dim {
    int32_t every;
    bool overlap;
};
/* The n_top positions s <= t with the largest sum over heads of w_t,h max(0, q_t,h . k_s), ascending, as whole
 * numbers; ties: the lower position. Unspecified for a token that has no more than n_top keys: it sees them all.
 * (The lightning indexer of DeepSeek-V3.2, arXiv:2512.02556, section 2.1.) */
struct sy_index_dim {
    int32_t n_head, d, n_top;
    int32_t every; /* above 1: a key stands for a run of so many tokens, comes with its last one, and s counts runs */
};
enum { SY_INDEX_DIM_MAX = 256 };
/* Angle of pair i at position p is p * inv_freq[i]; cos and sin are multiplied by mscale. Pairs are (i, i + d_rot/2),
 * or (2i, 2i+1) when interleaved, counted from dim `first` of a head. RoFormer: Su et al., arXiv:2104.09864.
 * every above 1: p is rounded down to a multiple of it. inv_freq_long, unless NULL, takes the place of inv_freq for
 * tokens whose SPAN is above n_short (LongRoPE, arXiv:2402.13753). */
struct sy_rope_dim {
    int32_t d_head, d_rot, first;
    bool interleaved;
    float mscale;
    const float *inv_freq; /* [d_rot/2], in the arena of the model's hyper-parameters */
    const float *inv_freq_long;
    int32_t n_short, every;
};
struct sy_norm_dim {
    float eps;
    int32_t d;
    bool centred;
};
struct sy_temper_dim {
    float beta;
    int32_t every, offset;
};
/* act(min(gate, limit)) * (clamp(up, -limit, limit) + up_add); limit 0: no bounds. */
struct sy_glu_dim {
    enum sy_fn fn;
    float limit, up_add;
};
/* Groups of ranks that exchange values: those that are equal but for (rank / stride) % n. at: the one meant. */
struct sy_rank_dim {
    int32_t n, stride, at;
};
/* How ranks share a weight, see shard.h. Rank r holds share r % period - first of n, and zeros where that is none of
 * them. Rows (a vector's columns) lie in parts, of each of which a rank has some, side by side; unit rows of a part
 * stay together (a head). n_part 0: one part, of single rows. n 0: every rank holds all of it. stage: ranks of a
 * stage, for which names are joined by '|'; 0: one name. */
enum { SY_SHARE_PARTS = 8 };
struct sy_share_part {
    int32_t rows, unit;
};
struct sy_share {
    int32_t n, first, period, stage, n_part;
    struct sy_share_part part[SY_SHARE_PARTS];
};
static inline int32_t sy_share_of(const struct sy_share *s, int32_t rank) /* -1: none */
{
    int32_t i = s->n > 0 ? rank % s->period - s->first : 0;
    return i >= 0 && (s->n == 0 || i < s->n) ? i : -1;
}
/* From router logits [rows, n_expert] to [rows, 2 n_used]: first the ids of the chosen experts (whole numbers), best
 * first, then their weights. Ties: the lower id. A score is a function of the logits; the choice goes by score +
 * bias, the weight is the score alone (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Groups: experts in n_group
 * equal runs, of which the n_group_used with the largest sum of their two best scores (+ bias) take part. Softmax
 * over the chosen logits is SY_SCORE_LOGIT with SY_WEIGHT_SOFTMAX. */
enum sy_score { SY_SCORE_SOFTMAX, SY_SCORE_SIGMOID, SY_SCORE_LOGIT, SY_SCORE_SQRT_SOFTPLUS };
enum sy_weighting { SY_WEIGHT_SCORE, SY_WEIGHT_NORMED, SY_WEIGHT_SOFTMAX };
enum { SY_EXPERTS_MAX = 4096 };
struct sy_route_dim {
    int32_t n_expert, n_used, n_group, n_group_used; /* groups 0 or 1: none */
    enum sy_score score;
    enum sy_weighting weighting; /* the score; score / (sum of the chosen + eps); softmax of the chosen scores */
    float eps, scale;            /* all weights are multiplied by scale, last */
};
struct sy_moe_dim {
    int32_t n_expert, n_used, d_ff;
    bool gated;            /* down(act(gate x) * up x), else down(act(up x)) */
    bool weigh_input;      /* the weight multiplies x, not the result (Llama 4) */
    struct sy_glu_dim glu; /* not gated: fn alone counts */
    struct sy_share share; /* of a rank: n_expert are its own, from share * n_expert on; n 0: it has all */
};
/* Value head j of n_val keeps a matrix S [d_key, d_val], zero before its sequence's first token. Per token, with
 * q and k of key head j / (n_val / n_key), v and beta of head j and a = exp(decay):
 *     S' = diag(a) S;  S = S' + k u^T, u = beta (v - S'^T k) with `delta`, beta v without;  out = S^T q
 * Gated DeltaNet (arXiv:2412.06464), Kimi Delta Attention (arXiv:2510.26692: a per key dimension), Mamba-2
 * (arXiv:2405.21060: k = B, q = C, v = x, beta = dt), lightning attention (arXiv:2401.04658: a constant). */
struct sy_scan_dim {
    int32_t n_key, n_val, d_key, d_val;
    bool delta;
};
/* Rows that a file keeps group by group, part[i] rows of each part per group (q_0 k_0 q_1 k_1 ...), in the order of
 * the parts (q_0 q_1 .. k_0 k_1 ..). n_group 0: as they are. */
struct sy_regroup {
    int32_t n_group, part[4];
};
static inline int64_t sy_regroup_row(const struct sy_regroup *g, int64_t r)
{
    if (g->n_group == 0) return r;
    int64_t all = (int64_t)g->part[0] + g->part[1] + g->part[2] + g->part[3], before = 0;
    int i = 0;
    for (; i < 3 && r >= (before + g->part[i]) * g->n_group; i++) before += g->part[i];
    int64_t in = r - before * g->n_group;
    return in / g->part[i] * all + before + in % g->part[i];
}
union sy_attr {
    struct sy_attn_dim attn;
    struct sy_state_spec state;
    struct sy_rope_dim rope;
    struct {
        int32_t lo, hi;
    } part;
    struct {
        enum sy_split split;
        enum sy_wmap map;          /* of a vector */
        int32_t repeat;            /* of a vector: each stored value stands for that many columns; 0: one */
        struct sy_regroup regroup; /* of a matrix */
        bool flat;                 /* of a vector: the file holds a matrix of as many values */
        bool exact;                /* computed in f32 whatever the compute mode: a router's matrix */
        struct sy_share share;     /* the node's dims are of the share */
    } weight;
    struct sy_route_dim route;
    struct sy_moe_dim moe;
    struct sy_glu_dim glu;
    struct sy_norm_dim norm;
    struct sy_temper_dim temper;
    struct sy_scan_dim scan;
    struct sy_heads_dim heads;
    struct sy_index_dim index;
    struct sy_rank_dim rank;
    struct sy_gates_dim gates;
    struct sy_blend_dim blend;
    struct sy_compress_dim compress;
    int32_t every;
    const float *constant; /* [dim[1]], in the arena of the model's hyper-parameters */
    float c;
    enum sy_fn fn;
    enum sy_field field;
};
struct sy_node {
    enum sy_op op;
    enum sy_dtype dtype;
    int32_t layer; /* -1: outside the layers */
    int64_t dim[2];
    sy_val in[7];
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
int32_t sy_graph_window(const struct sy_graph *); /* the longest of its states' windows; 0: none has one */
/* Where the keys of a STATE of blocks lie. */
static inline bool sy_state_is_apart(struct sy_shape s, const struct sy_node *state)
{
    return s.apart && state->attr.state.window > 0;
}
static inline enum sy_field sy_state_rows(struct sy_shape s, const struct sy_node *state)
{
    return sy_state_is_apart(s, state) ? SY_ROW_APART : SY_ROW;
}
static inline enum sy_field sy_state_table(struct sy_shape s, const struct sy_node *state)
{
    return sy_state_is_apart(s, state) ? SY_TABLE_APART : SY_BLOCK_TABLE;
}
/* A line for each node; numbers: with the angles of ropes and the constants, too. */
void sy_graph_print(const struct sy_graph *, bool numbers, struct sy_buf *);
/* The step's result shall have the normed last hidden state of every token, not of the rows that are wanted alone. */
void sy_graph_keep_hidden(struct sy_graph *);
bool sy_graph_keeps_hidden(const struct sy_graph *);
/* Weights whose names begin with `from` are from now on those that begin with `to` instead; both outlive the graph's
 * building. NULL: as they are called. */
void sy_graph_rename(struct sy_graph *, const char *from, const char *to);
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
    double seq;  /* sequences: their slots are read and written */
    double kv_elem_bytes;
    double (*weight_bytes)(void *ctx, const struct sy_node *);
    void *weight_ctx;
};
struct sy_cost sy_node_cost(const struct sy_graph *, uint32_t node, const struct sy_load *);
struct sy_cost sy_graph_cost(const struct sy_graph *, const struct sy_load *);

/* Sources. The manifest (weights to load, state to allocate) is read back from these nodes; there is no second table
 * to keep in step. In name %d is the layer; {a,b,c} joins the rows of several tensors, in that order
 * ("{q,k,v}_proj"), and {0..n}, which stands before such a list, those of experts 0 to n; the checkpoint's reader
 * never sees the joined name, see sy_weight_part(). A vector is [1, d]. */
sy_val sy_input(struct sy_graph *, enum sy_field);
sy_val sy_given(struct sy_graph *, int64_t d); /* the batch's `given` rows of d columns */
sy_val sy_weight(struct sy_graph *, enum sy_split, const char *name, int layer, int64_t rows, int64_t cols);
/* A matrix whose products are computed in f32 whatever the compute mode. */
sy_val sy_weight_exact(struct sy_graph *, const char *name, int layer, int64_t rows, int64_t cols);
/* '#' in name stands for the expert's number; rows: of one expert. cols 0: a vector [1, n_expert * rows]. */
sy_val sy_weight_experts(struct sy_graph *, const char *name, int layer, int32_t n_expert, int64_t rows,
                         int64_t cols);
sy_val sy_weight_regrouped(struct sy_graph *, enum sy_split, const char *name, int layer, int64_t rows, int64_t cols,
                           struct sy_regroup);
sy_val sy_norm_weight(struct sy_graph *, const char *name, int layer, int64_t d, bool plus_one);
/* A vector of d columns; the file holds d / repeat values, of any shape that is not a matrix. */
sy_val sy_vector(struct sy_graph *, const char *name, int layer, int64_t d, enum sy_wmap, int32_t repeat);
/* The rows of a matrix one after the other. */
sy_val sy_vector_flat(struct sy_graph *, const char *name, int layer, int64_t d);
sy_val sy_const(struct sy_graph *, const float *, int64_t d); /* [1, d]; outlives the graph and its programs */
/* A rank's share of a weight of another graph. */
sy_val sy_weight_rank(struct sy_graph *, const struct sy_node *whole, const char *name, int64_t rows, int64_t cols,
                      struct sy_share);
sy_val sy_state(struct sy_graph *, struct sy_state_spec);
/* The name of a stage among those joined by '|' (the name itself where there is one). */
void sy_weight_stage(const char *name, int32_t stage, char *buf, size_t n_buf);
/* i-th tensor name of a joined name, written to buf; false when there are no more. */
bool sy_weight_part(const char *name, int i, char *buf, size_t n_buf);

/* Ops. State is linear: an op consumes one version and leaves the next, which is memory updated in place on the CPU
 * and a donated operand/result pair in StableHLO. */
sy_val sy_embed(struct sy_graph *, sy_val table, sy_val ids);
sy_val sy_linear(struct sy_graph *, sy_val x, sy_val w, sy_val bias_or_none);
sy_val sy_norm(struct sy_graph *, sy_val x, sy_val w, float eps);
sy_val sy_norm_unit(struct sy_graph *, sy_val x, int32_t d, float eps);   /* w = 1 */
sy_val sy_norm_centred(struct sy_graph *, sy_val x, sy_val w, float eps); /* "layer norm" */
sy_val sy_temper(struct sy_graph *, sy_val x, struct sy_temper_dim);
sy_val sy_sparsify(struct sy_graph *, sy_val x, float c);
sy_val sy_match(struct sy_graph *, sy_val a, sy_val b, float eps); /* eps: least mean square of a */
sy_val sy_rope(struct sy_graph *, sy_val x, struct sy_rope_dim);
sy_val sy_act(struct sy_graph *, sy_val x, enum sy_fn);
sy_val sy_glu(struct sy_graph *, sy_val gate, sy_val up, enum sy_fn);
sy_val sy_glu_bounded(struct sy_graph *, sy_val gate, sy_val up, struct sy_glu_dim);
sy_val sy_add(struct sy_graph *, sy_val a, sy_val b);
sy_val sy_mul(struct sy_graph *, sy_val a, sy_val b);
sy_val sy_scale(struct sy_graph *, sy_val x, float c);
sy_val sy_softcap(struct sy_graph *, sy_val x, float c);
sy_val sy_part(struct sy_graph *, sy_val x, int32_t lo, int32_t hi);
sy_val sy_rows(struct sy_graph *, sy_val x);
sy_val sy_join(struct sy_graph *, sy_val a, sy_val b);
/* x: n_head times d_in columns or more. */
sy_val sy_heads(struct sy_graph *, sy_val x, sy_val w, struct sy_heads_dim);
/* scale [1, 3], base [1, n (n + 2)]. */
sy_val sy_gates(struct sy_graph *, sy_val x, sy_val scale, sy_val base, struct sy_gates_dim);
/* x: n_in streams side by side; y, gain: SY_NONE, or of a stream's columns and n_out columns. */
sy_val sy_blend(struct sy_graph *, sy_val x, sy_val weight, sy_val y, sy_val gain, struct sy_blend_dim);
sy_val sy_compress(struct sy_graph *, sy_val x, sy_val w, sy_val slot, struct sy_compress_dim);
/* state: blocks of as many elements as x has columns, per spec.every tokens. */
sy_val sy_keep(struct sy_graph *, sy_val x, sy_val state);
/* q: n_head times d columns, k: d, w: n_head. */
sy_val sy_index(struct sy_graph *, sy_val q, sy_val k, sy_val w, sy_val state, struct sy_index_dim);
sy_val sy_rank_sum(struct sy_graph *, sy_val x, struct sy_rank_dim);
sy_val sy_rank_join(struct sy_graph *, sy_val x, struct sy_rank_dim);
sy_val sy_rank_rows(struct sy_graph *, sy_val x, struct sy_rank_dim);
sy_val sy_rank_share(struct sy_graph *, sy_val x, struct sy_rank_dim); /* rows divide by n */
sy_val sy_rank_shift(struct sy_graph *, sy_val x, struct sy_rank_dim);
sy_val sy_rank_pick(struct sy_graph *, sy_val x, struct sy_rank_dim);
/* v SY_NONE: d.shared. Both SY_NONE: reads the state that another layer wrote. sinks [1, n_head], if any: a score
 * each head has beside those of its keys, with nothing to add to the result (arXiv:2309.17453). */
sy_val sy_attend(struct sy_graph *, sy_val q, sy_val k, sy_val v, sy_val kv, struct sy_attn_dim);
sy_val sy_attend_sinks(struct sy_graph *, sy_val q, sy_val k, sy_val v, sy_val kv, sy_val sinks, struct sy_attn_dim);
/* Over the keys that an INDEX chose: of one kv head, shared, without a window. */
sy_val sy_attend_chosen(struct sy_graph *, sy_val q, sy_val k, sy_val chosen, sy_val kv, struct sy_attn_dim d);
/* Over the window of the cache and the rows that a KEEP wrote, of runs that are complete: those that an INDEX chose,
 * or all. The kept rows are keys and values like the others. */
sy_val sy_attend_kept(struct sy_graph *, sy_val q, sy_val k, sy_val kv, sy_val sinks, sy_val kept,
                      sy_val chosen_or_none, struct sy_attn_dim);
/* bias, gain: vectors [1, n_expert] or SY_NONE; gain multiplies the weights, after everything else. */
sy_val sy_route(struct sy_graph *, sy_val logits, sy_val bias, sy_val gain, struct sy_route_dim);
/* Weights of experts that are given: rows of n_used numbers. */
sy_val sy_route_given(struct sy_graph *, sy_val logits, sy_val ids, struct sy_route_dim);
/* w_in: n_expert times [gate d_ff | up d_ff] rows (up alone unless gated), w_out: n_expert times d_model rows, both
 * of sy_weight_experts(); biases alike or SY_NONE. The results of a row's experts are added in the order of ROUTE. */
struct sy_expert_weights {
    sy_val w_in, w_out, bias_in, bias_out;
};
sy_val sy_experts(struct sy_graph *, sy_val x, sy_val route, struct sy_expert_weights, struct sy_moe_dim);
/* w [1, n_tap d]: w[c n_tap + i] multiplies the input n_tap - 1 - i tokens ago of column c, which is zero before its
 * sequence's first token. */
sy_val sy_conv(struct sy_graph *, sy_val x, sy_val w, sy_val bias_or_none, sy_val slot);
/* decay: log of a per head [n_val] (a CONST: the same for all tokens) or per key dimension [n_val d_key]. beta
 * [n_val]; none: 1. */
sy_val sy_scan(struct sy_graph *, sy_val q, sy_val k, sy_val v, sy_val decay, sy_val beta_or_none, sy_val slot,
               struct sy_scan_dim);
sy_val sy_sample(struct sy_graph *, sy_val logits);
