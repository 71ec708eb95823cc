"""The fields of a request, and how one that has others is refused."""

import json

import pytest

from specframe_serve.errors import ApiError
from specframe_serve.protocol import ChatRequest, CompletionRequest
from specframe_serve.responses import ResponseRequest
from specframe_serve.web import bodies
from specframe_serve.web.bodies import parse

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}


def refusal(kind, fields):
    with pytest.raises(ApiError) as caught:
        parse(kind, fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    return caught.value.status, caught.value.body["error"]


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (ChatRequest, CHAT | {"foo": 1, "bar": []}, "foo, bar"),
        (ChatRequest, CHAT | {"stream_options": {"bar": 1}}, "stream_options.bar"),
        (ChatRequest, {"messages": [{"role": "user", "content": "hi", "audio": 1}]}, "messages.0.audio"),
        (CompletionRequest, TEXT | {"messages": []}, "messages"),
    ],
)
def test_unknown_fields_are_named(kind, fields, named):
    status, error = refusal(kind, fields)
    assert status == 422 and error["message"] == f"this server does not know the field {named}"
    assert error["param"] == named.partition(",")[0] and error["code"] == "unknown_field"


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (ChatRequest, {}, "messages: Field required"),
        (ChatRequest, {"messages": []}, "messages: List should have at least 1 item"),
        (ChatRequest, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: Input should be"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "video", "text": ""}]}]}, "content.0.type"),
        (ChatRequest, CHAT | {"temperature": -1}, "temperature: Input should be greater"),
        (ChatRequest, CHAT | {"temperature": "1"}, "temperature: Input should be a valid number"),
        (ChatRequest, CHAT | {"top_p": 0}, "top_p: "),
        (ChatRequest, CHAT | {"n": 0}, "n: "),
        (ChatRequest, CHAT | {"n": 1000}, "n: "),
        (ChatRequest, CHAT | {"max_tokens": 0}, "max_tokens: "),
        (ChatRequest, CHAT | {"stop": ["a", ""]}, "stop.1: "),
        (ChatRequest, CHAT | {"presence_penalty": 2.5}, "presence_penalty: "),
        (ChatRequest, CHAT | {"logit_bias": {"1": 200.0}}, "logit_bias: Input should be less"),
        (ChatRequest, CHAT | {"tools": [{"type": "function"}]}, "tools.0.function: Field required"),
        (ChatRequest, CHAT | {"tool_choice": "some"}, "tool_choice: "),
        (ChatRequest, CHAT | {"store": "yes"}, "store: "),
        (ChatRequest, CHAT | {"continue_final_message": True, "add_generation_prompt": True}, "continues the last"),
        (ChatRequest, CHAT | {"response_format": {"type": "xml"}}, "response_format.type: "),
        (ChatRequest, CHAT | {"seed": 2**64}, "seed: "),
        (CompletionRequest, TEXT | {"echo": 1}, "echo: "),
        (CompletionRequest, {"prompt": None}, "prompt: Field required"),
        (CompletionRequest, {"prompt": [1, "a"]}, "prompt"),
        (ChatRequest, [], "the body: "),
    ],
)
def test_wrong_values_are_named(kind, fields, words):
    status, error = refusal(kind, fields)
    assert status == 422 and words in error["message"] and error["code"] == "invalid_field"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800"}', b'{"temperature": NaN}']
)
def test_what_is_no_json_is_refused(body):
    status, error = refusal(CompletionRequest, body)
    assert status in (400, 422) and len(error["message"]) < 300


def test_what_is_left_out_or_null_is_the_recipes():
    asked = parse(ChatRequest, json.dumps(CHAT | {"temperature": None, "stop": None, "user": "me"}).encode())
    assert asked.sampling() == {} and asked.budget is None and asked.likeliest is None
    given = CHAT | {"temperature": 0, "top_k": -1, "stop": "x", "max_tokens": 3, "max_completion_tokens": 4}
    asked = parse(ChatRequest, json.dumps(given | {"logprobs": True}).encode())
    assert asked.sampling() == {"temperature": 0, "top_k": 0, "stop": ["x"]}
    assert (asked.budget, asked.likeliest) == (4, 0)


EPHEMERAL = {"type": "ephemeral"}
ANSWER = {
    "role": "assistant",
    "content": "hello",
    "refusal": None,
    "annotations": None,
    "audio": None,
    "function_call": None,
    "tool_calls": None,
}
"""A message as OpenAI's client gives it back: `message.model_dump()`."""


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "hi"}, ANSWER]},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"store": False, "metadata": {"run": "1"}, "service_tier": "auto", "user": "me", "unknown": None},
        {"repetition_penalty": 1, "min_tokens": 0, "logit_bias": {}, "top_k": 1.0, "presence_penalty": 0, "n": 1.0},
        {"stream": None, "stream_options": None, "n": None, "logit_bias": None, "stop_token_ids": None},
        {"reasoning_effort": "medium", "verbosity": "medium", "store": True, "cache_prompt": True, "documents": []},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": EPHEMERAL}]}]},
        {"messages": [{"role": "user", "content": "hi", "name": "Ann"}, ANSWER | {"reasoning_content": "hm"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}, "cache_control": EPHEMERAL}]},
        {"length_penalty": 1.0, "skip_special_tokens": True, "use_beam_search": False, "response_format": None},
    ],
)
def test_neutral_values_and_nulls_are_accepted(fields):
    asked = parse(ChatRequest, json.dumps(CHAT | fields).encode())
    assert asked.n == 1 and not asked.stream and asked.sampling().get("top_k", 1) == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_budget_of_minus_one_is_none(name):
    asked = parse(ChatRequest, json.dumps(CHAT | {name: -1}).encode())
    assert asked.budget == -1 and asked.needed == 1
    assert refusal(ChatRequest, CHAT | {name: -2})[0] == 422


def test_the_responses_api_takes_what_its_clients_send():
    reasoning = {"effort": "low", "summary": "auto"}
    fields = {"store": True, "truncation": "auto", "include": ["reasoning.encrypted_content"], "reasoning": reasoning}
    asked = parse(ResponseRequest, json.dumps({"input": "hi", "top_p": 0.5} | fields).encode())
    assert asked.chat().reasoning_effort == "low" and asked.chat().top_p == 0.5


def test_the_payload_of_vllms_load_generator_is_accepted():
    payload = {
        "model": "small",
        "prompt": "hi",
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    asked = parse(CompletionRequest, json.dumps(payload).encode())
    assert asked.stream and asked.stream_options.include_usage and asked.likeliest is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [' + b"null," * 200_000 + b"null]}",
        b'{"messages": [' + b'{"role": 1},' * 80_000 + b'{"role": 1}]}',
        b'{"messages": ["a"], "' + b"x" * 900_000 + b'": 1}',
        b"{" + b",".join(b'"x%d": 1' % number for number in range(80_000)) + b"}",
        json.dumps({f"x{number}" * 200: 1 for number in range(900)}).encode(),
        b'{"prompt": [' + b'["a"],' * 100_000 + b'["a"]]}',
    ],
    ids=["nulls", "messages", "name", "many names", "long names", "prompts"],
)
@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_large_bodies_are_refused_at_their_first_fault_in_few_words(kind, body, monkeypatch):
    counted, refuse = [], bodies._refusal

    def count(error):
        counted.append(error.error_count())
        return refuse(error)

    monkeypatch.setattr(bodies, "_refusal", count)
    status, error = refusal(kind, body)
    assert status == 422 and len(json.dumps(error)) < 1000
    assert sum(counted) <= bodies.FIELDS + 10, "each fault costs memory and time"


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts_are_texts_or_tokens(prompt):
    one = prompt in ("a", [1, 2])
    assert parse(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompts == ([prompt] if one else prompt)


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = parse(ChatRequest, json.dumps({"messages": [{"role": "developer", "content": parts}]}).encode())
    assert asked.messages[0].turn == {"role": "system", "content": "ab"}
