/* plot.h - how speed grows, as a picture: tokens/s against batch, prompt or threads, beside its limit. Thread: any.
 */
#pragma once
#include "bench/offline.h"

/* Two plots, decoding and prompts. Against what: of threads, prompt and batch the one that has the most values in the
 * rows (the first of equals); the others tell its lines apart, up to SY_SVG_COLOURS of them. */
void sy_offline_svg(const struct sy_offline_row *, size_t n, const char *title, struct sy_buf *);
