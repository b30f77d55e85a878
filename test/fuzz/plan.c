/* Reads arbitrary bytes as a chip, a model card, a calibration, and measurements of others and of one's own. */
#include "backend/sim/chip.h"
#include "plan/calibrate.h"

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
    err.msg[0] = 0;
    st = sy_card_find(sy_env_default(), "smollm2-135m", &card, &err);
    sy_assert(st == SY_OK);
    const struct sy_machine own = {
        .hw = "cpu2", .precision = "int4", .framework = "own", .card = &card, .chips = 1, .tp = 1};
    st = sy_points_text(sy_env_default(), "points", text, n, &own, &points, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    sy_points_release(&points);
    struct sy_calibration c;
    err.msg[0] = 0;
    st = sy_calibration_read(sy_env_default(), "calibration", text, n, &c, &err);
    sy_assert(st == SY_OK || err.msg[0]);
    if (st == SY_OK) sy_calibration_release(&c);
    return 0;
}
