#!/usr/bin/env python3
"""systole chat and run on a small random model with a tokenizer and a template put beside it: pipes, a terminal with line
editing and history, Ctrl-C, /commands."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time

from support import lib
from support.lib import ok, refused, text

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def make_model(d):
    """The weights know 320 tokens; the golden tokenizer is cut to its first ones."""
    shutil.copytree("test/golden/models/llama", d, dirs_exist_ok=True)
    alphabet = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))]
    alphabet += [chr(256 + n) for n in range(68)]
    vocab = {c: i + 4 for i, c in enumerate(alphabet)}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(("<unk>", "<s>", "</s>", "<end>"))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(d + "/tokenizer.json", "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                   "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                             "vocab": {**{t["content"]: t["id"] for t in added}, **vocab}, "merges": []}}, f)
    with open(d + "/tokenizer_config.json", "w") as f:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}, f)


def make_talkative(d):
    """Zeroes the rows of lm_head that end an answer: drawn greedily, such a token never comes."""
    path = d + "/model.safetensors"
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    n = int.from_bytes(raw[:8], "little")
    t = json.loads(raw[8 : 8 + n])["lm_head.weight"]
    row = (t["data_offsets"][1] - t["data_offsets"][0]) // t["shape"][0]
    for token in (2, 3):
        at = 8 + n + t["data_offsets"][0] + token * row
        raw[at : at + row] = bytes(row)
    with open(path, "wb") as f:
        f.write(raw)


PROMPT = "\r\n> "  # what a random model answers may hold "> " too


class Setup:
    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.model, self.home = self.tmp.name + "/model", self.tmp.name + "/home"
        make_model(self.model)
        self.env = {"SYSTOLE_HOME": self.home}
        return self

    def __exit__(self, *args):
        self.tmp.cleanup()

    def chat(self, stdin, *args):
        return ok("chat", "-m", self.model, "-n", "8", *args, stdin=stdin.encode(), env=self.env).decode("utf-8", "replace")


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, *args, env):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update(env, TERM="xterm")
            os.execv(lib.PROGRAM, [lib.PROGRAM, *args])
        self.pid, self.seen = pid, ""

    def expect(self, what, seconds=30):
        end = time.time() + seconds * lib.SLOWER
        while what not in self.seen:
            ready = select.select([self.fd], [], [], max(0, end - time.time()))[0]
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError("waited for %r, saw %r" % (what, self.seen))
            try:
                self.seen += os.read(self.fd, 4096).decode("utf-8", "replace")
            except OSError:
                raise AssertionError("ended; waited for %r, saw %r" % (what, self.seen))
        before, self.seen = self.seen.split(what, 1)
        return before

    def send(self, s):
        os.write(self.fd, s.encode())

    def end(self, seconds=30):
        end = time.time() + seconds * lib.SLOWER
        while True:
            if not select.select([self.fd], [], [], max(0, end - time.time()))[0]:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError("did not end, saw %r" % self.seen)
            try:
                more = os.read(self.fd, 4096)
                self.seen += more.decode("utf-8", "replace")
                if not more:
                    break
            except OSError:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


def test_run_text():
    with Setup() as s:
        a = ok("run", "-m", s.model, "-n", "8", "hello", "there")
        assert a and a == ok("run", "-m", s.model, "-n", "8", stdin=b"hello there")
        assert a != ok("run", "-m", s.model, "-n", "8", "--raw", "hello there")
        assert a != ok("run", "-m", s.model, "-n", "8", "-s", "Be brief.", "hello there")
        j = json.loads(ok("run", "-m", s.model, "-n", "8", "--output", "json", "hello there"))
        assert j["text"].rstrip("\n") == a.decode("utf-8", "replace").rstrip("\n") and j["usage"]["completion_tokens"] == len(j["ids"]), j
        assert j["finish_reason"] in ("length", "stop")
        refused(2, "run", "-m", s.model, "--raw", "-s", "x", "y", says="--system")
        refused(2, "run", "-m", s.model, stdin=b"", says="PROMPT")
        ok("run", "-m", s.model, "-n", "4", "\udcff\udce6 bytes that are no text")


def test_run_seed_and_stop():
    with Setup() as s:
        def draw(*args):
            return json.loads(ok("run", "-m", s.model, "-n", "16", "--output", "json", "--ignore-eos", *args, "hi"))
        hot = ["--temperature", "1.5"]
        assert draw(*hot, "--seed", "7")["ids"] == draw(*hot, "--seed", "7")["ids"]
        assert draw(*hot, "--seed", "7")["ids"] != draw(*hot, "--seed", "8")["ids"]
        first = draw(*hot)
        assert first["ids"] == draw(*hot, "--seed", str(first["seed"]))["ids"], "the seed that was drawn is told"
        whole = draw()["text"]
        stop = next(c for c in whole[1:] if c.isascii() and c.isprintable() and c != whole[0])
        cut = draw("--stop", stop)
        assert cut["text"] == whole.split(stop)[0] and cut["finish_reason"] == "stop", (whole, stop, cut)
        refused(2, "run", "-m", s.model, "--stop", "", "hi", says="stop")
        refused(2, "run", "-m", s.model, *sum((["--stop", str(i)] for i in range(40)), []), "hi", says="stop")


def test_raw_bos_once():
    with Setup() as s:
        with open(s.model + "/tokenizer.json") as f:
            t = json.load(f)
        t["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                               {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens":
                               {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
        with open(s.model + "/tokenizer.json", "w") as f:
            json.dump(t, f)
        n = [json.loads(ok("run", "-m", s.model, "--raw", "-n", "1", "--output", "json", p))["usage"]["prompt_tokens"]
             for p in ("abc", "<s>abc")]
        assert n == [4, 4], n


def test_piped_conversation():
    with Setup() as s:
        two = s.chat("one\ntwo\n").split("\n")
        assert two[0] == s.chat("one\n").split("\n")[0]
        assert s.chat("/help\n/quit\nnot read\n").count("/system") == 1
        assert s.chat("one\\\nmore\n") == s.chat('"""\none\nmore\n"""\n')
        assert s.chat("") == ""
        saved = s.tmp.name + "/talk.json"
        s.chat("/system Be kind.\none\n/save %s\n" % saved)
        with open(saved) as f:
            talk = json.load(f)
        assert [m["role"] for m in talk] == ["system", "user", "assistant"] and talk[0]["content"] == "Be kind."
        assert s.chat("/load %s\ntwo\n" % saved) == s.chat("two\n", "--load", saved)
        assert s.chat("/reset\none\n", "--load", saved) == s.chat("one\n")
        for line, says in (("/nonsense", "/nonsense"), ("/save", "/save"), ("/load /none", "/none"), ("/stats", "nothing")):
            r = lib.run("chat", "-m", s.model, stdin=line.encode() + b"\n", env=s.env)
            assert r.returncode != 0 and says in text(r.stderr), (line, r)
        r = lib.run("chat", "-m", s.model, "-n", "4", stdin=b"hi\n/stats\n", env=s.env)
        assert b"tok/s" in r.stderr and b"GB/s" in r.stderr, r.stderr
        r = lib.run("chat", "-m", s.model, "--ctx-size", "64", stdin=b"x" * 100 + b"\n", env=s.env)
        assert r.returncode == 2 and b"64 tokens" in r.stderr, r


def test_terminal():
    with Setup() as s:
        t = Terminal("chat", "-m", s.model, "-n", "8", env=s.env)
        t.expect("/help")
        t.expect(PROMPT)
        t.send("helo\x1b[Dl\n")  # a letter put in with the arrow keys
        t.expect(PROMPT)
        t.send("this is dropped\x03")
        t.expect(PROMPT)
        t.send("/nonsense\n")
        t.expect("unknown command")
        t.expect(PROMPT)
        t.send("/save %s/talk.json\n" % s.tmp.name)
        t.expect(PROMPT)
        time.sleep(0.3 * lib.SLOWER)  # libedit prompts first and then takes the terminal over: no program types so fast
        t.send("\x04")
        assert t.end() == 0
        with open(s.tmp.name + "/talk.json") as f:
            assert [m["content"] for m in json.load(f)][0] == "hello"
        with open(s.home + "/chat_history") as f:
            history = f.read()
        assert "hello" in history and "dropped" not in history, history


def test_no_text_acts_on_the_terminal():
    with Setup() as s:
        with open(s.tmp.name + "/t", "w") as f:
            f.write("a\x1b]0;title\x07\x1b[2Jb\u0085c\td\n\n")
        with open(s.tmp.name + "/m", "w") as f:
            json.dump([{"role": "user", "content": "x"}], f)
        args = ["template", "--template", s.tmp.name + "/t", "--messages", s.tmp.name + "/m"]
        assert ok(*args) == "a\x1b]0;title\x07\x1b[2Jb\u0085c\td\n".encode()
        t = Terminal(*args, env=s.env)
        t.expect("a\ufffd]0;title\ufffd\ufffd[2Jb\ufffdc\td\r\n")
        t.end()


def test_interrupt_stops_only_the_answer():
    with Setup() as s:
        make_talkative(s.model)
        t = Terminal("chat", "-m", s.model, "-n", "3900", "--threads", "1", env=s.env)
        t.expect(PROMPT)
        t.send("go on for long\n")
        t.expect("go on for long\r\n")
        time.sleep(0.3)
        t.send("\x03")
        t.expect("[stopped]")
        t.expect(PROMPT)
        t.send("/quit\n")
        assert t.end() == 0


def interrupted(*args, after, **kw):
    p = subprocess.Popen([lib.PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    after(p)
    p.send_signal(signal.SIGINT)
    p.wait(timeout=30 * lib.SLOWER)
    out, err = p.communicate(timeout=30 * lib.SLOWER)
    return p.returncode, out, err


def test_interrupted_run():
    with Setup() as s:
        code, out, err = interrupted("run", "-m", s.model, "--ignore-eos", "-n", "4000", "--temperature", "1", "--threads", "1", "x",
                                     after=lambda p: p.stdout.read(1))
        assert code == 130 and out and not err, (code, out[:50], err)
        code, out, err = interrupted("tokenize", "-m", s.model, after=lambda p: time.sleep(0.5 * lib.SLOWER), stdin=subprocess.PIPE)
        assert code == 130 and not out, (code, out, err)


lib.main(dict(globals()))
