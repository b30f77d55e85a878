"""What the tests of the pjrt backend share."""
import array
import concurrent.futures
import json
import math
import os
import random
import subprocess
import tempfile

from golden import EXACT, model_of, tolerance
from support import lib, plugins
from support.lib import ok, tensors, text

SMALL = ["--ctx-size", 256, "--max-batched-tokens", 64]  # few programs: three of steps
HOME = os.path.abspath("build/pjrt/home")
# Programs are run a few times only: what XLA compiles in a third of the time is soon enough.
ENV = {"SYSTOLE_HOME": HOME, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0")}
CC = os.environ.get("CC", "cc")
EVERY = bool(os.environ.get("PJRT_EVERY"))


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


def alike(case, relative=2e-4, how=()):
    """The plugin's logits are the cpu backend's."""
    ids = [(11 * i + i // 7) % 128 for i in range(40)]
    want, got = logits(case, ids, [])[1], logits(case, ids, backend() + list(how))[1]
    assert worst(got, want) <= relative * max(map(abs, want)), (case, how, worst(got, want), max(map(abs, want)))


def random_model(folder, config, shapes):
    """A folder of random weights: norms and the like near 1, matrices small."""
    dice, tensors = random.Random(7), {}
    for name, shape in shapes.items():
        n = math.prod(shape)
        data = array.array("f", (dice.gauss(1, 0.1) if n == max(shape) else dice.gauss(0, 0.25) for _ in range(n)))
        tensors[name] = ("F32", shape, data.tobytes())
    os.makedirs(folder)
    lib.write_tensors(folder + "/model.safetensors", tensors)
    with open(folder + "/config.json", "w") as out:
        json.dump(config, out)


MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 32,
       "intermediate_size": 48, "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
       "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
       "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
       "tie_word_embeddings": False, "attention_bias": False}


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


CARD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "hidden_act": "silu"}
HYBRID = {  # the text of a Qwen3.5, sizes left out
    "model_type": "qwen3_5_text", "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "max_position_embeddings": 4096, "attn_output_gate": True,
    "dtype": "bfloat16", "mtp_num_hidden_layers": 0, "tie_word_embeddings": False, "eos_token_id": 2,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 10000000,
                        "partial_rotary_factor": 0.25}}
FLAGS = ["--compute", "f32", "--kv-dtype", "f32", "--max-seqs", 6, "--max-batched-tokens", 48, "--block-size", 8]


def ask(s, i, **more):
    shared = [3 + (7 * k) % 300 for k in range(40)]
    prompt = shared[: 9 * (i % 5)] + [5 + (31 * i + 11 * k) % 300 for k in range(1 + 13 * i % 60)]
    body = {"prompt": prompt, "max_tokens": 4 + i % 9, "ignore_eos": True, "temperature": 0, "return_token_ids": True, **more}
    return [c["token_ids"] for c in s.ok("/v1/completions", body, timeout=120)["choices"]]


def answers(s, asks):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda a: ask(s, a[0], **a[1]), asks))


def unit(name, *args):
    """A program of test/unit that wants a plugin."""
    program = os.path.join(os.path.dirname(lib.PROGRAM), "test/unit", name)
    env = dict(os.environ, SYSTOLE_CPU_PLUGIN=plugins.file(plugins.CPU), XLA_FLAGS=ENV["XLA_FLAGS"])
    r = subprocess.run([program, *args], env=env, capture_output=True, text=True, timeout=200)
    assert r.returncode == 0 and "[  PASSED  ] 1 test(s)" in r.stdout + r.stderr, r.stdout + r.stderr
