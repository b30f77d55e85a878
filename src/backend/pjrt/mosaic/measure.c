/* measure.c - costs read from the compiler's schedule. It writes one on request: a file for each stage, of which the
 * one behind register allocation has an address for every cycle, those that wait included. */
#include "backend/pjrt/mosaic/measure.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"
#include "base/file.h"

enum { SCHEDULE_BYTES_MAX = 256 << 20, VMEM_BYTES = 64 << 20 };

/* ---- programs of one op -----------------------------------------------------------------------------------------
 */

static struct mo_attend attend_of(const struct sy_attend_shape *s)
{
    struct mo_attend a = {
        .n_seq = s->n_seq, .n_tok = s->n_seq, .block_len = s->block_len, .n_kv = s->n_kv, .d = s->d};
    a.n_table = (s->n_keys + s->block_len - 1) / s->block_len;
    a.n_block = s->n_seq * a.n_table + 1;
    for (a.g = 4; a.g < s->n_group; a.g *= 2) continue;
    a.tile = 1;
    a.fetch = s->fetch / s->block_len;
    a.slots = 2;
    a.heads = s->n_kv;
    a.scale = 0.1F;
    return a;
}

static enum pj_elem elem_of(enum mo_elem e) { return e == MO_BF16 ? PJ_BF16 : e == MO_F32 ? PJ_F32 : PJ_I32; }

/* A program that is one kernel, its operands and result as the kernel declares them. */
static sy_status kernel_program(const struct sy_env *env, struct mosaic *m, struct sy_buf *out, struct sy_err *err)
{
    struct sy_buf kernel, config;
    struct pj_hlo h;
    struct pj_type t[MO_ARG_MAX];
    int arg[MO_ARG_MAX], n = m->n_prefetch + m->n_operand;
    sy_buf_init(&kernel, env, 0);
    sy_buf_init(&config, env, 0);
    pj_hlo_init(&h, env);
    sy_status st = mo_end(m, &kernel, err);
    if (!st) {
        mo_config(m, &kernel, VMEM_BYTES, &config);
        for (int i = 0; i <= n; i++) {
            struct mo_type from = mo_type_of(m, m->arg[i]);
            int64_t dim[PJ_DIM_MAX];
            for (int k = 0; k < from.n_dim; k++) dim[k] = from.dim[k];
            t[i] = pj_type(elem_of(from.elem), from.n_dim, dim);
            if (i < n) arg[i] = pj_arg(&h, t[i], -1);
        }
        int y = pj_kernel(&h, &config, arg, n, t[n]);
        st = pj_hlo_end(&h, 1, &y, 1, out, err);
    }
    pj_hlo_release(&h);
    sy_buf_release(&kernel);
    sy_buf_release(&config);
    return st;
}

/* The same step as the lowering writes it without kernels: one ATTEND between arguments and result. */
static sy_status twin_program(const struct sy_env *env, const struct sy_attend_shape *s, struct sy_buf *out,
                              struct sy_err *err)
{
    enum { Q = 1, K, V, STATE, ATTEND, N };
    struct mo_attend a = attend_of(s);
    int val[N], kv[2], first[N] = {0}, result[3];
    struct sy_node node[N] = {[ATTEND] = {.op = SY_OP_ATTEND, .in = {{Q}, {K}, {V}, {STATE}}}};
    node[ATTEND].attr.attn = (struct sy_attn_dim){
        .n_head = s->n_kv * s->n_group, .n_kv = s->n_kv, .d_key = s->d, .d_val = s->d, .scale = 0.1F};
    struct lower l = {
        .node = node, .n_node = N, .val = val, .kv = kv, .first = first, .n_kv = 2, .entry_of_token = -1};
    l.shape = (struct sy_shape){s->n_seq, s->n_seq, a.n_table, s->n_seq};
    l.opt = (struct pj_lower_opt){.compute = SY_COMPUTE_BF16,
                                  .kv_elem = PJ_BF16,
                                  .cache = {.block_len = s->block_len, .n_block = a.n_block, .n_slot = 1},
                                  .n_rank = 1};
    int64_t n_step = 0;
    for (int f = 0; f < SY_FIELD_COUNT; f++) {
        n_step += sy_field_len((enum sy_field)f, l.shape);
        l.field[f] = -1;
    }
    pj_hlo_init(&l.h, env);
    l.step = pj_arg(&l.h, PJ_TYPE(PJ_I32, n_step), -1);
    for (int i = 0; i < 2; i++) kv[i] = pj_arg(&l.h, PJ_TYPE(PJ_BF16, a.n_block, s->block_len, s->n_kv, s->d), i);
    for (int i = Q; i <= V; i++)
        val[i] = pj_arg(&l.h, PJ_TYPE(PJ_F32, s->n_seq, (int64_t)s->n_kv * (i == Q ? s->n_group : 1) * s->d), -1);
    result[2] = lower_attend(&l, &node[ATTEND]);
    memcpy(result, kv, sizeof kv);
    sy_status st = pj_hlo_end(&l.h, 1, result, 3, out, err);
    pj_hlo_release(&l.h);
    return st;
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
    struct pj_lower_opt lo = {.compute = o->compute,
                              .kv_elem = o->kv_dtype == SY_KV_BF16 ? PJ_BF16 : PJ_F32,
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
        struct mo_attend a = mo_attend_of(d, &o->cache, s);
        int32_t keys = s.block * o->cache.block_len;
        if (d->window > 0 && d->window < keys) keys = d->window;
        use_one(&u, &(struct sy_attend_shape){s.seq, keys, d->n_kv, d->n_head / d->n_kv, d->d_key, o->cache.block_len,
                                              a.fetch * a.block_len});
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
    int found = 0;
    int64_t address = 0;
    for (const char *at = text, *all = text + n, *end; at < all; at = end + 1) {
        end = memchr(at, '\n', (size_t)(all - at));
        if (!end) end = all;
        char head[64];
        snprintf(head, sizeof head, "%.*s", (int)(end - at < 63 ? end - at : 63), at);
        char *after;
        int64_t here = strtoll(head, &after, 16);
        if (after > head && strchr(after, ':')) address = here;
        const char *jump = memmem(at, (size_t)(end - at), branch, sizeof branch - 1);
        const char *to = jump ? memmem(jump, (size_t)(end - jump), target, sizeof target - 1) : NULL;
        if (!to || found == SY_SCHEDULE_LOOPS) continue;
        int64_t back = strtoll(to + sizeof target - 1, NULL, 10);
        if (back < address) loop[found++] = (struct sy_schedule_loop){back, address + 1};
    }
    qsort(loop, (size_t)found, sizeof *loop, by_start);
    return found;
}

static int64_t length(struct sy_schedule_loop l) { return l.to - l.from; }

/* Of the longest loop (sequences) the longest inside it (fetches), and of that the first inside (its blocks). */
static bool attend_loops(const struct sy_schedule_loop *l, int n, const struct mo_attend *a,
                         struct sy_attend_cost *out)
{
    int outer = -1, fetch = -1, block = -1;
    int64_t inside = 0;
    for (int i = 0; i < n; i++)
        if (outer < 0 || length(l[i]) > length(l[outer])) outer = i;
    for (int i = outer + 1; outer >= 0 && i < n && l[i].to <= l[outer].to; i++)
        if (fetch < 0 || length(l[i]) > length(l[fetch])) fetch = i;
    for (int i = fetch + 1; fetch >= 0 && i < n && l[i].to <= l[fetch].to; i++) {
        if (block < 0) block = i;
        inside += length(l[i]);
    }
    if (block < 0) return false;
    out->block = (double)length(l[block]);
    out->fetch = (double)(length(l[fetch]) - inside) + a->fetch * out->block;
    out->sequence = (double)(length(l[outer]) - length(l[fetch]));
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

sy_status sy_attend_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                         const struct sy_attend_shape *s, struct sy_attend_cost *out, struct sy_err *err)
{
    struct mo_attend a = attend_of(s);
    struct mosaic m;
    struct sy_buf program;
    struct sy_schedule_loop loop[SY_SCHEDULE_LOOPS];
    char *text = NULL;
    size_t n = 0;
    *out = (struct sy_attend_cost){0};
    sy_buf_init(&program, env, 0);
    mo_init(&m, env);
    mo_attend(&m, &a);
    sy_status st = kernel_program(env, &m, &program, err);
    if (!st) st = compile_kernel(env, plugin, t, &program, &out->compile_s, &text, &n, err);
    if (!st && !attend_loops(loop, sy_schedule_loops(text, n, loop), &a, out))
        st = sy_fail(err, SY_ENOSUP, "the compiler's schedule has not the loops of the kernel; libtpu 0.0.52's has");
    if (!st) {
        double bytes = 2.0 * s->fetch * s->n_kv * s->d * 2, fetches = (s->n_keys + s->fetch - 1) / s->fetch;
        out->memory = bytes / t->hbm_bytes_s * t->clock_hz;
        out->all = s->n_seq * (out->sequence + fetches * (out->fetch > out->memory ? out->fetch : out->memory));
    }
    sy_delete(env, text);
    mo_release(&m);
    sy_buf_release(&program);
    return st;
}

sy_status sy_attend_twin_cost(const struct sy_env *env, const char *plugin, const struct sy_aot_target *t,
                              const struct sy_attend_shape *s, struct sy_twin_cost *out, struct sy_err *err)
{
    struct sy_buf program;
    struct sy_aot_result r;
    struct sy_aot_job job = {.plugin = plugin, .target = t, .text = &program, .n_rank = 1, .trips = {1, 1, 1}};
    if (s->n_keys > LOWER_RUN_KEYS_MAX) job.trips[0] = s->n_keys / (double)LOWER_RUN_KEYS;
    sy_buf_init(&program, env, 0);
    sy_status st = twin_program(env, s, &program, err);
    if (!st) st = sy_aot_compile(env, &job, &r, err);
    if (!st) *out = (struct sy_twin_cost){r.cycles / t->clock_hz, r.bytes / t->hbm_bytes_s};
    sy_buf_release(&program);
    return st;
}
