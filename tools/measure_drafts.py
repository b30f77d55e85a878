#!/usr/bin/env python3
"""What guessing ahead gains: the same requests, one at a time, to a server that guesses and to one that does not.

    tools/measure_drafts.py build/release/systole MODEL [--draft-max N] [--draft-model MODEL|mtp] [--tokens N] [--rounds N]
                            [--only KIND] [--compute int8] [--format TEXT]

Requests take turns between the servers, so that all see the same machine. Printed are tokens per second after the first
one, by kind of request, and their ratio for each request, the median of the rounds; answers must be equal. A third server
does as the first: its ratios say what the machine's noise is. Kinds: edits of code and texts that are to be repeated with
changes (answers that quote their prompt), and questions whose answers quote nothing. --compute int8 is what `chat` and
`run` of one sequence compute with. --format: what a request is put into instead of {}, for a model that has no chat
template. Don't run it at a real-time priority: threads of such share a core instead of moving to an idle one."""
import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

CODE_C = """static size_t find_stop(const struct sy_output *o, int *which)
{
    const struct sy_buf *b = &o->pending;
    *which = -1;
    for (size_t i = 0; i < b->len; i++)
        for (int s = 0; s < o->n_stop; s++)
            if (b->len - i >= o->stop_len[s] && !memcmp(b->at + i, o->stop[s], o->stop_len[s])) {
                *which = s;
                return i;
            }
    return b->len;
}"""
CODE_PY = """def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result

def merge_sort(items):
    if len(items) <= 1:
        return items
    middle = len(items) // 2
    return merge(merge_sort(items[:middle]), merge_sort(items[middle:]))"""
CONFIG = json.dumps({"service": "gateway", "listen": [{"host": "0.0.0.0", "port": 8080}, {"host": "::", "port": 8080}],
                     "routes": [{"path": "/users", "upstream": "http://users.internal:9000", "timeout_ms": 2500},
                                {"path": "/orders", "upstream": "http://orders.internal:9001", "timeout_ms": 4000},
                                {"path": "/stock", "upstream": "http://stock.internal:9002", "timeout_ms": 1000}],
                     "log": {"level": "info", "file": "/var/log/gateway.log"}}, indent=2)
SPEECH = ("Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, "
          "and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, "
          "testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a "
          "great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for "
          "those who here gave their lives that that nation might live.")
KINDS = {
    "edit code": [
        "Rename the variable `b` to `pending` in this C function and print the whole function:\n```c\n" + CODE_C + "\n```",
        "Rename `items` to `values` in this Python code and print all of it:\n```python\n" + CODE_PY + "\n```",
        "Change the log level to debug in this file and print the whole file:\n```json\n" + CONFIG + "\n```"],
    "summarise": [
        "Summarise this text in its own words, quoting its sentences:\n" + SPEECH,
        "Repeat this text with a title above it:\n" + SPEECH,
        "List the main statements of this text, each as a quotation:\n" + SPEECH],
    "questions": [
        "Tell a story about a lighthouse keeper who finds a letter.", "Why is the sky blue in the day and red at dusk?",
        "What should I look at when I buy a used bicycle?", "Explain how a refrigerator works to a child.",
        "Write a poem about the sea in winter.", "How do plants know when spring has come?"],
}


def start(binary, model, flags):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([binary, "serve", "-m", model, "--port", str(port), "--max-seqs", "1", "--no-prefix-cache", *flags],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return p, port
        except OSError:
            if p.poll() is not None:
                sys.exit(p.stderr.read())
            time.sleep(0.1)
    sys.exit("the server did not start")


def ask(port, text, n, form):
    what = {"prompt": form.replace("{}", text)} if form else {"messages": [{"role": "user", "content": text}]}
    body = {**what, "max_tokens": n, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/{'' if form else 'chat/'}completions", json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
    first = last = None
    answer, count = "", 0
    with urllib.request.urlopen(r, timeout=600) as f:
        for line in f:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            count = (chunk.get("usage") or {}).get("completion_tokens", count)
            for c in chunk["choices"]:
                answer += (c["text"] if form else c["delta"].get("content")) or ""
                last = time.monotonic()
                first = first or last
    return answer, (count - 1) / (last - first) if count > 8 else None


def main():
    a = argparse.ArgumentParser()
    a.add_argument("binary")
    a.add_argument("model")
    a.add_argument("--draft-max", default="12")
    a.add_argument("--draft-model")
    a.add_argument("--tokens", type=int, default=160)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--only", choices=KINDS)
    a.add_argument("--compute", default="auto")
    a.add_argument("--format")
    o = a.parse_args()
    more = ["--draft-max", o.draft_max] + (["--draft-model", o.draft_model] if o.draft_model else [])
    servers = [start(o.binary, o.model, ["--compute", o.compute, *flags]) for flags in ([], more, [])]
    try:
        for _, port in servers:
            ask(port, "Hello.", 16, o.format)
        for kind, texts in KINDS.items():
            if o.only and kind != o.only:
                continue
            speed, ratio, equal = ([], [], []), ([], []), True
            for text in texts:
                rounds = []
                for i in range(o.rounds):
                    got = {k: ask(servers[k][1], text, o.tokens, o.format) for k in ((0, 1, 2), (2, 1, 0))[i % 2]}
                    equal &= got[0][0] == got[1][0]
                    rounds.append([got[k][1] for k in range(3)])
                rounds = [r for r in rounds if all(r)]
                for k in range(3):
                    speed[k].extend(r[k] for r in rounds)
                for k in range(2 if rounds else 0):
                    ratio[k].append(statistics.median(r[k + 1] / r[0] for r in rounds))
            plain, guessing = (statistics.median(x) for x in speed[:2])
            gain, noise = (f"{statistics.geometric_mean(x):.2f}x (each {' '.join(f'{r:.2f}' for r in x)})" for x in ratio)
            print(f"{kind:10} plain {plain:6.1f} tokens/s, guessing {guessing:6.1f}: {gain}; plain again: {noise}"
                  + ("" if equal else "; ANSWERS DIFFER"), flush=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{servers[1][1]}/metrics") as f:
            print("".join(x.decode() for x in f if b"spec_decode" in x and not x.startswith(b"#")), end="")
    finally:
        for p, _ in servers:
            p.terminate()
            p.wait()


main()
