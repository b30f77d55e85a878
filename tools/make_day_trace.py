#!/usr/bin/env python3
"""A day of requests whose rate rises and falls, for `systole plan --workload trace:FILE` and `systole bench serve --trace`.

    tools/make_day_trace.py [--requests N] [--hours H] [--input N] [--output N] [--seed N] > day.jsonl

Lengths are log-normal around the given means; the rate at its peak is four times that of the quietest hour."""
import argparse
import math
import random

a = argparse.ArgumentParser()
a.add_argument("--requests", type=int, default=100000)
a.add_argument("--hours", type=float, default=24)
a.add_argument("--input", type=float, default=1500)
a.add_argument("--output", type=float, default=300)
a.add_argument("--seed", type=int, default=0)
o = a.parse_args()
rng = random.Random(o.seed)


def around(mean, spread, most):
    return max(1, min(most, round(mean * rng.lognormvariate(-spread * spread / 2, spread))))


def moment():
    while True:  # by rejection
        t = rng.random()
        if rng.random() * 1.6 < 1 + 0.6 * math.sin(2 * math.pi * (t - 0.3)):
            return t


for t in sorted(moment() for _ in range(o.requests)):
    print('{"timestamp":%d,"input_length":%d,"output_length":%d}'
          % (t * o.hours * 3600e3, around(o.input, 1, 16000), around(o.output, 0.8, 4000)))
