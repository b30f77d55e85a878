#!/usr/bin/env python3
"""The command line: every numeric flag at its edges, unknown names, precedence, help, man pages, completion."""
import glob
import os
import re
import subprocess
import tempfile

from support import lib
from support.lib import ok, refused, run, text

MODEL = "test/golden/models/llama"
RUN = ["run", "-m", MODEL, "--ids", "1,2,3", "-n", "2"]


def commands():
    return re.findall(r"^  (\w+) {2,}", text(ok("--help")).split("commands:")[1].split("environment:")[0], re.M)


def flags_of(command):
    """(flag, lo, hi) of every integer, number and size that --help tells of."""
    out = []
    joined = re.sub(r"\n {20,}", " ", ok(command, "--help").decode())
    for line in joined.split("\n"):
        m = re.search(r"--([a-z-]+) [A-Z]+ .*\(an? (integer|number) from (-?[\d.e+]+) to ([\d.e+]+)", line)
        if m:
            out.append((m.group(1), float(m.group(3)), float(m.group(4))))
    return out


def test_numeric_flags_at_their_edges():
    n = 0
    for command in commands():
        for flag, lo, hi in flags_of(command):
            bad = ["abc", "", "1x", "nan", "--", "1e999", "99999999999999999999999", "0x10" if lo > 16 else "x"]
            bad += ["-1"] if lo > -1 else ["%g" % (lo - 1)]
            bad += ["0"] if lo > 0 else []
            for value in bad:
                line = refused(2, command, "--" + flag + "=" + value, says=("--" + flag, "expected", "found"))
                assert re.search(r"%.15g" % lo, line) or re.search(r"%g" % lo, line), line
                n += 1
    assert n > 100, n


def test_sizes():
    for bad in ("0", "-1", "abc", "1Q", "1e30", "5MM", "nan", "inf"):
        refused(2, *RUN, "--kv-memory", bad, says=("--kv-memory", "512M", bad))
    for good in ("64M", "1G", "64MiB", "1.5g", "67108864", "100MB"):
        ok(*RUN, "--kv-memory", good)
    refused(5, *RUN, "--kv-memory", "1M", "--ctx-size", "4096", says="--kv-memory")


def test_choices_and_switches():
    refused(2, *RUN, "--compute", "f64", says=("--compute", "auto, f32, bf16 or int8", "f64"))
    refused(2, *RUN, "--quiet=maybe", says=("--quiet", "true or false", "maybe"))
    ok(*RUN, "--quiet=false")


def test_unknown_names():
    refused(2, "rnu", says=("rnu", "run"))
    refused(2, "zzzzzz", says=("zzzzzz", "--help"))
    refused(2, "--quiet", "run", says="command")
    refused(2, "run", "--max-sesq", "3", says=("--max-sesq", "--max-seqs"))
    refused(2, "run", "--zzzzzz", says=("--zzzzzz", "--help"))
    refused(2, "run", "-Z", says="-Z")
    refused(2, says="command")


def test_forms_of_flags():
    want = ok(*RUN)
    for form in (["--max-tokens", "2"], ["--max-tokens=2"], ["-n", "2"], ["-n2"], ["-n=2"]):
        assert ok("run", "-m" + MODEL, "--ids=1,2,3", *form) == want
    assert ok("run", "--ids", "1,2,3", "-n", "9", "-n", "2", "-m", MODEL) == want, "the last one counts"
    refused(2, "run", "-m", MODEL, "-n", says=("-n", "integer"))
    refused(2, "run", "-m", says=("-m", "MODEL"))
    refused(4, "run", "-m", MODEL, "--", "--not-a-flag", says="no tokenizer")


def test_required_and_superfluous():
    refused(2, "run", "hello", says=("--model", "MODEL"))
    refused(2, "logits", "-m", MODEL, "--ids", "1", says="--out")
    refused(2, "logits", "-m", MODEL, "-o", "/dev/null", says="--ids")
    refused(2, "models", "extra", says="extra")
    refused(2, "pull", says="hf:org/name")
    refused(2, "pull", "hf:a/b", "hf:c/d", says="hf:c/d")
    refused(2, "run", "-m", MODEL, "--ids", "1", "hello", says="both")
    refused(2, "run", "-m", MODEL, "--ids", "1", "--ids-file", "x", says="both")


def test_ids():
    for bad in ("x", "1,x", "-1", "1.5", "99999999999", "2147483648"):
        refused(2, "run", "-m", MODEL, "--ids=" + bad, says="--ids")
    refused(2, "run", "-m", MODEL, "--ids=", says="at least one")
    refused(2, "run", "-m", MODEL, "--ids", "1,99999", says=("99999", "vocabulary"))
    assert ok("run", "-m", MODEL, "--ids", "[1, 2 ,3]", "-n", "2") == ok(*RUN)
    assert ok("run", "-m", MODEL, "--ids-file", "-", "-n", "2", stdin=b"1 2\n3\n") == ok(*RUN)


def test_environment_and_config():
    long, short = ok("run", "-m", MODEL, "--ids", "1,2,3", "-n", "4"), ok(*RUN)
    base = ["run", "-m", MODEL, "--ids", "1,2,3"]
    with tempfile.TemporaryDirectory() as d:
        conf = os.path.join(d, "conf")

        def config(body):
            with open(conf, "w") as f:
                f.write(body)
            return conf

        assert ok(*base, env={"SYSTOLE_MAX_TOKENS": "2"}) == short
        assert ok(*base, "--config", config("# two\n\n max-tokens = 2 # really\n")) == short
        assert ok(*base, "--config", conf, env={"SYSTOLE_MAX_TOKENS": "4"}) == long, "environment over file"
        assert ok(*base, "-n2", "--config", conf, env={"SYSTOLE_MAX_TOKENS": "4"}) == short, "command line over both"
        assert ok(*base, env={"SYSTOLE_CONFIG": conf}) == short
        assert ok(*base[:1], *base[3:], "--config", config('max-tokens = 2\nmodel = "%s"\nfile = "another command\'s"\n' % MODEL)) == short
        refused(2, *base, env={"SYSTOLE_MAX_TOKENS": "0"}, says=("SYSTOLE_MAX_TOKENS", "integer from 1", "'0'"))
        refused(2, *base, "--config", config("\nmax-tokens = none\n"), says=(conf + ":2", "max-tokens", "none"))
        refused(2, *base, "--config", config("max-token = 3\n"), says=(conf + ":1", "max-token", "max-tokens"))
        refused(2, *base, "--config", config("max-tokens\n"), says=(conf + ":1", "key = value"))
        refused(2, *base, "--config", config("config = x\n"), says="config")
        refused(2, *base, "--config", config('model = "x\n'), says="closing")
        refused(2, *base, "--config", config("a = \0\n"), says="text file")
        refused(2, *base, "--config", d + "/none", says="none")


def test_models_that_cannot_be_opened():
    with tempfile.TemporaryDirectory() as d:
        refused(1, "run", "-m", d + "/none", "--ids", "1", says="/none")
        refused(1, "run", "-m", d, "--ids", "1", says="config.json")
        for name, body in (("short.gguf", b"GGUF"), ("text.gguf", b"hello world, no model"), ("empty.gguf", b"")):
            with open(os.path.join(d, name), "wb") as f:
                f.write(body)
            refused(3, "inspect", "-m", os.path.join(d, name), says=name)
        os.mkdir(d + "/odd")
        with open(d + "/odd/config.json", "w") as f:
            f.write('{"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}')
        with open(d + "/odd/model.safetensors", "wb") as f:
            f.write(b"\x08\0\0\0\0\0\0\0{}      ")
        refused(4, "run", "-m", d + "/odd", "--ids", "1", says="NoSuchForCausalLM")
    refused(2, "run", "-m", MODEL, "--ids", "1", "--ctx-size", "16000000", says="--ctx-size")
    refused(4, "run", "-m", MODEL, "--ids", "1", "--backend", "quantum", says="quantum")
    refused(2, "run", "-m", "hf:nonsense", "--ids", "1", says="hf:org/name")


def test_output_must_arrive():
    with open("/dev/full", "wb") as full:
        r = subprocess.run([lib.PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE)
        assert r.returncode == 1 and b"standard output" in r.stderr, r
    refused(1, "logits", "-m", MODEL, "--ids", "1,2", "-o", "/dev/full", says="/dev/full")


def test_streams():
    r = run(*RUN)
    assert r.stderr == b"" and re.fullmatch(rb"\d+,\d+\n", r.stdout), r
    r = run(*RUN, "--progress")
    assert b"tok/s" in r.stderr and re.fullmatch(rb"\d+,\d+\n", r.stdout), r
    assert run(*RUN, "--progress", "--quiet").stderr == b""


def test_help():
    names = commands()
    assert "run" in names and "help" in names and names == sorted(names), names
    for name in names:
        out = text(ok(name, "--help"))
        assert out == text(ok("help", name)) and out.startswith("usage: systole " + name) and "examples:" in out, name
        assert max(map(len, out.split("\n"))) <= 130, name
    assert re.fullmatch(r"systole \d+\.\d+\.\d+", text(ok("--version")))
    assert ok("run", "--version") == ok("--version")
    refused(2, "help", "nothing", says="nothing")


def test_man_pages():
    with tempfile.TemporaryDirectory() as d:
        ok("help", "--man", d)
        pages = glob.glob(d + "/*.1")
        assert len(pages) == len(commands()) + 1
        for page in pages:
            r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", page], capture_output=True) if has("groff") else None
            assert not r or (r.returncode == 0 and not r.stderr), r.stderr
            with open(page) as f:
                assert f.read().startswith(".TH SYSTOLE")
        refused(1, "help", "--man", d + "/none", says="none")


def has(tool):
    return subprocess.run(["sh", "-c", "command -v " + tool], capture_output=True).returncode == 0


def complete(*words):
    script = ok("help", "--completion", "bash").decode()
    script += "\nCOMP_WORDS=(%s); COMP_CWORD=%d; _systole; printf '%%s\\n' \"${COMPREPLY[@]}\"" % (
        " ".join("'%s'" % w for w in words), len(words) - 1)
    r = subprocess.run(["bash", "-c", "compopt() { :; }\n" + script], capture_output=True)
    assert r.returncode == 0 and not r.stderr, r.stderr
    return r.stdout.decode().split()


def test_completion():
    assert complete("systole", "ru") == ["run"]
    assert complete("systole", "run", "--max-s") == ["--max-seqs"]
    assert complete("systole", "run", "--compute", "b") == ["bf16"]
    assert complete("systole", "run", "-m", "test/golden/mod") == ["test/golden/models"]
    assert complete("systole", "run", "--seed", "") == []
    script = ok("help", "--completion", "zsh")
    assert script.startswith(b"#compdef systole")
    if has("zsh"):
        r = subprocess.run(["zsh", "-n"], input=script, capture_output=True)
        assert r.returncode == 0, r.stderr


lib.main(dict(globals()))
