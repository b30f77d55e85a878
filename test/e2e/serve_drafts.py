#!/usr/bin/env python3
"""Guessing ahead changes no byte of what clients get: stop strings, log probabilities, several answers, streams, prefix
hits at the edges of blocks, hardly any memory for snapshots, preemption, and clients that leave in the middle."""
import json
import os
import random
import tempfile
import threading

from support import lib, seeded, tiny
from support.server import Server

ARCHS = ("qwen3_5", "falcon_h1", "gemma3")  # states of a delta rule and of Mamba-2, windows
LETTERS = "abcde"
BIAS = {str(4 + ord(c)): 100 for c in LETTERS}
DRAFTS = ("--draft-max", 6)


def asks():
    """Prompts that repeat themselves, around multiples of 8, and answers of five letters: looking up finds guesses."""
    rng, out = random.Random(3), []
    for i, n in enumerate((1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)):
        text = ("".join(rng.choice(LETTERS) for _ in range(rng.randrange(2, 9))) * n)[:n]
        if i % 4 == 3:
            text = (text + "\x00\t\u00e9\u4e2d\U0001f600" * 3)[-n:]
        ask = {"prompt": text, "max_tokens": rng.randrange(20, 60), "temperature": i % 3 / 2, "seed": i, "logit_bias": BIAS,
               "ignore_eos": True, "return_token_ids": True}
        if i % 2:
            ask["logprobs"] = 3
        if i % 3:
            ask["stop"] = ["".join(rng.choice(LETTERS) for _ in range(k)) for k in (3, 4, 4)]
        if i % 5 == 4:
            ask["n"] = 3
        out.append(ask)
    return out


def together(fns):
    out = [None] * len(fns)

    def one(i):
        try:
            out[i] = fns[i]()
        except Exception as e:  # compared with the answer that is wanted
            out[i] = e

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(fns))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return out


def answers(s, wanted, at_once):
    fns = [lambda a=a: s.ok("/v1/completions", a, timeout=60) for a in wanted]
    got = together(fns) if at_once else [f() for f in fns]
    return [(r["choices"], r["usage"]["completion_tokens"]) if isinstance(r, dict) else r for r in got]


def streamed(s, ask):
    """Text, ids and log probabilities of a stream's first answer, and why it ended."""
    parts = [c for e in s.events("/v1/completions", ask, timeout=60)[:-1] for c in e["choices"] if c["index"] == 0]
    return ("".join(c["text"] for c in parts), [i for c in parts for i in c.get("token_ids") or []],
            [x for c in parts if c.get("logprobs") for x in c["logprobs"]["token_logprobs"]],
            [c["finish_reason"] for c in parts if c["finish_reason"]])


def leave_early(s, wanted):
    """Clients that hang up after a few events of a stream."""
    def one(k, ask):
        stream = s.stream("/v1/completions", {**ask, "n": 1, "max_tokens": 80})
        for _ in range(k % 5 + 1):
            if next(stream, None) is None:
                break
        stream.close()

    for error in together([lambda k=k, a=a: one(k, a) for k, a in enumerate(wanted)]):
        assert error is None, error


def check(arch, wanted, alone, streams, *flags, preempts=False):
    with Server("--block-size", 8, *DRAFTS, *flags, arch=arch, talkative=False) as s:
        for state in ("cold", "warm"):
            for want, got, ask in zip(alone, answers(s, wanted, 3 not in flags), wanted):
                assert got == want, "%s %r, %s: %r\ninstead of %r\nfor %r" % (arch, flags, state, got, want, ask)
        leave_early(s, wanted)
        for want, ask in zip(streams, wanted):
            got = streamed(s, ask)
            assert got == want, "%s %r, streamed: %r\ninstead of %r\nfor %r" % (arch, flags, got, want, ask)
        s.idle()
        m = s.metrics()
        made, right = m["vllm:spec_decode_num_draft_tokens_total"], m["vllm:spec_decode_num_accepted_tokens_total"]
        assert made >= right and made > 0, (arch, flags, made, right)
        if arch in ("qwen3_5", "falcon_h1"):
            spare = 0 if 0 in flags else 2 if "64K" in flags else 8 + 4 * flags[flags.index("--max-seqs") + 1]
            slots = 2 * flags[flags.index("--max-seqs") + 1] + spare
            running, kept, free = (m["systole:state_" + k] for k in ("slots_running", "snapshots", "slots_free"))
            assert running == 0 and kept > 0, (arch, flags, running, kept, free)
            assert kept + free >= slots if "64K" in flags else kept + free == slots, (arch, flags, kept, free)
        assert not preempts or m["vllm:num_preemptions_total"] > 0, (arch, flags)
        return right


def test_answers():
    wanted = asks()
    for arch in ARCHS:
        with Server("--max-seqs", 3, "--no-prefix-cache", arch=arch, talkative=False) as s:
            alone = answers(s, wanted, False)
            streams = [streamed(s, a) for a in wanted]
        ends = {c["finish_reason"] for choices, _ in alone for c in choices}
        assert ends == {"stop", "length"}, ends
        right = check(arch, wanted, alone, streams, "--max-seqs", 3)
        right += check(arch, wanted, alone, streams, "--max-seqs", 6, "--max-batched-tokens", 24, "--snapshot-memory", 0)
        right += check(arch, wanted, alone, streams, "--max-seqs", 20, "--snapshot-memory", "64K", "--threads", 2)
        assert right > 0, arch


def test_preempted():
    wanted = [{**a, "n": 1, "seed": a["seed"] + more, "stop": ["abcde"], "max_tokens": 80} for more in (0, 100, 200) for a in asks()]
    for arch in ("llama", "falcon_h1"):
        with Server("--max-seqs", 3, "--kv-dtype", "f32", arch=arch, talkative=False) as s:
            alone = answers(s, wanted, False)
        check(arch, wanted, alone, (), "--max-seqs", 42, "--kv-dtype", "f32", "--kv-memory", "1M", preempts=True)


def test_other_tokens():
    """A draft model whose ids mean something else is refused before anything is served."""
    with tempfile.TemporaryDirectory() as d:
        model, other, fewer = tiny.make(d + "/model"), tiny.make(d + "/other"), d + "/fewer"
        with open(other + "/tokenizer.json") as f:
            tokenizer = json.load(f)
        vocab = tokenizer["model"]["vocab"]
        vocab["q"], vocab["u"] = vocab["u"], vocab["q"]
        with open(other + "/tokenizer.json", "w") as f:
            json.dump(tokenizer, f)
        os.mkdir(fewer)
        with open("test/golden/families/qwen3.json") as f:
            seeded.write_folder(fewer, json.load(f))
        for draft in (other, fewer):
            lib.refused(2, "serve", "-m", model, "--port", 0, "--draft-model", draft, says=("--draft-model", "its tokens are not those of"))


if __name__ == "__main__":
    lib.main(globals())
