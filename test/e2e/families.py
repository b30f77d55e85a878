#!/usr/bin/env python3
"""Every family of models against the transformers library: test/golden/families has configs, shapes and logits, the weights
are drawn from their names (tools/make_fixture.py --small wrote the files)."""
import glob
import json
import os
import tempfile

from support import lib, seeded
from support.lib import ok, tensors, text

EXACT = ["--compute", "f32", "--kv-dtype", "f32", "--threads", 2]


def logits(folder, ids, *more):
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        ok("logits", "-m", folder, *EXACT, "--ids", ",".join(map(str, ids)), "-o", out.name, *more)
        return tensors(out.name)["logits"]


def check_family(path):
    with open(path) as f:
        case = json.load(f)
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, case)
        (_, n), got = logits(d, case["ids"])
        for row, want in case["logits"].items():
            mine = got[int(row) * n:(int(row) + 1) * n]
            worst = max(abs(a - b) if a == a else 1e9 for a, b in zip(mine, want))
            assert len(mine) == len(want) and worst <= 1e-3, "position %s: differs by %.1e" % (row, worst)
        chunked = logits(d, case["ids"], "--max-batched-tokens", 7)
        assert chunked[1] == got, "in chunks of 7 tokens the logits are others"
        prompt = ",".join(map(str, case["ids"][:20]))
        out = ok("run", "-m", d, *EXACT, "--ids", prompt, "-n", len(case["greedy"]), "--temperature", 0, "--ignore-eos",
                 "--output", "ids")
        assert [int(x) for x in text(out).split(",")] == case["greedy"], text(out)


def test_families_are_there():
    assert len(glob.glob("test/golden/families/*.json")) >= 40


for file in sorted(glob.glob("test/golden/families/*.json")):
    name = os.path.basename(file)[: -len(".json")]
    globals()["test_" + name] = lambda f=file: check_family(f)

if __name__ == "__main__":
    lib.main(dict(globals()))
