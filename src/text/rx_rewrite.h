/* rx_rewrite.h - from Oniguruma's syntax (doc/RE of Oniguruma 6.9, Ruby syntax) to PCRE2's. Internal to rx.c. */
#pragma once
#include "base/buf.h"
#include "text/rx.h"

/* Appends the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) to out. */
SY_CHECK sy_status sy_rx_rewrite(struct rx_env *, const char *pattern, size_t n, struct sy_buf *out, struct sy_err *);
