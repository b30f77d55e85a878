/* shard.h - one rank's graph of a model that n ranks run together by tensor parallelism (Shoeybi et al.,
 * arXiv:1909.08053): weights marked SY_BY_OUT give a rank some of their rows, those marked SY_BY_IN some of their
 * columns, after which the ranks' results are summed. Heads are what attention is split by; where there are more
 * ranks than KV heads, several ranks hold the same one. Every rank has the same graph: which share it loads is its
 * number. */
#pragma once
#include "graph/graph.h"

/* Refuses (SY_ENOSUP) what cannot be split evenly, by name. n_rank 1 gives the same graph again. */
SY_CHECK sy_status sy_graph_shard(const struct sy_env *, const struct sy_graph *whole, int32_t n_rank,
                                  struct sy_graph **out, struct sy_err *);
/* Rows of one part of a SY_BY_OUT weight that each of n ranks holds, and the first of rank's; unit: rows that stay
 * together (a head), 1 at least. */
int64_t sy_shard_rows(int64_t rows, int32_t n_rank, int32_t unit);
int64_t sy_shard_first(int64_t rows, int32_t n_rank, int32_t unit, int32_t rank);
