/* shard.c - the flags that say how devices share a model. */
#include <stdio.h>
#include <string.h>

#include "app/session/session.h"

static sy_status no_others(const struct sy_args *a, struct sy_err *err)
{
    static const char *const others[] = {"tp", "ep", "dp-attention", "pp"};
    for (size_t i = 0; i < SY_COUNT(others); i++)
        if (sy_arg_given(a, others[i]))
            return sy_fail(err, SY_EARG, "--afd says how many devices do what: --%s has no place beside it",
                           others[i]);
    return SY_OK;
}

static sy_status read_afd(const struct sy_args *a, const char *text, struct sy_shard *out, struct sy_err *err)
{
    int n = 0, attention = 0, ffn = 0;
    sy_status st = no_others(a, err);
    if (st) return st;
    if (sscanf(text, "%4d+%4d%n", &attention, &ffn, &n) != 2 || text[n] || attention < 1 || ffn < 1)
        return sy_fail(err, SY_EARG,
                       "--afd: expected devices for attention and for feed-forward, as 4+4, found '%.20s'", text);
    *out = (struct sy_shard){.n_tp = attention, .n_ffn = ffn, .experts = true};
    return SY_OK;
}

sy_status sy_session_shard(const struct sy_args *a, int32_t n_device, struct sy_shard *out, struct sy_err *err)
{
    const char *afd = sy_arg_text(a, "afd");
    int32_t ep = (int32_t)sy_arg_int(a, "ep"), dp = (int32_t)sy_arg_int(a, "dp-attention");
    int32_t pp = (int32_t)sy_arg_int(a, "pp"), tp = (int32_t)sy_arg_int(a, "tp");
    *out = (struct sy_shard){.n_dp = dp, .n_stage = pp, .experts = ep > 1};
    if (afd) {
        sy_status st = read_afd(a, afd, out, err);
        if (st) return st;
    } else {
        bool given = sy_arg_given(a, "tp");
        if (!given && n_device > dp * pp && n_device % (dp * pp))
            return sy_fail(
                err, SY_EARG,
                "--dp-attention %d and --pp %d: %d devices cannot be shared evenly by %d; expected a divisor "
                "of %d, or --tp as well",
                dp, pp, n_device, dp * pp, n_device);
        if (!given) tp = n_device > 0 ? n_device / (dp * pp) : ep > dp ? ep / dp : 1;
        out->n_tp = tp > 1 ? tp : 1;
        if (ep > 1 && ep != out->n_tp * dp)
            return sy_fail(err, SY_EARG,
                           "--ep %d: experts are shared by the devices of --tp times --dp-attention, which are %d",
                           ep, out->n_tp * dp);
    }
    int32_t all = sy_shard_ranks(out), most = n_device > 0 ? n_device : SY_SHARD_MAX;
    if (all > most)
        return sy_fail(err, SY_EARG, "--%s: %d devices are needed, expected at most %d", afd ? "afd" : "tp", all,
                       most);
    return SY_OK;
}
