#!/usr/bin/env python3
"""The server on XLA's CPU plugin, its programs of static shapes compiled before the first request: answers are the cpu backend's.
A hybrid's snapshots, blocks of windows, what makes room."""
import json
import re

from support import lib, plugged, server
from support.lib import ok, refused
from support.plugged import FLAGS, answers, ask, backend

ASKS = [(i, {"n": 3, "temperature": 0.8, "seed": i} if i % 4 == 1 else {"logprobs": 2} if i % 4 == 2 else {}) for i in range(24)]
FEW = [(i, {"n": 2, "temperature": 0.8, "seed": i} if i % 4 == 1 else {}) for i in range(12)]


def test_server():
    """Continuous batching, prefix caching, answers forked from one prompt: what the cpu backend answers, in programs that
    were all compiled before the first request."""
    with server.Server(*FLAGS, tokenizer=False) as s:
        want = answers(s, ASKS)
    with server.Server(*FLAGS, *backend(), tokenizer=False, env=plugged.ENV, patience=240) as s:
        assert answers(s, ASKS) == want
        m = s.idle()
        page = s.get("/metrics").body.decode()
    assert m["systole_compiles_total"] == 0, m
    assert m["vllm:prefix_cache_hits_total"] > 0, m
    steps = {tuple(map(int, x[:3])): int(x[3]) for x in
             re.findall(r'systole_bucket_steps_total\{.*tokens="(\d+)",sequences="(\d+)",blocks="(\d+)"\} (\d+)', page)}
    assert sum(steps.values()) == m["systole_steps_total"], (steps, m["systole_steps_total"])
    assert sum(n > 0 for n in steps.values()) >= 4, steps
    assert "systole_bucket_padding_tokens_total" in page


def test_groups():
    """Two groups of devices with sequences of their own: requests find a home, forks and prefix hits stay there, and answers are
    those of one device."""
    with server.Server(*FLAGS, tokenizer=False) as s:
        want = answers(s, ASKS)
    with server.Server(*FLAGS, *backend(), "--dp-attention", 2, tokenizer=False, env=plugged.ENV, patience=240) as s:
        assert answers(s, ASKS) == want
        m = s.idle()
    assert m["systole_compiles_total"] == 0 and m["vllm:prefix_cache_hits_total"] > 0, m


def test_shapes():
    """Buckets compile nothing once they are ready; a program for each shape compiles many, and nothing before."""
    out = ok("bench", "offline", "-m", "test/golden/models/llama", *backend(), "--shapes", "--batch", 2, "--num-prompts", 3, "--input-len",
             12, "--output-len", 4, "--max-batched-tokens", 16, "--compute", "f32", "--json", "-", timeout=240)
    r = json.loads(out)
    assert r["buckets"]["compiled_after"] == r["one"]["compiled_after"] == 0 < r["exact"]["compiled_after"], r
    assert r["one"]["compiled_before"] < r["buckets"]["compiled_before"] and r["exact"]["live_share"] == 1, r
    assert r["one"]["live_share"] < r["buckets"]["live_share"] < 1, r
    refused(4, "bench", "offline", "-m", "test/golden/models/llama", "--shapes", "--batch", 1, says="--shapes")


def test_swap():
    """Blocks of sequences that make room go to the host and come back."""
    flags = ["--max-seqs", 16, "--kv-memory", "1M", "--swap-memory", "8M"]
    asks = [(i, {"max_tokens": 110}) for i in range(16)]
    with server.Server(*FLAGS, *flags, tokenizer=False) as s:
        want = answers(s, asks)
    with server.Server(*FLAGS, *flags, *backend(), tokenizer=False, env=plugged.ENV, patience=240) as s:
        assert answers(s, asks) == want
        m = {k: v for k, v in s.idle().items() if k.startswith("systole_") and "bucket" not in k}
    assert m["systole_preemptions_total.swap"] > 0 and m["systole_compiles_total"] == 0, m


def test_snapshots():
    """A hybrid under continuous batching: hits of the prefix cache go on from a snapshot of its states, which is read from one
    slot and written on in another; guesses run from the slot before them. All as on the cpu backend, in programs made before."""
    flags = [*FLAGS, "--draft-max", 1]
    with server.Server(*flags, arch="qwen3_5", talkative=False, tokenizer=False) as s:
        want = answers(s, FEW)
    with server.Server(*flags, *backend(), arch="qwen3_5", talkative=False, tokenizer=False, env=plugged.ENV, patience=280) as s:
        assert answers(s, FEW) == want
        assert answers(s, FEW[:4]) == want[:4]
        m = s.idle()
    assert m["vllm:prefix_cache_hits_total"] > 0 and m["systole_compiles_total"] == 0, m


def test_windows():
    """Layers with a window have blocks of their own: forks copy both kinds, swapping moves both, hits find both."""
    flags = ["--compute", "f32", "--kv-dtype", "f32", "--max-seqs", 16, "--max-batched-tokens", 48, "--block-size", 4,
             "--ctx-size", 256, "--kv-memory", "1M", "--swap-memory", "8M"]
    many = {"max_tokens": 190, "n": 16, "temperature": 0.8, "seed": 1}
    with server.Server(*flags, arch="gemma3", talkative=False, tokenizer=False) as s:
        want, most = answers(s, FEW), ask(s, 9, **many)
    with server.Server(*flags, *backend(), arch="gemma3", talkative=False, tokenizer=False, env=plugged.ENV, patience=280) as s:
        assert answers(s, FEW) == want and ask(s, 9, **many) == most
        m = s.idle()
    assert m["systole_blocks_apart.free"] + m["systole_blocks_apart.cached"] > 0 and m["systole_preemptions_total.swap"] > 0, m
    assert m["vllm:prefix_cache_hits_total"] > 0 and m["systole_compiles_total"] == 0, m


if __name__ == "__main__":
    lib.main(dict(globals()))
