/* tiles.h - tile registers of AMX as its kernels use them: 0 and 1 are sums of the first row tile and two columns of
 * tiles, 2 and 3 those of the second, 4 and 5 the row tiles' left operands, 6 and 7 the right operands. */
#pragma once
#include "backend/cpu/kernel/x86.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { SY_TILE = 16, SY_TILE_K = 32 }; /* rows or columns; elements of k in bf16 */

struct sy_tiles {
    int rows[2]; /* of the row tiles that are configured; 0: not yet */
};

/* Operand of LDTILECFG (Intel SDM vol. 1, 18.3), palette 1. */
struct sy_tiles_config {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Compilers do not know that tile instructions read memory: what was stored before must be there. */
SY_INLINE void sy_tiles_settle(void) { __asm__ volatile("" : : : "memory"); }

/* Row tiles of so many rows, up to SY_TILE each. */
static inline void sy_tiles_configure(struct sy_tiles *t, int first, int second)
{
    if (t->rows[0] == first && t->rows[1] == second) return;
    t->rows[0] = first;
    t->rows[1] = second;
    struct sy_tiles_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool is_second = i == 2 || i == 3 || i == 5;
        int rows = i >= 6 ? SY_TILE : is_second ? second : first;
        c.rows[i] = (uint8_t)rows;
        c.row_bytes[i] = rows ? 64 : 0;
    }
    sy_tiles_settle();
    _tile_loadconfig(&c);
}
