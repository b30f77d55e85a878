/* request_int.h - between request.c, fields.c and messages.c. Private to this folder. */
#pragma once
#include "serve/request.h"

struct reader {
    struct sy_ask *ask;
    const struct sy_ask_limits *limits;
    struct sy_problem *problem;
    const struct sy_env *env;
    struct sy_json *called; /* ids of the tool calls of earlier messages, as keys */
};
enum field_kind {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_NUM,
    FIELD_OTHER,
    FIELD_REFUSED, /* would change the answer, and is not supported */
    FIELD_NEUTRAL, /* known, and changes nothing that is said */
};
struct field {
    const char *name;
    unsigned apis; /* enum sy_api, or-ed */
    enum field_kind kind;
    size_t at; /* offsetof in struct sy_ask, of the three kinds that are plain values */
    double lo, hi;
    bool above;                                                 /* lo itself is out */
    bool (*read)(struct reader *, const struct sy_json *value); /* FIELD_OTHER */
    const char *schema;                                         /* FIELD_OTHER: JSON Schema without braces */
    const char *help;
};
extern const struct field request_fields[]; /* name NULL ends it */

bool request_refuse(struct reader *, const char *param, const char *fmt, ...) SY_PRINTF(3, 4);
bool request_no_memory(struct reader *);
const char *request_kind(const struct sy_json *); /* "a string", for messages */
bool request_int(struct reader *, const char *param, const struct sy_json *, int64_t lo, int64_t hi, int64_t *out);
bool request_id(struct reader *, const char *param, const struct sy_json *,
                int32_t *out); /* a token of the vocabulary */
bool request_messages(struct reader *, const struct sy_json *value);
/* Refuses text that would be too deep or too costly to hold as JSON values, before any is made. */
bool request_scan(const char *text, size_t n, struct sy_problem *);
