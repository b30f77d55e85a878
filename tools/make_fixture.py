#!/usr/bin/env python3
"""Makes a tiny random checkpoint of an architecture with the logits that the transformers library computes from it, so
that a family can be checked before it is trusted; --run then compares a program with them.

  tools/make_fixture.py list
  tools/make_fixture.py qwen3_moe OUT --seed 7 [--run build/release/systole]

Needs torch and transformers. The files are what transformers itself saves, in bfloat16 (test/e2e/golden.py reads them);
logits are computed in float32 from the stored weights. Sizes come from the seed: another seed is another shape."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

LENGTHS = (1, 7, 33, 200)
N_PROMPT, N_GREEDY = 16, 24


def sizes(rng):
    """What all families share. Heads, widths and vocabulary are odd on purpose: nothing may be assumed of them."""
    n_kv = rng.choice((1, 2, 3))
    head = rng.choice((16, 24, 32))
    hidden = 16 * rng.randint(3, 6)
    return dict(vocab_size=16 * rng.randint(18, 26), hidden_size=hidden, intermediate_size=16 * rng.randint(5, 11),
                num_attention_heads=n_kv * rng.choice((2, 3)), num_key_value_heads=n_kv, head_dim=head,
                max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def experts(rng, n="num_experts", used="num_experts_per_tok", width="moe_intermediate_size"):
    return {n: 4 * rng.randint(2, 5), used: rng.randint(2, 4), width: 8 * rng.randint(2, 5)}


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
                **dict(experts(rng, "n_routed_experts"), num_experts_per_tok=2))


def llama4(rng):
    return dict(num_hidden_layers=4, attention_chunk_size=rng.randint(20, 30), no_rope_layers=[1, 1, 1, 0], floor_scale=16,
                attn_scale=0.1, intermediate_size=32, intermediate_size_mlp=96, interleave_moe_layer_step=2,
                num_local_experts=8, num_experts_per_tok=1)


FAMILIES = {
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
MODEL_TYPE = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_moe": "gemma4_text",
              "llama4": "llama4_text"}


def randomise(torch, model, seed):
    """Weights whose every feature shows: norms off 1, biases off 0, matrices that keep the size of what they multiply."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name or "embed_scale" in name or not p.is_floating_point():
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


def make(arch, out, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.set_num_threads(1)
    rng = random.Random(seed)
    keys = dict(sizes(rng), **FAMILIES[arch](rng))
    config = AutoConfig.for_model(MODEL_TYPE.get(arch, arch), **{k: v for k, v in keys.items() if v is not None})
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    randomise(torch, model, seed)
    model.to(torch.bfloat16).save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    golden, step = {}, torch.no_grad()
    with step:
        for n in LENGTHS:
            ids = [rng.randrange(3, config.vocab_size) for _ in range(n)]
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
            golden["s%d.ids" % n] = torch.tensor(ids, dtype=torch.int32)
            if n == max(LENGTHS):
                golden["s%d.logits_last8" % n] = logits[-8:].clone()
            else:
                golden["s%d.logits" % n] = logits.clone()
        ids = [rng.randrange(3, config.vocab_size) for _ in range(N_PROMPT)]
        golden["prompt.ids"] = torch.tensor(ids, dtype=torch.int32)
        margin = []
        for _ in range(N_GREEDY):
            last = model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            top = last.topk(2).values
            margin.append(float(top[0] - top[1]))
            ids.append(int(last.argmax()))
    golden["greedy.ids"] = torch.tensor(ids[N_PROMPT:], dtype=torch.int32)
    save_file({k: v.contiguous() for k, v in golden.items()}, out + "/golden.safetensors")
    with open(out + "/golden.json", "w") as f:
        json.dump({"arch": arch, "seed": seed, "greedy_min_margin": min(margin)}, f, indent=1)


def compare(program, out):
    """Largest difference of logits; the greedy continuation, unless a tie decides it."""
    import torch
    from safetensors.torch import load_file
    golden, worst = load_file(out + "/golden.safetensors"), 0.0
    exact = ["-m", out, "--compute", "f32", "--kv-dtype", "f32", "--ids"]
    for n in LENGTHS:
        ids, last = golden["s%d.ids" % n].tolist(), 8 if n == max(LENGTHS) else n
        want = golden.get("s%d.logits" % n, golden.get("s%d.logits_last8" % n))
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as o:
            subprocess.run([program, "logits", *exact, ",".join(map(str, ids)), "--last", str(last), "-o", o.name], check=True)
            got = load_file(o.name)["logits"]
        worst = max(worst, float((got - want).abs().nan_to_num(1e9).max()))
    with open(out + "/golden.json") as f:
        margin = json.load(f)["greedy_min_margin"]
    prompt = ",".join(map(str, golden["prompt.ids"].tolist()))
    r = subprocess.run([program, "run", *exact, prompt, "-n", str(N_GREEDY), "--temperature", "0", "--ignore-eos", "--output",
                        "ids", "--quiet"], check=True, capture_output=True, text=True)
    same = [int(x) for x in r.stdout.replace(",", " ").split()] == golden["greedy.ids"].tolist()
    good = worst <= 1e-3 and (same or margin < 2e-3)
    print("%s: %s: logits differ by %.1e at most; greedy tokens %s" % ("ok" if good else "FAILED", out, worst,
                                                                       "equal" if same else "differ"))
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("arch", help="'list', or one of the families it prints")
    p.add_argument("out", nargs="?", help="folder to write")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--run", metavar="PROGRAM", help="compare this program with the golden logits")
    a = p.parse_args()
    if a.arch == "list":
        print("\n".join(sorted(FAMILIES)))
        return
    if a.arch not in FAMILIES or not a.out:
        p.error("expected a family that 'list' prints and a folder")
    os.makedirs(a.out, exist_ok=True)
    make(a.arch, a.out, a.seed)
    if a.run and not compare(a.run, a.out):
        sys.exit(1)


main()
