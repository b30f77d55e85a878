/* chip.h - accelerator cards: one JSON file is one chip, every figure with its source.
 *
 * Units: flop/s of dense products, bytes, bytes/s, W; per physical chip. A figure nobody published is absent and
 * reads as 0; what needs it says so by name. Logical devices are what an engine shards over (two dies of a TPU v7 are
 * two). */
#pragma once
#include "base/json.h"

enum sy_arith { SY_ARITH_F32, SY_ARITH_BF16, SY_ARITH_INT8, SY_ARITH_FP8, SY_ARITH_FP4, SY_ARITH_COUNT };
enum sy_topology { SY_LINK_NONE, SY_LINK_SWITCH, SY_LINK_MESH, SY_LINK_TORUS };

struct sy_chip {
    char id[32], name[64], vendor[24];
    int32_t devices;
    bool static_shapes; /* programs exist for powers of two of tokens; a step is padded to the next */
    bool unit_peaks;    /* peaks are not public: a unit of measure for fitted constants, never a roofline */
    double flops[SY_ARITH_COUNT];
    double memory_bytes, memory_bytes_s;
    enum sy_topology topology;
    int32_t dims, world;      /* axes of a mesh or torus; chips that the fast links join */
    double link_bytes_s;      /* switch: per chip and direction; mesh, torus: per link and direction */
    double scale_out_bytes_s; /* per chip beyond `world` */
    double chip_w, all_in_w;
};
/* id: how the chip is called (the file's name without .json). Refuses figures that are missing where they must not
 * be, negative, zero or absurd. */
SY_CHECK sy_status sy_chip_read(const struct sy_env *, const char *id, const char *text, size_t n,
                                struct sy_chip *out, struct sy_err *);

/* How weights, keys and values are stored and multiplied: "bf16", "fp8", "fp4", "int4", "int8", "f32" and what the
 * published tables call such paths ("fp16", "fp4(mxfp4)"). */
struct sy_path {
    enum sy_arith arith;
    double b_weight, b_attn, b_head, b_kv; /* bytes of one element */
};
SY_CHECK sy_status sy_path_named(const char *name, const struct sy_chip *, struct sy_path *out, struct sy_err *);
const char *sy_arith_name(enum sy_arith);
/* What a chip multiplies in where its card has no peak for a type: the nearest wider one that it has. */
enum sy_arith sy_chip_arith(const struct sy_chip *, enum sy_arith);
double sy_chip_flops(const struct sy_chip *, enum sy_arith); /* its peak; 0: unknown */
