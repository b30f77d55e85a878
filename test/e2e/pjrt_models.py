#!/usr/bin/env python3
"""Every kind of layer on XLA's CPU plugin: models with states, latents, indexers, sinks and chunks against their references or
the cpu backend. PJRT_EVERY=1: all golden models and sequences (make check-pjrt)."""
import glob
import json
import re
import shutil
import tempfile

from golden import EXACT, SEQUENCES
from support import lib, plugged, seeded
from support.lib import ok, refused, text
from support.plugged import EVERY, HOME, SMALL, alike, backend, check_case, logits, random_model, worst

# One for each op that few models use: the gated delta rule and convolutions, latents and the indexer, sinks, keys of another
# layer and what else Gemma 3n has, a constant decay, two ropes.
ONE_EACH = ("qwen3_5", "deepseek_v32", "gpt_oss", "gemma3n", "minimax", "phi3")
MORE = ("falcon_h1", "glm_moe_dsa", "lfm2", "mamba2", "mixtral", "nemotron_h")
QUANT = ("gpt_oss_mxfp4", "qwen3_fp8", "qwen3_nvfp4_ct")


def model_test(folder, name, sequences):
    def test():
        check_case("test/golden/%s/%s" % (folder, name), sequences)

    globals()["test_" + name] = test


for name in ONE_EACH + (MORE if EVERY else ()):
    model_test("models", name, SEQUENCES if EVERY else SEQUENCES[2:])
for name in QUANT:
    model_test("quant", name, SEQUENCES if EVERY else SEQUENCES[2:3])


def test_bytes_for_keys():
    """A KV cache of bytes: as close to the exact logits as the cpu backend's, whose groups are smaller, nearly is."""
    bytes_ = ["--compute", "f32", "--kv-dtype", "q8_0"]
    for case in ("llama", "gemma3", "gpt_oss"):
        case = "test/golden/models/" + case
        ids = [(11 * i + i // 7) % 128 for i in range(40)]
        exact = logits(case, ids, [])[1]
        got, own = logits(case, ids, backend(), more=bytes_)[1], logits(case, ids, [], more=bytes_)[1]
        assert 0 < worst(got, exact) <= 4 * worst(own, exact), (case, worst(got, exact), worst(own, exact))
    refused(4, "run", "-m", "test/golden/models/deepseek_v32", "--ids", "1", "-n", 1, *SMALL, *backend(), "--kv-dtype", "q8_0",
                says="q8_0")


def test_sixteen_numbers():
    """Codes that choose among 16 numbers: a block of iq4_nl is one of q4_0 read in another way."""
    with tempfile.TemporaryDirectory() as d:
        with open("test/golden/quant/gguf_llama_q4_0/model.gguf", "rb") as f:
            raw = bytearray(f.read())
        found = 0
        for m in re.finditer(rb"blk\.\d+\.\w+\.weight", bytes(raw)):
            n_dim = int.from_bytes(raw[m.end() : m.end() + 4], "little")
            at = m.end() + 4 + 8 * n_dim
            if raw[at : at + 4] == bytes((2, 0, 0, 0)):
                raw[at] = 20
                found += 1
        assert found > 6, found
        with open(d + "/model.gguf", "wb") as f:
            f.write(raw)
        alike(d + "/model.gguf")


def test_wide_floats():
    """e5m2 in the place of e4m3, but for its infinities."""
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree("test/golden/quant/qwen3_fp8", d, dirs_exist_ok=True)
        path = glob.glob(d + "/model*.safetensors")[0]
        with open(path, "rb") as f:
            raw = bytearray(f.read())
        n = 8 + int.from_bytes(raw[:8], "little")
        finite = bytes(b & 0xBB if b & 0x7C == 0x7C else b for b in range(256))
        for t in json.loads(raw[8:n]).values():
            if t.get("dtype") == "F8_E4M3":
                lo, hi = (n + x for x in t["data_offsets"])
                raw[lo:hi] = raw[lo:hi].translate(finite)
        raw[8:n] = raw[8:n].replace(b"F8_E4M3", b"F8_E5M2")
        with open(path, "wb") as f:
            f.write(raw)
        alike(d)


COMMON = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False}
KIMI = {**COMMON, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "moe_intermediate_size": 16,
        "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "mla_use_nope": True,
        "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 16, "num_heads": 2, "short_conv_kernel_size": 4},
        "first_k_dense_replace": 2, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
        "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1,
        "routed_scaling_factor": 2.0}
LLAMA4 = {**COMMON, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "intermediate_size": 16,
          "intermediate_size_mlp": 48, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 1,
          "interleave_moe_layer_step": 1, "no_rope_layers": [1, 0], "attention_chunk_size": 24, "use_qk_norm": True,
          "attn_temperature_tuning": True, "floor_scale": 16, "attn_scale": 0.1, "attention_bias": False}


def outside(d):
    return {"model.embed_tokens.weight": (128, d), "lm_head.weight": (128, d), "model.norm.weight": (d,)}


def layer(i, shapes):
    return {"model.layers.%d.%s" % (i, name): shape for name, shape in shapes.items()}


def kimi_shapes():
    norms = {"input_layernorm.weight": (32,), "post_attention_layernorm.weight": (32,)}
    dense = {**norms, "mlp.gate_proj.weight": (48, 32), "mlp.up_proj.weight": (48, 32), "mlp.down_proj.weight": (32, 48)}
    delta = {"self_attn.%s_proj.weight" % x: (32, 32) for x in "qkvo"}
    delta.update({"self_attn.%s_conv1d.weight" % x: (32, 1, 4) for x in "qkv"})
    delta.update({"self_attn.%s_proj.weight" % x: (16, 32) if x[2] == "a" else (32, 16) for x in ("f_a", "f_b", "g_a", "g_b")})
    delta.update({"self_attn.A_log": (1, 1, 2, 1), "self_attn.dt_bias": (32,), "self_attn.b_proj.weight": (2, 32),
                  "self_attn.o_norm.weight": (16,)})
    latent = {"self_attn.q_proj.weight": (48, 32), "self_attn.kv_a_proj_with_mqa.weight": (24, 32),
              "self_attn.kv_a_layernorm.weight": (16,), "self_attn.kv_b_proj.weight": (64, 16), "self_attn.o_proj.weight": (32, 32)}
    return {**outside(32), **layer(0, {**dense, **delta}), **layer(1, {**dense, **latent})}


def llama4_shapes():
    shapes = {"input_layernorm.weight": (32,), "post_attention_layernorm.weight": (32,), "feed_forward.router.weight": (4, 32),
              "feed_forward.experts.gate_up_proj": (4, 32, 32), "feed_forward.experts.down_proj": (4, 16, 32),
              "self_attn.q_proj.weight": (32, 32), "self_attn.k_proj.weight": (16, 32), "self_attn.v_proj.weight": (16, 32),
              "self_attn.o_proj.weight": (32, 32)}
    shapes.update({"feed_forward.shared_expert.%s_proj.weight" % x: (16, 32) for x in ("gate", "up")})
    shapes["feed_forward.shared_expert.down_proj.weight"] = (32, 16)
    return {**outside(32), **layer(0, shapes), **layer(1, shapes)}


def as_cpu(config, shapes):
    """A prompt in steps of 64 and of 16, and an answer token by token."""
    ids = [(11 * i + i // 7) % 128 for i in range(90)]
    with tempfile.TemporaryDirectory() as d:
        random_model(d + "/m", config, shapes)
        want = logits(d + "/m", ids, [])[1]
        for tokens in (64, 16):
            got = logits(d + "/m", ids, backend(), small=["--ctx-size", 256, "--max-batched-tokens", tokens])[1]
            assert worst(got, want) < 1e-3, worst(got, want)
        run = ["run", "-m", d + "/m", *EXACT, *SMALL, "--ids", ",".join(map(str, ids[:30])), "-n", 20, "--ignore-eos",
               "--temperature", 0]
        assert ok(*run, *backend(), env=plugged.ENV, timeout=240) == ok(*run)


def test_delta_attention():
    """A decay for each key dimension (Kimi Delta Attention), latent attention without a rope."""
    as_cpu(KIMI, kimi_shapes())


def test_chunks():
    """Attention in chunks, queries scaled by position, experts' inputs weighed."""
    as_cpu(LLAMA4, llama4_shapes())


def test_deepseek_v4():
    """Streams, compressed keys and those that an indexer chooses of them: the reference's logits, in whole and in pieces, and
    answers made token by token."""
    with open("test/golden/families/deepseek_v4.json") as f:
        case = json.load(f)
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, case)
        few = ["--ctx-size", 128, "--max-batched-tokens", 16, "--max-seqs", 1, "--block-size", 8]
        for small in [few] + ([SMALL] if EVERY else []):
            (_, n), got = logits(d, case["ids"], backend(), small=small)
            for row, want in case["logits"].items():
                assert worst(got[int(row) * n : (int(row) + 1) * n], want) <= 1e-3, (small, row)
        run = ["run", "-m", d, *EXACT, *few, "--ids", ",".join(map(str, case["ids"][:20])), "-n", len(case["greedy"]), "--temperature", 0,
               "--ignore-eos", "--output", "ids"]
        assert [int(x) for x in text(ok(*run, *backend(), env={"SYSTOLE_HOME": HOME}, timeout=240)).split(",")] == case["greedy"]


if __name__ == "__main__":
    lib.main(dict(globals()))
