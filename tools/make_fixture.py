#!/usr/bin/env python3
"""Makes a tiny random checkpoint of an architecture with the logits that the transformers library computes from it, so
that a family can be checked before it is trusted; --run then compares a program with them.

  tools/make_fixture.py list
  tools/make_fixture.py qwen3_moe OUT --seed 7 [--run build/release/systole]
  tools/make_fixture.py all OUT --seed 1,2,3 --run build/release/systole
  tools/make_fixture.py all test/golden/families --small

--small writes OUT/FAMILY.json alone: weights are drawn from names and a seed, so that the config, the tensors' shapes and
some logits are all that has to be kept (test/e2e/families.py).

Needs torch and transformers. The files are what transformers itself saves, in bfloat16 (test/e2e/golden.py reads them);
logits are computed in float32 from the stored weights. Sizes come from the seed: another seed is another shape."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../test/e2e"))
from support import seeded  # noqa: E402

LENGTHS = (1, 7, 33, 200)
N_PROMPT, N_GREEDY = 16, 24


def sizes(rng):
    """What all families share. Heads, widths and vocabulary are odd on purpose: nothing may be assumed of them."""
    n_kv = rng.choice((1, 2, 3))
    heads = n_kv * rng.choice((1, 2, 3, 4))
    return dict(vocab_size=rng.randint(270, 420), hidden_size=8 * heads * rng.randint(-(-5 // heads), 12 // heads),
                intermediate_size=8 * rng.randint(9, 21), num_attention_heads=heads, num_key_value_heads=n_kv,
                head_dim=rng.choice((12, 16, 20, 24, 32, 40)), rms_norm_eps=rng.choice((1e-6, 1e-5)),
                max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def experts(rng, n="num_experts", used="num_experts_per_tok", width="moe_intermediate_size", step=1):
    return {n: step * rng.randint(4 // step + 1, 16 // step), used: rng.randint(1, 4), width: 4 * rng.randint(4, 10)}


def kinds(rng, n, every):
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(n)]


def theta(rng, base=10000.0):
    return {"rope_theta": base * rng.choice((1, 5, 100))}


def yarn(rng):
    return dict(rope_type="yarn", factor=rng.choice((4.0, 8.0)), original_max_position_embeddings=64, beta_fast=32.0,
                beta_slow=1.0, **theta(rng))


def llama(rng):
    low = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=128, **theta(rng))
    return dict(num_hidden_layers=3, rope_parameters=low, tie_word_embeddings=rng.random() < 0.5)


def mistral(rng):
    return dict(num_hidden_layers=3, sliding_window=rng.randint(9, 30), rope_parameters=dict(rope_type="default", **theta(rng)))


def qwen(rng):
    return dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=rng.randint(9, 30), max_window_layers=1,
                tie_word_embeddings=rng.random() < 0.5)


def gemma2(rng):
    return dict(num_hidden_layers=4, sliding_window=rng.randint(9, 30), query_pre_attn_scalar=rng.randint(20, 60),
                attn_logit_softcapping=4.0, final_logit_softcapping=6.0)


def gemma3(rng):
    ropes = dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e6),
                 sliding_attention=dict(rope_type="default", rope_theta=1e4))
    return dict(num_hidden_layers=4, sliding_window=rng.randint(9, 30), query_pre_attn_scalar=rng.randint(20, 60),
                layer_types=kinds(rng, 4, 3), rope_parameters=ropes)


def gemma_shared(rng, full):
    return dict(num_hidden_layers=6, layer_types=kinds(rng, 6, 3), sliding_window=rng.randint(9, 30), num_kv_shared_layers=3,
                hidden_size_per_layer_input=16, final_logit_softcapping=8.0,
                rope_parameters=dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=1e4)))


def gemma3n(rng):
    return dict(gemma_shared(rng, dict(rope_type="default", rope_theta=1e6)), vocab_size_per_layer_input=250,
                altup_num_inputs=rng.randint(2, 4), laurel_rank=8, intermediate_size=[144] * 6,
                activation_sparsity_pattern=[0.95, 0.5, 0.0, 0.9, 0.0, 0.0])


def gemma4(rng):
    full = dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6)
    return dict(gemma_shared(rng, full), global_head_dim=48, use_double_wide_mlp=True, enable_moe_block=False)


def gemma4_moe(rng):
    return dict(gemma4(rng), num_kv_shared_layers=0, hidden_size_per_layer_input=0, use_double_wide_mlp=False,
                attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, **experts(rng, used="top_k_experts"))


def phi3(rng):
    def factors(step):
        return [1 + step * i for i in range(12)]
    long = dict(rope_type="longrope", short_factor=factors(0.1), long_factor=factors(0.8), original_max_position_embeddings=64,
                **theta(rng))
    return dict(num_hidden_layers=3, hidden_size=96, num_attention_heads=4, num_key_value_heads=4, head_dim=None,
                original_max_position_embeddings=64, sliding_window=50, rope_parameters=long)


def granite(rng):
    return dict(num_hidden_layers=3, head_dim=None, hidden_size=96, num_attention_heads=4, num_key_value_heads=2,
                embedding_multiplier=1.5, attention_multiplier=0.1, residual_multiplier=0.6, logits_scaling=1.6)


def olmo3(rng):
    return dict(num_hidden_layers=4, head_dim=None, hidden_size=96, num_attention_heads=4, num_key_value_heads=2,
                sliding_window=rng.randint(9, 30), layer_types=kinds(rng, 4, 4), rope_parameters=yarn(rng))


def hybrid(rng):
    return dict(num_hidden_layers=4, sliding_window=rng.randint(9, 30), layer_types=kinds(rng, 4, 4))


def moe(**more):
    return lambda rng: dict(num_hidden_layers=3, **{k: v(rng) if callable(v) else v for k, v in more.items()}, **experts(rng))


def mixtral(rng):
    return dict(num_hidden_layers=3, **experts(rng, "num_local_experts", width="intermediate_size"))


def gpt_oss(rng):
    return dict(mixtral(rng), num_hidden_layers=4, sliding_window=rng.randint(9, 30), layer_types=kinds(rng, 4, 2),
                rope_parameters=dict(yarn(rng), truncate=False), swiglu_limit=2.0)


def glm4_moe(rng):
    return dict(num_hidden_layers=3, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, n_group=2, topk_group=1,
                n_shared_experts=1, routed_scaling_factor=2.5,
                rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5, **theta(rng)),
                **dict(experts(rng, "n_routed_experts", step=2), num_experts_per_tok=2))


def llama4(rng):
    return dict(num_hidden_layers=4, attention_chunk_size=rng.randint(20, 30), no_rope_layers=[1, 1, 1, 0], floor_scale=16,
                attn_scale=0.1, intermediate_size=32, intermediate_size_mlp=96, interleave_moe_layer_step=2,
                num_local_experts=8, num_experts_per_tok=1)


def mla(rng, **more):
    yarn_mla = dict(yarn(rng), mscale=1.0, mscale_all_dim=rng.choice((1.0, 0.7)))
    heads = rng.choice((3, 4, 6))
    groups = rng.choice(((1, 1), (2, 1), (4, 2), (4, 3)))
    return dict(dict(num_hidden_layers=3, first_k_dense_replace=1, head_dim=None, num_attention_heads=heads, num_key_value_heads=heads,
                     kv_lora_rank=rng.choice((24, 32, 40)), q_lora_rank=rng.choice((40, 48, 56)), qk_rope_head_dim=rng.choice((8, 16, 24)),
                     qk_nope_head_dim=rng.choice((12, 16, 24)), v_head_dim=rng.choice((12, 24, 32)), n_group=groups[0],
                     topk_group=groups[1], n_shared_experts=rng.choice((1, 2)), routed_scaling_factor=rng.choice((1.0, 2.5)),
                     norm_topk_prob=rng.random() < 0.7, rope_parameters=yarn_mla), **experts(rng, "n_routed_experts", step=4), **more)


def mla_plain(rng):
    c = mla(rng, n_group=1, topk_group=1)
    c["rope_parameters"] = dict(rope_type="default", **theta(rng))
    return c


def indexer(rng):
    return dict(index_n_heads=16, index_head_dim=rng.choice((24, 32, 40)), index_topk=rng.randint(9, 20))


def deepseek_v4(rng):
    layer = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
    rope = rng.choice((8, 16))
    heads, groups = rng.choice(((4, 2), (6, 3), (6, 2), (3, 1)))
    return dict(experts(rng, "n_routed_experts"), num_hidden_layers=4, layer_types=layer, num_hash_layers=1,
                num_attention_heads=heads, num_key_value_heads=1, head_dim=rng.choice((24, 32, 40)), qk_rope_head_dim=rope,
                q_lora_rank=rng.choice((24, 40)), o_groups=groups, o_lora_rank=rng.choice((16, 24)), hc_mult=rng.choice((2, 3, 4)),
                hc_sinkhorn_iters=rng.choice((3, 20)), compress_rates={layer[1]: rng.choice((2, 3, 4)), layer[2]: rng.choice((8, 12, 16))},
                sliding_window=rng.randint(9, 30), swiglu_limit=rng.choice((0.7, 10.0)), **indexer(rng),
                rope_parameters=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0))


def delta(rng, n=4, every=4):
    key = rng.choice((1, 2))
    return dict(num_hidden_layers=n, layer_types=["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n)],
                linear_conv_kernel_dim=rng.choice((3, 4)), linear_key_head_dim=rng.choice((12, 16, 24)),
                linear_value_head_dim=rng.choice((12, 16, 24)), linear_num_key_heads=key, linear_num_value_heads=key * rng.choice((1, 2, 3)),
                rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5, **theta(rng)), head_dim=rng.choice((16, 24, 32)),
                tie_word_embeddings=rng.random() < 0.5)


def delta_moe(rng):
    return dict(delta(rng), **experts(rng), shared_expert_intermediate_size=8 * rng.randint(3, 7))


def kimi_linear(rng):
    c = mla_plain(rng)
    for k in ("n_group", "topk_group", "n_shared_experts", "q_lora_rank", "n_routed_experts"):
        c.pop(k)
    return dict(c, num_hidden_layers=4, q_lora_rank=None, mla_use_nope=True, moe_layer_freq=1, num_experts=8, num_experts_per_token=3,
                num_shared_experts=1, num_expert_group=1, topk_group=1, moe_renormalize=True, moe_router_activation_func="sigmoid",
                linear_attn_config=dict(full_attn_layers=[2, 4], kda_layers=[1, 3], head_dim=rng.choice((12, 16, 24)),
                                        num_heads=rng.choice((2, 3, 4)), short_conv_kernel_size=rng.choice((3, 4))))


def mamba(rng, n_head="mamba_n_heads", d_head="mamba_d_head", n_group="mamba_n_groups", state="mamba_d_state", conv="mamba_d_conv"):
    """An inner width of twice the hidden size, which some classes insist on."""
    groups, heads = rng.choice(((1, 4), (2, 6), (2, 8), (3, 6)))
    head = 8 * rng.randint(1, 3)
    return {n_head: heads, d_head: head, n_group: groups, state: rng.choice((12, 16, 24)), conv: rng.choice((3, 4)),
            "hidden_size": heads * head // 2}


def granite_hybrid(rng):
    kinds = ["mamba", "attention", "mamba", "attention"]
    return dict(granite(rng), num_hidden_layers=4, layer_types=kinds, layers_block_type=kinds, num_local_experts=rng.choice((6, 8)),
                num_experts_per_tok=rng.choice((2, 3)), intermediate_size=4 * rng.randint(4, 9), shared_intermediate_size=8 * rng.randint(4, 9),
                num_attention_heads=4, num_key_value_heads=2, position_embedding_type=rng.choice(("nope", "rope")), mamba_chunk_size=32,
                tie_word_embeddings=True, **mamba(rng))


def nemotron_h(rng):
    m = mamba(rng, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    m["layer_norm_epsilon"] = 1e-5
    return dict(m, hybrid_override_pattern="ME*-ME", num_hidden_layers=6, expand=2, chunk_size=32, n_routed_experts=8, n_shared_experts=1,
                moe_intermediate_size=40, moe_shared_expert_intermediate_size=56, num_experts_per_tok=3, routed_scaling_factor=2.5,
                n_group=rng.choice((1, 2)), topk_group=1, norm_topk_prob=True, time_step_limit=[0.0, float("inf")])


def mamba2(rng):
    return dict(mamba(rng, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"), num_hidden_layers=3, expand=2, chunk_size=32,
                time_step_limit=[0.0, float("inf")], rms_norm=True)


def falcon_h1(rng):
    m = mamba(rng)
    inner = m["mamba_n_heads"] * m["mamba_d_head"]
    return dict(m, num_hidden_layers=3, mamba_d_ssm=inner, mamba_chunk_size=32, mamba_rms_norm=rng.random() < 0.5,
                mamba_norm_before_gate=rng.random() < 0.5, projectors_bias=False, lm_head_multiplier=0.7, embedding_multiplier=1.6,
                mlp_multipliers=[0.9, 0.4], key_multiplier=0.6, attention_in_multiplier=1.1, attention_out_multiplier=0.8,
                ssm_multipliers=[0.35, 0.25, 0.18, 0.5, 0.45], ssm_in_multiplier=1.25, ssm_out_multiplier=0.5, rope_parameters=dict(
                    rope_type="default", **theta(rng)))


def minimax(rng):
    return dict(mixtral(rng), num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2, block_size=32,
                full_attn_alpha_factor=2.0, full_attn_beta_factor=0.9, linear_attn_alpha_factor=1.7, linear_attn_beta_factor=1.1,
                mlp_alpha_factor=1.9, mlp_beta_factor=0.8)


def lfm2(rng):
    return dict(num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"], conv_L_cache=rng.choice((3, 4)), head_dim=None,
                hidden_size=96, num_attention_heads=rng.choice((4, 6)), num_key_value_heads=2, block_auto_adjust_ff_dim=rng.random() < 0.5,
                intermediate_size=8 * rng.randint(15, 25), block_multiple_of=16, block_ffn_dim_multiplier=1.0)


def lfm2_moe(rng):
    c = {k: v for k, v in lfm2(rng).items() if not k.startswith("block_")}
    return dict(c, num_dense_layers=1, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=rng.choice((1.0, 1.7)),
                **experts(rng))


FAMILIES = {
    "deepseek_v3": mla, "deepseek_v32": lambda r: dict(mla(r), **indexer(r)), "deepseek_v4": deepseek_v4, "glm4_moe_lite": mla_plain,
    "glm_moe_dsa": lambda r: dict(mla_plain(r), **indexer(r), num_hidden_layers=4,
                                  **r.choice(({}, dict(index_topk_freq=2, index_skip_topk_offset=1), dict(index_topk_pattern="FSFS")))), "qwen3_next": delta_moe, "qwen3_5": delta, "qwen3_5_moe": delta_moe,
    "kimi_linear": kimi_linear, "granitemoehybrid": granite_hybrid, "nemotron_h": nemotron_h, "mamba2": mamba2,
    "falcon_h1": falcon_h1, "minimax": minimax, "lfm2": lfm2, "lfm2_moe": lfm2_moe,
    "llama": llama, "mistral": mistral, "qwen2": qwen, "qwen3": qwen,
    "smollm3": lambda r: dict(num_hidden_layers=4, head_dim=None, hidden_size=96, num_attention_heads=4, num_key_value_heads=2),
    "gemma2": gemma2, "gemma3": gemma3, "gemma3n": gemma3n, "gemma4": gemma4, "gemma4_moe": gemma4_moe, "phi3": phi3,
    "granite": granite, "olmo3": olmo3, "exaone4": hybrid, "cohere2": hybrid, "gpt_oss": gpt_oss, "mixtral": mixtral,
    "olmo2": lambda r: dict(num_hidden_layers=3, head_dim=None, hidden_size=96, num_attention_heads=4, num_key_value_heads=4),
    "glm4": lambda r: dict(num_hidden_layers=3, attention_bias=True,
                           rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5, **theta(r))),
    "ministral3": lambda r: dict(num_hidden_layers=3, rope_parameters=dict(yarn(r), mscale=1.0, mscale_all_dim=1.0,
                                                                           llama_4_scaling_beta=0.1)),
    "qwen2_moe": moe(shared_expert_intermediate_size=lambda r: 16 * r.randint(2, 5), norm_topk_prob=False, mlp_only_layers=[1]),
    "qwen3_moe": moe(norm_topk_prob=lambda r: r.random() < 0.5), "glm4_moe": glm4_moe, "llama4": llama4,
    "minimax_m2": lambda r: dict(mixtral(r), rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5, **theta(r))),
}
# What some checkpoints of a family have, and others not: one seed in three.
SOMETIMES = {
    "llama": dict(attention_bias=True, mlp_bias=True), "mistral": dict(sliding_window=None), "qwen2": dict(use_sliding_window=False),
    "qwen3": dict(attention_bias=True, use_sliding_window=False), "granite": dict(attention_bias=True, mlp_bias=True),
    "olmo2": dict(attention_bias=True), "olmo3": dict(attention_bias=True), "exaone4": dict(sliding_window=None),
    "smollm3": dict(no_rope_layers=[0, 1, 1, 0], attention_bias=True, mlp_bias=True), "cohere2": dict(attention_bias=True, logit_scale=0.3),
    "glm4_moe": dict(use_qk_norm=False, attention_bias=False, norm_topk_prob=False), "mixtral": dict(sliding_window=13),
    "qwen3_moe": dict(mlp_only_layers=[1], attention_bias=True, decoder_sparse_step=2), "qwen2_moe": dict(norm_topk_prob=True),
    "llama4": dict(use_qk_norm=False, attn_temperature_tuning=False), "phi3": dict(sliding_window=None, tie_word_embeddings=True),
    "deepseek_v3": dict(q_lora_rank=None, attention_bias=True, first_k_dense_replace=0, rope_interleave=False),
    "deepseek_v32": dict(attention_bias=True, first_k_dense_replace=2), "glm4_moe_lite": dict(attention_bias=True),
    "qwen3_next": dict(norm_topk_prob=False, mlp_only_layers=[2]), "gemma2": dict(final_logit_softcapping=None),
    "falcon_h1": dict(mamba_conv_bias=False), "nemotron_h": dict(use_conv_bias=False),
    "granitemoehybrid": dict(num_local_experts=0, mamba_conv_bias=False, mamba_proj_bias=True),
    "mamba2": dict(use_bias=True, use_conv_bias=False, tie_word_embeddings=True), "lfm2": dict(conv_bias=True),
    "lfm2_moe": dict(norm_topk_prob=False, use_expert_bias=False), "gemma3n": dict(num_kv_shared_layers=0),
    "gemma4": dict(num_kv_shared_layers=0, final_logit_softcapping=None), "gpt_oss": dict(sliding_window=64),
    "deepseek_v4": dict(num_hash_layers=0), "minimax": dict(tie_word_embeddings=True),
}
MODEL_TYPE = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_moe": "gemma4_text",
              "llama4": "llama4_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}


DERIVED = ("inv_freq", "embed_scale", "slope_rate", "_decay")  # follow from the config


def randomise(torch, model, seed):
    """Weights whose every feature shows: norms off 1, biases off 0, matrices that keep the size of what they multiply."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if name.endswith("tid2eid"):  # a table of experts by token
                n = model.config.n_routed_experts
                p.copy_(torch.stack([torch.randperm(n, generator=gen)[:p.shape[1]] for _ in range(p.shape[0])]))
            if any(d in name for d in DERIVED) or not p.is_floating_point():
                continue
            noise = torch.randn(p.shape, generator=gen)
            if p.dim() < 2:
                one = 1.0 if "norm" in name or "scal" in name else 0.0
                if one and float(p.float().abs().max()) == 0:
                    one = 0.0  # a norm that multiplies by 1 + w
                value = one + 0.2 * noise
            else:
                embedding = "embed_tokens" in name or "lm_head" in name
                value = noise * (1.0 if embedding else 1.6 / p.shape[-1] ** 0.5)
            p.copy_(value.to(torch.bfloat16).to(p.dtype))


def new_model(arch, rng, **more):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.set_num_threads(1)
    keys = dict(sizes(rng), **FAMILIES[arch](rng))
    keys.update({k: v for k, v in SOMETIMES.get(arch, {}).items() if rng.random() < 1 / 3})
    keys.update({k: v for k, v in more.items() if k in keys})
    config = AutoConfig.for_model(MODEL_TYPE.get(arch, arch), **{k: v for k, v in keys.items() if v is not None})
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    return config, AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def save(torch, model, out):
    """Parameters in bfloat16; buffers, which some classes compute and store, as they are."""
    model.config.dtype = torch.bfloat16
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16)
    model.save_pretrained(out)


def small(arch, out, seed):
    """Config, specs of tensors, logits and a greedy continuation in one file of JSON."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    rng = random.Random(seed)
    config, model = new_model(arch, rng, vocab_size=72, vocab_size_per_layer_input=60)
    with tempfile.TemporaryDirectory() as d:
        save(torch, model, d)
        specs = {}
        for name, t in load_file(d + "/model.safetensors").items():
            if any(x in name for x in DERIVED):
                continue
            shape = "x".join(map(str, t.shape))
            if not t.is_floating_point():
                specs[name] = shape + " id %d" % config.n_routed_experts
                continue
            vector = sum(n > 1 for n in t.shape) < 2
            table = "embed_tokens" in name or "lm_head" in name
            size = 0.35 if vector else 1.7 if table else 2.7 / t.shape[-1] ** 0.5
            specs[name] = shape + " %.3f" % size + (" 1" if vector and bool((t == 1).all()) else "")
        seeded.write_model(d + "/model.safetensors", specs, seed)
        model = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
        ids, rows, out_ids = [rng.randrange(3, 72) for _ in range(96)], {}, []
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
            for i in (0, 12, 40, 95):
                rows[i] = ["%.4f" % x for x in logits[i].tolist()]
            more = ids[:20]
            while len(out_ids) < 12:
                top = model(torch.tensor([more]), use_cache=False).logits[0, -1].float().topk(2)
                if float(top.values[0] - top.values[1]) < 2e-3:
                    break
                out_ids.append(int(top.indices[0]))
                more.append(out_ids[-1])
        with open(d + "/config.json") as f:
            config = json.load(f)
    with open(os.path.join(out, arch + ".json"), "w") as f:
        f.write('{"seed": %d,\n"config": %s,\n"ids": %s,\n"greedy": %s,\n"logits": {\n' %
                (seed, json.dumps(config), json.dumps(ids), json.dumps(out_ids)))
        f.write(",\n".join('"%d": [%s]' % (i, ", ".join(r)) for i, r in rows.items()) + '},\n"tensors": {\n')
        f.write(",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(specs.items())) + "}}\n")


def make(arch, out, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    rng = random.Random(seed)
    config, model = new_model(arch, rng)
    randomise(torch, model, seed)
    save(torch, model, out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    want, step = {}, torch.no_grad()
    with step:
        for n in LENGTHS:
            ids = [rng.randrange(3, config.vocab_size) for _ in range(n)]
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
            want["s%d.ids" % n] = torch.tensor(ids, dtype=torch.int32)
            if n == max(LENGTHS):
                want["s%d.logits_last8" % n] = logits[-8:].clone()
            else:
                want["s%d.logits" % n] = logits.clone()
        ids = [rng.randrange(3, config.vocab_size) for _ in range(N_PROMPT)]
        want["prompt.ids"] = torch.tensor(ids, dtype=torch.int32)
        margin = []
        for _ in range(N_GREEDY):
            last = model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            top = last.topk(2).values
            margin.append(float(top[0] - top[1]))
            ids.append(int(last.argmax()))
    want["greedy.ids"] = torch.tensor(ids[N_PROMPT:], dtype=torch.int32)
    save_file({k: v.contiguous() for k, v in want.items()}, out + "/golden.safetensors")
    with open(out + "/golden.json", "w") as f:
        json.dump({"arch": arch, "seed": seed, "greedy_min_margin": min(margin)}, f, indent=1)


def compare(program, out):
    """Largest difference of logits; the greedy continuation, unless a tie decides it."""
    import torch
    from safetensors.torch import load_file
    answers, worst = load_file(out + "/golden.safetensors"), 0.0
    exact = ["-m", out, "--compute", "f32", "--kv-dtype", "f32", "--ids"]
    for n in LENGTHS:
        ids, last = answers["s%d.ids" % n].tolist(), 8 if n == max(LENGTHS) else n
        want = answers.get("s%d.logits" % n, answers.get("s%d.logits_last8" % n))
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as o:
            subprocess.run([program, "logits", *exact, ",".join(map(str, ids)), "--last", str(last), "-o", o.name], check=True)
            got = load_file(o.name)["logits"]
        worst = max(worst, float((got - want).abs().nan_to_num(1e9).max()))
    with open(out + "/golden.json") as f:
        margin = json.load(f)["greedy_min_margin"]
    prompt = ",".join(map(str, answers["prompt.ids"].tolist()))
    r = subprocess.run([program, "run", *exact, prompt, "-n", str(N_GREEDY), "--temperature", "0", "--ignore-eos", "--output",
                        "ids", "--quiet"], check=True, capture_output=True, text=True)
    same = [int(x) for x in r.stdout.replace(",", " ").split()] == answers["greedy.ids"].tolist()
    good = worst <= 1e-3 and (same or margin < 2e-3)
    print("%s: %s: logits differ by %.1e at most; greedy tokens %s" % ("ok" if good else "FAILED", out, worst,
                                                                       "equal" if same else "differ"))
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("arch", help="'list', one of the families it prints, or 'all'")
    p.add_argument("out", nargs="?", help="folder to write; with 'all', or several seeds, one in it for each")
    p.add_argument("--seed", default="1", help="a number, or several: 1,2,3")
    p.add_argument("--small", action="store_true", help="a file OUT/FAMILY.json for test/e2e/families.py")
    p.add_argument("--run", metavar="PROGRAM", help="compare this program with the golden logits")
    a = p.parse_args()
    if a.arch == "list":
        print("\n".join(sorted(FAMILIES)))
        return
    if (a.arch != "all" and a.arch not in FAMILIES) or not a.out:
        p.error("expected a family that 'list' prints and a folder")
    failed, seeds = [], [int(s) for s in a.seed.split(",")]
    one = a.arch != "all" and len(seeds) == 1
    for arch in sorted(FAMILIES) if a.arch == "all" else [a.arch]:
        for seed in seeds:
            out = a.out if one else os.path.join(a.out, "%s-%d" % (arch, seed))
            os.makedirs(a.out if a.small else out, exist_ok=True)
            try:
                if a.small:
                    small(arch, a.out, seed)
                    continue
                make(arch, out, seed)
                if a.run and not compare(a.run, out):
                    failed.append("%s-%d" % (arch, seed))
            except Exception as e:  # the others are still worth a try
                if one:
                    raise
                print("FAILED: %s: %s" % (out, e), flush=True)
                failed.append("%s-%d" % (arch, seed))
    if failed:
        sys.exit("failed: " + " ".join(failed))


main()
