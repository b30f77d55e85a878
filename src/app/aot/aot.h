/* aot.h - what the files of `systole compile` share: job.c decides what to compile, bucket.c compiles one, print.c
 * and html.c tell of it. Private to the command. */
#pragma once
#include "app/session/session.h"
#include "backend/pjrt/aot.h"
#include "model/model.h"

struct aot_bucket { /* one static shape, compiled */
    struct sy_shape shape;
    double weight_bytes, kv_bytes, step_bytes, expert_bytes;
    size_t text_bytes;
    struct sy_aot_result r;
    /* What it does by the model's own count, of one device, and what that takes at best. */
    double flops, bytes, memory_s, arithmetic_s;
};
/* What a kernel can do, by it and by plain operations: of the largest such step's layers that it takes. For `why`,
 * which is not NULL then, n_plain others are plain in any case. */
/* Attention of decode steps and of others, experts, the gated delta rule of both: 1 << i of enum sy_kernels. */
enum { AOT_STEPS = 2, AOT_EXPERTS = AOT_STEPS, AOT_DELTA, AOT_CHUNK, AOT_KERNELS };
struct aot_weighed {
    bool done;
    int32_t n_kernel, n_plain;
    const char *why;
    double kernel_s, plain_s;
    struct sy_err err; /* why it could not be weighed */
};
struct aot_job {
    struct sy_args *a;
    const char *name; /* of the model, as given */
    const struct sy_aot_target *target;
    const char *plugin, *store; /* store NULL: nothing is kept */
    struct sy_model model;
    struct sy_checkpoint *ckpt; /* NULL: a card */
    struct sy_json *card;
    struct sy_aot_opt opt;
    struct sy_engine_plan plan; /* sizes */
    struct sy_shape max;
    struct aot_bucket bucket[SY_BUCKET_MAX];
    int32_t n_bucket;
    struct aot_weighed weighed[AOT_KERNELS]; /* opt.kernels says which kernels are used */
};
SY_CHECK sy_status aot_job_open(struct aot_job *, struct sy_args *, struct sy_err *);
void aot_job_release(struct aot_job *);
bool aot_is_wanted(const struct aot_job *, struct sy_shape); /* by --bucket */

/* The next of job->bucket; nothing is printed. */
SY_CHECK sy_status aot_bucket_compile(struct aot_job *, struct sy_shape, struct sy_err *);
/* The programs that move blocks, into job->store. */
SY_CHECK sy_status aot_moves_compile(struct aot_job *, struct sy_err *);
/* Decides by estimates whether kernels are used; what they add to a program's cycles; a line about it. */
SY_CHECK sy_status aot_kernels_choose(struct aot_job *, struct sy_err *);
SY_CHECK sy_status aot_kernels_add(const struct aot_job *, const struct sy_graph *, const struct sy_aot_program *,
                                   struct sy_aot_result *, struct sy_err *);
void aot_kernels_print(const struct aot_job *, struct sy_buf *);
/* Graph of the shape as one device has it. */
SY_CHECK sy_status aot_graph(const struct aot_job *, struct sy_shape, struct sy_graph **out, struct sy_err *);

static inline double aot_estimate_s(const struct aot_job *j, const struct aot_bucket *b)
{
    return j->target->clock_hz > 0 ? b->r.cycles / j->target->clock_hz : 0;
}
static inline double aot_roof_s(const struct aot_bucket *b)
{
    return b->memory_s > b->arithmetic_s ? b->memory_s : b->arithmetic_s;
}
/* The step: the compiler's cycles leave out copies that it starts ahead of their use, so no less than the roof. */
static inline double aot_step_s(const struct aot_job *j, const struct aot_bucket *b)
{
    double cycles = aot_estimate_s(j, b), roof = aot_roof_s(b);
    return cycles > roof ? cycles : roof;
}
static inline double aot_peak(const struct aot_bucket *b)
{
    return (double)(b->r.argument + b->r.temp + b->r.code + b->r.output - b->r.alias);
}

void aot_sharding(const struct aot_job *, char *text, size_t n); /* "tensor parallel over 8, experts over 8" */
void aot_print_head(const struct aot_job *, struct sy_buf *);
void aot_print_bucket(const struct aot_job *, const struct aot_bucket *, struct sy_buf *);
void aot_print_json(const struct aot_job *, struct sy_buf *);
void aot_print_html(const struct aot_job *, struct sy_buf *);
