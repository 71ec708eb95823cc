"""What a request may hold, and how one that holds something else is refused."""

import json

import pytest

from specframe_serve.errors import ApiError
from specframe_serve.protocol import ChatRequest, CompletionRequest, read

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}


def refusal(kind, fields):
    with pytest.raises(ApiError) as caught:
        read(kind, fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    return caught.value.status, caught.value.body["error"]


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (ChatRequest, CHAT | {"foo": 1, "tools": []}, "foo, tools"),
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
        (ChatRequest, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: Input should be"),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "video", "text": ""}]}]}, "content.0.type"),
        (ChatRequest, CHAT | {"temperature": -1}, "temperature: Input should be greater"),
        (ChatRequest, CHAT | {"temperature": "1"}, "temperature: Input should be a valid number"),
        (ChatRequest, CHAT | {"top_p": 0}, "top_p: "),
        (ChatRequest, CHAT | {"n": 0}, "n: "),
        (ChatRequest, CHAT | {"n": 1000}, "n: "),
        (ChatRequest, CHAT | {"max_tokens": 0}, "max_tokens: "),
        (ChatRequest, CHAT | {"stop": ["a", ""]}, "stop.1: "),
        (ChatRequest, CHAT | {"presence_penalty": 0.5}, "presence_penalty: "),
        (ChatRequest, CHAT | {"logit_bias": {"1": 2.0}}, "logit_bias: "),
        (ChatRequest, CHAT | {"response_format": {"type": "json_object"}}, "response_format.type: "),
        (ChatRequest, CHAT | {"seed": 2**64}, "seed: "),
        (CompletionRequest, TEXT | {"echo": True}, "echo: "),
        (CompletionRequest, {"prompt": None}, "prompt"),
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
    asked = read(ChatRequest, json.dumps(CHAT | {"temperature": None, "stop": None, "user": "me"}).encode())
    assert asked.sampling() == {} and asked.budget is None and asked.likeliest is None
    given = CHAT | {"temperature": 0, "top_k": -1, "stop": "x", "max_tokens": 3, "max_completion_tokens": 4}
    asked = read(ChatRequest, json.dumps(given | {"logprobs": True}).encode())
    assert asked.sampling() == {"temperature": 0, "top_k": 0, "stop": ["x"]}
    assert (asked.budget, asked.likeliest) == (4, 0)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts_are_texts_or_tokens(prompt):
    one = prompt in ("a", [1, 2])
    assert read(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompts == ([prompt] if one else prompt)


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = read(ChatRequest, json.dumps({"messages": [{"role": "developer", "content": parts}]}).encode())
    assert asked.messages[0].turn == {"role": "system", "content": "ab"}
