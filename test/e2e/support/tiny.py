"""A small model folder with random weights, a byte-level tokenizer and a chat template: what the tests of the server talk to."""
import json
import os
import shutil

TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
            "({{ c.function.name }}:{{ c.function.arguments.a }}){% endfor %}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
SPECIAL = ("<unk>", "<s>", "</s>", "<end>")
THINK = "<think>"  # a control token that is not called special


def alphabet():
    """GPT-2's stand-ins of the 256 bytes, in the order of the bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, extra = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in plain else chr(256 + extra)
        extra += b not in plain
    return out


def make(folder, arch="llama", talkative=True, tokenizer=True, positions=0):
    """Ids: 0..3 special, then byte b is 4 + b, then none up to THINK at 319, the model's last. A talkative
    model never ends an answer when it is greedy. It takes 4096 tokens, or positions."""
    shutil.copytree(os.path.join("test/golden/models", arch), folder, dirs_exist_ok=True)
    if positions > 4096:
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({**config, "max_position_embeddings": positions}, f)
    if talkative:
        mute(folder, (2, 3))
    if not tokenizer:
        return folder
    vocab = {t: i for i, t in enumerate(SPECIAL)}
    vocab.update({c: 4 + b for b, c in alphabet().items()})
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(SPECIAL)]
    added.append({**added[0], "id": 319, "content": THINK, "special": False})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                   "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE,
                   "tokenizer_class": "PreTrainedTokenizerFast"}, f)
    return folder


def mute(folder, tokens):
    """Zeroes rows of lm_head: drawn greedily, such a token never comes (another logit is above 0)."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    n = int.from_bytes(raw[:8], "little")
    t = json.loads(raw[8 : 8 + n])["lm_head.weight"]
    row = (t["data_offsets"][1] - t["data_offsets"][0]) // t["shape"][0]
    for token in tokens:
        at = 8 + n + t["data_offsets"][0] + token * row
        raw[at : at + row] = bytes(row)
    with open(path, "wb") as f:
        f.write(raw)
