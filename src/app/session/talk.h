/* talk.h - a conversation: its messages, and what /commands do to it. */
#pragma once
#include "app/session/session.h"

struct sy_talk {
    struct sy_app *app;
    struct sy_engine *engine;
    struct sy_sampling sampling;
    struct sy_answer_opt opt;
    struct sy_buf messages; /* the inside of a JSON array, system message first */
    struct sy_buf answer;   /* the last one's text */
    struct sy_answer last;
    size_t n_turn;
};
void sy_talk_init(struct sy_talk *, struct sy_app *, struct sy_engine *);
void sy_talk_release(struct sy_talk *);
/* Forgets everything, and starts with a system message (NULL: none). */
void sy_talk_reset(struct sy_talk *, const char *system);
/* The user's message in, the answer streamed to stdout. After a failure the message is forgotten; after Ctrl-C what
 * was answered so far stays. */
SY_CHECK sy_status sy_talk_say(struct sy_talk *, const char *text, size_t n, struct sy_err *);
SY_CHECK sy_status sy_talk_save(const struct sy_talk *, const char *path,
                                struct sy_err *); /* OpenAI's message array */
SY_CHECK sy_status sy_talk_load(struct sy_talk *, const char *path, struct sy_err *);
