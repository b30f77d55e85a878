#!/usr/bin/env python3
"""Logits and greedy continuations of small models against the transformers library (test/golden/models, quant), over
instruction sets, threads and chunk sizes. Numbers of one instruction set must not depend on threads and chunks at all.
GOLDEN_ROTATE: each model on one instruction set only, in turns; for programs that a sanitizer makes slow."""
import glob
import json
import os
import tempfile

from support import lib
from support.lib import ok, tensors, text

EXACT = ["--compute", "f32", "--kv-dtype", "f32"]
CASES = sorted(glob.glob("test/golden/models/*")) + sorted(glob.glob("test/golden/quant/*"))
SEQUENCES = (("s1", 0), ("s7", 0), ("s33", 0), ("s200", 8))


def isas():
    forced = os.environ.get("SYSTOLE_ISA")
    if forced:
        return [forced]
    usable = []
    for isa in ("generic", "avx2", "avx512", "amx", "neon"):
        r = lib.run("logits", "-m", CASES[0], "--ids", "1", "-o", os.devnull, env={"SYSTOLE_ISA": isa})
        if r.returncode == 0:
            usable.append(isa)
    return usable


def model_of(case):
    return case + "/model.gguf" if os.path.exists(case + "/model.gguf") else case


def logits(case, ids, last, isa, threads=2, chunk=None):
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        args = ["logits", "-m", model_of(case), *EXACT, "--threads", threads, "--ids", ",".join(map(str, ids)), "-o", out.name]
        args += ["--last", last] if last else []
        args += ["--max-batched-tokens", chunk] if chunk else []
        ok(*args, env={"SYSTOLE_ISA": isa})
        return tensors(out.name)["logits"]


def tolerance(case):
    """Twenty times the reference's own rounding noise, and never less than a thousandth."""
    with open(case + "/golden.json") as f:
        noise = [v for k, v in json.load(f).items() if k.endswith("_maxabs") and isinstance(v, (int, float))]
    return max([1e-3] + [20 * v for v in noise])


def check_case(case, isa):
    golden, limit = tensors(case + "/golden.safetensors"), tolerance(case)
    for name, last in SEQUENCES:
        shape, want = golden[name + (".logits_last8" if last else ".logits")]
        got_shape, got = logits(case, golden[name + ".ids"][1], last, isa)
        assert got_shape == shape, (got_shape, shape)
        worst = max(abs(a - b) if a == a else 1e9 for a, b in zip(got, want))
        assert worst <= limit, "%s %s %s: differs by %.2e, allowed %.0e" % (case, isa, name, worst, limit)
    prompt = ",".join(map(str, golden["prompt.ids"][1]))
    out = ok("run", "-m", model_of(case), *EXACT, "--ids", prompt, "-n", 24, "--temperature", 0, "--ignore-eos", "--output", "ids",
             env={"SYSTOLE_ISA": isa})
    got = [int(x) for x in text(out).split(",")]
    assert got == list(golden["greedy.ids"][1]), "%s %s: greedy: %s" % (case, isa, got)


def check_invariance(case, isa):
    ids = tensors(case + "/golden.safetensors")["s200.ids"][1][:100]
    want = logits(case, ids, 8, isa)
    for threads in (1, 2):
        for chunk in (1, 7, 16):
            got = logits(case, ids, 8, isa, threads, chunk)
            assert got == want, "%s %s: %d threads, chunks of %d: other bits" % (case, isa, threads, chunk)


def test_cases_are_there():
    assert len(CASES) >= 18, CASES


USABLE = isas()
for i, case in enumerate(CASES):
    for isa in [USABLE[i % len(USABLE)]] if os.environ.get("GOLDEN_ROTATE") else USABLE:
        name = "%s_%s" % (os.path.basename(case), isa)
        globals()["test_logits_" + name] = lambda case=case, isa=isa: check_case(case, isa)
        globals()["test_invariance_" + name] = lambda case=case, isa=isa: check_invariance(case, isa)

if __name__ == "__main__":
    lib.main(dict(globals()))
