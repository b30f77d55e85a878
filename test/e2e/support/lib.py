"""What the end-to-end tests share: running the program, counting checks. Python's standard library only."""
import array
import json
import os
import struct
import subprocess
import sys
import time
import traceback

PROGRAM = os.environ.get("SYSTOLE", "build/release/systole")
SLOWER = float(os.environ.get("SYSTOLE_TEST_SLOWER", "1"))  # sanitizers and emulators multiply every time limit


class Skip(Exception):
    pass


def run(*args, stdin=b"", env=None, timeout=60, program=None):
    """Runs the program; the environment's SYSTOLE_* and HF_* are not passed on, but for those given."""
    clean = {k: v for k, v in os.environ.items() if k == "SYSTOLE_ISA" or not k.startswith(("SYSTOLE", "HF_"))}
    clean.update(env or {})
    argv = [program or PROGRAM] + [str(a) for a in args]
    return subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout * SLOWER, env=clean)


def line_of(args):
    """The command as a reader wants it in a failure: long lists of ids cut."""
    return " ".join(str(a) if len(str(a)) < 60 else str(a)[:60] + "..." for a in args)


def ok(*args, **kw):
    r = run(*args, **kw)
    assert r.returncode == 0, "%s: exit %d: %s" % (line_of(args), r.returncode, text(r.stderr)[:300])
    return r.stdout


def text(b):
    return b.decode("utf-8", "replace").strip()


def refused(status, *args, says=(), **kw):
    """Exit status, one line on stderr that names what it should, nothing on stdout."""
    r = run(*args, **kw)
    line = text(r.stderr)
    assert r.returncode == status, "%s: exit %d instead of %d: %s" % (line_of(args), r.returncode, status, line[:300])
    assert line.startswith("systole: ") and "\n" not in line, "%s: not one line: %r" % (line_of(args), line)
    for part in (says,) if isinstance(says, str) else says:
        assert part in line, "%s: %r not in %r" % (line_of(args), part, line)
    assert r.stdout == b"", "%s: stdout: %r" % (line_of(args), r.stdout[:100])
    return line


def tensors(path):
    """The f32 and i32 tensors of a safetensors file: name -> (shape, array)."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__" and t["dtype"] in ("F32", "I32"):
            a, b = t["data_offsets"]
            values = array.array("f" if t["dtype"] == "F32" else "i")
            values.frombytes(raw[8 + n + a : 8 + n + b])
            out[name] = (t["shape"], values)
    return out


def raw_tensors(path):
    """All tensors of a safetensors file: name -> (data type, shape, bytes)."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = {k: v for k, v in json.loads(raw[8 : 8 + n]).items() if k != "__metadata__"}
    return {k: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]) for k, t in head.items()}


def write_tensors(path, tensors):
    """A safetensors file of them, as raw_tensors() has them."""
    head, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(raw for _, _, raw in tensors.values())


def main(tests):
    """Runs functions named test_*; ends with the line that the runner adds up."""
    passed, failed, skipped = 0, 0, 0
    for name, fn in sorted(tests.items()):
        if not name.startswith("test_") or (len(sys.argv) > 1 and name not in sys.argv[1:]):
            continue
        start = time.time()
        try:
            fn()
            passed += 1
            print("ok %s, %.1f s" % (name, time.time() - start), flush=True)
        except Skip as why:
            skipped += 1
            print("skipped %s: %s" % (name, why), flush=True)
        except Exception as e:
            failed += 1
            print("FAILED %s: %s" % (name, e), flush=True)
            if not isinstance(e, AssertionError):
                traceback.print_exc()
    print("%s: %d passed, %d failed, %d skipped" % (os.path.basename(sys.argv[0]), passed, failed, skipped))
    sys.exit(failed > 0)
