#!/usr/bin/env python3
"""`systole plan` and the sim backend: what is printed, what is refused, and a server's run replayed on the simulator."""
import csv
import json
import os
import re
import tempfile
import xml.etree.ElementTree as xml

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
    refused(2, "plan", "study", "fly", says=("balance", "fly"))
    refused(2, "plan", "list", "fly", says="fly")
    refused(2, "plan", says="--model-card")
    refused(2, "plan", *CARD, says="--chip")
    refused(2, "plan", *CARD, "--chip", "b999", says=("b999", "plan list"))
    refused(2, "plan", "--model-card", "no-such", "--chip", "b200", says="no-such")
    refused(2, "plan", *CARD, "--chip", "b200", "--slo", "ttft<2s", says="--slo")
    refused(2, "plan", *CARD, "--chip", "b200", "--workload", "8k", says="--workload")
    refused(2, "plan", *CARD, "--chip", "b200", "--tco", "free", says="free")
    refused(2, "plan", *CARD, "--chip", "b200", "--precision", "q4", says="q4")
    refused(2, "plan", *CARD, "--chip", "b200", "--afd", "4", says="A+F")
    refused(2, "plan", *CARD, "-m", "x.gguf", "--chip", "b200", says="both")
    refused(2, "plan", *CARD, "--chip", "b200", "--replicas", "3", says=("--replicas", "trace:FILE"))
    refused(2, "plan", *CARD, "--chip", "tpu_v5e", says=("external", "tpu_v5e"))  # no price on the list
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
    assert "nothing fits; the nearest is 2 x h100, which needs 2.77 times" in small and "GB of weights" in small
    nothing = found(*CARD, "--chip", "h100", "--chips", "1,2", "--simulate", "0")
    assert not nothing["fits"] and [r["chips"] for r in nothing["not_considered"] if r.get("nearest")] == [2]
    table = plan("--model-card", "llama-3.1-8b", "--chip", "h200", "--chips", "1", "--precision", "bf16", "--simulate", "0")
    assert "costed from its graph of llama" in table and "estimated" in table


def test_layouts():
    """What is asked for is what is costed, in either way of counting."""
    for chip, chips, flags, want in (
        ("tpu_v7", 4, ("--tp", 8, "--dp-attention", 8, "--ep", 8), (1, 8, 8)),
        ("tpu_v7", 4, ("--tp", 1, "--dp-attention", 8, "--ep", 8), (1, 8, 8)),
        ("tpu_v7", 4, ("--tp", 8, "--ep", 8), (8, 1, 8)),
        ("b200", 8, ("--tp", 8, "--ep", 1), (8, 1, 1)),
        ("b200", 8, ("--tp", 8, "--ep", 8), (8, 1, 8)),
    ):
        r = found(*CARD, "--chip", chip, "--chips", str(chips), *map(str, flags), "--concurrency", "16,64", "--simulate", "1")
        rows = r["configurations"]
        assert [(c["tp"], c["dp"], c["ep"]) for c in rows] == [want] * 2, rows
        assert sorted(c["conc"] for c in rows) == [16, 64] and [c["figures"] for c in rows] == ["simulated", "estimated"]
        for c in rows:
            assert abs(c["input_tput_per_gpu"] + c["output_tput_per_gpu"] - c["tput_per_gpu"]) < 1e-6 * c["tput_per_gpu"]
    apart = found(*CARD, "--chip", "b200", "--afd", "4+4", "--concurrency", "256", "--simulate", "0")["configurations"]
    assert apart and all(c["chips"] == 8 and c["ffn_chips"] == 4 and c["tp"] * c["dp"] == 4 for c in apart)
    nowhere = plan(*CARD, "--chip", "tpu_v7", "--chips", "4", "--tp", "3", "--simulate", "0")
    assert "cannot be laid out as asked" in nowhere


def test_cards_of_users():
    """A figure that is missing or wrong in one's own card is named."""
    with tempfile.TemporaryDirectory() as d:
        path, prices = os.path.join(d, "mine.json"), os.path.join(d, "p.json")
        with open(prices, "w") as f:
            f.write('{"name":"own","chip_hour":{"mine":2}}')
        with open("data/chips/b200.json") as f:
            card = json.load(f)
        ask = ("plan", *CARD, "--chip", path, "--chips", "8", "--tco", prices, "--simulate", "0", "--concurrency", "16")
        for change, code, says in (
            ({"memory_bytes": None}, 3, "memory_bytes"),
            ({"memory_bytes_s": None}, 3, "memory_bytes_s"),
            ({"flops": None}, 3, "flops"),
            ({"memory_bytes_s": {"value": 0, "source": "x"}}, 3, "memory_bytes_s"),
            ({"memory_bytes": {"value": "8", "source": "x"}}, 3, "memory_bytes"),
            ({"memory_bytes": {"value": 8e9}}, 3, "source"),
        ):
            with open(path, "w") as f:
                json.dump({k: v for k, v in {**card, **change}.items() if v is not None}, f)
            refused(code, *ask, says=says)
        with open(path, "w") as f:
            json.dump(card, f)
        assert found(*ask[1:])["configurations"][0]["hw"] == "mine"
        with open(path, "w") as f:
            json.dump({k: v for k, v in card.items() if k != "link"}, f)
        assert "no 'link'" in plan(*ask[1:])
        trace = os.path.join(d, "t.jsonl")
        line = '{"timestamp":%d,"turns":[{"input_length":9,"output_length":9},{"input_length":9,"output_length":9,"delay_ms":%d}]}\n'
        for text, says in ((line % (0, -5), "delay_ms"), (line % (-1, 0), "timestamp"), (line % (9, 0) + line % (5, 0), "line 2")):
            with open(trace, "w") as f:
                f.write(text)
            refused(3, "plan", *CARD, "--chip", "b200", "--workload", "trace:" + trace, says=says)


def test_bad_figures():
    """What is empty, infinite, too large or not a number is one line that says where, whatever file or flag it stands in."""
    own = ("--chip", "cpu2", "--model-card", "smollm2-135m", "--precision", "int4")
    serve = '{"results":[{"completed":%s,"conc":4,"total_input_tokens":%s,"total_output_tokens":9,"tput_per_gpu":5}]}'
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "x.json")

        def said(body, code, *args, says):
            with open(path, "w") as f:
                f.write(body)
            refused(code, *args, says=says)

        for body, says in (
            ("", "x.json"),
            ('{"chip_hour":{"b200":1e999}}', "overflow"),
            ('{"chip_hour":{"b200":NaN}}', "NaN"),
            ('{"chip_hour":{"b200":1e7}}', ("b200", "at most 1e6")),
            ('{"chip_hour":{"b200":-1}}', ("b200", "above 0")),
        ):
            said(body, 3, "plan", *CARD, "--chip", "b200", "--tco", path, says=says)
        for body in ("", "[]", "{}"):
            said(body, 3, "plan", *CARD, "--chip", path, says="chip 'x'")
            said(body, 3, "plan", "--model-card", path, "--chip", "b200", says="x.json")
            said(body, 3, "plan", "published", "--calibration", path, says="x.json")
            said(body, 3, "plan", "calibrate", "--from", path, says="x.json")
            said(body, 3, "bench", "compare", path, path, says="x.json")
            said(body, 3, "plan", *CARD, "--chip", "b200", "--workload", "trace:" + path, says="x.json")
        for body in ('{"points":[]}', '{"results":[]}'):
            said(body, 3, "plan", "calibrate", "--from", path, *own, says="found none")
            said(body, 3, "plan", "check", "--against", path, *own, says="found none")
        for done, tokens, says in ((1, "9e11", "tokens a request"), (1, "1e300", "total_input_tokens"), (0, "9", "completed")):
            said(serve % (done, tokens), 3, "plan", "calibrate", "--from", path, *own, says=says)
        said(serve % (1, "9"), 2, "plan", "calibrate", "--from", path, "--chip", "no", *own[2:], says="'no'")
    ask = ("plan", *CARD, "--chip", "b200")
    for flags, says in (
        (("--chips", "0"), "1 to 65536"),
        (("--chips", "1e99"), "1 to 65536"),
        (("--chips", "nan"), "nan"),
        (("--concurrency", "inf"), "1048576"),
        (("--concurrency", "0"), "1048576"),
        (("--workload", "0/0"), "0/0"),
        (("--workload", "1e9/10"), "1e9/10"),
        (("--slo", "ttft_p99<nan"), "nan"),
        (("--slo", "ttft_p99<1e400s"), "1e400s"),
        (("--hit-rate", "1"), "0.99"),
        (("--hit-rate", "nan"), "nan"),
        (("--memory-share", "inf"), "0.05"),
        (("--afd", "4294967296+1"), "4294967296"),
    ):
        refused(2, *ask, *flags, says=(flags[0], says))
    refused(2, "plan", *CARD, "--chips", "tpu_v7,b999", says=("b999", "plan list"))
    refused(1, *ask, "--workload", "trace:/no/file", says="/no/file")
    sweep = ("bench", "sweep", *CARD, "--concurrency", "4", "--backend")
    refused(2, *sweep, "sim:b999", says="b999")
    refused(2, *sweep, "sim:b200x8", "--vary", "tp=3", says="tp 3")
    refused(2, *sweep, "sim:b200x8", "--vary", "colour=3", says="colour")


def test_arithmetic():
    """Products in another type than the precision's name is said, never silent."""
    a = plan("--model-card", "llama-3.1-8b", "--chip", "a100_80", "--chips", "1", "--precision", "fp8", "--tco", "rental", "--simulate", "0")
    assert "a100_80: products of fp8 at its bf16 peak" in a
    assert "products of" not in plan("--model-card", "llama-3.1-8b", "--chip", "h200", "--chips", "1", "--precision", "fp8", "--simulate", "0")
    with tempfile.TemporaryDirectory() as d:
        prices = os.path.join(d, "p.json")
        with open(prices, "w") as f:
            f.write('{"name":"own","chip_hour":{"cpu2":0.1}}')
        own = ("--model-card", "smollm2-135m", "--chip", "cpu2", "--chips", "1", "--tco", prices, "--simulate", "0")
        for precision, kind in (("int4", "int8"), ("bf16", "fp32")):
            assert found(*own, "--precision", precision)["configurations"][0]["arithmetic"] == kind
            assert "cpu2: products of %s at its %s peak" % (precision, kind) in plan(*own, "--precision", precision)


def test_report():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "r.html")
        plan(*CARD, "--chips", "tpu_v7,b300", "--concurrency", "8,32,128", "--simulate", "0", "--report", path)
        with open(path) as f:
            html = f.read()
        assert html.startswith("<!doctype html>") and html.count("<canvas") == 5 and "Nothing here is measured" in html
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=", html) and "fetch(" not in html  # it needs nothing else
        data = json.loads(html.split("<script>const R=")[1].split("</script>")[0])
        assert data["series"] and len(data["charts"]) == 5 and all(p["figures"].startswith("estimated") for p in data["points"])
        for chart in data["charts"]:  # a frontier is monotone
            for s in range(len(data["series"])):
                line = sorted((p[chart["x"]], p[chart["y"]]) for p in data["points"] if p["s"] == s and p["front"] & chart["bit"])
                ys = [y for _, y in line]
                assert len(line) > 2 and ys == sorted(ys, reverse=ys[0] > ys[-1]), (chart, line)
        assert "unreachable" in html and html.count("<table") == 3
        picture = xml.parse(path[:-5] + ".svg").getroot()
        assert picture.tag.endswith("svg") and sum("circle" in e.tag for e in picture.iter()) > 10
        with open(path[:-5] + ".csv") as f:
            rows = list(csv.reader(f))
        assert len(rows) > 10 and all(len(r) == len(rows[0]) for r in rows)
        refused(1, "plan", *CARD, "--chip", "b200", "--simulate", "0", "--report", os.path.join(d, "no", "r.html"), says="no/r.html")


def test_sweep_simulated():
    with tempfile.TemporaryDirectory() as d:
        out, page = os.path.join(d, "s.json"), os.path.join(d, "s.html")
        sim = ("bench", "sweep", *CARD, "--backend", "sim:b200x4", "--input-len", "1024", "--output-len", "128", "--num-prompts", "64")
        table = ok(*sim, "--vary", "chip=b200,tpu_v7", "--vary", "tp=4,2", "--vary", "chunk=1024", "--concurrency", "8,32", "--json",
                   out, "--report", page).decode()
        assert "frontier against interactivity" in table and "frontier against time" in table
        with open(out) as f:
            rows = json.load(f)["results"]
        assert len(rows) == 8 and {r["hw"] for r in rows} == {"b200", "tpu_v7"}
        for r in rows:
            assert r["figures"].startswith("simulated; predicted") and r["physicalChips"] == 4 and r["usd_per_mtok_total"] > 0
            # physical chips divide: a TPU v7 of two devices is one chip, however its ranks are laid out
            assert r["tp"] * r["dp"] == 4 * (2 if r["hw"] == "tpu_v7" else 1)
            assert abs(r["tput_per_gpu"] * 4 / r["total_token_throughput"] - 1) < 1e-5
        with open(page) as f:
            assert f.read().count("<canvas") == 5
        assert "equal interactivity" in ok("bench", "compare", out, out).decode()
        refused(2, *sim, "--vary", "fly=1", says=("fly", "dp-attention"))
        refused(2, *sim, "--vary", "tp=0", says="tp")
        refused(2, *sim, "--vary", "tp", says="NAME=")
        refused(2, *sim, "--vary", "tp=3", says="tp 3")
        refused(2, *sim, "--rate", "2", says="--rate")
        refused(2, "bench", "sweep", *CARD, says="sim:CHIP")


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
    for said in ("57.00", "2.69", "2.81", "50.4", "96.0", "76.7", "130.2", "20 s E2E"):  # what was published
        assert said in out, said
    assert all(re.search(r"^%s +256 .*[+-]0\.\d%%  fitted$" % chip, out, re.M) for chip in ("tpu_v7", "b200", "b300"))
    assert "theirs falls, from 780.9 at 32 users" in out and "% of a request is the wait for its first token" in out
    others = sorted(f for f in os.listdir("data/measurements") if f not in ("h100.json", "speedups.json"))
    used = [x for f in others for x in ("--from", "data/measurements/" + f)]
    held = plan("check", *used, "--against", "data/measurements/h100.json")
    n, of = re.search(r"which claims 80 %, holds (\d+) of (\d+) points", held).groups()
    assert 0 <= int(n) <= int(of) and int(of) == held.count("predicted, from kin, +-")
    last = out.strip().split("\n")[-1]
    assert "cells, median error" in last and "fitted" in last and "predicted" in last
    assert float(last.split("median error ")[1].split(" %")[0]) < 6


def test_calibrate():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.json")
        assert "covered" in plan("calibrate", "-o", path)
        with open(path) as f:
            c = json.load(f)
        assert all(g["points"] and len(g["constants"]) == len(g["peaks"]) for g in c["groups"])
        again, fresh = plan("published", "--calibration", path), plan("published")
        assert again.startswith(fresh.split("\nnot simulated")[0])  # read back, it says the same
        assert again.strip().split("\n")[-1] == fresh.strip().split("\n")[-1]
        a, b = (found(*CARD, "--chip", "b200", "--simulate", "0", *more) for more in ((), ("--calibration", path)))
        for x, y in zip(a["configurations"], b["configurations"], strict=True):
            assert x["constants"] == y["constants"] and abs(x["tput_per_gpu"] / y["tput_per_gpu"] - 1) < 1e-6, (x, y)
        for was, says in (('"calibration":1', "calibrate -o"), ('"weight_bandwidth"', "weight_bandwidth"), ('"claim"', "claim")):
            with open(path) as f:
                broken = f.read().replace(was, '"x"' + (":1" if ":" in was else ""))
            with open(path + "x", "w") as f:
                f.write(broken)
            refused(3, "plan", "published", "--calibration", path + "x", says=says)
        assert all(abs(b["claim"] - 0.8) < 1e-9 and 0.7 < b["covered"] <= 1 for b in c["bands"])


def test_own_measurements():
    """Results of our own benchmarks, and of a compiler, calibrate a machine that nobody published."""
    with tempfile.TemporaryDirectory() as d:
        files = {}
        for name, body in (
            ("offline", {"results": [{"batch": b, "input_len": 128, "output_len": 64, "prefill_tok_s": 900, "decode_tok_s": 60 * b**0.7}
                                     for b in (1, 8, 64)]}),
            ("compiled", {"target": "v5e-8", "devices": 8, "block_size": 32,
                          "buckets": [{"tokens": t, "sequences": s, "blocks": 8, "estimated_s": 1e-3 + 2e-6 * t}
                                      for t, s in ((8, 8), (64, 64), (512, 8))]}),
        ):
            files[name] = os.path.join(d, name + ".json")
            with open(files[name], "w") as f:
                json.dump(body, f)
        own = ("--chip", "cpu2", "--model-card", "smollm2-135m", "--precision", "int4")
        refused(2, "plan", "calibrate", "--from", files["offline"], says="--chip")
        out = os.path.join(d, "c.json")
        plan("calibrate", "--from", files["offline"], *own, "-o", out)
        with open(out) as f:
            c = json.load(f)
        assert len(c["groups"]) == 1 and c["groups"][0]["hw"] == "cpu2" and len(c["points"]) == 6
        prices = os.path.join(d, "p.json")
        with open(prices, "w") as f:
            f.write('{"name":"own","chip_hour":{"cpu2":0.1}}')
        r = found(*own, "--chips", "1", "--calibration", out, "--tco", prices, "--workload", "128/64", "--simulate", "0", "--concurrency", "8")
        assert r["configurations"][0]["framework"] == "systole" and r["configurations"][0]["constants"].startswith("predicted")
        rows = [{"completed": 40, "conc": c, "isl": 256, "osl": 128, "total_input_tokens": 40 * 230, "total_output_tokens": 40 * 115,
                 "tput_per_gpu": 2400 * c / (c + 4), "median_tpot": 0.003 + 0.0011 * c, "median_ttft": 0.06 + 0.003 * c} for c in (1, 16, 64)]
        serve = os.path.join(d, "serve.json")
        with open(serve, "w") as f:
            json.dump({"results": rows}, f)
        plan("calibrate", "--from", serve, *own, "-o", out)
        with open(out) as f:
            c = json.load(f)
        assert 50 < c["groups"][0]["gap_ms"] < 300 and c["points"][0]["isl"] == 256 and abs(c["points"][0]["random_range_ratio"] - 0.8) < 0.01
        closed, loops = (plan("check", "--calibration", out, "--against", serve, *own, *more) for more in ((), ("--simulate", "1")))
        assert "TTFT" not in closed and loops.count("TTFT s") == 1 and len(re.findall(r"^serve .*fitted", loops, re.M)) == 3
        v5e = ("--chip", "tpu_v5e", "--chips", "8", "--model-card", "llama-3.1-8b", "--precision", "bf16")
        plan("calibrate", "--from", files["compiled"], *v5e, "-o", out)
        with open(out) as f:
            c = json.load(f)
        assert c["groups"][0]["framework"] == "compiler" and c["groups"][0]["date"] == "estimated"


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
