/* serving.h - what serve and batch share: an engine for many requests at once. */
#pragma once
#include "app/session/session.h"

extern const struct sy_flag sy_flags_serving[];
/* Loads the model that -m names for many requests: 64 sequences unless --max-seqs says otherwise, and a KV
 * cache of at most a quarter of the machine's memory unless --kv-memory does. Draws progress. */
SY_CHECK sy_status sy_serving_open(struct sy_args *, struct sy_engine **out, struct sy_err *);
/* The model's names: --served-model-name, else the file's or folder's, without .gguf; then what else -m
 * may be called. In the arguments' arena. */
SY_CHECK sy_status sy_serving_names(struct sy_args *, const char *const **names, size_t *n, struct sy_err *);
