"""Runs `systole serve` for the tests: on 127.0.0.1, on a free port, ended at the end. Python's standard library only."""
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

from . import lib, tiny


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "%d %r" % (self.status, self.body[:300])


class Server:
    """with Server("--max-seqs", 4) as s: s.post("/v1/completions", {...})"""

    def __init__(self, *flags, model=None, arch="llama", talkative=True, tokenizer=True, env=None, ctx=192, patience=60):
        self.flags, self.given = [str(f) for f in flags], model
        self.how = {"arch": arch, "talkative": talkative, "tokenizer": tokenizer, "positions": ctx or 0}
        self.env, self.ctx, self.patience = env or {}, ctx, patience

    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.model = self.given or tiny.make(self.tmp.name + "/tiny", **self.how)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SYSTOLE", "HF_"))}
        env.update(self.env)
        own = [] if "--ctx-size" in self.flags or not self.ctx else ["--ctx-size", str(self.ctx)]
        where = [] if "--unix" in self.flags or "--port" in self.flags else ["--port", "0"]
        threads = [] if "--backend" in self.flags else ["--threads", "1"]
        argv = [lib.PROGRAM, "serve", "-m", self.model] + threads + where + own + self.flags
        self.errors = open(self.tmp.name + "/stderr", "w+b")
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, env=env)
        try:
            self.wait_up()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def wait_up(self):
        end = time.time() + self.patience * lib.SLOWER
        while time.time() < end:
            m = re.search(rb"serving '.*' at (https?|unix):(?://([0-9.]+):(\d+)|(\S+))", self.stderr())
            if m:
                self.host = m.group(2).decode() if m.group(2) else None
                self.port = int(m.group(3)) if m.group(3) else None
                return
            assert self.process.poll() is None, "the server ended: %s" % lib.text(self.stderr())
            time.sleep(0.02)
        raise AssertionError("the server did not come up: %s" % lib.text(self.stderr()))

    def stderr(self):
        with open(self.tmp.name + "/stderr", "rb") as f:
            return f.read()

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(timeout=40 * lib.SLOWER)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                code = "hung"
            if kind is None:
                assert code == 0, "exit %s: %s" % (code, lib.text(self.stderr())[-2000:])
        if kind is not None:
            print(lib.text(self.stderr())[-3000:])
        self.errors.close()
        self.process.stdout.close()
        self.tmp.cleanup()

    # ---- requests -----------------------------------------------------------------------------------------------

    def connect(self, timeout=30):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * lib.SLOWER)

    def request(self, method, path, body=None, headers=None, timeout=30):
        c = self.connect(timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            c.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return Answer(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def ok(self, path, body, **kw):
        r = self.post(path, body, **kw)
        assert r.status == 200, "%s: %r" % (path, r)
        return r.json

    def refused(self, status, path, body, param=None, code=None, says=(), **kw):
        """An error as OpenAI writes it: all four keys, the right status, no path of this machine."""
        r = self.post(path, body, **kw)
        what = str(body)[:120]
        assert r.status == status, "%s %s: %r instead of %d" % (path, what, r, status)
        e = r.json["error"]
        assert set(e) == {"message", "type", "param", "code"} and e["message"] and e["type"], "%s: %r" % (what, e)
        assert param is None or e["param"] == param, "%s: param %r instead of %r" % (what, e, param)
        assert code is None or e["code"] == code, "%s: code %r instead of %r" % (what, e, code)
        for part in (says,) if isinstance(says, str) else says:
            assert part in e["message"], "%s: %r not in %r" % (what, part, e["message"])
        assert self.tmp.name not in r.body.decode(), r
        return e

    def events(self, path, body, headers=None, timeout=30):
        """The data of a stream's events, up to and with [DONE]."""
        return list(self.stream(path, body, headers, timeout))

    def stream(self, path, body, headers=None, timeout=30):
        c = self.connect(timeout)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            assert r.status == 200, "%s: %d %r" % (path, r.status, r.read())
            assert r.headers["Content-Type"].startswith("text/event-stream"), r.headers
            data = b""
            for line in r:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    yield data.decode() if data == b"[DONE]" else json.loads(data)
                else:
                    assert line == b"\n", line
            assert data == b"[DONE]", data
        finally:
            c.close()

    def raw(self, timeout=30):
        s = socket.create_connection((self.host, self.port), timeout=timeout * lib.SLOWER)
        return s

    def exchange(self, data, timeout=30):
        """Bytes there, all bytes back until the server closes or goes quiet."""
        with self.raw(timeout) as s:
            try:
                s.sendall(data)
            except OSError:
                pass
            return receive(s, timeout)

    # ---- state --------------------------------------------------------------------------------------------------

    def metrics(self):
        out = {}
        for line in self.get("/metrics").body.decode().splitlines():
            m = re.match(r'([a-zA-Z0-9_:]+)\{model_name="[^"]*",engine="0"(?:,([a-z_]+)="([^"]*)")?\} (\S+)$', line)
            if m:
                out[m.group(1) + ("." + m.group(3) if m.group(3) else "")] = float(m.group(4))
        return out

    def rss(self):
        with open("/proc/%d/status" % self.process.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024

    def idle(self, seconds=10):
        """Waits until nothing runs, then checks that every block is back."""
        end = time.time() + seconds * lib.SLOWER
        while True:
            m = self.metrics()
            busy = m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + m["systole_open_requests"]
            if not busy and m["systole_http_busy"] == 0:
                break
            assert time.time() < end, "still busy: %r" % {k: v for k, v in m.items() if "bucket" not in k}
            time.sleep(0.02)
        assert m["systole_blocks.leased"] == 0 and m["vllm:kv_cache_usage_perc"] == 0, m
        assert m["systole_blocks.free"] + m["systole_blocks.cached"] == m["systole_blocks_total"], m
        assert m["systole_blocks_apart.leased"] == 0, m
        return m

    def healthy(self):
        """What has to be true after whatever a client did."""
        assert self.get("/health").status == 200
        assert self.ok("/v1/completions", {"prompt": "ab", "max_tokens": 2, "ignore_eos": True})["usage"]["completion_tokens"] == 2
        return self.idle()


def receive(s, timeout=30, enough=1 << 40):
    """What comes until the server closes, goes quiet, or enough bytes are there."""
    data, end = b"", time.time() + timeout * lib.SLOWER
    while time.time() < end and len(data) < enough:
        if not select.select([s], [], [], max(0, end - time.time()))[0]:
            break
        try:
            more = s.recv(65536)
        except OSError:
            break
        if not more:
            break
        data += more
    return data


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}
