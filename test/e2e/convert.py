#!/usr/bin/env python3
"""convert: what it writes is read back with the numbers that it promises."""
import os
import tempfile

from support import lib
from support.lib import ok, refused, tensors, text

MODEL = "test/golden/models/qwen3"
IDS = ",".join(str(3 * i % 300) for i in range(24))
EXACT = ["--compute", "f32", "--kv-dtype", "f32", "--ids", IDS]


def logits(model, folder):
    out = folder + "/logits.safetensors"
    ok("logits", "-m", model, *EXACT, "-o", out)
    return tensors(out)["logits"][1]


def off(a, b):
    """Root mean square of the difference, relative to a."""
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a)) ** 0.5


def test_without_loss():
    for model in (MODEL, "test/golden/quant/gguf_llama_q8_0/model.gguf"):
        with tempfile.TemporaryDirectory() as d:
            ok("convert", "-m", model, "-o", d + "/new", "--skip-check")
            assert logits(model, d) == logits(d + "/new", d), model


def test_quantised():
    for name, least, most in (("fp8", 0.01, 0.2), ("Q8_0", 0.0005, 0.02), ("Q4_0", 0.01, 0.3), ("MXFP4", 0.01, 0.5)):
        with tempfile.TemporaryDirectory() as d:
            said = text(ok("convert", "-m", MODEL, "-o", d + "/new", "--quant", name, "--skip-check"))
            assert "21 matrices quantised" in said, said
            got = off(logits(MODEL, d), logits(d + "/new", d))
            assert least < got < most, (name, got)


def test_gguf():
    q8 = "test/golden/quant/gguf_qwen3_q8_0/model.gguf"
    with tempfile.TemporaryDirectory() as d:
        want = logits(q8, d)
        ok("convert", "-m", q8, "-o", d + "/same.gguf", "--skip-check")
        with open(q8, "rb") as a, open(d + "/same.gguf", "rb") as b:
            assert len(a.read()) == len(b.read())
        assert logits(d + "/same.gguf", d) == want
        for name, least, most in (("Q6_K", 0.001, 0.1), ("Q4_K", 0.01, 0.4), ("Q4_0", 0.01, 0.5)):
            out = d + "/%s.gguf" % name
            ok("convert", "-m", q8, "-o", out, "--quant", name, "--skip-check")
            assert os.path.getsize(out) < os.path.getsize(q8)
            got = off(want, logits(out, d))
            assert least < got < most, (name, got)
        assert "no format for fp8" in refused(4, "convert", "-m", q8, "-o", d + "/x.gguf", "--quant", "fp8")
        assert "no such format" in refused(4, "convert", "-m", q8, "-o", d + "/x", "--quant", "Q4_K")
        assert "is no GGUF" in refused(4, "convert", "-m", MODEL, "-o", d + "/x.gguf")
        assert sorted(os.listdir(d)) == ["Q4_0.gguf", "Q4_K.gguf", "Q6_K.gguf", "logits.safetensors", "same.gguf"], os.listdir(d)


def test_refused():
    with tempfile.TemporaryDirectory() as d:
        assert "already there" in refused(2, "convert", "-m", MODEL, "-o", d)
        said = refused(4, "convert", "-m", "test/golden/quant/gguf_qwen3_q4_k/model.gguf", "-o", d + "/new")
        assert "has no equal in safetensors" in said, said
        assert os.listdir(d) == [], os.listdir(d)


if __name__ == "__main__":
    lib.main(dict(globals()))
