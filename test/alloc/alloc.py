#!/usr/bin/env python3
"""The whole program with its n-th allocation failing, and with every allocation from the n-th on failing: it must end by
itself, with one line that says why, and whatever it prints as done must be what it prints otherwise."""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, "test/e2e")
from support import lib  # noqa: E402
from support.lib import text  # noqa: E402

RUNS = int(os.environ.get("ALLOC_RUNS", "300"))  # per command and kind of failure
MODEL, TOKENIZER = "test/golden/models/gemma3", "test/golden/tokenizers/spm_bpe_gemma"
GGUF = "test/golden/quant/gguf_llama_q4_k/model.gguf"
PRELOAD = os.path.abspath("build/fail_nth.so")
subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", PRELOAD, "test/alloc/fail_nth.c"], check=True)


def run(args, stdin, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SYSTOLE", "HF_"))}
    clean.update({k: str(v) for k, v in env.items()}, LD_PRELOAD=PRELOAD)
    return subprocess.run([lib.PROGRAM, *args], input=stdin, capture_output=True, timeout=60, env=clean)


def check(args, stdin=b""):
    with tempfile.NamedTemporaryFile() as count:
        good = run(args, stdin, COUNT_TO=count.name)
        assert good.returncode == 0, (args, text(good.stderr))
        total = int(count.read())
    assert total > 10, total
    numbers = range(1, total + 1)
    if total > RUNS:
        numbers = sorted(set(list(range(1, RUNS // 3)) + random.Random(1).sample(numbers, 2 * RUNS // 3)))
    for kind in ("FAIL_AT", "FAIL_FROM"):
        for n in numbers:
            r = run(args, stdin, **{kind: n})
            line = "\n".join(x for x in text(r.stderr).split("\n") if not x.startswith("systole: warning: "))
            assert r.returncode in (0, 1, 5), "%s %s=%d: exit %d: %s" % (args, kind, n, r.returncode, line[:200])
            if r.returncode == 0:
                assert r.stdout == good.stdout, "%s %s=%d: exit 0, other output" % (args, kind, n)
            else:
                assert line.startswith("systole: ") and "\n" not in line, "%s %s=%d: %r" % (args, kind, n, line[:200])


def test_run():
    check(["run", "-m", MODEL, "--ids", "1,2,3", "-n", "3", "--temperature", "0", "--threads", "2"])


def test_run_sampling():
    check(["run", "-m", MODEL, "--ids", "1,2,3", "-n", "3", "--temperature", "1", "--seed", "1", "--repeat-penalty", "1.1"])


def test_run_gguf():
    check(["run", "-m", GGUF, "--ids", "1,2,3", "-n", "2", "--threads", "1"])


def test_inspect():
    check(["inspect", "-m", MODEL, "--json"])


def test_graph():
    check(["inspect", "-m", MODEL, "--graph"])


def test_tokenize():
    check(["tokenize", "-m", TOKENIZER, "--special"], "Hello, world \u00e9\n".encode())


def test_detokenize():
    check(["detokenize", "-m", TOKENIZER, "--ids", "5,6,7,300"])


def test_template():
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/t", "w") as f:
            f.write("{% macro say(m) %}<{{ m.role | upper }}>{{ m.content | trim }}{% endmacro %}"
                    "{% for m in messages if m.content %}{{ say(m) }}{{ loop.index }}{% endfor %}{{ messages | tojson }}")
        with open(d + "/m", "w") as f:
            json.dump([{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello"}], f)
        check(["template", "--template", d + "/t", "--messages", d + "/m"])


def test_help():
    check(["run", "--help"])


lib.main(dict(globals()))
