#!/usr/bin/env python3
"""systole batch: every line gets its result, whatever is wrong with it; a run that was killed goes on where it stopped."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time

from support import lib, tiny
from support.lib import ok, refused
from support.server import Server, chat


class Folder:
    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.dir = self.tmp.name
        self.model = tiny.make(self.dir + "/tiny")
        self.i, self.o = self.dir + "/in.jsonl", self.dir + "/out.jsonl"
        return self

    def __exit__(self, *_):
        self.tmp.cleanup()

    def write(self, lines):
        with open(self.i, "w") as f:
            f.write("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))

    def read(self):
        with open(self.o) as f:
            return [json.loads(x) for x in f]

    def args(self, *more):
        return ["batch", "-m", self.model, "-i", self.i, "-o", self.o, "--threads", "1", "--ctx-size", "192", "--max-seqs", "8", *more]


def line(i, body, url="/v1/completions", **more):
    return {"custom_id": str(i), "method": "POST", "url": url, "body": body, **more}


def asks(n):
    rng = random.Random(3)
    return [line(i, {"prompt": "p%d" % i + "x" * rng.randrange(30), "max_tokens": rng.randrange(1, 20), "temperature": 0}) for i in range(n)]


def test_results():
    with Folder() as f:
        lines = asks(40) + [line("chat", chat("hi", max_tokens=3, temperature=0), "/v1/chat/completions"), line("embed", {"input": ["a", "b"]}, "/v1/embeddings"),
                            line("many", {"prompt": ["p%d" % i for i in range(30)], "max_tokens": 2}), "", "   "]
        f.write(lines)
        assert ok(*f.args()) == b""
        got = {r["custom_id"]: r for r in f.read()}
        assert len(got) == 43 and all(r["response"]["status_code"] == 200 and r["error"] is None and r["id"] for r in got.values())
        with Server("--max-seqs", 1, model=f.model) as s:
            for x in lines[:41]:
                want = s.ok(x["url"], x["body"])["choices"]
                assert got[x["custom_id"]]["response"]["body"]["choices"] == want, x
        assert len(got["embed"]["response"]["body"]["data"]) == 2 and len(got["many"]["response"]["body"]["choices"]) == 30
        before = open(f.o).read()
        ok(*f.args())
        assert open(f.o).read() == before, "a second run has nothing to do"


def test_bad_lines_stop_nothing():
    with Folder() as f:
        good = line("good", {"prompt": "a", "max_tokens": 1})
        f.write(["{", "[]", "7", {"method": "POST"}, {**good, "custom_id": ""}, {**good, "custom_id": 7}, {**good, "custom_id": "m", "method": "GET"},
                 {**good, "custom_id": "u", "url": "/v1/other"}, {**good, "custom_id": "b", "body": None}, line("t", {"prompt": "a", "temperature": 9}),
                 line("long", {"prompt": "a" * 500}), line("s", {"prompt": "a", "stream": True}), "\xff\udc80".encode("utf-8", "surrogatepass").decode("latin-1"),
                 "[" * 100000, good, {**good, "body": {"prompt": "other"}}])
        ok(*f.args())
        rows = f.read()
        assert len(rows) == 15, len(rows)
        by = {r["custom_id"]: r for r in rows if r["custom_id"]}
        assert by["good"]["response"]["status_code"] == 200
        for k, code in (("m", "invalid_method"), ("u", "invalid_url"), ("b", "invalid_body")):
            assert by[k]["response"] is None and by[k]["error"]["code"] == code, by[k]
        for k, param in (("t", "temperature"), ("long", "prompt"), ("s", "stream")):
            assert by[k]["response"]["status_code"] == 400 and by[k]["response"]["body"]["error"]["param"] == param, by[k]
        assert sum(r["custom_id"] is None and r["error"]["code"] in ("invalid_json_line", "missing_custom_id") for r in rows) == 8
        before = open(f.o).read()
        ok(*f.args())
        assert open(f.o).read() == before


def test_goes_on_after_a_kill():
    with Folder() as f:
        lines = asks(300)
        f.write(lines)
        kills = 0
        env = {k: v for k, v in os.environ.items() if not k.startswith("SYSTOLE")}
        while kills < 4:
            p = subprocess.Popen([lib.PROGRAM] + f.args(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
            start = os.path.getsize(f.o) if os.path.exists(f.o) else 0
            while p.poll() is None and (not os.path.exists(f.o) or os.path.getsize(f.o) < start + 9000):
                time.sleep(0.001)
            p.kill()
            p.wait()
            kills += 1
            with open(f.o, "rb+") as out:  # and the last line is torn
                out.seek(0, 2)
                out.truncate(out.tell() - 7)
        ok(*f.args())
        rows = f.read()
        assert sorted(int(r["custom_id"]) for r in rows) == list(range(300)), len(rows)


def test_ctrl_c():
    with Folder() as f:
        f.write([line(i, {"prompt": "a%d" % i, "max_tokens": 150, "temperature": 0}) for i in range(400)])
        p = subprocess.Popen([lib.PROGRAM] + f.args(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not os.path.exists(f.o) or os.path.getsize(f.o) == 0:
            time.sleep(0.005)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=20 * lib.SLOWER)
        assert p.returncode == 130, (p.returncode, err)
        rows = f.read()
        assert 0 < len(rows) < 400 and all(r["response"]["body"]["choices"][0]["finish_reason"] == "length" for r in rows)


def test_usage():
    with Folder() as f:
        f.write(asks(1))
        refused(2, "batch", "-m", f.model, "-i", f.i, says="--output")
        refused(2, "batch", "-m", f.model, "-i", f.i, "-o", f.i, says="--output")
        refused(1, "batch", "-m", f.model, "-i", f.dir + "/none", "-o", f.o, says="--input")
        refused(1, *f.args()[:5], "-o", f.dir + "/none/out", says="none/out")
        with open(f.o, "w") as o:
            o.write('{"something": "else"}\n')
        refused(3, *f.args(), says=("line 1", "custom_id"))
        with open(f.o, "w") as o:
            o.write("not json\n{}\n")
        refused(3, *f.args(), says="line 1")
        assert open(f.o).read() == "not json\n{}\n", "a file that is no result is left alone"
        os.unlink(f.o)
        r = lib.run(*f.args("--progress"))
        assert r.returncode == 0 and b"1 answered" in r.stderr, r.stderr


if __name__ == "__main__":
    lib.main(globals())
