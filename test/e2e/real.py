#!/usr/bin/env python3
"""Released models from the Python package index: answers that make sense, a quick start, and perplexity that agrees with
the reference numbers of test/data/perplexity.json. Skipped where there is no package index."""
import json
import os
import re
import subprocess

from support import lib
from support.lib import ok, text

EXACT = ["--compute", "f32", "--kv-dtype", "f32"]
PATHS = {}


def model(name):
    if name not in PATHS:
        r = subprocess.run(["sh", "tools/fetch_model.sh", name], capture_output=True)
        PATHS[name] = text(r.stdout) if r.returncode == 0 else None
        assert r.returncode in (0, 77), text(r.stderr)
    if not PATHS[name]:
        raise lib.Skip("no registry")
    return PATHS[name]


def ask(question, *args):
    return text(ok("run", "-m", model("smollm2"), "-n", "40", *args, question, timeout=300))


def test_smollm2_answers():
    for question, word, how in (("What is the capital of France?", "Paris", EXACT), ("In which city is the Eiffel Tower?", "Paris", ()),
                                ("Name the capital of Italy.", "Rome", ()), ("What is 2+2?", "4", ())):
        answer = ask(question, *how)
        assert word in answer, (question, answer)


def test_smollm2_raw():
    assert "Paris" in text(ok("run", "-m", model("smollm2"), "--raw", "-n", "8", "The capital of France is", timeout=300))


def test_gemma3_raw():
    assert "Paris" in text(ok("run", "-m", model("gemma3-270m"), "--raw", "-n", "12", "What is the capital of France?", timeout=300))


def test_conversation():
    out = ok("chat", "-m", model("smollm2"), "-n", "40", timeout=300, stdin=b"Name the capital of Italy.\nAnd of Germany?\n")
    assert "Rome" in text(out) and "Berlin" in text(out), out


def test_text_there_and_back():
    with open("test/data/text.txt", "rb") as f:
        body = f.read()
    for name in ("smollm2", "gemma3-270m"):
        ids = ok("tokenize", "-m", model(name), stdin=body)
        assert ok("detokenize", "-m", model(name), "--ids-file", "-", stdin=ids) == body, name


def test_file_not_in_memory():
    path = model("smollm2")
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert ok("run", "-m", path, "-n", "1", "Hi", timeout=120).strip()


def test_perplexity():
    if not os.path.exists("test/data/perplexity.json"):
        raise lib.Skip("no reference numbers")
    with open("test/data/perplexity.json") as f:
        reference = json.load(f)
    for case in reference:
        args = ["perplexity", "-m", model(case["model"]), "-f", case["text"], "--ctx-size", case["ctx_size"], "--chunks", case["windows"]]
        got = json.loads(ok(*args, *EXACT, "--json", timeout=1200))
        assert got["tokens"] == case["tokens"], (case, got)
        assert abs(got["perplexity"] / case["perplexity"] - 1) < 1e-3, (case, got)
        auto = json.loads(ok(*args, "--json", timeout=1200))
        assert auto["perplexity"] / case["perplexity"] - 1 < 0.02, (case, auto)


def test_inspect():
    out = text(ok("inspect", "-m", model("smollm2")))
    assert re.search(r"architecture +LlamaForCausalLM", out) and "chat template" in out, out


lib.main(dict(globals()))
