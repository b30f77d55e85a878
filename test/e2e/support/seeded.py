"""Weights that are drawn from their names: a model of any family without storing it."""
import array
import json
import math
import random

from support import lib


def write_model(path, specs, seed):
    """specs: name -> "ROWSxCOLS AMPLITUDE [OFFSET]": bfloat16, uniform around the offset; "ROWSxCOLS id N": rows of
    different numbers below N."""
    tensors = {}
    for name, spec in sorted(specs.items()):
        shape, *how = spec.split()
        shape = [int(n) for n in shape.split("x")]
        rng = random.Random("%d %s" % (seed, name))
        if how[0] == "id":
            a = array.array("q")
            for _ in range(shape[0]):
                a.extend(sorted(range(int(how[1])), key=lambda _: rng.random())[: shape[1]])
            blob, dtype = a.tobytes(), "I64"
        else:
            size, offset = float(how[0]), float(how[1]) if len(how) > 1 else 0.0
            draw = rng.random
            a = array.array("f", [offset + size * (2 * draw() - 1) for _ in range(math.prod(shape))])
            h = array.array("H")
            h.frombytes(a.tobytes())
            blob, dtype = h[1::2].tobytes(), "BF16"  # the upper half of each number
        tensors[name] = (dtype, shape, blob)
    lib.write_tensors(path, tensors)


def write_folder(d, case):
    """A model's folder of one of test/golden/families."""
    write_model(d + "/model.safetensors", case["tensors"], case["seed"])
    with open(d + "/config.json", "w") as f:
        json.dump(case["config"], f)
