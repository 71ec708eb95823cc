"""OpenAI's Responses API, as raw requests and as OpenAI's own client reads it."""

import json

import pytest
from serving import QUESTION, lone
from test_clients import listening

from specframe_serve.answers import Answers
from specframe_serve.errors import failed

PATH = "/v1/responses"


def respond(serving, **fields):
    return serving.post(PATH, json={"input": "hello there", "seed": 1} | fields)


def events(text):
    """The events of a stream, their names and numbers checked."""
    found = []
    for number, part in enumerate(part for part in text.split("\n\n") if part):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}" and found[-1]["sequence_number"] == number
    return found


def test_a_reply_is_that_of_a_chat_completion(serving, pipeline):
    wanted = lone(pipeline, "hello there", 1)
    reply = respond(serving).json()
    (item,) = reply["output"]
    assert item["role"] == "assistant" and [part["text"] for part in item["content"]] == wanted.texts
    assert (reply["object"], reply["model"], reply["store"]) == ("response", "small", False)
    tokens = len(wanted.tokens[0])
    usage = reply["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, tokens, 12 + tokens)
    assert (reply["status"] == "incomplete") == (wanted.ended[0] == "length") == bool(reply["incomplete_details"])


def test_a_conversation_is_instructions_and_turns_with_earlier_output_among_them(serving):
    first = respond(serving, max_output_tokens=4).json()
    turns = [{"role": "user", "content": "hello there"}, *first["output"]]
    turns += [{"role": "user", "content": [{"type": "input_text", "text": "go on"}]}]
    text = first["output"][0]["content"][0]["text"]
    found = respond(serving, input=turns, instructions="be kind").json()
    plain = [{"role": "system", "content": "be kind"}, *QUESTION, {"role": "assistant", "content": text}]
    wanted = serving.chat(messages=[*plain, {"role": "user", "content": "go on"}]).json()
    assert found["output"][0]["content"][0]["text"] == wanted["choices"][0]["message"]["content"]
    assert found["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"]


def test_a_stream_is_the_reply_in_named_events(serving):
    whole = respond(serving).json()
    found = events(respond(serving, stream=True).text)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    done = ["output_text.done", "content_part.done", "output_item.done", whole["status"]]
    assert kinds[-4:] == done and set(kinds[4:-4]) == {"output_text.delta"}
    text = whole["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in found[4:-4]) == text == found[-4]["text"]
    last = found[-1]["response"]
    assert last["usage"] == whole["usage"] and last["output"][0]["content"] == whole["output"][0]["content"]


def test_a_stream_that_fails_ends_with_an_error_event(serving, monkeypatch):
    async def fail(self):
        raise failed()
        yield

    monkeypatch.setattr(Answers, "pieces", fail)
    last = events(respond(serving, stream=True).text)[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"input": []},
        {"input": [{"type": "reasoning"}]},
        {"a": 1},
    ],
)
def test_what_is_not_served_is_refused_by_name(serving, fields):
    reply = respond(serving, **fields)
    assert reply.status_code == 422 and next(iter(fields)) in reply.json()["error"]["message"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_openais_client_reads_replies_and_streams(pipeline, monkeypatch):
    openai = pytest.importorskip("openai", reason="pip install openai")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    wanted = lone(pipeline, "hello there", 1).texts[0]
    ask = {"model": "small", "input": "hello there", "extra_body": {"seed": 1}}
    with listening(pipeline) as (_, address), openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client:
        reply = client.responses.create(**ask)
        assert reply.output_text == wanted and reply.usage.output_tokens > 0
        turns = [{"role": "user", "content": "hello there"}, *[item.model_dump() for item in reply.output]]
        assert client.responses.create(model="small", input=turns).output_text is not None
        with client.responses.stream(**ask) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert "".join(deltas) == wanted
        with pytest.raises(openai.UnprocessableEntityError, match="background"):
            client.responses.create(**ask, background=True)
