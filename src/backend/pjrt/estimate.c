/* estimate.c - the compiler's own estimates, read from the optimised program it gives back: every fusion and product
 * carries "estimated_cycles" in its configuration. The program is an HloModuleProto (openxla/xla,
 * xla/service/hlo.proto) of which a few fields are read here: protocol buffers' wire format is tags and lengths.
 * Thread: any. */
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/aot.h"
#include "backend/pjrt/pjrt_int.h"

/* libtpu writes 2^64 - 1 where it has no estimate. */
#define CYCLES_MAX 1e18

struct bytes {
    const unsigned char *at, *end;
};
struct field {
    uint64_t tag, number; /* number: of varint fields */
    struct bytes sub;     /* of the others */
};

static bool varint(struct bytes *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && b->at < b->end; shift += 7) {
        unsigned char c = *b->at++;
        *v |= (uint64_t)(c & 127) << shift;
        if (c < 128) return true;
    }
    return false;
}

/* The next field; false at the end, or (with *bad set) where there is none. */
static bool next(struct bytes *b, struct field *f, bool *bad)
{
    uint64_t key, n = 0;
    if (b->at == b->end) return false;
    *bad = true;
    if (!varint(b, &key)) return false;
    f->tag = key >> 3;
    switch (key & 7) {
    case 0:
        if (!varint(b, &f->number)) return false;
        *bad = false;
        return true;
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
        if (!varint(b, &n)) return false;
        break;
    default: return false;
    }
    if (n > (uint64_t)(b->end - b->at)) return false;
    f->sub = (struct bytes){b->at, b->at + n};
    b->at += n;
    *bad = false;
    return true;
}

enum { /* fields of the messages */
       MODULE_IN_CONFIG = 1,
       MODULE_COMPUTATION = 3,
       MODULE_ENTRY = 6,
       COMPUTATION_INSTRUCTION = 2,
       COMPUTATION_ID = 5,
       INSTRUCTION_OPCODE = 2,
       INSTRUCTION_SHAPE = 3,
       INSTRUCTION_METADATA = 7,
       INSTRUCTION_CALLED = 38,
       INSTRUCTION_CONFIG = 43,
       METADATA_OP_NAME = 2,
       SHAPE_TYPE = 2,
       SHAPE_DIM = 3,
       SHAPE_TUPLE = 4,
};
enum { CALLED_MAX = 64, DEPTH_MAX = 24 };
struct instruction {
    struct bytes opcode, config, shape, metadata;
    uint64_t called[CALLED_MAX];
    int n_called;
};
struct walk {
    struct bytes module;
    const double *trips;
    struct sy_aot_result *out;
    bool bad;
};

static bool is(struct bytes b, const char *text)
{
    return (size_t)(b.end - b.at) == strlen(text) && !memcmp(b.at, text, strlen(text));
}

static bool begins(struct bytes b, const char *text)
{
    return (size_t)(b.end - b.at) >= strlen(text) && !memcmp(b.at, text, strlen(text));
}

/* The number behind "key": in a JSON text, quoted or not; -1: none. */
static double number_of(struct bytes json, const char *key)
{
    size_t n = strlen(key);
    const unsigned char *at = json.end > json.at ? memmem(json.at, (size_t)(json.end - json.at), key, n) : NULL;
    if (!at) return -1;
    char text[24];
    size_t k = 0;
    for (at += n; at < json.end && (*at == '"' || *at == ':' || *at == ' '); at++) continue;
    for (; at < json.end && *at >= '0' && *at <= '9' && k + 1 < sizeof text; at++) text[k++] = (char)*at;
    text[k] = 0;
    return k ? strtod(text, NULL) : -1;
}

/* Packed or single varints. */
static void add_called(struct walk *w, struct instruction *i, const struct field *f, bool packed)
{
    struct bytes b = f->sub;
    uint64_t v;
    if (!packed) {
        if (i->n_called < CALLED_MAX) i->called[i->n_called++] = f->number;
        return;
    }
    while (b.at < b.end && i->n_called < CALLED_MAX) {
        if (!varint(&b, &v)) {
            w->bad = true;
            return;
        }
        i->called[i->n_called++] = v;
    }
}

static void read_instruction(struct walk *w, struct bytes b, struct instruction *i)
{
    *i = (struct instruction){0};
    struct field f = {0};
    for (;;) {
        const unsigned char *key = b.at;
        if (!next(&b, &f, &w->bad)) return;
        if (f.tag == INSTRUCTION_OPCODE) i->opcode = f.sub;
        else if (f.tag == INSTRUCTION_CONFIG) i->config = f.sub;
        else if (f.tag == INSTRUCTION_SHAPE) i->shape = f.sub;
        else if (f.tag == INSTRUCTION_METADATA) i->metadata = f.sub;
        else if (f.tag == INSTRUCTION_CALLED) add_called(w, i, &f, (*key & 7) == 2);
    }
}

/* xla/xla_data.proto, PrimitiveType */
static double type_bytes(uint64_t type)
{
    switch (type) {
    case 4:
    case 8:
    case 11: return 4; /* s32 u32 f32 */
    case 5:
    case 9:
    case 12: return 8; /* s64 u64 f64 */
    case 3:
    case 7:
    case 10:
    case 16: return 2; /* s16 u16 f16 bf16 */
    default: return 1;
    }
}

static double shape_bytes(struct walk *w, struct bytes b, int depth)
{
    struct field f = {0};
    double n = 1, sum = 0, each = 0;
    if (depth > 4) return 0;
    for (;;) {
        const unsigned char *key = b.at;
        if (!next(&b, &f, &w->bad)) break;
        if (f.tag == SHAPE_TYPE) each = f.number == 13 ? 0 : type_bytes(f.number); /* 13: a tuple */
        else if (f.tag == SHAPE_TUPLE) sum += shape_bytes(w, f.sub, depth + 1);
        else if (f.tag == SHAPE_DIM && (*key & 7) == 0) n *= (double)f.number;
        else if (f.tag == SHAPE_DIM) {
            uint64_t d;
            while (f.sub.at < f.sub.end && varint(&f.sub, &d)) n *= (double)d;
        }
    }
    return sum + n * each;
}

static bool find_computation(struct walk *w, uint64_t id, struct bytes *out)
{
    struct bytes m = w->module;
    struct field f = {0}, g = {0};
    while (next(&m, &f, &w->bad)) {
        if (f.tag != MODULE_COMPUTATION) continue;
        struct bytes c = f.sub;
        while (next(&c, &g, &w->bad))
            if (g.tag == COMPUTATION_ID && g.number == id) {
                *out = f.sub;
                return true;
            }
    }
    return false;
}

const char *sy_aot_collective_name(enum sy_aot_collective c)
{
    static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all",
                                        "collective-permute"};
    return (unsigned)c < SY_COUNT(names) ? names[c] : "?";
}

static void walk(struct walk *w, uint64_t id, double times, int loops, int depth);

/* A loop that the lowering named so. */
static bool is_experts(struct walk *w, struct bytes metadata)
{
    struct field f = {0};
    static const char name[] = PJ_EXPERTS_LOOP;
    while (next(&metadata, &f, &w->bad))
        if (f.tag == METADATA_OP_NAME && f.sub.end > f.sub.at &&
            memmem(f.sub.at, (size_t)(f.sub.end - f.sub.at), name, sizeof name - 1))
            return true;
    return false;
}

static void walk_instruction(struct walk *w, const struct instruction *i, double times, int loops, int depth)
{
    double cycles = number_of(i->config, "\"estimated_cycles\"");
    if (cycles > 0 && cycles < CYCLES_MAX) {
        w->out->cycles += times * cycles;
        w->out->n_estimated++;
    }
    for (int k = 0; k < SY_AOT_COLLECTIVES; k++) {
        const char *name = sy_aot_collective_name((enum sy_aot_collective)k);
        size_t n = strlen(name);
        bool done = (size_t)(i->opcode.end - i->opcode.at) == n + 5 && begins(i->opcode, name) &&
                    !memcmp(i->opcode.end - 5, "-done", 5);
        if (done || !begins(i->opcode, name)) continue;
        w->out->n_collective[k]++;
        w->out->collective_bytes[k] += times * shape_bytes(w, i->shape, 0);
    }
    bool loop = is(i->opcode, "while");
    bool calls = is(i->opcode, "call") || is(i->opcode, "conditional") || is(i->opcode, "async-start") ||
                 is(i->opcode, "custom-call"); /* in which a tpu7x keeps its collectives */
    if (!loop && !calls) return;
    double known = loop ? number_of(i->config, "\"known_trip_count\":{\"n\"") : 1;
    bool experts = loop && is_experts(w, i->metadata);
    double trips = !loop ? 1 : known > 0 ? known : experts ? w->trips[2] : loops < 2 ? w->trips[loops] : 1;
    for (int k = 0; k < i->n_called; k++)
        walk(w, i->called[k], times * trips, loops + (loop && known <= 0 && !experts), depth + 1);
}

static void walk(struct walk *w, uint64_t id, double times, int loops, int depth)
{
    struct bytes c;
    struct field f = {0};
    if (depth > DEPTH_MAX || !find_computation(w, id, &c)) return;
    while (!w->bad && next(&c, &f, &w->bad)) {
        if (f.tag != COMPUTATION_INSTRUCTION) continue;
        struct instruction i;
        read_instruction(w, f.sub, &i);
        walk_instruction(w, &i, times, loops, depth);
    }
}

bool sy_aot_estimate(const void *hlo, size_t n, const double trips[SY_AOT_LOOPS], struct sy_aot_result *out)
{
    struct walk w = {.module = {hlo, (const unsigned char *)hlo + n}, .trips = trips, .out = out};
    struct bytes b = w.module;
    struct field f = {0};
    bool bad = false, seen = false;
    uint64_t entry = 0;
    /* With its configuration a module is wrapped: field 1 is then a message, not a name. */
    if (next(&b, &f, &bad) && f.tag == MODULE_IN_CONFIG) {
        struct bytes inner = f.sub;
        struct field g = {0};
        bool not_one = false;
        while (next(&inner, &g, &not_one)) seen |= g.tag == MODULE_COMPUTATION;
        if (!not_one && seen) w.module = f.sub;
    }
    b = w.module;
    while (next(&b, &f, &w.bad))
        if (f.tag == MODULE_ENTRY) entry = f.number;
    if (!w.bad) walk(&w, entry, 1, 0, 0);
    return !w.bad;
}
