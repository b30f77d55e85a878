#!/usr/bin/env python3
"""systole compile: programs for TPUs and GPUs that are not here, by their vendors' compilers."""
import glob
import json
import os
import tempfile

from support import lib, plugins
from support.lib import ok, refused
from support.plugged import CARD, EVERY, make_experts, make_plugin


def test_compile_refusals():
    """What needs no compiler: unknown names, and what cannot fit, with what would."""
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/card.json", "w") as f:
            json.dump(CARD, f)
        ask_for = ["compile", "--model-card", d + "/card.json"]
        refused(2, *ask_for, "--target", "v9-1", "--plugin", "x", says=("'v9-1'", "v5e-8", "v7-8", "b200x8", "cpu"))
        refused(2, *ask_for, "--target", "v5e-8", says=("--plugin", "libtpu"), env={"TPU_LIBRARY_PATH": ""})
        refused(2, *ask_for, "--target", "h100", says=("--plugin", "jax-cuda13-pjrt"), env={"SYSTOLE_CUDA_PLUGIN": ""})
        refused(2, *ask_for, "--target", "v5e-1", "--tp", 2, "--plugin", "x", says="--tp: 2 devices")
        refused(2, "compile", "--target", "v5e-1", "--plugin", "x", says="--model-card")
        refused(2, *ask_for, "--target", "v6e-8", "--plugin", "x", "--bucket", "3x3", says=("--bucket", "1x1", "4x4"))
        for how, says in ((["--dp-attention", 3], ("--dp-attention 3", "8 devices", "divisor of 8")),
                          (["--pp", 5], ("--pp 5", "8 devices")), (["--ep", 8], ("--ep", "no experts")),
                          (["--block-size", 33], ("--block-size", "power of two", "33")),
                          (["--weights", "q9"], ("'q9'", "bf16", "q8_0")),
                          (["-o", ""], ("--output", "empty name"))):
            refused(2, *ask_for, "--target", "v5e-8", "--plugin", "x", *how, says=says)
        refused(1, *ask_for, "--target", "v6e-8", "--max-seqs", 16, "--plugin", "x", "--report", d + "/none/r.html", says="none/r.html")
        refused(2, "compile", "-m", "test/golden/models/llama", "--weights", "q8_0", "--target", "v5e-1", "--plugin", "x",
                says=("--weights", "--model-card"))
        refused(5, *ask_for, "--target", "v5e-8", "--plugin", "x", says=("weights of", "16.0 GB", "--target v5e-16"))
        refused(5, *ask_for, "--target", "v6e-8", "--plugin", "x", "--max-seqs", 1024, says=("exceed", "--max-seqs", "by"))
        fits = [*ask_for, "--target", "v6e-8", "--max-seqs", 16, "--bucket", "4x4"]
        refused(4, *fits, "--plugin", d + "/missing.so", says=("missing.so", "no such file"))
        refused(4, *fits, "--plugin", make_plugin(d, "dies", dies=True), says=("killed by signal 6", "my last words"))
        refused(4, *fits, "--plugin", make_plugin(d, "old", minor=57), says=("too old", "0.57"))
        # a config.json of text and pictures
        with open(d + "/both.json", "w") as f:
            json.dump({"architectures": CARD["architectures"], "vision_config": {}, "text_config": CARD}, f)
        refused(5, "compile", "--model-card", d + "/both.json", "--target", "v5e-1", "--plugin", "x", says="weights of")
        # a card that the program carries, by its name; one whose architecture it does not have
        refused(5, "compile", "--model-card", "llama-3.3-70b", "--target", "v5e-1", "--plugin", "x", says="weights of")
        refused(4, "compile", "--model-card", "deepseek-r1", "--target", "v5e-1", "--plugin", "x", says="architecture")


COMPILE = ["--ctx-size", 256, "--max-seqs", 4, "--max-batched-tokens", 64]


def test_compile():
    """A small model's decode step for three generations of TPU, with no TPU: memory, cycles and collectives come back."""
    libtpu = plugins.file(plugins.TPU)
    for target, topology, tp in (("v5e-1", "v5e:1x1", 1), ("v6e-8", "v6e:2x4", 8), ("v7-8", "tpu7x:2x2x1", 8)):
        with tempfile.TemporaryDirectory() as d:
            out = ok("compile", "-m", "test/golden/models/llama", "--target", target, "--plugin", libtpu, *COMPILE, "--bucket", "4x4",
                     "--json", "--report", d + "/r.html", "-o", d + "/programs", timeout=280)
            page, kept = open(d + "/r.html").read(), os.listdir(d + "/programs")
        r = json.loads(out)
        b = r["buckets"][0]
        assert (r["topology"], r["tp"], b["tokens"], b["sequences"]) == (topology, tp, 4, 4), r
        assert b["estimated_cycles"] > 100 and b["roofline_s"] > 0 and b["hbm"]["arguments"] > b["hbm"]["weights"] > 0, b
        assert b["step_s"] >= max(b["estimated_s"], b["memory_s"], b["arithmetic_s"]) and b["flops"] > 0 and b["bytes"] > 0, b
        kinds = b["collectives_by_kind"]
        assert (b["collectives"] > 0) == (tp > 1) == bool(kinds), b
        assert sum(k["count"] for k in kinds.values()) == b["collectives"] and set(kinds) <= {"all-reduce", "all-gather"}, kinds
        assert r["devices_used"] == r["devices"] and "<h2>Kernels</h2>" in page
        assert len(kept) == 5 and topology in page and "4 x 4" in page and page.count("<rect") >= 4, kept  # a step, four moves


def test_no_chip():
    """A TPU's plugin where no TPU is says so at once; it asks no metadata server first, for minutes."""
    libtpu = plugins.file(plugins.TPU)
    if os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio"):
        raise lib.Skip("there may be a TPU here")
    r = lib.run("run", "-m", "test/golden/models/llama", "--ids", "1", "-n", 1, "--backend", "pjrt:" + libtpu, timeout=60)
    said = [line for line in lib.text(r.stderr).split("\n") if line.startswith("systole: ")]  # libtpu writes lines of its own
    assert r.returncode == 4 and len(said) == 1 and "libtpu.so', opening the device" in said[0], (r.returncode, said)


def test_compile_layers():
    """libtpu takes what is written for them: triangular solves, the best of a row, small floats made of integers."""
    flags = ["--target", "v5e-1", "--plugin", plugins.file(plugins.TPU), "--ctx-size", 256, "--max-seqs", 4, "--max-batched-tokens",
             64, "--json"]
    for case in ("models/qwen3_5", "models/deepseek_v32", "quant/gpt_oss_mxfp4", "quant/qwen3_fp8"):
        r = json.loads(ok("compile", "-m", "test/golden/" + case, *flags, "--bucket", "4x4", "--bucket",
                              "64x10" if case == "models/qwen3_5" else "64x4", timeout=280))
        assert len(r["buckets"]) == 2 and all(b["estimated_cycles"] > 100 for b in r["buckets"]), (case, r)


WAYS = ((["--ep", 8], {"all-reduce"}), (["--dp-attention", 8, "--ep", 8], {"all-gather", "reduce-scatter"}),
        (["--pp", 2, "--tp", 4, "--ep", 4], {"collective-permute", "all-reduce"}), (["--afd", "4+4"], {"all-reduce"}))


def compile_way(folder, target, how):
    groups = how[how.index("--dp-attention") + 1] if "--dp-attention" in how else 1  # each has its share of the sequences
    return json.loads(ok("compile", "-m", folder, "--target", target, "--plugin", plugins.file(plugins.TPU), "--ctx-size", 256,
                         "--max-seqs", 4 * groups, "--max-batched-tokens", 64, *how, "--bucket", "4x4", "--json",
                         timeout=280))["buckets"][0]["collectives_by_kind"]


def test_compile_sharding():
    """A mixture of experts over eight devices, each way on one generation of TPU (PJRT_EVERY=1: on all three)."""
    with tempfile.TemporaryDirectory() as d:
        make_experts(d + "/moe")
        for i, (how, kinds) in enumerate(WAYS):
            for target in ("v5e-8", "v6e-8", "v7-8") if EVERY else (("v5e-8", "v6e-8", "v7-8")[i % 3],):
                got = compile_way(d + "/moe", target, how)
                # compilers may make a reduce-scatter of an all-reduce, or the other way round
                assert kinds <= set(got) or ("reduce-scatter" in kinds and "all-reduce" in got), (target, how, got)


def test_compile_memory():
    """What the compiler alone knows not to fit: by how much, and what would."""
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/card.json", "w") as f:
            json.dump({**CARD, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
                       "head_dim": 16}, f)  # rows of 16, which a TPU keeps as rows of 128
        refused(5, "compile", "--model-card", d + "/card.json", "--target", "v5e-1", "--plugin", plugins.file(plugins.TPU),
                "--ctx-size", 8192, "--max-seqs", 1024, "--bucket", "4x4", says=("exceed the 16.0 GB", "needs besides", "--target v5e-4"),
                timeout=280)


def test_compile_gpu():
    """The same text for two GPUs, with no GPU."""
    cuda = plugins.file(plugins.CUDA)
    if not glob.glob("/usr/local/cuda*/nvvm/libdevice/*.bc") and "xla_gpu_cuda_data_dir" not in os.environ.get("XLA_FLAGS", ""):
        raise lib.Skip("no libdevice, a part of NVIDIA's nvvm package")
    for target, tp in (("h100", 1), ("b200x2", 2)):
        b = json.loads(ok("compile", "-m", "test/golden/models/llama", "--target", target, "--plugin", cuda, *COMPILE, "--bucket", "4x4",
                          "--json", timeout=280))["buckets"][0]
        assert b["hbm"]["arguments"] > b["hbm"]["weights"] > 0 and b["roofline_s"] > 0 and b["model_flops"] > 0, b


def test_compile_serving():
    """Programs compiled ahead are those that a run with the same sizes looks for: it compiles none."""
    plugin, case = plugins.file(plugins.CPU), "test/golden/models/llama"
    sizes = ["--ctx-size", 64, "--max-seqs", 1, "--max-batched-tokens", 16, "--compute", "f32", "--kv-dtype", "f32"]
    with tempfile.TemporaryDirectory() as d:
        ok("compile", "-m", case, "--target", "cpu", "--plugin", plugin, *sizes, "-o", d, timeout=280)
        kept = {e: os.stat(d + "/" + e).st_mtime_ns for e in os.listdir(d)}
        run = ["run", "-m", case, "--ids", "1,2,3", "-n", 4, "--ignore-eos", *sizes]
        assert ok(*run, "--backend", "pjrt:" + plugin, "--programs", d, timeout=240) == ok(*run)
        short = ok("compile", "-m", case, "--target", "cpu-8", "--plugin", plugin, "--tp", 3, *sizes, "--bucket", "1x1", timeout=280)
        assert "8 devices (3 of them used)" in lib.text(short), short
        assert {e: os.stat(d + "/" + e).st_mtime_ns for e in os.listdir(d)} == kept and len(kept) >= 6, kept


if __name__ == "__main__":
    lib.main(dict(globals()))
