#!/usr/bin/env python3
"""Breaks the structural features of the models one at a time and shows that a test notices.

  tools/mutate.py [NAME... | --places]

Each mutation edits one place of a copy of src/, builds it, and runs tests of test/e2e/families.py, or of another file there that
is named before a colon. Prints a line for each, then "N passed, N failed": passed when every test named fails.
--places only looks whether each still has its place."""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COPY = os.path.join(ROOT, "build/mutant")

# name: (file, what stands there, what it becomes, tests that must notice: families, or FILE:TEST)
M, B, C, F, T = "src/model/", "src/model/block/", "src/backend/cpu/", "src/checkpoint/", "src/text/"
MUTATIONS = {
    "rope turns the other way": ("src/graph/rope.c", "freq[i] = (float)(1.0 / pow(", "freq[i] = (float)(-1.0 / pow(", "llama mistral gpt_oss"),
    "rope's base": ("src/graph/rope.c", "pow(theta, 2.0 * i / d_rot)", "pow(1.02 * theta, 2.0 * i / d_rot)", "llama qwen3"),
    "partial rope turns all dims": (M + "model.c", 'd_rot = (int32_t)sy_jread_int_or(r, "rotary_dim", d_rot, 2, d_head)', "d_rot = d_head", "glm4 minimax_m2"),
    "rope pairs side by side": (M + "glm4.c", "m->rope.interleaved = true", "m->rope.interleaved = false", "glm4"),
    "llama3 bands not mixed": ("src/graph/rope.c", "wave > old / low ? 0 : (old / wave - low) / (high - low)", "wave > old / low ? 0 : 1", "llama"),
    "linear scaling omitted": (M + "model.c", "freq[i] = (float)(freq[i] / factor);\n    } else if", "freq[i] = (float)(freq[i] / (factor + 1));\n    } else if", "gemma3"),
    "YaRN's ramp not truncated": (M + "model.c", "if (y->truncate) {", "if (0 && y->truncate) {", "deepseek_v3"),
    "YaRN's mscale in the scores": (B + "mla.c", "sy_rope_score_scale(c) / sqrt", "1.0 / sqrt", "deepseek_v3 deepseek_v32"),
    "YaRN's attention factor": ("src/graph/rope.c", "0.1 * k * log(factor) + 1; }", "0.0 * k * log(factor) + 1; }", "gpt_oss"),
    "LongRoPE's long factors": (M + "phi3.c", "m->rope.inv_freq_long = far", "m->rope.inv_freq_long = far ? near : far", "phi3"),
    "proportional rope": (M + "model.c", "i = (int)(share * d_head / 2)", "i = (int)(share * d_head / 2) + 1", "gemma4"),
    "queries not tempered": (M + "ministral3.c", "m->temper.beta > 0 ? &", "m->temper.beta > 1e9f ? &", "ministral3"),
    "window off by one": (C + "attend_int.h", "pos - a->window + 1", "pos - a->window", "mistral gemma2 gpt_oss"),
    "chunks off by one": (C + "attend_int.h", "pos - pos % a->chunk", "pos - (pos + 1) % a->chunk", "llama4"),
    "every layer slides": (B + "layers.c", 'full[l] = type && !strcmp(type, "full_attention")', "full[l] = false", "gemma3 cohere2"),
    "no rope where there is none": (M + "smollm3.c", "m->roped[l] ? &m->rope : NULL", "&m->rope", "smollm3"),
    "biases of q, k, v": (M + "model.c", "sy_val qkv = sy_linear(g, x, w, b)", "(void)b; sy_val qkv = sy_linear(g, x, w, SY_NONE)", "qwen2 gpt_oss glm4"),
    "bias of o": (M + "model.c", "return sy_linear(g, a, wo, bo)", "(void)bo; return sy_linear(g, a, wo, SY_NONE)", "gpt_oss"),
    "norms of q and k": (M + "model.c", "if (o->qk_norm || o->qk_norm_wide) {", "if (o->qk_norm_wide) {", "qwen3"),
    "norms of q and k over all heads": (M + "olmo2.c", ".qk_norm_wide = true", ".qk_norm_wide = false", "olmo2"),
    "norm of (1 + w)": ("src/backend/backend.h", "return t->norm_plus_one ? x : x + 1", "return t->norm_plus_one ? x : x + 0", "gemma2 qwen3_next"),
    "mean not taken off": (C + "run.c", "y[i] = x[i] - mean;", "y[i] = x[i] - 0 * mean;", "cohere2"),
    "norm's eps": (B + "mla.c", "inner_eps = 1e-6f", "inner_eps = 1e-1f", "deepseek_v3"),
    "scores' scale": (M + "gemma2.c", "query_pre_attn_scalar", "query_pre_attn_scalar_", "gemma2"),
    "softcap of scores": (M + "gemma2.c", '"attn_logit_softcapping", 50', '"attn_logit_softcapping_", 9', "gemma2"),
    "softcap of logits": (M + "gemma2.c", '"final_logit_softcapping"', '"final_logit_softcapping_"', "gemma2"),
    "sinks": (M + "model.c", "sy_attend_sinks(g, q, k, v, kv, sinks, dim)", "((void)sinks, sy_attend(g, q, k, v, kv, dim))", "gpt_oss"),
    "embedding's scale": (M + "granite.c", '"embedding_multiplier"', '"embedding_multiplier_"', "granite"),
    "residual's scale": (M + "granite.c", '"residual_multiplier"', '"residual_multiplier_"', "granite"),
    "logits' scale": (M + "cohere2.c", "m->logit_scale = (float)", "m->logit_scale = 2 * (float)", "cohere2"),
    "tied embeddings": (M + "model.c", 'd->tied ? "model.embed_tokens.weight" : "lm_head.weight"', '!d->tied ? "model.embed_tokens.weight" : "lm_head.weight"', "qwen3 llama"),
    "gelu instead of silu": (M + "model.c", '{{"silu", SY_SILU}', '{{"silu", SY_GELU}', "llama"),
    "gate and up swapped": (M + "model.c", "sy_part(g, both, 0, d->d_ff), sy_part(g, both, d->d_ff, 2 * d->d_ff), fn);\n    sy_val wd", "sy_part(g, both, d->d_ff, 2 * d->d_ff), sy_part(g, both, 0, d->d_ff), fn);\n    sy_val wd", "llama"),
    "weights of experts not normed": (C + "moe.c", "weight[k] /= sum;", "weight[k] /= 1;", "mixtral deepseek_v3"),
    "softmax over the chosen": (C + "moe.c", "if (d->weighting == SY_WEIGHT_SOFTMAX)", "if (0)", "gpt_oss granitemoehybrid"),
    "bias of the choice": (C + "moe.c", "choice[i] = bias ? score[i] + bias[i]", "choice[i] = bias ? score[i]", "deepseek_v3 glm4_moe"),
    "weights with the bias": (C + "moe.c", "weight[k] = score[e];", "weight[k] = choice[e];", "deepseek_v3 minimax_m2"),
    "groups of experts": (C + "moe.c", "if (d->n_group > 1) keep_groups", "if (0) keep_groups", "deepseek_v32 glm4_moe"),
    "scale of the experts": (C + "moe.c", "weight[k] *= d->scale;", "weight[k] *= 1;", "glm4_moe"),
    "one more expert": (C + "moe.c", "for (int32_t k = 0; k < d->n_used; k++) {\n        int32_t e", "for (int32_t k = 0; k < d->n_used; k++) {\n        if (k == 1) (void)take_best(choice, taken, d->n_expert);\n        int32_t e", "mixtral"),
    "shared expert": (B + "moe.c", "return o->d_shared ? sy_add", "return o->d_shared > 1 << 20 ? sy_add", "qwen2_moe deepseek_v3"),
    "gate of the shared expert": (B + "moe.c", "if (!o->shared_gate) return y;", "return y;", "qwen2_moe"),
    "first layers dense": (M + "deepseek_v3.c", "m->dense[l] = l < first", "m->dense[l] = l < first - 1", "deepseek_v3"),
    "bounds of gate and up": (C + "moe.c", "glu->limit > 0 ? glu->limit : INFINITY", "INFINITY", "gpt_oss"),
    "up + 1": (M + "gpt_oss.c", ".up_add = 1", ".up_add = 0", "gpt_oss"),
    "expert's input weighed": (M + "llama4.c", "weigh_input = true", "weigh_input = false", "llama4"),
    "rotated part of latent queries": (B + "mla.c", "rope.first = n;", "rope.first = 0;", "deepseek_v3"),
    "indexer's rope": (B + "mla.c", "rope.interleaved = m->index_interleaved;", "rope.interleaved = !m->index_interleaved;", "deepseek_v32 glm_moe_dsa"),
    "indexer's relu": (C + "kernel/index.h", "dot[i] > 0 ? dot[i] : 0", "dot[i]", "deepseek_v32"),
    "indexer chooses one less": (B + "mla.c", ".n_top = m->index_top}", ".n_top = m->index_top - 1}", "deepseek_v32"),
    "per-layer embeddings": (B + "gemma.c", "sy_scale(g, sy_add(g, p, own), sqrtf(0.5f))", "((void)own, sy_scale(g, p, sqrtf(0.5f)))", "gemma3n gemma4"),
    "values' norm": (B + "gemma.c", "h->d, m->d.eps);\n    *k = head_norm", "h->d, m->d.eps + 1);\n    *k = head_norm", "gemma3n gemma4"),
    "shared keys": (B + "gemma.c", "m->owner[l] = from;", "m->owner[l] = from > 0 && l > from && m->full[from - 1] == m->full[l] ? from - 1 : from;", "gemma3n"),
    "sparse activation": (M + "gemma3n.c", "sy_sparsify(", "sy_scale(", "gemma3n"),
    "decay's sign": ("src/backend/backend.h", "neg_exp ? x : -expf(x)", "neg_exp ? x : -2 * expf(x)", "mamba2 qwen3_next falcon_h1"),
    "convolution's order": (C + "recur.c", "taps[i % n_tap * d + i / n_tap]", "taps[(n_tap - 1 - i % n_tap) * d + i / n_tap]", "mamba2 lfm2 qwen3_next"),
    "gate before the norm": (B + "mamba2.c", "if (m->norm != SY_MAMBA_NORM_FIRST) y =", "if (m->norm == SY_MAMBA_NORM_FIRST) y =", "mamba2"),
    "groups of the gated norm": (M + "nemotron_h.c", "x->n_norm_group = x->n_group", "x->n_norm_group = 1", "nemotron_h"),
    "output gate": (M + "qwen3_next.c", "2 * q_dim), o, SY_SIGMOID)", "2 * q_dim), o, SY_SILU)", "qwen3_next"),
    "delta's beta": (M + "kimi_linear.c", "SY_SIGMOID), s,", "SY_TANH), s,", "kimi_linear"),
    "residual of the normed input": (M + "minimax.c", "sy_scale(g, n, m.alpha)", "sy_scale(g, n, m.beta)", "minimax"),
    "slopes by layer": (M + "minimax.c", "1 - l / (n - 1 + 1e-5)", "1 - 0 * l / (n - 1 + 1e-5)", "minimax"),
    "hyper-connections: rounds": (M + "deepseek_v4.c", '"hc_sinkhorn_iters", 20', '"hc_sinkhorn_iters_", 1', "deepseek_v4"),
    "hyper-connections: post": (C + "run.c", "y[n + i] = 2 * logistic", "y[n + i] = logistic", "deepseek_v4"),
    "values turned back": (M + "deepseek_v4.c", "o = sy_rope(g, o, turn->back);", "", "deepseek_v4"),
    "runs overlap": (C + "recur.c", "for (int i = 0; pos > 0 && i < 3; i++)", "for (int i = 0; pos > 0 && i < 2; i++)", "deepseek_v4"),
    "a run is seen too early": (C + "chosen.c", "return (position(s, row) + 1) / every;", "return (position(s, row) + every) / every;", "deepseek_v4"),
    "a run's position": (M + "deepseek_v4.c", "rope.every = every;", "rope.every = 1;", "deepseek_v4"),
    "GGUF: rope pairs stay": (F + "names.c", "t.head_rows = (int32_t)d->head_dim;", "(void)0;", "golden:logits_gguf_llama_q8_0_generic"),
    "GGUF: gate and up swapped": (F + "gguf_archs.c", '{"ffn_gate", "mlp.gate_proj", 0},\n    {"ffn_up", "mlp.up_proj", 0}', '{"ffn_up", "mlp.gate_proj", 0},\n    {"ffn_gate", "mlp.up_proj", 0}', "golden:logits_gguf_llama_q8_0_generic"),
    "GGUF: rope pairs not written": (F + "convert_gguf.c", "return h + (i % 2 ? o->head_rows / 2 + i / 2 : i / 2);", "return h + i;", "convert:folders_as_gguf"),
    "GGUF: 1 not added to norms": (F + "convert_gguf.c", "i < k; i++) x[i] += 1;", "i < k; i++) x[i] += 0;", "convert:what_a_gguf_changed convert:folders_as_gguf"),
    "GGUF: 1 not taken from norms": (F + "convert_folder.c", "undo_exp(y) : y - 1;", "undo_exp(y) : y;", "convert:what_a_gguf_changed"),
    "GGUF: decays as they are": (F + "convert_gguf.c", "x[i] = -expf(x[i]);", "x[i] = -x[i];", "convert:folders_as_gguf"),
    "GGUF: value heads in order": (F + "convert_gguf.c", "return sy_vhead_row(&o->order, s);", "return s;", "convert:value_heads_stand_tiled"),
    "GGUF: value heads' vectors tiled": (F + "convert_folder.c", "|| (it->t->tiles.n_key > 0 && !it->t->tiled_cols);", "|| 0;", "convert:folders_as_gguf"),
    "GGUF: latents' keys not turned": (F + "convert_gguf.c", "x[i] = w->head[i * len + at];", "x[i] = w->head[(at * n + i) % (len * n)];", "convert:latents_stand_in_two"),
    "GGUF: latents' values for keys": (F + "convert_folder.c", "h * it->n_val + at - it->n_key, dst)", "h * it->n_val, dst)", "convert:latents_stand_in_two convert:folders_as_gguf"),
    "GGUF: lightning attention's output": (F + "names.c", "(linear || !(r->flags & SY_NAME_LINEAR))", "(linear || true)", "convert:folders_as_gguf convert:variants_as_gguf"),
    "GGUF: Falcon-H1's norm": (F + "gguf_archs.c", '"pre_ff_layernorm.weight", SY_NAME_WHOLE', '"pre_ff_layernorm", 0', "convert:names_that_others_read"),
    "GGUF: window not written": (F + "gguf_make.c", 'key_u32(m, "attention.sliding_window", window);', "", "convert:folders_as_gguf"),
    "tokenizer.json: worst merge first": (T + "tokenizer_to_json.c", "x->score > y->score ? -1 : 1", "x->score < y->score ? -1 : 1", "convert:sentencepiece"),
    "tokenizer.json: no prefix": (T + "tokenizer_to_json.c", "if (prefix) text(m, \"{\\\"type\\\":\\\"Prepend", "if (!prefix) text(m, \"{\\\"type\\\":\\\"Prepend", "convert:sentencepiece"),
    "tokenizers not compared": (T + "tokenizer_same.c", "*same = false;", "*same = *same;", "convert:sentencepiece"),
    "experts by the token's table": (C + "moe.c", "given ? (int32_t)given[k] :", "given && k > 99 ? 0 :", "deepseek_v4"),
}


def prepare():
    """A copy of the tree with what is built of it, so that a mutation compiles one file."""
    shutil.rmtree(COPY, ignore_errors=True)
    os.makedirs(COPY + "/build")
    for name in os.listdir(ROOT):
        path = os.path.join(ROOT, name)
        if name in (".git", "build", "test", "doc"):
            continue
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(COPY, name), symlinks=True)
        else:
            shutil.copy2(path, COPY)
    shutil.copytree(ROOT + "/build/release", COPY + "/build/release", ignore=shutil.ignore_patterns("test", "log"))


def make():
    return subprocess.run(["make", "-s", "-j2", "build/release/systole"], cwd=COPY, capture_output=True, text=True)


def fails(tests):
    """How many of them fail."""
    env = dict(os.environ, SYSTOLE=os.path.join(COPY, "build/release/systole"))
    files, failed = {}, 0
    for test in tests.split():
        file, _, name = test.rpartition(":")
        files.setdefault(file or "families", []).append("test_" + name)
    for file, names in files.items():
        argv = [sys.executable, "test/e2e/%s.py" % file, *names]
        out = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True).stdout
        found = re.search(r"(\d+) passed, (\d+) failed", out)
        if not found or int(found[1]) + int(found[2]) != len(names):
            sys.exit("the tests did not run:\n" + out[-2000:])
        failed += int(found[2])
    return failed


def mutate(name, file, old, new, tests):
    path = os.path.join(COPY, file)
    with open(path) as f:
        text = f.read()
    if old not in text:
        return "FAILED: its place in %s is gone" % file
    with open(path, "w") as f:
        f.write(text.replace(old, new))
    try:
        built = make()
        if built.returncode:
            return "FAILED: does not compile: " + built.stderr[:400]
        n, of = fails(tests), len(tests.split())
        return "%s: %d of %d tests notice (%s)" % ("ok" if n == of else "FAILED", n, of, tests)
    finally:
        with open(path, "w") as f:
            f.write(text)


def check_places():
    gone = []
    for name, (file, old, _, _) in MUTATIONS.items():
        with open(os.path.join(ROOT, file)) as f:
            if old not in f.read():
                gone.append(name)
                print("%s: its place in %s is gone" % (name, file))
    print("%d passed, %d failed" % (len(MUTATIONS) - len(gone), len(gone)))
    sys.exit(bool(gone))


def main():
    if sys.argv[1:] == ["--places"]:
        check_places()
    names = sys.argv[1:] or list(MUTATIONS)
    prepare()
    built = make()
    if built.returncode:
        sys.exit(built.stderr)
    good = 0
    for name in names:
        said = mutate(name, *MUTATIONS[name])
        good += said.startswith("ok")
        print("%-36s %s" % (name, said), flush=True)
    shutil.rmtree(COPY)
    print("%d passed, %d failed" % (good, len(names) - good))
    sys.exit(good != len(names))


main()
