/* card.h - model cards: the shapes of a model without its weights, and where the program finds its data.
 *
 * A card whose architecture is part of the program becomes a graph, and the graph is what is costed; others are
 * costed from their hyper-parameters. sy_card.from says which. Plain data; thread: any. */
#pragma once
#include "backend/sim/chip.h"
#include "backend/sim/profile.h"
#include "base/arena.h"
#include "base/data.h"
#include "base/json.h"

struct sy_card {
    char name[48];
    struct sy_profile profile;
    char from[64];        /* "graph of qwen3", "hyper-parameters" */
    double accepted[9];   /* tokens a step yields with i drafted ones, bonus included; [0] is 1; 0: not known */
    double stated_params; /* as published; 0: not stated */
};
/* Refuses cards that are incomplete, contradict themselves, or miss their stated number of parameters by 5 %. */
SY_CHECK sy_status sy_card_read(const struct sy_env *, const char *name, const char *text, size_t n,
                                struct sy_card *out, struct sy_err *);
/* Of a model's own config.json, whose architecture must be part of the program. */
SY_CHECK sy_status sy_card_of_config(const struct sy_env *, const struct sy_json *config, const char *name,
                                     struct sy_card *out, struct sy_err *);
/* By name or alias among the program's own cards, or a path that ends in .json. */
SY_CHECK sy_status sy_card_find(const struct sy_env *, const char *name, struct sy_card *out, struct sy_err *);
/* The config.json that such a model comes with, of a card found alike; a file that is a config.json will do. Refuses
 * cards of an architecture that is not part of the program. */
SY_CHECK sy_status sy_card_config(const struct sy_env *, const char *name, struct sy_json **out, struct sy_err *);

/* A chip's card by name, or a path; its id is then the file's name without .json. */
SY_CHECK sy_status sy_chip_find(const struct sy_env *, const char *name, struct sy_chip *out, struct sy_err *);

/* A file of the program's data, or of the user's: a name is looked up in data/<kind>/, a path (with a slash or .json)
 * is read. The text is the caller's, to be freed with sy_delete(env). */
SY_CHECK sy_status sy_data_open(const struct sy_env *, const char *kind, const char *name, char **text, size_t *n,
                                struct sy_err *);
