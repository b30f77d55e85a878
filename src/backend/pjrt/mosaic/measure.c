/* measure.c - costs read from the compiler's schedule. It writes one on request: a file for each stage, of which the
 * one behind register allocation has an address for every cycle, those that wait included. */
#include "backend/pjrt/mosaic/measure.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/schedule.h"
#include "base/file.h"

enum { SCHEDULE_BYTES_MAX = 256 << 20 };
#define EVEN 0.01 /* what is a whole number of parts but for few choices that are made twice counts as whole */

/* ---- programs of one op -----------------------------------------------------------------------------------------
 */

static struct mo_attend attend_of(const struct sy_attend_shape *s)
{
    struct mo_attend a = {
        .n_seq = s->n_seq, .n_tok = s->n_seq * s->n_new, .block_len = s->block_len, .n_kv = s->n_kv, .d = s->d};
    a.n_table = (int32_t)sy_ceil_div(s->n_keys, s->block_len);
    a.n_block = s->n_seq * a.n_table + 1;
    for (a.g = 4; a.g < s->n_group; a.g *= 2) continue;
    a.tile = s->tile;
    a.window = s->window;
    a.bytes = s->elem_bytes == 1;
    a.fetch = s->fetch / s->block_len;
    a.slots = 2;
    a.heads = mo_attend_heads(a.n_kv, a.tile * a.g);
    a.part = mo_attend_part(&a);
    a.scale = 0.1F;
    return a;
}

/* A program that is one kernel, its operands and results as the kernel declares them. */
static sy_status kernel_program(const struct sy_env *env, struct mosaic *m, struct sy_buf *out, struct sy_err *err)
{
    struct pj_hlo h;
    int arg[MO_ARG_MAX] = {0}, result[MO_ARG_MAX] = {0}, n = m->n_prefetch + m->n_operand, n_result = m->n_result;
    pj_hlo_init(&h, env);
    for (int i = 0; i < n && !m->failed; i++) {
        int alias = -1;
        for (int k = 0; k < n_result; k++)
            if (m->alias[k] == i) alias = k;
        arg[i] = pj_arg(&h, lower_kernel_type(m, m->arg[i]), alias);
    }
    lower_kernel_call(&h, m, arg, result);
    sy_status st = pj_hlo_end(&h, 1, result, n_result, out, err);
    pj_hlo_release(&h);
    return st;
}

/* The same step as the lowering writes it: one ATTEND between arguments and result. */
static sy_status attend_twin_program(const struct sy_env *env, const struct sy_attend_shape *s, bool kernels,
                                     struct sy_buf *out, struct sy_err *err)
{
    enum { Q = 1, K, V, STATE, ATTEND, N };
    struct mo_attend a = attend_of(s);
    int val[N], kv[PJ_ARRAYS_MAX], first[N] = {0}, result[PJ_ARRAYS_MAX + 1], n_kv = s->elem_bytes == 1 ? 3 : 2;
    struct sy_node node[N] = {[ATTEND] = {.op = SY_OP_ATTEND, .in = {{Q}, {K}, {V}, {STATE}}}};
    node[ATTEND].attr.attn = (struct sy_attn_dim){.n_head = s->n_kv * s->n_group,
                                                  .n_kv = s->n_kv,
                                                  .d_key = s->d,
                                                  .d_val = s->d,
                                                  .window = s->window,
                                                  .scale = 0.1F};
    struct lower l = {
        .node = node, .n_node = N, .val = val, .kv = kv, .first = first, .n_kv = n_kv, .entry_of_token = -1};
    l.shape = (struct sy_shape){a.n_tok, s->n_seq, a.n_table, s->n_seq, 0};
    l.opt = (struct pj_lower_opt){.compute = SY_COMPUTE_BF16,
                                  .kv_elem = a.bytes ? PJ_I8 : PJ_BF16,
                                  .cache = {.block_len = s->block_len, .n_block = a.n_block, .n_slot = 1},
                                  .n_rank = 1};
    int64_t n_step = 0;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        n_step += sy_field_len((enum sy_field)f, l.shape);
        l.field[f] = -1;
    }
    pj_hlo_init(&l.h, env);
    l.step = pj_arg(&l.h, PJ_TYPE(PJ_I32, n_step), -1);
    l.opt.kernels = kernels ? SY_KERNELS_ALL : 0;
    struct pj_type array = PJ_TYPE(l.opt.kv_elem, a.n_block, s->block_len, s->n_kv, s->d);
    if (kernels) array = PJ_TYPE(l.opt.kv_elem, a.n_block, s->block_len, (int64_t)s->n_kv * s->d);
    for (int i = 0; i < 2; i++) kv[i] = pj_arg(&l.h, array, i);
    int64_t wide = lower_q8_width(&node[ATTEND].attr.attn, kernels);
    if (a.bytes) kv[2] = pj_arg(&l.h, PJ_TYPE(PJ_I8, a.n_block, s->block_len, wide), 2);
    for (int i = Q; i <= V; i++)
        val[i] = pj_arg(&l.h, PJ_TYPE(PJ_F32, a.n_tok, (int64_t)s->n_kv * (i == Q ? s->n_group : 1) * s->d), -1);
    result[n_kv] = lower_attend(&l, &node[ATTEND]);
    memcpy(result, kv, (size_t)n_kv * sizeof *kv);
    sy_status st = pj_hlo_end(&l.h, 1, result, n_kv + 1, out, err);
    pj_hlo_release(&l.h);
    return st;
}

/* A weight of the shape's experts, n_row rows each, as the backend lays it out; its arguments. */
static struct pj_wseg experts_weight(struct pj_hlo *h, const struct sy_experts_shape *s, int64_t n_row, int64_t cols)
{
    struct pj_wseg w = {.rows = s->dim.n_expert * n_row, .cols = cols, .n_rank = 1};
    if (s->weight.format == SY_EXPERTS_BF16) {
        w.arg = pj_arg(h, PJ_TYPE(PJ_BF16, w.rows, cols), -1);
        return w;
    }
    w.kind = PJ_CODED;
    w.code = s->weight.format == SY_EXPERTS_INT8 ? PJ_CODE_INT : PJ_CODE_E4M3;
    w.group = s->weight.group < cols ? s->weight.group : cols;
    w.stack = n_row;
    w.has_scale = w.group > 0;
    w.arg = pj_arg(h, PJ_TYPE(s->weight.format == SY_EXPERTS_INT8 ? PJ_I8 : PJ_U8, w.rows, cols), -1);
    if (w.has_scale) (void)pj_arg(h, PJ_TYPE(PJ_F32, s->dim.n_expert * (cols / w.group), 1, n_row), -1);
    return w;
}

/* EXPERTS as the lowering writes it, of weights that are arguments. */
static sy_status experts_twin_program(const struct sy_env *env, const struct sy_experts_shape *s, bool kernels,
                                      struct sy_buf *out, struct sy_err *err)
{
    enum { X = 1, ROUTE, UP, DOWN, EXPERTS, N };
    int64_t d = s->d_model, f = s->dim.d_ff;
    int val[N] = {-1, -1, -1, -1, -1, -1};
    struct sy_node node[N] = {
        [UP] = {.op = SY_OP_WEIGHT, .name = "up"}, [DOWN] = {.op = SY_OP_WEIGHT, .name = "down"}};
    node[EXPERTS] = (struct sy_node){.op = SY_OP_EXPERTS, .dim = {s->rows, d}, .in = {{X}, {ROUTE}, {UP}, {DOWN}}};
    node[EXPERTS].attr.moe = s->dim;
    struct pj_wseg seg[2];
    struct pj_wentry entry[] = {{.name = "up", .seg = &seg[0], .n_seg = 1, .vec = -1},
                                {.name = "down", .seg = &seg[1], .n_seg = 1, .vec = -1}};
    struct pj_type type[6]; /* of the arguments: two of rows, two of each weight */
    struct sy_weights w = {.entry = entry, .n_entry = 2, .n_rank = 1, .type = type};
    struct lower l = {.node = node, .n_node = N, .val = val, .w = &w, .entry_of_token = -1};
    l.opt = (struct pj_lower_opt){.compute = SY_COMPUTE_BF16, .kv_elem = PJ_BF16, .n_rank = 1};
    l.opt.kernels = kernels ? SY_KERNELS_ALL : 0;
    pj_hlo_init(&l.h, env);
    val[X] = pj_arg(&l.h, PJ_TYPE(PJ_F32, s->rows, d), -1);
    val[ROUTE] = pj_arg(&l.h, PJ_TYPE(PJ_F32, s->rows, 2 * (int64_t)s->dim.n_used), -1);
    seg[0] = experts_weight(&l.h, s, 2 * f, d);
    seg[1] = experts_weight(&l.h, s, d, f);
    for (int i = 0; i < l.h.n_arg; i++) type[i] = *pj_type_of(&l.h, i);
    int y = lower_experts(&l, &node[EXPERTS]);
    sy_status st = pj_hlo_end(&l.h, 1, &y, 1, out, err);
    pj_hlo_release(&l.h);
    return st;
}

int32_t sy_experts_shape_of(const struct sy_graph *g, struct sy_experts_shape *out)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    int32_t n = 0;
    for (uint32_t i = 1; i < n_node; i++)
        if (node[i].op == SY_OP_EXPERTS && n++ == 0)
            *out = (struct sy_experts_shape){
                .dim = node[i].attr.moe, .d_model = (int32_t)node[i].dim[1], .rows = (int32_t)node[i].dim[0]};
    return n;
}

/* Counts it with the ones like it; with the last kind when there are too many kinds. */
static void use_one(struct sy_attend_use *u, const struct sy_attend_shape *s)
{
    int32_t k = 0;
    while (k < u->n_kind && memcmp(&u->shape[k], s, sizeof *s) != 0) k++;
    if (k == SY_ATTEND_KINDS) k--;
    else if (k == u->n_kind) u->shape[u->n_kind++] = *s;
    u->n[k]++;
    u->n_kernel++;
}

struct sy_attend_use sy_attend_use_of(const struct sy_graph *g, const struct sy_aot_opt *o)
{
    uint32_t n_node;
    const struct sy_node *node = sy_graph_nodes(g, &n_node);
    bool bytes = o->kv_dtype == SY_KV_Q8_0;
    struct pj_lower_opt lo = {.compute = o->compute,
                              .attend_bf16 = o->attend_bf16,
                              .kv_elem = bytes                       ? PJ_I8
                                         : o->kv_dtype == SY_KV_BF16 ? PJ_BF16
                                                                     : PJ_F32,
                              .cache = o->cache,
                              .kernels = o->kernels};
    struct sy_shape s = sy_graph_shape(g);
    struct sy_attend_use u = {0};
    for (uint32_t i = 1; i < n_node; i++) {
        if (node[i].op != SY_OP_ATTEND || !o->kernels) continue;
        const struct sy_attn_dim *d = &node[i].attr.attn;
        const char *why = lower_kernel_refuses(&node[i], &lo);
        if (why) {
            u.why = u.n_plain++ ? u.why : why;
            continue;
        }
        struct mo_attend a = mo_attend_of(d, &o->cache, bytes, s);
        struct sy_attend_shape one = {.n_seq = s.seq,
                                      .n_new = 1,
                                      .n_keys = s.block * a.block_len,
                                      .n_kv = d->n_kv,
                                      .n_group = d->n_head / d->n_kv,
                                      .d = d->d_key,
                                      .block_len = a.block_len,
                                      .window = d->window,
                                      .tile = a.tile,
                                      .fetch = a.fetch * a.block_len,
                                      .elem_bytes = bytes ? 1 : 2};
        if (!pj_is_decode(s)) { /* one prompt from its start */
            one.n_seq = 1;
            one.n_new = s.tok;
            one.n_keys = s.tok;
        }
        use_one(&u, &one);
    }
    return u;
}

/* ---- the schedule -----------------------------------------------------------------------------------------------
 */

static int by_start(const void *a, const void *b)
{
    const struct sy_schedule_loop *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from ? 1 : x->to > y->to ? -1 : x->to < y->to;
}

int sy_schedule_loops(const char *text, size_t n, struct sy_schedule_loop loop[SY_SCHEDULE_LOOPS])
{
    static const char branch[] = "sbr.rel", target[] = "target bundleno = ";
    int found = 0, open = 0; /* open: loops whose last branch's delay slots are not yet over */
    int64_t address = 0;
    for (const char *at = text, *all = text + n, *end; at < all; at = end + 1) {
        end = memchr(at, '\n', (size_t)(all - at));
        if (!end) end = all;
        char head[64];
        snprintf(head, sizeof head, "%.*s", (int)(end - at < 63 ? end - at : 63), at);
        char *after;
        int64_t here = strtoll(head, &after, 16);
        if (after > head && strchr(after, ':')) address = here;
        if (after > head && (strstr(after, " LB:") || strstr(after, " PF:")))
            for (; open > 0; open--) loop[found - open].to = address;
        const char *jump = memmem(at, (size_t)(end - at), branch, sizeof branch - 1);
        const char *to = jump ? memmem(jump, (size_t)(end - jump), target, sizeof target - 1) : NULL;
        if (!to || found == SY_SCHEDULE_LOOPS) continue;
        int64_t back = strtoll(to + sizeof target - 1, NULL, 10);
        if (back >= address) continue;
        loop[found++] = (struct sy_schedule_loop){back, address + 1};
        open++;
    }
    qsort(loop, (size_t)found, sizeof *loop, by_start);
    return found;
}

int mo_longest(const struct sy_schedule_loop *l, int n, int in)
{
    int k = -1;
    for (int i = in + 1; i < n && (in < 0 || l[i].to <= l[in].to); i++)
        if (k < 0 || mo_length(l[i]) > mo_length(l[k])) k = i;
    return k;
}

/* Of the longest loop (sequences) the longest inside it (tiles, where they are several), of that the longest again
 * (fetches), and of that the first (its blocks). */
static bool attend_loops(const struct sy_schedule_loop *l, int n, const struct mo_attend *a,
                         struct sy_attend_cost *out)
{
    int tile = mo_longest(l, n, -1), block = -1;
    int64_t inside = 0;
    if (tile >= 0 && a->tile > 1) tile = mo_longest(l, n, tile);
    int fetch = tile < 0 ? -1 : mo_longest(l, n, tile);
    for (int i = fetch + 1; fetch >= 0 && i < n && l[i].to <= l[fetch].to; i++) {
        if (block < 0) block = i;
        inside += mo_length(l[i]);
    }
    if (block < 0) return false;
    out->block = (double)mo_length(l[block]) / mo_attend_turn(a);
    out->fetch = (double)(mo_length(l[fetch]) - inside) + a->fetch * out->block;
    out->tile = (double)(mo_length(l[tile]) - mo_length(l[fetch]));
    return true;
}

/* Fetches and tiles of the step. */
static void count_work(const struct sy_attend_shape *s, double *fetches, double *tiles)
{
    *fetches = *tiles = 0;
    for (int32_t at = 0; at < s->n_new; at += s->tile) {
        int32_t keys = s->n_keys - s->n_new + (at + s->tile < s->n_new ? at + s->tile : s->n_new);
        if (s->window > 0 && keys > s->window + s->tile) keys = s->window + s->tile;
        *fetches += s->n_seq * (double)((keys + s->fetch - 1) / s->fetch);
        *tiles += s->n_seq;
    }
}

/* The longest loop is that over items; its longest is that over steps, where they are several, and of that, or
 * where they are not of the former, the longest is that over the item's rows. */
static bool experts_loops(const struct sy_schedule_loop *l, int n, int32_t n_step, double parts,
                          struct sy_experts_cost *out)
{
    int item = mo_longest(l, n, -1), step = item < 0 ? -1 : mo_longest(l, n, item), part = step;
    if (n_step > 1 && step >= 0) part = mo_longest(l, n, step);
    if (part < 0) return false;
    double more = (parts - 1) * (double)mo_length(l[part]);
    out->step = more + (double)mo_length(l[step]);
    out->item = (double)(mo_length(l[item]) - mo_length(l[step]));
    return true;
}

/* ---- compiling --------------------------------------------------------------------------------------------------
 */

/* Beside the kernel's own the compiler writes those of what it puts around it: <late-...> and TLP. */
static bool is_schedule(const char *name)
{
    return strstr(name, "packed-bundles-post-ra.txt") && !strstr(name, "schedule-analysis") && !strchr(name, '<') &&
           !strstr(name, "TLP");
}

/* Reads the schedule among the files of a folder, and takes folder and files away. */
static sy_status take_schedule(const struct sy_env *env, const char *folder, char **text, size_t *n,
                               struct sy_err *err)
{
    DIR *d = opendir(folder);
    sy_status st = SY_OK;
    bool found = false;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!st && !found && is_schedule(e->d_name)) {
            st = sy_file_read(env, path, SCHEDULE_BYTES_MAX, text, n, err);
            found = !st;
        }
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(folder);
    if (!st && !found)
        return sy_fail(err, SY_ENOSUP, "the compiler wrote no schedule of a kernel; libtpu 0.0.52 is known to");
    return st;
}

static sy_status compile_kernel(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                                const struct sy_buf *program, double *seconds, char **text, size_t *n,
                                struct sy_err *err)
{
    const char *where = getenv("TMPDIR");
    char folder[300], flags[400];
    snprintf(folder, sizeof folder, "%s/systole-schedule-XXXXXX", where && *where ? where : "/tmp");
    if (!mkdtemp(folder)) return sy_fail(err, SY_EIO, "no folder for a schedule can be made in '%s'", folder);
    snprintf(flags, sizeof flags, "--xla_jf_dump_to=%s --xla_jf_dump_llo_text=true", folder);
    setenv("LIBTPU_INIT_ARGS", flags, 1);
    struct sy_aot_result r;
    struct sy_aot_job job = {.plugin = plugin, .target = t, .text = program, .n_rank = 1, .trips = {1, 1, 1}};
    sy_status st = sy_aot_compile(env, &job, &r, err);
    *seconds = r.compile_s;
    sy_status taken = take_schedule(env, folder, text, n, st ? NULL : err);
    return st ? st : taken;
}

sy_status mo_schedule(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t, struct mosaic *m,
                      struct mo_schedule *out, struct sy_err *err)
{
    struct sy_buf program;
    char *text = NULL;
    size_t n = 0;
    *out = (struct mo_schedule){0};
    sy_buf_init(&program, env, 0);
    sy_status st = kernel_program(env, m, &program, err);
    if (!st) st = compile_kernel(env, plugin, t, &program, &out->compile_s, &text, &n, err);
    if (!st) out->n = sy_schedule_loops(text, n, out->loop);
    sy_delete(env, text);
    sy_buf_release(&program);
    return st;
}

sy_status mo_schedule_unknown(struct sy_err *err)
{
    return sy_fail(err, SY_ENOSUP, "the compiler's schedule has not the loops of the kernel; libtpu 0.0.52's has");
}

sy_status sy_attend_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                         const struct sy_attend_shape *s, struct sy_attend_cost *out, struct sy_err *err)
{
    struct mo_attend a = attend_of(s);
    struct mosaic m;
    struct mo_schedule k;
    *out = (struct sy_attend_cost){0};
    mo_init(&m, env);
    mo_attend(&m, &a);
    sy_status st = mo_schedule(env, plugin, t, &m, &k, err);
    if (st) return st;
    if (!attend_loops(k.loop, k.n, &a, out)) return mo_schedule_unknown(err);
    double position = a.bytes ? 2.0 * s->n_kv * s->d + mo_attend_wide(&a) : 4.0 * s->n_kv * s->d;
    double bytes = s->fetch * position, fetches, tiles;
    count_work(s, &fetches, &tiles);
    out->compile_s = k.compile_s;
    out->memory = bytes / t->hbm_bytes_s * t->clock_hz;
    out->all = tiles * out->tile + fetches * (out->fetch > out->memory ? out->fetch : out->memory);
    return SY_OK;
}

sy_status sy_attend_twin_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                              const struct sy_attend_shape *s, bool around, struct sy_twin_cost *out,
                              struct sy_err *err)
{
    struct sy_buf program;
    struct sy_aot_result r;
    struct sy_aot_job job = {.plugin = plugin, .target = t, .text = &program, .n_rank = 1, .trips = {1, 1, 1}};
    struct sy_shape shape = {.tok = s->n_seq * s->n_new,
                             .seq = s->n_seq,
                             .block = (int32_t)sy_ceil_div(s->n_keys, s->block_len),
                             .out = s->n_seq};
    sy_aot_trips_of(shape, s->block_len, job.trips);
    double within =
        s->window > 0 ? ((double)s->window + (double)pj_piece(shape)) / (double)pj_run_keys(shape) + 1 : 0;
    if (s->n_new > 1 && within > 0 && within < job.trips[1]) job.trips[1] = within;
    sy_buf_init(&program, env, 0);
    sy_status st = attend_twin_program(env, s, around, &program, err);
    if (!st) st = sy_aot_compile(env, &job, &r, err);
    if (!st) *out = (struct sy_twin_cost){r.cycles / t->clock_hz, r.bytes / t->hbm_bytes_s};
    sy_buf_release(&program);
    return st;
}

/* Of weights and scales of so many inner columns of an expert. */
static double experts_bytes(const struct sy_experts_shape *s, int32_t columns)
{
    double n = (double)columns * s->d_model, group = s->weight.group;
    if (s->weight.format == SY_EXPERTS_BF16) return 6 * n;
    if (group == 0) return 3 * n;
    return n * (3 + 8 / fmin(group, s->d_model) + 4 / fmin(group, s->dim.d_ff));
}

sy_status sy_experts_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                          const struct sy_experts_shape *s, struct sy_experts_cost *out, struct sy_err *err)
{
    struct mo_experts a;
    struct mosaic m;
    struct mo_schedule k;
    double chosen, each;
    *out = (struct sy_experts_cost){0};
    static const enum mo_elem elem[] = {
        [SY_EXPERTS_BF16] = MO_BF16, [SY_EXPERTS_INT8] = MO_I8, [SY_EXPERTS_FP8] = MO_E4M3};
    a = (struct mo_experts){.weight = elem[s->weight.format]};
    a.group_up = s->weight.group < s->d_model ? s->weight.group : s->d_model;
    a.group_down = s->weight.group < s->dim.d_ff ? s->weight.group : s->dim.d_ff;
    if (!mo_experts_of(&s->dim, s->d_model, s->rows, &a))
        return sy_fail(err, SY_ENOSUP, "experts so wide that no part of one fits");
    sy_aot_expert_load(&s->dim, s->rows, &chosen, &each);
    each *= s->dim.n_expert / chosen; /* rows of one that has some */
    mo_init(&m, env);
    mo_experts(&m, &a);
    sy_status st = mo_schedule(env, plugin, t, &m, &k, err);
    if (st) return st;
    int32_t n_step = a.d_ff / a.tile;
    double items = ceil(each / a.hold - EVEN), parts = ceil((each < a.hold ? each : a.hold) / a.rows - EVEN);
    if (!experts_loops(k.loop, k.n, n_step, parts, out)) return mo_schedule_unknown(err);
    out->compile_s = k.compile_s;
    out->memory = experts_bytes(s, a.tile) / t->hbm_bytes_s * t->clock_hz;
    out->tile = a.tile;
    out->rows = a.rows;
    out->all = chosen * items * (out->item + n_step * (out->step > out->memory ? out->step : out->memory));
    return SY_OK;
}

sy_status sy_experts_twin_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                               const struct sy_experts_shape *s, bool around, struct sy_twin_cost *out,
                               struct sy_err *err)
{
    struct sy_buf program;
    struct sy_aot_result r;
    struct sy_aot_job job = {.plugin = plugin, .target = t, .text = &program, .n_rank = 1, .trips = {1, 1, 1}};
    double chosen, each;
    sy_aot_expert_load(&s->dim, s->rows, &chosen, &each);
    double tiles = ceil(each * s->dim.n_expert / chosen / (double)pj_expert_tile(&s->dim, s->rows) - EVEN);
    job.trips[2] = chosen * tiles;
    sy_buf_init(&program, env, 0);
    sy_status st = experts_twin_program(env, s, around, &program, err);
    if (!st) st = sy_aot_compile(env, &job, &r, err);
    double bytes = experts_bytes(s, s->dim.d_ff) * chosen * tiles;
    if (!st) *out = (struct sy_twin_cost){r.cycles / t->clock_hz, bytes / t->hbm_bytes_s};
    sy_buf_release(&program);
    return st;
}
