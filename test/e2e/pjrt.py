#!/usr/bin/env python3
"""The pjrt backend on XLA's CPU plugins: our declarations against the official header, refusals, the models against their
references, three versions of the plugin, the compile cache, and the server with static shapes against the cpu backend."""
import array
import concurrent.futures
import glob
import json
import math
import os
import random
import re
import subprocess
import tempfile

from golden import EXACT, SEQUENCES, model_of, tolerance
from support import lib, plugins, server, tiny
from support.lib import ok, refused, tensors, text

SMALL = ["--ctx-size", 256, "--max-batched-tokens", 64]  # few programs: three of steps
HOME = os.path.abspath("build/pjrt/home")
ENV = {"SYSTOLE_HOME": HOME}
CC = os.environ.get("CC", "cc")


def backend(package=plugins.CPU):
    return ["--backend", "pjrt:" + plugins.file(package)]


def logits(case, ids, where, last=0, more=EXACT, small=SMALL):
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        args = ["logits", "-m", model_of(case), *more, *small, "--ids", ",".join(map(str, ids)), "-o", out.name] + where
        args += ["--last", last] if last else []
        ok(*args, env=ENV, timeout=240)
        return tensors(out.name)["logits"]


def worst(a, b):
    return max(abs(x - y) if x == x else 1e9 for x, y in zip(a, b))


# ---- the declarations ---------------------------------------------------------------------------------------------


def test_declarations():
    """Every struct and slot of src/backend/pjrt/api.h lies where the official header has it."""
    header = plugins.file(plugins.HEADER)
    ours = open("src/backend/pjrt/api.h").read()
    c = ['#include "%s"' % header, '#include "backend/pjrt/api.h"', "#define SAME(a, b) _Static_assert((a) == (b), #a)"]
    structs = re.findall(r"struct pj_(\w+) \{\n    PJ_HEAD;\n(.*?)^\};", ours, re.S | re.M)
    for name, body in structs:
        official = "PJRT_" + name
        c.append("SAME(offsetof(struct pj_%s, struct_size), offsetof(%s, struct_size));" % (name, official))
        for field in re.findall(r"(\w+);", re.sub(r"\(\*(\w+)\)\([^)]*\);", r"\1;", re.sub(r"/\*.*?\*/|union \{|\};", "", body))):
            c.append("SAME(offsetof(struct pj_%s, %s), offsetof(%s, %s));" % (name, field, official, field))
            c.append("SAME(sizeof(((struct pj_%s *)0)->%s), sizeof(((%s *)0)->%s));" % (name, field, official, field))
    slots = re.findall(r"X\((\w+), (\d+)\)", ours)
    for name, slot in slots:
        c.append("SAME(offsetof(PJRT_Api, PJRT_%s), offsetof(struct pj_api, call) + 8 * PJ_%s);" % (name, name))
    c.append("SAME(offsetof(PJRT_Api, pjrt_api_version.minor_version), offsetof(struct pj_api, minor_version));")
    for name, value in re.findall(r"PJ_TYPE_(\w+) = (\d+)", ours):
        c.append("SAME(PJRT_Buffer_Type_%s, %s);" % (name, value))
    for name in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"):
        c.append("SAME(PJRT_Error_Code_%s, PJ_%s);" % (name, name))
    assert len(structs) > 30 and len(slots) > 30 and len(c) > 200, (len(structs), len(slots), len(c))
    with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
        f.write("\n".join(c) + "\n")
        f.flush()
        r = subprocess.run([CC, "-std=gnu17", "-Isrc", "-fsyntax-only", f.name], capture_output=True)
        assert r.returncode == 0, text(r.stderr)[:1500]


# ---- refusals -----------------------------------------------------------------------------------------------------

PLUGIN = """
#include <stdio.h>
#include <stdlib.h>
#include "backend/pjrt/api.h"
static void *none(void *a) { (void)a; return NULL; }
static void *message(void *a) { struct pj_Error_Message_Args *m = a; m->message = "no chip here\\nmore"; m->message_size = 17; return NULL; }
static void *code(void *a) { struct pj_Error_GetCode_Args *c = a; c->code = CODE; return NULL; }
static void *create(void *a) { return a; }
static void *die(void *a) { (void)a; fputs("my last words\\n", stderr); abort(); }
static struct { struct pj_api head; pj_fn fn[128]; } api;
const void *GetPjrtApi(void);
const void *GetPjrtApi(void)
{
    api.head.struct_size = SIZE;
    api.head.major_version = MAJOR;
    api.head.minor_version = MINOR;
    for (int i = 0; i < 128; i++) api.fn[i] = none;
    api.fn[PJ_Error_Message] = message;
    api.fn[PJ_Error_GetCode] = code;
    api.fn[PJ_Client_Create] = create;
    api.fn[PJ_TopologyDescription_Create] = DIES ? die : none;
    return &api;
}
"""


def make_plugin(folder, name, major=0, minor=115, size=1000, code=13, dies=False):
    path = os.path.join(folder, name + ".so")
    flags = ["-DMAJOR=%d" % major, "-DMINOR=%d" % minor, "-DSIZE=%d" % size, "-DCODE=%d" % code, "-DDIES=%d" % dies]
    subprocess.run([CC, "-std=gnu17", "-Isrc", "-shared", "-fPIC", "-x", "c", "-", "-o", path] + flags,
                   input=PLUGIN.encode(), check=True, capture_output=True)
    return path


def test_refusals():
    with tempfile.TemporaryDirectory() as d:
        model = tiny.make(d + "/tiny", tokenizer=False)
        with open(d + "/text.so", "w") as f:
            f.write("no library")
        with open(d + "/empty.c", "w") as f:
            f.write("int nothing;")
        subprocess.run([CC, "-shared", "-fPIC", d + "/empty.c", "-o", d + "/empty.so"], check=True)
        cases = [
            (4, d + "/missing.so", ("missing.so", "no such file")),
            (4, d, ("no such file",)),
            (4, d + "/text.so", ("text.so", "no shared library")),
            (4, d + "/empty.so", ("empty.so", "no PJRT plugin", "GetPjrtApi")),
            (4, make_plugin(d, "new", major=1, minor=2), ("too new", "1.2", "0.x")),
            (4, make_plugin(d, "old", minor=57), ("too old", "0.57", "0.58")),
            (4, make_plugin(d, "short", size=300), ("too old", "300 bytes")),
            (4, make_plugin(d, "none", size=8), ("no table of functions",)),
            (4, make_plugin(d, "nochip"), ("opening the device", "no chip here")),
            (5, make_plugin(d, "full", code=8), ("opening the device", "no chip here")),
        ]
        for status, path, says in cases:
            refused(status, "run", "-m", model, "--ids", "1", "-n", 1, "--backend", "pjrt:" + path, says=says)
        run = ["run", "-m", model, "--ids", "1", "-n", 1]
        refused(2, *run, "--backend", "pjrt", says="pjrt:/path/of/plugin.so")
        refused(2, *run, "--backend", "pjrt:" + d + "/nochip.so", "--threads", 2, says=("--threads", "PJRT_NPROC"))
        refused(4, *run, "--backend", "pjrt:" + d + "/nochip.so", "--compute", "int8", says="--compute int8")


# ---- numbers ------------------------------------------------------------------------------------------------------


def check_case(case, names):
    golden, limit, where = tensors(case + "/golden.safetensors"), tolerance(case), backend()
    for name, last in names:
        shape, want = golden[name + (".logits_last8" if last else ".logits")]
        got_shape, got = logits(case, golden[name + ".ids"][1], where, last)
        assert got_shape == shape, (case, got_shape, shape)
        assert worst(got, want) <= limit, "%s %s: differs by %.2e, allowed %.0e" % (case, name, worst(got, want), limit)
    out = ok("run", "-m", model_of(case), *EXACT, *SMALL, "--ids", ",".join(map(str, golden["prompt.ids"][1])), "-n", 24, "--temperature",
             0, "--ignore-eos", "--output", "ids", *where, env=ENV, timeout=240)
    assert [int(x) for x in text(out).split(",")] == list(golden["greedy.ids"][1]), case


# These have few ops; pjrt_models.py has the others.
DENSE = ("llama", "qwen3", "gemma3", "smollm3")


def test_models():
    for name in DENSE:
        check_case("test/golden/models/" + name, SEQUENCES)


def test_quantised():
    """A format of each kind of code: 4 bits with and without a minimum, 6 and 8 bits."""
    for name in ("gguf_llama_q4_0", "gguf_llama_q4_k", "gguf_llama_q6_k", "gguf_qwen3_q8_0"):
        check_case("test/golden/quant/" + name, SEQUENCES[2:3])


def test_versions():
    """The same text and structs on plugins of three versions."""
    case = "test/golden/models/llama"
    golden = tensors(case + "/golden.safetensors")
    for package in (plugins.CPU_MIDDLE, plugins.CPU_OLDEST):
        got = logits(case, golden["s33.ids"][1], backend(package))[1]
        assert worst(got, golden["s33.logits"][1]) <= tolerance(case), package


def test_bf16():
    """bf16 products and KV cache stay near the reference, and are really rounded."""
    case = "test/golden/models/llama"
    golden = tensors(case + "/golden.safetensors")
    got = logits(case, golden["s33.ids"][1], backend(), more=["--compute", "bf16", "--kv-dtype", "bf16"])[1]
    d = worst(got, golden["s33.logits"][1])
    assert 1e-3 < d < 0.25, d


def test_accumulate():
    """Attention's scores and sums in bf16: near the reference, and really rounded. The cpu backend has no such thing."""
    case, flag = "test/golden/models/llama", ["--attention-accumulate", "bf16"]
    golden = tensors(case + "/golden.safetensors")
    got = logits(case, golden["s33.ids"][1], backend(), more=EXACT + flag)[1]
    d = worst(got, golden["s33.logits"][1])
    assert 1e-3 < d < 0.25, d
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, *flag, says="--attention-accumulate bf16")


MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 32,
       "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
       "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
       "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
       "tie_word_embeddings": False, "attention_bias": False}


def random_model(folder, config, shapes):
    """A folder of random weights: norms and the like near 1, matrices small."""
    dice, head, data = random.Random(7), {}, array.array("f")
    for name, shape in shapes.items():
        n, at = math.prod(shape), 4 * len(data)
        data.extend(dice.gauss(1, 0.1) if n == max(shape) else dice.gauss(0, 0.25) for _ in range(n))
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * n]}
    os.makedirs(folder)
    head = json.dumps(head).encode()
    with open(folder + "/model.safetensors", "wb") as out:
        out.write(len(head).to_bytes(8, "little") + head + data.tobytes())
    with open(folder + "/config.json", "w") as out:
        json.dump(config, out)


def make_experts(folder):
    """A small mixture of experts."""
    d, f, kv = MOE["hidden_size"], MOE["moe_intermediate_size"], 32
    shapes = {"model.embed_tokens.weight": (128, d), "lm_head.weight": (128, d), "model.norm.weight": (d,)}
    for i in range(MOE["num_hidden_layers"]):
        p = "model.layers.%d." % i
        shapes.update({p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                       p + "self_attn.q_proj.weight": (64, d), p + "self_attn.k_proj.weight": (kv, d),
                       p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, 64),
                       p + "self_attn.q_norm.weight": (16,), p + "self_attn.k_norm.weight": (16,), p + "mlp.gate.weight": (8, d)})
        for e in range(MOE["num_experts"]):
            x = p + "mlp.experts.%d." % e
            shapes.update({x + "gate_proj.weight": (f, d), x + "up_proj.weight": (f, d), x + "down_proj.weight": (d, f)})
    random_model(folder, MOE, shapes)


def test_experts():
    """Mixtures of experts as the cpu backend computes them, in steps of one token and of many, on one device and on two."""
    ids = [(11 * i) % 128 for i in range(40)]
    with tempfile.TemporaryDirectory() as d:
        make_experts(d + "/moe")
        want = logits(d + "/moe", ids, [])[1]
        assert worst(logits(d + "/moe", ids, backend())[1], want) < 1e-3
        assert worst(logits(d + "/moe", ids, backend() + ["--tp", 2])[1], want) < 1e-3
        run = ["run", "-m", d + "/moe", *EXACT, *SMALL, "--ids", "1,2,3,4,5", "-n", 12, "--ignore-eos", "--temperature", 0]
        assert ok(*run, *backend(), env=ENV, timeout=240) == ok(*run)


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


def test_sharding_refusals():
    run = ["run", "-m", "test/golden/models/llama", "--ids", "1", "-n", 1]
    refused(4, *run, "--dp-attention", 2, says="2 devices")
    refused(2, *run, *backend(), "--ep", 3, "--tp", 2, says=("--ep 3", "--tp"))
    refused(2, *run, *backend(), "--afd", "4x4", says=("--afd", "4+4", "4x4"))
    refused(2, *run, *backend(), "--afd", "4+4", "--tp", 2, says=("--afd", "--tp"))
    refused(2, *run, *backend(), "--afd", "40+40", says=("--afd", "80 devices", "64"))
    refused(4, *run, *backend(), "--pp", 2, says=("--pp 2", "3 layers"))
    refused(4, "run", "-m", "test/golden/models/falcon_h1", "--ids", "1", "-n", 1, *backend(), "--pp", 3, says="cannot be given to 3 stages")


# ---- ahead of time ------------------------------------------------------------------------------------------------

HYBRID = {  # the text of a Qwen3.5, sizes left out
    "model_type": "qwen3_5_text", "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "max_position_embeddings": 4096, "attn_output_gate": True,
    "dtype": "bfloat16", "mtp_num_hidden_layers": 0, "tie_word_embeddings": False, "eos_token_id": 2,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 10000000,
                        "partial_rotary_factor": 0.25}}
CARD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "hidden_act": "silu"}


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
        assert len(kept) == 5 and topology in page and "4 x 4" in page and page.count("<rect") >= 4, kept  # a step, four moves


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
            for target in ("v5e-8", "v6e-8", "v7-8") if os.environ.get("PJRT_EVERY") else (("v5e-8", "v6e-8", "v7-8")[i % 3],):
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
        assert {e: os.stat(d + "/" + e).st_mtime_ns for e in os.listdir(d)} == kept and len(kept) >= 6, kept


def test_kernels():
    """Attention kernels compile for three generations of TPU, with no TPU, and stand in programs where the compiler's
    estimates favour them; the KV cache is not copied."""
    libtpu = plugins.file(plugins.TPU)
    refused(2, "bench", "mosaic", "--plugin", libtpu, "--target", "v9-1", says="'v9-1'")
    card = dict(CARD, vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
                num_key_value_heads=2)
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/card.json", "w") as f:
            json.dump(card, f)
        for target, cache in (("v5e-1", "bf16"), ("v6e-1", "q8_0"), ("v7-2", "bf16")):
            r = json.loads(ok("compile", "--model-card", d + "/card.json", "--target", target, "--tp", 1, "--plugin", libtpu, "--ctx-size",
                              1024, "--max-seqs", 8, "--max-batched-tokens", 64, "--bucket", "8x8", "--kv-dtype", cache, "--json",
                              timeout=280))
            b = r["buckets"][0]
            for kind in ("attention_of_decode", "attention_of_prompts"):
                w = r[kind]
                assert w["kernel_s"] > 0 and w["plain_s"] > 0 and w["plain_because"] is None, (target, kind, w)
                assert w["kernel"] == (w["kernel_s"] < w["plain_s"]), (target, kind, w)
            assert b["hbm"]["temporaries"] < b["hbm"]["kv"] / 8, r
        # Experts of a mixture.
        with open(d + "/mixture.json", "w") as f:
            json.dump(dict(card, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=8,
                           num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True, decoder_sparse_step=1,
                           mlp_only_layers=[]), f)
        for target, weights in (("v6e-1", "bf16"), ("v7-2", "f8_e4m3")):
            r = json.loads(ok("compile", "--model-card", d + "/mixture.json", "--target", target, "--tp", 1, "--plugin", libtpu,
                              "--ctx-size", 512, "--max-seqs", 4, "--bucket", "4x4", "--weights", weights, "--json", timeout=280))
            w, b = r["experts"], r["buckets"][0]
            assert w["kernel_s"] > 0 and w["plain_s"] > 0 and w["plain_because"] is None, (target, weights, w)
            assert w["kernel"] == (w["kernel_s"] < w["plain_s"]), (target, weights, w)
            assert b["hbm"]["temporaries"] < b["hbm"]["weights"] / 8, (target, weights, r)
        # The gated delta rule: no copy of the states, which are most of the memory.
        with open(d + "/hybrid.json", "w") as f:
            text = dict(HYBRID, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=128, vocab_size=1024, linear_key_head_dim=128, linear_value_head_dim=128,
                        linear_num_key_heads=4, linear_num_value_heads=8, linear_conv_kernel_dim=4)
            json.dump(dict(text, architectures=["Qwen3_5ForCausalLM"]), f)
        r = json.loads(ok("compile", "--model-card", d + "/hybrid.json", "--target", "v7-2", "--tp", 2, "--plugin", libtpu, "--ctx-size", 512,
                          "--max-seqs", 8, "--max-batched-tokens", 64, "--bucket", "18x18", "--json", timeout=280))
        for kind in ("delta_of_decode", "delta_of_prompts"):
            w = r[kind]
            assert w["kernel_s"] > 0 and w["plain_s"] > 0 and w["plain_because"] is None, (kind, w)
            assert w["kernel"] == (w["kernel_s"] < w["plain_s"]), (kind, w)
        b = r["buckets"][0]
        assert r["delta_of_decode"]["kernel"] and b["hbm"]["temporaries"] < b["hbm"]["kv"] / 8, r
        # What no kernel has is told, and compiles as plain operations.
        for why, change, more in (("width", {"head_dim": 64}, []), ("type", {}, ["--kv-dtype", "f32"]), ("kept", {}, ["-o", d + "/p"]),
                                  ("plain", {}, ["--kernels", "plain"])):
            with open(d + "/other.json", "w") as f:
                json.dump(dict(card, **change), f)
            r = json.loads(ok("compile", "--model-card", d + "/other.json", "--target", "v5e-1", "--tp", 1, "--plugin", libtpu,
                              "--ctx-size", 512, "--max-seqs", 4, "--bucket", "4x4", "--json", *more, timeout=280))
            assert not r["attention_of_decode"]["kernel"] and r["attention_of_decode"]["kernel_s"] == 0 and why in r["attention_of_decode"]["plain_because"], r
        # As serving would, kept.
        r = json.loads(ok("compile", "--model-card", d + "/card.json", "--target", "v5e-1", "--tp", 1, "--plugin", libtpu, "--ctx-size", 512,
                          "--max-seqs", 4, "--bucket", "4x4", "--json", "--kernels", "mosaic", "-o", d + "/q", timeout=280))
        assert r["attention_of_decode"]["kernel"] and len(os.listdir(d + "/q")) > 0, r
    case = "test/golden/models/llama"
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, "--kernels", "mosaic", says="--kernels mosaic")
    refused(4, "run", "-m", case, "--ids", "1", "-n", 1, "--kernels", "mosaic", *SMALL, *backend(), says=("--kernels mosaic", "cpu"))
    refused(2, "compile", "-m", case, "--target", "cpu", "--plugin", plugins.file(plugins.CPU), "--kernels", "mosaic",
            says="--kernels mosaic")


def test_dispatch():
    """What lies around kernels, by plain operations, on XLA: rows are laid out for the kernel of experts, and its results put
    together again; a layer of the gated delta rule leaves the same by its kernel and without."""
    for name in ("pjrt_dispatch", "pjrt_delta_layer"):
        program = os.path.join(os.path.dirname(os.environ.get("SYSTOLE", "build/release/systole")), "test/unit", name)
        env = dict(os.environ, SYSTOLE_CPU_PLUGIN=plugins.file(plugins.CPU))
        r = subprocess.run([program], env=env, capture_output=True, text=True, timeout=200)
        assert r.returncode == 0 and "[  PASSED  ] 1 test(s)" in r.stdout + r.stderr, r.stdout + r.stderr


# ---- the cache of programs ----------------------------------------------------------------------------------------


def test_cache():
    """A second start compiles nothing; a damaged entry is made anew."""
    case, where = "test/golden/models/qwen2", backend()
    with tempfile.TemporaryDirectory() as home:
        def run():
            with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
                ok("logits", "-m", case, *EXACT, *SMALL, "--ids", "1,2,3", "-o", out.name, *where, env={"SYSTOLE_HOME": home}, timeout=240)
                return tensors(out.name)["logits"][1]

        first = run()
        entries = sorted(glob.glob(home + "/programs/*"))
        times = [os.stat(e).st_mtime_ns for e in entries]
        assert len(entries) > 6 and not [e for e in entries if not e.endswith(".program")], entries
        assert run() == first and [os.stat(e).st_mtime_ns for e in entries] == times
        for i, e in enumerate(entries):
            raw = bytearray(open(e, "rb").read())
            raw[-(1 + i)] ^= 1
            open(e, "wb").write(raw[: len(raw) - 100 * (i % 2)])
        assert run() == first
        assert sorted(glob.glob(home + "/programs/*")) == entries


# ---- the server ---------------------------------------------------------------------------------------------------

FLAGS = ["--compute", "f32", "--kv-dtype", "f32", "--max-seqs", 6, "--max-batched-tokens", 48, "--block-size", 8]


def ask(s, i, **more):
    shared = [3 + (7 * k) % 300 for k in range(40)]
    prompt = shared[: 9 * (i % 5)] + [5 + (31 * i + 11 * k) % 300 for k in range(1 + 13 * i % 60)]
    body = {"prompt": prompt, "max_tokens": 4 + i % 9, "ignore_eos": True, "temperature": 0, "return_token_ids": True, **more}
    return [c["token_ids"] for c in s.ok("/v1/completions", body, timeout=120)["choices"]]


def answers(s, asks):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda a: ask(s, a[0], **a[1]), asks))


ASKS = [(i, {"n": 3, "temperature": 0.8, "seed": i} if i % 4 == 1 else {"logprobs": 2} if i % 4 == 2 else {}) for i in range(24)]


def test_server():
    """Continuous batching, prefix caching, answers forked from one prompt: what the cpu backend answers, in programs that
    were all compiled before the first request."""
    with server.Server(*FLAGS, tokenizer=False) as s:
        want = answers(s, ASKS)
    with server.Server(*FLAGS, *backend(), tokenizer=False, env=ENV, patience=240) as s:
        assert answers(s, ASKS) == want
        m = s.idle()
        page = s.get("/metrics").body.decode()
    assert m["systole_compiles_total"] == 0, m
    assert m["vllm:prefix_cache_hits_total"] > 0, m
    steps = {tuple(map(int, x[:3])): int(x[3]) for x in
             re.findall(r'systole_bucket_steps_total\{.*tokens="(\d+)",sequences="(\d+)",blocks="(\d+)"\} (\d+)', page)}
    assert sum(steps.values()) == m["systole_steps_total"], (steps, m["systole_steps_total"])
    assert sum(n > 0 for n in steps.values()) >= 4, steps
    assert "systole_bucket_padding_tokens_total" in page


def test_groups():
    """Two groups of devices with sequences of their own: requests find a home, forks and prefix hits stay there, and answers are
    those of one device."""
    with server.Server(*FLAGS, tokenizer=False) as s:
        want = answers(s, ASKS)
    with server.Server(*FLAGS, *backend(), "--dp-attention", 2, tokenizer=False, env={"SYSTOLE_HOME": HOME}, patience=240) as s:
        assert answers(s, ASKS) == want
        m = s.idle()
    assert m["systole_compiles_total"] == 0 and m["vllm:prefix_cache_hits_total"] > 0, m


def test_shapes():
    """Buckets compile nothing once they are ready; a program for each shape compiles many, and nothing before."""
    out = ok("bench", "offline", "-m", "test/golden/models/llama", *backend(), "--shapes", "--batch", 2, "--num-prompts", 3, "--input-len",
             12, "--output-len", 4, "--max-batched-tokens", 16, "--compute", "f32", "--json", "-", timeout=240)
    r = json.loads(out)
    assert r["buckets"]["compiled_after"] == r["one"]["compiled_after"] == 0 < r["exact"]["compiled_after"], r
    assert r["one"]["compiled_before"] < r["buckets"]["compiled_before"] and r["exact"]["live_share"] == 1, r
    assert r["one"]["live_share"] < r["buckets"]["live_share"] < 1, r
    refused(4, "bench", "offline", "-m", "test/golden/models/llama", "--shapes", "--batch", 1, says="--shapes")


def test_swap():
    """Blocks of sequences that make room go to the host and come back."""
    flags = ["--max-seqs", 16, "--kv-memory", "1M", "--swap-memory", "8M"]
    asks = [(i, {"max_tokens": 110}) for i in range(16)]
    with server.Server(*FLAGS, *flags, tokenizer=False) as s:
        want = answers(s, asks)
    with server.Server(*FLAGS, *flags, *backend(), tokenizer=False, env=ENV, patience=240) as s:
        assert answers(s, asks) == want
        m = {k: v for k, v in s.idle().items() if k.startswith("systole_") and "bucket" not in k}
    assert m["systole_preemptions_total.swap"] > 0 and m["systole_compiles_total"] == 0, m


if __name__ == "__main__":
    lib.main(dict(globals()))
