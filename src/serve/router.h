/* router.h - one address before several engines that speak OpenAI's API.
 *
 * A request that says it can wait ("service_tier": "flex" or "batch", or a "priority" above 0) goes to the backends
 * for batches, others to those for users; where one kind has none that is healthy, the other serves. Among them a
 * request goes where its beginning was before, so that prefix caches are of use, unless that backend has much more to
 * do than others (rendezvous hashing, Thaler and Ravishankar 1998, with bounded loads, Mirrokni et al., SODA 2018).
 * Backends are asked for their health; one that is drained gets nothing new. Requests and answers pass as they are,
 * streams as they come. */
#pragma once
#include "base/base.h"

enum sy_route_role { SY_ROUTE_ONLINE, SY_ROUTE_BATCH };
struct sy_route_backend {
    enum sy_route_role role;
    bool healthy, draining;
    int32_t n_open;
};
/* Which of n backends takes a request; -1: none. prefix: a hash of the request's beginning. Pure. */
int32_t sy_route_pick(const struct sy_route_backend *, int32_t n, enum sy_route_role wanted, uint64_t prefix);
/* What kind of request a JSON body is, and the hash of the first n_prefix bytes of what it asks. Any bytes will do.
 */
enum sy_route_role sy_route_classify(const struct sy_env *, const char *body, size_t n, size_t n_prefix,
                                     uint64_t *prefix);

struct sy_router_opt {
    const char *host;
    int port;                  /* 0: any free one */
    const char *const *url[2]; /* [n_url] by role */
    size_t n_url[2];
    size_t n_prefix, body_bytes_max; /* bytes that decide where a prefix is known */
    double health_s;                 /* between two questions */
    const char *admin_key; /* of POST /router/drain and /router/undrain?backend=URL; NULL: they are refused */
};
struct sy_router;
SY_CHECK sy_status sy_router_new(const struct sy_env *, const struct sy_router_opt *, struct sy_router **out,
                                 struct sy_err *);
int sy_router_port(const struct sy_router *);
void sy_router_free(struct sy_router *); /* ends what is open */
