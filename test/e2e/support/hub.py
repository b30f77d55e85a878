"""A model hub on the loopback, for tests: Hugging Face's listing and files, with faults to order."""
import hashlib
import http.server
import json
import threading
import urllib.parse


def sha256(b):
    return hashlib.sha256(b).hexdigest()


def git_blob(b):
    return hashlib.sha1(b"blob %d\0" % len(b) + b).hexdigest()


class Hub:
    """files: path -> bytes of the repository org/name. faults are taken one by one: (kind, argument)."""

    def __init__(self, files, repo="org/name", token=None, page=1000):
        self.files, self.repo, self.token, self.page = dict(files), repo, token, page
        self.listing = None   # replaces the honest one
        self.faults = {}      # path -> list of faults for its next requests
        self.log = []         # (path, Range or None)
        self.cdn = None       # another hub's address that file requests are sent to
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.answer(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass  # clients hang up in the middle: that is what is tested

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def list(self):
        out = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "sub"}]
        for path, b in self.files.items():
            e = {"type": "file", "oid": git_blob(b), "size": len(b), "path": path}
            if path.endswith((".gguf", ".safetensors")):
                e["lfs"] = {"oid": sha256(b), "size": len(b), "pointerSize": 134}
            out.append(e)
        return out

    def send(self, h, status, body=b"", headers=(), cut=None):
        h.send_response(status)
        for k, v in headers:
            h.send_header(k, v)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body if cut is None else body[:cut])
        if cut is not None:  # the connection breaks in the middle
            h.wfile.flush()
            h.close_connection = True

    def answer(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        self.log.append((path, h.headers.get("Range"), h.headers.get("Authorization")))
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            return self.send(h, 401, b"{}")
        if path == "/api/models/%s/tree/main" % self.repo:
            return self.answer_listing(h, urllib.parse.parse_qs(url.query))
        head = "/%s/resolve/main/" % self.repo
        if not path.startswith(head) or path[len(head) :] not in self.files:
            return self.send(h, 404, b"not found")
        if self.cdn:
            return self.send(h, 302, b"", [("Location", self.cdn + path)])
        self.answer_file(h, path[len(head) :])

    def answer_listing(self, h, query):
        fault = (self.faults.get("listing") or [None]).pop(0)
        if fault:
            return self.send(h, fault[1])
        entries = self.listing if self.listing is not None else self.list()
        at = int(query.get("cursor", ["0"])[0])
        more = []
        if at + self.page < len(entries):
            more = [("Link", '<%s/api/models/%s/tree/main?recursive=true&cursor=%d>; rel="next"'
                     % (self.url, self.repo, at + self.page))]
        self.send(h, 200, json.dumps(entries[at : at + self.page]).encode(), more)

    def answer_file(self, h, name):
        body, status, headers = self.files[name], 200, []
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if fault and fault[0] == "status":
            return self.send(h, fault[1], b"no")
        if fault and fault[0] == "body":
            body = fault[1]
        asked = h.headers.get("Range")
        if asked and not (fault and fault[0] == "no range"):
            lo = int(asked.split("=")[1].split("-")[0])
            if lo >= len(body):
                return self.send(h, 416, b"")
            headers = [("Content-Range", "bytes %d-%d/%d" % (lo, len(body) - 1, len(body)))]
            body, status = body[lo:], 206
        self.send(h, status, body, headers, fault[1] if fault and fault[0] == "cut" else None)
