#!/usr/bin/env python3
"""The benchmark command: what it prints and writes, a load on a server, the record of that server's run replayed."""
import json
import os
import tempfile
import xml.etree.ElementTree as xml

from support import lib, tiny
from support.server import Server

MODEL = "test/golden/models/llama"
STATS = ["mean", "median", "std", "p90", "p99", "p99.9"]


def bench(*args, **kw):
    return lib.ok("bench", *args, **kw)


def test_usage():
    lib.refused(2, "bench", says="MODE")
    lib.refused(2, "bench", "everything", says=("kernels", "offline", "serve", "replay", "everything"))
    lib.refused(2, "bench", "offline", says="--model")
    lib.refused(2, "bench", "serve", says="--url")
    lib.refused(2, "bench", "replay", "-m", MODEL, says="--trace")
    lib.refused(2, "bench", "serve", "--url", "http://127.0.0.1:1", "--batch", 1, says=("--batch", "bench serve"))
    lib.refused(2, "bench", "serve", "--url", "127.0.0.1:1", says="--url")
    lib.refused(2, "bench", "serve", "--url", "http://127.0.0.1:1", "--rate", 1, "--concurrency", 1, says=("--rate", "--concurrency"))
    lib.refused(2, "bench", "serve", "--url", "http://127.0.0.1:1", "--field", "hw", says="NAME=VALUE")
    lib.refused(1, "bench", "serve", "--url", "http://127.0.0.1:1", says="127.0.0.1:1")
    lib.refused(1, "bench", "serve", "--url", "http://127.0.0.1:1", "--dataset", "test/none.json", says="test/none.json")
    for bad in ("0", "1,", ",1", "a", "1.5", "1,,2", "5000", "1,2,..,1", "2,1,..,8", "..,4", "1,2,..", "1e9"):
        lib.refused(2, "bench", "offline", "-m", MODEL, "--batch", bad, says="--batch")
    lib.refused(2, "bench", "kernels", "--isa", "pentium", says="pentium")


def test_offline():
    with tempfile.TemporaryDirectory() as tmp:
        path = tmp + "/out.json"
        out = bench("offline", "-m", MODEL, "--batch", "1,2,..,8", "--input-len", 20, "--output-len", 6, "--repeat", 1,
                    "--threads", 1, "--price", "8.00", "--chips", 2, "--json", path).decode()
        doc = json.load(open(path))
    assert [r["batch"] for r in doc["results"]] == [1, 2, 4, 8], doc
    for r in doc["results"]:
        assert r["input_len"] == 20 and r["output_len"] == 6
        for key in ("prefill_tok_s", "decode_tok_s", "ttft_ms", "tpot_ms", "weight_bytes", "kv_bytes", "bandwidth_share"):
            assert r[key] > 0, (key, r)
        want = (r["weight_bytes"] + r["kv_bytes"]) / (r["tpot_ms"] / 1e3) / doc["bandwidth"]
        assert abs(want - r["bandwidth_share"]) < 1e-6 * want
        total = 8.0 * 2 / (3600 * (r["input_tok_s"] + r["output_tok_s"]) / 1e6)
        assert abs(total - r["usd_per_mtok_total"]) < 1e-6 * total
    best = sorted((r for r in doc["results"] if r["pareto_e2e"]), key=lambda r: r["e2e_ms"])
    costs = [r["usd_per_mtok_total"] for r in best]
    assert best and costs == sorted(costs, reverse=True), costs
    assert doc["model"] == MODEL and doc["threads"] == 1 and "generic" in doc["isa"] and doc["version"]
    assert "cost against interactivity" in out and "cost against E2E" in out


def test_sweep():
    with tempfile.TemporaryDirectory() as tmp:
        bench("offline", "-m", MODEL, "--batch", "1,2", "--sweep-input", "8,16,..,64", "--output-len", 4, "--repeat", 1,
              "--sweep-threads", "1,2", "--json", tmp + "/out.json", "--svg", tmp + "/out.svg")
        rows = json.load(open(tmp + "/out.json"))["results"]
        root = xml.parse(tmp + "/out.svg").getroot()
    want = [(t, n, b) for t in (1, 2) for n in (8, 16, 32, 64) for b in (1, 2)]
    assert [(r["threads"], r["input_len"], r["batch"]) for r in rows] == want, rows
    assert all(r["decode_limit_tok_s"] > 0 and r["prefill_limit_tok_s"] > 0 for r in rows)
    space = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in root.iter(space + "text")]
    dots = [c for c in root.iter(space + "circle") if c.get("class") == "d"]
    assert len(dots) == 2 * len(rows) and "tokens of the prompt" in texts, texts
    assert {"batch 1, 1 thread", "batch 2, 2 threads"} <= set(texts), texts
    lib.refused(2, "bench", "offline", "-m", MODEL, "--mixed", "--sweep-input", "8,16", says=("--mixed", "--sweep-input"))
    lib.refused(2, "bench", "offline", "-m", MODEL, "--sweep-threads", "0", says="--sweep-threads")
    r = lib.run("bench", "offline", "-m", MODEL, "--batch", 1, "--input-len", 8, "--output-len", 2, "--repeat", 1, "--svg",
                "no/such/folder/x.svg")
    assert r.returncode == 1 and b"no/such/folder/x.svg" in r.stderr, r


def test_mixed():
    out = json.loads(bench("offline", "-m", MODEL, "--mixed", "--batch", 4, "--input-len", 20, "--output-len", 10, "--repeat", 1,
                           "--json", "-"))
    assert out["continuous"]["output_tok_s"] > 0 and out["static"]["output_tok_s"] > 0 and out["gain"] > -1, out


def test_design():
    with tempfile.TemporaryDirectory() as tmp:
        model = tiny.make(tmp + "/tiny", arch="llama", talkative=True, tokenizer=True)
        bench("design", "-m", model, "--batch", "1,3", "--input-len", 20,
              "--output-len", 4, "--repeat", 1, "--threads", 1, "-f", "test/data/text.txt", "--json", tmp + "/d.json")
        rows = json.load(open(tmp + "/d.json"))
    want = ("KV blocks of 8", "KV blocks of 128", "off 256-byte lines", "not fused", "static batching", "fixed shapes",
            "sums in bf16")
    for what in want:
        assert any(what in r["choice"] for r in rows), (what, rows)
    assert all(r["as_is"] > 0 and r["other"] > 0 and r["ratio"] > 0 for r in rows), rows
    assert [r["measure"] for r in rows[:3]] == ["prompt tokens/s, batch 1", "decode tokens/s, batch 1", "decode tokens/s, batch 3"]
    p = [r for r in rows if "perplexity" in r["measure"]]
    assert len(p) == 1 and abs(p[0]["other"] / p[0]["as_is"] - p[0]["ratio"]) < 1e-6 and abs(p[0]["ratio"] - 1) < 0.1, p
    lib.refused(2, "bench", "design", "-m", MODEL, "--batch", "1,2,3,4,5", says="--batch")
    lib.refused(2, "bench", "design", "-m", MODEL, "--mixed", says="--mixed")


def test_kernels():
    with tempfile.TemporaryDirectory() as tmp:
        bench("kernels", "--family", "vec", "--shape", "SmolLM2", "--seconds", 0, "--threads", 1, "--json", tmp + "/k.json")
        doc = json.load(open(tmp + "/k.json"))
    assert doc["levels"][0]["isa"] == "generic" and doc["levels"][0]["f32_gop_s"] > 0
    assert doc["memory_gb_s"] > 0 and doc["by_threads"][0]["threads"] == 1
    assert {r["kernel"] for r in doc["results"]} >= {"norm", "rope", "argmax"}
    assert all(r["us"] > 0 and r["gb_s"] > 0 for r in doc["results"])


def check_point(r):
    for name in ("ttft", "tpot", "intvty", "itl", "e2el"):
        for stat in STATS:
            assert "%s_%s" % (stat, name) in r, (stat, name)
    assert abs(r["median_intvty"] * r["median_tpot"] - 1) < 1e-6
    assert r["median_ttft"] <= r["median_e2el"]
    total = r["total_input_tokens"] + r["total_output_tokens"]
    assert abs(r["total_token_throughput"] - total / r["duration"]) < 1e-3 * r["total_token_throughput"]
    assert abs(r["tput_per_gpu"] * r["tp"] - r["total_token_throughput"]) < 1e-3 * r["total_token_throughput"]


def test_sweep():
    """A server of each configuration, started, loaded and stopped."""
    with tempfile.TemporaryDirectory() as tmp:
        out, page = tmp + "/s.json", tmp + "/s.html"
        text = bench("sweep", "-m", MODEL, "--vary", "block-size=16,32", "--threads", 1, "--concurrency", "1,2", "--input-len", 12,
                     "--output-len", 4, "--num-prompts", 4, "--warmups", 0, "--price", 1, "--json", out, "--report", page).decode()
        assert "frontier against interactivity" in text
        rows = json.load(open(out))["results"]
        assert [(r["configuration"], r["conc"]) for r in rows] == [("block-size %d" % b, c) for b in (16, 32) for c in (1, 2)]
        assert all(r["completed"] == 4 and r["figures"] == "measured" and r["usd_per_mtok_total"] > 0 for r in rows)
        html = open(page).read()
        assert "block-size 16" in html and "measured" in html and html.count("<canvas") == 4  # nobody knows its watts
        assert os.path.getsize(tmp + "/s.csv") and os.path.getsize(tmp + "/s.svg")
    lib.refused(2, "bench", "sweep", says="--url")
    lib.refused(2, "bench", "sweep", "--url", "http://127.0.0.1:1", "--vary", "tp=1", says="--vary")
    lib.refused(2, "bench", "sweep", "-m", MODEL, "--vary", "block-size=x", says=("block-size", "'x'"))


def test_serve_and_replay():
    with tempfile.TemporaryDirectory() as tmp:
        trace, path = tmp + "/trace.jsonl", tmp + "/out.json"
        with Server("--max-seqs", 3, "--block-size", 16, "--trace", trace) as s:
            url, model = "http://127.0.0.1:%d" % s.port, tmp + "/model"
            os.symlink(s.model, model)
            small = ["serve", "--url", url, "--input-len", 20, "--output-len", 6, "--vocab-size", 200]
            bench(*small, "--concurrency", "1,4", "--num-prompts", 8, "--price", 2, "--chips", 2, "--field", "hw=test",
                  "--field", "framework=systole", "--json", path)
            doc = json.load(open(path))
            assert [r["conc"] for r in doc["results"]] == [1, 4]
            for r in doc["results"]:
                check_point(r)
                assert r["completed"] == 8 and r["failed"] == 0 and r["errors"] == {} and r["short_answers"] == 0, r
                assert r["hw"] == "test" and r["framework"] == "systole" and r["tp"] == 2 and r["isl"] == 20
                assert 16 * 8 <= r["total_input_tokens"] <= 20 * 8 and r["usd_per_mtok_total"] > 0
            for more in (["--text"], ["--endpoint", "chat"]):
                bench(*small, *more, "--concurrency", 2, "--num-prompts", 4, "--json", path)
                r = json.load(open(path))["results"][0]
                check_point(r)
                assert r["completed"] == 4, r
            bench(*small, "--rate", 50, "--num-prompts", 10, "--json", path)
            r = json.load(open(path))["results"][0]
            assert r["request_rate"] == 50 and r["completed"] == 10, r
            with open(tmp + "/talks.jsonl", "w") as f:
                for _ in range(3):
                    f.write('{"turns":[{"input_length":20,"output_length":5},{"input_length":4,"output_length":6}]}\n')
            bench("serve", "--url", url, "--trace", tmp + "/talks.jsonl", "--vocab-size", 200, "--concurrency", 2,
                  "--num-prompts", 3, "--warmups", 0, "--json", path)
            r = json.load(open(path))["results"][0]
            assert r["completed"] == 6 and r["total_output_tokens"] == 3 * 11, r
            assert r["total_input_tokens"] == 3 * (20 + 20 + 5 + 4), r
            # More than the context holds: refused, counted by kind, and no answer at all is a failure.
            lib_run = lib.run("bench", "serve", "--url", url, "--input-len", 500, "--concurrency", 1, "--num-prompts", 2,
                              "--warmups", 0, "--vocab-size", 200)
            assert lib_run.returncode == 1 and b"2 x HTTP 400" in lib_run.stdout, lib_run
            s.process.terminate()
            s.process.wait()
            out = bench("replay", "--trace", trace, "-m", model).decode()
            assert "the same, step for step" in out, out
            for flags in (["--block-size", 32], ["--max-seqs", 2], ["--max-batched-tokens", 16]):
                line = lib.refused(1, "bench", "replay", "--trace", trace, "-m", model, *flags, says="differs")
                assert "step" in line and "recorded" in line and "now" in line, line
        with open(trace, "a") as f:
            f.write("{broken\n")
        lib.refused(3, "bench", "replay", "--trace", trace, "-m", MODEL, says=("trace line", trace))


if __name__ == "__main__":
    lib.main(globals())
