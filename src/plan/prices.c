#include "plan/prices.h"

#include <stdio.h>
#include <string.h>

static sy_status read_list(struct sy_prices *p, const struct sy_json *root, const char *where, struct sy_err *err)
{
    const struct sy_json *list = sy_json_get(root, "chip_hour"), *value;
    const char *chip;
    if (!sy_json_is_object(list) || sy_json_len(list) == 0 || sy_json_len(list) > SY_COUNT(p->at))
        return sy_fail(err, SY_EFORMAT, "%s: expected an object 'chip_hour' of 1 to %zu chips", where,
                       SY_COUNT(p->at));
    for (void *it = NULL; (it = sy_json_next(list, it, &chip, &value));) {
        double v = sy_json_number(value, -1);
        if (!(v > 0 && v <= 1e6))
            return sy_fail(err, SY_EFORMAT,
                           "%s: '%.40s': expected dollars an hour, above 0 and at most 1e6, found %g", where, chip,
                           v);
        snprintf(p->at[p->n].chip, sizeof p->at[0].chip, "%s", chip);
        p->at[p->n++].hour = v;
    }
    return SY_OK;
}

sy_status sy_prices_open(const struct sy_env *env, const char *name, struct sy_prices *out, struct sy_err *err)
{
    char *text, where[128];
    size_t n;
    struct sy_json *root;
    struct sy_prices p = {0};
    sy_status st = sy_data_open(env, "prices", name, &text, &n, err);
    if (st) return st;
    snprintf(where, sizeof where, "price list '%.80s'", name);
    st = sy_json_parse(env, text, n, false, &root, err);
    sy_delete(env, text);
    if (st) return sy_while(err, st, "%s", where);
    const char *said = sy_json_text(sy_json_get(root, "name"));
    snprintf(p.name, sizeof p.name, "%s", said ? said : name);
    st = read_list(&p, root, where, err);
    sy_json_free(root);
    if (!st) *out = p;
    return st;
}

double sy_price_of(const struct sy_prices *p, const char *chip)
{
    for (int32_t i = 0; i < p->n; i++)
        if (!strcmp(p->at[i].chip, chip)) return p->at[i].hour;
    return 0;
}

double sy_usd_per_mtok(double chip_hour, double tok_s_chip) { return chip_hour / (3600 * tok_s_chip / 1e6); }
