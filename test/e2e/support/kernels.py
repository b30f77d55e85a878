"""Kernels for TPUs in small models' programs, with no TPU."""
import json

from support import plugins
from support.lib import ok
from support.plugged import CARD

CARD = dict(CARD, vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2)


def program(folder, card, target, *more, tp=1, bucket="4x4"):
    """What `systole compile --json` tells of a bucket."""
    with open(folder + "/card.json", "w") as f:
        json.dump(card, f)
    return json.loads(ok("compile", "--model-card", folder + "/card.json", "--target", target, "--tp", tp, "--plugin",
                         plugins.file(plugins.TPU), "--bucket", bucket, "--json", *more, timeout=280))


def check_weighed(r, *kinds):
    """Both ways were weighed, and the faster one stands in the program."""
    for kind in kinds:
        w = r[kind]
        assert w["kernel_s"] > 0 and w["plain_s"] > 0 and w["plain_because"] is None, (r["target"], kind, w)
        assert w["kernel"] == (w["kernel_s"] < w["plain_s"]), (r["target"], kind, w)


def check_no_copy(r):
    """The KV cache and states, or the weights, are not copied: they are most of the memory."""
    hbm = r["buckets"][0]["hbm"]
    assert hbm["temporaries"] < hbm["kv"] / 8, (r["target"], hbm)
