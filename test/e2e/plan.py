#!/usr/bin/env python3
"""`systole plan` and the sim backend: what is printed, what is refused, and a server's run replayed on the simulator."""
import csv
import json
import os
import tempfile

from support import lib
from support.lib import ok, refused, text
from support.server import Server

CARD = ("--model-card", "qwen3.5-397b-a17b")


def plan(*args):
    return ok("plan", *args).decode()


def found(*args):
    return json.loads(ok("plan", *args, "--json", "-"))


def test_usage():
    refused(2, "plan", "fly", says=("search", "fly"))
    refused(2, "plan", says="--model-card")
    refused(2, "plan", *CARD, says="--chip")
    refused(2, "plan", *CARD, "--chip", "b999", says=("b999", "plan list"))
    refused(2, "plan", "--model-card", "no-such", "--chip", "b200", says="no-such")
    refused(2, "plan", *CARD, "--chip", "b200", "--slo", "ttft<2s", says="--slo")
    refused(2, "plan", *CARD, "--chip", "b200", "--workload", "8k", says="--workload")
    refused(2, "plan", *CARD, "--chip", "b200", "--tco", "free", says="free")
    assert "chips/b200.json" in plan("list") and "prices/external.json" in plan("list")


def test_files_of_users():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "p.json")
        for body, says in (('{"chip_hour":{"b200":0}}', "b200"), ("{", "p.json"), ('{"chip_hour":[]}', "chip_hour")):
            with open(path, "w") as f:
                f.write(body)
            refused(3, "plan", *CARD, "--chip", "b200", "--tco", path, says=says)
        with open(path, "w") as f:
            f.write('{"name":"mine","chip_hour":{"b200":1}}')
        cheap = found(*CARD, "--chip", "b200", "--chips", "8", "--tco", path, "--simulate", "0")
        with open(path, "w") as f:
            f.write('{"name":"mine","chip_hour":{"b200":3}}')
        dear = found(*CARD, "--chip", "b200", "--chips", "8", "--tco", path, "--simulate", "0")
        a, b = (r["configurations"][0]["usd_per_mtok_total"] for r in (cheap, dear))
        assert abs(b / a - 3) < 1e-6, (a, b)
        with open(path, "w") as f:
            f.write('{"points":[{"id":"x","hw":"b200"}]}')
        refused(3, "plan", "check", "--against", path, says=("model", "x"))


def test_search():
    r = found(*CARD, "--chips", "tpu_v7,b200", "--slo", "tpot_p50<50ms,ttft_p99<30s", "--concurrency", "16,32,64", "--simulate", "2")
    best = r["configurations"][0]
    assert r["promise_kept"] and best["figures"] == "simulated" and best["median_tpot_ms"] < 50 and best["p99_ttft_s"] < 30
    costs = [c["usd_per_mtok_total"] for c in r["configurations"] if c["missed"] <= 1]
    assert costs == sorted(costs) and len(costs) >= 2
    assert best["band"] > 0 and best["constants"].startswith(("predicted", "fitted"))
    impossible = plan(*CARD, "--chip", "b200", "--slo", "tpot_p50<0.001ms", "--simulate", "0")
    assert "nothing keeps the promise; the nearest" in impossible
    small = plan(*CARD, "--chip", "h100", "--chips", "1,2", "--simulate", "0")
    assert "nothing fits" in small and "GB of weights" in small
    table = plan("--model-card", "llama-3.1-8b", "--chip", "h200", "--chips", "1", "--precision", "bf16", "--simulate", "0")
    assert "costed from its graph of llama" in table and "estimated" in table


def test_report():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "r.html")
        plan(*CARD, "--chips", "tpu_v7,b300", "--concurrency", "8,32,128", "--simulate", "0", "--report", path)
        with open(path) as f:
            html = f.read()
        assert html.startswith("<!doctype html>") and html.count("<svg") >= 4 and "estimated" in html
        assert "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html  # it needs nothing else
        with open(path[:-5] + ".svg") as f:
            assert f.read().startswith("<svg")
        with open(path[:-5] + ".csv") as f:
            rows = list(csv.reader(f))
        assert len(rows) > 10 and all(len(r) == len(rows[0]) for r in rows)
        refused(1, "plan", *CARD, "--chip", "b200", "--simulate", "0", "--report", os.path.join(d, "no", "r.html"), says="no/r.html")


def test_compare():
    with tempfile.TemporaryDirectory() as d:
        files = []
        for chip in ("b200", "tpu_v7"):
            files.append(os.path.join(d, chip + ".json"))
            ok("plan", *CARD, "--chip", chip, "--simulate", "0", "--json", files[-1])
        out = ok("bench", "compare", *files).decode()
        assert "equal interactivity" in out and "B over A" in out and "%" in out
        same = ok("bench", "compare", files[0], files[0]).decode()
        assert "+0.0%" in same and "-" not in same.split("B over A")[1].split("at the same")[0].replace("e-", ""), same
        with open(files[0], "w") as f:
            f.write('{"results":[{"conc":1}]}')
        refused(3, "bench", "compare", *files, says="tput_per_gpu")
        refused(2, "bench", "compare", files[0], says="two files")
        refused(2, "bench", "kernels", files[0], says="takes no")


def test_published():
    out = plan("published")
    assert "unverified" in out and "Qwen3.5" in out
    last = out.strip().split("\n")[-1]
    assert "cells, median error" in last and "fitted" in last and "predicted" in last
    assert float(last.split("median error ")[1].split(" %")[0]) < 6


def test_calibrate():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.json")
        assert "covered" in plan("calibrate", "-o", path)
        with open(path) as f:
            c = json.load(f)
        assert all(g["points"] and len(g["constants"]) == 5 for g in c["groups"])
        assert all(abs(b["claim"] - 0.8) < 1e-9 and 0.7 < b["covered"] <= 1 for b in c["bands"])


def test_sim_backend():
    """The same scheduler: the record of a real server's run is replayed on the simulator, step for step."""
    with tempfile.TemporaryDirectory() as d:
        trace, model = d + "/trace.jsonl", d + "/model"
        with Server("--max-seqs", 3, "--block-size", 16, "--max-batched-tokens", 48, "--trace", trace) as s:
            os.symlink(s.model, model)
            ok("bench", "serve", "--url", "http://127.0.0.1:%d" % s.port, "--input-len", 60, "--output-len", 12, "--vocab-size",
               200, "--concurrency", "1,6", "--num-prompts", 14)
            s.process.terminate()
            s.process.wait()
            out = ok("bench", "replay", "--trace", trace, "-m", model, "--backend", "sim:cpu2").decode()
            assert "the same, step for step" in out, out
            refused(2, "run", "-m", model, "--backend", "sim:none", "--ids", "5", says=("none", "plan list"))
            refused(2, "run", "-m", model, "--backend", "sim:", "--ids", "5", says="sim:CHIP")
            refused(4, "run", "-m", model, "--backend", "abacus", "--ids", "5", says="abacus")
            ids = ok("run", "-m", model, "--backend", "sim:h200x2", "--ids", "5", "-n", "4", "--ignore-eos", "--output", "ids")
            assert len(text(ids).replace(",", " ").split()) == 4, ids


if __name__ == "__main__":
    lib.main(globals())
