/* template.h - chat templates: the subset of Jinja 2 that published chat templates use, with transformers'
 * settings (trim_blocks, lstrip_blocks, loop controls, {% generation %}, sandbox rules, tojson and strftime_now).
 *
 * A compiled template is immutable and shared by threads. Rendering is bounded in steps, depth, memory and output.
 * Errors name the line of the template:
 *   SY_EFORMAT  the source is malformed, or names a tag, filter or test that there is none of
 *   SY_ENOSUP   it uses what a chat template cannot (include, import, block, ...), or integers beyond 128 bits
 *   SY_EARG     the conversation and the template do not fit: raise_exception (with its text), a Python error, an
 *               undefined value used, an empty conversation; or the rendering went beyond its steps or depth
 *   SY_ENOMEM   memory ran out, or the limit on it or on the output was met */
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

struct sy_render {                  /* what a rendering reads; all borrowed */
    const struct sy_json *messages; /* array of message objects, OpenAI shape                     */
    const struct sy_json *tools;    /* array, or NULL                                              */
    /* Object: further variables, or NULL. As in transformers, "tools", "documents", "add_generation_prompt" and token
     * names in it win over the fields here; "continue_final_message" may be true or the name of a field. */
    const struct sy_json *kwargs;
    bool add_generation_prompt;
    bool continue_final_message; /* leaves the last message open                                */
    const char *bos, *eos, *pad; /* token texts, NULL: undefined variable                       */
    int64_t now;                 /* seconds since 1970 UTC for strftime_now                     */
};
struct sy_generation { /* what one {% generation %} block wrote: bytes [lo, hi) */
    size_t lo, hi;
};
struct sy_rendered { /* caller's storage; release frees it */
    struct sy_buf text;
    /* Partition of text. Trusted: it stands in the template's source, or is made of what does and of the token texts;
     * everything out of messages, tools and kwargs is not, but for the well-known roles ("user", "tool", ...). */
    struct sy_span *span;
    size_t n_span;
    struct sy_generation *generation; /* in order of their ends */
    size_t n_generation;
};
SY_CHECK sy_status sy_template_render(const struct sy_template *, const struct sy_env *, const struct sy_render *,
                                      struct sy_rendered *out, struct sy_err *);
void sy_rendered_release(struct sy_rendered *, const struct sy_env *);
