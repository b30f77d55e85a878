#!/usr/bin/env python3
"""schemathesis, a generator of requests from an OpenAPI description: whatever it makes of ours, no answer is a 5xx, and each has a
status, a content type and a shape that the description names."""
import os
import subprocess
import sys

from support import lib, venv
from support.lib import Skip
from support.server import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"


def test_generated_requests():
    python = venv.python("schemathesis", "schemathesis")
    with Server("--max-seqs", 8, "--max-body", "2M") as s:
        url = "http://%s:%d/openapi.json" % (s.host, s.port)
        argv = [os.path.abspath(os.path.join(os.path.dirname(python), "schemathesis")), "run", url, "--checks", CHECKS, "-n", "15", "--max-time", "40",
                "--request-timeout", "60", "--suppress-health-check", "all", "--no-color", "--seed", os.environ.get("SCHEMA_SEED", "1")]
        r = subprocess.run(argv, capture_output=True, timeout=280 * lib.SLOWER, cwd=s.tmp.name)
        out = lib.text(r.stdout)
        assert r.returncode == 0, "exit %d: %s %s" % (r.returncode, out[-3000:], lib.text(r.stderr)[-1000:])
        print([line for line in out.splitlines() if "generated" in line])
        s.healthy()


if __name__ == "__main__":
    try:
        venv.python("schemathesis", "schemathesis")
    except Skip as why:
        print("skipped all: %s\nserve_schema.py: 0 passed, 0 failed, 1 skipped" % why)
        sys.exit(0)
    lib.main(globals())
