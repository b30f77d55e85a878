#!/usr/bin/env python3
"""`systole route` before engines that are only played: roles, affinity, streams as they come, failures, draining."""
import http.client
import http.server
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

from support import lib
from support.lib import refused


class Engine:
    """Answers with its name; streams slowly when asked to; may be told to be ill."""

    def __init__(self, name, port=0):
        engine = self
        self.name, self.ill, self.seen = name, False, []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.send_response(503 if engine.ill else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                engine.seen.append((self.path, body, self.headers.get("Authorization")))
                self.send_response(418 if b"teapot" in body else 200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for i in range(3):
                    part = ("%s %d\n" % (engine.name, i)).encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()
                    time.sleep(0.3 if b"slow" in body else 0)
                self.wfile.write(b"0\r\n\r\n")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = "http://127.0.0.1:%d" % self.port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Router:
    def __init__(self, *args):
        env = dict(os.environ, SYSTOLE_ADMIN_KEY="k")
        self.process = subprocess.Popen([lib.PROGRAM, "route", "--port", "0", "--health-interval", "0.2", *args], stderr=subprocess.PIPE, env=env)
        line = self.process.stderr.readline().decode()
        assert line.startswith("listening at "), line
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        self.process.stderr.close()

    def ask(self, body, path="/v1/completions", method="POST", key=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": "Bearer " + key} if key else {}
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        return r.status, r.read().decode(), r

    def until(self, what, seconds=15):
        end = time.time() + seconds * lib.SLOWER
        while not what():
            assert time.time() < end, self.ask(None, "/router/metrics", "GET")[1]
            time.sleep(0.05)


def test_usage():
    refused(2, "route", says="--online")
    refused(2, "route", "--online", "ftp://a", says=("--online", "ftp://a"))
    refused(2, "route", "--online", "http://127.0.0.1:1", "--host", "nowhere", says="--host")
    refused(2, "route", "--config", "/no/file", says="/no/file")
    for text, says in (
        ("", "--online"),
        ("{}\n", (":1:", "key = value")),
        ("online = ftp://a\n", ("online", "ftp://a")),
        ("online = http://127.0.0.1:1\nport = 99999\n", (":2:", "port", "99999")),
        ("online = http://127.0.0.1:1\nhealth-interval = nan\n", (":2:", "health-interval", "nan")),
        ("online = http://127.0.0.1:1\ncolour = red\n", (":2:", "colour")),
        ("config = other\n", (":1:", "config")),
    ):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write(text)
            f.flush()
            refused(2, "route", "--config", f.name, says=says)


def test_passes_on():
    a, b, c = Engine("a"), Engine("b"), Engine("c")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("online = %s\nonline = %s\nbatch = %s\n" % (a.url, b.url, c.url))
        f.flush()
        with Router("--config", f.name) as r:
            for _ in range(5):  # the same question goes to the same engine
                status, body, answer = r.ask({"prompt": "hello"}, key="user")
                first = body.split()[0]
                assert status == 200 and answer.headers["Content-Type"] == "text/event-stream" and first in "ab", body
            assert len(a.seen) + len(b.seen) == 5 and (not a.seen or not b.seen)
            assert (a.seen + b.seen)[0] == ("/v1/completions", b'{"prompt": "hello"}', "Bearer user")
            assert r.ask({"prompt": "later", "service_tier": "flex"})[1].startswith("c ")
            assert r.ask({"prompt": "later", "priority": 3})[1].startswith("c ")
            assert r.ask({"prompt": "teapot"})[0] == 418
            many = {r.ask({"prompt": "question %d" % i})[1][0] for i in range(40)}
            assert many == {"a", "b"}, many
            connection = http.client.HTTPConnection("127.0.0.1", r.port, timeout=30)
            connection.request("POST", "/v1/completions", '{"prompt":"slow"}')
            start, answer = time.time(), None
            answer = connection.getresponse()
            answer.read(1)
            assert time.time() - start < 0.55 * lib.SLOWER  # before the engine has finished
            answer.read()
    for e in (a, b, c):
        e.stop()


def test_failures_and_draining():
    a, b = Engine("a"), Engine("b")
    with Router("--online", a.url, "--online", b.url) as r:
        a.stop()  # without a word: the next request that meets it goes to the other
        assert all(r.ask({"prompt": "x%d" % i})[1].startswith("b ") for i in range(12))
        a = Engine("a", a.port)
        r.until(lambda: any(r.ask({"prompt": "y%d" % i})[1].startswith("a ") for i in range(12)))
        b.ill = True
        r.until(lambda: all(r.ask({"prompt": "z%d" % i})[1].startswith("a ") for i in range(12)))
        b.ill = False
        r.until(lambda: any(r.ask({"prompt": "v%d" % i})[1].startswith("b ") for i in range(12)))
        assert r.ask({}, "/router/drain?backend=" + a.url)[0] == 401
        assert r.ask({}, "/router/drain?backend=" + a.url, key="wrong")[0] == 401
        assert r.ask({}, "/router/drain?backend=http://none", key="k")[0] == 404
        assert r.ask({}, "/router/drain?backend=" + a.url, key="k")[0] == 200
        assert all(r.ask({"prompt": "w%d" % i})[1].startswith("b ") for i in range(12))
        assert r.ask({}, "/router/undrain?backend=" + a.url, key="k")[0] == 200
        a.ill = b.ill = True
        r.until(lambda: r.ask({"prompt": "nobody"})[0] == 503)
        status, body, _ = r.ask({"prompt": "nobody"})
        assert json.loads(body)["error"]["code"] == 503
        assert "systole_router_backend_up" in r.ask(None, "/router/metrics", "GET")[1]
        assert r.ask(None, "/health", "GET")[0] == 200
        assert r.ask({"prompt": "x" * (9 << 20)})[0] == 413
    for e in (a, b):
        e.stop()


if __name__ == "__main__":
    lib.main(globals())
