/* shard_int.h - what the shard*.c files share. */
#pragma once
#include "graph/shard.h"

/* Columns of a value of the whole graph, in parts that ranks share each by itself. */
struct lay {
    int32_t n;
    struct sy_share_part part[SY_SHARE_PARTS];
};
struct pass {
    struct sy_graph *g; /* the rank's */
    const struct sy_node *node;
    uint32_t n_node;
    struct sy_shard s;
    int32_t n_rank, per_stage, n_layer; /* ranks, those of a stage, layers of a stage */
    int32_t stage;                      /* of the node at hand; all before the layers, n_stage behind them */
    sy_val *val;                        /* by node of the whole graph */
    int32_t *cut;                       /* its columns are in so many shares, of which a rank has one; 0: whole */
    int32_t *from;                      /* the first rank that has one */
    struct lay *lay;                    /* of those that are cut */
    int32_t *at;                        /* the stage whose ranks have the value */
};
/* Columns that a rank has of a part, or of all. */
int32_t shard_part_columns(struct sy_share_part, int32_t n_rank);
int32_t shard_columns(const struct lay *, int32_t n_rank);
/* How n ranks share the columns of LINEAR id, by what reads them: heads stay together. False: they cannot. */
bool shard_lay_out(const struct pass *, uint32_t id, int32_t n, struct lay *);
/* True where attention, or another layer that mixes tokens, reads what node id gives. */
bool shard_is_read_by_heads(const struct pass *, uint32_t id);
