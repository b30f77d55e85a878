#!/usr/bin/env python3
"""Attention kernels compile for TPUs that are not here and stand in programs where the compiler's estimates favour them; what no
kernel has is told. What lies around kernels, by XLA's CPU plugin. pjrt_experts.py has the other kernels."""
import os
import tempfile

from support import lib, plugins
from support.kernels import CARD, check_no_copy, check_weighed, program
from support.lib import refused
from support.plugged import SMALL, backend, unit


def test_attention():
    with tempfile.TemporaryDirectory() as d:
        r = program(d, CARD, "v5e-1", "--ctx-size", 1024, "--max-seqs", 8, "--max-batched-tokens", 64, bucket="8x8")
        check_weighed(r, "attention_of_decode", "attention_of_prompts")
        check_no_copy(r)


def test_plain():
    """What no kernel has compiles as plain operations."""
    with tempfile.TemporaryDirectory() as d:
        for why, change, more in (("width", {"head_dim": 64}, []), ("type", {}, ["--kv-dtype", "f32"]), ("kept", {}, ["-o", d + "/p"]),
                                  ("plain", {}, ["--kernels", "plain"])):
            r = program(d, dict(CARD, **change), "v5e-1", "--ctx-size", 512, "--max-seqs", 4, "--max-batched-tokens", 64, *more)
            w = r["attention_of_decode"]
            assert not w["kernel"] and w["kernel_s"] == 0 and why in w["plain_because"], r


def test_kept():
    """Programs as serving would use them."""
    with tempfile.TemporaryDirectory() as d:
        r = program(d, CARD, "v5e-1", "--ctx-size", 512, "--max-seqs", 4, "--max-batched-tokens", 16, "--kernels", "mosaic", "-o", d + "/q")
        assert r["attention_of_decode"]["kernel"] and len(os.listdir(d + "/q")) > 0, r


def test_refused():
    case = "test/golden/models/llama"
    refused(2, "bench", "mosaic", "--plugin", plugins.file(plugins.TPU), "--target", "v9-1", says="'v9-1'")
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, "--kernels", "mosaic", says="--kernels mosaic")
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, "--kernels", "mosaic", *SMALL, *backend(), says=("--kernels mosaic", "cpu"))
    refused(2, "compile", "-m", case, "--target", "cpu", "--plugin", plugins.file(plugins.CPU), "--kernels", "mosaic",
            says="--kernels mosaic")


def test_dispatch():
    """Rows are laid out for the kernel of experts, and its results put together again, by plain operations."""
    unit("pjrt_dispatch")


def test_delta_layer():
    """A layer of the gated delta rule leaves the same by its kernel and without."""
    unit("pjrt_delta_layer")


if __name__ == "__main__":
    lib.main(dict(globals()))
