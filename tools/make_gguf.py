#!/usr/bin/env python3
"""Makes a random model as a GGUF file and, from the same weights, as a Hugging Face folder.

Both hold the same numbers to the bit: the GGUF stores quantised blocks, the folder their dequantised float32
values in the order and convention of Hugging Face checkpoints. So an engine that reads both must give the
same logits, for every storage format, and any difference points at the format, the q/k row order, or a
norm's offset.

What the published converters do to weights on the way to GGUF is done here too:
  llama    rows of each q and k head are stored as interleaved rotary pairs (0, d/2, 1, d/2+1, ...)
  gemma3   1 is added to every RMSNorm weight
  llama3 rotary scaling becomes the tensor rope_freqs.weight, which divides the frequencies

Needs: pip install gguf numpy. Examples:
  make_gguf.py --arch llama --type q4_k --gguf t.gguf --hf t                      a model of a MB
  make_gguf.py --arch qwen3 --hidden 96 --ffn 2880 --type q5_0 --gguf t.gguf --hf t
  make_gguf.py --arch gemma3 --type q4_k --types v=q6_k,down=q6_k,embed=q8_0 --gguf t.gguf
  make_gguf.py --size-mb 1000 --type q4_0 --gguf big.gguf                      for benchmarks: 1 GB in seconds
"""

import argparse
import json
import pathlib
import struct
import sys
import zlib

import gguf
import numpy as np

FLOATS = ("f32", "f16", "bf16")
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl")
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
GROUPS = {"attn": ("q", "k", "v", "o"), "ffn": ("gate", "up", "down")}
ROLES = ("embed", "output", "q", "k", "v", "o", "gate", "up", "down")
SMALL = dict(layers=2, hidden=256, ffn=512, heads=8, kv_heads=2, head_dim=32, vocab=320)
LARGE = dict(layers=0, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=32000)
SLIDING_PERIOD = 6  # gemma3 in GGUF: every sixth layer attends globally; no key says otherwise


def kind_of(name):
    return gguf.GGMLQuantizationType[name.upper()]


# ---- random weights in each format -----------------------------------------------------------------------


def halves(values):
    return np.ascontiguousarray(values, np.float16).view(np.uint8).reshape(len(values), 2)


def pack_kscales(s, m):
    """Eight 6-bit scales and shifts in 12 bytes, as q4_k and q5_k hold them."""
    p = np.empty((len(s), 12), np.uint8)
    p[:, 0:4] = s[:, :4] | (s[:, 4:] >> 4) << 6
    p[:, 4:8] = m[:, :4] | (m[:, 4:] >> 4) << 6
    p[:, 8:12] = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return p


def random_blocks(rng, name, count, std):
    """count blocks of uniformly random codes, scales around what gives elements the deviation std."""
    size = gguf.GGML_QUANT_SIZES[kind_of(name)][1]
    b = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    d = std * rng.uniform(0.6, 1.4, count)

    def uniform(bits):
        return np.sqrt((4.0**bits - 1) / 12)

    if name in ("q8_0", "q4_0", "q5_0", "q4_1", "q5_1"):
        bits = int(name[1])
        d /= uniform(bits)
        b[:, :2] = halves(d)
        if name.endswith("1"):
            b[:, 2:4] = halves(-d * (2**bits - 1) / 2)
    elif name == "iq4_nl":
        b[:, :2] = halves(d / IQ4.std())
    elif name == "q6_k":
        s = rng.integers(40, 128, (count, 16), dtype=np.int8) * rng.choice(
            np.array([-1, 1], np.int8), (count, 16)
        )
        b[:, 192:208] = s.view(np.uint8)
        b[:, 208:] = halves(d / (uniform(6) * 85))
    elif name == "q3_k":
        b[:, 108:] = halves(d / (uniform(3) * 18))  # 6-bit scales around 32: 18 is their mean square root
    elif name == "q2_k":
        s = rng.integers(4, 16, (count, 16), dtype=np.uint8)
        d /= uniform(2) * 9.5
        b[:, :16] = s | s << 4  # shift = scale x 1.5 codes: the middle of 0..3
        b[:, 80:82] = halves(d)
        b[:, 82:84] = halves(1.5 * d)
    elif name in ("q4_k", "q5_k"):
        bits = int(name[1])
        s = rng.integers(16, 64, (count, 8), dtype=np.uint8)
        m = np.clip(s + rng.integers(-2, 3, (count, 8)), 0, 63).astype(np.uint8)
        d /= uniform(bits) * 39.5
        b[:, 0:2] = halves(d)
        b[:, 2:4] = halves(d * (2**bits - 1) / 2)
        b[:, 4:16] = pack_kscales(s, m)
    return b


def random_matrix(seed, label, name, rows, cols, std):
    """The bytes of a matrix [rows, cols] in the format `name`, the same for the same seed and label."""
    rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
    if name in FLOATS:
        x = rng.standard_normal((rows, cols), np.float32) * np.float32(std)
        return gguf.quants.quantize(x, kind_of(name)).reshape(rows, -1).view(np.uint8)
    length = gguf.GGML_QUANT_SIZES[kind_of(name)][0]
    return random_blocks(rng, name, rows * cols // length, std).reshape(rows, -1)


def values_of(raw, name):
    return gguf.quants.dequantize(raw, kind_of(name)).astype("<f4", copy=False)


def random_norm(seed, label, n):
    """Around 1, in steps of 1/1024: subtracting 1 is exact in float32."""
    rng = np.random.default_rng([seed, zlib.crc32(label.encode())])
    return (1 + np.round(rng.standard_normal(n) * 100).clip(-400, 400) / 1024).astype("<f4")


# ---- the model -------------------------------------------------------------------------------------------


def unpermute(w, heads):
    """Rows as GGUF's llama stores them (pairs side by side) -> Hugging Face's (first halves, then second)."""
    d = w.shape[0] // heads
    return w.reshape(heads, d // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def tensors_of(a):
    """All tensors as (role, gguf name, hf name, rows, cols); rows 0: a vector. Role None: a norm."""
    h, q_out, kv_out = a.hidden, a.heads * a.head_dim, a.kv_heads * a.head_dim
    gemma = a.arch == "gemma3"
    out = [("embed", "token_embd.weight", "model.embed_tokens.weight", a.vocab, h)]
    for i in range(a.layers):
        g, f = f"blk.{i}.", f"model.layers.{i}."
        out += [
            (None, g + "attn_norm.weight", f + "input_layernorm.weight", 0, h),
            ("q", g + "attn_q.weight", f + "self_attn.q_proj.weight", q_out, h),
            ("k", g + "attn_k.weight", f + "self_attn.k_proj.weight", kv_out, h),
            ("v", g + "attn_v.weight", f + "self_attn.v_proj.weight", kv_out, h),
            ("o", g + "attn_output.weight", f + "self_attn.o_proj.weight", h, q_out),
            (
                None,
                g + "ffn_norm.weight",
                f + ("pre_feedforward_layernorm.weight" if gemma else "post_attention_layernorm.weight"),
                0,
                h,
            ),
            ("gate", g + "ffn_gate.weight", f + "mlp.gate_proj.weight", a.ffn, h),
            ("up", g + "ffn_up.weight", f + "mlp.up_proj.weight", a.ffn, h),
            ("down", g + "ffn_down.weight", f + "mlp.down_proj.weight", h, a.ffn),
        ]
        if a.arch == "qwen2":
            out += [
                ("bias", g + f"attn_{r}.bias", f + f"self_attn.{r}_proj.bias", 0, n)
                for r, n in (("q", q_out), ("k", kv_out), ("v", kv_out))
            ]
        if a.arch in ("qwen3", "gemma3"):
            out += [
                (None, g + f"attn_{r}_norm.weight", f + f"self_attn.{r}_norm.weight", 0, a.head_dim)
                for r in "qk"
            ]
        if gemma:
            out += [
                (None, g + "post_attention_norm.weight", f + "post_attention_layernorm.weight", 0, h),
                (None, g + "post_ffw_norm.weight", f + "post_feedforward_layernorm.weight", 0, h),
            ]
    out.append((None, "output_norm.weight", "model.norm.weight", 0, h))
    if not a.tied:
        out.append(("output", "output.weight", "lm_head.weight", a.vocab, h))
    return out


def data_of(a, role, label, rows, cols):
    """(bytes as stored, format) of a tensor of tensors_of()."""
    if role is None:
        return random_norm(a.seed, label, cols), "f32"
    if role == "bias":
        return random_matrix(a.seed, label, "f32", 1, cols, 0.5).view("<f4").reshape(cols), "f32"
    # Logits with a standard deviation of about 2.5; activations keep their size through the layers.
    std = (
        1.0
        if role == "embed" and not a.tied
        else (2.5 if role in ("embed", "output") else 1.0) / np.sqrt(cols)
    )
    return random_matrix(a.seed, label, a.format[role], rows, cols, std), a.format[role]


def rope_freqs(a):
    """What divides each rotary frequency under llama3 scaling: 1 for short waves, factor for long ones."""
    factor, low, high, old = a.scaling[1:]
    wave = 2 * np.pi * a.rope_theta ** (np.arange(0, a.head_dim, 2) / a.head_dim)
    smooth = (old / wave - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < old / high, 1, np.where(wave > old / low, factor, between)).astype("<f4")


# ---- GGUF ------------------------------------------------------------------------------------------------


def byte_tokens():
    """The 256 characters that stand for bytes in byte-level vocabularies, and one merge so that the list of
    merges is not empty. Ids: 0 pad, 1 bos, 2 eos, 3..258 bytes, 259 the merged token, then unused ones."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = [], 256
    for b in range(256):
        if b in plain:
            chars.append(chr(b))
        else:
            chars.append(chr(extra))
            extra += 1
    return ["<pad>", "<bos>", "<eos>", *chars, chars[32] + "t"], [chars[32] + " t"]


def write_gguf(a, tensors):
    w = gguf.GGUFWriter(a.gguf, a.arch)
    w.add_name(f"random-{a.arch}-{a.seed}")
    w.add_context_length(a.context)
    w.add_embedding_length(a.hidden)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(a.ffn)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv_heads)
    w.add_key_length(a.head_dim)
    w.add_value_length(a.head_dim)
    w.add_layer_norm_rms_eps(a.rms_eps)
    w.add_rope_freq_base(a.rope_theta)
    w.add_vocab_size(a.vocab)
    if a.arch != "gemma3":
        w.add_rope_dimension_count(a.head_dim)
    else:
        w.add_sliding_window(a.sliding_window)
    if a.scaling and a.scaling[0] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(a.scaling[1])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if not a.no_tokenizer:
        tokens, merges = byte_tokens()
        types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
        unused = a.vocab - len(tokens)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(tokens + [f"<unused{i}>" for i in range(unused)])
        w.add_token_types(types + [gguf.TokenType.UNUSED] * unused)
        w.add_token_merges(merges)
        w.add_pad_token_id(0)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_add_bos_token(False)
    freqs = rope_freqs(a) if a.scaling and a.scaling[0] == "llama3" else None
    if freqs is not None:
        w.add_tensor_info("rope_freqs.weight", freqs.shape, freqs.dtype, freqs.nbytes)
    for role, name, _, rows, cols in tensors:
        form = "f32" if role in (None, "bias") else a.format[role]
        length, size = gguf.GGML_QUANT_SIZES[kind_of(form)]
        if rows:
            w.add_tensor_info(
                name,
                (rows, cols // length * size),
                np.dtype(np.uint8),
                rows * cols // length * size,
                raw_dtype=kind_of(form),
            )
        else:
            w.add_tensor_info(name, (cols,), np.dtype(np.float32), 4 * cols)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    if freqs is not None:
        w.write_tensor_data(freqs)
    for role, name, _, rows, cols in tensors:
        w.write_tensor_data(data_of(a, role, name, rows, cols)[0])
    w.close()


# ---- Hugging Face ----------------------------------------------------------------------------------------


def hf_config(a):
    c = {
        "architectures": [
            {
                "llama": "LlamaForCausalLM",
                "qwen2": "Qwen2ForCausalLM",
                "qwen3": "Qwen3ForCausalLM",
                "gemma3": "Gemma3ForCausalLM",
            }[a.arch]
        ],
        "model_type": "gemma3_text" if a.arch == "gemma3" else a.arch,
        "torch_dtype": "float32",
        "hidden_size": a.hidden,
        "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "vocab_size": a.vocab,
        "max_position_embeddings": a.context,
        "rms_norm_eps": a.rms_eps,
        "rope_theta": a.rope_theta,
        "tie_word_embeddings": a.tied,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if a.arch in ("llama", "qwen3"):
        c["attention_bias"] = False
    if a.arch in ("qwen2", "qwen3"):
        c["use_sliding_window"] = False
    if a.arch == "gemma3":
        del c["hidden_act"]
        c.update(
            hidden_activation="gelu_pytorch_tanh",
            rope_local_base_freq=10000.0,
            query_pre_attn_scalar=a.head_dim,
            sliding_window=a.sliding_window,
            sliding_window_pattern=SLIDING_PERIOD,
            attention_bias=False,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
        )
    if a.scaling and a.scaling[0] == "linear":
        c["rope_scaling"] = {"rope_type": "linear", "factor": a.scaling[1]}
    if a.scaling and a.scaling[0] == "llama3":
        c["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": a.scaling[1],
            "low_freq_factor": a.scaling[2],
            "high_freq_factor": a.scaling[3],
            "original_max_position_embeddings": int(a.scaling[4]),
        }
    return c


def hf_tokenizer(a):
    tokens, merges = byte_tokens()
    tokens += [f"<unused{i}>" for i in range(a.vocab - len(tokens))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [
            {
                "id": i,
                "content": t,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, t in enumerate(tokens[:3])
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": merges,
        },
    }


def write_hf(a, tensors):
    folder = pathlib.Path(a.hf)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(a), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}) + "\n")
    if not a.no_tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(hf_tokenizer(a), ensure_ascii=False) + "\n")
        (folder / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "add_bos_token": False,
                    "bos_token": "<bos>",
                    "eos_token": "<eos>",
                    "pad_token": "<pad>",
                    "tokenizer_class": "PreTrainedTokenizerFast",
                }
            )
            + "\n"
        )
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for _, _, name, rows, cols in tensors:
        n = 4 * max(rows, 1) * cols
        header[name] = {
            "dtype": "F32",
            "shape": [rows, cols] if rows else [cols],
            "data_offsets": [at, at + n],
        }
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for role, label, _, rows, cols in tensors:
            raw, form = data_of(a, role, label, rows, cols)
            x = values_of(raw, form) if rows else raw
            if a.arch == "llama" and role in ("q", "k"):
                x = unpermute(x, a.heads if role == "q" else a.kv_heads)
            if a.arch == "gemma3" and role is None:
                x = x - np.float32(1)
            f.write(np.ascontiguousarray(x, "<f4").tobytes())


# ---- the command line ------------------------------------------------------------------------------------


def parse_scaling(p, a):
    if not a.rope_scaling:
        return None
    kind, _, rest = a.rope_scaling.partition(":")
    try:
        numbers = [float(x) for x in rest.split(",")]
    except ValueError:
        numbers = []
    if (kind, len(numbers)) not in (("linear", 1), ("llama3", 4)):
        p.error("--rope-scaling is linear:FACTOR or llama3:FACTOR,LOW,HIGH,ORIGINAL_CONTEXT")
    if kind == "llama3" and a.arch != "llama":
        p.error("--rope-scaling llama3 is for --arch llama")
    return (kind, *numbers)


def parse_formats(p, a):
    form = dict.fromkeys(ROLES, a.type)
    for part in filter(None, (a.types or "").split(",")):
        role, _, name = part.partition("=")
        roles = GROUPS.get(role, (role,))
        if any(r not in ROLES for r in roles) or name not in FLOATS + BLOCKS:
            p.error(f"--types: '{part}': expected ROLE=TYPE with ROLE one of {', '.join((*ROLES, *GROUPS))}")
        form.update(dict.fromkeys(roles, name))
    row = dict(
        embed=a.hidden,
        output=a.hidden,
        q=a.hidden,
        k=a.hidden,
        v=a.hidden,
        o=a.heads * a.head_dim,
        gate=a.hidden,
        up=a.hidden,
        down=a.ffn,
    )
    for role, name in form.items():
        length = gguf.GGML_QUANT_SIZES[kind_of(name)][0]
        if (
            row[role] % length
            and a.fallback
            and row[role] % gguf.GGML_QUANT_SIZES[kind_of(a.fallback)][0] == 0
        ):
            form[role] = a.fallback
        elif row[role] % length:
            p.error(
                f"{role}: rows of {row[role]} elements are not a multiple of {length}, the block of {name}; "
                f"choose other sizes, --types {role}=TYPE, or --fallback TYPE"
            )
    return form


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", choices=("llama", "qwen2", "qwen3", "gemma3"), default="llama")
    p.add_argument("--gguf", metavar="FILE", help="write this GGUF file")
    p.add_argument(
        "--hf", metavar="FOLDER", help="write this Hugging Face folder (float32: 4 bytes a weight)"
    )
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--type", choices=FLOATS + BLOCKS, default="q4_0", help="format of all matrices (default q4_0)"
    )
    p.add_argument(
        "--types",
        metavar="ROLE=TYPE,...",
        help=f"other formats for some roles: {', '.join(ROLES)}; " "attn = q k v o, ffn = gate up down",
    )
    p.add_argument(
        "--fallback",
        choices=FLOATS + BLOCKS,
        help="the format where a row is not a multiple of the wanted format's block (default: an error)",
    )
    for name, what in dict(
        layers="layers (gemma3: 6)",
        hidden="model width",
        ffn="width of the feed-forward part",
        heads="query heads",
        kv_heads="key/value heads",
        head_dim="width of a head, even",
        vocab="rows of the embedding, at least 260 with a tokenizer",
    ).items():
        p.add_argument(
            "--" + name.replace("_", "-"), type=int, metavar="N", help=f"{what} (default {SMALL[name]})"
        )
    p.add_argument(
        "--size-mb",
        type=int,
        metavar="MB",
        help="a model for benchmarks: wide layers, as many as make a "
        f"GGUF of about this size (hidden {LARGE['hidden']}, ffn {LARGE['ffn']}, vocab {LARGE['vocab']})",
    )
    p.add_argument("--context", type=int, default=4096, metavar="N")
    p.add_argument("--rope-theta", type=float, metavar="X", help="default 10000, gemma3: 1000000")
    p.add_argument(
        "--rope-scaling", metavar="KIND:...", help="linear:FACTOR or llama3:FACTOR,LOW,HIGH,ORIGINAL_CONTEXT"
    )
    p.add_argument("--rms-eps", type=float, default=1e-6, metavar="X")
    p.add_argument("--sliding-window", type=int, default=64, metavar="N", help="gemma3 (default 64)")
    p.add_argument(
        "--tied", action="store_true", help="the embedding is the output matrix too (gemma3: always)"
    )
    p.add_argument("--no-tokenizer", action="store_true", help="leave out the byte-level vocabulary")
    a = p.parse_args()
    if not a.gguf and not a.hf:
        p.error("nothing to write: give --gguf FILE or --hf FOLDER or both")
    for name, value in (LARGE if a.size_mb else SMALL).items():
        if getattr(a, name) is None:
            setattr(a, name, 6 if name == "layers" and a.arch == "gemma3" and not a.size_mb else value)
        elif getattr(a, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1")
    if a.head_dim % 2 or a.heads % a.kv_heads:
        p.error("--head-dim must be even and --heads a multiple of --kv-heads")
    if not a.no_tokenizer and a.vocab < 260:
        p.error("--vocab: the tokenizer needs 260 tokens; give a larger one or --no-tokenizer")
    a.tied = a.tied or a.arch == "gemma3"
    a.rope_theta = a.rope_theta or (1e6 if a.arch == "gemma3" else 1e4)
    a.scaling = parse_scaling(p, a)
    a.format = parse_formats(p, a)
    if a.size_mb and not a.layers:

        def size(layers):
            a.layers = layers
            each = (
                (r * c, gguf.GGML_QUANT_SIZES[kind_of(a.format[role])])
                for role, _, _, r, c in tensors_of(a)
                if r
            )
            return sum(n // length * size for n, (length, size) in each)

        base, one = size(0), size(1) - size(0)
        a.layers = max(1, round((a.size_mb * 1e6 - base) / one))
    return a


def main():
    a = parse()
    tensors = tensors_of(a)
    if a.gguf:
        write_gguf(a, tensors)
    if a.hf:
        write_hf(a, tensors)
    weights = sum(max(rows, 1) * cols for _, _, _, rows, cols in tensors)
    print(f"{a.arch}: {a.layers} layers, {weights / 1e6:.1f} M weights, {a.type}", file=sys.stderr)


if __name__ == "__main__":
    main()
