/* prices.h - price lists: dollars a chip-hour by chip, a JSON file that users edit (data/prices/). */
#pragma once
#include "plan/card.h"

struct sy_prices {
    char name[48];
    struct {
        char chip[32];
        double hour;
    } at[64];
    int32_t n;
};
/* By name ("external") or path. A price of zero or less is refused. */
SY_CHECK sy_status sy_prices_open(const struct sy_env *, const char *name, struct sy_prices *out, struct sy_err *);
double sy_price_of(const struct sy_prices *, const char *chip); /* 0: not on the list */
double sy_usd_per_mtok(double chip_hour, double tok_s_chip);    /* dollars per million tokens */
