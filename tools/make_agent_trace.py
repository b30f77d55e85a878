#!/usr/bin/env python3
"""A trace of agents at work, for `systole bench serve --trace`: sessions of many turns whose prompts share all that was
said before, with short answers and tool outputs of varying length in between.

    tools/make_agent_trace.py [--sessions N] [--turns N] [--scale S] [--seed N] > trace.jsonl

The proportions are those published of recorded coding agents (a median request of 142,016 tokens in and 444 out); scale
divides lengths, so that a CPU gets through."""
import argparse
import json
import random

a = argparse.ArgumentParser()
a.add_argument("--sessions", type=int, default=4)
a.add_argument("--turns", type=int, default=10)
a.add_argument("--scale", type=float, default=40)
a.add_argument("--seed", type=int, default=0)
o = a.parse_args()
rng = random.Random(o.seed)


def around(median, spread):
    return max(8, round(median / o.scale * rng.lognormvariate(0, spread)))


for _ in range(o.sessions):
    turns = [{"input_length": around(100000, 0.2), "output_length": around(1500, 0.5), "delay_ms": 0}]
    turns += [{"input_length": around(8000, 0.8), "output_length": around(1500, 0.5),
               "delay_ms": rng.randrange(100, 1000)} for _ in range(o.turns - 1)]
    print(json.dumps({"turns": turns}))
