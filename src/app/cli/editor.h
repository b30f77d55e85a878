/* editor.h - lines from the user: edited on a terminal (libedit, with a history file), plain from a pipe. */
#pragma once
#include "app/app.h"
#include "base/buf.h"

enum sy_line { SY_LINE, SY_LINE_END, SY_LINE_INTERRUPTED };

struct sy_editor;
/* history: a file, made when missing; NULL: none. The interrupt must be held while lines are read. */
SY_CHECK sy_status sy_editor_new(struct sy_app *, const char *history, struct sy_editor **out, struct sy_err *);
void sy_editor_free(struct sy_editor *); /* writes the history */
bool sy_editor_terminal(const struct sy_editor *);
/* One line without its newline. INTERRUPTED: Ctrl-C; what was typed is dropped. */
enum sy_line sy_editor_read(struct sy_editor *, const char *prompt, struct sy_buf *line);
void sy_editor_remember(struct sy_editor *, const char *text); /* into the history */
