/* serve.c - OpenAI's API over HTTP. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "app/session/serving.h"
#include "serve/server.h"

static const char *const poolings[] = {"mean", "last", NULL};
static const struct sy_flag flags[] = {
    {.name = "host",
     .kind = SY_FLAG_TEXT,
     .arg = "H",
     .otherwise = "127.0.0.1",
     .help = "address to listen at; 0.0.0.0: every one"},
    {.name = "port",
     .kind = SY_FLAG_INT,
     .arg = "P",
     .lo = 0,
     .hi = 65535,
     .number = 8080,
     .help = "port to listen at; 0: any free one"},
    {.name = "unix", .kind = SY_FLAG_TEXT, .arg = "PATH", .help = "listen at a UNIX socket instead"},
    {.name = "tls-cert", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "certificate (PEM): serve HTTPS"},
    {.name = "tls-key", .kind = SY_FLAG_TEXT, .arg = "FILE", .help = "the certificate's key (PEM)"},
    {.name = "api-key-file",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "a key a line; every route but /health and /ready then needs one"},
    {.name = "cors-origin",
     .kind = SY_FLAG_TEXTS,
     .arg = "ORIGIN",
     .help = "let pages of this origin ask; '*': of any; may be repeated"},
    {.name = "access-log",
     .kind = SY_FLAG_TEXT,
     .arg = "FILE",
     .help = "a line of JSON for each request; '-': standard output"},
    {.name = "pooling",
     .kind = SY_FLAG_CHOICE,
     .choices = poolings,
     .otherwise = "mean",
     .help = "how embeddings are made of the tokens' vectors"},
    {.name = "max-body",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 1024,
     .hi = 1 << 30,
     .number = 8 << 20,
     .help = "largest request body"},
    {.name = "max-connections",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 100000,
     .number = 4096,
     .help = "open connections; those beyond get 503"},
    {.name = "header-timeout",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 0.1,
     .hi = 3600,
     .number = 15,
     .help = "seconds for a request's headers"},
    {.name = "body-timeout",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 0.1,
     .hi = 3600,
     .number = 60,
     .help = "seconds for a request's body"},
    {.name = "idle-timeout",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 1,
     .hi = 86400,
     .number = 75,
     .help = "seconds that a connection may be idle, or a client not read"},
    {.name = "drain-timeout",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 0,
     .hi = 86400,
     .number = 30,
     .help = "seconds that running requests get after SIGTERM"},
    {.name = "stuck-after",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 0.1,
     .hi = 86400,
     .number = 60,
     .help = "a step that takes longer is reported, and /health says 503"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole serve -m model.gguf", "OpenAI's API at http://127.0.0.1:8080/v1"},
    {"systole serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --tls-cert c.pem --tls-key k.pem",
     "for others to use"},
    {"systole serve -m model.gguf --unix /run/systole.sock", "behind a reverse proxy"},
    {0},
};

static struct sy_server_opt options(const struct sy_args *a)
{
    struct sy_server_opt o = {.host = sy_arg_text(a, "host"),
                              .port = (int)sy_arg_int(a, "port"),
                              .unix_path = sy_arg_text(a, "unix"),
                              .tls_cert = sy_arg_text(a, "tls-cert"),
                              .tls_key = sy_arg_text(a, "tls-key"),
                              .key_file = sy_arg_text(a, "api-key-file"),
                              .access_log = sy_arg_text(a, "access-log"),
                              .pooling = sy_arg_choice(a, "pooling") == 0 ? SY_POOL_MEAN : SY_POOL_LAST,
                              .body_bytes_max = (size_t)sy_arg_int(a, "max-body"),
                              .connections_max = (int32_t)sy_arg_int(a, "max-connections"),
                              .queue_max = (int32_t)sy_arg_int(a, "max-queue"),
                              .header_s = sy_arg_num(a, "header-timeout"),
                              .body_s = sy_arg_num(a, "body-timeout"),
                              .idle_s = sy_arg_num(a, "idle-timeout"),
                              .stuck_s = sy_arg_num(a, "stuck-after")};
    o.cors = sy_arg_texts(a, "cors-origin", &o.n_cors);
    return o;
}

/* Waits for the first signal, then for the running requests; a second signal ends the process. */
static sy_status wait_for_end(struct sy_args *a, struct sy_server *s, int signals, struct sy_err *err)
{
    struct pollfd p[] = {{.fd = signals, .events = POLLIN},
                         {.fd = sy_interrupt_fd(a->app->interrupt), .events = POLLIN}};
    struct signalfd_siginfo info;
    uint64_t end = 0;
    for (;;) {
        int n = poll(p, 2, end ? 20 : 1000);
        bool term = n > 0 && (p[0].revents & POLLIN) && read(signals, &info, sizeof info) > 0;
        bool interrupt = n > 0 && (p[1].revents & POLLIN);
        if (sy_server_failed(s)) return sy_fail(err, SY_EIO, "the engine has failed; see the log above");
        uint64_t now = sy_now_ns(&a->app->env);
        if ((term || interrupt) && end) _exit(term ? 128 + SIGTERM : SY_EXIT_INTERRUPTED);
        if (term || interrupt) {
            /* Read away, so that the next one is told from this one; the count that decides the exit
             * status stays. */
            uint64_t count;
            if (interrupt) (void)!read(p[1].fd, &count, sizeof count);
            sy_server_drain(s);
            end = now + (uint64_t)(sy_arg_num(a, "drain-timeout") * 1e9) + 1;
            if (!a->app->quiet)
                fprintf(stderr, "systole: stopping; %d requests are being finished\n", sy_server_busy(s));
        }
        if (end && (sy_server_busy(s) == 0 || now >= end)) return SY_OK;
    }
}

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    int signals;
    sy_status st = sy_terminate_fd(&signals, err);
    if (st) return st;
    struct sy_server_opt o = options(a);
    struct sy_server *s = NULL;
    struct sy_engine *e = NULL;
    st = sy_serving_names(a, &o.names, &o.n_name, err);
    if (!st) st = sy_server_new(&a->app->env, &o, &s, err);
    if (!st) st = sy_serving_open(a, &e, err);
    sy_interrupt_hold(a->app->interrupt);
    if (!st) st = sy_server_start(s, e, err);
    if (!st) {
        if (!a->app->quiet) fprintf(stderr, "systole: serving '%s' at %s\n", o.names[0], sy_server_address(s));
        st = wait_for_end(a, s, signals, err);
    }
    sy_server_free(s);
    sy_engine_free(e);
    close(signals);
    return st;
}

const struct sy_command sy_cmd_serve = {
    .name = "serve",
    .help = "answer OpenAI's API over HTTP",
    .about = "Serves a model over HTTP: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, "
             "/tokenize, /detokenize, "
             "/apply-template, /health, /ready, /metrics and /openapi.json, which describes them.\n"
             "Requests run together: they join and leave the batch between any two steps. Prompts share what they "
             "begin with, "
             "but never across API keys or cache_salt.\n"
             "SIGTERM and Ctrl-C stop taking work and finish what runs, for at most --drain-timeout; a second one "
             "ends at once. "
             "SIGHUP is ignored.",
    .flags = {sy_flags_model, flags, sy_flags_serving, sy_flags_ctx, sy_flags_engine},
    .examples = examples,
    .run = run,
};
