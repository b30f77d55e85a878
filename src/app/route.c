/* route.c - one address before several engines. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/app.h"
#include "serve/router.h"

static const struct sy_flag flags[] = {
    {.name = "online", .kind = SY_FLAG_TEXTS, .arg = "URL", .help = "an engine for users; may be repeated"},
    {.name = "batch", .kind = SY_FLAG_TEXTS, .arg = "URL", .help = "an engine for what can wait; may be repeated"},
    {.name = "host",
     .kind = SY_FLAG_TEXT,
     .arg = "H",
     .otherwise = "127.0.0.1",
     .help = "IPv4 address to listen at; 0.0.0.0: every one"},
    {.name = "port",
     .kind = SY_FLAG_INT,
     .arg = "P",
     .lo = 0,
     .hi = 65535,
     .number = 8000,
     .help = "port to listen at; 0: any free one"},
    {.name = "prefix-bytes",
     .kind = SY_FLAG_INT,
     .arg = "N",
     .lo = 1,
     .hi = 1 << 20,
     .number = 2048,
     .help = "bytes of a question's beginning that decide which engine knows it"},
    {.name = "health-interval",
     .kind = SY_FLAG_NUM,
     .arg = "S",
     .lo = 0.1,
     .hi = 3600,
     .number = 2,
     .help = "seconds between two health checks"},
    {.name = "max-body",
     .kind = SY_FLAG_SIZE,
     .arg = "SIZE",
     .lo = 1024,
     .hi = 1 << 30,
     .number = 8 << 20,
     .help = "largest request body"},
    {.name = "admin-key",
     .kind = SY_FLAG_TEXT,
     .arg = "KEY",
     .help = "lets POST /router/drain?backend=URL take an engine out; better given as SYSTOLE_ADMIN_KEY"},
    {0},
};
static const struct sy_example examples[] = {
    {"systole route --online http://10.0.0.1:8080 --online http://10.0.0.2:8080 --batch http://10.0.0.3:8080",
     "two engines for users, one for what can wait"},
    {"systole route --config router.conf", "the same from a file with lines 'online = URL'"},
    {0},
};

static sy_status run(struct sy_args *a, struct sy_err *err)
{
    struct sy_router *r = NULL;
    struct sy_router_opt o = {.host = sy_arg_text(a, "host"),
                              .port = (int)sy_arg_int(a, "port"),
                              .n_prefix = (size_t)sy_arg_int(a, "prefix-bytes"),
                              .body_bytes_max = (size_t)sy_arg_int(a, "max-body"),
                              .health_s = sy_arg_num(a, "health-interval"),
                              .admin_key = sy_arg_text(a, "admin-key")};
    o.url[SY_ROUTE_ONLINE] = sy_arg_texts(a, "online", &o.n_url[SY_ROUTE_ONLINE]);
    o.url[SY_ROUTE_BATCH] = sy_arg_texts(a, "batch", &o.n_url[SY_ROUTE_BATCH]);
    int fd;
    sy_status st = sy_terminate_fd(&fd, err);
    if (st) return st;
    st = sy_router_new(&a->app->env, &o, &r, err);
    if (!st) {
        fprintf(stderr, "listening at http://%s:%d\n", o.host, sy_router_port(r));
        sy_interrupt_hold(a->app->interrupt);
        struct pollfd on[2] = {{.fd = fd, .events = POLLIN},
                               {.fd = sy_interrupt_fd(a->app->interrupt), .events = POLLIN}};
        while (poll(on, 2, -1) < 0) continue;
        sy_interrupt_clear(a->app->interrupt);
        sy_interrupt_drop(a->app->interrupt);
    }
    sy_router_free(r);
    close(fd);
    return st;
}

const struct sy_command sy_cmd_route = {
    .name = "route",
    .help = "one address before several engines",
    .about =
        "Requests that can wait (\"service_tier\": \"flex\" or \"batch\", or a \"priority\" above 0) go to the "
        "engines of --batch, "
        "others to those of --online; where one kind is down the other serves. A question goes where its beginning "
        "was "
        "before, unless that engine has much more to do than others. Any server that speaks OpenAI's API and answers "
        "/health will do. /router/metrics tells what is up.",
    .flags = {flags},
    .examples = examples,
    .run = run,
};
