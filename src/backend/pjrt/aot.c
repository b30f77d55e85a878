/* aot.c - compiling for a described topology. */
#include "backend/pjrt/aot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/pjrt_int.h"

sy_status sy_aot_lower(const struct sy_env *env, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                       const struct sy_aot_opt *opt, struct sy_aot_program *out, struct sy_err *err)
{
    static const enum pj_elem elem[] = {[SY_KV_F32] = PJ_F32, [SY_KV_BF16] = PJ_BF16, [SY_KV_F16] = PJ_F16};
    *out = (struct sy_aot_program){.shape = sy_graph_shape(g)};
    sy_buf_init(&out->text, env, 0);
    if (opt->kv_dtype >= SY_COUNT(elem))
        return sy_fail(err, SY_ENOSUP, "--kv-dtype q8_0 is not supported by the pjrt backend; use f32, bf16 or f16");
    struct sy_weights *w = NULL;
    struct pj_weights_opt wo = {.compute = opt->compute, .assume = opt->assume, .n_rank = opt->n_rank};
    struct pj_lower_opt lo = {
        .compute = opt->compute, .kv_elem = elem[opt->kv_dtype], .cache = opt->cache, .n_rank = opt->n_rank};
    struct pj_results res;
    sy_status st = pj_weights_plan(env, g, ckpt, &wo, &w, err);
    if (!st) {
        out->kv_bytes = pj_state_bytes(g, &lo, true) + pj_state_bytes(g, &lo, false);
        out->weight_bytes = w->bytes_held;
        out->step_bytes = w->bytes_step;
        st = pj_lower(env, g, w, &lo, &out->text, &res, err);
        pj_weights_free(w);
    }
    if (st) sy_aot_program_release(out);
    return st;
}

void sy_aot_program_release(struct sy_aot_program *p) { sy_buf_release(&p->text); }

void sy_aot_trips(struct sy_shape s, int32_t block_len, double trips[SY_AOT_LOOPS])
{
    double keys = (double)s.block * block_len;
    if (pj_is_decode(s)) { /* all sequences at once, over all runs */
        trips[0] = keys / 512 > 1 ? keys / 512 : 1;
        trips[1] = 1;
        return;
    }
    trips[0] = s.tok > 128 ? s.tok / 128.0 : 1; /* pieces of one prompt from its start */
    trips[1] = s.tok > 512 ? (s.tok / 512.0 + 1) / 2 : 1;
}

/* ---- compiling ------------------------------------------------------------------------------------------------ */

struct job {
    struct pj_plugin p;
    void *topology, *executable;
    struct sy_aot_result *out;
};

static sy_status read_memory(struct job *j, struct sy_err *err)
{
    struct pj_Executable_GetCompiledMemoryStats_Args m = {.struct_size = sizeof m, .executable = j->executable};
    sy_status st = pj_call(&j->p, PJ_Executable_GetCompiledMemoryStats, &m, "reading a program's memory", err);
    j->out->code = m.generated_code_size_in_bytes;
    j->out->argument = m.argument_size_in_bytes;
    j->out->output = m.output_size_in_bytes;
    j->out->alias = m.alias_size_in_bytes;
    j->out->temp = m.temp_size_in_bytes;
    j->out->peak = m.peak_memory_in_bytes;
    return st;
}

/* What some plugins do not tell stays 0. */
static void read_costs(struct job *j)
{
    struct pj_Executable_GetCostAnalysis_Args c = {.struct_size = sizeof c, .executable = j->executable};
    if (pj_call(&j->p, PJ_Executable_GetCostAnalysis, &c, "reading a program's cost", NULL)) return;
    for (size_t i = 0; i < c.num_properties; i++) {
        const struct pj_NamedValue *v = &c.properties[i];
        if (v->type != PJ_VALUE_FLOAT) continue;
        if (v->name_size == 5 && !memcmp(v->name, "flops", 5)) j->out->flops = (double)v->float_value;
        if (v->name_size == 14 && !memcmp(v->name, "bytes accessed", 14)) j->out->bytes = (double)v->float_value;
    }
}

static void read_estimates(struct job *j, const struct sy_env *env, const double *trips)
{
    struct pj_Program p = {.struct_size = sizeof p};
    struct pj_Executable_OptimizedProgram_Args a = {
        .struct_size = sizeof a, .executable = j->executable, .program = &p};
    if (pj_call(&j->p, PJ_Executable_OptimizedProgram, &a, "reading a program", NULL)) return;
    size_t n = p.code_size;
    p.code = sy_new(env, n + 1);
    if (p.code && !pj_call(&j->p, PJ_Executable_OptimizedProgram, &a, "reading a program", NULL))
        (void)!sy_aot_estimate(p.code, n, trips, j->out);
    sy_delete(env, p.code);
}

sy_status sy_aot_compile(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                         const struct sy_buf *text, int32_t n_rank, const double trips[SY_AOT_LOOPS],
                         struct sy_aot_result *out, struct sy_err *err)
{
    struct job j = {.out = out};
    *out = (struct sy_aot_result){0};
    sy_status st = pj_plugin_open(&j.p, plugin, err);
    if (st) return st;
    struct pj_TopologyDescription_Create_Args tc = {
        .struct_size = sizeof tc, .topology_name = t->topology, .topology_name_size = strlen(t->topology)};
    st = pj_call(&j.p, PJ_TopologyDescription_Create, &tc, "describing the target", err);
    if (st == SY_EIO && err) err->code = st = SY_ENOSUP;
    if (st) return st;
    char options[32], *copy = sy_new(env, text->len + 1);
    if (!copy) return sy_fail(err, SY_ENOMEM, "no memory for a program of %zu bytes", text->len);
    memcpy(copy, text->at, text->len);
    struct pj_Program p = {
        .struct_size = sizeof p, .code = copy, .code_size = text->len, .format = "mlir", .format_size = 4};
    struct pj_Compile_Args c = {.struct_size = sizeof c,
                                .topology = tc.topology,
                                .program = &p,
                                .compile_options = options,
                                .compile_options_size = pj_compile_options(n_rank, options)};
    uint64_t began = sy_now_ns(env);
    st = pj_call(&j.p, PJ_Compile, &c, "compiling", err);
    out->compile_s = (double)(sy_now_ns(env) - began) / 1e9;
    sy_delete(env, copy);
    if (st) return st;
    j.executable = c.executable;
    st = read_memory(&j, err);
    read_costs(&j);
    read_estimates(&j, env, trips);
    return st;
}
