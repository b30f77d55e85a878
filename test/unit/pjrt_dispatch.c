/* How pairs of rows and experts are laid out for the kernel of experts, and their results put together again: the
 * program as it is lowered, with the kernel's call replaced by a sum of each row with itself, run by a PJRT plugin
 * for CPUs. SYSTOLE_CPU_PLUGIN names one; test/e2e/pjrt_attention.py does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pjrt_util.h"

#include "backend/pjrt/lower_int.h"
#include "backend/pjrt/mosaic/kernels.h"

enum { X = 1, ROUTE, UP, DOWN, EXPERTS, N_NODE, WIDTH = 128, TILE_ROWS = 16 };
struct
try {
    int32_t rows, n_expert, n_used;
    bool weigh_input;
    float *x, *route, *weights;
    struct mo_experts a;
    float *y, *laid;
    int32_t *sizes;
};

static uint32_t dice(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

/* Ids beyond n_expert stand for padding's and other ranks' experts. */
static struct try make(int32_t rows, int32_t n_expert, int32_t n_used, bool weigh_input, uint32_t seed)
{
    struct try t = {.rows = rows, .n_expert = n_expert, .n_used = n_used, .weigh_input = weigh_input};
    t.x = malloc(sizeof *t.x * (size_t)rows * WIDTH);
    t.route = malloc(sizeof *t.route * (size_t)rows * 2 * (size_t)n_used);
    t.weights = calloc((size_t)n_expert * 2 * WIDTH * WIDTH, 2); /* bf16, not looked at */
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t k = 0; k < WIDTH; k++) t.x[i * WIDTH + k] = (float)(i + 1) + (float)(k % 2); /* exact in bf16 */
        for (int32_t k = 0; k < n_used; k++) {
            int32_t first = (int32_t)(dice(&seed) % (uint32_t)(n_expert + 1));
            t.route[(2 * i) * n_used + k] = (float)((first + k) % (n_expert + 2));
            t.route[(2 * i + 1) * n_used + k] = (float)(1 + dice(&seed) % 4);
        }
    }
    return t;
}

/* The program's results: what EXPERTS gives, rows of each expert, rows as they are laid out. */
static void lower_it(struct try *t, struct sy_buf *text)
{
    struct sy_moe_dim d = {.n_expert = t->n_expert, .n_used = t->n_used, .d_ff = WIDTH, .gated = true};
    d.weigh_input = t->weigh_input;
    int val[N_NODE] = {-1, -1, -1, -1, -1, -1}, result[3];
    struct sy_node node[N_NODE] = {[UP] = {.op = SY_OP_WEIGHT, .name = "up"},
                                   [DOWN] = {.op = SY_OP_WEIGHT, .name = "down"},
                                   [EXPERTS] = {.op = SY_OP_EXPERTS, .in = {{X}, {ROUTE}, {UP}, {DOWN}}}};
    node[EXPERTS].dim[0] = t->rows;
    node[EXPERTS].dim[1] = WIDTH;
    node[EXPERTS].attr.moe = d;
    struct pj_wseg seg[] = {{.kind = PJ_DENSE, .rows = t->n_expert * 2 * WIDTH, .cols = WIDTH, .n_rank = 1},
                            {.kind = PJ_DENSE, .rows = t->n_expert * WIDTH, .cols = WIDTH, .n_rank = 1}};
    struct pj_wentry entry[] = {{.name = "up", .seg = &seg[0], .n_seg = 1},
                                {.name = "down", .seg = &seg[1], .n_seg = 1}};
    struct sy_weights w = {.entry = entry, .n_entry = 2, .n_rank = 1};
    struct lower l = {.node = node, .n_node = N_NODE, .val = val, .w = &w, .entry_of_token = -1};
    l.opt = (struct pj_lower_opt){.compute = SY_COMPUTE_BF16, .kernels = SY_KERNELS_EXPERTS, .n_rank = 1};
    pj_hlo_init(&l.h, sy_env_default());
    val[X] = pj_arg(&l.h, PJ_TYPE(PJ_F32, t->rows, WIDTH), -1);
    val[ROUTE] = pj_arg(&l.h, PJ_TYPE(PJ_F32, t->rows, 2 * t->n_used), -1);
    for (int i = 0; i < 2; i++) seg[i].arg = pj_arg(&l.h, PJ_TYPE(PJ_BF16, seg[i].rows, seg[i].cols), -1);
    result[0] = lower_experts(&l, &node[EXPERTS]);
    assert_true(l.experts.n_kernel == 1 && l.experts.n_plain == 0);
    t->a.weight = MO_BF16;
    assert_true(mo_experts_of(&d, WIDTH, t->rows, &t->a));
    char *call = strstr(l.h.body.at, "stablehlo.custom_call @tpu_custom_call(");
    assert_non_null(call);
    char *operand = strchr(call, '%');
    result[1] = atoi(operand + 1);
    operand = strchr(operand + 1, '%');
    result[2] = atoi(operand + 1);
    /* The call becomes a sum; its configuration goes. */
    char sum[300], *end = strchr(call, '\n'), *type = end;
    while (strncmp(type, "-> ", 3) != 0) type--;
    snprintf(sum, sizeof sum, "stablehlo.add %%%d, %%%d : %.*s", result[2], result[2], (int)(end - type - 3),
             type + 3);
    size_t n = strlen(sum), gone = (size_t)(end - call) - n;
    memcpy(call, sum, n);
    memmove(call + n, end, strlen(end) + 1);
    l.h.body.len -= gone;
    assert_int_equal(pj_hlo_end(&l.h, 1, result, 3, text, NULL), SY_OK);
    pj_hlo_release(&l.h);
}

static void run_it(struct pj_client *c, struct try *t)
{
    struct sy_buf text;
    struct sy_err err = {0};
    sy_buf_init(&text, sy_env_default(), 0);
    lower_it(t, &text);
    void *program, *arg[4], *out[3];
    if (pj_compile(c, text.at, text.len, 1, &program, &err)) fail_msg("%s", err.msg);
    const struct pj_type type[] = {PJ_TYPE(PJ_F32, t->rows, WIDTH), PJ_TYPE(PJ_F32, t->rows, 2 * t->n_used),
                                   PJ_TYPE(PJ_BF16, t->n_expert * 2 * WIDTH, WIDTH),
                                   PJ_TYPE(PJ_BF16, t->n_expert * WIDTH, WIDTH)};
    const void *data[] = {t->x, t->route, t->weights, t->weights};
    for (int i = 0; i < 4; i++) assert_int_equal(pj_upload(c, 0, &type[i], data[i], &arg[i], &err), SY_OK);
    void *const *args = arg;
    void **outs = out;
    if (pj_execute(c, program, 1, &args, 4, &outs, &err)) fail_msg("%s", err.msg);
    size_t n_laid = (size_t)t->a.n_row * WIDTH;
    uint16_t *laid = malloc(n_laid * 2);
    t->y = malloc(sizeof *t->y * (size_t)t->rows * WIDTH);
    t->sizes = malloc(sizeof *t->sizes * (size_t)t->n_expert);
    t->laid = malloc(sizeof *t->laid * n_laid);
    assert_int_equal(pj_download(c, out[0], t->y, sizeof *t->y * (size_t)t->rows * WIDTH, &err), SY_OK);
    assert_int_equal(pj_download(c, out[1], t->sizes, sizeof *t->sizes * (size_t)t->n_expert, &err), SY_OK);
    assert_int_equal(pj_download(c, out[2], laid, n_laid * 2, &err), SY_OK);
    for (size_t i = 0; i < n_laid; i++) {
        uint32_t u = (uint32_t)laid[i] << 16;
        memcpy(&t->laid[i], &u, sizeof u);
    }
    free(laid);
    for (int i = 0; i < 4; i++) pj_buffer_free(c, arg[i]);
    for (int i = 0; i < 3; i++) pj_buffer_free(c, out[i]);
    pj_executable_free(c, program);
    sy_buf_release(&text);
}

static void check(const struct try *t)
{
    /* Each expert's rows, from a multiple of 16 on, in the order of the rows that chose it. */
    int32_t at = 0;
    for (int32_t e = 0; e < t->n_expert; e++) {
        int32_t n = 0;
        for (int32_t i = 0; i < t->rows; i++)
            for (int32_t k = 0; k < t->n_used; k++) {
                if ((int32_t)t->route[2 * i * t->n_used + k] != e) continue;
                float w = t->weigh_input ? t->route[(2 * i + 1) * t->n_used + k] : 1;
                for (int32_t c = 0; c < WIDTH; c++)
                    assert_true(t->laid[(at + n) * WIDTH + c] == w * t->x[i * WIDTH + c]);
                n++;
            }
        assert_int_equal(t->sizes[e], n);
        at += (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    }
    assert_true(at <= t->a.n_row);
    for (int32_t i = 0; i < t->rows; i++) {
        float w = 0;
        for (int32_t k = 0; k < t->n_used; k++)
            if ((int32_t)t->route[2 * i * t->n_used + k] < t->n_expert) w += t->route[(2 * i + 1) * t->n_used + k];
        for (int32_t c = 0; c < WIDTH; c++) assert_true(t->y[i * WIDTH + c] == 2 * w * t->x[i * WIDTH + c]);
    }
}

static void test_dispatch(void **state)
{
    (void)state;
    struct pj_client c;
    open_cpu_plugin(&c, 1);
    const int32_t shape[][3] = {{1, 4, 2}, {5, 4, 2}, {16, 3, 1}, {32, 8, 4}, {40, 1, 1}};
    for (size_t i = 0; i < SY_COUNT(shape); i++)
        for (int weigh = 0; weigh < 2; weigh++) {
            struct try t = make(shape[i][0], shape[i][1], shape[i][2], weigh, (uint32_t)(i + 7));
            run_it(&c, &t);
            check(&t);
            void *all[] = {t.x, t.route, t.weights, t.y, t.laid, t.sizes};
            for (size_t k = 0; k < SY_COUNT(all); k++) free(all[k]);
        }
    pj_client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dispatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
