#!/usr/bin/env python3
"""What OpenVINO GenAI makes of a GGUF file, by the measures of doc/benchmarks.md.

    tools/measure_openvino.py MODEL.gguf [--threads 2] [--sequences 64] [--input 136] [--output 128] [--prompt 480]
                              [--rounds 2]

Needs the package openvino-genai, which has a tokenizer of its own: prompts are windows of test/data/text.txt, cut so that they
come near the lengths asked for, and lengths printed are its own. `LLMPipeline` runs one sequence, a continuous batch many;
its output tokens/s include the prompts' time, as `output_tok_s` of `systole bench offline --json` does."""
import argparse
import os
import time

import openvino_genai as ov

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "data", "text.txt")
a = argparse.ArgumentParser()
a.add_argument("model")
for name, value in ("threads", 2), ("sequences", 64), ("input", 136), ("output", 128), ("prompt", 480), ("rounds", 2):
    a.add_argument("--" + name, type=int, default=value)
o = a.parse_args()
with open(TEXT, encoding="utf-8") as f:
    text = f.read()


def config(n):
    c = ov.GenerationConfig()
    c.max_new_tokens, c.ignore_eos, c.do_sample, c.apply_chat_template = n, True, False, False
    return c


def window(tokens, at):
    """Some 4.6 characters are a token of English; no window begins like another, so that no prefix is found again."""
    return text[37 * at:][:round(4.6 * tokens)]


one = ov.LLMPipeline(o.model, "CPU", INFERENCE_NUM_THREADS=o.threads)
for n in (o.input, o.prompt, o.prompt):
    one.generate(window(n, 0), config(8))
for i in range(o.rounds):
    m = one.generate([window(o.prompt, 2 * i + 1)], config(2)).perf_metrics
    print("a prompt of %d tokens: %.0f tokens/s" % (m.get_num_input_tokens(),
                                                    m.get_num_input_tokens() / m.get_ttft().mean * 1000))
    m = one.generate([window(o.input, 2 * i + 2)], config(o.output)).perf_metrics
    print("decode, batch 1, after %d tokens: %.1f tokens/s" % (m.get_num_input_tokens(), 1000 / m.get_tpot().mean))
del one
s = ov.SchedulerConfig()
s.cache_size, s.max_num_seqs, s.max_num_batched_tokens = 3, o.sequences, 2048
many = ov.ContinuousBatchingPipeline(o.model, s, "CPU", {"INFERENCE_NUM_THREADS": o.threads})
for i in range(o.rounds):
    began = time.monotonic()
    prompts = [window(o.input, o.sequences * i + k) for k in range(o.sequences)]
    many.generate(prompts, [config(o.output)] * o.sequences)
    print("%d sequences: %.0f output tokens/s" % (o.sequences, o.sequences * o.output / (time.monotonic() - began)))
