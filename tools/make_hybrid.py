#!/usr/bin/env python3
"""Makes a random hybrid of a gigabyte, shaped like Qwen3-Next, as a Hugging Face folder without a tokenizer: for measuring
speed beside other engines, which read what `systole convert` makes of it.

    tools/make_hybrid.py OUT [--layers 16] [--hidden 1024] [--experts 32] [--vocab 32768] [--seed 1] [--mixture]

Three layers of four are Gated DeltaNet with 16 heads of 128 by 128, the fourth is attention; each has experts of 512, four of
which are chosen, and a shared one. With --mixture it is shaped like Qwen3-MoE instead: attention everywhere, 16 heads of 64,
four of keys, and eight experts chosen, none shared. Matrices are bfloat16 of either sign between 2^-7 and 2^-5, drawn independently."""
import argparse
import json
import math
import os
import random

KEYS, VALUES, D, TAPS, HEADS, KV, EXPERT, CHOSEN = 8, 16, 128, 4, 16, 2, 512, 4
MIX_KV, MIX_D, MIX_CHOSEN = 4, 64, 8
SIGN = bytes(0xBC if i & 1 else 0x3C for i in range(256))


def shapes(o):
    """Names, shapes and, of vectors, the one number they hold."""
    h, one = o.hidden, 1 if o.mixture else 0  # Qwen3-Next adds 1 to what norms multiply by
    kv, d, gate = (MIX_KV, MIX_D, 1) if o.mixture else (KV, D, 2)
    yield "model.embed_tokens.weight", (o.vocab, h), None
    yield "lm_head.weight", (o.vocab, h), None
    yield "model.norm.weight", (h,), one
    for i in range(o.layers):
        p = "model.layers.%d." % i
        yield p + "input_layernorm.weight", (h,), one
        yield p + "post_attention_layernorm.weight", (h,), one
        if o.mixture or i % 4 == 3:
            for name, rows in ("q", gate * HEADS * d), ("k", kv * d), ("v", kv * d):
                yield p + "self_attn.%s_proj.weight" % name, (rows, h), None
            yield p + "self_attn.o_proj.weight", (h, HEADS * d), None
            yield p + "self_attn.q_norm.weight", (d,), one
            yield p + "self_attn.k_norm.weight", (d,), one
        else:
            a = p + "linear_attn."
            yield a + "in_proj_qkvz.weight", (2 * (KEYS + VALUES) * D, h), None
            yield a + "in_proj_ba.weight", (2 * VALUES, h), None
            yield a + "conv1d.weight", ((2 * KEYS + VALUES) * D, 1, TAPS), 0.25
            yield a + "A_log", (VALUES,), 0
            yield a + "dt_bias", (VALUES,), -3
            yield a + "norm.weight", (D,), 1
            yield a + "out_proj.weight", (h, VALUES * D), None
        yield p + "mlp.gate.weight", (o.experts, h), None
        if not o.mixture:
            yield p + "mlp.shared_expert_gate.weight", (1, h), None
        for e in ([] if o.mixture else ["shared_expert"]) + ["experts.%d" % e for e in range(o.experts)]:
            for name, shape in ("gate", (EXPERT, h)), ("up", (EXPERT, h)), ("down", (h, EXPERT)):
                yield p + "mlp.%s.%s_proj.weight" % (e, name), shape, None


def config(o):
    if o.mixture:
        return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": o.hidden,
                "num_hidden_layers": o.layers, "vocab_size": o.vocab, "intermediate_size": EXPERT, "hidden_act": "silu",
                "num_attention_heads": HEADS, "num_key_value_heads": MIX_KV, "head_dim": MIX_D, "num_experts": o.experts,
                "num_experts_per_tok": MIX_CHOSEN, "moe_intermediate_size": EXPERT, "norm_topk_prob": True,
                "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
                "max_position_embeddings": 32768, "tie_word_embeddings": False}
    return {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": o.hidden,
            "num_hidden_layers": o.layers, "vocab_size": o.vocab, "intermediate_size": EXPERT, "hidden_act": "silu",
            "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "full_attention_interval": 4,
            "linear_num_key_heads": KEYS, "linear_num_value_heads": VALUES, "linear_key_head_dim": D,
            "linear_value_head_dim": D, "linear_conv_kernel_dim": TAPS, "num_experts": o.experts,
            "num_experts_per_tok": CHOSEN, "moe_intermediate_size": EXPERT, "shared_expert_intermediate_size": EXPERT,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "tie_word_embeddings": False}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    for name, value in ("layers", 16), ("hidden", 1024), ("experts", 32), ("vocab", 32768), ("seed", 1):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--mixture", action="store_true")
    o = a.parse_args()
    rng, header, at, found = random.Random(o.seed), {}, 0, list(shapes(o))
    for name, shape, _ in found:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.mkdir(o.out)
    with open(o.out + "/config.json", "w") as f:
        json.dump(config(o), f, indent=1)
    with open(o.out + "/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape, number in found:
            n = math.prod(shape)
            data = bytearray(2 * n)
            if number is None:
                data[0::2] = rng.randbytes(n)
                data[1::2] = rng.randbytes(n).translate(SIGN)
            else:
                data[1::2] = bytes([{0: 0, 0.25: 0x3E, 1: 0x3F, -3: 0xC0}[number]]) * n
                data[0::2] = bytes([{0: 0, 0.25: 0x80, 1: 0x80, -3: 0x40}[number]]) * n
            f.write(data)


main()
