#!/usr/bin/env python3
"""HTTP itself: keys, origins, TLS, UNIX sockets, limits on headers, bodies, time and connections, the access log, signals."""
import http.client
import json
import os
import resource
import select
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time

from support import lib
from support.lib import Skip, refused
from support.server import Server, chat, receive


def head(data):
    """Status, headers and body of the first response in bytes."""
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.split(b"\r\n")
    return int(lines[0].split()[1]), {k.strip().lower(): v.strip() for k, v in (x.decode().split(":", 1) for x in lines[1:])}, body


def post(path, ask):
    data = json.dumps(ask).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)


def test_keys():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("# keys\nsecret-one\n\n  secret-two  \n")
        f.flush()
        with Server("--api-key-file", f.name) as s:
            for path in ("/v1/models", "/v1/models/", "//v1/models", "/v1//models", "/v1/models/tiny", "/v1/%6dodels", "/v1/../v1/models", "/V1/MODELS",
                         "/%2e%2e/v1/models", "/v1/models?x=1", "/metrics", "/openapi.json", "/tokenize", "/nothing", "/", "/health/", "//health", "/Health",
                         "/health/../v1/models", "/ready/x", "/healthz"):
                for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE"):
                    a = s.request(method, path)
                    assert a.status == 401 and a.headers["WWW-Authenticate"] == "Bearer", (method, path, a)
                    assert method == "HEAD" or a.json["error"]["code"] == "invalid_api_key", a
            for path in ("/health", "/ready"):
                assert s.get(path).status == 200 and s.request("HEAD", path).status == 200
            for bad in ("secret-one", "Bearer", "Bearer ", "Bearer secret-on", "Bearer secret-one ", "Bearer secret-one2", "Basic secret-one", "Bearer # keys",
                        "Bearer " + "x" * 5000):
                assert s.get("/v1/models", headers={"Authorization": bad}).status in (401, 200 if bad.endswith("one ") else 401), bad
            for key in ("secret-one", "secret-two"):
                h = {"Authorization": "Bearer " + key}
                assert s.get("/v1/models", headers=h).status == 200
                assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=h).status == 200
            big = s.post("/v1/completions", b" " * 3000000)
            assert big.status == 401, big


def test_tenants_do_not_share():
    """What one key's requests left in the cache is neither seen nor timed by another's."""
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("alice\nbob\n")
        f.flush()
        with Server("--api-key-file", f.name, "--block-size", 8, "--max-seqs", 4) as s:
            def ask(key, text, **more):
                r = s.post("/v1/completions", {"prompt": text, "max_tokens": 6, "temperature": 0, **more}, headers={"Authorization": "Bearer " + key}).json
                return r["usage"]["prompt_tokens_details"]["cached_tokens"], r["choices"][0]["text"]

            secret = "the secret of alice is 4711, do not tell"
            cold, answer = ask("alice", secret)
            assert cold == 0
            assert ask("alice", secret) == (len(secret) // 8 * 8 if len(secret) % 8 else len(secret) - 8, answer)
            for n in range(1, len(secret) + 1, 3):
                assert ask("bob", secret[:n])[0] == 0 or n > 8 and ask("bob", secret[: n - 1])[0] < n, n
            fresh, same = ask("bob", secret, cache_salt="new")
            assert fresh == 0 and same == answer
            assert ask("alice", secret, cache_salt="x")[0] == 0 and ask("alice", secret, cache_salt="x")[0] > 0
            # many tenants at once, each with its own secret: every answer is the one it gives alone
            prompts = ["tenant %d says %s" % (i, chr(97 + i) * 20) for i in range(12)]
            alone = [ask("alice", p, cache_salt="alone%d" % i)[1] for i, p in enumerate(prompts)]
            got = [None] * 12

            def one(i):
                got[i] = [ask("alice" if i % 2 else "bob", prompts[i], cache_salt="t%d" % i)[1] for _ in range(4)]

            threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            assert all(g == [a] * 4 for g, a in zip(got, alone)), (got, alone)


def test_origins():
    with Server() as s:
        r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"Origin": "http://evil.example"})
        assert r.status == 403 and "Access-Control-Allow-Origin" not in r.headers
        assert s.get("/v1/models", headers={"Origin": "http://%s:%d" % (s.host, s.port)}).status == 200
        assert s.request("OPTIONS", "/v1/completions", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}).status == 403
    with Server("--cors-origin", "https://app.example") as s:
        pre = s.request("OPTIONS", "/v1/completions", headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
        assert pre.status == 204 and pre.headers["Access-Control-Allow-Origin"] == "https://app.example", pre
        wanted = "authorization,content-type,x-stainless-arch,x-stainless-os"  # what OpenAI's client for browsers asks for
        pre = s.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
                                                                    "Access-Control-Request-Headers": wanted})
        assert pre.status == 204 and pre.headers["Access-Control-Allow-Headers"] == wanted and "POST" in pre.headers["Access-Control-Allow-Methods"], pre.headers
        r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"Origin": "https://app.example"})
        assert r.status == 200 and r.headers["Access-Control-Allow-Origin"] == "https://app.example" and r.headers["Vary"] == "Origin"
        assert s.get("/v1/models", headers={"Origin": "https://other.example"}).status == 403
        assert "Access-Control-Allow-Origin" not in s.get("/v1/models").headers


def test_unix_socket():
    with tempfile.TemporaryDirectory() as d:
        path = d + "/s.sock"
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(path)
        stale.close()
        with Server("--unix", path):
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(path)
                c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert head(receive(c, 5))[0] == 200
            refused(1, "serve", "-m", "test/golden/models/llama", "--unix", path, says="--unix")
        assert not os.path.exists(path)


def test_tls():
    with tempfile.TemporaryDirectory() as d:
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", d + "/k", "-out", d + "/c", "-days", "2", "-subj",
                               "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True)
        if made.returncode:
            raise Skip("openssl cannot make a certificate")
        with Server("--tls-cert", d + "/c", "--tls-key", d + "/k") as s:
            context = ssl.create_default_context(cafile=d + "/c")
            c = http.client.HTTPSConnection(s.host, s.port, timeout=20, context=context)
            for _ in range(3):
                c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}))
                r = c.getresponse()
                data = r.read()
                assert r.status == 200 and data.endswith(b"data: [DONE]\n\n"), data
            c.close()
            plain = s.exchange(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 3)
            assert not plain.startswith(b"HTTP/1.1 200"), plain
        refused(2, "serve", "-m", "test/golden/models/llama", "--port", 0, "--tls-cert", d + "/c", says="--tls-key")
        refused(2, "serve", "-m", "test/golden/models/llama", "--port", 0, "--tls-cert", d + "/c", "--tls-key", d + "/c", says="--tls-cert")
        refused(1, "serve", "-m", "test/golden/models/llama", "--port", 0, "--tls-cert", d + "/none", "--tls-key", d + "/k", says="--tls-cert")


def test_size_limits():
    with Server("--max-body", "64K") as s:
        for n in (40 << 10, 50 << 10):
            r = s.get("/v1/models", headers={"X-Big": "x" * n})
            assert r.status == 431 and r.json["error"]["code"] == "headers_too_large", r
        for n in (100 << 10, 1 << 20):
            assert s.exchange(b"GET /health HTTP/1.1\r\nX: " + b"y" * n + b"\r\n\r\n", 5)[9:12] in (b"431", b""), n
        assert s.exchange(b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n", 5)[9:12] in (b"414", b"431", b""), "a long path"
        assert s.exchange(b"GET /health HTTP/1.1\r\n" + b"".join(b"h%d: 1\r\n" % i for i in range(20000)) + b"\r\n", 5)[9:12] in (b"431", b"")
        s.refused(413, "/v1/completions", b"x" * (65 << 10), code="body_too_large")
        s.refused(413, "/v1/completions", b"x" * (4 << 20), code="body_too_large")
        # announced, and asked about first
        said = s.exchange(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000000\r\nExpect: 100-continue\r\n\r\n", 5)
        assert head(said)[0] == 413 and json.loads(head(said)[2])["error"]["code"] == "body_too_large", said
        # not announced: chunks that never end
        with s.raw() as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(1000):
                    c.sendall(b"10000\r\n" + b"\n" * 65536 + b"\r\n")
                c.sendall(b"0\r\n\r\n")
            except OSError:
                pass
            assert receive(c, 5, 12)[9:12] in (b"413", b"")
        # 2 GiB of line breaks
        with s.raw() as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2147483648\r\n\r\n")
            block, before = b"\n" * (1 << 20), s.rss()
            try:
                for _ in range(200):
                    c.sendall(block)
            except OSError:
                pass
            assert receive(c, 3, 12)[9:12] in (b"413", b"")
            assert s.rss() - before < 64 << 20
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1000,
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            got = s.exchange(junk, 1 / lib.SLOWER)  # silence is an answer too, and is not waited for longer
            assert not got or got[9:10] in b"245", (junk, got)
        s.healthy()


def test_time_limits():
    with Server("--header-timeout", 1, "--body-timeout", 1.5, "--idle-timeout", 2) as s:
        start = time.time()
        slow_head, slow_body, idle, kept = s.raw(), s.raw(), s.raw(), s.raw()
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        slow_head.sendall(b"GET /health HT")
        slow_body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        ends = {}
        socks = {"head": slow_head, "body": slow_body, "idle": idle, "kept": kept}
        data = {k: b"" for k in socks}
        while len(ends) < 4 and time.time() - start < 30 * lib.SLOWER:
            for k, c in socks.items():
                if k in ends:
                    continue
                try:
                    if k in ("head", "body"):
                        c.sendall(b"x")
                    c.settimeout(0.02)
                    more = c.recv(1000)
                    data[k] += more
                    if not more:
                        ends[k] = time.time() - start
                except TimeoutError:
                    pass
                except OSError:
                    ends[k] = time.time() - start
            time.sleep(0.1)
        assert set(ends) == set(socks), (ends, data)
        assert ends["head"] > 0.9 and ends["body"] > 1.4 and ends["idle"] > 1.9 and ends["kept"] > 1.9, ends
        for k in ("head", "body"):
            status, _, body = head(data[k])
            assert status == 408 and json.loads(body)["error"]["code"] == "timeout", data[k]
        assert head(data["kept"])[0] == 200 and data["idle"] == b""
        for c in socks.values():
            c.close()
        s.healthy()


def test_connection_limit():
    with Server("--max-connections", 20) as s:
        held = [s.raw() for _ in range(20)]
        for c in held:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert all(c.recv(1000)[9:12] == b"200" for c in held)
        r = s.get("/v1/models")
        assert r.status == 503 and r.json["error"]["code"] == "too_many_connections" and r.headers["Retry-After"], r
        assert s.get("/health").status == 200 and s.get("/ready").status == 200
        flood = [s.raw() for _ in range(100)]
        time.sleep(0.2)
        for c in held + flood:
            c.close()
        time.sleep(0.5)
        assert s.get("/v1/models").status == 200
        s.healthy()


def test_many_idle_and_slow_connections():
    """1,000 that say nothing, 1,000 that dribble, 12 endless streams: all that is asked beside them is answered before any ends."""
    need = 2600
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < need:
        raise Skip("only %d open files are allowed" % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
    long_time = 3600
    with Server("--max-seqs", 24, "--max-connections", 4000, "--header-timeout", long_time, "--idle-timeout", long_time, ctx=100000) as s:
        idle, slow = [], []
        for _ in range(1000):
            idle.append(s.raw())
            slow.append(s.raw())
            slow[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        ask = {"prompt": "ab", "temperature": 0, "ignore_eos": True}
        endless = [s.raw() for _ in range(12)]
        for c in endless:
            c.sendall(post("/v1/completions", {**ask, "max_tokens": 99990, "stream": True}))
        while s.metrics()["vllm:num_requests_running"] < len(endless):
            time.sleep(0.005)
        for n in range(60):
            for c in slow[n % 20 :: 20]:
                c.sendall(b"y")
            for c in endless:  # read on, or the server waits for the reader
                assert c.recv(65536), "a stream ended"
            assert s.get("/health").status == 200
            if n % 5 == 0:
                assert len(s.events("/v1/completions", {**ask, "max_tokens": 30})) >= 32
        assert s.metrics()["vllm:num_requests_running"] == len(endless), "a stream ended"
        poll = select.poll()
        for c in idle + slow:
            poll.register(c, select.POLLIN)
        assert poll.poll(0) == [], "a connection was answered or closed"
        [c.close() for c in idle + slow + endless]
        s.healthy()


def test_access_log():
    with tempfile.TemporaryDirectory() as d:
        with Server("--access-log", d + "/log") as s:
            s.get("/health", headers={"X-Request-Id": "one"})
            s.post("/v1/completions", {"prompt": "abc", "max_tokens": 2}, headers={"X-Request-Id": "two"})
            s.get('/no"thing\\', headers={"X-Request-Id": "three"})
        with open(d + "/log") as f:
            lines = [json.loads(x) for x in f]
        assert [x["request_id"] for x in lines] == ["one", "two", "three"], lines
        assert [x["status"] for x in lines] == [200, 200, 404] and lines[1]["prompt_tokens"] == 3 and lines[1]["completion_tokens"] == 2
        refused(1, "serve", "-m", "test/golden/models/llama", "--port", 0, "--access-log", d + "/none/log", says="--access-log")
    with Server("--access-log", "-") as s:  # a pipe that nobody reads must not stop the server
        for _ in range(600):
            assert s.get("/health", headers={"X-Request-Id": "x" * 64}).status == 200


def test_signals():
    with Server("--max-seqs", 4, ctx=512) as s:
        os.kill(s.process.pid, signal.SIGHUP)
        os.kill(s.process.pid, signal.SIGPIPE)
        os.kill(s.process.pid, signal.SIGPIPE)
        s.healthy()
        slow = {"prompt": "ab", "max_tokens": 500, "temperature": 0}
        got, order = [], []
        threads = [threading.Thread(target=lambda: got.append(s.events("/v1/completions", slow))) for _ in range(6)]
        [t.start() for t in threads]
        while not got:  # all six are in: those that come after the signal are refused
            m = s.metrics()
            if m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == 6:
                break
            time.sleep(0.005)
        s.process.send_signal(signal.SIGTERM)
        end = time.time() + 10 * lib.SLOWER
        while s.process.poll() is None and time.time() < end:
            try:
                ready, health = s.get("/ready"), s.get("/health")
                more = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
            except OSError:
                break
            if ready.status == 200:
                continue
            order.append(ready.json["status"])
            assert ready.status == 503 and health.status == 200 and more.status == 503 and more.headers["Retry-After"], (ready, health, more)
            time.sleep(0.02)
        [t.join() for t in threads]
        assert order and set(order) == {"draining"}, order
        assert len(got) == 6 and all(e[-1] == "[DONE]" and len(e) >= 502 for e in got), [len(e) for e in got]
        assert s.process.wait(timeout=20 * lib.SLOWER) == 0
    for again in (False, True):
        with Server("--max-seqs", 2, "--drain-timeout", 3600 if again else 0.5, ctx=100000) as s:
            events = []
            t = threading.Thread(target=lambda: events.extend(swallow(s.stream("/v1/completions", {"prompt": "ab", "max_tokens": 99990, "ignore_eos": True}))))
            t.start()
            while not s.metrics()["vllm:num_requests_running"]:
                time.sleep(0.005)
            start = time.time()
            s.process.send_signal(signal.SIGTERM)
            if again:
                time.sleep(0.3)
                s.process.send_signal(signal.SIGTERM)
            code = s.process.wait(timeout=20 * lib.SLOWER)
            waited = time.time() - start
            t.join()
            finish = [c["finish_reason"] for e in events if isinstance(e, dict) for c in e.get("choices", []) if c["finish_reason"]]
            if again:  # not after the hour that the first signal allows
                assert code == 128 + signal.SIGTERM and finish == [], (code, finish)
            else:
                assert code == 0 and finish == ["cancelled"] and waited > 0.4, (code, finish, waited)
            s.process.returncode = 0 if again else code


def swallow(stream):
    try:
        yield from stream
    except (OSError, http.client.HTTPException, AssertionError):
        return


def test_restart_on_the_same_port():
    with Server() as s:
        port = s.port
        s.healthy()
        s.process.kill()
        s.process.wait()
        with Server("--port", port) as again:
            for _ in range(1000):
                assert again.get("/health").status == 200
            again.healthy()
        s.process.returncode = 0


if __name__ == "__main__":
    lib.main(globals())
