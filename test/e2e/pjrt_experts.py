#!/usr/bin/env python3
"""Kernels of experts, of the gated delta rule and of attention beside them compile for TPUs that are not here, and stand in
programs where the compiler's estimates favour them."""
import tempfile

from support import lib
from support.kernels import CARD, check_no_copy, check_weighed, program
from support.plugged import HYBRID

MIXTURE = dict(CARD, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2,
               moe_intermediate_size=256, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])


def check_mixture(target, cache, weights):
    """Attention over a KV cache of such a type, experts of such weights."""
    with tempfile.TemporaryDirectory() as d:
        r = program(d, MIXTURE, target, "--ctx-size", 1024, "--max-seqs", 8, "--max-batched-tokens", 64, "--kv-dtype", cache, "--weights",
                    weights, bucket="8x8")
    check_weighed(r, "attention_of_decode", "attention_of_prompts", "experts")
    hbm = r["buckets"][0]["hbm"]  # no array of the KV cache, of which there are four, is copied, no experts are
    assert hbm["temporaries"] < min(hbm["kv"] / 4, hbm["weights"] / 8), (target, hbm)


def test_v6e():
    check_mixture("v6e-1", "q8_0", "bf16")


def test_v7():
    check_mixture("v7-2", "bf16", "f8_e4m3")


def test_groups():
    """Groups of sequences with experts over all devices: kernels stand there as elsewhere."""
    with tempfile.TemporaryDirectory() as d:
        r = program(d, MIXTURE, "v7-2", "--ctx-size", 512, "--max-seqs", 8, "--max-batched-tokens", 64, "--dp-attention", 2, "--ep", 2)
    check_weighed(r, "attention_of_decode", "experts")
    assert r["experts"]["kernel"] and r["dp_attention"] == 2, r


def test_delta():
    """The gated delta rule; heads of 64 leave attention to plain operations."""
    text = dict(HYBRID, architectures=["Qwen3_5ForCausalLM"], hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1024, linear_key_head_dim=128,
                linear_value_head_dim=128, linear_num_key_heads=4, linear_num_value_heads=8, linear_conv_kernel_dim=4)
    with tempfile.TemporaryDirectory() as d:
        r = program(d, text, "v7-2", "--ctx-size", 512, "--max-seqs", 8, "--max-batched-tokens", 64, tp=2, bucket="18x18")
    check_weighed(r, "delta_of_decode", "delta_of_prompts")
    assert r["delta_of_decode"]["kernel"], r
    check_no_copy(r)


if __name__ == "__main__":
    lib.main(dict(globals()))
