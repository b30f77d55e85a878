#!/usr/bin/env python3
"""convert: what it writes is read back with the numbers that it promises."""
import glob
import json
import os
import shutil
import tempfile

from support import lib, seeded
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
        assert sorted(os.listdir(d)) == ["Q4_0.gguf", "Q4_K.gguf", "Q6_K.gguf", "logits.safetensors", "same.gguf"], os.listdir(d)


def as_gguf(model, d):
    """The same logits to the bit (true), or a refusal that names the class or what there is no key for (false)."""
    out = d + "/new.gguf"
    r = lib.run("convert", "-m", model, "-o", out, "--skip-check")
    if r.returncode:
        with open(model + "/config.json") as f:
            name = json.load(f)["architectures"][0]
        said = text(r.stderr)
        why = name in said or "cannot say all that config.json says" in said
        assert r.returncode == 4 and why and not os.path.exists(out), (model, said)
        return False
    assert logits(model, d) == logits(out, d), model
    return True


def test_folders_as_gguf():
    same, none = [], []
    for model in sorted(glob.glob("test/golden/models/*")):
        with tempfile.TemporaryDirectory() as d:
            (same if as_gguf(model, d) else none).append(model)
    for path in sorted(glob.glob("test/golden/families/*.json")):
        with open(path) as f:
            case = json.load(f)
        with tempfile.TemporaryDirectory() as d:
            seeded.write_model(d + "/model.safetensors", case["tensors"], case["seed"])
            with open(d + "/config.json", "w") as f:
                json.dump(case["config"], f)
            (same if as_gguf(d, d) else none).append(path)
    assert len(same) >= 31 and none, (len(same), same, none)


def test_folder_as_quantised_gguf():
    for name, least, most in (("Q8_0", 0.0005, 0.02), ("Q4_0", 0.01, 0.4), ("MXFP4", 0.01, 0.6)):
        with tempfile.TemporaryDirectory() as d:
            said = text(ok("convert", "-m", MODEL, "-o", d + "/x.gguf", "--quant", name, "--skip-check"))
            assert " 0 matrices" not in said, said
            got = off(logits(MODEL, d), logits(d + "/x.gguf", d))
            assert least < got < most, (name, got)


def test_config_that_gguf_cannot_say():
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(MODEL + "/model.safetensors", d)
        with open(MODEL + "/config.json") as f:
            config = json.load(f)
        config.update(use_sliding_window=True, sliding_window=8, max_window_layers=0)
        with open(d + "/config.json", "w") as f:
            json.dump(config, f)
        said = refused(4, "convert", "-m", d, "-o", d + "/new.gguf")
        assert "cannot say all that config.json says" in said and "window 8" in said, said
        assert not os.path.exists(d + "/new.gguf")


def test_refused():
    with tempfile.TemporaryDirectory() as d:
        assert "already there" in refused(2, "convert", "-m", MODEL, "-o", d)
        said = refused(4, "convert", "-m", "test/golden/quant/gguf_qwen3_q4_k/model.gguf", "-o", d + "/new")
        assert "has no equal in safetensors" in said, said
        assert os.listdir(d) == [], os.listdir(d)


if __name__ == "__main__":
    lib.main(dict(globals()))
