#include "engine/pace.h"

enum { SWEEPS = 30 };
static const double overrun_max = 3; /* a machine that busy is no basis for promises */

static double fitted(const struct sy_pace *p, const struct sy_pace_load *l)
{
    double sum = 0;
    for (int i = 0; i < SY_PACE_TERMS; i++) sum += p->cost[i] * l->x[i];
    return sum;
}

/* Non-negative least squares by cyclic coordinate descent on the normal equations, from the costs as they were: terms
 * that the steps do not tell apart stay near what they were. */
static void fit(struct sy_pace *p)
{
    double a[SY_PACE_TERMS][SY_PACE_TERMS] = {{0}}, b[SY_PACE_TERMS] = {0};
    for (int k = 0; k < 2; k++)
        for (int32_t s = 0; s < p->kind[k].n; s++) {
            double share = 1 / p->kind[k].ns[s];
            const double *x = p->kind[k].load[s].x;
            for (int i = 0; i < SY_PACE_TERMS; i++) {
                b[i] += x[i] * share;
                for (int j = 0; j < SY_PACE_TERMS; j++) a[i][j] += x[i] * share * x[j] * share;
            }
        }
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 0; i < SY_PACE_TERMS; i++) {
            double rest = b[i];
            for (int j = 0; j < SY_PACE_TERMS; j++) rest -= j == i ? 0 : a[i][j] * p->cost[j];
            if (a[i][i] > 0) p->cost[i] = rest > 0 ? rest / a[i][i] : 0;
        }
}

/* The third largest: of that many steps a few are held up by what has nothing to do with them. */
static double overrun(const struct sy_pace *p)
{
    double top[3] = {1, 1, 1};
    for (int k = 0; k < 2; k++)
        for (int32_t s = 0; s < p->kind[k].n; s++) {
            double r = p->kind[k].overrun[s];
            for (int i = 0; i < 3; i++) {
                if (r <= top[i]) continue;
                double less = top[i];
                top[i] = r;
                r = less;
            }
        }
    return top[2] < overrun_max ? top[2] : overrun_max;
}

static void note_most(struct sy_pace *p)
{
    p->most = (struct sy_pace_load){0};
    for (int32_t s = 0; s < p->kind[1].n; s++)
        for (int i = 0; i < SY_PACE_TERMS; i++)
            if (p->kind[1].load[s].x[i] > p->most.x[i]) p->most.x[i] = p->kind[1].load[s].x[i];
}

void sy_pace_add(struct sy_pace *p, const struct sy_pace_load *l, bool prompts, uint64_t ns)
{
    int32_t i = p->kind[prompts].n < SY_PACE_STEPS ? p->kind[prompts].n++ : p->kind[prompts].at++ % SY_PACE_STEPS;
    double before = fitted(p, l), now = ns > 0 ? (double)ns : 1;
    p->kind[prompts].at %= SY_PACE_STEPS;
    p->kind[prompts].load[i] = *l;
    p->kind[prompts].ns[i] = now;
    p->kind[prompts].overrun[i] = before > 0 ? now / before : 1;
    note_most(p);
    fit(p);
    p->overrun = overrun(p);
}

double sy_pace_predict(const struct sy_pace *p, const struct sy_pace_load *l) { return fitted(p, l) * p->overrun; }

bool sy_pace_knows(const struct sy_pace *p, const struct sy_pace_load *l)
{
    return l->x[SY_PACE_TOK] <= 2 * p->most.x[SY_PACE_TOK] && l->x[SY_PACE_PAIR] <= 2 * p->most.x[SY_PACE_PAIR];
}
