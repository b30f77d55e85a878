#!/usr/bin/env python3
"""Writes small weights as the published quantisation schemes store them: NAME.json (a config with its
quantization_config) and NAME.safetensors (the parts of one weight, and 'expect': its values, float32). Codes and
scales are random; packing and meaning are written out here with numpy alone, element by element where it matters.
Usage: make.py [FOLDER]"""
import json
import pathlib
import struct
import sys

import numpy as np

rng = np.random.default_rng(77)
TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint8": "U8", "int8": "I8"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
    + [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
    + [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941]
    + [0.7229568362236023, 1.0],
    np.float32,
)


class Bf16:
    """A float32 array whose values fit in bfloat16, stored as such."""

    def __init__(self, value):
        bits = np.asarray(value, np.float32).view(np.uint32) & 0xFFFF0000
        self.value, self.shape = bits.view(np.float32), bits.shape
        self.bytes = (bits >> 16).astype("<u2").tobytes()


def minifloat(bits, fraction, bias):
    """Bytes of e4m3 or e5m2 (no NaN among them) as numbers."""
    exponent, rest = (bits & 127) >> fraction, bits & ((1 << fraction) - 1)
    size = ((exponent > 0) + rest / 2.0**fraction) * 2.0 ** (np.maximum(exponent, 1).astype(float) - bias)
    return np.where(bits > 127, -size, size)


class Bytes:
    def __init__(self, bits, dtype):
        self.shape, self.bytes, self.dtype = bits.shape, bits.astype(np.uint8).tobytes(), dtype


def write(folder, name, quantization, parts, expect):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": quantization}
    (folder / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")
    header, data = {}, b""
    for key, value in {**parts, "expect": np.asarray(expect, np.float32)}.items():
        if isinstance(value, Bf16):
            dtype, raw = "BF16", value.bytes
        elif isinstance(value, Bytes):
            dtype, raw = value.dtype, value.bytes
        else:
            dtype, raw = TYPES[value.dtype.name], value.tobytes()
        header[key] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def pack(code, bits, axis):
    """Integers of a few bits into words of 32, the first in the lowest bits, along an axis."""
    n = 32 // bits
    code = np.moveaxis(code.astype(np.int64), axis, -1)
    pad = -code.shape[-1] % n
    code = np.concatenate([code, np.zeros(code.shape[:-1] + (pad,), np.int64)], -1)
    words = np.zeros(code.shape[:-1] + (code.shape[-1] // n,), np.int64)
    for j in range(n):
        words |= code[..., j::n] << (bits * j)
    return np.moveaxis(words, -1, axis).astype(np.uint32).view(np.int32)


def scales(*shape):
    return (rng.uniform(0.5, 2, shape) * 2.0 ** rng.integers(-9, -5, shape)).astype(np.float32)


def codes(bits, *shape):
    return rng.integers(0, 1 << bits, shape)


def fp8(folder):
    rows, cols = 40, 80
    bits = codes(8, rows, cols)
    bits[(bits & 127) == 127] = 0x7E
    w = minifloat(bits, 3, 7)
    s = Bf16(scales(3, 3))
    grid = np.repeat(np.repeat(s.value, 16, 0), 32, 1)[:rows, :cols]
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
    write(folder, "fp8_block", fp8, {"m.weight": Bytes(bits, "F8_E4M3"), "m.weight_scale_inv": s}, w * grid)
    del fp8["weight_block_size"]
    one = scales()
    write(folder, "fp8_tensor", fp8, {"m.weight": Bytes(bits, "F8_E4M3"), "m.weight_scale": one}, w * one)
    bits[(bits & 127) > 0x7B] = 0x7B
    s = scales(rows, 1)
    ct = group(8, "float", "channel", format="float-quantized")
    write(folder, "fp8_channel", ct, {"m.weight": Bytes(bits, "F8_E5M2"), "m.weight_scale": s}, minifloat(bits, 2, 15) * s)
    q = rng.integers(-128, 128, (rows, 96)).astype(np.int8)
    ct = group(8, "int", "channel", format="int-quantized")
    write(folder, "int8_channel", ct, {"m.weight": q, "m.weight_scale": s}, q * s)


def group(bits, kind, strategy, format="pack-quantized", size=None, symmetric=True, order=None):
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric, "group_size": size}
    weights |= {"actorder": order, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


def packed(folder):
    for name, bits, size, symmetric, order in (
        ("int4_group", 4, 32, True, None),
        ("int4_zero", 4, 64, False, None),
        ("int4_order", 4, 32, False, "group"),
        ("int8_packed", 8, None, True, None),
        ("int8_zero", 8, 32, False, None),
    ):
        rows, cols = 24, 128
        groups = cols // size if size else 1
        half = 1 << (bits - 1)
        q = codes(bits, rows, cols) - half
        s = Bf16(scales(rows, groups))
        zero = np.zeros((rows, groups), np.int64) if symmetric else codes(bits, rows, groups) - half
        index = np.repeat(np.arange(groups), cols // groups)
        parts = {
            "m.weight_packed": pack(q + half, bits, 1),
            "m.weight_scale": s,
            "m.weight_shape": np.array([rows, cols], np.int64),
        }
        if not symmetric:
            parts["m.weight_zero_point"] = pack(zero + half, bits, 0)
        if order:
            index = rng.permutation(index)
            parts["m.weight_g_idx"] = index.astype(np.int32)
        expect = (q - zero[:, index]) * s.value[:, index].astype(float)
        conf = group(bits, "int", "group" if size else "channel", size=size, symmetric=symmetric, order=order)
        write(folder, name, conf, parts, expect)


def fp4(folder):
    rows, cols = 20, 96
    q = codes(4, rows, cols)
    nibbles = q[:, 0::2] | q[:, 1::2] << 4
    bits = codes(7, rows, cols // 16)
    bits[bits == 127] = 126
    w = E2M1[q] * np.repeat(minifloat(bits, 3, 7), 16, 1)
    whole = np.array([900.0], np.float32)
    ct = group(4, "float", "tensor_group", format="nvfp4-pack-quantized", size=16)
    parts = {"m.weight_packed": Bytes(nibbles, "U8"), "m.weight_scale": Bytes(bits, "F8_E4M3")}
    write(folder, "nvfp4_ct", ct, {**parts, "m.weight_global_scale": whole}, w / whole)
    parts = {"m.weight": Bytes(nibbles, "U8"), "m.weight_scale": Bytes(bits, "F8_E4M3")}
    two = np.float32(0.0013)
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "x*"]}
    write(folder, "nvfp4_modelopt", modelopt, {**parts, "m.weight_scale_2": two, "m.input_scale": two}, w * two)
    e = rng.integers(110, 135, (rows, cols // 32))
    w = E2M1[q] * np.repeat(2.0 ** (e - 127.0), 32, 1)
    ct = group(4, "float", "group", format="mxfp4-pack-quantized", size=32)
    parts = {"m.weight_packed": Bytes(nibbles, "U8"), "m.weight_scale": Bytes(e, "U8")}
    write(folder, "mxfp4_ct", ct, parts, w)
    parts = {
        "m_blocks": Bytes(nibbles.reshape(2, rows // 2, cols // 32, 16), "U8"),
        "m_scales": Bytes(e.reshape(2, rows // 2, cols // 32), "U8"),
    }
    write(folder, "mxfp4_experts", {"quant_method": "mxfp4"}, parts, w.reshape(2, rows // 2, cols))


def bitsandbytes(folder):
    rows, cols = 12, 80
    conf = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    for name, kind, nested in (("nf4", "nf4", False), ("nf4_nested", "nf4", True), ("fp4", "fp4", False)):
        table = NF4 if kind == "nf4" else (E2M1 / 6).astype(np.float32)
        q = codes(4, rows * cols)
        blocks = rows * cols // 64
        state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [rows, cols]}
        parts = {"m.weight": Bytes((q[0::2] << 4 | q[1::2]).reshape(-1, 1), "U8"), "m.weight.quant_map": table}
        absmax = scales(blocks)
        if nested:
            code, outer, offset = codes(8, blocks), scales(2), 0.0123
            inner = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            parts |= {"m.weight.absmax": Bytes(code, "U8"), "m.weight.nested_absmax": outer}
            parts["m.weight.nested_quant_map"] = inner
            state |= {"nested_blocksize": 8, "nested_offset": offset}
            absmax = inner[code].astype(float) * outer[np.arange(blocks) // 8] + offset
        else:
            parts["m.weight.absmax"] = absmax
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        parts[f"m.weight.quant_state.bitsandbytes__{kind}"] = text
        expect = table[q].astype(float) * np.repeat(absmax, 64)
        write(folder, name, {**conf, "bnb_4bit_quant_type": kind}, parts, expect.reshape(rows, cols))


def awq(folder):
    rows, cols, size = 32, 128, 64
    q, zero, s = codes(4, cols, rows), codes(4, cols // size, rows), scales(cols // size, rows).astype(np.float16)

    def words(code):
        out = np.zeros((code.shape[0], code.shape[1] // 8), np.int64)
        for i, j in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            out |= code[:, j::8].astype(np.int64) << (4 * i)
        return out.astype(np.uint32).view(np.int32)

    index = np.arange(cols) // size
    expect = ((q - zero[index]) * s[index].astype(float)).T
    conf = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    write(folder, "awq", conf, {"m.qweight": words(q), "m.qzeros": words(zero), "m.scales": s}, expect)


def gptq(folder):
    rows, cols = 32, 128
    for name, bits, size, sym, order, version in (
        ("gptq4", 4, 64, True, False, "gptq"),
        ("gptq4_order", 4, 32, False, True, "gptq"),
        ("gptq4_v2", 4, -1, False, False, "gptq_v2"),
        ("gptq8", 8, 32, True, False, "gptq"),
    ):
        groups = cols // size if size > 0 else 1
        q, s = codes(bits, cols, rows), scales(groups, rows).astype(np.float16)
        zero = np.full((groups, rows), 1 << (bits - 1)) if sym else codes(bits, groups, rows)
        index = np.repeat(np.arange(groups), cols // groups)
        if order:
            index = rng.permutation(index)
        stored = (zero - 1) % (1 << bits) if version == "gptq" else zero
        parts = {"m.qweight": pack(q, bits, 0), "m.qzeros": pack(stored, bits, 1), "m.scales": s}
        parts["m.g_idx"] = index.astype(np.int32)
        conf = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": sym, "desc_act": order}
        conf["checkpoint_format"] = version
        write(folder, name, conf, parts, ((q - zero[index]) * s[index].astype(float)).T)


def main(folder):
    for scheme in (fp8, packed, fp4, bitsandbytes, awq, gptq):
        scheme(folder)


main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
