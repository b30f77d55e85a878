#!/usr/bin/env python3
"""Loading takes no more memory than the weights and a tenth, pages of the mapped files included; converting next to
nothing. A synthetic model of some 200 MB in 20 shards; MEMORY_MB makes it larger."""
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time

from support import lib

MB = 1 << 20
SIZE = int(os.environ.get("MEMORY_MB", "200")) * MB
SHARDS, HIDDEN, WIDTH, VOCAB = (40, 2048, 8192, 16384) if SIZE > 1000 * MB else (20, 512, 2048, 4096)


def shapes():
    found = [("model.embed_tokens.weight", VOCAB, HIDDEN), ("lm_head.weight", VOCAB, HIDDEN), ("model.norm.weight", HIDDEN)]
    layer = 2 * (4 * HIDDEN * HIDDEN + 3 * WIDTH * HIDDEN)
    n = max(1, (SIZE - 4 * VOCAB * HIDDEN) // layer)
    for i in range(n):
        p = "model.layers.%d." % i
        found += [(p + "self_attn.%s_proj.weight" % x, HIDDEN, HIDDEN) for x in "qkvo"]
        found += [(p + "mlp.%s_proj.weight" % x, WIDTH, HIDDEN) for x in ("gate", "up")]
        found += [(p + "mlp.down_proj.weight", HIDDEN, WIDTH), (p + "input_layernorm.weight", HIDDEN)]
        found += [(p + "post_attention_layernorm.weight", HIDDEN)]
    return n, found


def size_of(shape):
    n = 2
    for d in shape:
        n *= d
    return n


def write_model(d):
    """Returns the bytes of all weights."""
    n_layer, found = shapes()
    total = sum(size_of(s) for _, *s in found)
    rng = random.Random(1)
    some = b"".join(struct.pack("<H", rng.choice((0x3c00, 0xbc00)) | rng.getrandbits(8)) for _ in range(MB // 2))
    groups, at = [[] for _ in range(SHARDS)], 0
    for name, *shape in found:
        groups[at * SHARDS // total].append((name, shape))
        at += size_of(shape)
    where = {}
    for i, group in enumerate(g for g in groups if g):
        file, head, at = "model-%05d.safetensors" % i, {}, 0
        for name, shape in group:
            head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size_of(shape)]}
            at += size_of(shape)
            where[name] = file
        text = json.dumps(head).encode()
        with open(d + "/" + file, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for _, shape in group:
                for left in range(size_of(shape), 0, -MB):
                    f.write(some[:left])
    for file, what in (("model.safetensors.index.json", {"weight_map": where}), ("config.json", {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH,
            "num_hidden_layers": n_layer, "num_attention_heads": HIDDEN // 64, "num_key_value_heads": HIDDEN // 64,
            "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False})):
        with open(d + "/" + file, "w") as f:
            json.dump(what, f)
    return total


def peak(*args):
    """Most memory in use (VmHWM), pages of mapped files and the program itself among them, and seconds."""
    start, most = time.monotonic(), 0
    p = subprocess.Popen([lib.PROGRAM, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while p.poll() is None:
        try:
            with open("/proc/%d/status" % p.pid) as f:
                lines = [line.split() for line in f]
            most = max([most] + [int(x[1]) << 10 for x in lines if x[0] == "VmHWM:"])
        except (OSError, ValueError):
            pass
        time.sleep(0.002)
    said = p.stderr.read().decode()
    assert p.returncode == 0, said
    assert most > MB, most
    return most, time.monotonic() - start


def test_peaks():
    if os.environ.get("SYSTOLE_TEST_SLOWER"):
        raise lib.Skip("a sanitizer's own memory would be measured")
    if not os.path.exists("/proc/self/status") or shutil.disk_usage(tempfile.gettempdir()).free < 4 * SIZE:
        raise lib.Skip("needs /proc and four times %d MB in the folder for temporary files" % (SIZE // MB))
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/m")
        total = write_model(d + "/m")
        runs = [("load", total * 1.1 + 48 * MB, "logits", "-m", d + "/m", "--ids", "1,2,3", "-c", 64, "-o", d + "/x")]
        for name, out, *more in (("as a folder", "f"), ("as a GGUF", "g.gguf"), ("quantised", "q.gguf", "--quant", "Q8_0")):
            runs.append(("convert " + name, 48 * MB, "convert", "-m", d + "/m", "-o", d + "/" + out, "--skip-check", *more))
        for name, limit, *args in runs:
            most, seconds = peak(*args)
            print("%s: %d MB of weights, %d MB of memory, %.2f s" % (name, total // MB, most // MB, seconds))
            assert most <= limit, "%s: %d MB, at most %d MB expected" % (name, most // MB, limit // MB)


if __name__ == "__main__":
    lib.main(dict(globals()))
