#!/usr/bin/env python3
"""The perplexity of a GGUF model on a text, in plain numpy: the float reference for `systole perplexity`.

Every weight is dequantised and every product is made in float32 (or, with --float 64, float64): no quantised
activations, no cache, no tricks. Architectures: llama, qwen2, qwen3, gemma3.

What is computed
  The text is tokenised as a whole, without special tokens. If the model begins its texts with BOS
  (tokenizer.ggml.add_bos_token; absent: SentencePiece-like vocabularies do, others do not), the ids are cut
  into consecutive windows of CTX-1 and BOS is put before each; otherwise into windows of CTX. The last
  window may be shorter; one that has a single token in all is left out. Each window is evaluated by itself,
  from position 0. Every token of a window but its first counts: its negative log likelihood (natural) given
  the window so far. Perplexity = exp(sum of these / their number).

Output: a line per window, then "tokens N  nll SUM  perplexity P".

The tokens come from --ids or --ids-file (numbers separated by commas or white space), or from --text. For
--text the vocabulary of the GGUF is used: byte-level ones (gpt2 with pre smollm or gpt-2; needs pip install
tokenizers) and SentencePiece BPE ones (llama). Needs: pip install gguf numpy.
"""

import argparse
import heapq
import math
import pathlib
import re
import sys

import gguf
import numpy as np

GEMMA3_PERIOD = 6  # every sixth layer is global
GEMMA3_LOCAL_THETA = 10000.0


def refuse(message):
    sys.exit(f"perplexity_reference: {message}")


# ---- the file --------------------------------------------------------------------------------------------


class Model:
    """Metadata and dequantised weights of a GGUF, and its forward pass."""

    def __init__(self, path, dtype):
        self.file = gguf.GGUFReader(path)
        self.dtype = dtype
        self.arch = self.key("general.architecture")
        if self.arch not in ("llama", "qwen2", "qwen3", "gemma3"):
            refuse(f"'{path}': architecture '{self.arch}' is not supported here")
        self.n_layer = self.dim("block_count")
        self.n_head = self.dim("attention.head_count")
        self.n_kv = self.dim("attention.head_count_kv", self.n_head)
        self.hidden = self.dim("embedding_length")
        self.head_dim = self.dim("attention.key_length", self.hidden // self.n_head)
        self.eps = self.dim("attention.layer_norm_rms_epsilon")
        self.theta = self.dim("rope.freq_base", 10000.0)
        self.window = self.dim("attention.sliding_window", 0) if self.arch == "gemma3" else 0
        scaling = self.dim("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            refuse(f"rotary scaling '{scaling}' is not supported here")
        self.rope_factor = self.dim("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
        self.tensor = {t.name: t for t in self.file.tensors}
        self.cache = {}
        for bad in ("ffn_gate_inp.weight", "attn_output.bias"):
            if f"blk.0.{bad}" in self.tensor:
                refuse(f"'{path}': tensor blk.0.{bad} belongs to a variant that is not supported here")

    def key(self, name, otherwise=None):
        field = self.file.get_field(name)
        if field is None and otherwise is None:
            refuse(f"metadata '{name}' is missing")
        return otherwise if field is None else field.contents()

    def dim(self, name, otherwise=None):
        return self.key(f"{self.arch}.{name}", otherwise)

    def has(self, name):
        return name in self.tensor

    def rows(self, name, index=slice(None)):
        """Rows of a tensor, dequantised."""
        t = self.tensor.get(name)
        if t is None:
            refuse(f"tensor '{name}' is missing")
        return gguf.quants.dequantize(t.data[index], t.tensor_type).astype(self.dtype)

    def weight(self, name):
        """A whole tensor; kept, except for the embedding, which is taken in pieces."""
        if name not in self.cache:
            self.cache[name] = self.rows(name)
        return self.cache[name]

    # ---- the forward pass --------------------------------------------------------------------------------

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + self.dtype(self.eps))
        return x * scale * self.weight(name)

    def linear(self, x, layer, name):
        y = x @ self.weight(f"blk.{layer}.{name}.weight").T
        bias = f"blk.{layer}.{name}.bias"
        return y + self.weight(bias) if self.has(bias) else y

    def angles(self, n, theta, factor):
        """cos and sin [position, pair] of the rotary embedding, made in float64."""
        freq = theta ** (-np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim) / factor
        if self.has("rope_freqs.weight"):
            freq = freq / self.rows("rope_freqs.weight").astype(np.float64)
        a = np.arange(n)[:, None] * freq[None, :]
        return np.cos(a).astype(self.dtype), np.sin(a).astype(self.dtype)

    def rope(self, x, cos, sin):
        """x [position, head, element]. llama stores the rows of q and k so that pairs are neighbours; the
        others keep the first elements of all pairs in the first half of the head."""
        half = self.head_dim // 2
        if self.arch == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
        else:
            a, b = x[..., :half], x[..., half:]
        cos, sin = cos[:, None, :], sin[:, None, :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, x, layer, angles, window):
        n = len(x)
        q = self.linear(x, layer, "attn_q").reshape(n, self.n_head, self.head_dim)
        k = self.linear(x, layer, "attn_k").reshape(n, self.n_kv, self.head_dim)
        v = self.linear(x, layer, "attn_v").reshape(n, self.n_kv, -1)
        if self.arch in ("qwen3", "gemma3"):
            q = self.norm(q, f"blk.{layer}.attn_q_norm.weight")
            k = self.norm(k, f"blk.{layer}.attn_k_norm.weight")
        q, k = self.rope(q, *angles), self.rope(k, *angles)
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        hidden = (distance < 0) | (distance >= window) if window else distance < 0
        out = np.empty((n, self.n_head, v.shape[-1]), self.dtype)
        for h in range(self.n_head):
            g = h * self.n_kv // self.n_head
            s = q[:, h] @ k[:, g].T / self.dtype(math.sqrt(self.head_dim))
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=-1, keepdims=True))
            out[:, h] = s / s.sum(axis=-1, keepdims=True) @ v[:, g]
        return self.linear(out.reshape(n, -1), layer, "attn_output")

    def feed_forward(self, x, layer):
        gate, up = self.linear(x, layer, "ffn_gate"), self.linear(x, layer, "ffn_up")
        if self.arch == "gemma3":
            c = self.dtype(math.sqrt(2 / math.pi))
            gate = gate / 2 * (1 + np.tanh(c * (gate + self.dtype(0.044715) * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * up, layer, "ffn_down")

    def hidden_states(self, ids):
        """What the output matrix is applied to, [position, hidden]."""
        gemma = self.arch == "gemma3"
        x = self.rows("token_embd.weight", ids)
        if gemma:
            x = x * self.dtype(math.sqrt(self.hidden))
        everywhere = self.angles(len(ids), self.theta, self.rope_factor)
        local = self.angles(len(ids), GEMMA3_LOCAL_THETA, 1.0) if gemma else everywhere
        for i in range(self.n_layer):
            sliding = gemma and self.window and (i + 1) % GEMMA3_PERIOD != 0
            y = self.norm(x, f"blk.{i}.attn_norm.weight")
            y = self.attention(y, i, local if sliding else everywhere, self.window if sliding else 0)
            x = x + (self.norm(y, f"blk.{i}.post_attention_norm.weight") if gemma else y)
            y = self.feed_forward(self.norm(x, f"blk.{i}.ffn_norm.weight"), i)
            x = x + (self.norm(y, f"blk.{i}.post_ffw_norm.weight") if gemma else y)
        return self.norm(x, "output_norm.weight")

    def logits(self, x):
        """Yields (first id, logits [position, some ids]): the output matrix is taken a piece at a time."""
        name = "output.weight" if self.has("output.weight") else "token_embd.weight"
        n, step = len(self.tensor[name].data), 16384
        for i in range(0, n, step):
            yield i, x @ self.rows(name, slice(i, i + step)).T


# ---- text to ids -----------------------------------------------------------------------------------------


def encode_byte_level(model, text):
    from tokenizers import Tokenizer, models, pre_tokenizers

    pre = model.key("tokenizer.ggml.pre", "default")
    steps = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    }
    if pre not in steps:
        refuse(f"--text: pre-tokenizer '{pre}' is not supported here; give --ids-file instead")
    vocab = {t: i for i, t in enumerate(model.key("tokenizer.ggml.tokens"))}
    merges = [tuple(m.split(" ")) for m in model.key("tokenizer.ggml.merges")]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([*steps[pre], pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return t.encode(text, add_special_tokens=False).ids


def encode_sentencepiece(model, text):
    """Starting from characters, joins the neighbours whose union has the best score, leftmost first, until no
    union is in the vocabulary; what is not in it then is spelled in bytes."""
    tokens = model.key("tokenizer.ggml.tokens")
    scores = model.key("tokenizer.ggml.scores")
    types = model.key("tokenizer.ggml.token_type")
    usable = (gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED, gguf.TokenType.UNUSED)
    vocab = {t: i for i, t in enumerate(tokens) if types[i] in usable}
    if model.key("tokenizer.ggml.add_space_prefix", True):
        text = " " + text
    piece = list(text.replace(" ", "\u2581"))
    after = list(range(1, len(piece) + 1))
    before = list(range(-1, len(piece) - 1))
    heap = []

    def offer(i):
        j = after[i] if i >= 0 else len(piece)
        if i >= 0 and j < len(piece) and piece[i] + piece[j] in vocab:
            both = piece[i] + piece[j]
            heapq.heappush(heap, (-scores[vocab[both]], i, both))

    for i in range(len(piece)):
        offer(i)
    while heap:
        _, i, both = heapq.heappop(heap)
        j = after[i]
        if piece[i] is None or j >= len(piece) or piece[i] + piece[j] != both:
            continue  # one of the two was joined to something else meanwhile
        piece[i], piece[j], after[i] = both, None, after[j]
        if after[i] < len(piece):
            before[after[i]] = i
        offer(i)
        offer(before[i])
    ids = []
    for p in filter(None, piece):
        ids += [vocab[p]] if p in vocab else [tokens.index(f"<0x{b:02X}>") for b in p.encode()]
    return ids


def encode(model, text):
    kind = model.key("tokenizer.ggml.model")
    if kind == "gpt2":
        return encode_byte_level(model, text)
    if kind == "llama":
        return encode_sentencepiece(model, text)
    refuse(f"--text: tokenizer '{kind}' is not supported here; give --ids-file instead")


# ---- the measure -----------------------------------------------------------------------------------------


def bos_of(model, wish):
    if wish == "auto":
        by_default = model.key("tokenizer.ggml.model", "none") == "llama"
        wish = "yes" if model.key("tokenizer.ggml.add_bos_token", by_default) else "no"
    return [model.key("tokenizer.ggml.bos_token_id")] if wish == "yes" else []


def nll_of(model, window, keep):
    """Negative log likelihoods of window[1:], and the logits of all positions if they are to be kept. The sum
    of exponentials runs over pieces of the vocabulary: it is scaled anew when a piece has a larger logit."""
    target = np.array(window[1:] + [window[0]])  # the last position predicts nothing that counts
    rows = np.arange(len(window))
    top, total, hit, kept = np.full(len(window), -np.inf), 0.0, np.zeros(len(window)), []
    for first, logits in model.logits(model.hidden_states(window)):
        if keep:
            kept.append(logits.astype(np.float32))
        wide = logits.astype(np.float64)
        new = np.maximum(top, wide.max(axis=-1))
        total = total * np.exp(top - new) + np.exp(wide - new[:, None]).sum(axis=-1)
        top = new
        here = (target >= first) & (target < first + wide.shape[1])
        hit[here] = wide[rows[here], target[here] - first]
    return (top + np.log(total) - hit)[:-1], np.concatenate(kept, axis=-1) if keep else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="a GGUF file")
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="UTF-8 text")
    source.add_argument("--ids", metavar="1,2,3")
    source.add_argument("--ids-file", metavar="FILE")
    p.add_argument("--ctx", type=int, default=512, metavar="N", help="tokens in a window (default 512)")
    p.add_argument("--bos", choices=("auto", "yes", "no"), default="auto", help="begin windows with BOS")
    p.add_argument("--windows", type=int, metavar="N", help="only the first N windows")
    p.add_argument("--float", choices=("32", "64"), default="32", help="arithmetic (default 32)")
    p.add_argument("--print-ids", action="store_true", help="print the ids of the text and stop")
    p.add_argument("--nll", metavar="FILE", help="write 'window position id nll' for each counted token")
    p.add_argument(
        "--logits", metavar="FILE.npy", help="write the logits, float32 [tokens of all windows, vocab]"
    )
    a = p.parse_args()
    model = Model(a.model, np.float32 if a.float == "32" else np.float64)
    if a.text:
        ids = encode(model, pathlib.Path(a.text).read_text(encoding="utf-8"))
    else:
        ids = [int(x) for x in re.findall(r"\d+", a.ids or pathlib.Path(a.ids_file).read_text())]
    if a.print_ids:
        print(",".join(map(str, ids)))
        return
    n_vocab = len(model.tensor["token_embd.weight"].data)
    if any(i >= n_vocab for i in ids):
        refuse(f"a token id is not below the vocabulary's size, {n_vocab}")
    bos = bos_of(model, a.bos)
    if a.ctx < 2:
        refuse("--ctx must be at least 2")
    step = a.ctx - len(bos)
    windows = [bos + ids[i : i + step] for i in range(0, len(ids), step)]
    windows = [w for w in windows if len(w) > 1][: a.windows]
    if not windows:
        refuse("no window has a token to predict")
    count, total, kept, lines = 0, 0.0, [], []
    for i, w in enumerate(windows):
        nll, logits = nll_of(model, w, bool(a.logits))
        count += len(nll)
        total += nll.sum()
        kept.append(logits)
        lines += [f"{i} {j + 1} {w[j + 1]} {x:.6f}\n" for j, x in enumerate(nll)]
        print(
            f"window {i}: {len(w)} tokens  nll {nll.sum():.4f}  so far {math.exp(total / count):.4f}",
            flush=True,
        )
    if a.nll:
        pathlib.Path(a.nll).write_text("".join(lines))
    if a.logits:
        np.save(a.logits, np.concatenate(kept))
    print(f"tokens {count}  nll {total:.4f}  perplexity {math.exp(total / count):.4f}")


if __name__ == "__main__":
    main()
