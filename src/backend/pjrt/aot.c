/* aot.c - compiling for a described topology. */
#include "backend/pjrt/aot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/cache.h"
#include "backend/pjrt/pjrt_int.h"

static struct pj_lower_opt lower_opt(const struct sy_aot_opt *o)
{
    static const enum pj_elem elem[] = {
        [SY_KV_F32] = PJ_F32, [SY_KV_BF16] = PJ_BF16, [SY_KV_F16] = PJ_F16, [SY_KV_Q8_0] = PJ_I8};
    return (struct pj_lower_opt){.compute = o->compute,
                                 .kv_elem = elem[o->kv_dtype],
                                 .state_elem = PJ_F32,
                                 .attend_bf16 = o->attend_bf16,
                                 .cache = o->cache,
                                 .kernels = o->kernels,
                                 .n_rank = sy_shard_ranks(&o->shard)};
}

sy_status sy_aot_lower(const struct sy_env *env, const struct sy_graph *g, const struct sy_checkpoint *ckpt,
                       const struct sy_aot_opt *opt, struct sy_aot_program *out, struct sy_err *err)
{
    *out = (struct sy_aot_program){.shape = sy_graph_shape(g)};
    sy_buf_init(&out->text, env, 0);
    struct sy_weights *w = NULL;
    struct pj_weights_opt wo = {
        .compute = opt->compute, .assume = opt->assume, .n_rank = sy_shard_ranks(&opt->shard)};
    struct pj_lower_opt lo = lower_opt(opt);
    struct pj_results res;
    sy_status st = pj_weights_plan(env, g, ckpt, &wo, &w, err);
    if (!st) {
        struct pj_bytes state = pj_state_bytes(g, &lo);
        out->kv_bytes = state.blocks + state.slots;
        out->weight_bytes = w->bytes_held;
        out->step_bytes = w->bytes_step;
        out->expert_bytes = w->bytes_experts;
        st = pj_lower(env, g, w, &lo, &out->text, &res, err);
        if (!st) out->experts = res.experts;
        pj_weights_free(w);
    }
    if (st) sy_aot_program_release(out);
    return st;
}

struct sy_aot_bytes sy_aot_state_bytes(const struct sy_graph *g, const struct sy_aot_opt *opt)
{
    struct pj_lower_opt lo = lower_opt(opt);
    lo.cache.n_block = lo.cache.n_apart = lo.cache.n_slot = 1;
    struct pj_bytes b = pj_state_bytes(g, &lo);
    return (struct sy_aot_bytes){(int64_t)b.blocks, (int64_t)b.window, (int64_t)b.slots};
}

sy_status sy_aot_lower_move(const struct sy_env *env, const struct sy_graph *g, const struct sy_aot_opt *opt,
                            int which, struct sy_buf *out, struct sy_err *err)
{
    struct pj_lower_opt lo = lower_opt(opt);
    sy_status st = SY_OK;
    struct pj_arrays n = pj_state_arrays(g, &lo, NULL, NULL);
    struct pj_type *type = sy_new_array(env, (size_t)n.n + 1, sizeof *type);
    if (!type) return sy_fail(err, SY_ENOMEM, "no memory to lower a program");
    (void)pj_state_arrays(g, &lo, type, NULL);
    if ((which == PJ_MOVE_ZERO ? n.n : n.n_block) > 0)
        st = pj_lower_move(env, (enum pj_move)which, type, n, lo.n_rank, out, err);
    sy_delete(env, type);
    return st;
}
_Static_assert((int)SY_AOT_MOVES == (int)PJ_MOVE_COUNT, "aot.h counts the moves");

void sy_aot_program_release(struct sy_aot_program *p) { sy_buf_release(&p->text); }

void sy_aot_expert_load(const struct sy_moe_dim *d, int64_t rows, double *chosen, double *each)
{
    double all = (double)d->n_expert * (d->share.n > 0 ? d->share.n : 1);
    *chosen = d->n_expert * (1 - pow(1 - d->n_used / all, (double)rows));
    *each = (double)rows * d->n_used / all;
}

/* Tiles of the experts that a rank has, by how many of them some row is likely to choose. */
static double expert_trips(const struct sy_graph *g)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node), *n = NULL;
    for (uint32_t i = 1; i < n_node && !n; i++) n = node[i].op == SY_OP_EXPERTS ? &node[i] : NULL;
    if (!n) return 1;
    const struct sy_moe_dim *d = &n->attr.moe;
    double chosen, each;
    sy_aot_expert_load(d, n->dim[0], &chosen, &each);
    double tiles = each * d->n_expert / chosen / (double)pj_expert_tile(d, n->dim[0]);
    return chosen * (tiles > 1 ? ceil(tiles) : 1);
}

void sy_aot_trips(const struct sy_graph *g, int32_t block_len, double trips[SY_AOT_LOOPS])
{
    trips[2] = expert_trips(g);
    sy_aot_trips_of(sy_graph_shape(g), block_len, trips);
}

void sy_aot_trips_of(struct sy_shape s, int32_t block_len, double trips[2])
{
    double keys = (double)s.block * block_len;
    if (pj_is_decode(s)) { /* all sequences at once, over all runs */
        trips[0] = keys / 512 > 1 ? keys / 512 : 1;
        trips[1] = 1;
        return;
    }
    int64_t piece = pj_piece(s), run = pj_run_keys(s), n = (s.tok + piece - 1) / piece, runs = 0;
    for (int64_t i = 1; i <= n; i++) runs += (i * piece + run - 1) / run; /* pieces of one prompt from its start */
    trips[0] = (double)n;
    trips[1] = (double)runs / (double)n;
}

/* ---- compiling ------------------------------------------------------------------------------------------------ */

struct job {
    const struct sy_env *env;
    const struct sy_aot_job *of;
    struct pj_plugin p;
    struct pj_client client; /* where the target is the plugin's own machine */
    void *executable;
    char platform[64], kind[96], version[200];
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

static void read_estimates(struct job *j)
{
    const struct sy_env *env = j->env;
    struct pj_Program p = {.struct_size = sizeof p};
    struct pj_Executable_OptimizedProgram_Args a = {
        .struct_size = sizeof a, .executable = j->executable, .program = &p};
    if (pj_call(&j->p, PJ_Executable_OptimizedProgram, &a, "reading a program", NULL)) return;
    size_t n = p.code_size;
    p.code = sy_new(env, n + 1);
    if (p.code && !pj_call(&j->p, PJ_Executable_OptimizedProgram, &a, "reading a program", NULL))
        (void)!sy_aot_estimate(p.code, n, j->of->trips, j->out);
    sy_delete(env, p.code);
}

#define COPY(to, from, n) snprintf(to, sizeof(to), "%.*s", (int)(n), (from) ? (from) : "")

static sy_status describe(struct job *j, void *topology, struct sy_err *err)
{
    struct pj_TopologyDescription_PlatformName_Args n = {.struct_size = sizeof n, .topology = topology};
    sy_status st = pj_call(&j->p, PJ_TopologyDescription_PlatformName, &n, "naming the target", err);
    if (st) return st;
    COPY(j->platform, n.platform_name, n.platform_name_size);
    struct pj_TopologyDescription_PlatformVersion_Args v = {.struct_size = sizeof v, .topology = topology};
    st = pj_call(&j->p, PJ_TopologyDescription_PlatformVersion, &v, "naming the target's version", err);
    if (st) return st;
    COPY(j->version, v.platform_version, v.platform_version_size);
    struct pj_TopologyDescription_GetDeviceDescriptions_Args d = {.struct_size = sizeof d, .topology = topology};
    st = pj_call(&j->p, PJ_TopologyDescription_GetDeviceDescriptions, &d, "listing the target's devices", err);
    if (st) return st;
    if (d.num_descriptions < (size_t)j->of->n_rank)
        return sy_fail(err, SY_ENOSUP, "plugin '%s': expected %d devices of %s, found %zu", j->p.path, j->of->n_rank,
                       j->of->target->name, d.num_descriptions);
    struct pj_DeviceDescription_Kind_Args k = {.struct_size = sizeof k, .device_description = d.descriptions[0]};
    st = pj_call(&j->p, PJ_DeviceDescription_Kind, &k, "describing the target's device", err);
    if (!st) COPY(j->kind, k.device_kind, k.device_kind_size);
    return st;
}

/* The topology of the target; of a GPU its description goes along. */
static sy_status open_topology(struct job *j, void **out, struct sy_err *err)
{
    const struct sy_aot_target *t = j->of->target;
    char gpu[SY_AOT_GPU_TEXT];
    static const char config[] = "target_config", shape[] = "topology";
    struct pj_NamedValue option[2] = {
        {.struct_size = sizeof *option, .name = config, .name_size = sizeof config - 1, .string_value = gpu},
        {.struct_size = sizeof *option, .name = shape, .name_size = sizeof shape - 1, .string_value = t->topology},
    };
    struct pj_TopologyDescription_Create_Args tc = {
        .struct_size = sizeof tc, .topology_name = t->topology, .topology_name_size = strlen(t->topology)};
    if (t->kind == SY_AOT_GPU) {
        sy_aot_gpu_text(t, gpu, sizeof gpu);
        option[0].value_size = strlen(gpu);
        option[1].value_size = strlen(t->topology);
        tc.create_options = option;
        tc.num_options = SY_COUNT(option);
    }
    sy_status st = pj_call(&j->p, PJ_TopologyDescription_Create, &tc, "describing the target", err);
    if (st == SY_EIO && err) err->code = st = SY_ENOSUP;
    if (st) return st;
    *out = tc.topology;
    return describe(j, tc.topology, err);
}

static sy_status compile_for(struct job *j, void *topology, struct sy_err *err)
{
    const struct sy_buf *text = j->of->text;
    char options[32], *copy = sy_new(j->env, text->len + 1); /* the API takes it as not const */
    if (!copy) return sy_fail(err, SY_ENOMEM, "no memory for a program of %zu bytes", text->len);
    memcpy(copy, text->at, text->len);
    struct pj_Program p = {
        .struct_size = sizeof p, .code = copy, .code_size = text->len, .format = "mlir", .format_size = 4};
    struct pj_Compile_Args c = {.struct_size = sizeof c,
                                .topology = topology,
                                .program = &p,
                                .compile_options = options,
                                .compile_options_size = pj_compile_options(j->of->n_rank, options)};
    sy_status st = pj_call(&j->p, PJ_Compile, &c, "compiling", err);
    sy_delete(j->env, copy);
    if (!st) j->executable = c.executable;
    return st;
}

static sy_status compile_here(struct job *j, struct sy_err *err)
{
    void *loaded;
    sy_status st = pj_compile(&j->client, j->of->text->at, j->of->text->len, j->of->n_rank, &loaded, err);
    return st ? st : pj_executable_of(&j->p, loaded, &j->executable, err);
}

static sy_status open_target(struct job *j, void **topology, struct sy_err *err)
{
    if (j->of->target->kind != SY_AOT_CPU) {
        sy_status st = pj_plugin_open(&j->p, j->of->plugin, err);
        return st ? st : open_topology(j, topology, err);
    }
    sy_status st = pj_client_open(j->env, j->of->plugin, j->of->n_rank, &j->client, err);
    if (st) return st;
    j->p = j->client.plugin;
    COPY(j->platform, j->client.platform, sizeof j->client.platform);
    COPY(j->kind, j->client.kind, sizeof j->client.kind);
    COPY(j->version, j->client.version, sizeof j->client.version);
    return SY_OK;
}

static sy_status store(struct job *j, struct sy_err *err)
{
    char target[512];
    struct pj_origin origin = {j->platform, j->kind, j->version, j->of->n_rank};
    pj_origin_text(&j->p, &origin, target, sizeof target);
    struct pj_key key = {target, j->of->text->at, j->of->text->len};
    return pj_executable_keep(j->env, &j->p, j->executable, j->of->store, &key)
               ? SY_OK
               : sy_fail(err, SY_EIO, "a program cannot be written to '%s'", j->of->store);
}

sy_status sy_aot_compile(const struct sy_env *env, const struct sy_aot_job *of, struct sy_aot_result *out,
                         struct sy_err *err)
{
    struct job j = {.env = env, .of = of, .out = out};
    void *topology = NULL;
    *out = (struct sy_aot_result){0};
    sy_status st = open_target(&j, &topology, err);
    uint64_t began = sy_now_ns(env);
    if (!st) st = topology ? compile_for(&j, topology, err) : compile_here(&j, err);
    out->compile_s = (double)(sy_now_ns(env) - began) / 1e9;
    if (st) return st;
    st = read_memory(&j, err);
    read_costs(&j);
    read_estimates(&j);
    return !st && of->store ? store(&j, err) : st;
}
