#!/usr/bin/env python3
"""Several devices of XLA's CPU plugin, each way of sharing a model among them: all as on one."""
import tempfile

from golden import EXACT, tolerance
from support import lib, plugged
from support.lib import ok, refused, tensors
from support.plugged import EVERY, SMALL, alike, backend, logits, make_experts, worst


def test_experts():
    """Mixtures of experts as the cpu backend computes them, in steps of one token and of many, on one device and on two."""
    ids = [(11 * i) % 128 for i in range(40)]
    with tempfile.TemporaryDirectory() as d:
        make_experts(d + "/moe")
        want = logits(d + "/moe", ids, [])[1]
        assert worst(logits(d + "/moe", ids, backend())[1], want) < 1e-3
        assert worst(logits(d + "/moe", ids, backend() + ["--tp", 2])[1], want) < 1e-3
        run = ["run", "-m", d + "/moe", *EXACT, *SMALL, "--ids", "1,2,3,4,5", "-n", 12, "--ignore-eos", "--temperature", 0]
        assert ok(*run, *backend(), env=plugged.ENV, timeout=240) == ok(*run)


def test_tensor_parallel():
    """Two devices share the heads; eight share two KV heads, each held by four of them."""
    for name, ranks in (("llama", (2, 8)), ("qwen2", (2,)), ("gemma3", (2,))):
        case = "test/golden/models/" + name
        golden = tensors(case + "/golden.safetensors")
        for n in ranks:
            got = logits(case, golden["s33.ids"][1], backend() + ["--tp", n])[1]
            assert worst(got, golden["s33.logits"][1]) <= tolerance(case), (name, n)
    refused(4, "run", "-m", "test/golden/models/llama", "--ids", "1", "-n", 1, "--tp", 2, says=("--tp", "2 devices"))


def test_sharding():
    """A mixture of experts over eight devices: experts shared (EP), attention by groups with sequences of their own (DP), both,
    layers in stages (PP), attention and feed-forward on devices of their own (A+F); a dense model too. All as on one."""
    ids = [(11 * i) % 128 for i in range(40)]
    with tempfile.TemporaryDirectory() as d:
        make_experts(d + "/moe")
        want = logits(d + "/moe", ids, [])[1]
        for how in (["--ep", 8], ["--dp-attention", 8, "--ep", 8], ["--dp-attention", 2, "--tp", 2, "--ep", 4], ["--afd", "4+4"],
                    ["--pp", 2, "--tp", 2, "--ep", 2]):
            assert worst(logits(d + "/moe", ids, backend() + how)[1], want) < 1e-3, how
    golden = tensors("test/golden/models/llama/golden.safetensors")
    for how in (["--pp", 3], ["--afd", "2+2"], ["--dp-attention", 2, "--tp", 2]):
        got = logits("test/golden/models/llama", golden["s33.ids"][1], backend() + how)[1]
        assert worst(got, golden["s33.logits"][1]) <= tolerance("test/golden/models/llama"), how


def test_kernels():
    """Programs with kernels, in groups and stages, leave what those of plain operations do."""
    plugged.unit("pjrt_groups")


def test_sharding_refusals():
    run = ["run", "-m", "test/golden/models/llama", "--ids", "1", "-n", 1]
    refused(4, *run, "--dp-attention", 2, says="2 devices")
    refused(2, *run, *backend(), "--ep", 3, "--tp", 2, says=("--ep 3", "--tp"))
    refused(2, *run, *backend(), "--ep", 2, says=("--ep", "no experts"))
    refused(2, *run, *backend(), "--block-size", 33, says=("--block-size", "power of two"))
    refused(2, *run, *backend(), "--afd", "4x4", says=("--afd", "4+4", "4x4"))
    refused(2, *run, *backend(), "--afd", "4+4", "--tp", 2, says=("--afd", "--tp"))
    refused(2, *run, *backend(), "--afd", "40+40", says=("--afd", "80 devices", "64"))
    refused(4, *run, *backend(), "--pp", 2, says=("--pp 2", "3 layers"))
    refused(4, "run", "-m", "test/golden/models/falcon_h1", "--ids", "1", "-n", 1, *backend(), "--pp", 3, says="cannot be given to 3 stages")


# Sinks with KV heads held four times, latents and their indexer, states and convolutions by heads.
SHARED = [("gpt_oss", ["--tp", 8, "--ep", 8]), ("deepseek_v32", ["--dp-attention", 2, "--tp", 2, "--ep", 4]), ("qwen3_5", ["--tp", 2])]
SHARED_MORE = [("deepseek_v32", ["--tp", 4]), ("gpt_oss", ["--dp-attention", 2, "--tp", 2, "--ep", 4]), ("falcon_h1", ["--tp", 2]),
               ("lfm2", ["--tp", 2]), ("minimax", ["--tp", 2]), ("nemotron_h", ["--tp", 2]), ("phi3", ["--tp", 2]),
               ("mamba2", ["--tp", 2]), ("gemma3n", ["--tp", 2]), ("qwen3_5", ["--dp-attention", 2])]


def test_shared():
    """Models of these kinds over several devices: the cpu backend's logits."""
    for name, how in SHARED + (SHARED_MORE if EVERY else []):
        alike("test/golden/models/" + name, how=how)


if __name__ == "__main__":
    lib.main(dict(globals()))
