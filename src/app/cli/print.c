/* print.c - text from outside on standard output. */
#include <string.h>
#include <unistd.h>

#include "app/cli/term.h"
#include "base/utf8.h"

/* C0 and C1 controls but tab and line feed: what could move the cursor, retitle the window or answer for the user. */
static bool is_control(uint32_t c) { return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0); }

void sy_text_print(const char *text, size_t n)
{
    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, n, stdout);
        return;
    }
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = sy_utf8_next(text + i, n - i, &c);
        if (is_control(c)) fputs("\uFFFD", stdout);
        else fwrite(text + i, 1, len, stdout);
        i += len;
    }
}
