/* Measured loops run again: times to the first token against a queue worked out apart from the engine, and the bound
 * on the gap that a server kept found from them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "bench/stats.h"
#include "plan/rerun.h"
#include "plan/simulate.h"

enum { USERS_MAX = 64, REQUESTS = 10 };

static const struct sy_env *env(void) { return sy_env_default(); }

static const struct sy_consts truth = {{[SY_CONST_LAYER_S] = 20e-6,
                                        [SY_CONST_SEQ_S] = 0.2e-6,
                                        [SY_CONST_WEIGHT] = 1.5,
                                        [SY_CONST_KV] = 0.6,
                                        [SY_CONST_FLOPS] = 0.9,
                                        [SY_CONST_CROWD] = 0.03}};

/* A loop of own results on two cores. */
static struct sy_measured loop_of(struct sy_points *points, int32_t isl, int32_t osl, int32_t conc)
{
    char text[800];
    struct sy_err err = {0};
    snprintf(
        text, sizeof text,
        "{\"points\":[{\"id\":\"p\",\"hw\":\"cpu2\",\"chips\":1,\"model\":\"smollm2-135m\",\"precision\":\"int4\","
        "\"framework\":\"systole\",\"date\":\"own\",\"isl\":%d,\"osl\":%d,\"random_range_ratio\":0.8,"
        "\"conc\":%d,\"max_num_batched_tokens\":512,\"parallel\":{\"tp\":1},"
        "\"metrics\":{\"tput_per_gpu\":1}}]}",
        isl, osl, conc);
    *points = (struct sy_points){0};
    if (sy_points_text(env(), "made", text, strlen(text), NULL, points, &err)) fail_msg("%s", err.msg);
    struct sy_measured p = points->at[0];
    if (p.why_not[0]) fail_msg("%s", p.why_not);
    p.timer.consts = truth;
    return p;
}

/* ---- the queue, by itself: who came first is computed first, running answers go before prompts -------------------
 */

struct client {
    double asked, n_done, n_in, n_out, said;
    int order;
};

static struct client *next_prompt(struct client *c, int n, int after)
{
    struct client *found = NULL;
    for (int i = 0; i < n; i++)
        if (c[i].n_done < c[i].n_in && c[i].order > after && (!found || c[i].order < found->order)) found = &c[i];
    return found;
}

static void take(struct sy_rank_load *l, struct client *c, double n, bool prompt)
{
    double keys = n * c->n_done + n * (n + 1) / 2;
    l->tok += n;
    l->seq += 1;
    l->keys += keys;
    l->ctx += c->n_done + n;
    c->n_done += n;
    l->out += c->n_done >= c->n_in;
    if (!prompt) return;
    l->prompt += n;
    l->prompt_keys += keys;
}

/* Times to the first token of a closed loop; returns how many. */
static size_t queue(const struct sy_measured *p, const struct sy_workload *w, double *ttft)
{
    struct client c[USERS_MAX];
    double now = 0;
    size_t asked = 0, n = 0, n_done = 0;
    int order = 0;
    for (int i = 0; i < p->conc; i++, asked++)
        c[i] = (struct client){0, 0, w->session[asked].turn[0].n_in, w->session[asked].turn[0].n_out, 0, ++order};
    while (n_done < w->n) {
        struct sy_rank_load l = {0};
        bool stepped[USERS_MAX] = {false};
        for (int i = 0; i < p->conc; i++)
            if (c[i].said > 0 && c[i].said < c[i].n_out) take(&l, &c[i], 1, false), stepped[i] = true;
        struct client *at = next_prompt(c, p->conc, 0);
        while (at && l.tok < p->chunk) {
            double left = at->n_in - at->n_done, room = p->chunk - l.tok;
            take(&l, at, left < room ? left : room, true);
            stepped[at - c] = true;
            at = next_prompt(c, p->conc, at->order);
        }
        now += sy_timer_step(&p->timer, &l, 1);
        for (int i = 0; i < p->conc; i++) {
            if (!stepped[i] || c[i].n_done < c[i].n_in) continue;
            if (c[i].said == 0) ttft[n++] = now - c[i].asked;
            if (++c[i].said < c[i].n_out) continue;
            n_done++;
            if (asked == w->n) continue;
            const struct sy_turn *t = &w->session[asked++].turn[0];
            c[i] = (struct client){now, 0, t->n_in, t->n_out, 0, ++order};
        }
    }
    return n;
}

static void first_tokens(void **state)
{
    (void)state;
    static const int32_t of[][3] = {{256, 128, 1}, {256, 128, 16}, {768, 32, 16}, {64, 256, 8}, {1500, 8, 32}};
    for (size_t i = 0; i < SY_COUNT(of); i++) {
        struct sy_points points;
        struct sy_measured p = loop_of(&points, of[i][0], of[i][1], of[i][2]);
        struct sy_workload w;
        struct sy_sim_seen seen;
        struct sy_err err = {0};
        double *ttft = calloc((size_t)REQUESTS * (size_t)p.conc, sizeof *ttft);
        if (sy_workload_random(env(), REQUESTS * (size_t)p.conc, p.isl, p.osl, p.range, 1, &w, &err))
            fail_msg("%s", err.msg);
        struct sy_sim_opt o = {.timer = &p.timer,
                               .n_replica = 1,
                               .chunk = p.chunk,
                               .seq_max = p.conc,
                               .ctx_len = p.isl + p.osl + 20,
                               .block_len = 64,
                               .accepted = 1,
                               .users = p.conc,
                               .seed = 1};
        if (sy_simulate(env(), &o, &w, &seen, &err)) fail_msg("%s", err.msg);
        struct sy_summary s = sy_summary_of(ttft, queue(&p, &w, ttft));
        assert_int_equal(s.n, seen.ttft.n);
        if (fabs(s.mean / seen.ttft.mean - 1) > 0.02 || fabs(s.median / seen.ttft.median - 1) > 0.02 ||
            fabs(s.p99 / seen.ttft.p99 - 1) > 0.02)
            fail_msg("%d/%d, %d users: mean %.4f s, simulated %.4f; median %.4f, %.4f; p99 %.4f, %.4f", p.isl, p.osl,
                     p.conc, s.mean, seen.ttft.mean, s.median, seen.ttft.median, s.p99, seen.ttft.p99);
        sy_workload_release(&w);
        sy_points_release(&points);
        free(ttft);
    }
}

/* ---- the bound on the gap ----------------------------------------------------------------------------------------
 */

/* A calibration of one loop, whose times are what the simulator says with that bound. */
static void calibrated(struct sy_points *points, double gap_ms, int32_t isl, int32_t conc, struct sy_group *g,
                       struct sy_calibration *c)
{
    struct sy_err err = {0};
    double metric[SY_METRIC_COUNT];
    struct sy_measured p = loop_of(points, isl, 64, conc);
    *g = (struct sy_group){.hw = "cpu2", .framework = "systole", .precision = "int4", .date = "own", .spec = "none"};
    snprintf(g->model, sizeof g->model, "smollm2-135m");
    g->consts = truth;
    g->gap_ms = gap_ms;
    p.group = 0;
    points->at[0] = p;
    *c = (struct sy_calibration){.group = g, .n_group = 1, .points = *points};
    if (sy_rerun(env(), c, &p, metric, &err)) fail_msg("%s", err.msg);
    for (int k = 0; k < SY_METRIC_COUNT; k++) points->at[0].metric[k] = metric[k];
    g->gap_ms = 0;
}

static void gaps(void **state)
{
    (void)state;
    static const double kept[] = {110, 150, 180};
    double ttft = INFINITY;
    for (size_t i = 0; i < SY_COUNT(kept); i++) {
        struct sy_points points;
        struct sy_calibration c;
        struct sy_group g;
        struct sy_err err = {0};
        calibrated(&points, kept[i], 768, 16, &g, &c);
        double now = points.at[0].metric[SY_METRIC_TTFT];
        assert_true(now < ttft); /* the tighter the bound, the longer prompts take */
        ttft = now;
        if (sy_rerun_gaps(env(), &c, &err)) fail_msg("%s", err.msg);
        if (fabs(log(g.gap_ms / kept[i])) > 0.25) fail_msg("kept %.0f ms, found %.0f", kept[i], g.gap_ms);
        snprintf(g.framework, sizeof g.framework, "vllm"); /* whose scheduler is another */
        g.gap_ms = 0;
        if (sy_rerun_gaps(env(), &c, &err)) fail_msg("%s", err.msg);
        assert_true(g.gap_ms == 0);
        assert_true(sy_group_gap_ms(&g, "cpu2") == 0 && sy_group_gap_ms(NULL, "cpu2") == 0);
        g.gap_ms = 7;
        assert_true(sy_group_gap_ms(&g, "cpu2") == 7 && sy_group_gap_ms(&g, "b200") == 0);
        sy_points_release(&points);
    }
}

static void refuses(void **state)
{
    (void)state;
    struct sy_points points;
    struct sy_calibration c = {0};
    struct sy_err err = {0};
    double metric[SY_METRIC_COUNT];
    struct sy_measured p = loop_of(&points, 64, 8, 2);
    p.kind = SY_LOAD_DECODE;
    assert_int_equal(sy_rerun(env(), &c, &p, metric, &err), SY_EARG);
    assert_non_null(strstr(err.msg, "closed loop"));
    sy_points_release(&points);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_tokens),
        cmocka_unit_test(gaps),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
