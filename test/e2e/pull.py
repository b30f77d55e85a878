#!/usr/bin/env python3
"""systole pull and models, against a hub on the loopback: resume, digests, retries, refusals, locking."""
import contextlib
import json
import os
import random
import subprocess
import tempfile

from support import lib
from support.hub import Hub
from support.lib import ok, refused, text

WEIGHTS = random.Random(1).randbytes(3_000_000)
FOLDER = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "model.safetensors": WEIGHTS,
    "original/consolidated.safetensors": b"not needed either",
}


@contextlib.contextmanager
def hub(files=FOLDER, **kw):
    h = Hub(files, **kw)
    with tempfile.TemporaryDirectory() as home:
        h.home = home
        h.env = {"SYSTOLE_HOME": home, "HF_ENDPOINT": h.url}
        try:
            yield h
        finally:
            h.close()


def cached(h, name, repo="org/name"):
    with open(os.path.join(h.home, "hub", repo, name), "rb") as f:
        return f.read()


def asked(h, name):
    return [entry for entry in h.log if entry[0].endswith("/" + name)]


def test_folder():
    with hub() as h:
        out = text(ok("pull", "hf:org/name", env=h.env))
        assert out == os.path.join(h.home, "hub/org/name"), out
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            assert cached(h, name) == FOLDER[name]
        assert not asked(h, "README.md") and not asked(h, "consolidated.safetensors")
        n = len(h.log)
        ok("pull", "hf:org/name", env=h.env)
        assert len(h.log) == n + 1, "unchanged files were fetched again"
        models = json.loads(ok("models", "--json", env=h.env))
        assert [m["model"] for m in models] == ["hf:org/name"], models
        assert models[0]["bytes"] == sum(len(FOLDER[k]) for k in ("config.json", "tokenizer.json", "model.safetensors"))


def test_changed_upstream():
    with hub() as h:
        ok("pull", "hf:org/name", env=h.env)
        h.files["config.json"] = b'{"architectures": ["Other"]}'
        ok("pull", "hf:org/name", env=h.env)
        assert cached(h, "config.json") == h.files["config.json"]


def test_pages_of_the_listing():
    with hub(page=2) as h:
        ok("pull", "hf:org/name", env=h.env)
        assert cached(h, "model.safetensors") == WEIGHTS


def test_connection_breaks():
    with hub() as h:
        h.faults["model.safetensors"] = [("cut", 1_000_000), ("status", 503), ("cut", 500_000)]
        ok("pull", "hf:org/name", env=h.env)
        assert cached(h, "model.safetensors") == WEIGHTS
        ranges = [e[1] for e in asked(h, "model.safetensors")]
        assert ranges == [None, "bytes=1000000-", "bytes=1000000-", "bytes=1500000-"], ranges


def test_interrupted_run_resumes():
    with hub() as h:
        h.faults["model.safetensors"] = [("cut", 1_000_000)] + [("status", 404)]
        refused(1, "pull", "hf:org/name", says="404", env=h.env)
        assert len(cached(h, "model.safetensors.part")) == 1_000_000
        assert not os.path.exists(os.path.join(h.home, "hub/org/name/.complete"))
        assert "incomplete" in text(ok("models", env=h.env))
        ok("pull", "hf:org/name", env=h.env)
        assert asked(h, "model.safetensors")[-1][1] == "bytes=1000000-"
        assert cached(h, "model.safetensors") == WEIGHTS


def test_server_without_ranges():
    with hub() as h:
        h.faults["model.safetensors"] = [("cut", 1_000_000), ("no range", None)]
        ok("pull", "hf:org/name", env=h.env)
        assert cached(h, "model.safetensors") == WEIGHTS


def test_stale_part_starts_over():
    with hub() as h:
        os.makedirs(os.path.join(h.home, "hub/org/name"))
        for stale in (b"x" * 1000, b"x" * len(WEIGHTS), b"x" * (len(WEIGHTS) + 1)):
            with open(os.path.join(h.home, "hub/org/name/model.safetensors.part"), "wb") as f:
                f.write(stale)
            ok("pull", "hf:org/name", env=h.env)
            assert cached(h, "model.safetensors") == WEIGHTS
            os.unlink(os.path.join(h.home, "hub/org/name/model.safetensors"))


def test_wrong_digest():
    with hub() as h:
        bad = bytearray(WEIGHTS)
        bad[12345] ^= 1
        h.faults["model.safetensors"] = [("body", bytes(bad))]
        refused(1, "pull", "hf:org/name", says=("model.safetensors", "digest"), env=h.env)
        left = os.listdir(os.path.join(h.home, "hub/org/name"))
        assert not [x for x in left if x.startswith("model")], left
        h.faults["config.json"] = [("body", b'{"architectures": ["LlamaForCausalLN"]}')]
        os.unlink(os.path.join(h.home, "hub/org/name/config.json"))
        refused(1, "pull", "hf:org/name", says=("config.json", "digest"), env=h.env)


def test_too_many_bytes():
    with hub() as h:
        h.faults["model.safetensors"] = [("body", WEIGHTS + b"more")]
        refused(1, "pull", "hf:org/name", says=("model.safetensors", "more"), env=h.env)


def test_refused_by_the_hub():
    with hub(token="secret") as h:
        refused(1, "pull", "hf:org/name", says=("401", "HF_TOKEN"), env=h.env)
        refused(1, "pull", "hf:org/name", says=("401", "HF_TOKEN"), env={**h.env, "HF_TOKEN": "wrong"})
        ok("pull", "hf:org/name", env={**h.env, "HF_TOKEN": "secret"})
    with hub() as h:
        refused(1, "pull", "hf:org/other", says="404", env=h.env)
        h.faults["listing"] = [("status", 500)] * 5
        refused(1, "pull", "hf:org/name", says="500", env=h.env)
        h.faults["listing"] = [("status", 502), ("status", 429)]
        ok("pull", "hf:org/name", env=h.env)


def test_token_stays_with_the_hub():
    with hub() as cdn, hub(token="secret") as h:
        h.cdn = cdn.url.replace("127.0.0.1", "localhost")
        ok("pull", "hf:org/name", env={**h.env, "HF_TOKEN": "secret"})
        assert cached(h, "model.safetensors") == WEIGHTS
        assert cdn.log and all(entry[2] is None for entry in cdn.log), cdn.log


def test_path_traversal():
    for path in ("../../evil.json", "/etc/evil.json", "a/../../../evil.json", "./x.json", "a//b.json", "..\\x.json", ""):
        with hub() as h:
            h.listing = h.list() + [{"type": "file", "oid": "0" * 40, "size": 1, "path": path}]
            refused(3, "pull", "hf:org/name", says="listing", env=h.env)
            assert sorted(os.listdir(os.path.join(h.home, "hub/org/name"))) == [".lock"]
    for name in ("hf:..", "hf:../x", "hf:a/..", "hf:a/b/c", "hf:a", "hf:", "hf:a/b:", "a/b", "hf:a/.b", "hf:a/b c"):
        refused(2, "pull", name, says="hf:org/name", env={"SYSTOLE_HOME": "/nonexistent"})


def test_broken_listings():
    for body in ([{"type": "file", "path": "config.json"}], [{"type": "file", "path": "config.json", "size": -1, "oid": "0" * 40}],
                 {"error": "x"}, [{"type": "file", "path": "config.json", "size": 1, "oid": "zz"}]):
        with hub() as h:
            h.listing = body if isinstance(body, list) else None
            if h.listing is None:
                h.list = lambda: "nonsense"
            refused(3, "pull", "hf:org/name", says="listing", env=h.env)


def test_gguf_choice():
    files = {"a-Q4.gguf": b"GGUF-a", "b-Q8.gguf": b"GGUF-b"}
    with hub(files) as h:
        refused(2, "pull", "hf:org/name", says=("a-Q4.gguf", "b-Q8.gguf"), env=h.env)
        refused(2, "pull", "hf:org/name:c.gguf", says=("a-Q4.gguf", "b-Q8.gguf"), env=h.env)
        out = text(ok("pull", "hf:org/name:b-Q8.gguf", env=h.env))
        assert out.endswith("hub/org/name/b-Q8.gguf") and cached(h, "b-Q8.gguf") == b"GGUF-b"
        assert not asked(h, "a-Q4.gguf")
    with hub({"only.gguf": b"GGUF", "README.md": b""}) as h:
        assert text(ok("pull", "hf:org/name", env=h.env)).endswith("only.gguf")
    with hub({"README.md": b"hello"}) as h:
        refused(4, "pull", "hf:org/name", says="neither", env=h.env)


def test_gguf_shards():
    files = {"q/m-%05d-of-00003.gguf" % i: b"GGUF%d" % i for i in (1, 2, 3)}
    with hub(files) as h:
        ok("pull", "hf:org/name", env=h.env)
        for name, body in files.items():
            assert cached(h, name) == body
        refused(2, "pull", "hf:org/name:q/m-00002-of-00003.gguf", says="first", env=h.env)
        del h.files["q/m-00002-of-00003.gguf"]
        refused(3, "pull", "hf:org/name", says="3 shards", env=h.env)


def test_two_at_once():
    with hub() as h:
        env = {**os.environ, **h.env}
        both = [subprocess.Popen([lib.PROGRAM, "pull", "hf:org/name"], env=env, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL) for _ in range(2)]
        assert [p.wait(60) for p in both] == [0, 0]
        assert cached(h, "model.safetensors") == WEIGHTS
        assert len(asked(h, "model.safetensors")) == 1


def test_no_network_once_pulled():
    with hub() as h:
        ok("pull", "hf:org/name", env=h.env)
        env = {**h.env, "HF_ENDPOINT": "http://127.0.0.1:9"}
        r = lib.run("inspect", "-m", "hf:org/name", env=env)
        assert b"127.0.0.1" not in r.stderr, r.stderr


def test_progress():
    with hub() as h:
        r = lib.run("pull", "--progress", "hf:org/name", env=h.env)
        assert b"pulling org/name" in r.stderr and b"100 %" in r.stderr, r.stderr
    with hub() as h:
        assert lib.run("pull", "hf:org/name", env=h.env).stderr == b""


def test_endpoint():
    refused(2, "pull", "hf:org/name", says="HF_ENDPOINT", env={"SYSTOLE_HOME": "/tmp", "HF_ENDPOINT": "ftp://x"})
    with tempfile.TemporaryDirectory() as home:
        refused(1, "pull", "hf:org/name", says="127.0.0.1:9", env={"SYSTOLE_HOME": home, "HF_ENDPOINT": "http://127.0.0.1:9/"})


lib.main(dict(globals()))
