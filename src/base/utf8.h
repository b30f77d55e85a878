/* utf8.h - UTF-8 (RFC 3629): decoding that never fails and never reads past the end. */
#pragma once
#include "base/base.h"

/* Decodes one code point from s[0..n), n >= 1; returns the bytes used (1..4). An ill-formed sequence gives U+FFFD
 * and uses its longest well-formed prefix, at least 1 byte (Unicode 15, table 3-8, as Python and ICU do). */
size_t sy_utf8_next(const char *s, size_t n, uint32_t *code_point);
bool sy_utf8_valid(const char *s, size_t n);
/* Length of the longest prefix that does not end inside a sequence which more bytes could complete. */
size_t sy_utf8_whole(const char *s, size_t n);
