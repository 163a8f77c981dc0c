#!/usr/bin/env python3
"""What OpenAI's own client (PyPI `openai`) expects of a server, a line each.

    clients.py URL [KEY]      all of them; ends with 1 where one does not hold
    clients.py URL [KEY] -k WORD

Any model will do: nothing is said of what it says. LangChain's client (`langchain-openai`) is
tried in its simplest form where it is there.
"""

import http.client
import json
import socket
import sys
import threading
import time
import urllib.parse

import openai

URL = sys.argv[1].rstrip("/")
REST = sys.argv[2:]
WORD = REST[REST.index("-k") + 1] if "-k" in REST else ""
KEY = REST[0] if REST and REST[0] != "-k" else "none"
HOST = urllib.parse.urlparse(URL)
C = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=120)
MODEL = C.models.list().data[0].id
USER = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}


def chat(messages=USER, **more):
    ask = {"model": MODEL, "messages": messages, "max_tokens": 12, "seed": 5}
    extra = more.pop("extra", {})
    return C.chat.completions.create(**{**ask, **more}, extra_body=extra)


def text(**more):
    return chat(**more).choices[0].message.content


def complete(prompt="Once", **more):
    extra = more.pop("extra", {})
    return C.completions.create(
        **{"model": MODEL, "prompt": prompt, "max_tokens": 8, "seed": 5, **more}, extra_body=extra
    )


def same(**more):
    """The option changes nothing."""
    return text(**more) == text()


def refused(name, status=400, **more):
    """An error that names the parameter."""
    try:
        chat(**more)
    except openai.APIStatusError as error:
        return error.status_code == status and error.param == name
    return False


def pieces(**more):
    return list(chat(stream=True, stream_options={"include_usage": True}, **more))


def streamed(index=0, **more):
    found = [p.choices[0] for p in pieces(**more) if p.choices and p.choices[0].index == index]
    return "".join(c.delta.content or "" for c in found)


def raw(method, path, body=None, **headers):
    link = http.client.HTTPConnection(HOST.hostname, HOST.port, timeout=60)
    link.request(method, path, body, {"authorization": f"Bearer {KEY}", **headers})
    answer = link.getresponse()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def post(body, **headers):
    return raw(
        "POST",
        "/v1/completions",
        json.dumps(body),
        **{"content-type": "application/json", **headers},
    )


def line(data):
    link = socket.create_connection((HOST.hostname, HOST.port), timeout=60)
    link.sendall(data)
    return link


def head(body, more=""):
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    ).encode() + body


def half_closed(stream):
    body = json.dumps(
        {"prompt": "a", "max_tokens": 30, "stream": stream, "ignore_eos": True}
    ).encode()
    link = line(head(body, "connection: close\r\n"))
    link.shutdown(socket.SHUT_WR)
    got = b"".join(iter(lambda: link.recv(65536), b""))
    return got.startswith(b"HTTP/1.1 200") or b"\r\n\r\nHTTP/1.1 200" in got


def again(message):
    """The server's own answer, handed back as clients do."""
    return chat(messages=[*USER, message, *USER]).choices[0].message.content is not None


def own_answer(**more):
    return {**chat().choices[0].message.model_dump(), **more}


def turns(messages):
    return isinstance(chat(messages=messages).choices[0].message.content, str)


def valid(answer):
    try:
        return isinstance(json.loads(answer.choices[0].message.content)["ok"], bool)
    except (ValueError, KeyError):
        return answer.choices[0].finish_reason == "length"


def beside(**more):
    """The same answer while others ask for other things."""
    alone = text(**more)
    others = [
        threading.Thread(target=text, kwargs={"temperature": 2.0, "seed": k, "max_tokens": 40})
        for k in range(4)
    ]
    [other.start() for other in others]
    found = text(**more)
    [other.join() for other in others]
    return alone == found


def left():
    """Who goes away frees what he had."""
    stream = chat(stream=True, max_tokens=400, extra={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    end = time.time() + 20
    while time.time() < end:
        if b"\ngenerate_running 0" in raw("GET", "/metrics")[2]:
            return True
        time.sleep(0.05)
    return False


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "of two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"type": "integer"}},
                "$defs": {"x": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "multiply")
]


def right_call(call, only=("add", "multiply")):
    arguments = json.loads(call.function.arguments)
    return (
        call.function.name in only
        and all(isinstance(arguments[k], int) for k in "ab")
        and bool(call.id)
    )


def called(**more):
    choice = chat(tools=TOOLS, max_tokens=300, **more).choices[0]
    if choice.finish_reason == "length":
        return True
    calls = choice.message.tool_calls
    return choice.finish_reason == "tool_calls" and all(right_call(c) for c in calls)


def streamed_calls(**more):
    found = [c for p in pieces(tools=TOOLS, max_tokens=300, **more) for c in p.choices]
    if found[-1].finish_reason == "length":
        return True
    calls = [call for c in found for call in c.delta.tool_calls or []]
    return bool(calls) and all(right_call(c) for c in calls)


def code(call, kind, code):
    try:
        call()
    except openai.APIStatusError as error:
        return (
            type(error).__name__ == kind
            and error.code == code
            and error.type == "invalid_request_error"
        )
    return False


EXPECTED = {
    # Messages
    "a text": lambda: turns(USER),
    "parts": lambda: turns([{"role": "user", "content": [{"type": "text", "text": "a"}]}]),
    "no parts": lambda: turns([{"role": "user", "content": []}]),
    "a name": lambda: turns([{"role": "user", "content": "a", "name": "me"}]),
    "system": lambda: turns([{"role": "system", "content": "Be kind."}, *USER]),
    "developer": lambda: turns([{"role": "developer", "content": "Be kind."}, *USER]),
    "developer is system": lambda: (
        text(messages=[{"role": "developer", "content": "x"}, *USER])
        == text(messages=[{"role": "system", "content": "x"}, *USER])
    ),
    "own answer": lambda: again(own_answer()),
    "refusal: null": lambda: again({"role": "assistant", "content": "a", "refusal": None}),
    "annotations: []": lambda: again(own_answer(annotations=[])),
    "tool_calls: null": lambda: again(own_answer(tool_calls=None)),
    "tool_calls: []": lambda: again(own_answer(tool_calls=[])),
    "function_call: null": lambda: again(own_answer(function_call=None)),
    "audio: null": lambda: again(own_answer(audio=None)),
    "reasoning_content": lambda: again(own_answer(reasoning_content="so")),
    "reasoning_content: null": lambda: again(own_answer(reasoning_content=None)),
    "an image is refused": lambda: refused(
        "messages",
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
        ],
    ),
    "no messages are refused": lambda: refused("messages", messages=[]),
    # What changes no answer
    "store": lambda: same(store=True),
    "metadata": lambda: same(metadata={"a": "b"}),
    "service_tier": lambda: same(service_tier="auto"),
    "user": lambda: same(user="me"),
    "safety_identifier": lambda: same(extra={"safety_identifier": "me"}),
    "prompt_cache_key": lambda: same(extra={"prompt_cache_key": "a"}),
    "cache_prompt": lambda: same(extra={"cache_prompt": True}),
    "parallel_tool_calls": lambda: same(parallel_tool_calls=False),
    "tools: []": lambda: same(extra={"tools": []}),
    "tool_choice: none": lambda: same(extra={"tool_choice": "none"}),
    "nulls": lambda: same(
        extra={
            k: None
            for k in [
                "stop",
                "n",
                "logit_bias",
                "tools",
                "tool_choice",
                "response_format",
                "stream_options",
                "top_p",
                "top_k",
                "functions",
                "logprobs",
                "top_logprobs",
                "max_completion_tokens",
                "frequency_penalty",
                "something",
            ]
        }
    ),
    "empty values": lambda: same(extra={"stop": [], "logit_bias": {}, "something": "", "else": []}),
    "modalities": lambda: same(modalities=["text"]),
    "echo: false": lambda: same(extra={"echo": False}),
    "chat_template_kwargs": lambda: isinstance(
        text(extra={"chat_template_kwargs": {"thinks": False}}), str
    ),
    "reasoning_effort": lambda: isinstance(text(reasoning_effort="low"), str),
    "response_format: text": lambda: same(response_format={"type": "text"}),
    "n: 1": lambda: same(n=1),
    "min_p: 0": lambda: same(extra={"min_p": 0.0}),
    "top_k: -1": lambda: same(extra={"top_k": -1}),
    "penalties of 0": lambda: same(frequency_penalty=0, presence_penalty=0.0),
    "repeat_penalty: 1": lambda: same(extra={"repeat_penalty": 1.0}),
    # What would
    "an unknown field is refused": lambda: refused("colour", extra={"colour": "red"}),
    "audio is refused": lambda: refused("modalities", modalities=["text", "audio"]),
    "web_search_options is refused": lambda: refused(
        "web_search_options", web_search_options={"user_location": 1}
    ),
    "a wrong type is refused": lambda: refused("temperature", extra={"temperature": "warm"}),
    # Sampling
    "temperature: 0 is the likeliest": lambda: (
        text(temperature=0, seed=1) == text(temperature=0, seed=2)
    ),
    "a seed": lambda: text(seed=7) == text(seed=7),
    "top_p": lambda: text(top_p=1e-6) == text(temperature=0),
    "top_k": lambda: text(extra={"top_k": 1}) == text(temperature=0),
    "top_k beyond 64": lambda: isinstance(text(extra={"top_k": 100}), str),
    "min_p": lambda: text(extra={"min_p": 1.0}) == text(temperature=0),
    "frequency_penalty": lambda: (
        text(frequency_penalty=2.0, temperature=0, max_tokens=60)
        != text(temperature=0, max_tokens=60)
    ),
    "presence_penalty": lambda: isinstance(text(presence_penalty=1.5), str),
    "repetition_penalty": lambda: isinstance(text(extra={"repetition_penalty": 1.3}), str),
    "logit_bias": lambda: (
        len(
            set(
                complete(logit_bias={"100": 100}, max_tokens=3, logprobs=1)
                .choices[0]
                .logprobs.tokens
            )
        )
        == 1
    ),
    "the same among others": lambda: beside(),
    "the same among others, with penalties": lambda: beside(frequency_penalty=0.5, top_p=0.9),
    # Length
    "max_tokens": lambda: (
        chat(max_tokens=3, extra={"ignore_eos": True}).usage.completion_tokens == 3
    ),
    "max_completion_tokens": lambda: (
        chat(
            max_tokens=openai.NOT_GIVEN, max_completion_tokens=3, extra={"ignore_eos": True}
        ).usage.completion_tokens
        == 3
    ),
    "max_tokens is cut to the context": lambda: isinstance(
        text(max_tokens=10**7, stop=[" ", "e", "a", "\n"]), str
    ),
    "finish_reason": lambda: (
        chat(max_tokens=2, extra={"ignore_eos": True}).choices[0].finish_reason == "length"
    ),
    "stop": lambda: "e" not in text(stop="e", max_tokens=40),
    "several stops": lambda: not set("ea") & set(text(stop=["e", "a"], max_tokens=40)),
    # Several
    "n": lambda: len(chat(n=3).choices) == 3,
    "n is of its own seeds": lambda: chat(n=2).choices[0].message.content == text(),
    "n streamed": lambda: streamed(index=1, n=2) == chat(n=2).choices[1].message.content,
    "several prompts": lambda: [c.index for c in complete(["a", "b"], n=2).choices] == [0, 1, 2, 3],
    "tokens as a prompt": lambda: complete([10, 20, 30]).usage.prompt_tokens == 3,
    "several of them": lambda: len(complete([[10, 20], [30]]).choices) == 2,
    # Streams
    "streamed alike": lambda: streamed() == text(),
    "usage at the end": lambda: pieces()[-1].usage == chat().usage,
    "usage is null before": lambda: all(p.usage is None for p in pieces()[:-1]),
    "a role first": lambda: pieces()[0].choices[0].delta.role == "assistant",
    "a reason last": lambda: pieces()[-2].choices[0].finish_reason in ("stop", "length"),
    "who goes away frees what he had": left,
    # Forms
    "json_schema": lambda: valid(chat(response_format=FORMAT, max_tokens=100)),
    "json_object": lambda: (
        text(response_format={"type": "json_object"}, max_tokens=60, temperature=0).lstrip()[:1]
        == "{"
    ),
    "json_object with a schema": lambda: valid(
        chat(extra={"response_format": {"type": "json_object", "schema": SCHEMA}}, max_tokens=100)
    ),
    "white space ends": lambda: (
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {
                    "name": "a",
                    "schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                },
            },
            max_tokens=300,
            temperature=0,
        )
        .choices[0]
        .finish_reason
        == "stop"
    ),
    "a schema in a circle is refused": lambda: refused(
        "response_format",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"$ref": "#"}},
        },
    ),
    # Tools
    "tools": lambda: called(tool_choice="required"),
    "a tool by its name": lambda: called(
        tool_choice={"type": "function", "function": {"name": "add"}}
    ),
    "tools streamed": lambda: streamed_calls(tool_choice="required"),
    "tools, of its own will": lambda: (
        chat(tools=TOOLS, tool_choice="auto").choices[0].finish_reason
        in ("stop", "length", "tool_calls")
    ),
    "no tool": lambda: text(tools=TOOLS, tool_choice="none") == text(),
    "a tool that is not there": lambda: refused(
        "tool_choice", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "no"}}
    ),
    "a call and its result": lambda: turns(
        [
            *USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "3"},
        ]
    ),
    # Probabilities
    "logprobs": lambda: (
        len(chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content[0].top_logprobs) == 3
    ),
    "logprobs of a text": lambda: len(complete(logprobs=2).choices[0].logprobs.token_logprobs) > 0,
    # Errors
    "no such model": lambda: code(lambda: chat(model="no"), "NotFoundError", "model_not_found"),
    "too long": lambda: code(
        lambda: complete([1] * 200000), "BadRequestError", "context_length_exceeded"
    ),
    "an unknown parameter": lambda: code(
        lambda: chat(extra={"no": 1}), "BadRequestError", "unknown_parameter"
    ),
    # HTTP
    "a model by its name": lambda: C.models.retrieve(MODEL).id == MODEL,
    "a model that is not there": lambda: code(
        lambda: C.models.retrieve("no"), "NotFoundError", "model_not_found"
    ),
    "health": lambda: raw("GET", "/health")[0] == 200,
    "a request's name": lambda: chat()._request_id.startswith("req-"),
    "a client's own name for it": lambda: (
        raw("GET", "/health", **{"x-request-id": "mine"})[1]["x-request-id"] == "mine"
    ),
    "names differ": lambda: chat().id != chat().id,
    "a page of this machine may ask": lambda: (
        raw(
            "OPTIONS",
            "/v1/chat/completions",
            origin="http://localhost:3000",
            **{
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            },
        )[1].get("access-control-allow-origin")
        == "http://localhost:3000"
    ),
    "another page may not": lambda: (
        "access-control-allow-origin"
        not in raw("GET", "/v1/models", origin="https://example.com")[1]
    ),
    "half-closed, in one piece": lambda: half_closed(False),
    "half-closed, streamed": lambda: half_closed(True),
    "a raw post": lambda: post({"prompt": "a", "max_tokens": 1})[0] == 200,
}


def langchain():
    """It asks, it streams, and its own answer comes back."""
    model = ChatOpenAI(base_url=URL + "/v1", api_key=KEY, model=MODEL, max_retries=0, seed=5)
    model.max_tokens = 12
    said = model.invoke("Hello")
    streamed_text = "".join(piece.content for piece in model.stream("Hello"))
    second = model.invoke([("human", "Hello"), said, ("human", "Hello")])
    return said.content == streamed_text and isinstance(second.content, str)


try:
    from langchain_openai import ChatOpenAI

    EXPECTED["LangChain"] = langchain
except ImportError:
    pass

FAULTS = (openai.OpenAIError, OSError, LookupError, ValueError, TypeError, AttributeError)
failed = 0
for name, holds in EXPECTED.items():
    if WORD not in name:
        continue
    try:
        held, why = holds(), ""
    except FAULTS as error:
        held, why = False, f": {type(error).__name__}: {error}"
    if not held:
        failed += 1
        print(f"{name}{why}")
print(f"{len(EXPECTED)} expectations, {failed} do not hold")
sys.exit(failed > 0)
