/* shard.h - one rank's graph of a model that several devices run together. Every rank has the same graph: which share
 * of the weights it loads is its number's affair. Ranks are numbered stage by stage, within a stage group by group of
 * sequences, within a group by share:
 *
 * TP  tensor parallelism (Shoeybi et al., arXiv:1909.08053): weights marked SY_BY_OUT give a rank some of their rows,
 *     those marked SY_BY_IN some of their columns, after which the ranks' results are summed. Heads are what
 * attention is split by; where there are more ranks than KV heads, several ranks hold the same one. DP  attention by
 * groups of ranks that have sequences, KV cache and slots of their own. EP  experts over all ranks of a stage. With
 * DP the rows of all groups, their experts and weights are gathered, and each group gets its rows' sums back. PP
 * stages of equally many layers, one after another in a step: the value goes on from stage to stage. Only its own
 *     stage's ranks write their KV cache in a layer.
 * A+F attention on the first ranks, feed-forward on the others, each shared by TP or EP; ranks hold zeros in place of
 *     what is not theirs, and results are sums over all of them. */
#pragma once
#include "graph/graph.h"

struct sy_shard { /* zero everywhere: one device */
    int32_t n_tp, n_dp, n_stage;
    int32_t n_ffn; /* A+F: ranks for feed-forward, beside n_tp for attention */
    bool experts;  /* EP */
};
enum { SY_SHARD_MAX = 64 };                       /* devices */
int32_t sy_shard_ranks(const struct sy_shard *);  /* devices, 1 at least */
int32_t sy_shard_groups(const struct sy_shard *); /* of sequences, 1 at least */

/* Refuses (SY_ENOSUP) what cannot be split evenly, by name. One device gives the same graph again. */
SY_CHECK sy_status sy_graph_shard(const struct sy_env *, const struct sy_graph *whole, const struct sy_shard *,
                                  struct sy_graph **out, struct sy_err *);
/* Refuses (SY_EARG) experts over several devices where the graph, sharded or not, has none: it would change nothing.
 */
SY_CHECK sy_status sy_shard_check(const struct sy_graph *, const struct sy_shard *, struct sy_err *);
/* Rows of one part of a SY_BY_OUT weight that each of n ranks holds, and the first of rank's; unit: rows that stay
 * together (a head), 1 at least. */
int64_t sy_shard_rows(int64_t rows, int32_t n_rank, int32_t unit);
int64_t sy_shard_first(int64_t rows, int32_t n_rank, int32_t unit, int32_t rank);
/* The whole weight's row that is row `row` of the n_own that the share of that number holds. */
int64_t sy_share_row(const struct sy_share *, int64_t n_own, int32_t share, int64_t row);
int64_t sy_share_whole(const struct sy_share *, int64_t n_own); /* rows of the whole weight */
