#!/usr/bin/env python3
"""The pjrt backend on XLA's CPU plugins: our declarations against the official header, refusals, the models against their
references, three versions of the plugin, the compile cache."""
import glob
import os
import re
import subprocess
import tempfile

from golden import EXACT, SEQUENCES, tolerance
from support import lib, plugged, plugins, tiny
from support.lib import ok, refused, tensors, text
from support.plugged import CC, SMALL, backend, check_case, logits, make_plugin, worst

del plugged.ENV["XLA_FLAGS"]  # as users run it


def test_declarations():
    """Every struct and slot of src/backend/pjrt/api.h lies where the official header has it."""
    header = plugins.file(plugins.HEADER)
    ours = open("src/backend/pjrt/api.h").read()
    c = ['#include "%s"' % header, '#include "backend/pjrt/api.h"', "#define SAME(a, b) _Static_assert((a) == (b), #a)"]
    structs = re.findall(r"struct pj_(\w+) \{\n    PJ_HEAD;\n(.*?)^\};", ours, re.S | re.M)
    for name, body in structs:
        official = "PJRT_" + name
        c.append("SAME(offsetof(struct pj_%s, struct_size), offsetof(%s, struct_size));" % (name, official))
        for field in re.findall(r"(\w+);", re.sub(r"\(\*(\w+)\)\([^)]*\);", r"\1;", re.sub(r"/\*.*?\*/|union \{|\};", "", body))):
            c.append("SAME(offsetof(struct pj_%s, %s), offsetof(%s, %s));" % (name, field, official, field))
            c.append("SAME(sizeof(((struct pj_%s *)0)->%s), sizeof(((%s *)0)->%s));" % (name, field, official, field))
    slots = re.findall(r"X\((\w+), (\d+)\)", ours)
    for name, slot in slots:
        c.append("SAME(offsetof(PJRT_Api, PJRT_%s), offsetof(struct pj_api, call) + 8 * PJ_%s);" % (name, name))
    c.append("SAME(offsetof(PJRT_Api, pjrt_api_version.minor_version), offsetof(struct pj_api, minor_version));")
    for name, value in re.findall(r"PJ_TYPE_(\w+) = (\d+)", ours):
        c.append("SAME(PJRT_Buffer_Type_%s, %s);" % (name, value))
    for name in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"):
        c.append("SAME(PJRT_Error_Code_%s, PJ_%s);" % (name, name))
    assert len(structs) > 30 and len(slots) > 30 and len(c) > 200, (len(structs), len(slots), len(c))
    with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
        f.write("\n".join(c) + "\n")
        f.flush()
        r = subprocess.run([CC, "-std=gnu17", "-Isrc", "-fsyntax-only", f.name], capture_output=True)
        assert r.returncode == 0, text(r.stderr)[:1500]


def test_refusals():
    with tempfile.TemporaryDirectory() as d:
        model = tiny.make(d + "/tiny", tokenizer=False)
        with open(d + "/text.so", "w") as f:
            f.write("no library")
        with open(d + "/empty.c", "w") as f:
            f.write("int nothing;")
        subprocess.run([CC, "-shared", "-fPIC", d + "/empty.c", "-o", d + "/empty.so"], check=True)
        cases = [
            (4, d + "/missing.so", ("missing.so", "no such file")),
            (4, d, ("no such file", "folder")),
            (4, d + "/text.so", ("text.so", "no shared library")),
            (4, d + "/empty.so", ("empty.so", "no PJRT plugin", "GetPjrtApi")),
            (4, make_plugin(d, "new", major=1, minor=2), ("too new", "1.2", "0.x")),
            (4, make_plugin(d, "old", minor=57), ("too old", "0.57", "0.58")),
            (4, make_plugin(d, "short", size=300), ("too old", "300 bytes")),
            (4, make_plugin(d, "none", size=8), ("no table of functions",)),
            (4, make_plugin(d, "nochip"), ("opening the device", "no chip here")),
            (5, make_plugin(d, "full", code=8), ("opening the device", "no chip here")),
        ]
        for status, path, says in cases:
            refused(status, "run", "-m", model, "--ids", "1", "-n", 1, "--backend", "pjrt:" + path, says=says)
        run = ["run", "-m", model, "--ids", "1", "-n", 1]
        refused(1, *run, "--backend", "pjrt:" + d + "/nochip.so", "--programs", d + "/text.so", says=("--programs", "text.so", "file"))
        refused(2, *run, "--backend", "pjrt", says="pjrt:/path/of/plugin.so")
        refused(2, *run, "--backend", "pjrt:" + d + "/nochip.so", "--threads", 2, says=("--threads", "PJRT_NPROC"))
        refused(4, *run, "--backend", "pjrt:" + d + "/nochip.so", "--compute", "int8", says="--compute int8")


# These have few ops; pjrt_models.py has the others.
DENSE = ("llama", "qwen3", "gemma3", "smollm3")


def test_models():
    for name in DENSE:
        check_case("test/golden/models/" + name, SEQUENCES)
    case = "test/golden/models/llama"  # a large step
    golden, small = tensors(case + "/golden.safetensors"), ["--ctx-size", 256, "--max-batched-tokens", 256]
    got = logits(case, golden["s200.ids"][1], backend(), 8, small=small)[1]
    assert worst(got, golden["s200.logits_last8"][1]) <= tolerance(case)


def test_quantised():
    """A format of each kind of code: 4 bits with and without a minimum, 6 and 8 bits."""
    for name in ("gguf_llama_q4_0", "gguf_llama_q4_k", "gguf_llama_q6_k", "gguf_qwen3_q8_0"):
        check_case("test/golden/quant/" + name, SEQUENCES[2:3])


def test_versions():
    """The same text and structs on plugins of three versions."""
    case = "test/golden/models/llama"
    golden = tensors(case + "/golden.safetensors")
    for package in (plugins.CPU_MIDDLE, plugins.CPU_OLDEST):
        got = logits(case, golden["s33.ids"][1], backend(package))[1]
        assert worst(got, golden["s33.logits"][1]) <= tolerance(case), package


def test_bf16():
    """bf16 products and KV cache stay near the reference, and are really rounded."""
    case = "test/golden/models/llama"
    golden = tensors(case + "/golden.safetensors")
    got = logits(case, golden["s33.ids"][1], backend(), more=["--compute", "bf16", "--kv-dtype", "bf16"])[1]
    d = worst(got, golden["s33.logits"][1])
    assert 1e-3 < d < 0.25, d


def test_accumulate():
    """Attention's scores and sums in bf16: near the reference, and really rounded. The cpu backend has no such thing."""
    case, flag = "test/golden/models/llama", ["--attention-accumulate", "bf16"]
    golden = tensors(case + "/golden.safetensors")
    got = logits(case, golden["s33.ids"][1], backend(), more=EXACT + flag)[1]
    d = worst(got, golden["s33.logits"][1])
    assert 1e-3 < d < 0.25, d
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, *flag, says="--attention-accumulate bf16")


def test_cache():
    """A second start compiles nothing; a damaged entry is made anew. One answer needs few of the programs that serving has."""
    case, where = "test/golden/models/qwen2", backend()
    with tempfile.TemporaryDirectory() as home:
        def run():
            with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
                ok("logits", "-m", case, *EXACT, *SMALL, "--ids", "1,2,3", "-o", out.name, *where, env={"SYSTOLE_HOME": home}, timeout=240)
                return tensors(out.name)["logits"][1]

        first = run()
        entries = sorted(glob.glob(home + "/programs/*"))
        times = [os.stat(e).st_mtime_ns for e in entries]
        assert len(entries) == 5 and not [e for e in entries if not e.endswith(".program")], entries
        assert run() == first and [os.stat(e).st_mtime_ns for e in entries] == times
        for i, e in enumerate(entries):
            raw = bytearray(open(e, "rb").read())
            raw[-(1 + i)] ^= 1
            open(e, "wb").write(raw[: len(raw) - 100 * (i % 2)])
        assert run() == first
        assert sorted(glob.glob(home + "/programs/*")) == entries


if __name__ == "__main__":
    lib.main(dict(globals()))
