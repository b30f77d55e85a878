/* peak.c - products of whole tiles: 16 x 16 sums of 32 products of bf16, or 64 of int8. Four sums, two tiles on
 * either side, as a product of matrices uses them. */
#include "backend/cpu/kernel.h"

#include <immintrin.h>

enum { SUMS = 4 };

static void configure(void)
{
    struct { /* operand of LDTILECFG (Intel SDM vol. 1, 18.3), palette 1 */
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* compilers do not know that all of it is read */
    _tile_loadconfig(&c);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

static int64_t bf16(int64_t rounds, void *sink)
{
    (void)sink;
    configure();
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return rounds * SUMS * 16 * 16 * 32 * 2;
}

static int64_t int8(int64_t rounds, void *sink)
{
    (void)sink;
    configure();
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_release();
    return rounds * SUMS * 16 * 16 * 64 * 2;
}

extern const struct sy_kernels_peak sy_peak_amx;
const struct sy_kernels_peak sy_peak_amx = {.bf16 = bf16, .int8 = int8};
