/* template.h - chat templates: the subset of Jinja 2 that published chat templates use, with transformers'
 * settings (trim_blocks, lstrip_blocks, loop controls, {% generation %}, sandbox rules, tojson and strftime_now).
 *
 * A compiled template is immutable and shared by threads. Rendering is bounded in steps, depth, memory and time. */
#pragma once
#include "base/json.h"
#include "text/tokenizer.h"

struct sy_template;

struct sy_template_limits {
    size_t source_bytes, output_bytes, heap_bytes; /* 0: defaults 1 MiB, 16 MiB, 64 MiB */
    uint64_t steps;                                /* 0: default 20 million */
    int depth;                                     /* 0: default 200 */
};
SY_CHECK sy_status sy_template_compile(const struct sy_env *, const char *source, size_t n,
                                       const struct sy_template_limits *, struct sy_template **out, struct sy_err *);
void sy_template_free(struct sy_template *);

struct sy_render {                       /* what a rendering reads; all borrowed */
    const struct sy_json *messages;      /* array of message objects, OpenAI shape                     */
    const struct sy_json *tools;         /* array, or NULL                                              */
    const struct sy_json *kwargs;        /* object: further variables, or NULL                          */
    bool add_generation_prompt;
    bool continue_final_message;         /* leaves the last message open; a field's name in kwargs does, too */
    const char *bos, *eos, *pad;         /* token texts, NULL: undefined variable                       */
    int64_t now;                         /* seconds since 1970 UTC for strftime_now                     */
};
struct sy_rendered {                     /* caller's storage; release frees it */
    struct sy_buf text;
    struct sy_span *span;                /* partition of text: trusted = written by the template itself  */
    size_t n_span;
    struct { size_t lo, hi; } *generation; /* {% generation %} spans in bytes */
    size_t n_generation;
};
SY_CHECK sy_status sy_template_render(const struct sy_template *, const struct sy_env *, const struct sy_render *,
                                      struct sy_rendered *out, struct sy_err *);
void sy_rendered_release(struct sy_rendered *, const struct sy_env *);
