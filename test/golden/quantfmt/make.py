#!/usr/bin/env python3
"""Writes the golden vectors of the storage formats: for each format NAME.raw (blocks as a file has them) and
NAME.f32 (what they mean: float32, little-endian, every NaN as 0x7fc00000), computed by the reference package
of the GGUF format: pip install gguf numpy. Usage: make.py [FOLDER]

The blocks are random bytes. In the first ones the half-precision fields are set to odd values: zeros of both
signs, the smallest and largest subnormal, the smallest normal, one, the largest, infinities, NaN."""
import pathlib
import sys

import gguf
import numpy as np

# format: byte offsets of its binary16 fields
FORMATS = {
    "f32": (),
    "f16": (0,),
    "bf16": (),
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "iq1_s": (0,),
    "iq1_m": (),
    "iq2_xxs": (0,),
    "iq2_xs": (0,),
    "iq2_s": (0,),
    "iq3_xxs": (0,),
    "iq3_s": (0,),
    "tq1_0": (52,),
    "tq2_0": (64,),
    "mxfp4": (),
    "nvfp4": (),
}
ODD = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xFBFF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7D01)
ELEMENTS = 2048  # at least; about 10 kB a format


def main(folder):
    rng = np.random.default_rng(20240607)
    for name, halves in FORMATS.items():
        kind = gguf.GGMLQuantizationType[name.upper()]
        length, size = gguf.GGML_QUANT_SIZES[kind]
        count = max(ELEMENTS // length, len(ODD) + 2)
        blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for field, at in enumerate(halves):
            for i in range(len(ODD)):
                # The second field runs through the values in another order, so that they meet in more pairs.
                blocks[i, at : at + 2] = np.array([ODD[(i * (1 + 4 * field)) % len(ODD)]], "<u2").view(
                    np.uint8
                )
        if name in ("f32", "bf16"):
            top = np.array(ODD, "<u2")
            top[-4:] = (0x7F80, 0xFF80, 0x7FC0, 0x7F81)
            blocks[: len(ODD), size - 2 :] = top.view(np.uint8).reshape(-1, 2)
        with np.errstate(all="ignore"):
            value = gguf.quants.dequantize(blocks, kind).astype("<f4").ravel()
        value[np.isnan(value)] = np.array(0x7FC00000, "<u4").view("<f4")
        (folder / f"{name}.raw").write_bytes(blocks.tobytes())
        (folder / f"{name}.f32").write_bytes(value.tobytes())
    # Not GGUF's: every byte, as OFP8 1.0 defines it.
    byte = np.tile(np.arange(256, dtype=np.uint8), 8)
    for name, bits, bias in (("f8_e4m3", 3, 7), ("f8_e5m2", 2, 15)):
        exponent, fraction = (byte & 127) >> bits, byte & ((1 << bits) - 1)
        size = np.where(exponent > 0, 1.0, 0.0) + fraction / 2.0**bits
        value = size * 2.0 ** (np.maximum(exponent, 1).astype(float) - bias)
        if name == "f8_e4m3":
            value[(byte & 127) == 127] = np.nan
        else:
            value[(byte & 127) == 124] = np.inf
            value[(byte & 127) > 124] = np.nan
        value = np.where(byte > 127, -value, value).astype("<f4")
        value[np.isnan(value)] = np.array(0x7FC00000, "<u4").view("<f4")
        (folder / f"{name}.raw").write_bytes(byte.tobytes())
        (folder / f"{name}.f32").write_bytes(value.tobytes())


main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
