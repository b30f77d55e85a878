/* Reads arbitrary bytes as a chip, a model card and a file of measurements. */
#include "backend/sim/chip.h"
#include "plan/points.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct sy_chip chip;
    struct sy_card card;
    struct sy_points points = {0};
    struct sy_err err = {0};
    const char *text = (const char *)data;
    sy_status st = sy_chip_read(sy_env_default(), "chip", text, n, &chip, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    err.msg[0] = 0;
    st = sy_card_read(sy_env_default(), "card", text, n, &card, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    err.msg[0] = 0;
    st = sy_points_text(sy_env_default(), "points", text, n, NULL, &points, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    sy_points_release(&points);
    return 0;
}
