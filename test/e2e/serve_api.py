#!/usr/bin/env python3
"""The API over HTTP, on a small random model: what is answered, in what shape, and how nonsense is refused."""
import array
import base64
import json
import math
import time

from support import lib
from support.server import Server, chat

S = None


def content(events, key="content"):
    """Per index: text, finish reasons, number of chunks."""
    text, finish = {}, {}
    for e in events[:-1]:
        for c in e["choices"]:
            assert "finish_reason" in c, e
            piece = c["delta"].get(key, "") if "delta" in c else c["text"]
            text[c["index"]] = text.get(c["index"], "") + piece
            if c["finish_reason"] is not None:
                finish.setdefault(c["index"], []).append(c["finish_reason"])
            else:
                assert c["index"] not in finish, "a chunk after the last one"
    return text, finish


def test_chat():
    r = S.ok("/v1/chat/completions", chat("hello", max_tokens=5, temperature=0))
    assert r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-") and r["model"] == "tiny", r
    c, u = r["choices"][0], r["usage"]
    assert c["index"] == 0 and c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str), c
    assert c["finish_reason"] == "length" and c["logprobs"] is None, c
    prompt = "[user]hello[assistant]"
    assert u == {"prompt_tokens": len(prompt), "completion_tokens": 5, "total_tokens": len(prompt) + 5,
                 "prompt_tokens_details": {"cached_tokens": u["prompt_tokens_details"]["cached_tokens"]}}, u


def test_control_tokens_in_messages():
    """Two kinds of them, in a raw prompt and in a message: ids of their own there, plain text here."""
    for token in ("</s>", "<think>"):
        assert len(S.ok("/tokenize", {"content": "a" + token, "add_special": False})["tokens"]) == 2
        assert len(S.ok("/tokenize", {"content": "a" + token, "add_special": False, "parse_special": False})["tokens"]) == 1 + len(token)
        for messages in ([{"role": "user", "content": "a" + token}], [{"role": "user", "content": "b"}, {"role": "assistant", "content": token}]):
            said = sum(len("[%s]%s" % (m["role"], m["content"])) for m in messages) + len("[assistant]")
            r = S.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
            assert r["usage"]["prompt_tokens"] == said, (messages, r["usage"], said)


def test_same_seed_same_answer():
    ask = chat("hello", max_tokens=12, temperature=1.5, seed=7)
    a = S.ok("/v1/chat/completions", ask)["choices"][0]["message"]["content"]
    for _ in range(3):
        assert S.ok("/v1/chat/completions", ask)["choices"][0]["message"]["content"] == a
    e = S.events("/v1/chat/completions", ask)
    assert content(e)[0] == {0: a}, (content(e), a)
    assert S.ok("/v1/chat/completions", {**ask, "seed": 8})["choices"][0]["message"]["content"] != a


def test_stream():
    ask = chat("hi", max_tokens=6, temperature=0)
    e = S.events("/v1/chat/completions", ask)
    assert e[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, e[0]
    assert all(x["object"] == "chat.completion.chunk" and x["id"] == e[0]["id"] for x in e[:-1])
    assert all("usage" not in x for x in e[:-1]), "usage was not asked for"
    text, finish = content(e)
    assert finish == {0: ["length"]}, finish
    assert text[0] == S.ok("/v1/chat/completions", ask)["choices"][0]["message"]["content"]
    e = S.events("/v1/chat/completions", {**ask, "stream_options": {"include_usage": True}})
    assert all(x["usage"] is None for x in e[:-2]), e
    assert e[-2]["choices"] == [] and e[-2]["usage"]["completion_tokens"] == 6, e[-2]
    assert e[-1] == "[DONE]"
    e = S.events("/v1/chat/completions", {**ask, "n": 2, "temperature": 1, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    made = [x["usage"]["completion_tokens"] for x in e[:-1]]
    assert made == sorted(made) and made[0] == 0 and made[-1] == 12 and set(made) == set(range(13)), made
    e = S.events("/v1/completions", {"prompt": "ab", "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1})
    text, finish = content(e)
    whole = S.ok("/v1/completions", {"prompt": "ab", "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1})["choices"][0]
    assert text[0] == whole["text"] and finish == {0: ["length"]}, (text, whole)
    joined = {k: [v for x in e[:-1] for c in x["choices"] if c["logprobs"] for v in c["logprobs"][k]] for k in whole["logprobs"]}
    assert joined == whole["logprobs"], (joined, whole["logprobs"])


def test_several_answers():
    ask = chat("abc", max_tokens=4, n=3, temperature=1.2, seed=3)
    whole = S.ok("/v1/chat/completions", ask)
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 12 and whole["usage"]["prompt_tokens"] == len("[user]abc[assistant]")
    text, finish = content(S.events("/v1/chat/completions", ask))
    assert finish == {0: ["length"], 1: ["length"], 2: ["length"]}, finish
    assert text == {c["index"]: c["message"]["content"] for c in whole["choices"]}
    r = S.ok("/v1/completions", {"prompt": ["a", "bc"], "n": 2, "max_tokens": 2, "seed": 1})
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3] and r["usage"]["prompt_tokens"] == 3, r
    r = S.ok("/v1/completions", {"prompt": ["a", "bc"], "n": 3, "max_tokens": 0, "echo": True, "logprobs": 1})
    assert [(c["index"], c["text"], c["finish_reason"]) for c in r["choices"]] == [(i, "a" if i < 3 else "bc", "length") for i in range(6)], r
    S.refused(400, "/v1/chat/completions", chat("a", n=9), "n", says="8")
    S.refused(400, "/v1/chat/completions", chat("a", n=0), "n")


def test_completions_forms():
    a = S.ok("/v1/completions", {"prompt": "abc", "max_tokens": 4, "temperature": 0})["choices"][0]["text"]
    ids = [4 + ord(c) for c in "abc"]
    assert S.ok("/v1/completions", {"prompt": ids, "max_tokens": 4, "temperature": 0})["choices"][0]["text"] == a
    r = S.ok("/v1/completions", {"prompt": [ids, ids[:2]], "max_tokens": 4, "temperature": 0, "return_token_ids": True})
    assert r["choices"][0]["text"] == a and r["choices"][0]["prompt_token_ids"] == ids and len(r["choices"][0]["token_ids"]) == 4
    assert S.ok("/v1/completions", {"prompt": "a"})["usage"]["completion_tokens"] == 16
    r = S.ok("/v1/completions", {"prompt": "ab", "max_tokens": 0})
    assert r["choices"][0]["text"] == "" and r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 0
    for bad in ([], [[]], [1, "a"], {}, 7, ["a", 1], [1.5], [-1], [320], [2**40], [True]):
        S.refused(400, "/v1/completions", {"prompt": bad})
    S.refused(400, "/v1/completions", {"max_tokens": 1}, "prompt")


def test_echo_and_prompt_logprobs():
    """What evaluation harnesses score with: entries of the prompt, the first without, the same as scored independently."""
    text = "The cat sat on"
    for n in (0, 1):
        r = S.ok("/v1/completions", {"prompt": text, "max_tokens": n, "echo": True, "logprobs": 5, "temperature": 0})
        c, lp = r["choices"][0], r["choices"][0]["logprobs"]
        assert c["text"].startswith(text) and len(lp["tokens"]) == len(text) + n, lp
        assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
        assert all(isinstance(v, float) and v <= 0 for v in lp["token_logprobs"][1:])
        assert all(len(t) <= 5 for t in lp["top_logprobs"][1:]) and lp["tokens"][: len(text)] == list(text)
        assert lp["text_offset"][: len(text)] == list(range(len(text))), lp["text_offset"]
        assert r["usage"]["completion_tokens"] == n
    scored = S.ok("/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]
    assert scored["token_logprobs"] == lp["token_logprobs"][: len(text)]
    for i in (1, 5, len(text) - 1):
        bias = {str(4 + ord(text[i])): 100}
        one = S.ok("/v1/completions", {"prompt": text[:i], "max_tokens": 1, "logprobs": 20, "temperature": 0})
        top = one["choices"][0]["logprobs"]["top_logprobs"][0]
        if text[i] in top:
            assert abs(top[text[i]] - scored["token_logprobs"][i]) < 1e-4, (i, top, scored["token_logprobs"][i])
        assert S.ok("/v1/completions", {"prompt": text[:i], "max_tokens": 1, "logit_bias": bias})["choices"][0]["text"] == text[i]


def test_logprobs():
    ask = chat("hello", max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
    c = S.ok("/v1/chat/completions", ask)["choices"][0]
    entries = c["logprobs"]["content"]
    assert len(entries) == 4
    whole = b"".join(bytes(e["bytes"]) for e in entries)
    assert whole.decode("utf-8", "replace") == c["message"]["content"], (whole, c)
    for e in entries:
        assert len(e["top_logprobs"]) == 3 and e["top_logprobs"][0]["logprob"] == e["logprob"], e
        tops = [t["logprob"] for t in e["top_logprobs"]]
        assert tops == sorted(tops, reverse=True)
    streamed = [x for e in S.events("/v1/chat/completions", ask)[:-1] for k in e["choices"] if k["logprobs"] for x in k["logprobs"]["content"]]
    assert streamed == entries
    for k in (0, 20):
        e = S.ok("/v1/chat/completions", {**ask, "top_logprobs": k})["choices"][0]["logprobs"]["content"]
        assert all(len(x["top_logprobs"]) == k for x in e)
    assert S.ok("/v1/chat/completions", chat("a", max_tokens=2, logprobs=True))["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    for bad in (21, 10**9, -1, "3", 1.5):
        S.refused(400, "/v1/chat/completions", {**ask, "top_logprobs": bad}, "top_logprobs")
    S.refused(400, "/v1/chat/completions", chat("a", top_logprobs=2), "top_logprobs")
    S.refused(400, "/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs")


def test_ranges():
    for field, values in {
        "temperature": (-1, 2.0001, 1e300, "0", [], True), "top_p": (0, -0.1, 1.1, "x"), "min_p": (2, -0.1), "top_k": (-2, 1.5, "a"),
        "presence_penalty": (3, -3), "frequency_penalty": (3, -3), "repetition_penalty": (0, -1, 11), "max_tokens": (-1, 0, "5", 1.5, 2**62),
        "max_completion_tokens": (0, -1), "min_tokens": (-1,), "n": (-1, 129, 1.5), "seed": ("a", 1.5), "logprobs": (1, "true"),
        "stream": ("yes", 1), "stop": (7, [1], "", ["a", ""], ["a"] * 5, "x" * (1 << 20)), "logit_bias": ([], {"a": 1}, {"1": 101}, {"320": 1}, {"1": "x"}),
        "stop_token_ids": (3, [-1], [320], ["a"]), "deadline_ms": (0, -5, "1"), "priority": ("high",), "cache_salt": ("", 5, "x" * 300),
        "stream_options": (7,), "messages": ([], {}, "hi", [7], [{}], [{"role": "user"}], [{"role": "bad", "content": "x"}]),
        "model": (7,), "chat_template_kwargs": ([],), "modalities": (["audio"],),
    }.items():
        for v in values:
            e = S.refused(400, "/v1/chat/completions", {**chat("a", max_tokens=2), field: v})
            assert e["param"].startswith(field), (field, v, e)
    S.refused(400, "/v1/chat/completions", b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}')
    tiny = S.ok("/v1/chat/completions", chat("a", max_tokens=4, temperature=1e-9, logprobs=True))["choices"][0]
    cold = S.ok("/v1/chat/completions", chat("a", max_tokens=4, temperature=0, logprobs=True))["choices"][0]
    assert tiny["message"] == cold["message"] and all(math.isfinite(x["logprob"]) for x in tiny["logprobs"]["content"])
    # null is "left out", and an integer may be written as a number
    S.ok("/v1/chat/completions", chat("a", max_tokens=2.0, temperature=None, stop=None, seed=None, n=None, stream=None, logprobs=None))


def test_not_supported_yet():
    for more in ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}},
                 {"response_format": {"type": "json_schema", "json_schema": {}}}, {"functions": []}, {"guided_json": {}}, {"audio": {}},
                 {"structured_outputs": {}}, {"web_search_options": {}}, {"prediction": {}}):
        S.refused(400, "/v1/chat/completions", chat("a", **more), list(more)[0], says="not supported")
    tool = {"type": "function", "function": {"name": "f", "description": "one", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    other = {"type": "function", "function": {**tool["function"], "description": "two"}}
    for tools in ([tool], [other], [tool, other]):
        for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
            S.refused(400, "/v1/chat/completions", chat("a", tools=tools, tool_choice=choice, parallel_tool_calls=False), says="not supported")
    for pattern in ("^+[a-z]$", "^{2}x$", "(?<=x)+", "\\\\!", "(" * 60000, "^(|.*)$"):
        S.refused(400, "/v1/chat/completions", chat("a", guided_regex=pattern), "guided_regex", says="not supported")
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "string", "pattern": pattern}}}
        S.refused(400, "/v1/chat/completions", chat("a", response_format=schema), "response_format", says="not supported")
    for more in ({"grammar": "root ::= x"}, {"grammar": "root ::= ("}, {"guided_json": ""}, {"response_format": {"type": "json_object"}}, {"guided_choice": ["a"]},
                 {"response_format": {"type": "json_schema", "json_schema": {"schema": {"items": [{}, {}]}}}}):
        S.refused(400, "/v1/chat/completions", chat("a", **more), list(more)[0], says="not supported")
    S.ok("/v1/chat/completions", chat("a", max_tokens=1, guided_json=False))
    S.refused(400, "/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix")
    S.refused(400, "/v1/completions", {"prompt": "a", "best_of": 3}, "best_of")
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}
    S.refused(400, "/v1/chat/completions", image, "messages[0].content[0]")
    ok = chat("a", max_tokens=1, tools=[], user="me", store=False, metadata={"a": "b"}, service_tier="auto", response_format={"type": "text"},
              tool_choice="none", parallel_tool_calls=True, functions=None)
    S.ok("/v1/chat/completions", ok)
    r = S.post("/v1/chat/completions", chat("a", max_tokens=1, temprature=1, foo={}))
    assert r.status == 200 and r.headers["X-Ignored-Fields"] == "temprature,foo", r.headers


def test_what_clients_send():
    """Bodies as Open WebUI, aider (litellm) and the like send them: fields left null or empty, and fields of their own."""
    user = {"role": "user", "content": "hello"}
    web = {"stream": True, "model": "tiny", "messages": [{"role": "system", "content": "Be brief."}, user], "params": {}, "files": None, "features": {"web_search": False},
           "variables": {"{{USER_NAME}}": "x"}, "session_id": "s", "chat_id": "c", "id": "m", "background_tasks": {"title_generation": True},
           "stream_options": {"include_usage": True}, "max_tokens": 4}
    e = S.events("/v1/chat/completions", web)
    assert e[-2]["choices"] == [] and e[-2]["usage"]["completion_tokens"] == 4, e[-2:]
    aider = {"model": "tiny", "messages": [user, {"role": "assistant", "content": "Ok."}, user], "temperature": 0, "stream": False, "max_tokens": None, "n": None,
             "stop": None, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logit_bias": {}, "user": "", "seed": None, "top_p": None,
             "frequency_penalty": None, "presence_penalty": None, "logprobs": None, "top_logprobs": None, "stream_options": None, "extra_body": {}, "timeout": 600}
    r = S.post("/v1/chat/completions", aider)
    assert r.status == 200 and "extra_body" in r.headers["X-Ignored-Fields"], r
    assert r.json["choices"][0]["finish_reason"] == "length" and r.json["usage"]["total_tokens"] == S.ctx, r.json["usage"]
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    same = [S.ok("/v1/chat/completions", {"messages": [m], "max_tokens": 5, "temperature": 0})["choices"] for m in (user, parts, {**user, "name": "me"})]
    assert same[0] == same[1] == same[2], same
    for more in ({"stop": []}, {"logit_bias": None}, {"tools": None, "tool_choice": None}, {"tool_choice": "none"}, {"response_format": None}, {"stream_options": {}},
                 {"logprobs": False}, {"max_completion_tokens": None}, {"stop_token_ids": []}, {"chat_template_kwargs": {}}, {"reasoning_effort": "low"}, {"parallel_tool_calls": False}):
        S.ok("/v1/chat/completions", {"messages": [user], "max_tokens": 1, **more})
    S.ok("/v1/completions", {"prompt": "a", "max_tokens": 1, "logprobs": False, "suffix": None, "best_of": None, "echo": None})
    S.refused(400, "/v1/chat/completions", {"messages": [user], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice")
    plain = S.request("POST", "/v1/chat/completions", json.dumps({"messages": [user], "max_tokens": 1}), {"Content-Type": "text/plain"})
    assert plain.status == 200


def test_messages():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 5}'}}
    user = {"role": "user", "content": "x"}
    for content_value in (None, "", "text"):
        S.ok("/v1/chat/completions", {"messages": [user, {"role": "assistant", "content": content_value, "tool_calls": [call]},
                                                   {"role": "tool", "tool_call_id": "c1", "content": "5"}], "max_tokens": 1})
    r = S.ok("/apply-template", {"messages": [user, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "5"}]})
    assert r == {"prompt": "[user]x[assistant](f:5)[tool]5[assistant]"}, r
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert S.ok("/apply-template", {"messages": [parts], "add_generation_prompt": False}) == {"prompt": "[user]a\nb"}
    assert S.ok("/apply-template", {"messages": [{"role": "developer", "content": "d"}], "add_generation_prompt": False}) == {"prompt": "[system]d"}

    def calls(**change):
        c = {**call, **change}
        return {"messages": [user, {"role": "assistant", "content": None, "tool_calls": [c]}]}

    def fn(**change):
        return calls(function={**call["function"], **change})

    at = "messages[1].tool_calls[0]."
    for body, param in ((calls(id=None), at + "id"), (calls(id=""), at + "id"), (calls(type="x"), at + "type"), (fn(arguments={"a": 1}), at + "function.arguments"),
                        (fn(name=None), at + "function.name"), (calls(function=None), at + "function"),
                        ({"messages": [user, {"role": "tool", "tool_call_id": None, "content": "x"}]}, "messages[1].tool_call_id"),
                        ({"messages": [user, {"role": "tool", "tool_call_id": "c9", "content": "x"}]}, "messages[1].tool_call_id"),
                        ({"messages": [user, {"role": "assistant", "content": None}]}, "messages[1].content"),
                        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
                        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content")):
        S.refused(400, "/v1/chat/completions", body, param)


def test_special_tokens_in_messages_are_text():
    plain = S.ok("/v1/chat/completions", chat("</s>", max_tokens=1))["usage"]["prompt_tokens"]
    assert plain == len("[user]</s>[assistant]"), plain
    assert S.ok("/v1/completions", {"prompt": "</s>", "max_tokens": 1})["usage"]["prompt_tokens"] == 1


def test_context_length():
    ctx = S.ctx
    for n in (ctx, ctx + 1, 10 * ctx):
        S.refused(400, "/v1/completions", {"prompt": "a" * n, "max_tokens": 1}, "prompt", "context_length_exceeded", (str(ctx), str(n)))
    over = len("[user][assistant]")
    S.refused(400, "/v1/chat/completions", chat("a" * ctx), "messages", "context_length_exceeded", (str(ctx), str(ctx + over)))
    S.refused(400, "/v1/embeddings", {"input": "a" * (ctx + 1)}, "input", "context_length_exceeded")
    r = S.ok("/v1/completions", {"prompt": "a" * (ctx - 1), "max_tokens": 50, "temperature": 0})
    assert r["usage"]["completion_tokens"] == 1 and r["choices"][0]["finish_reason"] == "length", r
    assert S.ok("/v1/completions", {"prompt": "a" * ctx, "max_tokens": 0})["usage"]["prompt_tokens"] == ctx
    r = S.ok("/v1/chat/completions", chat("a" * (ctx - over - 3), temperature=0))
    assert r["usage"]["completion_tokens"] == 3 and r["choices"][0]["finish_reason"] == "length", r


def test_stop():
    ask = {"prompt": "stop test", "max_tokens": 40, "temperature": 0}
    whole = S.ok("/v1/completions", ask)["choices"][0]["text"]
    pieces = [i for i in range(3, len(whole) - 4) if "\ufffd" not in whole[i : i + 3] and whole.index(whole[i : i + 3]) == i]
    assert pieces, "the model says nothing that can be stopped at: %r" % whole
    for i in pieces[:4]:
        stop = whole[i : i + 3]
        for s in (stop, [stop], ["nowhere", stop], [stop, whole[i : i + 1]] if whole.index(whole[i]) == i else stop):
            r = S.ok("/v1/completions", {**ask, "stop": s})
            assert r["choices"][0]["text"] == whole[:i] and r["choices"][0]["finish_reason"] == "stop", (whole, s, r)
            assert r["usage"]["completion_tokens"] <= 40
            text, finish = content(S.events("/v1/completions", {**ask, "stop": s}))
            assert text[0] == whole[:i] and finish == {0: ["stop"]}, (text, finish)
        kept = S.ok("/v1/completions", {**ask, "stop": stop, "include_stop_str_in_output": True})["choices"][0]["text"]
        assert kept == whole[: i + 3]
    # one of several answers ends at its stop string: the engine goes on with the others only
    several = {**ask, "n": 4, "temperature": 1.5, "seed": 2, "max_tokens": 100}
    texts = [c["text"] for c in S.ok("/v1/completions", several)["choices"]]
    # a character whose first place differs from answer to answer
    where = {x: [t.find(x) for t in texts] for x in set(texts[0][1:6]) if x != "\ufffd"}
    stop, at = max(where.items(), key=lambda w: max(i if i >= 0 else 100 for i in w[1]) - min(i if i >= 0 else 100 for i in w[1]))
    before = S.idle()
    r = S.ok("/v1/completions", {**several, "stop": stop})
    assert [c["text"] for c in r["choices"]] == [t if i < 0 else t[:i] for t, i in zip(texts, at)], (texts, stop, r)
    assert [c["finish_reason"] for c in r["choices"]] == ["length" if i < 0 else "stop" for i in at], (r, at)
    after = S.idle()
    made, counted = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"], r["usage"]["completion_tokens"]
    assert counted <= made < 400, (counted, made)
    stops = after["vllm:request_success_total.stop"] - before["vllm:request_success_total.stop"]
    assert stops == sum(i >= 0 for i in at) and after["vllm:request_success_total.abort"] == before["vllm:request_success_total.abort"], (stops, at)
    # one that is begun at the very end and never completed: nothing is lost
    tail = whole[-1] + "\u2603"
    assert S.ok("/v1/completions", {**ask, "stop": tail})["choices"][0]["text"] == whole
    text, finish = content(S.events("/v1/completions", {**ask, "stop": tail}))
    assert text[0] == whole and finish == {0: ["length"]}
    ids = S.ok("/v1/completions", {**ask, "return_token_ids": True})["choices"][0]["token_ids"]
    at = ids.index(ids[5])
    r = S.ok("/v1/completions", {**ask, "stop_token_ids": [ids[5]], "return_token_ids": True})
    assert r["choices"][0]["token_ids"] == ids[: at + 1] and r["choices"][0]["finish_reason"] == "stop"


def test_bodies():
    for body in (b"", b" ", b"{", b"{:", b"[]", b"7", b'"a"', b"null", b"\xef\xbb\xbf{}", b'{"a":1}x', '{"prompt":"中文"}'.encode("gbk"), b'{"prompt":"\\ud83d"}',
                 b'{"prompt":"\\udc00\\ud83d"}', b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a","seed":1e400}', b'{"prompt":"a" "b"}', b"{'prompt':'a'}",
                 b"[" * 100000, b'{"a":' * 100000, b'{"prompt":"a\x00b"}', b'{"prompt":"a\nb"}', b"\n" * 100000, b"\xff\xfe{\x00}\x00", b'{"seed":' + b"9" * 5000 + b"}"):
        S.refused(400, "/v1/completions", body)
        S.refused(400, "/v1/chat/completions", body)
    S.ok("/v1/completions", {"prompt": "a\u0000b", "max_tokens": 1})
    assert S.ok("/v1/completions", b'{"prompt":"\\ud83d\\ude00","max_tokens":1}')["usage"]["prompt_tokens"] == 4
    S.refused(413, "/v1/completions", b"\n" * (3 << 20), code="body_too_large")
    S.healthy()


def test_embeddings():
    texts = ["hello", "goodbye", "hello"]
    r = S.ok("/v1/embeddings", {"input": texts, "model": "tiny"})
    v = [d["embedding"] for d in r["data"]]
    assert [d["index"] for d in r["data"]] == [0, 1, 2] and r["object"] == "list" and r["usage"]["prompt_tokens"] == 17
    assert v[0] == v[2] and v[0] != v[1] and all(abs(sum(x * x for x in w) - 1) < 1e-5 for w in v)
    b = S.ok("/v1/embeddings", {"input": texts[0], "encoding_format": "base64"})["data"][0]["embedding"]
    assert array.array("f", base64.b64decode(b)) == array.array("f", v[0])
    assert S.ok("/v1/embeddings", {"input": [4 + ord(c) for c in "hello"]})["data"][0]["embedding"] == v[0]
    d = S.ok("/v1/embeddings", {"input": "hello", "dimensions": 4})["data"][0]["embedding"]
    scale = math.sqrt(sum(x * x for x in v[0][:4]))
    assert len(d) == 4 and all(abs(a - b / scale) < 1e-5 for a, b in zip(d, v[0]))
    last = S.ok("/v1/embeddings", {"input": "hello", "pooling": "last"})["data"][0]["embedding"]
    assert last != v[0] and last == S.ok("/v1/embeddings", {"input": "hello", "pooling": "last"})["data"][0]["embedding"]
    many = S.ok("/v1/embeddings", {"input": ["t%d" % i for i in range(100)]})
    assert len(many["data"]) == 100 and many["data"][7]["embedding"] == S.ok("/v1/embeddings", {"input": "t7"})["data"][0]["embedding"]
    for more, param in (({"dimensions": 100000}, "dimensions"), ({"dimensions": 0}, "dimensions"), ({"encoding_format": "hex"}, "encoding_format"),
                        ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": None}, "input"), ({"pooling": "max"}, "pooling"), ({"input": ["a", ""]}, "input[1]")):
        S.refused(400, "/v1/embeddings", {"input": "a", **more}, param)
    S.healthy()


def test_tokens():
    ids = [4 + b for b in "hi é".encode()]
    assert S.ok("/tokenize", {"content": "hi é"})["tokens"] == ids
    assert S.ok("/tokenize", {"prompt": "hi é"}) == {"tokens": ids, "count": len(ids), "max_model_len": S.ctx}
    assert S.ok("/tokenize", {"content": "</s>"})["tokens"] == [2]
    assert S.ok("/tokenize", {"content": "</s>", "parse_special": False})["tokens"] == [4 + b for b in b"</s>"]
    assert S.ok("/tokenize", {"content": ""})["tokens"] == []
    assert S.ok("/detokenize", {"tokens": ids}) == {"content": "hi é"}
    assert S.ok("/detokenize", {"tokens": [2] + ids}) == {"content": "</s>hi é"}
    assert S.ok("/detokenize", {"tokens": []}) == {"content": ""}
    for body in ({}, {"content": 7}, {"content": None}, {"content": "a", "prompt": "b"}):
        S.refused(400, "/tokenize", body)
    for body in ({}, {"tokens": "a"}, {"tokens": [-1]}, {"tokens": [10**12]}, {"tokens": [1.5]}):
        S.refused(400, "/detokenize", body)


def test_models_and_names():
    r = S.get("/v1/models").json
    assert r["object"] == "list" and r["data"][0]["id"] == "tiny" and r["data"][0]["max_model_len"] == S.ctx
    assert S.get("/v1/models/tiny").json == r["data"][0]
    meta = r["data"][0]["meta"]
    assert meta["n_vocab"] == 320 and meta["n_ctx_train"] >= S.ctx and meta["size"] >= 2 * meta["n_params"] > 320 * meta["n_embd"], meta
    for path in ("/v1/models/other", "/v1/models/", "/nothing", "/v1", "/", "//v1/models", "/V1/models", "/v1/models/tiny/x"):
        a = S.get(path)
        assert a.status == 404 and set(a.json["error"]) == {"message", "type", "param", "code"}, (path, a)
    S.refused(404, "/v1/chat/completions", chat("a", model="other"), "model", "model_not_found", "tiny")
    S.ok("/v1/chat/completions", chat("a", model="tiny", max_tokens=1))
    for method, path in (("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("DELETE", "/health"), ("PUT", "/v1/completions"), ("OPTIONS", "/v1/models")):
        a = S.request(method, path)
        assert a.status == 405 and a.headers["Allow"], (method, path, a)
    h = S.request("HEAD", "/v1/models")
    assert h.status == 200 and h.body == b"" and int(h.headers["Content-Length"]) > 50


def test_request_ids():
    assert S.get("/health", headers={"X-Request-Id": "abc-1.2:3_4"}).headers["X-Request-Id"] == "abc-1.2:3_4"
    for bad in ("a b", 'a"b', "x" * 200, "\u00e9".encode().decode("latin-1")):
        got = S.get("/health", headers={"X-Request-Id": bad}).headers["X-Request-Id"]
        assert got != bad and got.startswith("req-"), got
    assert S.get("/nothing").headers["X-Request-Id"] != S.get("/nothing").headers["X-Request-Id"]


def test_prefix_cache():
    text = "shared prefix " * 6
    ask = {"prompt": text + "one", "max_tokens": 3, "temperature": 0, "cache_salt": "cache-test"}
    first = S.ok("/v1/completions", ask)
    second = S.ok("/v1/completions", ask)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(text) - 32, second["usage"]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    for other in ({"cache_salt": "another"}, {"cache_salt": None}):
        assert S.ok("/v1/completions", {**ask, **other})["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    m = S.idle()
    time.sleep(0.2)  # counters are published after the step that ends the last answer
    m = S.metrics()
    assert m["vllm:prefix_cache_hits_total"] > 0 and m["vllm:prefix_cache_queries_total"] > m["vllm:prefix_cache_hits_total"]


def test_prefix_cache_of_conversations():
    """The same again, one turn more, the last turn edited, a branch: on a model with sliding windows too. And why not more is cached."""
    for arch in ("llama", "gemma3"):
        with Server("--max-seqs", 2, "--block-size", 8, "--log-level", "debug", arch=arch, talkative=arch == "llama") as s:
            def ask(text):
                u = s.ok("/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0})["usage"]
                return u["prompt_tokens_details"]["cached_tokens"]

            base = "You are a helpful thing.[user]tell me about the sea[assistant]"
            more = base + "it is wet[user]and the land?[assistant]"
            assert ask(base) == 0
            for text, shared in ((base, base), (more, base), (more, more), (base + "it is wet[user]and the sky?[assistant]", base + "it is wet[user]and the "),
                                 (base + "no[user]go on", base)):
                got = ask(text)
                assert got >= min(len(shared), len(text) - 1) - 8 and got <= len(text) - 1, (arch, text, got)
            assert "x-header: 1\n" and ask("x-header: 1\n" + base) == 0 and ask("x-header: 2\n" + base) == 8
            assert ask("tell") == 0
            s.idle()
            log = s.stderr().decode()
            for why in ("nothing that follows is cached", "token 10 is another than in what is cached", "all there is in whole blocks of 8"):
                assert why in log, (why, log)


def test_deadline_and_priority():
    r = S.ok("/v1/completions", {"prompt": "a", "max_tokens": 180, "deadline_ms": 1, "temperature": 0})
    assert r["choices"][0]["finish_reason"] == "deadline" and r["usage"]["completion_tokens"] < 180, r
    S.ok("/v1/completions", {"prompt": "a", "max_tokens": 2, "deadline_ms": 60000, "priority": -3})


def test_sampling_options():
    a = {"prompt": "abcabcabc", "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    plain = S.ok("/v1/completions", a)["choices"][0]["token_ids"]
    for more in ({"frequency_penalty": 2}, {"repetition_penalty": 5}, {"presence_penalty": 2}):
        other = S.ok("/v1/completions", {**a, **more})["choices"][0]["token_ids"]
        assert len(set(other)) >= len(set(plain)), (more, plain, other)
    forced = S.ok("/v1/completions", {**a, "logit_bias": {"100": 100}})["choices"][0]["token_ids"]
    assert forced == [100] * 20
    ended = S.ok("/v1/completions", {**a, "logit_bias": {"2": 100}})
    assert ended["choices"][0]["finish_reason"] == "stop" and ended["usage"]["completion_tokens"] == 1 and ended["choices"][0]["text"] == ""
    on = S.ok("/v1/completions", {**a, "logit_bias": {"2": 100}, "ignore_eos": True})
    assert on["choices"][0]["finish_reason"] == "length" and on["usage"]["completion_tokens"] == 20
    least = S.ok("/v1/completions", {**a, "logit_bias": {"2": 100}, "min_tokens": 5})
    assert least["usage"]["completion_tokens"] == 6 and least["choices"][0]["finish_reason"] == "stop", least
    S.refused(400, "/v1/completions", {**a, "min_tokens": 21}, "min_tokens")
    for more in ({"top_k": 1, "temperature": 1}, {"top_p": 1e-6, "temperature": 1}, {"min_p": 1, "temperature": 1}, {"top_k": 1, "temperature": 2, "seed": 3}):
        assert S.ok("/v1/completions", {**a, **more})["choices"][0]["token_ids"] == plain, more


def test_openapi_is_true():
    doc = S.get("/openapi.json").json
    assert doc["openapi"].startswith("3.1")
    for path, methods in doc["paths"].items():
        for method, op in methods.items():
            a = S.request(method.upper(), path.replace("{model}", "tiny"), b"{}" if method == "post" else None)
            assert str(a.status) in op["responses"] and a.status not in (404, 405), (path, a)
    chat_fields = doc["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for f in ("messages", "temperature", "min_p", "cache_salt", "deadline_ms", "stream_options", "top_logprobs", "stop"):
        assert f in chat_fields, f
    assert chat_fields["temperature"] == {"type": ["number", "null"], "minimum": 0, "maximum": 2, "description": chat_fields["temperature"]["description"]}


def test_metrics():
    before = S.idle()
    S.ok("/v1/completions", {"prompt": "abcd", "max_tokens": 3, "temperature": 0})
    after = S.idle()
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 3
    assert after["vllm:request_success_total.length"] - before["vllm:request_success_total.length"] == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert after["vllm:%s_count" % name] - before["vllm:%s_count" % name] == 1, name
    assert after["vllm:inter_token_latency_seconds_count"] - before["vllm:inter_token_latency_seconds_count"] == 2


def test_without_tokenizer():
    with Server("--max-seqs", 2, tokenizer=False) as s:
        r = s.ok("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0})
        assert len(r["choices"][0]["token_ids"]) == 3 and r["choices"][0]["text"] == ""
        e = s.events("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0})
        assert [i for x in e[:-1] for c in x["choices"] for i in c.get("token_ids", [])] == r["choices"][0]["token_ids"]
        s.refused(400, "/v1/completions", {"prompt": "a"}, "prompt", says="no tokenizer")
        s.refused(400, "/v1/completions", {"prompt": [5], "stop": "a"}, "stop")
        s.refused(400, "/v1/chat/completions", chat("a"), "messages", says="no chat template")
        for path in ("/tokenize", "/detokenize"):
            s.refused(400, path, {"content": "a", "tokens": [1]})
        assert len(s.ok("/v1/embeddings", {"input": [5, 6]})["data"]) == 1


if __name__ == "__main__":
    with Server("--max-seqs", 8, "--max-body", "2M", "--max-batched-tokens", 64, "--block-size", 16) as S:
        lib.main(globals())
