#!/usr/bin/env python3
"""Flags of `systole serve` that make no sense are refused by name, before a port is opened."""
import tempfile

from support import lib
from support.lib import refused
from support.server import Server


def test_flags():
    model = "test/golden/models/llama"
    for flag in ("port", "max-body", "max-connections", "max-queue", "header-timeout", "body-timeout", "idle-timeout", "drain-timeout", "stuck-after", "max-seqs",
                 "max-batched-tokens", "ctx-size", "block-size", "threads", "kv-memory", "max-decode-gap-ms", "swap-memory"):
        for value in ("-1", "abc", "99999999999999999999", "", "1e999", "nan"):
            refused(2, "serve", "-m", model, "--" + flag, value, says="--" + flag)
    for flag in ("max-body", "max-connections", "max-queue", "max-seqs", "ctx-size", "threads", "block-size", "max-batched-tokens"):
        refused(2, "serve", "-m", model, "--" + flag, "0", says="--" + flag)
    refused(2, "serve", "-m", model, "--no-such-flag", says="--no-such-flag")
    refused(2, "serve", says="--model")
    assert lib.run("serve", "-m", "/nonexistent", "--port", 0).returncode in (1, 3)
    refused(2, "serve", "-m", model, "--host", "no such host!", says="--host")
    refused(1, "serve", "-m", model, "--port", 0, "--api-key-file", "/nonexistent", says="--api-key-file")
    with tempfile.NamedTemporaryFile("w") as f:
        refused(2, "serve", "-m", model, "--port", 0, "--api-key-file", f.name, says="--api-key-file")
    with Server() as s:
        line = refused(1, "serve", "-m", model, "--port", s.port, says=("--port", str(s.port)))
        assert "in use" in line, line


if __name__ == "__main__":
    lib.main(globals())
