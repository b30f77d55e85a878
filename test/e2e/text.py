#!/usr/bin/env python3
"""tokenize, detokenize and template through the command line, on the golden tokenizers and on templates of models.
(The unit tests hold every golden case; here the way in and out is what counts.)"""
import glob
import json
import os
import tempfile

from support import lib
from support.lib import ok, refused, run, text

TOKENIZERS = sorted(glob.glob("test/golden/tokenizers/*/"))
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def golden(d):
    with open(d + "/golden.json") as f:
        return json.load(f)


def ids(out):
    return json.loads(out)


def test_tokenize():
    assert len(TOKENIZERS) >= 8
    for d in TOKENIZERS:
        for case in golden(d)["cases"][::9]:
            body = case["text"].encode("utf-8", "surrogatepass")
            assert ids(ok("tokenize", "-m", d, "--json", stdin=body)) == case["ids"], (d, case["text"][:40])
            assert ids(ok("tokenize", "-m", d, "--json", "--special", stdin=body)) == case["ids_with_special"], (d, case["text"][:40])


def test_detokenize():
    for d in TOKENIZERS:
        for case in golden(d)["decodes"][::7]:
            if case["ids"]:
                listed = ",".join(map(str, case["ids"]))
                assert ok("detokenize", "-m", d, "--ids", listed).decode() == case["text_keep"], (d, listed)
                assert ok("detokenize", "-m", d, "--ids", listed, "--skip-special").decode() == case["text_skip"], (d, listed)


def test_there_and_back():
    d = TOKENIZERS[0]
    body = "Hello, world! 12345 \u00e9\u4e16\U0001f600\n\n  end".encode()
    listed = ok("tokenize", "-m", d, stdin=body)
    assert ok("detokenize", "-m", d, "--ids-file", "-", stdin=listed) == body
    pieces = ok("tokenize", "-m", d, "--pieces", stdin=body).decode().splitlines()
    assert [int(p.split("\t")[0]) for p in pieces] == [int(x) for x in text(listed).split(",")]


def test_bytes_that_are_not_text():
    for d in TOKENIZERS:
        for body in (b"\xe6\xad", b"\x80\x80", b"a\xff\xfeb", b"\xed\xa0\x80", b"\x00", b"\xf4\x90\x80\x80" * 1000):
            got = ids(ok("tokenize", "-m", d, "--json", stdin=body))
            assert got == ids(ok("tokenize", "-m", d, "--json", stdin=body.decode("utf-8", "replace").encode())), (d, body[:8])


def test_long_and_monotonous_text_is_quick():
    for d in TOKENIZERS:
        for body in (b"a" * 200_000, b" " * 200_000, b"\n" * 100_000, "\u4e16".encode() * 60_000, b"ab" * 100_000):
            run("tokenize", "-m", d, "--json", stdin=body, timeout=20)


def test_plain_special_tokens():
    for d in TOKENIZERS:
        with open(d + "/tokenizer.json") as f:
            special = [t["content"] for t in json.load(f).get("added_tokens", []) if t["special"]]
        body = ("x " + special[-1] + " y").encode()
        assert ids(ok("tokenize", "-m", d, "--json", stdin=body)) != ids(ok("tokenize", "-m", d, "--json", "--plain", stdin=body)), d


def test_refusals():
    refused(4, "tokenize", "-m", "test/golden/models/llama", says="no tokenizer", stdin=b"x")
    refused(2, "detokenize", "-m", TOKENIZERS[0], "--ids", "99999999", says="99999999")
    refused(2, "detokenize", "-m", TOKENIZERS[0], says="--ids")
    with tempfile.TemporaryDirectory() as d:
        for body in ("", "{", "[]", "{}", '{"model": {"type": "BPE"}}', '{"model": 7}', "[" * 100_000):
            with open(d + "/tokenizer.json", "w") as f:
                f.write(body)
            refused(3, "tokenize", "-m", d, says="tokenizer.json", stdin=b"x")


def render(source, messages, *args, status=0, **kw):
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/t.jinja", "w") as f:
            f.write(source)
        with open(d + "/m.json", "w") as f:
            f.write(messages if isinstance(messages, str) else json.dumps(messages))
        argv = ["template", "--template", d + "/t.jinja", "--messages", d + "/m.json", *args]
        return refused(status, *argv, **kw) if status else ok(*argv).decode()


def test_template():
    messages = [{"role": "user", "content": "Hi <|im_end|> \u00e9"}]
    want = "<|im_start|>user\nHi <|im_end|> \u00e9<|im_end|>\n"
    assert render(CHATML, messages) == want
    assert render(CHATML, messages, "--add-generation-prompt") == want + "<|im_start|>assistant\n"
    assert render("{{ bos_token }}{{ x }}{{ strftime_now('%Y-%m-%d %H:%M') }}", messages, "--bos-token", "<s>", "--kwargs", '{"x": 1}',
                  "--now", "2025-03-09T14:05:07") == "<s>12025-03-09 14:05"


def test_template_refusals():
    good = [{"role": "user", "content": "Hi"}]
    render("{{ raise_exception('no such role') }}", good, status=2, says="no such role")
    render(CHATML, "{", status=3, says="JSON")
    render(CHATML, '{"role": "user"}', status=3, says="array")
    render(CHATML, good, "--kwargs", "[1]", status=2, says="--kwargs")
    render(CHATML, good, "--kwargs", "{", status=2, says="--kwargs")
    render(CHATML, good, "--now", "noon", status=2, says="--now")
    refused(2, "template", "--messages", "x", says="--template")


def test_hostile_templates_end_soon():
    good = [{"role": "user", "content": "Hi"}]
    for source in ("{% for i in range(10**9) %}x{% endfor %}", "{{ 'x' * 10**10 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                   "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
                   "{% include 'x' %}", "{{ ''.__class__.__mro__ }}", "{% for", "{{ " + "(" * 100_000, "{{ 1 / 0 }}"):
        with tempfile.TemporaryDirectory() as d:
            with open(d + "/t", "w") as f:
                f.write(source)
            with open(d + "/m", "w") as f:
                json.dump(good, f)
            r = run("template", "--template", d + "/t", "--messages", d + "/m", timeout=20)
            assert r.returncode in (2, 3, 4, 5), (source[:60], r.returncode, r.stderr[:200])
            assert r.stderr.startswith(b"systole: ") and r.stderr.count(b"\n") == 1, (source[:60], r.stderr[:200])


lib.main(dict(globals()))
