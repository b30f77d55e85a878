#!/usr/bin/env python3
"""inspect: the card of a model against what its files and config say; what cannot be used is named, with the reason."""
import json
import math
import os
import shutil
import struct
import tempfile

from support import lib, seeded
from support.lib import ok, refused, text

MODELS = "test/golden/models/"


def card(model, *args):
    return json.loads(ok("inspect", "-m", model, "--json", *args))


def header(model):
    with open(model + "/model.safetensors", "rb") as f:
        found = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {k: v for k, v in found.items() if k != "__metadata__"}


def config(model):
    with open(model + "/config.json") as f:
        return json.load(f)


def test_parameters_and_formats():
    for name in ("llama", "mixtral", "nemotron_h", "gpt_oss"):
        h, c = header(MODELS + name), card(MODELS + name)
        assert c["parameters"] == sum(math.prod(t["shape"]) for t in h.values()), name
        assert c["bytes"] == sum(t["data_offsets"][1] - t["data_offsets"][0] for t in h.values()), name
        assert c["supported"] and "problem" not in c and c["architecture"] == config(MODELS + name)["architectures"][0]
        assert sum(f["bytes"] for f in c["formats"].values()) == c["bytes"] == sum(t["bytes"] for t in c["tensors"]), name
        assert sum(f["tensors"] for f in c["formats"].values()) == len(c["tensors"]), name


def test_what_a_token_takes():
    """Of the experts those that are chosen, of an embedding one row."""
    h, c = header(MODELS + "mixtral"), config(MODELS + "mixtral")
    experts = sum(math.prod(t["shape"]) for k, t in h.items() if ".experts." in k)
    table = math.prod(h["model.embed_tokens.weight"]["shape"])
    found = card(MODELS + "mixtral")
    idle = experts * (c["num_local_experts"] - c["num_experts_per_tok"]) // c["num_local_experts"]
    assert found["active_parameters"] == found["parameters"] - idle - table + c["hidden_size"], found["active_parameters"]
    said = text(ok("inspect", "-m", MODELS + "mixtral"))
    assert "parameters    %.1f M in" % (found["parameters"] / 1e6) in said, said
    assert "a token takes %.1f M" % (found["active_parameters"] / 1e6) in said, said


def test_memory():
    c = config(MODELS + "mixtral")
    each = 2 * c["num_key_value_heads"] * (c["hidden_size"] // c["num_attention_heads"]) * c["num_hidden_layers"] * 2
    found = card(MODELS + "mixtral", "--ctx-size", 100, "--max-seqs", 3, "--block-size", 32)
    assert found["kv_token_bytes"] == each
    blocks = 1 + 3 * 4  # one for padding
    assert found["memory"] == {"ctx_size": 100, "max_seqs": 3, "weight_bytes": found["bytes"], "kv_bytes": blocks * 32 * each}
    # The longest context: whole blocks, never more than the model's.
    fits = card(MODELS + "mixtral", "--memory", "2M", "--max-seqs", 3)["fits"]
    assert fits == {"memory": 2 << 20, "max_seqs": 3, "ctx_size": (((2 << 20) - found["bytes"]) // (32 * each) - 1) // 3 * 32}, fits
    assert card(MODELS + "mixtral", "--memory", "1G")["fits"]["ctx_size"] == c["max_position_embeddings"]
    half = card(MODELS + "mixtral", "--kv-dtype", "q8_0")["kv_token_bytes"]
    assert each / 2 <= half <= 0.6 * each, half


def test_state_of_a_sequence():
    m = config(MODELS + "mamba2")
    inner, groups = m["num_heads"] * m["head_dim"], m["n_groups"] * m["state_size"]
    state = 4 * m["num_hidden_layers"] * (inner * m["state_size"] + (m["conv_kernel"] - 1) * (inner + 2 * groups))
    found = card(MODELS + "mamba2")
    assert found["state_bytes"] == state and found["kv_token_bytes"] == 0, found["state_bytes"]
    m = config(MODELS + "lfm2")
    convs = sum(t == "conv" for t in m["layer_types"])
    assert card(MODELS + "lfm2")["state_bytes"] == 4 * convs * (m["conv_L_cache"] - 1) * m["hidden_size"]


def changed(d, model, change):
    shutil.copy(MODELS + model + "/model.safetensors", d)
    c = config(MODELS + model)
    change(c)
    with open(d + "/config.json", "w") as f:
        json.dump(c, f)


def test_what_cannot_be_used():
    for change, why in ((lambda c: c.update(architectures=["RwkvForCausalLM"]), "RwkvForCausalLM"),
                        (lambda c: c.update(hidden_act="relu7"), "relu7"),
                        (lambda c: c["rope_scaling"].update(rope_type="spiral"), "spiral"),
                        (lambda c: c.update(num_hidden_layers=2), "model.layers.2."),
                        (lambda c: c.update(num_hidden_layers=4), "model.layers.3.")):
        with tempfile.TemporaryDirectory() as d:
            changed(d, "llama", change)
            found = card(d)
            assert not found["supported"] and why in found["problem"], (why, found.get("problem"))
            said = text(ok("inspect", "-m", d))
            assert ("cannot run" in said or "not supported" in said) and why in said, said
            r = lib.run("logits", "-m", d, "--ids", "1", "-o", os.devnull)
            assert r.returncode == 4 or r.returncode == 3, r.returncode
            assert why in text(r.stderr), text(r.stderr)


def test_scales_of_a_layout_that_is_not_known():
    """DeepSeek-V4's release has ".scale" beside bytes of e4m3: refused by that name, with and without its config's word."""
    with open("test/golden/families/deepseek_v4.json") as f:
        case = json.load(f)
    for said, code, why in ((None, 4, "wq_a.scale"),
                            ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, 3, "wq_a.weight")):
        with tempfile.TemporaryDirectory() as d:
            seeded.write_model(d + "/plain", case["tensors"], case["seed"])
            plain = lib.raw_tensors(d + "/plain")
            name, = (k for k in plain if k.endswith("layers.0.attn.wq_a.weight"))
            rows, cols = plain[name][1]
            blocks = [-(-rows // 128), -(-cols // 128)]
            out = {**plain, name: ("F8_E4M3", [rows, cols], b"\x38" * (rows * cols)),
                   name[: -len("weight")] + "scale": ("F8_E8M0", blocks, b"\x7f" * math.prod(blocks))}
            assert len(out) == len(plain) + 1
            lib.write_tensors(d + "/model.safetensors", out)
            with open(d + "/config.json", "w") as f:
                json.dump(dict(case["config"], **({"quantization_config": said} if said else {})), f)
            refused(code, "logits", "-m", d, "--ids", "1", "-o", os.devnull, says=why)


if __name__ == "__main__":
    lib.main(dict(globals()))
