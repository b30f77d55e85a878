#!/usr/bin/env python3
"""Guessing on XLA's CPU plugin: draft models and a model's own head, in programs made before the first request."""
from support import lib, plugged, server
from support.lib import refused
from support.plugged import EVERY, FLAGS, answers, backend, unit

ASKS = [(i, {"n": 2, "temperature": 0.8, "seed": i} if i % 4 == 1 else {}) for i in range(12)]


def guesses(s):
    m = s.idle()
    assert m["systole_compiles_total"] == 0, m
    return m["vllm:spec_decode_num_draft_tokens_total"], m["vllm:spec_decode_num_accepted_tokens_total"]


def guesses_of(s, want, how):
    """Guesses made and right. A server that measures that guessing loses time, as beside other work, puts it off: asked again,
    each time for the same answers, it has time to lose."""
    for _ in range(6):
        assert answers(s, ASKS) == want, how
        made, right = guesses(s)
        if made > 0:
            break
    assert made > 0, how
    return made, right


def test_drafts():
    """Answers with a draft model are those without, in programs made before the first request; a model that guesses for
    itself is always right, on one device and on two groups of them."""
    llama = "test/golden/models/llama"
    with server.Server(*FLAGS, talkative=False, tokenizer=False) as s:
        want = answers(s, ASKS)
    more = [(llama, ["--tp", 2]), ("test/golden/models/lfm2", [])] if EVERY else []
    for draft, how in [(llama, []), (llama, ["--dp-attention", 2])] + more:
        flags = [*FLAGS, *backend(), *how, "--draft-model", draft, "--draft-max", 3]
        with server.Server(*flags, talkative=False, tokenizer=False, env=plugged.ENV, patience=280) as s:
            made, right = guesses_of(s, want, (draft, how))
            assert right == made if draft == llama else right < made, (draft, how, made, right)
    refused(4, "run", "-m", llama, "--ids", "1", "-n", 1, *backend(), "--pp", 3, "--draft-model", llama, says=("--draft-model", "--pp"))


def test_heads():
    """The head for one token more reads the hidden states that a step's program gives: the reference's logits, and answers
    that are those without it."""
    unit("engine_draft", "test/golden/models/qwen3_5")
    with server.Server(*FLAGS, arch="qwen3_5", talkative=False, tokenizer=False) as s:
        want = answers(s, ASKS)
    for how in [[]] + ([["--dp-attention", 2], ["--tp", 2]] if EVERY else []):
        flags = [*FLAGS, *backend(), *how, "--draft-model", "mtp", "--draft-max", 2]
        with server.Server(*flags, arch="qwen3_5", talkative=False, tokenizer=False, env=plugged.ENV, patience=280) as s:
            guesses_of(s, want, how)


if __name__ == "__main__":
    lib.main(dict(globals()))
