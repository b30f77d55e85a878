#!/usr/bin/env python3
"""OpenAI's own Python client against the server: chat, completions, streams, log probabilities, embeddings, errors."""
import os
import subprocess
import sys
import tempfile

from support import lib, venv
from support.lib import Skip
from support.server import Server

CLIENT = None


def client(**more):
    import openai

    return openai.OpenAI(base_url="http://%s/v1" % os.environ["SERVER"], api_key="key-of-the-test", max_retries=0, timeout=60, **more)


def hi(n=5, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": n, "temperature": 0, **more}


def test_models():
    c = client()
    assert [m.id for m in c.models.list()] == ["tiny"] and c.models.retrieve("tiny").object == "model"


def test_chat():
    r = client().chat.completions.create(**hi())
    assert r.choices[0].finish_reason == "length" and r.choices[0].message.role == "assistant" and r.usage.completion_tokens == 5
    assert r.usage.prompt_tokens_details.cached_tokens >= 0
    r = client().chat.completions.create(**hi(n=4, logprobs=True, top_logprobs=2, seed=1, stop=["zz"], extra_body={"top_k": 5, "min_p": 0.1}))
    assert len(r.choices[0].logprobs.content) == 4 and len(r.choices[0].logprobs.content[0].top_logprobs) == 2
    parts = [{"type": "text", "text": "hello"}]
    r2 = client().chat.completions.create(**{**hi(), "messages": [{"role": "user", "content": parts}]})
    assert r2.choices[0].message.content == client().chat.completions.create(**hi()).choices[0].message.content


def test_chat_stream():
    c = client()
    whole = c.chat.completions.create(**hi(8)).choices[0].message.content
    chunks = list(c.chat.completions.create(**hi(8), stream=True, stream_options={"include_usage": True}))
    assert "".join(k.choices[0].delta.content or "" for k in chunks if k.choices) == whole
    assert [k.choices[0].finish_reason for k in chunks if k.choices and k.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8 and all(k.usage is None for k in chunks[:-1])
    with c.chat.completions.create(**hi(150), stream=True) as s:
        next(iter(s))  # and hang up


def test_several_answers():
    c = client()
    r = c.chat.completions.create(**{**hi(6, seed=5), "temperature": 1, "n": 3})
    assert [k.index for k in r.choices] == [0, 1, 2] and r.usage.completion_tokens == 18
    text, ends, usage = {}, {}, None
    for k in c.chat.completions.create(**{**hi(6, seed=5), "temperature": 1, "n": 3}, stream=True, stream_options={"include_usage": True}):
        usage = k.usage or usage
        for x in k.choices:
            text[x.index] = text.get(x.index, "") + (x.delta.content or "")
            if x.finish_reason:
                ends[x.index] = x.finish_reason
    assert text == {k.index: k.message.content for k in r.choices} and ends == {0: "length", 1: "length", 2: "length"}, (text, ends)
    assert usage.completion_tokens == 18 and usage.prompt_tokens == r.usage.prompt_tokens
    r = c.completions.create(model="tiny", prompt=["ab", "c"], n=2, max_tokens=3, seed=1)
    assert [k.index for k in r.choices] == [0, 1, 2, 3] and r.usage.completion_tokens == 12


def test_logprobs():
    c = client()
    ask = hi(5, logprobs=True, top_logprobs=3)
    whole = c.chat.completions.create(**ask).choices[0].logprobs.content
    streamed = [t for k in c.chat.completions.create(**ask, stream=True) for x in k.choices if x.logprobs for t in x.logprobs.content]
    assert streamed == whole and len(whole) == 5 and all(t.top_logprobs[0].logprob >= t.top_logprobs[2].logprob for t in whole)
    r = c.completions.create(model="tiny", prompt="abc", max_tokens=4, temperature=0, logprobs=2, stream=True, stream_options={"include_usage": True})
    chunks = list(r)
    assert sum(len(k.choices[0].logprobs.tokens) for k in chunks if k.choices and k.choices[0].logprobs) == 4 and chunks[-1].usage.completion_tokens == 4


def test_helpers_and_raw_answers():
    c = client()
    with c.chat.completions.stream(model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=6, temperature=0) as s:
        kinds = {e.type for e in s}
        final = s.current_completion_snapshot
    assert {"chunk", "content.delta"} <= kinds, kinds
    assert final.choices[0].message.content == c.chat.completions.create(**hi(6)).choices[0].message.content
    raw = c.chat.completions.with_raw_response.create(**hi(2), extra_headers={"X-Request-Id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse()._request_id == "mine-1"
    assert c.models.retrieve("tiny").meta["n_vocab"] == 320
    got = c.chat.completions.create(**hi(2), extra_body={"unknown_field": 1})
    assert got.usage.completion_tokens == 2


def test_completions():
    c = client()
    r = c.completions.create(model="tiny", prompt="abc", max_tokens=3, temperature=0, logprobs=2, echo=True)
    assert r.choices[0].text.startswith("abc") and len(r.choices[0].logprobs.tokens) == 6 and r.choices[0].logprobs.token_logprobs[0] is None
    r = c.completions.create(model="tiny", prompt=[[5, 6], [7]], max_tokens=2)
    assert len(r.choices) == 2
    text = "".join(k.choices[0].text for k in c.completions.create(model="tiny", prompt="abc", max_tokens=6, temperature=0, stream=True))
    assert text == c.completions.create(model="tiny", prompt="abc", max_tokens=6, temperature=0).choices[0].text


def test_embeddings():
    c = client()
    a = c.embeddings.create(model="tiny", input=["a", "b"])  # the client asks for base64
    b = c.embeddings.create(model="tiny", input=["a", "b"], encoding_format="float")
    d = c.embeddings.create(model="tiny", input=[[5, 6, 7]], dimensions=8)
    assert len(d.data[0].embedding) == 8 and d.usage.prompt_tokens == 3
    assert len(a.data) == 2 and all(abs(x - y) < 1e-6 for x, y in zip(a.data[1].embedding, b.data[1].embedding))


def test_errors():
    import openai

    c = client()

    def fails(kind, fn, code=None, param=None):
        try:
            fn()
        except kind as e:
            assert code is None or e.code == code, e
            assert param is None or e.param == param, e
            assert e.body["message"] and e.request_id, e
            return
        raise AssertionError("nothing was raised")

    fails(openai.BadRequestError, lambda: c.chat.completions.create(**{**hi(), "temperature": 5}), param="temperature")
    fails(openai.BadRequestError, lambda: c.completions.create(model="tiny", prompt="a" * 5000), "context_length_exceeded", "prompt")
    fails(openai.NotFoundError, lambda: c.chat.completions.create(**{**hi(), "model": "gpt-9"}), "model_not_found", "model")
    fails(openai.BadRequestError, lambda: c.chat.completions.create(**hi(), response_format={"type": "json_object"}), param="response_format")
    fails(openai.BadRequestError, lambda: c.chat.completions.create(**hi(), stream=True, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), param="tools")
    fails(openai.NotFoundError, lambda: c.models.retrieve("gpt-9"), "model_not_found")
    fails(openai.BadRequestError, lambda: c.embeddings.create(model="tiny", input=""), param="input")
    fails(openai.AuthenticationError, lambda: client().with_options(api_key="wrong").models.list(), "invalid_api_key")


def test_async_streams():
    import asyncio

    import openai

    async def main():
        c = openai.AsyncOpenAI(base_url="http://%s/v1" % os.environ["SERVER"], api_key="key-of-the-test", max_retries=0)

        async def one(i):
            out = ""
            async for k in await c.chat.completions.create(**hi(10), stream=True):
                out += (k.choices[0].delta.content or "") if k.choices else ""
            return out

        out = await asyncio.gather(*[one(i) for i in range(24)])
        assert len(set(out)) == 1 and out[0]
        await c.close()

    asyncio.run(main())


if __name__ == "__main__":
    if "SERVER" in os.environ:
        lib.main(globals())
    try:
        python = venv.python("openai", "openai")
    except Skip as why:
        print("skipped all: %s\nserve_openai.py: 0 passed, 0 failed, 1 skipped" % why)
        sys.exit(0)
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("key-of-the-test\n")
        keys.flush()
        with Server("--max-seqs", 8, "--api-key-file", keys.name) as server:
            env = {**os.environ, "SERVER": "%s:%d" % (server.host, server.port), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.exit(subprocess.run([python, *sys.argv], env=env).returncode)
