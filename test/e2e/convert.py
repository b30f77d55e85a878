#!/usr/bin/env python3
"""convert: what it writes is read back with the numbers that it promises."""
import glob
import json
import os
import shutil
import struct
import tempfile

from support import lib, seeded
from support.lib import ok, refused, tensors, text

MODEL = "test/golden/models/qwen3"
IDS = ",".join(str(3 * i % 300) for i in range(24))
EXACT = ["--compute", "f32", "--kv-dtype", "f32", "--ids", IDS]


def logits(model, folder):
    out = folder + "/logits.safetensors"
    ok("logits", "-m", model, *EXACT, "-o", out)
    return tensors(out)["logits"][1]


def off(a, b):
    """Root mean square of the difference, relative to a."""
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a)) ** 0.5


def test_without_loss():
    for model in (MODEL, "test/golden/quant/gguf_llama_q8_0/model.gguf"):
        with tempfile.TemporaryDirectory() as d:
            ok("convert", "-m", model, "-o", d + "/new", "--skip-check")
            assert logits(model, d) == logits(d + "/new", d), model


def all_tensors(d):
    found = {}
    for path in glob.glob(d + "/*.safetensors"):
        found.update(lib.raw_tensors(path))
    return found


def test_stored_formats_stay():
    """A folder as stored: every tensor's bytes, of formats made of several too; what is of another modality is left out."""
    for model in ("quant/qwen3_fp8", "quant/qwen3_nvfp4_ct", "quant/gpt_oss_mxfp4", "models/qwen3_5"):
        model = "test/golden/" + model
        with tempfile.TemporaryDirectory() as d:
            ok("convert", "-m", model, "-o", d + "/new", "--skip-check")
            old = lib.raw_tensors(model + "/model.safetensors")
            assert all_tensors(d + "/new") == {k: v for k, v in old.items() if "visual" not in k}, model
            assert logits(model, d) == logits(d + "/new", d), model


def test_heads_for_further_tokens():
    for name in ("stored", "Q8_0"):
        with tempfile.TemporaryDirectory() as d:
            ok("convert", "-m", "test/golden/models/qwen3_5", "-o", d + "/new", "--quant", name, "--skip-check")
            assert any(k.startswith("mtp.layers.0.") for k in all_tensors(d + "/new"))
            plain, drafted = (ok("run", "-m", d + "/new", "--ids", IDS, "-n", 12, "--temperature", 0, "--ignore-eos", "--output",
                                 "ids", *more) for more in ((), ("--draft-model", "mtp")))
            assert plain == drafted, name


def test_quantised():
    for name, least, most in (("fp8", 0.01, 0.2), ("Q8_0", 0.0005, 0.02), ("Q4_0", 0.01, 0.3), ("MXFP4", 0.01, 0.5)):
        with tempfile.TemporaryDirectory() as d:
            said = text(ok("convert", "-m", MODEL, "-o", d + "/new", "--quant", name, "--skip-check"))
            assert "21 matrices quantised" in said, said
            got = off(logits(MODEL, d), logits(d + "/new", d))
            assert least < got < most, (name, got)


def test_gguf():
    q8 = "test/golden/quant/gguf_qwen3_q8_0/model.gguf"
    with tempfile.TemporaryDirectory() as d:
        want = logits(q8, d)
        ok("convert", "-m", q8, "-o", d + "/same.gguf", "--skip-check")
        with open(q8, "rb") as a, open(d + "/same.gguf", "rb") as b:
            assert len(a.read()) == len(b.read())
        assert logits(d + "/same.gguf", d) == want
        for name, least, most in (("Q6_K", 0.001, 0.1), ("Q4_K", 0.01, 0.4), ("Q4_0", 0.01, 0.5)):
            out = d + "/%s.gguf" % name
            ok("convert", "-m", q8, "-o", out, "--quant", name, "--skip-check")
            assert os.path.getsize(out) < os.path.getsize(q8)
            got = off(want, logits(out, d))
            assert least < got < most, (name, got)
        assert "no format for fp8" in refused(4, "convert", "-m", q8, "-o", d + "/x.gguf", "--quant", "fp8")
        assert "no such format" in refused(4, "convert", "-m", q8, "-o", d + "/x", "--quant", "Q4_K")
        assert sorted(os.listdir(d)) == ["Q4_0.gguf", "Q4_K.gguf", "Q6_K.gguf", "logits.safetensors", "same.gguf"], os.listdir(d)


def latent(model):
    with open(model + "/config.json") as f:
        return "kv_lora_rank" in json.load(f)


def as_gguf(model, d):
    """The same logits to the bit, and those of a folder made of that GGUF (true), or a refusal that names the class or what there is no key for (false)."""
    out = d + "/new.gguf"
    r = lib.run("convert", "-m", model, "-o", out, "--skip-check")
    if r.returncode:
        with open(model + "/config.json") as f:
            name = json.load(f)["architectures"][0]
        said = text(r.stderr)
        why = name in said or "cannot say all that config.json says" in said or "has no key for it" in said
        assert r.returncode == 4 and why and not os.path.exists(out), (model, said)
        return False
    want, got = logits(model, d), logits(out, d)
    assert want == got or (latent(model) and off(want, got) < 1e-5), model  # whose sums are in another order
    ok("convert", "-m", out, "-o", d + "/again", "--skip-check")
    assert logits(d + "/again", d) == want, model
    return True


def test_folders_as_gguf():
    same, none = [], []
    for name in ("gpt_oss", "minimax", "qwen2", "qwen3"):  # whose other configs say what GGUF has no key for
        model = "test/golden/models/" + name
        with tempfile.TemporaryDirectory() as d:
            (same if as_gguf(model, d) else none).append(model)
    for path in sorted(glob.glob("test/golden/families/*.json")):
        with open(path) as f:
            case = json.load(f)
        with tempfile.TemporaryDirectory() as d:
            seeded.write_folder(d, case)
            (same if as_gguf(d, d) else none).append(path)
    missing = [p for p in none if os.path.basename(p)[:-5] not in NO_GGUF]
    assert len(same) >= 35 and not missing, (len(same), missing)


# Configs that GGUF has no keys for: see variants() for others of their family.
NO_GGUF = ("deepseek_v4", "falcon_h1", "gpt_oss", "kimi_linear", "minimax", "qwen2", "qwen2_moe", "qwen3")


def family(name):
    with open("test/golden/families/%s.json" % name) as f:
        return json.load(f)


def resized(case, sizes, *parts):
    """Other lengths in the shapes of the tensors whose names have one of the parts."""
    for name, spec in case["tensors"].items():
        if any(p in name for p in parts):
            shape, rest = spec.split(" ", 1)
            case["tensors"][name] = "x".join(sizes.get(n, n) for n in shape.split("x")) + " " + rest


def swapped(name):
    """Of layer 0 the name in layer 1, and the other way round."""
    zero, one = "model.layers.0.", "model.layers.1."
    return name.replace(zero, one) if zero in name else name.replace(one, zero)


def variants():
    case = family("falcon_h1")
    for key, value in case["config"].items():
        if "multiplier" in key:
            case["config"][key] = [1.0] * len(value) if isinstance(value, list) else 1.0
    yield "falcon-h1", case
    case = family("kimi_linear")  # delta attention with as many heads as the other
    case["config"]["linear_attn_config"]["num_heads"] = 6
    delta = ["layers.%d.self_attn.%s" % (i, x) for i in (0, 2) for x in ("q_", "k_", "v_", "b_proj", "f_b", "g_b", "dt_", "A_", "o_proj")]
    resized(case, {"48": "144", "2": "6"}, *delta)
    yield "kimi-linear", case
    case = family("gemma4")  # whose embeddings for each layer have rows of their own number
    case["config"]["vocab_size_per_layer_input"] = 60
    resized(case, {"262144": "60"}, "embed_tokens_per_layer")
    yield "gemma4", case
    case = family("minimax")  # one factor for all residuals; the first layers the other way round, so that no interval says which attend
    for part in ("full_attn", "linear_attn", "mlp"):
        case["config"][part + "_alpha_factor"] = 1.7
        case["config"][part + "_beta_factor"] = 1.0
    case["config"]["layer_types"][:2] = case["config"]["layer_types"][1::-1]
    case["tensors"] = {swapped(k): v for k, v in case["tensors"].items()}
    yield "minimax-01", case
    case = family("deepseek_v4")  # at the rates that keys can say
    case["config"]["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    resized(case, {"3": "4", "16": "128"}, ".ape")
    yield "deepseek4", case
    for arch, name in (("gemma3n", "gemma3n"), ("gemma4-moe", "gemma4_moe"), ("glm-dsa", "glm_moe_dsa"), ("qwen35", "qwen3_5"),
                       ("qwen35moe", "qwen3_5_moe")):
        yield arch, family(name)


def test_variants_as_gguf():
    """And what is broken in such a file is told in one line that names it."""
    swa = ["key_length_swa", "shared_kv_layers"]
    shaped = {"falcon-h1": "blk.0.ssm_in.weight", "kimi-linear": "blk.1.attn_k_b.weight", "gemma3n": "altup_proj.weight",
              "gemma4": "blk.0.inp_gate.weight", "gemma4-moe": "blk.0.ffn_gate_up_exps.weight", "glm-dsa": "blk.0.attn_v_b.weight",
              "minimax-01": "blk.1.attn_qkv.weight", "deepseek4": "blk.1.attn_compressor_kv.weight",
              "qwen35": "blk.0.ssm_conv1d.weight", "qwen35moe": "blk.0.ssm_out.weight"}
    required = {"falcon-h1": ["ssm.inner_size", "ssm.group_count"], "kimi-linear": ["kda.head_dim", "head_count_kv", "kv_lora_rank"],
                "gemma3n": ["activation_sparsity_scale", "altup.num_inputs"], "gemma4": swa, "gemma4-moe": swa,
                "glm-dsa": ["indexer.top_k", "indexer.key_length"], "minimax-01": ["residual_scale", "expert_used_count"],
                "deepseek4": ["compress_ratios", "hyper_connection.count", "output_group_count"], "qwen35": ["ssm.time_step_rank", "ssm.state_size"],
                "qwen35moe": ["ssm.time_step_rank", "expert_count"]}
    for arch, case in variants():
        with tempfile.TemporaryDirectory() as d:
            seeded.write_folder(d, case)
            assert as_gguf(d, d), arch
            with open(d + "/new.gguf", "rb") as f:
                whole = f.read()
            broken = [(whole[: len(whole) * i // 5], "") for i in range(1, 5)]
            broken += [(whole.replace(k.encode(), k[:-1].encode() + b"?", 1), k.split(".")[-1]) for k in required[arch]]
            for k in required[arch]:  # a whole number where its type says a float
                at = whole.index(k.encode()) + len(k)
                if whole[at : at + 4] == b"\4\0\0\0":
                    broken.append((whole[:at] + b"\6" + whole[at + 1 :], k.split(".")[-1]))
            at = whole.index(shaped[arch].encode()) + len(shaped[arch]) + 4  # past the number of dimensions: a longer one
            broken.append((whole[:at] + struct.pack("<Q", struct.unpack("<Q", whole[at : at + 8])[0] + 32) + whole[at + 8 :], ""))
            for data, says in broken:
                with open(d + "/bad.gguf", "wb") as f:
                    f.write(data)
                assert len(data) < len(whole) or data != whole, (arch, says)
                r = lib.run("logits", "-m", d + "/bad.gguf", "--ids", "1,2", "-o", d + "/x")
                said = text(r.stderr)
                assert r.returncode in (3, 4) and said and "\n" not in said and says in said, (arch, says, said)


def reordered(rows, n_key):
    """Value heads of a key next to each other, to the first ones of all keys, the second ones, ..."""
    per = len(rows) // n_key
    return [rows[k * per + v] for v in range(per) for k in range(n_key)]


def test_value_heads_stand_tiled():
    """As llama.cpp has those of Qwen3.5: rows of projections, one number a head, columns of the output."""
    case = family("qwen3_5")
    case["config"]["linear_value_head_dim"] = 128
    resized(case, {"96": "512", "160": "576", "24": "128"}, "in_proj_qkv", "in_proj_z", "conv1d", "linear_attn.norm")
    for name in case["tensors"]:
        if "in_proj_z" in name or "in_proj_qkv" in name:
            case["tensors"][name] = case["tensors"][name].replace("x512", "x96")
        if "linear_attn.out_proj" in name:
            case["tensors"][name] = case["tensors"][name].replace("96x96", "96x512")
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, case)
        assert as_gguf(d, d)
        want = logits(d, d)
        old = lib.raw_tensors(d + "/model.safetensors")
        with open(d + "/new.gguf", "rb") as f:
            raw = f.read()
        stem = "model.layers.0.linear_attn."
        z, out, b = (old[stem + x][2] for x in ("in_proj_z.weight", "out_proj.weight", "in_proj_b.weight"))
        heads = [z[i : i + 128 * 192] for i in range(0, len(z), 128 * 192)]
        assert b"".join(reordered(heads, 2)) in raw and z not in raw
        assert b"".join(reordered([b[i : i + 192] for i in range(0, len(b), 192)], 2)) in raw
        rows = [out[i : i + 1024] for i in range(0, len(out), 1024)]
        cols = [reordered([r[i : i + 256] for i in range(0, 1024, 256)], 2) for r in rows]
        assert b"".join(b"".join(r) for r in cols) in raw
        for name, most in (("Q8_0", 0.05), ("Q4_K", 0.4), ("Q6_K", 0.1)):  # blocks of a head, and of two
            ok("convert", "-m", d, "-o", d + "/%s.gguf" % name, "--quant", name, "--skip-check")
            assert off(want, logits(d + "/%s.gguf" % name, d)) < most, name


def test_heads_for_further_tokens_as_gguf():
    with tempfile.TemporaryDirectory() as d:
        ok("convert", "-m", "test/golden/models/qwen3_5", "-o", d + "/new.gguf", "--skip-check")
        args = ["--ids", IDS, "-n", 12, "--temperature", 0, "--ignore-eos", "--output", "ids", "--compute", "f32", "--draft-model", "mtp"]
        want = ok("run", "-m", "test/golden/models/qwen3_5", *args)
        assert ok("run", "-m", d + "/new.gguf", *args) == want
        ok("convert", "-m", d + "/new.gguf", "-o", d + "/again", "--skip-check")
        assert ok("run", "-m", d + "/again", *args) == want


def narrowed(values):
    """bf16 as bytes, of numbers that it holds."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def widened(raw):
    return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]


def test_latents_stand_in_two():
    """As llama.cpp asks for: of every head the keys' part turned, and the values' part."""
    case = family("glm_moe_dsa")
    resized(case, {"24": "32"}, "kv_b_proj", "kv_a_layernorm")
    resized(case, {"40": "48"}, "kv_a_proj")
    case["config"]["kv_lora_rank"] = 32
    n_head, n_key, n_val, rank = (case["config"][k] for k in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, case)
        ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
        both = widened(lib.raw_tensors(d + "/model.safetensors")["model.layers.0.self_attn.kv_b_proj.weight"][2])
        rows = [both[i : i + rank] for i in range(0, len(both), rank)]
        heads = [rows[h * (n_key + n_val) :][: n_key + n_val] for h in range(n_head)]
        with open(d + "/new.gguf", "rb") as f:
            raw = f.read()
        assert b"attn_kv_b." not in raw and b"key_length_mla" in raw
        assert b"".join(narrowed(col) for h in heads for col in zip(*h[:n_key])) in raw
        assert b"".join(narrowed(row) for h in heads for row in h[n_key:]) in raw
        for name in ("fp8", "MXFP4"):  # of rows that are put together
            for model, out in ((d, "/straight-"), (d + "/new.gguf", "/around-")):
                ok("convert", "-m", model, "-o", d + out + name, "--quant", name, "--skip-check")
            found = [{k: v for k, v in all_tensors(d + way + name).items() if "kv_b_proj" in k} for way in ("/straight-", "/around-")]
            assert len(found[0]) == 6 and found[0] == found[1], name  # codes and scales of three layers
        case["config"]["v_head_dim"] += 1
        with open(d + "/config.json", "w") as f:
            json.dump(case["config"], f)
        assert "kv_b_proj" in refused(3, "convert", "-m", d, "-o", d + "/bad.gguf", "--skip-check")


def test_what_a_gguf_changed():
    """Norms that it adds 1 to become what they were; numbers that would not are refused as stored."""
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, family("gemma3"))
        ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
        ok("convert", "-m", d + "/new.gguf", "-o", d + "/again", "--skip-check")
        name = "model.layers.1.input_layernorm.weight"
        old = widened(lib.raw_tensors(d + "/model.safetensors")[name][2])
        assert all_tensors(d + "/again")[name][2] == struct.pack("<%df" % len(old), *old)
        with open(d + "/new.gguf", "rb") as f:
            raw = f.read()
        there = struct.pack("<%df" % len(old), *(1 + x for x in old))
        assert raw.count(there) == 1
        with open(d + "/odd.gguf", "wb") as f:
            f.write(raw.replace(there, struct.pack("<f", 0.1) + there[4:]))
        said = refused(4, "convert", "-m", d + "/odd.gguf", "-o", d + "/odd", "--skip-check")
        assert "blk.1.attn_norm.weight" in said and "without loss" in said, said
        ok("convert", "-m", d + "/odd.gguf", "-o", d + "/odd", "--skip-check", "--quant", "fp8")


def test_names_that_others_read():
    """llama.cpp's own for single architectures: Falcon-H1's norm has no suffix, Qwen3.5's sections fill what turns."""
    falcon = dict(variants())["falcon-h1"]
    for case, name in ((falcon, None), (family("qwen3_5"), b"rope.dimension_sections")):
        with tempfile.TemporaryDirectory() as d:
            seeded.write_folder(d, case)
            ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
            with open(d + "/new.gguf", "rb") as f:
                raw = f.read()
            if name:
                at = raw.index(name) + len(name) + 16  # past the types and the count
                turns = case["config"]["head_dim"] * case["config"]["rope_parameters"]["partial_rotary_factor"]
                assert sum(struct.unpack("<4i", raw[at : at + 16])) == turns / 2
            else:
                assert b"blk.0.ffn_norm" in raw and b"blk.0.ffn_norm.weight" not in raw


def test_folder_as_quantised_gguf():
    for name, least, most in (("Q8_0", 0.0005, 0.02), ("Q4_0", 0.01, 0.4), ("MXFP4", 0.01, 0.6)):
        with tempfile.TemporaryDirectory() as d:
            said = text(ok("convert", "-m", MODEL, "-o", d + "/x.gguf", "--quant", name, "--skip-check"))
            assert " 0 matrices" not in said, said
            got = off(logits(MODEL, d), logits(d + "/x.gguf", d))
            assert least < got < most, (name, got)


def folder(d, tokenizer, config=None, template=None):
    """A model whose embedding has a row for every token of that tokenizer, and some more."""
    with open("test/golden/families/llama.json") as f:
        case = json.load(f)
    model = tokenizer["model"]
    ids = list(model["vocab"].values()) if isinstance(model["vocab"], dict) else range(len(model["vocab"]))
    rows = max([*ids, *(t["id"] for t in tokenizer["added_tokens"])]) + 9
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        case["tensors"][name] = "%dx%s" % (rows, case["tensors"][name].split("x")[1])
    case["config"].update(vocab_size=rows, eos_token_id=[2, 5])
    seeded.write_model(d + "/model.safetensors", case["tensors"], 1)
    for name, what in (("config.json", case["config"]), ("tokenizer.json", tokenizer), ("tokenizer_config.json", config or {})):
        with open("%s/%s" % (d, name), "w") as f:
            json.dump(what, f)
    if template:
        with open(d + "/chat_template.jinja", "w") as f:
            f.write(template)


def golden_tokenizer(name):
    found = []
    for file in ("tokenizer.json", "tokenizer_config.json", "golden.json"):
        with open("test/golden/tokenizers/%s/%s" % (name, file)) as f:
            found.append(json.load(f))
    return found


def same_tokens(d, cases):
    """The folder's tokens, the GGUF's, and those of a folder made of that one, of all cases' texts and of them one after the other."""
    texts = [c["text"].encode("utf-8", "surrogatepass") for c in cases]
    ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
    said = text(lib.run("convert", "-m", d + "/new.gguf", "-o", d + "/back", "--skip-check").stderr)
    assert said == "" and os.path.exists(d + "/back/tokenizer.json"), said
    for body, flags in ((b"\n|".join(texts), ("--special", "--plain")), (texts[-1], ("--special",))):
        for more in flags:
            want, *got = (ok("tokenize", "-m", m, "--json", more, stdin=body) for m in (d, d + "/new.gguf", d + "/back"))
            assert got == [want, want], (body[:40], more)


def test_tokenizers():
    told = {}
    for name in ("bytelevel_deepseek", "bytelevel_gpt4", "bytelevel_o200k", "bytelevel_qwen", "bytelevel_qwen35"):
        with tempfile.TemporaryDirectory() as d:
            tokenizer, config, golden = golden_tokenizer(name)
            folder(d, tokenizer, config, "{{ messages[0].content }} \u00e9 {{ eos_token }}")
            same_tokens(d, golden["cases"])
            with open(d + "/m.json", "w") as f:
                json.dump([{"role": "user", "content": "Hi"}], f)
            told[name] = [text(ok("template", "-m", m, "--messages", d + "/m.json")) for m in (d, d + "/new.gguf", d + "/back")]
            assert len(set(told[name])) == 1 and "Hi \u00e9" in told[name][0], told


def split_everywhere(tokenizer):
    """Merges as sentencepiece has them: every way to cut a token, tokens in the order in which they are first made."""
    vocab, merges = tokenizer["model"]["vocab"], []
    for a, b in [m.split(" ") if isinstance(m, str) else m for m in tokenizer["model"]["merges"]]:
        made = a + b
        merges += [[made[:i], made[i:]] for i in range(1, len(made)) if made[:i] in vocab and made[i:] in vocab]
    tokenizer["model"]["merges"] = [list(m) for m in dict.fromkeys(map(tuple, merges))]


def test_sentencepiece():
    for name in ("spm_bpe_llama2", "spm_bpe_gemma"):
        with tempfile.TemporaryDirectory() as d:
            tokenizer, config, golden = golden_tokenizer(name)
            folder(d, tokenizer, config)
            assert "--no-tokenizer" in refused(4, "convert", "-m", d, "-o", d + "/new.gguf"), name
            split_everywhere(tokenizer)
            folder(d, tokenizer, config)
            same_tokens(d, golden["cases"])


def test_unigram():
    """What sentencepiece itself does to a text can be said in a GGUF; other steps cannot, as the golden tokenizer's."""
    trim = [{"type": "Replace", "pattern": {"Regex": what}, "content": to} for what, to in (("\\A +|[ \u2581]+\\z", ""), (" {2,}", " "))]
    for norm, scheme in ((None, "never"), ({"type": "Sequence", "normalizers": trim}, "always")):
        with tempfile.TemporaryDirectory() as d:
            tokenizer, config, golden = golden_tokenizer("unigram")
            tokenizer["normalizer"] = norm
            for part in ("pre_tokenizer", "decoder"):
                tokenizer[part].update(prepend_scheme=scheme, split=False)
            folder(d, tokenizer, config)
            same_tokens(d, golden["cases"])


def test_word_pieces():
    """As BERT has them: a GGUF marks where words begin, a folder where they go on."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", ".", ",", "cafe", "the", "##s", "a", "##a", "\u4e2d", "[", "]"]
    special = [{"id": i, "content": w, "special": True} for i, w in enumerate(words[:4])]
    template = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    tokenizer = {"added_tokens": special, "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
                 "decoder": {"type": "WordPiece", "prefix": "##"},
                 "post_processor": {"type": "TemplateProcessing", "single": template,
                                    "special_tokens": {w: {"id": w, "ids": [i], "tokens": [w]} for i, w in enumerate(words[:4])}},
                 "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {w: i for i, w in enumerate(words)}}}
    with tempfile.TemporaryDirectory() as d:
        folder(d, tokenizer, {"pad_token": "[PAD]"})
        same_tokens(d, [{"text": "UnaffAble, caf\u00e9s. a\u4e2d [CLS] aa unx thes"}, {"text": "the unaffable [SEP]"}])
        with open(d + "/back/tokenizer.json") as f:
            assert json.load(f)["model"]["vocab"] == tokenizer["model"]["vocab"]
    with tempfile.TemporaryDirectory() as d:  # of words as they are written GGUF has no kind
        tokenizer["normalizer"]["lowercase"] = False
        folder(d, tokenizer)
        assert "--no-tokenizer" in refused(4, "convert", "-m", d, "-o", d + "/new.gguf")


def test_tokenizer_that_stays():
    """A tokenizer that no folder can hold is left behind, and it is said."""
    with tempfile.TemporaryDirectory() as d:
        tokenizer, config, _ = golden_tokenizer("bytelevel_qwen")
        folder(d, tokenizer, config)
        ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
        with open(d + "/new.gguf", "rb") as f:
            whole = f.read()
        with open(d + "/new.gguf", "wb") as f:
            f.write(whole.replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.pro", 1))
        said = text(lib.run("convert", "-m", d + "/new.gguf", "-o", d + "/back", "--skip-check").stderr)
        assert "the tokenizer stays in" in said and "tokenizer.ggml.pre: missing" in said, said
        assert not os.path.exists(d + "/back/tokenizer.json")
        ok("convert", "-m", d, "-o", d + "/bare", "--skip-check", "--no-tokenizer")
        assert not os.path.exists(d + "/bare/tokenizer.json")


def test_tokenizers_without_a_name():
    for name in ("bytelevel_llama3", "unigram"):  # two tokens of one id; a kind that is written by nobody
        with tempfile.TemporaryDirectory() as d:
            tokenizer, config, _ = golden_tokenizer(name)
            folder(d, tokenizer, config)
            assert "--no-tokenizer" in refused(4, "convert", "-m", d, "-o", d + "/new.gguf"), name
            ok("convert", "-m", d, "-o", d + "/new.gguf", "--skip-check", "--no-tokenizer")
            refused(4, "tokenize", "-m", d + "/new.gguf", says="no tokenizer", stdin=b"x")
            with open(d + "/new.gguf", "rb") as f:  # a string of 4 characters, which other readers ask for
                assert b"tokenizer.ggml.model\x08\0\0\0\4\0\0\0\0\0\0\0none" in f.read(1 << 20), name


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which column each of a word's nibbles is


def packed(rows, order=range(8)):
    """Rows of 4-bit codes as words, eight columns each."""
    return b"".join(struct.pack("<I", sum(r[at + o] << 4 * i for i, o in enumerate(order))) for r in rows for at in range(0, len(r), 8))


def in_groups(method, w, group):
    """A matrix [out, in] in 4 bits as GPTQ or AWQ have it: codes around 8, a scale for each column and group of its inputs."""
    n, k = len(w), len(w[0])
    of = [(7 * i % k if method == "gptq" else i) // group for i in range(k)]  # GPTQ's in the order of their activations
    scale = [[max(abs(w[j][i]) for i in range(k) if of[i] == g) / 7 + 1e-6 for j in range(n)] for g in range(k // group)]
    code = [[min(15, max(0, round(w[j][i] / scale[of[i]][j]) + 8)) for j in range(n)] for i in range(k)]
    made = {"scales": ("F16", [k // group, n], b"".join(struct.pack("<e", x) for row in scale for x in row))}
    if method == "gptq":  # eight inputs a word; a zero point less one
        made["qweight"] = ("I32", [k // 8, n], packed([[code[at + i][j] for i in range(8)] for at in range(0, k, 8) for j in range(n)]))
        made["qzeros"] = ("I32", [k // group, n // 8], packed([[7] * n] * (k // group)))
        made["g_idx"] = ("I32", [k], struct.pack("<%di" % k, *of))
    else:
        made["qweight"] = ("I32", [k, n // 8], packed(code, AWQ_ORDER))
        made["qzeros"] = ("I32", [k // group, n // 8], packed([[8] * n] * (k // group)))
    return made


def write_quantised(d, method):
    found = {}
    for name, (dtype, shape, raw) in lib.raw_tensors(MODEL + "/model.safetensors").items():
        if not name.endswith("_proj.weight"):
            found[name] = (dtype, shape, raw)
            continue
        x = widened(raw)
        made = in_groups(method, [x[i : i + shape[1]] for i in range(0, len(x), shape[1])], 32)
        found.update({name[: -len("weight")] + k: v for k, v in made.items()})
    lib.write_tensors(d + "/model.safetensors", found)
    with open(MODEL + "/config.json") as f:
        config = json.load(f)
    more = {"sym": True, "desc_act": True} if method == "gptq" else {"zero_point": True, "version": "gemm"}
    config["quantization_config"] = dict(quant_method=method, bits=4, group_size=32, **more)
    with open(d + "/config.json", "w") as f:
        json.dump(config, f)
    return found


def test_awq_and_gptq():
    """Every tensor's bytes as stored; no GGUF as stored; other formats from what they stand for."""
    with tempfile.TemporaryDirectory() as d:
        plain = logits(MODEL, d)
    for method in ("awq", "gptq"):
        with tempfile.TemporaryDirectory() as d:
            stored = write_quantised(d, method)
            want = logits(d, d)
            assert off(plain, want) < 0.5, (method, off(plain, want))
            ok("convert", "-m", d, "-o", d + "/new", "--skip-check")
            assert all_tensors(d + "/new") == stored and logits(d + "/new", d) == want, method
            said = refused(4, "convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
            assert "_proj" in said and "--quant says what to make of it" in said, said
            for out, name, most in (("/8.gguf", "Q8_0", 0.05), ("/fp8", "fp8", 0.2)):
                ok("convert", "-m", d, "-o", d + out, "--quant", name, "--skip-check")
                assert off(want, logits(d + out, d)) < most, (method, name)


def test_config_that_gguf_cannot_say():
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(MODEL + "/model.safetensors", d)
        with open(MODEL + "/config.json") as f:
            config = json.load(f)
        config.update(use_sliding_window=True, sliding_window=8, max_window_layers=0)
        with open(d + "/config.json", "w") as f:
            json.dump(config, f)
        said = refused(4, "convert", "-m", d, "-o", d + "/new.gguf")
        assert "cannot say all that config.json says" in said and "window 8" in said, said
        assert not os.path.exists(d + "/new.gguf")


def test_factors_that_gguf_cannot_say():
    """MiniMax-01's of residuals: one for all of them, and none of what is added."""
    case = dict(variants())["minimax-01"]
    with tempfile.TemporaryDirectory() as d:
        seeded.write_folder(d, case)
        for part in ("full_attn_alpha", "linear_attn_alpha", "mlp_alpha", "full_attn_beta", "linear_attn_beta", "mlp_beta"):
            key = part + "_factor"
            with open(d + "/config.json", "w") as f:
                json.dump(dict(case["config"], **{key: case["config"][key] + 0.5}), f)
            said = refused(4, "convert", "-m", d, "-o", d + "/new.gguf", "--skip-check")
            assert "cannot say all that config.json says" in said and not os.path.exists(d + "/new.gguf"), (key, said)


def test_refused():
    with tempfile.TemporaryDirectory() as d:
        assert "already there" in refused(2, "convert", "-m", MODEL, "-o", d)
        said = refused(4, "convert", "-m", "test/golden/quant/gguf_qwen3_q4_k/model.gguf", "-o", d + "/new")
        assert "has no equal in safetensors" in said, said
        assert os.listdir(d) == [], os.listdir(d)


if __name__ == "__main__":
    lib.main(dict(globals()))
